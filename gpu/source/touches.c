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

static void free_heat(struct ucm_touches *heat)
{
	if (heat->fd >= 0)
		close(heat->fd);
	pthread_mutex_destroy(&heat->lock);
	pthread_cond_destroy(&heat->cond);
	free(heat->filling);
	free(heat->told);
	free(heat);
}

/* Until there is a full batch, or an older one, or the end. */
static void wait_for_batch(struct ucm_touches *heat)
{
	struct timespec until;

	while (!heat->filling->head.num && !heat->stopping)
		pthread_cond_wait(&heat->cond, &heat->lock);
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += TELL_AFTER_S;
	while (heat->filling->head.num < UCM_CONTROL_IDS && !heat->stopping &&
	       pthread_cond_timedwait(&heat->cond, &heat->lock, &until) !=
		       ETIMEDOUT)
		;
}

static void *heat_main(void *arg)
{
	struct ucm_touches *heat = arg;
	bool more = true;

	while (more) {
		struct ucm_control_batch *batch;

		pthread_mutex_lock(&heat->lock);
		wait_for_batch(heat);
		more = !heat->stopping;
		batch = heat->filling;
		heat->filling = heat->told;
		heat->filling->head.num = 0;
		heat->told = batch;
		pthread_mutex_unlock(&heat->lock);
		batch->head.version = UCM_CONTROL_VERSION;
		if (batch->head.num && ioctl(heat->fd, UCM_CONTROL_TOUCH, batch))
			continue; /* the mount has gone, and with it its index */
	}
	return NULL;
}

static int start_thread(struct ucm_touches *heat)
{
	sigset_t all, before;
	int err;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = pthread_create(&heat->thread, NULL, heat_main, heat);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -err;
}

int ucm_touches_open(const char *mount, struct ucm_touches **out,
		     struct ucm_error *error)
{
	struct ucm_touches *heat = calloc(1, sizeof(*heat));
	char path[4096];
	int err = -ENOMEM;

	if (!heat)
		return ucm_error_set(error, -ENOMEM, "out of memory");
	pthread_mutex_init(&heat->lock, NULL);
	ucm_cond_init_monotonic(&heat->cond);
	snprintf(path, sizeof(path), "%s/" UCM_TREE_CONTROL, mount);
	heat->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (heat->fd < 0)
		err = -errno;
	heat->filling = calloc(1, sizeof(*heat->filling));
	heat->told = calloc(1, sizeof(*heat->told));
	if (heat->fd >= 0 && heat->filling && heat->told)
		err = start_thread(heat);
	if (err) {
		free_heat(heat);
		return ucm_error_set(error, err, "%s: %s", path,
				     strerror(-err));
	}
	*out = heat;
	return 0;
}

void ucm_touches_close(struct ucm_touches *heat)
{
	struct timespec until;

	if (!heat)
		return;
	pthread_mutex_lock(&heat->lock);
	heat->stopping = true;
	pthread_cond_signal(&heat->cond);
	pthread_mutex_unlock(&heat->lock);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += CLOSE_WAIT_S;
	if (pthread_timedjoin_np(heat->thread, NULL, &until))
		pthread_detach(heat->thread);
	else
		free_heat(heat);
}

void ucm_touches_add(struct ucm_touches *heat, const char *space,
		     const struct ucm_id *id)
{
	struct ucm_control_batch *batch;

	if (!heat)
		return;
	pthread_mutex_lock(&heat->lock);
	batch = heat->filling;
	if (!batch->head.num)
		snprintf(batch->head.space, sizeof(batch->head.space), "%s",
			 space);
	/* of one space at a time; others wait for their turn in vain */
	if (batch->head.num < UCM_CONTROL_IDS &&
	    !strcmp(batch->head.space, space)) {
		batch->u.ids[batch->head.num++] = *id;
		if (batch->head.num == 1 ||
		    batch->head.num == UCM_CONTROL_IDS)
			pthread_cond_signal(&heat->cond);
	}
	pthread_mutex_unlock(&heat->lock);
}
