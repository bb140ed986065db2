/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_recovery_state.c - the state file of a directory: what it says of the
 * files there, and when it is damaged.
 */
#include <config.h>

#include "fs/medium/recovery.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "common/clock.h"
#include "common/osfile.h"
#include "fs/medium/dir/dir.h"
#include "tests/unit/store_fixture.h"

UNIT_PROGRAM(.variants = fx_media);

/* ---- the state file alone ---- */

static struct ucm_recovery recovery;
static struct ucm_medium *medium;

#define ALONE "$/d/.ucmfs/state"

static void close_medium(void)
{
	ucm_medium_close(medium, false);
	ucm_medium_free(medium);
	medium = NULL;
}

static int read_state(void)
{
	struct ucm_error error;
	int err = 0;

	if (!medium) {
		fx_configure("$/d");
		fx_at_end(close_medium);
		err = ucm_medium_open(ucm_opener(&fx_config),
				      fx_config.tiers[0].dirs[0], false, &fx_config, &medium, &error);
	}
	return err ? err : ucm_recovery_read(&recovery, medium);
}

static void put_state(const char *format, ...)
	__attribute__((format(printf, 1, 2)));
static void put_state(const char *format, ...)
{
	char text[256];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	fx_put(fx_path(ALONE), text, strlen(text));
}

static struct stat changed_at(int64_t ns)
{
	return (struct stat){ .st_ctim = { .tv_sec = ns / 1000000000,
					   .tv_nsec = ns % 1000000000 } };
}

UNIT_FIXTURE(.setup = fx_setup, .teardown = fx_teardown);

UNIT_TEST(a_directory_without_a_state_is_clean)
{
	struct stat st = changed_at(INT64_C(4000000000000000000));

	ck_assert_int_eq(read_state(), 0);
	ck_assert(!recovery.unclean);
	ck_assert(!ucm_recovery_doubts(&recovery, &st));
}

UNIT_TEST(in_use_is_unclean_until_the_end)
{
	ck_assert_int_eq(read_state(), 0);
	ck_assert_int_eq(ucm_recovery_begin(&recovery, medium), 0);
	ck_assert_int_eq(read_state(), 0);
	ck_assert(recovery.unclean);
	ck_assert(!recovery.unvouched);
	ck_assert_int_eq(ucm_recovery_begin(&recovery, medium), 0);
	ck_assert_int_eq(ucm_recovery_end(&recovery, medium), 0);
	ck_assert_int_eq(read_state(), 0);
	ck_assert(!recovery.unclean);
}

UNIT_TEST(files_changed_after_the_checkpoint_are_in_doubt)
{
	const int64_t second = 1000000000, checkpoint = 1000 * second;
	static const struct {
		int64_t seconds;
		bool doubt;
	} rows[] = {
		{ -1000, false }, { -3, false }, { -2, false },
		{ -1, true }, { 0, true }, { 1, true }, { 1000, true },
	};

	put_state("clean=0\ncheckpoint=%" PRId64 "\nboot=b\n", checkpoint);
	ck_assert_int_eq(read_state(), 0);
	for (size_t i = 0; i < NUM_ROWS(rows); i++) {
		struct stat st =
			changed_at(checkpoint + rows[i].seconds * second);

		ck_assert_int_eq(ucm_recovery_doubts(&recovery, &st),
				 rows[i].doubt);
	}
}

UNIT_TEST(another_boot_is_told_until_doubts_are_settled)
{
	put_state("clean=0\ncheckpoint=5\nboot=another\n");
	ck_assert_int_eq(read_state(), 0);
	ck_assert(recovery.unvouched);
	/* a second crash before that must not forget the first */
	ck_assert_int_eq(ucm_recovery_begin(&recovery, medium), 0);
	ck_assert_int_eq(read_state(), 0);
	ck_assert(recovery.unclean);
	ck_assert(recovery.unvouched);
	ck_assert_int_eq(recovery.checkpoint_ns, 5);
	ck_assert_int_eq(ucm_recovery_checkpoint(&recovery, medium), 0);
	ck_assert_int_eq(read_state(), 0);
	ck_assert(!recovery.unvouched);
	ck_assert_int_gt(recovery.checkpoint_ns, 5);
}

/* Of a state that says clean (its boot id begins at 35) or not. */
static const struct {
	const char *text;
	size_t cut; /* to as many bytes, if it is not 0 */
	size_t at;  /* or flips a bit */
	unsigned char bit;
	bool damaged;
} damages[] = {
	{ "", 0, 0, 0, true },
	{ "\xff\xff\xff\xff", 0, 0, 0, true },
	{ "clean=x\ncheckpoint=1\nboot=b\n", 0, 0, 0, true },
	{ "clean=2\ncheckpoint=1\nboot=b\n", 0, 0, 0, true },
	{ "clean=1\ncheckpoint=01\nboot=b\n", 0, 0, 0, true },
	{ "clean=1\ncheckpoint=1\nboot=\nsnapshot=1\n", 0, 0, 0, true },
#define CLEAN "clean=1\ncheckpoint=12345678\nboot=8b1f\nsnapshot=2f\n"
	{ CLEAN, 0, 0, 0, false },
	{ CLEAN, 1, 0, 0, true },
	{ CLEAN, 7, 0, 0, true },
	{ CLEAN, 8, 0, 0, true },
	{ CLEAN, 24, 0, 0, true }, /* in the time */
	{ CLEAN, 34, 0, 0, true },
	{ CLEAN, 36, 0, 0, true }, /* in the boot id */
	{ CLEAN, 37, 0, 0, true },
	{ CLEAN, 38, 0, 0, false }, /* there is no snapshot then */
	{ CLEAN, 0, 0, 1, true },
	{ CLEAN, 0, 5, 4, true },
	{ CLEAN, 0, 6, 2, true },
	{ CLEAN, 0, 6, 8, true },
	{ CLEAN, 0, 7, 1, true },
	{ CLEAN, 0, 7, 2, true }, /* another white space */
	{ CLEAN, 0, 10, 128, true },
	{ CLEAN, 0, 22, 64, true },
	{ CLEAN, 0, 27, 32, true },
	{ CLEAN, 0, 31, 8, true },
#define IN_USE "clean=0\ncheckpoint=12345678\nboot=8b1f\n"
	{ IN_USE, 5, 0, 0, true },
	{ IN_USE, 20, 0, 0, true },
	{ IN_USE, 37, 0, 0, true },
	{ IN_USE, 0, 6, 4, true },
	{ IN_USE, 0, 20, 64, true },
};

static void put_damage(unsigned row)
{
	char text[256];

	snprintf(text, sizeof(text), "%s", damages[row].text);
	if (damages[row].cut)
		text[damages[row].cut] = '\0';
	if (damages[row].bit)
		text[damages[row].at] ^= (char)damages[row].bit;
	fx_put(fx_path(ALONE), text, strlen(text));
}

static void all_is_in_doubt(void)
{
	struct stat old = changed_at(1);

	ck_assert(recovery.unclean);
	ck_assert(recovery.unvouched);
	ck_assert(ucm_recovery_doubts(&recovery, &old));
}

UNIT_TEST(of_a_damaged_state_all_is_in_doubt, .rows = NUM_ROWS(damages))
{
	put_damage((unsigned)_i);
	ck_assert_int_eq(read_state(), 0);
	ck_assert_int_eq(recovery.damaged, damages[_i].damaged ? -EINVAL : 0);
	ck_assert_int_eq(fx_logged(".ucmfs/state is damaged: cut off or "),
			  damages[_i].damaged);
	if (damages[_i].damaged)
		all_is_in_doubt();
	else
		ck_assert(!recovery.unclean);
}

/* Until all of it has been looked at, also after another crash. */
UNIT_TEST(a_damaged_state_is_replaced)
{
	put_state("clean=1\ncheck");
	ck_assert_int_eq(read_state(), 0);
	ck_assert_int_eq(ucm_recovery_begin(&recovery, medium), 0);
	ck_assert_int_eq(read_state(), 0);
	ck_assert_int_eq(recovery.damaged, 0);
	all_is_in_doubt();
	ck_assert_int_eq(ucm_recovery_checkpoint(&recovery, medium), 0);
	ck_assert_int_eq(read_state(), 0);
	ck_assert(!recovery.unvouched);
	ck_assert_int_eq(ucm_recovery_end(&recovery, medium), 0);
	ck_assert_int_eq(read_state(), 0);
	ck_assert(!recovery.unclean);
}

UNIT_TEST(a_damaged_state_may_stay_where_there_is_no_room)
{
	put_state("clean=1\ncheck");
	ck_assert_int_eq(read_state(), 0);
	fx_fail("rename", 1, -ENOSPC, false);
	ck_assert_int_eq(ucm_recovery_begin(&recovery, medium), 0);
	fx_fail(NULL, 0, 0, false);
	ck_assert_int_eq(read_state(), 0);
	all_is_in_doubt();
}

UNIT_TEST(a_state_that_is_too_long_is_damaged)
{
	char text[4096];

	memset(text, 'x', sizeof(text));
	fx_put(fx_path(ALONE), text, sizeof(text));
	ck_assert_int_eq(read_state(), 0);
	ck_assert_int_eq(recovery.damaged, -EFBIG);
	all_is_in_doubt();
}

/* A server that hangs, or another's file, is no damage. */
static const struct {
	int err;
	bool damaged;
} unreadable[] = {
	{ -EIO, true }, { -EUCLEAN, true }, { -EBADMSG, true },
	{ -ETIMEDOUT, false }, { -EACCES, false }, { -ENOMEM, false },
};

UNIT_TEST(a_state_that_the_disk_does_not_give_is_damaged,
	  .rows = NUM_ROWS(unreadable))
{
	put_state("clean=1\ncheckpoint=1\nboot=b\n");
	ck_assert_int_eq(read_state(), 0);
	fx_fail("read", 1, unreadable[_i].err, true);
	ck_assert_int_eq(read_state(),
			 unreadable[_i].damaged ? 0 : unreadable[_i].err);
	fx_fail(NULL, 0, 0, false);
	if (unreadable[_i].damaged)
		all_is_in_doubt();
	else
		ck_assert(fx_logged("state cannot be read"));
}

static int64_t changed_ns(const char *path)
{
	struct stat st;

	fx_put(path, "x", 1);
	ck_assert_int_eq(fx_stat(path, &st), 0);
	return ucm_time_ns(&st.st_ctim);
}

static int64_t made_ns;

/* A file is made while the sync runs; clocks tick coarsely. */
static int make_a_file(const char *call, const char *path)
{
	(void)path;
	if (!strcmp(call, "syncfs")) {
		made_ns = changed_ns(fx_path("$/made"));
		while (changed_ns(fx_path("$/later")) == made_ns)
			;
	}
	return 0;
}

/* Nobody knows whether the sync has covered it. */
UNIT_TEST(what_is_made_during_the_sync_is_newer_than_the_checkpoint, .rows = 2)
{
	ck_assert_int_eq(read_state(), 0);
	ck_assert_int_eq(ucm_recovery_begin(&recovery, medium), 0);
	ucm_os_fault = make_a_file;
	ck_assert_int_eq((_i ? ucm_recovery_end : ucm_recovery_checkpoint)(
				 &recovery, medium), 0);
	ucm_os_fault = NULL;
	ck_assert_int_ne(made_ns, 0);
	ck_assert_int_le(recovery.checkpoint_ns, made_ns);
}

/* A crash after a sync that failed must not make it forgotten. */
UNIT_TEST(lost_writes_are_told_until_there_is_a_checkpoint, .rows = 3)
{
	static int (*const syncs[])(struct ucm_recovery *recovery,
				    struct ucm_medium *medium) = {
		ucm_recovery_sync, ucm_recovery_checkpoint, ucm_recovery_end,
	};
	int64_t before;

	ck_assert_int_eq(read_state(), 0);
	ck_assert_int_eq(ucm_recovery_begin(&recovery, medium), 0);
	before = recovery.checkpoint_ns;
	fx_fail("syncfs", 1, -EIO, true);
	ck_assert_int_eq(syncs[_i](&recovery, medium), -EIO);
	ck_assert_uint_eq(recovery.losses, 1);
	ck_assert(recovery.lost);
	ck_assert(recovery.unclean);
	ck_assert(recovery.unvouched);
	ck_assert_int_eq(ucm_recovery_sync(&recovery, medium), 0);
	ck_assert_int_eq(read_state(), 0);
	ck_assert(recovery.lost);
	ck_assert(recovery.unclean);
	ck_assert(recovery.unvouched);
	ck_assert_int_eq(recovery.checkpoint_ns, before);
	ck_assert_int_eq(ucm_recovery_checkpoint(&recovery, medium), 0);
	ck_assert(!recovery.lost);
	ck_assert(!recovery.unclean);
	ck_assert_int_eq(read_state(), 0);
	ck_assert(!recovery.lost);
	ck_assert(!recovery.unvouched);
	ck_assert_int_gt(recovery.checkpoint_ns, before);
}

static int no_sync_and_no_room(const char *call, const char *path)
{
	(void)path;
	return !strcmp(call, "syncfs") ? -EIO
	       : !strcmp(call, "rename") ? -ENOSPC : 0;
}

UNIT_TEST(lost_writes_are_noted_in_place_without_room)
{
	int64_t before;

	ck_assert_int_eq(read_state(), 0);
	ck_assert_int_eq(ucm_recovery_begin(&recovery, medium), 0);
	before = recovery.checkpoint_ns;
	ucm_os_fault = no_sync_and_no_room;
	ck_assert_int_eq(ucm_recovery_sync(&recovery, medium), -EIO);
	ucm_os_fault = NULL;
	ck_assert_int_eq(read_state(), 0);
	ck_assert(recovery.lost);
	ck_assert_int_eq(recovery.checkpoint_ns, before);
}

/* From the first epoch that no sync has covered to the one that is. */
UNIT_TEST(what_no_sync_has_covered_is_known_by_its_epoch)
{
	static const struct {
		uint16_t oldest, epoch, of;
		bool uncovered;
	} rows[] = {
		{ 1, 1, 1, true }, { 1, 1, 0, false }, { 2, 2, 1, false },
		{ 2, 4, 2, true }, { 2, 4, 4, true }, { 2, 4, 5, false },
		{ 65534, 2, 65533, false }, { 65534, 2, 65534, true },
		{ 65534, 2, 65535, true }, { 65534, 2, 1, true },
		{ 65534, 2, 2, true }, { 65534, 2, 3, false },
		{ 65534, 2, 0, false },
	};

	for (size_t i = 0; i < NUM_ROWS(rows); i++) {
		struct ucm_recovery some = { .oldest = rows[i].oldest,
					     .epoch = rows[i].epoch };

		ck_assert_int_eq(ucm_recovery_uncovered(&some, rows[i].of),
				 rows[i].uncovered);
	}
}

UNIT_TEST(a_failed_sync_covers_nothing)
{
	uint16_t first;

	ck_assert_int_eq(read_state(), 0);
	first = recovery.epoch;
	fx_fail("syncfs", 1, -EIO, true);
	ck_assert_int_eq(ucm_recovery_sync(&recovery, medium), -EIO);
	ck_assert(ucm_recovery_uncovered(&recovery, first));
	ck_assert(ucm_recovery_uncovered(&recovery, recovery.epoch));
	ck_assert_int_eq(ucm_recovery_sync(&recovery, medium), 0);
	ck_assert(!ucm_recovery_uncovered(&recovery, first));
	/* committed since it was begun */
	ck_assert(ucm_recovery_uncovered(&recovery, recovery.epoch));
	recovery.epoch = UINT16_MAX;
	ck_assert_int_eq(ucm_recovery_sync(&recovery, medium), 0);
	ck_assert_uint_ne(recovery.epoch, 0);
}

UNIT_TEST(without_room_the_mark_is_made_in_place)
{
	char before[256], text[256];

	ck_assert_int_eq(read_state(), 0);
	ck_assert_int_eq(ucm_recovery_begin(&recovery, medium), 0);
	ck_assert_int_eq(ucm_recovery_end(&recovery, medium), 0);
	fx_read(fx_path(ALONE), before, sizeof(before));
	ck_assert_int_eq(strncmp(before, "clean=1\n", 8), 0);

	ck_assert_int_eq(read_state(), 0);
	fx_fail("rename", 1, -ENOSPC, false);
	ck_assert_int_eq(ucm_recovery_begin(&recovery, medium), 0);
	ck_assert_str_eq(fx_failed_call(), "rename");
	fx_fail(NULL, 0, 0, false);
	fx_read(fx_path(ALONE), text, sizeof(text));
	before[6] = '0';
	ck_assert_str_eq(text, before);
	ck_assert_int_eq(read_state(), 0);
	ck_assert(recovery.unclean);
}

UNIT_TEST(a_directory_in_use_is_marked_already)
{
	ck_assert_int_eq(read_state(), 0);
	ck_assert_int_eq(ucm_recovery_begin(&recovery, medium), 0);
	ck_assert_int_eq(read_state(), 0);
	fx_fail(NULL, 1, -ENOSPC, false);
	ck_assert_int_eq(ucm_recovery_begin(&recovery, medium), 0);
}

UNIT_TEST(a_state_that_cannot_be_written_is_told)
{
	static const char *const calls[] = { "open", "utimens", "write",
					     "fsync", "rename" };

	ck_assert_int_eq(read_state(), 0);
	for (size_t i = 0; i < NUM_ROWS(calls); i++) {
		fx_fail(calls[i], 1, -EIO, true);
		ck_assert_int_eq(ucm_recovery_begin(&recovery, medium), -EIO);
	}
	fx_fail("fsync", 2, -EIO, true); /* of the folder */
	ck_assert_int_eq(ucm_recovery_begin(&recovery, medium), -EIO);
	fx_fail("fsync", 2, -EINVAL, true);
	ck_assert_int_eq(ucm_recovery_begin(&recovery, medium), 0);
}
