/* SPDX-License-Identifier: Apache-2.0 */
/* test_replay.c - policies on traces that are made up. */
#include <config.h>

#include "fs/replay/replay.h"

#include <errno.h>
#include <math.h>
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

/* Take this share of the blocks of the trace, by the same requests. */
static void sample(double share)
{
	struct ucm_replay_trace all = trace;

	trace = (struct ucm_replay_trace){ .sample = share };
	for (size_t i = 0; i < all.num_requests; i++) {
		const struct ucm_replay_request *request = &all.requests[i];
		uint64_t tags[2000];

		for (uint32_t j = 0; j < request->num; j++)
			tags[j] = all.blocks[all.asked[request->first + j]].tag;
		add(request->time_s, request->num, tags);
	}
	ck_assert_uint_eq(trace.offered, all.num_asked);
	ck_assert_uint_eq(trace.num_requests, all.num_requests);
	ucm_replay_trace_fini(&all);
}

static double estimate(const char *policy, uint64_t capacity)
{
	struct ucm_replay_result result = play(policy, capacity, 1);

	return ucm_replay_hit_rate(&trace, &result);
}

/* The bound of ucm plan, which asks for 300 blocks of the sample in the cache. */
UNIT_TEST(a_sample_has_about_the_hits_of_all, .rows = NUM_ROWS(works))
{
	static const uint64_t sizes[] = { 3000, 8000, 20000 };
	double want[NUM_ROWS(sizes)][2], bound;

	replay_make(works[_i], random_case(3), 4000, &trace);
	for (size_t i = 0; i < NUM_ROWS(sizes); i++)
		for (unsigned j = 0; j < 2; j++)
			want[i][j] = estimate(ucm_policy_name(j), sizes[i]);
	sample(0.1);
	must_in_case(trace.num_asked < trace.offered / 5, 3, "a tenth of it");
	bound = 3 / sqrt((double)trace.num_blocks);
	for (size_t i = 0; i < NUM_ROWS(sizes); i++)
		for (unsigned j = 0; j < 2; j++) {
			double got = estimate(ucm_policy_name(j), sizes[i] / 10);
			must_in_case(fabs(got - want[i][j]) <= bound, 3,
				     ucm_policy_name(j));
		}
}
