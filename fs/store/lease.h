/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease.h - blocks that somebody is about to read.
 *
 * A block that was found must not be evicted before its file has been opened;
 * so whoever asks gets a few seconds. So that nobody keeps all blocks for ever,
 * the leases of a user are limited in number, and so is the time for which he
 * keeps one block by renewing; after that he gets none on it for a tenth of that
 * time. Several requests of a user may want one block: it is his until the last
 * of them has given it back, or its time is over. Leases do not survive a
 * restart. Any thread may call.
 */
#ifndef UCM_LEASE_H
#define UCM_LEASE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fs/index/index.h"

/* All times are monotonic. */
struct ucm_lease {
	ucm_ref ref; /* 0: free */
	uint32_t uid;
	uint32_t takes;   /* not given back; 0: it does not count as his */
	int64_t since_ms; /* when he took it, and has renewed it ever since */
	int64_t until_ms;
};

struct ucm_lease_user {
	uint32_t uid;
	unsigned num; /* slots with takes, some of which may have run out */
};

struct ucm_leases {
	unsigned most;  /* of one user */
	int64_t age_ms; /* of one lease, with all renewals; no lease is longer */
	pthread_mutex_t lock; /* guards the rest */
	struct ucm_lease *slots; /* open addressing */
	size_t room, used;
	struct ucm_lease_user *users;
	size_t num_users;
	int64_t cleared_ms; /* when what had run out was removed last */
};

void ucm_leases_init(struct ucm_leases *leases, unsigned most, unsigned age_s);
void ucm_leases_fini(struct ucm_leases *leases);

/* For so long, or longer if he has leased it for longer. renew: on behalf of one
 * who has taken it. -EDQUOT: he has too many, or has had this one too long;
 * -ENOMEM. */
int ucm_lease_take(struct ucm_leases *leases, ucm_ref ref, uint32_t uid,
		   int64_t now_ms, int64_t lease_ms, bool renew);
/* One who has taken it gives it back. Nothing, if it has run out. */
void ucm_lease_release(struct ucm_leases *leases, ucm_ref ref, uint32_t uid,
		       int64_t now_ms);
/* By how many users, and for how long yet? */
unsigned ucm_lease_ask(struct ucm_leases *leases, ucm_ref ref, int64_t now_ms,
		       int64_t *left_ms_out);
/* All that have not run out. */
uint64_t ucm_leases_count(struct ucm_leases *leases, int64_t now_ms);

#endif
