/* SPDX-License-Identifier: Apache-2.0 */
/* test_overlap.c - regions that share bytes, against a map of all bytes. */
#include <config.h>

#include "gpu/layout/layout.h"

#include <errno.h>
#include <string.h>

#include "tests/unit/random.h"

#define SPACE 1024 /* bytes of memory in the random cases */
#define BASE UINT64_C(0x7f5500000000)
#define CASES 100000

static struct ucm_region region_of(uint64_t base, int64_t page_stride,
				   uint64_t run_bytes, uint32_t n0, int64_t s0,
				   uint32_t n1, int64_t s1)
{
	return (struct ucm_region){
		.base = base,
		.page_stride = page_stride,
		.run_bytes = run_bytes,
		.n0 = n0,
		.s0 = s0,
		.n1 = n1,
		.s1 = s1,
	};
}

/* Count how often each byte of SPACE is used; false: some lie outside. */
static bool mark(const struct ucm_region *region, uint64_t pages,
		 uint8_t counts[SPACE])
{
	for (uint64_t i = 0; i < pages * region->n1 * region->n0; i++) {
		uint64_t rest = i / region->n0;
		int64_t at = (int64_t)(region->base - BASE) +
			     (int64_t)(rest / region->n1) *
				     region->page_stride +
			     (int64_t)(rest % region->n1) * region->s1 +
			     (int64_t)(i % region->n0) * region->s0;

		if (at < 0 || at + (int64_t)region->run_bytes > SPACE)
			return false;
		for (uint64_t k = 0; k < region->run_bytes; k++)
			counts[at + (int64_t)k]++;
	}
	return true;
}

static bool twice(const uint8_t counts[SPACE])
{
	for (size_t i = 0; i < SPACE; i++) {
		if (counts[i] > 1)
			return true;
	}
	return false;
}

static struct ucm_region random_region(uint64_t *random)
{
	int64_t reach = random_between(random, 1, 90);

	return region_of(BASE + (uint64_t)random_between(random, 0, SPACE - 1),
			 random_between(random, -reach, reach),
			 (uint64_t)random_between(random, 1, 7),
			 (uint32_t)random_between(random, 1, 4),
			 random_between(random, -reach, reach),
			 (uint32_t)random_between(random, 1, 4),
			 random_between(random, -reach, reach));
}

/* Two regions, alone and together. */
static void try_pair(unsigned number, unsigned outcomes[2][2])
{
	uint64_t random = random_case(number);
	uint64_t pages = (uint64_t)random_between(&random, 1, 5);
	uint8_t a_counts[SPACE], b_counts[SPACE];
	struct ucm_region a, b;
	bool shared = false;

	do {
		a = random_region(&random);
		memset(a_counts, 0, SPACE);
	} while (!mark(&a, pages, a_counts));
	do {
		b = random_region(&random);
		if (random_next(&random) % 2)
			b.page_stride = a.page_stride;
		memset(b_counts, 0, SPACE);
	} while (!mark(&b, pages, b_counts));
	for (size_t i = 0; i < SPACE; i++)
		shared |= a_counts[i] && b_counts[i];

	must_in_case(ucm_regions_overlap(&a, &a, pages) == twice(a_counts),
		     number, "a region with itself");
	must_in_case(ucm_regions_overlap(&a, &b, pages) == shared, number,
		     "two regions");
	must_in_case(ucm_regions_overlap(&b, &a, pages) == shared, number,
		     "two regions, turned round");
	outcomes[0][twice(a_counts)]++;
	outcomes[1][shared]++;
}

UNIT_FIXTURE(.timeout = 120);

UNIT_TEST(pairs_overlap_when_they_share_a_byte)
{
	unsigned outcomes[2][2] = { { 0 } };

	for (unsigned i = 0; i < CASES; i++)
		try_pair(i, outcomes);
	for (unsigned i = 0; i < 4; i++)
		ck_assert_msg(outcomes[i / 2][i % 2] > CASES / 20,
			      "the cases are one-sided: %u of %d",
			      outcomes[i / 2][i % 2], CASES);
}

/* As engines have them: slices of one array, some with a byte too many. */
static size_t random_slices(uint64_t *random, uint64_t pages,
			    struct ucm_region slices[6])
{
	size_t num = (size_t)random_between(random, 1, 6);
	int64_t run = random_between(random, 1, 4);
	uint32_t counts[3] = { (uint32_t)pages,
			       (uint32_t)random_between(random, 1, 3),
			       (uint32_t)random_between(random, 1, 3) };
	int64_t strides[4], next = run;
	unsigned order[4] = { 0, 1, 2, 3 }; /* page, s1, s0, the slices */

	for (unsigned i = 3; i; i--) {
		unsigned other = (unsigned)(random_next(random) % (i + 1));
		unsigned was = order[i];

		order[i] = order[other];
		order[other] = was;
	}
	for (unsigned i = 0; i < 4; i++) {
		strides[order[i]] = next;
		next *= order[i] == 3 ? (int64_t)num : counts[order[i]];
		if (random_next(random) % 4 == 0)
			next += random_between(random, 1, 3);
	}
	for (size_t i = 0; i < num; i++)
		slices[i] = region_of(BASE + i * (uint64_t)strides[3],
				      strides[0], (uint64_t)run, counts[2],
				      strides[2], counts[1], strides[1]);
	if (random_next(random) % 2)
		slices[random_next(random) % num].base += 1;
	return num;
}

static void try_slices(unsigned number, unsigned outcomes[2])
{
	uint64_t random = random_case(number);
	uint64_t pages = (uint64_t)random_between(&random, 1, 4);
	struct ucm_region slices[6];
	uint8_t counts[SPACE] = { 0 };
	size_t num = random_slices(&random, pages, slices), pair[2];

	for (size_t i = 0; i < num; i++) {
		if (!mark(&slices[i], pages, counts))
			return;
	}
	must_in_case(ucm_regions_any_overlap(slices, num, pages, pair) ==
			     twice(counts),
		     number, "slices");
	outcomes[twice(counts)]++;
	if (!twice(counts))
		return;
	memset(counts, 0, SPACE);
	mark(&slices[pair[0]], pages, counts);
	if (pair[0] != pair[1])
		mark(&slices[pair[1]], pages, counts);
	must_in_case(twice(counts), number, "another pair is named");
}

UNIT_TEST(slices_of_an_array_are_told_apart)
{
	unsigned outcomes[2] = { 0 };

	for (unsigned i = 0; i < CASES; i++)
		try_slices(i, outcomes);
	ck_assert_uint_gt(outcomes[0], CASES / 5);
	ck_assert_uint_gt(outcomes[1], CASES / 5);
}

/* 500 layers of K and V, 100 000 pages, 8 heads of 16 tokens, 128 bytes each;
 * strides as the letters tell, the outermost first. A layer's V follows its K
 * in every cell of 256 bytes. */
#define LAYERS 500
#define PAGES 100000

static void fill_layout(const char *order, struct ucm_region *regions)
{
	int64_t layer = 0, page = 0, head = 0, token = 0, next = 256;

	for (const char *letter = order + strlen(order); letter-- > order;) {
		switch (*letter) {
		case 'L':
			layer = next;
			next *= LAYERS;
			break;
		case 'B':
			page = next;
			next *= PAGES;
			break;
		case 'H':
			head = next;
			next *= 8;
			break;
		case 'N':
			token = next;
			next *= 16;
			break;
		}
	}
	for (size_t i = 0; i < 2 * LAYERS; i++)
		regions[i] = region_of(BASE + i / 2 * (uint64_t)layer +
					       i % 2 * 128,
				       page, 128, 8, head, 16, token);
}

static const char *const orders[] = {
	"LBHN", "LBNH", "LHBN", "BLHN", "BLNH", "BHLN",
};

/* Byte by byte or page by page this would not end. */
UNIT_TEST(many_layers_of_many_pages_need_no_walk, .rows = NUM_ROWS(orders))
{
	struct ucm_region regions[2 * LAYERS];
	size_t pair[2] = { 0, 0 };

	fill_layout(orders[_i], regions);
	ck_assert_int_eq(ucm_regions_any_overlap(regions, 2 * LAYERS, PAGES,
						 pair), 0);

	regions[701].run_bytes++;
	ck_assert_int_eq(ucm_regions_any_overlap(regions, 2 * LAYERS, PAGES,
						 pair), 1);
	ck_assert(pair[0] == 701 || pair[1] == 701);
}

static const struct {
	const char *what;
	struct ucm_region a, b;
	uint64_t pages;
	bool want;
} known[] = {
	{ "one page has no next one",
	  { .base = 100, .run_bytes = 10, .n0 = 1, .n1 = 1 },
	  { .base = 110, .run_bytes = 10, .n0 = 1, .n1 = 1 }, 1, false },
	{ "the last byte of one is the first of the other",
	  { .base = 100, .run_bytes = 11, .n0 = 1, .n1 = 1 },
	  { .base = 110, .run_bytes = 10, .n0 = 1, .n1 = 1 }, 1, true },
	{ "at both ends of the address space",
	  { .base = 0, .run_bytes = 10, .n0 = 1, .n1 = 1 },
	  { .base = UINT64_MAX - 9, .run_bytes = 10, .n0 = 1, .n1 = 1 },
	  1, false },
	{ "steps of 1000 and 1001 meet once in the first thousand",
	  { .base = 999, .page_stride = 1000, .run_bytes = 1, .n0 = 1,
	    .n1 = 1 },
	  { .base = 0, .page_stride = 1001, .run_bytes = 1, .n0 = 1, .n1 = 1 },
	  1000, true },
	{ "but not before",
	  { .base = 999, .page_stride = 1000, .run_bytes = 1, .n0 = 1,
	    .n1 = 1 },
	  { .base = 0, .page_stride = 1001, .run_bytes = 1, .n0 = 1, .n1 = 1 },
	  999, false },
	{ "even and odd numbers never meet",
	  { .base = 0, .page_stride = 4, .run_bytes = 1, .n0 = 1000000000,
	    .s0 = 6, .n1 = 1 },
	  { .base = 1, .page_stride = 10, .run_bytes = 1, .n0 = 1000000000,
	    .s0 = 14, .n1 = 1 },
	  1000000000, false },
	{ "pages one way, pages the other way",
	  { .base = 0, .page_stride = 64, .run_bytes = 32, .n0 = 1, .n1 = 1 },
	  { .base = 64 * 100000 - 32, .page_stride = -64, .run_bytes = 32,
	    .n0 = 1, .n1 = 1 },
	  100000, false },
};

UNIT_TEST(known_pairs, .rows = NUM_ROWS(known))
{
	bool got = ucm_regions_overlap(&known[_i].a, &known[_i].b,
				       known[_i].pages);

	ck_assert_msg(got == known[_i].want, "%s", known[_i].what);
}

/* What cannot be told in time is refused. */
UNIT_TEST(too_intricate_is_an_overlap)
{
	struct ucm_region a = region_of(0, 999983 * 2, 1, 99999, 999979 * 2,
					99999, 999961 * 2);
	struct ucm_region b = region_of(1, 999959 * 2, 2, 99999, 999953 * 2,
					99999, 999931 * 2);

	ck_assert(ucm_regions_overlap(&a, &b, 99999));
}

static const struct {
	struct ucm_region region;
	uint64_t pages;
	int want;
	uint64_t first, last;
} bounds[] = {
	{ { .base = 1000, .page_stride = 100, .run_bytes = 10, .n0 = 2,
	    .s0 = -20, .n1 = 3, .s1 = 30 }, 4, 0, 980, 1000 + 300 + 60 + 9 },
	{ { .base = UINT64_MAX, .run_bytes = 1, .n0 = 1, .n1 = 1 }, 1,
	  0, UINT64_MAX, UINT64_MAX },
	{ { .base = UINT64_MAX, .run_bytes = 2, .n0 = 1, .n1 = 1 }, 1,
	  -EOVERFLOW, 0, 0 },
	{ { .base = 10, .page_stride = -11, .run_bytes = 2, .n0 = 1, .n1 = 1 },
	  2, -EOVERFLOW, 0, 0 },
	{ { .base = 10, .page_stride = INT64_MAX, .run_bytes = 2, .n0 = 1,
	    .n1 = 1 }, UINT64_C(1) << 32, -EOVERFLOW, 0, 0 },
	{ { .base = 10, .run_bytes = 2, .n0 = UINT32_MAX, .s0 = INT64_MIN,
	    .n1 = UINT32_MAX, .s1 = INT64_MIN }, 1, -EOVERFLOW, 0, 0 },
};

UNIT_TEST(bounds_are_the_first_and_last_byte, .rows = NUM_ROWS(bounds))
{
	uint64_t first = 0, last = 0;

	ck_assert_int_eq(ucm_region_bounds(&bounds[_i].region, bounds[_i].pages,
					   &first, &last), bounds[_i].want);
	ck_assert_uint_eq(first, bounds[_i].first);
	ck_assert_uint_eq(last, bounds[_i].last);
}
