/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mover.c - the threads that move blocks; see motion.h.
 *
 * What there is to do, in the order in which a mover looks:
 *
 *   0. new blocks of tiers with write=through, between any two other blocks: a
 *      copy to the tier below, for which a commit waits;
 *   1. spaces over their quotas, and directories over their high mark: what is
 *      worth least leaves them, down to the low mark (quota_evict.c, evict.c);
 *   2. new blocks of tiers with write=back: a copy to the tier below;
 *   3. blocks that are used often: a copy to the fastest tier, which is where
 *      they are read from then;
 *   4. directories that are being drained; and, once, blocks that lie in another
 *      directory than placement says, because one was added.
 *
 * 0, 2 and 3 are asked for in jobs.h.
 *
 * Each piece of work is one block. Between two, and while bytes are copied, a
 * mover gives way: by the rate that is configured, and by being of the idle I/O
 * class, except where writers need the room that it makes.
 *
 * One mover works on a directory at a time (busy).
 */
#include <config.h>

#include "fs/store/motion/mover_inside.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/process.h"
#include "fs/store/endurance.h"
#include "fs/store/jobs.h"
#include "fs/store/pressure.h"

#define BATCH_BYTES (UINT64_C(64) << 20) /* freed before it looks again, at most */
#define PART_BYTES (UINT64_C(1) << 20)   /* and at least, if there is so much */

/* What this thread does now, nobody waits for (idle), or somebody does. */
static void mover_give_way(bool idle)
{
	static _Thread_local int is_idle = -1;

	if (is_idle != idle)
		ucm_process_give_way(idle);
	is_idle = idle;
}

/* ---- the work ---- */

/* Writers may evict the same excess: so it is looked at again after a part of it. */
static uint64_t mover_part_of(uint64_t excess)
{
	uint64_t part = excess / 8;

	if (part < PART_BYTES)
		part = PART_BYTES;
	if (part > BATCH_BYTES)
		part = BATCH_BYTES;
	return excess < part ? excess : part;
}

static bool mover_relieve(struct ucm_movers *movers, unsigned dir)
{
	struct ucm_store *store = movers->store;
	const struct ucm_move_terms pace = {.pace = ucm_mover_pace, .arg = movers};
	uint64_t excess, freed = 0;

	/* one that does not answer cannot say how full it is */
	if (!ucm_medium_answers(store->dirs.at[dir]))
		return false;
	/* in any case: others see what it says */
	excess = ucm_pressure(store, dir);
	if (!store->value.policy)
		return false;
	if (!excess)
		ucm_pressure_ease(store, dir, 0);
	if (!excess || !ucm_mover_enter(movers, dir))
		return false;
	ucm_evict_bytes(store, dir, mover_part_of(excess), UCM_EVICTION_MOVING,
			&pace, &freed);
	/* below the high mark it goes on, to the low one */
	ucm_pressure_ease(store, dir, freed);
	ucm_mover_leave(movers, dir);
	return freed;
}

static bool mover_relieve_all(struct ucm_movers *movers)
{
	bool any = false;

	/* slow tiers first: what leaves a fast one needs their room */
	for (unsigned dir = movers->store->dirs.num; dir-- > 0;) {
		ucm_mover_save_awaited(movers);
		any |= mover_relieve(movers, dir);
	}
	return any;
}

static bool mover_save_one(struct ucm_movers *movers)
{
	struct ucm_store *store = movers->store;
	struct ucm_move_terms move = {.pace = ucm_mover_pace, .arg = movers};
	struct ucm_entry entry;
	ucm_ref ref;
	int err;

	if (!ucm_jobs_take(movers->jobs, &movers->jobs->down, &ref))
		return false;
	if (!ucm_index_get(store->index, ref, &entry) ||
	    !ucm_jobs_is_unsaved(store, &entry))
		return true;
	/* what might have been refused need not be below; a person's is to be */
	move.may_refuse = ucm_offers_took(
		store, &(struct ucm_key){.id = entry.id, .space = entry.space});
	err = ucm_mover_save(store, ref, &entry, &move);
	if (err == -ENOSPC && move.may_refuse) {
		ucm_store_withhold(store, ref);
		return true;
	}
	if (err && err != -ENOENT && err != -EEXIST) {
		ucm_debug(MOVE, 2, "block %s: not below yet: %s",
			  ucm_hex(&entry.id).text, strerror(-err));
		ucm_jobs_lack(movers->jobs); /* it is tried again */
		return false;
	}
	return true;
}

/* Who asks for a block knows better than the policy; a use is a guess, and one
 * that would be the next to leave is not copied. */
static int mover_promote(struct ucm_movers *movers, const struct ucm_entry *entry,
			 ucm_ref ref, bool asked)
{
	struct ucm_store *store = movers->store;
	struct ucm_move_terms move = {
		.to = ucm_jobs_tier_above(store, entry->dir),
		.first = true,
		.may_refuse = !asked,
		.pace = ucm_mover_pace,
		.arg = movers,
	};
	int err;

	if (!move.to)
		return -EEXIST;
	if (!asked && !ucm_evict_would_stay(store, entry, move.to)) {
		ucm_count(&move.to->stats.promotions_refused);
		return -ENOSPC;
	}
	err = ucm_evict_and_copy(store, ref, &move);
	if (err)
		return err;
	ucm_count(&move.to->stats.promoted);
	ucm_count_more(&move.to->stats.promoted_bytes, entry->size);
	return 0;
}

static bool mover_promote_one(struct ucm_movers *movers)
{
	struct ucm_jobs *jobs = movers->jobs;
	struct ucm_entry entry;
	bool asked;
	ucm_ref ref;
	int err;

	asked = ucm_jobs_take(jobs, &jobs->warm, &ref);
	if (!asked && !ucm_jobs_take(jobs, &jobs->up, &ref))
		return false;
	if (!ucm_index_get(movers->store->index, ref, &entry))
		return true;
	err = mover_promote(movers, &entry, ref, asked);
	if (err) /* whoever uses it asks again */
		ucm_debug(MOVE, 2, "block %s: not promoted: %s",
			  ucm_hex(&entry.id).text, strerror(-err));
	return true;
}

static bool wants_unsaved(const struct ucm_mover_walk *walk,
			  const struct ucm_entry *entry)
{
	return !(entry->flags & UCM_ENTRY_WRITABLE) &&
	       ucm_mover_wants_saved(walk, entry);
}

static bool walk_queue(struct ucm_mover_walk *walk, ucm_ref ref)
{
	return ucm_jobs_put_down(walk->movers->jobs, ref);
}

/* At the start, when a directory has been read, and when the queue was full, or a copy
 * has failed. */
static void mover_find_unsaved(struct ucm_movers *movers)
{
	struct ucm_mover_walk walk = {.movers = movers, .wants = wants_unsaved};
	struct ucm_jobs *jobs = movers->jobs;
	uint64_t blocks, bytes;
	bool lacks;

	ucm_jobs_count_unsaved(movers->store, &blocks, &bytes);
	pthread_mutex_lock(&jobs->lock);
	lacks = jobs->down_lacks && !jobs->down.num;
	jobs->down_lacks &= !lacks;
	pthread_mutex_unlock(&jobs->lock);
	if (lacks && blocks)
		ucm_mover_walk(&walk, walk_queue);
}

/* Where placement wants it, if that is its tier's affair. */
static bool wants_better(const struct ucm_mover_walk *walk,
			 const struct ucm_entry *entry)
{
	const struct ucm_store *store = walk->movers->store;
	struct ucm_tier *tier = store->dirs.tier_of[entry->dir];
	uint8_t order[UCM_MAX_DIRS];

	if (tier->num_dirs < 2 || tier->readonly || entry->copy)
		return false;
	ucm_placement_order(UCM_PLACEMENT_RENDEZVOUS,
			    (const uint8_t(*)[16])tier->uuids, tier->num_dirs,
			    &entry->id, 0, order);
	return tier->first + order[0] != entry->dir &&
	       !atomic_load(&tier->dirs[order[0]]->draining);
}

static bool walk_rebalance(struct ucm_mover_walk *walk, ucm_ref ref)
{
	struct ucm_movers *movers = walk->movers;
	struct ucm_store *store = movers->store;
	struct ucm_move_terms move = {
		.first = true,
		.durable = true,
		.within = true,
		.pace = ucm_mover_pace,
		.arg = movers,
	};
	struct ucm_entry entry;

	if (!ucm_index_get(store->index, ref, &entry))
		return true;
	move.to = store->dirs.tier_of[entry.dir];
	/* another mover that evicts there would evict too much */
	if (ucm_endurance_is_spent(store, move.to) ||
	    !ucm_mover_enter(movers, entry.dir))
		return false;
	if (!ucm_store_copy(store, ref, &move, NULL))
		ucm_store_drop_place(store, ref, entry.dir, NULL);
	ucm_mover_leave(movers, entry.dir);
	return true;
}

/* To walk the index for nothing, each second, would be too much. */
static bool is_any_spent(struct ucm_store *store)
{
	for (unsigned i = 0; i < store->dirs.num_tiers; i++) {
		if (ucm_endurance_is_spent(store, &store->dirs.tiers[i]))
			return true;
	}
	return false;
}

static void mover_rebalance(struct ucm_movers *movers)
{
	struct ucm_mover_walk walk = {.movers = movers, .wants = wants_better};
	struct ucm_store *store = movers->store;

	if (store->dirs.placement != UCM_PLACEMENT_RENDEZVOUS ||
	    is_any_spent(store) ||
	    !store->value.policy ||
	    !atomic_load_explicit(&store->scan.complete, memory_order_acquire))
		return;
	if (!atomic_exchange(&movers->rebalanced, true) &&
	    !ucm_mover_walk(&walk, walk_rebalance))
		/* it goes on when it may write again */
		atomic_store(&movers->rebalanced, false);
}

/* ---- threads ---- */

static void mover_learn(struct ucm_movers *movers)
{
	struct ucm_store *store = movers->store;
	int64_t now = ucm_monotonic_ms();
	bool due;

	pthread_mutex_lock(&movers->lock);
	due = now - movers->learnt_ms >= UCM_MOVER_TICK_MS;
	if (due)
		movers->learnt_ms = now;
	pthread_mutex_unlock(&movers->lock);
	if (!due)
		return;
	ucm_value_learn(&store->value, atomic_load(&store->blocks));
	ucm_endurance_count_files(store);
	for (unsigned dir = 0; dir < store->dirs.num; dir++)
		ucm_evict_relist(store, dir);
	ucm_quota_relist(store);
}

/* One round: whether there may be more to do at once. */
static bool mover_round(struct ucm_movers *movers)
{
	bool any;

	mover_learn(movers);
	mover_give_way(false);
	ucm_mover_save_awaited(movers);
	/* or a parent might go whose children have not been read */
	any = ucm_store_knows_all(movers->store) &&
	      (ucm_quota_relieve(movers->store) | mover_relieve_all(movers));
	mover_find_unsaved(movers);
	any |= mover_save_one(movers);
	mover_give_way(true);
	if (any)
		return true;
	if (mover_promote_one(movers))
		return true;
	ucm_movers_drain_all(movers);
	mover_rebalance(movers);
	return false;
}

static void mover_wait(struct ucm_movers *movers)
{
	struct ucm_jobs *jobs = movers->jobs;
	const struct timespec until = ucm_monotonic_in_ms(UCM_MOVER_TICK_MS);

	pthread_mutex_lock(&jobs->lock);
	while (!jobs->woken && !atomic_load(&movers->store->life.stopping) &&
	       pthread_cond_timedwait(&jobs->wake, &jobs->lock, &until) !=
		       ETIMEDOUT)
		;
	jobs->woken = false;
	pthread_mutex_unlock(&jobs->lock);
}

static void *mover_main(void *arg)
{
	struct ucm_movers *movers = arg;

	pthread_setname_np(pthread_self(), "ucmfs-mover");
	while (!atomic_load(&movers->store->life.stopping)) {
		ucm_mover_beat(movers);
		if (!mover_round(movers))
			mover_wait(movers);
	}
	pthread_mutex_lock(&movers->lock);
	movers->num_left--;
	pthread_cond_signal(&movers->ended);
	pthread_mutex_unlock(&movers->lock);
	return NULL;
}

int ucm_movers_init(struct ucm_store *store)
{
	struct ucm_movers *movers = calloc(1, sizeof(*movers));

	store->victims = calloc(store->dirs.num, sizeof(*store->victims));
	store->movers = movers;
	store->jobs = ucm_jobs_new();
	if (!movers || !store->victims || !store->jobs)
		return -ENOMEM;
	movers->store = store;
	movers->jobs = store->jobs;
	pthread_mutex_init(&movers->lock, NULL);
	ucm_cond_init_monotonic(&movers->ended);
	for (unsigned dir = 0; dir < store->dirs.num; dir++)
		ucm_victims_init(&store->victims[dir],
				 (uint64_t)ucm_monotonic_ms() + dir);
	return 0;
}

void ucm_movers_fini(struct ucm_store *store)
{
	struct ucm_movers *movers = store->movers;

	for (unsigned dir = 0; store->victims && dir < store->dirs.num; dir++)
		ucm_victims_fini(&store->victims[dir]);
	free(store->victims);
	ucm_jobs_free(store->jobs);
	if (!movers)
		return;
	pthread_mutex_destroy(&movers->lock);
	pthread_cond_destroy(&movers->ended);
	free(movers);
}

int ucm_movers_start(struct ucm_store *store)
{
	struct ucm_movers *movers = store->movers;

	for (unsigned i = 0; i < store->config->movers; i++) {
		int err = pthread_create(&movers->threads[i], NULL, mover_main,
					 movers);

		if (err)
			return i ? 0 : -err;
		pthread_mutex_lock(&movers->lock);
		movers->num_threads++;
		movers->num_left++;
		pthread_mutex_unlock(&movers->lock);
	}
	ucm_jobs_start(movers->jobs, true);
	return 0;
}

static bool wait_for_movers(struct ucm_movers *movers)
{
	const struct timespec until =
		ucm_monotonic_in_ms(movers->store->life.close_ms);
	bool all;

	pthread_mutex_lock(&movers->lock);
	while (movers->num_left &&
	       pthread_cond_timedwait(&movers->ended, &movers->lock, &until) !=
		       ETIMEDOUT)
		;
	all = !movers->num_left;
	pthread_mutex_unlock(&movers->lock);
	return all;
}

bool ucm_movers_stop(struct ucm_store *store)
{
	struct ucm_movers *movers = store->movers;
	bool all;

	if (!movers || !movers->num_threads)
		return true;
	all = wait_for_movers(movers);
	for (unsigned i = 0; i < movers->num_threads; i++) {
		if (all)
			pthread_join(movers->threads[i], NULL);
		else
			pthread_detach(movers->threads[i]);
	}
	if (!all)
		ucm_error("a mover does not end: a directory does not answer");
	movers->num_threads = 0;
	return all;
}
