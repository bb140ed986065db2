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

static int files_get_tier(const struct ucm_xattr *attr, struct ucm_daemon *daemon,
			  fuse_ino_t ino, char *value)
{
	const struct ucm_files_tree *tree = &daemon->file_tree;

	(void)attr;
	if (ucm_files_node_of(daemon, ino)->is_dir)
		return -ENODATA;
	return snprintf(value, UCM_XATTR_MAX, "%s",
			tree->dirs->tier_of[tree->dir]->name);
}

static int files_get_path(const struct ucm_xattr *attr, struct ucm_daemon *daemon,
			  fuse_ino_t ino, char *value)
{
	struct ucm_files_node *node = ucm_files_node_of(daemon, ino);
	char path[PATH_MAX];
	int err = node->is_dir ? -ENODATA
			       : ucm_files_path(&daemon->nodes, node, NULL,
						path);

	(void)attr;
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

enum { QUOTA, USED, ORDER, GRACE };

/* -ENODATA: it is none. */
static int files_get_mark(const struct ucm_xattr *attr, struct ucm_daemon *daemon,
			  fuse_ino_t ino, char *value)
{
	struct ucm_files_node *node = ucm_files_node_of(daemon, ino);
	struct ucm_files_mark_info mark;
	char path[PATH_MAX];

	if (!node->is_dir ||
	    ucm_files_path(&daemon->nodes, node, NULL, path) ||
	    !ucm_files_mark_get(&daemon->file_tree, path, &mark))
		return -ENODATA;
	if (attr->what == ORDER)
		return snprintf(value, UCM_XATTR_MAX, "%s",
				ucm_files_orders[mark.order]);
	return snprintf(value, UCM_XATTR_MAX, "%" PRIu64,
			attr->what == QUOTA  ? mark.quota
			: attr->what == USED ? mark.used
					     : mark.grace_s);
}

/* Its name is locked, so that a rename does not take the mark elsewhere. */
static int files_set_mark(const struct ucm_xattr *attr, struct ucm_daemon *daemon,
			  fuse_ino_t ino, const char *value, size_t size)
{
	struct ucm_files_node *node = ucm_files_node_of(daemon, ino);
	struct ucm_files_lock lock;
	char path[PATH_MAX];
	int err = node->is_dir ? ucm_files_lock_node(&daemon->nodes, node,
						     &lock, path)
			       : -ENOTDIR;

	if (err)
		return err;
	err = ucm_files_mark_set(&daemon->file_tree, path,
				 attr->name + strlen(UCM_XATTR_PREFIX), value,
				 size);
	ucm_files_unlock(&lock);
	return err;
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
		.get = files_get_mark,
		.set = files_set_mark,
		.what = QUOTA,
		.removed_as_empty = true,
	},
	{
		.name = UCM_XATTR_PREFIX "order",
		.get = files_get_mark,
		.set = files_set_mark,
		.what = ORDER,
		.removed_as_empty = true,
	},
	{
		.name = UCM_XATTR_PREFIX "grace",
		.get = files_get_mark,
		.set = files_set_mark,
		.what = GRACE,
		.removed_as_empty = true,
	},
	{
		.name = UCM_XATTR_PREFIX "used",
		.get = files_get_mark,
		.what = USED,
	},
	{ 0 },
};
