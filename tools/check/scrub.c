/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scrub.c - ucm scrub: all blocks are read and compared with their checksums;
 * see ucm(1).
 *
 * It reads the directories itself, past the page cache and under the deadline of
 * network file systems, space by space and by id, so that one id says how far it
 * is (mark.h). Every directory's file of a block is read. The daemon is asked
 * about a bad one alone: it reads it once more, and moves it aside.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/process.h"
#include "hashing/tree.h"
#include "tools/check/mark.h"
#include "tools/check/media.h"
#include "tools/lib/args.h"
#include "tools/lib/list.h"
#include "tools/lib/report.h"
#include "tools/lib/target.h"
#include "tools/lib/text.h"
#include "tools/lib/tool.h"

#define DEFAULT_RATE (UINT64_C(64) << 20)
#define SAVE_MS 2000

static struct options {
	struct ucm_common common;
	uint64_t rate;
	const char *state;
	bool anew;
} opt = { .rate = DEFAULT_RATE };

static const struct ucm_arg args[] = {
	UCM_ARG_MOUNT(opt.common),
	UCM_ARG_TIERS(opt.common),
	{ "space", 's', "NAME", ucm_arg_space, &opt.common.space,
	  .help = "only the blocks of spaces/NAME (default: all)" },
	UCM_ARG_JSON(opt.common),
	{ "rate", 'r', "BYTES", ucm_arg_bytes, &opt.rate,
	  .help = "bytes a second, as 64M (the default) or 1G; 0: as "
		  "fast as possible" },
	{ "state", 0, "FILE", ucm_arg_text, &opt.state,
	  .help = "the resume mark (default: a file in $XDG_STATE_HOME/ucmfs, "
		  "/var/lib/ucmfs for root, or ~/.local/state/ucmfs)" },
	{ "anew", 0, .to = &opt.anew,
	  .help = "from the beginning, whatever the mark says" },
	{ 0 },
};

struct scrub {
	const char *mount; /* as ucm_client_connect() has it */
	struct ucm_media media;
	struct ucm_report report;
	struct ucm_mark mark;
	uint64_t blocks, bytes, intact, unchecked, quarantined, repaired;
	int64_t paid_ns; /* until then what was read has been paid for */
	int64_t saved_ms;
};

struct space {
	const char *name;
	char folder[UCM_TREE_FOLDER_MAX];
};

/* A file to read. */
struct item {
	struct ucm_id id;
	unsigned dir;
};

struct list {
	struct item *items;
	size_t num, room;
};

/* ---- the rate ---- */

static int pay(void *arg, size_t bytes)
{
	int64_t now = ucm_monotonic_ns();
	struct scrub *scrub = arg;
	struct timespec until;

	scrub->bytes += bytes;
	ucm_progress_tell(&scrub->report.progress, scrub->blocks, 0,
			  scrub->bytes);
	if (!opt.rate)
		return 0;
	if (scrub->paid_ns < now)
		scrub->paid_ns = now;
	scrub->paid_ns += (int64_t)((double)bytes * 1e9 / (double)opt.rate);
	until = (struct timespec){ .tv_sec = scrub->paid_ns / 1000000000,
				   .tv_nsec = scrub->paid_ns % 1000000000 };
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL))
		;
	return 0;
}

/* ---- a bad file ---- */

static bool is_there(struct scrub *scrub, const struct space *space,
		     const struct item *item, const struct stat *st)
{
	struct ucm_medium *medium = scrub->media.dirs[item->dir].medium;
	struct stat now;

	return !ucm_medium_find(medium, space->folder, &item->id, &now) &&
	       now.st_ino == st->st_ino &&
	       ucm_time_ns(&now.st_ctim) == ucm_time_ns(&st->st_ctim);
}

/* By a connection for that alone: a scrub takes long, and daemons end before. result:
 * of the block. */
static int ask_daemon(const char *mount, const struct space *space,
		      const struct ucm_id *id, int32_t *result)
{
	struct ucm_blocks *blocks;
	int err = ucm_blocks_open(mount, &blocks);

	if (err)
		return err;
	err = ucm_blocks_check(blocks, space->name, id, 1, result);
	ucm_blocks_close(blocks);
	return err;
}

/* Report it to the daemon: what that has done. NULL: it is no block of the mount. */
static const char *scrub_report(struct scrub *scrub,
				const struct space *space,
				const struct item *item, const struct stat *st)
{
	int32_t result = 0;
	int err = ask_daemon(scrub->mount, space, &item->id, &result);

	if (err)
		return err == -ENOENT ? "not mounted any more"
				      : ucm_target_words(err);
	if (is_there(scrub, space, item, st))
		return result == -ENOENT ? NULL : "not quarantined";
	scrub->quarantined++;
	scrub->repaired += !result;
	return result ? "quarantined" : "quarantined; another copy is right";
}

/* One that is gone or another file by now is nothing to report. */
static void scrub_bad(struct scrub *scrub, const struct space *space,
		      const struct item *item, const char *path,
		      const struct stat *st, const struct ucm_outcome *outcome)
{
	const char *became;
	char text[128], words[256];

	if (!is_there(scrub, space, item, st))
		return;
	became = scrub_report(scrub, space, item, st);
	ucm_outcome_text(outcome, text, sizeof(text));
	snprintf(words, sizeof(words), "%s: %s", text,
		 became ? became : "no block of the mount, left alone");
	if (became)
		ucm_report_text(&scrub->report, &item->id, path, -EBADMSG,
				words);
	else
		ucm_tool_complain("%s: %s", path, words);
}

/* ---- a file ---- */

static int scrub_read(struct scrub *scrub, const struct space *space,
		      const struct item *item, struct stat *st,
		      struct ucm_outcome *outcome)
{
	struct ucm_medium *medium = scrub->media.dirs[item->dir].medium;
	_cleanup_file_ struct ucm_file file = UCM_NO_FILE;
	enum ucm_fault fault = UCM_FAULT_NONE;
	struct ucm_block block = { .flags = 0 };
	int err = ucm_medium_open_block(medium, space->folder, &item->id, &file,
					st)
		?: ucm_file_verify(&file, st, &item->id, pay, scrub, &block,
				   &fault, &outcome->plane);

	if (!err && fault) {
		outcome->fault = (uint16_t)fault;
		err = -EBADMSG;
	}
	scrub->intact += !err;
	scrub->unchecked += !err && !(block.flags & UCM_BLOCK_HAS_CRC);
	return err;
}

/* A block that was evicted or moved since its bucket was listed is no fault. */
static void scrub_item(struct scrub *scrub, const struct space *space,
		       const struct item *item)
{
	struct ucm_media_dir *dir = &scrub->media.dirs[item->dir];
	struct ucm_outcome outcome = { 0 };
	_cleanup_free_ char *path = NULL;
	char below[UCM_TREE_PATH_MAX];
	struct stat st;

	if (!ucm_media_asks(dir))
		return;
	outcome.err = scrub_read(scrub, space, item, &st, &outcome);
	if (outcome.err == -ENOENT)
		return;
	scrub->blocks++;
	if (!outcome.err)
		return;
	ucm_tree_block_path(space->folder, &item->id, below);
	path = ucm_tool_format("%s/%s", dir->medium->path, below);
	if (outcome.err == -EBADMSG) {
		scrub_bad(scrub, space, item, path, &st, &outcome);
		return;
	}
	ucm_report_block(&scrub->report, &item->id, path, &outcome);
	ucm_media_leave(&scrub->media, dir, outcome.err);
}

/* ---- a bucket ---- */

static int by_id(const void *a, const void *b)
{
	const struct item *x = a, *y = b;
	int order = memcmp(&x->id, &y->id, sizeof(x->id));

	return order ? order : (int)x->dir - (int)y->dir;
}

static void add_name(struct list *list, unsigned dir, unsigned bucket,
		     const char *name)
{
	struct item item = { .dir = dir };

	if (ucm_tree_parse_block(name, &item.id) ||
	    ucm_tree_bucket(&item.id) != bucket)
		return;
	list->items = ucm_tool_grow(list->items, list->num, &list->room,
				    sizeof(item));
	list->items[list->num++] = item;
}

static void list_bucket(struct scrub *scrub, const struct space *space,
			unsigned dir, unsigned bucket, struct list *list)
{
	struct ucm_medium *medium = scrub->media.dirs[dir].medium;
	_cleanup_free_ char *names = NULL;
	char below[UCM_TREE_PATH_MAX];
	int err = ucm_medium_list(medium, space->folder, bucket, &names);

	if (err && err != -ENOENT) { /* buckets are made when they are needed */
		ucm_tree_bucket_path(space->folder, bucket, below);
		ucm_media_note(&scrub->media, &scrub->media.dirs[dir], below,
			       err);
	}
	for (const char *name = names; name && *name && !err;
	     name += strlen(name) + 1)
		add_name(list, dir, bucket, name);
}

static int scrub_passed(struct scrub *scrub, const struct space *space,
			const struct ucm_id *id)
{
	struct ucm_mark *mark = &scrub->mark;

	if (scrub->media.failed) /* what was left out comes again */
		return 0;
	mark->any = true;
	snprintf(mark->space, sizeof(mark->space), "%s", space->name);
	mark->after = *id;
	if (ucm_monotonic_ms() - scrub->saved_ms < SAVE_MS)
		return 0;
	scrub->saved_ms = ucm_monotonic_ms();
	return ucm_mark_save(mark);
}

static bool has_been_read(const struct scrub *scrub,
			  const struct space *space,
			  const struct ucm_id *id)
{
	const struct ucm_mark *mark = &scrub->mark;

	return mark->any && !strcmp(mark->space, space->name) &&
	       memcmp(id, &mark->after, sizeof(*id)) <= 0;
}

static int scrub_bucket(struct scrub *scrub, const struct space *space,
			unsigned bucket)
{
	struct list list = { 0 };
	int err = 0;

	for (unsigned dir = 0; dir < scrub->media.num; dir++) {
		if (ucm_media_asks(&scrub->media.dirs[dir]))
			list_bucket(scrub, space, dir, bucket, &list);
	}
	if (list.num)
		qsort(list.items, list.num, sizeof(*list.items), by_id);
	for (size_t i = 0; i < list.num && !err; i++) {
		const struct item *item = &list.items[i];
		bool last = i + 1 == list.num ||
			    memcmp(&item->id, &item[1].id, sizeof(item->id));

		if (has_been_read(scrub, space, &item->id))
			continue;
		scrub_item(scrub, space, item);
		if (last)
			err = scrub_passed(scrub, space, &item->id);
	}
	free(list.items);
	return err;
}

/* ---- spaces ---- */

static int scrub_space(struct scrub *scrub, const char *name)
{
	const struct ucm_mark *mark = &scrub->mark;
	struct space space = { .name = name };
	unsigned bucket = 0;
	int err = 0;

	if (mark->any && strcmp(name, mark->space) < 0)
		return 0;
	if (mark->any && !strcmp(name, mark->space))
		bucket = ucm_tree_bucket(&mark->after);
	ucm_tree_folder(name, space.folder);
	for (; bucket < UCM_BUCKETS && !err; bucket++)
		err = scrub_bucket(scrub, &space, bucket);
	return err;
}

static int scrub_spaces(struct scrub *scrub, char *const *spaces, size_t num)
{
	int err = 0;

	if (opt.common.space)
		return scrub_space(scrub, opt.common.space);
	for (size_t i = 0; i < num && !err; i++)
		err = scrub_space(scrub, spaces[i]);
	return err;
}

/* ---- the command ---- */

/* The directories, which the daemon names to root and the owner. */
static void open_media(struct scrub *scrub)
{
	const char *paths[UCM_MAX_DIRS];
	json_t *stats = NULL, *list, *directory;
	unsigned num = 0;
	size_t i;
	int err = ucm_target_stats(scrub->mount, &stats);

	if (err == -EACCES)
		ucm_tool_complain("%s: %s", scrub->mount,
				  ucm_target_words(-EPERM));
	if (err)
		ucm_tool_exit(UCM_EXIT_FAILED);
	list = ucm_target_directories(stats);
	json_array_foreach(list, i, directory) {
		const char *path = ucm_json_get_text(directory, "path");

		if (path && num < UCM_MAX_DIRS)
			paths[num++] = path;
	}
	err = ucm_media_open(&scrub->media, paths, num);
	json_decref(list);
	json_decref(stats);
	if (err) {
		ucm_media_close(&scrub->media);
		ucm_tool_exit(UCM_EXIT_FAILED);
	}
}

static void print_begin(struct ucm_mark *mark)
{
	char folder[UCM_TREE_FOLDER_MAX];

	mark->any = mark->any && !opt.anew;
	if (!mark->any)
		return;
	ucm_tree_folder(mark->space, folder);
	fprintf(stderr, "ucm scrub: goes on after %s in %s\n",
		ucm_hex(&mark->after).text, folder);
}

static int scrub_media(struct scrub *scrub, char *const *spaces, size_t num)
{
	struct ucm_report *report = &scrub->report;
	int err, ended;

	ucm_report_init(report, opt.common.json, stdout);
	ucm_process_give_way(true);
	print_begin(&scrub->mark);
	err = scrub_spaces(scrub, spaces, num);
	if (!err)
		ucm_mark_remove(&scrub->mark);
	else if (scrub->mark.any)
		ucm_mark_save(&scrub->mark);
	ended = ucm_report_end(report,
			       (struct ucm_count[]){
				       { "intact", scrub->intact },
				       { "unchecked", scrub->unchecked },
				       { "quarantined", scrub->quarantined },
				       { "repaired", scrub->repaired },
				       { NULL, 0 } },
			       scrub->blocks, scrub->bytes);
	if (report->damaged || report->failed || scrub->media.failed)
		err = -EIO;
	ucm_report_fini(report);
	return err ? err : ended;
}

static int run_scrub(struct scrub *scrub, char *const *spaces, size_t num)
{
	_cleanup_free_ char *only = ucm_tool_format(
		"%s%s", opt.common.space ? "/" : "*", opt.common.space ?: "");
	int err;

	ucm_mark_open(&scrub->mark, opt.state, scrub->mount, only);
	err = scrub_media(scrub, spaces, num);
	ucm_mark_close(&scrub->mark);
	return err ? UCM_EXIT_FAILED : 0;
}

/* What the daemon says of spaces and directories: then it may end. */
static void learn(struct scrub *scrub, char ***spaces, size_t *num)
{
	struct ucm_target target;

	if (ucm_target_open(scrub->mount, &target) ||
	    (opt.common.space &&
	     ucm_target_batch(&target, ucm_blocks_lookup, opt.common.space, NULL,
			      0, NULL, NULL)) ||
	    ucm_spaces_read(&target, spaces, num))
		ucm_tool_exit(UCM_EXIT_FAILED);
	open_media(scrub);
	ucm_target_close(&target);
}

static int run(int argc, char **argv)
{
	_cleanup_free_ char *mount = ucm_mount_find(opt.common.mount);
	struct scrub scrub = { .mount = mount };
	char **spaces;
	size_t num;
	int status;

	(void)argc, (void)argv;
	learn(&scrub, &spaces, &num);
	status = run_scrub(&scrub, spaces, num);
	ucm_media_close(&scrub.media);
	ucm_spaces_free(spaces, num);
	return status;
}

const struct ucm_command ucm_scrub_command = {
	.name = "scrub",
	.does = "find blocks that the disk has not kept",
	.operands = "[MOUNT]",
	.about = "Read all blocks of a mount in all its directories, past the "
		 "page cache and at a bounded rate, and compare them with their "
		 "checksums. The daemon quarantines what is wrong (see ucm "
		 "quarantine), and uses a good copy of another directory from "
		 "then on. Reading is no use of a block. A run that was ended "
		 "goes on from its resume mark. For root and the owner of the "
		 "mount.",
	.args = args,
	.end = "Exit status 1: a block was damaged or could not be read, or not "
	       "all were read.",
	.common = &opt.common,
	.run = run,
};
