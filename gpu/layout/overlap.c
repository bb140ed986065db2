/* SPDX-License-Identifier: Apache-2.0 */
/*
 * overlap.c - do two regions share a byte of memory?
 *
 * Two runs share one if the distance of their starts is small enough, and that
 * distance is a sum of strides, each taken a bounded number of times. So the
 * question is whether
 *
 *	lo <= step[0] * x[0] + step[1] * x[1] + ... <= hi,  0 <= x[k] <= max[k]
 *
 * has a solution in whole numbers. Steps are tried from the largest on; what
 * the smaller ones can reach together leaves few values for each x, one or two
 * where strides nest as those of an array do. Strides that both regions have
 * become one step, so that the number of pages costs nothing.
 *
 * The answer is exact, except for regions so intricate that MAX_TRIES do not
 * decide: these are said to overlap, for which they are refused. No array
 * that is sliced or permuted comes near.
 */
#include <config.h>

#include "gpu/layout/layout.h"

#include <errno.h>

#define MAX_TRIES 100000
#define MAX_TERMS 6

/* 2^32 pages of any 64-bit stride, and sums of those. */
__extension__ typedef __int128 wide;

struct term {
	uint64_t step; /* above 0 */
	uint64_t max;
};

struct sum {
	wide lo, hi;
	unsigned num;
	struct term terms[MAX_TERMS]; /* largest step first, all different */
	wide reach[MAX_TERMS + 1];  /* of the terms from k on, together */
	uint64_t gcd[MAX_TERMS];    /* of their steps */
	unsigned tries;
};

static void insert_term(struct sum *sum, uint64_t step, uint64_t max)
{
	unsigned at = 0, k;

	while (at < sum->num && sum->terms[at].step > step)
		at++;
	if (at < sum->num && sum->terms[at].step == step) {
		sum->terms[at].max += max;
		return;
	}
	for (k = sum->num++; k > at; k--)
		sum->terms[k] = sum->terms[k - 1];
	sum->terms[at] = (struct term){ .step = step, .max = max };
}

/* A summand stride * x with from <= x <= to. */
static void add_term(struct sum *sum, int64_t stride, int64_t from, int64_t to)
{
	wide least = (wide)stride * (stride < 0 ? to : from);
	uint64_t step = stride < 0 ? -(uint64_t)stride : (uint64_t)stride;

	sum->lo -= least;
	sum->hi -= least;
	if (step && from != to)
		insert_term(sum, step, (uint64_t)(to - from));
}

static uint64_t gcd(uint64_t a, uint64_t b)
{
	while (b) {
		uint64_t rest = a % b;

		a = b;
		b = rest;
	}
	return a;
}

static bool solve(struct sum *sum, unsigned k, wide lo, wide hi)
{
	const struct term *term = &sum->terms[k];
	wide first, last;

	if (hi < 0 || lo > sum->reach[k])
		return false;
	if (lo <= 0 || hi >= sum->reach[k])
		return true; /* all x at their least, or at their most */
	if (hi / sum->gcd[k] * sum->gcd[k] < lo)
		return false;
	first = lo - sum->reach[k + 1] + (term->step - 1);
	first = first > 0 ? first / term->step : 0;
	last = hi / term->step;
	if (last > term->max)
		last = term->max;
	for (; first <= last; first++) {
		if (!sum->tries--)
			return true;
		if (solve(sum, k + 1, lo - first * term->step,
			  hi - first * term->step))
			return true;
	}
	return false;
}

static bool solvable(struct sum *sum)
{
	uint64_t common = 0;
	wide reach = 0;

	sum->reach[sum->num] = 0;
	for (unsigned k = sum->num; k-- > 0;) {
		reach += (wide)sum->terms[k].step * sum->terms[k].max;
		common = gcd(sum->terms[k].step, common);
		sum->reach[k] = reach;
		sum->gcd[k] = common;
	}
	sum->tries = MAX_TRIES;
	return solve(sum, 0, sum->lo, sum->hi);
}

/* A region as an array of runs. */
struct axes {
	int64_t stride[3];
	int64_t num[3];
};

static struct axes axes_of(const struct ucm_region *region, uint64_t num_pages)
{
	return (struct axes){
		.stride = { region->page_stride, region->s1, region->s0 },
		.num = { (int64_t)num_pages, region->n1, region->n0 },
	};
}

/* Of two different places, the first axis that they differ in is larger by at
 * least one in one of them, call that the second. */
static bool overlaps_itself(const struct ucm_region *region, uint64_t num_pages)
{
	struct axes axes = axes_of(region, num_pages);

	for (unsigned first = 0; first < 3; first++) {
		struct sum sum = {
			.lo = 1 - (wide)region->run_bytes,
			.hi = (wide)region->run_bytes - 1,
		};

		if (axes.num[first] < 2)
			continue;
		add_term(&sum, axes.stride[first], 1, axes.num[first] - 1);
		for (unsigned k = first + 1; k < 3; k++)
			add_term(&sum, axes.stride[k], 1 - axes.num[k],
				 axes.num[k] - 1);
		if (solvable(&sum))
			return true;
	}
	return false;
}

bool ucm_regions_overlap(const struct ucm_region *a, const struct ucm_region *b,
			 uint64_t num_pages)
{
	wide between = (wide)b->base - a->base;
	struct sum sum = {
		.lo = 1 - (wide)b->run_bytes - between,
		.hi = (wide)a->run_bytes - 1 - between,
	};
	struct axes of_a = axes_of(a, num_pages), of_b = axes_of(b, num_pages);

	if (a == b)
		return overlaps_itself(a, num_pages);
	for (unsigned k = 0; k < 3; k++) {
		add_term(&sum, of_a.stride[k], 1 - of_a.num[k], 0);
		add_term(&sum, of_b.stride[k], 0, of_b.num[k] - 1);
	}
	return solvable(&sum);
}

/* From the lowest address of all pages' runs to the highest. */
static void span(const struct ucm_region *region, uint64_t num_pages,
		 wide *first, wide *last)
{
	struct axes axes = axes_of(region, num_pages);

	*first = region->base;
	*last = (wide)region->base + region->run_bytes - 1;
	for (unsigned k = 0; k < 3; k++) {
		wide reach = (wide)axes.stride[k] * (axes.num[k] - 1);

		*(reach < 0 ? first : last) += reach;
	}
}

int ucm_region_bounds(const struct ucm_region *region, uint64_t num_pages,
		      uint64_t *first_out, uint64_t *last_out)
{
	wide first, last;

	span(region, num_pages, &first, &last);
	if (first < 0 || last > UINT64_MAX)
		return -EOVERFLOW;
	*first_out = (uint64_t)first;
	*last_out = (uint64_t)last;
	return 0;
}

bool ucm_regions_any_overlap(const struct ucm_region *regions, size_t num,
			     uint64_t num_pages, size_t pair_out[2])
{
	for (size_t a = 0; a < num; a++) {
		for (size_t b = a; b < num; b++) {
			if (!ucm_regions_overlap(&regions[a], &regions[b],
						 num_pages))
				continue;
			pair_out[0] = a;
			pair_out[1] = b;
			return true;
		}
	}
	return false;
}
