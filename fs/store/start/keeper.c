/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keeper.c - a thread for each directory, which looks after it.
 *
 * It lists again what could not be listed, checks what is in doubt, renews the
 * checkpoint, and leaves the directory clean at the end.
 *
 * A thread of its own, because a disk that hangs holds whoever asks it: neither
 * the other directories nor the close wait for it.
 */
#include <config.h>

#include "fs/store/start/start.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/log.h"

/* What is wrong with a directory is looked at again after this. */
#define RETRY_S 30
/* What others have done in one that is shared. */
#define FRESHEN_S 8

static bool keeper_is_due(struct ucm_keeper *keeper)
{
	const struct ucm_recovery *recovery =
		&ucm_keeper_medium(keeper)->recovery;
	unsigned every_s = keeper->store->config->checkpoint_s;
	int64_t now = ucm_monotonic_ms();

	if (ucm_keeper_medium(keeper)->readonly)
		return false;
	if (atomic_load(&recovery->lost))
		return true;
	if (!every_s || now < keeper->checkpoint_due_ms)
		return false;
	keeper->checkpoint_due_ms = now + every_s * INT64_C(1000);
	return atomic_load(&keeper->dirty) || atomic_load(&recovery->unclean);
}

static void keeper_look_after(struct ucm_keeper *keeper)
{
	struct ucm_medium *medium = ucm_keeper_medium(keeper);

	if (atomic_load(&keeper->store->life.stopping))
		return;
	/* also where the movers do not wait for it */
	ucm_medium_beat(medium, UCM_BEAT_SHOW);
	ucm_scan_retry(keeper->store, keeper->dir);
	ucm_scan_settle(keeper->store, keeper->dir);
	if (medium->hosts) {
		ucm_store_freshen_all(keeper->store, keeper->dir);
		ucm_store_share_uses(keeper->store, keeper->dir);
	}
	if (atomic_load(&keeper->store->life.stopping))
		return; /* the configuration is gone by now */
	if (keeper_is_due(keeper) && ucm_keeper_checkpoint(keeper))
		ucm_scan_settle(keeper->store, keeper->dir);
}

/* What is not known to be good stays unclean. */
static void keeper_leave(struct ucm_keeper *keeper)
{
	struct ucm_medium *medium = ucm_keeper_medium(keeper);
	const struct ucm_recovery *recovery = &medium->recovery;
	int err = 0;

	if (medium->readonly || atomic_load(&medium->abandoned))
		return;
	if (atomic_load(&recovery->unclean) && !ucm_keeper_knows(keeper))
		return;
	if (!ucm_medium_answers(keeper->store->dirs.at[keeper->dir])) {
		ucm_error("%s: does not answer: left as it is", medium->path);
		return;
	}
	pthread_mutex_lock(&keeper->sync_lock);
	ucm_snapshots_save(keeper->store, keeper->dir);
	err = ucm_recovery_end(&medium->recovery, medium);
	pthread_mutex_unlock(&keeper->sync_lock);
	if (err)
		ucm_error("%s: closing: %s", medium->path, strerror(-err));
}

/* False at the end. */
static bool wait_a_while(struct ucm_keeper *keeper)
{
	struct ucm_store *store = keeper->store;
	struct timespec until;
	int64_t every_s, most_s;

	if (atomic_load(&store->life.closing)) /* the configuration may be gone */
		return false;
	every_s = store->config->checkpoint_s;
	most_s = ucm_keeper_medium(keeper)->hosts ? FRESHEN_S : RETRY_S;
	until = ucm_monotonic_in_ms(
		(every_s && every_s < most_s ? every_s : most_s) * 1000);
	pthread_mutex_lock(&store->life.lock);
	while (!atomic_load(&store->life.closing) &&
	       pthread_cond_timedwait(&store->life.wake,
				      &store->life.lock,
				      &until) != ETIMEDOUT)
		;
	pthread_mutex_unlock(&store->life.lock);
	return !atomic_load(&store->life.closing);
}

static void *keeper_main(void *arg)
{
	struct ucm_keeper *keeper = arg;
	struct ucm_store *store = keeper->store;

	keeper->checkpoint_due_ms =
		ucm_monotonic_ms() +
		store->config->checkpoint_s * INT64_C(1000);
	while (wait_a_while(keeper))
		keeper_look_after(keeper);
	keeper_leave(keeper);
	pthread_mutex_lock(&store->life.lock);
	keeper->ended = true;
	pthread_cond_signal(&store->life.ended);
	pthread_mutex_unlock(&store->life.lock);
	return NULL;
}

int ucm_keepers_start(struct ucm_store *store)
{
	for (unsigned dir = 0; dir < store->dirs.num; dir++) {
		struct ucm_keeper *keeper = &store->keepers[dir];
		int err;

		keeper->ended = false;
		err = pthread_create(&keeper->thread, NULL, keeper_main,
				     keeper);
		keeper->running = !err;
		keeper->ended = err;
		if (err)
			return -err;
	}
	return 0;
}

static bool have_all_ended(const struct ucm_store *store)
{
	for (unsigned dir = 0; dir < store->dirs.num; dir++) {
		if (!store->keepers[dir].ended)
			return false;
	}
	return true;
}

static bool wait_for_all(struct ucm_store *store)
{
	const struct timespec until = ucm_monotonic_in_ms(store->life.close_ms);
	bool all;

	pthread_mutex_lock(&store->life.lock);
	atomic_store(&store->life.closing, true);
	pthread_cond_broadcast(&store->life.wake);
	while (!(all = have_all_ended(store)) &&
	       pthread_cond_timedwait(&store->life.ended,
				      &store->life.lock,
				      &until) != ETIMEDOUT)
		;
	pthread_mutex_unlock(&store->life.lock);
	return all;
}

bool ucm_keepers_stop(struct ucm_store *store)
{
	bool all = wait_for_all(store);

	for (unsigned dir = 0; dir < store->dirs.num; dir++) {
		struct ucm_keeper *keeper = &store->keepers[dir];

		if (!keeper->running)
			continue;
		if (keeper->ended) {
			pthread_join(keeper->thread, NULL);
			continue;
		}
		pthread_detach(keeper->thread);
		ucm_error("%s: does not answer: left as it is",
			  ucm_keeper_medium(keeper)->path);
	}
	return all;
}
