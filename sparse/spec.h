/* SPDX-License-Identifier: Apache-2.0 */
/* spec.h - what the caller says of keys, queries and representations: is it
 * right, and what follows from it. */
#ifndef UCM_SPARSE_SPEC_H
#define UCM_SPARSE_SPEC_H

#include <stdbool.h>

#include "fs/repr/shape.h"
#include "sparse/kernels.h"

#define UCM_QUERY_HEADS_MAX 65536u

/* Rows of the largest spec, for scratch memory. */
#define UCM_REPR_WIDTH_MAX (2 * UCM_REPR_HEAD_DIM_MAX)

/* value is from 1 to most, and is called name. */
int ucm_sparse_in_range(const char *name, uint32_t value, uint32_t most,
			struct ucm_error *error);

/* Names, each with its pointer, and NULL after the last: -EINVAL names the first
 * pointer that is NULL. */
int ucm_sparse_given(struct ucm_error *error, ...) __attribute__((sentinel));

/*
 * An array of dim contiguous elements in up to three dimensions: does the
 * address of its last one fit an int64_t?
 */
bool ucm_sparse_strides_fit(const uint64_t counts[3], const int64_t strides[3],
			    uint32_t dim, uint32_t item_bytes);

/* Can keys of so many tokens, heads and channels lie there? */
int ucm_sparse_keys_check(const struct ucm_keys *keys, uint32_t tokens,
			  uint32_t num_heads, uint32_t head_dim,
			  struct ucm_error *error);

/*
 * Blocks that are to be built (NULL: 0, 1, ...), all full but for the last, which
 * has last_tokens: are these numbers right, and are their keys there?
 */
int ucm_sparse_blocks_check(const struct ucm_repr_spec *spec,
			    const struct ucm_keys *keys, const int32_t *blocks,
			    size_t num, uint32_t last_tokens,
			    struct ucm_error *error);

/* The same for a query. */
int ucm_sparse_query_check(const struct ucm_query *query, uint32_t head_dim,
			   struct ucm_error *error);

/* A block of block_size has so many tokens; may num_tokens be added? */
int ucm_sparse_grow_check(const struct ucm_keys *keys, uint32_t num_tokens,
			  uint32_t tokens, uint32_t block_size,
			  struct ucm_error *error);

/* A token's key of a head, as head_dim floats. -EINVAL: one is not finite. */
int ucm_sparse_key(const struct ucm_repr_spec *spec,
		   const struct ucm_keys *keys, uint64_t block, uint32_t token,
		   uint32_t head, float *out, struct ucm_error *error);

/* dim elements of a query's head, as floats: are all finite? */
bool ucm_sparse_query_widen(const struct ucm_query *query, uint32_t head,
			    uint32_t dim, float *out);

/* A head of a query, as head_dim floats. -EINVAL: one is not finite. */
int ucm_sparse_query_head(const struct ucm_repr_spec *spec,
			  const struct ucm_query *query, uint32_t head,
			  float *out, struct ucm_error *error);

/* Heads of a query, a multiple of those of the keys; name: what they are called. */
int ucm_sparse_heads_check(const char *name, uint32_t heads, uint32_t of,
			   struct ucm_error *error);

/* Scores of so many rows, each stride after the one before it. */
int ucm_score_rows_check(uint64_t rows, size_t num, size_t stride,
			 struct ucm_error *error);

/* The least and the largest of num scores (at least one); a zero of
 * either sign is +0, as of several it depends on the kernels which one they
 * find. False: one is NaN. */
bool ucm_score_range(const float *scores, size_t num, float *least,
		     float *most);

/* What is wrong with request number i of num, and its err: of one among many the
 * number is said first. */
int ucm_sparse_refuse(size_t i, size_t num, int err,
		      const struct ucm_error *why, struct ucm_error *error);

/* Where a request's blocks are, in a right slab; and are its query and the room
 * for its scores there? */
int ucm_sparse_places_check(const struct ucm_repr_slab *slab,
			    const int32_t *slots, uint64_t first, size_t num,
			    const void *query, const void *scores,
			    struct ucm_error *error);

/* Is it there, and aligned to so many bytes? */
int ucm_sparse_aligned(const char *name, const void *memory, size_t alignment,
		       struct ucm_error *error);

int ucm_budget_check(const struct ucm_budget_config *config,
		     struct ucm_error *error);

/* Block number i of num has so many tokens. */
static inline uint32_t ucm_sparse_tokens(const struct ucm_repr_spec *spec,
					 size_t i, size_t num,
					 uint32_t last_tokens)
{
	return i + 1 < num ? spec->block_size : last_tokens;
}

#endif
