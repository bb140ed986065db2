/* SPDX-License-Identifier: Apache-2.0 */
/* ls.c - ucm ls: the blocks of a space; see ucm(1). */
#include <config.h>

#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#include "hashing/tree.h"
#include "tools/lib/args.h"
#include "tools/lib/list.h"
#include "tools/lib/text.h"
#include "tools/lib/tool.h"

static struct options {
	struct ucm_common common;
	const char *prefix;
	enum ucm_list_order order;
	uint64_t limit;
	bool reverse, human;
} opt = { .prefix = "", .limit = UINT64_MAX };

static const struct ucm_arg args[] = {
	UCM_ARG_MOUNTS(opt.common),
	UCM_ARG_TIERS(opt.common),
	UCM_ARG_SPACE(opt.common),
	{ "prefix", 'p', "HEX", ucm_list_prefix, &opt.prefix,
	  .help = "only ids that begin with these digits" },
	/* in the order of enum ucm_list_order */
	{ "sort", 'o', "name|size|age|uses|atime", ucm_arg_choice, &opt.order,
	  .help = "by id (default); largest, youngest, most used or last used "
		  "first" },
	{ "reverse", 'r', .to = &opt.reverse, .help = "the other way round" },
	{ "limit", 'n', "N", ucm_arg_number, &opt.limit,
	  .help = "only the first N" },
	{ "human", 'H', .to = &opt.human,
	  .help = "sizes in units of 1024, such as 2.0M" },
	UCM_ARG_JSON(opt.common),
	{ 0 },
};

/* The i-th to be shown. */
static const struct ucm_row *pick(const struct ucm_list *rows, size_t i)
{
	return &rows->rows[opt.reverse ? rows->num - 1 - i : i];
}

static size_t num_shown(const struct ucm_list *rows)
{
	return rows->num < opt.limit ? rows->num : (size_t)opt.limit;
}

static void print_rows(struct ucm_target *target, const struct ucm_list *rows)
{
	time_t now = time(NULL);

	ucm_target_title(target);
	printf("%-32s %10s %-8s %8s %5s %5s\n", "ID", "SIZE", "TIER", "USES",
	       "AGE", "USED");
	for (size_t i = 0; i < num_shown(rows); i++) {
		const struct ucm_row *row = pick(rows, i);
		const struct ucm_control_place *place = &row->place;

		printf("%s %10s %-8s %8" PRIu32 " %5s %5s%s%s%s\n",
		       ucm_hex(&row->id).text,
		       ucm_text_size(place->size, !opt.human).text,
		       ucm_target_tier(target, place->tier), place->uses,
		       ucm_text_age(now - place->mtime_ns / 1000000000).text,
		       place->atime_s ? ucm_text_age(now - place->atime_s).text
				      : "ended",
		       place->flags & UCM_PLACE_PINNED ? " pinned" : "",
		       place->flags & UCM_PLACE_OPEN ? " open" : "",
		       place->flags & UCM_PLACE_WRITTEN ? " written" : "");
	}
}

static json_t *describe(struct ucm_target *target, const struct ucm_row *row)
{
	const struct ucm_control_place *place = &row->place;

	return json_pack("{so sI ss sf sI sb sb sI sb sb sb}", "id",
			 ucm_json_id(&row->id), "size",
			 (json_int_t)place->size, "tier",
			 ucm_target_tier(target, place->tier), "committed",
			 (double)place->mtime_ns / 1e9, "used",
			 (json_int_t)place->atime_s, "pinned",
			 place->flags & UCM_PLACE_PINNED, "copy",
			 place->flags & UCM_PLACE_COPY, "uses",
			 (json_int_t)place->uses, "open",
			 place->flags & UCM_PLACE_OPEN, "written",
			 place->flags & UCM_PLACE_WRITTEN, "children",
			 place->flags & UCM_PLACE_CHILDREN);
}

static json_t *describe_all(struct ucm_target *target,
			    const struct ucm_list *rows)
{
	char folder[UCM_TREE_FOLDER_MAX];
	json_t *blocks = json_array();

	for (size_t i = 0; i < num_shown(rows); i++)
		ucm_json_add(blocks, describe(target, pick(rows, i)));
	ucm_tree_folder(opt.common.space, folder);
	return json_pack("{so so sI sI so}", "mount",
			 ucm_json_text(target->mount), "space",
			 ucm_json_text(folder),
			 "found", (json_int_t)rows->num, "failed",
			 (json_int_t)rows->failed, "blocks", blocks);
}

static int list(struct ucm_target *target)
{
	struct ucm_list rows = { 0 };
	struct ucm_progress progress;
	int status, err;

	ucm_progress_begin(&progress);
	err = ucm_list_read(target, opt.common.space, opt.prefix, &rows,
			    &progress);
	if (err) {
		ucm_list_fini(&rows);
		return UCM_EXIT_FAILED;
	}
	status = rows.failed ? UCM_EXIT_FAILED : 0;
	ucm_list_sort(&rows, opt.order);
	if (opt.common.json) {
		status = ucm_json_print(describe_all(target, &rows), status);
	} else {
		print_rows(target, &rows);
		status |= ucm_tool_flush();
	}
	ucm_list_fini(&rows);
	return status;
}

static int run(int argc, char **argv)
{
	(void)argc, (void)argv;
	return ucm_target_run_each(opt.common.mount, list);
}

const struct ucm_command ucm_ls_command = {
	.name = "ls",
	.does = "list the blocks of a space",
	.operands = "[MOUNT]",
	.about = "List the blocks of a space: id, size, tier, uses since the "
		 "mount, time since the commit and since the last use, and "
		 "what keeps it from being evicted: pinned, open, or written "
		 "(its writer has not closed it yet).",
	.args = args,
	.common = &opt.common,
	.run = run,
};
