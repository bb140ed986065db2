/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_calls.c - calls on many blocks, on a store; and leases.
 */
#include <config.h>

#include "fs/store/calls.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "common/clock.h"
#include "fs/store/inside.h"
#include "tests/unit/store_fixture.h"

UNIT_PROGRAM(.variants = fx_media);

static struct ucm_leases leases;
static struct fx_file file, other;

static void setup(void)
{
	fx_setup();
	ucm_leases_init(&leases, 1 << 20, 600);
	fx_store("fast=$/a:slow=$/b");
	fx_block(&file, 1, FX_PAGED);
	fx_block(&other, 2, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
}

static void teardown(void)
{
	fx_close();
	ucm_leases_fini(&leases);
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
	return ucm_calls_one(fx_set, &leases, op, &of->key);
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

UNIT_TEST(leased_blocks_are_not_evicted)
{
	struct ucm_control_place place;
	ucm_ref ref;
	struct ucm_entry entry;

	ucm_calls_locate(fx_set, &leases, 1, &file.key, 60000, UCM_LOCATE_CRC,
			 &place);
	ck_assert_int_eq(place.result, 0);
	ck_assert_int_eq(one(UCM_BATCH_EVICT, &file), -EBUSY);
	fx_serves(&file);
	/* once the lease has run out they are */
	ck_assert_int_eq(ucm_store_find(fx_set, &file.key, &entry, &ref), 0);
	ck_assert(ucm_lease_held(&leases, ref, ucm_monotonic_ms()));
	ck_assert(!ucm_lease_held(&leases, ref, ucm_monotonic_ms() + 60001));
}

UNIT_TEST(locate_tells_what_is_on_disk)
{
	struct ucm_control_place place;
	struct fx_file raw;
	uint32_t crc;

	ucm_calls_locate(fx_set, &leases, 1, &file.key, 0, UCM_LOCATE_CRC,
			 &place);
	ck_assert_int_eq(place.result, 0);
	ck_assert_uint_eq(place.tier, 0);
	ck_assert_uint_eq(place.directory, 0);
	ck_assert_uint_eq(place.size, file.len);
	ck_assert_uint_eq(place.flags, UCM_PLACE_CRC);
	memcpy(&crc, file.bytes + 56, sizeof(crc));
	ck_assert_uint_eq(place.crc32c, crc);
	ck_assert_int_eq(one(UCM_BATCH_PIN, &file), 0);
	ucm_calls_locate(fx_set, &leases, 1, &file.key, 0, UCM_LOCATE_CRC,
			 &place);
	ck_assert_uint_eq(place.flags, UCM_PLACE_CRC | UCM_PLACE_PINNED);
	fx_block(&raw, 3, FX_PAGED_RAW);
	fx_plant("$/b", "blocks", &raw);
	ucm_calls_locate(fx_set, &leases, 1, &raw.key, 0, UCM_LOCATE_CRC,
			 &place);
	ck_assert_int_eq(place.result, -ENOENT); /* put there by hand */
	ck_assert_int_eq(ucm_calls_rescan(fx_set, never, NULL), 0);
	ucm_calls_locate(fx_set, &leases, 1, &raw.key, 0, UCM_LOCATE_CRC,
			 &place);
	ck_assert_int_eq(place.result, 0);
	ck_assert_uint_eq(place.tier, 1);
	ck_assert_uint_eq(place.directory, 1);
	ck_assert_uint_eq(place.flags, 0);
	ucm_calls_locate(fx_set, &leases, 1, &other.key, 0, UCM_LOCATE_CRC,
			 &place);
	ck_assert_int_eq(place.result, -ENOENT);
}

UNIT_TEST(statistics_add_up)
{
	struct ucm_control_statistics stats;

	ck_assert_int_eq(fx_commit(&other), 0);
	ck_assert_int_eq(one(UCM_BATCH_EVICT, &file), 0);
	ucm_calls_statistics(fx_set, &stats);
	ck_assert_uint_eq(stats.version, UCM_CONTROL_VERSION);
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
	ucm_calls_locate(fx_set, &leases, 1, &other.key, 0, UCM_LOCATE_PEEK,
			 &place);
	ucm_calls_statistics(fx_set, &stats);
	ck_assert_uint_eq(stats.lookups, 0);
	one(UCM_BATCH_LOOKUP, &file);
	one(UCM_BATCH_LOOKUP, &other);
	ucm_calls_locate(fx_set, &leases, 1, &file.key, 0, 0, &place);
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

	ucm_calls_locate(fx_set, &leases, 1, &other.key, 60000, 0, place);
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

/* Many more than the table's first size, most of which have run out. */
UNIT_TEST(leases_run_out_and_make_room)
{
	const int64_t now = 10001;

	for (ucm_ref ref = 1; ref <= 10000; ref++)
		ck_assert_int_eq(ucm_lease_take(&leases, ref, 1, (int64_t)ref,
						ref % 100 ? 1 : 60000),
				 0);
	for (ucm_ref ref = 1; ref <= 10000; ref++)
		ck_assert(ucm_lease_held(&leases, ref, now) == !(ref % 100));
	ck_assert_uint_le(leases.room, 1024);
}

UNIT_TEST(a_lease_is_never_shortened)
{
	ck_assert_int_eq(ucm_lease_take(&leases, 7, 1, 0, 1000), 0);
	ck_assert_int_eq(ucm_lease_take(&leases, 7, 1, 0, 500), 0);
	ck_assert(ucm_lease_held(&leases, 7, 999));
	ck_assert(!ucm_lease_held(&leases, 7, 1000));
	ck_assert(!ucm_lease_held(&leases, 8, 0));
}

UNIT_TEST(a_lease_of_another_user_holds_as_well)
{
	ck_assert_int_eq(ucm_lease_take(&leases, 7, 1, 0, 1000), 0);
	ck_assert_int_eq(ucm_lease_take(&leases, 7, 2, 0, 2000), 0);
	ck_assert(ucm_lease_held(&leases, 7, 1999));
	ck_assert(!ucm_lease_held(&leases, 7, 2000));
}

/* One user and one block; a lease is at most 600 s old. At that time, for so
 * long (in s): is it given? */
static const struct {
	int64_t at, lease;
	int err;
} renewals[] = {
	{ 0, 60, 0 },
	{ 50, 60, 0 },
	{ 100, 60, 0 },
	{ 150, 60, 0 },
	{ 200, 60, 0 },
	{ 250, 60, 0 },
	{ 300, 60, 0 },
	{ 350, 60, 0 },
	{ 400, 60, 0 },
	{ 450, 60, 0 },
	{ 500, 60, 0 },
	{ 540, 60, 0 }, /* until 600 */
	{ 541, 60, -EDQUOT },
	{ 599, 1, 0 },
	{ 600, 1, -EDQUOT },
	/* it must be left for a tenth of 600 s, */
	{ 659, 1, -EDQUOT },
	{ 659, 60, -EDQUOT },
	{ 660, 60, 0 },
	/* and one of 60 s for six */
	{ 725, 60, 0 }, /* until 785: since 660 */
	{ 797, 60, 0 },
	{ 846, 60, 0 },	 /* 125 s are 12.5 s: since 660 still */
	{ 1201, 60, 0 }, /* long over */
};

UNIT_TEST(a_block_is_not_held_for_ever)
{
	for (size_t i = 0; i < NUM_ROWS(renewals); i++)
		ck_assert_msg(ucm_lease_take(&leases, 7, 1,
					     renewals[i].at * 1000,
					     renewals[i].lease * 1000) ==
				      renewals[i].err,
			      "at %lld", (long long)renewals[i].at);
}

UNIT_TEST(a_user_has_so_many_leases_and_others_have_theirs)
{
	struct ucm_leases few;

	ucm_leases_init(&few, 3, 600);
	for (ucm_ref ref = 1; ref <= 3; ref++)
		ck_assert_int_eq(ucm_lease_take(&few, ref, 1, 0, 10000), 0);
	ck_assert_int_eq(ucm_lease_take(&few, 4, 1, 0, 10000), -EDQUOT);
	ck_assert_int_eq(ucm_lease_take(&few, 3, 1, 0, 20000), 0); /* renewed */
	ck_assert_int_eq(ucm_lease_take(&few, 4, 2, 0, 10000), 0);
	ck_assert_int_eq(ucm_lease_take(&few, 4, 1, 5000, 10000), -EDQUOT);
	/* two are over */
	ck_assert_int_eq(ucm_lease_take(&few, 4, 1, 11000, 10000), 0);
	ck_assert_int_eq(ucm_lease_take(&few, 5, 1, 11000, 10000), 0);
	ck_assert_int_eq(ucm_lease_take(&few, 6, 1, 11000, 10000), -EDQUOT);
	ck_assert(ucm_lease_held(&few, 3, 11000));
	ck_assert(!ucm_lease_held(&few, 6, 11000));
	ucm_leases_fini(&few);
}
