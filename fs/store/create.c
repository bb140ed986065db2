/* SPDX-License-Identifier: Apache-2.0 */
/*
 * create.c - a temporary file for a new block: in which directory, and its end.
 *
 * The first tier takes it that has room for what it is going to have. If nobody
 * knows its size, that is a guess; where no tier has room for the guess, the
 * roomiest takes it all the same.
 */
#include <config.h>

#include "fs/store/inside.h"

#include <errno.h>

#include "common/log.h"
#include "hashing/tree.h"

/* A space's first blocks are taken to be no larger, unless larger ones have
 * been seen. */
#define GUESS_BYTES (UINT64_C(64) << 20)

static void raise_to(_Atomic uint64_t *most, uint64_t value)
{
	uint64_t was = atomic_load(most);

	while (was < value && !atomic_compare_exchange_weak(most, &was, value))
		;
}

static struct ucm_want create_guess(struct ucm_store *store)
{
	struct ucm_want want = {
		.bytes = GUESS_BYTES,
		.outgrown = atomic_load(&store->outgrown),
		.guessed = true,
	};
	uint64_t largest = atomic_load(&store->largest);

	/* no disk gives all that it calls free */
	want.outgrown += want.outgrown / 8;
	if (want.bytes < largest)
		want.bytes = largest;
	if (want.bytes < want.outgrown)
		want.bytes = want.outgrown;
	if (want.bytes > store->config->block_max)
		want.bytes = store->config->block_max;
	return want;
}

_Static_assert(UCM_TEMP_NAME_MAX <= UCM_ROOM_NAME_MAX,
	       "a promise has room for the name of its file");

/* A new file, and what is to become of it. */
struct creation {
	struct ucm_store *store;
	const struct ucm_key *key;
	struct ucm_want want;
	struct ucm_temp temp;
	struct ucm_file file;
	int result;
	int wait; /* -EINPROGRESS: there is nothing for this thread to try */
};

static int create_in(struct creation *c, struct ucm_promise *promise)
{
	struct ucm_medium *medium = promise->medium;
	struct ucm_temp *temp = &c->temp;
	int err = medium->ops->put(medium, temp->name, &c->file);

	if (err)
		return err;
	ucm_debug(TIER, 1, "block %s: new file %s in %s",
		  ucm_hex(&c->key->id).text, temp->name, medium->path);
	ucm_room_watch_name(promise, temp->name);
	temp->promise = promise;
	temp->medium = medium;
	temp->losses = atomic_load(&medium->recovery.losses);
	temp->tier = promise->tier;
	temp->guessed = promise->guessed;
	temp->dir = (uint8_t)ucm_tier_dir(temp->tier, medium);
	return 0;
}

static bool create_try_tier(struct creation *c, struct ucm_tier *tier)
{
	struct ucm_store *store = c->store;
	struct ucm_promise *promise;
	struct ucm_medium *medium;

	/* as often as there are directories: each failure rules one out */
	for (unsigned i = 0; i < tier->num_dirs; i++) {
		int err = ucm_tier_choose(tier, store->dirs.placement,
					  &c->key->id, &c->want, &promise);

		if (err) {
			c->result = c->result == -EROFS ? err : c->result;
			return false;
		}
		medium = promise->medium;
		c->result = create_in(c, promise);
		if (!c->result)
			return true;
		ucm_promise_end(promise);
		ucm_dirs_count_error(&store->dirs, ucm_tier_dir(tier, medium),
				     c->result);
		ucm_medium_failed(medium, "create", c->result);
		if (!atomic_load(&medium->retry_s))
			return false;
	}
	return false;
}

/* Any of its directories may be the one. */
static int create_wait_for(const struct ucm_store *store,
			   const struct ucm_tier *tier)
{
	int err = 0;

	for (unsigned i = 0; i < tier->num_dirs && !err; i++)
		err = ucm_wait_for(&store->dirs, tier->first + i);
	return err;
}

static bool create_try_tiers(struct creation *c)
{
	for (unsigned i = 0; i < c->store->dirs.num_tiers; i++) {
		c->wait = create_wait_for(c->store, &c->store->dirs.tiers[i]);
		if (c->wait || create_try_tier(c, &c->store->dirs.tiers[i]))
			return true;
	}
	return false;
}

/* The one with the most free space. */
static struct ucm_tier *roomiest(struct ucm_store *store, const bool *tried)
{
	struct ucm_tier *best = NULL;
	uint64_t most = 0;

	for (unsigned i = 0; i < store->dirs.num_tiers; i++) {
		uint64_t total, room;

		if (tried[i])
			continue;
		ucm_tier_space(&store->dirs.tiers[i], &total, &room);
		if (!best || room > most) {
			best = &store->dirs.tiers[i];
			most = room;
		}
	}
	return best;
}

/* No tier has room for a guess, but the guess may be wrong: where there is most
 * room it is the least likely to be missed. */
static bool try_anywhere(struct creation *c)
{
	bool tried[UCM_MAX_DIRS] = { false };
	struct ucm_tier *tier;

	c->want.anywhere = true;
	c->wait = ucm_wait_for_any(&c->store->dirs);
	if (c->wait)
		return true;
	while ((tier = roomiest(c->store, tried))) {
		if (create_try_tier(c, tier))
			return true;
		tried[tier - c->store->dirs.tiers] = true;
	}
	return false;
}

int ucm_store_create(struct ucm_store *store, const struct ucm_key *key,
		     uint64_t bytes, struct ucm_temp *out,
		     struct ucm_file *file_out)
{
	struct ucm_space *space = ucm_namespace_get(&store->names, key->space);
	struct creation c = { .store = store, .key = key, .result = -EROFS };

	if (!space)
		return -ENOENT;
	c.want.bytes = bytes ? bytes : ucm_space_block_bytes(space);
	if (c.want.bytes > store->config->block_max) {
		if (ucm_space_has_geometry(space))
			return -EFBIG;
		c.want.bytes = 0; /* promise nothing for it */
	}
	if (!c.want.bytes)
		c.want = create_guess(store);
	if (!create_try_tiers(&c) &&
	    !(c.result == -ENOSPC && c.want.guessed && try_anywhere(&c)))
		return c.result;
	if (c.wait)
		return c.wait;
	*out = c.temp;
	*file_out = c.file;
	return 0;
}

int ucm_store_reopen(struct ucm_store *store, const struct ucm_temp *temp,
		     struct ucm_file *out)
{
	(void)store;
	return temp->medium->ops->put_again(temp->medium, temp->name, out);
}

/* The room is taken now, or not needed. */
static void create_end_promise(struct ucm_temp *temp)
{
	ucm_promise_end(temp->promise);
	temp->promise = NULL;
}

void ucm_store_rest(struct ucm_temp *temp, const struct ucm_file *file)
{
	struct stat st;

	if (temp->promise && temp->promise->guessed &&
	    !ucm_file_stat(file, &st) && st.st_size)
		ucm_promise_resize(temp->promise, ucm_file_takes(&st));
}

/* Where there is no room for more than this, files like it are not tried
 * again: one after the other would fail in mid-write. */
static void note_outgrown(struct ucm_store *store, const struct ucm_temp *temp)
{
	struct stat st;

	if (temp->guessed &&
	    !temp->medium->ops->look(temp->medium, temp->name, &st))
		raise_to(&store->outgrown, ucm_file_takes(&st));
}

void ucm_store_abandon(const struct ucm_temp *temp)
{
	if (temp->committed && temp->ref)
		temp->medium->abandoned = true;
}

void ucm_store_drop(struct ucm_store *store, struct ucm_temp *temp)
{
	if (!temp->committed) {
		note_outgrown(store, temp);
		temp->medium->ops->drop(temp->medium, temp->name);
		ucm_count(&store->stats.dropped);
	} else if (temp->ref) {
		ucm_index_flag(store->index, temp->ref,
			       UCM_ENTRY_WRITABLE | UCM_ENTRY_SHARED, false);
		atomic_fetch_sub(&store->writers, 1);
	}
	create_end_promise(temp);
}
