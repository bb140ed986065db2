/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_score_distance.c - distances of representations are what their formula
 * says.
 */
#include <config.h>

#include "tests/unit/sparse/score_fixture.h"

/* ---- distances ---- */

/* What is stored for a key head is a row of floats; the distance as it is added
 * up, with the order of sums of products. */
static float distance(const struct scene *scene, uint32_t head, uint32_t block)
{
	uint32_t dim = scene->spec.head_dim;
	float lanes[32] = { 0 };

	for (uint32_t i = 0; i < dim; i++) {
		double scale, x = repr_value(&scene->spec, &scene->slab, block,
					     head / scene->group, i, &scale);
		volatile float y = (float)x, square;

		y = (float)query_value(scene, head, i) - y;
		square = y * y;
		lanes[i % 32] += square;
	}
	return -sqrtf(tree(lanes));
}

/* The same in double, and what it may be off. */
static void check_distance(const struct scene *scene, uint32_t head,
			   uint32_t block, float got)
{
	double sum = 0, length = 0, scale, want;
	uint32_t dim = scene->spec.head_dim;

	for (uint32_t i = 0; i < dim; i++) {
		double x = repr_value(&scene->spec, &scene->slab, block,
				      head / scene->group, i, &scale);
		double y = query_value(scene, head, i) - x;

		sum += y * y;
		length += x * x;
	}
	want = sqrt(sum);
	must(fabs(want + (double)got) <= (dim + 8) * 0x1p-24 * want +
						 0x1p-24 * sqrt(length) + 1e-30);
	must(got == distance(scene, head, block));
}

UNIT_TEST(a_distance_is_what_its_formula_says, .rows = NUM_ROWS(ways))
{
	bool can = use_way(_i);
	float heads[MAX_SCORES], groups[MAX_SCORES], all[BLOCKS];

	for (unsigned number = 0; can && number < CASES; number++) {
		uint64_t random = random_case(number);
		struct scene scene = scene_make(&random);

		if (scene.spec.kind == UCM_REPR_MINMAX) {
			scene_free(&scene);
			continue;
		}
		scene_score(&scene, UCM_SCORE_HEAD | UCM_SCORE_DISTANCE, heads);
		scene_score(&scene, UCM_SCORE_GROUP | UCM_SCORE_DISTANCE,
			    groups);
		scene_score(&scene, UCM_SCORE_BLOCK | UCM_SCORE_DISTANCE, all);
		for (uint32_t block = 0; block < BLOCKS; block++) {
			float total = 0;

			for (uint32_t i = 0; i < scene.spec.num_heads; i++) {
				float sum = 0;

				for (uint32_t j = 0; j < scene.group; j++) {
					uint32_t head = i * scene.group + j;
					float one = heads[head * BLOCKS +
							  block];

					check_distance(&scene, head, block, one);
					sum += one;
				}
				sum /= (float)scene.group;
				must(sum == groups[i * BLOCKS + block]);
				total += sum;
			}
			must(total == all[block]);
		}
		scene_free(&scene);
	}
}

UNIT_TEST(bounds_have_no_distance)
{
	struct ucm_repr_spec spec = { UCM_REPR_MINMAX, UCM_DTYPE_FLOAT32, 1, 8,
				      1 };
	float q[8] = { 0 }, out[64] = { 7 };
	const struct ucm_query query = { q, UCM_DTYPE_FLOAT32, 1, 8 };
	struct ucm_error error;

	assert_einval(ucm_query_prepare(&spec, &query,
					UCM_SCORE_BLOCK | UCM_SCORE_DISTANCE,
					out, &error), error, "per 6");
	ck_assert(out[0] == 7);
	ck_assert_uint_eq(ucm_query_floats(&spec, 1, UCM_SCORE_DISTANCE), 0);
	spec.kind = UCM_REPR_MEAN;
	ck_assert_uint_eq(ucm_query_floats(&spec, 1, UCM_SCORE_DISTANCE), 32);
	ck_assert_uint_eq(ucm_query_floats(&spec, 1, 7), 0);
	ck_assert_uint_eq(ucm_query_floats(&spec, 1, 8), 0);
}
