/* SPDX-License-Identifier: Apache-2.0 */
/* rows.c - keys and values in a paged cache, row by row. */
#include <config.h>

#include "sparse/rows.h"

#include <errno.h>
#include <inttypes.h>

#include "common/error.h"

static int input_check(const struct ucm_rows *rows, struct ucm_error *error)
{
	if (!rows->keys.base)
		return ucm_error_set(error, -EINVAL, "%s is NULL", rows->name);
	if (!ucm_repr_input_bytes(rows->keys.dtype))
		return ucm_error_set(error, -EINVAL, "%s: dtype %" PRIu32
				     ": float32, float16 or bfloat16",
				     rows->name, rows->keys.dtype);
	return 0;
}

int ucm_rows_fit(const struct ucm_rows *rows, struct ucm_error *error)
{
	const struct ucm_keys *keys = &rows->keys;
	uint64_t counts[] = { keys->num_blocks, rows->block_size,
			      rows->num_heads };
	int64_t strides[] = { keys->stride_block, keys->stride_token,
			      keys->stride_head };
	int err = input_check(rows, error);

	if (err || ucm_sparse_strides_fit(counts, strides, rows->dim,
					  ucm_repr_input_bytes(keys->dtype)))
		return err;
	return ucm_error_set(error, -EINVAL, "%s: stride_block, stride_token, "
			     "stride_head: more than there is memory",
			     rows->name);
}

int ucm_rows_check(const struct ucm_rows *rows, const char *ids_name,
		   const int32_t *ids, size_t num, struct ucm_error *error)
{
	return input_check(rows, error)
		?: ucm_repr_ids_check(ids_name, ids, 0, num,
				      rows->keys.num_blocks, error)
		?: ucm_rows_fit(rows, error);
}

static int not_finite(const struct ucm_rows *rows, uint64_t block,
		      uint32_t token, uint32_t head, struct ucm_error *error)
{
	return ucm_error_set(error, -EINVAL, "%s: block %" PRIu64 ", token %"
			     PRIu32 ", head %" PRIu32 ": not finite",
			     rows->name, block, token, head);
}

int ucm_row_widen(const struct ucm_rows *rows, uint64_t block, uint32_t token,
		  uint32_t head, float *out, struct ucm_error *error)
{
	const uint8_t *at = ucm_row_at(rows, block, token, head);

	if (ucm_sparse_kernels()->widen[rows->keys.dtype](out, at, rows->dim))
		return 0;
	return not_finite(rows, block, token, head, error);
}

/* Tokens of a block, in the order in which they lie. */
struct block_rows {
	bool by_token; /* outer: tokens, inner: heads; or else as it is said */
	uint32_t outer, inner;
	int64_t outer_stride, inner_stride; /* elements */
};

static struct block_rows rows_of_block(const struct ucm_rows *rows,
				       uint32_t tokens)
{
	const struct ucm_keys *keys = &rows->keys;
	struct block_rows all = { true, tokens, rows->num_heads,
				  keys->stride_token, keys->stride_head };

	if (!ucm_rows_by_token(keys))
		all = (struct block_rows){ false, rows->num_heads, tokens,
					   keys->stride_head,
					   keys->stride_token };
	return all;
}

/* One of these rows is not finite: which? */
static int block_not_finite(const struct ucm_rows *rows, uint64_t block,
			    const struct block_rows *all,
			    struct ucm_error *error)
{
	size_t bytes = (size_t)rows->dim *
		       ucm_repr_input_bytes(rows->keys.dtype);
	uint32_t token = 0, head = 0;

	for (uint32_t i = 0; i < all->outer; i++) {
		for (uint32_t j = 0; j < all->inner; j++) {
			token = all->by_token ? i : j;
			head = all->by_token ? j : i;
			if (!ucm_sparse_kernels()->finite(
				    ucm_row_at(rows, block, token, head),
				    bytes, rows->keys.dtype))
				return not_finite(rows, block, token, head,
						  error);
		}
	}
	return not_finite(rows, block, token, head, error);
}

/* Rows that lie one after the other are looked at as one: a call costs as much as
 * a row. */
static int block_finite(const struct ucm_rows *rows, uint64_t block,
			uint32_t tokens, struct ucm_error *error)
{
	const struct ucm_sparse_kernels *kernels = ucm_sparse_kernels();
	struct block_rows all = rows_of_block(rows, tokens);
	int64_t item = ucm_repr_input_bytes(rows->keys.dtype);
	const uint8_t *first = ucm_row_at(rows, block, 0, 0);
	uint32_t outer = all.outer, inner = all.inner;
	uint32_t dtype = rows->keys.dtype;
	size_t bytes = (size_t)item * rows->dim;

	if (all.inner_stride == rows->dim) {
		bytes *= inner;
		inner = 1;
	}
	if (inner == 1 && all.outer_stride == rows->dim * (int64_t)all.inner) {
		bytes *= outer;
		outer = 1;
	}
	for (uint32_t i = 0; i < outer; i++) {
		for (uint32_t j = 0; j < inner; j++) {
			if (!kernels->finite(first + item *
						     (i * all.outer_stride +
						      j * all.inner_stride),
					     bytes, dtype))
				return block_not_finite(rows, block, &all,
							error);
		}
	}
	return 0;
}

int ucm_rows_finite(const struct ucm_rows *rows, const int32_t *ids,
		    uint64_t tokens, struct ucm_error *error)
{
	int err = 0;

	for (size_t i = 0; !err && tokens; i++) {
		uint32_t num = tokens < rows->block_size ? (uint32_t)tokens
							 : rows->block_size;

		err = block_finite(rows, ucm_repr_id(ids, 0, i), num, error);
		tokens -= num;
	}
	return err;
}
