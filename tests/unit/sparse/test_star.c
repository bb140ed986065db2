/* SPDX-License-Identifier: Apache-2.0 */
/* test_star.c - merged channels are what their formulas say, however tokens
 * come; scores are the largest products and votes the softmax, bit by bit the
 * same on every CPU. */
#include <config.h>

#include "tests/unit/sparse_fixture.h"

#define CASES	    80u
#define BLOCKS	    20u
#define MAX_ROWS    (2 * 4 * 12) /* queries, key heads, heads of a group */
#define MAX_SCORES  (MAX_ROWS * BLOCKS)
#define MAX_QUERIES 2

/* A spec, keys, what stands for them, and queries. */
struct scene {
	struct ucm_star_spec spec;
	uint16_t *channels;
	struct cache cache;
	struct ucm_repr_slab slab;
	uint32_t last_tokens, groups, lanes;
	uint32_t num_queries, group;
	struct ucm_query queries[MAX_QUERIES];
	uint8_t *memory[MAX_QUERIES];
	float *prepared;
};

static uint16_t *random_channels(uint64_t *random, uint32_t heads,
				 uint32_t kept, uint32_t dim)
{
	uint16_t *channels = malloc((size_t)heads * kept * sizeof(*channels));
	uint16_t *at = channels;

	must(channels);
	for (uint32_t head = 0; head < heads; head++) {
		uint32_t left = kept;

		for (uint32_t i = 0; i < dim; i++) {
			if (random_between(random, 1, dim - i) > left)
				continue;
			*at++ = (uint16_t)i;
			left--;
		}
	}
	return channels;
}

static struct ucm_star_spec random_star(uint64_t *random)
{
	static const uint32_t dims[] = { 1, 7, 64, 128 };
	struct ucm_star_spec spec = {
		.dtype = stored_types[random_between(random, 0, 3)],
		.num_heads = (uint32_t)random_between(random, 1, 4),
		.head_dim = dims[random_between(random, 0, 3)],
		.block_size = (uint32_t)random_between(random, 1, 70),
	};
	uint32_t most = spec.block_size < 8 ? spec.block_size : 8;

	spec.merge_tokens = (uint32_t)random_between(random, 1, most);
	spec.kept = spec.head_dim;
	if (random_between(random, 0, 4))
		spec.kept = (uint32_t)random_between(random, 1, spec.head_dim);
	return spec;
}

static struct ucm_repr_slab star_slab(const struct ucm_star_spec *spec,
				      uint64_t num_slots, size_t gap)
{
	struct ucm_repr_slab slab = {
		.num_slots = num_slots,
		.stride_bytes = ucm_star_bytes(spec) + gap,
	};

	slab.base = malloc(slab.num_slots * slab.stride_bytes);
	must(slab.base && ucm_star_bytes(spec));
	memset(slab.base, 0xa5, slab.num_slots * slab.stride_bytes);
	return slab;
}

static void make_query(struct scene *scene, uint32_t number, uint64_t *random)
{
	struct ucm_query *query = &scene->queries[number];
	size_t num, item;

	query->dtype = input_types[random_between(random, 0, 2)];
	query->num_heads = scene->group * scene->spec.num_heads;
	query->stride_head = scene->spec.head_dim + random_between(random, 0, 3);
	num = (size_t)query->stride_head * query->num_heads;
	item = type_bytes(query->dtype);
	scene->memory[number] = malloc(num * item);
	must(scene->memory[number]);
	for (size_t i = 0; i < num; i++)
		store_number(scene->memory[number] + i * item, query->dtype,
			     random_float(random, 0.5));
	query->base = scene->memory[number];
}

static struct scene scene_of(struct ucm_star_spec of, uint64_t *random)
{
	struct scene scene = { .spec = of };
	struct ucm_star_spec *spec = &scene.spec;
	const struct ucm_repr_spec keys = { 0, spec->dtype, spec->num_heads,
					    spec->head_dim, spec->block_size };

	if (spec->kept < spec->head_dim)
		scene.channels = random_channels(random, spec->num_heads,
						 spec->kept, spec->head_dim);
	spec->channels = scene.channels;
	scene.groups = (spec->block_size + spec->merge_tokens - 1) /
		       spec->merge_tokens;
	scene.lanes = (scene.groups + 15) / 16 * 16;
	scene.cache = cache_make(&keys,
				 input_types[random_between(random, 0, 2)],
				 BLOCKS, random);
	scene.slab = star_slab(spec, BLOCKS, 64);
	scene.last_tokens = (uint32_t)random_between(random, 1,
						     spec->block_size);
	must(!ucm_star_build(spec, &scene.cache.keys, NULL, BLOCKS,
			     scene.last_tokens, &scene.slab, NULL, NULL));
	scene.num_queries = (uint32_t)random_between(random, 1, MAX_QUERIES);
	scene.group = (uint32_t)random_between(random, 1, 12);
	for (uint32_t i = 0; i < scene.num_queries; i++)
		make_query(&scene, i, random);
	scene.prepared = calloc(
		ucm_star_query_floats(spec, scene.num_queries,
				      scene.queries->num_heads),
		sizeof(float));
	must(scene.prepared &&
	     !ucm_star_query_prepare(spec, scene.queries, scene.num_queries,
				     scene.prepared, NULL));
	return scene;
}

static struct scene scene_make(uint64_t *random)
{
	return scene_of(random_star(random), random);
}

static void scene_free(struct scene *scene)
{
	for (uint32_t i = 0; i < scene->num_queries; i++)
		free(scene->memory[i]);
	free(scene->channels);
	free(scene->cache.memory);
	free(scene->slab.base);
	free(scene->prepared);
}

static uint32_t tokens_of(const struct scene *scene, uint32_t block)
{
	return block + 1 < BLOCKS ? scene->spec.block_size : scene->last_tokens;
}

static uint32_t groups_of(const struct scene *scene, uint32_t block)
{
	uint32_t merge = scene->spec.merge_tokens;

	return (tokens_of(scene, block) + merge - 1) / merge;
}

static uint32_t channel_of(const struct ucm_star_spec *spec, uint32_t head,
			   uint32_t i)
{
	return spec->channels ? spec->channels[head * spec->kept + i] : i;
}

/* What is stored for a group's channel number i; scale: int8's, or 1. */
static float stored(const struct scene *scene, uint32_t block, uint32_t head,
		    uint32_t group, uint32_t i, float *scale)
{
	const struct ucm_star_spec *spec = &scene->spec;
	size_t item = type_bytes(spec->dtype);
	const uint8_t *at = (const uint8_t *)scene->slab.base +
			    block * scene->slab.stride_bytes;
	size_t row = (size_t)head * spec->kept + i;

	*scale = 1;
	if (spec->dtype == UCM_DTYPE_INT8)
		memcpy(scale,
		       at + (size_t)spec->num_heads * spec->kept *
				       scene->lanes +
			       (head * scene->lanes + group) * sizeof(float),
		       sizeof(float));
	return load_number(at + (row * scene->lanes + group) * item,
			   spec->dtype);
}

/* ---- what is built ---- */

static void check_group(const struct scene *scene, uint32_t block,
			uint32_t head, uint32_t group)
{
	const struct ucm_star_spec *spec = &scene->spec;
	uint32_t first = group * spec->merge_tokens, end;

	end = first + spec->merge_tokens;
	if (end > tokens_of(scene, block))
		end = tokens_of(scene, block);
	for (uint32_t i = 0; i < spec->kept; i++) {
		double sum = 0, size = 0, want, unit;
		float scale, got = stored(scene, block, head, group, i, &scale);

		for (uint32_t token = first; token < end; token++) {
			double key = cache_key(&scene->cache, block, token,
					       head,
					       channel_of(spec, head, i));

			sum += key;
			size += fabs(key);
		}
		if (first >= end) {
			must(got == 0);
			continue;
		}
		want = sum / (end - first);
		unit = spec->dtype == UCM_DTYPE_INT8 ? 0.501 * (double)scale
		       : spec->dtype == UCM_DTYPE_FLOAT16
			       ? fabs(want) * 0x1p-11 + 0x1p-25
		       : spec->dtype == UCM_DTYPE_BFLOAT16
			       ? fabs(want) * 0x1p-8
			       : fabs(want) * 0x1p-24;
		must(fabs((double)got * (double)scale - want) <=
		     (unit + size * 0x1p-24) * (1 + 0x1p-8));
	}
}

UNIT_TEST(groups_are_means_of_the_kept_channels, .rows = NUM_ROWS(ways))
{
	bool can = use_way(_i);

	for (unsigned number = 0; can && number < CASES; number++) {
		uint64_t random = random_case(number);
		struct scene scene = scene_make(&random);

		for (uint32_t i = 0; i < BLOCKS; i++) {
			const uint8_t *slot = (const uint8_t *)scene.slab.base +
					      i * scene.slab.stride_bytes;
			size_t bytes = ucm_star_bytes(&scene.spec);

			for (uint32_t j = 0;
			     j < scene.spec.num_heads * scene.lanes; j++)
				check_group(&scene, i, j / scene.lanes,
					    j % scene.lanes);
			for (size_t j = bytes; j < bytes + 64; j++)
				must(slot[j] == 0xa5);
		}
		scene_free(&scene);
	}
}

UNIT_TEST(tokens_may_come_in_any_pieces, .rows = NUM_ROWS(ways))
{
	bool can = use_way(_i);

	for (unsigned number = 0; can && number < CASES; number++) {
		uint64_t random = random_case(number);
		struct scene scene = scene_make(&random);
		const struct ucm_star_spec *spec = &scene.spec;
		struct ucm_repr_slab once = star_slab(spec, 1, 0);
		struct ucm_repr_slab grown = star_slab(spec, 1, 0);
		void *state = malloc(ucm_star_state_bytes(spec));
		uint32_t tokens = 0;

		must(state && !ucm_star_begin(spec, state, NULL));
		while (tokens < spec->block_size) {
			struct ucm_keys keys = scene.cache.keys;
			uint32_t more = (uint32_t)random_between(
				&random, 0, spec->block_size - tokens);

			keys.base = cache_at(&scene.cache, 0, tokens, 0, 0);
			must(!ucm_star_add(spec, state, &keys, more, NULL));
			tokens += more;
			if (!tokens)
				continue;
			must(!ucm_star_write(spec, state, grown.base, NULL));
			must(!ucm_star_build(spec, &scene.cache.keys, NULL, 1,
					     tokens, &once, NULL, NULL));
			must(!memcmp(once.base, grown.base, once.stride_bytes));
		}
		must(!memcmp(once.base, scene.slab.base, once.stride_bytes));
		free(state);
		free(once.base);
		free(grown.base);
		scene_free(&scene);
	}
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

/* ---- which channels ---- */

UNIT_TEST(the_largest_channels_are_kept)
{
	uint64_t random = random_case(0);

	for (unsigned number = 0; number < CASES; number++) {
		struct scene scene = scene_make(&random);
		struct ucm_star_spec *spec = &scene.spec;
		uint16_t *out = malloc((size_t)spec->num_heads * spec->kept * 2);

		must(out && !ucm_star_channels(spec, &scene.cache.keys, NULL,
					       BLOCKS, scene.last_tokens, out,
					       NULL));
		for (uint32_t head = 0; head < spec->num_heads; head++) {
			double least = INFINITY, most = 0;
			uint32_t at = head * spec->kept, end = at + spec->kept;

			for (uint32_t c = 0; c < spec->head_dim; c++) {
				double sum = 0;

				for (uint32_t i = 0; i < BLOCKS; i++)
					for (uint32_t t = 0;
					     t < tokens_of(&scene, i); t++)
						sum += fabs((double)cache_key(
							&scene.cache, i, t,
							head, c));
				if (at < end && out[at] == c) {
					least = fmin(least, sum);
					at++;
				} else {
					most = fmax(most, sum);
				}
			}
			must(at == end); /* ascending, each once */
			must(least >= most * (1 - 70 * 0x1p-23));
		}
		free(out);
		scene_free(&scene);
	}
}

UNIT_TEST(of_equal_channels_the_lower_is_kept)
{
	struct ucm_star_spec spec = { UCM_DTYPE_FLOAT32, 2, 5, 2, 1, 2, NULL };
	float keys[] = { 1, -2, 1, 2, 0,  9, 9, 9, 9, 9,
			 1, 0,	1, 0, 2,  1, 1, 1, 1, -1,
			 8, 8,	8, 8, 8,  8, 8, 8, 8, NAN };
	const struct ucm_keys view = { keys, UCM_DTYPE_FLOAT32, 1, 20, 10, 5 };
	uint16_t out[4];

	ck_assert_int_eq(ucm_star_channels(&spec, &view, NULL, 1, 2, out, NULL),
			 0);
	ck_assert(out[0] == 0 && out[1] == 1); /* all 2 */
	ck_assert(out[2] == 0 && out[3] == 1); /* all 10 */
	ck_assert_int_eq(ucm_star_channels(&spec, &view, NULL, 1, 1, out, NULL),
			 0);
	ck_assert(out[0] == 1 && out[1] == 3);
}

UNIT_TEST(kept_channels_are_rounded_half_to_even)
{
	static const struct {
		uint32_t dim;
		double ratio;
		uint32_t want;
	} rows[] = {
		{ 128, 0.5, 64 }, { 128, 0.25, 32 }, { 128, 0.7, 90 },
		{ 5, 0.5, 2 },	  { 7, 0.5, 4 },     { 128, 0.98, 128 },
		{ 128, 0.979, 125 }, { 128, 1, 128 }, { 128, 1e-9, 1 },
		{ 128, 0, 0 },	  { 128, -1, 0 },    { 128, 1.01, 0 },
		{ 128, NAN, 0 },
	};

	for (size_t i = 0; i < NUM_ROWS(rows); i++)
		ck_assert_uint_eq(ucm_star_kept(rows[i].dim, rows[i].ratio),
				  rows[i].want);
}

/* ---- what is refused ---- */

static const uint16_t twice[] = { 0, 0 }, beyond[] = { 0, 2 }, right[] = { 0, 1 };

static const struct {
	struct ucm_star_spec spec;
	const char *name;
} wrong_specs[] = {
	{ { UCM_DTYPE_OPAQUE, 1, 2, 4, 2, 2, NULL }, "dtype" },
	{ { UCM_DTYPE_INT8, 0, 2, 4, 2, 2, NULL }, "num_heads" },
	{ { UCM_DTYPE_INT8, 1, 1025, 4, 2, 2, right }, "head_dim" },
	{ { UCM_DTYPE_INT8, 1, 2, 0, 2, 2, NULL }, "block_size" },
	{ { UCM_DTYPE_INT8, 1, 2, 4, 0, 2, NULL }, "merge_tokens" },
	{ { UCM_DTYPE_INT8, 1, 2, 4, 5, 2, NULL }, "merge_tokens" },
	{ { UCM_DTYPE_INT8, 1, 2, 4, 2, 0, right }, "kept" },
	{ { UCM_DTYPE_INT8, 1, 2, 4, 2, 3, right }, "kept" },
	{ { UCM_DTYPE_INT8, 1, 2, 4, 2, 1, NULL }, "channels is NULL" },
	{ { UCM_DTYPE_INT8, 1, 2, 4, 2, 2, twice }, "channels: head 0" },
	{ { UCM_DTYPE_INT8, 1, 2, 4, 2, 2, beyond }, "channels: head 0" },
};

UNIT_TEST(a_wrong_spec_is_named, .rows = NUM_ROWS(wrong_specs))
{
	const struct ucm_star_spec *spec = &wrong_specs[_i].spec;
	struct ucm_error error;
	float state[64];

	ck_assert_uint_eq(ucm_star_bytes(spec), 0);
	ck_assert_uint_eq(ucm_star_state_bytes(spec), 0);
	ck_assert_uint_eq(ucm_star_query_floats(spec, 1, spec->num_heads), 0);
	assert_einval(ucm_star_begin(spec, state, &error), error,
		      wrong_specs[_i].name);
	ck_assert_uint_eq(ucm_star_bytes(NULL), 0);
}

UNIT_TEST(wrong_arguments_of_a_build_are_named)
{
	struct ucm_star_spec spec = { UCM_DTYPE_FLOAT16, 2, 3, 4, 2, 3, NULL };
	float keys[2 * 4 * 2 * 3] = { 0 };
	const struct ucm_keys view = { keys, UCM_DTYPE_FLOAT32, 2, 24, 6, 3 };
	struct ucm_repr_slab slab = star_slab(&spec, 2, 0), bad = slab;
	float state[64], out[64];
	int32_t above[] = { 0, 2 };
	uint16_t channels[6];
	struct ucm_error error;

#define REFUSED(word, ...)                                                    \
	do {                                                                  \
		assert_einval(ucm_star_build(__VA_ARGS__, &error), error,     \
			      word);                                          \
		ck_assert(*(uint8_t *)slab.base == 0xa5);                     \
	} while (0)
	REFUSED("spec", NULL, &view, NULL, 2, 4, &slab, NULL);
	REFUSED("keys", &spec, NULL, NULL, 2, 4, &slab, NULL);
	REFUSED("last_tokens", &spec, &view, NULL, 2, 5, &slab, NULL);
	REFUSED("last_tokens", &spec, &view, NULL, 2, 0, &slab, NULL);
	REFUSED("blocks", &spec, &view, above, 2, 4, &slab, NULL);
	REFUSED("slots", &spec, &view, NULL, 2, 4, &slab, above);
	REFUSED("slab", &spec, &view, NULL, 2, 4, NULL, NULL);
	bad.stride_bytes -= 4;
	REFUSED("stride_bytes", &spec, &view, NULL, 2, 4, &bad, NULL);
	keys[47] = INFINITY;
	REFUSED("keys: block 1, token 3, head 1", &spec, &view, NULL, 2, 4,
		&slab, NULL);
#undef REFUSED
	channels[0] = 7;
	assert_einval(ucm_star_channels(&spec, &view, NULL, 2, 4, channels,
					&error), error, "keys: block 1");
	ck_assert_uint_eq(channels[0], 7);
	keys[47] = 70000;
	ck_assert_int_eq(ucm_star_build(&spec, &view, NULL, 2, 4, &slab, NULL,
					NULL), 0); /* half of it is the mean */
	keys[41] = 70000;
	memset(slab.base, 0xa5, 2 * slab.stride_bytes);
	ck_assert_int_eq(ucm_star_build(&spec, &view, NULL, 2, 4, &slab, NULL,
					NULL), -ERANGE);
	ck_assert(*(uint8_t *)slab.base == 0xa5);
	assert_einval(ucm_star_channels(&spec, &view, NULL, 0, 4, channels,
					&error), error, "num");
	assert_einval(ucm_star_channels(&spec, &view, NULL, 2, 4, NULL,
					&error), error, "out");

	memset(state, 0, sizeof(state));
	assert_einval(ucm_star_add(&spec, state, &view, 1, &error), error,
		      "state");
	assert_einval(ucm_star_begin(&spec, NULL, &error), error, "state");
	ck_assert_int_eq(ucm_star_begin(&spec, state, NULL), 0);
	assert_einval(ucm_star_write(&spec, state, out, &error), error,
		      "state has no tokens");
	ck_assert_int_eq(ucm_star_add(&spec, state, &view, 3, NULL), 0);
	assert_einval(ucm_star_add(&spec, state, &view, 2, &error), error,
		      "num_tokens 2");
	assert_einval(ucm_star_write(&spec, state, (char *)out + 1, &error),
		      error, "out");
	spec.merge_tokens = 1;
	assert_einval(ucm_star_add(&spec, state, &view, 1, &error), error,
		      "state");
	free(slab.base);
}

UNIT_TEST(wrong_arguments_of_a_score_are_named)
{
	struct ucm_star_spec spec = { UCM_DTYPE_FLOAT32, 2, 3, 4, 2, 3, NULL };
	struct ucm_repr_slab slab = star_slab(&spec, 2, 0);
	float q[4 * 3] = { 0 }, prepared[12], scores[16] = { 7 }, weights[16];
	struct ucm_query queries[2] = { { q, UCM_DTYPE_FLOAT32, 4, 3 },
					{ q, UCM_DTYPE_FLOAT32, 2, 3 } };
	const struct ucm_star_request good = {
		.query = prepared, .num_queries = 2, .num_heads = 4,
		.slab = &slab, .num = 2, .scores = scores, .stride = 2,
	};
	struct ucm_star_request request;
	int32_t below[] = { 0, -1 };
	struct ucm_error error;

#define REFUSED(field, value, word)                                           \
	do {                                                                  \
		request = good;                                               \
		request.field = value;                                        \
		assert_einval(ucm_star_score(&spec, &request, 1, &error),     \
			      error, word);                                   \
		ck_assert(scores[0] == 7);                                    \
	} while (0)
	REFUSED(query, NULL, "query");
	REFUSED(scores, NULL, "scores");
	REFUSED(num_queries, 0, "num_queries");
	REFUSED(num_queries, 4097, "num_queries");
	REFUSED(num_heads, 3, "num_heads");
	REFUSED(num_heads, 0, "num_heads");
	REFUSED(per, UCM_SCORE_PERS, "per");
	REFUSED(slab, NULL, "slab");
	REFUSED(slots, below, "slots: number 1");
	REFUSED(first_slot, 1, "first_slot");
	REFUSED(stride, 1, "stride");
	REFUSED(stride, SIZE_MAX / 2, "stride");
	request = good;
	request.weights = weights;
	request.scale = NAN;
	assert_einval(ucm_star_score(&spec, &request, 1, &error), error,
		      "scale");
	request.scale = 1;
	request.per = UCM_SCORE_BLOCK;
	assert_einval(ucm_star_score(&spec, &request, 1, &error), error,
		      "weights");
	assert_einval(ucm_star_score(&spec, NULL, 1, &error), error,
		      "requests");
#undef REFUSED
#define REFUSED(word, ...)                                                    \
	assert_einval(ucm_star_vote(__VA_ARGS__, &error), error, word)
	REFUSED("scores", NULL, weights, 2, 2, 2, 1, prepared);
	REFUSED("weights", scores, NULL, 2, 2, 2, 1, prepared);
	REFUSED("votes", scores, weights, 2, 2, 2, 1, NULL);
	REFUSED("scale", scores, weights, 2, 2, 2, -1, prepared);
	REFUSED("scale", scores, weights, 2, 2, 2, INFINITY, prepared);
	REFUSED("stride", scores, weights, 2, 2, 1, 1, prepared);
#undef REFUSED
	prepared[0] = 7;
	assert_einval(ucm_star_query_prepare(&spec, NULL, 1, prepared, &error),
		      error, "queries");
	assert_einval(ucm_star_query_prepare(&spec, queries, 2, prepared,
					     &error), error,
		      "num_heads 2 of query 1");
	assert_einval(ucm_star_query_prepare(&spec, queries, 0, prepared,
					     &error), error, "num_queries");
	assert_einval(ucm_star_query_prepare(&spec, queries, 1, NULL, &error),
		      error, "out");
	q[11] = NAN;
	assert_einval(ucm_star_query_prepare(&spec, queries, 1, prepared,
					     &error), error, "query: head 3");
	ck_assert(prepared[0] == 7);
	queries[0].dtype = UCM_DTYPE_INT8;
	assert_einval(ucm_star_query_prepare(&spec, queries, 1, prepared,
					     &error), error, "query: dtype");
	free(slab.base);
}
