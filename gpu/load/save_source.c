/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save_source.c - what a source is asked of a task that saves.
 *
 * Before a task that may be refused makes its first file, the source is asked
 * which of its blocks it wants. That may hang, so a thread for calls asks; what
 * is saved after it waits, so that turns stay in their order.
 */
#include <config.h>

#include <errno.h>
#include <stdlib.h>

#include "gpu/load/saving.h"

enum asking { UNASKED, ASKING, ASKED };

struct ask {
	struct ucm_engine_op op;
	struct ucm_shared *shared;
	struct ucm_task *task;
};

static ssize_t ask_source(const void *of, void *buffer, size_t len,
			  off_t offset)
{
	const struct ask *ask = of;
	const struct ucm_shared *shared = ask->shared;
	struct ucm_task *task = ask->task;
	struct ucm_id *ids = calloc(task->num_blocks, sizeof(*ids));
	int32_t *answers = calloc(task->num_blocks, sizeof(*answers));

	(void)buffer, (void)len, (void)offset;
	for (size_t i = 0; ids && i < task->num_blocks; i++)
		ids[i] = task->blocks[i].id;
	if (ids && answers &&
	    !shared->source_ops->offer(shared->source, task->group->space,
				     ids, task->parents, task->num_blocks,
				     task->group->file_size, answers)) {
		task->answers = answers;
		answers = NULL;
	}
	free(answers);
	free(ids);
	return 0;
}

/* A source that could not be asked wants all. */
static void end_asking(struct ucm_task *task)
{
	atomic_store(&task->asking, ASKED);
	for (unsigned i = 0; i < task->num_parts; i++)
		task->wake(task->engines[i]);
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
	*ask = (struct ask){
		.op.io = { .op = UCM_IO_CALL,
			   .call = ask_source,
			   .of = ask,
			   .align = 1 },
		.op.done = on_asked,
		.shared = engine->shared,
		.task = task,
	};
	ucm_engine_queue(engine, &ask->op);
}

bool ucm_save_may_make_files(struct ucm_engine *engine, struct ucm_task *task)
{
	int unasked = UNASKED;

	if (task->is_commit || !task->may_refuse ||
	    !engine->shared->source_ops->offer ||
	    atomic_load(&task->asking) == ASKED)
		return true;
	if (atomic_compare_exchange_strong(&task->asking, &unasked, ASKING))
		begin_asking(engine, task);
	return atomic_load(&task->asking) == ASKED;
}
