/* SPDX-License-Identifier: Apache-2.0 */
/*
 * saving.c - a block that is being saved, from turn to turn.
 *
 *	                .-- layers are missing, or it is held: next turn --.
 *	                v                                                  |
 *	created or reopened -> its layers are written (save.c) ------------+
 *	                                        |                          |
 *	                  fails, is given up    |  all are there           |
 *	                            v           v                          |
 *	                         dropped     committed                     |
 *	                            ^--- abandoned between turns ----------'
 *
 * A saving belongs to the block's id: two tasks that save one block have one
 * after the other. The one under way belongs to its part; when the part has
 * given it up, it is dropped at the next step. Between turns its file waits for the
 * next one: open, unless there are too many of them; those beyond are closed after
 * each part and opened again for the next one.
 */
#include <config.h>

#include "gpu/load/save/saving.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "gpu/load/budget/iobudget.h"

static void begin(struct ucm_engine *engine, struct ucm_saving *saving,
		  const struct ucm_turn *turn);

/* ---- turns ---- */

static void count_block(struct ucm_shared *shared,
			const struct ucm_task *task, uint32_t block)
{
	const struct ucm_outcome *outcome = &task->outcomes[block];

	if (outcome->skipped)
		ucm_add(&shared->stats.save_skipped, 1);
	else if (outcome->refused)
		ucm_add(&shared->stats.save_refused, 1);
	else if (outcome->err)
		ucm_add(&shared->stats.save_failed, 1);
}

uint64_t ucm_turn_bytes(const struct ucm_task *task)
{
	return task->terms.is_commit ? 0 : ucm_task_bytes(task);
}

/* A block of a part is done with. */
static void settle(struct ucm_engine *engine, struct ucm_part *part,
		   uint32_t block, const struct ucm_outcome *outcome,
		   bool copied, bool unbilled)
{
	struct ucm_task *task = part->task;

	if (!copied)
		ucm_task_copied(task);
	ucm_task_decide(task, block, outcome);
	if (!task->blocks[block].dropped) {
		if (!unbilled)
			atomic_fetch_sub(&engine->shared->save_waiting,
					 ucm_turn_bytes(task));
		count_block(engine->shared, task, block);
	}
	part->settled++;
	ucm_task_settle(task, block, 0);
}

void ucm_turn_settle(struct ucm_engine *engine, const struct ucm_turn *turn,
		     const struct ucm_outcome *outcome)
{
	bool taken = turn->kept;

	if (taken)
		ucm_buffered_hide(turn->kept);
	ucm_buffered_put(turn->kept);
	settle(engine, turn->part, turn->block, outcome, taken, taken);
}

/* Its bytes do not count as under way any more. */
static void leave_budget(struct ucm_saving *saving)
{
	ucm_iobudget_leave(saving->engine->shared->budget, saving->tolled);
	saving->tolled = 0;
}

/* The present turn ends. */
static void end_turn(struct ucm_saving *saving,
		     const struct ucm_outcome *outcome)
{
	struct ucm_part *part = saving->part;
	struct ucm_task *task = saving->task;

	saving->part = NULL;
	saving->task = NULL;
	saving->busy = false;
	saving->engine->savings_busy--;
	leave_budget(saving);
	/* whoever hears of the end finds the file, or nothing */
	if (saving->kept)
		ucm_buffered_hide(saving->kept);
	if (part)
		settle(saving->engine, part, saving->block, outcome,
		       saving->copied, saving->unbilled);
	ucm_task_put(task);
}

struct ucm_saving *ucm_saving_find(struct ucm_engine *engine,
				   const struct ucm_task *task, uint32_t block)
{
	return ucm_savings_find(&engine->savings, task->group,
				&task->blocks[block].id);
}

void ucm_saving_give_slot(struct ucm_saving *saving)
{
	if (!saving->slot.memory)
		return;
	if (saving->kept) {
		ucm_buffered_hide(saving->kept);
		ucm_buffered_put(saving->kept);
		saving->kept = NULL;
		saving->slot.memory = NULL;
		return;
	}
	ucm_gate_unstage_save(saving->engine, &saving->slot);
}

/* ---- the end of a saving ---- */

/* Out of the table; whoever waited for it starts anew. */
static void leave(struct ucm_saving *saving)
{
	struct ucm_turn *turn = saving->turns;

	ucm_savings_remove(&saving->engine->savings, saving);
	saving->turns = NULL;
	while (turn) {
		struct ucm_turn *next = turn->next;

		begin(saving->engine, NULL, turn);
		free(turn);
		turn = next;
	}
}

/* The file is removed; nothing of it will be seen. */
void ucm_saving_drop(struct ucm_saving *saving)
{
	ucm_saving_give_slot(saving);
	leave(saving);
	ucm_save_file_drop(saving, ucm_saving_free);
}

static void on_failed(struct ucm_saving *saving)
{
	end_turn(saving, &saving->outcome);
	ucm_saving_drop(saving);
}

void ucm_saving_fail(struct ucm_saving *saving, int err, const char *what)
{
	struct ucm_shared *shared = saving->engine->shared;
	char hex[UCM_ID_HEX + 1];

	if (saving->part) {
		ucm_id_format(&saving->id, hex);
		ucm_warning("block %s: not saved: %s: %s", hex, what,
			    strerror(-err));
	}
	if (err == -ENOSPC || err == -EDQUOT) /* removed ones may be open */
		ucm_load_files_close(saving->engine);
	if (ucm_is_lost(err))
		shared->source_ops->lost(shared->source);
	saving->outcome = (struct ucm_outcome){ .err = err };
	ucm_saving_give_slot(saving);
	if (saving->draft) /* it goes before anybody hears of it */
		ucm_save_file_drop(saving, on_failed);
	else
		on_failed(saving);
}

bool ucm_saving_was_given_up(const struct ucm_saving *saving)
{
	return !saving->part ||
	       ucm_task_block_decided(saving->task, saving->block);
}

/* Has the turn been given up meanwhile? Then nothing is left to do. */
bool ucm_saving_is_given_up(struct ucm_saving *saving)
{
	if (!ucm_saving_was_given_up(saving))
		return false;
	end_turn(saving, &(struct ucm_outcome){ .err = -ECANCELED });
	ucm_saving_drop(saving);
	return true;
}

bool ucm_saving_goes_on(struct ucm_saving *saving, const char *what)
{
	if (ucm_saving_is_given_up(saving))
		return false;
	if (!saving->result)
		return true;
	ucm_saving_fail(saving, saving->result, what);
	return false;
}

/* ---- the end of a turn ---- */

void ucm_saving_end_well(struct ucm_saving *saving, bool skipped)
{
	struct ucm_outcome outcome = { .skipped = skipped };

	if (!skipped)
		ucm_add(&saving->engine->shared->stats.save_bytes,
			ucm_turn_bytes(saving->task));
	else /* nothing was written */
		ucm_iobudget_give_back(saving->engine->shared->budget,
				     ucm_turn_bytes(saving->task));
	end_turn(saving, &outcome);
}

/* Its file is open: if a turn drops it, it stays until that is closed. */
static void next_turns(struct ucm_saving *saving)
{
	while (!saving->busy && saving->turns) {
		struct ucm_turn *turn = saving->turns;

		saving->turns = turn->next;
		begin(saving->engine, saving, turn);
		free(turn);
	}
}

/* Some layers are there; whoever waits with others is next. */
static void leave_part(struct ucm_saving *saving)
{
	ucm_saving_end_well(saving, false);
	if (saving->abandoned)
		ucm_saving_drop(saving);
	else
		next_turns(saving);
}

static void on_rested(struct ucm_saving *saving)
{
	if (ucm_saving_goes_on(saving, "close"))
		leave_part(saving);
}

void ucm_saving_end_part(struct ucm_saving *saving)
{
	if (saving->rests && !saving->abandoned && !saving->turns &&
	    saving->draft)
		ucm_save_file_call(saving, ucm_save_file_rest, on_rested);
	else
		leave_part(saving);
}

/* ---- its beginning ---- */

static void on_created(struct ucm_saving *saving)
{
	if (saving->result == -EEXIST) {
		ucm_saving_end_well(saving, true);
		ucm_saving_drop(saving);
	} else if (saving->result) {
		ucm_saving_fail(saving, saving->result, "create");
	} else {
		ucm_saving_go_on(saving);
	}
}

static void wait_for_turn(struct ucm_saving *saving,
			  const struct ucm_turn *turn)
{
	struct ucm_turn *own = malloc(sizeof(*own)), **at = &saving->turns;

	if (!own) {
		ucm_turn_settle(saving->engine, turn,
				&(struct ucm_outcome){ .err = -ENOMEM });
		return;
	}
	while (*at)
		at = &(*at)->next;
	*own = *turn;
	own->next = NULL;
	*at = own;
}

static void on_reopened(struct ucm_saving *saving)
{
	if (!ucm_saving_goes_on(saving, "open"))
		return;
	if (saving->task->terms.is_commit)
		ucm_saving_end(saving);
	else
		ucm_saving_go_on(saving);
}

/* The file is there. */
static void resume(struct ucm_saving *saving)
{
	bool is_commit = saving->task->terms.is_commit;

	if (is_commit && saving->missing)
		end_turn(saving, &(struct ucm_outcome){ .err = -EAGAIN });
	else if (saving->fd < 0)
		ucm_save_file_call(saving, ucm_save_file_reopen, on_reopened);
	else if (is_commit)
		ucm_saving_end(saving);
	else
		ucm_saving_go_on(saving);
}

static void take_turn(struct ucm_saving *saving, const struct ucm_turn *turn)
{
	struct ucm_task *task = turn->part->task;

	ucm_task_get(task);
	saving->busy = true;
	saving->engine->savings_busy++;
	saving->tolled = ucm_turn_bytes(task);
	ucm_iobudget_enter(saving->engine->shared->budget, saving->tolled);
	saving->copied = saving->unbilled = turn->kept;
	saving->task = task;
	saving->part = turn->part;
	saving->block = turn->block;
	saving->kept = turn->kept;
	if (saving->kept)
		saving->slot = saving->kept->slot;
	saving->end = task->terms.first_layer;
	saving->end_layer = task->terms.end_layer;
	saving->held |= task->terms.hold;
	saving->abandoned |= turn->abandoned;
}

/* saving: if there is an open one that is free. */
static void begin(struct ucm_engine *engine, struct ucm_saving *saving,
		  const struct ucm_turn *turn)
{
	struct ucm_task *task = turn->part->task;

	if (!saving)
		saving = ucm_saving_find(engine, task, turn->block);
	if (saving && saving->busy) {
		wait_for_turn(saving, turn);
		return;
	}
	if (!saving && task->terms.is_commit) {
		ucm_turn_settle(engine, turn,
				&(struct ucm_outcome){ .err = -ENOENT });
		return;
	}
	if (!saving)
		saving = ucm_saving_new(engine, task,
					&task->blocks[turn->block].id);
	if (!saving) {
		ucm_turn_settle(engine, turn,
				&(struct ucm_outcome){ .err = -ENOMEM });
		return;
	}
	take_turn(saving, turn);
	if (saving->fd < 0 && !saving->draft)
		ucm_save_file_call(saving, ucm_save_file_create, on_created);
	else
		resume(saving);
}

void ucm_saving_begin(struct ucm_engine *engine, const struct ucm_turn *turn)
{
	begin(engine, NULL, turn);
}

/* ---- giving up ---- */

static void give_up_turns(struct ucm_saving *saving, struct ucm_part *part,
			  const struct ucm_outcome *outcome)
{
	struct ucm_turn **at = &saving->turns;

	while (*at) {
		struct ucm_turn *turn = *at;

		if (turn->part != part) {
			at = &turn->next;
			continue;
		}
		*at = turn->next;
		ucm_turn_settle(saving->engine, turn, outcome);
		free(turn);
	}
}

void ucm_saving_give_up(struct ucm_saving *saving, struct ucm_part *part,
			const struct ucm_outcome *outcome)
{
	give_up_turns(saving, part, outcome);
	if (saving->part != part)
		return;
	ucm_task_decide(part->task, saving->block, outcome);
	/* pages that are being copied, or written from, are waited for */
	if (saving->lent ||
	    (saving->slot.memory && saving->slot.state == UCM_SLOT_COPY))
		return;
	saving->part = NULL;
	if (saving->kept) /* nobody finds what has not been saved */
		ucm_buffered_hide(saving->kept);
	settle(saving->engine, part, saving->block, outcome, saving->copied,
	       saving->unbilled);
	leave_budget(saving); /* a call that hangs shall not keep others waiting */
	ucm_gate_give_up(saving->engine);
}

/* One that is busy is removed when its turn ends without making it whole, and
 * so is what those that wait for it make. */
static void abandon(struct ucm_saving *saving)
{
	if (!saving->busy) {
		ucm_saving_drop(saving);
		return;
	}
	saving->abandoned = true;
	for (struct ucm_turn *turn = saving->turns; turn; turn = turn->next)
		turn->abandoned = true;
}

/* A few by their ids; they may be many thousands. */
void ucm_saving_abandon(struct ucm_engine *engine,
			const struct ucm_abandon *given)
{
	struct ucm_saving *saving, *next;

	for (size_t i = 0; i < given->num; i++) {
		saving = ucm_savings_find(&engine->savings, given->group,
					  &given->ids[i]);
		if (saving)
			abandon(saving);
	}
	if (given->num)
		return;
	HASH_ITER(hh, engine->savings.all, saving, next) {
		if (ucm_abandon_means(given, saving->group, &saving->id))
			abandon(saving);
	}
}
