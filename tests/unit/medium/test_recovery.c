/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_recovery.c - what a store does after a crash.
 *
 * A crash is a child that commits and leaves by _exit: its directories stay
 * marked as in use. What a power cut would have done to the files is done by
 * hand afterwards.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "fs/store/find/find.h"
#include "tests/unit/store_fixture.h"

UNIT_PROGRAM(.variants = fx_media);

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

UNIT_FIXTURE(.setup = fx_setup, .teardown = fx_teardown);

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
