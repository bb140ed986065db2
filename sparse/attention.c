/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention.c - attention over a paged cache, as it is defined.
 *
 * Everything is in double, and each head goes over the tokens twice, first for the
 * largest product and then for the sums, so that nothing has to be scaled on the
 * way. What comes out is what faster ways are compared with.
 */
#include <config.h>

#include "sparse/attention.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>

#include "common/error.h"

#define QUERY_HEADS_MAX 65536u

/* ---- checks ---- */

void ucm_attention_query(const struct ucm_sparse_kernels *kernels,
			 const struct ucm_attention *attention, uint32_t head,
			 float *out)
{
	const struct ucm_query *query = &attention->query;
	int64_t item = ucm_sparse_input_bytes(query->dtype);

	kernels->widen[query->dtype](
		out, (const uint8_t *)query->base +
			     item * head * query->stride_head,
		attention->head_dim);
}

static int query_check(const struct ucm_attention *attention,
		       struct ucm_error *error)
{
	const struct ucm_query *query = &attention->query;
	const struct ucm_rows rows = {
		"query", { query->base, query->dtype, 1, 0, 0,
			   query->stride_head },
		1, query->num_heads, attention->head_dim,
	};
	int err;

	if (!query->num_heads || query->num_heads % attention->num_heads ||
	    query->num_heads > QUERY_HEADS_MAX)
		return ucm_error_set(error, -EINVAL, "query: num_heads %" PRIu32
				     ": a multiple of %" PRIu32 ", up to %u",
				     query->num_heads, attention->num_heads,
				     QUERY_HEADS_MAX);
	err = ucm_rows_check(&rows, "query", NULL, 1, error);
	return err ? err
		   : ucm_rows_finite(ucm_sparse_kernels_best(), &rows, NULL, 1,
				     error);
}

static int counts_check(const struct ucm_attention *attention,
			struct ucm_error *error)
{
	int err = ucm_rows_count_check("num_tokens", attention->num_tokens,
				       INT32_MAX, error);

	if (!err)
		err = ucm_rows_count_check("num_heads", attention->num_heads,
					   UCM_REPR_HEADS_MAX, error);
	if (!err)
		err = ucm_rows_count_check("head_dim", attention->head_dim,
					   UCM_REPR_HEAD_DIM_MAX, error);
	if (!err && attention->value_dim)
		err = ucm_rows_count_check("value_dim", attention->value_dim,
					   UCM_REPR_HEAD_DIM_MAX, error);
	if (!err)
		err = ucm_rows_count_check("block_size", attention->block_size,
					   UCM_REPR_BLOCK_SIZE_MAX, error);
	if (!err && !(isfinite(attention->scale) && attention->scale >= 0))
		err = ucm_error_set(error, -EINVAL, "scale %g: above 0, or 0",
				    attention->scale);
	return err;
}

int ucm_attention_check(const struct ucm_attention *attention,
			struct ucm_attention_shape *out,
			struct ucm_error *error)
{
	uint32_t size, dim;
	int err;

	if (!attention)
		return ucm_error_set(error, -EINVAL, "attention is NULL");
	err = counts_check(attention, error);
	if (err)
		return err;
	size = attention->block_size;
	dim = attention->head_dim;
	*out = (struct ucm_attention_shape){
		.keys = { "keys", attention->keys, size, attention->num_heads,
			  dim },
		.values = { "values", attention->values, size,
			    attention->num_heads,
			    attention->value_dim ? attention->value_dim : dim },
		.group = attention->query.num_heads / attention->num_heads,
		.num_blocks = (attention->num_tokens - 1) / size + 1,
		.scale = attention->scale > 0 ? attention->scale
					      : 1 / sqrt(dim),
	};
	err = query_check(attention, error);
	if (!err)
		err = ucm_rows_check(&out->keys, "table", attention->table,
				     out->num_blocks, error);
	if (!err)
		err = ucm_rows_check(&out->values, "table", attention->table,
				     out->num_blocks, error);
	return err;
}

/* ---- the reference ---- */

/* One query head. */
struct reference {
	const struct ucm_sparse_kernels *kernels;
	const struct ucm_attention *attention;
	const struct ucm_attention_shape *shape;
	uint32_t head; /* of keys */
	float query[UCM_REPR_HEAD_DIM_MAX];
};

/* Token i of the table's as floats. */
static void reference_row(const struct reference *ref,
			  const struct ucm_rows *rows, uint32_t i, float *out)
{
	uint64_t block = ucm_sparse_id(ref->attention->table, 0,
				       i / rows->block_size);

	ucm_row_widen(ref->kernels, rows, block, i % rows->block_size,
		      ref->head, out, NULL); /* seen to be finite */
}

static double reference_product(const struct reference *ref, uint32_t i)
{
	float key[UCM_REPR_HEAD_DIM_MAX];
	double sum = 0;

	reference_row(ref, &ref->shape->keys, i, key);
	for (uint32_t j = 0; j < ref->attention->head_dim; j++)
		sum += (double)ref->query[j] * (double)key[j];
	return sum * ref->shape->scale;
}

/* Returns the logarithm of the sum of exponentials. */
static double reference_head(const struct reference *ref, double *out)
{
	uint32_t dim = ref->shape->values.dim;
	double most = -INFINITY, sum = 0;
	float value[UCM_REPR_HEAD_DIM_MAX];

	for (uint32_t i = 0; i < ref->attention->num_tokens; i++)
		most = fmax(most, reference_product(ref, i));
	for (uint32_t j = 0; j < dim; j++)
		out[j] = 0;
	for (uint32_t i = 0; i < ref->attention->num_tokens; i++) {
		double weight = exp(reference_product(ref, i) - most);

		reference_row(ref, &ref->shape->values, i, value);
		for (uint32_t j = 0; j < dim; j++)
			out[j] += weight * (double)value[j];
		sum += weight;
	}
	for (uint32_t j = 0; j < dim; j++)
		out[j] /= sum;
	return most + log(sum);
}

int ucm_attention_reference(const struct ucm_attention *attention, double *out,
			    double *lse, struct ucm_error *error)
{
	struct ucm_attention_shape shape;
	struct reference ref = { ucm_sparse_kernels_best(), attention, &shape,
				 0, { 0 } };
	int err = ucm_attention_check(attention, &shape, error);

	if (!err && !out)
		err = ucm_error_set(error, -EINVAL, "out is NULL");
	if (!err)
		err = ucm_rows_finite(ref.kernels, &shape.keys,
				      attention->table, attention->num_tokens,
				      error);
	if (!err)
		err = ucm_rows_finite(ref.kernels, &shape.values,
				      attention->table, attention->num_tokens,
				      error);
	if (err)
		return err;
	for (uint32_t head = 0; head < attention->query.num_heads; head++) {
		double sum;

		ref.head = head / shape.group;
		ucm_attention_query(ref.kernels, attention, head, ref.query);
		sum = reference_head(&ref, out + (size_t)head *
						 shape.values.dim);
		if (lse)
			lse[head] = sum;
	}
	return 0;
}
