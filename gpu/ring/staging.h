/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staging.h - the memory between files and pages.
 *
 * Slots of the length that is asked for, out of one piece of memory, or out of a
 * pool that grows with its use. Belongs to one thread. A slot's state says who may touch its bytes:
 *
 *	FREE -> IO (the kernel) -> HELD (the thread) -> COPY (the back end) -> FREE
 *	FREE -> COPY -> HELD -> IO -> FREE, when saving
 *
 * and HELD may go to FREE or back to IO. A slot that a device had when it went
 * is LOST: it never becomes free, as nobody knows whether it is still written
 * to. Under ASAN a slot in IO is poisoned, so
 * that an early touch is reported.
 */
#ifndef UCM_STAGING_H
#define UCM_STAGING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UCM_STAGING_ALIGN 4096u
#define UCM_STAGING_UNIT ((size_t)65536) /* a slot takes whole ones */

enum ucm_slot_state {
	UCM_SLOT_FREE,
	UCM_SLOT_HELD,
	UCM_SLOT_IO,
	UCM_SLOT_COPY,
	UCM_SLOT_LOST,
};

struct ucm_slot {
	uint8_t *memory;
	size_t len;
	enum ucm_slot_state state;
};

struct ucm_staging;

/* One piece. len is rounded up. Huge pages are used where they can be had, and
 * memory of that NUMA node (-1: any). A child that is forked does not get it. */
int ucm_staging_open(size_t len, int node, struct ucm_staging **out);

/* Who has to know of the pieces of a pool: to pin them, say. */
struct ucm_staging_ops {
	/* It is new: 0, or -errno: then it is of no use. */
	int (*take)(void *arg, uint8_t *memory, size_t len);
	/* Nobody uses it any more, and it will be unmapped. Not called by
	 * close. */
	void (*leave)(void *arg, uint8_t *memory, size_t len);
};

/* The same, of which little is there at first, and more when slots need it, up
 * to len. Both are called by the caller that gets a slot. */
int ucm_staging_open_pool(size_t len, int node,
			  const struct ucm_staging_ops *ops, void *arg,
			  struct ucm_staging **out);

/* All slots are free, or lost: then the memory stays mapped. */
void ucm_staging_close(struct ucm_staging *staging);

/* Of one that is one piece. */
uint8_t *ucm_staging_memory(const struct ucm_staging *staging);
/* The most that its slots may have together; less than it was opened for while
 * it cannot grow. */
size_t ucm_staging_len(const struct ucm_staging *staging);
/* The same, had it never been refused memory. */
size_t ucm_staging_limit(const struct ucm_staging *staging);
/* So much is there. */
size_t ucm_staging_size(const struct ucm_staging *staging);
bool ucm_staging_is_huge(const struct ucm_staging *staging);

/* A slot of at least len bytes, aligned to 4096, HELD. -EAGAIN: no room now;
 * -EFBIG: never; -EIO: not any more, as the rest is lost; others: none is in use,
 * and no memory is to be had. Its bytes are what was there before. */
int ucm_staging_get(struct ucm_staging *staging, size_t len,
		    struct ucm_slot *out);
/* HELD or LOST. */
void ucm_staging_put(struct ucm_staging *staging, struct ucm_slot *slot);

/* Hand a slot on; asserts that it was `from`. */
void ucm_slot_move(struct ucm_slot *slot, enum ucm_slot_state from,
		   enum ucm_slot_state to);
/* The back end is done with it: it is HELD, or LOST. */
void ucm_slot_copied(struct ucm_slot *slot, bool lost);

#endif
