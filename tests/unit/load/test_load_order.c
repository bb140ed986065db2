/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_load_order.c - which of a loader's tasks goes first, and that none waits
 * for ever: priorities, saves beside loads that do not end, and the threads that
 * blocks are shared out to.
 */
#include <config.h>

#include <errno.h>
#include <string.h>

#include "tests/unit/load_fixture.h"

#define NUM 32
#define MANY 256 /* blocks of a task of the backlog */
#define TASKS 3
#define BLOCK_BYTES (4 * 4096)

static struct lf_cache cache;

static void setup(void)
{
	fx_setup();
	lf_faults();
	lf_tier("$/tier");
	lf_cache_open(&cache, &lf_geometry, NUM);
	for (unsigned i = 0; i < NUM - 8; i++)
		lf_plant("$/tier", &lf_geometry, i);
}

static void teardown(void)
{
	lf_cache_close(&cache);
	fx_teardown();
}

/* Two blocks may be read at a time by each thread, or one. */
static struct ucm_loader *open_loader(unsigned threads, unsigned blocks,
				      enum ucm_io_kind io)
{
	struct ucm_loader_options options = {
		.io = io,
		.threads = threads,
	};

	lf_limits.window_bytes = (uint64_t)threads * blocks * BLOCK_BYTES;
	return lf_loader("$/tier", &cache, &options);
}

/* ---- a backlog that does not end ---- */

struct backlog {
	struct ucm_loader *loader;
	struct ucm_task *tasks[TASKS];
	unsigned next;
};

static struct ucm_task *submit_many(struct ucm_loader *loader)
{
	static struct ucm_move moves[MANY];
	struct ucm_request request = { .size = sizeof(request),
				       .blocks = moves, .num_blocks = MANY };
	struct ucm_task *task;

	for (unsigned i = 0; i < MANY; i++)
		moves[i] = (struct ucm_move){ .id = lf_id(i % 16),
					      .page = i % 16 };
	ck_assert_int_eq(ucm_load_submit(loader, &request, &task, NULL), 0);
	return task;
}

static void start_backlog(struct backlog *backlog, struct ucm_loader *loader)
{
	backlog->loader = loader;
	for (unsigned i = 0; i < TASKS; i++)
		backlog->tasks[i] = submit_many(loader);
}

/* As soon as one of its tasks has ended there is another one. */
static void keep_up(struct backlog *backlog, const struct ucm_task *until)
{
	while (!ucm_task_done(until)) {
		struct ucm_task **task =
			&backlog->tasks[backlog->next++ % TASKS];

		ck_assert_int_eq(ucm_task_wait(*task, 20000), 0);
		ucm_task_free(*task);
		*task = submit_many(backlog->loader);
	}
}

static void end_backlog(struct backlog *backlog)
{
	for (unsigned i = 0; i < TASKS; i++)
		ucm_task_free(backlog->tasks[i]);
}

static void ends_well(struct ucm_task *task)
{
	ck_assert_int_eq(ucm_task_wait(task, 20000), 0);
	ucm_task_free(task);
}

/* The last 8 blocks, from pages that the backlog leaves alone. */
static struct ucm_task *save_new(struct ucm_loader *loader)
{
	struct ucm_move moves[8];
	struct ucm_request request = { .size = sizeof(request),
				       .blocks = moves, .num_blocks = 8,
				       .deadline_ms = 4000 };
	struct ucm_task *task;

	for (unsigned i = 0; i < 8; i++) {
		lf_fill_page(&cache, 16 + i, NUM - 8 + i);
		moves[i] = (struct ucm_move){ .id = lf_id(NUM - 8 + i),
					      .page = 16 + i };
	}
	ck_assert_int_eq(ucm_save_submit(loader, &request, &task, NULL), 0);
	return task;
}

static const enum ucm_io_kind kinds[] = { UCM_IO_AUTO, UCM_IO_THREADS };

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(saves_go_on_beside_loads_that_do_not_end, .rows = NUM_ROWS(kinds))
{
	struct ucm_loader *loader = open_loader(1, 2, kinds[_i]);
	struct backlog backlog = { 0 };
	struct ucm_task *save;

	start_backlog(&backlog, loader);
	save = save_new(loader);
	keep_up(&backlog, save);
	ends_well(save);
	end_backlog(&backlog);
	for (unsigned i = 0; i < 8; i++)
		ck_assert(lf_saved("$/tier", &lf_geometry, NUM - 8 + i));
	ucm_loader_close(loader);
}

UNIT_TEST(prefetch_goes_on_beside_loads_that_do_not_end,
	  .rows = NUM_ROWS(kinds))
{
	struct ucm_request request = { .priority = UCM_LOAD_PREFETCH,
				       .deadline_ms = 4000 };
	struct ucm_loader *loader = open_loader(1, 2, kinds[_i]);
	struct backlog backlog = { 0 };
	struct ucm_task *prefetch;

	start_backlog(&backlog, loader);
	prefetch = lf_submit(loader, false, 0, 16, &request);
	keep_up(&backlog, prefetch);
	ends_well(prefetch);
	end_backlog(&backlog);
	ucm_loader_close(loader);
}

/* ---- priorities ---- */

static const struct ucm_request low = { .priority = UCM_LOAD_PREFETCH };

/* One read is held, and the window has room for no other. */
UNIT_TEST(demand_goes_before_prefetch)
{
	struct ucm_loader *loader = open_loader(1, 1, UCM_IO_THREADS);
	struct ucm_task *plug, *prefetch, *demand;

	lf_hold(UCM_IO_READ, 0);
	plug = lf_submit(loader, false, 23, 1, NULL);
	lf_wait_held(1);
	prefetch = lf_submit(loader, false, 0, 16, &low);
	demand = lf_submit(loader, false, 16, 7, NULL);
	lf_let_pass(7 + 2); /* the two may be begun before the others are open */
	ck_assert_int_eq(ucm_task_wait(demand, 20000), 0);
	lf_release();
	ends_well(plug);
	ends_well(demand);
	ends_well(prefetch);
	ucm_loader_close(loader);
}

/* The block that somebody waits for is one that was to be loaded beforehand. */
UNIT_TEST(a_block_that_is_prefetched_can_be_demanded)
{
	struct ucm_loader *loader = open_loader(1, 1, UCM_IO_THREADS);
	struct ucm_task *plug, *prefetch, *demand;

	lf_hold(UCM_IO_READ, 0);
	plug = lf_submit(loader, false, 23, 1, NULL);
	lf_wait_held(1);
	prefetch = lf_submit(loader, false, 0, 16, &low);
	demand = lf_submit(loader, false, 15, 1, NULL);
	lf_let_pass(1 + 2);
	ck_assert_int_eq(ucm_task_wait(demand, 20000), 0);
	lf_release();
	ck_assert(lf_page_is(&cache, 0, 0, 4, 15) ||
		  lf_page_is(&cache, 0, 0, 4, 0));
	ends_well(plug);
	ends_well(demand);
	ends_well(prefetch);
	ucm_loader_close(loader);
}

/* While nothing moves. */
UNIT_TEST(a_prefetch_is_cancelled_at_once)
{
	struct ucm_loader *loader = open_loader(1, 1, UCM_IO_THREADS);
	struct ucm_task *plug, *prefetch;

	lf_hold(UCM_IO_READ, 0);
	plug = lf_submit(loader, false, 23, 1, NULL);
	lf_wait_held(1);
	prefetch = lf_submit(loader, false, 0, 16, &low);
	ucm_task_cancel(prefetch);
	ck_assert_int_eq(ucm_task_wait(prefetch, 20000), -EIO);
	for (unsigned i = 0; i < 16; i++)
		ck_assert_int_eq(ucm_task_outcomes(prefetch)[i].err,
				 -ECANCELED);
	ucm_task_free(prefetch);
	ck_assert(!ucm_task_done(plug));
	lf_release();
	ends_well(plug);
	ucm_loader_close(loader);
}

/* ---- threads ---- */

/* Each has room for one block; the first one of tasks of a block each is not
 * all that is read. */
UNIT_TEST(loads_of_one_block_are_shared_out)
{
	struct ucm_loader *loader = open_loader(3, 1, UCM_IO_THREADS);
	struct ucm_task *tasks[6];

	lf_hold(UCM_IO_READ, 0);
	for (unsigned i = 0; i < 6; i++)
		tasks[i] = lf_submit(loader, false, i, 1, NULL);
	lf_wait_held(3);
	lf_release();
	for (unsigned i = 0; i < 6; i++)
		ends_well(tasks[i]);
	/* nothing is left in the books: once more */
	lf_hold(UCM_IO_READ, 0);
	for (unsigned i = 0; i < 6; i++)
		tasks[i] = lf_submit(loader, false, 6 + i, 1, NULL);
	lf_wait_held(3);
	lf_release();
	for (unsigned i = 0; i < 6; i++)
		ends_well(tasks[i]);
	ucm_loader_close(loader);
}
