/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nth_call.c - the nth call that a daemon makes to its backing directories
 * fails, is short, or is its last one; to be preloaded (LD_PRELOAD).
 *
 * Calls are counted over all threads, or over the movers', while the file named
 * by $UCMFS_NTH_CALL says so: it is mapped, and nth_moves.py writes into it while
 * the daemon runs. What is not of the store goes through other calls than
 * these (libfuse reads and writes without an offset), or comes before.
 */
#include <config.h>

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

/* As nth_moves.py has it. */
struct control {
	_Atomic uint32_t armed;
	uint32_t movers; /* their calls alone count */
	uint32_t nth;
	int32_t what; /* 0: nothing; an errno; or one of these */
	_Atomic uint32_t count;
	_Atomic uint32_t moving; /* calls that read or write */
	_Atomic uint32_t met;
	char call[24]; /* the one that was met */
};

enum { KILL = -1, SHORT = -2 };
enum verdict { GO_ON, FAIL, BE_SHORT };

static struct control *control;

static void __attribute__((constructor)) map_control(void)
{
	const char *path = getenv("UCMFS_NTH_CALL");
	int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
	void *at = MAP_FAILED;

	if (fd >= 0)
		at = mmap(NULL, sizeof(*control), PROT_READ | PROT_WRITE,
			  MAP_SHARED, fd, 0);
	if (at != MAP_FAILED)
		control = at;
	else if (path)
		perror(path);
	if (fd >= 0)
		close(fd);
}

static bool is_mover(void)
{
	char name[16] = "";

	pthread_getname_np(pthread_self(), name, sizeof(name));
	return !strcmp(name, "ucmfs-mover");
}

/* One call is about to be made. */
static enum verdict meet(const char *call, bool moves_bytes)
{
	uint32_t number;

	if (!control || !atomic_load(&control->armed) ||
	    (control->movers && !is_mover()))
		return GO_ON;
	number = atomic_fetch_add(&control->count, 1) + 1;
	if (moves_bytes)
		atomic_fetch_add(&control->moving, 1);
	if (control->what == SHORT)
		number = moves_bytes ? atomic_load(&control->moving) : 0;
	if (!control->nth || number != control->nth)
		return GO_ON;
	snprintf(control->call, sizeof(control->call), "%s", call);
	atomic_store(&control->met, 1);
	if (control->what == KILL) {
		kill(getpid(), SIGKILL);
		for (;;)
			pause();
	}
	if (control->what == SHORT)
		return BE_SHORT;
	errno = control->what;
	return FAIL;
}

/* Half of it, in whole pages where there are two. */
static size_t half(size_t len)
{
	return len >= 8192 ? len / 2 / 4096 * 4096 : (len + 1) / 2;
}

/* ret name(parameters): the same call with its arguments, unless it fails */
#define CALL(ret, name, parameters, arguments)                                \
	ret name parameters                                                   \
	{                                                                     \
		static __typeof__(name) *next;                                \
                                                                              \
		if (!next)                                                    \
			next = (__typeof__(next))dlsym(RTLD_NEXT, #name);     \
		return meet(#name, false) == FAIL ? -1 : next arguments;      \
	}

CALL(int, fstat, (int fd, struct stat *st), (fd, st))
CALL(int, fstatat, (int fd, const char *path, struct stat *st, int flags),
     (fd, path, st, flags))
CALL(int, fstatfs, (int fd, struct statfs *st), (fd, st))
CALL(int, fstatvfs, (int fd, struct statvfs *st), (fd, st))
CALL(int, linkat, (int from_fd, const char *from, int to_fd, const char *to,
		   int flags), (from_fd, from, to_fd, to, flags))
CALL(int, renameat, (int from_fd, const char *from, int to_fd, const char *to),
     (from_fd, from, to_fd, to))
CALL(int, unlinkat, (int fd, const char *path, int flags), (fd, path, flags))
CALL(int, mkdirat, (int fd, const char *path, mode_t mode), (fd, path, mode))
CALL(int, utimensat, (int fd, const char *path, const struct timespec times[2],
		      int flags), (fd, path, times, flags))
CALL(int, fchmod, (int fd, mode_t mode), (fd, mode))
CALL(int, fchmodat, (int fd, const char *path, mode_t mode, int flags),
     (fd, path, mode, flags))
CALL(int, fchownat, (int fd, const char *path, uid_t uid, gid_t gid, int flags),
     (fd, path, uid, gid, flags))
CALL(int, ftruncate, (int fd, off_t size), (fd, size))
CALL(int, fallocate, (int fd, int mode, off_t offset, off_t len),
     (fd, mode, offset, len))
CALL(int, fdatasync, (int fd), (fd))
CALL(int, fsync, (int fd), (fd))
CALL(int, syncfs, (int fd), (fd))
CALL(off_t, lseek, (int fd, off_t offset, int whence), (fd, offset, whence))

ssize_t pread(int fd, void *buffer, size_t len, off_t offset)
{
	static __typeof__(pread) *next;
	enum verdict verdict = meet("pread", true);

	if (!next)
		next = (__typeof__(next))dlsym(RTLD_NEXT, "pread");
	if (verdict == FAIL)
		return -1;
	return next(fd, buffer, verdict == BE_SHORT ? half(len) : len, offset);
}

ssize_t pwrite(int fd, const void *buffer, size_t len, off_t offset)
{
	static __typeof__(pwrite) *next;
	enum verdict verdict = meet("pwrite", true);

	if (!next)
		next = (__typeof__(next))dlsym(RTLD_NEXT, "pwrite");
	if (verdict == FAIL)
		return -1;
	return next(fd, buffer, verdict == BE_SHORT ? half(len) : len, offset);
}

/* Opens, and listings of open directories. */
long syscall(long number, ...)
{
	static __typeof__(syscall) *next;
	long arguments[6];
	va_list list;

	va_start(list, number);
	for (int i = 0; i < 6; i++)
		arguments[i] = va_arg(list, long);
	va_end(list);
	if (!next)
		next = (__typeof__(next))dlsym(RTLD_NEXT, "syscall");
	if ((number == SYS_openat2 && meet("openat2", false) == FAIL) ||
	    (number == SYS_getdents64 && meet("getdents64", false) == FAIL))
		return -1;
	return next(number, arguments[0], arguments[1], arguments[2],
		    arguments[3], arguments[4], arguments[5]);
}
