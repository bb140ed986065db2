/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pinned.h - memory that is pinned once, for all rings of the process.
 *
 * Any thread.
 */
#ifndef UCM_RING_PINNED_H
#define UCM_RING_PINNED_H

#include <stddef.h>
#include <sys/uio.h>

/* The kernel takes up to 1 GiB at a time: part number i begins at i GiB. */
#define UCM_PINNED_PART ((size_t)1 << 30)

static inline unsigned ucm_pinned_parts(size_t len)
{
	return (unsigned)((len + UCM_PINNED_PART - 1) / UCM_PINNED_PART);
}

static inline struct iovec ucm_pinned_part(void *memory, size_t len, size_t at)
{
	size_t left = len - at;

	return (struct iovec){
		.iov_base = (char *)memory + at,
		.iov_len = left < UCM_PINNED_PART ? left : UCM_PINNED_PART,
	};
}

struct ucm_pinned;

/* Pin memory, or take a further reference to what is pinned already; it must
 * stay mapped until the last one is put. -errno: not all of it can be had, or
 * this kernel cannot share (-ENOTSUP). */
int ucm_pinned_get(void *memory, size_t len, struct ucm_pinned **out);
void ucm_pinned_put(struct ucm_pinned *pinned); /* NULL is harmless */

/* Enter its parts into the table of buffers of a ring, which is given by its
 * descriptor, from that index on. */
int ucm_pinned_share(const struct ucm_pinned *pinned, int ring_fd,
		     unsigned index);

#endif
