/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_engine_load.c - loads of one thread of the loader, stopped in every
 * state there is.
 */
#include <config.h>

#include "gpu/load/thread.h"

#include <errno.h>
#include <sys/stat.h>

#include "gpu/load/task/buffer.h"
#include "tests/unit/load/engine_fixture.h"

/* A task is given up while so many of its operations are held. */
static void give_up_held(struct ucm_task *task, unsigned num, int how)
{
	lf_wait_held(num);
	give_up(task, how);
	ended(task, 0, ends[how].err);
	lf_release();
}

static void stop_untouched(void)
{
	stop();
	for (uint32_t page = 0; page < NUM; page++)
		must(lf_page_untouched(&cache, page, 0, 4));
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

/* ---- the way of a load ---- */

UNIT_TEST(a_load_is_given_up_while_it_opens, .rows = 2)
{
	struct ucm_task *task;

	plant(4);
	start(1 << 20);
	lf_hold(UCM_IO_CALL, 0);
	task = submit(false, 0, 4, NULL);
	give_up_held(task, 1, _i);
	stop_untouched();
}

UNIT_TEST(a_load_is_given_up_while_it_is_read, .rows = 2)
{
	struct ucm_task *task;

	source.local = true; /* a file server gets fewer calls at first */
	plant(4);
	start(LAYER);
	lf_hold(UCM_IO_READ, 0);
	task = submit(false, 0, 4, NULL);
	give_up_held(task, 4 * 4, _i);
	stop_untouched();
}

/* Its own bytes are there, the header is not. */
UNIT_TEST(a_load_is_given_up_while_it_waits_for_the_head, .rows = 2)
{
	struct ucm_request request = { .first_layer = 1 };
	struct ucm_task *task;

	plant(4);
	start(1 << 20);
	lf_hold_at(UCM_IO_READ, 0, 1);
	task = submit(false, 0, 4, &request);
	give_up_held(task, 4, _i);
	stop_untouched();
}

/* The same where nothing is read before the header is known. */
UNIT_TEST(a_load_is_given_up_before_its_form_is_known, .rows = 2)
{
	struct ucm_task *task;
	uint8_t *bytes;
	size_t len;

	for (unsigned i = 0; i < 4; i++) {
		bytes = lf_file(&lf_geometry, i, FX_PACKED, &len);
		fx_put(lf_path("$/dir", i), bytes, len);
		free(bytes);
	}
	start(1 << 20);
	lf_hold(UCM_IO_READ, 0);
	task = submit(false, 0, 4, NULL);
	give_up_held(task, 4, _i);
	stop_untouched();
}

/* Or while its payload is read to be vouched for: one read holds up all. */
UNIT_TEST(a_load_is_given_up_while_it_is_vouched_for, .rows = 2)
{
	struct ucm_request request = { .first_layer = 2, .num_layers = 1 };
	struct ucm_task *task;
	uint8_t *bytes;
	size_t len;

	bytes = lf_file(&lf_geometry, 0, FX_PACKED, &len);
	fx_put(lf_path("$/dir", 0), bytes, len);
	free(bytes);
	start(LAYER);
	lf_hold(UCM_IO_READ, 2); /* the header's, its own */
	task = submit(false, 0, 1, &request);
	give_up_held(task, 1, _i);
	stop_untouched();
}

/* What the device has begun is waited for; the rest starves meanwhile, and ends
 * at once. */
UNIT_TEST(a_load_is_given_up_while_it_is_copied, .rows = 2)
{
	struct ucm_task *task;

	plant(NUM);
	start(1 << 20);
	atomic_store(&device_holds, true);
	task = submit(false, 0, NUM, NULL);
	wait_device(SLOTS);
	give_up(task, _i);
	ck_assert_int_eq(ucm_task_wait(task, 20), -ETIMEDOUT);
	atomic_store(&device_holds, false);
	ended(task, 0, ends[_i].err);
	ck_assert_uint_eq(atomic_load(&device_jobs), SLOTS);
	/* and the next one finds room */
	ended(submit(false, 0, NUM, NULL), 0, 0);
	stop();
	for (unsigned i = 0; i < NUM; i++)
		ck_assert(lf_page_is(&cache, i, 0, 4, i));
}

UNIT_TEST(starved_loads_go_on)
{
	struct ucm_task *tasks[2];

	plant(NUM);
	start(1 << 20);
	atomic_store(&device_holds, true);
	tasks[0] = submit(false, 0, NUM, NULL);
	tasks[1] = submit(false, 0, NUM, NULL);
	wait_device(SLOTS);
	atomic_store(&device_holds, false);
	ended(tasks[0], 0, 0);
	ended(tasks[1], 0, 0);
	stop();
}

/* Reads that hang have most of the memory, and one that found too little waits:
 * once it has been given up it must not keep small ones from the rest. */
UNIT_TEST(what_starved_and_was_given_up_is_in_nobodys_way)
{
	const struct ucm_geometry large = lf_geometry_of(4, 16, 8, 160);
	struct ucm_request layer = { .first_layer = 1, .num_layers = 1,
				     .verify = UCM_VERIFY_NONE };
	struct ucm_task *task;

	source.local = true; /* a file server never gets most of it */
	lf_cache_close(&cache);
	lf_cache_open(&cache, &large, NUM); /* 80 KiB a layer */
	use_cache();
	for (unsigned i = 0; i < 8; i++)
		lf_plant("$/dir", &large, i);
	start(1 << 20);
	lf_hold_at(UCM_IO_READ, 0, 1);
	task = submit(false, 0, 3, NULL);
	lf_wait_held(3); /* the window, and six units each */
	ucm_task_cancel(task);
	ended(task, 0, -ECANCELED);
	task = submit(false, 3, 3, NULL);
	lf_wait_held(5);
	ucm_task_cancel(task);
	ended(task, 0, -ECANCELED);
	ended(submit(false, 7, 1, &layer), 0, 0);
	ck_assert(lf_page_is(&cache, 0, 1, 2, 7));
	lf_release();
	stop();
}

/* Bytes have come, nobody has looked at them: they are not copied any more. */
UNIT_TEST(a_load_is_given_up_when_it_has_arrived, .rows = 2)
{
	struct ucm_task *task;
	unsigned jobs;

	source.local = true;
	plant(16);
	start(1 << 20);
	for (unsigned round = 0; round < 20; round++) {
		lf_hold(UCM_IO_READ, 0);
		task = submit(false, 0, 16, NULL);
		lf_wait_held(16);
		lf_release();
		give_up(task, _i);
		ck_assert_int_ne(ucm_task_wait(task, 20000), -ETIMEDOUT);
		ucm_task_free(task);
		jobs = atomic_load(&device_jobs);
		ended(submit(false, 100, 1, NULL), 0, -ENOENT);
		ck_assert_uint_eq(atomic_load(&device_jobs), jobs);
	}
	stop();
}

UNIT_TEST(a_device_may_fail)
{
	plant(4);
	start(1 << 20);
	atomic_store(&device_err, -EIO);
	ended(submit(false, 0, 4, NULL), 0, -EIO);
	fill(8);
	ended(submit(true, 4, 4, NULL), 0, -EIO);
	atomic_store(&device_err, 0);
	ended(submit(false, 0, 4, NULL), 0, 0);
	for (unsigned i = 4; i < 8; i++)
		ck_assert(!lf_saved("$/dir", &lf_geometry, i));
	stop();
}

UNIT_TEST(damage_does_not_reach_the_device)
{
	uint8_t *bytes;
	size_t len;

	bytes = lf_file(&lf_geometry, 0, FX_PAGED, &len);
	bytes[4096 + 2 * LAYER] ^= 1;
	fx_put(lf_path("$/dir", 0), bytes, len);
	free(bytes);
	start(1 << 20);
	ended(submit(false, 0, 1, NULL), 0, -EBADMSG);
	ck_assert_uint_eq(atomic_load(&device_jobs), 0);
	stop_untouched();
}

/* ---- a mount that goes ---- */

static const int gone[] = { -ENOTCONN, -ECONNABORTED, -ENODEV, -ESTALE };

UNIT_TEST(what_went_and_came_back_is_opened_anew, .rows = NUM_ROWS(gone))
{
	plant(4);
	start(1 << 20);
	atomic_store(&source.comes_back, true);
	ended(submit(false, 0, 4, NULL), 0, 0);
	lf_cache_clear(&cache);
	lf_fail(UCM_IO_READ, 1, gone[_i], true); /* the file is open */
	ended(submit(false, 0, 4, NULL), 0, 0);
	ck_assert_uint_eq(atomic_load(&source.losses), 1);
	source.once = true;
	atomic_store(&source.open_err, gone[_i]);
	ended(submit(false, 4, 1, NULL), 0, -ENOENT);
	ck_assert_uint_eq(atomic_load(&source.losses), 2);
	for (unsigned i = 1; i < 4; i++)
		ck_assert(lf_page_is(&cache, i, 0, 4, i));
	stop();
}

UNIT_TEST(what_went_for_good_fails, .rows = NUM_ROWS(gone))
{
	plant(NUM);
	start(1 << 20);
	/* the mount answers, but its files do not */
	atomic_store(&source.comes_back, _i % 2);
	ended(submit(false, 0, 4, NULL), 0, 0);
	lf_fail(UCM_IO_READ, 1, gone[_i], false);
	ended(submit(false, 0, NUM, NULL), 0, gone[_i]);
	lf_fail(UCM_IO_READ, 0, 0, false);
	atomic_store(&source.open_err, gone[_i]);
	ended(submit(false, 0, NUM, NULL), 0, gone[_i]);
	atomic_store(&source.open_err, 0);
	ended(submit(false, 0, NUM, NULL), 0, 0);
	stop();
}

static const int stale[] = { -ESTALE, -EBADF };

/* The directory is there, and so is the block. */
UNIT_TEST(a_stale_descriptor_is_replaced_once, .rows = NUM_ROWS(stale))
{
	plant(4);
	start(1 << 20);
	ended(submit(false, 0, 4, NULL), 0, 0);
	lf_cache_clear(&cache);
	lf_fail(UCM_IO_READ, 1, stale[_i], true);
	ended(submit(false, 0, 4, NULL), 0, 0);
	for (unsigned i = 0; i < 4; i++)
		ck_assert(lf_page_is(&cache, i, 0, 4, i));
	lf_fail(UCM_IO_READ, 1, stale[_i], false);
	ended(submit(false, 0, 4, NULL), 0, stale[_i]);
	stop();
}

/* Those that gave their memory back to be opened anew fail without it: whoever
 * waits for memory must hear of it all the same. */
UNIT_TEST(starved_loads_hear_of_memory_given_back)
{
	struct ucm_task *copying, *task;
	struct ucm_request layer = { .num_layers = 1 };

	plant(NUM);
	start(1 << 20);
	atomic_store(&source.comes_back, true);
	ended(submit(false, 0, 8, &layer), 0, 0); /* open, idle */
	atomic_store(&device_holds, true);
	copying = submit(false, 8, SLOTS - 4, NULL);
	wait_device(8 + SLOTS - 4);
	lf_hold(UCM_IO_READ, 0);
	lf_fail(UCM_IO_READ, 1, -ENOTCONN, false);
	task = submit(false, 0, 8, NULL); /* 4 of them starve */
	lf_wait_held(4);
	atomic_store(&source.open_err, -EIO);
	lf_release();
	ended(task, 0, -EIO);
	atomic_store(&source.open_err, 0);
	atomic_store(&device_holds, false);
	ended(copying, 0, 0);
	stop();
}

/* ---- marks that go while a file in memory is copied from ---- */

static const struct {
	bool goes, rotten;
	bool mapped; /* it is read the second time */
	int err;
	uint64_t unsummed; /* layers */
} marks[] = {
	{ false, false, false, 0, 4 },     { false, false, true, 0, 4 },
	{ true, false, false, 0, 0 },      { true, false, true, 0, 0 },
	{ true, true, false, -EBADMSG, 0 }, { true, true, true, -EBADMSG, 0 },
};

/* Its directory counts as one in memory, wherever the test runs. */
static void pretend_memory(void)
{
	struct ucm_given_dir *given = &engine.files.given[0];
	struct stat st;

	ck_assert_int_eq(fstat(source.fd, &st), 0);
	given->dir.memory = given->dir.quick = given->met = true;
	given->device = st.st_dev;
}

UNIT_TEST(a_mark_that_goes_meanwhile_does_not_count, .rows = NUM_ROWS(marks))
{
	struct ucm_request once = { .verify = UCM_VERIFY_ONCE }, all = { 0 };

	plant(1);
	source.local = true;
	copy_ops = NULL;
	start(1 << 20);
	pretend_memory();
	if (marks[_i].mapped)
		ended(submit(false, 0, 1, &all), 0, 0);
	mark_goes = marks[_i].goes;
	is_rotten = marks[_i].rotten;
	ended(submit(false, 0, 1, &once), 0, marks[_i].err);
	ck_assert_uint_eq(shared.stats.unsummed_bytes,
			  marks[_i].unsummed * LAYER);
	if (!marks[_i].err)
		ck_assert(lf_page_is(&cache, 0, 0, 4, 0));
	stop();
}

/* ---- files that are open ---- */

static bool is_idle(void *arg)
{
	(void)arg;
	return !lf_open_files("/blocks/");
}

/* A block that was removed is open no longer than a moment. */
UNIT_TEST(files_do_not_stay_open)
{
	plant(4);
	idle_ns = 20 * 1000000;
	start(1 << 20);
	ended(submit(false, 0, 4, NULL), 0, 0);
	ck_assert_uint_gt(lf_open_files("/blocks/"), 0);
	fx_wait(is_idle, NULL);
	ended(submit(false, 0, 4, NULL), 0, 0);
	stop();
}
