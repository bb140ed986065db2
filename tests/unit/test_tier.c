/* SPDX-License-Identifier: Apache-2.0 */
/* test_tier.c - the directories of one tier, and the room in them. */
#include <config.h>

#include "fs/tier.h"

#include <errno.h>
#include <string.h>

#include "tests/unit/store_fixture.h"

static struct ucm_tier tier;
static struct ucm_backing *chosen;
static struct ucm_id id;

static void open_tier(const char *source)
{
	struct ucm_complaint complaint = { "" };

	fx_configure(source);
	ck_assert_msg(!ucm_tier_open(&tier, &fx_config.tiers[0], 0, &fx_config,
				     &complaint), "%s", complaint.text);
}

static int choose(enum ucm_policy policy, uint64_t bytes)
{
	return ucm_tier_choose(&tier, policy, &id, bytes, &chosen);
}

static void close_tier(void)
{
	ucm_tier_close(&tier, false);
}

START_TEST(rendezvous_always_chooses_the_same_directory)
{
	const struct ucm_backing *first;
	unsigned counts[3] = { 0 };

	open_tier("$/a,$/b,$/c");
	for (unsigned i = 0; i < 300; i++) {
		id.bytes[0] = (uint8_t)i;
		id.bytes[1] = (uint8_t)(i >> 8);
		ck_assert_int_eq(choose(UCM_POLICY_RENDEZVOUS, 0), 0);
		first = chosen;
		ck_assert_int_eq(choose(UCM_POLICY_RENDEZVOUS, 4096), 0);
		ck_assert_ptr_eq(chosen, first);
		counts[chosen - tier.dirs]++;
	}
	for (unsigned i = 0; i < 3; i++)
		ck_assert_uint_gt(counts[i], 50);
	close_tier();
}
END_TEST

START_TEST(round_robin_takes_turns)
{
	open_tier("$/a,$/b,$/c");
	for (unsigned i = 0; i < 9; i++) {
		ck_assert_int_eq(choose(UCM_POLICY_ROUND_ROBIN, 0), 0);
		ck_assert_ptr_eq(chosen, &tier.dirs[i % 3]);
	}
	ck_assert_int_eq(choose(UCM_POLICY_RANDOM, 0), 0);
	close_tier();
}
END_TEST

START_TEST(a_directory_that_failed_is_the_last_to_be_asked_again)
{
	open_tier("$/a,$/b");
	ucm_backing_failed(&tier.dirs[0], "test", -EIO);
	ck_assert(fx_logged("/a: test: Input/output error"));
	for (unsigned i = 0; i < 4; i++) {
		ck_assert_int_eq(choose(UCM_POLICY_ROUND_ROBIN, 0), 0);
		ck_assert_ptr_eq(chosen, &tier.dirs[1]);
	}
	ucm_backing_failed(&tier.dirs[1], "test", -ENOSPC);
	ck_assert_int_eq(choose(UCM_POLICY_RENDEZVOUS, 0), -ENOSPC);
	atomic_store(&tier.dirs[0].retry_s, 1); /* long ago */
	ck_assert_int_eq(choose(UCM_POLICY_RENDEZVOUS, 0), 0);
	ck_assert_ptr_eq(chosen, &tier.dirs[0]);
	close_tier();
}
END_TEST

/* What is the caller's fault says nothing about the directory. */
START_TEST(only_some_errors_rest_a_directory)
{
	static const struct {
		int err;
		bool rests;
	} rows[] = {
		{ -EIO, true }, { -EROFS, true }, { -ENOSPC, true },
		{ -EDQUOT, true }, { -ESTALE, true }, { -ENOENT, true },
		{ -ETIMEDOUT, true }, { -EACCES, true }, { -EMFILE, false },
		{ -ENOMEM, false }, { -EINVAL, false },
	};

	open_tier("$/a");
	for (size_t i = 0; i < NUM_ROWS(rows); i++) {
		atomic_store(&tier.dirs[0].retry_s, 0);
		ucm_backing_failed(&tier.dirs[0], "test", rows[i].err);
		ck_assert_int_eq(atomic_load(&tier.dirs[0].retry_s) != 0,
				 rows[i].rests);
	}
	close_tier();
}
END_TEST

START_TEST(a_limit_counts_what_is_there_and_what_is_being_written)
{
	static const struct {
		uint64_t used, writing, bytes;
		int err;
	} rows[] = {
		{ 0, 0, 0, 0 },
		{ 0, 0, 100000, 0 },
		{ 0, 0, 100001, -ENOSPC },
		{ 60000, 40000, 0, 0 },
		{ 60000, 40000, 1, -ENOSPC },
		{ 100001, 0, 0, -ENOSPC },
	};

	open_tier("t=$/a");
	tier.limit = 100000;
	for (size_t i = 0; i < NUM_ROWS(rows); i++) {
		tier.used = rows[i].used;
		tier.writing = rows[i].writing;
		ck_assert_int_eq(choose(UCM_POLICY_RENDEZVOUS, rows[i].bytes),
				 rows[i].err);
	}
	close_tier();
}
END_TEST

START_TEST(a_block_larger_than_the_disk_has_no_room)
{
	open_tier("$/a");
	ck_assert_int_eq(choose(UCM_POLICY_RENDEZVOUS, UINT64_C(1) << 60),
			 -ENOSPC);
	close_tier();
}
END_TEST

START_TEST(a_directory_that_cannot_be_asked_is_passed_over)
{
	open_tier("$/a,$/b");
	for (unsigned i = 0; i < 4; i++) {
		fx_fail("statvfs", 1, -EIO, true);
		ck_assert_int_eq(choose(UCM_POLICY_ROUND_ROBIN, 0), 0);
		ck_assert_ptr_eq(chosen, &tier.dirs[(i + 1) % 2]);
	}
	fx_fail("statvfs", 1, -EIO, false);
	ck_assert_int_eq(choose(UCM_POLICY_ROUND_ROBIN, 0), -ENOSPC);
	close_tier();
}
END_TEST

START_TEST(a_percentage_is_one_of_the_file_systems)
{
	uint64_t total, available;

	open_tier("t=$/a,$/b");
	ck_assert_uint_eq(ucm_tier_limit_bytes(&tier), UINT64_MAX);
	ucm_tier_space(&tier, &total, &available);
	ck_assert_uint_gt(total, 0);
	tier.limit = 50;
	tier.limit_percent = true;
	/* both directories are on one file system: its space counts once */
	ck_assert_uint_eq(ucm_tier_limit_bytes(&tier), total / 100 * 50);
	close_tier();
}
END_TEST

START_TEST(space_is_what_the_limit_leaves)
{
	uint64_t total, available;

	open_tier("t=$/a");
	tier.limit = 1 << 20;
	tier.used = 1 << 18;
	ucm_tier_space(&tier, &total, &available);
	ck_assert_uint_eq(total, 1 << 20);
	ck_assert_uint_eq(available, (1 << 20) - (1 << 18));
	tier.used = 1 << 21; /* the limit was lowered */
	ucm_tier_space(&tier, &total, &available);
	ck_assert_uint_eq(available, 0);
	close_tier();
}
END_TEST

/* Beyond its end a file keeps nothing; holes and compression take less. */
START_TEST(a_file_takes_its_size_in_whole_blocks_at_most)
{
	static const struct {
		off_t size;
		blksize_t unit;
		uint64_t allocated, takes;
	} rows[] = {
		{ 0, 4096, 0, 0 },
		{ 0, 4096, 65536, 0 },
		{ 1, 4096, 4096, 4096 },
		{ 8192, 4096, 8192, 8192 },
		{ 8193, 4096, 12288, 12288 },
		{ 2 << 20, 4096, 4 << 20, 2 << 20 },
		{ 8192, 4096, 4096, 4096 },
		{ 8192, 1 << 20, 8704, 8704 }, /* st_blksize is no unit of disk */
		{ 300, 0, 512, 512 },
	};

	for (size_t i = 0; i < NUM_ROWS(rows); i++) {
		struct stat st = {
			.st_size = rows[i].size,
			.st_blksize = rows[i].unit,
			.st_blocks = (blkcnt_t)(rows[i].allocated / 512),
		};

		ck_assert_uint_eq(ucm_file_takes(&st), rows[i].takes);
	}
}
END_TEST

START_TEST(a_tier_opens_all_its_directories_or_none)
{
	struct ucm_complaint complaint = { "" };

	fx_configure("$/a,$/b");
	ck_assert_int_eq(ucm_config_source(&fx_config, fx_path("$/a,$/none"),
					   &complaint), 0);
	ck_assert_int_eq(ucm_tier_open(&tier, &fx_config.tiers[0], 0, &fx_config,
				       &complaint), -ENOENT);
	ck_assert_ptr_nonnull(strstr(complaint.text, "/none"));
	open_tier("$/a,$/b"); /* the first is not locked any more */
	close_tier();
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("tier");
	TCase *tests = tcase_create("tier");

	tcase_add_checked_fixture(tests, fx_setup, fx_teardown);
	tcase_add_test(tests, rendezvous_always_chooses_the_same_directory);
	tcase_add_test(tests, round_robin_takes_turns);
	tcase_add_test(tests,
		       a_directory_that_failed_is_the_last_to_be_asked_again);
	tcase_add_test(tests, only_some_errors_rest_a_directory);
	tcase_add_test(tests,
		       a_limit_counts_what_is_there_and_what_is_being_written);
	tcase_add_test(tests, a_block_larger_than_the_disk_has_no_room);
	tcase_add_test(tests, a_directory_that_cannot_be_asked_is_passed_over);
	tcase_add_test(tests, a_percentage_is_one_of_the_file_systems);
	tcase_add_test(tests, space_is_what_the_limit_leaves);
	tcase_add_test(tests, a_file_takes_its_size_in_whole_blocks_at_most);
	tcase_add_test(tests, a_tier_opens_all_its_directories_or_none);
	suite_add_tcase(suite, tests);
	return fx_run(suite);
}
