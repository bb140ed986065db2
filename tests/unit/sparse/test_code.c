/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_code.c - hash codes are the signs that are promised, and scores by them
 * are counts of bits, exactly; all ways give the same.
 */
#include <config.h>

#include "tests/unit/sparse_fixture.h"

#include "sparse/code.h"
#include "sparse/code_matrix.h"

#define CASES	   60u
#define BLOCKS	   4u
#define MAX_GROUP  4u
#define MAX_HEADS  4u
#define MAX_TOKENS 20u
#define MAX_SCORES (MAX_HEADS * MAX_GROUP * BLOCKS * MAX_TOKENS)

static bool use_code_way(int way)
{
	if (!ucm_code_kernels_use(ways[way]))
		return unit_skip("sparse: this CPU has no %s for codes",
				 ways[way]);
	must(!strcmp(ucm_code_kernels()->name, ways[way]));
	return true;
}

/* ---- random matrices ---- */

/* Random123's known answers (kat_vectors). */
UNIT_TEST(philox_gives_the_published_numbers)
{
	static const struct {
		uint32_t counter[4], key[2], want[4];
	} rows[] = {
		{ { 0 }, { 0 },
		  { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
		{ { ~0u, ~0u, ~0u, ~0u }, { ~0u, ~0u },
		  { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
		{ { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 },
		  { 0xa4093822, 0x299f31d0 },
		  { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
	};
	uint32_t got[4];

	for (size_t i = 0; i < NUM_ROWS(rows); i++) {
		ucm_philox(rows[i].counter, rows[i].key, got);
		ck_assert_mem_eq(got, rows[i].want, sizeof(got));
	}
}

UNIT_TEST(columns_are_orthogonal_in_blocks_of_the_dimension)
{
	static const struct { uint32_t dim, num; } rows[] = {
		{ 1, 8 }, { 7, 24 }, { 64, 64 }, { 80, 40 }, { 128, 256 },
		{ 33, 104 },
	};

	for (size_t i = 0; i < NUM_ROWS(rows); i++) {
		uint32_t dim = rows[i].dim, num = rows[i].num;
		float *w = calloc((size_t)dim * (num + 3), sizeof(*w));

		ucm_code_matrix_make(7, 0, dim, num, w, num + 3);
		for (uint32_t a = 0; a < num; a++) {
			for (uint32_t b = 0; b <= a; b++) {
				double sum = 0;

				for (uint32_t c = 0; c < dim; c++)
					sum += (double)w[c * (num + 3) + a] *
					       (double)w[c * (num + 3) + b];
				if (a / dim == b / dim)
					must(fabs(sum - (a == b)) < 1e-6);
			}
		}
		must(w[num] == 0);
		free(w);
	}
}

/* Blocks of columns are independent of each other: their products are those of
 * unit vectors, of which the square is 1/dim on average. */
UNIT_TEST(blocks_of_columns_are_independent)
{
	enum { DIM = 64 };
	float w[DIM * 2 * DIM];
	double sum = 0, mean = 0;

	ucm_code_matrix_make(3, 1, DIM, 2 * DIM, w, 2 * DIM);
	for (int a = 0; a < DIM; a++) {
		for (int b = DIM; b < 2 * DIM; b++) {
			double x = 0;

			for (int c = 0; c < DIM; c++)
				x += (double)w[c * 2 * DIM + a] *
				     (double)w[c * 2 * DIM + b];
			sum += x * x;
			mean += x;
		}
	}
	/* exactly 1/dim each row: the second block is a basis */
	ck_assert_double_eq_tol(sum / DIM, 1, 1e-5);
	ck_assert(fabs(mean) < 5 * sqrt(DIM));
}

/* Elements are those of N(0, 1/dim), nearly. */
UNIT_TEST(elements_are_spread_as_they_should)
{
	enum { DIM = 128 };
	static float w[DIM * DIM];
	double mean = 0, fourth = 0;

	ucm_code_matrix_make(1, 0, DIM, DIM, w, DIM);
	for (int i = 0; i < DIM * DIM; i++) {
		double x = (double)w[i] * sqrt(DIM);

		mean += x / (DIM * DIM);
		fourth += x * x * x * x / (DIM * DIM);
	}
	ck_assert(fabs(mean) < 0.05);
	/* of a coordinate on a sphere: 3 dim / (dim + 2) */
	ck_assert(fabs(fourth - 3.0 * DIM / (DIM + 2)) < 0.2);
}

/* Codes are stored: the matrix of a seed is the same for ever. */
UNIT_TEST(a_seed_s_matrix_never_changes)
{
	static float w[100 * 128];
	uint64_t sum = 0;

	ucm_code_matrix_make(0x123456789abcdefu, 1, 100, 128, w, 128);
	for (size_t i = 0; i < NUM_ROWS(w); i++)
		sum = sum * 6364136223846793005u + ucm_float_bits(w[i]);
	ck_assert_msg(sum == 0xb7b6b8e2e85cfc66u, "%#" PRIx64, sum);
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

static struct ucm_code_spec random_code_spec(uint64_t *random, uint32_t form)
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

static void scene_parts(struct scene *scene)
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

static void *get(size_t bytes)
{
	void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);

	must(memory);
	memset(memory, 0xa5, (bytes + 63) / 64 * 64);
	return memory;
}

static struct scene scene_of(const struct ucm_code_spec *spec, uint64_t *random)
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

static struct scene scene_make(uint64_t *random, uint32_t form)
{
	struct ucm_code_spec spec = random_code_spec(random, form);

	return scene_of(&spec, random);
}

static void scene_build(const struct scene *scene)
{
	must(!ucm_code_build(scene->encoder, &scene->cache.keys, NULL, BLOCKS,
			     scene->last_tokens, &scene->slab, NULL, NULL));
}

static void scene_free(struct scene *scene)
{
	free(scene->centers);
	free(scene->encoder);
	free(scene->cache.memory);
	free(scene->slab.base);
	free(scene->memory);
}

static uint32_t tokens_of(const struct scene *scene, uint32_t block)
{
	return block + 1 < BLOCKS ? scene->spec.block_size : scene->last_tokens;
}

static const uint8_t *slot_of(const struct scene *scene, uint32_t block)
{
	return (const uint8_t *)scene->slab.base +
	       block * scene->slab.stride_bytes;
}

static size_t head_bytes(const struct scene *scene)
{
	size_t rows = (size_t)scene->tiles * 8;

	return rows * scene->words * 8 +
	       (scene->spec.norms ? (rows * 2 + 63) / 64 * 64 : 0);
}

/* Bit number bit of a row, padding included, as the header describes it. */
static int stored_bit(const struct scene *scene, uint32_t block, uint32_t head,
		      uint32_t row, uint32_t bit)
{
	size_t word = ((size_t)(row / 8) * scene->words + bit / 64) * 8 +
		      row % 8;

	return slot_of(scene, block)[head * head_bytes(scene) + word * 8 +
				     bit % 64 / 8] >> bit % 8 & 1;
}

static double stored_norm(const struct scene *scene, uint32_t block,
			  uint32_t head, uint32_t token)
{
	size_t rows = (size_t)scene->tiles * 8;

	return load_number(slot_of(scene, block) + head * head_bytes(scene) +
				   rows * scene->words * 8 + 2 * token,
			   UCM_DTYPE_BFLOAT16);
}

static uint32_t stored_tokens(const struct scene *scene, uint32_t block)
{
	uint32_t tokens;

	memcpy(&tokens, slot_of(scene, block) +
				scene->spec.num_heads * head_bytes(scene), 4);
	return tokens;
}

/* Is the encoder's center used? It is not said outside. */
static float center_of(const struct scene *scene, uint32_t head, uint32_t c)
{
	size_t num = (size_t)scene->spec.num_heads * scene->spec.head_dim;
	size_t all = ucm_code_encoder_bytes(&scene->spec);
	const float *centers = (const float *)((const char *)scene->encoder +
					       all) - num;

	return centers[(size_t)head * scene->spec.head_dim + c];
}

/* (x W) of a bit, in double; *size: what it may be off by, in all. */
static double product(const struct scene *scene, const float *x, uint32_t part,
		      uint32_t bit, double *off)
{
	size_t stride;
	const float *w = ucm_code_matrix(scene->encoder, (int)part, &stride);
	uint32_t dim = scene->part[part].dim;
	double sum = 0, size = 0;

	if (part)
		x += scene->part[0].dim;
	for (uint32_t c = 0; c < dim; c++) {
		sum += (double)x[c] * (double)w[c * stride + bit];
		size += (double)x[c] * (double)x[c];
	}
	*off = (dim + 1) * 0x1p-24 * sqrt(size);
	return sum;
}

/* A key as it is encoded. */
static void key_of(const struct scene *scene, uint32_t block, uint32_t head,
		   uint32_t token, float *out)
{
	for (uint32_t c = 0; c < scene->spec.head_dim; c++)
		out[c] = cache_key(&scene->cache, block, token, head, c) -
			 center_of(scene, head, c);
}

/* ---- codes ---- */

static void check_code(const struct scene *scene, uint32_t block, uint32_t head,
		       uint32_t token)
{
	float key[160];
	double off, square = 0, sum = 0;
	uint32_t first = 0;

	key_of(scene, block, head, token, key);
	for (uint32_t part = 0; part < scene->parts; part++) {
		for (uint32_t j = 0; j < scene->part[part].words * 64; j++) {
			int bit = stored_bit(scene, block, head, token,
					     first + j);
			double x;

			if (j >= scene->part[part].bits) {
				must(!bit);
				continue;
			}
			x = product(scene, key, part, j, &off);
			must(fabs(x) <= off || bit == (x > 0));
			sum += fabs(x);
		}
		first += scene->part[part].words * 64;
	}
	if (!scene->spec.norms)
		return;
	for (uint32_t c = 0; c < scene->spec.head_dim; c++)
		square += (double)key[c] * (double)key[c];
	must(fabs(stored_norm(scene, block, head, token) * sum / square - 1) <
	     0x1.1p-8);
}

UNIT_TEST(a_code_has_the_signs_of_the_products, .rows = NUM_ROWS(ways))
{
	bool can = use_code_way(_i);

	for (unsigned number = 0; can && number < CASES; number++) {
		uint64_t random = random_case(number);
		struct scene scene = scene_make(&random, UCM_CODE_TOKENS);

		scene_build(&scene);
		for (uint32_t block = 0; block < BLOCKS; block++) {
			uint32_t tokens = tokens_of(&scene, block);

			must(stored_tokens(&scene, block) == tokens);
			for (uint32_t i = 0; i < tokens * scene.spec.num_heads;
			     i++)
				check_code(&scene, block, i / tokens,
					   i % tokens);
		}
		scene_free(&scene);
	}
}

UNIT_TEST(counts_are_those_of_the_tokens_bits)
{
	for (unsigned number = 0; number < CASES; number++) {
		uint64_t random = random_case(number);
		struct scene scene = scene_make(&random, UCM_CODE_COUNTS);
		struct scene each = scene;

		each.spec.form = UCM_CODE_TOKENS;
		each.words = 0;
		scene_parts(&each);
		each.encoder = get(ucm_code_encoder_bytes(&each.spec));
		must(!ucm_code_encoder_make(&each.spec, NULL, each.encoder,
					    NULL));
		must(!ucm_code_encoder_make(&scene.spec, NULL, scene.encoder,
					    NULL));
		each.slab.stride_bytes = ucm_code_bytes(&each.spec);
		each.slab.base = get(BLOCKS * each.slab.stride_bytes);
		scene_build(&scene);
		scene_build(&each);
		for (uint32_t i = 0; i < BLOCKS * scene.spec.num_heads *
					      scene.words * 64; i++) {
			uint32_t bit = i % (scene.words * 64);
			uint32_t head = i / (scene.words * 64) %
					scene.spec.num_heads;
			uint32_t block = i / (scene.words * 64) /
					 scene.spec.num_heads;
			int count = 0, got = 0;

			for (uint32_t t = 0; t < tokens_of(&scene, block); t++)
				count += stored_bit(&each, block, head, t, bit);
			for (uint32_t row = 0; row < 8; row++)
				got += stored_bit(&scene, block, head, row, bit)
				       << row;
			must(got == count);
			must(stored_tokens(&scene, block) ==
			     tokens_of(&scene, block));
		}
		free(each.encoder);
		free(each.slab.base);
		scene_free(&scene);
	}
}

/* In pieces of any size, in any slot, each way: the same bytes. */
UNIT_TEST(tokens_that_arrive_one_by_one_are_a_block, .rows = NUM_ROWS(ways))
{
	bool can = use_code_way(_i);

	for (unsigned number = 0; can && number < CASES; number++) {
		uint64_t random = random_case(number);
		struct scene scene = scene_make(&random, number % 2);
		size_t bytes = ucm_code_bytes(&scene.spec);
		uint8_t *grown = get(bytes);

		must(ucm_code_kernels_use(NULL));
		scene_build(&scene);
		must(use_code_way(_i));
		for (uint32_t block = 0; block < BLOCKS; block++) {
			uint32_t have = 0, all = tokens_of(&scene, block);

			while (have < all) {
				struct ucm_keys keys = scene.cache.keys;
				uint32_t more = (uint32_t)random_between(
					&random, have > 0, all - have);

				keys.base = cache_at(&scene.cache, block, have,
						     0, 0);
				keys.num_blocks = 1;
				must(!ucm_code_add(scene.encoder, &keys, have,
						   more, grown, NULL));
				have += more;
			}
			must(!memcmp(grown, slot_of(&scene, block), bytes));
		}
		free(grown);
		scene_free(&scene);
	}
}

UNIT_TEST(codes_are_written_to_their_slots_alone)
{
	uint64_t random = random_case(0);
	struct scene scene = scene_make(&random, UCM_CODE_TOKENS);
	const int32_t blocks[] = { 2, 0 }, slots[] = { 3, 1 };
	size_t bytes = ucm_code_bytes(&scene.spec);
	size_t stride = scene.slab.stride_bytes;
	uint8_t *want = get(BLOCKS * stride), *got = scene.slab.base;

	scene.last_tokens = scene.spec.block_size;
	scene_build(&scene);
	memcpy(want, got, BLOCKS * stride);
	memset(got, 0xa5, BLOCKS * stride);
	must(!ucm_code_build(scene.encoder, &scene.cache.keys, blocks, 2,
			     scene.last_tokens, &scene.slab, slots, NULL));
	must(!memcmp(got + 3 * stride, want + 2 * stride, bytes));
	must(!memcmp(got + stride, want, bytes));
	for (size_t i = 0; i < stride; i++)
		must(got[i] == 0xa5 && got[2 * stride + i] == 0xa5);
	free(want);
	scene_free(&scene);
}

/* ---- scores ---- */

/* What a query has been prepared to: its codes, or its levels. */
struct prepared {
	struct ucm_code_method method;
	uint32_t codes, planes; /* of a key head's group; of a row */
	uint64_t *words;
	size_t row_words;
};

static struct prepared prepared_make(const struct scene *scene,
				     const struct ucm_code_method *method)
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

static int prepared_bit(const struct prepared *p, uint32_t row, uint32_t bit,
			uint32_t plane)
{
	return p->words[row * p->row_words + 1 + bit / 64 * p->planes +
			plane] >> bit % 64 & 1;
}

static float unit_of(const struct prepared *p, uint32_t row)
{
	return ucm_float_of((uint32_t)p->words[row * p->row_words]);
}

/* A channel of an estimating query, in units. */
static int level_of(const struct prepared *p, uint32_t row, uint32_t bit)
{
	int level = 0;

	for (uint32_t plane = 0; plane < 4; plane++)
		level += (prepared_bit(p, row, bit, plane) ? 8 : -8) >> plane;
	/* -8 >> 3 is -1: shifts of these are exact */
	return level;
}

static bool is_padding(const struct scene *scene, uint32_t bit)
{
	uint32_t first = scene->part[0].words * 64;

	return bit < first ? bit >= scene->part[0].bits
			   : bit - first >= scene->part[1].bits;
}

static int hamming(const struct scene *scene, const struct prepared *codes,
		   uint32_t row, uint32_t head, uint32_t block, uint32_t token)
{
	int differ = 0;

	for (uint32_t bit = 0; bit < scene->words * 64; bit++)
		differ += prepared_bit(codes, row, bit, 0) !=
			  stored_bit(scene, block, head, token, bit);
	return differ;
}

/* A token's score, before the unit: what the header says, of what is stored.
 * codes: those of each head. */
static float token_score(const struct scene *scene, const struct prepared *p,
			 const struct prepared *codes, uint32_t row,
			 uint32_t head, uint32_t block, uint32_t token)
{
	int sum = 0;

	if (p->method.measure == UCM_CODE_HAMMING) {
		if (p->method.per == UCM_SCORE_HEAD)
			return (float)-hamming(scene, codes, row, head, block,
					       token);
		for (uint32_t i = 0; i < p->codes; i++)
			sum -= hamming(scene, codes, head * p->codes + i, head,
				       block, token);
		return (float)sum;
	}
	for (uint32_t bit = 0; bit < scene->words * 64; bit++) {
		if (is_padding(scene, bit))
			continue;
		sum += stored_bit(scene, block, head, token, bit)
			       ? level_of(p, row, bit)
			       : -level_of(p, row, bit);
	}
	return scene->spec.norms ? (float)sum * (float)stored_norm(scene, block,
								   head, token)
				 : (float)sum;
}

static float row_score(const struct scene *scene, const struct prepared *p,
		       const struct prepared *codes, uint32_t row,
		       uint32_t head, uint32_t block)
{
	float best = -INFINITY;
	double sum = 0;

	for (uint32_t t = 0; t < tokens_of(scene, block); t++) {
		float x = token_score(scene, p, codes, row, head, block, t);

		sum += (double)x;
		best = x > best ? x : best;
	}
	return p->method.over == UCM_CODE_BEST
		       ? best * unit_of(p, row)
		       : (float)(sum * (double)unit_of(p, row));
}

static size_t rows_of(const struct scene *scene, const struct prepared *p)
{
	return p->method.per == UCM_SCORE_HEAD
		       ? p->codes * scene->spec.num_heads
	       : p->method.per == UCM_SCORE_GROUP ? scene->spec.num_heads
						  : 1;
}

static size_t width_of(const struct scene *scene, const struct prepared *p)
{
	return BLOCKS * (p->method.over == UCM_CODE_EACH
				 ? scene->spec.block_size : 1);
}

static void scene_score(const struct scene *scene, const struct prepared *p,
			float *scores)
{
	const struct ucm_code_request request = {
		.query = p->words, .slab = &scene->slab, .num = BLOCKS,
		.scores = scores, .stride = width_of(scene, p),
	};

	must(!ucm_code_score(&scene->spec, &p->method, &request, 1, NULL));
}

static float each_score(const struct scene *scene, const struct prepared *p,
			const struct prepared *codes, uint32_t row,
			uint32_t block, uint32_t token)
{
	uint32_t rows = (uint32_t)rows_of(scene, p);
	float sum = 0;

	if (token >= tokens_of(scene, block))
		return -INFINITY;
	if (rows > 1 || scene->spec.num_heads == 1)
		return token_score(scene, p, codes, row,
				   row / (rows / scene->spec.num_heads), block,
				   token) * unit_of(p, row);
	for (uint32_t head = 0; head < scene->spec.num_heads; head++)
		sum += token_score(scene, p, codes, head, head, block, token) *
		       unit_of(p, head);
	return sum;
}

static float block_score(const struct scene *scene, const struct prepared *p,
			 const struct prepared *codes, uint32_t row,
			 uint32_t block)
{
	double sum = 0;

	if (p->method.per != UCM_SCORE_BLOCK)
		return row_score(scene, p, codes, row,
				 row * scene->spec.num_heads /
					 (uint32_t)rows_of(scene, p), block);
	for (uint32_t head = 0; head < scene->spec.num_heads; head++)
		sum += (double)row_score(scene, p, codes, head, head, block);
	return (float)sum;
}

static void check_scores(const struct scene *scene, const struct prepared *p,
			 const struct prepared *codes, const float *scores)
{
	uint32_t width = (uint32_t)width_of(scene, p);

	for (uint32_t i = 0; i < rows_of(scene, p) * width; i++) {
		uint32_t row = i / width, at = i % width;
		uint32_t size = scene->spec.block_size;
		float want = p->method.over == UCM_CODE_EACH
				     ? each_score(scene, p, codes, row,
						  at / size, at % size)
				     : block_score(scene, p, codes, row, at);

		must(scores[i] == want);
	}
}

/* All methods there are for a scene's form, of which this is one. */
#define NUM_METHODS (2 * 3 * 3)

static struct ucm_code_method method_of(const struct scene *scene,
					uint32_t number, uint32_t merged)
{
	return (struct ucm_code_method){
		.measure = number % 2, .over = number / 2 % 3,
		.per = number / 6, .num_heads = scene->query.num_heads,
		.merged_heads = merged,
	};
}

UNIT_TEST(scores_are_counts_of_bits, .rows = NUM_ROWS(ways))
{
	bool can = use_code_way(_i);
	float scores[MAX_SCORES];

	for (unsigned number = 0; can && number < CASES; number++) {
		uint64_t random = random_case(number);
		struct scene scene = scene_make(&random, UCM_CODE_TOKENS);
		uint32_t merged = 1u << random_between(&random, 0, 2);
		struct ucm_code_method method;
		struct prepared codes;

		merged = merged > scene.group ? scene.group : merged;
		method = method_of(&scene, 0, merged);
		codes = prepared_make(&scene, &method);
		scene_build(&scene);
		for (uint32_t i = 0; i < NUM_METHODS; i++) {
			struct prepared p;

			method = method_of(&scene, i, merged);
			p = prepared_make(&scene, &method);
			scene_score(&scene, &p, scores);
			check_scores(&scene, &p, &codes, scores);
			free(p.words);
		}
		free(codes.words);
		scene_free(&scene);
	}
}

/* From one to nine words, all numbers of planes, and more than a chunk. */
UNIT_TEST(long_blocks_and_many_heads_are_the_same_each_way)
{
	const uint32_t groups[] = { 1, 2, 3, 5, 8, 16, 33, 64, 100, 255 };
	const uint32_t bits[] = { 64, 128, 192, 576 };

	for (unsigned number = 0; number < NUM_ROWS(groups) * 4; number++) {
		uint64_t random = random_case(number);
		const struct ucm_code_spec spec = {
			.num_heads = 1, .head_dim = 32,
			.bits = bits[number % 4],
			.block_size = number % 4 == 1 ? 1030 : 9, .norms = 1,
		};
		struct scene scene = scene_of(&spec, &random);
		float *want = get(BLOCKS * sizeof(*want));
		float *got = get(BLOCKS * sizeof(*got));
		struct prepared p;

		free(scene.memory);
		scene.group = groups[number / 4];
		scene.query.num_heads = scene.group;
		scene.query.dtype = UCM_DTYPE_FLOAT32;
		scene.query.stride_head = spec.head_dim;
		scene.memory = get(scene.group * spec.head_dim * sizeof(float));
		for (uint32_t i = 0; i < scene.group * spec.head_dim; i++)
			((float *)scene.memory)[i] = random_float(&random, 1);
		scene.query.base = scene.memory;
		scene_build(&scene);
		for (uint32_t i = 0; i < NUM_METHODS; i++) {
			struct ucm_code_method method = method_of(&scene, i, 1);

			if (method.over == UCM_CODE_EACH ||
			    method.per == UCM_SCORE_HEAD ||
			    !ucm_code_query_words(&spec, &method))
				continue;
			for (size_t way = 0; way < NUM_ROWS(ways); way++) {
				if (!ucm_code_kernels_use(ways[way]))
					continue;
				p = prepared_make(&scene, &method);
				scene_score(&scene, &p, way ? got : want);
				free(p.words);
				must(!way || !memcmp(want, got, BLOCKS *
							 sizeof(*want)));
			}
		}
		free(want);
		free(got);
		scene_free(&scene);
	}
}

/* The group's planes: what its heads have, added up. */
UNIT_TEST(a_group_s_distance_is_the_sum_of_its_heads)
{
	for (uint32_t heads = 1; heads <= 255; heads++) {
		uint32_t weights[UCM_CODE_PLANES];
		uint32_t num = ucm_code_weights(heads, weights), all = 0;

		must(weights[num - 1] == 1);
		must(num == 32 - (uint32_t)__builtin_clz(heads));
		for (uint32_t i = 0; i < num; i++)
			all += weights[i];
		must(all == heads);
		for (uint32_t count = 0; count <= heads; count++) {
			uint32_t which = ucm_code_sum_of(count, weights, num);

			all = 0;
			for (uint32_t i = 0; i < num; i++)
				all += which >> i & 1 ? weights[i] : 0;
			must(all == count);
		}
	}
}

UNIT_TEST(counts_give_the_sum_of_the_tokens, .rows = NUM_ROWS(ways))
{
	bool can = use_code_way(_i);
	float want[MAX_SCORES], got[MAX_SCORES];

	for (unsigned number = 0; can && number < CASES / 4; number++) {
		uint64_t random = random_case(number);
		struct ucm_code_spec spec = random_code_spec(&random,
							     UCM_CODE_COUNTS);
		struct scene counts, tokens;
		uint64_t again;

		spec.block_size = (uint32_t)random_between(&random, 1, 300);
		again = random;
		counts = scene_of(&spec, &again);
		again = random;
		spec.form = UCM_CODE_TOKENS;
		tokens = scene_of(&spec, &again);
		scene_build(&counts);
		scene_build(&tokens);
		for (uint32_t i = 0; i < NUM_METHODS; i++) {
			struct ucm_code_method method = method_of(&counts, i,
								  1);
			struct prepared p;

			if (method.over != UCM_CODE_SUM)
				continue;
			p = prepared_make(&counts, &method);
			scene_score(&counts, &p, got);
			scene_score(&tokens, &p, want);
			must(!memcmp(want, got, rows_of(&counts, &p) * BLOCKS *
							sizeof(*want)));
			free(p.words);
		}
		scene_free(&counts);
		scene_free(&tokens);
	}
}

/* ---- queries ---- */

static double query_value(const struct scene *scene, uint32_t head, uint32_t c)
{
	return load_number((const uint8_t *)scene->query.base +
				   (head * (size_t)scene->query.stride_head +
				    c) * type_bytes(scene->query.dtype),
			   scene->query.dtype);
}

/* Code number i of a key head: the mean of the heads that are merged. */
static void merged_query(const struct scene *scene, const struct prepared *p,
			 uint32_t key_head, uint32_t i, float *out)
{
	for (uint32_t c = 0; c < scene->spec.head_dim; c++) {
		double sum = 0;

		for (uint32_t j = 0; j < p->method.merged_heads; j++)
			sum += query_value(scene, key_head * scene->group + i +
							  j * p->codes, c);
		out[c] = (float)(sum / p->method.merged_heads);
	}
}

static void check_query(const struct scene *scene, const struct prepared *p,
			uint32_t row)
{
	float query[160];
	double off, most = 0;
	uint32_t first = 0;
	bool signs = p->method.measure == UCM_CODE_HAMMING;

	merged_query(scene, p, row / p->codes, row % p->codes, query);
	for (uint32_t part = 0; part < scene->parts; part++) {
		for (uint32_t j = 0; j < scene->part[part].bits; j++) {
			double x = product(scene, query, part, j, &off);
			double unit = (double)unit_of(p, row);

			/* the mean of heads is rounded, too */
			off = off * 4 + 1e-6;
			most = fmax(most, fabs(x));
			if (signs)
				must(fabs(x) <= off ||
				     prepared_bit(p, row, first + j, 0) ==
					     (x > 0));
			else
				must(fabs(x - unit * level_of(p, row,
							      first + j)) <=
				     unit + off);
		}
		first += scene->part[part].words * 64;
	}
	must(signs || fabs((double)unit_of(p, row) * 16 - most) <=
			      most * 1e-5 + 1e-6);
}

UNIT_TEST(a_query_is_encoded_as_keys_are_or_in_16_levels,
	  .rows = NUM_ROWS(ways))
{
	bool can = use_code_way(_i);

	for (unsigned number = 0; can && number < CASES; number++) {
		uint64_t random = random_case(number);
		struct scene scene = scene_make(&random, UCM_CODE_TOKENS);
		uint32_t merged = 1u << random_between(&random, 0, 2);

		merged = merged > scene.group ? scene.group : merged;
		for (uint32_t measure = 0; measure < 2; measure++) {
			struct ucm_code_method method = method_of(
				&scene, measure, merged);
			struct prepared p = prepared_make(&scene, &method);

			for (uint32_t i = 0; i < p.codes * scene.spec.num_heads;
			     i++)
				check_query(&scene, &p, i);
			free(p.words);
		}
		scene_free(&scene);
	}
}

/* MLA's two parts of a query may lie apart. */
UNIT_TEST(rope_s_channels_may_lie_elsewhere)
{
	const struct ucm_code_spec spec = {
		.num_heads = 1, .head_dim = 96, .rope_dim = 32, .bits = 64,
		.rope_bits = 32, .block_size = 4, .seed = 5,
	};
	uint64_t random = random_case(0);
	struct scene scene = scene_of(&spec, &random);
	struct ucm_query nope = scene.query, rope = scene.query;
	struct ucm_code_method method = method_of(&scene, 1, 1);
	struct prepared p = prepared_make(&scene, &method);
	size_t num = ucm_code_query_words(&spec, &method);
	uint64_t *apart = get(num * sizeof(*apart));
	size_t item = type_bytes(scene.query.dtype);
	uint8_t *elsewhere = get(scene.query.num_heads * 32 * item);

	for (uint32_t i = 0; i < scene.query.num_heads; i++)
		memcpy(elsewhere + i * 32 * item,
		       scene.memory + ((size_t)scene.query.stride_head * i +
				       64) * item, 32 * item);
	rope.base = elsewhere;
	rope.stride_head = 32;
	must(!ucm_code_query_prepare(scene.encoder, &method, &nope, &rope,
				     apart, NULL));
	must(!memcmp(apart, p.words, num * sizeof(*apart)));
	free(apart);
	free(elsewhere);
	free(p.words);
	scene_free(&scene);
}

/* ---- what follows from the formulas ---- */

UNIT_TEST(an_estimate_is_off_by_no_more_than_is_promised)
{
	float scores[MAX_SCORES];

	for (unsigned number = 0; number < CASES; number++) {
		uint64_t random = random_case(number);
		struct scene scene = scene_make(&random, UCM_CODE_TOKENS);
		struct ucm_code_method method = {
			UCM_CODE_ESTIMATE, UCM_CODE_EACH, UCM_SCORE_HEAD,
			scene.query.num_heads, 1,
		};
		uint32_t width = BLOCKS * scene.spec.block_size, blocks = 0;
		struct prepared p = prepared_make(&scene, &method);

		for (uint32_t i = 0; i < scene.parts; i++)
			blocks = (uint32_t)fmax(
				blocks, ceil(scene.part[i].bits /
					     (double)scene.part[i].dim));
		scene_build(&scene);
		scene_score(&scene, &p, scores);
		for (uint32_t i = 0; scene.spec.norms &&
				     i < scene.query.num_heads * width; i++) {
			uint32_t block = i % width / scene.spec.block_size;
			uint32_t token = i % scene.spec.block_size;
			uint32_t head = i / width / scene.group;
			double bits = scene.spec.bits + scene.spec.rope_bits;
			double f, qk = 0, qq = 0, kk = 0, bound;
			float key[160];

			if (token >= tokens_of(&scene, block))
				continue;
			key_of(&scene, block, head, token, key);
			for (uint32_t c = 0; c < scene.spec.head_dim; c++) {
				double q = query_value(&scene, i / width, c);

				qk += q * (double)key[c];
				qq += q * q;
				kk += (double)key[c] * (double)key[c];
			}
			f = stored_norm(&scene, block, head, token) *
			    (1 + 0x1p-8);
			bound = sqrt(qq) * sqrt(fmax(blocks * bits * f * f - kk,
						     0)) +
				bits * f * (double)unit_of(&p, i / width);
			must(fabs((double)scores[i] - qk) <=
			     bound * (1 + 1e-4) +
				     0x1.1p-8 * fabs((double)scores[i]) + 1e-4);
		}
		free(p.words);
		scene_free(&scene);
	}
}

/* Two vectors of one head, and their score for a seed. */
static float score_of_seed(uint64_t seed, uint32_t measure, uint32_t dim,
			   const float *key, const float *query)
{
	const struct ucm_code_spec spec = {
		.num_heads = 1, .head_dim = dim, .bits = (dim + 7) / 8 * 8,
		.block_size = 1, .norms = 1, .seed = seed,
	};
	const struct ucm_code_method method = { measure, UCM_CODE_BEST,
						UCM_SCORE_HEAD, 1, 1 };
	const struct ucm_keys keys = { key, UCM_DTYPE_FLOAT32, 1, 0, 0, 0 };
	const struct ucm_query q = { query, UCM_DTYPE_FLOAT32, 1, 0 };
	size_t bytes = ucm_code_bytes(&spec);
	struct ucm_repr_slab slab = { get(bytes), 1, bytes };
	void *encoder = get(ucm_code_encoder_bytes(&spec));
	uint64_t *words = get(8 * ucm_code_query_words(&spec, &method));
	float score;
	struct ucm_code_request request = { .query = words, .slab = &slab,
					    .num = 1, .scores = &score };

	must(!ucm_code_encoder_make(&spec, NULL, encoder, NULL));
	must(!ucm_code_build(encoder, &keys, NULL, 1, 1, &slab, NULL, NULL));
	must(!ucm_code_query_prepare(encoder, &method, &q, NULL, words, NULL));
	must(!ucm_code_score(&spec, &method, &request, 1, NULL));
	free(slab.base);
	free(encoder);
	free(words);
	return score;
}

/* The same seeds each time: what is likely here is certain. */
UNIT_TEST(over_seeds_an_estimate_is_right_on_average)
{
	enum { DIM = 32, SEEDS = 2000 };
	float key[DIM], query[DIM];
	double sum = 0, squares = 0, qk = 0;
	uint64_t random = 1;

	for (int c = 0; c < DIM; c++) {
		key[c] = random_float(&random, 1);
		query[c] = random_float(&random, 1) + key[c];
		qk += (double)key[c] * (double)query[c];
	}
	for (int seed = 0; seed < SEEDS; seed++) {
		double off = (double)score_of_seed((uint64_t)seed,
						   UCM_CODE_ESTIMATE, DIM, key,
						   query) - qk;

		sum += off;
		squares += off * off;
	}
	ck_assert(fabs(sum) < 4 * sqrt(squares));
	ck_assert(sqrt(squares / SEEDS) < 0.2 * fabs(qk));
}

/* bits * angle / pi; and orthogonal columns make it vary less than independent
 * ones would (Ji and others, NIPS 2012). */
UNIT_TEST(a_distance_is_an_angle)
{
	enum { DIM = 32, SEEDS = 2000 };
	float key[DIM] = { 1 }, query[DIM] = { 0.5f, 0.8660254f };
	double sum = 0, squares = 0, mean = DIM / 3.0;

	for (int seed = 0; seed < SEEDS; seed++) {
		double off = 0 - (double)score_of_seed((uint64_t)seed,
						       UCM_CODE_HAMMING, DIM,
						       key, query) - mean;

		sum += off;
		squares += off * off;
	}
	ck_assert(fabs(sum) < 4 * sqrt(squares));
	ck_assert(squares / SEEDS < DIM * (1 / 3.0) * (2 / 3.0) * 0.9);
}

/* Of the 10 keys with the largest products, how many are among the 10 with the
 * best scores? By chance, one in 51. */
static unsigned found(const float *products, const float *scores, size_t num)
{
	unsigned both = 0;

	for (size_t i = 0; i < num; i++) {
		unsigned more = 0, better = 0;

		for (size_t j = 0; j < num; j++) {
			more += products[j] > products[i];
			better += scores[j] > scores[i] ||
				  (j < i && scores[j] >= scores[i]);
		}
		both += more < 10 && better < 10;
	}
	return both;
}

UNIT_TEST(the_nearest_keys_are_found)
{
	enum { DIM = 64, KEYS = 512, QUERIES = 30 };
	const struct ucm_code_spec spec = {
		.num_heads = 1, .head_dim = DIM, .bits = DIM,
		.block_size = KEYS, .norms = 1,
	};
	static float keys_of[KEYS][DIM], query[DIM], products[KEYS];
	static float scores[KEYS];
	const struct ucm_keys keys = { keys_of, UCM_DTYPE_FLOAT32, 1, 0, DIM,
				       0 };
	const struct ucm_query q = { query, UCM_DTYPE_FLOAT32, 1, 0 };
	size_t bytes = ucm_code_bytes(&spec);
	struct ucm_repr_slab slab = { get(bytes), 1, bytes };
	void *encoder = get(ucm_code_encoder_bytes(&spec));
	uint64_t random = 1, *words = get(8 * 64);
	unsigned hits[2] = { 0 };

	for (int i = 0; i < KEYS * DIM; i++)
		keys_of[i / DIM][i % DIM] = random_float(&random, 1) +
					    random_float(&random, 1);
	must(!ucm_code_encoder_make(&spec, NULL, encoder, NULL));
	must(!ucm_code_build(encoder, &keys, NULL, 1, KEYS, &slab, NULL, NULL));
	for (int i = 0; i < QUERIES * 2; i++) {
		uint32_t measure = (uint32_t)i % 2;
		const struct ucm_code_method method = {
			measure, UCM_CODE_EACH, UCM_SCORE_HEAD, 1, 1,
		};
		struct ucm_code_request request = {
			.query = words, .slab = &slab, .num = 1,
			.scores = scores,
		};

		for (int c = 0; !measure && c < DIM; c++)
			query[c] = random_float(&random, 1);
		for (int k = 0; k < KEYS; k++) {
			products[k] = 0;
			for (int c = 0; c < DIM; c++)
				products[k] += query[c] * keys_of[k][c];
		}
		must(ucm_code_query_words(&spec, &method) <= 64);
		must(!ucm_code_query_prepare(encoder, &method, &q, NULL, words,
					     NULL));
		must(!ucm_code_score(&spec, &method, &request, 1, NULL));
		hits[measure] += found(products, scores, KEYS);
	}
	ck_assert_uint_gt(hits[0], 10 * QUERIES / 8);
	ck_assert_uint_gt(hits[1], hits[0] * 5 / 4);
	free(slab.base);
	free(encoder);
	free(words);
}

/* ---- wrong arguments ---- */

static const struct ucm_code_spec right_spec = {
	.form = UCM_CODE_TOKENS, .num_heads = 2, .head_dim = 8, .bits = 16,
	.block_size = 3, .seed = 1,
};

UNIT_TEST(wrong_specs_are_named)
{
	const struct ucm_code_spec right = right_spec;
	struct ucm_code_spec spec;
	struct ucm_error error;
	void *memory = get(1 << 20);

#define REFUSED(word, ...)                                                    \
	do {                                                                  \
		spec = right;                                                 \
		__VA_ARGS__;                                                  \
		assert_einval(ucm_code_encoder_make(&spec, NULL, memory,      \
						    &error), error, word);    \
		ck_assert_uint_eq(ucm_code_bytes(&spec), 0);                  \
		ck_assert_uint_eq(ucm_code_encoder_bytes(&spec), 0);          \
		ck_assert_uint_eq(*(uint8_t *)memory, 0xa5);                  \
	} while (0)
	REFUSED("form", spec.form = UCM_CODE_FORMS);
	REFUSED("num_heads", spec.num_heads = 0);
	REFUSED("num_heads", spec.num_heads = 1025);
	REFUSED("head_dim", spec.head_dim = 0);
	REFUSED("head_dim", spec.head_dim = 1025);
	REFUSED("block_size", spec.block_size = 0);
	REFUSED("block_size", spec.block_size = 65537);
	REFUSED("bits", spec.bits = 0);
	REFUSED("bits", spec.bits = 12);
	REFUSED("bits", spec.bits = 4104);
	REFUSED("rope_dim", spec.rope_dim = 8);
	REFUSED("rope_bits", spec.rope_dim = 4);
	REFUSED("rope_bits", spec.rope_bits = 8);
	REFUSED("rope_bits", spec.rope_dim = 4; spec.rope_bits = 9);
	REFUSED("bits", spec.rope_dim = 4; spec.rope_bits = 4088);
	REFUSED("norms", spec.norms = 2);
	REFUSED("norms", spec.norms = 1; spec.form = UCM_CODE_COUNTS);
	REFUSED("norms", spec.norms = 1; spec.head_dim = 17);
#undef REFUSED
	assert_einval(ucm_code_encoder_make(NULL, NULL, memory, &error), error,
		      "spec");
	assert_einval(ucm_code_encoder_make(&right, NULL, NULL, &error), error,
		      "memory");
	assert_einval(ucm_code_encoder_make(&right, NULL, (char *)memory + 4,
					    &error), error, "memory");
	for (int i = 0; i < 3; i++) {
		static const float wrong[] = { NAN, INFINITY, 0x1.1p40f };
		float centers[16] = { [13] = wrong[i] };

		assert_einval(ucm_code_encoder_make(&right, centers, memory,
						    &error), error,
			      "centers: number 13");
	}
	ck_assert_uint_eq(*(uint8_t *)memory, 0xa5);
	ck_assert_uint_eq(ucm_code_bytes(NULL), 0);
	ck_assert_ptr_null(ucm_code_matrix(memory, 0, &(size_t){ 0 }));
	ck_assert_int_eq(ucm_code_encoder_make(&right, NULL, memory, NULL), 0);
	ck_assert_ptr_null(ucm_code_matrix(memory, 1, &(size_t){ 0 }));
	ck_assert_ptr_null(ucm_code_matrix(NULL, 0, &(size_t){ 0 }));
	free(memory);
}

UNIT_TEST(wrong_keys_and_slabs_are_named)
{
	struct ucm_code_spec spec = right_spec;
	float data[2 * 3 * 2 * 8] = { 0 };
	const struct ucm_keys right = { data, UCM_DTYPE_FLOAT32, 2, 48, 16, 8 };
	struct ucm_keys keys = right;
	size_t bytes = ucm_code_bytes(&spec);
	const struct ucm_repr_slab right_slab = { get(2 * bytes), 2, bytes };
	struct ucm_repr_slab slab = right_slab;
	void *encoder = get(ucm_code_encoder_bytes(&spec));
	const int32_t wrong[] = { 0, 2 };
	struct ucm_error error;
	uint8_t *first = slab.base;

	must(!ucm_code_encoder_make(&spec, NULL, encoder, NULL));
#define BUILD(blocks, slots, last)                                            \
	ucm_code_build(encoder, &keys, blocks, 2, last, &slab, slots, &error)
#define REFUSED(word, ...)                                                    \
	do {                                                                  \
		__VA_ARGS__;                                                  \
		assert_einval(BUILD(NULL, NULL, 3), error, word);             \
		ck_assert_uint_eq(*first, 0xa5);                              \
		keys = right;                                                 \
		slab = right_slab;                                            \
	} while (0)
	REFUSED("keys is NULL", keys.base = NULL);
	REFUSED("keys: dtype", keys.dtype = UCM_DTYPE_INT8);
	REFUSED("stride_block", keys.stride_token = INT64_MAX);
	REFUSED("blocks", keys.num_blocks = 1);
	REFUSED("slab is NULL", slab.base = NULL);
	REFUSED("slab is not aligned to 8", slab.base = first + 4);
	REFUSED("stride_bytes", slab.stride_bytes = bytes - 8);
	REFUSED("stride_bytes", slab.stride_bytes = bytes + 4);
	REFUSED("num_slots", slab.num_slots = UINT64_MAX);
	REFUSED("slots", slab.num_slots = 1);
	assert_einval(BUILD(wrong, NULL, 3), error, "blocks: number 1 is 2");
	assert_einval(BUILD(NULL, wrong, 3), error, "slots: number 1 is 2");
	assert_einval(BUILD(NULL, NULL, 0), error, "last_tokens 0");
	assert_einval(BUILD(NULL, NULL, 4), error, "last_tokens 4");
	data[48 + 2 * 16 + 8 + 7] = NAN;
	assert_einval(BUILD(NULL, NULL, 3), error,
		      "keys: block 1, token 2, head 1: not finite");
	ck_assert_int_eq(BUILD(NULL, NULL, 2), 0);
	*first = 0xa5;
	data[48 + 2 * 16 + 8 + 7] = -0x1.1p40f;
	ck_assert_int_eq(BUILD(NULL, NULL, 3), -ERANGE);
	ck_assert_str_eq(error.text,
			 "keys: block 1, token 2, head 1: beyond 2^40");
	ck_assert_uint_eq(*first, 0xa5);
	assert_einval(ucm_code_build(NULL, &keys, NULL, 2, 3, &slab, NULL,
				     &error), error, "encoder is NULL");
	assert_einval(ucm_code_build(first, &keys, NULL, 2, 3, &slab, NULL,
				     &error), error, "encoder: none");
#undef REFUSED
#undef BUILD
	free(first);
	free(encoder);
}

UNIT_TEST(wrong_additions_are_named)
{
	struct ucm_code_spec spec = right_spec;
	float data[3 * 2 * 8] = { 0 };
	struct ucm_keys keys = { data, UCM_DTYPE_FLOAT32, 1, 48, 16, 8 };
	void *encoder = get(ucm_code_encoder_bytes(&spec));
	uint8_t *out = get(ucm_code_bytes(&spec) + 8);
	struct ucm_error error;

	must(!ucm_code_encoder_make(&spec, NULL, encoder, NULL));
	assert_einval(ucm_code_add(encoder, &keys, 0, 4, out, &error), error,
		      "num_tokens 4: the block has 0 of 3");
	assert_einval(ucm_code_add(encoder, &keys, 0, 1, NULL, &error), error,
		      "out is NULL");
	assert_einval(ucm_code_add(encoder, &keys, 0, 1, out + 4, &error),
		      error, "out is not aligned");
	assert_einval(ucm_code_add(encoder, &keys, 1, 1, out, &error), error,
		      "first_token 1");
	ck_assert_uint_eq(*out, 0xa5);
	must(!ucm_code_add(encoder, &keys, 0, 2, out, NULL));
	assert_einval(ucm_code_add(encoder, &keys, 1, 1, out, &error), error,
		      "first_token 1: the block has 2");
	assert_einval(ucm_code_add(encoder, &keys, 2, 2, out, &error), error,
		      "num_tokens 2: the block has 2 of 3");
	assert_einval(ucm_code_add(encoder, &keys, UINT32_MAX, 2, out, &error),
		      error, "num_tokens 2");
	keys.num_blocks = 0;
	assert_einval(ucm_code_add(encoder, &keys, 2, 1, out, &error), error,
		      "num_blocks is 0");
	keys.num_blocks = 1;
	data[0] = INFINITY;
	assert_einval(ucm_code_add(encoder, &keys, 2, 1, out, &error), error,
		      "keys: block 0, token 0, head 0");
	data[0] = 0;
	ck_assert_int_eq(ucm_code_add(encoder, &keys, 2, 1, out, NULL), 0);
	free(encoder);
	free(out);
}

UNIT_TEST(wrong_methods_and_queries_are_named)
{
	struct ucm_code_spec spec = right_spec;
	const struct ucm_code_method right = { UCM_CODE_HAMMING, UCM_CODE_SUM,
					       UCM_SCORE_GROUP, 8, 2 };
	float data[8 * 8] = { 0 };
	const struct ucm_query right_query = { data, UCM_DTYPE_FLOAT32, 8, 8 };
	struct ucm_code_method method = right;
	struct ucm_query query = right_query, rope = right_query, *apart = NULL;
	void *encoder = get(ucm_code_encoder_bytes(&spec));
	struct ucm_error error;
	uint64_t out[64] = { 1 };

	must(!ucm_code_encoder_make(&spec, NULL, encoder, NULL));
#define REFUSED(err, word, ...)                                               \
	do {                                                                  \
		__VA_ARGS__;                                                  \
		ck_assert_int_eq(ucm_code_query_prepare(encoder, &method,     \
							&query, apart, out,   \
							&error), err);        \
		ck_assert_msg(!strncmp(error.text, word, strlen(word)), "%s", \
			      error.text);                                    \
		ck_assert(out[0] == 1);                                       \
		query = right_query;                                          \
		method = right;                                               \
	} while (0)
	REFUSED(-EINVAL, "measure", method.measure = UCM_CODE_MEASURES);
	REFUSED(-EINVAL, "over", method.over = UCM_CODE_OVERS);
	REFUSED(-EINVAL, "per", method.per = UCM_SCORE_PERS);
	REFUSED(-EINVAL, "num_heads", method.num_heads = 0);
	REFUSED(-EINVAL, "num_heads", method.num_heads = 7);
	REFUSED(-EINVAL, "num_heads", method.num_heads = 65538);
	REFUSED(-EINVAL, "num_heads: the query", method.num_heads = 12);
	REFUSED(-EINVAL, "num_heads 512: 256", method.num_heads = 512;
		method.merged_heads = 1);
	REFUSED(-EINVAL, "merged_heads 0", method.merged_heads = 0);
	REFUSED(-EINVAL, "merged_heads 3", method.merged_heads = 3);
	REFUSED(-EINVAL, "query is NULL", query.base = NULL);
	REFUSED(-EINVAL, "query: dtype", query.dtype = UCM_DTYPE_INT8);
	REFUSED(-EINVAL, "stride_head", query.stride_head = INT64_MIN);
	REFUSED(-EINVAL, "num_heads", query.num_heads = 4);
	REFUSED(-EINVAL, "rope", apart = &rope);
	apart = NULL;
	REFUSED(-EINVAL, "query: head 7 is not finite", data[63] = NAN);
	REFUSED(-ERANGE, "query: head 7 is beyond", data[63] = 0x1p41f);
	data[63] = 0;
#undef REFUSED
	assert_einval(ucm_code_query_prepare(encoder, NULL, &query, NULL, out,
					     &error), error, "method is NULL");
	assert_einval(ucm_code_query_prepare(encoder, &method, &query, NULL,
					     NULL, &error), error,
		      "out is NULL");
	assert_einval(ucm_code_query_prepare(NULL, &method, &query, NULL, out,
					     &error), error, "encoder");
	spec.form = UCM_CODE_COUNTS;
	ck_assert_uint_gt(ucm_code_query_words(&spec, &method), 0);
	method.over = UCM_CODE_BEST;
	ck_assert_uint_eq(ucm_code_query_words(&spec, &method), 0);
	ck_assert_uint_eq(ucm_code_query_words(NULL, &method), 0);
	/* 65536 tokens of 16 bits, 4 codes in 2 groups, are more than 2^24 */
	method.over = UCM_CODE_SUM;
	method.per = UCM_SCORE_BLOCK;
	spec.block_size = 65536;
	ck_assert_uint_gt(ucm_code_query_words(&spec, &method), 0);
	spec.bits = 256;
	ck_assert_uint_eq(ucm_code_query_words(&spec, &method), 0);
	method.measure = UCM_CODE_ESTIMATE;
	ck_assert_uint_gt(ucm_code_query_words(&spec, &method), 0);
	free(encoder);
}

UNIT_TEST(wrong_requests_spoil_all)
{
	struct ucm_code_spec spec = right_spec;
	struct ucm_code_method method = { UCM_CODE_HAMMING, UCM_CODE_EACH,
					  UCM_SCORE_GROUP, 2, 1 };
	size_t bytes = ucm_code_bytes(&spec);
	struct ucm_repr_slab slab = { get(2 * bytes), 2, bytes };
	const int32_t slots[] = { 0, 1 }, above[] = { 0, 2 };
	uint64_t query[4] = { ucm_float_bits(1), 0, ucm_float_bits(1), 0 };
	float scores[16] = { 5 };
	const struct ucm_code_request right = {
		.query = query, .slab = &slab, .slots = slots, .num = 2,
		.scores = scores, .stride = 6,
	};
	struct ucm_code_request requests[] = { right, right };
	struct ucm_error error;

	memset(slab.base, 0, 2 * bytes);
#define REFUSED(field, value, word)                                           \
	do {                                                                  \
		requests[1] = right;                                          \
		requests[1].field = value;                                    \
		assert_einval(ucm_code_score(&spec, &method, requests, 2,     \
					     &error), error,                  \
			      "request 1: " word);                            \
		assert_einval(ucm_code_score(&spec, &method, requests + 1, 1, \
					     &error), error, word);           \
		ck_assert(scores[0] == 5);                                    \
	} while (0)
	REFUSED(query, NULL, "query");
	REFUSED(scores, NULL, "scores");
	REFUSED(slab, NULL, "slab");
	REFUSED(slots, above, "slots: number 1 is 2");
	REFUSED(stride, 5, "stride 5: at least 6");
	requests[1] = right;
	requests[1].slots = NULL;
	requests[1].first_slot = 1;
	assert_einval(ucm_code_score(&spec, &method, requests, 2, &error),
		      error, "request 1: first_slot");
#undef REFUSED
	assert_einval(ucm_code_score(&spec, &method, NULL, 1, &error), error,
		      "requests");
	assert_einval(ucm_code_score(&spec, NULL, &right, 1, &error), error,
		      "method");
	assert_einval(ucm_code_score(NULL, &method, &right, 1, &error), error,
		      "spec");
	ck_assert_int_eq(ucm_code_score(&spec, &method, NULL, 0, NULL), 0);
	ck_assert(scores[0] == 5);

	/* a block without tokens; and with more than can be */
	ck_assert_int_eq(ucm_code_score(&spec, &method, &right, 1, NULL), 0);
	ck_assert(scores[0] == -INFINITY && scores[11] == -INFINITY);
	memset(slab.base, 0xff, 2 * bytes);
	ck_assert_int_eq(ucm_code_score(&spec, &method, &right, 1, NULL), 0);
	ck_assert(scores[0] == -64 && scores[12] == 0);
	free(slab.base);
}
