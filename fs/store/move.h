/* SPDX-License-Identifier: Apache-2.0 */
/*
 * move.h - one block from one place to another.
 *
 * A move is a copy, after which the block has two places, and the end of one of
 * them. Both are whole in themselves: who wants an inclusive cache does the
 * first alone. Not from a thread that must not wait. 0 or -errno.
 */
#ifndef UCM_MOVE_H
#define UCM_MOVE_H

#include "fs/store/store.h"

struct ucm_move_terms {
	struct ucm_tier *to;
	bool first;   /* it is to be read there from now on */
	bool durable; /* on disk, with its name, before the copy is over */
	bool soon;    /* it is to be written: the caller syncs the directory */
	bool within;  /* to another directory of the tier, if it is there */
	bool open;    /* its writer may have it open: it has just closed it */
	bool may_refuse; /* the tier may, as it is not to be written so much:
			  * ucm_evict_and_copy() */
	unsigned only; /* 1 + which of the tier's directories; 0: any */
	/* Called for the bytes that have been copied, and may wait: how fast is
	 * its affair. NULL: at full speed. */
	void (*pace)(void *arg, uint64_t bytes);
	void *arg;
};

/*
 * Copy a block to a directory of a tier, with all checksums compared on the way.
 * It has two places then, and never more: one that has two leaves the slower one
 * before it is copied to be read elsewhere (first), and is not copied otherwise.
 * copied: bytes, or NULL. -ENOENT: it is gone, or it was found to be wrong and
 * has been set aside; -EEXIST: it is in that tier already, or has two places; -EBUSY: its writer
 * has it open, or it changed meanwhile; -ENOSPC: no room there; and what the
 * directories said, which is logged.
 */
int ucm_store_copy(struct ucm_store *store, ucm_ref ref,
		   const struct ucm_move_terms *move, uint64_t *copied);

/* A block that has two places is taken out of one of them. freed: bytes, or
 * NULL. See ucm_store_leave_place(); and what the directory said. */
int ucm_store_drop_place(struct ucm_store *store, ucm_ref ref, unsigned dir,
			 uint64_t *freed);

#endif
