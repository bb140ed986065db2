/* SPDX-License-Identifier: Apache-2.0 */
/* medium_fixture.c - see medium_fixture.h. */
#include <config.h>

#include "tests/unit/medium_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const struct fx_tree *fx_other_tree;
void (*fx_begin_tree)(void);

static bool is_other(const char *path)
{
	return fx_other_tree && fx_other_tree->has(path);
}

/* ---- by path ---- */

int fx_open_path(const char *path, int flags)
{
	return is_other(path) ? fx_other_tree->open(path, flags)
			      : open(path, flags, 0644);
}

int fx_stat(const char *path, struct stat *st)
{
	return is_other(path) ? fx_other_tree->stat(path, st)
			      : lstat(path, st);
}

int fx_unlink(const char *path)
{
	return is_other(path) ? fx_other_tree->unlink(path) : unlink(path);
}

int fx_truncate(const char *path, off_t size)
{
	int number = fx_open_path(path, O_WRONLY);
	int err = number < 0 ? -1 : fx_ftruncate(number, size);

	fx_close_file(number);
	return err;
}

int fx_rename(const char *from, const char *to)
{
	return is_other(from) ? fx_other_tree->rename(from, to)
			      : rename(from, to);
}

int fx_symlink(const char *target, const char *path)
{
	return is_other(path) ? fx_other_tree->make(path, S_IFLNK | 0777)
			      : symlink(target, path);
}

int fx_mkfifo(const char *path, mode_t mode)
{
	return is_other(path) ? fx_other_tree->make(path, S_IFIFO | mode)
			      : mkfifo(path, mode);
}

int fx_mkdir(const char *path, mode_t mode)
{
	return is_other(path) ? fx_other_tree->make(path, S_IFDIR | mode)
			      : mkdir(path, mode);
}

static struct {
	int (*fn)(void *arg, const char *path);
	void *arg;
} walking;

static int walk_one(const char *path, const struct stat *st, int type,
		    struct FTW *ftw)
{
	(void)st;
	(void)type;
	return ftw->level ? walking.fn(walking.arg, path) : 0;
}

int fx_walk(const char *path, int (*fn)(void *arg, const char *path),
	    void *arg)
{
	if (is_other(path))
		return fx_other_tree->walk(path, fn, arg);
	walking.fn = fn;
	walking.arg = arg;
	if (access(path, F_OK))
		return 0;
	return nftw(path, walk_one, 16, FTW_PHYS);
}

/* ---- by number ---- */

ssize_t fx_pread(int number, void *bytes, size_t len, off_t at)
{
	return number >= FX_NUMBERS
		       ? fx_other_tree->pread(number, bytes, len, at)
		       : pread(number, bytes, len, at);
}

ssize_t fx_pwrite(int number, const void *bytes, size_t len, off_t at)
{
	return number >= FX_NUMBERS
		       ? fx_other_tree->pwrite(number, bytes, len, at)
		       : pwrite(number, bytes, len, at);
}

int fx_ftruncate(int number, off_t size)
{
	return number >= FX_NUMBERS ? fx_other_tree->ftruncate(number, size)
				    : ftruncate(number, size);
}

int fx_posix_fallocate(int number, off_t at, off_t len)
{
	return number >= FX_NUMBERS ? fx_other_tree->allocate(number, at + len)
				    : posix_fallocate(number, at, len);
}

int fx_fstat(int number, struct stat *st)
{
	return number >= FX_NUMBERS ? fx_other_tree->fstat(number, st)
				    : fstat(number, st);
}

int fx_futimens(int number, const struct timespec times[2])
{
	return number >= FX_NUMBERS ? fx_other_tree->futimens(number, times)
				    : futimens(number, times);
}

int fx_fsync(int number)
{
	return number >= FX_NUMBERS ? 0 : fsync(number);
}

void fx_close_file(int number)
{
	if (number >= FX_NUMBERS)
		fx_other_tree->close(number);
	else if (number >= 0)
		close(number);
}
