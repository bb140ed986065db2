/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_task.c - what a task counts, and who is told. The loader's threads are
 * played by the test.
 */
#include <config.h>

#include "gpu/load/task/task.h"

#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/clock.h"
#include "tests/unit/load_fixture.h"

#define NUM 3

static struct lf_cache cache;
static struct ucm_group group;

static void setup(void)
{
	lf_cache_open(&cache, &lf_geometry, NUM);
	group = (struct ucm_group){ .layout = cache.layout,
				    .layer_bytes = 4096,
				    .payload_bytes = 16384,
				    .data_offset = 4096,
				    .file_size = 20480 };
}

static void teardown(void)
{
	lf_cache_close(&cache);
}

/* Cuts of one layer each: [1, 4). */
static struct ucm_task *make(bool is_save, const struct ucm_request *options)
{
	struct ucm_move moves[NUM] = { 0 };
	struct ucm_request request = { 0 };
	struct ucm_task *task;

	if (options)
		request = *options;
	request.first_layer = 1;
	request.blocks = moves;
	request.num_blocks = NUM;
	for (unsigned i = 0; i < NUM; i++)
		moves[i] = (struct ucm_move){ .id = lf_id(i), .page = i };
	ck_assert_int_eq(ucm_task_new(&request, &group, is_save, 0, 4096,
				      &task),
			 0);
	ucm_task_ready(task);
	return task;
}

static void settle_all(struct ucm_task *task)
{
	for (uint32_t cut = 0; cut < task->num_cuts; cut++) {
		for (uint32_t block = 0; block < NUM; block++)
			ucm_task_settle(task, block, cut);
	}
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(a_task_is_what_was_asked_for)
{
	uint64_t addresses[NUM * 6] = { 0 };
	struct ucm_request request = { .addresses = addresses,
				       .deadline_ms = 1000 };
	struct ucm_task *task;
	int64_t before = ucm_monotonic_ns();

	for (unsigned i = 0; i < NUM_ROWS(addresses); i++)
		addresses[i] = i;
	task = make(false, &request);
	ck_assert_uint_eq(task->num_cuts, 3);
	ck_assert_uint_eq(task->cuts[0], 1);
	ck_assert_uint_eq(task->cuts[3], 4);
	/* K and V of 3 layers */
	ck_assert_uint_eq(*ucm_task_addresses(task, 2, 1), 12);
	ck_assert_uint_eq(*ucm_task_addresses(task, 1, 2), 8);
	ck_assert_uint_eq(task->terms.addresses[17], 17);
	ck_assert(task->terms.deadline_ns >= before + 1000000000);
	ck_assert_int_eq(ucm_task_outcomes(task)[2].err, -EINPROGRESS);
	ck_assert(!ucm_task_done(task));
	settle_all(task);
	ck_assert(ucm_task_done(task));
	ucm_task_free(task);
	task = make(true, NULL);
	ck_assert_uint_eq(task->num_cuts, 1); /* saves are not cut */
	settle_all(task);
	ucm_task_free(task);
}

UNIT_TEST(the_first_cause_of_a_failure_stays)
{
	struct ucm_task *task = make(false, NULL);
	const struct ucm_outcome plane = { .err = -EBADMSG,
					   .fault = UCM_FAULT_PLANE,
					   .plane = 5 };
	const struct ucm_outcome later = { .err = -ECANCELED };
	const struct ucm_outcome *outcomes = ucm_task_outcomes(task);

	ucm_task_decide(task, 1, &plane);
	ucm_task_decide(task, 1, &later);
	ck_assert(ucm_task_block_decided(task, 1));
	ck_assert(!ucm_task_block_decided(task, 0));
	settle_all(task);
	ck_assert_int_eq(outcomes[0].err, 0);
	ck_assert_int_eq(outcomes[1].err, -EBADMSG);
	ck_assert_uint_eq(outcomes[1].plane, 5);
	ck_assert_uint_eq(ucm_task_num_failed(task), 1);
	ck_assert_int_eq(ucm_task_wait(task, 0), -EIO);
	ucm_task_free(task);
}

UNIT_TEST(layers_are_waited_for_one_by_one)
{
	struct ucm_task *task = make(false, NULL);

	ck_assert_int_eq(ucm_task_wait_layer(task, 0, 0), -EINVAL);
	ck_assert_int_eq(ucm_task_wait_layer(task, 4, 0), -EINVAL);
	ck_assert_int_eq(ucm_task_wait_copied(task, 0), -EINVAL);
	for (uint32_t cut = 0; cut < 3; cut++) {
		for (uint32_t block = 0; block < NUM; block++) {
			ck_assert_int_eq(ucm_task_wait_layer(task, cut + 1, 0),
					 -ETIMEDOUT);
			ucm_task_settle(task, block, cut);
		}
		ck_assert_int_eq(ucm_task_wait_layer(task, cut + 1, -1), 0);
		ck_assert_int_eq(ucm_task_wait(task, 0),
				 cut == 2 ? 0 : -ETIMEDOUT);
	}
	ucm_task_free(task);
}

UNIT_TEST(pages_are_waited_for_when_saving)
{
	struct ucm_task *task = make(true, NULL);

	ck_assert_int_eq(ucm_task_wait_layer(task, 1, 0), -EINVAL);
	for (unsigned i = 0; i < NUM; i++) {
		ck_assert_int_eq(ucm_task_wait_copied(task, 1), -ETIMEDOUT);
		ucm_task_copied(task);
	}
	ck_assert_int_eq(ucm_task_wait_copied(task, 0), 0);
	ck_assert_int_eq(ucm_task_wait(task, 0), -ETIMEDOUT);
	settle_all(task);
	ucm_task_free(task);
}

UNIT_TEST(a_wait_takes_as_long_as_it_was_told)
{
	struct ucm_task *task = make(false, NULL);
	int64_t before = ucm_monotonic_ns(), took;

	ck_assert_int_eq(ucm_task_wait(task, 30), -ETIMEDOUT);
	took = ucm_monotonic_ns() - before;
	ck_assert_int_ge(took, 30 * 1000000);
	settle_all(task);
	ucm_task_free(task);
}

struct told {
	unsigned times;
	bool done, final;
};

static void on_done(void *arg, struct ucm_task *task)
{
	struct told *told = arg;

	told->times++;
	told->done = ucm_task_done(task);
	told->final = ucm_task_outcomes(task)[NUM - 1].err == 0;
}

UNIT_TEST(the_end_is_told_once)
{
	struct told told = { 0 };
	struct ucm_request request = {
		.on_done = on_done,
		.arg = &told,
		.eventfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
	};
	struct ucm_task *task = make(false, &request);
	eventfd_t count;

	ck_assert_int_ne(eventfd_read(request.eventfd, &count), 0);
	settle_all(task);
	ck_assert_uint_eq(told.times, 1);
	ck_assert(told.final);
	ck_assert(!told.done); /* a wait ends behind it, not before */
	ck_assert_int_eq(eventfd_read(request.eventfd, &count), 0);
	ck_assert_uint_eq(count, 1);
	ucm_task_free(task);
	close(request.eventfd);
}

UNIT_TEST(a_full_eventfd_is_no_obstacle)
{
	struct ucm_request request = {
		.eventfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
	};
	struct ucm_task *task = make(false, &request);

	ck_assert_int_eq(eventfd_write(request.eventfd, UINT64_MAX - 1), 0);
	settle_all(task);
	ck_assert(ucm_task_done(task));
	ucm_task_free(task);
	close(request.eventfd);
}

UNIT_TEST(nothing_to_do_is_done)
{
	struct told told = { .final = true };
	struct ucm_request request = { .first_layer = 0 };
	struct ucm_task *task;

	ck_assert_int_eq(ucm_task_new(&request, &group, false, 0, 4096,
				      &task),
			 0);
	ck_assert(!ucm_task_done(task));
	ucm_task_ready(task);
	ck_assert(ucm_task_done(task));
	ck_assert_int_eq(ucm_task_wait(task, -1), 0);
	ck_assert_int_eq(ucm_task_wait_layer(task, 3, -1), 0);
	ucm_task_free(task);
	ucm_task_free(NULL);
	ck_assert(told.final);
}

/* ---- two threads ---- */

static void *play_loader(void *arg)
{
	struct ucm_task *task = arg;

	settle_all(task);
	ucm_task_put(task);
	return NULL;
}

/* Whoever waits is woken, and may free the task at once. */
UNIT_TEST(no_wake_is_lost)
{
	for (unsigned i = 0; i < 2000; i++) {
		struct ucm_request request = {
			.eventfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
		};
		struct ucm_task *task = make(false, &request);
		pthread_t thread;
		eventfd_t count;

		ucm_task_get(task);
		ck_assert_int_eq(pthread_create(&thread, NULL, play_loader,
						task),
				 0);
		if (i % 3 == 0) {
			must(!ucm_task_wait_layer(task, 1 + i % 2, 20000));
			must(!ucm_task_wait(task, 20000));
		} else if (i % 3 == 1) {
			must(!ucm_task_wait(task, 20000));
		} else {
			while (!ucm_task_done(task))
				;
		}
		/* what is done has been told: the number may be reused */
		must(!eventfd_read(request.eventfd, &count));
		close(request.eventfd);
		ucm_task_free(task);
		pthread_join(thread, NULL);
	}
}

static void *wait_for_a_part(void *arg)
{
	struct ucm_task *task = arg;

	must(!(task->terms.is_save ? ucm_task_wait_copied(task, -1)
			     : ucm_task_wait_layer(task, 1, -1)));
	return NULL;
}

UNIT_TEST(a_part_is_told_before_all_is_done, .rows = 2)
{
	struct ucm_task *task = make(_i, NULL);
	pthread_t thread;

	ck_assert_int_eq(pthread_create(&thread, NULL, wait_for_a_part, task),
			 0);
	while (!atomic_load(&task->waiters))
		;
	for (uint32_t block = 0; block < NUM; block++) {
		if (task->terms.is_save)
			ucm_task_copied(task);
		else
			ucm_task_settle(task, block, 0);
	}
	pthread_join(thread, NULL);
	ck_assert(!ucm_task_done(task));
	for (uint32_t cut = task->terms.is_save ? 0 : 1; cut < task->num_cuts; cut++) {
		for (uint32_t block = 0; block < NUM; block++)
			ucm_task_settle(task, block, cut);
	}
	ucm_task_free(task);
}

static void *play_canceller(void *arg)
{
	struct ucm_task *task = arg;

	while (!atomic_load(&task->cancelled))
		;
	return play_loader(task);
}

UNIT_TEST(free_cancels_and_waits)
{
	struct ucm_task *task = make(false, NULL);
	pthread_t thread;

	ucm_task_get(task);
	ck_assert_int_eq(pthread_create(&thread, NULL, play_canceller, task),
			 0);
	ucm_task_free(task);
	pthread_join(thread, NULL);
}

static const struct {
	struct ucm_outcome outcome;
	const char *text;
} texts[] = {
	{ { .err = 0 }, "ok" },
	{ { .skipped = 1 }, "was there already" },
	{ { .err = -EINPROGRESS }, "not done yet" },
	{ { .err = -ENOENT }, "absent" },
	{ { .err = -EIO }, "Input/output error" },
	{ { .err = -ETIMEDOUT }, "Connection timed out" },
	{ { .err = -EBADMSG, .fault = UCM_FAULT_PLANE, .plane = 5 },
	  "layer 2 V: " },
	{ { .err = -EBADMSG, .fault = UCM_FAULT_PLANE, .plane = 4 },
	  "layer 2 K: " },
	{ { .err = -EBADMSG, .fault = UCM_FAULT_NAME }, "" },
};

UNIT_TEST(outcomes_have_words, .rows = NUM_ROWS(texts))
{
	char text[96];

	ucm_outcome_text(&texts[_i].outcome, text, sizeof(text));
	ck_assert_str_ne(text, "");
	ck_assert_msg(!strncmp(text, texts[_i].text, strlen(texts[_i].text)),
		      "%s", text);
}
