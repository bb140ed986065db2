/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sharers.h - the loaders of a node that share a budget, and what each wants.
 *
 * They share a memory to which all of them write. Each has a place in it, in
 * which it says what it wants, and looks at the places of the others. Nothing in
 * there is believed but as a wish: whatever it is, no call fails, waits, or
 * reaches outside of it. Belongs to one thread; the time is an argument. See
 * sharers.c.
 */
#ifndef UCM_SHARERS_H
#define UCM_SHARERS_H

#include <stdbool.h>
#include <stdint.h>

#include "fs/index/budget_layout.h"

/* Without news for so long a sharer counts as dead, and its place, after longer,
 * is had by who finds no other: if it was only idle, it looks for one again. */
#define UCM_SHARER_DEAD_NS (INT64_C(300) * 1000000)
#define UCM_SHARER_GONE_NS (INT64_C(1) * 1000000000)

struct ucm_sharers {
	struct ucm_sharers_memory *memory; /* not ours to free */
	uint64_t id;                       /* ours, not 0 */
	struct ucm_sharer *own;            /* NULL: none was free */
	/* What was seen of the others, and when it changed. */
	struct {
		uint64_t owner, beat;
		int64_t changed_ns;
	} seen[UCM_SHARERS_MAX];
};

void ucm_sharers_init(struct ucm_sharers *sharers,
		      struct ucm_sharers_memory *memory, uint64_t id,
		      int64_t now_ns);
/* Its place is nobody's. */
void ucm_sharers_leave(struct ucm_sharers *sharers);

struct ucm_wants {
	uint64_t rate, in_flight; /* UCM_FAIR_ALL: more than there is */
	uint64_t bytes;
};

/* Say what we want, until UCM_SHARER_DEAD_NS from now; NULL: nothing. */
void ucm_sharers_say(struct ucm_sharers *sharers,
		     const struct ucm_wants *wants);

/* What we may have of the totals, beside those that live. Takes a place if we
 * have none. */
void ucm_sharers_share(struct ucm_sharers *sharers, int64_t now_ns,
		       uint64_t *rate, uint64_t *in_flight);

#endif
