/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_resident_load.c - a residency and a prefetch over a loader and files.
 *
 * A request of 48 blocks, of which 16 have pages. At each step scores drift,
 * the best blocks are wanted, and what is planned becomes tasks: those that are
 * wanted first, then the guesses, one task for each so that it can be
 * cancelled. Some blocks have no file, and some a damaged one. What is attended
 * to must be the block, byte for byte.
 */
#include <config.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <ucm/retrieve.h>

#include "tests/unit/load_fixture.h"
#include "tests/unit/random.h"

#define BLOCKS	48u
#define PAGES	16u
#define STEPS	300u
#define ABSENT	7u  /* each so many blocks, the last one */
#define DAMAGED 11u

static struct lf_cache cache;
static struct ucm_loader *loader;
static struct ucm_resident *resident;
static struct ucm_prefetch *prefetch;

static struct going {
	struct ucm_task *task;
	struct ucm_fill fill;
} going[3 * PAGES];
static size_t num_going;
static unsigned num_failed, num_cancelled;

static bool is_whole(uint32_t block)
{
	return block % ABSENT != ABSENT - 1 && block % DAMAGED != DAMAGED - 1;
}

static void setup(void)
{
	const struct ucm_resident_config places = {
		.num_blocks = BLOCKS, .num_slots = PAGES,
		.evict = UCM_EVICT_LRU,
	};
	const struct ucm_prefetch_config guesses = { BLOCKS, 2, 2, .5 };

	fx_setup();
	lf_tier("$/tier");
	lf_cache_open(&cache, &lf_geometry, PAGES);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		if (i % ABSENT == ABSENT - 1)
			continue;
		lf_plant("$/tier", &lf_geometry, i);
		if (!is_whole(i))
			must(!truncate(lf_path("$/tier", i), 9000));
	}
	loader = lf_loader("$/tier", &cache, NULL);
	must(!ucm_resident_begin(&places, malloc(ucm_resident_bytes(&places)),
				 &resident, NULL));
	must(!ucm_prefetch_begin(&guesses,
				 malloc(ucm_prefetch_bytes(&guesses)),
				 &prefetch, NULL));
}

static void teardown(void)
{
	ucm_loader_close(loader);
	free(prefetch);
	free(resident);
	lf_cache_close(&cache);
	fx_teardown();
}

/* ---- plans become tasks ---- */

static void start(const struct ucm_fill *fills, size_t num,
		  enum ucm_load_priority priority)
{
	for (size_t i = 0; i < num; i++) {
		struct ucm_move move = { .id = lf_id(fills[i].block),
					 .page = fills[i].slot };
		struct ucm_request request = { .size = sizeof(request),
					       .blocks = &move,
					       .num_blocks = 1,
					       .priority = priority };
		struct going *at = &going[num_going++];

		must(num_going <= NUM_ROWS(going));
		at->fill = fills[i];
		must(!ucm_load_submit(loader, &request, &at->task, NULL));
	}
}

static void cancel(const struct ucm_fill *fills, size_t num)
{
	for (size_t i = 0; i < num; i++) {
		for (size_t j = 0; j < num_going; j++) {
			if (going[j].fill.slot == fills[i].slot &&
			    going[j].fill.ticket == fills[i].ticket)
				ucm_task_cancel(going[j].task);
		}
	}
	num_cancelled += num;
}

static void end(size_t which)
{
	struct going at = going[which];
	int err = ucm_task_outcomes(at.task)->err;

	ucm_task_free(at.task);
	going[which] = going[--num_going];
	must(!err || err == -ECANCELED || !is_whole(at.fill.block));
	num_failed += err && err != -ECANCELED;
	must(!ucm_resident_ended(resident, at.fill.slot, at.fill.ticket, err,
				 NULL));
}

/* Those that have ended; wait: all. */
static void reap(bool wait)
{
	for (size_t i = num_going; i-- > 0;) {
		if (wait)
			ucm_task_wait(going[i].task, -1);
		if (ucm_task_done(going[i].task))
			end(i);
	}
}

/* ---- steps ---- */

static void step_plan(const struct ucm_wanted *want, uint64_t step)
{
	struct ucm_fill loads[PAGES], evicted[PAGES];
	struct ucm_swap swap = { .loads = loads, .evicted = evicted,
				 .room = PAGES };
	const struct ucm_fill *fills;
	size_t num;

	must(!ucm_prefetch_set(prefetch, resident, want, step, NULL));
	must(!ucm_resident_plan(resident, want, &swap, NULL));
	start(loads, swap.num_loads, UCM_LOAD_DEMAND);
	must(!ucm_prefetch_run(&prefetch, &resident, 1, NULL));
	fills = ucm_prefetch_cancels(prefetch, &num);
	cancel(fills, num);
	fills = ucm_prefetch_loads(prefetch, &num, NULL);
	start(fills, num, UCM_LOAD_PREFETCH);
}

static size_t step_attend(const struct ucm_wanted *want)
{
	uint32_t blocks[PAGES], slots[PAGES];
	size_t num;

	must(!ucm_resident_take(resident, want->blocks, want->num, blocks,
				slots, &num, NULL));
	for (size_t i = 0; i < num; i++)
		must(lf_page_is(&cache, slots[i], 0, 4, blocks[i]));
	must(!ucm_resident_release(resident, slots, num, NULL));
	return num;
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown, .timeout = 120);

UNIT_TEST(what_is_attended_to_has_been_loaded)
{
	const struct ucm_budget budget = { BLOCKS, 1, 1, 6 };
	uint64_t random = random_case(0);
	struct ucm_prefetch_stats stats;
	float scores[BLOCKS] = { 0 };
	uint64_t attended = 0;

	for (uint64_t step = 1; step <= STEPS; step++) {
		struct ucm_wanted want = { .scores = scores, .now = step,
					 .num_scores = BLOCKS };
		uint32_t blocks[PAGES], num;

		for (uint32_t i = 0; i < BLOCKS; i++)
			scores[i] += (float)random_between(&random, -9, 9) -
				     scores[i] / 8;
		must(!ucm_select(scores, &budget, blocks, PAGES, &num, NULL));
		want.blocks = blocks;
		want.num = num;
		step_plan(&want, step);
		reap(random_between(&random, 0, 1));
		attended += step_attend(&want);
	}
	reap(true);
	ucm_prefetch_get_stats(prefetch, &stats);
	must(attended > STEPS && num_failed > 10 && num_cancelled > 10);
	must(stats.used + stats.late > 10);
}
