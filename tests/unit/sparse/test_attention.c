/* SPDX-License-Identifier: Apache-2.0 */
/* test_attention.c - attention is what its formula says, over all blocks or over
 * those that are selected; and the same by every way to compute it. */
#include <config.h>

#include "sparse/rerope.h"
#include "tests/unit/sparse_fixture.h"

/* A request over a cache, with a table of its own. */
struct scene {
	struct ucm_attention attention;
	struct cache keys, values;
	int32_t table[64];
	float query[16 * 96];
	uint32_t num_blocks;
};

#define SCENE_OUT (16 * 96)

static struct scene *scene_make(unsigned number)
{
	uint64_t random = random_case(number);
	struct scene *s = calloc(1, sizeof(*s));
	struct ucm_repr_spec spec = {
		.num_heads = (uint32_t)random_between(&random, 1, 3),
		.head_dim = 2 * (uint32_t)random_between(&random, 1, 48),
		.block_size = (uint32_t)random_between(&random, 1, 40),
	};
	uint32_t dim = spec.head_dim, there;

	must(s);
	s->num_blocks = (uint32_t)random_between(&random, 1, 20);
	there = s->num_blocks + 3;
	s->keys = cache_make(&spec, input_types[random_between(&random, 0, 2)],
			     there, &random);
	if (random_between(&random, 0, 1))
		spec.head_dim = (uint32_t)random_between(&random, 1, 96);
	s->values = cache_make(&spec,
			       input_types[random_between(&random, 0, 2)],
			       there, &random);
	for (uint32_t i = 0; i < there; i++) {
		uint32_t j = (uint32_t)random_between(&random, 0, i);

		s->table[i] = s->table[j];
		s->table[j] = (int32_t)i;
	}
	s->attention = (struct ucm_attention){
		.query = { NULL, UCM_DTYPE_FLOAT32,
			   spec.num_heads *
				   (uint32_t)random_between(&random, 1, 5),
			   dim },
		.keys = s->keys.keys, .values = s->values.keys,
		.table = s->table, .num_heads = spec.num_heads,
		.head_dim = dim,
		.value_dim = spec.head_dim == dim ? 0 : spec.head_dim,
		.block_size = spec.block_size,
		.scale = random_between(&random, 0, 1) ? 0.02 : 0,
	};
	s->attention.num_tokens = (s->num_blocks - 1) * spec.block_size +
		(uint32_t)random_between(&random, 1, spec.block_size);
	for (size_t i = 0; i < NUM_ROWS(s->query); i++)
		s->query[i] = random_float(&random, .3f);
	s->attention.query.base = s->query;
	return s;
}

static void scene_free(struct scene *s)
{
	free(s->keys.memory);
	free(s->values.memory);
	free(s);
}

static uint32_t value_dim(const struct scene *s)
{
	return s->attention.value_dim ? s->attention.value_dim
				      : s->attention.head_dim;
}

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

/* Attention over the blocks for which chosen() says so; the number of them. */
static uint32_t select_blocks(const struct scene *s, uint32_t mask,
			      struct ucm_attention *out, int32_t *table)
{
	uint32_t selected[64], num = 0;

	for (uint32_t i = 0; i < s->num_blocks; i++) {
		if (mask >> i & 1)
			selected[num++] = i;
	}
	*out = s->attention;
	must(!ucm_select_table(s->table, s->attention.block_size,
			       s->attention.num_tokens, selected, num, table,
			       64, &out->num_tokens, NULL));
	out->table = table;
	return num;
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

/* Room for a scene, with marks behind it. */
struct decoded {
	float out[SCENE_OUT + 1], lse[17];
};

static int run_decode(const struct ucm_rerope *rerope,
		      const struct ucm_attention *a, struct decoded *to,
		      struct ucm_error *error)
{
	size_t num = ucm_attention_floats(a), angles_num = 0;
	float *work = malloc((num + 1) * sizeof(*work)), *angles = NULL;
	int err;

	must(work && num);
	for (size_t i = 0; i <= num; i++)
		work[i] = NAN; /* what is not written must not be read */
	if (rerope) {
		angles_num = ucm_rerope_floats(rerope, a->block_size);
		angles = malloc((angles_num + 1) * sizeof(*angles));
		must(angles && angles_num);
		angles[angles_num] = 77;
		must(!ucm_rerope_prepare(rerope, a->block_size, angles, NULL));
		must(angles[angles_num] == 77);
	}
	work[num] = 77;
	err = rerope ? ucm_rerope_decode(rerope, angles, a, work, to->out,
					 to->lse, error)
		     : ucm_attention_decode(a, work, to->out, to->lse, error);
	must(work[num] == 77);
	free(work);
	free(angles);
	return err;
}

static void mark(struct decoded *decoded)
{
	memset(decoded, 0x55, sizeof(*decoded));
}

/* The largest value and product: what errors are in proportion to. */
static double largest(const struct scene *s, double *products)
{
	double most = 0;

	for (uint32_t t = 0; t < s->attention.num_tokens; t++) {
		uint64_t block = (uint64_t)s->table[t /
						    s->attention.block_size];

		for (uint32_t h = 0; h < s->attention.num_heads; h++)
			for (uint32_t i = 0; i < value_dim(s); i++)
				most = fmax(most, fabs((double)cache_key(
					&s->values, block,
					t % s->attention.block_size, h, i)));
	}
	/* |q| <= .3, |k| <= 100, and scale at most 1 */
	*products = .3 * 100 * s->attention.head_dim *
		    (s->attention.scale > 0 ? s->attention.scale
					    : 1 / sqrt(s->attention.head_dim));
	return most;
}

/* Against the reference; and all that is behind the end is as it was. */
static void check_decoded(const struct scene *s, const struct decoded *got,
			  const double *out, const double *lse)
{
	uint32_t heads = s->attention.query.num_heads, dim = value_dim(s);
	struct decoded marked;
	double products, value = largest(s, &products);
	double off = 0x1p-20 * (4 + products);

	mark(&marked);
	for (uint32_t i = 0; i < heads * dim; i++)
		must(fabs((double)got->out[i] - out[i]) <= off * value);
	for (uint32_t i = 0; i < heads; i++)
		must(fabs((double)got->lse[i] - lse[i]) <=
		     off * fmax(1, fabs(lse[i])));
	must(!memcmp(&got->out[heads * dim], &marked.out[heads * dim],
		     (SCENE_OUT + 1 - heads * dim) * sizeof(float)));
	must(!memcmp(&got->lse[heads], &marked.lse[heads],
		     (17 - heads) * sizeof(float)));
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

/* ---- ReRoPE ---- */

static struct ucm_rerope rerope_make(struct scene *s, unsigned number)
{
	uint64_t random = random_case(number + 100000);
	struct ucm_rerope rerope = {
		.rope = { .pairing = (uint32_t)random_between(&random, 0, 1),
			  .head_dim = s->attention.head_dim, .base = 10000 },
		.window = (uint32_t)random_between(&random, 1,
						   s->attention.num_tokens + 2),
	};

	if (random_between(&random, 0, 1))
		rerope.rope.rotary_dim = 2 * (uint32_t)random_between(
			&random, 1, rerope.rope.head_dim / 2);
	if (random_between(&random, 0, 1)) {
		rerope.rope.scaling = UCM_ROPE_YARN;
		rerope.rope.factor = 4;
		rerope.rope.original_length = 100;
	}
	if (random_between(&random, 0, 1))
		rerope.training_length = (uint32_t)random_between(&random, 2,
								  300);
	s->attention.position = s->attention.num_tokens - 1 +
				(uint32_t)random_between(&random, 0, 5);
	return rerope;
}

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

/* ---- wrong arguments ---- */

typedef void spoil_fn(struct scene *s);

#define SPOIL(name, change)                                                   \
	static void spoil_##name(struct scene *s)                             \
	{                                                                     \
		struct ucm_attention *a = &s->attention;                      \
		(void)a;                                                      \
		change;                                                       \
	}
SPOIL(tokens, a->num_tokens = 0)
SPOIL(heads, a->num_heads = 0)
SPOIL(many_heads, a->num_heads = 1025)
SPOIL(dim, a->head_dim = 0)
SPOIL(values_dim, a->value_dim = 1025)
SPOIL(size, a->block_size = 0)
SPOIL(scale, a->scale = NAN)
SPOIL(below, a->scale = -1)
SPOIL(query_heads, a->query.num_heads = 0)
SPOIL(query_type, a->query.dtype = UCM_DTYPE_INT8)
SPOIL(query_base, a->query.base = NULL)
SPOIL(query_nan, s->query[a->query.num_heads * a->head_dim - 1] = NAN)
SPOIL(keys_base, a->keys.base = NULL)
SPOIL(keys_type, a->keys.dtype = 0)
SPOIL(keys_stride, a->keys.stride_token = INT64_MAX)
SPOIL(values_base, a->values.base = NULL)
SPOIL(values_stride, a->values.stride_head = INT64_MIN)
SPOIL(table, s->table[(a->num_tokens - 1) / a->block_size] = -1)
SPOIL(few_values, a->values.num_blocks = 0)
SPOIL(key_nan,
      store_number(cache_at(&s->keys, (uint64_t)s->table[s->num_blocks - 1],
			    (a->num_tokens - 1) % a->block_size,
			    a->num_heads - 1, a->head_dim - 1),
		   a->keys.dtype, INFINITY))
SPOIL(value_nan,
      store_number(cache_at(&s->values, (uint64_t)s->table[s->num_blocks - 1],
			    (a->num_tokens - 1) % a->block_size,
			    a->num_heads - 1, value_dim(s) - 1),
		   a->values.dtype, INFINITY))

static const struct {
	spoil_fn *spoil;
	const char *name;
} spoils[] = {
	{ spoil_tokens, "num_tokens 0" }, { spoil_heads, "num_heads 0" },
	{ spoil_many_heads, "num_heads 1025" }, { spoil_dim, "head_dim 0" },
	{ spoil_values_dim, "value_dim 1025" },
	{ spoil_size, "block_size 0" }, { spoil_scale, "scale" },
	{ spoil_below, "scale" }, { spoil_query_heads, "query: num_heads 0" },
	{ spoil_query_type, "query: dtype" },
	{ spoil_query_base, "query is NULL" }, { spoil_query_nan, "query: " },
	{ spoil_keys_base, "keys is NULL" },
	{ spoil_keys_type, "keys: dtype" },
	{ spoil_keys_stride, "keys: stride_block" },
	{ spoil_values_base, "values is NULL" },
	{ spoil_values_stride, "values: stride_block" },
	{ spoil_table, "table" }, { spoil_few_values, "table" },
	{ spoil_key_nan, "keys: block" }, { spoil_value_nan, "values: block" },
};

/* By each of the ways, rerope NULL: attention's. */
static void check_refused(struct scene *s, const struct ucm_rerope *rerope,
			  const char *name)
{
	static float work[100000], angles[10000];
	double out[SCENE_OUT] = { 77 }, lse[16] = { 77 };
	struct decoded got, marked;
	struct ucm_error error;

	mark(&got);
	mark(&marked);
	if (!rerope) {
		assert_einval(ucm_attention_reference(&s->attention, out, lse,
						      &error), error, name);
		assert_einval(ucm_attention_decode(&s->attention, work, got.out,
						   got.lse, &error), error,
			      name);
	} else {
		assert_einval(ucm_rerope_reference(rerope, &s->attention, out,
						   lse, &error), error, name);
		assert_einval(ucm_rerope_decode(rerope, angles, &s->attention,
						work, got.out, got.lse, &error),
			      error, name);
	}
	must(out[0] == 77 && lse[0] == 77);
	must(!memcmp(&got, &marked, sizeof(got)));
}

UNIT_TEST(wrong_arguments_are_named_and_nothing_is_written,
	  .rows = NUM_ROWS(spoils))
{
	/* with more than one token, head and channel */
	for (unsigned number = 0, done = 0; done < 3; number++) {
		struct scene *s = scene_make(number);
		struct ucm_rerope rerope = rerope_make(s, number);

		if (s->attention.block_size > 1 && s->attention.num_heads > 1 &&
		    s->attention.num_tokens > 1) {
			done++;
			spoils[_i].spoil(s);
			check_refused(s, NULL, spoils[_i].name);
			check_refused(s, &rerope, spoils[_i].name);
		}
		scene_free(s);
	}
}

UNIT_TEST(wrong_arguments_of_rerope_are_named)
{
	static const char *const names[] = {
		"window 0", "window 16777217", "training_length 1", "base",
		"rope: head_dim", "position ", "position 16777217",
		"selected: 1 after 1",
	};
	uint32_t selected[] = { 1, 1 };

	for (unsigned number = 0, done = 0; done < NUM_ROWS(names); number++) {
		struct scene *s = scene_make(number);
		struct ucm_rerope rerope = rerope_make(s, number);
		unsigned which = done;

		if (s->num_blocks != 2 && which == 7) {
			scene_free(s);
			continue;
		}
		done++;
		switch (which) {
		case 0: rerope.window = 0; break;
		case 1: rerope.window = UCM_POSITION_MAX + 1; break;
		case 2: rerope.training_length = 1; break;
		case 3: rerope.rope.base = 0; break;
		case 4: rerope.rope.head_dim += 2; break;
		case 5: s->attention.position = s->attention.num_tokens - 2;
			break;
		case 6: s->attention.position = UCM_POSITION_MAX + 1; break;
		default: s->attention.selected = selected; break;
		}
		check_refused(s, &rerope, names[which]);
		if (which < 4)
			ck_assert_uint_eq(ucm_rerope_floats(&rerope, 16), 0);
		scene_free(s);
	}
}

UNIT_TEST(there_must_be_a_request_and_room)
{
	struct scene *s = scene_make(0);
	struct ucm_rerope rerope = rerope_make(s, 0);
	struct ucm_error error;
	double out[1];
	float one;

	assert_einval(ucm_attention_reference(NULL, out, NULL, &error), error,
		      "attention is NULL");
	assert_einval(ucm_attention_reference(&s->attention, NULL, NULL,
					      &error), error, "out is NULL");
	assert_einval(ucm_attention_decode(&s->attention, NULL, &one, NULL,
					   &error), error, "work is NULL");
	assert_einval(ucm_attention_decode(&s->attention, &one, NULL, NULL,
					   &error), error, "out is NULL");
	assert_einval(ucm_rerope_decode(NULL, &one, &s->attention, &one, &one,
					NULL, &error), error, "rerope");
	assert_einval(ucm_rerope_reference(NULL, &s->attention, out, NULL,
					   &error), error, "rerope");
	assert_einval(ucm_rerope_decode(&rerope, NULL, &s->attention, &one,
					&one, NULL, &error), error, "angles");
	assert_einval(ucm_rerope_prepare(&rerope, 16, NULL, &error), error,
		      "angles");
	assert_einval(ucm_rerope_prepare(&rerope, 0, &one, &error), error,
		      "block_size 0");
	ck_assert_uint_eq(ucm_rerope_floats(&rerope, 65537), 0);
	ck_assert_uint_eq(ucm_attention_floats(NULL), 0);
	scene_free(s);
}
