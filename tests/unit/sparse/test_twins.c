/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_twins.c - the kernels of gpu/sparse/, every thread of them run on the
 * CPU by a driver made for tests, have the bits of sparse/, and show what only
 * the device can see. It says nothing of a real driver: tests/gpu.
 */
#include <config.h>

#include "tests/unit/sparse/fake_device.h"

UNIT_FIXTURE(.setup = open_fake, .teardown = close_fake);

UNIT_TEST(scores_have_the_bits_of_the_cpu)
{
	for (unsigned i = 0; i < 300; i++)
		twins_compare_scores(&fixture, i);
}

UNIT_TEST(representations_have_the_bytes_of_the_cpu)
{
	for (unsigned i = 0; i < 300; i++)
		twins_compare_build(&fixture, i);
}

UNIT_TEST(hash_codes_and_their_scores_have_the_bits_of_the_cpu)
{
	for (unsigned i = 0; i < 80; i++)
		twins_compare_codes(&fixture, i);
}

UNIT_TEST(merged_channels_and_their_votes_have_the_bits_of_the_cpu)
{
	for (unsigned i = 0; i < 80; i++)
		twins_compare_star(&fixture, i);
}

UNIT_TEST(selections_are_those_of_the_cpu)
{
	for (unsigned i = 0; i < 300; i++)
		twins_compare_select(&fixture, i);
}

UNIT_TEST(keys_that_move_have_the_bytes_of_the_cpu)
{
	for (unsigned i = 0; i < 300; i++)
		twins_compare_shift(&fixture, i);
}

UNIT_TEST(attention_is_that_of_the_cpu)
{
	for (unsigned i = 0; i < 80; i++)
		twins_compare_attention(&fixture, i);
}

UNIT_TEST(deviations_have_the_bits_of_the_cpu)
{
	for (unsigned i = 0; i < 300; i++)
		twins_compare_deviation(&fixture, i);
}

/* ---- what only the device can see ---- */

/* A block of 4 tokens of 2 heads of 33 channels, of ones, but for one key. */
static void build_odd(uint32_t kind, uint32_t dtype, float odd, void *out)
{
	struct ucm_repr_spec one = { kind, dtype, 2, 33, 4 };
	struct ucm_repr_slab slab = { .num_slots = 1 };
	struct ucm_cuda_written written = { .num = 1 };
	struct ucm_keys keys = { .dtype = UCM_DTYPE_FLOAT32, .num_blocks = 1,
				 .stride_block = 264, .stride_token = 66,
				 .stride_head = 33 };
	float floats[264];
	int32_t block = 0;

	for (int i = 0; i < 264; i++)
		floats[i] = 1;
	floats[2 * 66 + 33 + 7] = odd; /* token 2, head 1, channel 7 */
	slab.stride_bytes = ucm_repr_bytes(&one);
	slab.base = twins_upload(&fixture, out, slab.stride_bytes);
	keys.base = twins_upload(&fixture, floats, sizeof(floats));
	written.blocks = twins_upload(&fixture, &block, sizeof(block));
	ok(ucm_sparse_cuda_build(fixture.twins, &one, &keys, &written, &slab,
				 fixture.stream, NULL));
	twins_download(&fixture, out, slab.base, slab.stride_bytes);
	twins_release(&fixture);
}

UNIT_TEST(a_key_that_is_not_finite_shows_in_the_representation)
{
	static const float odd[] = { NAN, INFINITY, -INFINITY };
	static uint8_t out[4096];

	for (uint32_t kind = 0; kind < UCM_REPR_KINDS; kind++) {
		for (int type = 0; type < 3; type++) {
			uint32_t dtype = input_types[type];
			uint32_t rows = kind == UCM_REPR_MINMAX ? 2 : 1;
			size_t item = type_bytes(dtype);

			for (size_t i = 0; i < NUM_ROWS(odd); i++) {
				build_odd(kind, dtype, odd[i], out);
				must(!isfinite(load_number(
					out + (64 * rows + 7) * item, dtype)));
				must(isfinite(load_number(out + 7 * item,
							  dtype)));
			}
		}
	}
}

UNIT_TEST(a_key_that_is_not_finite_shows_in_the_scale_of_int8)
{
	static const float odd[] = { NAN, INFINITY, -INFINITY };
	static uint8_t out[4096];

	for (uint32_t kind = 0; kind < UCM_REPR_KINDS; kind++) {
		size_t rows = kind == UCM_REPR_MINMAX ? 2 : 1;

		for (size_t i = 0; i < NUM_ROWS(odd); i++) {
			float scales[2];

			build_odd(kind, UCM_DTYPE_INT8, odd[i], out);
			memcpy(scales, out + 2 * 64 * rows, sizeof(scales));
			must(isfinite(scales[0]) && isnan(scales[1]));
		}
	}
}

/* A block of 4 tokens of 2 heads of 33 channels, of which one is odd. */
static struct ucm_keys odd_keys(float odd)
{
	struct ucm_keys keys = { .dtype = UCM_DTYPE_FLOAT32, .num_blocks = 1,
				 .stride_block = 264, .stride_token = 66,
				 .stride_head = 33 };
	float floats[264];

	for (int i = 0; i < 264; i++)
		floats[i] = 1;
	floats[2 * 66 + 33 + 7] = odd; /* token 2, head 1, channel 7 */
	keys.base = twins_upload(&fixture, floats, sizeof(floats));
	return keys;
}

UNIT_TEST(a_key_that_is_not_finite_has_no_norm)
{
	static const float odd[] = { NAN, INFINITY, -INFINITY };
	struct ucm_code_spec codes = { .num_heads = 2, .head_dim = 33,
				       .bits = 64, .block_size = 4,
				       .norms = 1 };
	size_t bytes = ucm_code_bytes(&codes), encoder_bytes;
	struct ucm_repr_slab slab = { .num_slots = 1, .stride_bytes = bytes };
	struct ucm_cuda_written written = { .num = 1 };
	uint8_t *out = calloc(1, bytes);
	struct ucm_cuda_encoder encoder;
	void *memory;
	int32_t block = 0;

	encoder_bytes = ucm_code_encoder_bytes(&codes);
	memory = malloc(encoder_bytes);
	ok(ucm_code_encoder_make(&codes, NULL, memory, NULL));
	for (size_t i = 0; i < NUM_ROWS(odd); i++) {
		struct ucm_keys keys = odd_keys(odd[i]);
		uint16_t norms[4];

		encoder.host = memory;
		encoder.device = twins_upload(&fixture, memory, encoder_bytes);
		slab.base = twins_upload(&fixture, out, bytes);
		written.blocks = twins_upload(&fixture, &block, sizeof(block));
		ok(ucm_sparse_cuda_code_build(fixture.twins, &encoder, &keys,
					      &written, &slab, fixture.stream,
					      NULL));
		twins_download(&fixture, out, slab.base, bytes);
		memcpy(norms, out + 128 + 64, sizeof(norms)); /* of head 1 */
		for (int j = 0; j < 4; j++)
			must(isnan(ucm_float_of_bfloat16(norms[j])) == (j == 2));
		twins_release(&fixture);
	}
	free(memory);
	free(out);
}

UNIT_TEST(a_query_that_is_not_finite_or_too_large_has_no_scores)
{
	static const float odd[] = { NAN, INFINITY, 0x1p41f };
	struct ucm_code_spec codes = { .num_heads = 1, .head_dim = 33,
				       .bits = 64, .block_size = 4 };
	size_t encoder_bytes = ucm_code_encoder_bytes(&codes);
	void *memory = malloc(encoder_bytes);
	float heads[2 * 33] = { 0 };

	ok(ucm_code_encoder_make(&codes, NULL, memory, NULL));
	for (size_t i = 0; i < 2 * NUM_ROWS(odd); i++) {
		struct ucm_code_method method = { .measure = i % 2,
						  .per = UCM_SCORE_HEAD,
						  .num_heads = 2,
						  .merged_heads = 1 };
		struct ucm_cuda_encoder encoder = {
			memory, twins_upload(&fixture, memory, encoder_bytes),
		};
		size_t words = ucm_code_query_words(&codes, &method);
		uint64_t *out = calloc(words, sizeof(*out)), *device;
		struct ucm_cuda_queries queries = {
			.dtype = UCM_DTYPE_FLOAT32, .num_heads = 2, .num = 1,
			.stride_head = 33,
		};

		heads[33 + 5] = odd[i / 2]; /* the second head */
		queries.base = twins_upload(&fixture, heads, sizeof(heads));
		device = twins_upload(&fixture, out, words * sizeof(*out));
		ok(ucm_sparse_cuda_code_prepare(fixture.twins, &encoder,
						&method, &queries, NULL, device,
						words, fixture.stream, NULL));
		twins_download(&fixture, out, device, words * sizeof(*out));
		must(!isnan(ucm_float_of((uint32_t)out[0])));
		must(isnan(ucm_float_of((uint32_t)out[words / 2])));
		free(out);
		twins_release(&fixture);
	}
	free(memory);
}

/* One request of two blocks, of one token each, one head, one channel. */
static void attend_odd(int32_t page, float key, float out[2])
{
	float keys[2] = { 1, key }, values[2] = { 1, 2 }, query[2] = { 1, 1 };
	float zeros[64] = { 0 };
	int32_t table[2] = { 0, page }, tokens = 2;
	struct ucm_keys cache = { .dtype = UCM_DTYPE_FLOAT32, .num_blocks = 2,
				  .stride_block = 1, .stride_token = 1,
				  .stride_head = 1 };
	struct ucm_cuda_attention attention = {
		.queries = { twins_upload(&fixture, query, sizeof(query)),
			     UCM_DTYPE_FLOAT32, 2, 1, 2, 1 },
		.keys = cache, .values = cache, .num_heads = 1, .head_dim = 1,
		.block_size = 1,
		.requests = { .num = 1, .max_blocks = 2, .table_stride = 2 },
	};

	attention.keys.base = twins_upload(&fixture, keys, sizeof(keys));
	attention.values.base = twins_upload(&fixture, values, sizeof(values));
	attention.requests.tables = twins_upload(&fixture, table,
						 sizeof(table));
	attention.requests.tokens = twins_upload(&fixture, &tokens,
						 sizeof(tokens));
	attention.work = twins_upload(&fixture, zeros, sizeof(zeros));
	attention.out = twins_upload(&fixture, zeros, sizeof(zeros));
	must(ucm_sparse_cuda_attention_floats(&attention) <= NUM_ROWS(zeros));
	ok(ucm_sparse_cuda_attention(fixture.twins, &attention, fixture.stream,
				     NULL));
	twins_download(&fixture, out, attention.out, 2 * sizeof(*out));
	twins_release(&fixture);
}

UNIT_TEST(attention_over_what_is_not_there_or_not_finite_is_no_number)
{
	static const struct { int32_t page; float key; int right; } rows[] = {
		{ 1, 1, 1 }, { 2, 1, 0 }, { -1, 1, 0 }, { 1, NAN, 0 },
		{ 1, INFINITY, 0 }, { 1, -INFINITY, 0 },
	};

	for (size_t i = 0; i < NUM_ROWS(rows); i++) {
		float out[2];

		attend_odd(rows[i].page, rows[i].key, out);
		for (int j = 0; j < 2; j++)
			must(rows[i].right ? out[j] == 1.5f : isnan(out[j]));
	}
}

UNIT_TEST(a_vote_over_what_has_no_score_is_no_number)
{
	static const float odd[] = { 0, -INFINITY, NAN, INFINITY };

	for (size_t i = 0; i < NUM_ROWS(odd); i++) {
		float scores[4] = { 1, odd[i], 1, 1 };
		float weights[4] = { 1, 1, 1, 1 }, votes[2] = { 0 };
		int32_t tokens = 2;
		struct ucm_cuda_star_vote vote = {
			.requests = { .num = 1, .max_blocks = 2,
				      .table_stride = 2 },
			.num_rows = 2, .stride_row = 2, .scale = 1,
		};

		vote.requests.tokens = twins_upload(&fixture, &tokens,
						    sizeof(tokens));
		vote.requests.tables = vote.requests.tokens;
		vote.scores = twins_upload(&fixture, scores, sizeof(scores));
		vote.weights = twins_upload(&fixture, weights, sizeof(weights));
		vote.votes = twins_upload(&fixture, votes, sizeof(votes));
		ok(ucm_sparse_cuda_star_vote(fixture.twins, 1, &vote,
					     fixture.stream, NULL));
		twins_download(&fixture, votes, vote.votes, sizeof(votes));
		for (int j = 0; j < 2; j++)
			must(isnan(votes[j]) == (i >= 2));
		twins_release(&fixture);
	}
}

UNIT_TEST(a_key_that_is_too_large_shows_in_the_representation)
{
	static uint8_t out[4096];

	build_odd(UCM_REPR_MAX, UCM_DTYPE_FLOAT16, 65536, out);
	must(isinf(load_number(out + (64 + 7) * 2, UCM_DTYPE_FLOAT16)));
	build_odd(UCM_REPR_MEAN, UCM_DTYPE_BFLOAT16, 0x1.fffffep127f, out);
	must(isfinite(load_number(out + (64 + 7) * 2, UCM_DTYPE_BFLOAT16)));
}

UNIT_TEST(a_token_of_a_block_that_is_not_there_has_no_deviation)
{
	int32_t table[3] = { 0, 2, -1 };
	float zeros[6] = { 0 }, out[6];
	struct ucm_deviation_request request = {
		.num_tokens = 6, .num_heads = 1, .head_dim = 1,
		.block_size = 2, .table = twins_upload(&fixture, table,
						       sizeof(table)),
	};
	float *device = twins_upload(&fixture, zeros, sizeof(zeros));

	request.fresh = (struct ucm_keys){
		twins_upload(&fixture, zeros, sizeof(zeros)),
		UCM_DTYPE_FLOAT32, 1, 6, 1, 1,
	};
	request.cached = request.fresh;
	request.cached.num_blocks = 2;
	request.cached.stride_block = 2;
	ok(ucm_sparse_cuda_deviation(fixture.twins, &request, device,
				     fixture.stream, NULL));
	twins_download(&fixture, out, device, sizeof(out));
	for (int i = 0; i < 6; i++)
		must(i < 2 ? out[i] == 0 : isnan(out[i]));
}

UNIT_TEST(a_block_that_is_not_there_is_not_moved)
{
	static const int32_t from_blocks[] = { 0, 7, 1, 1 };
	static const int32_t to_blocks[] = { -1, 0, 2, 1 };
	static const int32_t tokens[] = { 1, 1, 1, 2 }, deltas[] = { 0, 0, 0, 0 };
	static const float keys[] = { 1, 2, 3, 4 };
	float places[] = { 5, 6, 7, 8 };
	struct ucm_rope rope = { .head_dim = 2, .base = 1e4 };
	struct ucm_cuda_shift shift = {
		.from = { twins_upload(&fixture, keys, sizeof(keys)),
			  UCM_DTYPE_FLOAT32, 2, 2, 2, 2 },
		.to = { twins_upload(&fixture, places, sizeof(places)), 2, 2, 2,
			2 },
		.from_blocks = twins_upload(&fixture, from_blocks,
					    sizeof(from_blocks)),
		.to_blocks = twins_upload(&fixture, to_blocks,
					  sizeof(to_blocks)),
		.tokens = twins_upload(&fixture, tokens, sizeof(tokens)),
		.num = 4, .num_heads = 1, .block_size = 1,
		.deltas = twins_upload(&fixture, deltas, sizeof(deltas)),
	};

	ok(ucm_sparse_cuda_shift(fixture.twins, &rope, &shift, fixture.stream,
				 NULL));
	twins_download(&fixture, places, shift.to.base, sizeof(places));
	for (int i = 0; i < 4; i++)
		must(places[i] == (float)(5 + i));
}
