/* SPDX-License-Identifier: Apache-2.0 */
/*
 * touches.c - telling a mount which blocks were read without it.
 *
 * One batch is filled while the thread tells the one before. A call may hang
 * with the daemon: it is the thread's alone; at the close it is waited for a
 * little, and then left to its fate with what it needs.
 */
#include <config.h>

#include "gpu/source/touches.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <ucm/control.h>

#include "common/clock.h"
#include "common/error.h"
#include "hashing/tree.h"

#define TELL_AFTER_S 1
#define CLOSE_WAIT_S 2

struct ucm_touches {
	int fd;
	pthread_t thread;
	pthread_mutex_t lock; /* guards the rest, but told */
	pthread_cond_t cond;
	struct ucm_control_batch *filling;
	bool stopping;
	struct ucm_control_batch *told; /* the thread's */
};

static void free_touches(struct ucm_touches *touches)
{
	if (touches->fd >= 0)
		close(touches->fd);
	pthread_mutex_destroy(&touches->lock);
	pthread_cond_destroy(&touches->cond);
	free(touches->filling);
	free(touches->told);
	free(touches);
}

/* Until there is a full batch, or an older one, or the end. */
static void wait_for_batch(struct ucm_touches *touches)
{
	struct timespec until;

	while (!touches->filling->head.num && !touches->stopping)
		pthread_cond_wait(&touches->cond, &touches->lock);
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += TELL_AFTER_S;
	while (touches->filling->head.num < UCM_CONTROL_IDS &&
	       !touches->stopping &&
	       pthread_cond_timedwait(&touches->cond, &touches->lock, &until) !=
		       ETIMEDOUT)
		;
}

static void *touches_main(void *arg)
{
	struct ucm_touches *touches = arg;
	bool more = true;

	while (more) {
		struct ucm_control_batch *batch;

		pthread_mutex_lock(&touches->lock);
		wait_for_batch(touches);
		more = !touches->stopping;
		batch = touches->filling;
		touches->filling = touches->told;
		touches->filling->head.num = 0;
		touches->told = batch;
		pthread_mutex_unlock(&touches->lock);
		batch->head.version = UCM_CONTROL_VERSION;
		if (batch->head.num &&
		    ioctl(touches->fd, UCM_CONTROL_TOUCH, batch))
			continue; /* the mount has gone, and with it its index */
	}
	return NULL;
}

static int start_thread(struct ucm_touches *touches)
{
	sigset_t all, before;
	int err;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = pthread_create(&touches->thread, NULL, touches_main, touches);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -err;
}

int ucm_touches_open(const char *mount, struct ucm_touches **out,
		     struct ucm_error *error)
{
	struct ucm_touches *touches = calloc(1, sizeof(*touches));
	char path[4096];
	int err = -ENOMEM;

	if (!touches)
		return ucm_error_set(error, -ENOMEM, "out of memory");
	pthread_mutex_init(&touches->lock, NULL);
	ucm_cond_init_monotonic(&touches->cond);
	snprintf(path, sizeof(path), "%s/" UCM_TREE_CONTROL, mount);
	touches->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (touches->fd < 0)
		err = -errno;
	touches->filling = calloc(1, sizeof(*touches->filling));
	touches->told = calloc(1, sizeof(*touches->told));
	if (touches->fd >= 0 && touches->filling && touches->told)
		err = start_thread(touches);
	if (err) {
		free_touches(touches);
		return ucm_error_set(error, err, "%s: %s", path,
				     strerror(-err));
	}
	*out = touches;
	return 0;
}

void ucm_touches_close(struct ucm_touches *touches)
{
	struct timespec until;

	if (!touches)
		return;
	pthread_mutex_lock(&touches->lock);
	touches->stopping = true;
	pthread_cond_signal(&touches->cond);
	pthread_mutex_unlock(&touches->lock);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += CLOSE_WAIT_S;
	if (pthread_timedjoin_np(touches->thread, NULL, &until))
		pthread_detach(touches->thread);
	else
		free_touches(touches);
}

void ucm_touches_add(struct ucm_touches *touches, const char *space,
		     const struct ucm_id *id)
{
	struct ucm_control_batch *batch;

	if (!touches)
		return;
	pthread_mutex_lock(&touches->lock);
	batch = touches->filling;
	if (!batch->head.num)
		snprintf(batch->head.space, sizeof(batch->head.space), "%s",
			 space);
	/* of one space at a time; others wait for their turn in vain */
	if (batch->head.num < UCM_CONTROL_IDS &&
	    !strcmp(batch->head.space, space)) {
		batch->u.ids[batch->head.num++] = *id;
		if (batch->head.num == 1 ||
		    batch->head.num == UCM_CONTROL_IDS)
			pthread_cond_signal(&touches->cond);
	}
	pthread_mutex_unlock(&touches->lock);
}
