/* SPDX-License-Identifier: Apache-2.0 */
/* test_load_hung.c - loads whose I/O hangs: deadlines and cancelling. */
#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include "common/clock.h"
#include "tests/unit/load/tasks_fixture.h"
#include "tests/unit/random.h"

#define LAYER 4096

/* ---- I/O that hangs ---- */

static const struct {
	enum ucm_load_order order;
	enum ucm_verify verify;
	unsigned skip;
} hangs[] = {
	{ UCM_LOAD_BLOCKS, UCM_VERIFY_FULL, 0 },
	{ UCM_LOAD_BLOCKS, UCM_VERIFY_FULL, 3 },
	{ UCM_LOAD_LAYERS, UCM_VERIFY_FULL, 0 },
	{ UCM_LOAD_LAYERS, UCM_VERIFY_NONE, 5 },
};

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

/* Slots that I/O hangs on fill the staging memory, but for a rest: what waited
 * for more than that and is given up is not in the way of less. */
UNIT_TEST(what_is_given_up_keeps_nobody_waiting)
{
	const struct ucm_geometry g = lf_geometry_of(4, 16, 32, 128);
	const uint64_t layer = (uint64_t)g.k_bytes + g.v_bytes;
	struct ucm_loader_options options = { .io = UCM_IO_THREADS,
					      .threads = 1,
					      .staging_bytes = 16 * layer };
	struct ucm_request most = { .first_layer = 1,
				    .verify = UCM_VERIFY_NONE };
	struct ucm_request one = { .num_layers = 1,
				   .verify = UCM_VERIFY_NONE };
	struct ucm_task *tasks[3];
	struct ucm_loader *loader;
	struct lf_cache large;

	lf_cache_open(&large, &g, 2);
	for (unsigned i = 0; i < 6; i++)
		lf_plant("$/tier", &g, i);
	loader = lf_loader("$/tier", &large, &options);
	lf_hold_at(UCM_IO_READ, 4096 + (off_t)layer, (off_t)(16 * layer));
	for (unsigned i = 0; i < 3; i++) { /* the window has room for two */
		tasks[i] = lf_submit(loader, false, 2 * i, 2, &most);
		lf_wait_held(i < 2 ? 2 * i + 2 : 5);
		ucm_task_cancel(tasks[i]);
		ck_assert_int_eq(ucm_task_wait(tasks[i], 20000), -EIO);
	}
	ck_assert_int_eq(lf_load(loader, 0, 1, &one, NULL), 0);
	ck_assert(lf_page_is(&large, 0, 0, 1, 0));
	lf_release();
	for (unsigned i = 0; i < 3; i++)
		ucm_task_free(tasks[i]);
	ucm_loader_close(loader);
	lf_cache_close(&large);
}

/* The task ends in time; what comes late must not be seen in its pages. */
UNIT_TEST(a_deadline_is_kept, .rows = NUM_ROWS(hangs))
{
	struct ucm_request request = { .order = hangs[_i].order,
				       .verify = hangs[_i].verify,
				       .group_layers = 1,
				       .deadline_ms = 30 };
	const struct ucm_outcome *outcomes;
	struct ucm_loader *loader;
	struct ucm_task *task;
	unsigned failed = 0;
	int64_t start, took;

	plant(6);
	loader = threaded();
	lf_hold(UCM_IO_READ, hangs[_i].skip);
	start = ucm_monotonic_ns();
	task = lf_submit(loader, false, 0, 6, &request);
	ck_assert_int_eq(ucm_task_wait(task, 20000), -EIO);
	took = ucm_monotonic_ns() - start;
	ck_assert_int_ge(took, 30 * 1000000);
	ck_assert_int_lt(took, INT64_C(5000) * 1000000);
	outcomes = ucm_task_outcomes(task);
	for (unsigned i = 0; i < 6; i++) {
		if (!outcomes[i].err)
			continue;
		ck_assert_int_eq(outcomes[i].err, -ETIMEDOUT);
		failed++;
	}
	ck_assert_uint_eq(ucm_task_num_failed(task), failed);
	ck_assert_uint_ge(failed, 3);
	ucm_task_free(task);
	lf_cache_clear(&cache);
	lf_release();
	/* what is asked for now comes after what was late */
	ck_assert_int_eq(lf_load(loader, 5, 1, NULL, NULL), 0);
	ck_assert(lf_page_is(&cache, 0, 0, 4, 5));
	ucm_loader_close(loader);
	for (uint32_t page = 1; page < NUM; page++)
		ck_assert(lf_page_untouched(&cache, page, 0, 4));
}

/* Closed while late I/O is still under way: it waits for that. */
static void *release_later(void *arg)
{
	fx_wait(fx_sleeps, arg);
	lf_release();
	return NULL;
}

UNIT_TEST(close_waits_for_late_reads)
{
	struct ucm_request request = { .deadline_ms = 1 };
	struct ucm_loader *loader;
	_Atomic pid_t self = gettid();
	pthread_t thread;

	plant(6);
	loader = threaded();
	lf_hold(UCM_IO_READ, 0);
	ck_assert_int_eq(lf_load(loader, 0, 6, &request, NULL), -EIO);
	lf_cache_clear(&cache);
	ck_assert_int_eq(pthread_create(&thread, NULL, release_later, &self),
			 0);
	ucm_loader_close(loader);
	pthread_join(thread, NULL);
	ck_assert(all_untouched());
}

/* Reads of a file that hang do not keep others from being loaded. */
UNIT_TEST(others_go_on_while_some_hang)
{
	struct ucm_loader_options options = { .io = UCM_IO_THREADS,
					      .threads = 1 };
	struct ucm_request request = { .deadline_ms = 5 };
	struct ucm_loader *loader;

	plant(8);
	lf_limits.window_bytes = 2 * 4 * LAYER;
	loader = lf_loader("$/tier", &cache, &options);
	lf_hold(UCM_IO_READ, 0);
	ck_assert_int_eq(lf_load(loader, 0, 2, &request, NULL), -EIO);
	lf_cache_clear(&cache);
	/* these hang in the window's place; nothing else is held from now */
	lf_hold(UCM_IO_CLOSE, 1000);
	ck_assert_int_eq(lf_load(loader, 4, 4, NULL, NULL), 0);
	for (unsigned i = 0; i < 4; i++)
		ck_assert(lf_page_is(&cache, i, 0, 4, 4 + i));
	lf_release();
	ucm_loader_close(loader);
}

/* Nor from being begun, where little may be under way at a time: neither before
 * they are given up, nor those that come to the late directory meanwhile. */
UNIT_TEST(what_hangs_is_not_under_way_for_a_budget)
{
	struct ucm_loader_options options = { .io = UCM_IO_THREADS,
					      .threads = 1 };
	struct ucm_request request = { .deadline_ms = 10000 };
	struct ucm_task *tasks[2];
	struct ucm_loader *loader;

	plant(8);
	lf_limits.in_flight = 4 * LAYER;
	loader = lf_loader("$/tier", &cache, &options);
	lf_hold(UCM_IO_READ, 0);
	for (unsigned i = 0; i < 2; i++)
		tasks[i] = lf_submit(loader, false, i, 1, NULL);
	lf_wait_held(2); /* the second one when the directory is late */
	lf_hold(UCM_IO_CLOSE, 1000);
	ck_assert_int_eq(lf_load(loader, 4, 4, &request, NULL), 0);
	lf_release();
	for (unsigned i = 0; i < 2; i++) {
		ck_assert_int_eq(ucm_task_wait(tasks[i], 20000), 0);
		ucm_task_free(tasks[i]);
	}
	ucm_loader_close(loader);
}

/* ---- cancelling ---- */

UNIT_TEST(a_load_is_cancelled_while_it_is_read, .rows = NUM_ROWS(hangs))
{
	struct ucm_request request = { .order = hangs[_i].order,
				       .verify = hangs[_i].verify,
				       .group_layers = 1 };
	const struct ucm_outcome *outcomes;
	struct ucm_loader *loader;
	struct ucm_task *task;

	plant(6);
	loader = threaded();
	lf_hold(UCM_IO_READ, hangs[_i].skip);
	task = lf_submit(loader, false, 0, 6, &request);
	lf_wait_held(1);
	ucm_task_cancel(task);
	ucm_task_cancel(task); /* harmless */
	ck_assert_int_eq(ucm_task_wait(task, 20000), -EIO);
	outcomes = ucm_task_outcomes(task);
	for (unsigned i = 0; i < 6; i++)
		ck_assert(outcomes[i].err == -ECANCELED || !outcomes[i].err);
	ucm_task_cancel(task);
	ucm_task_free(task);
	lf_cache_clear(&cache);
	lf_release();
	ucm_loader_close(loader);
	ck_assert(all_untouched());
}

UNIT_TEST(free_cancels)
{
	struct ucm_loader *loader;
	struct ucm_task *task;

	plant(6);
	loader = threaded();
	lf_hold(UCM_IO_READ, 0);
	task = lf_submit(loader, false, 0, 6, NULL);
	lf_wait_held(1);
	ucm_task_free(task);
	lf_release();
	ucm_loader_close(loader);
	ck_assert(all_untouched());
}

/* At whatever moment it comes. */
UNIT_TEST(a_cancel_at_any_moment, .rows = 2)
{
	struct ucm_loader_options options = { .threads = 2,
					      .io = _i ? UCM_IO_THREADS
						       : UCM_IO_AUTO };
	struct ucm_request request = { .order = UCM_LOAD_LAYERS,
				       .group_layers = 1 };
	uint64_t state = random_case(0);
	struct ucm_loader *loader;

	plant(NUM - 1);
	loader = lf_loader("$/tier", &cache, &options);
	for (unsigned round = 0; round < 300; round++) {
		const struct ucm_outcome *outcomes;
		struct ucm_task *task;
		unsigned spins = random_next(&state) % 100000;

		lf_cache_clear(&cache);
		task = lf_submit(loader, round % 7 == 6, 0, NUM, &request);
		for (volatile unsigned i = 0; i < spins; i++)
			;
		ucm_task_cancel(task);
		must(ucm_task_wait(task, 20000) != -ETIMEDOUT);
		outcomes = ucm_task_outcomes(task);
		for (unsigned i = 0; i < NUM && round % 7 != 6; i++) {
			if (outcomes[i].err)
				must(outcomes[i].err == -ECANCELED ||
				     (i == NUM - 1 &&
				      outcomes[i].err == -ENOENT));
			else if (i < NUM - 1)
				must(lf_page_is(&cache, i, 0, 4, i));
			else /* a save that was cancelled came late */
				must(lf_page_untouched(&cache, i, 0, 4));
		}
		ucm_task_free(task);
		unlink(lf_path("$/tier", NUM - 1));
	}
	ucm_loader_close(loader);
}
