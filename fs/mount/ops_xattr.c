/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops_xattr.c - the FUSE operations on extended attributes: each kind of node
 * has an array of those that it knows.
 */
#include <config.h>

#include "fs/mount/kinds.h"

#include <errno.h>
#include <string.h>

static const struct ucm_xattr no_xattrs[] = { { 0 } };

static const struct ucm_xattr *xattrs_of(fuse_ino_t ino)
{
	const struct ucm_node_ops *ops = ucm_node_ops_of(ino);

	return ops->xattrs ? ops->xattrs : no_xattrs;
}

/* NULL: the node knows no such one. */
static const struct ucm_xattr *xattr_find(fuse_ino_t ino, const char *name)
{
	const struct ucm_xattr *attr = xattrs_of(ino);

	while (attr->name && strcmp(name, attr->name))
		attr++;
	return attr->name ? attr : NULL;
}

static bool xattr_may_see(fuse_req_t req, const struct ucm_xattr *attr)
{
	return !attr->root_only || fuse_req_ctx(req)->uid == 0;
}

/* Length of the value, or -errno. */
static int xattr_get(fuse_req_t req, fuse_ino_t ino, const char *name,
		     char *value)
{
	const struct ucm_xattr *attr = xattr_find(ino, name);

	if (!strncmp(name, "system.", 7))
		return -EOPNOTSUPP;
	if (!attr)
		return -ENODATA;
	if (!xattr_may_see(req, attr))
		return -EPERM;
	return attr->get(ucm_daemon_of(req), ino, value);
}

/* size 0 asks how much room is needed. Ends the account. */
static void xattr_reply(const struct ucm_account *account, const char *value,
			int len, size_t size)
{
	int err = len < 0 ? len : size && (size_t)len > size ? -ERANGE : 0;

	ucm_account_end(account, err);
	if (err)
		fuse_reply_err(account->req, -err);
	else if (size == 0)
		fuse_reply_xattr(account->req, (size_t)len);
	else
		fuse_reply_buf(account->req, value, (size_t)len);
}

void ucm_op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name,
		     size_t size)
{
	struct ucm_account account = ucm_account_begin(req, UCM_OP_GETXATTR);
	char value[UCM_XATTR_MAX];
	int len = xattr_get(req, ino, name, value);

	xattr_reply(&account, value, len, size);
}

void ucm_op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	struct ucm_account account = ucm_account_begin(req, UCM_OP_LISTXATTR);
	char list[UCM_XATTR_MAX], value[UCM_XATTR_MAX];
	const struct ucm_xattr *attr;
	int len = 0;

	for (attr = xattrs_of(ino); attr->name; attr++) {
		size_t name_len = strlen(attr->name) + 1;

		if (attr->unlisted || !xattr_may_see(req, attr) ||
		    attr->get(account.daemon, ino, value) < 0)
			continue;
		memcpy(list + len, attr->name, name_len);
		len += (int)name_len;
	}
	xattr_reply(&account, list, len, size);
}

static void xattr_set(fuse_req_t req, fuse_ino_t ino, const char *name,
		      const char *value, size_t size)
{
	struct ucm_account account = ucm_account_begin(req, UCM_OP_SETXATTR);
	const struct ucm_node_ops *ops = ucm_node_ops_of(ino);
	const struct ucm_xattr *attr = xattr_find(ino, name);
	int err = -EOPNOTSUPP;

	if (attr && attr->set)
		err = attr->set(account.daemon, ino, value, size);
	if (ops->note)
		ops->note(&account, ino);
	ucm_account_reply(&account, err);
}

void ucm_op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name,
		     const char *value, size_t size, int flags)
{
	(void)flags;
	xattr_set(req, ino, name, value, size);
}

void ucm_op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	xattr_set(req, ino, name, "0", 1);
}
