/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rings.h - answers to requests that came over io_uring, from other threads.
 */
#ifndef UCM_RINGS_H
#define UCM_RINGS_H

#include <stdbool.h>

struct ucm_ring;

/* Requests that a ring takes from the kernel at a time. */
#define UCM_RING_DEPTH 32

/* Something to be done by the thread of a ring, between two requests. */
struct ucm_ring_work {
	void (*run)(struct ucm_ring_work *work);
	struct ucm_ring_work *next;
};

/* The ring of the calling thread, or NULL. */
struct ucm_ring *ucm_ring_here(void);

/* One request of this ring is going to be answered by way of ucm_ring_post().
 * By its own thread, which then looks for such work. */
void ucm_ring_expect(struct ucm_ring *ring);
/* So many are. Any thread. */
unsigned ucm_ring_expects(const struct ucm_ring *ring);

/* Have it done; any thread. If the ring's thread has ended it is not done. */
void ucm_ring_post(struct ucm_ring *ring, struct ucm_ring_work *work);

#endif
