/* SPDX-License-Identifier: Apache-2.0 */
/* test_motion.c - a block gets a second place, and leaves one of two. */
#include <config.h>

#include <errno.h>
#include <fcntl.h>

#include "fs/store/motion/motion.h"
#include "tests/unit/store/motion_fixture.h"

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

/* For UNIT_PROGRAM: on directories and on media in memory. */
UNIT_PROGRAM(.variants = fx_media);
