/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease.h - blocks that somebody is about to read by their path.
 *
 * A block that was located must not be evicted before its file has been opened;
 * so whoever asks gets a few seconds. Leases are not kept over a restart. Any
 * thread may call.
 */
#ifndef UCM_LEASE_H
#define UCM_LEASE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fs/index.h"

struct ucm_lease {
	ucm_ref ref;      /* 0: free */
	int64_t until_ms; /* monotonic */
};

struct ucm_leases {
	pthread_mutex_t lock;
	struct ucm_lease *slots; /* open addressing */
	size_t room, used;
};

void ucm_leases_init(struct ucm_leases *leases);
void ucm_leases_fini(struct ucm_leases *leases);

/* Until then, or later if it was leased for longer. -ENOMEM. */
int ucm_lease_take(struct ucm_leases *leases, ucm_ref ref, int64_t until_ms);
bool ucm_lease_held(struct ucm_leases *leases, ucm_ref ref, int64_t now_ms);

#endif
