/* SPDX-License-Identifier: Apache-2.0 */
/*
 * star.c - merged channels (KVStar): a block's groups of tokens, and the largest
 * product with one of them, or the share of a vote that they get.
 *
 * A slot has the groups of a channel side by side, so that they are the lanes of
 * kernels_star.h; a growing block, which takes in token by token, has the
 * channels of a group side by side. Sums are floats, each made token by token,
 * and are divided and rounded when they are stored: as in repr.c, it does not
 * matter how tokens come.
 *
 * A build has the sums of one group of one head at a time. It goes through all
 * groups twice, the first time without writing, as ucm_repr_build() does.
 */
#include <config.h>

#include <ucm/sparse.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/align.h"
#include "common/error.h"
#include "sparse/kernels.h"
#include "sparse/number.h"
#include "sparse/spec.h"

#define STATE_MAGIC	  0x72617473u
#define QUERIES_MAX	  4096u
#define ALL_CHANNELS_FROM 0.98

/* At the start of a growing block's state; then for each head and group the sums
 * of the kept channels. */
struct star_state {
	uint32_t magic;
	uint32_t tokens;
	struct ucm_star_spec spec; /* channels: not looked at */
	uint32_t reserved[6];
};
static_assert(sizeof(struct star_state) == 64, "the floats follow");

struct star_work {
	const struct ucm_star_spec *spec;
	struct ucm_star_shape shape;
	const struct ucm_keys *keys;
	struct ucm_error *error;
};

/* ---- the spec ---- */

static int star_shape(const struct ucm_star_spec *spec, struct ucm_star_shape *out,
		      struct ucm_error *error)
{
	int err = ucm_star_shape(spec, out, error);

	return err ? err : ucm_star_channels_check(spec, error);
}

size_t ucm_star_bytes(const struct ucm_star_spec *spec)
{
	struct ucm_star_shape shape;

	return star_shape(spec, &shape, NULL) ? 0 : shape.bytes;
}

/* The kept channels of a head out of all. */
static void keep_channels(const struct ucm_star_spec *spec, uint32_t head,
			  const float *all, float *kept)
{
	const uint16_t *channels = spec->channels;

	if (!channels) {
		memcpy(kept, all, spec->kept * sizeof(*kept));
		return;
	}
	channels += (size_t)head * spec->kept;
	for (uint32_t i = 0; i < spec->kept; i++)
		kept[i] = all[channels[i]];
}

/* ---- which channels ---- */

uint32_t ucm_star_kept(uint32_t head_dim, double ratio)
{
	double kept = rint(head_dim * ratio);

	if (!(ratio > 0 && ratio <= 1))
		return 0;
	if (ratio >= ALL_CHANNELS_FROM)
		return head_dim;
	return kept < 1 ? 1 : (uint32_t)kept;
}

/* Add |K| of a head's tokens in a block. */
static int sizes_add(const struct star_work *work, uint64_t block,
		     uint32_t tokens, uint32_t head, double *sizes)
{
	uint32_t dim = work->spec->head_dim;
	float sums[UCM_REPR_HEAD_DIM_MAX] = { 0 };

	for (uint32_t token = 0; token < tokens; token++) {
		float key[UCM_REPR_HEAD_DIM_MAX];
		int err = ucm_sparse_key(&work->shape.keys, work->keys, block,
					 token, head, key, work->error);

		if (err)
			return err;
		for (uint32_t i = 0; i < dim; i++)
			sums[i] += fabsf(key[i]);
	}
	for (uint32_t i = 0; i < dim; i++)
		sizes[i] += (double)sums[i];
	return 0;
}

/* The largest of them, ascending; of equal ones the lower. */
static void largest_channels(const double *sizes, uint32_t dim, uint32_t kept,
			     uint16_t *out)
{
	for (uint32_t i = 0; i < dim; i++) {
		uint32_t before = 0;

		for (uint32_t j = 0; j < dim; j++)
			before += sizes[j] > sizes[i] ||
				  (sizes[j] == sizes[i] && j < i);
		if (before < kept)
			*out++ = (uint16_t)i;
	}
}

int ucm_star_channels(const struct ucm_star_spec *spec,
		      const struct ucm_keys *keys, const int32_t *blocks,
		      size_t num, uint32_t last_tokens, uint16_t *out,
		      struct ucm_error *error)
{
	struct star_work work = { spec, .keys = keys, .error = error };
	int err = ucm_star_shape(spec, &work.shape, error)
		?: ucm_sparse_blocks_check(&work.shape.keys, keys, blocks, num,
					   last_tokens, error);

	if (err)
		return err;
	if (!num || !out)
		return ucm_error_set(error, -EINVAL, "%s", num ? "out is NULL"
							       : "num is 0");
	for (int write = 0; write <= 1; write++) {
		for (uint32_t head = 0; head < spec->num_heads; head++) {
			double sizes[UCM_REPR_HEAD_DIM_MAX] = { 0 };

			for (size_t i = 0; !err && i < num; i++)
				err = sizes_add(&work,
						ucm_repr_id(blocks, 0, i),
						ucm_sparse_tokens(
							&work.shape.keys, i,
							num, last_tokens),
						head, sizes);
			if (err)
				return err;
			if (write)
				largest_channels(sizes, spec->head_dim,
						 spec->kept,
						 out + (size_t)head *
							       spec->kept);
		}
	}
	return 0;
}

/* ---- groups ---- */

/* The tokens of a group. */
static uint32_t group_tokens(const struct ucm_star_spec *spec, uint32_t group,
			     uint32_t tokens)
{
	uint32_t left = tokens - group * spec->merge_tokens;

	return left < spec->merge_tokens ? left : spec->merge_tokens;
}

static int sums_take_key(const struct star_work *work, uint64_t block,
			 uint32_t token, uint32_t head, float *sums)
{
	float key[UCM_REPR_HEAD_DIM_MAX], kept[UCM_REPR_HEAD_DIM_MAX];
	int err = ucm_sparse_key(&work->shape.keys, work->keys, block, token,
				 head, key, work->error);

	if (err)
		return err;
	keep_channels(work->spec, head, key, kept);
	for (uint32_t i = 0; i < work->spec->kept; i++)
		sums[i] += kept[i];
	return 0;
}

/* Is it finite in the type that it is stored in? */
static bool store_number(uint32_t dtype, float value, float scale, uint8_t *at)
{
	bool narrow = dtype == UCM_DTYPE_FLOAT16;
	uint16_t half;

	if (dtype == UCM_DTYPE_FLOAT32) {
		memcpy(at, &value, sizeof(value));
		return true;
	}
	if (dtype == UCM_DTYPE_INT8) {
		*(int8_t *)at = (int8_t)ucm_steps_of(value, scale,
						     UCM_ROUND_NEAREST);
		return true;
	}
	half = narrow ? ucm_float16_of(value, UCM_ROUND_NEAREST)
		      : ucm_bfloat16_of(value, UCM_ROUND_NEAREST);
	memcpy(at, &half, sizeof(half));
	return (half & 0x7fff) < (narrow ? 0x7c00 : 0x7f80);
}

/* Store a group's mean; slot NULL: see only whether that can be. */
static int store_group(const struct star_work *work, const float *sums,
		       uint32_t head, uint32_t group, uint32_t tokens,
		       uint8_t *slot)
{
	const struct ucm_star_shape *shape = &work->shape;
	uint32_t kept = work->spec->kept, dtype = work->spec->dtype;
	size_t row = (size_t)head * kept, item = shape->item_bytes;
	float means[UCM_REPR_HEAD_DIM_MAX], scale = 0;
	bool finite = true;

	for (uint32_t i = 0; i < kept; i++) {
		means[i] = sums[i] / (float)tokens;
		finite &= ucm_float_finite(means[i]);
	}
	if (finite && dtype == UCM_DTYPE_INT8)
		scale = ucm_scale_of(means, kept, INT8_MAX);
	for (uint32_t i = 0; finite && i < kept; i++, row++) {
		uint8_t number[sizeof(float)];

		finite = store_number(dtype, means[i], scale, number);
		if (slot)
			memcpy(slot + (row * shape->lanes + group) * item,
			       number, item);
	}
	if (!finite)
		return ucm_error_set(work->error, -ERANGE, "head %" PRIu32
				     ": too large for dtype %" PRIu32, head,
				     dtype);
	if (slot && dtype == UCM_DTYPE_INT8)
		memcpy(slot + shape->scales_at +
			       ((size_t)head * shape->lanes + group) *
				       sizeof(scale),
		       &scale, sizeof(scale));
	return 0;
}

/* What is stored for a group of no tokens is 0. */
static void store_begin(const struct star_work *work, uint32_t tokens,
			uint8_t *slot)
{
	uint32_t groups = (tokens - 1) / work->spec->merge_tokens + 1;

	memset(slot, 0, work->shape.bytes);
	memcpy(slot + work->shape.groups_at, &groups, sizeof(groups));
}

/* ---- whole blocks ---- */

static int build_group(const struct star_work *work, uint64_t block,
		       uint32_t head, uint32_t group, uint32_t tokens,
		       uint8_t *slot)
{
	uint32_t first = group * work->spec->merge_tokens;
	uint32_t num = group_tokens(work->spec, group, tokens);
	float sums[UCM_REPR_HEAD_DIM_MAX];
	int err = 0;

	memset(sums, 0, work->spec->kept * sizeof(*sums));
	for (uint32_t i = 0; !err && i < num; i++)
		err = sums_take_key(work, block, first + i, head, sums);
	return err ? err : store_group(work, sums, head, group, num, slot);
}

/* Groups before heads: keys are read about as they lie. */
static int build_block(const struct star_work *work, uint64_t block,
		       uint32_t tokens, uint8_t *slot)
{
	uint32_t groups = (tokens - 1) / work->spec->merge_tokens + 1;
	int err = 0;

	if (slot)
		store_begin(work, tokens, slot);
	for (uint32_t i = 0; i < groups; i++) {
		for (uint32_t j = 0; !err && j < work->spec->num_heads; j++)
			err = build_group(work, block, j, i, tokens, slot);
	}
	return err;
}

int ucm_star_build(const struct ucm_star_spec *spec,
		   const struct ucm_keys *keys, const int32_t *blocks,
		   size_t num, uint32_t last_tokens,
		   const struct ucm_repr_slab *slab, const int32_t *slots,
		   struct ucm_error *error)
{
	struct star_work work = { spec, .keys = keys, .error = error };
	int err = star_shape(spec, &work.shape, error)
		?: ucm_sparse_blocks_check(&work.shape.keys, keys, blocks, num,
					   last_tokens, error)
		?: ucm_repr_slab_check(slab, work.shape.bytes, sizeof(float),
				       error)
		?: ucm_repr_ids_check("slots", slots, 0, num, slab->num_slots,
				      error);

	for (int write = 0; write <= 1; write++) {
		for (size_t i = 0; !err && i < num; i++)
			err = build_block(&work, ucm_repr_id(blocks, 0, i),
					  ucm_sparse_tokens(&work.shape.keys, i,
							    num, last_tokens),
					  write ? ucm_repr_slot(slab, slots, i)
						: NULL);
	}
	return err;
}

/* ---- a growing block ---- */

static size_t sums_at(const struct star_work *work, uint32_t head,
		      uint32_t group)
{
	return ((size_t)head * work->shape.groups + group) * work->spec->kept;
}

size_t ucm_star_state_bytes(const struct ucm_star_spec *spec)
{
	struct ucm_star_shape shape;

	if (star_shape(spec, &shape, NULL))
		return 0;
	return sizeof(struct star_state) + (size_t)spec->num_heads *
						   shape.groups * spec->kept *
						   sizeof(float);
}

int ucm_star_begin(const struct ucm_star_spec *spec, void *memory,
		   struct ucm_error *error)
{
	struct star_state *state = memory;
	struct ucm_star_shape shape;
	int err = star_shape(spec, &shape, error)
		?: ucm_sparse_aligned("state", memory, sizeof(float), error);

	if (err)
		return err;
	memset(memory, 0, ucm_star_state_bytes(spec));
	state->magic = STATE_MAGIC;
	memcpy(&state->spec, spec, sizeof(*spec));
	return 0;
}

static int state_check(const struct ucm_star_spec *spec, const void *memory,
		       struct ucm_error *error)
{
	const struct star_state *state = memory;
	int err = ucm_sparse_aligned("state", memory, sizeof(float), error);

	if (err)
		return err;
	if (state->magic != STATE_MAGIC ||
	    memcmp(&state->spec, spec,
		   offsetof(struct ucm_star_spec, channels)) != 0)
		return ucm_error_set(error, -EINVAL,
				     "state was not begun for this spec");
	return 0;
}

/* Take in tokens; state NULL: see only whether the keys are finite. */
static int state_take(const struct star_work *work, struct star_state *state,
		      uint32_t num)
{
	float unused[UCM_REPR_HEAD_DIM_MAX] = { 0 };
	int err = 0;

	for (uint32_t i = 0; i < num; i++) {
		for (uint32_t j = 0; !err && j < work->spec->num_heads; j++) {
			float *sums = unused;

			if (state)
				sums = (float *)(state + 1) +
				       sums_at(work, j,
					       (state->tokens + i) /
						   work->spec->merge_tokens);
			err = sums_take_key(work, 0, i, j, sums);
		}
	}
	return err;
}

int ucm_star_add(const struct ucm_star_spec *spec, void *memory,
		 const struct ucm_keys *keys, uint32_t num_tokens,
		 struct ucm_error *error)
{
	struct star_work work = { spec, .keys = keys, .error = error };
	struct star_state *state = memory;
	int err = star_shape(spec, &work.shape, error)
		?: ucm_sparse_keys_check(keys, num_tokens, spec->num_heads,
					 spec->head_dim, error)
		?: state_check(spec, memory, error)
		?: ucm_sparse_grow_check(keys, num_tokens, state->tokens,
					 spec->block_size, error);

	if (err)
		return err;
	err = state_take(&work, NULL, num_tokens)
		?: state_take(&work, state, num_tokens);
	if (!err)
		state->tokens += num_tokens;
	return err;
}

int ucm_star_write(const struct ucm_star_spec *spec, const void *memory,
		   void *out, struct ucm_error *error)
{
	struct star_work work = { spec, .error = error };
	const struct star_state *state = memory;
	const float *sums = (const float *)(state + 1);
	int err = star_shape(spec, &work.shape, error)
		?: state_check(spec, memory, error)
		?: ucm_sparse_aligned("out", out, sizeof(float), error);

	if (err)
		return err;
	if (!state->tokens)
		return ucm_error_set(error, -EINVAL, "state has no tokens");
	for (int write = 0; write <= 1; write++) {
		uint32_t groups = (state->tokens - 1) / spec->merge_tokens + 1;

		if (write)
			store_begin(&work, state->tokens, out);
		for (uint32_t i = 0; !err && i < spec->num_heads * groups; i++) {
			uint32_t head = i / groups, group = i % groups;

			err = store_group(&work,
					  sums + sums_at(&work, head, group),
					  head, group,
					  group_tokens(spec, group,
						       state->tokens),
					  write ? out : NULL);
		}
		if (err)
			break;
	}
	return err;
}

/* ---- queries ---- */

static int query_numbers(const struct ucm_star_spec *spec,
			 struct ucm_star_shape *shape, uint32_t num_queries,
			 uint32_t num_heads, struct ucm_error *error)
{
	int err = star_shape(spec, shape, error);

	if (err)
		return err;
	if (!num_queries || num_queries > QUERIES_MAX)
		return ucm_error_set(error, -EINVAL, "num_queries %" PRIu32
				     ": from 1 to %u", num_queries,
				     QUERIES_MAX);
	return ucm_sparse_heads_check("num_heads", num_heads, spec->num_heads,
				      error);
}

size_t ucm_star_query_floats(const struct ucm_star_spec *spec,
			     uint32_t num_queries, uint32_t num_heads)
{
	struct ucm_star_shape shape;

	if (query_numbers(spec, &shape, num_queries, num_heads, NULL))
		return 0;
	return (size_t)num_queries * num_heads * spec->kept;
}

/* Put the heads of a query to their places; out NULL: see only whether they are
 * finite. A key head has for each channel those of all its rows. */
static int query_place(const struct ucm_star_spec *spec,
		       const struct ucm_star_shape *shape,
		       const struct ucm_query *query, uint32_t row,
		       uint32_t rows, float *out, struct ucm_error *error)
{
	float all[UCM_REPR_HEAD_DIM_MAX], kept[UCM_REPR_HEAD_DIM_MAX];
	uint32_t group = query->num_heads / spec->num_heads;
	int err = 0;

	for (uint32_t i = 0; !err && i < query->num_heads; i++) {
		size_t at = (size_t)(i / group) * spec->kept * rows + row +
			    i % group;

		err = ucm_sparse_query_head(&shape->keys, query, i, all, error);
		keep_channels(spec, i / group, all, kept);
		for (uint32_t c = 0; out && c < spec->kept; c++)
			out[at + (size_t)c * rows] = kept[c];
	}
	return err;
}

int ucm_star_query_prepare(const struct ucm_star_spec *spec,
			   const struct ucm_query *queries,
			   uint32_t num_queries, float *out,
			   struct ucm_error *error)
{
	struct ucm_star_shape shape;
	uint32_t group;
	int err = queries ? query_numbers(spec, &shape, num_queries,
					  queries->num_heads, error)
			  : ucm_error_set(error, -EINVAL, "queries is NULL");

	for (uint32_t i = 0; !err && i < num_queries; i++) {
		err = ucm_sparse_query_check(&queries[i], spec->head_dim,
					     error);
		if (!err && queries[i].num_heads != queries->num_heads)
			err = ucm_error_set(error, -EINVAL, "num_heads %" PRIu32
					    " of query %" PRIu32 ": that of the"
					    " first, %" PRIu32,
					    queries[i].num_heads, i,
					    queries->num_heads);
	}
	if (!err && !out)
		err = ucm_error_set(error, -EINVAL, "out is NULL");
	if (err)
		return err;
	group = queries->num_heads / spec->num_heads;
	for (int write = 0; write <= 1; write++) {
		for (uint32_t i = 0; !err && i < num_queries; i++)
			err = query_place(spec, &shape, &queries[i],
					  i * group, num_queries * group,
					  write ? out : NULL, error);
	}
	return err;
}

/* ---- scores ---- */

static int scale_check(float scale, struct ucm_error *error)
{
	if (scale >= 0 && ucm_float_finite(scale))
		return 0;
	return ucm_error_set(error, -EINVAL, "scale %g: at least 0, and finite",
			     (double)scale);
}

static int request_check(const struct ucm_star_spec *spec,
			 const struct ucm_star_request *request,
			 struct ucm_error *error)
{
	struct ucm_star_shape shape;
	int err = query_numbers(spec, &shape, request->num_queries,
				request->num_heads, error);
	uint64_t rows = 1;

	if (err)
		return err;
	if (request->per >= UCM_SCORE_PERS)
		return ucm_error_set(error, -EINVAL, "per %" PRIu32
				     ": unknown", request->per);
	if (request->weights && request->per != UCM_SCORE_HEAD)
		return ucm_error_set(error, -EINVAL, "weights: with "
				     "UCM_SCORE_HEAD alone");
	if (request->weights)
		err = scale_check(request->scale, error);
	if (!err)
		err = ucm_repr_slab_check(request->slab, shape.bytes,
					  sizeof(float), error);
	if (!err)
		err = ucm_sparse_places_check(request->slab, request->slots,
					      request->first_slot,
					      request->num, request->query,
					      request->scores, error);
	if (request->per == UCM_SCORE_GROUP)
		rows = spec->num_heads;
	else if (request->per == UCM_SCORE_HEAD)
		rows = (uint64_t)request->num_queries * request->num_heads;
	return err ? err : ucm_score_rows_check(rows, request->num,
						request->stride, error);
}

static void request_run(const struct ucm_star_spec *spec,
			const struct ucm_star_request *request)
{
	uint32_t group = request->num_heads / spec->num_heads;
	struct ucm_star_shape shape;
	struct ucm_star_run run;

	star_shape(spec, &shape, NULL);
	run = (struct ucm_star_run){
		.query = request->query,
		.base = request->slab->base,
		.stride_bytes = request->slab->stride_bytes,
		.scales_at = shape.scales_at,
		.groups_at = shape.groups_at,
		.num_heads = spec->num_heads,
		.kept = spec->kept,
		.lanes = shape.lanes,
		.group = group,
		.rows = request->num_queries * group,
		.per = request->per,
		.slots = request->slots,
		.first = request->first_slot,
		.num = request->num,
		.scores = request->scores,
		.weights = request->weights,
		.stride = request->stride,
		.scale = request->scale,
	};
	ucm_sparse_kernels()->star[spec->dtype](&run);
}

int ucm_star_score(const struct ucm_star_spec *spec,
		   const struct ucm_star_request *requests,
		   size_t num_requests, struct ucm_error *error)
{
	struct ucm_error why;

	if (num_requests && !requests)
		return ucm_error_set(error, -EINVAL, "requests is NULL");
	for (size_t i = 0; i < num_requests; i++) {
		int err = request_check(spec, &requests[i], &why);

		if (err)
			return ucm_sparse_refuse(i, num_requests, err, &why,
						 error);
	}
	for (size_t i = 0; i < num_requests; i++)
		request_run(spec, &requests[i]);
	return 0;
}

/* A score that is too large for a float has no share of a sum. */
static int vote_check(const float *scores, size_t num, struct ucm_error *error)
{
	float least, most;

	if (ucm_score_range(scores, num, &least, &most) &&
	    most < INFINITY)
		return 0;
	return ucm_error_set(error, -ERANGE,
			     "scores: one is NaN, or infinitely large");
}

int ucm_star_vote(const float *scores, float *weights, size_t num_rows,
		  size_t num, size_t stride, float scale, float *votes,
		  struct ucm_error *error)
{
	int err;

	if (!scores || !weights || !votes)
		return ucm_error_set(error, -EINVAL, "%s is NULL",
				     !scores	? "scores"
				     : !weights ? "weights"
						: "votes");
	err = scale_check(scale, error)
		?: ucm_score_rows_check(num_rows, num, stride, error);
	for (size_t i = 0; !err && num && i < num_rows; i++)
		err = vote_check(scores + i * stride, num, error);
	if (err)
		return err;
	memset(votes, 0, num * sizeof(*votes));
	for (size_t i = 0; i < num_rows; i++)
		ucm_sparse_kernels()->star_vote(scores + i * stride,
						weights + i * stride, num,
						scale, votes);
	return 0;
}
