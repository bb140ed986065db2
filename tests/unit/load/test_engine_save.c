/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_engine_save.c - saves of one thread of the loader, stopped in every
 * state there is, and refused.
 */
#include <config.h>

#include "gpu/load/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "gpu/load/task/buffer.h"
#include "tests/unit/load/engine_fixture.h"

static bool are_made(void *arg)
{
	enum call call = *(enum call *)arg;

	return atomic_load(&calls[call].made) >= 4;
}

/* Four calls are at their gate, which is locked. */
static void wait_calls(enum call call)
{
	fx_wait(are_made, &call);
}

static struct ucm_task *submit_commit(unsigned first, unsigned num)
{
	struct ucm_task *task = make_task(true, first, num, NULL);

	task->terms.is_commit = true;
	return post(task);
}

/* ---- the way of a save ---- */

static bool is_block(unsigned n)
{
	return lf_saved("$/dir", &lf_geometry, n);
}

static void stop_unsaved(unsigned num)
{
	stop();
	for (unsigned i = 0; i < num; i++)
		ck_assert(!is_block(i));
}

static const struct {
	off_t from;
	uint32_t read_bytes;
} steps[] = {
	{ 0, 1 << 20 },	      /* writing all at once */
	{ 3 * LAYER, LAYER }, /* a part of it */
	{ 0, LAYER },	      /* the header, last */
};

static void give_up_save(unsigned step, int row)
{
	struct ucm_task *task;

	fill(4);
	start(steps[step].read_bytes);
	lf_hold_at(UCM_IO_WRITE, steps[step].from, steps[step].from + 1);
	task = submit(true, 0, 4, NULL);
	lf_wait_held(4);
	give_up(task, row);
	ended(task, 0, ends[row].err);
	lf_cache_clear(&cache); /* the pages are the caller's again */
	lf_release();
	stop_unsaved(4);
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(a_save_is_cancelled_at_each_step, .rows = NUM_ROWS(steps))
{
	give_up_save((unsigned)_i, 0);
}

UNIT_TEST(a_save_is_late_at_each_step, .rows = NUM_ROWS(steps))
{
	give_up_save((unsigned)_i, 1);
}

/* It ends before the calls of the source do. */
static void give_up_in_call(enum call call, int row)
{
	struct ucm_task *task;

	fill(4);
	start(1 << 20);
	pthread_mutex_lock(&calls[call].gate);
	task = submit(true, 0, 4, NULL);
	wait_calls(call);
	give_up(task, row);
	ended(task, 0, ends[row].err);
	lf_cache_clear(&cache);
	for (unsigned i = 0; i < 4; i++)
		ck_assert(!is_block(i));
	pthread_mutex_unlock(&calls[call].gate);
}

UNIT_TEST(a_save_is_given_up_while_it_is_created, .rows = 2)
{
	give_up_in_call(CREATE, _i);
	stop_unsaved(4);
	ck_assert_uint_eq(atomic_load(&calls[COMMIT].made), 0);
}

/* The last step cannot be taken back: the block is whole, or not there. */
UNIT_TEST(a_save_is_given_up_while_it_is_committed, .rows = 2)
{
	give_up_in_call(COMMIT, _i);
	stop();
	for (unsigned i = 0; i < 4; i++)
		ck_assert(is_block(i));
}

/* Pages that the device reads are waited for; who has no memory yet ends at
 * once. */
UNIT_TEST(a_save_is_given_up_while_it_is_gathered, .rows = 2)
{
	struct ucm_task *task;

	fill(NUM);
	start(1 << 20);
	atomic_store(&device_holds, true);
	task = submit(true, 0, NUM, NULL);
	wait_device(SLOTS);
	give_up(task, _i);
	ck_assert_int_eq(ucm_task_wait_copied(task, 20),
			 -ETIMEDOUT);
	atomic_store(&device_holds, false);
	ended(task, 0, ends[_i].err);
	lf_cache_clear(&cache);
	ck_assert_uint_eq(atomic_load(&device_jobs), SLOTS);
	stop_unsaved(NUM);
}

UNIT_TEST(hungry_saves_go_on)
{
	struct ucm_task *task;

	fill(NUM);
	start(1 << 20);
	atomic_store(&device_holds, true);
	task = submit(true, 0, NUM, NULL);
	wait_device(SLOTS);
	atomic_store(&device_holds, false);
	ended(task, 0, 0);
	for (unsigned i = 0; i < NUM; i++)
		ck_assert(is_block(i));
	stop();
}

static bool has_left(void *task)
{
	return !atomic_load(&((struct ucm_task *)task)->working);
}

/* The engine holds more of it than its part. */
static bool is_begun(void *task)
{
	return atomic_load(&((struct ucm_task *)task)->working) > 1;
}

/* It ends, and its group may go, while others before it wait. */
static void give_up_behind(struct ucm_task *task, int row)
{
	fx_wait(is_begun, task);
	give_up(task, row);
	ck_assert_int_eq(ucm_task_wait(task, 20000), -EIO);
	fx_wait(has_left, task);
	ended(task, 0, ends[row].err);
}

UNIT_TEST(a_save_is_given_up_behind_hungry_ones, .rows = 2)
{
	struct ucm_task *task, *behind;

	fill(NUM);
	start(1 << 20);
	atomic_store(&device_holds, true);
	task = submit(true, 0, SLOTS + 2, NULL);
	wait_device(SLOTS);
	behind = submit(true, SLOTS + 2, 2, NULL);
	give_up_behind(behind, _i);
	atomic_store(&device_holds, false);
	ended(task, 0, 0);
	stop();
}

static struct ucm_buffer *start_buffered(void)
{
	struct ucm_buffer *buffer;
	struct ucm_error error;

	most_saves = 1;
	ck_assert_int_eq(ucm_buffer_open(4 << 20, &buffer, &error), 0);
	use_buffer = buffer;
	start(1 << 20);
	return buffer;
}

UNIT_TEST(a_save_is_given_up_in_the_middle_of_the_queue, .rows = 2)
{
	struct ucm_buffer *buffer = start_buffered();
	struct ucm_task *tasks[3];

	fill(3);
	lf_hold(UCM_IO_WRITE, 0);
	for (unsigned i = 0; i < 3; i++)
		tasks[i] = submit(true, i, 1, NULL);
	for (unsigned i = 0; i < 3; i++)
		ck_assert_int_eq(ucm_task_wait_copied(tasks[i], 20000), 0);
	lf_wait_held(1);
	give_up_behind(tasks[2], _i);
	ck_assert(!ucm_task_done(tasks[1]));
	lf_release();
	ended(tasks[0], 0, 0);
	ended(tasks[1], 0, 0);
	stop();
	ucm_buffer_close(buffer);
}

/* A load of blocks that are in the write buffer. */
static struct ucm_task *submit_kept(struct ucm_buffer *buffer, unsigned first,
				    unsigned num)
{
	struct ucm_task *task = make_task(false, first, num, NULL);

	task->kept = calloc(num, sizeof(*task->kept));
	for (unsigned i = 0; i < num; i++) {
		task->kept[i] = ucm_buffer_get(buffer, 4 * LAYER);
		task->kept[i]->payload = task->kept[i]->slot.memory;
		memset(task->kept[i]->payload, 0, 4 * LAYER);
	}
	return post(task);
}

UNIT_TEST(a_load_is_given_up_behind_others_from_the_buffer, .rows = 2)
{
	struct ucm_buffer *buffer = start_buffered();
	struct ucm_task *task, *behind;

	atomic_store(&device_holds, true);
	task = submit_kept(buffer, 0, SLOTS + 1);
	wait_device(SLOTS);
	behind = submit_kept(buffer, SLOTS + 1, 1);
	give_up_behind(behind, _i);
	atomic_store(&device_holds, false);
	ended(task, 0, 0);
	stop();
	ucm_buffer_close(buffer);
}

UNIT_TEST(a_save_is_given_up_while_it_waits_for_its_turn, .rows = 2)
{
	struct ucm_task *first, *second, *third;

	fill(4);
	start(1 << 20);
	lf_hold(UCM_IO_WRITE, 0);
	first = submit(true, 0, 4, NULL);
	lf_wait_held(4);
	second = submit(true, 0, 4, NULL);
	third = submit(true, 0, 4, NULL);
	give_up(second, _i);
	ended(second, 0, ends[_i].err);
	ck_assert(!ucm_task_done(first));
	lf_release();
	ended(first, 0, 0);
	ended(third, 0, 0);
	for (unsigned i = 0; i < 4; i++)
		ck_assert(is_block(i));
	stop();
}

/* Others that come later need not wait, and are committed meanwhile. */
UNIT_TEST(a_commit_waits_for_saves_that_wait_for_events)
{
	struct ucm_request held = { .hold = 1, .after = &event_comes };
	struct ucm_task *save, *commit;

	fill(4);
	start(1 << 20);
	atomic_store(&event_comes, false);
	save = submit(true, 0, 2, &held);
	commit = submit_commit(0, 2);
	ended(submit(true, 2, 2, NULL), 0, 0);
	ck_assert(!ucm_task_done(save));
	ck_assert(!ucm_task_done(commit));
	atomic_store(&event_comes, true);
	ended(save, 0, 0);
	ended(commit, 0, 0);
	ck_assert(is_block(0) && is_block(1));
	stop();
}

/* What was to be committed has not been saved then. */
UNIT_TEST(a_commit_does_not_wait_for_what_was_given_up, .rows = 2)
{
	struct ucm_request held = { .hold = 1, .after = &event_comes };
	struct ucm_task *save, *commit;

	fill(2);
	start(1 << 20);
	atomic_store(&event_comes, false);
	save = submit(true, 0, 2, &held);
	commit = submit_commit(0, 2);
	give_up(save, _i);
	ended(save, 0, ends[_i].err);
	ended(commit, 0, -ENOENT);
	stop_unsaved(2);
}

/* Though all of it was written. */
UNIT_TEST(a_failed_write_leaves_no_block)
{
	fill(1);
	start(1 << 20);
	lf_fail(UCM_IO_WRITE, 1, -EIO, true);
	ended(submit(true, 0, 1, NULL), 0, -EIO);
	stop();
	ck_assert_int_eq(access(lf_path("$/dir", 0), F_OK), -1);
	ck_assert_int_eq(errno, ENOENT);
	ck_assert_uint_eq(atomic_load(&calls[COMMIT].made), 0);
}

/* ---- refusals ---- */

enum refuser { CREATING, WRITING, COMMITTING };

static const struct {
	enum refuser by;
	int err, outcome;
} refused[] = {
	{ CREATING, -ENOSPC, -ENOSPC },
	{ CREATING, -EDQUOT, -EDQUOT },
	{ CREATING, -EEXIST, 0 },
	{ CREATING, -ENOTCONN, -ENOTCONN },
	{ WRITING, -ENOSPC, -ENOSPC },
	{ WRITING, -EIO, -EIO },
	{ COMMITTING, -ENOSPC, -ENOSPC },
	{ COMMITTING, -EDQUOT, -EDQUOT },
	{ COMMITTING, -ENOTCONN, -ENOTCONN },
};

static void refuse(enum refuser by, int err)
{
	if (by == WRITING)
		lf_fail(UCM_IO_WRITE, 1, err, true);
	else
		atomic_store(&calls[by == CREATING ? CREATE : COMMIT].refusal,
			     err);
}

UNIT_TEST(a_save_is_refused, .rows = NUM_ROWS(refused))
{
	struct ucm_task *task;

	fill(1);
	start(1 << 20);
	refuse(refused[_i].by, refused[_i].err);
	task = submit(true, 0, 1, NULL);
	ck_assert_int_eq(ucm_task_wait(task, 20000),
			 refused[_i].outcome ? -EIO : 0);
	ck_assert_int_eq(ucm_task_outcomes(task)->err, refused[_i].outcome);
	ck_assert_int_eq(ucm_task_outcomes(task)->skipped,
			 refused[_i].err == -EEXIST);
	ucm_task_free(task);
	ck_assert_uint_eq(atomic_load(&source.losses),
			  refused[_i].err == -ENOTCONN);
	ck_assert(!is_block(0));
	ended(submit(true, 0, 1, NULL), 0, 0);
	ck_assert(is_block(0));
	stop();
}

/* What is there is left as it is. */
UNIT_TEST(a_block_that_is_there_is_skipped)
{
	struct ucm_task *task;

	plant(1);
	fill(1);
	start(1 << 20);
	task = submit(true, 0, 1, NULL);
	ck_assert_int_eq(ucm_task_wait(task, 20000), 0);
	ck_assert_int_eq(ucm_task_outcomes(task)->skipped, 1);
	ucm_task_free(task);
	stop();
	ck_assert(is_block(0));
	ck_assert_uint_eq(atomic_load(&calls[COMMIT].made), 0);
}
