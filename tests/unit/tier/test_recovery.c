/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_recovery.c - the state file, and what a store does after a crash. A
 * crash is a child that commits and leaves by _exit: its directories stay
 * marked as in use. What a power cut would have done to the files is done by
 * hand afterwards.
 */
#include <config.h>

#include "fs/tier/recovery.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/osfile.h"
#include "fs/store/find/find.h"
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
		err = ucm_medium_open(fx_config.tiers[0].dirs[0], false,
				      &fx_config, &medium, &error);
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

/* ---- a store after a crash ---- */

#define STATE "$/a/.ucmfs/state"
#define QUARANTINE "$/a/.ucmfs/quarantine"

static struct fx_file files[4];
static struct fx_file *const good = &files[0], *const torn = &files[1];
static struct fx_file *const raw = &files[2], *const packed = &files[3];

static void commit_and_die(void *arg)
{
	(void)arg;
	fx_store("$/a");
	for (size_t i = 0; i < NUM_ROWS(files); i++)
		ck_assert_int_eq(fx_commit(&files[i]), 0);
	fx_set = NULL; /* nobody closes it */
}

static void crash(void)
{
	fx_block(good, 1, FX_PAGED);
	fx_block(torn, 2, FX_PAGED);
	fx_block(raw, 3, FX_PAGED_RAW);
	fx_block(packed, 4, FX_PACKED_RAW);
	packed->block.geometry = fx_geometry;
	fx_in_child(commit_and_die, NULL);
	fx_configure("$/a");
}

static void tear(const struct fx_file *file)
{
	char zeros[256] = { 0 };
	int fd = fx_open_path(fx_path("$/a/blocks/%s", fx_name(file)), O_WRONLY);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(fx_pwrite(fd, zeros, sizeof(zeros), 4096), 256);
	fx_close_file(fd);
}

static void edit_state(const char *format, ...)
	__attribute__((format(printf, 1, 2)));
static void edit_state(const char *format, ...)
{
	char text[256];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	fx_put(fx_path(STATE), text, strlen(text));
}

static bool state_says(const char *text)
{
	char state[256];

	fx_read(fx_path(STATE), state, sizeof(state));
	return strstr(state, text) != NULL;
}

static void my_boot(char boot[64])
{
	fx_read("/proc/sys/kernel/random/boot_id", boot, 64);
	boot[strcspn(boot, "\n")] = '\0';
}

UNIT_TEST(after_a_clean_close_nothing_is_in_doubt)
{
	fx_block(good, 1, FX_PAGED);
	fx_store("$/a");
	ck_assert_int_eq(fx_commit(good), 0);
	ck_assert(state_says("clean=0"));
	fx_close();
	ck_assert(state_says("clean=1"));
	fx_open();
	fx_start();
	ck_assert_uint_eq(atomic_load(&fx_set->doubts), 0);
	ck_assert(!fx_set->dirs.at[0]->recovery.unclean);
	ck_assert_uint_eq(fx_set->stats.doubts_settled, 0);
	fx_serves(good);
}

UNIT_TEST(after_a_crash_torn_blocks_go_and_good_ones_stay)
{
	crash();
	tear(torn);
	fx_open();
	fx_start_only();
	fx_wait_settled();
	fx_serves(good);
	fx_serves(raw); /* same boot: the page cache has it */
	fx_serves(packed);
	fx_misses(torn);
	ck_assert_uint_eq(fx_set->stats.doubts_settled, 3);
	ck_assert_uint_eq(fx_set->stats.quarantined, 1);
	ck_assert_uint_eq(fx_count(fx_path(QUARANTINE)), 1);
	ck_assert(fx_logged("plane checksum differs (layer 0 K)"));
	fx_close();
	ck_assert(state_says("clean=1"));
}

UNIT_TEST(a_block_in_doubt_is_checked_before_it_is_served)
{
	struct ucm_entry entry;
	ucm_ref ref;

	crash();
	tear(torn);
	fx_open(); /* no thread has looked at anything */
	ck_assert_int_eq(ucm_store_find(fx_set, &good->key, &entry, &ref), 0);
	ck_assert_uint_eq(entry.flags & UCM_ENTRY_DOUBT, 0);
	ck_assert_uint_eq(fx_set->stats.doubts_settled, 1);
	fx_misses(torn);
	ck_assert_uint_eq(fx_count(fx_path(QUARANTINE)), 1);
}

UNIT_TEST(blocks_older_than_the_checkpoint_are_not_read_again)
{
	char boot[64];

	crash();
	my_boot(boot);
	edit_state("clean=0\ncheckpoint=%" PRId64 "\nboot=%s\n",
		   ((int64_t)time(NULL) + 100) * 1000000000, boot);
	fx_open();
	fx_start();
	ck_assert_uint_eq(atomic_load(&fx_set->doubts), 0);
	fx_serves(good);
	ck_assert_uint_eq(fx_set->stats.doubts_settled, 0);
}

UNIT_TEST(after_another_boot_only_checksums_vouch)
{
	crash();
	edit_state("clean=0\ncheckpoint=0\nboot=another\n");
	fx_open();
	fx_start_only();
	fx_wait_settled();
	fx_serves(good);
	fx_serves(torn); /* it has not been torn here */
	fx_misses(raw);
	fx_misses(packed);
	ck_assert_uint_eq(fx_count(fx_path(QUARANTINE)), 2);
	ck_assert(fx_logged("no checksum"));
}

UNIT_TEST(with_a_damaged_state_all_blocks_are_checked)
{
	crash();
	tear(torn);
	fx_truncate(fx_path(STATE), 10);
	fx_open();
	ck_assert(fx_logged("state is damaged"));
	fx_start_only();
	fx_wait_settled();
	fx_serves(good);
	fx_misses(torn);
	fx_misses(raw);
	fx_close();
	ck_assert(state_says("clean=1"));
}

static void commit_bare_and_die(void *arg)
{
	fx_store("$/a");
	ck_assert_int_eq(fx_commit(arg), 0);
	fx_set = NULL;
}

/* Its size is all that tells its geometry, and half of it has another. */
UNIT_TEST(a_torn_bare_block_teaches_no_geometry)
{
	fx_block(raw, 1, FX_BARE);
	fx_block(good, 2, FX_PAGED);
	fx_in_child(commit_bare_and_die, raw);
	ck_assert_int_eq(fx_truncate(fx_path("$/a/blocks/%s", fx_name(raw)),
				  64 + 256), 0);
	edit_state("clean=0\ncheckpoint=0\nboot=another\n");
	fx_configure("$/a");
	fx_open();
	ck_assert(!fx_set->names.spaces[0]->has_geometry);
	fx_start_only();
	fx_wait_settled();
	fx_misses(raw);
	ck_assert_int_eq(fx_commit(good), 0);
	fx_serves(good);
}

UNIT_TEST(a_page_of_zeros_where_a_header_was_is_set_aside)
{
	char zeros[8192] = { 0 };

	crash();
	fx_put(fx_path("$/a/blocks/%s", fx_name(torn)), zeros, sizeof(zeros));
	fx_open();
	fx_start_only();
	fx_wait_settled();
	fx_misses(torn);
	ck_assert_uint_eq(fx_count(fx_path(QUARANTINE)), 1);
}

UNIT_TEST(doubts_that_could_not_be_settled_stay)
{
	char before[256], after[256];

	crash();
	fx_read(fx_path(STATE), before, sizeof(before));
	/* the scan opens it, whoever wants to check it cannot */
	fx_fail_on("open", strrchr(fx_name(good), '/'), 2, -EIO, false);
	fx_open();
	fx_start();
	fx_close();
	fx_fail(NULL, 0, 0, false);
	fx_read(fx_path(STATE), after, sizeof(after));
	ck_assert_str_eq(after, before);
	fx_open();
	fx_start_only();
	fx_wait_settled();
	fx_serves(good);
	fx_close();
	ck_assert(state_says("clean=1"));
}

static void die_with_two(void *arg)
{
	(void)arg;
	fx_store("$/a:$/b");
	fx_set = NULL;
}

/* The index has one entry for both copies. */
UNIT_TEST(a_torn_second_copy_is_set_aside)
{
	int fd;

	fx_block(good, 1, FX_PAGED);
	fx_in_child(die_with_two, NULL);
	fx_configure("$/a:$/b");
	fx_plant("$/a", "blocks", good);
	fx_plant("$/b", "blocks", good);
	fd = fx_open_path(fx_path("$/b/blocks/%s", fx_name(good)), O_WRONLY);
	ck_assert_int_eq(fx_pwrite(fd, "torn", 4, 4096), 4);
	fx_close_file(fd);
	fx_open();
	fx_start_only();
	fx_wait_settled();
	ck_assert_uint_eq(fx_count(fx_path("$/b/.ucmfs/quarantine")), 1);
	ck_assert_int_eq(ucm_store_checkpoint(fx_set), 0);
	fx_serves(good);
	ck_assert_int_eq(fx_unlink(fx_path("$/a/blocks/%s", fx_name(good))), 0);
	ck_assert_int_eq(ucm_store_remove(fx_set, &good->key), 0);
	fx_misses(good);
}

static struct ucm_temp late;

static void write_late_and_die(void *arg)
{
	int fd;

	fx_store("$/a");
	fd = fx_create(&good->key, 0, &late);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(fx_pwrite(fd, good->bytes, good->len, 0),
			 (ssize_t)good->len);
	ck_assert_int_eq(
		fx_commit_temp(&late, fd, &good->key, UCM_COMMIT_NOW),
		0);
	do { /* clocks tick coarsely */
		ck_assert_int_eq(fx_pwrite(fd, arg, 4, 4200), 4);
	} while (fx_unchanged(&late, fd));
	ck_assert_int_eq(ucm_store_checkpoint(fx_set), 0);
	fx_set = NULL;
}

UNIT_TEST(a_checkpoint_does_not_cover_up_a_late_write)
{
	fx_block(good, 1, FX_PAGED);
	fx_in_child(write_late_and_die, "late");
	fx_configure("$/a");
	fx_open();
	fx_start_only();
	fx_wait_settled();
	fx_misses(good);
	ck_assert_uint_eq(fx_count(fx_path(QUARANTINE)), 1);
}

/* It is torn, and its first page could not be read when the others were looked
 * at. */
UNIT_TEST(a_file_that_cannot_be_read_after_a_crash_is_checked_after_the_next_start)
{
	crash();
	tear(torn);
	fx_open();
	fx_fail_on("open", fx_name(torn), 1, -EIO, false);
	fx_start_only();
	fx_wait_settled();
	fx_misses(torn);
	ck_assert_int_eq(ucm_store_checkpoint(fx_set), -EAGAIN);
	fx_close();
	fx_fail(NULL, 0, 0, false);
	fx_open();
	fx_start_only();
	fx_wait_settled();
	fx_misses(torn);
	fx_serves(good);
	ck_assert_uint_eq(fx_count(fx_path(QUARANTINE)), 1);
	ck_assert_int_eq(ucm_store_checkpoint(fx_set), 0);
}

UNIT_TEST(a_store_that_was_only_opened_changes_no_state)
{
	char before[256], after[256];

	crash();
	fx_read(fx_path(STATE), before, sizeof(before));
	fx_open();
	fx_close();
	fx_read(fx_path(STATE), after, sizeof(after));
	ck_assert_str_eq(after, before);
}

/* The file of a block in doubt is removed by hand. */
UNIT_TEST(a_doubt_about_a_vanished_file_is_settled)
{
	crash();
	fx_open(); /* indexes what it needs to know the geometry */
	for (size_t i = 0; i < NUM_ROWS(files); i++)
		fx_find(&files[i]);
	fx_close();

	fx_open();
	for (size_t i = 0; i < NUM_ROWS(files); i++)
		ck_assert_int_eq(ucm_store_examine(fx_set,
						   fx_set->names.spaces[0],
						   &files[i].key.id, 0),
				 1);
	ck_assert_uint_eq(atomic_load(&fx_set->doubts), 4);
	ck_assert_int_eq(fx_unlink(fx_path("$/a/blocks/%s", fx_name(good))), 0);
	fx_misses(good);
	ck_assert_uint_eq(fx_set->stats.vanished, 1);
	fx_start_only();
	fx_wait_settled();
	fx_close();
	ck_assert(state_says("clean=1"));
}

/* A new copy must not be dropped in favour of one that may be torn. */
UNIT_TEST(a_commit_replaces_a_torn_block_in_doubt)
{
	crash();
	tear(torn);
	fx_open();
	ck_assert_int_eq(ucm_store_examine(fx_set, fx_set->names.spaces[0],
					   &torn->key.id, 0),
			 1);
	ck_assert_int_eq(fx_commit(torn), 0);
	fx_serves(torn);
	fx_start_only();
	fx_wait_settled();
	fx_serves(torn);
	ck_assert_uint_eq(fx_count(fx_path(QUARANTINE)), 1);
}

UNIT_TEST(a_commit_replaces_a_torn_block_that_is_not_indexed_yet)
{
	crash();
	tear(torn);
	fx_open();
	ck_assert_int_eq(fx_commit(torn), 0);
	fx_serves(torn);
	fx_start_only();
	fx_wait_settled();
	fx_serves(torn);
}
