/* SPDX-License-Identifier: Apache-2.0 */
/*
 * endurance.c - what may be written to a tier; see endurance.h.
 *
 * What is owed is not kept over a restart: at most an hour's budget is forgiven
 * each time.
 */
#include <config.h>

#include "fs/store/endurance.h"

#include <errno.h>
#include <stdlib.h>

#include "common/log.h"
#include "fs/store/store.h"

#define SPENT 1.0 /* hours of budget that are owed */
#define SPARE 0.5

static struct ucm_endurance *endurance_of(const struct ucm_store *store,
					  const struct ucm_tier *tier)
{
	return &store->endurance[tier - store->dirs.tiers];
}

int ucm_endurance_open(struct ucm_store *store)
{
	store->endurance =
		calloc(store->dirs.num_tiers, sizeof(*store->endurance));
	if (!store->endurance)
		return -ENOMEM;
	for (unsigned i = 0; i < store->dirs.num_tiers; i++) {
		struct ucm_endurance *endurance = &store->endurance[i];

		pthread_mutex_init(&endurance->lock, NULL);
		ucm_admission_init(&endurance->admission, 0,
				   store->config->tiers[i].endurance);
		/* what is there has been written before */
		endurance->files = UINT64_MAX;
	}
	return 0;
}

void ucm_endurance_close(struct ucm_store *store)
{
	for (unsigned i = 0; store->endurance && i < store->dirs.num_tiers; i++)
		pthread_mutex_destroy(&store->endurance[i].lock);
	free(store->endurance);
	store->endurance = NULL;
}

/* With the lock. Told once each time: to be told again half of it has to be paid
 * first, which takes half an hour. */
static double endurance_look(struct ucm_endurance *endurance,
			     const struct ucm_tier *tier)
{
	double owed =
		ucm_admission_owed(&endurance->admission, ucm_value_now());

	if (owed >= SPENT && !endurance->spent) {
		endurance->spent = true;
		ucm_warning("tier %s: %llu bytes a day are used up for now: it "
			    "is written to only by what cannot be left out",
			    tier->name,
			    (unsigned long long)
				    endurance->admission.bytes_per_day);
	} else if (owed <= SPARE && endurance->spent) {
		endurance->spent = false;
		ucm_info("tier %s: it has bytes to spare again", tier->name);
	}
	return owed;
}

void ucm_endurance_wrote(struct ucm_store *store, const struct ucm_tier *tier,
			 uint64_t bytes)
{
	struct ucm_endurance *endurance = endurance_of(store, tier);

	pthread_mutex_lock(&endurance->lock);
	ucm_admission_wrote(&endurance->admission, ucm_value_now(), bytes);
	endurance_look(endurance, tier);
	pthread_mutex_unlock(&endurance->lock);
}

void ucm_endurance_count_files(struct ucm_store *store)
{
	for (unsigned i = 0; i < store->dirs.num_tiers; i++) {
		const struct ucm_tier *tier = &store->dirs.tiers[i];
		struct ucm_endurance *endurance = endurance_of(store, tier);
		uint64_t files = ucm_tier_files(tier), more = 0;

		pthread_mutex_lock(&endurance->lock);
		if (files > endurance->files)
			more = files - endurance->files;
		endurance->files = files;
		pthread_mutex_unlock(&endurance->lock);
		if (more)
			ucm_endurance_wrote(store, tier, more);
	}
}

void ucm_endurance_evicted(struct ucm_store *store,
			   const struct ucm_tier *tier,
			   const struct ucm_entry *entry)
{
	struct ucm_endurance *endurance = endurance_of(store, tier);
	uint32_t now = ucm_value_now();

	atomic_store(&endurance->evicted, true);
	if (!entry->atime_s)
		return; /* it had ended, which says nothing of the others */
	pthread_mutex_lock(&endurance->lock);
	ucm_admission_evicted(&endurance->admission,
			      now > entry->atime_s ? now - entry->atime_s : 0);
	pthread_mutex_unlock(&endurance->lock);
}

bool ucm_endurance_admits(struct ucm_store *store, const struct ucm_tier *tier,
			  const struct ucm_policy_state *state,
			  const double *victim_worth)
{
	struct ucm_endurance *endurance = endurance_of(store, tier);
	bool admits;

	if (!store->value.policy)
		return true;
	pthread_mutex_lock(&endurance->lock);
	admits = ucm_admission_admits(&endurance->admission,
				      store->value.policy, ucm_value_now(),
				      state, victim_worth);
	pthread_mutex_unlock(&endurance->lock);
	return admits;
}

double ucm_endurance_owed(struct ucm_store *store, const struct ucm_tier *tier)
{
	struct ucm_endurance *endurance = endurance_of(store, tier);
	double owed;

	pthread_mutex_lock(&endurance->lock);
	owed = endurance_look(endurance, tier);
	pthread_mutex_unlock(&endurance->lock);
	return owed;
}

bool ucm_endurance_is_spent(struct ucm_store *store,
			    const struct ucm_tier *tier)
{
	ucm_endurance_owed(store, tier);
	return atomic_load(&endurance_of(store, tier)->spent);
}

bool ucm_endurance_has_evicted(const struct ucm_store *store,
			       const struct ucm_tier *tier)
{
	return atomic_load(&endurance_of(store, tier)->evicted);
}
