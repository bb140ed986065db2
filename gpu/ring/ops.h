/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops.h - what ring.c and the two kinds of rings know of each other.
 *
 * A kind makes calls and nothing else: what a result means, and how the next
 * part of a read or write is done next, is ucm_io_step()'s (io.c) for both.
 */
#ifndef UCM_RING_OPS_H
#define UCM_RING_OPS_H

#include <pthread.h>
#include <stdatomic.h>

#include "gpu/ring/ring.h"

struct ucm_ring_ops {
	/* Ends what is under way; ring.c frees the ring. */
	void (*close)(struct ucm_ring *ring);
	/* All three NULL: it has no use for it. */
	int (*pin)(struct ucm_ring *ring, void *memory, size_t len,
		   bool share);
	void (*unpin)(struct ucm_ring *ring, void *memory, size_t len);
	bool (*is_pinned)(const struct ucm_ring *ring, const void *memory,
			  size_t len);
	void (*queue)(struct ucm_ring *ring, struct ucm_io *io);
	/* As ucm_ring_poll(); ends when woken is seen. */
	struct ucm_io *(*poll)(struct ucm_ring *ring, int64_t timeout_ns);
	/* From any thread: end the sleep that poll may be in. */
	void (*rouse)(struct ucm_ring *ring);
};

/* Chained by next, in the order of arrival. */
struct ucm_io_list {
	struct ucm_io *first, *last;
};

/* The beginning of either kind's own struct. */
#define UCM_RING_CREWS 16u

struct ucm_ring {
	const struct ucm_ring_ops *ops;
	unsigned depth;
	unsigned queued; /* and not handed back */
	/* Whoever wakes sets woken, then looks at sleeping; whoever polls sets
	 * sleeping, then looks at woken: one of them sees the other. */
	atomic_bool woken, sleeping;
	char text[128];
	const char *_Atomic failed_text; /* instead, once it has failed */
	/* By crowd: a call that hangs takes threads of that crowd only;
	 * each from its first call on. */
	struct ucm_crew *callers[UCM_RING_CREWS];
	atomic_bool closing;
	pthread_mutex_t ended_lock;
	struct ucm_io_list ended; /* by threads; under that lock */
};

/* threads: of the pool that takes over if the kernel does not let it go on; 0:
 * then its operations fail. */
int ucm_uring_open(unsigned depth, unsigned threads, struct ucm_ring **out);
int ucm_pool_open(unsigned threads, struct ucm_ring **out);

void ucm_io_append(struct ucm_io_list *list, struct ucm_io *io);
struct ucm_io *ucm_io_take(struct ucm_io_list *list); /* or NULL */

/* A part that is made at once; a multiple of any align. */
#define UCM_IO_PART ((size_t)1 << 30)

/* The part of a read or write that comes next; NULL of the others. Not of a
 * write whose head comes next. */
static inline void *ucm_io_address(const struct ucm_io *io)
{
	return io->buffer ? (char *)io->buffer + (io->done - io->head_len)
			  : NULL;
}

static inline size_t ucm_io_len(const struct ucm_io *io)
{
	size_t left = io->len - io->done;

	return left < UCM_IO_PART ? left : UCM_IO_PART;
}

static inline off_t ucm_io_offset(const struct ucm_io *io)
{
	return io->offset + (off_t)io->done;
}

/* Is a part of the head next? Then io->parts is what the call takes. */
static inline bool ucm_io_take_parts(struct ucm_io *io)
{
	if (io->done >= io->head_len)
		return false;
	io->parts[0] = (struct iovec){ (char *)io->head + io->done,
				       io->head_len - io->done };
	io->parts[1] = (struct iovec){ io->buffer, io->len - io->head_len };
	return true;
}

/* The call's result: true if the operation is over; false: make the call that
 * comes next. Any thread, one at a time for an operation. */
bool ucm_io_step(struct ucm_io *io, ssize_t result);

/* Have a thread of that crew, which is opened here if it is NULL, make the call;
 * its end wakes the ring. Without a thread for it, it has failed. */
void ucm_io_give(struct ucm_ring *ring, struct ucm_crew **crew,
		 const char *name, unsigned threads, struct ucm_io *io);

/* Nobody will hear of this one any more. -ECANCELED: the call was not made. */
void ucm_io_abandon(struct ucm_io *io, ssize_t result);

#endif
