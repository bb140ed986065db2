/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calls.h - calls on many blocks at a time, as control.h has them.
 *
 * The store's side: it knows what a call does, not how it came here nor who
 * may make it.
 */
#ifndef UCM_CALLS_H
#define UCM_CALLS_H

#include <ucm/control.h>

#include "fs/store/lease.h"
#include "fs/store/store.h"

enum ucm_calls_op {
	UCM_BATCH_LOOKUP,
	UCM_BATCH_TOUCH,
	UCM_BATCH_PIN,
	UCM_BATCH_UNPIN,
	UCM_BATCH_EVICT,
};

/* One block: what control.h says of its result. */
int ucm_calls_one(struct ucm_store *store, struct ucm_leases *leases,
		  enum ucm_calls_op op, const struct ucm_key *key);

/* Where a block lies; lease_ms: of a lease of user uid, 0 for none; flags:
 * UCM_LOCATE_*. */
void ucm_calls_locate(struct ucm_store *store, struct ucm_leases *leases,
		      uint32_t uid, const struct ucm_key *key,
		      uint32_t lease_ms, uint32_t flags,
		      struct ucm_control_place *out);

void ucm_calls_statistics(struct ucm_store *store,
			  struct ucm_control_statistics *out);

/* Read all buckets of all spaces anew: 0, or the first error. stop() is asked
 * now and then: true ends it with -EINTR. */
int ucm_calls_rescan(struct ucm_store *store, bool (*stop)(void *arg),
		     void *arg);

#endif
