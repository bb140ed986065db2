/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_code.c - hash codes are the signs that are promised, of keys and of
 * queries; all ways give the same.
 */
#include <config.h>

#include "sparse/code.h"
#include "tests/unit/sparse/code_fixture.h"

static uint32_t stored_tokens(const struct scene *scene, uint32_t block)
{
	uint32_t tokens;

	memcpy(&tokens, slot_of(scene, block) +
				scene->spec.num_heads * head_bytes(scene), 4);
	return tokens;
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

/* ---- queries ---- */

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
