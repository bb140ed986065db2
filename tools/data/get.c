/* SPDX-License-Identifier: Apache-2.0 */
/*
 * get.c - ucm get: blocks of a store to pages of a file; see ucm(1).
 *
 * The file is made under a name of its own beside RAW and renamed when all is
 * in it: an incomplete one is never seen as RAW.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/data/pages.h"
#include "tools/lib/tool.h"

/* The unfinished file; NULL: none. For the handler, too. */
static char *volatile temp;

/* ---- the file ---- */

static void on_signal(int number)
{
	if (temp)
		unlink(temp);
	_exit(128 + number);
}

static void catch_signals(void)
{
	struct sigaction action = { .sa_handler = on_signal };

	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGHUP, &action, NULL);
}

/* The loader writes into the mapping, where a full disk would be SIGBUS: the
 * room is taken beforehand. */
static void make_raw(struct ucm_move_job *job)
{
	char *name = ucm_tool_format("%s.XXXXXX", job->raw);
	struct stat st;
	int err;

	if (!stat(job->raw, &st) && !S_ISREG(st.st_mode))
		ucm_tool_die(UCM_EXIT_FAILED, "%s: not a regular file", job->raw);
	job->fd = mkostemp(name, O_CLOEXEC);
	if (job->fd < 0)
		ucm_tool_die(UCM_EXIT_FAILED, "%s: %s", job->raw, strerror(errno));
	temp = name;
	err = job->len ? posix_fallocate(job->fd, 0, (off_t)job->len) : 0;
	if (err)
		ucm_tool_die(UCM_EXIT_FAILED, "%s: %s", job->raw, strerror(err));
	ucm_move_map(job, true);
}

static void drop_raw(void)
{
	char *name = temp;

	if (!name)
		return;
	unlink(name);
	temp = NULL;
	free(name);
}

static void finish_raw(struct ucm_move_job *job)
{
	mode_t mask = umask(0);
	char *name = temp;

	umask(mask);
	/* mkostemp(3) made it for us alone */
	if (fchmod(job->fd, 0666 & ~mask) || rename(name, job->raw))
		ucm_tool_die(UCM_EXIT_FAILED, "%s: %s", job->raw, strerror(errno));
	temp = NULL;
	free(name);
}

/* ---- all of it ---- */

/* Pages of absent blocks are as they were made: zeros. */
static bool is_complete(const struct ucm_move_job *job)
{
	const struct ucm_report *report = &job->report;

	return !report->damaged && !report->failed &&
	       (!report->absent || job->opt->missing_zero);
}

static int get(struct ucm_move_job *job)
{
	int status;

	make_raw(job);
	ucm_move_run(job, false);
	status = ucm_move_report(job, false);
	if (is_complete(job))
		finish_raw(job);
	else
		status = UCM_EXIT_FAILED; /* and the cause has been reported */
	return status;
}

static const struct ucm_arg args[] = {
	UCM_ARGS(ucm_store_where),
	{ "missing", 0, "fail|zero", ucm_arg_choice,
	  &ucm_store_opt.missing_zero,
	  .help = "what an absent block means: no RAW (default), or zeros in "
		  "its place" },
	/* in the order of enum ucm_verify */
	{ "verify", 0, "full|header|none|once", ucm_arg_choice,
	  &ucm_store_opt.verify,
	  .help = "what is checked: header and checksums (full), header, "
		  "hardly anything, or checksums unless the mount knows that "
		  "they were compared on this machine (once)" },
	UCM_ARGS(ucm_store_shapes),
	{ 0 },
};

static int run(int argc, char **argv)
{
	struct ucm_move_job job;
	int status;

	ucm_store_options_check(argc, argv);
	catch_signals();
	atexit(drop_raw);
	ucm_move_init(&job, &ucm_store_opt);
	status = get(&job);
	ucm_move_fini(&job);
	return status;
}

const struct ucm_command ucm_get_command = {
	.name = "get",
	.does = "load blocks of a store into a file",
	.operands = "RAW [IDS]",
	.about = "Load blocks of a store into a new file RAW: the payload of "
		 "one block after the other, as ucm put reads it. IDS or standard "
		 "input lists their ids, one a line, as ucm hash prints them. "
		 "RAW appears only when it is complete.",
	.args = args,
	.end = UCM_STORE_SHAPES_END
	       "\n\nExit status 1: a block could not be loaded.",
	.most = 2,
	.run = run,
};
