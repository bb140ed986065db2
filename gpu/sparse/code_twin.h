/* SPDX-License-Identifier: Apache-2.0 */
/*
 * code_twin.h - what a thread of the GPU does for the hash codes of keys, and of
 * queries.
 *
 * A thread has a column of the matrix, that is a bit, and a CTA as many columns at
 * a time as it has threads: a part of the code. The CTA takes 8 vectors at a time,
 * which lie in memory that it shares, so that a number of the matrix is loaded once
 * for all of them. A product is added up from channel 0 on, as sparse/ does it, and
 * so the bits are the same.
 *
 * Keys. A CTA has a head of a block, and codes are their own rows. Of a block that
 * gets tokens those alone are encoded; the first one of a block clears what was
 * there.
 *
 *	ucm_twin_code_begin
 *	for each 8 tokens: ucm_twin_keys_load
 *		for each part: ucm_twin_rotate, and then for each token a ballot of
 *		"above 0", _code_store; with norms _norms_take and _norms_add
 *		with norms _norms_store
 *
 * Keys that are counted. A thread counts its column's tokens, and the digits of all
 * counts are ballots; so parts need nothing of each other, and each has a CTA. A
 * block that gets tokens is counted anew, from its first one.
 *
 * Queries. A CTA has a row of a prepared query. It goes over the vectors anew for
 * each part, and if the query has 4 bits twice: for the largest product, and for the
 * levels, which are measured by it.
 *
 * All threads of the CTA wait for each other before and after what writes to the
 * memory that they share.
 */
#ifndef UCM_GPU_SPARSE_CODE_TWIN_H
#define UCM_GPU_SPARSE_CODE_TWIN_H

#include "gpu/sparse/build_twin.h"
#include "sparse/code_core.h"

#define UCM_TWIN_VECTORS 8

/* A channel of all vectors. */
struct ucm_twin_octet {
	float of[UCM_TWIN_VECTORS];
} __attribute__((aligned(32)));

/* Of the CTA. */
struct ucm_twin_vectors {
	struct ucm_twin_octet channels[UCM_REPR_HEAD_DIM_MAX];
	/* Of norms: the products of a part, and what they sum up to. */
	float products[UCM_TWIN_VECTORS][UCM_TWIN_CODE_THREADS];
	double squares[UCM_TWIN_VECTORS], sums[UCM_TWIN_VECTORS];
};

/* ---- the rotation ---- */

/* A column's part of the channels, and its number there; none: dim is 0. */
struct ucm_twin_column {
	uint32_t first, dim, stride, bit;
	uint64_t at;
	int there; /* not padding */
};

UCM_INLINE struct ucm_twin_column
ucm_twin_column_find(const struct ucm_twin_coder *coder, uint32_t column)
{
	uint32_t nope = coder->parts[0].columns;
	int rope = column >= nope;
	const struct ucm_twin_coder_part *part = &coder->parts[rope];
	uint32_t i = rope ? column - nope : column;
	struct ucm_twin_column out = { part->first, 0, part->columns, i,
				       part->matrix + i * 4ull, 0 };

	if (i < part->columns)
		out.dim = part->dim;
	out.there = i < part->bits;
	return out;
}

/* The products of all vectors with a column. */
UCM_INLINE void ucm_twin_rotate(const struct ucm_twin_column *column,
				const struct ucm_twin_vectors *v,
				float *products)
{
	const struct ucm_twin_octet *channel = v->channels + column->first;
	uint64_t at = column->at;

	UCM_UNROLL
	for (uint32_t j = 0; j < UCM_TWIN_VECTORS; j++)
		products[j] = 0;
	for (uint32_t c = 0; c < column->dim; c++) {
		const struct ucm_twin_octet x = channel[c];
		float weight = *UCM_AT(const float, at);

		UCM_UNROLL
		for (uint32_t j = 0; j < UCM_TWIN_VECTORS; j++)
			products[j] += weight * x.of[j];
		at += column->stride * 4ull;
	}
}

/* ---- keys ---- */

/* What a CTA encodes: tokens first to end - 1 of a head of a block. */
struct ucm_twin_code {
	uint32_t first, end, head;
	int64_t block;
	uint64_t slot, rows; /* addresses */
};

UCM_INLINE struct ucm_twin_code
ucm_twin_code_find(const struct ucm_twin_code_args *args, uint64_t cta)
{
	struct ucm_twin_block block = ucm_twin_block_find(&args->from, cta);
	struct ucm_twin_code code = { 0, block.tokens, block.head, block.block,
				      block.slot, 0 };

	code.rows = code.slot + code.head * args->head_bytes;
	if (code.end && args->from.slots && !args->counts)
		code.first = ucm_twin_run_first(&args->from,
						cta / args->from.num_heads,
						code.end - 1);
	return code;
}

/* How many tokens the block has, and zeros after that. */
UCM_INLINE void ucm_twin_code_tail(const struct ucm_twin_code_args *args,
				   const struct ucm_twin_code *code,
				   uint32_t thread)
{
	uint64_t at = code->slot + args->tokens_at;

	if (!thread)
		*UCM_AT(uint32_t, at) = code->end;
	for (uint64_t i = args->tokens_at + 4 + 4 * thread;
	     i < args->bytes && !code->first; i += 4 * UCM_TWIN_CODE_THREADS)
		*UCM_AT(uint32_t, code->slot + i) = 0;
}

/* Of a block that is begun anew, all that its tokens do not fill is 0. */
UCM_INLINE void ucm_twin_code_begin(const struct ucm_twin_code_args *args,
				    const struct ucm_twin_code *code,
				    uint32_t thread)
{
	uint32_t words = args->coder.words;
	uint32_t left = args->rows - code->end; /* rows: of whole tiles */

	if (!code->head)
		ucm_twin_code_tail(args, code, thread);
	if (code->first)
		return;
	for (uint32_t i = thread; i < left * words; i += UCM_TWIN_CODE_THREADS)
		*UCM_AT(uint64_t,
			code->rows + 8 * ucm_code_at(code->end + i / words,
						     words, i % words)) = 0;
	for (uint64_t i = args->norms_at + 2 * (code->end + thread);
	     i < args->head_bytes; i += 2 * UCM_TWIN_CODE_THREADS)
		*UCM_AT(uint16_t, code->rows + i) = 0;
}

/* Some tokens' keys of a head, less its center; 0 where there are no more. */
UCM_INLINE void ucm_twin_keys_load(const struct ucm_twin_code_args *args,
				   const struct ucm_twin_code *code,
				   uint32_t token, uint32_t thread,
				   struct ucm_twin_vectors *v)
{
	const struct ucm_twin_blocks_args *from = &args->from;
	uint64_t center = args->coder.centers +
			  (uint64_t)code->head * from->keys.dim * 4;

	for (uint32_t j = 0; j < UCM_TWIN_VECTORS; j++) {
		int there = token + j < code->end;
		uint64_t key = ucm_twin_row_at(&from->keys, code->block,
					       token + j, code->head);

		for (uint32_t c = thread; c < from->keys.dim;
		     c += UCM_TWIN_CODE_THREADS)
			v->channels[c].of[j] =
				there ? ucm_twin_row_load(&from->keys, key, c) -
						*UCM_AT(const float,
							center + c * 4)
				      : 0;
	}
}

/* A warp's part of the codes: bit i of masks is thread i's. Lane j stores that of
 * token j. */
UCM_INLINE void ucm_twin_code_store(const struct ucm_twin_code_args *args,
				    const struct ucm_twin_code *code,
				    uint32_t token, uint32_t column,
				    const uint32_t *masks)
{
	uint32_t words = args->coder.words, word = column / UCM_CODE_WORD;
	uint32_t lane = column % UCM_WARP, half = column / UCM_WARP % 2;

	if (word >= words)
		return;
	UCM_UNROLL
	for (uint32_t j = 0; j < UCM_TWIN_VECTORS; j++) {
		if (lane == j && token + j < code->end)
			*UCM_AT(uint32_t,
				code->rows +
					8 * ucm_code_at(token + j, words,
							word) +
					4 * half) = masks[j];
	}
}

/* ---- norms: a thread has a token, and adds up in order ---- */

UCM_INLINE void ucm_twin_norms_begin(const struct ucm_twin_code_args *args,
				     uint32_t thread,
				     struct ucm_twin_vectors *v)
{
	double square = 0;

	if (thread >= UCM_TWIN_VECTORS)
		return;
	for (uint32_t c = 0; c < args->from.keys.dim; c++) {
		float key = v->channels[c].of[thread];

		square += (double)key * (double)key;
	}
	v->squares[thread] = square;
	v->sums[thread] = 0;
}

UCM_INLINE void ucm_twin_norms_take(uint32_t thread, const float *products,
				    struct ucm_twin_vectors *v)
{
	UCM_UNROLL
	for (uint32_t j = 0; j < UCM_TWIN_VECTORS; j++)
		v->products[j][thread] = fabsf(products[j]);
}

UCM_INLINE void ucm_twin_norms_add(uint32_t thread, struct ucm_twin_vectors *v)
{
	double sum;

	if (thread >= UCM_TWIN_VECTORS)
		return;
	sum = v->sums[thread];
	for (uint32_t i = 0; i < UCM_TWIN_CODE_THREADS; i++)
		sum += (double)v->products[thread][i];
	v->sums[thread] = sum;
}

/* Of a key that is not finite NaN. */
UCM_INLINE void ucm_twin_norms_store(const struct ucm_twin_code_args *args,
				     const struct ucm_twin_code *code,
				     uint32_t token, uint32_t thread,
				     const struct ucm_twin_vectors *v)
{
	float norm;

	if (thread >= UCM_TWIN_VECTORS || token + thread >= code->end)
		return;
	norm = v->sums[thread] <= 0
		       ? 0 : (float)(v->squares[thread] / v->sums[thread]);
	ucm_twin_store(code->rows + args->norms_at + 2 * (token + thread),
		       UCM_DTYPE_BFLOAT16, norm, 0, UCM_ROUND_NEAREST);
}

/* ---- counts ---- */

/* A digit of the counts, of a warp's columns. */
UCM_INLINE void ucm_twin_count_store(const struct ucm_twin_code_args *args,
				     const struct ucm_twin_code *code,
				     uint32_t digit, uint32_t column,
				     uint32_t mask)
{
	uint32_t words = args->coder.words, word = column / UCM_CODE_WORD;

	if (word >= words || column % UCM_WARP)
		return;
	*UCM_AT(uint32_t, code->rows + 8 * ucm_code_at(digit, words, word) +
				  4 * (column / UCM_WARP % 2)) = mask;
}

/* ---- queries ---- */

/* Of the CTA, which has a row. */
struct ucm_twin_code_row {
	struct ucm_twin_vectors vectors;
	float most[UCM_TWIN_CODE_THREADS];
	uint32_t weights[UCM_TWIN_CODE_THREADS];
	uint32_t bad; /* a number is not finite, or too large */
};

UCM_INLINE float
ucm_twin_code_element(const struct ucm_twin_code_query_args *args,
		      uint32_t query, uint32_t head, uint32_t channel)
{
	if (args->rope.base && channel >= args->rope_first)
		return ucm_twin_head_load(&args->rope, query, head,
					  channel - args->rope_first);
	return ucm_twin_head_load(&args->query, query, head, channel);
}

/* Vectors first to first + 7 of the row: means of heads, 0 where there are no
 * more. */
UCM_INLINE void
ucm_twin_code_heads_load(const struct ucm_twin_code_query_args *args,
			 uint32_t query, uint32_t row, uint32_t first,
			 uint32_t thread, struct ucm_twin_code_row *s)
{
	uint32_t key_head = row / args->rows, own = row % args->rows;
	uint32_t head = key_head * args->group + own;

	for (uint32_t i = thread; i < args->head_dim * UCM_TWIN_VECTORS;
	     i += UCM_TWIN_CODE_THREADS) {
		uint32_t j = i / args->head_dim, c = i % args->head_dim;
		float sum = 0;

		for (uint32_t k = 0; first + j < args->vectors &&
				     k < args->merged; k++) {
			float x = ucm_twin_code_element(
				args, query, head + first + j + k * args->step,
				c);

			if (!(fabsf(x) <= UCM_CODE_LIMIT))
				s->bad = 1;
			sum = k ? sum + x : x;
		}
		if (args->merged > 1)
			sum /= (float)args->merged;
		s->vectors.channels[c].of[j] = sum;
	}
}

UCM_INLINE uint64_t
ucm_twin_code_row_at(const struct ucm_twin_code_query_args *args,
		     uint32_t query, uint32_t row)
{
	return args->out + 8 * (query * args->out_stride +
				(uint64_t)row * args->row_words);
}

/* A warp's bits of a plane. */
UCM_INLINE void
ucm_twin_plane_store(const struct ucm_twin_code_query_args *args,
		     uint32_t query, uint32_t row, uint32_t plane,
		     uint32_t column, uint32_t mask)
{
	uint32_t word = column / UCM_CODE_WORD;

	if (word >= args->coder.words || column % UCM_WARP)
		return;
	*UCM_AT(uint32_t, ucm_twin_code_row_at(args, query, row) +
				  8 * (1 + (uint64_t)word * args->planes +
				       plane) +
				  4 * (column / UCM_WARP % 2)) = mask;
}

/* The largest of what the threads have found. */
UCM_INLINE float ucm_twin_most_of_all(const struct ucm_twin_code_row *s)
{
	return ucm_most_of(s->most, UCM_TWIN_CODE_THREADS);
}

/* Which planes have a column's bit. value: how many heads have it; or of 4 bits
 * the product. */
UCM_INLINE uint32_t
ucm_twin_planes_of(const struct ucm_twin_code_query_args *args,
		   const struct ucm_twin_column *column, uint32_t count,
		   float product, float most)
{
	if (args->estimate)
		count = most > 0 && column->there
				? ucm_code_level(product, most) : 0;
	return ucm_code_sum_of(count, args->weights, args->planes);
}

UCM_INLINE uint32_t
ucm_twin_planes_weight(const struct ucm_twin_code_query_args *args,
		       uint32_t which)
{
	uint32_t weight = 0;

	for (uint32_t p = 0; p < args->planes; p++)
		weight += which >> p & 1 ? args->weights[p] : 0;
	return weight;
}

/* By one thread: the row's unit, NaN if a number is bad, and its weight. */
UCM_INLINE void ucm_twin_code_row_end(const struct ucm_twin_code_query_args *args,
				      uint32_t query, uint32_t row,
				      const struct ucm_twin_code_row *s)
{
	float unit = args->estimate ? ucm_twin_most_of_all(s) / UCM_CODE_LEVELS
				    : 1;
	uint64_t weight = 0;

	for (uint32_t i = 0; i < UCM_TWIN_CODE_THREADS; i++)
		weight += s->weights[i];
	if (s->bad)
		unit = ucm_float_of(0x7fc00000u);
	*UCM_AT(uint64_t, ucm_twin_code_row_at(args, query, row)) =
		weight << 32 | ucm_float_bits(unit);
}

#endif
