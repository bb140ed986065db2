/* SPDX-License-Identifier: Apache-2.0 */
/* wishes.c - what is to be moved; see wishes.h. */
#include <config.h>

#include "fs/store/wishes.h"

#include <errno.h>
#include <stdlib.h>

#include "common/clock.h"
#include "fs/store/pressure.h"
#include "fs/store/store.h"

struct ucm_wishes *ucm_wishes_new(void)
{
	struct ucm_wishes *wishes = calloc(1, sizeof(*wishes));

	if (!wishes)
		return NULL;
	pthread_mutex_init(&wishes->lock, NULL);
	ucm_cond_init_monotonic(&wishes->wake);
	wishes->down_lacks = true; /* of an earlier life */
	return wishes;
}

void ucm_wishes_free(struct ucm_wishes *wishes)
{
	if (!wishes)
		return;
	pthread_mutex_destroy(&wishes->lock);
	pthread_cond_destroy(&wishes->wake);
	free(wishes);
}

/* ---- queues; under the lock ---- */

static bool queue_put(struct ucm_wish_queue *queue, ucm_ref ref)
{
	if (queue->num == UCM_WISHES_MAX)
		return false;
	queue->refs[(queue->first + queue->num++) % UCM_WISHES_MAX] = ref;
	return true;
}

static void wishes_signal(struct ucm_wishes *wishes)
{
	wishes->woken = true;
	pthread_cond_signal(&wishes->wake);
}

/* ---- for the movers ---- */

bool ucm_wishes_take(struct ucm_wishes *wishes, struct ucm_wish_queue *queue,
		     ucm_ref *ref)
{
	bool any;

	pthread_mutex_lock(&wishes->lock);
	any = queue->num;
	if (any) {
		*ref = queue->refs[queue->first];
		queue->first = (queue->first + 1) % UCM_WISHES_MAX;
		queue->num--;
	}
	pthread_mutex_unlock(&wishes->lock);
	return any;
}

bool ucm_wishes_put_down(struct ucm_wishes *wishes, ucm_ref ref)
{
	bool put;

	pthread_mutex_lock(&wishes->lock);
	put = queue_put(&wishes->down, ref);
	wishes->down_lacks |= !put;
	pthread_mutex_unlock(&wishes->lock);
	return put;
}

void ucm_wishes_lack(struct ucm_wishes *wishes)
{
	pthread_mutex_lock(&wishes->lock);
	wishes->down_lacks = true;
	pthread_mutex_unlock(&wishes->lock);
}

void ucm_wishes_wake(struct ucm_store *store)
{
	pthread_mutex_lock(&store->wishes->lock);
	wishes_signal(store->wishes);
	pthread_mutex_unlock(&store->wishes->lock);
}

/* ---- up ---- */

struct ucm_tier *ucm_wishes_tier_above(struct ucm_store *store, unsigned dir)
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
static bool seen_enough(struct ucm_wishes *wishes,
			const struct ucm_config *config, ucm_ref ref)
{
	struct ucm_wish_seen *seen =
		&wishes->seen[ref * UINT64_C(0x9e3779b97f4a7c15) >> 52];
	uint32_t now = (uint32_t)(ucm_monotonic_ms() / 1000);

	if (seen->ref != ref ||
	    now - seen->since_s > UCM_PROMOTE_WINDOW_S)
		*seen = (struct ucm_wish_seen){ .ref = ref, .since_s = now };
	seen->uses++;
	if (seen->uses < config->promote)
		return false;
	*seen = (struct ucm_wish_seen){ .ref = 0 };
	return true;
}
_Static_assert(UCM_WISHES_MAX == 1u << 12, "as many as 12 bits number");

void ucm_wishes_used(struct ucm_store *store, ucm_ref ref,
		     const struct ucm_entry *entry)
{
	struct ucm_wishes *wishes = store->wishes;

	if (!store->config->promote || !store->value.policy ||
	    !ucm_wishes_tier_above(store, entry->dir))
		return;
	pthread_mutex_lock(&wishes->lock);
	if (wishes->started &&
	    seen_enough(wishes, store->config, ref) &&
	    queue_put(&wishes->up, ref))
		wishes_signal(wishes);
	pthread_mutex_unlock(&wishes->lock);
}

int ucm_wishes_warm(struct ucm_store *store, ucm_ref ref)
{
	struct ucm_wishes *wishes = store->wishes;
	struct ucm_entry entry;
	bool queued;

	if (!ucm_index_get(store->index, ref, &entry))
		return -ENOENT;
	if (!ucm_wishes_tier_above(store, entry.dir))
		return 0;
	pthread_mutex_lock(&wishes->lock);
	queued = wishes->started && queue_put(&wishes->warm, ref);
	wishes_signal(wishes);
	pthread_mutex_unlock(&wishes->lock);
	return queued ? 0 : -EAGAIN;
}

/* ---- down ---- */

static bool is_copied_below(const struct ucm_tier *tier)
{
	return tier->write_mode == UCM_WRITE_BACK ||
	       tier->write_mode == UCM_WRITE_THROUGH;
}

bool ucm_wishes_is_unsaved(const struct ucm_store *store,
			   const struct ucm_entry *entry)
{
	return !entry->copy && !entry->tier_only &&
	       is_copied_below(store->dirs.tier_of[entry->dir]);
}

void ucm_wishes_written(struct ucm_store *store, ucm_ref ref)
{
	struct ucm_wishes *wishes = store->wishes;
	struct ucm_entry entry;
	bool unsaved;

	if (!ucm_index_get(store->index, ref, &entry))
		return;
	unsaved = ucm_wishes_is_unsaved(store, &entry);
	if (!unsaved && !ucm_pressure(store, entry.dir))
		return;
	pthread_mutex_lock(&wishes->lock);
	if (unsaved && !queue_put(&wishes->down, ref))
		wishes->down_lacks = true;
	wishes_signal(wishes);
	pthread_mutex_unlock(&wishes->lock);
}

/* They are counted one after the other, and not read at one moment. */
static uint64_t less(const _Atomic uint64_t *all, const _Atomic uint64_t *some)
{
	uint64_t sum = atomic_load(all), part = atomic_load(some);

	return sum > part ? sum - part : 0;
}

void ucm_wishes_count_unsaved(const struct ucm_store *store, uint64_t *blocks,
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
