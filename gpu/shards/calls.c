/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calls.c - calls of the store interface, from submit to wait.
 *
 * Entries that want neighbouring layers of one block become a run (join.c),
 * which is moved as a whole. A task of the loader moves the same layers of all
 * its blocks; so runs of the same layers become a task (a part). A call is done
 * when all its parts are.
 *
 * An entry fares as its run does. But where a run of a load fails for a cause
 * that may lie in one of its entries alone, these are loaded once more, each by
 * itself: that is a round of its own. The part is not done before that has been
 * submitted, so that the call is not, either.
 *
 * A handle is a slot's number and generation: one whose end has been reported
 * never means another call, short of 2^32 calls in one slot.
 *
 * A part's end is reported in a thread of the loader, which takes the lock; so
 * nothing that waits for the loader is called with it.
 */
#include <config.h>

#include "gpu/shards/shards.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"

struct part {
	struct ucm_shards_call *call;
	struct ucm_task *task; /* NULL: not submitted */
	const struct ucm_shards_run *runs;
	size_t num;
};

/* Parts that are submitted together. */
struct round {
	struct round *next;
	struct ucm_shards_run *runs;
	struct part *parts;
	size_t num_parts;
};

struct ucm_shards_call {
	struct ucm_shards *store;
	enum ucm_shards_kind kind;
	size_t num;
	struct ucm_outcome *outcomes;
	struct ucm_shards_entry
		*entries; /* that are not decided, once sorted */
	struct round *rounds; /* the latest first */
	size_t left; /* parts that are not done */
	int64_t deadline_ns; /* 0: none */
	bool cancelled;
	pthread_cond_t cond;
	unsigned users; /* threads that wait */
	bool told;      /* its slot is free */
	int eventfd;    /* 0: none */
	uint32_t slot;
};

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

static void free_round(struct round *round)
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

/* With room for so many runs. */
static struct round *new_round(size_t num)
{
	struct round *round = calloc(1, sizeof(*round));

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
		struct round *round = call->rounds;

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
	call->rounds = new_round(room);
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

struct ucm_shards_entry *ucm_shards_call_entries(struct ucm_shards_call *call)
{
	return call->entries;
}

void ucm_shards_call_decide(struct ucm_shards_call *call, size_t i,
			    const struct ucm_outcome *outcome)
{
	call->outcomes[i] = *outcome;
}

/* ---- parts ---- */

/* Runs are sorted by their layers. */
static void make_parts(struct ucm_shards_call *call, struct round *round,
		       size_t num)
{
	const struct ucm_shards_run *runs = round->runs;
	struct part *part = round->parts;

	for (size_t i = 0; i < num; i++) {
		if (!i || runs[i].first_layer != runs[i - 1].first_layer ||
		    runs[i].num_layers != runs[i - 1].num_layers)
			*part++ = (struct part){ .call = call,
						 .runs = &runs[i] };
		part[-1].num++;
	}
	round->num_parts = (size_t)(part - round->parts);
}

/* ---- entries by themselves ---- */

/* Has this run failed for what may be wrong with some of its layers alone? */
static bool is_apart(const struct part *part, size_t run,
		     const struct ucm_outcome *outcome)
{
	const struct ucm_shards_run *of = &part->runs[run];

	if (part->call->kind != UCM_SHARDS_LOAD ||
	    of->num_layers == of->first->num_layers)
		return false;
	return outcome->err == -EIO ||
	       (outcome->err == -EBADMSG &&
		(outcome->fault == UCM_FAULT_PLANE ||
		 outcome->fault == UCM_FAULT_SHORT));
}

static size_t count_apart(const struct part *part,
			  const struct ucm_outcome *outcomes)
{
	size_t num = 0;

	for (size_t i = 0; i < part->num; i++) {
		const struct ucm_shards_entry *entry = part->runs[i].first;

		for (; entry && is_apart(part, i, &outcomes[i]);
		     entry = entry->next)
			num++;
	}
	return num;
}

/* A round of the entries whose runs have failed so; NULL: there are none, or no
 * memory: then they have failed. They count as left when this returns. */
static struct round *take_apart(const struct part *part,
				const struct ucm_outcome *outcomes)
{
	struct ucm_shards_call *call = part->call;
	size_t most = count_apart(part, outcomes), num = 0;
	struct round *round = most ? new_round(most) : NULL;

	if (!round)
		return NULL;
	for (size_t i = 0; i < part->num; i++) {
		struct ucm_shards_entry *entry = part->runs[i].first, *next;

		for (; entry && is_apart(part, i, &outcomes[i]);
		     entry = next) {
			next = entry->next;
			round->runs[num++] = ucm_shards_run_of(entry);
		}
	}
	ucm_shards_sort_runs(round->runs, num);
	make_parts(call, round, num);
	pthread_mutex_lock(&call->store->lock);
	round->next = call->rounds;
	call->rounds = round;
	call->left += round->num_parts;
	pthread_mutex_unlock(&call->store->lock);
	return round;
}

/* ---- carrying it out ---- */

/* With the lock, which everybody takes who sees that the call is done
 * and may then close the eventfd. */
static void notify(const struct ucm_shards_call *call)
{
	uint64_t one = 1;
	ssize_t told = 0;

	/* an eventfd only refuses when its counter is full: it is readable */
	if (call->eventfd > 0 && !call->left)
		told = write(call->eventfd, &one, sizeof(one));
	(void)told;
}

/* With the lock. */
static void entry_done(struct ucm_shards_call *call,
		       const struct ucm_shards_entry *entry,
		       const struct ucm_outcome *outcome)
{
	call->outcomes[entry->index] = *outcome;
	if (call->kind == UCM_SHARDS_COMMIT)
		ucm_shards_committed(call->store, &entry->id, outcome);
	else if (call->kind != UCM_SHARDS_LOAD)
		ucm_shards_dumped(call->store, &entry->id, outcome);
}

/* With the lock. */
static void run_done(struct ucm_shards_call *call,
		     const struct ucm_shards_run *run,
		     const struct ucm_outcome *outcome)
{
	const struct ucm_shards_entry *entry = run->first;

	for (; entry; entry = entry->next)
		entry_done(call, entry, outcome);
}

static void submit_round(struct ucm_shards_call *call, struct round *round);

/* A part has ended; outcomes: one for each run, or NULL: all are err. */
static void part_done(struct part *part, const struct ucm_outcome *outcomes,
		      int err)
{
	const struct ucm_outcome failed = { .err = err };
	struct ucm_shards_call *call = part->call;
	struct ucm_shards *store = call->store;
	struct round *apart = outcomes ? take_apart(part, outcomes) : NULL;

	if (apart)
		submit_round(call, apart);
	pthread_mutex_lock(&store->lock);
	for (size_t i = 0; i < part->num; i++) {
		if (!apart || !is_apart(part, i, &outcomes[i]))
			run_done(call, &part->runs[i],
				 outcomes ? &outcomes[i] : &failed);
	}
	if (!--call->left)
		pthread_cond_broadcast(&call->cond);
	notify(call);
	pthread_mutex_unlock(&store->lock);
}

static void on_done(void *arg, struct ucm_task *task)
{
	part_done(arg, ucm_task_outcomes(task), 0);
}

/* The loader's addresses: one for each of its regions. */
static void put_addresses(const struct ucm_shards *store,
			  const struct ucm_shards_run *run, uint64_t *out)
{
	const struct ucm_shards_entry *entry = run->first;

	for (; entry; entry = entry->next) {
		uint64_t len = entry->num_layers * store->shape.layer_size;

		for (uint64_t at = 0; at < len; at += store->region_bytes)
			*out++ = entry->addresses[at / entry->piece_bytes] +
				 at % entry->piece_bytes;
	}
}

/* Of each block, where any was told; NULL: of none. */
static struct ucm_id *find_parents(const struct part *part)
{
	struct ucm_shards *store = part->call->store;
	struct ucm_id *parents = NULL;

	pthread_mutex_lock(&store->lock);
	if (store->links && part->call->kind != UCM_SHARDS_LOAD)
		parents = calloc(part->num, sizeof(*parents));
	for (size_t i = 0; i < part->num && parents; i++)
		ucm_shards_parent(store, &part->runs[i].first->id, &parents[i]);
	pthread_mutex_unlock(&store->lock);
	return parents;
}

/* What is left of the call's time; 0: it has no limit. */
static uint32_t time_left(const struct ucm_shards_call *call)
{
	int64_t left_ms;

	if (!call->deadline_ns)
		return 0;
	left_ms = (call->deadline_ns - ucm_monotonic_ns()) / 1000000;
	return left_ms < 1 ? 1 : (uint32_t)left_ms;
}

static int submit(struct part *part, struct ucm_move *moves,
		  uint64_t *addresses, const struct ucm_id *parents,
		  struct ucm_task **out)
{
	struct ucm_shards_call *call = part->call;
	struct ucm_shards *store = call->store;
	struct ucm_request request = {
		.size = sizeof(request),
		.group = store->group,
		.first_layer = part->runs->first_layer,
		.num_layers = part->runs->num_layers,
		.blocks = moves,
		.num_blocks = part->num,
		.addresses = addresses,
		.parents = parents,
		.may_refuse = store->may_refuse,
		.verify = store->verify,
		.deadline_ms = time_left(call),
		.hold = call->kind == UCM_SHARDS_DUMP_HELD,
		.on_done = on_done,
		.arg = part,
	};
	struct ucm_error error = { "" };
	int err;

	if (call->kind == UCM_SHARDS_LOAD)
		err = ucm_load_submit(store->loader, &request, out, &error);
	else if (call->kind == UCM_SHARDS_COMMIT)
		err = ucm_save_commit(store->loader, &request, out, &error);
	else
		err = ucm_save_submit(store->loader, &request, out, &error);
	if (err)
		ucm_error("store: %zu blocks not submitted: %s", part->num,
			  error.text);
	return err;
}

static int submit_part(struct part *part, struct ucm_task **out)
{
	struct ucm_shards *store = part->call->store;
	uint64_t each = part->runs->num_layers * store->shape.layer_size /
			store->region_bytes;
	struct ucm_move *moves = calloc(part->num, sizeof(*moves));
	struct ucm_id *parents = find_parents(part);
	uint64_t *addresses = NULL;
	int err = -ENOMEM;

	if (each)
		addresses = calloc(part->num, each * sizeof(*addresses));
	if (moves && (addresses || !each)) {
		for (size_t i = 0; i < part->num; i++) {
			moves[i].id = part->runs[i].first->id;
			if (each)
				put_addresses(store, &part->runs[i],
					      addresses + i * each);
		}
		err = submit(part, moves, addresses, parents, out);
	}
	free(parents);
	free(moves);
	free(addresses);
	return err;
}

/* It may be done, and freed with the call, as soon as the last one has been
 * submitted, unless the caller keeps that from happening. */
static void submit_round(struct ucm_shards_call *call, struct round *round)
{
	struct ucm_shards *store = call->store;

	for (size_t i = 0; i < round->num_parts; i++) {
		struct part *part = &round->parts[i];
		struct ucm_task *task = NULL;
		int err = submit_part(part, &task);

		if (err) {
			part_done(part, NULL, err);
			continue;
		}
		pthread_mutex_lock(&store->lock);
		part->task = task;
		if (call->cancelled)
			ucm_task_cancel(task);
		pthread_mutex_unlock(&store->lock);
	}
}

/* Entries that are decided leave, the others become runs and parts. */
static void make_round(struct ucm_shards_call *call)
{
	struct ucm_shards_entry *e = call->entries;
	struct round *round = call->rounds;
	size_t num = 0;

	for (size_t i = 0; i < call->num; i++) {
		if (call->outcomes[i].err == -EINPROGRESS)
			e[num++] = e[i];
	}
	if (call->kind == UCM_SHARDS_COMMIT)
		num = ucm_shards_part(e, num, round->runs);
	else
		num = ucm_shards_join(e, num, round->runs);
	make_parts(call, round, num);
	call->left = round->num_parts;
}

uint64_t ucm_shards_call_start(struct ucm_shards_call *call)
{
	struct ucm_shards *store = call->store;
	struct ucm_shards_slot *slot;
	uint64_t handle;

	if (store->deadline_ms)
		call->deadline_ns = ucm_monotonic_ns() +
				    (int64_t)store->deadline_ms * 1000000;
	make_round(call);
	submit_round(call, call->rounds);
	pthread_mutex_lock(&store->lock);
	slot = &store->slots[call->slot];
	slot->call = call;
	handle = (uint64_t)slot->generation << 32 | call->slot;
	pthread_mutex_unlock(&store->lock);
	return handle;
}

/* ---- the end ---- */

static int64_t deadline_of(int timeout_ms)
{
	return ucm_monotonic_ns() + (int64_t)timeout_ms * 1000000;
}

/* With the lock. */
static int wait_for(struct ucm_shards_call *call, int timeout_ms)
{
	int64_t ns = deadline_of(timeout_ms);
	const struct timespec until = { .tv_sec = ns / 1000000000,
					.tv_nsec = ns % 1000000000 };
	int err = 0;

	while (call->left && !err) {
		if (timeout_ms < 0)
			pthread_cond_wait(&call->cond, &call->store->lock);
		else
			err = pthread_cond_timedwait(
				&call->cond, &call->store->lock, &until);
	}
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
		notify(call);
	}
	pthread_mutex_unlock(&store->lock);
	return call ? 0 : -ENOENT;
}

/* With the lock. */
static void cancel(struct ucm_shards_call *call)
{
	call->cancelled = true;
	for (struct round *round = call->rounds; round; round = round->next) {
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
