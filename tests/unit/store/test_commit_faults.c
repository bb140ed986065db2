/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_commit_faults.c - a commit of which any call fails: in none of it half
 * a block becomes visible.
 */
#include <config.h>

#include "fs/store/store.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "tests/unit/store/commit_fixture.h"

UNIT_PROGRAM(.variants = fx_media);

UNIT_FIXTURE(.setup = fx_setup, .teardown = fx_teardown);

/* ---- durability ---- */

UNIT_TEST(durability_decides_what_is_synced)
{
	static const struct {
		const char *durability;
		unsigned fdatasync, fsync;
	} rows[] = {
		{ "none", 0, 0 }, { "data", 1, 0 }, { "full", 1, 2 },
	};

	fx_configure("$/a");
	fx_open();
	fx_start();
	for (unsigned i = 0; i < NUM_ROWS(rows); i++) {
		fx_option("durability", rows[i].durability);
		fx_block(&file, 2 * i, FX_PAGED);
		fx_fail("fdatasync", 99, -EIO, true);
		ck_assert_int_eq(fx_commit(&file), 0);
		ck_assert_uint_eq(fx_calls(), rows[i].fdatasync);
		fx_block(&file, 2 * i + 1, FX_PAGED);
		fx_fail("fsync", 99, -EIO, true);
		ck_assert_int_eq(fx_commit(&file), 0);
		ck_assert_uint_eq(fx_calls(), rows[i].fsync);
	}
}

/* The kernel tells of a lost write once; a second fdatasync would say that all
 * is well. */
UNIT_TEST(a_file_whose_fdatasync_failed_is_never_committed)
{
	int fd;

	fx_configure("$/a");
	fx_option("durability", "data");
	fx_open();
	fx_start();
	fx_block(&file, 1, FX_PAGED);
	fd = begin(&file, file.len);
	fx_fail("fdatasync", 1, -EIO, true);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), -EIO);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), -EIO);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_IF_WHOLE), -EIO);
	ck_assert_uint_eq(fx_calls(), 1);
	fx_misses(&file);
	end(fd);
	ck_assert_uint_eq(fx_count_files(fx_path(TMP)), 0);
	ck_assert_uint_eq(fx_count(fx_path("$/a/blocks")), 0);
	atomic_store(&fx_set->dirs.at[0]->retry_s, 0);
	ck_assert_int_eq(fx_commit(&file), 0); /* written anew */
	fx_serves(&file);
}

/* ---- every call fails once ---- */

static unsigned stuck; /* temporary names that could not be removed */

static void check_after_fault(int err, unsigned nth, const char *failed)
{
	const char *path = fx_path("$/a/blocks/%s", fx_name(&file));

	fx_all_whole("$/a");
	if (!err) {
		fx_serves(&file);
	} else {
		ck_assert_msg(fx_find(&file) == -ENOENT, "%u: %s", nth, failed);
		ck_assert_msg(!fx_exists(path), "%u: %s", nth, failed);
	}
	stuck += !strcmp(failed, "unlink");
	ck_assert_msg(fx_count_files(fx_path(TMP)) <= stuck, "%u: %s", nth, failed);
}

static void sweep(const char *durability)
{
	unsigned nth, failures = 0;

	fx_configure("$/a");
	fx_option("durability", durability);
	fx_open();
	fx_start();
	fx_block(&file, 0, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	for (nth = 1;; nth++) {
		const char *failed;
		int err;

		fx_block(&file, nth, FX_PAGED);
		fx_fail(NULL, nth, -EIO, true);
		err = fx_commit(&file);
		failed = fx_failed_call();
		fx_fail(NULL, 0, 0, false);
		if (!failed) {
			ck_assert_int_eq(err, 0);
			break;
		}
		failures += err != 0;
		check_after_fault(err, nth, failed);
		/* and then it succeeds */
		atomic_store(&fx_set->dirs.at[0]->retry_s, 0);
		ck_assert_msg(!fx_commit(&file), "after %s", failed);
		fx_serves(&file);
	}
	ck_assert_uint_ge(failures, 5); /* statvfs, open, fstat, read, link */
	fx_serves(&file);
	fx_close();
	fx_open();
	fx_start();
	ck_assert_uint_eq(atomic_load(&fx_set->blocks), nth + 1);
	ck_assert_uint_eq(fx_count_files(fx_path(TMP)), 0);
}

UNIT_TEST(no_call_that_fails_leaves_half_a_block, .rows = 3)
{
	static const char *const durabilities[] = { "none", "data", "full" };

	sweep(durabilities[_i]);
}

/* From some call on the disk is gone. */
UNIT_TEST(a_disk_that_dies_in_mid_commit_leaves_no_half_block)
{
	unsigned nth;

	fx_configure("$/a");
	fx_option("durability", "full");
	fx_open();
	fx_start();
	for (nth = 1;; nth++) {
		const char *failed;
		int err;

		fx_block(&file, nth, FX_PAGED);
		fx_fail(NULL, nth, -EIO, false);
		err = fx_commit(&file);
		failed = fx_failed_call();
		fx_fail(NULL, 0, 0, false);
		fx_all_whole("$/a");
		if (!err)
			fx_serves(&file);
		else
			fx_misses(&file);
		if (!failed)
			break;
		atomic_store(&fx_set->dirs.at[0]->retry_s, 0);
		ck_assert_msg(!fx_commit(&file), "after %s", failed);
		fx_serves(&file);
	}
	ck_assert_uint_gt(nth, 8);
}
