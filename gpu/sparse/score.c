/* SPDX-License-Identifier: Apache-2.0 */
/* score.c - prepared queries and scores, by the kernels. */
#include <config.h>

#include "gpu/sparse/twins.h"

#include <errno.h>
#include <inttypes.h>

#include "common/error.h"
#include "gpu/sparse/score_twin.h"

static int query_check(const struct ucm_repr_spec *spec, uint32_t num_heads,
		       uint32_t per, struct ucm_repr_shape *shape,
		       struct ucm_error *error)
{
	int err = ucm_repr_shape(spec, shape, error);

	if (err)
		return err;
	if (per > UCM_SCORE_BLOCK)
		return ucm_error_set(error, -EINVAL, "per %" PRIu32
				     ": not on a device", per);
	if (ucm_query_floats(spec, num_heads, per))
		return 0;
	return ucm_error_set(error, -EINVAL, "num_heads %" PRIu32
			     " of the queries: a multiple of %" PRIu32
			     ", up to 65536", num_heads, spec->num_heads);
}

/* Of a prepared query, for each key head. */
static uint32_t query_rows(const struct ucm_repr_spec *spec,
			   uint32_t num_heads, uint32_t per)
{
	return per == UCM_SCORE_HEAD ? num_heads / spec->num_heads : 1;
}

/* Is the query rounded to whole numbers, too? A bound would not be one then. */
static bool in_steps(const struct ucm_repr_spec *spec)
{
	return spec->dtype == UCM_DTYPE_INT8 && spec->kind != UCM_REPR_MINMAX;
}

int ucm_sparse_cuda_prepare(const struct ucm_sparse_cuda *cuda,
			    const struct ucm_repr_spec *spec,
			    const struct ucm_cuda_queries *queries,
			    uint32_t per, float *out, size_t out_stride,
			    void *stream, struct ucm_error *error)
{
	const struct ucm_twin_grid steps = { UCM_TWIN_QUERY_STEPS, 0, 0,
					     UCM_TWIN_BUILD_THREADS, 0 };
	struct ucm_twin_query_args args;
	struct ucm_twin_grid grid = { UCM_TWIN_QUERY, 0, 0, UCM_TWIN_THREADS,
				      0 };
	struct ucm_repr_shape shape;
	uint32_t rows;
	size_t floats;
	int err;

	err = ucm_sparse_given(error, "cuda", cuda, "queries", queries, NULL)
		?: query_check(spec, queries->num_heads, per, &shape, error);
	if (err || !queries->num)
		return err;
	err = ucm_twin_queries_check("queries", queries, queries->num,
				     queries->num_heads, spec->head_dim, error)
		?: ucm_twin_pointer_check("out", out, 4, error);
	if (err)
		return err;
	rows = spec->num_heads * query_rows(spec, queries->num_heads, per);
	floats = ucm_query_floats(spec, queries->num_heads, per);
	if (out_stride < floats)
		return ucm_error_set(error, -EINVAL, "out_stride %zu: at least "
				     "%zu", out_stride, floats);
	args = (struct ucm_twin_query_args){
		.query = ucm_twin_heads(queries),
		.out = (uintptr_t)out,
		.out_stride = out_stride,
		.minmax = spec->kind == UCM_REPR_MINMAX,
		.head_dim = spec->head_dim,
		.padded = shape.padded,
		.width = shape.width,
		.rows = rows,
		.merged = queries->num_heads / rows,
	};
	grid.x = ucm_twin_ctas((uint64_t)rows * shape.width);
	if (in_steps(spec)) {
		grid = steps;
		grid.x = rows;
	}
	grid.y = queries->num;
	return ucm_twin_launch(cuda, &grid, &args, "queries", stream, error);
}

static int score_check(const struct ucm_cuda_score *score,
		       const struct ucm_repr_shape *shape, uint64_t rows,
		       size_t floats, struct ucm_error *error)
{
	int err = ucm_twin_requests_check(&score->requests, error)
		?: ucm_repr_slab_check(score->slab, shape->bytes,
				       sizeof(float), error)
		?: ucm_twin_memory_check(score->slab, score->queries,
					 UCM_TWIN_LOAD_BYTES, score->scores,
					 error);

	if (err)
		return err;
	if (score->query_stride % 4 ||
	    (score->requests.num > 1 && score->query_stride < floats))
		return ucm_error_set(error, -EINVAL, "query_stride %zu: a "
				     "multiple of 4, at least %zu",
				     score->query_stride, floats);
	return ucm_twin_scores_check(&score->requests, rows,
				     score->requests.max_blocks,
				     score->stride_row, score->stride_request,
				     error);
}

int ucm_sparse_cuda_score(const struct ucm_sparse_cuda *cuda,
			  const struct ucm_repr_spec *spec,
			  const struct ucm_cuda_score *score, void *stream,
			  struct ucm_error *error)
{
	static const enum ucm_twin_kernel kernels[] = {
		[UCM_DTYPE_FLOAT32] = UCM_TWIN_SCORE_FLOAT32,
		[UCM_DTYPE_FLOAT16] = UCM_TWIN_SCORE_FLOAT16,
		[UCM_DTYPE_BFLOAT16] = UCM_TWIN_SCORE_BFLOAT16,
		[UCM_DTYPE_INT8] = UCM_TWIN_SCORE_INT8,
	};
	struct ucm_twin_score_args args;
	struct ucm_twin_grid grid = { .threads = UCM_TWIN_THREADS };
	struct ucm_repr_shape shape;
	uint32_t rows, all;
	int err = ucm_sparse_given(error, "cuda", cuda, "score", score, NULL);

	if (!err)
		err = query_check(spec, score->num_heads, score->per, &shape, error);
	if (err || !score->requests.num)
		return err;
	rows = query_rows(spec, score->num_heads, score->per);
	all = score->per == UCM_SCORE_BLOCK ? 1 : spec->num_heads * rows;
	err = score_check(score, &shape, all,
			  ucm_query_floats(spec, score->num_heads, score->per),
			  error);
	if (err)
		return err;
	args = (struct ucm_twin_score_args){
		.queries = (uintptr_t)score->queries,
		.base = (uintptr_t)score->slab->base,
		.stride_bytes = score->slab->stride_bytes,
		.num_slots = score->slab->num_slots,
		.tables = (uintptr_t)score->requests.tables,
		.tokens = (uintptr_t)score->requests.tokens,
		.scores = (uintptr_t)score->scores,
		.query_stride = score->query_stride,
		.table_stride = score->requests.table_stride,
		.stride_request = score->stride_request,
		.stride_row = score->stride_row,
		.scales_at = shape.scales_at,
		.num_heads = spec->num_heads,
		.rows = rows,
		.width = shape.width,
		.sum = score->per == UCM_SCORE_BLOCK,
		.block_size = spec->block_size,
		.max_blocks = score->requests.max_blocks,
	};
	grid.kernel = in_steps(spec) ? UCM_TWIN_SCORE_STEPS
				     : kernels[spec->dtype];
	grid.x = ucm_twin_ctas((uint64_t)all * args.max_blocks *
		      ucm_twin_team(spec->dtype));
	grid.y = score->requests.num;
	return ucm_twin_launch(cuda, &grid, &args, "scores", stream, error);
}
