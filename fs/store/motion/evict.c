/* SPDX-License-Identifier: Apache-2.0 */
/*
 * evict.c - making room; see motion.h.
 *
 * Candidates are drawn at random from a directory's members, and the policy says
 * what each is worth; of those that a pool remembers the one goes that is worth
 * least. What that means for a block that is chosen in a directory:
 *
 * - it has another place: it leaves this one, unless that is memory alone;
 * - it has none: it is moved to another directory of the tier that is not full,
 *   or to the next tier below that takes it; a tier that is full refuses a block
 *   that is worth less than what would have to leave it;
 * - if each tier below refuses it, it is evicted from the store.
 *
 * A drain evicts nothing: no block is chosen in a directory that is being drained,
 * where its room helps no new block, and while such a directory is below, a block
 * that finds no room there stays. A new block still replaces others at once.
 *
 * In the lowest tier only leaves are candidates, blocks that are nobody's
 * parent: a block whose parent is gone is of no use, as a request needs a chain
 * from its head. When the last child of a block goes, the block is put on the
 * list again (entry.c), and offered to the pool here: so a chain that nobody
 * wants is eaten from its end. In the other tiers nothing is lost, and all are
 * candidates; a parent is asked for whenever its child is, so that it is worth
 * no less.
 *
 * In a space that is over its quota (quota.h) the same is done with the space's
 * blocks, wherever they lie, and a leaf that is chosen is evicted from the store:
 * to move it would free nothing.
 *
 * A new block that finds no room takes what leaves at once: in a directory what
 * has another place, in the lowest tier what is evicted; and where there is
 * none, the leaf that is worth least in a faster tier.
 */
#include <config.h>

#include "fs/store/motion/motion.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "common/log.h"
#include "fs/store/endurance.h"
#include "fs/store/find/find.h"
#include "fs/store/motion/draw.h"
#include "fs/store/pressure.h"
#include "hashing/tree.h"

/* Of two blocks that are worth about the same, the one stays that is there: what a
 * policy has learnt is not so exact, and the other costs two copies. */
#define STAY_MARGIN 0.8

/* An eviction asks for so few blocks whether another daemon has used them. */
#define LEARNS 64

/* ---- what becomes of one ---- */

static int evict_whole(struct ucm_drawing *drawing,
		       const struct ucm_entry *entry, uint64_t *freed)
{
	struct ucm_store *store = drawing->store;
	unsigned dir = drawing->quota ? entry->dir : drawing->dir;
	struct ucm_tier_stats *stats = &store->dirs.tier_of[dir]->stats;
	const struct ucm_key key = {.id = entry->id, .space = entry->space};
	int err;

	err = ucm_store_evict(store, &key, true);
	if (err)
		return err;
	*freed = (uint64_t)entry->blocks * 512;
	ucm_count(&stats->evicted);
	ucm_count_more(&stats->evicted_bytes, entry->size);
	if (drawing->quota) {
		atomic_fetch_add(&drawing->quota->evicted, 1);
		atomic_fetch_add(&drawing->quota->evicted_bytes, *freed);
	}
	ucm_draw_offer_parent(drawing, entry);
	return 0;
}

static bool is_draining(const struct ucm_store *store, unsigned dir)
{
	return atomic_load(&store->dirs.at[dir]->draining);
}

/* The least that a block of a tier is worth which may go. False: none may. */
static bool least_of_tier(struct ucm_store *store, const struct ucm_tier *tier,
			  enum ucm_eviction how, double *worth_out)
{
	bool any = false;
	double worth;
	ucm_ref ref;

	for (unsigned i = 0; i < tier->num_dirs; i++) {
		struct ucm_drawing drawing =
			ucm_draw_from(store, tier->first + i, how);

		if (is_draining(store, tier->first + i) ||
		    !ucm_draw_pick(&drawing, true, &ref, &worth))
			continue;
		if (!any || worth < *worth_out)
			*worth_out = worth;
		any = true;
	}
	return any;
}

bool ucm_evict_least(struct ucm_store *store, double *worth_out)
{
	for (unsigned i = store->dirs.num_tiers; i-- > 0;) {
		const struct ucm_tier *tier = &store->dirs.tiers[i];

		if (!tier->readonly &&
		    least_of_tier(store, tier, UCM_EVICTION_LEAVES, worth_out))
			return true;
	}
	return false;
}

bool ucm_evict_least_of_space(struct ucm_store *store, struct ucm_quota *quota,
			      double *worth_out)
{
	struct ucm_drawing drawing = ucm_draw_from_space(store, quota);
	ucm_ref ref;

	return ucm_draw_pick(&drawing, true, &ref, worth_out);
}

static double worth_of(const struct ucm_store *store,
		       const struct ucm_entry *entry)
{
	struct ucm_policy_state state = ucm_value_state(entry);

	return store->value.policy->ops->worth(store->value.policy, ucm_value_now(),
					       &state);
}

static bool has_room(const struct ucm_tier *tier, const struct ucm_entry *entry)
{
	return ucm_tier_has_room(tier, (uint64_t)entry->blocks * 512);
}

/* Is it worth about as much as what would go for it in that tier? A policy that
 * refuses nothing leaves no doubt which of two is worth more. */
static bool is_worth_moving(struct ucm_store *store,
			    const struct ucm_entry *entry,
			    const struct ucm_tier *to)
{
	struct ucm_policy_state state = ucm_value_state(entry);
	double least;

	if (!least_of_tier(store, to, UCM_EVICTION_MOVING, &least))
		return false;
	return store->value.policy->ops->refuses
		       ? ucm_endurance_admits(store, to, &state, &least)
		       : worth_of(store, entry) > least;
}

bool ucm_evict_would_stay(struct ucm_store *store,
			  const struct ucm_entry *entry,
			  const struct ucm_tier *tier)
{
	const struct ucm_policy *policy = store->value.policy;
	double least;

	if (!policy || ucm_pressure_leaves_room(store, tier,
						(uint64_t)entry->blocks * 512))
		return true;
	if (!least_of_tier(store, tier, UCM_EVICTION_MOVING, &least))
		return false;
	/* others say which of two is worth more, and not by how much */
	if (policy->ops->refuses)
		least /= STAY_MARGIN;
	return worth_of(store, entry) > least;
}

/* Is so much written to that tier that it is to get only what is sure to be
 * wanted there? */
static bool is_refused(struct ucm_store *store, const struct ucm_entry *entry,
		       const struct ucm_tier *tier)
{
	struct ucm_policy_state state = ucm_value_state(entry);

	return !ucm_endurance_admits(store, tier, &state, NULL);
}

static int make_room(struct ucm_store *store, const struct ucm_tier *tier,
		     uint64_t bytes, const struct ucm_move_terms *pace)
{
	int err = -ENOSPC;

	for (unsigned i = 0; i < tier->num_dirs && err; i++) {
		uint64_t freed;

		err = ucm_evict_bytes(store, tier->first + i, bytes,
				      UCM_EVICTION_MOVING, pace, &freed);
	}
	return err;
}

int ucm_evict_and_copy(struct ucm_store *store, ucm_ref ref,
		       const struct ucm_move_terms *move)
{
	struct ucm_entry entry;
	int err;

	if (!ucm_index_get(store->index, ref, &entry))
		return -ENOENT;
	if (move->may_refuse && is_refused(store, &entry, move->to)) {
		ucm_count(&move->to->stats.moves_refused);
		return -ENOSPC;
	}
	err = ucm_store_copy(store, ref, move, NULL);
	if (err != -ENOSPC || !store->value.policy)
		return err;
	/* a call has failed, or room has been made since */
	if (has_room(move->to, &entry))
		return ucm_store_copy(store, ref, move, NULL);
	if (!is_worth_moving(store, &entry, move->to))
		return -ENOSPC;
	err = make_room(store, move->to, (uint64_t)entry.blocks * 512, move);
	return err ? err : ucm_store_copy(store, ref, move, NULL);
}

/* A block that arrives counts twice for a moment, as written and as being written. So
 * there must be room for two blocks of each mover, or others would be evicted. */
int ucm_evict_copy_beside(struct ucm_store *store, ucm_ref ref,
			  struct ucm_move_terms *move)
{
	const struct ucm_tier *to = move->to;
	uint8_t order[UCM_MAX_DIRS];
	struct ucm_entry entry;
	int err = -ENOSPC;
	uint64_t room;

	if (!ucm_index_get(store->index, ref, &entry))
		return -ENOENT;
	if (to->readonly)
		return -ENOSPC;
	room = (uint64_t)entry.blocks * 512 * 2 * store->config->movers;
	ucm_placement_order(UCM_PLACEMENT_RENDEZVOUS,
			    (const uint8_t(*)[16])to->uuids, to->num_dirs,
			    &entry.id, 0, order);
	move->within = store->dirs.tier_of[entry.dir] == to;
	for (unsigned i = 0; i < to->num_dirs && err == -ENOSPC; i++) {
		unsigned dir = to->first + order[i];

		if (is_draining(store, dir) || entry.dir == dir ||
		    !ucm_pressure_has_spare(store, dir, room))
			continue;
		move->only = order[i] + 1u;
		err = ucm_store_copy(store, ref, move, NULL);
	}
	return err;
}

int ucm_evict_and_copy_down(struct ucm_store *store, ucm_ref ref,
			    const struct ucm_tier *from,
			    struct ucm_move_terms *move)
{
	struct ucm_tier *below = ucm_tier_below(store, from);
	int err = -ENOSPC;

	for (; below && err == -ENOSPC; below = ucm_tier_below(store, below)) {
		move->to = below;
		err = ucm_evict_and_copy(store, ref, move);
	}
	return err;
}

/* What was in memory alone is no safer there than where it comes to. */
static bool must_be_durable(const struct ucm_store *store, unsigned from)
{
	return store->config->durability != UCM_DURABILITY_NONE ||
	       !(store->dirs.at[from]->flags & UCM_MEDIUM_VOLATILE);
}

/* To another directory of its tier, or down. It leaves when the copy is on disk,
 * with others: see ucm_evict_bytes(). */
static int move_away(struct ucm_drawing *drawing, ucm_ref ref,
		     const struct ucm_move_terms *pace)
{
	struct ucm_store *store = drawing->store;
	struct ucm_tier *tier = store->dirs.tier_of[drawing->dir];
	struct ucm_batch *batch = drawing->batch;
	struct ucm_move_terms move = {
		.to = tier,
		.soon = batch->durable,
		.may_refuse = true,
		.pace = pace ? pace->pace : NULL,
		.arg = pace ? pace->arg : NULL,
	};
	int err = ucm_batch_begin_copy(batch, ref);

	if (err)
		return err;
	err = ucm_evict_copy_beside(store, ref, &move);
	move.within = false;
	move.only = 0;
	if (err == -ENOSPC)
		err = ucm_evict_and_copy_down(store, ref, tier, &move);
	/* since it was drawn: the other place may be memory */
	return ucm_batch_end_copy(batch, err == -EEXIST ? -EBUSY : err);
}

/* Each tier below has refused the block. Is it lost for that? Not where a call
 * alone said so, nor while there is room that a drain alone keeps it from. */
static bool is_refused_below(struct ucm_store *store,
			     const struct ucm_tier *tier,
			     const struct ucm_entry *entry)
{
	while ((tier = ucm_tier_below(store, tier))) {
		for (unsigned i = 0; i < tier->num_dirs; i++) {
			if (is_draining(store, tier->first + i))
				return false;
		}
		if (has_room(tier, entry) && !is_refused(store, entry, tier))
			return false;
	}
	return true;
}

/* Its other place is memory, which the next restart of the machine empties. */
static bool rests_here(const struct ucm_drawing *drawing,
		       const struct ucm_entry *entry)
{
	const struct ucm_dirs *dirs = &drawing->store->dirs;
	unsigned other = ucm_entry_other_place(entry, drawing->dir);

	return dirs->at[other]->flags & UCM_MEDIUM_VOLATILE &&
	       !(dirs->at[drawing->dir]->flags & UCM_MEDIUM_VOLATILE);
}

/* A block that has another place, where it may not be on disk yet: it leaves when
 * it is, with others, unless somebody waits. */
static int leave_place(struct ucm_drawing *drawing, ucm_ref ref,
		       const struct ucm_entry *entry, enum ucm_eviction how,
		       uint64_t *freed)
{
	struct ucm_batch *batch = drawing->batch;
	int err;

	if (rests_here(drawing, entry))
		return -EBUSY;
	if (how != UCM_EVICTION_MOVING || !batch || !batch->durable)
		return ucm_store_drop_place(drawing->store, ref, drawing->dir,
					    freed);
	err = ucm_batch_begin_copy(batch, ref);
	return err ? err : ucm_batch_end_copy(batch, -EEXIST);
}

static int take_away(struct ucm_drawing *drawing, ucm_ref ref,
		     const struct ucm_entry *entry, enum ucm_eviction how,
		     const struct ucm_move_terms *pace, uint64_t *freed)
{
	struct ucm_store *store = drawing->store;
	const struct ucm_tier *tier = store->dirs.tier_of[drawing->dir];
	int err;

	if (entry->copy && (!drawing->is_lowest || entry->children))
		return leave_place(drawing, ref, entry, how, freed);
	if (how == UCM_EVICTION_LEAVES ||
	    (how == UCM_EVICTION_AT_ONCE && drawing->is_lowest))
		return evict_whole(drawing, entry, freed);
	if (how == UCM_EVICTION_AT_ONCE)
		return -EBUSY; /* it would be lost, or a writer would wait */
	err = move_away(drawing, ref, pace);
	if (err == -ENOSPC && !entry->children &&
	    is_refused_below(store, tier, entry))
		err = evict_whole(drawing, entry, freed);
	return err == -ENOSPC ? -EBUSY : err;
}

/* ---- so many bytes ---- */

static bool is_over(int err)
{
	switch (err) {
	case 0: case -EBUSY: case -EPERM: case -ENOENT: case -ESTALE:
	case -EEXIST: case -EROFS:
		return false; /* of this block; another may go */
	default:
		return true;
	}
}

/* Another daemon has used it: another block may be worth less. */
static bool learns_of_use(struct ucm_drawing *drawing, ucm_ref ref,
			  const struct ucm_entry *entry)
{
	unsigned dir = drawing->quota ? entry->dir : drawing->dir;

	return drawing->num_learnt < LEARNS &&
	       ucm_store_is_used_in(drawing->store, ref, entry, dir) &&
	       ++drawing->num_learnt;
}

/* -ENODATA: nothing may go. */
static int evict_next(struct ucm_drawing *drawing, enum ucm_eviction how,
		      const struct ucm_move_terms *pace, uint64_t *freed)
{
	struct ucm_store *store = drawing->store;
	struct ucm_entry entry;
	uint64_t one = 0;
	ucm_ref ref;
	int err;

	if (!ucm_draw_pick(drawing, false, &ref, NULL))
		return -ENODATA;
	if (!ucm_index_get(store->index, ref, &entry))
		return -ENOENT;
	if (learns_of_use(drawing, ref, &entry))
		return -ESTALE;
	err = drawing->quota ? evict_whole(drawing, &entry, &one)
			     : take_away(drawing, ref, &entry, how, pace, &one);
	if (err) {
		drawing->vain[drawing->num_vain++] = ref;
		ucm_debug(MOVE, 2, "%s: block %s stays: %s", ucm_draw_name(drawing),
			  ucm_hex(&entry.id).text, strerror(-err));
		return err;
	}
	if (one)
		atomic_fetch_add(&store->evictions.done, 1);
	if (!drawing->quota)
		ucm_endurance_evicted(store, store->dirs.tier_of[drawing->dir],
				      &entry);
	*freed += one;
	return 0;
}

/* Until the batch is full, or enough. Others than -ENODATA: the directory's. */
static int evict_some(struct ucm_drawing *drawing, uint64_t bytes,
		      enum ucm_eviction how, const struct ucm_move_terms *pace,
		      uint64_t *freed)
{
	struct ucm_batch *batch = drawing->batch;

	while (*freed + batch->bytes < bytes && !ucm_batch_is_full(batch) &&
	       !atomic_load(&drawing->store->life.stopping)) {
		int err = drawing->num_vain < UCM_DRAW_VAIN
				  ? evict_next(drawing, how, pace, freed)
				  : -ENODATA;

		if (err == -ENODATA || is_over(err))
			return err;
	}
	return 0;
}

/* Do other daemons evict there in our place? */
static bool is_fenced(struct ucm_store *store, unsigned dir)
{
	struct ucm_medium *medium = store->dirs.at[dir];

	return medium->hosts && ucm_medium_beat(medium, UCM_BEAT_CHECK);
}

static int evict_bytes(struct ucm_store *store, unsigned dir, uint64_t bytes,
		       enum ucm_eviction how, bool spares,
		       const struct ucm_move_terms *pace, uint64_t *freed)
{
	struct ucm_drawing drawing = ucm_draw_from(store, dir, how);
	struct ucm_batch batch;
	unsigned left;
	int err;

	*freed = 0;
	drawing.spares = spares;
	if (!store->value.policy || store->dirs.at[dir]->readonly ||
	    is_draining(store, dir))
		return -ENOSPC;
	ucm_batch_init(&batch, store, dir, must_be_durable(store, dir));
	drawing.batch = &batch;
	atomic_fetch_add(&store->evictions.running, 1);
	do {
		err = is_fenced(store, dir)
			      ? -ENOSPC
			      : evict_some(&drawing, bytes, how, pace, freed);
		left = ucm_batch_settle(&batch, freed);
		atomic_fetch_add(&store->evictions.done, left);
	} while (!err && left && *freed < bytes);
	atomic_fetch_sub(&store->evictions.running, 1);
	if (*freed >= bytes)
		return 0;
	return err && err != -ENODATA ? err : -ENOSPC;
}

int ucm_evict_bytes(struct ucm_store *store, unsigned dir, uint64_t bytes,
		    enum ucm_eviction how, const struct ucm_move_terms *pace,
		    uint64_t *freed)
{
	int err = evict_bytes(store, dir, bytes, how, true, pace, freed);
	uint64_t more;

	if (err != -ENOSPC || !ucm_expected_any(&store->holds.expected))
		return err;
	err = evict_bytes(store, dir, bytes - *freed, how, false, pace, &more);
	*freed += more;
	return err;
}

int ucm_evict_space(struct ucm_store *store, struct ucm_quota *quota,
		    uint64_t bytes, uint64_t *freed)
{
	struct ucm_drawing drawing = ucm_draw_from_space(store, quota);

	*freed = 0;
	drawing.spares = true;
	if (!store->value.policy)
		return -ENOSPC;
	atomic_fetch_add(&store->evictions.running, 1);
	while (*freed < bytes && !atomic_load(&store->life.stopping)) {
		/* what fails is one block's: the next may lie in another
		 * directory */
		if (drawing.num_vain < UCM_DRAW_VAIN &&
		    evict_next(&drawing, UCM_EVICTION_AT_ONCE, NULL, freed) !=
			    -ENODATA)
			continue;
		if (!drawing.spares ||
		    !ucm_expected_any(&store->holds.expected))
			break;
		drawing.spares = false;
		drawing.num_vain = 0;
	}
	atomic_fetch_sub(&store->evictions.running, 1);
	return *freed >= bytes ? 0 : -ENOSPC;
}

#define WAIT_NS 1000000
#define WAITS 1000

bool ucm_evict_wait_for_others(const struct ucm_evictions *evictions,
			       uint64_t before)
{
	static const struct timespec moment = { .tv_nsec = WAIT_NS };

	if (!atomic_load(&evictions->running) &&
	    atomic_load(&evictions->done) == before)
		return false;
	for (unsigned i = 0; i < WAITS && atomic_load(&evictions->running) &&
			     atomic_load(&evictions->done) == before;
	     i++)
		nanosleep(&moment, NULL);
	return true;
}

/* ---- for a new block ---- */

static int evict_in_dir(struct ucm_store *store, unsigned dir, uint64_t bytes,
			enum ucm_eviction how, bool spares)
{
	struct ucm_victims *victims = &store->victims[dir];
	uint64_t freed;
	int err;

	/* nothing is placed in one that failed lately, room or not */
	if (!ucm_medium_answers(store->dirs.at[dir]) ||
	    ucm_medium_state(store->dirs.at[dir]) == UCM_DIR_SET_ASIDE)
		return -ENOSPC;
	/* all that come at once may lack the same bytes */
	if (atomic_exchange(&victims->busy, true))
		return -EBUSY;
	err = evict_bytes(store, dir, ucm_pressure_lack(store, dir, bytes), how,
			  spares, NULL, &freed);
	if (freed)
		ucm_pressure_raise(store, dir);
	atomic_store(&victims->busy, false);
	return err;
}

/* Directories are numbered by tier, fast ones first. */
static int evict_in_dirs(struct ucm_store *store, uint64_t bytes,
			 enum ucm_eviction how, bool spares)
{
	int err = -ENOSPC;

	for (unsigned dir = 0;
	     dir < store->dirs.num && err && err != -EBUSY; dir++) {
		if (store->dirs.tier_of[dir]->write_mode != UCM_WRITE_AROUND)
			err = evict_in_dir(store, dir, bytes, how, spares);
	}
	return !err || err == -EBUSY ? err : -ENOSPC;
}

/* The lowest tier may be full of parents, whose children are in faster ones. */
static int evict_for(struct ucm_store *store, uint64_t bytes, bool spares)
{
	int err = evict_in_dirs(store, bytes, UCM_EVICTION_AT_ONCE, spares);

	return err == -ENOSPC ? evict_in_dirs(store, bytes,
					      UCM_EVICTION_LEAVES, spares)
			      : err;
}

int ucm_evict_for(struct ucm_store *store, uint64_t bytes)
{
	int err = evict_for(store, bytes, true);

	return err == -ENOSPC && ucm_expected_any(&store->holds.expected)
		       ? evict_for(store, bytes, false)
		       : err;
}
