/* SPDX-License-Identifier: Apache-2.0 */
/*
 * medium_fixture.h - what lies in a medium, behind the store's back.
 *
 * The calls below are those of the system, by the same names and with the same
 * results, and work on whatever the test runs on: on files of a directory they
 * are the system's, and a medium that keeps its files elsewhere stands in for
 * it (fx_other_tree). Numbers of open files are descriptors there, and from
 * FX_NUMBERS on here.
 */
#ifndef UCM_TESTS_MEDIUM_FIXTURE_H
#define UCM_TESTS_MEDIUM_FIXTURE_H

#include "tests/unit/dir_fixture.h"

#include <sys/stat.h>
#include <sys/types.h>

#define FX_NUMBERS (1 << 20)

/* Of names below what it keeps, and of its numbers. */
struct fx_tree {
	bool (*has)(const char *path);
	int (*open)(const char *path, int flags);
	int (*stat)(const char *path, struct stat *st);
	int (*unlink)(const char *path); /* also rmdir */
	int (*rename)(const char *from, const char *to);
	int (*make)(const char *path, mode_t mode);
	int (*walk)(const char *path, int (*fn)(void *arg, const char *path),
		    void *arg); /* as fx_walk() */
	ssize_t (*pread)(int number, void *bytes, size_t len, off_t at);
	ssize_t (*pwrite)(int number, const void *bytes, size_t len, off_t at);
	int (*ftruncate)(int number, off_t size);
	int (*allocate)(int number, off_t end); /* room, and its size */
	int (*fstat)(int number, struct stat *st);
	int (*futimens)(int number, const struct timespec times[2]);
	void (*close)(int number);
};
extern const struct fx_tree *fx_other_tree; /* NULL: none */

/* fx_setup() calls it, once there is a directory; NULL: nothing is to do. */
extern void (*fx_begin_tree)(void);

int fx_open_path(const char *path, int flags);
int fx_stat(const char *path, struct stat *st);
int fx_unlink(const char *path);
int fx_truncate(const char *path, off_t size);
int fx_rename(const char *from, const char *to);
int fx_symlink(const char *target, const char *path);
int fx_mkfifo(const char *path, mode_t mode);
int fx_mkdir(const char *path, mode_t mode);
/* fn for each name below, and each below that; stops at what is not 0. Nothing
 * where there is no such folder. */
int fx_walk(const char *path, int (*fn)(void *arg, const char *path),
	    void *arg);

ssize_t fx_pread(int number, void *bytes, size_t len, off_t at);
ssize_t fx_pwrite(int number, const void *bytes, size_t len, off_t at);
int fx_ftruncate(int number, off_t size);
int fx_posix_fallocate(int number, off_t at, off_t len);
int fx_fstat(int number, struct stat *st);
int fx_futimens(int number, const struct timespec times[2]);
int fx_fsync(int number);
void fx_close_file(int number);

#endif
