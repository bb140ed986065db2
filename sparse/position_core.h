/* SPDX-License-Identifier: Apache-2.0 */
/*
 * position_core.h - the part of kernels_core.h that is for <ucm/position.h>; no
 * header of its own. Besides what is said there, it is included with
 *
 *   CORE_STORE_*  (to, v): a vector of floats, each rounded to the nearest
 *   CORE_SWAPPED  (v): element 2 i and 2 i + 1 in each other's place
 */

typedef uint32_t CORE(words) __attribute__((vector_size(4 * CORE_WIDTH)));
#define WORDS CORE(words)

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

#define CORE_ROTATE_ROW(name, LOAD, STORE, item_bytes)                        \
	do {                                                                  \
		size_t i = 0;                                                 \
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

#define CORE_ROTATE_FUNCTION(name, LOAD, STORE, item_bytes)                   \
CORE_TARGET static void CORE(rotate_##name)(const struct ucm_rotate_run *run) \
{                                                                             \
	const float *cosines = run->cosines, *sines = run->sines;             \
	size_t half = run->rotary / 2, rest = run->dim - run->rotary;         \
                                                                              \
	for (uint32_t j = 0; j < run->outer; j++) {                           \
		const uint8_t *from = run->from + j * run->from_outer;        \
		uint8_t *to = run->to + j * run->to_outer;                    \
                                                                              \
		for (uint32_t k = 0; k < run->inner; k++) {                   \
			CORE_ROTATE_ROW(name, LOAD, STORE, item_bytes);       \
			from += run->from_inner;                              \
			to += run->to_inner;                                  \
		}                                                             \
	}                                                                     \
}

CORE_ROTATE_FUNCTION(float32, CORE_LOAD_FLOAT32, CORE_STORE_FLOAT32, 4)
CORE_ROTATE_FUNCTION(float16, CORE_LOAD_FLOAT16, CORE_STORE_FLOAT16, 2)
CORE_ROTATE_FUNCTION(bfloat16, CORE_LOAD_BFLOAT16, CORE_STORE_BFLOAT16, 2)

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
	WORDS x, found = { 0 };
	uint32_t all = 0;
	size_t i = 0;

	for (; i + sizeof(x) <= bytes; i += sizeof(x)) {
		memcpy(&x, from + i, sizeof(x));
		found |= (x & ~signs) + one;
	}
	if (i < bytes) {
		x = (WORDS){ 0 };
		memcpy(&x, from + i, bytes - i);
		found |= (x & ~signs) + one;
	}
	for (int j = 0; j < CORE_WIDTH; j++)
		all |= found[j];
	return !(all & signs);
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
			 (const uint8_t *)(rows + i * width), query, width);
		CORE_TREE(out[i], lanes);
	}
}

/* ucm_weight(), for vectors. */
CORE_TARGET static void CORE(weights)(float *at, float most)
{
	for (size_t i = 0; i < UCM_TILE_TOKENS; i += CORE_WIDTH) {
		FLOATS x, n, r, sum;
		WORDS none, power;

		memcpy(&x, at + i, sizeof(x));
		x -= most;
		none = ~(WORDS)(x >= UCM_WEIGHT_LEAST);
		x = (FLOATS)((WORDS)x & ~none); /* exp(0), which goes below */
		n = x * UCM_WEIGHT_LOG2E + UCM_WEIGHT_ROUND;
		power = (WORDS)n << 23;
		n -= UCM_WEIGHT_ROUND;
		r = x - n * UCM_WEIGHT_LN2_HIGH - n * UCM_WEIGHT_LN2_LOW;
		sum = r * (1 / 5040.0f) + 1 / 720.0f;
		sum = sum * r + 1 / 120.0f;
		sum = sum * r + 1 / 24.0f;
		sum = sum * r + 1 / 6.0f;
		sum = sum * r + 0.5f;
		sum = sum * (r * r) + r + 1.0f;
		sum = (FLOATS)(((WORDS)sum + power) & ~none);
		memcpy(at + i, &sum, sizeof(sum));
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

#undef WORDS
#undef CORE_STORE_FLOAT32
#undef CORE_ROTATE_HALVES
#undef CORE_ROTATE_NEIGHBOURS
#undef CORE_ROTATE_PAIR
#undef CORE_ROTATE_ROW
#undef CORE_ROTATE_FUNCTION
#undef CORE_UNPACK_FUNCTION
#undef CORE_WEIGH
