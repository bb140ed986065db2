/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_motion.c - blocks that are copied, moved and evicted.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>

#include "fs/store/jobs.h"
#include "fs/store/motion/batch.h"
#include "fs/store/motion/motion.h"
#include "fs/store/pressure.h"
#include "tests/unit/store_fixture.h"

#define BYTES 8192u /* of a block of FX_PAGED */

#define FILES 24u /* of fx_files that are used */

static ucm_ref ref_of(unsigned i)
{
	ucm_ref ref;

	must(ucm_index_find(fx_set->index, &fx_files[i].key, NULL, &ref));
	return ref;
}

static struct ucm_entry entry_of(unsigned i)
{
	struct ucm_entry entry;

	must(ucm_index_find(fx_set->index, &fx_files[i].key, &entry, NULL));
	return entry;
}

static bool is_there(unsigned i)
{
	return ucm_index_find(fx_set->index, &fx_files[i].key, NULL, NULL);
}

static void set_used(struct ucm_entry *entry, void *arg)
{
	entry->atime_s = *(const uint32_t *)arg;
}

/* i was last used so many seconds ago. */
static void age(unsigned i, uint32_t seconds)
{
	uint32_t then = ucm_value_now() - seconds;

	must(ucm_index_edit(fx_set->index, ref_of(i), set_used, &then));
}

static int copy_to(unsigned i, unsigned tier, bool first)
{
	const struct ucm_move_terms move = {
		.to = &fx_set->dirs.tiers[tier],
		.first = first,
	};

	return ucm_store_copy(fx_set, ref_of(i), &move, NULL);
}

static int drop(unsigned i, unsigned dir)
{
	return ucm_store_drop_place(fx_set, ref_of(i), dir, NULL);
}

static bool lies_in(const char *dir, unsigned i)
{
	return fx_exists(fx_path("%s/blocks/%s", dir, fx_name(&fx_files[i])));
}

/* What each directory counts is what the index has. */
static void sums_are_right(void)
{
	uint64_t blocks[3] = {0}, alone[3] = {0};

	for (unsigned i = 0; i < FILES; i++) {
		struct ucm_entry entry;

		if (!ucm_index_find(fx_set->index, &fx_files[i].key, &entry,
				    NULL))
			continue;
		blocks[entry.dir]++;
		if (entry.copy)
			blocks[entry.copy - 1]++;
		else
			alone[entry.dir]++;
	}
	for (unsigned dir = 0; dir < fx_set->dirs.num; dir++) {
		const struct ucm_medium *medium = fx_set->dirs.at[dir];

		ck_assert_uint_eq(medium->blocks, blocks[dir]);
		ck_assert_uint_eq(medium->alone, alone[dir]);
		ck_assert_uint_eq(medium->used, blocks[dir] * BYTES);
		ck_assert_uint_eq(medium->alone_bytes, alone[dir] * BYTES);
		ck_assert_uint_eq(medium->writing, 0);
	}
}

static void wait_until(bool (*done)(void *arg))
{
	fx_wait(done, NULL);
}

UNIT_FIXTURE(.setup = fx_setup_files, .teardown = fx_teardown);

/* ---- a copy ---- */

UNIT_TEST(a_copy_is_a_second_place)
{
	fx_still_store("fast=$/a:slow=$/b");
	fx_commit_files(0, 1);
	ck_assert_int_eq(copy_to(0, 1, false), 0);
	ck_assert_uint_eq(entry_of(0).dir, 0);
	ck_assert_uint_eq(entry_of(0).copy, 2);
	ck_assert(lies_in("$/a", 0) && lies_in("$/b", 0));
	fx_all_whole("$/b");
	ck_assert_int_eq(copy_to(0, 1, false), -EEXIST);
	sums_are_right();
	fx_serves(&fx_files[0]);
}

UNIT_TEST(it_keeps_the_times_and_pins_of_the_block)
{
	struct stat a, b;

	fx_still_store("fast=$/a:slow=$/b");
	fx_commit_files(0, 1);
	ck_assert_int_eq(ucm_store_pin(fx_set, ref_of(0), true), 0);
	ck_assert_int_eq(copy_to(0, 1, false), 0);
	ck_assert_int_eq(
		fx_stat(fx_path("$/a/blocks/%s", fx_name(&fx_files[0])), &a),
		0);
	ck_assert_int_eq(
		fx_stat(fx_path("$/b/blocks/%s", fx_name(&fx_files[0])), &b),
		0);
	ck_assert_mem_eq(&a.st_mtim, &b.st_mtim, sizeof(a.st_mtim));
	ck_assert_int_eq(drop(0, 0), 0);
	fx_close();
	fx_open();
	fx_start();
	ck_assert(entry_of(0).flags & UCM_ENTRY_PINNED);
}

UNIT_TEST(it_keeps_when_the_block_was_last_used)
{
	uint32_t used;

	fx_still_store("fast=$/a:slow=$/b");
	fx_commit_files(0, 1);
	age(0, 1000);
	used = entry_of(0).atime_s;
	ck_assert_int_eq(copy_to(0, 1, false), 0);
	ck_assert_int_eq(drop(0, 0), 0);
	ck_assert_uint_eq(entry_of(0).atime_s, used);
	fx_close();
	fx_open();
	fx_start();
	ck_assert_uint_eq(entry_of(0).atime_s, used);
}

UNIT_TEST(a_pin_does_not_go_with_the_place_that_had_its_mark)
{
	fx_still_store("fast=$/a:slow=$/b");
	fx_commit_files(0, 1);
	ck_assert_int_eq(ucm_store_pin(fx_set, ref_of(0), true), 0);
	fx_plant("$/b", "blocks", &fx_files[0]); /* by a crash, say */
	fx_close();
	fx_open();
	fx_start();
	ck_assert_uint_eq(entry_of(0).copy, 2);
	ck_assert_int_eq(drop(0, 0), 0);
	fx_close();
	fx_open();
	fx_start();
	ck_assert(entry_of(0).flags & UCM_ENTRY_PINNED);
}

UNIT_TEST(a_damaged_block_is_not_copied)
{
	int fd;

	fx_still_store("fast=$/a:slow=$/b");
	fx_commit_files(0, 1);
	fd = fx_open_path(fx_path("$/a/blocks/%s", fx_name(&fx_files[0])),
			  O_RDWR);
	ck_assert_int_eq(fx_pwrite(fd, "x", 1, 5000), 1);
	fx_close_file(fd);
	ck_assert_int_eq(copy_to(0, 1, false), -ENOENT);
	ck_assert(!is_there(0) && !lies_in("$/b", 0));
	ck_assert_uint_eq(fx_count_files("$/b/.ucmfs/tmp"), 0);
	ck_assert(fx_logged("quarantined"));
	sums_are_right();
}

static const struct {
	enum fx_kind kind;
} kinds[] = {{FX_PAGED}, {FX_PACKED}, {FX_PAGED_RAW}, {FX_PACKED_RAW},
	     {FX_BARE}};

UNIT_TEST(every_form_is_copied_whole, .rows = NUM_ROWS(kinds))
{
	static uint8_t there[sizeof(fx_files[0].bytes)];
	int fd;

	fx_still_store("fast=$/a:slow=$/b");
	fx_block(&fx_files[0], 1, kinds[_i].kind);
	fx_commit_files(0, 1);
	ck_assert_int_eq(copy_to(0, 1, true), 0);
	ck_assert_int_eq(drop(0, 0), 0);
	fd = fx_open_path(fx_path("$/b/blocks/%s", fx_name(&fx_files[0])),
			  O_RDONLY);
	ck_assert_int_eq(fx_pread(fd, there, sizeof(there), 0),
			 (ssize_t)fx_files[0].len);
	ck_assert_mem_eq(there, fx_files[0].bytes, fx_files[0].len);
	fx_close_file(fd);
	fx_serves(&fx_files[0]);
}

/* Another program writes to the file that is being copied. */
static void write_to_source(void *arg, uint64_t bytes)
{
	const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT},
					  {.tv_sec = 1}};
	int fd = fx_open_path(fx_path("$/a/blocks/%s", fx_name(&fx_files[0])),
			      O_RDWR);

	(void)arg;
	(void)bytes;
	ck_assert_int_eq(fx_pwrite(fd, "x", 1, 4100), 1);
	/* the clock of files may not have moved on since the commit */
	ck_assert_int_eq(fx_futimens(fd, times), 0);
	fx_close_file(fd);
}

UNIT_TEST(what_has_changed_since_it_was_read_is_not_copied)
{
	struct ucm_move_terms move = {.pace = write_to_source};

	fx_still_store("fast=$/a:slow=$/b");
	fx_block(&fx_files[0], 1, FX_PAGED_RAW); /* no checksum shows it */
	fx_commit_files(0, 1);
	move.to = &fx_set->dirs.tiers[1];
	ck_assert_int_eq(ucm_store_copy(fx_set, ref_of(0), &move, NULL),
			 -EBUSY);
	ck_assert_uint_eq(entry_of(0).copy, 0);
	ck_assert(!lies_in("$/b", 0));
	ck_assert_uint_eq(fx_count_files("$/b/.ucmfs/tmp"), 0);
	sums_are_right();
}

UNIT_TEST(what_its_writer_has_open_is_not_copied)
{
	struct ucm_temp temp;
	int fd;

	fx_still_store("fast=$/a:slow=$/b");
	fd = fx_create(&fx_files[0].key, 0, &temp);
	ck_assert_int_eq(fx_pwrite(fd, fx_files[0].bytes, fx_files[0].len, 0),
			 (ssize_t)fx_files[0].len);
	ck_assert_int_eq(fx_commit_temp(&temp, fd, &fx_files[0].key,
					UCM_COMMIT_NOW),
			 0);
	ck_assert_int_eq(copy_to(0, 1, false), -EBUSY);
	fx_close_file(fd);
	ucm_store_drop(fx_set, &temp);
	ck_assert_int_eq(copy_to(0, 1, false), 0);
}

/* Wherever a call fails, the block is served, and nothing is left behind. */
UNIT_TEST(no_call_that_fails_loses_a_block)
{
	static const int errors[] = {-EIO, -ENOSPC, -ESTALE};
	bool failed = true;

	fx_still_store("fast=$/a:slow=$/b");
	fx_commit_files(0, 1);
	for (unsigned nth = 1; failed; nth++) {
		int err;

		fx_fail(NULL, nth, errors[nth % NUM_ROWS(errors)], true);
		err = copy_to(0, 1, false);
		if (!err)
			err = drop(0, 0);
		failed = fx_failed_call() != NULL;
		fx_fail(NULL, 0, 0, false);
		ck_assert_msg(is_there(0), "call %u: the block is gone", nth);
		fx_serves(&fx_files[0]);
		ck_assert_uint_eq(fx_count_files("$/b/.ucmfs/tmp"), 0);
		/* back to where it began */
		if (entry_of(0).dir == 1 || entry_of(0).copy == 2) {
			if (!entry_of(0).copy)
				ck_assert_int_eq(copy_to(0, 0, true), 0);
			ck_assert_int_eq(drop(0, 1), 0);
		}
		ck_assert_uint_eq(entry_of(0).dir, 0);
		atomic_store(&fx_set->dirs.at[0]->retry_s, 0);
		atomic_store(&fx_set->dirs.at[1]->retry_s, 0);
	}
	sums_are_right();
}

/* ---- the end of a place ---- */

UNIT_TEST(a_block_leaves_one_of_two_places)
{
	fx_still_store("fast=$/a:slow=$/b");
	fx_commit_files(0, 2);
	ck_assert_int_eq(drop(0, 0), -ESTALE); /* it has no other */
	ck_assert_int_eq(copy_to(0, 1, false), 0);
	ck_assert_int_eq(copy_to(1, 1, false), 0);
	ck_assert_int_eq(drop(0, 0), 0);
	ck_assert_int_eq(drop(1, 1), 0);
	ck_assert(!lies_in("$/a", 0) && lies_in("$/b", 0));
	ck_assert(lies_in("$/a", 1) && !lies_in("$/b", 1));
	sums_are_right();
	fx_serves(&fx_files[0]);
	fx_serves(&fx_files[1]);
}

UNIT_TEST(not_the_place_where_it_is_open)
{
	struct ucm_open open = {0};
	struct ucm_entry entry;
	int fd;

	fx_still_store("fast=$/a:slow=$/b");
	fx_commit_files(0, 1);
	ck_assert_int_eq(copy_to(0, 1, false), 0);
	fd = fx_open_block_held(ref_of(0), &entry, &open);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(drop(0, 0), -EBUSY);
	ucm_hold_end(fx_set, &open);
	fx_close_file(fd);
	ck_assert_int_eq(drop(0, 0), 0);
}

UNIT_TEST(not_where_the_other_file_is_gone)
{
	fx_still_store("fast=$/a:slow=$/b");
	fx_commit_files(0, 1);
	ck_assert_int_eq(copy_to(0, 1, false), 0);
	ck_assert_int_eq(fx_unlink(fx_path("$/b/blocks/%s",
					   fx_name(&fx_files[0]))),
			 0);
	ck_assert_int_eq(drop(0, 0), -ESTALE);
	ck_assert_uint_eq(entry_of(0).copy, 0);
	fx_serves(&fx_files[0]);
	sums_are_right();
}

UNIT_TEST(an_unlink_takes_both_places)
{
	fx_still_store("fast=$/a:slow=$/b");
	fx_commit_files(0, 1);
	ck_assert_int_eq(copy_to(0, 1, false), 0);
	ck_assert_int_eq(ucm_store_remove(fx_set, &fx_files[0].key), 0);
	ck_assert(!lies_in("$/a", 0) && !lies_in("$/b", 0));
	sums_are_right();
}

UNIT_TEST(both_places_are_known_after_a_restart)
{
	fx_still_store("fast=$/a:slow=$/b");
	fx_commit_files(0, 2);
	ck_assert_int_eq(copy_to(0, 1, false), 0);
	fx_close();
	fx_open();
	fx_start();
	ck_assert_uint_eq(entry_of(0).dir, 0);
	ck_assert_uint_eq(entry_of(0).copy, 2);
	ck_assert_uint_eq(entry_of(1).copy, 0);
	sums_are_right();
}

/* ---- room ---- */

static int evict_bytes(unsigned dir, uint64_t bytes, enum ucm_eviction how)
{
	uint64_t freed;

	return ucm_evict_bytes(fx_set, dir, bytes, how, NULL, &freed);
}

UNIT_TEST(the_one_goes_that_was_not_used_for_longest)
{
	fx_still_store("only=$/a");
	fx_commit_files(0, 10);
	for (unsigned i = 0; i < 10; i++)
		age(i, 100 + (i * 7) % 10);
	for (unsigned left = 10; left > 0; left--) {
		unsigned gone = 0;

		ck_assert_int_eq(evict_bytes(0, 1, UCM_EVICTION_AT_ONCE), 0);
		for (unsigned i = 0; i < 10; i++) {
			gone += !is_there(i);
			/* 7 * 7 % 10 == 9: the oldest first */
			if ((i * 7) % 10 >= left - 1)
				ck_assert(!is_there(i));
		}
		ck_assert_uint_eq(gone, 10 - left + 1);
	}
	ck_assert_int_eq(evict_bytes(0, 1, UCM_EVICTION_AT_ONCE), -ENOSPC);
	sums_are_right();
}

UNIT_TEST(what_is_held_stays)
{
	struct ucm_open open = {0};
	struct ucm_entry entry;
	int fd;

	fx_still_store("only=$/a");
	fx_commit_files(0, 4);
	ck_assert_int_eq(ucm_store_pin(fx_set, ref_of(0), true), 0);
	ck_assert_int_eq(ucm_store_pin(fx_set, ref_of(1), true), 0);
	fd = fx_open_block_held(ref_of(2), &entry, &open);
	for (unsigned i = 0; i < 4; i++)
		age(i, 100 - i);
	ck_assert_int_eq(evict_bytes(0, BYTES, UCM_EVICTION_AT_ONCE), 0);
	ck_assert(!is_there(3));
	ck_assert_int_eq(evict_bytes(0, BYTES, UCM_EVICTION_AT_ONCE), -ENOSPC);
	ucm_hold_end(fx_set, &open);
	fx_close_file(fd);
	ck_assert_int_eq(evict_bytes(0, BYTES, UCM_EVICTION_AT_ONCE), 0);
	ck_assert(!is_there(2) && is_there(0) && is_there(1));
}

/* Blocks 0 - 1 - 2 and 0 - 3, of which 0 is the oldest. */
static void plant_chain(void)
{
	static const unsigned parents[] = {0, 0, 1, 0};

	for (unsigned i = 1; i < 4; i++) {
		fx_files[i].block.flags |= UCM_BLOCK_HAS_PARENT;
		fx_files[i].block.parent = fx_files[parents[i]].key.id;
		fx_encode(&fx_files[i], true);
	}
	fx_commit_files(0, 4);
	for (unsigned i = 0; i < 4; i++)
		age(i, 100 - i);
}

UNIT_TEST(chains_are_eaten_from_their_ends)
{
	static const unsigned order[] = {2, 1, 3, 0};

	fx_still_store("only=$/a");
	plant_chain();
	for (unsigned i = 0; i < 4; i++) {
		ck_assert_int_eq(evict_bytes(0, 1, UCM_EVICTION_AT_ONCE), 0);
		ck_assert_msg(!is_there(order[i]), "block %u", order[i]);
	}
}

UNIT_TEST(what_leaves_a_fast_tier_goes_to_the_next)
{
	fx_still_store("fast=$/a:slow=$/b");
	fx_commit_files(0, 4);
	for (unsigned i = 0; i < 4; i++)
		age(i, 100 - i);
	/* nothing is copied while somebody waits */
	ck_assert_int_eq(evict_bytes(0, BYTES, UCM_EVICTION_AT_ONCE), -ENOSPC);
	ck_assert_int_eq(evict_bytes(0, 2 * BYTES, UCM_EVICTION_MOVING), 0);
	for (unsigned i = 0; i < 4; i++) {
		ck_assert_uint_eq(entry_of(i).dir, i < 2);
		fx_serves(&fx_files[i]);
	}
	sums_are_right();
	/* but what lies below leaves at once */
	ck_assert_int_eq(copy_to(2, 1, false), 0);
	ck_assert_int_eq(copy_to(3, 1, false), 0);
	ck_assert_int_eq(evict_bytes(0, BYTES, UCM_EVICTION_AT_ONCE), 0);
	sums_are_right();
}

/* The next tier is full of what is worth more, and the lowest has room. */
UNIT_TEST(what_one_tier_refuses_goes_to_the_next_but_one)
{
	fx_configure("fast=$/a:mid=$/b:slow=$/c");
	fx_option("policy", "lru");
	fx_option("limit", "mid:16K");
	fx_open_still();
	fx_commit_files(0, 2);
	ck_assert_int_eq(evict_bytes(0, 2 * BYTES, UCM_EVICTION_MOVING), 0);
	fx_commit_files(2, 1);
	age(0, 10);
	age(1, 10);
	age(2, 100);
	ck_assert_int_eq(evict_bytes(0, BYTES, UCM_EVICTION_MOVING), 0);
	for (unsigned i = 0; i < 3; i++) {
		ck_assert_uint_eq(entry_of(i).dir, i < 2 ? 1 : 2);
		fx_serves(&fx_files[i]);
	}
	sums_are_right();
}

/* Nor is a block lost while another directory of the tier has room. */
UNIT_TEST(what_has_room_beside_is_not_lost)
{
	fx_still_store("only=$/a,$/b");
	fx_commit_files(0, 8);
	for (unsigned i = 0; i < 8; i++)
		age(i, 100 - i);
	while (fx_set->dirs.at[0]->blocks)
		ck_assert_int_eq(evict_bytes(0, BYTES, UCM_EVICTION_MOVING), 0);
	for (unsigned i = 0; i < 8; i++) {
		ck_assert_uint_eq(entry_of(i).dir, 1);
		fx_serves(&fx_files[i]);
	}
	sums_are_right();
}

/* True if the call was met. */
static bool evict_without_room_for(unsigned nth)
{
	bool met;

	fx_commit_files(0, 3);
	fx_fail(NULL, nth, -ENOSPC, true);
	evict_bytes(0, BYTES, UCM_EVICTION_MOVING);
	met = fx_failed_call();
	fx_fail(NULL, 0, 0, false);
	fx_set->dirs.at[1]->retry_s = 0;
	for (unsigned i = 0; i < 3; i++) {
		ck_assert_msg(is_there(i), "call %u: block %u", nth, i);
		ck_assert_int_eq(ucm_store_remove(fx_set, &fx_files[i].key), 0);
	}
	sums_are_right();
	return met;
}

UNIT_TEST(a_call_that_fails_for_want_of_room_is_no_full_tier)
{
	unsigned nth = 1;

	fx_still_store("fast=$/a:slow=$/b");
	while (evict_without_room_for(nth))
		nth++;
	ck_assert_uint_gt(nth, 10);
}

/* ---- leaving together ---- */

static struct ucm_batch batch;

static int copy_in_batch(unsigned i)
{
	int err = ucm_batch_begin_copy(&batch, ref_of(i));

	ck_assert_int_eq(err, 0);
	return ucm_batch_end_copy(&batch, copy_to(i, 1, false));
}

UNIT_TEST(a_copy_that_is_not_on_disk_is_not_all_that_is_left)
{
	uint64_t freed = 0;

	fx_still_store("fast=$/a:slow=$/b");
	fx_commit_files(0, 4);
	ucm_batch_init(&batch, fx_set, 0, true);
	for (unsigned i = 0; i < 3; i++)
		ck_assert_int_eq(copy_in_batch(i), 0);
	ck_assert_int_eq(copy_in_batch(0), 0); /* what has one is welcome */
	ck_assert(ucm_batch_has(&batch, ref_of(2)));
	ck_assert(!ucm_batch_has(&batch, ref_of(3)));
	ck_assert_int_eq(drop(0, 0), -EBUSY);
	ck_assert_int_eq(evict_bytes(0, BYTES, UCM_EVICTION_AT_ONCE), -ENOSPC);
	ck_assert_uint_eq(entry_of(0).dir, 0);
	/* but a program may unlink it */
	ck_assert_int_eq(ucm_store_remove(fx_set, &fx_files[1].key), 0);
	ck_assert_uint_eq(ucm_batch_settle(&batch, &freed), 2);
	ck_assert_uint_eq(freed, 2 * BYTES);
	ck_assert_uint_eq(entry_of(0).dir, 1);
	ck_assert(!is_there(1));
	sums_are_right();
}

UNIT_TEST(where_a_sync_fails_nothing_leaves)
{
	fx_still_store("fast=$/a:slow=$/b");
	fx_commit_files(0, 6);
	fx_fail("syncfs", 1, -EIO, false);
	ck_assert_int_eq(evict_bytes(0, 4 * BYTES, UCM_EVICTION_MOVING),
			 -ENOSPC);
	fx_fail(NULL, 0, 0, false);
	for (unsigned i = 0; i < 6; i++) {
		ck_assert_uint_eq(entry_of(i).dir, 0);
		ck_assert_uint_eq(entry_of(i).copy, 0);
		fx_serves(&fx_files[i]);
	}
	sums_are_right();
}

/* Written back, with durability=none: nobody has synced it. */
UNIT_TEST(a_second_place_is_synced_before_the_first_one_goes)
{
	fx_still_store("fast=$/a:slow=$/b");
	fx_commit_files(0, 2);
	ck_assert_int_eq(copy_to(0, 1, false), 0);
	ck_assert_int_eq(copy_to(1, 1, false), 0);
	fx_fail("syncfs", 1, -EIO, false);
	ck_assert_int_eq(evict_bytes(0, 2 * BYTES, UCM_EVICTION_MOVING),
			 -ENOSPC);
	fx_fail(NULL, 0, 0, false);
	for (unsigned i = 0; i < 2; i++) {
		ck_assert(lies_in("$/a", i));
		fx_serves(&fx_files[i]);
	}
	sums_are_right();
}

UNIT_TEST(one_sync_is_enough_for_many)
{
	fx_still_store("fast=$/a:slow=$/b");
	fx_commit_files(0, 8);
	fx_fail("syncfs", UINT_MAX, -EIO, false);
	ck_assert_int_eq(evict_bytes(0, 8 * BYTES, UCM_EVICTION_MOVING), 0);
	ck_assert_uint_eq(fx_calls(), 1);
	fx_fail(NULL, 0, 0, false);
	for (unsigned i = 0; i < 8; i++)
		ck_assert_uint_eq(entry_of(i).dir, 1);
	sums_are_right();
}

/* Which need not hear of a sync of the whole directory. */
UNIT_TEST(on_a_server_each_copy_is_synced)
{
	for (unsigned remote = 0; remote < 2; remote++) {
		fx_still_store(remote ? "fast=$/c:slow=$/d"
				      : "fast=$/a:slow=$/b");
		if (remote)
			fx_set->dirs.at[1]->flags |=
				UCM_MEDIUM_REPORTS_AT_CLOSE;
		fx_commit_files(0, 3);
		fx_fail("fsync", UINT_MAX, -EIO, false);
		ck_assert_int_eq(evict_bytes(0, 3 * BYTES, UCM_EVICTION_MOVING),
				 0);
		ck_assert_uint_eq(fx_calls(), remote ? 2 * 3 : 0);
		fx_fail(NULL, 0, 0, false);
		fx_close();
	}
}

UNIT_TEST(what_is_otherwise_in_memory_alone_stays)
{
	fx_still_store("fast=$/a:mid=$/b:slow=$/c");
	fx_set->dirs.at[0]->flags |= UCM_MEDIUM_VOLATILE;
	fx_commit_files(0, 2);
	ck_assert_int_eq(copy_to(0, 1, false), 0);
	ck_assert_int_eq(copy_to(1, 1, false), 0);
	ck_assert_int_eq(evict_bytes(1, BYTES, UCM_EVICTION_MOVING), -ENOSPC);
	ck_assert_uint_eq(entry_of(0).copy, 2);
	/* the other way round it leaves */
	ck_assert_int_eq(evict_bytes(0, 2 * BYTES, UCM_EVICTION_MOVING), 0);
	ck_assert_uint_eq(entry_of(0).dir, 1);
	ck_assert_int_eq(evict_bytes(1, BYTES, UCM_EVICTION_MOVING), 0);
	sums_are_right();
}

UNIT_TEST(what_is_worth_least_everywhere_goes_altogether)
{
	fx_configure("fast=$/a:slow=$/b");
	fx_option("policy", "lru");
	fx_option("limit", "slow:16K");
	fx_open_still();
	fx_commit_files(0, 4);
	for (unsigned i = 0; i < 4; i++)
		age(i, 100 - i);
	ck_assert_int_eq(evict_bytes(0, 2 * BYTES, UCM_EVICTION_MOVING), 0);
	/* 0 and 1 fill the slow tier; 2 is worth more than 0, and so on */
	ck_assert_int_eq(evict_bytes(0, BYTES, UCM_EVICTION_MOVING), 0);
	ck_assert(!is_there(0) && is_there(1) && is_there(2) && is_there(3));
	ck_assert_uint_eq(entry_of(2).dir, 1);
	/* what is older than all of the slow tier is not moved there */
	fx_commit_files(4, 1);
	age(4, 1000);
	ck_assert_int_eq(evict_bytes(0, BYTES, UCM_EVICTION_MOVING), 0);
	ck_assert(!is_there(4) && is_there(1));
	sums_are_right();
}

UNIT_TEST(a_new_block_takes_the_place_of_an_old_one)
{
	fx_configure("only=$/a");
	fx_option("policy", "lru");
	fx_option("limit", "only:32K");
	fx_open_still();
	for (unsigned i = 0; i < FILES; i++) {
		fx_commit_files(i, 1);
		age(i, 1000 - i);
		ck_assert_uint_le(fx_set->dirs.at[0]->used, 4 * BYTES);
	}
	for (unsigned i = 0; i < FILES; i++)
		ck_assert_int_eq(is_there(i), i >= FILES - 4);
	sums_are_right();
}

UNIT_TEST(without_a_policy_full_is_full)
{
	fx_configure("only=$/a");
	fx_option("limit", "only:16K");
	fx_open_still();
	fx_commit_files(0, 2);
	ck_assert_int_eq(fx_commit(&fx_files[2]), -ENOSPC);
	ck_assert(is_there(0) && is_there(1));
}

UNIT_TEST(no_room_says_what_holds_it)
{
	fx_configure("only=$/a");
	fx_option("policy", "lru");
	fx_option("limit", "only:16K");
	fx_open_still();
	fx_commit_files(0, 2);
	for (unsigned i = 0; i < 2; i++)
		ck_assert_int_eq(ucm_store_pin(fx_set, ref_of(i), true), 0);
	ck_assert_int_eq(fx_commit(&fx_files[2]), -ENOSPC);
	ck_assert(fx_logged("are pinned"));
	ck_assert(is_there(0) && is_there(1));
}

/* ---- marks ---- */

static const struct {
	const char *limit;
	unsigned high, low, blocks, excess; /* blocks */
} marks[] = {
	{"only:80K", 100, 50, 10, 0},	{"only:80K", 90, 50, 9, 0},
	{"only:80K", 90, 50, 10, 5},	{"only:80K", 50, 40, 6, 2},
	{"$/a:80K", 90, 50, 10, 5},	{"$/a:80K", 90, 50, 9, 0},
};

UNIT_TEST(between_the_marks_nothing_is_done, .rows = NUM_ROWS(marks))
{
	fx_configure("only=$/a");
	fx_option("policy", "lru");
	fx_option("limit", fx_path("%s", marks[_i].limit));
	fx_config.high = marks[_i].high;
	fx_config.low = marks[_i].low;
	fx_open_still();
	fx_commit_files(0, marks[_i].blocks);
	ck_assert_uint_eq(ucm_pressure(fx_set, 0), marks[_i].excess * BYTES);
}

UNIT_TEST(a_file_system_is_not_asked_for_each_block)
{
	fx_configure("only=$/a");
	fx_option("policy", "lru");
	fx_option("limit", "only:50%");
	fx_option("reserve", "1%");
	fx_open_still();
	fx_commit_files(0, 1);
	fx_fail("statvfs", UINT_MAX, -EIO, false);
	for (unsigned i = 0; i < 1000; i++)
		ucm_pressure(fx_set, 0);
	/* three at a time: its own, its limit's, the tier's */
	ck_assert_uint_le(fx_calls(), 30);
	fx_fail(NULL, 0, 0, false);
}

/* What is thought to be free: with a reserve of that nothing has to go. */
static uint64_t seen_free(void)
{
	uint64_t least = 0, most = UINT64_MAX / 2;

	while (least < most) {
		fx_config.reserve.size = least + (most - least + 1) / 2;
		if (ucm_pressure(fx_set, 0))
			most = fx_config.reserve.size - 1;
		else
			least = fx_config.reserve.size;
	}
	return least;
}

UNIT_TEST(what_was_removed_since_is_free)
{
	uint64_t before;

	fx_configure("only=$/a");
	fx_option("policy", "lru");
	fx_open_still();
	fx_commit_files(0, 8);
	ucm_pressure(fx_set, 0);
	fx_fail("statvfs", 1, -EIO, false); /* from now on nobody can ask */
	before = seen_free();
	ck_assert_int_eq(evict_bytes(0, 4 * BYTES, UCM_EVICTION_MOVING), 0);
	ck_assert_uint_eq(seen_free(), before + 4 * BYTES);
	fx_fail(NULL, 0, 0, false);
}

UNIT_TEST(once_begun_it_goes_on_to_the_low_mark)
{
	fx_configure("only=$/a");
	fx_option("policy", "lru");
	fx_option("limit", "only:80K");
	fx_config.high = 90;
	fx_config.low = 50;
	fx_open_still();
	fx_commit_files(0, 10);
	ck_assert_uint_eq(ucm_pressure(fx_set, 0), 5 * BYTES);
	ck_assert_int_eq(evict_bytes(0, 2 * BYTES, UCM_EVICTION_MOVING), 0);
	ucm_pressure_ease(fx_set, 0, 2 * BYTES);
	ck_assert_uint_eq(ucm_pressure(fx_set, 0), 3 * BYTES);
	ck_assert_int_eq(evict_bytes(0, 3 * BYTES, UCM_EVICTION_MOVING), 0);
	ucm_pressure_ease(fx_set, 0, 3 * BYTES);
	ck_assert_uint_eq(ucm_pressure(fx_set, 0), 0);
	/* or until nothing more may go */
	ucm_pressure_ease(fx_set, 0, 0);
	fx_commit_files(10, 3);
	ck_assert_uint_eq(ucm_pressure(fx_set, 0), 0);
}

static bool is_below_high(void *arg)
{
	(void)arg;
	return !ucm_pressure(fx_set, 0) &&
	       !atomic_load(&fx_set->dirs.at[1]->writing);
}

UNIT_TEST(a_mover_keeps_below_the_mark)
{
	fx_configure_lru("fast=$/a:slow=$/b");
	fx_option("limit", "fast:80K");
	fx_config.high = 60;
	fx_config.low = 30;
	fx_open();
	fx_start();
	fx_commit_files(0, FILES);
	wait_until(is_below_high);
	for (unsigned i = 0; i < FILES; i++)
		fx_serves(&fx_files[i]);
	ck_assert_uint_le(fx_set->dirs.at[0]->used, 80 * 1024);
}

/* ---- writing ---- */

static bool is_saved(void *arg)
{
	uint64_t blocks, bytes;

	(void)arg;
	ucm_jobs_count_unsaved(fx_set, &blocks, &bytes);
	return !blocks && !atomic_load(&fx_set->dirs.at[1]->writing);
}

UNIT_TEST(written_back_means_copied_soon)
{
	fx_configure_lru("fast=$/a:slow=$/b");
	fx_option("write", "fast:back");
	fx_open();
	fx_start();
	fx_commit_files(0, 8);
	wait_until(is_saved);
	for (unsigned i = 0; i < 8; i++) {
		ck_assert_uint_eq(entry_of(i).dir, 0);
		ck_assert_uint_eq(entry_of(i).copy, 2);
	}
	ck_assert_int_eq(ucm_movers_flush(fx_set, NULL, NULL), 0);
	sums_are_right();
}

UNIT_TEST(what_an_earlier_mount_has_not_copied_is_copied)
{
	fx_still_store("fast=$/a:slow=$/b");
	fx_commit_files(0, 8);
	fx_close();
	fx_option("write", "fast:back");
	fx_open();
	fx_start();
	ck_assert_int_eq(ucm_movers_flush(fx_set, NULL, NULL), 0);
	for (unsigned i = 0; i < 8; i++)
		ck_assert(lies_in("$/b", i));
}

/* Committed while its writer has it open: no mover copies it of itself. */
static int commit_open(unsigned i, struct ucm_temp *temp)
{
	const struct fx_file *file = &fx_files[i];
	int fd = fx_create(&file->key, file->len, temp);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(fx_pwrite(fd, file->bytes, file->len, 0),
			 (ssize_t)file->len);
	ck_assert_int_eq(fx_commit_temp(temp, fd, &file->key, UCM_COMMIT_NOW),
			 0);
	return fd;
}

static void close_committed(int fd, struct ucm_temp *temp)
{
	fx_close_file(fd);
	ucm_store_drop(fx_set, temp);
}

static void through_store(void)
{
	fx_configure("fast=$/a:slow=$/b");
	fx_option("policy", "lru");
	fx_option("write", "fast:through");
}

UNIT_TEST(written_through_means_copied_before_the_commit_returns)
{
	struct ucm_temp temps[4];
	int fds[4];

	through_store();
	fx_open();
	fx_start();
	for (unsigned i = 0; i < 4; i++) {
		fds[i] = commit_open(i, &temps[i]);
		ck_assert_uint_eq(entry_of(i).copy, 2);
	}
	for (unsigned i = 0; i < 4; i++)
		close_committed(fds[i], &temps[i]);
	sums_are_right();
}

static bool is_below(void *arg)
{
	(void)arg;
	/* it was set aside when the copy failed */
	atomic_store(&fx_set->dirs.at[1]->retry_s, 0);
	return entry_of(0).copy == 2;
}

UNIT_TEST(what_cannot_be_written_through_is_a_block_and_copied_later)
{
	struct ucm_temp temp;
	int fd;

	through_store();
	fx_open();
	fx_start();
	fx_fail("write", 2, -EIO, true);
	fd = commit_open(0, &temp);
	fx_fail(NULL, 0, 0, false);
	ck_assert_uint_eq(entry_of(0).copy, 0);
	ck_assert(fx_logged("not written through"));
	close_committed(fd, &temp);
	fx_wait(is_below, NULL);
}

UNIT_TEST(where_no_mover_runs_no_commit_waits_for_one)
{
	struct ucm_temp temp;
	int fd;

	through_store();
	fx_open_still();
	fd = commit_open(0, &temp);
	ck_assert_uint_eq(entry_of(0).copy, 0);
	close_committed(fd, &temp);
	sums_are_right();
}

UNIT_TEST(written_around_means_written_below)
{
	fx_configure("fast=$/a:slow=$/b");
	fx_option("policy", "lru");
	fx_option("write", "fast:around");
	fx_open_still();
	fx_commit_files(0, 1);
	ck_assert_uint_eq(entry_of(0).dir, 1);
}

/* ---- uses ---- */

static bool is_promoted(void *arg)
{
	(void)arg;
	return entry_of(0).dir == 0 &&
	       !atomic_load(&fx_set->dirs.at[0]->writing);
}

static void use(unsigned i)
{
	fx_serves(&fx_files[i]);
}

static bool is_posted(void)
{
	return fx_set->jobs->up.num + fx_set->jobs->warm.num > 0;
}

/* Without movers, so that what they would do stays in the queue. */
static void slow_block(const char *promote)
{
	fx_configure("fast=$/a:slow=$/b");
	fx_option("policy", "lru");
	fx_option("promote", promote);
	fx_option("write", "fast:around");
	fx_open_still();
	fx_set->jobs->started = true;
	fx_commit_files(0, 2);
}

UNIT_TEST(the_second_use_promotes)
{
	slow_block("2");
	use(0);
	ck_assert(!is_posted());
	use(1);
	ck_assert(!is_posted());
	use(0);
	ck_assert(is_posted());
}

UNIT_TEST(never_means_never)
{
	slow_block("never");
	for (unsigned i = 0; i < 9; i++)
		use(0);
	ck_assert(!is_posted());
	ck_assert_int_eq(ucm_jobs_warm(fx_set, ref_of(0)), 0); /* but that */
	ck_assert(is_posted());
}

UNIT_TEST(a_promoted_block_is_read_above_and_stays_below)
{
	fx_configure_lru("fast=$/a:slow=$/b");
	fx_option("promote", "now");
	fx_option("write", "fast:around");
	fx_open();
	fx_start();
	fx_commit_files(0, 1);
	ck_assert_uint_eq(entry_of(0).dir, 1);
	use(0);
	wait_until(is_promoted);
	ck_assert_uint_eq(entry_of(0).copy, 2);
	ck_assert_int_eq(ucm_jobs_warm(fx_set, ref_of(0)), 0);
	fx_serves(&fx_files[0]);
	sums_are_right();
}

static void to_slow(unsigned i)
{
	ck_assert_int_eq(copy_to(i, 1, false), 0);
	ck_assert_int_eq(drop(i, 0), 0);
}

/* fast, blocks: what it has; the age of the one that is to come up, the others
 * are 100 seconds old */
static const struct {
	unsigned blocks, age;
	bool stays;
} coming[] = {
	{4, 1000, true}, /* below the low mark it may be anything */
	{5, 1000, false}, {5, 99, true}, {5, 100, false},
	{9, 1000, false}, {9, 1, true},
};

UNIT_TEST(what_would_be_the_next_to_leave_does_not_come,
	  .rows = NUM_ROWS(coming))
{
	struct ucm_entry entry;

	fx_configure("fast=$/a:slow=$/b");
	fx_option("policy", "lru");
	fx_option("limit", "fast:80K");
	fx_config.high = 95;
	fx_config.low = 50;
	fx_open_still();
	fx_commit_files(20, 1);
	to_slow(20);
	fx_commit_files(0, coming[_i].blocks);
	for (unsigned i = 0; i < coming[_i].blocks; i++)
		age(i, 100);
	age(20, coming[_i].age);
	entry = entry_of(20);
	ck_assert_int_eq(ucm_evict_would_stay(fx_set, &entry,
					      &fx_set->dirs.tiers[0]),
			 coming[_i].stays);
}

static bool is_refused(void *arg)
{
	(void)arg;
	return atomic_load(
		&fx_set->dirs.tiers[0].stats.promotions_refused);
}

static bool is_third_above(void *arg)
{
	(void)arg;
	return entry_of(2).dir == 0 &&
	       !atomic_load(&fx_set->dirs.at[0]->writing);
}

UNIT_TEST(a_use_promotes_nothing_where_nothing_may_go)
{
	fx_configure_lru("fast=$/a:slow=$/b");
	fx_option("promote", "now");
	fx_option("limit", "fast:40K");
	fx_config.low = 30;
	fx_open();
	fx_start();
	fx_commit_files(0, 2);
	for (unsigned i = 0; i < 2; i++)
		ck_assert_int_eq(ucm_store_pin(fx_set, ref_of(i), true), 0);
	fx_set->dirs.tiers[0].write_mode = UCM_WRITE_AROUND;
	fx_commit_files(2, 1);
	ck_assert_uint_eq(entry_of(2).dir, 1);
	use(2);
	wait_until(is_refused);
	ck_assert_uint_eq(entry_of(2).dir, 1);
	/* though there is room, if somebody wants that */
	ck_assert_int_eq(ucm_jobs_warm(fx_set, ref_of(2)), 0);
	wait_until(is_third_above);
	sums_are_right();
}

/* ---- draining ---- */

static bool is_empty(void *arg)
{
	(void)arg;
	return !atomic_load(&fx_set->dirs.at[0]->blocks) &&
	       !atomic_load(&fx_set->dirs.at[1]->writing);
}

static const char *const drains[] = {
	"one=$/a,$/b",	     /* to the other of the tier */
	"one=$/a:two=$/b",   /* below */
};

UNIT_TEST(a_directory_is_drained, .rows = NUM_ROWS(drains))
{
	fx_configure_lru(drains[_i]);
	fx_open();
	fx_start();
	fx_commit_files(0, FILES);
	ucm_movers_drain(fx_set, 0, true);
	wait_until(is_empty);
	for (unsigned i = 0; i < FILES; i++) {
		ck_assert_uint_eq(entry_of(i).dir, 1);
		ck_assert(!lies_in("$/a", i));
		fx_serves(&fx_files[i]);
	}
	sums_are_right();
	ck_assert_int_eq(ucm_store_remove(fx_set, &fx_files[0].key), 0);
	fx_commit_files(0, 1); /* nothing new goes there */
	ck_assert_uint_eq(entry_of(0).dir, 1);
	ucm_movers_drain(fx_set, 0, false);
}

static bool has_no_more_room(void *arg)
{
	(void)arg;
	return atomic_load(&fx_set->dirs.at[0]->stays) &&
	       atomic_load(&fx_set->dirs.at[0]->stays) ==
		       atomic_load(&fx_set->dirs.at[0]->blocks);
}

/* No block goes for those that come: 95 % of 48 KiB are five blocks. */
UNIT_TEST(a_drain_fills_no_directory_above_its_mark)
{
	fx_configure_lru("one=$/a:two=$/b");
	fx_option("limit", "two:48K");
	fx_open();
	fx_start();
	fx_commit_files(0, FILES);
	ucm_movers_drain(fx_set, 0, true);
	wait_until(has_no_more_room);
	ck_assert_uint_eq(fx_set->dirs.at[1]->blocks, 5);
	for (unsigned i = 0; i < FILES; i++)
		fx_serves(&fx_files[i]);
	/* nor is any chosen there */
	ck_assert_int_eq(evict_bytes(0, BYTES, UCM_EVICTION_AT_ONCE), -ENOSPC);
	sums_are_right();
}

static bool is_told_of_losses(void *arg)
{
	(void)arg;
	return fx_logged("writes may be lost");
}

static bool is_alone_again(void *arg)
{
	(void)arg;
	return atomic_load(&fx_set->dirs.at[0]->alone) == FILES;
}

UNIT_TEST(what_is_not_on_disk_leaves_no_other_place)
{
	fx_configure_lru("one=$/a:two=$/b");
	fx_open();
	fx_start();
	fx_commit_files(0, FILES);
	fx_fail("syncfs", 1, -EIO, false);
	ucm_movers_drain(fx_set, 0, true);
	wait_until(is_told_of_losses);
	ucm_movers_drain(fx_set, 0, false);
	fx_fail(NULL, 0, 0, false);
	wait_until(is_alone_again); /* the copies are no good */
	for (unsigned i = 0; i < FILES; i++) {
		ck_assert(lies_in("$/a", i));
		fx_serves(&fx_files[i]);
	}
}

static bool is_balanced(void *arg)
{
	const struct ucm_tier *tier = &fx_set->dirs.tiers[0];

	(void)arg;
	for (unsigned i = 0; i < FILES; i++) {
		struct ucm_entry entry = entry_of(i);
		uint8_t order[2];

		ucm_placement_order(UCM_PLACEMENT_RENDEZVOUS,
				    (const uint8_t(*)[16])tier->uuids, 2,
				    &fx_files[i].key.id, 0, order);
		if (entry.dir != order[0] || entry.copy)
			return false;
	}
	/* a place counts until its file is gone */
	return atomic_load(&fx_set->dirs.at[0]->blocks) +
			       atomic_load(&fx_set->dirs.at[1]->blocks) ==
		       FILES &&
	       !atomic_load(&fx_set->dirs.at[0]->writing) &&
	       !atomic_load(&fx_set->dirs.at[1]->writing);
}

UNIT_TEST(a_new_directory_gets_its_part)
{
	fx_still_store("one=$/a");
	fx_commit_files(0, FILES);
	fx_close();
	ucm_config_fini(&fx_config);
	ucm_config_init(&fx_config);
	fx_configure_lru("one=$/a,$/b");
	fx_open();
	fx_start();
	wait_until(is_balanced);
	ck_assert_uint_gt(fx_set->dirs.at[1]->blocks, 0);
	for (unsigned i = 0; i < FILES; i++)
		fx_serves(&fx_files[i]);
	sums_are_right();
}

/* For UNIT_PROGRAM: on directories and on media in memory. */
UNIT_PROGRAM(.variants = fx_media);
