/* SPDX-License-Identifier: Apache-2.0 */
/* pages.c - between a file of pages and a store. */
#include <config.h>

#include "tools/data/pages.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/log.h"
#include "tools/lib/tool.h"

#define POLL_MS 100
#define fail(...) ucm_tool_die(UCM_EXIT_FAILED, __VA_ARGS__)

/* What the library logs beside the blocks' outcomes, which are reported. */
static void log_line(enum ucm_log_level level, const char *line)
{
	(void)level;
	ucm_tool_complain("%s", line);
}

void ucm_move_init(struct ucm_move_job *job,
		   const struct ucm_store_options *opt)
{
	*job = (struct ucm_move_job){
		.opt = opt,
		.raw = opt->args[0],
		.fd = -1,
	};
	ucm_log_set(log_line, UCM_LOG_ERROR);
	ucm_report_init(&job->report, opt->json, stderr);
	ucm_ids_read(opt->num_args > 1 ? opt->args[1] : "-", &job->ids);
	job->geometry = ucm_store_shape(opt);
	job->page_bytes = ucm_block_payload_bytes(&job->geometry);
	if (__builtin_mul_overflow(job->page_bytes, job->ids.num, &job->len) ||
	    job->len > INT64_MAX)
		fail("%zu blocks are more than a file can hold", job->ids.num);
}

void ucm_move_fini(struct ucm_move_job *job)
{
	ucm_task_free(job->task);
	ucm_loader_close(job->loader);
	if (job->memory)
		munmap(job->memory, job->len);
	if (job->fd >= 0)
		close(job->fd);
	ucm_ids_fini(&job->ids);
	ucm_report_fini(&job->report);
}

void ucm_move_map(struct ucm_move_job *job, bool writable)
{
	void *memory;

	if (!job->len)
		return;
	memory = mmap(NULL, job->len, PROT_READ | (writable ? PROT_WRITE : 0),
		      MAP_SHARED, job->fd, 0);
	if (memory == MAP_FAILED)
		fail("%s: %s", job->raw, strerror(errno));
	job->memory = memory;
}

/* ---- the loader ---- */

/* A region for each layer: all of it in one run. */
static int add_layers(const struct ucm_move_job *job, struct ucm_layout *layout,
		      struct ucm_error *error)
{
	const struct ucm_geometry *g = &job->geometry;
	uint64_t layer_bytes = (uint64_t)g->k_bytes + g->v_bytes;
	int err = 0;

	for (uint32_t layer = 0; layer < g->num_layers && !err; layer++) {
		struct ucm_region region = {
			.base = (uintptr_t)job->memory + layer * layer_bytes,
			.page_stride = (int64_t)job->page_bytes,
			.run_bytes = layer_bytes,
			.n0 = 1,
			.n1 = 1,
			.offset = layer * layer_bytes,
			.layer = layer,
		};

		err = ucm_layout_add_region(layout, &region, error);
	}
	return err;
}

static int open_loader(struct ucm_move_job *job, struct ucm_error *error)
{
	struct ucm_loader_options options = {
		.size = sizeof(options),
		.mount = job->opt->mount,
		.io = job->opt->io,
		.threads = (unsigned)job->opt->threads,
	};
	struct ucm_layout *layout = NULL;
	int err = ucm_loader_open(&options, &job->loader, error)
		?: ucm_layout_new(&job->geometry, job->ids.num, &layout, error)
		?: add_layers(job, layout, error)
		?: ucm_layout_seal(layout, error)
		?: ucm_loader_add_group(job->loader, layout, job->opt->space,
					&job->group, error);

	ucm_layout_free(layout);
	return err;
}

/* ---- the task ---- */

static struct ucm_id *make_parents(const struct ucm_move_job *job)
{
	struct ucm_id *parents = ucm_tool_alloc(job->ids.num, sizeof(*parents));

	parents[0] = job->opt->parent;
	memcpy(parents + 1, job->ids.ids,
	       (job->ids.num - 1) * sizeof(*parents));
	return parents;
}

static int submit(struct ucm_move_job *job, bool is_save,
		  struct ucm_error *error)
{
	_cleanup_free_ struct ucm_move *blocks =
		ucm_tool_alloc(job->ids.num, sizeof(*blocks));
	_cleanup_free_ struct ucm_id *parents =
		job->opt->parents ? make_parents(job) : NULL;
	struct ucm_request request = {
		.size = sizeof(request),
		.group = job->group,
		.blocks = blocks,
		.parents = parents,
		.num_blocks = job->ids.num,
		.verify = job->opt->verify,
	};

	for (size_t i = 0; i < job->ids.num; i++) {
		blocks[i].id = job->ids.ids[i];
		blocks[i].page = (uint32_t)i;
	}
	return (is_save ? ucm_save_submit : ucm_load_submit)(
		job->loader, &request, &job->task, error);
}

static void wait_for_task(struct ucm_move_job *job)
{
	struct ucm_loader_stats stats;

	while (ucm_task_wait(job->task, POLL_MS) == -ETIMEDOUT) {
		ucm_loader_get_stats(job->loader, &stats, sizeof(stats));
		ucm_progress_tell(&job->report.progress,
				  stats.loads + stats.load_absent +
					  stats.load_damaged +
					  stats.load_failed + stats.saves +
					  stats.save_skipped +
					  stats.save_failed,
				  job->ids.num,
				  stats.load_bytes + stats.save_bytes);
	}
}

int ucm_move_report(struct ucm_move_job *job, bool is_save)
{
	struct ucm_loader_stats stats = { 0 };

	if (job->loader)
		ucm_loader_get_stats(job->loader, &stats, sizeof(stats));
	return ucm_report_end(
		&job->report,
		is_save ? (struct ucm_count[]){ { "saved", stats.saves },
						{ "skipped", stats.save_skipped },
						{ NULL, 0 } }
			: (struct ucm_count[]){ { "loaded", stats.loads },
						{ NULL, 0 } },
		job->ids.num, is_save ? stats.save_bytes : stats.load_bytes);
}

void ucm_move_run(struct ucm_move_job *job, bool is_save)
{
	const struct ucm_outcome *outcomes;
	struct ucm_error error = { "" };

	if (!job->ids.num)
		return;
	if (open_loader(job, &error) || submit(job, is_save, &error))
		fail("%s", error.text);
	wait_for_task(job);
	outcomes = ucm_task_outcomes(job->task);
	for (size_t i = 0; i < job->ids.num; i++) {
		if (outcomes[i].err)
			ucm_report_block(&job->report, &job->ids.ids[i], NULL,
					 &outcomes[i]);
	}
}
