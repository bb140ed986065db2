/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quota.c - quotas of spaces; see quota.h.
 *
 * Two sums of a space are compared with its quota: what its blocks take (used,
 * which entry.c keeps, for all spaces), and what is promised to files that are
 * being written (writing). A promise is made under the quota's lock and only
 * where both and it fit; so several writers who want the last room do not get it
 * all, and the blocks never take more than the quota, but for two cases: it is
 * lowered, or a scan finds blocks. Then movers evict.
 *
 * A file whose size nobody knows is promised nothing when it is made, and all of
 * it at its commit. A commit counts the block first and ends the promise then:
 * for a moment there is too little room, and never too much.
 *
 * Victims are drawn from the space's list (members.h), 4 bytes a block, which is
 * made by a walk of the index when the first quota is set. Who evicts, and when,
 * is quota_evict.c's.
 *
 * The structs are never freed before the store is: who has found one in a space,
 * or in the store's list, may use it.
 */
#include <config.h>

#include "fs/store/quota.h"

#include <errno.h>
#include <stdlib.h>

#include "common/clock.h"
#include "fs/store/jobs.h"
#include "fs/store/pressure.h"
#include "hashing/tree.h"

/* ---- lists of blocks ---- */

static bool quota_list_entry(struct ucm_entry *entry, ucm_ref ref, void *arg)
{
	struct ucm_quota *quota = arg;

	if (entry->space == quota->space->number)
		ucm_members_add(&quota->victims.members, ucm_ref_place(ref));
	return false;
}

static void quota_list(struct ucm_store *store, struct ucm_quota *quota)
{
	if (!atomic_load(&quota->space->blocks))
		return; /* at the start of a mount with many spaces */
	for (unsigned shard = 0; shard < UCM_BUCKETS; shard++) {
		uint32_t cursor = 0;

		while (ucm_index_walk(store->index, shard, &cursor,
				      quota_list_entry, quota))
			;
	}
}

void ucm_quota_relist(struct ucm_store *store)
{
	for (struct ucm_quota *quota = atomic_load(&store->quotas); quota;
	     quota = quota->next) {
		if (ucm_members_begin_anew(&quota->victims.members,
					   atomic_load(&quota->space->blocks)))
			quota_list(store, quota);
	}
}

void ucm_quota_enlist(struct ucm_space *space, ucm_ref ref)
{
	struct ucm_quota *quota = atomic_load(&space->quota);

	if (quota)
		ucm_members_add(&quota->victims.members, ucm_ref_place(ref));
}

/* ---- which there are ---- */

uint64_t ucm_quota_of(const struct ucm_config *config,
		      const struct ucm_space *space)
{
	uint64_t own = atomic_load(&space->own_quota);

	/* blocks/ is everybody's, and has the limits of the tiers */
	return own || !space->number ? own : config->space_quota;
}

static struct ucm_quota *quota_new(struct ucm_space *space)
{
	struct ucm_quota *quota = calloc(1, sizeof(*quota));

	if (!quota)
		return NULL;
	quota->space = space;
	ucm_victims_init(&quota->victims, (uint64_t)ucm_monotonic_ms() +
						  space->number);
	pthread_mutex_init(&quota->lock, NULL);
	return quota;
}

static void quota_free(struct ucm_quota *quota)
{
	pthread_mutex_destroy(&quota->lock);
	ucm_victims_fini(&quota->victims);
	free(quota);
}

static void quota_publish(struct ucm_store *store, struct ucm_quota *quota)
{
	quota->next = atomic_load(&store->quotas);
	while (!atomic_compare_exchange_weak(&store->quotas, &quota->next,
					     quota))
		;
}

/* The space's; made if it has none. NULL: no memory. */
static struct ucm_quota *quota_make(struct ucm_store *store,
				    struct ucm_space *space)
{
	struct ucm_quota *there = atomic_load(&space->quota);
	struct ucm_quota *quota = there ? NULL : quota_new(space);

	if (there || !quota)
		return there;
	if (!atomic_compare_exchange_strong(&space->quota, &there, quota)) {
		quota_free(quota); /* another was faster */
		return there;
	}
	quota_publish(store, quota);
	/* blocks that come from now on are put on the list by whoever adds them */
	quota_list(store, quota);
	return quota;
}

int ucm_quota_apply(struct ucm_store *store, struct ucm_space *space,
		    uint64_t bytes)
{
	struct ucm_quota *quota = atomic_load(&space->quota);

	atomic_store(&space->own_quota, bytes);
	bytes = ucm_quota_of(store->config, space);
	if (bytes && !quota)
		quota = quota_make(store, space);
	if (quota) {
		atomic_store(&quota->bytes, bytes);
		ucm_jobs_wake(store->jobs);
	}
	return bytes && !quota ? -ENOMEM : 0;
}

void ucm_quotas_free(struct ucm_store *store)
{
	struct ucm_quota *quota = atomic_load(&store->quotas), *next;

	for (; quota; quota = next) {
		next = quota->next;
		quota_free(quota);
	}
}

/* ---- promises ---- */

uint64_t ucm_quota_taken(const struct ucm_space *space)
{
	return atomic_load(&space->used) + atomic_load(&space->writing);
}

uint64_t ucm_quota_headroom(const struct ucm_config *config,
			    const struct ucm_space *space)
{
	const struct ucm_quota *quota = atomic_load(&space->quota);
	uint64_t bytes = quota ? atomic_load(&quota->bytes) : 0;

	if (!bytes)
		return UINT64_MAX;
	return ucm_pressure_within(bytes, ucm_quota_taken(space),
				   atomic_load(&quota->evicted) ? config->low
								: config->high);
}

uint64_t ucm_quota_try(struct ucm_space *space, uint64_t bytes,
		       struct ucm_allowance *part)
{
	struct ucm_quota *quota = atomic_load(&space->quota);
	uint64_t limit, taken, lack = 0;

	if (part->space != space) /* it was made in another one */
		ucm_quota_end_promise(part);
	if (!quota || bytes <= part->bytes)
		return 0;
	pthread_mutex_lock(&quota->lock);
	limit = atomic_load(&quota->bytes);
	taken = ucm_quota_taken(space) + bytes - part->bytes;
	if (limit && taken > limit) {
		lack = taken - limit;
	} else if (limit) {
		atomic_fetch_add(&space->writing, bytes - part->bytes);
		*part = (struct ucm_allowance){ .space = space, .bytes = bytes };
	}
	pthread_mutex_unlock(&quota->lock);
	return lack;
}

void ucm_quota_end_promise(struct ucm_allowance *part)
{
	if (part->space)
		atomic_fetch_sub(&part->space->writing, part->bytes);
	*part = (struct ucm_allowance){ .space = NULL };
}
