/* SPDX-License-Identifier: Apache-2.0 */
/*
 * osfile.h - every file system call that the store makes, returning -errno.
 *
 * One seam for four things: EINTR, paths that cannot leave a backing
 * directory, deadlines (osguard.h), and faults put in by tests. Nothing here
 * logs, except for debugging.
 */
#ifndef UCM_OSFILE_H
#define UCM_OSFILE_H

#include <dirent.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <sys/vfs.h>

struct ucm_guard;

/*
 * Tests make calls fail by setting this: it gets the name of the call ("open",
 * "link", ...) and its path (NULL if it has none) and returns 0 or the -errno
 * that the call shall return instead of being made. NULL outside of tests.
 */
extern int (*_Atomic ucm_os_fault)(const char *call, const char *path);

/*
 * All paths are below a dirfd and have less than PATH_MAX bytes: no symbolic link is
 * followed on the way, and there is no way out by "..".
 *
 * Open a path, without waiting for a FIFO's other end. Returns a descriptor
 * (close-on-exec).
 */
int ucm_os_open(int dirfd, const char *path, int flags, mode_t mode);

/* Open the file of a descriptor once more, in another mode. */
int ucm_os_reopen(int fd, int flags);

/*
 * Close a descriptor; -1 is none. Under guard this does not wait: the file is
 * closed by a thread of the guard's when the server answers, or with the
 * process. What close(2) may have to report is asked for before, by
 * ucm_os_flush(). errno stays as it is.
 */
void ucm_os_close(int fd);

/* A directory by its path, wherever that leads; under guard, if that is not
 * NULL, as are the calls on it and below it from then on. The path without
 * links, to free: NULL in *path_out if it cannot be had. */
int ucm_os_open_root(struct ucm_guard *guard, const char *path);
int ucm_os_stat_root(struct ucm_guard *guard, const char *path,
		     struct stat *out);
int ucm_os_real_path(struct ucm_guard *guard, const char *path,
		     char **path_out);

/* A file in memory, without a guard. It can be sealed (fcntl(2)). Another user that
 * is given a descriptor cannot open it again. */
int ucm_os_memory_file(const char *name);
/* One of that length, of zeros: sealed, so that nobody makes it shorter, which
 * would kill whoever has mapped it, or longer. */
int ucm_os_memory_of(const char *name, size_t len);

/* The same, and the file must be a regular one: -ENXIO if it is not. */
int ucm_os_open_regular(int dirfd, const char *path, int flags,
			struct stat *stat_out);

int ucm_os_stat(int dirfd, const char *path, struct stat *out); /* no follow */
/* The same as its server has it now. Of a folder: names in it that were thought to be
 * absent are looked up again, too. */
int ucm_os_stat_now(int dirfd, const char *path, struct stat *out);
int ucm_os_fstat(int fd, struct stat *out);
/* What the server says of a file, or of a folder's names, counts from now on: an NFS
 * client answers for up to a minute from what it knew. */
int ucm_os_refresh(int fd);
/* The names in a directory, without "." and "..", each with its NUL, an empty
 * one at the end; to free. */
int ucm_os_list(int dirfd, const char *path, char **names_out);
/* The same, as readdir(3) gives them: each has d_reclen bytes and stands right
 * after the one before; d_reclen 0 is the end. To free. */
int ucm_os_list_entries(int dirfd, const char *path, struct dirent **out);

int ucm_os_mkdir(int dirfd, const char *path, mode_t mode);
int ucm_os_rmdir(int dirfd, const char *path);
int ucm_os_unlink(int dirfd, const char *path);
/* What the link says is never followed here. */
int ucm_os_symlink(const char *target, int dirfd, const char *path);
/* As a string; a path of "" is the descriptor's own link (O_PATH). -EINVAL: it
 * is no link; -ENAMETOOLONG if it does not fit with its NUL. */
int ucm_os_readlink(int dirfd, const char *path, char *text, size_t size);
/* from: NULL: of the file that from_dirfd is a descriptor of. */
int ucm_os_link(int from_dirfd, const char *from, int to_dirfd, const char *to);
int ucm_os_rename(int from_dirfd, const char *from, int to_dirfd,
		  const char *to);
/* flags: as for renameat2(2). */
int ucm_os_rename_in(int dirfd, const char *from, const char *to,
		     unsigned flags);
/* Of a name that nobody else can make a symbolic link. */
int ucm_os_chmod(int dirfd, const char *path, mode_t mode);
/* These three also of a descriptor that is O_PATH; the first two also of a
 * symbolic link. */
int ucm_os_utimens(int fd, const struct timespec times[2]);
int ucm_os_fchown(int fd, uid_t uid, gid_t gid);
int ucm_os_fchmod(int fd, mode_t mode);
/* Folders made in that one from now on are far from each other on the disk, as are
 * their files. -errno where the file system has no such flag. */
int ucm_os_spread(int fd);
/* Extended attributes, also of a descriptor that is O_PATH: the length, or the
 * length that is needed where size is 0. value NULL: it is removed. */
int ucm_os_getxattr(int fd, const char *name, void *value, size_t size);
int ucm_os_setxattr(int fd, const char *name, const void *value, size_t size,
		    int flags);
int ucm_os_listxattr(int fd, char *names, size_t size);
int ucm_os_truncate(int fd, off_t size);
int ucm_os_fallocate(int fd, int mode, off_t offset, off_t length);
int ucm_os_statvfs(int fd, struct statvfs *out);
int ucm_os_statfs(int fd, struct statfs *out); /* the same, and its type */
off_t ucm_os_seek(int fd, off_t offset, int whence); /* lseek(2) */
/* posix_fadvise(2): a hint, and yet it may read or write, and so hang. */
int ucm_os_advise(int fd, off_t offset, off_t length, int advice);
/* Bytes of a file (len 0: all from there on), for writing, by this open file; does
 * not wait: -EAGAIN, -EACCES. */
int ucm_os_lock(int fd, off_t offset, off_t len);
/* The first byte of a lock that somebody else has on some of them; -ENOENT: nobody
 * has. */
off_t ucm_os_find_lock(int fd, off_t offset, off_t len);

/* What close(2) of this file would say; the descriptor stays open. Network file
 * systems write what is left to be written, and report errors, only then. */
int ucm_os_flush(int fd);

int ucm_os_fdatasync(int fd);
int ucm_os_fsync(int fd);
int ucm_os_syncfs(int fd);
int ucm_os_sync_dir(int dirfd, const char *path); /* fsync of a directory */

/* Read until len bytes or the end of the file: the number of bytes, or
 * -errno. */
ssize_t ucm_os_read_at(int fd, void *buffer, size_t len, off_t offset);

/* Write all of it: 0 or -errno. */
int ucm_os_write_at(int fd, const void *buffer, size_t len, off_t offset);

/* Make a small file whole or not at all (temporary, fsync, rename). */
int ucm_os_replace_file(int dirfd, const char *path, const void *bytes,
			size_t len);

/* Read a small file as a string; -EFBIG if it does not fit with its NUL. */
int ucm_os_read_file(int dirfd, const char *path, char *text, size_t size);

#endif
