/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.c - what both kinds of rings have in common: which of them it is, and what
 * has ended.
 */
#include <config.h>

#include "gpu/ring/ring.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "gpu/ring/ops.h"

/* Threads for calls, of each crew. */
#define CALLERS 8

#ifndef HAVE_URING
int ucm_uring_open(unsigned depth, unsigned threads, struct ucm_ring **out)
{
	(void)depth;
	(void)threads;
	(void)out;
	return -ENOSYS;
}
#endif

static const char *cause_of(int err)
{
#ifdef HAVE_URING
	return strerrordesc_np(-err);
#else
	(void)err;
	return "not built in";
#endif
}

static int open_pool(unsigned threads, int uring_err, struct ucm_ring **out)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;
	struct ucm_ring *ring;
	int err = ucm_pool_open(threads, &ring);

	if (err)
		return err;
	strcpy(ring->text, "threads");
	if (uring_err) {
		snprintf(ring->text, sizeof(ring->text),
			 "threads (io_uring: %s)", cause_of(uring_err));
		if (!atomic_flag_test_and_set(&said))
			ucm_warning("io_uring: %s; going on with threads",
				    cause_of(uring_err));
	}
	*out = ring;
	return 0;
}

int ucm_ring_open(enum ucm_io_kind kind, unsigned depth, unsigned threads,
		  struct ucm_ring **out)
{
	int err = -ENOSYS, uring_err = 0;

	depth = depth ? depth : 1;
	threads = threads ? threads : 1;
	if (kind != UCM_IO_THREADS)
		err = uring_err = ucm_uring_open(
			depth, kind == UCM_IO_URING ? 0 : threads, out);
	if (err && kind == UCM_IO_URING)
		ucm_error("io_uring: %s", cause_of(err));
	else if (err)
		err = open_pool(threads, uring_err, out);
	if (err)
		return err;
	(*out)->depth = depth;
	return 0;
}

void ucm_ring_close(struct ucm_ring *ring)
{
	if (!ring)
		return;
	atomic_store(&ring->closing, true);
	/* their buffers are the callers' until then */
	for (unsigned i = 0; i < UCM_RING_CREWS; i++) {
		while (!ucm_crew_close(ring->callers[i], UINT_MAX))
			;
	}
	ring->ops->close(ring);
	pthread_mutex_destroy(&ring->ended_lock);
	free(ring);
}

/* What threads have ended, before the rest; what ends from here on wakes. */
static struct ucm_io *ring_take_ended(struct ucm_ring *ring, struct ucm_io *rest)
{
	struct ucm_io *ended;

	pthread_mutex_lock(&ring->ended_lock);
	atomic_store(&ring->woken, false);
	ended = ring->ended.first;
	if (ended) {
		ring->ended.last->next = rest;
		ring->ended.first = NULL;
	}
	pthread_mutex_unlock(&ring->ended_lock);
	return ended ? ended : rest;
}

int ucm_ring_pin(struct ucm_ring *ring, void *memory, size_t len)
{
	return ring->ops->pin ? ring->ops->pin(ring, memory, len, true)
			      : -ENOTSUP;
}

int ucm_ring_pin_own(struct ucm_ring *ring, void *memory, size_t len)
{
	return ring->ops->pin ? ring->ops->pin(ring, memory, len, false)
			      : -ENOTSUP;
}

void ucm_ring_unpin(struct ucm_ring *ring, void *memory, size_t len)
{
	if (ring->ops->unpin)
		ring->ops->unpin(ring, memory, len);
}

bool ucm_ring_is_pinned(const struct ucm_ring *ring, const void *memory,
			size_t len)
{
	return ring->ops->is_pinned &&
	       ring->ops->is_pinned(ring, memory, len);
}

void ucm_ring_register(struct ucm_ring *ring, void *memory, size_t len)
{
	int err;

	if (!ring->ops->pin)
		return;
	err = ring->ops->pin(ring, memory, len, false);
	if (err)
		snprintf(ring->text, sizeof(ring->text),
			 "io_uring, buffers not registered: %s",
			 cause_of(err));
	else
		strcpy(ring->text, "io_uring, registered buffers");
}

int ucm_ring_queue(struct ucm_ring *ring, struct ucm_io *io)
{
	if (ring->queued >= ring->depth)
		return -EBUSY;
	if (io->op == UCM_IO_READ || io->op == UCM_IO_WRITE)
		assert(io->align && !(io->align & (io->align - 1)));
	io->done = 0;
	io->idle = 0;
	io->resubmits = 0;
	ring->queued++;
	if (io->op == UCM_IO_CALL)
		ucm_io_give(ring, &ring->callers[io->crowd % UCM_RING_CREWS],
			    "ucm-source", CALLERS, io);
	else
		ring->ops->queue(ring, io);
	return 0;
}

struct ucm_io *ucm_ring_poll(struct ucm_ring *ring, int64_t timeout_ns)
{
	struct ucm_io *done, *io;

	if (timeout_ns)
		atomic_store(&ring->sleeping, true);
	if (atomic_load(&ring->woken))
		timeout_ns = 0;
	done = ring->ops->poll(ring, timeout_ns);
	atomic_store(&ring->sleeping, false);
	done = ring_take_ended(ring, done);
	for (io = done; io; io = io->next)
		ring->queued--;
	return done;
}

const char *ucm_ring_text(const struct ucm_ring *ring)
{
	const char *failed = atomic_load(&ring->failed_text);

	return failed ? failed : ring->text;
}
