/* SPDX-License-Identifier: Apache-2.0 */
/*
 * piece.c - how a piece begins and ends; see piece.h for what is in between.
 *
 * It holds a reference of its task and of its file, staging memory, and a place in
 * its lane's window. Whatever becomes of it, ucm_piece_end() gives all back.
 */
#include <config.h>

#include "gpu/load/piece/piece.h"

#include <errno.h>
#include <stdlib.h>

#include "common/log.h"
#include "gpu/load/task/buffer.h"

struct ucm_piece *ucm_piece_new(struct ucm_engine *engine, struct ucm_part *part,
				uint32_t block, uint32_t cut)
{
	struct ucm_piece *piece = engine->spare;

	if (piece)
		engine->spare = piece->next;
	else
		piece = malloc(sizeof(*piece));
	if (!piece)
		return NULL;
	*piece = (struct ucm_piece){
		.engine = engine,
		.task = part->task,
		.part = part,
		.block = block,
		.cut = cut,
	};
	LIST_INSERT_HEAD(&part->pieces, piece, in_part);
	ucm_task_get(part->task);
	return piece;
}

void ucm_piece_end(struct ucm_piece *piece)
{
	struct ucm_engine *engine = piece->engine;

	ucm_gate_leave(piece);
	ucm_gate_give_slot(piece);
	if (piece->file)
		ucm_load_file_put(piece->file);
	if (piece->state == UCM_PIECE_LENT)
		ucm_task_return(piece->task, piece->block);
	ucm_task_put(piece->task);
	piece->next = engine->spare;
	engine->spare = piece;
}

/* ---- settling ---- */

static void count_block(struct ucm_engine *engine,
			const struct ucm_task *task, uint32_t block)
{
	struct ucm_load_counters *stats = &engine->shared->stats;
	int err = task->outcomes[block].err;

	ucm_add(!err		  ? &stats->loads
		: err == -ENOENT  ? &stats->load_absent
		: err == -EBADMSG ? &stats->load_damaged
				  : &stats->load_failed,
		1);
}

void ucm_piece_settle(struct ucm_engine *engine, struct ucm_part *part,
		      uint32_t block, uint32_t cut, bool queued)
{
	struct ucm_task *task = part->task;

	atomic_fetch_sub_explicit(&engine->load_bytes, ucm_cut_bytes(task, cut),
				  memory_order_relaxed);

	/* counted before the caller can see that the task is done */
	if (task->blocks[block].unsettled == 1) {
		ucm_task_decide(task, block, &(struct ucm_outcome){ 0 });
		count_block(engine, task, block);
	}
	if (task->kept && task->blocks[block].unsettled == 1) {
		ucm_buffered_put(task->kept[block]);
		task->kept[block] = NULL;
	}
	if (!queued && task->threads.join) /* else nobody asks */
		ucm_task_queued(task, cut);
	ucm_task_settle(task, block, cut);
}

void ucm_piece_leave_part(struct ucm_piece *piece)
{
	struct ucm_part *part = piece->part;

	LIST_REMOVE(piece, in_part);
	piece->part = NULL;
	ucm_piece_settle(piece->engine, part, piece->block, piece->cut,
			 piece->state == UCM_PIECE_QUEUED);
}

static void tell(const struct ucm_piece *piece,
		 const struct ucm_outcome *outcome)
{
	char hex[UCM_ID_HEX + 1], text[96];

	if (outcome->err == -ENOENT)
		return; /* a miss, no failure */
	ucm_id_format(&piece->task->blocks[piece->block].id, hex);
	ucm_outcome_text(outcome, text, sizeof(text));
	ucm_warning("block %s: not loaded: %s", hex, text);
}

void ucm_piece_fail_plane(struct ucm_piece *piece, int err, unsigned fault,
			  uint32_t plane)
{
	struct ucm_outcome outcome = {
		.err = err,
		.fault = (uint16_t)fault,
		.plane = plane,
	};

	if (piece->file && err != -EFBIG && err != -ENOMEM)
		ucm_load_file_forget(piece->file);
	if (!ucm_task_block_decided(piece->task, piece->block))
		tell(piece, &outcome);
	if (fault == UCM_FAULT_PLANE || fault == UCM_FAULT_PAYLOAD)
		ucm_verified_deny(piece->file);
	ucm_task_decide(piece->task, piece->block, &outcome);
	ucm_piece_leave_part(piece);
	ucm_piece_end(piece);
}

void ucm_piece_fail(struct ucm_piece *piece, int err, unsigned fault)
{
	ucm_piece_fail_plane(piece, err, fault, 0);
}

void ucm_load_end_given_up(struct ucm_piece_list *waiting)
{
	struct ucm_piece_list before;
	struct ucm_piece *piece;

	ucm_piece_list_init(&before);
	ucm_piece_take_all(&before, waiting);
	while ((piece = ucm_piece_pop(&before))) {
		if (piece->part)
			ucm_piece_push(waiting, piece);
		else
			ucm_piece_end(piece);
	}
}
