/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease.c - a table of references, users and times, by open addressing.
 *
 * The leases of one block are in one chain. Nothing is taken out: what is over
 * disappears when the table is made anew, which happens when it is two thirds
 * full or a user seems to have too many. A lease is over, and forgotten, when
 * its block has been left for a tenth of the time that it was held.
 */
#include <config.h>

#include "fs/store/lease.h"

#include <errno.h>
#include <stdlib.h>

#define FIRST_ROOM 256
#define CLEAR_EVERY_MS 1000 /* for a user who asks for more than is left */

void ucm_leases_init(struct ucm_leases *leases, unsigned most, unsigned age_s)
{
	*leases = (struct ucm_leases){ .most = most,
				       .age_ms = (int64_t)age_s * 1000,
				       .lock = PTHREAD_MUTEX_INITIALIZER };
}

void ucm_leases_fini(struct ucm_leases *leases)
{
	free(leases->slots);
	free(leases->users);
	pthread_mutex_destroy(&leases->lock);
}

static size_t first_slot(size_t room, ucm_ref ref)
{
	return (ref * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (room - 1);
}

/* The lease's slot, or the free one where it would be. */
static struct ucm_lease *slot_of(struct ucm_lease *slots, size_t room,
				 ucm_ref ref, uint32_t uid)
{
	size_t at = first_slot(room, ref);

	while (slots[at].ref &&
	       (slots[at].ref != ref || slots[at].uid != uid))
		at = (at + 1) & (room - 1);
	return &slots[at];
}

static bool is_over(const struct ucm_lease *lease, int64_t now_ms)
{
	int64_t held_ms = lease->until_ms - lease->since_ms;

	return !lease->ref || lease->until_ms + held_ms / 10 <= now_ms;
}

/* NULL: no memory. */
static struct ucm_lease_user *user_of(struct ucm_leases *leases, uint32_t uid)
{
	struct ucm_lease_user *users;

	for (size_t i = 0; i < leases->num_users; i++) {
		if (leases->users[i].uid == uid)
			return &leases->users[i];
	}
	users = realloc(leases->users,
			(leases->num_users + 1) * sizeof(*users));
	if (!users)
		return NULL;
	leases->users = users;
	users[leases->num_users] = (struct ucm_lease_user){ .uid = uid };
	return &users[leases->num_users++];
}

static void count_users(struct ucm_leases *leases)
{
	for (size_t i = 0; i < leases->num_users; i++)
		leases->users[i].num = 0;
	for (size_t i = 0; i < leases->room; i++) {
		if (leases->slots[i].takes)
			user_of(leases, leases->slots[i].uid)->num++;
	}
}

static size_t count_left(const struct ucm_leases *leases, int64_t now_ms)
{
	size_t left = 0;

	for (size_t i = 0; i < leases->room; i++)
		left += !is_over(&leases->slots[i], now_ms);
	return left;
}

/* A table with room for one more, without what is over. */
static int make_anew(struct ucm_leases *leases, int64_t now_ms)
{
	size_t room = FIRST_ROOM, left = count_left(leases, now_ms);
	struct ucm_lease *slots;

	while (room < 3 * (left + 1))
		room *= 2;
	slots = calloc(room, sizeof(*slots));
	if (!slots)
		return -ENOMEM;
	for (size_t i = 0; i < leases->room; i++) {
		struct ucm_lease *old = &leases->slots[i];

		if (old->until_ms <= now_ms)
			old->takes = 0;
		if (!is_over(old, now_ms))
			*slot_of(slots, room, old->ref, old->uid) = *old;
	}
	free(leases->slots);
	leases->slots = slots;
	leases->room = room;
	leases->used = left;
	leases->cleared_ms = now_ms;
	count_users(leases);
	return 0;
}

static int admit(struct ucm_leases *leases, uint32_t uid, int64_t now_ms)
{
	struct ucm_lease_user *user = user_of(leases, uid);
	int err;

	if (!user)
		return -ENOMEM;
	if (user->num >= leases->most &&
	    now_ms - leases->cleared_ms >= CLEAR_EVERY_MS) {
		err = make_anew(leases, now_ms);
		if (err)
			return err;
	}
	return user->num < leases->most ? 0 : -EDQUOT;
}

/* He has it for so long. Those who let it run out have nothing to give back. */
static int give(struct ucm_leases *leases, struct ucm_lease *lease,
		int64_t now_ms, int64_t until_ms, bool renew)
{
	bool counted = lease->takes;

	if (is_over(lease, now_ms))
		lease->since_ms = lease->until_ms = now_ms;
	if (until_ms > lease->since_ms + leases->age_ms)
		return -EDQUOT;
	if (lease->until_ms <= now_ms)
		lease->takes = 0;
	if (!renew || !lease->takes)
		lease->takes++;
	if (!counted)
		user_of(leases, lease->uid)->num++;
	if (lease->until_ms < until_ms)
		lease->until_ms = until_ms;
	return 0;
}

static int take(struct ucm_leases *leases, ucm_ref ref, uint32_t uid,
		int64_t now_ms, int64_t until_ms, bool renew)
{
	struct ucm_lease *lease;
	int err = 0;

	if (3 * (leases->used + 1) > 2 * leases->room)
		err = make_anew(leases, now_ms);
	if (err)
		return err;
	lease = slot_of(leases->slots, leases->room, ref, uid);
	if (!lease->takes) {
		err = admit(leases, uid, now_ms);
		if (err)
			return err;
		/* there may be another table now */
		lease = slot_of(leases->slots, leases->room, ref, uid);
	}
	if (!lease->ref) {
		*lease = (struct ucm_lease){ .ref = ref, .uid = uid };
		leases->used++;
	}
	return give(leases, lease, now_ms, until_ms, renew);
}

int ucm_lease_take(struct ucm_leases *leases, ucm_ref ref, uint32_t uid,
		   int64_t now_ms, int64_t lease_ms, bool renew)
{
	int err;

	pthread_mutex_lock(&leases->lock);
	err = take(leases, ref, uid, now_ms, now_ms + lease_ms, renew);
	pthread_mutex_unlock(&leases->lock);
	return err;
}

void ucm_lease_release(struct ucm_leases *leases, ucm_ref ref, uint32_t uid,
		       int64_t now_ms)
{
	struct ucm_lease *lease;

	pthread_mutex_lock(&leases->lock);
	if (leases->room) {
		lease = slot_of(leases->slots, leases->room, ref, uid);
		if (lease->takes && lease->until_ms > now_ms &&
		    !--lease->takes) {
			lease->until_ms = now_ms;
			user_of(leases, uid)->num--;
		}
	}
	pthread_mutex_unlock(&leases->lock);
}

/* Under the lock, of a table that has room. */
static unsigned ask(const struct ucm_leases *leases, ucm_ref ref,
		    int64_t now_ms, int64_t *left_ms)
{
	size_t at = first_slot(leases->room, ref);
	unsigned num = 0;

	for (; leases->slots[at].ref; at = (at + 1) & (leases->room - 1)) {
		const struct ucm_lease *lease = &leases->slots[at];

		if (lease->ref != ref || lease->until_ms <= now_ms)
			continue;
		num++;
		if (*left_ms < lease->until_ms - now_ms)
			*left_ms = lease->until_ms - now_ms;
	}
	return num;
}

unsigned ucm_lease_ask(struct ucm_leases *leases, ucm_ref ref, int64_t now_ms,
		       int64_t *left_ms_out)
{
	unsigned num = 0;

	*left_ms_out = 0;
	pthread_mutex_lock(&leases->lock);
	if (leases->room)
		num = ask(leases, ref, now_ms, left_ms_out);
	pthread_mutex_unlock(&leases->lock);
	return num;
}

uint64_t ucm_leases_count(struct ucm_leases *leases, int64_t now_ms)
{
	uint64_t num = 0;

	pthread_mutex_lock(&leases->lock);
	for (size_t i = 0; i < leases->room; i++)
		num += leases->slots[i].ref &&
		       leases->slots[i].until_ms > now_ms;
	pthread_mutex_unlock(&leases->lock);
	return num;
}
