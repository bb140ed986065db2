/* SPDX-License-Identifier: Apache-2.0 */
/* test_attention.c - attention is what its formula says, over all blocks or over
 * those that are selected; and the same by every way to compute it. */
#include <config.h>

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

UNIT_TEST(wrong_arguments_are_named_and_nothing_is_written,
	  .rows = NUM_ROWS(spoils))
{
	/* with more than one token, head and channel */
	for (unsigned number = 0, done = 0; done < 3; number++) {
		struct scene *s = scene_make(number);
		double out[SCENE_OUT], lse[16];
		struct ucm_error error;

		if (s->attention.block_size > 1 && s->attention.num_heads > 1 &&
		    s->attention.num_tokens > 1) {
			done++;
			out[0] = lse[0] = 77;
			spoils[_i].spoil(s);
			assert_einval(ucm_attention_reference(&s->attention,
							      out, lse, &error),
				      error, spoils[_i].name);
			must(out[0] == 77 && lse[0] == 77);
		}
		scene_free(s);
	}
}

UNIT_TEST(there_must_be_a_request_and_room)
{
	struct scene *s = scene_make(0);
	struct ucm_error error;
	double out[1];

	assert_einval(ucm_attention_reference(NULL, out, NULL, &error), error,
		      "attention is NULL");
	assert_einval(ucm_attention_reference(&s->attention, NULL, NULL,
					      &error), error, "out is NULL");
	scene_free(s);
}
