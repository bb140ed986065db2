/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notices.c - see notices.h.
 *
 * A folder is in the table while it has items, or a thread at work on one. It
 * is in the queue while it has items and no thread: a thread takes the first
 * folder, one item of it, and puts the folder back at the end. So each folder
 * has its turn, and none has two threads. One thread is left over for whole
 * folders when all others hang in names. All is guarded by one lock, which is
 * held over no call.
 */
#include <config.h>

#include "fs/mount/notices.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"

#define HEADS 256u

struct item {
	struct item *next;
	bool whole;	 /* of the folder `of`, which is below this one */
	uint64_t of;
	struct ucm_key key;
};

struct folder {
	struct folder *next; /* in the table */
	struct folder *after; /* in the queue */
	uint64_t number;
	struct item *first, **last;
	unsigned num;
	bool queued, busy;
	int64_t since_ms; /* busy */
};

struct ucm_notices {
	const struct ucm_notices_ops *ops;
	void *arg;
	pthread_mutex_t lock;
	pthread_cond_t wake;  /* for threads */
	pthread_cond_t ended; /* for close */
	struct folder *table[HEADS];
	struct folder *queue, **queue_end;
	unsigned queued; /* folders */
	unsigned items;	 /* of all folders */
	pthread_t threads[UCM_NOTICES_THREADS];
	unsigned num_threads, idle, running;
	unsigned naming; /* threads at work on a name */
	bool stopping;
	uint64_t told, collapsed, lost;
};

struct ucm_notices *ucm_notices_open(const struct ucm_notices_ops *ops,
				     void *arg)
{
	struct ucm_notices *notices = calloc(1, sizeof(*notices));

	if (!notices)
		return NULL;
	notices->ops = ops;
	notices->arg = arg;
	notices->queue_end = &notices->queue;
	pthread_mutex_init(&notices->lock, NULL);
	pthread_cond_init(&notices->wake, NULL);
	ucm_cond_init_monotonic(&notices->ended);
	return notices;
}

/* ---- folders and their items, under the lock ---- */

static struct folder **notices_find(struct ucm_notices *notices,
				    uint64_t number)
{
	struct folder **link =
		&notices->table[number * UINT64_C(0x9e3779b97f4a7c15) >> 56];

	while (*link && (*link)->number != number)
		link = &(*link)->next;
	return link;
}

static struct folder *notices_folder(struct ucm_notices *notices,
				     uint64_t number)
{
	struct folder **link = notices_find(notices, number);

	if (!*link) {
		*link = calloc(1, sizeof(**link));
		if (*link) {
			(*link)->number = number;
			(*link)->last = &(*link)->first;
		}
	}
	return *link;
}

static void notices_drop_folder(struct ucm_notices *notices,
				struct folder *folder)
{
	struct folder **link = notices_find(notices, folder->number);

	*link = folder->next;
	free(folder);
}

static void notices_enqueue(struct ucm_notices *notices, struct folder *folder)
{
	if (folder->queued || folder->busy)
		return;
	folder->queued = true;
	folder->after = NULL;
	*notices->queue_end = folder;
	notices->queue_end = &folder->after;
	notices->queued++;
}

static bool is_stuck(const struct folder *folder)
{
	return folder->busy && ucm_monotonic_ms() - folder->since_ms >
				       UCM_NOTICES_STUCK_MS;
}

static bool notices_put(struct ucm_notices *notices, struct folder *folder,
			const struct item *what)
{
	struct item *item = malloc(sizeof(*item));

	if (!item)
		return false;
	*item = *what;
	item->next = NULL;
	*folder->last = item;
	folder->last = &item->next;
	folder->num++;
	notices->items++;
	notices_enqueue(notices, folder);
	return true;
}

static struct item *notices_take(struct ucm_notices *notices,
				 struct folder *folder)
{
	struct item *item = folder->first;

	folder->first = item->next;
	if (!folder->first)
		folder->last = &folder->first;
	folder->num--;
	notices->items--;
	return item;
}

/* One item for a whole folder, in the one above it. */
static void notices_put_whole(struct ucm_notices *notices, uint64_t number,
			      uint64_t above, const struct ucm_key *key)
{
	const struct item whole = { .whole = true, .of = number, .key = *key };
	struct folder *folder = notices_folder(notices, above);

	if (!folder || is_stuck(folder) ||
	    notices->items >= 2 * UCM_NOTICES_ALL) {
		notices->lost++;
		return;
	}
	for (const struct item *item = folder->first; item; item = item->next) {
		if (item->whole && item->of == number)
			return;
	}
	if (!notices_put(notices, folder, &whole)) {
		notices->lost++;
		notices_enqueue(notices, folder); /* if only to be dropped */
	}
}

/* Its names are forgotten, and one more. It stays queued, if it was: a thread
 * finds it empty. */
static void notices_collapse(struct ucm_notices *notices, struct folder *folder)
{
	notices->collapsed += folder->num + 1;
	while (folder->first)
		free(notices_take(notices, folder));
}

/* ---- threads ---- */

static bool may_run(const struct ucm_notices *notices,
		    const struct folder *folder)
{
	return !folder->first || folder->first->whole ||
	       notices->naming < UCM_NOTICES_THREADS - 1;
}

/* The next folder, out of the queue, or NULL. */
static struct folder *notices_next(struct ucm_notices *notices)
{
	struct folder **link = &notices->queue, *folder;

	while (*link && !may_run(notices, *link))
		link = &(*link)->after;
	folder = *link;
	if (!folder)
		return NULL;
	*link = folder->after;
	if (!*link)
		notices->queue_end = link;
	notices->queued--;
	folder->queued = false;
	return folder;
}

static void notices_run(struct ucm_notices *notices, struct folder *folder)
{
	struct item *item = notices_take(notices, folder);

	notices->naming += !item->whole;
	folder->busy = true;
	folder->since_ms = ucm_monotonic_ms();
	pthread_mutex_unlock(&notices->lock);
	if (item->whole)
		notices->ops->folder(notices->arg, item->of, &item->key);
	else
		notices->ops->name(notices->arg, folder->number, &item->key);
	pthread_mutex_lock(&notices->lock);
	notices->naming -= !item->whole;
	free(item);
	folder->busy = false;
	notices->told++;
}

static void *notices_main(void *arg)
{
	struct ucm_notices *notices = arg;

	pthread_mutex_lock(&notices->lock);
	while (!notices->stopping) {
		struct folder *folder = notices_next(notices);

		if (!folder) {
			notices->idle++;
			pthread_cond_wait(&notices->wake, &notices->lock);
			notices->idle--;
			continue;
		}
		if (folder->first)
			notices_run(notices, folder);
		if (folder->first)
			notices_enqueue(notices, folder);
		else
			notices_drop_folder(notices, folder);
	}
	notices->running--;
	pthread_cond_broadcast(&notices->ended);
	pthread_mutex_unlock(&notices->lock);
	return NULL;
}

/* A thread for what is queued; one more if none is idle. */
static void notices_wake(struct ucm_notices *notices)
{
	int err;

	if (notices->queued > notices->idle &&
	    notices->num_threads < UCM_NOTICES_THREADS) {
		err = pthread_create(&notices->threads[notices->num_threads],
				     NULL, notices_main, notices);
		if (!err) {
			notices->num_threads++;
			notices->running++;
		} else if (!notices->num_threads) {
			ucm_error("what is gone is not reported to the kernel: "
				  "thread: %s",
				  strerror(err));
		}
	}
	pthread_cond_signal(&notices->wake);
}

/* ---- calls ---- */

void ucm_notices_add(struct ucm_notices *notices, uint64_t number,
		     uint64_t above, const struct ucm_key *key)
{
	const struct item name = { .key = *key };
	struct folder *folder;

	pthread_mutex_lock(&notices->lock);
	folder = notices->stopping ? NULL : notices_folder(notices, number);
	if (!folder) {
		notices->lost++;
	} else if (is_stuck(folder) || folder->num >= UCM_NOTICES_OF_FOLDER ||
		   notices->items >= UCM_NOTICES_ALL ||
		   !notices_put(notices, folder, &name)) {
		notices_collapse(notices, folder);
		notices_put_whole(notices, number, above, key);
		notices_enqueue(notices, folder); /* if only to be dropped */
	}
	notices_wake(notices);
	pthread_mutex_unlock(&notices->lock);
}

void ucm_notices_get_stats(struct ucm_notices *notices,
			   struct ucm_notices_stats *out)
{
	pthread_mutex_lock(&notices->lock);
	*out = (struct ucm_notices_stats){
		.told = notices->told,
		.collapsed = notices->collapsed,
		.lost = notices->lost,
		.waiting = notices->items,
	};
	for (unsigned i = 0; i < HEADS; i++) {
		for (const struct folder *folder = notices->table[i]; folder;
		     folder = folder->next)
			out->stuck += is_stuck(folder);
	}
	pthread_mutex_unlock(&notices->lock);
}

bool ucm_notices_end(struct ucm_notices *notices, unsigned timeout_ms)
{
	int64_t until_ms = ucm_monotonic_ms() + timeout_ms;
	struct timespec until = {
		.tv_sec = until_ms / 1000,
		.tv_nsec = until_ms % 1000 * 1000000,
	};
	bool ended;

	pthread_mutex_lock(&notices->lock);
	notices->stopping = true;
	pthread_cond_broadcast(&notices->wake);
	while (notices->running &&
	       pthread_cond_timedwait(&notices->ended, &notices->lock,
				      &until) != ETIMEDOUT)
		;
	ended = !notices->running;
	pthread_mutex_unlock(&notices->lock);
	return ended;
}

bool ucm_notices_close(struct ucm_notices *notices, unsigned timeout_ms)
{
	if (!notices)
		return true;
	if (!ucm_notices_end(notices, timeout_ms))
		return false;
	for (unsigned i = 0; i < notices->num_threads; i++)
		pthread_join(notices->threads[i], NULL);
	for (unsigned i = 0; i < HEADS; i++) {
		while (notices->table[i]) {
			struct folder *folder = notices->table[i];

			while (folder->first)
				free(notices_take(notices, folder));
			notices->table[i] = folder->next;
			free(folder);
		}
	}
	pthread_mutex_destroy(&notices->lock);
	pthread_cond_destroy(&notices->wake);
	pthread_cond_destroy(&notices->ended);
	free(notices);
	return true;
}
