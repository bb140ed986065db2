/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pinned.c - memory that is pinned once, for all rings of the process.
 *
 * To pin an engine's pages takes a second for some 10 GB, counts against the limit
 * of locked memory, and takes a table of 0.4 % of their size. A loader has a ring
 * for each thread, and a process may have several loaders. So the memory is
 * registered with a ring of its own, which nothing is ever queued in, and the
 * others take that ring's entries over (IORING_REGISTER_CLONE_BUFFERS, Linux 6.13
 * with an offset). The kernel keeps the pages for whoever has them last.
 *
 * The list and the counts are guarded by one lock, which is kept while memory is
 * pinned: whoever wants the same has to wait for it anyway.
 */
#include <config.h>

#include "gpu/ring/pinned.h"

#include <errno.h>
#include <liburing.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Of headers that are newer than those we may be compiled with. */
#define CLONE_BUFFERS 30u
#define CLONE_INTO_TABLE 2u

struct clone_args {
	uint32_t from_fd, flags, from, to, num, zero[3];
};

struct ucm_pinned {
	void *memory;
	size_t len;
	unsigned refs, parts;
	struct io_uring ring;
	struct ucm_pinned *next;
};

static struct ucm_pinned *all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int clone_buffers(const struct io_uring *from, unsigned num, int to_fd,
			 unsigned index)
{
	struct clone_args arg = { .from_fd = (uint32_t)from->ring_fd,
				  .flags = CLONE_INTO_TABLE, .to = index,
				  .num = num };

	return syscall(SYS_io_uring_register, to_fd, CLONE_BUFFERS, &arg,
		       1) < 0
		       ? -errno
		       : 0;
}

/* Into a table that has room and an entry already, as ours. */
static int try_sharing(void)
{
	static char byte;
	struct iovec some = { &byte, 1 };
	struct io_uring from, to;
	int err = io_uring_queue_init(1, &from, 0);

	if (err)
		return err;
	err = io_uring_queue_init(1, &to, 0);
	if (!err) {
		err = io_uring_register_buffers(&from, &some, 1)
			?: io_uring_register_buffers_sparse(&to, 4)
			?: clone_buffers(&from, 1, to.ring_fd, 2);
		io_uring_queue_exit(&to);
	}
	io_uring_queue_exit(&from);
	return err;
}

/* With the lock. */
static bool can_share(void)
{
	static enum { UNKNOWN, YES, NO } known;

	if (known == UNKNOWN)
		known = try_sharing() ? NO : YES;
	return known == YES;
}

static int pin_parts(struct ucm_pinned *pinned)
{
	struct iovec *parts = calloc(pinned->parts, sizeof(*parts));
	int err;

	if (!parts)
		return -ENOMEM;
	for (unsigned i = 0; i < pinned->parts; i++)
		parts[i] = ucm_pinned_part(pinned->memory, pinned->len,
					   i * UCM_PINNED_PART);
	err = io_uring_register_buffers(&pinned->ring, parts, pinned->parts);
	free(parts);
	return err;
}

static int pinned_new(void *memory, size_t len, struct ucm_pinned **out)
{
	struct ucm_pinned *pinned;
	int err;

	if (!can_share())
		return -ENOTSUP;
	pinned = calloc(1, sizeof(*pinned));
	if (!pinned)
		return -ENOMEM;
	pinned->memory = memory;
	pinned->len = len;
	pinned->parts = ucm_pinned_parts(len);
	err = io_uring_queue_init(1, &pinned->ring, 0);
	if (err)
		goto free_pinned;
	err = pin_parts(pinned);
	if (err)
		goto exit_ring;
	pinned->next = all;
	all = pinned;
	*out = pinned;
	return 0;

exit_ring:
	io_uring_queue_exit(&pinned->ring);
free_pinned:
	free(pinned);
	return err;
}

int ucm_pinned_get(void *memory, size_t len, struct ucm_pinned **out)
{
	struct ucm_pinned *pinned;
	int err = 0;

	pthread_mutex_lock(&lock);
	for (pinned = all; pinned; pinned = pinned->next) {
		if (pinned->memory == memory && pinned->len == len)
			break;
	}
	if (!pinned)
		err = len ? pinned_new(memory, len, &pinned) : -EINVAL;
	if (!err) {
		pinned->refs++;
		*out = pinned;
	}
	pthread_mutex_unlock(&lock);
	return err;
}

void ucm_pinned_put(struct ucm_pinned *pinned)
{
	struct ucm_pinned **at = &all;

	if (!pinned)
		return;
	pthread_mutex_lock(&lock);
	if (!--pinned->refs) {
		while (*at != pinned)
			at = &(*at)->next;
		*at = pinned->next;
		io_uring_queue_exit(&pinned->ring);
		free(pinned);
	}
	pthread_mutex_unlock(&lock);
}

int ucm_pinned_share(const struct ucm_pinned *pinned, int ring_fd,
		     unsigned index)
{
	return clone_buffers(&pinned->ring, pinned->parts, ring_fd, index);
}
