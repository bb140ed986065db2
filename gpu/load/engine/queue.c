/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue.c - operations of the ring, and more of them than it takes at a time.
 *
 * What does not fit the ring waits in the backlog, in its order. It knows of an
 * operation whose call it is, and whom to call when that has ended, not what it
 * is for.
 */
#include <config.h>

#include "common/clock.h"
#include "gpu/load/engine/engine.h"

static void queue_backlog_push(struct ucm_engine *engine, struct ucm_io *io)
{
	io->next = NULL;
	*engine->backlog_end = io;
	engine->backlog_end = &io->next;
}

void ucm_engine_queue(struct ucm_engine *engine, struct ucm_engine_op *op)
{
	engine->ops++;
	op->begin_ns = ucm_profile_begin();
	if (op->lane) {
		op->io.crowd = op->lane->number;
		ucm_lane_begin(op->lane, ucm_monotonic_ns());
	}
	if (engine->backlog || ucm_ring_queue(engine->ring, &op->io))
		queue_backlog_push(engine, &op->io);
}

void ucm_engine_call(struct ucm_engine *engine, struct ucm_engine_op *op,
		     void (*call)(struct ucm_io *io))
{
	op->io = (struct ucm_io){ .op = UCM_IO_CALL, .call = call };
	ucm_engine_queue(engine, op);
}

static void queue_backlog(struct ucm_engine *engine)
{
	struct ucm_io *io = engine->backlog;

	engine->backlog = NULL;
	engine->backlog_end = &engine->backlog;
	while (io) {
		struct ucm_io *next = io->next;

		if (engine->backlog || ucm_ring_queue(engine->ring, io))
			queue_backlog_push(engine, io);
		io = next;
	}
}

void ucm_engine_poll(struct ucm_engine *engine, int64_t timeout_ns)
{
	struct ucm_io *io = ucm_ring_poll(engine->ring, timeout_ns);
	int64_t now = ucm_monotonic_ns();

	while (io) {
		struct ucm_engine_op *op = (struct ucm_engine_op *)io;

		io = io->next;
		engine->ops--;
		if (op->lane) { /* which may make another call */
			ucm_lane_end(op->lane, now);
			ucm_gate_wake(engine);
		}
		op->done(engine, op);
	}
	if (engine->backlog)
		queue_backlog(engine);
}
