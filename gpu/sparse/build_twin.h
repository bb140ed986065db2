/* SPDX-License-Identifier: Apache-2.0 */
/*
 * build_twin.h - what a thread of the GPU does for a block's representation.
 *
 * A CTA has a head of a block, and a thread some of its channels; it takes in the
 * block's tokens one after the other, as sparse/repr.c does, so that the bytes are
 * the same. Its floats are then in memory that the CTA shares, for what is made of
 * all channels: a mean's length.
 *
 * Between ucm_twin_build_take(), _length(), _normalize(), _scale() and _store() all
 * threads of the CTA wait for each other.
 *
 * Which blocks: either a list of them, or all that hold one of the tokens that have
 * just been written. Of these the last one in each block is told by the next one's
 * being elsewhere; its CTA takes the block in from its first token. Keys that are
 * not finite, or become too large, make the representation so: of int8, the scale.
 */
#ifndef UCM_GPU_SPARSE_BUILD_TWIN_H
#define UCM_GPU_SPARSE_BUILD_TWIN_H

#include "gpu/sparse/score_twin.h"

/* Of the CTA. */
struct ucm_twin_head {
	float floats[2 * UCM_REPR_HEAD_DIM_MAX];
	double length;
	float scale;
};

struct ucm_twin_block {
	uint32_t tokens; /* 0: nothing is to be built */
	uint32_t head;
	int64_t block;
	uint64_t slot; /* address in the slab */
};

/* Tokens of the block that entry number i has ended with; 0: another entry of
 * that block follows, or it is none. */
UCM_INLINE uint32_t ucm_twin_written(const struct ucm_twin_blocks_args *args,
				     uint64_t i, int64_t *block)
{
	int64_t size = args->block_size;
	int64_t slot = *UCM_AT(const int64_t, args->slots + i * 8), next;

	if (slot < 0)
		return 0;
	*block = slot / size;
	if (i + 1 < args->num) {
		next = *UCM_AT(const int64_t, args->slots + (i + 1) * 8);
		if (next > slot && next / size == *block)
			return 0;
	}
	return (uint32_t)(slot % size) + 1;
}

UCM_INLINE uint32_t ucm_twin_listed(const struct ucm_twin_blocks_args *args,
				    uint64_t i, int64_t *block)
{
	int32_t tokens;

	*block = *UCM_AT(const int32_t, args->blocks + i * 4);
	if (!args->tokens)
		return args->block_size;
	tokens = *UCM_AT(const int32_t, args->tokens + i * 4);
	return tokens > 0 && (uint32_t)tokens <= args->block_size
		       ? (uint32_t)tokens : 0;
}

/* The first token of those that were written to a block one after the other, of
 * which entry i is the last. */
UCM_INLINE uint32_t ucm_twin_run_first(const struct ucm_twin_blocks_args *args,
				       uint64_t i, uint32_t last)
{
	uint64_t at = args->slots + i * 8;
	int64_t slot = *UCM_AT(const int64_t, at);
	uint32_t low = 0, high = last; /* how many are before it */

	if (i < high)
		high = (uint32_t)i;
	while (low < high) {
		uint32_t middle = low + (high - low + 1) / 2;

		if (*UCM_AT(const int64_t, at - middle * 8ull) ==
		    slot - (int64_t)middle)
			low = middle;
		else
			high = middle - 1;
	}
	return last - low;
}

/* What CTA number cta builds. */
UCM_INLINE struct ucm_twin_block
ucm_twin_block_find(const struct ucm_twin_blocks_args *args, uint64_t cta)
{
	struct ucm_twin_block out = { 0, 0, -1, 0 };
	uint64_t i = cta / args->num_heads;

	out.head = (uint32_t)(cta % args->num_heads);
	if (args->slots)
		out.tokens = ucm_twin_written(args, i, &out.block);
	else
		out.tokens = ucm_twin_listed(args, i, &out.block);
	if (out.block < 0 || (uint64_t)out.block >= args->keys.num_blocks ||
	    (uint64_t)out.block >= args->num_slots)
		out.tokens = 0;
	out.slot = args->base + (uint64_t)out.block * args->stride_bytes;
	return out;
}

/* Of a channel's keys; NaN, if one is not finite. */
struct ucm_twin_channel {
	float sum, most, least;
};

UCM_INLINE struct ucm_twin_channel
ucm_twin_channel_take(const struct ucm_twin_build_args *args,
		      const struct ucm_twin_block *block, uint32_t channel)
{
	const struct ucm_twin_rows_args *keys = &args->from.keys;
	uint64_t row = ucm_twin_row_at(keys, block->block, 0, block->head);
	struct ucm_twin_channel all = { 0, -INFINITY, INFINITY };
	float odd = 0;

	for (uint32_t t = 0; t < block->tokens; t++) {
		float key = ucm_twin_row_load(keys, row, channel);

		all.sum += key;
		all.most = key > all.most ? key : all.most;
		all.least = key < all.least ? key : all.least;
		odd += key - key; /* 0 or NaN */
		row += ucm_twin_row_step(keys);
	}
	if (!(odd == 0))
		all.sum = all.most = all.least = odd;
	return all;
}

UCM_INLINE void ucm_twin_build_take(const struct ucm_twin_build_args *args,
				    const struct ucm_twin_block *block,
				    uint32_t thread, struct ucm_twin_head *head)
{
	for (uint32_t i = thread; i < args->padded;
	     i += UCM_TWIN_BUILD_THREADS) {
		struct ucm_twin_channel all = { 0, 0, 0 };

		if (i < args->from.keys.dim)
			all = ucm_twin_channel_take(args, block, i);
		if (args->kind == UCM_REPR_MINMAX)
			head->floats[args->padded + i] = all.least;
		if (args->kind == UCM_REPR_MINMAX || args->kind == UCM_REPR_MAX)
			head->floats[i] = all.most;
		else
			head->floats[i] = all.sum / (float)block->tokens;
	}
}

/* Added up in order, so by one thread. */
UCM_INLINE void ucm_twin_build_length(const struct ucm_twin_build_args *args,
				      uint32_t thread,
				      struct ucm_twin_head *head)
{
	if (args->kind == UCM_REPR_NORMED && !thread)
		head->length = ucm_length_of(head->floats,
					     args->from.keys.dim);
}

UCM_INLINE void ucm_twin_build_normalize(const struct ucm_twin_build_args *args,
					 uint32_t thread,
					 struct ucm_twin_head *head)
{
	if (args->kind != UCM_REPR_NORMED || head->length <= 0)
		return;
	for (uint32_t i = thread; i < args->width; i += UCM_TWIN_BUILD_THREADS)
		head->floats[i] =
			(float)((double)head->floats[i] / head->length);
}

/* By one thread. A number that is not finite makes it NaN. */
UCM_INLINE void ucm_twin_build_scale(const struct ucm_twin_build_args *args,
				     uint32_t thread,
				     struct ucm_twin_head *head)
{
	int finite = 1;

	if (args->dtype != UCM_DTYPE_INT8 || thread)
		return;
	for (uint32_t i = 0; i < args->width; i++)
		finite &= ucm_float_finite(head->floats[i]);
	head->scale = finite ? ucm_scale_of(head->floats, args->width, INT8_MAX)
			     : ucm_float_of(0x7fc00000u);
}

UCM_INLINE enum ucm_rounding
ucm_twin_rounding(const struct ucm_twin_build_args *args, uint32_t i)
{
	if (args->kind != UCM_REPR_MINMAX)
		return UCM_ROUND_NEAREST;
	return i < args->padded ? UCM_ROUND_UP : UCM_ROUND_DOWN;
}

/* A number of a representation; of what is not finite, NaN in the type. scale:
 * of int8. */
UCM_INLINE void ucm_twin_store(uint64_t at, uint32_t dtype, float value,
			       float scale, enum ucm_rounding way)
{
	uint16_t half;

	if (dtype == UCM_DTYPE_FLOAT32) {
		*UCM_AT(float, at) = value;
		return;
	}
	if (dtype == UCM_DTYPE_INT8) {
		*UCM_AT(int8_t, at) = (int8_t)ucm_steps_of(value, scale, way);
		return;
	}
	if (!ucm_float_finite(value))
		half = 0x7fff;
	else if (dtype == UCM_DTYPE_FLOAT16)
		half = ucm_float16_of(value, way);
	else
		half = ucm_bfloat16_of(value, way);
	*UCM_AT(uint16_t, at) = half;
}

/* What follows the last row, and the scales. */
UCM_INLINE void ucm_twin_build_end(const struct ucm_twin_build_args *args,
				   const struct ucm_twin_block *block,
				   uint32_t thread)
{
	uint32_t end = args->scales_at;

	if (args->dtype == UCM_DTYPE_INT8)
		end += 4 * args->from.num_heads;
	for (uint32_t i = end + 4 * thread; i < args->repr_bytes;
	     i += 4 * UCM_TWIN_BUILD_THREADS)
		*UCM_AT(uint32_t, block->slot + i) = 0;
}

UCM_INLINE void ucm_twin_build_store(const struct ucm_twin_build_args *args,
				     const struct ucm_twin_block *block,
				     uint32_t thread,
				     const struct ucm_twin_head *head)
{
	uint32_t bytes = ucm_twin_item_bytes(args->dtype);
	uint64_t row = block->slot + (uint64_t)block->head * args->width * bytes;

	for (uint32_t i = thread; i < args->width; i += UCM_TWIN_BUILD_THREADS)
		ucm_twin_store(row + i * bytes, args->dtype, head->floats[i],
			       head->scale, ucm_twin_rounding(args, i));
	if (args->dtype == UCM_DTYPE_INT8 && !thread)
		*UCM_AT(float, block->slot + args->scales_at +
				       4 * block->head) = head->scale;
	if (!block->head)
		ucm_twin_build_end(args, block, thread);
}

#endif
