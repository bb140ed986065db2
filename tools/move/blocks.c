/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blocks.c - ucm pin, warm and evict: what is done to many
 * blocks; see ucm(1). They differ by the call that they make.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <ucm/space.h>

#include "common/cleanup.h"
#include "hashing/tree.h"
#include "tools/lib/args.h"
#include "tools/lib/ids.h"
#include "tools/lib/list.h"
#include "tools/lib/target.h"
#include "tools/lib/text.h"
#include "tools/lib/tool.h"

static struct options {
	struct ucm_common common;
	const char *file;
	bool all, off, touch;
	/* evict */
	uint64_t keep;
	bool keeps; /* that was given */
	bool with_space;
	bool named; /* the blocks were, by ID or --file */
	/* of the command */
	ucm_target_call *call;
	const char *done; /* what became of the blocks */
	struct ucm_ids ids;
} opt;

/* What became of them, and what holds those that were to be evicted. */
struct results {
	int32_t *of; /* each */
	uint16_t *flags; /* UCM_PLACE_*, of those that failed */
	size_t failed;
};

static const struct ucm_arg args[] = {
	UCM_ARGS_BLOCKS(opt.common),
	{ "file", 'f', "FILE", ucm_arg_text, &opt.file,
	  .help = "ids from a file, one a line; -: standard input" },
	{ "all", 'a', .to = &opt.all, .help = "every block of the space" },
	{ 0 },
};

static const struct ucm_arg pin_args[] = {
	UCM_ARGS(args),
	{ "off", 0, .to = &opt.off, .help = "let them be evicted again" },
	{ 0 },
};

static const struct ucm_arg warm_args[] = {
	UCM_ARGS(args),
	{ "touch", 0, .to = &opt.touch,
	  .help = "only count a use of them, and copy nothing" },
	{ 0 },
};

static int parse_keep(const struct ucm_arg *arg, char *value)
{
	opt.keeps = true;
	return ucm_arg_bytes(arg, value);
}

static const struct ucm_arg evict_args[] = {
	UCM_ARGS(args),
	{ "keep", 'k', "BYTES", parse_keep, &opt.keep,
	  .help = "the blocks of the space that were used the longest ago, until "
		  "no more is left" },
	{ "with-space", 0, .to = &opt.with_space,
	  .help = "with --all and --space: and then the space itself" },
	{ 0 },
};

/* ---- results ---- */

/* What keeps a block from being evicted, in the words that doc and JSON use. */
static const struct {
	uint16_t flag;
	const char *word;
} holders[] = {
	{ UCM_PLACE_PINNED, "pinned" },
	{ UCM_PLACE_OPEN, "open" },
	{ UCM_PLACE_WRITTEN, "being written" },
};

/* It may have been let go since the call; then the call's word counts. */
static void name_holders(int result, uint16_t flags, char *text, size_t size)
{
	size_t len = 0;

	*text = '\0';
	for (size_t i = 0; i < sizeof(holders) / sizeof(*holders); i++) {
		if (flags & holders[i].flag)
			len += (size_t)snprintf(text + len, size - len, "%s%s",
						len ? ", " : "",
						holders[i].word);
	}
	if (!len)
		snprintf(text, size, "%s",
			 result == -EPERM ? "pinned" : "open");
}

static void explain(const struct results *results, size_t i, char *text,
		    size_t size)
{
	int result = results->of[i];

	if (result == -ENOENT)
		snprintf(text, size, "absent");
	else if (opt.call == ucm_blocks_evict &&
		 (result == -EPERM || result == -EBUSY))
		name_holders(result, results->flags[i], text, size);
	else
		snprintf(text, size, "%s", strerror(-result));
}

static void count_failed(struct results *results)
{
	for (size_t i = 0; i < opt.ids.num; i++)
		results->failed += results->of[i] < 0;
}

static bool is_held(const struct results *results, size_t i)
{
	return results->of[i] == -EPERM || results->of[i] == -EBUSY;
}

/* One call for all that were held. */
static int ask_holders(struct ucm_target *target, struct results *results)
{
	_cleanup_free_ struct ucm_control_place *places = NULL;
	struct ucm_ids held = { 0 };
	size_t at = 0;
	int err;

	for (size_t i = 0; i < opt.ids.num; i++) {
		if (is_held(results, i))
			ucm_ids_add(&held, &opt.ids.ids[i]);
	}
	places = ucm_tool_alloc(held.num, sizeof(*places));
	err = held.num ? ucm_target_locate(target, opt.common.space, held.ids,
					   held.num, places)
		       : 0;
	for (size_t i = 0; !err && i < opt.ids.num; i++) {
		if (is_held(results, i))
			results->flags[i] = places[at++].flags;
	}
	ucm_ids_fini(&held);
	return err;
}

static void print_results(const struct results *results)
{
	size_t done = opt.ids.num - results->failed;
	char why[80];

	for (size_t i = 0; i < opt.ids.num; i++) {
		if (results->of[i] >= 0)
			continue;
		explain(results, i, why, sizeof(why));
		ucm_tool_complain("%s: %s", ucm_hex(&opt.ids.ids[i]).text, why);
	}
	printf("%zu block%s %s", done, done == 1 ? "" : "s", opt.done);
	if (results->failed)
		printf(", %zu not", results->failed);
	putchar('\n');
}

static json_t *describe_holders(const struct results *results, size_t i)
{
	json_t *list = json_array();

	for (size_t j = 0; j < sizeof(holders) / sizeof(*holders); j++) {
		if (results->flags[i] & holders[j].flag)
			ucm_json_add(list, json_string(holders[j].word));
	}
	return list;
}

static json_t *describe_failure(const struct results *results, size_t i)
{
	char why[80];
	json_t *json;

	explain(results, i, why, sizeof(why));
	json = json_pack("{so ss}", "id", ucm_json_id(&opt.ids.ids[i]),
			 "error", why);
	if (opt.call == ucm_blocks_evict)
		ucm_json_set(json, "held_by", describe_holders(results, i));
	return json;
}

static json_t *describe(const struct results *results)
{
	json_t *list = json_array();

	for (size_t i = 0; i < opt.ids.num; i++) {
		if (results->of[i] < 0)
			ucm_json_add(list, describe_failure(results, i));
	}
	return json_pack("{sI sI so}", opt.done,
			 (json_int_t)(opt.ids.num - results->failed), "failed",
			 (json_int_t)results->failed, "failures", list);
}

/* ---- the call ---- */

/* How many of those that were used last may stay. */
static size_t num_kept(const struct ucm_list *rows)
{
	uint64_t bytes = 0;
	size_t i;

	for (i = 0; i < rows->num; i++) {
		bytes += rows->rows[i].place.size;
		if (bytes > opt.keep)
			break;
	}
	return i;
}

/* Every block of the space, as a listing finds them, or the oldest. */
static int list_ids(struct ucm_target *target, struct ucm_progress *progress)
{
	struct ucm_list rows = { 0 };
	int err = ucm_list_read(target, opt.common.space, "", &rows, progress);
	size_t first = 0;

	if (!err && opt.keeps) {
		ucm_list_sort(&rows, UCM_ROWS_ATIME);
		first = num_kept(&rows);
	}
	for (size_t i = first; !err && i < rows.num; i++)
		ucm_ids_add(&opt.ids, &rows.rows[i].id);
	ucm_list_fini(&rows);
	return err;
}

static int remove_space(const struct ucm_target *target)
{
	struct ucm_error error;
	int err = ucm_space_remove(target->mount, opt.common.space, &error);

	return err ? ucm_tool_fail(err, "%s", error.text) : 0;
}

static int run_call(struct ucm_target *target, struct results *results,
		    struct ucm_progress *progress)
{
	int err = ucm_target_batch(target, opt.call, opt.common.space,
				   opt.ids.ids, opt.ids.num, results->of,
				   progress);

	if (err)
		return err;
	/* what was listed and is gone by now need not be done */
	for (size_t i = 0; !opt.named && i < opt.ids.num; i++) {
		if (results->of[i] == -ENOENT)
			results->of[i] = 0;
	}
	count_failed(results);
	return opt.call == ucm_blocks_evict && results->failed
		       ? ask_holders(target, results)
		       : 0;
}

static int tell_results(const struct results *results)
{
	int status = results->failed ? UCM_EXIT_FAILED : 0;

	if (opt.common.json)
		return ucm_json_print(describe(results), status);
	print_results(results);
	return ucm_tool_flush() | status;
}

static int call_blocks(struct ucm_target *target)
{
	_cleanup_free_ int32_t *of = NULL;
	_cleanup_free_ uint16_t *flags = NULL;
	struct ucm_progress progress;
	struct results results;
	int err;

	ucm_progress_begin(&progress);
	err = opt.named ? 0 : list_ids(target, &progress);
	of = ucm_tool_alloc(opt.ids.num, sizeof(*of));
	flags = ucm_tool_alloc(opt.ids.num, sizeof(*flags));
	results = (struct results){ .of = of, .flags = flags };
	err = err ?: run_call(target, &results, &progress);
	ucm_progress_clear(&progress);
	if (!err && opt.with_space && !results.failed)
		err = remove_space(target);
	return err ? UCM_EXIT_FAILED : tell_results(&results);
}

/* ---- arguments ---- */

static void read_ids(int argc, char **argv)
{
	int given = !!argc + !!opt.file + opt.all + opt.keeps;

	if (!given)
		ucm_tool_usage("no ID, no --file and no --all");
	if (given > 1)
		ucm_tool_usage("one of ID, --file and --all");
	opt.named = !opt.all && !opt.keeps; /* else the daemon is asked */
	if (opt.file)
		ucm_ids_read(opt.file, &opt.ids);
	else if (ucm_ids_take(&opt.ids, argc, argv))
		ucm_tool_exit(UCM_EXIT_USAGE);
}

static int run(ucm_target_call *call, const char *done, int argc, char **argv)
{
	int status;

	if (opt.with_space && !(opt.all && opt.common.space &&
				*opt.common.space))
		ucm_tool_usage("--with-space needs --all and --space");
	read_ids(argc, argv);
	opt.call = call;
	opt.done = done;
	status = ucm_target_run(opt.common.mount, call_blocks);
	ucm_ids_fini(&opt.ids);
	return status;
}

#define FOR_THE_OWNER " For root and the owner of the mount."

#define COMMAND(word, call, done, what, forms, table, text)                   \
	static int run_##word(int argc, char **argv)                          \
	{                                                                     \
		return run(call, done, argc, argv);                           \
	}                                                                     \
	const struct ucm_command ucm_##word##_command = {                     \
		.name = #word,                                                \
		.does = what,                                                 \
		.operands = "ID...\n--file FILE\n--all" forms,               \
		.about = text,                                                \
		.args = table,                                                \
		.end = "Exit status 1: it could not be done with a block, "   \
		       "or a block is absent.",                               \
		.most = UCM_ARGS_ANY,                                         \
		.run = run_##word,                                            \
	}

COMMAND(pin, opt.off ? ucm_blocks_unpin : ucm_blocks_pin,
	opt.off ? "unpinned" : "pinned", "keep blocks from being evicted",
	"", pin_args,
	"Keep blocks from being evicted until they are unpinned with --off."
	FOR_THE_OWNER);
COMMAND(warm, opt.touch ? ucm_blocks_touch : ucm_blocks_warm,
	opt.touch ? "touched" : "warmed", "copy blocks to the fastest tier",
	"", warm_args,
	"Have blocks copied to the fastest tier, in the background." FOR_THE_OWNER
	" With --touch, which everyone may, only count a use of them, as reading "
	"them does.");
COMMAND(evict, ucm_blocks_evict, "evicted",
	"remove blocks that are neither in use nor pinned",
	"\n--keep BYTES", evict_args,
	"Remove blocks from every tier, unless they are pinned, or somebody has "
	"them open. Of each block that stays it says what holds it."
	FOR_THE_OWNER);
