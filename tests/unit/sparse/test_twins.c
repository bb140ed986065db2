/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_twins.c - the kernels of gpu/sparse/, every thread of them run on the CPU by
 * a driver made for tests, have the bits of sparse/; and what their calls refuse. It
 * says nothing of a real driver: tests/gpu.
 */
#include <config.h>

#include <dlfcn.h>

#include "tests/unit/fake_cuda.h"
#include "tests/unit/twins_fixture.h"

static struct fake_cuda *fake;
static struct twins_fixture fixture;

static void use_fake(void)
{
	void *library;

	ucm_cuda_library = FAKE_CUDA;
	library = dlopen(FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
	ck_assert_msg(library != NULL, "%s", dlerror());
	fake = dlsym(library, "fake_cuda");
	ck_assert_ptr_nonnull(fake);
}

static void open_fake(void)
{
	use_fake();
	twins_open(&fixture, (CUstream)FAKE_STREAM);
}

static void close_fake(void)
{
	fake->fail = NULL;
	twins_close(&fixture);
	ck_assert_uint_eq(fake->live, 0);
	ck_assert_int_eq(fake->pushed, 0);
	ck_assert_uint_eq(fake->mistakes, 0);
}

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

static void ok(int err)
{
	ck_assert_int_eq(err, 0);
}

UNIT_TEST(a_device_without_an_image_is_named)
{
	struct ucm_sparse_cuda *twins;
	struct ucm_error error;

	fake->no_binary = CUDA_ERROR_NO_BINARY_FOR_GPU;
	fake->no_ptx = CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
	fake->sm = 130;
	ck_assert_int_eq(ucm_sparse_cuda_open(0, &twins, &error), -ENOTSUP);
	ck_assert_msg(strstr(error.text, "sm_130): no kernels for it; this "
					 "library has " CUDA_IMAGES) != NULL,
		      "%s", error.text);
	fake->no_ptx = 0;
	ok(ucm_sparse_cuda_open(0, &twins, &error));
	ucm_sparse_cuda_close(twins);
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

/* ---- calls ---- */

static const struct ucm_repr_spec spec = {
	.kind = UCM_REPR_MEAN,
	.dtype = UCM_DTYPE_BFLOAT16,
	.num_heads = 2,
	.head_dim = 64,
	.block_size = 16,
};

/* The host does not look at what these point to. */
#define DEVICE(bytes) ((void *)(uintptr_t)(FAKE_MARK + (bytes)))

static struct ucm_repr_slab a_slab(void)
{
	return (struct ucm_repr_slab){ DEVICE(0), 10, 256 };
}

static struct ucm_cuda_requests some_requests(void)
{
	return (struct ucm_cuda_requests){
		.tables = DEVICE(0), .table_stride = 8, .tokens = DEVICE(0),
		.num = 2, .max_blocks = 8,
	};
}

static struct ucm_cuda_score a_score(const struct ucm_repr_slab *slab)
{
	return (struct ucm_cuda_score){
		.queries = DEVICE(0), .query_stride = 128, .num_heads = 4,
		.per = UCM_SCORE_GROUP, .slab = slab,
		.requests = some_requests(), .scores = DEVICE(0),
		.stride_request = 16, .stride_row = 8,
	};
}

static struct ucm_cuda_select a_selection(void)
{
	return (struct ucm_cuda_select){
		.requests = some_requests(), .scores = DEVICE(0),
		.scores_stride = 8, .tables_out = DEVICE(4), .room = 8,
		.tokens_out = DEVICE(0), .status = DEVICE(0),
	};
}

static void nothing_was_queued(void)
{
	ck_assert_uint_eq(fake->launches, 0);
}

#define SCORE_REFUSED(change, word)                                           \
	do {                                                                  \
		struct ucm_repr_slab slab = a_slab();                         \
		struct ucm_cuda_score score = a_score(&slab);                 \
		struct ucm_repr_spec changed = spec;                          \
		struct ucm_error error;                                       \
                                                                              \
		change;                                                       \
		assert_einval(ucm_sparse_cuda_score(fixture.twins, &changed,  \
						    &score, NULL, &error),    \
			      error, word);                                   \
	} while (0)

UNIT_TEST(wrong_scores_are_refused_by_name)
{
	SCORE_REFUSED(changed.dtype = UCM_DTYPE_UINT8, "dtype");
	SCORE_REFUSED(score.queries = NULL, "queries is NULL");
	SCORE_REFUSED(score.queries = DEVICE(4), "queries is not aligned");
	SCORE_REFUSED(score.query_stride = 126, "query_stride 126");
	SCORE_REFUSED(score.query_stride = 124, "query_stride 124");
	SCORE_REFUSED(score.num_heads = 3, "num_heads 3");
	SCORE_REFUSED(score.per = 3, "per 3");
	SCORE_REFUSED(score.slab = NULL, "slab is NULL");
	SCORE_REFUSED(slab.base = DEVICE(4), "slab is not aligned");
	SCORE_REFUSED(slab.stride_bytes = 264, "stride_bytes 264");
	SCORE_REFUSED(slab.stride_bytes = 128, "stride_bytes 128");
	SCORE_REFUSED(score.scores = NULL, "scores is NULL");
	SCORE_REFUSED(score.stride_row = 7, "stride_row 7");
	SCORE_REFUSED(score.stride_request = 7, "stride_row 8, stride_req");
	SCORE_REFUSED(score.requests.tables = NULL, "tables is NULL");
	SCORE_REFUSED(score.requests.tokens = DEVICE(2), "tokens is not al");
	SCORE_REFUSED(score.requests.table_stride = 7, "table_stride 7");
	SCORE_REFUSED(score.requests.num = 65536, "num 65536");
	SCORE_REFUSED(score.requests.max_blocks = 0, "max_blocks 0");
	SCORE_REFUSED(score.requests.max_blocks = 1u << 31, "max_blocks 21");
	SCORE_REFUSED(score.requests.max_blocks = 1u << 27;
		      score.requests.table_stride = 1u << 27;
		      score.stride_row = score.stride_request = 1u << 27,
		      "max_blocks 134217728: too many for 2 rows");
	nothing_was_queued();
}

#define QUERIES_REFUSED(change, word)                                         \
	do {                                                                  \
		struct ucm_cuda_queries queries = { DEVICE(0),                \
						    UCM_DTYPE_FLOAT16, 4, 2,  \
						    256, 64 };                \
		float *out = DEVICE(0);                                       \
		size_t stride = 128;                                          \
		struct ucm_error error;                                       \
                                                                              \
		change;                                                       \
		assert_einval(ucm_sparse_cuda_prepare(                        \
				      fixture.twins, &spec, &queries,         \
				      UCM_SCORE_BLOCK, out, stride, NULL,     \
				      &error),                                \
			      error, word);                                   \
	} while (0)

UNIT_TEST(wrong_queries_are_refused_by_name)
{
	QUERIES_REFUSED(queries.base = NULL, "queries is NULL");
	QUERIES_REFUSED(queries.base = DEVICE(1), "queries is not aligned");
	QUERIES_REFUSED(queries.dtype = UCM_DTYPE_INT8, "queries: dtype");
	QUERIES_REFUSED(queries.num_heads = 0, "num_heads 0");
	QUERIES_REFUSED(queries.num = 65536, "queries: num 65536");
	QUERIES_REFUSED(queries.stride_query = INT64_MAX, "queries: stride");
	QUERIES_REFUSED(out = NULL, "out is NULL");
	QUERIES_REFUSED(stride = 127, "out_stride 127: at least 128");
	nothing_was_queued();
}

#define BUILD_REFUSED(change, word)                                           \
	do {                                                                  \
		struct ucm_keys keys = { DEVICE(0), UCM_DTYPE_FLOAT16, 10,    \
					 2048, 128, 64 };                     \
		struct ucm_cuda_written written = { .slots = DEVICE(0),       \
						    .num = 4 };               \
		struct ucm_repr_slab slab = a_slab();                         \
		struct ucm_repr_spec changed = spec;                          \
		struct ucm_error error;                                       \
                                                                              \
		change;                                                       \
		assert_einval(ucm_sparse_cuda_build(fixture.twins, &changed,  \
						    &keys, &written, &slab,   \
						    NULL, &error),            \
			      error, word);                                   \
	} while (0)

UNIT_TEST(wrong_builds_are_refused_by_name)
{
	BUILD_REFUSED(changed.dtype = UCM_DTYPE_UINT8, "dtype");
	BUILD_REFUSED(changed.head_dim = 0, "head_dim 0");
	BUILD_REFUSED(keys.base = NULL, "keys is NULL");
	BUILD_REFUSED(keys.base = DEVICE(1), "keys is not aligned");
	BUILD_REFUSED(keys.dtype = UCM_DTYPE_INT8, "keys: dtype");
	BUILD_REFUSED(keys.stride_token = INT64_MIN, "stride_block");
	BUILD_REFUSED(written.slots = DEVICE(4), "slots is not aligned");
	BUILD_REFUSED(written.slots = NULL, "blocks is NULL");
	BUILD_REFUSED(written.slots = NULL; written.blocks = DEVICE(0);
		      written.tokens = DEVICE(2), "tokens is not aligned");
	BUILD_REFUSED(written.num = (size_t)1 << 30, "num: too many");
	BUILD_REFUSED(written.num = SIZE_MAX, "num: too many");
	BUILD_REFUSED(slab.stride_bytes = 8, "stride_bytes 8");
	nothing_was_queued();
}

#define SELECT_REFUSED(change, word)                                          \
	do {                                                                  \
		struct ucm_budget_config config = { .block_size = 16,         \
						    .ratio = .5 };            \
		struct ucm_cuda_select select = a_selection();                \
		struct ucm_error error;                                       \
                                                                              \
		change;                                                       \
		assert_einval(ucm_sparse_cuda_select(fixture.twins, &config,  \
						     &select, NULL, &error),  \
			      error, word);                                   \
	} while (0)

UNIT_TEST(wrong_selections_are_refused_by_name)
{
	SELECT_REFUSED(config.block_size = 0, "block_size is 0");
	SELECT_REFUSED(config.ratio = NAN, "ratio");
	SELECT_REFUSED(select.scores = NULL, "scores is NULL");
	SELECT_REFUSED(select.scores_stride = 7, "scores_stride 7");
	SELECT_REFUSED(select.tables_out = NULL, "tables_out is NULL");
	SELECT_REFUSED(select.tables_out = DEVICE(0), "tables_out is tables");
	SELECT_REFUSED(select.tokens_out = DEVICE(1), "tokens_out is not al");
	SELECT_REFUSED(select.status = NULL, "status is NULL");
	SELECT_REFUSED(select.blocks_out = DEVICE(1), "blocks_out is not al");
	SELECT_REFUSED(select.num_out = DEVICE(1), "num_out is not aligned");
	SELECT_REFUSED(select.requests.max_blocks = 0, "max_blocks 0");
	nothing_was_queued();
}

#define SHIFT_REFUSED(change, word)                                           \
	do {                                                                  \
		struct ucm_rope rope = { .head_dim = 64, .base = 1e4 };       \
		struct ucm_cuda_shift shift = {                               \
			.from = { DEVICE(0), UCM_DTYPE_FLOAT16, 10, 2048,     \
				  128, 64 },                                  \
			.to = { DEVICE(0), 10, 2048, 128, 64 },               \
			.num = 4, .num_heads = 2, .block_size = 16,           \
			.deltas = DEVICE(0),                                  \
		};                                                            \
		struct ucm_error error;                                       \
                                                                              \
		change;                                                       \
		assert_einval(ucm_sparse_cuda_shift(fixture.twins, &rope,     \
						    &shift, NULL, &error),    \
			      error, word);                                   \
	} while (0)

UNIT_TEST(wrong_shifts_are_refused_by_name)
{
	SHIFT_REFUSED(rope.base = 1, "base 1");
	SHIFT_REFUSED(rope.head_dim = 1024, "rotary_dim 1024: up to 512");
	SHIFT_REFUSED(shift.from.base = NULL, "from");
	SHIFT_REFUSED(shift.to.base = NULL, "to");
	SHIFT_REFUSED(shift.from.base = DEVICE(1), "from is not aligned");
	SHIFT_REFUSED(shift.from.num_blocks = 0, "num_blocks");
	SHIFT_REFUSED(shift.num_heads = 0, "num_heads 0");
	SHIFT_REFUSED(shift.block_size = 0, "block_size 0");
	SHIFT_REFUSED(shift.deltas = NULL, "deltas is NULL");
	SHIFT_REFUSED(shift.from_blocks = DEVICE(2), "from_blocks is not al");
	SHIFT_REFUSED(shift.to_blocks = DEVICE(2), "to_blocks is not aligned");
	SHIFT_REFUSED(shift.tokens = DEVICE(2), "tokens is not aligned");
	SHIFT_REFUSED(shift.num = (size_t)1 << 31, "num: too many");
	nothing_was_queued();
}

#define DEVIATION_REFUSED(change, word)                                       \
	do {                                                                  \
		struct ucm_keys keys = { DEVICE(0), UCM_DTYPE_FLOAT16, 10,    \
					 2048, 128, 64 };                     \
		struct ucm_deviation_request request = {                      \
			.cached = keys, .fresh = keys, .num_tokens = 9,       \
			.num_heads = 2, .head_dim = 64, .block_size = 16,     \
		};                                                            \
		float *out = DEVICE(0);                                       \
		struct ucm_error error;                                       \
                                                                              \
		change;                                                       \
		assert_einval(ucm_sparse_cuda_deviation(fixture.twins,        \
							&request, out, NULL,  \
							&error),              \
			      error, word);                                   \
	} while (0)

UNIT_TEST(wrong_deviations_are_refused_by_name)
{
	DEVIATION_REFUSED(request.cached.base = NULL, "cached");
	DEVIATION_REFUSED(request.fresh.base = DEVICE(1), "fresh is not al");
	DEVIATION_REFUSED(request.fresh_values = request.fresh,
			  "cached_values");
	DEVIATION_REFUSED(request.num_tokens = 1u << 28, "num_tokens 268435");
	DEVIATION_REFUSED(request.num_heads = 0, "num_heads 0");
	DEVIATION_REFUSED(request.head_dim = 1025, "head_dim 1025");
	DEVIATION_REFUSED(request.block_size = 0, "block_size 0");
	DEVIATION_REFUSED(request.table = DEVICE(2), "table is not aligned");
	DEVIATION_REFUSED(out = NULL, "out is NULL");
	nothing_was_queued();
}

/* ---- hash codes ---- */

static const struct ucm_code_spec code_spec = {
	.num_heads = 2, .head_dim = 16, .rope_dim = 8, .bits = 64,
	.rope_bits = 8, .block_size = 16, .seed = 1,
};

static void *an_encoder(void)
{
	static uint64_t memory[2048];

	must(ucm_code_encoder_bytes(&code_spec) <= sizeof(memory));
	ok(ucm_code_encoder_make(&code_spec, NULL, memory, NULL));
	return memory;
}

#define CODES_REFUSED(change, word)                                           \
	do {                                                                  \
		struct ucm_cuda_encoder encoder = { an_encoder(), DEVICE(0) };\
		struct ucm_keys keys = { DEVICE(0), UCM_DTYPE_FLOAT16, 10,    \
					 2048, 128, 64 };                     \
		struct ucm_cuda_written written = { .slots = DEVICE(0),       \
						    .num = 4 };               \
		struct ucm_repr_slab slab = { DEVICE(0), 10, 1024 };          \
		struct ucm_error error;                                       \
                                                                              \
		change;                                                       \
		assert_einval(ucm_sparse_cuda_code_build(                     \
				      fixture.twins, &encoder, &keys,         \
				      &written, &slab, NULL, &error),         \
			      error, word);                                   \
	} while (0)

UNIT_TEST(wrong_codes_are_refused_by_name)
{
	uint64_t blank[16] = { 0 };

	CODES_REFUSED(encoder.host = NULL, "encoder is NULL");
	CODES_REFUSED(encoder.host = blank, "encoder: none was made");
	CODES_REFUSED(encoder.device = NULL, "encoder: device is NULL");
	CODES_REFUSED(encoder.device = DEVICE(4), "encoder: device is not al");
	CODES_REFUSED(keys.base = DEVICE(1), "keys is not aligned");
	CODES_REFUSED(keys.dtype = UCM_DTYPE_INT8, "keys: dtype");
	CODES_REFUSED(written.slots = DEVICE(4), "slots is not aligned");
	CODES_REFUSED(written.slots = NULL, "blocks is NULL");
	CODES_REFUSED(written.num = (size_t)1 << 30, "num: too many");
	CODES_REFUSED(slab.stride_bytes = 64, "stride_bytes 64");
	CODES_REFUSED(slab.base = DEVICE(4), "slab is not aligned");
	nothing_was_queued();
}

#define CODE_QUERY_REFUSED(change, word)                                      \
	do {                                                                  \
		struct ucm_cuda_encoder encoder = { an_encoder(), DEVICE(0) };\
		struct ucm_code_method method = { .num_heads = 4,             \
						  .merged_heads = 1 };        \
		struct ucm_cuda_queries queries = { DEVICE(0),                \
						    UCM_DTYPE_FLOAT16, 4, 2,  \
						    64, 16 };                 \
		struct ucm_cuda_queries rope = queries;                       \
		uint64_t *out = DEVICE(0);                                    \
		size_t stride = 99;                                           \
		struct ucm_error error;                                       \
                                                                              \
		change;                                                       \
		assert_einval(ucm_sparse_cuda_code_prepare(                   \
				      fixture.twins, &encoder, &method,       \
				      &queries, &rope, out, stride, NULL,     \
				      &error),                                \
			      error, word);                                   \
	} while (0)

UNIT_TEST(wrong_queries_of_codes_are_refused_by_name)
{
	CODE_QUERY_REFUSED(method.num_heads = 3, "num_heads 3");
	CODE_QUERY_REFUSED(method.merged_heads = 3, "merged_heads 3");
	CODE_QUERY_REFUSED(method.measure = 2, "measure 2");
	CODE_QUERY_REFUSED(queries.base = NULL, "queries is NULL");
	CODE_QUERY_REFUSED(queries.num_heads = 2, "queries: num_heads 2");
	CODE_QUERY_REFUSED(queries.dtype = UCM_DTYPE_INT8, "queries: dtype");
	CODE_QUERY_REFUSED(rope.base = DEVICE(1), "rope is not aligned");
	CODE_QUERY_REFUSED(rope.num = 3, "rope: num 3");
	CODE_QUERY_REFUSED(rope.stride_query = INT64_MAX, "rope: stride_query");
	CODE_QUERY_REFUSED(out = DEVICE(4), "out is not aligned");
	CODE_QUERY_REFUSED(stride = 11, "out_stride 11: at least 12");
	nothing_was_queued();
}

#define CODE_SCORE_REFUSED(change, word)                                      \
	do {                                                                  \
		struct ucm_repr_slab slab = { DEVICE(0), 10, 1024 };          \
		struct ucm_code_method method = { .num_heads = 4,             \
						  .merged_heads = 1 };        \
		struct ucm_cuda_code_score score = {                          \
			.queries = DEVICE(0), .query_stride = 12,             \
			.slab = &slab, .requests = some_requests(),           \
			.scores = DEVICE(0), .stride_row = 8,                 \
			.stride_request = 32,                                 \
		};                                                            \
		struct ucm_error error;                                       \
                                                                              \
		change;                                                       \
		assert_einval(ucm_sparse_cuda_code_score(                     \
				      fixture.twins, &code_spec, &method,     \
				      &score, NULL, &error),                  \
			      error, word);                                   \
	} while (0)

UNIT_TEST(wrong_scores_of_codes_are_refused_by_name)
{
	CODE_SCORE_REFUSED(method.over = 3, "over 3");
	CODE_SCORE_REFUSED(method.per = 3, "per 3");
	CODE_SCORE_REFUSED(score.slab = NULL, "slab is NULL");
	CODE_SCORE_REFUSED(slab.base = DEVICE(8), "slab is not aligned");
	CODE_SCORE_REFUSED(slab.stride_bytes = 1032, "stride_bytes 1032");
	CODE_SCORE_REFUSED(score.queries = DEVICE(4), "queries is not aligned");
	CODE_SCORE_REFUSED(score.query_stride = 11, "query_stride 11");
	CODE_SCORE_REFUSED(score.scores = DEVICE(2), "scores is not aligned");
	CODE_SCORE_REFUSED(score.stride_row = 7, "stride_row 7");
	CODE_SCORE_REFUSED(method.over = UCM_CODE_EACH, "stride_row 8");
	CODE_SCORE_REFUSED(score.requests.num = 65536, "num 65536");
	CODE_SCORE_REFUSED(score.requests.max_blocks = 1u << 30;
			   score.requests.table_stride = 1u << 30;
			   score.stride_row = score.stride_request = 1u << 30,
			   "max_blocks 1073741824: too many");
	nothing_was_queued();
}

/* ---- attention ---- */

#define ATTENTION_REFUSED(change, word)                                       \
	do {                                                                  \
		struct ucm_keys keys = { DEVICE(0), UCM_DTYPE_FLOAT16, 10,    \
					 2048, 128, 64 };                     \
		struct ucm_cuda_attention attention = {                       \
			.queries = { DEVICE(0), UCM_DTYPE_FLOAT16, 4, 2, 256, \
				     64 },                                    \
			.keys = keys, .values = keys,                         \
			.requests = some_requests(), .num_heads = 2,          \
			.head_dim = 64, .block_size = 16, .work = DEVICE(0),  \
			.out = DEVICE(0), .lse = DEVICE(0),                   \
			.out_stride = 256, .lse_stride = 4,                   \
			.selected_stride = 8,                                 \
		};                                                            \
		struct ucm_rerope rerope = {                                  \
			.rope = { .head_dim = 64, .base = 1e4 }, .window = 9, \
		};                                                            \
		const float *angles = DEVICE(0);                              \
		struct ucm_error error;                                       \
                                                                              \
		change;                                                       \
		assert_einval(ucm_sparse_cuda_rerope(fixture.twins, &rerope,  \
						     angles, &attention,      \
						     NULL, &error),           \
			      error, word);                                   \
	} while (0)

UNIT_TEST(wrong_attention_is_refused_by_name)
{
	ATTENTION_REFUSED(attention.num_heads = 0, "num_heads 0");
	ATTENTION_REFUSED(attention.queries.num_heads = 3, "queries: num_hea");
	ATTENTION_REFUSED(attention.queries.num = 1, "queries: num 1");
	ATTENTION_REFUSED(attention.head_dim = 1025, "head_dim 1025");
	ATTENTION_REFUSED(attention.value_dim = 1025, "value_dim 1025");
	ATTENTION_REFUSED(attention.block_size = 0, "block_size 0");
	ATTENTION_REFUSED(attention.scale = -1, "scale -1");
	ATTENTION_REFUSED(attention.keys.base = NULL, "keys");
	ATTENTION_REFUSED(attention.values.base = DEVICE(1), "values is not");
	ATTENTION_REFUSED(attention.work = NULL, "work is NULL");
	ATTENTION_REFUSED(attention.out = DEVICE(2), "out is not aligned");
	ATTENTION_REFUSED(attention.lse = DEVICE(2), "lse is not aligned");
	ATTENTION_REFUSED(attention.out_stride = 255, "out_stride 255");
	ATTENTION_REFUSED(attention.lse_stride = 3, "lse_stride 3");
	ATTENTION_REFUSED(attention.requests.max_blocks = 1u << 28;
			  attention.requests.table_stride = 1u << 28,
			  "max_blocks 268435456: too many tokens");
	ATTENTION_REFUSED(angles = NULL, "angles is NULL");
	ATTENTION_REFUSED(rerope.window = 0, "window 0");
	ATTENTION_REFUSED(rerope.training_length = 1, "training_length 1");
	ATTENTION_REFUSED(rerope.rope.base = 1, "base 1");
	ATTENTION_REFUSED(rerope.rope.head_dim = 32, "rope: head_dim 32");
	ATTENTION_REFUSED(attention.positions = DEVICE(2), "positions is not");
	ATTENTION_REFUSED(attention.selected = DEVICE(0);
			  attention.selected_stride = 7, "selected_stride 7");
	nothing_was_queued();
}

/* ---- merged channels ---- */

static const struct ucm_star_spec star_spec = {
	.dtype = UCM_DTYPE_FLOAT16, .num_heads = 2, .head_dim = 64,
	.block_size = 16, .merge_tokens = 4, .kept = 64,
};

#define STAR_BUILD_REFUSED(change, word)                                      \
	do {                                                                  \
		struct ucm_keys keys = { DEVICE(0), UCM_DTYPE_FLOAT16, 10,    \
					 2048, 128, 64 };                     \
		struct ucm_cuda_written written = { .slots = DEVICE(0),       \
						    .num = 4 };               \
		struct ucm_repr_slab slab = { DEVICE(0), 10, 8192 };          \
		struct ucm_star_spec changed = star_spec;                     \
		const uint16_t *channels = NULL;                              \
		struct ucm_error error;                                       \
                                                                              \
		change;                                                       \
		assert_einval(ucm_sparse_cuda_star_build(                     \
				      fixture.twins, &changed, channels,      \
				      &keys, &written, &slab, NULL, &error),  \
			      error, word);                                   \
	} while (0)

UNIT_TEST(wrong_merged_channels_are_refused_by_name)
{
	STAR_BUILD_REFUSED(changed.merge_tokens = 0, "merge_tokens 0");
	STAR_BUILD_REFUSED(changed.kept = 32, "channels is NULL");
	STAR_BUILD_REFUSED(channels = DEVICE(0), "channels: there are some");
	STAR_BUILD_REFUSED(keys.base = DEVICE(1), "keys is not aligned");
	STAR_BUILD_REFUSED(written.slots = DEVICE(4), "slots is not aligned");
	STAR_BUILD_REFUSED(written.num = (size_t)1 << 30, "num: too many");
	STAR_BUILD_REFUSED(slab.stride_bytes = 64, "stride_bytes 64");
	nothing_was_queued();
}

#define STAR_SCORE_REFUSED(change, word)                                      \
	do {                                                                  \
		struct ucm_repr_slab slab = { DEVICE(0), 10, 8192 };          \
		struct ucm_cuda_star_score score = {                          \
			.queries = DEVICE(0), .query_stride = 256,            \
			.num_queries = 1, .num_heads = 4, .slab = &slab,      \
			.requests = some_requests(), .scores = DEVICE(0),     \
			.weights = DEVICE(0), .stride_row = 8,                \
			.stride_request = 32, .scale = 1,                     \
		};                                                            \
		struct ucm_error error;                                       \
                                                                              \
		change;                                                       \
		assert_einval(ucm_sparse_cuda_star_score(                     \
				      fixture.twins, &star_spec, &score,      \
				      NULL, &error),                          \
			      error, word);                                   \
	} while (0)

UNIT_TEST(wrong_scores_of_merged_channels_are_refused_by_name)
{
	STAR_SCORE_REFUSED(score.num_queries = 0, "num_queries 0");
	STAR_SCORE_REFUSED(score.num_heads = 3, "num_heads 3");
	STAR_SCORE_REFUSED(score.per = 3, "per 3");
	STAR_SCORE_REFUSED(score.per = UCM_SCORE_BLOCK, "weights: with");
	STAR_SCORE_REFUSED(score.scale = -1, "scale -1");
	STAR_SCORE_REFUSED(score.slab = NULL, "slab is NULL");
	STAR_SCORE_REFUSED(score.queries = DEVICE(2), "queries is not al");
	STAR_SCORE_REFUSED(score.query_stride = 255, "query_stride 255");
	STAR_SCORE_REFUSED(score.weights = DEVICE(2), "weights is not al");
	STAR_SCORE_REFUSED(score.stride_row = 7, "stride_row 7");
	nothing_was_queued();
}

#define VOTE_REFUSED(change, word)                                            \
	do {                                                                  \
		struct ucm_cuda_star_vote vote = {                            \
			.requests = some_requests(), .scores = DEVICE(0),     \
			.weights = DEVICE(0), .stride_row = 8,                \
			.stride_request = 32, .num_rows = 4, .scale = 1,      \
			.votes = DEVICE(0), .votes_stride = 8,                \
		};                                                            \
		uint32_t size = 16;                                           \
		struct ucm_error error;                                       \
                                                                              \
		change;                                                       \
		assert_einval(ucm_sparse_cuda_star_vote(fixture.twins, size,  \
							&vote, NULL, &error), \
			      error, word);                                   \
	} while (0)

UNIT_TEST(wrong_votes_are_refused_by_name)
{
	VOTE_REFUSED(size = 0, "block_size 0");
	VOTE_REFUSED(vote.num_rows = 0, "num_rows 0");
	VOTE_REFUSED(vote.scores = NULL, "scores is NULL");
	VOTE_REFUSED(vote.weights = NULL, "weights is NULL");
	VOTE_REFUSED(vote.votes = DEVICE(2), "votes is not aligned");
	VOTE_REFUSED(vote.scale = NAN, "scale nan");
	VOTE_REFUSED(vote.scale = INFINITY, "scale inf");
	VOTE_REFUSED(vote.votes_stride = 7, "stride_row 8, stride_request 32, "
					    "votes_stride 7");
	nothing_was_queued();
}

UNIT_TEST(no_requests_are_nothing_to_do)
{
	struct ucm_repr_slab slab = a_slab();
	struct ucm_cuda_score score = a_score(&slab);
	struct ucm_cuda_select select = a_selection();
	struct ucm_budget_config config = { .block_size = 16 };

	score.requests.num = select.requests.num = 0;
	ck_assert_int_eq(ucm_sparse_cuda_score(fixture.twins, &spec, &score,
					       NULL, NULL), 0);
	ck_assert_int_eq(ucm_sparse_cuda_select(fixture.twins, &config,
						&select, NULL, NULL), 0);
	nothing_was_queued();
}

UNIT_TEST(a_call_is_one_kernel_in_the_stream_of_the_caller)
{
	struct ucm_repr_slab slab = a_slab();
	struct ucm_cuda_score score = a_score(&slab);
	int32_t zeros[16] = { 0 };

	score.requests.tables = twins_upload(&fixture, zeros, sizeof(zeros));
	score.requests.tokens = score.requests.tables;
	fake->foreign = 0;
	ck_assert_int_eq(ucm_sparse_cuda_score(fixture.twins, &spec, &score,
					       (void *)FAKE_STREAM, NULL), 0);
	ck_assert_uint_eq(fake->launches, 1);
	ck_assert_uint_eq(fake->foreign, 1);
	ck_assert_uint_eq(fake->queued, 1); /* nothing has waited for it */
	twins_download(&fixture, zeros, score.requests.tables, sizeof(zeros));
}

UNIT_TEST(a_launch_that_fails_is_told)
{
	struct ucm_cuda_select select = a_selection();
	struct ucm_budget_config config = { .block_size = 16 };
	struct ucm_error error;

	fake->fail_with = CUDA_ERROR_LAUNCH_FAILED;
	fake->fail = "cuLaunchKernel";
	ck_assert_int_eq(ucm_sparse_cuda_select(fixture.twins, &config,
						&select, NULL, &error), -EIO);
	ck_assert_str_eq(error.text, "CUDA device 0: ucm_twin_select: "
				     "CUDA_ERROR_LAUNCH_FAILED (719): "
				     "unspecified launch failure");
	ck_assert_int_eq(fake->pushed, 0);
	fake->fail = "cuCtxPushCurrent";
	ck_assert_int_eq(ucm_sparse_cuda_select(fixture.twins, &config,
						&select, NULL, &error), -EIO);
}

/* ---- opening ---- */

static void opens_not(const char *call, int after)
{
	struct ucm_sparse_cuda *twins = NULL;
	struct ucm_error error;
	unsigned live = fake->live;

	fake->fail = call;
	fake->fail_after = (unsigned)after;
	fake->fail_with = CUDA_ERROR_OUT_OF_MEMORY;
	ck_assert_int_eq(ucm_sparse_cuda_open(0, &twins, &error), -ENOMEM);
	ck_assert_msg(!strncmp(error.text, "CUDA device 0: ", 15), "%s",
		      error.text);
	ck_assert_ptr_null(twins);
	fake->fail = NULL;
	ck_assert_uint_eq(fake->live, live); /* all is undone */
	ck_assert_int_eq(fake->pushed, 0);
}

UNIT_TEST(opening_that_fails_leaves_nothing_behind)
{
	opens_not("cuDeviceGet", 0);
	opens_not("cuDevicePrimaryCtxRetain", 0);
	opens_not("cuCtxPushCurrent", 0);
	opens_not("cuModuleLoadData", 0);
	opens_not("cuModuleGetFunction", 0);
	opens_not("cuModuleGetFunction", 10);
}

UNIT_FIXTURE(.setup = NULL);

UNIT_TEST(without_a_driver_it_says_so)
{
	struct ucm_sparse_cuda *twins = NULL;
	struct ucm_error error;

	ucm_cuda_library = "/nonexistent/libcuda.so.1";
	ck_assert_int_eq(ucm_sparse_cuda_open(0, &twins, &error), -ENODEV);
	ck_assert_msg(strstr(error.text, "no CUDA driver") != NULL, "%s",
		      error.text);
	ck_assert_ptr_null(twins);
	ucm_sparse_cuda_close(NULL);
}
