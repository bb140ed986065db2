/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spaces.c - spaces of a medium: folders with an owner, and the buckets in them;
 * see medium.h.
 */
#include <config.h>

#include "fs/medium/medium.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/error.h"
#include "fs/medium/trust.h"

/* ---- which there are ---- */

static int look_at_space(struct ucm_medium *medium, const char *name,
			 int (*fn)(void *arg, const char *name,
				   const struct stat *st),
			 void *arg, struct ucm_error *error)
{
	char path[UCM_TREE_PATH_MAX];
	struct stat st;
	int err;

	if (!ucm_tree_space_valid(name))
		return 0;
	ucm_tree_folder(name, path);
	if (medium->ops->stat(medium, path, &st) || !S_ISDIR(st.st_mode))
		return 0;
	err = ucm_trust_space(medium->path, &st, path, error);
	return err ? err : fn(arg, name, &st);
}

int ucm_medium_list_spaces(struct ucm_medium *medium,
			   int (*fn)(void *arg, const char *name,
				     const struct stat *st),
			   void *arg, struct ucm_error *error)
{
	_cleanup_free_ char *names = NULL;
	struct stat st;
	int err;

	if (medium->hosts) /* for those that others have made lately */
		medium->ops->stat(medium, UCM_TREE_SPACES, &st);
	err = medium->ops->list(medium, UCM_TREE_SPACES, &names);
	if (err == -ENOENT)
		return 0;
	if (err)
		return ucm_error_set(error, err, "%s/" UCM_TREE_SPACES ": %s",
				     medium->path, strerror(-err));
	for (const char *name = names; *name && !err; name += strlen(name) + 1)
		err = look_at_space(medium, name, fn, arg, error);
	return err;
}

/* ---- made, and its owner's ---- */

int ucm_medium_set_owner(struct ucm_medium *medium, const char *folder,
			 const struct ucm_space_owner *owner)
{
	int err = medium->ops->own(medium, folder, owner);

	return err == -ENOENT ? 0 : err;
}

void ucm_medium_unmake_space(struct ucm_medium *medium, const char *folder)
{
	medium->ops->remove(medium, folder, true);
}

int ucm_medium_make_space(struct ucm_medium *medium, const char *folder,
			  const struct ucm_space_owner *owner, bool sync)
{
	/* nobody's until it has its owner */
	int err = medium->ops->mkdir(medium, folder, 0700);

	if (err)
		return err == -EEXIST ? 0 : err;
	err = medium->ops->own(medium, folder, owner);
	if (!err && sync)
		err = ucm_medium_sync(medium, *ucm_tree_folder_name(folder)
						      ? UCM_TREE_SPACES
						      : ".");
	if (err)
		ucm_medium_unmake_space(medium, folder);
	return err;
}

/* ---- buckets ---- */

int ucm_medium_buckets(struct ucm_medium *medium, const char *folder,
		       uint64_t out[4])
{
	_cleanup_free_ char *names = NULL;
	int err = medium->ops->list(medium, folder, &names);

	memset(out, 0, 4 * sizeof(*out));
	if (err)
		return err == -ENOENT ? 0 : err;
	for (const char *name = names; *name; name += strlen(name) + 1) {
		int bucket = ucm_tree_parse_bucket(name);

		if (bucket >= 0)
			out[bucket / 64] |= UINT64_C(1) << bucket % 64;
	}
	return 0;
}

/* ---- removal ---- */

/* space.json, and what a crash may have left of one. */
static const char *const manifests[] = {
	UCM_TREE_MANIFEST, UCM_TREE_MANIFEST_NEW, UCM_TREE_MANIFEST_MAKE,
};
#define NUM_MANIFESTS (sizeof(manifests) / sizeof(manifests[0]))

static bool is_manifest(const char *name)
{
	for (size_t i = 0; i < NUM_MANIFESTS; i++) {
		if (!strcmp(name, manifests[i]))
			return true;
	}
	return false;
}

/* What is not there is gone. */
static int space_remove(struct ucm_medium *medium, const char *path,
			bool is_folder)
{
	int err = medium->ops->remove(medium, path, is_folder);

	return err == -ENOENT ? 0 : err;
}

static int clear_buckets(struct ucm_medium *medium, const char *folder)
{
	char path[UCM_TREE_PATH_MAX];
	uint64_t there[4];
	int err = ucm_medium_buckets(medium, folder, there);

	for (unsigned bucket = 0; bucket < UCM_BUCKETS && !err; bucket++) {
		if (!(there[bucket / 64] >> bucket % 64 & 1))
			continue;
		ucm_tree_bucket_path(folder, bucket, path);
		err = space_remove(medium, path, true);
	}
	return err;
}

/* Away with its buckets; with those that are not empty all else stays. */
int ucm_medium_clear_space(struct ucm_medium *medium, const char *folder)
{
	_cleanup_free_ char *names = NULL;
	int err = clear_buckets(medium, folder);

	if (!err)
		err = medium->ops->list(medium, folder, &names);
	if (err)
		return err == -ENOENT ? 0 : err;
	for (const char *name = names; *name; name += strlen(name) + 1) {
		if (!is_manifest(name))
			return -ENOTEMPTY;
	}
	return 0;
}

int ucm_medium_remove_space(struct ucm_medium *medium, const char *folder)
{
	char path[UCM_TREE_PATH_MAX];
	int err = 0;

	for (size_t i = 0; i < NUM_MANIFESTS && !err; i++) {
		snprintf(path, sizeof(path), "%s/%s", folder, manifests[i]);
		err = space_remove(medium, path, false);
	}
	return err ? err : space_remove(medium, folder, true);
}
