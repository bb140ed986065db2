/* SPDX-License-Identifier: Apache-2.0 */
/*
 * join.c - neighbouring ranges of a block become one; see join.h.
 *
 * The entries are sorted by block and first layer, and each continues a run of
 * its block that ends where it begins, or begins a new one. Where ranges overlap
 * a block has several runs that may be continued; only the latest few are looked
 * at, so that a call that names one shard a thousand times costs no more than
 * others.
 */
#include <config.h>

#include "gpu/shards/join.h"

#include <stdlib.h>
#include <string.h>

#define OPEN_RUNS 16

/* ---- which block is which ---- */

static int by_block(const void *left, const void *right)
{
	const struct ucm_shards_entry *a = left, *b = right;
	int order = memcmp(&a->id, &b->id, sizeof(a->id));

	if (order)
		return order;
	if (a->first_layer != b->first_layer)
		return a->first_layer < b->first_layer ? -1 : 1;
	return a->index < b->index ? -1 : 1;
}

/* Of sorted entries; a block's number is the index of its first one. */
static void number_blocks(struct ucm_shards_entry *entries, size_t num)
{
	for (size_t i = 0, end; i < num; i = end) {
		size_t first = entries[i].index;

		for (end = i + 1; end < num; end++) {
			if (memcmp(&entries[i].id, &entries[end].id,
				   sizeof(entries[i].id)) != 0)
				break;
			if (first > entries[end].index)
				first = entries[end].index;
		}
		for (size_t j = i; j < end; j++)
			entries[j].block = (uint32_t)first;
	}
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

	qsort(entries, num, sizeof(*entries), by_block);
	number_blocks(entries, num);
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
