/* SPDX-License-Identifier: Apache-2.0 */
/* tier.c - the directories of one tier; see tier.h. */
#include <config.h>

#include "fs/tier/tier.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/align.h"
#include "common/clock.h"
#include "common/log.h"
#include "hashing/tree.h"

/* A directory that failed is tried again after this. */
#define RETRY_S 10

static int64_t now_s(void)
{
	return ucm_monotonic_ms() / 1000;
}

int ucm_tier_open(struct ucm_tier *tier, const struct ucm_tier_config *config,
		  unsigned first, const struct ucm_config *store,
		  struct ucm_error *error)
{
	int err = 0;

	*tier = (struct ucm_tier){
		.first = first,
		.limit = config->limit,
		.limit_percent = config->limit_percent,
		.readonly = config->readonly,
	};
	memcpy(tier->name, config->name, sizeof(tier->name));
	tier->dirs = calloc(config->num_dirs, sizeof(*tier->dirs));
	tier->uuids = calloc(config->num_dirs, sizeof(*tier->uuids));
	tier->rooms = calloc(config->num_dirs, sizeof(*tier->rooms));
	if (!tier->dirs || !tier->uuids || !tier->rooms)
		err = -ENOMEM;
	for (unsigned i = 0; i < config->num_dirs && !err; i++) {
		err = ucm_medium_open(config->dirs[i], config->readonly, store,
				      &tier->dirs[i], error);
		if (err)
			break;
		memcpy(tier->uuids[i], tier->dirs[i]->uuid, 16);
		tier->num_dirs++;
		tier->rooms[i] = ucm_room_get(tier->dirs[i]->dev);
		if (!tier->rooms[i])
			err = -ENOMEM;
	}
	if (err)
		ucm_tier_close(tier);
	return err;
}

void ucm_tier_close(struct ucm_tier *tier)
{
	for (unsigned i = 0; i < tier->num_dirs; i++) {
		ucm_medium_close(tier->dirs[i], false);
		ucm_medium_free(tier->dirs[i]);
		ucm_room_put(tier->rooms[i]);
	}
	free(tier->dirs);
	free(tier->uuids);
	free(tier->rooms);
	*tier = (struct ucm_tier){ 0 };
}

void ucm_medium_failed(struct ucm_medium *medium, const char *what, int err)
{
	switch (err) {
	case -EIO: case -EROFS: case -ENOSPC: case -EDQUOT: case -ESTALE:
	case -ENOENT: case -ENOTCONN: case -ETIMEDOUT: case -EACCES:
		atomic_store(&medium->retry_s, now_s() + RETRY_S);
		break;
	default:
		break;
	}
	ucm_error("%s: %s: %s", medium->path, what, strerror(-err));
}

const char *const ucm_dir_states[UCM_DIR_STATES] = {
	[UCM_DIR_GOOD] = "good",
	[UCM_DIR_SET_ASIDE] = "set_aside",
	[UCM_DIR_UNREADABLE] = "unreadable",
	[UCM_DIR_LOST] = "sync_failed",
};

static bool is_set_aside(const struct ucm_medium *medium)
{
	return atomic_load(&medium->retry_s) > now_s();
}

enum ucm_dir_state ucm_medium_state(const struct ucm_medium *medium)
{
	if (atomic_load(&medium->recovery.lost))
		return UCM_DIR_LOST;
	if (atomic_load(&medium->unreadable))
		return UCM_DIR_UNREADABLE;
	return is_set_aside(medium) ? UCM_DIR_SET_ASIDE : UCM_DIR_GOOD;
}

unsigned ucm_tier_dir(const struct ucm_tier *tier,
		      const struct ucm_medium *medium)
{
	unsigned i = 0;

	while (tier->dirs[i] != medium)
		i++;
	return tier->first + i;
}

/* ---- promises ---- */

/* What the limit has been asked for becomes this. */
static void set_share(struct ucm_promise *promise, uint64_t was, uint64_t is)
{
	atomic_fetch_add(&promise->tier->writing, is - was);
	if (promise->guessed)
		atomic_fetch_add(&promise->tier->guessed, is - was);
}

/* What is wanted is set aside before anything is compared, and what is used is
 * read after that: whoever has written a file since counts in one of the two,
 * and of two who want the last room one gets it. */
static bool is_within_limit(struct ucm_promise *promise)
{
	struct ucm_tier *tier = promise->tier;
	uint64_t limit = ucm_tier_limit_bytes(tier);
	uint64_t bytes = promise->bytes, taken;
	bool alone = promise->guessed &&
		     !atomic_fetch_add(&tier->guessed, bytes);

	taken = atomic_fetch_add(&tier->writing, bytes);
	taken += ucm_tier_used(tier);
	if (taken <= limit && bytes <= limit - taken)
		return true;
	if (!alone || taken >= limit)
		return false;
	promise->bytes = limit - taken;
	set_share(promise, bytes, promise->bytes);
	return true;
}

void ucm_promise_end(struct ucm_promise *promise)
{
	if (!promise)
		return;
	ucm_room_give_back(promise);
	set_share(promise, promise->bytes, 0);
	free(promise);
}

void ucm_promise_resize(struct ucm_promise *promise, uint64_t bytes)
{
	if (!promise || (!promise->guessed && bytes <= promise->bytes))
		return;
	set_share(promise, promise->bytes, bytes);
	if (promise->guessed)
		atomic_fetch_sub(&promise->tier->guessed, bytes);
	ucm_room_resize(promise, bytes);
}

/* ---- choosing ---- */

/* Why nothing new is placed there, or NULL. */
static const char *refusal(const struct ucm_medium *medium)
{
	if (atomic_load(&medium->recovery.lost))
		return "it has lost writes";
	return is_set_aside(medium) ? "it failed lately" : NULL;
}

static uint64_t turn_of(struct ucm_tier *tier, enum ucm_policy policy)
{
	uint64_t turn = 0;

	if (policy == UCM_POLICY_ROUND_ROBIN)
		return atomic_fetch_add(&tier->turns, 1);
	if (policy == UCM_POLICY_RANDOM &&
	    getrandom(&turn, sizeof(turn), 0) < 0)
		turn = atomic_fetch_add(&tier->turns, 1);
	return turn;
}

static bool take_room(struct ucm_promise *promise, unsigned dir)
{
	struct ucm_tier *tier = promise->tier;
	uint64_t bytes = promise->bytes;

	if (!ucm_room_take(tier->rooms[dir], tier->dirs[dir], promise))
		return false;
	set_share(promise, bytes, promise->bytes);
	return true;
}

static int take_in_order(struct ucm_promise *promise, enum ucm_policy policy,
			 const struct ucm_id *id)
{
	struct ucm_tier *tier = promise->tier;
	uint8_t order[UCM_MAX_DIRS];
	int err = -ENOSPC;

	ucm_placement_order(policy, (const uint8_t(*)[16])tier->uuids,
			    tier->num_dirs, id, turn_of(tier, policy), order);
	for (unsigned i = 0; i < tier->num_dirs; i++) {
		struct ucm_medium *medium = tier->dirs[order[i]];
		const char *why = refusal(medium);

		if (!why && take_room(promise, order[i]))
			return 0;
		if (atomic_load(&medium->recovery.lost))
			err = -EIO;
		ucm_debug(TIER, 2, "block %s: not in %s: %s", ucm_hex(id).text,
			  medium->path, why ? why : "no room");
	}
	return err;
}

int ucm_tier_choose(struct ucm_tier *tier, enum ucm_policy policy,
		    const struct ucm_id *id, const struct ucm_want *want,
		    struct ucm_promise **out)
{
	struct ucm_promise *promise;
	int err = -ENOSPC;

	if (tier->readonly)
		return -EROFS;
	promise = calloc(1, sizeof(*promise));
	if (!promise)
		return -ENOMEM;
	promise->tier = tier;
	promise->bytes = want->bytes;
	promise->outgrown = want->outgrown;
	promise->guessed = want->guessed;
	promise->anywhere = want->anywhere;
	if (is_within_limit(promise))
		err = take_in_order(promise, policy, id);
	else
		ucm_debug(TIER, 2, "block %s: not in tier %s: its limit",
			  ucm_hex(id).text, tier->name);
	if (err)
		ucm_promise_end(promise);
	else
		*out = promise;
	return err;
}

/* Two directories on one file system share its space. */
static bool counted_before(const struct ucm_tier *tier, unsigned number)
{
	for (unsigned i = 0; i < number; i++) {
		if (tier->dirs[i]->dev == tier->dirs[number]->dev)
			return true;
	}
	return false;
}

static void raw_space(const struct ucm_tier *tier, uint64_t *total_out,
		      uint64_t *free_out)
{
	*total_out = *free_out = 0;
	for (unsigned i = 0; i < tier->num_dirs; i++) {
		struct ucm_medium *medium = tier->dirs[i];
		struct ucm_medium_room room;

		if (counted_before(tier, i) ||
		    medium->ops->room(medium, &room))
			continue;
		*total_out += room.total_bytes;
		*free_out += room.free_bytes;
	}
}

uint64_t ucm_file_takes(const struct stat *st)
{
	uint64_t unit = st->st_blksize > 0 ? (uint64_t)st->st_blksize : 512;
	uint64_t most = ucm_round_up_to((uint64_t)st->st_size, unit);
	uint64_t now = (uint64_t)st->st_blocks * 512;

	return now < most ? now : most;
}

uint64_t ucm_tier_files(const struct ucm_tier *tier)
{
	int64_t files = atomic_load(&tier->files);

	return files > 0 ? (uint64_t)files : 0;
}

uint64_t ucm_tier_used(const struct ucm_tier *tier)
{
	return atomic_load(&tier->used) + ucm_tier_files(tier);
}

uint64_t ucm_tier_limit_bytes(const struct ucm_tier *tier)
{
	uint64_t total, unused;

	if (!tier->limit)
		return UINT64_MAX;
	if (!tier->limit_percent)
		return tier->limit;
	raw_space(tier, &total, &unused);
	return total / 100 * tier->limit;
}

/* What is being written and is sure to be used. A guess is not: for a moment it
 * may be all that is left. */
static uint64_t sure_writing(const struct ucm_tier *tier)
{
	uint64_t guessed = atomic_load(&tier->guessed);
	uint64_t writing = atomic_load(&tier->writing);

	return writing > guessed ? writing - guessed : 0;
}

void ucm_tier_space(const struct ucm_tier *tier, uint64_t *total_out,
		    uint64_t *free_out)
{
	uint64_t limit = ucm_tier_limit_bytes(tier);
	uint64_t used = ucm_tier_used(tier) + sure_writing(tier);

	raw_space(tier, total_out, free_out);
	if (limit < *total_out) {
		uint64_t left = limit > used ? limit - used : 0;

		*total_out = limit;
		if (left < *free_out)
			*free_out = left;
	}
}
