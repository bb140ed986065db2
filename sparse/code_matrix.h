/* SPDX-License-Identifier: Apache-2.0 */
/* code_matrix.h - the random directions of hash codes. */
#ifndef UCM_SPARSE_CODE_MATRIX_H
#define UCM_SPARSE_CODE_MATRIX_H

#include <stddef.h>
#include <stdint.h>

/* Philox4x32-10: the numbers of a counter. */
void ucm_philox(const uint32_t counter[4], const uint32_t key[2],
		uint32_t out[4]);

/* num random columns of dim channels, dim at a time orthogonal and of length 1;
 * element j of channel c is out[c * stride + j]. dim is at most 1024. */
void ucm_code_matrix_make(uint64_t seed, uint32_t part, uint32_t dim,
			  uint32_t num, float *out, size_t stride);

#endif
