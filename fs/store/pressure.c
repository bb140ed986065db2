/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pressure.c - by how much directories are over their marks; see pressure.h.
 *
 * Limits are of directories and of tiers; between the high and the low mark,
 * percents of them, nothing is done. A file system has no limit but its size,
 * which strangers share: what is to be left free there is "reserve". Where none
 * of these says so, a directory is full when a new block finds no room; then a
 * part of what it has is to go, so that the next ones find some.
 */
#include <config.h>

#include "fs/store/pressure.h"

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

static uint64_t percent_of(uint64_t limit, unsigned percent)
{
	return limit / 100 * percent + limit % 100 * percent / 100;
}

static uint64_t over_limit(const struct ucm_store *store, unsigned dir,
			   uint64_t limit, uint64_t used)
{
	uint64_t low = percent_of(limit, store->config->low);
	uint64_t mark = atomic_load(&store->relieved[dir])
				? low
				: percent_of(limit, store->config->high);

	return limit != UINT64_MAX && used > mark ? used - low : 0;
}

/* Free space that is to be left to others, and is not there. */
static uint64_t over_reserve(const struct ucm_store *store,
			     struct ucm_medium *medium)
{
	const struct ucm_limit *reserve = &store->config->reserve;
	struct ucm_medium_room room;
	uint64_t wanted;

	if (!reserve->size || medium->ops->room(medium, &room))
		return 0;
	wanted = reserve->percent ? percent_of(room.total_bytes,
					       (unsigned)reserve->size)
				  : reserve->size;
	return room.free_bytes < wanted ? wanted - room.free_bytes : 0;
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
	uint64_t tier_used = ucm_tier_used(tier) + atomic_load(&tier->writing);
	uint64_t used = ucm_medium_used(medium) + atomic_load(&medium->writing);
	uint64_t over = over_limit(store, dir, ucm_medium_limit_bytes(medium),
				   used);
	uint64_t more;

	more = share_of(over_limit(store, dir, ucm_tier_limit_bytes(tier),
				   tier_used),
			medium, tier);
	over = over > more ? over : more;
	more = over_reserve(store, medium);
	over = over > more ? over : more;
	more = atomic_load(&store->wanted[dir]);
	over = over > more ? over : more;
	return over < atomic_load(&medium->used) ? over
						 : atomic_load(&medium->used);
}

void ucm_pressure_raise(struct ucm_store *store, unsigned dir)
{
	struct ucm_medium *medium = store->dirs.at[dir];

	atomic_store(&store->wanted[dir],
		     percent_of(atomic_load(&medium->used),
				store->config->high - store->config->low));
}

static uint64_t lack_of(uint64_t limit, uint64_t used, uint64_t bytes)
{
	return limit != UINT64_MAX && used + bytes > limit
		       ? used + bytes - limit
		       : 0;
}

uint64_t ucm_pressure_lack(const struct ucm_store *store, unsigned dir,
			   uint64_t bytes)
{
	struct ucm_medium *medium = store->dirs.at[dir];
	struct ucm_tier *tier = store->dirs.tier_of[dir];
	uint64_t lack = lack_of(ucm_medium_limit_bytes(medium),
				ucm_medium_used(medium) +
					atomic_load(&medium->writing),
				bytes);
	uint64_t more = lack_of(ucm_tier_limit_bytes(tier),
				ucm_tier_used(tier) +
					atomic_load(&tier->writing),
				bytes);
	struct ucm_medium_room room;

	lack = lack > more ? lack : more;
	if (!medium->ops->room(medium, &room) && room.free_bytes < bytes &&
	    lack < bytes - room.free_bytes)
		lack = bytes - room.free_bytes;
	return lack ? lack : 1;
}

void ucm_pressure_ease(struct ucm_store *store, unsigned dir, uint64_t freed)
{
	uint64_t wanted = atomic_load(&store->wanted[dir]);

	atomic_store(&store->wanted[dir],
		     freed && wanted > freed ? wanted - freed : 0);
	atomic_store(&store->relieved[dir], freed > 0);
}
