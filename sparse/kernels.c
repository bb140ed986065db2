/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels.c - the loops over elements, for each instruction set; see kernels.h.
 *
 * Selections must be the same on every machine that works on a request, and a
 * test must be able to say "equal". So each way computes the same sum in the
 * same order, and not merely nearly the same:
 *
 * - A row is added up in 32 lanes: lane i takes the elements i, i + 32, ..., in
 *   that order, beginning with 0. Rows are padded to that with zeros.
 * - Lanes are added in a tree: lane i and lane i + 16, then i + 8, 4, 2, 1.
 * - A product is rounded before it is added. With AVX-512 a fused operation
 *   would be as fast, but a CPU without one could only imitate it slowly. The
 *   memory is what limits all this, so nothing is lost. The compiler is told
 *   (-ffp-contract=off) not to fuse on its own.
 *
 * - An int8 is multiplied with a whole number, which a query is rounded to. Such
 *   sums are exact in 16 lanes, in any order; of several heads, and of lanes, they
 *   are added as floats.
 *
 * kernels_core.h is the code; each inclusion has a width of vectors, and says
 * how numbers become floats. "plain" is what every CPU of the architecture has.
 */
#include <config.h>

#include "sparse/kernels.h"

#include <string.h>

#include "sparse/number.h"
#include "sparse/rerope.h"
#include "sparse/rope.h"

#define LANES UCM_REPR_ROW

/* ---- blocks that are scored ---- */

/*
 * Narrow types take so many instructions for a line that a CPU by itself has too
 * few lines under way from memory. So they are asked for ahead of their turn, by
 * so many bytes; but not if all of them may be in a cache, where it only costs.
 */
#define AHEAD	    16384u
#define ASKED_BYTES ((uint64_t)8 << 20)

static inline bool rows_asked(const struct ucm_score_run *run)
{
	return run->num > ASKED_BYTES / run->stride_bytes;
}

/* Blocks may lie anywhere (slots): so many blocks are as many bytes. */
static inline size_t rows_ahead(const struct ucm_score_run *run)
{
	return (size_t)(AHEAD / run->stride_bytes) + 1;
}

/* Which block is asked for in the turn of block i? The last ones ask for the last
 * one. */
static inline size_t row_to_ask(const struct ucm_score_run *run, size_t ahead,
				size_t i)
{
	return run->num - i > ahead ? i + ahead : run->num - 1;
}

static inline void ask_for(const uint8_t *at, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += 64)
		__builtin_prefetch(at + i);
}

/* Not to be read from memory again: the compiler takes loads for free. */
#ifdef __x86_64__
#define CORE_ONCE(v) __asm__("" : "+v"(v))
#else
#define CORE_ONCE(v) ((void)(v))
#endif

/* ---- single elements ---- */

static inline float ucm_item_float32(const uint8_t *at)
{
	float value;

	memcpy(&value, at, sizeof(value));
	return value;
}

static inline void ucm_item_set_float32(uint8_t *at, float value)
{
	memcpy(at, &value, sizeof(value));
}

#define HALF_ITEMS(name)                                                      \
static inline float ucm_item_##name(const uint8_t *at)                        \
{                                                                             \
	uint16_t half;                                                        \
                                                                              \
	memcpy(&half, at, sizeof(half));                                      \
	return ucm_float_of_##name(half);                                     \
}                                                                             \
                                                                              \
static inline void ucm_item_set_##name(uint8_t *at, float value)              \
{                                                                             \
	uint16_t half = ucm_rotated_##name(value);                            \
                                                                              \
	memcpy(at, &half, sizeof(half));                                      \
}
HALF_ITEMS(float16)
HALF_ITEMS(bfloat16)

/* ---- merged channels: where results go ---- */

struct ucm_star_block {
	size_t i;	     /* of the run */
	uint32_t groups;     /* that it has */
	uint32_t head;	     /* at which it is; of this: */
	const uint8_t *rows; /* its channels */
	const float *scales; /* int8: those of its groups */
	float sum, total;    /* of its scores so far; of the heads' before it */
};

static struct ucm_star_block star_block(const struct ucm_star_run *run,
					size_t i)
{
	uint64_t slot = run->slots ? (uint64_t)run->slots[i] : run->first + i;
	const uint8_t *at = run->base + slot * run->stride_bytes;
	struct ucm_star_block block = {
		.i = i, .rows = at,
		.scales = (const float *)(at + run->scales_at),
	};

	memcpy(&block.groups, at + run->groups_at, sizeof(block.groups));
	if (block.groups > run->lanes) /* not made by us */
		block.groups = run->lanes;
	return block;
}

/* Hand on the scores of some rows of a head. */
static void star_put(const struct ucm_star_run *run,
		     struct ucm_star_block *block, uint32_t row, uint32_t num,
		     const float *most, const float *weights)
{
	if (run->per == UCM_SCORE_HEAD) {
		for (uint32_t j = row; j < row + num; j++, most++, weights++) {
			uint32_t query = j / run->group;
			size_t at = (query * run->num_heads + block->head) *
					    (size_t)run->group +
				    j % run->group;

			run->scores[at * run->stride + block->i] = *most;
			if (run->weights)
				run->weights[at * run->stride + block->i] =
					*weights;
		}
		return;
	}
	for (uint32_t j = 0; j < num; j++)
		block->sum = row + j ? block->sum + most[j] : most[j];
	if (row + num < run->rows)
		return;
	block->sum /= (float)run->rows;
	if (run->per == UCM_SCORE_GROUP) {
		run->scores[block->head * run->stride + block->i] = block->sum;
		return;
	}
	block->total = block->head ? block->total + block->sum : block->sum;
	if (block->head + 1 == run->num_heads)
		run->scores[block->i] = block->total;
}

/* ---- plain ---- */

typedef float floats4 __attribute__((vector_size(16)));
typedef int32_t ints4 __attribute__((vector_size(16)));
typedef uint32_t words4 __attribute__((vector_size(16)));
typedef uint16_t halves4 __attribute__((vector_size(8)));
typedef int8_t bytes4 __attribute__((vector_size(4)));

#define CORE_NAME plain
#define CORE_WIDTH 4
#define CORE_TARGET
#define CORE_LOAD_FLOAT16(to, from)                                           \
	do {                                                                  \
		words4 bits_, high_;                                \
		halves4 halves_;                                              \
		memcpy(&halves_, from, sizeof(halves_));                      \
		bits_ = __builtin_convertvector(halves_, words4);   \
		/* the exponent's bias is 15, not 127; subnormals are exact */ \
		(to) = (floats4)((bits_ & 0x7fff) << 13) * 0x1p112f;          \
		high_ = (words4)((bits_ & 0x7c00) == 0x7c00);       \
		(to) = (floats4)((words4)(to) |                     \
				 (high_ & 0x7f800000) | (bits_ & 0x8000) << 16); \
	} while (0)
#define CORE_LOAD_BFLOAT16(to, from)                                          \
	do {                                                                  \
		halves4 halves_;                                              \
		memcpy(&halves_, from, sizeof(halves_));                      \
		(to) = (floats4)(__builtin_convertvector(                     \
			halves_, words4) << 16);                    \
	} while (0)
#define CORE_LOAD_INT8(to, from)                                              \
	do {                                                                  \
		bytes4 bytes_;                                                \
		memcpy(&bytes_, from, sizeof(bytes_));                        \
		(to) = __builtin_convertvector(                               \
			__builtin_convertvector(bytes_, ints4), floats4);     \
	} while (0)
#define CORE_STORE_FLOAT16(to, v)                                             \
	for (int j_ = 0; j_ < 4; j_++)                                        \
		ucm_item_set_float16((to) + 2 * j_, (v)[j_])
#define CORE_STORE_BFLOAT16(to, v)                                            \
	do {                                                                  \
		words4 bits_ = (words4)(v);                                   \
		halves4 halves_;                                              \
		bits_ = (bits_ + 0x7fff + (bits_ >> 16 & 1)) >> 16;           \
		halves_ = __builtin_convertvector(bits_, halves4);            \
		memcpy(to, &halves_, sizeof(halves_));                        \
	} while (0)
#define CORE_PACK(high, low, x, y)                                            \
	do {                                                                  \
		(high) = (SHORTS)((x) >> 16 | ((y) & 0xffff0000u));           \
		(low) = (SHORTS)(((x) & 0xffffu) | (y) << 16);                \
	} while (0)
#define CORE_ONE_MORE(high, low, limit)                                       \
	(high) -= (SHORTS)((low) > (limit)) /* true is -1 */
#define CORE_SWAPPED(v) ((floats4){ (v)[1], (v)[0], (v)[3], (v)[2] })
#define CORE_ADD_PRODUCTS(lanes, row, query)                                  \
	for (int j_ = 0; j_ < 4; j_++)                                        \
		(lanes)[j_] += (int8_t)(row)[2 * j_] * (query)[2 * j_] +      \
			       (int8_t)(row)[2 * j_ + 1] * (query)[2 * j_ + 1]
#define CORE_LAST(result, v) ((result) = ((v)[0] + (v)[2]) + ((v)[1] + (v)[3]))
#define CORE_MOST(result, v)                                                  \
	do {                                                                  \
		(result) = (v)[0];                                            \
		for (int j_ = 1; j_ < 4; j_++)                                \
			(result) = (v)[j_] > (result) ? (v)[j_] : (result);   \
	} while (0)
#define CORE_AT_LEAST(mask, x, y)                                             \
	for (int j_ = 0; j_ < 4; j_++)                                        \
		(mask) |= (unsigned)((x)[j_] >= (y)[j_]) << j_
#include "sparse/kernels_core.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>

/* Lanes of half a vector with the others, of a quarter, ... until one is left;
 * how: add, max. */
#define FOLD4(result, v, how)                                                 \
	do {                                                                  \
		__m128 v4_ = (v);                                             \
		v4_ = _mm_##how##_ps(v4_, _mm_movehl_ps(v4_, v4_));           \
		(result) = _mm_cvtss_f32(_mm_##how##_ss(                      \
			v4_, _mm_shuffle_ps(v4_, v4_, 1)));                   \
	} while (0)
#define FOLD8(result, v, how)                                                 \
	do {                                                                  \
		__m256 v8_ = (v);                                             \
		FOLD4(result,                                                 \
		      _mm_##how##_ps(_mm256_castps256_ps128(v8_),             \
				     _mm256_extractf128_ps(v8_, 1)), how);    \
	} while (0)
#define FOLD16(result, v, how)                                                \
	do {                                                                  \
		__m512 v16_ = (v);                                            \
		FOLD8(result,                                                 \
		      _mm256_##how##_ps(                                      \
			      _mm512_castps512_ps256(v16_),                   \
			      _mm256_castpd_ps(_mm512_extractf64x4_pd(        \
				      _mm512_castps_pd(v16_), 1))), how);     \
	} while (0)

/* ---- AVX2 and F16C ---- */

#define CORE_NAME avx2
#define CORE_WIDTH 8
#define CORE_TARGET __attribute__((target("avx2,f16c")))
#define CORE_LOAD_FLOAT16(to, from)                                           \
	(to) = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from)))
#define CORE_LOAD_BFLOAT16(to, from)                                          \
	(to) = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(   \
		_mm_loadu_si128((const __m128i *)(from))), 16))
#define CORE_LOAD_INT8(to, from)                                              \
	(to) = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(                       \
		_mm_loadl_epi64((const __m128i *)(from))))
#define CORE_STORE_FLOAT16(to, v)                                             \
	_mm_storeu_si128((__m128i *)(to),                                     \
			 _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT |       \
						    _MM_FROUND_NO_EXC))
#define CORE_STORE_BFLOAT16(to, v)                                            \
	do {                                                                  \
		__m256i bits_ = _mm256_castps_si256(v), odd_;                 \
		odd_ = _mm256_and_si256(_mm256_srli_epi32(bits_, 16),         \
					_mm256_set1_epi32(1));                \
		odd_ = _mm256_add_epi32(odd_, _mm256_set1_epi32(0x7fff));     \
		bits_ = _mm256_srli_epi32(_mm256_add_epi32(bits_, odd_), 16); \
		_mm_storeu_si128((__m128i *)(to),                             \
			_mm_packus_epi32(_mm256_castsi256_si128(bits_),       \
				_mm256_extracti128_si256(bits_, 1)));         \
	} while (0)
#define CORE_PACK(high, low, x, y)                                            \
	do {                                                                  \
		(high) = (SHORTS)_mm256_blend_epi16(                          \
			_mm256_srli_epi32((__m256i)(x), 16), (__m256i)(y),    \
			0xaa);                                                \
		(low) = (SHORTS)_mm256_blend_epi16(                           \
			(__m256i)(x), _mm256_slli_epi32((__m256i)(y), 16),    \
			0xaa);                                                \
	} while (0)
/* There is a comparison of numbers with signs alone. */
#define CORE_ONE_MORE(high, low, limit)                                       \
	(high) -= (SHORTS)_mm256_cmpgt_epi16((__m256i)((low) ^ 0x8000),       \
					     (__m256i)((limit) ^ 0x8000))
#define CORE_SWAPPED(v) _mm256_permute_ps(v, 0xb1)
#define CORE_ADD_PRODUCTS(lanes, row, query)                                  \
	(lanes) += (INTS)_mm256_madd_epi16(                                   \
		_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(row))), \
		_mm256_loadu_si256((const __m256i *)(query)))
#define CORE_LAST(result, v) FOLD8(result, v, add)
#define CORE_MOST(result, v) FOLD8(result, v, max)
#define CORE_AT_LEAST(mask, x, y)                                             \
	(mask) = (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(x, y, _CMP_GE_OQ))
#include "sparse/kernels_core.h"

/* ---- AVX-512 ---- */

#define CORE_NAME avx512
#define CORE_WIDTH 16
#define CORE_TARGET __attribute__((target("avx512f,avx512bw")))
#define CORE_LOAD_FLOAT16(to, from)                                           \
	(to) = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(from)))
#define CORE_LOAD_BFLOAT16(to, from)                                          \
	(to) = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(   \
		_mm256_loadu_si256((const __m256i *)(from))), 16))
#define CORE_LOAD_INT8(to, from)                                              \
	(to) = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(                       \
		_mm_loadu_si128((const __m128i *)(from))))
#define CORE_STORE_FLOAT16(to, v)                                             \
	_mm256_storeu_si256((__m256i *)(to),                                  \
			    _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT |    \
						       _MM_FROUND_NO_EXC))
/* Not vcvtneps2bf16, which takes subnormal numbers for 0. NaN: see rope.h. */
#define CORE_STORE_BFLOAT16(to, v)                                            \
	do {                                                                  \
		__m512i bits_ = _mm512_castps_si512(v);                       \
		__mmask16 odd_ = _mm512_test_epi32_mask(                      \
			bits_, _mm512_set1_epi32(0x10000));                   \
		bits_ = _mm512_add_epi32(bits_, _mm512_set1_epi32(0x7fff));   \
		bits_ = _mm512_mask_add_epi32(bits_, odd_, bits_,             \
					      _mm512_set1_epi32(1));          \
		bits_ = _mm512_srli_epi32(bits_, 16);                         \
		_mm256_storeu_si256((__m256i *)(to),                          \
				    _mm512_cvtepi32_epi16(bits_));            \
	} while (0)
#define CORE_PACK(high, low, x, y)                                            \
	do {                                                                  \
		(high) = (SHORTS)_mm512_mask_blend_epi16(                     \
			0xaaaaaaaa, _mm512_srli_epi32((__m512i)(x), 16),      \
			(__m512i)(y));                                        \
		(low) = (SHORTS)_mm512_mask_blend_epi16(                      \
			0xaaaaaaaa, (__m512i)(x),                             \
			_mm512_slli_epi32((__m512i)(y), 16));                 \
	} while (0)
#define CORE_ONE_MORE(high, low, limit)                                       \
	(high) = (SHORTS)_mm512_mask_add_epi16(                               \
		(__m512i)(high),                                              \
		_mm512_cmpgt_epu16_mask((__m512i)(low), (__m512i)(limit)),    \
		(__m512i)(high), _mm512_set1_epi16(1))
#define CORE_SWAPPED(v) _mm512_permute_ps(v, 0xb1)
#define CORE_ADD_PRODUCTS(lanes, row, query)                                  \
	(lanes) += (INTS)_mm512_madd_epi16(                                   \
		_mm512_cvtepi8_epi16(                                         \
			_mm256_loadu_si256((const __m256i *)(row))),          \
		_mm512_loadu_si512(query))
#define CORE_LAST(result, v) FOLD16(result, v, add)
#define CORE_MOST(result, v) FOLD16(result, v, max)
#define CORE_AT_LEAST(mask, x, y)                                             \
	(mask) = _mm512_cmp_ps_mask(x, y, _CMP_GE_OQ)
#include "sparse/kernels_core.h"

static bool cpu_has_f16c(void)
{
	unsigned a, b, c, d;

	return __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C;
}
#endif

const struct ucm_sparse_kernels *ucm_sparse_kernels_used;

bool ucm_sparse_kernels_use(const char *name)
{
	const struct {
		const struct ucm_sparse_kernels *kernels;
		bool can;
	} ways[] = { /* the best first */
#ifdef __x86_64__
		{ &avx512_kernels, __builtin_cpu_supports("avx512f") &&
				   __builtin_cpu_supports("avx512bw") },
		{ &avx2_kernels, __builtin_cpu_supports("avx2") &&
				 cpu_has_f16c() },
#endif
		{ &plain_kernels, true },
	};
	const struct ucm_sparse_kernels *found = NULL;

	for (size_t i = 0; !found && i < sizeof(ways) / sizeof(*ways); i++) {
		if (ways[i].can && (!name || !strcmp(ways[i].kernels->name, name)))
			found = ways[i].kernels;
	}
	if (found)
		__atomic_store_n(&ucm_sparse_kernels_used, found,
				 __ATOMIC_RELAXED);
	return found;
}
