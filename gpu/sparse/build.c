/* SPDX-License-Identifier: Apache-2.0 */
/* build.c - representations of a paged cache's blocks, by the kernel. */
#include <config.h>

#include "gpu/sparse/twins.h"

#include <errno.h>

#include "common/error.h"
#include "gpu/sparse/twin_args.h"

static int build_check(const struct ucm_repr_spec *spec,
		       const struct ucm_keys *keys,
		       const struct ucm_cuda_written *written,
		       struct ucm_error *error)
{
	int err = ucm_sparse_keys_check(keys, spec->block_size, spec->num_heads,
					spec->head_dim, error);

	if (!err)
		err = ucm_twin_pointer_check(
			"keys", keys->base,
			ucm_sparse_input_bytes(keys->dtype), error);
	if (!err && written->slots)
		return ucm_twin_pointer_check("slots", written->slots, 8,
					      error);
	if (!err)
		err = ucm_twin_pointer_check("blocks", written->blocks, 4,
					     error);
	if (!err && written->tokens)
		err = ucm_twin_pointer_check("tokens", written->tokens, 4,
					     error);
	return err;
}

int ucm_sparse_cuda_build(const struct ucm_sparse_cuda *cuda,
			  const struct ucm_repr_spec *spec,
			  const struct ucm_keys *keys,
			  const struct ucm_cuda_written *written,
			  const struct ucm_repr_slab *slab, void *stream,
			  struct ucm_error *error)
{
	struct ucm_twin_grid grid = { UCM_TWIN_BUILD, 0, 1,
				      UCM_TWIN_BUILD_THREADS };
	struct ucm_twin_build_args args;
	struct ucm_repr_shape shape;
	int err;

	if (!cuda || !written)
		return ucm_error_set(error, -EINVAL, "%s is NULL",
				     cuda ? "written" : "cuda");
	err = ucm_twin_spec_check(spec, &shape, error);
	if (!err)
		err = ucm_repr_slab_check(slab, &shape, error);
	if (err || !written->num)
		return err;
	err = build_check(spec, keys, written, error);
	if (err)
		return err;
	args = (struct ucm_twin_build_args){
		.keys = (uintptr_t)keys->base,
		.num_blocks = keys->num_blocks,
		.stride_block = keys->stride_block,
		.stride_token = keys->stride_token,
		.stride_head = keys->stride_head,
		.slots = (uintptr_t)written->slots,
		.blocks = (uintptr_t)written->blocks,
		.tokens = (uintptr_t)written->tokens,
		.base = (uintptr_t)slab->base,
		.stride_bytes = slab->stride_bytes,
		.num_slots = slab->num_slots,
		.num = written->num,
		.repr_bytes = (uint32_t)shape.bytes,
		.rows_bytes = (uint32_t)shape.scales_at,
		.key_dtype = keys->dtype,
		.dtype = spec->dtype,
		.kind = spec->kind,
		.num_heads = spec->num_heads,
		.head_dim = spec->head_dim,
		.padded = shape.padded,
		.width = shape.width,
		.block_size = spec->block_size,
	};
	grid.x = written->num <= UINT32_MAX
			 ? (uint64_t)written->num * spec->num_heads
			 : UINT64_MAX;
	return ucm_twin_launch(cuda, &grid, &args, "num", stream, error);
}
