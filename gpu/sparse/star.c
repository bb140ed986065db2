/* SPDX-License-Identifier: Apache-2.0 */
/*
 * star.c - merged channels (KVStar): representations, scores and votes, by the
 * kernels.
 *
 * What is said of specs and scores is looked at by the calls for the CPU, with no
 * blocks.
 */
#include <config.h>

#include "gpu/sparse/twins.h"

#include <errno.h>
#include <inttypes.h>

#include "common/error.h"
#include "gpu/sparse/twin_args.h"

/* channels: the device's copy of spec's. */
static int channels_check(const struct ucm_star_spec *spec,
			  const uint16_t *channels, struct ucm_error *error)
{
	if (!spec->channels != !channels)
		return ucm_error_set(error, -EINVAL, "channels: %s on the "
				     "device alone",
				     channels ? "there are some" : "none");
	return channels ? ucm_twin_pointer_check("channels", channels, 2, error)
			: 0;
}

/* ---- representations ---- */

int ucm_sparse_cuda_star_build(const struct ucm_sparse_cuda *cuda,
			       const struct ucm_star_spec *spec,
			       const uint16_t *channels,
			       const struct ucm_keys *keys,
			       const struct ucm_cuda_written *written,
			       const struct ucm_repr_slab *slab, void *stream,
			       struct ucm_error *error)
{
	struct ucm_twin_grid grid = { UCM_TWIN_STAR_BUILD, 0, 1,
				      UCM_TWIN_BUILD_THREADS, 0 };
	struct ucm_twin_star_build_args args;
	struct ucm_star_shape shape;
	int err;

	err = ucm_sparse_given(error, "cuda", cuda, "written", written, NULL)
		?: ucm_star_build(spec, keys, NULL, 0, 1, slab, NULL, error)
		?: channels_check(spec, channels, error);
	if (err || !written->num)
		return err;
	err = ucm_twin_blocks_check(keys, written, spec->block_size,
				    spec->num_heads, spec->head_dim, slab,
				    &args.from, error);
	if (err)
		return err;
	ucm_star_shape(spec, &shape, NULL); /* it is right */
	args.channels = (uintptr_t)channels;
	args.scales_at = shape.scales_at;
	args.groups_at = shape.groups_at;
	args.bytes = shape.bytes;
	args.dtype = spec->dtype;
	args.kept = spec->kept;
	args.merge = spec->merge_tokens;
	args.lanes = shape.lanes;
	grid.x = ucm_twin_block_ctas(written, spec->num_heads);
	return ucm_twin_launch(cuda, &grid, &args, "num", stream, error);
}

/* ---- queries ---- */

/* Is it right, in all but its slots? slab: or one that is right. */
static int star_check(const struct ucm_star_spec *spec, uint32_t num_queries,
		      uint32_t num_heads, uint32_t per,
		      const struct ucm_repr_slab *slab, float *weights,
		      float scale, struct ucm_error *error)
{
	float number = 0;
	const struct ucm_repr_slab none = {
		.base = &number, .stride_bytes = ucm_star_bytes(spec),
	};
	const struct ucm_star_request request = {
		.query = &number, .num_queries = num_queries,
		.num_heads = num_heads, .per = per,
		.slab = slab ? slab : &none, .scores = &number,
		.weights = weights, .scale = scale,
	};

	return ucm_star_score(spec, &request, 1, error);
}

int ucm_sparse_cuda_star_prepare(const struct ucm_sparse_cuda *cuda,
				 const struct ucm_star_spec *spec,
				 const uint16_t *channels,
				 const struct ucm_cuda_queries *queries,
				 uint32_t num_queries, float *out,
				 size_t out_stride, void *stream,
				 struct ucm_error *error)
{
	struct ucm_twin_grid grid = { UCM_TWIN_STAR_QUERY, 0, 0,
				      UCM_TWIN_THREADS, 0 };
	struct ucm_twin_star_query_args args;
	size_t floats;
	int err;

	err = ucm_sparse_given(error, "cuda", cuda, "queries", queries, NULL)
		?: star_check(spec, num_queries, queries->num_heads,
			      UCM_SCORE_HEAD, NULL, NULL, 0, error)
		?: channels_check(spec, channels, error);
	if (err || !queries->num)
		return err;
	if (queries->num % num_queries)
		return ucm_error_set(error, -EINVAL, "queries: num %" PRIu32
				     ": a multiple of num_queries, %" PRIu32,
				     queries->num, num_queries);
	err = ucm_twin_queries_check("queries", queries, queries->num,
				     queries->num_heads, spec->head_dim, error)
		?: ucm_twin_pointer_check("out", out, 4, error);
	if (err)
		return err;
	floats = ucm_star_query_floats(spec, num_queries, queries->num_heads);
	if (out_stride < floats)
		return ucm_error_set(error, -EINVAL, "out_stride %zu: at least "
				     "%zu", out_stride, floats);
	if (floats > UINT32_MAX - UCM_TWIN_THREADS)
		return ucm_error_set(error, -EINVAL, "num_queries %" PRIu32
				     ": too many", num_queries);
	args = (struct ucm_twin_star_query_args){
		.query = ucm_twin_heads(queries),
		.channels = (uintptr_t)channels,
		.out = (uintptr_t)out,
		.out_stride = out_stride,
		.num_heads = spec->num_heads,
		.group = queries->num_heads / spec->num_heads,
		.num_queries = num_queries,
		.kept = spec->kept,
	};
	args.rows = args.group * num_queries;
	grid.x = ucm_twin_ctas(floats);
	grid.y = queries->num / num_queries;
	return ucm_twin_launch(cuda, &grid, &args, "queries", stream, error);
}

/* ---- scores ---- */

static int pointers_check(const struct ucm_cuda_star_score *score,
			  struct ucm_error *error)
{
	int err = ucm_twin_requests_check(&score->requests, error)
		?: ucm_twin_pointer_check("slab", score->slab->base, 4, error)
		?: ucm_twin_pointer_check("queries", score->queries, 4, error)
		?: ucm_twin_pointer_check("scores", score->scores, 4, error);

	return err ?: ucm_twin_optional_check("weights", score->weights, error);
}

static int score_check(const struct ucm_star_spec *spec,
		       const struct ucm_cuda_star_score *score, uint64_t rows,
		       struct ucm_error *error)
{
	size_t floats = ucm_star_query_floats(spec, score->num_queries,
					      score->num_heads);
	int err = pointers_check(score, error);

	if (err)
		return err;
	if (score->requests.num > 1 && score->query_stride < floats)
		return ucm_error_set(error, -EINVAL, "query_stride %zu: at "
				     "least %zu", score->query_stride, floats);
	return ucm_twin_scores_check(&score->requests, rows,
				     score->requests.max_blocks,
				     score->stride_row, score->stride_request,
				     error);
}

static struct ucm_twin_star_score_args
score_args(const struct ucm_star_spec *spec,
	   const struct ucm_cuda_star_score *score)
{
	uint32_t group = score->num_heads / spec->num_heads;
	struct ucm_star_shape shape;

	ucm_star_shape(spec, &shape, NULL); /* it is right */
	return (struct ucm_twin_star_score_args){
		.queries = (uintptr_t)score->queries,
		.base = (uintptr_t)score->slab->base,
		.stride_bytes = score->slab->stride_bytes,
		.num_slots = score->slab->num_slots,
		.tables = (uintptr_t)score->requests.tables,
		.tokens = (uintptr_t)score->requests.tokens,
		.scores = (uintptr_t)score->scores,
		.weights = (uintptr_t)score->weights,
		.query_stride = score->query_stride,
		.table_stride = score->requests.table_stride,
		.stride_request = score->stride_request,
		.stride_row = score->stride_row,
		.scales_at = shape.scales_at,
		.groups_at = shape.groups_at,
		.num_heads = spec->num_heads,
		.group = group,
		.rows = group * score->num_queries,
		.kept = spec->kept,
		.lanes = shape.lanes,
		.per = score->per,
		.block_size = spec->block_size,
		.max_blocks = score->requests.max_blocks,
		.scale = score->scale,
	};
}

int ucm_sparse_cuda_star_score(const struct ucm_sparse_cuda *cuda,
			       const struct ucm_star_spec *spec,
			       const struct ucm_cuda_star_score *score,
			       void *stream, struct ucm_error *error)
{
	static const enum ucm_twin_kernel kernels[] = {
		[UCM_DTYPE_FLOAT32] = UCM_TWIN_STAR_FLOAT32,
		[UCM_DTYPE_FLOAT16] = UCM_TWIN_STAR_FLOAT16,
		[UCM_DTYPE_BFLOAT16] = UCM_TWIN_STAR_BFLOAT16,
		[UCM_DTYPE_INT8] = UCM_TWIN_STAR_INT8,
	};
	struct ucm_twin_grid grid = { .threads = UCM_TWIN_THREADS };
	struct ucm_twin_star_score_args args;
	uint64_t rows = 1, items;
	int err = ucm_sparse_given(error, "cuda", cuda, "score", score, NULL)
		?: ucm_sparse_given(error, "slab", score->slab, NULL)
		?: star_check(spec, score->num_queries, score->num_heads,
			      score->per, score->slab, score->weights,
			      score->scale, error);

	if (err || !score->requests.num)
		return err;
	if (score->per == UCM_SCORE_HEAD)
		rows = (uint64_t)score->num_queries * score->num_heads;
	else if (score->per == UCM_SCORE_GROUP)
		rows = spec->num_heads;
	err = score_check(spec, score, rows, error);
	if (err)
		return err;
	args = score_args(spec, score);
	items = score->per == UCM_SCORE_HEAD
			? (uint64_t)spec->num_heads *
				  ((args.rows - 1) / UCM_TWIN_STAR_ROWS + 1)
			: rows;
	grid.kernel = kernels[spec->dtype];
	grid.x = ucm_twin_ctas(items * args.max_blocks * UCM_STAR_LANES);
	grid.y = score->requests.num;
	return ucm_twin_launch(cuda, &grid, &args, "scores", stream, error);
}

/* ---- votes ---- */

static int vote_check(const struct ucm_cuda_star_vote *vote,
		      uint32_t block_size, struct ucm_error *error)
{
	uint32_t blocks = vote->requests.max_blocks;
	int err = ucm_twin_requests_check(&vote->requests, error)
		?: ucm_sparse_in_range("block_size", block_size,
				       UCM_REPR_BLOCK_SIZE_MAX, error)
		?: ucm_sparse_in_range("num_rows", vote->num_rows, INT32_MAX,
				       error)
		?: ucm_twin_pointer_check("scores", vote->scores, 4, error)
		?: ucm_twin_pointer_check("weights", vote->weights, 4, error)
		?: ucm_twin_pointer_check("votes", vote->votes, 4, error);

	if (err)
		return err;
	if (!(vote->scale >= 0 && vote->scale <= 0x1.fffffep127f))
		return ucm_error_set(error, -EINVAL, "scale %g: at least 0, "
				     "and finite", (double)vote->scale);
	if ((vote->num_rows > 1 && vote->stride_row < blocks) ||
	    (vote->requests.num > 1 && (vote->stride_request < blocks ||
					vote->votes_stride < blocks)))
		return ucm_error_set(error, -EINVAL, "stride_row %zu, "
				     "stride_request %zu, votes_stride %zu: at "
				     "least %" PRIu32, vote->stride_row,
				     vote->stride_request, vote->votes_stride,
				     blocks);
	return 0;
}

int ucm_sparse_cuda_star_vote(const struct ucm_sparse_cuda *cuda,
			      uint32_t block_size,
			      const struct ucm_cuda_star_vote *vote,
			      void *stream, struct ucm_error *error)
{
	struct ucm_twin_grid rows = { UCM_TWIN_VOTE_ROWS, 0, 0,
				      UCM_TWIN_THREADS, 0 };
	struct ucm_twin_grid blocks = { UCM_TWIN_VOTES, 0, 0, UCM_TWIN_THREADS,
					0 };
	struct ucm_twin_vote_args args;
	int err;

	if (!cuda || !vote)
		return ucm_error_set(error, -EINVAL, "%s is NULL",
				     cuda ? "vote" : "cuda");
	if (!vote->requests.num)
		return 0;
	err = vote_check(vote, block_size, error);
	if (err)
		return err;
	args = (struct ucm_twin_vote_args){
		.tokens = (uintptr_t)vote->requests.tokens,
		.scores = (uintptr_t)vote->scores,
		.weights = (uintptr_t)vote->weights,
		.votes = (uintptr_t)vote->votes,
		.stride_request = vote->stride_request,
		.stride_row = vote->stride_row,
		.votes_stride = vote->votes_stride,
		.rows = vote->num_rows,
		.block_size = block_size,
		.max_blocks = vote->requests.max_blocks,
		.scale = vote->scale,
	};
	rows.x = vote->num_rows;
	blocks.x = ucm_twin_ctas(args.max_blocks);
	rows.y = blocks.y = vote->requests.num;
	err = ucm_twin_launch(cuda, &rows, &args, "num_rows", stream, error);
	return err ?: ucm_twin_launch(cuda, &blocks, &args, "max_blocks",
				      stream, error);
}
