/* SPDX-License-Identifier: Apache-2.0 */
/* score_fixture.h - random queries and representations, and their scores. */
#ifndef UCM_TESTS_SCORE_FIXTURE_H
#define UCM_TESTS_SCORE_FIXTURE_H

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

static inline struct scene scene_make(uint64_t *random)
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

static inline void scene_free(struct scene *scene)
{
	free(scene->cache.memory);
	free(scene->slab.base);
	free(scene->memory);
	free(scene->prepared);
}

/* Score r of block i is scores[r * BLOCKS + i]. */
static inline void scene_score(const struct scene *scene, uint32_t per,
			       float *scores)
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

static inline double query_value(const struct scene *scene, uint32_t head,
				 uint32_t channel)
{
	return load_number((const uint8_t *)scene->query.base +
				   (head * (size_t)scene->query.stride_head +
				    channel) *
					   type_bytes(scene->query.dtype),
			   scene->query.dtype);
}

/* The order of sums that kernels.c describes. */
static inline float tree(float *lanes)
{
	for (int n = 16; n; n /= 2) {
		for (int i = 0; i < n; i++)
			lanes[i] += lanes[i + n];
	}
	return lanes[0];
}

#endif
