/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan.c - the space that a block's representation goes to, for ucm
 * repr; and back, how those of a space were made.
 *
 * A block's header says what its keys are, the command line what is to be made
 * of them. Centers and channels are files of numbers without a header: their
 * length must be right for the block.
 */
#include <config.h>

#include "tools/repr/repr.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "common/align.h"
#include "common/error.h"
#include "fs/block/verify.h"
#include "sparse/code.h"

/* ---- what the keys are ---- */

static int plan_heads(const struct ucm_geometry *geometry,
		      struct ucm_repr_spec *spec, struct ucm_error *error)
{
	uint64_t item = ucm_dtype_size(geometry->dtype);
	uint64_t key = geometry->block_size * item; /* bytes of a channel */

	spec->num_heads = geometry->num_kv_heads;
	spec->head_dim = geometry->head_dim;
	if (spec->num_heads && spec->head_dim)
		return 0;
	/* MLA: K and V are one, of one head */
	if (geometry->v_bytes || !key || geometry->k_bytes % key)
		return ucm_error_set(error, -EINVAL, "the block's header does "
				     "not say how many heads its keys have");
	spec->num_heads = 1;
	spec->head_dim = (uint32_t)(geometry->k_bytes / key);
	return 0;
}

static int plan_keys(const struct ucm_geometry *geometry,
		     const struct ucm_repr_method *method,
		     struct ucm_repr_spec *out, struct ucm_error *error)
{
	struct ucm_repr_spec spec = {
		.kind = method->kind,
		.dtype = method->dtype,
		.block_size = geometry->block_size,
	};
	int err;

	switch (geometry->dtype) {
	case UCM_DTYPE_FLOAT16:
	case UCM_DTYPE_BFLOAT16:
	case UCM_DTYPE_FLOAT32:
		break;
	default:
		return ucm_error_set(error, -EINVAL, "the block's keys are "
				     "%s: float32, bfloat16 or float16",
				     ucm_dtype_name(geometry->dtype));
	}
	err = plan_heads(geometry, &spec, error);
	if (!err && spec.num_heads > 1 && geometry->order == UCM_ORDER_OPAQUE)
		err = ucm_error_set(error, -EINVAL, "the block's header does "
				    "not say in which order its keys lie");
	if (!err)
		*out = spec;
	return err;
}

/* ---- codes, and channels ---- */

/* Are there as many centers as a model of such keys has? */
static int centers_check(const struct ucm_repr_side *side,
			 uint32_t num_layers, uint32_t num_heads,
			 uint32_t head_dim, struct ucm_error *error)
{
	uint64_t want = (uint64_t)num_layers * num_heads * head_dim *
			sizeof(float);

	if (!side->bytes || side->len == want)
		return 0;
	return ucm_error_set(error, -EINVAL, "centers: %zu bytes, where %" PRIu32
			     " layers, %" PRIu32 " heads and %" PRIu32
			     " channels take %" PRIu64, side->len, num_layers,
			     num_heads, head_dim, want);
}

static int plan_codes(const struct ucm_block *block,
		      const struct ucm_repr_spec *keys,
		      const struct ucm_repr_method *method,
		      struct ucm_repr_space *out, struct ucm_error *error)
{
	struct ucm_code_spec spec = method->codes;
	int err = centers_check(&method->side, block->geometry.num_layers,
				keys->num_heads, keys->head_dim, error);

	if (err)
		return err;
	spec.num_heads = keys->num_heads;
	spec.head_dim = keys->head_dim;
	spec.block_size = keys->block_size;
	if (!spec.bits && spec.rope_dim < spec.head_dim)
		spec.bits = (uint32_t)ucm_round_up(
			spec.head_dim - spec.rope_dim, 8);
	if (!spec.rope_bits)
		spec.rope_bits = ucm_code_rope_bits(&spec);
	return ucm_repr_space_init_codes(&block->geometry, &spec, method->side.bytes, out,
					error);
}

/* How many of each head the numbers are; 0: of no number. */
static uint32_t channels_kept(const struct ucm_repr_side *side,
			      uint32_t num_layers, uint32_t num_heads)
{
	uint64_t one = (uint64_t)num_layers * num_heads * sizeof(uint16_t);

	return side->len % one ? 0 : (uint32_t)(side->len / one);
}

static int plan_channels(const struct ucm_block *block,
			 const struct ucm_repr_spec *keys,
			 const struct ucm_repr_method *method,
			 struct ucm_repr_space *out, struct ucm_error *error)
{
	uint32_t layers = block->geometry.num_layers;
	struct ucm_star_spec spec = {
		.dtype = keys->dtype,
		.num_heads = keys->num_heads,
		.head_dim = keys->head_dim,
		.block_size = keys->block_size,
		.merge_tokens = method->star.merge_tokens,
		.kept = keys->head_dim,
	};

	if (method->side.bytes)
		spec.kept = channels_kept(&method->side, layers,
					  keys->num_heads);
	if (!spec.kept || spec.kept > spec.head_dim)
		return ucm_error_set(error, -EINVAL, "channels: %zu bytes, "
				     "where %" PRIu32 " layers of %" PRIu32
				     " heads keep up to %" PRIu32 " each",
				     method->side.len, layers, keys->num_heads,
				     spec.head_dim);
	return ucm_repr_space_init_channels(&block->geometry, &spec, method->side.bytes,
					   out, error);
}

int ucm_repr_plan(int fd, uint64_t size, const struct ucm_id *id,
		  const struct ucm_repr_method *method,
		  struct ucm_block *block, struct ucm_repr_space *out,
		  struct ucm_error *error)
{
	const struct ucm_bytes bytes = ucm_bytes_of_fd(fd);
	enum ucm_fault fault = UCM_FAULT_NONE;
	struct ucm_repr_spec keys;
	int err = ucm_verify_commit(&bytes, size, id, block, &fault);

	if (err)
		return ucm_error_set(error, err, "%s", strerror(-err));
	if (fault)
		return ucm_error_set(error, -EBADMSG, "%s",
				     ucm_fault_text(fault));
	err = plan_keys(&block->geometry, method, &keys, error);
	if (err)
		return err;
	if (method->kind == UCM_REPR_CODES)
		return plan_codes(block, &keys, method, out, error);
	if (method->kind == UCM_REPR_CHANNELS)
		return plan_channels(block, &keys, method, out, error);
	return ucm_repr_space_init(&block->geometry, &keys, out, error);
}

/* ---- how those of a space were made ---- */

int ucm_repr_method_of(const struct ucm_repr_space *space,
		       const struct ucm_repr_side *side,
		       struct ucm_repr_method *out, struct ucm_error *error)
{
	const struct ucm_repr_spec *spec = &space->spec;
	uint32_t layers = space->geometry.num_layers;
	int err = 0;

	*out = (struct ucm_repr_method){
		.kind = spec->kind,
		.dtype = spec->dtype,
		.side = *side,
	};
	if (spec->kind == UCM_REPR_CODES) {
		err = centers_check(side, layers, spec->num_heads,
				    spec->head_dim, error)
			?: ucm_repr_space_check_centers(space, side->bytes,
							error);
		return err ?: ucm_repr_space_codes(space, &out->codes, error);
	}
	if (spec->kind != UCM_REPR_CHANNELS)
		return 0;
	err = ucm_repr_space_channels(space, &out->star, error);
	if (!err && side->bytes &&
	    channels_kept(side, layers, spec->num_heads) != out->star.kept)
		return ucm_error_set(error, -EINVAL, "channels: %zu bytes, "
				     "where the space keeps %" PRIu32
				     " of each head", side->len,
				     out->star.kept);
	return err ?: ucm_repr_space_check_channels(space, side->bytes, error);
}
