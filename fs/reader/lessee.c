/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lessee.c - leases for requests, by a thread.
 *
 * A hold is wanted, then held, and at last ended; only the thread makes calls
 * and frees holds. Others put them into the table and mark them as ended. So what
 * was released before its turn costs no call, and a daemon that hangs holds up
 * the thread alone: what is wanted meanwhile waits or is given up by its
 * requests.
 *
 * Of what a call says only the blocks that were leased are remembered: a lease
 * that was not given must not be given back. A call that fails is as good as one
 * that is due again after half of a lease; the daemon takes a renewal of what it
 * does not know as a lease, so a new daemon gets all that is still held.
 *
 * One lock guards everything but blocks and the ids of holds, which are the
 * thread's.
 */
#include <config.h>

#include <ucm/lessee.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <ucm/blocks.h>
#include <ucm/serve.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/table.h"

#define LESSEE_BLOCKS (1u << 20) /* in all holds, at most */
#define CLOSE_WAIT_S 2
#define MS_MAX UCM_CONTROL_LEASE_MAX_MS

enum hold_state {
	HOLD_WANTED,
	HOLD_HELD,
	HOLD_ENDED,
};

struct hold {
	UT_hash_handle hh;
	uint64_t number;
	enum hold_state state;
	bool leased;	/* a call has succeeded */
	int64_t due_ms; /* to be renewed */
	int64_t end_ms;
	char space[UCM_SERVE_SPACE_MAX];
	size_t num;
	struct ucm_id ids[];
};

struct ucm_lessee {
	char *mount;
	uint32_t lease_ms;
	struct ucm_blocks *blocks; /* the thread's; NULL: not connected */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct hold *holds; /* by number, oldest first */
	uint64_t numbers;
	bool running, stopping;
	bool told; /* that a call has failed */
	struct ucm_lessee_stats stats;
};

/* ---- the holds; under the lock ---- */

static bool lessee_link(struct ucm_lessee *lessee, struct hold *hold)
{
	hold->number = ++lessee->numbers;
	HASH_ADD(hh, lessee->holds, number, sizeof(hold->number), hold);
	if (!hold->hh.tbl)
		return false;
	lessee->stats.holds++;
	lessee->stats.blocks += hold->num;
	return true;
}

static void lessee_unlink(struct ucm_lessee *lessee, struct hold *hold)
{
	HASH_DEL(lessee->holds, hold);
	lessee->stats.holds--;
	lessee->stats.blocks -= hold->num;
}

static bool hold_is_due(const struct hold *hold, int64_t now_ms)
{
	return hold->state != HOLD_HELD || hold->due_ms <= now_ms ||
	       hold->end_ms <= now_ms;
}

static int64_t hold_next_ms(const struct hold *hold)
{
	return hold->due_ms < hold->end_ms ? hold->due_ms : hold->end_ms;
}

/* The next one that something is to be done about; or NULL, and when there may
 * be one. */
static struct hold *lessee_next(struct ucm_lessee *lessee, int64_t now_ms,
				int64_t *when_ms)
{
	*when_ms = INT64_MAX;
	for (struct hold *hold = lessee->holds; hold; hold = hold->hh.next) {
		if (hold_is_due(hold, now_ms))
			return hold;
		if (*when_ms > hold_next_ms(hold))
			*when_ms = hold_next_ms(hold);
	}
	return NULL;
}

/* ---- calls; without the lock ---- */

static int lessee_try(struct ucm_lessee *lessee, const struct hold *hold,
		      uint32_t flags, uint32_t lease_ms, int32_t *results)
{
	int err = lessee->blocks
			  ? 0
			  : ucm_blocks_open(lessee->mount, &lessee->blocks);

	if (!err)
		err = ucm_blocks_lease(lessee->blocks, hold->space, hold->ids,
				       hold->num, flags, lease_ms, results);
	if (err == -ENOTCONN) { /* until then the dead mount is busy */
		ucm_blocks_close(lessee->blocks);
		lessee->blocks = NULL;
	}
	return err;
}

/* Once more where the mount has gone: it may be back. */
static int lessee_call(struct ucm_lessee *lessee, const struct hold *hold,
		       uint32_t flags, uint32_t lease_ms, int32_t *results)
{
	int err = lessee_try(lessee, hold, flags, lease_ms, results);

	return err == -ENOTCONN
		       ? lessee_try(lessee, hold, flags, lease_ms, results)
		       : err;
}

/* Under the lock. */
static void lessee_count(struct ucm_lessee *lessee, const struct hold *hold,
			 int err, bool was_leased, const int32_t *results)
{
	struct ucm_lessee_stats *stats = &lessee->stats;

	stats->calls++;
	stats->failed += err != 0;
	if (err && !lessee->told)
		ucm_warning("%s: no leases: %s: blocks may be evicted before "
			    "they are loaded",
			    lessee->mount, strerror(-err));
	lessee->told = err;
	for (size_t i = 0; i < hold->num && !err && !was_leased; i++) {
		stats->leased += !results[i];
		stats->absent += results[i] == -ENOENT;
		stats->refused += results[i] && results[i] != -ENOENT;
	}
}

/* Those that were leased; the others are of no use. */
static size_t hold_keep(struct hold *hold, const int32_t *results)
{
	size_t num = 0;

	for (size_t i = 0; i < hold->num; i++) {
		if (!results[i])
			hold->ids[num++] = hold->ids[i];
	}
	return num;
}

static uint32_t lessee_terms(const struct ucm_lessee *lessee,
			     const struct hold *hold, int64_t now_ms)
{
	int64_t left_ms = hold->end_ms - now_ms;

	return left_ms < lessee->lease_ms ? (uint32_t)left_ms
					  : lessee->lease_ms;
}

/* Under the lock, which is given up meanwhile. */
static void lessee_lease(struct ucm_lessee *lessee, struct hold *hold,
			 int64_t now_ms, int32_t *results)
{
	uint32_t lease_ms = lessee_terms(lessee, hold, now_ms);
	bool was_leased = hold->leased;
	size_t num = hold->num;
	int err;

	pthread_mutex_unlock(&lessee->lock);
	err = lessee_call(lessee, hold, was_leased ? UCM_LEASE_RENEW : 0,
			  lease_ms, results);
	pthread_mutex_lock(&lessee->lock);
	lessee_count(lessee, hold, err, was_leased, results);
	if (!err && !was_leased)
		num = hold_keep(hold, results);
	lessee->stats.blocks -= hold->num - num;
	hold->num = num;
	hold->leased |= !err;
	hold->due_ms = num ? now_ms + lessee->lease_ms / 2 : hold->end_ms;
	if (hold->state == HOLD_WANTED)
		hold->state = HOLD_HELD;
}

static void lessee_give_back(struct ucm_lessee *lessee, struct hold *hold,
			     int32_t *results)
{
	int err;

	if (!hold->leased || !hold->num)
		return;
	pthread_mutex_unlock(&lessee->lock);
	err = lessee_call(lessee, hold, 0, 0, results);
	pthread_mutex_lock(&lessee->lock);
	lessee_count(lessee, hold, err, true, results);
}

/* ---- the thread ---- */

static void lessee_end(struct ucm_lessee *lessee, struct hold *hold)
{
	lessee_unlink(lessee, hold);
	free(hold);
}

/* Under the lock. */
static void lessee_serve(struct ucm_lessee *lessee, struct hold *hold,
			 int64_t now_ms)
{
	int32_t *results = calloc(hold->num, sizeof(*results));

	if (hold->state == HOLD_ENDED) {
		if (results)
			lessee_give_back(lessee, hold, results);
		lessee_end(lessee, hold);
	} else if (hold->end_ms <= now_ms || !results) {
		lessee_end(lessee, hold); /* its leases run out */
	} else {
		lessee_lease(lessee, hold, now_ms, results);
	}
	free(results);
}

static void lessee_wait(struct ucm_lessee *lessee, int64_t when_ms)
{
	struct timespec until = { .tv_sec = when_ms / 1000,
				  .tv_nsec = when_ms % 1000 * 1000000 };

	if (when_ms == INT64_MAX)
		pthread_cond_wait(&lessee->wake, &lessee->lock);
	else
		pthread_cond_timedwait(&lessee->wake, &lessee->lock, &until);
}

static void lessee_free(struct ucm_lessee *lessee)
{
	while (lessee->holds)
		lessee_end(lessee, lessee->holds);
	ucm_blocks_close(lessee->blocks);
	pthread_mutex_destroy(&lessee->lock);
	pthread_cond_destroy(&lessee->wake);
	free(lessee->mount);
	free(lessee);
}

static void *lessee_main(void *arg)
{
	struct ucm_lessee *lessee = arg;
	int64_t when_ms;

	pthread_mutex_lock(&lessee->lock);
	for (;;) {
		int64_t now_ms = ucm_monotonic_ms();
		struct hold *hold = lessee_next(lessee, now_ms, &when_ms);

		if (hold)
			lessee_serve(lessee, hold, now_ms);
		else if (lessee->stopping)
			break;
		else
			lessee_wait(lessee, when_ms);
	}
	pthread_mutex_unlock(&lessee->lock);
	return NULL;
}

/* Under the lock: by the first hold, so that a lessee without any costs no
 * thread. */
static int lessee_start(struct ucm_lessee *lessee)
{
	sigset_t all, before;
	int err;

	if (lessee->running)
		return 0;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = pthread_create(&lessee->thread, NULL, lessee_main, lessee);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	lessee->running = !err;
	return -err;
}

/* ---- the calls ---- */

int ucm_lessee_open(const char *mount, uint32_t lease_ms,
		    struct ucm_lessee **out)
{
	struct ucm_lessee *lessee;

	if (lease_ms > MS_MAX)
		return -EINVAL;
	lessee = calloc(1, sizeof(*lessee));
	if (!lessee)
		return -ENOMEM;
	pthread_mutex_init(&lessee->lock, NULL);
	ucm_cond_init_monotonic(&lessee->wake);
	lessee->lease_ms = lease_ms ? lease_ms : UCM_LESSEE_MS;
	lessee->mount = strdup(mount);
	if (!lessee->mount) {
		lessee_free(lessee);
		return -ENOMEM;
	}
	*out = lessee;
	return 0;
}

static void lessee_stop(struct ucm_lessee *lessee)
{
	pthread_mutex_lock(&lessee->lock);
	lessee->stopping = true;
	for (struct hold *hold = lessee->holds; hold; hold = hold->hh.next)
		hold->state = HOLD_ENDED;
	pthread_cond_signal(&lessee->wake);
	pthread_mutex_unlock(&lessee->lock);
}

void ucm_lessee_close(struct ucm_lessee *lessee)
{
	struct timespec until;

	if (!lessee)
		return;
	lessee_stop(lessee);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += CLOSE_WAIT_S;
	if (lessee->running &&
	    pthread_timedjoin_np(lessee->thread, NULL, &until)) {
		/* it hangs with the daemon, and keeps what it needs */
		pthread_detach(lessee->thread);
		return;
	}
	lessee_free(lessee);
}

static struct hold *hold_new(const char *space, const struct ucm_id *ids,
			     size_t num, uint32_t for_ms)
{
	struct hold *hold;

	if (space && strlen(space) >= sizeof(hold->space))
		return NULL;
	hold = calloc(1, sizeof(*hold) + num * sizeof(*ids));
	if (!hold)
		return NULL;
	snprintf(hold->space, sizeof(hold->space), "%s", space ? space : "");
	hold->end_ms = ucm_monotonic_ms() + for_ms;
	hold->num = num;
	memcpy(hold->ids, ids, num * sizeof(*ids));
	return hold;
}

uint64_t ucm_lessee_hold(struct ucm_lessee *lessee, const char *space,
			 const struct ucm_id *ids, size_t num, uint32_t for_ms)
{
	struct hold *hold;
	uint64_t number = 0;

	if (!num || num > LESSEE_BLOCKS)
		return 0;
	hold = hold_new(space, ids, num, for_ms);
	if (!hold)
		return 0;
	pthread_mutex_lock(&lessee->lock);
	if (num <= LESSEE_BLOCKS - lessee->stats.blocks &&
	    !lessee_start(lessee) && lessee_link(lessee, hold)) {
		number = hold->number;
		pthread_cond_signal(&lessee->wake);
	}
	pthread_mutex_unlock(&lessee->lock);
	if (!number)
		free(hold);
	return number;
}

void ucm_lessee_release(struct ucm_lessee *lessee, uint64_t number)
{
	struct hold *hold;

	if (!number)
		return;
	pthread_mutex_lock(&lessee->lock);
	HASH_FIND(hh, lessee->holds, &number, sizeof(number), hold);
	if (hold) {
		hold->state = HOLD_ENDED;
		pthread_cond_signal(&lessee->wake);
	}
	pthread_mutex_unlock(&lessee->lock);
}

void ucm_lessee_get_stats(struct ucm_lessee *lessee,
			  struct ucm_lessee_stats *out)
{
	pthread_mutex_lock(&lessee->lock);
	*out = lessee->stats;
	pthread_mutex_unlock(&lessee->lock);
}
