/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chain.c - chains of records, beside readers without a lock.
 *
 * Whatever a reader can reach is changed between begin and end only: the number
 * seq is odd there. Fields are stored with release and loaded (by readers) with
 * acquire, so that whoever sees a new field sees the odd number, or a later
 * one, when he looks at it again. A reader that has met two equal even numbers
 * has seen one moment.
 *
 * A link is the low part of a record's next; the rest of it is not the chain's
 * and stays.
 *
 * Linear hashing: heads are added one at a time, and each splits one chain.
 * Nothing is ever built anew, so there is no moment at which the table is large
 * and slow, and no pointer goes bad.
 */
#include <config.h>

#include "fs/index/shard.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_HEADS 32u

/* The hidden side's chains are nobody's business. */
void ucm_chain_begin(struct ucm_shard *shard, const struct ucm_side *side)
{
	if (side == &shard->open)
		atomic_store_explicit(&shard->live->seq,
				      UCM_GET(&shard->live->seq) + 1,
				      memory_order_relaxed);
}

void ucm_chain_end(struct ucm_shard *shard, const struct ucm_side *side)
{
	if (side == &shard->open)
		UCM_SET(&shard->live->seq, UCM_GET(&shard->live->seq) + 1);
}

static _Atomic uint32_t *head_at(struct ucm_shard *shard,
				 const struct ucm_side *side, uint32_t head)
{
	uint32_t at;
	unsigned chunk = ucm_index_memory_chunk(head, &at);
	_Atomic uint32_t *first;

	if (side == &shard->hidden)
		first = side->own_heads[chunk];
	else
		first = ucm_index_memory_at(
			shard->memory, UCM_GET(&shard->live->heads[chunk]));
	return first + at;
}

static uint32_t get_link(const _Atomic uint32_t *link)
{
	return UCM_GET(link) & UCM_INDEX_MEMORY_LINK;
}

static void set_link(_Atomic uint32_t *link, uint32_t to)
{
	UCM_SET(link, (UCM_GET(link) & ~UCM_INDEX_MEMORY_LINK) | to);
}

static uint32_t hash_of(const struct ucm_index_memory_record *record)
{
	uint64_t id[2] = { UCM_GET(&record->id[0]), UCM_GET(&record->id[1]) };

	return ucm_index_memory_hash(id, ucm_record_space(record));
}

void ucm_chain_put(struct ucm_shard *shard, struct ucm_side *side,
		   uint32_t slot)
{
	struct ucm_index_memory_record *record = ucm_shard_record(shard, slot);
	uint32_t head = ucm_index_memory_head(hash_of(record), side->num_heads);
	_Atomic uint32_t *link = head_at(shard, side, head);

	set_link(&record->next, get_link(link));
	set_link(link, slot + 1);
	side->count++;
}

void ucm_chain_take(struct ucm_shard *shard, struct ucm_side *side,
		    uint32_t slot)
{
	struct ucm_index_memory_record *record = ucm_shard_record(shard, slot);
	uint32_t head = ucm_index_memory_head(hash_of(record), side->num_heads);
	_Atomic uint32_t *link = head_at(shard, side, head);

	while (get_link(link) != slot + 1)
		link = &ucm_shard_record(shard, get_link(link) - 1)->next;
	set_link(link, get_link(&record->next));
	side->count--;
}

uint32_t ucm_chain_find(struct ucm_shard *shard, struct ucm_side *side,
			const uint64_t id[2], uint16_t space)
{
	uint32_t head, link;

	if (!side->count)
		return UCM_NO_SLOT;
	head = ucm_index_memory_head(ucm_index_memory_hash(id, space),
				     side->num_heads);
	link = get_link(head_at(shard, side, head));
	while (link) {
		const struct ucm_index_memory_record *record =
			ucm_shard_record(shard, link - 1);

		if (UCM_GET(&record->id[0]) == id[0] &&
		    UCM_GET(&record->id[1]) == id[1] &&
		    ucm_record_space(record) == space)
			return link - 1;
		link = get_link(&record->next);
	}
	return UCM_NO_SLOT;
}

/* ---- growing ---- */

int ucm_more_pointers(void *array, uint32_t num)
{
	void **pointers = *(void ***)array;

	if (num & (num - 1))
		return 0;
	pointers = realloc(pointers, (num ? 2 * num : 1) * sizeof(*pointers));
	if (!pointers)
		return -ENOMEM;
	memset(pointers + num, 0, (num ? num : 1) * sizeof(*pointers));
	*(void ***)array = pointers;
	return 0;
}

static int new_heads(struct ucm_shard *shard, struct ucm_side *side)
{
	unsigned chunk = side->num_head_chunks;
	uint64_t num = ucm_index_memory_chunk_items(chunk);
	uint32_t unit;

	if (side == &shard->hidden) {
		if (ucm_more_pointers(&side->own_heads, chunk))
			return -ENOMEM;
		side->own_heads[chunk] =
			calloc(num, sizeof(*side->own_heads[chunk]));
		if (!side->own_heads[chunk])
			return -ENOMEM;
	} else {
		if (ucm_index_memory_take(shard->memory, num * sizeof(uint32_t),
					  &unit))
			return -ENOMEM;
		UCM_SET(&shard->live->heads[chunk], unit);
	}
	side->num_head_chunks++;
	return 0;
}

/* Those of one chain go to the new head that belong there. */
static void split(struct ucm_shard *shard, struct ucm_side *side)
{
	uint32_t new = side->num_heads;
	uint32_t old = new - (1u << (31 - __builtin_clz(new)));
	_Atomic uint32_t *from = head_at(shard, side, old);
	_Atomic uint32_t *to = head_at(shard, side, new);
	uint32_t link;

	while ((link = get_link(from))) {
		struct ucm_index_memory_record *record =
			ucm_shard_record(shard, link - 1);

		if (ucm_index_memory_head(hash_of(record), new + 1) == new) {
			set_link(to, link);
			to = &record->next;
			set_link(from, get_link(to));
		} else {
			from = &record->next;
		}
	}
	set_link(to, 0);
}

static void add_head(struct ucm_shard *shard, struct ucm_side *side)
{
	ucm_chain_begin(shard, side);
	if (side->num_heads)
		split(shard, side);
	side->num_heads = side->num_heads ? side->num_heads + 1 : FIRST_HEADS;
	if (side == &shard->open)
		UCM_SET(&shard->live->num_heads, side->num_heads);
	ucm_chain_end(shard, side);
}

/* A head for each record. Without memory chains get longer: slower, not wrong;
 * but the first chunk there must be. */
int ucm_chain_room(struct ucm_shard *shard, struct ucm_side *side)
{
	uint32_t at;

	if (side->count < side->num_heads ||
	    side->num_heads >= UCM_INDEX_MEMORY_MAX_ITEMS)
		return 0;
	if (ucm_index_memory_chunk(side->num_heads, &at) ==
		    side->num_head_chunks &&
	    new_heads(shard, side))
		return side->num_heads ? 0 : -ENOMEM;
	add_head(shard, side);
	return 0;
}
