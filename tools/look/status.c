/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status.c - ucm status: how a mount is; see ucm(1).
 *
 * From stats.json for those who may read it. For others an object of the same
 * shape is made from what everyone may ask for: the statistics call, and the
 * metrics.
 */
#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tools/lib/args.h"
#include "tools/lib/metrics.h"
#include "tools/lib/target.h"
#include "tools/lib/text.h"
#include "tools/lib/tool.h"

static struct ucm_common common;

static const struct ucm_arg args[] = {
	UCM_ARG_MOUNTS(common),
	UCM_ARG_JSON(common),
	{ 0 },
};

struct status {
	json_t *stats;
	const char *missing; /* NULL: nothing */
};

/* ---- for those who may not read stats.json ---- */

static json_t *counters_of(const struct ucm_control_statistics *stats)
{
	return json_pack("{sI sI sI sI sI sI sI sI}",
#define PUT(name) #name, (json_int_t)stats->name
			 PUT(lookups), PUT(hits), PUT(misses), PUT(opens),
			 PUT(commits), PUT(removed), PUT(quarantined),
			 PUT(io_errors)
#undef PUT
	);
}

static json_t *tier_of(const struct ucm_metrics *metrics, const char *name)
{
#define GAUGE(what)                                                           \
	(json_int_t)ucm_metrics_value(metrics, "ucmfs_tier_" what, "tier", name)
	return json_pack("{ss sb sI sI sI}", "name", name, "readonly",
			 (int)GAUGE("readonly"), "total_bytes",
			 GAUGE("size_bytes"), "free_bytes", GAUGE("free_bytes"),
			 "used_bytes", GAUGE("used_bytes"));
#undef GAUGE
}

/* What the metrics have of the tiers; a mount without metrics: nothing. */
static json_t *tiers_of(struct ucm_target *target,
			const struct ucm_metrics *metrics)
{
	json_t *list = json_array();

	for (unsigned i = 0; i < UCM_TARGET_TIERS && target->tiers[i]; i++)
		ucm_json_add(list, tier_of(metrics, target->tiers[i]));
	return list;
}

static json_t *whole_of(const struct ucm_control_statistics *stats)
{
	return json_pack("{sI sI sI}", "total_bytes",
			 (json_int_t)stats->total_bytes, "free_bytes",
			 (json_int_t)stats->free_bytes, "used_bytes",
			 (json_int_t)stats->bytes);
}

static int is_on(const struct ucm_metrics *metrics, const char *name)
{
	return ucm_metrics_value(metrics, name, NULL, NULL) > 0;
}

static int ask_stats(struct ucm_target *target, struct status *out)
{
	struct ucm_control_statistics stats;
	struct ucm_metrics metrics;
	int err = ucm_target_statistics(target, &stats);

	if (err)
		return err;
	out->stats = json_pack("{s{sI sb} so so}", "index", "blocks",
			       (json_int_t)stats.blocks, "complete",
			       (int)stats.scanned, "counters",
			       counters_of(&stats), "space", whole_of(&stats));
	out->missing = "tiers, passthrough and io_uring, spaces";
	if (ucm_metrics_read(target->mount, &metrics))
		return 0;
	ucm_json_set(out->stats, "tiers", tiers_of(target, &metrics));
	ucm_json_set(out->stats, "transport",
		     json_pack("{sb sb}", "passthrough",
			       is_on(&metrics, "ucmfs_passthrough"), "io_uring",
			       is_on(&metrics, "ucmfs_io_uring")));
	out->missing = "why passthrough or io_uring are off, directories, spaces";
	ucm_metrics_fini(&metrics);
	return 0;
}

/* ---- telling ---- */

static void print_transport(const json_t *transport, const char *what)
{
	char why[64];
	const char *text;

	if (!transport)
		return;
	snprintf(why, sizeof(why), "%s_why", what);
	text = ucm_json_get_text(transport, why);
	printf("%-12s %s%s%s\n", what,
	       json_is_true(json_object_get(transport, what)) ? "on" : "off",
	       text ? ": " : "", text ? text : "");
}

static void print_index(const json_t *stats)
{
	const json_t *index = json_object_get(stats, "index");
	uint64_t in_doubt = ucm_json_get(index, "in_doubt");
	uint64_t verified = ucm_json_get(index, "verified_blocks");

	printf("%-12s %" PRIu64 " blocks", "index", ucm_json_get(index, "blocks"));
	if (in_doubt)
		printf(", %" PRIu64 " in doubt", in_doubt);
	if (verified)
		printf(", %" PRIu64 " marked as verified", verified);
	puts(json_is_true(json_object_get(index, "complete"))
		     ? ", complete"
		     : ", being filled");
}

static void print_counters(const json_t *counters)
{
	static const char *const names[] = {
		"opens", "commits", "commit_refused", "removed", "quarantined",
		"io_errors",
	};
	uint64_t lookups = ucm_json_get(counters, "lookups");

	printf("%-12s %s of %" PRIu64 " lookups\n", "hits",
	       ucm_text_share(ucm_json_get(counters, "hits"), lookups).text, lookups);
	printf("%-12s", "since mount");
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (json_object_get(counters, names[i]))
			printf("%s %s %" PRIu64, i ? "," : "", names[i],
			       ucm_json_get(counters, names[i]));
	}
	putchar('\n');
}

static void print_space_of(const char *name, const json_t *of)
{
	printf("%-12s %8s %8s %8s%s\n", name,
	       ucm_text_size(ucm_json_get(of, "total_bytes"), false).text,
	       ucm_text_size(ucm_json_get(of, "free_bytes"), false).text,
	       ucm_text_size(ucm_json_get(of, "used_bytes"), false).text,
	       json_is_true(json_object_get(of, "readonly")) ? " read-only"
							     : "");
}

/* What is not as it should be. */
static void print_directory(const json_t *dir)
{
	static const struct {
		const char *state, *text;
	} states[] = {
		{ "set_aside", ": failed lately" },
		{ "unreadable", ": cannot be read" },
		{ "sync_failed", ": a sync failed; takes nothing new" },
		{ "unresponsive", ": does not answer" },
		{ "taken_over", ": another ucmfs has it; only read" },
	};
	const char *state = ucm_json_get_text(dir, "state");
	const char *kind = ucm_json_get_text(dir, "kind");
	uint64_t in_doubt = ucm_json_get(dir, "in_doubt");

	printf("  %s", ucm_json_get_text(dir, "path"));
	for (size_t i = 0; state && i < sizeof(states) / sizeof(states[0]);
	     i++) {
		if (!strcmp(state, states[i].state))
			fputs(states[i].text, stdout);
	}
	if (in_doubt)
		printf("; %" PRIu64 " blocks in doubt", in_doubt);
	if (!strcmp(kind ? kind : "", "memory"))
		fputs(", memory", stdout);
	if (json_object_get(dir, "daemons"))
		printf(", shared by %" PRIu64 " daemons",
		       ucm_json_get(dir, "daemons"));
	if (json_object_get(dir, "used_bytes"))
		printf(", %s used",
		       ucm_text_size(ucm_json_get(dir, "used_bytes"), false).text);
	if (json_object_get(dir, "limit_bytes"))
		printf(" of %s",
		       ucm_text_size(ucm_json_get(dir, "limit_bytes"), false).text);
	putchar('\n');
}

static void print_endurance(const json_t *tier)
{
	uint64_t bytes = ucm_json_get(tier, "endurance_bytes");

	if (bytes)
		printf("  endurance: %s a day%s\n",
		       ucm_text_size(bytes, false).text,
		       json_is_true(json_object_get(tier, "endurance_spent"))
			       ? ", used up for now"
			       : "");
}

static void print_tiers(const json_t *stats)
{
	const json_t *whole = json_object_get(stats, "space"), *tier, *dir;
	size_t i, j;

	printf("\n%-12s %8s %8s %8s\n", "TIER", "SIZE", "FREE", "USED");
	json_array_foreach(json_object_get(stats, "tiers"), i, tier) {
		print_space_of(ucm_json_get_text(tier, "name"), tier);
		print_endurance(tier);
		json_array_foreach(json_object_get(tier, "directories"), j, dir)
			print_directory(dir);
	}
	if (whole)
		print_space_of("all", whole);
}

static void print_spaces(const json_t *spaces)
{
	const json_t *space;
	size_t i;

	if (!spaces)
		return;
	printf("\n%-24s %10s %8s %8s  %s\n", "SPACE", "BLOCKS", "USED",
	       "QUOTA", "GEOMETRY");
	json_array_foreach(spaces, i, space) {
		const char *geometry = ucm_json_get_text(space, "geometry");
		uint64_t quota = ucm_json_get(space, "quota_bytes");

		printf("%-24s %10" PRIu64 " %8s %8s  %s\n",
		       ucm_json_get_text(space, "name"),
		       ucm_json_get(space, "blocks"),
		       ucm_text_size(ucm_json_get(space, "used_bytes"), false).text,
		       quota ? ucm_text_size(quota, false).text : "-",
		       geometry ? geometry : "-");
	}
}

static int print_status(const struct ucm_target *target,
			const struct status *status)
{
	const json_t *stats = status->stats;
	const char *version = ucm_json_get_text(stats, "version");

	printf("%s%-12s %s\n", target->turn > 1 ? "\n" : "", "mount",
	       target->mount);
	if (version)
		printf("%-12s %s, up %s\n", "version", version,
		       ucm_text_age((int64_t)ucm_json_get(stats, "uptime_s")).text);
	print_transport(json_object_get(stats, "transport"), "passthrough");
	print_transport(json_object_get(stats, "transport"), "io_uring");
	print_index(stats);
	print_counters(json_object_get(stats, "counters"));
	print_tiers(stats);
	print_spaces(json_object_get(stats, "spaces"));
	if (status->missing)
		printf("\nmissing: %s; .ucmfs/stats.json is for root and the "
		       "owner of the mount\n", status->missing);
	return ucm_tool_flush();
}

static json_t *describe(const struct ucm_target *target,
			const struct status *status)
{
	const json_t *counters = json_object_get(status->stats, "counters");

	return json_pack("{so so ss? sO}", "mount",
			 ucm_json_text(target->mount), "hit_rate",
			 ucm_json_share(ucm_json_get(counters, "hits"),
					ucm_json_get(counters, "lookups")),
			 "missing", status->missing, "stats", status->stats);
}

static int show(struct ucm_target *target)
{
	struct status status = { 0 };
	int result, err = ucm_target_stats(target->mount, &status.stats);

	if (err == -EACCES)
		err = ask_stats(target, &status);
	if (err)
		return UCM_EXIT_FAILED;
	result = common.json ? ucm_json_print(describe(target, &status), 0)
			     : print_status(target, &status);
	json_decref(status.stats);
	return result;
}

static int run(int argc, char **argv)
{
	(void)argc, (void)argv;
	return ucm_target_run_each(common.mount, show);
}

const struct ucm_command ucm_status_command = {
	.name = "status",
	.forms = (const struct ucm_command *const[]){
		&ucm_exporter_command, NULL },
	.does = "show the state of a mount; serve its metrics",
	.operands = "[MOUNT]",
	.about = "Print the state of a mount: passthrough and io_uring, the "
		 "index, hits, tiers, spaces. Only root and the owner of the "
		 "mount see all of it.",
	.args = args,
	.common = &common,
	.run = run,
};
