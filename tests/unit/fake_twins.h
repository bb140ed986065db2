/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_twins.h - the kernels of gpu/sparse/twins.cu on the host: every thread of a
 * grid, one after the other, between any two places at which they wait for each
 * other; ballots and exchanges of warps are made here. For fake_cuda.c, which
 * has UCM_AT and mistake() before it.
 */
#ifndef UCM_TESTS_FAKE_TWINS_H
#define UCM_TESTS_FAKE_TWINS_H

#include "gpu/sparse/attention_twin.h"
#include "gpu/sparse/build_twin.h"
#include "gpu/sparse/code_score_twin.h"
#include "gpu/sparse/code_twin.h"
#include "gpu/sparse/deviation_twin.h"
#include "gpu/sparse/score_twin.h"
#include "gpu/sparse/select_twin.h"
#include "gpu/sparse/shift_twin.h"
#include "gpu/sparse/star_twin.h"

struct fake_grid {
	uint32_t x, y, threads; /* CTAs; and of a CTA */
	uint32_t shared;
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

/* ---- hash codes ---- */

/* All threads of a CTA with what each has of its own. */
struct fake_codes {
	uint32_t threads;
	struct ucm_twin_vectors vectors;
	struct ucm_twin_column columns[UCM_TWIN_CODE_THREADS];
	float products[UCM_TWIN_CODE_THREADS][UCM_TWIN_VECTORS];
};

static uint32_t fake_ballot(const uint32_t *bits)
{
	uint32_t mask = 0;

	for (uint32_t t = 0; t < UCM_WARP; t++)
		mask |= (bits[t] & 1) << t;
	return mask;
}

static void fake_rotate(const struct ucm_twin_coder *coder, uint32_t first,
			const struct ucm_twin_vectors *vectors,
			struct fake_codes *c)
{
	for (uint32_t t = 0; t < c->threads; t++) {
		c->columns[t] = ucm_twin_column_find(coder, first + t);
		ucm_twin_rotate(&c->columns[t], vectors, c->products[t]);
	}
}

static void fake_code_part(const struct ucm_twin_code_args *args,
			   const struct ucm_twin_code *code, uint32_t token,
			   uint32_t first, struct fake_codes *c)
{
	fake_rotate(&args->coder, first, &c->vectors, c);
	for (uint32_t t = 0; t < c->threads; t++) {
		uint32_t masks[UCM_TWIN_VECTORS], bits[UCM_WARP];

		for (uint32_t j = 0; j < UCM_TWIN_VECTORS; j++) {
			for (uint32_t i = 0; i < UCM_WARP; i++)
				bits[i] = c->products[t / UCM_WARP * UCM_WARP +
						      i][j] > 0;
			masks[j] = fake_ballot(bits);
		}
		ucm_twin_code_store(args, code, token, first + t, masks);
	}
	for (uint32_t t = 0; args->norms && t < c->threads; t++)
		ucm_twin_norms_take(t, c->products[t], &c->vectors);
	for (uint32_t t = 0; args->norms && t < c->threads; t++)
		ucm_twin_norms_add(t, &c->vectors);
}

static void fake_encode_cta(const struct ucm_twin_code_args *args, uint32_t x,
			    struct fake_codes *c)
{
	struct ucm_twin_code code = ucm_twin_code_find(args, x);
	uint32_t columns = args->coder.words * UCM_CODE_WORD;

	for (uint32_t t = 0; code.end && t < c->threads; t++)
		ucm_twin_code_begin(args, &code, t);
	for (uint32_t i = code.first; i < code.end; i += UCM_TWIN_VECTORS) {
		for (uint32_t t = 0; t < c->threads; t++)
			ucm_twin_keys_load(args, &code, i, t, &c->vectors);
		for (uint32_t t = 0; args->norms && t < c->threads; t++)
			ucm_twin_norms_begin(args, t, &c->vectors);
		for (uint32_t j = 0; j < columns; j += c->threads)
			fake_code_part(args, &code, i, j, c);
		for (uint32_t t = 0; args->norms && t < c->threads; t++)
			ucm_twin_norms_store(args, &code, i, t, &c->vectors);
	}
}

static void fake_encode(const struct fake_grid *grid, const void *args)
{
	static struct fake_codes c;

	c.threads = grid->threads;
	for (uint32_t x = 0; x < grid->x; x++)
		fake_encode_cta(args, x, &c);
}

static void fake_count_cta(const struct ucm_twin_code_args *args, uint32_t x,
			   uint32_t y, struct fake_codes *c)
{
	uint32_t counts[UCM_TWIN_CODE_THREADS] = { 0 }, bits[UCM_WARP];
	struct ucm_twin_code code = ucm_twin_code_find(args, x);
	uint32_t first = y * c->threads;

	for (uint32_t i = 0; i < code.end; i += UCM_TWIN_VECTORS) {
		for (uint32_t t = 0; t < c->threads; t++)
			ucm_twin_keys_load(args, &code, i, t, &c->vectors);
		fake_rotate(&args->coder, first, &c->vectors, c);
		for (uint32_t t = 0; t < c->threads; t++) {
			for (uint32_t j = 0; j < UCM_TWIN_VECTORS; j++)
				counts[t] += c->products[t][j] > 0;
		}
	}
	for (uint32_t i = 0; code.end && i < args->rows; i++) {
		for (uint32_t t = 0; t < c->threads; t++) {
			for (uint32_t j = 0; j < UCM_WARP; j++)
				bits[j] = counts[t / UCM_WARP * UCM_WARP + j] >>
					  i;
			ucm_twin_count_store(args, &code, i, first + t,
					     fake_ballot(bits));
		}
	}
	for (uint32_t t = 0; code.end && !code.head && !y && t < c->threads;
	     t++)
		ucm_twin_code_tail(args, &code, t);
}

static void fake_count(const struct fake_grid *grid, const void *args)
{
	static struct fake_codes c;

	c.threads = grid->threads;
	for (uint32_t i = 0; i < grid->x * grid->y; i++)
		fake_count_cta(args, i % grid->x, i / grid->x, &c);
}

struct fake_code_query {
	const struct ucm_twin_code_query_args *args;
	uint32_t x, y;
	struct fake_codes codes;
	struct ucm_twin_code_row row;
	uint32_t counts[UCM_TWIN_CODE_THREADS];
	float products[UCM_TWIN_CODE_THREADS];
};

static void fake_heads_count(struct fake_code_query *q, uint32_t first)
{
	memset(q->counts, 0, sizeof(q->counts));
	for (uint32_t i = 0; i < q->args->vectors; i += UCM_TWIN_VECTORS) {
		for (uint32_t t = 0; t < q->codes.threads; t++)
			ucm_twin_code_heads_load(q->args, q->y, q->x, i, t,
						 &q->row);
		fake_rotate(&q->args->coder, first, &q->row.vectors, &q->codes);
		for (uint32_t t = 0; t < q->codes.threads; t++) {
			for (uint32_t j = 0; j < UCM_TWIN_VECTORS; j++)
				q->counts[t] += q->codes.products[t][j] > 0;
			q->products[t] = q->codes.products[t][0];
		}
	}
}

static void fake_planes(struct fake_code_query *q, uint32_t first, float most)
{
	uint32_t which[UCM_TWIN_CODE_THREADS], bits[UCM_WARP];

	for (uint32_t t = 0; t < q->codes.threads; t++) {
		which[t] = ucm_twin_planes_of(q->args, &q->codes.columns[t],
					      q->counts[t], q->products[t],
					      most);
		q->row.weights[t] += ucm_twin_planes_weight(q->args, which[t]);
	}
	for (uint32_t t = 0; t < q->codes.threads; t++) {
		for (uint32_t p = 0; p < q->args->planes; p++) {
			for (uint32_t j = 0; j < UCM_WARP; j++)
				bits[j] = which[t / UCM_WARP * UCM_WARP + j] >>
					  p;
			ucm_twin_plane_store(q->args, q->y, q->x, p, first + t,
					     fake_ballot(bits));
		}
	}
}

static void fake_code_query_cta(struct fake_code_query *q)
{
	uint32_t columns = q->args->coder.words * UCM_CODE_WORD;
	uint32_t threads = q->codes.threads;

	memset(&q->row, 0, sizeof(q->row));
	for (uint32_t i = 0; q->args->estimate && i < columns; i += threads) {
		fake_heads_count(q, i);
		for (uint32_t t = 0; t < threads; t++)
			q->row.most[t] = fmaxf(q->row.most[t],
					       fabsf(q->products[t]));
	}
	for (uint32_t i = 0; i < columns; i += threads) {
		fake_heads_count(q, i);
		fake_planes(q, i, ucm_twin_most_of_all(&q->row));
	}
	ucm_twin_code_row_end(q->args, q->y, q->x, &q->row);
}

static void fake_code_query(const struct fake_grid *grid, const void *args)
{
	static struct fake_code_query q;

	q.args = args;
	q.codes.threads = grid->threads;
	for (uint32_t i = 0; i < grid->x * grid->y; i++) {
		q.x = i % grid->x;
		q.y = i / grid->x;
		fake_code_query_cta(&q);
	}
}

static void fake_code_head(const struct ucm_twin_code_score_args *args,
			   uint32_t mode, const struct ucm_twin_code_item *items,
			   uint32_t h, float *scores)
{
	struct ucm_twin_code_part parts[UCM_WARP], others[UCM_WARP];

	for (uint32_t t = 0; t < UCM_WARP; t++)
		parts[t] = ucm_twin_code_take(args, mode, &items[t], h);
	for (uint32_t n = args->team / 2; n; n /= 2) {
		memcpy(others, parts, sizeof(others));
		for (uint32_t t = 0; t < UCM_WARP; t++)
			parts[t] = ucm_twin_code_join(mode, parts[t],
						      others[t ^ n]);
	}
	for (uint32_t t = 0; t < UCM_WARP; t++)
		scores[t] = ucm_twin_code_run(args, mode, &items[t], h,
					      parts[t]);
}

static void fake_code_head_normed(const struct ucm_twin_code_score_args *args,
				  const struct ucm_twin_code_item *items,
				  uint32_t h, float *scores)
{
	struct ucm_twin_pair_scores two[UCM_WARP];
	double sums[UCM_WARP] = { 0 };

	for (uint32_t i = 0; i < ucm_twin_code_steps(args); i++) {
		for (uint32_t t = 0; t < UCM_WARP; t++)
			two[t] = ucm_twin_code_pair(args, &items[t], h, i);
		for (uint32_t t = 0; t < UCM_WARP; t++) {
			uint32_t first = t / args->team * args->team;

			for (uint32_t j = 0; j < 2 * args->team; j++)
				sums[t] += (double)two[first + j / 2].of[j % 2];
		}
	}
	for (uint32_t t = 0; t < UCM_WARP; t++)
		scores[t] = ucm_twin_code_normed(args, &items[t], h, sums[t]);
}

static void fake_code_score_warp(const struct ucm_twin_code_score_args *args,
				 uint32_t mode, uint32_t first, uint32_t y)
{
	struct ucm_twin_code_item items[UCM_WARP];
	float scores[UCM_WARP] = { 0 };
	double all[UCM_WARP] = { 0 };

	for (uint32_t t = 0; t < UCM_WARP; t++)
		items[t] = ucm_twin_code_item_find(args, first + t, y, 1);
	for (uint32_t h = 0; h < items[0].num_heads; h++) {
		if (mode == UCM_TWIN_CODE_NORMED)
			fake_code_head_normed(args, items, h, scores);
		else
			fake_code_head(args, mode, items, h, scores);
		for (uint32_t t = 0; t < UCM_WARP; t++)
			all[t] += (double)scores[t];
	}
	for (uint32_t t = 0; t < UCM_WARP; t++)
		ucm_twin_code_item_end(args, &items[t], scores[t], all[t]);
}

#define FAKE_CODE(name, mode)                                                 	static void fake_code_##name(const struct fake_grid *grid,            				     const void *args)                        	{                                                                     		uint32_t warps = grid->x * grid->threads / UCM_WARP;                                                                                        		for (uint32_t i = 0; i < warps * grid->y; i++)                			fake_code_score_warp(args, mode,                      					     i % warps * UCM_WARP,            					     i / warps);                      	}

FAKE_CODE(least, UCM_TWIN_CODE_LEAST)
FAKE_CODE(best, UCM_TWIN_CODE_BEST)
FAKE_CODE(sum, UCM_TWIN_CODE_SUM)
FAKE_CODE(counts, UCM_TWIN_CODE_COUNT)
FAKE_CODE(normed_sum, UCM_TWIN_CODE_NORMED)

static void fake_code_tokens(const struct fake_grid *grid, const void *args)
{
	const struct ucm_twin_code_score_args *score = args;
	uint32_t threads = grid->x * grid->threads;

	for (uint32_t i = 0; i < threads * grid->y; i++) {
		struct ucm_twin_code_item item = ucm_twin_code_item_find(
			args, i % threads, i / threads, score->block_size);

		ucm_twin_code_each(args, &item);
	}
}

/* ---- merged channels ---- */

static void fake_star_group(const struct ucm_twin_star_build_args *args,
			    const struct ucm_twin_block *block, uint32_t group,
			    uint32_t first, struct ucm_twin_star_means *means)
{
	struct ucm_twin_star_most most =
		ucm_twin_star_take(args, block, group, first, means);

	for (uint32_t t = 1; t < UCM_WARP; t++)
		most = ucm_twin_star_join(
			most, ucm_twin_star_take(args, block, group, first + t,
						 means));
	for (uint32_t t = 0; t < UCM_WARP; t++)
		ucm_twin_star_store(args, block, group, first + t, most, means);
}

static void fake_star_build(const struct fake_grid *grid, const void *arguments)
{
	const struct ucm_twin_star_build_args *args = arguments;
	static struct ucm_twin_star_means means;

	for (uint32_t x = 0; x < grid->x; x++) {
		struct ucm_twin_block block = ucm_twin_block_find(&args->from,
								  x);
		uint32_t first;

		if (!block.tokens)
			continue;
		first = ucm_twin_star_first(args, &block, x);
		for (uint32_t i = first; i < args->lanes; i++)
			fake_star_group(args, &block, i,
					(i - first) % UCM_TWIN_STAR_WARPS *
						UCM_WARP, &means);
		for (uint32_t t = 0; t < grid->threads; t++)
			ucm_twin_star_tail(args, &block, t);
	}
}

static void fake_star_query(const struct fake_grid *grid, const void *args)
{
	uint32_t threads = grid->x * grid->threads;

	for (uint32_t i = 0; i < threads * grid->y; i++)
		ucm_twin_star_query_thread(args, i % threads, i / threads);
}

/* Both teams of a warp are one after the other here. */
static void fake_star_rows(const struct ucm_twin_star_score_args *args,
			   uint32_t dtype,
			   const struct ucm_twin_star_item *items,
			   uint32_t head, uint32_t row,
			   struct ucm_twin_star_rows *out)
{
	struct ucm_twin_star_rows all[UCM_STAR_LANES];
	float weights[UCM_STAR_LANES];

	for (uint32_t t = 0; t < UCM_STAR_LANES; t++)
		all[t] = ucm_twin_star_find(args, dtype, &items[t], head, row);
	for (uint32_t j = 0; j < UCM_TWIN_STAR_ROWS; j++) {
		float most = all[0].best[j];

		for (uint32_t t = 1; t < UCM_STAR_LANES; t++)
			most = ucm_twin_star_larger(most, all[t].best[j]);
		for (uint32_t t = 0; t < UCM_STAR_LANES; t++)
			weights[t] = ucm_twin_star_weigh(args, &items[t],
							 all[t].best[j],
							 all[t].sums[j], most);
		for (uint32_t n = UCM_STAR_LANES / 2; n; n /= 2) {
			for (uint32_t t = 0; t < n; t++)
				weights[t] += weights[t + n];
		}
		out->best[j] = most;
		out->sums[j] = weights[0];
	}
}

static float fake_star_head(const struct ucm_twin_star_score_args *args,
			    uint32_t dtype,
			    const struct ucm_twin_star_item *items,
			    uint32_t head)
{
	struct ucm_twin_star_rows all;
	float sum = 0;

	for (uint32_t row = 0; row < args->rows; row += UCM_TWIN_STAR_ROWS) {
		fake_star_rows(args, dtype, items, head, row, &all);
		sum = ucm_twin_star_sum(args, items, row, &all, sum);
	}
	return sum / (float)args->rows;
}

static void fake_star_team(const struct ucm_twin_star_score_args *args,
			   uint32_t dtype, uint32_t first, uint32_t y)
{
	struct ucm_twin_star_item items[UCM_STAR_LANES];
	struct ucm_twin_star_rows all;
	float sum;

	for (uint32_t t = 0; t < UCM_STAR_LANES; t++)
		items[t] = ucm_twin_star_item_find(args, first + t, y);
	if (args->per == UCM_SCORE_HEAD) {
		fake_star_rows(args, dtype, items, items->head, items->row,
			       &all);
		ucm_twin_star_put(args, items, &all);
		return;
	}
	sum = fake_star_head(args, dtype, items, items->head);
	for (uint32_t h = 1; args->per == UCM_SCORE_BLOCK &&
			     h < args->num_heads; h++)
		sum += fake_star_head(args, dtype, items, h);
	ucm_twin_star_put_sum(args, items, sum);
}

#define FAKE_STAR(name, dtype)                                                \
	static void fake_star_##name(const struct fake_grid *grid,            \
				     const void *args)                        \
	{                                                                     \
		uint32_t teams = grid->x * grid->threads / UCM_STAR_LANES;    \
                                                                              \
		for (uint32_t i = 0; i < teams * grid->y; i++)                \
			fake_star_team(args, dtype,                           \
				       i % teams * UCM_STAR_LANES,            \
				       i / teams);                            \
	}

FAKE_STAR(float32, UCM_DTYPE_FLOAT32)
FAKE_STAR(float16, UCM_DTYPE_FLOAT16)
FAKE_STAR(bfloat16, UCM_DTYPE_BFLOAT16)
FAKE_STAR(int8, UCM_DTYPE_INT8)

static void fake_vote_row(const struct ucm_twin_vote_args *args,
			  uint32_t threads, uint32_t x, uint32_t y)
{
	uint64_t scores = ucm_twin_vote_row(args, args->scores, y, x);
	uint64_t weights = ucm_twin_vote_row(args, args->weights, y, x);
	uint32_t num = ucm_twin_vote_blocks(args, y);
	struct ucm_twin_vote s = { .bad = 0 };

	for (uint32_t t = 0; t < threads; t++)
		ucm_twin_vote_top(scores, num, t, &s);
	for (uint32_t t = 0; t < threads; t++)
		ucm_twin_vote_shares(args, scores, weights, num, t, &s);
	for (uint32_t t = 0; t < threads; t++)
		ucm_twin_vote_lane(weights, num, t, &s);
	for (uint32_t t = 0; t < threads; t++)
		ucm_twin_vote_divide(weights, num, t, &s);
}

static void fake_vote_rows(const struct fake_grid *grid, const void *args)
{
	for (uint32_t i = 0; i < grid->x * grid->y; i++)
		fake_vote_row(args, grid->threads, i % grid->x, i / grid->x);
}

static void fake_votes(const struct fake_grid *grid, const void *args)
{
	uint32_t threads = grid->x * grid->threads;

	for (uint32_t i = 0; i < threads * grid->y; i++)
		ucm_twin_votes_thread(args, i % threads, i / threads);
}

/* ---- selection ---- */

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

/* ---- attention ---- */

static void fake_fold(float sums[UCM_WARP][UCM_TWIN_ATTEND_HEADS],
		      uint32_t heads)
{
	float sent[UCM_WARP];

	for (uint32_t n = UCM_WARP / 2; n; n /= 2) {
		uint32_t kept = ucm_twin_fold_kept(heads, n);

		for (uint32_t j = 0; j < (kept ? kept : 1); j++) {
			for (uint32_t t = 0; t < UCM_WARP; t++)
				sent[t] = ucm_twin_fold_sent(sums[t], kept, t,
							     n, j);
			for (uint32_t t = 0; t < UCM_WARP; t++)
				ucm_twin_fold_take(sums[t], kept, t, n, j,
						   sent[t ^ n]);
		}
	}
}

static void fake_weights(uint32_t num, uint32_t heads,
			 struct ucm_twin_attend *s)
{
	struct ucm_twin_weight w[UCM_TILE_TOKENS], all;

	for (uint32_t head = 0; head < heads; head++) {
		uint32_t first = head * UCM_TILE_TOKENS;

		all = ucm_twin_weight_find(first, num, s);
		for (uint32_t i = 0; i < UCM_TILE_TOKENS; i++) {
			w[i] = ucm_twin_weight_find(first + i, num, s);
			all.most = fmaxf(all.most, w[i].most);
			all.finite &= w[i].finite;
		}
		for (uint32_t i = 0; i < UCM_TILE_TOKENS; i++) {
			w[i].most = all.most;
			w[i].finite = all.finite;
			ucm_twin_weight_make(first + i, &w[i], s);
		}
		for (uint32_t n = UCM_TILE_TOKENS / 2; n; n /= 2) {
			for (uint32_t i = 0; i < n; i++)
				w[i].sum += w[i + n].sum;
		}
		for (uint32_t i = UCM_TILE_TOKENS; i--;)
			ucm_twin_weight_store(first + i, &w[i], s);
	}
}

static void fake_attend_tokens(const struct ucm_twin_attend_args *args,
			       const struct ucm_twin_attend_part *part,
			       int64_t block, uint32_t first, uint32_t end,
			       int far, uint32_t heads,
			       struct ucm_twin_attend *s)
{
	float sums[UCM_WARP][UCM_TWIN_ATTEND_HEADS];

	for (uint32_t i = first; i < end; i += UCM_TILE_TOKENS) {
		uint32_t num = ucm_least_of(end - i, UCM_TILE_TOKENS);

		for (uint32_t j = 0; j < num; j++) {
			for (uint32_t t = 0; t < UCM_WARP; t++)
				ucm_twin_products(args, part, block, i + j, far,
						  heads, t, s, sums[t]);
			fake_fold(sums, heads);
			for (uint32_t t = 0; t < UCM_WARP; t++)
				ucm_twin_product_store(heads, t, j, sums[t][0],
						       s);
		}
		fake_weights(num, heads, s);
		for (uint32_t t = 0; t < UCM_TWIN_ATTEND_THREADS; t++)
			ucm_twin_weigh(args, part, block, i, num, heads, t, s);
	}
}

static void fake_attend_block(const struct ucm_twin_attend_args *args,
			      const struct ucm_twin_attend_part *part,
			      uint32_t entry, uint32_t heads,
			      struct ucm_twin_attend *s)
{
	struct ucm_twin_attend_block block =
		ucm_twin_attend_block_find(args, part, entry);

	if (block.block < 0) {
		for (uint32_t t = 0; t < UCM_TWIN_ATTEND_THREADS; t++)
			ucm_twin_attend_lack(heads, t, s);
		return;
	}
	for (uint32_t t = 0; block.far && t < UCM_TWIN_ATTEND_THREADS; t++)
		ucm_twin_attend_turns(args, block.delta, t, s);
	for (uint32_t t = 0; block.far && t < UCM_TWIN_ATTEND_THREADS; t++)
		ucm_twin_queries_turn(args, heads, t, s);
	fake_attend_tokens(args, part, block.block, 0, block.far, 1, heads, s);
	fake_attend_tokens(args, part, block.block, block.far, block.tokens, 0,
			   heads, s);
}

/* The room is just as large as the launch says. */
static void fake_attend(const struct fake_grid *grid, const void *arguments,
			uint32_t heads)
{
	const struct ucm_twin_attend_args *args = arguments;
	float *room = malloc(grid->shared);
	struct ucm_twin_attend_state state;
	struct ucm_twin_attend s = { .state = &state, .near = room };

	s.sums = s.near + heads * args->keys.dim;
	s.far = s.sums + heads * args->values.dim;
	if ((char *)(s.far + (args->angles ? heads * args->keys.dim : 0)) !=
	    (char *)room + grid->shared)
		mistake("the CTA has not the memory that it needs",
			grid->shared);
	for (uint32_t x = 0; x < grid->x * grid->y; x++) {
		struct ucm_twin_attend_part part = ucm_twin_attend_find(
			args, x % grid->x, x / grid->x, heads);

		if (part.begin >= part.end)
			continue;
		for (uint32_t t = 0; t < grid->threads; t++)
			ucm_twin_attend_begin(args, &part, heads, t, &s);
		for (uint32_t i = part.begin; i < part.end; i++)
			fake_attend_block(args, &part, i, heads, &s);
		for (uint32_t t = 0; t < grid->threads; t++)
			ucm_twin_attend_end(args, &part, t, &s);
	}
	free(room);
}

#define FAKE_ATTEND(heads)                                                    \
	static void fake_attend_##heads(const struct fake_grid *grid,         \
					const void *args)                     \
	{                                                                     \
		fake_attend(grid, args, heads);                               \
	}

FAKE_ATTEND(1)
FAKE_ATTEND(2)
FAKE_ATTEND(4)
FAKE_ATTEND(8)

static void fake_attend_joined(const struct fake_grid *grid, const void *args)
{
	for (uint32_t x = 0; x < grid->x * grid->y; x++) {
		for (uint32_t t = 0; t < grid->threads; t++)
			ucm_twin_attend_join(args, x % grid->x, x / grid->x,
					     t);
	}
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
	{ "ucm_twin_encode", sizeof(struct ucm_twin_code_args), fake_encode },
	{ "ucm_twin_count", sizeof(struct ucm_twin_code_args), fake_count },
	{ "ucm_twin_code_query", sizeof(struct ucm_twin_code_query_args),
	  fake_code_query },
#define FAKE_CODE_ROW(name)                                                   \
	{ "ucm_twin_code_" #name, sizeof(struct ucm_twin_code_score_args),    \
	  fake_code_##name },
	FAKE_CODE_ROW(least) FAKE_CODE_ROW(best) FAKE_CODE_ROW(sum)
	FAKE_CODE_ROW(counts) FAKE_CODE_ROW(normed_sum) FAKE_CODE_ROW(tokens)
	{ "ucm_twin_build", sizeof(struct ucm_twin_build_args), fake_build },
	{ "ucm_twin_select", sizeof(struct ucm_twin_select_args), fake_select },
	{ "ucm_twin_shift", sizeof(struct ucm_twin_shift_args), fake_shift },
	{ "ucm_twin_deviation", sizeof(struct ucm_twin_deviation_args),
	  fake_deviation },
	{ "ucm_twin_star_build", sizeof(struct ucm_twin_star_build_args),
	  fake_star_build },
	{ "ucm_twin_star_query", sizeof(struct ucm_twin_star_query_args),
	  fake_star_query },
#define FAKE_STAR_ROW(name)                                                   \
	{ "ucm_twin_star_" #name, sizeof(struct ucm_twin_star_score_args),    \
	  fake_star_##name },
	FAKE_STAR_ROW(float32) FAKE_STAR_ROW(float16) FAKE_STAR_ROW(bfloat16)
	FAKE_STAR_ROW(int8)
	{ "ucm_twin_vote_rows", sizeof(struct ucm_twin_vote_args),
	  fake_vote_rows },
	{ "ucm_twin_votes", sizeof(struct ucm_twin_vote_args), fake_votes },
#define FAKE_ATTEND_ROW(name)                                                 \
	{ "ucm_twin_attend_" #name, sizeof(struct ucm_twin_attend_args),      \
	  fake_attend_##name },
	FAKE_ATTEND_ROW(1) FAKE_ATTEND_ROW(2) FAKE_ATTEND_ROW(4)
	FAKE_ATTEND_ROW(8) FAKE_ATTEND_ROW(joined)
};

#endif
