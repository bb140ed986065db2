/* SPDX-License-Identifier: Apache-2.0 */
/* attention.c - one token's attention over block tables, by the kernels. */
#include <config.h>

#include "gpu/sparse/twins.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/error.h"
#include "gpu/sparse/twin_args.h"
#include "sparse/rerope.h"
#include "sparse/spec.h"

/* What the queries and sums of a CTA may take; the rest is the kernel's own. */
#define SHARED_MAX (44u << 10)

static uint32_t value_dim(const struct ucm_cuda_attention *attention)
{
	return attention->value_dim ? attention->value_dim
				    : attention->head_dim;
}

static uint32_t part_blocks(uint32_t block_size)
{
	return block_size < UCM_TWIN_ATTEND_TOKENS
		       ? UCM_TWIN_ATTEND_TOKENS / block_size : 1;
}

static uint32_t parts_of(const struct ucm_cuda_attention *attention)
{
	return (attention->requests.max_blocks - 1) /
		       part_blocks(attention->block_size) + 1;
}

/* ---- checks ---- */

static int counts_check(const struct ucm_cuda_attention *attention,
			struct ucm_error *error)
{
	uint32_t heads = attention->queries.num_heads;
	int err = ucm_sparse_in_range("num_heads", attention->num_heads,
				      UCM_REPR_HEADS_MAX, error)
		?: ucm_sparse_in_range("head_dim", attention->head_dim,
				       UCM_REPR_HEAD_DIM_MAX, error)
		?: ucm_sparse_in_range("value_dim", value_dim(attention),
				       UCM_REPR_HEAD_DIM_MAX, error)
		?: ucm_sparse_in_range("block_size", attention->block_size,
				       UCM_REPR_BLOCK_SIZE_MAX, error);

	if (err)
		return err;
	if (!(isfinite(attention->scale) && attention->scale >= 0))
		return ucm_error_set(error, -EINVAL, "scale %g: above 0, or 0",
				     attention->scale);
	return ucm_sparse_heads_check("queries: num_heads", heads,
				      attention->num_heads, error);
}

static int caches_check(const struct ucm_cuda_attention *attention,
			struct ucm_error *error)
{
	int err = ucm_twin_rows_check("keys", &attention->keys,
				      attention->block_size,
				      attention->num_heads,
				      attention->head_dim, error);

	return err ?: ucm_twin_rows_check("values", &attention->values,
					  attention->block_size,
					  attention->num_heads,
					  value_dim(attention), error);
}

static int outputs_check(const struct ucm_cuda_attention *attention,
			 struct ucm_error *error)
{
	uint32_t heads = attention->queries.num_heads;
	size_t floats = (size_t)heads * value_dim(attention);
	int err = ucm_twin_pointer_check("work", attention->work, 4, error)
		?: ucm_twin_pointer_check("out", attention->out, 4, error)
		?: ucm_twin_optional_check("lse", attention->lse, error);

	if (err || attention->requests.num == 1)
		return err;
	if (attention->out_stride < floats)
		return ucm_error_set(error, -EINVAL, "out_stride %zu: at least "
				     "%zu", attention->out_stride, floats);
	if (attention->lse && attention->lse_stride < heads)
		return ucm_error_set(error, -EINVAL, "lse_stride %zu: at least "
				     "%" PRIu32, attention->lse_stride, heads);
	return 0;
}

static int attention_check(const struct ucm_cuda_attention *attention,
			   struct ucm_error *error)
{
	const struct ucm_cuda_requests *requests = &attention->requests;
	int err = counts_check(attention, error);

	if (err || !requests->num)
		return err;
	err = ucm_twin_requests_check(requests, error);
	if (!err && (uint64_t)requests->max_blocks * attention->block_size >
			    INT32_MAX)
		err = ucm_error_set(error, -EINVAL, "max_blocks %" PRIu32
				    ": too many tokens", requests->max_blocks);
	if (!err)
		err = ucm_twin_queries_check("queries", &attention->queries,
					     requests->num,
					     attention->queries.num_heads,
					     attention->head_dim, error);
	if (!err)
		err = caches_check(attention, error);
	return err ? err : outputs_check(attention, error);
}

static int rerope_check(const struct ucm_rerope *rerope, const float *angles,
			const struct ucm_cuda_attention *attention,
			struct ucm_rope_shape *shape, struct ucm_error *error)
{
	int err = ucm_rerope_check_for(rerope, attention->head_dim, shape,
				       error)
		?: ucm_twin_pointer_check("angles", angles, 4, error)
		?: ucm_twin_optional_check("positions", attention->positions,
					   error)
		?: ucm_twin_optional_check("selected", attention->selected,
					   error);

	if (err)
		return err;
	if (shape->rotary > 2 * UCM_TWIN_PAIRS_MAX)
		return ucm_error_set(error, -EINVAL, "rotary_dim %" PRIu32
				     ": up to %d on a device", shape->rotary,
				     2 * UCM_TWIN_PAIRS_MAX);
	if (attention->selected &&
	    attention->selected_stride < attention->requests.max_blocks)
		return ucm_error_set(error, -EINVAL, "selected_stride %zu: at "
				     "least %" PRIu32,
				     attention->selected_stride,
				     attention->requests.max_blocks);
	return 0;
}

/* ---- the kernels' argument ---- */

static struct ucm_twin_attend_args
attend_args(const struct ucm_cuda_attention *attention)
{
	const struct ucm_cuda_requests *requests = &attention->requests;

	return (struct ucm_twin_attend_args){
		.query = ucm_twin_heads(&attention->queries),
		.keys = ucm_twin_rows(&attention->keys, attention->head_dim),
		.values = ucm_twin_rows(&attention->values, value_dim(attention)),
		.tables = (uintptr_t)requests->tables,
		.tokens = (uintptr_t)requests->tokens,
		.table_stride = requests->table_stride,
		.work = (uintptr_t)attention->work,
		.out = (uintptr_t)attention->out,
		.lse = (uintptr_t)attention->lse,
		.out_stride = attention->out_stride,
		.lse_stride = attention->lse_stride,
		.block_size = attention->block_size,
		.max_blocks = requests->max_blocks,
		.num_heads = attention->num_heads,
		.group = attention->queries.num_heads / attention->num_heads,
		.parts = parts_of(attention),
		.part_blocks = part_blocks(attention->block_size),
		.scale = attention->scale > 0 ? attention->scale
					      : 1 / sqrt(attention->head_dim),
	};
}

static void rerope_add(const struct ucm_rerope *rerope, const float *angles,
		       const struct ucm_cuda_attention *attention,
		       const struct ucm_rope_shape *shape,
		       struct ucm_twin_attend_args *args)
{
	args->angles = (uintptr_t)angles;
	args->positions = (uintptr_t)attention->positions;
	args->selected = (uintptr_t)attention->selected;
	args->selected_stride = attention->selected_stride;
	args->window = rerope->window;
	args->training_length = rerope->training_length;
	args->rotary = shape->rotary;
	args->neighbours = rerope->rope.pairing == UCM_ROPE_GPTJ;
	memcpy(args->turns, shape->turns,
	       shape->rotary / 2 * sizeof(*args->turns));
}

/* Query heads of a CTA: as many as there are, and as there is memory for. */
static uint32_t heads_of(const struct ucm_twin_attend_args *args,
			 uint32_t *shared_out, uint32_t *log2_out)
{
	uint32_t row = args->keys.dim * (args->angles ? 2 : 1) +
		       args->values.dim;
	uint32_t heads = 1, log2 = 0;

	while (heads < args->group && heads < UCM_TWIN_ATTEND_HEADS &&
	       2 * heads * row * sizeof(float) <= SHARED_MAX) {
		heads *= 2;
		log2++;
	}
	*shared_out = heads * row * (uint32_t)sizeof(float);
	*log2_out = log2;
	return heads;
}

static int attend_launch(const struct ucm_sparse_cuda *cuda,
			 struct ucm_twin_attend_args *args, uint32_t requests,
			 void *stream, struct ucm_error *error)
{
	struct ucm_twin_grid grid = { .y = requests,
				      .threads = UCM_TWIN_ATTEND_THREADS };
	const struct ucm_twin_grid join = { UCM_TWIN_ATTEND_JOIN,
					    args->num_heads * args->group,
					    requests, UCM_TWIN_ATTEND_THREADS,
					    0 };
	uint32_t log2;
	int err;

	args->chunks = (args->group - 1) /
			       heads_of(args, &grid.shared, &log2) + 1;
	grid.kernel = UCM_TWIN_ATTEND + log2;
	grid.x = (uint64_t)args->num_heads * args->chunks * args->parts;
	err = ucm_twin_launch(cuda, &grid, args, "max_blocks", stream, error);
	return err ?: ucm_twin_launch(cuda, &join, args, "queries", stream,
				      error);
}

/* ---- calls ---- */

size_t ucm_sparse_cuda_attention_floats(const struct ucm_cuda_attention *attention)
{
	if (!attention || counts_check(attention, NULL) ||
	    !attention->requests.max_blocks)
		return 0;
	return (size_t)attention->requests.num * attention->queries.num_heads *
	       parts_of(attention) * (value_dim(attention) + 2);
}

int ucm_sparse_cuda_attention(const struct ucm_sparse_cuda *cuda,
			      const struct ucm_cuda_attention *attention,
			      void *stream, struct ucm_error *error)
{
	struct ucm_twin_attend_args args;
	int err;

	err = ucm_sparse_given(error, "cuda", cuda, "attention", attention, NULL);
	if (!err)
		err = attention_check(attention, error);
	if (err || !attention->requests.num)
		return err;
	args = attend_args(attention);
	return attend_launch(cuda, &args, attention->requests.num, stream,
			     error);
}

int ucm_sparse_cuda_rerope(const struct ucm_sparse_cuda *cuda,
			   const struct ucm_rerope *rerope,
			   const float *angles,
			   const struct ucm_cuda_attention *attention,
			   void *stream, struct ucm_error *error)
{
	struct ucm_twin_attend_args args;
	struct ucm_rope_shape shape;
	int err = ucm_sparse_given(error, "cuda", cuda, "attention", attention,
				   NULL)
		?: attention_check(attention, error)
		?: rerope_check(rerope, angles, attention, &shape, error);

	if (err || !attention->requests.num)
		return err;
	args = attend_args(attention);
	rerope_add(rerope, angles, attention, &shape, &args);
	return attend_launch(cuda, &args, attention->requests.num, stream,
			     error);
}
