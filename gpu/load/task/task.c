/* SPDX-License-Identifier: Apache-2.0 */
/*
 * task.c - what a caller has asked for, and how far it is.
 *
 * Waiting is rare and counting is frequent: the counters are atomic, and the
 * lock is taken only when somebody waits (task_wait.c) or the task ends.
 */
#include <config.h>

#include "gpu/load/task/buffer.h"
#include "gpu/load/task/task.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/profile.h"
#include "gpu/layout/plan.h"
#include "gpu/load/task/completions.h"

/* The longest read in the order of layers, unless the caller says how many
 * layers. */
#define LAYERS_READ ((uint64_t)512 << 10)

static void task_free(struct ucm_task *task)
{
	if (!atomic_load(&task->done))
		atomic_fetch_sub(&task->group->tasks, 1);
	ucm_group_put(task->group);
	for (unsigned i = 0; i < task->num_parts; i++)
		free(task->parts[i].blocks);
	for (size_t i = 0; task->kept && i < task->num_blocks; i++)
		ucm_buffered_put(task->kept[i]);
	free(task->kept);
	free(task->blocks);
	free(task->outcomes);
	free(task->terms.parents);
	free(task->offer.answers);
	free(task->terms.addresses);
	free(task->cuts);
	free(task->left.cut_unsettled);
	free(task->left.cut_unqueued);
	pthread_mutex_destroy(&task->lock);
	pthread_cond_destroy(&task->cond);
	free(task);
}

static int copy_blocks(struct ucm_task *task, const struct ucm_request *request)
{
	size_t num = request->num_blocks;

	task->blocks = calloc(num ? num : 1, sizeof(*task->blocks));
	task->outcomes = calloc(num ? num : 1, sizeof(*task->outcomes));
	if (!task->blocks || !task->outcomes)
		return -ENOMEM;
	for (size_t i = 0; i < num; i++) {
		task->blocks[i].id = request->blocks[i].id;
		task->blocks[i].page = request->blocks[i].page;
		task->blocks[i].unsettled = task->num_cuts;
		task->outcomes[i].err = -EINPROGRESS;
	}
	task->num_blocks = num;
	atomic_init(&task->left.blocks, num);
	atomic_init(&task->left.uncopied, task->terms.is_save ? num : 0);
	return 0;
}

static int copy_array(const void *from, size_t bytes, void *out)
{
	void *copy;

	if (!from)
		return 0;
	copy = malloc(bytes ? bytes : 1);
	if (!copy)
		return -ENOMEM;
	memcpy(copy, from, bytes);
	*(void **)out = copy;
	return 0;
}

static int copy_extras(struct ucm_task *task, const struct ucm_request *request)
{
	const uint32_t *first = task->group->layout->layer_first;
	size_t num = request->num_blocks;
	uint64_t each = first[task->terms.end_layer] -
			first[task->terms.first_layer];

	return copy_array(request->addresses, num * each * sizeof(uint64_t),
			  &task->terms.addresses)
		?: copy_array(request->parents, num * sizeof(*request->parents),
			      &task->terms.parents);
}

/* See ucm_plan_cuts(). */
static uint32_t plan_cuts(const struct ucm_task *task, uint64_t read_bytes,
			  uint32_t group_layers, uint32_t *cuts)
{
	uint64_t layer_bytes = task->group->layer_bytes;

	/* a save is one piece: its writes are cut by save.c */
	if (task->terms.is_save)
		group_layers = task->terms.end_layer - task->terms.first_layer;
	else if (task->terms.order == UCM_LOAD_BLOCKS)
		group_layers = 0;
	else if (!group_layers)
		return ucm_plan_growing(layer_bytes, task->terms.first_layer,
					task->terms.end_layer,
					read_bytes < LAYERS_READ ? read_bytes
								 : LAYERS_READ,
					cuts);
	return ucm_plan_cuts(layer_bytes, task->terms.first_layer,
			     task->terms.end_layer, read_bytes, group_layers,
			     cuts);
}

static int cut_layers(struct ucm_task *task, const struct ucm_request *request,
		      uint64_t read_bytes)
{
	uint32_t num = plan_cuts(task, read_bytes, request->group_layers, NULL);

	task->cuts = calloc(num + 1, sizeof(*task->cuts));
	task->left.cut_unsettled = calloc(num, sizeof(*task->left.cut_unsettled));
	task->left.cut_unqueued = calloc(num, sizeof(*task->left.cut_unqueued));
	if (!task->cuts || !task->left.cut_unsettled || !task->left.cut_unqueued)
		return -ENOMEM;
	plan_cuts(task, read_bytes, request->group_layers, task->cuts);
	task->num_cuts = num;
	for (uint32_t i = 0; i < num; i++) {
		atomic_init(&task->left.cut_unsettled[i], request->num_blocks);
		atomic_init(&task->left.cut_unqueued[i], request->num_blocks);
	}
	atomic_init(&task->left.unqueued, num * request->num_blocks);
	return 0;
}

/* But for the arrays. */
static struct ucm_terms terms_of(const struct ucm_request *request,
				 const struct ucm_group *group, bool is_save)
{
	uint32_t end = request->num_layers
			       ? request->first_layer + request->num_layers
			       : group->layout->geometry.num_layers;
	int64_t deadline_ns = (int64_t)request->deadline_ms * 1000000;

	return (struct ucm_terms){
		.is_save = is_save,
		.hold = request->hold,
		.may_refuse = request->may_refuse,
		.tell_copied = request->completions && request->tell_copied,
		.first_layer = request->first_layer,
		.end_layer = end,
		.verify = request->verify,
		.order = request->order,
		.priority = request->priority,
		.lend = request->lend,
		.deadline_ns =
			deadline_ns ? ucm_monotonic_ns() + deadline_ns : 0,
		.begin_ns = ucm_profile_begin(),
		.after = request->after,
	};
}

int ucm_task_new(const struct ucm_request *request,
		 struct ucm_group *group, bool is_save,
		 unsigned num_parts, uint64_t read_bytes, struct ucm_task **out)
{
	struct ucm_task *task =
		calloc(1, sizeof(*task) + num_parts * sizeof(task->parts[0]));
	int err;

	if (!task)
		return -ENOMEM;
	atomic_init(&task->refs, 1);
	task->group = group;
	ucm_group_get(group);
	atomic_fetch_add(&group->tasks, 1);
	task->terms = terms_of(request, group, is_save);
	task->end = (struct ucm_task_end){
		.completions = request->completions,
		.eventfd = request->eventfd,
		.on_done = request->on_done,
		.arg = request->arg,
	};
	atomic_init(&task->released, !request->after);
	task->num_parts = num_parts;
	pthread_mutex_init(&task->lock, NULL);
	ucm_cond_init_monotonic(&task->cond);
	err = cut_layers(task, request, read_bytes)
		?: copy_blocks(task, request)
		?: copy_extras(task, request);
	if (err) {
		task_free(task);
		return err;
	}
	*out = task;
	return 0;
}

void ucm_task_drop(struct ucm_task *task)
{
	if (atomic_fetch_sub(&task->refs, 1) == 1)
		task_free(task);
}

/* All of the loader's are one of the task's. */
void ucm_task_get(struct ucm_task *task)
{
	if (atomic_fetch_add(&task->working, 1))
		return;
	atomic_fetch_add(&task->refs, 1);
	atomic_fetch_add(&task->group->users, 1);
}

void ucm_task_put(struct ucm_task *task)
{
	if (atomic_fetch_sub(&task->working, 1) > 1)
		return;
	atomic_fetch_sub(&task->group->users, 1);
	ucm_task_drop(task);
}

/* ---- counting ---- */

static void tell_waiters(struct ucm_task *task)
{
	if (!atomic_load(&task->waiters))
		return;
	pthread_mutex_lock(&task->lock);
	pthread_cond_broadcast(&task->cond);
	pthread_mutex_unlock(&task->lock);
}

void ucm_task_decide(struct ucm_task *task, uint32_t block,
		     const struct ucm_outcome *outcome)
{
	struct ucm_outcome *mine = &task->outcomes[block];

	if (mine->err != -EINPROGRESS)
		return;
	mine->fault = outcome->fault;
	mine->skipped = outcome->skipped;
	mine->refused = outcome->refused;
	mine->plane = outcome->plane;
	if (outcome->err)
		atomic_fetch_add(&task->failed, 1);
	__atomic_store_n(&mine->err, outcome->err, __ATOMIC_RELEASE);
}

/* It is done, or all that it had lent is the caller's again. Under its lock. */
static void announce(struct ucm_task *task)
{
	uint64_t one = 1;
	ssize_t told = 0;

	/* an eventfd only refuses when its counter is full: it is readable */
	if (task->end.eventfd > 0)
		told = write(task->end.eventfd, &one, sizeof(one));
	(void)told;
	if (task->end.completions)
		ucm_completions_add(task);
	pthread_cond_broadcast(&task->cond);
}

/*
 * The caller may free the task as soon as it sees that it is done: we hold a
 * reference of our own. And it may close the eventfd: so that is written to
 * under the lock, which everybody takes who sees that it is done.
 */
static void finish(struct ucm_task *task)
{
	ucm_profile_end((struct ucm_profile_event){
		UCM_PROFILE_TASK, task->failed ? -EIO : 0,
		task->terms.is_commit ? "commit" : task->terms.is_save ? "save"
								       : "load",
		task->terms.begin_ns,
		(int64_t)(task->num_blocks * ucm_task_bytes(task)),
		.blocks = task->num_blocks,
		.good = task->num_blocks - task->failed,
		.pieces = task->num_blocks * task->num_cuts });
	if (task->end.on_done)
		task->end.on_done(task->end.arg, task);
	pthread_mutex_lock(&task->lock);
	atomic_fetch_sub(&task->group->tasks, 1);
	atomic_store(&task->done, true);
	announce(task);
	pthread_mutex_unlock(&task->lock);
}

void ucm_task_ready(struct ucm_task *task)
{
	if (!task->num_blocks)
		finish(task);
}

bool ucm_task_settle(struct ucm_task *task, uint32_t block, uint32_t cut)
{
	bool last = !--task->blocks[block].unsettled;

	if (last)
		ucm_task_decide(task, block, &(struct ucm_outcome){ 0 });
	if (atomic_fetch_sub(&task->left.cut_unsettled[cut], 1) == 1)
		tell_waiters(task);
	if (last && atomic_fetch_sub(&task->left.blocks, 1) == 1)
		finish(task);
	return last;
}

void ucm_task_lend(struct ucm_task *task, uint32_t block)
{
	pthread_mutex_lock(&task->lock);
	if (!task->blocks[block].lent++)
		atomic_fetch_add(&task->left.lent, 1);
	pthread_mutex_unlock(&task->lock);
}

void ucm_task_return(struct ucm_task *task, uint32_t block)
{
	pthread_mutex_lock(&task->lock);
	if (!--task->blocks[block].lent &&
	    atomic_fetch_sub(&task->left.lent, 1) == 1 && atomic_load(&task->done))
		announce(task);
	pthread_mutex_unlock(&task->lock);
}

void ucm_task_queued(struct ucm_task *task, uint32_t cut)
{
	bool last = atomic_fetch_sub(&task->left.cut_unqueued[cut], 1) == 1;

	if (atomic_fetch_sub(&task->left.unqueued, 1) == 1 || last)
		tell_waiters(task);
}

void ucm_task_copied(struct ucm_task *task)
{
	if (atomic_fetch_sub(&task->left.uncopied, 1) != 1)
		return;
	tell_waiters(task);
	if (!task->terms.tell_copied)
		return;
	pthread_mutex_lock(&task->lock);
	if (!atomic_load(&task->done)) /* else it may be leaving the queue */
		ucm_completions_add(task);
	pthread_mutex_unlock(&task->lock);
}
