/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save_source.c - what a source is told of a task that saves, and asked.
 *
 * Before a task makes its first file, whoever keeps files is asked which of its
 * blocks it wants, if it may refuse some, and whoever places them is told the
 * parents of all. That may hang, so a thread for calls does it; whatever is
 * saved after it waits, so that turns stay in their order.
 */
#include <config.h>

#include <errno.h>
#include <stdlib.h>

#include "gpu/load/saving.h"

enum telling { UNTOLD, TELLING, TOLD };

struct tell {
	struct ucm_engine_op op;
	struct ucm_shared *shared;
	struct ucm_task *task;
};

/* The first layers make the files. */
static bool has_to_tell(const struct ucm_shared *shared,
			const struct ucm_task *task)
{
	const struct ucm_source_ops *ops = shared->save_ops;

	return task->parents && !task->first_layer && ops->expect &&
	       ops->expects(shared->save_source);
}

static bool has_to_offer(const struct ucm_shared *shared,
			 const struct ucm_task *task)
{
	return task->may_refuse && shared->save_ops->offer;
}

/* A source that cannot say wants all. */
static void offer_blocks(const struct tell *tell, const struct ucm_id *ids)
{
	const struct ucm_shared *shared = tell->shared;
	struct ucm_task *task = tell->task;
	int32_t *answers = calloc(task->num_blocks, sizeof(*answers));

	if (!answers)
		return;
	if (shared->save_ops->offer(shared->save_source, task->group->space, ids,
				      task->parents, task->num_blocks,
				      task->group->file_size, answers))
		free(answers);
	else
		task->answers = answers;
}

static ssize_t tell_source(const void *of, void *buffer, size_t len,
			   off_t offset)
{
	const struct tell *tell = of;
	const struct ucm_shared *shared = tell->shared;
	const struct ucm_task *task = tell->task;
	struct ucm_id *ids = calloc(task->num_blocks, sizeof(*ids));

	(void)buffer, (void)len, (void)offset;
	for (size_t i = 0; ids && i < task->num_blocks; i++)
		ids[i] = task->blocks[i].id;
	if (ids && has_to_offer(shared, task))
		offer_blocks(tell, ids);
	if (ids && has_to_tell(shared, task))
		shared->save_ops->expect(shared->save_source, task->group->space,
					   ids, task->parents,
					   task->num_blocks);
	free(ids);
	return 0;
}

/* What could not be said is no error. */
static void end_telling(struct ucm_task *task)
{
	atomic_store(&task->telling, TOLD);
	for (unsigned i = 0; i < task->num_parts; i++)
		task->wake(task->engines[i]);
}

static void on_told(struct ucm_engine *engine, struct ucm_engine_op *op)
{
	struct tell *tell = (struct tell *)op;

	(void)engine;
	end_telling(tell->task);
	ucm_task_put(tell->task);
	free(tell);
}

static void begin_telling(struct ucm_engine *engine, struct ucm_task *task)
{
	struct tell *tell = malloc(sizeof(*tell));

	if (!tell) {
		end_telling(task);
		return;
	}
	ucm_task_get(task);
	*tell = (struct tell){
		.op.io = { .op = UCM_IO_CALL,
			   .call = tell_source,
			   .of = tell,
			   .align = 1 },
		.op.done = on_told,
		.shared = engine->shared,
		.task = task,
	};
	ucm_engine_queue(engine, &tell->op);
}

bool ucm_save_may_make_files(struct ucm_engine *engine, struct ucm_task *task)
{
	int untold = UNTOLD;

	if (task->is_commit || atomic_load(&task->telling) == TOLD ||
	    (!has_to_tell(engine->shared, task) &&
	     !has_to_offer(engine->shared, task)))
		return true;
	if (atomic_compare_exchange_strong(&task->telling, &untold, TELLING))
		begin_telling(engine, task);
	return atomic_load(&task->telling) == TOLD;
}
