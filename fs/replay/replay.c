/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay.c - a cache without bytes, driven by a policy through a trace.
 *
 * Two ways to find a victim. A policy that goes by age (lru) gets the oldest
 * block, exactly: all blocks are kept by last use, and the source of the pool
 * offers the end of that list. The store does not keep one. The others get what
 * the store gives them: leaves drawn at random.
 *
 * Blocks of the request in hand are never victims. By age they are let in tail
 * first, so that the head is the newest; else head first, as a request loses all
 * that follows a block that was refused.
 *
 * Orphans cannot come to be where leaves are drawn: the head is let in first,
 * and only a block without a child goes. children counts by name, as the
 * store's index does.
 */
#include <config.h>

#include <errno.h>
#include <stdlib.h>

#include "fs/policy/admission.h"
#include "fs/policy/mark.h"
#include "fs/policy/pool.h"
#include "fs/replay/replay.h"

#define REPLAY_LEARN_EVERY 64u /* requests */
#define REPLAY_TRIES	   4u  /* for each draw, if it hits the request */
#define REPLAY_BEGIN_S	   (1u << 20) /* what has ended is older than any */

struct replay_block {
	struct ucm_policy_state state;
	bool present;
	uint32_t held;	   /* 1 + the last request that asked for it */
	uint32_t children; /* that are present */
	uint32_t leaf;	   /* place among the leaves, or none */
	uint32_t older, newer;
	uint32_t last; /* request that asks for it */
};

struct replay {
	const struct ucm_replay_trace *trace;
	const struct ucm_replay_options *options;
	struct ucm_policy *policy;
	struct ucm_pool pool;
	struct ucm_pool_source source;
	struct ucm_admission admission;
	struct replay_block *blocks;
	uint32_t *leaves;
	uint32_t num_leaves, num_present;
	uint32_t oldest, newest;
	uint64_t random;
	/* the request in hand */
	uint32_t now_s, held;
	struct ucm_policy_asked *asked;
	struct ucm_replay_result result;
};

/* splitmix64 */
static uint64_t replay_random(struct replay *replay)
{
	uint64_t x = replay->random;

	replay->random += UINT64_C(0x9e3779b97f4a7c15);
	return policy_mix(x);
}

/* ---- leaves ---- */

static void replay_add_leaf(struct replay *replay, uint32_t number)
{
	replay->blocks[number].leaf = replay->num_leaves;
	replay->leaves[replay->num_leaves++] = number;
}

static void replay_remove_leaf(struct replay *replay, uint32_t number)
{
	struct replay_block *block = &replay->blocks[number];
	uint32_t last = replay->leaves[--replay->num_leaves];

	replay->leaves[block->leaf] = last;
	replay->blocks[last].leaf = block->leaf;
	block->leaf = UCM_REPLAY_NONE;
}

/* ---- by last use ---- */

static void replay_unlink(struct replay *replay, uint32_t number)
{
	struct replay_block *block = &replay->blocks[number];

	if (block->older == UCM_REPLAY_NONE)
		replay->oldest = block->newer;
	else
		replay->blocks[block->older].newer = block->newer;
	if (block->newer == UCM_REPLAY_NONE)
		replay->newest = block->older;
	else
		replay->blocks[block->newer].older = block->older;
}

static void replay_link(struct replay *replay, uint32_t number)
{
	struct replay_block *block = &replay->blocks[number];

	block->older = replay->newest;
	block->newer = UCM_REPLAY_NONE;
	if (replay->newest == UCM_REPLAY_NONE)
		replay->oldest = number;
	else
		replay->blocks[replay->newest].newer = number;
	replay->newest = number;
}

/* ---- victims ---- */

static void replay_describe(const struct replay *replay, uint32_t number,
			    struct ucm_pool_candidate *out)
{
	*out = (struct ucm_pool_candidate){
		.ref = number,
		.state = replay->blocks[number].state,
		.depth = replay->trace->blocks[number].depth,
	};
}

static bool replay_draw_leaf(void *arg, struct ucm_pool_candidate *out)
{
	struct replay *replay = arg;

	for (unsigned i = 0; replay->num_leaves && i < REPLAY_TRIES; i++) {
		uint64_t at = (replay_random(replay) >> 32) *
				      replay->num_leaves >> 32;
		uint32_t number = replay->leaves[at];

		replay->result.touches++;
		if (replay->blocks[number].held == replay->held)
			continue;
		replay_describe(replay, number, out);
		return true;
	}
	return false;
}

/* The oldest that the request does not hold. */
static bool replay_draw_oldest(void *arg, struct ucm_pool_candidate *out)
{
	struct replay *replay = arg;
	uint32_t at = replay->oldest;

	while (at != UCM_REPLAY_NONE &&
	       replay->blocks[at].held == replay->held)
		at = replay->blocks[at].newer;
	if (at == UCM_REPLAY_NONE)
		return false;
	replay->result.touches++;
	replay_describe(replay, at, out);
	return true;
}

static bool replay_refresh(void *arg, struct ucm_pool_candidate *candidate)
{
	struct replay *replay = arg;
	const struct replay_block *block = &replay->blocks[candidate->ref];

	replay->result.touches++;
	if (!block->present || block->held == replay->held ||
	    (!replay->policy->ops->by_age && block->children))
		return false;
	candidate->state = block->state;
	return true;
}

static void replay_init_pool(struct replay *replay)
{
	bool by_age = replay->policy->ops->by_age;

	ucm_pool_init(&replay->pool, by_age ? 1 : UCM_POOL_MAX,
		      by_age ? 1 : UCM_POOL_DRAWS);
	replay->source = (struct ucm_pool_source){
		.draw = by_age ? replay_draw_oldest : replay_draw_leaf,
		.refresh = replay_refresh,
		.arg = replay,
	};
}

/* What was drawn for another victim may no longer be the oldest. */
static bool replay_pick(struct replay *replay, struct ucm_pool_candidate *out,
			double *worth_out)
{
	if (replay->policy->ops->by_age)
		replay_init_pool(replay);
	return ucm_pool_pick(&replay->pool, replay->policy, replay->now_s,
			     &replay->source, out, worth_out);
}

static void replay_free_parent(struct replay *replay, uint32_t number)
{
	uint32_t parent = replay->trace->blocks[number].parent;
	struct ucm_pool_candidate candidate;

	if (parent == UCM_REPLAY_NONE || --replay->blocks[parent].children ||
	    !replay->blocks[parent].present)
		return;
	replay_add_leaf(replay, parent);
	if (replay->policy->ops->by_age ||
	    replay->blocks[parent].held == replay->held)
		return;
	replay_describe(replay, parent, &candidate);
	ucm_pool_offer(&replay->pool, replay->policy, replay->now_s,
		       &candidate);
}

static void replay_evict(struct replay *replay, uint32_t number)
{
	struct replay_block *block = &replay->blocks[number];

	ucm_pool_drop(&replay->pool, number);
	block->present = false;
	replay->num_present--;
	replay->result.evicted++;
	replay_unlink(replay, number);
	if (block->leaf != UCM_REPLAY_NONE)
		replay_remove_leaf(replay, number);
	replay_free_parent(replay, number);
	if (block->state.last_s)
		ucm_admission_evicted(&replay->admission,
				      replay->now_s - block->state.last_s);
	replay->policy->ops->gone(replay->policy, replay->now_s,
				  replay->trace->blocks[number].tag, &block->state,
				  UCM_POLICY_EVICTED);
}

/* ---- a request ---- */

static void replay_insert(struct replay *replay, uint32_t number,
			  const struct ucm_policy_state *state)
{
	struct replay_block *block = &replay->blocks[number];
	const struct ucm_replay_block *is = &replay->trace->blocks[number];

	block->state = *state;
	block->present = true;
	replay->num_present++;
	replay->result.writes++;
	replay_link(replay, number);
	if (!block->children)
		replay_add_leaf(replay, number);
	if (is->parent != UCM_REPLAY_NONE) {
		struct replay_block *parent = &replay->blocks[is->parent];

		parent->children++;
		if (parent->leaf != UCM_REPLAY_NONE)
			replay_remove_leaf(replay, is->parent);
	}
	ucm_admission_wrote(&replay->admission, replay->now_s,
			    replay->options->block_bytes);
	replay->policy->ops->added(replay->policy, is->tag, state);
}

/* Let a block in, if it may be, and something can go for it. */
static bool replay_admit(struct replay *replay, uint32_t number,
			 const struct ucm_policy_state *state)
{
	bool full = replay->num_present >= replay->options->capacity;
	struct ucm_pool_candidate victim;
	double worth;

	if (full && !replay_pick(replay, &victim, &worth))
		return false;
	if (!ucm_admission_admits(&replay->admission, replay->policy,
				  replay->now_s, state, full ? &worth : NULL))
		return false;
	if (full)
		replay_evict(replay, (uint32_t)victim.ref);
	replay_insert(replay, number, state);
	return true;
}

static void replay_refuse(struct replay *replay, uint32_t number,
			  const struct ucm_policy_state *state)
{
	replay->result.refused++;
	replay->policy->ops->gone(replay->policy, replay->now_s,
				  replay->trace->blocks[number].tag, state,
				  UCM_POLICY_REFUSED);
}

static void replay_head_first(struct replay *replay, const uint32_t *numbers,
			      size_t num)
{
	bool refused = false;

	for (size_t i = 0; i < num; i++) {
		const struct ucm_policy_state *state = &replay->asked[i].state;

		if (replay->blocks[numbers[i]].present)
			continue;
		refused = refused || !replay_admit(replay, numbers[i], state);
		if (refused)
			replay_refuse(replay, numbers[i], state);
	}
}

static void replay_tail_first(struct replay *replay, const uint32_t *numbers,
			      size_t num)
{
	for (size_t i = num; i-- > 0;) {
		const struct ucm_policy_state *state = &replay->asked[i].state;

		if (replay->blocks[numbers[i]].present) {
			replay_unlink(replay, numbers[i]);
			replay_link(replay, numbers[i]);
		} else if (!replay_admit(replay, numbers[i], state)) {
			replay_refuse(replay, numbers[i], state);
		}
	}
}

static void replay_ask(struct replay *replay, const uint32_t *numbers,
		       size_t num)
{
	struct ucm_policy_request request = { replay->asked, num, NULL };
	bool hit = true;

	for (size_t i = 0; i < num; i++) {
		struct replay_block *block = &replay->blocks[numbers[i]];

		hit = hit && block->present;
		replay->result.hits += hit;
		block->held = replay->held;
		replay->asked[i] = (struct ucm_policy_asked){
			.tag = replay->trace->blocks[numbers[i]].tag,
			.state = block->state,
			.present = block->present,
		};
	}
	replay->result.asked += num;
	replay->policy->ops->ask(replay->policy, replay->now_s, &request);
	for (size_t i = 0; i < num; i++) {
		if (replay->asked[i].present)
			replay->blocks[numbers[i]].state =
				replay->asked[i].state;
	}
}

/* To the other end of the list. */
static void replay_make_oldest(struct replay *replay, uint32_t number)
{
	struct replay_block *block = &replay->blocks[number];

	block->state.last_s = 0;
	replay_unlink(replay, number);
	block->older = UCM_REPLAY_NONE;
	block->newer = replay->oldest;
	if (replay->oldest == UCM_REPLAY_NONE)
		replay->newest = number;
	else
		replay->blocks[replay->oldest].older = number;
	replay->oldest = number;
}

/* As the store's end_chain(), from the last block that was let in. */
static void replay_end(struct replay *replay, const uint32_t *numbers, size_t num)
{
	uint32_t children = 0, uses = UINT32_MAX;
	struct ucm_pool_candidate last;

	while (num && !replay->blocks[numbers[num - 1]].present)
		num--;
	if (!num || replay->blocks[numbers[num - 1]].children)
		return;
	for (size_t i = num; i-- > 0;) {
		struct replay_block *block = &replay->blocks[numbers[i]];

		if (!block->present || block->children > children ||
		    block->state.uses > uses || !block->state.last_s)
			break;
		children = 1;
		uses = 2 * block->state.uses + 2;
		replay_make_oldest(replay, numbers[i]);
	}
	replay_describe(replay, numbers[num - 1], &last);
	ucm_pool_offer(&replay->pool, replay->policy, replay->now_s, &last);
}

/* Its last block may be cut short, and is another one in the next turn. */
static bool replay_is_last(const struct replay *replay, size_t i)
{
	const struct ucm_replay_request *request = &replay->trace->requests[i];
	const uint32_t *numbers = replay->trace->asked + request->first;

	return request->num &&
	       replay->blocks[numbers[request->num - 1 - (request->num > 1)]]
			       .last == i;
}

static void replay_request(struct replay *replay, size_t i)
{
	const struct ucm_replay_request *request = &replay->trace->requests[i];
	const uint32_t *numbers = replay->trace->asked + request->first;

	replay->now_s = REPLAY_BEGIN_S + request->time_s;
	replay->held = (uint32_t)i + 1;
	replay_ask(replay, numbers, request->num);
	if (replay->policy->ops->by_age)
		replay_tail_first(replay, numbers, request->num);
	else
		replay_head_first(replay, numbers, request->num);
	if (replay->options->ends && replay_is_last(replay, i))
		replay_end(replay, numbers, request->num);
	if ((i + 1) % REPLAY_LEARN_EVERY == 0)
		replay->policy->ops->learn(replay->policy, replay->now_s);
}

/* ---- all of it ---- */

static void replay_count_orphans(struct replay *replay)
{
	for (size_t i = 0; i < replay->trace->num_blocks; i++) {
		uint32_t parent = replay->trace->blocks[i].parent;

		replay->result.orphans += replay->blocks[i].present &&
					  parent != UCM_REPLAY_NONE &&
					  !replay->blocks[parent].present;
	}
}

static size_t replay_longest(const struct ucm_replay_trace *trace)
{
	size_t longest = 1;

	for (size_t i = 0; i < trace->num_requests; i++) {
		if (longest < trace->requests[i].num)
			longest = trace->requests[i].num;
	}
	return longest;
}

static int replay_alloc(struct replay *replay)
{
	const struct ucm_replay_trace *trace = replay->trace;
	size_t num = trace->num_blocks ? trace->num_blocks : 1;

	replay->blocks = calloc(num, sizeof(*replay->blocks));
	replay->leaves = calloc(num, sizeof(*replay->leaves));
	replay->asked = calloc(replay_longest(trace), sizeof(*replay->asked));
	if (!replay->blocks || !replay->leaves || !replay->asked)
		return -ENOMEM;
	for (size_t i = 0; i < num; i++)
		replay->blocks[i].leaf = UCM_REPLAY_NONE;
	replay->oldest = replay->newest = UCM_REPLAY_NONE;
	for (size_t i = 0; i < trace->num_requests; i++) {
		const struct ucm_replay_request *request = &trace->requests[i];

		for (size_t j = 0; j < request->num; j++)
			replay->blocks[trace->asked[request->first + j]].last =
				(uint32_t)i;
	}
	return 0;
}

static void replay_fini(struct replay *replay)
{
	ucm_policy_free(replay->policy);
	free(replay->blocks);
	free(replay->leaves);
	free(replay->asked);
}

int ucm_replay_run(const struct ucm_replay_trace *trace,
		   const struct ucm_policy_ops *ops,
		   const struct ucm_replay_options *options,
		   struct ucm_replay_result *out)
{
	struct replay replay = {
		.trace = trace,
		.options = options,
		.random = options->seed,
	};
	int err;

	if (!options->capacity)
		return -EINVAL;
	err = ops->new(options->seed, options->capacity, &replay.policy);
	if (!err)
		err = replay_alloc(&replay);
	if (err)
		goto fini;
	ucm_admission_init(&replay.admission, options->threshold,
			   options->bytes_per_day);
	replay_init_pool(&replay);
	for (size_t i = 0; i < trace->num_requests; i++)
		replay_request(&replay, i);
	replay_count_orphans(&replay);
	*out = replay.result;
fini:
	replay_fini(&replay);
	return err;
}

double ucm_replay_hit_rate(const struct ucm_replay_trace *trace,
			   const struct ucm_replay_result *result)
{
	double asked = (double)result->asked, rate;
	double all = trace->sample > 0 ? trace->sample * (double)trace->offered
				       : asked;

	rate = ((double)result->hits + all - asked) / all;
	return rate < 0 ? 0 : rate > 1 ? 1 : rate;
}
