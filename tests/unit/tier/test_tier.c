/* SPDX-License-Identifier: Apache-2.0 */
/* test_tier.c - the directories of one tier, and the room in them. */
#include <config.h>

#include "fs/tier/tier.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "tests/unit/tier_fixture.h"

static struct ucm_tier tier;
static struct ucm_medium *chosen;
static struct ucm_id id;

static void open_tier(const char *source)
{
	struct ucm_error error = { "" };

	fx_configure(source);
	ck_assert_msg(!ucm_tier_open(&tier, &fx_config.tiers[0], 0, &fx_config,
				     &error),
		      "%s", error.text);
}

static int choose(enum ucm_placement policy, uint64_t bytes)
{
	struct ucm_want want = { .bytes = bytes, .anywhere = !bytes };
	struct ucm_promise *promise;
	int err = ucm_tier_choose(&tier, policy, &id, &want, &promise);

	if (err)
		return err;
	chosen = promise->medium;
	ucm_promise_end(promise);
	return 0;
}

static void close_tier(void)
{
	ucm_tier_close(&tier);
}

UNIT_FIXTURE(.setup = fx_setup, .teardown = fx_teardown);

UNIT_TEST(rendezvous_always_chooses_the_same_directory)
{
	const struct ucm_medium *first;
	unsigned counts[3] = { 0 };

	open_tier("$/a,$/b,$/c");
	for (unsigned i = 0; i < 300; i++) {
		id.bytes[0] = (uint8_t)i;
		id.bytes[1] = (uint8_t)(i >> 8);
		ck_assert_int_eq(choose(UCM_PLACEMENT_RENDEZVOUS, 0), 0);
		first = chosen;
		ck_assert_int_eq(choose(UCM_PLACEMENT_RENDEZVOUS, 4096), 0);
		ck_assert_ptr_eq(chosen, first);
		counts[ucm_tier_dir(&tier, chosen)]++;
	}
	for (unsigned i = 0; i < 3; i++)
		ck_assert_uint_gt(counts[i], 50);
	close_tier();
}

UNIT_TEST(round_robin_takes_turns)
{
	open_tier("$/a,$/b,$/c");
	for (unsigned i = 0; i < 9; i++) {
		ck_assert_int_eq(choose(UCM_PLACEMENT_ROUND_ROBIN, 0), 0);
		ck_assert_ptr_eq(chosen, tier.dirs[i % 3]);
	}
	ck_assert_int_eq(choose(UCM_PLACEMENT_RANDOM, 0), 0);
	close_tier();
}

UNIT_TEST(a_directory_that_failed_is_the_last_to_be_asked_again)
{
	open_tier("$/a,$/b");
	ucm_medium_failed(tier.dirs[0], "test", -EIO);
	ck_assert(fx_logged("/a: test: Input/output error"));
	for (unsigned i = 0; i < 4; i++) {
		ck_assert_int_eq(choose(UCM_PLACEMENT_ROUND_ROBIN, 0), 0);
		ck_assert_ptr_eq(chosen, tier.dirs[1]);
	}
	ucm_medium_failed(tier.dirs[1], "test", -ENOSPC);
	ck_assert_int_eq(choose(UCM_PLACEMENT_RENDEZVOUS, 0), -ENOSPC);
	atomic_store(&tier.dirs[0]->retry_s, 1); /* long ago */
	ck_assert_int_eq(choose(UCM_PLACEMENT_RENDEZVOUS, 0), 0);
	ck_assert_ptr_eq(chosen, tier.dirs[0]);
	close_tier();
}

/* What is the caller's fault says nothing about the directory. */
UNIT_TEST(only_some_errors_rest_a_directory)
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
		atomic_store(&tier.dirs[0]->retry_s, 0);
		ucm_medium_failed(tier.dirs[0], "test", rows[i].err);
		ck_assert_int_eq(atomic_load(&tier.dirs[0]->retry_s) != 0,
				 rows[i].rests);
	}
	close_tier();
}

UNIT_TEST(a_limit_counts_what_is_there_and_what_is_being_written)
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
	tier.limit.size = 100000;
	for (size_t i = 0; i < NUM_ROWS(rows); i++) {
		tier.dirs[0]->used = rows[i].used;
		tier.writing = rows[i].writing;
		ck_assert_int_eq(choose(UCM_PLACEMENT_RENDEZVOUS, rows[i].bytes),
				 rows[i].err);
	}
	close_tier();
}

/* Each directory has its own, and the tier one over both. */
UNIT_TEST(a_directory_that_is_full_is_passed_over)
{
	static const struct {
		uint64_t used, writing, bytes;
		int first; /* directory that takes it, or the error */
	} rows[] = {
		{ 0, 0, 100000, 0 },	      { 0, 0, 100001, 1 },
		{ 60000, 40000, 0, 0 },	      { 60000, 40000, 1, 1 },
		{ 100001, 0, 0, 1 },	      { 0, 0, 200001, -ENOSPC },
		{ 100000, 0, 150000, -ENOSPC }, /* of 240000 in the tier */
	};

	for (size_t i = 0; i < NUM_ROWS(rows); i++) {
		int err;

		open_tier("t=$/a,$/b");
		tier.limit.size = 240000;
		tier.dirs[0]->limit.size = 100000;
		tier.dirs[1]->limit.size = 200000;
		tier.dirs[0]->used = rows[i].used;
		tier.dirs[0]->writing = rows[i].writing;
		err = choose(UCM_PLACEMENT_ROUND_ROBIN, rows[i].bytes);
		ck_assert_int_eq(err < 0 ? err
					 : (int)ucm_tier_dir(&tier, chosen),
				 rows[i].first);
		ck_assert_uint_eq(tier.dirs[0]->writing, rows[i].writing);
		ck_assert_uint_eq(tier.dirs[1]->writing, 0);
		ck_assert_uint_eq(tier.writing, 0);
		close_tier();
	}
}

static struct ucm_promise *promises[16];

static int promise(unsigned n, uint64_t bytes, bool guessed)
{
	struct ucm_want want = { .bytes = bytes, .guessed = guessed };

	return ucm_tier_choose(&tier, UCM_PLACEMENT_RENDEZVOUS, &id, &want,
			       &promises[n]);
}

UNIT_TEST(what_is_promised_is_taken_from_the_limit_until_it_ends)
{
	open_tier("t=$/a");
	tier.limit.size = 100000;
	for (unsigned i = 0; i < 10; i++)
		ck_assert_int_eq(promise(i, 10000, false), 0);
	ck_assert_int_eq(promise(10, 1, false), -ENOSPC);
	ck_assert_uint_eq(tier.writing, 100000);
	ucm_promise_end(promises[0]);
	ck_assert_int_eq(promise(0, 10000, false), 0);
	for (unsigned i = 0; i < 10; i++)
		ucm_promise_end(promises[i]);
	ucm_promise_end(NULL);
	ck_assert_uint_eq(tier.writing, 0);
	close_tier();
}

/* Of a size that nobody knows, one at a time may pass the limit. */
UNIT_TEST(near_a_limit_there_is_one_guess_at_a_time)
{
	open_tier("t=$/a");
	tier.limit.size = 100000;
	tier.dirs[0]->used = 30000;
	ck_assert_int_eq(promise(0, 1 << 20, true), 0);
	ck_assert_uint_eq(promises[0]->bytes, 70000);
	ck_assert_uint_eq(tier.writing, 70000);
	ck_assert_uint_eq(tier.guessed, 70000);
	ck_assert_int_eq(promise(1, 1 << 20, true), -ENOSPC);
	ck_assert_int_eq(promise(1, 1, false), -ENOSPC);
	ucm_promise_resize(promises[0], 10000); /* it has told */
	ck_assert_uint_eq(tier.writing, 10000);
	ck_assert_uint_eq(tier.guessed, 0);
	ck_assert_int_eq(promise(1, 20000, false), 0);
	ck_assert_int_eq(promise(2, 1 << 20, true), 0);
	ck_assert_uint_eq(promises[2]->bytes, 40000);
	for (unsigned i = 0; i < 3; i++)
		ucm_promise_end(promises[i]);
	ck_assert_uint_eq(tier.writing, 0);
	ck_assert_uint_eq(tier.guessed, 0);
	tier.dirs[0]->used = 100000;
	ck_assert_int_eq(promise(0, 1 << 20, true), -ENOSPC);
	close_tier();
}

/* It makes do with what a directory has left; for the next one it wants all. */
UNIT_TEST(a_guess_is_one_for_each_directory)
{
	open_tier("t=$/a,$/b");
	tier.dirs[0]->limit.size = 50000;
	tier.dirs[1]->limit.size = 100000;
	tier.dirs[0]->used = 20000;
	ck_assert_int_eq(promise(0, 80000, true), 0);
	ck_assert_int_eq(promise(1, 80000, true), 0);
	for (unsigned i = 0; i < 2; i++) {
		bool first = promises[i]->medium == tier.dirs[0];

		ck_assert_uint_eq(promises[i]->bytes, first ? 30000 : 80000);
		ck_assert_uint_eq(promises[i]->medium->writing,
				  promises[i]->bytes);
		ck_assert_uint_eq(promises[i]->medium->guessed,
				  promises[i]->bytes);
	}
	ck_assert_ptr_ne(promises[0]->medium, promises[1]->medium);
	ck_assert_uint_eq(tier.writing, 110000);
	ck_assert_int_eq(promise(2, 80000, true), -ENOSPC);
	ck_assert_uint_eq(tier.writing, 110000);
	ucm_promise_resize(promises[0], 1000); /* it has told */
	ck_assert_uint_eq(promises[0]->medium->guessed, 0);
	ck_assert_uint_eq(promises[0]->medium->writing, 1000);
	for (unsigned i = 0; i < 2; i++)
		ucm_promise_end(promises[i]);
	for (unsigned i = 0; i < 2; i++) {
		ck_assert_uint_eq(tier.dirs[i]->writing, 0);
		ck_assert_uint_eq(tier.dirs[i]->guessed, 0);
	}
	ck_assert_uint_eq(tier.writing, 0);
	close_tier();
}

UNIT_TEST(far_from_a_limit_there_are_many)
{
	open_tier("t=$/a");
	tier.limit.size = 100000;
	for (unsigned i = 0; i < 4; i++)
		ck_assert_int_eq(promise(i, 25000, true), 0);
	ck_assert_int_eq(promise(4, 25000, true), -ENOSPC);
	for (unsigned i = 0; i < 4; i++)
		ucm_promise_end(promises[i]);
	close_tier();
}

/* It has to be more to matter: a file that is told to be short may grow. */
UNIT_TEST(a_size_that_was_known_only_grows)
{
	open_tier("t=$/a");
	ck_assert_int_eq(promise(0, 10000, false), 0);
	ucm_promise_resize(promises[0], 5000);
	ck_assert_uint_eq(tier.writing, 10000);
	ucm_promise_resize(promises[0], 15000);
	ck_assert_uint_eq(tier.writing, 15000);
	ucm_promise_end(promises[0]);
	ck_assert_uint_eq(tier.writing, 0);
	ucm_promise_resize(NULL, 1);
	close_tier();
}

UNIT_TEST(a_promise_that_finds_no_directory_takes_nothing)
{
	open_tier("t=$/a");
	tier.limit.size = 100000;
	fx_fail("statvfs", 1, -EIO, false);
	ck_assert_int_eq(promise(0, 10000, false), -EIO);
	atomic_store(&tier.dirs[0]->retry_s, 0);
	ck_assert_int_eq(promise(0, 10000, true), -EIO);
	ck_assert_uint_eq(tier.writing, 0);
	ck_assert_uint_eq(tier.guessed, 0);
	close_tier();
}

static _Atomic unsigned granted;

static void *promise_some(void *arg)
{
	struct ucm_want want = { .bytes = 1000 };
	struct ucm_promise *kept;

	(void)arg;
	for (unsigned i = 0; i < 100; i++) {
		if (!ucm_tier_choose(&tier, UCM_PLACEMENT_RENDEZVOUS, &id, &want,
				     &kept)) {
			/* used first, then the promise ends: as commits do */
			atomic_fetch_add(&tier.dirs[0]->used, 1000);
			ucm_promise_end(kept);
			atomic_fetch_add(&granted, 1);
		}
	}
	return NULL;
}

UNIT_TEST(threads_do_not_pass_the_limit)
{
	pthread_t threads[8];

	open_tier("t=$/a");
	tier.limit.size = 100500;
	for (unsigned i = 0; i < NUM_ROWS(threads); i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL,
						promise_some, NULL), 0);
	for (unsigned i = 0; i < NUM_ROWS(threads); i++)
		pthread_join(threads[i], NULL);
	ck_assert_uint_eq(granted, 100);
	ck_assert_uint_eq(tier.dirs[0]->used, 100000);
	close_tier();
}

UNIT_TEST(a_block_larger_than_the_disk_has_no_room)
{
	open_tier("$/a");
	ck_assert_int_eq(choose(UCM_PLACEMENT_RENDEZVOUS, UINT64_C(1) << 60),
			 -ENOSPC);
	close_tier();
}

UNIT_TEST(a_directory_that_cannot_be_asked_is_passed_over)
{
	open_tier("$/a,$/b");
	for (unsigned i = 0; i < 4; i++) {
		fx_fail("statvfs", 1, -EIO, true);
		ck_assert_int_eq(choose(UCM_PLACEMENT_ROUND_ROBIN, 0), 0);
		ck_assert_ptr_eq(chosen, tier.dirs[(i + 1) % 2]);
		atomic_store(&tier.dirs[i % 2]->retry_s, 0);
	}
	fx_fail("statvfs", 1, -EIO, false);
	ck_assert_int_eq(choose(UCM_PLACEMENT_ROUND_ROBIN, 0), -EIO);
	ck_assert(fx_logged("/a: statvfs: Input/output error"));
	close_tier();
}

/* Blocks are evicted where there is no room, so nothing else may be called so. */
UNIT_TEST(what_failed_is_not_full, .rows = 4)
{
	static const struct {
		int a, b, wants;
	} rows[] = {
		{ -EIO, -EIO, -EIO },
		{ -ESTALE, -EACCES, -EIO },
		{ -ENOSPC, -EDQUOT, -ENOSPC },
		{ -EIO, -ENOSPC, -ENOSPC },
	};

	open_tier("$/a,$/b");
	ucm_medium_failed(tier.dirs[0], "test", rows[_i].a);
	ucm_medium_failed(tier.dirs[1], "test", rows[_i].b);
	for (unsigned i = 0; i < 4; i++)
		ck_assert_int_eq(choose(UCM_PLACEMENT_ROUND_ROBIN, 0),
				 rows[_i].wants);
	close_tier();
}

UNIT_TEST(a_percentage_is_one_of_the_file_systems)
{
	uint64_t total, available;

	open_tier("t=$/a,$/b");
	ck_assert_uint_eq(ucm_tier_limit_bytes(&tier), UINT64_MAX);
	ucm_tier_space(&tier, &total, &available);
	ck_assert_uint_gt(total, 0);
	tier.limit = (struct ucm_limit){ .size = 50, .percent = true };
	/* both directories are on one file system: its space counts once */
	ck_assert_uint_eq(ucm_tier_limit_bytes(&tier), total / 100 * 50);
	close_tier();
}

UNIT_TEST(a_tier_has_what_its_directories_may_take)
{
	uint64_t raw, total, available;

	open_tier("t=$/a,$/b");
	ucm_tier_space(&tier, &raw, &available);
	tier.dirs[0]->limit.size = 1 << 20;
	tier.dirs[0]->used = 1 << 18;
	ucm_medium_space(tier.dirs[0], &total, &available);
	ck_assert_uint_eq(total, 1 << 20);
	ck_assert_uint_eq(available, (1 << 20) - (1 << 18));
	ucm_tier_space(&tier, &total, &available);
	ck_assert_uint_eq(total, raw); /* the other has no limit */
	tier.dirs[1]->limit.size = 1 << 19;
	tier.dirs[1]->writing = 1 << 16;
	ucm_tier_space(&tier, &total, &available);
	ck_assert_uint_eq(total, (1 << 20) + (1 << 19));
	ck_assert_uint_eq(available, (1 << 20) - (1 << 18) + (1 << 19) -
					     (1 << 16));
	ck_assert_uint_eq(ucm_tier_used(&tier), 1 << 18);
	tier.dirs[0]->limit = (struct ucm_limit){ 1, true };
	ck_assert_uint_eq(ucm_medium_limit_bytes(tier.dirs[0]), raw / 100);
	close_tier();
}

UNIT_TEST(space_is_what_the_limit_leaves)
{
	uint64_t total, available;

	open_tier("t=$/a");
	tier.limit.size = 1 << 20;
	tier.dirs[0]->used = 1 << 18;
	ucm_tier_space(&tier, &total, &available);
	ck_assert_uint_eq(total, 1 << 20);
	ck_assert_uint_eq(available, (1 << 20) - (1 << 18));
	tier.writing = 1 << 17;
	ucm_tier_space(&tier, &total, &available);
	ck_assert_uint_eq(available, (1 << 20) - (1 << 18) - (1 << 17));
	tier.guessed = 1 << 17; /* nobody knows whether it will be that much */
	ucm_tier_space(&tier, &total, &available);
	ck_assert_uint_eq(available, (1 << 20) - (1 << 18));
	tier.dirs[0]->used = 1 << 21; /* the limit was lowered */
	ucm_tier_space(&tier, &total, &available);
	ck_assert_uint_eq(available, 0);
	close_tier();
}

/* Beyond its end a file keeps nothing; holes and compression take less. */
UNIT_TEST(a_file_takes_its_size_in_whole_blocks_at_most)
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

UNIT_TEST(a_tier_opens_all_its_directories_or_none)
{
	struct ucm_error error = { "" };

	fx_configure("$/a,$/b");
	ck_assert_int_eq(
		ucm_config_source(&fx_config, fx_path("$/a,$/none"), &error),
		0);
	ck_assert_int_eq(ucm_tier_open(&tier, &fx_config.tiers[0], 0,
				       &fx_config, &error),
			 -ENOENT);
	ck_assert_ptr_nonnull(strstr(error.text, "/none"));
	open_tier("$/a,$/b"); /* the first is not locked any more */
	close_tier();
}
