/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch.c - calls on many blocks at a time.
 */
#include <config.h>

#include "fs/batch.h"

#include <errno.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/osfile.h"
#include "hashing/name.h"

static int evict(struct ucm_tierset *set, struct ucm_leases *leases,
		 const struct ucm_key *key, const struct ucm_entry *entry,
		 ucm_ref ref)
{
	if (entry->flags & UCM_ENTRY_PINNED)
		return -EPERM;
	if (ucm_lease_held(leases, ref, ucm_monotonic_ms()))
		return -EBUSY;
	return ucm_tierset_remove(set, key);
}

int ucm_batch_one(struct ucm_tierset *set, struct ucm_leases *leases,
		  enum ucm_batch_op op, const struct ucm_key *key)
{
	struct ucm_entry entry;
	ucm_ref ref;
	int err = ucm_tierset_find(set, key, &entry, &ref);

	if (op == UCM_BATCH_LOOKUP)
		return err == -ENOENT ? 0 : err ? err : 1;
	if (err)
		return err;
	switch (op) {
	case UCM_BATCH_TOUCH:
		return ucm_tierset_touch(set, ref);
	case UCM_BATCH_PIN:
		return ucm_tierset_pin(set, ref, true);
	case UCM_BATCH_UNPIN:
		return ucm_tierset_pin(set, ref, false);
	case UCM_BATCH_EVICT:
		return evict(set, leases, key, &entry, ref);
	default:
		return -EINVAL;
	}
}

void ucm_batch_locate(struct ucm_tierset *set, struct ucm_leases *leases,
		      const struct ucm_key *key, uint32_t lease_ms,
		      uint32_t flags, struct ucm_control_place *out)
{
	struct ucm_control_place place = { 0 };
	struct ucm_entry entry;
	struct ucm_block block = { .flags = 0 };
	ucm_ref ref;

	place.result = ucm_tierset_find(set, key, &entry, &ref);
	if (!place.result && lease_ms)
		place.result = ucm_lease_take(leases, ref,
					      ucm_monotonic_ms() + lease_ms);
	/* leased now, and read after that: so it is still the same file */
	if (!place.result && flags & UCM_LOCATE_CRC)
		place.result = ucm_tierset_header(set, ref, &block);
	if (!place.result) {
		place.tier = (uint8_t)(set->tier_of[entry.dir] - set->tiers);
		place.directory = entry.dir;
		place.size = entry.size;
		place.mtime_ns = entry.mtime_ns;
		place.generation = entry.generation;
		place.uses = entry.uses;
		place.atime_s = entry.atime_s;
		if (entry.flags & UCM_ENTRY_PINNED)
			place.flags |= UCM_PLACE_PINNED;
		if (block.flags & UCM_BLOCK_HAS_CRC) {
			place.flags |= UCM_PLACE_CRC;
			place.crc32c = block.payload_crc;
		}
	}
	*out = place;
}

void ucm_batch_statistics(struct ucm_tierset *set,
			  struct ucm_control_statistics *out)
{
	const struct ucm_stats *stats = &set->stats;
	struct ucm_control_statistics all = {
		.version = UCM_CONTROL_VERSION,
		.scanned = atomic_load(&set->scanned),
		.blocks = atomic_load(&set->blocks),
#define GET(name) .name = atomic_load(&stats->name)
		GET(lookups),
		GET(hits),
		GET(misses),
		GET(opens),
		GET(commits),
		GET(removed),
		GET(quarantined),
		GET(io_errors),
#undef GET
	};

	for (unsigned i = 0; i < set->num_tiers; i++) {
		uint64_t total, available;

		ucm_tier_space(&set->tiers[i], &total, &available);
		all.total_bytes += total;
		all.free_bytes += available;
		all.bytes += atomic_load(&set->tiers[i].used);
	}
	*out = all;
}

int ucm_batch_flush(struct ucm_tierset *set)
{
	int result = 0;

	for (unsigned i = 0; i < set->num_dirs; i++) {
		int err;

		if (set->dirs[i]->readonly)
			continue;
		err = ucm_os_syncfs(set->dirs[i]->dirfd);
		if (err)
			ucm_backing_failed(set->dirs[i], "syncfs", err);
		if (err && !result)
			result = err;
	}
	return result;
}

int ucm_batch_rescan(struct ucm_tierset *set)
{
	int result = 0;

	for (unsigned s = 0; s < set->names.num; s++) {
		struct ucm_space *space = ucm_namespace_get(&set->names, s);

		for (unsigned i = 0;
		     space && i < set->num_dirs * UCM_BUCKETS; i++) {
			int err = ucm_tierset_scan_bucket(set, space,
							  i / UCM_BUCKETS,
							  i % UCM_BUCKETS);

			if (err && !result)
				result = err;
			if (atomic_load(&set->stopping))
				return -EINTR;
		}
	}
	return result;
}
