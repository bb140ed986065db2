/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucm_scrub.c - ucm scrub: all blocks are read and compared, by the daemon; see
 * ucm(1).
 *
 * The command begins a run and looks on until it is over. A signal ends the
 * looking on alone: the run is the daemon's.
 */
#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/cleanup.h"
#include "common/parse.h"
#include "hashing/tree.h"
#include "tools/ucm_args.h"
#include "tools/ucm_client.h"
#include "tools/ucm_text.h"
#include "tools/ucm_tool.h"

#define POLL_NS 200000000
#define DEFAULT_RATE (UINT64_C(64) << 20)

static struct options {
	struct ucm_common common;
	uint64_t rate;
	bool status, stop, anew, background;
} opt = { .rate = DEFAULT_RATE };

static int parse_rate(const struct ucm_arg *arg, char *value)
{
	return ucm_parse_bytes(value, arg->to);
}

static const struct ucm_arg args[] = {
	UCM_ARG_MOUNT(opt.common),
	{ "space", 's', "NAME", ucm_arg_space, &opt.common.space,
	  .help = "only the blocks of spaces/NAME (default: all)" },
	UCM_ARG_JSON(opt.common),
	{ "rate", 'r', "BYTES", parse_rate, &opt.rate,
	  .help = "read so many a second, as 64M (the default) or 1G; 0: as "
		  "fast as it goes" },
	{ "status", 0, .to = &opt.status,
	  .help = "only say how far it is, or what the last one has found" },
	{ "stop", 0, .to = &opt.stop,
	  .help = "stop it; the next one goes on from there" },
	{ "anew", 0, .to = &opt.anew,
	  .help = "from the beginning, though one was stopped" },
	{ "background", 'b', .to = &opt.background,
	  .help = "begin it, and do not wait for its end" },
	{ 0 },
};

static const char *const states[] = {
	[UCM_SCRUB_NONE] = "none",	 [UCM_SCRUB_RUNNING] = "running",
	[UCM_SCRUB_WAITING] = "waiting", [UCM_SCRUB_STOPPED] = "stopped",
	[UCM_SCRUB_DONE] = "done",
};

static const char *state_of(const struct ucm_control_scrub_dir *dir)
{
	return dir->now <= UCM_SCRUB_DONE ? states[dir->now] : "?";
}

static bool is_active(const struct ucm_control_scrub_dir *dir)
{
	return dir->now == UCM_SCRUB_RUNNING || dir->now == UCM_SCRUB_WAITING;
}

static bool is_any_active(const struct ucm_control_scrub *scrub)
{
	for (uint32_t i = 0; i < scrub->num; i++) {
		if (is_active(&scrub->dirs[i]))
			return true;
	}
	return false;
}

struct sums {
	uint64_t blocks, total_blocks, bytes, total_bytes;
	uint64_t bad, missing, repaired, unreadable, unchecked;
};

static struct sums sums_of(const struct ucm_control_scrub *scrub)
{
	struct sums sums = { 0 };

	for (uint32_t i = 0; i < scrub->num; i++) {
		const struct ucm_control_scrub_dir *dir = &scrub->dirs[i];

		sums.blocks += dir->blocks;
		sums.total_blocks += dir->total_blocks;
		sums.bytes += dir->bytes;
		sums.total_bytes += dir->total_bytes;
		sums.bad += dir->bad;
		sums.missing += dir->missing;
		sums.repaired += dir->repaired;
		sums.unreadable += dir->unreadable;
		sums.unchecked += dir->unchecked;
	}
	return sums;
}

/* ---- what it has found ---- */

/* Paths are for those who may read stats.json, which are the same. */
static json_t *read_paths(const struct ucm_client *client)
{
	json_t *stats = NULL, *paths = json_array(), *tier, *directory;
	size_t i, j;

	ucm_client_stats(client->mount, &stats);
	json_array_foreach(json_object_get(stats, "tiers"), i, tier) {
		json_array_foreach(json_object_get(tier, "directories"), j,
				   directory)
			json_array_append(paths,
					  json_object_get(directory, "path"));
	}
	json_decref(stats);
	return paths;
}

static void print_dir(const struct ucm_control_scrub_dir *dir, const char *path)
{
	printf("%-8s %10u %10u %8s %5u %7u %8u %10u  %s%s%s\n", state_of(dir),
	       dir->blocks, dir->total_blocks,
	       ucm_text_size(dir->bytes, false).text, dir->bad, dir->missing,
	       dir->repaired, dir->unreadable, path, dir->error ? ": " : "",
	       dir->error ? strerrordesc_np(dir->error) : "");
}

static void print_all(const struct ucm_control_scrub *scrub,
		      const json_t *paths)
{
	struct sums sums = sums_of(scrub);

	printf("%-8s %10s %10s %8s %5s %7s %8s %10s  %s\n", "STATE", "READ",
	       "OF", "BYTES", "BAD", "MISSING", "REPAIRED", "UNREADABLE",
	       "DIRECTORY");
	for (uint32_t i = 0; i < scrub->num; i++) {
		const char *path = json_string_value(json_array_get(paths, i));

		print_dir(&scrub->dirs[i], path ? path : "?");
	}
	if (sums.unchecked)
		printf("%" PRIu64 " blocks have no checksums\n",
		       sums.unchecked);
}

static json_t *describe_dir(const struct ucm_control_scrub_dir *dir,
			    json_t *path)
{
	return json_pack(
		"{sO? ss ss? sI sI sI sI sI sI sI sI sI sI sI}", "path", path,
		"state", state_of(dir), "error",
		dir->error ? strerrordesc_np(dir->error) : NULL, "blocks",
		(json_int_t)dir->blocks, "total_blocks",
		(json_int_t)dir->total_blocks, "bytes", (json_int_t)dir->bytes,
		"total_bytes", (json_int_t)dir->total_bytes, "bad",
		(json_int_t)dir->bad, "missing", (json_int_t)dir->missing,
		"repaired", (json_int_t)dir->repaired, "unreadable",
		(json_int_t)dir->unreadable, "unchecked",
		(json_int_t)dir->unchecked, "began", (json_int_t)dir->began_s,
		"ended", (json_int_t)dir->ended_s);
}

static json_t *describe(const struct ucm_client *client,
			const struct ucm_control_scrub *scrub,
			const json_t *paths)
{
	struct sums sums = sums_of(scrub);
	json_t *list = json_array();

	for (uint32_t i = 0; i < scrub->num; i++)
		json_array_append_new(list,
				      describe_dir(&scrub->dirs[i],
						   json_array_get(paths, i)));
	return json_pack("{so sb sI sI sI sI sI sI sI sI sI so}", "mount",
			 ucm_json_text(client->mount), "running",
			 is_any_active(scrub), "blocks",
			 (json_int_t)sums.blocks, "total_blocks",
			 (json_int_t)sums.total_blocks, "bytes",
			 (json_int_t)sums.bytes, "total_bytes",
			 (json_int_t)sums.total_bytes, "bad",
			 (json_int_t)sums.bad, "missing",
			 (json_int_t)sums.missing, "repaired",
			 (json_int_t)sums.repaired, "unreadable",
			 (json_int_t)sums.unreadable, "unchecked",
			 (json_int_t)sums.unchecked, "directories", list);
}

static int tell_result(const struct ucm_client *client,
		       const struct ucm_control_scrub *scrub)
{
	struct sums sums = sums_of(scrub);
	/* what was begun, asked for or stopped has been */
	bool looks_on = !opt.background && !opt.status && !opt.stop;
	int status = looks_on && (sums.bad || sums.missing || sums.unreadable)
			     ? UCM_EXIT_FAILED
			     : 0;
	json_t *paths = read_paths(client);

	if (opt.common.json) {
		status = ucm_json_print(describe(client, scrub, paths), status);
	} else {
		print_all(scrub, paths);
		status |= ucm_tool_flush();
	}
	json_decref(paths);
	return status;
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

static void tell_progress(struct ucm_progress *progress,
			  const struct ucm_control_scrub *scrub)
{
	struct sums sums = sums_of(scrub);

	ucm_progress_say(progress,
			 "%" PRIu64 " of %" PRIu64 " blocks, %s of %s, %" PRIu64
			 " bad, %" PRIu64 " repaired",
			 sums.blocks, sums.total_blocks,
			 ucm_text_size(sums.bytes, false).text,
			 ucm_text_size(sums.total_bytes, false).text, sums.bad,
			 sums.repaired);
}

static int look_on(struct ucm_client *client, struct ucm_control_scrub *scrub)
{
	const struct timespec poll = { .tv_nsec = POLL_NS };
	struct ucm_progress progress;
	int err = 0;

	catch_signals();
	ucm_progress_begin(&progress);
	while (!err && !interrupted && is_any_active(scrub)) {
		nanosleep(&poll, NULL);
		err = ucm_blocks_scrub_status(client->blocks, scrub);
		tell_progress(&progress, scrub);
	}
	ucm_progress_clear(&progress);
	if (interrupted)
		fputs("ucm scrub: it goes on; --status, --stop\n", stderr);
	return err;
}

/* ---- the command ---- */

static const char *words(int err)
{
	if (err == -EBUSY)
		return "a scrub of other blocks is going on; --stop it first";
	return ucm_client_words(err);
}

static int make_call(struct ucm_client *client, struct ucm_control_scrub *scrub)
{
	const char *space = opt.common.space;

	if (opt.status)
		return ucm_blocks_scrub_status(client->blocks, scrub);
	if (opt.stop)
		return ucm_blocks_scrub_stop(client->blocks, scrub);
	return ucm_blocks_scrub_start(client->blocks, space,
				      (space ? UCM_SCRUB_SPACE : 0) |
					      (opt.anew ? UCM_SCRUB_ANEW : 0),
				      opt.rate, scrub);
}

static int scrub_mount(struct ucm_client *client)
{
	_cleanup_free_ struct ucm_control_scrub *scrub =
		calloc(1, sizeof(*scrub));
	int err;

	if (!scrub)
		return ucm_tool_fail(UCM_EXIT_FAILED, "no memory");
	err = make_call(client, scrub);
	if (!err && !opt.status && !opt.stop && !opt.background)
		err = look_on(client, scrub);
	if (err)
		return ucm_tool_fail(UCM_EXIT_FAILED, "%s: %s", client->mount,
				     words(err));
	return tell_result(client, scrub) |
	       (interrupted ? UCM_EXIT_FAILED : 0);
}

static int run(int argc, char **argv)
{
	(void)argc, (void)argv;
	if ((opt.status || opt.stop) &&
	    opt.status + opt.stop + opt.anew + opt.background > 1)
		return ucm_tool_fail(UCM_EXIT_USAGE, "--status and --stop stand "
				     "alone; try --help");
	return ucm_client_run(opt.common.mount, scrub_mount);
}

const struct ucm_command ucm_scrub_command = {
	.name = "scrub",
	.does = "find blocks that the disk has not kept",
	.operands = "[MOUNT]",
	.about = "Read all blocks of a mount, and compare their checksums with "
		 "what the disks have. The daemon does it, at a bounded rate and "
		 "giving way to others; it goes on after a restart. What is "
		 "wrong is set aside (see ucm quarantine); if a second directory "
		 "has a good copy, that takes its place. What cannot be read is "
		 "reported. The command looks on until the end; a signal ends "
		 "the looking on alone. For root and the owner of the mount.",
	.args = args,
	.end = "Exit status 1: it was looked on to the end, and a block was "
	       "bad, missing or unreadable.",
	.common = &opt.common,
	.run = run,
};
