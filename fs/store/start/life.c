/* SPDX-License-Identifier: Apache-2.0 */
/*
 * life.c - the store's life: open, begin, start, serving, quiet, close.
 *
 * open reads; begin marks the directories as in use; start begins the threads
 * of the scan and a keeper for each directory; quiet ends the scan and
 * the reports of losses; close ends the keepers and leaves the
 * directories.
 */
#include <config.h>

#include "fs/store/start/start.h"

#include <errno.h>
#include <stdlib.h>
#include <pthread.h>

#include "common/clock.h"
#include "common/error.h"
#include "fs/index/memory.h"
#include "fs/store/endurance.h"
#include "fs/store/jobs.h"
#include "fs/store/motion/motion.h"
#include "fs/store/pressure.h"

/* A sync of all that was written lately may take this long; what it leaves is
 * only checked once more. */
#define CLOSE_MS 30000

static void name_tiers(struct ucm_store *store)
{
	struct ucm_index_memory *live = ucm_index_live(store->index);

	for (unsigned dir = 0; dir < store->dirs.num; dir++) {
		const struct ucm_tier *tier = store->dirs.tier_of[dir];

		ucm_index_memory_name_tier(
			live, dir, (unsigned)(tier - store->dirs.tiers),
			tier->name);
	}
}

static void init_name_locks(struct ucm_store *store)
{
	pthread_mutexattr_t attr;

	pthread_mutexattr_init(&attr);
	pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
	for (unsigned i = 0; i < 256; i++)
		pthread_mutex_init(&store->name_locks[i], &attr);
	pthread_mutexattr_destroy(&attr);
}

static void init_keepers(struct ucm_store *store)
{
	for (unsigned dir = 0; dir < UCM_MAX_DIRS; dir++) {
		struct ucm_keeper *keeper = &store->keepers[dir];

		keeper->store = store;
		keeper->dir = dir;
		keeper->ended = true; /* it has not begun */
		pthread_mutex_init(&keeper->sync_lock, NULL);
		pthread_mutex_init(&keeper->pins_lock, NULL);
	}
}

/* The lowest tier has none to write to but itself; what is in memory alone, or what
 * other hosts may look for, is copied down. */
static void life_init_tiers(struct ucm_store *store)
{
	for (unsigned i = 0; i < store->dirs.num_tiers; i++) {
		struct ucm_tier *tier = &store->dirs.tiers[i];
		struct ucm_tier *below = ucm_tier_below(store, tier);

		if (!below)
			tier->write_mode = UCM_WRITE_STAY;
		else if (!store->config->tiers[i].has_write_mode &&
			 (tier->dirs[0]->flags & UCM_MEDIUM_VOLATILE ||
			  below->dirs[0]->hosts))
			tier->write_mode = UCM_WRITE_BACK;
	}
}

int ucm_store_open(struct ucm_config *config, struct ucm_store **out,
		   struct ucm_error *error)
{
	struct ucm_store *store = calloc(1, sizeof(*store));
	int err;

	/* unless something else is known below */
	ucm_error_set(error, -ENOMEM, "out of memory");
	if (!store)
		return -ENOMEM;
	store->config = config;
	init_name_locks(store);
	ucm_holds_init(&store->holds);
	ucm_pins_init(&store->pins);
	ucm_offers_init(&store->offers);
	store->life.close_ms = CLOSE_MS;
	pthread_mutex_init(&store->life.lock, NULL);
	ucm_cond_init_monotonic(&store->life.wake);
	ucm_cond_init_monotonic(&store->life.ended);
	init_keepers(store);
	err = ucm_config_check(config, error);
	if (!err)
		err = ucm_dirs_open(&store->dirs, config, error);
	if (!err)
		err = ucm_index_new(&store->index);
	if (!err)
		ucm_index_memory_set_reverify(ucm_index_live(store->index),
					      config->reverify_s);
	if (!err)
		err = ucm_namespace_init(&store->names, store->dirs.num);
	if (!err) {
		life_init_tiers(store);
		err = ucm_pressure_init(store);
	}
	if (!err)
		err = ucm_endurance_open(store);
	if (!err)
		err = ucm_movers_init(store);
	if (!err)
		err = ucm_value_open(&store->value, config->policy, error);
	if (!err)
		name_tiers(store);
	if (!err)
		err = ucm_store_find_spaces(store, error);
	if (err) {
		ucm_store_close(store);
		return err;
	}
	*out = store;
	return 0;
}

int ucm_store_begin(struct ucm_store *store)
{
	int err = 0;

	for (unsigned i = 0; i < store->dirs.num && !err; i++)
		err = ucm_medium_begin(store->dirs.at[i]);
	store->life.begun = !err;
	return err;
}

int ucm_store_start(struct ucm_store *store)
{
	int err = store->life.begun ? 0 : ucm_store_begin(store);

	if (!err)
		err = ucm_scan_start(store);
	if (!err)
		err = ucm_keepers_start(store);
	if (!err)
		err = ucm_movers_start(store);
	return err;
}

void ucm_store_ending(struct ucm_store *store)
{
	for (unsigned i = 0; i < store->dirs.num; i++)
		ucm_medium_beat(store->dirs.at[i], UCM_BEAT_ENDING);
}

void ucm_store_quiet(struct ucm_store *store)
{
	if (!atomic_exchange(&store->life.stopping, true))
		ucm_store_ending(store);
	if (store->jobs)
		ucm_jobs_start(store->jobs, false);
	ucm_scan_stop(store);
}

/* A thread hangs in a directory that does not answer, and may come back: the
 * others are given free, and what it may touch stays. */
static void life_leave_behind(struct ucm_store *store)
{
	for (unsigned dir = 0; dir < store->dirs.num; dir++) {
		if (store->keepers[dir].ended)
			ucm_medium_close(store->dirs.at[dir], false);
	}
}

void ucm_store_close(struct ucm_store *store)
{
	bool moved;

	if (!store)
		return;
	ucm_store_quiet(store);
	moved = ucm_movers_stop(store);
	if (!ucm_keepers_stop(store) || store->life.left || !moved) {
		life_leave_behind(store);
		return;
	}
	ucm_snapshots_free(store);
	ucm_movers_fini(store);
	ucm_pressure_fini(store);
	ucm_endurance_close(store);
	ucm_value_close(&store->value);
	ucm_dirs_close(&store->dirs);
	ucm_index_free(store->index);
	ucm_holds_fini(&store->holds);
	ucm_quotas_free(store);
	if (store->names.spaces)
		ucm_namespace_fini(&store->names);
	for (unsigned dir = 0; dir < UCM_MAX_DIRS; dir++) {
		pthread_mutex_destroy(&store->keepers[dir].sync_lock);
		pthread_mutex_destroy(&store->keepers[dir].pins_lock);
	}
	ucm_pins_fini(&store->pins);
	pthread_mutex_destroy(&store->life.lock);
	pthread_cond_destroy(&store->life.wake);
	pthread_cond_destroy(&store->life.ended);
	for (unsigned i = 0; i < 256; i++)
		pthread_mutex_destroy(&store->name_locks[i]);
	ucm_offers_fini(&store->offers);
	free(store);
}
