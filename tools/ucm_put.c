/* SPDX-License-Identifier: Apache-2.0 */
/* ucm_put.c - ucm put: pages of a file to blocks of a store; see ucm(1). */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/ucm_move.h"
#include "tools/ucm_tool.h"

/* A page more or less would mean that the blocks get others' bytes. */
static int open_raw(struct ucm_move_job *job)
{
	struct stat st;

	job->fd = open(job->raw, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (job->fd < 0 || fstat(job->fd, &st))
		return ucm_tool_complain("%s: %s", job->raw, strerror(errno));
	if (!S_ISREG(st.st_mode))
		return ucm_tool_complain("%s: not a regular file", job->raw);
	if ((uint64_t)st.st_size != job->len)
		return ucm_tool_complain("%s: %" PRIu64 " bytes; %zu blocks of "
					 "%" PRIu64 " are %" PRIu64,
					 job->raw, (uint64_t)st.st_size,
					 job->ids.num, job->page_bytes,
					 job->len);
	return ucm_move_map(job, false);
}

static int report(struct ucm_move_job *job)
{
	struct ucm_loader_stats stats = { 0 };

	if (job->loader)
		ucm_loader_get_stats(job->loader, &stats, sizeof(stats));
	return ucm_report_end(&job->report,
			      (struct ucm_count[]){
				      { "saved", stats.saves },
				      { "skipped", stats.save_skipped },
				      { NULL, 0 } },
			      job->ids.num, stats.save_bytes);
}

int ucm_put_main(int argc, char **argv)
{
	struct ucm_store_options opt;
	struct ucm_move_job job;
	int err;

	if (ucm_store_parse(&opt, UCM_PUT, argc, argv))
		return UCM_EXIT_USAGE;
	if (opt.help) {
		ucm_store_help(UCM_PUT);
		return 0;
	}
	err = ucm_move_init(&job, &opt);
	if (!err)
		err = open_raw(&job);
	if (!err)
		err = ucm_move_run(&job, true);
	if (!err)
		err = report(&job);
	if (!err && job.task && ucm_task_num_failed(job.task))
		err = -EIO;
	ucm_move_fini(&job);
	return err ? UCM_EXIT_FAILED : 0;
}
