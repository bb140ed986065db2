/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save.c - blocks that are written: from pages to committed files.
 *
 *	for each part of the layers: gather, checksums, write -> header -> commit
 *
 * A block that fits one read is gathered after its header and written at once.
 * Of others the header is written last, so that the file is no block before it
 * is whole: whatever fails or dies on the way leaves nothing that could be
 * taken for one. A range of layers may be saved by itself; then the file waits
 * for the others. A block that is held waits likewise, without its header, for
 * the turn that commits it.
 *
 * There are three ways from a page to its file: gathered into staging memory;
 * copied into the write buffer before (save_turns.c), and written from there;
 * or written from the page itself, if that is one piece and was lent. A page
 * that is written from is not the caller's before the write has ended,
 * whatever becomes of the task.
 */
#include <config.h>

#include "gpu/load/save/saving.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "gpu/layout/plan.h"

#define PAGE ((uint64_t)UCM_BLOCK_PAGE)

static void next_chunk(struct ucm_saving *saving);

/* ---- commit ---- */

static void on_committed(struct ucm_saving *saving)
{
	if (saving->result) {
		ucm_saving_fail(saving, saving->result, "commit");
		return;
	}
	ucm_add(&saving->engine->shared->stats.saves, 1);
	ucm_saving_end_well(saving, false);
	ucm_saving_drop(saving);
}

static void commit(struct ucm_saving *saving)
{
	ucm_save_file_call(saving, ucm_save_file_commit, on_committed);
}

/* ---- write ---- */

/* No id is none. */
static bool has_parent(const struct ucm_task *task, uint32_t block)
{
	static const struct ucm_id none;

	return task->terms.parents &&
	       memcmp(&task->terms.parents[block], &none, sizeof(none)) != 0;
}

/* Into saving->head, which stays until the block is committed. */
static int make_head(struct ucm_saving *saving)
{
	const struct ucm_task *task = saving->task;
	uint32_t len = saving->group->data_offset;
	struct ucm_block block = {
		.id = saving->id,
		.geometry = saving->group->layout->geometry,
		.form = UCM_FORM_PAGED,
		.data_offset = len,
		.flags = UCM_BLOCK_HAS_CRC,
	}, again;
	struct timespec now;
	int err;

	saving->head = aligned_alloc(PAGE, len);
	if (!saving->head)
		return -ENOMEM;
	clock_gettime(CLOCK_REALTIME, &now);
	block.created_ns = (uint64_t)ucm_time_ns(&now);
	if (has_parent(task, saving->block)) {
		block.flags |= UCM_BLOCK_HAS_PARENT;
		block.parent = task->terms.parents[saving->block];
	}
	err = ucm_block_encode_planes(&block, saving->crcs, saving->head, len);
	/* as whoever commits it will read it */
	return !err && ucm_block_parse(saving->head, len, 0, &again) ? -EINVAL
								     : err;
}

static void on_head_written(struct ucm_saving *saving)
{
	if (ucm_saving_goes_on(saving, "write"))
		commit(saving);
}

/* All layers are there. */
void ucm_saving_end(struct ucm_saving *saving)
{
	int err;

	if (saving->head) {
		commit(saving);
		return;
	}
	err = make_head(saving);
	if (err)
		ucm_saving_fail(saving, err, "header");
	else
		ucm_save_file_write(saving, 0, saving->head,
				    saving->group->data_offset, 0,
				    on_head_written);
}

/* It has been read, to the last time. */
static void give_page_back(struct ucm_saving *saving)
{
	saving->lent = false;
	ucm_task_copied(saving->task);
	saving->copied = true;
}

static void on_written(struct ucm_saving *saving)
{
	if (saving->slot.memory && !saving->kept)
		ucm_slot_move(&saving->slot, UCM_SLOT_IO, UCM_SLOT_HELD);
	if (saving->lent)
		give_page_back(saving);
	if (!ucm_saving_goes_on(saving, "write"))
		return;
	for (uint32_t i = saving->first; i < saving->end; i++) {
		saving->missing -= !saving->have[i];
		saving->have[i] = 1;
	}
	/* what is kept can be found until it is committed */
	if (!saving->kept || saving->held || saving->missing)
		ucm_saving_give_slot(saving);
	if (saving->end < saving->end_layer)
		next_chunk(saving);
	else if (!saving->missing && !saving->held)
		ucm_saving_end(saving);
	else
		ucm_saving_end_part(saving);
}

/* ---- gather ---- */

/* The whole block in one write, header first. */
static bool is_single(const struct ucm_saving *saving)
{
	return !saving->held && saving->first == 0 &&
	       saving->end == saving->group->layout->geometry.num_layers;
}

static uint64_t file_offset(const struct ucm_saving *saving)
{
	return is_single(saving)
		       ? 0
		       : saving->group->data_offset +
				 saving->first * saving->group->layer_bytes;
}

static uint64_t file_end(const struct ucm_saving *saving)
{
	const struct ucm_group *group = saving->group;

	return saving->end == group->layout->geometry.num_layers
		       ? group->file_size
		       : group->data_offset + saving->end * group->layer_bytes;
}

static uint8_t *payload_in_slot(const struct ucm_saving *saving)
{
	if (saving->kept)
		return saving->kept->payload;
	return saving->slot.memory +
	       (is_single(saving) ? saving->group->data_offset : 0);
}

/* Of the layers at hand, from there; where they end. */
static const uint8_t *take_checksums(struct ucm_saving *saving,
				     const uint8_t *at)
{
	const struct ucm_geometry *g = &saving->group->layout->geometry;

	for (uint32_t layer = saving->first; layer < saving->end; layer++) {
		saving->crcs[2 * layer] = ucm_crc32c(0, at, g->k_bytes);
		at += g->k_bytes;
		saving->crcs[2 * layer + 1] = ucm_crc32c(0, at, g->v_bytes);
		at += g->v_bytes;
	}
	return at;
}

/* The same, and what comes after the payload is zero. */
static void finish_slot(struct ucm_saving *saving)
{
	const uint8_t *end = take_checksums(saving, payload_in_slot(saving));

	memset((uint8_t *)(uintptr_t)end, 0,
	       saving->slot.len - (size_t)(end - saving->slot.memory));
}

/* Pages are in the slot. */
static void write_slot(struct ucm_saving *saving)
{
	uint8_t *from = payload_in_slot(saving), *end;

	finish_slot(saving);
	if (is_single(saving)) {
		int err = make_head(saving);

		if (err) {
			ucm_saving_fail(saving, err, "header");
			return;
		}
		from = saving->slot.memory;
		memcpy(from, saving->head, saving->group->data_offset);
	}
	end = saving->slot.memory + saving->slot.len;
	if (!saving->kept) /* which loads may copy from meanwhile */
		ucm_slot_move(&saving->slot, UCM_SLOT_HELD, UCM_SLOT_IO);
	ucm_save_file_write(saving, 0, from, (size_t)(end - from),
			    file_offset(saving), on_written);
}

static void on_gathered(struct ucm_saving *saving)
{
	ucm_slot_copied(&saving->slot, saving->job.lost);
	if (ucm_saving_is_given_up(saving))
		return;
	if (saving->job.err) {
		ucm_saving_fail(saving, saving->job.err, "gather");
		return;
	}
	if (saving->end == saving->end_layer) {
		ucm_task_copied(saving->task);
		saving->copied = true;
	}
	write_slot(saving);
}

static void on_copied(struct ucm_copy_job *job)
{
	on_gathered((struct ucm_saving *)((char *)job -
					  offsetof(struct ucm_saving, job)));
}

static void gather(struct ucm_saving *saving)
{
	const struct ucm_layout *layout = saving->group->layout;
	struct ucm_engine *engine = saving->engine;

	saving->job = ucm_task_job(saving->task, saving->block, saving->first,
				   saving->end, payload_in_slot(saving));
	saving->job.copied = on_copied;
	ucm_layout_clear_padding(layout, saving->first, saving->end,
				 saving->job.staging);
	ucm_slot_move(&saving->slot, UCM_SLOT_HELD, UCM_SLOT_COPY);
	if (engine->pages_are_host) {
		ucm_host_gather(layout, &saving->job);
		on_gathered(saving);
	} else {
		saving->job.next = engine->to_gather;
		engine->to_gather = &saving->job;
	}
}

/* How many layers to a write: as many as a read, whole pages if that is not too
 * much for the staging memory. */
static uint32_t chunk_end(const struct ucm_saving *saving, uint32_t first)
{
	const struct ucm_group *group = saving->group;
	uint64_t most = saving->engine->shared->read_bytes / group->layer_bytes;
	uint64_t each = ucm_plan_multiple(group->layer_bytes, (uint32_t)PAGE);
	uint64_t room = ucm_staging_len(saving->engine->staging) / 4;

	if (most > each)
		each = most - most % each;
	else if (each * group->layer_bytes > room)
		each = most ? most : 1;
	return saving->end_layer - first <= each ? saving->end_layer
						 : first + (uint32_t)each;
}

static void next_chunk(struct ucm_saving *saving)
{
	uint64_t len;
	int err;

	if (ucm_saving_is_given_up(saving))
		return;
	saving->first = saving->end;
	saving->end = chunk_end(saving, saving->first);
	len = file_end(saving) - file_offset(saving);
	err = ucm_gate_stage_save(saving->engine, len, &saving->slot);
	if (err == -EAGAIN) {
		saving->end = saving->first;
		STAILQ_INSERT_TAIL(&saving->engine->savings.hungry, saving,
				   in_hungry);
	} else if (err) {
		ucm_saving_fail(saving, err, "staging memory");
	} else {
		gather(saving);
	}
}

/* ---- from the page ---- */

/*
 * The layers of the turn in the page itself, if it is one piece (as for loads,
 * see direct_place() in load.c), nothing has to be added after them, and the
 * kernel takes them from there. Not past a deadline: a write that hangs would
 * keep the page.
 */
static uint8_t *lent_page(const struct ucm_saving *saving)
{
	const struct ucm_task *task = saving->task;
	const struct ucm_group *group = saving->group;
	const struct ucm_layout *layout = group->layout;
	uint8_t *at;

	if (!layout->direct || !saving->engine->pages_are_host ||
	    task->terms.deadline_ns || task->terms.addresses || saving->kept ||
	    group->data_offset + group->payload_bytes != group->file_size)
		return NULL;
	at = ucm_task_page(task, saving->block, task->terms.first_layer);
	if (saving->direct &&
	    (((uintptr_t)at | group->data_offset | group->layer_bytes) &
	     (saving->align - 1)))
		return NULL;
	return at;
}

static void write_page(struct ucm_saving *saving, uint8_t *page)
{
	uint32_t head_len = is_single(saving) ? saving->group->data_offset : 0;
	uint64_t offset = file_offset(saving);
	int err;

	take_checksums(saving, page);
	err = head_len ? make_head(saving) : 0;
	if (err) {
		ucm_saving_fail(saving, err, "header");
		return;
	}
	saving->lent = true;
	ucm_add(&saving->engine->shared->stats.save_direct_bytes,
		ucm_turn_bytes(saving->task));
	ucm_save_file_write(saving, head_len, page,
			    file_end(saving) - offset - head_len, offset,
			    on_written);
}

/* The file is open. */
void ucm_saving_go_on(struct ucm_saving *saving)
{
	uint8_t *page = lent_page(saving);

	if (!saving->kept && !page) {
		next_chunk(saving);
		return;
	}
	if (ucm_saving_is_given_up(saving))
		return;
	saving->first = saving->task->terms.first_layer;
	saving->end = saving->end_layer;
	if (page)
		write_page(saving, page);
	else
		write_slot(saving);
}

/* ---- what the engine asks for ---- */

/* In their order: the first that is left hungry stops the rest. */
void ucm_save_feed(struct ucm_engine *engine)
{
	struct ucm_hungry *hungry = &engine->savings.hungry;
	struct ucm_hungry before = STAILQ_HEAD_INITIALIZER(before);
	struct ucm_saving *saving;

	STAILQ_CONCAT(&before, hungry);
	while (STAILQ_EMPTY(hungry) && (saving = STAILQ_FIRST(&before))) {
		STAILQ_REMOVE_HEAD(&before, in_hungry);
		next_chunk(saving);
	}
	STAILQ_CONCAT(hungry, &before);
}

/* Those that are left first: what begins anew goes behind them. */
void ucm_savings_end_given_up(struct ucm_engine *engine)
{
	struct ucm_hungry before = STAILQ_HEAD_INITIALIZER(before);
	struct ucm_hungry ends = STAILQ_HEAD_INITIALIZER(ends);
	struct ucm_saving *saving;

	STAILQ_CONCAT(&before, &engine->savings.hungry);
	while ((saving = STAILQ_FIRST(&before))) {
		struct ucm_hungry *to = ucm_saving_was_given_up(saving)
						? &ends
						: &engine->savings.hungry;

		STAILQ_REMOVE_HEAD(&before, in_hungry);
		STAILQ_INSERT_TAIL(to, saving, in_hungry);
	}
	while ((saving = STAILQ_FIRST(&ends))) {
		STAILQ_REMOVE_HEAD(&ends, in_hungry);
		ucm_saving_is_given_up(saving);
	}
}
