/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels_core.h - the loops of kernels.c, for one instruction set; no header of
 * its own. Included with
 *
 *   CORE_NAME     what the functions' names begin with, and the table's
 *   CORE_TARGET   the attribute of functions
 *   CORE_WIDTH    floats of a vector, a divisor of 16
 *   CORE_LOAD_*   (to, from): so many numbers to a vector of floats
 *   CORE_ONCE     (v): a vector that is read from memory once
 *   CORE_ADD_PRODUCTS (lanes, row, query): add to lane i the products 2 i and
 *                 2 i + 1 of int8 and int16
 *   CORE_LAST     (result, v): add the lanes of a vector: i and i + half, ...
 *   CORE_MOST     (result, v): the largest lane
 *   CORE_AT_LEAST (mask, x, y): sets a bit in mask, which is 0, for each lane
 *                 of x that is at least y's
 *
 * and with what position_core.h says.
 *
 * Functions that only some of these need are inlined: a vector is never an
 * argument of a call.
 */
#define CORE_PASTE2(a, b) a##_##b
#define CORE_PASTE(a, b)  CORE_PASTE2(a, b)
#define CORE(name)	  CORE_PASTE(CORE_NAME, name)
#define CORE_TEXT2(name)  #name
#define CORE_TEXT(name)	  CORE_TEXT2(name)
#define PARTS		  (LANES / CORE_WIDTH)

typedef float CORE(floats) __attribute__((vector_size(4 * CORE_WIDTH)));
typedef int32_t CORE(ints) __attribute__((vector_size(4 * CORE_WIDTH)));
typedef uint32_t CORE(words) __attribute__((vector_size(4 * CORE_WIDTH)));
#define FLOATS CORE(floats)
#define INTS   CORE(ints)
#define WORDS  CORE(words)

#define CORE_LOAD_FLOAT32(to, from) memcpy(&(to), from, sizeof(to))

/* ---- representations ---- */

#define CORE_WIDEN_FUNCTION(name, LOAD, item_bytes, single)                   \
CORE_TARGET static bool CORE(widen_##name)(float *to, const void *from,       \
					   size_t num)                        \
{                                                                             \
	const uint8_t *at = from;                                             \
	INTS finite = (INTS){ 0 } - 1;                                        \
	size_t i = 0;                                                         \
	bool all = true;                                                      \
                                                                              \
	for (; i + CORE_WIDTH <= num; i += CORE_WIDTH) {                      \
		FLOATS x;                                                     \
		LOAD(x, at + i * (item_bytes));                               \
		finite &= ((INTS)x & 0x7f800000) != 0x7f800000;               \
		memcpy(to + i, &x, sizeof(x));                                \
	}                                                                     \
	for (; i < num; i++) {                                                \
		single item;                                                  \
		memcpy(&item, at + i * (item_bytes), sizeof(item));           \
		to[i] = CORE_SINGLE_##name(item);                             \
		all &= ucm_float_finite(to[i]);                               \
	}                                                                     \
	for (i = 0; i < CORE_WIDTH; i++)                                      \
		all &= finite[i] != 0;                                        \
	return all;                                                           \
}
#define CORE_SINGLE_float32(item)  (item)
#define CORE_SINGLE_float16(item)  ucm_float_of_float16(item)
#define CORE_SINGLE_bfloat16(item) ucm_float_of_bfloat16(item)

CORE_WIDEN_FUNCTION(float32, CORE_LOAD_FLOAT32, 4, float)
CORE_WIDEN_FUNCTION(float16, CORE_LOAD_FLOAT16, 2, uint16_t)
CORE_WIDEN_FUNCTION(bfloat16, CORE_LOAD_BFLOAT16, 2, uint16_t)

CORE_TARGET static void CORE(add)(float *sum, const float *from, size_t num)
{
	for (size_t i = 0; i < num; i += CORE_WIDTH) {
		FLOATS x, y;

		memcpy(&x, from + i, sizeof(x));
		memcpy(&y, sum + i, sizeof(y));
		y += x;
		memcpy(sum + i, &y, sizeof(y));
	}
}

#define CORE_EXTREME_FUNCTION(name, beats)                                    \
CORE_TARGET static void CORE(name)(float *best, const float *from,            \
				   size_t num)                                \
{                                                                             \
	for (size_t i = 0; i < num; i += CORE_WIDTH) {                        \
		FLOATS x, y;                                                  \
		INTS take;                                                    \
                                                                              \
		memcpy(&x, from + i, sizeof(x));                              \
		memcpy(&y, best + i, sizeof(y));                              \
		take = x beats y;                                             \
		y = (FLOATS)(((INTS)x & take) | ((INTS)y & ~take));           \
		memcpy(best + i, &y, sizeof(y));                              \
	}                                                                     \
}

CORE_EXTREME_FUNCTION(largest, >)
CORE_EXTREME_FUNCTION(smallest, <)

/* ---- scores ---- */

/* Add lane i + n to lane i, for n = 16, 8, 4, 2, 1. */
#define CORE_TREE(result, lanes)                                              \
	do {                                                                  \
		_Pragma("GCC unroll 8")                                       \
		for (int n_ = PARTS / 2; n_; n_ /= 2) {                       \
			_Pragma("GCC unroll 8")                               \
			for (int p_ = 0; p_ < n_; p_++)                       \
				(lanes)[p_] += (lanes)[p_ + n_];              \
		}                                                             \
		CORE_LAST(result, (lanes)[0]);                                \
	} while (0)

/* The lanes of a row's products with a row of the query; ASK(offset) for each 64
 * bytes of the row. */
#define CORE_DOT(lanes, LOADS, item_bytes, row, query, width, ASK)            \
	do {                                                                  \
		_Pragma("GCC unroll 8")                                       \
		for (int p_ = 0; p_ < (int)PARTS; p_++)                       \
			(lanes)[p_] = (FLOATS){ 0 };                          \
		_Pragma("GCC unroll 4")                                       \
		for (uint32_t i_ = 0; i_ < (width); i_ += LANES) {            \
			FLOATS x_[PARTS];                                     \
			for (size_t a_ = (size_t)i_ * (item_bytes);           \
			     a_ < ((size_t)i_ + LANES) * (item_bytes);        \
			     a_ += 64)                                        \
				ASK(a_);                                      \
			LOADS(x_, (row) + (size_t)i_ * (item_bytes));         \
			_Pragma("GCC unroll 8")                               \
			for (int p_ = 0; p_ < (int)PARTS; p_++) {             \
				FLOATS y_;                                    \
				memcpy(&y_, (query) + i_ +                    \
						    (size_t)p_ * CORE_WIDTH,  \
				       sizeof(y_));                           \
				(lanes)[p_] += x_[p_] * y_;                   \
			}                                                     \
		}                                                             \
	} while (0)

/* The last steps of CORE_TREE, of 16 lanes. */
#define CORE_TREE16(result, lanes)                                            \
	do {                                                                  \
		_Pragma("GCC unroll 4")                                       \
		for (int n_ = 8 / CORE_WIDTH; n_; n_ /= 2) {                  \
			_Pragma("GCC unroll 4")                               \
			for (int p_ = 0; p_ < n_; p_++)                       \
				(lanes)[p_] += (lanes)[p_ + n_];              \
		}                                                             \
		CORE_LAST(result, (lanes)[0]);                                \
	} while (0)

/* 32 elements of a row, in the order in which the query has them. */
#define CORE_LOADS(LOAD, item_bytes, x, row)                                  \
	do {                                                                  \
		_Pragma("GCC unroll 8")                                       \
		for (int l_ = 0; l_ < (int)PARTS; l_++)                       \
			LOAD((x)[l_], (row) + (size_t)l_ * CORE_WIDTH *       \
						      (item_bytes));          \
	} while (0)
#define CORE_LOADS_FLOAT32(x, row) CORE_LOADS(CORE_LOAD_FLOAT32, 4, x, row)
#define CORE_LOADS_FLOAT16(x, row) CORE_LOADS(CORE_LOAD_FLOAT16, 2, x, row)
#define CORE_LOADS_INT8(x, row)	   CORE_LOADS(CORE_LOAD_INT8, 1, x, row)

/* Two bfloat16 of a word of 32 bits, as floats, are its low half moved up, and
 * its high half: first those of even numbers, then the others. */
#define CORE_LOADS_BFLOAT16(x, row)                                           \
	do {                                                                  \
		_Pragma("GCC unroll 4")                                       \
		for (int l_ = 0; l_ < (int)PARTS / 2; l_++) {                 \
			WORDS words_;                                         \
			memcpy(&words_, (row) + (size_t)l_ * sizeof(words_),  \
			       sizeof(words_));                               \
			CORE_ONCE(words_);                                    \
			(x)[l_] = (FLOATS)(words_ << 16);                     \
			(x)[l_ + (int)PARTS / 2] =                            \
				(FLOATS)(words_ & 0xffff0000u);               \
		}                                                             \
	} while (0)

/* CORE_TREE of lanes in that order: lane i is i / 2 of its half, so that only the
 * last two, 0 and 1, are of different halves. */
#define CORE_TREE_SPLIT(result, lanes)                                        \
	do {                                                                  \
		float odd_;                                                   \
		_Pragma("GCC unroll 4")                                       \
		for (int n_ = PARTS / 4; n_; n_ /= 2) {                       \
			_Pragma("GCC unroll 4")                               \
			for (int p_ = 0; p_ < n_; p_++) {                     \
				(lanes)[p_] += (lanes)[p_ + n_];              \
				(lanes)[(int)PARTS / 2 + p_] +=               \
					(lanes)[(int)PARTS / 2 + p_ + n_];    \
			}                                                     \
		}                                                             \
		CORE_LAST(result, (lanes)[0]);                                \
		CORE_LAST(odd_, (lanes)[PARTS / 2]);                          \
		(result) += odd_;                                             \
	} while (0)

static inline const uint8_t *CORE(row_of)(const struct ucm_score_run *run,
					  size_t i)
{
	uint64_t slot = run->slots ? (uint64_t)run->slots[i] : run->first + i;

	return run->base + slot * run->stride_bytes;
}

static inline const uint8_t *CORE(to_ask)(const struct ucm_score_run *run,
					  size_t step, size_t i)
{
	return CORE(row_of)(run, row_to_ask(run, step, i));
}

#define CORE_ASK(offset)                                                      \
	do {                                                                  \
		if (ask)                                                      \
			__builtin_prefetch(ahead + (offset));                 \
	} while (0)
#define CORE_ASK_NOTHING(offset) ((void)(offset))

/* BODY(run, width, ask), as CORE_BODY has them, with what most models have as
 * constants. */
#define CORE_BY_WIDTH(BODY, run)                                              \
	do {                                                                  \
		bool ask_ = rows_asked(run);                                  \
                                                                              \
		if ((run)->width == 128 && ask_)                              \
			BODY(run, 128, true);                                 \
		else if ((run)->width == 128)                                 \
			BODY(run, 128, false);                                \
		else if (ask_)                                                \
			BODY(run, (run)->width, true);                        \
		else                                                          \
			BODY(run, (run)->width, false);                       \
	} while (0)
#define CORE_BODY(name)                                                       \
CORE_TARGET static inline __attribute__((always_inline)) void                 \
CORE(name)(const struct ucm_score_run *run, const uint32_t width,             \
	   const bool ask)

#define CORE_SCORE_FUNCTIONS(name, LOADS, TREE, item_bytes, scaled)           \
CORE_TARGET static void CORE(rows_##name)(const struct ucm_score_run *run)    \
{                                                                             \
	uint32_t width = run->width;                                          \
	size_t head_bytes = (size_t)width * (item_bytes);                     \
	size_t step = rows_ahead(run);                                        \
	bool ask = rows_asked(run);                                           \
                                                                              \
	for (size_t i = 0; i < run->num; i++) {                               \
		const uint8_t *row = CORE(row_of)(run, i);                    \
		const uint8_t *ahead = CORE(to_ask)(run, step, i);            \
		const float *scales = (const float *)(row + run->scales_at);  \
		const float *query = run->query;                              \
		float *score = run->scores + i;                               \
                                                                              \
		for (uint32_t head = 0; head < run->num_heads; head++) {      \
			float scale = (scaled) ? scales[head] : 1;            \
                                                                              \
			if (ask)                                              \
				ask_for(ahead, head_bytes);                   \
			for (uint32_t j = 0; j < run->rows; j++) {            \
				FLOATS lanes[PARTS];                          \
				float sum;                                    \
                                                                              \
				CORE_DOT(lanes, LOADS, item_bytes, row,       \
					 query, width, CORE_ASK_NOTHING);     \
				TREE(sum, lanes);                             \
				*score = (scaled) ? sum * scale : sum;        \
				query += width;                               \
				score += run->stride;                         \
			}                                                     \
			row += head_bytes;                                    \
			ahead += head_bytes;                                  \
		}                                                             \
	}                                                                     \
}                                                                             \
                                                                              \
CORE_BODY(sum_body_##name)                                                    \
{                                                                             \
	size_t head_bytes = (size_t)width * (item_bytes);                     \
	size_t step = rows_ahead(run);                                        \
                                                                              \
	for (size_t i = 0; i < run->num; i++) {                               \
		const uint8_t *row = CORE(row_of)(run, i);                    \
		const uint8_t *ahead = CORE(to_ask)(run, step, i);            \
		const float *scales = (const float *)(row + run->scales_at);  \
		const float *query = run->query;                              \
		FLOATS all[PARTS];                                            \
                                                                              \
		_Pragma("GCC unroll 8")                                       \
		for (int p = 0; p < (int)PARTS; p++)                          \
			all[p] = (FLOATS){ 0 };                               \
		for (uint32_t head = 0; head < run->num_heads; head++) {      \
			FLOATS lanes[PARTS];                                  \
                                                                              \
			CORE_DOT(lanes, LOADS, item_bytes, row, query,        \
				 width, CORE_ASK);                            \
			_Pragma("GCC unroll 8")                               \
			for (int p = 0; p < (int)PARTS; p++)                  \
				all[p] += (scaled) ? lanes[p] * scales[head]  \
						   : lanes[p];                \
			query += width;                                       \
			row += head_bytes;                                    \
			ahead += head_bytes;                                  \
		}                                                             \
		TREE(run->scores[i], all);                                    \
	}                                                                     \
}                                                                             \
                                                                              \
CORE_TARGET static void CORE(sum_##name)(const struct ucm_score_run *run)     \
{                                                                             \
	CORE_BY_WIDTH(CORE(sum_body_##name), run);                            \
}

CORE_SCORE_FUNCTIONS(float32, CORE_LOADS_FLOAT32, CORE_TREE, 4, false)
CORE_SCORE_FUNCTIONS(float16, CORE_LOADS_FLOAT16, CORE_TREE, 2, false)
CORE_SCORE_FUNCTIONS(bfloat16, CORE_LOADS_BFLOAT16, CORE_TREE_SPLIT, 2, false)
CORE_SCORE_FUNCTIONS(int8, CORE_LOADS_INT8, CORE_TREE, 1, true)

/* ---- scores of int8 by a query in int16 ---- */

/*
 * Whole numbers add up to the same in any order, as long as none is too large:
 * 16 lanes, lane i with the elements 2 i and 2 i + 1 of each 32, have at most 128
 * products below 2^22 each. What is added of other heads, or of other lanes, is a
 * float again.
 */
#define INT_PARTS (16 / CORE_WIDTH)

CORE_TARGET static inline __attribute__((always_inline))
void CORE(int_dot)(INTS *lanes, const uint8_t *row, const int16_t *query,
		   uint32_t width)
{
	_Pragma("GCC unroll 4")
	for (int p = 0; p < (int)INT_PARTS; p++)
		lanes[p] = (INTS){ 0 };
	_Pragma("GCC unroll 4")
	for (uint32_t i = 0; i < width; i += LANES) {
		_Pragma("GCC unroll 4")
		for (int p = 0; p < (int)INT_PARTS; p++) {
			size_t at = i + (size_t)p * 2 * CORE_WIDTH;

			CORE_ADD_PRODUCTS(lanes[p], row + at, query + at);
		}
	}
}

CORE_TARGET static void CORE(rows_int)(const struct ucm_score_run *run)
{
	uint32_t width = run->width;
	size_t step = rows_ahead(run);
	bool ask = rows_asked(run);

	for (size_t i = 0; i < run->num; i++) {
		const uint8_t *row = CORE(row_of)(run, i);
		const uint8_t *ahead = CORE(to_ask)(run, step, i);
		const float *scales = (const float *)(row + run->scales_at);
		const int16_t *query = (const int16_t *)run->query;
		const float *steps = run->steps;
		float *score = run->scores + i;

		for (uint32_t head = 0; head < run->num_heads; head++) {
			if (ask)
				ask_for(ahead, width);
			for (uint32_t j = 0; j < run->rows; j++) {
				INTS lanes[INT_PARTS];
				FLOATS floats[INT_PARTS];
				float sum;

				CORE(int_dot)(lanes, row, query, width);
				_Pragma("GCC unroll 4")
				for (int p = 0; p < (int)INT_PARTS; p++)
					floats[p] = __builtin_convertvector(
						lanes[p], FLOATS);
				CORE_TREE16(sum, floats);
				*score = sum * (scales[head] * *steps++);
				query += width;
				score += run->stride;
			}
			row += width;
			ahead += width;
		}
	}
}

CORE_BODY(sum_body_int)
{
	size_t step = rows_ahead(run);

	for (size_t i = 0; i < run->num; i++) {
		const uint8_t *row = CORE(row_of)(run, i);
		const uint8_t *ahead = CORE(to_ask)(run, step, i);
		const float *scales = (const float *)(row + run->scales_at);
		const int16_t *query = (const int16_t *)run->query;
		FLOATS all[INT_PARTS] = { { 0 } };

		for (uint32_t head = 0; head < run->num_heads; head++) {
			float factor = scales[head] * run->steps[head];
			INTS lanes[INT_PARTS];

			if (ask)
				ask_for(ahead, width);
			CORE(int_dot)(lanes, row, query, width);
			_Pragma("GCC unroll 4")
			for (int p = 0; p < (int)INT_PARTS; p++)
				all[p] += __builtin_convertvector(lanes[p],
								  FLOATS) *
					  factor;
			row += width;
			ahead += width;
			query += width;
		}
		CORE_TREE16(run->scores[i], all);
	}
}

CORE_TARGET static void CORE(sum_int)(const struct ucm_score_run *run)
{
	CORE_BY_WIDTH(CORE(sum_body_int), run);
}

/* A score is made of each row of the query, also where their mean is wanted:
 * distances are not linear. */
#define CORE_DISTANCE_FUNCTION(name, LOAD, item_bytes, scaled)                \
CORE_TARGET static float CORE(apart_##name)(const uint8_t *row,               \
					    const float *query,               \
					    uint32_t width, float scale)      \
{                                                                             \
	FLOATS lanes[PARTS];                                                  \
	float sum;                                                            \
                                                                              \
	_Pragma("GCC unroll 8")                                               \
	for (int p = 0; p < (int)PARTS; p++)                                  \
		lanes[p] = (FLOATS){ 0 };                                     \
	for (uint32_t i = 0; i < width; i += LANES) {                         \
		_Pragma("GCC unroll 8")                                       \
		for (int p = 0; p < (int)PARTS; p++) {                        \
			size_t at = i + (size_t)p * CORE_WIDTH;               \
			FLOATS x, y;                                          \
			LOAD(x, row + at * (item_bytes));                     \
			memcpy(&y, query + at, sizeof(y));                    \
			y -= (scaled) ? x * scale : x;                        \
			lanes[p] += y * y;                                    \
		}                                                             \
	}                                                                     \
	CORE_TREE(sum, lanes);                                                \
	return -sqrtf(sum);                                                   \
}                                                                             \
                                                                              \
CORE_TARGET static void CORE(distance_##name)(const struct ucm_score_run *run) \
{                                                                             \
	size_t head_bytes = (size_t)run->width * (item_bytes);                \
                                                                              \
	for (size_t i = 0; i < run->num; i++) {                               \
		const uint8_t *row = CORE(row_of)(run, i);                    \
		const float *scales = (const float *)(row + run->scales_at);  \
		const float *query = run->query;                              \
		float total = 0;                                              \
                                                                              \
		for (uint32_t head = 0; head < run->num_heads; head++) {      \
			float scale = (scaled) ? scales[head] : 1, sum = 0;   \
                                                                              \
			for (uint32_t j = 0; j < run->rows; j++) {            \
				float one = CORE(apart_##name)(               \
					row, query, run->width, scale);       \
				size_t at = (size_t)head * run->rows + j;     \
				query += run->width;                          \
				sum += one;                                   \
				if (run->per == UCM_SCORE_HEAD)               \
					run->scores[at * run->stride + i] = one; \
			}                                                     \
			sum /= (float)run->rows;                              \
			total += sum;                                         \
			if (run->per == UCM_SCORE_GROUP)                      \
				run->scores[head * run->stride + i] = sum;    \
			row += head_bytes;                                    \
		}                                                             \
		if (run->per == UCM_SCORE_BLOCK)                              \
			run->scores[i] = total;                               \
	}                                                                     \
}

CORE_DISTANCE_FUNCTION(float32, CORE_LOAD_FLOAT32, 4, false)
CORE_DISTANCE_FUNCTION(float16, CORE_LOAD_FLOAT16, 2, false)
CORE_DISTANCE_FUNCTION(bfloat16, CORE_LOAD_BFLOAT16, 2, false)
CORE_DISTANCE_FUNCTION(int8, CORE_LOAD_INT8, 1, true)

/* ucm_weight(), for vectors. */
#define CORE_EXP(result, x)                                                   \
	do {                                                                  \
		FLOATS x_ = (x), n_, r_, e_;                                  \
		INTS there_ = x_ >= UCM_WEIGHT_LEAST;                         \
		WORDS power_;                                                 \
		n_ = x_ * UCM_WEIGHT_LOG2E + UCM_WEIGHT_ROUND;                \
		power_ = (WORDS)n_ << 23;                                     \
		n_ -= UCM_WEIGHT_ROUND;                                       \
		r_ = x_ - n_ * UCM_WEIGHT_LN2_HIGH -                          \
		     n_ * UCM_WEIGHT_LN2_LOW;                                 \
		e_ = r_ * (1 / 5040.0f) + 1 / 720.0f;                         \
		e_ = e_ * r_ + 1 / 120.0f;                                    \
		e_ = e_ * r_ + 1 / 24.0f;                                     \
		e_ = e_ * r_ + 1 / 6.0f;                                      \
		e_ = e_ * r_ + 0.5f;                                          \
		e_ = e_ * (r_ * r_) + r_ + 1.0f;                              \
		(result) = (FLOATS)((INTS)((WORDS)e_ + power_) & there_);     \
	} while (0)

#include "sparse/kernels_star.h"

/* ---- selection ---- */

CORE_TARGET static bool CORE(range)(const float *scores, size_t num,
				    float *least, float *most)
{
	float low = scores[0], high = scores[0];
	bool numbers = true;
	size_t i = 0;

	if (num >= CORE_WIDTH) {
		INTS right = (INTS){ 0 } - 1;
		FLOATS x, lows, highs;

		memcpy(&lows, scores, sizeof(lows));
		highs = lows;
		for (; i + CORE_WIDTH <= num; i += CORE_WIDTH) {
			INTS below, above;

			memcpy(&x, scores + i, sizeof(x));
			right &= x == x;
			below = x < lows;
			above = x > highs;
			lows = (FLOATS)(((INTS)x & below) |
					((INTS)lows & ~below));
			highs = (FLOATS)(((INTS)x & above) |
					 ((INTS)highs & ~above));
		}
		low = lows[0];
		high = highs[0];
		for (int j = 0; j < CORE_WIDTH; j++) {
			numbers &= right[j] != 0;
			low = lows[j] < low ? lows[j] : low;
			high = highs[j] > high ? highs[j] : high;
		}
	}
	for (; i < num; i++) {
		numbers &= scores[i] == scores[i];
		low = scores[i] < low ? scores[i] : low;
		high = scores[i] > high ? scores[i] : high;
	}
	*least = low;
	*most = high;
	return numbers;
}

CORE_TARGET static size_t CORE(count)(const float *scores, size_t num,
				      float least)
{
	INTS counts[4] = { { 0 } }, all;
	FLOATS limit = (FLOATS){ 0 } + least;
	size_t i = 0, total = 0;

	for (; i + 4 * CORE_WIDTH <= num; i += 4 * CORE_WIDTH) {
		_Pragma("GCC unroll 4")
		for (int j = 0; j < 4; j++) {
			FLOATS x;

			memcpy(&x, scores + i + j * CORE_WIDTH, sizeof(x));
			counts[j] -= x >= limit; /* true is -1 */
		}
	}
	all = (counts[0] + counts[1]) + (counts[2] + counts[3]);
	for (int j = 0; j < CORE_WIDTH; j++)
		total += (uint32_t)all[j];
	for (; i < num; i++)
		total += scores[i] >= least;
	return total;
}

CORE_TARGET static size_t CORE(pick)(const float *scores, size_t num,
				     float limit, size_t equal, uint32_t base,
				     uint32_t *out)
{
	FLOATS limits = (FLOATS){ 0 } + limit;
	uint32_t *end = out;
	size_t i = 0;

	for (; i + CORE_WIDTH <= num; i += CORE_WIDTH) {
		unsigned mask = 0;
		FLOATS x;

		memcpy(&x, scores + i, sizeof(x));
		CORE_AT_LEAST(mask, x, limits);
		for (; mask; mask &= mask - 1) {
			size_t at = i + (unsigned)__builtin_ctz(mask);

			if (scores[at] == limit) {
				if (!equal)
					continue;
				equal--;
			}
			*end++ = base + (uint32_t)at;
		}
	}
	for (; i < num; i++) {
		if (scores[i] < limit || (scores[i] == limit && !equal))
			continue;
		equal -= scores[i] == limit;
		*end++ = base + (uint32_t)i;
	}
	return (size_t)(end - out);
}

#include "sparse/position_core.h"

static const struct ucm_sparse_kernels CORE(kernels) = {
	.name = CORE_TEXT(CORE_NAME),
	.widen = {
		[UCM_DTYPE_FLOAT32] = CORE(widen_float32),
		[UCM_DTYPE_FLOAT16] = CORE(widen_float16),
		[UCM_DTYPE_BFLOAT16] = CORE(widen_bfloat16),
	},
	.add = CORE(add),
	.largest = CORE(largest),
	.smallest = CORE(smallest),
	.score_rows = {
		[UCM_DTYPE_FLOAT32] = CORE(rows_float32),
		[UCM_DTYPE_FLOAT16] = CORE(rows_float16),
		[UCM_DTYPE_BFLOAT16] = CORE(rows_bfloat16),
		[UCM_DTYPE_INT8] = CORE(rows_int8),
	},
	.score_sum = {
		[UCM_DTYPE_FLOAT32] = CORE(sum_float32),
		[UCM_DTYPE_FLOAT16] = CORE(sum_float16),
		[UCM_DTYPE_BFLOAT16] = CORE(sum_bfloat16),
		[UCM_DTYPE_INT8] = CORE(sum_int8),
	},
	.rows_int = CORE(rows_int),
	.sum_int = CORE(sum_int),
	.score_distance = {
		[UCM_DTYPE_FLOAT32] = CORE(distance_float32),
		[UCM_DTYPE_FLOAT16] = CORE(distance_float16),
		[UCM_DTYPE_BFLOAT16] = CORE(distance_bfloat16),
		[UCM_DTYPE_INT8] = CORE(distance_int8),
	},
	.star = {
		[UCM_DTYPE_FLOAT32] = CORE(star_float32),
		[UCM_DTYPE_FLOAT16] = CORE(star_float16),
		[UCM_DTYPE_BFLOAT16] = CORE(star_bfloat16),
		[UCM_DTYPE_INT8] = CORE(star_int8),
	},
	.star_vote = CORE(star_vote),
	.range = CORE(range),
	.count = CORE(count),
	.pick = CORE(pick),
	CORE_POSITION_KERNELS
};

/* What the next inclusion says otherwise; other macros are the same for all. */
#undef CORE_NAME
#undef CORE_WIDTH
#undef CORE_TARGET
#undef CORE_LOAD_FLOAT16
#undef CORE_LOAD_BFLOAT16
#undef CORE_LOAD_INT8
#undef CORE_STORE_FLOAT16
#undef CORE_STORE_BFLOAT16
#undef CORE_PACK
#undef CORE_ONE_MORE
#undef CORE_SWAPPED
#undef CORE_ADD_PRODUCTS
#undef CORE_LAST
#undef CORE_MOST
#undef CORE_AT_LEAST
