/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.c - a ring of threads that make plain calls, where io_uring is
 * refused.
 *
 * Operations go to the crew of their crowd (ring.h), and from its threads to
 * the ring's list of what has ended (io.c). A call that hangs occupies a thread
 * of its crowd, never another crowd's, nor whoever polls.
 */
#include <config.h>

#include "gpu/ring/ops.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>

#include "common/clock.h"

#define CROWDS 64 /* that have threads of their own */

struct pool {
	struct ucm_ring base;
	pthread_mutex_t lock;
	pthread_cond_t ready; /* woken has changed */
	unsigned threads; /* of each crew, at most */
	struct ucm_crew *crews[CROWDS]; /* NULL: none yet */
};

static void pool_close(struct ucm_ring *base)
{
	struct pool *pool = (struct pool *)base;

	for (unsigned i = 0; i < CROWDS; i++) {
		while (!ucm_crew_close(pool->crews[i], UINT_MAX))
			;
	}
	pthread_cond_destroy(&pool->ready);
	pthread_mutex_destroy(&pool->lock);
}

static void pool_queue(struct ucm_ring *base, struct ucm_io *io)
{
	struct pool *pool = (struct pool *)base;

	ucm_io_give(base, &pool->crews[io->crowd % CROWDS], "ucm-io",
		      pool->threads, io);
}

/* Only waits: what has ended is in the ring's list. */
static struct ucm_io *pool_poll(struct ucm_ring *base, int64_t timeout_ns)
{
	struct pool *pool = (struct pool *)base;
	int64_t end_ns = ucm_monotonic_ns() + (timeout_ns > 0 ? timeout_ns : 0);
	struct timespec end = { .tv_sec = end_ns / 1000000000,
				.tv_nsec = end_ns % 1000000000 };
	int rc = timeout_ns ? 0 : ETIMEDOUT;

	pthread_mutex_lock(&pool->lock);
	while (!rc && !atomic_load(&base->woken)) {
		if (timeout_ns < 0)
			pthread_cond_wait(&pool->ready, &pool->lock);
		else
			rc = pthread_cond_timedwait(&pool->ready, &pool->lock,
						    &end);
	}
	pthread_mutex_unlock(&pool->lock);
	return NULL;
}

/* With the lock: who polls either has yet to look at woken, or waits. */
static void pool_rouse(struct ucm_ring *base)
{
	struct pool *pool = (struct pool *)base;

	pthread_mutex_lock(&pool->lock);
	pthread_cond_signal(&pool->ready);
	pthread_mutex_unlock(&pool->lock);
}

static const struct ucm_ring_ops pool_ops = {
	.close = pool_close,
	.queue = pool_queue,
	.poll = pool_poll,
	.rouse = pool_rouse,
};

int ucm_pool_open(unsigned threads, struct ucm_ring **out)
{
	struct pool *pool = calloc(1, sizeof(*pool));

	if (!pool)
		return -ENOMEM;
	pool->base.ops = &pool_ops;
	pool->threads = threads;
	pthread_mutex_init(&pool->base.ended_lock, NULL);
	pthread_mutex_init(&pool->lock, NULL);
	ucm_cond_init_monotonic(&pool->ready);
	*out = &pool->base;
	return 0;
}
