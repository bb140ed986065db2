/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config_yaml.c - the configuration file.
 *
 * libyaml builds the document; this walks it. Every error names the file
 * and the line.
 */
#include <config.h>

#include "fs/config/config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include <yaml.h>

#include "common/error.h"
#include "common/parse.h"
#include "fs/config/presets.h"

typedef int (*setter)(void *arg, const char *key, const char *value,
		      struct ucm_error *error);

struct reader {
	struct ucm_config *tiers; /* that get those of the file */
	const char *path;
	yaml_document_t document;
	struct ucm_preset preset;
	setter set;
	void *arg;
	struct ucm_error *error;
};

static yaml_node_t *node_at(struct reader *reader, int number)
{
	return yaml_document_get_node(&reader->document, number);
}

static const char *scalar(const yaml_node_t *node)
{
	return node->type == YAML_SCALAR_NODE
		       ? (const char *)node->data.scalar.value
		       : NULL;
}

static int complain_at(struct reader *reader, const yaml_node_t *node,
		       const char *what)
{
	char text[sizeof(reader->error->text)];

	snprintf(text, sizeof(text), "%s", what);
	return ucm_error_set(reader->error, -EINVAL, "%s:%zu: %s", reader->path,
			     node->start_mark.line + 1, text);
}

/* Puts file and line in front of what a setter complained of. */
static int check_set(struct reader *reader, const yaml_node_t *node, int err)
{
	if (!err || err == -ENOMEM)
		return err;
	complain_at(reader, node, reader->error->text);
	return err;
}

/* What a map of a directory says under a key; NULL if it has none. */
static yaml_node_t *value_of(struct reader *reader, yaml_node_t *map,
			     const char *key)
{
	for (yaml_node_pair_t *pair = map->data.mapping.pairs.start;
	     pair < map->data.mapping.pairs.top; pair++) {
		const char *name = scalar(node_at(reader, pair->key));

		if (name && !strcmp(name, key))
			return node_at(reader, pair->value);
	}
	return NULL;
}

static int check_directory_keys(struct reader *reader, yaml_node_t *map)
{
	for (yaml_node_pair_t *pair = map->data.mapping.pairs.start;
	     pair < map->data.mapping.pairs.top; pair++) {
		yaml_node_t *key = node_at(reader, pair->key);

		if (!scalar(key) || (strcmp(scalar(key), "path") != 0 &&
				     strcmp(scalar(key), "limit") != 0))
			return complain_at(reader, key,
					   "a directory has the keys path and "
					   "limit");
	}
	return 0;
}

/* Its path, or a map of path and limit. */
static int read_directory(struct reader *reader, struct ucm_tier_config *tier,
			  yaml_node_t *node)
{
	bool is_map = node->type == YAML_MAPPING_NODE;
	yaml_node_t *path = is_map ? value_of(reader, node, "path") : node;
	yaml_node_t *limit = is_map ? value_of(reader, node, "limit") : NULL;
	int err = is_map ? check_directory_keys(reader, node) : 0;

	if (!err && (!path || !scalar(path)))
		err = complain_at(reader, path ? path : node,
				  "a directory is not a path");
	if (!err)
		err = check_set(reader, path,
				ucm_config_set_tier(tier, "directories",
						    scalar(path),
						    reader->error));
	if (!err && limit && !scalar(limit))
		err = complain_at(reader, limit, "not a single value");
	if (!err && limit)
		err = check_set(reader, limit,
				ucm_config_limit_dir(tier, scalar(limit),
						     reader->error));
	return err;
}

static int read_directories(struct reader *reader, struct ucm_tier_config *tier,
			    yaml_node_t *node)
{
	int err = 0;

	if (node->type != YAML_SEQUENCE_NODE)
		return complain_at(reader, node, "directories is not a list");
	for (yaml_node_item_t *item = node->data.sequence.items.start;
	     !err && item < node->data.sequence.items.top; item++)
		err = read_directory(reader, tier, node_at(reader, *item));
	return err;
}

static int read_tier_field(struct reader *reader, struct ucm_tier_config *tier,
			   yaml_node_pair_t *pair)
{
	yaml_node_t *key = node_at(reader, pair->key);
	yaml_node_t *value = node_at(reader, pair->value);

	if (!scalar(key))
		return complain_at(reader, key, "a key is not a word");
	if (!strcmp(scalar(key), "directories"))
		return read_directories(reader, tier, value);
	if (!scalar(value))
		return complain_at(reader, value, "not a single value");
	return check_set(reader, value,
			 ucm_config_set_tier(tier, scalar(key), scalar(value),
					     reader->error));
}

static int read_tier(struct reader *reader, yaml_node_t *node)
{
	struct ucm_tier_config *tier;
	int err;

	if (node->type != YAML_MAPPING_NODE)
		return complain_at(reader, node, "a tier is not a map");
	err = ucm_config_add_tier(reader->tiers, &tier);
	for (yaml_node_pair_t *pair = node->data.mapping.pairs.start;
	     !err && pair < node->data.mapping.pairs.top; pair++)
		err = read_tier_field(reader, tier, pair);
	return err;
}

static int read_tiers(struct reader *reader, yaml_node_t *node)
{
	int err = 0;

	if (node->type != YAML_SEQUENCE_NODE)
		return complain_at(reader, node, "tiers is not a list");
	for (yaml_node_item_t *item = node->data.sequence.items.start;
	     !err && item < node->data.sequence.items.top; item++)
		err = read_tier(reader, node_at(reader, *item));
	return err;
}

/* {type: cache, size_gb: 8}, or {type: posix, path: /a}: a tier. */
static int read_listed_stage(struct reader *reader, yaml_node_t *map)
{
	yaml_node_t *type = value_of(reader, map, "type");
	bool is_cache = type && scalar(type) && !strcasecmp(scalar(type), "cache");
	const char *key = is_cache ? "size_gb" : "path";
	yaml_node_t *value = value_of(reader, map, key);
	struct ucm_tier_config *tier;
	char memory[32];
	uint64_t gib;
	int err;

	if (!type || !scalar(type) || !ucm_preset_is_stage(scalar(type)) ||
	    !value || !scalar(value) ||
	    map->data.mapping.pairs.top - map->data.mapping.pairs.start != 2)
		return complain_at(reader, map,
				   "a stage is {type: cache, size_gb: N}, or "
				   "{type: posix, path: DIR}");
	if (is_cache && ucm_parse_range(scalar(value), 1, 1 << 20, &gib))
		return complain_at(reader, value,
				   "size_gb is a number from 1 to 1048576");
	snprintf(memory, sizeof(memory), "mem@%sG", scalar(value));
	err = ucm_config_add_tier(reader->tiers, &tier);
	if (err)
		return err;
	return check_set(reader, value,
			 ucm_config_set_tier(tier, "directories",
					     is_cache ? memory : scalar(value),
					     reader->error));
}

/* Maps, fast to slow, each a tier; or names, as [Cache, Posix]. */
static int read_stages(struct reader *reader, yaml_node_t *list)
{
	char names[128] = "";
	int err = 0;

	if (reader->tiers->num_tiers)
		return complain_at(reader, list,
				   "tiers and a list of stages: give one of "
				   "them");
	if (list->data.sequence.items.start == list->data.sequence.items.top)
		return complain_at(reader, list, "a stage is missing");
	for (yaml_node_item_t *item = list->data.sequence.items.start;
	     !err && item < list->data.sequence.items.top; item++) {
		yaml_node_t *stage = node_at(reader, *item);
		size_t len = strlen(names);

		if (stage->type == YAML_MAPPING_NODE)
			err = read_listed_stage(reader, stage);
		else if (scalar(stage))
			snprintf(names + len, sizeof(names) - len, "%s%s",
				 len ? "|" : "", scalar(stage));
		else
			err = complain_at(reader, stage,
					  "a stage is a map or a name");
	}
	if (err || !*names)
		return err;
	return check_set(reader, list,
			 ucm_preset_set(&reader->preset, NULL, "pipeline",
					names, reader->error));
}

/* Paths and stages may be a list. */
static int read_preset_key(struct reader *reader, const char *stage,
			   yaml_node_t *key, yaml_node_t *value)
{
	int err = 0;

	if (value->type == YAML_SEQUENCE_NODE && !stage &&
	    strstr(scalar(key), "pipeline"))
		return read_stages(reader, value);
	if (value->type == YAML_SEQUENCE_NODE &&
	    !strcmp(scalar(key), "storage_backends")) {
		for (yaml_node_item_t *item = value->data.sequence.items.start;
		     !err && item < value->data.sequence.items.top; item++) {
			yaml_node_t *path = node_at(reader, *item);

			if (!scalar(path))
				return complain_at(reader, path,
						   "a directory is not a path");
			err = check_set(reader, path,
					ucm_preset_add_path(&reader->preset,
							    scalar(path),
							    reader->error));
		}
		return err;
	}
	if (!scalar(value))
		return complain_at(reader, value, "not a single value");
	return check_set(reader, key,
			 ucm_preset_set(&reader->preset, stage, scalar(key),
					scalar(value), reader->error));
}

static int read_stage(struct reader *reader, const char *stage,
		      yaml_node_t *map)
{
	int err = 0;

	if (map->type != YAML_MAPPING_NODE)
		return complain_at(reader, map, "a stage is not a map");
	for (yaml_node_pair_t *pair = map->data.mapping.pairs.start;
	     !err && pair < map->data.mapping.pairs.top; pair++) {
		yaml_node_t *key = node_at(reader, pair->key);

		if (!scalar(key))
			return complain_at(reader, key, "a key is not a word");
		err = read_preset_key(reader, stage, key,
				      node_at(reader, pair->value));
	}
	return err;
}

/* Those that UCM's configurations have. */
static bool is_preset(const char *key)
{
	return ucm_preset_is_key(key) || ucm_preset_is_stage(key);
}

/* Together they are tiers, and are read as these are: before the settings. */
static int read_preset(struct reader *reader, yaml_node_t *root)
{
	int err = 0;

	for (yaml_node_pair_t *pair = root->data.mapping.pairs.start;
	     !err && pair < root->data.mapping.pairs.top; pair++) {
		yaml_node_t *key = node_at(reader, pair->key);
		yaml_node_t *value = node_at(reader, pair->value);

		if (scalar(key) && ucm_preset_is_key(scalar(key)))
			err = read_preset_key(reader, NULL, key, value);
		else if (scalar(key) && ucm_preset_is_stage(scalar(key)))
			err = read_stage(reader, scalar(key), value);
	}
	if (err)
		return err;
	return check_set(reader, root,
			 ucm_preset_apply(&reader->preset, reader->tiers,
					  reader->error));
}

static int read_setting(struct reader *reader, yaml_node_pair_t *pair)
{
	yaml_node_t *key = node_at(reader, pair->key);
	yaml_node_t *value = node_at(reader, pair->value);
	int err;

	if (!scalar(key))
		return complain_at(reader, key, "a key is not a word");
	if (!strcmp(scalar(key), "tiers") || is_preset(scalar(key)))
		return 0; /* read before all others, which may name tiers */
	if (!scalar(value))
		return complain_at(reader, value, "not a single value");
	err = !reader->set ? 0
			   : reader->set(reader->arg, scalar(key),
					 scalar(value), reader->error);
	if (err == -ENOENT) {
		err = ucm_error_set(reader->error, -EINVAL,
				    "unknown key '%.100s'", scalar(key));
	}
	return check_set(reader, value, err);
}

static int read_root(struct reader *reader)
{
	yaml_node_t *root = yaml_document_get_root_node(&reader->document);
	int err = 0;

	if (!root)
		return 0; /* an empty file says nothing, which is allowed */
	if (root->type != YAML_MAPPING_NODE)
		return complain_at(reader, root, "not a map of settings");
	for (yaml_node_pair_t *pair = root->data.mapping.pairs.start;
	     !err && pair < root->data.mapping.pairs.top; pair++) {
		const char *key = scalar(node_at(reader, pair->key));

		if (key && !strcmp(key, "tiers"))
			err = read_tiers(reader, node_at(reader, pair->value));
	}
	if (!err)
		err = read_preset(reader, root);
	for (yaml_node_pair_t *pair = root->data.mapping.pairs.start;
	     !err && pair < root->data.mapping.pairs.top; pair++)
		err = read_setting(reader, pair);
	return err;
}

static int load(struct reader *reader, FILE *file)
{
	yaml_parser_t parser;
	int err = 0;

	if (!yaml_parser_initialize(&parser))
		return -ENOMEM;
	yaml_parser_set_input_file(&parser, file);
	if (!yaml_parser_load(&parser, &reader->document)) {
		err = ucm_error_set(reader->error, -EINVAL, "%s:%zu: %s",
				    reader->path, parser.problem_mark.line + 1,
				    parser.problem ? parser.problem
						   : "not YAML");
	}
	yaml_parser_delete(&parser);
	return err;
}

int ucm_config_read(struct ucm_config *config, const char *path,
		    int (*set)(void *arg, const char *key, const char *value,
			       struct ucm_error *error),
		    void *arg, struct ucm_error *error)
{
	struct ucm_config replaced;
	struct reader reader = {
		.tiers = config->num_tiers ? &replaced : config,
		.path = path,
		.set = set,
		.arg = arg,
		.error = error,
	};
	FILE *file = fopen(path, "re");
	int err;

	if (!file) {
		err = -errno;
		return ucm_error_set(error, err, "%s: %m", path);
	}
	err = load(&reader, file);
	fclose(file);
	if (err)
		return err;
	ucm_config_init(&replaced);
	ucm_preset_init(&reader.preset);
	err = read_root(&reader);
	ucm_preset_fini(&reader.preset);
	/* what storage_policy says of tiers that were named before */
	if (replaced.placement != UCM_PLACEMENT_RENDEZVOUS &&
	    config->placement == UCM_PLACEMENT_RENDEZVOUS)
		config->placement = replaced.placement;
	ucm_config_fini(&replaced);
	yaml_document_delete(&reader.document);
	return err;
}
