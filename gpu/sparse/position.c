/* SPDX-License-Identifier: Apache-2.0 */
/* position.c - keys that move, and their deviation, by the kernels. */
#include <config.h>

#include "gpu/sparse/twins.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "common/error.h"
#include "gpu/sparse/twin_args.h"
#include "sparse/rope.h"

/* ---- rotation ---- */

/* Where they go. */
static struct ucm_keys keys_of(const struct ucm_cuda_shift *shift)
{
	const struct ucm_key_room *to = &shift->to;

	return (struct ucm_keys){ to->base, shift->from.dtype, to->num_blocks,
				  to->stride_block, to->stride_token,
				  to->stride_head };
}

static int shift_check(const struct ucm_cuda_shift *shift, uint32_t head_dim,
		       struct ucm_error *error)
{
	const struct ucm_keys to = keys_of(shift);
	int err = ucm_sparse_in_range("num_heads", shift->num_heads,
				      UCM_REPR_HEADS_MAX, error)
		?: ucm_sparse_in_range("block_size", shift->block_size,
				       UCM_REPR_BLOCK_SIZE_MAX, error)
		?: ucm_twin_rows_check("from", &shift->from, shift->block_size,
				       shift->num_heads, head_dim, error)
		?: ucm_twin_rows_check("to", &to, shift->block_size,
				       shift->num_heads, head_dim, error)
		?: ucm_twin_pointer_check("deltas", shift->deltas, 4, error)
		?: ucm_twin_optional_check("from_blocks", shift->from_blocks,
					   error)
		?: ucm_twin_optional_check("to_blocks", shift->to_blocks,
					   error);

	return err ? err : ucm_twin_optional_check("tokens", shift->tokens, error);
}

static int shift_launch(const struct ucm_sparse_cuda *cuda,
			const struct ucm_rope *rope,
			const struct ucm_rope_shape *shape,
			const struct ucm_cuda_shift *shift, void *stream,
			struct ucm_error *error)
{
	struct ucm_twin_grid grid = { UCM_TWIN_SHIFT, shift->num, 0,
				      UCM_TWIN_THREADS, 0 };
	const struct ucm_keys to = keys_of(shift);
	struct ucm_twin_shift_args args = {
		.from = ucm_twin_rows(&shift->from, rope->head_dim),
		.to = ucm_twin_rows(&to, rope->head_dim),
		.from_blocks = (uintptr_t)shift->from_blocks,
		.to_blocks = (uintptr_t)shift->to_blocks,
		.tokens = (uintptr_t)shift->tokens,
		.deltas = (uintptr_t)shift->deltas,
		.per_token = shift->per_token,
		.num_heads = shift->num_heads,
		.block_size = shift->block_size,
		.rotary = shape->rotary,
		.neighbours = rope->pairing == UCM_ROPE_GPTJ,
		.magnitude = shift->unrotated ? shape->magnitude : 1,
	};

	memcpy(args.turns, shape->turns,
	       shape->rotary / 2 * sizeof(*args.turns));
	grid.y = (shift->block_size - 1) / UCM_TWIN_SHIFT_TOKENS + 1;
	return ucm_twin_launch(cuda, &grid, &args, "num", stream, error);
}

int ucm_sparse_cuda_shift(const struct ucm_sparse_cuda *cuda,
			  const struct ucm_rope *rope,
			  const struct ucm_cuda_shift *shift, void *stream,
			  struct ucm_error *error)
{
	struct ucm_rope_shape shape;
	int err = ucm_sparse_given(error, "cuda", cuda, "shift", shift, NULL)
		?: ucm_rope_check(rope, &shape, error);

	if (err || !shift->num)
		return err;
	if (shape.rotary > 2 * UCM_TWIN_PAIRS_MAX)
		return ucm_error_set(error, -EINVAL, "rotary_dim %" PRIu32
				     ": up to %d on a device", shape.rotary,
				     2 * UCM_TWIN_PAIRS_MAX);
	err = shift_check(shift, rope->head_dim, error);
	return err ?: shift_launch(cuda, rope, &shape, shift, stream, error);
}

/* ---- deviation ---- */

static int pair_add(const struct ucm_deviation_request *request,
		    const char *cached_name, const struct ucm_keys *cached,
		    const char *fresh_name, const struct ucm_keys *fresh,
		    struct ucm_twin_deviation_args *args,
		    struct ucm_error *error)
{
	struct ucm_keys rows = *fresh;
	int err;

	rows.stride_block = 0;
	err = ucm_twin_rows_check(cached_name, cached, request->block_size,
			 request->num_heads, request->head_dim, error);
	if (!err)
		err = ucm_twin_rows_check(fresh_name, &rows, request->num_tokens,
				 request->num_heads, request->head_dim, error);
	if (err)
		return err;
	args->pairs[args->num_pairs++] = (struct ucm_twin_pair_args){
		.cached = ucm_twin_rows(cached, request->head_dim),
		.fresh = ucm_twin_rows(&rows, request->head_dim),
	};
	return 0;
}

/* The kernel counts its threads in 32 bits. */
static int deviation_check(const struct ucm_deviation_request *request,
			   const float *out, struct ucm_error *error)
{
	int err = ucm_sparse_in_range("num_tokens", request->num_tokens,
				      UINT32_MAX / UCM_TWIN_LANES, error)
		?: ucm_sparse_in_range("num_heads", request->num_heads,
				       UCM_REPR_HEADS_MAX, error)
		?: ucm_sparse_in_range("head_dim", request->head_dim,
				       UCM_REPR_HEAD_DIM_MAX, error)
		?: ucm_sparse_in_range("block_size", request->block_size,
				       UCM_REPR_BLOCK_SIZE_MAX, error)
		?: ucm_twin_optional_check("table", request->table, error);

	return err ? err : ucm_twin_pointer_check("out", out, 4, error);
}

int ucm_sparse_cuda_deviation(const struct ucm_sparse_cuda *cuda,
			      const struct ucm_deviation_request *request,
			      float *out, void *stream,
			      struct ucm_error *error)
{
	struct ucm_twin_grid grid = { UCM_TWIN_DEVIATION, 0, 1,
				      UCM_TWIN_THREADS, 0 };
	struct ucm_twin_deviation_args args = { .num_pairs = 0 };
	int err;

	err = ucm_sparse_given(error, "cuda", cuda, "request", request, NULL)
		?: deviation_check(request, out, error)
		?: pair_add(request, "cached", &request->cached, "fresh",
			    &request->fresh, &args, error);
	if (!err && (request->cached_values.base || request->fresh_values.base))
		err = pair_add(request, "cached_values",
			       &request->cached_values, "fresh_values",
			       &request->fresh_values, &args, error);
	if (err)
		return err;
	args.table = (uintptr_t)request->table;
	args.out = (uintptr_t)out;
	args.num_tokens = request->num_tokens;
	args.num_heads = request->num_heads;
	args.block_size = request->block_size;
	args.relative = request->relative;
	grid.x = ucm_twin_ctas((uint64_t)request->num_tokens * UCM_TWIN_LANES);
	return ucm_twin_launch(cuda, &grid, &args, "num_tokens", stream, error);
}
