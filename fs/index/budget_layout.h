/* SPDX-License-Identifier: Apache-2.0 */
/*
 * budget_layout.h - the memory in which the loaders of a node keep its rate, and
 * readers of the index count their look-ups.
 *
 * Everyone whom the daemon serves may write to it, so nothing in it is relied on: not
 * a magic or a version either, which any peer could overwrite. That it is laid out
 * like this follows from the version in the daemon's hello. Each word is in the byte
 * order of the machine, and is changed by itself. All zero at first.
 */
#ifndef UCM_BUDGET_LAYOUT_H
#define UCM_BUDGET_LAYOUT_H

#include <stdatomic.h>
#include <stdint.h>

#include <ucm/control.h>

struct ucm_budget_memory {
	/* Blocks looked up in the mapped index: readers add, the daemon takes. */
	_Atomic uint64_t hits, misses;
	uint64_t zero[6];
	/* The clock of the node's rate, CLOCK_MONOTONIC; see gpu/load/budget/gcra.h. */
	_Atomic int64_t tat_ns;
	_Atomic uint64_t bytes; /* begun by loaders; for statistics */
	uint64_t rest[502];
};

_Static_assert(sizeof(struct ucm_budget_memory) == UCM_CONTROL_BUDGET_BYTES,
	       "a layout that others map");

#endif
