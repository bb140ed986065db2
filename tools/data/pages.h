/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pages.h - what ucm put and get have in common: a file of pages, and a
 * loader that moves blocks between it and a store.
 *
 * A file of pages is a paged cache with one page for each block, back to back;
 * each holds the block's payload in its order, so a layer is one run. It is
 * mapped, and the loader reads and writes it in place.
 */
#ifndef UCM_TOOLS_DATA_PAGES_H
#define UCM_TOOLS_DATA_PAGES_H

#include "tools/lib/ids.h"
#include "tools/lib/report.h"
#include "tools/lib/store.h"

struct ucm_move_job {
	const struct ucm_store_options *opt;
	const char *raw; /* the file's name */
	struct ucm_ids ids;
	struct ucm_geometry geometry;
	uint64_t page_bytes;
	int fd;       /* the file, or -1 */
	void *memory; /* mapped, len bytes; NULL if there are none */
	uint64_t len;
	struct ucm_loader *loader;
	unsigned group;
	struct ucm_task *task;
	struct ucm_report report;
};

/* The blocks that are asked for, and what they are; where that is not to be
 * learned the process ends (reported). */
void ucm_move_init(struct ucm_move_job *job,
		   const struct ucm_store_options *opt);
void ucm_move_fini(struct ucm_move_job *job);

/* Map job->fd, whose size is right. Where that fails the process ends (reported). */
void ucm_move_map(struct ucm_move_job *job, bool writable);

/* Move all blocks: the task is done when it returns, and every block that is not well
 * has been reported. Where it cannot begin the process ends (reported). */
void ucm_move_run(struct ucm_move_job *job, bool is_save);

/* What has been moved, and how long it took: 0, or the exit status (reported). */
int ucm_move_report(struct ucm_move_job *job, bool is_save);

#endif
