/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stripes.h - where the blocks of a chain go, so that one prefix lies on all
 * directories of a tier (placement=striped).
 *
 * A block belongs in the directory after its parent's. The parent stands in the
 * block's header, which is written after the file has been made: so writers say
 * before what they are about to write. That is remembered here, for the last
 * tens of thousands of blocks; of others nothing is known.
 *
 * All calls may be made from any thread.
 */
#ifndef UCM_STRIPES_H
#define UCM_STRIPES_H

#include <pthread.h>
#include <stdint.h>

#include "fs/index/index.h"

struct ucm_stripe;

struct ucm_stripes {
	pthread_mutex_t lock;     /* guards the rest */
	struct ucm_stripe *table; /* NULL: nothing has been said yet */
	uint32_t turn;            /* counts what was said */
};

void ucm_stripes_init(struct ucm_stripes *stripes);
void ucm_stripes_fini(struct ucm_stripes *stripes);

/* A block will come, and this is its parent. Those of a chain in their order.
 * -ENOMEM. */
int ucm_stripes_expect(struct ucm_stripes *stripes, const struct ucm_key *key,
		       const struct ucm_id *parent);

/* How many steps a block is behind another one of its chain, which root_out
 * names; 0: nothing is known, and root_out is not written. */
uint32_t ucm_stripes_find(struct ucm_stripes *stripes,
			  const struct ucm_key *key, struct ucm_id *root_out);

#endif
