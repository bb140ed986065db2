/* SPDX-License-Identifier: Apache-2.0 */
/* twins_codes.c - hash codes of the device and those of the CPU. */
#include <config.h>

#include "tests/unit/twins_inside.h"

struct code_case {
	struct twins_fixture *fixture;
	unsigned number;
	uint64_t random;
	struct ucm_code_spec spec;
	struct ucm_code_method method;
	struct ucm_cuda_encoder encoder;
	struct ucm_repr_slab slab; /* the host's */
	struct both cache;
	struct requests requests;
	uint8_t *queries, *rope; /* of all requests */
	struct ucm_cuda_queries device_queries, device_rope;
	size_t query_words, query_stride;
	uint64_t *prepared;
};

static struct ucm_code_spec code_spec(uint64_t *random)
{
	static const uint32_t dims[] = { 1, 7, 33, 64, 80, 128 };
	static const uint32_t sizes[] = { 1, 3, 8, 16, 20, 100, 130 };
	struct ucm_code_spec spec = {
		.form = any(random, 1),
		.num_heads = 1 + any(random, 2),
		.head_dim = dims[any(random, NUM_ROWS(dims) - 1)],
		.bits = 8 * (1 + any(random, 20)),
		.block_size = sizes[any(random, NUM_ROWS(sizes) - 1)],
		.seed = any(random, 1000),
	};

	if (spec.head_dim > 10 && any(random, 1)) {
		spec.rope_dim = 1 + any(random, 8);
		spec.rope_bits = 8 * (1 + any(random, 15));
	}
	spec.norms = spec.form == UCM_CODE_TOKENS &&
		     spec.bits >= spec.head_dim - spec.rope_dim &&
		     spec.rope_bits >= spec.rope_dim && any(random, 1);
	return spec;
}

static void encoder_upload(struct code_case *c)
{
	uint32_t num = c->spec.num_heads * c->spec.head_dim;
	size_t bytes = ucm_code_encoder_bytes(&c->spec);
	float *centers = calloc(num, sizeof(*centers));
	void *memory = malloc(bytes);
	struct ucm_error error;

	for (uint32_t i = 0; i < num; i++)
		centers[i] = random_float(&c->random, 1);
	done(ucm_code_encoder_make(&c->spec, any(&c->random, 1) ? centers : NULL,
				   memory, &error), &error);
	free(centers);
	c->encoder.host = memory;
	c->encoder.device = twins_upload(c->fixture, memory, bytes);
}

/* ---- keys ---- */

static void codes_want(struct code_case *c, int32_t block, uint32_t tokens)
{
	struct ucm_error error;

	done(ucm_code_build(c->encoder.host, &c->cache.host.keys, &block, 1,
			    tokens, &c->slab, &block, &error), &error);
}

/* The same number of a block's tokens, from its first one, is written to both. */
static void codes_build(struct code_case *c, const struct ucm_repr_slab *slab,
			const struct ucm_cuda_written *written)
{
	struct ucm_error error;

	done(ucm_sparse_cuda_code_build(c->fixture->twins, &c->encoder,
					&c->cache.device, written, slab,
					c->fixture->stream, &error), &error);
}

/* Whole blocks in a list. */
static void codes_list(struct code_case *c, const struct ucm_repr_slab *slab)
{
	int32_t blocks[BLOCKS_MAX], tokens[BLOCKS_MAX];
	struct ucm_cuda_written written = { .num = 0 };

	for (uint32_t i = 0; i < c->slab.num_slots; i++) {
		uint32_t num = 1 + any(&c->random, c->spec.block_size - 1);

		if (any(&c->random, 3) == 0)
			continue;
		blocks[written.num] = (int32_t)i;
		tokens[written.num++] = (int32_t)num;
		codes_want(c, (int32_t)i, num);
	}
	written.blocks = twins_upload(c->fixture, blocks, sizeof(blocks));
	written.tokens = twins_upload(c->fixture, tokens, sizeof(tokens));
	codes_build(c, slab, &written);
}

/* All blocks, in some steps of so many tokens each, as an engine writes them. */
static void codes_slots(struct code_case *c, const struct ucm_repr_slab *slab)
{
	uint32_t size = c->spec.block_size, have = 0;
	uint32_t end = 1 + any(&c->random, size - 1);
	size_t most = c->slab.num_slots * (size + 1);
	int64_t *slots = calloc(most, sizeof(*slots));

	while (have < end) {
		uint32_t more = 1 + any(&c->random, end - have - 1);
		struct ucm_cuda_written written = { .num = 0 };

		for (uint32_t i = 0; i < c->slab.num_slots; i++) {
			for (uint32_t j = 0; j < more; j++)
				slots[written.num++] =
					(int64_t)i * size + have + j;
			if (any(&c->random, 1))
				slots[written.num++] = -1;
		}
		written.slots = twins_upload(c->fixture, slots,
					     most * sizeof(*slots));
		codes_build(c, slab, &written);
		have += more;
		if (c->fixture->num > TWINS_MEMORY_MAX - 12)
			end = have; /* enough */
	}
	for (uint32_t i = 0; i < c->slab.num_slots; i++)
		codes_want(c, (int32_t)i, have);
	free(slots);
}

static void codes_compare(struct code_case *c, struct ucm_repr_slab *slab)
{
	size_t bytes = c->slab.num_slots * c->slab.stride_bytes;

	*slab = c->slab;
	slab->base = twins_upload(c->fixture, c->slab.base, bytes);
	if (any(&c->random, 1))
		codes_list(c, slab);
	else
		codes_slots(c, slab);
	same(c->fixture, slab->base, c->slab.base, bytes, c->number, "codes");
}

/* ---- queries ---- */

static struct ucm_cuda_queries heads_make(struct code_case *c, uint32_t dim,
					  uint8_t **host)
{
	struct ucm_cuda_queries out = {
		.dtype = input_types[any(&c->random, 2)],
		.num_heads = c->method.num_heads,
		.num = c->requests.num,
		.stride_head = dim + any(&c->random, 2),
	};
	size_t item = type_bytes(out.dtype), num;

	out.stride_query = out.stride_head * out.num_heads;
	num = (size_t)out.stride_query * out.num;
	*host = malloc(num * item);
	for (size_t i = 0; i < num; i++)
		store_number(*host + i * item, out.dtype,
			     random_float(&c->random, 2));
	out.base = twins_upload(c->fixture, *host, num * item);
	return out;
}

static struct ucm_query query_of(const struct ucm_cuda_queries *queries,
				 const uint8_t *host, uint32_t r)
{
	return (struct ucm_query){
		host + r * (size_t)queries->stride_query *
			       type_bytes(queries->dtype),
		queries->dtype, queries->num_heads, queries->stride_head,
	};
}

static uint64_t *queries_compare(struct code_case *c)
{
	int apart = c->spec.rope_dim && any(&c->random, 1);
	uint32_t dim = c->spec.head_dim - (apart ? c->spec.rope_dim : 0);
	size_t bytes;
	struct ucm_error error;
	uint64_t *out;

	c->device_queries = heads_make(c, dim, &c->queries);
	if (apart)
		c->device_rope = heads_make(c, c->spec.rope_dim, &c->rope);
	c->query_words = ucm_code_query_words(&c->spec, &c->method);
	c->query_stride = c->query_words + any(&c->random, 2);
	bytes = c->query_stride * c->requests.num * sizeof(uint64_t);
	c->prepared = malloc(bytes);
	memset(c->prepared, 0x5a, bytes);
	out = twins_upload(c->fixture, c->prepared, bytes);
	for (uint32_t r = 0; r < c->requests.num; r++) {
		struct ucm_query query = query_of(&c->device_queries,
						  c->queries, r);
		struct ucm_query rope = query_of(&c->device_rope, c->rope, r);

		done(ucm_code_query_prepare(c->encoder.host, &c->method, &query,
					    apart ? &rope : NULL,
					    c->prepared + r * c->query_stride,
					    &error), &error);
	}
	done(ucm_sparse_cuda_code_prepare(c->fixture->twins, &c->encoder,
					  &c->method, &c->device_queries,
					  apart ? &c->device_rope : NULL, out,
					  c->query_stride, c->fixture->stream,
					  &error), &error);
	same(c->fixture, out, c->prepared, bytes, c->number, "queries");
	return out;
}

/* ---- scores ---- */

static void code_scores_want(struct code_case *c, uint32_t r, float *want,
			     size_t stride_row, uint32_t rows)
{
	uint32_t num = request_blocks(&c->requests, r, c->spec.block_size);
	uint32_t each = c->method.over == UCM_CODE_EACH ? c->spec.block_size
							 : 1;
	const int32_t *table = c->requests.tables + r * c->requests.stride;
	struct ucm_error error;

	for (uint32_t i = 0; i < num; i++) {
		struct ucm_code_request request = {
			.query = c->prepared + r * c->query_stride,
			.slab = &c->slab,
			.slots = &table[i],
			.num = 1,
			.scores = want + (size_t)i * each,
			.stride = stride_row,
		};

		if ((uint64_t)table[i] < c->slab.num_slots) {
			done(ucm_code_score(&c->spec, &c->method, &request, 1,
					    &error), &error);
			continue;
		}
		for (uint32_t j = 0; j < rows * each; j++)
			want[j / each * stride_row + (size_t)i * each +
			     j % each] = ucm_float_of(0x7fc00000);
	}
}

static void code_scores_compare(struct code_case *c,
				const struct ucm_repr_slab *slab,
				const uint64_t *queries)
{
	uint32_t codes = c->method.num_heads / c->method.merged_heads;
	uint32_t rows = c->method.per == UCM_SCORE_HEAD    ? codes
			: c->method.per == UCM_SCORE_GROUP ? c->spec.num_heads
							   : 1;
	size_t each = c->method.over == UCM_CODE_EACH ? c->spec.block_size : 1;
	struct ucm_error error;
	struct ucm_cuda_code_score score = {
		.queries = queries,
		.query_stride = c->query_stride,
		.slab = slab,
		.requests = c->requests.device,
		.stride_row = c->requests.max_blocks * each +
			      any(&c->random, 2),
	};
	size_t bytes;
	float *want;

	score.stride_request = score.stride_row * rows + any(&c->random, 2);
	bytes = score.stride_request * c->requests.num * sizeof(float);
	want = malloc(bytes);
	memset(want, 0x5a, bytes);
	score.scores = twins_upload(c->fixture, want, bytes);
	for (uint32_t r = 0; r < c->requests.num; r++)
		code_scores_want(c, r, want + r * score.stride_request,
				 score.stride_row, rows);
	done(ucm_sparse_cuda_code_score(c->fixture->twins, &c->spec, &c->method,
					&score, c->fixture->stream, &error),
	     &error);
	same(c->fixture, score.scores, want, bytes, c->number, "code scores");
	free(want);
}

static struct ucm_code_method method_make(struct code_case *c)
{
	uint32_t codes = 1 + any(&c->random, 9), merged = 1 + any(&c->random, 1);
	struct ucm_code_method method = {
		.measure = any(&c->random, UCM_CODE_MEASURES - 1),
		.over = any(&c->random, UCM_CODE_OVERS - 1),
		.per = any(&c->random, UCM_SCORE_PERS - 1),
		.num_heads = c->spec.num_heads * codes * merged,
		.merged_heads = merged,
	};

	if (c->spec.form == UCM_CODE_COUNTS)
		method.over = UCM_CODE_SUM;
	return method;
}

void twins_compare_codes(struct twins_fixture *fixture, unsigned number)
{
	struct code_case *c = calloc(1, sizeof(*c));
	struct ucm_repr_spec shape;
	struct ucm_repr_slab slab;
	uint64_t *queries;

	c->fixture = fixture;
	c->number = number;
	c->random = random_case(number);
	c->spec = code_spec(&c->random);
	c->method = method_make(c);
	shape = (struct ucm_repr_spec){ .num_heads = c->spec.num_heads,
					.head_dim = c->spec.head_dim,
					.block_size = c->spec.block_size };
	c->slab.num_slots = 1 + any(&c->random, 5);
	c->slab.stride_bytes = ucm_code_bytes(&c->spec) + 64;
	c->slab.base = aligned_alloc(64, c->slab.num_slots *
						 c->slab.stride_bytes);
	memset(c->slab.base, 0xa5, c->slab.num_slots * c->slab.stride_bytes);
	encoder_upload(c);
	c->cache = both_make(fixture, &shape, input_types[any(&c->random, 2)],
			     (uint32_t)c->slab.num_slots, &c->random);
	codes_compare(c, &slab);
	c->requests.max_blocks = 1 + any(&c->random, 8);
	requests_make(fixture, &c->requests, c->spec.block_size,
		      (uint32_t)c->slab.num_slots + !any(&c->random, 3),
		      &c->random);
	queries = queries_compare(c);
	code_scores_compare(c, &slab, queries);
	free((void *)(uintptr_t)c->encoder.host);
	free(c->slab.base);
	free(c->cache.host.memory);
	free(c->queries);
	free(c->rope);
	free(c->prepared);
	free(c);
	twins_release(fixture);
}
