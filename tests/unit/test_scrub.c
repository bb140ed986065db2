/* SPDX-License-Identifier: Apache-2.0 */
/* test_scrub.c - runs that read all blocks: what they find, and where they are. */
#include <config.h>

#include "fs/store/scrub.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "common/osfile.h"
#include "tests/unit/store_fixture.h"

UNIT_PROGRAM(.variants = fx_media);
UNIT_FIXTURE(.setup = fx_setup, .teardown = fx_teardown);

#define BLOCKS 12

static struct fx_file files[BLOCKS];

static void plant(const char *dir, unsigned num)
{
	for (unsigned i = 0; i < num; i++) {
		fx_block(&files[i], i + 1, FX_PAGED);
		fx_plant(dir, "blocks", &files[i]);
	}
}

/* A bit of what the disk has. */
static void spoil(const char *dir, unsigned n)
{
	const char *path = fx_path("%s/blocks/%s", dir, fx_name(&files[n]));
	int number = fx_open_path(path, O_RDWR);
	char byte;

	ck_assert_int_ge(number, 0);
	ck_assert_int_eq(fx_pread(number, &byte, 1, 4100), 1);
	byte ^= 1;
	ck_assert_int_eq(fx_pwrite(number, &byte, 1, 4100), 1);
	fx_close_file(number);
}

static struct ucm_scrub_status status_of(unsigned dir)
{
	struct ucm_scrub_status status;

	ucm_scrub_status(fx_set, dir, &status);
	return status;
}

static void start(const char *space, uint64_t rate)
{
	const struct ucm_scrub_terms terms = { .space = space, .rate = rate };

	ck_assert_int_eq(ucm_scrub_start(fx_set, &terms), 0);
}

static bool all_done(void *arg)
{
	(void)arg;
	for (unsigned dir = 0; dir < fx_set->dirs.num; dir++) {
		if (status_of(dir).state != UCM_SCRUB_STATE_DONE)
			return false;
	}
	return true;
}

static void scrub(void)
{
	start(NULL, 0);
	fx_wait(all_done, NULL);
}

static bool has_read(void *arg)
{
	return status_of(0).blocks >= *(unsigned *)arg;
}

static bool waits(void *arg)
{
	(void)arg;
	return status_of(0).state == UCM_SCRUB_STATE_WAITING;
}

/* ---- what is found ---- */

UNIT_TEST(good_blocks_stay)
{
	struct ucm_scrub_status status;

	fx_configure("$/a");
	plant("$/a", BLOCKS);
	fx_open();
	fx_start();
	ck_assert_int_eq(status_of(0).state, UCM_SCRUB_STATE_NONE);
	scrub();
	status = status_of(0);
	ck_assert_uint_eq(status.blocks, BLOCKS);
	ck_assert_uint_eq(status.total_blocks, BLOCKS);
	ck_assert_uint_eq(status.bytes, BLOCKS * files[0].len);
	ck_assert_uint_eq(status.total_bytes, BLOCKS * files[0].len);
	ck_assert_uint_eq(status.bad + status.missing + status.unreadable +
			  status.unchecked, 0);
	ck_assert_uint_eq(fx_losses, 0);
	for (unsigned i = 0; i < BLOCKS; i++)
		fx_serves(&files[i]);
}

UNIT_TEST(a_bad_block_is_set_aside)
{
	fx_configure("$/a");
	plant("$/a", BLOCKS);
	fx_open();
	fx_start();
	fx_serves(&files[3]);
	spoil("$/a", 3);
	scrub();
	ck_assert_uint_eq(status_of(0).bad, 1);
	ck_assert_uint_eq(status_of(0).repaired, 0);
	ck_assert_uint_eq(status_of(0).blocks, BLOCKS);
	fx_misses(&files[3]);
	fx_serves(&files[4]);
	ck_assert_uint_eq(fx_losses, 1);
	ck_assert_uint_eq(fx_set->stats.quarantined, 1);
	ck_assert(fx_logged("layer 0 K), found by a scrub: quarantined"));
}

UNIT_TEST(a_good_copy_takes_the_place_of_a_bad_block)
{
	fx_configure("$/a:$/b");
	plant("$/a", BLOCKS);
	plant("$/b", BLOCKS);
	fx_open();
	fx_start();
	spoil("$/a", 3);
	scrub();
	ck_assert_uint_eq(status_of(0).bad, 1);
	ck_assert_uint_eq(status_of(0).repaired, 1);
	ck_assert_uint_eq(status_of(1).bad, 0);
	ck_assert_uint_eq(status_of(1).blocks, BLOCKS);
	fx_serves(&files[3]);
	ck_assert(fx_exists(fx_path("$/b/blocks/%s", fx_name(&files[3]))));
	ck_assert(!fx_exists(fx_path("$/a/blocks/%s", fx_name(&files[3]))));
}

UNIT_TEST(a_bad_copy_is_set_aside_and_the_block_stays)
{
	fx_configure("$/a:$/b");
	plant("$/a", BLOCKS);
	plant("$/b", BLOCKS);
	fx_open();
	fx_start();
	spoil("$/b", 3);
	scrub();
	ck_assert_uint_eq(status_of(0).bad, 0);
	ck_assert_uint_eq(status_of(1).bad, 1);
	ck_assert_uint_eq(status_of(1).repaired, 1);
	fx_serves(&files[3]);
	ck_assert(!fx_exists(fx_path("$/b/blocks/%s", fx_name(&files[3]))));
	ck_assert_uint_eq(fx_losses, 0);
}

UNIT_TEST(of_two_bad_ones_none_is_served)
{
	fx_configure("$/a:$/b");
	plant("$/a", BLOCKS);
	plant("$/b", BLOCKS);
	fx_open();
	fx_start();
	spoil("$/a", 3);
	spoil("$/b", 3);
	scrub();
	fx_misses(&files[3]);
	ck_assert_uint_eq(fx_set->stats.quarantined, 2);
	ck_assert_uint_eq(status_of(0).repaired + status_of(1).repaired, 0);
}

UNIT_TEST(a_block_whose_file_is_gone_is_missing)
{
	fx_configure("$/a");
	plant("$/a", BLOCKS);
	fx_open();
	fx_start();
	ck_assert_int_eq(fx_unlink(fx_path("$/a/blocks/%s",
					   fx_name(&files[3]))), 0);
	scrub();
	ck_assert_uint_eq(status_of(0).missing, 1);
	ck_assert_uint_eq(status_of(0).bad, 0);
	fx_misses(&files[3]);
}

UNIT_TEST(what_cannot_be_read_is_reported_and_stays)
{
	fx_configure("$/a");
	plant("$/a", BLOCKS);
	fx_open();
	fx_start();
	fx_fail_on("open", fx_name(&files[3]), 1, -EIO, false);
	scrub();
	fx_fail(NULL, 0, 0, false);
	ck_assert_uint_eq(status_of(0).unreadable, 1);
	ck_assert_uint_eq(status_of(0).bad, 0);
	ck_assert_uint_eq(status_of(0).blocks, BLOCKS);
	ck_assert_uint_eq(fx_set->stats.quarantined, 0);
	fx_serves(&files[3]);
}

UNIT_TEST(blocks_without_checksums_are_counted)
{
	struct fx_file bare;

	fx_configure("$/a");
	fx_block(&bare, 1, FX_PAGED_RAW);
	fx_plant("$/a", "blocks", &bare);
	fx_open();
	fx_start();
	scrub();
	ck_assert_uint_eq(status_of(0).unchecked, 1);
	ck_assert_uint_eq(status_of(0).bad, 0);
}

UNIT_TEST(of_one_space_others_are_not_read)
{
	const struct ucm_scrub_terms none = { .space = "none" };
	struct ucm_space *space;

	fx_store("$/a");
	ck_assert_int_eq(ucm_store_mkdir(fx_set, "one", 0755, 0, 0, &space), 0);
	for (unsigned i = 0; i < BLOCKS; i++) {
		fx_block(&files[i], i + 1, FX_PAGED);
		files[i].key.space = i < 4 ? space->number : 0;
		ck_assert_int_eq(fx_commit(&files[i]), 0);
	}
	start("one", 0);
	fx_wait(all_done, NULL);
	ck_assert_uint_eq(status_of(0).blocks, 4);
	start("", 0);
	fx_wait(all_done, NULL);
	ck_assert_uint_eq(status_of(0).blocks, BLOCKS - 4);
	ck_assert_int_eq(ucm_scrub_start(fx_set, &none), -ENOENT);
}

/* ---- where it is ---- */

#define SLOW 40000 /* bytes a second: three or four blocks of 8 KiB */

UNIT_TEST(a_run_that_was_stopped_goes_on_where_it_was)
{
	unsigned some = 2;

	fx_configure("$/a");
	plant("$/a", BLOCKS);
	fx_open();
	fx_start();
	start(NULL, SLOW);
	fx_wait(has_read, &some);
	ucm_scrub_stop(fx_set);
	ck_assert_int_eq(status_of(0).state, UCM_SCRUB_STATE_STOPPED);
	ck_assert_uint_lt(status_of(0).blocks, BLOCKS);
	start(NULL, 0);
	fx_wait(all_done, NULL);
	ck_assert_uint_eq(status_of(0).blocks, BLOCKS);
	/* none of them twice */
	ck_assert_uint_eq(fx_set->stats.scrubbed, BLOCKS);
}

UNIT_TEST(one_that_begins_anew_reads_all)
{
	const struct ucm_scrub_terms anew = { .anew = true };
	unsigned some = 2;
	uint64_t before;

	fx_configure("$/a");
	plant("$/a", BLOCKS);
	fx_open();
	fx_start();
	start(NULL, SLOW);
	fx_wait(has_read, &some);
	ucm_scrub_stop(fx_set);
	before = fx_set->stats.scrubbed;
	ck_assert_int_eq(ucm_scrub_start(fx_set, &anew), 0);
	fx_wait(all_done, NULL);
	ck_assert_uint_eq(status_of(0).blocks, BLOCKS);
	ck_assert_uint_eq(fx_set->stats.scrubbed, before + BLOCKS);
}

UNIT_TEST(it_goes_on_at_the_next_start)
{
	unsigned some = 2;
	uint64_t before;

	fx_configure("$/a");
	plant("$/a", BLOCKS);
	fx_open();
	fx_start();
	start(NULL, SLOW);
	fx_wait(has_read, &some);
	fx_close();
	fx_open();
	fx_start();
	ck_assert_int_eq(status_of(0).state, UCM_SCRUB_STATE_NONE);
	ucm_scrub_resume(fx_set);
	before = status_of(0).blocks;
	ck_assert_uint_ge(before, some);
	ck_assert_uint_lt(before, BLOCKS);
	start(NULL, 0); /* as it is, but faster */
	fx_wait(all_done, NULL);
	ck_assert_uint_eq(status_of(0).blocks, BLOCKS);
	ck_assert_uint_eq(fx_set->stats.scrubbed, BLOCKS - before);
}

UNIT_TEST(one_that_is_done_or_stopped_does_not_go_on_by_itself)
{
	fx_configure("$/a");
	plant("$/a", BLOCKS);
	fx_open();
	fx_start();
	scrub();
	fx_close();
	fx_open();
	fx_start();
	ucm_scrub_resume(fx_set);
	ck_assert_int_eq(status_of(0).state, UCM_SCRUB_STATE_DONE);
	ck_assert_uint_eq(status_of(0).blocks, BLOCKS);
	ck_assert_uint_eq(fx_set->stats.scrubbed, 0);
}

UNIT_TEST(a_note_that_is_none_is_left_alone)
{
	static const char *const notes[] = {
		"",
		"ucmfs-scrub 2\nstate=running\n",
		"ucmfs-scrub 1\nstate=running\nrate=1\nafter=0\nspace=*\n",
		"ucmfs-scrub 1\nstate=running\nrate=x\n",
	};

	for (unsigned i = 0; i < sizeof(notes) / sizeof(*notes); i++) {
		fx_configure("$/a");
		fx_open();
		fx_put(fx_path("$/a/.ucmfs/scrub"), notes[i], strlen(notes[i]));
		fx_start();
		ucm_scrub_resume(fx_set);
		ck_assert_int_eq(status_of(0).state, UCM_SCRUB_STATE_NONE);
		ck_assert(fx_logged(".ucmfs/scrub: Invalid argument"));
		fx_clear_log();
		fx_close();
	}
}

UNIT_TEST(a_run_of_other_blocks_must_be_stopped_first)
{
	const struct ucm_scrub_terms other = { .space = "" };

	fx_configure("$/a");
	plant("$/a", BLOCKS);
	fx_open();
	fx_start();
	start(NULL, 1);
	ck_assert_int_eq(ucm_scrub_start(fx_set, &other), -EBUSY);
	ucm_scrub_stop(fx_set);
	ck_assert_int_eq(ucm_scrub_start(fx_set, &other), 0);
	fx_wait(all_done, NULL);
}

/* ---- giving way ---- */

/* At a byte a second the first read would be paid for until tomorrow. */
UNIT_TEST(the_end_does_not_wait_for_the_rate)
{
	fx_configure("$/a");
	plant("$/a", BLOCKS);
	fx_open();
	fx_start();
	start(NULL, 1);
	fx_close();
	ck_assert(!fx_logged("does not answer"));
}

UNIT_TEST(another_rate_holds_at_once)
{
	fx_configure("$/a");
	plant("$/a", BLOCKS);
	fx_open();
	fx_start();
	start(NULL, 1);
	start(NULL, 0);
	fx_wait(all_done, NULL);
	ck_assert_uint_eq(status_of(0).blocks, BLOCKS);
}

/* The other directory is read to its end. */
UNIT_TEST(a_directory_that_does_not_answer_waits)
{
	fx_configure("$/a:$/b");
	plant("$/b", BLOCKS);
	plant("$/a", 1);
	fx_open();
	fx_start();
	fx_fail_on("open", fx_name(&files[0]), 1, -ETIMEDOUT, false);
	start(NULL, 0);
	fx_wait(waits, NULL);
	ck_assert_int_eq(status_of(0).err, -ETIMEDOUT);
	ck_assert_uint_eq(status_of(0).blocks, 0);
	ck_assert_uint_eq(status_of(0).unreadable, 0);
	fx_fail(NULL, 0, 0, false);
	scrub(); /* at once */
	ck_assert_uint_eq(status_of(0).blocks, 1);
	fx_serves(&files[0]);
}
