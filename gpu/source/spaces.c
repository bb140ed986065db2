/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spaces.c - the calls of <ucm/space.h>: spaces that programs make and read, of a
 * daemon (served.c) or in the directories of the tiers.
 *
 * A manifest can be replaced as long as a space has no blocks. So whoever
 * writes one holds the lock (flock(2)) of the space's folder, and has looked
 * under it that there is neither a manifest (or one that says nothing but a
 * quota) nor a block. It is linked under its name when all of it is there: whoever
 * does not lock sees it whole or not at all, and the first one stays.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <ucm/space.h>

#include "common/cleanup.h"
#include "common/error.h"
#include "common/osfile.h"
#include "fs/store/manifest.h"
#include "fs/tier/config.h"
#include "fs/tier/memory.h"
#include "gpu/source/served.h"
#include "hashing/tree.h"

_Static_assert(UCM_SPACE_MANIFEST_MAX == UCM_MANIFEST_MAX, "one limit");

struct root {
	char *path;
	int fd;
};

/* The directories of the tiers. */
struct roots {
	unsigned num;
	struct root *roots;
};

/* "PATH/FOLDER: cause" */
static int space_failed(struct ucm_error *error, const struct root *root,
			const char *folder, int err)
{
	return ucm_error_set(error, err, "%s/%s: %s",
		       root->path, folder, strerror(-err));
}

/* ---- roots ---- */

static void close_roots(struct roots *roots)
{
	for (unsigned i = 0; i < roots->num; i++) {
		if (roots->roots[i].fd >= 0)
			close(roots->roots[i].fd);
		free(roots->roots[i].path);
	}
	free(roots->roots);
}

static int add_root(struct roots *roots, const char *path,
		    struct ucm_error *error)
{
	struct root *root = &roots->roots[roots->num++];

	root->path = strdup(path);
	root->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (root->path && root->fd >= 0)
		return 0;
	return ucm_error_set(error, root->path ? -errno : -ENOMEM, "%s: %s",
			     path,
			     root->path ? strerror(errno) : "out of memory");
}

static int add_tiers(struct roots *roots, const struct ucm_config *config,
		     struct ucm_error *error)
{
	unsigned num = 0;
	int err = 0;

	for (unsigned i = 0; i < config->num_tiers; i++)
		num += config->tiers[i].num_dirs;
	roots->roots = calloc(num, sizeof(*roots->roots));
	if (!roots->roots)
		return ucm_error_set(error, -ENOMEM,
			       "out of memory");
	for (unsigned i = 0; i < config->num_tiers; i++) {
		const struct ucm_tier_config *tier = &config->tiers[i];
		char memory[UCM_MEMORY_PATH_MAX];

		if (tier->memory && !err)
			err = ucm_memory_find(config, tier->name, memory,
					      error);
		for (unsigned j = 0; j < tier->num_dirs && !err; j++)
			err = add_root(roots,
				       tier->memory ? memory : tier->dirs[j],
				       error);
	}
	return err;
}

/* On error there is nothing to close. */
static int open_roots(struct roots *roots, const char *tiers,
		      struct ucm_error *error)
{
	struct ucm_config config;
	int err;

	*roots = (struct roots){ 0 };
	ucm_config_init(&config);
	err = ucm_config_source(&config, tiers, error);
	if (!err)
		err = ucm_config_check(&config, error);
	if (!err)
		err = add_tiers(roots, &config, error);
	ucm_config_fini(&config);
	if (err)
		close_roots(roots);
	return err;
}

/* ---- what there is ---- */

static int check_place(const char *mount, const char *tiers,
		       struct ucm_error *error)
{
	return !mount == !tiers
		       ? ucm_error_set(error, -EINVAL,
				       "neither a mount nor tiers, or both")
		       : 0;
}

static int check_name(const char *name, struct ucm_error *error)
{
	return ucm_tree_space_valid(name)
		       ? 0
		       : ucm_error_set(error, -EINVAL,
				 "'%s': no name of a space", name);
}

static int read_manifest(const struct root *root, const char *folder,
			 char text[UCM_SPACE_MANIFEST_MAX])
{
	char path[UCM_TREE_PATH_MAX];
	int err;

	ucm_tree_manifest_path(folder, path);
	err = ucm_os_read_file(root->fd, path, text, UCM_SPACE_MANIFEST_MAX);
	return err == -ENOTDIR ? -ENOENT : err;
}

static int bucket_has_blocks(const struct root *root, const char *folder,
			     unsigned bucket, bool *out)
{
	char path[UCM_TREE_PATH_MAX];
	_cleanup_free_ char *names = NULL;
	struct ucm_id id;
	int err;

	ucm_tree_bucket_path(folder, bucket, path);
	err = ucm_os_list(root->fd, path, &names);
	if (err) /* buckets are made when they are needed */
		return err == -ENOENT || err == -ENOTDIR ? 0 : err;
	for (const char *name = names; *name; name += strlen(name) + 1)
		*out |= !ucm_tree_parse_block(name, &id);
	return 0;
}

static int has_blocks(const struct roots *roots, const char *folder, bool *out)
{
	int err = 0;

	*out = false;
	for (unsigned i = 0; i < roots->num && !err; i++) {
		for (unsigned bucket = 0;
		     bucket < UCM_BUCKETS && !err && !*out; bucket++)
			err = bucket_has_blocks(&roots->roots[i], folder,
						bucket, out);
	}
	return err;
}

/* ---- making one ---- */

struct making {
	const struct roots *roots;
	struct ucm_error *error;
	char folder[UCM_TREE_FOLDER_MAX];
	const char *manifest;
	uint8_t space_id[32];
	char *there; /* UCM_SPACE_MANIFEST_MAX bytes */
};

static int write_temp(const struct root *root, const char *temp,
		      const char *manifest)
{
	_cleanup_fd_ int fd = -1;
	int err;

	ucm_os_unlink(root->fd, temp); /* we have the lock: left by a crash */
	fd = ucm_os_open(root->fd, temp, O_WRONLY | O_CREAT | O_EXCL, 0644);
	if (fd < 0)
		return fd;
	err = ucm_os_write_at(fd, manifest, strlen(manifest), 0);
	if (!err)
		err = ucm_os_fchmod(fd, 0644); /* whatever the umask says */
	return err ? err : ucm_os_fsync(fd);
}

static int write_beside(const struct root *root, const char *folder,
			const char *path, const char *manifest, bool replaces)
{
	char temp[UCM_TREE_PATH_MAX + 8];
	int err;

	snprintf(temp, sizeof(temp), "%s/" UCM_TREE_MANIFEST_MAKE, folder);
	err = write_temp(root, temp, manifest);
	if (!err && replaces)
		err = ucm_os_rename(root->fd, temp, root->fd, path);
	else if (!err)
		err = ucm_os_link(root->fd, temp, root->fd, path);
	ucm_os_unlink(root->fd, temp);
	return err == -EEXIST ? 0 : err;
}

/* What there is says nothing but a quota, which is to stay. */
static int write_with_quota(const struct making *making,
			    const struct root *root, const char *path,
			    uint64_t quota)
{
	_cleanup_free_ char *text = NULL;
	int err = ucm_manifest_with_quota(making->manifest, quota, &text);

	return err ? err
		   : write_beside(root, making->folder, path, text, true);
}

/* quota: of a manifest that is there and says nothing else; NULL: none is. */
static int write_manifest(const struct making *making, const struct root *root,
			  const uint64_t *quota)
{
	char path[UCM_TREE_PATH_MAX];
	int err;

	ucm_tree_manifest_path(making->folder, path);
	if (quota)
		err = write_with_quota(making, root, path, *quota);
	else
		err = write_beside(root, making->folder, path,
				   making->manifest, false);
	return err ? space_failed(making->error, root, path, err) : 0;
}

static int compare(const struct making *making)
{
	struct ucm_manifest here;

	if (!ucm_manifest_parse(making->there, strlen(making->there), &here,
				NULL) &&
	    !memcmp(here.space_id, making->space_id, sizeof(here.space_id)))
		return 0;
	return ucm_error_set(making->error, -EEXIST,
		       "%s: it has another manifest", making->folder);
}

static int make_locked(const struct making *making, const struct root *root)
{
	int err = read_manifest(root, making->folder, making->there);
	uint64_t quota;
	bool blocks, quota_alone = !err && ucm_manifest_quota_alone(
		making->there, strlen(making->there), &quota);

	if (err == -ENOENT || quota_alone) {
		err = has_blocks(making->roots, making->folder, &blocks);
		if (!err && blocks)
			return ucm_error_set(making->error, -ENOTEMPTY,
				       "%s: it has blocks and no manifest",
				       making->folder);
		if (!err) {
			err = write_manifest(making, root,
					     quota_alone ? &quota : NULL);
			if (err)
				return err;
			err = read_manifest(root, making->folder,
					    making->there);
		}
	}
	return err ? space_failed(making->error, root, making->folder, err)
		   : compare(making);
}

static int lock_folder(int fd)
{
	int err;

	do
		err = flock(fd, LOCK_EX) ? -errno : 0;
	while (err == -EINTR);
	return err;
}

static int make_folder(const struct making *making, const struct root *root)
{
	int err = ucm_os_mkdir(root->fd, UCM_TREE_SPACES, 0777);

	if (!err || err == -EEXIST)
		err = ucm_os_mkdir(root->fd, making->folder, 0777);
	if (!err || err == -EEXIST)
		return 0;
	return space_failed(making->error, root, making->folder, err);
}

static int make_in(const struct making *making, const struct root *root)
{
	_cleanup_fd_ int lock = -1;
	int err = make_folder(making, root);

	if (err)
		return err;
	lock = ucm_os_open(root->fd, making->folder, O_RDONLY | O_DIRECTORY, 0);
	err = lock < 0 ? lock : lock_folder(lock);
	return err ? space_failed(making->error, root, making->folder, err)
		   : make_locked(making, root);
}

/* Wherever there is a manifest, or else in the first. */
static int make_somewhere(const struct making *making)
{
	const struct roots *roots = making->roots;
	bool made = false;

	for (unsigned i = 0; i < roots->num; i++) {
		int err = read_manifest(&roots->roots[i], making->folder,
					making->there);

		if (err == -ENOENT)
			continue;
		err = make_in(making, &roots->roots[i]);
		if (err)
			return err;
		made = true;
	}
	return made ? 0 : make_in(making, &roots->roots[0]);
}

static int check_manifest(struct making *making)
{
	struct ucm_manifest manifest;
	size_t len = strlen(making->manifest);
	int err;

	if (len >= UCM_SPACE_MANIFEST_MAX)
		return ucm_error_set(making->error, -EINVAL,
				     "a manifest of %zu bytes; %u are the "
				     "most",
				     len, UCM_SPACE_MANIFEST_MAX - 1);
	err = ucm_manifest_parse(making->manifest, len, &manifest,
				 making->error);
	if (err)
		return err;
	memcpy(making->space_id, manifest.space_id, sizeof(making->space_id));
	return 0;
}

static int make_in_tiers(const char *tiers, struct making *making)
{
	struct roots roots;
	int err = open_roots(&roots, tiers, making->error);

	if (err)
		return err;
	making->roots = &roots;
	err = make_somewhere(making);
	close_roots(&roots);
	return err;
}

int ucm_space_make(const char *mount, const char *tiers, const char *name,
		   const char *manifest, char there[UCM_SPACE_MANIFEST_MAX],
		   struct ucm_error *error)
{
	_cleanup_free_ char *text = malloc(UCM_SPACE_MANIFEST_MAX);
	struct making making = {
		.error = error,
		.manifest = manifest,
		.there = text,
	};
	int err = text ? check_place(mount, tiers, error)
		       : ucm_error_set(error, -ENOMEM, "out of memory");

	if (!err)
		err = check_name(name, error);
	if (!err)
		err = check_manifest(&making);
	if (err)
		return err;
	if (mount)
		return ucm_served_make(mount, name, manifest, there, error);
	ucm_tree_folder(name, making.folder);
	err = make_in_tiers(tiers, &making);
	if (err == -EEXIST && there)
		strcpy(there, text);
	return err;
}

/* ---- reading ---- */

/* Of the blocks. */
static bool says_nothing(const char *text)
{
	uint64_t quota;

	return ucm_manifest_quota_alone(text, strlen(text), &quota);
}

static int read_served(const char *where, const char *name,
		       char text[UCM_SPACE_MANIFEST_MAX],
		       struct ucm_error *error)
{
	int err = ucm_served_manifest(where, name, text, error);

	if (err || !says_nothing(text))
		return err;
	return ucm_error_set(error, -ENOENT, "%s: space %s: %s", where, name,
			     strerror(ENOENT));
}

int ucm_space_manifest(const char *mount, const char *tiers, const char *name,
		       char text[UCM_SPACE_MANIFEST_MAX],
		       struct ucm_error *error)
{
	char folder[UCM_TREE_FOLDER_MAX];
	struct roots roots;
	unsigned last = 0;
	int err = check_place(mount, tiers, error);

	if (!err)
		err = check_name(name, error);
	if (err)
		return err;
	if (mount)
		return read_served(mount, name, text, error);
	err = open_roots(&roots, tiers, error);
	if (err)
		return err;
	ucm_tree_folder(name, folder);
	err = -ENOENT;
	for (unsigned i = 0; i < roots.num && err == -ENOENT; i++) {
		last = i;
		err = read_manifest(&roots.roots[i], folder, text);
		if (!err && says_nothing(text))
			err = -ENOENT;
	}
	if (err)
		space_failed(error, &roots.roots[last], folder, err);
	close_roots(&roots);
	return err;
}

/* Has one of the roots before this one told of the space? */
static bool was_told(const struct roots *roots, unsigned before,
		     const char *folder)
{
	struct stat st;

	for (unsigned i = 0; i < before; i++) {
		if (!ucm_os_stat(roots->roots[i].fd, folder, &st) &&
		    S_ISDIR(st.st_mode))
			return true;
	}
	return false;
}

static int list_root(const struct roots *roots, unsigned number,
		     int (*each)(void *arg, const char *name), void *arg,
		     struct ucm_error *error)
{
	const struct root *root = &roots->roots[number];
	_cleanup_free_ char *names = NULL;
	int err = ucm_os_list(root->fd, UCM_TREE_SPACES, &names);

	if (err == -ENOENT)
		return 0;
	if (err)
		return space_failed(error, root, UCM_TREE_SPACES, err);
	for (const char *name = names; !err && *name;
	     name += strlen(name) + 1) {
		char folder[UCM_TREE_FOLDER_MAX];
		struct stat st;

		if (!ucm_tree_space_valid(name))
			continue;
		ucm_tree_folder(name, folder);
		if (!was_told(roots, number, folder) &&
		    !ucm_os_stat(root->fd, folder, &st) && S_ISDIR(st.st_mode))
			err = each(arg, name);
		if (err) /* the caller knows why */
			ucm_error_set(error, err, "%s", "");
	}
	return err;
}

int ucm_space_list(const char *mount, const char *tiers,
		   int (*each)(void *arg, const char *name), void *arg,
		   struct ucm_error *error)
{
	struct roots roots;
	int err = check_place(mount, tiers, error);

	if (err)
		return err;
	if (mount)
		return ucm_served_list(mount, each, arg, error);
	err = open_roots(&roots, tiers, error);
	if (err)
		return err;
	for (unsigned i = 0; i < roots.num && !err; i++)
		err = list_root(&roots, i, each, arg, error);
	close_roots(&roots);
	return err;
}

int ucm_space_remove(const char *mount, const char *name,
		     struct ucm_error *error)
{
	int err = check_name(name, error);

	return err ? err : ucm_served_remove(mount, name, error);
}
