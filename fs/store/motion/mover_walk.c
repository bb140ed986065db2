/* SPDX-License-Identifier: Apache-2.0 */
/* mover_walk.c - what movers have in common; see mover_inside.h. */
#include <config.h>

#include "fs/store/motion/mover_inside.h"

#include <errno.h>
#include <time.h>

#include "common/clock.h"
#include "fs/store/jobs.h"

/* ---- how fast ---- */

void ucm_mover_sleep(int64_t ms)
{
	const struct timespec time = {
		.tv_sec = ms / 1000,
		.tv_nsec = ms % 1000 * 1000000,
	};

	nanosleep(&time, NULL);
}

/* Not of one that does not answer, for which it would wait. */
void ucm_mover_beat(struct ucm_movers *movers)
{
	struct ucm_dirs *dirs = &movers->store->dirs;

	for (unsigned dir = 0; dir < dirs->num; dir++) {
		if (ucm_medium_answers(dirs->at[dir]))
			ucm_medium_beat(dirs->at[dir], UCM_BEAT_SHOW);
	}
}

/* What is copied is paid for in time; who comes before that is over waits. */
void ucm_mover_pace(void *arg, uint64_t bytes)
{
	struct ucm_movers *movers = arg;
	uint64_t rate = movers->store->config->move_rate;
	int64_t cost, until, now;

	ucm_mover_beat(movers);
	if (!rate)
		return;
	cost = (int64_t)(bytes * 1000 / rate);
	now = ucm_monotonic_ms();
	until = atomic_load(&movers->paid_ms);
	while (!atomic_compare_exchange_weak(
		&movers->paid_ms, &until, (until > now ? until : now) + cost))
		;
	until = atomic_load(&movers->paid_ms);
	while (!atomic_load(&movers->store->life.stopping) &&
	       (now = ucm_monotonic_ms()) < until) {
		ucm_mover_beat(movers);
		ucm_mover_sleep(until - now < 100 ? until - now : 100);
	}
}

/* ---- one on a directory ---- */

bool ucm_mover_enter(struct ucm_movers *movers, unsigned dir)
{
	bool entered;

	pthread_mutex_lock(&movers->lock);
	entered = !movers->busy[dir];
	movers->busy[dir] = true;
	pthread_mutex_unlock(&movers->lock);
	return entered;
}

void ucm_mover_leave(struct ucm_movers *movers, unsigned dir)
{
	pthread_mutex_lock(&movers->lock);
	movers->busy[dir] = false;
	pthread_mutex_unlock(&movers->lock);
}

/* ---- one block ---- */

int ucm_mover_save(struct ucm_store *store, ucm_ref ref,
		      const struct ucm_entry *entry, struct ucm_move_terms *move)
{
	struct ucm_tier *from = store->dirs.tier_of[entry->dir];
	int err;

	move->durable = store->config->durability != UCM_DURABILITY_NONE;
	err = ucm_evict_and_copy_down(store, ref, from, move);
	if (!err)
		ucm_count(&from->stats.written_below);
	return err;
}

void ucm_mover_save_awaited(struct ucm_movers *movers)
{
	struct ucm_jobs *jobs = movers->jobs;
	ucm_ref ref;

	while (ucm_jobs_take_through(jobs, &ref)) {
		struct ucm_move_terms move = { .open = true };
		struct ucm_entry entry;
		int err = -ENOENT;

		if (ucm_index_get(movers->store->index, ref, &entry))
			err = ucm_mover_save(movers->store, ref, &entry, &move);
		ucm_jobs_end_through(jobs, ref, err);
	}
}

/* ---- walks of the index ---- */

static bool walk_note(struct ucm_entry *entry, ucm_ref ref, void *arg)
{
	struct ucm_mover_walk *walk = arg;

	if (!(entry->flags & UCM_ENTRY_LEAVING) && walk->wants(walk, entry))
		walk->refs[walk->num++] = ref;
	return false;
}

bool ucm_mover_walk(struct ucm_mover_walk *walk,
		    bool (*fn)(struct ucm_mover_walk *walk, ucm_ref ref))
{
	struct ucm_store *store = walk->movers->store;

	for (unsigned shard = 0; shard < UCM_BUCKETS; shard++) {
		uint32_t cursor = 0;
		bool more;

		do {
			walk->num = 0;
			more = ucm_index_walk(store->index, shard, &cursor,
					      walk_note, walk);
			for (unsigned i = 0; i < walk->num; i++) {
				ucm_mover_save_awaited(walk->movers);
				if (atomic_load(&store->life.stopping) ||
				    !fn(walk, walk->refs[i]))
					return false;
			}
		} while (more);
	}
	return true;
}

bool ucm_mover_wants_saved(const struct ucm_mover_walk *walk,
			   const struct ucm_entry *entry)
{
	return ucm_jobs_is_unsaved(walk->movers->store, entry);
}
