/* SPDX-License-Identifier: Apache-2.0 */
/* pressure.h - by how much directories are over their marks. */
#ifndef UCM_PRESSURE_H
#define UCM_PRESSURE_H

#include "fs/store/store.h"

/* Of a directory: what its file system said, and what is to go. */
struct ucm_view {
	_Atomic uint64_t wanted; /* room that somebody wanted there */
	_Atomic bool relieved;	 /* until the low mark is reached */
	pthread_mutex_t lock;	 /* guards the rest */
	int64_t asked_ms;	 /* 0: never */
	bool asking;		 /* somebody does */
	uint64_t taken;		 /* bytes, by us */
	uint64_t blocks;	 /* ours */
	struct ucm_seen {
		uint64_t limit, tier_limit;
		struct ucm_medium_room room;
	} seen;
};

/* Once the directories are open. -ENOMEM. */
int ucm_pressure_init(struct ucm_store *store);
void ucm_pressure_fini(struct ucm_store *store);

/* Bytes that are to leave a directory, because it, its tier or its file system
 * is over the high mark (of its inodes, too), or has been and is not yet down to the low one, or
 * somebody wanted room. 0: none. */
uint64_t ucm_pressure(const struct ucm_store *store, unsigned dir);

/* May so many bytes come to a tier without going, or another for them, before
 * long? */
bool ucm_pressure_leaves_room(const struct ucm_store *store,
			      const struct ucm_tier *tier, uint64_t bytes);

/* May so many bytes come to a directory without any block going for them? */
bool ucm_pressure_has_spare(const struct ucm_store *store, unsigned dir,
			    uint64_t bytes);

/* By how much something with that limit (UINT64_MAX: none) is over its low mark;
 * 0 below the high one, unless some of it has been taken away already. */
uint64_t ucm_pressure_over(const struct ucm_config *config, bool relieved,
			   uint64_t limit, uint64_t used);

/* How much more may come to something with that limit (UINT64_MAX: none) below so
 * many percent of it. */
uint64_t ucm_pressure_within(uint64_t limit, uint64_t used, unsigned percent);

/* What keeps so many bytes out of a directory. At least 1: they found no room. */
uint64_t ucm_pressure_lack(const struct ucm_store *store, unsigned dir,
			   uint64_t bytes);

/* How many bytes of new blocks a tier takes before others have to leave it.
 * evicted: they had to before, so that what is free above the low mark has been
 * made free for those that come, and does not count. */
uint64_t ucm_pressure_headroom(const struct ucm_store *store,
			       const struct ucm_tier *tier, bool evicted);

/* A new block had to wait for room there: make some for those that follow. */
void ucm_pressure_raise(struct ucm_store *store, unsigned dir);
/* So much was freed in a directory that was under pressure; 0: no more can be, or
 * need be. */
void ucm_pressure_ease(struct ucm_store *store, unsigned dir, uint64_t freed);

/* The tier below that one that may be written to; NULL: there is none. */
struct ucm_tier *ucm_tier_below(const struct ucm_store *store,
				const struct ucm_tier *tier);

#endif
