/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space.c - what the representations of a space are, from and to its manifest.
 *
 * A manifest comes from anywhere: its fields are checked by the same rules as
 * what is to be written. What params must be for a kind is in kinds.c. It is
 * fuzzed (tests/fuzz/fuzz_repr.c).
 */
#include <config.h>

#include <ucm/repr.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "common/error.h"
#include "fs/repr/kinds.h"
#include "fs/repr/shape.h"
#include "hashing/tree.h"

#define SUFFIX ".repr"

int ucm_repr_space_name(const char *blocks, char name[UCM_REPR_NAME_MAX],
			struct ucm_error *error)
{
	if (!blocks || !*blocks)
		blocks = UCM_TREE_BLOCKS;
	else if (!strcmp(blocks, UCM_TREE_BLOCKS))
		return ucm_error_set(error, -EINVAL, "space " UCM_TREE_BLOCKS
				     ": " UCM_TREE_BLOCKS SUFFIX " is that of "
				     "the default space");
	if (strlen(blocks) + strlen(SUFFIX) > UCM_TREE_SPACE_MAX)
		return ucm_error_set(error, -EINVAL, "space %s: its name is "
				     "too long for one more", blocks);
	snprintf(name, UCM_REPR_NAME_MAX, "%s" SUFFIX, blocks);
	return 0;
}

static int check(const struct ucm_repr_space *space, struct ucm_error *error)
{
	const struct ucm_geometry *geometry = &space->geometry;
	int err = ucm_repr_check_range("num_layers", geometry->num_layers, 1,
				       UCM_REPR_LAYERS_MAX, error);

	if (!err)
		err = ucm_repr_check_range("k_bytes", geometry->k_bytes, 1,
					   UCM_REPR_LAYER_MAX, error);
	return err ? err : ucm_repr_kind_check(space, error);
}

/* ---- of a spec ---- */

/* Do the blocks have such keys? What they do not say they may have. */
static int check_blocks(const struct ucm_geometry *blocks,
			const struct ucm_repr_spec *spec,
			struct ucm_error *error)
{
	if (spec->block_size != blocks->block_size)
		return ucm_error_set(error, -EINVAL, "block_size %" PRIu32
				     ": the block has %" PRIu32,
				     spec->block_size, blocks->block_size);
	if (!blocks->num_kv_heads || !blocks->head_dim)
		return 0;
	if (spec->num_heads != blocks->num_kv_heads)
		return ucm_error_set(error, -EINVAL, "num_heads %" PRIu32
				     ": the block has %" PRIu16,
				     spec->num_heads, blocks->num_kv_heads);
	if (spec->head_dim != blocks->head_dim)
		return ucm_error_set(error, -EINVAL, "head_dim %" PRIu32
				     ": the block has %" PRIu16,
				     spec->head_dim, blocks->head_dim);
	return 0;
}

/* Of a spec that is right, or of another kind's that is said in its terms. */
static int space_make(const struct ucm_geometry *blocks,
		      const struct ucm_repr_spec *spec, size_t layer_bytes,
		      const uint8_t params[UCM_REPR_PARAMS_BYTES],
		      struct ucm_repr_space *out, struct ucm_error *error)
{
	struct ucm_repr_space space = {
		.geometry = {
			.num_layers = blocks->num_layers,
			.block_size = blocks->block_size,
			.dtype = UCM_DTYPE_OPAQUE,
			.num_kv_heads = (uint16_t)spec->num_heads,
			.head_dim = (uint16_t)spec->head_dim,
			.order = UCM_ORDER_OPAQUE,
		},
		.spec = *spec,
	};
	int err = check_blocks(blocks, spec, error);

	if (!err && layer_bytes > UCM_REPR_LAYER_MAX)
		err = ucm_error_set(error, -EINVAL, "a layer of %zu bytes: at "
				    "most %u", layer_bytes, UCM_REPR_LAYER_MAX);
	if (err)
		return err;
	space.geometry.k_bytes = (uint32_t)layer_bytes;
	if (params)
		memcpy(space.params, params, sizeof(space.params));
	err = check(&space, error);
	if (!err)
		*out = space;
	return err;
}

int ucm_repr_space_init(const struct ucm_geometry *blocks,
			const struct ucm_repr_spec *spec,
			struct ucm_repr_space *out, struct ucm_error *error)
{
	struct ucm_repr_shape shape;
	int err = ucm_repr_shape(spec, &shape, error);

	return err ? err
		   : space_make(blocks, spec, shape.bytes, NULL, out, error);
}

int ucm_repr_space_init_codes(const struct ucm_geometry *blocks,
			      const struct ucm_code_spec *spec,
			      const float *centers, struct ucm_repr_space *out,
			      struct ucm_error *error)
{
	uint8_t params[UCM_REPR_PARAMS_BYTES];
	struct ucm_repr_spec keys = { .kind = UCM_REPR_CODES };
	struct ucm_code_shape shape;
	int err = ucm_code_shape(spec, &shape, error);

	if (!err)
		err = ucm_repr_params_of_codes(
			spec, centers, blocks->num_layers, params, error);
	if (err)
		return err;
	keys.num_heads = spec->num_heads;
	keys.head_dim = spec->head_dim;
	keys.block_size = spec->block_size;
	return space_make(blocks, &keys, shape.bytes, params, out, error);
}

int ucm_repr_space_init_channels(const struct ucm_geometry *blocks,
				 const struct ucm_star_spec *spec,
				 const uint16_t *channels,
				 struct ucm_repr_space *out,
				 struct ucm_error *error)
{
	uint8_t params[UCM_REPR_PARAMS_BYTES];
	struct ucm_repr_spec keys = { .kind = UCM_REPR_CHANNELS };
	struct ucm_star_shape shape;
	int err = ucm_star_shape(spec, &shape, error);

	if (!err)
		err = ucm_repr_params_of_channels(
			spec, channels, blocks->num_layers, params, error);
	if (err)
		return err;
	keys.dtype = spec->dtype;
	keys.num_heads = spec->num_heads;
	keys.head_dim = spec->head_dim;
	keys.block_size = spec->block_size;
	return space_make(blocks, &keys, shape.bytes, params, out, error);
}

/* ---- the manifest ---- */

int ucm_repr_space_manifest(const struct ucm_repr_space *space,
			    char text[UCM_REPR_MANIFEST_MAX],
			    struct ucm_error *error)
{
	const struct ucm_geometry *geometry = &space->geometry;
	char params[2 * UCM_REPR_PARAMS_BYTES + 1];
	int err = check(space, error);

	if (err)
		return err;
	for (size_t i = 0; i < UCM_REPR_PARAMS_BYTES; i++)
		snprintf(params + 2 * i, 3, "%02x", space->params[i]);
	snprintf(text, UCM_REPR_MANIFEST_MAX,
		 "{ \"repr\": { \"kind\": \"%s\", \"dtype\": \"%s\",\n"
		 "    \"params\": \"%s\" },\n"
		 "  \"geometry\": { \"num_layers\": %" PRIu32
		 ", \"block_size\": %" PRIu32 ", \"dtype\": \"opaque\",\n"
		 "    \"k_bytes\": %" PRIu32 ", \"v_bytes\": 0, "
		 "\"num_kv_heads\": %" PRIu16 ", \"head_dim\": %" PRIu16 ",\n"
		 "    \"order\": \"opaque\" } }\n",
		 ucm_repr_kind_name(space->spec.kind),
		 ucm_dtype_name(space->spec.dtype), params,
		 geometry->num_layers, geometry->block_size, geometry->k_bytes,
		 geometry->num_kv_heads, geometry->head_dim);
	return 0;
}

static int take_params(const char *hex, struct ucm_repr_space *out,
		       struct ucm_error *error)
{
	static const char digits[] = "0123456789abcdef";

	if (strlen(hex) != 2 * UCM_REPR_PARAMS_BYTES ||
	    strspn(hex, digits) != 2 * UCM_REPR_PARAMS_BYTES)
		return ucm_error_set(error, -EINVAL, "params: must be %u "
				     "lowercase hex digits",
				     2 * UCM_REPR_PARAMS_BYTES);
	for (size_t i = 0; i < UCM_REPR_PARAMS_BYTES; i++)
		out->params[i] =
			(uint8_t)((strchr(digits, hex[2 * i]) - digits) << 4 |
				  (strchr(digits, hex[2 * i + 1]) - digits));
	return 0;
}

/* A field of the geometry. */
static int take_number(const json_t *geometry, const char *key, uint32_t most,
		       uint32_t *out, struct ucm_error *error)
{
	json_int_t value =
		json_integer_value(json_object_get(geometry, key));

	if (value < 1 || value > most)
		return ucm_error_set(error, -EINVAL, "%s: from 1 to %" PRIu32,
				     key, most);
	*out = (uint32_t)value;
	return 0;
}

static int take_geometry(const json_t *root, struct ucm_repr_space *out,
			 struct ucm_error *error)
{
	const json_t *geometry = json_object_get(root, "geometry");
	struct ucm_geometry *g = &out->geometry;
	const char *dtype =
		json_string_value(json_object_get(geometry, "dtype"));
	const char *order =
		json_string_value(json_object_get(geometry, "order"));
	int err;

	if (!dtype || strcmp(dtype, "opaque") || !order ||
	    strcmp(order, "opaque") ||
	    json_integer_value(json_object_get(geometry, "v_bytes")))
		return ucm_error_set(error, -EINVAL, "geometry: dtype and "
				     "order must be opaque, v_bytes 0");
	g->order = UCM_ORDER_OPAQUE;
	err = take_number(geometry, "num_layers", UCM_REPR_LAYERS_MAX,
			  &g->num_layers, error);
	if (!err)
		err = take_number(geometry, "block_size",
				  UCM_REPR_BLOCK_SIZE_MAX, &g->block_size,
				  error);
	if (!err)
		err = take_number(geometry, "k_bytes", UCM_REPR_LAYER_MAX,
				  &g->k_bytes, error);
	if (!err)
		err = take_number(geometry, "num_kv_heads", UCM_REPR_HEADS_MAX,
				  &out->spec.num_heads, error);
	if (!err)
		err = take_number(geometry, "head_dim", UCM_REPR_HEAD_DIM_MAX,
				  &out->spec.head_dim, error);
	g->num_kv_heads = (uint16_t)out->spec.num_heads;
	g->head_dim = (uint16_t)out->spec.head_dim;
	out->spec.block_size = g->block_size;
	return err;
}

static int take(const json_t *root, struct ucm_repr_space *out,
		struct ucm_error *error)
{
	const json_t *repr = json_object_get(root, "repr");
	const char *kind = json_string_value(json_object_get(repr, "kind"));
	const char *dtype = json_string_value(json_object_get(repr, "dtype"));
	const char *params = json_string_value(json_object_get(repr, "params"));
	int err;

	if (!repr)
		return ucm_error_set(error, -EINVAL, "manifest: not one of "
				     "representations");
	if (!kind || ucm_repr_kind_parse(kind, &out->spec.kind))
		return ucm_error_set(error, -EINVAL, "kind %s: unknown",
				     kind ? kind : "(none)");
	if (!dtype || ucm_dtype_parse(dtype, &out->spec.dtype))
		return ucm_error_set(error, -EINVAL, "dtype %s: unknown",
				     dtype ? dtype : "(none)");
	err = take_params(params ? params : "", out, error);
	return err ? err : take_geometry(root, out, error);
}

int ucm_repr_space_parse(const char *manifest, struct ucm_repr_space *out,
			 struct ucm_error *error)
{
	json_t *root = json_loads(manifest, JSON_REJECT_DUPLICATES, NULL);
	struct ucm_repr_space space;
	int err;

	memset(&space, 0, sizeof(space)); /* compared by its bytes */
	err = take(root, &space, error);
	json_decref(root);
	if (!err)
		err = check(&space, error);
	if (!err)
		*out = space;
	return err;
}
