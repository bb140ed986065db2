/* SPDX-License-Identifier: Apache-2.0 */
/*
 * share.h - work that goes after other work, but not never.
 *
 * Whoever waits is owed a part of the bytes that others begin meanwhile, and a
 * turn after a time in any case: where nothing of the others is begun because
 * all of it hangs, nothing would be owed. Pure; the time is an argument.
 */
#ifndef UCM_SHARE_H
#define UCM_SHARE_H

#include <stdbool.h>
#include <stdint.h>

/* A byte for so many of the others, and a turn after so long: of what is loaded
 * beforehand, and what is saved. */
#define UCM_LOW_PART 15
#define UCM_LOW_AGE_NS (INT64_C(500) * 1000000)
#define UCM_SAVE_PART 7
#define UCM_SAVE_AGE_NS (INT64_C(100) * 1000000)

struct ucm_share {
	bool waits;
	uint64_t owed;    /* bytes */
	int64_t since_ns; /* when it began to wait, or had its last turn */
};

/* It waits, or does not; what it was owed before is forgotten with the end. */
void ucm_share_wait(struct ucm_share *share, bool waits, int64_t now_ns);

/* Others have begun so much; one byte of `part` is owed for that. */
void ucm_share_owe(struct ucm_share *share, uint64_t bytes, unsigned part);

/* Is it time for something of that size? */
bool ucm_share_is_due(const struct ucm_share *share, uint64_t bytes,
		      int64_t age_ns, int64_t now_ns);
/* In how many ns it is in any case; -1: it does not wait. */
int64_t ucm_share_until(const struct ucm_share *share, int64_t age_ns,
			int64_t now_ns);

/* It had its turn, with so many bytes. */
void ucm_share_take(struct ucm_share *share, uint64_t bytes, int64_t now_ns);

#endif
