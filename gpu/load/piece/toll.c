/* SPDX-License-Identifier: Apache-2.0 */
/* toll.c - what an engine asks of the loader's budget; see toll.h. */
#include <config.h>

#include "gpu/load/piece/toll.h"

#include "common/clock.h"
#include "gpu/load/piece/piece.h"

static void look(struct ucm_io *io)
{
	const struct ucm_engine *engine =
		(struct ucm_engine *)((char *)io -
				      offsetof(struct ucm_engine,
					       gate.look_op.io));

	ucm_iobudget_look(engine->shared->budget);
}

static void on_looked(struct ucm_engine *engine, struct ucm_engine_op *op)
{
	op->done = NULL; /* it may be used again */
	ucm_gate_wake(engine);
}

/* It may wait for the daemon. The budget has one engine look at a time. */
static void begin_look(struct ucm_engine *engine)
{
	engine->gate.look_op = (struct ucm_engine_op){ .done = on_looked };
	ucm_engine_call(engine, &engine->gate.look_op, look);
}

static void come_back(struct ucm_engine *engine, int64_t at_ns)
{
	if (at_ns && (!engine->gate.toll_ns || at_ns < engine->gate.toll_ns))
		engine->gate.toll_ns = at_ns;
}

bool ucm_toll_pay(struct ucm_engine *engine, enum ucm_iobudget_class class,
		  uint64_t bytes)
{
	struct ucm_iobudget *budget = engine->shared->budget;
	int64_t now_ns, again_ns;

	if (!budget)
		return true;
	now_ns = ucm_monotonic_ns();
	if (!engine->gate.look_op.done && ucm_iobudget_must_look(budget, now_ns))
		begin_look(engine);
	if (!ucm_iobudget_take(budget, class, bytes, now_ns, &again_ns)) {
		come_back(engine, again_ns);
		return false;
	}
	come_back(engine, ucm_iobudget_pay(budget, now_ns));
	return true;
}

void ucm_toll_begin(struct ucm_engine *engine, enum ucm_iobudget_class class,
		    uint64_t bytes)
{
	ucm_iobudget_begin(engine->shared->budget, class, bytes,
			   ucm_monotonic_ns());
}

void ucm_toll_enter(struct ucm_piece *piece, uint64_t bytes)
{
	if (piece->file->lane->late)
		return;
	piece->tolled = bytes;
	ucm_iobudget_enter(piece->engine->shared->budget, bytes);
}

void ucm_toll_leave(struct ucm_piece *piece)
{
	ucm_iobudget_leave(piece->engine->shared->budget, piece->tolled);
	piece->tolled = 0;
}

void ucm_toll_leave_lane(struct ucm_engine *engine, const struct ucm_lane *lane)
{
	for (unsigned rank = 0; rank < UCM_RANKS; rank++) {
		struct ucm_part *part = engine->loads[rank];

		for (; part; part = part->next) {
			struct ucm_piece *piece;

			LIST_FOREACH(piece, &part->pieces, in_part)
				if (piece->tolled && piece->file->lane == lane)
					ucm_toll_leave(piece);
		}
	}
}

void ucm_toll_look(struct ucm_engine *engine, int64_t now_ns)
{
	if (!engine->gate.toll_ns || now_ns < engine->gate.toll_ns)
		return;
	engine->gate.toll_ns = 0;
	come_back(engine, ucm_iobudget_pay(engine->shared->budget, now_ns));
	ucm_gate_wake(engine);
}

int64_t ucm_toll_until(const struct ucm_engine *engine, int64_t now_ns)
{
	int64_t left = engine->gate.toll_ns - now_ns;

	if (!engine->gate.toll_ns)
		return -1;
	return left > 0 ? left : 0;
}
