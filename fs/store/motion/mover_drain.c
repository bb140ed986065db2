/* SPDX-License-Identifier: Apache-2.0 */
/* mover_drain.c - directories that are taken out of use: what they have is moved. */
#include <config.h>

#include "fs/store/motion/mover_inside.h"

#include <errno.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "fs/store/jobs.h"
#include "fs/store/motion/batch.h"
#include "fs/store/pressure.h"

static bool wants_dir(const struct ucm_mover_walk *walk,
		      const struct ucm_entry *entry)
{
	return ucm_entry_has_place(entry, walk->dir);
}

struct drain {
	struct ucm_mover_walk walk;
	struct ucm_batch batch;
	uint64_t moved, stays; /* blocks; stays: that have no room elsewhere */
};

/* To the same tier, those below, and those above, the next ones first. */
static struct ucm_tier *drain_next(struct ucm_store *store,
				   struct ucm_tier *home,
				   struct ucm_tier *tier)
{
	struct ucm_tier *below =
		tier >= home ? ucm_tier_below(store, tier) : NULL;

	if (below)
		return below;
	if (tier > home)
		tier = home;
	return tier > store->dirs.tiers ? tier - 1 : NULL;
}

static int drain_copy(struct ucm_movers *movers, ucm_ref ref,
		      struct ucm_tier *home)
{
	struct ucm_store *store = movers->store;
	struct ucm_move_terms move = {
		.soon = true,
		.pace = ucm_mover_pace,
		.arg = movers,
	};
	int err = -ENOSPC;

	for (move.to = home; move.to && err == -ENOSPC;
	     move.to = drain_next(store, home, move.to))
		err = ucm_evict_copy_beside(store, ref, &move);
	return err;
}

static void drain_settle(struct drain *drain)
{
	drain->moved += ucm_batch_settle(&drain->batch, NULL);
}

/* What has been copied takes room twice until it is settled. */
static int drain_one(struct drain *drain, ucm_ref ref,
		     const struct ucm_entry *entry)
{
	struct ucm_movers *movers = drain->walk.movers;
	struct ucm_tier *home = movers->store->dirs.tier_of[drain->walk.dir];
	int err;

	do {
		if (ucm_batch_is_full(&drain->batch))
			drain_settle(drain);
		err = ucm_batch_begin_copy(&drain->batch, ref);
		if (err)
			return err;
		/* one that has another place is to be on disk there, too */
		err = entry->copy ? -EEXIST
				  : drain_copy(movers, ref, home);
		err = ucm_batch_end_copy(&drain->batch, err);
		if (err != -ENOSPC || !drain->batch.num)
			return err;
		drain_settle(drain);
	} while (true);
}

static bool walk_drain(struct ucm_mover_walk *walk, ucm_ref ref)
{
	struct drain *drain = (struct drain *)walk; /* its first member */
	struct ucm_store *store = walk->movers->store;
	struct ucm_medium *medium = store->dirs.at[walk->dir];
	struct ucm_entry entry;
	int err;

	if (!atomic_load(&medium->draining))
		return false;
	if (!ucm_index_get(store->index, ref, &entry))
		return true;
	err = drain_one(drain, ref, &entry);
	drain->stays += err == -ENOSPC;
	if (err)
		ucm_debug(MOVE, 2, "%s: block %s stays: %s", medium->path,
			  ucm_hex(&entry.id).text, strerror(-err));
	return true;
}

static void mover_drain(struct ucm_movers *movers, unsigned dir)
{
	struct drain drain = {
		.walk = {.movers = movers, .wants = wants_dir, .dir = dir},
	};
	struct ucm_medium *medium = movers->store->dirs.at[dir];

	ucm_batch_init(&drain.batch, movers->store, dir, true);
	ucm_mover_walk(&drain.walk, walk_drain);
	drain_settle(&drain);
	/* a pass that --stop has ended says nothing */
	atomic_store(&medium->stays, atomic_load(&medium->draining) * drain.stays);
	movers->drained_ms[dir] = drain.moved ? 0 : ucm_monotonic_ms();
}

/* A pass that has moved nothing is not repeated at once: it reads the index. */
static bool drain_is_due(const struct ucm_movers *movers, unsigned dir)
{
	int64_t last = movers->drained_ms[dir];

	return !last || ucm_monotonic_ms() - last >= UCM_MOVER_TICK_MS;
}

void ucm_movers_drain_all(struct ucm_movers *movers)
{
	struct ucm_store *store = movers->store;

	for (unsigned dir = 0; dir < store->dirs.num; dir++) {
		struct ucm_medium *medium = store->dirs.at[dir];

		if (!atomic_load(&medium->draining) ||
		    !atomic_load(&medium->blocks) ||
		    !ucm_mover_enter(movers, dir))
			continue;
		if (drain_is_due(movers, dir))
			mover_drain(movers, dir);
		ucm_mover_leave(movers, dir);
	}
}

void ucm_movers_drain(struct ucm_store *store, unsigned dir, bool on)
{
	atomic_store(&store->dirs.at[dir]->stays, 0);
	atomic_store(&store->dirs.at[dir]->draining, on);
	if (on)
		ucm_jobs_wake(store->jobs);
}
