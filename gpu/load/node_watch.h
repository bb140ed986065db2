/* SPDX-License-Identifier: Apache-2.0 */
/*
 * node_watch.h - looking again for a mount's part of the node's budget.
 *
 * To look is to ask the mount, whose daemon may be stopped: a thread of its own
 * does it, and nobody waits for that. Belongs to one thread.
 */
#ifndef UCM_NODE_WATCH_H
#define UCM_NODE_WATCH_H

#include "gpu/load/node.h"

struct ucm_node_watch;

/* How it looks; tests put another function in its place. */
extern int (*ucm_node_watch_opens)(const char *mount,
				   struct ucm_node_budget *out);

/* NULL: no memory. */
struct ucm_node_watch *ucm_node_watch_open(const char *mount);
/* A look that hangs is waited for a little, and then left to its fate. */
void ucm_node_watch_close(struct ucm_node_watch *watch);

/* Look once, unless it does already. */
void ucm_node_watch_ask(struct ucm_node_watch *watch);
/* Has it found something since? Then that is the caller's. */
bool ucm_node_watch_take(struct ucm_node_watch *watch,
			 struct ucm_node_budget *out);

#endif
