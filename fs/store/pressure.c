/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pressure.c - by how much directories are over their marks; see pressure.h.
 *
 * Limits are of directories and of tiers; between the high and the low mark,
 * percents of them, nothing is done. A file system has no limit but its size,
 * which strangers share: what is to be left free there is "reserve". Where none
 * of these says so, a directory is full when a new block finds no room; then a
 * part of what it has is to go, so that the next ones find some.
 *
 * A file system may run out of inodes, too. What strangers have of them is not
 * ours to make up for: the marks are percents of those that are free and of our
 * own, so that we never give away all blocks because of others.
 *
 * A file system is asked a few times a second and not for each block. In between
 * its free space is what it was, less what we have written since, or more by what
 * we have removed.
 */
#include <config.h>

#include "fs/store/pressure.h"

#include <pthread.h>
#include <stdlib.h>

#include "common/clock.h"
#include "fs/medium/shared/hosts.h"
#include "fs/tier/wait.h"

#define VIEW_AGE_MS 250

int ucm_pressure_init(struct ucm_store *store)
{
	store->views = calloc(store->dirs.num, sizeof(*store->views));
	if (!store->views)
		return -ENOMEM;
	for (unsigned dir = 0; dir < store->dirs.num; dir++)
		pthread_mutex_init(&store->views[dir].lock, NULL);
	return 0;
}

void ucm_pressure_fini(struct ucm_store *store)
{
	for (unsigned dir = 0; store->views && dir < store->dirs.num; dir++)
		pthread_mutex_destroy(&store->views[dir].lock);
	free(store->views);
}

/* ---- numbers ---- */

static uint64_t more_of(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static uint64_t less(uint64_t all, uint64_t part)
{
	return all > part ? all - part : 0;
}

static uint64_t percent_of(uint64_t limit, unsigned percent)
{
	return limit / 100 * percent + limit % 100 * percent / 100;
}

uint64_t ucm_pressure_within(uint64_t limit, uint64_t used, unsigned percent)
{
	return limit == UINT64_MAX ? limit
				   : less(percent_of(limit, percent), used);
}

struct ucm_tier *ucm_tier_below(const struct ucm_store *store,
				const struct ucm_tier *tier)
{
	struct ucm_tier *tiers = store->dirs.tiers;

	for (unsigned i = (unsigned)(tier - tiers) + 1;
	     i < store->dirs.num_tiers; i++) {
		if (!tiers[i].readonly)
			return &tiers[i];
	}
	return NULL;
}

/* ---- what there is ---- */

static uint64_t taken_in(const struct ucm_medium *medium)
{
	return ucm_medium_used(medium) + atomic_load(&medium->writing);
}

static uint64_t taken_in_tier(const struct ucm_tier *tier)
{
	return ucm_tier_used(tier) + atomic_load(&tier->writing);
}

/* One that cannot say is as it was. */
static void view_ask(const struct ucm_store *store, unsigned dir)
{
	struct ucm_view *view = &store->views[dir];
	struct ucm_medium *medium = store->dirs.at[dir];
	uint64_t taken = taken_in(medium);
	uint64_t blocks = atomic_load(&medium->blocks);
	struct ucm_seen seen;
	int err = ucm_medium_ask_room(medium, &seen.room);

	if (!err) {
		seen.limit = ucm_medium_limit_bytes(medium);
		seen.tier_limit =
			ucm_tier_limit_bytes(store->dirs.tier_of[dir]);
	}
	pthread_mutex_lock(&view->lock);
	if (!err) {
		view->taken = taken;
		view->blocks = blocks;
		view->seen = seen;
		view->asked_ms = ucm_monotonic_ms();
	}
	view->asking = false;
	pthread_mutex_unlock(&view->lock);
}

static bool view_is_old(const struct ucm_view *view)
{
	return !view->asking &&
	       (!view->asked_ms ||
		ucm_monotonic_ms() - view->asked_ms >= VIEW_AGE_MS);
}

static bool view_may_ask(const struct ucm_store *store, unsigned dir)
{
	return !ucm_wait_for(&store->dirs, dir) &&
	       ucm_medium_answers(store->dirs.at[dir]);
}

/* False: nothing is known. */
static bool view_look(const struct ucm_store *store, unsigned dir,
		      struct ucm_seen *out)
{
	struct ucm_view *view = &store->views[dir];
	uint64_t taken, blocks;
	bool is_old, is_known;

	pthread_mutex_lock(&view->lock);
	is_old = view_is_old(view) && view_may_ask(store, dir);
	view->asking |= is_old;
	pthread_mutex_unlock(&view->lock);
	if (is_old)
		view_ask(store, dir);
	taken = taken_in(store->dirs.at[dir]);
	blocks = atomic_load(&store->dirs.at[dir]->blocks);
	pthread_mutex_lock(&view->lock);
	is_known = view->asked_ms;
	*out = view->seen;
	out->room.free_bytes = less(view->taken + out->room.free_bytes, taken);
	out->room.free_files = less(view->blocks + out->room.free_files, blocks);
	pthread_mutex_unlock(&view->lock);
	return is_known;
}

/* ---- by how much it is too full ---- */

uint64_t ucm_pressure_over(const struct ucm_config *config, bool relieved,
			   uint64_t limit, uint64_t used)
{
	uint64_t low = percent_of(limit, config->low);
	uint64_t mark = relieved ? low : percent_of(limit, config->high);

	return limit != UINT64_MAX && used > mark ? used - low : 0;
}

static uint64_t over_limit(const struct ucm_store *store, unsigned dir,
			   uint64_t limit, uint64_t used)
{
	return ucm_pressure_over(store->config,
				 atomic_load(&store->views[dir].relieved),
				 limit, used);
}

/* Free space that is to be left to others. */
static uint64_t reserved(const struct ucm_config *config,
			 const struct ucm_seen *seen)
{
	const struct ucm_limit *reserve = &config->reserve;

	return reserve->percent ? percent_of(seen->room.total_bytes,
					     (unsigned)reserve->size)
				: reserve->size;
}

/* Of that, what is not there. */
static uint64_t over_reserve(const struct ucm_config *config,
			     const struct ucm_seen *seen)
{
	return less(reserved(config, seen), seen->room.free_bytes);
}

/* In bytes of blocks that have the inodes. */
static uint64_t over_files(const struct ucm_store *store, unsigned dir,
			   const struct ucm_seen *seen)
{
	const struct ucm_medium *medium = store->dirs.at[dir];
	uint64_t blocks = atomic_load(&medium->blocks), over;

	if (!seen->room.total_files || !blocks)
		return 0;
	over = over_limit(store, dir, blocks + seen->room.free_files, blocks);
	return over * (atomic_load(&medium->used) / blocks);
}

/* Of what a tier is over its limit, this directory's part: by what it has. */
static uint64_t share_of(uint64_t over, const struct ucm_medium *medium,
			 const struct ucm_tier *tier)
{
	uint64_t all = ucm_tier_used(tier);
	double part = all ? (double)ucm_medium_used(medium) / (double)all : 0;

	return (uint64_t)((double)over * part);
}

uint64_t ucm_pressure(const struct ucm_store *store, unsigned dir)
{
	struct ucm_medium *medium = store->dirs.at[dir];
	struct ucm_tier *tier = store->dirs.tier_of[dir];
	uint64_t over = atomic_load(&store->views[dir].wanted);
	uint64_t used = atomic_load(&medium->used), of_tier;
	struct ucm_seen seen;

	if (view_look(store, dir, &seen)) {
		over = more_of(over, over_limit(store, dir, seen.limit,
						taken_in(medium)));
		of_tier = over_limit(store, dir, seen.tier_limit,
				     taken_in_tier(tier));
		over = more_of(over, share_of(of_tier, medium, tier));
		over = more_of(over, over_reserve(store->config, &seen));
		over = more_of(over, over_files(store, dir, &seen));
		over /= ucm_hosts_living(medium); /* each evicts its part */
	}
	return over < used ? over : used;
}

static bool leaves_room_in(const struct ucm_store *store, unsigned dir,
			   uint64_t bytes, unsigned percent)
{
	const struct ucm_tier *tier = store->dirs.tier_of[dir];
	struct ucm_seen seen;

	return !ucm_pressure(store, dir) && view_look(store, dir, &seen) &&
	       ucm_pressure_within(seen.limit, taken_in(store->dirs.at[dir]),
				   percent) >= bytes &&
	       ucm_pressure_within(seen.tier_limit, taken_in_tier(tier),
				   percent) >= bytes &&
	       seen.room.free_bytes > reserved(store->config, &seen) + bytes;
}

bool ucm_pressure_has_spare(const struct ucm_store *store, unsigned dir,
			    uint64_t bytes)
{
	return leaves_room_in(store, dir, bytes, store->config->high);
}

bool ucm_pressure_leaves_room(const struct ucm_store *store,
			      const struct ucm_tier *tier, uint64_t bytes)
{
	for (unsigned i = 0; i < tier->num_dirs; i++) {
		if (leaves_room_in(store, tier->first + i, bytes,
				   store->config->low))
			return true;
	}
	return false;
}

void ucm_pressure_raise(struct ucm_store *store, unsigned dir)
{
	struct ucm_medium *medium = store->dirs.at[dir];

	atomic_store(&store->views[dir].wanted,
		     percent_of(atomic_load(&medium->used),
				store->config->high - store->config->low));
}

uint64_t ucm_pressure_lack(const struct ucm_store *store, unsigned dir,
			   uint64_t bytes)
{
	struct ucm_medium *medium = store->dirs.at[dir];
	struct ucm_tier *tier = store->dirs.tier_of[dir];
	/* where there is no limit it is UINT64_MAX */
	uint64_t lack = more_of(less(taken_in(medium) + bytes,
				     ucm_medium_limit_bytes(medium)),
				less(taken_in_tier(tier) + bytes,
				     ucm_tier_limit_bytes(tier)));
	struct ucm_medium_room room;

	if (!medium->ops->room(medium, &room))
		lack = more_of(lack, less(bytes, room.free_bytes));
	return lack ? lack : 1;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Room for whatever comes, and sums of it are numbers still. */
#define IN_DOUBT (UINT64_C(1) << 50)

static uint64_t headroom_of_dir(const struct ucm_store *store, unsigned dir,
				unsigned percent, bool evicted,
				uint64_t *tier_limit)
{
	const struct ucm_config *config = store->config;
	struct ucm_medium *medium = store->dirs.at[dir];
	struct ucm_seen seen;
	uint64_t kept;

	if (medium->readonly || atomic_load(&medium->draining))
		return 0;
	if (!view_look(store, dir, &seen))
		return ucm_medium_answers(store->dirs.at[dir]) ? IN_DOUBT : 0;
	*tier_limit = seen.tier_limit;
	kept = reserved(config, &seen);
	/* a file system without a limit has what was made free there */
	if (evicted && seen.limit == UINT64_MAX &&
	    seen.tier_limit == UINT64_MAX)
		kept += percent_of(ucm_medium_used(medium),
				   config->high - config->low);
	return least(less(seen.room.free_bytes, kept),
		     ucm_pressure_within(seen.limit, taken_in(medium), percent));
}

/* Directories of one file system have its room twice here, and one that somebody
 * asks about for the first time has a lot: what is in doubt is let in. */
uint64_t ucm_pressure_headroom(const struct ucm_store *store,
			       const struct ucm_tier *tier, bool evicted)
{
	unsigned percent = evicted ? store->config->low : store->config->high;
	uint64_t limit = UINT64_MAX, sum = 0;

	for (unsigned i = 0; i < tier->num_dirs; i++)
		sum += headroom_of_dir(store, tier->first + i, percent, evicted,
				       &limit);
	return least(sum,
		     ucm_pressure_within(limit, taken_in_tier(tier), percent));
}

void ucm_pressure_ease(struct ucm_store *store, unsigned dir, uint64_t freed)
{
	uint64_t wanted = atomic_load(&store->views[dir].wanted);

	atomic_store(&store->views[dir].wanted,
		     freed && wanted > freed ? wanted - freed : 0);
	atomic_store(&store->views[dir].relieved, freed > 0);
}
