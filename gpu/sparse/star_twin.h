/* SPDX-License-Identifier: Apache-2.0 */
/*
 * star_twin.h - what a thread of the GPU does for merged channels (KVStar).
 *
 * Build. A CTA has a head of a block, a warp a group of tokens, and a thread some of
 * its channels. Between ucm_twin_star_take() and _store() the warp's threads find the
 * largest mean of all, from which int8 has its scale.
 *
 * Scores. A team of 16 threads has an item: 4 rows of the query and a head of a
 * block; for GROUP all rows, one after the other, and for BLOCK all heads, too. A
 * thread has the groups i, i + 16, ..., which are the lanes of sparse/kernels_star.h,
 * and adds up a product channel by channel: so the bits are the same. Between
 * _star_find(), _star_weigh() and _star_put() the team exchanges: first the largest
 * products, then the weights, in a tree.
 *
 * The vote. A CTA has a row: it looks for the largest score, makes shares, of which
 * 16 threads add up each 16th in order, and divides. A second kernel adds up the
 * rows, a block for each thread.
 */
#ifndef UCM_GPU_SPARSE_STAR_TWIN_H
#define UCM_GPU_SPARSE_STAR_TWIN_H

#include "gpu/sparse/build_twin.h"
#include "sparse/rerope.h"

#define UCM_TWIN_STAR_WARPS (UCM_TWIN_BUILD_THREADS / UCM_WARP)

/* ---- representations ---- */

/* Of the CTA: each warp's means. */
struct ucm_twin_star_means {
	float of[UCM_TWIN_STAR_WARPS][UCM_REPR_HEAD_DIM_MAX];
};

/* The largest mean so far, and are all finite? */
struct ucm_twin_star_most {
	float most;
	uint32_t finite;
};

UCM_INLINE struct ucm_twin_star_most
ucm_twin_star_join(struct ucm_twin_star_most a, struct ucm_twin_star_most b)
{
	a.most = b.most > a.most ? b.most : a.most;
	a.finite &= b.finite;
	return a;
}

/* The first group that has one of the tokens that were written. */
UCM_INLINE uint32_t ucm_twin_star_first(const struct ucm_twin_star_build_args *args,
					const struct ucm_twin_block *block,
					uint64_t cta)
{
	if (!args->from.slots)
		return 0;
	return ucm_twin_run_first(&args->from, cta / args->from.num_heads,
				  block->tokens - 1) / args->merge;
}

/* Tokens of a group; 0: the block has none there. */
UCM_INLINE uint32_t
ucm_twin_star_tokens(const struct ucm_twin_star_build_args *args,
		     const struct ucm_twin_block *block, uint32_t group)
{
	uint32_t first = ucm_least_of(group, block->tokens) * args->merge;

	return first < block->tokens
		       ? ucm_least_of(block->tokens - first, args->merge) : 0;
}

UCM_INLINE uint32_t
ucm_twin_star_channel(const struct ucm_twin_star_build_args *args,
		      uint32_t head, uint32_t i)
{
	if (!args->channels)
		return i;
	return *UCM_AT(const uint16_t,
		       args->channels +
			       2 * ((uint64_t)head * args->kept + i));
}

UCM_INLINE float
ucm_twin_star_mean(const struct ucm_twin_star_build_args *args,
		   const struct ucm_twin_block *block, uint32_t group,
		   uint32_t tokens, uint32_t i)
{
	const struct ucm_twin_rows_args *keys = &args->from.keys;
	uint64_t row = ucm_twin_row_at(keys, block->block, group * args->merge,
				       block->head);
	uint32_t channel = ucm_twin_star_channel(args, block->head, i);
	float sum = 0;

	for (uint32_t t = 0; t < tokens; t++) {
		sum += ucm_twin_row_load(keys, row, channel);
		row += ucm_twin_row_step(keys);
	}
	return sum / (float)tokens;
}

UCM_INLINE struct ucm_twin_star_most
ucm_twin_star_take(const struct ucm_twin_star_build_args *args,
		   const struct ucm_twin_block *block, uint32_t group,
		   uint32_t thread, struct ucm_twin_star_means *means)
{
	uint32_t tokens = ucm_twin_star_tokens(args, block, group);
	struct ucm_twin_star_most all = { 0, 1 }, one;

	for (uint32_t i = thread % UCM_WARP; tokens && i < args->kept;
	     i += UCM_WARP) {
		float mean = ucm_twin_star_mean(args, block, group, tokens, i);

		means->of[thread / UCM_WARP][i] = mean;
		one.most = fabsf(mean);
		one.finite = ucm_float_finite(mean);
		all = ucm_twin_star_join(all, one);
	}
	return all;
}

/* most: of all the warp's threads. */
UCM_INLINE void
ucm_twin_star_store(const struct ucm_twin_star_build_args *args,
		    const struct ucm_twin_block *block, uint32_t group,
		    uint32_t thread, struct ucm_twin_star_most most,
		    const struct ucm_twin_star_means *means)
{
	uint32_t tokens = ucm_twin_star_tokens(args, block, group);
	uint32_t bytes = ucm_twin_item_bytes(args->dtype);
	float scale = most.finite ? ucm_scale_for(most.most, INT8_MAX)
				  : ucm_float_of(0x7fc00000u);

	for (uint32_t i = thread % UCM_WARP; i < args->kept; i += UCM_WARP) {
		uint64_t row = (uint64_t)block->head * args->kept + i;
		float mean = tokens ? means->of[thread / UCM_WARP][i] : 0;

		ucm_twin_store(block->slot + (row * args->lanes + group) * bytes,
			       args->dtype, mean, scale, UCM_ROUND_NEAREST);
	}
	if (args->dtype == UCM_DTYPE_INT8 && thread % UCM_WARP == 0)
		*UCM_AT(float, block->slot + args->scales_at +
				       4 * ((uint64_t)block->head * args->lanes +
					    group)) = tokens ? scale : 0;
}

/* How many groups there are, and zeros after that. */
UCM_INLINE void
ucm_twin_star_tail(const struct ucm_twin_star_build_args *args,
		   const struct ucm_twin_block *block, uint32_t thread)
{
	if (block->head)
		return;
	if (!thread)
		*UCM_AT(uint32_t, block->slot + args->groups_at) =
			ucm_blocks_of(block->tokens, args->merge);
	for (uint64_t i = args->groups_at + 4 + 4 * thread; i < args->bytes;
	     i += 4 * UCM_TWIN_BUILD_THREADS)
		*UCM_AT(uint32_t, block->slot + i) = 0;
}

/* ---- queries ---- */

/* A number of a prepared query is a thread's: of each key head's channels those of
 * all rows. */
UCM_INLINE void
ucm_twin_star_query_thread(const struct ucm_twin_star_query_args *args,
			   uint32_t thread, uint32_t request)
{
	uint32_t row = thread % args->rows, i = thread / args->rows;
	uint32_t head = i / args->kept, token = row / args->group;
	uint32_t channel = i % args->kept;

	if (head >= args->num_heads)
		return;
	if (args->channels)
		channel = *UCM_AT(const uint16_t, args->channels + 2ull * i);
	*UCM_AT(float, args->out + 4 * (request * args->out_stride + thread)) =
		ucm_twin_head_load(&args->query,
				   (int64_t)request * args->num_queries + token,
				   (int64_t)head * args->group +
					   row % args->group, channel);
}

/* ---- scores ---- */

struct ucm_twin_star_item {
	int wanted, there;
	uint32_t lane;        /* of the team */
	uint32_t block, head, row; /* the first ones */
	uint32_t groups;
	uint64_t slot, query; /* addresses */
	uint64_t score, weight;
};

UCM_INLINE struct ucm_twin_star_item
ucm_twin_star_item_find(const struct ucm_twin_star_score_args *args,
			uint32_t thread, uint32_t request)
{
	uint32_t index = thread / UCM_STAR_LANES;
	uint32_t heads = args->per == UCM_SCORE_BLOCK ? 1 : args->num_heads;
	uint32_t tiles = 1, num;
	struct ucm_twin_star_item item = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 };
	uint64_t at = 4ull * request * args->stride_request;
	int32_t slot;

	if (args->per == UCM_SCORE_HEAD)
		tiles = ucm_blocks_of(args->rows, UCM_TWIN_STAR_ROWS);
	num = ucm_twin_num_blocks(args->tokens, request, args->block_size);
	item.row = index % tiles * UCM_TWIN_STAR_ROWS;
	item.head = index / tiles % heads;
	item.block = index / tiles / heads;
	if (item.block >= num || item.block >= args->max_blocks)
		return item;
	slot = *UCM_AT(const int32_t,
		       args->tables +
			       4 * (request * args->table_stride + item.block));
	item.wanted = 1;
	item.there = slot >= 0 && (uint64_t)slot < args->num_slots;
	item.lane = thread % UCM_STAR_LANES;
	item.slot = args->base + (uint64_t)slot * args->stride_bytes;
	item.query = args->queries + 4ull * request * args->query_stride;
	item.score = args->scores + at;
	item.weight = args->weights ? args->weights + at : 0;
	if (item.there)
		item.groups = ucm_least_of(
			*UCM_AT(const uint32_t, item.slot + args->groups_at),
			args->lanes);
	return item;
}

/* What a thread has of 4 rows: the largest products of its groups, NaN if one is;
 * and the sums of weights. */
struct ucm_twin_star_rows {
	float best[UCM_TWIN_STAR_ROWS], sums[UCM_TWIN_STAR_ROWS];
};

/* NaN stays. */
UCM_INLINE float ucm_twin_star_larger(float a, float b)
{
	return b > a || b != b ? b : a;
}

/* The products of a group with 4 rows, of which there may be less. */
UCM_INLINE void
ucm_twin_star_products(const struct ucm_twin_star_score_args *args,
		       uint32_t dtype, const struct ucm_twin_star_item *item,
		       uint32_t head, uint32_t row, uint32_t group,
		       float *products)
{
	uint32_t bytes = ucm_twin_item_bytes(dtype);
	uint64_t at = item->slot +
		      ((uint64_t)head * args->kept * args->lanes + group) * bytes;
	uint64_t query = item->query +
			 4 * ((uint64_t)head * args->kept * args->rows + row);

	UCM_UNROLL
	for (uint32_t j = 0; j < UCM_TWIN_STAR_ROWS; j++)
		products[j] = 0;
	for (uint32_t c = 0; c < args->kept; c++) {
		float x = dtype == UCM_DTYPE_INT8
				  ? (float)*UCM_AT(const int8_t, at)
				  : ucm_twin_load(at, dtype);

		UCM_UNROLL
		for (uint32_t j = 0; j < UCM_TWIN_STAR_ROWS; j++) {
			if (row + j < args->rows)
				products[j] +=
					x * *UCM_AT(const float, query + j * 4);
		}
		at += (uint64_t)args->lanes * bytes;
		query += 4ull * args->rows;
	}
	if (dtype != UCM_DTYPE_INT8)
		return;
	at = item->slot + args->scales_at +
	     4 * ((uint64_t)head * args->lanes + group);
	UCM_UNROLL
	for (uint32_t j = 0; j < UCM_TWIN_STAR_ROWS; j++)
		products[j] *= *UCM_AT(const float, at);
}

/* Take a product into what there is of a row; after the first one. */
UCM_INLINE void ucm_twin_star_add(float *best, float *sum, float product,
				  int weigh, float scale)
{
	float e;

	if (weigh) {
		e = ucm_weight(-fabsf(product - *best) * scale);
		*sum = product > *best ? *sum * e + 1.0f : *sum + e;
	}
	*best = ucm_twin_star_larger(*best, product);
}

UCM_INLINE struct ucm_twin_star_rows
ucm_twin_star_find(const struct ucm_twin_star_score_args *args, uint32_t dtype,
		   const struct ucm_twin_star_item *item, uint32_t head,
		   uint32_t row)
{
	struct ucm_twin_star_rows all;

	UCM_UNROLL
	for (uint32_t j = 0; j < UCM_TWIN_STAR_ROWS; j++) {
		all.best[j] = -INFINITY;
		all.sums[j] = 1;
	}
	for (uint32_t i = item->lane; i < item->groups; i += UCM_STAR_LANES) {
		float products[UCM_TWIN_STAR_ROWS];

		ucm_twin_star_products(args, dtype, item, head, row, i,
				       products);
		UCM_UNROLL
		for (uint32_t j = 0; j < UCM_TWIN_STAR_ROWS; j++) {
			if (i == item->lane)
				all.best[j] = products[j];
			else
				ucm_twin_star_add(&all.best[j], &all.sums[j],
						  products[j],
						  args->weights != 0,
						  args->scale);
		}
	}
	return all;
}

/* A thread's part of a row's weights; most: the largest of the team. */
UCM_INLINE float ucm_twin_star_weigh(const struct ucm_twin_star_score_args *args,
				     const struct ucm_twin_star_item *item,
				     float best, float sum, float most)
{
	if (!item->groups)
		return 0;
	most += 0.0f; /* 0 has one sign */
	return sum * ucm_weight((best - most) * args->scale);
}

UCM_INLINE float ucm_twin_star_score(const struct ucm_twin_star_item *item,
				     float most)
{
	return item->there ? most + 0.0f : ucm_float_of(0x7fc00000u);
}

/* With HEAD: rows of a head, by one thread. */
UCM_INLINE void ucm_twin_star_put(const struct ucm_twin_star_score_args *args,
				  const struct ucm_twin_star_item *item,
				  const struct ucm_twin_star_rows *all)
{
	if (!item->wanted || item->lane)
		return;
	UCM_UNROLL
	for (uint32_t j = 0; j < UCM_TWIN_STAR_ROWS; j++) {
		uint32_t row = item->row + j, query = row / args->group;
		uint64_t at = ((uint64_t)query * args->num_heads + item->head) *
				      args->group +
			      row % args->group;

		if (row >= args->rows)
			continue;
		at = 4 * (at * args->stride_row + item->block);
		*UCM_AT(float, item->score + at) =
			ucm_twin_star_score(item, all->best[j]);
		if (item->weight)
			*UCM_AT(float, item->weight + at) =
				item->there ? all->sums[j]
					    : ucm_float_of(0x7fc00000u);
	}
}

/* With GROUP and BLOCK: the sum of rows so far. */
UCM_INLINE float ucm_twin_star_sum(const struct ucm_twin_star_score_args *args,
				   const struct ucm_twin_star_item *item,
				   uint32_t row,
				   const struct ucm_twin_star_rows *all,
				   float sum)
{
	UCM_UNROLL
	for (uint32_t j = 0; j < UCM_TWIN_STAR_ROWS; j++) {
		float score = ucm_twin_star_score(item, all->best[j]);

		if (row + j < args->rows)
			sum = row + j ? sum + score : score;
	}
	return sum;
}

UCM_INLINE void ucm_twin_star_put_sum(const struct ucm_twin_star_score_args *args,
				      const struct ucm_twin_star_item *item,
				      float sum)
{
	uint64_t row = item->head;

	if (item->wanted && !item->lane)
		*UCM_AT(float, item->score +
				       4 * (row * args->stride_row +
					    item->block)) = sum;
}

/* ---- the vote ---- */

/* Of the CTA. */
struct ucm_twin_vote {
	float tops[UCM_TWIN_THREADS];
	float lanes[UCM_STAR_LANES];
	uint32_t bad; /* a score that has no share */
};

UCM_INLINE uint32_t ucm_twin_vote_blocks(const struct ucm_twin_vote_args *args,
					 uint32_t request)
{
	return ucm_least_of(ucm_twin_num_blocks(args->tokens, request,
						args->block_size),
			    args->max_blocks);
}

UCM_INLINE uint64_t ucm_twin_vote_row(const struct ucm_twin_vote_args *args,
				      uint64_t base, uint32_t request,
				      uint32_t row)
{
	return base + 4 * (request * args->stride_request +
			   row * args->stride_row);
}

UCM_INLINE void ucm_twin_vote_top(uint64_t scores, uint32_t num,
				  uint32_t thread, struct ucm_twin_vote *s)
{
	float top = -INFINITY;

	for (uint32_t i = thread; i < num; i += UCM_TWIN_THREADS) {
		float score = *UCM_AT(const float, scores + i * 4ull);

		if (!(score < INFINITY))
			s->bad = 1;
		top = score > top ? score : top;
	}
	s->tops[thread] = top;
}

UCM_INLINE float ucm_twin_vote_top_of_all(const struct ucm_twin_vote *s)
{
	float top = s->tops[0];

	for (uint32_t i = 1; i < UCM_TWIN_THREADS; i++)
		top = s->tops[i] > top ? s->tops[i] : top;
	return top;
}

/* Of a row in which nothing is to be voted for, 0. */
UCM_INLINE void ucm_twin_vote_shares(const struct ucm_twin_vote_args *args,
				     uint64_t scores, uint64_t weights,
				     uint32_t num, uint32_t thread,
				     const struct ucm_twin_vote *s)
{
	float top = ucm_twin_vote_top_of_all(s);

	for (uint32_t i = thread; i < num; i += UCM_TWIN_THREADS) {
		float share = *UCM_AT(const float, weights + i * 4ull);
		float score = *UCM_AT(const float, scores + i * 4ull);

		share *= ucm_weight((score - top) * args->scale);
		*UCM_AT(float, weights + i * 4ull) =
			s->bad ? ucm_float_of(0x7fc00000u)
			       : top > -INFINITY ? share : 0;
	}
}

UCM_INLINE void ucm_twin_vote_lane(uint64_t weights, uint32_t num,
				   uint32_t thread, struct ucm_twin_vote *s)
{
	float sum = 0;

	if (thread >= UCM_STAR_LANES)
		return;
	for (uint32_t i = thread; i < num; i += UCM_STAR_LANES)
		sum += *UCM_AT(const float, weights + i * 4ull);
	s->lanes[thread] = sum;
}

UCM_INLINE void ucm_twin_vote_divide(uint64_t weights, uint32_t num,
				     uint32_t thread,
				     const struct ucm_twin_vote *s)
{
	float lanes[UCM_STAR_LANES];

	UCM_UNROLL
	for (uint32_t i = 0; i < UCM_STAR_LANES; i++)
		lanes[i] = s->lanes[i];
	UCM_UNROLL
	for (uint32_t n = UCM_STAR_LANES / 2; n; n /= 2) {
		UCM_UNROLL
		for (uint32_t i = 0; i < UCM_STAR_LANES / 2; i++) {
			if (i < n)
				lanes[i] += lanes[i + n];
		}
	}
	for (uint32_t i = thread; i < num && lanes[0] != 0;
	     i += UCM_TWIN_THREADS)
		*UCM_AT(float, weights + i * 4ull) /= lanes[0];
}

/* A block's votes of all rows. */
UCM_INLINE void ucm_twin_votes_thread(const struct ucm_twin_vote_args *args,
				      uint32_t block, uint32_t request)
{
	float sum = 0;

	if (block >= ucm_twin_vote_blocks(args, request))
		return;
	for (uint32_t row = 0; row < args->rows; row++)
		sum += *UCM_AT(const float,
			       ucm_twin_vote_row(args, args->weights, request,
						 row) + block * 4ull);
	*UCM_AT(float, args->votes + 4 * (request * args->votes_stride +
					  block)) = sum;
}

#endif
