/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard.c - slots, and the records in them.
 *
 * Slots come in chunks that never move. A record (id, size, place, flags) lies in
 * shared memory, or, if it is hidden, in own; what nobody else needs to know lies
 * in rest, at the same place of the same chunk. A free slot's record is linked
 * by next to another free one, and keeps the generation of the slot. The record
 * of a name that is only a parent is in a chain, without a size and a
 * directory; its slot's generation is already that of the next block.
 */
#include <config.h>

#include "fs/index/shard.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define GENERATION_MASK 0xffffffu

_Static_assert(UCM_INDEX_MEMORY_DOUBT == UCM_ENTRY_DOUBT &&
		       UCM_INDEX_MEMORY_PINNED == UCM_ENTRY_PINNED &&
		       UCM_INDEX_MEMORY_LEAVING == UCM_ENTRY_LEAVING,
	       "flags are published as they are");

void ucm_shard_init(struct ucm_shard *shard, struct ucm_index_memory *memory,
		    unsigned number)
{
	*shard = (struct ucm_shard){
		.memory = memory,
		.live = ucm_index_memory_shard(memory, number),
	};
	pthread_mutex_init(&shard->lock, NULL);
}

static void side_fini(struct ucm_side *side)
{
	for (uint32_t i = 0; i < side->num_chunks; i++) {
		free(side->rest[i]);
		free(side->own[i]);
	}
	for (uint32_t i = 0; side->own_heads && i < side->num_head_chunks; i++)
		free(side->own_heads[i]);
	free(side->rest);
	free(side->own);
	free(side->own_heads);
}

void ucm_shard_fini(struct ucm_shard *shard)
{
	side_fini(&shard->open);
	side_fini(&shard->hidden);
	pthread_mutex_destroy(&shard->lock);
}

/* ---- slots ---- */

static struct ucm_side *side_of(struct ucm_shard *shard, uint32_t slot)
{
	return slot & UCM_HIDDEN_SLOT ? &shard->hidden : &shard->open;
}

/* Slots of a side, used or not: where the next chunk would begin. */
static uint32_t num_slots(const struct ucm_side *side)
{
	unsigned next = side->num_chunks;

	return ((8 + (next & 7)) << (5 + (next >> 3))) - 256;
}

static struct ucm_rest *rest_at(struct ucm_shard *shard, uint32_t slot)
{
	uint32_t at;
	unsigned chunk = ucm_index_memory_chunk(slot & ~UCM_HIDDEN_SLOT, &at);

	return &side_of(shard, slot)->rest[chunk][at];
}

/* The record that others see, or could see; of a slot of the open side. */
static struct ucm_index_memory_record *shared_at(struct ucm_shard *shard,
						 uint32_t slot)
{
	uint32_t at;
	unsigned chunk = ucm_index_memory_chunk(slot, &at);
	struct ucm_index_memory_record *first = ucm_index_memory_at(
		shard->memory, UCM_GET(&shard->live->records[chunk]));

	return first + at;
}

static struct ucm_index_memory_record *own_at(struct ucm_shard *shard,
					      uint32_t slot)
{
	uint32_t at;
	unsigned chunk = ucm_index_memory_chunk(slot & ~UCM_HIDDEN_SLOT, &at);

	return &side_of(shard, slot)->own[chunk][at];
}

/* Most shards have no exile, and most chunks; these are spared the look at
 * rest. */
static bool is_exile(struct ucm_shard *shard, uint32_t slot)
{
	uint32_t at;
	unsigned chunk;

	if (!shard->has_exiles)
		return false;
	chunk = ucm_index_memory_chunk(slot, &at);
	return shard->open.own[chunk] && shard->open.rest[chunk][at].exile;
}

/* The side in whose chains a slot is, or would be: an exile is hidden. */
static struct ucm_side *chains_of(struct ucm_shard *shard, uint32_t slot)
{
	return slot & UCM_HIDDEN_SLOT || is_exile(shard, slot) ? &shard->hidden
							       : &shard->open;
}

struct ucm_index_memory_record *ucm_shard_record(struct ucm_shard *shard,
						 uint32_t slot)
{
	return chains_of(shard, slot) == &shard->hidden
		       ? own_at(shard, slot)
		       : shared_at(shard, slot);
}

/* ---- records ---- */

static bool is_used(const struct ucm_index_memory_record *record)
{
	return UCM_GET(&record->state) & UCM_INDEX_MEMORY_USED;
}

static uint32_t generation_of(const struct ucm_index_memory_record *record)
{
	return UCM_GET(&record->state) >> 8;
}

static void set_record(struct ucm_index_memory_record *record,
		       const uint64_t id[2], uint64_t place, uint32_t next,
		       uint32_t state)
{
	UCM_SET(&record->id[0], id[0]);
	UCM_SET(&record->id[1], id[1]);
	UCM_SET(&record->place, place);
	UCM_SET(&record->next, next);
	UCM_SET(&record->state, state);
}

static void wipe(struct ucm_index_memory_record *record, uint32_t next,
		 uint32_t state)
{
	static const uint64_t no_id[2];

	set_record(record, no_id, 0, next, state);
}

static uint64_t place_of(const struct ucm_entry *entry)
{
	return entry->size << 24 | (uint64_t)entry->space << 8 | entry->dir;
}

static uint32_t copy_of(const struct ucm_entry *entry)
{
	return (uint32_t)entry->copy << UCM_INDEX_MEMORY_COPY_SHIFT;
}

#define USES_BITS 24
#define USES_MAX ((1u << USES_BITS) - 1)

static void store_rest(struct ucm_rest *rest, const struct ucm_entry *entry)
{
	rest->mtime_ns = entry->mtime_ns;
	rest->blocks = entry->blocks;
	rest->atime_s = entry->atime_s;
	rest->uses = (uint32_t)entry->wanted << USES_BITS |
		     (entry->uses < USES_MAX ? entry->uses : USES_MAX);
	rest->epoch = entry->epoch;
	rest->mark = entry->mark;
	rest->tier_only = entry->tier_only;
}

uint32_t ucm_shard_generation(struct ucm_shard *shard, uint32_t slot)
{
	return generation_of(ucm_shard_record(shard, slot));
}

void ucm_shard_load(struct ucm_shard *shard, uint32_t slot,
		    struct ucm_entry *out)
{
	const struct ucm_index_memory_record *record =
		ucm_shard_record(shard, slot);
	const struct ucm_rest *rest = rest_at(shard, slot);
	uint64_t place = UCM_GET(&record->place);
	uint32_t state = UCM_GET(&record->state);
	uint64_t id[2] = { UCM_GET(&record->id[0]), UCM_GET(&record->id[1]) };

	*out = (struct ucm_entry){
		.size = place >> 24,
		.space = (uint16_t)(place >> 8),
		.dir = (uint8_t)place,
		.generation = state >> 8,
		.flags = (uint8_t)(state & ~UCM_INDEX_MEMORY_USED),
		.mtime_ns = rest->mtime_ns,
		.blocks = rest->blocks,
		.atime_s = rest->atime_s,
		.uses = rest->uses & USES_MAX,
		.wanted = (uint8_t)(rest->uses >> USES_BITS),
		.parent = rest->parent,
		.children = rest->children,
		.copy = (uint8_t)(UCM_GET(&record->next) >>
				  UCM_INDEX_MEMORY_COPY_SHIFT),
		.epoch = rest->epoch,
		.mark = rest->mark,
		.tier_only = rest->tier_only,
	};
	memcpy(out->id.bytes, id, sizeof(id));
}

/* Has an entry a mark that does not go with what it becomes? */
static bool loses_mark(struct ucm_shard *shard, uint32_t slot,
		       const struct ucm_entry *entry)
{
	struct ucm_index_memory_record *record;

	if (!ucm_shard_is_marked(shard, slot))
		return false;
	record = ucm_shard_record(shard, slot);
	return entry->flags & UCM_ENTRY_UNSURE ||
	       place_of(entry) != UCM_GET(&record->place) ||
	       entry->mtime_ns != rest_at(shard, slot)->mtime_ns;
}

/* Most edits count a use, which readers need not be stopped for. */
void ucm_shard_store(struct ucm_shard *shard, uint32_t slot,
		     const struct ucm_entry *entry)
{
	struct ucm_index_memory_record *record = ucm_shard_record(shard, slot);
	bool unmark = loses_mark(shard, slot, entry);
	const struct ucm_side *side = chains_of(shard, slot);
	uint64_t place = place_of(entry);
	uint32_t state = generation_of(record) << 8 | UCM_INDEX_MEMORY_USED |
			 entry->flags;
	uint32_t next = (UCM_GET(&record->next) & UCM_INDEX_MEMORY_LINK) |
			copy_of(entry);

	store_rest(rest_at(shard, slot), entry);
	if (!unmark && place == UCM_GET(&record->place) &&
	    state == UCM_GET(&record->state) && next == UCM_GET(&record->next))
		return;
	ucm_chain_begin(shard, side);
	if (unmark)
		ucm_shard_unmark(shard, slot);
	UCM_SET(&record->place, place);
	UCM_SET(&record->next, next);
	UCM_SET(&record->state, state);
	ucm_chain_end(shard, side);
}

/* ---- finding ---- */

uint32_t ucm_shard_seek(struct ucm_shard *shard, const struct ucm_id *id,
			uint16_t space)
{
	uint64_t words[2];
	uint32_t slot;

	ucm_index_memory_id_words(id, words);
	slot = ucm_chain_find(shard, &shard->open, words, space);
	return slot != UCM_NO_SLOT
		       ? slot
		       : ucm_chain_find(shard, &shard->hidden, words, space);
}

uint32_t ucm_shard_find(struct ucm_shard *shard, const struct ucm_id *id,
			uint16_t space)
{
	uint32_t slot = ucm_shard_seek(shard, id, space);

	return slot != UCM_NO_SLOT && ucm_shard_is_used(shard, slot)
		       ? slot
		       : UCM_NO_SLOT;
}

bool ucm_shard_has_slot(struct ucm_shard *shard, uint32_t slot)
{
	return (slot & ~UCM_HIDDEN_SLOT) < num_slots(side_of(shard, slot)) &&
	       is_used(ucm_shard_record(shard, slot));
}

bool ucm_shard_has(struct ucm_shard *shard, uint32_t slot, uint32_t generation)
{
	return ucm_shard_has_slot(shard, slot) &&
	       ucm_shard_generation(shard, slot) == generation;
}

/* The open side first. */
uint32_t ucm_shard_next_slot(struct ucm_shard *shard, uint32_t *cursor)
{
	if (*cursor < UCM_HIDDEN_SLOT && *cursor >= num_slots(&shard->open))
		*cursor = UCM_HIDDEN_SLOT;
	if ((*cursor & ~UCM_HIDDEN_SLOT) >= num_slots(side_of(shard, *cursor)))
		return UCM_NO_SLOT;
	return (*cursor)++;
}

bool ucm_shard_is_used(struct ucm_shard *shard, uint32_t slot)
{
	return is_used(ucm_shard_record(shard, slot));
}

uint32_t ucm_shard_next(struct ucm_shard *shard, int space, uint32_t *cursor)
{
	for (unsigned step = 0; step < UCM_SHARD_STEPS; step++) {
		uint32_t slot = ucm_shard_next_slot(shard, cursor);
		const struct ucm_index_memory_record *record;

		if (slot == UCM_NO_SLOT)
			return slot;
		record = ucm_shard_record(shard, slot);
		if (is_used(record) && (space == UCM_ANY_SPACE ||
					ucm_record_space(record) == space))
			return slot;
	}
	return UCM_LATER_SLOT;
}

/* ---- adding and removing ---- */

static struct ucm_index_memory_record *
new_records(struct ucm_shard *shard, struct ucm_side *side, uint64_t num)
{
	uint32_t unit;

	if (side == &shard->hidden) {
		side->own[side->num_chunks] =
			calloc(num, sizeof(**side->own));
		return side->own[side->num_chunks];
	}
	if (ucm_index_memory_take(shard->memory, num * sizeof(**side->own),
				  &unit))
		return NULL;
	UCM_SET(&shard->live->records[side->num_chunks], unit);
	return ucm_index_memory_at(shard->memory, unit);
}

static int new_chunk(struct ucm_shard *shard, struct ucm_side *side)
{
	uint32_t num = ucm_index_memory_chunk_items(side->num_chunks);
	uint32_t first = num_slots(side);
	uint32_t bit = side == &shard->hidden ? UCM_HIDDEN_SLOT : 0;
	struct ucm_index_memory_record *records;
	struct ucm_rest *rest;

	if (side->num_chunks == UCM_INDEX_MEMORY_CHUNKS ||
	    ucm_more_pointers(&side->rest, side->num_chunks) ||
	    ucm_more_pointers(&side->own, side->num_chunks))
		return -ENOMEM;
	rest = calloc(num, sizeof(*rest));
	if (!rest)
		return -ENOMEM;
	records = new_records(shard, side, num);
	if (!records) {
		free(rest);
		return -ENOMEM;
	}
	side->rest[side->num_chunks++] = rest;
	for (uint32_t i = num; i-- > 0;) { /* the lowest is taken first */
		/* generation 1: no reference is 0 */
		wipe(&records[i], side->free_slot, 1 << 8);
		side->free_slot = (first + i + 1) | bit;
	}
	return 0;
}

/* For readers, who have no use for other names. */
static void count_blocks(struct ucm_shard *shard, const struct ucm_side *side,
			 uint32_t more)
{
	if (side == &shard->open)
		UCM_SET(&shard->live->count,
			UCM_GET(&shard->live->count) + more);
}

/* A name into a free slot of a side, and its chain. */
static int put_name(struct ucm_shard *shard, struct ucm_side *side,
		    const struct ucm_id *id, uint64_t place, uint32_t next,
		    uint32_t flags, uint32_t *slot_out)
{
	struct ucm_index_memory_record *record;
	uint64_t words[2];
	uint32_t slot;

	if (ucm_chain_room(shard, side) ||
	    (!side->free_slot && new_chunk(shard, side)))
		return -ENOMEM;
	slot = side->free_slot - 1;
	record = ucm_shard_record(shard, slot);
	side->free_slot = UCM_GET(&record->next) & UCM_INDEX_MEMORY_LINK;
	ucm_index_memory_id_words(id, words);
	ucm_chain_begin(shard, side);
	set_record(record, words, place, next,
		   generation_of(record) << 8 | flags);
	ucm_chain_put(shard, side, slot);
	ucm_chain_end(shard, side);
	*slot_out = slot;
	return 0;
}

int ucm_shard_add(struct ucm_shard *shard, const struct ucm_entry *entry,
		  bool hidden, uint32_t *slot)
{
	struct ucm_side *side = hidden ? &shard->hidden : &shard->open;

	if (*slot != UCM_NO_SLOT) {
		side = chains_of(shard, *slot);
		ucm_shard_store(shard, *slot, entry);
	} else {
		if (put_name(shard, side, &entry->id, place_of(entry),
			     copy_of(entry),
			     UCM_INDEX_MEMORY_USED | entry->flags, slot))
			return -ENOMEM;
		store_rest(rest_at(shard, *slot), entry);
	}
	count_blocks(shard, side, 1);
	return 0;
}

/* An exile's slot is used again as an open one, and its own record no more. */
static void free_slot(struct ucm_shard *shard, uint32_t slot,
		      uint32_t generation)
{
	struct ucm_side *side = side_of(shard, slot);
	struct ucm_index_memory_record *record = ucm_shard_record(shard, slot);

	if (!(slot & UCM_HIDDEN_SLOT) && is_exile(shard, slot)) {
		rest_at(shard, slot)->exile = false;
		record = shared_at(shard, slot);
	}
	wipe(record, side->free_slot, generation << 8);
	side->free_slot = slot + 1;
}

/* What is left of a block that others name as their parent. */
static void keep_name(struct ucm_index_memory_record *record,
		      uint32_t generation)
{
	UCM_SET(&record->state, generation << 8);
	UCM_SET(&record->place, (uint64_t)ucm_record_space(record) << 8);
	UCM_SET(&record->next, UCM_GET(&record->next) & UCM_INDEX_MEMORY_LINK);
}

/* Memory that is far away is spared where nobody has a family. */
static uint32_t count_children(struct ucm_shard *shard, uint32_t slot)
{
	return shard->has_families
		       ? rest_at(shard, slot)->children
		       : 0;
}

/* A slot's generation counts removals. */
uint32_t ucm_shard_remove(struct ucm_shard *shard, uint32_t slot)
{
	struct ucm_side *side = chains_of(shard, slot);
	struct ucm_index_memory_record *record = ucm_shard_record(shard, slot);
	uint32_t generation = (generation_of(record) + 1) & GENERATION_MASK;
	uint32_t parent = ucm_shard_parent(shard, slot);

	generation = generation ? generation : 1;
	if (parent)
		ucm_shard_set_parent(shard, slot, 0);
	count_blocks(shard, side, -1u);
	ucm_chain_begin(shard, side);
	ucm_shard_unmark(shard, slot);
	if (count_children(shard, slot)) {
		keep_name(record, generation);
	} else {
		ucm_chain_take(shard, side, slot);
		free_slot(shard, slot, generation);
	}
	ucm_chain_end(shard, side);
	return parent;
}

/* ---- parents ---- */

int ucm_shard_hold(struct ucm_shard *shard, const struct ucm_id *id,
		   uint16_t space, bool hidden, uint32_t *slot_out)
{
	uint32_t slot = ucm_shard_seek(shard, id, space);

	if (slot == UCM_NO_SLOT &&
	    put_name(shard, hidden ? &shard->hidden : &shard->open, id,
		     (uint64_t)space << 8, 0, 0, &slot))
		return -ENOMEM;
	/* as many as there are slots, at most: that never wraps */
	rest_at(shard, slot)->children++;
	shard->has_families = true;
	*slot_out = slot;
	return 0;
}

void ucm_shard_release(struct ucm_shard *shard, uint32_t slot)
{
	struct ucm_side *side = chains_of(shard, slot);
	struct ucm_index_memory_record *record = ucm_shard_record(shard, slot);

	if (--rest_at(shard, slot)->children || is_used(record))
		return;
	ucm_chain_begin(shard, side);
	ucm_chain_take(shard, side, slot);
	free_slot(shard, slot, generation_of(record));
	ucm_chain_end(shard, side);
}

void ucm_shard_name(struct ucm_shard *shard, uint32_t slot, struct ucm_id *out)
{
	const struct ucm_index_memory_record *record =
		ucm_shard_record(shard, slot);
	uint64_t id[2] = { UCM_GET(&record->id[0]), UCM_GET(&record->id[1]) };

	memcpy(out->bytes, id, sizeof(id));
}

uint32_t ucm_shard_parent(struct ucm_shard *shard, uint32_t slot)
{
	return shard->has_families
		       ? rest_at(shard, slot)->parent
		       : 0;
}

void ucm_shard_set_parent(struct ucm_shard *shard, uint32_t slot,
			  uint32_t parent)
{
	rest_at(shard, slot)->parent = parent;
	shard->has_families = true;
}

/* ---- hiding ---- */

static int exile(struct ucm_shard *shard, uint32_t slot)
{
	struct ucm_index_memory_record *shared = shared_at(shard, slot);
	struct ucm_side *open = &shard->open, *hidden = &shard->hidden;
	uint32_t at;
	unsigned chunk = ucm_index_memory_chunk(slot, &at);

	if (!open->own[chunk])
		open->own[chunk] = calloc(ucm_index_memory_chunk_items(chunk),
					  sizeof(**open->own));
	if (!open->own[chunk] || ucm_chain_room(shard, hidden))
		return -ENOMEM;
	count_blocks(shard, open, -(uint32_t)is_used(shared));
	ucm_chain_begin(shard, open);
	ucm_shard_unmark(shard, slot);
	ucm_chain_take(shard, open, slot);
	memcpy(&open->own[chunk][at], shared, sizeof(*shared));
	wipe(shared, 0, 0);
	rest_at(shard, slot)->exile = true;
	shard->has_exiles = true;
	ucm_chain_put(shard, hidden, slot);
	ucm_chain_end(shard, open);
	return 0;
}

int ucm_shard_hide(struct ucm_shard *shard, uint16_t space, uint32_t *cursor)
{
	for (unsigned step = 0; step < UCM_SHARD_STEPS; step++) {
		uint32_t slot = ucm_shard_next_slot(shard, cursor);
		const struct ucm_index_memory_record *record;
		int err = 0;

		if (slot == UCM_NO_SLOT)
			return 0;
		record = ucm_shard_record(shard, slot);
		if ((is_used(record) || count_children(shard, slot)) &&
		    ucm_record_space(record) == space &&
		    chains_of(shard, slot) == &shard->open)
			err = exile(shard, slot);
		if (err)
			return err;
	}
	return -EAGAIN;
}

/* ---- memory ---- */

static uint64_t side_memory(const struct ucm_side *side)
{
	uint64_t bytes = num_slots(side) * sizeof(struct ucm_rest) +
			 2 * side->num_chunks * sizeof(void *);

	for (uint32_t i = 0; i < side->num_chunks; i++) {
		if (side->own[i])
			bytes += ucm_index_memory_chunk_items(i) *
				 sizeof(**side->own);
	}
	for (uint32_t i = 0; side->own_heads && i < side->num_head_chunks; i++)
		bytes += ucm_index_memory_chunk_items(i) * sizeof(uint32_t);
	return bytes;
}

uint64_t ucm_shard_memory(const struct ucm_shard *shard)
{
	return side_memory(&shard->open) + side_memory(&shard->hidden);
}
