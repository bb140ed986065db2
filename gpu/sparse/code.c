/* SPDX-License-Identifier: Apache-2.0 */
/*
 * code.c - hash codes of keys and queries, and their scores, by the kernels.
 *
 * What is said of a method is looked at by the call for the CPU, with no blocks.
 */
#include <config.h>

#include "gpu/sparse/twins.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "common/error.h"
#include "gpu/sparse/code_score_twin.h"
#include "sparse/code.h"

static_assert(UCM_TWIN_PLANES == UCM_CODE_PLANES, "weights are copied");

/* ---- encoders ---- */

/* Where the device has what the host's encoder has. */
static uint64_t device_at(const struct ucm_cuda_encoder *encoder,
			  const void *host)
{
	return (uintptr_t)encoder->device +
	       (uint64_t)((const uint8_t *)host -
			  (const uint8_t *)encoder->host);
}

static int encoder_check(const struct ucm_cuda_encoder *encoder,
			 const struct ucm_code_spec **spec,
			 struct ucm_code_shape *shape, struct ucm_error *error)
{
	int err = ucm_sparse_given(error, "encoder", encoder, NULL)
		?: ucm_code_encoder_check(encoder->host, spec, error)
		?: ucm_twin_pointer_check("encoder: device", encoder->device, 8,
					  error);

	return err ? err : ucm_code_shape(*spec, shape, error);
}

static struct ucm_twin_coder coder_of(const struct ucm_cuda_encoder *encoder,
				      const struct ucm_code_shape *shape)
{
	struct ucm_twin_coder coder = { .words = shape->words };
	size_t stride;
	const float *floats = ucm_code_matrix(encoder->host, 0, &stride);

	for (uint32_t i = 0; i < UCM_CODE_PARTS; i++)
		coder.parts[i] = (struct ucm_twin_coder_part){
			.matrix = device_at(encoder,
					    floats + shape->parts[i].matrix_at),
			.first = shape->parts[i].first,
			.dim = shape->parts[i].dim,
			.bits = shape->parts[i].bits,
			.columns = shape->parts[i].words * UCM_CODE_WORD,
		};
	coder.centers = device_at(encoder, floats + shape->centers_at);
	return coder;
}

static uint32_t parts_of(uint32_t words)
{
	return (words * UCM_CODE_WORD - 1) / UCM_TWIN_CODE_THREADS + 1;
}

/* ---- keys ---- */

int ucm_sparse_cuda_code_build(const struct ucm_sparse_cuda *cuda,
			       const struct ucm_cuda_encoder *encoder,
			       const struct ucm_keys *keys,
			       const struct ucm_cuda_written *written,
			       const struct ucm_repr_slab *slab, void *stream,
			       struct ucm_error *error)
{
	struct ucm_twin_grid grid = { UCM_TWIN_ENCODE, 0, 1,
				      UCM_TWIN_CODE_THREADS, 0 };
	const struct ucm_code_spec *spec;
	struct ucm_twin_code_args args;
	struct ucm_code_shape shape;
	int err;

	err = ucm_sparse_given(error, "cuda", cuda, "written", written, NULL)
		?: encoder_check(encoder, &spec, &shape, error)
		?: ucm_repr_slab_check(slab, shape.bytes, sizeof(uint64_t),
				       error);
	if (err || !written->num)
		return err;
	err = ucm_twin_blocks_check(keys, written, spec->block_size,
				    spec->num_heads, spec->head_dim, slab,
				    &args.from, error);
	if (err)
		return err;
	args.coder = coder_of(encoder, &shape);
	args.head_bytes = shape.head_bytes;
	args.norms_at = shape.norms_at;
	args.tokens_at = shape.tokens_at;
	args.bytes = shape.bytes;
	args.rows = shape.tiles * UCM_CODE_TILE;
	args.counts = spec->form == UCM_CODE_COUNTS;
	args.norms = spec->norms;
	grid.x = ucm_twin_block_ctas(written, spec->num_heads);
	if (args.counts) {
		grid.kernel = UCM_TWIN_COUNT_BITS;
		grid.y = parts_of(shape.words);
	}
	return ucm_twin_launch(cuda, &grid, &args, "num", stream, error);
}

/* ---- methods ---- */

/* slab: or one that is right. */
static int method_check(const struct ucm_code_spec *spec,
			const struct ucm_code_method *method,
			const struct ucm_repr_slab *slab,
			struct ucm_error *error)
{
	const struct ucm_repr_slab none = {
		.base = &((struct { uint64_t word; }){ 0 }),
		.stride_bytes = ucm_code_bytes(spec),
	};
	const uint64_t word = 0;
	float score = 0;
	const struct ucm_code_request request = {
		.query = &word, .slab = slab ? slab : &none,
		.scores = &score,
	};

	return ucm_code_score(spec, method, &request, 1, error);
}

/* ---- queries ---- */

static int prepare_check(const struct ucm_code_spec *spec,
			 const struct ucm_code_method *method,
			 const struct ucm_cuda_queries *queries,
			 const struct ucm_cuda_queries *rope,
			 const uint64_t *out, size_t out_stride,
			 struct ucm_error *error)
{
	uint32_t dim = spec->head_dim - (rope ? spec->rope_dim : 0);
	size_t words = ucm_code_query_words(spec, method);
	int err = ucm_twin_queries_check("queries", queries, queries->num,
			      method->num_heads, dim, error);

	if (!err && rope && !spec->rope_dim)
		err = ucm_error_set(error, -EINVAL,
				    "rope: spec has no rope_dim");
	if (!err && rope)
		err = ucm_twin_queries_check("rope", rope, queries->num,
				  method->num_heads, spec->rope_dim, error);
	if (!err)
		err = ucm_twin_pointer_check("out", out, 8, error);
	if (!err && out_stride < words)
		err = ucm_error_set(error, -EINVAL, "out_stride %zu: at least "
				    "%zu", out_stride, words);
	return err;
}

static void prepare_method(const struct ucm_code_spec *spec,
			   const struct ucm_code_method *method,
			   struct ucm_twin_code_query_args *args)
{
	bool each = method->per == UCM_SCORE_HEAD;
	struct ucm_code_query shape;

	ucm_code_query_shape(spec, method, &shape, NULL); /* it is right */
	args->group = shape.group;
	args->rows = shape.rows;
	args->estimate = method->measure == UCM_CODE_ESTIMATE;
	args->vectors = each || args->estimate ? 1 : shape.codes;
	args->merged = method->merged_heads;
	args->step = shape.codes;
	if (args->estimate && !each) { /* the mean of all */
		args->merged = shape.group;
		args->step = 1;
	}
	args->row_words = shape.row_words;
	args->planes = shape.num;
	memcpy(args->weights, shape.weights, sizeof(shape.weights));
}

int ucm_sparse_cuda_code_prepare(const struct ucm_sparse_cuda *cuda,
				 const struct ucm_cuda_encoder *encoder,
				 const struct ucm_code_method *method,
				 const struct ucm_cuda_queries *queries,
				 const struct ucm_cuda_queries *rope,
				 uint64_t *out, size_t out_stride,
				 void *stream, struct ucm_error *error)
{
	struct ucm_twin_grid grid = { UCM_TWIN_CODE_QUERY, 0, 0,
				      UCM_TWIN_CODE_THREADS, 0 };
	struct ucm_twin_code_query_args args = { .estimate = 0 };
	const struct ucm_code_spec *spec;
	struct ucm_code_shape shape;
	int err;

	err = ucm_sparse_given(error, "cuda", cuda, "queries", queries, NULL)
		?: encoder_check(encoder, &spec, &shape, error)
		?: method_check(spec, method, NULL, error);
	if (err || !queries->num)
		return err;
	err = prepare_check(spec, method, queries, rope, out, out_stride,
			    error);
	if (err)
		return err;
	args.coder = coder_of(encoder, &shape);
	args.query = ucm_twin_heads(queries);
	if (rope)
		args.rope = ucm_twin_heads(rope);
	args.rope_first = spec->head_dim - spec->rope_dim;
	args.head_dim = spec->head_dim;
	args.out = (uintptr_t)out;
	args.out_stride = out_stride;
	prepare_method(spec, method, &args);
	grid.x = (uint64_t)spec->num_heads * args.rows;
	grid.y = queries->num;
	return ucm_twin_launch(cuda, &grid, &args, "queries", stream, error);
}

/* ---- scores ---- */

static int score_check(const struct ucm_code_spec *spec,
		       const struct ucm_code_method *method,
		       const struct ucm_cuda_code_score *score, uint64_t rows,
		       uint32_t each, struct ucm_error *error)
{
	size_t words = ucm_code_query_words(spec, method);
	uint64_t row = (uint64_t)score->requests.max_blocks * each;
	int err = ucm_twin_requests_check(&score->requests, error)
		?: ucm_twin_memory_check(score->slab, score->queries, 8,
					 score->scores, error);

	if (err)
		return err;
	if (score->requests.num > 1 && score->query_stride < words)
		return ucm_error_set(error, -EINVAL, "query_stride %zu: at "
				     "least %zu", score->query_stride, words);
	return ucm_twin_scores_check(&score->requests, rows, row,
				     score->stride_row, score->stride_request,
				     error);
}

/* Threads of an item: two tokens each, up to a warp. */
static uint32_t team_of(uint32_t rows)
{
	uint32_t team = 1;

	while (2 * team < rows && team < UCM_WARP)
		team *= 2;
	return team;
}

static enum ucm_twin_code_mode mode_of(const struct ucm_code_spec *spec,
				       const struct ucm_code_method *method)
{
	bool normed = spec->norms && method->measure == UCM_CODE_ESTIMATE;

	if (method->over == UCM_CODE_EACH)
		return UCM_TWIN_CODE_EACH;
	if (method->over == UCM_CODE_BEST)
		return normed ? UCM_TWIN_CODE_BEST : UCM_TWIN_CODE_LEAST;
	if (spec->form == UCM_CODE_COUNTS)
		return UCM_TWIN_CODE_COUNT;
	return normed ? UCM_TWIN_CODE_NORMED : UCM_TWIN_CODE_SUM;
}

static struct ucm_twin_code_score_args
score_args(const struct ucm_code_spec *spec,
	   const struct ucm_code_method *method,
	   const struct ucm_cuda_code_score *score)
{
	struct ucm_twin_code_score_args args;
	struct ucm_code_query query;

	ucm_code_query_shape(spec, method, &query, NULL); /* it is right */
	args = (struct ucm_twin_code_score_args){
		.queries = (uintptr_t)score->queries,
		.base = (uintptr_t)score->slab->base,
		.stride_bytes = score->slab->stride_bytes,
		.num_slots = score->slab->num_slots,
		.tables = (uintptr_t)score->requests.tables,
		.tokens = (uintptr_t)score->requests.tokens,
		.scores = (uintptr_t)score->scores,
		.query_stride = score->query_stride,
		.table_stride = score->requests.table_stride,
		.row_words = query.row_words,
		.stride_request = score->stride_request,
		.stride_row = score->stride_row,
		.num_heads = spec->num_heads,
		.rows = query.rows,
		.sum = method->per == UCM_SCORE_BLOCK,
		.hamming = method->measure == UCM_CODE_HAMMING,
		.block_size = spec->block_size,
		.max_blocks = score->requests.max_blocks,
		.planes = query.num,
	};
	args.head_bytes = query.code.head_bytes;
	args.tokens_at = query.code.tokens_at;
	if (spec->norms && !args.hamming)
		args.norms_at = query.code.norms_at;
	args.words = query.code.words;
	args.bits = query.code.bits;
	args.digits = query.code.rows;
	args.team = team_of(query.code.rows);
	memcpy(args.weights, query.weights, sizeof(query.weights));
	return args;
}

int ucm_sparse_cuda_code_score(const struct ucm_sparse_cuda *cuda,
			       const struct ucm_code_spec *spec,
			       const struct ucm_code_method *method,
			       const struct ucm_cuda_code_score *score,
			       void *stream, struct ucm_error *error)
{
	struct ucm_twin_grid grid = { .threads = UCM_TWIN_THREADS };
	struct ucm_twin_code_score_args args;
	enum ucm_twin_code_mode mode;
	uint64_t items;
	int err = ucm_sparse_given(error, "cuda", cuda, "score", score, NULL)
		?: ucm_sparse_given(error, "slab", score->slab, NULL)
		?: method_check(spec, method, score->slab, error);

	if (err || !score->requests.num)
		return err;
	mode = mode_of(spec, method);
	args = score_args(spec, method, score);
	items = args.sum ? 1 : (uint64_t)args.num_heads * args.rows;
	err = score_check(spec, method, score, items,
			  mode == UCM_TWIN_CODE_EACH ? spec->block_size : 1,
			  error);
	if (err)
		return err;
	grid.kernel = UCM_TWIN_SCORE_CODES + mode;
	grid.x = ucm_twin_ctas(items * args.max_blocks * args.team);
	grid.y = score->requests.num;
	return ucm_twin_launch(cuda, &grid, &args, "scores", stream, error);
}
