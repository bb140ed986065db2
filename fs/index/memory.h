/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.h - the memory in which the index lies, for others to map.
 *
 * A file in memory that grows at its end and never shrinks or moves, so that a
 * pointer into it is good until the end. Nobody but its maker can write to it,
 * whatever descriptor he gets. The daemon's side; what lies where is
 * memory_layout.h's, what is in the records shard.h's.
 */
#ifndef UCM_INDEX_MEMORY_H
#define UCM_INDEX_MEMORY_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/lifeline.h"
#include "fs/index/memory_layout.h"

struct ucm_index_memory {
	int fd; /* -1: nobody else can map it */
	char *base; /* reserve bytes, of which the file's are there */
	uint64_t reserve;
	pthread_mutex_t lock; /* guards the rest */
	uint64_t used;
	uint64_t size;
	bool starved; /* it could not grow when it was asked to last */
	_Atomic uint64_t marked; /* blocks that have a mark */
	struct ucm_lifeline line;
};

/* A file with a header and empty shards. Nobody lives in it yet. */
int ucm_index_memory_init(struct ucm_index_memory *live);
void ucm_index_memory_fini(struct ucm_index_memory *live);

static inline struct ucm_index_memory_header *
ucm_index_memory_header(struct ucm_index_memory *live)
{
	return (struct ucm_index_memory_header *)live->base;
}

struct ucm_index_memory_shard *
ucm_index_memory_shard(struct ucm_index_memory *live, unsigned number);

/* Room for a chunk, all zero: 0 and its place in units, or -errno. */
int ucm_index_memory_take(struct ucm_index_memory *live, uint64_t bytes,
			  uint32_t *unit_out);

static inline void *ucm_index_memory_at(const struct ucm_index_memory *live,
					uint32_t unit)
{
	return live->base + (uint64_t)unit * UCM_INDEX_MEMORY_UNIT;
}

uint64_t ucm_index_memory_size(struct ucm_index_memory *live);

/* ---- what readers see ---- */

/* From now on, and for as long as the calling thread lives or until it takes
 * it back, somebody keeps the index. */
int ucm_index_memory_serve(struct ucm_index_memory *live);
void ucm_index_memory_unserve(struct ucm_index_memory *live);

/* The tier of a directory: its place, fast to slow, and its name. Before
 * anybody maps the file. */
void ucm_index_memory_name_tier(struct ucm_index_memory *live, unsigned dir,
				unsigned tier, const char *name);

/* For how long marks hold; 0: none are made. Before anybody maps the file. */
void ucm_index_memory_set_reverify(struct ucm_index_memory *live,
				   uint32_t seconds);

/* What is not in the index does not exist. */
void ucm_index_memory_set_complete(struct ucm_index_memory *live);

/* Which space a name means, or whether it can be seen, has changed. */
void ucm_index_memory_names_changed(struct ucm_index_memory *live);

#endif
