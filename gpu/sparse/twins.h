/* SPDX-License-Identifier: Apache-2.0 */
/* twins.h - the kernels of twins.cu, on a device. */
#ifndef UCM_GPU_SPARSE_TWINS_H
#define UCM_GPU_SPARSE_TWINS_H

#include <ucm/sparse_cuda.h>

#include "sparse/spec.h"

#define UCM_TWIN_REQUESTS_MAX 65535u /* of a grid's second dimension */

enum ucm_twin_kernel {
	UCM_TWIN_QUERY,
	UCM_TWIN_QUERY_STEPS,
	UCM_TWIN_SCORE_FLOAT32,
	UCM_TWIN_SCORE_FLOAT16,
	UCM_TWIN_SCORE_BFLOAT16,
	UCM_TWIN_SCORE_INT8,
	UCM_TWIN_SCORE_STEPS,
	UCM_TWIN_BUILD,
	UCM_TWIN_ENCODE,
	UCM_TWIN_COUNT_BITS,
	UCM_TWIN_CODE_QUERY,
	UCM_TWIN_SCORE_CODES, /* and the others, by enum ucm_twin_code_mode */
	UCM_TWIN_SCORE_CODES_END = UCM_TWIN_SCORE_CODES + 5,
	UCM_TWIN_STAR_BUILD,
	UCM_TWIN_STAR_QUERY,
	UCM_TWIN_STAR_FLOAT32,
	UCM_TWIN_STAR_FLOAT16,
	UCM_TWIN_STAR_BFLOAT16,
	UCM_TWIN_STAR_INT8,
	UCM_TWIN_VOTE_ROWS,
	UCM_TWIN_VOTES,
	UCM_TWIN_SELECT,
	UCM_TWIN_SHIFT,
	UCM_TWIN_DEVIATION,
	UCM_TWIN_ATTEND, /* and of 2, 4 and 8 heads */
	UCM_TWIN_ATTEND_JOIN = UCM_TWIN_ATTEND + 4,
	UCM_TWIN_KERNELS
};

/* A grid of x by y CTAs; neither may be 0. args: the kernel's one argument. */
struct ucm_twin_grid {
	enum ucm_twin_kernel kernel;
	uint64_t x;
	uint32_t y, threads;
	uint32_t shared; /* bytes of memory of each CTA, up to 48 KiB in all */
};

/* -EINVAL: x is too large for a grid; what names the reason. */
int ucm_twin_launch(const struct ucm_sparse_cuda *cuda,
		    const struct ucm_twin_grid *grid, void *args,
		    const char *what, void *stream, struct ucm_error *error);

/* A pointer is there, and aligned; name is its own. */
int ucm_twin_pointer_check(const char *name, const void *pointer,
			   uint32_t align, struct ucm_error *error);
/* Of a call that scores: align is the queries'. */
int ucm_twin_memory_check(const struct ucm_repr_slab *slab, const void *queries,
			  uint32_t align, const float *scores,
			  struct ucm_error *error);
/* One that may be NULL. */
int ucm_twin_optional_check(const char *name, const void *pointer,
			    struct ucm_error *error);

/* What was written to a cache, and which slots are to be built of it: checked, and
 * as a kernel takes it. spec: of the keys. */
struct ucm_twin_blocks_args;
int ucm_twin_blocks_check(const struct ucm_keys *keys,
			  const struct ucm_cuda_written *written,
			  uint32_t block_size, uint32_t num_heads,
			  uint32_t head_dim, const struct ucm_repr_slab *slab,
			  struct ucm_twin_blocks_args *out,
			  struct ucm_error *error);

/* A cache, of which the device alone knows the blocks that are used. */
int ucm_twin_rows_check(const char *name, const struct ucm_keys *keys,
			uint32_t block_size, uint32_t num_heads, uint32_t dim,
			struct ucm_error *error);
struct ucm_twin_rows_args ucm_twin_rows(const struct ucm_keys *keys,
					uint32_t dim);

/* Heads of dim channels of num queries. */
struct ucm_twin_heads_args;
int ucm_twin_queries_check(const char *name,
			   const struct ucm_cuda_queries *queries,
			   uint32_t num, uint32_t num_heads, uint32_t dim,
			   struct ucm_error *error);
struct ucm_twin_heads_args ucm_twin_heads(const struct ucm_cuda_queries *queries);

/* The CTAs of UCM_TWIN_THREADS that hold these threads. */
uint64_t ucm_twin_ctas(uint64_t threads);

/* CTAs for so many blocks and heads; too many for any grid: UINT64_MAX. */
uint64_t ucm_twin_block_ctas(const struct ucm_cuda_written *written,
			     uint32_t num_heads);

int ucm_twin_requests_check(const struct ucm_cuda_requests *requests,
			    struct ucm_error *error);
/* Rows of scores of each request, num of them in a row. */
int ucm_twin_scores_check(const struct ucm_cuda_requests *requests,
			  uint64_t rows, uint64_t num, size_t stride_row,
			  size_t stride_request, struct ucm_error *error);

#endif
