/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease.c - a table of references and times, by open addressing.
 *
 * Nothing is taken out: what has run out goes when the table is made anew,
 * which happens when it is two thirds full.
 */
#include <config.h>

#include "fs/lease.h"

#include <errno.h>
#include <stdlib.h>

#include "common/clock.h"

#define FIRST_ROOM 256

void ucm_leases_init(struct ucm_leases *leases)
{
	*leases = (struct ucm_leases){ .lock = PTHREAD_MUTEX_INITIALIZER };
}

void ucm_leases_fini(struct ucm_leases *leases)
{
	free(leases->slots);
	pthread_mutex_destroy(&leases->lock);
}

/* The reference's slot, or the free one where it would be. */
static struct ucm_lease *slot_of(struct ucm_lease *slots, size_t room,
				 ucm_ref ref)
{
	size_t at = (ref * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (room - 1);

	while (slots[at].ref && slots[at].ref != ref)
		at = (at + 1) & (room - 1);
	return &slots[at];
}

static size_t count_live(const struct ucm_leases *leases, int64_t now_ms)
{
	size_t live = 0;

	for (size_t i = 0; i < leases->room; i++)
		live += leases->slots[i].ref &&
			leases->slots[i].until_ms > now_ms;
	return live;
}

/* A table with room for one more, without what has run out. */
static int make_room(struct ucm_leases *leases)
{
	int64_t now_ms = ucm_monotonic_ms();
	size_t room = FIRST_ROOM, live = count_live(leases, now_ms);
	struct ucm_lease *slots;

	while (room < 3 * (live + 1))
		room *= 2;
	slots = calloc(room, sizeof(*slots));
	if (!slots)
		return -ENOMEM;
	for (size_t i = 0; i < leases->room; i++) {
		const struct ucm_lease *old = &leases->slots[i];

		if (old->ref && old->until_ms > now_ms)
			*slot_of(slots, room, old->ref) = *old;
	}
	free(leases->slots);
	leases->slots = slots;
	leases->room = room;
	leases->used = live;
	return 0;
}

int ucm_lease_take(struct ucm_leases *leases, ucm_ref ref, int64_t until_ms)
{
	struct ucm_lease *slot;
	int err = 0;

	pthread_mutex_lock(&leases->lock);
	if (3 * (leases->used + 1) > 2 * leases->room)
		err = make_room(leases);
	if (!err) {
		slot = slot_of(leases->slots, leases->room, ref);
		leases->used += !slot->ref;
		slot->ref = ref;
		if (slot->until_ms < until_ms)
			slot->until_ms = until_ms;
	}
	pthread_mutex_unlock(&leases->lock);
	return err;
}

bool ucm_lease_held(struct ucm_leases *leases, ucm_ref ref, int64_t now_ms)
{
	bool held = false;

	pthread_mutex_lock(&leases->lock);
	if (leases->room)
		held = slot_of(leases->slots, leases->room, ref)->until_ms >
		       now_ms;
	pthread_mutex_unlock(&leases->lock);
	return held;
}
