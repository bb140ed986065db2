/* SPDX-License-Identifier: Apache-2.0 */
/* calls.h - <ucm/sparse.h>'s and <ucm/position.h>'s calls that compute, with
 * kernels that are chosen: for tests and benchmarks. */
#ifndef UCM_SPARSE_CALLS_H
#define UCM_SPARSE_CALLS_H

#include <ucm/position.h>

#include "sparse/kernels.h"

int ucm_repr_build_by(const struct ucm_sparse_kernels *kernels,
		      const struct ucm_repr_spec *spec,
		      const struct ucm_keys *keys, const int32_t *blocks,
		      size_t num, uint32_t last_tokens,
		      const struct ucm_repr_slab *slab, const int32_t *slots,
		      struct ucm_error *error);
int ucm_repr_add_by(const struct ucm_sparse_kernels *kernels,
		    const struct ucm_repr_spec *spec, void *state,
		    const struct ucm_keys *keys, uint32_t num_tokens,
		    struct ucm_error *error);
int ucm_query_prepare_by(const struct ucm_sparse_kernels *kernels,
			 const struct ucm_repr_spec *spec,
			 const struct ucm_query *query, uint32_t per,
			 float *out, struct ucm_error *error);
int ucm_score_by(const struct ucm_sparse_kernels *kernels,
		 const struct ucm_repr_spec *spec,
		 const struct ucm_score_request *requests,
		 size_t num_requests, struct ucm_error *error);
int ucm_star_build_by(const struct ucm_sparse_kernels *kernels,
		      const struct ucm_star_spec *spec,
		      const struct ucm_keys *keys, const int32_t *blocks,
		      size_t num, uint32_t last_tokens,
		      const struct ucm_repr_slab *slab, const int32_t *slots,
		      struct ucm_error *error);
int ucm_star_add_by(const struct ucm_sparse_kernels *kernels,
		    const struct ucm_star_spec *spec, void *state,
		    const struct ucm_keys *keys, uint32_t num_tokens,
		    struct ucm_error *error);
int ucm_star_query_prepare_by(const struct ucm_sparse_kernels *kernels,
			      const struct ucm_star_spec *spec,
			      const struct ucm_query *queries,
			      uint32_t num_queries, float *out,
			      struct ucm_error *error);
int ucm_star_score_by(const struct ucm_sparse_kernels *kernels,
		      const struct ucm_star_spec *spec,
		      const struct ucm_star_request *requests,
		      size_t num_requests, struct ucm_error *error);
int ucm_star_vote_by(const struct ucm_sparse_kernels *kernels,
		     const float *scores, float *weights, size_t num_rows,
		     size_t num, size_t stride, float scale, float *votes,
		     struct ucm_error *error);
int ucm_select_by(const struct ucm_sparse_kernels *kernels,
		  const float *scores, const struct ucm_budget *budget,
		  uint32_t *out, size_t room, uint32_t *num_out,
		  struct ucm_error *error);
int ucm_rope_shift_by(const struct ucm_sparse_kernels *kernels,
		      const struct ucm_rope *rope,
		      const struct ucm_shift_request *request,
		      struct ucm_error *error);
int ucm_kv_deviation_by(const struct ucm_sparse_kernels *kernels,
			const struct ucm_deviation_request *request, float *out,
			struct ucm_error *error);
int ucm_hkvd_select_by(const struct ucm_sparse_kernels *kernels,
		       const float *scores, uint32_t num, uint32_t rule,
		       double value, uint32_t *out, size_t room,
		       uint32_t *num_out, struct ucm_error *error);
int ucm_attention_decode_by(const struct ucm_sparse_kernels *kernels,
			    const struct ucm_attention *attention, float *work,
			    float *out, float *lse, struct ucm_error *error);
int ucm_rerope_decode_by(const struct ucm_sparse_kernels *kernels,
			 const struct ucm_rerope *rerope, const float *angles,
			 const struct ucm_attention *attention, float *work,
			 float *out, float *lse, struct ucm_error *error);

#endif
