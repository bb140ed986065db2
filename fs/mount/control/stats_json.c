/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stats_json.c - .ucmfs/stats.json: what is counted, as one JSON object.
 */
#include <config.h>

#include "fs/mount/node/kinds.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <jansson.h>

#include "fs/medium/shared/hosts.h"
#include "fs/store/endurance.h"
#include "fs/store/jobs.h"
#include "fs/store/pressure.h"
#include "fs/store/quota.h"

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

static json_t *directory_json(struct ucm_store *store, unsigned dir)
{
	struct ucm_medium *medium = store->dirs.at[dir];
	uint64_t limit = ucm_medium_limit_bytes(medium), total, available;
	const char *unknown = ucm_store_unknown(store, dir);
	json_t *json = json_object();

	json_object_set_new(json, "path", text_json(medium->path));
	json_object_set_new(json, "network", json_boolean(medium->remote));
	json_object_set_new(json, "kind",
			    json_string(ucm_fskind_names[medium->kind]));
	json_object_set_new(
		json, "volatile",
		json_boolean(medium->flags & UCM_MEDIUM_VOLATILE));
	json_object_set_new(
		json, "state",
		json_string(ucm_dir_states[ucm_medium_state(medium)]));
	if (medium->hosts)
		put_number(json, "daemons", ucm_hosts_living(medium));
	put_number(json, "in_doubt", atomic_load(&store->keepers[dir].doubts));
	if (unknown)
		json_object_set_new(json, "no_checkpoint",
				    json_string(unknown));
	ucm_medium_space(medium, &total, &available);
	put_number(json, "total_bytes", total);
	put_number(json, "free_bytes", available);
	if (limit != UINT64_MAX)
		put_number(json, "limit_bytes", limit);
	put_number(json, "used_bytes", ucm_medium_used(medium));
	put_number(json, "files_bytes", ucm_medium_files(medium));
	put_number(json, "writing_bytes", atomic_load(&medium->writing));
	put_number(json, "blocks", atomic_load(&medium->blocks));
	put_number(json, "alone_blocks", atomic_load(&medium->alone));
	put_number(json, "alone_bytes", atomic_load(&medium->alone_bytes));
	put_number(json, "withheld_blocks", atomic_load(&medium->withheld));
	put_number(json, "withheld_bytes",
		   atomic_load(&medium->withheld_bytes));
	put_number(json, "pressure_bytes", ucm_pressure(store, dir));
	json_object_set_new(json, "draining",
			    json_boolean(atomic_load(&medium->draining)));
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

static json_t *tier_json(struct ucm_store *store,
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
	json_object_set_new(json, "write",
			    json_string(ucm_write_modes[tier->write_mode]));
	put_number(json, "endurance_bytes",
		   store->config->tiers[tier - store->dirs.tiers].endurance);
	json_object_set_new(json, "endurance_owed",
			    json_real(ucm_endurance_owed(store, tier)));
	json_object_set_new(json, "endurance_spent",
			    json_boolean(ucm_endurance_is_spent(store, tier)));
	for (unsigned i = 0; i < tier->num_dirs; i++)
		json_array_append_new(dirs,
				      directory_json(store, tier->first + i));
	json_object_set_new(json, "directories", dirs);
	json_object_set_new(json, "counters", tier_counters_json(&tier->stats));
	return json;
}

static json_t *tiers_json(struct ucm_store *store)
{
	json_t *json = json_array();

	for (unsigned i = 0; i < store->dirs.num_tiers; i++)
		json_array_append_new(json,
				      tier_json(store, &store->dirs.tiers[i]));
	return json;
}

static void put_space_quota(json_t *json, struct ucm_store *store,
			    const struct ucm_space *space)
{
	const struct ucm_quota *quota = atomic_load(&space->quota);
	uint64_t bytes = ucm_quota_of(store->config, space);

	if (!quota)
		return;
	put_number(json, "inode", ucm_ino_of_space(space));
	if (bytes) {
		put_number(json, "quota_bytes", bytes);
		json_object_set_new(
			json, "own_quota",
			json_boolean(atomic_load(&space->own_quota)));
	}
	put_number(json, "blocks_evicted", atomic_load(&quota->evicted));
	put_number(json, "bytes_evicted", atomic_load(&quota->evicted_bytes));
	put_number(json, "blocks_refused", atomic_load(&quota->refused));
}

static json_t *space_json(struct ucm_store *store, struct ucm_space *space)
{
	json_t *json = json_object();
	char geometry[160];

	json_object_set_new(json, "name",
			    text_json(*space->name ? space->name
						   : UCM_TREE_BLOCKS));
	put_number(json, "blocks", atomic_load(&space->blocks));
	put_number(json, "used_bytes", atomic_load(&space->used));
	put_number(json, "writing_bytes", atomic_load(&space->writing));
	put_space_quota(json, store, space);
	if (ucm_space_has_geometry(space)) {
		pthread_mutex_lock(&space->lock);
		ucm_geometry_text(&space->geometry, geometry,
				  sizeof(geometry));
		pthread_mutex_unlock(&space->lock);
		json_object_set_new(json, "geometry", json_string(geometry));
	}
	return json;
}

static json_t *spaces_json(struct ucm_store *store)
{
	json_t *json = json_array();

	for (unsigned i = 0; i < store->names.num; i++) {
		struct ucm_space *space = ucm_namespace_get(&store->names, i);

		if (space)
			json_array_append_new(json, space_json(store, space));
	}
	return json;
}

static json_t *counters_json(const struct ucm_store *store)
{
	const struct ucm_stats *stats = &store->stats;
	json_t *json = json_object();

#define PUT(name, help) put_number(json, #name, ucm_counted(&stats->name));
	UCM_STATS(PUT)
#undef PUT
	put_number(json, "io_errors", ucm_counted(&store->dirs.io_errors));
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

static json_t *index_json(struct ucm_store *store)
{
	json_t *json = json_object();
	uint64_t unsaved, bytes;

	ucm_jobs_count_unsaved(store, &unsaved, &bytes);
	put_number(json, "blocks", atomic_load(&store->blocks));
	put_number(json, "unsaved", unsaved);
	put_number(json, "in_doubt", atomic_load(&store->doubts));
	put_number(json, "memory_bytes", ucm_index_memory(store->index));
	put_number(json, "verified_blocks", ucm_index_marked(store->index));
	json_object_set_new(json, "complete",
			    json_boolean(atomic_load(&store->scan.complete)));
	return json;
}

static json_t *quota_json(const struct ucm_files_mark_info *mark)
{
	json_t *json = json_object();

	json_object_set_new(json, "folder", text_json(mark->path));
	put_number(json, "number", mark->number);
	put_number(json, "quota_bytes", mark->quota);
	put_number(json, "used_bytes", mark->used);
	json_object_set_new(json, "counted", json_boolean(mark->counted));
	json_object_set_new(json, "order",
			    json_string(ucm_files_orders[mark->order]));
	put_number(json, "grace_s", mark->grace_s);
	put_number(json, "files_evicted", mark->files_evicted);
	put_number(json, "bytes_evicted", mark->bytes_evicted);
	put_number(json, "files_refused", mark->refused);
	return json;
}

/* Of the marked folders of files/. */
static json_t *quotas_json(struct ucm_files_tree *tree)
{
	struct ucm_files_mark_info *marks;
	size_t num = ucm_files_marks(tree, &marks);
	json_t *json = json_array();

	for (size_t i = 0; i < num; i++)
		json_array_append_new(json, quota_json(&marks[i]));
	ucm_files_marks_free(marks, num);
	return json;
}

/* What loaders say of themselves is in it as it is. */
static json_t *budget_json(struct ucm_daemon *daemon)
{
	json_t *json = json_object();

	put_number(json, "rate", daemon->options->budget);
	put_number(json, "in_flight", daemon->options->inflight);
	put_number(json, "bytes", ucm_iobudget_bytes(daemon));
	return json;
}

char *ucm_stats_text(struct ucm_daemon *daemon, size_t *len)
{
	json_t *json = json_object();
	struct timespec now;
	char *dump, *text;

	ucm_iobudget_count_lookups(daemon);
	clock_gettime(CLOCK_REALTIME, &now);
	json_object_set_new(json, "version", json_string(PACKAGE_VERSION));
	put_number(json, "uptime_s",
		   (uint64_t)(now.tv_sec - daemon->started.tv_sec));
	json_object_set_new(json, "transport", transport_json(daemon));
	json_object_set_new(json, "index", index_json(daemon->store));
	if (daemon->options->budget || daemon->options->inflight)
		json_object_set_new(json, "budget", budget_json(daemon));
	json_object_set_new(json, "counters", counters_json(daemon->store));
	json_object_set_new(json, "commit_refused_for",
			    causes_json(daemon->store->stats.refused_for));
	json_object_set_new(json, "quarantined_for",
			    causes_json(daemon->store->stats.quarantined_for));
	json_object_set_new(json, "operations", operations_json(daemon->ops));
	json_object_set_new(json, "tiers", tiers_json(daemon->store));
	json_object_set_new(json, "spaces", spaces_json(daemon->store));
	json_object_set_new(json, "quotas", quotas_json(&daemon->file_tree));
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
