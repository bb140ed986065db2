/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_completions.c - tasks that are done are taken out of a queue, once and in
 * their order. The loader's threads are played by the test.
 */
#include <config.h>

#include "gpu/load/task/completions.h"

#include <poll.h>
#include <pthread.h>

#include "common/clock.h"
#include "tests/unit/load_fixture.h"

#define NUM 64

static struct lf_cache cache;
static struct ucm_group group;
static struct ucm_completions *queue;
static int tags[NUM];

static void setup(void)
{
	lf_cache_open(&cache, &lf_geometry, 1);
	group = (struct ucm_group){ .layout = cache.layout,
				    .layer_bytes = 4096,
				    .payload_bytes = 16384 };
	ck_assert_int_eq(ucm_completions_new(&queue), 0);
}

static void teardown(void)
{
	ucm_completions_free(queue);
	lf_cache_close(&cache);
}

static struct ucm_task *make_save(unsigned number, bool tell_copied)
{
	struct ucm_move move = { .id = lf_id(number) };
	struct ucm_request request = { .blocks = &move,
				       .num_blocks = 1,
				       .completions = queue,
				       .tell_copied = tell_copied };
	struct ucm_task *task;

	ck_assert_int_eq(ucm_task_new(&request, &group, true, 0, 4096,
				      &task), 0);
	ucm_task_ready(task);
	return task;
}

static struct ucm_task *make(unsigned number)
{
	struct ucm_move move = { .id = lf_id(number) };
	struct ucm_request request = { .blocks = &move,
				       .num_blocks = 1,
				       .num_layers = 1,
				       .arg = &tags[number],
				       .completions = queue };
	struct ucm_task *task;

	ck_assert_int_eq(ucm_task_new(&request, &group, false, 0, 4096,
				      &task), 0);
	ucm_task_ready(task);
	return task;
}

static void finish(struct ucm_task *task)
{
	ucm_task_settle(task, 0, 0);
}

static bool is_readable(void)
{
	struct pollfd one = { .fd = ucm_completions_fd(queue),
			      .events = POLLIN };

	return poll(&one, 1, 0) == 1;
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(tasks_come_out_in_the_order_of_their_ends)
{
	struct ucm_task *a = make(0), *b = make(1), *c = make(2), *got[3];

	ck_assert_uint_eq(ucm_completions_take(queue, got, 3, 0), 0);
	ck_assert(!is_readable());
	finish(b);
	ck_assert(is_readable());
	finish(a);
	finish(c);
	ck_assert_uint_eq(ucm_completions_take(queue, got, 2, -1), 2);
	ck_assert(got[0] == b && got[1] == a);
	ck_assert(ucm_task_arg(got[0]) == &tags[1]);
	ck_assert(is_readable());
	ck_assert_uint_eq(ucm_completions_take(queue, got, 3, -1), 1);
	ck_assert(got[0] == c && ucm_task_done(c));
	ck_assert(!is_readable());
	ck_assert_uint_eq(ucm_completions_take(queue, got, 0, -1), 0);
	ucm_task_free(a);
	ucm_task_free(b);
	ucm_task_free(c);
}

/* First, in the middle, last: those that are left are linked still. */
UNIT_TEST(a_freed_task_leaves, .rows = 4)
{
	struct ucm_task *tasks[4], *got[5];
	unsigned num = 0;

	for (unsigned i = 0; i < 3; i++) {
		tasks[i] = make(i);
		finish(tasks[i]);
	}
	if (_i < 3)
		ucm_task_free(tasks[_i]);
	tasks[3] = make(3);
	finish(tasks[3]);
	num = (unsigned)ucm_completions_take(queue, got, 5, 0);
	ck_assert_uint_eq(num, _i < 3 ? 3 : 4);
	for (unsigned i = 0, at = 0; i < 4; i++)
		ck_assert((int)i == _i || got[at++] == tasks[i]);
	ck_assert(!is_readable());
	for (unsigned i = 0; i < num; i++)
		ucm_task_free(got[i]);
}

UNIT_TEST(the_last_one_that_is_freed_leaves_nothing_to_read)
{
	struct ucm_task *task = make(0), *got[1];

	finish(task);
	ck_assert(is_readable());
	ucm_task_free(task);
	ck_assert(!is_readable());
	ck_assert_uint_eq(ucm_completions_take(queue, got, 1, 0), 0);
}

UNIT_TEST(a_wait_ends_after_its_time)
{
	struct ucm_task *got[1];
	int64_t before = ucm_monotonic_ms();

	ck_assert_uint_eq(ucm_completions_take(queue, got, 1, 20), 0);
	ck_assert_int_ge(ucm_monotonic_ms() - before, 20);
}

static void *finish_all(void *arg)
{
	struct ucm_task **tasks = arg;

	for (unsigned i = 0; i < NUM; i += 2)
		finish(tasks[i]);
	return NULL;
}

/* Each is taken once, whoever finishes it, and may be freed at once. */
UNIT_TEST(threads_finish_while_another_takes)
{
	struct ucm_task *tasks[NUM], *got[NUM];
	unsigned seen[NUM] = { 0 };
	pthread_t threads[2];

	for (unsigned i = 0; i < NUM; i++)
		tasks[i] = make(i);
	for (unsigned i = 0; i < 2; i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, finish_all,
						tasks + i), 0);
	for (size_t num = 0; num < NUM;) {
		size_t more = ucm_completions_take(queue, got, 5, -1);

		ck_assert_uint_gt(more, 0);
		for (size_t i = 0; i < more; i++) {
			seen[(int *)ucm_task_arg(got[i]) - tags]++;
			ucm_task_free(got[i]);
		}
		num += more;
	}
	for (unsigned i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	for (unsigned i = 0; i < NUM; i++)
		ck_assert_uint_eq(seen[i], 1);
}

UNIT_TEST(free_pages_are_told_before_the_end)
{
	struct ucm_task *task = make_save(0, true), *got[2];

	ucm_task_copied(task);
	ck_assert(is_readable());
	ck_assert_uint_eq(ucm_completions_take(queue, got, 2, 0), 1);
	ck_assert(got[0] == task && !ucm_task_done(task));
	ck_assert(!is_readable());
	finish(task);
	ck_assert_uint_eq(ucm_completions_take(queue, got, 2, 0), 1);
	ck_assert(got[0] == task && ucm_task_done(task));
	ucm_task_free(task);
}

UNIT_TEST(free_pages_and_the_end_are_told_as_one_where_nobody_took_the_first)
{
	struct ucm_task *a = make_save(0, true), *b = make_save(1, true);
	struct ucm_task *got[4];

	ucm_task_copied(a);
	ucm_task_copied(b);
	finish(a);
	ck_assert_uint_eq(ucm_completions_take(queue, got, 4, 0), 2);
	ck_assert(got[0] == a && got[1] == b);
	ck_assert_uint_eq(ucm_completions_take(queue, got, 4, 0), 0);
	finish(b);
	ucm_task_free(a);
	ucm_task_free(b);
	ck_assert(!is_readable());
}

UNIT_TEST(who_does_not_ask_is_told_the_end_alone)
{
	struct ucm_task *task = make_save(0, false), *got[1];

	ucm_task_copied(task);
	ck_assert(!is_readable());
	finish(task);
	ck_assert_uint_eq(ucm_completions_take(queue, got, 1, 0), 1);
	ucm_task_free(task);
}
