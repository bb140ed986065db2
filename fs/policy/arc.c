/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arc.c - adaptive replacement (Megiddo and Modha, FAST 2003).
 *
 * Two orders by last use: blocks that were asked for once, and more often. Of
 * each it is remembered what went last. A block that is asked for again after it
 * went from the first order was let go too early, and that order is to have more
 * room; and so for the second. Which of the orders loses its oldest block
 * follows from that.
 *
 * The orders themselves are the caller's: a block's mark says in which it is,
 * and only their lengths are counted here. The ghosts are lists in an array,
 * found by a table of chains; a ghost is 24 bytes.
 *
 * Everything is guarded by the caller's lock; worth() reads which order is to
 * shrink without it.
 */
#include <config.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "fs/policy/mark.h"
#include "fs/policy/recent.h"

#define ARC_NONE UINT32_MAX
#define ARC_CAPACITY_MAX (UINT32_MAX / 4)

struct arc_ghost {
	uint64_t hash;
	uint32_t older, newer; /* in its list */
	uint32_t next;	       /* in its chain; or of those that are free */
	bool again;	       /* of which list */
};

struct arc_list {
	uint32_t oldest, newest;
	uint64_t num;
};

struct arc {
	struct ucm_policy policy;
	uint64_t capacity;
	double target;	  /* how many blocks the first order should have */
	uint64_t here[2]; /* blocks of the orders */
	_Atomic bool first; /* the first order is to lose one */
	struct arc_list lists[2];
	struct arc_ghost *ghosts;
	uint32_t *heads;
	uint32_t num_ghosts, free;
	struct recent recent;
};

static struct arc *arc_of(struct ucm_policy *policy)
{
	return (struct arc *)policy;
}

/* ---- ghosts ---- */

static uint32_t *arc_head(struct arc *arc, uint64_t hash)
{
	return &arc->heads[hash % arc->num_ghosts];
}

/* What points to the ghost of a hash, or to ARC_NONE. */
static uint32_t *arc_find(struct arc *arc, uint64_t hash)
{
	uint32_t *link = arc_head(arc, hash);

	while (*link != ARC_NONE && arc->ghosts[*link].hash != hash)
		link = &arc->ghosts[*link].next;
	return link;
}

static void arc_unlink(struct arc *arc, const struct arc_ghost *ghost)
{
	struct arc_list *list = &arc->lists[ghost->again];

	if (ghost->older == ARC_NONE)
		list->oldest = ghost->newer;
	else
		arc->ghosts[ghost->older].newer = ghost->newer;
	if (ghost->newer == ARC_NONE)
		list->newest = ghost->older;
	else
		arc->ghosts[ghost->newer].older = ghost->older;
	list->num--;
}

static void arc_forget(struct arc *arc, uint32_t *link)
{
	uint32_t at = *link;
	struct arc_ghost *ghost = &arc->ghosts[at];

	arc_unlink(arc, ghost);
	*link = ghost->next;
	ghost->next = arc->free;
	arc->free = at;
}

static void arc_forget_oldest(struct arc *arc, bool again)
{
	uint32_t at = arc->lists[again].oldest;

	arc_forget(arc, arc_find(arc, arc->ghosts[at].hash));
}

static void arc_remember(struct arc *arc, uint64_t hash, bool again)
{
	struct arc_list *list = &arc->lists[again];
	uint32_t *link = arc_find(arc, hash), at;

	if (*link != ARC_NONE)
		arc_forget(arc, link);
	if (arc->free == ARC_NONE)
		arc_forget_oldest(arc, arc->lists[1].num > arc->lists[0].num);
	at = arc->free;
	arc->free = arc->ghosts[at].next;
	arc->ghosts[at] = (struct arc_ghost){
		.hash = hash,
		.older = list->newest,
		.newer = ARC_NONE,
		.next = *arc_head(arc, hash),
		.again = again,
	};
	*arc_head(arc, hash) = at;
	if (list->newest == ARC_NONE)
		list->oldest = at;
	else
		arc->ghosts[list->newest].newer = at;
	list->newest = at;
	list->num++;
}

/* With what is there, no more than capacity of the first kind, and twice that
 * of both. */
static void arc_trim(struct arc *arc)
{
	struct arc_list *lists = arc->lists;

	while (lists[0].num && arc->here[0] + lists[0].num > arc->capacity)
		arc_forget_oldest(arc, false);
	while (lists[1].num && arc->here[0] + arc->here[1] + lists[0].num +
					       lists[1].num >
				       2 * arc->capacity)
		arc_forget_oldest(arc, true);
}

/* ---- the balance ---- */

static void arc_choose(struct arc *arc)
{
	bool first = arc->here[0] &&
		     ((double)arc->here[0] > arc->target || !arc->here[1]);

	atomic_store_explicit(&arc->first, first, memory_order_relaxed);
}

static void arc_move_target(struct arc *arc, bool again)
{
	double mine = (double)arc->lists[again].num;
	double other = (double)arc->lists[!again].num;
	double step = other > mine ? other / mine : 1;

	arc->target += again ? -step : step;
	if (arc->target < 0)
		arc->target = 0;
	if (arc->target > (double)arc->capacity)
		arc->target = (double)arc->capacity;
}

/* A block that is not there is wanted. Lately gone, it is one of those that were
 * asked for more often. */
static void arc_want(struct arc *arc, uint32_t now_s, uint64_t hash,
		     struct ucm_policy_state *out)
{
	uint32_t *link = arc_find(arc, hash);
	bool known = *link != ARC_NONE;

	if (known) {
		arc_move_target(arc, arc->ghosts[*link].again);
		arc_forget(arc, link);
	}
	*out = (struct ucm_policy_state){
		.last_s = now_s,
		.uses = known ? 2 : 1,
		.mark = known ? MARK_AGAIN : 0,
	};
}

static void arc_touch(struct arc *arc, uint32_t now_s,
		      struct ucm_policy_state *state)
{
	if (!mark_again(state->mark)) {
		arc->here[0] -= arc->here[0] > 0;
		arc->here[1]++;
	}
	state->mark = MARK_AGAIN;
	policy_count(state);
	state->last_s = now_s;
}

static void arc_ask(struct ucm_policy *policy, uint32_t now_s,
		    struct ucm_policy_request *request)
{
	struct arc *arc = arc_of(policy);

	for (size_t i = 0; i < request->num; i++) {
		struct ucm_policy_asked *block = &request->blocks[i];
		uint64_t hash = policy_mix(block->tag);

		if (block->present) {
			arc_touch(arc, now_s, &block->state);
		} else {
			arc_want(arc, now_s, hash, &block->state);
			recent_put(&arc->recent, hash, &block->state);
		}
		block->state.mark |= MARK_ASKED;
	}
	arc_choose(arc);
}

static void arc_use(struct ucm_policy *policy, uint32_t now_s, uint64_t tag,
		    struct ucm_policy_state *state)
{
	struct arc *arc = arc_of(policy);

	(void)tag;
	if (policy_was_counted(now_s, state))
		return;
	arc_touch(arc, now_s, state);
	arc_choose(arc);
}

static void arc_fresh(struct ucm_policy *policy, uint32_t now_s, uint64_t tag,
		      const struct ucm_policy_state *before,
		      struct ucm_policy_state *out)
{
	struct arc *arc = arc_of(policy);
	uint64_t hash = policy_mix(tag);

	(void)before;
	if (!recent_take(&arc->recent, hash, now_s, out))
		arc_want(arc, now_s, hash, out);
	arc_choose(arc);
}

static void arc_added(struct ucm_policy *policy, uint64_t tag,
		      const struct ucm_policy_state *state)
{
	struct arc *arc = arc_of(policy);

	(void)tag;
	arc->here[mark_again(state->mark)]++;
	arc_trim(arc);
	arc_choose(arc);
}

/* One that was refused was never in an order. */
static void arc_gone(struct ucm_policy *policy, uint32_t now_s, uint64_t tag,
		     const struct ucm_policy_state *state,
		     enum ucm_policy_why why)
{
	struct arc *arc = arc_of(policy);
	bool again = mark_again(state->mark);

	(void)now_s;
	if (why == UCM_POLICY_REFUSED)
		return;
	arc->here[again] -= arc->here[again] > 0;
	if (why == UCM_POLICY_EVICTED)
		arc_remember(arc, policy_mix(tag), again);
	arc_trim(arc);
	arc_choose(arc);
}

static void arc_learn(struct ucm_policy *policy, uint32_t now_s)
{
	(void)policy, (void)now_s;
}

/* Each use counts. */
static bool arc_monitors(const struct ucm_policy *policy, uint64_t tag)
{
	(void)policy, (void)tag;
	return true;
}

/* Seconds below zero, and those of the order that is to shrink below all. */
static double arc_worth(const struct ucm_policy *policy, uint32_t now_s,
			const struct ucm_policy_state *state)
{
	const struct arc *arc = (const struct arc *)policy;
	bool first = atomic_load_explicit(&arc->first, memory_order_relaxed);
	double below = mark_again(state->mark) != first ? 0x1p33 : 0;

	return -below - (double)policy_age(now_s, state->last_s);
}

static double arc_chance(const struct ucm_policy *policy,
			 const struct ucm_policy_state *state, uint32_t age_s)
{
	(void)policy, (void)state, (void)age_s;
	return 1;
}

static unsigned arc_order(const struct ucm_policy_state *state)
{
	return mark_again(state->mark);
}

/* ---- life ---- */

static int arc_alloc(struct arc *arc, uint64_t capacity)
{
	uint32_t num = (uint32_t)(capacity < 1 ? 1
				  : capacity < ARC_CAPACITY_MAX
					  ? capacity
					  : ARC_CAPACITY_MAX);

	arc->ghosts = calloc(num, sizeof(*arc->ghosts));
	arc->heads = calloc(num, sizeof(*arc->heads));
	if (!arc->ghosts || !arc->heads) {
		free(arc->ghosts);
		free(arc->heads);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < num; i++) {
		arc->heads[i] = ARC_NONE;
		arc->ghosts[i].next = i + 1 < num ? i + 1 : ARC_NONE;
	}
	arc->num_ghosts = num;
	arc->free = 0;
	arc->capacity = num;
	for (unsigned i = 0; i < 2; i++)
		arc->lists[i] = (struct arc_list){ ARC_NONE, ARC_NONE, 0 };
	return 0;
}

static int arc_new(uint64_t seed, uint64_t capacity, struct ucm_policy **out)
{
	struct arc *arc = calloc(1, sizeof(*arc));
	int err;

	(void)seed;
	if (!arc)
		return -ENOMEM;
	err = arc_alloc(arc, capacity);
	if (err) {
		free(arc);
		return err;
	}
	arc->policy.ops = &ucm_policy_arc;
	*out = &arc->policy;
	return 0;
}

static void arc_free(struct ucm_policy *policy)
{
	struct arc *arc = arc_of(policy);

	free(arc->ghosts);
	free(arc->heads);
	free(arc);
}

/* The ghosts go over, the oldest first, so that the newest stay. */
static int arc_resize(struct ucm_policy *policy, uint64_t capacity)
{
	struct arc *arc = arc_of(policy), old = *arc;
	int err = arc_alloc(arc, capacity);

	if (err) {
		*arc = old;
		return err;
	}
	for (unsigned again = 0; again < 2; again++) {
		uint32_t at = old.lists[again].oldest;

		for (; at != ARC_NONE; at = old.ghosts[at].newer)
			arc_remember(arc, old.ghosts[at].hash, again);
	}
	if (arc->target > (double)arc->capacity)
		arc->target = (double)arc->capacity;
	arc_trim(arc);
	free(old.ghosts);
	free(old.heads);
	return 0;
}

const struct ucm_policy_ops ucm_policy_arc = {
	.name = "arc",
	.num_orders = 2,
	.new = arc_new,
	.free = arc_free,
	.resize = arc_resize,
	.ask = arc_ask,
	.use = arc_use,
	.fresh = arc_fresh,
	.added = arc_added,
	.gone = arc_gone,
	.learn = arc_learn,
	.monitors = arc_monitors,
	.worth = arc_worth,
	.chance = arc_chance,
	.order = arc_order,
};
