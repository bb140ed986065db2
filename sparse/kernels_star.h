/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels_star.h - the loops over merged channels, for one instruction set: a
 * part of kernels_core.h.
 *
 * Groups of tokens lie side by side, 16 to a chunk, and are the lanes. A product
 * with the query is added up channel by channel, each group by itself, so that
 * nothing has to be added across lanes and the order is the same in any width.
 * Some rows of the query are taken at a time, for which a chunk is loaded once.
 *
 * Weights are summed up as they come, without the products being kept. With
 * top the largest product of a lane so far, and sum that of exp(scale (a - top))
 * over them, a new product a makes, with e = exp(-scale |a - top|),
 *
 *   a > top:  sum e + 1, and a is the top
 *   else:     sum + e
 *
 * which is one exponential for each product. Lanes are brought to a common top
 * in the end, and added in a tree.
 */
#define STAR_PARTS (UCM_STAR_LANES / CORE_WIDTH)

/* A row's largest lane. That of zeros is +0: sums that begin with it never
 * become -0, but may if a scale is so small that nothing is left of them. */
CORE_TARGET static inline float CORE(star_most)(const FLOATS *best)
{
	FLOATS most = best[0];
	float result;

	for (int p = 1; p < (int)STAR_PARTS; p++) {
		INTS more = best[p] > most;

		most = (FLOATS)(((INTS)best[p] & more) | ((INTS)most & ~more));
	}
	CORE_MOST(result, most);
	return result + 0.0f;
}

CORE_TARGET static inline float CORE(star_weight)(const FLOATS *best,
						  const FLOATS *sums,
						  float scale, float most)
{
	FLOATS lanes[STAR_PARTS];
	float result;

	_Pragma("GCC unroll 4")
	for (int p = 0; p < (int)STAR_PARTS; p++) {
		FLOATS e;

		CORE_EXP(e, (best[p] - most) * scale);
		lanes[p] = sums[p] * e;
	}
	CORE_TREE16(result, lanes);
	return result;
}

/* Take a chunk's products into what there is of a row. */
CORE_TARGET static inline void CORE(star_weigh)(FLOATS *best, FLOATS *sums,
						const FLOATS *products,
						float scale)
{
	_Pragma("GCC unroll 4")
	for (int p = 0; p < (int)STAR_PARTS; p++) {
		INTS more = products[p] > best[p];
		FLOATS apart = products[p] - best[p], e, kept, one;

		apart = (FLOATS)((INTS)apart | INT32_MIN);
		CORE_EXP(e, apart * scale);
		kept = (FLOATS)(((INTS)(sums[p] * e) & more) |
				((INTS)sums[p] & ~more));
		one = (FLOATS)(((INTS)((FLOATS){ 0 } + 1.0f) & more) |
			       ((INTS)e & ~more));
		sums[p] = kept + one;
	}
}

CORE_TARGET static inline void CORE(star_keep_most)(FLOATS *best,
						    const FLOATS *products)
{
	_Pragma("GCC unroll 4")
	for (int p = 0; p < (int)STAR_PARTS; p++) {
		INTS more = products[p] > best[p];

		best[p] = (FLOATS)(((INTS)products[p] & more) |
				   ((INTS)best[p] & ~more));
	}
}

/* Lanes from left on have no group: their products are no numbers to be chosen. */
CORE_TARGET static inline void CORE(star_mask)(FLOATS *products, uint32_t left)
{
	static const int32_t numbers[UCM_STAR_LANES] = {
		0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
	};
	int32_t end = left < UCM_STAR_LANES ? (int32_t)left : UCM_STAR_LANES;

	_Pragma("GCC unroll 4")
	for (int p = 0; p < (int)STAR_PARTS; p++) {
		INTS number, there;

		memcpy(&number, numbers + p * CORE_WIDTH, sizeof(number));
		there = number < end;
		products[p] = (FLOATS)(((INTS)products[p] & there) |
				       (~there & (int32_t)0xff800000));
	}
}

/* num rows of the query, a constant, with all groups of a block's head. */
#define CORE_STAR_TILE_FUNCTION(name, LOAD, item_bytes, scaled)               \
CORE_TARGET static inline __attribute__((always_inline))                      \
void CORE(star_tile_##name)(const struct ucm_star_run *run,                   \
			    const struct ucm_star_block *block,               \
			    const float *query, int num, float *most,         \
			    float *weights)                                   \
{                                                                             \
	FLOATS best[8][STAR_PARTS], sums[8][STAR_PARTS];                      \
	size_t step = (size_t)run->lanes * (item_bytes);                      \
                                                                              \
	for (uint32_t first = 0; first < block->groups;                       \
	     first += UCM_STAR_LANES) {                                       \
		FLOATS products[8][STAR_PARTS];                               \
		const uint8_t *at = block->rows + (size_t)first * (item_bytes); \
		const float *q = query;                                       \
                                                                              \
		_Pragma("GCC unroll 8")                                       \
		for (int j = 0; j < num; j++) {                               \
			_Pragma("GCC unroll 4")                               \
			for (int p = 0; p < (int)STAR_PARTS; p++)             \
				products[j][p] = (FLOATS){ 0 };               \
		}                                                             \
		for (uint32_t c = 0; c < run->kept; c++) {                    \
			FLOATS x[STAR_PARTS];                                 \
                                                                              \
			_Pragma("GCC unroll 4")                               \
			for (int p = 0; p < (int)STAR_PARTS; p++)             \
				LOAD(x[p], at + (size_t)p * CORE_WIDTH *      \
						   (item_bytes));             \
			_Pragma("GCC unroll 8")                               \
			for (int j = 0; j < num; j++) {                       \
				_Pragma("GCC unroll 4")                       \
				for (int p = 0; p < (int)STAR_PARTS; p++)     \
					products[j][p] += x[p] * q[j];        \
			}                                                     \
			at += step;                                           \
			q += run->rows;                                       \
		}                                                             \
		_Pragma("GCC unroll 8")                                       \
		for (int j = 0; j < num; j++) {                               \
			_Pragma("GCC unroll 4")                               \
			for (int p = 0; (scaled) && p < (int)STAR_PARTS; p++) { \
				FLOATS scale;                                 \
				memcpy(&scale, block->scales + first +        \
						       p * CORE_WIDTH,        \
				       sizeof(scale));                        \
				products[j][p] *= scale;                      \
			}                                                     \
			CORE(star_mask)(products[j], block->groups - first);  \
			if (!first) {                                         \
				_Pragma("GCC unroll 4")                       \
				for (int p = 0; p < (int)STAR_PARTS; p++) {   \
					best[j][p] = products[j][p];          \
					sums[j][p] = (FLOATS){ 0 } + 1.0f;    \
				}                                             \
				continue;                                     \
			}                                                     \
			if (run->weights)                                     \
				CORE(star_weigh)(best[j], sums[j],            \
						 products[j], run->scale);    \
			CORE(star_keep_most)(best[j], products[j]);           \
		}                                                             \
	}                                                                     \
	_Pragma("GCC unroll 8")                                               \
	for (int j = 0; j < num; j++) {                                       \
		most[j] = CORE(star_most)(best[j]);                           \
		if (run->weights)                                             \
			weights[j] = CORE(star_weight)(best[j], sums[j],      \
						       run->scale, most[j]);  \
	}                                                                     \
}

#define CORE_STAR_FUNCTION(name, LOAD, item_bytes, scaled)                    \
CORE_STAR_TILE_FUNCTION(name, LOAD, item_bytes, scaled)                       \
                                                                              \
CORE_TARGET static void CORE(star_##name)(const struct ucm_star_run *run)     \
{                                                                             \
	float most[8], weights[8];                                            \
                                                                              \
	for (size_t i = 0; i < run->num; i++) {                               \
		struct ucm_star_block block = star_block(run, i);             \
		const float *query = run->query;                              \
                                                                              \
		for (; block.head < run->num_heads; block.head++) {           \
			uint32_t row = 0, more;                               \
                                                                              \
			for (; row < run->rows; row += more) {                \
				uint32_t left = run->rows - row;              \
				const float *q = query + row;                 \
				if (!block.groups) {                          \
					more = 1;                             \
					most[0] = -INFINITY;                  \
					weights[0] = 0;                       \
				} else if (left >= CORE_WIDTH / 2) {          \
					more = CORE_WIDTH / 2;                \
					CORE(star_tile_##name)(run, &block, q, \
							CORE_WIDTH / 2,       \
							most, weights);       \
				} else if (CORE_WIDTH > 4 &&                  \
					   left >= CORE_WIDTH / 4) {          \
					more = CORE_WIDTH / 4;                \
					CORE(star_tile_##name)(run, &block, q, \
							CORE_WIDTH / 4,       \
							most, weights);       \
				} else {                                      \
					more = 1;                             \
					CORE(star_tile_##name)(run, &block, q, \
							1, most, weights);    \
				}                                             \
				star_put(run, &block, row, more, most,        \
					 weights);                            \
			}                                                     \
			query += (size_t)run->rows * run->kept;               \
			block.rows += (size_t)run->kept * run->lanes *        \
				      (item_bytes);                           \
			block.scales += run->lanes;                           \
		}                                                             \
	}                                                                     \
}

CORE_STAR_FUNCTION(float32, CORE_LOAD_FLOAT32, 4, false)
CORE_STAR_FUNCTION(float16, CORE_LOAD_FLOAT16, 2, false)
CORE_STAR_FUNCTION(bfloat16, CORE_LOAD_BFLOAT16, 2, false)
CORE_STAR_FUNCTION(int8, CORE_LOAD_INT8, 1, true)

/* 16 blocks' shares of a row's vote, before they are divided by their sum; those
 * beyond num are 0. */
CORE_TARGET static inline void CORE(star_shares)(FLOATS *shares,
						 const float *most,
						 const float *weights,
						 size_t num, float top,
						 float scale)
{
	float ends[2][UCM_STAR_LANES] = { { 0 } };

	if (num < UCM_STAR_LANES) {
		/* nothing less: where top is far below 0 its share would be
		 * infinite, and no weight makes 0 of that */
		for (int i = 0; i < (int)UCM_STAR_LANES; i++)
			ends[0][i] = top;
		memcpy(ends[0], most, num * sizeof(*most));
		memcpy(ends[1], weights, num * sizeof(*weights));
		most = ends[0];
		weights = ends[1];
	}
	_Pragma("GCC unroll 4")
	for (int p = 0; p < (int)STAR_PARTS; p++) {
		FLOATS x, w, e;

		memcpy(&x, most + p * CORE_WIDTH, sizeof(x));
		memcpy(&w, weights + p * CORE_WIDTH, sizeof(w));
		CORE_EXP(e, (x - top) * scale);
		shares[p] = w * e;
	}
}

CORE_TARGET static void CORE(star_vote)(const float *most, float *weights,
					size_t num, float scale, float *votes)
{
	FLOATS lanes[STAR_PARTS] = { { 0 } }, shares[STAR_PARTS];
	float top = -INFINITY, sum;

	for (size_t i = 0; i < num; i++)
		top = most[i] > top ? most[i] : top;
	if (!(top > -INFINITY))
		return; /* nothing to vote for */
	for (size_t i = 0; i < num; i += UCM_STAR_LANES) {
		size_t left = num - i;

		CORE(star_shares)(shares, most + i, weights + i, left, top,
				  scale);
		_Pragma("GCC unroll 4")
		for (int p = 0; p < (int)STAR_PARTS; p++)
			lanes[p] += shares[p];
		memcpy(weights + i, shares,
		       left < UCM_STAR_LANES ? left * sizeof(float)
					     : sizeof(shares));
	}
	CORE_TREE16(sum, lanes);
	if (sum == 0)
		return; /* its weights are: a row without a vote */
	for (size_t i = 0; i < num; i++)
		votes[i] += weights[i] / sum;
}
