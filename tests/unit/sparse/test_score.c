/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_score.c - scores are the products that are promised, bit by bit the
 * same on every CPU; and what follows from the formulas holds.
 */
#include <config.h>

#include "tests/unit/sparse/score_fixture.h"

/* The query is rounded to steps: whole numbers. */
static bool in_steps(const struct scene *scene)
{
	return scene->spec.dtype == UCM_DTYPE_INT8 &&
	       scene->spec.kind != UCM_REPR_MINMAX;
}

/* A query head's score from what is stored, in double, and the sum of the
 * magnitudes; rounded: what it may be off as the query is rounded to steps. */
static double head_score(const struct scene *scene, uint32_t head,
			 uint32_t block, double *size, double *rounded)
{
	uint32_t dim = scene->spec.head_dim, padded = (dim + 31) / 32 * 32;
	uint32_t key_head = head / scene->group;
	double sum = 0, most = 0, scale;

	*size = *rounded = 0;
	for (uint32_t i = 0; i < dim; i++)
		most = fmax(most, fabs(query_value(scene, head, i)));
	for (uint32_t i = 0; i < dim; i++) {
		double q = query_value(scene, head, i);
		double x = q * repr_value(&scene->spec, &scene->slab, block,
					  key_head, i, &scale);

		if (scene->spec.kind == UCM_REPR_MINMAX)
			x = fmax(x, q * repr_value(&scene->spec, &scene->slab,
						   block, key_head, padded + i,
						   &scale));
		sum += x;
		*size += fabs(x);
		if (in_steps(scene))
			*rounded += 0.501 * most / 32767 *
				    fabs(repr_value(&scene->spec, &scene->slab,
						    block, key_head, i,
						    &scale));
	}
	/* means of q of either sign: what cancels counts as well */
	if (scene->group > 1)
		*size *= 1 + scene->group;
	return sum;
}

/* The error that is promised for so many elements, and that of the means. */
static double allowed(const struct scene *scene, uint32_t per, double size)
{
	double elements = (scene->spec.head_dim + 31) / 32 * 32 * 2;

	if (per == UCM_SCORE_BLOCK)
		elements *= scene->spec.num_heads;
	return (2 * elements + 8 + 2 * MAX_GROUP) * 0x1p-24 * size + 1e-30;
}

static void check_scores(const struct scene *scene, uint32_t per,
			 const float *scores)
{
	uint32_t group = per == UCM_SCORE_HEAD ? 1 : scene->group;

	for (uint32_t block = 0; block < BLOCKS; block++) {
		double sum = 0, total = 0, off = 0, size, rounded;

		for (uint32_t head = 0; head < scene->query.num_heads; head++) {
			sum += head_score(scene, head, block, &size, &rounded) /
			       group;
			total += size;
			off += rounded;
			if (per == UCM_SCORE_BLOCK || (head + 1) % group)
				continue;
			must(fabs(sum - (double)scores[head / group * BLOCKS +
						       block]) <=
			     allowed(scene, per, total) + off);
			sum = total = off = 0;
		}
		must(per != UCM_SCORE_BLOCK ||
		     fabs(sum - (double)scores[block]) <=
			     allowed(scene, per, total) + off);
	}
}

UNIT_TEST(a_score_is_the_product_that_is_promised, .rows = NUM_ROWS(ways))
{
	bool can = use_way(_i);
	float scores[MAX_SCORES];

	for (unsigned number = 0; can && number < CASES; number++) {
		uint64_t random = random_case(number);
		struct scene scene = scene_make(&random);

		for (uint32_t per = 0; per < UCM_SCORE_PERS; per++) {
			scene_score(&scene, per, scores);
			check_scores(&scene, per, scores);
		}
		scene_free(&scene);
	}
}

/* Element i of row number row of the prepared query: those of bfloat16 with an
 * even number of each 32 come first. */
static float prepared_value(const struct scene *scene, uint32_t row,
			    uint32_t width, uint32_t i)
{
	uint32_t at = i % 32;

	if (scene->spec.dtype == UCM_DTYPE_BFLOAT16)
		at = at / 2 + at % 2 * 16;
	return scene->prepared[(size_t)row * width + i - i % 32 + at];
}

static void lanes_of(const struct scene *scene, uint32_t row, uint32_t head,
		     uint32_t block, uint32_t width, float lanes[32],
		     float *scale)
{
	const uint8_t *from = (const uint8_t *)scene->slab.base +
			      block * scene->slab.stride_bytes;
	size_t item = type_bytes(scene->spec.dtype);

	*scale = 1;
	if (scene->spec.dtype == UCM_DTYPE_INT8)
		memcpy(scale, from + (size_t)scene->spec.num_heads * width +
				      4 * head, 4);
	memset(lanes, 0, 32 * sizeof(*lanes));
	for (uint32_t i = 0; i < width; i++) {
		volatile float x = load_number(
			from + ((size_t)head * width + i) * item,
			scene->spec.dtype) *
			prepared_value(scene, row, width, i); /* rounded here */

		lanes[i % 32] += x;
	}
}

/* Whole numbers in 16 lanes, which are floats when they are added to others. */
static void int_lanes_of(const struct scene *scene, uint32_t rows, uint32_t row,
			 uint32_t head, uint32_t block, uint32_t width,
			 float lanes[32], float *scale)
{
	const int8_t *from = (const int8_t *)scene->slab.base +
			     block * scene->slab.stride_bytes;
	const int16_t *steps = (const int16_t *)scene->prepared;
	int64_t sums[16] = { 0 };
	float step;

	memcpy(scale, from + (size_t)scene->spec.num_heads * width + 4 * head,
	       4);
	memcpy(&step, steps + (size_t)rows * width + 2 * row, 4);
	*scale *= step;
	memset(lanes, 0, 32 * sizeof(*lanes));
	for (uint32_t i = 0; i < width; i++)
		sums[i % 32 / 2] += from[(size_t)head * width + i] *
				    steps[(size_t)row * width + i];
	for (int i = 0; i < 16; i++)
		lanes[i] = (float)sums[i];
}

/* rows: of the query. */
static void any_lanes_of(const struct scene *scene, uint32_t rows, uint32_t row,
			 uint32_t head, uint32_t block, uint32_t width,
			 float lanes[32], float *scale)
{
	if (in_steps(scene))
		int_lanes_of(scene, rows, row, head, block, width, lanes,
			     scale);
	else
		lanes_of(scene, row, head, block, width, lanes, scale);
}

UNIT_TEST(every_way_adds_in_the_order_described, .rows = NUM_ROWS(ways))
{
	bool can = use_way(_i);
	float scores[MAX_SCORES], lanes[32], scale;

	for (unsigned number = 0; can && number < CASES; number++) {
		uint64_t random = random_case(number);
		struct scene scene = scene_make(&random);
		uint32_t heads = scene.query.num_heads;
		uint32_t width = (scene.spec.head_dim + 31) / 32 * 32 *
				 (scene.spec.kind == UCM_REPR_MINMAX ? 2 : 1);

		scene_score(&scene, UCM_SCORE_HEAD, scores);
		for (uint32_t i = 0; i < heads * BLOCKS; i++) {
			any_lanes_of(&scene, heads, i / BLOCKS,
				     i / BLOCKS / scene.group, i % BLOCKS,
				     width, lanes, &scale);
			must(ucm_float_bits(scores[i]) ==
			     ucm_float_bits(tree(lanes) * scale));
		}
		scene_score(&scene, UCM_SCORE_BLOCK, scores);
		for (uint32_t block = 0; block < BLOCKS; block++) {
			float all[32] = { 0 };

			for (uint32_t j = 0; j < scene.spec.num_heads; j++) {
				any_lanes_of(&scene, scene.spec.num_heads, j, j,
					     block, width, lanes, &scale);
				for (int k = 0; k < 32; k++) {
					volatile float x = lanes[k] * scale;

					all[k] += x;
				}
			}
			must(ucm_float_bits(scores[block]) ==
			     ucm_float_bits(tree(all)));
		}
		scene_free(&scene);
	}
}

/* ---- what follows from the formulas ---- */

static uint32_t tokens_of(const struct scene *scene, uint32_t block)
{
	return block + 1 < BLOCKS ? scene->spec.block_size : scene->last_tokens;
}

static double token_score(const struct scene *scene, uint32_t head,
			  uint32_t block, uint32_t token, double *size)
{
	double sum = 0;

	*size = 0;
	for (uint32_t i = 0; i < scene->spec.head_dim; i++) {
		double x = query_value(scene, head, i) *
			   (double)cache_key(&scene->cache, block, token,
					     head / scene->group, i);

		sum += x;
		*size += fabs(x);
	}
	return sum;
}

static struct scene scene_of_kind(uint64_t *random, uint32_t kind, int dtype)
{
	struct scene scene;

	for (;;) {
		scene = scene_make(random);
		if (scene.spec.kind == kind &&
		    (dtype < 0 || scene.spec.dtype == (uint32_t)dtype))
			return scene;
		scene_free(&scene);
	}
}

UNIT_TEST(a_mean_s_score_is_the_average_of_all_products)
{
	uint64_t random = random_case(0);
	float scores[MAX_SCORES];

	for (unsigned number = 0; number < 50; number++) {
		struct scene scene = scene_of_kind(&random, UCM_REPR_MEAN,
						   UCM_DTYPE_FLOAT32);
		uint32_t heads = scene.query.num_heads;

		scene_score(&scene, UCM_SCORE_BLOCK, scores);
		for (uint32_t block = 0; block < BLOCKS; block++) {
			uint32_t tokens = tokens_of(&scene, block);
			double sum = 0, total = 0, size;

			for (uint32_t i = 0; i < heads * tokens; i++) {
				sum += token_score(&scene, i % heads, block,
						   i / heads, &size);
				total += size;
			}
			sum *= scene.spec.num_heads / ((double)heads * tokens);
			total *= scene.spec.num_heads / ((double)heads * tokens);
			must(fabs(sum - (double)scores[block]) <=
			     allowed(&scene, UCM_SCORE_BLOCK, total) * 2);
		}
		scene_free(&scene);
	}
}

UNIT_TEST(no_token_exceeds_quest_s_bound)
{
	uint64_t random = random_case(0);
	float scores[MAX_SCORES];

	for (unsigned number = 0; number < 100; number++) {
		struct scene scene = scene_of_kind(&random, UCM_REPR_MINMAX, -1);

		scene_score(&scene, UCM_SCORE_HEAD, scores);
		for (uint32_t i = 0; i < scene.query.num_heads * BLOCKS; i++) {
			uint32_t head = i / BLOCKS, block = i % BLOCKS;
			double size, bound_size, none;

			head_score(&scene, head, block, &bound_size, &none);
			must(none == 0); /* or it would be no bound */
			for (uint32_t t = 0; t < tokens_of(&scene, block); t++)
				must(token_score(&scene, head, block, t,
						 &size) <=
				     (double)scores[i] +
					     allowed(&scene, UCM_SCORE_HEAD,
						     bound_size));
		}
		scene_free(&scene);
	}
}
