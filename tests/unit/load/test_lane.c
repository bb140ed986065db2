/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_lane.c - what may be under way in a directory, and whose turn it is:
 * arithmetic, in which time is a number.
 */
#include <config.h>

#include "gpu/load/budget/share.h"
#include "gpu/load/engine/lane.h"

#include "tests/unit/unit.h"

#define MS INT64_C(1000000)
#define MIB ((uint64_t)1 << 20)

static struct ucm_dir server, disk = { .quick = true };

static struct ucm_lane lane_of(struct ucm_dir *dir)
{
	struct ucm_lane lane;

	ucm_lane_init(&lane, dir, 1, 0, 64 * MIB);
	return lane;
}

/* As many calls as it lets. */
static unsigned call(struct ucm_lane *lane, int64_t now)
{
	unsigned num = 0;

	while (num < 1000 && ucm_lane_may_call(lane)) {
		ucm_lane_begin(lane, now);
		num++;
	}
	return num;
}

static void answer(struct ucm_lane *lane, unsigned num, int64_t now)
{
	while (num--)
		ucm_lane_end(lane, now);
}

UNIT_TEST(a_server_that_never_answered_gets_a_few_calls)
{
	struct ucm_lane lane = lane_of(&server);

	ck_assert_uint_le(call(&lane, 0), 8);
	ck_assert(!ucm_lane_look(&lane, 99 * MS));
	ck_assert_int_eq(ucm_lane_until_late(&lane, 99 * MS), 1 * MS);
	ck_assert(ucm_lane_look(&lane, 100 * MS));
	ck_assert(lane.late);
	ck_assert_int_eq(ucm_lane_until_late(&lane, 100 * MS), -1);
	ck_assert_uint_eq(call(&lane, 100 * MS), 0);
}

UNIT_TEST(one_that_answers_gets_more_up_to_a_limit)
{
	struct ucm_lane lane = lane_of(&server);
	unsigned first = call(&lane, 0), most = 0;

	for (int64_t i = 1; i < 20; i++) {
		answer(&lane, lane.calls, i * MS);
		most = call(&lane, i * MS);
	}
	ck_assert_uint_gt(most, 8 * first);
	ck_assert_uint_le(most, 130);
}

/* All that were under way come back one by one: before the last ones have, no
 * new ones are made. */
UNIT_TEST(one_that_hung_begins_with_a_few_again)
{
	struct ucm_lane lane = lane_of(&server);
	unsigned most;

	for (int64_t i = 0; i < 20; i++) {
		call(&lane, i * MS);
		answer(&lane, lane.calls, i * MS);
	}
	most = call(&lane, 20 * MS);
	ck_assert(ucm_lane_look(&lane, 2000 * MS));
	answer(&lane, 1, 2000 * MS);
	ck_assert(ucm_lane_look(&lane, 2000 * MS));
	ck_assert(!lane.late);
	ck_assert(!ucm_lane_may_call(&lane));
	answer(&lane, most - 1, 2001 * MS);
	ck_assert(ucm_lane_may_call(&lane));
}

UNIT_TEST(nothing_under_way_is_never_late)
{
	struct ucm_lane lane = lane_of(&server);

	ucm_lane_begin(&lane, 0);
	ucm_lane_end(&lane, 50 * MS);
	ck_assert_int_eq(ucm_lane_until_late(&lane, 60 * MS), -1);
	ck_assert(!ucm_lane_look(&lane, 10000 * MS));
	/* nor is what begins after a long rest */
	ucm_lane_begin(&lane, 20000 * MS);
	ck_assert(!ucm_lane_look(&lane, 20001 * MS));
}

/* Calls of a local disk are bounded by its window alone. */
UNIT_TEST(a_disk_has_no_limit_of_calls)
{
	struct ucm_lane lane = lane_of(&disk);

	ck_assert_uint_eq(call(&lane, 0), 1000);
}

UNIT_TEST(a_late_one_is_never_full)
{
	struct ucm_lane lane = lane_of(&server);

	lane.waiting[0].num = 1000;
	ck_assert(ucm_lane_is_full(&lane, 0));
	ck_assert(!ucm_lane_is_full(&lane, 1)); /* ranks have their own */
	call(&lane, 0);
	ck_assert(ucm_lane_look(&lane, 100 * MS));
	ck_assert(!ucm_lane_is_full(&lane, 0));
}

/* ---- shares ---- */

UNIT_TEST(a_share_is_a_part_of_what_others_begin)
{
	struct ucm_share share = { 0 };
	uint64_t others = 0, own = 0;

	ucm_share_wait(&share, true, 0);
	for (unsigned i = 0; i < 8000; i++) {
		if (ucm_share_is_due(&share, MIB, 1000 * MS, 0)) {
			ucm_share_take(&share, MIB, 0);
			own += MIB;
		} else {
			ucm_share_owe(&share, MIB / 2, 7);
			others += MIB / 2;
		}
	}
	ck_assert_uint_ge(own * 8, (own + others) * 99 / 100);
	ck_assert_uint_le(own * 8, (own + others) * 101 / 100);
}

UNIT_TEST(a_share_comes_with_age_where_nothing_moves)
{
	struct ucm_share share = { 0 };

	ucm_share_wait(&share, true, 1000 * MS);
	ck_assert(!ucm_share_is_due(&share, MIB, 100 * MS, 1099 * MS));
	ck_assert_int_eq(ucm_share_until(&share, 100 * MS, 1099 * MS), MS);
	ck_assert(ucm_share_is_due(&share, MIB, 100 * MS, 1100 * MS));
	ucm_share_take(&share, MIB, 1100 * MS);
	ck_assert(!ucm_share_is_due(&share, MIB, 100 * MS, 1101 * MS));
}

UNIT_TEST(who_does_not_wait_saves_nothing_up)
{
	struct ucm_share share = { 0 };

	ucm_share_owe(&share, 100 * MIB, 7);
	ucm_share_wait(&share, true, 5000 * MS);
	ck_assert(!ucm_share_is_due(&share, MIB, 100 * MS, 5000 * MS));
	ck_assert_int_eq(ucm_share_until(&share, 100 * MS, 5000 * MS),
			 100 * MS);
	ucm_share_owe(&share, 100 * MIB, 7);
	ucm_share_wait(&share, false, 5001 * MS);
	ck_assert_int_eq(ucm_share_until(&share, 100 * MS, 5001 * MS), -1);
	ucm_share_wait(&share, true, 5002 * MS);
	ck_assert(!ucm_share_is_due(&share, MIB, 100 * MS, 5002 * MS));
}

/* What is larger than all that can be owed is not kept waiting for it. */
UNIT_TEST(a_block_may_be_larger_than_what_is_owed_at_most)
{
	struct ucm_share share = { 0 };

	ucm_share_wait(&share, true, 0);
	for (unsigned i = 0; i < 10000; i++)
		ucm_share_owe(&share, MIB, 7);
	ck_assert(ucm_share_is_due(&share, 1000 * MIB, 100 * MS, 0));
	ucm_share_take(&share, 1000 * MIB, 0);
	ck_assert(!ucm_share_is_due(&share, 1, 100 * MS, 0));
}
