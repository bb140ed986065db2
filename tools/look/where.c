/* SPDX-License-Identifier: Apache-2.0 */
/* where.c - ucm stat --where: the tier and file of a block; see ucm(1). */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "tools/lib/args.h"
#include "tools/lib/ids.h"
#include "tools/lib/target.h"
#include "tools/lib/text.h"
#include "tools/lib/tool.h"

static struct ucm_common common;
static struct ucm_ids ids;

static const struct ucm_arg args[] = {
	UCM_ARGS_BLOCKS(common),
	{ 0 },
};

struct found {
	struct ucm_target *target;
	const struct ucm_id *id;
	struct ucm_control_place place;
	char path[4096]; /* "": not known */
};

/* What became of it, if it is not there. */
static const char *why_not(int result)
{
	return result == -ENOENT ? "absent" : strerror(-result);
}

static void print_found(const struct found *found)
{
	char hex[UCM_ID_HEX + 1];

	ucm_id_format(found->id, hex);
	if (found->place.result)
		printf("%s %s\n", hex, why_not(found->place.result));
	else
		printf("%s %s %s\n", hex,
		       ucm_target_tier(found->target, found->place.tier),
		       *found->path ? found->path : "-");
}

static json_t *describe(const struct found *found)
{
	int result = found->place.result;

	return json_pack("{so ss* ss* so*}", "id", ucm_json_id(found->id),
			 "error", result ? why_not(result) : NULL, "tier",
			 result ? NULL : ucm_target_tier(found->target,
							 found->place.tier),
			 "path",
			 *found->path ? ucm_json_text(found->path) : NULL);
}

static int find(struct found *found)
{
	int err = 0;

	found->path[0] = '\0';
	if (!found->place.result)
		err = ucm_target_path(found->target, common.space, found->id,
				      found->path);
	if (err == -ENOENT) /* gone since */
		found->place.result = err;
	return err == -ENOENT || err == -EPERM ? 0 : err;
}

static int tell_all(struct ucm_target *target,
		    const struct ucm_control_place *places)
{
	json_t *list = common.json ? json_array() : NULL;
	struct found found = { .target = target };
	int status = 0;

	for (size_t i = 0; i < ids.num; i++) {
		found.id = &ids.ids[i];
		found.place = places[i];
		if (find(&found))
			exit(UCM_EXIT_FAILED);
		if (found.place.result)
			status = UCM_EXIT_FAILED;
		if (common.json)
			ucm_json_add(list, describe(&found));
		else
			print_found(&found);
	}
	return common.json ? ucm_json_print(list, status)
			   : ucm_tool_flush() | status;
}

static int locate(struct ucm_target *target)
{
	_cleanup_free_ struct ucm_control_place *places =
		ucm_tool_alloc(ids.num, sizeof(*places));

	if (ucm_target_locate(target, common.space, ids.ids, ids.num, places))
		return UCM_EXIT_FAILED;
	return tell_all(target, places);
}

static int run(int argc, char **argv)
{
	int status = UCM_EXIT_USAGE;

	if (!argc)
		ucm_tool_usage("no ID");
	if (!ucm_ids_take(&ids, argc, argv))
		status = ucm_target_run(common.mount, locate);
	ucm_ids_fini(&ids);
	return status;
}

const struct ucm_command ucm_where_command = {
	.name = "stat",
	.word = "--where",
	.does = "show the tier and the file of blocks",
	.operands = "ID...",
	.about = "Print for each block its tier and, for root and the owner of "
		 "the mount, the path of its file; \"absent\" if there is "
		 "none.",
	.args = args,
	.end = "Exit status 1: a block is absent.",
	.most = UCM_ARGS_ANY,
	.run = run,
};
