/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quota.h - what the blocks of a space may take on disk.
 *
 * A block counts once, with what the file takes in which it is read, in however
 * many places it lies: so a space takes what du(1) says of it in the mount, and
 * a move changes nothing. A file that is being written counts with what is
 * promised to it, as soon as that is known.
 *
 * Near the quota, by the marks that tiers have (high, low), movers evict what is
 * worth least in the space (motion.h). Whoever needs room at once evicts himself,
 * and gets -EDQUOT if nothing may go: with -ENOSPC he would try elsewhere, or
 * wait for others.
 *
 * A space that never had a quota has no struct ucm_quota, and no list of its
 * blocks. Any thread may call, unless it says otherwise.
 */
#ifndef UCM_QUOTA_H
#define UCM_QUOTA_H

#include "fs/store/store.h"
#include "fs/store/victims.h"

struct ucm_quota {
	struct ucm_space *space;
	struct ucm_quota *next; /* of the store's; never changes */
	_Atomic uint64_t bytes; /* 0: none now */
	struct ucm_victims victims; /* of its blocks */
	pthread_mutex_t lock; /* one promise at a time */
	_Atomic bool relieved; /* not down to the low mark yet */
	_Atomic uint64_t evicted, evicted_bytes, refused;
};

/* What holds for a space: its own, or what all have that have none. 0: none. */
uint64_t ucm_quota_of(const struct ucm_config *config,
		      const struct ucm_space *space);

/* It has this one of its own from now on (0: none); in memory. -ENOMEM. */
int ucm_quota_apply(struct ucm_store *store, struct ucm_space *space,
		    uint64_t bytes);
void ucm_quotas_free(struct ucm_store *store);

/* A block of the space is there, or has become a leaf. */
void ucm_quota_enlist(struct ucm_space *space, ucm_ref ref);
/* For a mover: lists that must be made anew are. */
void ucm_quota_relist(struct ucm_store *store);

/* What its blocks take, and files that are being written. */
uint64_t ucm_quota_taken(const struct ucm_space *space);
/* How much more it takes before blocks have to leave it, as
 * ucm_pressure_headroom(); UINT64_MAX: it has no quota. */
uint64_t ucm_quota_headroom(const struct ucm_config *config,
			    const struct ucm_space *space);
/* A file of this space is going to take so many bytes; what was promised to it
 * before is part of that. 0: it is promised, or there is no quota; else what is
 * lacking: nothing is evicted for it. */
uint64_t ucm_quota_try(struct ucm_space *space, uint64_t bytes,
		       struct ucm_allowance *part);
/* The file counts as a block, or is gone. */
void ucm_quota_end_promise(struct ucm_allowance *part);

#endif
