/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_commit_late.c - what is written to a file while it is committed, and
 * after: it is judged again.
 */
#include <config.h>

#include "fs/store/store.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>

#include "common/clock.h"
#include "common/osfile.h"
#include "tests/unit/store/commit_fixture.h"

UNIT_PROGRAM(.variants = fx_media);

static bool stamp_differs(void *arg)
{
	int fd = *(int *)arg;
	struct stat st;
	char c;

	/* clocks tick coarsely: touch it until it shows */
	ck_assert_int_eq(fx_pread(fd, &c, 1, 4100), 1);
	ck_assert_int_eq(fx_pwrite(fd, &c, 1, 4100), 1);
	fx_fstat(fd, &st);
	return memcmp(&st.st_mtim, &temp.stamp.st_mtim, sizeof(st.st_mtim));
}

static int commit_and_hold(void)
{
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	fd = begin(&file, file.len);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), 0);
	return fd;
}

/* ---- during the commit ---- */

static const struct {
	const char *call; /* at which somebody writes */
	const char *durability;
	const char *bytes; /* NULL: those that are there */
	enum fx_kind kind;
	int result;
	unsigned left, quarantined; /* files in tmp, and set aside */
} intruders[] = {
	{ "fdatasync", "data", "X", FX_PAGED, -EINVAL, 1, 0 },
	{ "fdatasync", "data", NULL, FX_PAGED, 0, 0, 0 },
	{ "link", "none", "X", FX_PAGED, -EINVAL, 0, 1 },
	{ "link", "none", NULL, FX_PAGED, 0, 0, 0 },
	{ "link", "none", "X", FX_PAGED_RAW, -EINVAL, 0, 1 },
	{ "link", "none", NULL, FX_PAGED_RAW, -EINVAL, 0, 1 },
};
static const char *intruder_call, *intruder_bytes;
static int intruder_fd;
static off_t intruder_off;

static int intrude(const char *call, const char *path)
{
	(void)path;
	if (!intruder_call || strcmp(call, intruder_call))
		return 0;
	intruder_call = NULL; /* once */
	if (intruder_bytes)
		ck_assert_int_eq(fx_pwrite(intruder_fd, intruder_bytes, 1,
					   intruder_off),
				 1);
	fx_wait(stamp_differs, &intruder_fd);
	return 0;
}

UNIT_FIXTURE(.setup = fx_setup, .teardown = fx_teardown);

UNIT_TEST(what_is_written_during_a_commit_is_judged_again,
	  .rows = NUM_ROWS(intruders))
{
	int fd;

	fx_configure("$/a");
	fx_option("durability", intruders[_i].durability);
	fx_open();
	fx_start();
	fx_block(&file, 1, intruders[_i].kind);
	fd = begin(&file, file.len);
	intruder_fd = fd;
	intruder_call = intruders[_i].call;
	intruder_bytes = intruders[_i].bytes;
	ucm_os_fault = intrude;
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW),
			 intruders[_i].result);
	ck_assert_ptr_null(intruder_call);
	ucm_os_fault = NULL;
	ck_assert_uint_eq(fx_count_files(fx_path(TMP)), intruders[_i].left);
	ck_assert_uint_eq(fx_count(fx_path(QUARANTINE)),
			  intruders[_i].quarantined);
	end(fd);
	if (intruders[_i].result)
		fx_misses(&file);
	else
		fx_serves(&file);
	ck_assert_uint_eq(atomic_load(&fx_set->blocks),
			  !intruders[_i].result);
}

UNIT_TEST(a_word_does_not_outlive_a_write_during_the_commit)
{
	int fd;

	fx_configure("$/a");
	fx_option("durability", "data");
	fx_open();
	fx_start();
	fx_block(&file, 1, FX_PAGED);
	fd = begin(&file, file.len);
	intruder_fd = fd;
	intruder_call = "fdatasync";
	intruder_bytes = "X";
	intruder_off = 5000;
	ucm_os_fault = intrude;
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_WRITTEN), -EINVAL);
	ucm_os_fault = NULL;
	intruder_off = 0;
	ck_assert_ptr_null(intruder_call);
	end(fd);
	fx_misses(&file);
}

/* ---- after the commit ---- */

static int open_found(void)
{
	struct ucm_entry entry;
	ucm_ref ref;
	int fd, err = ucm_store_find(fx_set, &file.key, &entry, &ref);

	if (err)
		return err;
	fd = fx_open_block(ref, &entry);
	if (fd >= 0)
		fx_close_file(fd);
	return fd < 0 ? fd : 0;
}

/* Its writer has not closed it yet: who opens it gets the right bytes, or
 * none. */
UNIT_TEST(a_late_write_is_found_by_the_next_reader)
{
	int fd = commit_and_hold();

	ck_assert_int_eq(open_found(), 0);
	fx_wait(stamp_differs, &fd);
	ck_assert_int_eq(open_found(), 0); /* the same bytes */
	ck_assert_int_eq(fx_pwrite(fd, "!", 1, 4200), 1);
	fx_wait(stamp_differs, &fd);
	ck_assert_int_eq(open_found(), -ENOENT);
	ck_assert_uint_eq(fx_count(fx_path(QUARANTINE)), 1);
	end(fd);
	fx_misses(&file);
}

UNIT_TEST(a_late_write_is_found_by_who_opens_it_once_more)
{
	int fd = commit_and_hold(), reader;
	struct ucm_open open = { 0 };
	struct ucm_entry entry;
	ucm_ref ref;

	ck_assert_int_eq(ucm_store_find(fx_set, &file.key, &entry, &ref), 0);
	reader = fx_open_block_held(ref, &entry, &open);
	ck_assert_int_ge(reader, 0);
	ck_assert_int_eq(ucm_store_open_again(fx_set, &open), 0);
	ck_assert_int_eq(fx_pwrite(fd, "!", 1, 4200), 1);
	fx_wait(stamp_differs, &fd);
	ck_assert_int_eq(ucm_store_open_again(fx_set, &open), -ENOENT);
	ucm_hold_end(fx_set, &open);
	fx_close_file(reader);
	end(fd);
	fx_misses(&file);
}

/* A mapping changes bytes and no time. */
UNIT_TEST(a_block_that_may_be_mapped_is_checked_by_every_reader, .rows = 2)
{
	struct timespec times[2];
	struct ucm_entry entry;
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	fd = begin(&file, file.len);
	temp.shared = _i;
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), 0);
	ck_assert_int_eq(open_found(), 0);
	times[0] = times[1] = temp.stamp.st_mtim;
	ck_assert_int_eq(fx_pwrite(fd, "!", 1, 4200), 1);
	ck_assert_int_eq(fx_futimens(fd, times), 0);
	ck_assert_int_eq(open_found(), _i ? -ENOENT : 0);
	end(fd);
	ck_assert(_i || ucm_index_find(fx_set->index, &file.key, &entry, NULL));
	ck_assert(_i || !(entry.flags & UCM_ENTRY_WRITABLE));
}

/* The old file cannot be opened, and lies where the new one is to. */
UNIT_TEST(what_is_said_of_a_file_that_made_way_is_over, .rows = 2)
{
	struct ucm_entry entry;
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, _i ? FX_PAGED_RAW : FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	ck_assert_int_eq(ucm_store_checkpoint(fx_set), 0);
	fd = begin(&file, file.len);
	fx_wait(stamp_differs, &fd);
	fx_fail_on("open", strrchr(fx_name(&file), '/'), 1, -EIO, false);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), 0);
	fx_fail(NULL, 0, 0, false);
	ck_assert_int_eq(open_found(), 0);
	ck_assert(ucm_index_find(fx_set->index, &file.key, &entry, NULL));
	ck_assert_int_eq(entry.mtime_ns, ucm_time_ns(&temp.stamp.st_mtim));
	ck_assert_uint_eq(entry.epoch,
			  atomic_load(&temp.medium->recovery.epoch));
	ck_assert_uint_eq(fx_count(fx_path(QUARANTINE)), 1);
	end(fd);
	fx_serves(&file);
}

/* A new good file is not dropped for an old one that nobody can check. */
UNIT_TEST(a_block_in_doubt_that_cannot_be_read_makes_way)
{
	int fd;

	if (!fx_needs_directory("there is no cache to read past"))
		return;
	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_fail("syncfs", 1, -EIO, true);
	ck_assert_int_eq(ucm_store_checkpoint(fx_set), -EIO);
	fx_fail(NULL, 0, 0, false);
	atomic_store(&fx_set->dirs.at[0]->recovery.lost, false);
	fd = begin(&file, file.len);
	fx_fail("reopen", 1, -EIO, false); /* to read past the page cache */
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), 0);
	ck_assert_uint_ne(temp.ref, 0);
	fx_fail(NULL, 0, 0, false);
	end(fd);
	fx_serves(&file);
	ck_assert_uint_eq(atomic_load(&fx_set->doubts), 0);
	ck_assert_uint_eq(fx_count(fx_path(QUARANTINE)), 1);
}

UNIT_TEST(new_times_do_not_hide_a_late_write, .rows = 2)
{
	struct timespec times[2] = { { 1, 0 }, { 1, 0 } };
	ucm_ref ref;
	int fd;

	fx_store("$/a");
	fx_block(&file, 1, _i ? FX_PAGED_RAW : FX_PAGED);
	fd = begin(&file, file.len);
	ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), 0);
	ck_assert_int_eq(fx_pwrite(fd, "!", 1, 4200), 1);
	fx_wait(stamp_differs, &fd);
	ck_assert(ucm_index_find(fx_set->index, &file.key, NULL, &ref));
	ck_assert_int_eq(ucm_store_set_times(fx_set, ref, times), -ENOENT);
	ck_assert_int_eq(open_found(), -ENOENT);
	end(fd);
	fx_misses(&file);
	ck_assert_uint_eq(fx_count(fx_path(QUARANTINE)), 1);
}

UNIT_TEST(a_passing_error_condemns_no_late_write)
{
	int fd = commit_and_hold();

	fx_wait(stamp_differs, &fd);
	fx_fail("read", 1, -EIO, false);
	ck_assert_int_eq(open_found(), -EIO);
	fx_recheck(&temp, fd);
	fx_fail(NULL, 0, 0, false);
	end(fd);
	ck_assert_uint_eq(atomic_load(&fx_set->doubts), 1);
	fx_serves(&file);
	ck_assert_uint_eq(atomic_load(&fx_set->doubts), 0);
}

UNIT_TEST(a_block_that_is_gone_is_not_opened_once_more)
{
	struct ucm_open open = { 0 };
	struct ucm_entry entry;
	ucm_ref ref;
	int reader;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	ck_assert_int_eq(ucm_store_find(fx_set, &file.key, &entry, &ref), 0);
	reader = fx_open_block_held(ref, &entry, &open);
	ucm_store_condemn(fx_set, ref, 0, NULL, UCM_FAULT_PLANE, "");
	ck_assert_int_eq(ucm_store_open_again(fx_set, &open), -ENOENT);
	ucm_hold_end(fx_set, &open);
	fx_close_file(reader);
}

UNIT_TEST(without_checksums_a_late_write_cannot_be_right)
{
	struct timespec times[2] = { { 1, 0 }, { 1, 0 } };
	ucm_ref ref;
	int fd;

	fx_store("$/a");
	for (unsigned i = 1; i <= 2; i++) {
		fx_block(&file, i, FX_PAGED_RAW);
		fd = begin(&file, file.len);
		ck_assert_int_eq(commit(fd, &file, UCM_COMMIT_NOW), 0);
		ck_assert(ucm_index_find(fx_set->index, &file.key, NULL, &ref));
		if (i == 1) /* tar sets times, and no bytes */
			ck_assert_int_eq(
				ucm_store_set_times(fx_set, ref, times), 0);
		else
			fx_wait(stamp_differs, &fd);
		fx_recheck(&temp, fd);
		end(fd);
		if (i == 1)
			fx_serves(&file);
		else
			fx_misses(&file);
	}
}

UNIT_TEST(a_late_write_that_damages_is_found_and_set_aside)
{
	int fd = commit_and_hold();

	ck_assert_int_eq(fx_pwrite(fd, "!", 1, 4200), 1);
	fx_wait(stamp_differs, &fd);
	ck_assert_int_eq(fx_find(&file), 0);
	fx_recheck(&temp, fd);
	end(fd);
	fx_misses(&file);
	ck_assert(fx_logged("written to after its commit"));
	ck_assert_uint_eq(fx_count(fx_path(QUARANTINE)), 1);
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_serves(&file);
}

UNIT_TEST(a_late_truncate_is_found_and_set_aside)
{
	int fd = commit_and_hold();

	ck_assert_int_eq(fx_ftruncate(fd, 100), 0);
	fx_recheck(&temp, fd);
	end(fd);
	fx_misses(&file);
	ck_assert_uint_eq(fx_count(fx_path(QUARANTINE)), 1);
}

UNIT_TEST(a_late_write_of_the_same_bytes_does_no_harm)
{
	int fd = commit_and_hold();

	fx_wait(stamp_differs, &fd);
	fx_recheck(&temp, fd);
	end(fd);
	fx_serves(&file);
}

/* A store through a mapping need not show in any time stamp. */
UNIT_TEST(a_file_that_was_mapped_is_checked_in_any_case)
{
	int fd = commit_and_hold();

	ck_assert_int_eq(fx_pwrite(fd, "!", 1, 4200), 1);
	ck_assert_int_eq(fx_fstat(fd, &temp.stamp), 0); /* looks untouched */
	fx_recheck(&temp, fd);
	ck_assert_int_eq(fx_find(&file), 0);
	temp.shared = true;
	fx_recheck(&temp, fd);
	end(fd);
	fx_misses(&file);
}
