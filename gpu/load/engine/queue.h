/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue.h - operations of an engine's ring, and more of them than it takes at a
 * time.
 */
#ifndef UCM_LOAD_QUEUE_H
#define UCM_LOAD_QUEUE_H

#include <sys/queue.h>

#include "common/profile.h"
#include "gpu/ring/ring.h"

struct ucm_engine;
struct ucm_lane;

/* An operation of the ring, and whoever wants to know. */
struct ucm_engine_op {
	struct ucm_io io; /* first */
	void (*done)(struct ucm_engine *engine, struct ucm_engine_op *op);
	struct ucm_lane *lane; /* whose call it is, or NULL */
	int64_t begin_ns; /* for profile.h; 0: not recorded */
	TAILQ_ENTRY(ucm_engine_op) in_held;
};

/* Queue an operation; op->done is called when it has ended. */
void ucm_engine_queue(struct ucm_engine *engine, struct ucm_engine_op *op);
/* The same for what may wait, in a thread for calls. */
void ucm_engine_call(struct ucm_engine *engine, struct ucm_engine_op *op,
		     void (*call)(struct ucm_io *io));
/* Start what is queued, wait (-1: for ever) and end what is done. */
void ucm_engine_poll(struct ucm_engine *engine, int64_t timeout_ns);

#endif
