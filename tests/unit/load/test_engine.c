/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_engine.c - loads and saves of one thread of the loader, beside each
 * other.
 */
#include <config.h>

#include "gpu/load/thread.h"

#include <pthread.h>
#include <unistd.h>

#include "gpu/load/task/buffer.h"
#include "tests/unit/load/engine_fixture.h"

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(loads_and_saves_pass)
{
	for (unsigned i = 0; i < 2; i++) {
		start(i ? LAYER : 1 << 20);
		fill(NUM);
		ended(submit(true, 0, NUM, NULL), 0, 0);
		for (unsigned j = 0; j < NUM; j++)
			ck_assert(lf_saved("$/dir", &lf_geometry, j));
		lf_cache_clear(&cache);
		ended(submit(false, 0, NUM, NULL), 0, 0);
		for (unsigned j = 0; j < NUM; j++)
			ck_assert(lf_page_is(&cache, j, 0, 4, j));
		stop();
		for (unsigned j = 0; j < NUM; j++)
			unlink(lf_path("$/dir", j));
	}
}

/* The window has room for a block, and so a load is read when the one before it
 * has been. The saves are there first: they wait until they are owed a block,
 * an eighth of all. */
UNIT_TEST(saves_wait_for_loads_but_for_their_share)
{
	enum { LOADS = 16 };
	struct ucm_task *plug, *save, *load;

	plant(LOADS + 1);
	window_bytes = 4 * LAYER;
	start(1 << 20);
	pthread_mutex_lock(&gate);
	plug = submit(false, LOADS, 1, NULL);
	wait_device(1); /* the engine's thread stands before the gate */
	save = submit(true, LOADS + 1, 4, NULL);
	load = submit(false, 0, LOADS, NULL);
	pthread_mutex_unlock(&gate);
	ended(plug, 0, 0);
	ended(load, 0, 0);
	ended(save, 0, 0);
	stop();
	ck_assert_uint_ge(jobs_before, 1 + 7 - 2);
	ck_assert_uint_lt(jobs_before, 1 + LOADS - 2);
}

/* ---- groups ---- */

static void *add_another(void *arg)
{
	ck_assert_int_eq(ucm_engine_add_group(&engine, arg), 0);
	return NULL;
}

static bool adds(void *arg)
{
	(void)arg;
	return atomic_load(&is_adding);
}

/* A submit while another group's pages are pinned, which may take seconds. */
UNIT_TEST(a_group_that_takes_long_holds_up_no_submit)
{
	struct ucm_task *task;
	pthread_t thread;

	plant(4);
	start(1 << 20);
	pthread_mutex_lock(&adding_gate);
	atomic_store(&is_adding, false);
	ck_assert_int_eq(pthread_create(&thread, NULL, add_another, &group), 0);
	fx_wait(adds, NULL);
	task = submit(false, 0, 4, NULL);
	pthread_mutex_unlock(&adding_gate);
	pthread_join(thread, NULL);
	ck_assert_int_eq(ucm_task_wait(task, 10000), 0);
	ucm_task_free(task);
	ucm_engine_stop(&engine);
	ucm_engine_close(&engine);
}
