/* SPDX-License-Identifier: Apache-2.0 */
/*
 * repr.c - representations of blocks, made of their keys.
 *
 * Keys are taken in token by token, each channel by itself, into floats: sums,
 * or the largest and the smallest so far. So it does not matter in how many
 * calls they come. What is stored is made of these floats when it is asked for,
 * and only there does rounding to a narrower type happen.
 *
 * A block that is built at once goes through the same steps, some heads at a
 * time, with their floats on the stack, so that keys are read in the order in
 * which they lie. It is done twice: first without writing, to see whether all
 * that is to be written can be.
 */
#include <config.h>

#include <ucm/sparse.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/error.h"
#include "sparse/kernels.h"
#include "sparse/number.h"
#include "sparse/spec.h"

#define STATE_MAGIC 0x72706373u

/* At the start of a growing block's state; then the floats of all heads. */
struct repr_state {
	uint32_t magic;
	uint32_t tokens;
	struct ucm_repr_spec spec;
	uint32_t reserved[9];
};
static_assert(sizeof(struct repr_state) == 64, "the floats follow");

/* What a build is done with. */
struct repr_work {
	const struct ucm_repr_spec *spec;
	struct ucm_repr_shape shape;
	const struct ucm_keys *keys;
	struct ucm_error *error;
};

/* Floats of heads that are taken in together: they stay in the nearest cache. */
#define TILE_FLOATS (4 * UCM_REPR_WIDTH_MAX)

/* ---- floats of a head: width of them ---- */

static bool is_mean(const struct ucm_repr_spec *spec)
{
	return spec->kind == UCM_REPR_MEAN || spec->kind == UCM_REPR_NORMED;
}

static void floats_begin(const struct repr_work *work, float *floats)
{
	uint32_t padded = work->shape.padded, dim = work->spec->head_dim;

	memset(floats, 0, work->shape.width * sizeof(*floats));
	if (is_mean(work->spec))
		return;
	for (uint32_t i = 0; i < dim; i++)
		floats[i] = -INFINITY;
	if (work->spec->kind == UCM_REPR_MINMAX) {
		for (uint32_t i = 0; i < dim; i++)
			floats[padded + i] = INFINITY;
	}
}

static void floats_take(const struct repr_work *work, float *floats,
			const float *key)
{
	const struct ucm_sparse_kernels *kernels = ucm_sparse_kernels();
	uint32_t padded = work->shape.padded;

	if (is_mean(work->spec)) {
		kernels->add(floats, key, padded);
		return;
	}
	kernels->largest(floats, key, padded);
	if (work->spec->kind == UCM_REPR_MINMAX)
		kernels->smallest(floats + padded, key, padded);
}

/* Take in one token of a head. -EINVAL: a key that is not finite. */
static int floats_take_key(const struct repr_work *work, float *floats,
			   uint64_t block, uint32_t token, uint32_t head)
{
	float key[UCM_REPR_HEAD_DIM_MAX] __attribute__((aligned(64)));
	int err = ucm_sparse_key(work->spec, work->keys, block, token, head,
				 key, work->error);

	if (err)
		return err;
	for (uint32_t i = work->spec->head_dim; i < work->shape.padded; i++)
		key[i] = 0;
	floats_take(work, floats, key);
	return 0;
}

static bool heads_are_inner(const struct ucm_keys *keys)
{
	return llabs(keys->stride_head) < llabs(keys->stride_token);
}

/* Take in tokens of some heads, as they lie in memory; a head's tokens are in
 * order either way. */
static int floats_take_tokens(const struct repr_work *work, float *floats,
			      uint64_t block, uint32_t first, uint32_t heads,
			      uint32_t tokens)
{
	bool by_token = heads_are_inner(work->keys);
	uint32_t outer = by_token ? tokens : heads;
	uint32_t inner = by_token ? heads : tokens;
	int err = 0;

	for (uint32_t i = 0; i < outer; i++) {
		for (uint32_t j = 0; !err && j < inner; j++) {
			uint32_t head = by_token ? j : i;
			size_t at = (size_t)head * work->shape.width;

			err = floats_take_key(work, floats + at, block,
					      by_token ? i : j, first + head);
		}
	}
	return err;
}

static void normalize(float *floats, uint32_t dim)
{
	double length = ucm_length_of(floats, dim);

	for (uint32_t i = 0; i < dim && length > 0; i++)
		floats[i] = (float)((double)floats[i] / length);
}

/* The representation, of what has been taken in. */
static void floats_end(const struct repr_work *work, float *out,
		       const float *floats, uint32_t tokens)
{
	uint32_t dim = work->spec->head_dim;

	memcpy(out, floats, work->shape.width * sizeof(*out));
	if (!is_mean(work->spec))
		return;
	for (uint32_t i = 0; i < dim; i++)
		out[i] /= (float)tokens;
	if (work->spec->kind == UCM_REPR_NORMED)
		normalize(out, dim);
}

/* ---- stored ---- */

static enum ucm_rounding rounding_of(const struct repr_work *work, uint32_t i)
{
	if (work->spec->kind != UCM_REPR_MINMAX)
		return UCM_ROUND_NEAREST;
	return i < work->shape.padded ? UCM_ROUND_UP : UCM_ROUND_DOWN;
}

static void store_int8(const struct repr_work *work, const float *floats,
		       int8_t *row, float *scale)
{
	uint32_t width = work->shape.width;

	*scale = ucm_scale_of(floats, width, INT8_MAX);
	for (uint32_t i = 0; i < width; i++)
		row[i] = (int8_t)ucm_steps_of(floats[i], *scale,
					      rounding_of(work, i));
}

/* Is each finite in the type it is stored in? */
static bool store_half(const struct repr_work *work, const float *floats,
		       uint16_t *row)
{
	bool narrow = work->spec->dtype == UCM_DTYPE_FLOAT16;
	uint16_t top = narrow ? 0x7c00 : 0x7f80; /* infinity */
	bool finite = true;

	for (uint32_t i = 0; i < work->shape.width; i++) {
		enum ucm_rounding way = rounding_of(work, i);

		row[i] = narrow ? ucm_float16_of(floats[i], way)
				: ucm_bfloat16_of(floats[i], way);
		finite &= (row[i] & 0x7fff) < top;
	}
	return finite;
}

/* Store a head's representation; slot NULL: see only whether that can be. */
static int store_head(const struct repr_work *work, const float *floats,
		      uint32_t head, uint8_t *slot)
{
	const struct ucm_repr_shape *shape = &work->shape;
	size_t row_bytes = (size_t)shape->width * shape->item_bytes;
	union {
		float floats[UCM_REPR_WIDTH_MAX];
		uint16_t halves[UCM_REPR_WIDTH_MAX];
		int8_t bytes[UCM_REPR_WIDTH_MAX];
	} row;
	float scale = 0;
	bool finite = true;

	for (uint32_t i = 0; i < shape->width; i++)
		finite &= ucm_float_finite(floats[i]);
	if (finite && work->spec->dtype == UCM_DTYPE_INT8)
		store_int8(work, floats, row.bytes, &scale);
	else if (finite && work->spec->dtype == UCM_DTYPE_FLOAT32)
		memcpy(row.floats, floats, row_bytes);
	else if (finite)
		finite = store_half(work, floats, row.halves);
	if (!finite)
		return ucm_error_set(work->error, -ERANGE, "head %" PRIu32
				     ": too large for dtype %" PRIu32, head,
				     work->spec->dtype);
	if (!slot)
		return 0;
	memcpy(slot + head * row_bytes, row.bytes, row_bytes);
	if (work->spec->dtype == UCM_DTYPE_INT8)
		memcpy(slot + shape->scales_at + head * sizeof(scale), &scale,
		       sizeof(scale));
	return 0;
}

/* What follows the last row and scale. */
static void store_end(const struct repr_work *work, uint8_t *slot)
{
	size_t end = work->shape.scales_at;

	if (work->spec->dtype == UCM_DTYPE_INT8)
		end += work->spec->num_heads * sizeof(float);
	memset(slot + end, 0, work->shape.bytes - end);
}

static int work_begin(struct repr_work *work, uint32_t tokens)
{
	int err = ucm_repr_shape(work->spec, &work->shape, work->error);

	return err ?: ucm_sparse_keys_check(work->keys, tokens,
					    work->spec->num_heads,
					    work->spec->head_dim, work->error);
}

/* ---- whole blocks ---- */

/* At most TILE_FLOATS / width heads. */
static int build_heads(const struct repr_work *work, uint64_t block,
		       uint32_t first, uint32_t heads, uint32_t tokens,
		       uint8_t *slot)
{
	float tile[TILE_FLOATS] __attribute__((aligned(64)));
	uint32_t width = work->shape.width;
	int err;

	for (uint32_t i = 0; i < heads; i++)
		floats_begin(work, tile + (size_t)i * width);
	err = floats_take_tokens(work, tile, block, first, heads, tokens);
	for (uint32_t i = 0; !err && i < heads; i++) {
		float *floats = tile + (size_t)i * width;

		floats_end(work, floats, floats, tokens);
		err = store_head(work, floats, first + i, slot);
	}
	return err;
}

static int build_block(const struct repr_work *work, uint64_t block,
		       uint32_t tokens, uint8_t *slot)
{
	uint32_t num = work->spec->num_heads;
	uint32_t tile = TILE_FLOATS / work->shape.width;
	int err = 0;

	for (uint32_t head = 0; !err && head < num; head += tile)
		err = build_heads(work, block, head,
				  num - head < tile ? num - head : tile, tokens,
				  slot);
	if (!err && slot)
		store_end(work, slot);
	return err;
}

int ucm_repr_build(const struct ucm_repr_spec *spec,
		   const struct ucm_keys *keys, const int32_t *blocks,
		   size_t num, uint32_t last_tokens,
		   const struct ucm_repr_slab *slab, const int32_t *slots,
		   struct ucm_error *error)
{
	struct repr_work work = { spec, .keys = keys, .error = error };
	int err = ucm_repr_shape(spec, &work.shape, error)
		?: ucm_sparse_blocks_check(spec, keys, blocks, num, last_tokens,
					   error)
		?: ucm_repr_slab_check(slab, work.shape.bytes, sizeof(float),
				       error)
		?: ucm_repr_ids_check("slots", slots, 0, num, slab->num_slots,
				      error);

	for (int write = 0; write <= 1; write++) {
		for (size_t i = 0; !err && i < num; i++)
			err = build_block(&work, ucm_repr_id(blocks, 0, i),
					  ucm_sparse_tokens(spec, i, num,
							    last_tokens),
					  write ? ucm_repr_slot(slab, slots, i)
						: NULL);
	}
	return err;
}

/* ---- a growing block ---- */

static float *state_floats(struct repr_state *state,
			   const struct repr_work *work, uint32_t head)
{
	return (float *)(state + 1) + (size_t)head * work->shape.width;
}

size_t ucm_repr_state_bytes(const struct ucm_repr_spec *spec)
{
	struct ucm_repr_shape shape;

	if (ucm_repr_shape(spec, &shape, NULL))
		return 0;
	return sizeof(struct repr_state) +
	       (size_t)spec->num_heads * shape.width * sizeof(float);
}

static int state_check(const struct ucm_repr_spec *spec, const void *memory,
		       struct ucm_error *error)
{
	const struct repr_state *state = memory;
	int err = ucm_sparse_aligned("state", memory, sizeof(float), error);

	if (err)
		return err;
	if (state->magic != STATE_MAGIC ||
	    memcmp(&state->spec, spec, sizeof(*spec)) != 0)
		return ucm_error_set(error, -EINVAL,
				     "state was not begun for this spec");
	return 0;
}

int ucm_repr_begin(const struct ucm_repr_spec *spec, void *memory,
		   struct ucm_error *error)
{
	struct repr_work work = { spec, .error = error };
	struct repr_state *state = memory;
	int err = ucm_repr_shape(spec, &work.shape, error)
		?: ucm_sparse_aligned("state", memory, sizeof(float), error);

	if (err)
		return err;
	*state = (struct repr_state){ .magic = STATE_MAGIC, .spec = *spec };
	for (uint32_t head = 0; head < spec->num_heads; head++)
		floats_begin(&work, state_floats(state, &work, head));
	return 0;
}

/* Are the keys finite? Nothing is taken in before that is known. */
static int keys_finite(const struct repr_work *work, uint32_t tokens)
{
	float floats[UCM_REPR_WIDTH_MAX];
	int err = 0;

	for (uint32_t head = 0; !err && head < work->spec->num_heads; head++) {
		floats_begin(work, floats);
		err = floats_take_tokens(work, floats, 0, head, 1, tokens);
	}
	return err;
}

int ucm_repr_add(const struct ucm_repr_spec *spec, void *memory,
		 const struct ucm_keys *keys, uint32_t num_tokens,
		 struct ucm_error *error)
{
	struct repr_work work = { spec, .keys = keys, .error = error };
	struct repr_state *state = memory;
	int err = work_begin(&work, num_tokens)
		?: state_check(spec, memory, error)
		?: ucm_sparse_grow_check(keys, num_tokens, state->tokens,
					 spec->block_size, error);

	if (err)
		return err;
	err = keys_finite(&work, num_tokens)
		?: floats_take_tokens(&work, state_floats(state, &work, 0), 0,
				      0, spec->num_heads, num_tokens);
	if (!err)
		state->tokens += num_tokens;
	return err;
}

int ucm_repr_write(const struct ucm_repr_spec *spec, const void *memory,
		   void *out, struct ucm_error *error)
{
	struct repr_work work = { spec, .error = error };
	float floats[UCM_REPR_WIDTH_MAX];
	const struct repr_state *state = memory;
	int err = ucm_repr_shape(spec, &work.shape, error)
		?: state_check(spec, memory, error)
		?: ucm_sparse_aligned("out", out, sizeof(float), error);

	if (err)
		return err;
	if (!state->tokens)
		return ucm_error_set(error, -EINVAL, "state has no tokens");
	for (int write = 0; write <= 1; write++) {
		for (uint32_t head = 0; !err && head < spec->num_heads;
		     head++) {
			const float *from = (const float *)(state + 1) +
					    (size_t)head * work.shape.width;

			floats_end(&work, floats, from, state->tokens);
			err = store_head(&work, floats, head,
					 write ? out : NULL);
		}
	}
	if (!err)
		store_end(&work, out);
	return err;
}
