/* SPDX-License-Identifier: Apache-2.0 */
/*
 * position_core.h - the part of kernels_core.h that is for <ucm/position.h>; no
 * header of its own. Besides what is said there, it is included with
 *
 *   CORE_STORE_*  (to, v): a vector of floats, each rounded to the nearest
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

#define CORE_ROTATE_FUNCTION(name, LOAD, STORE, item_bytes)                   \
CORE_TARGET static void CORE(rotate_##name)(const struct ucm_rotate_run *run) \
{                                                                             \
	const float *cosines = run->table->cosines;                           \
	const float *sines = run->table->sines;                               \
	size_t half = run->rotary / 2, rest = run->dim - run->rotary;         \
                                                                              \
	for (uint64_t row = 0; row < (uint64_t)run->outer * run->inner;       \
	     row++) {                                                         \
		int64_t j = (int64_t)(row / run->inner);                      \
		int64_t k = (int64_t)(row % run->inner);                      \
		const uint8_t *from = run->from + j * run->from_outer +       \
				      k * run->from_inner;                    \
		uint8_t *to = run->to + j * run->to_outer +                   \
			      k * run->to_inner;                              \
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
			memcpy(to + run->rotary * (item_bytes),               \
			       from + run->rotary * (item_bytes),             \
			       rest * (item_bytes));                          \
	}                                                                     \
}

CORE_ROTATE_FUNCTION(float32, CORE_LOAD_FLOAT32, CORE_STORE_FLOAT32, 4)
CORE_ROTATE_FUNCTION(float16, CORE_LOAD_FLOAT16, CORE_STORE_FLOAT16, 2)
CORE_ROTATE_FUNCTION(bfloat16, CORE_LOAD_BFLOAT16, CORE_STORE_BFLOAT16, 2)

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

#define CORE_POSITION_KERNELS                                                 \
	.rotate = {                                                           \
		[UCM_DTYPE_FLOAT32] = CORE(rotate_float32),                   \
		[UCM_DTYPE_FLOAT16] = CORE(rotate_float16),                   \
		[UCM_DTYPE_BFLOAT16] = CORE(rotate_bfloat16),                 \
	},                                                                    \
	.distance = CORE(distance),

#undef CORE_STORE_FLOAT32
#undef CORE_ROTATE_HALVES
#undef CORE_ROTATE_NEIGHBOURS
#undef CORE_ROTATE_PAIR
#undef CORE_ROTATE_FUNCTION
