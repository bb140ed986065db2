/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard.c - slots, and the records in them.
 *
 * Slots come in chunks that never move. A record (id, size, place, flags) lies in
 * shared memory, or, if it is hidden, in own; what nobody else needs to know lies
 * in rest, at the same place of the same chunk. A free slot's record is linked
 * by next to another free one, and keeps the generation of the slot.
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

/* Most chunks have no exile, and are spared the look at rest. */
static bool is_exile(struct ucm_shard *shard, uint32_t slot)
{
	uint32_t at;
	unsigned chunk = ucm_index_memory_chunk(slot, &at);

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

static void store_rest(struct ucm_rest *rest, const struct ucm_entry *entry)
{
	rest->mtime_ns = entry->mtime_ns;
	rest->blocks = entry->blocks;
	rest->atime_s = entry->atime_s;
	rest->uses = entry->uses;
	rest->epoch = entry->epoch;
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
		.uses = rest->uses,
		.epoch = rest->epoch,
	};
	memcpy(out->id.bytes, id, sizeof(id));
}

/* Most edits count a use, which readers need not be stopped for. */
void ucm_shard_store(struct ucm_shard *shard, uint32_t slot,
		     const struct ucm_entry *entry)
{
	struct ucm_index_memory_record *record = ucm_shard_record(shard, slot);
	const struct ucm_side *side = chains_of(shard, slot);
	uint64_t place = place_of(entry);
	uint32_t state = generation_of(record) << 8 | UCM_INDEX_MEMORY_USED |
			 entry->flags;

	store_rest(rest_at(shard, slot), entry);
	if (place == UCM_GET(&record->place) &&
	    state == UCM_GET(&record->state))
		return;
	ucm_chain_begin(shard, side);
	UCM_SET(&record->place, place);
	UCM_SET(&record->state, state);
	ucm_chain_end(shard, side);
}

/* ---- finding ---- */

uint32_t ucm_shard_find(struct ucm_shard *shard, const struct ucm_id *id,
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

bool ucm_shard_has(struct ucm_shard *shard, uint32_t slot, uint32_t generation)
{
	const struct ucm_index_memory_record *record;

	if ((slot & ~UCM_HIDDEN_SLOT) >= num_slots(side_of(shard, slot)))
		return false;
	record = ucm_shard_record(shard, slot);
	return is_used(record) && generation_of(record) == generation;
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

int ucm_shard_add(struct ucm_shard *shard, const struct ucm_entry *entry,
		  bool hidden, uint32_t *slot_out)
{
	struct ucm_side *side = hidden ? &shard->hidden : &shard->open;
	struct ucm_index_memory_record *record;
	uint32_t slot, state;
	uint64_t id[2];

	if (ucm_chain_room(shard, side) ||
	    (!side->free_slot && new_chunk(shard, side)))
		return -ENOMEM;
	slot = side->free_slot - 1;
	record = ucm_shard_record(shard, slot);
	side->free_slot = UCM_GET(&record->next);

	ucm_index_memory_id_words(&entry->id, id);
	state = generation_of(record) << 8 | UCM_INDEX_MEMORY_USED |
		entry->flags;
	ucm_chain_begin(shard, side);
	set_record(record, id, place_of(entry), 0, state);
	ucm_chain_put(shard, side, slot);
	ucm_chain_end(shard, side);
	store_rest(rest_at(shard, slot), entry);
	*slot_out = slot;
	return 0;
}

/* Its generation counts removals. An exile's slot is used again as an open one,
 * and its own record no more. */
static void free_slot(struct ucm_shard *shard, uint32_t slot)
{
	struct ucm_side *side = side_of(shard, slot);
	struct ucm_index_memory_record *record = ucm_shard_record(shard, slot);
	uint32_t generation = (generation_of(record) + 1) & GENERATION_MASK;

	if (!(slot & UCM_HIDDEN_SLOT) && is_exile(shard, slot)) {
		rest_at(shard, slot)->exile = false;
		record = shared_at(shard, slot);
	}
	wipe(record, side->free_slot, (generation ? generation : 1) << 8);
	side->free_slot = slot + 1;
}

void ucm_shard_remove(struct ucm_shard *shard, uint32_t slot)
{
	struct ucm_side *side = chains_of(shard, slot);

	ucm_chain_begin(shard, side);
	ucm_chain_take(shard, side, slot);
	free_slot(shard, slot);
	ucm_chain_end(shard, side);
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
	ucm_chain_begin(shard, open);
	ucm_chain_take(shard, open, slot);
	memcpy(&open->own[chunk][at], shared, sizeof(*shared));
	wipe(shared, 0, 0);
	rest_at(shard, slot)->exile = true;
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
		if (is_used(record) && ucm_record_space(record) == space &&
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
