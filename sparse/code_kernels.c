/* SPDX-License-Identifier: Apache-2.0 */
/*
 * code_kernels.c - the loops over the bits of hash codes, for each instruction
 * set; code_kernels_core.h is the code.
 *
 * Eight rows lie side by side, so that a word of each fills a vector of 512
 * bits: bits are counted in lanes of 64, a lane is a row, and no lanes are ever
 * added, whatever a code's length is. AVX-512 counts them by VPOPCNTDQ, AVX2 by
 * looking up half bytes (Mula, Kurz and Lemire, 2018), and C by adding
 * neighbours.
 *
 * A CPU with AVX-512 but without VPOPCNTDQ goes the way of AVX2.
 */
#include <config.h>

#include "sparse/code_kernels.h"

#include <string.h>

#include "sparse/number.h"

/* Bytes that codes are asked for ahead of their turn. By itself the CPU stays
 * after the memory where a query has many planes: by half with four. */
#define AHEAD 16384u

/* ---- plain ---- */

typedef uint64_t quads2 __attribute__((vector_size(16)));

#define CORE_NAME    plain
#define CORE_TARGET
#define CORE_QUADS   2
#define CORE_SINGLES 4
#define CORE_VECTORS 1
#define CORE_SPAN    32
#define CORE_POPCOUNT(v)                                                      \
	do {                                                                  \
		quads2 n_ = (v) - ((v) >> 1 & 0x5555555555555555u);           \
		n_ = (n_ & 0x3333333333333333u) +                             \
		     (n_ >> 2 & 0x3333333333333333u);                         \
		n_ = (n_ + (n_ >> 4)) & 0x0f0f0f0f0f0f0f0fu;                  \
		n_ += n_ >> 8;                                                \
		n_ += n_ >> 16;                                               \
		(v) = (n_ + (n_ >> 32)) & 0x7f;                               \
	} while (0)
#define CORE_TIMES(v, weight) (v) *= (uint64_t)(weight)
#define CORE_LEAST(v, x)                                                      \
	do {                                                                  \
		quads2 take_ = (quads2)((x) < (v));                           \
		(v) = ((x) & take_) | ((v) & ~take_);                         \
	} while (0)
#define CORE_ADD_UP(result, v) ((result) = (v)[0] + (v)[1])
#define CORE_NORMS(to, from)                                                  \
	for (int j_ = 0; j_ < 2; j_++)                                        \
		(to)[j_] = ucm_float_of_bfloat16((from)[j_])
#define CORE_MOST(v, x)                                                       \
	for (int j_ = 0; j_ < 2; j_++)                                        \
		(v)[j_] = (x)[j_] > (v)[j_] ? (x)[j_] : (v)[j_]
#define CORE_POSITIVE(mask, v)                                                \
	for (int j_ = 0; j_ < 4; j_++)                                        \
		(mask) |= (uint64_t)((v)[j_] > 0) << j_
#include "sparse/code_kernels_core.h"

#ifdef __x86_64__
#include <immintrin.h>

/* ---- AVX2 ---- */

#define CORE_NAME    avx2
#define CORE_TARGET  __attribute__((target("avx2")))
#define CORE_QUADS   4
#define CORE_SINGLES 8
#define CORE_VECTORS 1
#define CORE_SPAN    64
#define CORE_POPCOUNT(v)                                                      \
	do {                                                                  \
		const __m256i low_ = _mm256_set1_epi8(15);                    \
		const __m256i table_ = _mm256_setr_epi8(                      \
			0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4,       \
			0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);      \
		__m256i x_ = (__m256i)(v);                                    \
		__m256i n_ = _mm256_add_epi8(                                 \
			_mm256_shuffle_epi8(table_,                           \
					    _mm256_and_si256(x_, low_)),      \
			_mm256_shuffle_epi8(                                  \
				table_,                                       \
				_mm256_and_si256(_mm256_srli_epi16(x_, 4),    \
						 low_)));                     \
		(v) = (CORE(quads))_mm256_sad_epu8(n_,                        \
						   _mm256_setzero_si256());   \
	} while (0)
#define CORE_TIMES(v, weight)                                                 \
	(v) = (CORE(quads))_mm256_mul_epu32(                                  \
		(__m256i)(v), _mm256_set1_epi64x((int64_t)(weight)))
#define CORE_LEAST(v, x)                                                      \
	(v) = (CORE(quads))_mm256_min_epu32((__m256i)(v), (__m256i)(x))
#define CORE_ADD_UP(result, v)                                                \
	do {                                                                  \
		quads2 sum_ = (quads2)_mm_add_epi64(                          \
			_mm256_castsi256_si128((__m256i)(v)),                 \
			_mm256_extracti128_si256((__m256i)(v), 1));           \
		(result) = sum_[0] + sum_[1];                                 \
	} while (0)
#define CORE_NORMS(to, from)                                                  \
	(to) = (__m128)_mm_slli_epi32(_mm_cvtepu16_epi32(                     \
		_mm_loadl_epi64((const __m128i *)(from))), 16)
#define CORE_MOST(v, x) (v) = _mm_max_ps(v, x)
#define CORE_POSITIVE(mask, v)                                                \
	(mask) = (unsigned)_mm256_movemask_ps(                                \
		_mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_GT_OQ))
#include "sparse/code_kernels_core.h"

/* ---- AVX-512 ---- */

#define CORE_NAME    avx512
#define CORE_TARGET  __attribute__((target("avx512f,avx512vpopcntdq")))
#define CORE_QUADS   8
#define CORE_SINGLES 16
#define CORE_VECTORS UCM_CODE_VECTORS
#define CORE_SPAN    64
#define CORE_POPCOUNT(v)                                                      \
	(v) = (CORE(quads))_mm512_popcnt_epi64((__m512i)(v))
#define CORE_TIMES(v, weight)                                                 \
	(v) = (CORE(quads))_mm512_mul_epu32(                                  \
		(__m512i)(v), _mm512_set1_epi64((int64_t)(weight)))
#define CORE_LEAST(v, x)                                                      \
	(v) = (CORE(quads))_mm512_min_epu32((__m512i)(v), (__m512i)(x))
#define CORE_ADD_UP(result, v)                                                \
	((result) = (uint64_t)_mm512_reduce_add_epi64((__m512i)(v)))
#define CORE_NORMS(to, from)                                                  \
	(to) = (__m256)_mm256_slli_epi32(_mm256_cvtepu16_epi32(               \
		_mm_loadu_si128((const __m128i *)(from))), 16)
#define CORE_MOST(v, x) (v) = _mm256_max_ps(v, x)
#define CORE_POSITIVE(mask, v)                                                \
	(mask) = _mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_GT_OQ)
#include "sparse/code_kernels_core.h"
#endif

const struct ucm_code_kernels *ucm_code_kernels_used;

bool ucm_code_kernels_use(const char *name)
{
	const struct {
		const struct ucm_code_kernels *kernels;
		bool can;
	} ways[] = { /* the best first */
#ifdef __x86_64__
		{ &avx512_kernels, __builtin_cpu_supports("avx512f") &&
				   __builtin_cpu_supports("avx512vpopcntdq") },
		{ &avx2_kernels, __builtin_cpu_supports("avx2") },
#endif
		{ &plain_kernels, true },
	};
	const struct ucm_code_kernels *found = NULL;

	for (size_t i = 0; !found && i < sizeof(ways) / sizeof(*ways); i++) {
		if (ways[i].can && (!name || !strcmp(ways[i].kernels->name, name)))
			found = ways[i].kernels;
	}
	if (found)
		__atomic_store_n(&ucm_code_kernels_used, found,
				 __ATOMIC_RELAXED);
	return found;
}
