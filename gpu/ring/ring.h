/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.h - file I/O that is queued, and reported when it is done.
 *
 * One ring belongs to one thread, which makes all calls but ucm_ring_wake().
 * That is the one that polls: another one may open the ring and register
 * memory before, and close it when nothing is queued any more.
 * Two kinds: io_uring (uring.c), and a pool of threads that make the plain
 * calls (pool.c) where io_uring is refused. Functions that read are called by a
 * crew of either's (ring.c). A ring knows nothing of blocks:
 * whoever queues an operation owns its buffer and its struct, and both belong
 * to the ring until it has handed the operation back.
 */
#ifndef UCM_RING_H
#define UCM_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <ucm/load.h>

#include "common/crew.h"

enum ucm_io_op {
	UCM_IO_READ,  /* len bytes at offset, or up to the end of the file */
	UCM_IO_WRITE, /* all len bytes at offset */
	UCM_IO_CALL,  /* a function, in a thread for such calls */
	UCM_IO_CLOSE, /* fd; its result is close(2)'s, which may be a commit's */
};

/* An operation; embedded in what it is done for. */
struct ucm_io {
	enum ucm_io_op op;
	int fd;
	/* Call: it may take its time. Its result is 0, or -errno: it could not be
	 * made. */
	void (*call)(struct ucm_io *io);
	void *buffer;
	size_t len;
	off_t offset;
	/* Write: so many of the len bytes come from here, before those of the
	 * buffer: two pieces of memory in one call. */
	void *head;
	size_t head_len;
	/* Read and write: what the file system wants multiples of (O_DIRECT;
	 * a power of two), or 1. Parts after a short one begin at such. */
	uint32_t align;
	/* Read: bytes that are wanted of a len that was rounded up. With them
	 * there is no need to prove the end of the file. 0: len. */
	size_t enough;
	/* Read: of a file on FUSE that no direct read has come back from since
	 * it was mounted. Unless this is set, the first one may have who polls
	 * wait for the file server. It costs a little time. */
	bool may_hang;
	/* Operations that may wait for the same thing, a file server say, are a
	 * crowd: one that hangs takes no threads from the others. 0: those of
	 * no crowd. */
	unsigned crowd;
	/*
	 * Outcome. Read, call: bytes, fewer than enough only at
	 * the end of the file: a short read has been resubmitted until a read
	 * at its end brought nothing. Write: len. Close: 0.
	 * Or -errno: -EIO where the file system brings nothing forward, again
	 * and again; -EINTR and -EAGAIN likewise, if that is what it says.
	 */
	ssize_t result;
	unsigned resubmits; /* for statistics: calls beyond the first */
	struct ucm_io *next; /* the ring's */
	size_t done;         /* the ring's */
	unsigned idle;       /* the ring's: calls in a row without progress */
	unsigned place;      /* the ring's */
	struct ucm_job job;    /* the ring's, for a thread */
	struct ucm_ring *ring; /* the same */
	struct iovec parts[2]; /* the ring's, of a write with a head */
};

/*
 * Tests set this: it is asked about each result before it is believed, and
 * returns it or another one (-errno, or fewer bytes; bytes that it withholds
 * are read again as after any short read). The threads of a pool ask it, too,
 * several at a time. NULL outside of tests.
 */
extern ssize_t (*ucm_ring_fault)(const struct ucm_io *io, ssize_t result);

/* Tests set this: -errno takes the place of entering the kernel's ring; 0: enter
 * it. NULL outside of tests. */
extern int (*ucm_ring_enter_fault)(void);

struct ucm_ring;

/*
 * A ring of the kernel's may fail at any time, if somebody closes its descriptor
 * or forbids the system call: then what it has under way ends with -EIO, as soon
 * as the kernel has let go of the buffers, and threads take over (AUTO), or all
 * else ends with -EIO (URING). It says so in the log, and in its text.
 *
 * kind: see load.h; AUTO falls back and says so once in the log. depth: how
 * many operations may be queued at a time, until they are handed back.
 * threads: of the pool, for each crowd; started as they are needed.
 */
int ucm_ring_open(enum ucm_io_kind kind, unsigned depth, unsigned threads,
		  struct ucm_ring **out);

/*
 * Operations that are queued are cancelled, or waited for where they are under
 * way and cannot be (they own their buffers). None is handed back; files that
 * they opened are closed, and so are those they were to close. NULL is
 * harmless.
 */
void ucm_ring_close(struct ucm_ring *ring);

/*
 * Memory that buffers will lie in: pinned for the ring's time where that is to
 * be had, in pieces of 1 GiB (a buffer that lies in two gains nothing). Not
 * being able to is no error; ucm_ring_text() says why. Unmap it after the ring
 * is closed.
 */
void ucm_ring_register(struct ucm_ring *ring, void *memory, size_t len);

/* The same for more memory, by whoever polls; its text stays. Other rings that
 * pin the same memory share it where the kernel can do that (Linux 6.13); then
 * it is pinned once. 0, or -errno: nothing of it, or a part, is registered. */
int ucm_ring_pin(struct ucm_ring *ring, void *memory, size_t len);

/* The same for memory that no other ring has: at most 1 GiB. */
int ucm_ring_pin_own(struct ucm_ring *ring, void *memory, size_t len);

/* What was pinned by one such call is let go: the caller may unmap it then. No
 * operation with a buffer there is queued. */
void ucm_ring_unpin(struct ucm_ring *ring, void *memory, size_t len);

/* Do these bytes lie in memory that is registered, in one piece? */
bool ucm_ring_is_pinned(const struct ucm_ring *ring, const void *memory,
			size_t len);

/* Queue; started by the next ucm_ring_poll(), or before. -EBUSY: depth. */
int ucm_ring_queue(struct ucm_ring *ring, struct ucm_io *io);

/*
 * Start what is queued, and take what is done: a list (by next) of finished
 * operations, or NULL. Waits for the first one, for a wake, or for timeout_ns
 * (< 0: for ever; 0: not at all). What is left of short reads has been started
 * when it returns.
 */
struct ucm_io *ucm_ring_poll(struct ucm_ring *ring, int64_t timeout_ns);

/* From any thread, until the ring is closed: have the present or next
 * ucm_ring_poll() return at once. Makes no system call unless one waits. */
void ucm_ring_wake(struct ucm_ring *ring);

/* "io_uring, registered buffers", "io_uring, buffers not registered: Cannot
 * allocate memory" or "threads (io_uring: Operation not permitted)" */
const char *ucm_ring_text(const struct ucm_ring *ring);

#endif
