/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hints.c - telling a mount what becomes of its blocks; see hints.h.
 *
 * One batch is filled while the thread tells the one before. A call may hang
 * with the daemon: it is the thread's alone; at the close it is waited for a
 * little, and then left to its fate with what it needs. Where the mount went and
 * came back, the next batch is for its new daemon.
 *
 * A batch is of one space, and what does not fit is dropped. Denials are not: as
 * long as a file counts as verified, others use its bytes unseen. They have a
 * list, of all spaces, which the thread tells at once, and after the batch: that
 * may have one of the same file, from before.
 */
#include <config.h>

#include "gpu/source/hints.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <ucm/client.h>

#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"
#include "gpu/source/source.h"

#define CLOSE_WAIT_S 2

static const struct hint_kind {
	enum ucm_serve_verb verb;
	uint32_t flags;
	unsigned after_s; /* so long a batch that is not full may wait */
	size_t bytes;     /* of each */
} kinds[] = {
	[UCM_HINT_WANTED] = { UCM_SERVE_WARM, 0, 0, sizeof(struct ucm_id) },
	[UCM_HINT_VERIFIED] = { UCM_SERVE_VERIFIED, 0, 1,
				sizeof(struct ucm_control_verified_block) },
};

struct hint_batch {
	uint32_t num;
	char space[UCM_SERVE_SPACE_MAX];
	union {
		struct ucm_id ids[UCM_SERVE_ITEMS];
		struct ucm_control_verified_block verified[UCM_SERVE_ITEMS];
		char bytes[1];
	} of;
	int32_t results[UCM_SERVE_ITEMS]; /* which nobody looks at */
};

/* A file's checksums differ. */
struct denial {
	struct denial *next;
	struct ucm_id id;
	char space[UCM_SERVE_SPACE_MAX];
};

struct ucm_hints {
	const struct hint_kind *kind;
	struct ucm_client *client; /* the thread's, from its start on */
	char *mount;
	pthread_mutex_t lock; /* guards the rest, but told */
	pthread_cond_t cond;
	pthread_t thread; /* from the first hint on: most give none of a kind */
	bool started;
	struct hint_batch *filling;
	struct denial *denials, **denials_end;
	bool stopping;
	struct hint_batch *told; /* the thread's */
};

static void free_denials(struct denial *denial)
{
	while (denial) {
		struct denial *next = denial->next;

		free(denial);
		denial = next;
	}
}

static void free_hints(struct ucm_hints *hints)
{
	free_denials(hints->denials);
	ucm_client_close(hints->client);
	pthread_mutex_destroy(&hints->lock);
	pthread_cond_destroy(&hints->cond);
	free(hints->mount);
	free(hints->filling);
	free(hints->told);
	free(hints);
}

static bool is_urgent(const struct ucm_hints *hints)
{
	return hints->denials || hints->stopping;
}

/* Until there is a full batch, or an older one, or a denial, or the end. */
static void wait_for_batch(struct ucm_hints *hints)
{
	struct timespec until;

	while (!hints->filling->num && !is_urgent(hints))
		pthread_cond_wait(&hints->cond, &hints->lock);
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += hints->kind->after_s;
	while (hints->filling->num < UCM_SERVE_ITEMS &&
	       !is_urgent(hints) &&
	       pthread_cond_timedwait(&hints->cond, &hints->lock, &until) !=
		       ETIMEDOUT)
		;
}

/* false: the daemon has ended, and with it the batch. */
static bool tell(const struct ucm_hints *hints, struct hint_batch *batch)
{
	const struct ucm_serve_request head = {
		.verb = hints->kind->verb,
		.flags = hints->kind->flags,
	};
	int err = ucm_client_items(hints->client, &head, batch->space,
				   &batch->of, hints->kind->bytes, batch->num,
				   batch->results, sizeof(batch->results[0]));

	return !ucm_is_lost(err);
}

/* Another daemon has another index, which is none of the old batch's. */
static void find_again(struct ucm_hints *hints)
{
	struct ucm_client *client;

	if (ucm_client_connect(hints->mount, &client))
		return;
	ucm_client_close(hints->client);
	hints->client = client;
}

/* The batch has been told: it is used for them. */
static void tell_denials(struct ucm_hints *hints, struct hint_batch *batch,
			 const struct denial *denial)
{
	for (; denial; denial = denial->next) {
		memcpy(batch->space, denial->space, sizeof(batch->space));
		batch->of.verified[0] =
			(struct ucm_control_verified_block){ .id = denial->id };
		batch->num = 1;
		if (!tell(hints, batch))
			find_again(hints);
	}
}

static struct denial *take_denials(struct ucm_hints *hints)
{
	struct denial *first = hints->denials;

	hints->denials = NULL;
	hints->denials_end = &hints->denials;
	return first;
}

static void *hints_main(void *arg)
{
	struct ucm_hints *hints = arg;
	bool more = true;

	while (more) {
		struct hint_batch *batch;
		struct denial *denials;

		pthread_mutex_lock(&hints->lock);
		wait_for_batch(hints);
		more = !hints->stopping;
		batch = hints->filling;
		hints->filling = hints->told;
		hints->filling->num = 0;
		hints->told = batch;
		denials = take_denials(hints);
		pthread_mutex_unlock(&hints->lock);
		if (batch->num && !tell(hints, batch))
			find_again(hints);
		tell_denials(hints, batch, denials);
		free_denials(denials);
	}
	return NULL;
}

static int start_thread(struct ucm_hints *hints)
{
	sigset_t all, before;
	int err;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = pthread_create(&hints->thread, NULL, hints_main, hints);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	hints->started = !err;
	return -err;
}

int ucm_hints_open(const char *mount, enum ucm_hint hint,
		   struct ucm_hints **out, struct ucm_error *error)
{
	struct ucm_hints *hints = calloc(1, sizeof(*hints));
	int err;

	if (!hints)
		return ucm_error_set(error, -ENOMEM, "out of memory");
	hints->kind = &kinds[hint];
	hints->denials_end = &hints->denials;
	pthread_mutex_init(&hints->lock, NULL);
	ucm_cond_init_monotonic(&hints->cond);
	hints->mount = strdup(mount);
	hints->filling = calloc(1, sizeof(*hints->filling));
	hints->told = calloc(1, sizeof(*hints->told));
	err = hints->mount && hints->filling && hints->told ? 0 : -ENOMEM;
	if (!err)
		err = ucm_client_connect(mount, &hints->client);
	if (err) {
		hints->client = NULL;
		free_hints(hints);
		return ucm_error_set(error, err, "%s: its daemon's socket: %s",
				     mount, strerror(-err));
	}
	*out = hints;
	return 0;
}

void ucm_hints_close(struct ucm_hints *hints)
{
	struct timespec until;

	if (!hints)
		return;
	if (!hints->started) {
		free_hints(hints);
		return;
	}
	pthread_mutex_lock(&hints->lock);
	hints->stopping = true;
	pthread_cond_signal(&hints->cond);
	pthread_mutex_unlock(&hints->lock);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += CLOSE_WAIT_S;
	if (pthread_timedjoin_np(hints->thread, NULL, &until))
		pthread_detach(hints->thread);
	else
		free_hints(hints);
}

/* Under the lock. */
static void put_hint(struct ucm_hints *hints, const char *space,
		     const void *hint)
{
	struct hint_batch *batch = hints->filling;
	const struct hint_kind *kind = hints->kind;

	if (!batch->num)
		snprintf(batch->space, sizeof(batch->space), "%s",
			 space);
	/* of one space at a time; others wait for their turn in vain */
	if (batch->num == UCM_SERVE_ITEMS || strcmp(batch->space, space))
		return;
	memcpy(batch->of.bytes + batch->num * kind->bytes, hint, kind->bytes);
	batch->num++;
	if (batch->num == 1 || batch->num == UCM_SERVE_ITEMS)
		pthread_cond_signal(&hints->cond);
}

static void add_hint(struct ucm_hints *hints, const char *space,
		     const void *hint)
{
	if (!hints)
		return;
	pthread_mutex_lock(&hints->lock);
	if (hints->started || !start_thread(hints))
		put_hint(hints, space, hint);
	pthread_mutex_unlock(&hints->lock);
}

void ucm_hints_add(struct ucm_hints *hints, const char *space,
		   const struct ucm_id *id)
{
	add_hint(hints, space, id);
}

void ucm_hints_add_verified(struct ucm_hints *hints, const char *space,
			    const struct ucm_id *id, uint64_t stamp)
{
	const struct ucm_control_verified_block block = { .id = *id,
							  .stamp = stamp };

	add_hint(hints, space, &block);
}

static void lost_denial(const struct ucm_id *id, int err)
{
	char hex[UCM_ID_HEX + 1];

	ucm_id_format(id, hex);
	ucm_warning("block %s: damage not reported to the mount: %s",
		    hex, strerror(-err));
}

void ucm_hints_deny(struct ucm_hints *hints, const char *space,
		    const struct ucm_id *id)
{
	struct denial *denial;
	int err = 0;

	if (!hints)
		return;
	denial = calloc(1, sizeof(*denial));
	if (!denial) {
		lost_denial(id, -ENOMEM);
		return;
	}
	denial->id = *id;
	snprintf(denial->space, sizeof(denial->space), "%s", space);
	pthread_mutex_lock(&hints->lock);
	if (!hints->started)
		err = start_thread(hints);
	*hints->denials_end = denial; /* perhaps the next one starts it */
	hints->denials_end = &denial->next;
	pthread_cond_signal(&hints->cond);
	pthread_mutex_unlock(&hints->lock);
	if (err)
		lost_denial(id, err);
}
