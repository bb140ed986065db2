/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calls.c - calls on many blocks at a time.
 */
#include <config.h>

#include "fs/store/calls.h"

#include <errno.h>

#include "common/clock.h"
#include "fs/store/inside.h"
#include "hashing/tree.h"

/* Under the name's lock, under which leases are given: what was located and
 * leased is not removed after it. */
static int calls_evict_locked(struct ucm_store *store,
			      struct ucm_leases *leases,
			      const struct ucm_key *key, ucm_ref ref)
{
	struct ucm_entry entry;

	if (!ucm_index_get(store->index, ref, &entry))
		return -ENOENT;
	if (entry.flags & UCM_ENTRY_PINNED)
		return -EPERM;
	if (ucm_lease_held(leases, ref, ucm_monotonic_ms()))
		return -EBUSY;
	return ucm_store_remove(store, key);
}

static int calls_evict(struct ucm_store *store, struct ucm_leases *leases,
		       const struct ucm_key *key, ucm_ref ref)
{
	int err;

	ucm_store_lock_name(store, &key->id);
	err = calls_evict_locked(store, leases, key, ref);
	ucm_store_unlock_name(store, &key->id);
	return err;
}

static int calls_lookup(struct ucm_store *store, const struct ucm_key *key)
{
	struct ucm_entry entry;
	ucm_ref ref;
	int err = ucm_store_find(store, key, &entry, &ref);

	return err == -ENOENT ? 0 : err ? err : 1;
}

int ucm_calls_one(struct ucm_store *store, struct ucm_leases *leases,
		  enum ucm_calls_op op, const struct ucm_key *key)
{
	struct ucm_entry entry;
	ucm_ref ref;
	int err;

	if (op == UCM_BATCH_LOOKUP)
		return calls_lookup(store, key);
	err = ucm_store_peek(store, key, &entry, &ref);
	if (err)
		return err;
	switch (op) {
	case UCM_BATCH_TOUCH:
		return ucm_store_touch(store, ref);
	case UCM_BATCH_PIN:
		return ucm_store_pin(store, ref, true);
	case UCM_BATCH_UNPIN:
		return ucm_store_pin(store, ref, false);
	case UCM_BATCH_EVICT:
		return calls_evict(store, leases, key, ref);
	default:
		return -EINVAL;
	}
}

static int calls_lease(struct ucm_store *store, struct ucm_leases *leases,
		       uint32_t uid, const struct ucm_key *key, ucm_ref ref,
		       uint32_t lease_ms)
{
	struct ucm_entry entry;
	int err = -ENOENT;

	ucm_store_lock_name(store, &key->id);
	if (ucm_index_get(store->index, ref, &entry))
		err = ucm_lease_take(leases, ref, uid, ucm_monotonic_ms(),
				     lease_ms);
	ucm_store_unlock_name(store, &key->id);
	return err;
}

static void fill_place(const struct ucm_store *store,
		       const struct ucm_entry *entry,
		       const struct ucm_block *block,
		       struct ucm_control_place *place)
{
	place->tier =
		(uint8_t)(store->dirs.tier_of[entry->dir] - store->dirs.tiers);
	place->directory = entry->dir;
	place->size = entry->size;
	place->mtime_ns = entry->mtime_ns;
	place->generation = entry->generation;
	place->uses = entry->uses;
	place->atime_s = entry->atime_s;
	if (entry->flags & UCM_ENTRY_PINNED)
		place->flags |= UCM_PLACE_PINNED;
	if (block->flags & UCM_BLOCK_HAS_CRC) {
		place->flags |= UCM_PLACE_CRC;
		place->crc32c = block->payload_crc;
	}
}

void ucm_calls_locate(struct ucm_store *store, struct ucm_leases *leases,
		      uint32_t uid, const struct ucm_key *key,
		      uint32_t lease_ms, uint32_t flags,
		      struct ucm_control_place *out)
{
	struct ucm_control_place place = { 0 };
	struct ucm_block block = { .flags = 0 };
	struct ucm_entry entry;
	ucm_ref ref;
	int err;

	if (flags & UCM_LOCATE_PEEK)
		err = ucm_store_peek(store, key, &entry, &ref);
	else
		err = ucm_store_find(store, key, &entry, &ref);
	if (!err && lease_ms)
		err = calls_lease(store, leases, uid, key, ref, lease_ms);
	/* leased now, and read after that: so it is still the same file */
	if (!err && flags & UCM_LOCATE_CRC)
		err = ucm_store_header(store, ref, &block);
	if (!err)
		fill_place(store, &entry, &block, &place);
	place.result = err;
	*out = place;
}

void ucm_calls_statistics(struct ucm_store *store,
			  struct ucm_control_statistics *out)
{
	const struct ucm_stats *stats = &store->stats;
	struct ucm_control_statistics all = {
		.version = UCM_CONTROL_VERSION,
		.scanned = atomic_load(&store->scanned),
		.blocks = atomic_load(&store->blocks),
#define GET(name) .name = ucm_counted(&stats->name)
		GET(lookups),
		GET(hits),
		GET(misses),
		GET(opens),
		GET(commits),
		GET(removed),
		GET(quarantined),
#undef GET
		.io_errors = ucm_counted(&store->dirs.io_errors),
	};
	struct statvfs st;

	ucm_store_statvfs(store, &st);
	all.total_bytes = (uint64_t)st.f_blocks * st.f_frsize;
	all.free_bytes = (uint64_t)st.f_bavail * st.f_frsize;
	for (unsigned dir = 0; dir < store->dirs.num; dir++)
		all.bytes += atomic_load(&store->dirs.at[dir]->used);
	*out = all;
}

/* All directories' buckets of one space. */
static int rescan_space(struct ucm_store *store, struct ucm_space *space,
			bool (*stop)(void *arg), void *arg)
{
	int result = 0;

	for (unsigned i = 0; i < store->dirs.num * UCM_BUCKETS; i++) {
		int err;

		if (atomic_load(&store->stopping) || stop(arg))
			return -EINTR;
		err = ucm_store_scan_bucket(store, space, i / UCM_BUCKETS,
					    i % UCM_BUCKETS);
		if (err && !result)
			result = err;
	}
	return result;
}

int ucm_calls_rescan(struct ucm_store *store, bool (*stop)(void *arg),
		     void *arg)
{
	int result = 0;

	for (unsigned i = 0; i < store->names.num; i++) {
		struct ucm_space *space = ucm_namespace_get(&store->names, i);
		int err = space ? rescan_space(store, space, stop, arg) : 0;

		if (err == -EINTR)
			return err;
		if (err && !result)
			result = err;
	}
	return result;
}
