/* SPDX-License-Identifier: Apache-2.0 */
/*
 * budget_layout.h - the memory in which the loaders of a node
 * share its budget, and readers of the index count their look-ups. Everybody may
 * write to it: what is in there is a wish or a count, and nothing to rely on. Each
 * word is in the byte order of the machine, and changed by itself. All zero at
 * first; what a sharer means is said in gpu/load/sharers.c.
 */
#ifndef UCM_BUDGET_LAYOUT_H
#define UCM_BUDGET_LAYOUT_H

#include <stdatomic.h>
#include <stdint.h>

#include <ucm/control.h>

#define UCM_SHARERS_MAX 255u

struct ucm_sharer {
	_Atomic uint64_t owner; /* whose place it is; 0: nobody's */
	_Atomic uint64_t beat;  /* changes while it wants something; 0: it does
				 * not */
	_Atomic uint64_t rate;  /* bytes a second that it wants */
	_Atomic uint64_t in_flight; /* bytes that it wants under way */
	_Atomic uint64_t bytes;     /* that it has begun, ever */
	uint64_t zero[3];
};

struct ucm_sharers_memory {
	/* Blocks looked up in the mapped index: readers add, the daemon takes. */
	_Atomic uint64_t hits, misses;
	uint64_t zero[6];
	struct ucm_sharer sharers[UCM_SHARERS_MAX];
};

_Static_assert(sizeof(struct ucm_sharer) == 64 &&
		       sizeof(struct ucm_sharers_memory) ==
			       UCM_CONTROL_BUDGET_BYTES,
	       "a layout that others map");

#endif
