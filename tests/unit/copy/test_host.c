/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_host.c - pages in the memory of this process: every width of store that
 * the processor has moves the same bytes, wherever they begin and end.
 */
#include <config.h>

#include <string.h>

#include "gpu/copy/copy.h"
#include "gpu/layout/layout.h"

#include "tests/unit/random.h"

#define LEN 20000
#define ROOM (LEN + 128)

static const unsigned widths[] = { 0, 16, 32, 64 };

static uint64_t state;

static uint64_t below(uint64_t end)
{
	return random_next(&state) % end;
}

static uint8_t page[ROOM], want[ROOM], staging[ROOM];

/* Few runs of some kilobytes, at any address. */
static void move_once(bool to_page)
{
	uint32_t first[] = { 0, 1 };
	uint64_t run = 1 + below(LEN / 2), at = below(64), from = below(64);
	struct ucm_region region = { .base = (uintptr_t)page + at,
				     .run_bytes = run, .n0 = 2, .n1 = 1,
				     .s0 = (int64_t)run };
	struct ucm_layout layout = {
		.geometry = { .num_layers = 1, .k_bytes = (uint32_t)(2 * run) },
		.num_pages = 1, .regions = &region, .num_regions = 1,
		.layer_first = first, .runs = 2,
	};
	struct ucm_copy_job job = { .end_layer = 1, .staging = staging + from };
	uint8_t *to = to_page ? page : staging;

	for (size_t i = 0; i < ROOM; i++) {
		page[i] = (uint8_t)below(256);
		staging[i] = (uint8_t)below(256);
	}
	memcpy(want, to, ROOM);
	if (to_page) {
		memcpy(want + at, staging + from, 2 * run);
		ucm_host_scatter(&layout, &job);
	} else {
		memcpy(want + from, page + at, 2 * run);
		ucm_host_gather(&layout, &job);
	}
	must(!memcmp(to, want, ROOM));
}

UNIT_TEST(all_widths_of_stores_move_the_same_bytes, .rows = NUM_ROWS(widths))
{
	state = random_case((unsigned)_i);
	ucm_host_widest = widths[_i];
	for (int i = 0; i < 300; i++)
		move_once(i % 4 != 0);
}
