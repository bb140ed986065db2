/* SPDX-License-Identifier: Apache-2.0 */
/*
 * retrieve_bench.c - what it takes to act on a choice of blocks.
 *
 *   retrieve_bench [--rounds N] [--tsv]
 *
 * A step of a residency: 9830 blocks are wanted of 32768, a tenth of them
 * others than the step before; loads are planned, end, and the slots are taken
 * and released. A prefetch of the same. A job through a retrieval's queue, from
 * its submission to its result: empty, beside the same call without threads,
 * and a layer of 128K tokens. Real time; medians, the first round is dropped.
 * bench/sparse runs it.
 */
#include <config.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ucm/retrieve.h>

#include "bench/table.h"
#include "common/parse.h"

#define ME	   "retrieve_bench"
#define MAX_ROUNDS 1000
#define BLOCKS	   32768u
#define SLOTS	   12288u
#define WANTED	   9830u
#define GUESSES	   512u
#define LAYER	   1024u /* blocks of 128 tokens */

static struct bench {
	uint64_t rounds, step;
	bool tsv;
	struct ucm_resident *resident;
	struct ucm_prefetch *prefetch;
	struct ucm_retrieval *pool;
	float scores[BLOCKS];
	uint32_t wanted[BLOCKS], blocks[BLOCKS], slots[BLOCKS];
	struct ucm_fill loads[SLOTS], evicted[SLOTS];
	struct ucm_retrieval_job job;
} bench;

static void die(const char *what)
{
	fprintf(stderr, ME ": %s\n", what);
	exit(1);
}

static void *get(size_t bytes)
{
	void *room = aligned_alloc(64, (bytes + 63) / 64 * 64);

	if (!room)
		die("no memory");
	memset(room, 0, bytes);
	return room;
}

static uint64_t next_random(void)
{
	static uint64_t state = 1;

	state = state * 6364136223846793005u + 1442695040888963407u;
	return state >> 33;
}

/* ---- residency ---- */

/* A tenth of the scores are drawn anew, and the best are wanted. */
static void choose(void)
{
	const struct ucm_budget budget = { BLOCKS, 2, 4, WANTED - 6 };
	uint32_t num;

	for (uint32_t i = 0; i < BLOCKS / 10; i++)
		bench.scores[next_random() % BLOCKS] =
			(float)(next_random() % 1000000);
	if (ucm_select(bench.scores, &budget, bench.wanted, BLOCKS, &num, NULL))
		die("ucm_select");
	bench.step++;
}

static struct ucm_wanted want(void)
{
	return (struct ucm_wanted){ bench.wanted, WANTED, bench.scores, BLOCKS,
				  bench.step };
}

static void end_loads(const struct ucm_fill *loads, size_t num)
{
	for (size_t i = 0; i < num; i++) {
		if (ucm_resident_ended(bench.resident, loads[i].slot,
				       loads[i].ticket, 0, NULL))
			die("ucm_resident_ended");
	}
}

static void run_plan(void)
{
	struct ucm_swap swap = { .loads = bench.loads,
				 .evicted = bench.evicted, .room = SLOTS };
	const struct ucm_wanted wanted = want();

	if (ucm_resident_plan(bench.resident, &wanted, &swap, NULL) ||
	    swap.num_left)
		die("ucm_resident_plan");
	end_loads(bench.loads, swap.num_loads);
}

static void run_attend(void)
{
	size_t num;

	if (ucm_resident_take(bench.resident, bench.wanted, WANTED,
			      bench.blocks, bench.slots, &num, NULL) ||
	    num != WANTED ||
	    ucm_resident_release(bench.resident, bench.slots, num, NULL))
		die("ucm_resident_take");
}

static void run_prefetch(void)
{
	const struct ucm_wanted wanted = want();
	const struct ucm_fill *loads;
	size_t num;

	if (ucm_prefetch_set(bench.prefetch, bench.resident, &wanted,
			     bench.step, NULL))
		die("ucm_prefetch_set");
	if (ucm_prefetch_run(&bench.prefetch, &bench.resident, 1, NULL))
		die("ucm_prefetch_run");
	loads = ucm_prefetch_loads(bench.prefetch, &num, NULL);
	end_loads(loads, num);
}

/* ---- retrieval ---- */

static int score_nothing(void *arg, size_t begin, size_t end, float *scores,
			 struct ucm_error *error)
{
	(void)arg;
	(void)error;
	memset(scores, 0, (end - begin) * sizeof(*scores));
	return 0;
}

static void run_queue(void)
{
	struct ucm_retrieval_result result = { .blocks = bench.blocks,
					       .room = BLOCKS };

	bench.job.step++;
	if (ucm_retrieval_submit(bench.pool, &bench.job, NULL) ||
	    ucm_retrieval_take(bench.pool, 0, bench.job.step, -1, &result,
			       NULL))
		die("ucm_retrieval_take");
}

/* The same job, by whoever asks for it. */
static void run_direct(void)
{
	struct ucm_score_request request = {
		.query = bench.job.query, .num_heads = bench.job.num_heads,
		.per = UCM_SCORE_BLOCK, .slab = bench.job.slab,
		.num = bench.job.budget.num_blocks, .scores = bench.scores,
	};
	uint32_t num;

	if (bench.job.spec ? ucm_score(bench.job.spec, &request, 1, NULL)
			   : score_nothing(NULL, 0, request.num, bench.scores,
					   NULL))
		die("ucm_score");
	if (ucm_select(bench.scores, &bench.job.budget, bench.blocks, BLOCKS,
		       &num, NULL))
		die("ucm_select");
}

static const struct ucm_repr_spec layer_spec = {
	UCM_REPR_MEAN, UCM_DTYPE_FLOAT32, 8, 128, 128,
};

static void prepare_layer(void)
{
	static struct ucm_repr_slab slab = { .num_slots = LAYER };
	static float query[2048];

	slab.stride_bytes = ucm_repr_bytes(&layer_spec);
	slab.base = get(LAYER * slab.stride_bytes);
	for (size_t i = 0; i < LAYER * slab.stride_bytes / sizeof(float); i++)
		((float *)slab.base)[i] = (float)(next_random() % 1000);
	bench.job = (struct ucm_retrieval_job){
		.step = bench.job.step, .spec = &layer_spec, .query = query,
		.num_heads = 32, .slab = &slab,
		.budget = { LAYER, 2, 4, 300 },
	};
}

/* ---- rounds ---- */

/* A line; ready runs before each time, unmeasured, and may be NULL. */
static void measure(const char *where, const char *name, void (*ready)(void),
		    void (*run)(void), void (*yardstick)(void))
{
	static double ours[MAX_ROUNDS], theirs[MAX_ROUNDS], ratios[MAX_ROUNDS];
	char text[5][16] = { "-", "", "-" }, line[256];

	for (uint64_t i = 0; i <= bench.rounds; i++) {
		uint64_t start, middle, end;

		if (ready)
			ready();
		start = now_ns();
		if (yardstick)
			yardstick();
		middle = now_ns();
		run();
		end = now_ns();
		if (i == 0)
			continue;
		theirs[i - 1] = (double)(middle - start) / 1e3;
		ours[i - 1] = (double)(end - middle) / 1e3;
		ratios[i - 1] = ours[i - 1] / theirs[i - 1];
	}
	if (yardstick) {
		text_of(quantile(theirs, bench.rounds, 0.5), text[0]);
		text_of(quantile(ratios, bench.rounds, 0.5), text[2]);
	}
	text_of(quantile(ours, bench.rounds, 0.5), text[1]);
	text_of(quantile(ours, bench.rounds, 0.25), text[3]);
	text_of(quantile(ours, bench.rounds, 0.75), text[4]);
	snprintf(line, sizeof(line),
		 "%s\tretrieve\t%s\tus\t%s\t%s\t%s\t%s\t%s\t-\t-", where, name,
		 text[0], text[1], text[2], text[3], text[4]);
	print_line(bench.tsv, line);
}

static void measure_resident(void)
{
	static const struct {
		const char *name;
		uint32_t evict;
	} rows[] = {
		{ "plan a step, LRU", UCM_EVICT_LRU },
		{ "plan a step, by score", UCM_EVICT_SCORE },
		{ "plan a step, hybrid", UCM_EVICT_HYBRID },
	};
	const struct ucm_prefetch_config ahead = { BLOCKS, 2, GUESSES, .5 };

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const struct ucm_resident_config config = {
			BLOCKS, SLOTS, rows[i].evict, .7, .3, 0,
		};
		void *memory = get(ucm_resident_bytes(&config));

		bench.step = 0;
		if (ucm_resident_begin(&config, memory, &bench.resident, NULL))
			die("ucm_resident_begin");
		measure("32768 blocks", rows[i].name, choose, run_plan, NULL);
		if (rows[i].evict == UCM_EVICT_HYBRID)
			break;
		free(memory);
	}
	measure("32768 blocks", "take and release 9830", NULL, run_attend,
		NULL);
	if (ucm_prefetch_begin(&ahead, get(ucm_prefetch_bytes(&ahead)),
			       &bench.prefetch, NULL))
		die("ucm_prefetch_begin");
	measure("32768 blocks", "guess 2 x 512", choose, run_prefetch, NULL);
}

static void measure_retrieval(void)
{
	const struct ucm_retrieval_options options = {
		.size = sizeof(options), .threads = 1, .jobs = 4, .lanes = 1,
		.max_blocks = BLOCKS, .query_floats = 2048,
	};

	if (ucm_retrieval_open(&options, &bench.pool, NULL))
		die("ucm_retrieval_open");
	bench.job = (struct ucm_retrieval_job){
		.score = score_nothing,
		.budget = { .num_blocks = 1, .topk = 1 },
	};
	measure("1 thread", "through the queue: nothing", NULL, run_queue,
		NULL);
	prepare_layer();
	measure("1 thread", "through the queue: 1024 blocks, float32", NULL,
		run_queue, run_direct);
	ucm_retrieval_close(bench.pool);
}

int main(int argc, char **argv)
{
	char line[160];

	bench.rounds = 101;
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--tsv"))
			bench.tsv = true;
		else if (strcmp(argv[i], "--rounds") || i + 1 >= argc ||
			 ucm_parse_range(argv[++i], 1, MAX_ROUNDS,
					 &bench.rounds)) {
			fputs("usage: " ME " [--rounds N] [--tsv]\n", stderr);
			return 2;
		}
	}
	snprintf(line, sizeof(line),
		 "where\tsection\twork\tunit\tdirect\tours\tratio\t25%%\t75%%\t"
		 "target\tverdict");
	if (!bench.tsv)
		print_line(false, line);
	measure_resident();
	measure_retrieval();
	return 0;
}
