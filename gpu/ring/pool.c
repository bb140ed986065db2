/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.c - a ring of threads that make plain calls, where io_uring is
 * refused.
 *
 * Operations go to the crew of their crowd (ring.h), and from its threads to
 * the list done, which a lock guards. A call that hangs occupies a thread of its
 * crowd, never another crowd's, nor whoever polls.
 */
#include <config.h>

#include "gpu/ring/ops.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/clock.h"

#define CROWDS 64 /* that have threads of their own */

struct pool {
	struct ucm_ring base;
	pthread_mutex_t lock; /* guards done */
	pthread_cond_t ready; /* done or woken has changed */
	struct ucm_io_list done;
	unsigned threads; /* of each crew, at most */
	struct ucm_crew *crews[CROWDS]; /* NULL: none yet */
};

static ssize_t or_errno(ssize_t result)
{
	return result < 0 ? -errno : result;
}

/* preadv2: as in io_uring, an offset of -1 is that of the descriptor. */
static ssize_t attempt(struct ucm_io *io)
{
	struct iovec part = { .iov_base = ucm_io_address(io),
			      .iov_len = ucm_io_len(io) };

	switch (io->op) {
	case UCM_IO_READ:
		return or_errno(preadv2(io->fd, &part, 1, ucm_io_offset(io), 0));
	case UCM_IO_WRITE:
		if (ucm_io_take_parts(io))
			return or_errno(pwritev2(io->fd, io->parts, 2,
						 ucm_io_offset(io), 0));
		return or_errno(pwritev2(io->fd, &part, 1, ucm_io_offset(io),
					 0));
	case UCM_IO_CLOSE: return or_errno(close(io->fd));
	case UCM_IO_CALL: break; /* ring.c makes them */
	}
	return -EINVAL;
}

static void pool_end(struct pool *pool, struct ucm_io *io)
{
	pthread_mutex_lock(&pool->lock);
	ucm_io_append(&pool->done, io);
	pthread_cond_signal(&pool->ready);
	pthread_mutex_unlock(&pool->lock);
}

/* By a thread of a crew. */
static void pool_work(struct ucm_job *job)
{
	struct ucm_io *io = (struct ucm_io *)((char *)job -
					      offsetof(struct ucm_io, job));
	struct pool *pool = (struct pool *)io->ring;

	if (atomic_load(&pool->base.closing)) {
		ucm_io_abandon(io, -ECANCELED);
		return;
	}
	while (!ucm_io_step(io, attempt(io)))
		;
	pool_end(pool, io);
}

static void pool_close(struct ucm_ring *base)
{
	struct pool *pool = (struct pool *)base;
	struct ucm_io *io;

	for (unsigned i = 0; i < CROWDS; i++) {
		while (!ucm_crew_close(pool->crews[i], UINT_MAX))
			;
	}
	while ((io = ucm_io_take(&pool->done)))
		ucm_io_abandon(io, io->result);
	pthread_cond_destroy(&pool->ready);
	pthread_mutex_destroy(&pool->lock);
	free(pool);
}

/* Without a thread for it, it has failed. */
static void pool_queue(struct ucm_ring *base, struct ucm_io *io)
{
	struct pool *pool = (struct pool *)base;
	struct ucm_crew **crew = &pool->crews[io->crowd % CROWDS];

	io->ring = base;
	io->job.run = pool_work;
	if (!*crew && ucm_crew_open("ucm-io", pool->threads, crew))
		*crew = NULL;
	if (*crew && ucm_crew_add(*crew, &io->job))
		return;
	if (io->op == UCM_IO_CLOSE)
		close(io->fd);
	io->result = -ENOMEM;
	pool_end(pool, io);
}

/* Done, woken, or out of time. */
static void wait_ready(struct pool *pool, int64_t timeout_ns)
{
	int64_t end_ns = 0;
	struct timespec end;
	int rc = 0;

	if (timeout_ns > 0) {
		end_ns = ucm_monotonic_ns() + timeout_ns;
		end.tv_sec = end_ns / 1000000000;
		end.tv_nsec = end_ns % 1000000000;
	}
	while (!rc && !pool->done.first && !atomic_load(&pool->base.woken)) {
		if (timeout_ns < 0)
			pthread_cond_wait(&pool->ready, &pool->lock);
		else
			rc = pthread_cond_timedwait(&pool->ready, &pool->lock,
						    &end);
	}
}

static struct ucm_io *pool_poll(struct ucm_ring *base, int64_t timeout_ns)
{
	struct pool *pool = (struct pool *)base;
	struct ucm_io *done;

	pthread_mutex_lock(&pool->lock);
	if (timeout_ns)
		wait_ready(pool, timeout_ns);
	done = pool->done.first;
	pool->done.first = NULL;
	pthread_mutex_unlock(&pool->lock);
	return done;
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
	int err;

	if (!pool)
		return -ENOMEM;
	pool->base.ops = &pool_ops;
	pool->threads = threads;
	err = ucm_crew_open("ucm-io", threads, &pool->crews[0]);
	if (err) {
		free(pool);
		return err;
	}
	pthread_mutex_init(&pool->lock, NULL);
	ucm_cond_init_monotonic(&pool->ready);
	*out = &pool->base;
	return 0;
}
