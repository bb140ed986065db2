/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_shards_handles.c - calls that are under way: what their handles mean,
 * and who is told of their end.
 */
#include <config.h>

#include "tests/unit/shards/shards_fixture.h"

#include <ucm/shards.h>

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

static void stick(void)
{
	sem_init(&held, 0, 0);
	sem_init(&go, 0, 0);
	fault = STUCK;
}

static void let_go(void)
{
	fault = NO_FAULT;
	sem_post(&go);
}

/* ---- handles ---- */

static uint64_t start_stuck(unsigned n, uint8_t *bytes)
{
	struct ucm_span span = { (uintptr_t)bytes, LAYER };
	struct ucm_id ids[2] = { lf_id(n), lf_id(n) };
	uint32_t shards[] = { 0, 1 };
	struct ucm_span spans[] = { span, span };
	uint64_t handle;

	stick();
	ck_assert_int_eq(ucm_shards_dump_data(store, ids, shards, 2, spans, 2,
					      &handle, &error),
			 0);
	sem_wait(&held);
	return handle;
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown, .timeout = 120);

UNIT_TEST(a_wait_that_times_out_loses_nothing)
{
	uint8_t *bytes = filled(1);
	struct ucm_outcome outcomes[2] = { { .err = 99 }, { .err = 99 } };
	uint64_t handle = start_stuck(1, bytes);

	for (unsigned i = 0; i < 3; i++) {
		ck_assert_int_eq(
			ucm_shards_wait(store, handle, (int)i, outcomes, 2),
			-ETIMEDOUT);
		ck_assert_int_eq(outcomes[0].err, 99);
	}
	ck_assert_int_eq(ucm_shards_check(store, handle, outcomes, 2), 0);
	ck_assert_int_eq(outcomes[0].err, -EINPROGRESS);
	let_go();
	ck_assert_int_eq(ucm_shards_wait(store, handle, -1, outcomes, 2), 0);
	ck_assert_int_eq(outcomes[0].err, 0);
	ck_assert_int_eq(outcomes[1].err, 0);
	free(bytes);
}

UNIT_TEST(a_handle_means_one_call_and_ends_with_it)
{
	uint8_t *bytes = filled(1);
	struct ucm_outcome outcome;
	uint64_t handle, other;

	lf_plant("$/tier", &lf_geometry, 1);
	for (unsigned i = 0; i < 64; i++) {
		uint64_t wrong[] = { 0, 1, UINT64_MAX, (uint64_t)i << 32 };

		for (unsigned j = 0; j < NUM_ROWS(wrong); j++)
			ck_assert_int_eq(
				ucm_shards_wait(store, wrong[j], -1, NULL, 0),
				-ENOENT);
	}
	handle = start_shard(false, 1, 0, bytes);
	ck_assert_int_eq(ucm_shards_wait(store, handle, -1, &outcome, 2),
			 -EINVAL);
	while (!ucm_shards_check(store, handle, &outcome, 1))
		sched_yield();
	ck_assert_int_eq(ucm_shards_check(store, handle, &outcome, 3), -EINVAL);
	ck_assert_int_eq(ucm_shards_check(store, handle, NULL, 0), 1);
	ck_assert_int_eq(outcome.err, 0);
	ck_assert_int_eq(wait_one(handle, &outcome), 0);
	ck_assert_int_eq(wait_one(handle, &outcome), -ENOENT);
	ck_assert_int_eq(ucm_shards_check(store, handle, &outcome, 1), -ENOENT);
	ck_assert_int_eq(ucm_shards_cancel(store, handle), -ENOENT);
	other = start_shard(false, 1, 1, bytes);
	ck_assert_uint_ne(other, handle);
	ck_assert_int_eq(wait_one(handle, &outcome), -ENOENT);
	ck_assert_int_eq(wait_one(other, &outcome), 0);
	free(bytes);
}

UNIT_TEST(many_handles_are_open_at_once)
{
	uint8_t *bytes = filled(1);
	uint64_t handles[500];

	lf_plant("$/tier", &lf_geometry, 1);
	for (unsigned i = 0; i < NUM_ROWS(handles); i++)
		handles[i] = start_shard(false, 1, i % LAYERS, bytes);
	for (unsigned i = NUM_ROWS(handles); i--;)
		ck_assert_int_eq(wait_one(handles[i], NULL), 0);
	for (unsigned i = 0; i < NUM_ROWS(handles); i++)
		ck_assert_int_eq(wait_one(handles[i], NULL), -ENOENT);
	ck_assert(is_block(bytes, 1, 0, BLOCK));
	free(bytes);
}

static void *wait_for_it(void *arg)
{
	return (void *)(intptr_t)ucm_shards_wait(store, *(uint64_t *)arg, -1,
						 NULL, 0);
}

UNIT_TEST(whoever_waits_is_told)
{
	uint8_t *bytes = filled(1);
	uint64_t handle = start_stuck(1, bytes);
	pthread_t threads[4];
	unsigned told = 0;

	for (unsigned i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, wait_for_it, &handle);
	let_go();
	for (unsigned i = 0; i < 4; i++) {
		void *result;

		pthread_join(threads[i], &result);
		/* -ENOENT: it came when the others had been told */
		ck_assert((intptr_t)result == 0 || (intptr_t)result == -ENOENT);
		told += !result;
	}
	ck_assert_uint_ge(told, 1);
	ck_assert_int_eq(ucm_shards_wait(store, handle, 0, NULL, 0), -ENOENT);
	free(bytes);
}

UNIT_TEST(commit_before_the_dumps_are_done_is_refused)
{
	uint8_t *bytes = filled(1);
	uint64_t handle;

	ck_assert_int_eq(create(1), 0);
	stick();
	handle = start_at(true, 1, 0, BLOCK, bytes);
	sem_wait(&held);
	ck_assert_int_eq(commit(1, true), -EBUSY);
	ck_assert_int_eq(commit(1, false), 0);
	ck_assert_int_eq(create(1), -EBUSY); /* still being written */
	let_go();
	ck_assert_int_eq(wait_one(handle, NULL), 0);
	ck_assert(!there(1));
	ck_assert_int_eq(create(1), 0);
	free(bytes);
}

static uint64_t told(int fd)
{
	uint64_t num = 0;

	return read(fd, &num, sizeof(num)) == sizeof(num) ? num : 0;
}

UNIT_TEST(an_eventfd_is_told_of_the_end)
{
	uint8_t *bytes = filled(1);
	int first = eventfd(0, EFD_NONBLOCK), second = eventfd(0, 0);
	uint64_t handle = start_stuck(1, bytes);

	ck_assert_int_eq(ucm_shards_notify(store, handle, first), 0);
	ck_assert_int_eq(ucm_shards_notify(store, handle, second), 0);
	ck_assert_uint_eq(told(first), 0);
	let_go();
	ck_assert_uint_eq(told(second), 1); /* waits for it */
	ck_assert_uint_eq(told(first), 0);
	/* also of one that was before */
	ck_assert_int_eq(ucm_shards_notify(store, handle, first), 0);
	ck_assert_uint_eq(told(first), 1);
	ck_assert_int_eq(ucm_shards_wait(store, handle, 0, NULL, 0), 0);
	ck_assert_int_eq(ucm_shards_notify(store, handle, first), -ENOENT);
	close(first);
	close(second);
	free(bytes);
}

UNIT_TEST(a_cancelled_dump_drops_the_block)
{
	uint8_t *bytes = filled(1);
	struct ucm_outcome outcomes[2];
	uint64_t handle = start_stuck(1, bytes);

	ck_assert_int_eq(ucm_shards_cancel(store, handle), 0);
	let_go();
	ck_assert_int_eq(ucm_shards_wait(store, handle, 20000, outcomes, 2),
			 -EIO);
	ck_assert_int_eq(outcomes[0].err, -ECANCELED);
	ck_assert(!there(1));
	for (uint32_t i = 0; i < LAYERS; i++)
		ck_assert_int_eq(dump_shard(1, i), 0);
	check_loads(1);
	free(bytes);
}

UNIT_TEST(closing_ends_what_is_under_way)
{
	uint8_t *bytes = filled(0);

	lf_plant("$/tier", &lf_geometry, 0);
	ck_assert_int_eq(create(1), 0);
	ck_assert_int_eq(dump_at(1, 0, BLOCK), 0);
	ck_assert_int_eq(dump_shard(2, 0), 0);
	for (unsigned i = 0; i < 20; i++)
		start_shard(i & 1, i & 1 ? 3 : 0, i % LAYERS, bytes);
	ucm_shards_close(store);
	open_store(&by_layer);
	ck_assert(!there(1));
	ck_assert(!there(2));
	ucm_shards_close(store);
	store = NULL;
	ucm_loader_close(loader);
	loader = NULL;
	ck_assert_uint_eq(temporaries(), 0);
	free(bytes);
}
