/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_retrieval.c - jobs that threads score and select: bounded, in time,
 * known by their steps, and gone when they are cancelled.
 */
#include <config.h>

#include <pthread.h>
#include <sched.h>
#include <stdio.h>

#include <ucm/retrieve.h>

#include "common/clock.h"
#include "tests/unit/sparse/retrieval_fixture.h"
#include "tests/unit/sparse_fixture.h"

static float scores[BLOCKS];

/* ---- jobs by score(), which a test holds up ---- */

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
