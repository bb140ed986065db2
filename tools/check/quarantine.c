/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quarantine.c - ucm quarantine: list, restore and purge what was moved
 * aside; see ucm(1).
 *
 * It reads the directories themselves: the daemon puts files there and never
 * looks at them again. A file that verifies is restored as any program writes a
 * block: a copy of it into the mount, which the daemon checks once more.
 */
#include <config.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <time.h>
#include <unistd.h>

#include <ucm/load.h>

#include "common/cleanup.h"
#include "common/osfile.h"
#include "common/parse.h"
#include "fs/block/verify.h"
#include "hashing/tree.h"
#include "tools/lib/args.h"
#include "tools/lib/target.h"
#include "tools/lib/text.h"
#include "tools/lib/tool.h"

static bool json, all;
static uint64_t older_days; /* 0: not given */

static const struct ucm_arg args[] = {
	{ "json", 'j', .to = &json, .help = "print JSON instead" },
	{ "all", 'a', .to = &all, .help = "purge: all files" },
	{ "older", 0, "DAYS", ucm_arg_number, &older_days, .min = 1,
	  .max = 36500,
	  .help = "only files that were moved aside this many days ago" },
	{ 0 },
};

/* A file that was moved aside: SPACE@HASH.TIME. */
struct aside {
	const char *dir, *name;
	const char *mount; /* that serves dir; NULL: a directory was named */
	int dirfd, fd; /* of the file, once it was read, or negative */
	char space[UCM_TREE_SPACE_MAX + 1], hex[UCM_ID_HEX + 1];
	struct ucm_id id;
	int64_t since_s; /* the epoch */
	struct stat st;
	char verdict[160];
	bool intact;
	const char *failed; /* why the action was not possible; NULL: it was */
};

/* ---- the actions ---- */

/* list: reads all of a block, for the verdict */
static void inspect(struct aside *aside)
{
	int fd = aside->fd = ucm_os_open_regular(aside->dirfd, aside->name,
						 O_RDONLY, &aside->st);
	struct ucm_outcome outcome = { .err = fd < 0 ? fd : 0 };
	struct ucm_bytes bytes = ucm_bytes_of_fd(fd);
	enum ucm_fault fault = UCM_FAULT_NONE;
	struct ucm_block block = { .flags = 0 };

	if (fd >= 0)
		outcome.err = ucm_verify_whole(
			&bytes, (uint64_t)aside->st.st_size, &aside->id, &block,
			&fault, &outcome.plane);
	outcome.fault = (uint16_t)fault;
	if (!outcome.err && fault)
		outcome.err = -EBADMSG;
	aside->intact = !outcome.err && block.flags & UCM_BLOCK_HAS_CRC;
	strcpy(aside->verdict, aside->intact
				       ? "intact"
				       : "no checksums: cannot be checked");
	if (outcome.err)
		ucm_outcome_text(&outcome, aside->verdict,
				 sizeof(aside->verdict));
}

static void purge(struct aside *aside)
{
	if (unlinkat(aside->dirfd, aside->name, 0))
		aside->failed = strerrordesc_np(errno);
}

/* fsync(2) commits; a block that is then absent was not taken. */
static const char *write_block(const char *path, int from)
{
	/* stat(2) may find a file that is gone; an open does not */
	_cleanup_fd_ int old = open(path, O_RDONLY | O_CLOEXEC);
	_cleanup_fd_ int to = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
				   0644);
	int err = to < 0 ? errno : 0;

	if (old >= 0 || err == EEXIST)
		return "such a block is there";
	if (err)
		return err == ENOENT ? "its space is gone"
				     : strerrordesc_np(err);
	while ((err = (int)sendfile(to, from, NULL, 1 << 20)) > 0)
		;
	err = err ?: fsync(to);
	if (err && errno != EINVAL)
		return strerrordesc_np(errno);
	return err || access(path, F_OK) ? "it does not fit its space; the log "
					   "says why" : NULL;
}

static void restore(struct aside *aside)
{
	char folder[UCM_TREE_FOLDER_MAX], below[UCM_TREE_PATH_MAX];
	_cleanup_free_ char *path = NULL;

	inspect(aside);
	ucm_tree_folder(aside->space, folder);
	ucm_tree_block_path(folder, &aside->id, below);
	path = ucm_tool_format("%s/%s", aside->mount ?: "", below);
	if (!aside->intact)
		aside->failed = aside->verdict;
	else if (!aside->mount)
		aside->failed = "it is restored through a mount; name that";
	else
		aside->failed = write_block(path, aside->fd);
	if (!aside->failed)
		purge(aside);
}

static const struct action {
	const char *name, *done;
	void (*run)(struct aside *aside);
} actions[] = { { "list", "", inspect }, { "restore", "restored", restore },
		{ "purge", "purged", purge } };

/* What is asked for, and what came of it. */
static struct work {
	const struct action *action;
	char **words; /* places and names */
	int num, places, status;
	bool *found; /* of each */
	json_int_t files, bytes, failed; /* bytes: on disk */
	json_t *json;
} work;

/* ---- output ---- */

static void print_file(const struct aside *aside)
{
	const char *space = *aside->space ? aside->space : UCM_TREE_BLOCKS;

	if (work.json)
		ucm_json_add(work.json, json_pack(
			"{so ss so ss sI sI ss ss?}",
			"directory", ucm_json_text(aside->dir),
			"name", aside->name,
			"space", ucm_json_text(aside->space), "id", aside->hex,
			"size", (json_int_t)aside->st.st_size,
			"since", (json_int_t)aside->since_s,
			"verdict", aside->verdict, "error", aside->failed));
	if (aside->failed)
		work.status = ucm_tool_fail(UCM_EXIT_FAILED, "%s: %s",
					    aside->name, aside->failed);
	else if (!work.json && *work.action->done)
		printf("%s %s\n", work.action->done, aside->name);
	else if (!work.json)
		printf("%-6s %-5s %-12s %s  %s\n",
		       ucm_text_size((uint64_t)aside->st.st_size, false).text,
		       ucm_text_age(time(NULL) - aside->since_s).text, space,
		       aside->hex, aside->verdict);
}

static int print_end(void)
{
	if (work.json)
		return ucm_json_print(json_pack(
			"{ss sI sI sI so}", "action", work.action->name,
			"done", work.files, "failed", work.failed,
			"bytes", work.bytes, "files", work.json), work.status);
	printf("%lld file%s%s%s, %s on disk\n", work.files,
	       work.files == 1 ? "" : "s", *work.action->done ? " " : "",
	       work.action->done,
	       ucm_text_size((uint64_t)work.bytes, false).text);
	return ucm_tool_flush() | work.status;
}

/* ---- which files ---- */

/* Other names are not of ucmfs. */
static int parse_name(struct aside *aside)
{
	const char *name = aside->name, *at = strrchr(name, '@'), *end;
	uint64_t ns;

	if (!at || strlen(at) <= UCM_ID_HEX + 1)
		return -EINVAL;
	end = at + 1 + UCM_ID_HEX;
	snprintf(aside->space, sizeof(aside->space), "%.*s", (int)(at - name),
		 name);
	snprintf(aside->hex, sizeof(aside->hex), "%s", at + 1);
	if (*end != '.' || ucm_parse_u64(end + 1, &ns) ||
	    (at > name && !ucm_tree_space_valid(aside->space)))
		return -EINVAL;
	aside->since_s = (int64_t)(ns / 1000000000);
	return ucm_id_parse(aside->hex, &aside->id);
}

static bool is_wanted(const struct aside *aside)
{
	bool wanted = work.places == work.num;

	for (int i = 0; i < work.num; i++) {
		if (!strcmp(work.words[i], aside->name) ||
		    !strcmp(work.words[i], aside->hex))
			wanted = work.found[i] = true;
	}
	return wanted && time(NULL) - aside->since_s >=
				 (int64_t)older_days * 86400;
}

static void do_file(struct aside *aside)
{
	if (parse_name(aside) || !is_wanted(aside) ||
	    fstatat(aside->dirfd, aside->name, &aside->st,
		    AT_SYMLINK_NOFOLLOW) || !S_ISREG(aside->st.st_mode))
		return;
	work.action->run(aside);
	work.failed += aside->failed != NULL;
	work.files += !aside->failed;
	if (!aside->failed)
		work.bytes += aside->st.st_blocks * 512;
	print_file(aside);
}

static void do_directory(const char *path, const char *mount)
{
	_cleanup_fd_ int fd = ucm_mount_open(path, "quarantine",
					     O_RDONLY | O_DIRECTORY);
	struct dirent **names = NULL;
	int num = fd < 0 ? fd : scandirat(fd, ".", &names, NULL, alphasort);

	if (num < 0)
		work.status = ucm_tool_fail(
			UCM_EXIT_FAILED, "%s: %s", path, fd == -ENOENT
			? "neither a mount nor a directory of ucmfs"
			: strerror(fd < 0 ? -fd : errno));
	else if (!work.json && work.action->run == inspect)
		printf("%s/" UCM_TREE_OWN "/quarantine:\n", path);
	for (int i = 0; i < num; i++) {
		struct aside aside = { .dir = path, .name = names[i]->d_name,
				       .mount = mount, .dirfd = fd, .fd = -1 };

		do_file(&aside);
		ucm_cleanup_fd(&aside.fd);
		free(names[i]);
	}
	free(names);
}

static void do_place(const char *place)
{
	_cleanup_fd_ int answers = ucm_mount_open(place, "stats.json", O_PATH);
	json_t *stats = NULL, *list, *directory;
	size_t i;
	int err;

	if (answers == -ENOENT)
		return do_directory(place, NULL);
	err = ucm_target_stats(place, &stats);
	if (err == -EACCES)
		ucm_mount_complain(place, "stats.json", err);
	if (err)
		work.status = UCM_EXIT_FAILED;
	list = ucm_target_directories(stats);
	json_array_foreach(list, i, directory)
		do_directory(ucm_json_get_text(directory, "path"), place);
	json_decref(list);
	json_decref(stats);
}

/* ---- the command ---- */

/* An operand is a place or the name of a file; names have no '/'. */
static int do_all(void)
{
	_cleanup_free_ char *only = work.places ? NULL : ucm_mount_find(NULL);

	work.json = json ? json_array() : NULL;
	if (only)
		do_place(only);
	for (int i = 0; i < work.num; i++) {
		if (ucm_mount_is_named(work.words[i]))
			do_place(work.words[i]);
	}
	for (int i = 0; i < work.num; i++) {
		if (!work.found[i])
			work.status = ucm_tool_fail(
				UCM_EXIT_FAILED, "%s: not in the quarantine",
				work.words[i]);
	}
	return print_end();
}

static int run(int argc, char **argv)
{
	_cleanup_free_ bool *found = ucm_tool_alloc((size_t)argc, sizeof(*found));

	work = (struct work){ .words = argv + 1, .num = argc - 1, .found = found };
	for (int i = 0; argc && i < 3; i++) {
		if (!strcmp(argv[0], actions[i].name))
			work.action = &actions[i];
	}
	if (!work.action)
		ucm_tool_usage("%s: must be list, restore or purge",
			       argc ? argv[0] : "no action");
	for (int i = 0; i < work.num; i++)
		work.places += found[i] = ucm_mount_is_named(argv[i + 1]);
	if (work.action->run != purge || work.places != work.num || all ||
	    older_days)
		return do_all();
	ucm_tool_usage("purge: no NAME, no --older and no --all");
}

const struct ucm_command ucm_quarantine_command = {
	.name = "quarantine",
	.does = "look at what was moved aside, and clear it",
	.operands = "list [MOUNT|DIRECTORY|NAME]...\n"
		    "restore [MOUNT|NAME]...\n"
		    "purge [MOUNT|DIRECTORY|NAME]...",
	.about = "List the torn and damaged files in the quarantine of a "
		 "mount or a directory, and what is wrong with each; restore "
		 "blocks that are intact, as a copy into the mount; or purge "
		 "files. NAME is a file's name there, SPACE@HASH.TIME, or its "
		 "HASH; without any, all files are meant. A MOUNT or DIRECTORY "
		 "has a '/' in its name (default: the only mount).",
	.args = args,
	.end = "Exit status 1: not restored or purged, or not there.",
	.most = UCM_ARGS_ANY,
	.run = run,
};
