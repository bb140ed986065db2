/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remains.c - what a kernel's ring leaves that has failed.
 *
 * A ring fails when the kernel does not let us enter it any more: somebody has
 * closed its descriptor, or a filter of system calls was set up. Reads may be
 * under way then whose ends will not be told, and their buffers must be left
 * alone until they are over. What can be had is that they are over: a ring keeps
 * the files that are registered with it until all of its operations have ended,
 * and goes when it is closed and unmapped. One such file is the writing end of a
 * pipe, which nobody else has. When our end hangs up, the ring has gone.
 *
 * (A child that was forked and has not called exec shares the ring, and keeps it
 * from going; so its operations are not handed back before the child ends.)
 */
#include <config.h>

#include "gpu/ring/remains.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/clock.h"

/* Two things are waited for in turn: the pool and the end of the ring. */
#define TURN_NS 5000000

int ucm_remains_init(struct ucm_remains *remains, unsigned depth,
		     unsigned threads)
{
	*remains = (struct ucm_remains){ .end_fd = -1, .threads = threads };
	remains->flying = calloc(depth, sizeof(struct ucm_io *));
	return remains->flying ? ucm_pool_open(0, &remains->sleeper) : -ENOMEM;
}

int ucm_remains_lend(struct ucm_remains *remains)
{
	struct stat st;
	int ends[2];

	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK))
		return -errno;
	if (!fstat(ends[0], &st))
		remains->end_ino = st.st_ino;
	remains->end_fd = ends[0];
	return ends[1];
}

void ucm_remains_add(struct ucm_remains *remains, struct ucm_io *io)
{
	io->place = remains->num_flying;
	remains->flying[remains->num_flying++] = io;
}

void ucm_remains_drop(struct ucm_remains *remains, struct ucm_io *io)
{
	struct ucm_io *last = remains->flying[--remains->num_flying];

	remains->flying[io->place] = last;
	last->place = io->place;
}

bool ucm_remains_begin(struct ucm_remains *remains)
{
	struct ucm_ring *pool;

	if (!remains->threads || ucm_pool_open(remains->threads, &pool))
		return false;
	atomic_store(&remains->pool, pool);
	return true;
}

void ucm_remains_queue(struct ucm_remains *remains, struct ucm_io *io)
{
	struct ucm_ring *pool = atomic_load(&remains->pool);

	if (!pool) {
		ucm_io_append(&remains->refused, io);
		return;
	}
	pool->queued++;
	pool->ops->queue(pool, io); /* it may have begun already */
}

/* Whoever closed the ring's descriptor may have closed this one as well, and the
 * number may be another file's. Then nobody will ever know. */
static bool is_ours(const struct ucm_remains *remains)
{
	struct stat st;

	return !fstat(remains->end_fd, &st) && S_ISFIFO(st.st_mode) &&
	       st.st_ino == remains->end_ino;
}

/* Wait, and say whether the kernel has let go. */
static bool has_ended(const struct ucm_remains *remains, int timeout_ms)
{
	struct pollfd end = { .fd = remains->end_fd, .events = POLLIN };

	return is_ours(remains) && poll(&end, 1, timeout_ms) > 0 && end.revents & POLLHUP;
}

static void fail(struct ucm_io *io, struct ucm_io_list *done)
{
	io->result = -EIO;
	ucm_io_append(done, io);
}

static void take_failed(struct ucm_remains *remains, struct ucm_io_list *done)
{
	struct ucm_io *io;

	while ((io = ucm_io_take(&remains->refused)))
		fail(io, done);
	if (!remains->num_flying || !has_ended(remains, 0))
		return;
	while (remains->num_flying)
		fail(remains->flying[--remains->num_flying], done);
}

/* Whoever wakes ours has set the ring's woken before: see ring.c. */
static void take_from_pool(struct ucm_ring *pool, const struct ucm_ring *ring,
			   int64_t timeout_ns, struct ucm_io_list *done)
{
	struct ucm_io *io, *next;

	if (atomic_load(&ring->woken))
		timeout_ns = 0;
	for (io = ucm_ring_poll(pool, timeout_ns); io; io = next) {
		next = io->next;
		ucm_io_append(done, io);
	}
}

static struct ucm_ring *place_to_wait(struct ucm_remains *remains)
{
	struct ucm_ring *pool = atomic_load(&remains->pool);

	return pool ? pool : remains->sleeper;
}

struct ucm_io *ucm_remains_poll(struct ucm_remains *remains,
				const struct ucm_ring *ring, int64_t timeout_ns)
{
	int64_t end_ns = timeout_ns > 0 ? ucm_monotonic_ns() + timeout_ns : 0;
	struct ucm_ring *pool = place_to_wait(remains);
	struct ucm_io_list done = { 0 };
	int64_t turn_ns;

	for (;;) {
		take_failed(remains, &done);
		turn_ns = done.first ? 0 : timeout_ns;
		if (remains->num_flying && (turn_ns < 0 || turn_ns > TURN_NS))
			turn_ns = TURN_NS;
		take_from_pool(pool, ring, turn_ns, &done);
		if (done.first || !timeout_ns || atomic_load(&ring->woken))
			return done.first;
		if (timeout_ns > 0) {
			timeout_ns = end_ns - ucm_monotonic_ns();
			timeout_ns = timeout_ns > 0 ? timeout_ns : 0;
		}
	}
}

void ucm_remains_rouse(struct ucm_remains *remains)
{
	ucm_ring_wake(place_to_wait(remains));
}

void ucm_remains_fini(struct ucm_remains *remains)
{
	struct ucm_io *io;

	ucm_ring_close(atomic_load(&remains->pool));
	while ((io = ucm_io_take(&remains->refused)))
		ucm_io_abandon(io, -ECANCELED);
	ucm_ring_close(remains->sleeper);
	/* their buffers are the kernel's until then */
	while (remains->num_flying && is_ours(remains) &&
	       !has_ended(remains, -1))
		;
	if (is_ours(remains))
		close(remains->end_fd);
	free(remains->flying);
}
