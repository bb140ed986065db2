/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drain.c - ucm drain: a backing directory is emptied before it is taken
 * away; see ucm(1).
 *
 * The daemon moves the blocks, and the command looks on until none is left. A
 * signal ends the looking on alone.
 */
#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "tools/lib/args.h"
#include "tools/lib/target.h"
#include "tools/lib/text.h"
#include "tools/lib/tool.h"

#define POLL_NS 200000000
/* When no block has left for so long: where all that are left have no room
 * elsewhere, and where some may be open. */
#define NO_ROOM_MS 3000
#define BUSY_MS 30000

static struct options {
	struct ucm_common common;
	bool status, stop, background;
	char *directory;
} opt;

static const struct ucm_arg args[] = {
	UCM_ARG_MOUNT(opt.common),
	UCM_ARG_JSON(opt.common),
	{ "status", 0, .to = &opt.status,
	  .help = "only say what is left in it" },
	{ "stop", 0, .to = &opt.stop,
	  .help = "use the directory again" },
	{ "background", 'b', .to = &opt.background,
	  .help = "begin it, and do not wait for its end" },
	{ 0 },
};

static bool looks_on(void)
{
	return !opt.status && !opt.stop && !opt.background;
}

/* ---- looking on ---- */

static volatile sig_atomic_t interrupted;

static void note_signal(int number)
{
	(void)number;
	interrupted = 1;
}

static void catch_signals(void)
{
	struct sigaction action = { .sa_handler = note_signal };

	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
}

static int64_t patience_ms(const struct ucm_control_drain *drain)
{
	return drain->stays >= drain->blocks ? NO_ROOM_MS : BUSY_MS;
}

/* Until it is empty, or nothing leaves it any more. */
static int look_on(struct ucm_target *target, struct ucm_control_drain *drain)
{
	const struct timespec poll = { .tv_nsec = POLL_NS };
	int64_t moved_ms = ucm_monotonic_ms();
	uint64_t total = drain->blocks, least = drain->blocks;
	struct ucm_progress progress;
	int err = 0;

	catch_signals();
	ucm_progress_begin(&progress);
	while (!err && !interrupted && drain->draining && drain->blocks &&
	       ucm_monotonic_ms() - moved_ms < patience_ms(drain)) {
		nanosleep(&poll, NULL);
		err = ucm_blocks_drain(target->blocks, opt.directory,
				       UCM_DRAIN_ASK, drain);
		ucm_progress_say(&progress,
				 "%" PRIu64 " of %" PRIu64 " blocks are left",
				 drain->blocks, total);
		if (drain->blocks >= least)
			continue;
		least = drain->blocks;
		moved_ms = ucm_monotonic_ms();
	}
	ucm_progress_clear(&progress);
	return err;
}

/* ---- what came of it ---- */

static const char *state_of(const struct ucm_control_drain *drain)
{
	if (!drain->draining)
		return "in use";
	return drain->blocks ? "being drained" : "drained";
}

static int tell_result(const struct ucm_target *target,
		       const struct ucm_control_drain *drain)
{
	int status = looks_on() && drain->blocks ? UCM_EXIT_FAILED : 0;

	if (opt.common.json)
		return ucm_json_print(
			json_pack("{so so ss sb sI sI sI}", "mount",
				  ucm_json_text(target->mount), "directory",
				  ucm_json_text(opt.directory), "state",
				  state_of(drain), "draining",
				  (int)drain->draining, "blocks",
				  (json_int_t)drain->blocks, "bytes",
				  (json_int_t)drain->bytes, "no_room",
				  (json_int_t)drain->stays),
			status);
	printf("%s: %s, %" PRIu64 " block%s, %s", opt.directory,
	       state_of(drain), drain->blocks, drain->blocks == 1 ? "" : "s",
	       ucm_text_size(drain->bytes, false).text);
	if (drain->stays)
		printf(", %" PRIu64 " without room elsewhere", drain->stays);
	putchar('\n');
	if (looks_on() && drain->blocks)
		ucm_tool_complain("%s: %s; the drain goes on: --status, --stop",
				  opt.directory,
				  interrupted	 ? "interrupted"
				  : drain->stays ? "the other directories have no "
						   "room below their high marks"
						 : "the blocks that are left are "
						   "in use");
	return ucm_tool_flush() | status;
}

static const char *words(int err)
{
	switch (err) {
	case -ENOENT: return "no directory of this mount";
	case -EROFS: return "it is read-only";
	default: return ucm_target_words(err);
	}
}

static int drain_directory(struct ucm_target *target)
{
	_cleanup_free_ struct ucm_control_drain *drain =
		ucm_tool_alloc(1, sizeof(*drain));
	uint32_t what = opt.status ? UCM_DRAIN_ASK
			: opt.stop ? UCM_DRAIN_END
				   : UCM_DRAIN_BEGIN;
	int err = ucm_blocks_drain(target->blocks, opt.directory, what, drain);

	if (!err && looks_on())
		err = look_on(target, drain);
	if (err)
		return ucm_tool_fail(UCM_EXIT_FAILED, "%s: %s", opt.directory,
				     words(err));
	return tell_result(target, drain);
}

static int run(int argc, char **argv)
{
	int status;

	if (!argc)
		ucm_tool_usage("no DIRECTORY");
	if (opt.status + opt.stop + opt.background > 1)
		ucm_tool_usage("only one of --status, --stop and --background");
	/* the mount has it without links; what is not there it may know */
	opt.directory = realpath(argv[0], NULL) ?: ucm_tool_format("%s", argv[0]);
	status = ucm_target_run(opt.common.mount, drain_directory);
	free(opt.directory);
	return status;
}

const struct ucm_command ucm_drain_command = {
	.name = "drain",
	.does = "empty a directory before it is taken away",
	.operands = "DIRECTORY",
	.about = "Have the daemon write nothing new into a backing directory of a "
		 "mount, and move its blocks to others. No block is evicted for "
		 "that: what has no room elsewhere stays. The command waits until "
		 "no block is left, or no other finds room; a signal ends the "
		 "waiting, not the drain. A drain ends with --stop or with the "
		 "mount. For root and the owner of the mount.",
	.args = args,
	.end = "Exit status 1: the command waited, and blocks are left.",
	.most = 1,
	.run = run,
};
