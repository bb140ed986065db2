/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_retrieval_calls.c - threads retrieve what the calls of sparse.h would,
 * and wrong jobs are refused.
 */
#include <config.h>

#include <ucm/retrieve.h>

#include "tests/unit/sparse/retrieval_fixture.h"
#include "tests/unit/sparse_fixture.h"

static float scores[BLOCKS];

/* ---- the calls of sparse.h ---- */

static const struct ucm_repr_spec spec = {
	UCM_REPR_MEAN, UCM_DTYPE_FLOAT32, 2, 32, 16,
};

UNIT_TEST(results_are_those_of_the_calls_one_by_one)
{
	struct ucm_retrieval *pool = opened(3, 8);
	uint64_t random = random_case(0);
	struct ucm_repr_slab slab = slab_make(&spec, BLOCKS, 0);
	static int32_t slots[BLOCKS];
	float query[8][128], want_scores[BLOCKS];
	static uint32_t want[BLOCKS];

	for (size_t i = 0; i < BLOCKS * slab.stride_bytes / 4; i++)
		((float *)slab.base)[i] = random_float(&random, 1);
	for (uint32_t i = 0; i < BLOCKS; i++)
		slots[i] = (int32_t)random_between(&random, 0, BLOCKS - 1);
	for (uint32_t lane = 0; lane < 8; lane++) {
		struct ucm_retrieval_job job = {
			.lane = lane, .spec = &spec, .query = query[lane],
			.num_heads = 4, .slab = &slab,
			.slots = lane % 2 ? slots : NULL,
			.budget = { BLOCKS - lane, lane, 5, 1000 },
		};

		for (int i = 0; i < 128; i++)
			query[lane][i] = random_float(&random, 1);
		must(!ucm_retrieval_submit(pool, &job, NULL));
	}
	for (uint32_t lane = 0; lane < 8; lane++) {
		struct ucm_budget budget = { BLOCKS - lane, lane, 5, 1000 };
		struct ucm_score_request request = {
			.query = query[lane], .num_heads = 4,
			.per = UCM_SCORE_BLOCK, .slab = &slab,
			.slots = lane % 2 ? slots : NULL,
			.num = BLOCKS - lane, .scores = want_scores,
		};
		uint32_t num;

		must(!ucm_score(&spec, &request, 1, NULL));
		must(!ucm_select(want_scores, &budget, want, BLOCKS, &num,
				 NULL));
		must(!take(pool, lane, 0, SOON));
		must(result.num == num);
		ck_assert_mem_eq(blocks, want, num * sizeof(*want));
	}
	free(slab.base);
	ucm_retrieval_close(pool);
}

/* Random codes and merged channels: whatever the keys were. */
static void fill_slab(struct ucm_repr_slab *slab, size_t bytes,
		      size_t count_at, uint32_t most, bool floats,
		      uint64_t *random)
{
	*slab = (struct ucm_repr_slab){
		.base = aligned_alloc(64, BLOCKS * bytes),
		.num_slots = BLOCKS,
		.stride_bytes = bytes,
	};
	for (size_t i = 0; i < BLOCKS * bytes / 4; i++) {
		uint32_t *word = (uint32_t *)slab->base + i;

		*word = (uint32_t)random_next(random);
		if (floats)
			*(float *)word = random_float(random, 1);
	}
	for (size_t i = 0; i < BLOCKS; i++)
		*(uint32_t *)((uint8_t *)slab->base + i * bytes + count_at) =
			random_between(random, 0, most);
}

/* Half of the blocks, twice: from their slots, and one after the other. */
static void check_direct(struct ucm_retrieval *pool,
			 struct ucm_retrieval_job *job,
			 const float *want_scores)
{
	static uint32_t want[BLOCKS];
	uint32_t num;

	must(!ucm_select(want_scores, &job->budget, want, BLOCKS, &num, NULL));
	must(!ucm_retrieval_submit(pool, job, NULL));
	result = (struct ucm_retrieval_result){
		.blocks = blocks, .room = BLOCKS, .scores = scores,
		.num_scores = BLOCKS,
	};
	must(!ucm_retrieval_take(pool, job->lane, job->step, SOON, &result,
				 NULL));
	must(result.num == num);
	ck_assert_mem_eq(blocks, want, num * sizeof(*want));
	ck_assert_mem_eq(scores + job->budget.first,
			 want_scores + job->budget.first,
			 (job->budget.num_blocks - job->budget.first -
			  job->budget.last) * sizeof(*scores));
	job->step++;
}

UNIT_TEST(hash_codes_are_retrieved_as_they_are_scored)
{
	static const struct ucm_code_spec codes = {
		.form = UCM_CODE_TOKENS, .num_heads = 2, .head_dim = 32,
		.bits = 64, .block_size = 16, .seed = 3,
	};
	struct ucm_code_method method = {
		.measure = UCM_CODE_HAMMING, .over = UCM_CODE_BEST,
		.per = UCM_SCORE_BLOCK, .num_heads = 4, .merged_heads = 2,
	};
	struct ucm_retrieval *pool = opened(3, 2);
	uint64_t random = random_case(0), query[64];
	static float want[BLOCKS], vector[4 * 32];
	static int32_t slots[BLOCKS];
	struct ucm_repr_slab slab;
	struct ucm_query q = { vector, UCM_DTYPE_FLOAT32, 4, 32 };
	struct ucm_retrieval_job job = {
		.codes = &codes, .code_method = &method, .code_query = query,
		.slab = &slab, .budget = { BLOCKS, 2, 3, 700 },
	};
	void *encoder = aligned_alloc(64, ucm_code_encoder_bytes(&codes) + 64);

	must(!ucm_code_encoder_make(&codes, NULL, encoder, NULL));
	fill_slab(&slab, ucm_code_bytes(&codes), ucm_code_bytes(&codes) - 64,
		  16, false, &random);
	for (int i = 0; i < 128; i++)
		vector[i] = random_float(&random, 1);
	for (uint32_t i = 0; i < BLOCKS; i++)
		slots[i] = (int32_t)random_between(&random, 0, BLOCKS - 1);
	for (int i = 0; i < 4; i++) {
		struct ucm_code_request request = {
			.query = query, .slab = &slab,
			.slots = i % 2 ? slots : NULL, .num = BLOCKS,
			.scores = want,
		};

		method.measure = i < 2 ? UCM_CODE_HAMMING : UCM_CODE_ESTIMATE;
		must(ucm_code_query_words(&codes, &method) <= 64);
		must(!ucm_code_query_prepare(encoder, &method, &q, NULL, query,
					     NULL));
		must(!ucm_code_score(&codes, &method, &request, 1, NULL));
		job.slots = request.slots;
		check_direct(pool, &job, want);
	}
	free(encoder);
	free(slab.base);
	ucm_retrieval_close(pool);
}

UNIT_TEST(merged_channels_are_retrieved_as_they_are_scored)
{
	static uint16_t channels[2 * 8];
	const struct ucm_star_spec star = {
		.dtype = UCM_DTYPE_FLOAT32, .num_heads = 2, .head_dim = 32,
		.block_size = 16, .merge_tokens = 4, .kept = 8,
		.channels = channels,
	};
	struct ucm_retrieval *pool = opened(3, 2);
	uint64_t random = random_case(0);
	static float want[BLOCKS], vectors[3][4 * 32], query[3 * 4 * 8];
	struct ucm_query queries[3];
	struct ucm_repr_slab slab;
	struct ucm_retrieval_job job = {
		.star = &star, .query = query, .num_heads = 4,
		.num_queries = 3, .slab = &slab,
		.budget = { BLOCKS, 0, 1, 900 },
	};
	struct ucm_star_request request = {
		.query = query, .num_queries = 3, .num_heads = 4,
		.per = UCM_SCORE_BLOCK, .slab = &slab, .num = BLOCKS,
		.scores = want,
	};

	for (int i = 0; i < 16; i++)
		channels[i] = (uint16_t)(i % 8 * 4 + i / 8);
	fill_slab(&slab, ucm_star_bytes(&star), 2 * 8 * 16 * 4, 4, true,
		  &random);
	for (int i = 0; i < 3 * 128; i++)
		vectors[i / 128][i % 128] = random_float(&random, 1);
	for (int i = 0; i < 3; i++)
		queries[i] = (struct ucm_query){ vectors[i],
						 UCM_DTYPE_FLOAT32, 4, 32 };
	must(!ucm_star_query_prepare(&star, queries, 3, query, NULL));
	must(!ucm_star_score(&star, &request, 1, NULL));
	check_direct(pool, &job, want);
	free(slab.base);
	ucm_retrieval_close(pool);
}

UNIT_FIXTURE(.timeout = 30);

/* ---- what is refused ---- */

UNIT_TEST(wrong_options_are_refused_by_name)
{
	static const struct {
		uint32_t threads, jobs, lanes, max_blocks, query_floats;
		const char *word;
	} rows[] = {
		{ 0, 1, 1, 1, 1, "threads 0" },
		{ 65, 1, 1, 1, 1, "threads 65" },
		{ 1, 0, 1, 1, 1, "jobs 0" },
		{ 1, 65537, 1, 1, 1, "jobs 65537" },
		{ 1, 1, 0, 1, 1, "lanes 0" },
		{ 1, 1, 1, 0, 1, "max_blocks 0" },
		{ 1, 1, 1, 1, 0, "query_floats 0" },
	};
	struct ucm_retrieval *pool = NULL;
	struct ucm_error error;

	for (size_t i = 0; i < NUM_ROWS(rows); i++) {
		struct ucm_retrieval_options options = {
			.size = sizeof(options), .threads = rows[i].threads,
			.jobs = rows[i].jobs, .lanes = rows[i].lanes,
			.max_blocks = rows[i].max_blocks,
			.query_floats = rows[i].query_floats,
		};

		assert_einval(ucm_retrieval_open(&options, &pool, &error),
			      error, rows[i].word);
		options.size = 3;
		assert_einval(ucm_retrieval_open(&options, &pool, &error),
			      error, "size 3");
	}
	assert_einval(ucm_retrieval_open(NULL, &pool, &error), error,
		      "struct ucm_retrieval_options is NULL");
	ck_assert_ptr_null(pool);
	ucm_retrieval_close(NULL);
}

UNIT_TEST(wrong_jobs_are_refused_by_name)
{
	struct ucm_retrieval *pool = opened(1, 2);
	struct ucm_repr_slab slab = { .num_slots = 0 };
	struct ucm_retrieval_job job = job_of(8, 1);
	struct ucm_code_spec code_spec = {
		.num_heads = 2, .head_dim = 32, .bits = 64, .block_size = 16,
	};
	struct ucm_code_method method = {
		.per = UCM_SCORE_BLOCK, .num_heads = 4, .merged_heads = 1,
	};
	struct ucm_star_spec star = {
		.dtype = UCM_DTYPE_FLOAT32, .num_heads = 2, .head_dim = 32,
		.block_size = 16, .merge_tokens = 4, .kept = 32,
	};
	float query[8] __attribute__((aligned(64))) = { 0 };
	struct ucm_error error;

#define REFUSED(word)                                                         \
	assert_einval(ucm_retrieval_submit(pool, &job, &error), error, word)
	REFUSED("lane 8");
	job.lane = 0;
	job.budget.num_blocks = BLOCKS + 1;
	REFUSED("budget: 5001 blocks");
	job.budget.num_blocks = 5;
	REFUSED("budget: 1 + 3 + 2 of 5");
	job.budget.num_blocks = 6;
	job.score = NULL;
	REFUSED("spec is NULL");
	job.spec = &spec;
	REFUSED("num_heads 0: a multiple of");
	job.num_heads = 2;
	REFUSED("slab is NULL");
	job.slab = &slab;
	REFUSED("slab is NULL");
	slab.base = query;
	REFUSED("stride_bytes 0");
	slab.stride_bytes = 256;
	REFUSED("query is NULL");
	job.query = query;
	job.score = score_behind_gate;
	REFUSED("spec, codes, star and score: more than one");
	job.score = NULL;
	job.codes = &code_spec;
	REFUSED("spec, codes, star and score: more than one");
	job.spec = NULL;
	REFUSED("code_method is NULL");
	job.code_method = &method;
	method.over = UCM_CODE_EACH;
	REFUSED("code_method: per 2, over 2");
	method.over = UCM_CODE_BEST;
	method.per = UCM_SCORE_HEAD;
	REFUSED("code_method: per 0, over 0");
	method.per = UCM_SCORE_BLOCK;
	method.merged_heads = 3;
	REFUSED("merged_heads 3");
	method.merged_heads = 2;
	REFUSED("stride_bytes 256");
	slab.stride_bytes = 640;
	REFUSED("query is NULL");
	code_spec.bits = 7;
	REFUSED("bits 7");
	job.codes = NULL;
	job.star = &star;
	REFUSED("num_queries 0");
	job.num_queries = 1;
	star.merge_tokens = 17;
	REFUSED("merge_tokens 17");
	star.merge_tokens = 4;
	REFUSED("stride_bytes 640");
	slab.stride_bytes = 1 << 16;
	job.num_queries = 100;
	REFUSED("query_floats 4096: the query has 6400");
	job.star = NULL;
	job.spec = &spec;
	job.step = UINT64_MAX;
	REFUSED("step");
	assert_einval(ucm_retrieval_submit(pool, NULL, &error), error, "job");
	assert_einval(ucm_retrieval_submit(NULL, &job, &error), error,
		      "retrieval");
	assert_einval(ucm_retrieval_cancel(pool, 9, &error), error, "lane 9");
	must(!submit(pool, 0, 1));
	result = (struct ucm_retrieval_result){ .blocks = blocks, .room = 5 };
	assert_einval(ucm_retrieval_take(pool, 0, 1, SOON, &result, &error),
		      error, "room 5");
	result.room = 6;
	result.scores = scores;
	assert_einval(ucm_retrieval_take(pool, 0, 1, SOON, &result, &error),
		      error, "num_scores 0");
	assert_einval(ucm_retrieval_take(pool, 0, 1, SOON, NULL, &error), error,
		      "out");
	must(!take(pool, 0, 1, SOON)); /* it is still there */
	ucm_retrieval_close(pool);
}
