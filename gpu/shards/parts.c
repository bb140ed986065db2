/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parts.c - a call is carried out by tasks of the loader: its parts.
 *
 * An entry fares as its run does. But where a run of a load fails for a cause
 * that may lie in one of its entries alone, these are loaded once more, each by
 * itself, in another round. The part is not done before that has been
 * submitted, so that the call is not, either.
 *
 * A part's end is reported in a thread of the loader, which takes the lock; so
 * nothing that waits for the loader is called with it.
 */
#include <config.h>

#include "gpu/shards/call.h"

#include <errno.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/log.h"

/* Runs are sorted by their layers. */
static void make_parts(struct ucm_shards_call *call, struct ucm_shards_round *round,
		       size_t num)
{
	const struct ucm_shards_run *runs = round->runs;
	struct ucm_shards_part *part = round->parts;

	for (size_t i = 0; i < num; i++) {
		if (!i || runs[i].first_layer != runs[i - 1].first_layer ||
		    runs[i].num_layers != runs[i - 1].num_layers)
			*part++ = (struct ucm_shards_part){ .call = call,
						 .runs = &runs[i] };
		part[-1].num++;
	}
	round->num_parts = (size_t)(part - round->parts);
}

/* ---- entries by themselves ---- */

/* Has this run failed for what may be wrong with some of its layers alone? */
static bool is_apart(const struct ucm_shards_part *part, size_t run,
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

static size_t count_apart(const struct ucm_shards_part *part,
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
static struct ucm_shards_round *take_apart(const struct ucm_shards_part *part,
				const struct ucm_outcome *outcomes)
{
	struct ucm_shards_call *call = part->call;
	size_t most = count_apart(part, outcomes), num = 0;
	struct ucm_shards_round *round = most ? ucm_shards_round_new(most) : NULL;

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

/* ---- the end of a part ---- */

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

static void submit_round(struct ucm_shards_call *call, struct ucm_shards_round *round);

/* A part has ended; outcomes: one for each run, or NULL: all are err. */
static void part_done(struct ucm_shards_part *part, const struct ucm_outcome *outcomes,
		      int err)
{
	const struct ucm_outcome failed = { .err = err };
	struct ucm_shards_call *call = part->call;
	struct ucm_shards *store = call->store;
	struct ucm_shards_round *apart = outcomes ? take_apart(part, outcomes) : NULL;

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
	ucm_shards_call_notify(call);
	pthread_mutex_unlock(&store->lock);
}

static void on_done(void *arg, struct ucm_task *task)
{
	part_done(arg, ucm_task_outcomes(task), 0);
}

/* ---- submitting ---- */

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
static struct ucm_id *find_parents(const struct ucm_shards_part *part)
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

static int submit(struct ucm_shards_part *part, struct ucm_move *moves,
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

static int submit_part(struct ucm_shards_part *part, struct ucm_task **out)
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
static void submit_round(struct ucm_shards_call *call, struct ucm_shards_round *round)
{
	struct ucm_shards *store = call->store;

	for (size_t i = 0; i < round->num_parts; i++) {
		struct ucm_shards_part *part = &round->parts[i];
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
	struct ucm_shards_round *round = call->rounds;
	size_t num = 0;

	for (size_t i = 0; i < call->num; i++) {
		if (call->outcomes[i].err == -EINPROGRESS)
			e[num++] = e[i];
	}
	num = ucm_shards_join(e, num, round->runs); /* of a commit: each its own */
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
