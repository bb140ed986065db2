/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save_source.c - what a source is asked of a task that saves.
 *
 * Before a task that may be refused makes its first file, the source is asked
 * which of its blocks it wants. That may hang, so a thread for calls asks; what
 * is saved after it waits, so that turns stay in their order.
 */
#include <config.h>

#include <stdlib.h>

#include "gpu/load/save/saving.h"

enum asking { UNASKED, ASKING, ASKED };

struct ask {
	struct ucm_engine_op op; /* first */
	struct ucm_shared *shared;
	struct ucm_task *task;
};

static void ask_source(struct ucm_io *io)
{
	const struct ask *ask = (struct ask *)io;
	const struct ucm_shared *shared = ask->shared;
	struct ucm_task *task = ask->task;
	struct ucm_id *ids = calloc(task->num_blocks, sizeof(*ids));
	int32_t *answers = calloc(task->num_blocks, sizeof(*answers));

	for (size_t i = 0; ids && i < task->num_blocks; i++)
		ids[i] = task->blocks[i].id;
	if (ids && answers &&
	    !shared->source_ops->offer(shared->source, task->group->space,
				     ids, task->terms.parents, task->num_blocks,
				     task->group->file_size, answers)) {
		task->offer.answers = answers;
		answers = NULL;
	}
	free(answers);
	free(ids);
}

/* A source that could not be asked wants all. */
static void end_asking(struct ucm_task *task)
{
	atomic_store(&task->offer.asking, ASKED);
	for (unsigned i = 0; i < task->num_parts; i++)
		task->threads.wake(task->threads.engines[i]);
}

static void on_asked(struct ucm_engine *engine, struct ucm_engine_op *op)
{
	struct ask *ask = (struct ask *)op;

	(void)engine;
	end_asking(ask->task);
	ucm_task_put(ask->task);
	free(ask);
}

static void begin_asking(struct ucm_engine *engine, struct ucm_task *task)
{
	struct ask *ask = malloc(sizeof(*ask));

	if (!ask) {
		end_asking(task);
		return;
	}
	ucm_task_get(task);
	*ask = (struct ask){ .op.done = on_asked,
			     .shared = engine->shared,
			     .task = task };
	ucm_engine_call(engine, &ask->op, ask_source);
}

bool ucm_save_may_make_files(struct ucm_engine *engine, struct ucm_task *task)
{
	int unasked = UNASKED;

	if (task->terms.is_commit || !task->terms.may_refuse ||
	    !engine->shared->source_ops->offer ||
	    atomic_load(&task->offer.asking) == ASKED)
		return true;
	if (atomic_compare_exchange_strong(&task->offer.asking, &unasked, ASKING))
		begin_asking(engine, task);
	return atomic_load(&task->offer.asking) == ASKED;
}
