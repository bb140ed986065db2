/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rings.c - answers to requests that came over io_uring, from other threads.
 *
 * libfuse has a ring for each processor, and a thread for each ring. A reply is
 * an entry of the ring's submission queue, and that queue is for one thread at
 * a time: libfuse 3.18 locks it in a reply, but not where its own thread submits
 * and waits (its issue 1443). And the kernel delivers the next request in the
 * context of the thread that has sent the last reply: one that then sleeps in a
 * file system would keep that request.
 *
 * So all replies of a ring are sent by its thread. That sleeps in
 * io_uring_submit_and_wait(), which libfuse takes from liburing by its name, and
 * so from here, as this program's definition goes before a library's. While no
 * other thread is about to answer, it is liburing's, and costs nothing. Else it
 * waits for both, the ring and our own work, and does the work.
 *
 * Where a libfuse waits in another way, its threads have no ring here
 * (ucm_ring_here), and their requests are served where they are.
 */
#include <config.h>

#include "fs/mount/rings.h"

#ifdef HAVE_URING

#include <dlfcn.h>
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct ucm_ring {
	struct io_uring *ring;
	int event; /* there is work */
	_Atomic unsigned expected;
	pthread_mutex_t lock;
	struct ucm_ring_work *first, **last;
	struct ucm_ring *next;
};

/* Freed by nobody: work may be posted after the thread's end. There is one for
 * each processor. */
static struct ucm_ring *_Atomic all_rings;
static _Thread_local struct ucm_ring *this_ring;

struct ucm_ring *ucm_ring_here(void)
{
	return this_ring;
}

void ucm_ring_expect(struct ucm_ring *ring)
{
	atomic_fetch_add(&ring->expected, 1);
}

unsigned ucm_ring_expects(const struct ucm_ring *ring)
{
	return atomic_load(&ring->expected);
}

void ucm_ring_post(struct ucm_ring *ring, struct ucm_ring_work *work)
{
	work->next = NULL;
	pthread_mutex_lock(&ring->lock);
	*ring->last = work;
	ring->last = &work->next;
	pthread_mutex_unlock(&ring->lock);
	eventfd_write(ring->event, 1);
}

static struct ucm_ring *ring_new(struct io_uring *of)
{
	struct ucm_ring *ring = calloc(1, sizeof(*ring));

	if (!ring)
		return NULL;
	ring->ring = of;
	ring->last = &ring->first;
	ring->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (ring->event < 0) {
		free(ring);
		return NULL;
	}
	pthread_mutex_init(&ring->lock, NULL);
	ring->next = atomic_load(&all_rings);
	while (!atomic_compare_exchange_weak(&all_rings, &ring->next, ring))
		;
	return ring;
}

/* libfuse cancels the thread at the end; not in the middle of this. */
static void ring_work(struct ucm_ring *ring)
{
	struct ucm_ring_work *work;
	eventfd_t count;
	int state;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	eventfd_read(ring->event, &count);
	pthread_mutex_lock(&ring->lock);
	work = ring->first;
	ring->first = NULL;
	ring->last = &ring->first;
	pthread_mutex_unlock(&ring->lock);
	while (work) {
		struct ucm_ring_work *next = work->next;

		work->run(work);
		atomic_fetch_sub(&ring->expected, 1);
		work = next;
	}
	pthread_setcancelstate(state, NULL);
}

/* Until there is something in the ring. What libfuse has put into it is
 * submitted first; what the work puts into it libfuse submits by itself. */
static int ring_wait(struct ucm_ring *ring)
{
	struct pollfd wait[] = {
		{ .fd = ring->ring->ring_fd, .events = POLLIN },
		{ .fd = ring->event, .events = POLLIN },
	};
	int submitted = io_uring_submit(ring->ring);

	while (submitted >= 0 && !io_uring_cq_ready(ring->ring)) {
		ring_work(ring);
		if (!atomic_load(&ring->expected))
			break;
		if (poll(wait, 2, -1) < 0 && errno != EINTR)
			return -errno;
	}
	ring_work(ring);
	return submitted;
}

typedef int ring_wait_fn(struct io_uring *ring, unsigned wait_nr);

static ring_wait_fn *liburings;
static pthread_once_t liburings_once = PTHREAD_ONCE_INIT;

static void ring_find_liburings(void)
{
	liburings = (ring_wait_fn *)dlsym(RTLD_NEXT,
					  "io_uring_submit_and_wait");
}

/* In libfuse's thread of a ring. */
int io_uring_submit_and_wait(struct io_uring *ring, unsigned wait_nr)
{
	pthread_once(&liburings_once, ring_find_liburings);
	if (!this_ring)
		this_ring = ring_new(ring);
	if (this_ring && this_ring->ring == ring &&
	    atomic_load(&this_ring->expected)) {
		int rc = ring_wait(this_ring);

		if (rc < 0 || io_uring_cq_ready(ring))
			return rc;
	}
	return liburings ? liburings(ring, wait_nr) : -ENOSYS;
}

#else /* and libfuse has no rings either, or those are not served elsewhere */

#include <stddef.h>

struct ucm_ring *ucm_ring_here(void)
{
	return NULL;
}

void ucm_ring_expect(struct ucm_ring *ring)
{
	(void)ring;
}

unsigned ucm_ring_expects(const struct ucm_ring *ring)
{
	(void)ring;
	return 0;
}

void ucm_ring_post(struct ucm_ring *ring, struct ucm_ring_work *work)
{
	(void)ring, (void)work;
}

#endif
