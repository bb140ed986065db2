/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dumps.c - which blocks are being dumped, and what has come of them.
 *
 * The loader keeps the bytes of a block that is not whole, but does not know
 * which dumps belong together: after a failed one it would begin the block anew
 * with those that follow, and keep it for ever. So each attempt at a block is
 * followed here, by the layers that were asked for. A failed attempt takes the
 * rest of its layers without saving them. It is over when all have come, or one
 * has come again (V1), or when it is committed or given up.
 */
#include <config.h>

#include "gpu/shards/shards.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/table.h"

struct ucm_shards_dump {
	UT_hash_handle hh;
	struct ucm_id id;
	bool created;      /* by V0: nothing but a commit ends it */
	bool giving_up;    /* removed when nothing is under way any more */
	bool committing;
	bool existed;      /* somebody else has committed it */
	bool refused;      /* the mount does not want it */
	int err;           /* of the first dump that failed */
	unsigned underway; /* dumps, or the commit */
	uint32_t missing;  /* layers that nobody has dumped */
	uint8_t seen[];    /* layers that somebody has */
};

static struct ucm_shards_dump *find(const struct ucm_shards *store,
				    const struct ucm_id *id)
{
	struct ucm_shards_dump *dump;

	HASH_FIND(hh, store->dumps, id, sizeof(*id), dump);
	return dump;
}

static void begin_anew(struct ucm_shards *store, struct ucm_shards_dump *dump)
{
	dump->err = 0;
	dump->refused = false;
	dump->missing = store->shape.num_layers;
	memset(dump->seen, 0, dump->missing);
}

static struct ucm_shards_dump *add(struct ucm_shards *store,
				   const struct ucm_id *id)
{
	struct ucm_shards_dump *dump =
		calloc(1, sizeof(*dump) + store->shape.num_layers);

	if (!dump)
		return NULL;
	dump->id = *id;
	begin_anew(store, dump);
	HASH_ADD(hh, store->dumps, id, sizeof(*id), dump);
	if (dump->hh.tbl)
		return dump;
	free(dump);
	return NULL;
}

static void forget(struct ucm_shards *store, struct ucm_shards_dump *dump)
{
	HASH_DEL(store->dumps, dump);
	free(dump);
}

static void abandon(struct ucm_shards *store,
		    const struct ucm_shards_dump *dump)
{
	ucm_save_abandon(store->loader, store->group, &dump->id, 1);
}

/* Nothing more of this attempt is saved. */
static bool has_ended(const struct ucm_shards_dump *dump)
{
	return dump->err || dump->refused;
}

/* Something has changed: is the attempt over? Before a later dump can be
 * submitted, what was saved of a failed one has been abandoned. */
static void tidy(struct ucm_shards *store, struct ucm_shards_dump *dump)
{
	if (dump->underway)
		return;
	if (has_ended(dump) || dump->giving_up)
		abandon(store, dump);
	if (dump->giving_up ||
	    (!dump->created && (dump->existed || !dump->missing)))
		forget(store, dump);
}

static bool any_seen(const struct ucm_shards_dump *dump, uint32_t first,
		     uint32_t num)
{
	return memchr(dump->seen + first, 1, num) != NULL;
}

static void see(struct ucm_shards_dump *dump, uint32_t first, uint32_t num)
{
	for (uint32_t i = first; i < first + num; i++) {
		dump->missing -= !dump->seen[i];
		dump->seen[i] = 1;
	}
}

/* 0: it may be dumped, and out is the block's dump. */
static int admit_dump(struct ucm_shards *store, const struct ucm_id *id,
		      bool held, struct ucm_shards_dump **out)
{
	struct ucm_shards_dump *dump = find(store, id);

	if (held && (!dump || !dump->created))
		return -ENOENT;
	if (dump && (dump->committing || dump->created != held))
		return -EBUSY;
	if (!dump)
		dump = add(store, id);
	if (!dump)
		return -ENOMEM;
	*out = dump;
	return dump->giving_up ? -ECANCELED : 0;
}

bool ucm_shards_admit(struct ucm_shards *store, const struct ucm_id *id,
		      uint32_t first_layer, uint32_t num_layers, bool held,
		      struct ucm_outcome *out)
{
	struct ucm_shards_dump *dump;

	*out = (struct ucm_outcome){ .err = admit_dump(store, id, held, &dump) };
	if (out->err)
		return false;
	if (has_ended(dump) && !held && !dump->underway &&
	    any_seen(dump, first_layer, num_layers))
		begin_anew(store, dump);
	see(dump, first_layer, num_layers);
	if (has_ended(dump)) {
		out->err = dump->err ? -ECANCELED : 0;
		out->refused = !dump->err;
		tidy(store, dump);
		return false;
	}
	dump->underway++;
	return true;
}

void ucm_shards_dumped(struct ucm_shards *store, const struct ucm_id *id,
		       const struct ucm_outcome *outcome)
{
	struct ucm_shards_dump *dump = find(store, id);

	dump->underway--;
	dump->existed |= outcome->skipped;
	dump->refused |= outcome->refused;
	if (!dump->err)
		dump->err = outcome->err;
	tidy(store, dump);
}

int ucm_shards_reserve(struct ucm_shards *store, const struct ucm_id *id)
{
	struct ucm_shards_dump *dump = find(store, id);

	if (dump)
		return dump->created && !dump->giving_up ? -EALREADY : -EBUSY;
	dump = add(store, id);
	if (!dump)
		return -ENOMEM;
	dump->created = true;
	return 0;
}

static int give_up(struct ucm_shards *store, struct ucm_shards_dump *dump)
{
	if (dump->committing)
		return -EBUSY;
	dump->giving_up = true;
	tidy(store, dump);
	return 0;
}

bool ucm_shards_may_commit(struct ucm_shards *store, const struct ucm_id *id,
			   bool success, struct ucm_outcome *out)
{
	struct ucm_shards_dump *dump = find(store, id);

	*out = (struct ucm_outcome){ .err = 0 };
	if (!dump || (success && dump->giving_up)) {
		out->err = -ENOENT;
	} else if (!success) {
		out->err = give_up(store, dump);
	} else if (dump->underway) {
		out->err = -EBUSY;
	} else if (dump->existed || has_ended(dump)) {
		out->skipped = dump->existed;
		out->err = dump->existed ? 0 : dump->err;
		out->refused = !dump->existed && !dump->err;
		give_up(store, dump);
	} else if (dump->missing || !dump->created) {
		out->err = -EAGAIN;
	} else {
		dump->committing = true;
		dump->underway++;
		return true;
	}
	return false;
}

void ucm_shards_committed(struct ucm_shards *store, const struct ucm_id *id,
			  const struct ucm_outcome *outcome)
{
	struct ucm_shards_dump *dump = find(store, id);

	if (outcome->err) /* given up before the loader had a look at it? */
		abandon(store, dump);
	forget(store, dump);
}

/* ---- what comes before a block ---- */

/* Each block has one place, which a later one takes. */
#define LINKS 8192u

struct ucm_shards_link {
	struct ucm_id id, parent;
};

static struct ucm_shards_link *link_of(const struct ucm_shards *store,
				       const struct ucm_id *id)
{
	uint32_t hash;

	memcpy(&hash, id->bytes, sizeof(hash));
	return &store->links[hash % LINKS];
}

void ucm_shards_set_parents(struct ucm_shards *store, const struct ucm_id *ids,
			    const struct ucm_id *parents, size_t num)
{
	pthread_mutex_lock(&store->lock);
	if (!store->links)
		store->links = calloc(LINKS, sizeof(*store->links));
	for (size_t i = 0; i < num && store->links; i++)
		*link_of(store, &ids[i]) = (struct ucm_shards_link){
			.id = ids[i],
			.parent = parents[i],
		};
	pthread_mutex_unlock(&store->lock);
}

bool ucm_shards_parent(const struct ucm_shards *store, const struct ucm_id *id,
		       struct ucm_id *out)
{
	const struct ucm_shards_link *link;

	if (!store->links)
		return false;
	link = link_of(store, id);
	if (memcmp(&link->id, id, sizeof(*id)) != 0)
		return false;
	*out = link->parent;
	return true;
}

void ucm_shards_end_dumps(struct ucm_shards *store)
{
	free(store->links);
	store->links = NULL;
	while (store->dumps)
		forget(store, store->dumps);
	ucm_save_abandon(store->loader, store->group, NULL, 0);
}
