/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.c - the files under .ucmfs/.
 *
 * Each is made anew when it is opened, so that a reader sees one moment. What
 * is written to one is taken by each write(2) for itself. The index is the
 * opposite: whoever maps it sees every change at once.
 */
#include <config.h>

#include "fs/mount/daemon.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "common/log.h"
#include "fs/index/memory.h"

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

static json_t *directory_json(const struct ucm_store *set, unsigned dir)
{
	const struct ucm_backing *backing = set->dirs[dir];
	json_t *json = json_object();

	json_object_set_new(json, "path", text_json(backing->path));
	json_object_set_new(json, "network", json_boolean(backing->remote));
	json_object_set_new(
		json, "state",
		json_string(ucm_dir_states[ucm_backing_state(backing)]));
	put_number(json, "in_doubt", atomic_load(&set->keepers[dir].doubts));
	return json;
}

static json_t *tier_counters_json(const struct ucm_tier_stats *stats)
{
	json_t *json = json_object();

#define PUT(name, help) put_number(json, #name, ucm_counted(&stats->name));
	UCM_TIER_STATS(PUT)
#undef PUT
	return json;
}

static json_t *tier_json(const struct ucm_store *set,
			 const struct ucm_tier *tier)
{
	json_t *json = json_object(), *dirs = json_array();
	uint64_t total, available;

	ucm_tier_space(tier, &total, &available);
	json_object_set_new(json, "name", json_string(tier->name));
	json_object_set_new(json, "readonly", json_boolean(tier->readonly));
	put_number(json, "total_bytes", total);
	put_number(json, "free_bytes", available);
	put_number(json, "used_bytes", ucm_tier_used(tier));
	put_number(json, "files_bytes", ucm_tier_files(tier));
	put_number(json, "writing_bytes", atomic_load(&tier->writing));
	for (unsigned i = 0; i < tier->num_dirs; i++)
		json_array_append_new(dirs,
				      directory_json(set, tier->first + i));
	json_object_set_new(json, "directories", dirs);
	json_object_set_new(json, "counters", tier_counters_json(&tier->stats));
	return json;
}

static json_t *tiers_json(const struct ucm_store *set)
{
	json_t *json = json_array();

	for (unsigned i = 0; i < set->num_tiers; i++)
		json_array_append_new(json, tier_json(set, &set->tiers[i]));
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

static json_t *spaces_json(struct ucm_store *set)
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

#define PUT(name, help) put_number(json, #name, ucm_counted(&stats->name));
	UCM_STATS(PUT)
#undef PUT
	return json;
}

/* Those that there are. */
static json_t *causes_json(const _Atomic uint64_t *counters)
{
	json_t *json = json_object();

	for (unsigned i = 0; i < UCM_FAULT_COUNT; i++) {
		uint64_t num = ucm_counted(&counters[i]);

		if (num)
			put_number(json, ucm_cause_names[i], num);
	}
	return json;
}

static json_t *operations_json(const struct ucm_opstats *ops)
{
	json_t *json = json_object();

	for (unsigned op = 0; op < UCM_OP_COUNT; op++) {
		json_t *one = json_object();
		struct ucm_op_times times;

		ucm_opstats_times(ops, op, &times);
		put_number(one, "count", times.count);
		put_number(one, "total_ns", times.sum_ns);
		json_object_set_new(json, ucm_op_names[op], one);
	}
	return json;
}

static json_t *transport_json(const struct ucm_daemon *daemon)
{
	json_t *json = json_object();

	json_object_set_new(json, "passthrough",
			    json_boolean(atomic_load(&daemon->passthrough)));
	if (daemon->passthrough_why)
		json_object_set_new(json, "passthrough_why",
				    json_string(daemon->passthrough_why));
	json_object_set_new(json, "io_uring", json_boolean(daemon->uring));
	if (daemon->uring_why)
		json_object_set_new(json, "io_uring_why",
				    json_string(daemon->uring_why));
	return json;
}

static json_t *index_json(struct ucm_store *set)
{
	json_t *json = json_object();

	put_number(json, "blocks", atomic_load(&set->blocks));
	put_number(json, "in_doubt", atomic_load(&set->doubts));
	put_number(json, "memory_bytes", ucm_index_memory(set->index));
	json_object_set_new(json, "complete",
			    json_boolean(atomic_load(&set->scanned)));
	return json;
}

static char *stats_text(struct ucm_daemon *daemon, size_t *len)
{
	json_t *json = json_object();
	struct timespec now;
	char *dump, *text;

	clock_gettime(CLOCK_REALTIME, &now);
	json_object_set_new(json, "version", json_string(PACKAGE_VERSION));
	put_number(json, "uptime_s",
		   (uint64_t)(now.tv_sec - daemon->started.tv_sec));
	json_object_set_new(json, "transport", transport_json(daemon));
	json_object_set_new(json, "index", index_json(daemon->set));
	json_object_set_new(json, "counters",
			    counters_json(&daemon->set->stats));
	json_object_set_new(json, "commit_refused_for",
			    causes_json(daemon->set->stats.refused_for));
	json_object_set_new(json, "quarantined_for",
			    causes_json(daemon->set->stats.quarantined_for));
	json_object_set_new(json, "operations", operations_json(daemon->ops));
	json_object_set_new(json, "tiers", tiers_json(daemon->set));
	json_object_set_new(json, "spaces", spaces_json(daemon->set));
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

static char *config_text(struct ucm_daemon *daemon, size_t *len)
{
	char *text = NULL;
	FILE *out = open_memstream(&text, len);

	if (!out)
		return NULL;
	ucm_options_print(daemon->options, out);
	if (fclose(out)) {
		free(text);
		return NULL;
	}
	return text;
}

/* ---- debug: what is debugged, and how deep ---- */

static char *debug_text(struct ucm_daemon *daemon, size_t *len)
{
	char *text = ucm_log_areas_text();

	(void)daemon;
	if (text)
		*len = strlen(text);
	return text;
}

static int write_debug(struct ucm_daemon *daemon, const char *text)
{
	struct ucm_error error;
	int err = ucm_log_areas_set(text, &error);

	(void)daemon;
	if (err)
		ucm_warning(".ucmfs/debug: %s", error.text);
	return err;
}

/* ---- control: for calls, not for reading ---- */

static char *control_text(struct ucm_daemon *daemon, size_t *len_out)
{
	char *text = strdup("for ioctl(2); see ucm-control(7)\n");

	(void)daemon;
	*len_out = text ? strlen(text) : 0;
	return text;
}

/* ---- the files ---- */

static const struct {
	const char *name;
	mode_t mode;
	bool daemons; /* its owner is the daemon's user, not that of blocks/ */
	char *(*text)(struct ucm_daemon *daemon,
		      size_t *len_out); /* NULL: index */
	int (*write)(struct ucm_daemon *daemon, const char *text);
} files[] = {
	/* these two tell paths and tenants' names */
	{ "stats.json", 0400, false, stats_text, NULL },
	{ "config.yaml", 0400, false, config_text, NULL },
	{ "metrics", 0444, false, ucm_metrics_text, NULL },
	{ "debug", 0600, true, debug_text, write_debug },
	{ "index", 0444, false, NULL, NULL },
	{ "control", 0444, false, control_text, NULL },
};
#define NUM_FILES (sizeof(files) / sizeof(files[0]))

fuse_ino_t ucm_control_find(const char *name)
{
	for (unsigned i = 0; i < NUM_FILES; i++) {
		if (!strcmp(name, files[i].name))
			return UCM_FIXED_FILES + i;
	}
	return 0;
}

const char *ucm_control_name(unsigned number)
{
	return number < NUM_FILES ? files[number].name : NULL;
}

bool ucm_control_is_index(fuse_ino_t ino)
{
	return ino - UCM_FIXED_FILES < NUM_FILES &&
	       !files[ino - UCM_FIXED_FILES].text;
}

char *ucm_control_text(struct ucm_daemon *daemon, fuse_ino_t ino,
		       size_t *len_out)
{
	return ino - UCM_FIXED_FILES < NUM_FILES && !ucm_control_is_index(ino)
		       ? files[ino - UCM_FIXED_FILES].text(daemon, len_out)
		       : NULL;
}

static int get_size(struct ucm_daemon *daemon, fuse_ino_t ino, size_t *out)
{
	char *text;

	if (ucm_control_is_index(ino)) {
		*out = ucm_index_memory_size(
			ucm_index_live(daemon->set->index));
		return 0;
	}
	text = ucm_control_text(daemon, ino, out);
	free(text);
	return text ? 0 : -ENOENT;
}

int ucm_control_attr(struct ucm_daemon *daemon, fuse_ino_t ino,
		     struct stat *out)
{
	unsigned number = (unsigned)(ino - UCM_FIXED_FILES);
	size_t len;
	int err = get_size(daemon, ino, &len);

	if (err)
		return err;
	ucm_attr_dir(daemon, ino, out);
	out->st_mode = S_IFREG | files[number].mode;
	if (files[number].daemons) {
		out->st_uid = geteuid();
		out->st_gid = getegid();
	}
	out->st_nlink = 1;
	out->st_size = (off_t)len;
	clock_gettime(CLOCK_REALTIME, &out->st_mtim);
	out->st_atim = out->st_ctim = out->st_mtim;
	return 0;
}

bool ucm_control_is_writable(fuse_ino_t ino)
{
	return ino - UCM_FIXED_FILES < NUM_FILES &&
	       files[ino - UCM_FIXED_FILES].write;
}

int ucm_control_write(struct ucm_daemon *daemon, unsigned number,
		      const char *text)
{
	return files[number].write(daemon, text);
}
