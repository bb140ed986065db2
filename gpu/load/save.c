/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save.c - blocks that are written: from pages to committed files.
 *
 *	create -> for each part of the layers: gather, checksums, write -> header
 *	-> commit
 *
 * A block that fits one read is gathered after its header and written at once.
 * Of others the header is written last, so that the file is no block before it
 * is whole: whatever fails or dies on the way leaves nothing that could be
 * taken for one. A range of layers may be saved by itself; then the file waits
 * for the others: open, unless there are too many of them; those beyond are
 * closed after each part and opened again for the next one. A block that is held
 * waits likewise, without its header, for the turn that commits it.
 *
 * There are three ways from a page to its file: gathered into staging memory;
 * copied into the write buffer before (save_turns.c), and written from there;
 * or written from the page itself, if that is one piece and was lent. A page
 * that is written from is not the caller's before the write has ended,
 * whatever becomes of the task.
 *
 * A saving belongs to the block's id: two tasks that save one block have one
 * after the other. The one under way belongs to its part; when the part has
 * given it up, it is dropped at the next step.
 */
#include <config.h>

#include "gpu/load/iobudget.h"
#include "gpu/load/saving.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/log.h"

#define PAGE ((uint64_t)UCM_BLOCK_PAGE)

static void next_chunk(struct ucm_saving *saving);
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
	if (task->is_commit)
		return 0;
	return (task->end_layer - task->first_layer) *
	       task->group->layer_bytes;
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

static void give_slot(struct ucm_saving *saving)
{
	struct ucm_engine *engine = saving->engine;

	if (!saving->slot.memory)
		return;
	if (saving->kept) {
		ucm_buffered_hide(saving->kept);
		ucm_buffered_put(saving->kept);
		saving->kept = NULL;
		saving->slot.memory = NULL;
		return;
	}
	engine->saving_bytes -= saving->slot.len;
	ucm_staging_put(engine->staging, &saving->slot);
	ucm_engine_feed(engine);
}

/* ---- the end of a saving ---- */

static void free_saving(struct ucm_saving *saving)
{
	if (saving->stays_open)
		saving->engine->savings.open--;
	ucm_group_put(saving->group);
	free(saving->crcs);
	free(saving->have);
	free(saving->head);
	free(saving);
}

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
static void drop(struct ucm_saving *saving)
{
	give_slot(saving);
	leave(saving);
	ucm_save_file_drop(saving, free_saving);
}

static void on_failed(struct ucm_saving *saving)
{
	end_turn(saving, &saving->outcome);
	drop(saving);
}

static void fail(struct ucm_saving *saving, int err, const char *what)
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
	give_slot(saving);
	if (saving->draft) /* it goes before anybody hears of it */
		ucm_save_file_drop(saving, on_failed);
	else
		on_failed(saving);
}

static bool was_given_up(const struct ucm_saving *saving)
{
	return !saving->part ||
	       ucm_task_block_decided(saving->task, saving->block);
}

/* Has the turn been given up meanwhile? Then nothing is left to do. */
static bool is_given_up(struct ucm_saving *saving)
{
	if (!was_given_up(saving))
		return false;
	end_turn(saving, &(struct ucm_outcome){ .err = -ECANCELED });
	drop(saving);
	return true;
}

/* ---- commit ---- */

static void end_well(struct ucm_saving *saving, bool skipped)
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

static void on_committed(struct ucm_saving *saving)
{
	if (saving->result) {
		fail(saving, saving->result, "commit");
		return;
	}
	ucm_add(&saving->engine->shared->stats.saves, 1);
	end_well(saving, false);
	drop(saving);
}

static void commit(struct ucm_saving *saving)
{
	ucm_save_file_commit(saving, on_committed);
}

/* ---- write ---- */

/* No id is none. */
static bool has_parent(const struct ucm_task *task, uint32_t block)
{
	static const struct ucm_id none;

	return task->parents &&
	       memcmp(&task->parents[block], &none, sizeof(none)) != 0;
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
		block.parent = task->parents[saving->block];
	}
	err = ucm_block_encode_planes(&block, saving->crcs, saving->head, len);
	/* as whoever commits it will read it */
	return !err && ucm_block_parse(saving->head, len, 0, &again) ? -EINVAL
								     : err;
}

static void on_head_written(struct ucm_saving *saving)
{
	if (is_given_up(saving))
		return;
	if (saving->result)
		fail(saving, saving->result, "write");
	else
		commit(saving);
}

/* All layers are there. */
static void write_head(struct ucm_saving *saving)
{
	int err;

	if (saving->head) {
		commit(saving);
		return;
	}
	err = make_head(saving);
	if (err)
		fail(saving, err, "header");
	else
		ucm_save_file_write(saving, saving->head,
				    saving->group->data_offset, 0,
				    on_head_written);
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
	end_well(saving, false);
	if (saving->abandoned)
		drop(saving);
	else
		next_turns(saving);
}

static void on_rested(struct ucm_saving *saving)
{
	if (is_given_up(saving))
		return;
	if (saving->result)
		fail(saving, saving->result, "close");
	else
		leave_part(saving);
}

static void end_part(struct ucm_saving *saving)
{
	if (saving->rests && !saving->abandoned && !saving->turns &&
	    ucm_save_file_may_rest(saving))
		ucm_save_file_rest(saving, on_rested);
	else
		leave_part(saving);
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
	if (is_given_up(saving))
		return;
	if (saving->result) {
		fail(saving, saving->result, "write");
		return;
	}
	for (uint32_t i = saving->first; i < saving->end; i++) {
		saving->missing -= !saving->have[i];
		saving->have[i] = 1;
	}
	if (!saving->kept || saving->held || saving->missing)
		give_slot(saving); /* else it can be found until it is committed */
	if (saving->end < saving->end_layer)
		next_chunk(saving);
	else if (!saving->missing && !saving->held)
		write_head(saving);
	else
		end_part(saving);
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
			fail(saving, err, "header");
			return;
		}
		from = saving->slot.memory;
		memcpy(from, saving->head, saving->group->data_offset);
	}
	end = saving->slot.memory + saving->slot.len;
	if (!saving->kept) /* which loads may copy from meanwhile */
		ucm_slot_move(&saving->slot, UCM_SLOT_HELD, UCM_SLOT_IO);
	ucm_save_file_write(saving, from, (size_t)(end - from),
			    file_offset(saving), on_written);
}

static void on_gathered(struct ucm_saving *saving)
{
	ucm_slot_copied(&saving->slot, saving->job.lost);
	if (is_given_up(saving))
		return;
	if (saving->job.err) {
		fail(saving, saving->job.err, "gather");
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
	const struct ucm_task *task = saving->task;
	const struct ucm_layout *layout = saving->group->layout;
	struct ucm_engine *engine = saving->engine;

	saving->job = (struct ucm_copy_job){
		.copied = on_copied,
		.group = saving->group->number,
		.first_layer = saving->first,
		.end_layer = saving->end,
		.staging = payload_in_slot(saving),
		.page = task->blocks[saving->block].page,
	};
	if (task->addresses)
		saving->job.addresses =
			task->addresses +
			(uint64_t)saving->block * task->num_addresses +
			(layout->layer_first[saving->first] -
			 layout->layer_first[task->first_layer]);
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

static void go_hungry(struct ucm_saving *saving)
{
	struct ucm_savings *savings = &saving->engine->savings;

	saving->hungry = true;
	saving->hungry_next = NULL;
	*savings->hungry_end = saving;
	savings->hungry_end = &saving->hungry_next;
}

static void next_chunk(struct ucm_saving *saving)
{
	struct ucm_engine *engine = saving->engine;
	uint64_t len;
	int err;

	if (is_given_up(saving))
		return;
	saving->first = saving->end;
	saving->end = chunk_end(saving, saving->first);
	len = file_end(saving) - file_offset(saving);
	/* loads have half of the staging memory for themselves */
	if (engine->saving_bytes &&
	    engine->saving_bytes + len > ucm_staging_len(engine->staging) / 2)
		err = -EAGAIN;
	else
		err = ucm_staging_get(engine->staging, len, &saving->slot);
	if (err == -EAGAIN) {
		saving->end = saving->first;
		go_hungry(saving);
	} else if (err) {
		fail(saving, err, "staging memory");
	} else {
		engine->saving_bytes += len;
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
	const struct ucm_region *region;
	uint64_t at;

	if (!layout->direct || !saving->engine->pages_are_host ||
	    task->deadline_ns || task->addresses || saving->kept ||
	    group->data_offset + group->payload_bytes != group->file_size)
		return NULL;
	region = &layout->regions[layout->layer_first[task->first_layer]];
	at = region->base + task->blocks[saving->block].page *
				    (uint64_t)region->page_stride;
	if (saving->direct &&
	    ((at | group->data_offset | group->layer_bytes) &
	     (saving->align - 1)))
		return NULL;
	return (uint8_t *)(uintptr_t)at;
}

static void write_page(struct ucm_saving *saving, uint8_t *page)
{
	uint32_t head_len = is_single(saving) ? saving->group->data_offset : 0;
	uint64_t offset = file_offset(saving);
	int err;

	take_checksums(saving, page);
	err = head_len ? make_head(saving) : 0;
	if (err) {
		fail(saving, err, "header");
		return;
	}
	saving->lent = true;
	ucm_add(&saving->engine->shared->stats.save_direct_bytes,
		ucm_turn_bytes(saving->task));
	ucm_save_file_write_headed(saving, head_len, page,
				   file_end(saving) - offset - head_len, offset,
				   on_written);
}

/* The file is open. */
static void go_on(struct ucm_saving *saving)
{
	uint8_t *page = lent_page(saving);

	if (!saving->kept && !page) {
		next_chunk(saving);
		return;
	}
	if (is_given_up(saving))
		return;
	saving->first = saving->task->first_layer;
	saving->end = saving->end_layer;
	if (page)
		write_page(saving, page);
	else
		write_slot(saving);
}

static void on_created(struct ucm_saving *saving)
{
	if (saving->result == -EEXIST) {
		end_well(saving, true);
		drop(saving);
	} else if (saving->result) {
		fail(saving, saving->result, "create");
	} else {
		go_on(saving);
	}
}

/* Layers come around again and again: the first files stay open, and all others
 * are opened once in each round. */
static void plan_between_turns(struct ucm_saving *saving)
{
	struct ucm_engine *engine = saving->engine;

	saving->stays_open =
		engine->savings.open < engine->shared->most_saves;
	saving->rests = !saving->stays_open;
	engine->savings.open += saving->stays_open;
}

static struct ucm_saving *new_saving(struct ucm_engine *engine,
				     const struct ucm_task *task,
				     const struct ucm_id *id)
{
	struct ucm_group *group = task->group;
	uint32_t layers = group->layout->geometry.num_layers;
	struct ucm_saving *saving = calloc(1, sizeof(*saving));

	if (!saving)
		return NULL;
	saving->group = group;
	ucm_group_get(group);
	saving->crcs = calloc(2 * (size_t)layers, sizeof(*saving->crcs));
	saving->have = calloc(layers, 1);
	if (!saving->crcs || !saving->have) {
		free_saving(saving);
		return NULL;
	}
	saving->engine = engine;
	saving->id = *id;
	saving->fd = -1;
	if (!ucm_task_is_whole(task))
		plan_between_turns(saving);
	saving->missing = layers;
	if (ucm_savings_add(&engine->savings, saving))
		return saving;
	free_saving(saving);
	return NULL;
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
	if (is_given_up(saving))
		return;
	if (saving->result)
		fail(saving, saving->result, "open");
	else if (saving->task->is_commit)
		write_head(saving);
	else
		go_on(saving);
}

/* The file is there. */
static void resume(struct ucm_saving *saving)
{
	bool is_commit = saving->task->is_commit;

	if (is_commit && saving->missing)
		end_turn(saving, &(struct ucm_outcome){ .err = -EAGAIN });
	else if (saving->fd < 0)
		ucm_save_file_reopen(saving, on_reopened);
	else if (is_commit)
		write_head(saving);
	else
		go_on(saving);
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
	saving->end = task->first_layer;
	saving->end_layer = task->end_layer;
	saving->held |= task->hold;
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
	if (!saving && task->is_commit) {
		ucm_turn_settle(engine, turn,
				&(struct ucm_outcome){ .err = -ENOENT });
		return;
	}
	if (!saving)
		saving = new_saving(engine, task, &task->blocks[turn->block].id);
	if (!saving) {
		ucm_turn_settle(engine, turn,
				&(struct ucm_outcome){ .err = -ENOMEM });
		return;
	}
	take_turn(saving, turn);
	if (saving->fd < 0 && !saving->draft)
		ucm_save_file_create(saving, on_created);
	else
		resume(saving);
}

void ucm_saving_begin(struct ucm_engine *engine, const struct ucm_turn *turn)
{
	begin(engine, NULL, turn);
}

/* ---- what the engine asks for ---- */

/* In their order: the first that is left hungry stops the rest. */
void ucm_save_feed(struct ucm_engine *engine)
{
	struct ucm_savings *savings = &engine->savings;
	struct ucm_saving *saving = savings->hungry, *next;
	struct ucm_saving **end = savings->hungry_end;

	savings->hungry = NULL;
	savings->hungry_end = &savings->hungry;
	for (; saving && !savings->hungry; saving = next) {
		next = saving->hungry_next;
		saving->hungry = false;
		next_chunk(saving);
	}
	if (saving) {
		*savings->hungry_end = saving;
		savings->hungry_end = end;
	}
}

/* Those that are left first: what begins anew goes behind them. */
void ucm_savings_end_given_up(struct ucm_engine *engine)
{
	struct ucm_saving *saving = engine->savings.hungry, *next;
	struct ucm_saving *ends = NULL;

	engine->savings.hungry = NULL;
	engine->savings.hungry_end = &engine->savings.hungry;
	for (; saving; saving = next) {
		next = saving->hungry_next;
		if (!was_given_up(saving)) {
			go_hungry(saving);
			continue;
		}
		saving->hungry = false;
		saving->hungry_next = ends;
		ends = saving;
	}
	for (; ends; ends = next) {
		next = ends->hungry_next;
		is_given_up(ends);
	}
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
	saving->engine->gave_up = true;
	ucm_engine_feed(saving->engine); /* a hungry one ends at once */
}

/* One that is busy is removed when its turn ends without making it whole, and
 * so is what those that wait for it make. */
static void abandon(struct ucm_saving *saving)
{
	if (!saving->busy) {
		drop(saving);
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
