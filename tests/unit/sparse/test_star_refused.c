/* SPDX-License-Identifier: Apache-2.0 */
/* test_star_refused.c - wrong arguments of merged channels are named. */
#include <config.h>

#include "tests/unit/sparse/star_fixture.h"

/* ---- what is refused ---- */

static const uint16_t twice[] = { 0, 0 }, beyond[] = { 0, 2 }, right[] = { 0, 1 };

static const struct {
	struct ucm_star_spec spec;
	const char *name;
} wrong_specs[] = {
	{ { UCM_DTYPE_OPAQUE, 1, 2, 4, 2, 2, NULL }, "dtype" },
	{ { UCM_DTYPE_INT8, 0, 2, 4, 2, 2, NULL }, "num_heads" },
	{ { UCM_DTYPE_INT8, 1, 1025, 4, 2, 2, right }, "head_dim" },
	{ { UCM_DTYPE_INT8, 1, 2, 0, 2, 2, NULL }, "block_size" },
	{ { UCM_DTYPE_INT8, 1, 2, 4, 0, 2, NULL }, "merge_tokens" },
	{ { UCM_DTYPE_INT8, 1, 2, 4, 5, 2, NULL }, "merge_tokens" },
	{ { UCM_DTYPE_INT8, 1, 2, 4, 2, 0, right }, "kept" },
	{ { UCM_DTYPE_INT8, 1, 2, 4, 2, 3, right }, "kept" },
	{ { UCM_DTYPE_INT8, 1, 2, 4, 2, 1, NULL }, "channels is NULL" },
	{ { UCM_DTYPE_INT8, 1, 2, 4, 2, 2, twice }, "channels: head 0" },
	{ { UCM_DTYPE_INT8, 1, 2, 4, 2, 2, beyond }, "channels: head 0" },
};

UNIT_TEST(a_wrong_spec_is_named, .rows = NUM_ROWS(wrong_specs))
{
	const struct ucm_star_spec *spec = &wrong_specs[_i].spec;
	struct ucm_error error;
	float state[64];

	ck_assert_uint_eq(ucm_star_bytes(spec), 0);
	ck_assert_uint_eq(ucm_star_state_bytes(spec), 0);
	ck_assert_uint_eq(ucm_star_query_floats(spec, 1, spec->num_heads), 0);
	assert_einval(ucm_star_begin(spec, state, &error), error,
		      wrong_specs[_i].name);
	ck_assert_uint_eq(ucm_star_bytes(NULL), 0);
}

UNIT_TEST(wrong_arguments_of_a_build_are_named)
{
	struct ucm_star_spec spec = { UCM_DTYPE_FLOAT16, 2, 3, 4, 2, 3, NULL };
	float keys[2 * 4 * 2 * 3] = { 0 };
	const struct ucm_keys view = { keys, UCM_DTYPE_FLOAT32, 2, 24, 6, 3 };
	struct ucm_repr_slab slab = star_slab(&spec, 2, 0), bad = slab;
	float state[64], out[64];
	int32_t above[] = { 0, 2 };
	uint16_t channels[6];
	struct ucm_error error;

#define REFUSED(word, ...)                                                    \
	do {                                                                  \
		assert_einval(ucm_star_build(__VA_ARGS__, &error), error,     \
			      word);                                          \
		ck_assert(*(uint8_t *)slab.base == 0xa5);                     \
	} while (0)
	REFUSED("spec", NULL, &view, NULL, 2, 4, &slab, NULL);
	REFUSED("keys", &spec, NULL, NULL, 2, 4, &slab, NULL);
	REFUSED("last_tokens", &spec, &view, NULL, 2, 5, &slab, NULL);
	REFUSED("last_tokens", &spec, &view, NULL, 2, 0, &slab, NULL);
	REFUSED("blocks", &spec, &view, above, 2, 4, &slab, NULL);
	REFUSED("slots", &spec, &view, NULL, 2, 4, &slab, above);
	REFUSED("slab", &spec, &view, NULL, 2, 4, NULL, NULL);
	bad.stride_bytes -= 4;
	REFUSED("stride_bytes", &spec, &view, NULL, 2, 4, &bad, NULL);
	keys[47] = INFINITY;
	REFUSED("keys: block 1, token 3, head 1", &spec, &view, NULL, 2, 4,
		&slab, NULL);
#undef REFUSED
	channels[0] = 7;
	assert_einval(ucm_star_channels(&spec, &view, NULL, 2, 4, channels,
					&error), error, "keys: block 1");
	ck_assert_uint_eq(channels[0], 7);
	keys[47] = 70000;
	ck_assert_int_eq(ucm_star_build(&spec, &view, NULL, 2, 4, &slab, NULL,
					NULL), 0); /* half of it is the mean */
	keys[41] = 70000;
	memset(slab.base, 0xa5, 2 * slab.stride_bytes);
	ck_assert_int_eq(ucm_star_build(&spec, &view, NULL, 2, 4, &slab, NULL,
					NULL), -ERANGE);
	ck_assert(*(uint8_t *)slab.base == 0xa5);
	assert_einval(ucm_star_channels(&spec, &view, NULL, 0, 4, channels,
					&error), error, "num");
	assert_einval(ucm_star_channels(&spec, &view, NULL, 2, 4, NULL,
					&error), error, "out");

	memset(state, 0, sizeof(state));
	assert_einval(ucm_star_add(&spec, state, &view, 1, &error), error,
		      "state");
	assert_einval(ucm_star_begin(&spec, NULL, &error), error, "state");
	ck_assert_int_eq(ucm_star_begin(&spec, state, NULL), 0);
	assert_einval(ucm_star_write(&spec, state, out, &error), error,
		      "state has no tokens");
	ck_assert_int_eq(ucm_star_add(&spec, state, &view, 3, NULL), 0);
	assert_einval(ucm_star_add(&spec, state, &view, 2, &error), error,
		      "num_tokens 2");
	assert_einval(ucm_star_write(&spec, state, (char *)out + 1, &error),
		      error, "out");
	spec.merge_tokens = 1;
	assert_einval(ucm_star_add(&spec, state, &view, 1, &error), error,
		      "state");
	free(slab.base);
}

UNIT_TEST(wrong_arguments_of_a_score_are_named)
{
	struct ucm_star_spec spec = { UCM_DTYPE_FLOAT32, 2, 3, 4, 2, 3, NULL };
	struct ucm_repr_slab slab = star_slab(&spec, 2, 0);
	float q[4 * 3] = { 0 }, prepared[12], scores[16] = { 7 }, weights[16];
	struct ucm_query queries[2] = { { q, UCM_DTYPE_FLOAT32, 4, 3 },
					{ q, UCM_DTYPE_FLOAT32, 2, 3 } };
	const struct ucm_star_request good = {
		.query = prepared, .num_queries = 2, .num_heads = 4,
		.slab = &slab, .num = 2, .scores = scores, .stride = 2,
	};
	struct ucm_star_request request;
	int32_t below[] = { 0, -1 };
	struct ucm_error error;

#define REFUSED(field, value, word)                                           \
	do {                                                                  \
		request = good;                                               \
		request.field = value;                                        \
		assert_einval(ucm_star_score(&spec, &request, 1, &error),     \
			      error, word);                                   \
		ck_assert(scores[0] == 7);                                    \
	} while (0)
	REFUSED(query, NULL, "query");
	REFUSED(scores, NULL, "scores");
	REFUSED(num_queries, 0, "num_queries");
	REFUSED(num_queries, 4097, "num_queries");
	REFUSED(num_heads, 3, "num_heads");
	REFUSED(num_heads, 0, "num_heads");
	REFUSED(per, UCM_SCORE_PERS, "per");
	REFUSED(slab, NULL, "slab");
	REFUSED(slots, below, "slots: number 1");
	REFUSED(first_slot, 1, "first_slot");
	REFUSED(stride, 1, "stride");
	REFUSED(stride, SIZE_MAX / 2, "stride");
	request = good;
	request.weights = weights;
	request.scale = NAN;
	assert_einval(ucm_star_score(&spec, &request, 1, &error), error,
		      "scale");
	request.scale = 1;
	request.per = UCM_SCORE_BLOCK;
	assert_einval(ucm_star_score(&spec, &request, 1, &error), error,
		      "weights");
	assert_einval(ucm_star_score(&spec, NULL, 1, &error), error,
		      "requests");
#undef REFUSED
#define REFUSED(word, ...)                                                    \
	assert_einval(ucm_star_vote(__VA_ARGS__, &error), error, word)
	REFUSED("scores", NULL, weights, 2, 2, 2, 1, prepared);
	REFUSED("weights", scores, NULL, 2, 2, 2, 1, prepared);
	REFUSED("votes", scores, weights, 2, 2, 2, 1, NULL);
	REFUSED("scale", scores, weights, 2, 2, 2, -1, prepared);
	REFUSED("scale", scores, weights, 2, 2, 2, INFINITY, prepared);
	REFUSED("stride", scores, weights, 2, 2, 1, 1, prepared);
#undef REFUSED
	prepared[0] = 7;
	assert_einval(ucm_star_query_prepare(&spec, NULL, 1, prepared, &error),
		      error, "queries");
	assert_einval(ucm_star_query_prepare(&spec, queries, 2, prepared,
					     &error), error,
		      "num_heads 2 of query 1");
	assert_einval(ucm_star_query_prepare(&spec, queries, 0, prepared,
					     &error), error, "num_queries");
	assert_einval(ucm_star_query_prepare(&spec, queries, 1, NULL, &error),
		      error, "out");
	q[11] = NAN;
	assert_einval(ucm_star_query_prepare(&spec, queries, 1, prepared,
					     &error), error, "query: head 3");
	ck_assert(prepared[0] == 7);
	queries[0].dtype = UCM_DTYPE_INT8;
	assert_einval(ucm_star_query_prepare(&spec, queries, 1, prepared,
					     &error), error, "query: dtype");
	free(slab.base);
}
