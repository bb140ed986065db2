/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_save_layers.c - blocks that are saved layer by layer: in any order,
 * more than files may be open, or never as a whole.
 */
#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <sys/resource.h>

#include "gpu/load/thread.h"
#include "tests/unit/load/save_fixture.h"

/* With parents lf_saved() would not know their headers. */
static void check_present(unsigned from, unsigned end)
{
	for (unsigned i = from; i < end; i++)
		ck_assert(fx_exists(lf_path("$/tier", i)));
}

/* ---- layers ---- */

static const uint8_t orders[][4] = {
	{ 0, 1, 2, 3 }, { 3, 2, 1, 0 }, { 2, 0, 3, 1 }, { 1, 3, 0, 2 },
};

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

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

/* ---- blocks that do not become whole ---- */

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
