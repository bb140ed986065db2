/* SPDX-License-Identifier: Apache-2.0 */
/*
 * upkeep.c - a thread for each directory: it renews the checkpoint, reads again
 * what could not be read, checks what is in doubt, and leaves the directory
 * clean at the end.
 *
 * A checkpoint says that everything older than it is on disk. So there is none
 * before the directory has been read and nothing in it is in doubt, and none if
 * nothing was committed since the last. With durability=data or full every
 * block is on disk by itself, but the checkpoint spares the next start from
 * checking them.
 *
 * When a sync fails, the kernel may have dropped pages that never came to the
 * disk, and tells so once: the next sync succeeds. So what has been committed
 * since the last good one is in doubt, and is compared with what the disk has
 * before it is served; nothing new is placed there. When all of it has been
 * checked and a sync succeeds, the directory is as good as before.
 *
 * A thread of its own, because a disk that hangs holds whoever asks it: neither
 * the other directories nor the close wait for it.
 */
#include <config.h>

#include "fs/store/store.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/log.h"

/* What is wrong with a directory is looked at again after this. */
#define RETRY_S 30

static struct ucm_backing *backing_of(const struct ucm_keeper *keeper)
{
	return keeper->set->dirs.at[keeper->dir];
}

static bool is_known(struct ucm_keeper *keeper)
{
	struct ucm_backing *backing = backing_of(keeper);

	/* after a crash, what could not be read may be torn: it is a doubt, too */
	if (atomic_load(&backing->recovery.unclean) &&
	    ucm_unread_any(&keeper->set->unread, keeper->dir))
		return false;
	return ucm_scan_knows(keeper->set, keeper->dir) &&
	       !atomic_load(&keeper->doubts) &&
	       !atomic_load(&backing->abandoned);
}

/* ---- syncs; under sync_lock ---- */

static void writes_were_lost(struct ucm_keeper *keeper, bool again, int err)
{
	struct ucm_backing *backing = backing_of(keeper);

	ucm_scan_doubt(keeper->set, keeper->dir);
	ucm_dirs_count_error(&keeper->set->dirs, keeper->dir, err);
	if (again)
		return;
	ucm_error("%s: sync: %s: writes may be lost; %llu blocks are checked "
		  "before use, and nothing new is placed there until a sync "
		  "succeeds",
		  backing->path, strerror(-err),
		  (unsigned long long)atomic_load(&keeper->doubts));
}

/* One of recovery.h's syncs, and what has to follow when it fails. */
static int sync_by(struct ucm_keeper *keeper,
		   int (*sync)(struct ucm_recovery *recovery, int ctldir))
{
	struct ucm_backing *backing = backing_of(keeper);
	unsigned losses = atomic_load(&backing->recovery.losses);
	bool lost = atomic_load(&backing->recovery.lost);
	int err = sync(&backing->recovery, backing->ctlfd);

	if (atomic_load(&backing->recovery.losses) != losses) {
		writes_were_lost(keeper, lost, err);
	} else if (err) { /* the old checkpoint goes on to hold */
		ucm_backing_failed(backing, "checkpoint", err);
		ucm_dirs_count_error(&keeper->set->dirs, keeper->dir, err);
	}
	return err;
}

static int checkpoint(struct ucm_keeper *keeper)
{
	struct ucm_backing *backing = backing_of(keeper);
	bool lost = atomic_load(&backing->recovery.lost), dirty;
	int err;

	if (!is_known(keeper)) { /* but losses are to be noticed */
		err = sync_by(keeper, ucm_recovery_sync);
		return err ? err : -EAGAIN;
	}
	ucm_recovery_mark(&backing->recovery, backing->ctlfd);
	ucm_scan_check_writers(keeper->set, keeper->dir);
	dirty = atomic_exchange(&keeper->dirty, false);
	err = sync_by(keeper, ucm_recovery_checkpoint);
	if (err) {
		atomic_store(&keeper->dirty, dirty);
		return err;
	}
	ucm_count(&keeper->set->stats.checkpoints);
	if (lost)
		ucm_info("%s: a sync has succeeded, and nothing is in doubt: "
			 "it is good again",
			 backing->path);
	return 0;
}

int ucm_upkeep_sync(struct ucm_store *set, unsigned dir)
{
	struct ucm_keeper *keeper = &set->keepers[dir];
	int err;

	pthread_mutex_lock(&keeper->sync_lock);
	err = sync_by(keeper, ucm_recovery_sync);
	pthread_mutex_unlock(&keeper->sync_lock);
	return err;
}

static int checkpoint_of(struct ucm_keeper *keeper)
{
	int err;

	pthread_mutex_lock(&keeper->sync_lock);
	err = checkpoint(keeper);
	pthread_mutex_unlock(&keeper->sync_lock);
	return err;
}

int ucm_upkeep_checkpoint(struct ucm_store *set)
{
	int result = 0;

	for (unsigned dir = 0; dir < set->dirs.num; dir++) {
		int err = 0;

		if (!set->dirs.at[dir]->readonly)
			err = checkpoint_of(&set->keepers[dir]);
		if (err == -EAGAIN && !result)
			result = err;
		else if (err && err != -EAGAIN)
			result = -EIO;
	}
	return result;
}

/* ---- the threads ---- */

static bool is_due(struct ucm_keeper *keeper)
{
	const struct ucm_recovery *recovery = &backing_of(keeper)->recovery;
	unsigned every_s = keeper->set->config->checkpoint_s;
	int64_t now = ucm_monotonic_ms();

	if (backing_of(keeper)->readonly)
		return false;
	if (atomic_load(&recovery->lost))
		return true;
	if (!every_s || now < keeper->checkpoint_due_ms)
		return false;
	keeper->checkpoint_due_ms = now + every_s * INT64_C(1000);
	return atomic_load(&keeper->dirty) || atomic_load(&recovery->unclean);
}

static void look_after(struct ucm_keeper *keeper)
{
	if (atomic_load(&keeper->set->stopping))
		return;
	ucm_scan_retry(keeper->set, keeper->dir);
	ucm_store_read_again(keeper->set, NULL, keeper->dir);
	ucm_scan_settle(keeper->set, keeper->dir);
	if (atomic_load(&keeper->set->stopping))
		return; /* who comes back late finds the configuration gone */
	if (is_due(keeper) && checkpoint_of(keeper))
		ucm_scan_settle(keeper->set, keeper->dir);
}

/* What is not known to be good stays unclean. */
static void leave(struct ucm_keeper *keeper)
{
	struct ucm_backing *backing = backing_of(keeper);
	const struct ucm_recovery *recovery = &backing->recovery;
	int err = 0;

	if (backing->readonly || atomic_load(&backing->abandoned))
		return;
	if (atomic_load(&recovery->unclean) && !is_known(keeper))
		return;
	pthread_mutex_lock(&keeper->sync_lock);
	ucm_snapshots_save(keeper->set, keeper->dir);
	err = ucm_recovery_end(&backing->recovery, backing->ctlfd);
	pthread_mutex_unlock(&keeper->sync_lock);
	if (err)
		ucm_error("%s: closing: %s", backing->path, strerror(-err));
}

/* False at the end. */
static bool wait_a_while(struct ucm_keeper *keeper)
{
	struct ucm_store *set = keeper->set;
	struct timespec until;
	unsigned every_s;

	if (atomic_load(&set->closing)) /* the configuration may be gone */
		return false;
	every_s = set->config->checkpoint_s;
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += every_s && every_s < RETRY_S ? every_s : RETRY_S;
	pthread_mutex_lock(&set->upkeep_lock);
	while (!atomic_load(&set->closing) &&
	       pthread_cond_timedwait(&set->upkeep_wake, &set->upkeep_lock,
				      &until) != ETIMEDOUT)
		;
	pthread_mutex_unlock(&set->upkeep_lock);
	return !atomic_load(&set->closing);
}

static void *upkeep_main(void *arg)
{
	struct ucm_keeper *keeper = arg;
	struct ucm_store *set = keeper->set;

	keeper->checkpoint_due_ms =
		ucm_monotonic_ms() + set->config->checkpoint_s * INT64_C(1000);
	while (wait_a_while(keeper))
		look_after(keeper);
	leave(keeper);
	pthread_mutex_lock(&set->upkeep_lock);
	keeper->ended = true;
	pthread_cond_signal(&set->upkeep_ended);
	pthread_mutex_unlock(&set->upkeep_lock);
	return NULL;
}

int ucm_upkeep_start(struct ucm_store *set)
{
	for (unsigned dir = 0; dir < set->dirs.num; dir++) {
		struct ucm_keeper *keeper = &set->keepers[dir];
		int err;

		keeper->ended = false;
		err = pthread_create(&keeper->thread, NULL, upkeep_main,
				     keeper);
		keeper->running = !err;
		keeper->ended = err;
		if (err)
			return -err;
	}
	return 0;
}

static bool have_all_ended(const struct ucm_store *set)
{
	for (unsigned dir = 0; dir < set->dirs.num; dir++) {
		if (!set->keepers[dir].ended)
			return false;
	}
	return true;
}

static bool wait_for_all(struct ucm_store *set)
{
	int64_t until_ms = ucm_monotonic_ms() + set->close_ms;
	struct timespec until = {
		.tv_sec = until_ms / 1000,
		.tv_nsec = until_ms % 1000 * 1000000,
	};
	bool all;

	pthread_mutex_lock(&set->upkeep_lock);
	atomic_store(&set->closing, true);
	pthread_cond_broadcast(&set->upkeep_wake);
	while (!(all = have_all_ended(set)) &&
	       pthread_cond_timedwait(&set->upkeep_ended, &set->upkeep_lock,
				      &until) != ETIMEDOUT)
		;
	pthread_mutex_unlock(&set->upkeep_lock);
	return all;
}

bool ucm_upkeep_stop(struct ucm_store *set)
{
	bool all = wait_for_all(set);

	for (unsigned dir = 0; dir < set->dirs.num; dir++) {
		struct ucm_keeper *keeper = &set->keepers[dir];

		if (!keeper->running)
			continue;
		if (keeper->ended) {
			pthread_join(keeper->thread, NULL);
			continue;
		}
		pthread_detach(keeper->thread);
		ucm_error("%s: does not answer: left as it is",
			  backing_of(keeper)->path);
	}
	return all;
}
