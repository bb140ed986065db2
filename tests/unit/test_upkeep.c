/* SPDX-License-Identifier: Apache-2.0 */
/* test_upkeep.c - when a checkpoint is made, and when it must not be. */
#include <config.h>

#include "fs/tierset.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/store_fixture.h"

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

START_TEST(a_commit_leads_to_a_checkpoint)
{
	int64_t before_a, before_b;

	open_with_checkpoints("$/a,$/b");
	before_a = checkpoint_of("$/a");
	before_b = checkpoint_of("$/b");
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_wait(any_checkpoint, NULL);
	ck_assert_int_gt(checkpoint_of("$/a"), before_a);
	ck_assert_int_gt(checkpoint_of("$/b"), before_b);
}
END_TEST

static bool others_checkpoint_moved(void *arg)
{
	return checkpoint_of("$/b") > *(int64_t *)arg;
}

/* One dead directory must not keep the others from being safe. */
START_TEST(a_directory_that_cannot_sync_stays_unclean_alone)
{
	int64_t before_a, before_b;
	char state[256];

	open_with_checkpoints("$/a,$/b");
	before_a = checkpoint_of("$/a");
	before_b = checkpoint_of("$/b");
	fx_fail("syncfs", 1, -EIO, true); /* of $/a */
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_wait(fault_was_hit, NULL);
	fx_wait(others_checkpoint_moved, &before_b);
	ck_assert_int_eq(checkpoint_of("$/a"), before_a);
	fx_close();
	fx_read(fx_path("$/a/.ucmfs/state"), state, sizeof(state));
	ck_assert_ptr_nonnull(strstr(state, "clean=0"));
	ck_assert_int_eq(checkpoint_of("$/a"), before_a);
	fx_read(fx_path("$/b/.ucmfs/state"), state, sizeof(state));
	ck_assert_ptr_nonnull(strstr(state, "clean=1"));
}
END_TEST

static void commit_and_die(void *arg)
{
	(void)arg;
	fx_store("$/a");
	ck_assert_int_eq(fx_commit(&file), 0);
	fx_set = NULL;
}

/* Once all doubts are settled the directory is as good as clean. */
START_TEST(after_a_crash_the_first_checkpoint_ends_the_doubts)
{
	int64_t before;

	fx_block(&file, 1, FX_PAGED);
	fx_in_child(commit_and_die, NULL);
	before = checkpoint_of("$/a");
	open_with_checkpoints("$/a");
	fx_wait_settled();
	fx_wait(any_checkpoint, NULL);
	ck_assert_int_gt(checkpoint_of("$/a"), before);
	ck_assert(!fx_set->dirs[0]->recovery.unclean);
}
END_TEST

START_TEST(closing_does_not_wait_for_the_next_checkpoint)
{
	fx_configure("$/a");
	fx_option("checkpoint", "86400");
	for (unsigned i = 0; i < 20; i++) {
		fx_open();
		fx_start_only();
		fx_close(); /* CK_DEFAULT_TIMEOUT ends it otherwise */
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("upkeep");
	TCase *tests = tcase_create("upkeep");

	tcase_add_checked_fixture(tests, fx_setup, fx_teardown);
	tcase_add_test(tests, a_commit_leads_to_a_checkpoint);
	tcase_add_test(tests, a_directory_that_cannot_sync_stays_unclean_alone);
	tcase_add_test(tests,
		       after_a_crash_the_first_checkpoint_ends_the_doubts);
	tcase_add_test(tests, closing_does_not_wait_for_the_next_checkpoint);
	suite_add_tcase(suite, tests);
	return fx_run(suite);
}
