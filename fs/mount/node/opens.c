/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opens.c - the opens of an inode: one descriptor for all of them, and the
 * backing id by which the kernel reaches it.
 *
 * With passthrough the kernel reads and writes that descriptor itself, and all
 * opens of an inode must agree about it: it is registered at the first open and
 * taken back at the last close. What a file is, and what its last close means,
 * is not known here.
 */
#include <config.h>

#include "fs/mount/node/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/osfile.h"
#include "common/osguard.h"

/* One directory's file system may be stacked too deep; others go on. */
static void opens_give_up(struct ucm_daemon *daemon, unsigned dir)
{
	if (atomic_exchange(&daemon->refused[dir], true))
		return;
	ucm_warning("%s: passthrough off: the kernel refused a backing file "
		    "(it needs CAP_SYS_ADMIN and a file system that is not "
		    "itself stacked too deep)",
		    daemon->store->dirs.at[dir]->path);
	if (atomic_fetch_add(&daemon->num_refused, 1) + 1 <
	    daemon->store->dirs.num)
		return;
	daemon->passthrough_why = "the kernel refused a backing file";
	atomic_store(&daemon->passthrough, false);
}

/* Does an error say something of the file system, or of us? Else it is of the
 * moment: the next file may find enough memory. */
static bool opens_is_refusal(int err)
{
	switch (err) {
	case -EPERM:      /* no CAP_SYS_ADMIN, or no passthrough */
	case -ELOOP:      /* stacked too deep */
	case -EINVAL:     /* no file that can be one */
	case -EOPNOTSUPP: /* built without */
	case -ENOTTY: case -ENOSYS:
		return true;
	default:
		return false;
	}
}

/* A backing id or -errno; libfuse logs why. */
static int opens_register(fuse_req_t req, int fd)
{
	int id;

	errno = 0;
	id = fuse_passthrough_open(req, fd);
	return id > 0 ? id : -(errno ? errno : EIO);
}

/* If it fails for now, all opens until the last close do without, as the kernel
 * asks. */
void ucm_handle_attach(fuse_req_t req, struct ucm_handle *file)
{
	struct ucm_daemon *daemon = ucm_daemon_of(req);
	int id;

	file->backing_id = 0;
	if (!ucm_handle_wants_backing(daemon, file))
		return;
	id = opens_register(req, file->fd);
	if (id > 0)
		file->backing_id = id;
	else if (opens_is_refusal(id))
		opens_give_up(daemon, file->dir);
}

void ucm_handle_count_open(struct ucm_handle *file, struct fuse_file_info *fi)
{
	file->opens++;
	if ((fi->flags & O_ACCMODE) == O_RDWR)
		file->temp.shared = true;
	fi->fh = (uintptr_t)file;
	fi->backing_id = file->backing_id;
	fi->noflush = !ucm_open_writes(fi);
	fi->keep_cache = !file->backing_id && file->ops->is_final;
	fi->direct_io = file->ops->in_memory;
}

int ucm_handle_close(struct ucm_account *account, struct ucm_handle *file)
{
	struct ucm_daemon *daemon = account->daemon;
	int err = ucm_handle_lock(file);

	if (err)
		return err;
	if (file->opens == 1 && file->ops->last_close)
		err = file->ops->last_close(account, file);
	if (!err) {
		file->touched_ms = ucm_monotonic_ms();
		if (file->open.ref)
			ucm_hold_close(&file->open);
		if (--file->opens == 0)
			ucm_handle_close_file(daemon, file);
		ucm_account_file(account, file);
	}
	pthread_mutex_unlock(&file->lock);
	if (!err)
		ucm_handle_put(daemon, file);
	return err;
}

int ucm_handle_created(struct ucm_account *account, struct ucm_handle *file,
		       struct fuse_entry_param *out)
{
	struct stat st;
	int err;

	/* The name is asked for anew each time. The attributes are the inode's
	 * alone, and the kernel drops them itself when it writes: remembering
	 * them spares a GETATTR for the permission check of this very open. */
	*out = (struct fuse_entry_param){
		.ino = file->node,
		.generation = 1,
		.attr_timeout = 1.0,
	};
	pthread_mutex_lock(&file->lock);
	err = ucm_os_fstat(file->fd, &st);
	if (!err)
		ucm_attr_file(account->daemon, file->key.space, file->node,
			      &st, &out->attr);
	ucm_account_file(account, file);
	pthread_mutex_unlock(&file->lock);
	if (err) {
		bool was = ucm_must_not_wait;

		ucm_must_not_wait = false; /* it is there, and must go */
		ucm_handle_close(account, file);
		ucm_must_not_wait = was;
	}
	return err;
}

/* Under the directory's deadline, from memory. */
static ssize_t opens_write_guarded(struct ucm_handle *file,
				   struct fuse_bufvec *in, off_t off)
{
	size_t size = fuse_buf_size(in);
	struct fuse_bufvec copy = FUSE_BUFVEC_INIT(size);
	_cleanup_free_ void *bytes = NULL;
	int err;

	if (in->count == 1 && !(in->buf[0].flags & FUSE_BUF_IS_FD)) {
		err = ucm_os_write_at(file->fd, in->buf[0].mem, size, off);
		return err ? err : (ssize_t)size;
	}
	copy.buf[0].mem = bytes = malloc(size);
	if (!bytes)
		return -ENOMEM;
	if (fuse_buf_copy(&copy, in, 0) != (ssize_t)size)
		return -EIO;
	err = ucm_os_write_at(file->fd, bytes, size, off);
	return err ? err : (ssize_t)size;
}

ssize_t ucm_handle_write(struct ucm_daemon *daemon, struct ucm_handle *file,
			 struct fuse_bufvec *in, off_t off)
{
	struct fuse_bufvec out = FUSE_BUFVEC_INIT(fuse_buf_size(in));

	if (!file->ops->in_memory && daemon->store->dirs.at[file->dir]->guard)
		return opens_write_guarded(file, in, off);
	out.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK |
			   FUSE_BUF_FD_RETRY;
	out.buf[0].fd = file->fd;
	out.buf[0].pos = off;
	return fuse_buf_copy(&out, in, FUSE_BUF_SPLICE_NONBLOCK);
}

int ucm_handle_sync(const struct ucm_handle *file, bool datasync)
{
	return datasync ? ucm_os_fdatasync(file->fd) : ucm_os_fsync(file->fd);
}
