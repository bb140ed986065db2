/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops_file.c - the FUSE operations that open a file, and on open files.
 *
 * With passthrough the kernel reads and writes the backing file itself, and
 * read and write are never called. As in ops.c, what a file is, is not known
 * here: an open file has a table of its kind.
 */
#include <config.h>

#include "fs/mount/node/kinds.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/osfile.h"
#include "fs/mount/ops/request.h"

static struct ucm_handle *file_of(const struct fuse_file_info *fi)
{
	return (struct ucm_handle *)(uintptr_t)fi->fh;
}

static struct ucm_dirs *dirs_of(const struct ucm_fuse_request *r)
{
	return &r->account.daemon->store->dirs;
}

/* For a call on its file that is not long. */
static int file_wait(const struct ucm_fuse_request *r,
		     const struct ucm_handle *file)
{
	return file->ops->in_memory ? 0 : ucm_wait_for(dirs_of(r), file->dir);
}

/* ---- open ---- */

static void serve_create(struct ucm_fuse_request *r)
{
	const struct ucm_node_ops *ops = ucm_node_ops_of(r->ino);

	r->answer = UCM_ANSWER_CREATED;
	r->err = -EPERM;
	if (strlen(r->name) > UCM_NAME_MAX)
		r->err = -ENAMETOOLONG;
	else if (ops->create)
		r->err = ops->create(&r->account, r->ino, r->name,
				     (mode_t)r->number, r->fi, &r->u.entry);
}

void ucm_op_create(fuse_req_t req, fuse_ino_t parent, const char *name,
		   mode_t mode, struct fuse_file_info *fi)
{
	struct ucm_fuse_request r = { .name = name, .number = mode, .fi = fi };

	ucm_request_run_on_node(&r, req, UCM_OP_CREATE, serve_create, parent);
}

static void serve_open(struct ucm_fuse_request *r)
{
	const struct ucm_node_ops *ops = ucm_node_ops_of(r->ino);

	r->answer = UCM_ANSWER_OPENED;
	r->err = ops->open ? ops->open(&r->account, r->ino, r->fi) : -EISDIR;
}

void ucm_op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct ucm_fuse_request r = { .fi = fi };

	ucm_request_run_on_node(&r, req, UCM_OP_OPEN, serve_open, ino);
}

/* ---- reading and writing, where the kernel does not do it itself ---- */

/* Bytes that the daemon moved, where they lie on a tier. Under file->lock. */
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
	ucm_account_file(account, file);
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

/* A block's server no longer knows the descriptor that all its opens share. What has
 * its name has its bytes. */
static ssize_t read_stale(struct ucm_fuse_request *r,
			  const struct ucm_handle *file)
{
	struct ucm_store *store = r->account.daemon->store;
	const char *folder = store->names.spaces[file->key.space]->folder;
	struct ucm_medium *medium = store->dirs.at[file->dir];
	_cleanup_file_ struct ucm_file fresh = UCM_NO_FILE;
	struct stat st;

	if (ucm_medium_open_block(medium, folder, &file->key.id, &fresh, &st) ||
	    (uint64_t)st.st_size != file->size)
		return -ESTALE;
	return ucm_file_read(&fresh, r->out, r->size, (uint64_t)r->off);
}

/* By a thread of the directory's, under its deadline. */
static int read_guarded(struct ucm_fuse_request *r,
			const struct ucm_handle *file)
{
	ssize_t got;

	r->out = malloc(r->size);
	if (!r->out)
		return -ENOMEM;
	got = ucm_os_read_at(file->fd, r->out, r->size, r->off);
	if (got == -ESTALE && file->ops->is_block && file->ops->is_final)
		got = read_stale(r, file);
	r->out_size = got > 0 ? (size_t)got : 0;
	return got < 0 ? (int)got : 0;
}

static void serve_read(struct ucm_fuse_request *r)
{
	struct ucm_handle *file = file_of(r->fi);

	r->err = file_wait(r, file);
	if (!r->err)
		r->err = ucm_handle_lock(file);
	if (r->err)
		return;
	count_moved(&r->account, file, part_there(file, r->size, r->off));
	pthread_mutex_unlock(&file->lock);
	r->answer = UCM_ANSWER_FILE;
	if (!file->ops->in_memory && dirs_of(r)->at[file->dir]->guard) {
		r->answer = UCM_ANSWER_BYTES;
		r->err = read_guarded(r, file);
	}
}

void ucm_op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		 struct fuse_file_info *fi)
{
	struct ucm_fuse_request r = { .size = size, .off = off, .fi = fi };

	ucm_request_run(&r, req, UCM_OP_READ, serve_read, ino);
}

/* What is written: of libfuse's, or copied. */
static ssize_t write_bytes(struct ucm_fuse_request *r, struct ucm_handle *file)
{
	struct fuse_bufvec copy = FUSE_BUFVEC_INIT(r->in_size);

	copy.buf[0].mem = (void *)(uintptr_t)r->in;
	return file->ops->write(r->account.daemon, file,
				r->write ? r->write : &copy, r->off);
}

static void serve_write(struct ucm_fuse_request *r)
{
	struct ucm_handle *file = file_of(r->fi);
	ssize_t done = -EBADF;

	r->answer = UCM_ANSWER_WRITTEN;
	r->err = file_wait(r, file);
	if (r->err)
		return;
	if (file->ops->write)
		done = write_bytes(r, file);
	r->err = done < 0 ? (int)done : 0;
	if (r->err)
		return;
	r->out_size = (size_t)done;
	pthread_mutex_lock(&file->lock);
	count_moved(&r->account, file, (uint64_t)done);
	pthread_mutex_unlock(&file->lock);
}

void ucm_op_write_buf(fuse_req_t req, fuse_ino_t ino, struct fuse_bufvec *in,
		      off_t off, struct fuse_file_info *fi)
{
	struct ucm_fuse_request r = { .write = in, .off = off, .fi = fi };

	ucm_request_run(&r, req, UCM_OP_WRITE, serve_write, ino);
}

static void serve_fallocate(struct ucm_fuse_request *r)
{
	struct ucm_handle *file = file_of(r->fi);

	r->err = file_wait(r, file);
	if (!r->err)
		r->err = ucm_handle_lock(file);
	if (r->err)
		return;
	r->err = file->ops->fallocate
			 ? file->ops->fallocate(r->account.daemon, file,
						(int)r->number, r->off, r->len)
			 : -EOPNOTSUPP;
	pthread_mutex_unlock(&file->lock);
}

void ucm_op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset,
		      off_t length, struct fuse_file_info *fi)
{
	struct ucm_fuse_request r = {
		.number = (unsigned)mode, .off = offset, .len = length,
		.fi = fi,
	};

	ucm_request_run(&r, req, UCM_OP_FALLOCATE, serve_fallocate, ino);
}

static void serve_lseek(struct ucm_fuse_request *r)
{
	struct ucm_handle *file = file_of(r->fi);
	off_t found;

	r->err = file_wait(r, file);
	if (r->err)
		return;
	r->answer = UCM_ANSWER_OFFSET;
	found = ucm_os_seek(file->fd, r->off, (int)r->number);
	if (found < 0)
		r->err = (int)found;
	else
		r->off = found;
}

void ucm_op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence,
		  struct fuse_file_info *fi)
{
	struct ucm_fuse_request r = {
		.off = off, .number = (unsigned)whence, .fi = fi,
	};

	ucm_request_run(&r, req, UCM_OP_LSEEK, serve_lseek, ino);
}

/* ---- flush, fsync, release ---- */

static void serve_flush(struct ucm_fuse_request *r)
{
	struct ucm_handle *file = file_of(r->fi);

	r->err = ucm_handle_lock(file);
	if (r->err)
		return;
	if (file->ops->flush)
		r->err = file->ops->flush(&r->account, file);
	if (r->err != -EINPROGRESS)
		file->refused = r->err == -EINVAL || r->err == -EFBIG;
	pthread_mutex_unlock(&file->lock);
}

void ucm_op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct ucm_fuse_request r = { .fi = fi };

	ucm_request_run(&r, req, UCM_OP_FLUSH, serve_flush, ino);
}

static void serve_fsync(struct ucm_fuse_request *r)
{
	struct ucm_handle *file = file_of(r->fi);

	r->err = 0;
	if (!file->ops->fsync)
		return;
	r->err = ucm_wait_long(file->dir);
	if (r->err)
		return;
	pthread_mutex_lock(&file->lock);
	r->err = file->ops->fsync(&r->account, file, r->number);
	pthread_mutex_unlock(&file->lock);
}

void ucm_op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync,
		  struct fuse_file_info *fi)
{
	struct ucm_fuse_request r = { .number = (unsigned)datasync, .fi = fi };

	ucm_request_run(&r, req, UCM_OP_FSYNC, serve_fsync, ino);
}

static void serve_release(struct ucm_fuse_request *r)
{
	r->err = ucm_handle_close(&r->account, file_of(r->fi));
}

void ucm_op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct ucm_fuse_request r = { .fi = fi, .answered = true };

	ucm_request_run(&r, req, UCM_OP_RELEASE, serve_release, ino);
}
