/* SPDX-License-Identifier: Apache-2.0 */
/*
 * retrieval_fixture.h - a pool of threads, and jobs by a score that a test
 * holds up.
 */
#ifndef UCM_TESTS_RETRIEVAL_FIXTURE_H
#define UCM_TESTS_RETRIEVAL_FIXTURE_H

#include <pthread.h>

#include <ucm/retrieve.h>

#include "tests/unit/unit.h"

#define BLOCKS 5000u /* several pieces */
#define SOON   30000 /* ms: never reached */

static inline struct ucm_retrieval *opened(uint32_t threads, uint32_t jobs)
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

static inline void gate_set(bool shut)
{
	pthread_mutex_lock(&gate.lock);
	gate.shut = shut;
	pthread_cond_broadcast(&gate.moved);
	pthread_mutex_unlock(&gate.lock);
}

static inline void gate_await(unsigned inside)
{
	pthread_mutex_lock(&gate.lock);
	while (gate.inside < inside)
		pthread_cond_wait(&gate.moved, &gate.lock);
	pthread_mutex_unlock(&gate.lock);
}

/* Block i has the score (i * factor) mod 4999. */
static inline int score_behind_gate(void *arg, size_t begin, size_t end,
				    float *scores, struct ucm_error *error)
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

static inline struct ucm_retrieval_job job_of(uint32_t lane, uint64_t step)
{
	return (struct ucm_retrieval_job){
		.lane = lane, .step = step, .score = score_behind_gate,
		.arg = &one,
		.budget = { .num_blocks = BLOCKS, .first = 1, .last = 2,
			    .topk = 3 },
	};
}

static inline int submit(struct ucm_retrieval *pool, uint32_t lane,
			 uint64_t step)
{
	const struct ucm_retrieval_job job = job_of(lane, step);

	return ucm_retrieval_submit(pool, &job, NULL);
}

static uint32_t blocks[BLOCKS];
static struct ucm_retrieval_result result;

static inline int take(struct ucm_retrieval *pool, uint32_t lane, uint64_t step,
		       int timeout_ms)
{
	result = (struct ucm_retrieval_result){ .blocks = blocks,
						.room = BLOCKS };
	return ucm_retrieval_take(pool, lane, step, timeout_ms, &result, NULL);
}

#endif
