/* SPDX-License-Identifier: Apache-2.0 */
/*
 * code.h - hash codes, inside: what follows from a spec, and encoding.
 */
#ifndef UCM_SPARSE_CODE_H
#define UCM_SPARSE_CODE_H

#include <ucm/sparse.h>

#include "sparse/code_kernels.h"

/* Each part's last word may be partial. */
#define UCM_CODE_WORDS_MAX (UCM_CODE_BITS_MAX / UCM_CODE_WORD + UCM_CODE_PARTS)

/* Bits of rope_dim's channels: their part of bits, up to a multiple of 8. */
uint32_t ucm_code_rope_bits(const struct ucm_code_spec *spec);

/* Of a prepared query. */
struct ucm_code_query {
	struct ucm_code_shape code;
	uint32_t group; /* query heads of a key head */
	uint32_t codes; /* of these, after merging */
	uint32_t rows;  /* for each key head */
	uint32_t num;   /* planes of a row */
	uint32_t weights[UCM_CODE_PLANES];
	size_t row_words;
};

int ucm_code_query_shape(const struct ucm_code_spec *spec,
			 const struct ucm_code_method *method,
			 struct ucm_code_query *out, struct ucm_error *error);

/* -EINVAL: memory holds no encoder. */
int ucm_code_encoder_check(const void *encoder,
			   const struct ucm_code_spec **spec,
			   struct ucm_error *error);

/*
 * Encode num <= UCM_CODE_VECTORS vectors of head_dim: their codes, words of
 * them each. sums (NULL: not wanted) has the products: those of the i-th are
 * words * 64, beginning at i * words * 64.
 */
void ucm_code_encode(const void *encoder, const struct ucm_code_shape *shape,
		     const float *vectors, size_t dim_stride, unsigned num,
		     uint64_t *codes, float *sums);

#endif
