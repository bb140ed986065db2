/* SPDX-License-Identifier: Apache-2.0 */
/* test_score.c - scores are the products that are promised, bit by bit the same
 * on every CPU; and what follows from the formulas holds. */
#include <config.h>

#include "tests/unit/sparse_fixture.h"

#define CASES	   200u
#define BLOCKS	   5u
#define MAX_GROUP  3
#define MAX_SCORES (4 * MAX_GROUP * BLOCKS)

/* A spec, keys, what stands for them, and a query. */
struct scene {
	struct ucm_repr_spec spec;
	struct cache cache;
	struct ucm_repr_slab slab;
	uint32_t last_tokens;
	uint32_t group;
	struct ucm_query query;
	uint8_t *memory; /* the query's */
	float *prepared;
};

static struct scene scene_make(uint64_t *random)
{
	struct scene scene = { .spec = random_spec(random) };
	size_t num, item;
	int64_t dim = scene.spec.head_dim;

	scene.cache = cache_make(&scene.spec,
				 input_types[random_between(random, 0, 2)],
				 BLOCKS, random);
	scene.slab = slab_make(&scene.spec, BLOCKS, 64);
	scene.last_tokens = (uint32_t)random_between(random, 1,
						     scene.spec.block_size);
	must(!ucm_repr_build(&scene.spec, &scene.cache.keys, NULL, BLOCKS,
			     scene.last_tokens, &scene.slab, NULL, NULL));
	scene.group = (uint32_t)random_between(random, 1, MAX_GROUP);
	scene.query.dtype = input_types[random_between(random, 0, 2)];
	scene.query.num_heads = scene.group * scene.spec.num_heads;
	scene.query.stride_head = dim + random_between(random, 0, 3);
	num = (size_t)scene.query.stride_head * scene.query.num_heads;
	item = type_bytes(scene.query.dtype);
	scene.memory = malloc(num * item);
	must(scene.memory);
	for (size_t i = 0; i < num; i++)
		store_number(scene.memory + i * item, scene.query.dtype,
			     random_float(random, 2));
	scene.query.base = scene.memory;
	/* distances take the most */
	scene.prepared = calloc(ucm_query_floats(
					&scene.spec, scene.query.num_heads,
					scene.spec.kind == UCM_REPR_MINMAX
						? UCM_SCORE_HEAD
						: UCM_SCORE_DISTANCE),
				sizeof(float));
	must(scene.prepared);
	return scene;
}

static void scene_free(struct scene *scene)
{
	free(scene->cache.memory);
	free(scene->slab.base);
	free(scene->memory);
	free(scene->prepared);
}

static size_t rows_of(const struct scene *scene, uint32_t per)
{
	return per == UCM_SCORE_HEAD	? scene->query.num_heads
	       : per == UCM_SCORE_GROUP ? scene->spec.num_heads
					: 1;
}

/* Score r of block i is scores[r * BLOCKS + i]. */
static void scene_score(const struct scene *scene, uint32_t per, float *scores)
{
	struct ucm_score_request request = {
		.query = scene->prepared, .num_heads = scene->query.num_heads,
		.per = per, .slab = &scene->slab, .num = BLOCKS,
		.scores = scores, .stride = BLOCKS,
	};

	must(!ucm_query_prepare(&scene->spec, &scene->query, per,
				scene->prepared, NULL));
	must(!ucm_score(&scene->spec, &request, 1, NULL));
}

static double query_value(const struct scene *scene, uint32_t head,
			  uint32_t channel)
{
	return load_number((const uint8_t *)scene->query.base +
				   (head * (size_t)scene->query.stride_head +
				    channel) *
					   type_bytes(scene->query.dtype),
			   scene->query.dtype);
}

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

/* The order of sums that kernels.c describes. */
static float tree(float *lanes)
{
	for (int n = 16; n; n /= 2) {
		for (int i = 0; i < n; i++)
			lanes[i] += lanes[i + n];
	}
	return lanes[0];
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

/* ---- reductions ---- */

UNIT_TEST(rows_of_scores_become_one)
{
	const float scores[] = { 1, -5, 3, 99, 2, -7, 0, 99, 6, -3, 3, 99 };
	float out[3];
	static const struct {
		uint32_t reduction;
		size_t rows, stride;
		float want[3];
	} rows[] = {
		{ UCM_REDUCE_SUM, 3, 4, { 9, -15, 6 } },
		{ UCM_REDUCE_MEAN, 3, 4, { 3, -5, 2 } },
		{ UCM_REDUCE_MAX, 3, 4, { 6, -3, 3 } },
		{ UCM_REDUCE_MAX, 2, 4, { 2, -5, 3 } },
		{ UCM_REDUCE_SUM, 2, 8, { 7, -8, 6 } }, /* every other */
		{ UCM_REDUCE_MEAN, 1, 0, { 1, -5, 3 } },
	};

	for (size_t i = 0; i < NUM_ROWS(rows); i++) {
		ck_assert_int_eq(ucm_score_reduce(scores, rows[i].rows, 3,
						  rows[i].stride,
						  rows[i].reduction, out, NULL),
				 0);
		ck_assert(!memcmp(out, rows[i].want, sizeof(out)));
	}
}

UNIT_TEST(no_reduction_hides_nan)
{
	for (uint32_t i = 0; i < 3 * UCM_REDUCTIONS; i++) {
		float scores[3] = { 1, 2, 3 }, out;

		scores[i % 3] = NAN;
		ck_assert_int_eq(ucm_score_reduce(scores, 3, 1, 1, i / 3, &out,
						  NULL), 0);
		ck_assert(isnan(out));
	}
}

UNIT_TEST(wrong_arguments_of_a_reduction_are_named)
{
	float scores[4] = { 0 }, out[2] = { 7 };
	struct ucm_error error;

#define REFUSED(word, ...)                                                    \
	do {                                                                  \
		assert_einval(ucm_score_reduce(__VA_ARGS__, &error), error,   \
			      word);                                          \
		ck_assert(out[0] == 7);                                       \
	} while (0)
	REFUSED("scores", NULL, 2, 2, 2, UCM_REDUCE_SUM, out);
	REFUSED("out", scores, 2, 2, 2, UCM_REDUCE_SUM, NULL);
	REFUSED("reduction", scores, 2, 2, 2, UCM_REDUCTIONS, out);
	REFUSED("num_rows", scores, 0, 2, 2, UCM_REDUCE_SUM, out);
	REFUSED("stride", scores, 2, 2, 1, UCM_REDUCE_SUM, out);
	REFUSED("stride", scores, 2, 2, SIZE_MAX / 2, UCM_REDUCE_SUM, out);
#undef REFUSED
}

/* ---- requests ---- */

UNIT_TEST(slots_and_ranges_change_nothing)
{
	uint64_t random = random_case(0);
	float want[MAX_SCORES], got[MAX_SCORES];

	for (unsigned number = 0; number < CASES; number++) {
		struct scene scene = scene_make(&random);
		int32_t slots[BLOCKS];
		uint32_t per = number % UCM_SCORE_PERS;
		size_t cut = (size_t)random_between(&random, 0, BLOCKS);
		struct ucm_score_request parts[2];

		for (size_t i = 0; i < BLOCKS; i++)
			slots[i] = (int32_t)i;
		scene_score(&scene, per, want);
		for (int i = 0; i < 2; i++)
			parts[i] = (struct ucm_score_request){
				.query = scene.prepared,
				.num_heads = scene.query.num_heads,
				.per = per, .slab = &scene.slab,
				.slots = i ? slots + cut : NULL,
				.num = i ? BLOCKS - cut : cut,
				.scores = got + (i ? cut : 0),
				.stride = BLOCKS,
			};
		memset(got, 0, sizeof(got));
		must(!ucm_score(&scene.spec, parts, 2, NULL));
		must(!memcmp(want, got, rows_of(&scene, per) * BLOCKS *
						sizeof(*want)));
		parts[0].first_slot = 1;
		parts[0].num = 1;
		must(!ucm_score(&scene.spec, parts, 1, NULL));
		must(!memcmp(&want[1], &got[0], sizeof(*want)));
		scene_free(&scene);
	}
}

/* So many bytes that blocks are asked for ahead of their turn; they are at other
 * places, too. */
UNIT_TEST(blocks_far_apart_have_the_same_scores, .rows = NUM_ROWS(ways))
{
	bool can = use_way(_i);
	static const int32_t slots[BLOCKS] = { 3, 0, 4, 1, 2 };
	const size_t apart = (size_t)3 << 20;
	float want[MAX_SCORES], got[MAX_SCORES];

	for (unsigned number = 0; can && number < CASES; number++) {
		uint64_t random = random_case(number);
		struct scene scene = scene_make(&random);
		uint32_t per = number % UCM_SCORE_PERS;
		struct ucm_repr_slab far = { calloc(BLOCKS, apart), BLOCKS,
					     apart };
		struct ucm_score_request request;

		must(far.base);
		for (size_t i = 0; i < BLOCKS; i++)
			memcpy((uint8_t *)far.base + (size_t)slots[i] * apart,
			       (uint8_t *)scene.slab.base +
				       i * scene.slab.stride_bytes,
			       ucm_repr_bytes(&scene.spec));
		scene_score(&scene, per, want);
		request = (struct ucm_score_request){
			.query = scene.prepared,
			.num_heads = scene.query.num_heads, .per = per,
			.slab = &far, .slots = slots, .num = BLOCKS,
			.scores = got, .stride = BLOCKS,
		};
		must(!ucm_score(&scene.spec, &request, 1, NULL));
		must(!memcmp(want, got, rows_of(&scene, per) * BLOCKS *
						sizeof(*want)));
		free(far.base);
		scene_free(&scene);
	}
}

UNIT_TEST(one_wrong_request_spoils_all)
{
	struct ucm_repr_spec spec = { UCM_REPR_MEAN, UCM_DTYPE_FLOAT32, 2, 8, 1 };
	struct ucm_repr_slab slab = slab_make(&spec, 2, 0);
	float query[4 * 32] = { 0 }, scores[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
	float before[8];
	int32_t slots[] = { 0, 1 }, below[] = { 0, -1 }, above[] = { 0, 2 };
	const struct ucm_score_request right = {
		.query = query, .num_heads = 4, .per = UCM_SCORE_HEAD,
		.slab = &slab, .slots = slots, .num = 2, .scores = scores,
		.stride = 2,
	};
	struct ucm_score_request requests[] = { right, right };
	struct ucm_error error;

	memcpy(before, scores, sizeof(before));
#define REFUSED(field, value, word)                                           \
	do {                                                                  \
		requests[1] = right;                                          \
		requests[1].field = value;                                    \
		assert_einval(ucm_score(&spec, requests, 2, &error), error,   \
			      "request 1: " word);                            \
		assert_einval(ucm_score(&spec, requests + 1, 1, &error),      \
			      error, word);                                   \
		ck_assert(!memcmp(before, scores, sizeof(before)));           \
	} while (0)
	REFUSED(query, NULL, "query");
	REFUSED(scores, NULL, "scores");
	REFUSED(num_heads, 3, "num_heads");
	REFUSED(num_heads, 0, "num_heads");
	REFUSED(num_heads, 65538, "num_heads");
	REFUSED(per, UCM_SCORE_PERS, "per");
	REFUSED(slab, NULL, "slab");
	REFUSED(slots, below, "slots: number 1 is -1");
	REFUSED(slots, above, "slots: number 1 is 2");
	REFUSED(stride, 1, "stride");
#undef REFUSED
	requests[1] = right;
	requests[1].slots = NULL;
	requests[1].first_slot = 1;
	assert_einval(ucm_score(&spec, requests, 2, &error), error,
		      "request 1: first_slot 1 + 2");
	requests[1].num = SIZE_MAX;
	assert_einval(ucm_score(&spec, requests, 2, &error), error,
		      "request 1: first_slot");
	assert_einval(ucm_score(&spec, NULL, 1, &error), error, "requests");
	ck_assert_int_eq(ucm_score(&spec, NULL, 0, NULL), 0);
	ck_assert(!memcmp(before, scores, sizeof(before)));
	free(slab.base);
}

UNIT_TEST(wrong_arguments_of_a_query_are_named)
{
	struct ucm_repr_spec spec = { UCM_REPR_MEAN, UCM_DTYPE_FLOAT32, 2, 8, 1 };
	float q[4 * 8] = { 0 }, out[4 * 32];
	const struct ucm_query right = { q, UCM_DTYPE_FLOAT32, 4, 8 };
	struct ucm_query query;
	struct ucm_error error;

	memset(out, 0x55, sizeof(out));
#define REFUSED(field, value, word)                                           \
	do {                                                                  \
		query = right;                                                \
		query.field = value;                                          \
		assert_einval(ucm_query_prepare(&spec, &query, 0, out,        \
						&error), error, word);        \
		ck_assert(ucm_float_bits(out[0]) == 0x55555555);              \
	} while (0)
	REFUSED(base, NULL, "query");
	REFUSED(dtype, UCM_DTYPE_INT8, "query: dtype");
	REFUSED(num_heads, 5, "num_heads");
	REFUSED(num_heads, 0, "num_heads");
	REFUSED(stride_head, INT64_MAX, "stride_head");
	REFUSED(stride_head, INT64_MIN, "stride_head");
	q[31] = NAN;
	REFUSED(num_heads, 4, "query: head 3");
	q[31] = INFINITY;
	REFUSED(num_heads, 4, "query: head 3");
#undef REFUSED
	q[31] = 0;
	assert_einval(ucm_query_prepare(&spec, NULL, 0, out, &error), error,
		      "query");
	assert_einval(ucm_query_prepare(NULL, NULL, 0, out, &error), error,
		      "spec");
	assert_einval(ucm_query_prepare(&spec, &right, 3, out, &error), error,
		      "per");
	assert_einval(ucm_query_prepare(&spec, &right, 0, NULL, &error), error,
		      "out");
	ck_assert_int_eq(ucm_query_prepare(&spec, &right, 0, out, NULL), 0);
}
