/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_scatter.c - the threads of the kernels together copy each byte of a job
 * once, to where load.h says, and touch nothing else.
 *
 * Every thread of a small grid is run on the CPU. Pages and staging are places
 * of one arena; a second one counts what was written.
 */
#include <config.h>

#include "gpu/copy/scatter.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "gpu/copy/scatter_table.h"

#include "tests/unit/layout_fixture.h"
#include "tests/unit/unit.h"

#define ARENA (3 << 19)
#define STAGING (ARENA / 2) /* the rest: pages */

static uint8_t arena[ARENA] __attribute__((aligned(64)));
static uint8_t before[ARENA], want[ARENA], written[ARENA];

static void check_access(uint64_t address, uint32_t width)
{
	uint64_t at = address - (uintptr_t)arena;

	must(!(address % width));
	must(at < ARENA && ARENA - at >= width);
}

UCM_INLINE void ucm_scatter_piece(uint64_t to, uint64_t from, uint32_t width)
{
	check_access(to, width);
	check_access(from, width);
	memcpy(UCM_AT(uint8_t, to), UCM_AT(const uint8_t, from), width);
	for (uint32_t i = 0; i < width; i++)
		must(!written[to - (uintptr_t)arena + i]++);
}

UCM_INLINE struct ucm_vector ucm_scatter_load(uint64_t from)
{
	struct ucm_vector vector;

	check_access(from, sizeof(vector));
	memcpy(&vector, UCM_AT(const uint8_t, from), sizeof(vector));
	return vector;
}

UCM_INLINE void ucm_scatter_store(uint64_t to, struct ucm_vector vector)
{
	check_access(to, sizeof(vector));
	memcpy(UCM_AT(uint8_t, to), &vector, sizeof(vector));
	for (uint32_t i = 0; i < sizeof(vector); i++)
		must(!written[to - (uintptr_t)arena + i]++);
}

/* What the arena looks like afterwards, from what it looked like before. */
static void copy_run(uint64_t page, const uint8_t *staging, uint64_t len,
		     void *arg)
{
	uint64_t to = page - (uintptr_t)arena;
	uint64_t from = (uint64_t)(staging - arena);

	if (*(bool *)arg) { /* gather */
		uint64_t swap = to;

		to = from;
		from = swap;
	}
	memcpy(want + to, before + from, len);
}

static void fill_arena(void)
{
	for (size_t i = 0; i < ARENA; i++)
		arena[i] = (uint8_t)below(256);
	memcpy(before, arena, ARENA);
	memcpy(want, arena, ARENA);
	memset(written, 0, ARENA);
}

static void run_grid(struct ucm_scatter_job *jobs, uint32_t num_jobs,
		     uint64_t num_items, uint32_t num_threads, bool gather)
{
	struct ucm_scatter_args args = {
		.jobs = (uintptr_t)jobs,
		.num_items = num_items,
		.num_jobs = num_jobs,
	};

	for (uint32_t thread = 0; thread < num_threads; thread++)
		ucm_scatter_thread(&args, thread, num_threads, gather);
}

/* The jobs are of one layout, by next. */
static void compare(const struct ucm_layout *layout,
		    const struct ucm_copy_job *list, uint32_t num_threads,
		    bool gather)
{
	struct ucm_scatter_region table[MAX_REGIONS + 1];
	struct ucm_scatter_job jobs[8];
	uint64_t items = 0, bytes = 0;
	uint32_t num = 0;

	must(!ucm_scatter_table(layout, table));
	fill_arena();
	for (const struct ucm_copy_job *job = list; job; job = job->next) {
		items += ucm_scatter_describe(
			layout, table, (uintptr_t)table, job,
			(uintptr_t)job->staging, (uintptr_t)job->addresses,
			items, &jobs[num++]);
		each_run(layout, job, copy_run, &gather);
		for (uint32_t i = jobs[num - 1].first_region;
		     i < jobs[num - 1].end_region; i++)
			bytes += layout->regions[i].run_bytes *
				 layout->regions[i].n0 * layout->regions[i].n1;
	}
	run_grid(jobs, num, items, num_threads, gather);
	for (size_t i = 0; i < ARENA; i++)
		bytes -= written[i];
	must(!bytes);
	must(!memcmp(arena, want, ARENA));
}

/* ---- one run, wherever it lies ---- */

static void one_run(uint32_t len, uint32_t page_at, uint32_t slot_at,
		    uint32_t num_threads)
{
	struct ucm_region region = {
		.base = (uintptr_t)arena + page_at,
		.run_bytes = len,
		.n0 = 1,
		.n1 = 1,
	};
	struct ucm_layout layout = {
		.geometry = { .num_layers = 1, .k_bytes = len },
		.regions = &region,
		.num_regions = 1,
	};
	struct ucm_scatter_region table[2];
	struct ucm_copy_job job = { .end_layer = 1,
				    .staging = arena + slot_at };
	struct ucm_scatter_job out;
	uint32_t first[2];
	uint64_t items;

	seal(&layout, first);
	must(!ucm_scatter_table(&layout, table));
	items = ucm_scatter_describe(&layout, table, (uintptr_t)table, &job,
				     (uintptr_t)job.staging, 0, 0, &out);
	for (int gather = 0; gather < 2; gather++) {
		uint32_t to = gather ? slot_at : page_at;
		uint32_t from = gather ? page_at : slot_at;

		for (uint32_t i = 0; i < 32768; i++)
			arena[i] = (uint8_t)(i * 7 + (i >> 8));
		memcpy(before, arena, 32768);
		memset(written, 0, 32768);
		run_grid(&out, 1, items, num_threads, gather);
		must(!memcmp(arena + to, before + from, len));
		must(!memcmp(arena, before, to));
		must(!memcmp(arena + to + len, before + to + len,
			     32768 - to - len));
		for (uint32_t i = 0; i < 32768; i++)
			must(written[i] == (i >= to && i < to + len));
	}
}

UNIT_TEST(a_run_of_any_size_at_any_alignment)
{
	static const uint32_t long_ones[] = { 127, 128, 255, 256, 257, 511,
					      512, 1000, 4096, 8191, 8192,
					      8193, 12345 };

	for (uint32_t page = 0; page < 16; page++) {
		for (uint32_t slot = 0; slot < 16; slot++) {
			for (uint32_t len = 1; len <= 70; len++)
				one_run(len, 64 + page, 256 + slot, 32);
			for (size_t i = 0; i < NUM_ROWS(long_ones); i++)
				one_run(long_ones[i], 64 + page, 16384 + slot,
					64);
		}
	}
}

/* ---- layouts as engines have them, and stranger ones ---- */

struct row {
	uint32_t num_layers, layer_bytes, num_regions; /* regions of a layer */
	uint64_t run_bytes;
	uint32_t n0, n1;
	int64_t s0, s1;
	int64_t page_stride, region_stride, base;
};

static const struct row rows[] = {
	/* a layer is one run */
	{ 2, 4096, 1, 4096, 1, 1, 0, 0, 4096, 32768, 0 },
	/* K and V apart */
	{ 3, 4096, 2, 2048, 1, 1, 0, 0, 2048, 32768, 0 },
	/* tokens apart: rows of 256 bytes */
	{ 2, 4096, 1, 256, 16, 1, 512, 0, 8192, 65536, 0 },
	/* heads and tokens apart */
	{ 2, 4096, 1, 128, 4, 8, 256, 1024, 8192, 65536, 0 },
	/* backwards, in one and in both */
	{ 2, 1024, 1, 64, 16, 1, -96, 0, 2048, 16384, 4096 },
	{ 2, 1024, 1, 32, 4, 8, -40, -200, 2048, 16384, 4096 },
	{ 2, 1024, 1, 32, 4, 8, 40, -200, -2048, 16384, 8192 },
	/* odd sizes; padded pages; base off by one */
	{ 3, 4095, 3, 35, 13, 3, 37, 500, 1601, 20000, 1 },
	{ 2, 999, 1, 1, 37, 27, 2, 80, 2171, 20000, 3 },
	{ 1, 24579, 1, 8193, 3, 1, 8195, 0, 24600, 0, 5 },
};

static void layout_of(const struct row *row, struct ucm_layout *layout,
		      struct ucm_region *regions, uint32_t *first)
{
	*layout = (struct ucm_layout){
		.geometry = { .num_layers = row->num_layers,
			      .k_bytes = row->layer_bytes },
		.num_pages = 3,
		.regions = regions,
	};
	for (uint32_t i = 0; i < row->num_layers * row->num_regions; i++)
		regions[layout->num_regions++] = (struct ucm_region){
			.base = (uintptr_t)arena + (uint64_t)row->base +
				(uint64_t)row->region_stride * i,
			.page_stride = row->page_stride,
			.run_bytes = row->run_bytes,
			.n0 = row->n0,
			.n1 = row->n1,
			.s0 = row->s0,
			.s1 = row->s1,
			.layer = i / row->num_regions,
		};
	seal(layout, first);
}

UNIT_TEST(layouts_of_engines, .rows = NUM_ROWS(rows))
{
	static const uint32_t threads[] = { 32, 96, 512 };
	const struct row *row = &rows[_i];
	struct ucm_region regions[MAX_REGIONS];
	uint32_t first[MAX_REGIONS + 1];
	struct ucm_layout layout;

	layout_of(row, &layout, regions, first);
	for (uint32_t from = 0; from < row->num_layers; from++) {
		for (uint32_t end = from + 1; end <= row->num_layers; end++) {
			struct ucm_copy_job b = {
				.first_layer = from,
				.end_layer = end,
				.page = 2,
				.staging = arena + STAGING + 131072 + 3 * from,
			};
			struct ucm_copy_job a = {
				.first_layer = 0,
				.end_layer = end,
				.page = 0,
				.staging = arena + STAGING,
				.next = &b,
			};

			for (size_t i = 0; i < NUM_ROWS(threads); i++) {
				compare(&layout, &a, threads[i], false);
				compare(&layout, &a, threads[i], true);
			}
		}
	}
}

UNIT_TEST(addresses_take_the_place_of_pages)
{
	uint64_t addresses[2] = { (uintptr_t)arena + 70001,
				  (uintptr_t)arena + 1000 };
	struct ucm_region regions[MAX_REGIONS];
	uint32_t first[MAX_REGIONS + 1];
	struct ucm_copy_job job = {
		.first_layer = 1,
		.end_layer = 2,
		.page = 12345678,
		.staging = arena + STAGING,
		.addresses = addresses,
	};
	struct ucm_layout layout;

	layout_of(&rows[1], &layout, regions, first);
	compare(&layout, &job, 64, false);
	compare(&layout, &job, 64, true);
}

/* ---- random layouts ---- */

UNIT_TEST(random_layouts_and_layer_ranges)
{
	struct ucm_region regions[MAX_REGIONS];
	uint32_t first[MAX_REGIONS + 1];
	struct ucm_layout layout;

	for (int round = 0; round < 300; round++) {
		struct ucm_copy_job b = { .page = 1 }, a = { .next = &b };
		uint32_t layers;

		random_layout(&layout, regions, first, (uintptr_t)arena);
		layers = layout.geometry.num_layers;
		a.first_layer = below(layers);
		a.end_layer = a.first_layer + 1 + below(layers - a.first_layer);
		b.first_layer = below(layers);
		b.end_layer = b.first_layer + 1 + below(layers - b.first_layer);
		a.staging = arena + STAGING + below(64);
		b.staging = a.staging +
			    ucm_layout_layer_bytes(&layout) *
				    (a.end_layer - a.first_layer) +
			    below(16);
		must(b.staging + ucm_layout_layer_bytes(&layout) * layers <=
		     arena + ARENA);
		compare(&layout, &a, 32 * (1 + below(6)), below(2));
	}
}

/* ---- arithmetic ---- */

UNIT_TEST(division_by_multiplication_is_exact)
{
	static const uint32_t numbers[] = {
		0, 1, 2, 3, 511, 512, 641, 65535, 65536, 6700417,
		UINT32_C(1) << 31, UINT32_MAX - 1, UINT32_MAX,
	};
	struct ucm_region region = { .n1 = 1 };
	struct ucm_layout layout = { .regions = &region, .num_regions = 1 };
	struct ucm_scatter_region table[2];

	for (int round = 0; round < 2000; round++) {
		uint32_t by = round < 1000 ? (uint32_t)round + 1
					   : 1 + below((1u << 31) - 2);

		region.n0 = by;
		region.run_bytes = 16;
		must(!ucm_scatter_table(&layout, table));
		for (size_t i = 0; i < NUM_ROWS(numbers); i++)
			must(ucm_divide(numbers[i], table[0].n0) ==
			     numbers[i] / by);
		for (uint64_t q = 1; q < 40; q++) {
			uint64_t n = q * by;

			if (n > UINT32_MAX)
				break;
			must(ucm_divide((uint32_t)n, table[0].n0) == q);
			must(ucm_divide((uint32_t)n - 1, table[0].n0) == q - 1);
		}
	}
}

UNIT_TEST(more_runs_than_can_be_counted_are_refused)
{
	struct ucm_region region = { .n0 = 1u << 31, .n1 = 1, .run_bytes = 1 };
	struct ucm_layout layout = { .regions = &region, .num_regions = 1 };
	struct ucm_scatter_region table[2];

	ck_assert_int_eq(ucm_scatter_table(&layout, table), -EINVAL);
}

/* ---- the copy engine's pieces ---- */

UNIT_TEST(contiguous_runs_are_one_piece)
{
	struct ucm_region regions[MAX_REGIONS];
	uint32_t first[MAX_REGIONS + 1];
	struct ucm_layout layout;
	struct ucm_copy_job job = { .end_layer = 2, .page = 1 };
	struct ucm_runs runs;
	struct ucm_run run;

	layout_of(&rows[0], &layout, regions, first);
	ucm_runs_start(&runs, &layout, &job);
	must(ucm_runs_next(&runs, &run));
	ck_assert_uint_eq(run.page, regions[0].base + 4096);
	ck_assert_uint_eq(run.len, 4096);
	must(ucm_runs_next(&runs, &run));
	ck_assert_uint_eq(run.page, regions[1].base + 4096);
	ck_assert_uint_eq(run.offset, 4096);
	must(!ucm_runs_next(&runs, &run));

	regions[1].base = regions[0].base + 4096;
	ucm_runs_start(&runs, &layout, &job);
	must(ucm_runs_next(&runs, &run));
	ck_assert_uint_eq(run.len, 8192);
	ck_assert_uint_eq(run.offset, 0);
	must(!ucm_runs_next(&runs, &run));
}

/* In the page there is nothing between the layers, in the file there is. */
UNIT_TEST(padding_parts_what_is_contiguous_in_the_page)
{
	struct ucm_region regions[MAX_REGIONS];
	uint32_t first[MAX_REGIONS + 1];
	struct ucm_layout layout;
	struct ucm_copy_job job = { .end_layer = 2 };
	struct ucm_runs runs;
	struct ucm_run run;

	layout_of(&rows[0], &layout, regions, first);
	regions[0].run_bytes = 4000;
	regions[1].base = regions[0].base + 4000;
	ucm_runs_start(&runs, &layout, &job);
	must(ucm_runs_next(&runs, &run));
	ck_assert_uint_eq(run.len, 4000);
	must(ucm_runs_next(&runs, &run));
	ck_assert_uint_eq(run.offset, 4096);
	ck_assert_uint_eq(run.len, 4096);
	must(!ucm_runs_next(&runs, &run));
}

UNIT_TEST(pieces_are_what_the_kernels_copy)
{
	struct ucm_region regions[MAX_REGIONS];
	uint32_t first[MAX_REGIONS + 1];
	struct ucm_layout layout;

	for (int round = 0; round < 100; round++) {
		struct ucm_copy_job job = { .page = 1,
					    .staging = arena + STAGING };
		struct ucm_runs runs;
		struct ucm_run run;
		uint64_t end = 0;

		random_layout(&layout, regions, first, (uintptr_t)arena);
		job.end_layer = layout.geometry.num_layers;
		job.first_layer = below(job.end_layer);
		compare(&layout, &job, 64, false);
		memcpy(want, before, ARENA);
		ucm_runs_start(&runs, &layout, &job);
		while (ucm_runs_next(&runs, &run)) {
			must(run.offset >= end);
			memcpy(want + (run.page - (uintptr_t)arena),
			       before + STAGING + run.offset, run.len);
			end = run.offset + run.len;
		}
		must(!memcmp(arena, want, ARENA));
	}
}
