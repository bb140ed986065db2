/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crew.c - a queue and its threads.
 *
 * A crew belongs to its owner and to each of its threads: whoever lets go of it
 * last frees it, so that a thread that comes back after years finds it there.
 *
 * All crews are on a list, for fork(2): it is made with all of their locks
 * held, and the child, which has none of the threads, makes them empty.
 */
#include <config.h>

#include "common/crew.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"

struct ucm_crew {
	pthread_mutex_t lock; /* guards the rest */
	pthread_cond_t work;  /* for idle threads */
	pthread_cond_t ended; /* for close */
	STAILQ_HEAD(, ucm_job) jobs;
	unsigned most, threads, idle, waiting;
	bool closing;
	bool owned; /* by whoever has opened it */
	cpu_set_t cpus; /* of its owner */
	void (*on_fork)(void *arg);
	void *on_fork_arg;
	char name[16];
	LIST_ENTRY(ucm_crew) in_all; /* under all_lock */
};

/* Outer to the lock of each crew. */
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static LIST_HEAD(, ucm_crew) all = LIST_HEAD_INITIALIZER(all);
static pthread_once_t all_once = PTHREAD_ONCE_INIT;

/* ---- fork ---- */

static void crew_before_fork(void)
{
	struct ucm_crew *crew;

	pthread_mutex_lock(&all_lock);
	LIST_FOREACH(crew, &all, in_all)
		pthread_mutex_lock(&crew->lock);
}

static void crew_after_fork(void)
{
	struct ucm_crew *crew;

	LIST_FOREACH(crew, &all, in_all)
		pthread_mutex_unlock(&crew->lock);
	pthread_mutex_unlock(&all_lock);
}

static void crew_make_empty(struct ucm_crew *crew)
{
	pthread_mutex_init(&crew->lock, NULL);
	pthread_cond_init(&crew->work, NULL);
	ucm_cond_init_monotonic(&crew->ended);
	STAILQ_INIT(&crew->jobs);
	crew->threads = crew->idle = crew->waiting = 0;
}

/* What waited or ran is the parent's. */
static void crew_after_fork_in_child(void)
{
	struct ucm_crew *crew;

	LIST_FOREACH(crew, &all, in_all) {
		crew_make_empty(crew);
		if (crew->on_fork)
			crew->on_fork(crew->on_fork_arg);
	}
	pthread_mutex_init(&all_lock, NULL);
}

static void crew_watch_forks(void)
{
	pthread_atfork(crew_before_fork, crew_after_fork,
		       crew_after_fork_in_child);
}

static void crew_list(struct ucm_crew *crew)
{
	pthread_once(&all_once, crew_watch_forks);
	pthread_mutex_lock(&all_lock);
	LIST_INSERT_HEAD(&all, crew, in_all);
	pthread_mutex_unlock(&all_lock);
}

static void crew_unlist(struct ucm_crew *crew)
{
	pthread_mutex_lock(&all_lock);
	LIST_REMOVE(crew, in_all);
	pthread_mutex_unlock(&all_lock);
}

/* ---- the threads ---- */

static void crew_free(struct ucm_crew *crew)
{
	crew_unlist(crew);
	pthread_mutex_destroy(&crew->lock);
	pthread_cond_destroy(&crew->work);
	pthread_cond_destroy(&crew->ended);
	free(crew);
}

/* The next job; NULL: there will be none. Under the lock. */
static struct ucm_job *crew_next_job(struct ucm_crew *crew)
{
	struct ucm_job *job;

	while (STAILQ_EMPTY(&crew->jobs) && !crew->closing) {
		crew->idle++;
		pthread_cond_wait(&crew->work, &crew->lock);
		crew->idle--;
	}
	job = STAILQ_FIRST(&crew->jobs);
	if (!job)
		return NULL;
	STAILQ_REMOVE_HEAD(&crew->jobs, queued);
	crew->waiting--;
	return job;
}

static void *crew_main(void *arg)
{
	struct ucm_crew *crew = arg;
	struct ucm_job *job;
	bool last;

	pthread_setname_np(pthread_self(), crew->name);
	/* whoever has added the first job may be bound to one processor */
	pthread_setaffinity_np(pthread_self(), sizeof(crew->cpus),
			       &crew->cpus);
	pthread_mutex_lock(&crew->lock);
	while ((job = crew_next_job(crew))) {
		pthread_mutex_unlock(&crew->lock);
		job->run(job);
		pthread_mutex_lock(&crew->lock);
	}
	last = --crew->threads == 0 && !crew->owned;
	pthread_cond_signal(&crew->ended);
	pthread_mutex_unlock(&crew->lock);
	if (last)
		crew_free(crew);
	return NULL;
}

/* Under the lock. True if some thread will come to what waits. */
static bool crew_has_thread_for(struct ucm_crew *crew, unsigned waiting)
{
	pthread_attr_t attr;
	pthread_t thread;

	if (waiting <= crew->idle || crew->threads >= crew->most)
		return true;
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	if (!pthread_create(&thread, &attr, crew_main, crew))
		crew->threads++;
	pthread_attr_destroy(&attr);
	return crew->threads > 0;
}

/* ---- calls ---- */

int ucm_crew_open(const char *name, unsigned most, struct ucm_crew **out)
{
	struct ucm_crew *crew = calloc(1, sizeof(*crew));

	if (!crew)
		return -ENOMEM;
	crew_make_empty(crew);
	crew->most = most;
	crew->owned = true;
	if (pthread_getaffinity_np(pthread_self(), sizeof(crew->cpus),
				   &crew->cpus))
		memset(&crew->cpus, 0xff, sizeof(crew->cpus));
	snprintf(crew->name, sizeof(crew->name), "%s", name);
	crew_list(crew);
	*out = crew;
	return 0;
}

void ucm_crew_on_fork(struct ucm_crew *crew, void (*fn)(void *arg), void *arg)
{
	crew->on_fork = fn;
	crew->on_fork_arg = arg;
}

bool ucm_crew_add(struct ucm_crew *crew, struct ucm_job *job)
{
	bool taken;

	pthread_mutex_lock(&crew->lock);
	taken = crew_has_thread_for(crew, crew->waiting + 1);
	if (taken) {
		STAILQ_INSERT_TAIL(&crew->jobs, job, queued);
		crew->waiting++;
		pthread_cond_signal(&crew->work);
	}
	pthread_mutex_unlock(&crew->lock);
	return taken;
}

bool ucm_crew_take_back(struct ucm_crew *crew, struct ucm_job *job)
{
	struct ucm_job *one;

	pthread_mutex_lock(&crew->lock);
	STAILQ_FOREACH(one, &crew->jobs, queued) {
		if (one == job)
			break;
	}
	if (one) {
		STAILQ_REMOVE(&crew->jobs, job, ucm_job, queued);
		crew->waiting--;
	}
	pthread_mutex_unlock(&crew->lock);
	return one;
}

unsigned ucm_crew_threads(struct ucm_crew *crew)
{
	unsigned threads;

	pthread_mutex_lock(&crew->lock);
	threads = crew->threads;
	pthread_mutex_unlock(&crew->lock);
	return threads;
}

bool ucm_crew_close(struct ucm_crew *crew, unsigned wait_ms)
{
	const struct timespec until = ucm_monotonic_in_ms(wait_ms);
	bool all_ended;

	if (!crew)
		return true;
	pthread_mutex_lock(&crew->lock);
	crew->closing = true;
	pthread_cond_broadcast(&crew->work);
	while (crew->threads &&
	       pthread_cond_timedwait(&crew->ended, &crew->lock, &until) !=
		       ETIMEDOUT)
		;
	all_ended = !crew->threads;
	crew->owned = false;
	pthread_mutex_unlock(&crew->lock);
	if (all_ended)
		crew_free(crew);
	return all_ended;
}
