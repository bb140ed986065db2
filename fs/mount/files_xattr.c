/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files_xattr.c - the extended attributes of files/: where a file lies, and the
 * quota of a folder.
 */
#include <config.h>

#include "fs/mount/kinds.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>

#include "fs/files/files.h"
#include "fs/tier/wait.h"

/* ---- where it lies ---- */

/* Where a file is now: its directory, and its path below that (PATH_MAX). */
static int files_where(struct ucm_daemon *daemon, fuse_ino_t ino,
		       unsigned *dir_out, char *path_out)
{
	struct ucm_files_node *node = ucm_files_node_of(daemon, ino);
	struct ucm_files_lock lock;
	int err;

	if (node->is_dir)
		return -ENODATA;
	err = ucm_files_lock_node(&daemon->nodes, node, &lock, path_out);
	if (err)
		return err;
	*dir_out = node->dir;
	ucm_files_unlock(&lock);
	return 0;
}

static int files_get_tier(struct ucm_daemon *daemon, fuse_ino_t ino,
			  char *value)
{
	char path[PATH_MAX];
	unsigned dir;
	int err = files_where(daemon, ino, &dir, path);

	if (err)
		return err;
	return snprintf(value, UCM_XATTR_MAX, "%s",
			daemon->store->dirs.tier_of[dir]->name);
}

static int files_get_path(struct ucm_daemon *daemon, fuse_ino_t ino,
			  char *value)
{
	char path[PATH_MAX];
	unsigned dir;
	int err = files_where(daemon, ino, &dir, path);

	if (err)
		return err;
	err = snprintf(value, UCM_XATTR_MAX, "%s/%s",
		       daemon->store->dirs.at[dir]->path, path);
	return err < UCM_XATTR_MAX ? err : -ERANGE;
}

/* Of a folder: the tiers that do not answer, whose names it may lack. */
static int files_get_missing(struct ucm_daemon *daemon, fuse_ino_t ino,
			     char *value)
{
	const struct ucm_dirs *dirs = &daemon->store->dirs;
	struct ucm_files_node *node = ucm_files_node_of(daemon, ino);
	const struct ucm_tier *last = NULL;
	struct ucm_files_mutes mutes;
	struct ucm_files_lock lock;
	char path[PATH_MAX];
	int len = 0, err = node->is_dir ? ucm_files_lock_node(&daemon->nodes,
							      node, &lock, path)
					: -ENODATA;

	if (err)
		return err;
	ucm_files_missing(&daemon->file_tree, path, &mutes);
	ucm_files_unlock(&lock);
	for (unsigned dir = 0; dir < dirs->num && len < UCM_XATTR_MAX; dir++) {
		if (!ucm_files_is_mute(&mutes, dir) ||
		    dirs->tier_of[dir] == last)
			continue;
		len += snprintf(value + len, (size_t)(UCM_XATTR_MAX - len),
				"%s%s", last ? "," : "",
				dirs->tier_of[dir]->name);
		last = dirs->tier_of[dir];
	}
	return !len ? -ENODATA : len < UCM_XATTR_MAX ? len : -ERANGE;
}

/* ---- of a marked folder ---- */

/* -ENODATA: it is none. */
static int files_get_mark(struct ucm_daemon *daemon, fuse_ino_t ino,
			  struct ucm_files_mark_info *out)
{
	struct ucm_files_node *node = ucm_files_node_of(daemon, ino);
	char path[PATH_MAX];

	if (!node->is_dir ||
	    ucm_files_path(&daemon->nodes, node, NULL, path) ||
	    !ucm_files_mark_get(&daemon->file_tree, path, out))
		return -ENODATA;
	return 0;
}

static int files_get_quota(struct ucm_daemon *daemon, fuse_ino_t ino,
			   char *value)
{
	struct ucm_files_mark_info mark;
	int err = files_get_mark(daemon, ino, &mark);

	return err ? err
		   : snprintf(value, UCM_XATTR_MAX, "%" PRIu64, mark.quota);
}

static int files_get_used(struct ucm_daemon *daemon, fuse_ino_t ino,
			  char *value)
{
	struct ucm_files_mark_info mark;
	int err = files_get_mark(daemon, ino, &mark);

	return err ? err
		   : snprintf(value, UCM_XATTR_MAX, "%" PRIu64, mark.used);
}

static int files_get_order(struct ucm_daemon *daemon, fuse_ino_t ino,
			   char *value)
{
	struct ucm_files_mark_info mark;
	int err = files_get_mark(daemon, ino, &mark);

	return err ? err
		   : snprintf(value, UCM_XATTR_MAX, "%s",
			      ucm_files_orders[mark.order]);
}

static int files_get_grace(struct ucm_daemon *daemon, fuse_ino_t ino,
			   char *value)
{
	struct ucm_files_mark_info mark;
	int err = files_get_mark(daemon, ino, &mark);

	return err ? err
		   : snprintf(value, UCM_XATTR_MAX, "%" PRIu32, mark.grace_s);
}

/* Its name is locked, so that a rename does not take the mark elsewhere. */
static int files_set_mark(struct ucm_daemon *daemon, fuse_ino_t ino,
			  const char *what, const char *value, size_t size)
{
	struct ucm_files_node *node = ucm_files_node_of(daemon, ino);
	struct ucm_files_lock lock;
	char path[PATH_MAX];
	int err = node->is_dir
			  ? ucm_wait_long_for_any(&daemon->store->dirs)
			  : -ENOTDIR;

	if (!err)
		err = ucm_files_lock_node(&daemon->nodes, node, &lock, path);
	if (err)
		return err;
	err = ucm_files_mark_set(&daemon->file_tree, path, what, value, size);
	ucm_files_unlock(&lock);
	return err;
}

static int files_set_quota(struct ucm_daemon *daemon, fuse_ino_t ino,
			   const char *value, size_t size)
{
	return files_set_mark(daemon, ino, "quota", value, size);
}

static int files_set_order(struct ucm_daemon *daemon, fuse_ino_t ino,
			   const char *value, size_t size)
{
	return files_set_mark(daemon, ino, "order", value, size);
}

static int files_set_grace(struct ucm_daemon *daemon, fuse_ino_t ino,
			   const char *value, size_t size)
{
	return files_set_mark(daemon, ino, "grace", value, size);
}

const struct ucm_xattr ucm_files_xattrs[] = {
	{ .name = UCM_XATTR_PREFIX "missing", .get = files_get_missing },
	{ .name = UCM_XATTR_PREFIX "tier", .get = files_get_tier },
	{
		.name = UCM_XATTR_PREFIX "path",
		.get = files_get_path,
		.root_only = true,
	},
	{
		.name = UCM_XATTR_PREFIX "quota",
		.get = files_get_quota,
		.set = files_set_quota,
		.removed_as_empty = true,
	},
	{
		.name = UCM_XATTR_PREFIX "order",
		.get = files_get_order,
		.set = files_set_order,
		.removed_as_empty = true,
	},
	{
		.name = UCM_XATTR_PREFIX "grace",
		.get = files_get_grace,
		.set = files_set_grace,
		.removed_as_empty = true,
	},
	{ .name = UCM_XATTR_PREFIX "used", .get = files_get_used },
	{ 0 },
};
