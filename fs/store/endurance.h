/* SPDX-License-Identifier: Apache-2.0 */
/*
 * endurance.h - what may be written to a tier.
 *
 * One for each tier: an admission (fs/policy/admission.h) with the tier's budget
 * of bytes a day. All blocks that are committed or copied there count, and what
 * files/ grows by. What can be left out is asked for
 * here first: saves that may be refused (offers.h) and moves.
 *
 * Any thread. The locks are innermost.
 */
#ifndef UCM_ENDURANCE_H
#define UCM_ENDURANCE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "fs/policy/admission.h"

struct ucm_entry;
struct ucm_store;
struct ucm_tier;

struct ucm_endurance {
	_Atomic bool evicted; /* something had to leave it */
	pthread_mutex_t lock; /* guards the rest */
	struct ucm_admission admission;
	_Atomic bool spent; /* changed under the lock */
	uint64_t files; /* bytes of files/ that have been counted */
};

/* One for each tier. -ENOMEM. */
int ucm_endurance_open(struct ucm_store *store);
void ucm_endurance_close(struct ucm_store *store);

void ucm_endurance_wrote(struct ucm_store *store, const struct ucm_tier *tier,
			 uint64_t bytes);
/* What files/ has grown by since the last call. */
void ucm_endurance_count_files(struct ucm_store *store);
/* A block had to leave the tier. */
void ucm_endurance_evicted(struct ucm_store *store,
			   const struct ucm_tier *tier,
			   const struct ucm_entry *entry);

/* See ucm_admission_admits(). Without a policy all are. */
bool ucm_endurance_admits(struct ucm_store *store, const struct ucm_tier *tier,
			  const struct ucm_policy_state *state,
			  const double *victim_worth);

/* Nothing is let in: an hour's budget has been owed, and half of it still is. */
bool ucm_endurance_is_spent(struct ucm_store *store,
			    const struct ucm_tier *tier);

/* Of an hour's budget, how much is owed; 0 without a budget. */
double ucm_endurance_owed(struct ucm_store *store,
			  const struct ucm_tier *tier);

/* Did anything have to leave the tier, since the mount? */
bool ucm_endurance_has_evicted(const struct ucm_store *store,
			       const struct ucm_tier *tier);

#endif
