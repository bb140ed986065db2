/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entry.c - the entries of the index, and what is counted by them.
 *
 * Nobody else adds, moves or removes an entry, or puts one in doubt: so the
 * number of blocks, the room that a directory's blocks take and the number of
 * its doubts agree with the index. Asks no directory.
 *
 * A block counts in both its places, with the room that its first one takes;
 * where it has no second one that is known, it counts as alone there: it would
 * be lost with that directory. In its space it counts once. Each place is on its
 * directory's list of members (members.h), from which what is to be moved or
 * evicted is drawn; and where the space has a quota, the block is on its list.
 *
 * A doubt is counted before its entry gets the flag, and is taken off after the
 * flag has gone: a directory whose count is 0 has none.
 */
#include <config.h>

#include "fs/store/find/find.h"

#include <errno.h>
#include <pthread.h>

#include "common/align.h"
#include "common/clock.h"
#include "common/filestamp.h"
#include "common/log.h"
#include "fs/store/quota.h"
#include "hashing/tree.h"

static pthread_mutex_t *name_lock(struct ucm_store *store,
				  const struct ucm_id *id)
{
	return &store->name_locks[id->bytes[1]];
}

void ucm_store_lock_name(struct ucm_store *store, const struct ucm_id *id)
{
	pthread_mutex_lock(name_lock(store, id));
}

void ucm_store_unlock_name(struct ucm_store *store, const struct ucm_id *id)
{
	pthread_mutex_unlock(name_lock(store, id));
}

/* The pages of a file are written within 30 s, unless its device is slow. */
#define WRITTEN_AFTER_S 60

uint64_t ucm_store_takes(const struct stat *st)
{
	uint64_t takes = ucm_file_takes(st);
	uint64_t size = ucm_round_up_to((uint64_t)st->st_size, 512);

	return takes < size && !ucm_file_is_older(st, WRITTEN_AFTER_S) ? size
								      : takes;
}

void ucm_store_entry(const struct ucm_key *key, unsigned dir,
		     const struct stat *st, struct ucm_entry *out)
{
	*out = (struct ucm_entry){
		.id = key->id,
		.space = key->space,
		.dir = (uint8_t)dir,
		.size = (uint64_t)st->st_size,
		.blocks = (uint32_t)(ucm_store_takes(st) / 512),
		.mtime_ns = ucm_time_ns(&st->st_mtim),
		.atime_s = (uint32_t)st->st_atim.tv_sec,
	};
}

void ucm_store_count_doubts(struct ucm_store *store, unsigned dir, int more)
{
	atomic_fetch_add(&store->keepers[dir].doubts, (uint64_t)more);
	atomic_fetch_add(&store->doubts, (uint64_t)more);
}

/* ---- what an entry counts for ---- */

static void count_place(struct ucm_store *store, unsigned dir,
			uint32_t blocks, int sign)
{
	struct ucm_medium *medium = store->dirs.at[dir];

	atomic_fetch_add(&medium->blocks, (uint64_t)sign);
	atomic_fetch_add(&medium->used, (uint64_t)sign * blocks * 512);
}

static void count_alone(struct ucm_store *store, const struct ucm_entry *entry,
			int sign)
{
	struct ucm_medium *medium = store->dirs.at[entry->dir];

	if (entry->copy)
		return;
	atomic_fetch_add(&medium->alone, (uint64_t)sign);
	atomic_fetch_add(&medium->alone_bytes,
			 (uint64_t)sign * entry->blocks * 512);
	if (!entry->tier_only)
		return;
	atomic_fetch_add(&medium->withheld, (uint64_t)sign);
	atomic_fetch_add(&medium->withheld_bytes,
			 (uint64_t)sign * entry->blocks * 512);
}

/* The places of an entry that are not places of the other one. */
static void count_places(struct ucm_store *store, const struct ucm_entry *entry,
			 const struct ucm_entry *other, int sign)
{
	bool same = other && other->blocks == entry->blocks;

	if (!same || !ucm_entry_has_place(other, entry->dir))
		count_place(store, entry->dir, entry->blocks, sign);
	if (entry->copy &&
	    (!same || !ucm_entry_has_place(other, entry->copy - 1u)))
		count_place(store, entry->copy - 1u, entry->blocks, sign);
}

static void count_space(struct ucm_store *store, const struct ucm_entry *entry,
			int sign)
{
	atomic_fetch_add(&store->names.spaces[entry->space]->used,
			 (uint64_t)sign * entry->blocks * 512);
}

/* What it counts for now, instead of what it was (NULL: nothing). In this order:
 * for a moment there is too little room, and never too much. */
static void recount(struct ucm_store *store, const struct ucm_entry *was,
		    const struct ucm_entry *is)
{
	bool takes_the_same = was && is && was->blocks == is->blocks;

	if (is) {
		if (!takes_the_same)
			count_space(store, is, 1);
		count_places(store, is, was, 1);
		count_alone(store, is, 1);
	}
	if (was) {
		if (!takes_the_same)
			count_space(store, was, -1);
		count_places(store, was, is, -1);
		count_alone(store, was, -1);
	}
}

static void enlist(struct ucm_store *store, unsigned dir, ucm_ref ref)
{
	ucm_members_add(&store->victims[dir].members, ucm_ref_place(ref));
}

static void enlist_places(struct ucm_store *store,
			  const struct ucm_entry *entry, ucm_ref ref)
{
	enlist(store, entry->dir, ref);
	if (entry->copy)
		enlist(store, entry->copy - 1u, ref);
	ucm_quota_enlist(store->names.spaces[entry->space], ref);
}

int ucm_store_index_add(struct ucm_store *store, struct ucm_space *space,
			const struct ucm_entry *entry,
			const struct ucm_id *parent, ucm_ref *ref_out)
{
	int doubts = !!(entry->flags & UCM_ENTRY_DOUBT), err;
	const struct ucm_key key = { .id = entry->id, .space = entry->space };
	struct ucm_entry pinned = *entry;
	ucm_ref ref;

	if (ucm_pins_have(&store->pins, &key)) {
		pinned.flags |= UCM_ENTRY_PINNED;
		entry = &pinned;
	}

	ucm_store_count_doubts(store, entry->dir, doubts);
	if (!ref_out)
		ref_out = &ref;
	err = ucm_index_add(store->index, entry, parent, ref_out);
	if (err == -EFBIG)
		ucm_warning("block %s: too large for the index",
			    ucm_hex(&entry->id).text);
	if (err) {
		ucm_store_count_doubts(store, entry->dir, -doubts);
		return err;
	}
	atomic_fetch_add(&space->blocks, 1);
	atomic_fetch_add(&store->blocks, 1);
	recount(store, NULL, entry);
	enlist_places(store, entry, *ref_out);
	ucm_value_added(&store->value, entry);
	if (entry->size > atomic_load(&store->sizes.largest))
		atomic_store(&store->sizes.largest, entry->size);
	return 0;
}

/* The last child of a block goes: it may be taken away itself from now on. */
static void enlist_leaf(struct ucm_store *store, const struct ucm_entry *child)
{
	struct ucm_entry parent;
	ucm_ref ref;

	if (child->parent &&
	    ucm_index_at(store->index, child->parent - 1, &parent, &ref) &&
	    !parent.children)
		enlist_places(store, &parent, ref);
}

bool ucm_store_index_remove(struct ucm_store *store, ucm_ref ref,
			    enum ucm_policy_why why, struct ucm_entry *out)
{
	struct ucm_entry entry;

	if (!ucm_index_remove(store->index, ref, &entry))
		return false;
	atomic_fetch_sub(&store->names.spaces[entry.space]->blocks, 1);
	atomic_fetch_sub(&store->blocks, 1);
	recount(store, &entry, NULL);
	enlist_leaf(store, &entry);
	ucm_value_gone(&store->value, &entry, why);
	if (entry.flags & UCM_ENTRY_DOUBT)
		ucm_store_count_doubts(store, entry.dir, -1);
	if (out)
		*out = entry;
	return true;
}

/* ---- where it lies ---- */

/* Two places are known; of more than that only that there are more. */
static void add_place(struct ucm_entry *entry, unsigned dir)
{
	if (ucm_entry_has_place(entry, dir))
		return;
	entry->tier_only = false;
	if (entry->copy)
		entry->flags |= UCM_ENTRY_DUPLICATE;
	else
		entry->copy = (uint8_t)(dir + 1);
}

struct placing {
	struct ucm_store *store;
	unsigned dir;
	bool first; /* it is to be the first place */
};

static unsigned tier_number(const struct ucm_store *store, unsigned dir)
{
	return (unsigned)(store->dirs.tier_of[dir] - store->dirs.tiers);
}

/* What was its first place is its second one then. */
static void move_to(struct ucm_entry *entry, unsigned dir)
{
	unsigned old = entry->dir;

	entry->dir = (uint8_t)dir;
	if (dir + 1 == entry->copy)
		entry->copy = 0;
	add_place(entry, old);
}

/* The block is read where it is read fastest. What is said of its first file,
 * a doubt or a writer, is not said of the other: then that one stays. */
static bool is_better(const struct placing *placing,
		      const struct ucm_entry *entry)
{
	return placing->first ||
	       (tier_number(placing->store, placing->dir) <
			tier_number(placing->store, entry->dir) &&
		!(entry->flags & (UCM_ENTRY_DOUBT | UCM_ENTRY_WRITABLE)));
}

static void edit_note_copy(struct ucm_entry *entry, void *arg)
{
	const struct placing *placing = arg;
	struct ucm_store *store = placing->store;
	struct ucm_recovery *recovery =
		&store->dirs.at[placing->dir]->recovery;
	const struct ucm_entry was = *entry;

	add_place(entry, placing->dir);
	if (entry->dir != placing->dir && is_better(placing, entry)) {
		move_to(entry, placing->dir);
		entry->flags |= placing->first ? 0 : UCM_ENTRY_UNREAD;
		entry->epoch = atomic_load(&recovery->epoch);
	}
	recount(store, &was, entry);
	atomic_store(&store->keepers[placing->dir].dirty, true);
}

static void note_place(struct ucm_store *store, ucm_ref ref, unsigned dir,
		       bool first)
{
	struct placing placing = {.store = store, .dir = dir, .first = first};

	if (ucm_index_edit(store->index, ref, edit_note_copy, &placing))
		enlist(store, dir, ref);
}

void ucm_store_note_copy(struct ucm_store *store, ucm_ref ref, unsigned dir)
{
	note_place(store, ref, dir, false);
}

void ucm_store_move_to(struct ucm_store *store, ucm_ref ref, unsigned dir)
{
	note_place(store, ref, dir, true);
}

static void edit_forget_copy(struct ucm_entry *entry, void *arg)
{
	const struct placing *placing = arg;
	const struct ucm_entry was = *entry;

	if (entry->copy != placing->dir + 1)
		return;
	entry->copy = 0;
	recount(placing->store, &was, entry);
}

void ucm_store_forget_copy(struct ucm_store *store, ucm_ref ref, unsigned dir)
{
	struct placing placing = {.store = store, .dir = dir};

	ucm_index_edit(store->index, ref, edit_forget_copy, &placing);
}

static void edit_withhold(struct ucm_entry *entry, void *arg)
{
	const struct ucm_entry was = *entry;

	if (entry->copy || entry->flags & UCM_ENTRY_WRITABLE)
		return;
	entry->tier_only = true;
	recount(arg, &was, entry);
}

void ucm_store_withhold(struct ucm_store *store, ucm_ref ref)
{
	ucm_index_edit(store->index, ref, edit_withhold, store);
}

void ucm_store_leave_entry(struct ucm_store *store, struct ucm_entry *entry,
			   unsigned dir)
{
	const struct ucm_entry was = *entry;

	if (dir == entry->dir) {
		entry->dir = (uint8_t)(entry->copy - 1);
		entry->flags |= UCM_ENTRY_UNREAD; /* looked at when opened */
		entry->epoch =
			atomic_load(&store->dirs.at[entry->dir]->recovery.epoch);
	}
	entry->copy = 0;
	count_alone(store, entry, 1);
	count_alone(store, &was, -1);
}

void ucm_store_left(struct ucm_store *store, unsigned dir, uint32_t blocks)
{
	count_place(store, dir, blocks, -1);
}

struct restat {
	struct stat st;
	struct ucm_store *store;
	unsigned dir;
	uint8_t flags; /* to add */
};

/* The directory gets back what it gave, whenever the block is removed. */
static void edit_stat(struct ucm_entry *entry, void *arg)
{
	const struct restat *new = arg;
	uint64_t takes = ucm_store_takes(&new->st);
	struct ucm_store *store = new->store;
	const struct ucm_entry was = *entry;

	entry->tier_only = false; /* it is another file */
	if (entry->dir != new->dir) {
		if (entry->flags & UCM_ENTRY_DOUBT)
			ucm_store_count_doubts(store, entry->dir, -1);
		entry->flags &= (uint8_t)~UCM_ENTRY_DOUBT;
		move_to(entry, new->dir);
	}
	entry->epoch = atomic_load(&store->dirs.at[new->dir]->recovery.epoch);
	atomic_store(&store->keepers[new->dir].dirty, true);
	entry->size = (uint64_t)new->st.st_size;
	entry->blocks = (uint32_t)(takes / 512);
	entry->mtime_ns = ucm_time_ns(&new->st.st_mtim);
	recount(store, &was, entry);
}

void ucm_store_restat(struct ucm_store *store, ucm_ref ref, unsigned dir,
		      const struct stat *st)
{
	struct restat new = { .st = *st, .store = store, .dir = dir };

	if (ucm_index_edit(store->index, ref, edit_stat, &new))
		enlist(store, dir, ref);
}

static void edit_adopt(struct ucm_entry *entry, void *arg)
{
	const struct restat *new = arg;

	edit_stat(entry, arg);
	if (entry->flags & UCM_ENTRY_DOUBT)
		ucm_store_count_doubts(new->store, entry->dir, -1);
	entry->flags &= (uint8_t)~(UCM_ENTRY_DOUBT | UCM_ENTRY_UNREAD);
	entry->flags |= new->flags;
}

void ucm_store_adopt(struct ucm_store *store, const struct ucm_temp *temp,
		     uint8_t flags)
{
	struct restat new = {
		.st = temp->stamp,
		.store = store,
		.dir = temp->dir,
		.flags = flags,
	};

	if (ucm_index_edit(store->index, temp->ref, edit_adopt, &new))
		enlist(store, temp->dir, temp->ref);
}

/* ---- uses ---- */

void ucm_store_use_entry(struct ucm_store *store, struct ucm_entry *entry)
{
	struct ucm_tier_stats *stats = &store->dirs.tier_of[entry->dir]->stats;

	ucm_value_use(&store->value, entry);
	ucm_count(&stats->opens);
	ucm_count_more(&stats->opened_bytes, entry->size);
	ucm_count(&store->stats.opens);
}

/* ---- in doubt ---- */

static bool doubt_entry(struct ucm_store *store, struct ucm_entry *entry)
{
	if (entry->flags & UCM_ENTRY_DOUBT)
		return false;
	ucm_store_count_doubts(store, entry->dir, 1);
	entry->flags |= UCM_ENTRY_DOUBT;
	return true;
}

static void edit_doubt(struct ucm_entry *entry, void *arg)
{
	doubt_entry(arg, entry);
}

void ucm_store_doubt(struct ucm_store *store, ucm_ref ref)
{
	ucm_index_edit(store->index, ref, edit_doubt, store);
}

struct uncovered {
	struct ucm_store *store;
	unsigned dir;
};

static bool doubt_uncovered(struct ucm_entry *entry, ucm_ref ref, void *arg)
{
	const struct uncovered *of = arg;

	(void)ref;
	return entry->dir == of->dir &&
	       ucm_recovery_uncovered(&of->store->dirs.at[of->dir]->recovery,
				      entry->epoch) &&
	       doubt_entry(of->store, entry);
}

void ucm_store_doubt_uncovered(struct ucm_store *store, unsigned dir)
{
	struct uncovered of = { .store = store, .dir = dir };

	for (unsigned shard = 0; shard < UCM_BUCKETS; shard++) {
		uint32_t cursor = 0;

		while (ucm_index_walk(store->index, shard, &cursor,
				      doubt_uncovered, &of))
			;
	}
}

/* ---- of all entries ---- */

struct flagged {
	struct ucm_store *store;
	unsigned dir; /* or all */
	uint8_t flag;
	unsigned num;
	ucm_ref refs[UCM_INDEX_PIECE];
};

static bool note_flagged(struct ucm_entry *entry, ucm_ref ref, void *arg)
{
	struct flagged *found = arg;

	if (entry->flags & found->flag &&
	    (found->dir == UCM_ALL_DIRS || found->dir == entry->dir))
		found->refs[found->num++] = ref;
	return false;
}

void ucm_store_each_flagged(struct ucm_store *store, unsigned shard,
			    unsigned dir, uint8_t flag,
			    int (*fn)(struct ucm_store *store, ucm_ref ref))
{
	struct flagged found = { .store = store, .dir = dir, .flag = flag };
	uint32_t cursor = 0;
	bool more;

	do {
		found.num = 0;
		more = ucm_index_walk(store->index, shard, &cursor,
				      note_flagged, &found);
		for (unsigned i = 0; i < found.num; i++) {
			if (atomic_load(&store->life.stopping))
				return;
			fn(store, found.refs[i]);
		}
	} while (more);
}
