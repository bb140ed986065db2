/* SPDX-License-Identifier: Apache-2.0 */
/*
 * marks.c - which blocks' files have been verified, for loaders to know.
 *
 * A mark (memory_layout.h) lies in shared memory, at the number of its record,
 * in a chunk that is there from the first mark of its records on: where nobody
 * marks, they take no room. It says which file it means, so that a reader need
 * not trust it to be of today: whatever has become of the file changes its
 * stamp. That the mark also goes with the entry is for what a stamp does not
 * show: a file whose directory could not be synced, or that failed a read.
 *
 * Only the open side has marks. A slot that becomes an exile loses its own.
 */
#include <config.h>

#include "fs/index/shard.h"

/* NULL: its chunk is not there. */
static _Atomic uint64_t *mark_at(struct ucm_shard *shard, uint32_t slot)
{
	uint32_t at, unit;
	unsigned chunk;
	_Atomic uint64_t *first;

	if (slot & UCM_HIDDEN_SLOT)
		return NULL;
	chunk = ucm_index_memory_chunk(slot, &at);
	unit = UCM_GET(&shard->live->marks[chunk]);
	if (!unit)
		return NULL;
	first = ucm_index_memory_at(shard->memory, unit);
	return first + at;
}

bool ucm_shard_is_marked(struct ucm_shard *shard, uint32_t slot)
{
	const _Atomic uint64_t *mark = mark_at(shard, slot);

	return mark && UCM_GET(mark);
}

static void count_marked(struct ucm_shard *shard, uint64_t more)
{
	atomic_fetch_add(&shard->memory->marked, more);
}

void ucm_shard_unmark(struct ucm_shard *shard, uint32_t slot)
{
	if (!ucm_shard_is_marked(shard, slot))
		return;
	UCM_SET(mark_at(shard, slot), 0);
	count_marked(shard, -UINT64_C(1));
}

/* The chunk is all zero: no mark. */
static int new_marks(struct ucm_shard *shard, uint32_t slot)
{
	uint32_t at, unit;
	unsigned chunk = ucm_index_memory_chunk(slot, &at);
	uint64_t items = ucm_index_memory_chunk_items(chunk);
	int err = ucm_index_memory_take(shard->memory,
					items * sizeof(uint64_t), &unit);

	if (!err)
		UCM_SET(&shard->live->marks[chunk], unit);
	return err;
}

int ucm_shard_mark(struct ucm_shard *shard, uint32_t slot, uint64_t mark)
{
	int err = mark_at(shard, slot) ? 0 : new_marks(shard, slot);

	if (err)
		return err;
	ucm_chain_begin(shard, &shard->open);
	ucm_shard_unmark(shard, slot);
	UCM_SET(mark_at(shard, slot), mark);
	ucm_chain_end(shard, &shard->open);
	count_marked(shard, !!mark);
	return 0;
}
