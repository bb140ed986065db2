/* SPDX-License-Identifier: Apache-2.0 */
/* target.c - who is asked about blocks; see target.h. */
#include <config.h>

#include "tools/lib/target.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "hashing/tree.h"
#include "tools/lib/metrics.h"
#include "tools/lib/tool.h"

const char *ucm_target_words(int err)
{
	switch (err) {
	case -EACCES: return "the space is private";
	case -EINVAL: return "the mount is of another version";
	case -ENOENT: return "no such space";
	case -ECANCELED: /* these two: while it was asked */
	case -ENOTCONN: return "its daemon is gone";
	case -EOPNOTSUPP: return "this version of ucmfs cannot do that";
	case -EPERM: return "only for root and the owner of the mount";
	case -EROFS: return "it is mounted read-only";
	default: return strerror(-err);
	}
}

/* The names stand in the metrics, in the order of the tiers. */
static void learn_tiers(struct ucm_target *target)
{
	struct ucm_metrics metrics;
	unsigned num = 0;

	if (ucm_metrics_read(target->mount, &metrics))
		return;
	for (size_t i = 0; i < metrics.num && num < UCM_TARGET_TIERS; i++) {
		const struct ucm_metric *metric = &metrics.metrics[i];
		char name[64];

		if (!strcmp(metric->name, "ucmfs_tier_size_bytes") &&
		    !ucm_metric_label(metric, "tier", name, sizeof(name)))
			target->tiers[num++] = ucm_tool_format("%s", name);
	}
	ucm_metrics_fini(&metrics);
}

int ucm_target_open(const char *mount, struct ucm_target *out)
{
	int err;

	*out = (struct ucm_target){ .mount = ucm_mount_find(mount) };
	err = ucm_ask_connect(out->mount, &out->client);
	if (!err) {
		err = ucm_blocks_open(out->mount, &out->blocks);
		if (err)
			ucm_tool_complain("%s: %s", out->mount, strerror(-err));
	}
	if (err)
		ucm_target_close(out);
	else
		learn_tiers(out);
	return err;
}

void ucm_target_close(struct ucm_target *target)
{
	for (unsigned i = 0; i < UCM_TARGET_TIERS; i++)
		free(target->tiers[i]);
	free(target->mount);
	ucm_blocks_close(target->blocks);
	ucm_client_close(target->client);
}

static int run_turn(const char *mount, unsigned turn,
		    int (*run)(struct ucm_target *target))
{
	struct ucm_target target;
	int status;

	if (ucm_target_open(mount, &target))
		return UCM_EXIT_FAILED;
	target.turn = turn;
	status = run(&target);
	ucm_target_close(&target);
	return status;
}

int ucm_target_run_each(const char *mount,
			int (*run)(struct ucm_target *target))
{
	struct ucm_mounts mounts;
	int status = 0;

	if (mount)
		return run_turn(mount, 0, run);
	ucm_mounts_list(&mounts);
	if (mounts.num < 2) /* one, or none and the words for that */
		status = run_turn(NULL, 0, run);
	for (size_t i = 0; mounts.num > 1 && i < mounts.num; i++) {
		int failed = run_turn(mounts.mounts[i].point, (unsigned)i + 1,
				      run);

		status = status ? status : failed;
	}
	ucm_mounts_fini(&mounts);
	return status;
}

int ucm_target_run(const char *mount, int (*run)(struct ucm_target *target))
{
	return run_turn(mount, 0, run);
}

void ucm_target_title(const struct ucm_target *target)
{
	if (target->turn)
		printf("%s%s:\n", target->turn > 1 ? "\n" : "", target->mount);
}

const char *ucm_target_tier(struct ucm_target *target, unsigned number)
{
	if (number >= UCM_TARGET_TIERS)
		return "?";
	if (!target->tiers[number])
		target->tiers[number] = ucm_tool_format("tier%u", number);
	return target->tiers[number];
}

/* ---- stats.json ---- */

#define STATS_MAX (64u << 20)

int ucm_target_stats(const char *mount, json_t **out)
{
	_cleanup_free_ char *text = NULL;
	size_t len;
	int err = ucm_mount_read(mount, "stats.json", STATS_MAX, &text, &len);

	if (err && err != -EACCES)
		ucm_mount_complain(mount, "stats.json", err);
	if (err)
		return err;
	*out = json_loads(text, 0, NULL);
	return *out ? 0
		    : ucm_tool_complain("%s/" UCM_TREE_STATS ": not JSON",
					mount);
}

json_t *ucm_target_directories(const json_t *stats)
{
	json_t *list = json_array(), *tier;
	size_t i;

	json_array_foreach(json_object_get(stats, "tiers"), i, tier)
		json_array_extend(list, json_object_get(tier, "directories"));
	return list;
}

/* ---- calls ---- */

/* space: NULL: the default one. */
static int end_call(const struct ucm_target *target, const char *space, int err)
{
	char folder[UCM_TREE_FOLDER_MAX];

	ucm_tree_folder(space ?: "", folder);
	return err ? ucm_tool_fail(err, "%s/%s: %s", target->mount, folder,
				   ucm_target_words(err))
		   : 0;
}

/* A batch of the daemon's at a time, for the sake of the progress. */
int ucm_target_batch(const struct ucm_target *target, ucm_target_call *call,
		     const char *space, const struct ucm_id *ids, size_t num,
		     int32_t *results, struct ucm_progress *progress)
{
	size_t part, at = 0;
	int err;

	do {
		part = num - at < UCM_SERVE_ITEMS ? num - at : UCM_SERVE_ITEMS;
		err = call(target->blocks, space, ids + at, part, results + at);
		if (err)
			return end_call(target, space, err);
		at += part;
		if (progress && part)
			ucm_progress_tell(progress, at, num, 0);
	} while (at < num);
	return 0;
}

int ucm_target_locate(const struct ucm_target *target, const char *space,
		      const struct ucm_id *ids, size_t num,
		      struct ucm_control_place *places)
{
	int err = ucm_blocks_locate(target->blocks, space, ids, num,
				    UCM_LOCATE_PEEK, places);

	return end_call(target, space, err);
}

int ucm_target_path(const struct ucm_target *target, const char *space,
		    const struct ucm_id *id, char path[UCM_BLOCKS_PATH_MAX])
{
	int err = ucm_blocks_path(target->blocks, space, id, path);

	return err == -EPERM || err == -ENOENT ? err
					       : end_call(target, space, err);
}

int ucm_target_ids(const struct ucm_target *target, const char *space,
		   unsigned bucket, struct ucm_ids *ids)
{
	return end_call(target, space,
			ucm_ids_ask(target->client, space ?: "", bucket, ids));
}

int ucm_target_statistics(const struct ucm_target *target,
			  struct ucm_control_statistics *out)
{
	int err = ucm_blocks_statistics(target->blocks, out);

	return err ? ucm_tool_fail(err, "%s: %s", target->mount,
				   ucm_target_words(err))
		   : 0;
}
