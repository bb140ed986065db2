/* SPDX-License-Identifier: Apache-2.0 */
/* jobs.c - what is to be moved; see jobs.h. */
#include <config.h>

#include "fs/store/jobs.h"

#include <errno.h>
#include <stdlib.h>

#include "common/clock.h"
#include "fs/store/pressure.h"
#include "fs/store/store.h"

struct ucm_jobs *ucm_jobs_new(void)
{
	struct ucm_jobs *jobs = calloc(1, sizeof(*jobs));

	if (!jobs)
		return NULL;
	pthread_mutex_init(&jobs->lock, NULL);
	ucm_cond_init_monotonic(&jobs->wake);
	ucm_cond_init_monotonic(&jobs->copied);
	TAILQ_INIT(&jobs->through);
	jobs->down_lacks = true; /* of an earlier life */
	return jobs;
}

void ucm_jobs_free(struct ucm_jobs *jobs)
{
	if (!jobs)
		return;
	pthread_mutex_destroy(&jobs->lock);
	pthread_cond_destroy(&jobs->wake);
	pthread_cond_destroy(&jobs->copied);
	free(jobs);
}

/* ---- queues; under the lock ---- */

static bool queue_put(struct ucm_job_queue *queue, ucm_ref ref)
{
	if (queue->num == UCM_JOBS_MAX)
		return false;
	queue->refs[(queue->first + queue->num++) % UCM_JOBS_MAX] = ref;
	return true;
}

static void jobs_signal(struct ucm_jobs *jobs)
{
	jobs->woken = true;
	pthread_cond_signal(&jobs->wake);
}

/* ---- for the movers ---- */

bool ucm_jobs_take(struct ucm_jobs *jobs, struct ucm_job_queue *queue,
		   ucm_ref *ref)
{
	bool any;

	pthread_mutex_lock(&jobs->lock);
	any = queue->num;
	if (any) {
		*ref = queue->refs[queue->first];
		queue->first = (queue->first + 1) % UCM_JOBS_MAX;
		queue->num--;
	}
	pthread_mutex_unlock(&jobs->lock);
	return any;
}

bool ucm_jobs_put_down(struct ucm_jobs *jobs, ucm_ref ref)
{
	bool put;

	pthread_mutex_lock(&jobs->lock);
	put = queue_put(&jobs->down, ref);
	jobs->down_lacks |= !put;
	pthread_mutex_unlock(&jobs->lock);
	return put;
}

void ucm_jobs_lack(struct ucm_jobs *jobs)
{
	pthread_mutex_lock(&jobs->lock);
	jobs->down_lacks = true;
	pthread_mutex_unlock(&jobs->lock);
}

void ucm_jobs_wake(struct ucm_jobs *jobs)
{
	pthread_mutex_lock(&jobs->lock);
	jobs_signal(jobs);
	pthread_mutex_unlock(&jobs->lock);
}

void ucm_jobs_start(struct ucm_jobs *jobs, bool started)
{
	pthread_mutex_lock(&jobs->lock);
	jobs->started = started;
	pthread_cond_broadcast(&jobs->wake);
	pthread_cond_broadcast(&jobs->copied);
	pthread_mutex_unlock(&jobs->lock);
}

/* ---- through ---- */

#define THROUGH_MS 30000 /* the movers may be at work where nothing answers */

bool ucm_jobs_take_through(struct ucm_jobs *jobs, ucm_ref *ref)
{
	struct ucm_job_awaited *awaited;

	pthread_mutex_lock(&jobs->lock);
	TAILQ_FOREACH(awaited, &jobs->through, link) {
		if (!awaited->taken)
			break;
	}
	if (awaited) {
		awaited->taken = true;
		*ref = awaited->ref;
	}
	pthread_mutex_unlock(&jobs->lock);
	return awaited;
}

void ucm_jobs_end_through(struct ucm_jobs *jobs, ucm_ref ref, int err)
{
	struct ucm_job_awaited *awaited;

	pthread_mutex_lock(&jobs->lock);
	TAILQ_FOREACH(awaited, &jobs->through, link) {
		if (awaited->ref == ref)
			awaited->result = err;
	}
	pthread_cond_broadcast(&jobs->copied);
	pthread_mutex_unlock(&jobs->lock);
}

int ucm_jobs_write_through(struct ucm_store *store, ucm_ref ref)
{
	struct ucm_job_awaited mine = { .ref = ref, .result = -EINPROGRESS };
	const struct timespec until = ucm_monotonic_in_ms(THROUGH_MS);
	struct ucm_jobs *jobs = store->jobs;

	pthread_mutex_lock(&jobs->lock);
	TAILQ_INSERT_TAIL(&jobs->through, &mine, link);
	jobs_signal(jobs);
	while (jobs->started && mine.result == -EINPROGRESS &&
	       pthread_cond_timedwait(&jobs->copied, &jobs->lock, &until) !=
		       ETIMEDOUT)
		;
	TAILQ_REMOVE(&jobs->through, &mine, link);
	pthread_mutex_unlock(&jobs->lock);
	return mine.result;
}

/* ---- up ---- */

struct ucm_tier *ucm_jobs_tier_above(struct ucm_store *store, unsigned dir)
{
	for (unsigned i = 0; i < store->dirs.num_tiers; i++) {
		struct ucm_tier *tier = &store->dirs.tiers[i];

		if (tier == store->dirs.tier_of[dir])
			return NULL;
		if (!tier->readonly)
			return tier;
	}
	return NULL;
}

/* Is this the use that promotes? */
static bool seen_enough(struct ucm_jobs *jobs,
			const struct ucm_config *config, ucm_ref ref)
{
	struct ucm_job_seen *seen =
		&jobs->seen[ref * UINT64_C(0x9e3779b97f4a7c15) >> 52];
	uint32_t now = (uint32_t)(ucm_monotonic_ms() / 1000);

	if (seen->ref != ref ||
	    now - seen->since_s > UCM_PROMOTE_WINDOW_S)
		*seen = (struct ucm_job_seen){ .ref = ref, .since_s = now };
	seen->uses++;
	if (seen->uses < config->promote)
		return false;
	*seen = (struct ucm_job_seen){ .ref = 0 };
	return true;
}
_Static_assert(UCM_JOBS_MAX == 1u << 12, "as many as 12 bits number");

void ucm_jobs_used(struct ucm_store *store, ucm_ref ref,
		   const struct ucm_entry *entry)
{
	struct ucm_jobs *jobs = store->jobs;

	if (!store->config->promote || !store->value.policy ||
	    !ucm_jobs_tier_above(store, entry->dir))
		return;
	pthread_mutex_lock(&jobs->lock);
	if (jobs->started &&
	    seen_enough(jobs, store->config, ref) &&
	    queue_put(&jobs->up, ref))
		jobs_signal(jobs);
	pthread_mutex_unlock(&jobs->lock);
}

int ucm_jobs_warm(struct ucm_store *store, ucm_ref ref)
{
	struct ucm_jobs *jobs = store->jobs;
	struct ucm_entry entry;
	bool queued;

	if (!ucm_index_get(store->index, ref, &entry))
		return -ENOENT;
	if (!ucm_jobs_tier_above(store, entry.dir))
		return 0;
	pthread_mutex_lock(&jobs->lock);
	queued = jobs->started && queue_put(&jobs->warm, ref);
	jobs_signal(jobs);
	pthread_mutex_unlock(&jobs->lock);
	return queued ? 0 : -EAGAIN;
}

/* ---- down ---- */

static bool is_copied_below(const struct ucm_tier *tier)
{
	return tier->write_mode == UCM_WRITE_BACK ||
	       tier->write_mode == UCM_WRITE_THROUGH;
}

bool ucm_jobs_is_unsaved(const struct ucm_store *store,
			 const struct ucm_entry *entry)
{
	return !entry->copy && !entry->tier_only &&
	       is_copied_below(store->dirs.tier_of[entry->dir]);
}

void ucm_jobs_written(struct ucm_store *store, ucm_ref ref)
{
	struct ucm_jobs *jobs = store->jobs;
	struct ucm_entry entry;
	bool unsaved;

	if (!ucm_index_get(store->index, ref, &entry))
		return;
	unsaved = ucm_jobs_is_unsaved(store, &entry);
	if (!unsaved && !ucm_pressure(store, entry.dir))
		return;
	pthread_mutex_lock(&jobs->lock);
	if (unsaved && !queue_put(&jobs->down, ref))
		jobs->down_lacks = true;
	jobs_signal(jobs);
	pthread_mutex_unlock(&jobs->lock);
}

/* They are counted one after the other, and not read at one moment. */
static uint64_t less(const _Atomic uint64_t *all, const _Atomic uint64_t *some)
{
	uint64_t sum = atomic_load(all), part = atomic_load(some);

	return sum > part ? sum - part : 0;
}

void ucm_jobs_count_unsaved(const struct ucm_store *store, uint64_t *blocks,
			    uint64_t *bytes)
{
	*blocks = *bytes = 0;
	for (unsigned dir = 0; dir < store->dirs.num; dir++) {
		const struct ucm_medium *medium = store->dirs.at[dir];

		if (!is_copied_below(store->dirs.tier_of[dir]))
			continue;
		*blocks += less(&medium->alone, &medium->withheld);
		*bytes += less(&medium->alone_bytes, &medium->withheld_bytes);
	}
}
