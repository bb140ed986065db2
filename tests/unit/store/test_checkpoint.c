/* SPDX-License-Identifier: Apache-2.0 */
/* test_checkpoint.c - when a checkpoint is made, and when it must not be. */
#include <config.h>

#include "fs/store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/osfile.h"
#include "fs/store/find/find.h"
#include "fs/store/start/start.h"
#include "tests/unit/store_fixture.h"

UNIT_PROGRAM(.variants = fx_media);

static struct fx_file file;

static void open_with_checkpoints(const char *source)
{
	fx_configure(source);
	fx_option("checkpoint", "1");
	fx_block(&file, 1, FX_PAGED);
	fx_open();
	fx_start();
}

static int64_t checkpoint_of(const char *dir)
{
	char state[256];
	int64_t ns;
	int clean;

	fx_read(fx_path("%s/.ucmfs/state", dir), state, sizeof(state));
	ck_assert_int_eq(sscanf(state, "clean=%d checkpoint=%" SCNd64, &clean,
				&ns), 2);
	return ns;
}

static bool any_checkpoint(void *arg)
{
	(void)arg;
	return atomic_load(&fx_set->stats.checkpoints) > 0;
}

static bool fault_was_hit(void *arg)
{
	(void)arg;
	return fx_failed_call() != NULL;
}

UNIT_FIXTURE(.setup = fx_setup, .teardown = fx_teardown);

UNIT_TEST(a_commit_leads_to_a_checkpoint)
{
	int64_t before_a, before_b;

	open_with_checkpoints("$/a:$/b");
	before_a = checkpoint_of("$/a");
	before_b = checkpoint_of("$/b");
	ck_assert_int_eq(fx_commit(&file), 0); /* in $/a */
	fx_wait(any_checkpoint, NULL);
	ck_assert_int_gt(checkpoint_of("$/a"), before_a);
	ck_assert_int_eq(checkpoint_of("$/b"), before_b);
}

static bool others_checkpoint_moved(void *arg)
{
	return checkpoint_of("$/b") > *(int64_t *)arg;
}

static _Atomic unsigned syncs;
static pthread_t first;

/* Those of the directory's thread that comes first, again and again. */
static int first_ones_syncs_fail(const char *call, const char *path)
{
	(void)path;
	if (strcmp(call, "syncfs"))
		return 0;
	if (!atomic_load(&syncs))
		first = pthread_self();
	if (!pthread_equal(first, pthread_self()))
		return 0;
	atomic_fetch_add(&syncs, 1);
	return -EIO;
}

static bool was_tried_again(void *arg)
{
	(void)arg;
	return atomic_load(&syncs) > 1;
}

/* One dead directory must not keep the others from being safe. */
UNIT_TEST(a_directory_that_cannot_sync_stays_unclean_alone)
{
	int64_t before_a, before_b;
	char state[256];

	open_with_checkpoints("$/a:$/b");
	before_a = checkpoint_of("$/a");
	before_b = checkpoint_of("$/b");
	ucm_os_fault = first_ones_syncs_fail;
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_wait(was_tried_again, NULL);
	fx_block(&file, 2, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_wait(others_checkpoint_moved, &before_b);
	ck_assert_int_eq(checkpoint_of("$/a"), before_a);
	fx_close();
	ucm_os_fault = NULL;
	fx_read(fx_path("$/a/.ucmfs/state"), state, sizeof(state));
	ck_assert_ptr_nonnull(strstr(state, "clean=0"));
	ck_assert_ptr_nonnull(strstr(state, "boot=lost"));
	ck_assert_int_eq(checkpoint_of("$/a"), before_a);
	fx_read(fx_path("$/b/.ucmfs/state"), state, sizeof(state));
	ck_assert_ptr_nonnull(strstr(state, "clean=1"));
}

static bool any_checkpoint_of_a(void *arg)
{
	return checkpoint_of("$/a") > *(int64_t *)arg;
}

static void commit_and_die(void *arg)
{
	(void)arg;
	fx_store("$/a");
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_set = NULL;
}

/* Once all doubts are settled the directory is as good as clean. */
UNIT_TEST(after_a_crash_the_first_checkpoint_ends_the_doubts)
{
	int64_t before;

	fx_block(&file, 1, FX_PAGED);
	fx_in_child(commit_and_die, NULL);
	before = checkpoint_of("$/a");
	open_with_checkpoints("$/a");
	fx_wait_settled();
	fx_wait(any_checkpoint, NULL);
	ck_assert_int_gt(checkpoint_of("$/a"), before);
	ck_assert(!fx_set->dirs.at[0]->recovery.unclean);
}

/* ---- each directory by itself ---- */

static struct fx_file bad, raw, more;

static bool is_clean(const char *dir)
{
	char state[256];

	fx_read(fx_path("%s/.ucmfs/state", dir), state, sizeof(state));
	return !strncmp(state, "clean=1", 7);
}

static void commit_in_both_and_die(void *arg)
{
	(void)arg;
	fx_store("$/a:$/b");
	ck_assert_int_eq(fx_commit(&file), 0);
	atomic_store(&fx_set->dirs.at[0]->retry_s, INT64_MAX);
	ck_assert_int_eq(fx_commit(&more), 0);
	fx_set = NULL;
}

static void crash_of_two(void)
{
	fx_block(&file, 1, FX_PAGED);
	fx_block(&more, 2, FX_PAGED);
	fx_in_child(commit_in_both_and_die, NULL);
	ck_assert(fx_exists(fx_path("$/b/blocks/%s", fx_name(&more))));
	fx_configure("$/a:$/b");
}

static bool only_one_is_in_doubt(void *arg)
{
	(void)arg;
	return atomic_load(&fx_set->scan.complete) &&
	       atomic_load(&fx_set->doubts) == 1;
}

/* A block that cannot be read keeps its own directory in doubt only. */
UNIT_TEST(a_doubt_of_one_directory_is_not_the_others)
{
	int64_t before_a, before_b;

	crash_of_two();
	before_a = checkpoint_of("$/a");
	before_b = checkpoint_of("$/b");
	fx_fail_on("open", strrchr(fx_name(&file), '/'), 2, -EIO, false);
	fx_open();
	fx_start();
	fx_wait(only_one_is_in_doubt, NULL);
	ck_assert_uint_eq(atomic_load(&fx_set->keepers[0].doubts), 1);
	ck_assert_int_eq(ucm_store_checkpoint(fx_set), -EAGAIN);
	ck_assert_int_eq(checkpoint_of("$/a"), before_a);
	ck_assert_int_gt(checkpoint_of("$/b"), before_b);
	fx_close();
	ck_assert(!is_clean("$/a"));
	ck_assert(is_clean("$/b"));
}

/* So does a bucket that could not be listed. */
UNIT_TEST(what_one_directory_has_not_told_is_not_the_others)
{
	int64_t before_a, before_b;

	fx_store("$/a:$/b");
	before_a = checkpoint_of("$/a");
	before_b = checkpoint_of("$/b");
	atomic_fetch_and(&fx_set->names.spaces[0]->scanned[2], ~UINT64_C(1));
	ck_assert(!ucm_store_knows(fx_set, 0));
	ck_assert_int_eq(ucm_store_checkpoint(fx_set), -EAGAIN);
	ck_assert_int_eq(checkpoint_of("$/a"), before_a);
	ck_assert_int_gt(checkpoint_of("$/b"), before_b);
}

/* And nobody has to look it up. */
UNIT_TEST(what_could_not_be_read_is_settled_after_all)
{
	int64_t before;

	fx_block(&file, 1, FX_PAGED);
	fx_in_child(commit_and_die, NULL);
	fx_configure("$/a");
	fx_option("checkpoint", "1");
	before = checkpoint_of("$/a");
	fx_fail_on("list", fx_path("blocks/%.2s", fx_name(&file)), 1, -EIO,
		   false);
	fx_open();
	fx_start_only();
	fx_wait(fault_was_hit, NULL);
	fx_fail(NULL, 0, 0, false);
	fx_wait_settled();
	ck_assert_uint_eq(fx_set->stats.doubts_settled, 1);
	fx_wait(any_checkpoint_of_a, &before);
	fx_close();
	ck_assert(is_clean("$/a"));
}

static pthread_mutex_t hang = PTHREAD_MUTEX_INITIALIZER;

static int first_sync_hangs(const char *call, const char *path)
{
	(void)path;
	if (strcmp(call, "syncfs") || atomic_fetch_add(&syncs, 1))
		return 0;
	pthread_mutex_lock(&hang);
	pthread_mutex_unlock(&hang);
	return -EIO;
}

static bool sync_hangs(void *arg)
{
	(void)arg;
	return atomic_load(&syncs) > 0;
}

static struct ucm_store *volatile left_behind; /* not a leak, for sanitizers */

/* Neither the other's checkpoints nor the close wait for it. */
UNIT_TEST(a_sync_that_hangs_holds_nobody)
{
	int64_t before[2];

	open_with_checkpoints("$/a:$/b");
	fx_block(&more, 2, FX_PAGED);
	before[0] = checkpoint_of("$/a");
	before[1] = checkpoint_of("$/b");
	pthread_mutex_lock(&hang);
	ucm_os_fault = first_sync_hangs;
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_wait(sync_hangs, NULL);
	atomic_store(&fx_set->dirs.at[0]->retry_s, INT64_MAX);
	ck_assert_int_eq(fx_commit(&more), 0);
	fx_wait(others_checkpoint_moved, &before[1]);
	ck_assert_int_eq(checkpoint_of("$/a"), before[0]);
	fx_set->life.close_ms = 500;
	left_behind = fx_set;
	fx_close();
	ck_assert(fx_logged("does not answer"));
	ck_assert(!is_clean("$/a"));
	ck_assert(is_clean("$/b"));
	ucm_os_fault = NULL;
	pthread_mutex_unlock(&hang); /* the thread comes back to what it had */
}

/* ---- lost writes ---- */

/* The disk has not got what was written, and the kernel has told so. */
static void lose_a_page(const struct fx_file *of)
{
	char zeros[256] = { 0 };
	int fd = fx_open_path(fx_path("$/a/blocks/%s", fx_name(of)), O_WRONLY);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(fx_pwrite(fd, zeros, sizeof(zeros), 4096), 256);
	fx_close_file(fd);
}

/* The keepers make no checkpoint of their own meanwhile. */
static void commit_and_lose(const char *source)
{
	fx_configure(source);
	fx_option("checkpoint", "86400");
	fx_open();
	fx_start();
	fx_block(&more, 9, FX_PAGED_RAW);
	ck_assert_int_eq(fx_commit(&more), 0);
	ck_assert_int_eq(ucm_store_checkpoint(fx_set), 0);
	fx_block(&file, 1, FX_PAGED);
	fx_block(&bad, 2, FX_PAGED);
	fx_block(&raw, 3, FX_PAGED_RAW);
	ck_assert_int_eq(fx_commit(&file), 0);
	ck_assert_int_eq(fx_commit(&bad), 0);
	ck_assert_int_eq(fx_commit(&raw), 0);
	lose_a_page(&bad);
	fx_fail("syncfs", 1, -EIO, true);
	ck_assert_int_eq(ucm_store_checkpoint(fx_set), -EIO);
	fx_fail(NULL, 0, 0, false);
}

UNIT_TEST(after_lost_writes_what_is_new_is_checked_before_it_is_served)
{
	commit_and_lose("$/a:$/b");
	ck_assert_uint_eq(atomic_load(&fx_set->doubts), 3);
	ck_assert_int_eq(ucm_store_checkpoint(fx_set), -EAGAIN);
	fx_serves(&file);
	fx_serves(&more); /* older than the last checkpoint */
	fx_misses(&bad);
	fx_misses(&raw); /* nobody vouches for it */
	ck_assert_uint_eq(fx_count(fx_path("$/a/.ucmfs/quarantine")), 2);
	ck_assert_uint_eq(atomic_load(&fx_set->doubts), 0);
}

UNIT_TEST(nothing_is_placed_where_writes_were_lost)
{
	commit_and_lose("$/a:$/b");
	ck_assert(fx_logged("writes may be lost; 3 blocks"));
	fx_misses(&bad);
	ck_assert_int_eq(fx_commit(&bad), 0);
	ck_assert(fx_exists(fx_path("$/b/blocks/%s", fx_name(&bad))));
	fx_misses(&raw);
	fx_serves(&file);
	fx_clear_log();
	fx_fail("syncfs", 1, -EIO, true);
	ck_assert_int_eq(ucm_store_checkpoint(fx_set), -EIO);
	ck_assert(!fx_logged("lost")); /* it is known */
	ck_assert_uint_eq(atomic_load(&fx_set->doubts), 0);
	fx_fail(NULL, 0, 0, false);

	ck_assert_int_eq(ucm_store_checkpoint(fx_set), 0);
	ck_assert(fx_logged("good again"));
	ck_assert_int_eq(fx_commit(&raw), 0);
	ck_assert(fx_exists(fx_path("$/a/blocks/%s", fx_name(&raw))));
	fx_close();
	ck_assert(is_clean("$/a"));
}

UNIT_TEST(without_another_directory_the_error_is_the_disks)
{
	commit_and_lose("$/a");
	fx_block(&more, 10, FX_PAGED);
	ck_assert_int_eq(fx_commit(&more), -EIO);
}

/* Its pages may be among those that are gone. */
UNIT_TEST(a_file_that_was_being_written_is_not_committed)
{
	struct ucm_temp temp;
	int fd;

	fx_store("$/a:$/b");
	fx_block(&more, 4, FX_PAGED);
	fd = fx_create(&more.key, 0, &temp);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(fx_pwrite(fd, more.bytes, more.len, 0),
			 (ssize_t)more.len);
	fx_fail("syncfs", 1, -EIO, true);
	ck_assert_int_eq(ucm_store_checkpoint(fx_set), -EIO);
	fx_fail(NULL, 0, 0, false);
	ck_assert_int_eq(ucm_store_checkpoint(fx_set), 0);
	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(fx_commit_temp(&temp, fd, &more.key,
						  UCM_COMMIT_NOW),
				 -EIO);
	fx_close_file(fd);
	ucm_store_drop(fx_set, &temp);
	fx_misses(&more);
}

/* They have been compared with the disk: what they were is over. */
UNIT_TEST(a_second_loss_leaves_alone_what_was_checked)
{
	commit_and_lose("$/a");
	fx_serves(&file);
	fx_misses(&bad);
	fx_misses(&raw);
	fx_fail("syncfs", 1, -EIO, true);
	ck_assert_int_eq(ucm_store_checkpoint(fx_set), -EIO);
	ck_assert_uint_eq(atomic_load(&fx_set->doubts), 0);
}

/* The thread finds it, and mends what it can, without anybody asking. */
UNIT_TEST(a_directory_that_lost_writes_recovers_by_itself)
{
	open_with_checkpoints("$/a");
	fx_block(&bad, 2, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_fail("syncfs", 1, -EIO, true);
	ck_assert_int_eq(fx_commit(&bad), 0);
	lose_a_page(&bad);
	fx_wait(fault_was_hit, NULL);
	fx_wait(any_checkpoint, NULL);
	ck_assert_uint_eq(fx_set->stats.doubts_settled, 1);
	ck_assert(!fx_set->dirs.at[0]->recovery.lost);
	ck_assert_int_eq(fx_commit(&bad), 0);
	fx_close();
	ck_assert(is_clean("$/a"));
}

static void lose_and_die(void *arg)
{
	(void)arg;
	commit_and_lose("$/a");
	fx_set = NULL;
}

/* In the same boot, where a block without checksums is trusted else. */
UNIT_TEST(a_crash_after_lost_writes_forgets_nothing)
{
	fx_in_child(lose_and_die, NULL);
	fx_block(&more, 9, FX_PAGED_RAW);
	fx_block(&file, 1, FX_PAGED);
	fx_block(&bad, 2, FX_PAGED);
	fx_block(&raw, 3, FX_PAGED_RAW);
	fx_store("$/a");
	ck_assert(fx_logged(": writes were lost; "));
	fx_wait_settled();
	fx_serves(&file);
	fx_misses(&bad);
	fx_misses(&raw);
	fx_close();
	ck_assert(is_clean("$/a"));
}

/* Something else there cannot be settled, and ends the checkpoints. */
UNIT_TEST(losses_are_noticed_where_there_are_doubts)
{
	ucm_ref ref;

	fx_store("$/a");
	fx_block(&file, 1, FX_PAGED);
	fx_block(&bad, 2, FX_PAGED);
	ck_assert_int_eq(fx_commit(&file), 0);
	ck_assert_int_eq(fx_commit(&bad), 0);
	ck_assert(ucm_index_find(fx_set->index, &file.key, NULL, &ref));
	ucm_scan_stop(fx_set); /* they would settle it */
	ucm_store_doubt(fx_set, ref);
	lose_a_page(&bad);
	fx_fail("syncfs", 1, -EIO, true);
	ck_assert_int_eq(ucm_store_checkpoint(fx_set), -EIO);
	ck_assert_uint_eq(atomic_load(&fx_set->doubts), 2);
	fx_misses(&bad);
}

static void commit_raw_and_die(void *arg)
{
	(void)arg;
	fx_store("$/a");
	ck_assert_int_eq(fx_commit(&raw), 0);
	fx_set = NULL;
}

/* After a crash of the daemon a block without checksums is taken for good, but
 * nobody has looked whether the disk has it. */
UNIT_TEST(what_was_only_trusted_is_doubted_again)
{
	fx_block(&raw, 3, FX_PAGED_RAW);
	fx_in_child(commit_raw_and_die, NULL);
	fx_store("$/a");
	fx_wait_settled();
	fx_serves(&raw);
	fx_fail("syncfs", 1, -EIO, true);
	ck_assert_int_eq(ucm_store_checkpoint(fx_set), -EIO);
	fx_misses(&raw);
}

static int checkpoint_said;

static int checkpoint_in_between(const char *call, const char *path)
{
	if (strcmp(call, "rename") || !strstr(path, "quarantine"))
		return 0;
	ucm_os_fault = NULL;
	checkpoint_said = ucm_store_checkpoint(fx_set);
	return 0;
}

/* It would be newer than the torn file, which a power cut may leave there. */
UNIT_TEST(no_checkpoint_is_made_while_a_torn_block_is_moved_aside)
{
	ucm_ref ref;

	fx_store("$/a");
	ucm_scan_stop(fx_set); /* its threads would settle the doubt */
	fx_block(&bad, 2, FX_PAGED);
	ck_assert_int_eq(fx_commit(&bad), 0);
	lose_a_page(&bad);
	ck_assert(ucm_index_find(fx_set->index, &bad.key, NULL, &ref));
	ucm_store_doubt(fx_set, ref);
	ucm_os_fault = checkpoint_in_between;
	fx_misses(&bad);
	ck_assert_int_eq(checkpoint_said, -EAGAIN);
	ck_assert_int_eq(ucm_store_checkpoint(fx_set), 0);
}

/* A torn block that stays in its place must not be taken for good later. */
UNIT_TEST(what_cannot_be_moved_aside_leaves_its_directory_unclean)
{
	commit_and_lose("$/a");
	fx_fail("rename", 1, -EIO, true);
	fx_misses(&bad);
	fx_misses(&raw);
	fx_serves(&file);
	ck_assert_uint_eq(atomic_load(&fx_set->doubts), 0);
	ck_assert_int_eq(ucm_store_checkpoint(fx_set), -EAGAIN);
	fx_close();
	ck_assert(!is_clean("$/a"));
	fx_open();
	fx_start();
	fx_wait_settled();
	fx_misses(&bad);
	fx_close();
	ck_assert(is_clean("$/a"));
}

UNIT_TEST(closing_does_not_wait_for_the_next_checkpoint)
{
	fx_configure("$/a");
	fx_option("checkpoint", "86400");
	for (unsigned i = 0; i < 20; i++) {
		fx_open();
		fx_start_only();
		fx_close(); /* CK_DEFAULT_TIMEOUT ends it otherwise */
	}
}
