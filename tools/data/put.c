/* SPDX-License-Identifier: Apache-2.0 */
/* put.c - ucm put: pages of a file to blocks of a store; see ucm(1). */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/data/pages.h"
#include "tools/lib/tool.h"

/* A page more or less would mean that the blocks get others' bytes. */
static void open_raw(struct ucm_move_job *job)
{
	struct stat st;

	job->fd = open(job->raw, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (job->fd < 0 || fstat(job->fd, &st))
		ucm_tool_die(UCM_EXIT_FAILED, "%s: %s", job->raw, strerror(errno));
	if (!S_ISREG(st.st_mode))
		ucm_tool_die(UCM_EXIT_FAILED, "%s: not a regular file", job->raw);
	if ((uint64_t)st.st_size != job->len)
		ucm_tool_die(UCM_EXIT_FAILED, "%s: %" PRIu64 " bytes; %zu blocks "
			     "of %" PRIu64 " are %" PRIu64, job->raw,
			     (uint64_t)st.st_size, job->ids.num, job->page_bytes,
			     job->len);
	ucm_move_map(job, false);
}

/* ---- the command ---- */

static int parse_parent(const struct ucm_arg *arg, char *value)
{
	ucm_store_opt.parents = true;
	return strlen(value) == UCM_ID_HEX ? ucm_id_parse(value, arg->to)
					   : -EINVAL;
}

static const struct ucm_arg args[] = {
	UCM_ARGS(ucm_store_where),
	{ "parents", .to = &ucm_store_opt.parents,
	  .help = "the blocks are a chain: each names the one before as its "
		  "parent" },
	{ "parent", 0, "ID", parse_parent, &ucm_store_opt.parent,
	  .help = "the same, and the parent of the first block is this one" },
	UCM_ARGS(ucm_store_shapes),
	{ 0 },
};

static int run(int argc, char **argv)
{
	struct ucm_move_job job;
	int status;

	ucm_store_options_check(argc, argv);
	ucm_move_init(&job, &ucm_store_opt);
	open_raw(&job);
	ucm_move_run(&job, true);
	status = ucm_move_report(&job, true);
	if (job.task && ucm_task_num_failed(job.task))
		status = UCM_EXIT_FAILED;
	ucm_move_fini(&job);
	return status;
}

const struct ucm_command ucm_put_command = {
	.name = "put",
	.does = "save the contents of a file as blocks",
	.operands = "RAW [IDS]",
	.about = "Save what is in the file RAW as blocks of a store. RAW holds "
		 "the payload of one block after the other (layer 0 K, layer 0 "
		 "V, layer 1 K, ...) and nothing else. IDS or standard input "
		 "lists their ids, one a line, as ucm hash prints them. Blocks "
		 "that exist are left alone.",
	.args = args,
	.end = UCM_STORE_SHAPES_END
	       "\n\nExit status 1: a block could not be saved.",
	.most = 2,
	.run = run,
};
