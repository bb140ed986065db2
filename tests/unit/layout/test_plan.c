/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_plan.c - which bytes of a file are read for which layers.
 */
#include <config.h>

#include "gpu/layout/plan.h"

#include "tests/unit/unit.h"

#define MAX_CUTS 4096

static const struct {
	uint64_t layer_bytes;
	uint32_t align, multiple;
} multiples[] = {
	{ 4096, 4096, 1 },	  { 8192, 4096, 1 }, { 65536, 4096, 1 },
	{ 2048, 4096, 2 },	  { 6144, 4096, 2 }, { 18432, 4096, 2 },
	{ 1, 4096, 4096 },	  { 3, 4096, 4096 }, { 10496, 4096, 16 },
	{ 4097, 4096, 4096 },	  { 4096, 65536, 16 },
	{ UINT64_C(1) << 40, 4096, 1 },
};

UNIT_TEST(a_multiple_is_the_least_one, .rows = NUM_ROWS(multiples))
{
	uint64_t bytes = multiples[_i].layer_bytes;
	uint32_t align = multiples[_i].align, n = 1;

	while (n * bytes % align)
		n++;
	ck_assert_uint_eq(n, multiples[_i].multiple);
	ck_assert_uint_eq(ucm_plan_multiple(bytes, align), n);
}

static const struct {
	uint64_t layer_bytes;
	uint32_t first, end;
	uint64_t read_bytes;
	uint32_t group_layers;
	uint32_t num, cuts[9];
} cut_rows[] = {
	/* all in one */
	{ 4096, 0, 4, 1 << 20, 0, 1, { 0, 4 } },
	{ 4096, 3, 4, 1 << 20, 0, 1, { 3, 4 } },
	{ 4096, 0, 4, 16384, 0, 1, { 0, 4 } },
	/* evenly: not 3 + 1, but 2 + 2 */
	{ 4096, 0, 4, 3 * 4096, 0, 2, { 0, 2, 4 } },
	{ 4096, 1, 8, 3 * 4096, 0, 3, { 1, 4, 7, 8 } },
	/* never less than a layer */
	{ 4096, 0, 3, 1, 0, 3, { 0, 1, 2, 3 } },
	{ 4096, 5, 7, 4095, 0, 2, { 5, 6, 7 } },
	/* as many as the caller says, whatever a read holds */
	{ 4096, 0, 5, 1, 2, 3, { 0, 2, 4, 5 } },
	{ 4096, 0, 5, 1 << 20, 1, 5, { 0, 1, 2, 3, 4, 5 } },
	{ 4096, 2, 5, 1 << 20, 100, 1, { 2, 5 } },
	{ 4096, 2, 5, 1 << 20, UINT32_MAX, 1, { 2, 5 } },
};

UNIT_TEST(cuts_are_as_the_table_says, .rows = NUM_ROWS(cut_rows))
{
	uint32_t cuts[9];
	uint32_t num = ucm_plan_cuts(
		cut_rows[_i].layer_bytes, cut_rows[_i].first, cut_rows[_i].end,
		cut_rows[_i].read_bytes, cut_rows[_i].group_layers, NULL);

	ck_assert_uint_eq(num, cut_rows[_i].num);
	ucm_plan_cuts(cut_rows[_i].layer_bytes, cut_rows[_i].first,
		      cut_rows[_i].end, cut_rows[_i].read_bytes,
		      cut_rows[_i].group_layers, cuts);
	for (uint32_t i = 0; i <= num; i++)
		ck_assert_uint_eq(cuts[i], cut_rows[_i].cuts[i]);
}

/* Whatever is asked: cuts cover the layers in order, none holds more than a
 * read unless it is the least that may be, and their number is the least. */
UNIT_TEST(cuts_cover_all_layers)
{
	static uint32_t cuts[MAX_CUTS + 1];

	for (uint32_t layers = 1; layers < 70; layers++) {
		for (uint32_t most = 1; most < 72; most++) {
			uint64_t read_bytes = most * 4096 + most % 3;
			uint32_t num = ucm_plan_cuts(4096, 7, 7 + layers,
						     read_bytes, 0, cuts);

			must(num == (layers + most - 1) / most);
			must(cuts[0] == 7 && cuts[num] == 7 + layers);
			for (uint32_t i = 0; i < num; i++)
				must(cuts[i] < cuts[i + 1] &&
				     cuts[i + 1] - cuts[i] <= most);
		}
	}
}

static const struct {
	uint64_t layer_bytes;
	uint32_t first, end;
	uint64_t read_bytes;
	uint32_t cuts[12]; /* up to the end */
} growing_rows[] = {
	/* a sixteenth, as much again, and so on up to read_bytes */
	{ 65536, 0, 32, 524288, { 0, 2, 4, 8, 16, 24, 32 } },
	{ 16384, 0, 32, 524288, { 0, 2, 4, 8, 16, 32 } },
	{ 147456, 0, 61, 1300000, { 0, 3, 6, 12, 20, 28, 36, 44, 52, 60,
				       61 } },
	/* some layers of many; few */
	{ 65536, 7, 39, 524288, { 7, 9, 11, 15, 23, 31, 39 } },
	{ 65536, 0, 4, 524288, { 0, 1, 2, 4 } },
	{ 65536, 3, 4, 524288, { 3, 4 } },
	/* never less than a layer */
	{ 65536, 0, 4, 1, { 0, 1, 2, 3, 4 } },
};

UNIT_TEST(growing_cuts_are_as_the_table_says, .rows = NUM_ROWS(growing_rows))
{
	uint32_t cuts[12] = { 0 }, num;

	num = ucm_plan_growing(growing_rows[_i].layer_bytes,
			       growing_rows[_i].first, growing_rows[_i].end,
			       growing_rows[_i].read_bytes, NULL);
	ck_assert_uint_lt(num, NUM_ROWS(cuts));
	ck_assert_uint_eq(
		ucm_plan_growing(growing_rows[_i].layer_bytes,
				 growing_rows[_i].first, growing_rows[_i].end,
				 growing_rows[_i].read_bytes, cuts),
		num);
	ck_assert_uint_eq(cuts[num], growing_rows[_i].end);
	ck_assert_mem_eq(cuts, growing_rows[_i].cuts, sizeof(cuts));
}

static const struct {
	uint64_t layer_bytes, data_offset;
	uint32_t first, end;
	bool head;
	uint32_t align;
	struct ucm_plan plan;
} reads[] = {
	/* pages all over */
	{ 4096, 4096, 0, 4, false, 4096, { 4096, 16384, 16384, 0 } },
	{ 4096, 4096, 0, 4, true, 4096, { 0, 20480, 20480, 4096 } },
	{ 4096, 4096, 1, 3, false, 4096, { 8192, 8192, 8192, 0 } },
	/* layers that begin and end inside of pages */
	{ 1000, 4096, 0, 4, false, 4096, { 4096, 4096, 4000, 0 } },
	{ 1000, 4096, 4, 5, false, 4096, { 4096, 8192, 5000, 4000 } },
	{ 1000, 4096, 5, 6, false, 4096, { 8192, 4096, 1904, 904 } },
	{ 1000, 4096, 0, 1, true, 4096, { 0, 8192, 5096, 4096 } },
	/* packed: the payload is behind 64 bytes */
	{ 1000, 64, 0, 4, false, 4096, { 0, 4096, 4064, 64 } },
	{ 1000, 64, 5, 6, false, 4096, { 4096, 4096, 1968, 968 } },
	/* no multiples asked for */
	{ 1000, 64, 1, 2, false, 1, { 1064, 1000, 1000, 0 } },
	{ 1000, 64, 0, 2, true, 1, { 0, 2064, 2064, 64 } },
	/* beyond 4 GiB */
	{ UINT64_C(3) << 30, 4096, 2, 3, false, 4096,
	  { (UINT64_C(6) << 30) + 4096, UINT64_C(3) << 30, UINT64_C(3) << 30,
	    0 } },
};

UNIT_TEST(reads_are_as_the_table_says, .rows = NUM_ROWS(reads))
{
	struct ucm_plan plan;

	ucm_plan_read(reads[_i].layer_bytes, reads[_i].data_offset,
		      reads[_i].first, reads[_i].end, reads[_i].head,
		      reads[_i].align, &plan);
	ck_assert_uint_eq(plan.offset, reads[_i].plan.offset);
	ck_assert_uint_eq(plan.len, reads[_i].plan.len);
	ck_assert_uint_eq(plan.want, reads[_i].plan.want);
	ck_assert_uint_eq(plan.skip, reads[_i].plan.skip);
}

UNIT_TEST(reads_hold_their_layers)
{
	struct ucm_plan p;

	for (uint64_t bytes = 1; bytes < 20000; bytes += 611) {
		for (uint32_t first = 0; first < 5; first++) {
			uint64_t start = 64 + first * bytes;
			uint64_t stop = start + 2 * bytes;

			ucm_plan_read(bytes, 64, first, first + 2, false, 4096,
				      &p);
			must(p.offset % 4096 == 0 && p.len % 4096 == 0);
			must(p.offset + p.skip == start);
			must(p.offset + p.want == stop && p.want <= p.len);
			must(p.len - p.want < 4096 && p.skip < 4096);
		}
	}
}
