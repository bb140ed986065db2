/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention.c - attention over a paged cache, as it is defined.
 *
 * Everything is in double, and each head goes over the tokens twice, first for the
 * largest product and then for the sums, so that nothing has to be scaled on the
 * way. What comes out is what faster ways are compared with (decode.c).
 */
#include <config.h>

#include "sparse/attention.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>

#include "common/error.h"
#include "sparse/rerope.h"
#include "sparse/spec.h"

/* ---- checks ---- */

static int query_check(const struct ucm_attention *attention,
		       struct ucm_error *error)
{
	const struct ucm_query *query = &attention->query;
	const struct ucm_rows rows = {
		"query", { query->base, query->dtype, 1, 0, 0,
			   query->stride_head },
		1, query->num_heads, attention->head_dim,
	};
	int err = ucm_sparse_heads_check("query: num_heads", query->num_heads,
					 attention->num_heads, error);

	if (!err)
		err = ucm_sparse_query_check(query, attention->head_dim, error);
	return err ? err : ucm_rows_finite(&rows, NULL, 1, error);
}

static int counts_check(const struct ucm_attention *attention,
			struct ucm_error *error)
{
	int err = ucm_sparse_in_range("num_tokens", attention->num_tokens,
				      INT32_MAX, error)
		?: ucm_sparse_in_range("num_heads", attention->num_heads,
				       UCM_REPR_HEADS_MAX, error)
		?: ucm_sparse_in_range("head_dim", attention->head_dim,
				       UCM_REPR_HEAD_DIM_MAX, error);

	if (!err && attention->value_dim)
		err = ucm_sparse_in_range("value_dim", attention->value_dim,
					  UCM_REPR_HEAD_DIM_MAX, error);
	if (!err)
		err = ucm_sparse_in_range("block_size", attention->block_size,
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
	int err = ucm_sparse_given(error, "attention", attention, NULL)
		?: counts_check(attention, error);

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
	err = query_check(attention, error)
		?: ucm_rows_check(&out->keys, "table", attention->table,
				  out->num_blocks, error)
		?: ucm_rows_check(&out->values, "table", attention->table,
				  out->num_blocks, error);
	return err;
}

/* ---- the reference ---- */

/* One query head. */
struct reference {
	const struct ucm_attention *attention;
	const struct ucm_attention_shape *shape;
	const struct ucm_rerope *rerope; /* NULL: without */
	const struct ucm_rerope_shape *rerope_shape;
	uint32_t head; /* of keys */
	float query[UCM_REPR_HEAD_DIM_MAX];
};

/* Token i of the table's as floats. */
static void reference_row(const struct reference *ref,
			  const struct ucm_rows *rows, uint32_t i, float *out)
{
	uint64_t block = ucm_repr_id(ref->attention->table, 0,
				     i / rows->block_size);

	ucm_row_widen(rows, block, i % rows->block_size, ref->head, out,
		      NULL); /* seen to be finite */
}

/* q.k, with the query rotated by so many positions. */
static double rotated_product(const struct reference *ref, const float *key,
			      int64_t delta)
{
	const struct ucm_rope_shape *rope = &ref->rerope_shape->rope;
	bool halves = ref->rerope->rope.pairing == UCM_ROPE_NEOX;
	uint32_t half = rope->rotary / 2;
	const float *query = ref->query;
	double sum = 0;

	for (uint32_t i = 0; i < half; i++) {
		uint32_t a = halves ? i : 2 * i, b = halves ? half + i : a + 1;
		double x = query[a], y = query[b], c, s;

		ucm_turn((double)delta * rope->turns[i], &c, &s);
		sum += (x * c - y * s) * (double)key[a] +
		       (y * c + x * s) * (double)key[b];
	}
	for (uint32_t i = rope->rotary; i < ref->attention->head_dim; i++)
		sum += (double)query[i] * (double)key[i];
	return sum;
}

static double plain_product(const struct reference *ref, const float *key)
{
	double sum = 0;

	for (uint32_t j = 0; j < ref->attention->head_dim; j++)
		sum += (double)ref->query[j] * (double)key[j];
	return sum;
}

/* Of the query and token i, as ReRoPE sees it: (R_w q').k' is q rotated from its
 * position to w after the key's, times k. */
static double rerope_product(const struct reference *ref, uint32_t i,
			     const float *key)
{
	uint32_t size = ref->attention->block_size;
	uint64_t token = ucm_rerope_first(ref->attention, i / size) + i % size;
	uint32_t position = ref->attention->position;

	if (position - token < ref->rerope->window)
		return plain_product(ref, key);
	return rotated_product(ref, key,
			       ucm_rerope_delta(position, ref->rerope->window,
						token));
}

static double reference_product(const struct reference *ref, uint32_t i)
{
	float key[UCM_REPR_HEAD_DIM_MAX];

	reference_row(ref, &ref->shape->keys, i, key);
	if (!ref->rerope)
		return plain_product(ref, key) * ref->shape->scale;
	return rerope_product(ref, i, key) * ref->shape->scale *
	       ref->rerope_shape->gain;
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

/* ref is set up; shape has been checked. */
static int reference_run(struct reference *ref, double *out, double *lse,
			 struct ucm_error *error)
{
	const struct ucm_attention *attention = ref->attention;
	const struct ucm_attention_shape *shape = ref->shape;
	int err = 0;

	err = ucm_sparse_given(error, "out", out, NULL)
		?: ucm_rows_finite(&shape->keys, attention->table,
				   attention->num_tokens, error)
		?: ucm_rows_finite(&shape->values, attention->table,
				   attention->num_tokens, error);
	if (err)
		return err;
	for (uint32_t head = 0; head < attention->query.num_heads; head++) {
		double sum;

		ref->head = head / shape->group;
		ucm_sparse_query_widen(&attention->query, head,
				       attention->head_dim, ref->query);
		sum = reference_head(ref, out + (size_t)head *
						shape->values.dim);
		if (lse)
			lse[head] = sum;
	}
	return 0;
}

int ucm_attention_reference(const struct ucm_attention *attention, double *out,
			    double *lse, struct ucm_error *error)
{
	struct ucm_attention_shape shape;
	struct reference ref = {
		.attention = attention,
		.shape = &shape,
	};
	int err = ucm_attention_check(attention, &shape, error);

	return err ? err : reference_run(&ref, out, lse, error);
}

int ucm_rerope_reference(const struct ucm_rerope *rerope,
			 const struct ucm_attention *attention, double *out,
			 double *lse, struct ucm_error *error)
{
	struct ucm_rerope_shape rerope_shape;
	struct ucm_attention_shape shape;
	struct reference ref = {
		.attention = attention,
		.shape = &shape,
		.rerope = rerope,
		.rerope_shape = &rerope_shape,
	};
	int err = ucm_attention_check(attention, &shape, error)
		?: ucm_rerope_check(rerope, attention, &rerope_shape, error);

	return err ? err : reference_run(&ref, out, lse, error);
}
