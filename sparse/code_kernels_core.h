/* SPDX-License-Identifier: Apache-2.0 */
/*
 * code_kernels_core.h - the loops of code_kernels.c, for one instruction set;
 * no header of its own. Included with
 *
 *   CORE_NAME, CORE_TARGET  as in kernels_core.h
 *   CORE_QUADS     words of a vector, a divisor of UCM_CODE_TILE
 *   CORE_SINGLES   floats of a vector
 *   CORE_VECTORS   vectors that are rotated at once, ...
 *   CORE_SPAN      ... by so many columns, a divisor of 64
 *   CORE_POPCOUNT  (v): the bits that are set in each word of v, in its place
 *   CORE_TIMES     (v, weight): words below 2^32 times such a number
 *   CORE_LEAST     (v, x): the lesser of each two words, all below 2^32 or with
 *                  all bits set, in the place of v
 *   CORE_ADD_UP    (result, v): the sum of the words
 *   CORE_NORMS     (to, from): CORE_QUADS bfloat16 to floats
 *   CORE_MOST      (v, x): the larger of each two floats, in the place of v
 *   CORE_POSITIVE  (mask, v): a bit in mask, which is 0, for each float above 0
 */
#define CORE_PASTE2(a, b) a##_##b
#define CORE_PASTE(a, b)  CORE_PASTE2(a, b)
#define CORE(name)	  CORE_PASTE(CORE_NAME, name)
#define CORE_TEXT2(name)  #name
#define CORE_TEXT(name)	  CORE_TEXT2(name)

typedef uint64_t CORE(quads) __attribute__((vector_size(8 * CORE_QUADS)));
typedef uint32_t CORE(halves) __attribute__((vector_size(4 * CORE_QUADS)));
typedef float CORE(singles) __attribute__((vector_size(4 * CORE_SINGLES)));
#define QUADS	CORE(quads)
#define HALVES	CORE(halves)
#define SINGLES CORE(singles)
#define STEPS	((int)(CORE_SPAN / CORE_SINGLES))

/* ---- encoding ---- */

/* vectors is a constant where it is inlined. */
CORE_TARGET static inline __attribute__((always_inline)) void
CORE(rotate_span)(const float *matrix, size_t stride, const float *from,
		  size_t dim_stride, const int vectors, uint32_t dim,
		  float *sums, uint64_t *signs, unsigned first)
{
	SINGLES lanes[CORE_VECTORS][STEPS];

	_Pragma("GCC unroll 4")
	for (int i = 0; i < vectors; i++) {
		_Pragma("GCC unroll 8")
		for (int j = 0; j < STEPS; j++)
			lanes[i][j] = (SINGLES){ 0 };
	}
	for (uint32_t c = 0; c < dim; c++) {
		_Pragma("GCC unroll 8")
		for (int j = 0; j < STEPS; j++) {
			SINGLES row;

			memcpy(&row, matrix + c * stride + j * CORE_SINGLES,
			       sizeof(row));
			_Pragma("GCC unroll 4")
			for (int i = 0; i < vectors; i++)
				lanes[i][j] += row *
					       from[i * dim_stride + c];
		}
	}
	_Pragma("GCC unroll 4")
	for (int i = 0; i < vectors; i++) {
		_Pragma("GCC unroll 8")
		for (int j = 0; j < STEPS; j++) {
			unsigned at = first + (unsigned)j * CORE_SINGLES;
			uint64_t mask = 0;

			CORE_POSITIVE(mask, lanes[i][j]);
			signs[i] |= mask << at;
			memcpy(sums + i * 64 + at, &lanes[i][j],
			       sizeof(lanes[i][j]));
		}
	}
}

CORE_TARGET static void CORE(rotate)(const float *matrix, size_t stride,
				     const float *vectors, size_t dim_stride,
				     unsigned num, uint32_t dim, float *sums,
				     uint64_t *signs)
{
	unsigned i = 0;

	memset(signs, 0, num * sizeof(*signs));
	for (; i + CORE_VECTORS <= num; i += CORE_VECTORS) {
		for (unsigned at = 0; at < 64; at += CORE_SPAN)
			CORE(rotate_span)(matrix + at, stride,
					  vectors + i * dim_stride, dim_stride,
					  CORE_VECTORS, dim, sums + i * 64,
					  signs + i, at);
	}
	for (; i < num; i++) {
		for (unsigned at = 0; at < 64; at += CORE_SPAN)
			CORE(rotate_span)(matrix + at, stride,
					  vectors + i * dim_stride, dim_stride,
					  1, dim, sums + i * 64, signs + i, at);
	}
}

/* ---- distances ---- */

/* Add the distances of a vector of rows from each plane, the words of the first row
 * being at `at`. num is a constant where it is inlined, and sometimes words. */
CORE_TARGET static inline __attribute__((always_inline)) void
CORE(add_distances)(QUADS *sums, const uint64_t *at, uint32_t words,
		    const uint64_t *planes, const int num)
{
	for (uint32_t w = 0; w < words; w++) {
		QUADS x;

		memcpy(&x, at + (size_t)w * UCM_CODE_TILE, sizeof(x));
		__builtin_prefetch((const void *)((uintptr_t)at + AHEAD +
						  w * 8 * UCM_CODE_TILE));
		_Pragma("GCC unroll 8")
		for (int p = 0; p < num; p++) {
			QUADS y = x ^ planes[w * (unsigned)num + (unsigned)p];

			CORE_POPCOUNT(y);
			sums[p] += y;
		}
	}
}

/* The sum of these, each times its plane's weight. */
CORE_TARGET static inline __attribute__((always_inline)) QUADS
CORE(weighed)(QUADS *sums, const uint32_t *weights, const int num)
{
	_Pragma("GCC unroll 8")
	for (int p = 0; p < num - 1; p++) {
		CORE_TIMES(sums[p], weights[p]);
		sums[num - 1] += sums[p];
	}
	return sums[num - 1];
}

CORE_TARGET static inline __attribute__((always_inline)) QUADS
CORE(distance)(const uint64_t *at, uint32_t words, const uint64_t *planes,
	       const uint32_t *weights, const int num)
{
	QUADS sums[UCM_CODE_PLANES];

	_Pragma("GCC unroll 8")
	for (int p = 0; p < num; p++)
		sums[p] = (QUADS){ 0 };
	CORE(add_distances)(sums, at, words, planes, num);
	return CORE(weighed)(sums, weights, num);
}

/* CALL(words, num, ...) for the code's, as constants if they can be: a body for each
 * number of planes, and 128 bits are worth bodies of their own. */
#define CORE_BY_PLANES(num, CALL, ...)                                        \
	case num:                                                             \
		if (code->words == 2) {                                       \
			CALL(2, num, __VA_ARGS__);                            \
		} else {                                                      \
			CALL(code->words, num, __VA_ARGS__);                  \
		}                                                             \
		break
#define CORE_BY_SHAPE(CALL, ...)                                              \
	switch (code->num_planes) {                                           \
	CORE_BY_PLANES(1, CALL, __VA_ARGS__);                                 \
	CORE_BY_PLANES(2, CALL, __VA_ARGS__);                                 \
	CORE_BY_PLANES(3, CALL, __VA_ARGS__);                                 \
	CORE_BY_PLANES(4, CALL, __VA_ARGS__);                                 \
	CORE_BY_PLANES(5, CALL, __VA_ARGS__);                                 \
	CORE_BY_PLANES(6, CALL, __VA_ARGS__);                                 \
	CORE_BY_PLANES(7, CALL, __VA_ARGS__);                                 \
	CORE_BY_PLANES(8, CALL, __VA_ARGS__);                                 \
	}

/*
 * BODY(away, row) for all rows, a vector of distances at a time; row is the
 * first one's number. Rows are in whole tiles, so that the last ones may be too
 * many.
 */
#define CORE_FOR_ROWS(words, num, BODY)                                       \
	for (size_t i_ = 0; i_ < code->rows; i_ += CORE_QUADS) {              \
		QUADS away_ = CORE(distance)(                                 \
			code->base + i_ / UCM_CODE_TILE * UCM_CODE_TILE *     \
					     (words) + i_ % UCM_CODE_TILE,    \
			words, code->planes, code->weights, num);             \
		BODY(away_, i_);                                              \
	}
#define CORE_ALL_ROWS(BODY) CORE_BY_SHAPE(CORE_FOR_ROWS, BODY)

/* All bits of the lanes whose rows there are not. */
#define CORE_BEYOND(row, rows) ((QUADS)(CORE(lanes) + (row) >= (rows)))

static const QUADS CORE(lanes) = {
	0, 1,
#if CORE_QUADS > 2
	2, 3,
#endif
#if CORE_QUADS > 4
	4, 5, 6, 7,
#endif
};

CORE_TARGET static void CORE(distances)(const struct ucm_code_rows *code,
					uint32_t *out)
{
#define CORE_STORE(away, row)                                                 \
	do {                                                                  \
		HALVES all_ = __builtin_convertvector(away, HALVES);          \
		memcpy(out + (row), &all_, sizeof(all_));                     \
	} while (0)
	CORE_ALL_ROWS(CORE_STORE)
#undef CORE_STORE
}

CORE_TARGET static uint32_t CORE(least)(const struct ucm_code_rows *code)
{
	QUADS least = (QUADS){ 0 } - 1;
	uint64_t all = UINT32_MAX;

#define CORE_TAKE(away, row)                                                  \
	do {                                                                  \
		if ((row) + CORE_QUADS > code->rows)                          \
			(away) |= CORE_BEYOND(row, code->rows);               \
		CORE_LEAST(least, away);                                      \
	} while (0)
	CORE_ALL_ROWS(CORE_TAKE)
#undef CORE_TAKE
	for (int i = 0; i < CORE_QUADS; i++)
		all = (uint32_t)least[i] < all ? (uint32_t)least[i] : all;
	return (uint32_t)all;
}

CORE_TARGET static uint64_t CORE(sum)(const struct ucm_code_rows *code)
{
	QUADS sum = { 0 };
	uint64_t all;

#define CORE_TAKE(away, row)                                                  \
	do {                                                                  \
		if ((row) + CORE_QUADS > code->rows)                          \
			(away) &= ~CORE_BEYOND(row, code->rows);              \
		sum += (away);                                                \
	} while (0)
	CORE_ALL_ROWS(CORE_TAKE)
#undef CORE_TAKE
	CORE_ADD_UP(all, sum);
	return all;
}

/* words and num are constants where it is inlined, if they can be. */
CORE_TARGET static inline __attribute__((always_inline)) void
CORE(count_heads)(const struct ucm_code_rows *code, size_t head_words,
		  size_t plane_words, uint32_t heads, uint64_t *out,
		  const uint32_t words, const int num)
{
	const uint64_t *base = code->base, *planes = code->planes;

	for (uint32_t head = 0; head < heads; head++) {
		QUADS sum = { 0 };

		for (size_t i = 0; i < code->rows; i += CORE_QUADS) {
			QUADS away = CORE(distance)(
				base + i / UCM_CODE_TILE * UCM_CODE_TILE *
					       words + i % UCM_CODE_TILE,
				words, planes, code->weights, num);

			away <<= CORE(lanes) + i;
			if (i + CORE_QUADS > code->rows)
				away &= ~CORE_BEYOND(i, code->rows);
			sum += away;
		}
		CORE_ADD_UP(out[head], sum);
		base += head_words;
		planes += plane_words;
	}
}

/* Distances are added up head by head, and only then times their weights. */
CORE_TARGET static inline __attribute__((always_inline)) uint64_t
CORE(count_rows)(const struct ucm_code_rows *code, size_t head_words,
		 size_t plane_words, uint32_t heads, const uint32_t words,
		 const int num)
{
	QUADS sum = { 0 };
	uint64_t all;

	for (size_t i = 0; i < code->rows; i += CORE_QUADS) {
		const uint64_t *base = code->base + i / UCM_CODE_TILE *
						UCM_CODE_TILE * words +
				       i % UCM_CODE_TILE;
		const uint64_t *planes = code->planes;
		QUADS sums[UCM_CODE_PLANES], away;

		_Pragma("GCC unroll 8")
		for (int p = 0; p < num; p++)
			sums[p] = (QUADS){ 0 };
		for (uint32_t head = 0; head < heads; head++) {
			CORE(add_distances)(sums, base, words, planes, num);
			base += head_words;
			planes += plane_words;
		}
		away = CORE(weighed)(sums, code->weights, num);
		away <<= CORE(lanes) + i;
		if (i + CORE_QUADS > code->rows)
			away &= ~CORE_BEYOND(i, code->rows);
		sum += away;
	}
	CORE_ADD_UP(all, sum);
	return all;
}

CORE_TARGET static void CORE(count)(const struct ucm_code_rows *code,
				    size_t head_words, size_t plane_words,
				    uint32_t heads, uint64_t *out)
{
#define CORE_COUNT(words, num, to)                                            \
	CORE(count_heads)(code, head_words, plane_words, heads, to, words, num)
	CORE_BY_SHAPE(CORE_COUNT, out)
#undef CORE_COUNT
}

CORE_TARGET static uint64_t CORE(count_all)(const struct ucm_code_rows *code,
					    size_t head_words,
					    size_t plane_words, uint32_t heads)
{
	uint64_t all = 0;

#define CORE_COUNT(words, num, to)                                            \
	to = CORE(count_rows)(code, head_words, plane_words, heads, words, num)
	CORE_BY_SHAPE(CORE_COUNT, all)
#undef CORE_COUNT
	return all;
}

CORE_TARGET static float CORE(best)(const struct ucm_code_rows *code,
				    const uint16_t *norms, int32_t most)
{
	typedef int32_t numbers __attribute__((vector_size(4 * CORE_QUADS)));
	typedef float scores __attribute__((vector_size(4 * CORE_QUADS)));
	scores best = (scores){ 0 } - __builtin_inff();
	float all = -__builtin_inff();

#define CORE_TAKE(away, row)                                                  \
	do {                                                                  \
		numbers x_ = most - 2 * __builtin_convertvector(away,         \
								numbers);     \
		scores score_, norm_;                                         \
                                                                              \
		CORE_NORMS(norm_, norms + (row));                             \
		score_ = __builtin_convertvector(x_, scores) * norm_;         \
		if ((row) + CORE_QUADS > code->rows) {                        \
			numbers none_ = __builtin_convertvector(              \
				CORE_BEYOND(row, code->rows), numbers);       \
			score_ = (scores)(((numbers)score_ & ~none_) |        \
					  (none_ & (int32_t)0xff800000));     \
		}                                                             \
		CORE_MOST(best, score_);                                      \
	} while (0)
	CORE_ALL_ROWS(CORE_TAKE)
#undef CORE_TAKE
	for (int i = 0; i < CORE_QUADS; i++)
		all = best[i] > all ? best[i] : all;
	return all + 0.0f; /* 0 has one sign, whatever the lanes' order is */
}

static const struct ucm_code_kernels CORE(kernels) = {
	.name = CORE_TEXT(CORE_NAME),
	.rotate = CORE(rotate),
	.distances = CORE(distances),
	.least = CORE(least),
	.sum = CORE(sum),
	.count = CORE(count),
	.count_all = CORE(count_all),
	.best = CORE(best),
};

/* What the next inclusion says otherwise; other macros are the same for all. */
#undef CORE_NAME
#undef CORE_TARGET
#undef CORE_QUADS
#undef CORE_SINGLES
#undef CORE_VECTORS
#undef CORE_SPAN
#undef CORE_POPCOUNT
#undef CORE_TIMES
#undef CORE_LEAST
#undef CORE_ADD_UP
#undef CORE_NORMS
#undef CORE_MOST
#undef CORE_POSITIVE
