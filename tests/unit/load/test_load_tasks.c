/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_load_tasks.c - tasks of a loader: requests of every shape, waiting, and
 * many threads at a time.
 */
#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "tests/unit/load/tasks_fixture.h"
#include "tests/unit/random.h"

/* ---- requests ---- */

static const struct ucm_request wrong[] = {
	{ .size = 8, .num_blocks = 0 },
	{ .group = 1 },
	{ .first_layer = 4 },
	{ .first_layer = 3, .num_layers = 2 },
	{ .num_layers = 5 },
	{ .first_layer = 1, .num_layers = UINT32_MAX },
	{ .num_blocks = 1 },
	{ .verify = UCM_VERIFY_ONCE + 1 },
	{ .order = 2 },
	{ .priority = 2 },
};

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(wrong_requests_are_refused, .rows = NUM_ROWS(wrong))
{
	struct ucm_loader *loader = lf_loader("$/tier", &cache, NULL);
	struct ucm_request request = wrong[_i];
	struct ucm_task *task = NULL;
	struct ucm_error error = { "" };

	request.size = request.size ? request.size : sizeof(request);
	ck_assert_int_eq(ucm_load_submit(loader, &request, &task, &error),
			 -EINVAL);
	ck_assert_str_ne(error.text, "");
	ck_assert_int_eq(ucm_save_submit(loader, &request, &task, NULL),
			 -EINVAL);
	ck_assert_ptr_null(task);
	ucm_loader_close(loader);
}

/* Of a program whose header is newer than the library. */
UNIT_TEST(a_field_that_is_not_known_is_refused)
{
	struct {
		struct ucm_request request;
		uint64_t later;
	} newer = { .request.size = sizeof(newer) };
	struct ucm_loader *loader = lf_loader("$/tier", &cache, NULL);
	struct ucm_task *task = NULL;
	struct ucm_error error = { "" };

	newer.later = 1;
	ck_assert_int_eq(ucm_load_submit(loader, &newer.request, &task,
					 &error),
			 -E2BIG);
	ck_assert_ptr_nonnull(strstr(error.text, "struct ucm_request"));
	ck_assert_ptr_null(task);
	newer.later = 0;
	ck_assert_int_eq(ucm_load_submit(loader, &newer.request, &task, NULL),
			 0);
	ck_assert_int_eq(ucm_task_wait(task, 20000), 0);
	ucm_task_free(task);
	ucm_loader_close(loader);
}

UNIT_TEST(the_host_has_neither_events_nor_streams)
{
	struct ucm_request request = { .size = sizeof(request),
				       .after = &request };
	struct ucm_loader *loader = lf_loader("$/tier", &cache, NULL);
	struct ucm_task *task;
	struct ucm_error error = { "" };

	ck_assert_int_eq(ucm_load_submit(loader, &request, &task, &error),
			 -EINVAL);
	ck_assert_str_eq(error.text,
			 "after: pages of the host have no events");
	request.after = NULL;
	ck_assert_int_eq(ucm_load_submit(loader, &request, &task, &error), 0);
	ck_assert_int_eq(ucm_task_wait_stream(task, 0, NULL, 0), -EINVAL);
	ucm_task_free(task);
	ucm_loader_close(loader);
}

UNIT_TEST(a_page_that_is_none_is_refused)
{
	struct ucm_move moves[2] = { { .id = lf_id(0), .page = 0 },
				     { .id = lf_id(1), .page = NUM } };
	struct ucm_request request = { .size = sizeof(request),
				       .blocks = moves, .num_blocks = 2 };
	struct ucm_loader *loader;
	struct ucm_task *task = NULL;
	struct ucm_error error = { "" };

	plant(2);
	loader = lf_loader("$/tier", &cache, NULL);
	ck_assert_int_eq(ucm_load_submit(loader, &request, &task, &error),
			 -EINVAL);
	ck_assert_ptr_nonnull(strstr(error.text, "page 32 of 32"));
	ck_assert_ptr_null(task);
	ck_assert(all_untouched()); /* nothing was started */
	ucm_loader_close(loader);
}

UNIT_TEST(no_blocks_are_loaded_at_once)
{
	struct ucm_loader *loader = lf_loader("$/tier", &cache, NULL);
	struct ucm_task *task;

	for (unsigned save = 0; save < 2; save++) {
		task = lf_submit(loader, save, 0, 0, NULL);
		ck_assert(ucm_task_done(task));
		ck_assert_int_eq(ucm_task_wait(task, -1), 0);
		ck_assert_uint_eq(ucm_task_num_failed(task), 0);
		ucm_task_free(task);
	}
	ucm_loader_close(loader);
}

UNIT_TEST(thousands_of_absent_blocks, .rows = 2)
{
	enum { MANY = 8192 };
	static struct ucm_move moves[MANY];
	struct ucm_request request = { .size = sizeof(request),
				       .blocks = moves, .num_blocks = MANY,
				       .order = (enum ucm_load_order)_i };
	struct ucm_loader *loader = lf_loader("$/tier", &cache, NULL);
	const struct ucm_outcome *outcomes;
	struct ucm_loader_stats stats;
	struct ucm_task *task;

	for (unsigned i = 0; i < MANY; i++)
		moves[i].id = lf_id(i);
	ck_assert_int_eq(ucm_load_submit(loader, &request, &task, NULL), 0);
	ck_assert_int_eq(ucm_task_wait(task, 30000), -EIO);
	outcomes = ucm_task_outcomes(task);
	for (unsigned i = 0; i < MANY; i++)
		must(outcomes[i].err == -ENOENT);
	ck_assert_uint_eq(ucm_task_num_failed(task), MANY);
	ucm_task_free(task);
	ucm_loader_get_stats(loader, &stats, sizeof(stats));
	ck_assert_uint_eq(stats.load_absent, MANY);
	/* closed at once: nothing of it is left behind */
	ucm_loader_close(loader);
	ck_assert(all_untouched());
}

/* The same block to four pages, by two tasks. */
UNIT_TEST(a_block_may_be_wanted_twice, .rows = 2)
{
	struct ucm_move moves[4];
	struct ucm_request request = { .size = sizeof(request),
				       .blocks = moves, .num_blocks = 2,
				       .order = (enum ucm_load_order)_i,
				       .group_layers = 1 };
	struct ucm_loader_options options = { .threads = 2 };
	struct ucm_loader *loader;
	struct ucm_task *tasks[2];

	plant(2);
	for (unsigned i = 0; i < 4; i++)
		moves[i] = (struct ucm_move){ .id = lf_id(1), .page = i };
	loader = lf_loader("$/tier", &cache, &options);
	for (unsigned i = 0; i < 2; i++) {
		request.blocks = moves + 2 * i;
		ck_assert_int_eq(
			ucm_load_submit(loader, &request, &tasks[i], NULL), 0);
	}
	for (unsigned i = 0; i < 2; i++) {
		ck_assert_int_eq(ucm_task_wait(tasks[i], 20000), 0);
		ucm_task_free(tasks[i]);
	}
	for (unsigned i = 0; i < 4; i++)
		ck_assert(lf_page_is(&cache, i, 0, 4, 1));
	ck_assert(lf_page_untouched(&cache, 4, 0, 4));
	ucm_loader_close(loader);
}

static void fill_addresses(uint64_t *addresses, unsigned page)
{
	/* K and V of layers 1 and 2 */
	for (unsigned i = 0; i < 4; i++)
		addresses[i] = (uintptr_t)cache.memory +
			       (1 + i / 2) * cache.layer_bytes +
			       ((i & 1) * (uint64_t)NUM + page) * 2048;
}

/* Pages are not asked for then, and may be nonsense. */
UNIT_TEST(addresses_take_the_place_of_pages, .rows = 2)
{
	uint64_t addresses[3 * 4];
	struct ucm_move moves[3];
	struct ucm_request request = { .size = sizeof(request),
				       .blocks = moves, .num_blocks = 3,
				       .first_layer = 1, .num_layers = 2,
				       .addresses = addresses,
				       .order = (enum ucm_load_order)_i,
				       .group_layers = 1 };
	struct ucm_loader_options options = { .threads = 2 };
	struct ucm_loader *loader;
	struct ucm_task *task;

	plant(3);
	for (unsigned i = 0; i < 3; i++) {
		moves[i] = (struct ucm_move){ .id = lf_id(i),
					      .page = UINT32_MAX };
		fill_addresses(addresses + 4 * i, 20 + i);
	}
	loader = lf_loader("$/tier", &cache, &options);
	ck_assert_int_eq(ucm_load_submit(loader, &request, &task, NULL), 0);
	memset(addresses, 0, sizeof(addresses)); /* they were copied */
	memset(moves, 0, sizeof(moves));
	ck_assert_int_eq(ucm_task_wait(task, 20000), 0);
	ucm_task_free(task);
	for (unsigned i = 0; i < 3; i++) {
		ck_assert(lf_page_untouched(&cache, 20 + i, 0, 1));
		ck_assert(lf_page_is(&cache, 20 + i, 1, 3, i));
		ck_assert(lf_page_untouched(&cache, 20 + i, 3, 4));
		ck_assert(lf_page_untouched(&cache, i, 0, 4));
	}
	ucm_loader_close(loader);
}

UNIT_TEST(addresses_are_saved_from)
{
	uint64_t addresses[4];
	struct ucm_move move = { .id = lf_id(5) };
	struct ucm_request request = { .size = sizeof(request),
				       .blocks = &move, .num_blocks = 1,
				       .first_layer = 1, .num_layers = 2,
				       .addresses = addresses };
	struct ucm_request rest = { .num_layers = 1 };
	struct ucm_loader *loader = lf_loader("$/tier", &cache, NULL);
	struct ucm_task *task;

	lf_fill_page(&cache, 0, 5);
	lf_fill_page(&cache, 17, 5);
	fill_addresses(addresses, 17);
	ck_assert_int_eq(ucm_save_submit(loader, &request, &task, NULL), 0);
	ck_assert_int_eq(ucm_task_wait(task, 20000), 0);
	ucm_task_free(task);
	ck_assert_int_eq(lf_save(loader, 5, 1, &rest, NULL), 0);
	rest.first_layer = 3;
	ck_assert_int_eq(lf_save(loader, 5, 1, &rest, NULL), 0);
	ck_assert(lf_saved("$/tier", &lf_geometry, 5));
	ucm_loader_close(loader);
}

/* Reads and writes are cut to what the staging memory holds. */
UNIT_TEST(blocks_that_are_larger_than_the_staging_memory)
{
	struct ucm_geometry large = lf_geometry_of(24, 16, 8, 1024);
	struct ucm_loader_options options = { .threads = 1,
					      .staging_bytes = 1 };
	struct ucm_request request = { .order = UCM_LOAD_LAYERS,
				       .group_layers = 24 };
	struct ucm_loader *loader;
	struct lf_cache other;

	lf_cache_open(&other, &large, 3); /* 12 MiB a block */
	for (unsigned i = 0; i < 3; i++)
		lf_fill_page(&other, i, i);
	lf_limits.read_bytes = UINT32_MAX;
	loader = lf_loader("$/tier", &other, &options);
	ck_assert_int_eq(lf_save(loader, 0, 3, NULL, NULL), 0);
	for (unsigned i = 0; i < 2; i++) {
		lf_cache_clear(&other);
		ck_assert_int_eq(lf_load(loader, 0, 3, i ? &request : NULL,
					 NULL),
				 0);
		for (unsigned j = 0; j < 3; j++)
			ck_assert(lf_page_is(&other, j, 0, 24, j));
	}
	ucm_loader_close(loader);
	lf_cache_close(&other);
}

/* ---- waiting ---- */

UNIT_TEST(waits_end_in_time)
{
	struct ucm_request request = { .order = UCM_LOAD_LAYERS,
				       .group_layers = 1 };
	struct ucm_loader *loader;
	struct ucm_task *task;

	plant(3);
	loader = threaded();
	lf_hold_at(UCM_IO_READ, 8192, INT64_MAX); /* layer 0 passes, with the header */
	task = lf_submit(loader, false, 0, 3, &request);
	ck_assert_int_eq(ucm_task_wait_layer(task, 0, 20000), 0);
	for (unsigned i = 0; i < 3; i++)
		ck_assert(lf_page_is(&cache, i, 0, 1, i));
	ck_assert_int_eq(ucm_task_wait_layer(task, 1, 0), -ETIMEDOUT);
	ck_assert_int_eq(ucm_task_wait_layer(task, 3, 5), -ETIMEDOUT);
	ck_assert_int_eq(ucm_task_wait(task, 5), -ETIMEDOUT);
	ck_assert_int_eq(ucm_task_wait_copied(task, 5), -EINVAL);
	ck_assert(!ucm_task_done(task));
	lf_release();
	ck_assert_int_eq(ucm_task_wait_layer(task, 3, -1), 0);
	ck_assert_int_eq(ucm_task_wait(task, -1), 0);
	ucm_task_free(task);
	ucm_loader_close(loader);
}

/* A failed block does not keep the layers of others from being complete. */
UNIT_TEST(layers_are_complete_but_for_failed_blocks)
{
	struct ucm_request request = { .order = UCM_LOAD_LAYERS,
				       .group_layers = 1 };
	struct ucm_loader *loader;
	struct ucm_task *task;

	plant(2);
	loader = lf_loader("$/tier", &cache, NULL);
	task = lf_submit(loader, false, 0, 3, &request);
	for (uint32_t layer = 0; layer < 4; layer++) {
		ck_assert_int_eq(ucm_task_wait_layer(task, layer, 20000), -EIO);
		for (unsigned i = 0; i < 2; i++)
			ck_assert(lf_page_is(&cache, i, layer, layer + 1, i));
	}
	ck_assert_int_eq(ucm_task_wait(task, 20000), -EIO);
	ck_assert_uint_eq(ucm_task_num_failed(task), 1);
	ucm_task_free(task);
	ucm_loader_close(loader);
}

struct told {
	_Atomic unsigned times;
	_Atomic size_t failed;
};

static void on_done(void *arg, struct ucm_task *task)
{
	struct told *told = arg;

	told->failed = ucm_task_num_failed(task);
	told->times++;
}

UNIT_TEST(a_callback_has_returned_when_a_wait_ends)
{
	struct told told = { 0 };
	struct ucm_request request = { .on_done = on_done, .arg = &told };
	struct ucm_loader *loader;

	plant(2);
	loader = lf_loader("$/tier", &cache, NULL);
	for (unsigned i = 1; i <= 50; i++) {
		ck_assert_int_eq(lf_load(loader, 0, 3, &request, NULL), -EIO);
		ck_assert_uint_eq(told.times, i);
		ck_assert_uint_eq(told.failed, 1);
	}
	ucm_loader_close(loader);
}

/* ---- many threads ---- */

#define WORKERS 6

struct worker {
	pthread_t thread;
	struct ucm_loader *loader;
	struct lf_cache cache; /* of its own pages */
	unsigned number, group, rounds;
	bool failed;
};

static void one_task(struct worker *worker, uint64_t *state)
{
	struct ucm_move moves[NUM];
	unsigned numbers[NUM];
	struct told told = { 0 };
	struct ucm_request request = {
		.size = sizeof(request),
		.group = worker->group,
		.blocks = moves,
		.num_blocks = (size_t)random_between(state, 0, NUM),
		.order = (enum ucm_load_order)(random_next(state) % 2),
		.verify = (enum ucm_verify)(random_next(state) % 4),
		.group_layers = (uint32_t)(random_next(state) % 3),
		.deadline_ms = random_next(state) % 8 ? 0 : 1,
		.on_done = on_done,
		.arg = &told,
	};
	bool is_save = random_next(state) % 4 == 0;
	unsigned end = (unsigned)random_next(state) % 4;
	const struct ucm_outcome *outcomes;
	struct ucm_task *task;

	for (unsigned i = 0; i < request.num_blocks; i++) {
		numbers[i] = (unsigned)random_next(state) % NUM +
			     (is_save ? 1000 * (worker->number + 1) : 0);
		moves[i].id = lf_id(numbers[i]);
		moves[i].page = i;
	}
	if ((is_save ? ucm_save_submit : ucm_load_submit)(
		    worker->loader, &request, &task, NULL)) {
		worker->failed = true;
		return;
	}
	if (end == 0)
		ucm_task_cancel(task);
	if (end != 1 && ucm_task_wait(task, 30000) == -ETIMEDOUT)
		worker->failed = true;
	outcomes = ucm_task_outcomes(task);
	for (unsigned i = 0; i < request.num_blocks && end == 2; i++) {
		if (outcomes[i].err == -EINPROGRESS)
			worker->failed = true;
		if (!is_save && !outcomes[i].err &&
		    !lf_page_is(&worker->cache, i, 0, 4, numbers[i]))
			worker->failed = true;
	}
	ucm_task_free(task);
	if (told.times != 1)
		worker->failed = true;
}

static void *run_worker(void *arg)
{
	struct worker *worker = arg;
	uint64_t state = random_case(worker->number);

	for (unsigned i = 0; i < worker->rounds; i++) {
		one_task(worker, &state);
		if (i % 16 == 0)
			ucm_save_abandon(worker->loader, worker->group, NULL,
					 0);
	}
	return NULL;
}

UNIT_TEST(many_threads_at_once, .rows = 2)
{
	struct ucm_loader_options options = { .threads = 3,
					      .open_files = 8,
					      .io = _i ? UCM_IO_THREADS
						       : UCM_IO_AUTO };
	struct worker workers[WORKERS] = { 0 };
	struct ucm_loader *loader;
	struct ucm_loader_stats stats;
	struct ucm_error error;

	plant(NUM / 2);
	lf_limits.save_bytes = 40 * 16384;
	loader = lf_loader("$/tier", &cache, &options);
	for (unsigned i = 0; i < WORKERS; i++) {
		struct worker *worker = &workers[i];

		worker->loader = loader;
		worker->number = i;
		worker->rounds = 60;
		lf_cache_open(&worker->cache, &lf_geometry, NUM);
		ck_assert_int_eq(
			ucm_loader_add_group(loader, worker->cache.layout, NULL,
					     &worker->group, &error),
			0);
		ck_assert_int_eq(pthread_create(&worker->thread, NULL,
						run_worker, worker),
				 0);
	}
	for (unsigned i = 0; i < WORKERS; i++) {
		pthread_join(workers[i].thread, NULL);
		ck_assert(!workers[i].failed);
	}
	ucm_loader_get_stats(loader, &stats, sizeof(stats));
	ck_assert_uint_gt(stats.loads, 0);
	ck_assert_uint_gt(stats.saves, 0);
	/* the budget is all there again */
	lf_fill_page(&cache, 0, 9999);
	ck_assert_int_eq(lf_save(loader, 9999, 1, NULL, NULL), 0);
	ucm_loader_close(loader);
	ck_assert_uint_eq(fx_count_files(fx_path("$/tier/.ucmfs/tmp")), 0);
	for (unsigned i = 0; i < WORKERS; i++)
		lf_cache_close(&workers[i].cache);
}
