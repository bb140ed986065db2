/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_score_requests.c - requests for scores, and rows of scores that become
 * one.
 */
#include <config.h>

#include "tests/unit/sparse/score_fixture.h"

static size_t rows_of(const struct scene *scene, uint32_t per)
{
	return per == UCM_SCORE_HEAD	? scene->query.num_heads
	       : per == UCM_SCORE_GROUP ? scene->spec.num_heads
					: 1;
}

/* ---- reductions ---- */

UNIT_TEST(rows_of_scores_become_one)
{
	const float scores[] = { 1, -5, 3, 99, 2, -7, 0, 99, 6, -3, 3, 99 };
	float out[3];
	static const struct {
		uint32_t reduction;
		size_t rows, stride;
		float want[3];
	} rows[] = {
		{ UCM_REDUCE_SUM, 3, 4, { 9, -15, 6 } },
		{ UCM_REDUCE_MEAN, 3, 4, { 3, -5, 2 } },
		{ UCM_REDUCE_MAX, 3, 4, { 6, -3, 3 } },
		{ UCM_REDUCE_MAX, 2, 4, { 2, -5, 3 } },
		{ UCM_REDUCE_SUM, 2, 8, { 7, -8, 6 } }, /* every other */
		{ UCM_REDUCE_MEAN, 1, 0, { 1, -5, 3 } },
	};

	for (size_t i = 0; i < NUM_ROWS(rows); i++) {
		ck_assert_int_eq(ucm_score_reduce(scores, rows[i].rows, 3,
						  rows[i].stride,
						  rows[i].reduction, out, NULL),
				 0);
		ck_assert(!memcmp(out, rows[i].want, sizeof(out)));
	}
}

UNIT_TEST(no_reduction_hides_nan)
{
	for (uint32_t i = 0; i < 3 * UCM_REDUCTIONS; i++) {
		float scores[3] = { 1, 2, 3 }, out;

		scores[i % 3] = NAN;
		ck_assert_int_eq(ucm_score_reduce(scores, 3, 1, 1, i / 3, &out,
						  NULL), 0);
		ck_assert(isnan(out));
	}
}

UNIT_TEST(wrong_arguments_of_a_reduction_are_named)
{
	float scores[4] = { 0 }, out[2] = { 7 };
	struct ucm_error error;

#define REFUSED(word, ...)                                                    \
	do {                                                                  \
		assert_einval(ucm_score_reduce(__VA_ARGS__, &error), error,   \
			      word);                                          \
		ck_assert(out[0] == 7);                                       \
	} while (0)
	REFUSED("scores", NULL, 2, 2, 2, UCM_REDUCE_SUM, out);
	REFUSED("out", scores, 2, 2, 2, UCM_REDUCE_SUM, NULL);
	REFUSED("reduction", scores, 2, 2, 2, UCM_REDUCTIONS, out);
	REFUSED("num_rows", scores, 0, 2, 2, UCM_REDUCE_SUM, out);
	REFUSED("stride", scores, 2, 2, 1, UCM_REDUCE_SUM, out);
	REFUSED("stride", scores, 2, 2, SIZE_MAX / 2, UCM_REDUCE_SUM, out);
#undef REFUSED
}

/* ---- requests ---- */

UNIT_TEST(slots_and_ranges_change_nothing)
{
	uint64_t random = random_case(0);
	float want[MAX_SCORES], got[MAX_SCORES];

	for (unsigned number = 0; number < CASES; number++) {
		struct scene scene = scene_make(&random);
		int32_t slots[BLOCKS];
		uint32_t per = number % UCM_SCORE_PERS;
		size_t cut = (size_t)random_between(&random, 0, BLOCKS);
		struct ucm_score_request parts[2];

		for (size_t i = 0; i < BLOCKS; i++)
			slots[i] = (int32_t)i;
		scene_score(&scene, per, want);
		for (int i = 0; i < 2; i++)
			parts[i] = (struct ucm_score_request){
				.query = scene.prepared,
				.num_heads = scene.query.num_heads,
				.per = per, .slab = &scene.slab,
				.slots = i ? slots + cut : NULL,
				.num = i ? BLOCKS - cut : cut,
				.scores = got + (i ? cut : 0),
				.stride = BLOCKS,
			};
		memset(got, 0, sizeof(got));
		must(!ucm_score(&scene.spec, parts, 2, NULL));
		must(!memcmp(want, got, rows_of(&scene, per) * BLOCKS *
						sizeof(*want)));
		parts[0].first_slot = 1;
		parts[0].num = 1;
		must(!ucm_score(&scene.spec, parts, 1, NULL));
		must(!memcmp(&want[1], &got[0], sizeof(*want)));
		scene_free(&scene);
	}
}

/* So many bytes that blocks are asked for ahead of their turn; they are at other
 * places, too. */
UNIT_TEST(blocks_far_apart_have_the_same_scores, .rows = NUM_ROWS(ways))
{
	bool can = use_way(_i);
	static const int32_t slots[BLOCKS] = { 3, 0, 4, 1, 2 };
	const size_t apart = (size_t)3 << 20;
	float want[MAX_SCORES], got[MAX_SCORES];

	for (unsigned number = 0; can && number < CASES; number++) {
		uint64_t random = random_case(number);
		struct scene scene = scene_make(&random);
		uint32_t per = number % UCM_SCORE_PERS;
		struct ucm_repr_slab far = { calloc(BLOCKS, apart), BLOCKS,
					     apart };
		struct ucm_score_request request;

		must(far.base);
		for (size_t i = 0; i < BLOCKS; i++)
			memcpy((uint8_t *)far.base + (size_t)slots[i] * apart,
			       (uint8_t *)scene.slab.base +
				       i * scene.slab.stride_bytes,
			       ucm_repr_bytes(&scene.spec));
		scene_score(&scene, per, want);
		request = (struct ucm_score_request){
			.query = scene.prepared,
			.num_heads = scene.query.num_heads, .per = per,
			.slab = &far, .slots = slots, .num = BLOCKS,
			.scores = got, .stride = BLOCKS,
		};
		must(!ucm_score(&scene.spec, &request, 1, NULL));
		must(!memcmp(want, got, rows_of(&scene, per) * BLOCKS *
						sizeof(*want)));
		free(far.base);
		scene_free(&scene);
	}
}

UNIT_TEST(one_wrong_request_spoils_all)
{
	struct ucm_repr_spec spec = { UCM_REPR_MEAN, UCM_DTYPE_FLOAT32, 2, 8, 1 };
	struct ucm_repr_slab slab = slab_make(&spec, 2, 0);
	float query[4 * 32] = { 0 }, scores[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
	float before[8];
	int32_t slots[] = { 0, 1 }, below[] = { 0, -1 }, above[] = { 0, 2 };
	const struct ucm_score_request right = {
		.query = query, .num_heads = 4, .per = UCM_SCORE_HEAD,
		.slab = &slab, .slots = slots, .num = 2, .scores = scores,
		.stride = 2,
	};
	struct ucm_score_request requests[] = { right, right };
	struct ucm_error error;

	memcpy(before, scores, sizeof(before));
#define REFUSED(field, value, word)                                           \
	do {                                                                  \
		requests[1] = right;                                          \
		requests[1].field = value;                                    \
		assert_einval(ucm_score(&spec, requests, 2, &error), error,   \
			      "request 1: " word);                            \
		assert_einval(ucm_score(&spec, requests + 1, 1, &error),      \
			      error, word);                                   \
		ck_assert(!memcmp(before, scores, sizeof(before)));           \
	} while (0)
	REFUSED(query, NULL, "query");
	REFUSED(scores, NULL, "scores");
	REFUSED(num_heads, 3, "num_heads");
	REFUSED(num_heads, 0, "num_heads");
	REFUSED(num_heads, 65538, "num_heads");
	REFUSED(per, UCM_SCORE_PERS, "per");
	REFUSED(slab, NULL, "slab");
	REFUSED(slots, below, "slots: number 1 is -1");
	REFUSED(slots, above, "slots: number 1 is 2");
	REFUSED(stride, 1, "stride");
#undef REFUSED
	requests[1] = right;
	requests[1].slots = NULL;
	requests[1].first_slot = 1;
	assert_einval(ucm_score(&spec, requests, 2, &error), error,
		      "request 1: first_slot 1 + 2");
	requests[1].num = SIZE_MAX;
	assert_einval(ucm_score(&spec, requests, 2, &error), error,
		      "request 1: first_slot");
	assert_einval(ucm_score(&spec, NULL, 1, &error), error, "requests");
	ck_assert_int_eq(ucm_score(&spec, NULL, 0, NULL), 0);
	ck_assert(!memcmp(before, scores, sizeof(before)));
	free(slab.base);
}

UNIT_TEST(wrong_arguments_of_a_query_are_named)
{
	struct ucm_repr_spec spec = { UCM_REPR_MEAN, UCM_DTYPE_FLOAT32, 2, 8, 1 };
	float q[4 * 8] = { 0 }, out[4 * 32];
	const struct ucm_query right = { q, UCM_DTYPE_FLOAT32, 4, 8 };
	struct ucm_query query;
	struct ucm_error error;

	memset(out, 0x55, sizeof(out));
#define REFUSED(field, value, word)                                           \
	do {                                                                  \
		query = right;                                                \
		query.field = value;                                          \
		assert_einval(ucm_query_prepare(&spec, &query, 0, out,        \
						&error), error, word);        \
		ck_assert(ucm_float_bits(out[0]) == 0x55555555);              \
	} while (0)
	REFUSED(base, NULL, "query");
	REFUSED(dtype, UCM_DTYPE_INT8, "query: dtype");
	REFUSED(num_heads, 5, "num_heads");
	REFUSED(num_heads, 0, "num_heads");
	REFUSED(stride_head, INT64_MAX, "stride_head");
	REFUSED(stride_head, INT64_MIN, "stride_head");
	q[31] = NAN;
	REFUSED(num_heads, 4, "query: head 3");
	q[31] = INFINITY;
	REFUSED(num_heads, 4, "query: head 3");
#undef REFUSED
	q[31] = 0;
	assert_einval(ucm_query_prepare(&spec, NULL, 0, out, &error), error,
		      "query");
	assert_einval(ucm_query_prepare(NULL, NULL, 0, out, &error), error,
		      "spec");
	assert_einval(ucm_query_prepare(&spec, &right, 3, out, &error), error,
		      "per");
	assert_einval(ucm_query_prepare(&spec, &right, 0, NULL, &error), error,
		      "out");
	ck_assert_int_eq(ucm_query_prepare(&spec, &right, 0, out, NULL), 0);
}
