/* SPDX-License-Identifier: Apache-2.0 */
/*
 * code_kernels.h - the loops over the bits of hash codes, compiled for each
 * instruction set. All ways give the same bits: distances are whole numbers,
 * and sums have an order.
 */
#ifndef UCM_SPARSE_CODE_KERNELS_H
#define UCM_SPARSE_CODE_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sparse/code_core.h"

#define UCM_CODE_VECTORS 4u /* rotated at a time, at most */

/* Rows of codes, and the planes of a query that they are compared with. */
struct ucm_code_rows {
	const uint64_t *base;
	size_t rows;
	uint32_t words; /* of a row */
	uint32_t num_planes;
	const uint64_t *planes;	 /* word w of plane p: w * num_planes + p */
	const uint32_t *weights; /* of the planes; the last one is 1 */
};

struct ucm_code_kernels {
	const char *name;

	/*
	 * The products of num <= UCM_CODE_VECTORS vectors with 64 columns of a
	 * matrix: sums[i * 64 + j], added up from channel 0 on, and each
	 * vector's signs, bit j being sums > 0. Vector i begins at
	 * vectors + i * dim_stride.
	 */
	void (*rotate)(const float *matrix, size_t stride, const float *vectors,
		       size_t dim_stride, unsigned num, uint32_t dim,
		       float *sums, uint64_t *signs);

	/* The distance of each row; written for whole tiles. */
	void (*distances)(const struct ucm_code_rows *code, uint32_t *out);

	/* The least of all; UINT32_MAX: there are no rows. */
	uint32_t (*least)(const struct ucm_code_rows *code);
	uint64_t (*sum)(const struct ucm_code_rows *code);
	/* Of each of some heads: the sum of 2^i * the distance of row i. Those of
	 * the next head are at base + head_words, and planes + plane_words. */
	void (*count)(const struct ucm_code_rows *code, size_t head_words,
		      size_t plane_words, uint32_t heads, uint64_t *out);
	/* The sum of these. */
	uint64_t (*count_all)(const struct ucm_code_rows *code,
			      size_t head_words, size_t plane_words,
			      uint32_t heads);
	/* The largest norm * (most - 2 * distance), or minus infinity; norms:
	 * bfloat16, for whole tiles. */
	float (*best)(const struct ucm_code_rows *code, const uint16_t *norms,
		      int32_t most);
};

/* As those of kernels.h; "avx512" is with VPOPCNTDQ. */
extern const struct ucm_code_kernels *ucm_code_kernels_used;
bool ucm_code_kernels_use(const char *name);

static inline const struct ucm_code_kernels *ucm_code_kernels(void)
{
	if (!__atomic_load_n(&ucm_code_kernels_used, __ATOMIC_RELAXED))
		ucm_code_kernels_use(NULL);
	return __atomic_load_n(&ucm_code_kernels_used, __ATOMIC_RELAXED);
}

#endif
