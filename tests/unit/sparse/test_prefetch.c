/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_prefetch.c - which blocks are loaded before they are wanted.
 *
 * Around a prefetch and its residency is a memory, a number for each slot, that
 * loads write to at any time until they have ended, some of them badly. What is
 * attended to must be there, whatever was guessed.
 */
#include <config.h>

#include <ucm/retrieve.h>

#include "tests/unit/sparse_fixture.h"

#define BLOCKS	96u
#define SLOTS	40u
#define STEPS	12500
#define GARBAGE UINT32_MAX

static struct both {
	struct ucm_prefetch *prefetch;
	struct ucm_resident *resident;
	struct ucm_prefetch_config config;
} both;

static void both_new(uint32_t ahead, uint32_t guesses, double trend,
		     uint32_t slots)
{
	const struct ucm_resident_config resident = {
		.num_blocks = BLOCKS, .num_slots = slots,
		.evict = UCM_EVICT_HYBRID,
		.score_weight = .7, .recency_weight = .3,
	};
	size_t bytes = ucm_resident_bytes(&resident);

	both.config = (struct ucm_prefetch_config){ BLOCKS, ahead, guesses,
						    trend };
	must(!ucm_resident_begin(&resident, malloc(bytes), &both.resident,
				 NULL));
	bytes = ucm_prefetch_bytes(&both.config);
	must(bytes);
	must(!ucm_prefetch_begin(&both.config, malloc(bytes), &both.prefetch,
				 NULL));
}

static void both_free(void)
{
	free(both.prefetch);
	free(both.resident);
}

/* ---- the model ---- */

static struct run {
	uint64_t random, step;
	unsigned number;
	float scores[BLOCKS], before[BLOCKS], change[BLOCKS];
	size_t num_before;
	uint32_t wanted[BLOCKS];
	size_t num_wanted;
	bool is_ahead[BLOCKS];
	struct ucm_fill going[2 * SLOTS];
	size_t num_going;
	uint32_t slot[BLOCKS];
	uint32_t coming[BLOCKS]; /* ticket of the load that is awaited, or 0 */
	uint32_t memory[SLOTS];
	uint64_t attended, used, late, missed, loads, cancelled;
} run;

static size_t below(size_t limit)
{
	return (size_t)random_between(&run.random, 0, (int64_t)limit - 1);
}

static bool listed(const uint32_t *list, size_t num, uint32_t block)
{
	for (size_t i = 0; i < num; i++) {
		if (list[i] == block)
			return true;
	}
	return false;
}

/* What is there is what can be taken. */
static bool is_there(uint32_t block)
{
	uint32_t found, slot;
	size_t num;

	must(!ucm_resident_take(both.resident, &block, 1, &found, &slot, &num,
				NULL));
	if (num)
		must(!ucm_resident_release(both.resident, &slot, 1, NULL));
	return num;
}

static bool is_coming(uint32_t block)
{
	return run.coming[block] != 0;
}

static int by_number(const void *a, const void *b)
{
	uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;

	return i < j ? -1 : i > j;
}

/* The best by what the scores say of a choice ahead, one by one. */
static size_t model_guess(uint32_t ahead, size_t num_scores, uint32_t *out,
			  size_t num)
{
	size_t first = num;

	for (uint32_t n = 0; n < both.config.blocks && num < SLOTS; n++) {
		float best = 0;
		int at = -1;

		for (uint32_t i = 0; i < num_scores; i++) {
			float value = (float)(run.scores[i] +
					      ahead * both.config.trend *
						      run.change[i]);

			if (listed(run.wanted, run.num_wanted, i) ||
			    listed(out, num, i))
				continue;
			if (at < 0 || value > best) {
				at = (int)i;
				best = value;
			}
		}
		if (at < 0)
			break;
		out[num++] = (uint32_t)at;
	}
	qsort(out + first, num - first, sizeof(*out), by_number);
	return num;
}

static void loads_begin(const struct ucm_fill *loads, size_t num)
{
	for (size_t i = 0; i < num; i++) {
		must(run.num_going < NUM_ROWS(run.going));
		run.going[run.num_going++] = loads[i];
		run.memory[loads[i].slot] = GARBAGE;
		run.coming[loads[i].block] = loads[i].ticket;
		run.slot[loads[i].block] = loads[i].slot;
	}
}

static void load_end(void)
{
	size_t which = below(run.num_going);
	struct ucm_fill load = run.going[which];
	int err = below(6) ? 0 : -EIO;

	run.going[which] = run.going[--run.num_going];
	run.memory[load.slot] = err ? GARBAGE : load.block;
	if (run.coming[load.block] == load.ticket &&
	    run.slot[load.block] == load.slot)
		run.coming[load.block] = 0;
	must(!ucm_resident_ended(both.resident, load.slot, load.ticket, err,
				 NULL));
}

/* Scores that drift, each its own way; wanted are the best and some others. */
static void next_scores(void)
{
	for (uint32_t i = 0; i < BLOCKS; i++)
		run.scores[i] += random_float(&run.random, 1) +
				 (float)(i % 5) * .1f -
				 run.scores[i] * .05f;
}

static void choose(void)
{
	const struct ucm_budget budget = { BLOCKS, 2, 2,
					   (uint32_t)below(20) };
	uint32_t num;

	next_scores();
	must(!ucm_select(run.scores, &budget, run.wanted, BLOCKS, &num, NULL));
	run.num_wanted = num;
}

static void set_and_count(void)
{
	const struct ucm_wanted want = { run.wanted, run.num_wanted, run.scores,
				       BLOCKS, 0 };
	const uint32_t *misses;
	size_t num, seen = 0;

	for (size_t i = 0; i < run.num_wanted; i++) {
		uint32_t block = run.wanted[i];
		bool there = is_there(block), coming = is_coming(block);

		run.used += there && run.is_ahead[block];
		run.late += !there && coming && run.is_ahead[block];
		run.missed += !there && !coming;
		run.is_ahead[block] = false;
	}
	must(!ucm_prefetch_set(both.prefetch, both.resident, &want, run.step,
			       NULL));
	misses = ucm_prefetch_misses(both.prefetch, &num);
	for (size_t i = 0; i < run.num_wanted; i++) {
		if (is_there(run.wanted[i]) || is_coming(run.wanted[i]))
			continue;
		must(seen < num && misses[seen] == i);
		seen++;
	}
	must(seen == num);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		run.change[i] = run.num_before
					? (float)(((double)run.change[i] +
						   run.scores[i] -
						   run.before[i]) / 2)
					: 0;
		run.before[i] = run.scores[i];
	}
	run.num_before = BLOCKS;
}

static void plan(void)
{
	struct ucm_fill loads[SLOTS], evicted[SLOTS];
	struct ucm_swap swap = { loads, evicted, SLOTS, 0, 0, 0, 0, 0 };
	const struct ucm_wanted want = { run.wanted, run.num_wanted, run.scores,
				       BLOCKS, run.step };

	must(!ucm_resident_plan(both.resident, &want, &swap, NULL));
	for (size_t i = 0; i < swap.num_evicted; i++)
		run.is_ahead[evicted[i].block] = false;
	loads_begin(loads, swap.num_loads);
}

static void guess(void)
{
	uint32_t want[SLOTS];
	size_t num_next = model_guess(1, BLOCKS, want, 0), num = num_next;
	size_t num_loads, got_next, num_cancels, seen = 0, next = 0;
	const struct ucm_fill *loads, *cancels;
	bool was_there[BLOCKS], was_coming[BLOCKS];

	if (both.config.ahead == 2)
		num = model_guess(2, BLOCKS, want, num);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		was_there[i] = is_there(i);
		was_coming[i] = is_coming(i);
	}
	must(!ucm_prefetch_run(&both.prefetch, &both.resident, 1, NULL));
	cancels = ucm_prefetch_cancels(both.prefetch, &num_cancels);
	for (size_t i = 0; i < num_cancels; i++) {
		uint32_t block = cancels[i].block;

		must(was_coming[block] && run.is_ahead[block] &&
		     !listed(want, num, block) &&
		     !listed(run.wanted, run.num_wanted, block));
		run.is_ahead[block] = false;
		run.coming[block] = 0;
	}
	run.cancelled += num_cancels;
	loads = ucm_prefetch_loads(both.prefetch, &num_loads, &got_next);
	for (size_t i = 0; i < num && seen < num_loads; i++) {
		if (was_there[want[i]] || was_coming[want[i]])
			continue;
		must_in_case(loads[seen].block == want[i], run.number,
			     "another guess");
		run.is_ahead[want[i]] = true;
		next += i < num_next;
		seen++;
	}
	must(seen == num_loads && next == got_next);
	run.loads += num_loads;
	loads_begin(loads, num_loads);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		if (run.is_ahead[i] && !is_coming(i) && !is_there(i))
			run.is_ahead[i] = false; /* it went, or failed */
	}
}

static void attend(void)
{
	uint32_t found[SLOTS], slots[SLOTS];
	size_t num;

	must(!ucm_resident_take(both.resident, run.wanted, run.num_wanted,
				found, slots, &num, NULL));
	for (size_t i = 0; i < num; i++)
		must_in_case(run.memory[slots[i]] == found[i], run.number,
			     "attended to what is not loaded");
	run.attended += num;
	must(!ucm_resident_release(both.resident, slots, num, NULL));
}

UNIT_FIXTURE(.timeout = 120);

/* Together with its neighbours, 10^5 steps. */
UNIT_TEST(many_steps_with_faults_are_those_of_the_model, .rows = 8)
{
	struct ucm_prefetch_stats stats;

	memset(&run, 0, sizeof(run));
	run.number = (unsigned)_i;
	run.random = random_case(run.number);
	both_new(1 + (uint32_t)_i % 2, 1 + (uint32_t)below(8),
		 _i < 4 ? .5 : 0, SLOTS);
	for (run.step = 1; run.step <= STEPS; run.step++) {
		size_t ends;

		choose();
		for (uint32_t i = 0; i < BLOCKS; i++) /* failed meanwhile */
			run.is_ahead[i] &= is_there(i) || is_coming(i);
		set_and_count();
		plan();
		guess();
		ends = below(run.num_going + 1);
		if (run.num_going > SLOTS / 2)
			ends = run.num_going;
		while (ends-- > 0)
			load_end();
		attend();
	}
	ucm_prefetch_get_stats(both.prefetch, &stats);
	ck_assert_uint_eq(stats.loads, run.loads);
	ck_assert_uint_eq(stats.used, run.used);
	ck_assert_uint_eq(stats.late, run.late);
	ck_assert_uint_eq(stats.missed, run.missed);
	ck_assert_uint_eq(stats.cancelled, run.cancelled);
	must(run.attended > STEPS && run.used > 100 && run.cancelled > 100);
	both_free();
}

/* ---- one thing each ---- */

static void set(uint64_t step, const uint32_t *blocks, size_t num,
		const float *scores)
{
	const struct ucm_wanted want = { blocks, num, scores, scores ? 8 : 0,
					 0 };

	must(!ucm_prefetch_set(both.prefetch, both.resident, &want, step,
			       NULL));
}

static size_t guesses(uint32_t *out, size_t *next)
{
	const struct ucm_fill *loads;
	size_t num;

	must(!ucm_prefetch_run(&both.prefetch, &both.resident, 1, NULL));
	loads = ucm_prefetch_loads(both.prefetch, &num, next);
	for (size_t i = 0; i < num; i++)
		out[i] = loads[i].block;
	return num;
}

/* Block 0 is wanted; 1 has the next best score and falls, 2 rises slowly, 3
 * fast from far below. */
static const float first_scores[8] = { 9, 8, 4, -4, -20, -20, -20, -20 };
static const float then_scores[8] = { 9, 7, 5.5, 0, -20, -20, -20, -20 };
static const uint32_t wanted[] = { 0 };

static const struct {
	double trend;
	uint32_t next, after;
} trends[] = {
	/* 7, 5.5, 0: as they are */
	{ 0, 1, 2 },
	/* 7 - .25 = 6.75, 5.5 + .375 = 5.875, 0 + 1 */
	{ .5, 1, 2 },
	/* 7 - .5 = 6.5, 6.25, 2; then 2 is at 7 and 3 at 4 */
	{ 1, 1, 2 },
};

UNIT_TEST(guesses_are_the_best_that_are_not_wanted, .rows = NUM_ROWS(trends))
{
	uint32_t got[8];
	size_t next;

	both_new(2, 1, trends[_i].trend, 3);
	set(1, wanted, 1, first_scores);
	set(2, wanted, 1, then_scores);
	ck_assert_uint_eq(guesses(got, &next), 2);
	ck_assert_uint_eq(next, 1);
	ck_assert_uint_eq(got[0], trends[_i].next);
	ck_assert_uint_eq(got[1], trends[_i].after);
	both_free();
}

UNIT_TEST(what_rises_fast_is_guessed_by_its_trend)
{
	static const float low[8] = { 9, 8, 4, -12, -20, -20, -20, -20 };
	static const float high[8] = { 9, 6, 5, 4, -20, -20, -20, -20 };
	uint32_t got[8];
	size_t next;

	both_new(1, 1, 1, 3); /* 6 - 1, 5 + .5, 4 + 8 */
	set(1, wanted, 1, low);
	set(2, wanted, 1, high);
	ck_assert_uint_eq(guesses(got, &next), 1);
	ck_assert_uint_eq(got[0], 3);
	both_free();
}

UNIT_TEST(a_wrong_guess_is_cancelled_and_its_slot_comes_back)
{
	static const float other[8] = { 9, -8, -4, 8, -20, -20, -20, -20 };
	const struct ucm_fill *cancels, *loads;
	struct ucm_resident_stats stats;
	struct ucm_fill first;
	uint32_t got[8];
	size_t num, next;

	both_new(1, 1, 0, 2);
	set(1, wanted, 1, first_scores);
	must(guesses(got, &next) == 1 && got[0] == 1);
	loads = ucm_prefetch_loads(both.prefetch, &num, NULL);
	first = loads[0];
	set(2, wanted, 1, other);
	must(guesses(got, &next) == 1 && got[0] == 3);
	cancels = ucm_prefetch_cancels(both.prefetch, &num);
	ck_assert_uint_eq(num, 1);
	ck_assert_uint_eq(cancels[0].block, 1);
	ck_assert_uint_eq(cancels[0].ticket, first.ticket);
	ucm_resident_get_stats(both.resident, &stats);
	ck_assert_uint_eq(stats.num_free, 0); /* it may still write */
	must(!ucm_resident_ended(both.resident, first.slot, first.ticket, 0,
				 NULL));
	ucm_resident_get_stats(both.resident, &stats);
	ck_assert_uint_eq(stats.num_free, 1);
	both_free();
}

/* ---- what is refused ---- */

static const struct {
	struct ucm_prefetch_config config;
	const char *word;
} wrong[] = {
	{ { 0, 1, 1, 0 }, "num_blocks 0" },
	{ { 8, 0, 1, 0 }, "ahead 0" },
	{ { 8, 3, 1, 0 }, "ahead 3" },
	{ { 8, 1, 0, 0 }, "blocks 0" },
	{ { 8, 2, 5, 0 }, "blocks 5" },
	{ { 8, 1, 1, NAN }, "trend nan" },
	{ { 8, 1, 1, 1.5 }, "trend 1.5" },
};

UNIT_TEST(a_wrong_configuration_is_refused_by_name, .rows = NUM_ROWS(wrong))
{
	struct ucm_prefetch *out = NULL;
	struct ucm_error error;
	uint64_t memory;

	ck_assert_uint_eq(ucm_prefetch_bytes(&wrong[_i].config), 0);
	assert_einval(ucm_prefetch_begin(&wrong[_i].config, &memory, &out,
					 &error), error, wrong[_i].word);
	ck_assert_ptr_null(out);
}

UNIT_TEST(wrong_arguments_are_refused_by_name_and_change_nothing)
{
	static const uint32_t large[] = { BLOCKS }, twice[] = { 1, 1 };
	static const float infinite[] = { INFINITY };
	const struct ucm_resident_config small = { .num_blocks = 4,
						   .num_slots = 2 };
	struct ucm_wanted want = { .blocks = large, .num = 1 };
	struct ucm_prefetch_stats stats;
	struct ucm_resident *other;
	struct ucm_error error;
	void *memory = malloc(ucm_resident_bytes(&small));

	both_new(1, 1, 0, 2);
	must(!ucm_resident_begin(&small, memory, &other, NULL));
#define SET(step)                                                             \
	ucm_prefetch_set(both.prefetch, both.resident, &want, step, &error)
	assert_einval(SET(1), error, "blocks: number 0 is 96");
	want.blocks = NULL;
	assert_einval(SET(1), error, "blocks is NULL");
	want.blocks = twice;
	want.num = 2;
	assert_einval(SET(1), error, "blocks: number 1 is 1, again");
	want.num = 1;
	want.scores = infinite;
	want.num_scores = 1;
	assert_einval(SET(1), error, "scores: one is not finite");
	want.num_scores = BLOCKS + 1;
	assert_einval(SET(1), error, "num_scores 97");
	want.scores = NULL;
	assert_einval(ucm_prefetch_run(&both.prefetch, &both.resident, 1,
				       &error), error,
		      "prefetches: number 0 has not been set");
	must(!SET(5));
	assert_einval(SET(5), error, "step 5");
	assert_einval(ucm_prefetch_set(both.prefetch, other, &want, 6, &error),
		      error, "resident: has 4 blocks");
	assert_einval(ucm_prefetch_set(NULL, other, &want, 6, &error), error,
		      "prefetch");
	assert_einval(ucm_prefetch_set(both.prefetch, both.resident, NULL, 6,
				       &error), error, "want");
	assert_einval(ucm_prefetch_run(&both.prefetch, &other, 1, &error),
		      error, "resident");
	assert_einval(ucm_prefetch_run(NULL, &other, 1, &error), error,
		      "prefetches");
	assert_einval(ucm_prefetch_begin(&both.config, NULL, &both.prefetch,
					 &error), error, "memory");
	ucm_prefetch_get_stats(both.prefetch, &stats);
	ck_assert_uint_eq(stats.missed, 1);
	free(memory);
	both_free();
}
