/* SPDX-License-Identifier: Apache-2.0 */
/*
 * code_score_twin.h - what a thread of the GPU adds to a score by hash codes.
 *
 * As in score_twin.h a team of neighbouring threads has an item, a row of a block,
 * or with BLOCK all of its rows. A thread loads the same word of two tokens, 16
 * bytes, for rows of 8 tokens are interleaved; so a team is half as many threads as
 * a block has tokens, up to a warp. Distances are whole numbers, and so are their
 * sums: it does not matter who adds them. What is not, a sum of normed tokens, is
 * added up in the order of tokens, each thread handing its two round.
 *
 * For each head of an item whoever runs this exchanges between
 * ucm_twin_code_take() and _code_run(): for n = team / 2, ... 2, 1 each thread
 * joins its part with that of the thread whose number differs in bit n. Of NORMED,
 * for each step of the block, the pairs of all threads are added in order.
 */
#ifndef UCM_GPU_SPARSE_CODE_SCORE_TWIN_H
#define UCM_GPU_SPARSE_CODE_SCORE_TWIN_H

#include "gpu/sparse/score_twin.h"
#include "sparse/code_core.h"

/* What is said of a block's tokens, and how: a kernel each. */
enum ucm_twin_code_mode {
	UCM_TWIN_CODE_LEAST, /* the least distance */
	UCM_TWIN_CODE_BEST,  /* the best of normed estimates */
	UCM_TWIN_CODE_SUM,   /* the sum of distances */
	UCM_TWIN_CODE_COUNT, /* the same, of counts */
	UCM_TWIN_CODE_NORMED, /* the sum of normed estimates */
	UCM_TWIN_CODE_EACH,
};

struct ucm_twin_code_item {
	int wanted, there;
	uint32_t part; /* of the team */
	uint32_t first_head, num_heads, tokens;
	uint64_t slot, query, score; /* addresses */
};

UCM_INLINE struct ucm_twin_code_item
ucm_twin_code_item_find(const struct ucm_twin_code_score_args *args,
			uint32_t thread, uint32_t request, uint32_t each)
{
	uint32_t index = thread / args->team;
	uint32_t rows = args->sum ? 1 : args->num_heads * args->rows;
	uint32_t block = index / rows, row = index % rows;
	uint32_t num = ucm_twin_num_blocks(args->tokens, request,
					   args->block_size);
	struct ucm_twin_code_item item = { 0, 0, 0, 0, 0, 0, 0, 0, 0 };
	int32_t slot;

	/* the same for a whole warp */
	item.num_heads = args->sum ? args->num_heads : 1;
	if (block >= num || block >= args->max_blocks)
		return item;
	slot = *UCM_AT(const int32_t,
		       args->tables +
			       (request * args->table_stride + block) * 4);
	item.wanted = 1;
	item.there = slot >= 0 && (uint64_t)slot < args->num_slots;
	item.part = thread % args->team;
	item.first_head = row / args->rows;
	item.slot = args->base + (uint64_t)slot * args->stride_bytes;
	item.query = args->queries + 8 * (request * args->query_stride +
					  (uint64_t)row * args->row_words);
	item.score = args->scores +
		     4 * (request * args->stride_request +
			  row * args->stride_row + (uint64_t)block * each);
	if (item.there)
		item.tokens = ucm_least_of(
			*UCM_AT(const uint32_t, item.slot + args->tokens_at),
			args->block_size);
	return item;
}

/* Rows that are compared: tokens, or digits. */
UCM_INLINE uint32_t
ucm_twin_code_rows(const struct ucm_twin_code_score_args *args, uint32_t mode,
		   const struct ucm_twin_code_item *item)
{
	if (mode == UCM_TWIN_CODE_COUNT)
		return item->there ? args->digits : 0;
	return item->tokens;
}

UCM_INLINE uint64_t
ucm_twin_code_head_at(const struct ucm_twin_code_score_args *args,
		      const struct ucm_twin_code_item *item, uint32_t h)
{
	return item->slot + (item->first_head + h) * args->head_bytes;
}

UCM_INLINE uint64_t
ucm_twin_code_query_at(const struct ucm_twin_code_score_args *args,
		       const struct ucm_twin_code_item *item, uint32_t h)
{
	return item->query + 8ull * h * args->row_words;
}

struct ucm_twin_two {
	uint32_t of[2];
};

/* The distances of rows row and row + 1, row being even. */
UCM_INLINE struct ucm_twin_two
ucm_twin_distances(const struct ucm_twin_code_score_args *args, uint64_t head,
		   uint64_t query, uint32_t row)
{
	struct ucm_twin_two out = { { 0, 0 } };
	uint64_t plane = query + 8;

	for (uint32_t w = 0; w < args->words; w++) {
		const struct ucm_twin_words two =
			*UCM_AT(const struct ucm_twin_words,
				head + 8 * ucm_code_at(row, args->words, w));

		for (uint32_t p = 0; p < args->planes; p++, plane += 8) {
			uint64_t bits = *UCM_AT(const uint64_t, plane);
			uint32_t low = (uint32_t)bits;
			uint32_t high = (uint32_t)(bits >> 32);
			uint32_t weight = args->weights[p];

			out.of[0] += weight *
				     (UCM_TWIN_ONES(two.word[0] ^ low) +
				      UCM_TWIN_ONES(two.word[1] ^ high));
			out.of[1] += weight *
				     (UCM_TWIN_ONES(two.word[2] ^ low) +
				      UCM_TWIN_ONES(two.word[3] ^ high));
		}
	}
	return out;
}

/* A token's score, before the unit. norms: address of the head's, or 0. */
UCM_INLINE float
ucm_twin_token_score(const struct ucm_twin_code_score_args *args,
		     uint32_t distance, uint64_t norms, uint32_t token)
{
	float score;

	if (args->hamming)
		return (float)-(int32_t)distance; /* 0, not -0 */
	score = (float)ucm_code_agreement(args->bits, distance);
	if (!norms)
		return score;
	return score * ucm_float_of_bfloat16(*UCM_AT(const uint16_t,
						     norms + 2 * token));
}

UCM_INLINE uint64_t
ucm_twin_code_norms(const struct ucm_twin_code_score_args *args, uint64_t head)
{
	return args->norms_at ? head + args->norms_at : 0;
}

/* ---- a thread's part of a head ---- */

struct ucm_twin_code_part {
	uint64_t sum; /* or the least */
	float best;
};

UCM_INLINE struct ucm_twin_code_part
ucm_twin_code_join(uint32_t mode, struct ucm_twin_code_part a,
		   struct ucm_twin_code_part b)
{
	if (mode == UCM_TWIN_CODE_LEAST)
		a.sum = b.sum < a.sum ? b.sum : a.sum;
	else if (mode == UCM_TWIN_CODE_BEST)
		a.best = b.best > a.best ? b.best : a.best;
	else
		a.sum += b.sum;
	return a;
}

UCM_INLINE struct ucm_twin_code_part
ucm_twin_code_take(const struct ucm_twin_code_score_args *args, uint32_t mode,
		   const struct ucm_twin_code_item *item, uint32_t h)
{
	struct ucm_twin_code_part all = { 0, -INFINITY }, one = { 0, 0 };
	uint64_t head = ucm_twin_code_head_at(args, item, h);
	uint64_t query = ucm_twin_code_query_at(args, item, h);
	uint32_t rows = ucm_twin_code_rows(args, mode, item);

	if (mode == UCM_TWIN_CODE_LEAST)
		all.sum = UINT32_MAX;
	for (uint32_t i = 2 * item->part; i < rows; i += 2 * args->team) {
		const struct ucm_twin_two two =
			ucm_twin_distances(args, head, query, i);

		UCM_UNROLL
		for (uint32_t k = 0; k < 2; k++) {
			if (i + k >= rows)
				continue;
			one.sum = two.of[k];
			if (mode == UCM_TWIN_CODE_COUNT)
				one.sum <<= i + k;
			if (mode == UCM_TWIN_CODE_BEST)
				one.best = ucm_twin_token_score(
					args, two.of[k],
					ucm_twin_code_norms(args, head), i + k);
			all = ucm_twin_code_join(mode, all, one);
		}
	}
	return all;
}

/* ---- a head's score ---- */

UCM_INLINE float ucm_twin_code_unit(uint64_t query)
{
	return ucm_float_of(*UCM_AT(const uint32_t, query));
}

UCM_INLINE float
ucm_twin_code_sum_score(const struct ucm_twin_code_score_args *args,
			const struct ucm_twin_code_item *item, uint64_t sum,
			float unit)
{
	double all = (double)-(int64_t)sum;

	if (!args->hamming)
		all = (double)((uint64_t)(UCM_CODE_LEVELS - 1) * args->bits *
			       item->tokens) -
		      2 * (double)sum;
	return (float)(all * (double)unit);
}

/* Of all parts; of a block that is not there it is not looked at. */
UCM_INLINE float
ucm_twin_code_run(const struct ucm_twin_code_score_args *args, uint32_t mode,
		  const struct ucm_twin_code_item *item, uint32_t h,
		  struct ucm_twin_code_part all)
{
	uint64_t query = ucm_twin_code_query_at(args, item, h);
	float unit, best = -INFINITY;

	if (!item->there)
		return 0;
	unit = ucm_twin_code_unit(query);
	if (mode == UCM_TWIN_CODE_COUNT) {
		uint64_t most = ((uint64_t)1 << args->digits) - 1;

		all.sum -= (most - item->tokens) *
			   *UCM_AT(const uint32_t, query + 4);
	}
	if (mode == UCM_TWIN_CODE_COUNT || mode == UCM_TWIN_CODE_SUM)
		return ucm_twin_code_sum_score(args, item, all.sum, unit);
	if (item->tokens && mode == UCM_TWIN_CODE_BEST)
		best = all.best + 0.0f; /* 0 has one sign */
	else if (item->tokens)
		best = ucm_twin_token_score(args, (uint32_t)all.sum, 0, 0);
	return best * unit;
}

/* ---- sums of normed tokens ---- */

struct ucm_twin_pair_scores {
	float of[2];
};

/* Of the thread's two tokens in a step; 0 where there are none. */
UCM_INLINE struct ucm_twin_pair_scores
ucm_twin_code_pair(const struct ucm_twin_code_score_args *args,
		   const struct ucm_twin_code_item *item, uint32_t h,
		   uint32_t step)
{
	uint32_t token = 2 * (step * args->team + item->part);
	uint64_t head = ucm_twin_code_head_at(args, item, h);
	struct ucm_twin_pair_scores out = { { 0, 0 } };
	struct ucm_twin_two two;

	if (token >= item->tokens)
		return out;
	two = ucm_twin_distances(args, head,
				 ucm_twin_code_query_at(args, item, h), token);
	UCM_UNROLL
	for (uint32_t k = 0; k < 2; k++) {
		if (token + k < item->tokens)
			out.of[k] = ucm_twin_token_score(
				args, two.of[k],
				ucm_twin_code_norms(args, head), token + k);
	}
	return out;
}

/* Steps of a block. */
UCM_INLINE uint32_t
ucm_twin_code_steps(const struct ucm_twin_code_score_args *args)
{
	return (args->block_size + 2 * args->team - 1) / (2 * args->team);
}

UCM_INLINE float
ucm_twin_code_normed(const struct ucm_twin_code_score_args *args,
		     const struct ucm_twin_code_item *item, uint32_t h,
		     double sum)
{
	uint64_t query = ucm_twin_code_query_at(args, item, h);

	return item->there ? (float)(sum * (double)ucm_twin_code_unit(query))
			   : 0;
}

/* ---- what is written ---- */

/* score: of the item's one head; all: the sum over its heads. */
UCM_INLINE void
ucm_twin_code_item_end(const struct ucm_twin_code_score_args *args,
		       const struct ucm_twin_code_item *item, float score,
		       double all)
{
	if (!item->wanted || item->part)
		return;
	if (args->sum)
		score = (float)all;
	*UCM_AT(float, item->score) = item->there ? score
						  : ucm_float_of(0x7fc00000u);
}

/* The scores of two tokens, of all heads that are wanted. */
UCM_INLINE struct ucm_twin_pair_scores
ucm_twin_code_two(const struct ucm_twin_code_score_args *args,
		  const struct ucm_twin_code_item *item, uint32_t token)
{
	struct ucm_twin_pair_scores out = { { 0, 0 } };

	for (uint32_t h = 0; h < item->num_heads; h++) {
		uint64_t head = ucm_twin_code_head_at(args, item, h);
		uint64_t query = ucm_twin_code_query_at(args, item, h);
		uint64_t norms = ucm_twin_code_norms(args, head);
		const struct ucm_twin_two two =
			ucm_twin_distances(args, head, query, token);

		UCM_UNROLL
		for (uint32_t k = 0; k < 2; k++) {
			if (token + k < item->tokens)
				out.of[k] += ucm_twin_token_score(
						     args, two.of[k], norms,
						     token + k) *
					     ucm_twin_code_unit(query);
		}
	}
	return out;
}

UCM_INLINE void ucm_twin_code_each(const struct ucm_twin_code_score_args *args,
				   const struct ucm_twin_code_item *item)
{
	float none = item->there ? -INFINITY : ucm_float_of(0x7fc00000u);

	for (uint32_t i = 2 * item->part; item->wanted && i < args->block_size;
	     i += 2 * args->team) {
		struct ucm_twin_pair_scores two = { { none, none } };

		if (i < item->tokens)
			two = ucm_twin_code_two(args, item, i);
		UCM_UNROLL
		for (uint32_t k = 0; k < 2; k++) {
			if (i + k < args->block_size)
				*UCM_AT(float, item->score + (i + k) * 4ull) =
					i + k < item->tokens ? two.of[k] : none;
		}
	}
}

#endif
