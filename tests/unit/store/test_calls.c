/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_calls.c - calls on many blocks, on a store.
 */
#include <config.h>

#include "fs/store/find/calls.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "common/filestamp.h"
#include "fs/store/find/find.h"
#include "tests/unit/store_fixture.h"

UNIT_PROGRAM(.variants = fx_media);

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
	return ucm_calls_one(fx_set, op, &of->key);
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(lookup_says_one_or_none)
{
	ck_assert_int_eq(one(UCM_BATCH_LOOKUP, &file), 1);
	ck_assert_int_eq(one(UCM_BATCH_LOOKUP, &other), 0);
}

UNIT_TEST(all_but_lookup_need_the_block, .rows = 4)
{
	static const enum ucm_calls_op ops[] = { UCM_BATCH_TOUCH, UCM_BATCH_PIN,
						 UCM_BATCH_UNPIN,
						 UCM_BATCH_EVICT };

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

/* The owner's word counts more than what others expect. */
UNIT_TEST(an_expected_block_can_be_evicted)
{
	struct ucm_control_place place;

	ck_assert_int_eq(ucm_calls_expect(fx_set, &other.key, 0),
			 -ENOENT);
	ck_assert_int_eq(ucm_calls_expect(fx_set, &file.key, 0), 0);
	ck_assert_int_eq(ucm_calls_expect(fx_set, &file.key, 0), 1);
	ucm_calls_locate(fx_set, &file.key, 0, &place);
	ck_assert_uint_eq(place.flags, 0);
	ck_assert_uint_eq(fx_entry(&file).uses, 0);
	ck_assert_int_eq(one(UCM_BATCH_EVICT, &file), 0);
	fx_misses(&file);
}

UNIT_TEST(locate_tells_what_is_on_disk)
{
	struct ucm_control_place place;
	struct fx_file raw;
	uint32_t crc;

	ucm_calls_locate(fx_set, &file.key, UCM_LOCATE_CRC, &place);
	ck_assert_int_eq(place.result, 0);
	ck_assert_uint_eq(place.tier, 0);
	ck_assert_uint_eq(place.directory, 0);
	ck_assert_uint_eq(place.size, file.len);
	ck_assert_uint_eq(place.flags, UCM_PLACE_CRC);
	memcpy(&crc, file.bytes + 56, sizeof(crc));
	ck_assert_uint_eq(place.crc32c, crc);
	ck_assert_int_eq(one(UCM_BATCH_PIN, &file), 0);
	ucm_calls_locate(fx_set, &file.key, UCM_LOCATE_CRC, &place);
	ck_assert_uint_eq(place.flags, UCM_PLACE_CRC | UCM_PLACE_PINNED);
	fx_block(&raw, 3, FX_PAGED_RAW);
	fx_plant("$/b", "blocks", &raw);
	ucm_calls_locate(fx_set, &raw.key, UCM_LOCATE_CRC, &place);
	ck_assert_int_eq(place.result, -ENOENT); /* put there by hand */
	ck_assert_int_eq(ucm_calls_rescan(fx_set, never, NULL), 0);
	ucm_calls_locate(fx_set, &raw.key, UCM_LOCATE_CRC, &place);
	ck_assert_int_eq(place.result, 0);
	ck_assert_uint_eq(place.tier, 1);
	ck_assert_uint_eq(place.directory, 1);
	ck_assert_uint_eq(place.flags, 0);
	ucm_calls_locate(fx_set, &other.key, UCM_LOCATE_CRC, &place);
	ck_assert_int_eq(place.result, -ENOENT);
}

UNIT_TEST(where_times_can_be_set_nothing_is_marked)
{
	struct ucm_medium *medium = fx_set->dirs.at[0];
	struct ucm_entry entry;
	struct stat st;
	ucm_ref ref;

	ck_assert_int_eq(ucm_store_find(fx_set, &file.key, &entry, &ref), 0);
	ck_assert_int_eq(ucm_medium_find(medium,
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
	ucm_calls_locate(fx_set, &other.key, UCM_LOCATE_PEEK, &place);
	ucm_calls_statistics(fx_set, &stats);
	ck_assert_uint_eq(stats.lookups, 0);
	one(UCM_BATCH_LOOKUP, &file);
	one(UCM_BATCH_LOOKUP, &other);
	ucm_calls_locate(fx_set, &file.key, 0, &place);
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
