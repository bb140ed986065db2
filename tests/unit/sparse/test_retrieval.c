/* SPDX-License-Identifier: Apache-2.0 */
/* test_retrieval.c - threads that score and select: bounded, in time, known by
 * their steps, and gone when they are cancelled. */
#include <config.h>

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ucm/retrieve.h>

#include "common/clock.h"
#include "tests/unit/sparse_fixture.h"

#define BLOCKS 5000u /* several pieces */
#define SOON   30000 /* ms: never reached */

static struct ucm_retrieval *opened(uint32_t threads, uint32_t jobs)
{
	const struct ucm_retrieval_options options = {
		.size = sizeof(options), .threads = threads, .jobs = jobs,
		.lanes = 8, .max_blocks = BLOCKS, .query_floats = 4096,
	};
	struct ucm_retrieval *pool;
	struct ucm_error error;

	ck_assert_msg(!ucm_retrieval_open(&options, &pool, &error), "%s",
		      error.text);
	return pool;
}

/* ---- jobs by score(), which a test holds up ---- */

static struct gate {
	pthread_mutex_t lock;
	pthread_cond_t moved;
	bool shut;
	unsigned inside, calls;
} gate = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, 0, 0 };

static void gate_set(bool shut)
{
	pthread_mutex_lock(&gate.lock);
	gate.shut = shut;
	pthread_cond_broadcast(&gate.moved);
	pthread_mutex_unlock(&gate.lock);
}

static void gate_await(unsigned inside)
{
	pthread_mutex_lock(&gate.lock);
	while (gate.inside < inside)
		pthread_cond_wait(&gate.moved, &gate.lock);
	pthread_mutex_unlock(&gate.lock);
}

/* Block i has the score (i * factor) mod 4999. */
static int score_behind_gate(void *arg, size_t begin, size_t end, float *scores,
			     struct ucm_error *error)
{
	const unsigned *factor = arg;

	(void)error;
	pthread_mutex_lock(&gate.lock);
	gate.inside++;
	gate.calls++;
	pthread_cond_broadcast(&gate.moved);
	while (gate.shut)
		pthread_cond_wait(&gate.moved, &gate.lock);
	gate.inside--;
	pthread_mutex_unlock(&gate.lock);
	for (size_t i = begin; i < end; i++)
		scores[i - begin] = (float)(i * *factor % 4999);
	return 0;
}

static unsigned one = 1;

static struct ucm_retrieval_job job_of(uint32_t lane, uint64_t step)
{
	return (struct ucm_retrieval_job){
		.lane = lane, .step = step, .score = score_behind_gate,
		.arg = &one,
		.budget = { .num_blocks = BLOCKS, .first = 1, .last = 2,
			    .topk = 3 },
	};
}

static int submit(struct ucm_retrieval *pool, uint32_t lane, uint64_t step)
{
	const struct ucm_retrieval_job job = job_of(lane, step);

	return ucm_retrieval_submit(pool, &job, NULL);
}

static uint32_t blocks[BLOCKS];
static float scores[BLOCKS];
static struct ucm_retrieval_result result;

static int take(struct ucm_retrieval *pool, uint32_t lane, uint64_t step,
		int timeout_ms)
{
	result = (struct ucm_retrieval_result){ .blocks = blocks,
						.room = BLOCKS };
	return ucm_retrieval_take(pool, lane, step, timeout_ms, &result, NULL);
}

UNIT_TEST(a_result_is_that_of_its_scores)
{
	struct ucm_retrieval *pool = opened(2, 4);
	static const uint32_t want[] = { 0, 4995, 4996, 4997, 4998, 4999 };

	must(!submit(pool, 3, 7));
	result = (struct ucm_retrieval_result){
		.blocks = blocks, .room = 6, .scores = scores,
		.num_scores = BLOCKS,
	};
	must(!ucm_retrieval_take(pool, 3, 7, SOON, &result, NULL));
	ck_assert_uint_eq(result.num, 6);
	ck_assert_uint_eq(result.num_blocks, BLOCKS);
	ck_assert_mem_eq(blocks, want, sizeof(want));
	ck_assert_uint_eq(result.newest, 7);
	/* of the windows' blocks: the least */
	ck_assert(scores[0] == 1 && scores[1] == 1 && scores[4997] == 4997 &&
		  scores[4998] == 1 && scores[4999] == 1);
	ucm_retrieval_close(pool);
}

UNIT_TEST(more_jobs_than_there_may_be_are_refused)
{
	struct ucm_retrieval *pool = opened(1, 3);
	struct ucm_retrieval_stats stats;

	gate_set(true);
	for (uint32_t i = 0; i < 3; i++)
		must(!submit(pool, i, 1));
	ck_assert_int_eq(submit(pool, 3, 1), -EAGAIN);
	gate_await(1);
	ucm_retrieval_get_stats(pool, &stats);
	must(stats.waiting == 2 && stats.running == 1 && stats.refused == 1);
	gate_set(false);
	must(!take(pool, 2, 1, SOON));
	must(!submit(pool, 3, 1));
	/* what is done and has not been taken counts, too */
	must(!take(pool, 3, 1, SOON));
	must(!submit(pool, 3, 2));
	ck_assert_int_eq(submit(pool, 4, 1), -EAGAIN);
	ucm_retrieval_close(pool);
}

UNIT_TEST(who_waits_for_so_long_can_ask_again)
{
	struct ucm_retrieval *pool = opened(1, 2);

	gate_set(true);
	must(!submit(pool, 0, 1));
	ck_assert_int_eq(take(pool, 0, 1, 0), -ETIMEDOUT);
	ck_assert_int_eq(take(pool, 0, 1, 5), -ETIMEDOUT);
	gate_set(false);
	must(!take(pool, 0, 1, -1));
	must(result.num == 6 && result.wait_ns + result.run_ns > 5000000);
	ucm_retrieval_close(pool);
}

UNIT_TEST(a_deadline_ends_a_job_that_no_thread_has_come_to)
{
	struct ucm_retrieval *pool = opened(1, 2);
	struct ucm_retrieval_job late = job_of(1, 1);
	struct ucm_error error;

	late.deadline_ms = 3;
	gate_set(true);
	must(!submit(pool, 0, 1));
	gate_await(1);
	must(!ucm_retrieval_submit(pool, &late, NULL));
	result = (struct ucm_retrieval_result){ .blocks = blocks, .room = 6 };
	ck_assert_int_eq(ucm_retrieval_take(pool, 1, 1, -1, &result, &error),
			 -ETIME);
	ck_assert_str_eq(error.text, "deadline_ms 3: over");
	ck_assert_int_eq(take(pool, 1, 1, -1), -ESTALE); /* it is gone */
	gate_set(false);
	must(!take(pool, 0, 1, SOON));
	ucm_retrieval_close(pool);
}

UNIT_TEST(a_deadline_ends_a_job_between_its_pieces)
{
	struct ucm_retrieval *pool = opened(1, 2);
	struct ucm_retrieval_job late = job_of(1, 1);
	int64_t until;

	late.deadline_ms = 500; /* enough to begin, on a busy machine */
	gate_set(true);
	must(!ucm_retrieval_submit(pool, &late, NULL));
	until = ucm_monotonic_ms() + late.deadline_ms + 1;
	gate_await(1);
	while (ucm_monotonic_ms() <= until)
		sched_yield();
	gate_set(false);
	ck_assert_int_eq(take(pool, 1, 1, -1), -ETIME);
	ck_assert_uint_eq(gate.calls, 1);
	ucm_retrieval_close(pool);
}

UNIT_TEST(a_stale_result_is_known_as_stale)
{
	struct ucm_retrieval *pool = opened(2, 4);

	must(!submit(pool, 0, 5));
	must(!submit(pool, 0, 9));
	must(!take(pool, 0, 5, SOON));
	ck_assert_uint_eq(result.newest, 9); /* above 5: there is a newer one */
	must(!submit(pool, 0, 10));
	must(!submit(pool, 0, 11));
	must(!take(pool, 0, 11, SOON));
	ck_assert_uint_eq(result.newest, 11);
	ck_assert_int_eq(take(pool, 0, 9, SOON), -ESTALE);
	ck_assert_int_eq(take(pool, 0, 10, SOON), -ESTALE);
	ck_assert_int_eq(take(pool, 0, 12, SOON), -ENOENT);
	ck_assert_int_eq(take(pool, 1, 1, SOON), -ENOENT);
	/* steps rise */
	ck_assert_int_eq(submit(pool, 0, 11), -EINVAL);
	ck_assert_int_eq(submit(pool, 0, 3), -EINVAL);
	ucm_retrieval_close(pool);
}

static void *cancel_lane(void *pool)
{
	must(!ucm_retrieval_cancel(pool, 2, NULL));
	return NULL;
}

UNIT_TEST(what_is_cancelled_reads_nothing_any_more)
{
	struct ucm_retrieval *pool = opened(1, 4);
	unsigned *factor = malloc(sizeof(*factor));
	struct ucm_retrieval_job job = job_of(2, 1);
	pthread_t thread;

	*factor = 3;
	job.arg = factor;
	gate_set(true);
	must(!ucm_retrieval_submit(pool, &job, NULL));
	job.step = 2;
	must(!ucm_retrieval_submit(pool, &job, NULL)); /* waits */
	gate_await(1);
	must(!pthread_create(&thread, NULL, cancel_lane, pool));
	gate_set(false);
	pthread_join(thread, NULL);
	free(factor); /* the address sanitizer sees who reads it */
	ck_assert_int_eq(take(pool, 2, 1, SOON), -ENOENT);
	/* the lane is as new */
	must(!submit(pool, 2, 0));
	must(!take(pool, 2, 0, SOON));
	ucm_retrieval_close(pool);
}

static int score_fails(void *arg, size_t begin, size_t end, float *out,
		       struct ucm_error *error)
{
	(void)arg;
	for (size_t i = begin; i < end; i++)
		out[i - begin] = 1;
	if (begin < 2000)
		return 0;
	snprintf(error->text, sizeof(error->text), "block %zu: gone", begin);
	return -EIO;
}

static int score_nan(void *arg, size_t begin, size_t end, float *out,
		     struct ucm_error *error)
{
	(void)arg;
	(void)error;
	for (size_t i = begin; i < end; i++)
		out[i - begin] = i == 4000 ? NAN : 1;
	return 0;
}

UNIT_TEST(a_job_that_fails_says_so)
{
	struct ucm_retrieval *pool = opened(2, 4);
	struct ucm_retrieval_job job = job_of(0, 1);
	struct ucm_error error;

	job.score = score_fails;
	must(!ucm_retrieval_submit(pool, &job, NULL));
	result = (struct ucm_retrieval_result){ .blocks = blocks, .room = 6,
						.num = 77 };
	ck_assert_int_eq(ucm_retrieval_take(pool, 0, 1, SOON, &result, &error),
			 -EIO);
	ck_assert_str_eq(error.text, "block 2049: gone");
	ck_assert_uint_eq(result.num, 77);
	job.step = 2;
	job.score = score_nan;
	must(!ucm_retrieval_submit(pool, &job, NULL));
	ck_assert_int_eq(ucm_retrieval_take(pool, 0, 2, SOON, &result, &error),
			 -EBADMSG);
	ck_assert_str_eq(error.text, "scores: one is NaN");
	must(!submit(pool, 0, 3));
	must(!take(pool, 0, 3, SOON));
	ucm_retrieval_close(pool);
}

/* ---- earlier ones, while somebody waits ---- */

/* Only the jobs whose arg is &one stop at the gate. */
static int score_of_two(void *arg, size_t begin, size_t end, float *out,
			struct ucm_error *error)
{
	if (arg)
		return score_behind_gate(arg, begin, end, out, error);
	memset(out, 0, (end - begin) * sizeof(*out));
	return 0;
}

UNIT_TEST(a_take_does_not_wait_for_earlier_jobs_beyond_its_timeout)
{
	struct ucm_retrieval *pool = opened(2, 3);
	struct ucm_retrieval_job job = job_of(0, 1);
	struct ucm_retrieval_stats stats;

	gate_set(true);
	job.score = score_of_two;
	must(!ucm_retrieval_submit(pool, &job, NULL));
	gate_await(1);
	job.step = 2;
	job.arg = NULL;
	must(!ucm_retrieval_submit(pool, &job, NULL));
	do {
		ucm_retrieval_get_stats(pool, &stats);
	} while (!stats.done);
	/* step 2 is done, and what step 1 reads must not be let go yet */
	ck_assert_int_eq(take(pool, 0, 2, 0), -ETIMEDOUT);
	ck_assert_int_eq(take(pool, 0, 2, 5), -ETIMEDOUT);
	ck_assert_int_eq(take(pool, 0, 1, 0), -ESTALE);
	gate_set(false);
	must(!take(pool, 0, 2, SOON));
	ck_assert_uint_eq(gate.inside, 0);
	ck_assert_int_eq(take(pool, 0, 1, SOON), -ESTALE);
	ucm_retrieval_get_stats(pool, &stats);
	must(stats.stale == 1 && stats.taken == 1 && stats.running == 0);
	/* a lane that is cancelled knows nothing of it */
	must(!ucm_retrieval_cancel(pool, 0, NULL));
	must(!submit(pool, 0, 0));
	must(!take(pool, 0, 0, SOON));
	ucm_retrieval_close(pool);
}

/* ---- too few threads ---- */

static int threads_left = INT_MAX;

/* The crew's, in place of libc's: after so many there are no more. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attr,
		   void *(*run)(void *), void *arg)
{
	__typeof__(pthread_create) *real =
		(__typeof__(real))dlsym(RTLD_NEXT, "pthread_create");

	if (threads_left != INT_MAX && threads_left-- <= 0)
		return EAGAIN;
	return real(thread, attr, run, arg);
}

UNIT_TEST(fewer_threads_than_were_asked_for_are_refused_by_number)
{
	const struct ucm_retrieval_options options = {
		.size = sizeof(options), .threads = 4, .jobs = 1, .lanes = 1,
		.max_blocks = 1, .query_floats = 1,
	};
	struct ucm_retrieval *pool = NULL;
	struct ucm_error error;

	for (int i = 0; i < 4; i++) {
		char want[64];

		threads_left = i;
		ck_assert_int_eq(ucm_retrieval_open(&options, &pool, &error),
				 -EAGAIN);
		snprintf(want, sizeof(want), "threads 4: %d could be started",
			 i);
		ck_assert_str_eq(error.text, want);
		ck_assert_ptr_null(pool);
	}
	threads_left = 4;
	must(!ucm_retrieval_open(&options, &pool, &error));
	threads_left = INT_MAX;
	ucm_retrieval_close(pool);
}

/* ---- zeros ---- */

/* Zeros of either sign, 4000 of them; what vectors find first differs. */
static int score_zeros(void *arg, size_t begin, size_t end, float *out,
		       struct ucm_error *error)
{
	(void)error;
	for (size_t i = begin; i < end; i++)
		out[i - begin] = (i % 16 == 1) == !arg ? 0.0f : -0.0f;
	return 0;
}

UNIT_TEST(the_least_of_zeros_is_plus_0)
{
	struct ucm_retrieval *pool = opened(1, 1);
	struct ucm_retrieval_job job = job_of(0, 0);

	job.score = score_zeros;
	for (job.step = 1; job.step < 3; job.step++) {
		job.arg = job.step == 1 ? NULL : &one;
		must(!ucm_retrieval_submit(pool, &job, NULL));
		result = (struct ucm_retrieval_result){
			.blocks = blocks, .room = 6, .scores = scores,
			.num_scores = BLOCKS,
		};
		must(!ucm_retrieval_take(pool, 0, job.step, SOON, &result,
					 NULL));
		must(scores[0] == 0 && !signbit(scores[0]));
		must(scores[4999] == 0 && !signbit(scores[4999]));
	}
	ucm_retrieval_close(pool);
}

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

/* ---- many at a time ---- */

struct caller {
	struct ucm_retrieval *pool;
	uint32_t lane;
	uint64_t random;
	unsigned taken;
	uint32_t blocks[16];
};

/* What lanes take must be theirs: the last step's factor. */
static int score_by_step(void *arg, size_t begin, size_t end, float *out,
			 struct ucm_error *error)
{
	size_t best = (size_t)(uintptr_t)arg;

	(void)error;
	for (size_t i = begin; i < end; i++)
		out[i - begin] = i == best;
	return 0;
}

static void *call_at_random(void *arg)
{
	struct caller *self = arg;
	uint64_t newest = 0;

	for (int i = 0; i < 2000; i++) {
		struct ucm_retrieval_job job = {
			.lane = self->lane, .step = newest + 1,
			.score = score_by_step,
			.budget = { 2048 + 10, 0, 0, 1 },
		};
		struct ucm_retrieval_result got = { .blocks = self->blocks,
						    .room = 16 };
		int what = (int)random_between(&self->random, 0, 19), err;

		job.arg = (void *)(uintptr_t)((job.step * 31 + self->lane) %
					      2048);
		if (what == 0) {
			must(!ucm_retrieval_cancel(self->pool, self->lane,
						   NULL));
			newest = 0;
		} else if (what < 12) {
			err = ucm_retrieval_submit(self->pool, &job, NULL);
			must(!err || err == -EAGAIN);
			newest += !err;
		} else if (newest) {
			uint64_t step = newest - (what % 2 && newest > 1);

			err = ucm_retrieval_take(self->pool, self->lane, step,
						 what < 14 ? 0 : SOON, &got,
						 NULL);
			must(!err || err == -ESTALE || err == -ETIMEDOUT);
			if (err)
				continue;
			must(got.num == 1 && got.newest == newest);
			must(self->blocks[0] ==
			     (step * 31 + self->lane) % 2048);
			self->taken++;
		}
	}
	return NULL;
}

UNIT_FIXTURE(.timeout = 120);

UNIT_TEST(callers_do_not_disturb_each_other)
{
	struct ucm_retrieval *pool = opened(4, 12);
	unsigned taken = 0;
	struct caller callers[8];
	pthread_t threads[8];

	for (uint32_t i = 0; i < 8; i++) {
		callers[i] = (struct caller){ pool, i, random_case(i), 0,
					      { 0 } };
		must(!pthread_create(&threads[i], NULL, call_at_random,
				     &callers[i]));
	}
	for (uint32_t i = 0; i < 8; i++) {
		pthread_join(threads[i], NULL);
		taken += callers[i].taken;
	}
	must(taken > 100);
	ucm_retrieval_close(pool);
}

static bool forks(void)
{
#ifdef __SANITIZE_THREAD__
	return unit_skip("retrieval: the thread sanitizer lets no child of "
			 "fork(2) start threads");
#else
	return true;
#endif
}

UNIT_FIXTURE(.only_if = forks);

UNIT_TEST(a_child_of_a_fork_starts_anew)
{
	/* one thread: what a second one has locked of the sanitizers, as it begins,
	 * stays locked in the child */
	struct ucm_retrieval *pool = opened(1, 2);
	int status;
	pid_t pid;

	gate_set(true);
	must(!submit(pool, 0, 4));
	gate_await(1);
	pid = fork();
	if (pid == 0) {
		pthread_mutex_init(&gate.lock, NULL);
		pthread_cond_init(&gate.moved, NULL);
		gate.shut = false;
		if (take(pool, 0, 4, SOON) != -ENOENT || submit(pool, 0, 1) ||
		    take(pool, 0, 1, SOON) || result.num != 6)
			_exit(1);
		ucm_retrieval_close(pool);
		_exit(0);
	}
	must(waitpid(pid, &status, 0) == pid);
	ck_assert_int_eq(status, 0);
	gate_set(false);
	must(!take(pool, 0, 4, SOON));
	ucm_retrieval_close(pool);
}

/* ---- what is refused ---- */

UNIT_FIXTURE(.timeout = 30);

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
	REFUSED("num_heads 0 of the query");
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
