/* SPDX-License-Identifier: Apache-2.0 */
/*
 * belady.c - the best that a cache of a size could do; see replay.h.
 *
 * The trace is read backwards first: when is each block asked for next? Then
 * forwards, with a heap of the blocks that are there, the one that is asked for
 * last at its top; of blocks asked for at the same time the deepest. A block
 * that is used again while it is there gets another entry, and the old one is
 * passed over when it comes to the top.
 */
#include <config.h>

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include "fs/replay/replay.h"

#define BELADY_NEVER UINT32_MAX

struct belady_entry {
	uint32_t next; /* request */
	uint32_t depth;
	uint32_t number;
};

struct belady {
	const struct ucm_replay_trace *trace;
	uint32_t *next;	 /* of each place in trace.asked: the next request */
	uint32_t *there; /* of each block: its next request, or 0 */
	struct belady_entry *heap;
	size_t num, present;
};

/* Is a asked for later than b? */
static bool belady_later(const struct belady_entry *a,
			 const struct belady_entry *b)
{
	return a->next != b->next ? a->next > b->next : a->depth > b->depth;
}

static void belady_push(struct belady *belady, struct belady_entry entry)
{
	size_t at = belady->num++;

	while (at && belady_later(&entry, &belady->heap[(at - 1) / 2])) {
		belady->heap[at] = belady->heap[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	belady->heap[at] = entry;
}

static void belady_pop(struct belady *belady)
{
	struct belady_entry entry = belady->heap[--belady->num];
	size_t at = 0, child = 1;

	while (child < belady->num) {
		if (child + 1 < belady->num &&
		    belady_later(&belady->heap[child + 1],
				 &belady->heap[child]))
			child++;
		if (!belady_later(&belady->heap[child], &entry))
			break;
		belady->heap[at] = belady->heap[child];
		at = child;
		child = 2 * at + 1;
	}
	belady->heap[at] = entry;
}

/* The block that is asked for last; NULL: none is there. */
static const struct belady_entry *belady_top(struct belady *belady)
{
	while (belady->num) {
		const struct belady_entry *top = &belady->heap[0];

		if (belady->there[top->number] == top->next)
			return top;
		belady_pop(belady);
	}
	return NULL;
}

/* When each block is asked for again, by whole requests. */
static void belady_look_ahead(struct belady *belady)
{
	const struct ucm_replay_trace *trace = belady->trace;
	uint32_t *seen = belady->there;

	for (size_t i = 0; i < trace->num_blocks; i++)
		seen[i] = BELADY_NEVER;
	for (size_t i = trace->num_requests; i-- > 0;) {
		const struct ucm_replay_request *r = &trace->requests[i];

		for (uint32_t j = 0; j < r->num; j++)
			belady->next[r->first + j] =
				seen[trace->asked[r->first + j]];
		for (uint32_t j = 0; j < r->num; j++)
			seen[trace->asked[r->first + j]] = (uint32_t)i;
	}
	for (size_t i = 0; i < trace->num_blocks; i++)
		belady->there[i] = 0;
}

static void belady_count_hits(const struct belady *belady,
			      const struct ucm_replay_request *r,
			      struct ucm_replay_result *result)
{
	const uint32_t *numbers = belady->trace->asked + r->first;

	result->asked += r->num;
	for (uint32_t j = 0; j < r->num && belady->there[numbers[j]]; j++)
		result->hits++;
}

/* Make room for a block, unless it is the one to go. */
static bool belady_make_room(struct belady *belady, uint64_t capacity,
			     const struct belady_entry *entry,
			     struct ucm_replay_result *result)
{
	const struct belady_entry *top;

	if (belady->present < capacity)
		return true;
	top = belady_top(belady);
	if (!belady_later(top, entry))
		return false;
	belady->there[top->number] = 0;
	belady_pop(belady);
	belady->present--;
	result->evicted++;
	return true;
}

static void belady_touch(struct belady *belady, uint64_t capacity,
			 uint32_t number, uint32_t next,
			 struct ucm_replay_result *result)
{
	struct belady_entry entry = {
		.next = next,
		.depth = belady->trace->blocks[number].depth,
		.number = number,
	};

	if (belady->there[number] == next)
		return; /* twice in one request */
	if (belady->there[number]) {
		belady->there[number] = next;
		belady_push(belady, entry);
		return;
	}
	if (next == BELADY_NEVER ||
	    !belady_make_room(belady, capacity, &entry, result)) {
		result->refused++;
		return;
	}
	belady->there[number] = next;
	belady->present++;
	result->writes++;
	belady_push(belady, entry);
}

static void belady_play(struct belady *belady, uint64_t capacity,
			struct ucm_replay_result *result)
{
	const struct ucm_replay_trace *trace = belady->trace;

	for (size_t i = 0; i < trace->num_requests; i++) {
		const struct ucm_replay_request *r = &trace->requests[i];

		belady_count_hits(belady, r, result);
		for (uint32_t j = 0; j < r->num; j++)
			belady_touch(belady, capacity,
				     trace->asked[r->first + j],
				     belady->next[r->first + j], result);
	}
}

static size_t belady_room(size_t num)
{
	return num ? num : 1;
}

int ucm_replay_belady(const struct ucm_replay_trace *trace, uint64_t capacity,
		      struct ucm_replay_result *out)
{
	struct belady belady = { .trace = trace };
	struct ucm_replay_result result = { 0 };
	int err = -ENOMEM;

	if (!capacity)
		return -EINVAL;
	belady.next = calloc(belady_room(trace->num_asked), sizeof(uint32_t));
	belady.there = calloc(belady_room(trace->num_blocks), sizeof(uint32_t));
	/* an entry for each time that a block is asked for, at most */
	belady.heap = calloc(belady_room(trace->num_asked),
			     sizeof(*belady.heap));
	if (belady.next && belady.there && belady.heap) {
		belady_look_ahead(&belady);
		belady_play(&belady, capacity, &result);
		*out = result;
		err = 0;
	}
	free(belady.next);
	free(belady.there);
	free(belady.heap);
	return err;
}
