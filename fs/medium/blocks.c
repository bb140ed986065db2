/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blocks.c - blocks of a medium, marks of those that are pinned, and files that become
 * blocks; see medium.h.
 *
 * A commit is a second name for the file, that of the block, and the end of the
 * temporary one. link fails if the name exists, which decides between two
 * writers on every file system; renameat2(RENAME_NOREPLACE) and O_TMPFILE do
 * not work on NFS, GlusterFS, sshfs or MooseFS.
 */
#include <config.h>

#include "fs/medium/medium.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/cleanup.h"
#include "common/log.h"

#define QUARANTINE UCM_TREE_OWN "/quarantine"
#define PINS UCM_TREE_OWN "/pinned"

/* ---- blocks ---- */

int ucm_medium_list(struct ucm_medium *medium, const char *folder,
		    unsigned bucket, char **names_out)
{
	char path[UCM_TREE_PATH_MAX];

	if (medium->flags & UCM_MEDIUM_NO_LIST)
		return -EOPNOTSUPP;
	ucm_tree_bucket_path(folder, bucket, path);
	return medium->ops->list(medium, path, names_out);
}

int ucm_medium_stamp(struct ucm_medium *medium, const char *folder,
		     unsigned bucket, struct stat *out)
{
	char path[UCM_TREE_PATH_MAX];
	int err;

	ucm_tree_bucket_path(folder, bucket, path);
	err = medium->ops->stat(medium, path, out);
	return err ? err : S_ISDIR(out->st_mode) ? 0 : -ENOENT;
}

int ucm_medium_find(struct ucm_medium *medium, const char *folder,
		    const struct ucm_id *id, struct stat *out)
{
	char path[UCM_TREE_PATH_MAX];

	ucm_tree_block_path(folder, id, path);
	return medium->ops->stat(medium, path, out);
}

int ucm_medium_open_block(struct ucm_medium *medium, const char *folder,
			  const struct ucm_id *id, struct ucm_file *out,
			  struct stat *st)
{
	char path[UCM_TREE_PATH_MAX];

	ucm_tree_block_path(folder, id, path);
	return medium->ops->open(medium, path, UCM_OPEN_READ, out, st);
}

int ucm_medium_remove(struct ucm_medium *medium, const char *folder,
		      const struct ucm_id *id)
{
	char path[UCM_TREE_PATH_MAX];

	ucm_tree_block_path(folder, id, path);
	return medium->ops->remove(medium, path, false);
}

/* "blocks" or "spaces/NAME", and an id, as one name. */
static void flat_name(const char *folder, const struct ucm_id *id,
		      char out[UCM_TREE_PATH_MAX])
{
	snprintf(out, UCM_TREE_PATH_MAX, "%s@%s", ucm_tree_folder_name(folder),
		 ucm_hex(id).text);
}

int ucm_medium_set_aside(struct ucm_medium *medium, const char *folder,
			 const struct ucm_id *id)
{
	char path[UCM_TREE_PATH_MAX], flat[UCM_TREE_PATH_MAX];
	char to[UCM_TREE_PATH_MAX + 64];
	struct timespec now;

	if (medium->readonly)
		return -EROFS;
	clock_gettime(CLOCK_REALTIME, &now);
	ucm_tree_block_path(folder, id, path);
	flat_name(folder, id, flat);
	snprintf(to, sizeof(to), QUARANTINE "/%s.%lld%09ld",
		 flat, (long long)now.tv_sec, now.tv_nsec);
	return medium->ops->rename(medium, path, to);
}

/* ---- pins ---- */

static void pin_path(const char *folder, const struct ucm_id *id,
		     char out[UCM_TREE_PATH_MAX + 16])
{
	char flat[UCM_TREE_PATH_MAX];

	flat_name(folder, id, flat);
	snprintf(out, UCM_TREE_PATH_MAX + 16, PINS "/%s", flat);
}

int ucm_medium_find_pin(struct ucm_medium *medium, const char *folder,
			const struct ucm_id *id)
{
	char path[UCM_TREE_PATH_MAX + 16];
	struct stat st;
	int err = medium->ops->stat(medium, PINS, &st); /* not from a cache */

	pin_path(folder, id, path);
	return err ? err : medium->ops->stat(medium, path, &st);
}

int ucm_medium_pin(struct ucm_medium *medium, const char *folder,
		   const struct ucm_id *id, bool pinned)
{
	char path[UCM_TREE_PATH_MAX + 16];
	_cleanup_file_ struct ucm_file file = UCM_NO_FILE;
	int err;

	if (medium->readonly)
		return -EROFS;
	pin_path(folder, id, path);
	if (pinned)
		return medium->ops->open(medium, path, UCM_OPEN_OVER, &file,
					 NULL);
	err = medium->ops->remove(medium, path, false);
	return err == -ENOENT ? 0 : err;
}

static void read_pin(const char *name, ucm_pin_fn *fn, void *arg)
{
	const char *at = strrchr(name, '@');
	char space[UCM_TREE_PATH_MAX];
	struct ucm_id id;

	if (!at || strlen(at + 1) != UCM_ID_HEX || ucm_id_parse(at + 1, &id))
		return;
	snprintf(space, sizeof(space), "%.*s", (int)(at - name), name);
	fn(arg, space, &id);
}

void ucm_medium_pins(struct ucm_medium *medium, ucm_pin_fn *fn, void *arg)
{
	_cleanup_free_ char *names = NULL;

	if (medium->ops->list(medium, PINS, &names))
		return;
	for (const char *name = names; *name; name += strlen(name) + 1)
		read_pin(name, fn, arg);
}

/* ---- new files ---- */

static int make_folder(struct ucm_medium *medium, const char *path)
{
	int err = medium->ops->mkdir(medium, path, 0755);

	return err == -EEXIST ? 0 : err;
}

int ucm_medium_put(struct ucm_medium *medium, char path_out[UCM_TEMP_PATH_MAX],
		   struct ucm_file *out)
{
	uint64_t serial = atomic_fetch_add(&medium->temps, 1);
	char folder[UCM_TEMP_PATH_MAX], name[UCM_TEMP_NAME_MAX], number[3];
	int err;

	if (medium->readonly)
		return -EROFS;
	ucm_temp_name(&medium->maker, serial, name);
	ucm_tree_bucket_name(serial % UCM_TEMP_FOLDERS, number);
	snprintf(folder, sizeof(folder), UCM_TEMPS "/%s", number);
	snprintf(path_out, UCM_TEMP_PATH_MAX, UCM_TEMPS "/%s/%s", number, name);
	err = medium->ops->open(medium, path_out, UCM_OPEN_NEW, out, NULL);
	if (err != -ENOENT)
		return err;
	err = make_folder(medium, folder);
	return err ? err
		   : medium->ops->open(medium, path_out, UCM_OPEN_NEW, out,
				       NULL);
}

void ucm_medium_drop(struct ucm_medium *medium, const char *temp)
{
	int err = medium->ops->remove(medium, temp, false);

	if (err && err != -ENOENT)
		ucm_error("%s/%s: %s", medium->path, temp, strerror(-err));
}

/* Not the space's folder: who may enter that is not ours to say. */
static int make_bucket(struct ucm_medium *medium, const char *folder,
		       const char *bucket, bool sync)
{
	int err = make_folder(medium, bucket);

	return !err && sync ? ucm_medium_sync(medium, folder) : err;
}

int ucm_medium_commit(struct ucm_medium *medium, const char *temp,
		      const char *folder, const struct ucm_id *id, bool sync)
{
	char path[UCM_TREE_PATH_MAX], bucket[UCM_TREE_PATH_MAX];
	int err;

	if (medium->readonly)
		return -EROFS;
	ucm_tree_block_path(folder, id, path);
	ucm_tree_bucket_path(folder, ucm_tree_bucket(id), bucket);
	err = medium->ops->link(medium, temp, path);
	if (err == -ENOENT) {
		err = make_bucket(medium, folder, bucket, sync);
		if (!err)
			err = medium->ops->link(medium, temp, path);
	}
	if (err)
		return err;
	ucm_medium_drop(medium, temp);
	err = sync ? ucm_medium_sync(medium, bucket) : 0;
	/* else the next commit would take it for one that is safe on disk */
	if (err)
		ucm_medium_remove(medium, folder, id);
	return err;
}

/* ---- what a stopped daemon has left ---- */

/* Without a lock another one, here or on another machine, may be writing it. */
static bool is_leftover(struct ucm_medium *medium, const char *path,
			int64_t now_s)
{
	struct stat st;

	return !(medium->flags & UCM_MEDIUM_SHARED) ||
	       (!medium->ops->stat(medium, path, &st) &&
		ucm_temp_is_over(&medium->maker, strrchr(path, '/') + 1,
				 now_s - st.st_mtime));
}

/* How many it has removed; of what is no folder, none. */
static unsigned clear_folder(struct ucm_medium *medium, const char *folder,
			     int64_t now_s)
{
	_cleanup_free_ char *names = NULL;
	char path[UCM_TREE_PATH_MAX];
	unsigned removed = 0;

	if (medium->ops->list(medium, folder, &names))
		return 0;
	for (const char *name = names; *name; name += strlen(name) + 1) {
		snprintf(path, sizeof(path), "%s/%s", folder, name);
		removed += clear_folder(medium, path, now_s);
		if (is_leftover(medium, path, now_s) &&
		    !medium->ops->remove(medium, path, false))
			removed++;
	}
	return removed;
}

void ucm_medium_clear_temps(struct ucm_medium *medium)
{
	int64_t now_ns = 0;
	unsigned removed;

	if (medium->flags & UCM_MEDIUM_SHARED && ucm_medium_now(medium, &now_ns))
		return; /* by its clock: ours may be another */
	removed = clear_folder(medium, UCM_TEMPS, now_ns / 1000000000);
	if (removed)
		ucm_info("%s: removed %u unfinished files", medium->path,
			 removed);
}
