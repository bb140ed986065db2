/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.h - picks the block that goes, from a few that are drawn at random.
 *
 * A pool keeps the worst candidates that it has seen. Each pick draws a few
 * more, and takes the one with the least worth: close to a search of all
 * blocks, at a cost that does not depend on how many there are. The pool does
 * not know how candidates are stored; the caller draws them and says what
 * became of them.
 *
 * Candidates must be leaves, blocks without a child in the same place, where
 * that place is the last: a block whose parent is gone is of no use to anybody.
 * When a victim was the last child of its parent, offer the parent: so a chain
 * that nobody wants is eaten from its end.
 *
 *	while (more room is needed &&
 *	       ucm_pool_pick(&pool, policy, now, &source, &victim, &worth)) {
 *		ucm_pool_drop(&pool, victim.ref);
 *		if (evict(victim.ref) is done && its parent is a leaf now)
 *			ucm_pool_offer(&pool, policy, now, &parent);
 *	}
 *
 * Threads: one at a time on a pool; the policy's lock is not needed.
 */
#ifndef UCM_FS_POOL_H
#define UCM_FS_POOL_H

#include "fs/policy/policy.h"

#define UCM_POOL_MAX   32u
#define UCM_POOL_DRAWS 8u

struct ucm_pool_candidate {
	uint64_t ref; /* the caller's; tells candidates apart */
	struct ucm_policy_state state;
	uint32_t depth; /* in its chain, if that is known; else 0 */
};

struct ucm_pool_source {
	/* A candidate at random. False: this draw gave none, which is not
	 * to say that there is none. */
	bool (*draw)(void *arg, struct ucm_pool_candidate *out);
	/* Its state as it is now. False: it is gone or may not go. */
	bool (*refresh)(void *arg, struct ucm_pool_candidate *candidate);
	void *arg;
};

struct ucm_pool { /* about 900 bytes */
	unsigned num, size, draws;
	struct ucm_pool_candidate candidates[UCM_POOL_MAX];
};

/* size: how many are kept; draws: for each pick; at most UCM_POOL_MAX. With one
 * of each, the victim is what the source draws. */
void ucm_pool_init(struct ucm_pool *pool, unsigned size, unsigned draws);

/*
 * The candidate that goes first now, and what it is worth (may be NULL). It
 * stays in the pool: to look is not to take. False: none was drawn that may go.
 * Calls draw() at most pool->draws times, and refresh() seldom more than
 * twice, and at most UCM_POOL_MAX times.
 */
bool ucm_pool_pick(struct ucm_pool *pool, const struct ucm_policy *policy,
		   uint32_t now_s, const struct ucm_pool_source *source,
		   struct ucm_pool_candidate *out, double *worth_out);

/* It has gone, or cannot go now. */
void ucm_pool_drop(struct ucm_pool *pool, uint64_t ref);

/* A candidate that was not drawn, such as the parent of a victim. */
void ucm_pool_offer(struct ucm_pool *pool, const struct ucm_policy *policy,
		    uint32_t now_s, const struct ucm_pool_candidate *candidate);

#endif
