/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calls.c - calls on many blocks at a time.
 */
#include <config.h>

#include "fs/store/find/calls.h"

#include <errno.h>

#include "common/clock.h"
#include "common/filestamp.h"
#include "fs/store/find/find.h"
#include "fs/store/jobs.h"
#include "fs/tier/wait.h"
#include "hashing/tree.h"

static int calls_lookup(struct ucm_store *store, const struct ucm_key *key)
{
	struct ucm_entry entry;
	ucm_ref ref;
	int err = ucm_store_find(store, key, &entry, &ref);

	return err == -ENOENT ? 0 : err ? err : 1;
}

/* One of its places. What cannot be read says nothing of its bytes. 1: it was
 * wrong, and is moved aside. */
static int check_place(struct ucm_store *store, ucm_ref ref,
		       const struct ucm_entry *entry, unsigned dir)
{
	enum ucm_fault fault = UCM_FAULT_NONE;
	_cleanup_file_ struct ucm_file file = UCM_NO_FILE;
	struct ucm_block block;
	uint32_t plane = 0;
	struct stat st;
	int err = ucm_store_open_file(store, store->names.spaces[entry->space],
				      &entry->id, dir, &file, &st);

	if (err == -ENOENT)
		return 0; /* the next open finds that */
	if (!err)
		err = ucm_file_verify(&file, &st, &entry->id, NULL, NULL,
				      &block, &fault, &plane);
	if (err || !fault)
		return err;
	ucm_store_condemn(store, ref, dir, &st, fault,
			  ucm_store_fault_place(fault, plane).text);
	return 1;
}

/* All of its places: a program says that it is bad, which is not believed. */
static int calls_check(struct ucm_store *store, const struct ucm_key *key,
		       ucm_ref ref, const struct ucm_entry *entry)
{
	struct ucm_entry now;
	int err = 0, bad = 0;

	for (unsigned dir = 0; dir < store->dirs.num && !err; dir++) {
		int found = ucm_entry_has_dir(entry, dir)
				    ? check_place(store, ref, entry, dir)
				    : 0;

		bad |= found > 0;
		err = found < 0 ? found : 0;
	}
	if (!bad)
		return err;
	/* a copy has taken its place, which may not have been read */
	err = ucm_store_peek(store, key, &now, &ref);
	if (err)
		return err;
	ucm_store_doubt(store, ref);
	return ucm_store_settle(store, ref);
}

int ucm_calls_one(struct ucm_store *store, enum ucm_calls_op op,
		  const struct ucm_key *key)
{
	struct ucm_entry entry;
	ucm_ref ref;
	int err;

	if (op == UCM_BATCH_LOOKUP)
		return calls_lookup(store, key);
	if (op == UCM_BATCH_REMOVE)
		return ucm_store_remove(store, key);
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
		return ucm_store_evict(store, key, false);
	case UCM_BATCH_WARM:
		return ucm_jobs_warm(store, ref);
	case UCM_BATCH_CHECK:
		return calls_check(store, key, ref, &entry);
	default:
		return -EINVAL;
	}
}

int ucm_calls_expect(struct ucm_store *store, const struct ucm_key *key,
		     uint32_t keep_ms)
{
	struct ucm_entry entry;
	ucm_ref ref;
	int err = ucm_store_peek(store, key, &entry, &ref);

	if (err || !keep_ms)
		return err ? err
			   : ucm_expected_add(&store->holds.expected, ref,
					      ucm_monotonic_ms());
	ucm_expected_keep(&store->holds.expected, ref, keep_ms, ucm_monotonic_ms());
	return 0;
}

static uint16_t flags_of(const struct ucm_hold *hold)
{
	return (uint16_t)((hold->pinned ? UCM_PLACE_PINNED : 0) |
			  (hold->opens ? UCM_PLACE_OPEN : 0) |
			  (hold->being_written ? UCM_PLACE_WRITTEN : 0));
}

static void fill_place(struct ucm_store *store, ucm_ref ref,
		       const struct ucm_entry *entry,
		       const struct ucm_block *block,
		       struct ucm_control_place *place)
{
	struct ucm_hold hold;

	place->tier =
		(uint8_t)(store->dirs.tier_of[entry->dir] - store->dirs.tiers);
	place->directory = entry->dir;
	place->size = entry->size;
	place->mtime_ns = entry->mtime_ns;
	place->generation = entry->generation;
	place->uses = entry->uses;
	place->atime_s = entry->atime_s;
	if (!ucm_store_holds(store, ref, &hold))
		place->flags = flags_of(&hold);
	if (entry->copy)
		place->flags |= UCM_PLACE_COPY;
	if (entry->children)
		place->flags |= UCM_PLACE_CHILDREN;
	if (block->flags & UCM_BLOCK_HAS_CRC) {
		place->flags |= UCM_PLACE_CRC;
		place->crc32c = block->payload_crc;
	}
}

void ucm_calls_locate(struct ucm_store *store, const struct ucm_key *key,
		      uint32_t flags, struct ucm_control_place *out)
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
	if (!err && flags & UCM_LOCATE_CRC)
		err = ucm_store_header(store, ref, &block);
	if (!err)
		fill_place(store, ref, &entry, &block, &place);
	place.result = err;
	*out = place;
}

/* Looked at here, and not believed. A directory whose server may hang is not: no
 * loader stamps its files (gpu/load/files/verified.c). Where stamps can be forged there are
 * no marks. */
int ucm_calls_verified(struct ucm_store *store, const struct ucm_key *key,
		       uint64_t stamp)
{
	struct ucm_entry entry;
	struct ucm_medium *medium;
	struct stat st;
	ucm_ref ref;
	int err = ucm_store_peek(store, key, &entry, &ref);

	if (err)
		return err;
	if (!stamp) {
		ucm_index_unmark(store->index, ref);
		return 0;
	}
	medium = store->dirs.at[entry.dir];
	if (medium->remote || medium->flags & UCM_MEDIUM_NO_CTIME)
		return -EOPNOTSUPP;
	err = ucm_wait_for(&store->dirs, entry.dir);
	if (err)
		return err;
	err = ucm_medium_find(medium, ucm_store_folder(store, &entry),
			      &entry.id, &st);
	if (err)
		return err;
	if (ucm_file_stamp(&st) != stamp)
		return -ESTALE;
	return ucm_index_mark(store->index, ref, entry.dir, stamp);
}

void ucm_calls_statistics(struct ucm_store *store,
			  struct ucm_control_statistics *out)
{
	const struct ucm_stats *stats = &store->stats;
	struct ucm_control_statistics all = {
		.scanned = atomic_load(&store->scan.complete),
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

		if (atomic_load(&store->life.stopping) || stop(arg))
			return -EINTR;
		err = ucm_store_scan_bucket(store, space, i / UCM_BUCKETS,
					    i % UCM_BUCKETS);
		if (err && !result)
			result = err;
		ucm_count(&store->stats.rescanned);
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
