/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spaces.c - spaces on disk: folders in every directory, and space.json.
 *
 * A new space's folder is made in the first directory that takes it; the
 * others get theirs with the first block there. Owner and mode are kept on
 * every folder that exists.
 */
#include <config.h>

#include "fs/store/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/error.h"
#include "common/log.h"
#include "common/osfile.h"
#include "fs/index/memory.h"
#include "hashing/tree.h"

static int open_folder(const struct ucm_backing *backing,
		       const struct ucm_space *space)
{
	return ucm_os_open(backing->dirfd, space->folder,
			   O_RDONLY | O_DIRECTORY, 0);
}

/* On one folder; the mode last, as chown may clear bits of it. */
static int apply_owner(const struct ucm_backing *backing,
		       const struct ucm_space *space)
{
	_cleanup_fd_ int fd = open_folder(backing, space);
	int err;

	if (fd < 0)
		return fd == -ENOENT ? 0 : fd;
	err = ucm_os_fchown(fd, space->uid, space->gid);
	if (err == -EPERM)
		err = 0; /* not root: it is ours anyway */
	return err ? err
		   : ucm_os_fchmod(fd, space->is_private ? 0700 : 0755);
}

/* fn on each directory that may be written to; ends with the first error,
 * which is logged as that of doing what. */
static int in_every_directory(struct ucm_store *store,
			      const struct ucm_space *space, const char *what,
			      int (*fn)(const struct ucm_backing *backing,
					const struct ucm_space *space))
{
	for (unsigned dir = 0; dir < store->dirs.num; dir++) {
		int err;

		if (store->dirs.at[dir]->readonly)
			continue;
		err = fn(store->dirs.at[dir], space);
		if (err) {
			ucm_error("%s/%s: %s: %s", store->dirs.at[dir]->path,
				  space->folder, what, strerror(-err));
			return err;
		}
	}
	return 0;
}

static int apply_owner_everywhere(struct ucm_store *store,
				  const struct ucm_space *space)
{
	return in_every_directory(store, space, "owner and mode", apply_owner);
}

int ucm_store_make_folder(struct ucm_store *store, struct ucm_backing *backing,
			  const struct ucm_space *space)
{
	/* nobody's until it has its owner */
	int err = ucm_os_mkdir(backing->dirfd, space->folder, 0700);

	if (err)
		return err == -EEXIST ? 0 : err;
	err = apply_owner(backing, space);
	if (!err && store->config->durability == UCM_DURABILITY_FULL)
		err = ucm_os_sync_dir(backing->dirfd,
				      *space->name ? UCM_TREE_SPACES : ".");
	if (err)
		ucm_os_rmdir(backing->dirfd, space->folder);
	return err;
}

/* In the first directory that takes it. */
static int make_first_folder(struct ucm_store *store,
			     const struct ucm_space *space)
{
	int err = -EROFS;

	for (unsigned dir = 0; dir < store->dirs.num; dir++) {
		if (store->dirs.at[dir]->readonly)
			continue;
		err = ucm_store_make_folder(store, store->dirs.at[dir], space);
		if (!err)
			return 0;
		ucm_backing_failed(store->dirs.at[dir], space->folder, err);
	}
	return err;
}

/* Or the next start would find it, as somebody's private space. */
static void unmake_folders(struct ucm_store *store,
			   const struct ucm_space *space)
{
	for (unsigned dir = 0; dir < store->dirs.num; dir++) {
		if (!store->dirs.at[dir]->readonly)
			ucm_os_rmdir(store->dirs.at[dir]->dirfd, space->folder);
	}
}

/* Else one user could use up the numbers of all. */
static bool may_make_more(struct ucm_store *store, uid_t uid)
{
	return uid == 0 || uid == geteuid() ||
	       ucm_namespace_made_by(&store->names,
				     uid) < store->config->spaces;
}

int ucm_store_mkdir(struct ucm_store *store, const char *name, mode_t mode,
		    uid_t uid, gid_t gid, struct ucm_space **out)
{
	struct ucm_space *space;
	int err;

	if (!may_make_more(store, uid))
		return -EDQUOT;
	err = ucm_namespace_add(&store->names, name, &space);
	if (err)
		return err;
	atomic_store(&space->maker, uid);
	pthread_mutex_lock(&space->lock);
	space->uid = uid;
	space->gid = gid;
	space->is_private = ucm_space_mode_is_private(mode);
	pthread_mutex_unlock(&space->lock);
	if (ucm_space_mode_is_private(mode)) /* no blocks yet: cannot fail */
		ucm_index_hide(store->index, space->number);
	for (unsigned i = 0; i < 4 * store->dirs.num; i++)
		atomic_store(&space->scanned[i], UINT64_MAX); /* it is new */
	err = make_first_folder(store, space);
	if (!err)
		err = apply_owner_everywhere(store, space);
	if (err) {
		unmake_folders(store, space);
		ucm_namespace_remove(&store->names, space);
		return err;
	}
	ucm_index_memory_names_changed(ucm_index_live(store->index));
	*out = space;
	return 0;
}

static bool has_blocks(struct ucm_store *store, struct ucm_space *space)
{
	for (unsigned bucket = 0; bucket < UCM_BUCKETS; bucket++)
		ucm_store_fill_bucket(store, space, bucket);
	return atomic_load(&space->blocks) > 0;
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

/* Away with its buckets. -ENOTEMPTY if there is more in them or beside them
 * than we have put there; then all else is as it was. */
static int empty_folder(const struct ucm_backing *backing,
			const struct ucm_space *space)
{
	_cleanup_fd_ int fd = open_folder(backing, space);
	_cleanup_free_ char *names = NULL;
	int err = 0;

	if (fd < 0)
		return fd == -ENOENT ? 0 : fd;
	for (unsigned bucket = 0; bucket < UCM_BUCKETS && !err; bucket++) {
		char name[3];

		ucm_tree_bucket_name(bucket, name);
		err = ucm_os_rmdir(fd, name);
		if (err == -ENOENT)
			err = 0;
	}
	if (!err)
		err = ucm_os_list(backing->dirfd, space->folder, &names);
	for (const char *name = names; !err && *name;
	     name += strlen(name) + 1) {
		if (!is_manifest(name))
			err = -ENOTEMPTY;
	}
	return err;
}

static int remove_folder(const struct ucm_backing *backing,
			 const struct ucm_space *space)
{
	_cleanup_fd_ int fd = open_folder(backing, space);

	if (fd < 0)
		return fd == -ENOENT ? 0 : fd;
	for (size_t i = 0; i < NUM_MANIFESTS; i++) {
		int err = ucm_os_unlink(fd, manifests[i]);

		if (err && err != -ENOENT)
			return err;
	}
	return ucm_os_rmdir(backing->dirfd, space->folder);
}

/* From now on no commit is admitted: -EBUSY if one is under way. */
static int begin_removal(struct ucm_space *space)
{
	bool busy;

	pthread_mutex_lock(&space->lock);
	busy = space->pending > 0 || space->closing;
	space->closing |= !busy;
	pthread_mutex_unlock(&space->lock);
	return busy ? -EBUSY : 0;
}

static void end_removal(struct ucm_space *space)
{
	pthread_mutex_lock(&space->lock);
	space->closing = false;
	pthread_mutex_unlock(&space->lock);
}

int ucm_store_rmdir(struct ucm_store *store, struct ucm_space *space)
{
	int err = begin_removal(space);

	if (err)
		return err;
	err = has_blocks(store, space) ? -ENOTEMPTY : 0;
	/* all that can be in the way first: space.json is removed last */
	if (!err)
		err = in_every_directory(store, space, "rmdir", empty_folder);
	if (!err)
		err = in_every_directory(store, space, "rmdir", remove_folder);
	if (!err) {
		ucm_namespace_remove(&store->names, space);
		ucm_index_memory_names_changed(ucm_index_live(store->index));
	}
	end_removal(space);
	return err;
}

int ucm_store_chmod(struct ucm_store *store, struct ucm_space *space,
		    bool is_private)
{
	int err = is_private ? ucm_index_hide(store->index, space->number) : 0;

	if (err)
		return err;
	pthread_mutex_lock(&space->lock);
	space->is_private = is_private;
	pthread_mutex_unlock(&space->lock);
	return apply_owner_everywhere(store, space);
}

int ucm_store_chown(struct ucm_store *store, struct ucm_space *space, uid_t uid,
		    gid_t gid)
{
	pthread_mutex_lock(&space->lock);
	if (uid != (uid_t)-1)
		space->uid = uid;
	if (gid != (gid_t)-1)
		space->gid = gid;
	pthread_mutex_unlock(&space->lock);
	return apply_owner_everywhere(store, space);
}

/* ---- space.json ---- */

int ucm_store_read_manifest(struct ucm_store *store, struct ucm_space *space,
			    char *text, size_t size)
{
	char path[UCM_TREE_PATH_MAX];
	int err = -ENOENT;

	ucm_tree_manifest_path(space->folder, path);
	for (unsigned dir = 0; dir < store->dirs.num && err == -ENOENT; dir++)
		err = ucm_os_read_file(store->dirs.at[dir]->dirfd, path, text,
				       size);
	return err;
}

/* What a text says, within our limits: -EINVAL, -EFBIG, and why in error. */
static int parse_manifest(struct ucm_store *store, const char *text,
			  size_t len, struct ucm_manifest *out,
			  struct ucm_error *error)
{
	struct ucm_manifest manifest;
	uint64_t bytes;
	int err = ucm_manifest_parse(text, len, &manifest, error);

	if (err)
		return err;
	bytes = ucm_geometry_file_bytes(&manifest.geometry);
	if (bytes > store->config->block_max)
		return ucm_error_set(
			error, -EFBIG,
			"space.json: blocks of %llu bytes: block_max is "
			"%llu",
			(unsigned long long)bytes,
			(unsigned long long)store->config->block_max);
	*out = manifest;
	return 0;
}

/* What space.json says, if there is one; logs what is wrong with it. */
static void load_manifest(struct ucm_store *store, struct ucm_space *space)
{
	_cleanup_free_ char *text = malloc(UCM_MANIFEST_MAX);
	struct ucm_error error;
	struct ucm_manifest manifest;
	int err;

	if (!text)
		return;
	err = ucm_store_read_manifest(store, space, text, UCM_MANIFEST_MAX);
	if (err == -ENOENT)
		return;
	ucm_error_set(&error, err, "%s", strerror(-err));
	if (!err)
		err = parse_manifest(store, text, strlen(text),
				     &manifest, &error);
	if (!err)
		err = ucm_space_set_manifest(space, &manifest, &error);
	if (err)
		ucm_error("%s: %s", space->folder, error.text);
}

/* Where the folder is, the first directory's being the one. */
static int replace_manifest(struct ucm_store *store,
			    const struct ucm_space *space, const char *path,
			    const char *text, size_t len)
{
	struct stat st;
	int err = -EROFS;

	for (unsigned dir = 0; dir < store->dirs.num; dir++) {
		int dirfd = store->dirs.at[dir]->dirfd;

		if (store->dirs.at[dir]->readonly)
			continue;
		err = ucm_os_stat(dirfd, space->folder, &st);
		if (!err)
			return ucm_os_replace_file(dirfd, path, text, len);
		if (err != -ENOENT)
			return err;
	}
	return err;
}

int ucm_store_write_manifest(struct ucm_store *store, struct ucm_space *space,
			     const char *text, size_t len)
{
	static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER;
	char path[UCM_TREE_PATH_MAX];
	struct ucm_error error;
	struct ucm_manifest manifest;
	int err =
		parse_manifest(store, text, len, &manifest, &error);

	if (!err)
		err = ucm_space_set_manifest(space, &manifest, &error);
	if (err) {
		ucm_warning("%s: not accepted: %s", space->folder,
			    error.text);
		return err;
	}
	ucm_tree_manifest_path(space->folder, path);
	pthread_mutex_lock(&writing); /* they share a temporary name */
	err = make_first_folder(store, space);
	if (!err)
		err = replace_manifest(store, space, path, text, len);
	pthread_mutex_unlock(&writing);
	if (err) {
		ucm_error("%s: %s", path, strerror(-err));
		ucm_space_drop_manifest(space);
		load_manifest(store, space); /* the old one, if any */
	}
	return err;
}

/* ---- at the start ---- */

/* Owner and mode of a space are those of its folder. */
static void take_owner(struct ucm_space *space, const struct stat *st)
{
	space->uid = st->st_uid;
	space->gid = st->st_gid;
	space->is_private = ucm_space_mode_is_private(st->st_mode);
}

static int add_found_space(struct ucm_store *store, struct ucm_backing *backing,
			   const char *name, struct ucm_error *error)
{
	char path[UCM_TREE_PATH_MAX];
	struct ucm_space *space;
	struct stat st;
	int err;

	if (!ucm_tree_space_valid(name))
		return 0;
	ucm_tree_folder(name, path);
	if (ucm_os_stat(backing->dirfd, path, &st) || !S_ISDIR(st.st_mode))
		return 0;
	err = ucm_trust_space(&backing->trust, &st, path, error);
	if (err)
		return err;
	if (ucm_namespace_add(&store->names, name, &space))
		return 0;
	take_owner(space, &st);
	atomic_store(&space->maker, st.st_uid);
	if (space->is_private) /* it has no blocks yet, so that cannot fail */
		ucm_index_hide(store->index, space->number);
	return 0;
}

static int list_spaces(struct ucm_store *store, struct ucm_backing *backing,
		       struct ucm_error *error)
{
	_cleanup_free_ char *names = NULL;
	int err = ucm_os_list(backing->dirfd, UCM_TREE_SPACES, &names);

	if (err == -ENOENT)
		return 0;
	if (err)
		return ucm_error_set(error, err, "%s/" UCM_TREE_SPACES ": %s",
				     backing->path, strerror(-err));
	for (const char *name = names; *name && !err; name += strlen(name) + 1)
		err = add_found_space(store, backing, name, error);
	return err;
}

int ucm_store_find_spaces(struct ucm_store *store,
			  struct ucm_error *error)
{
	for (unsigned dir = 0; dir < store->dirs.num; dir++) {
		int err = list_spaces(store, store->dirs.at[dir], error);

		if (err)
			return err;
	}
	store->names.spaces[0]->uid = geteuid();
	store->names.spaces[0]->gid = getegid();
	for (unsigned i = 0; i < store->names.num; i++) {
		load_manifest(store, store->names.spaces[i]);
		ucm_store_learn(store, store->names.spaces[i]);
	}
	store->scan_spaces = store->names.num;
	ucm_snapshots_open(store);
	return 0;
}
