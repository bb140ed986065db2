/* SPDX-License-Identifier: Apache-2.0 */
/*
 * code_fixture.h - random scenes of hash codes: an encoder, keys, their codes
 * and a query, and how to read what is stored.
 */
#ifndef UCM_TESTS_CODE_FIXTURE_H
#define UCM_TESTS_CODE_FIXTURE_H

#include "tests/unit/sparse_fixture.h"
#include "sparse/code.h"

#define CASES	   60u
#define BLOCKS	   4u
#define MAX_GROUP  4u
#define MAX_HEADS  4u
#define MAX_TOKENS 20u
#define MAX_SCORES (MAX_HEADS * MAX_GROUP * BLOCKS * MAX_TOKENS)

static inline bool use_code_way(int way)
{
	if (!ucm_code_kernels_use(ways[way]))
		return unit_skip("sparse: this CPU has no %s for codes",
				 ways[way]);
	must(!strcmp(ucm_code_kernels()->name, ways[way]));
	return true;
}

/* ---- scenes ---- */

struct scene {
	struct ucm_code_spec spec;
	uint32_t parts, words, tiles;
	struct { uint32_t dim, bits, words; } part[2];
	void *encoder;
	float *centers;
	struct cache cache;
	struct ucm_repr_slab slab;
	uint32_t last_tokens;
	uint32_t group;
	struct ucm_query query;
	uint8_t *memory; /* the query's */
};

static inline struct ucm_code_spec random_code_spec(uint64_t *random,
						    uint32_t form)
{
	static const uint32_t dims[] = { 1, 7, 32, 40, 64, 128 };
	struct ucm_code_spec spec = {
		.form = form,
		.num_heads = (uint32_t)random_between(random, 1, MAX_HEADS),
		.head_dim = dims[random_between(random, 0, 5)],
		.bits = 8 * (uint32_t)random_between(random, 1, 24),
		.block_size = (uint32_t)random_between(random, 1, MAX_TOKENS),
		.seed = random_next(random) % 3,
	};

	if (form == UCM_CODE_TOKENS && random_between(random, 0, 1)) {
		spec.norms = 1;
		while (spec.bits < spec.head_dim)
			spec.bits += 8;
	}
	if (random_between(random, 0, 2) == 0) {
		spec.rope_dim = (uint32_t)random_between(random, 1, 32);
		spec.rope_bits = 8 * (uint32_t)random_between(random, 4, 10);
		spec.head_dim += spec.rope_dim;
	}
	return spec;
}

static inline void scene_parts(struct scene *scene)
{
	const struct ucm_code_spec *spec = &scene->spec;
	uint32_t rows = spec->block_size;

	scene->part[0].dim = spec->head_dim - spec->rope_dim;
	scene->part[0].bits = spec->bits;
	scene->part[1].dim = spec->rope_dim;
	scene->part[1].bits = spec->rope_bits;
	scene->parts = spec->rope_dim ? 2 : 1;
	for (uint32_t i = 0; i < 2; i++) {
		scene->part[i].words = (scene->part[i].bits + 63) / 64;
		scene->words += scene->part[i].words;
	}
	if (spec->form == UCM_CODE_COUNTS)
		for (rows = 0; spec->block_size >> rows; rows++)
			;
	scene->tiles = (rows + 7) / 8;
}

static inline void *get(size_t bytes)
{
	void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);

	must(memory);
	memset(memory, 0xa5, (bytes + 63) / 64 * 64);
	return memory;
}

static inline struct scene scene_of(const struct ucm_code_spec *spec,
				    uint64_t *random)
{
	const struct ucm_repr_spec shape = { .num_heads = spec->num_heads,
					     .head_dim = spec->head_dim,
					     .block_size = spec->block_size };
	struct scene scene = { .spec = *spec };
	size_t num = (size_t)spec->num_heads * spec->head_dim, item;

	scene_parts(&scene);
	scene.centers = get(num * sizeof(float));
	for (size_t i = 0; i < num; i++)
		scene.centers[i] = random_float(random, 0.5);
	scene.encoder = get(ucm_code_encoder_bytes(spec));
	must(!ucm_code_encoder_make(spec,
				    random_between(random, 0, 1)
					    ? scene.centers : NULL,
				    scene.encoder, NULL));
	scene.cache = cache_make(&shape,
				 input_types[random_between(random, 0, 2)],
				 BLOCKS, random);
	scene.slab.num_slots = BLOCKS;
	scene.slab.stride_bytes = ucm_code_bytes(spec) +
				  8 * (uint64_t)random_between(random, 0, 2);
	scene.slab.base = get(BLOCKS * scene.slab.stride_bytes);
	scene.last_tokens = (uint32_t)random_between(random, 1,
						     spec->block_size);
	scene.group = 1u << random_between(random, 0, 2);
	scene.query.dtype = input_types[random_between(random, 0, 2)];
	scene.query.num_heads = scene.group * spec->num_heads;
	scene.query.stride_head = spec->head_dim +
				  random_between(random, 0, 3);
	item = type_bytes(scene.query.dtype);
	num = (size_t)scene.query.stride_head * scene.query.num_heads;
	scene.memory = get(num * item);
	for (size_t i = 0; i < num; i++)
		store_number(scene.memory + i * item, scene.query.dtype,
			     random_float(random, 2));
	scene.query.base = scene.memory;
	return scene;
}

static inline struct scene scene_make(uint64_t *random, uint32_t form)
{
	struct ucm_code_spec spec = random_code_spec(random, form);

	return scene_of(&spec, random);
}

static inline void scene_build(const struct scene *scene)
{
	must(!ucm_code_build(scene->encoder, &scene->cache.keys, NULL, BLOCKS,
			     scene->last_tokens, &scene->slab, NULL, NULL));
}

static inline void scene_free(struct scene *scene)
{
	free(scene->centers);
	free(scene->encoder);
	free(scene->cache.memory);
	free(scene->slab.base);
	free(scene->memory);
}

static inline uint32_t tokens_of(const struct scene *scene, uint32_t block)
{
	return block + 1 < BLOCKS ? scene->spec.block_size : scene->last_tokens;
}

static inline const uint8_t *slot_of(const struct scene *scene, uint32_t block)
{
	return (const uint8_t *)scene->slab.base +
	       block * scene->slab.stride_bytes;
}

static inline size_t head_bytes(const struct scene *scene)
{
	size_t rows = (size_t)scene->tiles * 8;

	return rows * scene->words * 8 +
	       (scene->spec.norms ? (rows * 2 + 63) / 64 * 64 : 0);
}

/* Bit number bit of a row, padding included, as the header describes it. */
static inline int stored_bit(const struct scene *scene, uint32_t block,
			     uint32_t head, uint32_t row, uint32_t bit)
{
	size_t word = ((size_t)(row / 8) * scene->words + bit / 64) * 8 +
		      row % 8;

	return slot_of(scene, block)[head * head_bytes(scene) + word * 8 +
				     bit % 64 / 8] >> bit % 8 & 1;
}

static inline double stored_norm(const struct scene *scene, uint32_t block,
				 uint32_t head, uint32_t token)
{
	size_t rows = (size_t)scene->tiles * 8;

	return load_number(slot_of(scene, block) + head * head_bytes(scene) +
				   rows * scene->words * 8 + 2 * token,
			   UCM_DTYPE_BFLOAT16);
}

/* Is the encoder's center used? It is not said outside. */
static inline float center_of(const struct scene *scene, uint32_t head,
			      uint32_t c)
{
	size_t num = (size_t)scene->spec.num_heads * scene->spec.head_dim;
	size_t all = ucm_code_encoder_bytes(&scene->spec);
	const float *centers = (const float *)((const char *)scene->encoder +
					       all) - num;

	return centers[(size_t)head * scene->spec.head_dim + c];
}

/* A key as it is encoded. */
static inline void key_of(const struct scene *scene, uint32_t block,
			  uint32_t head, uint32_t token, float *out)
{
	for (uint32_t c = 0; c < scene->spec.head_dim; c++)
		out[c] = cache_key(&scene->cache, block, token, head, c) -
			 center_of(scene, head, c);
}

/* ---- scores ---- */

/* What a query has been prepared to: its codes, or its levels. */
struct prepared {
	struct ucm_code_method method;
	uint32_t codes, planes; /* of a key head's group; of a row */
	uint64_t *words;
	size_t row_words;
};

static inline struct prepared
prepared_make(const struct scene *scene, const struct ucm_code_method *method)
{
	struct prepared p = { .method = *method };
	size_t num = ucm_code_query_words(&scene->spec, method);
	uint32_t rows = scene->spec.num_heads;

	p.codes = scene->group / method->merged_heads;
	rows *= method->per == UCM_SCORE_HEAD ? p.codes : 1;
	must(num && num % rows == 0);
	p.row_words = num / rows;
	p.planes = (uint32_t)((p.row_words - 1) / scene->words);
	p.words = get(num * sizeof(uint64_t));
	must(!ucm_code_query_prepare(scene->encoder, method, &scene->query,
				     NULL, p.words, NULL));
	return p;
}

static inline int prepared_bit(const struct prepared *p, uint32_t row,
			       uint32_t bit, uint32_t plane)
{
	return p->words[row * p->row_words + 1 + bit / 64 * p->planes +
			plane] >> bit % 64 & 1;
}

static inline float unit_of(const struct prepared *p, uint32_t row)
{
	return ucm_float_of((uint32_t)p->words[row * p->row_words]);
}

/* A channel of an estimating query, in units. */
static inline int level_of(const struct prepared *p, uint32_t row, uint32_t bit)
{
	int level = 0;

	for (uint32_t plane = 0; plane < 4; plane++)
		level += (prepared_bit(p, row, bit, plane) ? 8 : -8) >> plane;
	/* -8 >> 3 is -1: shifts of these are exact */
	return level;
}

static inline size_t width_of(const struct scene *scene,
			      const struct prepared *p)
{
	return BLOCKS * (p->method.over == UCM_CODE_EACH
				 ? scene->spec.block_size : 1);
}

static inline void scene_score(const struct scene *scene,
			       const struct prepared *p, float *scores)
{
	const struct ucm_code_request request = {
		.query = p->words, .slab = &scene->slab, .num = BLOCKS,
		.scores = scores, .stride = width_of(scene, p),
	};

	must(!ucm_code_score(&scene->spec, &p->method, &request, 1, NULL));
}

static inline struct ucm_code_method method_of(const struct scene *scene,
					       uint32_t number, uint32_t merged)
{
	return (struct ucm_code_method){
		.measure = number % 2, .over = number / 2 % 3,
		.per = number / 6, .num_heads = scene->query.num_heads,
		.merged_heads = merged,
	};
}

/* ---- queries ---- */

static inline double query_value(const struct scene *scene, uint32_t head,
				 uint32_t c)
{
	return load_number((const uint8_t *)scene->query.base +
				   (head * (size_t)scene->query.stride_head +
				    c) * type_bytes(scene->query.dtype),
			   scene->query.dtype);
}

#endif
