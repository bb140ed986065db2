/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mover.h - the threads that move blocks between tiers, and evict them.
 *
 * init, start, stop and fini are the store's owner's.
 */
#ifndef UCM_MOVER_H
#define UCM_MOVER_H

#include "fs/store/store.h"

int ucm_movers_init(struct ucm_store *store);
int ucm_movers_start(struct ucm_store *store);
/* False: one hangs, and may still touch the store. */
bool ucm_movers_stop(struct ucm_store *store);
void ucm_movers_fini(struct ucm_store *store);

/* Copy to a lower tier what is to be copied there and was not when the call began.
 * Room is made as for any copy; blocks that are refused stay where they are, are
 * counted (flush_refused) and named in the log. stop: asked between two blocks. 0;
 * -EINTR: stopped; or what failed first, for a block that the log names. */
int ucm_movers_flush(struct ucm_store *store, bool (*stop)(void *arg),
		     void *arg);

/* Take nothing new in a directory, and move what it has to where there is room
 * below the high mark: no block is evicted for it. What has no room elsewhere
 * stays, and is counted (stays, medium.h). Or no more. */
void ucm_movers_drain(struct ucm_store *store, unsigned dir, bool on);

#endif
