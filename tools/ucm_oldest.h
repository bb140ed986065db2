/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucm_oldest.h - which blocks are removed to make room: the oldest first, and none
 * before those that follow it.
 *
 * A block is reached by way of its parent. So it counts as used when the last of
 * its descendants was, whatever its own time says, which most file systems
 * (relatime) change once a day; among equals children go first. Knows no files.
 */
#ifndef UCM_TOOLS_OLDEST_H
#define UCM_TOOLS_OLDEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ucm/block.h>

struct ucm_aged {
	struct ucm_id id;
	struct ucm_id parent; /* zero: it has none */
	uint32_t space;
	uint64_t bytes;
	int64_t used_ns; /* of its own; then of its descendants, too */
	bool stays;      /* whatever its age */
	bool goes;
	uint32_t height; /* of the tree of its descendants */
	uint32_t waits;  /* children that have not been looked at */
};

/* Sort them: what is to be removed first comes first. -ENOMEM. */
int ucm_oldest_sort(struct ucm_aged *blocks, size_t num);

/* Set goes of as few of the first as leave no more than keep bytes, as far as
 * that can be had. Returns how many are left. */
uint64_t ucm_oldest_choose(struct ucm_aged *blocks, size_t num, uint64_t keep);

#endif
