/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.c - the worst candidates that were seen; see pool.h.
 *
 * The pool keeps copies of states, and what a copy is worth now is worked out
 * without a look at the block. Only the one that is about to be picked is
 * refreshed: if it has been used since, it is worth more than its copy says, and
 * the search goes on. A copy that makes its block look better than it is costs
 * that block's turn, no more.
 */
#include <config.h>

#include <assert.h>

#include "fs/policy/pool.h"

void ucm_pool_init(struct ucm_pool *pool, unsigned size, unsigned draws)
{
	assert(size && size <= UCM_POOL_MAX && draws <= UCM_POOL_MAX);
	pool->num = 0;
	pool->size = size;
	pool->draws = draws;
}

static struct ucm_pool_candidate *pool_find(struct ucm_pool *pool, uint64_t ref)
{
	for (unsigned i = 0; i < pool->num; i++) {
		if (pool->candidates[i].ref == ref)
			return &pool->candidates[i];
	}
	return NULL;
}

static void pool_take_out(struct ucm_pool *pool,
			  struct ucm_pool_candidate *candidate)
{
	*candidate = pool->candidates[--pool->num];
}

void ucm_pool_drop(struct ucm_pool *pool, uint64_t ref)
{
	struct ucm_pool_candidate *candidate = pool_find(pool, ref);

	if (candidate)
		pool_take_out(pool, candidate);
}

/* Does a go before b? */
static bool pool_before(const struct ucm_pool_candidate *a, double worth_a,
			const struct ucm_pool_candidate *b, double worth_b)
{
	if (worth_a != worth_b)
		return worth_a < worth_b;
	if (a->state.last_s != b->state.last_s)
		return a->state.last_s < b->state.last_s;
	return a->depth > b->depth;
}

/* What each is worth now. */
static void pool_weigh(const struct ucm_pool *pool,
		       const struct ucm_policy *policy, uint32_t now_s,
		       double *worths)
{
	for (unsigned i = 0; i < pool->num; i++)
		worths[i] = policy->ops->worth(policy, now_s, &pool->candidates[i].state);
}

static unsigned pool_last(const struct ucm_pool *pool, const double *worths)
{
	const struct ucm_pool_candidate *all = pool->candidates;
	unsigned last = 0;

	for (unsigned i = 1; i < pool->num; i++) {
		if (pool_before(&all[last], worths[last], &all[i], worths[i]))
			last = i;
	}
	return last;
}

static unsigned pool_first(const struct ucm_pool *pool, const double *worths)
{
	const struct ucm_pool_candidate *all = pool->candidates;
	unsigned first = 0;

	for (unsigned i = 1; i < pool->num; i++) {
		if (pool_before(&all[i], worths[i], &all[first],
				worths[first]))
			first = i;
	}
	return first;
}

/* Into the pool; if it is full, in place of the one that would go last. */
static void pool_put(struct ucm_pool *pool, const struct ucm_policy *policy,
		     uint32_t now_s,
		     const struct ucm_pool_candidate *candidate, double *worths)
{
	double worth = policy->ops->worth(policy, now_s, &candidate->state);
	struct ucm_pool_candidate *had = pool_find(pool, candidate->ref);
	unsigned at = pool->num;

	if (had) {
		at = (unsigned)(had - pool->candidates);
	} else if (at < pool->size) {
		pool->num++;
	} else {
		at = pool_last(pool, worths);
		if (!pool_before(candidate, worth, &pool->candidates[at],
				 worths[at]))
			return;
	}
	pool->candidates[at] = *candidate;
	worths[at] = worth;
}

/* All are drawn before the first is judged, so that the memory that they lie in
 * is waited for together. */
static void pool_draw(struct ucm_pool *pool, const struct ucm_policy *policy,
		      uint32_t now_s, const struct ucm_pool_source *source,
		      double *worths)
{
	struct ucm_pool_candidate drawn[UCM_POOL_MAX];
	unsigned num = 0;

	for (unsigned i = 0; i < pool->draws; i++)
		num += source->draw(source->arg, &drawn[num]);
	for (unsigned i = 0; i < num; i++)
		pool_put(pool, policy, now_s, &drawn[i], worths);
}

bool ucm_pool_pick(struct ucm_pool *pool, const struct ucm_policy *policy,
		   uint32_t now_s, const struct ucm_pool_source *source,
		   struct ucm_pool_candidate *out, double *worth_out)
{
	double worths[UCM_POOL_MAX], before;
	unsigned first;

	pool_weigh(pool, policy, now_s, worths);
	pool_draw(pool, policy, now_s, source, worths);
	while (pool->num) {
		struct ucm_pool_candidate *candidate;

		first = pool_first(pool, worths);
		candidate = &pool->candidates[first];
		if (!source->refresh(source->arg, candidate)) {
			pool_take_out(pool, candidate);
			worths[first] = worths[pool->num];
			continue;
		}
		before = worths[first];
		worths[first] = policy->ops->worth(policy, now_s, &candidate->state);
		if (worths[first] > before &&
		    pool_first(pool, worths) != first)
			continue;
		*out = *candidate;
		if (worth_out)
			*worth_out = worths[first];
		return true;
	}
	return false;
}

void ucm_pool_offer(struct ucm_pool *pool, const struct ucm_policy *policy,
		    uint32_t now_s, const struct ucm_pool_candidate *candidate)
{
	double worths[UCM_POOL_MAX];

	pool_weigh(pool, policy, now_s, worths);
	pool_put(pool, policy, now_s, candidate, worths);
}
