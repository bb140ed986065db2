/* SPDX-License-Identifier: Apache-2.0 */
/*
 * admission.h - is a new block worth its writing?
 *
 * One for each place with room of its own, such as a tier. Where the place is
 * full, a block is refused that is worth clearly less than the one that would
 * make room for it. With a threshold, also one whose chance of being asked for again
 * within the usual age at eviction is below that, unless it was asked for
 * before. A budget of bytes a day raises the threshold by what was written and
 * is not yet covered; with more than an hour's budget owed nothing is let in.
 *
 * Who refuses a block refuses those after it in the chain, and tells the policy
 * (gone(), REFUSED).
 *
 * Threads: one at a time.
 */
#ifndef UCM_FS_ADMISSION_H
#define UCM_FS_ADMISSION_H

#include "fs/policy/policy.h"

struct ucm_admission {
	uint64_t bytes_per_day; /* 0: no budget */
	double threshold;       /* what is asked for, without a budget */
	double usual_age_s; /* at eviction; 0: nothing has been evicted yet */
	double owed_bytes;  /* written, and not yet covered by the budget */
	uint32_t then_s;    /* when that was so */
	bool began;
};

/* threshold: 0 to 1, where the budget begins; without a budget it stays. */
void ucm_admission_init(struct ucm_admission *admission, double threshold,
			uint64_t bytes_per_day);

/* A block was evicted that was last used so long ago. */
void ucm_admission_evicted(struct ucm_admission *admission, uint32_t age_s);

/* So many bytes were written. No more than a day's budget is ever owed. */
void ucm_admission_wrote(struct ucm_admission *admission, uint32_t now_s,
			 uint64_t bytes);

/* What is owed, in budgets of an hour: with 1 nothing is let in. 0 without a
 * budget. */
double ucm_admission_owed(struct ucm_admission *admission, uint32_t now_s);

/*
 * May a block with this fresh state be written? victim_worth: of the one that
 * would go for it (ucm_pool_pick); NULL: there is room.
 */
bool ucm_admission_admits(struct ucm_admission *admission,
			  const struct ucm_policy *policy, uint32_t now_s,
			  const struct ucm_policy_state *fresh,
			  const double *victim_worth);

#endif
