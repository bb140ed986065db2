/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_mover.c - what movers do after an eviction or a failure, and at which
 * rate. test_motion.c has each of their jobs once.
 */
#include <config.h>

#include <errno.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/osfile.h"
#include "fs/store/jobs.h"
#include "fs/store/motion/motion.h"
#include "fs/store/motion/mover_inside.h"
#include "fs/store/pressure.h"
#include "fs/store/store.h"
#include "tests/unit/store_fixture.h"

#define BYTES 8192u /* of a block of FX_PAGED */

#define FILES 24u /* of fx_files that are used */

static void start(void)
{
	fx_open();
	fx_start();
}

UNIT_FIXTURE(.setup = fx_setup_files, .teardown = fx_teardown);

static bool is_below_high(void *arg)
{
	(void)arg;
	return !ucm_pressure(fx_set, 0);
}

UNIT_TEST(a_directory_is_relieved_each_time_that_it_fills_up)
{
	fx_configure_lru("fast=$/a:slow=$/b");
	fx_option("limit", "fast:80K");
	fx_config.high = 60;
	fx_config.low = 30;
	start();
	for (unsigned i = 0; i < FILES; i += 8) {
		fx_commit_files(i, 8);
		fx_wait(is_below_high, NULL);
	}
}

static char unreadable[16]; /* a bucket */

static int cannot_be_read(const char *call, const char *path)
{
	return !strcmp(call, "list") && path && strstr(path, unreadable) ? -EIO
									  : 0;
}

static bool has_begun_another_round(void *arg)
{
	int64_t *before = arg, now;

	pthread_mutex_lock(&fx_set->movers->lock);
	now = fx_set->movers->learnt_ms;
	pthread_mutex_unlock(&fx_set->movers->lock);
	return now != *before && (*before = now);
}

static sem_t gate;

/* It is not read at the first time, where the geometry is learnt from a block. */
static int waits_at_the_gate(const char *call, const char *path)
{
	static atomic_bool again;

	if (strcmp(call, "list") || !path || !strstr(path, unreadable))
		return 0;
	if (!atomic_exchange(&again, true))
		return -EIO;
	sem_wait(&gate);
	return 0;
}

static bool is_copied(void *arg)
{
	struct ucm_entry entry;

	(void)arg;
	return ucm_index_find(fx_set->index, &fx_files[0].key, &entry, NULL) &&
	       entry.copy == 2;
}

/* A mover has looked before what an earlier mount has left is found. */
UNIT_TEST(what_is_found_late_is_copied)
{
	int64_t before = 0;

	fx_configure_lru("fast=$/a:slow=$/b");
	start();
	fx_commit_files(0, 1);
	fx_close();
	ck_assert_int_eq(fx_unlink(fx_path("$/a/.ucmfs/snapshot")), 0);
	fx_option("write", "fast:back");
	snprintf(unreadable, sizeof(unreadable), "blocks/%.2s",
		 fx_name(&fx_files[0]));
	ck_assert_int_eq(sem_init(&gate, 0, 0), 0);
	ucm_os_fault = waits_at_the_gate;
	fx_open();
	ck_assert_int_eq(ucm_store_start(fx_set), 0);
	for (unsigned i = 0; i < 3; i++)
		fx_wait(has_begun_another_round, &before);
	ucm_os_fault = NULL;
	for (unsigned i = 0; i < 8; i++)
		sem_post(&gate);
	fx_wait(is_copied, NULL);
}

/* A child may be there that needs what would go. */
UNIT_TEST(nothing_is_evicted_before_all_has_been_read)
{
	int64_t before = 0;

	fx_configure_lru("fast=$/a");
	fx_option("limit", "fast:80K");
	start();
	fx_commit_files(0, 8);
	fx_close();
	ck_assert_int_eq(fx_unlink(fx_path("$/a/.ucmfs/snapshot")), 0);
	fx_config.high = 60;
	fx_config.low = 30;
	snprintf(unreadable, sizeof(unreadable), "blocks/%.2s",
		 fx_name(&fx_files[0]));
	ucm_os_fault = cannot_be_read;
	fx_open();
	ck_assert_int_eq(ucm_store_start(fx_set), 0);
	for (unsigned i = 0; i < 3; i++)
		fx_wait(has_begun_another_round, &before);
	ck_assert_uint_eq(fx_set->evictions.done, 0);
	fx_close();
	ucm_os_fault = NULL;
	start();
	fx_wait(is_below_high, NULL);
}

static bool is_not_relieved(void *arg)
{
	(void)arg;
	return !atomic_load(&fx_set->views[0].relieved);
}

/* New blocks have all the room below the high mark again. */
UNIT_TEST(a_relief_ends_when_the_directory_is_empty)
{
	fx_configure_lru("fast=$/a:slow=$/b");
	start();
	fx_set->views[0].relieved = true;
	ucm_jobs_wake(fx_set->jobs);
	fx_wait(is_not_relieved, NULL);
}

static bool has_failed(void *arg)
{
	(void)arg;
	return fx_failed_call();
}

static bool is_saved(void *arg)
{
	uint64_t blocks, bytes;

	(void)arg;
	/* it was set aside when the copies failed */
	atomic_store(&fx_set->dirs.at[1]->retry_s, 0);
	ucm_jobs_count_unsaved(fx_set, &blocks, &bytes);
	return !blocks && !atomic_load(&fx_set->dirs.at[1]->writing);
}

UNIT_TEST(a_copy_that_could_not_be_synced_is_made_again)
{
	fx_configure_lru("fast=$/a:slow=$/b");
	fx_option("write", "fast:back");
	fx_option("durability", "data");
	start();
	fx_fail("fsync", 1, -EIO, false); /* a commit calls fdatasync */
	fx_commit_files(0, 4);
	fx_wait(has_failed, NULL);
	ck_assert_uint_eq(fx_set->dirs.at[1]->blocks, 0);
	fx_fail(NULL, 0, 0, false);
	fx_wait(is_saved, NULL);
	for (unsigned i = 0; i < 4; i++)
		ck_assert_uint_eq(fx_entry(&fx_files[i]).copy, 2);
}

UNIT_TEST(copies_are_not_made_faster_than_the_rate)
{
	int64_t began_ms;

	fx_configure_lru("fast=$/a:slow=$/b");
	fx_config.move_rate = 20 * BYTES; /* a second */
	start();
	fx_commit_files(0, 10);
	fx_close();
	fx_option("write", "fast:back");
	began_ms = ucm_monotonic_ms();
	start();
	fx_wait(is_saved, NULL);
	ck_assert_int_ge(ucm_monotonic_ms() - began_ms, 450); /* of 500 */
}

UNIT_PROGRAM(.variants = fx_media);
