/* SPDX-License-Identifier: Apache-2.0 */
/* test_replay.c - policies on traces that are made up. */
#include <config.h>

#include "fs/replay/replay.h"

#include <errno.h>
#include <string.h>

#include "tests/unit/random.h"
#include "tests/unit/replay_fixture.h"

static struct ucm_replay_trace trace;

static void teardown(void)
{
	ucm_replay_trace_fini(&trace);
	trace = (struct ucm_replay_trace){ 0 };
}

UNIT_FIXTURE(.teardown = teardown);

static void add(uint32_t time_s, size_t num, const uint64_t *tags)
{
	ck_assert_int_eq(ucm_replay_trace_add(&trace, time_s, tags, num), 0);
}

static struct ucm_replay_result play(const char *policy, uint64_t capacity,
				     uint64_t seed)
{
	const struct ucm_replay_options options = { .capacity = capacity,
						    .seed = seed };
	struct ucm_replay_result result;

	ck_assert_int_eq(ucm_replay_run(&trace, ucm_policy_find(policy),
					&options, &result), 0);
	ck_assert_uint_eq(result.asked, trace.num_asked);
	must(result.writes - result.evicted <= capacity);
	return result;
}

static double rate(struct ucm_replay_result result)
{
	return (double)result.hits / (double)result.asked;
}

static double best_rate(uint64_t capacity)
{
	struct ucm_replay_result best;

	ck_assert_int_eq(ucm_replay_belady(&trace, capacity, &best), 0);
	return rate(best);
}

UNIT_TEST(a_block_has_the_parent_and_depth_that_it_came_with)
{
	add(5, 3, (uint64_t[]){ 10, 11, 12 });
	add(3, 4, (uint64_t[]){ 10, 11, 13, 14 });
	ck_assert_uint_eq(trace.num_blocks, 5);
	ck_assert_uint_eq(trace.num_asked, 7);
	ck_assert_uint_eq(trace.requests[1].time_s, 5);
	ck_assert_uint_eq(trace.blocks[0].parent, UCM_REPLAY_NONE);
	ck_assert_uint_eq(trace.blocks[3].tag, 13);
	ck_assert_uint_eq(trace.blocks[3].parent, 1);
	ck_assert_uint_eq(trace.blocks[4].depth, 3);
}

UNIT_TEST(no_room_is_refused)
{
	const struct ucm_replay_options options = { .seed = 1 };
	struct ucm_replay_result result;

	add(0, 1, (uint64_t[]){ 1 });
	ck_assert_int_eq(ucm_replay_run(&trace, &ucm_policy_lru, &options,
					&result), -EINVAL);
	ck_assert_int_eq(ucm_replay_belady(&trace, 0, &result), -EINVAL);
}

UNIT_TEST(an_empty_trace_has_no_hits)
{
	ck_assert_uint_eq(play("hazard", 10, 1).hits, 0);
	ck_assert_uint_eq(play("lru", 10, 1).writes, 0);
}

UNIT_TEST(a_block_twice_in_a_request_is_one_block)
{
	add(0, 3, (uint64_t[]){ 1, 1, 2 });
	add(1, 3, (uint64_t[]){ 1, 1, 2 });
	for (unsigned i = 0; ucm_policy_name(i); i++) {
		ck_assert_uint_eq(play(ucm_policy_name(i), 8, 1).writes, 2);
		ck_assert_uint_eq(play(ucm_policy_name(i), 8, 1).hits, 3);
	}
}

/* By age alone 2 makes room for 5, and 4 stays, which nobody asks for again. */
UNIT_TEST(what_has_ended_is_evicted_first, .rows = 2)
{
	const struct ucm_replay_options options = {
		.capacity = 4,
		.seed = 1,
		.ends = _i,
	};
	struct ucm_replay_result result;

	add(0, 2, (uint64_t[]){ 1, 2 });
	add(10, 2, (uint64_t[]){ 3, 4 });
	add(20, 1, (uint64_t[]){ 5 });
	add(30, 1, (uint64_t[]){ 5 });
	add(40, 2, (uint64_t[]){ 1, 2 });
	ck_assert_int_eq(ucm_replay_run(&trace, &ucm_policy_lru, &options,
					&result), 0);
	ck_assert_uint_eq(result.hits, _i ? 3 : 2);
}

static const enum replay_work works[] = {
	REPLAY_CHAT, REPLAY_AGENTS, REPLAY_MIXED, REPLAY_LOOP,
};
static const uint64_t capacities[] = { 500, 2000, 8000 };

UNIT_FIXTURE(.teardown = teardown, .timeout = 120);

UNIT_TEST(leaves_alone_go_and_a_seed_is_a_run, .rows = NUM_ROWS(works))
{
	struct ucm_replay_result one, two;

	replay_make(works[_i], random_case(0), 3000, &trace);
	for (size_t i = 0; i < NUM_ROWS(capacities); i++) {
		one = play("hazard", capacities[i], 5);
		two = play("hazard", capacities[i], 5);
		must_in_case(!one.orphans, 0, "orphans");
		must_in_case(!memcmp(&one, &two, sizeof(one)), 0, "repeat");
		must_in_case(one.touches <=
			     64 * (one.evicted + one.refused + 1), 0,
			     "touches");
	}
}

/* No policy does better than who knows what comes; and the default does not
 * lose what LRU has. */
UNIT_TEST(the_default_is_as_good_as_lru, .rows = NUM_ROWS(works))
{
	replay_make(works[_i], random_case(1), 8000, &trace);
	for (size_t i = 0; i < NUM_ROWS(capacities); i++) {
		double hazard = rate(play("hazard", capacities[i], 1));
		double lru = rate(play("lru", capacities[i], 1));
		double best = best_rate(capacities[i]);

		must_in_case(hazard <= best && lru <= best, 1,
			     "better than the best");
		must_in_case(hazard >= lru - 0.015, 1,
			     "worse than the others");
	}
}

UNIT_TEST(a_loop_that_does_not_fit_keeps_a_part)
{
	replay_make(REPLAY_LOOP, 1, 8000, &trace);
	must(rate(play("lru", 2000, 1)) == 0);
	must(rate(play("hazard", 2000, 1)) > 0.95 * best_rate(2000));
	must(play("hazard", 2000, 1).writes < trace.num_asked / 20);
}

UNIT_TEST(where_all_fits_all_are_alike)
{
	double best;

	replay_make(REPLAY_MIXED, random_case(2), 3000, &trace);
	best = best_rate(1000000);
	for (unsigned i = 0; ucm_policy_name(i); i++)
		must_in_case(rate(play(ucm_policy_name(i), 1000000, 1)) ==
			     best, 2, ucm_policy_name(i));
}
