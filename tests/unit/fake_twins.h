/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_twins.h - the kernels of gpu/sparse/twins.cu on the host: every thread of a
 * grid, one after the other, between any two places at which they wait for each
 * other; ballots and exchanges of warps are made here. For fake_cuda.c, which
 * has UCM_AT and mistake() before it.
 */
#ifndef UCM_TESTS_FAKE_TWINS_H
#define UCM_TESTS_FAKE_TWINS_H

#include "gpu/sparse/build_twin.h"
#include "gpu/sparse/deviation_twin.h"
#include "gpu/sparse/score_twin.h"
#include "gpu/sparse/select_twin.h"
#include "gpu/sparse/shift_twin.h"

struct fake_grid {
	uint32_t x, y, threads; /* CTAs; and of a CTA */
};

static void fake_query(const struct fake_grid *grid, const void *args)
{
	for (uint32_t y = 0; y < grid->y; y++) {
		for (uint32_t t = 0; t < grid->x * grid->threads; t++)
			ucm_twin_query_thread(args, t, y);
	}
}

static void fake_score_warp(const void *args, uint32_t dtype, uint32_t first,
			    uint32_t y)
{
	struct ucm_twin_item items[UCM_WARP];
	float lanes[UCM_WARP][UCM_TWIN_LANES_MAX];
	float others[UCM_WARP][UCM_TWIN_LANES_MAX];

	for (uint32_t t = 0; t < UCM_WARP; t++) {
		items[t] = ucm_twin_item_find(args, dtype, first + t, y);
		ucm_twin_item_lanes(args, dtype, &items[t], lanes[t]);
	}
	for (uint32_t n = ucm_twin_team(dtype) / 2; n; n /= 2) {
		memcpy(others, lanes, sizeof(others));
		for (uint32_t t = 0; t < UCM_WARP; t++) {
			for (uint32_t j = 0; j < ucm_twin_each(dtype); j++)
				lanes[t][j] += others[t ^ n][j];
		}
	}
	for (uint32_t t = 0; t < UCM_WARP; t++)
		ucm_twin_item_end(args, dtype, &items[t], lanes[t]);
}

static void fake_score(const struct fake_grid *grid, const void *args,
		       uint32_t dtype)
{
	for (uint32_t y = 0; y < grid->y; y++) {
		for (uint32_t t = 0; t < grid->x * grid->threads; t += UCM_WARP)
			fake_score_warp(args, dtype, t, y);
	}
}

static void fake_score_float32(const struct fake_grid *grid, const void *args)
{
	fake_score(grid, args, UCM_DTYPE_FLOAT32);
}

static void fake_score_float16(const struct fake_grid *grid, const void *args)
{
	fake_score(grid, args, UCM_DTYPE_FLOAT16);
}

static void fake_score_bfloat16(const struct fake_grid *grid, const void *args)
{
	fake_score(grid, args, UCM_DTYPE_BFLOAT16);
}

static void fake_score_int8(const struct fake_grid *grid, const void *args)
{
	fake_score(grid, args, UCM_DTYPE_INT8);
}

static void fake_score_steps(const struct fake_grid *grid, const void *args)
{
	fake_score(grid, args, UCM_TWIN_STEPS);
}

static void fake_query_steps(const struct fake_grid *grid, const void *args)
{
	struct ucm_twin_steps s;

	for (uint32_t i = 0; i < grid->x * grid->y; i++) {
		uint32_t x = i % grid->x, y = i / grid->x;

		for (uint32_t t = 0; t < grid->threads; t++)
			ucm_twin_steps_take(args, x, y, t, &s);
		for (uint32_t t = 0; t < grid->threads; t++)
			ucm_twin_steps_scale(args, t, &s);
		for (uint32_t t = 0; t < grid->threads; t++)
			ucm_twin_steps_store(args, x, y, t, &s);
	}
}

static void fake_build(const struct fake_grid *grid, const void *args)
{
	const struct ucm_twin_build_args *build = args;
	struct ucm_twin_head head;

	for (uint32_t x = 0; x < grid->x; x++) {
		struct ucm_twin_block block = ucm_twin_block_find(&build->from,
								  x);

		if (!block.tokens)
			continue;
		for (uint32_t t = 0; t < grid->threads; t++)
			ucm_twin_build_take(args, &block, t, &head);
		for (uint32_t t = 0; t < grid->threads; t++)
			ucm_twin_build_length(args, t, &head);
		for (uint32_t t = 0; t < grid->threads; t++)
			ucm_twin_build_normalize(args, t, &head);
		for (uint32_t t = 0; t < grid->threads; t++)
			ucm_twin_build_scale(args, t, &head);
		for (uint32_t t = 0; t < grid->threads; t++)
			ucm_twin_build_store(args, &block, t, &head);
	}
}

static void fake_find_kth(const void *args, uint32_t threads, uint32_t request,
			  struct ucm_twin_selection *s)
{
	for (uint32_t byte = 4; byte--;) {
		uint32_t from = 0;

		for (uint32_t t = 0; t < threads; t++)
			ucm_twin_bins_clear(s, t);
		for (uint32_t t = 0; t < threads; t++)
			ucm_twin_bins_count(args, request, t, byte, s);
		for (uint32_t d = 1; d < UCM_TWIN_BINS; d *= 2) {
			for (uint32_t t = 0; t < threads; t++)
				ucm_twin_bins_add(s, t, d, from);
			from = !from;
		}
		for (uint32_t t = 0; t < threads; t++)
			ucm_twin_bins_choose(s, t, from);
		ucm_twin_bins_narrow(s, byte);
	}
}

static struct ucm_twin_masks
fake_masks(const void *args, uint32_t request, uint32_t block,
	   const struct ucm_twin_selection *s)
{
	struct ucm_twin_masks masks = { 0, 0 };

	for (uint32_t lane = 0; lane < UCM_WARP; lane++) {
		uint32_t place = ucm_twin_place_of(args, request, block + lane,
						   s);

		masks.sure |= (uint32_t)(place == UCM_TWIN_SURE) << lane;
		masks.equal |= (uint32_t)(place == UCM_TWIN_EQUAL) << lane;
	}
	return masks;
}

static void fake_count_part(const void *args, uint32_t request, uint32_t warp,
			    struct ucm_twin_selection *s)
{
	uint32_t part = ucm_twin_part(s), begin = warp * part;
	struct ucm_twin_before before = { 0, 0 };

	for (uint32_t i = begin; i < begin + part; i += UCM_WARP)
		ucm_twin_part_add(&before, fake_masks(args, request, i, s));
	s->sure[warp] = before.sure;
	s->equal[warp] = before.equal;
}

static uint32_t fake_write_part(const void *args, uint32_t request,
				uint32_t warp, int write,
				struct ucm_twin_selection *s)
{
	uint32_t part = ucm_twin_part(s), begin = warp * part, num = 0;
	struct ucm_twin_before before = ucm_twin_part_before(s, warp);

	for (uint32_t i = begin; i < begin + part; i += UCM_WARP) {
		struct ucm_twin_masks masks = fake_masks(args, request, i, s);

		for (uint32_t lane = 0; lane < UCM_WARP; lane++)
			num += (uint32_t)ucm_twin_part_write(
				args, request, i + lane, before, masks, write,
				s);
		ucm_twin_part_add(&before, masks);
	}
	return num;
}

/* As many as there are places: on a device two that write to one would race. */
static void fake_write(const void *args, uint32_t request, uint32_t warps,
		       int write, struct ucm_twin_selection *s)
{
	uint32_t num = 0;

	for (uint32_t warp = 0; warp < warps; warp++)
		num += fake_write_part(args, request, warp, write, s);
	if (num != ucm_twin_total(s) && !s->invalid)
		mistake("blocks are written in one place", num);
}

static void fake_select(const struct fake_grid *grid, const void *args)
{
	struct ucm_twin_selection s;
	uint32_t warps = grid->threads / UCM_WARP;

	for (uint32_t x = 0; x < grid->x; x++) {
		ucm_twin_select_begin(args, x, &s);
		if (!s.invalid) {
			fake_find_kth(args, grid->threads, x, &s);
			for (uint32_t warp = 0; warp < warps; warp++)
				fake_count_part(args, x, warp, &s);
			for (int write = 0; write <= 1 && !s.invalid; write++)
				fake_write(args, x, warps, write, &s);
		}
		ucm_twin_select_end(args, x, &s);
	}
}

static void fake_shift_part(const void *args, uint32_t threads, uint32_t x,
			    uint32_t y)
{
	struct ucm_twin_move move = ucm_twin_move_find(args, x, y);
	struct ucm_twin_turns turns;
	int32_t filled = 0;
	bool is_filled = false;

	for (uint32_t token = move.first; token < move.end; token++) {
		int32_t delta = ucm_twin_delta(args, &move, token);
		int stays = ucm_twin_stays(args, delta);

		if (!stays && !(is_filled && filled == delta)) {
			for (uint32_t t = 0; t < threads; t++)
				ucm_twin_turns_fill(args, delta, t, &turns);
			is_filled = true;
			filled = delta;
		}
		for (uint32_t t = 0; t < threads; t++)
			ucm_twin_token_move(args, &move, token, t, stays,
					    &turns);
	}
}

static void fake_shift(const struct fake_grid *grid, const void *args)
{
	for (uint32_t x = 0; x < grid->x; x++) {
		for (uint32_t y = 0; y < grid->y; y++)
			fake_shift_part(args, grid->threads, x, y);
	}
}

static void fake_deviation_warp(const void *args, uint32_t first)
{
	struct ucm_twin_sums sums[UCM_WARP], others[UCM_WARP];

	for (uint32_t t = 0; t < UCM_WARP; t++)
		sums[t] = ucm_twin_deviation_lane(args, first + t);
	for (uint32_t n = UCM_WARP / 2; n; n /= 2) {
		memcpy(others, sums, sizeof(others));
		for (uint32_t t = 0; t < UCM_WARP; t++) {
			sums[t].differs += others[t ^ n].differs;
			sums[t].size += others[t ^ n].size;
		}
	}
	for (uint32_t t = 0; t < UCM_WARP; t++)
		ucm_twin_deviation_end(args, first + t, sums[t]);
}

static void fake_deviation(const struct fake_grid *grid, const void *args)
{
	for (uint32_t t = 0; t < grid->x * grid->threads; t += UCM_WARP)
		fake_deviation_warp(args, t);
}

/* By the kernels' names. */
static const struct fake_twin {
	const char *name;
	size_t args_bytes;
	void (*run)(const struct fake_grid *grid, const void *args);
} fake_twins[] = {
	{ "ucm_twin_query", sizeof(struct ucm_twin_query_args), fake_query },
	{ "ucm_twin_score_float32", sizeof(struct ucm_twin_score_args),
	  fake_score_float32 },
	{ "ucm_twin_score_float16", sizeof(struct ucm_twin_score_args),
	  fake_score_float16 },
	{ "ucm_twin_score_bfloat16", sizeof(struct ucm_twin_score_args),
	  fake_score_bfloat16 },
	{ "ucm_twin_score_int8", sizeof(struct ucm_twin_score_args),
	  fake_score_int8 },
	{ "ucm_twin_score_steps", sizeof(struct ucm_twin_score_args),
	  fake_score_steps },
	{ "ucm_twin_query_steps", sizeof(struct ucm_twin_query_args),
	  fake_query_steps },
	{ "ucm_twin_build", sizeof(struct ucm_twin_build_args), fake_build },
	{ "ucm_twin_select", sizeof(struct ucm_twin_select_args), fake_select },
	{ "ucm_twin_shift", sizeof(struct ucm_twin_shift_args), fake_shift },
	{ "ucm_twin_deviation", sizeof(struct ucm_twin_deviation_args),
	  fake_deviation },
};

#endif
