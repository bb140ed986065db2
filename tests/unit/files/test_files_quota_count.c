/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_files_quota_count.c - what is counted for quotas of folders, and what
 * is kept of their marks.
 */
#include <config.h>

#include "fs/files/quota.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/osfile.h"
#include "fs/files/files.h"
#include "tests/unit/files/quota_fixture.h"

static void again(void)
{
	end();
	begin();
}

UNIT_FIXTURE(.setup = fx_setup, .teardown = tree_teardown);

/* ---- counting ---- */

UNIT_TEST(names_that_come_and_go_are_charged)
{
	tree_store("$/a");
	folder("files/kv");
	folder("files/kv/in");
	folder("files/out");
	folder("files/other");
	mark("files/kv", 100, "lru");
	mark("files/other", 100, "lru");
	work();
	make("files/kv/x");
	make("files/kv/in/y");
	make("files/out/z");
	ck_assert_uint_eq(used("files/kv"), 2 * BYTES);
	move("files/out/z", "files/kv/in/z");
	ck_assert_uint_eq(used("files/kv"), 3 * BYTES);
	move("files/kv/in/z", "files/other/z");
	ck_assert_uint_eq(used("files/kv"), 2 * BYTES);
	ck_assert_uint_eq(used("files/other"), BYTES);
	move("files/kv/in/y", "files/kv/x");
	ck_assert_uint_eq(used("files/kv"), BYTES);
	remove_file("files/kv/x");
	ck_assert_uint_eq(used("files/kv"), 0);
}

UNIT_TEST(a_file_counts_under_each_name)
{
	struct stat st;
	int fd;

	tree_store("$/a");
	folder("files/kv");
	folder("files/other");
	mark("files/kv", 100, "lru");
	mark("files/other", 100, "lru");
	work();
	make("files/kv/x");
	fd = ucm_os_open(tree.at->dirfd, "files/kv/x", O_PATH, 0);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ucm_files_link(&tree, fd, "files/kv/y", &st), 0);
	ck_assert_int_eq(ucm_files_link(&tree, fd, "files/other/z", &st), 0);
	close(fd);
	for (int counted = 0; counted < 2; counted++) {
		ck_assert_uint_eq(used("files/kv"), 2 * BYTES);
		ck_assert_uint_eq(used("files/other"), BYTES);
		tree.quotas->marks[0]->stale = true;
		tree.quotas->marks[1]->stale = true;
		work();
	}
	remove_file("files/kv/x");
	ck_assert_uint_eq(used("files/kv"), BYTES);
	ck_assert_uint_eq(used("files/other"), BYTES);
}

UNIT_TEST(a_moved_folder_takes_its_bytes_along)
{
	tree_store("$/a");
	folder("files/kv");
	folder("files/kv/in");
	folder("files/other");
	make_row("files/kv/in", 3);
	mark("files/kv", 100, "lru");
	mark("files/other", 100, "lru");
	work();
	ck_assert_uint_eq(used("files/kv"), 3 * BYTES);
	move("files/kv/in", "files/other/in");
	work();
	ck_assert_uint_eq(used("files/kv"), 0);
	ck_assert_uint_eq(used("files/other"), 3 * BYTES);
}

/* While a walk is at "m": what comes and goes on both sides of it. */
static bool interfering;

static int interfere(const char *call, const char *path)
{
	if (interfering || strcmp(call, "stat") || !path || strcmp(path, "m"))
		return 0;
	interfering = true;
	make("files/kv/a-new");
	make("files/kv/y-new");
	make("files/kv/d/new");
	make("files/kv/z/new");
	make("files/kv/z/brief");
	remove_file("files/kv/z/brief");
	remove_file("files/kv/b");
	remove_file("files/kv/y");
	move("files/kv/c", "files/kv/q");
	move("files/kv/z/x", "files/kv/a");
	return 0;
}

UNIT_TEST(a_walk_is_right_though_files_come_and_go)
{
	tree_store("$/a");
	folder("files/kv");
	folder("files/kv/d");
	folder("files/kv/z");
	make("files/kv/b");
	make("files/kv/c");
	make("files/kv/m");
	make("files/kv/y");
	make("files/kv/d/x");
	make("files/kv/z/x");
	mark("files/kv", 100, "lru");
	interfering = false;
	atomic_store(&ucm_os_fault, interfere);
	ck_assert(ucm_files_quotas_step(tree.quotas));
	atomic_store(&ucm_os_fault, NULL);
	ck_assert(interfering);
	/* m, a, q, d/x and four that are new */
	ck_assert_uint_eq(used("files/kv"), 8 * BYTES);
	tree.quotas->marks[0]->stale = true;
	work();
	ck_assert_uint_eq(used("files/kv"), 8 * BYTES);
}

UNIT_TEST(a_directory_that_fails_counts_as_before)
{
	tree_store("$/a");
	folder("files/kv");
	make_row("files/kv", 3);
	mark("files/kv", 100, "lru");
	work();
	tree.quotas->marks[0]->stale = true;
	fx_fail("getdents", 1, -EIO, false);
	fx_fail("readdir", 1, -EIO, false);
	fx_fail(NULL, 1, -EIO, false);
	work();
	fx_fail(NULL, 0, 0, false);
	ck_assert_uint_eq(used("files/kv"), 3 * BYTES);
}

/* ---- marks ---- */

UNIT_TEST(marks_survive)
{
	uint64_t number;

	tree_store("$/a");
	folder("files/kv");
	folder("files/two\nlines and more");
	mark("files/kv", 7, "fifo");
	ck_assert_int_eq(set("files/kv", "grace", "77"), 0);
	ck_assert_int_eq(set("files/two\nlines and more", "quota", "500G"), 0);
	number = info_of("files/kv").number;
	again();
	ck_assert_uint_eq(info_of("files/kv").quota, 7 * BYTES + BYTES / 2);
	ck_assert_int_eq(info_of("files/kv").order, UCM_FILES_FIFO);
	ck_assert_uint_eq(info_of("files/kv").grace_s, 77);
	ck_assert_uint_eq(info_of("files/kv").number, number);
	ck_assert_uint_eq(info_of("files/two\nlines and more").quota,
			  UINT64_C(500) << 30);
	ck_assert_uint_ne(info_of("files/two\nlines and more").number, number);
	ck_assert_int_eq(set("files/kv", "quota", ""), 0);
	again();
	ck_assert_uint_eq(tree.quotas->num, 1);
	/* nothing of it is left for the next one */
	mark("files/kv", 7, "lru");
	ck_assert_uint_eq(info_of("files/kv").grace_s, UCM_QUOTA_GRACE_S);
}

UNIT_TEST(a_mark_that_cannot_be_read_is_none)
{
	int fd;

	tree_store("$/a");
	folder("files/kv");
	mark("files/kv", 7, "fifo");
	fd = ucm_os_open(tree.at->dirfd, "files/kv", O_PATH, 0);
	ck_assert_int_eq(ucm_os_setxattr(fd, "user.ucmfs.quota", "much", 4, 0),
			 0);
	close(fd);
	again();
	ck_assert(fx_logged("files/kv: user.ucmfs.quota: \"much\" is not"));
	ck_assert_uint_eq(tree.quotas->num, 0);
}

UNIT_TEST(a_mark_goes_with_its_folder)
{
	struct ucm_files_mark_info info;

	tree_store("$/a");
	folder("files/kv");
	folder("files/out");
	mark("files/kv", 7, "fifo");
	move("files/kv", "files/kw");
	ck_assert(!ucm_files_mark_get(&tree, "files/kv", &info));
	ck_assert_uint_eq(info_of("files/kw").quota, 7 * BYTES + BYTES / 2);
	again();
	ck_assert_uint_eq(info_of("files/kw").quota, 7 * BYTES + BYTES / 2);
	make_row("files/kw", 10);
	work();
	ck_assert_uint_eq(used("files/kw"), 7 * BYTES);
	/* below another folder it does not count, until it comes back */
	move("files/kw", "files/out/kw");
	ck_assert_uint_eq(tree.quotas->num, 0);
	move("files/out/kw", "files/kv");
	ck_assert_uint_eq(info_of("files/kv").quota, 7 * BYTES + BYTES / 2);
	/* what is replaced is gone, and so is what is removed */
	mark("files/out", 3, "lru");
	move("files/kv", "files/out");
	ck_assert_uint_eq(tree.quotas->num, 1);
	ck_assert_uint_eq(info_of("files/out").quota, 7 * BYTES + BYTES / 2);
	folder("files/empty");
	mark("files/empty", 3, "lru");
	ck_assert_int_eq(ucm_files_rmdir(&tree, "files/empty"), 0);
	ck_assert_uint_eq(tree.quotas->num, 1);
	folder("files/empty");
	ck_assert_uint_eq(tree.quotas->num, 1);
}

static const struct {
	const char *what, *value;
} wrong[] = {
	{ "quota", "5x" }, { "quota", "-1" },    { "quota", "half" },
	{ "quota", "80%" }, { "order", "random" }, { "order", "LRU" },
	{ "grace", "1m" }, { "grace", "604801" }, { "grace", "-1" },
	{ "quota", "123456789012345678901234567890123" },
};

UNIT_TEST(a_wrong_value_is_named, .rows = NUM_ROWS(wrong))
{
	char text[64];

	tree_store("$/a");
	folder("files/kv");
	mark("files/kv", 7, "fifo");
	ck_assert_int_eq(set("files/kv", wrong[_i].what, wrong[_i].value),
			 -EINVAL);
	snprintf(text, sizeof(text), "user.ucmfs.%s: \"%s\"", wrong[_i].what,
		 wrong[_i].value);
	ck_assert_msg(fx_logged(text), "%s is not in the log", text);
	ck_assert_uint_eq(info_of("files/kv").quota, 7 * BYTES + BYTES / 2);
	ck_assert_int_eq(info_of("files/kv").order, UCM_FILES_FIFO);
}

UNIT_TEST(order_and_grace_need_a_quota)
{
	tree_store("$/a");
	folder("files/kv");
	ck_assert_int_eq(set("files/kv", "order", "fifo"), -EINVAL);
	ck_assert(fx_logged("files/kv: user.ucmfs.order: the folder has no"));
	ck_assert_int_eq(set("files/kv", "grace", "1"), -EINVAL);
	ck_assert_int_eq(set("files/kv", "order", ""), 0);
	ck_assert_uint_eq(tree.quotas->num, 0);
}

UNIT_TEST(a_mark_that_cannot_be_written_is_none)
{
	tree_store("$/a");
	folder("files/kv");
	fx_fail("setxattr", 1, -ENOSPC, false);
	ck_assert_int_eq(set("files/kv", "quota", "1G"), -ENOSPC);
	fx_fail(NULL, 0, 0, false);
	ck_assert_uint_eq(tree.quotas->num, 0);
}

UNIT_TEST(there_are_only_so_many)
{
	char path[32];

	tree_store("$/a");
	for (unsigned i = 0; i < UCM_QUOTA_MARKS; i++) {
		sprintf(path, "files/%u", i);
		folder(path);
		ck_assert_int_eq(set(path, "quota", "1G"), 0);
	}
	folder("files/more");
	ck_assert_int_eq(set("files/more", "quota", "1G"), -ENOSPC);
	ck_assert(fx_logged("files/more: user.ucmfs.quota: 64 folders"));
	again();
	ck_assert_uint_eq(tree.quotas->num, UCM_QUOTA_MARKS);
}
