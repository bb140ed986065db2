/* SPDX-License-Identifier: Apache-2.0 */
/* test_check.c - a block that is said to be bad: it is compared in all places. */
#include <config.h>

#include "fs/store/find/calls.h"

#include <errno.h>
#include <fcntl.h>

#include "fs/store/store.h"
#include "tests/unit/store_fixture.h"

UNIT_PROGRAM(.variants = fx_media);
UNIT_FIXTURE(.setup = fx_setup, .teardown = fx_teardown);

static struct fx_file file;

/* A block that has been served from each of the directories. */
static void prepare(const char *source, const char *first, const char *second)
{
	fx_configure(source);
	fx_block(&file, 1, FX_PAGED);
	fx_plant(first, "blocks", &file);
	if (second)
		fx_plant(second, "blocks", &file);
	fx_open();
	fx_start();
	fx_serves(&file);
}

static const char *file_in(const char *dir)
{
	return fx_path("%s/blocks/%s", dir, fx_name(&file));
}

/* A bit of what the disk has. */
static void spoil(const char *dir)
{
	int number = fx_open_path(file_in(dir), O_RDWR);
	char byte;

	ck_assert_int_ge(number, 0);
	ck_assert_int_eq(fx_pread(number, &byte, 1, 4100), 1);
	byte ^= 1;
	ck_assert_int_eq(fx_pwrite(number, &byte, 1, 4100), 1);
	fx_close_file(number);
}

static int check(void)
{
	return ucm_calls_one(fx_set, UCM_BATCH_CHECK, &file.key);
}

UNIT_TEST(a_good_block_stays)
{
	prepare("$/a:$/b", "$/a", "$/b");
	ck_assert_int_eq(check(), 0);
	fx_serves(&file);
	ck_assert_uint_eq(fx_set->stats.quarantined, 0);
}

UNIT_TEST(there_is_no_such_block)
{
	prepare("$/a", "$/a", NULL);
	ck_assert_int_eq(ucm_store_remove(fx_set, &file.key), 0);
	ck_assert_int_eq(check(), -ENOENT);
}

UNIT_TEST(a_bad_block_is_set_aside)
{
	prepare("$/a", "$/a", NULL);
	spoil("$/a");
	ck_assert_int_eq(check(), -ENOENT);
	fx_misses(&file);
	ck_assert(!fx_exists(file_in("$/a")));
	ck_assert_uint_eq(fx_set->stats.quarantined, 1);
	ck_assert(fx_logged("layer 0 K): quarantined"));
	ck_assert_int_eq(check(), -ENOENT);
}

UNIT_TEST(a_good_copy_takes_the_place_of_a_bad_block)
{
	prepare("$/a:$/b", "$/a", "$/b");
	spoil("$/a");
	ck_assert_int_eq(check(), 0);
	fx_serves(&file);
	ck_assert_uint_eq(fx_entry(&file).dir, 1);
	ck_assert(!fx_exists(file_in("$/a")));
	ck_assert_uint_eq(fx_set->stats.quarantined, 1);
}

UNIT_TEST(a_bad_copy_is_set_aside_and_the_block_stays)
{
	prepare("$/a:$/b", "$/a", "$/b");
	spoil("$/b");
	ck_assert_int_eq(check(), 0);
	fx_serves(&file);
	ck_assert(fx_exists(file_in("$/a")));
	ck_assert(!fx_exists(file_in("$/b")));
}

UNIT_TEST(of_two_bad_ones_none_is_served)
{
	prepare("$/a:$/b", "$/a", "$/b");
	spoil("$/a");
	spoil("$/b");
	ck_assert_int_eq(check(), -ENOENT);
	fx_misses(&file);
	ck_assert_uint_eq(fx_set->stats.quarantined, 2);
}

UNIT_TEST(what_cannot_be_read_stays)
{
	prepare("$/a", "$/a", NULL);
	fx_fail("read", 1, -EIO, false);
	ck_assert_int_eq(check(), -EIO);
	fx_fail(NULL, 0, 0, false);
	ck_assert_uint_eq(fx_set->stats.quarantined, 0);
	fx_serves(&file);
}

/* It is looked at, and not used. */
UNIT_TEST(a_check_is_no_use)
{
	struct ucm_entry before;

	prepare("$/a", "$/a", NULL);
	before = fx_entry(&file);
	ck_assert_int_eq(check(), 0);
	ck_assert_uint_eq(fx_entry(&file).uses, before.uses);
	ck_assert_uint_eq(fx_entry(&file).atime_s, before.atime_s);
}
