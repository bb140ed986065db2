/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scatter.h - which bytes does a thread of the GPU copy, from where to where?
 *
 * One text for the device (kernels.cu) and the host, where the tests run it for
 * every thread of a grid. It knows a table of regions and jobs (staging, page),
 * no pointer for a fragment, and neither files nor the driver. Whoever includes
 * it defines ucm_scatter_load(), _store() and _piece() after it, by which all
 * bytes are moved; and UCM_AT before it, if addresses are not pointers.
 *
 *	unit  = up to 16 bytes of a run, of a thread (the first of a run: 31)
 *	item  = up to UCM_ITEM_UNITS units of a region of a job, of a warp
 *
 * Unit k of a run ends at a multiple of 16 of the page's address, or with the
 * run; so a run has as many units as it has begun sixteens of bytes, wherever
 * it lies, and warps touch whole lines. A unit whose two addresses are
 * multiples of 16 is one load and one store; another one goes in pieces as wide
 * as both addresses allow, down to a byte.
 */
#ifndef UCM_SCATTER_H
#define UCM_SCATTER_H

#include <stdint.h>

#include "gpu/copy/device.h"
#include "gpu/copy/scatter_args.h"

#define UCM_IN_FLIGHT 4 /* loads of a thread before its first store */

struct ucm_vector {
	uint64_t lo, hi;
};

/* Both addresses are multiples of the width: 16, or 1, 2, 4, 8, 16. */
UCM_INLINE struct ucm_vector ucm_scatter_load(uint64_t from);
UCM_INLINE void ucm_scatter_store(uint64_t to, struct ucm_vector vector);
UCM_INLINE void ucm_scatter_piece(uint64_t to, uint64_t from, uint32_t width);

UCM_INLINE uint32_t ucm_divide(uint32_t n, struct ucm_divisor divisor)
{
	if (divisor.by == 1) /* its magic would be 2^64 */
		return n;
#ifdef __CUDACC__
	return (uint32_t)__umul64hi(divisor.magic, n);
#else
	return (uint32_t)((unsigned __int128)divisor.magic * n >> 64);
#endif
}

/* The last job that begins at or before the item. */
UCM_INLINE const struct ucm_scatter_job *
ucm_job_of(const struct ucm_scatter_args *args, uint64_t item)
{
	const struct ucm_scatter_job *jobs =
		UCM_AT(const struct ucm_scatter_job, args->jobs);
	uint32_t low = 0, high = args->num_jobs;

	while (high - low > 1) {
		uint32_t middle = low + (high - low) / 2;

		if (jobs[middle].first_item <= item)
			low = middle;
		else
			high = middle;
	}
	return &jobs[low];
}

UCM_INLINE uint32_t ucm_region_of(const struct ucm_scatter_region *table,
				  const struct ucm_scatter_job *job,
				  uint64_t item)
{
	uint32_t low = job->first_region, high = job->end_region;

	while (high - low > 1) {
		uint32_t middle = low + (high - low) / 2;

		if (table[middle].first_item <= item)
			low = middle;
		else
			high = middle;
	}
	return low;
}

/* Where an item begins, and what its units need of the region. */
struct ucm_item {
	uint64_t page;    /* address of the region in the page */
	uint64_t staging; /* address of the item's first run */
	uint64_t run_bytes;
	int64_t s0, s1;
	uint64_t i0, i1; /* of its first run */
	struct ucm_divisor units, n0;
	uint32_t first_unit; /* in its first run */
	uint32_t num_units;
};

/* The only true divisions: two for an item. */
UCM_INLINE struct ucm_item ucm_item_find(const struct ucm_scatter_args *args,
					 uint64_t index)
{
	const struct ucm_scatter_job *job = ucm_job_of(args, index);
	const struct ucm_scatter_region *table =
		UCM_AT(const struct ucm_scatter_region, job->table);
	uint64_t at = index - job->first_item +
		      table[job->first_region].first_item;
	uint32_t number = ucm_region_of(table, job, at);
	const struct ucm_scatter_region *region = &table[number];
	uint64_t unit = (at - region->first_item) * UCM_ITEM_UNITS;
	uint64_t run = unit / region->units.by;
	uint64_t left = region->num_units - unit;
	struct ucm_item item;

	if (job->addresses)
		item.page = UCM_AT(const uint64_t, job->addresses)
			[number - job->first_region];
	else
		item.page = region->base +
			    (uint64_t)region->page_stride * job->page;
	item.staging =
		job->staging + region->offset + run * region->run_bytes;
	item.run_bytes = region->run_bytes;
	item.s0 = region->s0;
	item.s1 = region->s1;
	item.i1 = run / region->n0.by;
	item.i0 = run - item.i1 * region->n0.by;
	item.units = region->units;
	item.n0 = region->n0;
	item.first_unit = (uint32_t)(unit - run * region->units.by);
	item.num_units = left < UCM_ITEM_UNITS ? (uint32_t)left
					       : UCM_ITEM_UNITS;
	return item;
}

struct ucm_unit {
	uint64_t page, staging; /* addresses */
	uint32_t len;           /* 0: nothing to copy */
};

UCM_INLINE struct ucm_unit ucm_unit_find(const struct ucm_item *item,
					 uint32_t index)
{
	uint32_t unit = item->first_unit + index;
	uint32_t runs = ucm_divide(unit, item->units);
	uint64_t k = unit - runs * item->units.by;
	uint32_t column = (uint32_t)item->i0 + runs;
	uint32_t rows = ucm_divide(column, item->n0);
	uint64_t i0 = column - rows * item->n0.by, i1 = item->i1 + rows;
	uint64_t page = item->page + (uint64_t)item->s1 * i1 +
			(uint64_t)item->s0 * i0;
	uint64_t head = -page & (UCM_UNIT_BYTES - 1);
	uint64_t start = k ? head + k * UCM_UNIT_BYTES : 0;
	uint64_t end = head + (k + 1) * UCM_UNIT_BYTES;
	struct ucm_unit out = { 0, 0, 0 };

	if (end > item->run_bytes)
		end = item->run_bytes;
	if (index >= item->num_units || start >= end)
		return out;
	out.page = page + start;
	out.staging = item->staging + runs * item->run_bytes + start;
	out.len = (uint32_t)(end - start);
	return out;
}

UCM_INLINE int ucm_unit_is_whole(const struct ucm_unit *unit)
{
	return unit->len == UCM_UNIT_BYTES &&
	       !((unit->page | unit->staging) & (UCM_UNIT_BYTES - 1));
}

/* In the widest pieces that both addresses and what is left allow. */
UCM_INLINE void ucm_unit_copy(uint64_t to, uint64_t from, uint32_t len)
{
	while (len) {
		uint64_t bits = to | from | UCM_UNIT_BYTES;
		uint32_t width = (uint32_t)(bits & -bits);

		while (width > len)
			width /= 2;
		ucm_scatter_piece(to, from, width);
		to += width;
		from += width;
		len -= width;
	}
}

/* Loads first, all of them: what is in flight hides the way to the host. */
UCM_INLINE void ucm_item_copy(const struct ucm_item *item, uint32_t lane,
			      int gather)
{
	struct ucm_unit units[UCM_IN_FLIGHT];
	struct ucm_vector vectors[UCM_IN_FLIGHT];

	for (uint32_t index = lane; index < item->num_units;
	     index += UCM_IN_FLIGHT * UCM_WARP) {
		UCM_UNROLL
		for (uint32_t i = 0; i < UCM_IN_FLIGHT; i++) {
			units[i] = ucm_unit_find(item, index + i * UCM_WARP);
			if (ucm_unit_is_whole(&units[i]))
				vectors[i] = ucm_scatter_load(
					gather ? units[i].page
					       : units[i].staging);
		}
		UCM_UNROLL
		for (uint32_t i = 0; i < UCM_IN_FLIGHT; i++) {
			uint64_t to = gather ? units[i].staging : units[i].page;
			uint64_t from = gather ? units[i].page
					       : units[i].staging;

			if (ucm_unit_is_whole(&units[i]))
				ucm_scatter_store(to, vectors[i]);
			else
				ucm_unit_copy(to, from, units[i].len);
		}
	}
}

/* All that a thread does. num_threads is a multiple of UCM_WARP. */
UCM_INLINE void ucm_scatter_thread(const struct ucm_scatter_args *args,
				   uint32_t thread, uint32_t num_threads,
				   int gather)
{
	for (uint64_t index = thread / UCM_WARP; index < args->num_items;
	     index += num_threads / UCM_WARP) {
		struct ucm_item item = ucm_item_find(args, index);

		ucm_item_copy(&item, thread % UCM_WARP, gather);
	}
}

#endif
