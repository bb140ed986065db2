/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_code_matrix.c - the random matrices of hash codes, and what follows
 * from the formulas: estimates, angles, and the nearest keys.
 */
#include <config.h>

#include "sparse/code_matrix.h"
#include "tests/unit/sparse/code_fixture.h"

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
