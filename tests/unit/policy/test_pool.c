/* SPDX-License-Identifier: Apache-2.0 */
/* test_pool.c - how the pool picks from what it is offered. */
#include <config.h>

#include "fs/policy/pool.h"

#include <string.h>

#include "tests/unit/random.h"

#define BLOCKS 1000

/* Blocks that a source draws from; LRU, so that worth is age. */
static struct block {
	struct ucm_policy_state state;
	uint32_t depth;
	bool gone;
} blocks[BLOCKS];
static unsigned num_blocks, num_draws, num_refreshes, next_draw;
static uint64_t random_state;
static struct ucm_policy *policy;
static struct ucm_pool pool;

static bool draw_at(unsigned number, struct ucm_pool_candidate *out)
{
	const struct block *block = &blocks[number];

	num_draws++;
	*out = (struct ucm_pool_candidate){ number, block->state,
					    block->depth };
	return !block->gone;
}

static bool draw_random(void *arg, struct ucm_pool_candidate *out)
{
	(void)arg;
	return draw_at((unsigned)(random_next(&random_state) % num_blocks),
		       out);
}

static bool draw_in_turn(void *arg, struct ucm_pool_candidate *out)
{
	(void)arg;
	return draw_at(next_draw++ % num_blocks, out);
}

static bool refresh(void *arg, struct ucm_pool_candidate *candidate)
{
	(void)arg;
	num_refreshes++;
	must(candidate->ref < num_blocks);
	candidate->state = blocks[candidate->ref].state;
	return !blocks[candidate->ref].gone;
}

static const struct ucm_pool_source at_random = { draw_random, refresh, NULL };
static const struct ucm_pool_source in_turn = { draw_in_turn, refresh, NULL };

/* Block i was used at second i. */
static void make(unsigned num)
{
	memset(blocks, 0, sizeof(blocks));
	num_blocks = num;
	num_draws = num_refreshes = next_draw = 0;
	random_state = random_case(0);
	for (unsigned i = 0; i < num; i++)
		blocks[i].state = (struct ucm_policy_state){ i, 1, 0 };
}

static void setup(void)
{
	ck_assert_int_eq(ucm_policy_lru.new(1, 1, &policy), 0);
	ucm_pool_init(&pool, UCM_POOL_MAX, UCM_POOL_DRAWS);
}

static void teardown(void)
{
	ucm_policy_free(policy);
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

static uint64_t pick(const struct ucm_pool_source *source)
{
	struct ucm_pool_candidate victim;

	must(ucm_pool_pick(&pool, policy, 2000, source, &victim, NULL));
	return victim.ref;
}

UNIT_TEST(the_oldest_of_those_drawn_goes)
{
	double worth;
	struct ucm_pool_candidate victim;

	make(UCM_POOL_DRAWS);
	must(ucm_pool_pick(&pool, policy, 2000, &in_turn, &victim, &worth));
	ck_assert_uint_eq(victim.ref, 0);
	ck_assert_uint_eq(victim.state.last_s, 0);
	must(worth == -2000);
}

UNIT_TEST(to_look_is_not_to_take)
{
	make(4);
	ck_assert_uint_eq(pick(&in_turn), 0);
	ck_assert_uint_eq(pick(&in_turn), 0);
	ucm_pool_drop(&pool, 0);
	blocks[0].gone = true;
	ck_assert_uint_eq(pick(&in_turn), 1);
	ucm_pool_drop(&pool, 77); /* not in it */
}

UNIT_TEST(nothing_to_draw_is_no_victim)
{
	struct ucm_pool_candidate victim;

	make(4);
	for (unsigned i = 0; i < 4; i++)
		blocks[i].gone = true;
	must(!ucm_pool_pick(&pool, policy, 2000, &in_turn, &victim, NULL));
	blocks[2].gone = false;
	ck_assert_uint_eq(pick(&in_turn), 2);
	blocks[2].gone = true;
	must(!ucm_pool_pick(&pool, policy, 2000, &in_turn, &victim, NULL));
}

/* Neither of the two is drawn again. */
UNIT_TEST(one_that_was_used_meanwhile_stays)
{
	make(BLOCKS);
	ck_assert_uint_eq(pick(&in_turn), 0);
	blocks[0].state.last_s = 1999;
	blocks[1].gone = true;
	ck_assert_uint_eq(pick(&in_turn), 2);
}

UNIT_TEST(of_equals_the_deeper_goes)
{
	make(4);
	for (unsigned i = 0; i < 4; i++) {
		blocks[i].state.last_s = 5;
		blocks[i].depth = i == 2 ? 9 : i;
	}
	ck_assert_uint_eq(pick(&in_turn), 2);
}

UNIT_TEST(a_parent_that_is_offered_may_go_next)
{
	struct ucm_pool_candidate parent = { .ref = 500 };

	make(BLOCKS);
	blocks[500].state.last_s = 0;
	parent.state = blocks[500].state;
	next_draw = 100;
	ck_assert_uint_eq(pick(&in_turn), 100);
	ucm_pool_offer(&pool, policy, 2000, &parent);
	ck_assert_uint_eq(pick(&in_turn), 500);
}

/* With a pool of one, the source decides: so LRU is played exactly. */
UNIT_TEST(a_pool_of_one_takes_what_is_drawn)
{
	make(BLOCKS);
	for (unsigned i = 0; i < BLOCKS; i++) {
		ucm_pool_init(&pool, 1, 1);
		next_draw = (i * 7) % BLOCKS;
		ck_assert_uint_eq(pick(&in_turn), next_draw - 1);
	}
}

UNIT_TEST(a_full_pool_keeps_the_worst)
{
	make(BLOCKS);
	/* newer and newer ones are drawn: the first 32 stay */
	for (unsigned i = 0; i < BLOCKS / UCM_POOL_DRAWS; i++)
		ck_assert_uint_eq(pick(&in_turn), 0);
	for (unsigned i = 0; i < UCM_POOL_MAX; i++) {
		next_draw = BLOCKS - UCM_POOL_DRAWS;
		ck_assert_uint_eq(pick(&in_turn), i);
		ucm_pool_drop(&pool, i);
	}
}

/* Whatever the number of blocks; and near to what a search would have found. */
UNIT_TEST(victims_are_among_the_worst_at_a_bounded_price)
{
	uint64_t sum = 0;

	make(BLOCKS);
	for (unsigned i = 0; i < BLOCKS / 2; i++) {
		uint64_t ref = pick(&at_random);

		ucm_pool_drop(&pool, ref);
		must(!blocks[ref].gone);
		blocks[ref].gone = true;
		sum += ref;
	}
	must(num_draws <= BLOCKS / 2 * UCM_POOL_DRAWS);
	must(num_refreshes <= BLOCKS);
	/* the older half would have 250 on average; draws alone 500 */
	must(sum / (BLOCKS / 2) < 275);
}
