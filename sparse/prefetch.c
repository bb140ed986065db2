/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefetch.c - which blocks the next choices may want.
 *
 * Of the scores two numbers are kept for each block: the last one, and the mean
 * of its changes. The guess is ucm_select() over what these say of the next
 * choice.
 *
 * What was loaded ahead is remembered by its load (slot and ticket) until it is
 * wanted for the first time, or is no longer what is in its slot. So a block
 * that went and came back by another load is not counted as guessed. These
 * blocks are in a list, in no order, each with its place in it.
 */
#include <config.h>

#include "sparse/resident.h"

#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "common/error.h"
#include "sparse/lists.h"
#include "sparse/spec.h"

#define NOT_AHEAD UINT32_MAX

struct ucm_prefetch {
	struct ucm_prefetch_config config;
	struct ucm_prefetch_stats stats;
	bool is_set;
	uint64_t step;
	uint64_t serial; /* of what is marked: never used again */
	uint64_t wanted_serial;
	size_t num_scores;
	size_t num_ahead, num_loads, num_next, num_cancels, num_misses;

	/* of blocks */
	float *score, *change;
	float *key; /* work space of a guess */
	uint64_t *mark;
	uint64_t *wanted;
	uint32_t *place; /* in ahead; NOT_AHEAD */
	uint32_t *misses;
	struct ucm_fill *ahead, *cancels;
	uint32_t *gone; /* blocks whose loads are to be cancelled */

	/* of guesses */
	uint32_t *guess;
	struct ucm_fill *loads, *evicted;
};

/* ---- memory ---- */

static int config_check(const struct ucm_prefetch_config *config,
			struct ucm_error *error)
{
	if (!config)
		return ucm_error_set(error, -EINVAL, "config is NULL");
	if (ucm_sparse_in_range("num_blocks", config->num_blocks,
				UCM_RESIDENT_MAX, error) ||
	    ucm_sparse_in_range("ahead", config->ahead, 2, error) ||
	    ucm_sparse_in_range("blocks", config->blocks,
				config->num_blocks / config->ahead, error))
		return -EINVAL;
	if (!(config->trend >= 0 && config->trend <= 1))
		return ucm_error_set(error, -EINVAL, "trend %g: from 0 to 1",
				     config->trend);
	return 0;
}

static size_t lay_out(const struct ucm_prefetch_config *config,
		      struct ucm_prefetch *out, void *memory)
{
	size_t blocks = config->num_blocks;
	size_t guesses = (size_t)config->blocks * config->ahead;
	size_t end = ucm_round_up(sizeof(struct ucm_prefetch), 64);

	out->score = ucm_list_lay(memory, &end, blocks, sizeof(*out->score));
	out->change = ucm_list_lay(memory, &end, blocks, sizeof(*out->change));
	out->key = ucm_list_lay(memory, &end, blocks, sizeof(*out->key));
	out->mark = ucm_list_lay(memory, &end, blocks, sizeof(*out->mark));
	out->wanted = ucm_list_lay(memory, &end, blocks, sizeof(*out->wanted));
	out->place = ucm_list_lay(memory, &end, blocks, sizeof(*out->place));
	out->misses = ucm_list_lay(memory, &end, blocks, sizeof(*out->misses));
	out->ahead = ucm_list_lay(memory, &end, blocks, sizeof(*out->ahead));
	out->cancels = ucm_list_lay(memory, &end, blocks,
				    sizeof(*out->cancels));
	out->gone = ucm_list_lay(memory, &end, blocks, sizeof(*out->gone));
	out->guess = ucm_list_lay(memory, &end, guesses, sizeof(*out->guess));
	out->loads = ucm_list_lay(memory, &end, guesses, sizeof(*out->loads));
	out->evicted = ucm_list_lay(memory, &end, guesses,
				    sizeof(*out->evicted));
	return end;
}

size_t ucm_prefetch_bytes(const struct ucm_prefetch_config *config)
{
	struct ucm_prefetch unused;

	return config_check(config, NULL) ? 0 : lay_out(config, &unused, NULL);
}

int ucm_prefetch_begin(const struct ucm_prefetch_config *config, void *memory,
		       struct ucm_prefetch **out, struct ucm_error *error)
{
	struct ucm_prefetch *prefetch = memory;
	int err = config_check(config, error)
		?: ucm_list_memory(memory, ucm_prefetch_bytes(config), out,
				   error);

	if (err)
		return err;
	lay_out(config, prefetch, memory);
	prefetch->config = *config;
	for (uint32_t i = 0; i < config->num_blocks; i++)
		prefetch->place[i] = NOT_AHEAD;
	*out = prefetch;
	return 0;
}

/* ---- what was loaded ahead ---- */

static void ahead_add(struct ucm_prefetch *prefetch,
		      const struct ucm_fill *load)
{
	prefetch->place[load->block] = (uint32_t)prefetch->num_ahead;
	prefetch->ahead[prefetch->num_ahead++] = *load;
}

static void ahead_remove(struct ucm_prefetch *prefetch, uint32_t block)
{
	uint32_t place = prefetch->place[block];
	struct ucm_fill last = prefetch->ahead[--prefetch->num_ahead];

	prefetch->ahead[place] = last;
	prefetch->place[last.block] = place;
	prefetch->place[block] = NOT_AHEAD;
}

/* Where it is by the load that was made ahead. */
static enum ucm_resident_place ahead_find(const struct ucm_prefetch *prefetch,
					  const struct ucm_resident *resident,
					  uint32_t block)
{
	const struct ucm_fill *load = &prefetch->ahead[prefetch->place[block]];
	enum ucm_resident_place place;
	struct ucm_fill fill;

	place = ucm_resident_find(resident, block, &fill);
	return place != UCM_PLACE_NONE && fill.slot == load->slot &&
			       fill.ticket == load->ticket
		       ? place
		       : UCM_PLACE_NONE;
}

/* Forget those that are not what is in their slots. */
static void ahead_sweep(struct ucm_prefetch *prefetch,
			const struct ucm_resident *resident)
{
	for (size_t i = prefetch->num_ahead; i-- > 0;) {
		uint32_t block = prefetch->ahead[i].block;

		if (ahead_find(prefetch, resident, block) != UCM_PLACE_NONE)
			continue;
		ahead_remove(prefetch, block);
		prefetch->stats.wasted++;
	}
}

/* ---- what is wanted ---- */

static int both_check(const struct ucm_prefetch *prefetch,
		      const struct ucm_resident *resident,
		      struct ucm_error *error)
{
	uint32_t num;

	if (!prefetch || !resident)
		return ucm_error_set(error, -EINVAL, "%s is NULL",
				     prefetch ? "resident" : "prefetch");
	num = ucm_resident_get_config(resident)->num_blocks;
	if (num != prefetch->config.num_blocks)
		return ucm_error_set(error, -EINVAL, "resident: has %" PRIu32
				     " blocks, not %" PRIu32, num,
				     prefetch->config.num_blocks);
	return 0;
}

static float in_floats(double value)
{
	return value > FLT_MAX ? FLT_MAX
	       : value < -FLT_MAX ? -FLT_MAX : (float)value;
}

static void take_scores(struct ucm_prefetch *prefetch,
			const struct ucm_wanted *want)
{
	if (!want->scores)
		return;
	for (size_t i = 0; i < want->num_scores; i++) {
		double change = (double)want->scores[i] - prefetch->score[i];

		prefetch->change[i] =
			i < prefetch->num_scores
				? in_floats((prefetch->change[i] + change) / 2)
				: 0;
		prefetch->score[i] = want->scores[i];
	}
	prefetch->num_scores = want->num_scores;
}

static void count_wanted(struct ucm_prefetch *prefetch,
			 const struct ucm_resident *resident, uint32_t block,
			 uint32_t number)
{
	struct ucm_fill fill;
	enum ucm_resident_place place = ucm_resident_find(resident, block,
							  &fill);

	if (place == UCM_PLACE_NONE) {
		prefetch->misses[prefetch->num_misses++] = number;
		prefetch->stats.missed++;
	}
	if (prefetch->place[block] == NOT_AHEAD)
		return;
	if (place == UCM_PLACE_COMING)
		prefetch->stats.late++;
	else
		prefetch->stats.used++;
	ahead_remove(prefetch, block);
}

int ucm_prefetch_set(struct ucm_prefetch *prefetch,
		     const struct ucm_resident *resident,
		     const struct ucm_wanted *want, uint64_t step,
		     struct ucm_error *error)
{
	float least, most;
	uint32_t num;
	int err = both_check(prefetch, resident, error);

	if (err)
		return err;
	num = prefetch->config.num_blocks;
	if (!want)
		return ucm_error_set(error, -EINVAL, "want is NULL");
	if (prefetch->is_set && step <= prefetch->step)
		return ucm_error_set(error, -EINVAL, "step %" PRIu64
				     ": it was %" PRIu64, step,
				     prefetch->step);
	err = ucm_list_range(want->scores, want->scores ? want->num_scores : 0,
			     num, &least, &most, error);
	if (!err)
		err = ucm_list_mark(want->blocks, want->num, num,
				    prefetch->mark, ++prefetch->serial, error);
	if (err)
		return err;
	prefetch->is_set = true;
	prefetch->step = step;
	prefetch->wanted_serial = prefetch->serial;
	prefetch->num_misses = 0;
	ahead_sweep(prefetch, resident);
	for (size_t i = 0; i < want->num; i++) {
		prefetch->wanted[want->blocks[i]] = prefetch->serial;
		count_wanted(prefetch, resident, want->blocks[i], (uint32_t)i);
	}
	take_scores(prefetch, want);
	return 0;
}

/* ---- guesses ---- */

/* Append the best for a choice that is so many ahead, of blocks that are
 * neither wanted nor guessed; returns how many guesses there are. */
static size_t guess_for(struct ucm_prefetch *prefetch, uint32_t ahead,
			size_t num, size_t most)
{
	double weight = ahead * prefetch->config.trend;
	struct ucm_budget budget = {
		.num_blocks = (uint32_t)prefetch->num_scores,
	};
	uint32_t eligible = 0, found = 0;

	for (uint32_t i = 0; i < budget.num_blocks; i++) {
		bool out = prefetch->mark[i] == prefetch->serial ||
			   prefetch->wanted[i] == prefetch->wanted_serial;

		prefetch->key[i] = out ? -INFINITY
				       : in_floats(prefetch->score[i] +
						   weight *
							   prefetch->change[i]);
		eligible += !out;
	}
	budget.topk = prefetch->config.blocks;
	if (budget.topk > most - num)
		budget.topk = (uint32_t)(most - num);
	if (budget.topk > eligible)
		budget.topk = eligible;
	/* it cannot fail: no key is NaN, and there is room for so many */
	ucm_select(prefetch->key, &budget, prefetch->guess + num,
		   budget.topk, &found, NULL);
	for (size_t i = num; i < num + found; i++)
		prefetch->mark[prefetch->guess[i]] = prefetch->serial;
	return num + found;
}

/* Loads of earlier guesses that are under way for nothing. */
static void cancel_wrong(struct ucm_prefetch *prefetch,
			 struct ucm_resident *resident)
{
	size_t num = 0;

	for (size_t i = prefetch->num_ahead; i-- > 0;) {
		uint32_t block = prefetch->ahead[i].block;

		if (prefetch->mark[block] == prefetch->serial ||
		    ahead_find(prefetch, resident, block) != UCM_PLACE_COMING)
			continue;
		prefetch->gone[num++] = block;
		ahead_remove(prefetch, block);
	}
	/* it cannot fail: each is there once, and has a load */
	ucm_resident_cancel(resident, prefetch->gone, num, prefetch->cancels,
			    &prefetch->num_cancels, NULL);
	prefetch->stats.cancelled += num;
}

static void run_one(struct ucm_prefetch *prefetch,
		    struct ucm_resident *resident)
{
	size_t most = ucm_resident_get_config(resident)->num_slots;
	struct ucm_wanted want = { .blocks = prefetch->guess,
				 .now = ucm_resident_now(resident) };
	struct ucm_swap swap = {
		.loads = prefetch->loads, .evicted = prefetch->evicted,
		.room = (size_t)prefetch->config.blocks *
			prefetch->config.ahead,
	};
	size_t num_next;

	prefetch->serial++;
	ahead_sweep(prefetch, resident);
	num_next = guess_for(prefetch, 1, 0, most);
	want.num = num_next;
	if (prefetch->config.ahead == 2)
		want.num = guess_for(prefetch, 2, num_next, most);
	cancel_wrong(prefetch, resident);
	/* it cannot fail: each is there once, and they are no more than
	 * slots */
	ucm_resident_plan_ahead(resident, &want, &swap, NULL);
	prefetch->num_loads = swap.num_loads;
	prefetch->num_next = 0;
	for (size_t i = 0, guess = 0; i < swap.num_loads; i++) {
		while (prefetch->guess[guess] != swap.loads[i].block)
			guess++;
		prefetch->num_next += guess < num_next;
		ahead_add(prefetch, &swap.loads[i]);
	}
	prefetch->stats.loads += swap.num_loads;
}

int ucm_prefetch_run(struct ucm_prefetch *const *prefetches,
		     struct ucm_resident *const *residents, size_t num,
		     struct ucm_error *error)
{
	if (num && (!prefetches || !residents))
		return ucm_error_set(error, -EINVAL, "%s is NULL",
				     prefetches ? "residents" : "prefetches");
	for (size_t i = 0; i < num; i++) {
		int err = both_check(prefetches[i], residents[i], error);

		if (err)
			return err;
		if (!prefetches[i]->is_set)
			return ucm_error_set(error, -EINVAL, "prefetches: "
					     "number %zu has not been set", i);
	}
	for (size_t i = 0; i < num; i++)
		run_one(prefetches[i], residents[i]);
	return 0;
}

/* ---- results ---- */

const struct ucm_fill *ucm_prefetch_loads(const struct ucm_prefetch *prefetch,
					  size_t *num_out, size_t *num_next)
{
	*num_out = prefetch->num_loads;
	if (num_next)
		*num_next = prefetch->num_next;
	return prefetch->loads;
}

const struct ucm_fill *ucm_prefetch_cancels(const struct ucm_prefetch *prefetch,
					    size_t *num_out)
{
	*num_out = prefetch->num_cancels;
	return prefetch->cancels;
}

const uint32_t *ucm_prefetch_misses(const struct ucm_prefetch *prefetch,
				    size_t *num_out)
{
	*num_out = prefetch->num_misses;
	return prefetch->misses;
}

void ucm_prefetch_get_stats(const struct ucm_prefetch *prefetch,
			    struct ucm_prefetch_stats *out)
{
	*out = prefetch->stats;
}
