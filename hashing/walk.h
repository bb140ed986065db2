/* SPDX-License-Identifier: Apache-2.0 */
/*
 * walk.h - the messages of one request, chunk by chunk.
 *
 * A walk goes over the blocks of a request, and says which 64-byte chunks to
 * compress next; who compresses them, alone or beside other walks, is not its
 * business:
 *
 *	while (ucm_walk_next(walk))
 *		ucm_md5_one(walk->state, walk->bytes, walk->chunks);
 *
 * It is as large as its buffer, not as the message, so that it fits on a stack.
 */
#ifndef UCM_WALK_H
#define UCM_WALK_H

#include "hashing/hasher.h"
#include "hashing/pickle.h"

#define UCM_WALK_ROOM 1024 /* bytes of messages that are in the buffer */
#define UCM_WALK_SLACK 192 /* bytes after it that may be touched */

struct ucm_walk {
	/* The run in hand: to be compressed into state. */
	uint32_t state[4];
	size_t chunks;

	/* What is to be done; set by the owner before ucm_walk_begin(). */
	const struct ucm_hasher *hasher;
	const struct ucm_encoder *encoder;
	const struct ucm_midstate *lead;
	const int64_t *tokens;
	size_t num_tokens;
	const struct ucm_id *from; /* ids instead of tokens (ranks), or NULL */
	struct ucm_id *ids;
	size_t num_ids;
	size_t num_whole; /* of them, blocks that are not partial */
	struct ucm_hash_state at_start; /* the request's state */
	struct ucm_hash_state *at_end;  /* where to put it, or NULL */

	/* Where it is. */
	size_t index;         /* of the block in hand */
	size_t at, end;	      /* tokens: the next to be encoded, and one past
				 the last of its block */
	struct ucm_id parent; /* of the block in hand */
	struct ucm_pickle pickle;
	uint32_t kept[4]; /* cumulative: the state before the padding */
	size_t partial;   /* and the bytes that it has not taken in */
	uint64_t skipped; /* bytes of the lead that its state has taken in */
	uint64_t before;  /* bytes of the message before the buffer */
	size_t fill;      /* bytes in the buffer, without padding */
	bool small;       /* whole messages fit there */
	enum {
		UCM_WALK_BETWEEN, /* blocks: no message is in hand */
		UCM_WALK_INSIDE,
		UCM_WALK_LAST, /* the run in hand ends the message */
	} place;
	uint8_t bytes[UCM_WALK_ROOM + UCM_WALK_SLACK];
};

void ucm_walk_begin(struct ucm_walk *walk);

/* The next run; false: there is none, all ids are written. The state must be
 * the result of the run before. */
bool ucm_walk_next(struct ucm_walk *walk);

/* Do walks that next() fills in and begins, until it returns false: alone, or
 * in lanes side by side. */
typedef bool (*ucm_walk_source)(void *arg, struct ucm_walk *walk);
void ucm_walk_all(ucm_md5_lanes lanes, ucm_walk_source next, void *arg);

#endif
