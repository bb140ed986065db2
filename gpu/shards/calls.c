/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calls.c - calls of the store interface: their handles, from the first to the wait.
 *
 * A handle is a slot's number and generation: one whose end has been reported
 * never means another call, short of 2^32 calls in one slot.
 */
#include <config.h>

#include "gpu/shards/call.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/clock.h"

/* ---- slots ---- */

static int grow(struct ucm_shards *store)
{
	uint32_t num = store->num_slots ? 2 * store->num_slots : 64;
	struct ucm_shards_slot *more =
		reallocarray(store->slots, num, sizeof(*more));

	if (!more)
		return -ENOMEM;
	for (uint32_t i = store->num_slots; i < num; i++)
		more[i] = (struct ucm_shards_slot){ .generation = 1,
						    .next_free = i + 1 };
	store->slots = more;
	store->first_free = store->num_slots;
	store->num_slots = num;
	return 0;
}

static int take_slot(struct ucm_shards *store, uint32_t *out)
{
	int err = 0;

	pthread_mutex_lock(&store->lock);
	if (store->first_free == store->num_slots)
		err = grow(store);
	if (!err) {
		*out = store->first_free;
		store->first_free = store->slots[*out].next_free;
	}
	pthread_mutex_unlock(&store->lock);
	return err;
}

/* With the lock. */
static void give_slot(struct ucm_shards *store, uint32_t number)
{
	struct ucm_shards_slot *slot = &store->slots[number];

	slot->call = NULL;
	slot->generation = slot->generation + 1 ?: 1;
	slot->next_free = store->first_free;
	store->first_free = number;
}

/* With the lock; NULL: no such call. */
static struct ucm_shards_call *find(struct ucm_shards *store, uint64_t handle)
{
	uint32_t number = (uint32_t)handle;

	if (number >= store->num_slots ||
	    store->slots[number].generation != handle >> 32)
		return NULL;
	return store->slots[number].call;
}

/* ---- making one ---- */

static void free_round(struct ucm_shards_round *round)
{
	for (size_t i = 0; i < round->num_parts; i++) {
		/* it may still be on its way out of on_done */
		if (round->parts[i].task)
			ucm_task_wait(round->parts[i].task, -1);
		ucm_task_free(round->parts[i].task);
	}
	free(round->runs);
	free(round->parts);
	free(round);
}

struct ucm_shards_round *ucm_shards_round_new(size_t num)
{
	struct ucm_shards_round *round = calloc(1, sizeof(*round));

	if (!round)
		return NULL;
	round->runs = calloc(num, sizeof(*round->runs));
	round->parts = calloc(num, sizeof(*round->parts));
	if (round->runs && round->parts)
		return round;
	free_round(round);
	return NULL;
}

static void release(struct ucm_shards_call *call)
{
	while (call->rounds) {
		struct ucm_shards_round *round = call->rounds;

		call->rounds = round->next;
		free_round(round);
	}
	pthread_cond_destroy(&call->cond);
	free(call->outcomes);
	free(call->entries);
	free(call);
}

int ucm_shards_call_new(struct ucm_shards *store, enum ucm_shards_kind kind,
			size_t num, struct ucm_shards_call **out)
{
	struct ucm_shards_call *call = calloc(1, sizeof(*call));
	size_t room = num ? num : 1;
	int err = -ENOMEM;

	if (!call)
		return err;
	ucm_cond_init_monotonic(&call->cond);
	call->store = store;
	call->kind = kind;
	call->num = num;
	call->outcomes = calloc(room, sizeof(*call->outcomes));
	call->entries = calloc(room, sizeof(*call->entries));
	call->rounds = ucm_shards_round_new(room);
	if (call->outcomes && call->entries && call->rounds)
		err = take_slot(store, &call->slot);
	if (err) {
		release(call);
		return err;
	}
	for (size_t i = 0; i < num; i++) {
		call->outcomes[i].err = -EINPROGRESS;
		call->entries[i].index = i;
	}
	*out = call;
	return 0;
}

void ucm_shards_call_free(struct ucm_shards_call *call)
{
	struct ucm_shards *store = call->store;

	pthread_mutex_lock(&store->lock);
	give_slot(store, call->slot);
	pthread_mutex_unlock(&store->lock);
	release(call);
}

void ucm_shards_call_notify(const struct ucm_shards_call *call)
{
	uint64_t one = 1;
	ssize_t told = 0;

	/* an eventfd only refuses when its counter is full: it is readable */
	if (call->eventfd > 0 && !call->left)
		told = write(call->eventfd, &one, sizeof(one));
	(void)told;
}

/* ---- the end ---- */

/* With the lock. */
static int wait_for(struct ucm_shards_call *call, int timeout_ms)
{
	const struct timespec until = ucm_monotonic_in_ms(timeout_ms);
	int err = 0;

	while (call->left && !err)
		err = ucm_cond_wait(&call->cond, &call->store->lock, timeout_ms,
				    &until);
	return call->left ? -ETIMEDOUT : 0;
}

/* With the lock. 0, or -EIO: some entry failed. */
static int tell(const struct ucm_shards_call *call,
		struct ucm_outcome *outcomes)
{
	int err = 0;

	for (size_t i = 0; i < call->num; i++) {
		if (outcomes)
			outcomes[i] = call->outcomes[i];
		if (call->outcomes[i].err)
			err = -EIO;
	}
	return err;
}

/* With the lock. */
static int look_up(struct ucm_shards *store, uint64_t handle,
		   const struct ucm_outcome *outcomes, size_t num,
		   struct ucm_shards_call **out)
{
	*out = find(store, handle);
	if (!*out)
		return -ENOENT;
	return outcomes && num != (*out)->num ? -EINVAL : 0;
}

int ucm_shards_wait(struct ucm_shards *store, uint64_t handle, int timeout_ms,
		    struct ucm_outcome *outcomes, size_t num)
{
	struct ucm_shards_call *call;
	bool last = false;
	int err;

	pthread_mutex_lock(&store->lock);
	err = look_up(store, handle, outcomes, num, &call);
	if (!err) {
		call->users++;
		err = wait_for(call, timeout_ms);
		call->users--;
		if (!err) {
			err = tell(call, outcomes);
			if (!call->told)
				give_slot(store, call->slot);
			call->told = true;
		}
		last = call->told && !call->users;
	}
	pthread_mutex_unlock(&store->lock);
	if (last)
		release(call);
	return err;
}

int ucm_shards_check(struct ucm_shards *store, uint64_t handle,
		     struct ucm_outcome *outcomes, size_t num)
{
	struct ucm_shards_call *call;
	int err;

	pthread_mutex_lock(&store->lock);
	err = look_up(store, handle, outcomes, num, &call);
	if (!err) {
		tell(call, outcomes);
		err = !call->left;
	}
	pthread_mutex_unlock(&store->lock);
	return err;
}

int ucm_shards_notify(struct ucm_shards *store, uint64_t handle, int eventfd)
{
	struct ucm_shards_call *call;

	pthread_mutex_lock(&store->lock);
	call = find(store, handle);
	if (call) {
		call->eventfd = eventfd;
		ucm_shards_call_notify(call);
	}
	pthread_mutex_unlock(&store->lock);
	return call ? 0 : -ENOENT;
}

/* With the lock. */
static void cancel(struct ucm_shards_call *call)
{
	call->cancelled = true;
	for (struct ucm_shards_round *round = call->rounds; round; round = round->next) {
		for (size_t i = 0; i < round->num_parts; i++) {
			if (round->parts[i].task)
				ucm_task_cancel(round->parts[i].task);
		}
	}
}

int ucm_shards_cancel(struct ucm_shards *store, uint64_t handle)
{
	struct ucm_shards_call *call;

	pthread_mutex_lock(&store->lock);
	call = find(store, handle);
	if (call)
		cancel(call);
	pthread_mutex_unlock(&store->lock);
	return call ? 0 : -ENOENT;
}

void ucm_shards_end_calls(struct ucm_shards *store)
{
	pthread_mutex_lock(&store->lock);
	for (uint32_t i = 0; i < store->num_slots; i++) {
		if (store->slots[i].call)
			cancel(store->slots[i].call);
	}
	for (uint32_t i = 0; i < store->num_slots; i++) {
		struct ucm_shards_call *call = store->slots[i].call;

		if (!call)
			continue;
		wait_for(call, -1);
		pthread_mutex_unlock(&store->lock);
		release(call);
		pthread_mutex_lock(&store->lock);
	}
	pthread_mutex_unlock(&store->lock);
	free(store->slots);
}
