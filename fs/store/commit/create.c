/* SPDX-License-Identifier: Apache-2.0 */
/*
 * create.c - in which tier a new block is written.
 *
 * The first tier takes it that has room for what it is going to have. If nobody
 * knows its size, that is a guess; where no tier has room for the guess, the
 * roomiest takes it all the same. Where there is no room for anything, something
 * goes that is worth less (motion.h). A space's quota comes first (quota.h).
 */
#include <config.h>

#include "fs/store/motion/motion.h"

#include <errno.h>
#include <time.h>

#include "fs/store/find/find.h"
#include "fs/store/jobs.h"
#include "fs/tier/wait.h"

/* A space's first blocks are taken to be no larger, unless larger ones have
 * been seen. */
#define GUESS_BYTES (UINT64_C(64) << 20)

static struct ucm_want create_guess(const struct ucm_sizes *sizes,
				    uint64_t block_max)
{
	struct ucm_want want = {
		.bytes = GUESS_BYTES,
		.outgrown = atomic_load(&sizes->outgrown),
		.guessed = true,
	};
	uint64_t largest = atomic_load(&sizes->largest);

	/* no disk gives all that it calls free */
	want.outgrown += want.outgrown / 8;
	if (want.bytes < largest)
		want.bytes = largest;
	if (want.bytes < want.outgrown)
		want.bytes = want.outgrown;
	if (want.bytes > block_max)
		want.bytes = block_max;
	return want;
}

/* A new file, and what is to become of it. */
struct creation {
	struct ucm_store *store;
	const struct ucm_key *key;
	struct ucm_want want;
	struct ucm_allowance part;
	struct ucm_temp temp;
	struct ucm_file file;
	int result;
	int wait; /* -EINPROGRESS: there is nothing for this thread to try */
};

static bool create_try_tier(struct creation *c, struct ucm_tier *tier)
{
	int err = ucm_store_create_in(c->store, tier, c->key, &c->want,
				      &c->temp, &c->file);

	/* a tier that is full says more than one that fails, and that says more than
	 * one that is not written to */
	if (c->result == -EROFS || (c->result != -ENOSPC && err != -EROFS))
		c->result = err;
	return !err;
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
		struct ucm_tier *tier = &c->store->dirs.tiers[i];

		if (tier->write_mode == UCM_WRITE_AROUND)
			continue; /* it gets what is used */
		c->wait = create_wait_for(c->store, tier);
		if (c->wait || create_try_tier(c, tier))
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
		struct ucm_tier *tier = &store->dirs.tiers[i];
		uint64_t total, room;

		if (tried[i] || tier->write_mode == UCM_WRITE_AROUND)
			continue;
		ucm_tier_space(tier, &total, &room);
		if (!best || room > most) {
			best = tier;
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

/* Others who make room at the same time may be faster to take it. */
#define TRIES 64
#define WAITS 10000 /* a millisecond each, while another writer makes room */

static uint64_t create_bytes(const struct creation *c)
{
	uint64_t largest = atomic_load(&c->store->sizes.largest);

	if (!c->want.guessed)
		return c->want.bytes;
	return largest > c->want.outgrown ? largest : c->want.outgrown;
}

/* Every tier is full: something that is worth less goes. */
static bool create_evict(struct creation *c)
{
	static const struct timespec moment = { .tv_nsec = 1000000 };
	struct ucm_store *store = c->store;

	if (!store->value.policy)
		return false;
	c->wait = ucm_wait_long(UCM_WAIT_MANY);
	if (c->wait)
		return true;
	for (unsigned tries = 0, waits = 0; tries < TRIES && waits < WAITS;) {
		uint64_t before = atomic_load(&store->evictions.done);
		int err = ucm_evict_for(store, create_bytes(c));

		if (err == -EBUSY) {
			waits++;
			nanosleep(&moment, NULL);
		} else {
			tries++;
			if (err && !ucm_evict_wait_for_others(&store->evictions,
							      before))
				break;
		}
		if (create_try_tiers(c) ||
		    (c->result == -ENOSPC && c->want.guessed &&
		     try_anywhere(c)))
			return true;
		if (c->result != -ENOSPC)
			return false;
		c->want.anywhere = false;
	}
	ucm_evict_explain(store, &c->key->id);
	ucm_jobs_wake(store->jobs);
	return false;
}

int ucm_store_commit_evicting(struct ucm_store *store, struct ucm_temp *temp,
			      const struct ucm_file *file,
			      const struct ucm_key *key,
			      enum ucm_commit_when when)
{
	int err = ucm_store_commit(store, temp, file, key, when);
	uint64_t had = temp->part.bytes;

	if (err != -EDQUOT ||
	    ucm_quota_promise(store, key, ucm_store_takes(&temp->stamp),
			      &temp->part) ||
	    temp->part.bytes <= had) /* it is not the space that lacks room */
		return err;
	if (when == UCM_COMMIT_WRITTEN)
		when = UCM_COMMIT_NOW; /* time has passed since that was said */
	return ucm_store_commit(store, temp, file, key, when);
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
		c.want = create_guess(&store->sizes, store->config->block_max);
	/* a guess is nothing to evict for: the commit knows */
	c.wait = ucm_quota_promise(store, key,
				   c.want.guessed ? 0 : c.want.bytes, &c.part);
	if (c.wait)
		return c.wait;
	if (!create_try_tiers(&c) &&
	    !(c.result == -ENOSPC && c.want.guessed && try_anywhere(&c)) &&
	    !(c.result == -ENOSPC && create_evict(&c)))
		c.wait = c.result;
	if (c.wait) {
		ucm_quota_end_promise(&c.part);
		return c.wait;
	}
	*out = c.temp;
	out->part = c.part;
	*file_out = c.file;
	return 0;
}
