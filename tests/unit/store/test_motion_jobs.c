/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_motion_jobs.c - what makes a block move: how it is written, that it is
 * used, or that its directory is drained.
 */
#include <config.h>

#include <errno.h>

#include "fs/store/jobs.h"
#include "fs/store/motion/motion.h"
#include "tests/unit/store/motion_fixture.h"

/* ---- writing ---- */

static bool is_saved(void *arg)
{
	uint64_t blocks, bytes;

	(void)arg;
	ucm_jobs_count_unsaved(fx_set, &blocks, &bytes);
	return !blocks && !atomic_load(&fx_set->dirs.at[1]->writing);
}

UNIT_FIXTURE(.setup = fx_setup_files, .teardown = fx_teardown);

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

/* No block goes for those that come: 95 % of 96 KiB are eleven blocks, less what two
 * movers may bring at once, which counts twice for a moment. */
UNIT_TEST(a_drain_fills_no_directory_above_its_mark)
{
	fx_configure_lru("one=$/a:two=$/b");
	fx_option("limit", "two:96K");
	fx_open();
	fx_start();
	fx_commit_files(0, FILES);
	ucm_movers_drain(fx_set, 0, true);
	wait_until(has_no_more_room);
	ck_assert_uint_eq(fx_set->dirs.at[1]->blocks, 8);
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
