/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops_xattr.c - the FUSE operations on extended attributes: each kind of node
 * has an array of those that it knows.
 */
#include <config.h>

#include "fs/mount/node/kinds.h"

#include <errno.h>
#include <linux/limits.h>
#include <stdlib.h>
#include <string.h>

#include "fs/mount/ops/request.h"

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

/* Is it one that the node keeps for users? */
static bool xattr_is_users(fuse_ino_t ino, const char *name)
{
	return ucm_node_ops_of(ino)->get_xattr && !strncmp(name, "user.", 5) &&
	       strncmp(name, UCM_XATTR_PREFIX, strlen(UCM_XATTR_PREFIX));
}

/* Length of the value, or -errno. value: room for ours, or for size bytes. */
static int xattr_get(fuse_req_t req, fuse_ino_t ino, const char *name,
		     char *value, size_t size)
{
	const struct ucm_xattr *attr = xattr_find(ino, name);

	if (!strncmp(name, "system.", 7))
		return -EOPNOTSUPP;
	if (attr && !xattr_may_see(req, attr))
		return -EPERM;
	if (attr)
		return attr->get(attr, ucm_daemon_of(req), ino, value);
	return xattr_is_users(ino, name)
		       ? ucm_node_ops_of(ino)->get_xattr(ucm_daemon_of(req),
							 ino, name, value, size)
		       : -ENODATA;
}

/* size 0 asks how much room is needed. */
static void xattr_answer(struct ucm_fuse_request *r, int len)
{
	r->answer = UCM_ANSWER_XATTR;
	r->err = len < 0 ? len : r->size && (size_t)len > r->size ? -ERANGE : 0;
	r->out_size = r->err ? 0 : (size_t)len;
}

static void serve_getxattr(struct ucm_fuse_request *r)
{
	if (!r->out)
		r->out = malloc(r->size > UCM_XATTR_MAX ? r->size
							: UCM_XATTR_MAX);
	xattr_answer(r, r->out ? xattr_get(r->account.req, r->ino, r->name,
					   r->out, r->size)
			       : -ENOMEM);
}

void ucm_op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name,
		     size_t size)
{
	struct ucm_fuse_request r = { .name = name, .size = size };

	ucm_request_run_on_node(&r, req, UCM_OP_GETXATTR, serve_getxattr, ino);
}

/* Those that it has, or -errno. */
static int xattr_list(const struct ucm_fuse_request *r, char *list)
{
	struct ucm_daemon *daemon = r->account.daemon;
	const struct ucm_node_ops *ops = ucm_node_ops_of(r->ino);
	char value[UCM_XATTR_MAX];
	const struct ucm_xattr *attr;
	int len = 0;

	if (ops->list_xattrs)
		len = ops->list_xattrs(daemon, r->ino, list,
				       XATTR_LIST_MAX);
	if (len < 0)
		return len;
	for (attr = xattrs_of(r->ino); attr->name; attr++) {
		size_t name_len = strlen(attr->name) + 1;
		int got;

		if (!xattr_may_see(r->account.req, attr))
			continue;
		got = attr->get(attr, daemon, r->ino, value);
		if (got == -EINPROGRESS)
			return got;
		if (got < 0)
			continue;
		if ((size_t)len + name_len > XATTR_LIST_MAX)
			return -ERANGE;
		memcpy(list + len, attr->name, name_len);
		len += (int)name_len;
	}
	return len;
}

static void serve_listxattr(struct ucm_fuse_request *r)
{
	if (!r->out)
		r->out = malloc(XATTR_LIST_MAX);
	xattr_answer(r, r->out ? xattr_list(r, r->out) : -ENOMEM);
}

void ucm_op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	struct ucm_fuse_request r = { .size = size };

	ucm_request_run_on_node(&r, req, UCM_OP_LISTXATTR, serve_listxattr,
				ino);
}

static void serve_setxattr(struct ucm_fuse_request *r)
{
	const struct ucm_node_ops *ops = ucm_node_ops_of(r->ino);
	const struct ucm_xattr *attr = xattr_find(r->ino, r->name);
	bool removes = !r->in;

	r->err = attr ? -EPERM : -EOPNOTSUPP;
	if (!attr && xattr_is_users(r->ino, r->name))
		r->err = ops->set_xattr(r->account.daemon, r->ino, r->name,
					r->in, r->in_size, (int)r->number);
	else if (attr && attr->set)
		r->err = attr->set(attr, r->account.daemon, r->ino,
				   removes ? "0" : r->in,
				   !removes		    ? r->in_size
				   : attr->removed_as_empty ? 0
							    : 1);
	if (r->err != -EINPROGRESS && ops->note)
		ops->note(&r->account, r->ino);
}

static void xattr_set(fuse_req_t req, fuse_ino_t ino, const char *name,
		      const char *value, size_t size, int flags)
{
	struct ucm_fuse_request r = {
		.name = name, .in = value, .in_size = size,
		.number = (unsigned)flags,
	};

	ucm_request_run_on_node(&r, req, UCM_OP_SETXATTR, serve_setxattr, ino);
}

void ucm_op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name,
		     const char *value, size_t size, int flags)
{
	xattr_set(req, ino, name, value, size, flags);
}

void ucm_op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	xattr_set(req, ino, name, NULL, 0, 0);
}
