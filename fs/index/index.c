/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index.c - 256 shards, one for each first byte of an id.
 *
 * Listing a bucket walks one shard, and two buckets never share a lock. The
 * walk is done in pieces, as most of a shard may be of other spaces: nobody
 * waits for more than a piece. What is in a shard is shard.h's.
 *
 * Memory: 32 + 32 bytes an entry, 4 for its head, at most an eighth of that
 * idle in the last chunks: below 80. As much for each name that is a parent and
 * no block.
 *
 * Parents. A child has its parent's slot, and the parent the number of its
 * children; while that is not 0 no other name gets the slot (shard.h).
 * A parent is in another shard, mostly, and two shards are never locked at the
 * same time: a child is counted before it is linked, and counted off after its
 * link has gone. So the count is never too small, and no link leads nowhere.
 */
#include <config.h>

#include "fs/index/index.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/filestamp.h"
#include "fs/index/memory.h"
#include "fs/index/shard.h"

#define SLOT_MASK ((1u << 28) - 1)

_Static_assert(UCM_FILESTAMP_BITS == UCM_INDEX_MEMORY_STAMP_BITS,
	       "a mark has the whole stamp");

struct ucm_index {
	struct ucm_index_memory live;
	_Atomic uint64_t hidden_spaces[65536 / 64];
	struct ucm_shard shards[UCM_INDEX_MEMORY_SHARDS];
};

int ucm_index_new(struct ucm_index **out)
{
	struct ucm_index *index = calloc(1, sizeof(*index));
	int err;

	if (!index)
		return -ENOMEM;
	err = ucm_index_memory_init(&index->live);
	if (err) {
		free(index);
		return err;
	}
	for (unsigned i = 0; i < UCM_INDEX_MEMORY_SHARDS; i++)
		ucm_shard_init(&index->shards[i], &index->live, i);
	*out = index;
	return 0;
}

void ucm_index_free(struct ucm_index *index)
{
	if (!index)
		return;
	for (unsigned i = 0; i < UCM_INDEX_MEMORY_SHARDS; i++)
		ucm_shard_fini(&index->shards[i]);
	ucm_index_memory_fini(&index->live);
	free(index);
}

/* Of an entry that is there; under the shard's lock. */
static ucm_ref make_ref(const struct ucm_index *index, struct ucm_shard *shard,
			uint32_t slot)
{
	uint64_t number = (uint64_t)(shard - index->shards);
	uint64_t generation = ucm_shard_generation(shard, slot);

	return generation << 36 | number << 28 | slot;
}

/* The shard of an id, or of a reference, with its lock. */
static struct ucm_shard *lock_shard(struct ucm_index *index, unsigned number)
{
	struct ucm_shard *shard = &index->shards[number];

	if (pthread_mutex_trylock(&shard->lock)) {
		atomic_fetch_add(&shard->waiting, 1);
		pthread_mutex_lock(&shard->lock);
		atomic_fetch_sub(&shard->waiting, 1);
	}
	return shard;
}

static void unlock_shard(struct ucm_shard *shard)
{
	pthread_mutex_unlock(&shard->lock);
}

/* Between two pieces of a walk: whoever waits comes first. A mutex alone would
 * be ours again before he has woken up. */
static void give_way(struct ucm_shard *shard)
{
	static const struct timespec moment = { .tv_nsec = 10000 };

	for (unsigned i = 0; i < 10 && atomic_load(&shard->waiting); i++)
		nanosleep(&moment, NULL);
}

static struct ucm_shard *lock_shard_of(struct ucm_index *index, ucm_ref ref)
{
	return lock_shard(index, ref >> 28 & (UCM_INDEX_MEMORY_SHARDS - 1));
}

/* The slot a reference means, or UCM_NO_SLOT if the entry is gone. */
static uint32_t slot_of(struct ucm_shard *shard, ucm_ref ref)
{
	uint32_t slot = (uint32_t)ref & SLOT_MASK;

	if (ref >> 60 || !ucm_shard_has(shard, slot, (uint32_t)(ref >> 36)))
		return UCM_NO_SLOT;
	return slot;
}

/* ---- parents ---- */

/* A link: shard << 24 | slot + 1. Slots have 24 bits. */
#define LINK_SLOT 0xffffffu

static bool names_parent(const struct ucm_id *id, const struct ucm_id *parent)
{
	static const struct ucm_id none;

	return parent && memcmp(parent, &none, sizeof(none)) != 0 &&
	       memcmp(parent, id, sizeof(*id)) != 0;
}

/* Count a child of that name: a link, for the child to keep. */
static int hold_parent(struct ucm_index *index, const struct ucm_id *parent,
		       uint16_t space, uint32_t *link_out)
{
	unsigned number = parent->bytes[0];
	struct ucm_shard *shard = lock_shard(index, number);
	uint32_t slot;
	int err = ucm_shard_hold(shard, parent, space,
				 !ucm_index_is_published(index, space), &slot);

	unlock_shard(shard);
	if (!err)
		*link_out = (uint32_t)number << 24 | (slot + 1);
	return err;
}

static void release_parent(struct ucm_index *index, uint32_t link)
{
	struct ucm_shard *shard;

	if (!link)
		return;
	shard = lock_shard(index, link >> 24);
	ucm_shard_release(shard, (link & LINK_SLOT) - 1);
	unlock_shard(shard);
}

/* The first parent stays. Takes the link, or leaves it to be released. */
static void adopt_link(struct ucm_shard *shard, uint32_t slot, uint32_t *link)
{
	if (ucm_shard_parent(shard, slot))
		return;
	ucm_shard_set_parent(shard, slot, *link);
	*link = 0;
}

int ucm_index_set_parent(struct ucm_index *index, ucm_ref ref,
			 const struct ucm_id *parent)
{
	struct ucm_shard *shard;
	struct ucm_entry entry;
	uint32_t link, slot;
	int err;

	if (!ucm_index_get(index, ref, &entry))
		return -ENOENT;
	if (entry.parent || !names_parent(&entry.id, parent))
		return 0;
	err = hold_parent(index, parent, entry.space, &link);
	if (err)
		return err;
	shard = lock_shard_of(index, ref);
	slot = slot_of(shard, ref);
	if (slot != UCM_NO_SLOT)
		adopt_link(shard, slot, &link);
	unlock_shard(shard);
	release_parent(index, link);
	return slot != UCM_NO_SLOT ? 0 : -ENOENT;
}

static uint32_t link_of(struct ucm_index *index, ucm_ref ref)
{
	struct ucm_shard *shard = lock_shard_of(index, ref);
	uint32_t slot = slot_of(shard, ref);
	uint32_t link = slot != UCM_NO_SLOT ? ucm_shard_parent(shard, slot) : 0;

	unlock_shard(shard);
	return link;
}

/* An entry never changes its parent: if it is there afterwards, the slot was
 * its parent's all the time. */
bool ucm_index_parent(struct ucm_index *index, ucm_ref ref, struct ucm_id *out)
{
	uint32_t link = link_of(index, ref);
	struct ucm_shard *shard;
	struct ucm_id id;

	if (!link)
		return false;
	shard = lock_shard(index, link >> 24);
	ucm_shard_name(shard, (link & LINK_SLOT) - 1, &id);
	unlock_shard(shard);
	if (link_of(index, ref) != link)
		return false;
	*out = id;
	return true;
}

/* ---- entries ---- */

static int add_locked(struct ucm_index *index, struct ucm_shard *shard,
		      const struct ucm_entry *entry, uint32_t *slot)
{
	*slot = ucm_shard_seek(shard, &entry->id, entry->space);
	if (*slot != UCM_NO_SLOT && ucm_shard_is_used(shard, *slot))
		return -EEXIST;
	if (entry->size > UCM_INDEX_MEMORY_MAX_SIZE)
		return -EFBIG;
	return ucm_shard_add(shard, entry,
			     !ucm_index_is_published(index, entry->space),
			     slot);
}

/* With a link, which is taken or left, as above. */
static int add_linked(struct ucm_index *index, const struct ucm_entry *entry,
		      uint32_t *link, ucm_ref *ref_out)
{
	struct ucm_shard *shard = lock_shard(index, entry->id.bytes[0]);
	uint32_t slot;
	int err = add_locked(index, shard, entry, &slot);
	bool there = !err || err == -EEXIST;

	if (there && *link)
		adopt_link(shard, slot, link);
	if (there && ref_out)
		*ref_out = make_ref(index, shard, slot);
	unlock_shard(shard);
	return err;
}

int ucm_index_add(struct ucm_index *index, const struct ucm_entry *entry,
		  const struct ucm_id *parent, ucm_ref *ref_out)
{
	uint32_t link = 0;
	int err = 0;

	if (names_parent(&entry->id, parent))
		err = hold_parent(index, parent, entry->space, &link);
	if (!err)
		err = add_linked(index, entry, &link, ref_out);
	release_parent(index, link);
	return err;
}

bool ucm_index_find(struct ucm_index *index, const struct ucm_key *key,
		    struct ucm_entry *out, ucm_ref *ref_out)
{
	struct ucm_shard *shard = lock_shard(index, key->id.bytes[0]);
	uint32_t slot = ucm_shard_find(shard, &key->id, key->space);

	if (slot != UCM_NO_SLOT && out)
		ucm_shard_load(shard, slot, out);
	if (slot != UCM_NO_SLOT && ref_out)
		*ref_out = make_ref(index, shard, slot);
	unlock_shard(shard);
	return slot != UCM_NO_SLOT;
}

bool ucm_index_get(struct ucm_index *index, ucm_ref ref, struct ucm_entry *out)
{
	struct ucm_shard *shard = lock_shard_of(index, ref);
	uint32_t slot = slot_of(shard, ref);

	if (slot != UCM_NO_SLOT)
		ucm_shard_load(shard, slot, out);
	unlock_shard(shard);
	return slot != UCM_NO_SLOT;
}

bool ucm_index_at(struct ucm_index *index, uint32_t place,
		  struct ucm_entry *out, ucm_ref *ref_out)
{
	struct ucm_shard *shard = lock_shard(index, place >> 24);
	uint32_t slot = place & LINK_SLOT;
	bool is_there = ucm_shard_has_slot(shard, slot);

	if (is_there) {
		ucm_shard_load(shard, slot, out);
		*ref_out = make_ref(index, shard, slot);
	}
	unlock_shard(shard);
	return is_there;
}

static bool edit_slot(struct ucm_shard *shard, uint32_t slot,
		      void (*edit)(struct ucm_entry *entry, void *arg),
		      void *arg)
{
	struct ucm_entry entry;

	ucm_shard_load(shard, slot, &entry);
	edit(&entry, arg);
	if (entry.size > UCM_INDEX_MEMORY_MAX_SIZE)
		return false;
	ucm_shard_store(shard, slot, &entry);
	return true;
}

bool ucm_index_edit(struct ucm_index *index, ucm_ref ref,
		    void (*edit)(struct ucm_entry *entry, void *arg),
		    void *arg)
{
	struct ucm_shard *shard = lock_shard_of(index, ref);
	uint32_t slot = slot_of(shard, ref);
	bool done = slot != UCM_NO_SLOT && edit_slot(shard, slot, edit, arg);

	unlock_shard(shard);
	return done;
}

/* Under the shard's lock. */
static int mark_slot(struct ucm_index *index, struct ucm_shard *shard,
		     uint32_t slot, unsigned dir, uint64_t stamp)
{
	uint64_t after_s = ucm_boottime_s() -
			   ucm_index_memory_header(&index->live)->began_s;
	struct ucm_entry entry;

	ucm_shard_load(shard, slot, &entry);
	if (!ucm_index_is_published(index, entry.space) ||
	    after_s > UCM_INDEX_MEMORY_MARK_MOST_S)
		return -EOPNOTSUPP;
	if (entry.dir != dir)
		return -ENOENT;
	if (entry.flags & UCM_ENTRY_UNSURE)
		return -EAGAIN;
	return ucm_shard_mark(shard, slot,
			      ucm_index_memory_mark(after_s, stamp));
}

int ucm_index_mark(struct ucm_index *index, ucm_ref ref, unsigned dir,
		   uint64_t stamp)
{
	struct ucm_shard *shard;
	uint32_t slot;
	int err = -ENOENT;

	if (!ucm_index_memory_header(&index->live)->reverify_s)
		return -EOPNOTSUPP;
	shard = lock_shard_of(index, ref);
	slot = slot_of(shard, ref);
	if (slot != UCM_NO_SLOT)
		err = mark_slot(index, shard, slot, dir, stamp);
	unlock_shard(shard);
	return err;
}

void ucm_index_unmark(struct ucm_index *index, ucm_ref ref)
{
	struct ucm_shard *shard = lock_shard_of(index, ref);
	uint32_t slot = slot_of(shard, ref);

	if (slot != UCM_NO_SLOT && ucm_shard_is_marked(shard, slot))
		ucm_shard_mark(shard, slot, 0);
	unlock_shard(shard);
}

uint64_t ucm_index_marked(struct ucm_index *index)
{
	return atomic_load(&index->live.marked);
}

struct flag_edit {
	uint8_t flag;
	bool on, changed;
};

static void edit_flag(struct ucm_entry *entry, void *arg)
{
	struct flag_edit *edit = arg;

	edit->changed = !(entry->flags & edit->flag) == edit->on;
	entry->flags = (uint8_t)(edit->on ? entry->flags | edit->flag
					  : entry->flags & ~edit->flag);
}

bool ucm_index_flag(struct ucm_index *index, ucm_ref ref, uint8_t flag, bool on)
{
	struct flag_edit edit = { .flag = flag, .on = on };

	ucm_index_edit(index, ref, edit_flag, &edit);
	return edit.changed;
}

bool ucm_index_remove(struct ucm_index *index, ucm_ref ref,
		      struct ucm_entry *out)
{
	struct ucm_shard *shard = lock_shard_of(index, ref);
	uint32_t slot = slot_of(shard, ref);
	uint32_t link = 0;

	if (slot != UCM_NO_SLOT) {
		if (out)
			ucm_shard_load(shard, slot, out);
		link = ucm_shard_remove(shard, slot);
	}
	unlock_shard(shard);
	release_parent(index, link);
	return slot != UCM_NO_SLOT;
}

/* A piece of the walk. */
static uint32_t next_locked(struct ucm_index *index, struct ucm_shard *shard,
			    int space, uint32_t *cursor, struct ucm_entry *out,
			    ucm_ref *ref_out)
{
	uint32_t slot = ucm_shard_next(shard, space, cursor);

	if (slot == UCM_NO_SLOT || slot == UCM_LATER_SLOT)
		return slot;
	ucm_shard_load(shard, slot, out);
	if (ref_out)
		*ref_out = make_ref(index, shard, slot);
	return slot;
}

bool ucm_index_next(struct ucm_index *index, int space, unsigned bucket,
		    uint32_t *cursor, struct ucm_entry *out, ucm_ref *ref_out)
{
	for (;;) {
		struct ucm_shard *shard = lock_shard(index, bucket);
		uint32_t slot = next_locked(index, shard, space, cursor, out,
					    ref_out);

		unlock_shard(shard);
		if (slot != UCM_LATER_SLOT)
			return slot != UCM_NO_SLOT;
		give_way(shard);
	}
}

static void visit_slot(struct ucm_index *index, struct ucm_shard *shard,
		       uint32_t slot,
		       bool (*visit)(struct ucm_entry *entry, ucm_ref ref,
				     void *arg),
		       void *arg)
{
	struct ucm_entry entry;

	if (!ucm_shard_is_used(shard, slot))
		return;
	ucm_shard_load(shard, slot, &entry);
	if (visit(&entry, make_ref(index, shard, slot), arg))
		ucm_shard_store(shard, slot, &entry);
}

bool ucm_index_walk(struct ucm_index *index, unsigned shard_number,
		    uint32_t *cursor,
		    bool (*visit)(struct ucm_entry *entry, ucm_ref ref,
				  void *arg),
		    void *arg)
{
	struct ucm_shard *shard = lock_shard(index, shard_number);
	uint32_t slot = 0;

	for (unsigned i = 0; i < UCM_INDEX_PIECE; i++) {
		slot = ucm_shard_next_slot(shard, cursor);
		if (slot == UCM_NO_SLOT)
			break;
		visit_slot(index, shard, slot, visit, arg);
	}
	unlock_shard(shard);
	return slot != UCM_NO_SLOT;
}

uint64_t ucm_index_memory(struct ucm_index *index)
{
	uint64_t bytes = sizeof(*index) + ucm_index_memory_size(&index->live);

	for (unsigned i = 0; i < UCM_INDEX_MEMORY_SHARDS; i++) {
		struct ucm_shard *shard = lock_shard(index, i);

		bytes += ucm_shard_memory(shard);
		unlock_shard(shard);
	}
	return bytes;
}

/* ---- for others to map ---- */

struct ucm_index_memory *ucm_index_live(struct ucm_index *index)
{
	return &index->live;
}

bool ucm_index_is_published(const struct ucm_index *index, uint16_t space)
{
	return !(atomic_load(&index->hidden_spaces[space / 64]) >>
			 space % 64 & 1);
}

static int hide_in_shard(struct ucm_index *index, unsigned number,
			 uint16_t space)
{
	uint32_t cursor = 0;

	for (;;) {
		struct ucm_shard *shard = lock_shard(index, number);
		int err = ucm_shard_hide(shard, space, &cursor);

		unlock_shard(shard);
		if (err != -EAGAIN)
			return err;
		give_way(shard);
	}
}

int ucm_index_hide(struct ucm_index *index, uint16_t space)
{
	int err = 0;

	if (!ucm_index_is_published(index, space))
		return 0;
	/* who adds under a shard's lock that we have had knows of it */
	atomic_fetch_or(&index->hidden_spaces[space / 64],
			UINT64_C(1) << space % 64);
	/* before the first entry is removed, so that a reader that misses one
	 * will find that it has to ask again */
	ucm_index_memory_names_changed(&index->live);
	for (unsigned i = 0; i < UCM_INDEX_MEMORY_SHARDS && !err; i++)
		err = hide_in_shard(index, i, space);
	return err;
}
