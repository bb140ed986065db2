/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_star_score.c - scores of merged channels are the largest products and
 * votes the softmax, bit by bit the same on every CPU.
 */
#include <config.h>

#include "tests/unit/sparse/star_fixture.h"

#define MAX_ROWS    (2 * 4 * 12) /* queries, key heads, heads of a group */
#define MAX_SCORES  (MAX_ROWS * BLOCKS)

static uint32_t groups_of(const struct scene *scene, uint32_t block)
{
	uint32_t merge = scene->spec.merge_tokens;

	return (tokens_of(scene, block) + merge - 1) / merge;
}

/* ---- scores ---- */

static void scene_score(const struct scene *scene, uint32_t per, float *scores,
			float *weights, float scale)
{
	struct ucm_star_request request = {
		.query = scene->prepared, .num_queries = scene->num_queries,
		.num_heads = scene->queries->num_heads, .per = per,
		.slab = &scene->slab, .num = BLOCKS, .scores = scores,
		.weights = weights, .stride = BLOCKS, .scale = scale,
	};

	must(!ucm_star_score(&scene->spec, &request, 1, NULL));
}

static float query_value(const struct scene *scene, uint32_t row, uint32_t c)
{
	const struct ucm_query *query =
		&scene->queries[row / scene->queries->num_heads];
	uint32_t head = row % query->num_heads;

	return load_number((const uint8_t *)query->base +
				   (head * (size_t)query->stride_head + c) *
					   type_bytes(query->dtype),
			   query->dtype);
}

/* A row's product with a group, channel by channel. */
static float product(const struct scene *scene, uint32_t row, uint32_t block,
		     uint32_t group, double *size)
{
	uint32_t head = row % scene->queries->num_heads / scene->group;
	float sum = 0, scale = 1;

	*size = 0;
	for (uint32_t i = 0; i < scene->spec.kept; i++) {
		float x = stored(scene, block, head, group, i, &scale);
		volatile float one = x * query_value(scene, row,
						     channel_of(&scene->spec,
								head, i));

		sum += one; /* one is rounded */
		*size += fabs((double)one) * (double)scale;
	}
	return sum * scale;
}

/* The largest product, its weight in double, and what the latter may be off. */
static float row_score(const struct scene *scene, uint32_t row, uint32_t block,
		       float scale, double *weight, double *off)
{
	uint32_t groups = groups_of(scene, block);
	float most = -INFINITY;
	double largest = 0;

	*weight = 0;
	for (uint32_t i = 0; i < groups; i++) {
		double size;
		float one = product(scene, row, block, i, &size);

		most = one > most ? one : most;
		largest = fmax(largest, size);
	}
	for (uint32_t i = 0; i < groups; i++) {
		double size;

		*weight += exp((double)scale *
			       ((double)product(scene, row, block, i, &size) -
				(double)most));
	}
	*off = *weight * (0x1p-20 + (double)scale * largest * 0x1p-23);
	return most;
}

static void check_rows(const struct scene *scene, const float *scores,
		       const float *weights, float scale)
{
	uint32_t rows = scene->num_queries * scene->queries->num_heads;

	for (uint32_t i = 0; i < rows * BLOCKS; i++) {
		double weight, off;
		float most = row_score(scene, i / BLOCKS, i % BLOCKS, scale,
				       &weight, &off);

		must(ucm_float_bits(most + 0.0f) == ucm_float_bits(scores[i]));
		must(fabs((double)weights[i] - weight) <= off);
	}
}

/* The means and sums of rows, in the order in which they are made. */
static void check_reduced(const struct scene *scene, const float *rows,
			  const float *groups, const float *all)
{
	uint32_t heads = scene->queries->num_heads;
	uint32_t num = scene->num_queries * scene->group;

	for (uint32_t block = 0; block < BLOCKS; block++) {
		float total = 0;

		for (uint32_t i = 0; i < scene->spec.num_heads; i++) {
			float sum = 0;

			for (uint32_t j = 0; j < num; j++)
				sum += rows[(j / scene->group * heads +
					     i * scene->group +
					     j % scene->group) * BLOCKS + block];
			sum /= (float)num;
			must(sum == groups[i * BLOCKS + block]);
			total += sum;
		}
		must(total == all[block]);
	}
}

UNIT_TEST(a_score_is_the_largest_product, .rows = NUM_ROWS(ways))
{
	static float scores[3][MAX_SCORES], weights[MAX_SCORES];
	bool can = use_way(_i);

	for (unsigned number = 0; can && number < CASES; number++) {
		uint64_t random = random_case(number);
		struct scene scene = scene_make(&random);
		float scale = number % 3 ? 1 / sqrtf((float)scene.spec.head_dim)
					 : 1;

		for (uint32_t per = 0; per < UCM_SCORE_PERS; per++)
			scene_score(&scene, per, scores[per],
				    per ? NULL : weights, scale);
		check_rows(&scene, scores[0], weights, scale);
		check_reduced(&scene, scores[0], scores[1], scores[2]);
		scene_score(&scene, UCM_SCORE_HEAD, scores[1], NULL, 0);
		must(!memcmp(scores[0], scores[1],
			     scene.num_queries * scene.queries->num_heads *
				     BLOCKS * sizeof(float)));
		scene_free(&scene);
	}
}

UNIT_TEST(with_all_channels_and_tokens_the_score_is_exact)
{
	uint64_t random = random_case(0);
	float scores[MAX_SCORES];

	for (unsigned number = 0; number < 20; number++) {
		struct ucm_star_spec spec = random_star(&random);
		struct scene scene;
		uint32_t rows;

		spec.dtype = UCM_DTYPE_FLOAT32;
		spec.merge_tokens = 1;
		spec.kept = spec.head_dim;
		scene = scene_of(spec, &random);
		rows = scene.num_queries * scene.queries->num_heads;
		scene_score(&scene, UCM_SCORE_HEAD, scores, NULL, 0);
		for (uint32_t i = 0; i < rows * BLOCKS; i++) {
			uint32_t row = i / BLOCKS, block = i % BLOCKS;
			uint32_t head = row % scene.queries->num_heads /
					scene.group;
			double most = -INFINITY, off = 0;

			for (uint32_t t = 0; t < tokens_of(&scene, block); t++) {
				double sum = 0, size = 0;

				for (uint32_t c = 0; c < scene.spec.head_dim;
				     c++) {
					double x = (double)query_value(&scene,
								       row, c) *
						   (double)cache_key(
							   &scene.cache, block,
							   t, head, c);

					sum += x;
					size += fabs(x);
				}
				most = fmax(most, sum);
				off = fmax(off, size);
			}
			must(fabs(most - (double)scores[i]) <=
			     (scene.spec.head_dim + 4) * 0x1p-24 * off);
		}
		scene_free(&scene);
	}
}

UNIT_TEST(a_group_without_tokens_is_not_the_largest)
{
	struct ucm_star_spec spec = { UCM_DTYPE_INT8, 1, 2, 40, 2, 2, NULL };
	struct ucm_repr_slab slab = star_slab(&spec, 3, 0);
	float keys[40 * 2], q[2] = { 1, 1 }, prepared[2], scores[3], weights[3];
	const struct ucm_keys view = { keys, UCM_DTYPE_FLOAT32, 1, 80, 2, 2 };
	const struct ucm_query query = { q, UCM_DTYPE_FLOAT32, 1, 2 };
	struct ucm_star_request request = {
		.query = prepared, .num_queries = 1, .num_heads = 1,
		.slab = &slab, .num = 3, .scores = scores, .weights = weights,
		.stride = 3, .scale = 1,
	};
	int32_t second = 1;

	for (size_t i = 0; i < NUM_ROWS(keys); i++)
		keys[i] = i < 6 ? -3 : NAN;
	memset(slab.base, 0, slab.stride_bytes * 3);
	memset((uint8_t *)slab.base + 2 * slab.stride_bytes, 0xff,
	       slab.stride_bytes); /* more groups than there is room for */
	ck_assert_int_eq(ucm_star_build(&spec, &view, NULL, 1, 3, &slab,
					&second, NULL), 0);
	ck_assert_int_eq(ucm_star_query_prepare(&spec, &query, 1, prepared,
						NULL), 0);
	ck_assert_int_eq(ucm_star_score(&spec, &request, 1, NULL), 0);
	ck_assert(scores[0] == -INFINITY && weights[0] == 0);
	ck_assert(fabsf(scores[1] + 6) < 1e-4f);
	ck_assert(weights[1] == 2); /* a full group and half a one, alike */
	free(slab.base);
}

/* ---- the vote ---- */

UNIT_TEST(a_vote_is_the_softmax_of_all_groups, .rows = NUM_ROWS(ways))
{
	static float scores[MAX_SCORES], weights[MAX_SCORES];
	bool can = use_way(_i);

	for (unsigned number = 0; can && number < CASES; number++) {
		uint64_t random = random_case(number);
		struct scene scene = scene_make(&random);
		uint32_t rows = scene.num_queries * scene.queries->num_heads;
		float scale = 1 / sqrtf((float)scene.spec.head_dim);
		float votes[BLOCKS];
		double want[BLOCKS] = { 0 }, all = 0, off = 0;

		scene_score(&scene, UCM_SCORE_HEAD, scores, weights, scale);
		for (uint32_t row = 0; row < rows; row++) {
			double shares[BLOCKS], sum = 0, top = -INFINITY, apart;

			for (uint32_t i = 0; i < BLOCKS; i++)
				top = fmax(top, (double)scores[row * BLOCKS + i]);
			for (uint32_t i = 0; i < BLOCKS; i++) {
				float most = row_score(&scene, row, i, scale,
						       &shares[i], &apart);

				off = fmax(off, apart / shares[i]);
				shares[i] *= exp((double)scale *
						 ((double)most - top));
				off = fmax(off, 0x1p-23 * (double)scale *
							fabs(top));
				sum += shares[i];
			}
			for (uint32_t i = 0; i < BLOCKS; i++)
				want[i] += shares[i] / sum;
		}
		must(!ucm_star_vote(scores, weights, rows, BLOCKS, BLOCKS,
				    scale, votes, NULL));
		for (uint32_t i = 0; i < BLOCKS; i++) {
			all += (double)votes[i];
			must(fabs((double)votes[i] - want[i]) <=
			     want[i] * (4 * off + 0x1p-18) + 1e-30);
		}
		must(fabs(all - rows) <= rows * 1e-5);
		scene_free(&scene);
	}
}

static uint64_t fold(uint64_t sum, const void *memory, size_t bytes)
{
	const uint8_t *at = memory;

	for (size_t i = 0; i < bytes; i++)
		sum = (sum ^ at[i]) * 0x100000001b3u;
	return sum;
}

/* All results of a case. */
static uint64_t results(unsigned number)
{
	static float scores[MAX_SCORES], weights[MAX_SCORES];
	uint64_t random = random_case(number), sum = 0;
	struct scene scene = scene_make(&random);
	size_t rows = scene.num_queries * scene.queries->num_heads;
	size_t bytes = rows * BLOCKS * sizeof(float);
	float scale = number % 5 ? 1 : 40, votes[BLOCKS];

	sum = fold(sum, scene.slab.base,
		   scene.slab.num_slots * scene.slab.stride_bytes);
	scene_score(&scene, UCM_SCORE_BLOCK, votes, NULL, 0);
	sum = fold(sum, votes, sizeof(votes));
	scene_score(&scene, UCM_SCORE_HEAD, scores, weights, scale);
	sum = fold(fold(sum, scores, bytes), weights, bytes);
	must(!ucm_star_vote(scores, weights, rows, BLOCKS, BLOCKS, scale, votes,
			    NULL));
	sum = fold(sum, votes, sizeof(votes));
	scene_free(&scene);
	return sum;
}

UNIT_TEST(every_way_has_the_same_bits)
{
	for (unsigned number = 0; number < CASES; number++) {
		uint64_t want;

		must(ucm_sparse_kernels_use("plain"));
		want = results(number);
		for (size_t way = 1; way < NUM_ROWS(ways); way++) {
			must(!ucm_sparse_kernels_use(ways[way]) ||
			     results(number) == want);
		}
	}
}

UNIT_TEST(blocks_without_tokens_get_no_vote)
{
	float scores[] = { -INFINITY, -INFINITY, 1, -INFINITY };
	float weights[] = { 0, 0, 5, 0 }, votes[2] = { 7, 7 };

	ck_assert_int_eq(ucm_star_vote(scores, weights, 2, 2, 2, 1, votes,
				       NULL), 0);
	ck_assert(votes[0] == 1 && votes[1] == 0);
	ck_assert_int_eq(ucm_star_vote(scores, weights, 1, 2, 2, 1, votes,
				       NULL), 0);
	ck_assert(votes[0] == 0 && votes[1] == 0);
}

/* What lies behind the last block of a row is none, however little the scores
 * are. */
UNIT_TEST(scores_far_below_zero_have_their_vote, .rows = NUM_ROWS(ways))
{
	bool can = use_way(_i);
	float scores[20], weights[20], votes[20];

	for (size_t num = 1; can && num <= 20; num++) {
		for (size_t i = 0; i < num; i++) {
			scores[i] = -500;
			weights[i] = 1;
		}
		ck_assert_int_eq(ucm_star_vote(scores, weights, 1, num, num, 1,
					       votes, NULL), 0);
		for (size_t i = 0; i < num; i++)
			ck_assert(votes[i] == 1 / (float)num);
	}
}

/* A query row of zeros; the others vote all the same. On each CPU. */
UNIT_TEST(a_row_whose_weights_are_zero_has_no_vote, .rows = NUM_ROWS(ways))
{
	bool can = use_way(_i);
	float scores[] = { 1, 2, 1, 1 }, weights[] = { 0, 0, 3, 3 };
	float votes[2] = { 7, 7 };

	if (!can)
		return;
	ck_assert_int_eq(ucm_star_vote(scores, weights, 2, 2, 2, 1, votes,
				       NULL), 0);
	ck_assert(votes[0] == .5f && votes[1] == .5f);
}

UNIT_TEST(an_infinite_score_has_no_vote)
{
	float scores[] = { 1, INFINITY }, weights[] = { 1, 1 };
	float votes[2] = { 7, 7 };

	ck_assert_int_eq(ucm_star_vote(scores, weights, 1, 2, 2, 1, votes,
				       NULL), -ERANGE);
	scores[1] = NAN;
	ck_assert_int_eq(ucm_star_vote(scores, weights, 1, 2, 2, 1, votes,
				       NULL), -ERANGE);
	must(votes[0] == 7 && votes[1] == 7 && weights[0] == 1);
}
