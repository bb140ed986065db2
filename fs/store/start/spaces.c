/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spaces.c - spaces on disk: folders in every directory, and space.json.
 *
 * A new space's folder is made in the first directory that takes it, of those that
 * hosts share before others, and memory comes last; the others get theirs with the
 * first block there. Owner and mode are kept on
 * every folder that exists.
 */
#include <config.h>

#include "fs/store/start/start.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/error.h"
#include "common/log.h"
#include "fs/index/memory.h"
#include "fs/store/quota.h"
#include "hashing/tree.h"

static int apply_owner(struct ucm_medium *medium, const struct ucm_space *space)
{
	const struct ucm_space_owner owner = ucm_store_owner_of(space);

	return ucm_medium_set_owner(medium, space->folder, &owner);
}

/* fn on each directory that may be written to; ends with the first error,
 * which is logged as that of doing what. */
static int in_every_directory(struct ucm_store *store,
			      const struct ucm_space *space, const char *what,
			      int (*fn)(struct ucm_medium *medium,
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

/* What is known of a space is for all hosts, and it is to last: memory, which a
 * restart of the machine empties, comes last. */
static int rank_of(const struct ucm_medium *medium)
{
	if (medium->flags & UCM_MEDIUM_VOLATILE)
		return 2;
	return medium->hosts ? 0 : 1;
}

/* The directories by turns. */
static struct ucm_medium *lasting_dir(const struct ucm_store *store,
				      unsigned turn)
{
	for (int rank = 0; rank < 3; rank++) {
		for (unsigned dir = 0; dir < store->dirs.num; dir++) {
			if (rank_of(store->dirs.at[dir]) == rank && !turn--)
				return store->dirs.at[dir];
		}
	}
	return NULL;
}

/* In the first directory that takes it. */
static int make_first_folder(struct ucm_store *store,
			     const struct ucm_space *space)
{
	struct ucm_medium *medium;
	int err = -EROFS;

	for (unsigned i = 0; (medium = lasting_dir(store, i)); i++) {
		if (medium->readonly)
			continue;
		err = ucm_store_make_folder(store, medium, space);
		if (!err)
			return 0;
		ucm_medium_failed(medium, space->folder, err);
	}
	return err;
}

/* Or the next start would find it, as somebody's private space. */
static void unmake_folders(struct ucm_store *store,
			   const struct ucm_space *space)
{
	for (unsigned dir = 0; dir < store->dirs.num; dir++) {
		struct ucm_medium *medium = store->dirs.at[dir];

		if (!medium->readonly)
			ucm_medium_unmake_space(medium, space->folder);
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
	err = ucm_quota_apply(store, space, 0);
	if (err) {
		ucm_namespace_remove(&store->names, space);
		return err;
	}
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

bool ucm_store_has_blocks(struct ucm_store *store, struct ucm_space *space)
{
	for (unsigned bucket = 0; bucket < UCM_BUCKETS; bucket++)
		ucm_store_fill_bucket(store, space, bucket);
	return atomic_load(&space->blocks) > 0;
}

static int clear_folder(struct ucm_medium *medium,
			const struct ucm_space *space)
{
	return ucm_medium_clear_space(medium, space->folder);
}

static int remove_folder(struct ucm_medium *medium,
			 const struct ucm_space *space)
{
	return ucm_medium_remove_space(medium, space->folder);
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
	err = ucm_store_has_blocks(store, space) ? -ENOTEMPTY : 0;
	/* all that can be in the way first: space.json is removed last */
	if (!err)
		err = in_every_directory(store, space, "rmdir", clear_folder);
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
	struct ucm_medium *medium;
	int err = -ENOENT;

	for (unsigned i = 0;
	     err == -ENOENT && (medium = lasting_dir(store, i)); i++)
		err = ucm_medium_read_note(medium, space->folder,
					   UCM_TREE_MANIFEST, text, size);
	return err;
}

int ucm_store_check_manifest(const struct ucm_store *store, const char *text,
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

/* What space.json says, if there is one. */
static int take_manifest(struct ucm_store *store, struct ucm_space *space,
			 char text[UCM_MANIFEST_MAX], uint64_t *quota,
			 struct ucm_error *error)
{
	struct ucm_manifest manifest;
	int err = ucm_store_read_manifest(store, space, text, UCM_MANIFEST_MAX);

	if (err == -ENOENT)
		return 0;
	if (err)
		return ucm_error_set(error, err, "%s", strerror(-err));
	if (ucm_manifest_quota_alone(text, strlen(text), quota))
		return 0;
	err = ucm_store_check_manifest(store, text, strlen(text), &manifest,
				       error);
	if (!err)
		err = ucm_space_set_manifest(space, &manifest, error);
	if (!err)
		*quota = manifest.quota;
	return err;
}

/* The same, and what is configured; logs what is wrong with it. */
static void load_manifest(struct ucm_store *store, struct ucm_space *space)
{
	_cleanup_free_ char *text = malloc(UCM_MANIFEST_MAX);
	struct ucm_error error;
	uint64_t quota = 0;

	if (text && take_manifest(store, space, text, &quota, &error))
		ucm_error("%s: %s", space->folder, error.text);
	if (ucm_quota_apply(store, space, quota))
		ucm_error("%s: no memory for its quota", space->folder);
}

/* Where the folder is, the first directory's being the one. */
static int replace_manifest(struct ucm_store *store,
			    const struct ucm_space *space, const char *text,
			    size_t len)
{
	struct ucm_medium *medium;
	int err = -EROFS;

	for (unsigned i = 0; (medium = lasting_dir(store, i)); i++) {
		if (medium->readonly)
			continue;
		err = ucm_medium_replace_note(medium, space->folder,
					      UCM_TREE_MANIFEST, text, len);
		if (err != -ENOENT)
			return err;
	}
	return err;
}

/* They share a temporary name, and what they read is not to change. */
static pthread_mutex_t writing_manifest = PTHREAD_MUTEX_INITIALIZER;

static int put_manifest(struct ucm_store *store, const struct ucm_space *space,
			const char *text)
{
	int err = make_first_folder(store, space);

	if (!err)
		err = replace_manifest(store, space, text, strlen(text));
	if (err)
		ucm_error("%s/" UCM_TREE_MANIFEST ": %s", space->folder,
			  strerror(-err));
	return err;
}

/* A quota that the text does not speak of stays: whoever says what the blocks
 * are does not mean to lift it. */
static int put_full_manifest(struct ucm_store *store, struct ucm_space *space,
			     const struct ucm_manifest *manifest,
			     const char *text)
{
	uint64_t quota = atomic_load(&space->own_quota);
	_cleanup_free_ char *merged = NULL;
	int err = 0;

	if (manifest->has_quota)
		quota = manifest->quota;
	else if (quota)
		err = ucm_manifest_with_quota(text, quota, &merged);
	if (!err)
		err = put_manifest(store, space, merged ? merged : text);
	return err ? err : ucm_quota_apply(store, space, quota);
}

static int write_full_manifest(struct ucm_store *store, struct ucm_space *space,
			       const char *text, size_t len)
{
	struct ucm_manifest manifest;
	struct ucm_error error;
	int err = ucm_store_check_manifest(store, text, len, &manifest,
					   &error);

	if (!err)
		err = ucm_space_set_manifest(space, &manifest, &error);
	if (err) {
		ucm_warning("%s: not accepted: %s", space->folder, error.text);
		return err;
	}
	err = put_full_manifest(store, space, &manifest, text);
	if (err) {
		ucm_space_drop_manifest(space);
		load_manifest(store, space); /* the old one, if any */
	}
	return err;
}

/* What others read is never replaced: a quota alone would keep what the blocks are
 * from being said later. */
static int may_set_quota(const struct ucm_store *store,
			 const struct ucm_space *space)
{
	if (!ucm_store_is_shared(store))
		return 0;
	ucm_error("%s: its quota cannot be set: hosts share a directory; see "
		  "space_quota= in ucmfs(8)", space->folder);
	return -EOPNOTSUPP;
}

/* Not instead of one that says what the blocks are. */
static int write_quota_alone(struct ucm_store *store, struct ucm_space *space,
			     const char *text, uint64_t quota)
{
	int err = may_set_quota(store, space);

	if (!err)
		err = put_manifest(store, space, text);
	return err ? err : ucm_quota_apply(store, space, quota);
}

static bool has_manifest(struct ucm_space *space)
{
	bool has;

	pthread_mutex_lock(&space->lock);
	has = space->has_manifest;
	pthread_mutex_unlock(&space->lock);
	return has;
}

int ucm_store_write_manifest(struct ucm_store *store, struct ucm_space *space,
			     const char *bytes, size_t len)
{
	_cleanup_free_ char *text = strndup(bytes, len);
	uint64_t quota;
	int err;

	if (!text)
		return -ENOMEM;
	pthread_mutex_lock(&writing_manifest);
	err = !has_manifest(space) &&
			      ucm_manifest_quota_alone(text, len, &quota)
		      ? write_quota_alone(store, space, text, quota)
		      : write_full_manifest(store, space, text, len);
	pthread_mutex_unlock(&writing_manifest);
	return err;
}

/* ---- a quota ---- */

static int write_quota(struct ucm_store *store, struct ucm_space *space,
		       char text[UCM_MANIFEST_MAX], uint64_t bytes)
{
	int err = ucm_store_read_manifest(store, space, text, UCM_MANIFEST_MAX);
	_cleanup_free_ char *changed = NULL;

	if (err == -ENOENT && !bytes)
		return 0; /* it says so already */
	if (!err || err == -ENOENT)
		err = ucm_manifest_with_quota(err ? NULL : text, bytes,
					      &changed);
	if (!err)
		return put_manifest(store, space, changed);
	ucm_error("%s/" UCM_TREE_MANIFEST ": no quota can be put into it: %s",
		  space->folder, strerror(-err));
	return err;
}

int ucm_store_set_quota(struct ucm_store *store, struct ucm_space *space,
			uint64_t bytes)
{
	_cleanup_free_ char *text = malloc(UCM_MANIFEST_MAX);
	int err = may_set_quota(store, space);

	if (err)
		return err;
	if (!text)
		return -ENOMEM;
	pthread_mutex_lock(&writing_manifest);
	err = write_quota(store, space, text, bytes);
	if (!err)
		err = ucm_quota_apply(store, space, bytes);
	pthread_mutex_unlock(&writing_manifest);
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

static int add_found_space(void *arg, const char *name, const struct stat *st)
{
	struct ucm_store *store = arg;
	struct ucm_space *space;

	if (ucm_namespace_add(&store->names, name, &space))
		return 0;
	take_owner(space, st);
	atomic_store(&space->maker, st->st_uid);
	if (space->is_private) /* it has no blocks yet, so that cannot fail */
		ucm_index_hide(store->index, space->number);
	return 0;
}

/* Those that are not known yet, from which number on. */
static int find_spaces(struct ucm_store *store, unsigned first,
		       struct ucm_error *error)
{
	for (unsigned dir = 0; dir < store->dirs.num; dir++) {
		struct ucm_medium *medium = store->dirs.at[dir];
		int err = ucm_medium_list_spaces(medium, add_found_space, store,
						 error);

		if (err)
			return err;
	}
	for (unsigned i = first; i < store->names.num; i++) {
		load_manifest(store, store->names.spaces[i]);
		ucm_store_learn(store, store->names.spaces[i]);
	}
	return 0;
}

struct ucm_space *ucm_store_meet_space(struct ucm_store *store,
				       const char *name)
{
	struct ucm_space *space = ucm_namespace_find(&store->names, name);
	struct ucm_error error;

	if (space)
		return space;
	pthread_mutex_lock(&writing_manifest);
	if (find_spaces(store, store->names.num, &error))
		ucm_error("%s", error.text);
	pthread_mutex_unlock(&writing_manifest);
	return ucm_namespace_find(&store->names, name);
}

int ucm_store_find_spaces(struct ucm_store *store,
			  struct ucm_error *error)
{
	int err;

	store->names.spaces[0]->uid = geteuid();
	store->names.spaces[0]->gid = getegid();
	err = find_spaces(store, 0, error);
	if (err)
		return err;
	store->scan.spaces = store->names.num;
	ucm_snapshots_open(store);
	return 0;
}
