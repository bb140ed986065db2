/* SPDX-License-Identifier: Apache-2.0 */
/*
 * join.c - neighbouring ranges of a block become one; see join.h.
 *
 * Blocks are numbered as they come, by a table of their ids. The entries are
 * sorted by block and first layer, and each continues a run of its block that
 * ends where it begins, or begins a new one. Where ranges overlap a block has
 * several runs that may be continued; only the latest few are looked at, so that
 * a call that names one shard a thousand times costs no more than others.
 */
#include <config.h>

#include "gpu/shards/join.h"

#include <stdlib.h>
#include <string.h>

#define OPEN_RUNS 16

/* ---- which block is which ---- */

static uint32_t hash_of(const struct ucm_id *id)
{
	uint64_t word;

	memcpy(&word, id->bytes, sizeof(word));
	word *= UINT64_C(0x9e3779b97f4a7c15);
	return (uint32_t)(word >> 32);
}

/* table: 1 + the index of a block's first entry, 0: none. */
static uint32_t number_of(uint32_t *table, uint32_t mask,
			  const struct ucm_shards_entry *entries, uint32_t i)
{
	uint32_t at = hash_of(&entries[i].id) & mask;

	while (table[at] && memcmp(&entries[table[at] - 1].id, &entries[i].id,
				   sizeof(entries[i].id)) != 0)
		at = (at + 1) & mask;
	if (!table[at])
		table[at] = i + 1;
	return table[at] - 1;
}

/* A block's number is the place of its first entry. Without memory each entry is
 * a block by itself. */
static void number_blocks(struct ucm_shards_entry *entries, size_t num)
{
	uint32_t *table = NULL, room = 64;

	while (room < 2 * num && room < UINT32_C(1) << 31)
		room *= 2;
	if (num < room)
		table = calloc(room, sizeof(*table));
	for (uint32_t i = 0; i < num; i++)
		entries[i].block =
			table ? number_of(table, room - 1, entries, i) : i;
	free(table);
}

static int by_block(const void *left, const void *right)
{
	const struct ucm_shards_entry *a = left, *b = right;

	if (a->block != b->block)
		return a->block < b->block ? -1 : 1;
	if (a->first_layer != b->first_layer)
		return a->first_layer < b->first_layer ? -1 : 1;
	return a->index < b->index ? -1 : 1;
}

/* ---- runs ---- */

static int by_layers(const void *left, const void *right)
{
	const struct ucm_shards_run *a = left, *b = right;

	if (a->first_layer != b->first_layer)
		return a->first_layer < b->first_layer ? -1 : 1;
	if (a->num_layers != b->num_layers)
		return a->num_layers < b->num_layers ? -1 : 1;
	return a->order < b->order ? -1 : a->order > b->order;
}

void ucm_shards_sort_runs(struct ucm_shards_run *runs, size_t num)
{
	qsort(runs, num, sizeof(*runs), by_layers);
}

struct ucm_shards_run ucm_shards_run_of(struct ucm_shards_entry *entry)
{
	entry->next = NULL;
	return (struct ucm_shards_run){
		.first = entry,
		.last = entry,
		.first_layer = entry->first_layer,
		.num_layers = entry->num_layers,
		.order = (uint32_t)entry->index,
	};
}

/* The run that the entry continues; NULL: none. Runs of its block are the last
 * ones. */
static struct ucm_shards_run *find_run(const struct ucm_shards_entry *entry,
				       struct ucm_shards_run *runs, size_t num)
{
	for (size_t i = 0; i < OPEN_RUNS && i < num; i++) {
		struct ucm_shards_run *run = &runs[num - 1 - i];

		if (run->first->block != entry->block)
			break;
		if (run->first_layer + run->num_layers == entry->first_layer)
			return run;
	}
	return NULL;
}

static void continue_run(struct ucm_shards_run *run,
			 struct ucm_shards_entry *entry)
{
	entry->next = NULL;
	run->last->next = entry;
	run->last = entry;
	run->num_layers += entry->num_layers;
}

size_t ucm_shards_join(struct ucm_shards_entry *entries, size_t num,
		       struct ucm_shards_run *runs)
{
	size_t num_runs = 0;

	number_blocks(entries, num);
	qsort(entries, num, sizeof(*entries), by_block);
	for (size_t i = 0; i < num; i++) {
		struct ucm_shards_run *run =
			find_run(&entries[i], runs, num_runs);

		if (run) {
			continue_run(run, &entries[i]);
			continue;
		}
		runs[num_runs] = ucm_shards_run_of(&entries[i]);
		runs[num_runs++].order = entries[i].block;
	}
	ucm_shards_sort_runs(runs, num_runs);
	return num_runs;
}

size_t ucm_shards_part(struct ucm_shards_entry *entries, size_t num,
		       struct ucm_shards_run *runs)
{
	for (size_t i = 0; i < num; i++)
		runs[i] = ucm_shards_run_of(&entries[i]);
	ucm_shards_sort_runs(runs, num);
	return num;
}
