/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shape.c - the sizes of a store: tensors make shards, shards make blocks, and layers
 * lie in both; and the layout for the loader that follows from them.
 */
#include <config.h>

#include "gpu/shards/shards.h"

#include <errno.h>
#include <inttypes.h>

#include <ucm/block.h>

#include "common/error.h"
#include "gpu/layout/layout.h"

static uint32_t default_layers(const struct ucm_shards_shape *shape,
			       const struct ucm_shards_config *config)
{
	uint64_t num = shape->block_size / shape->shard_size;

	if (config->num_layers)
		return config->num_layers;
	if (config->geometry)
		return config->geometry->num_layers;
	if (num == 1)
		num = shape->block_size / shape->tensor_size;
	return num > UINT32_MAX ? UINT32_MAX : (uint32_t)num;
}

static bool divides(uint64_t small, uint64_t large)
{
	return small && large % small == 0;
}

static int shape_of(const struct ucm_shards_config *config,
		    struct ucm_shards_shape *out, struct ucm_error *error)
{
	uint64_t tensor = config->tensor_size;
	uint64_t shard = config->shard_size ?: config->block_size ?: tensor;
	uint64_t block = config->block_size ?: shard, layer;
	struct ucm_shards_shape shape = { .tensor_size = tensor,
					  .shard_size = shard,
					  .block_size = block };

	if (!divides(tensor, shard) || !divides(shard, block))
		return ucm_error_set(error, -EINVAL,
				     "tensor of %" PRIu64 ", shard of %" PRIu64
				     ", block of %" PRIu64
				     " bytes: each must divide the next",
				     tensor, shard, block);
	shape.num_layers = default_layers(&shape, config);
	layer = shape.num_layers ? block / shape.num_layers : 0;
	if (!divides(layer, block) || block / layer != shape.num_layers ||
	    !divides(layer, shard) ||
	    (!divides(layer, tensor) && !divides(tensor, layer)))
		return ucm_error_set(
			error, -EINVAL,
			"%" PRIu32 " layers in a block of %" PRIu64
			" bytes: they do not fit shards of %" PRIu64
			" and tensors of %" PRIu64 " bytes",
			shape.num_layers, block, shard, tensor);
	if (layer > UINT32_MAX || block / shard > UINT32_MAX ||
	    shard / tensor > UINT32_MAX)
		return ucm_error_set(
			error, -EINVAL,
			"%" PRIu64 " bytes to a layer, %" PRIu64
			" shards, %" PRIu64
			" tensors to a shard: at most 2^32 - 1 each",
			layer, block / shard, shard / tensor);
	shape.layer_size = layer;
	shape.num_shards = (uint32_t)(block / shard);
	shape.tensors_per_shard = (uint32_t)(shard / tensor);
	*out = shape;
	return 0;
}

/* What a header can say: encoding one shows. */
static bool is_geometry(const struct ucm_geometry *geometry)
{
	const struct ucm_block block = { .geometry = *geometry,
					 .form = UCM_FORM_PACKED,
					 .data_offset =
						 UCM_BLOCK_HEADER_BYTES };
	uint8_t bytes[UCM_BLOCK_HEADER_BYTES];

	return !ucm_block_encode(&block, NULL, bytes, sizeof(bytes));
}

static int geometry_of(const struct ucm_shards_config *config,
		       const struct ucm_shards_shape *shape,
		       struct ucm_geometry *out, struct ucm_error *error)
{
	bool two_planes = shape->layer_size == 2 * shape->tensor_size;
	char text[256];

	if (!config->geometry) {
		*out = (struct ucm_geometry){
			.num_layers = shape->num_layers,
			.block_size = 1,
			.dtype = UCM_DTYPE_OPAQUE,
			.k_bytes = (uint32_t)(two_planes ? shape->tensor_size
							 : shape->layer_size),
			.v_bytes = (uint32_t)(two_planes ? shape->tensor_size
							 : 0),
			.order = UCM_ORDER_OPAQUE,
		};
		return 0;
	}
	*out = *config->geometry;
	if (is_geometry(out) && out->num_layers == shape->num_layers &&
	    ucm_block_payload_bytes(out) == shape->block_size)
		return 0;
	ucm_geometry_text(out, text, sizeof(text));
	return ucm_error_set(error, -EINVAL,
			     "geometry %s: not that of blocks of %" PRIu64
			     " bytes in %" PRIu32 " layers",
			     text, shape->block_size, shape->num_layers);
}

static int add_group(struct ucm_shards *store, const struct ucm_geometry *g,
		     const char *space, struct ucm_error *error)
{
	struct ucm_layout *layout;
	int err = ucm_layout_new_given(g, store->region_bytes, &layout, error);

	if (err)
		return err;
	err = ucm_loader_add_group(store->loader, layout, space, &store->group,
				   error);
	ucm_layout_free(layout);
	return err;
}

int ucm_shards_set_up(struct ucm_shards *store,
		      const struct ucm_shards_config *config,
		      struct ucm_error *error)
{
	struct ucm_shards_shape *shape = &store->shape;
	struct ucm_geometry geometry;
	int err;

	if (config->verify > UCM_VERIFY_ONCE)
		return ucm_error_set(error, -EINVAL, "verify %d: unknown",
				     (int)config->verify);
	err = shape_of(config, shape, error)
		?: geometry_of(config, shape, &geometry, error);
	if (err)
		return err;
	store->verify = config->verify;
	store->deadline_ms = config->deadline_ms;
	store->may_refuse = config->may_refuse;
	store->region_bytes = shape->layer_size < shape->tensor_size
				      ? shape->layer_size
				      : shape->tensor_size;
	return add_group(store, &geometry, config->space, error);
}
