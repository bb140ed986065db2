/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gate.c - who has to wait for room, and who is next.
 *
 * A piece asks once for all that its read needs, and has all of it or nothing; what
 * has to wait does so in one list, in its order, and asks again when the gate has
 * been woken (load.c, save.c):
 *
 *	waits                     for                           in
 *	a piece to be read        its lane's window and calls,  lane->waiting[rank]
 *	                          staging, the budget
 *	one of the write buffer   staging                       gate->kept
 *	a save under way          staging: half of it           savings->hungry
 *	a save to be begun        the budget, saves before it   its part, or savings->queued
 *	a close                   a call of its lane            lane->held
 *
 * Demand comes before what is loaded beforehand, and loads before saves; the later
 * ones are owed a part of what the others begin, and a turn after a time (share.h).
 */
#include <config.h>

#include "gpu/load/piece/piece.h"

#include <errno.h>

#include "common/align.h"
#include "common/clock.h"
#include "gpu/load/piece/toll.h"

/* In the order of layers no more is read at a time by a thread (unless the
 * caller says how much): a device may take reads of later layers first. */
#define LAYERS_WINDOW ((uint64_t)8 << 20)

/* ---- whose turn it is ---- */

static void count_begun(struct ucm_piece *piece)
{
	struct ucm_engine *engine = piece->engine;

	ucm_share_owe(&engine->gate.saves, piece->counted, UCM_SAVE_PART);
	if (ucm_piece_rank(piece))
		ucm_share_take(&engine->gate.low, piece->counted,
			       ucm_monotonic_ns());
	else
		ucm_share_owe(&engine->gate.low, piece->counted, UCM_LOW_PART);
}

static void wait_for_room(struct ucm_piece *piece)
{
	if (ucm_piece_rank(piece))
		ucm_share_wait(&piece->engine->gate.low, true,
			       ucm_monotonic_ns());
	ucm_piece_push(&piece->file->lane->waiting[ucm_piece_rank(piece)], piece);
}

/* Does nobody wait who comes first? */
static bool has_turn(const struct ucm_piece *piece)
{
	const struct ucm_lane *lane = piece->file->lane;
	unsigned rank = ucm_piece_rank(piece);

	if (lane->waiting[rank].first)
		return false;
	return !rank || !lane->waiting[0].first ||
	       ucm_share_is_due(&piece->engine->gate.low,
				ucm_piece_bytes(piece), UCM_LOW_AGE_NS,
				ucm_monotonic_ns());
}

/* ---- the window ---- */

/* May so much more be read in that lane? A window that was given is for all
 * lanes together. */
static bool fits_window(const struct ucm_piece *piece)
{
	const struct ucm_engine *engine = piece->engine;
	struct ucm_lane *lane = piece->file->lane;
	uint64_t given = engine->shared->window_bytes, others;
	uint64_t bytes = ucm_piece_bytes(piece);

	if (!ucm_window_has_room(&lane->window, bytes))
		return false;
	bytes += lane->window.in_flight;
	if (given) {
		others = ucm_lanes_in_flight(engine, lane);
		return !others || others + bytes <= given;
	}
	return piece->task->terms.order != UCM_LOAD_LAYERS ||
	       !lane->window.in_flight || bytes <= LAYERS_WINDOW;
}

static void enter_window(struct ucm_piece *piece)
{
	piece->counted = ucm_piece_bytes(piece);
	ucm_window_take(&piece->file->lane->window, piece->counted,
			ucm_monotonic_ns());
	count_begun(piece);
}

void ucm_gate_leave(struct ucm_piece *piece)
{
	struct ucm_engine *engine = piece->engine;

	ucm_toll_leave(piece);
	if (!piece->counted)
		return;
	ucm_window_give(&piece->file->lane->window, piece->counted,
			ucm_monotonic_ns());
	ucm_lanes_count_windows(engine);
	piece->counted = 0;
	ucm_gate_wake(engine);
}

/* ---- staging memory ---- */

static uint64_t slot_bytes(uint64_t len)
{
	return ucm_round_up(len, UCM_STAGING_UNIT);
}

void ucm_gate_give_slot(struct ucm_piece *piece)
{
	if (!piece->slot.memory)
		return;
	if (piece->file) /* not of one that is kept in memory */
		piece->file->lane->staged -= slot_bytes(piece->slot.len);
	ucm_staging_put(piece->engine->staging, &piece->slot);
	ucm_gate_wake(piece->engine);
}

/* Memory for what is read, if it is not read into the page. -EAGAIN: none. */
static int get_slot(struct ucm_piece *piece)
{
	struct ucm_engine *engine = piece->engine;
	struct ucm_lane *lane = piece->file->lane;
	int err;

	if (piece->direct)
		return 0;
	/* those of the write buffer wait for nothing else */
	if (engine->gate.kept.first ||
	    !ucm_lane_may_stage(engine, lane, slot_bytes(piece->plan.len)))
		return -EAGAIN;
	err = ucm_staging_get(engine->staging, piece->plan.len, &piece->slot);
	if (!err)
		lane->staged += slot_bytes(piece->slot.len);
	return err;
}

int ucm_gate_stage_kept(struct ucm_piece *piece, uint64_t len)
{
	struct ucm_engine *engine = piece->engine;
	int err = ucm_staging_get(engine->staging, len, &piece->slot);

	if (err == -EAGAIN)
		ucm_piece_push(&engine->gate.kept, piece);
	return err;
}

/* ---- pieces ---- */

static enum ucm_iobudget_class class_of(const struct ucm_piece *piece)
{
	return ucm_piece_rank(piece) ? UCM_IOBUDGET_LOW : UCM_IOBUDGET_DEMAND;
}

/* All that its read needs. -EAGAIN: it has to wait. */
static int get_room(struct ucm_piece *piece)
{
	struct ucm_engine *engine = piece->engine;
	uint64_t bytes = ucm_piece_bytes(piece);
	int err;

	if (!has_turn(piece) || !ucm_lane_may_call(piece->file->lane) ||
	    !fits_window(piece) ||
	    !ucm_toll_pay(engine, class_of(piece), bytes))
		return -EAGAIN;
	err = get_slot(piece);
	if (err) { /* no turn was had: it may be asked often */
		ucm_iobudget_give_back(engine->shared->budget, bytes);
		return err;
	}
	enter_window(piece);
	ucm_toll_begin(engine, class_of(piece), bytes);
	ucm_toll_enter(piece, piece->counted);
	return 0;
}

int ucm_gate_ask(struct ucm_piece *piece)
{
	int err = get_room(piece);

	if (err == -EAGAIN)
		wait_for_room(piece);
	return err;
}

int ucm_gate_ask_memory(struct ucm_piece *piece)
{
	if (piece->counted)
		return 0;
	if (!has_turn(piece) || !fits_window(piece)) {
		wait_for_room(piece);
		return -EAGAIN;
	}
	enter_window(piece);
	return 0;
}

/* ---- lanes ---- */

void ucm_gate_look(struct ucm_engine *engine)
{
	int64_t now = ucm_monotonic_ns();

	for (struct ucm_lane *lane = engine->lanes; lane; lane = lane->next) {
		if (ucm_lane_look(lane, now)) {
			if (lane->late)
				ucm_toll_leave_lane(engine, lane);
			ucm_gate_wake(engine);
		}
		ucm_lane_queue_held(engine, lane);
	}
}

/* ---- saves ---- */

/* Half of the staging memory is for saves, and a file has some only while it is
 * written: so there are as many again of which the daemon makes the file, or the
 * block. */
bool ucm_gate_begin_save(struct ucm_engine *engine, uint64_t len)
{
	if (engine->savings_busy &&
	    (engine->savings_busy >= engine->shared->most_saves ||
	     (engine->savings_busy + 1) * len >
		     ucm_staging_len(engine->staging)))
		return false;
	if (!ucm_toll_pay(engine, UCM_IOBUDGET_SAVE, len))
		return false;
	ucm_toll_begin(engine, UCM_IOBUDGET_SAVE, len);
	return true;
}

int ucm_gate_stage_save(struct ucm_engine *engine, uint64_t len,
			struct ucm_slot *out)
{
	struct ucm_gate *gate = &engine->gate;
	int err;

	/* loads have half of the staging memory for themselves */
	if (gate->saving_bytes &&
	    gate->saving_bytes + len > ucm_staging_len(engine->staging) / 2)
		return -EAGAIN;
	err = ucm_staging_get(engine->staging, len, out);
	if (!err)
		gate->saving_bytes += len;
	return err;
}

void ucm_gate_unstage_save(struct ucm_engine *engine, struct ucm_slot *slot)
{
	engine->gate.saving_bytes -= slot->len;
	ucm_staging_put(engine->staging, slot);
	ucm_gate_wake(engine);
}
