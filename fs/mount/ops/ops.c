/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops.c - the FUSE operations on nodes: names, folders, attributes.
 *
 * Each has two functions: ucm_op_x() makes a request of what libfuse brings,
 * and serve_x() asks the table of the node's kind for its answer, here or in
 * another thread (request.h). What a node is, is not known here.
 */
#include <config.h>

#include "fs/mount/node/kinds.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "fs/mount/ops/request.h"

/* ---- names ---- */

static void serve_lookup(struct ucm_fuse_request *r)
{
	const struct ucm_node_ops *ops = ucm_node_ops_of(r->ino);

	r->answer = UCM_ANSWER_ENTRY;
	r->err = -ENOTDIR;
	if (strlen(r->name) > UCM_NAME_MAX)
		r->err = -ENAMETOOLONG;
	else if (ops->lookup)
		r->err = ops->lookup(&r->account, r->ino, r->name,
				     &r->u.entry);
	/* with node id 0: the kernel may remember that it is not there */
	if (r->err == -ENOENT && ops->remembers_absence) {
		r->answer = UCM_ANSWER_ABSENT;
		r->err = 0;
	}
}

void ucm_op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct ucm_fuse_request r = { .name = name };

	ucm_request_run_on_node(&r, req, UCM_OP_LOOKUP, serve_lookup, parent);
}

static void ops_forget(fuse_req_t req, fuse_ino_t ino, uint64_t lookups)
{
	const struct ucm_node_ops *ops = ucm_node_ops_of(ino);
	struct ucm_daemon *daemon = ucm_daemon_of(req);

	ucm_handover_take(daemon);
	if (ops->forget)
		ops->forget(daemon, ino, lookups);
}

void ucm_op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t lookups)
{
	ops_forget(req, ino, lookups);
	fuse_reply_none(req);
}

void ucm_op_forget_multi(fuse_req_t req, size_t count,
			 struct fuse_forget_data *forgets)
{
	for (size_t i = 0; i < count; i++)
		ops_forget(req, forgets[i].ino, forgets[i].nlookup);
	fuse_reply_none(req);
}

static void serve_mkdir(struct ucm_fuse_request *r)
{
	const struct ucm_node_ops *ops = ucm_node_ops_of(r->ino);

	r->answer = UCM_ANSWER_ENTRY;
	r->err = ops->mkdir ? ops->mkdir(&r->account, r->ino, r->name,
					 (mode_t)r->number, &r->u.entry)
			    : -EPERM;
}

void ucm_op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name,
		  mode_t mode)
{
	struct ucm_fuse_request r = { .name = name, .number = mode };

	ucm_request_run_on_node(&r, req, UCM_OP_MKDIR, serve_mkdir, parent);
}

static void serve_mknod(struct ucm_fuse_request *r)
{
	const struct ucm_node_ops *ops = ucm_node_ops_of(r->ino);

	r->answer = UCM_ANSWER_ENTRY;
	r->err = ops->mknod ? ops->mknod(&r->account, r->ino, r->name,
					 (mode_t)r->number, &r->u.entry)
			    : -EPERM;
}

void ucm_op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name,
		  mode_t mode, dev_t dev)
{
	struct ucm_fuse_request r = { .name = name, .number = mode };

	(void)dev;
	ucm_request_run_on_node(&r, req, UCM_OP_CREATE, serve_mknod, parent);
}

static void serve_symlink(struct ucm_fuse_request *r)
{
	const struct ucm_node_ops *ops = ucm_node_ops_of(r->ino);

	r->answer = UCM_ANSWER_ENTRY;
	r->err = ops->symlink ? ops->symlink(&r->account, r->ino, r->name,
					     r->text, &r->u.entry)
			      : -EPERM;
}

void ucm_op_symlink(fuse_req_t req, const char *link, fuse_ino_t parent,
		    const char *name)
{
	struct ucm_fuse_request r = { .name = name, .text = link };

	ucm_request_run_on_node(&r, req, UCM_OP_CREATE, serve_symlink, parent);
}

static void serve_link(struct ucm_fuse_request *r)
{
	const struct ucm_node_ops *ops = ucm_node_ops_of(r->ino);

	r->answer = UCM_ANSWER_ENTRY;
	r->err = ops->link && ops == ucm_node_ops_of(r->newparent)
			 ? ops->link(&r->account, r->ino, r->newparent, r->name,
				     &r->u.entry)
			 : -EPERM;
}

void ucm_op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t newparent,
		 const char *newname)
{
	struct ucm_fuse_request r = { .newparent = newparent, .name = newname };

	ucm_request_run_on_node(&r, req, UCM_OP_CREATE, serve_link, ino);
}

static void serve_unlink(struct ucm_fuse_request *r)
{
	const struct ucm_node_ops *ops = ucm_node_ops_of(r->ino);

	r->err = ops->unlink ? ops->unlink(&r->account, r->ino, r->name)
			     : -EPERM;
}

void ucm_op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct ucm_fuse_request r = { .name = name };

	ucm_request_run_on_node(&r, req, UCM_OP_UNLINK, serve_unlink, parent);
}

static void serve_rmdir(struct ucm_fuse_request *r)
{
	const struct ucm_node_ops *ops = ucm_node_ops_of(r->ino);

	r->err = ops->rmdir ? ops->rmdir(&r->account, r->ino, r->name)
			    : -EPERM;
}

void ucm_op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct ucm_fuse_request r = { .name = name };

	ucm_request_run_on_node(&r, req, UCM_OP_RMDIR, serve_rmdir, parent);
}

static void serve_rename(struct ucm_fuse_request *r)
{
	const struct ucm_node_ops *from = ucm_node_ops_of(r->ino);
	const struct ucm_node_ops *to = ucm_node_ops_of(r->newparent);

	r->err = -EPERM;
	if (from == to && from->rename)
		r->err = from->rename(&r->account, r->ino, r->name,
				      r->newparent, r->text, r->number);
	else if (from->moved_by_copy || to->moved_by_copy)
		r->err = -EXDEV;
}

void ucm_op_rename(fuse_req_t req, fuse_ino_t parent, const char *name,
		   fuse_ino_t newparent, const char *newname,
		   unsigned int flags)
{
	struct ucm_fuse_request r = {
		.name = name, .newparent = newparent, .text = newname,
		.number = flags,
	};

	ucm_request_run_on_node(&r, req, UCM_OP_RENAME, serve_rename, parent);
}

/* ---- folders ---- */

static void serve_opendir(struct ucm_fuse_request *r)
{
	const struct ucm_node_ops *ops = ucm_node_ops_of(r->ino);

	r->answer = UCM_ANSWER_OPENED;
	r->err = ops->opendir ? ops->opendir(&r->account, r->ino, r->fi) : 0;
}

void ucm_op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct ucm_fuse_request r = { .fi = fi };

	ucm_request_run_on_node(&r, req, UCM_OP_OPENDIR, serve_opendir, ino);
}

static void serve_readdir(struct ucm_fuse_request *r)
{
	const struct ucm_node_ops *ops = ucm_node_ops_of(r->ino);
	struct ucm_listing list = {
		.daemon = r->account.daemon,
		.req = r->account.req,
		.size = r->size,
		.plus = r->number,
	};

	r->answer = UCM_ANSWER_BYTES;
	if (!r->out)
		r->out = malloc(r->size);
	list.buffer = r->out;
	if (!r->out)
		r->err = -ENOMEM;
	else
		r->err = ops->readdir ? ops->readdir(&list, r->ino, r->off,
						     r->fi)
				      : -ENOTDIR;
	r->out_size = list.used;
}

static void ops_list(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		     bool plus, struct fuse_file_info *fi)
{
	struct ucm_fuse_request r = {
		.size = size, .off = off, .number = plus, .fi = fi,
	};

	ucm_request_run_on_node(&r, req, UCM_OP_READDIR, serve_readdir, ino);
}

void ucm_op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		    struct fuse_file_info *fi)
{
	ops_list(req, ino, size, off, false, fi);
}

void ucm_op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
			struct fuse_file_info *fi)
{
	ops_list(req, ino, size, off, true, fi);
}

void ucm_op_releasedir(fuse_req_t req, fuse_ino_t ino,
		       struct fuse_file_info *fi)
{
	const struct ucm_node_ops *ops = ucm_node_ops_of(ino);

	ucm_handover_take(ucm_daemon_of(req));
	if (ops->releasedir)
		ops->releasedir(fi);
	fuse_reply_err(req, 0);
}

static void serve_fsyncdir(struct ucm_fuse_request *r)
{
	const struct ucm_node_ops *ops = ucm_node_ops_of(r->ino);

	if (!ops->fsyncdir) {
		r->err = 0;
		return;
	}
	r->err = ucm_wait_long(UCM_WAIT_MANY);
	if (!r->err)
		r->err = ops->fsyncdir(&r->account, r->ino);
}

void ucm_op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync,
		     struct fuse_file_info *fi)
{
	struct ucm_fuse_request r = { 0 };

	(void)datasync, (void)fi;
	ucm_request_run_on_node(&r, req, UCM_OP_FSYNC, serve_fsyncdir, ino);
}

/* ---- attributes ---- */

static void serve_getattr(struct ucm_fuse_request *r)
{
	const struct ucm_node_ops *ops = ucm_node_ops_of(r->ino);
	struct ucm_daemon *daemon = r->account.daemon;

	r->answer = UCM_ANSWER_ATTR;
	r->timeout = 0;
	r->err = ops->getattr ? ops->getattr(daemon, r->ino, &r->u.st)
			      : -ENOENT;
	if (!r->err && ops->timeout && r->u.st.st_nlink)
		r->timeout = ops->timeout(daemon);
}

void ucm_op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct ucm_fuse_request r = { 0 };

	(void)fi;
	ucm_request_run_on_node(&r, req, UCM_OP_GETATTR, serve_getattr, ino);
}

/* Times of a folder are not kept; tar and rsync set them all the same. */
static int ops_keep_attr(const struct ucm_account *account,
			 const struct ucm_node_ops *ops, fuse_ino_t ino,
			 const struct stat *attr, int to_set)
{
	struct stat now;
	int err = ops->getattr ? ops->getattr(account->daemon, ino, &now)
			       : -ENOENT;

	if (err)
		return err;
	return ucm_attr_changes_nothing(&now, attr, to_set) ? 0 : -EPERM;
}

static void serve_setattr(struct ucm_fuse_request *r)
{
	const struct ucm_node_ops *ops = ucm_node_ops_of(r->ino);
	int to_set = (int)r->number;

	r->err = ops->setattr ? ops->setattr(&r->account, r->ino, r->attr,
					     to_set)
			      : ops_keep_attr(&r->account, ops, r->ino,
					      r->attr, to_set);
	if (r->err == -EINPROGRESS)
		return;
	if (ops->note)
		ops->note(&r->account, r->ino);
	if (!r->err)
		serve_getattr(r);
}

void ucm_op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr,
		    int to_set, struct fuse_file_info *fi)
{
	struct ucm_fuse_request r = { .attr = attr, .number = (unsigned)to_set };

	(void)fi;
	ucm_request_run_on_node(&r, req, UCM_OP_SETATTR, serve_setattr, ino);
}

static void serve_readlink(struct ucm_fuse_request *r)
{
	const struct ucm_node_ops *ops = ucm_node_ops_of(r->ino);

	r->answer = UCM_ANSWER_TEXT;
	r->err = -EINVAL;
	if (!ops->readlink)
		return;
	if (!r->out)
		r->out = malloc(PATH_MAX);
	r->err = r->out ? ops->readlink(&r->account, r->ino, r->out) : -ENOMEM;
}

void ucm_op_readlink(fuse_req_t req, fuse_ino_t ino)
{
	struct ucm_fuse_request r = { 0 };

	ucm_request_run_on_node(&r, req, UCM_OP_GETATTR, serve_readlink, ino);
}

static void serve_statfs(struct ucm_fuse_request *r)
{
	const struct ucm_node_ops *ops = ucm_node_ops_of(r->ino);
	struct ucm_store *store = r->account.daemon->store;

	r->answer = UCM_ANSWER_STATFS;
	ucm_store_statvfs(store, &r->u.vfs);
	if (ops->narrow)
		ops->narrow(r->account.daemon, r->ino, &r->u.vfs);
}

void ucm_op_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct ucm_fuse_request r = { 0 };

	ucm_request_run(&r, req, UCM_OP_STATFS, serve_statfs, ino);
}
