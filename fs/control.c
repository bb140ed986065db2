/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.c - the files under .ucmfs/: stats.json and config.yaml.
 *
 * Each is made anew when it is opened, so that a reader sees one moment.
 */
#include <config.h>

#include "fs/face.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <jansson.h>

static const char *const names[] = { "stats.json", "config.yaml" };
#define NUM_NAMES (sizeof(names) / sizeof(names[0]))

fuse_ino_t ucm_control_find(const char *name)
{
	for (unsigned i = 0; i < NUM_NAMES; i++) {
		if (!strcmp(name, names[i]))
			return UCM_FIXED_FILES + i;
	}
	return 0;
}

const char *ucm_control_name(unsigned number)
{
	return number < NUM_NAMES ? names[number] : NULL;
}

static void put_number(json_t *object, const char *key, uint64_t value)
{
	json_object_set_new(object, key, json_integer((json_int_t)value));
}

/* Names are bytes, JSON is UTF-8: in others, what is not ASCII becomes '?'. */
static json_t *text_json(const char *text)
{
	json_t *json = json_string(text);
	char *copy = json ? NULL : strdup(text);

	for (char *c = copy; c && *c; c++) {
		if (*c & 0x80)
			*c = '?';
	}
	if (copy)
		json = json_string(copy);
	free(copy);
	return json;
}

static json_t *directory_json(const struct ucm_backing *backing)
{
	json_t *json = json_object();

	json_object_set_new(json, "path", text_json(backing->path));
	json_object_set_new(json, "network", json_boolean(backing->remote));
	return json;
}

static json_t *tier_json(const struct ucm_tier *tier)
{
	json_t *json = json_object(), *dirs = json_array();
	uint64_t total, available;

	ucm_tier_space(tier, &total, &available);
	json_object_set_new(json, "name", json_string(tier->name));
	json_object_set_new(json, "readonly", json_boolean(tier->readonly));
	put_number(json, "total_bytes", total);
	put_number(json, "free_bytes", available);
	put_number(json, "used_bytes", atomic_load(&tier->used));
	put_number(json, "writing_bytes", atomic_load(&tier->writing));
	for (unsigned i = 0; i < tier->num_dirs; i++)
		json_array_append_new(dirs, directory_json(&tier->dirs[i]));
	json_object_set_new(json, "directories", dirs);
	return json;
}

static json_t *tiers_json(const struct ucm_tierset *set)
{
	json_t *json = json_array();

	for (unsigned i = 0; i < set->num_tiers; i++)
		json_array_append_new(json, tier_json(&set->tiers[i]));
	return json;
}

static json_t *space_json(struct ucm_space *space)
{
	json_t *json = json_object();
	char geometry[160];

	json_object_set_new(json, "name",
			    text_json(*space->name ? space->name : "blocks"));
	put_number(json, "blocks", atomic_load(&space->blocks));
	if (ucm_space_has_geometry(space)) {
		pthread_mutex_lock(&space->lock);
		ucm_geometry_text(&space->geometry, geometry,
				  sizeof(geometry));
		pthread_mutex_unlock(&space->lock);
		json_object_set_new(json, "geometry", json_string(geometry));
	}
	return json;
}

static json_t *spaces_json(struct ucm_tierset *set)
{
	json_t *json = json_array();

	for (unsigned i = 0; i < set->names.num; i++) {
		struct ucm_space *space = ucm_namespace_get(&set->names, i);

		if (space)
			json_array_append_new(json, space_json(space));
	}
	return json;
}

static json_t *counters_json(const struct ucm_stats *stats)
{
	json_t *json = json_object();

#define PUT(name, help) put_number(json, #name, atomic_load(&stats->name));
	UCM_STATS(PUT)
#undef PUT
	return json;
}

static json_t *transport_json(const struct ucm_face *face)
{
	json_t *json = json_object();

	json_object_set_new(json, "passthrough",
			    json_boolean(atomic_load(&face->passthrough)));
	if (face->passthrough_why)
		json_object_set_new(json, "passthrough_why",
				    json_string(face->passthrough_why));
	json_object_set_new(json, "io_uring", json_boolean(face->uring));
	if (face->uring_why)
		json_object_set_new(json, "io_uring_why",
				    json_string(face->uring_why));
	return json;
}

static json_t *index_json(struct ucm_tierset *set)
{
	json_t *json = json_object();

	put_number(json, "blocks", atomic_load(&set->blocks));
	put_number(json, "in_doubt", atomic_load(&set->doubts));
	put_number(json, "memory_bytes", ucm_index_memory(set->index));
	json_object_set_new(json, "complete",
			    json_boolean(atomic_load(&set->scanned)));
	return json;
}

static char *stats_text(struct ucm_face *face, size_t *len)
{
	json_t *json = json_object();
	struct timespec now;
	char *dump, *text;

	clock_gettime(CLOCK_REALTIME, &now);
	json_object_set_new(json, "version", json_string(PACKAGE_VERSION));
	put_number(json, "uptime_s",
		   (uint64_t)(now.tv_sec - face->started.tv_sec));
	json_object_set_new(json, "transport", transport_json(face));
	json_object_set_new(json, "index", index_json(face->set));
	json_object_set_new(json, "counters", counters_json(&face->set->stats));
	json_object_set_new(json, "tiers", tiers_json(face->set));
	json_object_set_new(json, "spaces", spaces_json(face->set));
	dump = json_dumps(json, JSON_INDENT(2));
	json_decref(json);
	if (!dump)
		return NULL;
	*len = strlen(dump) + 1;
	text = realloc(dump, *len + 1);
	if (!text) {
		free(dump);
		return NULL;
	}
	memcpy(text + *len - 1, "\n", 2);
	return text;
}

static char *config_text(struct ucm_face *face, size_t *len)
{
	char *text = NULL;
	FILE *out = open_memstream(&text, len);

	if (!out)
		return NULL;
	ucm_options_print(face->options, out);
	if (fclose(out)) {
		free(text);
		return NULL;
	}
	return text;
}

char *ucm_control_text(struct ucm_face *face, fuse_ino_t ino, size_t *len_out)
{
	switch (ino - UCM_FIXED_FILES) {
	case 0: return stats_text(face, len_out);
	case 1: return config_text(face, len_out);
	default: return NULL;
	}
}
