/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sharers.c - the loaders of a node that share a budget.
 *
 * There is no counter in common, and no lock. Each sharer writes to its own
 * place alone: what it wants, and a number that it changes every few
 * milliseconds while it wants something. Each works out its share by itself from
 * what all want (fair.h). So there is nothing that one could leave half done or
 * take along when it dies:
 *
 *	a place  free --- its owner's id is swapped in ---> somebody's
 *	           ^---- it leaves, or was silent for GONE_NS ----'
 *
 *	a sharer silent (beat 0) <-> speaks --- no new beat for DEAD_NS ---> dead
 *	                               ^----------- a new beat --------------'
 *
 * A sharer that is silent or dead counts for nothing: what it had is the
 * others', after DEAD_NS if it was killed (or stopped, which is the same to the
 * others). When a beat was new, each reader says by its own clock: readers may
 * live in namespaces with other clocks, and a time in the memory could lie.
 *
 * Anybody who may open the file can write anything to it. The worst that comes
 * of it is that all places speak and want all there is: then a share is a 256th
 * part, until the writer ends, and DEAD_NS longer. Or that sharers lose their
 * places, and do not see each other: then each takes all, until there are places
 * again, GONE_NS after the writer has ended. A sharer whose place was taken from
 * it finds another id there, and looks for one again.
 */
#include <config.h>

#include "gpu/load/sharers.h"

#include <string.h>

#include "gpu/load/fair.h"

static uint64_t peek(const _Atomic uint64_t *word)
{
	return atomic_load_explicit(word, memory_order_relaxed);
}

static void put(_Atomic uint64_t *word, uint64_t value)
{
	atomic_store_explicit(word, value, memory_order_relaxed);
}

/* What is there when we come counts as new: better too little for a moment. */
static void look_first(struct ucm_sharers *sharers, int64_t now_ns)
{
	for (unsigned i = 0; i < UCM_SHARERS_MAX; i++) {
		const struct ucm_sharer *sharer = &sharers->memory->sharers[i];

		sharers->seen[i].owner = peek(&sharer->owner);
		sharers->seen[i].beat = peek(&sharer->beat);
		sharers->seen[i].changed_ns = now_ns;
	}
}

void ucm_sharers_init(struct ucm_sharers *sharers,
		      struct ucm_sharers_memory *memory, uint64_t id,
		      int64_t now_ns)
{
	memset(sharers, 0, sizeof(*sharers));
	sharers->memory = memory;
	sharers->id = id;
	look_first(sharers, now_ns);
}

static bool try_place(struct ucm_sharers *sharers, unsigned number,
		      uint64_t owner)
{
	struct ucm_sharer *sharer = &sharers->memory->sharers[number];

	if (!atomic_compare_exchange_strong(&sharer->owner, &owner,
					    sharers->id))
		return false;
	put(&sharer->beat, 0);
	put(&sharer->bytes, 0);
	sharers->own = sharer;
	return true;
}

static bool is_gone(const struct ucm_sharers *sharers, unsigned number,
		    int64_t now_ns)
{
	return now_ns - sharers->seen[number].changed_ns >= UCM_SHARER_GONE_NS;
}

/* A free one, or that of a sharer that has gone. */
static void find_place(struct ucm_sharers *sharers, int64_t now_ns)
{
	for (unsigned i = 0; i < UCM_SHARERS_MAX; i++) {
		if (try_place(sharers, i, 0))
			return;
	}
	for (unsigned i = 0; i < UCM_SHARERS_MAX; i++) {
		if (is_gone(sharers, i, now_ns) &&
		    try_place(sharers, i, sharers->seen[i].owner))
			return;
	}
}

static bool has_place(const struct ucm_sharers *sharers)
{
	return sharers->own && peek(&sharers->own->owner) == sharers->id;
}

void ucm_sharers_leave(struct ucm_sharers *sharers)
{
	uint64_t id = sharers->id;

	if (!has_place(sharers))
		return;
	put(&sharers->own->beat, 0);
	atomic_compare_exchange_strong(&sharers->own->owner, &id, 0);
	sharers->own = NULL;
}

void ucm_sharers_say(struct ucm_sharers *sharers,
		     const struct ucm_wants *wants)
{
	struct ucm_sharer *own = sharers->own;
	uint64_t beat;

	if (!has_place(sharers))
		return;
	if (!wants) {
		put(&own->beat, 0);
		return;
	}
	put(&own->rate, wants->rate);
	put(&own->in_flight, wants->in_flight);
	put(&own->bytes, wants->bytes);
	beat = peek(&own->beat) + 1;
	atomic_store_explicit(&own->beat, beat ? beat : 1,
			      memory_order_release);
}

/* Look at a place: does somebody else live there who wants something? */
static bool wants_something(struct ucm_sharers *sharers, unsigned number,
			    int64_t now_ns)
{
	const struct ucm_sharer *sharer = &sharers->memory->sharers[number];
	uint64_t beat = atomic_load_explicit(&sharer->beat,
					     memory_order_acquire);
	uint64_t owner = peek(&sharer->owner);

	if (owner != sharers->seen[number].owner ||
	    beat != sharers->seen[number].beat) {
		sharers->seen[number].owner = owner;
		sharers->seen[number].beat = beat;
		sharers->seen[number].changed_ns = now_ns;
	}
	return owner && beat && owner != sharers->id &&
	       now_ns - sharers->seen[number].changed_ns < UCM_SHARER_DEAD_NS;
}

void ucm_sharers_share(struct ucm_sharers *sharers, int64_t now_ns,
		       uint64_t *rate, uint64_t *in_flight)
{
	uint64_t rates[UCM_SHARERS_MAX], flights[UCM_SHARERS_MAX];
	unsigned num = 0;

	for (unsigned i = 0; i < UCM_SHARERS_MAX; i++) {
		const struct ucm_sharer *sharer = &sharers->memory->sharers[i];

		if (!wants_something(sharers, i, now_ns))
			continue;
		rates[num] = peek(&sharer->rate);
		flights[num++] = peek(&sharer->in_flight);
	}
	if (!has_place(sharers))
		find_place(sharers, now_ns);
	*rate = ucm_fair_share(*rate, rates, num);
	*in_flight = ucm_fair_share(*in_flight, flights, num);
}
