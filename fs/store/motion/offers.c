/* SPDX-License-Identifier: Apache-2.0 */
/*
 * offers.c - saves that may be refused; see offers.h.
 *
 * What is offered is cut into chains: blocks that each name the one before it as
 * their parent. The policy is told of a chain as of a request, with the state of
 * the block before it, and gives each block the state with which it would be
 * written. Head to tail, a block is refused
 *
 * - if its parent was: without it nobody finds the block;
 * - if the tier that it would be written to has used up its endurance, or the
 *   one below, where it would be written through;
 * - if that tier is full, as all are, or the space has used up its quota, and the
 *   block is worth clearly less than what would be lost for it.
 *
 * A tier is full from its low mark on once something had to leave it: what is
 * free above that the movers have made free, and will again.
 *
 * Answers are kept for some minutes in a table where an offer has one place, and
 * a later one takes it. An offer that is repeated at once, for another range of
 * layers say, gets the same answer. What follows a refused block in a later
 * call is refused by it, unless the block has come all the same; what follows
 * one that was taken and is still being written has its state from here.
 */
#include <config.h>

#include "fs/store/motion/offers.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/log.h"
#include "fs/store/endurance.h"
#include "fs/store/motion/motion.h"
#include "fs/store/pressure.h"
#include "fs/store/store.h"
#include "hashing/tree.h"

#define OFFERS 16384u
#define SAME_S 16u  /* offered again: the same offer */
#define KEPT_S 600u /* as long as the policy has states at hand (recent.h) */

struct ucm_offer {
	struct ucm_key key;
	uint32_t when_s; /* 0: the place is free */
	bool taken;
	struct ucm_policy_state state;
};

void ucm_offers_init(struct ucm_offers *offers)
{
	*offers = (struct ucm_offers){.lock = PTHREAD_MUTEX_INITIALIZER};
}

void ucm_offers_fini(struct ucm_offers *offers)
{
	free(offers->table);
	pthread_mutex_destroy(&offers->lock);
}

/* ---- the table; with the lock ---- */

static struct ucm_offer *offer_place(const struct ucm_offers *offers,
				     const struct ucm_key *key)
{
	return &offers->table[ucm_value_tag(key) *
				      UINT64_C(0x9e3779b97f4a7c15) >>
			      50];
}
_Static_assert(OFFERS == 1u << 14, "as many as 14 bits number");

static bool offer_find(struct ucm_offers *offers, const struct ucm_key *key,
		       uint32_t now, uint32_t age_s, struct ucm_offer *out)
{
	const struct ucm_offer *offer;

	if (!offers->table)
		return false;
	offer = offer_place(offers, key);
	if (!offer->when_s || now - offer->when_s > age_s ||
	    offer->key.space != key->space ||
	    memcmp(&offer->key.id, &key->id, sizeof(key->id)))
		return false;
	*out = *offer;
	return true;
}

static void offer_keep(struct ucm_offers *offers, const struct ucm_offer *offer)
{
	*offer_place(offers, &offer->key) = *offer;
}

bool ucm_offers_took(struct ucm_store *store, const struct ucm_key *key)
{
	struct ucm_offers *offers = &store->offers;
	struct ucm_offer offer;
	bool took;

	pthread_mutex_lock(&offers->lock);
	took = offer_find(offers, key, ucm_value_now(), KEPT_S, &offer) &&
	       offer.taken;
	pthread_mutex_unlock(&offers->lock);
	return took;
}

/* ---- where it would be written ---- */

/* What new blocks meet. */
struct outlook {
	/* Of each tier: bytes for which nothing has to leave it; 0 also where
	 * nothing new is written. */
	uint64_t room[UCM_MAX_DIRS];
	uint64_t space_room; /* the same of the space, by its quota */
	const struct ucm_tier *first; /* that is written to, or NULL */
	/* Where all tiers are full, or the space: does something go for a new
	 * block, and what is that worth? */
	struct loss {
		bool may_go;
		double worth;
	} loss, space_loss;
};

static bool is_written_to(const struct ucm_tier *tier)
{
	return !tier->readonly && tier->write_mode != UCM_WRITE_AROUND;
}

static void look_at_space(struct ucm_store *store, struct ucm_space *space,
			  struct outlook *look)
{
	struct ucm_quota *quota = space ? atomic_load(&space->quota) : NULL;

	look->space_room = quota ? ucm_quota_headroom(store->config, space)
				 : UINT64_MAX;
	if (look->space_room != UINT64_MAX)
		look->space_loss.may_go = ucm_evict_least_of_space(
			store, quota, &look->space_loss.worth);
}

static void look_out(struct ucm_store *store, struct ucm_space *space,
		     struct outlook *look)
{
	look_at_space(store, space, look);
	for (unsigned i = store->dirs.num_tiers; i-- > 0;) {
		const struct ucm_tier *tier = &store->dirs.tiers[i];

		look->room[i] = 0;
		if (!is_written_to(tier))
			continue;
		look->first = tier;
		look->room[i] = ucm_pressure_headroom(
			store, tier, ucm_endurance_has_evicted(store, tier));
	}
	look->loss.may_go = ucm_evict_least(store, &look->loss.worth);
}

/* ---- one chain ---- */

struct judging {
	struct ucm_store *store;
	uint16_t space;
	uint64_t bytes; /* of a block */
	uint32_t now;
	struct outlook look;
	int32_t *results;
};

/* The room for a block in the first tier that has it; NULL: all are full. */
static uint64_t *find_room(struct judging *j)
{
	for (unsigned i = 0; i < j->store->dirs.num_tiers; i++) {
		if (j->look.room[i] && j->look.room[i] >= j->bytes)
			return &j->look.room[i];
	}
	return NULL;
}

/* Is it let in, where something is lost for it (NULL: nothing is)? */
static bool admits_for(struct judging *j, const struct ucm_tier *tier,
		       const struct ucm_policy_state *state,
		       const struct loss *loss)
{
	return (!loss || loss->may_go) &&
	       ucm_endurance_admits(j->store, tier, state,
				    loss ? &loss->worth : NULL);
}

static bool admits(struct judging *j, const struct ucm_policy_state *state)
{
	bool fits = j->look.space_room >= j->bytes;
	uint64_t *room = find_room(j);
	const struct ucm_tier *below,
		*tier = room ? &j->store->dirs.tiers[room - j->look.room]
			     : j->look.first;

	if (!tier)
		return true; /* whoever writes hears of it */
	below = tier->write_mode == UCM_WRITE_THROUGH
			? ucm_tier_below(j->store, tier)
			: NULL;
	if ((below && !admits_for(j, below, state, NULL)) ||
	    !admits_for(j, tier, state, room ? NULL : &j->look.loss) ||
	    (!fits && !admits_for(j, tier, state, &j->look.space_loss)))
		return false;
	if (room)
		*room -= j->bytes;
	if (fits && j->look.space_room != UINT64_MAX)
		j->look.space_room -= j->bytes;
	return true;
}

static struct ucm_key key_of(const struct judging *j, const struct ucm_id *id)
{
	return (struct ucm_key){.id = *id, .space = j->space};
}

/* Of the block before a chain: its state, if it is there or about to be, and
 * whether it was refused. */
static bool find_before(struct judging *j, const struct ucm_id *parent,
			struct ucm_policy_state *out, bool *refused)
{
	const struct ucm_key key = key_of(j, parent);
	struct ucm_offers *offers = &j->store->offers;
	struct ucm_offer offer;
	struct ucm_entry entry;
	bool found;

	*refused = false;
	if (ucm_index_find(j->store->index, &key, &entry, NULL)) {
		*out = ucm_value_state(&entry);
		return true;
	}
	pthread_mutex_lock(&offers->lock);
	found = offer_find(offers, &key, j->now, KEPT_S, &offer);
	pthread_mutex_unlock(&offers->lock);
	if (found) {
		*out = offer.state;
		*refused = !offer.taken;
	}
	return found && offer.taken;
}

static void judge_one(struct judging *j, const struct ucm_id *id,
		      const struct ucm_policy_state *state, bool *refused,
		      int32_t *result)
{
	struct ucm_offer offer = {
		.key = key_of(j, id),
		.when_s = j->now,
		.state = *state,
	};

	*refused = *refused || !admits(j, state);
	offer.taken = !*refused;
	*result = offer.taken;
	if (*refused) {
		ucm_value_refused(&j->store->value, &offer.key, state);
		ucm_count(&j->store->stats.offers_refused);
		ucm_debug(MOVE, 2, "block %s: refused", ucm_hex(id).text);
	}
	pthread_mutex_lock(&j->store->offers.lock);
	offer_keep(&j->store->offers, &offer);
	pthread_mutex_unlock(&j->store->offers.lock);
}

/* Blocks that are absent and follow each other. */
static void judge_chain(struct judging *j,
			const struct ucm_control_offered *blocks, size_t num,
			struct ucm_policy_asked *asked, int32_t *results)
{
	struct ucm_policy_request request = {.blocks = asked, .num = num};
	struct ucm_policy_state before;
	bool refused;

	if (find_before(j, &blocks[0].parent, &before, &refused))
		request.before = &before;
	for (size_t i = 0; i < num; i++) {
		const struct ucm_key key = key_of(j, &blocks[i].id);

		asked[i] = (struct ucm_policy_asked){
			.tag = ucm_value_tag(&key),
		};
	}
	ucm_value_ask(&j->store->value, &request);
	for (size_t i = 0; i < num; i++)
		judge_one(j, &blocks[i].id, &asked[i].state, &refused,
			  &results[i]);
}

/* Is it known without judging? Then *result is the answer. */
static bool is_known(struct judging *j, const struct ucm_id *id,
		     int32_t *result)
{
	const struct ucm_key key = key_of(j, id);
	struct ucm_offers *offers = &j->store->offers;
	struct ucm_offer offer;
	bool found;

	if (ucm_index_find(j->store->index, &key, NULL, NULL)) {
		*result = 1;
		return true;
	}
	pthread_mutex_lock(&offers->lock);
	found = offer_find(offers, &key, j->now, SAME_S, &offer);
	pthread_mutex_unlock(&offers->lock);
	if (found)
		*result = offer.taken;
	return found;
}

static bool follows(const struct ucm_control_offered *block,
		    const struct ucm_control_offered *before)
{
	return !memcmp(&block->parent, &before->id, sizeof(before->id));
}

static void judge_all(struct judging *j,
		      const struct ucm_control_offered *blocks, size_t num,
		      struct ucm_policy_asked *asked)
{
	size_t first = 0; /* of the chain at hand */

	for (size_t i = 0; i < num; i++) {
		bool known = is_known(j, &blocks[i].id, &j->results[i]);

		if (first < i && (known || !follows(&blocks[i], &blocks[i - 1]))) {
			judge_chain(j, blocks + first, i - first, asked,
				    j->results + first);
			first = i;
		}
		if (known)
			first = i + 1;
	}
	if (first < num)
		judge_chain(j, blocks + first, num - first, asked,
			    j->results + first);
}

static int make_table(struct ucm_offers *offers)
{
	int err;

	pthread_mutex_lock(&offers->lock);
	if (!offers->table)
		offers->table = calloc(OFFERS, sizeof(*offers->table));
	err = offers->table ? 0 : -ENOMEM;
	pthread_mutex_unlock(&offers->lock);
	return err;
}

int ucm_offers_judge(struct ucm_store *store, uint16_t space,
		     const struct ucm_control_offered *blocks, size_t num,
		     uint64_t bytes, int32_t *results)
{
	struct ucm_space *of = ucm_namespace_get(&store->names, space);
	_cleanup_free_ struct ucm_policy_asked *asked = NULL;
	struct judging judging = {
		.store = store,
		.space = space,
		.bytes = bytes ? bytes : of ? ucm_space_block_bytes(of) : 0,
		.now = ucm_value_now(),
		.results = results,
	};

	ucm_count_more(&store->stats.offers, num);
	if (!store->value.policy) { /* it refuses nothing */
		for (size_t i = 0; i < num; i++)
			results[i] = 1;
		return 0;
	}
	asked = calloc(num ? num : 1, sizeof(*asked));
	if (!asked || make_table(&store->offers))
		return -ENOMEM;
	look_out(store, of, &judging.look);
	judge_all(&judging, blocks, num, asked);
	return 0;
}
