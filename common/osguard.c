/* SPDX-License-Identifier: Apache-2.0 */
/*
 * osguard.c - worker threads that may get stuck, so that nobody else does.
 *
 * One pool for all guards. A worker takes calls from a queue; there is always
 * one that is idle, or a new one is made, up to a limit; with all of them stuck
 * every call is a time-out. A call belongs to its caller and to its worker:
 * whoever lets go of it last frees it.
 */
#include <config.h>

#include "common/osguard.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/log.h"

#define MAX_WORKERS 64
#define MAX_FDS (1 << 20)
#define RETRY_MS 5000

struct ucm_guard {
	char *name;
	unsigned deadline_ms;
	_Atomic int64_t tripped_until_ms; /* 0: it is not */
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t work;  /* for idle workers */
	pthread_cond_t ended; /* for callers */
	struct ucm_call *first, **last;
	unsigned workers, idle;
} pool = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.work = PTHREAD_COND_INITIALIZER,
};
static pthread_once_t pool_once = PTHREAD_ONCE_INIT;

/* By descriptor; untouched pages of it cost nothing. */
static struct ucm_guard *_Atomic guards[MAX_FDS];
static _Atomic int guards_end; /* one past the highest that ever had one */

static void set_guard(int fd, struct ucm_guard *guard)
{
	int end = atomic_load(&guards_end);

	atomic_store(&guards[fd], guard);
	while (fd >= end &&
	       !atomic_compare_exchange_weak(&guards_end, &end, fd + 1))
		;
}

static void before_fork(void)
{
	pthread_mutex_lock(&pool.lock);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&pool.lock);
}

/* Threads do not survive a fork: a daemon that moves to the background starts
 * with none. What a stuck one of them had is lost. */
static void after_fork_in_child(void)
{
	pthread_mutex_init(&pool.lock, NULL);
	pthread_cond_init(&pool.work, NULL);
	ucm_cond_init_monotonic(&pool.ended);
	pool.first = NULL;
	pool.last = &pool.first;
	pool.workers = pool.idle = 0;
}

static void pool_init(void)
{
	ucm_cond_init_monotonic(&pool.ended);
	pool.last = &pool.first;
	pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

int ucm_guard_open(int dirfd, const char *name, unsigned deadline_ms,
		   struct ucm_guard **out)
{
	struct ucm_guard *guard;

	if (dirfd < 0 || dirfd >= MAX_FDS)
		return -EMFILE;
	pthread_once(&pool_once, pool_init);
	guard = calloc(1, sizeof(*guard));
	if (!guard)
		return -ENOMEM;
	guard->name = strdup(name);
	if (!guard->name) {
		free(guard);
		return -ENOMEM;
	}
	guard->deadline_ms = deadline_ms;
	set_guard(dirfd, guard);
	*out = guard;
	return 0;
}

void ucm_guard_close(struct ucm_guard *guard)
{
	if (!guard)
		return;
	for (int fd = 0; fd < atomic_load(&guards_end); fd++) {
		if (atomic_load_explicit(&guards[fd], memory_order_relaxed) ==
		    guard)
			atomic_store(&guards[fd], NULL);
	}
	free(guard->name);
	free(guard);
}

struct ucm_guard *ucm_guard_of(int fd)
{
	return fd >= 0 && fd < MAX_FDS
		       ? atomic_load_explicit(&guards[fd], memory_order_acquire)
		       : NULL;
}

void ucm_guard_inherit(int fd, int dirfd)
{
	struct ucm_guard *guard = ucm_guard_of(dirfd);

	/* a number that was another's before loses that one's guard */
	if (fd < MAX_FDS && (guard || ucm_guard_of(fd)))
		set_guard(fd, guard);
}

void ucm_guard_put(struct ucm_call *call)
{
	bool last;

	pthread_mutex_lock(&pool.lock);
	last = --call->refs == 0;
	pthread_mutex_unlock(&pool.lock);
	if (last)
		free(call);
}

static struct ucm_call *take_call(void)
{
	struct ucm_call *call;

	while (!pool.first) {
		pool.idle++;
		pthread_cond_wait(&pool.work, &pool.lock);
		pool.idle--;
	}
	call = pool.first;
	pool.first = call->next;
	if (!pool.first)
		pool.last = &pool.first;
	return call;
}

static void *work(void *arg)
{
	(void)arg;
	for (;;) {
		struct ucm_call *call;
		bool late;

		pthread_mutex_lock(&pool.lock);
		call = take_call(); /* who gives up takes it off the queue */
		pthread_mutex_unlock(&pool.lock);
		call->run(call);

		pthread_mutex_lock(&pool.lock);
		call->done = true;
		late = call->abandoned;
		pthread_cond_broadcast(&pool.ended);
		pthread_mutex_unlock(&pool.lock);
		if (late)
			call->discard(call);
		ucm_guard_put(call);
	}
	return NULL;
}

/* Under pool.lock. More calls wait than workers are idle: one more worker. */
static bool need_worker(void)
{
	unsigned waiting = 0;
	pthread_attr_t attr;
	pthread_t thread;

	for (struct ucm_call *call = pool.first; call; call = call->next)
		waiting++;
	if (waiting <= pool.idle || pool.workers >= MAX_WORKERS)
		return true;
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	if (!pthread_create(&thread, &attr, work, NULL))
		pool.workers++;
	pthread_attr_destroy(&attr);
	return pool.workers > 0;
}

static void dequeue(struct ucm_call *call)
{
	struct ucm_call **link = &pool.first;

	while (*link && *link != call)
		link = &(*link)->next;
	if (!*link)
		return; /* a worker has it */
	*link = call->next;
	if (!call->next)
		pool.last = link;
	call->refs--; /* the worker's, which there will be none of */
}

static bool wait_for(struct ucm_guard *guard, struct ucm_call *call)
{
	int64_t until_ms = ucm_monotonic_ms() + guard->deadline_ms;
	struct timespec until = {
		.tv_sec = until_ms / 1000,
		.tv_nsec = until_ms % 1000 * 1000000,
	};
	bool done;

	pthread_mutex_lock(&pool.lock);
	call->next = NULL;
	*pool.last = call;
	pool.last = &call->next;
	if (need_worker())
		pthread_cond_signal(&pool.work);
	while (!call->done &&
	       pthread_cond_timedwait(&pool.ended, &pool.lock, &until) !=
		       ETIMEDOUT)
		;
	done = call->done;
	if (!done) {
		call->abandoned = true;
		dequeue(call);
	}
	pthread_mutex_unlock(&pool.lock);
	return done;
}

/* While it is tripped, one caller every RETRY_MS may try. */
static bool may_try(struct ucm_guard *guard)
{
	int64_t until = atomic_load(&guard->tripped_until_ms);
	int64_t now = ucm_monotonic_ms();

	if (!until)
		return true;
	return now >= until &&
	       atomic_compare_exchange_strong(&guard->tripped_until_ms, &until,
					      now + RETRY_MS +
						      guard->deadline_ms);
}

bool ucm_guard_call(struct ucm_guard *guard, struct ucm_call *call)
{
	bool done;

	call->refs = 2;
	if (!may_try(guard)) {
		call->refs = 1;
		return false;
	}
	done = wait_for(guard, call);
	if (!done) {
		if (!atomic_exchange(&guard->tripped_until_ms,
				     ucm_monotonic_ms() + RETRY_MS))
			ucm_error("%s: no answer in %u ms: taken as gone until "
				  "it answers",
				  guard->name, guard->deadline_ms);
	} else if (atomic_exchange(&guard->tripped_until_ms, 0)) {
		ucm_info("%s: answers again", guard->name);
	}
	return done;
}
