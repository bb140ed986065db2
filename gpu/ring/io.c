/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io.c - what the result of a call means for its operation: whether it is over,
 * or which call comes next. For all kinds of rings.
 */
#include <config.h>

#include "gpu/ring/ops.h"

#include <errno.h>
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
