/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.c - pieces: from the start of a part to its reads, and what is given up.
 *
 * A block of a memory tier is copied at once, if its pages are the host's: read
 * by plain calls the first time, mapped when it is asked for again.
 *
 * Where the file has the size that our own writers give it, the payload is read
 * without knowing the header, which comes with the first layers or beside
 * them; it must be there and right before anything is copied.
 */
#include <config.h>

#include "gpu/load/piece/piece.h"

#include <errno.h>

#include "common/clock.h"

/* So many pieces whose bytes are there wait to be copied, before more are taken
 * out of the write buffer. */
#define READY_MOST 16

/* ---- start ---- */

/* What the cursor points to, in the order that was asked for. */
static void at_cursor(const struct ucm_part *part, uint32_t *block,
		      uint32_t *cut)
{
	const struct ucm_task *task = part->task;

	if (task->terms.order == UCM_LOAD_LAYERS) {
		*cut = (uint32_t)(part->cursor / part->num_blocks);
		*block = part->blocks[part->cursor % part->num_blocks];
	} else {
		*cut = (uint32_t)(part->cursor % task->num_cuts);
		*block = part->blocks[part->cursor / task->num_cuts];
	}
}

/* A piece of a block that has been decided. */
static void skip_piece(struct ucm_engine *engine, struct ucm_part *part,
		       uint32_t block, uint32_t cut)
{
	part->cursor++;
	ucm_piece_settle(engine, part, block, cut, false);
}

static void fail_to_start(struct ucm_engine *engine, struct ucm_part *part,
			  uint32_t block, uint32_t cut, int err)
{
	ucm_task_decide(part->task, block, &(struct ucm_outcome){ .err = err });
	skip_piece(engine, part, block, cut);
}

/* A piece of a block that is in the write buffer: nothing is read. */
static void start_kept(struct ucm_engine *engine, struct ucm_part *part,
		       uint32_t block, uint32_t cut)
{
	struct ucm_piece *piece = ucm_piece_new(engine, part, block, cut);

	if (!piece) {
		fail_to_start(engine, part, block, cut, -ENOMEM);
		return;
	}
	piece->kept = part->task->kept[block];
	piece->state = UCM_PIECE_READ;
	part->cursor++;
	ucm_piece_push(&engine->ready, piece);
}

bool ucm_load_start(struct ucm_engine *engine, struct ucm_part *part)
{
	struct ucm_task *task = part->task;
	struct ucm_piece *piece;
	uint32_t cut, block;

	at_cursor(part, &block, &cut);
	if (ucm_task_block_decided(task, block)) {
		skip_piece(engine, part, block, cut);
		return true;
	}
	if (task->kept && task->kept[block]) {
		if (engine->ready.num >= READY_MOST) {
			engine->eager = true;
			return false;
		}
		start_kept(engine, part, block, cut);
		return true;
	}
	if (!ucm_lanes_have_room(engine, task->terms.priority))
		return false;
	piece = ucm_piece_new(engine, part, block, cut);
	if (!piece) {
		fail_to_start(engine, part, block, cut, -ENOMEM);
		return true;
	}
	part->cursor++;
	piece->file = ucm_load_file_get(engine, task->group,
					&task->blocks[block].id);
	if (!piece->file)
		ucm_piece_fail(piece, -ENOMEM, 0);
	else
		ucm_load_go(piece);
	return true;
}

/* ---- read ---- */

/* Have the head read, unless it is coming. */
static void call_for_head(struct ucm_load_file *file)
{
	if (file->head_state != UCM_HEAD_COMING)
		ucm_load_file_read_head(file);
	if (file->state == UCM_LOAD_FILE_FAILED) /* no memory */
		ucm_load_file_tell(file);
}

void ucm_load_await_head(struct ucm_piece *piece)
{
	ucm_piece_await_file(piece);
	call_for_head(piece->file);
}

static void on_read(struct ucm_engine *engine, struct ucm_engine_op *op)
{
	struct ucm_piece *piece = (struct ucm_piece *)op;
	struct ucm_load_file *file = piece->file;

	if (!piece->direct)
		ucm_slot_move(&piece->slot, UCM_SLOT_IO, UCM_SLOT_HELD);
	ucm_gate_leave(piece);
	ucm_profile_end((struct ucm_profile_event){
		UCM_PROFILE_IO, 0, "read", op->begin_ns, op->io.result,
		.id = piece->task->blocks[piece->block].id });
	if (op->io.result > 0 && ucm_load_file_may_hang(file))
		atomic_store(&file->dir->answered, true);
	ucm_add(&engine->shared->stats.short_reads, op->io.resubmits);
	if (piece->state == UCM_PIECE_READING)
		piece->state = UCM_PIECE_READ;
	if (piece->with_head) {
		file->head_state = UCM_HEAD_UNKNOWN;
		if (op->io.result > 0 && file->state == UCM_LOAD_FILE_OPEN)
			ucm_load_file_take_head(file, piece->slot.memory,
					   (size_t)op->io.result);
	}
	ucm_piece_push(&engine->ready, piece);
	if (piece->with_head)
		ucm_load_file_tell(file);
}

static void queue_read(struct ucm_piece *piece)
{
	struct ucm_load_file *file = piece->file;

	if (!piece->direct)
		ucm_slot_move(&piece->slot, UCM_SLOT_HELD, UCM_SLOT_IO);
	piece->op.io = (struct ucm_io){
		.buffer = piece->direct ? piece->direct : piece->slot.memory,
		.len = piece->plan.len,
		.offset = (off_t)piece->plan.offset,
		.enough = piece->plan.want,
	};
	ucm_load_file_read(file, &piece->op.io);
	piece->op.done = on_read;
	piece->op.lane = file->lane;
	piece->state = UCM_PIECE_READING;
	ucm_add(&piece->engine->shared->stats.reads, 1);
	ucm_engine_queue(piece->engine, &piece->op);
}

static void plan_read(struct ucm_piece *piece)
{
	const struct ucm_task *task = piece->task;
	const struct ucm_load_file *file = piece->file;

	ucm_plan_read(task->group->layer_bytes,
		      ucm_load_file_data_offset(file),
		      task->cuts[piece->cut], task->cuts[piece->cut + 1],
		      piece->with_head, file->align, &piece->plan);
}

/* A deadline is kept because late I/O ends in staging; or in a page, if that may
 * be lent for so long. */
static bool keeps_deadline(const struct ucm_piece *piece)
{
	if (!piece->task->terms.deadline_ns)
		return true;
	switch (piece->task->terms.lend) {
	case UCM_LEND_ALWAYS: return true;
	case UCM_LEND_LOCAL: return piece->file->dir->quick;
	case UCM_LEND_NEVER: break;
	}
	return false;
}

/*
 * The place in the page, if all that is read belongs there and the kernel can
 * put it there. Not into memory that is not pinned: finding its pages for each
 * read takes as long as a copy.
 */
static uint8_t *direct_place(const struct ucm_piece *piece)
{
	const struct ucm_task *task = piece->task;
	const struct ucm_layout *layout = task->group->layout;
	const struct ucm_plan *plan = &piece->plan;
	uint8_t *at;

	if (!layout->direct || task->terms.addresses || !keeps_deadline(piece) ||
	    !piece->file->direct || plan->skip || plan->len != plan->want)
		return NULL;
	at = ucm_task_page(task, piece->block, task->cuts[piece->cut]);
	if ((uintptr_t)at & (piece->file->align - 1) ||
	    !ucm_ring_is_pinned(piece->engine->ring, at, plan->len))
		return NULL;
	return at;
}

static void plan_piece(struct ucm_piece *piece, bool want_head)
{
	const struct ucm_task *task = piece->task;

	piece->with_head = false;
	plan_read(piece);
	piece->direct = direct_place(piece);
	if (piece->direct)
		return;
	piece->with_head = want_head &&
			   piece->file->head_state != UCM_HEAD_COMING &&
			   task->cuts[piece->cut] == 0;
	plan_read(piece);
}

/* The file is open: read. */
static void go_read(struct ucm_piece *piece)
{
	struct ucm_load_file *file = piece->file;
	bool is_new = file->head_state != UCM_HEAD_KNOWN;
	bool want_head = is_new && ucm_piece_needs_head(piece);
	int err;

	if (is_new && file->size != piece->task->group->file_size) {
		ucm_load_await_head(piece);
		return;
	}
	plan_piece(piece, want_head);
	err = ucm_gate_ask(piece);
	if (err == -EAGAIN) {
		piece->with_head = false;
		piece->direct = NULL;
		return;
	}
	if (err) {
		ucm_piece_fail(piece, err, 0);
		return;
	}
	if (piece->with_head)
		file->head_state = UCM_HEAD_COMING;
	else if (want_head)
		call_for_head(file);
	queue_read(piece);
}

/* ---- on and on ---- */

void ucm_load_go(struct ucm_piece *piece)
{
	struct ucm_engine *engine = piece->engine;
	struct ucm_load_file *file = piece->file;

	if (!piece->part) {
		ucm_piece_end(piece);
		return;
	}
	if (piece->kept) {
		ucm_piece_push(&engine->ready, piece);
		return;
	}
	switch (file->state) {
	case UCM_LOAD_FILE_ASKED:
	case UCM_LOAD_FILE_OPENING:
		ucm_piece_await_file(piece);
		break;
	case UCM_LOAD_FILE_FAILED:
		ucm_piece_fail(piece, file->err, file->fault);
		break;
	case UCM_LOAD_FILE_OPEN:
		if (piece->state != UCM_PIECE_STARTED)
			ucm_piece_push(&engine->ready, piece);
		else if (!file->dir->memory || !engine->pages_are_host)
			go_read(piece);
		else if (!ucm_gate_ask_memory(piece))
			ucm_piece_push(&engine->ready, piece);
		break;
	}
}

void ucm_load_go_on(struct ucm_engine *engine)
{
	struct ucm_piece *piece;

	while ((piece = ucm_piece_pop(&engine->told)))
		ucm_load_go(piece);
}

/* In their order: the first that is left with nothing stops the rest. */
static void feed(struct ucm_piece_list *waiting,
		 void (*go)(struct ucm_piece *piece))
{
	struct ucm_piece_list before;

	ucm_piece_list_init(&before);
	ucm_piece_take_all(&before, waiting);
	while (before.first && !waiting->first)
		go(ucm_piece_pop(&before));
	ucm_piece_take_all(waiting, &before);
}

/* Files that are asked for, and left without a piece that waits for them, end. */
static void end_given_up_files(struct ucm_engine *engine)
{
	struct ucm_load_file *file = TAILQ_FIRST(&engine->files.asked), *next;

	for (; file; file = next) {
		file->refs++; /* it may not go while its list is looked at */
		ucm_load_end_given_up(&file->waiters);
		next = TAILQ_NEXT(file, in_asked);
		ucm_load_file_put(file);
	}
}

/* The lower rank first, in case it is due; else it goes on waiting. */
static void feed_lane(struct ucm_lane *lane)
{
	for (unsigned rank = UCM_RANKS; rank--;)
		feed(&lane->waiting[rank], ucm_load_go);
	feed(&lane->waiting[1], ucm_load_go); /* what is left is for it */
}

void ucm_load_feed(struct ucm_engine *engine)
{
	bool gave_up = engine->gate.gave_up, low_waits = false;

	engine->gate.gave_up = false;
	ucm_load_go_on(engine);
	if (gave_up) {
		ucm_load_end_given_up(&engine->gate.kept);
		end_given_up_files(engine);
	}
	/* they wait for staging memory alone, and have it before the others */
	feed(&engine->gate.kept, ucm_load_finish);
	for (struct ucm_lane *lane = engine->lanes; lane; lane = lane->next) {
		for (unsigned rank = 0; gave_up && rank < UCM_RANKS; rank++)
			ucm_load_end_given_up(&lane->waiting[rank]);
		feed_lane(lane);
		low_waits |= lane->waiting[1].first != NULL;
	}
	ucm_share_wait(&engine->gate.low, low_waits, ucm_monotonic_ns());
}

/* ---- giving up ---- */

void ucm_load_give_up(struct ucm_engine *engine, struct ucm_part *part, int err)
{
	const struct ucm_outcome outcome = { .err = err };
	struct ucm_task *task = part->task;
	struct ucm_piece *piece = LIST_FIRST(&part->pieces), *next;

	for (; piece; piece = next) {
		next = LIST_NEXT(piece, in_part);
		/* a copy that has begun is waited for */
		ucm_task_decide(task, piece->block, &outcome);
		if (piece->state >= UCM_PIECE_COPYING)
			continue;
		/* I/O that hangs shall not keep others from starting */
		ucm_gate_leave(piece);
		/* but the owner of the page must know when it is left alone */
		if (piece->direct && piece->state == UCM_PIECE_READING) {
			if (!task->terms.lend)
				continue;
			piece->state = UCM_PIECE_LENT;
			ucm_task_lend(task, piece->block);
		}
		ucm_piece_leave_part(piece);
		ucm_gate_give_up(engine);
	}
	while (part->cursor < (uint64_t)part->num_blocks * task->num_cuts) {
		uint32_t block, cut;

		at_cursor(part, &block, &cut);
		fail_to_start(engine, part, block, cut, err);
	}
}
