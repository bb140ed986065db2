/* SPDX-License-Identifier: Apache-2.0 */
/*
 * task.c - what a caller has asked for, and how far it is.
 *
 * Waiting is rare and counting is frequent: the counters are atomic, and the
 * lock is taken only when somebody waits or the task ends. A waiter announces
 * itself before it looks, a counter looks for waiters after it has counted;
 * both are sequentially consistent, so that one of them sees the other.
 */
#include <config.h>

#include <errno.h>

#include "gpu/load/buffer.h"
#include "gpu/load/task.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/clock.h"
#include "gpu/layout/plan.h"
#include "gpu/load/completions.h"

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
	free(task->parents);
	free(task->answers);
	free(task->addresses);
	free(task->cuts);
	free(task->cut_unsettled);
	free(task->cut_unqueued);
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
	atomic_init(&task->blocks_left, num);
	atomic_init(&task->uncopied, task->is_save ? num : 0);
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
	const uint32_t *layer_first = task->group->layout->layer_first;
	size_t num = request->num_blocks;
	int err;

	task->num_addresses =
		layer_first[task->end_layer] - layer_first[task->first_layer];
	err = copy_array(request->addresses,
			 num * task->num_addresses * sizeof(uint64_t),
			 &task->addresses);
	if (!err)
		err = copy_array(request->parents,
				 num * sizeof(*request->parents),
				 &task->parents);
	return err;
}

/* See ucm_plan_cuts(). */
static uint32_t plan_cuts(const struct ucm_task *task, uint64_t read_bytes,
			  uint32_t group_layers, uint32_t multiple,
			  uint32_t *cuts)
{
	uint64_t layer_bytes = task->group->layer_bytes;

	/* a save is one piece: its writes are cut by save.c */
	if (task->is_save)
		group_layers = task->end_layer - task->first_layer;
	else if (task->order == UCM_LOAD_BLOCKS)
		group_layers = 0;
	else if (!group_layers)
		return ucm_plan_growing(layer_bytes, task->first_layer,
					task->end_layer,
					read_bytes < LAYERS_READ ? read_bytes
								 : LAYERS_READ,
					multiple, cuts);
	return ucm_plan_cuts(layer_bytes, task->first_layer, task->end_layer,
			     read_bytes, group_layers, multiple, cuts);
}

static int cut_layers(struct ucm_task *task, const struct ucm_request *request,
		      uint64_t read_bytes, uint32_t multiple)
{
	uint32_t num = plan_cuts(task, read_bytes, request->group_layers,
				 multiple, NULL);

	task->cuts = calloc(num + 1, sizeof(*task->cuts));
	task->cut_unsettled = calloc(num, sizeof(*task->cut_unsettled));
	task->cut_unqueued = calloc(num, sizeof(*task->cut_unqueued));
	if (!task->cuts || !task->cut_unsettled || !task->cut_unqueued)
		return -ENOMEM;
	plan_cuts(task, read_bytes, request->group_layers, multiple,
		  task->cuts);
	task->num_cuts = num;
	for (uint32_t i = 0; i < num; i++) {
		atomic_init(&task->cut_unsettled[i], request->num_blocks);
		atomic_init(&task->cut_unqueued[i], request->num_blocks);
	}
	atomic_init(&task->unqueued, num * request->num_blocks);
	return 0;
}

int ucm_task_new(const struct ucm_request *request,
		 struct ucm_group *group, bool is_save,
		 unsigned num_parts, uint64_t read_bytes, uint32_t multiple,
		 struct ucm_task **out)
{
	struct ucm_task *task =
		calloc(1, sizeof(*task) + num_parts * sizeof(task->parts[0]));
	int err;

	if (!task)
		return -ENOMEM;
	atomic_init(&task->refs, 1);
	task->is_save = is_save;
	task->group = group;
	ucm_group_get(group);
	atomic_fetch_add(&group->tasks, 1);
	task->first_layer = request->first_layer;
	task->end_layer = request->num_layers
				  ? request->first_layer + request->num_layers
				  : group->layout->geometry.num_layers;
	task->verify = request->verify;
	task->order = request->order;
	task->priority = request->priority;
	task->lend = request->lend;
	task->hold = request->hold;
	task->may_refuse = request->may_refuse;
	task->tell_copied = request->completions && request->tell_copied;
	if (request->deadline_ms)
		task->deadline_ns = ucm_monotonic_ns() +
				    (int64_t)request->deadline_ms * 1000000;
	task->after = request->after;
	atomic_init(&task->released, !request->after);
	task->completions = request->completions;
	task->eventfd = request->eventfd;
	task->on_done = request->on_done;
	task->arg = request->arg;
	task->num_parts = num_parts;
	pthread_mutex_init(&task->lock, NULL);
	ucm_cond_init_monotonic(&task->cond);
	err = cut_layers(task, request, read_bytes, multiple);
	if (!err)
		err = copy_blocks(task, request);
	if (!err)
		err = copy_extras(task, request);
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
	if (task->eventfd > 0)
		told = write(task->eventfd, &one, sizeof(one));
	(void)told;
	if (task->completions)
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
	if (task->on_done)
		task->on_done(task->arg, task);
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
	static const struct ucm_outcome well = { .err = 0 };
	bool last = !--task->blocks[block].unsettled;

	if (last)
		ucm_task_decide(task, block, &well);
	if (atomic_fetch_sub(&task->cut_unsettled[cut], 1) == 1)
		tell_waiters(task);
	if (last && atomic_fetch_sub(&task->blocks_left, 1) == 1)
		finish(task);
	return last;
}

void ucm_task_lend(struct ucm_task *task, uint32_t block)
{
	pthread_mutex_lock(&task->lock);
	if (!task->blocks[block].lent++)
		atomic_fetch_add(&task->lent, 1);
	pthread_mutex_unlock(&task->lock);
}

void ucm_task_return(struct ucm_task *task, uint32_t block)
{
	pthread_mutex_lock(&task->lock);
	if (!--task->blocks[block].lent &&
	    atomic_fetch_sub(&task->lent, 1) == 1 && atomic_load(&task->done))
		announce(task);
	pthread_mutex_unlock(&task->lock);
}

void ucm_task_queued(struct ucm_task *task, uint32_t cut)
{
	bool last = atomic_fetch_sub(&task->cut_unqueued[cut], 1) == 1;

	if (atomic_fetch_sub(&task->unqueued, 1) == 1 || last)
		tell_waiters(task);
}

void ucm_task_copied(struct ucm_task *task)
{
	if (atomic_fetch_sub(&task->uncopied, 1) != 1)
		return;
	tell_waiters(task);
	if (!task->tell_copied)
		return;
	pthread_mutex_lock(&task->lock);
	if (!atomic_load(&task->done)) /* else it may be leaving the queue */
		ucm_completions_add(task);
	pthread_mutex_unlock(&task->lock);
}

/* ---- the caller's side ---- */

bool ucm_task_done(const struct ucm_task *task)
{
	pthread_mutex_t *lock = (pthread_mutex_t *)&task->lock;

	if (!atomic_load(&task->done))
		return false;
	pthread_mutex_lock(lock); /* see finish() */
	pthread_mutex_unlock(lock);
	return true;
}

/* Of a task that is not done more may be lent. */
static bool is_reached(const struct ucm_task *task,
		       const _Atomic uint64_t *counter)
{
	if (counter == &task->lent)
		return atomic_load(&task->done) && !atomic_load(counter);
	return atomic_load(&task->done) || (counter && !atomic_load(counter));
}

/* Wait until *counter is 0, or the task is done; for lent: until both. */
static int wait_for(struct ucm_task *task, const _Atomic uint64_t *counter,
		    int timeout_ms)
{
	struct timespec until = ucm_monotonic_in_ms(timeout_ms);
	int err = 0;

	atomic_fetch_add(&task->waiters, 1);
	pthread_mutex_lock(&task->lock);
	while (!err && !is_reached(task, counter)) {
		if (timeout_ms < 0)
			pthread_cond_wait(&task->cond, &task->lock);
		else
			err = pthread_cond_timedwait(&task->cond, &task->lock,
						     &until);
	}
	if (is_reached(task, counter))
		err = 0;
	pthread_mutex_unlock(&task->lock);
	atomic_fetch_sub(&task->waiters, 1);
	if (err)
		return -ETIMEDOUT;
	return atomic_load(&task->failed) ? -EIO : 0;
}

int ucm_task_wait(struct ucm_task *task, int timeout_ms)
{
	return wait_for(task, NULL, timeout_ms);
}

static bool find_cut(const struct ucm_task *task, uint32_t layer,
		     uint32_t *out)
{
	uint32_t cut = 0;

	if (task->is_save || layer < task->first_layer ||
	    layer >= task->end_layer)
		return false;
	while (layer >= task->cuts[cut + 1])
		cut++;
	*out = cut;
	return true;
}

int ucm_task_wait_layer(struct ucm_task *task, uint32_t layer, int timeout_ms)
{
	uint32_t cut;

	if (!find_cut(task, layer, &cut))
		return -EINVAL;
	return wait_for(task, &task->cut_unsettled[cut], timeout_ms);
}

/* Of the threads that have copied something. */
static int join_engines(struct ucm_task *task, void *stream)
{
	int err = 0;

	for (unsigned i = 0; i < task->num_parts && !err; i++) {
		if (task->parts[i].num_blocks)
			err = task->join(task->engines[i], stream);
	}
	return err;
}

int ucm_task_wait_stream(struct ucm_task *task, uint32_t layer, void *stream,
			 int timeout_ms)
{
	bool all = layer == UCM_ALL_LAYERS;
	uint32_t cut = 0;
	int err, joined;

	if (!task->join || task->is_save ||
	    (!all && !find_cut(task, layer, &cut)))
		return -EINVAL;
	err = wait_for(task, all ? &task->unqueued : &task->cut_unqueued[cut],
		       timeout_ms);
	if (err == -ETIMEDOUT)
		return err;
	joined = join_engines(task, stream);
	if (joined) /* not to be taken for a block that has failed */
		return joined == -EBUSY ? joined : -ENODEV;
	return err;
}

int ucm_task_wait_copied(struct ucm_task *task, int timeout_ms)
{
	if (!task->is_save)
		return -EINVAL;
	return wait_for(task, &task->uncopied, timeout_ms);
}

int ucm_task_wait_returned(struct ucm_task *task, int timeout_ms)
{
	return wait_for(task, &task->lent, timeout_ms);
}

/* With the lock, so that whoever sees that nothing is may free the task. */
size_t ucm_task_num_lent(const struct ucm_task *task)
{
	pthread_mutex_t *lock = (pthread_mutex_t *)&task->lock;
	size_t num;

	pthread_mutex_lock(lock);
	num = atomic_load(&task->lent);
	pthread_mutex_unlock(lock);
	return num;
}

bool ucm_task_is_lent(const struct ucm_task *task, size_t block)
{
	pthread_mutex_t *lock = (pthread_mutex_t *)&task->lock;
	bool lent = false;

	pthread_mutex_lock(lock);
	if (block < task->num_blocks)
		lent = task->blocks[block].lent;
	pthread_mutex_unlock(lock);
	return lent;
}

void ucm_task_cancel(struct ucm_task *task)
{
	atomic_store(&task->cancelled, true);
	for (unsigned i = 0; i < task->num_parts; i++)
		task->wake(task->engines[i]);
}

void *ucm_task_arg(const struct ucm_task *task)
{
	return task->arg;
}

const struct ucm_outcome *ucm_task_outcomes(const struct ucm_task *task)
{
	return task->outcomes;
}

size_t ucm_task_num_failed(const struct ucm_task *task)
{
	return atomic_load(&task->failed);
}

void ucm_task_free(struct ucm_task *task)
{
	if (!task)
		return;
	if (!ucm_task_done(task))
		ucm_task_cancel(task);
	wait_for(task, &task->lent, -1);
	if (task->completions)
		ucm_completions_remove(task);
	ucm_task_drop(task);
}

void ucm_outcome_text(const struct ucm_outcome *outcome, char *text, size_t len)
{
	const char *fault = ucm_fault_text((enum ucm_fault)outcome->fault);

	if (outcome->err == -EBADMSG && outcome->fault == UCM_FAULT_PLANE)
		snprintf(text, len, "layer %u %c: %s", outcome->plane / 2,
			 outcome->plane & 1 ? 'V' : 'K', fault);
	else if (outcome->err == -EBADMSG)
		snprintf(text, len, "%s", fault);
	else if (outcome->err == -ENOENT)
		snprintf(text, len, "absent");
	else if (outcome->err == -EINPROGRESS)
		snprintf(text, len, "not done yet");
	else if (outcome->skipped)
		snprintf(text, len, "was there already");
	else if (outcome->refused)
		snprintf(text, len, "refused");
	else
		snprintf(text, len, "%s",
			 outcome->err ? strerror(-outcome->err) : "ok");
}
