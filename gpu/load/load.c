/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.c - pieces: a range of layers of one block, from its file to its page.
 *
 *	start -> go: the file is opened, or its head read -> room: window, slot
 *	-> read -> finish: verified, copied -> settled
 *
 * A piece waits at most in one list: for its file (opening, or the head), for
 * room (waiting, of the lane of its directory: lane.h), in the ring, among the
 * ready, or in the copy back end. It counts in the lane's window from the read
 * on: what waits for an answer to an open is in no device's way. Any of them may
 * find it given up (its part is NULL: cancelled or past its deadline, and
 * settled already); then it only gives back what it holds. So late I/O ends in
 * staging, and nothing is copied for a task that is done. Where a page is read
 * into its task is not done before that has ended, unless the caller said that
 * such pages may stay lent (task.h).
 *
 * A block of a memory tier is copied at once, if its pages are the host's: read
 * by plain calls the first time, mapped when it is asked for again.
 *
 * Where the file has the size that our own writers give it, the payload is read
 * without knowing the header, which comes with the first layers or beside
 * them; it must be there and right before anything is copied.
 */
#include <config.h>

#include "gpu/load/buffer.h"
#include "gpu/load/engine.h"
#include "gpu/load/toll.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/align.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/osfile.h"

/* In the order of layers no more is read at a time by a thread (unless the
 * caller says how much): a device may take reads of later layers first. */
#define LAYERS_WINDOW ((uint64_t)8 << 20)

/* So many pieces whose bytes are there wait to be copied, before more are taken
 * out of the write buffer. */
#define READY_MOST 16

/* What is read of a memory file at a time, unless a layer is longer. */
#define BOUNCE ((uint64_t)256 << 10)

/* ---- the life of a piece ---- */

static struct ucm_piece *new_piece(struct ucm_engine *engine,
				   struct ucm_part *part, uint32_t block,
				   uint32_t cut)
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

static uint64_t cut_bytes(const struct ucm_task *task, uint32_t cut)
{
	return (task->cuts[cut + 1] - task->cuts[cut]) *
	       task->group->layer_bytes;
}

static uint64_t piece_bytes(const struct ucm_piece *piece)
{
	return cut_bytes(piece->task, piece->cut);
}

static unsigned rank_of(const struct ucm_piece *piece)
{
	return piece->task->priority;
}

static void leave_window(struct ucm_piece *piece)
{
	struct ucm_engine *engine = piece->engine;

	ucm_toll_leave(piece);
	if (!piece->counted)
		return;
	ucm_window_give(&piece->file->lane->window, piece->counted,
			ucm_monotonic_ns());
	ucm_lanes_count_windows(engine);
	piece->counted = 0;
	ucm_engine_feed(engine);
}

static uint64_t slot_bytes(uint64_t len)
{
	return ucm_round_up(len, UCM_STAGING_UNIT);
}

static void give_slot(struct ucm_piece *piece)
{
	if (!piece->slot.memory)
		return;
	if (piece->file) /* not of one that is kept in memory */
		piece->file->lane->staged -= slot_bytes(piece->slot.len);
	ucm_staging_put(piece->engine->staging, &piece->slot);
	ucm_engine_feed(piece->engine);
}

/* Give back all that it holds. */
static void end_piece(struct ucm_piece *piece)
{
	struct ucm_engine *engine = piece->engine;

	leave_window(piece);
	give_slot(piece);
	if (piece->file)
		ucm_load_file_put(piece->file);
	if (piece->lent)
		ucm_task_return(piece->task, piece->block);
	ucm_task_put(piece->task);
	piece->next = engine->spare;
	engine->spare = piece;
}

static void count_block(struct ucm_engine *engine,
			const struct ucm_task *task, uint32_t block)
{
	struct ucm_shared *shared = engine->shared;
	int err = task->outcomes[block].err;

	if (!err) {
		ucm_add(&shared->stats.loads, 1);
	} else if (err == -ENOENT) {
		ucm_add(&shared->stats.load_absent, 1);
	} else if (err == -EBADMSG) {
		ucm_add(&shared->stats.load_damaged, 1);
	} else {
		ucm_add(&shared->stats.load_failed, 1);
	}
}

/* queued: it has been counted as such. */
static void settle(struct ucm_engine *engine, struct ucm_part *part,
		   uint32_t block, uint32_t cut, bool queued)
{
	struct ucm_task *task = part->task;

	atomic_fetch_sub_explicit(&engine->load_bytes, cut_bytes(task, cut),
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
	if (!queued && task->join) /* else nobody asks */
		ucm_task_queued(task, cut);
	ucm_task_settle(task, block, cut);
}

static void leave_part(struct ucm_piece *piece)
{
	struct ucm_part *part = piece->part;

	LIST_REMOVE(piece, in_part);
	piece->part = NULL;
	settle(piece->engine, part, piece->block, piece->cut, piece->queued);
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

/* The block fails, for that cause; its other pieces will notice. */
static void fail_plane(struct ucm_piece *piece, int err, unsigned fault,
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
	leave_part(piece);
	end_piece(piece);
}

static void fail(struct ucm_piece *piece, int err, unsigned fault)
{
	fail_plane(piece, err, fault, 0);
}

/* ---- start ---- */

/* What the cursor points to, in the order that was asked for. */
static void at_cursor(const struct ucm_part *part, uint32_t *block,
		      uint32_t *cut)
{
	const struct ucm_task *task = part->task;

	if (task->order == UCM_LOAD_LAYERS) {
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
	settle(engine, part, block, cut, false);
}

static void fail_to_start(struct ucm_engine *engine, struct ucm_part *part,
			  uint32_t block, uint32_t cut)
{
	ucm_task_decide(part->task, block,
			&(struct ucm_outcome){ .err = -ENOMEM });
	skip_piece(engine, part, block, cut);
}

/* A piece of a block that is in the write buffer: nothing is read. */
static void start_kept(struct ucm_engine *engine, struct ucm_part *part,
		       uint32_t block, uint32_t cut)
{
	struct ucm_piece *piece = new_piece(engine, part, block, cut);

	if (!piece) {
		fail_to_start(engine, part, block, cut);
		return;
	}
	piece->kept = part->task->kept[block];
	piece->arrived = true;
	part->cursor++;
	ucm_piece_push(&engine->ready, piece);
}

static bool is_kept(const struct ucm_task *task, uint32_t block)
{
	return task->kept && task->kept[block];
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
	if (is_kept(task, block)) {
		if (engine->ready.num >= READY_MOST) {
			engine->eager = true;
			return false;
		}
		start_kept(engine, part, block, cut);
		return true;
	}
	if (!ucm_lanes_have_room(engine, task->priority))
		return false;
	piece = new_piece(engine, part, block, cut);
	if (!piece) {
		fail_to_start(engine, part, block, cut);
		return true;
	}
	part->cursor++;
	piece->file = ucm_load_file_get(engine, task->group,
					&task->blocks[block].id);
	if (!piece->file)
		fail(piece, -ENOMEM, 0);
	else
		ucm_load_go(piece);
	return true;
}

static void wait_for_file(struct ucm_piece *piece)
{
	ucm_piece_push(&piece->file->waiters, piece);
}

/* The header has to be seen: for what it says, or because the file is not as
 * our writers make it. */
static bool needs_head(const struct ucm_piece *piece)
{
	return piece->task->verify != UCM_VERIFY_NONE ||
	       piece->file->size != piece->task->group->file_size;
}

/* Have the head read, unless it is coming. */
static void call_for_head(struct ucm_load_file *file)
{
	if (!file->head_coming)
		ucm_load_file_read_head(file);
	if (file->state == UCM_LOAD_FILE_FAILED) /* no memory */
		ucm_load_file_tell(file);
}

static void on_read(struct ucm_engine *engine, struct ucm_engine_op *op)
{
	struct ucm_piece *piece = (struct ucm_piece *)op;
	struct ucm_load_file *file = piece->file;

	if (!piece->direct)
		ucm_slot_move(&piece->slot, UCM_SLOT_IO, UCM_SLOT_HELD);
	leave_window(piece);
	if (op->io.result > 0 && ucm_load_file_may_hang(file))
		atomic_store(&file->dir->answered, true);
	ucm_add(&engine->shared->stats.short_reads, op->io.resubmits);
	piece->arrived = true;
	if (piece->with_head) {
		file->head_coming = false;
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
	if (!piece->direct && file->by_call)
		ucm_slot_let_write(&piece->slot);
	piece->op.io = (struct ucm_io){
		.buffer = piece->direct ? piece->direct : piece->slot.memory,
		.len = piece->plan.len,
		.offset = (off_t)piece->plan.offset,
		.enough = piece->plan.want,
	};
	ucm_load_file_read(file, &piece->op.io);
	piece->op.done = on_read;
	piece->op.lane = file->lane;
	ucm_add(&piece->engine->shared->stats.reads, 1);
	ucm_engine_queue(piece->engine, &piece->op);
}

static void plan_read(struct ucm_piece *piece)
{
	const struct ucm_task *task = piece->task;
	const struct ucm_load_file *file = piece->file;

	ucm_plan_read(task->group->layer_bytes,
		      file->head_known ? file->head.block.data_offset
				       : task->group->data_offset,
		      task->cuts[piece->cut], task->cuts[piece->cut + 1],
		      piece->with_head, file->align, &piece->plan);
}

/* A deadline is kept because late I/O ends in staging; or in a page, if that may
 * be lent for so long. */
static bool keeps_deadline(const struct ucm_piece *piece)
{
	if (!piece->task->deadline_ns)
		return true;
	switch (piece->task->lend) {
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
	const struct ucm_region *region;
	uint64_t at;

	if (!layout->direct || task->addresses || !keeps_deadline(piece) ||
	    !piece->file->direct || plan->skip || plan->len != plan->want)
		return NULL;
	region = &layout->regions[layout->layer_first[task->cuts[piece->cut]]];
	at = region->base + task->blocks[piece->block].page *
				    (uint64_t)region->page_stride;
	if (at & (piece->file->align - 1) ||
	    !ucm_ring_is_pinned(piece->engine->ring, (void *)(uintptr_t)at,
				plan->len))
		return NULL;
	return (uint8_t *)(uintptr_t)at;
}

/* ---- room ---- */

/* For a byte that is loaded beforehand so many that somebody waits for; and for
 * a byte that is saved. Or a piece after so long. */
#define LOW_PART 15
#define LOW_AGE_NS (INT64_C(500) * 1000000)
#define SAVE_PART 7

static bool is_low_due(const struct ucm_piece *piece)
{
	return ucm_share_is_due(&piece->engine->low_share, piece_bytes(piece),
				LOW_AGE_NS, ucm_monotonic_ns());
}

static void count_begun(struct ucm_piece *piece)
{
	struct ucm_engine *engine = piece->engine;

	ucm_share_owe(&engine->save_share, piece->counted, SAVE_PART);
	if (rank_of(piece))
		ucm_share_take(&engine->low_share, piece->counted,
			       ucm_monotonic_ns());
	else
		ucm_share_owe(&engine->low_share, piece->counted, LOW_PART);
}

static void wait_for_room(struct ucm_piece *piece)
{
	if (rank_of(piece))
		ucm_share_wait(&piece->engine->low_share, true,
			       ucm_monotonic_ns());
	ucm_piece_push(&piece->file->lane->waiting[rank_of(piece)], piece);
}

/* Does nobody wait who comes first? */
static bool has_turn(const struct ucm_piece *piece)
{
	const struct ucm_lane *lane = piece->file->lane;
	unsigned rank = rank_of(piece);

	if (lane->waiting[rank].first)
		return false;
	return !rank || !lane->waiting[0].first || is_low_due(piece);
}

/* May so much more be read in that lane? A window that was given is for all
 * lanes together. */
static bool fits_window(const struct ucm_piece *piece)
{
	const struct ucm_engine *engine = piece->engine;
	struct ucm_lane *lane = piece->file->lane;
	uint64_t given = engine->shared->window_bytes, others;
	uint64_t bytes = piece_bytes(piece);

	if (!ucm_window_has_room(&lane->window, bytes))
		return false;
	bytes += lane->window.in_flight;
	if (given) {
		others = ucm_lanes_in_flight(engine, lane);
		return !others || others + bytes <= given;
	}
	return piece->task->order != UCM_LOAD_LAYERS ||
	       !lane->window.in_flight || bytes <= LAYERS_WINDOW;
}

static void enter_window(struct ucm_piece *piece)
{
	piece->counted = piece_bytes(piece);
	ucm_window_take(&piece->file->lane->window, piece->counted,
			ucm_monotonic_ns());
	count_begun(piece);
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
	if (engine->kept_waiting.first ||
	    !ucm_lane_may_stage(engine, lane, slot_bytes(piece->plan.len)))
		return -EAGAIN;
	err = ucm_staging_get(engine->staging, piece->plan.len, &piece->slot);
	if (!err)
		lane->staged += slot_bytes(piece->slot.len);
	return err;
}

static enum ucm_iobudget_class class_of(const struct ucm_piece *piece)
{
	return rank_of(piece) ? UCM_IOBUDGET_LOW : UCM_IOBUDGET_DEMAND;
}

/* All that its read needs. -EAGAIN: it has to wait. */
static int get_room(struct ucm_piece *piece)
{
	struct ucm_engine *engine = piece->engine;
	uint64_t bytes = piece_bytes(piece);
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

/* ---- read ---- */

static void plan_piece(struct ucm_piece *piece, bool want_head)
{
	const struct ucm_task *task = piece->task;

	piece->with_head = false;
	plan_read(piece);
	piece->direct = direct_place(piece);
	if (piece->direct)
		return;
	piece->with_head = want_head && !piece->file->head_coming &&
			   task->cuts[piece->cut] == 0;
	plan_read(piece);
}

/* The file is open: read. */
static void go_read(struct ucm_piece *piece)
{
	struct ucm_load_file *file = piece->file;
	bool want_head = !file->head_known && needs_head(piece);
	int err;

	if (!file->head_known && file->size != piece->task->group->file_size) {
		wait_for_file(piece);
		call_for_head(file);
		return;
	}
	plan_piece(piece, want_head);
	err = get_room(piece);
	if (err == -EAGAIN) {
		piece->with_head = false;
		piece->direct = NULL;
		wait_for_room(piece);
		return;
	}
	if (err) {
		fail(piece, err, 0);
		return;
	}
	if (piece->with_head)
		file->head_coming = true;
	else if (want_head)
		call_for_head(file);
	queue_read(piece);
}

/* A file in memory that is copied without a read; see below. */
static void go_copy(struct ucm_piece *piece)
{
	if (!piece->counted) {
		if (!has_turn(piece) || !fits_window(piece)) {
			wait_for_room(piece);
			return;
		}
		enter_window(piece);
	}
	ucm_piece_push(&piece->engine->ready, piece);
}

void ucm_load_go(struct ucm_piece *piece)
{
	struct ucm_engine *engine = piece->engine;
	struct ucm_load_file *file = piece->file;

	if (!piece->part) {
		end_piece(piece);
		return;
	}
	if (piece->kept) {
		ucm_piece_push(&engine->ready, piece);
		return;
	}
	switch (file->state) {
	case UCM_LOAD_FILE_OPENING:
		wait_for_file(piece);
		break;
	case UCM_LOAD_FILE_FAILED:
		fail(piece, file->err, file->fault);
		break;
	case UCM_LOAD_FILE_OPEN:
		if (piece->arrived)
			ucm_piece_push(&engine->ready, piece);
		else if (file->dir->memory && engine->pages_are_host)
			go_copy(piece);
		else
			go_read(piece);
		break;
	}
}

/* In their order: the first that is left with nothing stops the rest. */
static void feed_rank(struct ucm_lane *lane, unsigned rank)
{
	struct ucm_piece_list *waiting = &lane->waiting[rank], before;

	ucm_piece_list_init(&before);
	ucm_piece_take_all(&before, waiting);
	while (before.first && !waiting->first)
		ucm_load_go(ucm_piece_pop(&before));
	ucm_piece_take_all(waiting, &before);
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
			end_piece(piece);
	}
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
		feed_rank(lane, rank);
	feed_rank(lane, 1); /* what is left is for it */
}

void ucm_load_feed(struct ucm_engine *engine)
{
	bool gave_up = engine->gave_up, low_waits = false;

	engine->gave_up = false;
	if (gave_up)
		end_given_up_files(engine);
	for (struct ucm_lane *lane = engine->lanes; lane; lane = lane->next) {
		for (unsigned rank = 0; gave_up && rank < UCM_RANKS; rank++)
			ucm_load_end_given_up(&lane->waiting[rank]);
		feed_lane(lane);
		low_waits |= lane->waiting[1].first != NULL;
	}
	ucm_share_wait(&engine->low_share, low_waits, ucm_monotonic_ns());
}

/* ---- finish ---- */

static bool needs_sums(const struct ucm_piece *piece)
{
	enum ucm_verify verify = piece->task->verify;

	return verify == UCM_VERIFY_FULL ||
	       (verify == UCM_VERIFY_ONCE && !ucm_verified_is(piece->file));
}

/* What it says of its file that its bytes were right, or not looked at. */
static void tell_verified(const struct ucm_piece *piece, uint64_t bytes)
{
	const uint32_t *cuts = &piece->task->cuts[piece->cut];

	if (piece->task->verify != UCM_VERIFY_ONCE || piece->kept)
		return;
	if (piece->sums)
		ucm_verified_add(piece->file, cuts[0], cuts[1]);
	else
		ucm_add(&piece->engine->shared->stats.unsummed_bytes, bytes);
}

static void succeed(struct ucm_piece *piece)
{
	struct ucm_shared *shared = piece->engine->shared;
	uint64_t bytes = piece_bytes(piece);

	tell_verified(piece, bytes);
	ucm_add(&shared->stats.load_bytes, bytes);
	if (!piece->arrived)
		ucm_add(&shared->stats.mapped_bytes, bytes);
	if (piece->direct)
		ucm_add(&shared->stats.direct_bytes, bytes);
	if (piece->kept)
		ucm_add(&shared->stats.load_buffered_bytes, bytes);
	leave_part(piece);
	end_piece(piece);
}

static const uint64_t *addresses_of(const struct ucm_task *task, uint32_t block,
				    uint32_t layer)
{
	const uint32_t *first = task->group->layout->layer_first;

	if (!task->addresses)
		return NULL;
	return task->addresses + (uint64_t)block * task->num_addresses +
	       (first[layer] - first[task->first_layer]);
}

static struct ucm_copy_job job_of(const struct ucm_piece *piece, uint32_t first,
				  uint32_t end, const uint8_t *bytes)
{
	const struct ucm_task *task = piece->task;

	return (struct ucm_copy_job){
		.group = task->group->number,
		.first_layer = first,
		.end_layer = end,
		.staging = (uint8_t *)(uintptr_t)bytes,
		.page = task->blocks[piece->block].page,
		.addresses = addresses_of(task, piece->block, first),
	};
}

/* What lies between layers that are smaller than the geometry's; false: the
 * piece has failed, whatever the checksums say: the block's layers are larger. */
static bool check_padding(struct ucm_piece *piece, uint32_t first, uint32_t end,
			  const uint8_t *bytes)
{
	uint32_t plane;

	if (ucm_layout_padding_is_zero(piece->task->group->layout, first, end,
				       bytes, &plane))
		return true;
	fail_plane(piece, -EBADMSG, UCM_FAULT_GEOMETRY, plane);
	return false;
}

/* Layer by layer, so that the bytes that were checked are copied while the
 * processor's caches have them. false: the piece has failed. */
static bool copy_layers(struct ucm_piece *piece, uint32_t first, uint32_t end,
			const uint8_t *bytes)
{
	const struct ucm_task *task = piece->task;
	uint32_t plane;

	for (uint32_t layer = first; layer < end; layer++) {
		struct ucm_copy_job job =
			job_of(piece, layer, layer + 1, bytes);

		if (piece->sums &&
		    !ucm_file_header_check(&piece->file->head, layer, layer + 1,
					   bytes, &plane)) {
			fail_plane(piece, -EBADMSG, UCM_FAULT_PLANE, plane);
			return false;
		}
		if (!check_padding(piece, layer, layer + 1, bytes))
			return false;
		if (!piece->direct)
			ucm_host_scatter(task->group->layout, &job);
		bytes += task->group->layer_bytes;
	}
	return true;
}

/* A file in memory is copied from after its mark was looked at. Has that gone
 * since then, as the file was written to or found damaged? */
static bool was_unmarked(const struct ucm_piece *piece)
{
	return !piece->arrived && !piece->sums &&
	       piece->task->verify == UCM_VERIFY_ONCE &&
	       !ucm_verified_is(piece->file);
}

static void finish_memory(struct ucm_piece *piece);

/* All of it is in the page. */
static void end_host_copy(struct ucm_piece *piece)
{
	if (!was_unmarked(piece)) {
		succeed(piece);
		return;
	}
	piece->sums = true;
	finish_memory(piece);
}

static void copy_to_host(struct ucm_piece *piece, const uint8_t *bytes)
{
	const uint32_t *cuts = &piece->task->cuts[piece->cut];

	if (copy_layers(piece, cuts[0], cuts[1], bytes))
		end_host_copy(piece);
}

static void on_copied(struct ucm_copy_job *job)
{
	struct ucm_piece *piece =
		(struct ucm_piece *)((char *)job -
				     offsetof(struct ucm_piece, job));

	ucm_slot_copied(&piece->slot, job->lost);
	if (piece->job.err)
		fail(piece, piece->job.err, 0);
	else
		succeed(piece);
}

static void on_queued(struct ucm_copy_job *job)
{
	struct ucm_piece *piece =
		(struct ucm_piece *)((char *)job -
				     offsetof(struct ucm_piece, job));

	piece->queued = true;
	ucm_task_queued(piece->task, piece->cut);
}

static void start_scatter(struct ucm_piece *piece, uint32_t first, uint32_t end,
			  const uint8_t *bytes)
{
	struct ucm_engine *engine = piece->engine;

	piece->job = job_of(piece, first, end, bytes);
	piece->job.copied = on_copied;
	piece->job.queued = on_queued;
	ucm_slot_move(&piece->slot, UCM_SLOT_HELD, UCM_SLOT_COPY);
	piece->job.next = engine->to_scatter;
	engine->to_scatter = &piece->job;
}

static void copy_to_device(struct ucm_piece *piece, const uint8_t *bytes)
{
	const struct ucm_task *task = piece->task;
	uint32_t first = task->cuts[piece->cut];
	uint32_t end = task->cuts[piece->cut + 1], plane;

	if (piece->sums &&
	    !ucm_file_header_check(&piece->file->head, first, end, bytes,
				   &plane)) {
		fail_plane(piece, -EBADMSG, UCM_FAULT_PLANE, plane);
		return;
	}
	if (check_padding(piece, first, end, bytes))
		start_scatter(piece, first, end, bytes);
}

/* All of a payload that has one checksum: is it right? */
static bool payload_is_right(const struct ucm_piece *piece,
			     const uint8_t *bytes)
{
	return ucm_crc32c(0, bytes, piece->task->group->payload_bytes) ==
	       piece->file->head.block.payload_crc;
}

static bool is_whole(const struct ucm_piece *piece)
{
	const struct ucm_task *task = piece->task;

	return task->cuts[piece->cut] == 0 &&
	       task->cuts[piece->cut + 1] ==
		       task->group->layout->geometry.num_layers;
}

/* Bytes are there, and so is what has to be known of the file. */
static void use_bytes(struct ucm_piece *piece, const uint8_t *bytes)
{
	struct ucm_load_file *file = piece->file;

	if (piece->sums && ucm_load_file_needs_vouch(file)) {
		if (!is_whole(piece)) {
			wait_for_file(piece);
			ucm_load_file_vouch(file);
			return;
		}
		if (!payload_is_right(piece, bytes)) {
			fail(piece, -EBADMSG, UCM_FAULT_PAYLOAD);
			return;
		}
	}
	if (piece->engine->pages_are_host)
		copy_to_host(piece, bytes);
	else
		copy_to_device(piece, bytes);
}

/* ---- files in memory ---- */

/* The kernel copies by rep movsb, which takes five times as long to an address that is no
 * multiple of 64 (AMD EPYC, 6.18: 1.3 in place of 6.5 GB/s from tmpfs). */
static uint8_t *get_bounce(struct ucm_engine *engine, size_t len)
{
	if (engine->bounce_len >= len)
		return engine->bounce;
	free(engine->bounce);
	len = ucm_round_up(len, UCM_BLOCK_PAGE);
	engine->bounce = aligned_alloc(UCM_BLOCK_PAGE, len);
	engine->bounce_len = engine->bounce ? len : 0;
	return engine->bounce;
}

/* Some layers at a time, so few that the caches have them until they are in
 * the page. */
static void copy_by_reading(struct ucm_piece *piece, uint64_t offset)
{
	const uint32_t *cuts = &piece->task->cuts[piece->cut];
	const uint64_t each = piece->task->group->layer_bytes;
	uint32_t most = each < BOUNCE ? (uint32_t)(BOUNCE / each) : 1;
	uint8_t *bytes = get_bounce(piece->engine, most * each);

	if (!bytes) {
		fail(piece, -ENOMEM, 0);
		return;
	}
	for (uint32_t layer = cuts[0], num; layer < cuts[1]; layer += num) {
		ssize_t got;

		num = cuts[1] - layer < most ? cuts[1] - layer : most;
		got = ucm_os_read_at(piece->file->fd, bytes, num * each,
				     (off_t)offset);
		if (got != (ssize_t)(num * each)) {
			fail(piece, got < 0 ? (int)got : -EBADMSG,
			     got < 0 ? UCM_FAULT_NONE : UCM_FAULT_SHORT);
			return;
		}
		if (!copy_layers(piece, layer, layer + num, bytes))
			return;
		offset += num * each;
	}
	piece->file->taken += (cuts[1] - cuts[0]) * each;
	end_host_copy(piece);
}

/* To map a file's pages takes longer than to read it once, but not twice. Where
 * all of it has to be seen before a part is used, there is no other way. */
static bool is_to_be_mapped(const struct ucm_piece *piece)
{
	const struct ucm_load_file *file = piece->file;

	return file->map || file->taken >= piece->task->group->payload_bytes ||
	       (piece->sums && ucm_load_file_needs_vouch(file));
}

static void finish_memory(struct ucm_piece *piece)
{
	const struct ucm_group *group = piece->task->group;
	struct ucm_load_file *file = piece->file;
	uint64_t offset;

	if (!file->head_known && needs_head(piece))
		ucm_load_file_read_head_now(file);
	if (file->state == UCM_LOAD_FILE_FAILED) {
		fail(piece, file->err, file->fault);
		return;
	}
	offset = file->head_known ? file->head.block.data_offset
				  : group->data_offset;
	offset += piece->task->cuts[piece->cut] * group->layer_bytes;
	if (!is_to_be_mapped(piece))
		copy_by_reading(piece, offset);
	else if (ucm_load_file_map(file))
		use_bytes(piece, file->map + offset);
	else
		fail(piece, -EBADMSG, UCM_FAULT_SHORT);
}

/* A server no longer knows the descriptor: it was restarted, or another machine has
 * removed the file. NFS says so by EBADF where reads are direct. */
static bool is_stale(int err)
{
	return err == -ESTALE || err == -EBADF;
}

/* The file was opened before its mount went: if that is back, or only the descriptor
 * is stale, open it once more. */
static bool try_anew(struct ucm_piece *piece, int err)
{
	struct ucm_engine *engine = piece->engine;
	struct ucm_shared *shared = engine->shared;
	const struct ucm_task *task = piece->task;
	struct ucm_load_file *file;

	if ((!ucm_is_lost(err) && !is_stale(err)) || piece->anew)
		return false;
	ucm_load_file_forget(piece->file);
	if (!shared->source_ops->lost(shared->source) && !is_stale(err))
		return false;
	file = ucm_load_file_get(engine, task->group,
				 &task->blocks[piece->block].id);
	if (!file)
		return false;
	give_slot(piece);
	ucm_load_file_put(piece->file);
	piece->file = file;
	piece->direct = NULL;
	piece->anew = true;
	piece->arrived = false;
	ucm_load_go(piece);
	return true;
}

static void finish_read(struct ucm_piece *piece)
{
	ssize_t result = piece->op.io.result;
	struct ucm_load_file *file = piece->file;

	if (result < 0) {
		if (!try_anew(piece, (int)result))
			fail(piece, (int)result, 0);
		return;
	}
	if ((uint64_t)result < piece->plan.want) {
		fail(piece, -EBADMSG, UCM_FAULT_SHORT);
		return;
	}
	if (file->state == UCM_LOAD_FILE_FAILED) {
		fail(piece, file->err, file->fault);
		return;
	}
	if (!file->head_known && needs_head(piece)) {
		wait_for_file(piece);
		call_for_head(file);
		return;
	}
	use_bytes(piece, piece->direct ? piece->direct
				       : piece->slot.memory + piece->plan.skip);
}

/* ---- from the write buffer ---- */

/* To a device by staging memory. */
static void finish_kept(struct ucm_piece *piece)
{
	const struct ucm_task *task = piece->task;
	const uint32_t *cuts = &task->cuts[piece->cut];
	uint64_t each = task->group->layer_bytes;
	uint8_t *bytes = piece->kept->payload + cuts[0] * each;
	struct ucm_engine *engine = piece->engine;
	struct ucm_copy_job job = job_of(piece, cuts[0], cuts[1], bytes);
	int err;

	if (!check_padding(piece, cuts[0], cuts[1], bytes))
		return;
	if (engine->pages_are_host) {
		ucm_host_scatter(task->group->layout, &job);
		succeed(piece);
		return;
	}
	err = ucm_staging_get(engine->staging, (cuts[1] - cuts[0]) * each,
			      &piece->slot);
	if (err == -EAGAIN) {
		ucm_piece_push(&engine->kept_waiting, piece);
		return;
	}
	if (err) {
		fail(piece, err, 0);
		return;
	}
	memcpy(piece->slot.memory, bytes, (cuts[1] - cuts[0]) * each);
	start_scatter(piece, cuts[0], cuts[1], piece->slot.memory);
}

void ucm_load_finish(struct ucm_piece *piece)
{
	if (!piece->part) {
		end_piece(piece);
		return;
	}
	if (ucm_task_block_decided(piece->task, piece->block)) {
		leave_part(piece);
		end_piece(piece);
		return;
	}
	if (piece->kept) {
		finish_kept(piece);
		return;
	}
	piece->sums = needs_sums(piece);
	if (piece->arrived)
		finish_read(piece);
	else
		finish_memory(piece);
}

/* ---- giving up ---- */

static void lend(struct ucm_piece *piece)
{
	piece->lent = true;
	ucm_task_lend(piece->task, piece->block);
}

void ucm_load_give_up(struct ucm_engine *engine, struct ucm_part *part, int err)
{
	const struct ucm_outcome outcome = { .err = err };
	struct ucm_task *task = part->task;
	struct ucm_piece *piece = LIST_FIRST(&part->pieces), *next;

	for (; piece; piece = next) {
		next = LIST_NEXT(piece, in_part);
		/* a copy that has begun is waited for */
		ucm_task_decide(task, piece->block, &outcome);
		if (piece->slot.memory && piece->slot.state == UCM_SLOT_COPY)
			continue;
		/* I/O that hangs shall not keep others from starting */
		leave_window(piece);
		/* but the owner of the page must know when it is left alone */
		if (piece->direct && !piece->arrived) {
			if (!task->lend)
				continue;
			lend(piece);
		}
		leave_part(piece);
		engine->gave_up = true; /* one that waits ends at once */
		ucm_engine_feed(engine);
	}
	while (part->cursor < (uint64_t)part->num_blocks * task->num_cuts) {
		uint32_t block, cut;

		at_cursor(part, &block, &cut);
		part->cursor++;
		ucm_task_decide(task, block, &outcome);
		settle(engine, part, block, cut, false);
	}
}
