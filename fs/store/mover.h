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

/* Wait until all that is to be copied to a lower tier is there, or stop() says
 * so, or all were tried in vain, or nothing has moved for UCM_FLUSH_VAIN_S. 0;
 * -EINTR; -EIO: some cannot be copied. */
#define UCM_FLUSH_VAIN_S 30
int ucm_movers_flush(struct ucm_store *store, bool (*stop)(void *arg),
		     void *arg);

/* Take nothing new in a directory, and move what it has elsewhere; or no more. */
void ucm_movers_drain(struct ucm_store *store, unsigned dir, bool on);

#endif
