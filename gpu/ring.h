/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.h - file I/O that is queued, and reported when it is done.
 *
 * One ring belongs to one thread, which makes all calls but ucm_ring_wake().
 * Two kinds: io_uring (ring_uring.c), and a pool of threads that make the plain
 * calls (ring_pool.c) where io_uring is refused. A ring knows nothing of
 * blocks: whoever queues an operation owns its buffer and its struct, and both
 * belong to the ring until it has handed the operation back.
 */
#ifndef UCM_RING_H
#define UCM_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <ucm/load.h>

enum ucm_io_op {
	UCM_IO_OPEN,  /* path below dirfd; no symbolic link, no way out by ".."
		       * (openat2 with RESOLVE_BENEATH | NO_SYMLINKS), close-on-
		       * exec, never waiting for a FIFO's other end */
	UCM_IO_READ,  /* len bytes at offset, or up to the end of the file */
	UCM_IO_WRITE, /* all len bytes at offset */
	UCM_IO_CLOSE, /* fd; its result is close(2)'s, which may be a commit's */
};

/* An operation; embedded in what it is done for. */
struct ucm_io {
	enum ucm_io_op op;
	int fd; /* open: dirfd */
	const char *path;
	int flags;
	mode_t mode;
	void *buffer;
	size_t len;
	off_t offset;
	/* Read and write: where the file system wants multiples (O_DIRECT), or
	 * 1. A read that came back short goes on from the last multiple. */
	uint32_t align;
	/*
	 * Outcome. Open: a descriptor. Read: bytes, fewer than len only at the
	 * end of the file: a short read has been resubmitted until then. Write:
	 * len. Close: 0. Or -errno.
	 */
	ssize_t result;
	unsigned resubmits; /* for statistics: parts beyond the first */
	struct ucm_io *next; /* the ring's */
	size_t done;         /* the ring's */
};

/*
 * Tests set this: it is asked about each result before it is believed, and
 * returns it or another one (-errno, or fewer bytes; bytes that it withholds
 * are read again as after any short read). NULL outside of tests.
 */
extern ssize_t (*ucm_ring_fault)(const struct ucm_io *io, ssize_t result);

struct ucm_ring;

/*
 * kind: see load.h; AUTO falls back and says so once in the log. depth: how many
 * operations may be queued at a time, at least.
 * threads: of the pool.
 */
int ucm_ring_open(enum ucm_io_kind kind, unsigned depth, unsigned threads,
		  struct ucm_ring **out);

/* Operations that are under way are waited for (they own their buffers). */
void ucm_ring_close(struct ucm_ring *ring);

/* Memory that buffers will lie in: pinned for the ring's time where that is to
 * be had. Not being able to is no error. */
void ucm_ring_register(struct ucm_ring *ring, void *memory, size_t len);

/* Queue; started by the next ucm_ring_poll(), or before. -EBUSY: depth. */
int ucm_ring_queue(struct ucm_ring *ring, struct ucm_io *io);

/*
 * Start what is queued, and take what is done: a list (by next) of finished
 * operations, or NULL. Waits for the first one, for a wake, or for timeout_ns
 * (< 0: for ever; 0: not at all).
 */
struct ucm_io *ucm_ring_poll(struct ucm_ring *ring, int64_t timeout_ns);

/* From any thread: have the present or next ucm_ring_poll() return at once. */
void ucm_ring_wake(struct ucm_ring *ring);

/* "io_uring, registered buffers" or "threads (io_uring: Operation not
 * permitted)" */
const char *ucm_ring_text(const struct ucm_ring *ring);

#endif
