/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file.c - open files of media; see medium.h.
 *
 * A file with a descriptor is used by it, whatever its medium: so an open, a
 * read and a stat of a local block cost what they cost without a medium between.
 */
#include <config.h>

#include "fs/medium/medium.h"

#include <errno.h>
#include <fcntl.h>

#include "common/osfile.h"
#include "fs/block/verify.h"

ssize_t ucm_file_read(const struct ucm_file *file, void *buffer, size_t len,
		      uint64_t offset)
{
	return file->fd >= 0
		       ? ucm_os_read_at(file->fd, buffer, len, (off_t)offset)
		       : file->medium->ops->files->read(file, buffer, len,
							offset);
}

int ucm_file_write(const struct ucm_file *file, const void *bytes, size_t len,
		   uint64_t offset)
{
	return file->fd >= 0
		       ? ucm_os_write_at(file->fd, bytes, len, (off_t)offset)
		       : file->medium->ops->files->write(file, bytes, len,
							 offset);
}

int ucm_file_stat(const struct ucm_file *file, struct stat *out)
{
	return file->fd >= 0 ? ucm_os_fstat(file->fd, out)
			     : file->medium->ops->files->stat(file, out);
}

int ucm_file_set_times(const struct ucm_file *file,
		       const struct timespec times[2])
{
	return file->fd >= 0
		       ? ucm_os_utimens(file->fd, times)
		       : file->medium->ops->files->set_times(file, times);
}

int ucm_file_sync(const struct ucm_file *file, enum ucm_sync what)
{
	static int (*const calls[])(int fd) = {
		[UCM_SYNC_FLUSH] = ucm_os_flush,
		[UCM_SYNC_DATA] = ucm_os_fdatasync,
		[UCM_SYNC_ALL] = ucm_os_fsync,
	};

	if (file->medium && file->medium->flags & UCM_MEDIUM_VOLATILE)
		return 0;
	return file->fd >= 0 ? calls[what](file->fd)
			     : file->medium->ops->files->sync(file, what);
}

/* The advice drops what is clean, and begins to write what is not. */
void ucm_file_start_writing(const struct ucm_file *file)
{
	if (file->fd >= 0)
		ucm_os_advise(file->fd, 0, 0, POSIX_FADV_DONTNEED);
}

void ucm_file_want(const struct ucm_file *file, size_t len)
{
	if (file->fd >= 0)
		ucm_os_advise(file->fd, 0, (off_t)len, POSIX_FADV_WILLNEED);
}

/* Reads of this descriptor are no use of the file. Only its owner and root may ask for
 * that; of what others read, the file system changes the time as it likes. */
static void leave_times(const struct ucm_file *file)
{
	int flags = file->fd >= 0 ? fcntl(file->fd, F_GETFL) : -1;

	if (flags >= 0)
		fcntl(file->fd, F_SETFL, flags | O_NOATIME);
}

/* The same file, so that reads see what the disk has and no cache; -EINVAL: not in
 * this way, as without a descriptor, where the medium itself is read. */
static int file_uncached(const struct ucm_file *file, struct ucm_file *out)
{
	int fd;

	if (file->fd < 0)
		return -EINVAL;
	fd = ucm_os_reopen(file->fd, O_RDONLY | O_DIRECT);
	if (fd < 0)
		return fd;
	*out = ucm_file_of(file->medium, fd);
	leave_times(out);
	return 0;
}

/* What has not been written yet is written before. */
static int file_leave_cache(const struct ucm_file *file)
{
	int err = ucm_file_sync(file, UCM_SYNC_DATA);

	if (!err && file->fd >= 0)
		ucm_os_advise(file->fd, 0, 0, POSIX_FADV_DONTNEED);
	return err;
}

void ucm_file_close(struct ucm_file *file)
{
	int saved = errno;

	if (file->fd >= 0)
		ucm_os_close(file->fd);
	else if (file->object)
		file->medium->ops->files->close(file);
	*file = UCM_NO_FILE;
	errno = saved;
}

static ssize_t medium_read_bytes(const struct ucm_bytes *bytes, void *buffer,
				 size_t len, uint64_t offset)
{
	return ucm_file_read(bytes->from, buffer, len, offset);
}

struct ucm_bytes ucm_file_bytes(const struct ucm_file *file)
{
	if (file->fd >= 0)
		return ucm_bytes_of_fd(file->fd);
	return (struct ucm_bytes){ .read = medium_read_bytes, .from = file };
}

/* ---- all of a block ---- */

/* The bytes of a file, which are paid for. */
struct paced {
	struct ucm_bytes bytes, of;
	int (*pay)(void *arg, size_t bytes);
	void *arg;
};

static ssize_t read_paced(const struct ucm_bytes *bytes, void *buffer,
			  size_t len, uint64_t offset)
{
	const struct paced *paced = bytes->from;
	ssize_t got = paced->of.read(&paced->of, buffer, len, offset);
	int err = got > 0 ? paced->pay(paced->arg, (size_t)got) : 0;

	return err ? err : got;
}

static int verify_file(const struct ucm_file *file, const struct stat *st,
		       const struct ucm_id *id,
		       int (*pay)(void *arg, size_t bytes), void *arg,
		       struct ucm_block *block, enum ucm_fault *fault,
		       uint32_t *plane)
{
	struct paced paced = {
		.bytes = { .read = read_paced, .from = &paced, .fd = -1 },
		.of = ucm_file_bytes(file),
		.pay = pay,
		.arg = arg,
	};

	return ucm_verify_whole(pay ? &paced.bytes : &paced.of,
				(uint64_t)st->st_size, id, block, fault, plane);
}

/* The page cache may have good bytes that never came to the disk, so it is not
 * asked. Where there is no O_DIRECT it is made to forget the file: what has
 * been written is written back before, and what is mapped stays. */
int ucm_file_verify(const struct ucm_file *file, const struct stat *st,
		    const struct ucm_id *id,
		    int (*pay)(void *arg, size_t bytes), void *arg,
		    struct ucm_block *block, enum ucm_fault *fault,
		    uint32_t *plane)
{
	_cleanup_file_ struct ucm_file direct = UCM_NO_FILE;
	int err = file_uncached(file, &direct);

	if (!err)
		err = verify_file(&direct, st, id, pay, arg, block, fault,
				  plane);
	if (err != -EINVAL)
		return err;
	leave_times(file);
	err = file_leave_cache(file);
	return err ? err
		   : verify_file(file, st, id, pay, arg, block, fault, plane);
}
