/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode.c - one token's attention over a paged cache, fast.
 *
 * Block after block, key head after key head, in tiles of a few tokens whose keys
 * and values are made floats once for all query heads of the group. For each query
 * head there is the largest product so far, the sum of weights exp(s - largest),
 * and the sum of weighted values; when the largest grows both sums are scaled down.
 * The order of all this is fixed, and so are the bits (kernels.c).
 *
 * With ReRoPE the far tokens of a block, which are at its front, are in tiles of
 * their own: their keys are rotated back by their places in the block, and the
 * query is rotated for the block (rerope.h says why that is right).
 *
 * Everything is in the caller's work until it is known to be right.
 */
#include <config.h>

#include <ucm/position.h>

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/align.h"
#include "common/error.h"
#include "sparse/attention.h"
#include "sparse/kernels.h"
#include "sparse/number.h"
#include "sparse/rerope.h"

/* The caller's work. */
struct decode_work {
	float *near, *far; /* queries, scaled; far ones as the block has them */
	float *sums;       /* of weighted values */
	float *most, *total; /* of each query head */
	float *keys, *values; /* a tile */
};

struct decode {
	const struct ucm_attention *attention;
	struct ucm_attention_shape shape;
	const struct ucm_rerope *rerope; /* NULL: without */
	struct ucm_rerope_shape rerope_shape;
	const float *angles;
	uint32_t key_width, value_width; /* whole */
	struct decode_work work;
	struct ucm_error *error;
};

static uint32_t whole(uint32_t dim)
{
	return (uint32_t)ucm_round_up(dim, UCM_REPR_ROW);
}

/* Returns how many floats there are. */
static size_t work_layout(const struct ucm_attention *attention,
			  const struct ucm_attention_shape *shape,
			  float *memory, struct decode_work *out)
{
	size_t heads = attention->query.num_heads;
	size_t keys = whole(shape->keys.dim), values = whole(shape->values.dim);
	const size_t sizes[] = {
		heads * keys, heads * keys, heads * values, heads, heads,
		UCM_TILE_TOKENS * keys, UCM_TILE_TOKENS * values,
	};
	float **const parts[] = { &out->near, &out->far, &out->sums,
				  &out->most, &out->total, &out->keys,
				  &out->values };
	size_t at = 0;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		if (memory)
			*parts[i] = memory + at;
		at += sizes[i];
	}
	return at;
}

size_t ucm_attention_floats(const struct ucm_attention *attention)
{
	struct ucm_attention_shape shape;
	struct decode_work work;

	if (ucm_attention_check(attention, &shape, NULL))
		return 0;
	return work_layout(attention, &shape, NULL, &work);
}

/* ---- queries ---- */

/* Widths are filled up with zeros, in tiles too. */
static void decode_begin(struct decode *d)
{
	uint32_t heads = d->attention->query.num_heads;
	double scale = d->shape.scale * d->rerope_shape.gain;
	struct decode_work *work = &d->work;
	size_t sums = (size_t)heads * d->value_width;

	memset(work->near, 0, (size_t)heads * d->key_width * sizeof(float));
	memset(work->keys, 0, (size_t)UCM_TILE_TOKENS * d->key_width *
				      sizeof(float));
	memset(work->values, 0, (size_t)UCM_TILE_TOKENS * d->value_width *
					sizeof(float));
	memset(work->sums, 0, sums * sizeof(float));
	for (uint32_t i = 0; i < heads; i++) {
		float *query = work->near + (size_t)i * d->key_width;

		ucm_sparse_query_widen(&d->attention->query, i,
				       d->attention->head_dim, query);
		for (uint32_t j = 0; j < d->attention->head_dim; j++)
			query[j] = (float)((double)query[j] * scale);
		work->most[i] = -INFINITY;
		work->total[i] = 0;
	}
}

/* Rotate rows of floats. */
static void rotate_rows(const struct decode *d, const float *from, float *to,
			uint32_t num, const float *cosines, const float *sines)
{
	const int64_t stride = (int64_t)d->key_width * (int64_t)sizeof(float);
	const struct ucm_rotate_run run = {
		.from = (const uint8_t *)from, .to = (uint8_t *)to,
		.outer = num, .inner = 1,
		.from_outer = stride, .to_outer = stride,
		.dim = d->key_width, .rotary = d->rerope_shape.rope.rotary,
		.neighbours = d->rerope->rope.pairing == UCM_ROPE_GPTJ,
		.cosines = cosines, .sines = sines,
	};

	ucm_sparse_kernels()->rotate[UCM_DTYPE_FLOAT32](&run);
}

static void rotate_queries(const struct decode *d, uint64_t first)
{
	struct ucm_rope_table table;

	ucm_rope_table_fill(&d->rerope->rope, &d->rerope_shape.rope,
			    ucm_rerope_delta(d->attention->position,
					     d->rerope->window, first),
			    1, &table);
	rotate_rows(d, d->work.near, d->work.far,
		    d->attention->query.num_heads, table.cosines, table.sines);
}

/* ---- tiles ---- */

/* Some tokens of a block: all near, or all far. */
struct tile {
	uint64_t block; /* of the cache */
	uint32_t first, num;
	bool far;
};

/* Rows of the tile's, of keys or of values, as floats. The next tile's are fetched
 * meanwhile: a head's rows lie too far apart for the CPU to foresee them. */
static void tile_unpack(const struct tile *tile, uint32_t head,
			const struct ucm_rows *rows, float *to, size_t width)
{
	int64_t item = ucm_repr_input_bytes(rows->keys.dtype);
	int64_t stride = item * rows->keys.stride_token;
	const uint8_t *from = ucm_row_at(rows, tile->block, tile->first, head);

	if (tile->first + tile->num + UCM_TILE_TOKENS <= rows->block_size) {
		for (uint32_t i = 0; i < tile->num; i++) {
			const uint8_t *at = from + stride * (tile->num + i);

			for (int64_t j = 0; j < item * rows->dim; j += 64)
				__builtin_prefetch(at + j);
		}
	}
	ucm_sparse_kernels()->unpack[rows->keys.dtype](
		to, width, from, stride, tile->num, rows->dim);
}

static void tile_load(const struct decode *d, const struct tile *tile,
		      uint32_t head)
{
	uint32_t rotary = d->rerope_shape.rope.rotary;

	tile_unpack(tile, head, &d->shape.keys, d->work.keys, d->key_width);
	tile_unpack(tile, head, &d->shape.values, d->work.values,
		    d->value_width);
	for (uint32_t i = 0; tile->far && i < tile->num; i++) {
		float *key = d->work.keys + (size_t)i * d->key_width;
		const float *angles = d->angles +
				      (size_t)(tile->first + i) * 2 * rotary;

		rotate_rows(d, key, key, 1, angles, angles + rotary);
	}
}

/* Take a tile into the sums of a query head. */
static void tile_take(const struct decode *d, const struct tile *tile,
		      uint32_t head)
{
	const struct decode_work *work = &d->work;
	const float *query = (tile->far ? work->far : work->near) +
			     (size_t)head * d->key_width;
	float weights[UCM_TILE_TOKENS], most = work->most[head], factor;
	bool finite = true;

	ucm_sparse_kernels()->products(weights, query, work->keys, tile->num,
				       d->key_width);
	for (uint32_t i = 0; i < tile->num; i++) {
		most = weights[i] > most ? weights[i] : most;
		finite &= ucm_float_finite(weights[i]);
	}
	if (!finite)
		work->total[head] = NAN; /* and so it stays */
	for (uint32_t i = tile->num; i < UCM_TILE_TOKENS; i++)
		weights[i] = -INFINITY;
	factor = ucm_weight(work->most[head] - most);
	ucm_sparse_kernels()->weights(weights, most);
	ucm_sparse_kernels()->weigh(work->sums + (size_t)head * d->value_width,
				    factor, weights, work->values, tile->num,
				    d->value_width);
	work->total[head] = work->total[head] * factor +
			    ucm_tree_sum(weights, UCM_TILE_TOKENS);
	work->most[head] = most;
}

static void tile_heads(const struct decode *d, const struct tile *tile)
{
	uint32_t group = d->shape.group;

	for (uint32_t head = 0; head < d->attention->num_heads; head++) {
		tile_load(d, tile, head);
		for (uint32_t i = 0; i < group; i++)
			tile_take(d, tile, head * group + i);
	}
}

/* Tokens first to end - 1 of a block. */
static void decode_tokens(const struct decode *d, uint64_t block,
			  uint32_t first, uint32_t end, bool far)
{
	while (first < end) {
		struct tile tile = { block, first, end - first, far };

		if (tile.num > UCM_TILE_TOKENS)
			tile.num = UCM_TILE_TOKENS;
		tile_heads(d, &tile);
		first += tile.num;
	}
}

static void decode_block(const struct decode *d, uint32_t i)
{
	uint64_t block = ucm_repr_id(d->attention->table, 0, i), first;
	uint32_t num = ucm_attention_tokens(d->attention, i), far = 0;

	if (d->rerope) {
		first = ucm_rerope_first(d->attention, i);
		far = ucm_rerope_far(d->attention->position, d->rerope->window,
				     first, num);
		if (far)
			rotate_queries(d, first);
	}
	decode_tokens(d, block, 0, far, true);
	decode_tokens(d, block, far, num, false);
}

/* ---- calls ---- */

static int decode_check(struct decode *d, const float *work, const float *out)
{
	int err = ucm_attention_check(d->attention, &d->shape, d->error);

	if (!err && d->rerope) /* its head_dim is compared with attention's */
		err = ucm_rerope_check(d->rerope, d->attention,
				       &d->rerope_shape, d->error);
	if (!err && d->rerope && !d->angles)
		err = ucm_error_set(d->error, -EINVAL, "angles is NULL");
	if (!err && (!work || !out))
		err = ucm_error_set(d->error, -EINVAL, "%s is NULL",
				    work ? "out" : "work");
	return err;
}

static bool sums_finite(const struct decode *d, uint32_t head)
{
	const float *sums = d->work.sums + (size_t)head * d->value_width;
	bool finite = ucm_float_finite(d->work.total[head]);

	for (uint32_t j = 0; j < d->shape.values.dim; j++)
		finite &= ucm_float_finite(sums[j]);
	return finite;
}

/* Rows are not looked at on the way: a number that is not finite makes a product or
 * a sum so. If one is, was it a row, or is it too large for a float? */
static int decode_finite(const struct decode *d)
{
	const struct ucm_attention *attention = d->attention;
	uint32_t heads = attention->query.num_heads, head = 0;
	int err;

	while (head < heads && sums_finite(d, head))
		head++;
	if (head == heads)
		return 0;
	err = ucm_rows_finite(&d->shape.keys, attention->table,
			      attention->num_tokens, d->error)
		?: ucm_rows_finite(&d->shape.values, attention->table,
				   attention->num_tokens, d->error);
	return err ? err
		   : ucm_error_set(d->error, -ERANGE, "head %" PRIu32
				   ": too large for float32", head);
}

static void decode_end(const struct decode *d, float *out, float *lse)
{
	uint32_t dim = d->shape.values.dim;

	for (uint32_t i = 0; i < d->attention->query.num_heads; i++) {
		const float *sums = d->work.sums + (size_t)i * d->value_width;
		float total = d->work.total[i];

		for (uint32_t j = 0; j < dim; j++)
			out[(size_t)i * dim + j] = sums[j] / total;
		if (lse)
			lse[i] = (float)((long double)d->work.most[i] +
					 logl((long double)total));
	}
}

static int decode_run(struct decode *d, float *work, float *out, float *lse)
{
	int err = decode_check(d, work, out);

	if (err)
		return err;
	d->key_width = whole(d->shape.keys.dim);
	d->value_width = whole(d->shape.values.dim);
	work_layout(d->attention, &d->shape, work, &d->work);
	decode_begin(d);
	for (uint32_t i = 0; i < d->shape.num_blocks; i++)
		decode_block(d, i);
	err = decode_finite(d);
	if (!err)
		decode_end(d, out, lse);
	return err;
}

int ucm_attention_decode(const struct ucm_attention *attention, float *work,
			 float *out, float *lse, struct ucm_error *error)
{
	struct decode d;

	d.attention = attention;
	d.rerope = NULL;
	d.rerope_shape.gain = 1;
	d.rerope_shape.rope.rotary = 0;
	d.angles = NULL;
	d.error = error;
	return decode_run(&d, work, out, lse);
}

int ucm_rerope_decode(const struct ucm_rerope *rerope, const float *angles,
		      const struct ucm_attention *attention, float *work,
		      float *out, float *lse, struct ucm_error *error)
{
	struct decode d;

	if (!rerope)
		return ucm_error_set(error, -EINVAL, "rerope is NULL");
	d.attention = attention;
	d.rerope = rerope;
	d.angles = angles;
	d.error = error;
	return decode_run(&d, work, out, lse);
}
