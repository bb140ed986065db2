/* SPDX-License-Identifier: Apache-2.0 */
/*
 * method_json.c - a method's configuration as a dictionary of UCM's.
 *
 * Each value becomes the text that ucm_sparse_set() takes, so that there is one
 * place where values are judged.
 */
#include <config.h>

#include "sparse/method.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "common/error.h"
#include "common/parse.h"

#define VALUE_BYTES 2048u

static int not_fit(const char *key, struct ucm_error *error)
{
	return ucm_error_set(error, -EINVAL, "%.64s: neither a word nor a "
			     "number, nor a list that is known", key);
}

/* A scalar's text, after len bytes of out; the new length, or 0. */
static size_t add_scalar(char *out, size_t len, const json_t *value)
{
	size_t room = VALUE_BYTES - len;
	int num = -1;

	if (json_is_string(value))
		num = snprintf(out + len, room, "%s", json_string_value(value));
	else if (json_is_integer(value))
		num = snprintf(out + len, room, "%" JSON_INTEGER_FORMAT,
			       json_integer_value(value));
	else if (json_is_real(value))
		num = snprintf(out + len, room, "%.17g",
			       json_real_value(value));
	else if (json_is_boolean(value))
		num = snprintf(out + len, room, "%s",
			       json_is_true(value) ? "true" : "false");
	return num < 0 || (size_t)num >= room ? 0 : len + (size_t)num;
}

/* [0, 1, 5] */
static int list_text(const char *key, const json_t *list, char *out,
		     struct ucm_error *error)
{
	const json_t *item;
	size_t i, len = 0;

	out[0] = '\0';
	json_array_foreach(list, i, item) {
		if (i && len + 1 < VALUE_BYTES)
			out[len++] = '+';
		len = json_is_integer(item) ? add_scalar(out, len, item) : 0;
		if (!len)
			return not_fit(key, error);
	}
	return 0;
}

/* The number in "model.layers.15.self_attn", or "15"; -1: none */
static int layer_of(const char *name)
{
	const char *at = strstr(name, "layers.");
	char digits[8];
	uint64_t layer;
	size_t num;

	at = at ? at + strlen("layers.") : name;
	num = strspn(at, "0123456789");
	if (!num || num >= sizeof(digits) || (at[num] && at[num] != '.'))
		return -1;
	snprintf(digits, sizeof(digits), "%.*s", (int)num, at);
	return ucm_parse_range(digits, 0, UCM_LAYERS_MAX - 1, &layer)
		       ? -1
		       : (int)layer;
}

/* {"model.layers.0.self_attn": {"ratio": 0.1}}, in any order */
static int compute_text(const char *key, json_t *dictionary, char *out,
			struct ucm_error *error)
{
	json_t *of_layer[UCM_LAYERS_MAX] = { NULL }, *value;
	const char *name;
	size_t len = 0;

	json_object_foreach(dictionary, name, value) {
		int layer = layer_of(name);

		if (layer < 0 || of_layer[layer] || !json_is_object(value))
			return ucm_error_set(error, -EINVAL, "%.64s: '%.64s': "
					     "not a layer, or again", key,
					     name);
		of_layer[layer] = value;
	}
	out[0] = '\0';
	for (unsigned i = 0; i < UCM_LAYERS_MAX; i++) {
		json_t *ratio = json_object_get(of_layer[i], "ratio");
		int num;

		if (!of_layer[i])
			continue;
		num = snprintf(out + len, VALUE_BYTES - len, "%s%u%s",
			       len ? "+" : "", i, ratio ? ":" : "");
		if (num < 0 || (size_t)num >= VALUE_BYTES - len)
			return not_fit(key, error);
		len += (size_t)num;
		if (ratio && (!json_is_number(ratio) ||
			      !(len = add_scalar(out, len, ratio))))
			return not_fit(key, error);
	}
	return 0;
}

static int value_text(const char *key, json_t *value, char *out,
		      struct ucm_error *error)
{
	if (json_is_array(value))
		return list_text(key, value, out, error);
	if (json_is_object(value))
		return compute_text(key, value, out, error);
	out[0] = '\0';
	if (json_is_string(value) && !json_string_length(value))
		return 0;
	return add_scalar(out, 0, value) ? 0 : not_fit(key, error);
}

static int set_all(struct ucm_sparse_config *config, json_t *values,
		   struct ucm_error *error)
{
	char text[VALUE_BYTES];
	const char *key;
	json_t *value;

	json_object_foreach(values, key, value) {
		int err = value_text(key, value, text, error)
			?: ucm_sparse_set(config, key, text, error);

		if (err)
			return err;
	}
	return 0;
}

/* ---- which method ---- */

/* The name that a dictionary gives under one of two keys. */
static const char *name_in(json_t *dictionary)
{
	json_t *name = json_object_get(dictionary, "ucm_sparse_method");

	if (!name)
		name = json_object_get(dictionary, "sparse_type");
	return json_string_value(name);
}

static bool is_name_key(const char *key)
{
	return !strcmp(key, "ucm_sparse_method") || !strcmp(key, "sparse_type");
}

/* Every key is a method or gives its name; *name_inout is the only one's, if
 * none was given. */
static int methods_check(json_t *dictionary, const char **name_inout,
			 struct ucm_error *error)
{
	const struct ucm_sparse_method *method;
	const char *key, *only = NULL;
	json_t *value;
	size_t num = 0;

	json_object_foreach(dictionary, key, value) {
		int err;

		if (is_name_key(key)) {
			if (json_is_string(value))
				continue;
			return ucm_error_set(error, -EINVAL,
					     "%s: not a string", key);
		}
		err = ucm_method_find(key, &method, error);
		if (err)
			return err;
		if (!json_is_object(value))
			return ucm_error_set(error, -EINVAL,
					     "%s: not a dictionary", key);
		only = key;
		num++;
	}
	if (!*name_inout && num != 1)
		return ucm_error_set(error, -EINVAL, "sparse_type: not given, "
				     "and there are %zu methods", num);
	if (!*name_inout)
		*name_inout = only;
	return 0;
}

/* The dictionary of the method's keys: under its name, or its alias. */
static json_t *values_of(json_t *dictionary,
			 const struct ucm_sparse_method *method)
{
	json_t *values = json_object_get(dictionary, method->name);

	return values ? values : json_object_get(dictionary, method->alias);
}

static int parse_root(json_t *root, uint32_t block_size, uint32_t num_layers,
		      struct ucm_sparse_config *out, struct ucm_error *error)
{
	const struct ucm_sparse_method *method;
	json_t *inner = json_object_get(root, "ucm_sparse_config");
	json_t *dictionary = inner ? inner : root;
	const char *name = name_in(root);
	int err;

	/* beside ucm_sparse_config there is what others are configured by */
	if (!json_is_object(dictionary))
		return ucm_error_set(error, -EINVAL,
				     "ucm_sparse_config: not a dictionary");
	if (!name)
		name = name_in(dictionary);
	err = methods_check(dictionary, &name, error)
		?: ucm_method_find(name, &method, error)
		?: ucm_sparse_defaults(method, block_size, num_layers, out,
				       error);
	return err ? err : set_all(out, values_of(dictionary, method), error);
}

int ucm_method_parse_json(const char *text, size_t len, uint32_t block_size,
			  uint32_t num_layers, struct ucm_sparse_config *out,
			  struct ucm_error *error)
{
	json_error_t why;
	json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);
	int err;

	if (!root)
		return ucm_error_set(error, -EINVAL, "line %d: %s", why.line,
				     why.text);
	err = parse_root(root, block_size, num_layers, out, error);
	json_decref(root);
	return err;
}
