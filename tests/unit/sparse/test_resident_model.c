/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_resident_model.c - which blocks are in which slots, against a model.
 *
 * The model is a list of slots in which the best one is looked for again and
 * again. Around it is a memory, a number for each slot, that loads write to at
 * any time until they have ended: what is attended to must be there.
 */
#include <config.h>

#include <ucm/retrieve.h>

#include "tests/unit/sparse/resident_fixture.h"

#define MAX_BLOCKS 64u
#define MAX_SLOTS  24u
#define STEPS	   100000u
#define GARBAGE	   UINT32_MAX

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
