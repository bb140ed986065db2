/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_motion_room.c - what leaves a directory for want of room, what stays,
 * and between which marks.
 */
#include <config.h>

#include <errno.h>
#include <limits.h>

#include "fs/store/motion/batch.h"
#include "fs/store/motion/motion.h"
#include "fs/store/pressure.h"
#include "tests/unit/store/motion_fixture.h"

UNIT_FIXTURE(.setup = fx_setup_files, .teardown = fx_teardown);

/* ---- room ---- */

UNIT_TEST(the_one_goes_that_was_not_used_for_longest)
{
	fx_still_store("only=$/a");
	fx_commit_files(0, 10);
	for (unsigned i = 0; i < 10; i++)
		age(i, 100 + (i * 7) % 10);
	for (unsigned left = 10; left > 0; left--) {
		unsigned gone = 0;

		ck_assert_int_eq(evict_bytes(0, 1, UCM_EVICTION_AT_ONCE), 0);
		for (unsigned i = 0; i < 10; i++) {
			gone += !is_there(i);
			/* 7 * 7 % 10 == 9: the oldest first */
			if ((i * 7) % 10 >= left - 1)
				ck_assert(!is_there(i));
		}
		ck_assert_uint_eq(gone, 10 - left + 1);
	}
	ck_assert_int_eq(evict_bytes(0, 1, UCM_EVICTION_AT_ONCE), -ENOSPC);
	sums_are_right();
}

UNIT_TEST(what_is_held_stays)
{
	struct ucm_open open = {0};
	struct ucm_entry entry;
	int fd;

	fx_still_store("only=$/a");
	fx_commit_files(0, 4);
	ck_assert_int_eq(ucm_store_pin(fx_set, ref_of(0), true), 0);
	ck_assert_int_eq(ucm_store_pin(fx_set, ref_of(1), true), 0);
	fd = fx_open_block_held(ref_of(2), &entry, &open);
	for (unsigned i = 0; i < 4; i++)
		age(i, 100 - i);
	ck_assert_int_eq(evict_bytes(0, BYTES, UCM_EVICTION_AT_ONCE), 0);
	ck_assert(!is_there(3));
	ck_assert_int_eq(evict_bytes(0, BYTES, UCM_EVICTION_AT_ONCE), -ENOSPC);
	ucm_hold_end(fx_set, &open);
	fx_close_file(fd);
	ck_assert_int_eq(evict_bytes(0, BYTES, UCM_EVICTION_AT_ONCE), 0);
	ck_assert(!is_there(2) && is_there(0) && is_there(1));
}

/* Blocks 0 - 1 - 2 and 0 - 3, of which 0 is the oldest. */
static void plant_chain(void)
{
	static const unsigned parents[] = {0, 0, 1, 0};

	for (unsigned i = 1; i < 4; i++) {
		fx_files[i].block.flags |= UCM_BLOCK_HAS_PARENT;
		fx_files[i].block.parent = fx_files[parents[i]].key.id;
		fx_encode(&fx_files[i], true);
	}
	fx_commit_files(0, 4);
	for (unsigned i = 0; i < 4; i++)
		age(i, 100 - i);
}

UNIT_TEST(chains_are_eaten_from_their_ends)
{
	static const unsigned order[] = {2, 1, 3, 0};

	fx_still_store("only=$/a");
	plant_chain();
	for (unsigned i = 0; i < 4; i++) {
		ck_assert_int_eq(evict_bytes(0, 1, UCM_EVICTION_AT_ONCE), 0);
		ck_assert_msg(!is_there(order[i]), "block %u", order[i]);
	}
}

UNIT_TEST(what_leaves_a_fast_tier_goes_to_the_next)
{
	fx_still_store("fast=$/a:slow=$/b");
	fx_commit_files(0, 4);
	for (unsigned i = 0; i < 4; i++)
		age(i, 100 - i);
	/* nothing is copied while somebody waits */
	ck_assert_int_eq(evict_bytes(0, BYTES, UCM_EVICTION_AT_ONCE), -ENOSPC);
	ck_assert_int_eq(evict_bytes(0, 2 * BYTES, UCM_EVICTION_MOVING), 0);
	for (unsigned i = 0; i < 4; i++) {
		ck_assert_uint_eq(entry_of(i).dir, i < 2);
		fx_serves(&fx_files[i]);
	}
	sums_are_right();
	/* but what lies below leaves at once */
	ck_assert_int_eq(copy_to(2, 1, false), 0);
	ck_assert_int_eq(copy_to(3, 1, false), 0);
	ck_assert_int_eq(evict_bytes(0, BYTES, UCM_EVICTION_AT_ONCE), 0);
	sums_are_right();
}

/* The next tier is full of what is worth more, and the lowest has room. */
UNIT_TEST(what_one_tier_refuses_goes_to_the_next_but_one)
{
	fx_configure("fast=$/a:mid=$/b:slow=$/c");
	fx_option("policy", "lru");
	fx_option("limit", "mid:16K");
	fx_open_still();
	fx_commit_files(0, 2);
	ck_assert_int_eq(evict_bytes(0, 2 * BYTES, UCM_EVICTION_MOVING), 0);
	fx_commit_files(2, 1);
	age(0, 10);
	age(1, 10);
	age(2, 100);
	ck_assert_int_eq(evict_bytes(0, BYTES, UCM_EVICTION_MOVING), 0);
	for (unsigned i = 0; i < 3; i++) {
		ck_assert_uint_eq(entry_of(i).dir, i < 2 ? 1 : 2);
		fx_serves(&fx_files[i]);
	}
	sums_are_right();
}

/* Nor is a block lost while another directory of the tier has room. */
UNIT_TEST(what_has_room_beside_is_not_lost)
{
	fx_still_store("only=$/a,$/b");
	fx_commit_files(0, 8);
	for (unsigned i = 0; i < 8; i++)
		age(i, 100 - i);
	while (fx_set->dirs.at[0]->blocks)
		ck_assert_int_eq(evict_bytes(0, BYTES, UCM_EVICTION_MOVING), 0);
	for (unsigned i = 0; i < 8; i++) {
		ck_assert_uint_eq(entry_of(i).dir, 1);
		fx_serves(&fx_files[i]);
	}
	sums_are_right();
}

/* True if the call was met. */
static bool evict_without_room_for(unsigned nth)
{
	bool met;

	fx_commit_files(0, 3);
	fx_fail(NULL, nth, -ENOSPC, true);
	evict_bytes(0, BYTES, UCM_EVICTION_MOVING);
	met = fx_failed_call();
	fx_fail(NULL, 0, 0, false);
	fx_set->dirs.at[1]->retry_s = 0;
	for (unsigned i = 0; i < 3; i++) {
		ck_assert_msg(is_there(i), "call %u: block %u", nth, i);
		ck_assert_int_eq(ucm_store_remove(fx_set, &fx_files[i].key), 0);
	}
	sums_are_right();
	return met;
}

UNIT_TEST(a_call_that_fails_for_want_of_room_is_no_full_tier)
{
	unsigned nth = 1;

	fx_still_store("fast=$/a:slow=$/b");
	while (evict_without_room_for(nth))
		nth++;
	ck_assert_uint_gt(nth, 10);
}

/* A server that is away is not passed: its hosts would not find what lies below it. */
static const int away[] = {
	-EIO, -EROFS, -ESTALE, -ENOENT, -ETIMEDOUT, -EACCES,
};

static int copy_down(unsigned i)
{
	struct ucm_move_terms move = { .soon = true };

	return ucm_evict_and_copy_down(fx_set, ref_of(i), fx_set->dirs.tiers,
				       &move);
}

UNIT_TEST(what_fails_is_not_passed, .rows = NUM_ROWS(away))
{
	bool met = true;

	fx_still_store("fast=$/a:mid=$/b:slow=$/c");
	for (unsigned nth = 1; met; nth++) {
		fx_commit_files(0, 1);
		fx_fail(NULL, nth, away[_i], true);
		copy_down(0);
		met = fx_failed_call();
		fx_fail(NULL, 0, 0, false);
		ck_assert_msg(!lies_in("$/c", 0), "call %u", nth);
		atomic_store(&fx_set->dirs.at[1]->retry_s, 0);
		ucm_store_remove(fx_set, &fx_files[0].key);
	}
}

static void fill_mid(void)
{
	fx_configure_lru("fast=$/a:mid=$/b:slow=$/c");
	fx_option("limit", "mid:16K");
	fx_open_still();
	fx_commit_files(0, 2);
	ck_assert_int_eq(evict_bytes(0, 2 * BYTES, UCM_EVICTION_MOVING), 0);
	age(0, 100);
	age(1, 100);
	fx_commit_files(2, 1);
}

/* Nor where it is full as well, and what would leave it cannot be read. */
UNIT_TEST(what_is_full_and_fails_is_not_passed)
{
	fill_mid();
	fx_fail("open", 2, -ETIMEDOUT, true);
	ck_assert_int_eq(copy_down(2), -ETIMEDOUT);
	fx_fail(NULL, 0, 0, false);
	ck_assert(!lies_in("$/c", 2));
	ck_assert_int_eq(copy_down(2), 0);
	ck_assert(lies_in("$/b", 2));
}

/* ---- leaving together ---- */

static struct ucm_batch batch;

static int copy_in_batch(unsigned i)
{
	int err = ucm_batch_begin_copy(&batch, ref_of(i));

	ck_assert_int_eq(err, 0);
	return ucm_batch_end_copy(&batch, copy_to(i, 1, false));
}

UNIT_TEST(a_copy_that_is_not_on_disk_is_not_all_that_is_left)
{
	uint64_t freed = 0;

	fx_still_store("fast=$/a:slow=$/b");
	fx_commit_files(0, 4);
	ucm_batch_init(&batch, fx_set, 0, true);
	for (unsigned i = 0; i < 3; i++)
		ck_assert_int_eq(copy_in_batch(i), 0);
	ck_assert_int_eq(copy_in_batch(0), 0); /* what has one is welcome */
	ck_assert(ucm_batch_has(&batch, ref_of(2)));
	ck_assert(!ucm_batch_has(&batch, ref_of(3)));
	ck_assert_int_eq(drop(0, 0), -EBUSY);
	ck_assert_int_eq(evict_bytes(0, BYTES, UCM_EVICTION_AT_ONCE), -ENOSPC);
	ck_assert_uint_eq(entry_of(0).dir, 0);
	/* but a program may unlink it */
	ck_assert_int_eq(ucm_store_remove(fx_set, &fx_files[1].key), 0);
	ck_assert_uint_eq(ucm_batch_settle(&batch, &freed), 2);
	ck_assert_uint_eq(freed, 2 * BYTES);
	ck_assert_uint_eq(entry_of(0).dir, 1);
	ck_assert(!is_there(1));
	sums_are_right();
}

UNIT_TEST(where_a_sync_fails_nothing_leaves)
{
	fx_still_store("fast=$/a:slow=$/b");
	fx_commit_files(0, 6);
	fx_fail("syncfs", 1, -EIO, false);
	ck_assert_int_eq(evict_bytes(0, 4 * BYTES, UCM_EVICTION_MOVING),
			 -ENOSPC);
	fx_fail(NULL, 0, 0, false);
	for (unsigned i = 0; i < 6; i++) {
		ck_assert_uint_eq(entry_of(i).dir, 0);
		ck_assert_uint_eq(entry_of(i).copy, 0);
		fx_serves(&fx_files[i]);
	}
	sums_are_right();
}

/* Written back, with durability=none: nobody has synced it. */
UNIT_TEST(a_second_place_is_synced_before_the_first_one_goes)
{
	fx_still_store("fast=$/a:slow=$/b");
	fx_commit_files(0, 2);
	ck_assert_int_eq(copy_to(0, 1, false), 0);
	ck_assert_int_eq(copy_to(1, 1, false), 0);
	fx_fail("syncfs", 1, -EIO, false);
	ck_assert_int_eq(evict_bytes(0, 2 * BYTES, UCM_EVICTION_MOVING),
			 -ENOSPC);
	fx_fail(NULL, 0, 0, false);
	for (unsigned i = 0; i < 2; i++) {
		ck_assert(lies_in("$/a", i));
		fx_serves(&fx_files[i]);
	}
	sums_are_right();
}

UNIT_TEST(one_sync_is_enough_for_many)
{
	fx_still_store("fast=$/a:slow=$/b");
	fx_commit_files(0, 8);
	fx_fail("syncfs", UINT_MAX, -EIO, false);
	ck_assert_int_eq(evict_bytes(0, 8 * BYTES, UCM_EVICTION_MOVING), 0);
	ck_assert_uint_eq(fx_calls(), 1);
	fx_fail(NULL, 0, 0, false);
	for (unsigned i = 0; i < 8; i++)
		ck_assert_uint_eq(entry_of(i).dir, 1);
	sums_are_right();
}

/* Which need not hear of a sync of the whole directory. */
UNIT_TEST(on_a_server_each_copy_is_synced)
{
	for (unsigned remote = 0; remote < 2; remote++) {
		fx_still_store(remote ? "fast=$/c:slow=$/d"
				      : "fast=$/a:slow=$/b");
		if (remote)
			fx_set->dirs.at[1]->flags |=
				UCM_MEDIUM_REPORTS_AT_CLOSE;
		fx_commit_files(0, 3);
		fx_fail("fsync", UINT_MAX, -EIO, false);
		ck_assert_int_eq(evict_bytes(0, 3 * BYTES, UCM_EVICTION_MOVING),
				 0);
		ck_assert_uint_eq(fx_calls(), remote ? 2 * 3 : 0);
		fx_fail(NULL, 0, 0, false);
		fx_close();
	}
}

UNIT_TEST(what_is_otherwise_in_memory_alone_stays)
{
	fx_still_store("fast=$/a:mid=$/b:slow=$/c");
	fx_set->dirs.at[0]->flags |= UCM_MEDIUM_VOLATILE;
	fx_commit_files(0, 2);
	ck_assert_int_eq(copy_to(0, 1, false), 0);
	ck_assert_int_eq(copy_to(1, 1, false), 0);
	ck_assert_int_eq(evict_bytes(1, BYTES, UCM_EVICTION_MOVING), -ENOSPC);
	ck_assert_uint_eq(entry_of(0).copy, 2);
	/* the other way round it leaves */
	ck_assert_int_eq(evict_bytes(0, 2 * BYTES, UCM_EVICTION_MOVING), 0);
	ck_assert_uint_eq(entry_of(0).dir, 1);
	ck_assert_int_eq(evict_bytes(1, BYTES, UCM_EVICTION_MOVING), 0);
	sums_are_right();
}

UNIT_TEST(what_is_worth_least_everywhere_goes_altogether)
{
	fx_configure("fast=$/a:slow=$/b");
	fx_option("policy", "lru");
	fx_option("limit", "slow:16K");
	fx_open_still();
	fx_commit_files(0, 4);
	for (unsigned i = 0; i < 4; i++)
		age(i, 100 - i);
	ck_assert_int_eq(evict_bytes(0, 2 * BYTES, UCM_EVICTION_MOVING), 0);
	/* 0 and 1 fill the slow tier; 2 is worth more than 0, and so on */
	ck_assert_int_eq(evict_bytes(0, BYTES, UCM_EVICTION_MOVING), 0);
	ck_assert(!is_there(0) && is_there(1) && is_there(2) && is_there(3));
	ck_assert_uint_eq(entry_of(2).dir, 1);
	/* what is older than all of the slow tier is not moved there */
	fx_commit_files(4, 1);
	age(4, 1000);
	ck_assert_int_eq(evict_bytes(0, BYTES, UCM_EVICTION_MOVING), 0);
	ck_assert(!is_there(4) && is_there(1));
	sums_are_right();
}

UNIT_TEST(a_new_block_takes_the_place_of_an_old_one)
{
	fx_configure("only=$/a");
	fx_option("policy", "lru");
	fx_option("limit", "only:32K");
	fx_open_still();
	for (unsigned i = 0; i < FILES; i++) {
		fx_commit_files(i, 1);
		age(i, 1000 - i);
		ck_assert_uint_le(fx_set->dirs.at[0]->used, 4 * BYTES);
	}
	for (unsigned i = 0; i < FILES; i++)
		ck_assert_int_eq(is_there(i), i >= FILES - 4);
	sums_are_right();
}

UNIT_TEST(without_a_policy_full_is_full)
{
	fx_configure("only=$/a");
	fx_option("limit", "only:16K");
	fx_open_still();
	fx_commit_files(0, 2);
	ck_assert_int_eq(fx_commit(&fx_files[2]), -ENOSPC);
	ck_assert(is_there(0) && is_there(1));
}

UNIT_TEST(no_room_says_what_holds_it)
{
	fx_configure("only=$/a");
	fx_option("policy", "lru");
	fx_option("limit", "only:16K");
	fx_open_still();
	fx_commit_files(0, 2);
	for (unsigned i = 0; i < 2; i++)
		ck_assert_int_eq(ucm_store_pin(fx_set, ref_of(i), true), 0);
	ck_assert_int_eq(fx_commit(&fx_files[2]), -ENOSPC);
	ck_assert(fx_logged("are pinned"));
	ck_assert(is_there(0) && is_there(1));
}

/* ---- marks ---- */

static const struct {
	const char *limit;
	unsigned high, low, blocks, excess; /* blocks */
} marks[] = {
	{"only:80K", 100, 50, 10, 0},	{"only:80K", 90, 50, 9, 0},
	{"only:80K", 90, 50, 10, 5},	{"only:80K", 50, 40, 6, 2},
	{"$/a:80K", 90, 50, 10, 5},	{"$/a:80K", 90, 50, 9, 0},
};

UNIT_TEST(between_the_marks_nothing_is_done, .rows = NUM_ROWS(marks))
{
	fx_configure("only=$/a");
	fx_option("policy", "lru");
	fx_option("limit", fx_path("%s", marks[_i].limit));
	fx_config.high = marks[_i].high;
	fx_config.low = marks[_i].low;
	fx_open_still();
	fx_commit_files(0, marks[_i].blocks);
	ck_assert_uint_eq(ucm_pressure(fx_set, 0), marks[_i].excess * BYTES);
}

UNIT_TEST(a_file_system_is_not_asked_for_each_block)
{
	fx_configure("only=$/a");
	fx_option("policy", "lru");
	fx_option("limit", "only:50%");
	fx_option("reserve", "1%");
	fx_open_still();
	fx_commit_files(0, 1);
	fx_fail("statvfs", UINT_MAX, -EIO, false);
	for (unsigned i = 0; i < 1000; i++)
		ucm_pressure(fx_set, 0);
	/* three at a time: its own, its limit's, the tier's */
	ck_assert_uint_le(fx_calls(), 30);
	fx_fail(NULL, 0, 0, false);
}

/* What is thought to be free: with a reserve of that nothing has to go. */
static uint64_t seen_free(void)
{
	uint64_t least = 0, most = UINT64_MAX / 2;

	while (least < most) {
		fx_config.reserve.size = least + (most - least + 1) / 2;
		if (ucm_pressure(fx_set, 0))
			most = fx_config.reserve.size - 1;
		else
			least = fx_config.reserve.size;
	}
	return least;
}

UNIT_TEST(what_was_removed_since_is_free)
{
	uint64_t before;

	fx_configure("only=$/a");
	fx_option("policy", "lru");
	fx_open_still();
	fx_commit_files(0, 8);
	ucm_pressure(fx_set, 0);
	fx_fail("statvfs", 1, -EIO, false); /* from now on nobody can ask */
	before = seen_free();
	ck_assert_int_eq(evict_bytes(0, 4 * BYTES, UCM_EVICTION_MOVING), 0);
	ck_assert_uint_eq(seen_free(), before + 4 * BYTES);
	fx_fail(NULL, 0, 0, false);
}

UNIT_TEST(once_begun_it_goes_on_to_the_low_mark)
{
	fx_configure("only=$/a");
	fx_option("policy", "lru");
	fx_option("limit", "only:80K");
	fx_config.high = 90;
	fx_config.low = 50;
	fx_open_still();
	fx_commit_files(0, 10);
	ck_assert_uint_eq(ucm_pressure(fx_set, 0), 5 * BYTES);
	ck_assert_int_eq(evict_bytes(0, 2 * BYTES, UCM_EVICTION_MOVING), 0);
	ucm_pressure_ease(fx_set, 0, 2 * BYTES);
	ck_assert_uint_eq(ucm_pressure(fx_set, 0), 3 * BYTES);
	ck_assert_int_eq(evict_bytes(0, 3 * BYTES, UCM_EVICTION_MOVING), 0);
	ucm_pressure_ease(fx_set, 0, 3 * BYTES);
	ck_assert_uint_eq(ucm_pressure(fx_set, 0), 0);
	/* or until nothing more may go */
	ucm_pressure_ease(fx_set, 0, 0);
	fx_commit_files(10, 3);
	ck_assert_uint_eq(ucm_pressure(fx_set, 0), 0);
}

static bool is_below_high(void *arg)
{
	(void)arg;
	return !ucm_pressure(fx_set, 0) &&
	       !atomic_load(&fx_set->dirs.at[1]->writing);
}

UNIT_TEST(a_mover_keeps_below_the_mark)
{
	fx_configure_lru("fast=$/a:slow=$/b");
	fx_option("limit", "fast:80K");
	fx_config.high = 60;
	fx_config.low = 30;
	fx_open();
	fx_start();
	fx_commit_files(0, FILES);
	wait_until(is_below_high);
	for (unsigned i = 0; i < FILES; i++)
		fx_serves(&fx_files[i]);
	ck_assert_uint_le(fx_set->dirs.at[0]->used, 80 * 1024);
}

/* For UNIT_PROGRAM: on directories and on media in memory. */
UNIT_PROGRAM(.variants = fx_media);
