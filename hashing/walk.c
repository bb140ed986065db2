/* SPDX-License-Identifier: Apache-2.0 */
/*
 * walk.c - the messages of one request; see walk.h.
 *
 * A small message, which is the rule, is in the buffer as a whole. A large one
 * streams through it: whole chunks are handed out, what is left moves to the
 * front. So does every message of a cumulative scheme; its state before the
 * padding is kept, and is where the next continues.
 */
#include <config.h>

#include "hashing/walk.h"

#include <string.h>

/* The request's state after the whole blocks done so far. */
static void tell_state(const struct ucm_walk *walk)
{
	struct ucm_hash_state *out = walk->at_end;

	if (!out || walk->index != walk->num_whole)
		return;
	*out = walk->at_start;
	out->tokens += (uint64_t)walk->num_whole *
		       walk->hasher->meta.block_size;
	if (walk->num_whole)
		out->parent = walk->parent;
	if (!walk->encoder->cumulative)
		return;
	memcpy(out->md5, walk->kept, sizeof(out->md5));
	memset(out->rest, 0, sizeof(out->rest));
	memcpy(out->rest, walk->bytes, walk->partial);
}

static void begin_cumulative(struct ucm_walk *walk)
{
	const struct ucm_hash_state *state = &walk->at_start;

	memcpy(walk->kept, state->md5, sizeof(walk->kept));
	walk->partial = state->tokens * sizeof(int32_t) % UCM_MD5_CHUNK;
	walk->before = state->tokens * sizeof(int32_t) - walk->partial;
	memcpy(walk->bytes, state->rest, walk->partial);
}

/* Whether the largest message does. */
static bool fits(const struct ucm_walk *walk)
{
	uint64_t tokens = (uint64_t)walk->hasher->meta.block_size * 5;

	return walk->from ||
	       UCM_HEAD_MAX + tokens + UCM_TAIL_MAX <= UCM_WALK_ROOM;
}

void ucm_walk_begin(struct ucm_walk *walk)
{
	walk->index = 0;
	walk->at = 0;
	walk->end = 0;
	walk->parent = walk->at_start.parent;
	walk->place = UCM_WALK_BETWEEN;
	walk->small = !walk->encoder->cumulative && fits(walk);
	walk->skipped = 0;
	if (walk->lead)
		walk->skipped =
			walk->lead->bytes - ucm_midstate_rest(walk->lead);
	if (walk->encoder->cumulative)
		begin_cumulative(walk);
	tell_state(walk);
}

static void next_block(struct ucm_walk *walk)
{
	size_t left = walk->num_tokens - walk->end;
	size_t block_size = walk->hasher->meta.block_size;

	walk->at = walk->end;
	walk->end += left < block_size ? left : block_size;
}

static void first_state(struct ucm_walk *walk)
{
	memcpy(walk->state, walk->lead ? walk->lead->state : ucm_md5_init,
	       sizeof(walk->state));
}

static void close_message(struct ucm_walk *walk)
{
	ucm_md5_digest(walk->state, walk->parent.bytes);
	walk->ids[walk->index++] = walk->parent;
	walk->place = UCM_WALK_BETWEEN;
	tell_state(walk);
}

/* Drop the chunks of the run before. */
static void shift(struct ucm_walk *walk)
{
	size_t done = walk->chunks * UCM_MD5_CHUNK;

	walk->fill -= done;
	walk->before += done;
	memcpy(walk->bytes, walk->bytes + done, walk->fill);
}

static void pad(struct ucm_walk *walk)
{
	size_t partial = walk->fill % UCM_MD5_CHUNK;
	size_t whole = walk->fill - partial;

	walk->chunks = whole / UCM_MD5_CHUNK +
		       ucm_md5_pad(walk->bytes + whole, partial,
				   walk->before + walk->fill);
	walk->place = UCM_WALK_LAST;
}

/* A message that fits: the run is all of it. */
static void take_small(struct ucm_walk *walk)
{
	walk->fill = walk->encoder->whole(walk, walk->bytes);
	walk->encoder->parent(walk, walk->bytes);
	pad(walk);
}

static void open_message(struct ucm_walk *walk)
{
	next_block(walk);
	if (walk->encoder->cumulative) {
		memcpy(walk->state, walk->kept, sizeof(walk->state));
		walk->fill = walk->partial;
	} else {
		first_state(walk);
		walk->before = walk->skipped;
	}
	if (walk->small) {
		take_small(walk);
		return;
	}
	walk->place = UCM_WALK_INSIDE;
	if (walk->encoder->cumulative)
		return;
	walk->fill = walk->encoder->head(walk, walk->bytes);
	walk->encoder->parent(walk, walk->bytes);
}

/* All tokens are in the buffer: what is left of the message. */
static void finish(struct ucm_walk *walk)
{
	if (!walk->encoder->cumulative) {
		walk->fill += walk->encoder->tail(walk,
						  walk->bytes + walk->fill);
		pad(walk);
		return;
	}
	if (walk->fill >= UCM_MD5_CHUNK) { /* the padding waits for its run */
		walk->chunks = walk->fill / UCM_MD5_CHUNK;
		return;
	}
	memcpy(walk->kept, walk->state, sizeof(walk->kept));
	walk->partial = walk->fill;
	pad(walk);
}

static void fill_buffer(struct ucm_walk *walk)
{
	walk->fill += walk->encoder->tokens(walk, walk->bytes + walk->fill,
					    UCM_WALK_ROOM - walk->fill);
	if (walk->at == walk->end)
		finish(walk);
	else
		walk->chunks = walk->fill / UCM_MD5_CHUNK;
}

bool ucm_walk_next(struct ucm_walk *walk)
{
	if (walk->place == UCM_WALK_INSIDE)
		shift(walk);
	if (walk->place == UCM_WALK_LAST)
		close_message(walk);
	if (walk->place == UCM_WALK_BETWEEN) {
		if (walk->index == walk->num_ids)
			return false;
		open_message(walk);
	}
	if (walk->place == UCM_WALK_INSIDE)
		fill_buffer(walk);
	return true;
}
