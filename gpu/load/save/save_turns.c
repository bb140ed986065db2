/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save_turns.c - which blocks of a task are begun when, and what is copied into
 * the write buffer before.
 *
 * Without a buffer a block is begun when there is staging memory for it, and
 * its pages are the engine's again when they have been gathered there.
 *
 * With one (buffer.h) pages are copied into it as soon as there is room, at the
 * speed of memory: before the file is made, checksums are taken, or anything
 * else is done that takes its time. What has been copied waits in a queue, of
 * which as much is begun as without a buffer. Turns stay in their order, as one
 * of them may be the commit of those before: so one that has nothing in the
 * buffer goes to the end of the queue as well, and where the buffer is full
 * nothing is started before the queue has moved. If nothing of this thread's is
 * in the queue (others may have filled the buffer), it goes the way without a
 * buffer: nobody has to be woken by other threads.
 *
 * Pages of a device are gathered into staging memory first, and copied from
 * there.
 */
#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "gpu/load/save/saving.h"

/* So much is copied before the loop of the engine looks after other things. */
#define COPY_ROUND ((uint64_t)16 << 20)

/* While more can be copied, no more blocks than these are being written: both
 * need the processor, and pages go first. */
#define WRITES_BESIDE 4

/* A turn that waits in the queue. */
struct queued {
	struct ucm_turn turn; /* first */
	struct ucm_engine *engine;
	struct ucm_task *task; /* a reference */
	struct ucm_copy_job job; /* of a device's pages */
	struct ucm_slot slot;    /* for it */
	bool gathering;
};

/* As file_end() less file_offset() of save.c. */
static uint64_t kept_len(const struct ucm_task *task)
{
	const struct ucm_group *group = task->group;
	uint64_t end = group->data_offset +
		       task->terms.end_layer * group->layer_bytes;

	if (task->terms.end_layer == group->layout->geometry.num_layers)
		end = group->file_size;
	return ucm_task_is_whole(task)
		       ? end
		       : end - group->data_offset -
				 task->terms.first_layer * group->layer_bytes;
}

static struct ucm_turn next_turn(struct ucm_part *part)
{
	uint32_t block = part->blocks[part->cursor];

	return (struct ucm_turn){
		.part = part,
		.block = block,
		.abandoned = part->task->blocks[block].abandoned,
	};
}

/* ---- the queue ---- */

static void push(struct ucm_savings *savings, struct queued *queued)
{
	*savings->queued_end = &queued->turn;
	savings->queued_end = &queued->turn.next;
}

static struct queued *pop(struct ucm_savings *savings)
{
	struct ucm_turn *turn = savings->queued;

	savings->queued = turn->next;
	if (!savings->queued)
		savings->queued_end = &savings->queued;
	return (struct queued *)turn;
}

static bool may_begin(struct ucm_engine *engine, const struct queued *queued)
{
	if (!queued->turn.part || queued->task->terms.is_commit)
		return true;
	if (engine->savings.copying && engine->savings_busy >= WRITES_BESIDE)
		return false;
	return ucm_gate_begin_save(engine, ucm_turn_bytes(queued->task));
}

static void end_queued(struct queued *queued)
{
	ucm_task_put(queued->task);
	free(queued);
}

void ucm_save_go(struct ucm_engine *engine)
{
	struct ucm_savings *savings = &engine->savings;

	while (savings->queued) {
		struct queued *queued = (struct queued *)savings->queued;

		if (queued->gathering || !may_begin(engine, queued))
			break;
		pop(savings);
		if (queued->turn.part)
			ucm_saving_begin(engine, &queued->turn);
		end_queued(queued);
	}
	savings->copied = 0;
	savings->copying = false;
}

static void end_given_up(struct ucm_savings *savings)
{
	struct ucm_turn **at = &savings->queued;

	while (*at) {
		struct queued *queued = (struct queued *)*at;

		if (queued->turn.part || queued->gathering) {
			at = &queued->turn.next;
			continue;
		}
		*at = queued->turn.next;
		end_queued(queued);
	}
	savings->queued_end = at;
}

void ucm_save_end_given_up(struct ucm_engine *engine)
{
	end_given_up(&engine->savings);
	ucm_savings_end_given_up(engine);
}

/* ---- copying ---- */

/* The bytes are in the buffer. */
static void on_kept(struct queued *queued)
{
	struct ucm_shared *shared = queued->engine->shared;
	struct ucm_task *task = queued->task;

	atomic_fetch_sub(&shared->save_waiting, ucm_turn_bytes(task));
	ucm_add(&shared->stats.save_buffered_bytes, ucm_turn_bytes(task));
	if (ucm_task_is_whole(task))
		ucm_buffered_show(queued->turn.kept, shared->buffer_home,
			      task->group,
			      &task->blocks[queued->turn.block].id);
	/* last: whoever knows that it was copied can find it */
	ucm_task_copied(task);
}

static void not_kept(struct queued *queued, int err)
{
	struct ucm_turn turn = queued->turn;

	ucm_buffered_put(turn.kept);
	turn.kept = queued->turn.kept = NULL;
	queued->turn.part = NULL;
	ucm_gate_give_up(queued->engine); /* its turn need not come */
	ucm_turn_settle(queued->engine, &turn,
			&(struct ucm_outcome){ .err = err });
}

static void on_gathered(struct ucm_copy_job *job)
{
	struct queued *queued =
		(struct queued *)((char *)job - offsetof(struct queued, job));
	struct ucm_engine *engine = queued->engine;
	struct ucm_task *task = queued->task;
	int err = job->err;

	ucm_slot_copied(&queued->slot, job->lost);
	queued->gathering = false;
	if (ucm_task_block_decided(task, queued->turn.block))
		err = task->outcomes[queued->turn.block].err;
	if (!err)
		memcpy(queued->turn.kept->payload, queued->slot.memory,
		       ucm_turn_bytes(task));
	ucm_gate_unstage_save(engine, &queued->slot);
	if (err)
		not_kept(queued, err);
	else
		on_kept(queued);
}

static void gather(struct queued *queued)
{
	struct ucm_engine *engine = queued->engine;
	const struct ucm_task *task = queued->task;
	const struct ucm_layout *layout = task->group->layout;
	struct ucm_copy_job *job = &queued->job;

	*job = ucm_task_job(task, queued->turn.block, task->terms.first_layer,
			    task->terms.end_layer,
			    engine->pages_are_host ? queued->turn.kept->payload
						   : queued->slot.memory);
	ucm_layout_clear_padding(layout, job->first_layer, job->end_layer,
				 job->staging);
	if (engine->pages_are_host) {
		ucm_host_gather(layout, job);
		on_kept(queued);
		return;
	}
	job->copied = on_gathered;
	queued->gathering = true;
	ucm_slot_move(&queued->slot, UCM_SLOT_HELD, UCM_SLOT_COPY);
	job->next = engine->to_gather;
	engine->to_gather = job;
}

static struct queued *new_queued(struct ucm_engine *engine,
				 struct ucm_part *part)
{
	struct queued *queued = calloc(1, sizeof(*queued));

	if (!queued)
		return NULL;
	queued->engine = engine;
	queued->turn = next_turn(part);
	queued->task = part->task;
	return queued;
}

/* Room for a copy of its pages; false: there is none. */
static bool make_room(struct queued *queued)
{
	const struct ucm_task *task = queued->task;
	struct ucm_engine *engine = queued->engine;
	struct ucm_buffered *kept;

	kept = ucm_buffer_get(engine->shared->buffer, kept_len(task));
	if (!kept)
		return false;
	if (!engine->pages_are_host &&
	    ucm_gate_stage_save(engine, ucm_turn_bytes(task), &queued->slot)) {
		ucm_buffered_put(kept);
		return false;
	}
	kept->payload = kept->slot.memory +
			(ucm_task_is_whole(task) ? task->group->data_offset : 0);
	queued->turn.kept = kept;
	return true;
}

/* The next block of a part, by way of the queue; false: without it. */
static bool enqueue(struct ucm_engine *engine, struct ucm_part *part)
{
	struct ucm_savings *savings = &engine->savings;
	struct queued *queued = new_queued(engine, part);

	if (!queued)
		return false;
	if (!part->task->terms.is_commit && !make_room(queued)) {
		free(queued);
		return false;
	}
	part->cursor++;
	ucm_task_get(queued->task);
	push(savings, queued);
	if (queued->turn.kept) {
		savings->copied += ucm_turn_bytes(queued->task);
		gather(queued);
	}
	return true;
}

/* ---- start ---- */

static void settle_next(struct ucm_engine *engine, struct ucm_part *part,
			const struct ucm_outcome *outcome)
{
	const struct ucm_turn turn = next_turn(part);

	part->cursor++;
	ucm_turn_settle(engine, &turn, outcome);
}

static bool begin_next(struct ucm_engine *engine, struct ucm_part *part)
{
	const struct ucm_turn turn = next_turn(part);

	if (!ucm_gate_begin_save(engine, ucm_turn_bytes(part->task)))
		return false;
	part->cursor++;
	ucm_saving_begin(engine, &turn);
	return true;
}

/* false: later. */
static bool start_buffered(struct ucm_engine *engine, struct ucm_part *part)
{
	struct ucm_savings *savings = &engine->savings;

	if (savings->copied >= COPY_ROUND) {
		savings->copying = true;
		engine->eager = true; /* at once, in the next round */
		return false;
	}
	if (part->task->terms.is_commit && !savings->queued)
		return begin_next(engine, part);
	return enqueue(engine, part) ||
	       (!savings->queued && begin_next(engine, part));
}

bool ucm_save_start(struct ucm_engine *engine, struct ucm_part *part)
{
	struct ucm_task *task = part->task;
	uint32_t block = part->blocks[part->cursor];

	if (ucm_task_block_decided(task, block)) { /* dropped at submit */
		settle_next(engine, part, &task->outcomes[block]);
		return true;
	}
	if (!ucm_save_may_make_files(engine, task))
		return false;
	/* of one that is half saved, it has been asked before */
	if (task->offer.answers && !task->offer.answers[block] &&
	    !ucm_saving_find(engine, task, block)) {
		settle_next(engine, part,
			    &(struct ucm_outcome){ .refused = 1 });
		return true;
	}
	return engine->shared->buffer ? start_buffered(engine, part)
				      : begin_next(engine, part);
}

/* ---- giving up ---- */

static void give_up_queued(struct ucm_engine *engine, struct ucm_part *part,
			   const struct ucm_outcome *outcome)
{
	for (struct ucm_turn *turn = engine->savings.queued; turn;
	     turn = turn->next) {
		struct queued *queued = (struct queued *)turn;
		const struct ucm_turn own = *turn;

		if (turn->part != part)
			continue;
		ucm_task_decide(queued->task, turn->block, outcome);
		/* pages that are being copied are waited for */
		if (queued->gathering)
			continue;
		turn->part = NULL;
		turn->kept = NULL;
		ucm_gate_give_up(engine);
		ucm_turn_settle(engine, &own, outcome);
	}
}

void ucm_save_give_up(struct ucm_engine *engine, struct ucm_part *part, int err)
{
	const struct ucm_outcome outcome = { .err = err };

	give_up_queued(engine, part, &outcome);
	for (uint64_t i = 0; i < part->cursor; i++) {
		struct ucm_saving *saving =
			ucm_saving_find(engine, part->task, part->blocks[i]);

		if (saving)
			ucm_saving_give_up(saving, part, &outcome);
	}
	while (part->cursor < part->num_blocks)
		settle_next(engine, part, &outcome);
}

/* ---- what is not to become whole ---- */

/* They are begun all the same, as their pages and outcomes are their task's. */
static void abandon_queued(struct ucm_engine *engine,
			   const struct ucm_abandon *abandon)
{
	for (struct ucm_turn *turn = engine->savings.queued; turn;
	     turn = turn->next) {
		const struct ucm_task *task = ((struct queued *)turn)->task;

		turn->abandoned |= ucm_abandon_means(
			abandon, task->group, &task->blocks[turn->block].id);
	}
}

/* What a part has not begun yet. */
static void abandon_rest(const struct ucm_part *part,
			 const struct ucm_abandon *abandon)
{
	const struct ucm_task *task = part->task;

	for (uint64_t i = part->cursor; i < part->num_blocks; i++) {
		struct ucm_task_block *block = &task->blocks[part->blocks[i]];

		block->abandoned |=
			ucm_abandon_means(abandon, task->group, &block->id);
	}
}

void ucm_save_abandon_now(struct ucm_engine *engine,
			  const struct ucm_abandon *abandon)
{
	for (struct ucm_part *part = engine->saves;
	     part && part->number <= abandon->last; part = part->next)
		abandon_rest(part, abandon);
	abandon_queued(engine, abandon);
	ucm_saving_abandon(engine, abandon);
}
