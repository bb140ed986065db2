/* SPDX-License-Identifier: Apache-2.0 */
/* du.c - ucm du: blocks and bytes by space and tier; see ucm(1). */
#include <config.h>

#include <inttypes.h>
#include <stdio.h>

#include "hashing/tree.h"
#include "tools/lib/args.h"
#include "tools/lib/list.h"
#include "tools/lib/text.h"
#include "tools/lib/tool.h"

static struct options {
	struct ucm_common common;
	bool human;
} opt;

static const struct ucm_arg args[] = {
	UCM_ARG_MOUNTS(opt.common),
	UCM_ARG_TIERS(opt.common),
	{ "space", 's', "NAME", ucm_arg_space, &opt.common.space,
	  .help = "only the space spaces/NAME (default: all spaces)" },
	{ "human", 'H', .to = &opt.human,
	  .help = "sizes in units of 1024, such as 2.0M" },
	UCM_ARG_JSON(opt.common),
	{ 0 },
};

struct sum {
	uint64_t blocks, bytes;
};

struct report {
	struct ucm_target *target;
	struct ucm_progress progress;
	struct sum total;
	json_t *spaces; /* JSON */
	int status;
};

static void print_sum(const char *folder, const char *tier,
		      const struct sum *sum)
{
	printf("%-24s %-8s %10" PRIu64 " %14s\n", folder, tier, sum->blocks,
	       ucm_text_size(sum->bytes, !opt.human).text);
}

static void add_json(struct report *report, const char *folder,
		     const char *tier, const struct sum *sum)
{
	ucm_json_add(report->spaces,
		     json_pack("{so ss sI sI}", "space", ucm_json_text(folder),
			       "tier", tier, "blocks", (json_int_t)sum->blocks,
			       "bytes", (json_int_t)sum->bytes));
}

static void add_up(const struct ucm_list *rows, struct sum *sums)
{
	for (size_t i = 0; i < rows->num; i++) {
		const struct ucm_control_place *place = &rows->rows[i].place;

		sums[place->tier].blocks++;
		sums[place->tier].bytes += place->size;
	}
}

static void tell_space(struct report *report, const char *space,
		       const struct sum *sums)
{
	char folder[UCM_TREE_FOLDER_MAX];

	ucm_tree_folder(space, folder);
	for (unsigned i = 0; i < UCM_TARGET_TIERS; i++) {
		const char *tier;

		if (!sums[i].blocks)
			continue;
		tier = ucm_target_tier(report->target, i);
		if (opt.common.json)
			add_json(report, folder, tier, &sums[i]);
		else
			print_sum(folder, tier, &sums[i]);
		report->total.blocks += sums[i].blocks;
		report->total.bytes += sums[i].bytes;
	}
}

/* One that cannot be read is reported, and the others go on. */
static void do_space(struct report *report, const char *space)
{
	struct sum sums[UCM_TARGET_TIERS] = { 0 };
	struct ucm_list rows = { 0 };

	if (ucm_list_read(report->target, space, "", &rows,
			  &report->progress) || rows.failed)
		report->status = UCM_EXIT_FAILED;
	add_up(&rows, sums);
	tell_space(report, space, sums);
	ucm_list_fini(&rows);
}

static int do_spaces(struct report *report)
{
	char **spaces;
	size_t num;

	if (opt.common.space) {
		do_space(report, opt.common.space);
		return 0;
	}
	if (ucm_spaces_read(report->target, &spaces, &num))
		return UCM_EXIT_FAILED;
	for (size_t i = 0; i < num; i++)
		do_space(report, spaces[i]);
	ucm_spaces_free(spaces, num);
	return 0;
}

static json_t *describe(const struct report *report)
{
	return json_pack("{so s{sI sI} so}", "mount",
			 ucm_json_text(report->target->mount), "total",
			 "blocks", (json_int_t)report->total.blocks, "bytes",
			 (json_int_t)report->total.bytes, "spaces",
			 report->spaces);
}

static void print_head(const struct ucm_target *target)
{
	ucm_target_title(target);
	printf("%-24s %-8s %10s %14s\n", "SPACE", "TIER", "BLOCKS", "BYTES");
}

static int tell(struct ucm_target *target)
{
	struct report report = { .target = target };
	int status;

	ucm_progress_begin(&report.progress);
	if (opt.common.json)
		report.spaces = json_array();
	else
		print_head(target);
	status = do_spaces(&report);
	if (status) {
		json_decref(report.spaces);
		return status;
	}
	if (opt.common.json)
		return ucm_json_print(describe(&report), report.status);
	print_sum("total", "", &report.total);
	status = ucm_tool_flush();
	return status ? status : report.status;
}

static int run(int argc, char **argv)
{
	(void)argc, (void)argv;
	return ucm_target_run_each(opt.common.mount, tell);
}

const struct ucm_command ucm_du_command = {
	.name = "du",
	.does = "count blocks and bytes by space and tier",
	.operands = "[MOUNT]",
	.about = "Count the blocks that each space has in each tier, and the "
		 "bytes of their files.",
	.args = args,
	.common = &opt.common,
	.run = run,
};
