/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_attention.c - attention is what its formula says, over all blocks or
 * over those that are selected; and the same by every way to compute it.
 */
#include <config.h>

#include "sparse/rerope.h"
#include "tests/unit/sparse/attention_fixture.h"

static double product(const struct scene *s, uint32_t head, uint32_t token)
{
	const struct ucm_attention *a = &s->attention;
	uint64_t block = (uint64_t)s->table[token / a->block_size];
	uint32_t group = a->query.num_heads / a->num_heads;
	double sum = 0, scale = a->scale > 0 ? a->scale
					     : 1 / sqrt(a->head_dim);

	for (uint32_t i = 0; i < a->head_dim; i++)
		sum += (double)s->query[head * a->head_dim + i] *
		       (double)cache_key(&s->keys, block,
					 token % a->block_size, head / group,
					 i);
	return scale * sum;
}

/* By the formula, as it stands. */
static void naive_attention(const struct scene *s, uint32_t head, double *out)
{
	const struct ucm_attention *a = &s->attention;
	uint32_t group = a->query.num_heads / a->num_heads;
	double sum = 0;

	for (uint32_t i = 0; i < value_dim(s); i++)
		out[i] = 0;
	for (uint32_t token = 0; token < a->num_tokens; token++) {
		double weight = exp(product(s, head, token));

		sum += weight;
		for (uint32_t i = 0; i < value_dim(s); i++)
			out[i] += weight *
				  (double)cache_key(
					  &s->values,
					  (uint64_t)s->table[token /
							     a->block_size],
					  token % a->block_size, head / group,
					  i);
	}
	for (uint32_t i = 0; i < value_dim(s); i++)
		out[i] /= sum;
	out[value_dim(s)] = log(sum);
}

UNIT_TEST(attention_is_what_the_formula_says)
{
	for (unsigned number = 0; number < 100; number++) {
		struct scene *s = scene_make(number);
		uint32_t dim = value_dim(s);
		double got[SCENE_OUT], lse[16], want[97];

		ck_assert_int_eq(ucm_attention_reference(&s->attention, got,
							 lse, NULL), 0);
		for (uint32_t h = 0; h < s->attention.query.num_heads; h++) {
			naive_attention(s, h, want);
			must(fabs(lse[h] - want[dim]) <=
			     1e-12 * fmax(1, fabs(want[dim])));
			for (uint32_t i = 0; i < dim; i++)
				must(fabs(got[h * dim + i] - want[i]) <=
				     1e-10);
		}
		scene_free(s);
	}
}

UNIT_TEST(what_a_selection_loses_is_its_share_of_the_attention)
{
	for (unsigned number = 0; number < 100; number++) {
		struct scene *s = scene_make(number);
		uint64_t random = random_case(number);
		uint32_t mask = (uint32_t)random_next(&random);
		uint32_t all = (1u << s->num_blocks) - 1;
		struct ucm_attention kept, dropped;
		double o[SCENE_OUT], o_kept[SCENE_OUT], o_dropped[SCENE_OUT];
		double lse[16], lse_kept[16], lse_dropped[16];
		int32_t table[64], rest[64];

		if (!select_blocks(s, mask & all, &kept, table) ||
		    !select_blocks(s, ~mask & all, &dropped, rest)) {
			scene_free(s);
			continue;
		}
		must(!ucm_attention_reference(&s->attention, o, lse, NULL));
		must(!ucm_attention_reference(&kept, o_kept, lse_kept, NULL));
		must(!ucm_attention_reference(&dropped, o_dropped, lse_dropped,
					      NULL));
		for (uint32_t h = 0; h < s->attention.query.num_heads; h++) {
			double share = exp(lse_dropped[h] - lse[h]);

			must(fabs(share + exp(lse_kept[h] - lse[h]) - 1) <
			     1e-12);
			for (uint32_t i = 0; i < value_dim(s); i++) {
				uint32_t at = h * value_dim(s) + i;

				must(fabs(o[at] - o_kept[at] -
					  share * (o_dropped[at] -
						   o_kept[at])) < 1e-10);
			}
		}
		scene_free(s);
	}
}

/* The budget, scores and selection of all blocks: of ratio 1. */
static void select_all(const struct scene *s, struct ucm_attention *out,
		       int32_t *table)
{
	struct ucm_budget_config config = {
		.block_size = s->attention.block_size, .ratio = 1,
		.windows = { .initial_blocks = 1, .local_blocks = 2 },
	};
	uint32_t selected[64], num;
	struct ucm_budget budget;
	float scores[64];

	for (uint32_t i = 0; i < 64; i++)
		scores[i] = (float)(i * 37 % 11);
	must(!ucm_budget_blocks(&config, s->attention.num_tokens, &budget,
				NULL));
	must(!ucm_select(scores, &budget, selected, 64, &num, NULL));
	*out = s->attention;
	must(!ucm_select_table(s->table, config.block_size,
			       s->attention.num_tokens, selected, num, table,
			       64, &out->num_tokens, NULL));
	out->table = table;
}

UNIT_TEST(a_selection_of_ratio_1_is_dense_attention_bit_for_bit)
{
	for (unsigned number = 0; number < 100; number++) {
		struct scene *s = scene_make(number);
		struct ucm_attention all;
		double a[SCENE_OUT] = { 0 }, b[SCENE_OUT] = { 0 };
		int32_t table[64];

		select_all(s, &all, table);
		must(!ucm_attention_reference(&s->attention, a, NULL, NULL));
		must(!ucm_attention_reference(&all, b, NULL, NULL));
		must(!memcmp(a, b, sizeof(a)));
		scene_free(s);
	}
}

UNIT_TEST(large_products_do_not_overflow)
{
	struct scene *s = scene_make(3);
	double out[SCENE_OUT], lse[16];

	s->attention.scale = 1e30;
	must(!ucm_attention_reference(&s->attention, out, lse, NULL));
	for (uint32_t i = 0;
	     i < s->attention.query.num_heads * value_dim(s); i++)
		must(isfinite(out[i]));
	scene_free(s);
}

/* ---- one token, fast ---- */

UNIT_TEST(weights_are_exponentials, .rows = NUM_ROWS(ways))
{
	bool can = use_way(_i);
	uint64_t random = random_case(0);

	for (int i = 0; can && i < 200000; i++) {
		float x[UCM_TILE_TOKENS], most = random_float(&random, 40);
		float want[UCM_TILE_TOKENS];

		for (uint32_t j = 0; j < UCM_TILE_TOKENS; j++) {
			x[j] = most - fabsf(random_float(&random, j % 2 ? 95
									: 1));
			if (j == 5)
				x[j] = j % 3 ? -INFINITY : most;
			want[j] = x[j] - most;
		}
		ucm_sparse_kernels()->weights(x, most);
		for (uint32_t j = 0; j < UCM_TILE_TOKENS; j++) {
			double e = exp((double)want[j]);

			must(x[j] == ucm_weight(want[j]));
			must(want[j] < -87 ? x[j] == 0
					   : fabs(x[j] - e) <= 0x1p-22 * e);
		}
	}
	ck_assert(ucm_weight(0) == 1);
}

UNIT_TEST(the_fast_way_is_the_reference, .rows = NUM_ROWS(ways))
{
	bool can = use_way(_i);

	for (unsigned number = 0; can && number < 200; number++) {
		struct scene *s = scene_make(number);
		double out[SCENE_OUT], lse[16];
		struct decoded got, plain;

		mark(&got);
		mark(&plain);
		must(!ucm_attention_reference(&s->attention, out, lse, NULL));
		must(use_way(_i));
		must(!run_decode(NULL, &s->attention, &got, NULL));
		must(ucm_sparse_kernels_use("plain"));
		must(!run_decode(NULL, &s->attention, &plain, NULL));
		check_decoded(s, &got, out, lse);
		must(!memcmp(&got, &plain, sizeof(got)));
		scene_free(s);
	}
}

UNIT_TEST(a_fast_selection_of_ratio_1_is_dense_bit_for_bit)
{
	for (unsigned number = 0; number < 100; number++) {
		struct scene *s = scene_make(number);
		struct decoded a, b;
		struct ucm_attention all;
		int32_t table[64];

		mark(&a);
		mark(&b);
		select_all(s, &all, table);
		must(!run_decode(NULL, &s->attention, &a, NULL));
		must(!run_decode(NULL, &all, &b, NULL));
		must(!memcmp(&a, &b, sizeof(a)));
		scene_free(s);
	}
}

UNIT_TEST(what_is_too_large_for_floats_is_out_of_range)
{
	struct scene *s = scene_make(3);
	struct ucm_error error;
	struct decoded got, marked;

	mark(&got);
	mark(&marked);
	s->attention.scale = 1e300;
	ck_assert_int_eq(run_decode(NULL, &s->attention, &got, &error),
			 -ERANGE);
	must(!memcmp(&got, &marked, sizeof(got)));
	ck_assert_msg(!strncmp(error.text, "head 0", 6), "%s", error.text);
	scene_free(s);
}
