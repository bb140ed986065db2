/* SPDX-License-Identifier: Apache-2.0 */
/* shape.c - is a spec of representations right, and what follows from it? */
#include <config.h>

#include "fs/repr/shape.h"

#include <errno.h>
#include <inttypes.h>

#include "common/align.h"
#include "common/error.h"

static uint32_t stored_bytes(uint32_t dtype)
{
	return dtype == UCM_DTYPE_INT8 ? 1 : ucm_repr_input_bytes(dtype);
}

uint32_t ucm_repr_input_bytes(uint32_t dtype)
{
	switch (dtype) {
	case UCM_DTYPE_FLOAT32:
		return 4;
	case UCM_DTYPE_FLOAT16:
	case UCM_DTYPE_BFLOAT16:
		return 2;
	default:
		return 0;
	}
}

int ucm_repr_check_range(const char *name, uint32_t value, uint32_t least,
			 uint32_t most, struct ucm_error *error)
{
	if (value >= least && value <= most)
		return 0;
	return ucm_error_set(error, -EINVAL, "%s %" PRIu32 ": from %" PRIu32
			     " to %" PRIu32, name, value, least, most);
}

static int keys_check(uint32_t num_heads, uint32_t head_dim,
		      uint32_t block_size, struct ucm_error *error)
{
	int err = ucm_repr_check_range("num_heads", num_heads, 1,
				       UCM_REPR_HEADS_MAX, error);

	if (!err)
		err = ucm_repr_check_range("head_dim", head_dim, 1,
					   UCM_REPR_HEAD_DIM_MAX, error);
	return err ? err
		   : ucm_repr_check_range("block_size", block_size, 1,
					  UCM_REPR_BLOCK_SIZE_MAX, error);
}

int ucm_repr_shape(const struct ucm_repr_spec *spec,
		   struct ucm_repr_shape *out, struct ucm_error *error)
{
	struct ucm_repr_shape shape = { .padded = 0 };

	if (!spec)
		return ucm_error_set(error, -EINVAL, "spec is NULL");
	if (spec->kind >= UCM_REPR_KINDS)
		return ucm_error_set(error, -EINVAL, "kind %" PRIu32
				     ": unknown", spec->kind);
	shape.item_bytes = stored_bytes(spec->dtype);
	if (!shape.item_bytes)
		return ucm_error_set(error, -EINVAL, "dtype %" PRIu32
				     ": float32, bfloat16, float16 or int8",
				     spec->dtype);
	if (keys_check(spec->num_heads, spec->head_dim, spec->block_size,
		       error))
		return -EINVAL;
	shape.padded = (uint32_t)ucm_round_up(spec->head_dim, UCM_REPR_ROW);
	shape.width = shape.padded * (spec->kind == UCM_REPR_MINMAX ? 2 : 1);
	shape.scales_at = (size_t)spec->num_heads * shape.width *
			  shape.item_bytes;
	shape.bytes = shape.scales_at;
	if (spec->dtype == UCM_DTYPE_INT8)
		shape.bytes += spec->num_heads * sizeof(float);
	shape.bytes = ucm_round_up(shape.bytes, 64);
	if (out)
		*out = shape;
	return 0;
}

int ucm_repr_slab_check(const struct ucm_repr_slab *slab, size_t bytes,
			size_t alignment, struct ucm_error *error)
{
	uint64_t all;

	if (!slab || !slab->base)
		return ucm_error_set(error, -EINVAL, "slab is NULL");
	if ((uintptr_t)slab->base % alignment)
		return ucm_error_set(error, -EINVAL, "slab is not aligned to "
				     "%zu bytes", alignment);
	if (slab->stride_bytes < bytes || slab->stride_bytes % alignment)
		return ucm_error_set(error, -EINVAL, "stride_bytes %" PRIu64
				     ": a multiple of %zu, at least %zu",
				     slab->stride_bytes, alignment, bytes);
	if (__builtin_mul_overflow(slab->stride_bytes, slab->num_slots, &all) ||
	    all > INT64_MAX)
		return ucm_error_set(error, -EINVAL, "num_slots %" PRIu64
				     ": more than there is memory",
				     slab->num_slots);
	return 0;
}

int ucm_repr_ids_check(const char *name, const int32_t *ids, uint64_t first,
		       size_t num, uint64_t limit, struct ucm_error *error)
{
	if (!ids) {
		if (first <= limit && num <= limit - first)
			return 0;
		return ucm_error_set(error, -EINVAL, "%s %" PRIu64 " + %zu"
				     ": there are %" PRIu64, name, first, num,
				     limit);
	}
	for (size_t i = 0; i < num; i++) {
		if (ids[i] < 0 || (uint64_t)ids[i] >= limit)
			return ucm_error_set(error, -EINVAL, "%s: number %zu is"
					     " %" PRId32 ", there are %" PRIu64,
					     name, i, ids[i], limit);
	}
	return 0;
}

/* ---- hash codes ---- */

static int bits_check(const struct ucm_code_spec *spec, struct ucm_error *error)
{
	uint64_t all = (uint64_t)spec->bits + spec->rope_bits;

	if (spec->rope_dim >= spec->head_dim)
		return ucm_error_set(error, -EINVAL, "rope_dim %" PRIu32
				     ": less than head_dim, %" PRIu32,
				     spec->rope_dim, spec->head_dim);
	if (!spec->bits || spec->bits % 8)
		return ucm_error_set(error, -EINVAL, "bits %" PRIu32
				     ": a multiple of 8", spec->bits);
	if (spec->rope_bits % 8 || !spec->rope_bits != !spec->rope_dim)
		return ucm_error_set(error, -EINVAL, "rope_bits %" PRIu32
				     ": a multiple of 8; 0 with rope_dim 0 and "
				     "only then", spec->rope_bits);
	if (all > UCM_CODE_BITS_MAX)
		return ucm_error_set(error, -EINVAL, "bits %" PRIu64
				     " in all: up to %u", all,
				     UCM_CODE_BITS_MAX);
	if (spec->norms > 1)
		return ucm_error_set(error, -EINVAL, "norms %" PRIu32
				     ": 0 or 1", spec->norms);
	if (spec->norms && spec->form == UCM_CODE_COUNTS)
		return ucm_error_set(error, -EINVAL,
				     "norms: there are none of counts");
	if (spec->norms && (spec->bits < spec->head_dim - spec->rope_dim ||
			    spec->rope_bits < spec->rope_dim))
		return ucm_error_set(error, -EINVAL, "norms: fewer bits than "
				     "dimensions");
	return 0;
}

static int spec_check(const struct ucm_code_spec *spec, struct ucm_error *error)
{
	if (!spec)
		return ucm_error_set(error, -EINVAL, "spec is NULL");
	if (spec->form >= UCM_CODE_FORMS)
		return ucm_error_set(error, -EINVAL, "form %" PRIu32
				     ": unknown", spec->form);
	if (keys_check(spec->num_heads, spec->head_dim, spec->block_size,
		       error))
		return -EINVAL;
	return bits_check(spec, error);
}

static void parts_shape(const struct ucm_code_spec *spec,
			struct ucm_code_shape *shape)
{
	uint32_t nope = spec->head_dim - spec->rope_dim;

	shape->parts[0].dim = nope;
	shape->parts[0].bits = spec->bits;
	shape->parts[1].first = nope;
	shape->parts[1].dim = spec->rope_dim;
	shape->parts[1].bits = spec->rope_bits;
	for (uint32_t i = 0; i < UCM_CODE_PARTS; i++) {
		uint32_t words = (uint32_t)(ucm_round_up(shape->parts[i].bits,
							 UCM_CODE_WORD) /
					    UCM_CODE_WORD);

		shape->parts[i].words = words;
		shape->parts[i].matrix_at = shape->floats;
		shape->floats += (size_t)shape->parts[i].dim * words *
				 UCM_CODE_WORD;
		shape->bits += shape->parts[i].bits;
		shape->words += words;
	}
	shape->centers_at = shape->floats;
	shape->floats += (size_t)spec->num_heads * spec->head_dim;
}

int ucm_code_shape(const struct ucm_code_spec *spec,
		   struct ucm_code_shape *out, struct ucm_error *error)
{
	struct ucm_code_shape shape = { .bits = 0 };
	int err = spec_check(spec, error);

	if (err)
		return err;
	parts_shape(spec, &shape);
	shape.rows = spec->block_size;
	if (spec->form == UCM_CODE_COUNTS)
		shape.rows = 32 - (uint32_t)__builtin_clz(spec->block_size);
	shape.tiles = (uint32_t)ucm_round_up(shape.rows, UCM_CODE_TILE) /
		      UCM_CODE_TILE;
	shape.norms_at = (size_t)shape.tiles * UCM_CODE_TILE * shape.words *
			 sizeof(uint64_t);
	shape.head_bytes = shape.norms_at;
	if (spec->norms)
		shape.head_bytes += ucm_round_up((uint64_t)shape.tiles *
						 UCM_CODE_TILE *
						 sizeof(uint16_t), 64);
	shape.tokens_at = spec->num_heads * shape.head_bytes;
	shape.bytes = ucm_round_up(shape.tokens_at + sizeof(uint32_t), 64);
	*out = shape;
	return 0;
}

/* ---- merged channels ---- */

int ucm_star_channels_check(const struct ucm_star_spec *spec,
			    struct ucm_error *error)
{
	const uint16_t *channels = spec->channels;

	if (!channels && spec->kept != spec->head_dim)
		return ucm_error_set(error, -EINVAL, "channels is NULL: kept %"
				     PRIu32 " of %" PRIu32, spec->kept,
				     spec->head_dim);
	for (uint32_t head = 0; channels && head < spec->num_heads; head++) {
		for (uint32_t i = 0; i < spec->kept; i++) {
			if (channels[i] < spec->head_dim &&
			    (i == 0 || channels[i] > channels[i - 1]))
				continue;
			return ucm_error_set(error, -EINVAL, "channels: head %"
					     PRIu32 ", number %" PRIu32 " is %u"
					     ": ascending, below %" PRIu32,
					     head, i, channels[i],
					     spec->head_dim);
		}
		channels += spec->kept;
	}
	return 0;
}

int ucm_star_shape(const struct ucm_star_spec *spec,
		   struct ucm_star_shape *out, struct ucm_error *error)
{
	struct ucm_repr_shape repr;
	int err;

	if (!spec)
		return ucm_error_set(error, -EINVAL, "spec is NULL");
	out->keys = (struct ucm_repr_spec){
		UCM_REPR_MEAN, spec->dtype, spec->num_heads, spec->head_dim,
		spec->block_size,
	};
	err = ucm_repr_shape(&out->keys, &repr, error);
	if (err)
		return err;
	if (!spec->merge_tokens || spec->merge_tokens > spec->block_size)
		return ucm_error_set(error, -EINVAL, "merge_tokens %" PRIu32
				     ": from 1 to %" PRIu32, spec->merge_tokens,
				     spec->block_size);
	if (!spec->kept || spec->kept > spec->head_dim)
		return ucm_error_set(error, -EINVAL, "kept %" PRIu32
				     ": from 1 to %" PRIu32, spec->kept,
				     spec->head_dim);
	out->item_bytes = repr.item_bytes;
	out->groups = (spec->block_size - 1) / spec->merge_tokens + 1;
	out->lanes = (uint32_t)ucm_round_up(out->groups, UCM_STAR_LANES);
	out->scales_at = (size_t)spec->num_heads * spec->kept * out->lanes *
			 out->item_bytes;
	out->groups_at = out->scales_at;
	if (spec->dtype == UCM_DTYPE_INT8)
		out->groups_at += (size_t)spec->num_heads * out->lanes *
				  sizeof(float);
	out->bytes = ucm_round_up(out->groups_at + sizeof(uint32_t), 64);
	return 0;
}
