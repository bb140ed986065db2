/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention_twin.h - what a thread of the GPU does for one token's attention.
 *
 * A CTA has a key head of a request, up to 8 of its query heads, and a part of the
 * request's blocks. It goes over these in tiles, as sparse/decode.c does, and in the
 * same order: so a request that is one part has the bits of the CPU. What parts have
 * is put together by a second kernel.
 *
 *	ucm_twin_attend_begin
 *	for each block, with ReRoPE: _turns_fill and _queries_turn, where some of its
 *	tokens are far away
 *	for each tile:
 *		a warp has a token, and a thread each 32nd channel of its key:
 *		_products, and then the sums of all heads are folded
 *		a half warp has a head, and a thread a token: _weight
 *		a thread has channels of values: _weigh
 *	ucm_twin_attend_end, and then ucm_twin_attend_join
 *
 * Fold: for n = 16, 8, 4, 2, 1 each thread exchanges with the one whose number
 * differs in bit n. While there are several heads left it keeps half of them, whose
 * sums it is sent for those that it sends; so that in the end each thread has the
 * sum of one head, added up in the tree of sparse/kernels.c.
 *
 * All threads of the CTA wait for each other between these.
 */
#ifndef UCM_GPU_SPARSE_ATTENTION_TWIN_H
#define UCM_GPU_SPARSE_ATTENTION_TWIN_H

#include "gpu/sparse/shift_twin.h"
#include "sparse/rerope.h"

/* Of the CTA. */
struct ucm_twin_attend_state {
	float weights[UCM_TWIN_ATTEND_HEADS][UCM_TILE_TOKENS];
	float most[UCM_TWIN_ATTEND_HEADS], total[UCM_TWIN_ATTEND_HEADS];
	float factor[UCM_TWIN_ATTEND_HEADS];
	struct ucm_twin_turns turns;
};

/* Where that is, and rows of what the launch has given the CTA: one for each query
 * head. */
struct ucm_twin_attend {
	struct ucm_twin_attend_state *state;
	float *near, *far, *sums;
};

/* What a CTA attends to. */
struct ucm_twin_attend_part {
	uint32_t request, head;     /* of keys */
	uint32_t first, heads;      /* of queries */
	uint32_t part, begin, end;  /* entries of the table */
	uint32_t tokens, position;
	int bad; /* a position is wrong */
};

UCM_INLINE uint32_t ucm_twin_attend_tokens(const struct ucm_twin_attend_args *args,
					   uint32_t request)
{
	int32_t tokens = UCM_AT(const int32_t, args->tokens + request * 4ull)[0];
	uint64_t most = (uint64_t)args->max_blocks * args->block_size;

	if (tokens < 0)
		return 0;
	return (uint64_t)tokens < most ? (uint32_t)tokens : (uint32_t)most;
}

/* The position of the first token of an entry. */
UCM_INLINE uint64_t ucm_twin_attend_at(const struct ucm_twin_attend_args *args,
				       uint32_t request, uint32_t entry)
{
	uint64_t block = entry;

	if (args->selected)
		block = *UCM_AT(const uint32_t,
				args->selected +
					4 * (request * args->selected_stride +
					     entry));
	return block * args->block_size;
}

/* The query's position. -1: it is before the last token, or too large. */
UCM_INLINE int64_t ucm_twin_attend_position(const struct ucm_twin_attend_args *args,
					    uint32_t request, uint32_t tokens)
{
	uint32_t last = (tokens - 1) / args->block_size;
	uint64_t end = ucm_twin_attend_at(args, request, last) +
		       (tokens - 1) % args->block_size;
	int64_t position = (int64_t)end;

	if (args->positions)
		position = *UCM_AT(const int32_t,
				   args->positions + request * 4ull);
	return position >= (int64_t)end && position <= UCM_POSITION_MAX
		       ? position : -1;
}

UCM_INLINE struct ucm_twin_attend_part
ucm_twin_attend_find(const struct ucm_twin_attend_args *args, uint32_t x,
		     uint32_t request, uint32_t heads)
{
	struct ucm_twin_attend_part out = { request, 0, 0, 0, 0, 0, 0, 0, 0,
					    0 };
	uint32_t chunk = x / args->parts, blocks, first;
	int64_t position;

	out.part = x % args->parts;
	out.head = chunk / args->chunks;
	first = chunk % args->chunks * heads;
	out.first = out.head * args->group + first;
	out.heads = ucm_least_of(heads, args->group - first);
	out.tokens = ucm_twin_attend_tokens(args, request);
	blocks = ucm_blocks_of(out.tokens, args->block_size);
	out.begin = ucm_least_of(out.part * args->part_blocks, blocks);
	out.end = ucm_least_of(out.begin + args->part_blocks, blocks);
	if (!args->angles || !out.tokens)
		return out;
	position = ucm_twin_attend_position(args, request, out.tokens);
	out.bad = position < 0;
	out.position = (uint32_t)position;
	return out;
}

/* ---- queries ---- */

/* In double, as the CPU's; but where it is not 1 it may be off by 2^-52. */
UCM_INLINE double ucm_twin_gain(const struct ucm_twin_attend_args *args,
				uint32_t position)
{
	if (!args->angles || !args->training_length ||
	    position < args->training_length)
		return 1;
	return log(position + 1.0) / log((double)args->training_length);
}

UCM_INLINE void ucm_twin_attend_begin(const struct ucm_twin_attend_args *args,
				      const struct ucm_twin_attend_part *part,
				      uint32_t heads, uint32_t thread,
				      struct ucm_twin_attend *s)
{
	double scale = args->scale * ucm_twin_gain(args, part->position);
	uint32_t dim = args->keys.dim;

	for (uint32_t i = thread; i < heads * dim;
	     i += UCM_TWIN_ATTEND_THREADS) {
		uint32_t head = i / dim;
		float x = 0;

		if (head < part->heads)
			x = ucm_twin_head_load(&args->query, part->request,
					       part->first + head, i % dim);
		s->near[i] = (float)((double)x * scale);
	}
	for (uint32_t i = thread; i < heads * args->values.dim;
	     i += UCM_TWIN_ATTEND_THREADS)
		s->sums[i] = 0;
	if (thread < heads) {
		s->state->most[thread] = -INFINITY;
		s->state->total[thread] = part->bad ? ucm_float_of(0x7fc00000u) : 0;
	}
}

/* Of a block: where it is, and which of its tokens are far away. */
struct ucm_twin_attend_block {
	int64_t block; /* -1: it is not there */
	uint32_t tokens, far;
	int64_t delta; /* that the query is rotated by for these */
};

UCM_INLINE struct ucm_twin_attend_block
ucm_twin_attend_block_find(const struct ucm_twin_attend_args *args,
			   const struct ucm_twin_attend_part *part,
			   uint32_t entry)
{
	uint32_t before = entry * args->block_size;
	struct ucm_twin_attend_block out = { -1, 0, 0, 0 };
	uint64_t first;

	out.block = *UCM_AT(const int32_t,
			    args->tables +
				    4 * (part->request * args->table_stride +
					 entry));
	if (out.block < 0 || (uint64_t)out.block >= args->keys.num_blocks ||
	    (uint64_t)out.block >= args->values.num_blocks || part->bad)
		out.block = -1;
	out.tokens = ucm_least_of(part->tokens - before, args->block_size);
	if (!args->angles || out.block < 0)
		return out;
	first = ucm_twin_attend_at(args, part->request, entry);
	out.far = ucm_rerope_far(part->position, args->window, first,
				 out.tokens);
	out.delta = ucm_rerope_delta(part->position, args->window, first);
	return out;
}

/* The other channel of a pair. */
UCM_INLINE uint32_t ucm_twin_partner(const struct ucm_twin_attend_args *args,
				     uint32_t channel)
{
	uint32_t half = args->rotary / 2;

	if (args->neighbours)
		return channel ^ 1;
	return channel < half ? channel + half : channel - half;
}

UCM_INLINE void ucm_twin_attend_turns(const struct ucm_twin_attend_args *args,
				      int64_t delta, uint32_t thread,
				      struct ucm_twin_attend *s)
{
	for (uint32_t i = thread; i < args->rotary / 2;
	     i += UCM_TWIN_ATTEND_THREADS) {
		double cosine, sine;

		ucm_turn((double)delta * args->turns[i], &cosine, &sine);
		s->state->turns.cosines[i] = (float)cosine;
		s->state->turns.sines[i] = (float)sine;
	}
}

UCM_INLINE void ucm_twin_queries_turn(const struct ucm_twin_attend_args *args,
				      uint32_t heads, uint32_t thread,
				      struct ucm_twin_attend *s)
{
	uint32_t dim = args->keys.dim;

	for (uint32_t i = thread; i < heads * dim;
	     i += UCM_TWIN_ATTEND_THREADS) {
		uint32_t c = i % dim, other, pair;
		float x = s->near[i], sine;

		if (c < args->rotary) {
			other = ucm_twin_partner(args, c);
			pair = args->neighbours ? c / 2
						: ucm_least_of(c, other);
			sine = s->state->turns.sines[pair];
			x = ucm_rotated(x, s->near[i - c + other],
					s->state->turns.cosines[pair],
					c < other ? -sine : sine);
		}
		s->far[i] = x;
	}
}

/* ---- products ---- */

/* Element c of a key; of a far one rotated back by its place in the block. */
UCM_INLINE float ucm_twin_attend_key(const struct ucm_twin_attend_args *args,
				     uint64_t row, uint32_t c, uint32_t token,
				     int far)
{
	float x = ucm_twin_row_load(&args->keys, row, c);
	uint64_t angle = args->angles +
			 4 * (2ull * token * args->rotary + c);

	if (!far || c >= args->rotary)
		return x;
	return ucm_rotated(x,
			   ucm_twin_row_load(&args->keys, row,
					     ucm_twin_partner(args, c)),
			   *UCM_AT(const float, angle),
			   *UCM_AT(const float, angle + 4 * args->rotary));
}

/* A thread's part of a token's products with all heads, a constant. */
UCM_INLINE void ucm_twin_products(const struct ucm_twin_attend_args *args,
				  const struct ucm_twin_attend_part *part,
				  int64_t block, uint32_t token, int far,
				  uint32_t heads, uint32_t lane,
				  const struct ucm_twin_attend *s, float *sums)
{
	uint64_t row = ucm_twin_row_at(&args->keys, block, token, part->head);
	const float *query = far ? s->far : s->near;
	uint32_t dim = args->keys.dim;

	UCM_UNROLL
	for (uint32_t j = 0; j < heads; j++)
		sums[j] = 0;
	for (uint32_t c = lane; c < dim; c += UCM_WARP) {
		float key = ucm_twin_attend_key(args, row, c, token, far);

		UCM_UNROLL
		for (uint32_t j = 0; j < heads; j++)
			sums[j] += key * query[j * dim + c];
	}
}

/* Heads that a thread keeps when n's turn is over; 0: it has one alone. */
UCM_INLINE uint32_t ucm_twin_fold_kept(uint32_t heads, uint32_t n)
{
	return heads * n / UCM_WARP;
}

/* What is sent of number j, and what is made of the answer. */
UCM_INLINE float ucm_twin_fold_sent(const float *sums, uint32_t kept,
				    uint32_t lane, uint32_t n, uint32_t j)
{
	if (!kept)
		return sums[j];
	return lane & n ? sums[j] : sums[kept + j];
}

UCM_INLINE void ucm_twin_fold_take(float *sums, uint32_t kept, uint32_t lane,
				   uint32_t n, uint32_t j, float other)
{
	if (kept && lane & n)
		sums[j] = sums[kept + j];
	sums[j] += other;
}

/* The sum of a head is several threads' in the end. */
UCM_INLINE void ucm_twin_product_store(uint32_t heads, uint32_t lane,
				       uint32_t place, float sum,
				       struct ucm_twin_attend *s)
{
	uint32_t each = UCM_WARP / heads;

	if (lane % each == 0)
		s->state->weights[lane / each][place] = sum;
}

/* ---- weights ---- */

/* What a thread has of a tile: a token's product, or -INFINITY. */
struct ucm_twin_weight {
	float x, most, sum;
	uint32_t finite;
};

UCM_INLINE struct ucm_twin_weight
ucm_twin_weight_find(uint32_t thread, uint32_t num,
		     const struct ucm_twin_attend *s)
{
	uint32_t head = thread / UCM_TILE_TOKENS, i = thread % UCM_TILE_TOKENS;
	struct ucm_twin_weight w = { -INFINITY, -INFINITY, 0, 1 };

	if (i < num) {
		w.x = s->state->weights[head][i];
		w.finite = ucm_float_finite(w.x);
	}
	w.most = w.x == w.x ? w.x : -INFINITY;
	return w;
}

/* most is that of all the head's threads: the tile's. */
UCM_INLINE void ucm_twin_weight_make(uint32_t thread, struct ucm_twin_weight *w,
				     const struct ucm_twin_attend *s)
{
	float before = s->state->most[thread / UCM_TILE_TOKENS];

	w->most = w->most > before ? w->most : before;
	w->x = ucm_weight(w->x - w->most);
	w->sum = w->x;
}

/* sum and finite are those of all, too. */
UCM_INLINE void ucm_twin_weight_store(uint32_t thread,
				      const struct ucm_twin_weight *w,
				      struct ucm_twin_attend *s)
{
	uint32_t head = thread / UCM_TILE_TOKENS, i = thread % UCM_TILE_TOKENS;
	float factor;

	s->state->weights[head][i] = w->x;
	if (i)
		return;
	factor = ucm_weight(s->state->most[head] - w->most);
	s->state->factor[head] = factor;
	s->state->total[head] = s->state->total[head] * factor + w->sum;
	if (!w->finite)
		s->state->total[head] = ucm_float_of(0x7fc00000u); /* and so it stays */
	s->state->most[head] = w->most;
}

/* ---- values ---- */

UCM_INLINE void ucm_twin_weigh(const struct ucm_twin_attend_args *args,
			       const struct ucm_twin_attend_part *part,
			       int64_t block, uint32_t first, uint32_t num,
			       uint32_t heads, uint32_t thread,
			       struct ucm_twin_attend *s)
{
	const struct ucm_twin_rows_args *values = &args->values;

	for (uint32_t c = thread; c < values->dim;
	     c += UCM_TWIN_ATTEND_THREADS) {
		float sums[UCM_TWIN_ATTEND_HEADS];
		uint64_t row = ucm_twin_row_at(values, block, first,
					       part->head);

		UCM_UNROLL
		for (uint32_t j = 0; j < heads; j++)
			sums[j] = s->sums[j * values->dim + c] * s->state->factor[j];
		for (uint32_t i = 0; i < num; i++) {
			float value = ucm_twin_row_load(values, row, c);

			UCM_UNROLL
			for (uint32_t j = 0; j < heads; j++)
				sums[j] += value * s->state->weights[j][i];
			row += ucm_twin_row_step(values);
		}
		UCM_UNROLL
		for (uint32_t j = 0; j < heads; j++)
			s->sums[j * values->dim + c] = sums[j];
	}
}

/* A block that is not there. */
UCM_INLINE void ucm_twin_attend_lack(uint32_t heads, uint32_t thread,
				     struct ucm_twin_attend *s)
{
	if (thread < heads)
		s->state->total[thread] = ucm_float_of(0x7fc00000u);
}

/* ---- parts ---- */

/* Where a part of a query head is: its sums, the largest product, the total. */
UCM_INLINE uint64_t ucm_twin_attend_work(const struct ucm_twin_attend_args *args,
					 uint32_t request, uint32_t head,
					 uint32_t part)
{
	uint64_t heads = (uint64_t)args->num_heads * args->group;

	return args->work + 4 * ((request * heads + head) * args->parts + part) *
				    (args->values.dim + 2ull);
}

UCM_INLINE void ucm_twin_attend_end(const struct ucm_twin_attend_args *args,
				    const struct ucm_twin_attend_part *part,
				    uint32_t thread,
				    const struct ucm_twin_attend *s)
{
	uint32_t dim = args->values.dim;

	for (uint32_t j = 0; j < part->heads; j++) {
		uint64_t at = ucm_twin_attend_work(args, part->request,
						   part->first + j, part->part);

		for (uint32_t c = thread; c < dim; c += UCM_TWIN_ATTEND_THREADS)
			*UCM_AT(float, at + c * 4) = s->sums[j * dim + c];
		if (thread)
			continue;
		*UCM_AT(float, at + dim * 4) = s->state->most[j];
		*UCM_AT(float, at + dim * 4 + 4) = s->state->total[j];
	}
}

/* The largest product of all parts. */
UCM_INLINE float ucm_twin_attend_most(const struct ucm_twin_attend_args *args,
				      uint64_t work, uint32_t parts)
{
	uint32_t dim = args->values.dim;
	float most = -INFINITY;

	for (uint32_t i = 0; i < parts; i++) {
		float x = *UCM_AT(const float,
				  work + 4 * (i * (dim + 2ull) + dim));

		most = x > most ? x : most;
	}
	return most;
}

/* Number c of each part, weighed: of its sums, or past these its total. */
UCM_INLINE float ucm_twin_attend_sum(const struct ucm_twin_attend_args *args,
				     uint64_t work, uint32_t parts, float most,
				     uint32_t c)
{
	uint32_t dim = args->values.dim;
	float sum = 0;

	for (uint32_t i = 0; i < parts; i++) {
		uint64_t at = work + 4 * (i * (dim + 2ull));
		float part = *UCM_AT(const float, at + c * 4ull) *
			     ucm_weight(*UCM_AT(const float, at + dim * 4ull) -
					most);

		sum = i ? sum + part : part;
	}
	return sum;
}

/* Put a query head's parts together. Of no tokens, 0. */
UCM_INLINE void ucm_twin_attend_join(const struct ucm_twin_attend_args *args,
				     uint32_t head, uint32_t request,
				     uint32_t thread)
{
	uint32_t blocks = ucm_blocks_of(ucm_twin_attend_tokens(args, request),
					args->block_size);
	uint32_t parts = ucm_blocks_of(blocks, args->part_blocks);
	uint64_t work = ucm_twin_attend_work(args, request, head, 0);
	float most = ucm_twin_attend_most(args, work, parts);
	uint32_t dim = args->values.dim;
	float total = ucm_twin_attend_sum(args, work, parts, most, dim + 1);

	for (uint32_t c = thread; c < dim; c += UCM_TWIN_ATTEND_THREADS) {
		float sum = ucm_twin_attend_sum(args, work, parts, most, c);

		*UCM_AT(float, args->out + 4 * (request * args->out_stride +
						(uint64_t)head * dim + c)) =
			parts ? sum / total : 0;
	}
	if (args->lse && !thread)
		*UCM_AT(float,
			args->lse + 4 * (request * args->lse_stride + head)) =
			parts ? (float)((double)most + log((double)total))
			      : -INFINITY;
}

#endif
