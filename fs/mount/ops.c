/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops.c - the FUSE operations on nodes: names, folders, attributes.
 *
 * Each accounts for its request, asks the table of the node's kind, and
 * replies. What a node is, is not known here.
 */
#include <config.h>

#include "fs/mount/kinds.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"

/* Ends the account. */
static void ops_reply_entry(const struct ucm_account *account, int err,
			    const struct fuse_entry_param *entry)
{
	ucm_account_end(account, err);
	if (err)
		fuse_reply_err(account->req, -err);
	else
		fuse_reply_entry(account->req, entry);
}

/* ---- names ---- */

void ucm_op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct ucm_account account = ucm_account_begin(req, UCM_OP_LOOKUP);
	const struct ucm_node_ops *ops = ucm_node_ops_of(parent);
	struct fuse_entry_param entry;
	int err = -ENOTDIR;

	if (strlen(name) > UCM_NAME_MAX)
		err = -ENAMETOOLONG;
	else if (ops->lookup)
		err = ops->lookup(&account, parent, name, &entry);
	ucm_account_end(&account, err);
	/* with node id 0: the kernel may remember that it is not there */
	if (err && (err != -ENOENT || !ops->remembers_absence))
		fuse_reply_err(req, -err);
	else
		fuse_reply_entry(req, &entry);
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

void ucm_op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name,
		  mode_t mode)
{
	struct ucm_account account = ucm_account_begin(req, UCM_OP_MKDIR);
	const struct ucm_node_ops *ops = ucm_node_ops_of(parent);
	struct fuse_entry_param entry;
	int err = -EPERM;

	if (ops->mkdir)
		err = ops->mkdir(&account, parent, name, mode, &entry);
	ops_reply_entry(&account, err, &entry);
}

void ucm_op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name,
		  mode_t mode, dev_t dev)
{
	struct ucm_account account = ucm_account_begin(req, UCM_OP_CREATE);
	const struct ucm_node_ops *ops = ucm_node_ops_of(parent);
	struct fuse_entry_param entry;
	int err = -EPERM;

	(void)dev;
	if (ops->mknod)
		err = ops->mknod(&account, parent, name, mode, &entry);
	ops_reply_entry(&account, err, &entry);
}

void ucm_op_symlink(fuse_req_t req, const char *link, fuse_ino_t parent,
		    const char *name)
{
	struct ucm_account account = ucm_account_begin(req, UCM_OP_CREATE);
	const struct ucm_node_ops *ops = ucm_node_ops_of(parent);
	struct fuse_entry_param entry;
	int err = -EPERM;

	if (ops->symlink)
		err = ops->symlink(&account, parent, name, link, &entry);
	ops_reply_entry(&account, err, &entry);
}

void ucm_op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t newparent,
		 const char *newname)
{
	(void)ino, (void)newparent, (void)newname;
	fuse_reply_err(req, EPERM);
}

void ucm_op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct ucm_account account = ucm_account_begin(req, UCM_OP_UNLINK);
	const struct ucm_node_ops *ops = ucm_node_ops_of(parent);
	int err = ops->unlink ? ops->unlink(&account, parent, name) : -EPERM;

	ucm_account_reply(&account, err);
}

void ucm_op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct ucm_account account = ucm_account_begin(req, UCM_OP_RMDIR);
	const struct ucm_node_ops *ops = ucm_node_ops_of(parent);
	int err = ops->rmdir ? ops->rmdir(&account, parent, name) : -EPERM;

	ucm_account_reply(&account, err);
}

void ucm_op_rename(fuse_req_t req, fuse_ino_t parent, const char *name,
		   fuse_ino_t newparent, const char *newname,
		   unsigned int flags)
{
	struct ucm_account account = ucm_account_begin(req, UCM_OP_RENAME);
	const struct ucm_node_ops *from = ucm_node_ops_of(parent);
	const struct ucm_node_ops *to = ucm_node_ops_of(newparent);
	int err = -EPERM;

	if (from == to && from->rename)
		err = from->rename(&account, parent, name, newparent, newname,
				   flags);
	else if (from->moved_by_copy || to->moved_by_copy)
		err = -EXDEV;
	ucm_account_reply(&account, err);
}

/* ---- folders ---- */

void ucm_op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct ucm_account account = ucm_account_begin(req, UCM_OP_OPENDIR);
	const struct ucm_node_ops *ops = ucm_node_ops_of(ino);
	int err = ops->opendir ? ops->opendir(&account, ino, fi) : 0;

	ucm_account_end(&account, err);
	if (err)
		fuse_reply_err(req, -err);
	else
		fuse_reply_open(req, fi);
}

static void ops_list(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		     bool plus, const struct fuse_file_info *fi)
{
	struct ucm_account account = ucm_account_begin(req, UCM_OP_READDIR);
	const struct ucm_node_ops *ops = ucm_node_ops_of(ino);
	_cleanup_free_ char *buffer = malloc(size);
	struct ucm_listing list = {
		.req = req,
		.daemon = account.daemon,
		.buffer = buffer,
		.size = size,
		.plus = plus,
	};
	int err = buffer ? -ENOTDIR : -ENOMEM;

	if (buffer && ops->readdir)
		err = ops->readdir(&list, ino, off, fi);
	ucm_account_end(&account, err);
	if (err)
		fuse_reply_err(req, -err);
	else
		fuse_reply_buf(req, list.buffer, list.used);
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

void ucm_op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync,
		     struct fuse_file_info *fi)
{
	struct ucm_account account = ucm_account_begin(req, UCM_OP_FSYNC);
	const struct ucm_node_ops *ops = ucm_node_ops_of(ino);
	int err = ops->fsyncdir ? ops->fsyncdir(&account, ino) : 0;

	(void)datasync, (void)fi;
	ucm_account_reply(&account, err);
}

/* ---- attributes ---- */

/* Ends the account. */
static void ops_reply_attr(const struct ucm_account *account,
			   const struct ucm_node_ops *ops, fuse_ino_t ino)
{
	double timeout = 0;
	struct stat st;
	int err = ops->getattr ? ops->getattr(account->daemon, ino, &st)
			       : -ENOENT;

	ucm_account_end(account, err);
	if (err) {
		fuse_reply_err(account->req, -err);
		return;
	}
	if (ops->timeout && st.st_nlink)
		timeout = ops->timeout(account->daemon);
	fuse_reply_attr(account->req, &st, timeout);
}

void ucm_op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct ucm_account account = ucm_account_begin(req, UCM_OP_GETATTR);

	(void)fi;
	ops_reply_attr(&account, ucm_node_ops_of(ino), ino);
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

void ucm_op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr,
		    int to_set, struct fuse_file_info *fi)
{
	struct ucm_account account = ucm_account_begin(req, UCM_OP_SETATTR);
	const struct ucm_node_ops *ops = ucm_node_ops_of(ino);
	int err = ops->setattr
			  ? ops->setattr(&account, ino, attr, to_set)
			  : ops_keep_attr(&account, ops, ino, attr, to_set);

	(void)fi;
	if (ops->note)
		ops->note(&account, ino);
	if (err)
		ucm_account_reply(&account, err);
	else
		ops_reply_attr(&account, ops, ino);
}

void ucm_op_readlink(fuse_req_t req, fuse_ino_t ino)
{
	struct ucm_account account = ucm_account_begin(req, UCM_OP_GETATTR);
	const struct ucm_node_ops *ops = ucm_node_ops_of(ino);
	char target[PATH_MAX];
	int err = -EINVAL;

	if (ops->readlink)
		err = ops->readlink(&account, ino, target);
	ucm_account_end(&account, err);
	if (err)
		fuse_reply_err(req, -err);
	else
		fuse_reply_readlink(req, target);
}

void ucm_op_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct ucm_account account = ucm_account_begin(req, UCM_OP_STATFS);
	struct statvfs st;

	(void)ino;
	ucm_store_statvfs(account.daemon->store, &st);
	ucm_account_end(&account, 0);
	fuse_reply_statfs(req, &st);
}

void ucm_op_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned cmd, void *arg,
		  struct fuse_file_info *fi, unsigned flags,
		  const void *in_buf, size_t in_size, size_t out_size)
{
	struct ucm_account account = ucm_account_begin(req, UCM_OP_IOCTL);
	const struct ucm_node_ops *ops = ucm_node_ops_of(ino);
	_cleanup_free_ void *data = NULL;
	int err = -ENOTTY;

	(void)arg, (void)fi, (void)flags;
	if (ops->ioctl)
		err = ops->ioctl(&account, ino, cmd, in_buf, in_size, out_size,
				 &data);
	ucm_account_end(&account, err);
	if (err)
		fuse_reply_err(req, -err);
	else
		fuse_reply_ioctl(req, 0, data, out_size);
}
