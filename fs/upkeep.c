/* SPDX-License-Identifier: Apache-2.0 */
/*
 * upkeep.c - the thread that renews the checkpoints, and tries again to read
 * directories that could not be read.
 *
 * A checkpoint says that everything older than it is on disk. So there is none
 * before the scan is over and nothing is in doubt, and none if nothing was
 * committed since the last. With durability=data or full every block is on
 * disk by itself, but the checkpoint spares the next start from checking them.
 */
#include <config.h>

#include "fs/tierset.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "common/log.h"

static bool all_known(struct ucm_tierset *set)
{
	return atomic_load(&set->scanned) && !atomic_load(&set->doubts);
}

static bool any_unclean(const struct ucm_tierset *set)
{
	for (unsigned i = 0; i < set->num_dirs; i++) {
		if (!set->dirs[i]->readonly && !set->dirs[i]->recovery.lost &&
		    set->dirs[i]->recovery.unclean)
			return true;
	}
	return false;
}

static int checkpoint_locked(struct ucm_tierset *set)
{
	uint64_t commits = atomic_load(&set->stats.commits);
	bool failed = false;

	if (!all_known(set))
		return -EAGAIN;
	for (unsigned i = 0; i < set->num_dirs; i++) {
		struct ucm_backing *backing = set->dirs[i];
		int err;

		if (backing->readonly || backing->recovery.lost)
			continue;
		err = ucm_recovery_checkpoint(&backing->recovery,
					      backing->ctlfd);
		if (err) { /* its old one goes on to hold */
			ucm_backing_failed(backing, "checkpoint", err);
			failed = true;
			continue;
		}
		backing->recovery.unclean = false;
	}
	if (failed)
		return -EIO;
	atomic_store(&set->commits_at_checkpoint, commits);
	ucm_count(&set->stats.checkpoints);
	return 0;
}

int ucm_upkeep_checkpoint(struct ucm_tierset *set)
{
	int err;

	pthread_mutex_lock(&set->checkpoint_lock);
	err = checkpoint_locked(set);
	pthread_mutex_unlock(&set->checkpoint_lock);
	return err;
}

static bool is_due(struct ucm_tierset *set)
{
	return atomic_load(&set->stats.commits) !=
		       atomic_load(&set->commits_at_checkpoint) ||
	       any_unclean(set);
}

static void *upkeep_main(void *arg)
{
	struct ucm_tierset *set = arg;
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	pthread_mutex_lock(&set->upkeep_lock);
	while (!atomic_load(&set->stopping)) {
		until.tv_sec += set->config->checkpoint_s;
		while (!atomic_load(&set->stopping) &&
		       pthread_cond_timedwait(&set->upkeep_wake,
					      &set->upkeep_lock,
					      &until) != ETIMEDOUT)
			;
		if (atomic_load(&set->stopping))
			break;
		pthread_mutex_unlock(&set->upkeep_lock);
		ucm_scan_retry(set);
		ucm_tierset_read_again(set, NULL);
		if (is_due(set))
			ucm_upkeep_checkpoint(set);
		clock_gettime(CLOCK_MONOTONIC, &until);
		pthread_mutex_lock(&set->upkeep_lock);
	}
	pthread_mutex_unlock(&set->upkeep_lock);
	return NULL;
}

int ucm_upkeep_start(struct ucm_tierset *set)
{
	int err;

	if (set->config->checkpoint_s) {
		err = pthread_create(&set->upkeep_thread, NULL, upkeep_main,
				     set);
		if (err)
			return -err;
	}
	set->upkeep_running = true;
	return 0;
}

void ucm_upkeep_stop(struct ucm_tierset *set)
{
	if (!set->upkeep_running || !set->config->checkpoint_s)
		return;
	pthread_mutex_lock(&set->upkeep_lock);
	pthread_cond_broadcast(&set->upkeep_wake);
	pthread_mutex_unlock(&set->upkeep_lock);
	pthread_join(set->upkeep_thread, NULL);
}
