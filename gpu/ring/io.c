/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io.c - what the result of a call means for its operation: whether it is over,
 * or which call comes next; and threads that make such calls. For all kinds of
 * rings.
 */
#include <config.h>

#include "gpu/ring/ops.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/uio.h>
#include <unistd.h>

/* Calls in a row that bring an operation no further, before it fails. */
#define MAX_IDLE 100

ssize_t (*ucm_ring_fault)(const struct ucm_io *io, ssize_t result);
int (*ucm_ring_enter_fault)(void);

void ucm_io_append(struct ucm_io_list *list, struct ucm_io *io)
{
	io->next = NULL;
	if (list->first)
		list->last->next = io;
	else
		list->first = io;
	list->last = io;
}

struct ucm_io *ucm_io_take(struct ucm_io_list *list)
{
	struct ucm_io *io = list->first;

	if (io)
		list->first = io->next;
	return io;
}

static bool finish(struct ucm_io *io, ssize_t result)
{
	io->result = result;
	return true;
}

static bool again(struct ucm_io *io, bool progress)
{
	io->idle = progress ? 0 : io->idle + 1;
	io->resubmits++;
	return false;
}

static size_t whole_units(const struct ucm_io *io, size_t len)
{
	return len & ~((size_t)io->align - 1);
}

/* Of a write: all. */
static size_t needed(const struct ucm_io *io)
{
	return io->op == UCM_IO_READ && io->enough ? io->enough : io->len;
}

/*
 * A read that ended inside a unit continues from there: at the end of the file
 * that gives 0 bytes, without a look at the multiples, and is the only proof of
 * it; anywhere else direct I/O refuses, and the unit is read again. What was
 * written of a unit is written again.
 */
static bool moved(struct ucm_io *io, size_t len)
{
	size_t before = whole_units(io, io->done);

	io->done += len;
	if (io->done >= needed(io))
		return finish(io, (ssize_t)io->done);
	if (!len)
		return finish(io, io->op == UCM_IO_READ ? (ssize_t)io->done
							: -EIO);
	if (io->op == UCM_IO_WRITE)
		io->done = whole_units(io, io->done);
	if (io->idle >= MAX_IDLE)
		return finish(io, -EIO);
	return again(io, whole_units(io, io->done) > before);
}

static bool failed(struct ucm_io *io, int err)
{
	bool inside = io->op == UCM_IO_READ &&
		      whole_units(io, io->done) < io->done;

	/* Linux has closed the descriptor whatever it says */
	if (io->op == UCM_IO_CLOSE)
		return finish(io, err);
	if (err == -EINVAL && inside) {
		io->done = whole_units(io, io->done);
		return io->idle < MAX_IDLE ? again(io, false) : finish(io, -EIO);
	}
	if ((err == -EINTR || err == -EAGAIN) && io->idle < MAX_IDLE)
		return again(io, false);
	return finish(io, err);
}

bool ucm_io_step(struct ucm_io *io, ssize_t result)
{
	if (__builtin_expect(!!ucm_ring_fault, 0))
		result = ucm_ring_fault(io, result);
	if (result < 0)
		return failed(io, (int)result);
	if (io->op == UCM_IO_READ || io->op == UCM_IO_WRITE)
		return moved(io, (size_t)result);
	return finish(io, result);
}

void ucm_io_abandon(struct ucm_io *io, ssize_t result)
{
	if (io->op == UCM_IO_CLOSE && result == -ECANCELED)
		close(io->fd);
}

/* ---- by threads ---- */

static ssize_t or_errno(ssize_t result)
{
	return result < 0 ? -errno : result;
}

/* preadv2: as in io_uring, an offset of -1 is that of the descriptor. */
static ssize_t attempt(struct ucm_io *io)
{
	struct iovec part = { .iov_base = ucm_io_address(io),
			      .iov_len = ucm_io_len(io) };

	switch (io->op) {
	case UCM_IO_READ:
		return or_errno(preadv2(io->fd, &part, 1, ucm_io_offset(io), 0));
	case UCM_IO_WRITE:
		if (ucm_io_take_parts(io))
			return or_errno(pwritev2(io->fd, io->parts, 2,
						 ucm_io_offset(io), 0));
		return or_errno(pwritev2(io->fd, &part, 1, ucm_io_offset(io),
					 0));
	case UCM_IO_CLOSE: return or_errno(close(io->fd));
	case UCM_IO_CALL: return 0; /* it has been made */
	}
	return -EINVAL;
}

void ucm_ring_wake(struct ucm_ring *ring)
{
	atomic_store(&ring->woken, true);
	if (atomic_load(&ring->sleeping))
		ring->ops->rouse(ring);
}

static void end(struct ucm_ring *ring, struct ucm_io *io)
{
	pthread_mutex_lock(&ring->ended_lock);
	ucm_io_append(&ring->ended, io);
	ucm_ring_wake(ring);
	pthread_mutex_unlock(&ring->ended_lock);
}

/* By a thread of a crew. */
static void work(struct ucm_job *job)
{
	struct ucm_io *io = (struct ucm_io *)((char *)job -
					      offsetof(struct ucm_io, job));

	if (atomic_load(&io->ring->closing)) {
		ucm_io_abandon(io, -ECANCELED);
		return;
	}
	if (io->op == UCM_IO_CALL)
		io->call(io);
	while (!ucm_io_step(io, attempt(io)))
		;
	end(io->ring, io);
}

void ucm_io_give(struct ucm_ring *ring, struct ucm_crew **crew,
		 const char *name, unsigned threads, struct ucm_io *io)
{
	int err = *crew ? 0 : ucm_crew_open(name, threads, crew);

	io->ring = ring;
	io->job.run = work;
	if (!err && ucm_crew_add(*crew, &io->job))
		return;
	if (io->op == UCM_IO_CLOSE)
		close(io->fd);
	io->result = -ENOMEM;
	end(ring, io);
}
