/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remains.h - what a kernel's ring leaves that has failed.
 *
 * The operations that the kernel had, whose buffers are still the kernel's; and
 * a pool of threads for all others, if threads will do. Belongs to the thread
 * that polls, but for ucm_remains_rouse().
 */
#ifndef UCM_RING_REMAINS_H
#define UCM_RING_REMAINS_H

#include "gpu/ring/ops.h"

struct ucm_remains {
	int end_fd;       /* hangs up when the kernel has let go of the ring */
	ino_t end_ino;    /* of it, as long as it is ours */
	unsigned threads; /* of the pool; 0: there shall be none */
	struct ucm_io **flying; /* operations that the kernel has: */
	unsigned num_flying;    /* each knows its place */
	struct ucm_io_list refused; /* those that come after */
	struct ucm_ring *sleeper; /* a pool without threads, to wait in */
	struct ucm_ring *_Atomic pool; /* once it has failed, or NULL */
};

/* At most so many operations at a time. */
int ucm_remains_init(struct ucm_remains *remains, unsigned depth,
		     unsigned threads);
/*
 * A descriptor for the kernel's ring to keep, and for nobody else: when the ring
 * has gone, and with it all that was under way, it is closed, and that is seen.
 * -errno: none can be had.
 */
int ucm_remains_lend(struct ucm_remains *remains);
/* After a failure: waits until the kernel has let go of everything. */
void ucm_remains_fini(struct ucm_remains *remains);

void ucm_remains_add(struct ucm_remains *remains, struct ucm_io *io);
void ucm_remains_drop(struct ucm_remains *remains, struct ucm_io *io);

/* The ring has failed: open the pool. Is there one? */
bool ucm_remains_begin(struct ucm_remains *remains);

/* As those of struct ucm_ring_ops. What the kernel had ends with -EIO when it
 * has let go of it, and so does at once what there is no pool for. */
void ucm_remains_queue(struct ucm_remains *remains, struct ucm_io *io);
struct ucm_io *ucm_remains_poll(struct ucm_remains *remains,
				const struct ucm_ring *ring,
				int64_t timeout_ns);
void ucm_remains_rouse(struct ucm_remains *remains);

#endif
