/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_attention_rerope.c - attention by ReRoPE is what its formula says, by
 * every way to compute it.
 */
#include <config.h>

#include "sparse/rerope.h"
#include "tests/unit/sparse/attention_fixture.h"

/* ---- ReRoPE ---- */

/* x rotated by so many positions, in double, from the definition. */
static void naive_rotate(const struct ucm_rerope *rerope, double *x,
			 double positions)
{
	const struct ucm_rope *rope = &rerope->rope;
	uint32_t dim = rope->rotary_dim ? rope->rotary_dim : rope->head_dim;
	double f[48];

	must(!ucm_rope_frequencies(rope, f, 48, NULL));
	for (uint32_t i = 0; i < dim / 2; i++) {
		uint32_t a = rope->pairing ? 2 * i : i;
		uint32_t b = rope->pairing ? a + 1 : i + dim / 2;
		double c = cos(f[i] * positions), d = sin(f[i] * positions);
		double u = x[a], v = x[b];

		x[a] = u * c - v * d;
		x[b] = v * c + u * d;
	}
}

/* Un-rotate both, and rotate them to where ReRoPE sees them. */
static double seen_product(const struct scene *s,
			   const struct ucm_rerope *rerope, uint32_t head,
			     uint32_t token, uint32_t position)
{
	const struct ucm_attention *a = &s->attention;
	uint32_t group = a->query.num_heads / a->num_heads;
	double q[96], k[96], sum = 0, gain = 1;
	uint32_t distance = a->position - position;

	for (uint32_t i = 0; i < a->head_dim; i++) {
		q[i] = s->query[head * a->head_dim + i];
		k[i] = cache_key(&s->keys, (uint64_t)s->table[token /
							      a->block_size],
				 token % a->block_size, head / group, i);
	}
	naive_rotate(rerope, q, -(double)a->position);
	naive_rotate(rerope, k, -(double)position);
	naive_rotate(rerope, q, distance < rerope->window ? distance
							  : rerope->window);
	for (uint32_t i = 0; i < a->head_dim; i++)
		sum += q[i] * k[i];
	if (rerope->training_length)
		gain = fmax(1, log(a->position + 1.0) /
				       log(rerope->training_length));
	return sum * gain *
	       (a->scale > 0 ? a->scale : 1 / sqrt(a->head_dim));
}

/* The logarithm of the sum, over all tokens. */
static double rerope_lse(const struct scene *s, const struct ucm_rerope *rerope,
			 uint32_t head)
{
	const struct ucm_attention *a = &s->attention;
	double sum = 0;

	for (uint32_t t = 0; t < a->num_tokens; t++) {
		uint32_t block = a->selected ? a->selected[t / a->block_size]
					     : t / a->block_size;

		sum += exp(seen_product(s, rerope, head, t,
					  block * a->block_size +
						  t % a->block_size));
	}
	return log(sum);
}

/* Blocks that stand farther apart in the request than in the table. */
static void spread(struct scene *s, uint32_t *selected, unsigned number)
{
	for (uint32_t i = 0; i < s->num_blocks; i++)
		selected[i] = i * (1 + number % 3) + number % 5;
	s->attention.selected = selected;
	s->attention.position += s->attention.block_size *
				 (selected[s->num_blocks - 1] + 1 -
				  s->num_blocks);
}

UNIT_TEST(rerope_is_what_its_formula_says)
{
	for (unsigned number = 0; number < 60; number++) {
		struct scene *s = scene_make(number);
		struct ucm_rerope rerope = rerope_make(s, number);
		double out[SCENE_OUT], lse[16];
		uint32_t selected[64];

		if (number % 2)
			spread(s, selected, number);
		must(!ucm_rerope_reference(&rerope, &s->attention, out, lse,
					   NULL));
		for (uint32_t h = 0; h < s->attention.query.num_heads; h++) {
			double want = rerope_lse(s, &rerope, h);

			must(fabs(lse[h] - want) <= 1e-9 * fmax(1, fabs(want)));
		}
		scene_free(s);
	}
}

UNIT_TEST(fast_rerope_is_the_reference, .rows = NUM_ROWS(ways))
{
	bool can = use_way(_i);

	for (unsigned number = 0; can && number < 300; number++) {
		struct scene *s = scene_make(number);
		struct ucm_rerope rerope = rerope_make(s, number);
		double out[SCENE_OUT], lse[16];
		struct decoded got, plain;
		uint32_t selected[64];

		if (number % 2)
			spread(s, selected, number);
		mark(&got);
		mark(&plain);
		must(!ucm_rerope_reference(&rerope, &s->attention, out, lse,
					   NULL));
		must(use_way(_i));
		must(!run_decode(&rerope, &s->attention, &got, NULL));
		must(ucm_sparse_kernels_use("plain"));
		must(!run_decode(&rerope, &s->attention, &plain, NULL));
		check_decoded(s, &got, out, lse);
		must(!memcmp(&got, &plain, sizeof(got)));
		scene_free(s);
	}
}

UNIT_TEST(a_window_beyond_the_request_is_plain_attention_bit_for_bit)
{
	for (unsigned number = 0; number < 100; number++) {
		struct scene *s = scene_make(number);
		struct ucm_rerope rerope = rerope_make(s, number);
		double a[SCENE_OUT] = { 0 }, b[SCENE_OUT] = { 0 };
		struct decoded c, d;

		mark(&c);
		mark(&d);
		rerope.window = s->attention.position + 1;
		if (rerope.training_length)
			rerope.training_length = s->attention.position + 2;
		must(!ucm_attention_reference(&s->attention, a, NULL, NULL));
		must(!ucm_rerope_reference(&rerope, &s->attention, b, NULL,
					   NULL));
		must(!memcmp(a, b, sizeof(a)));
		must(!run_decode(NULL, &s->attention, &c, NULL));
		must(!run_decode(&rerope, &s->attention, &d, NULL));
		must(!memcmp(&c, &d, sizeof(c)));
		scene_free(s);
	}
}

UNIT_TEST(a_token_as_far_as_the_window_is_the_first_far_one)
{
	for (uint32_t window = 1; window < 9; window++) {
		for (uint32_t first = 0; first < 9; first++) {
			uint32_t far = ucm_rerope_far(8, window, first, 3);

			for (uint32_t t = 0; t < 3; t++)
				must((t < far) == ((int)(8 - first - t) >=
						   (int)window));
		}
	}
}

UNIT_TEST(a_selection_of_rerope_loses_its_share_too)
{
	for (unsigned number = 0; number < 60; number++) {
		struct scene *s = scene_make(number);
		struct ucm_rerope rerope = rerope_make(s, number);
		uint64_t random = random_case(number);
		uint32_t all = (1u << s->num_blocks) - 1;
		uint32_t mask = (uint32_t)random_next(&random) & all;
		uint32_t picked[2][64], num[2] = { 0, 0 };
		double o[3][SCENE_OUT], lse[3][16];
		struct ucm_attention part;
		int32_t table[64];

		for (uint32_t i = 0; i < s->num_blocks; i++) {
			uint32_t side = mask >> i & 1;

			picked[side][num[side]++] = i;
		}
		must(!ucm_rerope_reference(&rerope, &s->attention, o[2], lse[2],
					   NULL));
		for (uint32_t side = 0; side < 2 && num[0] && num[1]; side++) {
			select_blocks(s, side ? mask : ~mask & all, &part,
				      table);
			part.selected = picked[side];
			must(!ucm_rerope_reference(&rerope, &part, o[side],
						   lse[side], NULL));
		}
		for (uint32_t h = 0;
		     num[0] && num[1] && h < s->attention.query.num_heads;
		     h++) {
			double share = exp(lse[0][h] - lse[2][h]);

			for (uint32_t i = 0; i < value_dim(s); i++) {
				uint32_t at = h * value_dim(s) + i;

				must(fabs(o[2][at] - o[1][at] -
					  share * (o[0][at] - o[1][at])) <
				     1e-8);
			}
		}
		scene_free(s);
	}
}
