/* SPDX-License-Identifier: Apache-2.0 */
/* osfile.c - file system calls, returning -errno; see osfile.h. */
#include <config.h>

#include "common/osfile.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/cleanup.h"

int (*ucm_os_fault)(const char *call, const char *path);

/* The injected error, if a test asks for one. */
static int fault(const char *call, const char *path)
{
	return __builtin_expect(!!ucm_os_fault, 0) ? ucm_os_fault(call, path)
						   : 0;
}

static int result(int rc)
{
	return rc < 0 ? -errno : 0;
}

int ucm_os_open(int dirfd, const char *path, int flags, mode_t mode)
{
	struct open_how how = {
		.flags = (uint64_t)(flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK),
		.mode = flags & O_CREAT ? mode : 0,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS |
			   RESOLVE_NO_MAGICLINKS,
	};
	long fd;
	int err = fault("open", path);

	if (err)
		return err;
	/* -EAGAIN: a rename or mount raced with the check of the path */
	do {
		fd = syscall(SYS_openat2, dirfd, path, &how, sizeof(how));
	} while (fd < 0 && (errno == EINTR || errno == EAGAIN));
	return fd < 0 ? -errno : (int)fd;
}

int ucm_os_open_regular(int dirfd, const char *path, int flags,
			struct stat *stat_out)
{
	int fd = ucm_os_open(dirfd, path, flags, 0);
	int err;

	if (fd < 0)
		return fd;
	err = ucm_os_fstat(fd, stat_out);
	if (!err && !S_ISREG(stat_out->st_mode))
		err = -ENXIO;
	if (err) {
		close(fd);
		return err;
	}
	return fd;
}

int ucm_os_stat(int dirfd, const char *path, struct stat *out)
{
	int err = fault("stat", path);

	return err ? err : result(fstatat(dirfd, path, out, AT_SYMLINK_NOFOLLOW));
}

int ucm_os_fstat(int fd, struct stat *out)
{
	int err = fault("fstat", NULL);

	return err ? err : result(fstat(fd, out));
}

int ucm_os_mkdir(int dirfd, const char *path, mode_t mode)
{
	int err = fault("mkdir", path);

	return err ? err : result(mkdirat(dirfd, path, mode));
}

int ucm_os_rmdir(int dirfd, const char *path)
{
	int err = fault("rmdir", path);

	return err ? err : result(unlinkat(dirfd, path, AT_REMOVEDIR));
}

int ucm_os_unlink(int dirfd, const char *path)
{
	int err = fault("unlink", path);

	return err ? err : result(unlinkat(dirfd, path, 0));
}

int ucm_os_link(int from_dirfd, const char *from, int to_dirfd, const char *to)
{
	int err = fault("link", to);

	return err ? err : result(linkat(from_dirfd, from, to_dirfd, to, 0));
}

int ucm_os_rename(int from_dirfd, const char *from, int to_dirfd,
		  const char *to)
{
	int err = fault("rename", to);

	return err ? err : result(renameat(from_dirfd, from, to_dirfd, to));
}

int ucm_os_utimens(int fd, const struct timespec times[2])
{
	int err = fault("utimens", NULL);

	return err ? err : result(futimens(fd, times));
}

int ucm_os_fchmod(int fd, mode_t mode)
{
	int err = fault("fchmod", NULL);

	return err ? err : result(fchmod(fd, mode));
}

int ucm_os_fchown(int fd, uid_t uid, gid_t gid)
{
	int err = fault("fchown", NULL);

	return err ? err : result(fchown(fd, uid, gid));
}

int ucm_os_truncate(int fd, off_t size)
{
	int err = fault("truncate", NULL);

	return err ? err : result(ftruncate(fd, size));
}

int ucm_os_fallocate(int fd, int mode, off_t offset, off_t length)
{
	int err = fault("fallocate", NULL);

	return err ? err : result(fallocate(fd, mode, offset, length));
}

int ucm_os_statvfs(int fd, struct statvfs *out)
{
	int err = fault("statvfs", NULL);

	return err ? err : result(fstatvfs(fd, out));
}

int ucm_os_fdatasync(int fd)
{
	int err = fault("fdatasync", NULL);

	return err ? err : result(fdatasync(fd));
}

int ucm_os_fsync(int fd)
{
	int err = fault("fsync", NULL);

	return err ? err : result(fsync(fd));
}

int ucm_os_syncfs(int fd)
{
	int err = fault("syncfs", NULL);

	return err ? err : result(syncfs(fd));
}

ssize_t ucm_os_read_at(int fd, void *buffer, size_t len, off_t offset)
{
	size_t done = 0;
	int err = fault("read", NULL);

	if (err)
		return err;
	while (done < len) {
		ssize_t got = pread(fd, (char *)buffer + done, len - done,
				    offset + (off_t)done);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -errno;
		if (got == 0)
			break;
		done += (size_t)got;
	}
	return (ssize_t)done;
}

int ucm_os_write_at(int fd, const void *buffer, size_t len, off_t offset)
{
	size_t done = 0;
	int err = fault("write", NULL);

	if (err)
		return err;
	while (done < len) {
		ssize_t put = pwrite(fd, (const char *)buffer + done,
				     len - done, offset + (off_t)done);

		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0)
			return -errno;
		done += (size_t)put;
	}
	return 0;
}

int ucm_os_replace_file(int dirfd, const char *path, const void *bytes,
			size_t len)
{
	_cleanup_fd_ int fd = -1;
	char temp[256];
	int err;

	if ((size_t)snprintf(temp, sizeof(temp), "%s.new", path) >= sizeof(temp))
		return -ENAMETOOLONG;
	fd = ucm_os_open(dirfd, temp, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	if (fd < 0)
		return fd;
	err = ucm_os_write_at(fd, bytes, len, 0);
	if (!err)
		err = ucm_os_fsync(fd);
	if (!err)
		err = ucm_os_rename(dirfd, temp, dirfd, path);
	if (err)
		unlinkat(dirfd, temp, 0);
	return err;
}

int ucm_os_read_file(int dirfd, const char *path, char *text, size_t size)
{
	_cleanup_fd_ int fd = -1;
	struct stat st;
	ssize_t got;

	fd = ucm_os_open_regular(dirfd, path, O_RDONLY, &st);
	if (fd < 0)
		return fd;
	got = ucm_os_read_at(fd, text, size, 0);
	if (got < 0)
		return (int)got;
	if ((size_t)got >= size)
		return -EFBIG;
	text[got] = '\0';
	return 0;
}
