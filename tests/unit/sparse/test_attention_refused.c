/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_attention_refused.c - wrong arguments of attention are named, and
 * nothing is written.
 */
#include <config.h>

#include "tests/unit/sparse/attention_fixture.h"

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
