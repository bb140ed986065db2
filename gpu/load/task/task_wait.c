/* SPDX-License-Identifier: Apache-2.0 */
/*
 * task_wait.c - a task on the caller's side: waiting, cancelling, outcomes.
 *
 * A waiter announces itself before it looks, a counter looks for waiters after it
 * has counted (task.c); both are sequentially consistent, so that one of them sees
 * the other.
 */
#include <config.h>

#include "gpu/load/task/task.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "gpu/load/task/completions.h"

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
	if (counter == &task->left.lent)
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
	while (!err && !is_reached(task, counter))
		err = ucm_cond_wait(&task->cond, &task->lock, timeout_ms,
				    &until);
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

	if (task->terms.is_save || layer < task->terms.first_layer ||
	    layer >= task->terms.end_layer)
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
	return wait_for(task, &task->left.cut_unsettled[cut], timeout_ms);
}

/* Of the threads that have copied something. */
static int join_engines(struct ucm_task *task, void *stream)
{
	int err = 0;

	for (unsigned i = 0; i < task->num_parts && !err; i++) {
		if (task->parts[i].num_blocks)
			err = task->threads.join(task->threads.engines[i], stream);
	}
	return err;
}

int ucm_task_wait_stream(struct ucm_task *task, uint32_t layer, void *stream,
			 int timeout_ms)
{
	bool all = layer == UCM_ALL_LAYERS;
	uint32_t cut = 0;
	int err, joined;

	if (!task->threads.join || task->terms.is_save ||
	    (!all && !find_cut(task, layer, &cut)))
		return -EINVAL;
	err = wait_for(task,
		       all ? &task->left.unqueued
			   : &task->left.cut_unqueued[cut],
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
	if (!task->terms.is_save)
		return -EINVAL;
	return wait_for(task, &task->left.uncopied, timeout_ms);
}

int ucm_task_wait_returned(struct ucm_task *task, int timeout_ms)
{
	return wait_for(task, &task->left.lent, timeout_ms);
}

/* With the lock, so that whoever sees that nothing is may free the task. */
size_t ucm_task_num_lent(const struct ucm_task *task)
{
	pthread_mutex_t *lock = (pthread_mutex_t *)&task->lock;
	size_t num;

	pthread_mutex_lock(lock);
	num = atomic_load(&task->left.lent);
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
		task->threads.wake(task->threads.engines[i]);
}

void *ucm_task_arg(const struct ucm_task *task)
{
	return task->end.arg;
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
	wait_for(task, &task->left.lent, -1);
	if (task->end.completions)
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
