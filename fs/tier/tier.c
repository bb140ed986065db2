/* SPDX-License-Identifier: Apache-2.0 */
/* tier.c - the directories of one tier; see tier.h. */
#include <config.h>

#include "fs/tier/tier.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/clock.h"
#include "common/log.h"
#include "fs/medium/dir/dir.h"
#include "fs/medium/shared/hosts.h"
#include "hashing/tree.h"

/* A directory that failed is tried again after this. */
#define RETRY_S 10

static int64_t now_s(void)
{
	return ucm_monotonic_ms() / 1000;
}

static int tier_begin(struct ucm_tier *tier,
		      const struct ucm_tier_config *config, unsigned first)
{
	*tier = (struct ucm_tier){
		.first = first,
		.limit = config->limit,
		.readonly = config->readonly,
		.write_mode = config->write_mode,
	};
	memcpy(tier->name, config->name, sizeof(tier->name));
	tier->dirs = calloc(config->num_dirs, sizeof(*tier->dirs));
	tier->uuids = calloc(config->num_dirs, sizeof(*tier->uuids));
	tier->rooms = calloc(config->num_dirs, sizeof(*tier->rooms));
	return tier->dirs && tier->uuids && tier->rooms ? 0 : -ENOMEM;
}

/* One that has been opened; it is the tier's from now on. */
static int tier_take(struct ucm_tier *tier,
		     const struct ucm_tier_config *config,
		     struct ucm_medium *medium)
{
	struct ucm_medium_room room;
	unsigned i = tier->num_dirs++;

	tier->dirs[i] = medium;
	medium->limit = config->limits[i];
	memcpy(tier->uuids[i], medium->uuid, 16);
	ucm_medium_ask_room(medium, &room); /* so that some is known */
	tier->rooms[i] = ucm_room_get(medium->dev);
	return tier->rooms[i] ? 0 : -ENOMEM;
}

int ucm_tier_open(struct ucm_tier *tier, const struct ucm_tier_config *config,
		  unsigned first, const struct ucm_config *store,
		  struct ucm_error *error)
{
	struct ucm_medium *medium;
	int err = tier_begin(tier, config, first);

	for (unsigned i = 0; i < config->num_dirs && !err; i++) {
		err = ucm_medium_open(ucm_opener(store), config->dirs[i],
				      config->readonly, store, &medium, error);
		if (!err)
			err = tier_take(tier, config, medium);
		if (!err && config->shared)
			err = ucm_medium_share(medium, error);
	}
	if (err)
		ucm_tier_close(tier);
	return err;
}

int ucm_tier_open_memory(struct ucm_tier *tier,
			 const struct ucm_tier_config *config, unsigned first,
			 const struct ucm_config *store,
			 const struct ucm_memory_key *key,
			 struct ucm_error *error)
{
	struct ucm_medium *medium;
	int err = tier_begin(tier, config, first);

	if (!err)
		err = ucm_memory_open(key, store, config, config->readonly,
				      &medium, error);
	if (!err)
		err = tier_take(tier, config, medium);
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
		atomic_store(&medium->full, err == -ENOSPC || err == -EDQUOT);
		atomic_store(&medium->retry_s, now_s() + RETRY_S);
		break;
	default:
		break;
	}
	if (!ucm_medium_is_no_news(medium, err))
		ucm_error("%s: %s: %s", medium->path, what, strerror(-err));
}

const char *const ucm_dir_states[UCM_DIR_STATES] = {
	[UCM_DIR_GOOD] = "good",
	[UCM_DIR_SET_ASIDE] = "set_aside",
	[UCM_DIR_UNREADABLE] = "unreadable",
	[UCM_DIR_LOST] = "sync_failed",
	[UCM_DIR_UNRESPONSIVE] = "unresponsive",
	[UCM_DIR_TAKEN_OVER] = "taken_over",
};

static bool is_set_aside(const struct ucm_medium *medium)
{
	return atomic_load(&medium->retry_s) > now_s();
}

enum ucm_dir_state ucm_medium_state(const struct ucm_medium *medium)
{
	if (atomic_load(&medium->fenced))
		return UCM_DIR_TAKEN_OVER;
	if (atomic_load(&medium->recovery.lost))
		return UCM_DIR_LOST;
	if (!ucm_medium_answers(medium))
		return UCM_DIR_UNRESPONSIVE;
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

/* What a limit has been asked for becomes this. */
static void set_tier_share(struct ucm_promise *promise, uint64_t was,
			   uint64_t is)
{
	atomic_fetch_add(&promise->tier->writing, is - was);
	if (promise->guessed)
		atomic_fetch_add(&promise->tier->guessed, is - was);
}

static void set_medium_share(struct ucm_promise *promise, uint64_t was,
			     uint64_t is)
{
	if (!promise->shares)
		return;
	atomic_fetch_add(&promise->medium->writing, is - was);
	if (promise->guessed)
		atomic_fetch_add(&promise->medium->guessed, is - was);
}

static void set_share(struct ucm_promise *promise, uint64_t was, uint64_t is)
{
	set_tier_share(promise, was, is);
	set_medium_share(promise, was, is);
}

/* What is left of a limit for the promise, of which so much was taken before;
 * alone: no other guess is open. 0: it is not enough. */
static uint64_t left_of_limit(const struct ucm_promise *promise, bool alone,
			      uint64_t limit, uint64_t taken)
{
	if (taken <= limit && promise->bytes <= limit - taken)
		return promise->bytes ? promise->bytes : 1;
	return alone && taken < limit ? limit - taken : 0;
}

/* What is wanted is set aside before anything is compared, and what is used is
 * read after that: whoever has written a file since counts in one of the two,
 * and of two who want the last room one gets it. */
static bool is_within_limit(struct ucm_promise *promise)
{
	struct ucm_tier *tier = promise->tier;
	uint64_t limit = ucm_tier_limit_bytes(tier);
	uint64_t bytes = promise->bytes, taken, left;
	bool alone = promise->guessed &&
		     !atomic_fetch_add(&tier->guessed, bytes);

	taken = atomic_fetch_add(&tier->writing, bytes);
	taken += ucm_tier_used(tier);
	left = left_of_limit(promise, alone, limit, taken);
	if (!left || left >= bytes)
		return left;
	promise->bytes = left;
	set_tier_share(promise, bytes, left);
	return true;
}

/* The same for one directory of it. */
static bool enter_medium(struct ucm_promise *promise, struct ucm_medium *medium)
{
	uint64_t limit = ucm_medium_limit_bytes(medium);
	uint64_t bytes = promise->bytes, taken, left;
	bool alone = promise->guessed &&
		     !atomic_fetch_add(&medium->guessed, bytes);

	promise->medium = medium;
	promise->shares = true;
	taken = atomic_fetch_add(&medium->writing, bytes);
	taken += ucm_medium_used(medium);
	left = left_of_limit(promise, alone, limit, taken);
	if (!left || left >= bytes)
		return left;
	promise->bytes = left;
	set_medium_share(promise, bytes, left);
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
	if (promise->guessed) {
		atomic_fetch_sub(&promise->tier->guessed, bytes);
		atomic_fetch_sub(&promise->medium->guessed, bytes);
	}
	ucm_room_resize(promise, bytes);
}

/* ---- choosing ---- */

/* Why nothing new is placed there, or NULL. */
static const char *refusal(const struct ucm_medium *medium)
{
	if (medium->readonly)
		return "another ucmfs has taken it over";
	if (atomic_load(&medium->recovery.lost))
		return "it has lost writes";
	if (atomic_load(&medium->draining))
		return "it is being drained";
	return is_set_aside(medium) ? "it failed lately" : NULL;
}

static uint64_t turn_of(struct ucm_tier *tier, enum ucm_placement policy)
{
	uint64_t turn = 0;

	if (policy == UCM_PLACEMENT_ROUND_ROBIN)
		return atomic_fetch_add(&tier->turns, 1);
	if (policy == UCM_PLACEMENT_RANDOM &&
	    getrandom(&turn, sizeof(turn), 0) < 0)
		turn = atomic_fetch_add(&tier->turns, 1);
	return turn;
}

/* The tier's share stays as it was wanted until the room is taken: another
 * directory may be tried. */
static bool take_room(struct ucm_promise *promise, unsigned dir)
{
	struct ucm_medium *medium = promise->tier->dirs[dir];
	struct ucm_room *room = promise->tier->rooms[dir];
	uint64_t wanted = promise->bytes, entered;
	bool taken = enter_medium(promise, medium);

	entered = promise->bytes;
	taken = taken && ucm_room_take(room, medium, promise);
	set_medium_share(promise, entered, taken ? promise->bytes : 0);
	if (taken) {
		set_tier_share(promise, wanted, promise->bytes);
	} else {
		promise->shares = false;
		promise->bytes = wanted;
	}
	return taken;
}

/* Why nothing new got a place there. */
static int error_of(const struct ucm_medium *medium)
{
	if (medium->readonly)
		return -EROFS;
	if (atomic_load(&medium->recovery.lost))
		return -EIO;
	if (!ucm_medium_answers(medium))
		return -ETIMEDOUT;
	return is_set_aside(medium) && !atomic_load(&medium->full) ? -EIO
								   : -ENOSPC;
}

/* -ENOSPC: one of them would take it, if there was room. Blocks are evicted for that,
 * so no other error may look like it. */
static int take_in_order(struct ucm_promise *promise, enum ucm_placement policy,
			 const struct ucm_id *id, const struct ucm_want *want)
{
	struct ucm_tier *tier = promise->tier;
	uint8_t order[UCM_MAX_DIRS];
	int err = 0;

	ucm_placement_order(policy, (const uint8_t(*)[16])tier->uuids,
			    tier->num_dirs, id, turn_of(tier, policy), order);
	for (unsigned i = 0; i < tier->num_dirs; i++) {
		struct ucm_medium *medium = tier->dirs[order[i]];
		const char *why = refusal(medium);

		if (want->only && want->only != order[i] + 1u)
			continue;
		if (!why && take_room(promise, order[i]))
			return 0;
		if (err != -ENOSPC)
			err = error_of(medium);
		ucm_debug(TIER, 2, "block %s: not in %s: %s", ucm_hex(id).text,
			  medium->path, why ? why : "no room");
	}
	return err ? err : -ENOSPC;
}

int ucm_tier_choose(struct ucm_tier *tier, enum ucm_placement policy,
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
		err = take_in_order(promise, policy, id, want);
	else
		ucm_debug(TIER, 2, "block %s: not in tier %s: its limit",
			  ucm_hex(id).text, tier->name);
	if (err)
		ucm_promise_end(promise);
	else
		*out = promise;
	return err;
}

/* ---- what there is ---- */

uint64_t ucm_medium_files(const struct ucm_medium *medium)
{
	int64_t files = atomic_load(&medium->files);

	return files > 0 ? (uint64_t)files : 0;
}

uint64_t ucm_medium_used(const struct ucm_medium *medium)
{
	return atomic_load(&medium->used) + ucm_medium_files(medium);
}

uint64_t ucm_tier_files(const struct ucm_tier *tier)
{
	uint64_t files = 0;

	for (unsigned i = 0; i < tier->num_dirs; i++)
		files += ucm_medium_files(tier->dirs[i]);
	return files;
}

uint64_t ucm_tier_used(const struct ucm_tier *tier)
{
	uint64_t used = 0;

	for (unsigned i = 0; i < tier->num_dirs; i++)
		used += ucm_medium_used(tier->dirs[i]);
	return used;
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

static pthread_mutex_t seen_lock = PTHREAD_MUTEX_INITIALIZER;

int ucm_medium_ask_room(struct ucm_medium *medium, struct ucm_medium_room *out)
{
	int err = medium->ops->room(medium, out);

	if (err)
		return err;
	pthread_mutex_lock(&seen_lock);
	medium->seen = *out;
	pthread_mutex_unlock(&seen_lock);
	return 0;
}

/* As it is, or was when somebody could ask: whoever serves all does not wait. */
static struct ucm_medium_room raw_space(struct ucm_medium *medium)
{
	struct ucm_medium_room room;

	if (!(medium->guard && ucm_must_not_wait) &&
	    !ucm_medium_ask_room(medium, &room))
		return room;
	pthread_mutex_lock(&seen_lock);
	room = medium->seen;
	pthread_mutex_unlock(&seen_lock);
	return room;
}

/* Of all file systems of a tier, whatever the limits. */
static uint64_t raw_total(const struct ucm_tier *tier)
{
	uint64_t total = 0;

	for (unsigned i = 0; i < tier->num_dirs; i++) {
		if (!counted_before(tier, i))
			total += raw_space(tier->dirs[i]).total_bytes;
	}
	return total;
}

uint64_t ucm_medium_limit_bytes(struct ucm_medium *medium)
{
	if (!medium->limit.size)
		return UINT64_MAX;
	return medium->limit.percent
		       ? raw_space(medium).total_bytes / 100 *
				 medium->limit.size
		       : medium->limit.size;
}

uint64_t ucm_tier_limit_bytes(const struct ucm_tier *tier)
{
	if (!tier->limit.size)
		return UINT64_MAX;
	return tier->limit.percent ? raw_total(tier) / 100 * tier->limit.size
				   : tier->limit.size;
}

/* What is being written and is sure to be used. A guess is not: for a moment it
 * may be all that is left. */
static uint64_t sure_writing(const _Atomic uint64_t *writing,
			     const _Atomic uint64_t *guessed)
{
	uint64_t not_sure = atomic_load(guessed);
	uint64_t all = atomic_load(writing);

	return all > not_sure ? all - not_sure : 0;
}

/* Of what there is and is free, what a limit leaves. */
static void keep_within(uint64_t limit, uint64_t used, uint64_t *total,
			uint64_t *available)
{
	uint64_t left = limit > used ? limit - used : 0;

	if (limit >= *total)
		return;
	*total = limit;
	if (left < *available)
		*available = left;
}

void ucm_medium_space(struct ucm_medium *medium, uint64_t *total_out,
		      uint64_t *free_out)
{
	const struct ucm_medium_room room = raw_space(medium);

	*total_out = room.total_bytes;
	*free_out = room.free_bytes;
	keep_within(ucm_medium_limit_bytes(medium),
		    ucm_medium_used(medium) + sure_writing(&medium->writing,
							   &medium->guessed),
		    total_out, free_out);
}

/* Of the directories on one file system, the first of which is this: together
 * no more than that has, and each no more than its limit. */
static void add_file_system(const struct ucm_tier *tier, unsigned first,
			    uint64_t *total, uint64_t *available)
{
	const struct ucm_medium_room room = raw_space(tier->dirs[first]);
	uint64_t all = 0, all_free = 0;

	for (unsigned i = first; i < tier->num_dirs; i++) {
		uint64_t one, one_free;

		if (tier->dirs[i]->dev != tier->dirs[first]->dev)
			continue;
		ucm_medium_space(tier->dirs[i], &one, &one_free);
		all += one;
		all_free += one_free;
	}
	*total += all < room.total_bytes ? all : room.total_bytes;
	*available += all_free < room.free_bytes ? all_free : room.free_bytes;
}

void ucm_tier_space(const struct ucm_tier *tier, uint64_t *total_out,
		    uint64_t *free_out)
{
	*total_out = *free_out = 0;
	for (unsigned i = 0; i < tier->num_dirs; i++) {
		if (!counted_before(tier, i))
			add_file_system(tier, i, total_out, free_out);
	}
	keep_within(ucm_tier_limit_bytes(tier),
		    ucm_tier_used(tier) +
			    sure_writing(&tier->writing, &tier->guessed),
		    total_out, free_out);
}

/* Or it cannot say. What others were promised is not asked for. */
static bool medium_has_room(struct ucm_medium *medium, uint64_t bytes)
{
	struct ucm_medium_room room;
	uint64_t total, left;

	if (atomic_load(&medium->recovery.lost) || medium->readonly ||
	    atomic_load(&medium->draining))
		return false;
	if (ucm_medium_ask_room(medium, &room))
		return true;
	if ((room.total_files && !room.free_files) ||
	    room.free_bytes < bytes + room.unit)
		return false;
	ucm_medium_space(medium, &total, &left);
	return !total || left >= bytes;
}

bool ucm_tier_has_room(const struct ucm_tier *tier, uint64_t bytes)
{
	uint64_t limit = ucm_tier_limit_bytes(tier), used = ucm_tier_used(tier);
	bool any = false;

	for (unsigned i = 0; i < tier->num_dirs && !any; i++)
		any = medium_has_room(tier->dirs[i], bytes);
	return any && used <= limit && bytes <= limit - used;
}

bool ucm_tier_takes_files(const struct ucm_tier *tier,
			  struct ucm_medium *medium)
{
	return medium_has_room(medium, 1) &&
	       ucm_tier_used(tier) < ucm_tier_limit_bytes(tier);
}
