/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparse_bench.c - how fast are blocks scored, selected and represented, keys
 * moved, and attended to?
 *
 *   sparse_bench [--rounds N] [--way plain|avx2|avx512] [--only TEXT] [--tsv]
 *
 * Blocks of 128 tokens, 8 key heads of 128. Scores are limited by memory: beside
 * them, in turn, the same bytes are just added up, as words of 64 bits in vectors
 * as wide as the CPU's; beside keys that move, memcpy copies as many. Small slabs
 * stay in the caches, large ones do not. CPU time, one thread; medians, the first
 * round is dropped. --only: what has TEXT in its name, or in where it is measured.
 * bench/sparse runs it.
 */
#include <config.h>

#include <ucm/position.h>
#include <ucm/retrieve.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/table.h"
#include "common/parse.h"
#include "sparse/code_kernels.h"
#include "sparse/kernels.h"

#define ME	     "sparse_bench"
#define MAX_ROUNDS   1000
#define BLOCK_TOKENS 128u
#define HEADS	     8u
#define DIM	     128u
#define QUERY_HEADS  32u
#define MAX_BLOCKS   32768u
#define MORE_STRIDE  16u /* so that rows of scores are not 4 KiB apart */

static struct bench {
	uint64_t rounds;
	bool tsv;
	const char *only; /* NULL: all */
	struct ucm_repr_spec spec;
	struct ucm_repr_slab slab;
	size_t num; /* blocks */
	uint32_t per, topk;
	float *query, *scores;
	uint16_t *keys; /* bfloat16 */
	uint32_t *out;
	struct ucm_code_spec code;
	struct ucm_code_method method;
	void *encoder;
	uint64_t *planes; /* the query, prepared for codes */
	volatile uint64_t sink;
} bench;

static void die(const char *what)
{
	fprintf(stderr, ME ": %s\n", what);
	exit(1);
}

static double cpu_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void *get(size_t num, size_t size)
{
	size_t bytes = (num * size + 63) / 64 * 64;
	void *room = aligned_alloc(64, bytes);

	if (!room)
		die("no memory");
	memset(room, 0, bytes);
	return room;
}

static float next_float(void)
{
	static uint64_t state = 1;

	state = state * 6364136223846793005u + 1442695040888963407u;
	return (float)(int32_t)(state >> 32) / 0x1p31f;
}

/* ---- what is timed ---- */

typedef uint64_t words8 __attribute__((vector_size(64)));

#ifdef __x86_64__
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
static uint64_t add_up(const void *from, size_t bytes)
{
	words8 sums[8] = { { 0 } };
	const uint8_t *at = from;
	uint64_t sum = 0;

	for (size_t i = 0; i + 512 <= bytes; i += 512) {
#pragma GCC unroll 8
		for (int j = 0; j < 8; j++) {
			words8 x;

			memcpy(&x, at + i + 64 * (size_t)j, sizeof(x));
			sums[j] += x;
		}
	}
#pragma GCC unroll 8
	for (int j = 1; j < 8; j++)
		sums[0] += sums[j];
	for (int j = 0; j < 8; j++)
		sum += sums[0][j];
	return sum;
}

static void run_sum(void)
{
	bench.sink += add_up(bench.slab.base,
			     bench.num * bench.slab.stride_bytes);
}

static void run_score(void)
{
	struct ucm_score_request request = {
		.query = bench.query, .num_heads = QUERY_HEADS,
		.per = bench.per, .slab = &bench.slab, .num = bench.num,
		.scores = bench.scores, .stride = bench.num + MORE_STRIDE,
	};

	if (ucm_score(&bench.spec, &request, 1, NULL))
		die("ucm_score");
}

static void run_code_score(void)
{
	struct ucm_code_request request = {
		.query = bench.planes, .slab = &bench.slab, .num = bench.num,
		.scores = bench.scores, .stride = bench.num + MORE_STRIDE,
	};

	if (ucm_code_score(&bench.code, &bench.method, &request, 1, NULL))
		die("ucm_code_score");
}

/* ---- merged channels: half of them, groups of 4 tokens ---- */

static struct star_bench {
	struct ucm_star_spec spec;
	uint16_t channels[HEADS * DIM / 2];
	float *query, *scores, *weights, *votes;
	uint32_t queries;
} star;

static void run_star(void)
{
	struct ucm_star_request request = {
		.query = star.query, .num_queries = star.queries,
		.num_heads = QUERY_HEADS, .per = UCM_SCORE_BLOCK,
		.slab = &bench.slab, .num = bench.num, .scores = star.scores,
	};

	if (ucm_star_score(&star.spec, &request, 1, NULL))
		die("ucm_star_score");
}

static void run_star_vote(void)
{
	struct ucm_star_request request = {
		.query = star.query, .num_queries = star.queries,
		.num_heads = QUERY_HEADS, .per = UCM_SCORE_HEAD,
		.slab = &bench.slab, .num = bench.num, .scores = star.scores,
		.weights = star.weights, .stride = bench.num + MORE_STRIDE,
		.scale = 1,
	};

	if (ucm_star_score(&star.spec, &request, 1, NULL) ||
	    ucm_star_vote(star.scores, star.weights,
			  (size_t)star.queries * QUERY_HEADS, bench.num,
			  bench.num + MORE_STRIDE, 1, star.votes, NULL))
		die("ucm_star_vote");
}

static void run_select(void)
{
	struct ucm_budget budget = { (uint32_t)bench.num, 1, 2, bench.topk };
	uint32_t num;

	if (ucm_select(bench.scores, &budget, bench.out, bench.num, &num, NULL))
		die("ucm_select");
}

static void run_keys_sum(void)
{
	bench.sink += add_up(bench.keys, bench.num * BLOCK_TOKENS * HEADS *
					 DIM * sizeof(*bench.keys));
}

static void run_build(void)
{
	const struct ucm_keys keys = {
		bench.keys, UCM_DTYPE_BFLOAT16, bench.num,
		(int64_t)BLOCK_TOKENS * HEADS * DIM, HEADS * DIM, DIM,
	};

	if (ucm_repr_build(&bench.spec, &keys, NULL, bench.num, BLOCK_TOKENS,
			   &bench.slab, NULL, NULL))
		die("ucm_repr_build");
}

static void run_encode(void)
{
	const struct ucm_keys keys = {
		bench.keys, UCM_DTYPE_BFLOAT16, bench.num,
		(int64_t)BLOCK_TOKENS * HEADS * DIM, HEADS * DIM, DIM,
	};

	if (ucm_code_build(bench.encoder, &keys, NULL, bench.num, BLOCK_TOKENS,
			   &bench.slab, NULL, NULL))
		die("ucm_code_build");
}

/* Keys that move by 1000 positions, elsewhere or where they are; and memcpy, of as
 * many bytes and to as far away. */
static struct shift_bench {
	struct ucm_rope rope;
	struct ucm_shift_request request;
	uint8_t *from, *to;
	size_t bytes;
	bool in_place;
	int32_t *deltas;
} moved;

static void run_shift(void)
{
	struct ucm_shift_request *request = &moved.request;

	request->to.base = moved.in_place ? moved.from : moved.to;
	if (ucm_rope_shift(&moved.rope, request, NULL))
		die("ucm_rope_shift");
}

/* A request's attention, with 4 query heads to a key head. */
static struct decode_bench {
	struct ucm_attention attention;
	struct ucm_rerope rerope;
	float *query, *angles, *work, *out;
	uint8_t *cache; /* keys, and then values */
	size_t bytes;
	bool with_rerope;
} decoded;

static void run_decode(void)
{
	int err = decoded.with_rerope
		? ucm_rerope_decode(&decoded.rerope, decoded.angles,
				    &decoded.attention, decoded.work,
				    decoded.out, NULL, NULL)
		: ucm_attention_decode(&decoded.attention, decoded.work,
				       decoded.out, NULL, NULL);

	if (err)
		die("ucm_attention_decode");
}

static void run_cache_sum(void)
{
	bench.sink += add_up(decoded.cache, decoded.bytes);
}

static void run_copy(void)
{
	memcpy(moved.to, moved.from, moved.bytes);
	bench.sink += moved.to[moved.bytes / 2];
}

/* ---- rounds ---- */

/* At least 2 ms of them; ns of one. */
static double time_of(void (*run)(void))
{
	double start = cpu_ns(), passed;
	unsigned times = 0;

	do {
		run();
		times++;
		passed = cpu_ns() - start;
	} while (passed < 2e6);
	return passed / times;
}

/* A line; yardstick NULL: there is none, and most is the target in unit. */
static void measure(const char *where, const char *name, const char *unit,
		    double unit_ns, size_t bytes, void (*run)(void),
		    void (*yardstick)(void), double target)
{
	static double ours[MAX_ROUNDS], theirs[MAX_ROUNDS], ratios[MAX_ROUNDS];
	double *judged = yardstick ? ratios : ours;
	char text[5][16] = { "-", "", "-" }, goal[24] = "-", line[256];
	const char *said;

	if (bench.only && !strstr(name, bench.only) &&
	    !strstr(where, bench.only))
		return;
	for (uint64_t i = 0; i <= bench.rounds; i++) {
		double b = yardstick ? time_of(yardstick) : 1;
		double a = time_of(run);

		if (i == 0)
			continue;
		ratios[i - 1] = b / a;
		ours[i - 1] = bytes ? (double)bytes / a : a / unit_ns;
		theirs[i - 1] = (double)bytes / b;
	}
	if (yardstick)
		text_of(quantile(theirs, bench.rounds, 0.5), text[0]);
	text_of(quantile(ours, bench.rounds, 0.5), text[1]);
	if (yardstick)
		text_of(quantile(ratios, bench.rounds, 0.5), text[2]);
	text_of(quantile(judged, bench.rounds, 0.25), text[3]);
	text_of(quantile(judged, bench.rounds, 0.75), text[4]);
	if (target > 0)
		snprintf(goal, sizeof(goal), "%s %.4g", yardstick ? ">=" : "<=",
			 target);
	said = yardstick ? verdict_least(judged, bench.rounds, target)
			 : verdict_most(judged, bench.rounds, target);
	snprintf(line, sizeof(line),
		 "%s\tsparse\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s", where, name,
		 unit, text[0], text[1], text[2], text[3], text[4], goal, said);
	print_line(bench.tsv, line);
}

/* ---- what there is to measure ---- */

static const struct {
	const char *name;
	uint32_t kind, dtype;
} forms[] = {
	{ "mean, float32", UCM_REPR_MEAN, UCM_DTYPE_FLOAT32 },
	{ "mean, bfloat16", UCM_REPR_MEAN, UCM_DTYPE_BFLOAT16 },
	{ "mean, float16", UCM_REPR_MEAN, UCM_DTYPE_FLOAT16 },
	{ "mean, int8", UCM_REPR_MEAN, UCM_DTYPE_INT8 },
	{ "min/max, bfloat16", UCM_REPR_MINMAX, UCM_DTYPE_BFLOAT16 },
};

/* num representations of the same few blocks of keys */
static void fill_slab(size_t form, size_t num)
{
	const struct ucm_keys keys = {
		bench.keys, UCM_DTYPE_BFLOAT16, 4,
		(int64_t)BLOCK_TOKENS * HEADS * DIM, HEADS * DIM, DIM,
	};
	size_t bytes;

	bench.spec = (struct ucm_repr_spec){ forms[form].kind,
					     forms[form].dtype, HEADS, DIM,
					     BLOCK_TOKENS };
	bytes = ucm_repr_bytes(&bench.spec);
	bench.num = num;
	bench.slab = (struct ucm_repr_slab){ get(num, bytes), num, bytes };
	if (ucm_repr_build(&bench.spec, &keys, NULL, 4, BLOCK_TOKENS,
			   &bench.slab, NULL, NULL))
		die("ucm_repr_build");
	for (size_t i = 4; i < num; i++)
		memcpy((uint8_t *)bench.slab.base + i * bytes,
		       (uint8_t *)bench.slab.base + i % 4 * bytes, bytes);
}

static void prepare_query(uint32_t per)
{
	static float q[QUERY_HEADS * DIM];
	const struct ucm_query query = { q, UCM_DTYPE_FLOAT32, QUERY_HEADS,
					 DIM };

	for (size_t i = 0; i < QUERY_HEADS * DIM; i++)
		q[i] = next_float();
	bench.per = per;
	if (ucm_query_prepare(&bench.spec, &query, per, bench.query, NULL))
		die("ucm_query_prepare");
}

static void measure_scores(size_t num)
{
	static const char *const pers[] = { "per query head", "per group",
					    "per block" };
	char name[64];

	for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
		fill_slab(i, num);
		for (int per = UCM_SCORE_BLOCK; per >= 0; per--) {
			bool main_one = per == UCM_SCORE_BLOCK;

			prepare_query((uint32_t)per);
			snprintf(name, sizeof(name), "%s, %s", forms[i].name,
				 pers[per]);
			measure(num > 1024 ? "32768 blocks" : "1024 blocks",
				name, "GB/s", 1, num * bench.slab.stride_bytes,
				run_score, run_sum, main_one ? 0.85 : 0);
			if (main_one && num == 1024)
				measure("1024 blocks", name, "us", 1e3, 0,
					run_score, NULL, 150);
		}
		free(bench.slab.base);
	}
}

/* 128 bits; 4 query heads to a key head, merged into one or not */
static const struct {
	const char *name;
	uint32_t form, norms, measure, merged;
	double target_us; /* of 1024 blocks */
} codes[] = {
	{ "codes, Hamming, heads merged", UCM_CODE_TOKENS, 0, UCM_CODE_HAMMING,
	  4, 0 },
	{ "codes, Hamming, sum of 4 heads", UCM_CODE_TOKENS, 0,
	  UCM_CODE_HAMMING, 1, 0 },
	{ "codes, estimate", UCM_CODE_TOKENS, 1, UCM_CODE_ESTIMATE, 1, 0 },
	{ "counts, Hamming, heads merged", UCM_CODE_COUNTS, 0, UCM_CODE_HAMMING,
	  4, 100 },
	{ "counts, Hamming, sum of 4 heads", UCM_CODE_COUNTS, 0,
	  UCM_CODE_HAMMING, 1, 100 },
	{ "counts, estimate", UCM_CODE_COUNTS, 0, UCM_CODE_ESTIMATE, 1, 100 },
};

static void prepare_code_query(void)
{
	static float q[QUERY_HEADS * DIM];
	const struct ucm_query query = { q, UCM_DTYPE_FLOAT32, QUERY_HEADS,
					 DIM };

	for (size_t i = 0; i < QUERY_HEADS * DIM; i++)
		q[i] = next_float();
	bench.planes = get(ucm_code_query_words(&bench.code, &bench.method),
			   sizeof(uint64_t));
	if (ucm_code_query_prepare(bench.encoder, &bench.method, &query, NULL,
				   bench.planes, NULL))
		die("ucm_code_query_prepare");
}

static void fill_codes(size_t form, size_t num)
{
	size_t bytes;

	bench.code = (struct ucm_code_spec){
		.form = codes[form].form, .num_heads = HEADS, .head_dim = DIM,
		.bits = DIM, .block_size = BLOCK_TOKENS,
		.norms = codes[form].norms,
	};
	bytes = ucm_code_bytes(&bench.code);
	bench.encoder = get(1, ucm_code_encoder_bytes(&bench.code));
	if (ucm_code_encoder_make(&bench.code, NULL, bench.encoder, NULL))
		die("ucm_code_encoder_make");
	bench.slab = (struct ucm_repr_slab){ get(num, bytes), num, bytes };
	bench.num = 4;
	run_encode();
	bench.num = num;
	for (size_t i = 4; i < num; i++)
		memcpy((uint8_t *)bench.slab.base + i * bytes,
		       (uint8_t *)bench.slab.base + i % 4 * bytes, bytes);
}

static void measure_codes(size_t num)
{
	char where[24];

	snprintf(where, sizeof(where), "%zu blocks", num);
	for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
		fill_codes(i, num);
		bench.method = (struct ucm_code_method){
			codes[i].measure, codes[i].form == UCM_CODE_COUNTS
						  ? UCM_CODE_SUM : UCM_CODE_BEST,
			UCM_SCORE_BLOCK, QUERY_HEADS, codes[i].merged,
		};
		prepare_code_query();
		measure(where, codes[i].name, "GB/s", 1,
			num * bench.slab.stride_bytes, run_code_score, run_sum,
			0.85);
		if (num == 1024)
			measure(where, codes[i].name, "us", 1e3, 0,
				run_code_score, NULL, codes[i].target_us);
		free(bench.planes);
		free(bench.encoder);
		free(bench.slab.base);
	}
}

static void star_fill(uint32_t dtype, const struct ucm_keys *keys)
{
	size_t bytes;

	star.spec = (struct ucm_star_spec){ dtype, HEADS, DIM, BLOCK_TOKENS, 4,
					    DIM / 2, star.channels };
	if (ucm_star_channels(&star.spec, keys, NULL, 4, BLOCK_TOKENS,
			      star.channels, NULL))
		die("ucm_star_channels");
	bytes = ucm_star_bytes(&star.spec);
	bench.num = 1024;
	bench.slab = (struct ucm_repr_slab){ get(1024, bytes), 1024, bytes };
	if (ucm_star_build(&star.spec, keys, NULL, 4, BLOCK_TOKENS, &bench.slab,
			   NULL, NULL))
		die("ucm_star_build");
	for (size_t i = 4; i < 1024; i++)
		memcpy((uint8_t *)bench.slab.base + i * bytes,
		       (uint8_t *)bench.slab.base + i % 4 * bytes, bytes);
}

static void star_prepare(uint32_t num_queries)
{
	static float q[QUERY_HEADS * DIM];
	struct ucm_query queries[8];

	star.queries = num_queries;
	for (size_t i = 0; i < QUERY_HEADS * DIM; i++)
		q[i] = next_float();
	for (uint32_t i = 0; i < num_queries; i++)
		queries[i] = (struct ucm_query){ q, UCM_DTYPE_FLOAT32,
						 QUERY_HEADS, DIM };
	if (ucm_star_query_prepare(&star.spec, queries, num_queries, star.query,
				   NULL))
		die("ucm_star_query_prepare");
}

/* The largest products of a query, and the vote of 8, as after 8 steps. */
static void measure_star(void)
{
	const struct ucm_keys keys = {
		bench.keys, UCM_DTYPE_BFLOAT16, 4,
		(int64_t)BLOCK_TOKENS * HEADS * DIM, HEADS * DIM, DIM,
	};
	const size_t rows = 8 * QUERY_HEADS;
	char name[64];

	star.query = get(rows * DIM / 2, sizeof(float));
	star.scores = get(rows * (1024 + MORE_STRIDE), sizeof(float));
	star.weights = get(rows * (1024 + MORE_STRIDE), sizeof(float));
	star.votes = get(1024, sizeof(float));
	for (size_t i = 1; i < 4; i += 2) { /* bfloat16, int8 */
		star_fill(forms[i].dtype, &keys);
		star_prepare(1);
		snprintf(name, sizeof(name), "merged, %s: largest of 1 query",
			 forms[i].name + strlen("mean, "));
		measure("1024 blocks", name, "GB/s", 1,
			1024 * bench.slab.stride_bytes, run_star, run_sum, 0);
		measure("1024 blocks", name, "us", 1e3, 0, run_star, NULL, 0);
		star_prepare(8);
		snprintf(name, sizeof(name), "merged, %s: vote of 8",
			 forms[i].name + strlen("mean, "));
		measure("1024 blocks", name, "us", 1e3, 0, run_star_vote, NULL,
			0);
		free(bench.slab.base);
	}
	free(star.query);
	free(star.scores);
	free(star.weights);
	free(star.votes);
}

static void measure_select(void)
{
	static const uint32_t topks[] = { 64, 1024, 9830, 16384 };
	char name[64];

	bench.num = MAX_BLOCKS;
	for (size_t i = 0; i < MAX_BLOCKS; i++)
		bench.scores[i] = next_float();
	for (size_t i = 0; i < sizeof(topks) / sizeof(topks[0]); i++) {
		bench.topk = topks[i];
		snprintf(name, sizeof(name), "the best %u", topks[i]);
		measure("32768 blocks", name, "us", 1e3, 0, run_select, NULL,
			60);
	}
}

static void measure_build(void)
{
	char name[64];

	for (size_t i = 1; i < sizeof(forms) / sizeof(forms[0]); i += 3) {
		fill_slab(i, 64);
		snprintf(name, sizeof(name), "build: %s", forms[i].name);
		measure("64 blocks, 16 MiB", name, "GB/s", 1,
			64 * BLOCK_TOKENS * HEADS * DIM * sizeof(*bench.keys),
			run_build, run_keys_sum, 0);
		free(bench.slab.base);
	}
}

static void measure_encode(void)
{
	for (size_t i = 0; i < 3; i += 2) {
		fill_codes(i, 64);
		measure("64 blocks, 16 MiB", codes[i].norms
				? "build: codes and norms" : "build: codes",
			"GB/s", 1,
			64 * BLOCK_TOKENS * HEADS * DIM * sizeof(*bench.keys),
			run_encode, run_keys_sum, 0);
		free(bench.encoder);
		free(bench.slab.base);
	}
}

static void shift_begin(uint32_t dtype, size_t blocks)
{
	int64_t row = HEADS * DIM;

	bench.num = blocks;
	moved.bytes = blocks * BLOCK_TOKENS * HEADS * DIM *
		      (dtype == UCM_DTYPE_FLOAT32 ? 4 : 2);
	moved.from = get(moved.bytes, 1);
	moved.to = get(moved.bytes, 1);
	moved.deltas = get(blocks * BLOCK_TOKENS, sizeof(int32_t));
	for (size_t i = 0; i < blocks * BLOCK_TOKENS; i++)
		moved.deltas[i] = 1000;
	for (size_t i = 0; i < moved.bytes; i++) /* finite in each type */
		moved.from[i] = 0x30 + i % 7;
	moved.rope = (struct ucm_rope){ .head_dim = DIM, .base = 10000 };
	moved.request = (struct ucm_shift_request){
		.from = { moved.from, dtype, blocks, BLOCK_TOKENS * row, row,
			  DIM },
		.to = { NULL, blocks, BLOCK_TOKENS * row, row, DIM },
		.num = blocks, .num_heads = HEADS, .block_size = BLOCK_TOKENS,
		.last_tokens = BLOCK_TOKENS, .deltas = moved.deltas,
	};
}

static void measure_shift(const char *where, size_t blocks)
{
	static const struct {
		const char *name;
		uint32_t dtype, pairing, per_token;
		bool in_place, checked;
	} shifts[] = {
		{ "NeoX, bfloat16, in place", UCM_DTYPE_BFLOAT16, 0, 0, true,
		  false },
		{ "NeoX, bfloat16", UCM_DTYPE_BFLOAT16, 0, 0, false, false },
		{ "NeoX, float16, in place", UCM_DTYPE_FLOAT16, 0, 0, true,
		  false },
		{ "NeoX, float32, in place", UCM_DTYPE_FLOAT32, 0, 0, true,
		  false },
		{ "GPT-J, bfloat16, in place", UCM_DTYPE_BFLOAT16, 1, 0, true,
		  false },
		{ "NeoX, bfloat16, per token", UCM_DTYPE_BFLOAT16, 0, 1, true,
		  false },
		{ "NeoX, bfloat16, checked", UCM_DTYPE_BFLOAT16, 0, 0, true,
		  true },
	};
	char name[64];

	for (size_t i = 0; i < sizeof(shifts) / sizeof(shifts[0]); i++) {
		shift_begin(shifts[i].dtype, blocks);
		moved.rope.pairing = shifts[i].pairing;
		moved.request.per_token = shifts[i].per_token;
		moved.request.unchecked = !shifts[i].checked;
		moved.in_place = shifts[i].in_place;
		snprintf(name, sizeof(name), "shift: %s", shifts[i].name);
		measure(where, name, "GB/s", 1, moved.bytes, run_shift,
			run_copy, 0.8);
		free(moved.from);
		free(moved.to);
		free(moved.deltas);
	}
}

static void decode_begin(size_t blocks)
{
	int64_t row = HEADS * DIM, block = BLOCK_TOKENS * row;
	size_t half = blocks * (size_t)block * sizeof(uint16_t);
	struct ucm_keys keys = { NULL, UCM_DTYPE_BFLOAT16, blocks, block, row,
				 DIM };

	decoded.bytes = 2 * half;
	decoded.cache = get(decoded.bytes, 1);
	for (size_t i = 0; i < half; i++) {
		float value = next_float();

		memcpy(decoded.cache + 2 * i, (uint8_t *)&value + 2, 2);
	}
	decoded.query = get(QUERY_HEADS * DIM, sizeof(float));
	for (size_t i = 0; i < QUERY_HEADS * DIM; i++)
		decoded.query[i] = next_float();
	decoded.attention = (struct ucm_attention){
		.query = { decoded.query, UCM_DTYPE_FLOAT32, QUERY_HEADS, DIM },
		.keys = keys, .values = keys,
		.num_tokens = (uint32_t)blocks * BLOCK_TOKENS,
		.num_heads = HEADS, .head_dim = DIM, .block_size = BLOCK_TOKENS,
		.position = (uint32_t)blocks * BLOCK_TOKENS,
	};
	decoded.attention.keys.base = decoded.cache;
	decoded.attention.values.base = decoded.cache + half;
	decoded.rerope = (struct ucm_rerope){
		.rope = { .head_dim = DIM, .base = 10000 }, .window = 512,
		.training_length = 4096,
	};
	decoded.angles = get(ucm_rerope_floats(&decoded.rerope, BLOCK_TOKENS),
			     sizeof(float));
	decoded.work = get(ucm_attention_floats(&decoded.attention),
			   sizeof(float));
	decoded.out = get(QUERY_HEADS * DIM, sizeof(float));
	if (ucm_rerope_prepare(&decoded.rerope, BLOCK_TOKENS, decoded.angles,
			       NULL))
		die("ucm_rerope_prepare");
}

static void decode_end(void)
{
	free(decoded.cache);
	free(decoded.query);
	free(decoded.angles);
	free(decoded.work);
	free(decoded.out);
}

static void measure_decode(const char *where, size_t blocks)
{
	decode_begin(blocks);
	decoded.with_rerope = false;
	measure(where, "attention: bfloat16", "GB/s", 1, decoded.bytes,
		run_decode, run_cache_sum, 0);
	decoded.with_rerope = true;
	measure(where, "ReRoPE: bfloat16, window 512", "GB/s", 1, decoded.bytes,
		run_decode, run_cache_sum, 0);
	decode_end();
}

/* ---- the decode rows of a batch: one call for all, time of one ---- */

#define ROWS	   8u
#define ROW_BLOCKS 1024u

static struct rows_bench {
	struct ucm_sparse_pages pages;
	struct ucm_budget_config config;
	struct ucm_sparse_rows rows;
	struct ucm_sparse_tables out;
	void *work;
	size_t bytes;
} batch;

static const struct {
	const char *name;
	bool codes;
	uint32_t kind, heads, dim; /* representations are bfloat16 */
	uint32_t form;		   /* of codes of 128 bits, by Hamming */
	double target_us;
} row_forms[] = {
	{ "row: mean, 2 heads of 64", false, UCM_REPR_MEAN, 2, 64, 0, 20 },
	{ "row: min/max, 2 heads of 64", false, UCM_REPR_MINMAX, 2, 64, 0, 20 },
	{ "row: counts, 2 heads of 64", true, 0, 2, 64, UCM_CODE_COUNTS, 20 },
	{ "row: counts, 8 heads of 64", true, 0, 8, 64, UCM_CODE_COUNTS, 0 },
	{ "row: codes, 2 heads of 64", true, 0, 2, 64, UCM_CODE_TOKENS, 0 },
	{ "row: mean, 8 heads of 128", false, UCM_REPR_MEAN, 8, 128, 0, 0 },
	{ "row: min/max, 8 heads of 128", false, UCM_REPR_MINMAX, 8, 128, 0,
	  0 },
};

static void run_rows(void)
{
	if (ucm_sparse_select(&batch.pages, &batch.config, &batch.rows,
			      batch.work, batch.bytes, &batch.out, NULL))
		die("ucm_sparse_select");
}

/* Pages of 4 blocks' keys, over and over. */
static void rows_pages(size_t form)
{
	uint32_t heads = row_forms[form].heads, dim = row_forms[form].dim;
	int64_t row = (int64_t)heads * dim;
	const struct ucm_keys keys = { bench.keys, UCM_DTYPE_BFLOAT16, 4,
				       BLOCK_TOKENS * row, row, dim };
	size_t bytes;
	int err;

	bench.num = ROWS * ROW_BLOCKS;
	bench.spec = (struct ucm_repr_spec){ row_forms[form].kind,
					     UCM_DTYPE_BFLOAT16, heads, dim,
					     BLOCK_TOKENS };
	bench.code = (struct ucm_code_spec){
		.form = row_forms[form].form, .num_heads = heads,
		.head_dim = dim, .bits = 128, .block_size = BLOCK_TOKENS,
	};
	bench.method = (struct ucm_code_method){
		UCM_CODE_HAMMING, row_forms[form].form == UCM_CODE_COUNTS
					  ? UCM_CODE_SUM : UCM_CODE_BEST,
		UCM_SCORE_BLOCK, heads * 4, 4,
	};
	bytes = row_forms[form].codes ? ucm_code_bytes(&bench.code)
				      : ucm_repr_bytes(&bench.spec);
	bench.slab = (struct ucm_repr_slab){ get(bench.num, bytes), bench.num,
					     bytes };
	batch.pages = (struct ucm_sparse_pages){ .slab = &bench.slab };
	if (row_forms[form].codes) {
		bench.encoder = get(1, ucm_code_encoder_bytes(&bench.code));
		err = ucm_code_encoder_make(&bench.code, NULL, bench.encoder,
					    NULL);
		if (!err)
			err = ucm_code_build(bench.encoder, &keys, NULL, 4,
					     BLOCK_TOKENS, &bench.slab, NULL,
					     NULL);
		batch.pages.encoder = bench.encoder;
		batch.pages.code_method = &bench.method;
	} else {
		err = ucm_repr_build(&bench.spec, &keys, NULL, 4, BLOCK_TOKENS,
				     &bench.slab, NULL, NULL);
		batch.pages.spec = &bench.spec;
	}
	if (err)
		die("build");
	for (size_t i = 4; i < bench.num; i++)
		memcpy((uint8_t *)bench.slab.base + i * bytes,
		       (uint8_t *)bench.slab.base + i % 4 * bytes, bytes);
}

/* Each row has pages of its own, in no order; 3 of 10 are chosen. */
static void rows_begin(size_t form)
{
	size_t num = ROWS * ROW_BLOCKS, heads = 4 * row_forms[form].heads;
	size_t dim = row_forms[form].dim;
	int32_t *tables = get(num, sizeof(*tables));
	int32_t *lengths = get(ROWS, sizeof(*lengths));
	uint8_t *built = get(num, 1);
	float *q = get(ROWS * heads * dim, sizeof(*q));

	rows_pages(form);
	memset(built, 1, num);
	batch.pages.built = built;
	for (size_t i = 0; i < ROWS * heads * dim; i++)
		q[i] = next_float();
	for (size_t i = 0; i < num; i++) {
		size_t j = (size_t)((next_float() + 1) / 2 * (float)i);

		tables[i] = tables[j];
		tables[j] = (int32_t)i;
	}
	for (size_t i = 0; i < ROWS; i++)
		lengths[i] = ROW_BLOCKS * BLOCK_TOKENS - 1;
	batch.config = (struct ucm_budget_config){
		.block_size = BLOCK_TOKENS,
		.windows = { .initial_blocks = 1, .local_blocks = 2 },
		.ratio = 0.3,
	};
	batch.rows = (struct ucm_sparse_rows){
		.num = ROWS,
		.query = { q, UCM_DTYPE_FLOAT32, (uint32_t)heads,
			   (int64_t)dim },
		.stride_query = (int64_t)(heads * dim), .tables = tables,
		.stride_table = ROW_BLOCKS, .lengths = lengths,
		.max_blocks = ROW_BLOCKS,
	};
	batch.out = (struct ucm_sparse_tables){
		.tables = get(num, sizeof(*tables)),
		.stride_table = ROW_BLOCKS,
		.lengths = get(ROWS, sizeof(*lengths)),
	};
	batch.bytes = ucm_sparse_select_bytes(&batch.pages, &batch.rows);
	batch.work = get(1, batch.bytes);
}

static void rows_end(void)
{
	free(bench.slab.base);
	free((void *)batch.pages.encoder);
	free((void *)batch.pages.built);
	free((void *)batch.rows.query.base);
	free((void *)batch.rows.tables);
	free((void *)batch.rows.lengths);
	free(batch.out.tables);
	free(batch.out.lengths);
	free(batch.work);
}

static void measure_rows(void)
{
	for (size_t i = 0; i < sizeof(row_forms) / sizeof(row_forms[0]); i++) {
		rows_begin(i);
		measure("8 x 1024 blocks", row_forms[i].name, "us", 1e3 * ROWS,
			0, run_rows, NULL, row_forms[i].target_us);
		measure("8 x 1024 blocks", row_forms[i].name, "GB/s", 1,
			bench.num * bench.slab.stride_bytes, run_rows, run_sum,
			0);
		rows_end();
	}
}

static int usage(void)
{
	fputs("usage: " ME " [--rounds N] [--way plain|avx2|avx512]"
	      " [--only TEXT] [--tsv]\n", stderr);
	return 2;
}

static void choose_way(const char *name)
{
	if (!ucm_sparse_kernels_use(name) || !ucm_code_kernels_use(name))
		die("this CPU cannot do it that way");
}

int main(int argc, char **argv)
{
	const size_t num_keys = 64 * BLOCK_TOKENS * HEADS * DIM;
	char line[160];

	bench.rounds = 31;
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--tsv"))
			bench.tsv = true;
		else if (!strcmp(argv[i], "--way") && i + 1 < argc)
			choose_way(argv[++i]);
		else if (!strcmp(argv[i], "--only") && i + 1 < argc)
			bench.only = argv[++i];
		else if (strcmp(argv[i], "--rounds") || i + 1 >= argc ||
			 ucm_parse_range(argv[++i], 1, MAX_ROUNDS,
					 &bench.rounds))
			return usage();
	}
	bench.query = get(QUERY_HEADS * DIM * 2, sizeof(float));
	bench.scores = get((size_t)QUERY_HEADS * (MAX_BLOCKS + MORE_STRIDE),
			   sizeof(float));
	bench.out = get(MAX_BLOCKS, sizeof(uint32_t));
	bench.keys = get(num_keys, sizeof(uint16_t));
	for (size_t i = 0; i < num_keys; i++) {
		float value = next_float();

		memcpy(&bench.keys[i], (uint8_t *)&value + 2, 2);
	}
	snprintf(line, sizeof(line),
		 "where\tsection\twork (%s)\tunit\tsum\tours\tratio\t25%%\t75%%\t"
		 "target\tverdict", ucm_sparse_kernels()->name);
	if (!bench.tsv)
		print_line(false, line);
	measure_scores(1024);
	measure_scores(MAX_BLOCKS);
	measure_codes(1024);
	measure_codes(8192);
	measure_star();
	measure_select();
	measure_rows();
	measure_build();
	measure_encode();
	measure_shift("8 blocks", 8);
	measure_shift("1024 blocks", 1024);
	measure_decode("8 blocks", 8);
	measure_decode("256 blocks", 256);
	return 0;
}
