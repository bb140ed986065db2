/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hazard.c - the default policy: learns how likely blocks of a class are to be
 * asked for again, by age; doc/eviction.md tells why and how well.
 *
 * A request is judged once, by what is known of its path: the blocks from its
 * head on that are there or are remembered. How old a generation the deepest of
 * these is, and how long it has not been asked for, becomes part of the class of
 * all blocks of the request, with how often each was asked for. So a block's
 * class describes the session that asked for it last.
 *
 * Of blocks that are gone only every fourth of a chain is remembered (ghosts.h),
 * and stands for its group of four. A group that the chain does not fill takes
 * the group before it.
 *
 * What is seen goes to rates.h: for one block in eight or fewer (monitor.h),
 * whether it is there or not, so that what the policy does has no influence on
 * what it sees.
 *
 * Everything is guarded by the caller's lock, but the indices (rates.c) and how
 * many blocks are monitored.
 */
#include <config.h>

#include <errno.h>
#include <stdlib.h>

#include "fs/policy/ghosts.h"
#include "fs/policy/mark.h"
#include "fs/policy/monitor.h"
#include "fs/policy/rates.h"
#include "fs/policy/recent.h"

#define HAZARD_GROUP 4u
/* A block that is written so soon after its parent was asked for belongs to the
 * same request. */
#define HAZARD_SAME_S 16u

struct hazard {
	struct ucm_policy policy;
	uint64_t seed;
	struct ghosts ghosts;
	struct monitor monitor;
	struct rates rates;
	bool seen; /* something, since rates were worked out */
	struct recent recent;
};

/* What is known of a request's path. */
struct hazard_path {
	unsigned age;   /* 0: new; 1, 2: generation */
	unsigned pause; /* 0: < 16 s, 1: < 64 s, 2: < 256 s, 3 */
};

static struct hazard *hazard_of(struct ucm_policy *policy)
{
	return (struct hazard *)policy;
}

static uint64_t hazard_hash(const struct hazard *hazard, uint64_t tag)
{
	return policy_mix(tag ^ hazard->seed);
}

static struct hazard_path hazard_path(bool again, uint32_t pause_s)
{
	return (struct hazard_path){
		.age = again ? 2 : 1,
		.pause = (pause_s >= 16) + (pause_s >= 64) + (pause_s >= 256),
	};
}

static unsigned hazard_class(const struct ucm_policy_state *state)
{
	return rates_class(mark_path(state->mark), state->uses,
			   mark_pause(state->mark));
}

static uint8_t hazard_mark(struct hazard_path path, bool again, unsigned place)
{
	return (uint8_t)(path.age << MARK_PATH_SHIFT |
			 path.pause << MARK_PAUSE_SHIFT |
			 (again ? MARK_AGAIN : 0) |
			 place % HAZARD_GROUP << MARK_PLACE_SHIFT);
}

/* A monitored block has been asked for, and has this state now. */
static void hazard_see(struct hazard *hazard, uint32_t now_s, uint64_t hash,
		       const struct ucm_policy_state *state)
{
	struct monitored was;

	hazard->seen = true;
	if (monitor_has(&hazard->monitor, hash) &&
	    monitor_ask(&hazard->monitor, hash, now_s, hazard_class(state),
			&was))
		rates_event(&hazard->rates, was.class,
			    policy_age(now_s, was.last_s));
}

/* ---- a request ---- */

struct hazard_request {
	struct hazard *hazard;
	uint32_t now_s;
	struct ucm_policy_request *request;
	unsigned first; /* the first block's place in its chain */
	/* the group that was looked at last, and what is known of it */
	size_t group;
	bool found;
	struct ghost ghost;
};

static unsigned hazard_first(const struct ucm_policy_request *request)
{
	const struct ucm_policy_asked *head = &request->blocks[0];

	if (request->before)
		return mark_place(request->before->mark) + 1;
	if (head->present)
		return mark_place(head->state.mark);
	/* one block alone, such as a file, is remembered by itself */
	return request->num == 1 ? HAZARD_GROUP - 1 : 0;
}

/* The block whose ghost tells of block i, or num: there is none. */
static size_t hazard_teller(const struct hazard_request *r, size_t i)
{
	size_t place = (i + r->first) % HAZARD_GROUP;
	size_t teller = i + HAZARD_GROUP - 1 - place;

	if (teller < r->request->num)
		return teller;
	return teller >= HAZARD_GROUP ? teller - HAZARD_GROUP
				      : r->request->num;
}

/* What is remembered of a block that is not there; NULL: nothing. */
static const struct ghost *hazard_ghost(struct hazard_request *r, size_t i)
{
	const struct ucm_policy_asked *blocks = r->request->blocks;
	size_t teller = hazard_teller(r, i);

	if (teller == r->request->num)
		return NULL;
	if (teller != r->group) {
		r->group = teller;
		r->found = !blocks[teller].present &&
			   ghosts_find(&r->hazard->ghosts,
				       hazard_hash(r->hazard,
						   blocks[teller].tag),
				       r->now_s, &r->ghost);
	}
	return r->found ? &r->ghost : NULL;
}

/* What follows a block that was asked for. If that was just now, it is the same
 * request, of which that block has the class. */
static struct hazard_path hazard_after(const struct ucm_policy_state *before,
				       uint32_t now_s)
{
	uint32_t pause = policy_age(now_s, before->last_s);

	if (pause < HAZARD_SAME_S)
		return (struct hazard_path){
			.age = mark_path(before->mark),
			.pause = mark_pause(before->mark),
		};
	return hazard_path(mark_again(before->mark), pause);
}

/* From the head on, as far as something is known. */
static struct hazard_path hazard_walk(struct hazard_request *r)
{
	const struct ucm_policy_state *before = r->request->before;
	struct hazard_path path = { 0 };

	if (before)
		path = hazard_after(before, r->now_s);
	for (size_t i = 0; i < r->request->num; i++) {
		const struct ucm_policy_asked *block = &r->request->blocks[i];
		const struct ghost *ghost;

		if (block->present) {
			path = hazard_path(mark_again(block->state.mark),
					   policy_age(r->now_s,
						      block->state.last_s));
			continue;
		}
		ghost = hazard_ghost(r, i);
		if (!ghost)
			break;
		path = hazard_path(ghost->again,
				   policy_age(r->now_s, ghost->last_s));
	}
	return path;
}

static void hazard_ask_one(struct hazard_request *r, size_t i,
			   struct hazard_path path)
{
	struct ucm_policy_asked *block = &r->request->blocks[i];
	struct ucm_policy_state *state = &block->state;
	uint64_t hash = hazard_hash(r->hazard, block->tag);
	const struct ghost *ghost;
	bool again = path.age;

	if (block->present) {
		again = mark_again(state->mark);
		policy_count(state);
	} else {
		ghost = hazard_ghost(r, i);
		state->uses = ghost ? ghost->uses + 1 : 1;
	}
	state->last_s = r->now_s;
	state->mark = hazard_mark(path, again, r->first + (unsigned)i) |
		      MARK_ASKED;
	if (!block->present)
		recent_put(&r->hazard->recent, hash, state);
	hazard_see(r->hazard, r->now_s, hash, state);
}

static void hazard_ask(struct ucm_policy *policy, uint32_t now_s,
		       struct ucm_policy_request *request)
{
	struct hazard_request r = {
		.hazard = hazard_of(policy),
		.now_s = now_s,
		.request = request,
		.group = SIZE_MAX,
	};
	struct hazard_path path;

	if (!request->num)
		return;
	r.first = hazard_first(request) % HAZARD_GROUP;
	path = hazard_walk(&r);
	for (size_t i = 0; i < request->num; i++)
		hazard_ask_one(&r, i, path);
}

/* ---- one block ---- */

static void hazard_use(struct ucm_policy *policy, uint32_t now_s, uint64_t tag,
		       struct ucm_policy_state *state)
{
	struct hazard *hazard = hazard_of(policy);
	uint64_t hash = hazard_hash(hazard, tag);
	struct hazard_path path;

	if (policy_was_counted(now_s, state))
		return;
	path = hazard_path(mark_again(state->mark),
			   policy_age(now_s, state->last_s));
	state->mark = hazard_mark(path, mark_again(state->mark),
				  mark_place(state->mark));
	policy_count(state);
	state->last_s = now_s;
	if (monitor_has(&hazard->monitor, hash))
		hazard_see(hazard, now_s, hash, state);
}

/* A block that nobody asked for: by its parent, and by its own ghost. */
static void hazard_alone(struct hazard *hazard, uint32_t now_s, uint64_t hash,
			 const struct ucm_policy_state *before,
			 struct ucm_policy_state *out)
{
	unsigned place = before ? mark_place(before->mark) + 1
				: HAZARD_GROUP - 1;
	struct hazard_path path = { 0 };
	struct ghost ghost = { 0 };

	if (before)
		path = hazard_after(before, now_s);
	if (ghosts_find(&hazard->ghosts, hash, now_s, &ghost) && !before)
		path = hazard_path(ghost.again,
				   policy_age(now_s, ghost.last_s));
	*out = (struct ucm_policy_state){
		.last_s = now_s,
		.uses = ghost.uses + 1,
		.mark = hazard_mark(path, path.age, place),
	};
	hazard_see(hazard, now_s, hash, out);
}

static void hazard_fresh(struct ucm_policy *policy, uint32_t now_s,
			 uint64_t tag, const struct ucm_policy_state *before,
			 struct ucm_policy_state *out)
{
	struct hazard *hazard = hazard_of(policy);
	uint64_t hash = hazard_hash(hazard, tag);

	if (!recent_take(&hazard->recent, hash, now_s, out))
		hazard_alone(hazard, now_s, hash, before, out);
	/* it is written for that request, and what opens it later is another */
	out->mark &= (uint8_t)~MARK_ASKED;
}

static void hazard_added(struct ucm_policy *policy, uint64_t tag,
			 const struct ucm_policy_state *state)
{
	struct hazard *hazard = hazard_of(policy);

	if (mark_place(state->mark) == HAZARD_GROUP - 1)
		ghosts_drop(&hazard->ghosts, hazard_hash(hazard, tag));
}

static void hazard_gone(struct ucm_policy *policy, uint32_t now_s,
			uint64_t tag, const struct ucm_policy_state *state,
			enum ucm_policy_why why)
{
	struct hazard *hazard = hazard_of(policy);
	struct ghost ghost = {
		.uses = state->uses,
		.last_s = state->last_s,
		.again = mark_again(state->mark),
	};

	(void)now_s;
	if (why != UCM_POLICY_REMOVED &&
	    mark_place(state->mark) == HAZARD_GROUP - 1)
		ghosts_put(&hazard->ghosts, hazard_hash(hazard, tag), &ghost);
}

/* ---- what is learnt ---- */

static void hazard_learn(struct ucm_policy *policy, uint32_t now_s)
{
	struct hazard *hazard = hazard_of(policy);
	struct rates_open open = { 0 };

	if (!hazard->seen)
		return;
	hazard->seen = false;
	monitor_waits(&hazard->monitor, now_s, &open);
	rates_learn(&hazard->rates, &open);
}

static bool hazard_monitors(const struct ucm_policy *policy, uint64_t tag)
{
	const struct hazard *hazard = (const struct hazard *)policy;

	return monitor_has(&hazard->monitor, hazard_hash(hazard, tag));
}

static double hazard_worth(const struct ucm_policy *policy, uint32_t now_s,
			   const struct ucm_policy_state *state)
{
	const struct hazard *hazard = (const struct hazard *)policy;

	return rates_index(&hazard->rates, hazard_class(state),
			   policy_age(now_s, state->last_s));
}

static double hazard_chance(const struct ucm_policy *policy,
			    const struct ucm_policy_state *state,
			    uint32_t age_s)
{
	const struct hazard *hazard = (const struct hazard *)policy;

	return rates_chance(&hazard->rates, hazard_class(state), age_s);
}

/* ---- life ---- */

static int hazard_new(uint64_t seed, uint64_t capacity, struct ucm_policy **out)
{
	struct hazard *hazard = calloc(1, sizeof(*hazard));
	int err = -ENOMEM;

	if (!hazard)
		return err;
	hazard->policy.ops = &ucm_policy_hazard;
	hazard->seed = policy_mix(seed);
	err = ghosts_init(&hazard->ghosts, capacity);
	if (err)
		goto free_hazard;
	err = monitor_init(&hazard->monitor);
	if (err)
		goto fini_ghosts;
	rates_init(&hazard->rates);
	*out = &hazard->policy;
	return 0;

fini_ghosts:
	ghosts_fini(&hazard->ghosts);
free_hazard:
	free(hazard);
	return err;
}

static void hazard_free(struct ucm_policy *policy)
{
	struct hazard *hazard = hazard_of(policy);

	monitor_fini(&hazard->monitor);
	ghosts_fini(&hazard->ghosts);
	free(hazard);
}

static int hazard_resize(struct ucm_policy *policy, uint64_t capacity)
{
	return ghosts_resize(&hazard_of(policy)->ghosts, capacity);
}

const struct ucm_policy_ops ucm_policy_hazard = {
	.name = "hazard",
	.refuses = true,
	.new = hazard_new,
	.free = hazard_free,
	.resize = hazard_resize,
	.ask = hazard_ask,
	.use = hazard_use,
	.fresh = hazard_fresh,
	.added = hazard_added,
	.gone = hazard_gone,
	.learn = hazard_learn,
	.monitors = hazard_monitors,
	.worth = hazard_worth,
	.chance = hazard_chance,
};
