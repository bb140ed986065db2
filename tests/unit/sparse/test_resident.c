/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_resident.c - which blocks are in which slots.
 *
 * The model is a list of slots in which the best one is looked for again and
 * again. Around it is a memory, a number for each slot, that loads write to at
 * any time until they have ended: what is attended to must be there.
 */
#include <config.h>

#include <ucm/retrieve.h>

#include "tests/unit/sparse_fixture.h"

#define MAX_BLOCKS 64u
#define MAX_SLOTS  24u
#define STEPS	   100000u
#define GARBAGE	   UINT32_MAX

static struct ucm_resident *
resident_new(const struct ucm_resident_config *config)
{
	size_t bytes = ucm_resident_bytes(config);
	struct ucm_resident *resident = NULL;
	struct ucm_error error;
	void *memory = malloc(bytes);

	must(bytes && memory);
	memset(memory, 0x5a, bytes);
	ck_assert_msg(!ucm_resident_begin(config, memory, &resident, &error),
		      "%s", error.text);
	must((void *)resident == memory);
	return resident;
}

/* ---- the model ---- */

enum state { FREE, LOADING, LOADED, CANCELLED, GOING };

struct place {
	enum state state;
	uint32_t block, ticket, pins;
	uint64_t used;
	float score;
};

static struct model {
	struct ucm_resident_config config;
	struct place slots[MAX_SLOTS];
	bool wanted[MAX_BLOCKS]; /* by the last plan that was not ahead */
	uint64_t now;
	uint32_t memory[MAX_SLOTS];
} model;

static struct place *model_find(uint32_t block)
{
	for (uint32_t i = 0; i < model.config.num_slots; i++) {
		struct place *slot = &model.slots[i];

		if ((slot->state == LOADING || slot->state == LOADED) &&
		    slot->block == block)
			return slot;
	}
	return NULL;
}

/* Larger: goes sooner. */
static double model_worth_less(const struct place *slot)
{
	double age = (double)(model.now - slot->used);

	switch (model.config.evict) {
	case UCM_EVICT_LRU: return age;
	case UCM_EVICT_SCORE: return -slot->score;
	default:
		return -(float)(model.config.score_weight * slot->score +
				model.config.recency_weight / (age + 1));
	}
}

static bool listed(const uint32_t *blocks, size_t num, uint32_t block)
{
	for (size_t i = 0; i < num; i++) {
		if (blocks[i] == block)
			return true;
	}
	return false;
}

/* Mark the num slots that blocks get, the best first. */
static size_t model_choose(const uint32_t *blocks, size_t num_blocks,
			   size_t num, bool ahead, bool *chosen)
{
	size_t found = 0;

	memset(chosen, 0, MAX_SLOTS * sizeof(*chosen));
	for (; found < num; found++) {
		int best = -1;
		double worth = 0;

		for (uint32_t i = 0; i < model.config.num_slots; i++) {
			struct place *slot = &model.slots[i];
			double this = INFINITY;

			if (chosen[i])
				continue;
			if (slot->state != FREE) {
				if (slot->state != LOADED || slot->pins ||
				    listed(blocks, num_blocks, slot->block) ||
				    (ahead && model.wanted[slot->block]))
					continue;
				this = model_worth_less(slot);
			}
			if (best < 0 || this > worth) {
				best = (int)i;
				worth = this;
			}
		}
		if (best < 0)
			break;
		chosen[best] = true;
	}
	return found;
}

static void model_rescore(const struct ucm_wanted *want)
{
	float least = INFINITY, most = -INFINITY;

	for (size_t i = 0; want->scores && i < want->num_scores; i++) {
		least = want->scores[i] < least ? want->scores[i] : least;
		most = want->scores[i] > most ? want->scores[i] : most;
	}
	for (uint32_t i = 0; i < model.config.num_slots; i++) {
		struct place *slot = &model.slots[i];

		if (slot->state != FREE && want->scores &&
		    slot->block < want->num_scores)
			slot->score =
				(float)(((double)want->scores[slot->block] -
					 least) *
					(most > least
						 ? 1 / ((double)most - least)
						 : 0));
	}
}

/* What ucm_resident_plan() has to say, and compare. */
static void model_plan(const struct ucm_wanted *want, bool ahead,
		       const struct ucm_swap *got, unsigned number)
{
	size_t missing = 0, loaded = 0, coming = 0, loads = 0, evicted = 0;
	bool chosen[MAX_SLOTS];
	size_t num;
	uint32_t next = 0;

	model.now = want->now;
	for (size_t i = 0; i < want->num; i++) {
		struct place *slot = model_find(want->blocks[i]);

		loaded += slot && slot->state == LOADED;
		coming += slot && slot->state == LOADING;
		missing += !slot;
		if (slot && !ahead)
			slot->used = want->now;
	}
	model_rescore(want);
	num = model_choose(want->blocks, want->num, missing, ahead, chosen);
	for (size_t i = 0; i < want->num && loads < num; i++) {
		struct place *slot;

		if (model_find(want->blocks[i]))
			continue;
		while (!chosen[next])
			next++;
		slot = &model.slots[next];
		if (slot->state == LOADED) {
			must_in_case(got->evicted[evicted].block ==
						     slot->block &&
					     got->evicted[evicted].slot == next,
				     number, "another victim");
			evicted++;
		}
		*slot = (struct place){ LOADING, want->blocks[i],
					slot->ticket + 1, 0, want->now, 0 };
		must_in_case(got->loads[loads].block == slot->block &&
			     got->loads[loads].slot == next &&
			     got->loads[loads].ticket == slot->ticket, number,
			     "another load");
		loads++;
		next++;
	}
	model_rescore(want);
	if (!ahead) {
		for (uint32_t i = 0; i < MAX_BLOCKS; i++)
			model.wanted[i] = listed(want->blocks, want->num, i);
	}
	must_in_case(got->num_loads == loads && got->num_evicted == evicted &&
		     got->num_loaded == loaded && got->num_coming == coming &&
		     got->num_left == missing - loads, number, "counts");
}

/* ---- 10^5 steps with faults ---- */

static struct run {
	struct ucm_resident *resident;
	uint64_t random;
	unsigned number, step;
	struct ucm_fill going[MAX_SLOTS * 2]; /* loads under way */
	size_t num_going;
	struct ucm_fill ended; /* the last one that was told */
	uint32_t taken[MAX_BLOCKS], held[MAX_BLOCKS]; /* blocks, slots */
	size_t num_taken;
	float scores[MAX_BLOCKS];
	uint32_t last[MAX_BLOCKS]; /* of the last plan */
	size_t num_last;
	uint64_t attended, failed;
} run;

static size_t below(size_t limit)
{
	return (size_t)random_between(&run.random, 0, (int64_t)limit - 1);
}

/* Up to so many, each once. */
static size_t random_blocks(uint32_t *out, size_t most)
{
	uint32_t all[MAX_BLOCKS];
	size_t num = below(most < model.config.num_blocks
				   ? most + 1
				   : model.config.num_blocks + 1);

	for (uint32_t i = 0; i < model.config.num_blocks; i++)
		all[i] = i;
	for (size_t i = 0; i < num; i++) {
		size_t which = i + below(model.config.num_blocks - i);

		out[i] = all[which];
		all[which] = all[i];
	}
	return num;
}

static void loads_start(const struct ucm_swap *swap)
{
	for (size_t i = 0; i < swap->num_loads; i++) {
		must(run.num_going < NUM_ROWS(run.going));
		run.going[run.num_going++] = swap->loads[i];
		model.memory[swap->loads[i].slot] = GARBAGE;
	}
}

static void plan_one(bool ahead)
{
	struct ucm_fill loads[MAX_SLOTS], evicted[MAX_SLOTS];
	struct ucm_swap swap = { loads, evicted, MAX_SLOTS, 0, 0, 0, 0, 0 };
	uint32_t blocks[MAX_BLOCKS];
	struct ucm_wanted want = {
		.blocks = blocks,
		.num = random_blocks(blocks, ahead ? 1
						   : model.config.num_slots),
		.now = model.now + below(3),
	};

	if (below(4)) {
		want.scores = run.scores;
		want.num_scores = below(model.config.num_blocks + 1);
		for (size_t i = 0; i < want.num_scores; i++)
			run.scores[i] = (float)below(50);
	}
	must(!(ahead ? ucm_resident_plan_ahead
		     : ucm_resident_plan)(run.resident, &want, &swap, NULL));
	model_plan(&want, ahead, &swap, run.number);
	memcpy(run.last, blocks, sizeof(blocks));
	run.num_last = want.num;
	loads_start(&swap);
}

/* A load ends in any order, now and then badly; what is cancelled may have
 * written all the same. */
static void load_end(void)
{
	struct ucm_fill load;
	struct place *slot;
	size_t which;
	int err = below(5) ? 0 : -EIO;

	if (!run.num_going)
		return;
	which = below(run.num_going);
	load = run.going[which];
	run.going[which] = run.going[--run.num_going];
	slot = &model.slots[load.slot];
	if (below(2) && run.ended.ticket) /* told again */
		must(ucm_resident_ended(run.resident, run.ended.slot,
					run.ended.ticket, 0, NULL) == -ESTALE);
	model.memory[load.slot] = err ? GARBAGE : load.block;
	must(!ucm_resident_ended(run.resident, load.slot, load.ticket, err,
				 NULL));
	must(slot->state == LOADING || slot->state == CANCELLED);
	slot->state = slot->state == LOADING && !err ? LOADED : FREE;
	run.ended = load;
	run.failed += err != 0;
}

static void model_cancel(struct place *slot, const struct ucm_fill *got)
{
	must(got->block == slot->block && got->ticket == slot->ticket &&
	     got->slot == (uint32_t)(slot - model.slots));
	slot->state = CANCELLED;
}

static void cancel_some(void)
{
	struct ucm_fill out[MAX_BLOCKS];
	uint32_t blocks[MAX_BLOCKS];
	size_t num = random_blocks(blocks, 6), num_out, seen = 0;

	must(!ucm_resident_cancel(run.resident, blocks, num, out, &num_out,
				  NULL));
	for (size_t i = 0; i < num; i++) {
		struct place *slot = model_find(blocks[i]);

		if (slot && slot->state == LOADING)
			model_cancel(slot, &out[seen++]);
	}
	must(seen == num_out);
}

static void model_drop(struct place *slot, const struct ucm_fill *out,
		       size_t *seen)
{
	if (slot->state == LOADING)
		model_cancel(slot, &out[(*seen)++]);
	else if (slot->state == LOADED)
		slot->state = slot->pins ? GOING : FREE;
}

static void drop_some(void)
{
	struct ucm_fill out[MAX_BLOCKS];
	uint32_t blocks[MAX_BLOCKS];
	size_t num = random_blocks(blocks, 3), num_out, seen = 0;
	bool all = !below(20);

	must(!ucm_resident_drop(run.resident, all ? NULL : blocks, num, out,
				&num_out, NULL));
	for (uint32_t i = 0; all && i < model.config.num_slots; i++)
		model_drop(&model.slots[i], out, &seen);
	for (size_t i = 0; !all && i < num; i++) {
		struct place *slot = model_find(blocks[i]);

		if (slot)
			model_drop(slot, out, &seen);
	}
	must(seen == num_out);
}

static void check_held(void)
{
	for (size_t i = 0; i < run.num_taken; i++)
		must_in_case(model.memory[run.held[i]] == run.taken[i],
			     run.number, "attended to what is not loaded");
}

static void release_held(void)
{
	check_held();
	must(!ucm_resident_release(run.resident, run.held, run.num_taken,
				   NULL));
	for (size_t i = 0; i < run.num_taken; i++) {
		struct place *slot = &model.slots[run.held[i]];

		if (!--slot->pins && slot->state == GOING)
			slot->state = FREE;
	}
	run.num_taken = 0;
}

static void take_some(void)
{
	uint32_t blocks[MAX_BLOCKS];
	size_t num, next = 0;

	if (run.num_taken) {
		release_held();
		return;
	}
	num = random_blocks(blocks, model.config.num_slots);
	if (below(4)) {
		num = run.num_last;
		memcpy(blocks, run.last, sizeof(blocks));
	}
	must(!ucm_resident_take(run.resident, blocks, num, run.taken, run.held,
				&run.num_taken, NULL));
	for (size_t i = 0; i < num; i++) {
		struct place *slot = model_find(blocks[i]);

		if (!slot || slot->state != LOADED)
			continue;
		must_in_case(run.taken[next] == blocks[i] &&
			     &model.slots[run.held[next]] == slot, run.number,
			     "another slot");
		slot->pins++;
		next++;
	}
	must(next == run.num_taken);
	run.attended += next;
	check_held();
}

static void put_one(void)
{
	uint32_t block = (uint32_t)below(model.config.num_blocks);
	uint32_t slot = GARBAGE, evicted = GARBAGE;
	uint64_t now = model.now + 1;
	bool chosen[MAX_SLOTS];
	int err = ucm_resident_put(run.resident, block, now, &slot, &evicted,
				   NULL);

	if (model_find(block)) {
		must(err == -EEXIST);
		return;
	}
	{
		uint64_t before = model.now;

		model.now = now;
		if (!model_choose(&block, 1, 1, true, chosen)) {
			model.now = before;
			must(err == -ENOBUFS);
			return;
		}
	}
	must(!err && chosen[slot]);
	must(evicted == (model.slots[slot].state == LOADED
				 ? model.slots[slot].block
				 : GARBAGE));
	model.memory[slot] = block;
	model.slots[slot] = (struct place){ LOADED, block,
					    model.slots[slot].ticket + 1, 0,
					    now, 0 };
	must(!ucm_resident_release(run.resident, &slot, 1, NULL));
}

static void check_stats(void)
{
	struct ucm_resident_stats stats;
	unsigned num[5] = { 0 };

	for (uint32_t i = 0; i < model.config.num_slots; i++)
		num[model.slots[i].state]++;
	ucm_resident_get_stats(run.resident, &stats);
	must(stats.num_free == num[FREE] && stats.num_loaded == num[LOADED] &&
	     stats.num_loading == num[LOADING]);
}

static void random_step(void)
{
	switch (below(12)) {
	case 0: plan_one(false); break;
	case 1: plan_one(false); break;
	case 2: plan_one(true); break;
	case 3: cancel_some(); break;
	case 4:
		if (!below(10))
			drop_some();
		break;
	case 5: put_one(); break;
	case 6: take_some(); break;
	case 7: take_some(); break;
	default: load_end(); break;
	}
	check_held();
	if (run.step % 64 == 0)
		check_stats();
}

UNIT_FIXTURE(.timeout = 120);

UNIT_TEST(ten_thousand_steps_with_faults_are_those_of_the_model, .rows = 12)
{
	memset(&model, 0, sizeof(model));
	memset(&run, 0, sizeof(run));
	run.number = (unsigned)_i;
	run.random = random_case(run.number);
	model.config = (struct ucm_resident_config){
		.num_blocks = (uint32_t)random_between(&run.random, 20,
						       MAX_BLOCKS),
		.num_slots = (uint32_t)random_between(&run.random, 2,
						      MAX_SLOTS),
		.evict = (uint32_t)_i % UCM_EVICTS,
		.score_weight = .7,
		.recency_weight = .3,
	};
	run.resident = resident_new(&model.config);
	for (run.step = 0; run.step < STEPS / 10; run.step++)
		random_step();
	must(run.attended > 0 && run.failed > 0);
	free(run.resident);
}

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
