/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_evict.c - single decisions of an eviction: which block, from which
 * directory, and what is reported. test_motion.c looks at tiers that fill up.
 * No mover runs here.
 */
#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <limits.h>

#include "fs/store/find/calls.h"
#include "fs/store/motion/motion.h"
#include "fs/store/pressure.h"
#include "fs/store/quota.h"
#include "tests/unit/store_fixture.h"

#define BYTES 8192u /* of a block of FX_PAGED */

#define FILES 24u /* of fx_files that are used */

/* Each is the parent of the next one. */
static void chain(unsigned first, unsigned num)
{
	for (unsigned i = first + 1; i < first + num; i++) {
		fx_files[i].block.flags |= UCM_BLOCK_HAS_PARENT;
		fx_files[i].block.parent = fx_files[i - 1].key.id;
		fx_encode(&fx_files[i], true);
	}
	fx_commit_files(first, num);
}

static void age_all(unsigned first, unsigned num, uint32_t seconds)
{
	for (unsigned i = first; i < first + num; i++)
		fx_age(&fx_files[i], seconds);
}

static void pin(unsigned i, bool on)
{
	ck_assert_int_eq(ucm_store_pin(fx_set, fx_ref(&fx_files[i]), on), 0);
}

static int copy_to(unsigned i, unsigned tier, bool first)
{
	const struct ucm_move_terms move = {
		.to = &fx_set->dirs.tiers[tier],
		.first = first,
	};

	return ucm_store_copy(fx_set, fx_ref(&fx_files[i]), &move, NULL);
}

static void drop(unsigned i, unsigned dir)
{
	ck_assert_int_eq(ucm_store_drop_place(fx_set, fx_ref(&fx_files[i]), dir,
					      NULL), 0);
}

/* To the second tier, and it leaves the first. */
static void to_slow(unsigned i)
{
	ck_assert_int_eq(copy_to(i, 1, false), 0);
	drop(i, 0);
}

static unsigned dir_of(unsigned i)
{
	return fx_entry(&fx_files[i]).dir;
}

static bool is_there(unsigned i)
{
	return fx_is_indexed(&fx_files[i]);
}

static unsigned count(void)
{
	unsigned num = 0;

	for (unsigned i = 0; i < FILES; i++)
		num += is_there(i);
	return num;
}

static uint64_t freed;

static int evict(unsigned dir, uint64_t bytes, enum ucm_eviction how)
{
	return ucm_evict_bytes(fx_set, dir, bytes, how, NULL, &freed);
}

UNIT_FIXTURE(.setup = fx_setup_files, .teardown = fx_teardown);

/* ---- what a block is compared with ---- */

/* A tier of two directories, all of it used 10 seconds ago. */
static void full_tier_of_two(void)
{
	fx_configure_lru("fast=$/a,$/b:slow=$/c");
	fx_option("limit", "fast:192K");
	fx_config.low = 50;
	fx_open_still();
	fx_commit_files(0, FILES);
	age_all(0, FILES, 10);
	must(fx_set->dirs.at[0]->blocks && fx_set->dirs.at[1]->blocks);
}

/* A block that was used 100 seconds ago. */
static bool would_stay(void)
{
	struct ucm_entry entry = fx_entry(&fx_files[0]);

	entry.atime_s = ucm_value_now() - 100;
	return ucm_evict_would_stay(fx_set, &entry, &fx_set->dirs.tiers[0]);
}

UNIT_TEST(a_block_worth_less_than_the_whole_tier_would_not_stay)
{
	full_tier_of_two();
	ck_assert(!would_stay());
}

UNIT_TEST(the_least_worth_of_a_tier_is_over_all_its_directories, .rows = 2)
{
	unsigned old = 0;

	full_tier_of_two();
	while (dir_of(old) != (unsigned)_i)
		old++;
	fx_age(&fx_files[old], 1000);
	ck_assert(would_stay());
}

/* What the policy says of a block that was used so many seconds ago. */
static double worth_of(uint32_t seconds)
{
	const struct ucm_policy_state state = {
		.last_s = ucm_value_now() - seconds,
		.uses = 1,
	};

	return fx_set->value.policy->ops->worth(fx_set->value.policy, ucm_value_now(),
						&state);
}

UNIT_TEST(a_new_block_is_compared_with_the_lowest_tier)
{
	double worth;

	fx_still_store("fast=$/a:slow=$/b:archive=$/c");
	fx_commit_files(0, 2);
	to_slow(0);
	fx_age(&fx_files[0], 10);
	fx_age(&fx_files[1], 1000);
	fx_set->dirs.tiers[2].readonly = fx_set->dirs.at[2]->readonly = true;
	ck_assert(ucm_evict_least(fx_set, &worth));
	ck_assert(worth > worth_of(100));
}

UNIT_TEST(a_new_block_is_not_compared_with_a_readonly_tier)
{
	double worth;

	fx_still_store("fast=$/a:slow=$/b");
	fx_commit_files(0, 2);
	to_slow(0);
	fx_age(&fx_files[0], 1000);
	fx_age(&fx_files[1], 10);
	fx_set->dirs.tiers[1].readonly = fx_set->dirs.at[1]->readonly = true;
	ck_assert_int_eq(ucm_store_remove(fx_set, &fx_files[0].key), -EROFS);
	ck_assert(ucm_evict_least(fx_set, &worth));
	ck_assert(worth > worth_of(100));
}

/* ---- candidates ---- */

UNIT_TEST(a_block_being_written_is_no_candidate)
{
	struct ucm_temp temp;
	double worth;
	int fd;

	fx_still_store("only=$/a");
	fd = fx_create(&fx_files[0].key, 0, &temp);
	ck_assert_int_eq(fx_pwrite(fd, fx_files[0].bytes, fx_files[0].len, 0),
			 (ssize_t)fx_files[0].len);
	ck_assert_int_eq(fx_commit_temp(&temp, fd, &fx_files[0].key,
					UCM_COMMIT_NOW), 0);
	ck_assert(!ucm_evict_least(fx_set, &worth));
	ck_assert_int_eq(evict(0, 1, UCM_EVICTION_AT_ONCE), -ENOSPC);
	ck_assert(is_there(0));
	fx_close_file(fd);
	ucm_store_drop(fx_set, &temp);
	ck_assert(ucm_evict_least(fx_set, &worth));
	ck_assert_int_eq(evict(0, 1, UCM_EVICTION_AT_ONCE), 0);
	ck_assert(!is_there(0));
}

/* The mark of a pin may be beside either copy. */
UNIT_TEST(nothing_is_evicted_before_the_pins_of_both_copies_are_read,
	  .rows = 2)
{
	fx_still_store("fast=$/a:slow=$/b");
	fx_commit_files(0, 1);
	ck_assert_int_eq(copy_to(0, 1, false), 0);
	fx_set->keepers[_i].pins_known = false;
	ck_assert_int_eq(evict(0, 1, UCM_EVICTION_AT_ONCE), -ENOSPC);
	fx_set->keepers[_i].pins_known = true;
	ck_assert_int_eq(evict(0, 1, UCM_EVICTION_AT_ONCE), 0);
	ck_assert_uint_eq(dir_of(0), 1);
}

/* From now on each draw gives the first block of the list. */
static void draw_only_the_first(void)
{
	fx_set->victims[0].random = 0; /* xorshift stays there */
}

UNIT_TEST(a_parent_is_a_candidate_once_its_last_child_is_evicted)
{
	double worth;

	fx_still_store("only=$/a");
	fx_commit_files(10, 1);
	pin(10, true);
	chain(0, 4);
	ck_assert(ucm_evict_least(fx_set, &worth)); /* block 3 was drawn */
	draw_only_the_first();
	for (unsigned i = 4; i-- > 0;) {
		ck_assert_int_eq(evict(0, 1, UCM_EVICTION_AT_ONCE), 0);
		ck_assert_msg(!is_there(i), "block %u", i);
	}
	ck_assert_int_eq(evict(0, 1, UCM_EVICTION_AT_ONCE), -ENOSPC);
}

UNIT_TEST(a_parent_is_not_evicted_for_what_it_was_when_it_was_chosen)
{
	fx_still_store("only=$/a");
	chain(0, 2); /* the child has come since */
	ck_assert_int_eq(ucm_store_evict(fx_set, &fx_files[0].key, true), -EBUSY);
	ck_assert(is_there(0));
	ck_assert_int_eq(ucm_store_evict(fx_set, &fx_files[1].key, true), 0);
	ck_assert_int_eq(ucm_store_evict(fx_set, &fx_files[0].key, true), 0);
	chain(0, 2);
	/* a person may take any */
	ck_assert_int_eq(ucm_store_evict(fx_set, &fx_files[0].key, false), 0);
}

/* Only leaves may be lost, but a mover copies any block. */
UNIT_TEST(a_parent_that_was_no_candidate_can_be_moved_later)
{
	fx_still_store("fast=$/a:slow=$/b");
	chain(0, 2);
	pin(1, true);
	ck_assert_int_eq(evict(0, 1, UCM_EVICTION_LEAVES), -ENOSPC);
	ck_assert_int_eq(evict(0, 1, UCM_EVICTION_MOVING), 0);
	ck_assert_uint_eq(dir_of(0), 1);
}

/* ---- directories and tiers ---- */

UNIT_TEST(a_parent_that_fits_nowhere_below_stays)
{
	fx_configure_lru("fast=$/a:slow=$/b");
	fx_option("limit", "slow:16K");
	fx_open_still();
	fx_commit_files(10, 2); /* fills the slow tier */
	for (unsigned i = 10; i < 12; i++) {
		to_slow(i);
		pin(i, true);
	}
	chain(0, 2);
	pin(1, true);
	ck_assert_int_eq(evict(0, 1, UCM_EVICTION_MOVING), -ENOSPC);
	ck_assert(is_there(0));
	pin(1, false); /* but a leaf is evicted */
	ck_assert_int_eq(evict(0, 1, UCM_EVICTION_MOVING), 0);
	ck_assert(is_there(0) && !is_there(1));
}

UNIT_TEST(nothing_is_lost_while_a_copy_can_be_dropped)
{
	fx_still_store("fast=$/a:slow=$/b");
	fx_commit_files(0, 2);
	fx_age(&fx_files[0], 1000);
	ck_assert_int_eq(copy_to(1, 1, false), 0);
	ck_assert_int_eq(ucm_evict_for(fx_set, BYTES), 0);
	ck_assert(is_there(0));
	ck_assert_uint_eq(dir_of(1), 1);
}

UNIT_TEST(room_is_made_in_one_directory_of_a_tier)
{
	fx_still_store("only=$/a,$/b");
	fx_commit_files(0, FILES);
	must(fx_set->dirs.at[0]->blocks && fx_set->dirs.at[1]->blocks);
	ck_assert_int_eq(ucm_evict_for(fx_set, 1), 0);
	ck_assert_uint_eq(count(), FILES - 1);
}

UNIT_TEST(no_room_is_made_in_a_directory_that_has_just_failed)
{
	fx_still_store("only=$/a,$/b");
	fx_commit_files(0, FILES);
	ucm_medium_failed(fx_set->dirs.at[0], "a test", -EIO);
	for (uint64_t n = fx_set->dirs.at[1]->blocks; n; n--)
		ck_assert_int_eq(ucm_evict_for(fx_set, 1), 0);
	ck_assert_uint_eq(fx_set->dirs.at[1]->blocks, 0);
	ck_assert_int_eq(ucm_evict_for(fx_set, 1), -ENOSPC);
	ck_assert_uint_eq(count(), fx_set->dirs.at[0]->blocks);
}

UNIT_TEST(no_room_is_made_in_a_tier_that_new_blocks_bypass)
{
	fx_configure_lru("fast=$/a:slow=$/b");
	fx_option("write", "fast:around");
	fx_open_still();
	fx_commit_files(0, 2);
	ck_assert_int_eq(copy_to(0, 0, true), 0);
	fx_age(&fx_files[1], 1000);
	ck_assert_int_eq(ucm_evict_for(fx_set, BYTES), 0);
	ck_assert_uint_eq(dir_of(0), 0);
	ck_assert(!is_there(1));
}

UNIT_TEST(nothing_is_copied_out_of_a_readonly_directory)
{
	fx_still_store("fast=$/a:slow=$/b");
	fx_commit_files(0, 1);
	fx_set->dirs.at[0]->readonly = true;
	ck_assert_int_eq(evict(0, 1, UCM_EVICTION_MOVING), -ENOSPC);
	ck_assert_uint_eq(fx_entry(&fx_files[0]).copy, 0);
	ck_assert_uint_eq(fx_set->dirs.at[1]->blocks, 0);
}

/* ---- what fails ---- */

/* Errors of one file, and of the directory. */
static const struct {
	int err;
	bool goes_on;
} failures[] = {{-EPERM, true}, {-EROFS, true}, {-EIO, false}};

UNIT_TEST(only_a_failed_directory_ends_an_eviction,
	  .rows = NUM_ROWS(failures))
{
	fx_still_store("only=$/a");
	fx_commit_files(0, 4);
	fx_fail("unlink", 1, failures[_i].err, true);
	ck_assert_int_eq(evict(0, 1, UCM_EVICTION_AT_ONCE),
			 failures[_i].goes_on ? 0 : failures[_i].err);
	fx_fail(NULL, 0, 0, false);
	ck_assert_uint_eq(count(), failures[_i].goes_on ? 3 : 4);
}

static struct fx_file many[80]; /* more than an eviction tries */
static struct ucm_open opens[NUM_ROWS(many)];

UNIT_TEST(an_eviction_gives_up_after_many_held_blocks)
{
	struct ucm_space *space;

	fx_still_store("only=$/a");
	must(!ucm_store_mkdir(fx_set, "s", 0755, 0, 0, &space));
	for (unsigned i = 0; i < NUM_ROWS(many); i++) {
		fx_block(&many[i], i + 1, FX_PAGED);
		many[i].key.space = space->number;
		ck_assert_int_eq(fx_commit(&many[i]), 0);
		ck_assert_int_eq(ucm_hold_open(fx_set, &opens[i],
					       fx_ref(&many[i]), false), 0);
	}
	ck_assert_int_eq(ucm_store_set_quota(fx_set, space, BYTES), 0);
	ck_assert_int_eq(ucm_evict_space(fx_set, space->quota, 1, &freed),
			 -ENOSPC);
	ck_assert_uint_eq(freed, 0);
	ck_assert_uint_eq(space->blocks, NUM_ROWS(many));
	for (unsigned i = 0; i < NUM_ROWS(many); i++)
		ucm_hold_end(fx_set, &opens[i]);
}

/* ---- what is expected ---- */

static void expect(unsigned i)
{
	ck_assert_int_ge(ucm_calls_expect(fx_set, &fx_files[i].key,
					  0), 0);
}

/* More than an eviction tries, and worth least. */
UNIT_TEST(what_is_expected_is_spared_while_anything_else_may_go)
{
	fx_still_store("only=$/a");
	for (unsigned i = 0; i < NUM_ROWS(many); i++) {
		fx_block(&many[i], i + 100, FX_PAGED);
		ck_assert_int_eq(fx_commit(&many[i]), 0);
		fx_age(&many[i], 1000);
		ck_assert_int_eq(ucm_calls_expect(fx_set, &many[i].key,
						  0), 0);
	}
	fx_commit_files(0, 4);
	for (unsigned left = 4; left-- > 0;) {
		ck_assert_int_eq(ucm_evict_for(fx_set, BYTES), 0);
		ck_assert_uint_eq(count(), left);
	}
	for (unsigned i = 0; i < NUM_ROWS(many); i++)
		fx_serves(&many[i]);
}

UNIT_TEST(what_is_expected_goes_where_nothing_else_may)
{
	fx_still_store("only=$/a");
	fx_commit_files(0, 4);
	for (unsigned i = 0; i < 4; i++)
		expect(i);
	pin(0, true);
	ck_assert_int_eq(ucm_evict_for(fx_set, BYTES), 0);
	ck_assert_uint_eq(count(), 3);
	ck_assert_int_eq(evict(0, 3 * BYTES, UCM_EVICTION_MOVING), -ENOSPC);
	ck_assert_uint_eq(freed, 2 * BYTES);
	ck_assert(is_there(0));
}

/* A writer takes what is free anywhere before what others expect. */
UNIT_TEST(what_is_expected_is_spared_for_what_another_directory_has)
{
	bool expected[FILES];
	unsigned others = 0;

	fx_configure_lru("only=$/a,$/b");
	fx_open_still();
	fx_commit_files(0, FILES);
	for (unsigned i = 0; i < FILES; i++) {
		expected[i] = dir_of(i) == 0;
		others += !expected[i];
		if (expected[i])
			expect(i);
	}
	must(others && others < FILES);
	age_all(0, FILES, 10);
	while (others-- > 0)
		ck_assert_int_eq(ucm_evict_for(fx_set, BYTES), 0);
	for (unsigned i = 0; i < FILES; i++)
		ck_assert(is_there(i) == expected[i]);
	ck_assert_int_eq(ucm_evict_for(fx_set, BYTES), 0);
}

UNIT_TEST(what_is_expected_is_not_moved_before_others)
{
	fx_still_store("fast=$/a:slow=$/b");
	fx_commit_files(0, 2);
	fx_age(&fx_files[0], 1000);
	expect(0);
	ck_assert_int_eq(evict(0, BYTES, UCM_EVICTION_MOVING), 0);
	ck_assert_uint_eq(dir_of(0), 0);
	ck_assert_uint_eq(dir_of(1), 1);
	ck_assert_int_eq(evict(0, BYTES, UCM_EVICTION_MOVING), 0);
	ck_assert_uint_eq(dir_of(0), 1);
	ck_assert_uint_eq(count(), 2);
}

/* The place that is read stays; the other one costs a reader nothing. */
UNIT_TEST(what_is_expected_leaves_its_second_place)
{
	fx_still_store("fast=$/a:mid=$/b:slow=$/c");
	fx_commit_files(0, 2);
	ck_assert_int_eq(copy_to(0, 1, false), 0);
	ck_assert_int_eq(copy_to(1, 1, false), 0);
	fx_age(&fx_files[0], 1000);
	expect(0);
	ck_assert_int_eq(evict(1, BYTES, UCM_EVICTION_AT_ONCE), 0);
	ck_assert_uint_eq(fx_entry(&fx_files[0]).copy, 0);
	ck_assert_int_eq(copy_to(0, 1, false), 0);
	ck_assert_int_eq(evict(0, BYTES, UCM_EVICTION_AT_ONCE), 0);
	ck_assert_uint_eq(dir_of(0), 0);
	ck_assert_uint_eq(dir_of(1), 1);
}

UNIT_TEST(a_quota_spares_what_is_expected)
{
	struct ucm_space *space;

	fx_still_store("only=$/a");
	must(!ucm_store_mkdir(fx_set, "s", 0755, 0, 0, &space));
	for (unsigned i = 0; i < 2; i++)
		fx_files[i].key.space = space->number;
	fx_commit_files(0, 2);
	fx_age(&fx_files[0], 1000);
	expect(0);
	ck_assert_int_eq(ucm_store_set_quota(fx_set, space, BYTES), 0);
	ck_assert_int_eq(ucm_evict_space(fx_set, space->quota, 1, &freed), 0);
	ck_assert(is_there(0) && !is_there(1));
	ck_assert_int_eq(ucm_evict_space(fx_set, space->quota, 1, &freed), 0);
	ck_assert(!is_there(0));
}

/* ---- what has ended ---- */

static void touch(unsigned i)
{
	ck_assert_int_eq(ucm_store_touch(fx_set, fx_ref(&fx_files[i])), 0);
}

static int end(unsigned i)
{
	return ucm_evict_first(fx_set, &fx_files[i].key);
}

static bool has_ended(unsigned i)
{
	return !fx_entry(&fx_files[i]).atime_s;
}

/* From its last block to its first, before blocks that were used long ago. */
UNIT_TEST(what_has_ended_is_evicted_first)
{
	fx_still_store("only=$/a");
	fx_commit_files(4, FILES - 4);
	age_all(4, FILES - 4, 1000);
	chain(0, 4);
	ck_assert_int_eq(end(3), 0);
	for (unsigned left = 4; left-- > 0;) {
		ck_assert(has_ended(left));
		ck_assert_int_eq(evict(0, 1, UCM_EVICTION_AT_ONCE), 0);
		ck_assert(!is_there(left));
		ck_assert_uint_eq(count(), FILES - 4 + left);
	}
	ck_assert_int_eq(end(3), -ENOENT);
}

/* 0 - 1 - 2 - 3, and 4 after 1: which hangs on a block that stays. */
UNIT_TEST(a_chain_that_has_ended_stops_where_another_chain_branches_off)
{
	fx_still_store("only=$/a");
	chain(0, 4);
	fx_files[4].block.flags |= UCM_BLOCK_HAS_PARENT;
	fx_files[4].block.parent = fx_files[1].key.id;
	fx_encode(&fx_files[4], true);
	fx_commit_files(4, 1);
	ck_assert_int_eq(end(3), 0);
	ck_assert(has_ended(3) && has_ended(2));
	ck_assert(!has_ended(1) && !has_ended(0) && !has_ended(4));
}

UNIT_TEST(a_chain_that_has_ended_stops_where_others_have_been)
{
	fx_still_store("only=$/a");
	chain(0, 4);
	for (unsigned i = 0; i < 4; i++) { /* wanted 4 times more than 1 */
		fx_age(&fx_files[0], 100);
		touch(0);
	}
	ck_assert_int_eq(end(3), 0);
	ck_assert(has_ended(3) && has_ended(2) && has_ended(1));
	ck_assert(!has_ended(0));
}

UNIT_TEST(what_is_used_again_has_not_ended)
{
	fx_still_store("only=$/a");
	chain(0, 4);
	ck_assert_int_eq(end(3), 0);
	ck_assert(has_ended(0));
	touch(0);
	ck_assert(!has_ended(0));
}

UNIT_TEST(what_others_follow_has_not_ended)
{
	fx_still_store("only=$/a");
	chain(0, 4);
	ck_assert_int_eq(end(2), 0);
	for (unsigned i = 0; i < 4; i++)
		ck_assert(!has_ended(i));
}

/* What it wanted kept goes with it; what another request has found, and is about to
 * load, stays. */
static const struct {
	uint32_t keep_ms; /* 0: it is about to be opened */
	bool stays;
} hopes[] = { { 600000, false }, { 0, true } };

UNIT_TEST(an_end_takes_back_what_was_kept_alone, .rows = NUM_ROWS(hopes))
{
	fx_still_store("only=$/a");
	fx_commit_files(0, 4);
	ck_assert_int_eq(ucm_calls_expect(fx_set, &fx_files[0].key,
					  hopes[_i].keep_ms),
			 0);
	ck_assert_int_eq(end(0), 0);
	ck_assert_int_eq(evict(0, 1, UCM_EVICTION_AT_ONCE), 0);
	ck_assert_int_eq(is_there(0), hopes[_i].stays);
}

/* ---- what is counted and reported ---- */

static const struct {
	enum ucm_eviction how;
	bool has_copy;
} ways[] = {{UCM_EVICTION_AT_ONCE, true}, {UCM_EVICTION_LEAVES, false},
	    {UCM_EVICTION_MOVING, false}};

UNIT_TEST(freed_bytes_are_what_the_directory_gained,
	  .rows = NUM_ROWS(ways))
{
	uint64_t before;

	fx_still_store("fast=$/a:slow=$/b");
	fx_block(&fx_files[0], 1, FX_PACKED); /* less than a page */
	fx_commit_files(0, 1);
	if (ways[_i].has_copy)
		ck_assert_int_eq(copy_to(0, 1, false), 0);
	before = fx_set->dirs.at[0]->used;
	ck_assert_int_eq(evict(0, 1, ways[_i].how), 0);
	ck_assert_uint_gt(freed, 0);
	ck_assert_uint_eq(freed, before - fx_set->dirs.at[0]->used);
}

UNIT_TEST(each_evicted_block_is_counted_for_waiters)
{
	uint64_t before;

	fx_still_store("fast=$/a:slow=$/b");
	fx_commit_files(0, 4);
	before = fx_set->evictions.done;
	ck_assert_int_eq(evict(0, 2 * BYTES, UCM_EVICTION_MOVING), 0);
	ck_assert_uint_eq(fx_set->evictions.done - before, 2);
	ck_assert_int_eq(evict(0, BYTES, UCM_EVICTION_LEAVES), 0);
	ck_assert_uint_eq(fx_set->evictions.done - before, 3);
	ck_assert_uint_eq(fx_set->evictions.running, 0);
}

/* Evictions before the wait, and now. */
static const struct {
	unsigned evicting;
	uint64_t before, now;
	bool retries;
} waits[] = {{0, 5, 5, false}, {0, 5, 6, true}, {1, 5, 6, true}};

UNIT_TEST(a_waiter_retries_if_a_block_was_evicted,
	  .rows = NUM_ROWS(waits))
{
	fx_still_store("$/a");
	fx_set->evictions.running = waits[_i].evicting;
	fx_set->evictions.done = waits[_i].now;
	ck_assert_int_eq(ucm_evict_wait_for_others(&fx_set->evictions,
						   waits[_i].before),
			 waits[_i].retries);
	fx_set->evictions.running = 0;
}

static void *write_one(void *arg)
{
	return (void *)(intptr_t)fx_commit(&fx_files[(uintptr_t)arg]);
}

/* After a limit was made smaller each of them lacks all that is over it. */
UNIT_TEST(writers_evict_no_more_than_they_lack)
{
	pthread_t threads[4];
	void *result;

	fx_still_store("only=$/a");
	fx_commit_files(0, 36);
	fx_set->dirs.tiers[0].limit.size = 20 * BYTES;
	for (uintptr_t i = 0; i < NUM_ROWS(threads); i++)
		must(!pthread_create(&threads[i], NULL, write_one,
				     (void *)(36 + i)));
	for (unsigned i = 0; i < NUM_ROWS(threads); i++) {
		pthread_join(threads[i], &result);
		ck_assert_ptr_null(result);
	}
	ck_assert_uint_eq(fx_set->blocks, 20);
}

UNIT_TEST(a_block_that_had_to_wait_raises_the_pressure)
{
	fx_configure_lru("only=$/a");
	fx_option("limit", "only:32K");
	fx_config.high = 100;
	fx_config.low = 50;
	fx_open_still();
	fx_commit_files(0, 4);
	ck_assert_uint_eq(ucm_pressure(fx_set, 0), 0);
	fx_commit_files(4, 1);
	ck_assert_uint_eq(count(), 4);
	ck_assert_uint_gt(ucm_pressure(fx_set, 0), 0);
}

static const struct {
	bool from_memory;
	const char *durability;
	unsigned calls; /* of syncfs */
} syncs[] = {{false, "none", 1}, {true, "none", 0}, {true, "data", 1}};

UNIT_TEST(a_copy_out_of_memory_is_synced_if_durability_says_so,
	  .rows = NUM_ROWS(syncs))
{
	fx_configure_lru("fast=$/a:slow=$/b");
	fx_option("durability", syncs[_i].durability);
	fx_open_still();
	if (syncs[_i].from_memory)
		fx_set->dirs.at[0]->flags |= UCM_MEDIUM_VOLATILE;
	fx_commit_files(0, 2);
	fx_fail("syncfs", UINT_MAX, -EIO, false);
	ck_assert_int_eq(evict(0, 2 * BYTES, UCM_EVICTION_MOVING), 0);
	ck_assert_uint_eq(fx_calls(), syncs[_i].calls);
	fx_fail(NULL, 0, 0, false);
}

UNIT_TEST(a_rebuilt_list_has_second_copies_too)
{
	fx_still_store("fast=$/a:slow=$/b:archive=$/c");
	fx_commit_files(0, 1);
	ck_assert_int_eq(copy_to(0, 1, false), 0);
	fx_set->victims[1].members.lacks_some = true;
	ucm_evict_relist(fx_set, 1);
	ck_assert_int_eq(evict(1, 1, UCM_EVICTION_AT_ONCE), 0);
	ck_assert_uint_eq(fx_entry(&fx_files[0]).copy, 0);
}

UNIT_PROGRAM(.variants = fx_media);
