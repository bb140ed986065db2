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
	UCM_BATCH_LEASE,
	UCM_BATCH_WARM,
	UCM_BATCH_CHECK,
};

/* What a call says beside the ids, and who makes it. */
struct ucm_calls_terms {
	uint32_t uid;
	uint32_t lease_ms; /* 0: none; of lease: give it back */
	uint32_t flags;	   /* UCM_LOCATE_*, UCM_LEASE_*, UCM_TOUCH_* */
};

/* One block: what control.h says of its result. */
int ucm_calls_one(struct ucm_store *store, enum ucm_calls_op op,
		  const struct ucm_key *key,
		  const struct ucm_calls_terms *terms);

/* Where a block lies. */
void ucm_calls_locate(struct ucm_store *store, const struct ucm_key *key,
		      const struct ucm_calls_terms *terms,
		      struct ucm_control_place *out);

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
