/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops_file.c - the FUSE operations that open a file, and on open files.
 *
 * With passthrough the kernel reads and writes the backing file itself, and
 * read and write are never called. As in ops.c, what a file is, is not known
 * here: an open file has a table of its kind.
 */
#include <config.h>

#include "fs/mount/kinds.h"

#include <errno.h>
#include <string.h>

#include "common/log.h"
#include "common/osfile.h"

static struct ucm_handle *file_of(const struct fuse_file_info *fi)
{
	return (struct ucm_handle *)(uintptr_t)fi->fh;
}

/* ---- open ---- */

void ucm_op_create(fuse_req_t req, fuse_ino_t parent, const char *name,
		   mode_t mode, struct fuse_file_info *fi)
{
	struct ucm_account account = ucm_account_begin(req, UCM_OP_CREATE);
	const struct ucm_node_ops *ops = ucm_node_ops_of(parent);
	struct fuse_entry_param entry;
	int err = -EPERM;

	if (strlen(name) > UCM_NAME_MAX)
		err = -ENAMETOOLONG;
	else if (ops->create)
		err = ops->create(&account, parent, name, mode, fi, &entry);
	ucm_account_end(&account, err);
	if (err) {
		fuse_reply_err(req, -err);
	} else if (fuse_reply_create(req, &entry, fi) == -ENOENT) {
		/* interrupted: the kernel has no such open. req is gone, and
		 * with it the way to close the backing id; its descriptor and
		 * the file go at the end of the mount. */
		ucm_debug(OP, 1, "create interrupted");
	}
}

void ucm_op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct ucm_account account = ucm_account_begin(req, UCM_OP_OPEN);
	const struct ucm_node_ops *ops = ucm_node_ops_of(ino);
	int err = ops->open ? ops->open(&account, ino, fi) : -EISDIR;

	ucm_account_end(&account, err);
	if (err)
		fuse_reply_err(req, -err);
	else
		fuse_reply_open(req, fi);
}

/* ---- reading and writing, where the kernel does not do it itself ---- */

/* Bytes that the daemon moved, where they lie on a tier. */
static void count_moved(struct ucm_account *account, struct ucm_handle *file,
			uint64_t bytes)
{
	struct ucm_tier_stats *stats;

	if (file->ops->in_memory)
		return;
	stats = &account->daemon->store->dirs.tier_of[file->dir]->stats;
	ucm_count_more(account->op == UCM_OP_READ ? &stats->read_bytes
						  : &stats->written_bytes,
		       bytes);
	pthread_mutex_lock(&file->lock);
	ucm_account_file(account, file);
	pthread_mutex_unlock(&file->lock);
	account->bytes = bytes;
}

/* How much of it there is, of a block; the kernel asks for whole pages. */
static uint64_t part_there(const struct ucm_handle *file, size_t size,
			   off_t off)
{
	uint64_t from = (uint64_t)off;

	if (!file->ops->is_final)
		return size;
	if (from >= file->size)
		return 0;
	return file->size - from < size ? file->size - from : size;
}

void ucm_op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		 struct fuse_file_info *fi)
{
	struct ucm_account account = ucm_account_begin(req, UCM_OP_READ);
	struct fuse_bufvec out = FUSE_BUFVEC_INIT(size);
	struct ucm_handle *file = file_of(fi);

	(void)ino;
	count_moved(&account, file, part_there(file, size, off));
	out.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK |
			   FUSE_BUF_FD_RETRY;
	out.buf[0].fd = file->fd;
	out.buf[0].pos = off;
	ucm_handover_give(account.daemon);
	/* it reads and replies in one, and reports no failure of the file */
	fuse_reply_data(req, &out, FUSE_BUF_SPLICE_MOVE);
	ucm_account_end(&account, 0);
}

void ucm_op_write_buf(fuse_req_t req, fuse_ino_t ino, struct fuse_bufvec *in,
		      off_t off, struct fuse_file_info *fi)
{
	struct ucm_account account = ucm_account_begin(req, UCM_OP_WRITE);
	struct ucm_handle *file = file_of(fi);
	ssize_t done = -EBADF;

	(void)ino;
	if (file->ops->write)
		done = file->ops->write(account.daemon, file, in, off);
	if (done < 0) {
		ucm_account_reply(&account, (int)done);
		return;
	}
	count_moved(&account, file, (uint64_t)done);
	ucm_account_end(&account, 0);
	fuse_reply_write(req, (size_t)done);
}

void ucm_op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset,
		      off_t length, struct fuse_file_info *fi)
{
	struct ucm_account account = ucm_account_begin(req, UCM_OP_FALLOCATE);
	struct ucm_handle *file = file_of(fi);
	int err = -EOPNOTSUPP;

	(void)ino;
	pthread_mutex_lock(&file->lock);
	if (file->ops->fallocate)
		err = file->ops->fallocate(account.daemon, file, mode, offset,
					   length);
	pthread_mutex_unlock(&file->lock);
	ucm_account_reply(&account, err);
}

void ucm_op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence,
		  struct fuse_file_info *fi)
{
	struct ucm_account account = ucm_account_begin(req, UCM_OP_LSEEK);
	off_t found = ucm_os_seek(file_of(fi)->fd, off, whence);

	(void)ino;
	ucm_account_end(&account, found < 0 ? (int)found : 0);
	if (found < 0)
		fuse_reply_err(req, (int)-found);
	else
		fuse_reply_lseek(req, found);
}

/* ---- flush, fsync, release ---- */

void ucm_op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct ucm_account account = ucm_account_begin(req, UCM_OP_FLUSH);
	struct ucm_handle *file = file_of(fi);
	int err = 0;

	(void)ino;
	pthread_mutex_lock(&file->lock);
	if (file->ops->flush)
		err = file->ops->flush(&account, file);
	file->refused = err == -EINVAL || err == -EFBIG;
	pthread_mutex_unlock(&file->lock);
	ucm_account_reply(&account, err);
}

void ucm_op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync,
		  struct fuse_file_info *fi)
{
	struct ucm_account account = ucm_account_begin(req, UCM_OP_FSYNC);
	struct ucm_handle *file = file_of(fi);
	int err = 0;

	(void)ino;
	pthread_mutex_lock(&file->lock);
	if (file->ops->fsync)
		err = file->ops->fsync(&account, file, datasync);
	pthread_mutex_unlock(&file->lock);
	ucm_account_reply(&account, err);
}

void ucm_op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct ucm_account account = ucm_account_begin(req, UCM_OP_RELEASE);

	(void)ino;
	ucm_handle_close(&account, file_of(fi));
	ucm_account_reply(&account, 0);
}
