/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files_xattr.c - the extended attributes of files/: where a file is, the quota
 * of a folder, and those of users, which the backing file has.
 */
#include <config.h>

#include "fs/mount/kinds/files_kind.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "common/osfile.h"

/* ---- where it is ---- */

static int files_get_tier(struct ucm_daemon *daemon, fuse_ino_t ino,
			  char *value)
{
	const struct ucm_files_tree *tree = &daemon->file_tree;

	if (ucm_files_node_of(daemon, ino)->is_dir)
		return -ENODATA;
	return snprintf(value, UCM_XATTR_MAX, "%s",
			tree->dirs->tier_of[tree->dir]->name);
}

static int files_get_path(struct ucm_daemon *daemon, fuse_ino_t ino,
			  char *value)
{
	struct ucm_files_node *node = ucm_files_node_of(daemon, ino);
	char path[PATH_MAX];
	int err = node->is_dir ? -ENODATA
			       : ucm_files_path(&daemon->nodes, node, NULL,
						path);

	if (err)
		return err == -ENOENT ? -ESTALE : err;
	err = snprintf(value, UCM_XATTR_MAX, "%s/%s",
		       daemon->file_tree.at->medium.path, path);
	return err < UCM_XATTR_MAX ? err : -ERANGE;
}

/* ---- of users ---- */

int ucm_files_get_xattr(struct ucm_daemon *daemon, fuse_ino_t ino,
			const char *name, char *value, size_t size)
{
	struct ucm_files_held held;
	int rc = ucm_files_hold_file(daemon, ucm_files_node_of(daemon, ino),
				     &held);

	if (rc)
		return rc;
	rc = ucm_os_getxattr(held.fd, name, value, size);
	ucm_files_let_go(&held);
	return rc;
}

int ucm_files_set_xattr(struct ucm_daemon *daemon, fuse_ino_t ino,
			const char *name, const char *value, size_t size,
			int flags)
{
	struct ucm_files_held held;
	int err = daemon->file_tree.at->medium.readonly
			  ? -EROFS
			  : ucm_files_hold_file(daemon,
						ucm_files_node_of(daemon, ino),
						&held);

	if (err)
		return err;
	err = ucm_os_setxattr(held.fd, name, value, size, flags);
	ucm_files_let_go(&held);
	return err;
}

/* Those of users alone. */
static int keep_users(char *names, int len)
{
	int kept = 0, size;

	for (int at = 0; at < len; at += size) {
		size = (int)strlen(names + at) + 1;
		if (strncmp(names + at, "user.", 5) ||
		    !strncmp(names + at, UCM_XATTR_PREFIX,
			     strlen(UCM_XATTR_PREFIX)))
			continue;
		memmove(names + kept, names + at, (size_t)size);
		kept += size;
	}
	return kept;
}

int ucm_files_list_xattrs(struct ucm_daemon *daemon, fuse_ino_t ino,
			  char *names, size_t size)
{
	struct ucm_files_held held;
	int rc = ucm_files_hold_file(daemon, ucm_files_node_of(daemon, ino),
				     &held);

	if (rc)
		return rc;
	rc = ucm_os_listxattr(held.fd, names, size);
	ucm_files_let_go(&held);
	if (rc == -EOPNOTSUPP)
		return 0;
	return rc < 0 ? rc : keep_users(names, rc);
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
	int err = node->is_dir ? ucm_files_lock_node(&daemon->nodes, node,
						     &lock, path)
			       : -ENOTDIR;

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
