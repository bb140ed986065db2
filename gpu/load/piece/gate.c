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
#include "gpu/load/budget/iobudget.h"

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

/* ---- the budget ---- */

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

/* May so many bytes be read or written now? They are paid for, until they are
 * given back; else whoever waits for room is fed when it is worth asking again. */
static bool pay(struct ucm_engine *engine, enum ucm_iobudget_class class,
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

/* Nothing will keep them from it any more. */
static void begin(struct ucm_engine *engine, enum ucm_iobudget_class class,
		  uint64_t bytes)
{
	ucm_iobudget_begin(engine->shared->budget, class, bytes,
			   ucm_monotonic_ns());
}

/* So many bytes of a piece are under way; not of one whose lane is late. */
static void enter_budget(struct ucm_piece *piece, uint64_t bytes)
{
	if (piece->file->lane->late)
		return;
	piece->tolled = bytes;
	ucm_iobudget_enter(piece->engine->shared->budget, bytes);
}

/* They no longer are: it has been read, or given up. */
static void leave_budget(struct ucm_piece *piece)
{
	ucm_iobudget_leave(piece->engine->shared->budget, piece->tolled);
	piece->tolled = 0;
}

/* The lane is late: what it has under way shall not keep others waiting. */
static void leave_lane(struct ucm_engine *engine, const struct ucm_lane *lane)
{
	for (unsigned rank = 0; rank < UCM_RANKS; rank++) {
		struct ucm_part *part = engine->loads[rank];

		for (; part; part = part->next) {
			struct ucm_piece *piece;

			LIST_FOREACH(piece, &part->pieces, in_part)
				if (piece->tolled && piece->file->lane == lane)
					leave_budget(piece);
		}
	}
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

	leave_budget(piece);
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
	    !pay(engine, class_of(piece), bytes))
		return -EAGAIN;
	err = get_slot(piece);
	if (err) { /* no turn was had: it may be asked often */
		ucm_iobudget_give_back(engine->shared->budget, bytes);
		return err;
	}
	enter_window(piece);
	begin(engine, class_of(piece), bytes);
	enter_budget(piece, piece->counted);
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

/* ---- each round ---- */

static void look_at_lanes(struct ucm_engine *engine, int64_t now_ns)
{
	for (struct ucm_lane *lane = engine->lanes; lane; lane = lane->next) {
		if (ucm_lane_look(lane, now_ns)) {
			if (lane->late)
				leave_lane(engine, lane);
			ucm_gate_wake(engine);
		}
		ucm_lane_queue_held(engine, lane);
	}
}

void ucm_gate_look(struct ucm_engine *engine)
{
	int64_t now = ucm_monotonic_ns();

	look_at_lanes(engine, now);
	if (!engine->gate.toll_ns || now < engine->gate.toll_ns)
		return;
	engine->gate.toll_ns = 0;
	come_back(engine, ucm_iobudget_pay(engine->shared->budget, now));
	ucm_gate_wake(engine);
}

int64_t ucm_gate_until(const struct ucm_engine *engine, int64_t now_ns)
{
	int64_t left = engine->gate.toll_ns - now_ns;

	if (!engine->gate.toll_ns)
		return -1;
	return left > 0 ? left : 0;
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
	if (!pay(engine, UCM_IOBUDGET_SAVE, len))
		return false;
	begin(engine, UCM_IOBUDGET_SAVE, len);
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
