/* SPDX-License-Identifier: Apache-2.0 */
/*
 * score.c - scores of blocks: a query's products with representations.
 *
 * Every score is a plain product of a row of the query and a row of the
 * representation, so that one loop serves all (kernels.h):
 *
 * - A mean over the query heads of a group is a product with the mean of these
 *   heads, which is made once for all blocks.
 * - Quest's max(q max, q min) is q max where q is positive, else q min. So a row
 *   of the prepared query has the positive parts of q, and then the negative
 *   ones, as a representation has the largest and then the smallest keys. This,
 *   too, is linear: the mean of the heads' bounds is one product.
 *
 * Distances are not linear, and have a loop and a row for each query head.
 */
#include <config.h>

#include <ucm/sparse.h>

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "common/error.h"
#include "sparse/kernels.h"
#include "sparse/number.h"
#include "sparse/spec.h"

/* Of a prepared query. */
struct query_shape {
	struct ucm_repr_shape repr;
	uint32_t group; /* query heads of a key head */
	uint32_t rows;  /* for each key head */
	uint32_t per;   /* without ... */
	bool distance;
	bool in_steps; /* int16_t, and after all rows their steps, as floats */
	bool split;    /* even and odd elements apart: kernels.h */
};

static int query_shape(const struct ucm_repr_spec *spec, uint32_t num_heads,
		       uint32_t per, struct query_shape *out,
		       struct ucm_error *error)
{
	int err = ucm_repr_shape(spec, &out->repr, error);

	if (err)
		return err;
	out->distance = per & UCM_SCORE_DISTANCE;
	out->per = per & ~(uint32_t)UCM_SCORE_DISTANCE;
	if (out->per >= UCM_SCORE_PERS)
		return ucm_error_set(error, -EINVAL, "per %" PRIu32
				     ": unknown", per);
	if (out->distance && spec->kind == UCM_REPR_MINMAX)
		return ucm_error_set(error, -EINVAL, "per %" PRIu32
				     ": no distance with kind %" PRIu32, per,
				     spec->kind);
	err = ucm_sparse_heads_check("num_heads", num_heads, spec->num_heads,
				     error);
	if (err)
		return err;
	/* A bound would not be one with the query rounded. */
	out->in_steps = spec->dtype == UCM_DTYPE_INT8 && !out->distance &&
			spec->kind != UCM_REPR_MINMAX;
	out->split = spec->dtype == UCM_DTYPE_BFLOAT16 && !out->distance;
	out->group = num_heads / spec->num_heads;
	out->rows = out->distance || per == UCM_SCORE_HEAD ? out->group : 1;
	return 0;
}

static size_t query_rows(const struct ucm_repr_spec *spec,
			 const struct query_shape *shape)
{
	return (size_t)spec->num_heads * shape->rows;
}

/* Of a row; the width is a multiple of 32. */
static size_t row_floats(const struct query_shape *shape)
{
	return shape->in_steps ? shape->repr.width / 2 : shape->repr.width;
}

size_t ucm_query_floats(const struct ucm_repr_spec *spec, uint32_t num_heads,
			uint32_t per)
{
	struct query_shape shape;

	if (query_shape(spec, num_heads, per, &shape, NULL))
		return 0;
	return query_rows(spec, &shape) * row_floats(&shape) +
	       (shape.in_steps ? query_rows(spec, &shape) : 0);
}

/* ---- the query ---- */

/* Add a head to a row. */
static void row_add(const struct ucm_repr_spec *spec,
		    const struct query_shape *shape, float *row,
		    const float *head)
{
	for (uint32_t i = 0; i < spec->head_dim; i++) {
		if (spec->kind == UCM_REPR_MINMAX && head[i] < 0)
			row[shape->repr.padded + i] += head[i];
		else
			row[i] += head[i];
	}
}

/* A row of the prepared query: the mean of num heads. */
static void row_make(const struct ucm_repr_spec *spec,
		     const struct query_shape *shape,
		     const struct ucm_query *query, uint32_t first,
		     uint32_t num, float *row)
{
	float head[UCM_REPR_HEAD_DIM_MAX];

	memset(row, 0, shape->repr.width * sizeof(*row));
	for (uint32_t i = 0; i < num; i++) {
		ucm_sparse_query_head(spec, query, first + i, head, NULL);
		row_add(spec, shape, row, head);
	}
	for (uint32_t i = 0; num > 1 && i < shape->repr.width; i++)
		row[i] /= (float)num;
}

/* As kernels take it. */
static void row_store(const struct query_shape *shape, const float *row,
		      float *out, float *step)
{
	uint32_t width = shape->repr.width;
	int16_t *steps = (int16_t *)out;

	if (shape->in_steps) {
		*step = ucm_scale_of(row, width, INT16_MAX);
		for (uint32_t i = 0; i < width; i++)
			steps[i] = (int16_t)ucm_steps_of(row[i], *step,
							 UCM_ROUND_NEAREST);
		return;
	}
	for (uint32_t i = 0; i < width; i++) {
		uint32_t at = i % UCM_REPR_ROW;

		if (shape->split)
			at = at / 2 + at % 2 * (UCM_REPR_ROW / 2);
		out[i - i % UCM_REPR_ROW + at] = row[i];
	}
}

int ucm_query_prepare(const struct ucm_repr_spec *spec,
		      const struct ucm_query *query, uint32_t per, float *out,
		      struct ucm_error *error)
{
	struct query_shape shape;
	float row[UCM_REPR_WIDTH_MAX], *steps;
	uint32_t merged;
	int err = ucm_repr_shape(spec, NULL, error)
		?: ucm_sparse_query_check(query, spec->head_dim, error)
		?: query_shape(spec, query->num_heads, per, &shape, error);

	if (!err && !out)
		err = ucm_error_set(error, -EINVAL, "out is NULL");
	for (uint32_t i = 0; !err && i < query->num_heads; i++)
		err = ucm_sparse_query_head(spec, query, i, row, error);
	if (err)
		return err;
	merged = shape.group / shape.rows;
	steps = out + query_rows(spec, &shape) * row_floats(&shape);
	for (uint32_t i = 0; i < query->num_heads; i += merged) {
		row_make(spec, &shape, query, i, merged, row);
		row_store(&shape, row, out, steps++);
		out += row_floats(&shape);
	}
	return 0;
}

/* ---- the scores ---- */

static int request_check(const struct ucm_repr_spec *spec,
			 const struct ucm_score_request *request,
			 struct ucm_error *error)
{
	struct query_shape shape;
	int err = query_shape(spec, request->num_heads, request->per, &shape,
			      error)
		?: ucm_repr_slab_check(request->slab, shape.repr.bytes,
				       sizeof(float), error)
		?: ucm_sparse_places_check(request->slab, request->slots,
					   request->first_slot, request->num,
					   request->query, request->scores,
					   error);
	uint64_t rows;

	if (err)
		return err;
	rows = shape.per == UCM_SCORE_BLOCK   ? 1
	       : shape.per == UCM_SCORE_GROUP ? spec->num_heads
					      : request->num_heads;
	return ucm_score_rows_check(rows, request->num, request->stride, error);
}

static void request_run(const struct ucm_repr_spec *spec,
			const struct ucm_score_request *request)
{
	const struct ucm_sparse_kernels *kernels = ucm_sparse_kernels();
	struct query_shape shape;
	struct ucm_score_run run;

	query_shape(spec, request->num_heads, request->per, &shape, NULL);
	run = (struct ucm_score_run){
		.query = request->query,
		.steps = request->query +
			 query_rows(spec, &shape) * row_floats(&shape),
		.base = request->slab->base,
		.stride_bytes = request->slab->stride_bytes,
		.scales_at = shape.repr.scales_at,
		.num_heads = spec->num_heads,
		.rows = shape.rows,
		.width = shape.repr.width,
		.per = shape.per,
		.slots = request->slots,
		.first = request->first_slot,
		.num = request->num,
		.scores = request->scores,
		.stride = request->stride,
	};
	if (shape.in_steps && shape.per == UCM_SCORE_BLOCK)
		kernels->sum_int(&run);
	else if (shape.in_steps)
		kernels->rows_int(&run);
	else if (shape.distance)
		kernels->score_distance[spec->dtype](&run);
	else if (shape.per == UCM_SCORE_BLOCK)
		kernels->score_sum[spec->dtype](&run);
	else
		kernels->score_rows[spec->dtype](&run);
}

int ucm_score(const struct ucm_repr_spec *spec,
	      const struct ucm_score_request *requests, size_t num_requests,
	      struct ucm_error *error)
{
	struct ucm_error why;

	if (num_requests && !requests)
		return ucm_error_set(error, -EINVAL, "requests is NULL");
	for (size_t i = 0; i < num_requests; i++) {
		int err = request_check(spec, &requests[i], &why);

		if (err)
			return ucm_sparse_refuse(i, num_requests, err, &why,
						 error);
	}
	for (size_t i = 0; i < num_requests; i++)
		request_run(spec, &requests[i]);
	return 0;
}

/* ---- one of many ---- */

/* Plain loops: each score by itself, so that no order is left to a compiler. */
static void reduce_row(const float *row, size_t num, bool largest, float *out)
{
	for (size_t i = 0; i < num; i++) {
		if (!largest)
			out[i] += row[i];
		else if (row[i] > out[i] || row[i] != row[i])
			out[i] = row[i];
	}
}

int ucm_score_reduce(const float *scores, size_t num_rows, size_t num,
		     size_t stride, uint32_t reduction, float *out,
		     struct ucm_error *error)
{
	int err;

	if (!scores || !out)
		return ucm_error_set(error, -EINVAL, "%s is NULL",
				     scores ? "out" : "scores");
	if (reduction >= UCM_REDUCTIONS)
		return ucm_error_set(error, -EINVAL, "reduction %" PRIu32
				     ": unknown", reduction);
	if (!num_rows)
		return ucm_error_set(error, -EINVAL, "num_rows is 0");
	err = ucm_score_rows_check(num_rows, num, stride, error);
	if (err)
		return err;
	memmove(out, scores, num * sizeof(*out));
	for (size_t i = 1; i < num_rows; i++)
		reduce_row(scores + i * stride, num,
			   reduction == UCM_REDUCE_MAX, out);
	for (size_t i = 0; reduction == UCM_REDUCE_MEAN && i < num; i++)
		out[i] /= (float)num_rows;
	return 0;
}
