/* SPDX-License-Identifier: Apache-2.0 */
/* manifest.c - space.json; see manifest.h. */
#include <config.h>

#include "fs/block/manifest.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "common/error.h"
#include "common/parse.h"
#include "hashing/digest.h"

#define QUOTA "quota"

static int bad_key(struct ucm_error *error, const char *key, const char *want)
{
	return ucm_error_set(error, -EINVAL, "space.json: geometry.%s: %s", key,
			     want);
}

static int get_number(const json_t *geometry, const char *key, json_int_t min,
		      json_int_t max, uint32_t *out, struct ucm_error *error)
{
	const json_t *value = json_object_get(geometry, key);
	json_int_t number;

	if (!value && min == 0)
		return 0;
	number = json_integer_value(value);
	if (!json_is_integer(value) || number < min || number > max)
		return bad_key(error, key, "missing or out of range");
	*out = (uint32_t)number;
	return 0;
}

static int get_dtype(const json_t *geometry, uint32_t *out,
		     struct ucm_error *error)
{
	const char *name =
		json_string_value(json_object_get(geometry, "dtype"));

	if (!name || ucm_dtype_parse(name, out))
		return bad_key(error, "dtype", "missing or unknown");
	return 0;
}

static int get_order(const json_t *geometry, uint32_t *out,
		     struct ucm_error *error)
{
	static const char *const orders[] = { "NHD", "HND", "opaque" };
	const json_t *value = json_object_get(geometry, "order");

	if (!value)
		return 0;
	for (uint32_t i = 0; i < 3 && json_is_string(value); i++) {
		if (!strcmp(json_string_value(value), orders[i])) {
			*out = i;
			return 0;
		}
	}
	return bad_key(error, "order", "not NHD, HND or opaque");
}

/* The same rules as for a header: encode one, and see. */
static int check_geometry(const struct ucm_geometry *geometry,
			  struct ucm_error *error)
{
	char bytes[UCM_BLOCK_HEADER_BYTES];
	struct ucm_block block = {
		.geometry = *geometry,
		.form = UCM_FORM_PACKED,
		.data_offset = UCM_BLOCK_HEADER_BYTES,
	};

	if (!ucm_block_encode(&block, NULL, bytes, sizeof(bytes)))
		return 0;
	return ucm_error_set(
		error, -EINVAL,
		"space.json: geometry: k_bytes is not block_size * "
		"num_kv_heads * head_dim * size of dtype");
}

static int get_geometry(const json_t *root, struct ucm_geometry *out,
			struct ucm_error *error)
{
	const json_t *geometry = json_object_get(root, "geometry");
	struct ucm_geometry g = { 0 };
	uint32_t heads = 0, dim = 0;
	int err;

	if (!json_is_object(geometry))
		return ucm_error_set(error, -EINVAL,
				     "space.json: no map 'geometry'");
	err = get_number(geometry, "num_layers", 1, 1 << 20, &g.num_layers,
			 error);
	if (!err)
		err = get_number(geometry, "block_size", 1, UINT32_MAX,
				 &g.block_size, error);
	if (!err)
		err = get_dtype(geometry, &g.dtype, error);
	if (!err)
		err = get_number(geometry, "k_bytes", 1, UINT32_MAX, &g.k_bytes,
				 error);
	if (!err)
		err = get_number(geometry, "v_bytes", 0, UINT32_MAX, &g.v_bytes,
				 error);
	if (!err)
		err = get_number(geometry, "num_kv_heads", 0, UINT16_MAX,
				 &heads, error);
	if (!err)
		err = get_number(geometry, "head_dim", 0, UINT16_MAX, &dim,
				 error);
	if (!err)
		err = get_order(geometry, &g.order, error);
	g.num_kv_heads = (uint16_t)heads;
	g.head_dim = (uint16_t)dim;
	if (!err)
		err = check_geometry(&g, error);
	if (!err)
		*out = g;
	return err;
}

/* True if a number with a fraction stands anywhere in it. */
static bool has_real(json_t *value)
{
	const char *key;
	json_t *child;
	size_t i;

	if (json_is_real(value))
		return true;
	json_object_foreach(value, key, child) {
		if (has_real(child))
			return true;
	}
	json_array_foreach(value, i, child) {
		if (has_real(child))
			return true;
	}
	return false;
}

/* jansson writes \u001F where Python writes \u001f. */
static void lower_escapes(char *text)
{
	for (; *text; text++) {
		if (*text != '\\')
			continue;
		if (*++text != 'u')
			continue; /* two characters: \\ and \" as well */
		for (int i = 1; i <= 4; i++)
			text[i] = (char)tolower((unsigned char)text[i]);
	}
}

/* ---- the quota ---- */

/* -EINVAL: it is none. */
static int manifest_quota(const json_t *value, uint64_t *out)
{
	uint64_t bytes = (uint64_t)json_integer_value(value);

	if (!json_is_integer(value) &&
	    (!json_is_string(value) ||
	     ucm_parse_bytes(json_string_value(value), &bytes)))
		return -EINVAL;
	if (bytes > UCM_QUOTA_MAX)
		return -EINVAL;
	*out = bytes;
	return 0;
}

/* Out of the map, as it is no part of the identity. */
static int take_quota(json_t *root, struct ucm_manifest *out,
		      struct ucm_error *error)
{
	const json_t *value = json_object_get(root, QUOTA);

	out->has_quota = value;
	out->quota = 0;
	if (value && manifest_quota(value, &out->quota))
		return ucm_error_set(error, -EINVAL,
				     "space.json: " QUOTA ": not bytes, such as "
				     "500000000 or \"500G\"");
	json_object_del(root, QUOTA);
	return 0;
}

bool ucm_manifest_quota_alone(const char *text, size_t len,
			      uint64_t *quota_out)
{
	json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
	const json_t *value = json_object_get(root, QUOTA);
	bool alone = json_object_size(root) == 1 && value &&
		     !manifest_quota(value, quota_out);

	json_decref(root);
	return alone;
}

/* A space.json must say something: without any other key it says 0. */
static void put_quota(json_t *root, uint64_t quota)
{
	json_object_del(root, QUOTA);
	if (quota || !json_object_size(root))
		json_object_set_new(root, QUOTA,
				    json_integer((json_int_t)quota));
}

int ucm_manifest_with_quota(const char *text, uint64_t quota, char **out)
{
	json_t *root = text ? json_loads(text, JSON_REJECT_DUPLICATES, NULL)
			    : json_object();
	char *dump = NULL;
	int err = 0;

	if (!json_is_object(root)) {
		json_decref(root);
		return text ? -EINVAL : -ENOMEM;
	}
	put_quota(root, quota);
	dump = json_dumps(root, JSON_INDENT(2));
	json_decref(root);
	if (!dump)
		err = -ENOMEM;
	else if (strlen(dump) >= UCM_MANIFEST_MAX)
		err = -EFBIG;
	if (err)
		free(dump);
	else
		*out = dump;
	return err;
}

/* ---- all of it ---- */

static int identify(const json_t *root, uint8_t out[32])
{
	char *text = json_dumps(root, JSON_SORT_KEYS | JSON_COMPACT);
	int err;

	if (!text)
		return -ENOMEM;
	lower_escapes(text);
	err = ucm_sha256(text, strlen(text), out);
	free(text);
	return err;
}

int ucm_manifest_parse(const char *text, size_t len, struct ucm_manifest *out,
		       struct ucm_error *error)
{
	struct ucm_manifest manifest;
	json_error_t where;
	json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &where);
	int err;

	if (!json_is_object(root)) {
		err = ucm_error_set(error, -EINVAL, "space.json:%d: %s",
				    root ? 1 : where.line,
				    root ? "not a map" : where.text);
		json_decref(root);
		return err;
	}
	err = take_quota(root, &manifest, error);
	if (!err)
		err = get_geometry(root, &manifest.geometry, error);
	if (!err && has_real(root))
		err = ucm_error_set(
			error, -EINVAL,
			"space.json: a number with a fraction has no "
			"canonical form: make it a string");
	if (!err)
		err = identify(root, manifest.space_id);
	json_decref(root);
	if (!err)
		*out = manifest;
	return err;
}
