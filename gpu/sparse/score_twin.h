/* SPDX-License-Identifier: Apache-2.0 */
/*
 * score_twin.h - what a thread of the GPU adds to a score.
 *
 * The sums are those of sparse/kernels.c, bit by bit: 32 lanes, lane i takes the
 * elements i, i + 32, ..., and then they are added in a tree. A thread loads 16
 * bytes at a time, which are 4, 8 or 16 neighbouring elements, so it is as many
 * lanes; and a team of 8, 4 or 2 threads is a whole row. The tree's upper levels
 * exchange sums between the threads of a team, its lower ones are in a thread.
 *
 *	item = a row of a block and a request; with sum, the block's rows together
 *	team = the threads of an item, neighbours in a warp
 *
 * Neighbouring teams have the rows of one block, so that where there are several
 * query heads to a key head they load the same bytes together.
 *
 * Between ucm_twin_item_lanes() and _end() whoever runs this exchanges: for
 * n = ucm_twin_team() / 2, ... 2, 1 each thread adds to its lanes those of the
 * thread whose number differs in bit n, all at the same time.
 */
#ifndef UCM_GPU_SPARSE_SCORE_TWIN_H
#define UCM_GPU_SPARSE_SCORE_TWIN_H

#include "gpu/copy/device.h"
#include "gpu/sparse/twin_args.h"
#include "sparse/budget.h"
#include "sparse/number.h"

/* The bits of a mask that are set. */
#ifdef __CUDACC__
#define UCM_TWIN_ONES(mask) ((uint32_t)__popc(mask))
#else
#define UCM_TWIN_ONES(mask) ((uint32_t)__builtin_popcount(mask))
#endif

#define UCM_TWIN_LOAD_BYTES 16
#define UCM_TWIN_LANES_MAX  16 /* of a thread */

/* Where a dtype is said: int8 whose query is of whole numbers, too. Its lanes are
 * 16, of two neighbouring elements each (kernels_core.h). */
#define UCM_TWIN_STEPS 0x100u

struct ucm_twin_words {
	uint32_t word[UCM_TWIN_LOAD_BYTES / 4];
} __attribute__((aligned(UCM_TWIN_LOAD_BYTES)));

UCM_INLINE uint32_t ucm_twin_item_bytes(uint32_t dtype)
{
	if (dtype == UCM_DTYPE_INT8 || dtype == UCM_TWIN_STEPS)
		return 1;
	return dtype == UCM_DTYPE_FLOAT32 ? 4 : 2;
}

/* Threads of a team: each loads as many elements as there are. */
UCM_INLINE uint32_t ucm_twin_team(uint32_t dtype)
{
	return UCM_TWIN_LANES * ucm_twin_item_bytes(dtype) /
	       UCM_TWIN_LOAD_BYTES;
}

/* Lanes of a thread. */
UCM_INLINE uint32_t ucm_twin_each(uint32_t dtype)
{
	uint32_t elements = UCM_TWIN_LOAD_BYTES / ucm_twin_item_bytes(dtype);

	return dtype == UCM_TWIN_STEPS ? elements / 2 : elements;
}

/* Are a row's products multiplied by a scale? */
UCM_INLINE int ucm_twin_scaled(uint32_t dtype)
{
	return dtype == UCM_DTYPE_INT8 || dtype == UCM_TWIN_STEPS;
}

/* As ucm_float_of_float16(), without a branch. */
UCM_INLINE float ucm_twin_half(uint32_t bits)
{
	float size = ucm_float_of((bits & 0x7fff) << 13) * 0x1p112f;
	uint32_t high = (bits & 0x7c00) == 0x7c00 ? 0x7f800000u : 0;

	return ucm_float_of(ucm_float_bits(size) | high |
			    (bits & 0x8000) << 16);
}

/* A number of a key or query. */
UCM_INLINE float ucm_twin_load(uint64_t at, uint32_t dtype)
{
	if (dtype == UCM_DTYPE_FLOAT32)
		return *UCM_AT(const float, at);
	if (dtype == UCM_DTYPE_FLOAT16)
		return ucm_twin_half(*UCM_AT(const uint16_t, at));
	return ucm_float_of_bfloat16(*UCM_AT(const uint16_t, at));
}

/* Where a head of a token has its row. */
UCM_INLINE uint64_t ucm_twin_row_at(const struct ucm_twin_rows_args *rows,
				    int64_t block, uint32_t token,
				    uint32_t head)
{
	int64_t at = block * rows->stride_block + token * rows->stride_token +
		     head * rows->stride_head;

	return rows->base +
	       (uint64_t)(at * ucm_twin_item_bytes(rows->dtype));
}

/* From a token's row to the next one's. */
UCM_INLINE uint64_t ucm_twin_row_step(const struct ucm_twin_rows_args *rows)
{
	return (uint64_t)(rows->stride_token *
			  ucm_twin_item_bytes(rows->dtype));
}

UCM_INLINE float ucm_twin_row_load(const struct ucm_twin_rows_args *rows,
				   uint64_t row, uint32_t channel)
{
	return ucm_twin_load(row + (uint64_t)channel *
					   ucm_twin_item_bytes(rows->dtype),
			     rows->dtype);
}

UCM_INLINE float ucm_twin_head_load(const struct ucm_twin_heads_args *heads,
				    int64_t query, int64_t head,
				    uint32_t channel)
{
	int64_t at = query * heads->stride_query + head * heads->stride_head +
		     channel;

	return ucm_twin_load(heads->base + (uint64_t)(at *
				     ucm_twin_item_bytes(heads->dtype)),
			     heads->dtype);
}

/* Element i of what was loaded. */
UCM_INLINE float ucm_twin_element(const struct ucm_twin_words *words,
				  uint32_t dtype, uint32_t i)
{
	switch (dtype) {
	case UCM_DTYPE_FLOAT32:
		return ucm_float_of(words->word[i]);
	case UCM_DTYPE_FLOAT16:
		return ucm_twin_half(words->word[i / 2] >> 16 * (i % 2) &
				     0xffff);
	case UCM_DTYPE_INT8:
		return (float)(int8_t)(words->word[i / 4] >> 8 * (i % 4));
	default:
		return ucm_float_of(i % 2 ? words->word[i / 2] & 0xffff0000u
					  : words->word[i / 2] << 16);
	}
}

/* ---- the query ---- */

/* Element i of a query head; past its end, 0. */
UCM_INLINE float ucm_twin_query_element(const struct ucm_twin_query_args *args,
					int64_t query, uint32_t head,
					uint32_t i)
{
	return i < args->head_dim
		       ? ucm_twin_head_load(&args->query, query, head, i) : 0;
}

/* An element of a prepared query is a thread's: the mean of the row's heads; with
 * MINMAX that of their positive parts, and after these of the negative ones. */
UCM_INLINE void ucm_twin_query_thread(const struct ucm_twin_query_args *args,
				      uint32_t thread, uint32_t query)
{
	uint32_t row = thread / args->width, i = thread % args->width;
	int negative = i >= args->padded;
	uint32_t channel = negative ? i - args->padded : i;
	float sum = 0;

	if (row >= args->rows)
		return;
	for (uint32_t j = 0; j < args->merged; j++) {
		float x = ucm_twin_query_element(args, query,
						 row * args->merged + j,
						 channel);

		if (!args->minmax || (x < 0) == negative)
			sum += x;
	}
	if (args->merged > 1)
		sum /= (float)args->merged;
	*UCM_AT(float, args->out + (query * args->out_stride + thread) *
				       sizeof(float)) = sum;
}

/* ---- the query in steps ---- */

/* Of the CTA, which has a row. */
struct ucm_twin_steps {
	float row[UCM_REPR_HEAD_DIM_MAX];
	float scale;
};

/* The mean of a row's heads. */
UCM_INLINE float ucm_twin_query_mean(const struct ucm_twin_query_args *args,
				     uint32_t query, uint32_t row,
				     uint32_t channel)
{
	float sum = 0;

	for (uint32_t j = 0; j < args->merged; j++)
		sum += ucm_twin_query_element(args, query,
					      row * args->merged + j, channel);
	return args->merged > 1 ? sum / (float)args->merged : sum;
}

UCM_INLINE void ucm_twin_steps_take(const struct ucm_twin_query_args *args,
				    uint32_t row, uint32_t query,
				    uint32_t thread, struct ucm_twin_steps *s)
{
	for (uint32_t i = thread; i < args->width; i += UCM_TWIN_BUILD_THREADS)
		s->row[i] = ucm_twin_query_mean(args, query, row, i);
}

/* By one thread. A number that is not finite makes it NaN, and so the scores. */
UCM_INLINE void ucm_twin_steps_scale(const struct ucm_twin_query_args *args,
				     uint32_t thread, struct ucm_twin_steps *s)
{
	int finite = 1;

	if (thread)
		return;
	for (uint32_t i = 0; i < args->width; i++)
		finite &= ucm_float_finite(s->row[i]);
	s->scale = finite ? ucm_scale_of(s->row, args->width, INT16_MAX)
			  : ucm_float_of(0x7fc00000u);
}

/* The rows, and after them the steps. */
UCM_INLINE void ucm_twin_steps_store(const struct ucm_twin_query_args *args,
				     uint32_t row, uint32_t query,
				     uint32_t thread,
				     const struct ucm_twin_steps *s)
{
	uint64_t out = args->out + query * args->out_stride * 4;
	uint64_t at = out + (uint64_t)row * args->width * 2;

	for (uint32_t i = thread; i < args->width; i += UCM_TWIN_BUILD_THREADS)
		*UCM_AT(int16_t, at + i * 2) = (int16_t)ucm_steps_of(
			s->row[i], s->scale, UCM_ROUND_NEAREST);
	if (!thread)
		*UCM_AT(float, out + (uint64_t)args->rows * args->width * 2 +
				       row * 4ull) = s->scale;
}

/* ---- scores ---- */

struct ucm_twin_item {
	int wanted, there; /* is there such an item? has its block a slot? */
	uint32_t part;     /* of the team */
	uint32_t first_head, num_heads;
	uint64_t slot, query, score; /* addresses */
	uint64_t scales, steps;      /* of its first head, and row */
};

/* Bytes of a number of the query. */
UCM_INLINE uint32_t ucm_twin_query_bytes(uint32_t dtype)
{
	return dtype == UCM_TWIN_STEPS ? 2 : 4;
}

UCM_INLINE uint32_t ucm_twin_num_blocks(uint64_t tokens, uint32_t request,
					uint32_t block_size)
{
	int32_t num = UCM_AT(const int32_t, tokens + request * 4ull)[0];

	return num > 0 ? ucm_blocks_of((uint32_t)num, block_size) : 0;
}

UCM_INLINE struct ucm_twin_item
ucm_twin_item_find(const struct ucm_twin_score_args *args, uint32_t dtype,
		   uint32_t thread, uint32_t request)
{
	uint32_t index = thread / ucm_twin_team(dtype);
	uint32_t rows = args->sum ? 1 : args->num_heads * args->rows;
	uint32_t block = index / rows, row = index % rows;
	uint32_t num = ucm_twin_num_blocks(args->tokens, request,
					   args->block_size);
	struct ucm_twin_item item = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 };
	uint64_t query = args->queries + request * args->query_stride * 4;
	int32_t slot;

	if (block >= num || block >= args->max_blocks)
		return item;
	slot = *UCM_AT(const int32_t,
		       args->tables +
			       (request * args->table_stride + block) * 4);
	item.wanted = 1;
	item.there = slot >= 0 && (uint64_t)slot < args->num_slots;
	item.part = thread % ucm_twin_team(dtype);
	item.first_head = row / args->rows;
	item.num_heads = args->sum ? args->num_heads : 1;
	item.slot = args->base + (uint64_t)slot * args->stride_bytes;
	item.query = query + (uint64_t)row * args->width *
				     ucm_twin_query_bytes(dtype);
	item.scales = item.slot + args->scales_at + item.first_head * 4;
	item.steps = query + 2 * (uint64_t)args->width * args->num_heads *
				     args->rows + row * 4;
	item.score = args->scores + (request * args->stride_request +
				     row * args->stride_row + block) * 4;
	return item;
}

/* A thread's lanes of a row's product with a row of the query. */
UCM_INLINE void ucm_twin_dot(uint32_t dtype, uint64_t row, uint64_t query,
			     uint32_t width, uint32_t part, float *lanes)
{
	const uint32_t each = ucm_twin_each(dtype);

	UCM_UNROLL
	for (uint32_t j = 0; j < each; j++)
		lanes[j] = 0;
	for (uint32_t i = part * each; i < width; i += UCM_TWIN_LANES) {
		const struct ucm_twin_words words =
			*UCM_AT(const struct ucm_twin_words,
				row + i * ucm_twin_item_bytes(dtype));

		UCM_UNROLL
		for (uint32_t j = 0; j < each; j += 4) {
			const struct ucm_twin_words four =
				*UCM_AT(const struct ucm_twin_words,
					query + (i + j) * 4);

			UCM_UNROLL
			for (uint32_t k = 0; k < 4; k++)
				lanes[j + k] +=
					ucm_twin_element(&words, dtype, j + k) *
					ucm_float_of(four.word[k]);
		}
	}
}

/* The sum, and two products of int8 and int16. */
UCM_INLINE int32_t ucm_twin_two_products(uint32_t bytes, uint32_t shorts,
					 int32_t sum, int high)
{
#ifdef __CUDA_ARCH__
	return high ? __dp2a_hi((int)shorts, (int)bytes, sum)
		    : __dp2a_lo((int)shorts, (int)bytes, sum);
#else
	if (high)
		bytes >>= 16;
	return sum + (int8_t)bytes * (int16_t)shorts +
	       (int8_t)(bytes >> 8) * (int16_t)(shorts >> 16);
#endif
}

/* The same of whole numbers: a load of the row has 8 lanes. */
UCM_INLINE void ucm_twin_int_dot(uint64_t row, uint64_t query, uint32_t width,
				 uint32_t part, float *lanes)
{
	int32_t sums[8] = { 0, 0, 0, 0, 0, 0, 0, 0 };

	for (uint32_t i = part * 16; i < width; i += UCM_TWIN_LANES) {
		const struct ucm_twin_words words =
			*UCM_AT(const struct ucm_twin_words, row + i);

		UCM_UNROLL
		for (uint32_t j = 0; j < 8; j += 4) {
			const struct ucm_twin_words four =
				*UCM_AT(const struct ucm_twin_words,
					query + (i + 2 * j) * 2);

			UCM_UNROLL
			for (uint32_t k = 0; k < 4; k++)
				sums[j + k] = ucm_twin_two_products(
					words.word[(j + k) / 2], four.word[k],
					sums[j + k], k % 2);
		}
	}
	UCM_UNROLL
	for (uint32_t j = 0; j < 8; j++)
		lanes[j] = (float)sums[j];
}

/* What the products of a row are multiplied by; head and row counted from the
 * item's. */
UCM_INLINE float ucm_twin_factor(uint32_t dtype,
				 const struct ucm_twin_item *item, uint32_t i)
{
	float scale = *UCM_AT(const float, item->scales + i * 4);

	return dtype == UCM_TWIN_STEPS
		       ? scale * *UCM_AT(const float, item->steps + i * 4)
		       : scale;
}

UCM_INLINE void ucm_twin_item_lanes(const struct ucm_twin_score_args *args,
				    uint32_t dtype,
				    const struct ucm_twin_item *item,
				    float *lanes)
{
	const uint32_t each = ucm_twin_each(dtype);
	uint64_t row_bytes = (uint64_t)args->width * ucm_twin_item_bytes(dtype);

	UCM_UNROLL
	for (uint32_t j = 0; j < each; j++)
		lanes[j] = 0;
	for (uint32_t h = 0; item->there && h < item->num_heads; h++) {
		uint64_t row = item->slot + (item->first_head + h) * row_bytes;
		uint64_t query = item->query + (uint64_t)h * args->width *
						       ucm_twin_query_bytes(dtype);
		float products[UCM_TWIN_LANES_MAX], factor = 1;

		if (dtype == UCM_TWIN_STEPS)
			ucm_twin_int_dot(row, query, args->width, item->part,
					 products);
		else
			ucm_twin_dot(dtype, row, query, args->width,
				     item->part, products);
		if (ucm_twin_scaled(dtype) && args->sum)
			factor = ucm_twin_factor(dtype, item, h);
		UCM_UNROLL
		for (uint32_t j = 0; j < each; j++)
			lanes[j] += ucm_twin_scaled(dtype)
					    ? products[j] * factor
					    : products[j];
	}
}

/* The tree's lower levels. A block without a slot has no score: NaN. */
UCM_INLINE void ucm_twin_item_end(const struct ucm_twin_score_args *args,
				  uint32_t dtype,
				  const struct ucm_twin_item *item,
				  float *lanes)
{
	if (!item->wanted || item->part)
		return;
	UCM_UNROLL
	for (uint32_t n = UCM_TWIN_LANES_MAX / 2; n; n /= 2) {
		UCM_UNROLL
		for (uint32_t j = 0; j < UCM_TWIN_LANES_MAX / 2; j++) {
			if (2 * n <= ucm_twin_each(dtype) && j < n)
				lanes[j] += lanes[j + n];
		}
	}
	if (ucm_twin_scaled(dtype) && item->there && !args->sum)
		lanes[0] *= ucm_twin_factor(dtype, item, 0);
	*UCM_AT(float, item->score) =
		item->there ? lanes[0] : ucm_float_of(0x7fc00000u);
}

#endif
