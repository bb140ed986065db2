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

#include "fs/store/store.h"

enum ucm_calls_op {
	UCM_BATCH_LOOKUP,
	UCM_BATCH_TOUCH,
	UCM_BATCH_PIN,
	UCM_BATCH_UNPIN,
	UCM_BATCH_EVICT,
	UCM_BATCH_REMOVE,
	UCM_BATCH_WARM,
	UCM_BATCH_CHECK,
};

/* One block: what control.h says of its result. */
int ucm_calls_one(struct ucm_store *store, enum ucm_calls_op op,
		  const struct ucm_key *key);

/* A block is about to be opened: 1: as was known already; 0: it was not; -errno. Or,
 * if keep_ms is not 0, it is kept for that time: 0 or -errno. */
int ucm_calls_expect(struct ucm_store *store, const struct ucm_key *key,
		     uint32_t keep_ms);

/* Where a block lies. flags: UCM_LOCATE_*. */
void ucm_calls_locate(struct ucm_store *store, const struct ucm_key *key,
		      uint32_t flags, struct ucm_control_place *out);

/* Mark a block that the caller has verified, if its file is still the one of that
 * stamp; 0: it is not right, and loses its mark. 0 or -errno, as control.h says;
 * -EINPROGRESS. */
int ucm_calls_verified(struct ucm_store *store, const struct ucm_key *key,
		       uint64_t stamp);

void ucm_calls_statistics(struct ucm_store *store,
			  struct ucm_control_statistics *out);

/* Read all buckets of all spaces anew: 0, or the first error. stop() is asked
 * now and then: true ends it with -EINTR. */
int ucm_calls_rescan(struct ucm_store *store, bool (*stop)(void *arg),
		     void *arg);

#endif
