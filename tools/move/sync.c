/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sync.c - ucm sync: what is done to all of a mount; see ucm(1).
 *
 * Each is one call, which lasts as long as it takes. A thread makes it, and this
 * one says meanwhile how far it is. A signal that ends the process ends the call.
 */
#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "hashing/tree.h"
#include "tools/lib/args.h"
#include "tools/lib/target.h"
#include "tools/lib/text.h"
#include "tools/lib/tool.h"

#define POLL_NS 200000000

struct work {
	const char *name;
	const char *done; /* what the mount is then */
	bool finds;	  /* blocks */
	int (*call)(struct ucm_blocks *blocks);
	/* How far it is, for the terminal; NULL: nobody knows. */
	void (*tell)(struct ucm_progress *progress, const json_t *before,
		     const json_t *now);
};

static struct ucm_common common;
static const struct work *work;

static const struct ucm_arg args[] = {
	UCM_ARG_MOUNT(common),
	UCM_ARG_JSON(common),
	{ 0 },
};

/* ---- stats.json ---- */

static uint64_t counter(const json_t *stats, const char *name)
{
	return ucm_json_get(json_object_get(stats, "counters"), name);
}

static uint64_t blocks_of(const json_t *stats)
{
	return ucm_json_get(json_object_get(stats, "index"), "blocks");
}

/* Blocks that flushes have left, for want of room below. */
static uint64_t refused(const json_t *stats)
{
	uint64_t sum = 0;
	json_t *tier;
	size_t i;

	json_array_foreach(json_object_get(stats, "tiers"), i, tier)
		sum += counter(tier, "flush_refused");
	return sum;
}

/* Why the call has not done all that it was to do with a directory. */
static const char *why_not(const json_t *directory, int err)
{
	const char *state = ucm_json_get_text(directory, "state");

	if (err != -EAGAIN && state && strcmp(state, "good"))
		return state;
	return ucm_json_get_text(directory, "no_checkpoint");
}

/* The directories that are not as they should be, for err: an array. */
static json_t *list_directories(const json_t *stats, int err)
{
	json_t *all = ucm_target_directories(stats), *list = json_array();
	json_t *directory;
	size_t i;

	json_array_foreach(all, i, directory) {
		const char *why = why_not(directory, err);

		if (why)
			ucm_json_add(
				list,
				json_pack("{sO ss sO?}", "path",
					  json_object_get(directory, "path"),
					  "why", why, "in_doubt",
					  json_object_get(directory,
							  "in_doubt")));
	}
	json_decref(all);
	return list;
}

/* ---- the call, and its progress ---- */

static void *make_call(void *arg)
{
	return (void *)(intptr_t)work->call(arg);
}

static bool has_ended(pthread_t thread, void **result)
{
	int64_t until_ns = ucm_monotonic_ns() + POLL_NS;
	const struct timespec until = { until_ns / 1000000000,
					until_ns % 1000000000 };

	return !pthread_clockjoin_np(thread, result, CLOCK_MONOTONIC, &until);
}

static void tell_rescan(struct ucm_progress *progress, const json_t *before,
			const json_t *now)
{
	uint64_t done = counter(now, "rescanned") -
			counter(before, "rescanned");
	json_t *directories = ucm_target_directories(now);

	ucm_progress_say(progress,
			 "%" PRIu64 " of %zu folders, %" PRIu64 " blocks",
			 done,
			 json_array_size(directories) * UCM_BUCKETS *
				 json_array_size(json_object_get(now,
								 "spaces")),
			 blocks_of(now));
	json_decref(directories);
}

static void tell_flush(struct ucm_progress *progress, const json_t *before,
		       const json_t *now)
{
	uint64_t left = ucm_json_get(json_object_get(now, "index"), "unsaved");

	(void)before;
	if (left)
		ucm_progress_say(progress, "%" PRIu64
				 " blocks are not below yet", left);
	else
		ucm_progress_say(progress, "syncing");
}

static void tell(struct ucm_progress *progress, const json_t *before,
		 const struct ucm_target *target)
{
	json_t *now = NULL;

	if (!work->tell) {
		ucm_progress_say(progress, "%" PRId64 " s",
				 (ucm_monotonic_ns() - progress->started_ns) /
					 1000000000);
		return;
	}
	if (!ucm_target_stats(target->mount, &now))
		work->tell(progress, before, now);
	json_decref(now);
}

/* What the call returned. */
static int run_call(struct ucm_target *target, const json_t *before)
{
	struct ucm_progress progress;
	pthread_t thread;
	void *result;

	ucm_progress_begin(&progress);
	if (!progress.terminal ||
	    pthread_create(&thread, NULL, make_call, target->blocks))
		return work->call(target->blocks);
	while (!has_ended(thread, &result))
		tell(&progress, before, target);
	ucm_progress_clear(&progress);
	return (int)(intptr_t)result;
}

/* ---- what came of it ---- */

static const char *words(int err)
{
	switch (err) {
	case -EAGAIN:
		return "not all of it is known to be good";
	case -EINTR:
		return "interrupted";
	default:
		return ucm_target_words(err);
	}
}

static void print_failure(const struct ucm_target *target, const json_t *list,
			  int err)
{
	json_t *directory;
	size_t i;

	ucm_tool_complain("%s: %s", target->mount, words(err));
	json_array_foreach(list, i, directory) {
		uint64_t doubts = ucm_json_get(directory, "in_doubt");
		char number[32] = "";

		if (doubts)
			snprintf(number, sizeof(number), " (%" PRIu64 ")", doubts);
		ucm_tool_complain("%s: %s%s",
				  ucm_json_get_text(directory, "path"),
				  ucm_json_get_text(directory, "why"), number);
	}
}

static int print_result(const struct ucm_target *target, const json_t *before,
			const json_t *after, double seconds)
{
	uint64_t was = blocks_of(before), is = blocks_of(after);
	uint64_t left = refused(after) - refused(before);

	printf("%s: %s in %s", target->mount, work->done,
	       ucm_text_duration(seconds).text);
	if (work->finds)
		printf(", %" PRIu64 " blocks, %" PRIu64 " more than before", is,
		       is > was ? is - was : 0);
	if (left)
		printf(", %" PRIu64 " blocks had no room in a lower tier; the "
		       "mount's log names them", left);
	putchar('\n');
	return ucm_tool_flush();
}

static json_t *describe(const struct ucm_target *target, const json_t *before,
			const json_t *after, double seconds, int err,
			json_t *list)
{
	return json_pack("{so ss sb sf sI sI sI ss? so}", "mount",
			 ucm_json_text(target->mount), "call",
			 work->name, "done", !err, "seconds", seconds,
			 "blocks_before", (json_int_t)blocks_of(before),
			 "blocks", (json_int_t)blocks_of(after), "no_room",
			 (json_int_t)(refused(after) - refused(before)), "error",
			 err ? words(err) : NULL, "directories", list);
}

static int run_on(struct ucm_target *target)
{
	json_t *before = NULL, *after = NULL, *list;
	int64_t began_ns = ucm_monotonic_ns();
	int status, err = ucm_target_stats(target->mount, &before);
	double seconds;

	/* who may not read it may not make the call, which says so */
	if (err && err != -EACCES)
		return UCM_EXIT_FAILED;
	err = run_call(target, before);
	seconds = (double)(ucm_monotonic_ns() - began_ns) / 1e9;
	if (before)
		ucm_target_stats(target->mount, &after);
	list = err && err != -EINTR && after ? list_directories(after, err)
					     : json_array();
	status = err ? UCM_EXIT_FAILED : 0;
	if (common.json) {
		status = ucm_json_print(describe(target, before, after,
						 seconds, err, json_incref(list)),
					status);
	} else if (err) {
		print_failure(target, list, err);
	} else {
		status = print_result(target, before, after, seconds);
	}
	json_decref(list);
	json_decref(before);
	json_decref(after);
	return status;
}

static const struct work works[] = {
	{ "flush", "flushed", .call = ucm_blocks_flush, .tell = tell_flush },
	{ "checkpoint", "checkpoint made", .call = ucm_blocks_checkpoint },
	{ "rescan", "rescanned", .finds = true, .call = ucm_blocks_rescan,
	  .tell = tell_rescan },
};

static int run(int argc, char **argv)
{
	int status;

	work = &works[0];
	for (size_t i = 0; argc && i < sizeof(works) / sizeof(*works); i++) {
		if (strcmp(argv[0], works[i].name))
			continue;
		work = &works[i];
		argc--;
		argv++;
		break;
	}
	status = ucm_args_take_mount(&common, argc, argv);
	return status < 0 ? ucm_target_run(common.mount, run_on) : status;
}

const struct ucm_command ucm_sync_command = {
	.name = "sync",
	.does = "put on disk what was written, or read directories again",
	.operands = "[flush] [MOUNT]\n"
		    "checkpoint [MOUNT]\n"
		    "rescan [MOUNT]",
	.about = "flush: copy new blocks to a lower tier, where that is "
		 "configured and has not been done, and sync all directories of "
		 "a mount, so that nothing that was committed before is lost in "
		 "a power cut.\n"
		 "checkpoint: sync all directories, and note in each that "
		 "everything up to now is on disk: after an unclean stop "
		 "nothing older has to be checked. A directory that has not "
		 "been read to its end, or has blocks in doubt, gets no note, "
		 "and is named.\n"
		 "rescan: read all directories again, for blocks that were put "
		 "there by hand. Spaces that were made by hand are found at "
		 "the next mount.\n"
		 "For root and the owner of the mount.",
	.args = args,
	.end = "Exit status 1: it could not be done, or not with every "
	       "directory.",
	.most = 2,
	.run = run,
};
