/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_commit_tiers.c - commits where tiers are full or fail: which one takes
 * a block, what room it has promised, and what is counted.
 */
#include <config.h>

#include "fs/store/store.h"

#include <errno.h>
#include <stdatomic.h>
#include <fcntl.h>

#include "tests/unit/store/commit_fixture.h"

UNIT_PROGRAM(.variants = fx_media);

static struct fx_file second;

UNIT_FIXTURE(.setup = fx_setup, .teardown = fx_teardown);

/* ---- tiers that are full or fail ---- */

UNIT_TEST(a_full_tier_passes_blocks_to_the_next)
{
	struct ucm_entry entry;
	unsigned dirs[4];
	ucm_ref ref;

	fx_configure("fast=$/a:slow=$/b");
	fx_option("limit", "fast:20000");
	fx_open();
	fx_start();
	for (unsigned i = 0; i < 4; i++) {
		fx_block(&file, i, FX_PAGED);
		ck_assert_int_eq(fx_commit(&file), 0);
		ck_assert_int_eq(
			ucm_store_find(fx_set, &file.key, &entry, &ref), 0);
		dirs[i] = entry.dir;
	}
	ck_assert_uint_eq(dirs[0], 0);
	ck_assert_uint_eq(dirs[1], 0);
	ck_assert_uint_eq(dirs[2], 1);
	ck_assert_uint_eq(dirs[3], 1);
	/* room again */
	fx_block(&file, 0, FX_PAGED);
	ck_assert_int_eq(ucm_store_remove(fx_set, &file.key), 0);
	ck_assert_int_eq(fx_commit(&file), 0);
	ck_assert_int_eq(ucm_store_find(fx_set, &file.key, &entry, &ref), 0);
	ck_assert_uint_eq(entry.dir, 0);
}

/* Files that are being written count as if they were there. */
UNIT_TEST(room_is_promised_once)
{
	struct ucm_temp temps[3];
	int fds[3];

	fx_configure("fast=$/a");
	fx_option("limit", "fast:20000");
	fx_open();
	fx_start();
	fx_block(&file, 0, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_block(&file, 1, FX_PAGED);
	fds[0] = fx_create(&file.key, 0, &temps[0]);
	ck_assert_int_ge(fds[0], 0);
	ck_assert_int_eq(fx_create(&file.key, 0, &temps[1]),
			 -ENOSPC);
	ucm_store_drop(fx_set, &temps[0]);
	fx_close_file(fds[0]);
	fds[2] = fx_create(&file.key, 0, &temps[2]);
	ck_assert_int_ge(fds[2], 0);
	ucm_store_drop(fx_set, &temps[2]);
	fx_close_file(fds[2]);
}

/* Files of blocks first to first + 4 are made at once, with bytes told; then
 * all are written. How many lie in the first directory? */
static unsigned five_at_once(unsigned first, uint64_t bytes)
{
	struct ucm_temp temps[5];
	unsigned in_first = 0;
	int fds[5];

	for (unsigned i = 0; i < 5; i++) {
		fx_block(&file, first + i, FX_PAGED);
		fds[i] = fx_create(&file.key, bytes, &temps[i]);
		ck_assert_int_ge(fds[i], 0);
		in_first += temps[i].dir == 0;
	}
	for (unsigned i = 0; i < 5; i++) {
		fx_block(&file, first + i, FX_PAGED);
		ck_assert_int_eq(fx_pwrite(fds[i], file.bytes, file.len, 0),
				 (ssize_t)file.len);
		ck_assert_int_eq(fx_commit_temp(&temps[i], fds[i],
						  &file.key, UCM_COMMIT_NOW),
				 0);
		ucm_store_drop(fx_set, &temps[i]);
		fx_close_file(fds[i]);
		fx_serves(&file);
	}
	ck_assert_uint_eq(fx_set->dirs.tiers[0].writing, 0);
	ck_assert_uint_eq(fx_set->dirs.tiers[0].guessed, 0);
	return in_first;
}

UNIT_TEST(the_first_blocks_of_a_space_do_not_pass_the_limit)
{
	fx_configure("fast=$/a:slow=$/b");
	fx_option("limit", "fast:30000");
	fx_open();
	fx_start();
	ck_assert_uint_eq(five_at_once(0, 0), 1);
	/* now the size is known: of three that fit, one is there */
	ck_assert_uint_eq(five_at_once(5, 0), 2);
	ck_assert_uint_eq(five_at_once(10, 0), 0);
	ck_assert_uint_eq(ucm_tier_used(&fx_set->dirs.tiers[0]), 3 * file.len);
	ck_assert_uint_eq(fx_set->sizes.largest, file.len);
}

UNIT_TEST(a_size_that_is_told_needs_no_guess)
{
	fx_configure("fast=$/a:slow=$/b");
	fx_option("limit", "fast:30000");
	fx_open();
	fx_start();
	fx_block(&file, 0, FX_PAGED);
	ck_assert_uint_eq(five_at_once(0, file.len), 3);
	ck_assert_uint_eq(ucm_tier_used(&fx_set->dirs.tiers[0]), 3 * file.len);
}

/* Of many that may be too large for all tiers, none is turned away. */
UNIT_TEST(a_guess_that_fits_nowhere_goes_where_there_is_most_room)
{
	fx_configure("fast=$/a:slow=$/b");
	fx_option("limit", "fast:30000");
	fx_open();
	fx_start();
	atomic_store(&fx_set->sizes.largest, UINT64_C(1) << 60);
	ck_assert_uint_eq(five_at_once(0, 0), 1);
	ck_assert_uint_eq(ucm_tier_used(&fx_set->dirs.tiers[1]), 4 * file.len);
}

UNIT_TEST(what_a_file_of_unknown_size_had_is_remembered)
{
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	fd = begin(&file, file.len);
	end(fd);
	ck_assert_uint_eq(fx_set->sizes.outgrown, file.len);
	fd = begin(&file, 0);
	end(fd);
	ck_assert_uint_eq(fx_set->sizes.outgrown, file.len);
}

UNIT_TEST(a_closed_file_needs_no_guess)
{
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	fd = begin(&file, 0);
	fx_rest(&temp, fd);
	ck_assert_uint_ge(fx_set->dirs.tiers[0].guessed, 1 << 20);
	ck_assert_int_eq(fx_pwrite(fd, file.bytes, file.len, 0),
			 (ssize_t)file.len);
	fx_rest(&temp, fd);
	ck_assert_uint_eq(fx_set->dirs.tiers[0].guessed, 0);
	ck_assert_uint_eq(fx_set->dirs.tiers[0].writing, file.len);
	end(fd);
}

UNIT_TEST(a_directory_that_fails_is_passed_over_for_a_while, .rows = 4)
{
	static const int errors[] = { -ENOSPC, -EIO, -EROFS, -EDQUOT };
	struct ucm_entry entry;
	ucm_ref ref;

	fx_configure("fast=$/a:slow=$/b");
	fx_open();
	fx_start();
	fx_block(&file, 1, FX_PAGED);
	fx_fail_on("open", "-", 1, errors[_i], true); /* a new file */
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_fail(NULL, 0, 0, false);
	fx_block(&second, 2, FX_PAGED);
	ck_assert_int_eq(fx_commit(&second), 0);
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(ucm_store_find(fx_set,
						i ? &second.key : &file.key,
						&entry, &ref),
				 0);
		ck_assert_uint_eq(entry.dir, 1);
	}
	ck_assert_uint_eq(fx_set->dirs.tiers[0].writing, 0);
	ck_assert_uint_eq(fx_set->dirs.io_errors, 1);
	ck_assert_uint_eq(fx_set->dirs.tiers[0].stats.errors[-errors[_i]], 1);
	ck_assert_uint_eq(fx_set->dirs.tiers[1].stats.errors[-errors[_i]], 0);
}

/* Not for room, of which there is enough. */
UNIT_TEST(for_a_directory_that_fails_nothing_is_evicted)
{
	fx_configure_lru("only=$/a");
	fx_open();
	fx_start();
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_block(&second, 2, FX_PAGED);
	fx_fail_on("open", "-", 1, -EIO, true);
	for (unsigned i = 0; i < 4; i++)
		ck_assert_int_eq(fx_commit(&second), -EIO);
	fx_serves(&file);
}

UNIT_TEST(commits_opens_and_removals_are_counted_by_tier)
{
	struct ucm_tier_stats *fast, *slow;

	fx_configure("fast=$/a:slow=$/b");
	fx_option("limit", "fast:10000");
	fx_open();
	fx_start();
	fast = &fx_set->dirs.tiers[0].stats;
	slow = &fx_set->dirs.tiers[1].stats;
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_block(&second, 2, FX_PAGED);
	ck_assert_int_eq(fx_commit(&second), 0);
	ck_assert_int_eq(fx_commit(&second), 0); /* a duplicate is none */
	ck_assert_uint_eq(fast->commits, 1);
	ck_assert_uint_eq(fast->committed_bytes, file.len);
	ck_assert_uint_eq(slow->commits, 1);
	fx_serves(&file);
	fx_serves(&file);
	ck_assert_uint_eq(fast->opens, 2);
	ck_assert_uint_eq(fast->opened_bytes, 2 * file.len);
	ck_assert_uint_eq(slow->opens, 0);
	ck_assert_int_eq(ucm_store_remove(fx_set, &second.key), 0);
	ck_assert_uint_eq(slow->removed, 1);
	ck_assert_uint_eq(slow->removed_bytes, second.len);
	ck_assert_uint_eq(fast->removed, 0);
}

UNIT_TEST(refused_files_are_counted_by_cause)
{
	struct ucm_geometry g = fx_geometry;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	g.num_layers = 3;
	fx_block_of(&file, 2, FX_PAGED, &g);
	ck_assert_int_eq(fx_commit(&file), -EINVAL);
	fx_block(&file, 3, FX_PAGED);
	file.bytes[0] ^= 1;
	ck_assert_int_eq(fx_commit(&file), -EINVAL);
	ck_assert_uint_eq(fx_set->stats.refused_for[UCM_FAULT_GEOMETRY], 1);
	ck_assert_uint_eq(fx_set->stats.refused_for[UCM_FAULT_MAGIC], 1);
	ck_assert_uint_eq(fx_set->stats.commit_refused, 2);
}

UNIT_TEST(without_room_anywhere_it_is_enospc)
{
	fx_configure("fast=$/a:slow=$/b");
	fx_option("limit", "fast:1");
	fx_option("limit", "slow:1");
	fx_open();
	fx_start();
	fx_set->dirs.at[0]->used = fx_set->dirs.at[1]->used = 2;
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), -ENOSPC);
	fx_set->dirs.at[0]->used = fx_set->dirs.at[1]->used = 0;
}

UNIT_TEST(a_readonly_tier_takes_nothing)
{
	struct ucm_entry entry;
	ucm_ref ref;

	fx_store("$/r"); /* so that it is a directory of ours */
	fx_close();
	fx_configure("r=$/r:w=$/a");
	fx_option("readonly", "r");
	fx_open();
	fx_start();
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	ck_assert_int_eq(ucm_store_find(fx_set, &file.key, &entry, &ref), 0);
	ck_assert_uint_eq(entry.dir, 1);
	fx_close();

	fx_configure("r=$/r");
	fx_option("readonly", "r");
	fx_open();
	fx_start();
	ck_assert_int_eq(fx_commit(&file), -EROFS);
}

UNIT_TEST(enospc_of_the_link_is_told_as_such)
{
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	fd = begin(&file, file.len);
	fx_fail("link", 1, -ENOSPC, true);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), -ENOSPC);
	fx_misses(&file);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), 0);
	end(fd);
	fx_serves(&file);
}

/* A hole that is filled after the commit takes room that was not counted. */
UNIT_TEST(room_is_given_back_as_it_was_taken)
{
	struct ucm_geometry large = { 1, 4, 0, 16384, 0, 0, 0, 2 };
	int fd;

	fx_store("$/a");
	fx_block_of(&file, 1, FX_PAGED, &large);
	fd = begin(&file, 4096);
	ck_assert_int_eq(fx_ftruncate(fd, (off_t)file.len), 0);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_WRITTEN), 0);
	ck_assert_int_eq(fx_pwrite(fd, file.bytes, file.len, 0),
			 (ssize_t)file.len);
	ck_assert_int_eq(fx_fsync(fd), 0);
	temp.shared = true;
	fx_recheck(&temp, fd);
	end(fd);
	ck_assert_uint_ge(ucm_tier_used(&fx_set->dirs.tiers[0]), 16384);
	ck_assert_int_eq(ucm_store_remove(fx_set, &file.key), 0);
	ck_assert_uint_eq(ucm_tier_used(&fx_set->dirs.tiers[0]), 0);
}

/* As XFS does it before a file is closed. */
UNIT_TEST(what_was_allocated_beyond_the_end_is_not_counted)
{
	struct ucm_entry entry;
	ucm_ref ref;
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	fd = begin(&file, file.len);
	if (fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 1 << 20)) {
		end(fd);
		unit_skip("room beyond the end: this file system has none");
		return;
	}
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), 0);
	ck_assert_uint_eq(ucm_tier_used(&fx_set->dirs.tiers[0]), file.len);
	ck_assert(ucm_index_find(fx_set->index, &file.key, &entry, &ref));
	ck_assert_uint_eq(entry.blocks, file.len / 512);
	ck_assert_int_eq(fx_futimens(fd, NULL), 0); /* seen as a write */
	temp.shared = true;
	fx_recheck(&temp, fd);
	ck_assert_uint_eq(ucm_tier_used(&fx_set->dirs.tiers[0]), file.len);
	end(fd);
	fx_close();
	fx_open();
	fx_start();
	ck_assert_uint_eq(ucm_tier_used(&fx_set->dirs.tiers[0]), file.len);
	ck_assert_int_eq(ucm_store_remove(fx_set, &file.key), 0);
	ck_assert_uint_eq(ucm_tier_used(&fx_set->dirs.tiers[0]), 0);
}
