/* SPDX-License-Identifier: Apache-2.0 */
/*
 * offers.h - saves that may be refused.
 *
 * An engine that is about to save blocks asks first which of them are taken. So
 * what would be the first to go again is not written, nor what a tier's
 * endurance has no room for. What is not asked for is taken: it is a person's,
 * or a program's that knows nothing of this.
 *
 * Any thread; nothing waits for a directory.
 */
#ifndef UCM_OFFERS_H
#define UCM_OFFERS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ucm/control.h>

#include "fs/index/index.h"

struct ucm_store;
struct ucm_offer; /* one, and what was said */

struct ucm_offers {
	pthread_mutex_t lock;	 /* guards the rest */
	struct ucm_offer *table; /* NULL: nothing has been offered yet */
};

void ucm_offers_init(struct ucm_offers *offers);
void ucm_offers_fini(struct ucm_offers *offers);

/*
 * Blocks of a space, those of a chain in their order: results[i] is 1 where the
 * block is to be written, or is there, and 0 where it is refused. bytes: of each
 * on disk; 0: as other blocks of the space. An offer counts as a request for
 * blocks that are absent, unless it is repeated within seconds: then the answer
 * is the same. -ENOMEM.
 */
int ucm_offers_judge(struct ucm_store *store, uint16_t space,
		     const struct ucm_control_offered *blocks, size_t num,
		     uint64_t bytes, int32_t *results);

/* Was this block taken lately, which might have been refused? */
bool ucm_offers_took(struct ucm_store *store, const struct ucm_key *key);

#endif
