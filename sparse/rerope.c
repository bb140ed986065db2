/* SPDX-License-Identifier: Apache-2.0 */
/* rerope.c - what ReRoPE is asked with, and its table of angles. Source: Su,
 * ReRoPE (kexue.fm/archives/9706, /9708, and the repository bojone/rerope). */
#include <config.h>

#include "sparse/rerope.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "common/error.h"
#include "sparse/attention.h"

static int config_check(const struct ucm_rerope *rerope,
			struct ucm_rope_shape *out, struct ucm_error *error)
{
	int err = ucm_sparse_given(error, "rerope", rerope, NULL)
		?: ucm_rope_check(&rerope->rope, out, error)
		?: ucm_sparse_in_range("window", rerope->window,
				       UCM_POSITION_MAX, error);

	if (!err && rerope->training_length == 1)
		err = ucm_error_set(error, -EINVAL, "training_length 1: "
				    "at least 2, or 0");
	return err;
}

int ucm_rerope_check_for(const struct ucm_rerope *rerope, uint32_t head_dim,
			 struct ucm_rope_shape *out, struct ucm_error *error)
{
	int err = config_check(rerope, out, error);

	if (err || rerope->rope.head_dim == head_dim)
		return err;
	return ucm_error_set(error, -EINVAL, "rope: head_dim %" PRIu32
			     ": attention's is %" PRIu32, rerope->rope.head_dim,
			     head_dim);
}

static int selected_check(const struct ucm_attention *attention,
			  uint32_t num_blocks, struct ucm_error *error)
{
	const uint32_t *selected = attention->selected;

	for (uint32_t i = 1; selected && i < num_blocks; i++) {
		if (selected[i] <= selected[i - 1])
			return ucm_error_set(error, -EINVAL, "selected: %" PRIu32
					     " after %" PRIu32 ": not ascending",
					     selected[i], selected[i - 1]);
	}
	return 0;
}

/* ln(position + 1) / ln(length), if that is above 1. In long double: as the powers
 * in rope.c. */
static double gain_of(uint32_t position, uint32_t length)
{
	if (!length || position < length)
		return 1;
	return (double)(logl(position + 1.0L) / logl(length));
}

int ucm_rerope_check(const struct ucm_rerope *rerope,
		     const struct ucm_attention *attention,
		     struct ucm_rerope_shape *out, struct ucm_error *error)
{
	uint32_t last = (attention->num_tokens - 1) / attention->block_size;
	uint64_t end;
	int err = ucm_rerope_check_for(rerope, attention->head_dim, &out->rope,
				       error)
		?: selected_check(attention, last + 1, error);

	if (err)
		return err;
	end = ucm_rerope_first(attention, last) +
	      ucm_attention_tokens(attention, last) - 1;
	if (attention->position < end ||
	    attention->position > UCM_POSITION_MAX)
		return ucm_error_set(error, -EINVAL, "position %" PRIu32
				     ": from %" PRIu64 ", the last token's, to "
				     "%d", attention->position, end,
				     UCM_POSITION_MAX);
	out->gain = gain_of(attention->position, rerope->training_length);
	return 0;
}

/* ---- angles: for each token of a block its cosines, and then its sines ---- */

static int block_size_check(uint32_t block_size, struct ucm_error *error)
{
	return ucm_sparse_in_range("block_size", block_size,
				   UCM_REPR_BLOCK_SIZE_MAX, error);
}

size_t ucm_rerope_floats(const struct ucm_rerope *rerope, uint32_t block_size)
{
	struct ucm_rope_shape shape;

	if (config_check(rerope, &shape, NULL) ||
	    block_size_check(block_size, NULL))
		return 0;
	return (size_t)block_size * 2 * shape.rotary;
}

int ucm_rerope_prepare(const struct ucm_rerope *rerope, uint32_t block_size,
		       float *angles, struct ucm_error *error)
{
	struct ucm_rope_table table;
	struct ucm_rope_shape shape;
	int err = config_check(rerope, &shape, error)
		?: block_size_check(block_size, error);

	if (err)
		return err;
	if (!angles)
		return ucm_error_set(error, -EINVAL, "angles is NULL");
	for (uint32_t i = 0; i < block_size; i++) {
		size_t bytes = shape.rotary * sizeof(*angles);

		ucm_rope_table_fill(&rerope->rope, &shape, -(int64_t)i, 1,
				    &table);
		memcpy(angles, table.cosines, bytes);
		memcpy(angles + shape.rotary, table.sines, bytes);
		angles += 2 * (size_t)shape.rotary;
	}
	return 0;
}
