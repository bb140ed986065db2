/* SPDX-License-Identifier: Apache-2.0 */
/* twins_star.c - merged channels of the device and those of the CPU. */
#include <config.h>

#include "tests/unit/twins_inside.h"

struct star_case {
	struct twins_fixture *fixture;
	unsigned number;
	uint64_t random;
	struct ucm_star_spec spec;
	uint16_t channels[2 * 128];
	const uint16_t *device_channels;
	struct ucm_repr_slab slab, device_slab;
	struct both cache;
	struct requests requests;
	uint32_t num_queries, num_heads, per;
	float *queries;
	size_t query_stride;
	float scale;
};

static void spec_make(struct star_case *c)
{
	static const uint32_t dims[] = { 1, 7, 33, 64, 128 };
	struct ucm_star_spec *spec = &c->spec;

	*spec = (struct ucm_star_spec){
		.dtype = stored_types[any(&c->random, 3)],
		.num_heads = 1 + any(&c->random, 1),
		.head_dim = dims[any(&c->random, NUM_ROWS(dims) - 1)],
		.block_size = 1 + any(&c->random, 49),
	};
	spec->merge_tokens = 1 + any(&c->random, spec->block_size < 4
							 ? 0 : 3);
	spec->kept = spec->head_dim;
	if (any(&c->random, 1))
		return;
	spec->kept = (spec->head_dim + 1) / 2;
	for (uint32_t i = 0; i < spec->num_heads * spec->kept; i++)
		c->channels[i] = (uint16_t)(2 * (i % spec->kept));
	spec->channels = c->channels;
	c->device_channels = twins_upload(c->fixture, c->channels,
					  sizeof(c->channels));
}

/* ---- representations ---- */

static void build(struct star_case *c, const struct ucm_cuda_written *written)
{
	struct ucm_error error;

	done(ucm_sparse_cuda_star_build(c->fixture->twins, &c->spec,
					c->device_channels, &c->cache.device,
					written, &c->device_slab,
					c->fixture->stream, &error), &error);
}

/* All blocks, some tokens at a time; then they are full as far as end. */
static void build_steps(struct star_case *c, uint32_t end)
{
	uint32_t size = c->spec.block_size, blocks, have = 0, more;
	int64_t *slots = calloc(c->slab.num_slots * size, sizeof(*slots));

	blocks = (uint32_t)c->slab.num_slots;
	for (; have < end; have += more) {
		struct ucm_cuda_written written = { .num = 0 };

		more = 1 + any(&c->random, end - have - 1);
		if (c->fixture->num > 8)
			more = end - have;
		for (uint32_t i = 0; i < blocks * more; i++)
			slots[written.num++] = (int64_t)(i / more) * size +
					       have + i % more;
		written.slots = twins_upload(c->fixture, slots,
					     written.num * sizeof(*slots));
		build(c, &written);
	}
	free(slots);
}

static void build_compare(struct star_case *c)
{
	size_t bytes = c->slab.num_slots * c->slab.stride_bytes;
	uint32_t size = c->spec.block_size, end = 1 + any(&c->random, size - 1);
	int32_t block;
	struct ucm_error error;

	c->device_slab = c->slab;
	c->device_slab.base = twins_upload(c->fixture, c->slab.base, bytes);
	build_steps(c, end);
	for (block = 0; (uint64_t)block < c->slab.num_slots; block++)
		done(ucm_star_build(&c->spec, &c->cache.host.keys, &block, 1,
				    end, &c->slab, &block, &error), &error);
	same(c->fixture, c->device_slab.base, c->slab.base, bytes, c->number,
	     "merged channels");
}

/* ---- scores ---- */

static float *queries_compare(struct star_case *c)
{
	uint32_t num = c->num_queries * c->requests.num;
	struct ucm_cuda_queries queries = {
		.dtype = UCM_DTYPE_FLOAT32, .num_heads = c->num_heads,
		.num = num, .stride_head = c->spec.head_dim,
		.stride_query = (int64_t)c->num_heads * c->spec.head_dim + 3,
	};
	size_t floats = (size_t)queries.stride_query * num, bytes;
	float *raw = malloc(floats * sizeof(float)), *out;
	struct ucm_query each[4];
	struct ucm_error error;

	for (size_t i = 0; i < floats; i++)
		raw[i] = random_float(&c->random, 2);
	queries.base = twins_upload(c->fixture, raw, floats * sizeof(float));
	c->query_stride = ucm_star_query_floats(&c->spec, c->num_queries,
						c->num_heads) + 1;
	bytes = c->query_stride * c->requests.num * sizeof(float);
	c->queries = calloc(1, bytes);
	out = twins_upload(c->fixture, c->queries, bytes);
	for (uint32_t r = 0; r < c->requests.num; r++) {
		for (uint32_t t = 0; t < c->num_queries; t++)
			each[t] = (struct ucm_query){
				raw + (r * c->num_queries + t) *
					      (size_t)queries.stride_query,
				UCM_DTYPE_FLOAT32, c->num_heads,
				queries.stride_head,
			};
		done(ucm_star_query_prepare(&c->spec, each, c->num_queries,
					    c->queries + r * c->query_stride,
					    &error), &error);
	}
	done(ucm_sparse_cuda_star_prepare(c->fixture->twins, &c->spec,
					  c->device_channels, &queries,
					  c->num_queries, out, c->query_stride,
					  c->fixture->stream, &error), &error);
	same(c->fixture, out, c->queries, bytes, c->number, "queries");
	free(raw);
	return out;
}

/* Scores and weights as the CPU has them; NaN where there is no such slot. */
static void scores_want(struct star_case *c, uint32_t r, float *scores,
			float *weights, size_t stride, uint32_t rows)
{
	uint32_t num = request_blocks(&c->requests, r, c->spec.block_size);
	const int32_t *table = c->requests.tables + r * c->requests.stride;
	struct ucm_error error;

	for (uint32_t i = 0; i < num; i++) {
		struct ucm_star_request request = {
			.query = c->queries + r * c->query_stride,
			.num_queries = c->num_queries,
			.num_heads = c->num_heads,
			.per = c->per,
			.slab = &c->slab,
			.slots = &table[i],
			.num = 1,
			.scores = scores + i,
			.weights = weights ? weights + i : NULL,
			.stride = stride,
			.scale = c->scale,
		};

		if ((uint64_t)table[i] < c->slab.num_slots) {
			done(ucm_star_score(&c->spec, &request, 1, &error),
			     &error);
			continue;
		}
		for (uint32_t j = 0; j < rows; j++) {
			scores[j * stride + i] = ucm_float_of(0x7fc00000);
			if (weights)
				weights[j * stride + i] =
					ucm_float_of(0x7fc00000);
		}
	}
}

static bool slots_are_there(struct star_case *c)
{
	bool there = true;

	for (uint32_t r = 0; r < c->requests.num; r++) {
		uint32_t num = request_blocks(&c->requests, r,
					      c->spec.block_size);

		for (uint32_t i = 0; i < num; i++)
			there &= (uint64_t)c->requests
					 .tables[r * c->requests.stride + i] <
				 c->slab.num_slots;
	}
	return there;
}

static void votes_compare(struct star_case *c,
			  const struct ucm_cuda_star_score *score,
			  const float *scores, float *weights, uint32_t rows)
{
	size_t stride = c->requests.max_blocks;
	size_t bytes = stride * c->requests.num * sizeof(float);
	float *want = malloc(bytes);
	struct ucm_cuda_star_vote vote = {
		.requests = c->requests.device, .scores = score->scores,
		.weights = score->weights, .num_rows = rows,
		.stride_request = score->stride_request,
		.stride_row = score->stride_row, .scale = c->scale,
		.votes_stride = stride,
	};
	struct ucm_error error;

	memset(want, 0x5a, bytes);
	vote.votes = twins_upload(c->fixture, want, bytes);
	for (uint32_t r = 0; r < c->requests.num; r++) {
		uint32_t num = request_blocks(&c->requests, r,
					      c->spec.block_size);

		done(ucm_star_vote(scores + r * score->stride_request,
				   weights + r * score->stride_request, rows,
				   num, score->stride_row, c->scale,
				   want + r * stride, &error), &error);
	}
	done(ucm_sparse_cuda_star_vote(c->fixture->twins, c->spec.block_size,
				       &vote, c->fixture->stream, &error),
	     &error);
	same(c->fixture, vote.votes, want, bytes, c->number, "votes");
	free(want);
}

static void scores_compare(struct star_case *c, const float *queries)
{
	bool weigh = c->per == UCM_SCORE_HEAD && any(&c->random, 3);
	uint32_t rows = c->per == UCM_SCORE_HEAD
				? c->num_queries * c->num_heads
				: c->per == UCM_SCORE_GROUP ? c->spec.num_heads
							    : 1;
	struct ucm_cuda_star_score score = {
		.queries = queries, .query_stride = c->query_stride,
		.num_queries = c->num_queries, .num_heads = c->num_heads,
		.per = c->per, .slab = &c->device_slab,
		.requests = c->requests.device,
		.stride_row = c->requests.max_blocks + any(&c->random, 2),
		.scale = c->scale,
	};
	size_t bytes;
	float *want, *weights;
	struct ucm_error error;

	score.stride_request = score.stride_row * rows;
	bytes = score.stride_request * c->requests.num * sizeof(float);
	want = malloc(bytes);
	weights = malloc(bytes);
	memset(want, 0x5a, bytes);
	memset(weights, 0x5a, bytes);
	score.scores = twins_upload(c->fixture, want, bytes);
	if (weigh)
		score.weights = twins_upload(c->fixture, weights, bytes);
	for (uint32_t r = 0; r < c->requests.num; r++)
		scores_want(c, r, want + r * score.stride_request,
			    weigh ? weights + r * score.stride_request : NULL,
			    score.stride_row, rows);
	done(ucm_sparse_cuda_star_score(c->fixture->twins, &c->spec, &score,
					c->fixture->stream, &error), &error);
	same(c->fixture, score.scores, want, bytes, c->number, "star scores");
	if (weigh)
		same(c->fixture, score.weights, weights, bytes, c->number,
		     "weights");
	if (weigh && slots_are_there(c))
		votes_compare(c, &score, want, weights, rows);
	free(want);
	free(weights);
}

void twins_compare_star(struct twins_fixture *fixture, unsigned number)
{
	struct star_case *c = calloc(1, sizeof(*c));
	struct ucm_repr_spec shape;
	float *queries;

	c->fixture = fixture;
	c->number = number;
	c->random = random_case(number);
	spec_make(c);
	shape = (struct ucm_repr_spec){ .num_heads = c->spec.num_heads,
					.head_dim = c->spec.head_dim,
					.block_size = c->spec.block_size };
	c->slab.num_slots = 1 + any(&c->random, 9);
	c->slab.stride_bytes = ucm_star_bytes(&c->spec) +
			       4 * any(&c->random, 4);
	c->slab.base = malloc(c->slab.num_slots * c->slab.stride_bytes);
	memset(c->slab.base, 0xa5, c->slab.num_slots * c->slab.stride_bytes);
	c->cache = both_make(fixture, &shape, input_types[any(&c->random, 2)],
			     (uint32_t)c->slab.num_slots, &c->random);
	build_compare(c);
	c->requests.max_blocks = 1 + any(&c->random, 40);
	requests_make(fixture, &c->requests, c->spec.block_size,
		      (uint32_t)c->slab.num_slots + !any(&c->random, 3),
		      &c->random);
	c->num_queries = 1 + any(&c->random, 2);
	c->num_heads = c->spec.num_heads * (1 + any(&c->random, 4));
	c->per = any(&c->random, UCM_SCORE_PERS - 1);
	c->scale = any(&c->random, 1) ? 1 : .1f;
	queries = queries_compare(c);
	scores_compare(c, queries);
	free(c->slab.base);
	free(c->cache.host.memory);
	free(c->queries);
	free(c);
	twins_release(fixture);
}
