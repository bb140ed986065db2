/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mail.c - what other threads want of an engine: parts of tasks, blocks that are
 * abandoned, and groups, for which they wait.
 *
 * The lock guards the inbox alone, and is not kept while something is done.
 */
#include <config.h>

#include "gpu/load/save/save.h"
#include "gpu/load/task/abandon.h"
#include "gpu/load/thread.h"

#include <string.h>

#include "common/log.h"

/* ---- what the engine does for others ---- */

static void append(struct ucm_part **list, struct ucm_part *part)
{
	while (*list)
		list = &(*list)->next;
	part->next = NULL;
	*list = part;
}

static void run_abandons(struct ucm_engine *engine, struct ucm_abandon *abandon)
{
	while (abandon) {
		struct ucm_abandon *next = abandon->next;

		ucm_save_abandon_now(engine, abandon);
		ucm_abandon_free(abandon);
		abandon = next;
	}
}

/* The memory of its pages, if they are read into. */
static size_t pages_of(const struct ucm_engine *engine,
		       const struct ucm_group *group, void **memory)
{
	uint64_t first, last;

	if (!group->layout->direct || !engine->pages_are_host)
		return 0;
	ucm_layout_bounds(group->layout, &first, &last);
	*memory = (void *)(uintptr_t)first;
	return (size_t)(last - first + 1);
}

/* So that reads go there: see direct_place() in load.c. Where it cannot be had
 * they go through staging. That is reported once: what one thread may pin can
 * be too much for the next one. */
static void pin_pages(struct ucm_engine *engine, const struct ucm_group *group)
{
	void *memory;
	size_t len = pages_of(engine, group, &memory);
	int err = len ? ucm_ring_pin(engine->ring, memory, len) : 0;

	if (err && !atomic_exchange(&engine->shared->told_unpinned, true))
		ucm_warning("group %u: thread %u does not read all into pages: "
			    "they cannot be pinned: %s", group->id,
			    engine->number, strerror(-err));
}

static int add_group(struct ucm_engine *engine, struct ucm_group *group)
{
	const struct ucm_copy_ops *ops = engine->shared->copy_ops;
	int err = 0;

	if (ops)
		err = ops->add_group(engine->copy, group->number, group->layout);
	if (!err)
		pin_pages(engine, group);
	return err;
}

static int remove_group(struct ucm_engine *engine, struct ucm_group *group)
{
	const struct ucm_abandon all = { .group = group, .last = UINT64_MAX };
	void *memory;
	size_t len = pages_of(engine, group, &memory);

	ucm_save_abandon_now(engine, &all);
	ucm_load_files_close_group(engine, group);
	if (engine->shared->copy_ops)
		engine->shared->copy_ops->remove_group(engine->copy, group->number);
	if (len)
		ucm_ring_unpin(engine->ring, memory, len);
	return 0;
}

/* What another thread waits for to be done by the engine's. */
struct ucm_engine_call {
	int (*run)(struct ucm_engine *engine, struct ucm_group *group);
	struct ucm_group *group;
	int result;
	bool done;
};

/* Without the lock: to pin an engine's pages may take seconds, and others have
 * tasks for us. Whoever waits for this brings no second call meanwhile. */
static void run_call(struct ucm_engine *engine, struct ucm_engine_call *call)
{
	int result = call->run(engine, call->group);

	pthread_mutex_lock(&engine->lock);
	call->result = result;
	call->done = true;
	pthread_cond_signal(&engine->cond);
	pthread_mutex_unlock(&engine->lock);
}

bool ucm_engine_take_mail(struct ucm_engine *engine)
{
	struct ucm_engine_call *call;
	struct ucm_abandon *abandons;
	struct ucm_part *part;
	bool stopping;

	if (!atomic_exchange(&engine->mail, false))
		return true;
	pthread_mutex_lock(&engine->lock);
	part = engine->inbox;
	abandons = engine->abandons;
	stopping = engine->stopping;
	engine->inbox = NULL;
	engine->abandons = NULL;
	call = engine->call;
	engine->call = NULL;
	pthread_mutex_unlock(&engine->lock);
	if (call)
		run_call(engine, call);
	while (part) {
		struct ucm_part *next = part->next;

		if (part->task->terms.order == UCM_LOAD_LAYERS)
			ucm_load_files_want(engine, part->num_blocks);
		append(part->task->terms.is_save
			       ? &engine->saves
			       : &engine->loads[part->task->terms.priority],
		       part);
		part = next;
	}
	run_abandons(engine, abandons);
	return !stopping;
}

/* ---- from other threads ---- */

void ucm_engine_wake(struct ucm_engine *engine)
{
	ucm_ring_wake(engine->ring);
}

int ucm_engine_join(struct ucm_engine *engine, void *stream)
{
	return engine->shared->copy_ops->join(engine->copy, stream);
}

void ucm_engine_mail(struct ucm_engine *engine)
{
	atomic_store(&engine->mail, true);
	ucm_ring_wake(engine->ring);
}

void ucm_engine_post(struct ucm_engine *engine, struct ucm_part *part)
{
	pthread_mutex_lock(&engine->lock);
	part->number = ++engine->posted;
	append(&engine->inbox, part);
	pthread_mutex_unlock(&engine->lock);
	ucm_engine_mail(engine);
}

void ucm_engine_abandon(struct ucm_engine *engine, struct ucm_abandon *abandon)
{
	pthread_mutex_lock(&engine->lock);
	abandon->last = engine->posted;
	abandon->next = engine->abandons;
	engine->abandons = abandon;
	pthread_mutex_unlock(&engine->lock);
	ucm_engine_mail(engine);
}

static int run_there(struct ucm_engine *engine,
		     int (*run)(struct ucm_engine *, struct ucm_group *),
		     struct ucm_group *group)
{
	struct ucm_engine_call call = { .run = run, .group = group };

	pthread_mutex_lock(&engine->lock);
	engine->call = &call;
	ucm_engine_mail(engine);
	while (!call.done)
		pthread_cond_wait(&engine->cond, &engine->lock);
	pthread_mutex_unlock(&engine->lock);
	return call.result;
}

int ucm_engine_add_group(struct ucm_engine *engine, struct ucm_group *group)
{
	return run_there(engine, add_group, group);
}

void ucm_engine_remove_group(struct ucm_engine *engine,
			     struct ucm_group *group)
{
	run_there(engine, remove_group, group);
}
