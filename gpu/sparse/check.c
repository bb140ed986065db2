/* SPDX-License-Identifier: Apache-2.0 */
/* check.c - what the calls of <ucm/sparse_cuda.h> are given, as far as the host
 * can see it. */
#include <config.h>

#include "gpu/sparse/twins.h"

#include <errno.h>
#include <inttypes.h>

#include "common/error.h"
#include "gpu/sparse/score_twin.h"
#include "gpu/sparse/twin_args.h"
#include "sparse/rows.h"

int ucm_twin_pointer_check(const char *name, const void *pointer,
			   uint32_t align, struct ucm_error *error)
{
	if (!pointer)
		return ucm_error_set(error, -EINVAL, "%s is NULL", name);
	if ((uintptr_t)pointer % align)
		return ucm_error_set(error, -EINVAL, "%s is not aligned to %"
				     PRIu32 " bytes", name, align);
	return 0;
}

int ucm_twin_optional_check(const char *name, const void *pointer,
			    struct ucm_error *error)
{
	return pointer ? ucm_twin_pointer_check(name, pointer, 4, error) : 0;
}

int ucm_twin_memory_check(const struct ucm_repr_slab *slab, const void *queries,
			  uint32_t align, const float *scores,
			  struct ucm_error *error)
{
	int err = ucm_twin_pointer_check("slab", slab->base,
					 UCM_TWIN_LOAD_BYTES, error)
		?: ucm_twin_pointer_check("queries", queries, align, error)
		?: ucm_twin_pointer_check("scores", scores, 4, error);

	if (!err && slab->stride_bytes % UCM_TWIN_LOAD_BYTES)
		err = ucm_error_set(error, -EINVAL, "stride_bytes %" PRIu64
				    ": a multiple of %d", slab->stride_bytes,
				    UCM_TWIN_LOAD_BYTES);
	return err;
}

static int written_check(const struct ucm_cuda_written *written,
			 struct ucm_error *error)
{
	int err;

	if (written->slots)
		return ucm_twin_pointer_check("slots", written->slots, 8,
					      error);
	err = ucm_twin_pointer_check("blocks", written->blocks, 4, error);
	return err ?: ucm_twin_optional_check("tokens", written->tokens, error);
}

int ucm_twin_blocks_check(const struct ucm_keys *keys,
			  const struct ucm_cuda_written *written,
			  uint32_t block_size, uint32_t num_heads,
			  uint32_t head_dim, const struct ucm_repr_slab *slab,
			  struct ucm_twin_blocks_args *out,
			  struct ucm_error *error)
{
	int err = ucm_sparse_keys_check(keys, block_size, num_heads, head_dim,
					error)
		?: ucm_twin_pointer_check("keys", keys->base,
					  ucm_repr_input_bytes(keys->dtype),
					  error)
		?: written_check(written, error);

	if (err)
		return err;
	*out = (struct ucm_twin_blocks_args){
		.keys = ucm_twin_rows(keys, head_dim),
		.slots = (uintptr_t)written->slots,
		.blocks = (uintptr_t)written->blocks,
		.tokens = (uintptr_t)written->tokens,
		.num = written->num,
		.base = (uintptr_t)slab->base,
		.stride_bytes = slab->stride_bytes,
		.num_slots = slab->num_slots,
		.num_heads = num_heads,
		.block_size = block_size,
	};
	return 0;
}

uint64_t ucm_twin_ctas(uint64_t threads)
{
	return (threads + UCM_TWIN_THREADS - 1) / UCM_TWIN_THREADS;
}

uint64_t ucm_twin_block_ctas(const struct ucm_cuda_written *written,
			     uint32_t num_heads)
{
	return written->num <= UINT32_MAX
		       ? (uint64_t)written->num * num_heads : UINT64_MAX;
}

int ucm_twin_requests_check(const struct ucm_cuda_requests *requests,
			    struct ucm_error *error)
{
	int err;

	if (!requests->num)
		return 0;
	if (requests->num > UCM_TWIN_REQUESTS_MAX)
		return ucm_error_set(error, -EINVAL, "num %" PRIu32
				     ": up to %u requests", requests->num,
				     UCM_TWIN_REQUESTS_MAX);
	if (!requests->max_blocks || requests->max_blocks > INT32_MAX)
		return ucm_error_set(error, -EINVAL, "max_blocks %" PRIu32
				     ": from 1 to %d", requests->max_blocks,
				     INT32_MAX);
	err = ucm_twin_pointer_check("tables", requests->tables, 4, error)
		?: ucm_twin_pointer_check("tokens", requests->tokens, 4, error);
	if (!err && requests->table_stride < requests->max_blocks)
		err = ucm_error_set(error, -EINVAL, "table_stride %zu: at "
				    "least %" PRIu32, requests->table_stride,
				    requests->max_blocks);
	return err;
}

int ucm_twin_scores_check(const struct ucm_cuda_requests *requests,
			  uint64_t rows, uint64_t num, size_t stride_row,
			  size_t stride_request, struct ucm_error *error)
{
	if ((rows > 1 && stride_row < num) ||
	    (requests->num > 1 && stride_request < num))
		return ucm_error_set(error, -EINVAL, "stride_row %zu, "
				     "stride_request %zu: at least %" PRIu64,
				     stride_row, stride_request, num);
	/* the kernel counts its threads in 32 bits */
	if (rows * requests->max_blocks > UINT32_MAX / UCM_TWIN_LANES)
		return ucm_error_set(error, -EINVAL, "max_blocks %" PRIu32
				     ": too many for %" PRIu64 " rows",
				     requests->max_blocks, rows);
	return 0;
}

int ucm_twin_rows_check(const char *name, const struct ucm_keys *keys,
			uint32_t block_size, uint32_t num_heads, uint32_t dim,
			struct ucm_error *error)
{
	const struct ucm_rows rows = { name, *keys, block_size, num_heads,
				       dim };
	int err = ucm_rows_check(&rows, "num_blocks", NULL, 1, error);

	return err ?: ucm_twin_pointer_check(name, keys->base,
					     ucm_repr_input_bytes(keys->dtype),
					     error);
}

int ucm_twin_queries_check(const char *name,
			   const struct ucm_cuda_queries *queries,
			   uint32_t num, uint32_t num_heads, uint32_t dim,
			   struct ucm_error *error)
{
	uint32_t item = ucm_repr_input_bytes(queries->dtype);

	if (!item)
		return ucm_error_set(error, -EINVAL, "%s: dtype %" PRIu32
				     ": float32, float16 or bfloat16", name,
				     queries->dtype);
	if (queries->num != num || num > UCM_TWIN_REQUESTS_MAX)
		return ucm_error_set(error, -EINVAL, "%s: num %" PRIu32
				     ": one for each request, up to %u", name,
				     queries->num, UCM_TWIN_REQUESTS_MAX);
	if (queries->num_heads != num_heads)
		return ucm_error_set(error, -EINVAL, "%s: num_heads %" PRIu32
				     ": %" PRIu32 " are expected", name,
				     queries->num_heads, num_heads);
	if (!ucm_sparse_strides_fit(
		    (uint64_t[]){ num, num_heads, 1 },
		    (int64_t[]){ queries->stride_query, queries->stride_head,
				 0 }, dim, item))
		return ucm_error_set(error, -EINVAL, "%s: stride_query, "
				     "stride_head: more than there is memory",
				     name);
	return ucm_twin_pointer_check(name, queries->base, item, error);
}

struct ucm_twin_rows_args ucm_twin_rows(const struct ucm_keys *keys,
					uint32_t dim)
{
	return (struct ucm_twin_rows_args){
		.base = (uintptr_t)keys->base,
		.num_blocks = keys->num_blocks,
		.stride_block = keys->stride_block,
		.stride_token = keys->stride_token,
		.stride_head = keys->stride_head,
		.dtype = keys->dtype,
		.dim = dim,
	};
}

struct ucm_twin_heads_args ucm_twin_heads(const struct ucm_cuda_queries *queries)
{
	return (struct ucm_twin_heads_args){
		.base = (uintptr_t)queries->base,
		.stride_query = queries->stride_query,
		.stride_head = queries->stride_head,
		.dtype = queries->dtype,
	};
}
