/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparse_cuda_bench.c - how long do the kernels of <ucm/sparse_cuda.h> take?
 *
 * For each: the bytes that it has to move, what they take at the bandwidth of an
 * H100 and of an A100, which is computed, and which part of that bandwidth the goal
 * asks for; and where there is a device the median of its times, and the bandwidth
 * that comes of it. All for one layer of one request of so many tokens, 8 key heads
 * of 128 and 32 query heads.
 *
 * Bytes are those of keys, representations, scores and tables, each counted once;
 * queries and what is read again from a cache are not.
 *
 * UNTESTED: on a device, as there was none where it was written.
 */
#include <config.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ucm/sparse_cuda.h>

#include "common/parse.h"
#include "gpu/copy/cuda_api.h"

#define ME	    "sparse_cuda_bench"
#define GOAL_US	    100.0
#define H100	    3.35e12 /* bytes a second, of the SXM's HBM3 */
#define A100	    2.0e12  /* of the 80 GB SXM's */
#define HEADS	    8u
#define DIM	    128u
#define QUERY_HEADS 32u
#define MAX_MEMORY  32
#define SKIPPED	    77

struct bench {
	const struct ucm_cuda *cuda; /* NULL: there is no device */
	CUdevice device;
	CUcontext context;
	CUstream stream;
	CUevent begin, end;
	struct ucm_sparse_cuda *twins;
	CUdeviceptr memory[MAX_MEMORY];
	unsigned num;
	uint64_t tokens, rounds;
};

/* What a case is about, and what its call is given. */
struct work {
	uint32_t block_size, dtype, kind;
	uint32_t blocks; /* of the request */
	struct ucm_repr_slab slab;
	struct ucm_cuda_requests requests;
	union {
		struct ucm_cuda_score score;
		struct ucm_cuda_code_score codes;
		struct ucm_cuda_star_score star;
		struct ucm_cuda_select select;
		struct ucm_cuda_attention attention;
	};
	union {
		struct ucm_repr_spec repr;
		struct ucm_code_spec code;
		struct ucm_star_spec channels;
		struct ucm_budget_config budget;
	};
	struct ucm_code_method method;
};

static void die(const char *what)
{
	fprintf(stderr, ME ": %s\n", what);
	exit(1);
}

static void ok(const struct bench *bench, CUresult result, const char *what)
{
	if (result == CUDA_SUCCESS)
		return;
	ucm_cuda_failed(bench->cuda, result, what);
	exit(1);
}

/* Memory of the device, each byte of which is fill. */
static void *filled(struct bench *bench, uint64_t bytes, int fill)
{
	CUdeviceptr *at = &bench->memory[bench->num];
	void *on_host;

	if (!bench->cuda)
		return NULL;
	if (bench->num++ == MAX_MEMORY)
		die("too many arrays");
	ok(bench, bench->cuda->MemAlloc(at, bytes), "cuMemAlloc");
	on_host = malloc(bytes);
	if (!on_host)
		die("no memory");
	memset(on_host, fill, bytes);
	ok(bench, bench->cuda->MemcpyAsync(*at, (uintptr_t)on_host, bytes,
					   bench->stream), "cuMemcpyAsync");
	ok(bench, bench->cuda->StreamSynchronize(bench->stream),
	   "cuStreamSynchronize");
	free(on_host);
	return (void *)(uintptr_t)*at;
}

static void *room(struct bench *bench, uint64_t bytes)
{
	return filled(bench, bytes, 0);
}

static void *numbers(struct bench *bench, uint32_t num, int32_t first,
		     int32_t step)
{
	int32_t *on_host = calloc(num, sizeof(*on_host));
	void *out = room(bench, num * sizeof(*on_host));

	if (!on_host)
		die("no memory");
	for (uint32_t i = 0; i < num; i++)
		on_host[i] = first + (int32_t)i * step;
	if (out)
		ok(bench, bench->cuda->MemcpyAsync(
				  (uintptr_t)out, (uintptr_t)on_host,
				  num * sizeof(*on_host), bench->stream),
		   "cuMemcpyAsync");
	if (out)
		ok(bench, bench->cuda->StreamSynchronize(bench->stream),
		   "cuStreamSynchronize");
	free(on_host);
	return out;
}

/* Its blocks are those of the cache, in a row. */
static void request_make(struct bench *bench, struct work *w, uint64_t tokens)
{
	w->blocks = (uint32_t)((tokens - 1) / w->block_size + 1);
	w->requests = (struct ucm_cuda_requests){
		.tables = numbers(bench, w->blocks, 0, 1),
		.table_stride = w->blocks,
		.tokens = numbers(bench, 1, (int32_t)tokens, 0),
		.num = 1,
		.max_blocks = w->blocks,
	};
}

/* With ones in it, a block has more tokens and groups than fit: so all of them. */
static void slab_make(struct bench *bench, struct work *w, size_t bytes)
{
	w->slab = (struct ucm_repr_slab){
		.num_slots = w->blocks,
		.stride_bytes = bytes,
		.base = filled(bench, w->blocks * bytes, 1),
	};
}

/* ---- the cases: each sets up its work, and returns the bytes ---- */

static uint64_t repr_make(struct bench *bench, struct work *w)
{
	size_t floats;

	w->repr = (struct ucm_repr_spec){ w->kind, w->dtype, HEADS, DIM,
					  w->block_size };
	request_make(bench, w, bench->tokens);
	slab_make(bench, w, ucm_repr_bytes(&w->repr));
	floats = ucm_query_floats(&w->repr, QUERY_HEADS, UCM_SCORE_BLOCK);
	w->score = (struct ucm_cuda_score){
		.queries = room(bench, floats * sizeof(float)),
		.query_stride = (floats + 3) / 4 * 4,
		.num_heads = QUERY_HEADS,
		.per = UCM_SCORE_BLOCK,
		.slab = &w->slab,
		.requests = w->requests,
		.scores = room(bench, w->blocks * sizeof(float)),
	};
	return w->blocks * (ucm_repr_bytes(&w->repr) + 8);
}

static int repr_run(struct bench *bench, struct work *w,
		    struct ucm_error *error)
{
	return ucm_sparse_cuda_score(bench->twins, &w->repr, &w->score,
				     bench->stream, error);
}

/* kind: enum ucm_code_form; measure by dtype, which is not one here. */
static uint64_t codes_make(struct bench *bench, struct work *w)
{
	bool estimate = w->dtype == UCM_CODE_ESTIMATE;

	w->code = (struct ucm_code_spec){
		.form = w->kind, .num_heads = HEADS, .head_dim = DIM,
		.bits = 128, .block_size = w->block_size, .norms = estimate,
	};
	w->method = (struct ucm_code_method){
		.measure = w->dtype,
		.over = w->kind == UCM_CODE_COUNTS ? UCM_CODE_SUM
						   : UCM_CODE_BEST,
		.per = UCM_SCORE_GROUP, .num_heads = QUERY_HEADS,
		.merged_heads = 1,
	};
	request_make(bench, w, bench->tokens);
	slab_make(bench, w, ucm_code_bytes(&w->code));
	w->codes = (struct ucm_cuda_code_score){
		.queries = room(bench, 8 * ucm_code_query_words(&w->code,
								&w->method)),
		.slab = &w->slab,
		.requests = w->requests,
		.scores = room(bench, w->blocks * HEADS * sizeof(float)),
		.stride_row = w->blocks,
	};
	return w->blocks * (ucm_code_bytes(&w->code) + 4 + HEADS * 4);
}

static int codes_run(struct bench *bench, struct work *w,
		     struct ucm_error *error)
{
	return ucm_sparse_cuda_code_score(bench->twins, &w->code, &w->method,
					  &w->codes, bench->stream, error);
}

/* All channels of every 4 tokens; half of them would be half of it. */
static uint64_t star_make(struct bench *bench, struct work *w)
{
	w->channels = (struct ucm_star_spec){
		.dtype = w->dtype, .num_heads = HEADS, .head_dim = DIM,
		.block_size = w->block_size, .merge_tokens = 4, .kept = DIM,
	};
	request_make(bench, w, bench->tokens);
	slab_make(bench, w, ucm_star_bytes(&w->channels));
	w->star = (struct ucm_cuda_star_score){
		.queries = room(bench, 4 * ucm_star_query_floats(
						   &w->channels, 1,
						   QUERY_HEADS)),
		.num_queries = 1, .num_heads = QUERY_HEADS,
		.per = UCM_SCORE_GROUP,
		.slab = &w->slab,
		.requests = w->requests,
		.scores = room(bench, w->blocks * HEADS * sizeof(float)),
		.stride_row = w->blocks,
	};
	return w->blocks * (ucm_star_bytes(&w->channels) + 4 + HEADS * 4);
}

static int star_run(struct bench *bench, struct work *w,
		    struct ucm_error *error)
{
	return ucm_sparse_cuda_star_score(bench->twins, &w->channels, &w->star,
					  bench->stream, error);
}

/* Seven passes over the scores, of which one is of the device's memory. */
static uint64_t select_make(struct bench *bench, struct work *w)
{
	w->budget = (struct ucm_budget_config){ .block_size = w->block_size,
						.ratio = .1 };
	request_make(bench, w, bench->tokens);
	w->select = (struct ucm_cuda_select){
		.requests = w->requests,
		.scores = numbers(bench, w->blocks, 1, 1), /* ascending */
		.scores_stride = w->blocks,
		.tables_out = room(bench, w->blocks * sizeof(int32_t)),
		.room = w->blocks,
		.tokens_out = room(bench, 4),
		.status = room(bench, 4),
	};
	return (uint64_t)w->blocks * 8;
}

static int select_run(struct bench *bench, struct work *w,
		      struct ucm_error *error)
{
	return ucm_sparse_cuda_select(bench->twins, &w->budget, &w->select,
				      bench->stream, error);
}

/* Over a 32nd of the tokens: 16K of 512K. */
static uint64_t attention_make(struct bench *bench, struct work *w)
{
	uint64_t tokens = bench->tokens < 32 ? 1 : bench->tokens / 32, bytes;
	struct ucm_keys keys = { .dtype = UCM_DTYPE_BFLOAT16,
				 .stride_block = (int64_t)w->block_size *
						 HEADS * DIM,
				 .stride_token = HEADS * DIM,
				 .stride_head = DIM };

	request_make(bench, w, tokens);
	keys.num_blocks = w->blocks;
	bytes = (uint64_t)w->blocks * w->block_size * HEADS * DIM * 2;
	w->attention = (struct ucm_cuda_attention){
		.queries = { room(bench, QUERY_HEADS * DIM * 2),
			     UCM_DTYPE_BFLOAT16, QUERY_HEADS, 1,
			     QUERY_HEADS * DIM, DIM },
		.keys = keys, .values = keys, .requests = w->requests,
		.num_heads = HEADS, .head_dim = DIM,
		.block_size = w->block_size,
		.out = room(bench, QUERY_HEADS * DIM * 4),
	};
	w->attention.keys.base = room(bench, bytes);
	w->attention.values.base = room(bench, bytes);
	w->attention.work = room(bench, 4 * ucm_sparse_cuda_attention_floats(
						    &w->attention));
	return 2 * bytes;
}

static int attention_run(struct bench *bench, struct work *w,
			 struct ucm_error *error)
{
	return ucm_sparse_cuda_attention(bench->twins, &w->attention,
					 bench->stream, error);
}

static const struct {
	const char *name;
	uint32_t block_size, dtype, kind;
	uint64_t (*make)(struct bench *bench, struct work *w);
	int (*run)(struct bench *bench, struct work *w,
		   struct ucm_error *error);
} cases[] = {
	{ "mean, bfloat16, blocks of 128", 128, UCM_DTYPE_BFLOAT16,
	  UCM_REPR_MEAN, repr_make, repr_run },
	{ "mean, int8, blocks of 128", 128, UCM_DTYPE_INT8, UCM_REPR_MEAN,
	  repr_make, repr_run },
	{ "min/max, bfloat16, blocks of 128", 128, UCM_DTYPE_BFLOAT16,
	  UCM_REPR_MINMAX, repr_make, repr_run },
	{ "mean, bfloat16, blocks of 16", 16, UCM_DTYPE_BFLOAT16,
	  UCM_REPR_MEAN, repr_make, repr_run },
	{ "mean, int8, blocks of 16", 16, UCM_DTYPE_INT8, UCM_REPR_MEAN,
	  repr_make, repr_run },
	{ "min/max, bfloat16, blocks of 16", 16, UCM_DTYPE_BFLOAT16,
	  UCM_REPR_MINMAX, repr_make, repr_run },
	{ "codes, 128 bits, Hamming", 128, UCM_CODE_HAMMING, UCM_CODE_TOKENS,
	  codes_make, codes_run },
	{ "codes, 128 bits, estimate", 128, UCM_CODE_ESTIMATE,
	  UCM_CODE_TOKENS, codes_make, codes_run },
	{ "codes, counted, blocks of 128", 128, UCM_CODE_HAMMING,
	  UCM_CODE_COUNTS, codes_make, codes_run },
	{ "merged channels, all, of 4 tokens, int8", 128, UCM_DTYPE_INT8, 0,
	  star_make, star_run },
	{ "merged channels, all, of 4 tokens, bfloat16", 128,
	  UCM_DTYPE_BFLOAT16, 0, star_make, star_run },
	{ "selection of a tenth, blocks of 16", 16, 0, 0, select_make,
	  select_run },
	{ "attention over a 32nd, bfloat16", 128, 0, 0, attention_make,
	  attention_run },
};

/* ---- times ---- */

static int by_value(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

/* The median, in microseconds; the first round is not counted. */
static double time_of(struct bench *bench, size_t i, struct work *w)
{
	float *ms = calloc(bench->rounds, sizeof(*ms)), middle;
	struct ucm_error error;

	if (!ms)
		die("no memory");
	for (uint64_t round = 0; round <= bench->rounds; round++) {
		ok(bench, bench->cuda->EventRecord(bench->begin, bench->stream),
		   "cuEventRecord");
		if (cases[i].run(bench, w, &error))
			die(error.text);
		ok(bench, bench->cuda->EventRecord(bench->end, bench->stream),
		   "cuEventRecord");
		ok(bench, bench->cuda->EventSynchronize(bench->end),
		   "cuEventSynchronize");
		if (round)
			ok(bench, bench->cuda->EventElapsedTime(
					  &ms[round - 1], bench->begin,
					  bench->end), "cuEventElapsedTime");
	}
	qsort(ms, bench->rounds, sizeof(*ms), by_value);
	middle = ms[bench->rounds / 2];
	free(ms);
	return (double)middle * 1000;
}

static void release(struct bench *bench)
{
	while (bench->num)
		ok(bench, bench->cuda->MemFree(bench->memory[--bench->num]),
		   "cuMemFree");
}

static void run_case(struct bench *bench, size_t i)
{
	struct work w;
	double bytes, us;

	memset(&w, 0, sizeof(w));
	w.block_size = cases[i].block_size;
	w.dtype = cases[i].dtype;
	w.kind = cases[i].kind;
	bytes = (double)cases[i].make(bench, &w);
	printf("%-46s %8.2f %8.1f %8.1f %6.1f%% %6.1f%%", cases[i].name,
	       bytes / 0x1p20, bytes / H100 * 1e6, bytes / A100 * 1e6,
	       bytes / (GOAL_US * 1e-6) / H100 * 100,
	       bytes / (GOAL_US * 1e-6) / A100 * 100);
	if (bench->cuda) {
		us = time_of(bench, i, &w);
		printf(" %9.1f %8.1f", us, bytes / us / 1e3);
	}
	printf("\n");
	release(bench);
}

/* ---- set up ---- */

static void open_device(struct bench *bench)
{
	const struct ucm_cuda *cuda;
	struct ucm_error error;

	if (ucm_cuda_get(&cuda, &error)) {
		fprintf(stderr, ME ": SKIP: %s\n", error.text);
		exit(SKIPPED);
	}
	bench->cuda = cuda;
	ok(bench, cuda->DeviceGet(&bench->device, 0), "cuDeviceGet");
	ok(bench, cuda->DevicePrimaryCtxRetain(&bench->context, bench->device),
	   "cuDevicePrimaryCtxRetain");
	ok(bench, cuda->CtxPushCurrent(bench->context), "cuCtxPushCurrent");
	ok(bench, cuda->StreamCreate(&bench->stream, CU_STREAM_NON_BLOCKING),
	   "cuStreamCreate");
	ok(bench, cuda->EventCreate(&bench->begin, CU_EVENT_DEFAULT),
	   "cuEventCreate");
	ok(bench, cuda->EventCreate(&bench->end, CU_EVENT_DEFAULT),
	   "cuEventCreate");
	if (ucm_sparse_cuda_open(0, &bench->twins, &error))
		die(error.text);
}

static void close_device(struct bench *bench)
{
	CUcontext popped;

	ucm_sparse_cuda_close(bench->twins);
	bench->cuda->EventDestroy(bench->begin);
	bench->cuda->EventDestroy(bench->end);
	bench->cuda->StreamDestroy(bench->stream);
	bench->cuda->CtxPopCurrent(&popped);
	bench->cuda->DevicePrimaryCtxRelease(bench->device);
}

static void usage(FILE *to)
{
	fputs("usage: " ME " [--tokens N] [--rounds N] [--roofline]\n"
	      "  --tokens N   of the request [524288]\n"
	      "  --rounds N   of which the median is taken [101]\n"
	      "  --roofline   only what is computed; needs no device\n", to);
}

static void read_options(struct bench *bench, int argc, char **argv,
			 bool *roofline)
{
	for (int i = 1; i < argc; i++) {
		uint64_t *to = !strcmp(argv[i], "--tokens")   ? &bench->tokens
			       : !strcmp(argv[i], "--rounds") ? &bench->rounds
							      : NULL;

		if (!strcmp(argv[i], "--help")) {
			usage(stdout);
			exit(0);
		}
		if (!strcmp(argv[i], "--roofline")) {
			*roofline = true;
			continue;
		}
		if (!to || ++i == argc ||
		    ucm_parse_range(argv[i], 1, 1 << 24, to)) {
			usage(stderr);
			exit(2);
		}
	}
}

int main(int argc, char **argv)
{
	struct bench bench = { .tokens = 1 << 19, .rounds = 101 };
	bool roofline = false;

	read_options(&bench, argc, argv, &roofline);
	if (!roofline)
		open_device(&bench);
	printf("%" PRIu64 " tokens; computed: us at 3.35 and 2.0 TB/s, and the "
	       "part of these that %g us need%s\n", bench.tokens, GOAL_US,
	       roofline ? "" : "; measured: us, GB/s");
	printf("%-46s %8s %8s %8s %7s %7s%s\n", "", "MiB", "H100", "A100",
	       "H100", "A100", roofline ? "" : "        us     GB/s");
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		run_case(&bench, i);
	if (!roofline)
		close_device(&bench);
	return 0;
}
