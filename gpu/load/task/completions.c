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

#include "gpu/load/task/completions.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/clock.h"

struct ucm_completions {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	int fd;
	TAILQ_HEAD(, ucm_task) tasks;
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
	TAILQ_INIT(&queue->tasks);
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
	if (TAILQ_EMPTY(&queue->tasks))
		show(queue, true);
	task->end.is_completed = true;
	TAILQ_INSERT_TAIL(&queue->tasks, task, end.in_completed);
	pthread_cond_signal(&queue->cond);
}

void ucm_completions_add(struct ucm_task *task)
{
	struct ucm_completions *queue = task->end.completions;

	pthread_mutex_lock(&queue->lock);
	if (!task->end.is_completed)
		append(queue, task);
	pthread_mutex_unlock(&queue->lock);
}

static void take_out(struct ucm_completions *queue, struct ucm_task *task)
{
	TAILQ_REMOVE(&queue->tasks, task, end.in_completed);
	task->end.is_completed = false;
	if (TAILQ_EMPTY(&queue->tasks))
		show(queue, false);
}

void ucm_completions_remove(struct ucm_task *task)
{
	struct ucm_completions *queue = task->end.completions;

	pthread_mutex_lock(&queue->lock);
	if (task->end.is_completed)
		take_out(queue, task);
	pthread_mutex_unlock(&queue->lock);
}

static void wait_for_one(struct ucm_completions *queue, int timeout_ms)
{
	struct timespec until = ucm_monotonic_in_ms(timeout_ms);
	int err = 0;

	while (TAILQ_EMPTY(&queue->tasks) && !err)
		err = ucm_cond_wait(&queue->cond, &queue->lock, timeout_ms,
				    &until);
}

size_t ucm_completions_take(struct ucm_completions *queue,
			    struct ucm_task **tasks, size_t most,
			    int timeout_ms)
{
	size_t num = 0;

	pthread_mutex_lock(&queue->lock);
	if (timeout_ms && most)
		wait_for_one(queue, timeout_ms);
	while (num < most && !TAILQ_EMPTY(&queue->tasks)) {
		tasks[num] = TAILQ_FIRST(&queue->tasks);
		take_out(queue, tasks[num++]);
	}
	pthread_mutex_unlock(&queue->lock);
	return num;
}
