/* SPDX-License-Identifier: Apache-2.0 */
/*
 * join.h - neighbouring ranges of a block become one.
 *
 * Whoever moves shards names them one by one; a file is opened, and its header
 * read, for each time that it is asked for. Pure: knows layers and ids, and
 * neither the loader nor what the entries are for.
 */
#ifndef UCM_GPU_SHARDS_JOIN_H
#define UCM_GPU_SHARDS_JOIN_H

#include <stddef.h>
#include <stdint.h>

#include <ucm/block.h>

/* One entry of a call. Its bytes lie in pieces of piece_bytes, one after the
 * other in the payload, each at an address. */
struct ucm_shards_entry {
	struct ucm_id id;
	size_t index;
	uint32_t first_layer, num_layers;
	const uint64_t *addresses;
	uint64_t piece_bytes;
	uint32_t block;                /* join.c's: equal ids have one number */
	struct ucm_shards_entry *next; /* in its run */
};

/* Layers of one block in a row, and the entries that make them up. */
struct ucm_shards_run {
	struct ucm_shards_entry *first, *last;
	uint32_t first_layer, num_layers;
	uint32_t order; /* among runs of the same layers */
};

/*
 * Make runs of entries, each of which gets into one run: as few runs as can be,
 * for which the entries are put into another order. Entries that share layers
 * are in different runs. Sorted by the layers, and where those are the same by
 * which block came first. runs has room for num; the number of runs.
 */
size_t ucm_shards_join(struct ucm_shards_entry *entries, size_t num,
		       struct ucm_shards_run *runs);

/* A run of one entry. */
struct ucm_shards_run ucm_shards_run_of(struct ucm_shards_entry *entry);
void ucm_shards_sort_runs(struct ucm_shards_run *runs, size_t num);

#endif
