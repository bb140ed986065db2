/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_save_failures.c - saves that fail, are dropped, meet each other or are
 * given up: nothing half is left, and the next one works.
 */
#include <config.h>

#include <errno.h>

#include "gpu/load/thread.h"
#include "tests/unit/load/save_fixture.h"

#define BLOCK (4 * LAYER)

/* ---- the file system refuses ---- */

static const struct {
	unsigned nth; /* write of the ring, counted for the first block saved */
	int err;
} refusals[] = {
	{ 1, -ENOSPC }, { 1, -EDQUOT }, { 1, -EIO }, { 2, -ENOSPC },
	{ 3, -EIO },	{ 4, -ENOSPC }, { 5, -EIO }, /* the header */
};

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(a_save_that_is_refused_leaves_nothing, .rows = NUM_ROWS(refusals))
{
	for (unsigned i = 0; i < NUM_ROWS(ways); i++) {
		struct ucm_loader *loader;
		struct ucm_outcome outcomes[NUM];
		struct ucm_loader_stats stats;
		int err = refusals[_i].err;

		if (refusals[_i].nth > 1 && !reads[i])
			continue; /* it is not written that often */
		loader = open_way(i);
		ck_assert_int_eq(lf_save(loader, 7, 1, NULL, NULL), 0);
		lf_fail(UCM_IO_WRITE, refusals[_i].nth, err, false);
		ck_assert_int_eq(lf_save(loader, 0, NUM - 1, NULL, outcomes),
				 -EIO);
		for (unsigned j = 0; j < NUM - 1; j++)
			ck_assert_int_eq(outcomes[j].err, err);
		check_nothing(0, NUM - 1);
		ucm_loader_get_stats(loader, &stats, sizeof(stats));
		ck_assert_uint_eq(stats.save_failed, NUM - 1);
		ck_assert_uint_eq(stats.saves, 1);
		lf_fail(UCM_IO_WRITE, 0, 0, false);
		lf_cache_clear(&cache);
		for (unsigned j = 0; j < NUM; j++)
			lf_fill_page(&cache, j, j);
		ck_assert_int_eq(lf_save(loader, 0, NUM - 1, NULL, NULL), 0);
		check_saved(0, NUM - 1);
		remove_saved(loader, NUM);
		ucm_loader_close(loader);
	}
}

UNIT_TEST(one_that_fails_is_alone, .rows = NUM_ROWS(ways))
{
	struct ucm_outcome outcomes[NUM];
	struct ucm_loader *loader;
	unsigned failed = 0;

	loader = open_way(_i);
	lf_fail(UCM_IO_WRITE, 3, -ENOSPC, true);
	ck_assert_int_eq(lf_save(loader, 0, NUM, NULL, outcomes), -EIO);
	for (unsigned i = 0; i < NUM; i++) {
		if (!outcomes[i].err) {
			check_saved(i, i + 1);
			continue;
		}
		ck_assert_int_eq(outcomes[i].err, -ENOSPC);
		ck_assert(!fx_exists(lf_path("$/tier", i)));
		failed++;
	}
	ck_assert_uint_eq(failed, 1);
	ck_assert_uint_eq(fx_count_files(fx_path("$/tier/.ucmfs/tmp")), 0);
	ucm_loader_close(loader);
}

UNIT_TEST(short_writes_go_on, .rows = NUM_ROWS(ways))
{
	struct ucm_loader *loader = open_way(_i);

	lf_shorten(UCM_IO_WRITE, 4096, 1000);
	ck_assert_int_eq(lf_save(loader, 0, NUM / 2, NULL, NULL), 0);
	lf_shorten(UCM_IO_WRITE, 1000, 20);
	ck_assert_int_eq(lf_save(loader, 0, NUM, NULL, NULL), 0);
	check_saved(0, NUM);
	ucm_loader_close(loader);
}

UNIT_TEST(short_writes_for_ever_end, .rows = NUM_ROWS(ways))
{
	struct ucm_loader *loader = open_way(_i);
	struct ucm_outcome outcomes[NUM];

	lf_shorten(UCM_IO_WRITE, 100, UINT32_MAX);
	ck_assert_int_eq(lf_save(loader, 0, NUM, NULL, outcomes), -EIO);
	for (unsigned i = 0; i < NUM; i++)
		ck_assert_int_eq(outcomes[i].err, -EIO);
	check_nothing(0, NUM);
	ucm_loader_close(loader);
}

/* One without a socket that the loader could use. */
UNIT_TEST(tiers_that_a_daemon_has_are_told)
{
	struct ucm_outcome outcomes[NUM];
	struct ucm_loader *loader;

	fx_store("$/tier"); /* the daemon's part */
	loader = lf_loader("$/tier", &cache, NULL);
	ck_assert_int_eq(lf_save(loader, 0, 1, NULL, outcomes), -EIO);
	ck_assert_int_eq(outcomes[0].err, -EBUSY);
	ck_assert(fx_logged("in use by another ucmfs"));
	fx_close();
	check_nothing(0, NUM);
	ucm_loader_close(loader);
}

/* ---- the budget ---- */

UNIT_TEST(saves_over_the_budget_are_dropped)
{
	struct ucm_loader_options options = { .io = UCM_IO_THREADS,
					      .threads = 1 };
	const struct ucm_outcome *outcomes;
	struct ucm_loader_stats stats;
	struct ucm_loader *loader;
	struct ucm_task *first, *second;

	lf_limits.save_bytes = 3 * BLOCK + 1;
	loader = lf_loader("$/tier", &cache, &options);
	lf_hold(UCM_IO_WRITE, 0);
	first = lf_submit(loader, true, NUM, 1, NULL);
	second = lf_submit(loader, true, 0, 6, NULL);
	lf_wait_held(3);
	lf_release();
	ck_assert_int_eq(ucm_task_wait(first, 20000), 0);
	ck_assert_int_eq(ucm_task_wait(second, 20000), -EIO);
	outcomes = ucm_task_outcomes(second);
	for (unsigned i = 0; i < 6; i++)
		ck_assert_int_eq(outcomes[i].err, i < 2 ? 0 : -ENOBUFS);
	ck_assert_uint_eq(ucm_task_num_failed(second), 4);
	ucm_loader_get_stats(loader, &stats, sizeof(stats));
	ck_assert_uint_eq(stats.save_dropped, 4);
	ck_assert_uint_eq(stats.saves, 3);
	ck_assert_uint_eq(stats.save_failed, 0);
	ucm_task_free(first);
	ucm_task_free(second);
	check_saved(0, 2);
	check_nothing(2, NUM);
	/* what is done makes room, also what failed */
	lf_fail(UCM_IO_WRITE, 1, -EIO, false);
	for (unsigned i = 0; i < 3; i++)
		ck_assert_int_eq(lf_save(loader, 3, 3, NULL, NULL), -EIO);
	lf_fail(UCM_IO_WRITE, 0, 0, false);
	for (unsigned i = 0; i < NUM; i++)
		lf_fill_page(&cache, i, i + 3);
	ck_assert_int_eq(lf_save(loader, 3, 3, NULL, NULL), 0);
	ucm_loader_get_stats(loader, &stats, sizeof(stats));
	ck_assert_uint_eq(stats.save_dropped, 4);
	check_saved(3, 6);
	ucm_loader_close(loader);
}

UNIT_TEST(a_request_that_finds_none_waiting_is_taken_as_a_whole)
{
	struct ucm_loader *loader;

	lf_limits.save_bytes = BLOCK - 1;
	loader = lf_loader("$/tier", &cache, NULL);
	ck_assert_int_eq(lf_save(loader, 0, 5, NULL, NULL), 0);
	ucm_loader_close(loader);
	check_saved(0, 5);
	check_nothing(5, NUM);
}

/* A file system may say so, too: that block was not dropped, it has failed, and
 * makes room. */
UNIT_TEST(no_buffers_is_a_failure_like_others)
{
	struct ucm_outcome outcomes[3];
	struct ucm_loader_stats stats;
	struct ucm_loader *loader;

	lf_limits.save_bytes = 3 * BLOCK;
	loader = lf_loader("$/tier", &cache, NULL);
	lf_fail(UCM_IO_WRITE, 1, -ENOBUFS, false);
	ck_assert_int_eq(lf_save(loader, 0, 3, NULL, outcomes), -EIO);
	for (unsigned i = 0; i < 3; i++)
		ck_assert_int_eq(outcomes[i].err, -ENOBUFS);
	ucm_loader_get_stats(loader, &stats, sizeof(stats));
	ck_assert_uint_eq(stats.save_failed, 3);
	ck_assert_uint_eq(stats.save_dropped, 0);
	lf_fail(UCM_IO_WRITE, 0, 0, false);
	ck_assert_int_eq(lf_save(loader, 0, 3, NULL, NULL), 0);
	check_saved(0, 3);
	ucm_loader_close(loader);
}

/* ---- the same block ---- */

UNIT_TEST(a_block_saved_twice_is_there_once, .rows = NUM_ROWS(ways))
{
	struct ucm_move moves[3] = { { .id = lf_id(0) }, { .id = lf_id(0) },
				     { .id = lf_id(0) } };
	struct ucm_request request = { .size = sizeof(request),
				       .blocks = moves, .num_blocks = 3 };
	struct ucm_loader *loader = open_way(_i);
	const struct ucm_outcome *outcomes;
	struct ucm_task *tasks[5];
	unsigned skipped = 0;

	for (unsigned i = 0; i < NUM_ROWS(tasks); i++)
		ck_assert_int_eq(
			ucm_save_submit(loader, &request, &tasks[i], NULL), 0);
	for (unsigned i = 0; i < NUM_ROWS(tasks); i++) {
		ck_assert_int_eq(ucm_task_wait(tasks[i], 20000), 0);
		outcomes = ucm_task_outcomes(tasks[i]);
		for (unsigned j = 0; j < 3; j++)
			skipped += outcomes[j].skipped;
		ucm_task_free(tasks[i]);
	}
	ck_assert_uint_eq(skipped, 3 * NUM_ROWS(tasks) - 1);
	check_saved(0, 1);
	check_nothing(1, NUM);
	ucm_loader_close(loader);
}

/* The first of two fails: the second one is not taken down with it. */
UNIT_TEST(a_second_save_goes_on_where_the_first_failed)
{
	struct ucm_loader_options options = { .io = UCM_IO_THREADS,
					      .threads = 1 };
	struct ucm_loader *loader = lf_loader("$/tier", &cache, &options);
	struct ucm_task *first, *second;

	lf_hold(UCM_IO_WRITE, 0);
	lf_fail(UCM_IO_WRITE, 1, -EIO, true);
	first = lf_submit(loader, true, 0, 1, NULL);
	lf_wait_held(1);
	second = lf_submit(loader, true, 0, 1, NULL);
	ck_assert_int_eq(ucm_task_wait(second, 1), -ETIMEDOUT);
	lf_release();
	ck_assert_int_eq(ucm_task_wait(first, 20000), -EIO);
	ck_assert_int_eq(ucm_task_wait(second, 20000), 0);
	ck_assert_uint_eq(ucm_task_outcomes(second)->skipped, 0);
	check_saved(0, 1);
	ucm_task_free(first);
	ucm_task_free(second);
	ucm_loader_close(loader);
}

/* ---- cancel and deadline ---- */

UNIT_TEST(a_save_is_cancelled_while_it_is_written, .rows = NUM_ROWS(ways))
{
	struct ucm_loader_options options = ways[_i];
	struct ucm_loader *loader;
	struct ucm_task *task;

	options.io = UCM_IO_THREADS;
	lf_limits.read_bytes = reads[_i];
	loader = lf_loader("$/tier", &cache, &options);
	/* one part is written at most: no block is whole */
	lf_hold(UCM_IO_WRITE, reads[_i] ? 1 : 0);
	task = lf_submit(loader, true, 0, NUM, NULL);
	lf_wait_held(1);
	ucm_task_cancel(task);
	/* its pages are free, although the write hangs */
	ck_assert_int_eq(ucm_task_wait(task, 20000), -EIO);
	ck_assert_int_eq(ucm_task_wait_copied(task, 0), -EIO);
	for (unsigned i = 0; i < NUM; i++)
		ck_assert_int_eq(ucm_task_outcomes(task)[i].err, -ECANCELED);
	ucm_task_free(task);
	lf_cache_clear(&cache);
	lf_release();
	fx_wait(has_no_temps, NULL);
	/* one that was about to be made is made and dropped yet */
	ucm_loader_close(loader);
	check_nothing(0, NUM);
}

UNIT_TEST(a_save_has_a_deadline)
{
	struct ucm_loader_options options = { .io = UCM_IO_THREADS };
	struct ucm_request request = { .deadline_ms = 20 };
	struct ucm_loader *loader = lf_loader("$/tier", &cache, &options);
	struct ucm_outcome outcomes[NUM];

	lf_hold(UCM_IO_WRITE, 0);
	ck_assert_int_eq(lf_save(loader, 0, NUM, &request, outcomes), -EIO);
	for (unsigned i = 0; i < NUM; i++)
		ck_assert_int_eq(outcomes[i].err, -ETIMEDOUT);
	lf_release();
	ucm_loader_close(loader);
	check_nothing(0, NUM);
}

/* Pages are the caller's again before the block is written. */
UNIT_TEST(copied_comes_before_written)
{
	struct ucm_loader_options options = { .io = UCM_IO_THREADS,
					      .threads = 1 };
	struct ucm_loader *loader = lf_loader("$/tier", &cache, &options);
	struct ucm_task *task;

	lf_hold(UCM_IO_WRITE, 0);
	task = lf_submit(loader, true, 0, NUM, NULL);
	ck_assert_int_eq(ucm_task_wait_copied(task, 20000), 0);
	ck_assert_int_eq(ucm_task_wait(task, 0), -ETIMEDOUT);
	lf_cache_clear(&cache);
	lf_release();
	ck_assert_int_eq(ucm_task_wait(task, 20000), 0);
	check_saved(0, NUM);
	ucm_task_free(task);
	ucm_loader_close(loader);
}
