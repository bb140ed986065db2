/* SPDX-License-Identifier: Apache-2.0 */
/*
 * osfile.c - file system calls, returning -errno.
 *
 * Each call comes in two parts: do_x() makes it; ucm_os_x() has it made by a
 * guard's thread if the descriptor is under guard (osguard.h), else makes it
 * at once. A guarded call works on copies of everything, because its caller
 * may be gone when it returns.
 */
#include <config.h>

#include "common/osfile.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "common/align.h"
#include "common/cleanup.h"
#include "common/log.h"
#include "common/osguard.h"

int (*_Atomic ucm_os_fault)(const char *call, const char *path);

#define PATH_ROOM PATH_MAX
#define BUFFER_ALIGN 4096 /* for O_DIRECT */

enum what {
	DO_OPEN, DO_STAT, DO_FSTAT, DO_MKDIR, DO_RMDIR, DO_UNLINK, DO_LINK,
	DO_RENAME, DO_UTIMENS, DO_FCHMOD, DO_FCHOWN, DO_TRUNCATE, DO_FALLOCATE,
	DO_STATVFS, DO_FDATASYNC, DO_FSYNC, DO_SYNCFS, DO_READ, DO_WRITE,
	DO_LIST, DO_ENTRIES, DO_REOPEN, DO_SEEK, DO_FLUSH,
	DO_LOCK, DO_FIND_LOCK, DO_CHMOD, DO_SYMLINK, DO_READLINK, DO_ADVISE, DO_CLOSE,
	DO_STATFS, DO_OPEN_ROOT, DO_STAT_ROOT, DO_REAL_PATH,
	DO_GET_XATTR, DO_SET_XATTR, DO_LIST_XATTR, DO_REFRESH, DO_SPREAD,
	DO_CALLS
};

/* All that any of the calls needs, and where its outputs go. */
struct args {
	enum what what;
	int fd, fd2;
	const char *path, *path2; /* path2 of a link: what it says */
	int flags;
	mode_t mode;
	uid_t uid;
	gid_t gid;
	off_t offset, length;
	struct timespec times[2];
	bool has_times;
	void *buffer; /* read, readlink, write, an attribute */
	bool once;    /* a short write is an error */
	struct stat *stat_out;
	struct statvfs *statvfs_out;
	struct statfs *statfs_out;
	char **names_out;
	struct ucm_guard *guard; /* where no descriptor has it */
};

static const char *const call_names[DO_CALLS] = {
	"open", "stat", "fstat", "mkdir", "rmdir", "unlink", "link", "rename",
	"utimens", "fchmod", "fchown", "truncate", "fallocate", "statvfs",
	"fdatasync", "fsync", "syncfs", "read", "write", "list", "list",
	"reopen", "seek", "flush", "lock", "find lock", "chmod",
	"symlink", "readlink", "advise", "close", "statfs", "open root", "stat root",
	"real path", "getxattr", "setxattr", "listxattr", "refresh", "spread",
};

static long open_beneath(int dirfd, const char *path, int flags, mode_t mode)
{
	struct open_how how = {
		.flags = (uint64_t)(flags | O_CLOEXEC | O_NOFOLLOW),
		.mode = flags & O_CREAT ? mode : 0,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS |
			   RESOLVE_NO_MAGICLINKS,
	};
	long fd;

	/* -EAGAIN: a rename or mount raced with the check of the path */
	do {
		fd = syscall(SYS_openat2, dirfd, path, &how, sizeof(how));
	} while (fd < 0 && (errno == EINTR || errno == EAGAIN));
	return fd < 0 ? -errno : fd;
}

static long do_open(const struct args *a)
{
	int flags = a->flags & O_PATH ? a->flags : a->flags | O_NONBLOCK;

	return open_beneath(a->fd, a->path, flags, a->mode);
}

/*
 * The calls other than openat2 would follow a link in the middle of a path: so
 * they get the last folder's descriptor, opened as above, and a plain name.
 */
struct place {
	int dirfd;
	const char *name;
	int opened; /* to close, or -1 */
};

static long place_open(int dirfd, const char *path, struct place *out)
{
	const char *slash = strrchr(path, '/');
	char folder[PATH_ROOM];
	long fd;

	*out = (struct place){ .dirfd = dirfd, .name = path, .opened = -1 };
	if (!slash)
		return 0;
	if ((size_t)(slash - path) >= sizeof(folder))
		return -ENAMETOOLONG;
	memcpy(folder, path, (size_t)(slash - path));
	folder[slash - path] = '\0';
	fd = open_beneath(dirfd, folder, O_PATH | O_DIRECTORY, 0);
	if (fd < 0)
		return fd;
	*out = (struct place){ .dirfd = (int)fd,
			       .name = slash + 1,
			       .opened = (int)fd };
	return 0;
}

/* O_PATH: this tells no server. */
static void place_close(struct place *place)
{
	if (place->opened >= 0)
		close(place->opened);
}

static long result(int rc)
{
	return rc < 0 ? -errno : 0;
}

static long read_link(const struct args *a, const struct place *at)
{
	ssize_t len = readlinkat(at->dirfd, at->name, a->buffer,
				 (size_t)a->length);

	if (len < 0) /* "" is a link's own descriptor, or none is there */
		return errno == ENOENT && !*at->name ? -EINVAL : -errno;
	return len < a->length ? len : -ENAMETOOLONG;
}

static long by_name(const struct args *a, const struct place *at)
{
	switch (a->what) {
	case DO_STAT:
		return result(fstatat(at->dirfd, at->name, a->stat_out,
				      AT_SYMLINK_NOFOLLOW | a->flags));
	case DO_MKDIR: return result(mkdirat(at->dirfd, at->name, a->mode));
	case DO_CHMOD:
		return result(fchmodat(at->dirfd, at->name, a->mode, 0));
	case DO_SYMLINK: return result(symlinkat(a->path2, at->dirfd, at->name));
	case DO_READLINK: return read_link(a, at);
	case DO_RMDIR:
		return result(unlinkat(at->dirfd, at->name, AT_REMOVEDIR));
	default: return result(unlinkat(at->dirfd, at->name, 0));
	}
}

static long do_one_name(const struct args *a)
{
	struct place at;
	long rc = place_open(a->fd, a->path, &at);

	if (rc)
		return rc;
	rc = by_name(a, &at);
	place_close(&at);
	return rc;
}

/* A descriptor's file, also one that is O_PATH, for calls that take a path. */
struct own_path {
	char text[32];
};

static struct own_path own_path(int fd)
{
	struct own_path path;

	snprintf(path.text, sizeof(path.text), "/proc/self/fd/%d", fd);
	return path;
}

static long do_two_names(const struct args *a)
{
	struct place from = { .opened = -1 }, to = { .opened = -1 };
	long rc = a->path ? place_open(a->fd, a->path, &from) : 0;

	if (rc)
		return rc;
	rc = place_open(a->fd2, a->path2, &to);
	if (!rc && !a->path)
		rc = result(linkat(-1, own_path(a->fd).text, to.dirfd, to.name,
				   AT_SYMLINK_FOLLOW));
	else if (!rc && a->what == DO_LINK)
		rc = result(linkat(from.dirfd, from.name, to.dirfd, to.name, 0));
	else if (!rc)
		rc = result(renameat2(from.dirfd, from.name, to.dirfd, to.name,
				      (unsigned)a->flags));
	place_close(&from);
	place_close(&to);
	return rc;
}

/* NFS says EBADF where a read is direct and ESTALE where it is not, of a descriptor
 * that the server no longer knows: it is ESTALE here. */
static int read_error(int fd)
{
	int err = errno, mode = err == EBADF ? fcntl(fd, F_GETFL) : -1;

	return mode >= 0 && (mode & O_ACCMODE) != O_WRONLY ? -ESTALE : -err;
}

static long do_read(const struct args *a)
{
	size_t done = 0, len = (size_t)a->length;

	while (done < len) {
		ssize_t got = pread(a->fd, (char *)a->buffer + done, len - done,
				    a->offset + (off_t)done);

		if (got < 0 && errno == EINTR)
			continue;
		/* O_DIRECT, and at a file's end within a sector */
		if (got < 0 && errno == EINVAL && done % 512)
			break;
		if (got < 0)
			return read_error(a->fd);
		if (got == 0)
			break;
		done += (size_t)got;
	}
	return (long)done;
}

static long do_write(const struct args *a)
{
	size_t done = 0, len = (size_t)a->length;

	while (done < len) {
		ssize_t put = pwrite(a->fd, (const char *)a->buffer + done,
				     len - done, a->offset + (off_t)done);

		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0)
			return -errno;
		done += (size_t)put;
		if (a->once && done < len)
			return -ENOSPC;
	}
	return 0;
}

/* whole: the entries as readdir(3) gives them, else names only */
static void gather_entry(FILE *out, const struct dirent *entry, bool whole)
{
	if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
		return;
	if (whole)
		fwrite(entry, entry->d_reclen, 1, out);
	else
		fwrite(entry->d_name, strlen(entry->d_name) + 1, 1, out);
}

static long gather(DIR *dir, bool whole, char **names_out)
{
	static const struct dirent end;
	struct dirent *entry;
	char *names = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&names, &len);

	if (!out)
		return -ENOMEM;
	while (errno = 0, (entry = readdir(dir)))
		gather_entry(out, entry, whole);
	if (errno) {
		int err = -errno;

		fclose(out);
		free(names);
		return err;
	}
	fwrite(&end, whole ? sizeof(end) : 1, 1, out);
	if (fclose(out)) {
		free(names);
		return -ENOMEM;
	}
	*names_out = names;
	return 0;
}

static long do_list(const struct args *a)
{
	_cleanup_dir_ DIR *dir = NULL;
	long fd = open_beneath(a->fd, a->path, O_RDONLY | O_DIRECTORY, 0);

	if (fd < 0)
		return fd;
	dir = fdopendir((int)fd);
	if (!dir) {
		int err = -errno;

		close((int)fd);
		return err;
	}
	return gather(dir, a->what == DO_ENTRIES, a->names_out);
}

_Static_assert(sizeof(((struct dirent *)0)->d_ino) == 8 &&
	       offsetof(struct dirent, d_name) == 19,
	       "entries are those of the kernel");

static long do_reopen(const struct args *a)
{
	int fd = open(own_path(a->fd).text, a->flags | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

static long do_xattr(const struct args *a)
{
	struct own_path path = own_path(a->fd);
	size_t size = (size_t)a->length;
	ssize_t len;

	if (a->what == DO_SET_XATTR && !a->buffer)
		return result(removexattr(path.text, a->path));
	if (a->what == DO_SET_XATTR)
		return result(setxattr(path.text, a->path, a->buffer, size,
				       a->flags));
	len = a->what == DO_GET_XATTR
		      ? getxattr(path.text, a->path, a->buffer, size)
		      : listxattr(path.text, a->buffer, size);
	return len < 0 ? -errno : len;
}

static long do_seek(const struct args *a)
{
	off_t offset = lseek(a->fd, a->offset, a->flags);

	return offset < 0 ? -errno : offset;
}

/*
 * Any question that the server itself must answer. Whoever waits for this
 * answer can be killed; not so whoever waits in close(2) for a FUSE server,
 * nor could then the process be.
 */
static long ask_server(int fd)
{
	struct statx st;

	return result(statx(fd, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC,
			    STATX_SIZE, &st));
}

/* The file system learns of a close; if interrupted, it must learn again. */
static long do_flush(const struct args *a)
{
	long rc;

	if (a->guard && ucm_guard_asks_before_close(a->guard))
		ask_server(a->fd);
	do {
		int fd = fcntl(a->fd, F_DUPFD_CLOEXEC, 0);

		if (fd < 0)
			return -errno;
		rc = result(close(fd));
	} while (rc == -EINTR);
	return rc;
}

static long do_close(const struct args *a)
{
	if (a->guard && ucm_guard_asks_before_close(a->guard))
		ask_server(a->fd);
	ucm_guard_forget(a->fd); /* the number is anybody's after this */
	return result(close(a->fd));
}

static long do_open_root(const struct args *a)
{
	int fd = open(a->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

static long do_real_path(const struct args *a)
{
	*a->names_out = realpath(a->path, NULL);
	return *a->names_out ? 0 : -errno;
}

static long do_lock(const struct args *a)
{
	struct flock lock = {
		.l_type = (short)a->flags,
		.l_whence = SEEK_SET,
		.l_start = a->offset,
		.l_len = a->length,
	};

	return result(fcntl(a->fd, F_OFD_SETLK, &lock));
}

static long do_find_lock(const struct args *a)
{
	struct flock lock = {
		.l_type = F_WRLCK,
		.l_whence = SEEK_SET,
		.l_start = a->offset,
		.l_len = a->length,
	};

	if (fcntl(a->fd, F_OFD_GETLK, &lock))
		return -errno;
	if (lock.l_type == F_UNLCK)
		return -ENOENT;
	return lock.l_start;
}

static long spread(int fd)
{
	int flags;

	if (ioctl(fd, FS_IOC_GETFLAGS, &flags))
		return -errno;
	flags |= FS_TOPDIR_FL;
	return result(ioctl(fd, FS_IOC_SETFLAGS, &flags));
}

static long perform(const struct args *a)
{
	switch (a->what) {
	case DO_OPEN: return do_open(a);
	case DO_FSTAT: return result(fstat(a->fd, a->stat_out));
	case DO_STAT: case DO_MKDIR: case DO_RMDIR: case DO_UNLINK:
	case DO_CHMOD:
	case DO_SYMLINK: case DO_READLINK:
		return do_one_name(a);
	case DO_LINK: case DO_RENAME: return do_two_names(a);
	case DO_UTIMENS:
		return result(utimensat(a->fd, "", a->has_times ? a->times : NULL,
					AT_EMPTY_PATH));
	case DO_FCHMOD:
		return result(chmod(own_path(a->fd).text, a->mode));
	case DO_FCHOWN:
		return result(fchownat(a->fd, "", a->uid, a->gid,
				       AT_EMPTY_PATH));
	case DO_SPREAD: return spread(a->fd);
	case DO_TRUNCATE: return result(ftruncate(a->fd, a->length));
	case DO_FALLOCATE:
		return result(fallocate(a->fd, a->flags, a->offset, a->length));
	case DO_STATVFS: return result(fstatvfs(a->fd, a->statvfs_out));
	case DO_FDATASYNC: return result(fdatasync(a->fd));
	case DO_FSYNC: return result(fsync(a->fd));
	case DO_ADVISE:
		return -posix_fadvise(a->fd, a->offset, a->length, a->flags);
	case DO_SYNCFS: return result(syncfs(a->fd));
	case DO_READ: return do_read(a);
	case DO_WRITE: return do_write(a);
	case DO_LIST: case DO_ENTRIES: return do_list(a);
	case DO_REOPEN: return do_reopen(a);
	case DO_SEEK: return do_seek(a);
	case DO_FLUSH: return do_flush(a);
	case DO_LOCK: return do_lock(a);
	case DO_FIND_LOCK: return do_find_lock(a);
	case DO_CLOSE: return do_close(a);
	case DO_STATFS: return result(fstatfs(a->fd, a->statfs_out));
	case DO_OPEN_ROOT: return do_open_root(a);
	case DO_STAT_ROOT: return result(stat(a->path, a->stat_out));
	case DO_REAL_PATH: return do_real_path(a);
	case DO_GET_XATTR: case DO_SET_XATTR: case DO_LIST_XATTR:
		return do_xattr(a);
	case DO_REFRESH: return ask_server(a->fd);
	case DO_CALLS: break;
	}
	return -ENOSYS;
}

static void debug_call(const struct args *a, long rc)
{
	ucm_debug(CALL, rc < 0 ? 1 : 2, "%s of %d %s%s%s: %s",
		  call_names[a->what], a->fd, a->path ? a->path : "",
		  a->path2 ? " as " : "", a->path2 ? a->path2 : "",
		  rc < 0 ? strerror((int)-rc) : "done");
}

/* The injected error, if a test asks for one; else the call. */
static long attempt(const struct args *a)
{
	int (*fault)(const char *call, const char *path) =
		atomic_load_explicit(&ucm_os_fault, memory_order_relaxed);
	long rc = 0;

	if (__builtin_expect(!!fault, 0))
		rc = fault(call_names[a->what],
			   a->path2 && a->what != DO_SYMLINK ? a->path2
							     : a->path);
	if (!rc || a->what == DO_CLOSE) /* it is not for failing */
		rc = perform(a);
	if (ucm_log_debugs(UCM_AREA_CALL, 1))
		debug_call(a, rc);
	return rc;
}

/* A call for a guard's thread: the arguments, and room for what they mean. */
struct guarded {
	struct ucm_call call;
	struct args args;
	struct stat st;
	struct statvfs vfs;
	struct statfs fs;
	char *names;
	char room[]; /* the buffer of a read or write, and the paths */
};

static void run_guarded(struct ucm_call *call)
{
	call->result = attempt(&((struct guarded *)call)->args);
}

static void discard_guarded(struct ucm_call *call)
{
	struct guarded *g = (struct guarded *)call;

	if ((g->args.what == DO_OPEN || g->args.what == DO_REOPEN ||
	     g->args.what == DO_OPEN_ROOT) &&
	    call->result >= 0)
		close((int)call->result);
	free(g->names);
}

static size_t path_room(const char *path)
{
	return path ? strlen(path) + 1 : 0;
}

static const char *copy_path(char *to, const char *path)
{
	return path ? memcpy(to, path, path_room(path)) : NULL;
}

static struct guarded *copy_args(const struct args *a)
{
	size_t len = a->buffer ? (size_t)a->length + BUFFER_ALIGN : 0;
	size_t len2 = path_room(a->path), len3 = path_room(a->path2);
	struct guarded *g = calloc(1, sizeof(*g) + len + len2 + len3);

	if (!g)
		return NULL;
	g->args = *a;
	g->args.stat_out = &g->st;
	g->args.statvfs_out = &g->vfs;
	g->args.statfs_out = &g->fs;
	g->args.names_out = &g->names;
	g->args.once = true; /* the number may be another file's by then */
	g->args.path = copy_path(g->room + len, a->path);
	g->args.path2 = copy_path(g->room + len + len2, a->path2);
	if (a->buffer) {
		g->args.buffer = (void *)(uintptr_t)ucm_round_up(
			(uintptr_t)g->room, BUFFER_ALIGN);
		if (a->what == DO_WRITE || a->what == DO_SET_XATTR)
			memcpy(g->args.buffer, a->buffer, (size_t)a->length);
	}
	g->call.run = run_guarded;
	g->call.discard = discard_guarded;
	return g;
}

static void copy_outputs(const struct args *a, const struct guarded *g)
{
	if (a->stat_out)
		*a->stat_out = g->st;
	if (a->statvfs_out)
		*a->statvfs_out = g->vfs;
	if (a->statfs_out)
		*a->statfs_out = g->fs;
	if (a->names_out)
		*a->names_out = g->names;
	if ((a->what == DO_READ || a->what == DO_READLINK ||
	     a->what == DO_GET_XATTR || a->what == DO_LIST_XATTR) &&
	    g->call.result > 0 && g->call.result <= a->length)
		memcpy(a->buffer, g->args.buffer, (size_t)g->call.result);
}

static enum ucm_call_kind kind_of(const struct args *a)
{
	switch (a->what) {
	case DO_OPEN: case DO_REOPEN:
		return (a->flags & O_ACCMODE) != O_RDONLY || a->flags & O_CREAT
			       ? UCM_CALL_WRITES
			       : UCM_CALL_READS;
	case DO_STAT: case DO_FSTAT: case DO_STATVFS: case DO_STATFS:
	case DO_READ: case DO_LIST: case DO_ENTRIES:
	case DO_SEEK: case DO_READLINK: case DO_ADVISE: case DO_OPEN_ROOT:
	case DO_STAT_ROOT: case DO_REAL_PATH: case DO_GET_XATTR:
	case DO_LIST_XATTR: case DO_REFRESH:
		return UCM_CALL_READS;
	case DO_FSYNC: case DO_FDATASYNC: case DO_SYNCFS:
		return UCM_CALL_SYNCS;
	case DO_CLOSE:
		return UCM_CALL_CLOSES;
	default:
		return UCM_CALL_WRITES;
	}
}

static long call_guarded(struct ucm_guard *guard, const struct args *a)
{
	struct guarded *g = copy_args(a);
	long rc = -ETIMEDOUT;

	if (!g)
		return -ENOMEM;
	g->args.guard = guard;
	if (ucm_guard_call(guard, kind_of(a), &g->call)) {
		rc = g->call.result;
		copy_outputs(a, g);
	} else if (g->call.gone) {
		rc = -EINTR;
	}
	ucm_guard_put(&g->call);
	return rc;
}

/* A call that may wait: is this a thread that must not? */
static void check_thread(const struct args *a)
{
	static _Atomic bool reported[DO_CALLS];

	if (!ucm_must_not_wait || atomic_exchange(&reported[a->what], true))
		return;
	ucm_guard_report_wait(call_names[a->what]);
}

static long call(const struct args *a)
{
	struct ucm_guard *guard = a->guard ? a->guard : ucm_guard_of(a->fd);

	if (guard || kind_of(a) == UCM_CALL_SYNCS)
		check_thread(a);
	return guard ? call_guarded(guard, a) : attempt(a);
}

#define CALL(...) ((int)call(&(struct args){ __VA_ARGS__ }))

int ucm_os_open(int dirfd, const char *path, int flags, mode_t mode)
{
	int fd = CALL(.what = DO_OPEN, .fd = dirfd, .path = path,
		      .flags = flags, .mode = mode);

	if (fd >= 0)
		ucm_guard_inherit(fd, dirfd);
	return fd;
}

void ucm_os_close(int fd)
{
	struct ucm_guard *guard = ucm_guard_of(fd);
	struct args a = { .what = DO_CLOSE, .fd = fd, .guard = guard };
	struct guarded *g = guard ? copy_args(&a) : NULL;
	int saved = errno;

	if (g && ucm_guard_send(guard, &g->call)) {
		errno = saved;
		return;
	}
	if (g)
		ucm_guard_put(&g->call);
	if (fd >= 0)
		do_close(&a);
	errno = saved;
}

int ucm_os_open_root(struct ucm_guard *guard, const char *path)
{
	int fd = CALL(.what = DO_OPEN_ROOT, .fd = -1, .path = path,
		      .guard = guard);
	int err = fd >= 0 && guard ? ucm_guard_set(guard, fd) : 0;

	if (!err)
		return fd;
	close(fd);
	return err;
}

int ucm_os_stat_root(struct ucm_guard *guard, const char *path,
		     struct stat *out)
{
	return CALL(.what = DO_STAT_ROOT, .fd = -1, .path = path,
		    .stat_out = out, .guard = guard);
}

int ucm_os_real_path(struct ucm_guard *guard, const char *path, char **path_out)
{
	*path_out = NULL;
	return CALL(.what = DO_REAL_PATH, .fd = -1, .path = path,
		    .names_out = path_out, .guard = guard);
}

int ucm_os_statfs(int fd, struct statfs *out)
{
	return CALL(.what = DO_STATFS, .fd = fd, .statfs_out = out);
}

/* Its mode is 0777, with which another user to whom a descriptor is passed can open
 * it again for writing (/proc/self/fd), and seal it. */
int ucm_os_memory_file(const char *name)
{
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int err = fd < 0 || fchmod(fd, 0600) ? -errno : 0;

	if (fd < 0)
		return err;
	ucm_guard_inherit(fd, -1);
	if (!err)
		return fd;
	ucm_os_close(fd);
	return err;
}

int ucm_os_memory_of(const char *name, size_t len)
{
	int fd = ucm_os_memory_file(name);
	int err;

	if (fd < 0)
		return fd;
	err = ucm_os_fallocate(fd, 0, 0, (off_t)len);
	if (!err && fcntl(fd, F_ADD_SEALS,
			  F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		err = -errno;
	if (!err)
		return fd;
	ucm_os_close(fd);
	return err;
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
		ucm_os_close(fd);
		return err;
	}
	return fd;
}

int ucm_os_stat(int dirfd, const char *path, struct stat *out)
{
	return CALL(.what = DO_STAT, .fd = dirfd, .path = path,
		    .stat_out = out);
}

int ucm_os_stat_now(int dirfd, const char *path, struct stat *out)
{
	return CALL(.what = DO_STAT, .fd = dirfd, .path = path,
		    .flags = AT_STATX_FORCE_SYNC, .stat_out = out);
}

int ucm_os_fstat(int fd, struct stat *out)
{
	return CALL(.what = DO_FSTAT, .fd = fd, .stat_out = out);
}

int ucm_os_refresh(int fd)
{
	return CALL(.what = DO_REFRESH, .fd = fd);
}

int ucm_os_mkdir(int dirfd, const char *path, mode_t mode)
{
	return CALL(.what = DO_MKDIR, .fd = dirfd, .path = path, .mode = mode);
}

int ucm_os_rmdir(int dirfd, const char *path)
{
	return CALL(.what = DO_RMDIR, .fd = dirfd, .path = path);
}

int ucm_os_unlink(int dirfd, const char *path)
{
	return CALL(.what = DO_UNLINK, .fd = dirfd, .path = path);
}

int ucm_os_chmod(int dirfd, const char *path, mode_t mode)
{
	return CALL(.what = DO_CHMOD, .fd = dirfd, .path = path, .mode = mode);
}

int ucm_os_symlink(const char *target, int dirfd, const char *path)
{
	return CALL(.what = DO_SYMLINK, .fd = dirfd, .path = path,
		    .path2 = target);
}

int ucm_os_readlink(int dirfd, const char *path, char *text, size_t size)
{
	int len = CALL(.what = DO_READLINK, .fd = dirfd, .path = path,
		       .buffer = text, .length = (off_t)size);

	if (len < 0)
		return len;
	text[len] = '\0';
	return 0;
}

int ucm_os_link(int from_dirfd, const char *from, int to_dirfd, const char *to)
{
	return CALL(.what = DO_LINK, .fd = from_dirfd, .path = from,
		    .fd2 = to_dirfd, .path2 = to);
}

int ucm_os_rename(int from_dirfd, const char *from, int to_dirfd,
		  const char *to)
{
	return CALL(.what = DO_RENAME, .fd = from_dirfd, .path = from,
		    .fd2 = to_dirfd, .path2 = to);
}

int ucm_os_rename_in(int dirfd, const char *from, const char *to,
		     unsigned flags)
{
	return CALL(.what = DO_RENAME, .fd = dirfd, .path = from, .fd2 = dirfd,
		    .path2 = to, .flags = (int)flags);
}

int ucm_os_getxattr(int fd, const char *name, void *value, size_t size)
{
	return CALL(.what = DO_GET_XATTR, .fd = fd, .path = name,
		    .buffer = value, .length = (off_t)size);
}

int ucm_os_setxattr(int fd, const char *name, const void *value, size_t size,
		    int flags)
{
	return CALL(.what = DO_SET_XATTR, .fd = fd, .path = name,
		    .buffer = (void *)(uintptr_t)value,
		    .length = (off_t)size, .flags = flags);
}

int ucm_os_listxattr(int fd, char *names, size_t size)
{
	return CALL(.what = DO_LIST_XATTR, .fd = fd, .buffer = names,
		    .length = (off_t)size);
}

int ucm_os_list(int dirfd, const char *path, char **names_out)
{
	return CALL(.what = DO_LIST, .fd = dirfd, .path = path,
		    .names_out = names_out);
}

int ucm_os_list_entries(int dirfd, const char *path, struct dirent **out)
{
	return CALL(.what = DO_ENTRIES, .fd = dirfd, .path = path,
		    .names_out = (char **)out);
}

int ucm_os_reopen(int fd, int flags)
{
	int again = CALL(.what = DO_REOPEN, .fd = fd, .flags = flags);

	if (again >= 0)
		ucm_guard_inherit(again, fd);
	return again;
}

off_t ucm_os_seek(int fd, off_t offset, int whence)
{
	return (off_t)call(&(struct args){ .what = DO_SEEK,
					   .fd = fd,
					   .offset = offset,
					   .flags = whence });
}

int ucm_os_lock(int fd, off_t offset, off_t len)
{
	return CALL(.what = DO_LOCK, .fd = fd, .flags = F_WRLCK,
		    .offset = offset, .length = len);
}

off_t ucm_os_find_lock(int fd, off_t offset, off_t len)
{
	struct args a = { .what = DO_FIND_LOCK, .fd = fd, .offset = offset,
			  .length = len };

	return call(&a);
}

int ucm_os_utimens(int fd, const struct timespec times[2])
{
	struct args a = { .what = DO_UTIMENS, .fd = fd };

	if (times) {
		a.has_times = true;
		a.times[0] = times[0];
		a.times[1] = times[1];
	}
	return (int)call(&a);
}

int ucm_os_fchmod(int fd, mode_t mode)
{
	return CALL(.what = DO_FCHMOD, .fd = fd, .mode = mode);
}

int ucm_os_fchown(int fd, uid_t uid, gid_t gid)
{
	return CALL(.what = DO_FCHOWN, .fd = fd, .uid = uid, .gid = gid);
}

int ucm_os_spread(int fd)
{
	return CALL(.what = DO_SPREAD, .fd = fd);
}

int ucm_os_truncate(int fd, off_t size)
{
	return CALL(.what = DO_TRUNCATE, .fd = fd, .length = size);
}

int ucm_os_fallocate(int fd, int mode, off_t offset, off_t length)
{
	return CALL(.what = DO_FALLOCATE, .fd = fd, .flags = mode,
		    .offset = offset, .length = length);
}

int ucm_os_statvfs(int fd, struct statvfs *out)
{
	return CALL(.what = DO_STATVFS, .fd = fd, .statvfs_out = out);
}

int ucm_os_flush(int fd)
{
	return CALL(.what = DO_FLUSH, .fd = fd);
}

int ucm_os_fdatasync(int fd)
{
	return CALL(.what = DO_FDATASYNC, .fd = fd);
}

int ucm_os_advise(int fd, off_t offset, off_t length, int advice)
{
	return CALL(.what = DO_ADVISE, .fd = fd, .offset = offset,
		    .length = length, .flags = advice);
}

int ucm_os_fsync(int fd)
{
	return CALL(.what = DO_FSYNC, .fd = fd);
}

int ucm_os_sync_dir(int dirfd, const char *path)
{
	_cleanup_fd_ int fd = ucm_os_open(dirfd, path, O_RDONLY | O_DIRECTORY,
					  0);

	return fd < 0 ? fd : ucm_os_fsync(fd);
}

int ucm_os_syncfs(int fd)
{
	return CALL(.what = DO_SYNCFS, .fd = fd);
}

ssize_t ucm_os_read_at(int fd, void *buffer, size_t len, off_t offset)
{
	return (ssize_t)call(&(struct args){ .what = DO_READ,
					     .fd = fd,
					     .buffer = buffer,
					     .length = (off_t)len,
					     .offset = offset });
}

int ucm_os_write_at(int fd, const void *buffer, size_t len, off_t offset)
{
	/* only read from; the one field serves both ways */
	return CALL(.what = DO_WRITE, .fd = fd,
		    .buffer = (void *)(uintptr_t)buffer,
		    .length = (off_t)len, .offset = offset);
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
	err = ucm_os_write_at(fd, bytes, len, 0)
		?: ucm_os_fsync(fd)
		?: ucm_os_rename(dirfd, temp, dirfd, path);
	if (err)
		ucm_os_unlink(dirfd, temp);
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
