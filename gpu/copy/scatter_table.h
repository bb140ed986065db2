/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scatter_table.h - layouts and jobs, as the kernels want them.
 *
 * Pure: no device is touched, and addresses of the device are only numbers.
 */
#ifndef UCM_SCATTER_TABLE_H
#define UCM_SCATTER_TABLE_H

#include <stdbool.h>

#include "gpu/copy/copy.h"
#include "gpu/copy/scatter_args.h"

/* Fill num_regions + 1 entries. -EINVAL, logged: a region of so many runs that
 * the kernels' 32-bit arithmetic does not hold (2^31 in its inner repetition;
 * such a page has gigabytes). */
int ucm_scatter_table(const struct ucm_layout *layout,
		      struct ucm_scatter_region *table);

/*
 * Describe a job. table: ours, as above; device_table: its address there, as
 * staging and addresses (0: none) are of the job's. Returns the number of its
 * items; first_item is where they begin in the launch.
 */
uint64_t ucm_scatter_describe(const struct ucm_layout *layout,
			      const struct ucm_scatter_region *table,
			      uint64_t device_table,
			      const struct ucm_copy_job *job, uint64_t staging,
			      uint64_t addresses, uint64_t first_item,
			      struct ucm_scatter_job *out);

/* Pieces of a job that are contiguous in the page, in the order of staging. */
struct ucm_runs {
	const struct ucm_layout *layout;
	const struct ucm_copy_job *job;
	uint64_t start; /* of job->staging, in the payload */
	uint32_t region, end;
	uint32_t i0, i1;
};

struct ucm_run {
	uint64_t page; /* address */
	uint64_t offset, len;
};

void ucm_runs_start(struct ucm_runs *runs, const struct ucm_layout *layout,
		    const struct ucm_copy_job *job);
/* False: there is no further one. */
bool ucm_runs_next(struct ucm_runs *runs, struct ucm_run *out);

#endif
