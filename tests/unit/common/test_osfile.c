/* SPDX-License-Identifier: Apache-2.0 */
/* test_osfile.c - paths that cannot get out, faults, whole small files. */
#include <config.h>

#include "common/osfile.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "common/align.h"
#include "common/cleanup.h"
#include "tests/unit/dir_fixture.h"

static int root_fd(void)
{
	int fd = open(fx_path("$"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	ck_assert_int_ge(fd, 0);
	return fd;
}

UNIT_FIXTURE(.setup = fx_setup, .teardown = fx_teardown);

UNIT_TEST(open_stays_below_its_directory)
{
	static const struct {
		const char *path;
		int err;
	} rows[] = {
		{ "in/file", 0 },
		{ "in/../in/file", 0 },
		{ "../outside", -EXDEV },
		{ "in/../../outside", -EXDEV },
		{ "/etc/passwd", -EXDEV },
		{ "link", -ELOOP },
		{ "dirlink/file", -ELOOP },
		{ "out/passwd", -ELOOP },
		{ "absent", -ENOENT },
		{ "in/file/x", -ENOTDIR },
	};
	_cleanup_fd_ int root = root_fd();

	fx_put(fx_path("$/in/file"), "x", 1);
	ck_assert_int_eq(symlink("in/file", fx_path("$/link")), 0);
	ck_assert_int_eq(symlink("in", fx_path("$/dirlink")), 0);
	ck_assert_int_eq(symlink("/etc", fx_path("$/out")), 0);
	for (size_t i = 0; i < NUM_ROWS(rows); i++) {
		_cleanup_fd_ int fd = ucm_os_open(root, rows[i].path, O_RDONLY,
						  0);

		ck_assert_msg(rows[i].err ? fd == rows[i].err : fd >= 0,
			      "%s: %d", rows[i].path, fd);
	}
}

UNIT_TEST(open_regular_waits_for_nothing_and_takes_files_only)
{
	_cleanup_fd_ int root = root_fd();
	struct stat st;
	int fd;

	fx_put(fx_path("$/file"), "abc", 3);
	ck_assert_int_eq(mkfifo(fx_path("$/fifo"), 0644), 0);
	fx_mkdirs(fx_path("$/dir"));
	fd = ucm_os_open_regular(root, "file", O_RDONLY, &st);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(st.st_size, 3);
	ck_assert_int_ne(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
	close(fd);
	ck_assert_int_eq(ucm_os_open_regular(root, "fifo", O_RDONLY, &st),
			 -ENXIO);
	ck_assert_int_eq(ucm_os_open_regular(root, "fifo", O_WRONLY, &st),
			 -ENXIO);
	ck_assert_int_eq(ucm_os_open_regular(root, "dir", O_RDONLY, &st),
			 -ENXIO);
}

/* Every wrapper asks the seam first, under its own name. */
UNIT_TEST(each_call_can_be_made_to_fail)
{
	_cleanup_fd_ int root = root_fd();
	_cleanup_fd_ int fd = -1;
	struct timespec times[2] = { { 0 }, { 0 } };
	struct statvfs vfs;
	struct stat st;
	char c = 'x';

	fx_put(fx_path("$/file"), "abc", 3);
	fd = ucm_os_open(root, "file", O_RDWR, 0);
	ck_assert_int_ge(fd, 0);
#define FAILS(name, expression)                                               \
	do {                                                                  \
		fx_fail(name, 1, -EIO, true);                                 \
		ck_assert_int_eq(expression, -EIO);                           \
		ck_assert_uint_eq(fx_calls(), 1);                             \
	} while (0)
	FAILS("open", ucm_os_open(root, "file", O_RDONLY, 0));
	FAILS("stat", ucm_os_stat(root, "file", &st));
	FAILS("fstat", ucm_os_fstat(fd, &st));
	FAILS("mkdir", ucm_os_mkdir(root, "d", 0755));
	FAILS("rmdir", ucm_os_rmdir(root, "d"));
	FAILS("unlink", ucm_os_unlink(root, "file"));
	FAILS("symlink", ucm_os_symlink("file", root, "l"));
	FAILS("readlink", ucm_os_readlink(root, "file", &c, 1));
	FAILS("link", ucm_os_link(root, "file", root, "file2"));
	FAILS("rename", ucm_os_rename(root, "file", root, "file2"));
	FAILS("rename", ucm_os_rename_in(root, "file", "file2", 0));
	FAILS("getxattr", ucm_os_getxattr(fd, "user.x", &c, 1));
	FAILS("setxattr", ucm_os_setxattr(fd, "user.x", &c, 1, 0));
	FAILS("listxattr", ucm_os_listxattr(fd, &c, 1));
	FAILS("utimens", ucm_os_utimens(fd, times));
	FAILS("fchmod", ucm_os_fchmod(fd, 0600));
	FAILS("fchown", ucm_os_fchown(fd, 0, 0));
	FAILS("truncate", ucm_os_truncate(fd, 0));
	FAILS("fallocate", ucm_os_fallocate(fd, 0, 0, 10));
	FAILS("statvfs", ucm_os_statvfs(fd, &vfs));
	FAILS("flush", ucm_os_flush(fd));
	FAILS("fdatasync", ucm_os_fdatasync(fd));
	FAILS("fsync", ucm_os_fsync(fd));
	FAILS("syncfs", ucm_os_syncfs(fd));
	FAILS("read", (int)ucm_os_read_at(fd, &c, 1, 0));
	FAILS("write", ucm_os_write_at(fd, &c, 1, 0));
#undef FAILS
	ck_assert_uint_eq(fx_count(fx_path("$")), 1);
	ck_assert_int_eq(ucm_os_stat(root, "file", &st), 0);
	ck_assert_int_eq(st.st_size, 3);
}

UNIT_TEST(calls_do_what_they_are_called)
{
	_cleanup_fd_ int root = root_fd();
	_cleanup_fd_ int fd = ucm_os_open(root, "f", O_RDWR | O_CREAT, 0644);
	struct timespec times[2] = { { .tv_sec = 5 }, { .tv_sec = 7 } };
	struct statvfs vfs;
	struct stat st;

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ucm_os_truncate(fd, 100), 0);
	ck_assert_int_eq(ucm_os_fallocate(fd, 0, 0, 200), 0);
	ck_assert_int_eq(ucm_os_utimens(fd, times), 0);
	ck_assert_int_eq(ucm_os_fchmod(fd, 0600), 0);
	ck_assert_int_eq(ucm_os_fchown(fd, geteuid(), getegid()), 0);
	ck_assert_int_eq(ucm_os_fstat(fd, &st), 0);
	ck_assert_int_eq(st.st_size, 200);
	ck_assert_int_eq(st.st_mtim.tv_sec, 7);
	ck_assert_int_eq(st.st_mode & 07777, 0600);
	ck_assert_int_eq(ucm_os_link(root, "f", root, "g"), 0);
	ck_assert_int_eq(ucm_os_link(root, "f", root, "g"), -EEXIST);
	ck_assert_int_eq(ucm_os_rename(root, "g", root, "h"), 0);
	ck_assert_int_eq(ucm_os_unlink(root, "g"), -ENOENT);
	ck_assert_int_eq(ucm_os_unlink(root, "h"), 0);
	ck_assert_int_eq(ucm_os_mkdir(root, "d", 0755), 0);
	ck_assert_int_eq(ucm_os_mkdir(root, "d", 0755), -EEXIST);
	ck_assert_int_eq(ucm_os_rmdir(root, "d"), 0);
	ck_assert_int_eq(ucm_os_statvfs(fd, &vfs), 0);
	ck_assert_uint_gt(vfs.f_frsize, 0);
	ck_assert_int_eq(ucm_os_flush(fd), 0);
	ck_assert_int_eq(ucm_os_fdatasync(fd), 0); /* it is open still */
	ck_assert_int_eq(ucm_os_fsync(fd), 0);
	ck_assert_int_eq(ucm_os_syncfs(fd), 0);
}

/* By a descriptor that can do nothing else. */
UNIT_TEST(a_descriptor_that_is_a_path_will_do)
{
	_cleanup_fd_ int root = root_fd();
	_cleanup_fd_ int fd = -1;
	char text[64];
	struct stat st;

	fx_put(fx_path("$/f"), "x", 1);
	fd = ucm_os_open(root, "f", O_PATH, 0);
	ck_assert_int_eq(ucm_os_fchmod(fd, 0601), 0);
	ck_assert_int_eq(ucm_os_link(fd, NULL, root, "g"), 0);
	ck_assert_int_eq(ucm_os_link(fd, NULL, root, "g"), -EEXIST);
	ck_assert_int_eq(ucm_os_stat(root, "g", &st), 0);
	ck_assert_int_eq(st.st_mode & 07777, 0601);
	ck_assert_uint_eq(st.st_nlink, 2);
	ck_assert_int_eq(ucm_os_setxattr(fd, "user.x", "abc", 3, 0), 0);
	ck_assert_int_eq(ucm_os_setxattr(fd, "user.x", "d", 1, XATTR_CREATE),
			 -EEXIST);
	ck_assert_int_eq(ucm_os_getxattr(fd, "user.x", NULL, 0), 3);
	ck_assert_int_eq(ucm_os_getxattr(fd, "user.x", text, 2), -ERANGE);
	ck_assert_int_eq(ucm_os_getxattr(fd, "user.x", text, sizeof(text)), 3);
	ck_assert_mem_eq(text, "abc", 3);
	ck_assert_int_eq(ucm_os_listxattr(fd, text, sizeof(text)), 7);
	ck_assert_str_eq(text, "user.x");
	ck_assert_int_eq(ucm_os_setxattr(fd, "user.x", NULL, 0, 0), 0);
	ck_assert_int_eq(ucm_os_setxattr(fd, "user.x", NULL, 0, 0), -ENODATA);
}

UNIT_TEST(a_rename_may_spare_what_is_there)
{
	_cleanup_fd_ int root = root_fd();

	fx_put(fx_path("$/f"), "x", 1);
	fx_put(fx_path("$/g"), "y", 1);
	ck_assert_int_eq(ucm_os_rename_in(root, "f", "g", RENAME_NOREPLACE),
			 -EEXIST);
	ck_assert_int_eq(ucm_os_rename_in(root, "f", "h", RENAME_NOREPLACE),
			 0);
	ck_assert_int_eq(ucm_os_rename_in(root, "h", "g", 0), 0);
	ck_assert_uint_eq(fx_count(fx_path("$")), 1);
}

UNIT_TEST(stat_does_not_follow_links)
{
	_cleanup_fd_ int root = root_fd();
	struct stat st;

	ck_assert_int_eq(symlink("/etc/passwd", fx_path("$/link")), 0);
	ck_assert_int_eq(ucm_os_stat(root, "link", &st), 0);
	ck_assert(S_ISLNK(st.st_mode));
}

UNIT_TEST(a_link_is_data)
{
	static const char *const targets[] = { "f", "/etc/passwd", "..", "l" };
	_cleanup_fd_ int root = root_fd();
	char text[PATH_MAX], longest[PATH_MAX];

	for (size_t i = 0; i < NUM_ROWS(targets); i++) {
		ck_assert_int_eq(ucm_os_symlink(targets[i], root, "l"), 0);
		ck_assert_int_eq(ucm_os_symlink("other", root, "l"), -EEXIST);
		ck_assert_int_eq(ucm_os_readlink(root, "l", text, 16), 0);
		ck_assert_str_eq(text, targets[i]);
		ck_assert_int_eq(ucm_os_readlink(root, "l", text,
						 strlen(targets[i])),
				 -ENAMETOOLONG);
		ck_assert_int_eq(ucm_os_unlink(root, "l"), 0);
	}
	memset(longest, 'x', sizeof(longest));
	longest[PATH_MAX - 1] = '\0';
	if (!ucm_os_symlink(longest, root, "l")) { /* XFS takes 1023 */
		ck_assert_int_eq(ucm_os_readlink(root, "l", text, PATH_MAX), 0);
		ck_assert_str_eq(text, longest);
	}
	ck_assert_int_eq(ucm_os_readlink(root, "none", text, 16), -ENOENT);
	ck_assert_int_eq(ucm_os_readlink(root, ".", text, 16), -EINVAL);
	ck_assert_int_eq(symlink(".", fx_path("$/dir")), 0);
	ck_assert_int_eq(ucm_os_readlink(root, "dir/l", text, 16), -ENOTDIR);
	ck_assert_int_eq(ucm_os_symlink("x", root, "dir/l"), -ENOTDIR);
}

/* And what it leads to does not. */
UNIT_TEST(a_link_changes_by_its_descriptor)
{
	struct timespec times[2] = { { .tv_sec = 5 }, { .tv_sec = 7 } };
	_cleanup_fd_ int root = root_fd();
	_cleanup_fd_ int fd = -1;
	char text[16];
	struct stat st;

	fx_put(fx_path("$/file"), "x", 1);
	ck_assert_int_eq(ucm_os_symlink("file", root, "l"), 0);
	fd = ucm_os_open(root, "l", O_PATH, 0);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ucm_os_utimens(fd, times), 0);
	ck_assert_int_eq(ucm_os_fchown(fd, geteuid(), getegid()), 0);
	ck_assert_int_eq(ucm_os_readlink(fd, "", text, sizeof(text)), 0);
	ck_assert_str_eq(text, "file");
	ck_assert_int_eq(ucm_os_stat(root, "l", &st), 0);
	ck_assert_int_eq(st.st_mtim.tv_sec, 7);
	ck_assert_int_eq(ucm_os_stat(root, "file", &st), 0);
	ck_assert_int_ne(st.st_mtim.tv_sec, 7);
	ck_assert_int_eq(ucm_os_readlink(root, "", text, 16), -EINVAL);
}

UNIT_TEST(reads_end_at_the_end_of_the_file)
{
	_cleanup_fd_ int root = root_fd();
	_cleanup_fd_ int fd = ucm_os_open(root, "f", O_RDWR | O_CREAT, 0644);
	char text[16] = "";

	ck_assert_int_eq(ucm_os_write_at(fd, "0123456789", 10, 3), 0);
	ck_assert_int_eq(ucm_os_read_at(fd, text, 16, 0), 13);
	ck_assert_mem_eq(text, "\0\0\0" "0123456789", 13);
	ck_assert_int_eq(ucm_os_read_at(fd, text, 4, 9), 4);
	ck_assert_mem_eq(text, "6789", 4);
	ck_assert_int_eq(ucm_os_read_at(fd, text, 4, 100), 0);
}

UNIT_TEST(errors_of_the_kernel_come_back_as_they_are)
{
	char c;

	ck_assert_int_eq(ucm_os_read_at(-1, &c, 1, 0), -EBADF);
	ck_assert_int_eq(ucm_os_write_at(-1, &c, 1, 0), -EBADF);
	ck_assert_int_eq(ucm_os_flush(-1), -EBADF);
	ck_assert_int_eq(ucm_os_fdatasync(-1), -EBADF);
	ck_assert_int_eq(ucm_os_open(-1, "x", O_RDONLY, 0), -EBADF);
}

UNIT_TEST(a_small_file_is_replaced_whole_or_not_at_all)
{
	static const char *const calls[] = { "open", "write", "fsync",
					     "rename" };
	_cleanup_fd_ int root = root_fd();
	char text[16];

	ck_assert_int_eq(ucm_os_replace_file(root, "f", "old", 3), 0);
	for (size_t i = 0; i < NUM_ROWS(calls); i++) {
		fx_fail(calls[i], 1, -EIO, true);
		ck_assert_int_eq(ucm_os_replace_file(root, "f", "newer", 5),
				 -EIO);
		fx_fail(NULL, 0, 0, false);
		ck_assert_int_eq(ucm_os_read_file(root, "f", text, 16), 0);
		ck_assert_str_eq(text, "old");
		ck_assert_uint_eq(fx_count(fx_path("$")), 1);
	}
	ck_assert_int_eq(ucm_os_replace_file(root, "f", "newer", 5), 0);
	ck_assert_int_eq(ucm_os_read_file(root, "f", text, 16), 0);
	ck_assert_str_eq(text, "newer");
	ck_assert_uint_eq(fx_count(fx_path("$")), 1);
}

UNIT_TEST(a_file_must_fit_with_its_nul)
{
	_cleanup_fd_ int root = root_fd();
	char text[8], name[300];

	ck_assert_int_eq(ucm_os_replace_file(root, "f", "1234567", 7), 0);
	ck_assert_int_eq(ucm_os_read_file(root, "f", text, 8), 0);
	ck_assert_str_eq(text, "1234567");
	ck_assert_int_eq(ucm_os_read_file(root, "f", text, 7), -EFBIG);
	ck_assert_int_eq(ucm_os_read_file(root, "none", text, 8), -ENOENT);
	memset(name, 'n', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	ck_assert_int_eq(ucm_os_replace_file(root, name, "x", 1),
			 -ENAMETOOLONG);
}

UNIT_TEST(a_listing_has_what_readdir_tells)
{
	_cleanup_fd_ int root = root_fd();
	_cleanup_free_ struct dirent *entries = NULL;
	const struct dirent *entry;
	unsigned num = 0;
	struct stat st;

	fx_mkdirs(fx_path("$/folder"));
	fx_put(fx_path("$/file"), "x", 1);
	ck_assert_int_eq(ucm_os_list_entries(root, ".", &entries), 0);
	for (entry = entries; entry->d_reclen; num++) {
		ck_assert_int_eq(ucm_os_stat(root, entry->d_name, &st), 0);
		ck_assert_uint_eq(entry->d_ino, st.st_ino);
		if (entry->d_type != DT_UNKNOWN)
			ck_assert_int_eq(entry->d_type == DT_DIR,
					 S_ISDIR(st.st_mode));
		entry = (const struct dirent *)((const char *)entry +
						entry->d_reclen);
	}
	ck_assert_uint_eq(num, 2);
	ck_assert_int_eq(ucm_os_list_entries(root, "file", &entries), -ENOTDIR);
}

/* Also one that has lost its name, and one that was opened for no more than
 * that. */
UNIT_TEST(a_file_is_opened_once_more_without_its_name)
{
	_cleanup_fd_ int root = root_fd();
	_cleanup_fd_ int fd = -1;
	_cleanup_fd_ int again = -1;
	char text[8] = "";

	fx_put(fx_path("$/f"), "text", 4);
	fd = ucm_os_open(root, "f", O_PATH, 0);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ucm_os_unlink(root, "f"), 0);
	again = ucm_os_reopen(fd, O_RDWR);
	ck_assert_int_ge(again, 0);
	ck_assert_int_eq(ucm_os_write_at(again, "T", 1, 0), 0);
	ck_assert_int_eq(ucm_os_read_at(again, text, 7, 0), 4);
	ck_assert_str_eq(text, "Text");
	ck_assert_int_eq(ucm_os_seek(again, 0, SEEK_HOLE), 4);
	ck_assert_int_eq(ucm_os_seek(again, 9, SEEK_DATA), -ENXIO);
}

UNIT_TEST(rounding_goes_up_to_the_next_multiple)
{
	static const struct {
		uint64_t value, to, want;
	} rows[] = {
		{ 0, 4096, 0 }, { 1, 4096, 4096 }, { 4096, 4096, 4096 },
		{ 4097, 4096, 8192 }, { 7, 1, 7 },
		{ UINT64_C(1) << 53, 4096, UINT64_C(1) << 53 },
	};

	for (size_t i = 0; i < NUM_ROWS(rows); i++)
		ck_assert_uint_eq(ucm_round_up(rows[i].value, rows[i].to),
				  rows[i].want);
}
