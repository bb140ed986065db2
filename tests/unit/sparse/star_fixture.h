/* SPDX-License-Identifier: Apache-2.0 */
/*
 * star_fixture.h - random scenes of merged channels, and how to read what is
 * stored.
 */
#ifndef UCM_TESTS_STAR_FIXTURE_H
#define UCM_TESTS_STAR_FIXTURE_H

#include "tests/unit/sparse_fixture.h"

#define CASES	    80u
#define BLOCKS	    20u
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

static inline uint16_t *random_channels(uint64_t *random, uint32_t heads,
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

static inline struct ucm_star_spec random_star(uint64_t *random)
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

static inline struct ucm_repr_slab star_slab(const struct ucm_star_spec *spec,
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

static inline void make_query(struct scene *scene, uint32_t number,
			      uint64_t *random)
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

static inline struct scene scene_of(struct ucm_star_spec of, uint64_t *random)
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

static inline struct scene scene_make(uint64_t *random)
{
	return scene_of(random_star(random), random);
}

static inline void scene_free(struct scene *scene)
{
	for (uint32_t i = 0; i < scene->num_queries; i++)
		free(scene->memory[i]);
	free(scene->channels);
	free(scene->cache.memory);
	free(scene->slab.base);
	free(scene->prepared);
}

static inline uint32_t tokens_of(const struct scene *scene, uint32_t block)
{
	return block + 1 < BLOCKS ? scene->spec.block_size : scene->last_tokens;
}

static inline uint32_t channel_of(const struct ucm_star_spec *spec,
				  uint32_t head, uint32_t i)
{
	return spec->channels ? spec->channels[head * spec->kept + i] : i;
}

/* What is stored for a group's channel number i; scale: int8's, or 1. */
static inline float stored(const struct scene *scene, uint32_t block,
			   uint32_t head, uint32_t group, uint32_t i,
			   float *scale)
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

#endif
