/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_code_refused.c - wrong arguments of hash codes are named, and write
 * nothing.
 */
#include <config.h>

#include "tests/unit/sparse/code_fixture.h"

/* ---- wrong arguments ---- */

static const struct ucm_code_spec right_spec = {
	.form = UCM_CODE_TOKENS, .num_heads = 2, .head_dim = 8, .bits = 16,
	.block_size = 3, .seed = 1,
};

UNIT_TEST(wrong_specs_are_named)
{
	const struct ucm_code_spec right = right_spec;
	struct ucm_code_spec spec;
	struct ucm_error error;
	void *memory = get(1 << 20);

#define REFUSED(word, ...)                                                    \
	do {                                                                  \
		spec = right;                                                 \
		__VA_ARGS__;                                                  \
		assert_einval(ucm_code_encoder_make(&spec, NULL, memory,      \
						    &error), error, word);    \
		ck_assert_uint_eq(ucm_code_bytes(&spec), 0);                  \
		ck_assert_uint_eq(ucm_code_encoder_bytes(&spec), 0);          \
		ck_assert_uint_eq(*(uint8_t *)memory, 0xa5);                  \
	} while (0)
	REFUSED("form", spec.form = UCM_CODE_FORMS);
	REFUSED("num_heads", spec.num_heads = 0);
	REFUSED("num_heads", spec.num_heads = 1025);
	REFUSED("head_dim", spec.head_dim = 0);
	REFUSED("head_dim", spec.head_dim = 1025);
	REFUSED("block_size", spec.block_size = 0);
	REFUSED("block_size", spec.block_size = 65537);
	REFUSED("bits", spec.bits = 0);
	REFUSED("bits", spec.bits = 12);
	REFUSED("bits", spec.bits = 4104);
	REFUSED("rope_dim", spec.rope_dim = 8);
	REFUSED("rope_bits", spec.rope_dim = 4);
	REFUSED("rope_bits", spec.rope_bits = 8);
	REFUSED("rope_bits", spec.rope_dim = 4; spec.rope_bits = 9);
	REFUSED("bits", spec.rope_dim = 4; spec.rope_bits = 4088);
	REFUSED("norms", spec.norms = 2);
	REFUSED("norms", spec.norms = 1; spec.form = UCM_CODE_COUNTS);
	REFUSED("norms", spec.norms = 1; spec.head_dim = 17);
#undef REFUSED
	assert_einval(ucm_code_encoder_make(NULL, NULL, memory, &error), error,
		      "spec");
	assert_einval(ucm_code_encoder_make(&right, NULL, NULL, &error), error,
		      "memory");
	assert_einval(ucm_code_encoder_make(&right, NULL, (char *)memory + 4,
					    &error), error, "memory");
	for (int i = 0; i < 3; i++) {
		static const float wrong[] = { NAN, INFINITY, 0x1.1p40f };
		float centers[16] = { [13] = wrong[i] };

		assert_einval(ucm_code_encoder_make(&right, centers, memory,
						    &error), error,
			      "centers: number 13");
	}
	ck_assert_uint_eq(*(uint8_t *)memory, 0xa5);
	ck_assert_uint_eq(ucm_code_bytes(NULL), 0);
	ck_assert_ptr_null(ucm_code_matrix(memory, 0, &(size_t){ 0 }));
	ck_assert_int_eq(ucm_code_encoder_make(&right, NULL, memory, NULL), 0);
	ck_assert_ptr_null(ucm_code_matrix(memory, 1, &(size_t){ 0 }));
	ck_assert_ptr_null(ucm_code_matrix(NULL, 0, &(size_t){ 0 }));
	free(memory);
}

UNIT_TEST(wrong_keys_and_slabs_are_named)
{
	struct ucm_code_spec spec = right_spec;
	float data[2 * 3 * 2 * 8] = { 0 };
	const struct ucm_keys right = { data, UCM_DTYPE_FLOAT32, 2, 48, 16, 8 };
	struct ucm_keys keys = right;
	size_t bytes = ucm_code_bytes(&spec);
	const struct ucm_repr_slab right_slab = { get(2 * bytes), 2, bytes };
	struct ucm_repr_slab slab = right_slab;
	void *encoder = get(ucm_code_encoder_bytes(&spec));
	const int32_t wrong[] = { 0, 2 };
	struct ucm_error error;
	uint8_t *first = slab.base;

	must(!ucm_code_encoder_make(&spec, NULL, encoder, NULL));
#define BUILD(blocks, slots, last)                                            \
	ucm_code_build(encoder, &keys, blocks, 2, last, &slab, slots, &error)
#define REFUSED(word, ...)                                                    \
	do {                                                                  \
		__VA_ARGS__;                                                  \
		assert_einval(BUILD(NULL, NULL, 3), error, word);             \
		ck_assert_uint_eq(*first, 0xa5);                              \
		keys = right;                                                 \
		slab = right_slab;                                            \
	} while (0)
	REFUSED("keys is NULL", keys.base = NULL);
	REFUSED("keys: dtype", keys.dtype = UCM_DTYPE_INT8);
	REFUSED("keys: stride_block", keys.stride_token = INT64_MAX);
	REFUSED("blocks", keys.num_blocks = 1);
	REFUSED("slab is NULL", slab.base = NULL);
	REFUSED("slab is not aligned to 8", slab.base = first + 4);
	REFUSED("stride_bytes", slab.stride_bytes = bytes - 8);
	REFUSED("stride_bytes", slab.stride_bytes = bytes + 4);
	REFUSED("num_slots", slab.num_slots = UINT64_MAX);
	REFUSED("slots", slab.num_slots = 1);
	assert_einval(BUILD(wrong, NULL, 3), error, "blocks: number 1 is 2");
	assert_einval(BUILD(NULL, wrong, 3), error, "slots: number 1 is 2");
	assert_einval(BUILD(NULL, NULL, 0), error, "last_tokens 0");
	assert_einval(BUILD(NULL, NULL, 4), error, "last_tokens 4");
	data[48 + 2 * 16 + 8 + 7] = NAN;
	assert_einval(BUILD(NULL, NULL, 3), error,
		      "keys: block 1, token 2, head 1: not finite");
	ck_assert_int_eq(BUILD(NULL, NULL, 2), 0);
	*first = 0xa5;
	data[48 + 2 * 16 + 8 + 7] = -0x1.1p40f;
	ck_assert_int_eq(BUILD(NULL, NULL, 3), -ERANGE);
	ck_assert_str_eq(error.text,
			 "keys: block 1, token 2, head 1: beyond 2^40");
	ck_assert_uint_eq(*first, 0xa5);
	assert_einval(ucm_code_build(NULL, &keys, NULL, 2, 3, &slab, NULL,
				     &error), error, "encoder is NULL");
	assert_einval(ucm_code_build(first, &keys, NULL, 2, 3, &slab, NULL,
				     &error), error, "encoder: none");
#undef REFUSED
#undef BUILD
	free(first);
	free(encoder);
}

UNIT_TEST(wrong_additions_are_named)
{
	struct ucm_code_spec spec = right_spec;
	float data[3 * 2 * 8] = { 0 };
	struct ucm_keys keys = { data, UCM_DTYPE_FLOAT32, 1, 48, 16, 8 };
	void *encoder = get(ucm_code_encoder_bytes(&spec));
	uint8_t *out = get(ucm_code_bytes(&spec) + 8);
	struct ucm_error error;

	must(!ucm_code_encoder_make(&spec, NULL, encoder, NULL));
	assert_einval(ucm_code_add(encoder, &keys, 0, 4, out, &error), error,
		      "num_tokens 4: the block has 0 of 3");
	assert_einval(ucm_code_add(encoder, &keys, 0, 1, NULL, &error), error,
		      "out is NULL");
	assert_einval(ucm_code_add(encoder, &keys, 0, 1, out + 4, &error),
		      error, "out is not aligned");
	assert_einval(ucm_code_add(encoder, &keys, 1, 1, out, &error), error,
		      "first_token 1");
	ck_assert_uint_eq(*out, 0xa5);
	must(!ucm_code_add(encoder, &keys, 0, 2, out, NULL));
	assert_einval(ucm_code_add(encoder, &keys, 1, 1, out, &error), error,
		      "first_token 1: the block has 2");
	assert_einval(ucm_code_add(encoder, &keys, 2, 2, out, &error), error,
		      "num_tokens 2: the block has 2 of 3");
	assert_einval(ucm_code_add(encoder, &keys, UINT32_MAX, 2, out, &error),
		      error, "num_tokens 2");
	keys.num_blocks = 0;
	assert_einval(ucm_code_add(encoder, &keys, 2, 1, out, &error), error,
		      "num_blocks is 0");
	keys.num_blocks = 1;
	data[0] = INFINITY;
	assert_einval(ucm_code_add(encoder, &keys, 2, 1, out, &error), error,
		      "keys: block 0, token 0, head 0");
	data[0] = 0;
	ck_assert_int_eq(ucm_code_add(encoder, &keys, 2, 1, out, NULL), 0);
	free(encoder);
	free(out);
}

UNIT_TEST(wrong_methods_and_queries_are_named)
{
	struct ucm_code_spec spec = right_spec;
	const struct ucm_code_method right = { UCM_CODE_HAMMING, UCM_CODE_SUM,
					       UCM_SCORE_GROUP, 8, 2 };
	float data[8 * 8] = { 0 };
	const struct ucm_query right_query = { data, UCM_DTYPE_FLOAT32, 8, 8 };
	struct ucm_code_method method = right;
	struct ucm_query query = right_query, rope = right_query, *apart = NULL;
	void *encoder = get(ucm_code_encoder_bytes(&spec));
	struct ucm_error error;
	uint64_t out[64] = { 1 };

	must(!ucm_code_encoder_make(&spec, NULL, encoder, NULL));
#define REFUSED(err, word, ...)                                               \
	do {                                                                  \
		__VA_ARGS__;                                                  \
		ck_assert_int_eq(ucm_code_query_prepare(encoder, &method,     \
							&query, apart, out,   \
							&error), err);        \
		ck_assert_msg(!strncmp(error.text, word, strlen(word)), "%s", \
			      error.text);                                    \
		ck_assert(out[0] == 1);                                       \
		query = right_query;                                          \
		method = right;                                               \
	} while (0)
	REFUSED(-EINVAL, "measure", method.measure = UCM_CODE_MEASURES);
	REFUSED(-EINVAL, "over", method.over = UCM_CODE_OVERS);
	REFUSED(-EINVAL, "per", method.per = UCM_SCORE_PERS);
	REFUSED(-EINVAL, "num_heads", method.num_heads = 0);
	REFUSED(-EINVAL, "num_heads", method.num_heads = 7);
	REFUSED(-EINVAL, "num_heads", method.num_heads = 65538);
	REFUSED(-EINVAL, "num_heads: the query", method.num_heads = 12);
	REFUSED(-EINVAL, "num_heads 512: 256", method.num_heads = 512;
		method.merged_heads = 1);
	REFUSED(-EINVAL, "merged_heads 0", method.merged_heads = 0);
	REFUSED(-EINVAL, "merged_heads 3", method.merged_heads = 3);
	REFUSED(-EINVAL, "query is NULL", query.base = NULL);
	REFUSED(-EINVAL, "query: dtype", query.dtype = UCM_DTYPE_INT8);
	REFUSED(-EINVAL, "stride_head", query.stride_head = INT64_MIN);
	REFUSED(-EINVAL, "num_heads", query.num_heads = 4);
	REFUSED(-EINVAL, "rope", apart = &rope);
	apart = NULL;
	REFUSED(-EINVAL, "query: head 7 is not finite", data[63] = NAN);
	REFUSED(-ERANGE, "query: head 7 is beyond", data[63] = 0x1p41f);
	data[63] = 0;
#undef REFUSED
	assert_einval(ucm_code_query_prepare(encoder, NULL, &query, NULL, out,
					     &error), error, "method is NULL");
	assert_einval(ucm_code_query_prepare(encoder, &method, &query, NULL,
					     NULL, &error), error,
		      "out is NULL");
	assert_einval(ucm_code_query_prepare(NULL, &method, &query, NULL, out,
					     &error), error, "encoder");
	spec.form = UCM_CODE_COUNTS;
	ck_assert_uint_gt(ucm_code_query_words(&spec, &method), 0);
	method.over = UCM_CODE_BEST;
	ck_assert_uint_eq(ucm_code_query_words(&spec, &method), 0);
	ck_assert_uint_eq(ucm_code_query_words(NULL, &method), 0);
	/* 65536 tokens of 16 bits, 4 codes in 2 groups, are more than 2^24 */
	method.over = UCM_CODE_SUM;
	method.per = UCM_SCORE_BLOCK;
	spec.block_size = 65536;
	ck_assert_uint_gt(ucm_code_query_words(&spec, &method), 0);
	spec.bits = 256;
	ck_assert_uint_eq(ucm_code_query_words(&spec, &method), 0);
	method.measure = UCM_CODE_ESTIMATE;
	ck_assert_uint_gt(ucm_code_query_words(&spec, &method), 0);
	free(encoder);
}

UNIT_TEST(wrong_requests_spoil_all)
{
	struct ucm_code_spec spec = right_spec;
	struct ucm_code_method method = { UCM_CODE_HAMMING, UCM_CODE_EACH,
					  UCM_SCORE_GROUP, 2, 1 };
	size_t bytes = ucm_code_bytes(&spec);
	struct ucm_repr_slab slab = { get(2 * bytes), 2, bytes };
	const int32_t slots[] = { 0, 1 }, above[] = { 0, 2 };
	uint64_t query[4] = { ucm_float_bits(1), 0, ucm_float_bits(1), 0 };
	float scores[16] = { 5 };
	const struct ucm_code_request right = {
		.query = query, .slab = &slab, .slots = slots, .num = 2,
		.scores = scores, .stride = 6,
	};
	struct ucm_code_request requests[] = { right, right };
	struct ucm_error error;

	memset(slab.base, 0, 2 * bytes);
#define REFUSED(field, value, word)                                           \
	do {                                                                  \
		requests[1] = right;                                          \
		requests[1].field = value;                                    \
		assert_einval(ucm_code_score(&spec, &method, requests, 2,     \
					     &error), error,                  \
			      "request 1: " word);                            \
		assert_einval(ucm_code_score(&spec, &method, requests + 1, 1, \
					     &error), error, word);           \
		ck_assert(scores[0] == 5);                                    \
	} while (0)
	REFUSED(query, NULL, "query");
	REFUSED(scores, NULL, "scores");
	REFUSED(slab, NULL, "slab");
	REFUSED(slots, above, "slots: number 1 is 2");
	REFUSED(stride, 5, "stride 5: at least 6");
	requests[1] = right;
	requests[1].slots = NULL;
	requests[1].first_slot = 1;
	assert_einval(ucm_code_score(&spec, &method, requests, 2, &error),
		      error, "request 1: first_slot");
#undef REFUSED
	assert_einval(ucm_code_score(&spec, &method, NULL, 1, &error), error,
		      "requests");
	assert_einval(ucm_code_score(&spec, NULL, &right, 1, &error), error,
		      "method");
	assert_einval(ucm_code_score(NULL, &method, &right, 1, &error), error,
		      "spec");
	ck_assert_int_eq(ucm_code_score(&spec, &method, NULL, 0, NULL), 0);
	ck_assert(scores[0] == 5);

	/* a block without tokens; and with more than can be */
	ck_assert_int_eq(ucm_code_score(&spec, &method, &right, 1, NULL), 0);
	ck_assert(scores[0] == -INFINITY && scores[11] == -INFINITY);
	memset(slab.base, 0xff, 2 * bytes);
	ck_assert_int_eq(ucm_code_score(&spec, &method, &right, 1, NULL), 0);
	ck_assert(scores[0] == -64 && scores[12] == 0);
	free(slab.base);
}
