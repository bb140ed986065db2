/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hints.c - hints to a daemon about its blocks; see hints.h.
 *
 * A thread sends them, in batches of one kind: one of each is filled while the thread
 * sends another. A call may hang with the daemon: it is the thread's alone; at the close
 * it is waited for a little, and then left to its fate with what it needs. Where the
 * daemon was replaced, the next batch is for the new one.
 *
 * A batch is of one space, and what does not fit is dropped. Denials are not: as
 * long as a file counts as verified, others use its bytes unseen. They have a
 * list, of all spaces, which the thread sends at once, and after the batch of what was
 * verified: that may have one of the same file, from before.
 */
#include <config.h>

#include "gpu/source/hints.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <ucm/client.h>

#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"
#include "common/process.h"
#include "gpu/source/source.h"

#define CLOSE_WAIT_S 2
#define EXPECTED_MOST 8192u /* of a long request: in several messages */

static const struct hint_kind {
	enum ucm_serve_verb verb;
	uint32_t flags;
	int64_t after_ms; /* so long a batch that is not full may wait */
	uint32_t most;    /* of a batch */
	size_t bytes;     /* of each */
} kinds[UCM_HINTS] = {
	[UCM_HINT_EXPECTED] = { UCM_SERVE_TOUCH, UCM_TOUCH_EXPECTED, 0,
				EXPECTED_MOST, sizeof(struct ucm_id) },
	[UCM_HINT_WANTED] = { UCM_SERVE_WARM, 0, 0, UCM_SERVE_ITEMS,
			      sizeof(struct ucm_id) },
	[UCM_HINT_VERIFIED] = { UCM_SERVE_VERIFIED, 0, 1000, UCM_SERVE_ITEMS,
				sizeof(struct ucm_control_verified_block) },
};

struct hint_batch {
	uint32_t num;
	int64_t due_ms; /* to be sent, full or not */
	char space[UCM_SERVE_SPACE_MAX];
	union {
		struct ucm_id ids[EXPECTED_MOST];
		struct ucm_control_verified_block verified[UCM_SERVE_ITEMS];
		char bytes[1];
	} of;
};

/* A file's checksums differ. */
struct denial {
	struct denial *next;
	struct ucm_id id;
	char space[UCM_SERVE_SPACE_MAX];
};

struct ucm_hints {
	struct ucm_client *client; /* the thread's, from its start on */
	char *mount;
	pthread_mutex_t lock; /* guards the rest, but sent */
	pthread_cond_t cond;
	pthread_t thread; /* from the first hint on: most loaders give none */
	bool started, stopping;
	struct denial *denials, **denials_end;
	struct hint_batch filling[UCM_HINTS];
	struct hint_batch sent; /* the thread's */
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
	free(hints);
}

/* A batch that is full, or old; at the end each that has any. UCM_HINTS: none, and when
 * there may be one. */
static unsigned next_due(const struct ucm_hints *hints, int64_t *when_ms)
{
	*when_ms = INT64_MAX;
	for (unsigned kind = 0; kind < UCM_HINTS; kind++) {
		const struct hint_batch *batch = &hints->filling[kind];

		if (!batch->num)
			continue;
		if (hints->stopping || batch->num == kinds[kind].most ||
		    batch->due_ms <= ucm_monotonic_ms())
			return kind;
		if (*when_ms > batch->due_ms)
			*when_ms = batch->due_ms;
	}
	return UCM_HINTS;
}

static void wait_until(struct ucm_hints *hints, int64_t when_ms)
{
	const struct timespec until = { .tv_sec = when_ms / 1000,
					.tv_nsec = when_ms % 1000 * 1000000 };

	if (when_ms == INT64_MAX)
		pthread_cond_wait(&hints->cond, &hints->lock);
	else
		pthread_cond_timedwait(&hints->cond, &hints->lock, &until);
}

/* Which batch is to be sent: that of what was verified before denials. UCM_HINTS: it is
 * the end. */
static unsigned wait_for_batch(struct ucm_hints *hints)
{
	int64_t when_ms;
	unsigned kind;

	for (;;) {
		if (hints->denials)
			return UCM_HINT_VERIFIED;
		kind = next_due(hints, &when_ms);
		if (kind < UCM_HINTS || hints->stopping)
			return kind;
		wait_until(hints, when_ms);
	}
}

/* false: the daemon has ended, and with it the batch. */
static bool send_batch(const struct ucm_hints *hints, unsigned kind,
		       const struct hint_batch *batch)
{
	const struct ucm_serve_request head = {
		.verb = kinds[kind].verb,
		.flags = kinds[kind].flags,
	};
	int32_t results[EXPECTED_MOST]; /* which nobody looks at */

	return !ucm_is_lost(ucm_client_items(
		hints->client, &head, batch->space, &batch->of,
		kinds[kind].bytes, batch->num, results, sizeof(results[0])));
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

static void send_hints(struct ucm_hints *hints, unsigned kind)
{
	if (hints->sent.num && !send_batch(hints, kind, &hints->sent))
		find_again(hints);
}

/* Each in the place of the batch, which was sent. */
static void send_denials(struct ucm_hints *hints, const struct denial *denial)
{
	struct hint_batch *batch = &hints->sent;

	for (; denial; denial = denial->next) {
		memcpy(batch->space, denial->space, sizeof(batch->space));
		batch->of.verified[0] =
			(struct ucm_control_verified_block){ .id = denial->id };
		batch->num = 1;
		send_hints(hints, UCM_HINT_VERIFIED);
	}
}

static struct denial *take_denials(struct ucm_hints *hints)
{
	struct denial *first = hints->denials;

	hints->denials = NULL;
	hints->denials_end = &hints->denials;
	return first;
}

/* To be sent; another one is filled from now on. */
static void take_batch(struct ucm_hints *hints, unsigned kind)
{
	struct hint_batch *batch = &hints->filling[kind];

	hints->sent.num = batch->num;
	memcpy(hints->sent.space, batch->space, sizeof(batch->space));
	memcpy(&hints->sent.of, &batch->of, batch->num * kinds[kind].bytes);
	batch->num = 0;
}

static void *hints_main(void *arg)
{
	struct ucm_hints *hints = arg;
	struct denial *denials;
	unsigned kind;

	pthread_mutex_lock(&hints->lock);
	while ((kind = wait_for_batch(hints)) < UCM_HINTS) {
		take_batch(hints, kind);
		denials = take_denials(hints);
		pthread_mutex_unlock(&hints->lock);
		send_hints(hints, kind);
		send_denials(hints, denials);
		free_denials(denials);
		pthread_mutex_lock(&hints->lock);
	}
	pthread_mutex_unlock(&hints->lock);
	return NULL;
}

static int start_thread(struct ucm_hints *hints)
{
	int err = ucm_thread_start(&hints->thread, hints_main, hints);

	hints->started = !err;
	return err;
}

int ucm_hints_open(const char *mount, struct ucm_hints **out,
		   struct ucm_error *error)
{
	struct ucm_hints *hints = calloc(1, sizeof(*hints));
	int err;

	if (!hints)
		return ucm_error_set(error, -ENOMEM, "out of memory");
	hints->denials_end = &hints->denials;
	pthread_mutex_init(&hints->lock, NULL);
	ucm_cond_init_monotonic(&hints->cond);
	hints->mount = strdup(mount);
	err = hints->mount ? ucm_client_connect(mount, &hints->client)
			   : -ENOMEM;
	if (err) {
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
static void put_hints(struct ucm_hints *hints, unsigned kind, const char *space,
		      const void *these, size_t num)
{
	struct hint_batch *batch = &hints->filling[kind];
	size_t bytes = kinds[kind].bytes, room = kinds[kind].most - batch->num;
	bool is_first = !batch->num;

	if (is_first) {
		snprintf(batch->space, sizeof(batch->space), "%s", space);
		batch->due_ms = ucm_monotonic_ms() + kinds[kind].after_ms;
	}
	/* of one space at a time; others wait for their turn in vain */
	if (!room || strcmp(batch->space, space))
		return;
	if (num > room)
		num = room;
	memcpy(batch->of.bytes + batch->num * bytes, these, num * bytes);
	batch->num += (uint32_t)num;
	if (is_first || num == room)
		pthread_cond_signal(&hints->cond);
}

static void add_hints(struct ucm_hints *hints, unsigned kind, const char *space,
		      const void *these, size_t num)
{
	if (!hints || !num)
		return;
	pthread_mutex_lock(&hints->lock);
	if (hints->started || !start_thread(hints))
		put_hints(hints, kind, space, these, num);
	pthread_mutex_unlock(&hints->lock);
}

void ucm_hints_add(struct ucm_hints *hints, enum ucm_hint kind,
		   const char *space, const struct ucm_id *ids, size_t num)
{
	add_hints(hints, kind, space, ids, num);
}

void ucm_hints_add_verified(struct ucm_hints *hints, const char *space,
			    const struct ucm_id *id, uint64_t stamp)
{
	const struct ucm_control_verified_block block = { .id = *id,
							  .stamp = stamp };

	add_hints(hints, UCM_HINT_VERIFIED, space, &block, 1);
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
