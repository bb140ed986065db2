/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scatter_table.c - layouts and jobs, as the kernels want them.
 */
#include <config.h>

#include "gpu/copy/scatter_table.h"

#include <errno.h>
#include <inttypes.h>

#include "common/log.h"

#define MAX_INNER (UINT32_C(1) << 31)

static struct ucm_divisor divisor_of(uint32_t by)
{
	return (struct ucm_divisor){ .magic = UINT64_MAX / by + 1, .by = by };
}

static void fill(struct ucm_scatter_region *out,
		 const struct ucm_region *region)
{
	uint64_t units = (region->run_bytes - 1) / UCM_UNIT_BYTES + 1;

	*out = (struct ucm_scatter_region){
		.base = region->base,
		.page_stride = region->page_stride,
		.run_bytes = region->run_bytes,
		.s0 = region->s0,
		.s1 = region->s1,
		.offset = region->offset,
		.num_units = units * region->n0 * region->n1,
		.units = divisor_of((uint32_t)units),
		.n0 = divisor_of(region->n0),
	};
}

int ucm_scatter_table(const struct ucm_layout *layout,
		      struct ucm_scatter_region *table)
{
	uint64_t items = 0;

	for (size_t i = 0; i < layout->num_regions; i++) {
		const struct ucm_region *region = &layout->regions[i];

		if (region->n0 >= MAX_INNER) {
			ucm_error("CUDA: layer %" PRIu32 ": %" PRIu32 " runs "
				  "in a row are more than the kernels count",
				  region->layer, region->n0);
			return -EINVAL;
		}
		fill(&table[i], region);
		table[i].first_item = items;
		items += (table[i].num_units - 1) / UCM_ITEM_UNITS + 1;
	}
	table[layout->num_regions] =
		(struct ucm_scatter_region){ .first_item = items };
	return 0;
}

uint64_t ucm_scatter_describe(const struct ucm_layout *layout,
			      const struct ucm_scatter_region *table,
			      uint64_t device_table,
			      const struct ucm_copy_job *job, uint64_t staging,
			      uint64_t addresses, uint64_t first_item,
			      struct ucm_scatter_job *out)
{
	uint32_t first = layout->layer_first[job->first_layer];
	uint32_t end = layout->layer_first[job->end_layer];

	*out = (struct ucm_scatter_job){
		.staging = staging - job->first_layer *
					     ucm_layout_layer_bytes(layout),
		.table = device_table,
		.addresses = addresses,
		.first_item = first_item,
		.page = job->page,
		.first_region = first,
		.end_region = end,
	};
	return table[end].first_item - table[first].first_item;
}

void ucm_runs_start(struct ucm_runs *runs, const struct ucm_layout *layout,
		    const struct ucm_copy_job *job)
{
	*runs = (struct ucm_runs){
		.layout = layout,
		.job = job,
		.region = layout->layer_first[job->first_layer],
		.end = layout->layer_first[job->end_layer],
		.start = job->first_layer * ucm_layout_layer_bytes(layout),
	};
}

static uint64_t region_address(const struct ucm_runs *runs,
			       const struct ucm_region *region)
{
	const struct ucm_copy_job *job = runs->job;
	uint32_t first = runs->layout->layer_first[job->first_layer];

	if (job->addresses)
		return job->addresses[runs->region - first];
	return region->base + (uint64_t)region->page_stride * job->page;
}

/* The piece where runs stands. */
static struct ucm_run current(const struct ucm_runs *runs)
{
	const struct ucm_region *region = &runs->layout->regions[runs->region];

	return (struct ucm_run){
		.page = region_address(runs, region) +
			(uint64_t)region->s1 * runs->i1 +
			(uint64_t)region->s0 * runs->i0,
		.offset = region->offset - runs->start +
			  ((uint64_t)runs->i1 * region->n0 + runs->i0) *
				  region->run_bytes,
		.len = region->run_bytes,
	};
}

static void step(struct ucm_runs *runs)
{
	const struct ucm_region *region = &runs->layout->regions[runs->region];

	if (++runs->i0 < region->n0)
		return;
	runs->i0 = 0;
	if (++runs->i1 < region->n1)
		return;
	runs->i1 = 0;
	runs->region++;
}

bool ucm_runs_next(struct ucm_runs *runs, struct ucm_run *out)
{
	struct ucm_run run, next;

	if (runs->region == runs->end)
		return false;
	run = current(runs);
	for (step(runs); runs->region < runs->end; step(runs)) {
		next = current(runs);
		if (run.page + run.len != next.page ||
		    run.offset + run.len != next.offset)
			break;
		run.len += next.len;
	}
	*out = run;
	return true;
}
