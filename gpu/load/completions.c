/* SPDX-License-Identifier: Apache-2.0 */
/*
 * completions.c - tasks that something has become of and that have not been
 * taken since, in that order. They are done; or, if so asked, copied.
 *
 * A list that is linked through the tasks, so that adding one needs no memory.
 * Its descriptor is readable exactly while the list is not empty: both change
 * under one lock, which is taken with a task's lock held, and never the other
 * way round.
 */
#include <config.h>

#include "gpu/load/completions.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/clock.h"

struct ucm_completions {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	int fd;
	struct ucm_task *first, **end;
};

int ucm_completions_new(struct ucm_completions **out)
{
	struct ucm_completions *queue = calloc(1, sizeof(*queue));

	if (!queue)
		return -ENOMEM;
	queue->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (queue->fd < 0) {
		free(queue);
		return -errno;
	}
	queue->end = &queue->first;
	pthread_mutex_init(&queue->lock, NULL);
	ucm_cond_init_monotonic(&queue->cond);
	*out = queue;
	return 0;
}

void ucm_completions_free(struct ucm_completions *queue)
{
	if (!queue)
		return;
	close(queue->fd);
	pthread_mutex_destroy(&queue->lock);
	pthread_cond_destroy(&queue->cond);
	free(queue);
}

int ucm_completions_fd(const struct ucm_completions *queue)
{
	return queue->fd;
}

/* An eventfd refuses nothing of this: it holds 0 or 1. */
static void show(struct ucm_completions *queue, bool is_readable)
{
	uint64_t count = 1;
	ssize_t done = is_readable ? write(queue->fd, &count, sizeof(count))
				   : read(queue->fd, &count, sizeof(count));

	(void)done;
}

static void append(struct ucm_completions *queue, struct ucm_task *task)
{
	if (!queue->first)
		show(queue, true);
	task->completed_next = NULL;
	task->is_completed = true;
	*queue->end = task;
	queue->end = &task->completed_next;
	pthread_cond_signal(&queue->cond);
}

void ucm_completions_add(struct ucm_task *task)
{
	struct ucm_completions *queue = task->completions;

	pthread_mutex_lock(&queue->lock);
	if (!task->is_completed)
		append(queue, task);
	pthread_mutex_unlock(&queue->lock);
}

static struct ucm_task *pop(struct ucm_completions *queue)
{
	struct ucm_task *task = queue->first;

	queue->first = task->completed_next;
	task->is_completed = false;
	if (!queue->first) {
		queue->end = &queue->first;
		show(queue, false);
	}
	return task;
}

void ucm_completions_remove(struct ucm_task *task)
{
	struct ucm_completions *queue = task->completions;
	struct ucm_task **at = &queue->first;

	pthread_mutex_lock(&queue->lock);
	if (task->is_completed) {
		while (*at != task)
			at = &(*at)->completed_next;
		*at = task->completed_next;
		if (!*at)
			queue->end = at;
		if (!queue->first)
			show(queue, false);
	}
	pthread_mutex_unlock(&queue->lock);
}

static void wait_for_one(struct ucm_completions *queue, int timeout_ms)
{
	struct timespec until = ucm_monotonic_in_ms(timeout_ms);
	int err = 0;

	while (!queue->first && !err) {
		if (timeout_ms < 0)
			pthread_cond_wait(&queue->cond, &queue->lock);
		else
			err = pthread_cond_timedwait(&queue->cond,
						     &queue->lock, &until);
	}
}

size_t ucm_completions_take(struct ucm_completions *queue,
			    struct ucm_task **tasks, size_t most,
			    int timeout_ms)
{
	size_t num = 0;

	pthread_mutex_lock(&queue->lock);
	if (timeout_ms && most)
		wait_for_one(queue, timeout_ms);
	while (num < most && queue->first)
		tasks[num++] = pop(queue);
	pthread_mutex_unlock(&queue->lock);
	return num;
}
