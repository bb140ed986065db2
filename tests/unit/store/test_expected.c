/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_expected.c - blocks that are about to be opened: for how long, how many.
 */
#include <config.h>

#include "fs/store/find/expected.h"

#include <ucm/control.h>

#include "tests/unit/unit.h"

static struct ucm_expected expected;

static void setup(void)
{
	ucm_expected_init(&expected);
}

static void teardown(void)
{
	ucm_expected_fini(&expected);
}

static bool has(ucm_ref ref, int64_t now_ms)
{
	return ucm_expected_has(&expected, ref, now_ms);
}

static bool expect(ucm_ref ref, int64_t now_ms)
{
	return ucm_expected_add(&expected, ref, now_ms);
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(nothing_is_expected_at_first)
{
	ck_assert(!ucm_expected_any(&expected));
	ck_assert(!has(7, 0));
}

UNIT_TEST(a_block_is_expected_for_a_while)
{
	ck_assert(!expect(7, 1000));
	ck_assert(ucm_expected_any(&expected));
	ck_assert(has(7, 1000));
	ck_assert(has(7, 1000 + UCM_EXPECTED_MS - 1));
	ck_assert(!has(7, 1000 + UCM_EXPECTED_MS));
	ck_assert(!has(8, 1000));
}

UNIT_TEST(who_asks_again_is_given_the_whole_time_again)
{
	ck_assert(!expect(7, 0));
	ck_assert(expect(7, UCM_EXPECTED_MS - 1));
	ck_assert(has(7, 2 * UCM_EXPECTED_MS - 2));
	ck_assert(!has(7, 2 * UCM_EXPECTED_MS - 1));
	ck_assert(!expect(7, 2 * UCM_EXPECTED_MS - 1));
	ck_assert_uint_eq(expected.used, 1);
}

/* The hint of a session outlasts what its loads ask for. */
UNIT_TEST(a_block_is_kept_for_the_longest_time_that_was_asked_for)
{
	ucm_expected_keep(&expected, 7, 600000, 0);
	ucm_expected_keep(&expected, 7, 1000, 0);
	ck_assert(!expect(7, 1000)); /* which the policy must hear of */
	ck_assert(expect(7, 1001));
	ck_assert(has(7, 599999));
	ck_assert(!has(7, 600000));
}

UNIT_TEST(what_is_kept_no_more_may_still_be_opened)
{
	ucm_expected_keep(&expected, 7, 600000, 0);
	ucm_expected_keep(&expected, 7, 0, 1);
	ck_assert(!has(7, 1));
	ucm_expected_keep(&expected, 8, 0, 1);
	ck_assert_uint_eq(expected.used, 1);
	ck_assert(!expect(7, 1));
	ucm_expected_keep(&expected, 7, 0, 1);
	ck_assert(has(7, 1));
}

UNIT_TEST(what_is_kept_leaves_room_for_what_is_opened)
{
	for (ucm_ref ref = 1; ref <= UCM_EXPECTED_MOST; ref++)
		ucm_expected_keep(&expected, ref, 600000, 0);
	ck_assert_uint_eq(expected.used, UCM_EXPECTED_MOST / 2);
	ck_assert(!expect(UCM_EXPECTED_MOST + 1, 0));
	ck_assert(has(UCM_EXPECTED_MOST + 1, 0));
}

/* Many more than the table's first size, most of which are over. */
UNIT_TEST(what_is_over_makes_room)
{
	const int64_t now = UCM_EXPECTED_MS + 5000;

	for (ucm_ref ref = 1; ref <= 10000; ref++)
		expect(ref, (int64_t)ref);
	ck_assert_uint_ge(expected.room, 10000);
	for (ucm_ref ref = 1; ref <= 10000; ref++)
		ck_assert(has(ref, now) == (ref > 5000));
	for (ucm_ref ref = 20001; ref <= 30000; ref++)
		expect(ref, 10 * UCM_EXPECTED_MS);
	for (ucm_ref ref = 30001; ref <= 40000; ref++)
		expect(ref, 20 * UCM_EXPECTED_MS);
	ck_assert_uint_le(expected.room, 65536);
	for (ucm_ref ref = 30001; ref <= 40000; ref++)
		ck_assert(has(ref, 20 * UCM_EXPECTED_MS));
}

/* So memory is bounded, and what was expected before stays. */
UNIT_TEST(too_many_are_ignored_until_some_are_over)
{
	const ucm_ref most = UCM_EXPECTED_MOST, late = most + 1;

	for (ucm_ref ref = 1; ref <= most; ref++)
		expect(ref, ref <= most / 2 ? 0 : 10000);
	ck_assert(!expect(late, 10000));
	ck_assert(!has(late, 10000));
	ck_assert(has(1, 10000) && has(most, 10000));
	ck_assert(expect(most, 10000));
	ck_assert_uint_le(expected.room, 2 * most);
	ck_assert(!expect(late, UCM_EXPECTED_MS));
	ck_assert(has(late, UCM_EXPECTED_MS) && has(most, UCM_EXPECTED_MS));
	ck_assert_uint_eq(expected.used, most / 2 + 1);
}
