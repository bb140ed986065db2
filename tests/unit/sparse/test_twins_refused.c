/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_twins_refused.c - wrong calls of kernels of gpu/sparse/ are refused by
 * name, and nothing is queued.
 */
#include <config.h>

#include "tests/unit/sparse/fake_device.h"

/* ---- calls ---- */

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

UNIT_FIXTURE(.setup = open_fake, .teardown = close_fake);

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
	BUILD_REFUSED(keys.stride_token = INT64_MIN, "keys: stride_block");
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
