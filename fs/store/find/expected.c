/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expected.c - a table of references and times, by open addressing.
 *
 * Nothing is taken out: what has expired disappears when the table is rebuilt, which
 * happens when it is two thirds full. When it has as many as it may have, that is
 * tried once a second.
 */
#include <config.h>

#include "fs/store/find/expected.h"

#include <stdlib.h>

#include <ucm/control.h>

#define FIRST_ROOM 256
#define CLEAR_EVERY_MS 1000

void ucm_expected_init(struct ucm_expected *expected)
{
	*expected = (struct ucm_expected){ .lock = PTHREAD_MUTEX_INITIALIZER };
}

void ucm_expected_fini(struct ucm_expected *expected)
{
	free(expected->slots);
	pthread_mutex_destroy(&expected->lock);
}

/* The block's slot, or the free one where it would be. */
static struct ucm_expectation *slot_of(struct ucm_expectation *slots,
				       size_t room, ucm_ref ref)
{
	size_t at = ref * UINT64_C(0x9e3779b97f4a7c15) >> 32 & (room - 1);

	while (slots[at].ref && slots[at].ref != ref)
		at = (at + 1) & (room - 1);
	return &slots[at];
}

static bool is_awaited(const struct ucm_expectation *slot, int64_t now_ms)
{
	return slot->until_ms > now_ms || slot->kept_ms > now_ms;
}

static size_t count_left(const struct ucm_expected *expected, int64_t now_ms)
{
	size_t left = 0;

	for (size_t i = 0; i < expected->room; i++)
		left += expected->slots[i].ref &&
			is_awaited(&expected->slots[i], now_ms);
	return left;
}

/* Without what has expired, half full at most. No memory: the old one stays. */
static void rebuild(struct ucm_expected *expected, int64_t now_ms)
{
	size_t room = FIRST_ROOM, left = count_left(expected, now_ms);
	struct ucm_expectation *slots;

	while (room < 2 * left)
		room *= 2;
	slots = calloc(room, sizeof(*slots));
	expected->cleared_ms = now_ms;
	if (!slots)
		return;
	for (size_t i = 0; i < expected->room; i++) {
		const struct ucm_expectation *old = &expected->slots[i];

		if (old->ref && is_awaited(old, now_ms))
			*slot_of(slots, room, old->ref) = *old;
	}
	free(expected->slots);
	expected->slots = slots;
	expected->room = room;
	atomic_store_explicit(&expected->used, left, memory_order_relaxed);
}

static bool is_full(const struct ucm_expected *expected)
{
	return expected->used >= UCM_EXPECTED_MOST ||
	       3 * (expected->used + 1) > 2 * expected->room;
}

/* Is there room for one more? */
static bool make_room(struct ucm_expected *expected, int64_t now_ms)
{
	bool has_most = expected->used >= UCM_EXPECTED_MOST;

	if (is_full(expected) &&
	    (!has_most || now_ms - expected->cleared_ms >= CLEAR_EVERY_MS))
		rebuild(expected, now_ms);
	return !is_full(expected);
}

/* Under the lock. NULL: it is not there. */
static struct ucm_expectation *find(const struct ucm_expected *expected,
				    ucm_ref ref)
{
	struct ucm_expectation *slot =
		expected->room ? slot_of(expected->slots, expected->room, ref)
			       : NULL;

	return slot && slot->ref ? slot : NULL;
}

/* The block's, made if it has none; NULL: no room. */
static struct ucm_expectation *add(struct ucm_expected *expected, ucm_ref ref,
				   int64_t now_ms)
{
	struct ucm_expectation *slot = find(expected, ref);

	if (slot || !make_room(expected, now_ms))
		return slot;
	slot = slot_of(expected->slots, expected->room, ref);
	*slot = (struct ucm_expectation){ .ref = ref };
	atomic_fetch_add_explicit(&expected->used, 1, memory_order_relaxed);
	return slot;
}

bool ucm_expected_add(struct ucm_expected *expected, ucm_ref ref, int64_t now_ms)
{
	struct ucm_expectation *slot;
	bool was_expected;

	pthread_mutex_lock(&expected->lock);
	slot = add(expected, ref, now_ms);
	was_expected = slot && slot->until_ms > now_ms;
	if (slot)
		slot->until_ms = now_ms + UCM_EXPECTED_MS;
	pthread_mutex_unlock(&expected->lock);
	return was_expected;
}

void ucm_expected_keep(struct ucm_expected *expected, ucm_ref ref,
		       uint32_t for_ms, int64_t now_ms)
{
	struct ucm_expectation *slot;

	pthread_mutex_lock(&expected->lock);
	slot = for_ms && expected->used < UCM_EXPECTED_MOST / 2
		       ? add(expected, ref, now_ms)
		       : find(expected, ref);
	if (slot && (!for_ms || slot->kept_ms < now_ms + for_ms))
		slot->kept_ms = now_ms + for_ms;
	pthread_mutex_unlock(&expected->lock);
}

bool ucm_expected_has(struct ucm_expected *expected, ucm_ref ref,
		      int64_t now_ms)
{
	const struct ucm_expectation *slot;
	bool found;

	if (!ucm_expected_any(expected))
		return false;
	pthread_mutex_lock(&expected->lock);
	slot = find(expected, ref);
	found = slot && is_awaited(slot, now_ms);
	pthread_mutex_unlock(&expected->lock);
	return found;
}
