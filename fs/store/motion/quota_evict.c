/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quota_evict.c - spaces that are full; see quota.h.
 *
 * Whoever needs room evicts what he lacks himself, one block or a few, and movers
 * make some for those that follow: so a writer seldom has to. One thread at a time
 * evicts from a space (busy), and looks at what it lacks when it is its turn: after a
 * quota was made smaller all lack the same bytes.
 */
#include <config.h>

#include "fs/store/motion/motion.h"

#include <errno.h>
#include <time.h>

#include "common/log.h"
#include "fs/store/jobs.h"
#include "fs/store/pressure.h"
#include "fs/tier/wait.h"
#include "hashing/tree.h"

#define TRIES 64
#define MISSES 10   /* a millisecond apart, before a writer is refused */
#define WAITS 10000 /* the same, while another evicts */
#define BATCH_BYTES (UINT64_C(64) << 20) /* evicted before a mover looks elsewhere */
/* What is over is evicted in parts: programs remove blocks at the same time,
 * and the same bytes would be taken away twice. */
#define PARTS 8

/* ---- promises ---- */

static void quota_refuse(struct ucm_store *store, struct ucm_quota *quota,
			 const struct ucm_id *id, uint64_t bytes)
{
	uint64_t limit = atomic_load(&quota->bytes);

	atomic_fetch_add(&quota->refused, 1);
	if (bytes > limit)
		ucm_warning("%s: block %s: it takes %llu bytes, and the quota "
			    "is %llu",
			    quota->space->folder, ucm_hex(id).text,
			    (unsigned long long)bytes,
			    (unsigned long long)limit);
	else
		ucm_evict_explain_space(store, quota, id);
}

/* 0: it is promised; -EDQUOT: nothing may go; -EBUSY: another thread evicts;
 * -EAGAIN: this one has. */
static int quota_evict(struct ucm_store *store, struct ucm_quota *quota,
		       uint64_t bytes, struct ucm_allowance *part)
{
	int err = ucm_wait_long(UCM_WAIT_MANY);
	uint64_t lack, freed;

	if (err)
		return err;
	if (atomic_exchange(&quota->victims.busy, true))
		return -EBUSY;
	lack = ucm_quota_try(quota->space, bytes, part);
	if (lack) {
		ucm_evict_space(store, quota, lack, &freed);
		err = freed ? -EAGAIN : -EDQUOT;
	}
	atomic_store(&quota->victims.busy, false);
	return err;
}

/* A block that is being committed counts twice for a moment, as a block and as a
 * promise, and may not be evicted before it is closed: several writers in a small
 * quota are not refused for that. */
static int quota_take(struct ucm_store *store, struct ucm_quota *quota,
		      uint64_t bytes, struct ucm_allowance *part)
{
	static const struct timespec moment = { .tv_nsec = 1000000 };
	unsigned tries = 0, misses = 0, waits = 0;
	int err = -EAGAIN;

	while (err) {
		uint64_t limit = atomic_load(&quota->bytes);

		if (!store->value.policy || (limit && bytes > limit))
			return -EDQUOT;
		err = quota_evict(store, quota, bytes, part);
		if (err == -EAGAIN && ++tries < TRIES) {
			ucm_jobs_wake(store->jobs); /* more are to come */
			continue;
		}
		if ((err != -EBUSY || ++waits > WAITS) &&
		    (err != -EDQUOT || ++misses > MISSES))
			break;
		nanosleep(&moment, NULL);
	}
	return err == -EAGAIN || err == -EBUSY ? -EDQUOT : err;
}

int ucm_quota_promise(struct ucm_store *store, const struct ucm_key *key,
		      uint64_t bytes, struct ucm_allowance *part)
{
	struct ucm_space *space = store->names.spaces[key->space];
	struct ucm_quota *quota;
	int err;

	if (!ucm_quota_try(space, bytes, part))
		return 0;
	quota = atomic_load(&space->quota); /* none is ever taken away */
	err = quota_take(store, quota, bytes, part);
	if (err == -EDQUOT)
		quota_refuse(store, quota, &key->id, bytes);
	return err;
}

/* ---- for movers ---- */

/* Above the high mark: how much is to go, down to the low one. */
static uint64_t quota_over(const struct ucm_config *config,
			   const struct ucm_quota *quota)
{
	uint64_t limit = atomic_load(&quota->bytes);
	uint64_t used = atomic_load(&quota->space->used);
	uint64_t over = limit ? ucm_pressure_over(
					config, atomic_load(&quota->relieved),
					limit, ucm_quota_taken(quota->space))
			      : 0;

	return over < used ? over : used;
}

static uint64_t quota_evict_over(struct ucm_store *store,
				 struct ucm_quota *quota)
{
	uint64_t over, freed = 1, sum = 0;

	while (freed && sum < BATCH_BYTES &&
	       (over = quota_over(store->config, quota))) {
		ucm_evict_space(store, quota, over / PARTS + 1, &freed);
		sum += freed;
		atomic_store(&quota->relieved, sum && freed < over);
	}
	return sum;
}

static bool quota_relieve_one(struct ucm_store *store, struct ucm_quota *quota)
{
	uint64_t freed;

	if (!quota_over(store->config, quota) ||
	    atomic_load(&quota->space->removed) ||
	    atomic_exchange(&quota->victims.busy, true))
		return false;
	freed = quota_evict_over(store, quota);
	atomic_store(&quota->victims.busy, false);
	return freed;
}

bool ucm_quota_relieve(struct ucm_store *store)
{
	bool any = false;

	for (struct ucm_quota *quota = atomic_load(&store->quotas); quota;
	     quota = quota->next)
		any |= quota_relieve_one(store, quota);
	return any;
}
