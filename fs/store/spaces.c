/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spaces.c - spaces on disk: folders in every directory, and space.json.
 *
 * A new space's folder is made in the first directory that takes it; the
 * others get theirs with the first block there. Owner and mode are kept on
 * every folder that exists.
 */
#include <config.h>

#include "fs/store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/error.h"
#include "common/log.h"
#include "common/osfile.h"
#include "fs/index/memory.h"
#include "hashing/name.h"

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
static int in_every_directory(struct ucm_store *set,
			      const struct ucm_space *space, const char *what,
			      int (*fn)(const struct ucm_backing *backing,
					const struct ucm_space *space))
{
	for (unsigned dir = 0; dir < set->num_dirs; dir++) {
		int err;

		if (set->dirs[dir]->readonly)
			continue;
		err = fn(set->dirs[dir], space);
		if (err) {
			ucm_error("%s/%s: %s: %s", set->dirs[dir]->path,
				  space->folder, what, strerror(-err));
			return err;
		}
	}
	return 0;
}

static int apply_owner_everywhere(struct ucm_store *set,
				  const struct ucm_space *space)
{
	return in_every_directory(set, space, "owner and mode", apply_owner);
}

int ucm_store_make_folder(struct ucm_store *set, struct ucm_backing *backing,
			  const struct ucm_space *space)
{
	/* nobody's until it has its owner */
	int err = ucm_os_mkdir(backing->dirfd, space->folder, 0700);

	if (err)
		return err == -EEXIST ? 0 : err;
	err = apply_owner(backing, space);
	if (!err && set->config->durability == UCM_DURABILITY_FULL)
		err = ucm_os_sync_dir(backing->dirfd,
				      *space->name ? "spaces" : ".");
	return err;
}

/* In the first directory that takes it. */
static int make_first_folder(struct ucm_store *set,
			     const struct ucm_space *space)
{
	int err = -EROFS;

	for (unsigned dir = 0; dir < set->num_dirs; dir++) {
		if (set->dirs[dir]->readonly)
			continue;
		err = ucm_store_make_folder(set, set->dirs[dir], space);
		if (!err)
			return 0;
		ucm_backing_failed(set->dirs[dir], space->folder, err);
	}
	return err;
}

/* Else one user could use up the numbers of all. */
static bool may_make_more(struct ucm_store *set, uid_t uid)
{
	return uid == 0 || uid == geteuid() ||
	       ucm_namespace_made_by(&set->names, uid) < set->config->spaces;
}

int ucm_store_mkdir(struct ucm_store *set, const char *name, mode_t mode,
		    uid_t uid, gid_t gid, struct ucm_space **out)
{
	struct ucm_space *space;
	int err;

	if (!may_make_more(set, uid))
		return -EDQUOT;
	err = ucm_namespace_add(&set->names, name, &space);
	if (err)
		return err;
	atomic_store(&space->maker, uid);
	pthread_mutex_lock(&space->lock);
	space->uid = uid;
	space->gid = gid;
	space->is_private = ucm_space_mode_is_private(mode);
	pthread_mutex_unlock(&space->lock);
	if (ucm_space_mode_is_private(mode)) /* no blocks yet: cannot fail */
		ucm_index_hide(set->index, space->number);
	for (unsigned i = 0; i < 4 * set->num_dirs; i++)
		atomic_store(&space->scanned[i], UINT64_MAX); /* it is new */
	err = make_first_folder(set, space);
	if (!err)
		err = apply_owner_everywhere(set, space);
	if (err) {
		ucm_namespace_remove(&set->names, space);
		return err;
	}
	ucm_index_memory_names_changed(ucm_index_live(set->index));
	*out = space;
	return 0;
}

static bool has_blocks(struct ucm_store *set, struct ucm_space *space)
{
	for (unsigned bucket = 0; bucket < UCM_BUCKETS; bucket++)
		ucm_store_fill_bucket(set, space, bucket);
	return atomic_load(&space->blocks) > 0;
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

		ucm_bucket_format(bucket, name);
		err = ucm_os_rmdir(fd, name);
		if (err == -ENOENT)
			err = 0;
	}
	if (!err)
		err = ucm_os_list(backing->dirfd, space->folder, &names);
	for (const char *name = names; !err && *name; name += strlen(name) + 1) {
		if (strcmp(name, UCM_MANIFEST_NAME) &&
		    strcmp(name, UCM_MANIFEST_NAME ".new"))
			err = -ENOTEMPTY;
	}
	return err;
}

static int remove_folder(const struct ucm_backing *backing,
			 const struct ucm_space *space)
{
	_cleanup_fd_ int fd = open_folder(backing, space);
	int err;

	if (fd < 0)
		return fd == -ENOENT ? 0 : fd;
	err = ucm_os_unlink(fd, UCM_MANIFEST_NAME);
	if (!err || err == -ENOENT) /* and what a crash may have left of one */
		err = ucm_os_unlink(fd, UCM_MANIFEST_NAME ".new");
	if (err && err != -ENOENT)
		return err;
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

int ucm_store_rmdir(struct ucm_store *set, struct ucm_space *space)
{
	int err = begin_removal(space);

	if (err)
		return err;
	err = has_blocks(set, space) ? -ENOTEMPTY : 0;
	/* all that can be in the way first: space.json goes last */
	if (!err)
		err = in_every_directory(set, space, "rmdir", empty_folder);
	if (!err)
		err = in_every_directory(set, space, "rmdir", remove_folder);
	if (!err) {
		ucm_namespace_remove(&set->names, space);
		ucm_index_memory_names_changed(ucm_index_live(set->index));
	}
	end_removal(space);
	return err;
}

int ucm_store_chmod(struct ucm_store *set, struct ucm_space *space,
		    bool is_private)
{
	int err = is_private ? ucm_index_hide(set->index, space->number) : 0;

	if (err)
		return err;
	pthread_mutex_lock(&space->lock);
	space->is_private = is_private;
	pthread_mutex_unlock(&space->lock);
	return apply_owner_everywhere(set, space);
}

int ucm_store_chown(struct ucm_store *set, struct ucm_space *space, uid_t uid,
		    gid_t gid)
{
	pthread_mutex_lock(&space->lock);
	if (uid != (uid_t)-1)
		space->uid = uid;
	if (gid != (gid_t)-1)
		space->gid = gid;
	pthread_mutex_unlock(&space->lock);
	return apply_owner_everywhere(set, space);
}

static void manifest_path(const struct ucm_space *space, char *path,
			  size_t size)
{
	snprintf(path, size, "%s/" UCM_MANIFEST_NAME, space->folder);
}

int ucm_store_read_manifest(struct ucm_store *set, struct ucm_space *space,
			    char *text, size_t size)
{
	char path[UCM_BACKING_PATH_MAX];
	int err = -ENOENT;

	manifest_path(space, path, sizeof(path));
	for (unsigned dir = 0; dir < set->num_dirs && err == -ENOENT; dir++)
		err = ucm_os_read_file(set->dirs[dir]->dirfd, path, text, size);
	return err;
}

int ucm_store_parse_manifest(struct ucm_store *set, const char *text,
			     size_t len, struct ucm_manifest *out,
			     struct ucm_error *error)
{
	struct ucm_manifest manifest;
	uint64_t bytes;
	int err = ucm_manifest_parse(text, len, &manifest, error);

	if (err)
		return err;
	bytes = ucm_geometry_file_bytes(&manifest.geometry);
	if (bytes > set->config->block_max)
		return ucm_error_set(
			error, -EFBIG,
			"space.json: blocks of %llu bytes: block_max is "
			"%llu",
			(unsigned long long)bytes,
			(unsigned long long)set->config->block_max);
	*out = manifest;
	return 0;
}

int ucm_store_write_manifest(struct ucm_store *set, struct ucm_space *space,
			     const char *text, size_t len)
{
	static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER;
	char path[UCM_BACKING_PATH_MAX];
	struct ucm_error error;
	struct ucm_manifest manifest;
	int err = ucm_store_parse_manifest(set, text, len, &manifest, &error);

	if (!err)
		err = ucm_space_set_manifest(space, &manifest, &error);
	if (err) {
		ucm_warning("%s: not accepted: %s", space->folder, error.text);
		return err;
	}
	manifest_path(space, path, sizeof(path));
	pthread_mutex_lock(&writing); /* they share a temporary name */
	err = make_first_folder(set, space);
	for (unsigned dir = 0; dir < set->num_dirs && !err; dir++) {
		struct stat st;

		/* where the folder is, the first directory's being the one */
		if (set->dirs[dir]->readonly ||
		    ucm_os_stat(set->dirs[dir]->dirfd, space->folder, &st))
			continue;
		err = ucm_os_replace_file(set->dirs[dir]->dirfd, path, text,
					  len);
		break;
	}
	pthread_mutex_unlock(&writing);
	if (err) {
		ucm_error("%s: %s", path, strerror(-err));
		ucm_space_drop_manifest(space);
		ucm_store_load_manifest(set, space); /* the old one, if any */
	}
	return err;
}
