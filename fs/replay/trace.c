/* SPDX-License-Identifier: Apache-2.0 */
/* trace.c - a trace in memory; see replay.h. */
#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/policy/mark.h"
#include "fs/replay/replay.h"

void ucm_replay_trace_fini(struct ucm_replay_trace *trace)
{
	free(trace->requests);
	free(trace->blocks);
	free(trace->asked);
	free(trace->table);
}

/* Room for num more items. */
static int trace_grow(void **items, size_t *max, size_t have, size_t num,
		      size_t size)
{
	size_t want = *max ? *max : 1024;
	void *more;

	if (have + num <= *max)
		return 0;
	while (want < have + num)
		want *= 2;
	more = reallocarray(*items, want, size);
	if (!more)
		return -ENOMEM;
	*items = more;
	*max = want;
	return 0;
}

static size_t trace_slot(const struct ucm_replay_trace *trace, uint64_t tag)
{
	uint64_t hash = tag * UINT64_C(0x9e3779b97f4a7c15);
	size_t at = (size_t)(hash ^ hash >> 32);

	for (;; at++) {
		uint32_t number = trace->table[at & (trace->table_size - 1)];

		if (number == UCM_REPLAY_NONE ||
		    trace->blocks[number].tag == tag)
			return at & (trace->table_size - 1);
	}
}

static int trace_grow_table(struct ucm_replay_trace *trace)
{
	size_t size = trace->table_size ? 2 * trace->table_size : 4096;
	uint32_t *table;

	if (2 * trace->num_blocks < trace->table_size)
		return 0;
	table = reallocarray(NULL, size, sizeof(*table));
	if (!table)
		return -ENOMEM;
	memset(table, 0xff, size * sizeof(*table));
	free(trace->table);
	trace->table = table;
	trace->table_size = size;
	for (size_t i = 0; i < trace->num_blocks; i++)
		table[trace_slot(trace, trace->blocks[i].tag)] = (uint32_t)i;
	return 0;
}

/* The number of a block; a new one if it was not asked for before. */
static int trace_number(struct ucm_replay_trace *trace, uint64_t tag,
			uint32_t parent, uint32_t depth, uint32_t *out)
{
	int err = trace_grow_table(trace);
	uint32_t *slot;

	if (err)
		return err;
	slot = &trace->table[trace_slot(trace, tag)];
	if (*slot == UCM_REPLAY_NONE) {
		err = trace_grow((void **)&trace->blocks, &trace->max_blocks,
				 trace->num_blocks, 1, sizeof(*trace->blocks));
		if (err)
			return err;
		if (trace->num_blocks == UCM_REPLAY_NONE)
			return -EFBIG;
		*slot = (uint32_t)trace->num_blocks;
		trace->blocks[trace->num_blocks++] = (struct ucm_replay_block){
			.tag = tag, .parent = parent, .depth = depth,
		};
	}
	*out = *slot;
	return 0;
}

static bool trace_takes(const struct ucm_replay_trace *trace, uint64_t tag)
{
	return trace->sample <= 0 ||
	       (double)(policy_mix(tag) >> 11) * 0x1p-53 < trace->sample;
}

int ucm_replay_trace_add(struct ucm_replay_trace *trace, uint32_t time_s,
			 const uint64_t *tags, size_t num)
{
	struct ucm_replay_request *last = NULL;
	uint32_t parent = UCM_REPLAY_NONE, taken = 0;
	int err;

	if (num > UINT32_MAX)
		return -EFBIG;
	err = trace_grow((void **)&trace->requests, &trace->max_requests,
			 trace->num_requests, 1, sizeof(*trace->requests));
	if (!err)
		err = trace_grow((void **)&trace->asked, &trace->max_asked,
				 trace->num_asked, num, sizeof(*trace->asked));
	for (size_t i = 0; !err && i < num; i++) {
		if (!trace_takes(trace, tags[i]))
			continue;
		err = trace_number(trace, tags[i], parent, (uint32_t)i,
				   &parent);
		if (!err)
			trace->asked[trace->num_asked + taken++] = parent;
	}
	if (err)
		return err;
	if (trace->num_requests)
		last = &trace->requests[trace->num_requests - 1];
	if (last && last->time_s > time_s)
		time_s = last->time_s;
	trace->requests[trace->num_requests++] = (struct ucm_replay_request){
		.time_s = time_s,
		.num = taken,
		.first = trace->num_asked,
	};
	trace->num_asked += taken;
	trace->offered += num;
	return 0;
}
