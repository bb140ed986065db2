/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_resident.c - which blocks are in which slots: one thing each, and what
 * is refused.
 */
#include <config.h>

#include <ucm/retrieve.h>

#include "tests/unit/sparse/resident_fixture.h"

/* ---- one thing each ---- */

static struct ucm_fill loads[8], evicted[8];
static struct ucm_swap swap;

static int plan(struct ucm_resident *resident, uint64_t now,
		const float *scores, const uint32_t *blocks, size_t num)
{
	const struct ucm_wanted want = { blocks, num, scores, scores ? 8 : 0,
				       now };

	swap = (struct ucm_swap){ .loads = loads, .evicted = evicted,
				  .room = 8 };
	return ucm_resident_plan(resident, &want, &swap, NULL);
}

static void finish_loads(struct ucm_resident *resident)
{
	for (size_t i = 0; i < swap.num_loads; i++)
		must(!ucm_resident_ended(resident, loads[i].slot,
					 loads[i].ticket, 0, NULL));
}

/* 3 slots; blocks 0, 1, 2 wanted at 1; 1, 2 again at 5; scores; then 3. */
static const struct {
	uint32_t evict;
	float scores[8];
	uint32_t victim;
} victims[] = {
	{ UCM_EVICT_LRU, { 9, 1, 2, 5, 0, 9, 9, 9 }, 0 },
	{ UCM_EVICT_SCORE, { 9, 1, 2, 5, 0, 9, 9, 9 }, 1 },
	/* .7 * 9/9 + .3/6 = .75; .7 * 1/9 + .3/2 = .228; .7 * 2/9 + .15 */
	{ UCM_EVICT_HYBRID, { 9, 1, 2, 5, 0, 9, 9, 9 }, 1 },
	/* .05 + .05; .0 + .15; .7 + .15: old and worth little more */
	{ UCM_EVICT_HYBRID, { .64f, 0, 9, 9, 9, 9, 9, 9 }, 0 },
	/* .1 + .05: not so little */
	{ UCM_EVICT_HYBRID, { 1.35f, 0, 9, 9, 9, 9, 9, 9 }, 1 },
	/* equal: the lower slot */
	{ UCM_EVICT_SCORE, { 4, 4, 4, 4, 4, 4, 4, 4 }, 0 },
};

UNIT_FIXTURE(.timeout = 120);

UNIT_TEST(the_block_that_is_worth_least_goes, .rows = NUM_ROWS(victims))
{
	const struct ucm_resident_config config = {
		.num_blocks = 8, .num_slots = 3, .evict = victims[_i].evict,
		.score_weight = .7, .recency_weight = .3,
	};
	static const uint32_t first[] = { 0, 1, 2 }, again[] = { 1, 2 },
			      third[] = { 3 };
	struct ucm_resident *resident = resident_new(&config);

	must(!plan(resident, 1, NULL, first, 3) && swap.num_loads == 3);
	finish_loads(resident);
	must(!plan(resident, 5, NULL, again, 2) && swap.num_loaded == 2);
	must(!plan(resident, 6, victims[_i].scores, third, 1));
	ck_assert_uint_eq(swap.num_evicted, 1);
	ck_assert_uint_eq(evicted[0].block, victims[_i].victim);
	free(resident);
}

UNIT_TEST(what_is_loaded_is_favoured_by_hysteresis)
{
	struct ucm_resident_config config = {
		.num_blocks = 4, .num_slots = 2, .hysteresis = .25,
	};
	static const uint32_t first[] = { 1, 3 };
	static const float given[] = { 0, 10, 20, -20 };
	struct ucm_resident *resident = resident_new(&config);
	float scores[4];

	must(!plan(resident, 1, NULL, first, 2));
	finish_loads(resident);
	memcpy(scores, given, sizeof(scores));
	must(!ucm_resident_favour(resident, scores, 4, NULL));
	ck_assert(scores[0] == 0 && scores[1] == 20 && scores[2] == 20 &&
		  scores[3] == -10);
	free(resident);

	config.hysteresis = 0;
	resident = resident_new(&config);
	must(!plan(resident, 1, NULL, first, 2));
	memcpy(scores, given, sizeof(scores));
	must(!ucm_resident_favour(resident, scores, 4, NULL));
	ck_assert_mem_eq(scores, given, sizeof(scores));
	free(resident);
}

/* Scores that differ by noise alone: each step another choice, unless what is
 * loaded counts for more. */
static uint64_t loads_with(double hysteresis)
{
	const struct ucm_resident_config config = {
		.num_blocks = 8, .num_slots = 4, .hysteresis = hysteresis,
	};
	const struct ucm_budget budget = { .num_blocks = 8, .topk = 4 };
	struct ucm_resident *resident = resident_new(&config);
	struct ucm_resident_stats stats;
	uint64_t random = 1;

	for (uint64_t now = 1; now <= 200; now++) {
		uint32_t chosen[8], num;
		float scores[8];

		for (int i = 0; i < 8; i++)
			scores[i] = (i == 0 ? 10.f : i == 7 ? 0.f : 5.f) +
				    random_float(&random, 1);
		must(!ucm_resident_favour(resident, scores, 8, NULL));
		must(!ucm_select(scores, &budget, chosen, 8, &num, NULL));
		must(!plan(resident, now, scores, chosen, num));
		finish_loads(resident);
	}
	ucm_resident_get_stats(resident, &stats);
	free(resident);
	return stats.loads;
}

UNIT_TEST(noise_moves_fewer_blocks_with_hysteresis)
{
	ck_assert_uint_gt(loads_with(0), 100);
	ck_assert_uint_le(loads_with(.5), 8);
}

UNIT_TEST(what_is_pinned_stays_until_it_is_released)
{
	const struct ucm_resident_config config = { .num_blocks = 8,
						    .num_slots = 2 };
	static const uint32_t first[] = { 0, 1 }, next[] = { 2, 3 };
	struct ucm_resident *resident = resident_new(&config);
	uint32_t blocks[2], slots[2];
	size_t num;

	must(!plan(resident, 1, NULL, first, 2));
	finish_loads(resident);
	must(!ucm_resident_take(resident, first, 1, blocks, slots, &num, NULL));
	must(num == 1);
	must(!plan(resident, 2, NULL, next, 2));
	ck_assert_uint_eq(swap.num_loads, 1);
	ck_assert_uint_eq(swap.num_left, 1);
	ck_assert_uint_eq(evicted[0].block, 1);
	must(!ucm_resident_release(resident, slots, 1, NULL));
	must(!plan(resident, 3, NULL, next, 2));
	ck_assert_uint_eq(swap.num_loads, 1);
	ck_assert_uint_eq(swap.num_coming, 1);
	ck_assert_uint_eq(swap.num_left, 0);
	free(resident);
}

UNIT_TEST(what_two_have_pinned_is_free_when_both_have_released_it)
{
	const struct ucm_resident_config config = { .num_blocks = 8,
						    .num_slots = 1 };
	static const uint32_t first[] = { 0 }, next[] = { 1 };
	struct ucm_resident *resident = resident_new(&config);
	uint32_t block, slots[2];
	size_t num;

	must(!plan(resident, 1, NULL, first, 1));
	finish_loads(resident);
	for (int i = 0; i < 2; i++)
		must(!ucm_resident_take(resident, first, 1, &block, &slots[i],
					&num, NULL) && num == 1);
	must(!ucm_resident_drop(resident, first, 1, loads, &num, NULL));
	must(!ucm_resident_release(resident, &slots[0], 1, NULL));
	must(!plan(resident, 2, NULL, next, 1));
	ck_assert_uint_eq(swap.num_loads, 0);
	ck_assert_uint_eq(swap.num_left, 1);
	must(!ucm_resident_release(resident, &slots[1], 1, NULL));
	must(!plan(resident, 3, NULL, next, 1));
	ck_assert_uint_eq(swap.num_loads, 1);
	free(resident);
}

/* ---- what is refused ---- */

static const struct {
	struct ucm_resident_config config;
	const char *word;
} wrong[] = {
	{ { .num_blocks = 0, .num_slots = 1 }, "num_blocks 0" },
	{ { .num_blocks = UCM_RESIDENT_MAX + 1, .num_slots = 1 },
	  "num_blocks 16777217" },
	{ { .num_blocks = 1, .num_slots = 0 }, "num_slots 0" },
	{ { .num_blocks = 1, .num_slots = 1, .evict = 3 }, "evict 3" },
	{ { .num_blocks = 1, .num_slots = 1, .score_weight = -1 },
	  "score_weight -1" },
	{ { .num_blocks = 1, .num_slots = 1, .recency_weight = NAN },
	  "recency_weight nan" },
	{ { .num_blocks = 1, .num_slots = 1, .hysteresis = 1.5 },
	  "hysteresis 1.5" },
};

UNIT_TEST(a_wrong_configuration_is_refused_by_name, .rows = NUM_ROWS(wrong))
{
	struct ucm_resident *out = NULL;
	struct ucm_error error;
	uint64_t memory;

	ck_assert_uint_eq(ucm_resident_bytes(&wrong[_i].config), 0);
	assert_einval(ucm_resident_begin(&wrong[_i].config, &memory, &out,
					 &error), error, wrong[_i].word);
	ck_assert_ptr_null(out);
}

UNIT_TEST(wrong_arguments_are_refused_by_name_and_change_nothing)
{
	const struct ucm_resident_config config = { .num_blocks = 4,
						    .num_slots = 2 };
	static const uint32_t fine[] = { 1, 2, 3 }, large[] = { 1, 4 },
			      twice[] = { 2, 2 };
	static const float nan_score[] = { 0, NAN };
	static const float infinite[] = { 0, INFINITY };
	struct ucm_resident *resident = resident_new(&config);
	struct ucm_swap full = { loads, evicted, 8, 9, 9, 9, 9, 9 };
	struct ucm_swap small = { loads, evicted, 1, 9, 9, 9, 9, 9 };
	struct ucm_wanted want = { .blocks = large, .num = 2, .now = 1 };
	uint32_t slots[3] = { 0, 0, 0 }, slot, gone;
	struct ucm_resident_stats stats;
	struct ucm_error error;
	size_t num = 9;

#define PLAN(swap) ucm_resident_plan(resident, &want, swap, &error)
	assert_einval(PLAN(&full), error, "blocks: number 1 is 4");
	want.blocks = twice;
	assert_einval(PLAN(&full), error, "blocks: number 1 is 2, again");
	want.blocks = NULL;
	assert_einval(PLAN(&full), error, "blocks is NULL");
	want.blocks = fine;
	assert_einval(PLAN(&small), error, "room 1");
	assert_einval(PLAN(NULL), error, "out");
	want.scores = nan_score;
	want.num_scores = 2;
	assert_einval(PLAN(&full), error, "scores: one is NaN");
	want.scores = infinite;
	assert_einval(PLAN(&full), error, "scores: one is not finite");
	want.num_scores = 5;
	assert_einval(PLAN(&full), error, "num_scores 5");
	want.scores = NULL;
	want.num = 3;
	ck_assert_int_eq(PLAN(&full), -ENOSPC);
	ck_assert_uint_eq(full.num_loads, 9);
	want.num = 1;
	want.now = 5;
	must(!PLAN(&full) && full.num_loads == 1);
	want.now = 4;
	assert_einval(PLAN(&full), error, "now 4");
	assert_einval(ucm_resident_put(resident, 2, 4, &slot, &gone, &error),
		      error, "now 4");
	assert_einval(ucm_resident_put(resident, 4, 5, &slot, &gone, &error),
		      error, "blocks: number 0 is 4");
	assert_einval(ucm_resident_put(resident, 2, 5, NULL, &gone, &error),
		      error, "slot_out");
	assert_einval(ucm_resident_ended(resident, 2, 1, 0, &error), error,
		      "slot 2");
	ck_assert_int_eq(ucm_resident_ended(resident, 0, 2, 0, &error),
			 -ESTALE);
	assert_einval(ucm_resident_release(resident, slots, 1, &error), error,
		      "slots: number 0 is 0, not pinned");
	must(!ucm_resident_ended(resident, 0, 1, 0, &error));
	must(!ucm_resident_take(resident, fine, 3, slots, slots, &num, NULL));
	must(num == 1);
	slots[0] = slots[1] = 0;
	assert_einval(ucm_resident_release(resident, slots, 2, &error), error,
		      "slots: number 1");
	must(!ucm_resident_release(resident, slots, 1, &error));
	assert_einval(ucm_resident_take(resident, fine, 1, NULL, slots, &num,
					&error), error, "blocks_out");
	assert_einval(ucm_resident_cancel(resident, fine, 1, NULL, &num,
					  &error), error, "out");
	assert_einval(ucm_resident_drop(resident, NULL, 0, NULL, &num, &error),
		      error, "out");
	assert_einval(ucm_resident_plan(NULL, &want, &full, &error), error,
		      "resident");
	assert_einval(ucm_resident_begin(&config, NULL, &resident, &error),
		      error, "memory");
	assert_einval(ucm_resident_begin(&config, (uint8_t *)resident + 4,
					 &resident, &error), error,
		      "memory is not aligned");
	ucm_resident_get_stats(resident, &stats);
	ck_assert_uint_eq(stats.loads, 1);
	ck_assert_uint_eq(stats.num_loaded, 1);
	free(resident);
}
