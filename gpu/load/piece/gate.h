/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gate.h - what has to wait for room, and asks again when there may be some.
 *
 * gate.c says what waits for what. Pieces ask by the calls in piece.h, saves by
 * these.
 */
#ifndef UCM_LOAD_GATE_H
#define UCM_LOAD_GATE_H

#include "gpu/load/budget/share.h"
#include "gpu/load/engine/lane.h"
#include "gpu/load/engine/queue.h"
#include "gpu/ring/staging.h"

struct ucm_gate {
	bool woken;   /* there may be room */
	bool gave_up; /* what waits may have been given up, and ends at once */
	/* What is owed for what is begun before: to loads beforehand, and saves. */
	struct ucm_share low, saves;
	struct ucm_piece_list kept; /* of the write buffer, for staging memory */
	uint64_t saving_bytes;      /* of staging memory, that saves hold */
	int64_t toll_ns; /* when to ask or pay the budget again; 0: neither */
	struct ucm_engine_op look_op; /* looks for another daemon's budget */
};

/* Each round: see which lanes are late, queue what may be of the closes that they hold,
 * and pay what the budget is owed, if it is time. */
void ucm_gate_look(struct ucm_engine *engine);
/* Until that is, in ns; -1: nothing waits for the budget or is owed. */
int64_t ucm_gate_until(const struct ucm_engine *engine, int64_t now_ns);

/* May a save of so many bytes be begun? Then the budget has been charged. */
bool ucm_gate_begin_save(struct ucm_engine *engine, uint64_t len);
/* Staging memory for one. -EAGAIN: not now. */
int ucm_gate_stage_save(struct ucm_engine *engine, uint64_t len,
			struct ucm_slot *out);
void ucm_gate_unstage_save(struct ucm_engine *engine, struct ucm_slot *slot);

#endif
