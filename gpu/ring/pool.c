/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.c - a ring of threads that make plain calls, where io_uring is
 * refused.
 *
 * Operations go from the list todo through a thread to the list done, all under
 * one lock. A call that hangs occupies its thread, never who polls.
 */
#include <config.h>

#include "gpu/ring/ops.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/osfile.h"

struct pool {
	struct ucm_ring base;
	pthread_mutex_t lock;
	pthread_cond_t work;  /* todo or closing has changed */
	pthread_cond_t ready; /* done or woken has changed */
	struct ucm_io_list todo, done;
	bool closing;
	unsigned num_threads;
	pthread_t threads[];
};

static ssize_t or_errno(ssize_t result)
{
	return result < 0 ? -errno : result;
}

/* preadv2: as in io_uring, an offset of -1 is that of the descriptor. */
static ssize_t attempt(const struct ucm_io *io)
{
	struct iovec part = { .iov_base = ucm_io_address(io),
			      .iov_len = ucm_io_len(io) };

	switch (io->op) {
	case UCM_IO_OPEN:
		return ucm_os_open(io->fd, io->path, io->flags, io->mode);
	case UCM_IO_READ:
		return or_errno(preadv2(io->fd, &part, 1, ucm_io_offset(io), 0));
	case UCM_IO_WRITE:
		return or_errno(pwritev2(io->fd, &part, 1, ucm_io_offset(io),
					 0));
	case UCM_IO_CLOSE: return or_errno(close(io->fd));
	case UCM_IO_CALL: break; /* ring.c makes them */
	}
	return -EINVAL;
}

static void *work(void *arg)
{
	struct pool *pool = arg;
	struct ucm_io *io;

	pthread_mutex_lock(&pool->lock);
	for (;;) {
		while (!pool->todo.first && !pool->closing)
			pthread_cond_wait(&pool->work, &pool->lock);
		io = ucm_io_take(&pool->todo);
		if (!io)
			break;
		pthread_mutex_unlock(&pool->lock);
		while (!ucm_io_step(io, attempt(io)))
			;
		pthread_mutex_lock(&pool->lock);
		ucm_io_append(&pool->done, io);
		pthread_cond_signal(&pool->ready);
	}
	pthread_mutex_unlock(&pool->lock);
	return NULL;
}

static void pool_close(struct ucm_ring *base)
{
	struct pool *pool = (struct pool *)base;
	struct ucm_io_list todo;
	struct ucm_io *io;

	pthread_mutex_lock(&pool->lock);
	todo = pool->todo;
	pool->todo.first = NULL;
	pool->closing = true;
	pthread_cond_broadcast(&pool->work);
	pthread_mutex_unlock(&pool->lock);
	for (unsigned i = 0; i < pool->num_threads; i++)
		pthread_join(pool->threads[i], NULL);
	while ((io = ucm_io_take(&todo)))
		ucm_io_abandon(io, -ECANCELED);
	while ((io = ucm_io_take(&pool->done)))
		ucm_io_abandon(io, io->result);
	pthread_cond_destroy(&pool->ready);
	pthread_cond_destroy(&pool->work);
	pthread_mutex_destroy(&pool->lock);
	free(pool);
}

static void pool_queue(struct ucm_ring *base, struct ucm_io *io)
{
	struct pool *pool = (struct pool *)base;

	pthread_mutex_lock(&pool->lock);
	ucm_io_append(&pool->todo, io);
	pthread_cond_signal(&pool->work);
	pthread_mutex_unlock(&pool->lock);
}

/* Done, woken, or out of time. */
static void wait_ready(struct pool *pool, int64_t timeout_ns)
{
	int64_t end_ns = 0;
	struct timespec end;
	int rc = 0;

	if (timeout_ns > 0) {
		clock_gettime(CLOCK_MONOTONIC, &end);
		end_ns = ucm_time_ns(&end) + timeout_ns;
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

/* Signals are for the program's own threads. */
static int start_threads(struct pool *pool, unsigned threads)
{
	sigset_t all, before;
	int err = 0;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (!err && pool->num_threads < threads) {
		err = pthread_create(&pool->threads[pool->num_threads], NULL,
				     work, pool);
		if (!err)
			pool->num_threads++;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -err;
}

int ucm_pool_open(unsigned threads, struct ucm_ring **out)
{
	struct pool *pool = calloc(1, sizeof(*pool) +
					      threads * sizeof(pthread_t));
	int err;

	if (!pool)
		return -ENOMEM;
	pool->base.ops = &pool_ops;
	pthread_mutex_init(&pool->lock, NULL);
	pthread_cond_init(&pool->work, NULL);
	ucm_cond_init_monotonic(&pool->ready);
	err = start_threads(pool, threads);
	if (err) {
		errno = -err;
		ucm_error("threads for I/O: %m");
		pool_close(&pool->base);
		return err;
	}
	*out = &pool->base;
	return 0;
}
