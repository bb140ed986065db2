/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shift_twin.h - what a thread of the GPU does to keys that move.
 *
 * A CTA has some tokens of a block, all heads of them. Its threads make the table of
 * the rotation, a pair of channels each, and then rotate pairs, of which each is one
 * thread's: so keys may stay where they are. The table is made anew only where a
 * token moves by another number of positions than the one before it.
 *
 * All threads of the CTA wait for each other before and after
 * ucm_twin_turns_fill().
 */
#ifndef UCM_GPU_SPARSE_SHIFT_TWIN_H
#define UCM_GPU_SPARSE_SHIFT_TWIN_H

#include "gpu/sparse/score_twin.h"
#include "sparse/rope.h"

/* Of the CTA: for each pair, and what it was made for. */
struct ucm_twin_turns {
	float cosines[UCM_TWIN_PAIRS_MAX], sines[UCM_TWIN_PAIRS_MAX];
};

struct ucm_twin_move {
	uint32_t first, end; /* tokens; none: nothing is to be done */
	uint64_t block;      /* number in the list */
	int64_t from, to;    /* blocks of the caches */
};

/* A block of a cache, or -1. */
UCM_INLINE int64_t ucm_twin_block_of(uint64_t blocks, uint64_t i, uint64_t num)
{
	int64_t block = (int64_t)i;

	if (blocks)
		block = *UCM_AT(const int32_t, blocks + i * 4);
	return block >= 0 && (uint64_t)block < num ? block : -1;
}

UCM_INLINE struct ucm_twin_move
ucm_twin_move_find(const struct ucm_twin_shift_args *args, uint64_t i,
		   uint32_t part)
{
	struct ucm_twin_move move = {
		0, 0, i,
		ucm_twin_block_of(args->from_blocks, i, args->from.num_blocks),
		ucm_twin_block_of(args->to_blocks, i, args->to.num_blocks),
	};
	uint32_t tokens = args->block_size;

	if (args->tokens)
		tokens = (uint32_t)*UCM_AT(const int32_t, args->tokens + i * 4);
	if (move.from < 0 || move.to < 0 || tokens > args->block_size)
		return move;
	move.first = ucm_least_of(part * UCM_TWIN_SHIFT_TOKENS, tokens);
	move.end = ucm_least_of(move.first + UCM_TWIN_SHIFT_TOKENS, tokens);
	return move;
}

UCM_INLINE int32_t ucm_twin_delta(const struct ucm_twin_shift_args *args,
				  const struct ucm_twin_move *move,
				  uint32_t token)
{
	uint64_t i = move->block;

	if (args->per_token)
		i = i * args->block_size + token;
	return *UCM_AT(const int32_t, args->deltas + i * 4);
}

/* Are its keys left as they are, every bit of them? */
UCM_INLINE int ucm_twin_stays(const struct ucm_twin_shift_args *args,
			      int32_t delta)
{
	return !delta && args->magnitude == 1;
}

UCM_INLINE void ucm_twin_turns_fill(const struct ucm_twin_shift_args *args,
				    int32_t delta, uint32_t thread,
				    struct ucm_twin_turns *turns)
{
	for (uint32_t i = thread; i < args->rotary / 2; i += UCM_TWIN_THREADS) {
		double cosine, sine;

		ucm_turn((double)delta * args->turns[i], &cosine, &sine);
		turns->cosines[i] = (float)(cosine * args->magnitude);
		turns->sines[i] = (float)(sine * args->magnitude);
	}
}

UCM_INLINE void ucm_twin_save(uint64_t at, uint32_t dtype, float value)
{
	if (dtype == UCM_DTYPE_FLOAT32)
		*UCM_AT(float, at) = value;
	else
		*UCM_AT(uint16_t, at) = dtype == UCM_DTYPE_FLOAT16
						? ucm_rotated_float16(value)
						: ucm_rotated_bfloat16(value);
}

UCM_INLINE void ucm_twin_copy(uint64_t to, uint64_t from, uint32_t dtype)
{
	if (dtype == UCM_DTYPE_FLOAT32)
		*UCM_AT(uint32_t, to) = *UCM_AT(const uint32_t, from);
	else
		*UCM_AT(uint16_t, to) = *UCM_AT(const uint16_t, from);
}

/* Pair i of a row. */
UCM_INLINE void ucm_twin_pair(const struct ucm_twin_shift_args *args,
			      uint64_t from, uint64_t to, uint32_t i,
			      const struct ucm_twin_turns *turns)
{
	uint32_t dtype = args->from.dtype, bytes = ucm_twin_item_bytes(dtype);
	uint32_t first = args->neighbours ? 2 * i : i;
	uint32_t second = args->neighbours ? 2 * i + 1 : args->rotary / 2 + i;
	float c = turns->cosines[i], s = turns->sines[i];
	float x = ucm_twin_load(from + first * bytes, dtype);
	float y = ucm_twin_load(from + second * bytes, dtype);

	ucm_twin_save(to + first * bytes, dtype, ucm_rotated(x, y, c, -s));
	ucm_twin_save(to + second * bytes, dtype, ucm_rotated(y, x, c, s));
}

/* A token's rows: pairs, and after them channels that are copied; or, if it stays,
 * copied all. */
UCM_INLINE void ucm_twin_token_move(const struct ucm_twin_shift_args *args,
				    const struct ucm_twin_move *move,
				    uint32_t token, uint32_t thread, int stays,
				    const struct ucm_twin_turns *turns)
{
	uint64_t bytes = ucm_twin_item_bytes(args->from.dtype);
	uint32_t pairs = stays ? 0 : args->rotary / 2;
	uint32_t work = args->from.dim - pairs;

	for (uint32_t i = thread; i < args->num_heads * work;
	     i += UCM_TWIN_THREADS) {
		uint32_t head = i / work, k = i % work;
		uint64_t from = ucm_twin_row_at(&args->from, move->from, token,
						head);
		uint64_t to = ucm_twin_row_at(&args->to, move->to, token, head);

		if (k < pairs)
			ucm_twin_pair(args, from, to, k, turns);
		else if (from != to)
			ucm_twin_copy(to + (k + pairs) * bytes,
				      from + (k + pairs) * bytes,
				      args->from.dtype);
	}
}

#endif
