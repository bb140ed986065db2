/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay.h - what a policy would have made of a trace.
 *
 * A trace is requests in order of time, each for a chain of blocks, head first.
 * A cache of so many blocks is played through it, empty at first; it keeps
 * names and states only. The policies are those of the store, the same code.
 * The rules are in doc/eviction.md.
 */
#ifndef UCM_FS_REPLAY_H
#define UCM_FS_REPLAY_H

#include <stddef.h>
#include <stdint.h>

#include "fs/policy/policy.h"

#define UCM_REPLAY_NONE UINT32_MAX

struct ucm_replay_request {
	uint32_t time_s;
	uint32_t num;
	uint64_t first; /* in trace.asked */
};

/* A block, by its number in the order in which they come. */
struct ucm_replay_block {
	uint64_t tag;
	uint32_t parent; /* the block before it, or UCM_REPLAY_NONE */
	uint32_t depth;	 /* in its chain; both where it was first asked for */
};

struct ucm_replay_trace {
	struct ucm_replay_request *requests;
	struct ucm_replay_block *blocks;
	uint32_t *asked; /* numbers of blocks, of all requests */
	size_t num_requests, num_blocks, num_asked;
	double sample;	  /* set before: which share of blocks is taken; 0: all */
	uint64_t offered; /* what num_asked were without that */
	/* the rest is for building it */
	size_t max_requests, max_blocks, max_asked;
	uint32_t *table; /* from tags to numbers */
	size_t table_size;
};

/* An empty trace is all zero. */
void ucm_replay_trace_fini(struct ucm_replay_trace *trace);

/* Add a request, no earlier than those before it (an earlier time is taken for
 * that of the one before). 0, or -ENOMEM, or -EFBIG.
 *
 * A sample has the blocks whose tags hash low enough, whenever they are asked for
 * (SHARDS): played through a cache as much smaller, it has about the hits of all, in
 * that share. Few blocks that all ask for make the sample as a whole too small or too
 * large; ucm_replay_hit_rate() takes what is missing for hits. */
int ucm_replay_trace_add(struct ucm_replay_trace *trace, uint32_t time_s,
			 const uint64_t *tags, size_t num);

struct ucm_replay_options {
	uint64_t capacity; /* blocks */
	uint64_t seed;
	double threshold;	/* see fs/policy/admission.h */
	uint64_t bytes_per_day; /* 0: no budget */
	uint64_t block_bytes;	/* for the budget */
	/* The last request of a session says so: of those whose last full block
	 * (the last but one) no later one asks for. See ucm_evict_first(). */
	bool ends;
};

struct ucm_replay_result {
	uint64_t asked;	   /* blocks */
	uint64_t hits;	   /* of these, cached one after the other from the head */
	uint64_t writes;   /* blocks let in */
	uint64_t evicted;
	uint64_t refused;
	uint64_t orphans;  /* blocks whose parent went first, at the end */
	uint64_t touches;  /* candidates looked at, to pick victims */
};

/* 0, or -ENOMEM, or -EINVAL: no capacity. */
int ucm_replay_run(const struct ucm_replay_trace *trace,
		   const struct ucm_policy_ops *ops,
		   const struct ucm_replay_options *options,
		   struct ucm_replay_result *out);

/* The share of blocks that were found; of a sample, an estimate. */
double ucm_replay_hit_rate(const struct ucm_replay_trace *trace,
			   const struct ucm_replay_result *result);

/* The best that could be done by somebody who knows what comes (Belady): the
 * block that is asked for last goes, and one that would itself go is not let
 * in. The same errors. */
int ucm_replay_belady(const struct ucm_replay_trace *trace, uint64_t capacity,
		      struct ucm_replay_result *out);

#endif
