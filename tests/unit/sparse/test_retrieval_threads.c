/* SPDX-License-Identifier: Apache-2.0 */
/* test_retrieval_threads.c - too few threads, many callers, and a fork. */
#include <config.h>

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ucm/retrieve.h>

#include "common/clock.h"
#include "tests/unit/sparse/retrieval_fixture.h"
#include "tests/unit/sparse_fixture.h"

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
	pid = unit_fork();
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
