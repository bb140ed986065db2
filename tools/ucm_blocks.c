/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucm_blocks.c - ucm pin, unpin, warm, evict and touch: what is done to many
 * blocks; see ucm(1). They differ by the call that they make.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "tools/ucm_args.h"
#include "tools/ucm_client.h"
#include "tools/ucm_ids.h"
#include "tools/ucm_text.h"
#include "tools/ucm_tool.h"

static struct options {
	struct ucm_common common;
	const char *file;
	/* of the command */
	ucm_client_call *call;
	const char *done; /* what became of the blocks */
	struct ucm_ids ids;
} opt;

static const struct ucm_arg args[] = {
	UCM_ARGS_BLOCKS(opt.common),
	{ "file", 'f', "FILE", ucm_arg_text, &opt.file,
	  .help = "ids from a file, one a line; -: standard input" },
	{ 0 },
};

/* ---- results ---- */

static const char *why_not(int result)
{
	if (result == -ENOENT)
		return "absent";
	if (opt.call == ucm_blocks_evict && result == -EPERM)
		return "pinned";
	if (opt.call == ucm_blocks_evict && result == -EBUSY)
		return "open or leased";
	return strerror(-result);
}

static size_t count_failed(const int32_t *results)
{
	size_t failed = 0;

	for (size_t i = 0; i < opt.ids.num; i++)
		failed += results[i] < 0;
	return failed;
}

static void print_results(const int32_t *results, size_t failed)
{
	size_t done = opt.ids.num - failed;
	char hex[UCM_ID_HEX + 1];

	for (size_t i = 0; i < opt.ids.num; i++) {
		if (results[i] >= 0)
			continue;
		ucm_id_format(&opt.ids.ids[i], hex);
		ucm_tool_complain("%s: %s", hex, why_not(results[i]));
	}
	printf("%zu block%s %s", done, done == 1 ? "" : "s", opt.done);
	if (failed)
		printf(", %zu not", failed);
	putchar('\n');
}

static json_t *describe(const int32_t *results, size_t failed)
{
	json_t *list = json_array();

	for (size_t i = 0; i < opt.ids.num; i++) {
		if (results[i] >= 0)
			continue;
		if (json_array_append_new(
			    list, json_pack("{so ss}", "id",
					    ucm_json_id(&opt.ids.ids[i]),
					    "error", why_not(results[i])))) {
			json_decref(list);
			return NULL;
		}
	}
	return json_pack("{sI sI so}", opt.done,
			 (json_int_t)(opt.ids.num - failed), "failed",
			 (json_int_t)failed, "failures", list);
}

static int call_blocks(struct ucm_client *client)
{
	_cleanup_free_ int32_t *results =
		calloc(opt.ids.num + 1, sizeof(*results));
	struct ucm_progress progress;
	size_t failed;
	int err;

	if (!results)
		return ucm_tool_fail(UCM_EXIT_FAILED, "no memory");
	ucm_progress_begin(&progress);
	err = ucm_client_batch(client, opt.call, opt.common.space, opt.ids.ids,
			       opt.ids.num, results, &progress);
	ucm_progress_clear(&progress);
	if (err)
		return UCM_EXIT_FAILED;
	failed = count_failed(results);
	if (opt.common.json)
		return ucm_json_print(describe(results, failed),
				      failed ? UCM_EXIT_FAILED : 0);
	print_results(results, failed);
	return ucm_tool_flush() | (failed ? UCM_EXIT_FAILED : 0);
}

/* ---- arguments ---- */

/* 0 or the exit status (reported). */
static int read_ids(int argc, char **argv)
{
	if (!argc && !opt.file)
		return ucm_tool_fail(UCM_EXIT_USAGE,
				     "no ID and no --file; try --help");
	if (argc && opt.file)
		return ucm_tool_fail(UCM_EXIT_USAGE,
				     "both ID and --file; try --help");
	if (opt.file)
		return ucm_ids_read(opt.file, &opt.ids) ? UCM_EXIT_FAILED : 0;
	return ucm_ids_take(&opt.ids, argc, argv) ? UCM_EXIT_USAGE : 0;
}

static int run(ucm_client_call *call, const char *done, int argc, char **argv)
{
	int status = read_ids(argc, argv);

	opt.call = call;
	opt.done = done;
	if (!status)
		status = ucm_client_run(opt.common.mount, call_blocks);
	ucm_ids_fini(&opt.ids);
	return status;
}

#define FOR_THE_OWNER " For root and the owner of the mount."

#define COMMAND(word, call, done, what, text)                                 \
	static int run_##word(int argc, char **argv)                          \
	{                                                                     \
		return run(call, done, argc, argv);                           \
	}                                                                     \
	const struct ucm_command ucm_##word##_command = {                     \
		.name = #word,                                                \
		.does = what,                                                 \
		.operands = "ID...\n--file FILE",                             \
		.about = text,                                                \
		.args = args,                                                 \
		.end = "Exit status 1: it could not be done with a block, "   \
		       "or a block is absent.",                               \
		.most = UCM_ARGS_ANY,                                         \
		.run = run_##word,                                            \
	}

COMMAND(pin, ucm_blocks_pin, "pinned", "keep blocks from being evicted",
	"Keep blocks from being evicted until they are unpinned."
	FOR_THE_OWNER);
COMMAND(unpin, ucm_blocks_unpin, "unpinned", "let blocks be evicted again",
	"Let pinned blocks be evicted again." FOR_THE_OWNER);
COMMAND(warm, ucm_blocks_warm, "warmed", "copy blocks to the fastest tier",
	"Have blocks copied to the fastest tier, in the background." FOR_THE_OWNER);
COMMAND(evict, ucm_blocks_evict, "evicted",
	"remove blocks that nobody uses or has pinned",
	"Remove blocks from every tier, unless they are pinned, or somebody has "
	"them open or has a lease on them." FOR_THE_OWNER);
COMMAND(touch, ucm_blocks_touch, "touched", "count a use of blocks",
	"Count a use of blocks now, as reading them does.");
