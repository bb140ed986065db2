/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rerope.h - attention's arithmetic: which tokens are far away, and the weight of
 * a product. Plain functions of numbers, as in rope.h.
 *
 * With a query q = R_i q', a key k = R_j k' and window w, what is wanted of a far
 * token is (R_w q').k'. For a block whose first token is at p, j = p + t:
 *
 *   (R_w q').k' = (R_(w - i + p) q).(R_(-t) k)
 *
 * So the query is rotated once for a block, and keys by their places in it, for
 * which there is a table.
 */
#ifndef UCM_SPARSE_REROPE_H
#define UCM_SPARSE_REROPE_H

#include "sparse/rope.h"

/* How many of a block's num tokens, whose first is at position first, are far from
 * a query: those at the front. */
UCM_PLAIN uint32_t ucm_rerope_far(uint32_t query, uint32_t window,
					uint64_t first, uint32_t num)
{
	int64_t far = (int64_t)query - window - (int64_t)first + 1;

	return far < 0 ? 0 : far > num ? num : (uint32_t)far;
}

/* Positions that the query is rotated by for such a block. */
UCM_PLAIN int64_t ucm_rerope_delta(uint32_t query, uint32_t window,
					 uint64_t first)
{
	return (int64_t)window - query + (int64_t)first;
}

/*
 * exp(x), x not above 0 or -INFINITY; below the least, 0. x = n ln 2 + r, with
 * |r| <= ln 2 / 2, and exp(r) by Taylor's series: off by at most 2^-22 of itself.
 * To add the rounding number leaves the nearest whole one in its low bits.
 */
#define UCM_WEIGHT_LEAST    -87.0f
#define UCM_WEIGHT_LOG2E    1.44269504f
#define UCM_WEIGHT_ROUND    12582912.0f /* 1.5 * 2^23 */
#define UCM_WEIGHT_LN2_HIGH 0.693359375f /* few bits: its product is exact */
#define UCM_WEIGHT_LN2_LOW  -2.12194440e-4f

UCM_PLAIN float ucm_weight(float x)
{
	float n, r, sum;
	uint32_t power;

	if (!(x >= UCM_WEIGHT_LEAST))
		return 0;
	n = x * UCM_WEIGHT_LOG2E + UCM_WEIGHT_ROUND;
	power = ucm_float_bits(n) << 23;
	n -= UCM_WEIGHT_ROUND;
	r = x - n * UCM_WEIGHT_LN2_HIGH - n * UCM_WEIGHT_LN2_LOW;
	sum = r * (1 / 5040.0f) + 1 / 720.0f;
	sum = sum * r + 1 / 120.0f;
	sum = sum * r + 1 / 24.0f;
	sum = sum * r + 1 / 6.0f;
	sum = sum * r + 0.5f;
	sum = sum * (r * r) + r + 1.0f;
	return ucm_float_of(ucm_float_bits(sum) + power);
}

/* ---- a request ---- */

struct ucm_rerope_shape {
	struct ucm_rope_shape rope;
	double gain; /* that products are multiplied by */
};

/* Is it right, for heads of head_dim channels? */
int ucm_rerope_check_for(const struct ucm_rerope *rerope, uint32_t head_dim,
			 struct ucm_rope_shape *out, struct ucm_error *error);

/* attention has been checked. */
int ucm_rerope_check(const struct ucm_rerope *rerope,
		     const struct ucm_attention *attention,
		     struct ucm_rerope_shape *out, struct ucm_error *error);

/* The position of the first token of entry i of the table. */
static inline uint64_t ucm_rerope_first(const struct ucm_attention *attention,
					uint32_t i)
{
	uint64_t block = attention->selected ? attention->selected[i] : i;

	return block * attention->block_size;
}

#endif
