/* SPDX-License-Identifier: Apache-2.0 */
/*
 * uring.c - a ring that is the kernel's.
 *
 * Operations wait in the list pending until the next poll, which enters the
 * kernel once for what it starts and what it waits for. IORING_SETUP_SINGLE_
 * ISSUER binds the kernel's ring to the thread that enables it; that is done
 * by the first poll, so whoever opens the ring need not be who uses it.
 *
 * What may hang must not do so in the thread that submits. FUSE sends some
 * requests to its server and waits for them on the spot whatever io_uring asks
 * of it: a write, a read through the page cache. Those are always given to a worker
 * of the kernel (IOSQE_ASYNC). A direct read is one only where may_hang says so,
 * because workers cost time and are few: io_uring asks a file that is not ready at
 * once whether it can be polled, which FUSE asks its server, once in a mount's life. A
 * close needs nothing: the kernel gives it to a worker wherever a file system has a say
 * in it (flush).
 *
 * To be woken, it polls an eventfd whenever it sleeps.
 *
 * If the kernel does not let us enter (not for a moment, but for good) the ring
 * has failed: it is left to the kernel, and remains.c goes on.
 */
#include <config.h>

#include "gpu/ring/pinned.h"
#include "gpu/ring/remains.h"

#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"

#define MAX_PINNED 1024

struct uring {
	struct ucm_ring base;
	struct io_uring ring;
	bool enabled;
	struct ucm_io_list pending;
	struct ucm_remains remains; /* and operations that the kernel has, or is
				     * to get */
	int failed;                 /* -errno, and the ring is gone */
	char failed_text[160];
	int wake_fd;
	bool armed; /* the kernel polls it */
	/* The index is the kernel's, too; len 0: a place that is free, or, with a
	 * base, lost. */
	struct iovec pinned[MAX_PINNED];
	unsigned num_pinned; /* places that have been used */
	/* By the place of its first part. */
	struct whole {
		size_t len;     /* 0: none begins there */
		unsigned parts; /* less than there are if not all was to be had */
		struct ucm_pinned *shared; /* NULL: of nobody else */
	} wholes[MAX_PINNED];
};

static struct uring *of(struct ucm_ring *base)
{
	return (struct uring *)base;
}

/* Errors that pass leave everything where it is, for the next round. */
static int lasting(int rc)
{
	return rc < 0 && rc != -ETIME && rc != -EINTR && rc != -EAGAIN &&
			       rc != -EBUSY
		       ? rc
		       : 0;
}

/* Before each system call that submits. */
static int enter_fault(void)
{
	return ucm_ring_enter_fault ? ucm_ring_enter_fault() : 0;
}

static int submit(struct uring *ring)
{
	int rc = enter_fault();

	return lasting(rc ? rc : io_uring_submit(&ring->ring));
}

/* ---- starting ---- */

static int pinned_index(const struct uring *ring, const void *memory,
			size_t len)
{
	uintptr_t from = (uintptr_t)memory;

	for (unsigned i = 0; i < ring->num_pinned; i++) {
		uintptr_t base = (uintptr_t)ring->pinned[i].iov_base;
		size_t room = ring->pinned[i].iov_len;

		if (from >= base && from - base < room &&
		    len <= room - (from - base))
			return (int)i;
	}
	return -1;
}

static void prepare_transfer(struct uring *ring, struct io_uring_sqe *sqe,
			     const struct ucm_io *io)
{
	int index = pinned_index(ring, ucm_io_address(io), ucm_io_len(io));
	enum io_uring_op op;

	if (io->op == UCM_IO_READ)
		op = index < 0 ? IORING_OP_READ : IORING_OP_READ_FIXED;
	else
		op = index < 0 ? IORING_OP_WRITE : IORING_OP_WRITE_FIXED;
	io_uring_prep_rw(op, sqe, io->fd, ucm_io_address(io),
			 (unsigned)ucm_io_len(io), (uint64_t)ucm_io_offset(io));
	if (index >= 0)
		sqe->buf_index = (uint16_t)index;
	if (io->op == UCM_IO_WRITE || io->align == 1 || io->may_hang)
		sqe->flags |= IOSQE_ASYNC;
}

/* Pages of two pieces are found by the kernel each time, as there is no call
 * of all kernels for pieces that are pinned: that costs much less than to copy
 * them into one. */
static void prepare_parts(struct io_uring_sqe *sqe, const struct ucm_io *io)
{
	io_uring_prep_writev(sqe, io->fd, io->parts, 2,
			     (uint64_t)ucm_io_offset(io));
	sqe->flags |= IOSQE_ASYNC;
}

static void prepare(struct uring *ring, struct io_uring_sqe *sqe,
		    struct ucm_io *io)
{
	switch (io->op) {
	case UCM_IO_READ: case UCM_IO_WRITE:
		if (ucm_io_take_parts(io))
			prepare_parts(sqe, io);
		else
			prepare_transfer(ring, sqe, io);
		break;
	case UCM_IO_CLOSE: io_uring_prep_close(sqe, io->fd); break;
	case UCM_IO_CALL: break; /* ring.c makes them */
	}
	io_uring_sqe_set_data(sqe, io);
}

/*
 * The kernel has four workers a processor, for this thread, and those that hang
 * in one file server would be missed by another. So there may be one for each
 * operation; they come as they are needed. A kernel before 5.15 keeps to its
 * own number.
 */
static void allow_workers(struct uring *ring)
{
	unsigned most[] = { ring->base.depth, 0 }; /* of files; 0: as it is */

	io_uring_register_iowq_max_workers(&ring->ring, most);
}

/* The kernel's ring is this thread's from now on. (liburing 2.3 declares a
 * function for it, but forgot to export it.) */
static int enable(struct uring *ring)
{
	long rc = 0;

	if (ring->ring.flags & IORING_SETUP_R_DISABLED)
		rc = syscall(SYS_io_uring_register, ring->ring.ring_fd,
			     IORING_REGISTER_ENABLE_RINGS, NULL, 0);
	if (rc < 0)
		return -errno;
	ring->enabled = true;
	allow_workers(ring);
	return 0;
}

/* What does not fit is started after the next completion. */
static int start(struct uring *ring)
{
	struct io_uring_sqe *sqe;
	int err;

	if (!ring->enabled) {
		err = enable(ring);
		if (err)
			return err;
	}
	if (!ring->armed && (sqe = io_uring_get_sqe(&ring->ring))) {
		io_uring_prep_poll_add(sqe, ring->wake_fd, POLLIN);
		io_uring_sqe_set_data(sqe, &ring->wake_fd);
		ring->armed = true;
	}
	while (ring->pending.first && (sqe = io_uring_get_sqe(&ring->ring))) {
		struct ucm_io *io = ucm_io_take(&ring->pending);

		prepare(ring, sqe, io);
		ucm_remains_add(&ring->remains, io);
	}
	return 0;
}

/* ---- taking what is done ---- */

static void completed(struct uring *ring, struct ucm_io *io, int result,
		      struct ucm_io_list *done)
{
	ucm_remains_drop(&ring->remains, io);
	if (!ucm_io_step(io, result)) {
		ucm_io_append(&ring->pending, io);
		return;
	}
	ucm_io_append(done, io);
}

static void disarm(struct uring *ring)
{
	eventfd_t wakes;

	ring->armed = false;
	eventfd_read(ring->wake_fd, &wakes); /* or nothing to read */
}

/* Without its eventfd nobody could wake it: then it has failed, too. */
static int reap(struct uring *ring, struct ucm_io_list *done)
{
	struct io_uring_cqe *cqe;
	unsigned head, num = 0;
	int err = 0;

	io_uring_for_each_cqe(&ring->ring, head, cqe) {
		void *data = io_uring_cqe_get_data(cqe);

		num++;
		if (data != &ring->wake_fd) {
			completed(ring, data, cqe->res, done);
			continue;
		}
		disarm(ring);
		if (cqe->res < 0)
			err = cqe->res;
	}
	io_uring_cq_advance(&ring->ring, num);
	return err;
}

static int enter(struct uring *ring, int64_t timeout_ns)
{
	struct __kernel_timespec time = {
		.tv_sec = timeout_ns / 1000000000,
		.tv_nsec = timeout_ns % 1000000000,
	};
	struct io_uring_cqe *cqe;
	int rc = enter_fault();

	if (!rc && timeout_ns)
		rc = io_uring_submit_and_wait_timeout(
			&ring->ring, &cqe, 1, timeout_ns < 0 ? NULL : &time,
			NULL);
	else if (!rc)
		rc = io_uring_submit_and_get_events(&ring->ring);
	return lasting(rc);
}

/* ---- failing ---- */

/* The number may be somebody else's file by now: then it is not closed. What the
 * kernel has mapped keeps the ring until it is unmapped. */
static void leave_queues(struct uring *ring)
{
	if (ring->failed == -EBADF || ring->failed == -EOPNOTSUPP)
		ring->ring.ring_fd = ring->ring.enter_ring_fd = -1;
	io_uring_queue_exit(&ring->ring);
}

static void say_failed(struct uring *ring, bool threads)
{
	snprintf(ring->failed_text, sizeof(ring->failed_text),
		 "%s (io_uring failed: %s)", threads ? "threads" : "nothing",
		 strerrordesc_np(-ring->failed));
	atomic_store(&ring->base.failed_text, ring->failed_text);
	ucm_error("io_uring has failed: %s: %u operations end with an error; %s",
		  strerrordesc_np(-ring->failed), ring->remains.num_flying,
		  threads ? "going on with threads" : "so do all others");
}

static void fail_ring(struct uring *ring, int err, struct ucm_io_list *done)
{
	struct ucm_io *io;

	reap(ring, done); /* what the kernel has told so far */
	ring->failed = err;
	say_failed(ring, ucm_remains_begin(&ring->remains));
	leave_queues(ring);
	while ((io = ucm_io_take(&ring->pending)))
		ucm_remains_queue(&ring->remains, io);
}

/* ---- polling ---- */

static struct ucm_io *uring_poll(struct ucm_ring *base, int64_t timeout_ns)
{
	int64_t end_ns = timeout_ns > 0 ? ucm_monotonic_ns() + timeout_ns : 0;
	struct ucm_io_list done = { 0 };
	struct uring *ring = of(base);
	int err;

	if (ring->failed)
		return ucm_remains_poll(&ring->remains, base, timeout_ns);
	if (!timeout_ns && !ring->remains.num_flying && !ring->pending.first)
		return NULL; /* the kernel has nothing to say */
	for (;;) {
		err = start(ring)
			?: enter(ring, timeout_ns)
			?: reap(ring, &done);
		if (err || done.first || !timeout_ns || atomic_load(&base->woken))
			break;
		if (timeout_ns > 0) {
			timeout_ns = end_ns - ucm_monotonic_ns();
			timeout_ns = timeout_ns > 0 ? timeout_ns : 0;
		}
	}
	if (!err && ring->pending.first) { /* short ones go on at once */
		err = start(ring)
			?: submit(ring);
	}
	if (err)
		fail_ring(ring, err, &done);
	return done.first || !err
		       ? done.first
		       : ucm_remains_poll(&ring->remains, base, timeout_ns);
}

static void uring_queue(struct ucm_ring *base, struct ucm_io *io)
{
	struct uring *ring = of(base);

	if (ring->failed)
		ucm_remains_queue(&ring->remains, io);
	else
		ucm_io_append(&ring->pending, io);
}

static void uring_rouse(struct ucm_ring *base)
{
	if (atomic_load(&base->failed_text)) /* the eventfd may have gone */
		ucm_remains_rouse(&of(base)->remains);
	else
		eventfd_write(of(base)->wake_fd, 1);
}

/* ---- memory that stays ---- */

static int open_table(struct uring *ring)
{
	int rc = ring->num_pinned
			 ? 0
			 : io_uring_register_buffers_sparse(&ring->ring,
							    MAX_PINNED);

	return rc == -EBUSY ? 0 : rc; /* there from a time before */
}

static bool is_free(const struct uring *ring, unsigned place)
{
	return place >= ring->num_pinned || !ring->pinned[place].iov_base;
}

/* So many free places in a row, from *out on. */
static int find_places(const struct uring *ring, size_t num, unsigned *out)
{
	unsigned in_a_row = 0;

	for (unsigned i = 0; i < MAX_PINNED; i++) {
		in_a_row = is_free(ring, i) ? in_a_row + 1 : 0;
		if (in_a_row == num) {
			*out = i + 1 - in_a_row;
			return 0;
		}
	}
	return -ENOSPC;
}

/* The next part of what begins at first. */
static void take_place(struct uring *ring, unsigned first, struct iovec part)
{
	unsigned place = first + ring->wholes[first].parts++;

	ring->pinned[place] = part;
	if (ring->num_pinned <= place)
		ring->num_pinned = place + 1;
}

/* As whoever else in the process has pinned it. */
static int pin_shared(struct uring *ring, void *memory, size_t len,
		      unsigned place)
{
	struct ucm_pinned *pinned;
	int err = ucm_pinned_get(memory, len, &pinned);

	if (err)
		return err;
	err = ucm_pinned_share(pinned, ring->ring.ring_fd, place);
	if (err) {
		ucm_pinned_put(pinned);
		return err;
	}
	ring->wholes[place] = (struct whole){ .len = len, .shared = pinned };
	for (size_t at = 0; at < len; at += UCM_PINNED_PART)
		take_place(ring, place, ucm_pinned_part(memory, len, at));
	return 0;
}

static int set_place(struct uring *ring, unsigned place, struct iovec part)
{
	__u64 tag = 0;
	int rc = io_uring_register_buffers_update_tag(&ring->ring, place,
						      &part, &tag, 1);

	return rc < 0 ? rc : 0;
}

/* For this ring alone. */
static int pin_own(struct uring *ring, void *memory, size_t len,
		   unsigned first)
{
	struct whole *whole = &ring->wholes[first];

	*whole = (struct whole){ 0 };
	for (size_t at = 0; at < len; at += UCM_PINNED_PART) {
		struct iovec part = ucm_pinned_part(memory, len, at);
		int err = set_place(ring, first + whole->parts, part);

		if (err)
			return err;
		whole->len = len;
		take_place(ring, first, part);
	}
	return 0;
}

static int uring_pin(struct ucm_ring *base, void *memory, size_t len,
		     bool share)
{
	struct uring *ring = of(base);
	int err = ring->failed ? -ENOTSUP : open_table(ring);
	unsigned place;

	if (!err)
		err = find_places(ring, ucm_pinned_parts(len), &place);
	if (err)
		return err;
	if (share && !pin_shared(ring, memory, len, place))
		return 0;
	return pin_own(ring, memory, len, place);
}

/* Whatever the kernel says, nothing is read there any more: other memory may
 * soon have these addresses, and the kernel would still have the former one. */
static void free_place(struct uring *ring, unsigned place)
{
	int err = ring->failed ? 0
			       : set_place(ring, place, (struct iovec){ 0 });

	ring->pinned[place].iov_len = 0;
	if (!err)
		ring->pinned[place].iov_base = NULL;
	else
		ucm_warning("io_uring: memory stays pinned: %s",
			    strerror(-err));
}

/* Others may begin at the same address and have the same first part. */
static bool is_whole(const struct uring *ring, unsigned first,
		     const void *memory, size_t len)
{
	return ring->wholes[first].len == len &&
	       ring->pinned[first].iov_base == memory;
}

static void uring_unpin(struct ucm_ring *base, void *memory, size_t len)
{
	struct uring *ring = of(base);
	struct whole whole;
	unsigned first = 0;

	while (first < ring->num_pinned && !is_whole(ring, first, memory, len))
		first++;
	if (!len || first == ring->num_pinned)
		return;
	whole = ring->wholes[first];
	ring->wholes[first] = (struct whole){ 0 };
	ucm_pinned_put(whole.shared);
	for (unsigned i = 0; i < whole.parts; i++)
		free_place(ring, first + i);
}

static bool uring_is_pinned(const struct ucm_ring *base, const void *memory,
			    size_t len)
{
	const struct uring *ring = (const struct uring *)base;

	return !ring->failed && pinned_index(ring, memory, len) >= 0;
}

/* ---- open and close ---- */

/* What can be is cancelled (by kernels from 5.19 on), the rest waited for. */
static void drain(struct uring *ring)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->ring);
	struct io_uring_cqe *cqe;

	if (sqe) {
		io_uring_prep_cancel64(sqe, 0, IORING_ASYNC_CANCEL_ANY |
						       IORING_ASYNC_CANCEL_ALL);
		io_uring_sqe_set_data(sqe, NULL);
	}
	while (ring->remains.num_flying) {
		int rc = enter_fault();

		rc = lasting(rc ? rc
				: io_uring_submit_and_wait(&ring->ring, 1));
		if (rc) {
			ring->failed = rc;
			return;
		}
		while (!io_uring_peek_cqe(&ring->ring, &cqe)) {
			void *data = io_uring_cqe_get_data(cqe);

			if (data && data != &ring->wake_fd) {
				ucm_io_abandon(data, cqe->res);
				ucm_remains_drop(&ring->remains, data);
			}
			io_uring_cqe_seen(&ring->ring, cqe);
		}
	}
}

static void uring_close(struct ucm_ring *base)
{
	struct uring *ring = of(base);
	struct ucm_io *io;

	while ((io = ucm_io_take(&ring->pending)))
		ucm_io_abandon(io, -ECANCELED);
	if (!ring->failed) {
		if (ring->remains.num_flying)
			drain(ring);
		leave_queues(ring);
	}
	ucm_remains_fini(&ring->remains);
	for (unsigned i = 0; i < ring->num_pinned; i++)
		ucm_pinned_put(ring->wholes[i].shared);
	if (ring->failed != -EBADF) /* else it may be another file's number */
		close(ring->wake_fd);
}

static const struct ucm_ring_ops uring_ops = {
	.close = uring_close,
	.pin = uring_pin,
	.unpin = uring_unpin,
	.is_pinned = uring_is_pinned,
	.queue = uring_queue,
	.poll = uring_poll,
	.rouse = uring_rouse,
};

/* The best that the kernel takes. Waits with a time-out need one of 5.11. */
static int init_queues(struct uring *ring, unsigned entries)
{
	static const unsigned flags[] = {
		IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
			IORING_SETUP_COOP_TASKRUN | IORING_SETUP_R_DISABLED,
		IORING_SETUP_COOP_TASKRUN,
		0,
	};
	int err = -EINVAL;

	for (size_t i = 0; i < sizeof(flags) / sizeof(*flags); i++) {
		err = io_uring_queue_init(entries, &ring->ring,
					  flags[i] | IORING_SETUP_CLAMP);
		if (err != -EINVAL)
			break;
	}
	if (!err && !(ring->ring.features & IORING_FEAT_EXT_ARG)) {
		io_uring_queue_exit(&ring->ring);
		err = -ENOSYS;
	}
	return err;
}

/* The kernel's ring alone has it from here on. */
static int lend_end(struct uring *ring)
{
	int fd = ucm_remains_lend(&ring->remains), rc;

	if (fd < 0)
		return fd;
	rc = io_uring_register_files(&ring->ring, &fd, 1);
	close(fd);
	return rc < 0 ? rc : 0;
}

int ucm_uring_open(unsigned depth, unsigned threads, struct ucm_ring **out)
{
	struct uring *ring = calloc(1, sizeof(*ring));
	int err;

	if (!ring)
		return -ENOMEM;
	ring->base.ops = &uring_ops;
	strcpy(ring->base.text, "io_uring");
	pthread_mutex_init(&ring->base.ended_lock, NULL);
	ring->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (ring->wake_fd < 0) {
		err = -errno;
		goto free_ring;
	}
	err = init_queues(ring, depth + 2); /* the eventfd's, and a cancel */
	if (err)
		goto close_wake;
	err = ucm_remains_init(&ring->remains, depth, threads)
		?: lend_end(ring);
	if (err)
		goto free_remains;
	*out = &ring->base;
	return 0;

free_remains:
	ucm_remains_fini(&ring->remains);
	io_uring_queue_exit(&ring->ring);
close_wake:
	close(ring->wake_fd);
free_ring:
	free(ring);
	return err;
}
