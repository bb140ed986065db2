/* SPDX-License-Identifier: Apache-2.0 */
/* lru.c - the block that was used least lately goes; learns nothing. */
#include <config.h>

#include <errno.h>
#include <stdlib.h>

#include "fs/policy/mark.h"

static int lru_new(uint64_t seed, uint64_t capacity, struct ucm_policy **out)
{
	struct ucm_policy *policy = calloc(1, sizeof(*policy));

	(void)seed, (void)capacity;
	if (!policy)
		return -ENOMEM;
	policy->ops = &ucm_policy_lru;
	*out = policy;
	return 0;
}

static void lru_free(struct ucm_policy *policy)
{
	free(policy);
}

static int lru_resize(struct ucm_policy *policy, uint64_t capacity)
{
	(void)policy, (void)capacity;
	return 0;
}

static void lru_touch(uint32_t now_s, struct ucm_policy_state *state)
{
	policy_count(state);
	state->last_s = now_s;
}

static void lru_ask(struct ucm_policy *policy, uint32_t now_s,
		    struct ucm_policy_request *request)
{
	(void)policy;
	for (size_t i = 0; i < request->num; i++) {
		struct ucm_policy_asked *block = &request->blocks[i];

		if (!block->present)
			block->state = (struct ucm_policy_state){ 0 };
		lru_touch(now_s, &block->state);
		block->state.mark |= MARK_ASKED;
	}
}

static void lru_use(struct ucm_policy *policy, uint32_t now_s, uint64_t tag,
		    struct ucm_policy_state *state)
{
	(void)policy, (void)tag;
	if (!policy_was_counted(now_s, state))
		lru_touch(now_s, state);
}

static void lru_fresh(struct ucm_policy *policy, uint32_t now_s, uint64_t tag,
		      const struct ucm_policy_state *before,
		      struct ucm_policy_state *out)
{
	(void)policy, (void)tag, (void)before;
	*out = (struct ucm_policy_state){ .last_s = now_s, .uses = 1 };
}

static void lru_added(struct ucm_policy *policy, uint64_t tag,
		      const struct ucm_policy_state *state)
{
	(void)policy, (void)tag, (void)state;
}

static void lru_gone(struct ucm_policy *policy, uint32_t now_s, uint64_t tag,
		     const struct ucm_policy_state *state,
		     enum ucm_policy_why why)
{
	(void)policy, (void)now_s, (void)tag, (void)state, (void)why;
}

static void lru_learn(struct ucm_policy *policy, uint32_t now_s)
{
	(void)policy, (void)now_s;
}

static bool lru_monitors(const struct ucm_policy *policy, uint64_t tag)
{
	(void)policy, (void)tag;
	return false;
}

/* Seconds below zero: that used just now is worth most. */
static double lru_worth(const struct ucm_policy *policy, uint32_t now_s,
			const struct ucm_policy_state *state)
{
	(void)policy;
	return -(double)policy_age(now_s, state->last_s);
}

static double lru_chance(const struct ucm_policy *policy,
			 const struct ucm_policy_state *state, uint32_t age_s)
{
	(void)policy, (void)state, (void)age_s;
	return 1;
}

const struct ucm_policy_ops ucm_policy_lru = {
	.name = "lru",
	.by_age = true,
	.new = lru_new,
	.free = lru_free,
	.resize = lru_resize,
	.ask = lru_ask,
	.use = lru_use,
	.fresh = lru_fresh,
	.added = lru_added,
	.gone = lru_gone,
	.learn = lru_learn,
	.monitors = lru_monitors,
	.worth = lru_worth,
	.chance = lru_chance,
};
