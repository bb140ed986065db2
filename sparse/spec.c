/* SPDX-License-Identifier: Apache-2.0 */
/* spec.c - what the caller says of keys, queries and representations. */
#include <config.h>

#include "sparse/spec.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>

#include "common/align.h"
#include "common/error.h"
#include "sparse/rows.h"

int ucm_sparse_in_range(const char *name, uint32_t value, uint32_t most,
			struct ucm_error *error)
{
	return ucm_repr_check_range(name, value, 1, most, error);
}

int ucm_sparse_given(struct ucm_error *error, ...)
{
	const char *name;
	bool given = true;
	va_list list;

	va_start(list, error);
	while (given && (name = va_arg(list, const char *)))
		given = va_arg(list, const void *);
	va_end(list);
	return given ? 0 : ucm_error_set(error, -EINVAL, "%s is NULL", name);
}

size_t ucm_repr_bytes(const struct ucm_repr_spec *spec)
{
	struct ucm_repr_shape shape;

	return ucm_repr_shape(spec, &shape, NULL) ? 0 : shape.bytes;
}

bool ucm_sparse_strides_fit(const uint64_t counts[3], const int64_t strides[3],
			    uint32_t dim, uint32_t item_bytes)
{
	uint64_t span = dim; /* at least as far as any element is from base */

	for (int i = 0; i < 3; i++) {
		uint64_t step = strides[i] < 0 ? 0 - (uint64_t)strides[i]
					       : (uint64_t)strides[i];
		uint64_t way;

		if (__builtin_mul_overflow(step, counts[i] ? counts[i] - 1 : 0,
					   &way) ||
		    __builtin_add_overflow(span, way, &span))
			return false;
	}
	return !__builtin_mul_overflow(span, item_bytes, &span) &&
	       span <= INT64_MAX;
}

int ucm_sparse_keys_check(const struct ucm_keys *keys, uint32_t tokens,
			  uint32_t num_heads, uint32_t head_dim,
			  struct ucm_error *error)
{
	struct ucm_rows rows = { "keys", .block_size = tokens,
				 .num_heads = num_heads, .dim = head_dim };

	if (keys)
		rows.keys = *keys;
	return ucm_rows_fit(&rows, error);
}

int ucm_sparse_key(const struct ucm_repr_spec *spec,
		   const struct ucm_keys *keys, uint64_t block, uint32_t token,
		   uint32_t head, float *out, struct ucm_error *error)
{
	const uint8_t *at = ucm_key_at(keys, block, token, head);

	if (ucm_sparse_kernels()->widen[keys->dtype](out, at, spec->head_dim))
		return 0;
	return ucm_error_set(error, -EINVAL, "keys: block %" PRIu64
			     ", token %" PRIu32 ", head %" PRIu32
			     ": not finite", block, token, head);
}

int ucm_sparse_grow_check(const struct ucm_keys *keys, uint32_t num_tokens,
			  uint32_t tokens, uint32_t block_size,
			  struct ucm_error *error)
{
	if (tokens > block_size || num_tokens > block_size - tokens)
		return ucm_error_set(error, -EINVAL, "num_tokens %" PRIu32
				     ": the block has %" PRIu32 " of %" PRIu32,
				     num_tokens, tokens, block_size);
	if (num_tokens && !keys->num_blocks)
		return ucm_error_set(error, -EINVAL, "num_blocks is 0");
	return 0;
}

int ucm_sparse_query_check(const struct ucm_query *query, uint32_t head_dim,
			   struct ucm_error *error)
{
	uint32_t item;

	if (!query || !query->base)
		return ucm_error_set(error, -EINVAL, "query is NULL");
	item = ucm_repr_input_bytes(query->dtype);
	if (!item)
		return ucm_error_set(error, -EINVAL, "query: dtype %" PRIu32
				     ": float32, float16 or bfloat16",
				     query->dtype);
	if (query->num_heads &&
	    !ucm_sparse_strides_fit((uint64_t[]){ query->num_heads, 1, 1 },
				    (int64_t[]){ query->stride_head, 0, 0 },
				    head_dim, item))
		return ucm_error_set(error, -EINVAL, "stride_head %" PRId64
				     ": more than there is memory",
				     query->stride_head);
	return 0;
}

bool ucm_sparse_query_widen(const struct ucm_query *query, uint32_t head,
			    uint32_t dim, float *out)
{
	int64_t item = ucm_repr_input_bytes(query->dtype);

	return ucm_sparse_kernels()->widen[query->dtype](
		out, (const uint8_t *)query->base +
			     item * head * query->stride_head, dim);
}

int ucm_sparse_query_head(const struct ucm_repr_spec *spec,
			  const struct ucm_query *query, uint32_t head,
			  float *out, struct ucm_error *error)
{
	if (ucm_sparse_query_widen(query, head, spec->head_dim, out))
		return 0;
	return ucm_error_set(error, -EINVAL, "query: head %" PRIu32
			     " is not finite", head);
}

int ucm_score_rows_check(uint64_t rows, size_t num, size_t stride,
			 struct ucm_error *error)
{
	uint64_t all;

	if ((rows <= 1 || stride >= num) &&
	    !__builtin_mul_overflow(rows, sizeof(float), &all) &&
	    !__builtin_mul_overflow(all, stride, &all))
		return 0;
	return ucm_error_set(error, -EINVAL, "stride %zu: at least %zu", stride,
			     num);
}

int ucm_sparse_aligned(const char *name, const void *memory, size_t alignment,
		       struct ucm_error *error)
{
	if (!memory)
		return ucm_error_set(error, -EINVAL, "%s is NULL", name);
	if ((uintptr_t)memory % alignment)
		return ucm_error_set(error, -EINVAL, "%s is not aligned to %zu "
				     "bytes", name, alignment);
	return 0;
}

int ucm_sparse_blocks_check(const struct ucm_repr_spec *spec,
			    const struct ucm_keys *keys, const int32_t *blocks,
			    size_t num, uint32_t last_tokens,
			    struct ucm_error *error)
{
	int err = ucm_sparse_keys_check(keys, spec->block_size, spec->num_heads,
					spec->head_dim, error)
		?: ucm_sparse_in_range("last_tokens", last_tokens,
				       spec->block_size, error);

	return err ?: ucm_repr_ids_check("blocks", blocks, 0, num,
					 keys->num_blocks, error);
}

int ucm_sparse_places_check(const struct ucm_repr_slab *slab,
			    const int32_t *slots, uint64_t first, size_t num,
			    const void *query, const void *scores,
			    struct ucm_error *error)
{
	int err = ucm_repr_ids_check(slots ? "slots" : "first_slot", slots,
				     first, num, slab->num_slots, error);

	if (err)
		return err;
	if (!query || !scores)
		return ucm_error_set(error, -EINVAL, "%s is NULL",
				     query ? "scores" : "query");
	return 0;
}

bool ucm_score_range(const float *scores, size_t num, float *least, float *most)
{
	if (!ucm_sparse_kernels()->range(scores, num, least, most))
		return false;
	/* -0 + 0 is +0; all else stays */
	*least += 0.0f;
	*most += 0.0f;
	return true;
}

int ucm_sparse_heads_check(const char *name, uint32_t heads, uint32_t of,
			   struct ucm_error *error)
{
	if (heads && heads <= UCM_QUERY_HEADS_MAX && of && heads % of == 0)
		return 0;
	return ucm_error_set(error, -EINVAL, "%s %" PRIu32 ": a multiple of %"
			     PRIu32 ", up to %u", name, heads, of,
			     UCM_QUERY_HEADS_MAX);
}

int ucm_sparse_refuse(size_t i, size_t num, int err,
		      const struct ucm_error *why, struct ucm_error *error)
{
	return num > 1 ? ucm_error_set(error, err, "request %zu: %s", i,
				       why->text)
		       : ucm_error_set(error, err, "%s", why->text);
}
