/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_files_quota.c - quotas of folders of files/: which files go, and who
 * waits for room.
 */
#include <config.h>

#include "fs/files/quota.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/osguard.h"
#include "fs/files/files.h"
#include "fs/files/node.h"
#include "tests/unit/files/quota_fixture.h"

static bool is_there(const char *path)
{
	struct stat st;

	return !ucm_files_look(&tree, path, &st);
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
