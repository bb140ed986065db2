/* SPDX-License-Identifier: Apache-2.0 */
/*
 * draw.c - which block may leave next, and why none may; see draw.h.
 *
 * What is held (hold.h) may not go. It is looked at when it is taken, not when it is
 * drawn: only few blocks are held, and asking takes a lock.
 *
 * What is expected (expected.h) is spared: it is no candidate, to be lost or to be
 * moved. Where nothing else may go it goes, too, so that a client that expects
 * everything keeps no other from saving.
 */
#include <config.h>

#include "fs/store/motion/draw.h"

#include "common/clock.h"
#include "common/log.h"
#include "fs/medium/shared/hosts.h"
#include "fs/store/endurance.h"
#include "fs/store/find/find.h"
#include "fs/store/pressure.h"
#include "hashing/tree.h"

#define FEW 128u   /* blocks, of which all can be looked at */
#define SAMPLE 64u /* of blocks, to say what holds the room */

/* May any tier below be written to? */
static bool goes_down(struct ucm_store *store, const struct ucm_tier *tier)
{
	while ((tier = ucm_tier_below(store, tier))) {
		if (!ucm_endurance_is_spent(store, tier))
			return true;
	}
	return false;
}

struct ucm_drawing ucm_draw_from(struct ucm_store *store, unsigned dir,
				 enum ucm_eviction how)
{
	const struct ucm_tier *tier = store->dirs.tier_of[dir];

	return (struct ucm_drawing){
		.store = store,
		.victims = &store->victims[dir],
		.dir = dir,
		.is_lowest = !ucm_tier_below(store, tier),
		.leaves = how == UCM_EVICTION_LEAVES || !goes_down(store, tier),
		.in_slice = how == UCM_EVICTION_MOVING,
	};
}

struct ucm_drawing ucm_draw_from_space(struct ucm_store *store,
				       struct ucm_quota *quota)
{
	return (struct ucm_drawing){
		.store = store,
		.victims = &quota->victims,
		.quota = quota,
		.is_lowest = true,
		.leaves = true,
	};
}

const char *ucm_draw_name(const struct ucm_drawing *drawing)
{
	return drawing->quota ? drawing->quota->space->folder
			      : drawing->store->dirs.at[drawing->dir]->path;
}

/* Is the block one of those to draw from? */
static bool draw_has(const struct ucm_drawing *drawing,
		     const struct ucm_entry *entry)
{
	return drawing->quota ? entry->space == drawing->quota->space->number
			      : ucm_entry_has_place(entry, drawing->dir);
}

/* xorshift64*; under the lock of the victims */
static uint64_t draw_number(struct ucm_victims *victims)
{
	uint64_t x = victims->random;

	x ^= x >> 12;
	x ^= x << 25;
	x ^= x >> 27;
	victims->random = x;
	return x * UINT64_C(0x2545f4914f6cdd1d) >> 16;
}

/* A mark may lie in either of its places. */
static bool knows_pins(const struct ucm_drawing *drawing,
		       const struct ucm_entry *entry)
{
	const struct ucm_keeper *keepers = drawing->store->keepers;

	return !drawing->store->pins.lacks_some &&
	       atomic_load(&keepers[entry->dir].pins_known) &&
	       (!entry->copy ||
		atomic_load(&keepers[entry->copy - 1].pins_known));
}

/* In a shared directory each daemon has its part of the buckets. Who needs room now
 * takes what there is. */
static bool is_ours(const struct ucm_drawing *drawing,
		    const struct ucm_entry *entry)
{
	return !drawing->in_slice ||
	       ucm_hosts_is_ours(drawing->store->dirs.at[drawing->dir],
				 ucm_tree_bucket(&entry->id));
}

static bool may_go(const struct ucm_drawing *drawing,
		   const struct ucm_entry *entry)
{
	if (!is_ours(drawing, entry))
		return false;
	return draw_has(drawing, entry) && knows_pins(drawing, entry) &&
	       !(entry->flags & (UCM_ENTRY_PINNED | UCM_ENTRY_LEAVING |
				 UCM_ENTRY_WRITABLE)) &&
	       !(drawing->leaves && entry->children);
}

/* Is it about to be opened, and would that fail or take longer without this place? */
static bool is_spared(const struct ucm_drawing *drawing, ucm_ref ref,
		      const struct ucm_entry *entry)
{
	bool is_lost = drawing->is_lowest && !entry->children;

	if (!drawing->spares ||
	    (entry->copy && entry->dir != drawing->dir && !is_lost))
		return false;
	return ucm_expected_has(&drawing->store->holds.expected, ref,
				ucm_monotonic_ms());
}

/* Or it is about to go. */
static bool was_vain(const struct ucm_drawing *drawing, ucm_ref ref)
{
	if (drawing->batch && ucm_batch_has(drawing->batch, ref))
		return true;
	for (unsigned i = 0; i < drawing->num_vain; i++) {
		if (drawing->vain[i] == ref)
			return true;
	}
	return false;
}

/* Is it listed for nothing? What becomes a candidate later is listed again then. */
static bool is_vain(const struct ucm_drawing *drawing,
		    const struct ucm_entry *entry)
{
	return !draw_has(drawing, entry) ||
	       (drawing->is_lowest && entry->children);
}

static bool draw_one(void *arg, struct ucm_pool_candidate *out)
{
	struct ucm_drawing *drawing = arg;
	struct ucm_members *members = &drawing->victims->members;
	uint64_t number = draw_number(drawing->victims);
	struct ucm_entry entry;
	uint32_t place;
	bool is_there;

	if (!ucm_members_draw(members, number, &place))
		return false;
	is_there = ucm_index_at(drawing->store->index, place, &entry,
				&out->ref);
	if (!is_there || is_vain(drawing, &entry))
		ucm_members_drop(members, number, place);
	if (!is_there || !may_go(drawing, &entry) ||
	    was_vain(drawing, out->ref) ||
	    is_spared(drawing, out->ref, &entry))
		return false;
	out->state = ucm_value_state(&entry);
	out->depth = 0;
	return true;
}

static bool draw_refresh(void *arg, struct ucm_pool_candidate *candidate)
{
	const struct ucm_drawing *drawing = arg;
	struct ucm_entry entry;

	if (!ucm_index_get(drawing->store->index, candidate->ref, &entry) ||
	    !may_go(drawing, &entry) || was_vain(drawing, candidate->ref) ||
	    is_spared(drawing, candidate->ref, &entry))
		return false;
	candidate->state = ucm_value_state(&entry);
	return true;
}

/* Fewer than a pool has room for, and than there are. */
static bool knows_few(const struct ucm_drawing *drawing)
{
	uint64_t blocks = atomic_load(
		drawing->quota
			? &drawing->quota->space->blocks
			: &drawing->store->dirs.at[drawing->dir]->blocks);

	return blocks <= FEW && drawing->victims->pool.num < UCM_POOL_MAX &&
	       drawing->victims->pool.num < blocks;
}

bool ucm_draw_pick(struct ucm_drawing *drawing, bool peek, ucm_ref *ref_out,
		   double *worth_out)
{
	const struct ucm_pool_source source = {
		.draw = draw_one,
		.refresh = draw_refresh,
		.arg = drawing,
	};
	struct ucm_victims *victims = drawing->victims;
	struct ucm_pool_candidate candidate;
	bool found = false;

	pthread_mutex_lock(&victims->lock);
	/* a list that is full of others is cleaned by drawing, and where
	 * there are few blocks, all are looked at */
	for (unsigned i = 0; i < UCM_DRAW_VAIN && (!found || knows_few(drawing));
	     i++)
		found = ucm_pool_pick(&victims->pool,
				      drawing->store->value.policy,
				      ucm_value_now(), &source, &candidate,
				      worth_out);
	if (found && !peek)
		ucm_pool_drop(&victims->pool, candidate.ref);
	pthread_mutex_unlock(&victims->lock);
	if (found)
		*ref_out = candidate.ref;
	return found;
}

static void offer(struct ucm_drawing *drawing, uint32_t place)
{
	struct ucm_pool_candidate candidate = {.ref = 0};
	struct ucm_entry entry;

	if (!ucm_index_at(drawing->store->index, place, &entry,
			  &candidate.ref) ||
	    !may_go(drawing, &entry))
		return;
	candidate.state = ucm_value_state(&entry);
	pthread_mutex_lock(&drawing->victims->lock);
	ucm_pool_offer(&drawing->victims->pool, drawing->store->value.policy,
		       ucm_value_now(), &candidate);
	pthread_mutex_unlock(&drawing->victims->lock);
}

void ucm_draw_offer_parent(struct ucm_drawing *drawing,
			   const struct ucm_entry *child)
{
	if (child->parent)
		offer(drawing, child->parent - 1);
}

/* ---- what has ended ---- */

/* To every policy, what was used longest ago is worth least. */
static void forget_use(struct ucm_entry *entry, void *arg)
{
	(void)arg;
	entry->atime_s = 0;
}

/* Back to where another chain branches off, or has: a block that was wanted more than
 * twice as often as the next one is others', too. */
static void end_chain(struct ucm_store *store, struct ucm_entry entry, ucm_ref ref)
{
	unsigned children = 0, wanted = UINT8_MAX;

	while (entry.children <= children && entry.wanted <= wanted &&
	       entry.atime_s) {
		ucm_expected_keep(&store->holds.expected, ref, 0,
				  ucm_monotonic_ms());
		ucm_index_edit(store->index, ref, forget_use, NULL);
		children = 1;
		wanted = 2u * entry.wanted + 2;
		if (!entry.parent ||
		    !ucm_index_at(store->index, entry.parent - 1, &entry, &ref))
			break;
	}
}

int ucm_evict_first(struct ucm_store *store, const struct ucm_key *key)
{
	struct ucm_drawing drawing;
	struct ucm_entry entry;
	ucm_ref ref;
	int err = ucm_store_peek(store, key, &entry, &ref);

	if (err || !store->value.policy)
		return err;
	end_chain(store, entry, ref);
	drawing = ucm_draw_from(store, entry.dir, UCM_EVICTION_AT_ONCE);
	if (!entry.children)
		offer(&drawing, ucm_ref_place(ref));
	return 0;
}

/* ---- why none may go ---- */

struct reasons {
	unsigned seen, pinned, open, written, alone, parents;
};

static void tally(struct ucm_store *store, ucm_ref ref,
		  const struct ucm_entry *entry, struct reasons *reasons)
{
	struct ucm_hold hold;

	if (ucm_store_holds(store, ref, &hold))
		return;
	reasons->seen++;
	if (hold.pinned)
		reasons->pinned++;
	else if (hold.being_written)
		reasons->written++;
	else if (hold.opens)
		reasons->open++;
	else if (entry->children)
		reasons->parents++;
	else
		reasons->alone++;
}

static void tally_sample(struct ucm_store *store, struct ucm_victims *victims,
			 struct reasons *reasons)
{
	for (unsigned i = 0; i < SAMPLE; i++) {
		struct ucm_entry entry;
		uint32_t place;
		ucm_ref ref;

		pthread_mutex_lock(&victims->lock);
		if (!ucm_members_draw(&victims->members, draw_number(victims),
				      &place))
			i = SAMPLE;
		pthread_mutex_unlock(&victims->lock);
		if (i < SAMPLE &&
		    ucm_index_at(store->index, place, &entry, &ref))
			tally(store, ref, &entry, reasons);
	}
}

void ucm_evict_explain(struct ucm_store *store, const struct ucm_id *id)
{
	struct reasons reasons = {0};

	for (unsigned dir = 0; dir < store->dirs.num; dir++)
		tally_sample(store, &store->victims[dir], &reasons);
	ucm_warning("block %s: no room, and nothing may go: of %u blocks that "
		    "were looked at %u are pinned, %u open, %u being written, "
		    "%u parents of others, %u not below yet",
		    ucm_hex(id).text, reasons.seen, reasons.pinned,
		    reasons.open, reasons.written, reasons.parents,
		    reasons.alone);
}

void ucm_evict_explain_space(struct ucm_store *store, struct ucm_quota *quota,
			     const struct ucm_id *id)
{
	struct reasons reasons = {0};

	tally_sample(store, &quota->victims, &reasons);
	ucm_warning("%s: block %s: the quota of %llu bytes is used up, and "
		    "nothing may go: of %u blocks that were looked at %u are "
		    "pinned, %u open, %u being written, %u parents of others; "
		    "files being written take %llu bytes",
		    quota->space->folder, ucm_hex(id).text,
		    (unsigned long long)atomic_load(&quota->bytes),
		    reasons.seen, reasons.pinned, reasons.open,
		    reasons.written, reasons.parents,
		    (unsigned long long)atomic_load(&quota->space->writing));
}

/* ---- the lists ---- */

struct relisting {
	struct ucm_store *store;
	unsigned dir;
};

static bool relist_entry(struct ucm_entry *entry, ucm_ref ref, void *arg)
{
	const struct relisting *of = arg;

	if (ucm_entry_has_place(entry, of->dir))
		ucm_members_add(&of->store->victims[of->dir].members,
				ucm_ref_place(ref));
	return false;
}

void ucm_evict_relist(struct ucm_store *store, unsigned dir)
{
	struct relisting of = {.store = store, .dir = dir};
	uint64_t blocks = atomic_load(&store->dirs.at[dir]->blocks);

	if (!ucm_members_begin_anew(&store->victims[dir].members, blocks))
		return;
	for (unsigned shard = 0; shard < UCM_BUCKETS; shard++) {
		uint32_t cursor = 0;

		while (ucm_index_walk(store->index, shard, &cursor,
				      relist_entry, &of))
			;
	}
}
