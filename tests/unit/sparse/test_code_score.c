/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_code_score.c - scores by hash codes are counts of bits, exactly; all
 * ways give the same.
 */
#include <config.h>

#include "sparse/code.h"
#include "tests/unit/sparse/code_fixture.h"

/* ---- scores ---- */

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
