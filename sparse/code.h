/* SPDX-License-Identifier: Apache-2.0 */
/*
 * code.h - hash codes, inside: what follows from a spec, and the calls with
 * kernels that are chosen, for tests and benchmarks.
 */
#ifndef UCM_SPARSE_CODE_H
#define UCM_SPARSE_CODE_H

#include <ucm/sparse.h>

#include "sparse/code_kernels.h"

/* Each part's last word may be partial. */
#define UCM_CODE_WORDS_MAX (UCM_CODE_BITS_MAX / UCM_CODE_WORD + UCM_CODE_PARTS)

/* Bits of rope_dim's channels: their part of bits, up to a multiple of 8. */
uint32_t ucm_code_rope_bits(const struct ucm_code_spec *spec);

int ucm_code_slab_check(const struct ucm_repr_slab *slab,
			const struct ucm_code_shape *shape,
			struct ucm_error *error);

/* -EINVAL: memory holds no encoder. */
int ucm_code_encoder_check(const void *encoder,
			   const struct ucm_code_spec **spec,
			   struct ucm_error *error);

/*
 * Encode num <= UCM_CODE_VECTORS vectors of head_dim: their codes, words of
 * them each. sums (NULL: not wanted) has the products: those of the i-th are
 * words * 64, beginning at i * words * 64.
 */
void ucm_code_encode(const struct ucm_code_kernels *kernels,
		     const void *encoder, const struct ucm_code_shape *shape,
		     const float *vectors, size_t dim_stride, unsigned num,
		     uint64_t *codes, float *sums);

int ucm_code_build_by(const struct ucm_code_kernels *kernels,
		      const void *encoder, const struct ucm_keys *keys,
		      const int32_t *blocks, size_t num, uint32_t last_tokens,
		      const struct ucm_repr_slab *slab, const int32_t *slots,
		      struct ucm_error *error);
int ucm_code_add_by(const struct ucm_code_kernels *kernels, const void *encoder,
		    const struct ucm_keys *keys, uint32_t first_token,
		    uint32_t num_tokens, void *out, struct ucm_error *error);
int ucm_code_query_prepare_by(const struct ucm_code_kernels *kernels,
			      const void *encoder,
			      const struct ucm_code_method *method,
			      const struct ucm_query *query,
			      const struct ucm_query *rope, uint64_t *out,
			      struct ucm_error *error);
int ucm_code_score_by(const struct ucm_code_kernels *kernels,
		      const struct ucm_code_spec *spec,
		      const struct ucm_code_method *method,
		      const struct ucm_code_request *requests,
		      size_t num_requests, struct ucm_error *error);

#endif
