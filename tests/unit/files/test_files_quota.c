/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_files_quota.c - quotas of folders of files/: which files go, what is
 * counted, what is kept of a mark. The thread is played by the test, if it does
 * not say otherwise, and a day has passed since the files were made.
 */
#include <config.h>

#include "fs/files/quota.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/osfile.h"
#include "common/osguard.h"
#include "fs/files/files.h"
#include "fs/files/node.h"
#include "tests/unit/tier_fixture.h"

#define BYTES 16384u /* of a file */
#define DAY_NS (INT64_C(86400) * 1000000000)

static struct ucm_dirs dirs;
static struct ucm_files_tree tree;
static struct ucm_files_nodes nodes;
static int64_t passed_ns; /* since the files were made */
static const char *open_name; /* this one is open */

/* ---- a tree ---- */

static int64_t later(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return ucm_time_ns(&now) + passed_ns;
}

static bool is_open(void *arg, const struct ucm_files_node *node)
{
	(void)arg;
	return open_name && !strcmp(node->name, open_name);
}

static void settle(void *arg)
{
	(void)arg;
}

static const struct ucm_files_quota_ops hooks = {
	.is_open = is_open,
	.settle = settle,
};

static void begin(void)
{
	struct ucm_error error = { "" };
	struct stat root;

	ck_assert_msg(!ucm_dirs_open(&dirs, &fx_config, &error), "%s",
		      error.text);
	ucm_files_tree_init(&tree, &dirs, 0);
	ck_assert_int_eq(ucm_medium_begin(dirs.at[0]), 0);
	ck_assert_int_eq(ucm_files_look(&tree, "files", &root), 0);
	ucm_files_nodes_init(&nodes, root.st_ino);
	ck_assert_int_eq(ucm_files_quotas_open(&tree), 0);
	tree.quotas->now_ns = later;
	tree.quotas->nodes = &nodes;
	tree.quotas->ops = &hooks;
}

static void end(void)
{
	ck_assert(ucm_files_quotas_stop(&tree, 10000));
	ucm_files_quotas_close(&tree);
	ucm_files_nodes_fini(&nodes);
	ucm_dirs_close(&dirs);
}

static void tree_store(const char *source)
{
	passed_ns = DAY_NS;
	open_name = NULL;
	fx_configure(source);
	begin();
}

static void again(void)
{
	end();
	begin();
}

static void tree_teardown(void)
{
	end();
	fx_teardown();
}

static void work(void)
{
	unsigned steps = 0;

	while (ucm_files_quotas_step(tree.quotas))
		must(++steps < 10000);
}

/* ---- what is in it ---- */

static void folder(const char *path)
{
	struct ucm_files_owner who = { geteuid(), getegid(), 0755, NULL };
	struct stat made;

	ck_assert_int_eq(ucm_files_mkdir(&tree, path, &who, &made), 0);
}

/* A file as the mount makes it. */
static void make(const char *path)
{
	static const char bytes[BYTES] = "x";
	struct ucm_files_owner who = { geteuid(), getegid(), 0644, NULL };
	struct stat st;
	int fd = ucm_files_create(&tree, path, &who, &st);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, bytes, sizeof(bytes)), sizeof(bytes));
	ck_assert_int_eq(fstat(fd, &st), 0);
	ucm_files_account(&tree, path, (int64_t)ucm_file_takes(&st));
	close(fd);
}

static bool is_there(const char *path)
{
	struct stat st;

	return !ucm_files_look(&tree, path, &st);
}

static void remove_file(const char *path)
{
	struct stat st;

	ck_assert_int_eq(ucm_files_look(&tree, path, &st), 0);
	ck_assert_int_eq(ucm_files_unlink(&tree, path, &st), 0);
}

static void move(const char *from, const char *to)
{
	struct stat from_st, to_st;
	bool over = !ucm_files_look(&tree, to, &to_st);

	ck_assert_int_eq(ucm_files_look(&tree, from, &from_st), 0);
	ck_assert_int_eq(ucm_files_rename(&tree, from, to, 0, &from_st,
					  over ? &to_st : NULL),
			 0);
}

/* Last written and last used so many hours ago. */
static void age(const char *path, int written, int used)
{
	int64_t now = time(NULL);
	struct timespec times[2] = { { .tv_sec = now - 3600 * used },
				     { .tv_sec = now - 3600 * written } };

	ck_assert_int_eq(utimensat(tree.at->dirfd, path, times, 0), 0);
}

static int set(const char *path, const char *what, const char *value)
{
	return ucm_files_mark_set(&tree, path, what, value, strlen(value));
}

/* A quota of so many files: a little more than these take, so that one more
 * reaches it. */
static void mark(const char *path, unsigned files, const char *order)
{
	char quota[24];

	snprintf(quota, sizeof(quota), "%u", files * BYTES + BYTES / 2);
	ck_assert_int_eq(set(path, "quota", quota), 0);
	ck_assert_int_eq(set(path, "order", order), 0);
}

static struct ucm_files_mark_info info_of(const char *path)
{
	struct ucm_files_mark_info info = { 0 };

	ck_assert_msg(ucm_files_mark_get(&tree, path, &info), "%s has no mark",
		      path);
	return info;
}

static uint64_t used(const char *path)
{
	return info_of(path).used;
}

/* f0 to f(num-1), of which f0 is the oldest. */
static void make_row(const char *in, unsigned num)
{
	char path[128];

	for (unsigned i = 0; i < num; i++) {
		snprintf(path, sizeof(path), "%s/f%u", in, i);
		make(path);
		age(path, (int)(num - i), (int)(num - i));
	}
}

/* Which of f0 to f(num-1) are there: "01.3" */
static const char *row(const char *in, unsigned num)
{
	static char text[32];
	char path[128];

	for (unsigned i = 0; i < num; i++) {
		snprintf(path, sizeof(path), "%s/f%u", in, i);
		text[i] = is_there(path) ? (char)('0' + i) : '.';
	}
	text[num] = '\0';
	return text;
}

UNIT_FIXTURE(.setup = fx_setup, .teardown = tree_teardown);

/* ---- which go ---- */

UNIT_TEST(the_oldest_go_until_it_is_below_the_quota)
{
	tree_store("$/a");
	folder("files/kv");
	make_row("files/kv", 8);
	mark("files/kv", 5, "fifo");
	work();
	ck_assert_str_eq(row("files/kv", 8), "...34567");
	ck_assert_uint_eq(used("files/kv"), 5 * BYTES);
	ck_assert_uint_eq(info_of("files/kv").files_evicted, 3);
	ck_assert_uint_eq(info_of("files/kv").bytes_evicted, 3 * BYTES);
	work();
	ck_assert_str_eq(row("files/kv", 8), "...34567");
}

UNIT_TEST(what_was_used_stays_by_lru_and_goes_by_fifo)
{
	static const char *const left[] = { "0...456", "...3456" };

	for (int order = 0; order < UCM_FILES_ORDERS; order++) {
		tree_store(order ? "$/b" : "$/a");
		folder("files/kv");
		make_row("files/kv", 7);
		age("files/kv/f0", 7, 0);
		mark("files/kv", 4, ucm_files_orders[order]);
		work();
		ck_assert_str_eq(row("files/kv", 7), left[order]);
		if (!order)
			end();
	}
}

UNIT_TEST(an_open_file_stays)
{
	struct stat st;

	tree_store("$/a");
	folder("files/kv");
	make_row("files/kv", 6);
	/* as the kernel knows it */
	ck_assert_int_eq(ucm_files_look(&tree, "files/kv", &st), 0);
	struct ucm_files_node *kv =
		ucm_files_looked_up(&nodes, &nodes.root, "kv", &st);
	ck_assert_int_eq(ucm_files_look(&tree, "files/kv/f0", &st), 0);
	ucm_files_looked_up(&nodes, kv, "f0", &st);
	open_name = "f0";
	mark("files/kv", 3, "fifo");
	work();
	ck_assert_str_eq(row("files/kv", 6), "0...45");
	open_name = NULL;
	mark("files/kv", 2, "fifo");
	work();
	ck_assert_str_eq(row("files/kv", 6), "....45");
	ck_assert_ptr_null(ucm_files_known(&nodes, st.st_ino));
}

UNIT_TEST(a_young_file_stays_whatever_its_date)
{
	tree_store("$/a");
	folder("files/kv");
	make_row("files/kv", 6);
	ck_assert_int_eq(set("files/kv", "quota", "1"), 0);
	ck_assert_int_eq(set("files/kv", "grace", "60"), 0);
	passed_ns = INT64_C(59) * 1000000000;
	work();
	ck_assert_str_eq(row("files/kv", 6), "012345");
	ck_assert(fx_logged("files/kv: its quota of 1 bytes is used up"));
	ck_assert(fx_logged("of 6 files 0 are open and 6 were changed"));
	passed_ns = INT64_C(62) * 1000000000;
	ck_assert_int_eq(set("files/kv", "quota", "2"), 0);
	work();
	ck_assert_str_eq(row("files/kv", 6), "......");
}

UNIT_TEST(what_is_outside_stays_and_links_and_folders)
{
	struct ucm_files_owner who = { geteuid(), getegid(), 0777,
				       "../out/f0" };
	struct stat made;

	tree_store("$/a");
	folder("files/kv");
	folder("files/kv/deep");
	folder("files/kv2");
	folder("files/out");
	make_row("files/kv/deep", 4);
	make_row("files/kv2", 4);
	make_row("files/out", 4);
	ck_assert_int_eq(ucm_files_symlink(&tree, "files/kv/link", &who, &made),
			 0);
	ck_assert_int_eq(set("files/kv", "quota", "1"), 0);
	work();
	ck_assert_str_eq(row("files/kv/deep", 4), "....");
	ck_assert_str_eq(row("files/kv2", 4), "0123");
	ck_assert_str_eq(row("files/out", 4), "0123");
	ck_assert(is_there("files/kv/deep"));
	ck_assert(is_there("files/kv/link"));
}

UNIT_TEST(only_top_folders_have_quotas)
{
	tree_store("$/a");
	folder("files/kv");
	folder("files/kv/in");
	ck_assert_int_eq(set("files/kv/in", "quota", "1G"), -EOPNOTSUPP);
	ck_assert(fx_logged("files/kv/in: user.ucmfs.quota: only folders right "
			    "in files/ have quotas"));
	ck_assert_int_eq(set("files", "quota", "1G"), -EOPNOTSUPP);
	ck_assert_uint_eq(tree.quotas->num, 0);
}

/* ---- races ---- */

/* What is chosen is not what has the name by then. */
static void fill_pool(void)
{
	folder("files/kv");
	make_row("files/kv", 4);
	mark("files/kv", 4, "fifo");
	work(); /* it has been looked at, and nothing had to go */
	ck_assert_uint_eq(tree.quotas->marks[0]->pool.num, 4);
}

UNIT_TEST(a_file_of_the_same_name_that_came_since_stays)
{
	tree_store("$/a");
	fill_pool();
	remove_file("files/kv/f0");
	make("files/kv/other"); /* or it has the same inode */
	make("files/kv/f0");
	make("files/kv/more");
	work();
	ck_assert_str_eq(row("files/kv", 4), "0..3");
}

UNIT_TEST(one_that_was_used_since_stays)
{
	tree_store("$/a");
	fill_pool();
	age("files/kv/f0", 0, 0);
	make("files/kv/more");
	work();
	ck_assert_str_eq(row("files/kv", 4), "0.23");
}

UNIT_TEST(one_that_was_renamed_away_stays)
{
	tree_store("$/a");
	fill_pool();
	folder("files/out");
	move("files/kv/f0", "files/out/f0");
	ck_assert_uint_eq(used("files/kv"), 3 * BYTES);
	make("files/kv/more");
	make("files/kv/yet");
	work();
	ck_assert_str_eq(row("files/kv", 4), "..23");
	ck_assert(is_there("files/out/f0"));
}

UNIT_TEST(a_directory_that_refuses_is_left_alone)
{
	tree_store("$/a");
	folder("files/kv");
	make_row("files/kv", 8);
	mark("files/kv", 3, "fifo");
	fx_fail("unlink", 1, -EROFS, false);
	work();
	ck_assert_str_eq(row("files/kv", 8), "01234567");
	ck_assert(fx_logged("nothing may go"));
	fx_fail(NULL, 0, 0, false);
	mark("files/kv", 4, "fifo");
	work();
	ck_assert_str_eq(row("files/kv", 8), "....4567");
}

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

/* ---- room ---- */

UNIT_TEST(no_file_is_made_where_nothing_may_go)
{
	tree_store("$/a");
	folder("files/kv");
	make_row("files/kv", 4);
	ck_assert_int_eq(ucm_files_quota_room(&tree, "files/kv/x"), 0);
	passed_ns = 0;
	mark("files/kv", 2, "fifo");
	work();
	ck_assert_int_eq(ucm_files_quota_room(&tree, "files/kv/x"), -EDQUOT);
	ck_assert_int_eq(ucm_files_quota_room(&tree, "files/x"), 0);
	ck_assert_uint_eq(info_of("files/kv").refused, 1);
	remove_file("files/kv/f0");
	remove_file("files/kv/f1");
	ck_assert_int_eq(ucm_files_quota_room(&tree, "files/kv/x"), 0);
}

UNIT_TEST(whoever_makes_a_file_waits_for_room)
{
	tree_store("$/a");
	folder("files/kv");
	make_row("files/kv", 8);
	mark("files/kv", 4, "fifo");
	ucm_must_not_wait = true;
	work();
	ck_assert_int_eq(ucm_files_quota_room(&tree, "files/kv/x"), 0);
	for (unsigned i = 0; i < 8; i++) {
		char path[32];

		sprintf(path, "files/kv/g%u", i);
		make(path);
	}
	ck_assert_int_eq(ucm_files_quota_room(&tree, "files/kv/x"),
			 -EINPROGRESS);
	ucm_must_not_wait = false;
	ck_assert_int_eq(ucm_files_quotas_start(&tree, &nodes, &hooks), 0);
	ck_assert_int_eq(ucm_files_quota_room(&tree, "files/kv/x"), 0);
	ck_assert_uint_lt(used("files/kv"), 5 * BYTES);
}

static bool is_counted(void *arg)
{
	(void)arg;
	return info_of("files/kv").counted;
}

UNIT_TEST(that_nothing_may_go_is_told_once)
{
	tree_store("$/a");
	folder("files/kv");
	passed_ns = 0;
	make_row("files/kv", 4);
	mark("files/kv", 2, "fifo");
	ck_assert_int_eq(ucm_files_quotas_start(&tree, &nodes, &hooks), 0);
	fx_wait(is_counted, NULL);
	for (unsigned i = 0; i < 20; i++)
		ck_assert_int_eq(ucm_files_quota_room(&tree, "files/kv/x"),
				 -EDQUOT);
	ck_assert(fx_logged("nothing may go"));
	fx_clear_log();
	tree.quotas->marks[0]->again_ms = 0;
	ck_assert_int_eq(ucm_files_quota_room(&tree, "files/kv/x"), -EDQUOT);
	ck_assert(!fx_logged("nothing may go"));
}
