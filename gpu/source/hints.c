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
#include "common/log.h"
#include "gpu/source/source.h"
#include "hashing/tree.h"

#define CLOSE_WAIT_S 2

static const struct hint_kind {
	unsigned long call;
	uint32_t flags;
	unsigned after_s; /* so long a batch that is not full may wait */
	uint32_t most;    /* of a batch */
	size_t bytes;     /* of each */
} kinds[] = {
	[UCM_HINT_TOUCHED] = { UCM_CONTROL_TOUCH, 0, 1, UCM_CONTROL_IDS,
			       sizeof(struct ucm_id) },
	[UCM_HINT_OPENED] = { UCM_CONTROL_TOUCH, UCM_TOUCH_OPENED, 1,
			      UCM_CONTROL_IDS, sizeof(struct ucm_id) },
	[UCM_HINT_WANTED] = { UCM_CONTROL_WARM, 0, 0, UCM_CONTROL_IDS,
			      sizeof(struct ucm_id) },
	[UCM_HINT_VERIFIED] = { UCM_CONTROL_VERIFIED, 0, 1,
				UCM_CONTROL_VERIFIED_MOST,
				sizeof(struct ucm_control_verified_block) },
};

/* As the calls have it. */
union hint_batch {
	struct ucm_control_head head;
	struct ucm_control_batch ids;
	struct ucm_control_verified verified;
	char bytes[1];
};

_Static_assert(offsetof(struct ucm_control_batch, u) ==
			       sizeof(struct ucm_control_head) &&
		       offsetof(struct ucm_control_verified, u) ==
			       sizeof(struct ucm_control_head),
	       "all have them after the head");

/* A file's checksums differ. */
struct denial {
	struct denial *next;
	struct ucm_id id;
	char space[sizeof(((struct ucm_control_head *)NULL)->space)];
};

struct ucm_hints {
	const struct hint_kind *kind;
	int fd;     /* the thread's, from its start on */
	char *path; /* of the control file */
	pthread_mutex_t lock; /* guards the rest, but told */
	pthread_cond_t cond;
	pthread_t thread; /* from the first hint on: most give none of a kind */
	bool started;
	union hint_batch *filling;
	struct denial *denials, **denials_end;
	bool stopping;
	union hint_batch *told; /* the thread's */
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
	if (hints->fd >= 0)
		close(hints->fd);
	pthread_mutex_destroy(&hints->lock);
	pthread_cond_destroy(&hints->cond);
	free(hints->path);
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

	while (!hints->filling->head.num && !is_urgent(hints))
		pthread_cond_wait(&hints->cond, &hints->lock);
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += hints->kind->after_s;
	while (hints->filling->head.num < hints->kind->most &&
	       !is_urgent(hints) &&
	       pthread_cond_timedwait(&hints->cond, &hints->lock, &until) !=
		       ETIMEDOUT)
		;
}

static int open_control(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

	return fd < 0 ? -errno : fd;
}

/* false: the mount has gone, and with it the batch. */
static bool tell(const struct ucm_hints *hints, union hint_batch *batch)
{
	batch->head.version = UCM_CONTROL_VERSION;
	batch->head.flags = hints->kind->flags;
	return !ioctl(hints->fd, hints->kind->call, batch) ||
	       !ucm_is_lost(-errno);
}

/* Another daemon has another index, which is none of the old batch's. */
static void find_again(struct ucm_hints *hints)
{
	int fd = open_control(hints->path);

	if (fd < 0)
		return;
	close(hints->fd);
	hints->fd = fd;
}

/* The batch has been told: it is used for them. */
static void tell_denials(struct ucm_hints *hints, union hint_batch *batch,
			 const struct denial *denial)
{
	for (; denial; denial = denial->next) {
		memcpy(batch->head.space, denial->space,
		       sizeof(batch->head.space));
		batch->verified.u.blocks[0] =
			(struct ucm_control_verified_block){ .id = denial->id };
		batch->head.num = 1;
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
		union hint_batch *batch;
		struct denial *denials;

		pthread_mutex_lock(&hints->lock);
		wait_for_batch(hints);
		more = !hints->stopping;
		batch = hints->filling;
		hints->filling = hints->told;
		hints->filling->head.num = 0;
		hints->told = batch;
		denials = take_denials(hints);
		pthread_mutex_unlock(&hints->lock);
		if (batch->head.num && !tell(hints, batch))
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
	char path[4096];
	int err = -ENOMEM;

	if (!hints)
		return ucm_error_set(error, -ENOMEM, "out of memory");
	hints->kind = &kinds[hint];
	hints->denials_end = &hints->denials;
	pthread_mutex_init(&hints->lock, NULL);
	ucm_cond_init_monotonic(&hints->cond);
	snprintf(path, sizeof(path), "%s/" UCM_TREE_CONTROL, mount);
	hints->path = strdup(path);
	hints->fd = open_control(path);
	if (hints->fd < 0)
		err = hints->fd;
	hints->filling = calloc(1, sizeof(*hints->filling));
	hints->told = calloc(1, sizeof(*hints->told));
	if (hints->fd >= 0 && hints->path && hints->filling && hints->told)
		err = 0;
	if (err) {
		free_hints(hints);
		return ucm_error_set(error, err, "%s: %s", path,
				     strerror(-err));
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
	union hint_batch *batch = hints->filling;
	const struct hint_kind *kind = hints->kind;

	if (!batch->head.num)
		snprintf(batch->head.space, sizeof(batch->head.space), "%s",
			 space);
	/* of one space at a time; others wait for their turn in vain */
	if (batch->head.num == kind->most || strcmp(batch->head.space, space))
		return;
	memcpy(batch->bytes + sizeof(batch->head) +
		       batch->head.num * kind->bytes,
	       hint, kind->bytes);
	batch->head.num++;
	if (batch->head.num == 1 || batch->head.num == kind->most)
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
