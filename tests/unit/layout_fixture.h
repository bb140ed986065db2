/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout_fixture.h - layouts for tests of copies, and load.h word by word.
 */
#ifndef UCM_TESTS_LAYOUT_FIXTURE_H
#define UCM_TESTS_LAYOUT_FIXTURE_H

#include <stdint.h>

#include "gpu/copy/copy.h"

#include "tests/unit/random.h"
#include "tests/unit/unit.h"

#define MAX_REGIONS 16
#define RANDOM_BYTES (740 << 10) /* pages of a random layout lie in so many */

static inline uint32_t below(uint32_t limit)
{
	static uint64_t state;

	if (!state)
		state = random_case(0);
	return (uint32_t)random_between(&state, 0, limit - 1);
}

/* As ucm_layout_seal() does, which is tested by itself. What the regions of a
 * layer leave of it comes after them. */
static inline void seal(struct ucm_layout *layout, uint32_t *layer_first)
{
	uint64_t at = 0;
	uint32_t layer = 0;

	for (size_t i = 0; i < layout->num_regions; i++) {
		struct ucm_region *r = &layout->regions[i];

		while (layer <= r->layer) {
			at = ucm_layout_layer_bytes(layout) * layer;
			layer_first[layer++] = (uint32_t)i;
		}
		r->offset = at;
		at += r->run_bytes * r->n0 * r->n1;
		must(at <= ucm_layout_layer_bytes(layout) * layer);
		layout->runs += (uint64_t)r->n0 * r->n1;
	}
	layer_first[layer] = (uint32_t)layout->num_regions;
	must(layer == layout->geometry.num_layers);
	layout->layer_first = layer_first;
}

/* Regions of a layer that together have its bytes, or all but the last ones;
 * pages that do not overlap, as each run has a place of its own. */
static inline void random_layout(struct ucm_layout *layout,
				 struct ucm_region *regions, uint32_t *first,
				 uint64_t start)
{
	uint32_t run = 1 + below(below(2) ? 40 : 700);
	uint32_t n0 = 1 + below(8), n1 = 1 + below(5);
	uint32_t s0 = run + below(40), s1 = n0 * s0 + below(60);
	uint32_t page = n1 * s1 + below(33), per_layer = 1 + below(3);
	bool down0 = below(4) == 0, down1 = below(4) == 0, by_rows = below(2);
	uint64_t base = below(64);

	*layout = (struct ucm_layout){
		.geometry = { .num_layers = 1 + below(4),
			      .k_bytes = per_layer * run * n0 * n1 +
					 (below(2) ? below(100) : 0) },
		.num_pages = 2,
		.regions = regions,
	};
	if (by_rows) /* the outer repetition is the denser one */
		s1 = run + below(40), s0 = n1 * s1 + below(60),
		page = n0 * s0 + below(33);
	for (uint32_t i = 0; i < layout->geometry.num_layers * per_layer; i++) {
		regions[layout->num_regions++] = (struct ucm_region){
			.base = start + base +
				(down0 ? (uint64_t)(n0 - 1) * s0 : 0) +
				(down1 ? (uint64_t)(n1 - 1) * s1 : 0),
			.page_stride = page,
			.run_bytes = run,
			.n0 = n0,
			.n1 = n1,
			.s0 = down0 ? -(int64_t)s0 : s0,
			.s1 = down1 ? -(int64_t)s1 : s1,
			.layer = i / per_layer,
		};
		base += 2 * page + below(20);
	}
	seal(layout, first);
	must(base <= RANDOM_BYTES);
}

/* The reference: all runs of a job, as struct ucm_region's comment says. */
static inline void each_run(const struct ucm_layout *layout,
			    const struct ucm_copy_job *job,
			    void (*run)(uint64_t page, const uint8_t *staging,
					uint64_t len, void *arg),
			    void *arg)
{
	uint64_t start = job->first_layer * ucm_layout_layer_bytes(layout);
	size_t number = 0;

	for (size_t i = 0; i < layout->num_regions; i++) {
		const struct ucm_region *r = &layout->regions[i];
		uint64_t page, offset = r->offset - start;

		if (r->layer < job->first_layer || r->layer >= job->end_layer)
			continue;
		page = r->base + (uint64_t)r->page_stride * job->page;
		if (job->addresses)
			page = job->addresses[number++];
		for (uint64_t i1 = 0; i1 < r->n1; i1++)
			for (uint64_t i0 = 0; i0 < r->n0; i0++)
				run(page + i1 * (uint64_t)r->s1 +
					    i0 * (uint64_t)r->s0,
				    job->staging + offset +
					    (i1 * r->n0 + i0) * r->run_bytes,
				    r->run_bytes, arg);
	}
}

#endif
