/* SPDX-License-Identifier: Apache-2.0 */
/*
 * node_watch.c - looking again for a mount's budget; see node_watch.h.
 *
 *	idle --- asked ---> looks --- a mount answers ---> found --- taken ---> idle
 *	  ^-------------------'  there is none
 *
 * A look may hang with the daemon. At the close it is waited for a little, and
 * then the thread is left alone with all that it needs, which it frees if it ends
 * after all.
 */
#include <config.h>

#include "gpu/load/node_watch.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CLOSE_WAIT_S 2

struct ucm_node_watch {
	char *mount;
	pthread_t thread; /* from the first look on: most daemons live on */
	bool started;
	pthread_mutex_t lock; /* guards the rest */
	pthread_cond_t wake;
	enum { IDLE, LOOKS, FOUND } state;
	struct ucm_node_budget found;
	bool stopping;
	bool left;  /* the thread frees it */
	bool ended; /* the thread does not look at it any more */
};

int (*ucm_node_watch_opens)(const char *mount, struct ucm_node_budget *out) =
	ucm_node_budget_open;

static void free_watch(struct ucm_node_watch *watch)
{
	if (watch->state == FOUND)
		ucm_node_budget_close(&watch->found);
	pthread_mutex_destroy(&watch->lock);
	pthread_cond_destroy(&watch->wake);
	free(watch->mount);
	free(watch);
}

struct ucm_node_watch *ucm_node_watch_open(const char *mount)
{
	struct ucm_node_watch *watch = calloc(1, sizeof(*watch));

	if (!watch)
		return NULL;
	pthread_mutex_init(&watch->lock, NULL);
	pthread_cond_init(&watch->wake, NULL);
	watch->mount = strdup(mount);
	if (watch->mount)
		return watch;
	free_watch(watch);
	return NULL;
}

static void *watch_main(void *arg)
{
	struct ucm_node_watch *watch = arg;
	struct ucm_node_budget region;
	bool left;
	int err;

	pthread_mutex_lock(&watch->lock);
	while (!watch->stopping) {
		if (watch->state != LOOKS) {
			pthread_cond_wait(&watch->wake, &watch->lock);
			continue;
		}
		pthread_mutex_unlock(&watch->lock);
		err = ucm_node_watch_opens(watch->mount, &region);
		pthread_mutex_lock(&watch->lock);
		watch->state = err ? IDLE : FOUND;
		if (!err)
			watch->found = region;
	}
	watch->ended = true;
	left = watch->left;
	pthread_mutex_unlock(&watch->lock);
	if (left)
		free_watch(watch);
	return NULL;
}

/* Signals are the program's business, not this thread's. */
static bool start_thread(struct ucm_node_watch *watch)
{
	sigset_t all, before;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	watch->started = !pthread_create(&watch->thread, NULL, watch_main,
					 watch);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return watch->started;
}

/* False: it has ended just now. */
static bool leave_thread(struct ucm_node_watch *watch)
{
	pthread_t thread = watch->thread;
	bool left;

	pthread_mutex_lock(&watch->lock);
	left = watch->left = !watch->ended;
	pthread_mutex_unlock(&watch->lock);
	if (left)
		pthread_detach(thread);
	return left;
}

void ucm_node_watch_close(struct ucm_node_watch *watch)
{
	struct timespec until;

	if (!watch)
		return;
	if (!watch->started) {
		free_watch(watch);
		return;
	}
	pthread_mutex_lock(&watch->lock);
	watch->stopping = true;
	pthread_cond_signal(&watch->wake);
	pthread_mutex_unlock(&watch->lock);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += CLOSE_WAIT_S;
	if (pthread_timedjoin_np(watch->thread, NULL, &until)) {
		if (leave_thread(watch))
			return;
		pthread_join(watch->thread, NULL);
	}
	free_watch(watch);
}

void ucm_node_watch_ask(struct ucm_node_watch *watch)
{
	if (!watch->started && !start_thread(watch))
		return; /* no threads just now */
	pthread_mutex_lock(&watch->lock);
	if (watch->state == IDLE) {
		watch->state = LOOKS;
		pthread_cond_signal(&watch->wake);
	}
	pthread_mutex_unlock(&watch->lock);
}

bool ucm_node_watch_take(struct ucm_node_watch *watch,
			 struct ucm_node_budget *out)
{
	bool found;

	pthread_mutex_lock(&watch->lock);
	found = watch->state == FOUND;
	if (found) {
		*out = watch->found;
		watch->state = IDLE;
	}
	pthread_mutex_unlock(&watch->lock);
	return found;
}
