/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch.h - blocks that are copied one by one, and leave a directory together.
 *
 * A place may go when the other one is on disk, with its name. A sync of each
 * file, and of its folder, costs more than the copy; one sync of the directory
 * covers all that was copied to it before. Until then each of the blocks is held,
 * so that nobody takes the first place away.
 *
 * A batch is one thread's, in its own memory, and stays where it is.
 */
#ifndef UCM_BATCH_H
#define UCM_BATCH_H

#include "fs/store/store.h"

#define UCM_BATCH_MAX 64u

struct ucm_batch {
	struct ucm_store *store;
	unsigned from; /* the directory that they leave */
	bool durable;  /* the copies are to be on disk before that */
	unsigned num;
	uint64_t bytes; /* what they take there */
	struct ucm_batch_item {
		struct ucm_open open; /* with the block's reference */
		unsigned to;	      /* the directory that has the copy */
		uint64_t size;
	} items[UCM_BATCH_MAX];
};

void ucm_batch_init(struct ucm_batch *batch, struct ucm_store *store,
		    unsigned from, bool durable);

/* Is it to be settled before the next copy? */
static inline bool ucm_batch_is_full(const struct ucm_batch *batch)
{
	return batch->num == (batch->durable ? UCM_BATCH_MAX : 1);
}

bool ucm_batch_has(const struct ucm_batch *batch, ucm_ref ref);

/* Hold a block that is about to be copied; there is room for it. -ENOENT: it is
 * gone. ucm_batch_end_copy() follows. */
int ucm_batch_begin_copy(struct ucm_batch *batch, ucm_ref ref);
/* err is what came of the copy. 0, and -EEXIST if it has another place: the block
 * is in the batch, and it is 0; else what it was. -ENOENT: it went meanwhile. */
int ucm_batch_end_copy(struct ucm_batch *batch, int err);

/* The copies are made durable, and all blocks leave; where a sync fails, the copies
 * are no good and go instead. The batch is empty then. Returns how many have
 * left; freed: more bytes by what they took, or NULL. */
unsigned ucm_batch_settle(struct ucm_batch *batch, uint64_t *freed);

#endif
