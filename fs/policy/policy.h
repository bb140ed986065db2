/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy.h - which block is worth most, and which goes first.
 *
 * A policy knows of blocks only a tag (a hash of the name) and a small state,
 * which the caller keeps with the block and hands in at each call. It is told
 * of requests, and says what a block is worth. It does not know what a block
 * is, where it lies or how many there are, makes no choice by itself (pool.h
 * draws candidates and asks what they are worth) and reads no clock: the caller
 * says what time it is. doc/eviction.md has the idea.
 *
 * The order of calls:
 *
 *   ask()    a program asks for a chain of blocks: once for each request, before
 *            anything is read or written
 *   use()    a block is opened or touched; the first one after ask() is the
 *            same use and is not counted again
 *   fresh()  a block is about to be written: the state for it
 *   added()  it is there now (written, or found by a scan)
 *   gone()   it is there no more, or was not let in, and why
 *   learn()  about once a second, from a thread that may take 0.5 ms: what was
 *            seen is turned into what is expected
 *
 * Threads: one lock of the caller's around all calls on a policy, but those
 * marked "no lock".
 *
 * Time is in seconds of any clock that states outlive a restart with, such as
 * those since the epoch. One that jumps back makes blocks look just used, and
 * does no other harm.
 */
#ifndef UCM_FS_POLICY_H
#define UCM_FS_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * What the caller keeps for each block. All zero is a good state for a block of
 * which nothing is known but that it is there. A state that another policy
 * wrote is valid, if less useful.
 */
struct ucm_policy_state {
	uint32_t last_s; /* when it was last asked for or used */
	uint32_t uses;   /* how often; stays at its maximum */
	uint8_t mark;	 /* the policy's own */
};

/* A block of a request. */
struct ucm_policy_asked {
	uint64_t tag;
	/* The block's state, brought up to date by the call. If the block is
	 * absent: what a block that is now written would have. */
	struct ucm_policy_state state;
	bool present;
};

/* A request: blocks that follow each other in a chain. */
struct ucm_policy_request {
	struct ucm_policy_asked *blocks;
	size_t num;
	/* State of the block before the first one, if that is there; else
	 * NULL: the first one is a head, as far as is known. Not changed. */
	const struct ucm_policy_state *before;
};

enum ucm_policy_why {
	UCM_POLICY_EVICTED, /* it made room: remembered */
	UCM_POLICY_REFUSED, /* it was never let in: remembered */
	UCM_POLICY_REMOVED, /* somebody wanted it gone: not remembered */
};

struct ucm_policy; /* one for all blocks that compete for the same room */

struct ucm_policy_ops {
	const char *name;
	bool by_age; /* the block that was used least lately goes, always */
	bool refuses; /* new blocks that are worth less than the victim */

	/* capacity: how many blocks there is room for, as far as is known; an
	 * estimate will do. It sets how much of the past is remembered (4 bytes
	 * for each). What is random follows from seed. 0, or -ENOMEM. */
	int (*new)(uint64_t seed, uint64_t capacity, struct ucm_policy **out);
	void (*free)(struct ucm_policy *policy);
	/* Another capacity; what is remembered stays, as far as it fits. 0, or
	 * -ENOMEM and nothing is changed. */
	int (*resize)(struct ucm_policy *policy, uint64_t capacity);

	/* A program asks for a chain, head first; whether the blocks are there,
	 * and whether those that are not will be written, does not matter. The
	 * caller keeps the states of those that are present. Those of the others
	 * it need not: fresh() has them at hand for some minutes. */
	void (*ask)(struct ucm_policy *policy, uint32_t now_s,
		    struct ucm_policy_request *request);
	/* A block that is there was opened or touched by itself. No lock unless
	 * it monitors the tag, but whatever guards the state. */
	void (*use)(struct ucm_policy *policy, uint32_t now_s, uint64_t tag,
		    struct ucm_policy_state *state);
	/* The state of a block that is about to be written. before: as in a
	 * request, the state of its parent. It is the same one that ask() gave
	 * if that asked for the block lately; else this counts as a request. */
	void (*fresh)(struct ucm_policy *policy, uint32_t now_s, uint64_t tag,
		      const struct ucm_policy_state *before,
		      struct ucm_policy_state *out);
	/* A block with this state is now there. */
	void (*added)(struct ucm_policy *policy, uint64_t tag,
		      const struct ucm_policy_state *state);
	/* A block that was added is gone; or (REFUSED) one with a fresh state
	 * was not let in. */
	void (*gone)(struct ucm_policy *policy, uint32_t now_s, uint64_t tag,
		     const struct ucm_policy_state *state,
		     enum ucm_policy_why why);
	/* Does nothing if nothing was seen since; else takes some 0.3 ms,
	 * whatever the number of blocks. */
	void (*learn)(struct ucm_policy *policy, uint32_t now_s);

	/* Does use() of this tag need the lock? Few do. No lock. */
	bool (*monitors)(const struct ucm_policy *policy, uint64_t tag);
	/* What a block is worth now: of two, the one with less goes first; of two
	 * with the same, the one that was used less lately, then the deeper one.
	 * Numbers can be compared within a policy only. hazard: hits for each
	 * second of stay, at best. No lock. */
	double (*worth)(const struct ucm_policy *policy, uint32_t now_s,
			const struct ucm_policy_state *state);
	/* How likely it is that a block that was just asked for is asked for
	 * again within so many seconds; 1 if the policy does not learn that. No
	 * lock. */
	double (*chance)(const struct ucm_policy *policy,
			 const struct ucm_policy_state *state, uint32_t age_s);
};

struct ucm_policy {
	const struct ucm_policy_ops *ops; /* the rest is the policy's */
};

extern const struct ucm_policy_ops ucm_policy_hazard, ucm_policy_lru;

#define UCM_POLICY_DEFAULT "hazard"

/* By name; NULL: there is none. */
const struct ucm_policy_ops *ucm_policy_find(const char *name);

/* The names, in the order in which to list them; NULL after the last. */
const char *ucm_policy_name(unsigned number);

/* NULL is harmless. */
static inline void ucm_policy_free(struct ucm_policy *policy)
{
	if (policy)
		policy->ops->free(policy);
}

/* Was a block with this fresh state asked for before? */
static inline bool ucm_policy_is_known(const struct ucm_policy_state *fresh)
{
	return fresh->uses > 1;
}

#endif
