/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_save_failures.c - saves that fail, are dropped, meet each other or never
 * come to their end: nothing half is left, and the next one works.
 */
#include <config.h>

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "gpu/load/engine.h"
#include "tests/unit/load_fixture.h"

#define NUM 8
#define LAYER 4096
#define BLOCK (4 * LAYER)

static struct lf_cache cache;

static void setup(void)
{
	fx_setup();
	lf_faults();
	lf_tier("$/tier");
	lf_cache_open(&cache, &lf_geometry, NUM);
	for (unsigned i = 0; i < NUM; i++)
		lf_fill_page(&cache, i, i);
}

static void teardown(void)
{
	ucm_loader_source = NULL;
	lf_cache_close(&cache);
	fx_teardown();
}

/* A block in one write, or layer by layer with its header last. */
static const struct ucm_loader_options ways[] = {
	{ .io = UCM_IO_AUTO, .threads = 1 },
	{ .io = UCM_IO_THREADS, .threads = 1 },
	{ .io = UCM_IO_AUTO, .threads = 1 },
	{ .io = UCM_IO_THREADS, .threads = 2 },
};

/* So long are its reads. */
static const uint32_t reads[NUM_ROWS(ways)] = { 0, 0, LAYER, LAYER };

static struct ucm_loader *open_way(unsigned way)
{
	lf_limits.read_bytes = reads[way];
	return lf_loader("$/tier", &cache, &ways[way]);
}

static void check_nothing(unsigned from, unsigned end)
{
	for (unsigned i = from; i < end; i++)
		ck_assert(!fx_exists(lf_path("$/tier", i)));
	ck_assert_uint_eq(fx_count_files(fx_path("$/tier/.ucmfs/tmp")), 0);
}

static void check_saved(unsigned from, unsigned end)
{
	for (unsigned i = from; i < end; i++)
		ck_assert(lf_saved("$/tier", &lf_geometry, i));
}

/* By the daemon, so that it knows. */
static void remove_saved(struct ucm_loader *loader, unsigned num)
{
	struct ucm_id ids[NUM] = { 0 };
	int32_t results[NUM];

	for (unsigned i = 0; i < num; i++)
		ids[i] = lf_id(i);
	ck_assert_int_eq(ucm_loader_remove(loader, 0, ids, num, results), 0);
	for (unsigned i = 0; i < num; i++)
		ck_assert_int_eq(results[i], 0);
}

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

/* With parents lf_saved() would not know their headers. */
static void check_present(unsigned from, unsigned end)
{
	for (unsigned i = from; i < end; i++)
		ck_assert(fx_exists(lf_path("$/tier", i)));
}

static bool has_no_temps(void *arg)
{
	(void)arg;
	return !fx_count_files(fx_path("$/tier/.ucmfs/tmp"));
}

/* ---- layers ---- */

static struct ucm_task *save_layers(struct ucm_loader *loader, uint32_t first,
				    uint32_t num)
{
	struct ucm_request request = { .first_layer = first,
				       .num_layers = num };

	return lf_submit(loader, true, 0, NUM, &request);
}

static const uint8_t orders[][4] = {
	{ 0, 1, 2, 3 }, { 3, 2, 1, 0 }, { 2, 0, 3, 1 }, { 1, 3, 0, 2 },
};

UNIT_TEST(layers_come_in_any_order, .rows = NUM_ROWS(orders))
{
	for (unsigned i = 0; i < NUM_ROWS(ways); i++) {
		struct ucm_loader *loader = open_way(i);
		struct ucm_task *tasks[4];

		for (unsigned j = 0; j < 4; j++)
			tasks[j] = save_layers(loader, orders[_i][j], 1);
		for (unsigned j = 0; j < 4; j++) {
			ck_assert_int_eq(ucm_task_wait(tasks[j], 20000), 0);
			ucm_task_free(tasks[j]);
		}
		check_saved(0, NUM);
		remove_saved(loader, NUM);
		ucm_loader_close(loader);
	}
}

/* ---- more blocks than files may be open ---- */

#define MANY 200
#define HALF (MANY / 2)
#define FILES 96 /* of which 14 at most for blocks that wait for layers */
#define MOST 14

static struct rlimit files_before;

static void setup_many(void)
{
	struct rlimit few;

	fx_setup();
	lf_faults();
	lf_tier("$/tier");
	lf_cache_open(&cache, &lf_geometry, MANY);
	for (unsigned i = 0; i < MANY; i++)
		lf_fill_page(&cache, i, i);
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &files_before), 0);
	few = files_before;
	few.rlim_cur = FILES;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
}

static void teardown_many(void)
{
	setrlimit(RLIMIT_NOFILE, &files_before);
	teardown();
}

static void save_part(struct ucm_loader *loader, unsigned first, uint32_t layer,
		      bool hold, unsigned num_wrong)
{
	struct ucm_request request = { .first_layer = layer,
				       .num_layers = 1,
				       .hold = hold };
	struct ucm_task *task =
		lf_submit(loader, true, first, HALF, &request);

	ucm_task_wait(task, 20000);
	ck_assert_uint_eq(ucm_task_num_failed(task), num_wrong);
	ucm_task_free(task);
}

UNIT_FIXTURE(.setup = setup_many, .teardown = teardown_many, .timeout = 30);

UNIT_TEST(blocks_that_wait_for_layers_take_few_files, .rows = NUM_ROWS(ways))
{
	struct ucm_loader *loader = open_way(_i);

	for (uint32_t layer = 0; layer < 4; layer++) {
		save_part(loader, 0, layer, false, 0);
		if (layer < 3) {
			ck_assert_uint_le(lf_open_files(".ucmfs/tmp"), MOST);
			ck_assert_uint_eq(
				fx_count_files(fx_path("$/tier/.ucmfs/tmp")), HALF);
		}
	}
	check_saved(0, HALF);
	ck_assert_uint_eq(fx_count_files(fx_path("$/tier/.ucmfs/tmp")), 0);
	ck_assert_uint_eq(lf_open_files(".ucmfs/tmp"), 0);
	/* of the next blocks some stay open, too */
	for (unsigned i = 0; i < HALF; i++)
		lf_fill_page(&cache, i, HALF + i);
	save_part(loader, HALF, 0, false, 0);
	ck_assert_uint_ge(lf_open_files(".ucmfs/tmp"), MOST / 2);
	ucm_loader_close(loader);
	check_nothing(HALF, MANY);
}

UNIT_TEST(blocks_that_are_held_take_few_files, .rows = NUM_ROWS(ways))
{
	struct ucm_move moves[HALF] = { 0 };
	struct ucm_request commit = { .size = sizeof(commit),
				      .blocks = moves, .num_blocks = HALF };
	struct ucm_loader *loader = open_way(_i);
	struct ucm_task *task;

	for (unsigned i = 0; i < HALF; i++)
		moves[i].id = lf_id(i);
	for (uint32_t layer = 0; layer < 4; layer++)
		save_part(loader, 0, layer, true, 0);
	ck_assert_uint_le(lf_open_files(".ucmfs/tmp"), MOST);
	ck_assert_int_eq(ucm_save_commit(loader, &commit, &task, NULL), 0);
	ck_assert_int_eq(ucm_task_wait(task, 20000), 0);
	ucm_task_free(task);
	check_saved(0, HALF);
	ucm_loader_close(loader);
}

static _Atomic int reopens; /* the last of so many fails */

static int reopen(struct ucm_source *source, const struct ucm_draft *draft)
{
	if (reopens && !--reopens)
		return -EIO;
	return ucm_source_tiers.reopen(source, draft);
}

UNIT_TEST(a_file_that_cannot_be_opened_again_fails_its_block_alone)
{
	struct ucm_source_ops ops = ucm_source_tiers;
	struct ucm_loader_options options = { .threads = 1 };
	struct ucm_loader *loader;
	unsigned whole = 0;

	ops.reopen = reopen;
	ucm_loader_source = &ops;
	loader = lf_loader("$/tier", &cache, &options);
	save_part(loader, 0, 0, false, 0);
	reopens = 2;
	save_part(loader, 0, 1, false, 1);
	save_part(loader, 0, 2, false, 0);
	save_part(loader, 0, 3, false, 0);
	for (unsigned i = 0; i < HALF; i++)
		whole += fx_exists(lf_path("$/tier", i));
	ck_assert_uint_eq(whole, HALF - 1);
	/* it lacks two layers, and goes */
	ck_assert_uint_eq(fx_count_files(fx_path("$/tier/.ucmfs/tmp")), 1);
	ucm_save_abandon(loader, 0, NULL, 0);
	fx_wait(has_no_temps, NULL);
	ucm_loader_close(loader);
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

/* What is saved once more is written once more; 3 + 2 layers make 4. */
UNIT_TEST(layers_may_overlap, .rows = NUM_ROWS(ways))
{
	struct ucm_loader *loader = open_way(_i);
	struct ucm_task *tasks[3];

	tasks[0] = save_layers(loader, 0, 3);
	tasks[1] = save_layers(loader, 0, 2);
	tasks[2] = save_layers(loader, 2, 2);
	for (unsigned j = 0; j < 3; j++) {
		ck_assert_int_eq(ucm_task_wait(tasks[j], 20000), 0);
		ucm_task_free(tasks[j]);
	}
	check_saved(0, NUM);
	ucm_loader_close(loader);
}

/* ---- a source hangs when it is asked which blocks it wants ---- */

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	unsigned asked; /* so often */
	size_t blocks;  /* the last time */
	bool hangs;
} chooser = { .lock = PTHREAD_MUTEX_INITIALIZER,
	      .changed = PTHREAD_COND_INITIALIZER };

static int chooser_offer(struct ucm_source *source, const char *space,
			 const struct ucm_id *ids,
			 const struct ucm_id *parents, size_t num,
			 uint64_t bytes, int32_t *answers)
{
	(void)source, (void)space, (void)bytes;
	pthread_mutex_lock(&chooser.lock);
	chooser.asked++;
	chooser.blocks = num;
	for (size_t i = 0; i < num; i++) {
		answers[i] = 1;
		ck_assert(!i || !memcmp(&parents[i], &ids[i - 1], sizeof(*ids)));
	}
	pthread_cond_broadcast(&chooser.changed);
	while (chooser.hangs)
		pthread_cond_wait(&chooser.changed, &chooser.lock);
	pthread_mutex_unlock(&chooser.lock);
	return 0;
}

static void chooser_wait_asked(unsigned times)
{
	pthread_mutex_lock(&chooser.lock);
	while (chooser.asked < times)
		pthread_cond_wait(&chooser.changed, &chooser.lock);
	pthread_mutex_unlock(&chooser.lock);
}

static void chooser_let_go(void)
{
	pthread_mutex_lock(&chooser.lock);
	chooser.hangs = false;
	pthread_cond_broadcast(&chooser.changed);
	pthread_mutex_unlock(&chooser.lock);
}

/* All blocks, a chain, of which the source may refuse some. */
static struct ucm_task *save_chain(struct ucm_loader *loader,
				   struct ucm_request request)
{
	struct ucm_id parents[NUM] = { 0 };

	for (unsigned i = 1; i < NUM; i++)
		parents[i] = lf_id(i - 1);
	request.parents = parents;
	request.may_refuse = true;
	return lf_submit(loader, true, 0, NUM, &request);
}

static void check_chain(struct ucm_loader *loader)
{
	struct ucm_request all = { .verify = UCM_VERIFY_FULL };

	lf_cache_clear(&cache);
	ck_assert_int_eq(lf_load(loader, 0, NUM, &all, NULL), 0);
	for (unsigned i = 0; i < NUM; i++)
		ck_assert(lf_page_is(&cache, i, 0, 4, i));
}

static struct ucm_source_ops choosing_ops;

static struct ucm_loader *choosing_loader(unsigned way, bool hangs)
{
	choosing_ops = ucm_source_tiers;
	choosing_ops.offer = chooser_offer;
	chooser.asked = 0;
	chooser.hangs = hangs;
	ucm_loader_source = &choosing_ops;
	return open_way(way);
}

/* Submitting does not wait for it; its files do, and whatever comes after. */
UNIT_TEST(a_source_is_asked_before_files_are_made, .rows = NUM_ROWS(ways))
{
	struct ucm_loader *loader = choosing_loader(_i, true);
	struct ucm_task *tasks[2];

	tasks[0] = save_chain(loader, (struct ucm_request){ .num_layers = 2 });
	tasks[1] = save_layers(loader, 2, 2);
	chooser_wait_asked(1);
	ck_assert_int_eq(ucm_task_wait(tasks[1], 20), -ETIMEDOUT);
	check_nothing(0, NUM);
	chooser_let_go();
	for (unsigned i = 0; i < 2; i++) {
		ck_assert_int_eq(ucm_task_wait(tasks[i], 20000), 0);
		ucm_task_free(tasks[i]);
	}
	check_chain(loader);
	ck_assert_uint_eq(chooser.asked, 1);
	ck_assert_uint_eq(chooser.blocks, NUM);
	ucm_loader_close(loader);
}

UNIT_TEST(a_source_that_hangs_when_asked_costs_a_task_its_time, .rows = NUM_ROWS(ways))
{
	struct ucm_loader *loader = choosing_loader(_i, true);
	struct ucm_task *task =
		save_chain(loader, (struct ucm_request){ .deadline_ms = 30 });

	ck_assert_int_eq(ucm_task_wait(task, 20000), -EIO);
	ck_assert_int_eq(ucm_task_outcomes(task)[NUM - 1].err, -ETIMEDOUT);
	ucm_task_free(task);
	check_nothing(0, NUM);
	chooser_let_go();
	ck_assert_int_eq(lf_save(loader, 0, NUM, NULL, NULL), 0);
	check_saved(0, NUM);
	ucm_loader_close(loader);
}

UNIT_TEST(a_source_that_must_take_all_is_not_asked, .rows = NUM_ROWS(ways))
{
	struct ucm_loader *loader = choosing_loader(_i, true);

	ck_assert_int_eq(lf_save(loader, 0, NUM, NULL, NULL), 0);
	check_saved(0, NUM);
	ck_assert_uint_eq(chooser.asked, 0);
	ucm_loader_close(loader);
}

/* The threads of this process: those that carry out I/O, and how many others
 * there are. */
struct threads {
	pid_t io[64];
	unsigned num_io, others;
};

static void list_threads(struct threads *threads)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *entry;

	*threads = (struct threads){ .others = 0 };
	while ((entry = readdir(tasks))) {
		char path[64], name[32] = "";
		FILE *file;

		snprintf(path, sizeof(path), "/proc/self/task/%.20s/comm",
			 entry->d_name);
		file = fopen(path, "re");
		if (!file)
			continue;
		must(fgets(name, sizeof(name), file));
		fclose(file);
		if (strcmp(name, "ucm-io\n"))
			threads->others++;
		else if (threads->num_io < NUM_ROWS(threads->io))
			threads->io[threads->num_io++] = atoi(entry->d_name);
	}
	closedir(tasks);
}

static bool others_are_left(void *num)
{
	struct threads now;

	list_threads(&now);
	return now.others == *(unsigned *)num;
}

static bool any_has_gone(const struct threads *before)
{
	for (unsigned i = 0; i < before->num_io; i++) {
		if (!fx_exists(fx_path("/proc/self/task/%d", before->io[i])))
			return true;
	}
	return false;
}

/* Of the second of two threads. */
static unsigned block_of_the_second(void)
{
	struct ucm_id id = lf_id(NUM);
	unsigned n = NUM;
	uint32_t hash;

	for (;; id = lf_id(++n)) {
		memcpy(&hash, id.bytes + 8, sizeof(hash)); /* see home_of() */
		if (hash % 2)
			return n;
	}
}

static void *close_it(void *loader)
{
	ucm_loader_close(loader);
	return NULL;
}

/* Its thread wakes the others when the call comes back. */
UNIT_TEST(a_source_that_hangs_when_asked_finds_all_threads_at_the_end)
{
	struct ucm_loader *loader = choosing_loader(3, true);
	const struct timespec moment = { .tv_nsec = 50 * 1000000 };
	struct ucm_id parent = lf_id(0);
	struct threads before;
	struct ucm_task *task;
	pthread_t closer;
	bool early;

	ck_assert_int_eq(lf_save(loader, 0, NUM, NULL, NULL), 0);
	task = lf_submit(loader, true, block_of_the_second(), 1,
			 &(struct ucm_request){ .parents = &parent,
						.may_refuse = true,
						.deadline_ms = 30 });
	chooser_wait_asked(1);
	ck_assert_int_eq(ucm_task_wait(task, 20000), -EIO);
	ucm_task_free(task);
	list_threads(&before);
	ck_assert_uint_gt(before.num_io, 1);
	ck_assert_int_eq(pthread_create(&closer, NULL, close_it, loader), 0);
	fx_wait(others_are_left, &before.others); /* without the first */
	nanosleep(&moment, NULL); /* in which it must not go */
	early = any_has_gone(&before);
	chooser_let_go();
	pthread_join(closer, NULL);
	ck_assert(!early);
}

static void save_and_wait(struct ucm_loader *loader, uint32_t first,
			  uint32_t num, int result)
{
	struct ucm_task *task = save_layers(loader, first, num);

	ck_assert_int_eq(ucm_task_wait(task, 20000), result);
	ucm_task_free(task);
}

UNIT_TEST(a_layer_that_fails_takes_the_block_along, .rows = NUM_ROWS(ways))
{
	struct ucm_loader *loader = open_way(_i);

	save_and_wait(loader, 0, 2, 0);
	lf_fail(UCM_IO_WRITE, 1, -ENOSPC, false);
	save_and_wait(loader, 2, 1, -EIO);
	lf_fail(UCM_IO_WRITE, 0, 0, false);
	save_and_wait(loader, 3, 1, 0);
	/* layers 0 to 2 have gone: they are needed anew */
	for (unsigned i = 0; i < NUM; i++)
		ck_assert(!fx_exists(lf_path("$/tier", i)));
	save_and_wait(loader, 0, 3, 0);
	check_saved(0, NUM);
	ck_assert_uint_eq(fx_count_files(fx_path("$/tier/.ucmfs/tmp")), 0);
	ucm_loader_close(loader);
}

UNIT_TEST(what_is_abandoned_goes, .rows = NUM_ROWS(ways))
{
	struct ucm_loader *loader = open_way(_i);
	struct ucm_id id = lf_id(2);

	save_and_wait(loader, 0, 3, 0);
	ck_assert_uint_eq(fx_count_files(fx_path("$/tier/.ucmfs/tmp")), NUM);
	ucm_save_abandon(loader, 0, &id, 1);
	ucm_save_abandon(loader, 7, &id, 1); /* no such group: nothing */
	save_and_wait(loader, 3, 1, 0);
	check_saved(0, 2);
	ck_assert(!fx_exists(lf_path("$/tier", 2)));
	check_saved(3, NUM);
	ucm_save_abandon(loader, 0, NULL, 0);
	fx_wait(has_no_temps, NULL);
	save_and_wait(loader, 0, 4, 0);
	check_saved(0, NUM);
	ucm_loader_close(loader);
}

UNIT_TEST(what_is_abandoned_while_it_is_saved_goes_too)
{
	struct ucm_loader_options options = { .io = UCM_IO_THREADS,
					      .threads = 1 };
	struct ucm_loader *loader = lf_loader("$/tier", &cache, &options);
	struct ucm_task *task;

	save_and_wait(loader, 0, 2, 0);
	lf_hold(UCM_IO_WRITE, 0);
	task = save_layers(loader, 2, 1);
	lf_wait_held(NUM);
	ucm_save_abandon(loader, 0, NULL, 0);
	/* a task that comes behind it is none of its business */
	lf_release();
	ck_assert_int_eq(ucm_task_wait(task, 20000), 0);
	ucm_task_free(task);
	fx_wait(has_no_temps, NULL);
	save_and_wait(loader, 3, 1, 0);
	for (unsigned i = 0; i < NUM; i++)
		ck_assert(!fx_exists(lf_path("$/tier", i)));
	ucm_loader_close(loader);
	check_nothing(0, NUM);
}

/* Its files are not even made yet. */
UNIT_TEST(what_is_abandoned_before_it_is_begun_goes_too, .rows = NUM_ROWS(ways))
{
	struct ucm_loader *loader = choosing_loader(_i, true);
	const struct ucm_id id = lf_id(2);
	struct ucm_task *task =
		save_chain(loader, (struct ucm_request){ .num_layers = 3 });

	chooser_wait_asked(1);
	ucm_save_abandon(loader, 0, &id, 1);
	/* whoever is asked later than that has heard of it */
	for (unsigned i = 0; i < NUM; i++)
		ck_assert_int_eq(lf_load(loader, i, 1, NULL, NULL), -EIO);
	for (unsigned i = 0; i < NUM; i++)
		lf_fill_page(&cache, i, i);
	chooser_let_go();
	ck_assert_int_eq(ucm_task_wait(task, 20000), 0);
	ucm_task_free(task);
	save_and_wait(loader, 3, 1, 0);
	check_present(0, 2);
	ck_assert(!fx_exists(lf_path("$/tier", 2)));
	check_present(3, NUM);
	save_and_wait(loader, 0, 3, 0);
	check_present(2, 3);
	ucm_loader_close(loader);
	check_nothing(NUM, NUM);
}

static struct {
	pthread_mutex_t lock;
	bool inside;
	pthread_cond_t changed;
	bool may_leave;
} guest = { .lock = PTHREAD_MUTEX_INITIALIZER,
	    .changed = PTHREAD_COND_INITIALIZER };

/* Keeps the loader's thread. */
static void stay(void *arg, struct ucm_task *task)
{
	(void)arg, (void)task;
	pthread_mutex_lock(&guest.lock);
	guest.inside = true;
	pthread_cond_broadcast(&guest.changed);
	while (!guest.may_leave)
		pthread_cond_wait(&guest.changed, &guest.lock);
	pthread_mutex_unlock(&guest.lock);
}

/* Both are found in the mail at once. */
UNIT_TEST(what_is_saved_after_an_abandon_stays)
{
	struct ucm_loader_options options = { .threads = 1 };
	struct ucm_loader *loader = lf_loader("$/tier", &cache, &options);
	struct ucm_request keep = { .num_layers = 1, .on_done = stay };
	struct ucm_task *first, *tasks[2];

	guest.inside = guest.may_leave = false;
	first = lf_submit(loader, true, 0, 1, &keep);
	pthread_mutex_lock(&guest.lock);
	while (!guest.inside)
		pthread_cond_wait(&guest.changed, &guest.lock);
	pthread_mutex_unlock(&guest.lock);
	tasks[0] = save_layers(loader, 0, 2); /* forgotten */
	ucm_save_abandon(loader, 0, NULL, 0);
	tasks[1] = save_layers(loader, 2, 2);
	pthread_mutex_lock(&guest.lock);
	guest.may_leave = true;
	pthread_cond_broadcast(&guest.changed);
	pthread_mutex_unlock(&guest.lock);
	for (unsigned i = 0; i < 2; i++) {
		ck_assert_int_eq(ucm_task_wait(tasks[i], 20000), 0);
		ucm_task_free(tasks[i]);
	}
	ucm_task_free(first);
	for (unsigned i = 0; i < NUM; i++)
		ck_assert(!fx_exists(lf_path("$/tier", i)));
	save_and_wait(loader, 0, 2, 0);
	check_saved(0, NUM);
	ucm_loader_close(loader);
}

UNIT_TEST(a_loader_closes_with_blocks_that_are_not_whole,
	  .rows = NUM_ROWS(ways))
{
	struct ucm_loader *loader = open_way(_i);

	save_and_wait(loader, 1, 3, 0);
	ucm_loader_close(loader);
	check_nothing(0, NUM);
	loader = open_way(_i);
	save_and_wait(loader, 0, 1, 0);
	ucm_loader_close(loader);
	check_nothing(0, NUM);
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
