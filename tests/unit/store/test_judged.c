/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_judged.c - what was found out of a file is said of that file only, though
 * its block's entry, or its name, has become another file's meanwhile.
 */
#include <config.h>

#include "fs/store/find/find.h"
#include "fs/store/start/start.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/osfile.h"
#include "tests/unit/store_fixture.h"

#define IN_A "$/a/blocks/%s"
#define IN_B "$/b/blocks/%s"

static struct fx_file good, bad, raw;
static ucm_ref ref;

/* One block in two directories, whose entry is that of a. bad: its bytes with a
 * wrong one. The scan's threads have ended. */
static void prepare(void)
{
	fx_configure("fast=$/a:slow=$/b");
	fx_block(&good, 1, FX_PAGED);
	bad = good;
	bad.bytes[bad.len - 4096] ^= 1;
	fx_plant("$/a", "blocks", &good);
	fx_open();
	fx_start();
	ck_assert(ucm_index_find(fx_set->index, &good.key, NULL, &ref));
	ucm_scan_stop(fx_set);
}

static struct stat stat_of(const char *path)
{
	struct stat st;

	ck_assert_int_eq(stat(path, &st), 0);
	return st;
}

static struct ucm_entry entry_now(void)
{
	struct ucm_entry entry;

	ck_assert(ucm_index_get(fx_set->index, ref, &entry));
	return entry;
}

/* As a commit to the other directory does, or somebody who moves blocks. */
static void move_to_b(const struct fx_file *with)
{
	struct stat st;

	fx_plant("$/b", "blocks", with);
	st = stat_of(fx_path(IN_B, fx_name(&good)));
	ucm_store_restat(fx_set, ref, 1, &st);
	ck_assert_uint_eq(entry_now().dir, 1);
	ck_assert_uint_eq(entry_now().copy, 1);
}

/* In a: another file under the name. */
static void replace_in_a(const struct fx_file *by)
{
	char name[512];

	snprintf(name, sizeof(name), "%s", fx_path("$/a/blocks/new"));
	fx_put(name, by->bytes, by->len);
	ck_assert_int_eq(rename(name, fx_path(IN_A, fx_name(&good))), 0);
}

/* ---- in the middle of a call ---- */

static const char *awaited; /* a system call, the first on a block's file */
static void (*meanwhile)(void);

static int on_call(const char *call, const char *path)
{
	if (strcmp(call, awaited) || (path && !strstr(path, ".bin")))
		return 0;
	ucm_os_fault = NULL;
	meanwhile();
	return 0;
}

static void set_trap(const char *call, void (*then)(void))
{
	awaited = call;
	meanwhile = then;
	ucm_os_fault = on_call;
}

/* ---- writers ---- */

static struct ucm_temp temp;

/* A block of a whose writer goes on. */
static int commit_and_stay(const struct fx_file *file)
{
	int fd;

	fx_configure("fast=$/a:slow=$/b");
	fx_open();
	fx_start();
	fd = fx_create(&file->key, 0, &temp);
	ck_assert_int_ge(fd, 0);
	must(fx_pwrite(fd, file->bytes, file->len, 0) == (ssize_t)file->len);
	ck_assert_int_eq(fx_commit_temp(&temp, fd, &file->key, UCM_COMMIT_NOW),
			 0);
	ck_assert_uint_eq(temp.dir, 0);
	ref = temp.ref;
	return fd;
}

static void end(int fd)
{
	fx_recheck(&temp, fd);
	fx_close_file(fd);
	ucm_store_drop(fx_set, &temp);
}

UNIT_FIXTURE(.setup = fx_setup, .teardown = fx_teardown);

UNIT_TEST(a_copy_that_was_written_to_is_set_aside_and_the_block_stays)
{
	int fd;

	fx_block(&good, 1, FX_PAGED);
	fd = commit_and_stay(&good);
	move_to_b(&good);
	must(fx_pwrite(fd, "x", 1, (off_t)good.len - 4096) == 1);
	end(fd);
	ck_assert(!fx_exists(fx_path(IN_A, fx_name(&good))));
	ck_assert_uint_eq(fx_set->stats.quarantined, 1);
	ck_assert_uint_eq(entry_now().dir, 1);
	ck_assert_uint_eq(entry_now().copy, 0);
	fx_serves(&good);
}

UNIT_TEST(a_copy_that_was_written_again_gives_its_stamp_to_nobody)
{
	struct stat st;
	int fd;

	fx_block(&good, 1, FX_PAGED);
	fd = commit_and_stay(&good);
	move_to_b(&good);
	st = stat_of(fx_path(IN_B, fx_name(&good)));
	ck_assert_int_eq(futimens(fd, (struct timespec[2]){ { 1, 0 },
							    { 1, 0 } }), 0);
	end(fd);
	ck_assert_uint_eq(entry_now().dir, 1);
	ck_assert_int_eq(entry_now().mtime_ns / 1000000000, st.st_mtim.tv_sec);
}

/* Without checksums: nothing vouches for it, and its entry is another's. */
UNIT_TEST(a_raw_copy_with_new_times_is_not_taken_for_the_entrys)
{
	int fd;

	fx_block(&raw, 1, FX_PAGED_RAW);
	good = raw;
	fd = commit_and_stay(&raw);
	move_to_b(&raw);
	must(fx_pwrite(fd, "x", 1, (off_t)raw.len - 4096) == 1);
	ck_assert_int_eq(futimens(fd, (struct timespec[2]){ { 1, 0 },
							    { 1, 0 } }), 0);
	end(fd);
	ck_assert(!fx_exists(fx_path(IN_A, fx_name(&good))));
	fx_serves(&raw);
}

/* ---- doubts ---- */

static void move_to_a_doubtful_one(void)
{
	move_to_b(&bad);
	ucm_store_doubt(fx_set, ref);
}

UNIT_TEST(a_doubt_of_another_directorys_file_stays)
{
	struct ucm_entry entry;

	prepare();
	ucm_store_doubt(fx_set, ref);
	set_trap("read", move_to_a_doubtful_one);
	ck_assert_int_eq(ucm_store_settle(fx_set, ref), -ENOENT);
	/* the one in b was looked at for itself */
	ck_assert(!fx_exists(fx_path(IN_B, fx_name(&good))));
	fx_serves(&good);
	ck_assert_int_eq(ucm_store_find(fx_set, &good.key, &entry, &ref), 0);
	ck_assert_uint_eq(entry.dir, 0);
	ck_assert_uint_eq(atomic_load(&fx_set->doubts), 0);
}

static void replace_by_bad(void)
{
	replace_in_a(&bad);
}

static void replace_by_good(void)
{
	replace_in_a(&good);
}

UNIT_TEST(a_doubt_of_the_next_file_of_that_name_stays)
{
	prepare();
	ucm_store_doubt(fx_set, ref);
	set_trap("read", replace_by_bad);
	ck_assert_int_eq(ucm_store_settle(fx_set, ref), -ENOENT);
	ck_assert(!fx_exists(fx_path(IN_A, fx_name(&good))));
	fx_misses(&good);
}

UNIT_TEST(a_damaged_file_that_was_replaced_costs_no_block)
{
	prepare();
	replace_in_a(&bad);
	ucm_store_doubt(fx_set, ref);
	set_trap("read", replace_by_good);
	ck_assert_int_eq(ucm_store_settle(fx_set, ref), 0);
	fx_serves(&good);
	ck_assert_uint_eq(fx_set->stats.quarantined, 0);
}

/* ---- files that are gone, or of another size ---- */

static void leave_a_for_b(void)
{
	move_to_b(&good);
	ck_assert_int_eq(unlink(fx_path(IN_A, fx_name(&good))), 0);
}

UNIT_TEST(a_block_that_moves_while_it_is_opened_is_not_lost)
{
	struct ucm_entry entry;
	int fd;

	prepare();
	set_trap("open", leave_a_for_b);
	fd = fx_open_block(ref, &entry);
	ck_assert_int_ge(fd, 0);
	fx_close_file(fd);
	ck_assert_uint_eq(entry.dir, 1);
	ck_assert_uint_eq(fx_set->stats.vanished, 0);
}

static void grow(void)
{
	struct stat st;

	good.len += 4096;
	replace_in_a(&good);
	st = stat_of(fx_path(IN_A, fx_name(&good)));
	ucm_store_restat(fx_set, ref, 0, &st);
}

UNIT_TEST(a_size_is_compared_with_that_of_the_same_file)
{
	struct ucm_entry entry;
	int fd;

	prepare();
	set_trap("open", grow);
	fd = fx_open_block(ref, &entry);
	ck_assert_int_ge(fd, 0);
	fx_close_file(fd);
	ck_assert_uint_eq(entry.size, good.len);
	ck_assert_uint_eq(fx_set->stats.quarantined, 0);
}

/* ---- by hand ---- */

UNIT_TEST(what_was_judged_elsewhere_does_not_condemn_an_entry)
{
	struct stat st;

	prepare();
	st = stat_of(fx_path(IN_A, fx_name(&good)));
	move_to_b(&good);
	ucm_store_condemn(fx_set, ref, 0, &st, UCM_FAULT_PLANE, "");
	ck_assert_uint_eq(entry_now().dir, 1);
	ck_assert_uint_eq(entry_now().copy, 0);
	ck_assert(!fx_exists(fx_path(IN_A, fx_name(&good))));
	ck_assert(fx_exists(fx_path(IN_B, fx_name(&good))));
}
