/* SPDX-License-Identifier: Apache-2.0 */
/*
 * node.h - what a mount has of the node's budget: its limits, and the memory with
 * the clock of its rate. Asks the mount, and may wait for it; any thread, one at a
 * time.
 */
#ifndef UCM_LOAD_NODE_H
#define UCM_LOAD_NODE_H

#include <stdbool.h>
#include <stdint.h>

struct ucm_budget_memory;

/* Each 0: no limit. */
struct ucm_limits {
	uint64_t rate; /* bytes a second */
	uint64_t in_flight;
};

struct ucm_node_budget {
	struct ucm_limits limits;
	struct ucm_budget_memory *memory; /* NULL: no limits, or it cannot be
					   * shared */
	int why;                          /* -errno: why not */
	/* a part of it, which says whether the daemon lives; NULL: nobody knows
	 * when there is something else to be had */
	const void *index;
};

/* 0, also of a mount without limits, and where they cannot be shared. */
int ucm_node_budget_open(const char *mount, struct ucm_node_budget *out);
void ucm_node_budget_close(struct ucm_node_budget *region);

/* Is that still all there is? Without a call; not if there is no index. */
bool ucm_node_budget_lives(const struct ucm_node_budget *region);

#endif
