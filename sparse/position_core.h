/* SPDX-License-Identifier: Apache-2.0 */
/*
 * position_core.h - the part of kernels_core.h that is for <ucm/position.h>; no
 * header of its own. Besides what is said there, it is included with
 *
 *   CORE_STORE_*  (to, v): a vector of floats, each rounded to the nearest
 *   CORE_PACK     (high, low, x, y): the upper halves of the words x and y, and
 *                 their lower ones, those of x in even places
 *   CORE_ONE_MORE (high, low, limit): add 1 where low is above limit
 *   CORE_SWAPPED  (v): element 2 i and 2 i + 1 in each other's place
 */

/* ---- rotations ---- */

#define CORE_STORE_FLOAT32(to, v) memcpy(to, &(v), sizeof(v))

/* Pairs of a row: channels i and i + half. */
#define CORE_ROTATE_HALVES(LOAD, STORE, item_bytes)                           \
	for (; i + CORE_WIDTH <= half; i += CORE_WIDTH) {                     \
		FLOATS x, y, c, s, a, b;                                      \
                                                                              \
		LOAD(x, from + i * (item_bytes));                             \
		LOAD(y, from + (half + i) * (item_bytes));                    \
		memcpy(&c, cosines + i, sizeof(c));                           \
		memcpy(&s, sines + half + i, sizeof(s));                      \
		a = x * c - y * s;                                            \
		b = y * c + x * s;                                            \
		STORE(to + i * (item_bytes), a);                              \
		STORE(to + (half + i) * (item_bytes), b);                     \
	}

/* Channels i and i + 1. */
#define CORE_ROTATE_NEIGHBOURS(LOAD, STORE, item_bytes)                       \
	for (; i + CORE_WIDTH <= 2 * half; i += CORE_WIDTH) {                 \
		FLOATS x, c, s, a;                                            \
                                                                              \
		LOAD(x, from + i * (item_bytes));                             \
		memcpy(&c, cosines + i, sizeof(c));                           \
		memcpy(&s, sines + i, sizeof(s));                             \
		a = x * c + CORE_SWAPPED(x) * s;                              \
		STORE(to + i * (item_bytes), a);                              \
	}

/* The same, one by one. */
#define CORE_ROTATE_PAIR(name, item_bytes, first, second)                     \
	do {                                                                  \
		size_t k_ = (first), l_ = (second);                           \
		float x_ = ucm_item_##name(from + k_ * (item_bytes));         \
		float y_ = ucm_item_##name(from + l_ * (item_bytes));         \
		ucm_item_set_##name(to + k_ * (item_bytes),                   \
				    ucm_rotated(x_, y_, cosines[k_],          \
						sines[k_]));                  \
		ucm_item_set_##name(to + l_ * (item_bytes),                   \
				    ucm_rotated(y_, x_, cosines[l_],          \
						sines[l_]));                  \
	} while (0)

/* A row, from such a channel on. */
#define CORE_ROTATE_ROW(name, LOAD, STORE, item_bytes, first_channel)         \
	do {                                                                  \
		size_t i = (first_channel);                                   \
                                                                              \
		if (run->neighbours) {                                        \
			CORE_ROTATE_NEIGHBOURS(LOAD, STORE, item_bytes)       \
			for (; i < 2 * half; i += 2)                          \
				CORE_ROTATE_PAIR(name, item_bytes, i, i + 1); \
		} else {                                                      \
			CORE_ROTATE_HALVES(LOAD, STORE, item_bytes)           \
			for (; i < half; i++)                                 \
				CORE_ROTATE_PAIR(name, item_bytes, i,         \
						 half + i);                   \
		}                                                             \
		if (rest && to != from)                                       \
			memcpy(to + 2 * half * (item_bytes),                  \
			       from + 2 * half * (item_bytes),                \
			       rest * (item_bytes));                          \
	} while (0)

/* ROW for all rows of a run. */
#define CORE_ROTATE_ROWS(ROW)                                                 \
	for (uint32_t j = 0; j < run->outer; j++) {                           \
		const uint8_t *from = run->from + j * run->from_outer;        \
		uint8_t *to = run->to + j * run->to_outer;                    \
                                                                              \
		for (uint32_t k = 0; k < run->inner; k++) {                   \
			ROW;                                                  \
			from += run->from_inner;                              \
			to += run->to_inner;                                  \
		}                                                             \
	}

#define CORE_ROTATE_FUNCTION(name, LOAD, STORE, item_bytes)                   \
CORE_TARGET static void CORE(rotate_##name)(const struct ucm_rotate_run *run) \
{                                                                             \
	const float *cosines = run->cosines, *sines = run->sines;             \
	size_t half = run->rotary / 2, rest = run->dim - run->rotary;         \
                                                                              \
	CORE_ROTATE_ROWS(CORE_ROTATE_ROW(name, LOAD, STORE, item_bytes, 0))   \
}

CORE_ROTATE_FUNCTION(float32, CORE_LOAD_FLOAT32, CORE_STORE_FLOAT32, 4)
CORE_ROTATE_FUNCTION(float16, CORE_LOAD_FLOAT16, CORE_STORE_FLOAT16, 2)

/*
 * bfloat16: a word of 32 bits has an even element and an odd one, which are floats
 * by a shift and by a mask. So even and odd elements are in vectors of their own,
 * and cosines and sines lie as they do. Results are cut in two, and their halves
 * packed: those that remain, and those that are rounded away and say which of the
 * others is to be one larger. Rounding is the dearest part of a rotation, and so
 * it is done for twice as many at a time.
 */
#define CORE_PAIRS (2 * CORE_WIDTH) /* bfloat16 of a vector */

typedef uint16_t CORE(shorts) __attribute__((vector_size(4 * CORE_WIDTH)));
#define SHORTS CORE(shorts)

CORE_TARGET static inline __attribute__((always_inline)) void
CORE(store_packed)(uint8_t *to, const FLOATS *even, const FLOATS *odd)
{
	WORDS x = (WORDS)*even, y = (WORDS)*odd;
	SHORTS high, low;

	CORE_PACK(high, low, x, y);
	CORE_ONE_MORE(high, low, 0x8000 - (high & 1));
	memcpy(to, &high, sizeof(high));
}

/* Whole vectors of a table, even elements before odd ones in each. */
CORE_TARGET static void CORE(split)(float *to, const float *from, size_t num)
{
	for (size_t i = 0; i < num; i += CORE_PAIRS) {
		for (size_t j = 0; j < CORE_WIDTH; j++) {
			to[i + j] = from[i + 2 * j];
			to[i + CORE_WIDTH + j] = from[i + 2 * j + 1];
		}
	}
}

/* Even and odd elements of a vector, as floats. */
CORE_TARGET static inline __attribute__((always_inline)) void
CORE(load_packed)(FLOATS *even, FLOATS *odd, const uint8_t *from)
{
	WORDS x;

	memcpy(&x, from, sizeof(x));
	*even = (FLOATS)(x << 16);
	*odd = (FLOATS)(x & 0xffff0000u);
}

/* x and y rotated by c and s. */
CORE_TARGET static inline __attribute__((always_inline)) void
CORE(turn)(FLOATS *x, FLOATS *y, const float *cosines, const float *sines)
{
	FLOATS c, s, a;

	memcpy(&c, cosines, sizeof(c));
	memcpy(&s, sines, sizeof(s));
	a = *x * c - *y * s;
	*y = *y * c + *x * s;
	*x = a;
}

/* Channels i and i + half of a row, up to i = end. */
CORE_TARGET static inline __attribute__((always_inline)) void
CORE(turn_halves)(uint8_t *to, const uint8_t *from, size_t half, size_t end,
		  const float *cosines, const float *sines)
{
	_Pragma("GCC unroll 4")
	for (size_t i = 0; i < end; i += CORE_PAIRS) {
		FLOATS x[2], y[2];

		CORE(load_packed)(&x[0], &x[1], from + 2 * i);
		CORE(load_packed)(&y[0], &y[1], from + 2 * (half + i));
		CORE(turn)(&x[0], &y[0], cosines + i, sines + i);
		CORE(turn)(&x[1], &y[1], cosines + i + CORE_WIDTH,
			   sines + i + CORE_WIDTH);
		CORE(store_packed)(to + 2 * i, &x[0], &x[1]);
		CORE(store_packed)(to + 2 * (half + i), &y[0], &y[1]);
	}
}

/* Channels i and i + 1: the two of a word. */
CORE_TARGET static inline __attribute__((always_inline)) void
CORE(turn_words)(uint8_t *to, const uint8_t *from, size_t end,
		 const float *cosines, const float *sines)
{
	_Pragma("GCC unroll 4")
	for (size_t i = 0; i < end; i += CORE_PAIRS) {
		FLOATS x, y;

		CORE(load_packed)(&x, &y, from + 2 * i);
		CORE(turn)(&x, &y, cosines + i, sines + i + CORE_WIDTH);
		CORE(store_packed)(to + 2 * i, &x, &y);
	}
}

CORE_TARGET static void CORE(rotate_bfloat16)(const struct ucm_rotate_run *run)
{
	const float *cosines = run->cosines, *sines = run->sines;
	size_t half = run->rotary / 2, rest = run->dim - run->rotary;
	size_t end = run->neighbours ? 2 * half : half;
	float split_cosines[UCM_REPR_HEAD_DIM_MAX] __attribute__((aligned(64)));
	float split_sines[UCM_REPR_HEAD_DIM_MAX] __attribute__((aligned(64)));

	end -= end % CORE_PAIRS;
	CORE(split)(split_cosines, cosines, end);
	CORE(split)(split_sines, run->neighbours ? sines : sines + half, end);
	if (run->dim != 128 || half != 64) {
		CORE_ROTATE_ROWS({
			if (run->neighbours)
				CORE(turn_words)(to, from, end, split_cosines,
						 split_sines);
			else
				CORE(turn_halves)(to, from, half, end,
						  split_cosines, split_sines);
			CORE_ROTATE_ROW(bfloat16, CORE_LOAD_BFLOAT16,
					CORE_STORE_BFLOAT16, 2, end);
		})
	} else if (run->neighbours) { /* 128 channels: of most models */
		CORE_ROTATE_ROWS(CORE(turn_words)(to, from, 128, split_cosines,
						  split_sines))
	} else {
		CORE_ROTATE_ROWS(CORE(turn_halves)(to, from, 64, 64,
						   split_cosines, split_sines))
	}
}

/* ---- rows ---- */

/* Numbers that are not finite have all bits of the exponent set: to add one to
 * the exponent sets the bit of the sign, which has been cleared. */
CORE_TARGET static bool CORE(finite)(const uint8_t *from, size_t bytes,
				     uint32_t dtype)
{
	uint32_t signs = dtype == UCM_DTYPE_FLOAT32 ? 0x80000000 : 0x80008000;
	uint32_t one = dtype == UCM_DTYPE_FLOAT32    ? 0x800000
		       : dtype == UCM_DTYPE_BFLOAT16 ? 0x800080
						     : 0x4000400;
	WORDS found[4] = { { 0 } };
	uint64_t all[sizeof(WORDS) / sizeof(uint64_t)], any = 0;
	size_t i = 0;

	for (; i + sizeof(found) <= bytes; i += sizeof(found)) {
		_Pragma("GCC unroll 4")
		for (size_t j = 0; j < 4; j++) {
			WORDS x;

			memcpy(&x, from + i + j * sizeof(x), sizeof(x));
			found[j] |= (x & ~signs) + one;
		}
	}
	for (; i < bytes; i += sizeof(WORDS)) {
		size_t left = bytes - i;
		WORDS x = { 0 };

		memcpy(&x, from + i, left < sizeof(x) ? left : sizeof(x));
		found[0] |= (x & ~signs) + one;
	}
	found[0] = ((found[0] | found[1]) | (found[2] | found[3])) & signs;
	memcpy(all, &found[0], sizeof(all));
	for (size_t j = 0; j < sizeof(all) / sizeof(all[0]); j++)
		any |= all[j];
	return !any;
}

/* ---- deviation ---- */

/* Lanes are as in kernels.c: lane i takes the elements i, i + 32, ... */
CORE_TARGET static void CORE(distance)(float *lanes, const float *a,
				       const float *b, size_t num)
{
	for (size_t i = 0; i < num; i += CORE_WIDTH) {
		FLOATS x, y, sum;

		memcpy(&x, a + i, sizeof(x));
		memcpy(&y, b + i, sizeof(y));
		memcpy(&sum, lanes + i % LANES, sizeof(sum));
		sum += (FLOATS)((INTS)(x - y) & 0x7fffffff);
		memcpy(lanes + i % LANES, &sum, sizeof(sum));
	}
}

/* ---- attention ---- */

#define CORE_UNPACK_FUNCTION(name, LOAD, item_bytes)                          \
CORE_TARGET static void CORE(unpack_##name)(float *to, size_t width,          \
					    const uint8_t *from,              \
					    int64_t stride, size_t num,       \
					    size_t dim)                       \
{                                                                             \
	for (size_t row = 0; row < num; row++) {                              \
		size_t i = 0;                                                 \
                                                                              \
		for (; i + CORE_WIDTH <= dim; i += CORE_WIDTH) {              \
			FLOATS x;                                             \
                                                                              \
			LOAD(x, from + i * (item_bytes));                     \
			memcpy(to + i, &x, sizeof(x));                        \
		}                                                             \
		for (; i < dim; i++)                                          \
			to[i] = ucm_item_##name(from + i * (item_bytes));     \
		to += width;                                                  \
		from += stride;                                               \
	}                                                                     \
}

CORE_UNPACK_FUNCTION(float32, CORE_LOAD_FLOAT32, 4)
CORE_UNPACK_FUNCTION(float16, CORE_LOAD_FLOAT16, 2)
CORE_UNPACK_FUNCTION(bfloat16, CORE_LOAD_BFLOAT16, 2)

CORE_TARGET static void CORE(products)(float *out, const float *query,
				       const float *rows, size_t num,
				       size_t width)
{
	for (size_t i = 0; i < num; i++) {
		FLOATS lanes[PARTS];

		CORE_DOT(lanes, CORE_LOAD_FLOAT32, 4,
			 (const uint8_t *)(rows + i * width), query, width,
			 CORE_ASK_NOTHING);
		CORE_TREE(out[i], lanes);
	}
}

CORE_TARGET static void CORE(weights)(float *at, float most)
{
	for (size_t i = 0; i < UCM_TILE_TOKENS; i += CORE_WIDTH) {
		FLOATS x;

		memcpy(&x, at + i, sizeof(x));
		CORE_EXP(x, x - most);
		memcpy(at + i, &x, sizeof(x));
	}
}

/* So many vectors of the sum at a time, for their additions wait for each other. */
#define CORE_WEIGH(vectors)                                                   \
	for (; i + (vectors) * CORE_WIDTH <= width;                           \
	     i += (vectors) * CORE_WIDTH) {                                   \
		FLOATS sums[vectors], x;                                      \
                                                                              \
		_Pragma("GCC unroll 8")                                       \
		for (size_t p = 0; p < (vectors); p++) {                      \
			memcpy(&x, sum + i + p * CORE_WIDTH, sizeof(x));      \
			sums[p] = x * factor;                                 \
		}                                                             \
		for (size_t j = 0; j < num; j++) {                            \
			const float *row = rows + j * width + i;              \
                                                                              \
			_Pragma("GCC unroll 8")                               \
			for (size_t p = 0; p < (vectors); p++) {              \
				memcpy(&x, row + p * CORE_WIDTH, sizeof(x));  \
				sums[p] += x * weights[j];                    \
			}                                                     \
		}                                                             \
		_Pragma("GCC unroll 8")                                       \
		for (size_t p = 0; p < (vectors); p++)                        \
			memcpy(sum + i + p * CORE_WIDTH, &sums[p],            \
			       sizeof(x));                                    \
	}

CORE_TARGET static void CORE(weigh)(float *sum, float factor,
				    const float *weights, const float *rows,
				    size_t num, size_t width)
{
	size_t i = 0;

	CORE_WEIGH(8)
	CORE_WEIGH(1)
}

#define CORE_POSITION_KERNELS                                                 \
	.rotate = {                                                           \
		[UCM_DTYPE_FLOAT32] = CORE(rotate_float32),                   \
		[UCM_DTYPE_FLOAT16] = CORE(rotate_float16),                   \
		[UCM_DTYPE_BFLOAT16] = CORE(rotate_bfloat16),                 \
	},                                                                    \
	.finite = CORE(finite),                                               \
	.distance = CORE(distance),                                           \
	.unpack = {                                                           \
		[UCM_DTYPE_FLOAT32] = CORE(unpack_float32),                   \
		[UCM_DTYPE_FLOAT16] = CORE(unpack_float16),                   \
		[UCM_DTYPE_BFLOAT16] = CORE(unpack_bfloat16),                 \
	},                                                                    \
	.products = CORE(products),                                           \
	.weights = CORE(weights),                                             \
	.weigh = CORE(weigh),
