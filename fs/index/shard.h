/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard.h - the part of the index that has the ids with one first byte.
 *
 * index.c has 256 of them, and takes a shard's lock for each call here. What
 * the others share is the shared memory (memory.h), of which each has its
 * chunks.
 *
 * A shard is one bucket of the tree (of all spaces). Entries have slots, whose
 * numbers are cursors and parts of references and hence never change. Two sides
 * of it: the open one, whose records and chains lie in shared memory, and the
 * hidden one, for private spaces, in private memory. An entry that was open
 * when its space became private keeps its slot, but its record and its chain
 * are hidden then: an exile.
 *
 * A slot is taken while there is a block in it, or entries that name it as
 * their parent: so a link to a parent is a slot and needs no generation. A name
 * that is only a parent is in its chain like a block, and found by those alone
 * who ask for it: when its block comes, it takes that slot, and the links are
 * right.
 *
 * Split by task: shard.c (slots and records), chain.c (chains, and what a
 * reader may see of a change), marks.c (which files have been verified).
 */
#ifndef UCM_SHARD_H
#define UCM_SHARD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "fs/index/index.h"
#include "fs/index/memory.h"

#define UCM_NO_SLOT UINT32_MAX
#define UCM_LATER_SLOT (UINT32_MAX - 1)
#define UCM_SHARD_STEPS 1024u /* slots looked at in one go */
#define UCM_HIDDEN_SLOT (1u << 23) /* this bit: of the hidden side */

/* What readers have no use for. */
struct ucm_rest {
	int64_t mtime_ns;
	uint32_t blocks;
	uint32_t atime_s;
	uint32_t uses; /* and wanted, in the highest 8 bits */
	uint32_t parent;   /* as in an entry */
	uint32_t children; /* entries whose parent is this slot */
	uint16_t epoch;
	uint8_t mark;
	bool tier_only : 1;
	bool exile : 1; /* the record is the one in own */
};
_Static_assert(sizeof(struct ucm_rest) == 32, "memory per block");

/* Records and chains: the open ones of a shard, or the hidden ones. */
struct ucm_side {
	struct ucm_rest **rest;       /* by chunk */
	struct ucm_index_memory_record *
		*own; /* by chunk: all that are hidden, exiles */
	_Atomic uint32_t **own_heads; /* by chunk, of the hidden side */
	uint32_t num_chunks;
	uint32_t num_head_chunks;
	uint32_t num_heads;
	uint32_t count;     /* in chains */
	uint32_t free_slot; /* as in a record's next */
};

struct ucm_shard {
	pthread_mutex_t lock; /* guards the rest; held by the caller */
	_Atomic unsigned waiting; /* for the lock (index.c) */
	bool has_families; /* some entry has, or had, a parent or children */
	bool has_exiles;   /* some entry is one, or was */
	struct ucm_index_memory *memory;
	struct ucm_index_memory_shard *live;
	struct ucm_side open, hidden;
};

void ucm_shard_init(struct ucm_shard *shard, struct ucm_index_memory *memory,
		    unsigned number);
void ucm_shard_fini(struct ucm_shard *shard);

/* The slot of a name, of a block or of a parent alone; or UCM_NO_SLOT. */
uint32_t ucm_shard_seek(struct ucm_shard *shard, const struct ucm_id *id,
			uint16_t space);
/* The slot of an entry; or UCM_NO_SLOT. */
uint32_t ucm_shard_find(struct ucm_shard *shard, const struct ucm_id *id,
			uint16_t space);
/* Is there an entry in that slot, of that generation? Any slot number. */
bool ucm_shard_has(struct ucm_shard *shard, uint32_t slot,
		   uint32_t generation);
/* The next slot with an entry of a space (or UCM_ANY_SPACE), from *cursor on,
 * which is moved past it; or UCM_NO_SLOT. UCM_LATER_SLOT: none among
 * UCM_SHARD_STEPS slots, the lock is to be given back before the next call. */
uint32_t ucm_shard_next(struct ucm_shard *shard, int space, uint32_t *cursor);

/* The next slot of all, used or not; or UCM_NO_SLOT. */
uint32_t ucm_shard_next_slot(struct ucm_shard *shard, uint32_t *cursor);
bool ucm_shard_is_used(struct ucm_shard *shard, uint32_t slot);
/* Is there an entry in that slot? Any slot number. */
bool ucm_shard_has_slot(struct ucm_shard *shard, uint32_t slot);

/* Slots below have an entry; the one of add has not: *slot is what seek said of
 * its name, and then where it is. -ENOMEM. */
int ucm_shard_add(struct ucm_shard *shard, const struct ucm_entry *entry,
		  bool hidden, uint32_t *slot);
uint32_t ucm_shard_generation(struct ucm_shard *shard, uint32_t slot);
void ucm_shard_load(struct ucm_shard *shard, uint32_t slot,
		    struct ucm_entry *out);
/* All but id, space, generation, parent and children. */
void ucm_shard_store(struct ucm_shard *shard, uint32_t slot,
		     const struct ucm_entry *entry);
/* The parent that it had. */
uint32_t ucm_shard_remove(struct ucm_shard *shard, uint32_t slot);

/* A child more of a name, which gets a slot if it has none (hidden: there). Or
 * -ENOMEM. One less: a slot with neither block nor children is free. */
int ucm_shard_hold(struct ucm_shard *shard, const struct ucm_id *id,
		   uint16_t space, bool hidden, uint32_t *slot_out);
void ucm_shard_release(struct ucm_shard *shard, uint32_t slot);
/* Of any slot that is taken: its name. */
void ucm_shard_name(struct ucm_shard *shard, uint32_t slot,
		    struct ucm_id *out);
uint32_t ucm_shard_parent(struct ucm_shard *shard, uint32_t slot);
void ucm_shard_set_parent(struct ucm_shard *shard, uint32_t slot,
			  uint32_t parent);

/* Make exiles of a space's open entries, from *cursor on: -EAGAIN after
 * UCM_SHARD_STEPS slots, as above. -ENOMEM: of some. */
int ucm_shard_hide(struct ucm_shard *shard, uint16_t space, uint32_t *cursor);

/* Bytes of private memory. */
uint64_t ucm_shard_memory(const struct ucm_shard *shard);

/* Its mark becomes this one, or none: 0. Of an entry that others can see.
 * -ENOMEM. */
int ucm_shard_mark(struct ucm_shard *shard, uint32_t slot, uint64_t mark);

/* ---- shared by shard.c, chain.c and marks.c ---- */

/* Fields of shared memory: somebody may be reading. Nobody but us writes. */
#define UCM_GET(field) atomic_load_explicit(field, memory_order_relaxed)
#define UCM_SET(field, value) \
	atomic_store_explicit(field, value, memory_order_release)

struct ucm_index_memory_record *ucm_shard_record(struct ucm_shard *shard,
						 uint32_t slot);

static inline uint16_t
ucm_record_space(const struct ucm_index_memory_record *record)
{
	return (uint16_t)(UCM_GET(&record->place) >> 8);
}

/* Around any change of what a reader may come across on that side. */
void ucm_chain_begin(struct ucm_shard *shard, const struct ucm_side *side);
void ucm_chain_end(struct ucm_shard *shard, const struct ucm_side *side);

/* See to it that one record more can be put into chains. -ENOMEM. */
int ucm_chain_room(struct ucm_shard *shard, struct ucm_side *side);
/* Between begin and end. */
void ucm_chain_put(struct ucm_shard *shard, struct ucm_side *side,
		   uint32_t slot);
void ucm_chain_take(struct ucm_shard *shard, struct ucm_side *side,
		    uint32_t slot);
uint32_t ucm_chain_find(struct ucm_shard *shard, struct ucm_side *side,
			const uint64_t id[2], uint16_t space);

/* Has an open slot a mark? And take it away, between begin and end. */
bool ucm_shard_is_marked(struct ucm_shard *shard, uint32_t slot);
void ucm_shard_unmark(struct ucm_shard *shard, uint32_t slot);

/* Room for one pointer more in an array of num, which is full at each power of
 * two; array: the address of the array's pointer. -ENOMEM. */
int ucm_more_pointers(void *array, uint32_t num);

#endif
