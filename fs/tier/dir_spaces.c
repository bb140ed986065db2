/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dir_spaces.c - a directory's spaces: folders with an owner, and the buckets in
 * them.
 */
#include <config.h>

#include "fs/tier/dir.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/error.h"
#include "common/osfile.h"

static int open_folder(struct ucm_medium *medium, const char *folder)
{
	return ucm_os_open(ucm_directory_fd(medium), folder,
			   O_RDONLY | O_DIRECTORY, 0);
}

/* ---- which there are ---- */

static int look_at_space(struct ucm_medium *medium, const char *name,
			 int (*fn)(void *arg, const char *name,
				   const struct stat *st),
			 void *arg, struct ucm_error *error)
{
	struct ucm_directory *dir = ucm_directory_of(medium);
	char path[UCM_TREE_PATH_MAX];
	struct stat st;
	int err;

	if (!ucm_tree_space_valid(name))
		return 0;
	ucm_tree_folder(name, path);
	if (ucm_os_stat(dir->dirfd, path, &st) || !S_ISDIR(st.st_mode))
		return 0;
	err = ucm_trust_space(&dir->trust, &st, path, error);
	return err ? err : fn(arg, name, &st);
}

static int directory_list_spaces(struct ucm_medium *medium,
				 int (*fn)(void *arg, const char *name,
					   const struct stat *st),
				 void *arg, struct ucm_error *error)
{
	_cleanup_free_ char *names = NULL;
	int err = ucm_os_list(ucm_directory_fd(medium), UCM_TREE_SPACES,
			      &names);

	if (err == -ENOENT)
		return 0;
	if (err)
		return ucm_error_set(error, err, "%s/" UCM_TREE_SPACES ": %s",
				     medium->path, strerror(-err));
	for (const char *name = names; *name && !err; name += strlen(name) + 1)
		err = look_at_space(medium, name, fn, arg, error);
	return err;
}

static int directory_find_space(struct ucm_medium *medium, const char *folder)
{
	struct stat st;

	return ucm_os_stat(ucm_directory_fd(medium), folder, &st);
}

/* ---- owner and mode ---- */

/* The mode last, as chown may clear bits of it. */
static int directory_set_owner(struct ucm_medium *medium, const char *folder,
			       const struct ucm_space_owner *owner)
{
	_cleanup_fd_ int fd = open_folder(medium, folder);
	int err;

	if (fd < 0)
		return fd == -ENOENT ? 0 : fd;
	err = ucm_os_fchown(fd, owner->uid, owner->gid);
	if (err == -EPERM)
		err = 0; /* not root: it is ours anyway */
	return err ? err : ucm_os_fchmod(fd, owner->is_private ? 0700 : 0755);
}

static int directory_make_space(struct ucm_medium *medium, const char *folder,
				const struct ucm_space_owner *owner, bool sync)
{
	int dirfd = ucm_directory_fd(medium);
	/* nobody's until it has its owner */
	int err = ucm_os_mkdir(dirfd, folder, 0700);

	if (err)
		return err == -EEXIST ? 0 : err;
	err = directory_set_owner(medium, folder, owner);
	if (!err && sync)
		err = ucm_os_sync_dir(dirfd, *ucm_tree_folder_name(folder)
						     ? UCM_TREE_SPACES
						     : ".");
	if (err)
		ucm_os_rmdir(dirfd, folder);
	return err;
}

/* ---- removal ---- */

static void directory_unmake_space(struct ucm_medium *medium,
				   const char *folder)
{
	ucm_os_rmdir(ucm_directory_fd(medium), folder);
}

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

static int clear_bucket(int folder, unsigned bucket)
{
	char name[3];
	int err;

	ucm_tree_bucket_name(bucket, name);
	err = ucm_os_rmdir(folder, name);
	return err == -ENOENT ? 0 : err;
}

/* Away with its buckets; with those that are not empty all else stays. */
static int directory_clear_space(struct ucm_medium *medium, const char *folder)
{
	_cleanup_fd_ int fd = open_folder(medium, folder);
	_cleanup_free_ char *names = NULL;
	int err = 0;

	if (fd < 0)
		return fd == -ENOENT ? 0 : fd;
	for (unsigned bucket = 0; bucket < UCM_BUCKETS && !err; bucket++)
		err = clear_bucket(fd, bucket);
	if (!err)
		err = ucm_os_list(ucm_directory_fd(medium), folder, &names);
	for (const char *name = names; !err && *name;
	     name += strlen(name) + 1) {
		if (!is_manifest(name))
			err = -ENOTEMPTY;
	}
	return err;
}

static int directory_remove_space(struct ucm_medium *medium, const char *folder)
{
	_cleanup_fd_ int fd = open_folder(medium, folder);

	if (fd < 0)
		return fd == -ENOENT ? 0 : fd;
	for (size_t i = 0; i < NUM_MANIFESTS; i++) {
		int err = ucm_os_unlink(fd, manifests[i]);

		if (err && err != -ENOENT)
			return err;
	}
	return ucm_os_rmdir(ucm_directory_fd(medium), folder);
}

/* ---- buckets ---- */

static int directory_buckets(struct ucm_medium *medium, const char *folder,
			     uint64_t out[4])
{
	_cleanup_free_ char *names = NULL;
	int err = ucm_os_list(ucm_directory_fd(medium), folder, &names);

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

static int directory_stamp(struct ucm_medium *medium, const char *folder,
			   unsigned bucket, struct stat *out)
{
	char path[UCM_TREE_PATH_MAX];
	int err;

	ucm_tree_bucket_path(folder, bucket, path);
	err = ucm_os_stat(ucm_directory_fd(medium), path, out);
	return err ? err : S_ISDIR(out->st_mode) ? 0 : -ENOENT;
}

const struct ucm_space_ops ucm_directory_spaces = {
	.list = directory_list_spaces,
	.find = directory_find_space,
	.make = directory_make_space,
	.unmake = directory_unmake_space,
	.set_owner = directory_set_owner,
	.clear = directory_clear_space,
	.remove = directory_remove_space,
	.buckets = directory_buckets,
	.stamp = directory_stamp,
};
