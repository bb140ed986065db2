/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loader_submit.c - requests become tasks.
 *
 * A request is checked here as a whole, made a task, and shared out: of loads
 * each block to the engine that has the least to read, saves by their ids, so
 * that one block is always written by one engine.
 */
#include <config.h>

#include "gpu/load/loader.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/error.h"
#include "common/sized.h"
#include "gpu/load/task/abandon.h"

enum kind { LOAD, SAVE, COMMIT };

static int check_request(const struct ucm_group *group,
			 const struct ucm_request *request, enum kind kind,
			 struct ucm_error *error)
{
	uint32_t layers = group->layout->geometry.num_layers;

	if (request->first_layer >= layers ||
	    request->num_layers > layers - request->first_layer)
		return ucm_error_set(error, -EINVAL,
				     "layers %" PRIu32 " + %" PRIu32
				     ": the group has %" PRIu32,
				     request->first_layer, request->num_layers,
				     layers);
	if (request->num_blocks > UINT32_MAX ||
	    (request->num_blocks && !request->blocks))
		return ucm_error_set(error, -EINVAL, "%zu blocks",
				     request->num_blocks);
	if (request->verify > UCM_VERIFY_ONCE ||
	    request->order > UCM_LOAD_LAYERS ||
	    request->priority > UCM_LOAD_PREFETCH ||
	    request->lend > UCM_LEND_ALWAYS)
		return ucm_error_set(error, -EINVAL,
				     "verify %d, order %d, priority %d, lend "
				     "%d: unknown",
				     (int)request->verify, (int)request->order,
				     (int)request->priority,
				     (int)request->lend);
	if (request->addresses || kind == COMMIT)
		return 0;
	for (size_t i = 0; i < request->num_blocks; i++) {
		if (request->blocks[i].page >= group->layout->num_pages)
			return ucm_error_set(error, -EINVAL,
					     "block %zu: page %" PRIu32
					     " of %" PRIu64,
					     i, request->blocks[i].page,
					     group->layout->num_pages);
	}
	return 0;
}

/* ---- shared out ---- */

/* Which engine an id belongs to, for saves; loads find a file open there, if
 * it was asked for before. */
static unsigned home_of(const struct ucm_task *task, size_t block)
{
	uint32_t hash;

	memcpy(&hash, task->blocks[block].id.bytes + 8, sizeof(hash));
	return hash % task->num_parts;
}

/* The one with the least to read; its home, if that has hardly more: to open a
 * file anew costs more than to wait a little longer in a long queue. */
static unsigned least_of(const uint64_t *bytes, const struct ucm_task *task,
			 size_t block)
{
	unsigned home = home_of(task, block), least = home;

	for (unsigned i = 0; i < task->num_parts; i++) {
		if (bytes[i] < bytes[least])
			least = i;
	}
	return bytes[home] - bytes[least] <= bytes[least] / 16 ? home : least;
}

/* The engine of each block, num of them. */
static void choose_engines(struct ucm_loader *loader,
			   const struct ucm_task *task, uint8_t *chosen,
			   unsigned *num)
{
	uint64_t bytes[UCM_LOADER_THREADS];

	for (unsigned i = 0; i < task->num_parts; i++)
		bytes[i] = atomic_load_explicit(&loader->engines[i]->load_bytes,
						memory_order_relaxed);
	for (size_t i = 0; i < task->num_blocks; i++) {
		unsigned engine = task->terms.is_save ? home_of(task, i)
						: least_of(bytes, task, i);

		bytes[engine] += ucm_task_bytes(task);
		chosen[i] = (uint8_t)engine;
		num[engine]++;
	}
}

static int make_parts(struct ucm_loader *loader, struct ucm_task *task,
		      const uint8_t *chosen, const unsigned *num)
{
	task->threads.engines = loader->engines;
	task->threads.wake = ucm_engine_wake;
	if (loader->shared.copy_ops)
		task->threads.join = ucm_engine_join;
	for (unsigned i = 0; i < task->num_parts; i++) {
		struct ucm_part *part = &task->parts[i];

		part->task = task;
		part->blocks = calloc(num[i] ? num[i] : 1,
				      sizeof(*part->blocks));
		if (!part->blocks)
			return -ENOMEM;
	}
	for (size_t i = 0; i < task->num_blocks; i++) {
		struct ucm_part *part = &task->parts[chosen[i]];

		part->blocks[part->num_blocks++] = (uint32_t)i;
	}
	return 0;
}

static int share_out(struct ucm_loader *loader, struct ucm_task *task)
{
	uint8_t *chosen = malloc(task->num_blocks ? task->num_blocks : 1);
	unsigned num[UCM_LOADER_THREADS] = { 0 };
	int err;

	if (!chosen)
		return -ENOMEM;
	choose_engines(loader, task, chosen, num);
	err = make_parts(loader, task, chosen, num);
	free(chosen);
	return err;
}

/* ---- submit ---- */

/* Blocks over the budget of waiting saves are dropped here and now; but a request
 * that finds none waiting is taken as a whole. */
static void admit_saves(struct ucm_shared *shared, struct ucm_task *task)
{
	const struct ucm_outcome dropped = { .err = -ENOBUFS };
	bool alone = !atomic_load(&shared->save_waiting);
	uint64_t bytes = ucm_task_bytes(task);

	for (size_t i = 0; i < task->num_blocks; i++) {
		uint64_t before =
			atomic_fetch_add(&shared->save_waiting, bytes);

		if (alone || before + bytes <= shared->save_budget)
			continue;
		atomic_fetch_sub(&shared->save_waiting, bytes);
		task->blocks[i].dropped = true;
		ucm_task_decide(task, (uint32_t)i, &dropped);
		ucm_add(&shared->stats.save_dropped, 1);
	}
}

static void post(struct ucm_loader *loader, struct ucm_task *task)
{
	ucm_task_get(task); /* it may be done before we are */
	for (unsigned i = 0; i < task->num_parts; i++) {
		if (!task->parts[i].num_blocks)
			continue;
		ucm_task_get(task);
		if (!task->terms.is_save)
			ucm_add(&loader->engines[i]->load_bytes,
				task->parts[i].num_blocks * ucm_task_bytes(task));
		ucm_engine_post(loader->engines[i], &task->parts[i]);
	}
	ucm_task_ready(task);
	ucm_task_put(task);
}

/* What is read or written at a time must fit the staging memory. */
static void fit_staging(const struct ucm_loader *loader,
			const struct ucm_group *group,
			struct ucm_request *request)
{
	uint64_t most = loader->shared.staging_bytes / 4 / group->layer_bytes;

	if (!most)
		most = 1;
	if (request->group_layers > most)
		request->group_layers = (uint32_t)most;
}

/* What is in the write buffer is copied from there. Without memory for that it
 * is read, if its file is there already. */
static void take_buffered(struct ucm_shared *shared, struct ucm_task *task)
{
	task->kept = calloc(task->num_blocks + 1,
			    sizeof(*task->kept));
	for (size_t i = 0; task->kept && i < task->num_blocks; i++)
		task->kept[i] = ucm_buffer_find(shared->buffer,
						shared->buffer_home,
						task->group,
						&task->blocks[i].id);
}

/* Of a request that is whole, for a group that does not go meanwhile. */
static int submit_to(struct ucm_loader *loader, struct ucm_group *group,
		     struct ucm_request *request, enum kind kind,
		     struct ucm_task **out, struct ucm_error *error)
{
	struct ucm_task *task;
	int err = check_request(group, request, kind, error);

	if (err)
		return err;
	if (request->after && !loader->shared.copy_ops)
		return ucm_error_set(error, -EINVAL,
				     "after: pages of the host have no events");
	fit_staging(loader, group, request);
	err = ucm_task_new(request, group, kind != LOAD, loader->num_engines,
			   loader->shared.read_bytes, &task);
	if (!err) {
		err = share_out(loader, task);
		if (err)
			ucm_task_drop(task);
	}
	if (err)
		return ucm_error_set(error, err, "out of memory");
	task->terms.is_commit = kind == COMMIT;
	if (kind == LOAD && ucm_loader_has_buffered(&loader->shared))
		take_buffered(&loader->shared, task);
	if (kind == SAVE)
		admit_saves(&loader->shared, task);
	*out = task; /* before on_done can run */
	post(loader, task);
	return 0;
}

static int submit(struct ucm_loader *loader, const struct ucm_request *request,
		  enum kind kind, struct ucm_task **out,
		  struct ucm_error *error)
{
	struct ucm_request own;
	struct ucm_group *group;
	int err = ucm_sized_take(&own, sizeof(own), request,
				 offsetof(struct ucm_request, addresses),
				 "ucm_request", error);

	if (err)
		return err;
	if (kind == COMMIT) {
		own.first_layer = own.num_layers = 0;
		own.addresses = NULL;
	}
	group = ucm_loader_use_group(loader, own.group);
	if (!group)
		return ucm_error_set(error, -EINVAL, "group %u: unknown",
				     own.group);
	err = submit_to(loader, group, &own, kind, out, error);
	ucm_loader_leave_group(group);
	return err;
}

int ucm_load_submit(struct ucm_loader *loader,
		    const struct ucm_request *request, struct ucm_task **out,
		    struct ucm_error *error)
{
	return submit(loader, request, LOAD, out, error);
}

int ucm_save_submit(struct ucm_loader *loader,
		    const struct ucm_request *request, struct ucm_task **out,
		    struct ucm_error *error)
{
	return submit(loader, request, SAVE, out, error);
}

int ucm_save_commit(struct ucm_loader *loader,
		    const struct ucm_request *request, struct ucm_task **out,
		    struct ucm_error *error)
{
	return submit(loader, request, COMMIT, out, error);
}

void ucm_save_abandon(struct ucm_loader *loader, unsigned group,
		      const struct ucm_id *ids, size_t num)
{
	struct ucm_group *of = NULL;

	if (!ids || num)
		of = ucm_loader_use_group(loader, group);
	if (!of)
		return;
	for (unsigned i = 0; i < loader->num_engines; i++) {
		struct ucm_abandon *abandon =
			ucm_abandon_new(of, ids, ids ? num : 0);

		if (!abandon)
			break; /* they stay until the loader closes */
		ucm_engine_abandon(loader->engines[i], abandon);
	}
	ucm_loader_leave_group(of);
}
