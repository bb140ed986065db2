/* SPDX-License-Identifier: Apache-2.0 */
/* build.c - representations of a paged cache's blocks, by the kernel. */
#include <config.h>

#include "gpu/sparse/twins.h"

#include "gpu/sparse/twin_args.h"

int ucm_sparse_cuda_build(const struct ucm_sparse_cuda *cuda,
			  const struct ucm_repr_spec *spec,
			  const struct ucm_keys *keys,
			  const struct ucm_cuda_written *written,
			  const struct ucm_repr_slab *slab, void *stream,
			  struct ucm_error *error)
{
	struct ucm_twin_grid grid = { UCM_TWIN_BUILD, 0, 1,
				      UCM_TWIN_BUILD_THREADS, 0 };
	struct ucm_twin_build_args args;
	struct ucm_repr_shape shape;
	int err;

	err = ucm_sparse_given(error, "cuda", cuda, "written", written, NULL)
		?: ucm_repr_shape(spec, &shape, error)
		?: ucm_repr_slab_check(slab, shape.bytes, sizeof(float), error);
	if (err || !written->num)
		return err;
	err = ucm_twin_blocks_check(keys, written, spec->block_size,
				    spec->num_heads, spec->head_dim, slab,
				    &args.from, error);
	if (err)
		return err;
	args.repr_bytes = (uint32_t)shape.bytes;
	args.scales_at = (uint32_t)shape.scales_at;
	args.dtype = spec->dtype;
	args.kind = spec->kind;
	args.padded = shape.padded;
	args.width = shape.width;
	grid.x = ucm_twin_block_ctas(written, spec->num_heads);
	return ucm_twin_launch(cuda, &grid, &args, "num", stream, error);
}
