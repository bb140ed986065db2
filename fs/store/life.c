/* SPDX-License-Identifier: Apache-2.0 */
/*
 * life.c - the store's life: open, begin, start, serving, quiet, close.
 *
 * open reads; begin marks the directories as in use; start begins the threads
 * of the scan and a keeper for each directory; quiet ends the scan, and nobody
 * is told of losses any more; close ends the keepers and leaves the
 * directories.
 */
#include <config.h>

#include "fs/store/inside.h"

#include <errno.h>
#include <stdlib.h>
#include <pthread.h>

#include "common/clock.h"
#include "fs/index/memory.h"
#include "fs/tier/lock.h"

/* A sync of all that was written lately may take this long; what it leaves is
 * only checked once more. */
#define CLOSE_MS 30000

static void name_tiers(struct ucm_store *set)
{
	struct ucm_index_memory *live = ucm_index_live(set->index);

	for (unsigned dir = 0; dir < set->dirs.num; dir++) {
		const struct ucm_tier *tier = set->dirs.tier_of[dir];

		ucm_index_memory_name_tier(
			live, dir, (unsigned)(tier - set->dirs.tiers),
			tier->name);
	}
}

static void init_name_locks(struct ucm_store *set)
{
	pthread_mutexattr_t attr;

	pthread_mutexattr_init(&attr);
	pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
	for (unsigned i = 0; i < 256; i++)
		pthread_mutex_init(&set->name_locks[i], &attr);
	pthread_mutexattr_destroy(&attr);
}

static void init_keepers(struct ucm_store *set)
{
	for (unsigned dir = 0; dir < UCM_MAX_DIRS; dir++) {
		struct ucm_keeper *keeper = &set->keepers[dir];

		keeper->set = set;
		keeper->dir = dir;
		keeper->ended = true; /* it has not begun */
		pthread_mutex_init(&keeper->sync_lock, NULL);
	}
}

int ucm_store_open(struct ucm_config *config, struct ucm_store **out,
		   struct ucm_complaint *complaint)
{
	struct ucm_store *set = calloc(1, sizeof(*set));
	int err;

	ucm_complain(complaint, "out of memory");
	if (!set)
		return -ENOMEM;
	set->config = config;
	init_name_locks(set);
	ucm_unread_init(&set->unread);
	set->close_ms = CLOSE_MS;
	pthread_mutex_init(&set->loss_lock, NULL);
	pthread_mutex_init(&set->upkeep_lock, NULL);
	ucm_cond_init_monotonic(&set->upkeep_wake);
	ucm_cond_init_monotonic(&set->upkeep_ended);
	init_keepers(set);
	err = ucm_config_check(config, complaint);
	if (!err)
		err = ucm_dirs_open(&set->dirs, config, complaint);
	if (!err)
		err = ucm_index_new(&set->index);
	if (!err)
		err = ucm_namespace_init(&set->names, set->dirs.num);
	if (!err)
		name_tiers(set);
	if (!err)
		err = ucm_store_find_spaces(set, complaint);
	if (err) {
		ucm_store_close(set);
		return err;
	}
	*out = set;
	return 0;
}

int ucm_store_begin(struct ucm_store *set)
{
	int err = 0;

	for (unsigned i = 0; i < set->dirs.num && !err; i++)
		err = ucm_backing_begin(set->dirs.at[i]);
	set->begun = !err;
	return err;
}

int ucm_store_start(struct ucm_store *set)
{
	int err = set->begun ? 0 : ucm_store_begin(set);

	if (!err)
		err = ucm_scan_start(set);
	if (!err)
		err = ucm_keepers_start(set);
	return err;
}

static void tell_all(struct ucm_store *set, enum ucm_lock_state state,
		     dev_t mount)
{
	for (unsigned i = 0; i < set->dirs.num; i++)
		ucm_lock_tell(set->dirs.at[i]->lockfd, state, mount);
}

void ucm_store_serving(struct ucm_store *set, dev_t mount)
{
	tell_all(set, UCM_LOCK_SERVING, mount);
}

void ucm_store_quiet(struct ucm_store *set)
{
	if (!atomic_exchange(&set->stopping, true))
		tell_all(set, UCM_LOCK_ENDING, 0);
	ucm_scan_stop(set);
	/* the keepers are still there, and one may be at it */
	pthread_mutex_lock(&set->loss_lock);
	set->on_loss = NULL;
	pthread_mutex_unlock(&set->loss_lock);
}

/* A thread hangs in a directory that does not answer, and may come back: the
 * others are given free, and what it may touch stays. */
static void leave_behind(struct ucm_store *set)
{
	for (unsigned dir = 0; dir < set->dirs.num; dir++) {
		if (set->keepers[dir].ended)
			ucm_backing_close(set->dirs.at[dir], false);
	}
}

void ucm_store_close(struct ucm_store *set)
{
	if (!set)
		return;
	ucm_store_quiet(set);
	if (!ucm_keepers_stop(set)) {
		leave_behind(set);
		return;
	}
	ucm_snapshots_free(set);
	ucm_dirs_close(&set->dirs);
	ucm_index_free(set->index);
	if (set->names.spaces)
		ucm_namespace_fini(&set->names);
	for (unsigned dir = 0; dir < UCM_MAX_DIRS; dir++)
		pthread_mutex_destroy(&set->keepers[dir].sync_lock);
	pthread_mutex_destroy(&set->loss_lock);
	pthread_mutex_destroy(&set->upkeep_lock);
	pthread_cond_destroy(&set->upkeep_wake);
	pthread_cond_destroy(&set->upkeep_ended);
	for (unsigned i = 0; i < 256; i++)
		pthread_mutex_destroy(&set->name_locks[i]);
	ucm_unread_fini(&set->unread);
	free(set);
}
