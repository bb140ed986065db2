/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resident.c - which blocks are in which slots.
 *
 * Two maps, block to slot and back, and a state for each slot (retrieve.h has
 * them). A block has a slot only while that is LOADING or LOADED; what is
 * CANCELLED or GOING belongs to no block, and cannot be given away either: a
 * load may still write there, or somebody still reads. So a block that is
 * wanted again meanwhile gets another slot.
 *
 *	FREE -plan-> LOADING -ended-> LOADED -plan, drop-> FREE
 *	               |                 |
 *	             cancel         drop, pinned
 *	               v                 v
 *	           CANCELLED           GOING
 *	               |                 |
 *	             ended            released -> FREE
 *
 * The slots for k new blocks are the k best of all by one number each, the key:
 * infinite for a free slot, minus infinity for one that must stay, and else the
 * larger the sooner it may go. ucm_select() finds them, in the same order on
 * every CPU; no list is kept sorted, and no call is longer than a pass over all
 * slots.
 *
 * A ticket is given with each load of a slot: the end of an earlier one does
 * not make the bytes of the next one valid.
 *
 * Wanted blocks are marked with the number of the plan, which is never used
 * again, so that no marks have to be taken back. What is wrong is found before
 * anything is changed but marks.
 */
#include <config.h>

#include "sparse/resident.h"

#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "common/error.h"
#include "sparse/lists.h"
#include "sparse/spec.h"

#define NO_SLOT	 UINT32_MAX
#define NO_BLOCK UINT32_MAX
#define AGE_MAX	 (UINT64_C(1) << 24)

enum slot_state {
	SLOT_FREE = 0,
	SLOT_LOADING,
	SLOT_LOADED,
	SLOT_CANCELLED,
	SLOT_GOING,
};

struct ucm_resident {
	struct ucm_resident_config config;
	uint64_t serial;      /* of the last call that marked blocks */
	uint64_t last_wanted; /* that of the last ucm_resident_plan() */
	uint64_t now;
	struct ucm_resident_stats stats; /* but for its numbers of slots */

	/* of blocks */
	uint64_t *mark;   /* listed by the call of that serial */
	uint64_t *wanted; /* by the plan of that serial */
	uint32_t *slot;   /* NO_SLOT: none */

	/* of slots */
	uint64_t *used; /* when its block was last wanted */
	float *score;   /* of its block, 0 to 1 */
	float *key;     /* work space of a plan, as chosen */
	uint32_t *chosen;
	uint32_t *block; /* NO_BLOCK: none, but that of a load that is
			  * CANCELLED */
	uint32_t *ticket;
	uint32_t *pins;
	uint8_t *state;
};

/* ---- memory ---- */

static int config_check(const struct ucm_resident_config *config,
			struct ucm_error *error)
{
	if (!config)
		return ucm_error_set(error, -EINVAL, "config is NULL");
	if (ucm_sparse_in_range("num_blocks", config->num_blocks,
				UCM_RESIDENT_MAX, error) ||
	    ucm_sparse_in_range("num_slots", config->num_slots,
				UCM_RESIDENT_MAX, error))
		return -EINVAL;
	if (config->evict >= UCM_EVICTS)
		return ucm_error_set(error, -EINVAL, "evict %" PRIu32
				     ": unknown", config->evict);
	if (!(config->score_weight >= 0 && config->score_weight <= 1))
		return ucm_error_set(error, -EINVAL, "score_weight %g"
				     ": from 0 to 1", config->score_weight);
	if (!(config->recency_weight >= 0 && config->recency_weight <= 1))
		return ucm_error_set(error, -EINVAL, "recency_weight %g"
				     ": from 0 to 1", config->recency_weight);
	if (!(config->hysteresis >= 0 && config->hysteresis <= 1))
		return ucm_error_set(error, -EINVAL, "hysteresis %g"
				     ": from 0 to 1", config->hysteresis);
	return 0;
}

/* Where its arrays lie in its memory; returns its bytes. */
static size_t lay_out(const struct ucm_resident_config *config,
		      struct ucm_resident *out, void *memory)
{
	size_t blocks = config->num_blocks, slots = config->num_slots;
	size_t end = ucm_round_up(sizeof(struct ucm_resident), 64);

	out->mark = ucm_list_lay(memory, &end, blocks, sizeof(*out->mark));
	out->wanted = ucm_list_lay(memory, &end, blocks, sizeof(*out->wanted));
	out->slot = ucm_list_lay(memory, &end, blocks, sizeof(*out->slot));
	out->used = ucm_list_lay(memory, &end, slots, sizeof(*out->used));
	out->score = ucm_list_lay(memory, &end, slots, sizeof(*out->score));
	out->key = ucm_list_lay(memory, &end, slots, sizeof(*out->key));
	out->chosen = ucm_list_lay(memory, &end, slots, sizeof(*out->chosen));
	out->block = ucm_list_lay(memory, &end, slots, sizeof(*out->block));
	out->ticket = ucm_list_lay(memory, &end, slots, sizeof(*out->ticket));
	out->pins = ucm_list_lay(memory, &end, slots, sizeof(*out->pins));
	out->state = ucm_list_lay(memory, &end, slots, sizeof(*out->state));
	return end;
}

size_t ucm_resident_bytes(const struct ucm_resident_config *config)
{
	struct ucm_resident unused;

	return config_check(config, NULL) ? 0 : lay_out(config, &unused, NULL);
}

int ucm_resident_begin(const struct ucm_resident_config *config, void *memory,
		       struct ucm_resident **out, struct ucm_error *error)
{
	struct ucm_resident *resident = memory;
	int err = config_check(config, error)
		?: ucm_list_memory(memory, ucm_resident_bytes(config), out,
				   error);

	if (err)
		return err;
	lay_out(config, resident, memory);
	resident->config = *config;
	for (uint32_t i = 0; i < config->num_blocks; i++)
		resident->slot[i] = NO_SLOT;
	for (uint32_t i = 0; i < config->num_slots; i++)
		resident->block[i] = NO_BLOCK;
	*out = resident;
	return 0;
}

/* ---- what is listed ---- */

/* Mark the blocks of a list by a new number; each is there once. */
static int mark_all(struct ucm_resident *resident, const uint32_t *blocks,
		    size_t num, struct ucm_error *error)
{
	return ucm_list_mark(blocks, num, resident->config.num_blocks,
			     resident->mark, ++resident->serial, error);
}

static int resident_check(const struct ucm_resident *resident,
			  struct ucm_error *error)
{
	if (!resident)
		return ucm_error_set(error, -EINVAL, "resident is NULL");
	return 0;
}

static int now_check(const struct ucm_resident *resident, uint64_t now,
		     struct ucm_error *error)
{
	if (now < resident->now)
		return ucm_error_set(error, -EINVAL, "now %" PRIu64
				     ": it was %" PRIu64, now, resident->now);
	return 0;
}

/* The least of the scores, and one over what lies between it and the largest;
 * 0 if they are all equal, or none are given. */
struct scale {
	float least;
	double factor;
};

static int scores_check(const struct ucm_resident *resident,
			const float *scores, size_t num, struct scale *out,
			struct ucm_error *error)
{
	float most;
	int err = ucm_list_range(scores, num, resident->config.num_blocks,
				 &out->least, &most, error);

	if (err)
		return err;
	out->factor = 0;
	if (most > out->least)
		out->factor = 1 / ((double)most - out->least);
	return 0;
}

static int want_check(struct ucm_resident *resident,
		      const struct ucm_wanted *want,
		      const struct ucm_swap *swap, struct scale *scale,
		      struct ucm_error *error)
{
	int err = resident_check(resident, error);

	if (err)
		return err;
	if (!want || !swap)
		return ucm_error_set(error, -EINVAL, "%s is NULL",
				     want ? "out" : "want");
	if (want->num > resident->config.num_slots)
		return ucm_error_set(error, -ENOSPC, "num %zu: there are %"
				     PRIu32 " slots", want->num,
				     resident->config.num_slots);
	if (want->num > swap->room)
		return ucm_error_set(error, -EINVAL, "room %zu: %zu are wanted",
				     swap->room, want->num);
	if (want->num && (!swap->loads || !swap->evicted))
		return ucm_error_set(error, -EINVAL, "%s is NULL",
				     swap->loads ? "evicted" : "loads");
	err = now_check(resident, want->now, error);
	if (!err)
		err = scores_check(resident, want->scores,
				   want->scores ? want->num_scores : 0, scale,
				   error);
	return err ? err : mark_all(resident, want->blocks, want->num, error);
}

static float score_of(const struct ucm_wanted *want, const struct scale *scale,
		      uint32_t block)
{
	return want->scores && block < want->num_scores
		       ? (float)(((double)want->scores[block] - scale->least) *
				 scale->factor)
		       : 0;
}

/* ---- which slots ---- */

static void rescore(struct ucm_resident *resident,
		    const struct ucm_wanted *want, const struct scale *scale)
{
	if (!want->scores)
		return;
	for (uint32_t i = 0; i < resident->config.num_slots; i++) {
		uint32_t block = resident->block[i];

		if (block < want->num_scores)
			resident->score[i] = score_of(want, scale, block);
	}
}

static float key_of(const struct ucm_resident *resident, uint32_t slot)
{
	uint64_t age = resident->now - resident->used[slot];

	if (age > AGE_MAX)
		age = AGE_MAX;
	switch (resident->config.evict) {
	case UCM_EVICT_LRU:
		return (float)age;
	case UCM_EVICT_SCORE:
		return -resident->score[slot];
	default:
		return -(float)(resident->config.score_weight *
					resident->score[slot] +
				resident->config.recency_weight /
					((double)age + 1));
	}
}

/* May its block go? Not if the plan that is being made lists it; nor, if that
 * is made ahead, if the last one has wanted it. */
static bool may_go(const struct ucm_resident *resident, uint32_t slot,
		   bool ahead)
{
	uint32_t block = resident->block[slot];

	return resident->state[slot] == SLOT_LOADED && !resident->pins[slot] &&
	       resident->mark[block] != resident->serial &&
	       !(ahead && resident->last_wanted &&
		 resident->wanted[block] == resident->last_wanted);
}

/* The slots that num blocks get: chosen[0 ... ], ascending. Returns how
 * many. */
static uint32_t choose_slots(struct ucm_resident *resident, size_t num,
			     bool ahead)
{
	struct ucm_budget budget = {
		.num_blocks = resident->config.num_slots,
	};
	uint32_t eligible = 0, found = 0;

	if (!num)
		return 0;
	for (uint32_t i = 0; i < budget.num_blocks; i++) {
		resident->key[i] = -INFINITY;
		if (resident->state[i] == SLOT_FREE)
			resident->key[i] = INFINITY;
		else if (may_go(resident, i, ahead))
			resident->key[i] = key_of(resident, i);
		eligible += resident->key[i] > -INFINITY;
	}
	budget.topk = eligible < num ? eligible : (uint32_t)num;
	/* it cannot fail: no key is NaN, and there is room for all */
	ucm_select(resident->key, &budget, resident->chosen, budget.num_blocks,
		   &found, NULL);
	return found;
}

static void empty_slot(struct ucm_resident *resident, uint32_t slot)
{
	resident->state[slot] = SLOT_FREE;
	resident->block[slot] = NO_BLOCK;
	resident->score[slot] = 0;
}

/* Its block goes, at once. */
static void evict_slot(struct ucm_resident *resident, uint32_t slot)
{
	resident->slot[resident->block[slot]] = NO_SLOT;
	resident->stats.evictions++;
	empty_slot(resident, slot);
}

static void give_slot(struct ucm_resident *resident, uint32_t slot,
		      uint32_t block, enum slot_state state)
{
	resident->slot[block] = slot;
	resident->block[slot] = block;
	resident->state[slot] = (uint8_t)state;
	resident->used[slot] = resident->now;
	resident->ticket[slot]++;
}

static struct ucm_fill fill_of(const struct ucm_resident *resident,
			       uint32_t slot)
{
	return (struct ucm_fill){ resident->block[slot], slot,
				  resident->ticket[slot] };
}

/* ---- plans ---- */

/* What is there of the wanted, and how many are not. */
static size_t count_missing(struct ucm_resident *resident,
			    const struct ucm_wanted *want, bool ahead,
			    struct ucm_swap *out)
{
	out->num_loaded = out->num_coming = 0;
	for (size_t i = 0; i < want->num; i++) {
		uint32_t slot = resident->slot[want->blocks[i]];

		if (!ahead)
			resident->wanted[want->blocks[i]] = resident->serial;
		if (slot == NO_SLOT)
			continue;
		if (!ahead)
			resident->used[slot] = want->now;
		if (resident->state[slot] == SLOT_LOADED)
			out->num_loaded++;
		else
			out->num_coming++;
	}
	return want->num - out->num_loaded - out->num_coming;
}

/* Blocks that are not there get the chosen slots, in their order. */
static void fill_slots(struct ucm_resident *resident,
		       const struct ucm_wanted *want, const struct scale *scale,
		       uint32_t num_chosen, struct ucm_swap *out)
{
	uint32_t next = 0;

	out->num_loads = out->num_evicted = 0;
	for (size_t i = 0; i < want->num && next < num_chosen; i++) {
		uint32_t block = want->blocks[i];
		uint32_t slot = resident->chosen[next];

		if (resident->slot[block] != NO_SLOT)
			continue;
		if (resident->state[slot] == SLOT_LOADED) {
			out->evicted[out->num_evicted++] =
				fill_of(resident, slot);
			evict_slot(resident, slot);
		}
		give_slot(resident, slot, block, SLOT_LOADING);
		resident->score[slot] = score_of(want, scale, block);
		out->loads[out->num_loads++] = fill_of(resident, slot);
		next++;
	}
}

static int make_plan(struct ucm_resident *resident,
		     const struct ucm_wanted *want, bool ahead,
		     struct ucm_swap *out, struct ucm_error *error)
{
	struct scale scale;
	size_t missing;
	int err = want_check(resident, want, out, &scale, error);

	if (err)
		return err;
	resident->now = want->now;
	rescore(resident, want, &scale);
	missing = count_missing(resident, want, ahead, out);
	fill_slots(resident, want, &scale,
		   choose_slots(resident, missing, ahead), out);
	out->num_left = missing - out->num_loads;
	return 0;
}

int ucm_resident_plan(struct ucm_resident *resident,
		      const struct ucm_wanted *want, struct ucm_swap *out,
		      struct ucm_error *error)
{
	int err = make_plan(resident, want, false, out, error);

	if (err)
		return err;
	resident->last_wanted = resident->serial;
	resident->stats.hits += out->num_loaded + out->num_coming;
	resident->stats.loads += out->num_loads;
	return 0;
}

int ucm_resident_plan_ahead(struct ucm_resident *resident,
			    const struct ucm_wanted *want, struct ucm_swap *out,
			    struct ucm_error *error)
{
	int err = make_plan(resident, want, true, out, error);

	if (!err)
		resident->stats.loads_ahead += out->num_loads;
	return err;
}

/* ---- loads ---- */

static int slot_check(const struct ucm_resident *resident, uint32_t slot,
		      struct ucm_error *error)
{
	if (slot < resident->config.num_slots)
		return 0;
	return ucm_error_set(error, -EINVAL, "slot %" PRIu32 ": there are %"
			     PRIu32, slot, resident->config.num_slots);
}

int ucm_resident_ended(struct ucm_resident *resident, uint32_t slot,
		       uint32_t ticket, int load_err, struct ucm_error *error)
{
	int err = resident_check(resident, error)
		?: slot_check(resident, slot, error);

	if (err)
		return err;
	if (resident->ticket[slot] != ticket ||
	    (resident->state[slot] != SLOT_LOADING &&
	     resident->state[slot] != SLOT_CANCELLED))
		return ucm_error_set(error, -ESTALE, "ticket %" PRIu32
				     " of slot %" PRIu32
				     ": not of a load under way", ticket, slot);
	if (resident->state[slot] == SLOT_CANCELLED) {
		empty_slot(resident, slot);
	} else if (load_err) {
		resident->stats.failed++;
		resident->slot[resident->block[slot]] = NO_SLOT;
		empty_slot(resident, slot);
	} else {
		resident->state[slot] = SLOT_LOADED;
	}
	return 0;
}

/* Nobody waits for its load any more. */
static void cancel_slot(struct ucm_resident *resident, uint32_t slot,
			struct ucm_fill *out, size_t *num_out)
{
	out[(*num_out)++] = fill_of(resident, slot);
	resident->slot[resident->block[slot]] = NO_SLOT;
	resident->state[slot] = SLOT_CANCELLED;
	resident->stats.cancelled++;
}

static int list_check(struct ucm_resident *resident, const uint32_t *blocks,
		      size_t num, const void *out, const size_t *num_out,
		      struct ucm_error *error)
{
	int err = resident_check(resident, error);

	if (err)
		return err;
	if ((num && !out) || !num_out)
		return ucm_error_set(error, -EINVAL, "%s is NULL",
				     num_out ? "out" : "num_out");
	return mark_all(resident, blocks, num, error);
}

int ucm_resident_cancel(struct ucm_resident *resident, const uint32_t *blocks,
			size_t num, struct ucm_fill *out, size_t *num_out,
			struct ucm_error *error)
{
	int err = list_check(resident, blocks, num, out, num_out, error);

	if (err)
		return err;
	*num_out = 0;
	for (size_t i = 0; i < num; i++) {
		uint32_t slot = resident->slot[blocks[i]];

		if (slot != NO_SLOT && resident->state[slot] == SLOT_LOADING)
			cancel_slot(resident, slot, out, num_out);
	}
	return 0;
}

static void drop_slot(struct ucm_resident *resident, uint32_t slot,
		      struct ucm_fill *out, size_t *num_out)
{
	if (resident->state[slot] == SLOT_LOADING) {
		cancel_slot(resident, slot, out, num_out);
	} else if (resident->pins[slot]) {
		resident->slot[resident->block[slot]] = NO_SLOT;
		resident->state[slot] = SLOT_GOING;
	} else {
		resident->slot[resident->block[slot]] = NO_SLOT;
		empty_slot(resident, slot);
	}
}

static void drop_all(struct ucm_resident *resident, struct ucm_fill *out,
		     size_t *num_out)
{
	for (uint32_t i = 0; i < resident->config.num_slots; i++) {
		if (resident->state[i] == SLOT_LOADING ||
		    resident->state[i] == SLOT_LOADED)
			drop_slot(resident, i, out, num_out);
	}
}

int ucm_resident_drop(struct ucm_resident *resident, const uint32_t *blocks,
		      size_t num, struct ucm_fill *out, size_t *num_out,
		      struct ucm_error *error)
{
	int err = list_check(resident, blocks, blocks ? num : 0, out, num_out,
			     error);

	if (err)
		return err;
	if (!blocks && !out)
		return ucm_error_set(error, -EINVAL, "out is NULL");
	*num_out = 0;
	if (!blocks)
		drop_all(resident, out, num_out);
	for (size_t i = 0; blocks && i < num; i++) {
		if (resident->slot[blocks[i]] != NO_SLOT)
			drop_slot(resident, resident->slot[blocks[i]], out,
				  num_out);
	}
	return 0;
}

/* ---- who attends ---- */

int ucm_resident_put(struct ucm_resident *resident, uint32_t block,
		     uint64_t now, uint32_t *slot_out, uint32_t *evicted_out,
		     struct ucm_error *error)
{
	uint32_t slot, evicted = NO_BLOCK;
	uint64_t before;
	int err = resident_check(resident, error);

	if (err)
		return err;
	err = ucm_sparse_given(error, "slot_out", slot_out, "evicted_out",
			       evicted_out, NULL)
		?: now_check(resident, now, error)
		?: mark_all(resident, &block, 1, error);
	if (err)
		return err;
	if (resident->slot[block] != NO_SLOT)
		return ucm_error_set(error, -EEXIST, "block %" PRIu32
				     ": has slot %" PRIu32, block,
				     resident->slot[block]);
	before = resident->now;
	resident->now = now;
	/* what the last plan has wanted is about to be attended to */
	if (!choose_slots(resident, 1, true)) {
		resident->now = before;
		return ucm_error_set(error, -ENOBUFS, "block %" PRIu32
				     ": no slot is free, nor may be", block);
	}
	slot = resident->chosen[0];
	if (resident->state[slot] == SLOT_LOADED) {
		evicted = resident->block[slot];
		evict_slot(resident, slot);
	}
	give_slot(resident, slot, block, SLOT_LOADED);
	resident->pins[slot] = 1;
	*slot_out = slot;
	*evicted_out = evicted;
	return 0;
}

int ucm_resident_take(struct ucm_resident *resident, const uint32_t *blocks,
		      size_t num, uint32_t *blocks_out, uint32_t *slots_out,
		      size_t *num_out, struct ucm_error *error)
{
	size_t taken = 0;
	int err = resident_check(resident, error);

	if (err)
		return err;
	if (!num_out || (num && (!blocks_out || !slots_out)))
		return ucm_error_set(error, -EINVAL, "%s is NULL",
				     !num_out	   ? "num_out"
				     : !blocks_out ? "blocks_out"
						   : "slots_out");
	err = mark_all(resident, blocks, num, error);
	if (err)
		return err;
	for (size_t i = 0; i < num; i++) {
		uint32_t slot = resident->slot[blocks[i]];

		if (slot == NO_SLOT || resident->state[slot] != SLOT_LOADED)
			continue;
		resident->pins[slot]++;
		blocks_out[taken] = blocks[i];
		slots_out[taken++] = slot;
	}
	*num_out = taken;
	return 0;
}

int ucm_resident_release(struct ucm_resident *resident, const uint32_t *slots,
			 size_t num, struct ucm_error *error)
{
	size_t done = 0;
	int err = resident_check(resident, error);

	if (!err && num && !slots)
		err = ucm_error_set(error, -EINVAL, "slots is NULL");
	for (; !err && done < num; done++) {
		err = slot_check(resident, slots[done], error);
		if (!err && !resident->pins[slots[done]])
			err = ucm_error_set(error, -EINVAL, "slots: number %zu"
					    " is %" PRIu32 ", not pinned", done,
					    slots[done]);
		if (err)
			break;
		resident->pins[slots[done]]--;
	}
	if (err) {
		while (done)
			resident->pins[slots[--done]]++;
		return err;
	}
	for (size_t i = 0; i < num; i++) {
		if (!resident->pins[slots[i]] &&
		    resident->state[slots[i]] == SLOT_GOING)
			empty_slot(resident, slots[i]);
	}
	return 0;
}

/* ---- the rest ---- */

enum ucm_resident_place ucm_resident_find(const struct ucm_resident *resident,
					  uint32_t block, struct ucm_fill *fill)
{
	uint32_t slot = resident->slot[block];

	if (slot == NO_SLOT)
		return UCM_PLACE_NONE;
	*fill = fill_of(resident, slot);
	return resident->state[slot] == SLOT_LOADED ? UCM_PLACE_LOADED
						    : UCM_PLACE_COMING;
}

const struct ucm_resident_config *
ucm_resident_get_config(const struct ucm_resident *resident)
{
	return &resident->config;
}

uint64_t ucm_resident_now(const struct ucm_resident *resident)
{
	return resident->now;
}

int ucm_resident_favour(const struct ucm_resident *resident, float *scores,
			size_t num, struct ucm_error *error)
{
	struct scale scale;
	float more;
	int err = resident_check(resident, error);

	if (err)
		return err;
	if (num && !scores)
		return ucm_error_set(error, -EINVAL, "scores is NULL");
	err = scores_check(resident, scores, num, &scale, error);
	if (err || scale.factor <= 0)
		return err;
	more = (float)fmin(resident->config.hysteresis / scale.factor, FLT_MAX);
	for (uint32_t i = 0; more > 0 && i < resident->config.num_slots; i++) {
		uint32_t block = resident->block[i];

		if (block < num && (resident->state[i] == SLOT_LOADED ||
				    resident->state[i] == SLOT_LOADING))
			scores[block] = fminf(scores[block] + more, FLT_MAX);
	}
	return 0;
}

void ucm_resident_get_stats(const struct ucm_resident *resident,
			    struct ucm_resident_stats *out)
{
	*out = resident->stats;
	for (uint32_t i = 0; i < resident->config.num_slots; i++) {
		out->num_free += resident->state[i] == SLOT_FREE;
		out->num_loaded += resident->state[i] == SLOT_LOADED;
		out->num_loading += resident->state[i] == SLOT_LOADING;
	}
}
