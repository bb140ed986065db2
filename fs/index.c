/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index.c - 256 shards, one for each first byte of an id.
 *
 * A shard is one bucket of the tree (of all spaces), so that listing a bucket
 * walks one shard and two buckets never share a lock. In it: entries in chunks
 * that never move, hence slots that can be cursors and references, and a table
 * of chain heads that doubles when chains grow longer than one on average.
 *
 * Memory: 56 bytes an entry, 4 to 8 for the head, and on average half a chunk
 * (14 entries) of slack a shard.
 */
#include <config.h>

#include "fs/index.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define SHARDS 256
#define CHUNK_ENTRIES 32u
#define FIRST_HEADS 16u
#define MAX_SLOTS (1u << 28)
#define GENERATION_MASK 0xffffffu
#define NONE UINT32_MAX
#define FREE_SPACE UINT16_MAX /* marks a free slot; no space has this number */

struct shard {
	pthread_mutex_t lock;
	struct ucm_entry **chunks;
	uint32_t *heads;
	uint32_t num_heads; /* a power of two */
	uint32_t num_slots; /* ever used */
	uint32_t free_slot; /* chain of free ones, or NONE */
	uint32_t count;
};

struct ucm_index {
	struct shard shards[SHARDS];
};

static struct ucm_entry *entry_at(const struct shard *shard, uint32_t slot)
{
	return &shard->chunks[slot / CHUNK_ENTRIES][slot % CHUNK_ENTRIES];
}

static ucm_ref make_ref(const struct ucm_index *index,
			const struct shard *shard, uint32_t slot)
{
	uint64_t number = (uint64_t)(shard - index->shards);
	uint64_t generation = entry_at(shard, slot)->generation;

	return generation << 36 | number << 28 | slot;
}

/* Ids are hashes already; the space and a multiplication cover names that
 * were counted rather than hashed. */
static uint32_t *head_of(const struct shard *shard, const struct ucm_id *id,
			 uint16_t space)
{
	uint64_t low, high;

	memcpy(&low, id->bytes, sizeof(low));
	memcpy(&high, id->bytes + 8, sizeof(high));
	low = (low ^ (high << 29 | high >> 35) ^ space) * 0x9e3779b97f4a7c15u;
	low ^= low >> 32;
	return &shard->heads[low & (shard->num_heads - 1)];
}

static struct shard *shard_of(struct ucm_index *index, const struct ucm_id *id)
{
	return &index->shards[id->bytes[0]];
}

static int shard_init(struct shard *shard)
{
	shard->heads = malloc(FIRST_HEADS * sizeof(*shard->heads));
	if (!shard->heads)
		return -ENOMEM;
	memset(shard->heads, 0xff, FIRST_HEADS * sizeof(*shard->heads));
	shard->num_heads = FIRST_HEADS;
	shard->free_slot = NONE;
	pthread_mutex_init(&shard->lock, NULL);
	return 0;
}

static void shard_fini(struct shard *shard)
{
	uint32_t chunks = (shard->num_slots + CHUNK_ENTRIES - 1) / CHUNK_ENTRIES;

	for (uint32_t i = 0; i < chunks; i++)
		free(shard->chunks[i]);
	free(shard->chunks);
	free(shard->heads);
	if (shard->num_heads)
		pthread_mutex_destroy(&shard->lock);
}

int ucm_index_new(struct ucm_index **out)
{
	struct ucm_index *index = calloc(1, sizeof(*index));

	if (!index)
		return -ENOMEM;
	for (int i = 0; i < SHARDS; i++) {
		if (shard_init(&index->shards[i])) {
			ucm_index_free(index);
			return -ENOMEM;
		}
	}
	*out = index;
	return 0;
}

void ucm_index_free(struct ucm_index *index)
{
	if (!index)
		return;
	for (int i = 0; i < SHARDS; i++)
		shard_fini(&index->shards[i]);
	free(index);
}

static uint32_t find_slot(const struct shard *shard, const struct ucm_id *id,
			  uint16_t space)
{
	uint32_t slot = *head_of(shard, id, space);

	while (slot != NONE) {
		const struct ucm_entry *entry = entry_at(shard, slot);

		if (entry->space == space &&
		    !memcmp(&entry->id, id, sizeof(*id)))
			return slot;
		slot = entry->next;
	}
	return NONE;
}

/* The slot a reference means, or NONE if the entry is gone. */
static uint32_t slot_of_ref(const struct shard *shard, ucm_ref ref)
{
	uint32_t slot = (uint32_t)ref & (MAX_SLOTS - 1);

	if (slot >= shard->num_slots)
		return NONE;
	if (entry_at(shard, slot)->space == FREE_SPACE ||
	    entry_at(shard, slot)->generation != ref >> 36)
		return NONE;
	return slot;
}

static struct shard *shard_of_ref(struct ucm_index *index, ucm_ref ref)
{
	return &index->shards[ref >> 28 & (SHARDS - 1)];
}

/* Longer chains are slower, not wrong: without memory the table stays. */
static void grow_heads(struct shard *shard)
{
	uint32_t num = shard->num_heads * 2;
	uint32_t *heads = malloc(num * sizeof(*heads));

	if (!heads)
		return;
	memset(heads, 0xff, num * sizeof(*heads));
	free(shard->heads);
	shard->heads = heads;
	shard->num_heads = num;
	for (uint32_t slot = 0; slot < shard->num_slots; slot++) {
		struct ucm_entry *entry = entry_at(shard, slot);
		uint32_t *head;

		if (entry->space == FREE_SPACE)
			continue;
		head = head_of(shard, &entry->id, entry->space);
		entry->next = *head;
		*head = slot;
	}
}

static int new_chunk(struct shard *shard)
{
	uint32_t number = shard->num_slots / CHUNK_ENTRIES;
	struct ucm_entry **chunks;

	if (shard->num_slots >= MAX_SLOTS)
		return -ENOMEM;
	if ((number & (number - 1)) == 0) { /* the array is full: double it */
		chunks = realloc(shard->chunks,
				 (number ? 2 * number : 1) * sizeof(*chunks));
		if (!chunks)
			return -ENOMEM;
		shard->chunks = chunks;
	}
	shard->chunks[number] =
		calloc(CHUNK_ENTRIES, sizeof(*shard->chunks[number]));
	return shard->chunks[number] ? 0 : -ENOMEM;
}

static int take_slot(struct shard *shard, uint32_t *out)
{
	uint32_t slot = shard->free_slot;

	if (slot != NONE) {
		shard->free_slot = entry_at(shard, slot)->next;
		*out = slot;
		return 0;
	}
	if (shard->num_slots % CHUNK_ENTRIES == 0 && new_chunk(shard))
		return -ENOMEM;
	slot = shard->num_slots++;
	entry_at(shard, slot)->generation = 1; /* so that no reference is 0 */
	*out = slot;
	return 0;
}

static int add_locked(struct shard *shard, const struct ucm_entry *entry,
		      uint32_t *slot_out)
{
	struct ucm_entry *new;
	uint32_t *head;
	uint32_t generation, slot = find_slot(shard, &entry->id, entry->space);

	*slot_out = slot;
	if (slot != NONE)
		return -EEXIST;
	/* before there is a slot that belongs to no chain yet */
	if (shard->count >= shard->num_heads)
		grow_heads(shard);
	if (take_slot(shard, &slot))
		return -ENOMEM;

	new = entry_at(shard, slot);
	generation = new->generation;
	*new = *entry;
	new->generation = generation;
	head = head_of(shard, &entry->id, entry->space);
	new->next = *head;
	*head = slot;
	shard->count++;
	*slot_out = slot;
	return 0;
}

int ucm_index_add(struct ucm_index *index, const struct ucm_entry *entry,
		  ucm_ref *ref_out)
{
	struct shard *shard = shard_of(index, &entry->id);
	uint32_t slot;
	int err;

	pthread_mutex_lock(&shard->lock);
	err = add_locked(shard, entry, &slot);
	if (err != -ENOMEM && ref_out)
		*ref_out = make_ref(index, shard, slot);
	pthread_mutex_unlock(&shard->lock);
	return err;
}

bool ucm_index_find(struct ucm_index *index, const struct ucm_key *key,
		    struct ucm_entry *out, ucm_ref *ref_out)
{
	struct shard *shard = shard_of(index, &key->id);
	uint32_t slot;

	pthread_mutex_lock(&shard->lock);
	slot = find_slot(shard, &key->id, key->space);
	if (slot != NONE && out)
		*out = *entry_at(shard, slot);
	if (slot != NONE && ref_out)
		*ref_out = make_ref(index, shard, slot);
	pthread_mutex_unlock(&shard->lock);
	return slot != NONE;
}

bool ucm_index_get(struct ucm_index *index, ucm_ref ref, struct ucm_entry *out)
{
	struct shard *shard = shard_of_ref(index, ref);
	uint32_t slot;

	pthread_mutex_lock(&shard->lock);
	slot = slot_of_ref(shard, ref);
	if (slot != NONE)
		*out = *entry_at(shard, slot);
	pthread_mutex_unlock(&shard->lock);
	return slot != NONE;
}

bool ucm_index_edit(struct ucm_index *index, ucm_ref ref,
		    void (*edit)(struct ucm_entry *entry, void *arg),
		    void *arg)
{
	struct shard *shard = shard_of_ref(index, ref);
	uint32_t slot;

	pthread_mutex_lock(&shard->lock);
	slot = slot_of_ref(shard, ref);
	if (slot != NONE)
		edit(entry_at(shard, slot), arg);
	pthread_mutex_unlock(&shard->lock);
	return slot != NONE;
}

bool ucm_index_flag(struct ucm_index *index, ucm_ref ref, uint8_t flag, bool on)
{
	struct shard *shard = shard_of_ref(index, ref);
	bool changed = false;
	uint32_t slot;

	pthread_mutex_lock(&shard->lock);
	slot = slot_of_ref(shard, ref);
	if (slot != NONE) {
		struct ucm_entry *entry = entry_at(shard, slot);

		changed = !(entry->flags & flag) == on;
		entry->flags = (uint8_t)(on ? entry->flags | flag
					    : entry->flags & ~flag);
	}
	pthread_mutex_unlock(&shard->lock);
	return changed;
}

static void unchain(struct shard *shard, uint32_t slot)
{
	struct ucm_entry *entry = entry_at(shard, slot);
	uint32_t *link = head_of(shard, &entry->id, entry->space);

	while (*link != slot)
		link = &entry_at(shard, *link)->next;
	*link = entry->next;
}

static void free_slot(struct shard *shard, uint32_t slot)
{
	struct ucm_entry *entry = entry_at(shard, slot);

	entry->space = FREE_SPACE;
	entry->generation = (entry->generation + 1) & GENERATION_MASK;
	if (!entry->generation)
		entry->generation = 1;
	entry->next = shard->free_slot;
	shard->free_slot = slot;
	shard->count--;
}

bool ucm_index_remove(struct ucm_index *index, ucm_ref ref,
		      struct ucm_entry *out)
{
	struct shard *shard = shard_of_ref(index, ref);
	uint32_t slot;

	pthread_mutex_lock(&shard->lock);
	slot = slot_of_ref(shard, ref);
	if (slot != NONE) {
		if (out)
			*out = *entry_at(shard, slot);
		unchain(shard, slot);
		free_slot(shard, slot);
	}
	pthread_mutex_unlock(&shard->lock);
	return slot != NONE;
}

bool ucm_index_next(struct ucm_index *index, uint16_t space, unsigned bucket,
		    uint32_t *cursor, struct ucm_entry *out, ucm_ref *ref_out)
{
	struct shard *shard = &index->shards[bucket];
	bool found = false;

	pthread_mutex_lock(&shard->lock);
	while (!found && *cursor < shard->num_slots) {
		const struct ucm_entry *entry = entry_at(shard, *cursor);

		found = entry->space == space;
		if (found) {
			*out = *entry;
			if (ref_out)
				*ref_out = make_ref(index, shard, *cursor);
		}
		++*cursor;
	}
	pthread_mutex_unlock(&shard->lock);
	return found;
}

uint64_t ucm_index_memory(struct ucm_index *index)
{
	uint64_t bytes = sizeof(*index);

	for (int i = 0; i < SHARDS; i++) {
		struct shard *shard = &index->shards[i];
		uint64_t chunks;

		pthread_mutex_lock(&shard->lock);
		chunks = (shard->num_slots + CHUNK_ENTRIES - 1) / CHUNK_ENTRIES;
		bytes += chunks * (CHUNK_ENTRIES * sizeof(struct ucm_entry) +
				   sizeof(void *));
		bytes += shard->num_heads * sizeof(*shard->heads);
		pthread_mutex_unlock(&shard->lock);
	}
	return bytes;
}
