/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_save_buffer.c - the write buffer: pages are free when they have been
 * copied, what is copied is found and loaded by this process, and what becomes
 * of it is as without a buffer.
 */
#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu/load/thread.h"
#include "tests/unit/load_fixture.h"

#define NUM 40
#define LAYER 4096
#define BUFFER ((uint64_t)2 << 20) /* of 32 blocks, in units of 64 KiB */
#define ROOM 32

static struct lf_cache cache;

/* ---- a store that is slow to make files ---- */

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool hangs;
	struct ucm_source_ops ops;
} store = { .lock = PTHREAD_MUTEX_INITIALIZER,
	    .changed = PTHREAD_COND_INITIALIZER };

static int create(struct ucm_source *source, const char *space,
		  const struct ucm_id *id, uint64_t bytes,
		  struct ucm_draft **out)
{
	pthread_mutex_lock(&store.lock);
	while (store.hangs)
		pthread_cond_wait(&store.changed, &store.lock);
	pthread_mutex_unlock(&store.lock);
	return ucm_source_tiers.create(source, space, id, bytes, out);
}

static void hang(bool hangs)
{
	pthread_mutex_lock(&store.lock);
	store.hangs = hangs;
	pthread_cond_broadcast(&store.changed);
	pthread_mutex_unlock(&store.lock);
}

static void fill(void)
{
	for (unsigned i = 0; i < NUM; i++)
		lf_fill_page(&cache, i, i);
}

static void setup(void)
{
	fx_setup();
	lf_faults();
	lf_tier("$/tier");
	lf_cache_open(&cache, &lf_geometry, NUM);
	fill();
	store.ops = ucm_source_tiers;
	store.ops.create = create;
	ucm_loader_source = &store.ops;
	hang(false);
}

static void teardown(void)
{
	ucm_loader_source = NULL;
	lf_cache_close(&cache);
	fx_teardown();
}

static const struct ucm_loader_options ways[] = {
	{ .io = UCM_IO_AUTO, .threads = 1, .write_buffer_bytes = BUFFER },
	{ .io = UCM_IO_THREADS, .threads = 1, .write_buffer_bytes = BUFFER },
	{ .io = UCM_IO_AUTO, .threads = 2, .write_buffer_bytes = BUFFER },
	{ .io = UCM_IO_THREADS, .threads = 2, .write_buffer_bytes = BUFFER },
};

/* So long are its reads. */
static const uint32_t reads[NUM_ROWS(ways)] = { 0, 0, 0, LAYER };

static struct ucm_loader *open_way(unsigned way)
{
	lf_limits.read_bytes = reads[way];
	return lf_loader("$/tier", &cache, &ways[way]);
}

static void check_saved(unsigned num)
{
	for (unsigned i = 0; i < num; i++)
		ck_assert(lf_saved("$/tier", &lf_geometry, i));
	ck_assert_uint_eq(fx_count_files(fx_path("$/tier/.ucmfs/tmp")), 0);
}

static unsigned found_by(struct ucm_loader *loader, unsigned num)
{
	struct ucm_id ids[NUM] = { 0 };
	uint8_t found[NUM];
	unsigned total = 0;
	size_t count;

	for (unsigned i = 0; i < num; i++)
		ids[i] = lf_id(i);
	ck_assert_int_eq(ucm_loader_lookup(loader, 0, ids, num, found), 0);
	for (unsigned i = 0; i < num; i++)
		total += found[i];
	ck_assert_int_eq(ucm_loader_prefix(loader, 0, ids, num, &count), 0);
	ck_assert_uint_eq(count, total); /* here they are always the first */
	return total;
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(pages_are_free_before_there_is_a_file, .rows = NUM_ROWS(ways))
{
	struct ucm_loader *loader = open_way(_i);
	struct ucm_loader_stats stats;
	struct ucm_task *task;

	hang(true);
	task = lf_submit(loader, true, 0, ROOM / 2, NULL);
	ck_assert_int_eq(ucm_task_wait_copied(task, 20000), 0);
	ck_assert(!ucm_task_done(task));
	lf_cache_clear(&cache);
	ck_assert(!fx_exists(lf_path("$/tier", 0)));
	hang(false);
	ck_assert_int_eq(ucm_task_wait(task, 20000), 0);
	ucm_task_free(task);
	ucm_loader_get_stats(loader, &stats, sizeof(stats));
	ck_assert_uint_eq(stats.save_buffered_bytes, ROOM / 2 * 4 * LAYER);
	ck_assert_uint_eq(stats.saves, ROOM / 2);
	ucm_loader_close(loader);
	check_saved(ROOM / 2);
}

static const enum ucm_load_order orders[] = { UCM_LOAD_BLOCKS,
					      UCM_LOAD_LAYERS };

/* By the loader that saves it, and by others of the process. */
UNIT_TEST(what_is_in_the_buffer_is_found_and_loaded,
	  .rows = NUM_ROWS(ways) * NUM_ROWS(orders))
{
	struct ucm_request request = { .order = orders[_i / NUM_ROWS(ways)] };
	struct ucm_loader *loaders[2] = { open_way(_i % NUM_ROWS(ways)),
					  open_way(_i % NUM_ROWS(ways)) };
	struct ucm_loader_stats stats;
	struct ucm_task *task;

	/* some are there, some in the buffer, some nowhere */
	ck_assert_int_eq(lf_save(loaders[0], 0, 3, NULL, NULL), 0);
	fill();
	hang(true);
	for (unsigned i = 0; i < 6; i++)
		lf_fill_page(&cache, i, 3 + i);
	task = lf_submit(loaders[0], true, 3, 6, NULL);
	ck_assert_int_eq(ucm_task_wait_copied(task, 20000), 0);
	for (unsigned i = 0; i < 2; i++) {
		struct ucm_outcome outcomes[10];

		ck_assert_uint_eq(found_by(loaders[i], NUM), 9);
		lf_cache_clear(&cache);
		ck_assert_int_eq(lf_load(loaders[i], 0, 10, &request,
					 outcomes), -EIO);
		for (unsigned j = 0; j < 9; j++) {
			ck_assert_int_eq(outcomes[j].err, 0);
			ck_assert(lf_page_is(&cache, j, 0, 4, j));
		}
		ck_assert_int_eq(outcomes[9].err, -ENOENT);
		ck_assert(lf_page_untouched(&cache, 9, 0, 4));
		ucm_loader_get_stats(loaders[i], &stats, sizeof(stats));
		ck_assert_uint_eq(stats.load_buffered_bytes, 6 * 4 * LAYER);
	}
	hang(false);
	ck_assert_int_eq(ucm_task_wait(task, 20000), 0);
	ucm_task_free(task);
	ck_assert_uint_eq(found_by(loaders[1], NUM), 9);
	for (unsigned i = 0; i < 2; i++)
		ucm_loader_close(loaders[i]);
	check_saved(9);
}

/* Some layers, as they come in the order of layers. */
UNIT_TEST(layers_are_loaded_from_the_buffer, .rows = NUM_ROWS(ways))
{
	struct ucm_loader *loader = open_way(_i);
	struct ucm_request two = { .first_layer = 1, .num_layers = 2 };
	struct ucm_task *task;

	hang(true);
	task = lf_submit(loader, true, 0, 4, NULL);
	ck_assert_int_eq(ucm_task_wait_copied(task, 20000), 0);
	lf_cache_clear(&cache);
	ck_assert_int_eq(lf_load(loader, 0, 4, &two, NULL), 0);
	for (unsigned i = 0; i < 4; i++) {
		ck_assert(lf_page_is(&cache, i, 1, 3, i));
		ck_assert(lf_page_untouched(&cache, i, 0, 1));
		ck_assert(lf_page_untouched(&cache, i, 3, 4));
	}
	hang(false);
	ck_assert_int_eq(ucm_task_wait(task, 20000), 0);
	ucm_task_free(task);
	ucm_loader_close(loader);
}

/* Nobody waits in the submit; what does not fit is copied when there is room. */
UNIT_TEST(a_full_buffer_keeps_nobody, .rows = NUM_ROWS(ways))
{
	struct ucm_loader *loader = open_way(_i);
	struct ucm_task *task;

	hang(true);
	task = lf_submit(loader, true, 0, NUM, NULL);
	ck_assert_int_eq(ucm_task_wait_copied(task, 30), -ETIMEDOUT);
	lf_plant("$/tier", &lf_geometry, NUM);
	hang(false);
	ck_assert_int_eq(ucm_task_wait_copied(task, 20000), 0);
	lf_cache_clear(&cache);
	ck_assert_int_eq(ucm_task_wait(task, 20000), 0);
	ucm_task_free(task);
	ck_assert_uint_eq(found_by(loader, NUM), NUM);
	ucm_loader_close(loader);
	check_saved(NUM);
}

/* What is only in the buffer is lost with its save, and nobody finds it. */
UNIT_TEST(what_fails_is_not_found, .rows = NUM_ROWS(ways))
{
	struct ucm_loader *loader = open_way(_i);
	struct ucm_outcome outcomes[8];

	lf_fail(UCM_IO_WRITE, 1, -ENOSPC, false);
	ck_assert_int_eq(lf_save(loader, 0, 8, NULL, outcomes), -EIO);
	for (unsigned i = 0; i < 8; i++)
		ck_assert_int_eq(outcomes[i].err, -ENOSPC);
	ck_assert_uint_eq(found_by(loader, NUM), 0);
	lf_fail(UCM_IO_WRITE, 0, 0, false);
	/* nor has it left anything: there is room for all of them */
	ck_assert_int_eq(lf_save(loader, 0, ROOM, NULL, NULL), 0);
	ucm_loader_close(loader);
	check_saved(ROOM);
}

UNIT_TEST(deadlines_hold_for_what_is_in_the_buffer, .rows = NUM_ROWS(ways))
{
	struct ucm_loader *loader = open_way(_i);
	struct ucm_request request = { .deadline_ms = 50 };
	struct ucm_outcome outcomes[NUM];

	hang(true);
	ck_assert_int_eq(lf_save(loader, 0, NUM, &request, outcomes), -EIO);
	for (unsigned i = 0; i < NUM; i++)
		ck_assert_int_eq(outcomes[i].err, -ETIMEDOUT);
	ck_assert_uint_eq(found_by(loader, NUM), 0);
	hang(false);
	fill();
	ck_assert_int_eq(lf_save(loader, 0, NUM, NULL, NULL), 0);
	ucm_loader_close(loader);
	check_saved(NUM);
}

/* Layers and their commit stay in the order in which they were submitted. */
UNIT_TEST(held_layers_are_committed_after_they_are_saved,
	  .rows = NUM_ROWS(ways))
{
	struct ucm_loader *loader = open_way(_i);
	struct ucm_move moves[6] = { 0 };
	struct ucm_request commit = { .size = sizeof(commit),
				      .blocks = moves, .num_blocks = 6 };
	struct ucm_task *tasks[4];

	for (unsigned i = 0; i < 6; i++)
		moves[i].id = lf_id(i);
	hang(true);
	for (unsigned i = 0; i < 2; i++)
		tasks[i] = lf_submit(loader, true, 0, 6,
				     &(struct ucm_request){
					     .first_layer = 2 * i,
					     .num_layers = 2,
					     .hold = 1 });
	for (unsigned i = 0; i < 2; i++)
		ck_assert_int_eq(ucm_task_wait_copied(tasks[i], 20000), 0);
	/* parts of a block are not found */
	ck_assert_uint_eq(found_by(loader, NUM), 0);
	lf_cache_clear(&cache);
	ck_assert_int_eq(ucm_save_commit(loader, &commit, &tasks[2], NULL), 0);
	hang(false);
	for (unsigned i = 0; i < 3; i++) {
		ck_assert_int_eq(ucm_task_wait(tasks[i], 20000), 0);
		ucm_task_free(tasks[i]);
	}
	ucm_loader_close(loader);
	check_saved(6);
}

static bool has_no_temps(void *arg)
{
	(void)arg;
	return !fx_count_files(fx_path("$/tier/.ucmfs/tmp"));
}

/* Layers that are in the buffer go as well, and do not come up later. */
UNIT_TEST(what_is_abandoned_goes_from_the_buffer, .rows = NUM_ROWS(ways))
{
	struct ucm_loader *loader = open_way(_i);
	struct ucm_request layers = { .num_layers = 2 };
	struct ucm_task *task;

	hang(true);
	task = lf_submit(loader, true, 0, ROOM, &layers);
	ck_assert_int_eq(ucm_task_wait_copied(task, 20000), 0);
	ucm_save_abandon(loader, 0, NULL, 0);
	hang(false);
	ck_assert_int_eq(ucm_task_wait(task, 20000), 0);
	ucm_task_free(task);
	fx_wait(has_no_temps, NULL);
	layers.first_layer = 2;
	ck_assert_int_eq(lf_save(loader, 0, ROOM, &layers, NULL), 0);
	ck_assert_uint_eq(found_by(loader, NUM), 0);
	ucm_loader_close(loader);
	check_saved(0);
}

/* What was copied does not count as waiting. */
UNIT_TEST(the_budget_is_for_pages, .rows = NUM_ROWS(ways))
{
	struct ucm_loader_options options = ways[_i];
	struct ucm_loader *loader;
	struct ucm_task *tasks[2];

	lf_limits.save_bytes = 4 * 4 * LAYER;
	lf_limits.read_bytes = reads[_i];
	loader = lf_loader("$/tier", &cache, &options);
	hang(true);
	for (unsigned i = 0; i < 2; i++) {
		for (unsigned j = 0; j < 4; j++)
			lf_fill_page(&cache, j, 4 * i + j);
		tasks[i] = lf_submit(loader, true, 4 * i, 4, NULL);
		ck_assert_int_eq(ucm_task_wait_copied(tasks[i], 20000), 0);
	}
	hang(false);
	for (unsigned i = 0; i < 2; i++) {
		ck_assert_int_eq(ucm_task_wait(tasks[i], 20000), 0);
		ucm_task_free(tasks[i]);
	}
	ucm_loader_close(loader);
	check_saved(8);
}

UNIT_TEST(a_block_saved_twice_is_there_once, .rows = NUM_ROWS(ways))
{
	struct ucm_loader *loader = open_way(_i);
	struct ucm_task *tasks[3];
	unsigned skipped = 0;

	for (unsigned i = 0; i < 3; i++)
		tasks[i] = lf_submit(loader, true, 0, 8, NULL);
	for (unsigned i = 0; i < 3; i++) {
		ck_assert_int_eq(ucm_task_wait(tasks[i], 20000), 0);
		for (unsigned j = 0; j < 8; j++)
			skipped += ucm_task_outcomes(tasks[i])[j].skipped;
		ucm_task_free(tasks[i]);
	}
	ck_assert_uint_eq(skipped, 16);
	ucm_loader_close(loader);
	check_saved(8);
}

/* ---- more than is written at a time ---- */

#define LARGE 24 /* blocks of 512 KiB: more than are begun at a time, in halves */

static void setup_large(void)
{
	struct ucm_geometry large = lf_geometry_of(4, 16, 32, 64);

	fx_setup();
	lf_faults();
	lf_tier("$/tier");
	lf_cache_open(&cache, &large, LARGE);
	for (unsigned i = 0; i < LARGE; i++)
		lf_fill_page(&cache, i, i);
	store.ops = ucm_source_tiers;
	store.ops.create = create;
	ucm_loader_source = &store.ops;
	hang(true);
}

static struct ucm_loader *large_loader(void)
{
	struct ucm_loader_options options = { .threads = 1,
					      .staging_bytes = 1,
					      .write_buffer_bytes = 16 << 20 };

	return lf_loader("$/tier", &cache, &options);
}

UNIT_FIXTURE(.setup = setup_large, .teardown = teardown);

UNIT_TEST(what_waits_in_the_queue_stays_in_order)
{
	struct ucm_loader *loader = large_loader();
	struct ucm_move moves[LARGE] = { 0 };
	struct ucm_request commit = { .size = sizeof(commit),
				      .blocks = moves, .num_blocks = LARGE };
	struct ucm_request half = { .num_layers = 2, .hold = 1 };
	struct ucm_task *tasks[3];

	for (unsigned i = 0; i < LARGE; i++)
		moves[i].id = lf_id(i);
	for (unsigned i = 0; i < 2; i++, half.first_layer += 2) {
		tasks[i] = lf_submit(loader, true, 0, LARGE, &half);
		ck_assert_int_eq(ucm_task_wait_copied(tasks[i], 20000), 0);
	}
	ck_assert_int_eq(ucm_save_commit(loader, &commit, &tasks[2], NULL), 0);
	ck_assert_int_eq(ucm_task_wait(tasks[2], 20), -ETIMEDOUT);
	hang(false);
	for (unsigned i = 0; i < 3; i++) {
		ck_assert_int_eq(ucm_task_wait(tasks[i], 20000), 0);
		ucm_task_free(tasks[i]);
	}
	ucm_loader_close(loader);
	for (unsigned i = 0; i < LARGE; i++)
		ck_assert(lf_saved("$/tier", &cache.geometry, i));
}

UNIT_TEST(what_waits_in_the_queue_is_abandoned)
{
	struct ucm_loader *loader = large_loader();
	struct ucm_request half = { .num_layers = 2 };
	struct ucm_task *task = lf_submit(loader, true, 0, LARGE, &half);

	ck_assert_int_eq(ucm_task_wait_copied(task, 20000), 0);
	ucm_save_abandon(loader, 0, NULL, 0);
	/* whoever is asked later than that has heard of it */
	ck_assert_int_eq(lf_load(loader, 99, 1, NULL, NULL), -EIO);
	hang(false);
	ck_assert_int_eq(ucm_task_wait(task, 20000), 0);
	ucm_task_free(task);
	fx_wait(has_no_temps, NULL);
	ucm_loader_close(loader);
}

UNIT_TEST(what_waits_in_the_queue_has_a_deadline)
{
	struct ucm_loader *loader = large_loader();
	struct ucm_request request = { .deadline_ms = 50 };
	struct ucm_outcome outcomes[LARGE];

	ck_assert_int_eq(lf_save(loader, 0, LARGE, &request, outcomes), -EIO);
	for (unsigned i = 0; i < LARGE; i++)
		ck_assert_int_eq(outcomes[i].err, -ETIMEDOUT);
	hang(false);
	for (unsigned i = 0; i < LARGE; i++)
		lf_fill_page(&cache, i, i);
	ck_assert_int_eq(lf_save(loader, 0, LARGE, NULL, NULL), 0);
	ucm_loader_close(loader);
	for (unsigned i = 0; i < LARGE; i++)
		ck_assert(lf_saved("$/tier", &cache.geometry, i));
}
