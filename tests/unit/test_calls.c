/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_calls.c - calls on many blocks, on a store.
 */
#include <config.h>

#include "fs/store/calls.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "common/clock.h"
#include "common/filestamp.h"
#include "fs/store/inside.h"
#include "tests/unit/store_fixture.h"

UNIT_PROGRAM(.variants = fx_media);

static const struct ucm_calls_terms plain = { .uid = 1 };
static const struct ucm_calls_terms with_crc = { .uid = 1,
						 .flags = UCM_LOCATE_CRC };
static const struct ucm_calls_terms minute = { .uid = 1, .lease_ms = 60000 };
static struct fx_file file, other;

static void setup(void)
{
	fx_setup();
	fx_store("fast=$/a:slow=$/b");
	fx_block(&file, 1, FX_PAGED);
	fx_block(&other, 2, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
}

static void teardown(void)
{
	fx_close();
	fx_teardown();
}

static bool never(void *arg)
{
	(void)arg;
	return false;
}

static bool third_time(void *arg)
{
	return ++*(int *)arg == 3;
}

static int one(enum ucm_calls_op op, const struct fx_file *of)
{
	return ucm_calls_one(fx_set, op, &of->key, &plain);
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(lookup_says_one_or_none)
{
	ck_assert_int_eq(one(UCM_BATCH_LOOKUP, &file), 1);
	ck_assert_int_eq(one(UCM_BATCH_LOOKUP, &other), 0);
}

UNIT_TEST(all_but_lookup_need_the_block, .rows = 5)
{
	static const enum ucm_calls_op ops[] = { UCM_BATCH_TOUCH, UCM_BATCH_PIN,
						 UCM_BATCH_UNPIN,
						 UCM_BATCH_EVICT,
						 UCM_BATCH_LEASE };

	ck_assert_int_eq(one(ops[_i], &other), -ENOENT);
}

UNIT_TEST(touch_counts_a_use_but_no_open)
{
	uint64_t opens = atomic_load(&fx_set->stats.opens);
	struct ucm_entry entry;
	ucm_ref ref;

	ck_assert_int_eq(one(UCM_BATCH_TOUCH, &file), 0);
	ck_assert_int_eq(one(UCM_BATCH_TOUCH, &file), 0);
	ck_assert_int_eq(ucm_store_find(fx_set, &file.key, &entry, &ref), 0);
	ck_assert_uint_eq(entry.uses, 2);
	ck_assert_uint_eq(atomic_load(&fx_set->stats.opens), opens);
}

UNIT_TEST(pinned_blocks_are_not_evicted)
{
	ck_assert_int_eq(one(UCM_BATCH_PIN, &file), 0);
	ck_assert_int_eq(one(UCM_BATCH_EVICT, &file), -EPERM);
	fx_serves(&file);
	ck_assert_int_eq(one(UCM_BATCH_UNPIN, &file), 0);
	ck_assert_int_eq(one(UCM_BATCH_EVICT, &file), 0);
	fx_misses(&file);
}

UNIT_TEST(leased_blocks_are_not_evicted)
{
	struct ucm_control_place place;

	ucm_calls_locate(fx_set, &file.key, &minute, &place);
	ck_assert_int_eq(place.result, 0);
	ck_assert_uint_eq(place.flags, UCM_PLACE_LEASED);
	ck_assert_int_eq(one(UCM_BATCH_EVICT, &file), -EBUSY);
	fx_serves(&file);
	/* given back */
	ck_assert_int_eq(one(UCM_BATCH_LEASE, &file), 0);
	ck_assert_int_eq(one(UCM_BATCH_EVICT, &file), 0);
}

static int lease(uint32_t uid, uint32_t lease_ms, uint32_t flags)
{
	const struct ucm_calls_terms terms = { .uid = uid,
					       .lease_ms = lease_ms,
					       .flags = flags };

	return ucm_calls_one(fx_set, UCM_BATCH_LEASE, &file.key, &terms);
}

UNIT_TEST(a_user_who_has_too_many_leases_is_refused)
{
	ucm_ref many = 1u << 20; /* of other blocks */

	for (unsigned i = 0; i < UCM_LEASES_A_USER; i++)
		ck_assert_int_eq(ucm_lease_take(&fx_set->holds.leases,
						many + i, 1,
						ucm_monotonic_ms(), 60000,
						false),
				 0);
	ck_assert_int_eq(lease(1, 60000, 0), -EDQUOT);
	ck_assert_uint_eq(atomic_load(&fx_set->stats.leases_refused), 1);
	ck_assert_int_eq(one(UCM_BATCH_EVICT, &file), 0);
	ck_assert_int_eq(lease(2, 60000, 0), -ENOENT);
	ck_assert_uint_eq(atomic_load(&fx_set->stats.leases_refused), 1);
}

UNIT_TEST(a_lease_for_two_requests_is_given_back_twice)
{
	ck_assert_int_eq(lease(1, 60000, 0), 0);
	ck_assert_int_eq(lease(1, 60000, 0), 0);
	ck_assert_int_eq(lease(1, 60000, UCM_LEASE_RENEW), 0);
	ck_assert_int_eq(lease(1, 0, 0), 0);
	ck_assert_int_eq(one(UCM_BATCH_EVICT, &file), -EBUSY);
	ck_assert_int_eq(lease(2, 0, 0), 0); /* he has none */
	ck_assert_int_eq(one(UCM_BATCH_EVICT, &file), -EBUSY);
	ck_assert_int_eq(lease(1, 0, 0), 0);
	ck_assert_int_eq(one(UCM_BATCH_EVICT, &file), 0);
	ck_assert_int_eq(lease(1, 60000, 0), -ENOENT);
	ck_assert_uint_eq(atomic_load(&fx_set->stats.leases), 2);
}

UNIT_TEST(locate_tells_what_is_on_disk)
{
	struct ucm_control_place place;
	struct fx_file raw;
	uint32_t crc;

	ucm_calls_locate(fx_set, &file.key, &with_crc, &place);
	ck_assert_int_eq(place.result, 0);
	ck_assert_uint_eq(place.tier, 0);
	ck_assert_uint_eq(place.directory, 0);
	ck_assert_uint_eq(place.size, file.len);
	ck_assert_uint_eq(place.flags, UCM_PLACE_CRC);
	memcpy(&crc, file.bytes + 56, sizeof(crc));
	ck_assert_uint_eq(place.crc32c, crc);
	ck_assert_int_eq(one(UCM_BATCH_PIN, &file), 0);
	ucm_calls_locate(fx_set, &file.key, &with_crc, &place);
	ck_assert_uint_eq(place.flags, UCM_PLACE_CRC | UCM_PLACE_PINNED);
	fx_block(&raw, 3, FX_PAGED_RAW);
	fx_plant("$/b", "blocks", &raw);
	ucm_calls_locate(fx_set, &raw.key, &with_crc, &place);
	ck_assert_int_eq(place.result, -ENOENT); /* put there by hand */
	ck_assert_int_eq(ucm_calls_rescan(fx_set, never, NULL), 0);
	ucm_calls_locate(fx_set, &raw.key, &with_crc, &place);
	ck_assert_int_eq(place.result, 0);
	ck_assert_uint_eq(place.tier, 1);
	ck_assert_uint_eq(place.directory, 1);
	ck_assert_uint_eq(place.flags, 0);
	ucm_calls_locate(fx_set, &other.key, &with_crc, &place);
	ck_assert_int_eq(place.result, -ENOENT);
}

UNIT_TEST(where_times_can_be_set_nothing_is_marked)
{
	struct ucm_medium *medium = fx_set->dirs.at[0];
	struct ucm_entry entry;
	struct stat st;
	ucm_ref ref;

	ck_assert_int_eq(ucm_store_find(fx_set, &file.key, &entry, &ref), 0);
	ck_assert_int_eq(medium->ops->find(medium,
					   ucm_store_folder(fx_set, &entry),
					   &entry.id, &st),
			 0);
	ck_assert_int_eq(ucm_calls_verified(fx_set, &file.key,
					    ucm_file_stamp(&st)),
			 0);
	medium->flags |= UCM_MEDIUM_NO_CTIME;
	ck_assert_int_eq(ucm_calls_verified(fx_set, &file.key,
					    ucm_file_stamp(&st)),
			 -EOPNOTSUPP);
	ck_assert_int_eq(ucm_calls_verified(fx_set, &file.key, 0), 0);
}

UNIT_TEST(statistics_add_up)
{
	struct ucm_control_statistics stats;

	ck_assert_int_eq(fx_commit(&other), 0);
	ck_assert_int_eq(one(UCM_BATCH_EVICT, &file), 0);
	ucm_calls_statistics(fx_set, &stats);
	ck_assert_uint_eq(stats.scanned, 1);
	ck_assert_uint_eq(stats.blocks, 1);
	ck_assert_uint_eq(stats.commits, 2);
	ck_assert_uint_eq(stats.removed, 1);
	ck_assert_uint_ge(stats.bytes, 4096);
	ck_assert_uint_gt(stats.total_bytes, stats.free_bytes);
}

/* An operator who looks around does not change the hit rate. */
UNIT_TEST(only_lookups_and_plain_locates_are_counted)
{
	struct ucm_control_place place;
	struct ucm_control_statistics stats;

	one(UCM_BATCH_TOUCH, &file);
	one(UCM_BATCH_PIN, &other);
	one(UCM_BATCH_UNPIN, &file);
	one(UCM_BATCH_EVICT, &other);
	ucm_calls_locate(fx_set, &other.key,
			 &(struct ucm_calls_terms){ .flags = UCM_LOCATE_PEEK },
			 &place);
	ucm_calls_statistics(fx_set, &stats);
	ck_assert_uint_eq(stats.lookups, 0);
	one(UCM_BATCH_LOOKUP, &file);
	one(UCM_BATCH_LOOKUP, &other);
	ucm_calls_locate(fx_set, &file.key, &plain, &place);
	ucm_calls_statistics(fx_set, &stats);
	ck_assert_uint_eq(stats.lookups, 3);
	ck_assert_uint_eq(stats.hits, 2);
	ck_assert_uint_eq(stats.misses, 1);
}

UNIT_TEST(a_rescan_can_be_ended)
{
	int asked = 0;

	ck_assert_int_eq(ucm_calls_rescan(fx_set, third_time, &asked), -EINTR);
	ck_assert_int_eq(asked, 3);
}

static void *checkpoints(void *arg)
{
	for (int i = 0; i < 50; i++)
		must(ucm_store_checkpoint(fx_set) == 0);
	return arg;
}

/* They write one state file. */
UNIT_TEST(checkpoints_of_two_threads_do_not_meet)
{
	pthread_t thread;

	ck_assert_int_eq(pthread_create(&thread, NULL, checkpoints, NULL), 0);
	checkpoints(NULL);
	ck_assert_int_eq(pthread_join(thread, NULL), 0);
}

static void *locate_once(void *arg)
{
	struct ucm_control_place *place = arg;

	ucm_calls_locate(fx_set, &other.key, &minute, place);
	return NULL;
}

/* Whoever is first: what was leased is there, or it was not leased. */
UNIT_TEST(a_lease_that_was_given_is_kept)
{
	for (int i = 0; i < 100; i++) {
		struct ucm_control_place place = { 0 };
		pthread_t thread;
		int err;

		fx_block(&other, 2, FX_PAGED);
		ck_assert_int_eq(fx_commit(&other), 0);
		ck_assert_int_eq(
			pthread_create(&thread, NULL, locate_once, &place), 0);
		err = one(UCM_BATCH_EVICT, &other);
		ck_assert_int_eq(pthread_join(thread, NULL), 0);
		if (err == 0) {
			ck_assert_int_eq(place.result, -ENOENT);
			continue;
		}
		ck_assert_int_eq(err, -EBUSY);
		ck_assert_int_eq(place.result, 0);
		fx_serves(&other);
		ck_assert_int_eq(ucm_store_remove(fx_set, &other.key), 0);
	}
}

UNIT_TEST(flush_tells_the_first_error_and_goes_on)
{
	ck_assert_int_eq(ucm_store_sync(fx_set), 0);
	fx_fail("syncfs", 1, -EIO, true);
	ck_assert_int_eq(ucm_store_sync(fx_set), -EIO);
	ck_assert_uint_eq(fx_calls(), 2);
	fx_fail(NULL, 0, 0, false);
}

UNIT_TEST(checkpoint_waits_for_what_is_in_doubt)
{
	uint64_t before = atomic_load(&fx_set->stats.checkpoints);
	ucm_ref ref;

	ck_assert_int_eq(ucm_store_checkpoint(fx_set), 0);
	ck_assert_uint_eq(atomic_load(&fx_set->stats.checkpoints), before + 2);
	/* in one directory */
	fx_block(&other, 2, FX_PAGED);
	ck_assert_int_eq(fx_commit(&other), 0);
	ck_assert(ucm_index_find(fx_set->index, &other.key, NULL, &ref));
	ucm_scan_stop(fx_set); /* they would settle it */
	ucm_store_doubt(fx_set, ref);
	ck_assert_int_eq(ucm_store_checkpoint(fx_set), -EAGAIN);
	ck_assert_uint_eq(atomic_load(&fx_set->stats.checkpoints), before + 3);
	ck_assert_int_eq(ucm_store_settle(fx_set, ref), 0);
	ck_assert_int_eq(ucm_store_checkpoint(fx_set), 0);
}
