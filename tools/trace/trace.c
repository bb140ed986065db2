/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace.c - ucm trace: decodes an access trace, also one that is being
 * written.
 *
 * The file is read, not mapped: somebody may cut it meanwhile.
 */
#include <config.h>

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "common/cleanup.h"
#include "tools/lib/args.h"
#include "tools/lib/tool.h"
#include "tools/trace/print.h"

static bool json;

static const struct ucm_arg args[] = {
	{ "json", 'j', .to = &json, .help = "a JSON object on each line" },
	{ 0 },
};

static const char *state_of(const struct ucm_trace_view *view)
{
	return view->ended ? "the mount has ended"
			   : "the mount is there, or did not end well";
}

static int print_all(const struct ucm_trace_view *view)
{
	struct ucm_trace_cursor cursor = { 0 };
	struct ucm_trace_record record;
	uint64_t num = 0, lost = 0;

	if (!json)
		ucm_trace_print_head(stdout);
	for (; ucm_trace_next(view, &cursor, &record, &lost); num++) {
		if (!json)
			ucm_trace_print_text(view, &record, stdout);
		else if (ucm_trace_print_json(view, &record, stdout))
			ucm_tool_die(UCM_EXIT_FAILED, "no memory");
	}
	if (!json)
		printf("# %" PRIu64 " records of %" PRIu64 "; %s\n", num,
		       view->written, state_of(view));
	if (lost)
		ucm_tool_fail(0, "%" PRIu64 " records in between are lost",
			      lost);
	return ucm_tool_flush();
}

static int run(int argc, char **argv)
{
	_cleanup_free_ char *bytes = NULL;
	struct ucm_trace_view view;
	const char *why;
	size_t len;
	int err;

	if (!argc)
		ucm_tool_usage("no FILE");
	err = ucm_tool_read(argv[0], SIZE_MAX / 4, &bytes, &len);
	if (err)
		ucm_tool_die(UCM_EXIT_FAILED, "%s: %s", argv[0],
			     strerror(-err));
	if (ucm_trace_parse(bytes, len, &view, &why))
		ucm_tool_die(UCM_EXIT_FAILED, "%s: %s", argv[0], why);
	return print_all(&view);
}

const struct ucm_command ucm_trace_command = {
	.name = "trace",
	.forms = (const struct ucm_command *const[]){
		&ucm_replay_command, &ucm_debug_command, NULL },
	.does = "print or replay an access trace, choose debug logs",
	.operands = "FILE",
	.about = "Print the records of an access trace (ucmfs -o trace=FILE), "
		 "oldest first. The daemon may be running or gone.",
	.args = args,
	.most = 1,
	.run = run,
};
