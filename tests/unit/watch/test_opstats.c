/* SPDX-License-Identifier: Apache-2.0 */
/* test_opstats.c - how long requests take, and how they fail. */
#include <config.h>

#include "fs/watch/opstats.h"

#include <errno.h>
#include <pthread.h>

#include "tests/unit/unit.h"

static struct ucm_opstats *stats;
static struct ucm_op_times times;

static void setup(void)
{
	stats = ucm_opstats_new();
	ck_assert_ptr_nonnull(stats);
}

static void teardown(void)
{
	ucm_opstats_free(stats);
}

/* What lies on a bound belongs to the bucket above it. */
static const struct { uint64_t ns; unsigned bucket; } rows[] = {
	{ 0, 0 }, { 1, 0 }, { 1023, 0 }, { 1024, 1 }, { 2047, 1 }, { 2048, 2 },
	{ 1000000, 10 }, { (UINT64_C(1) << 33) - 1, 23 },
	{ UINT64_C(1) << 33, 24 }, { UINT64_C(1) << 40, 24 },
	{ UINT64_MAX, 24 },
};

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(a_time_falls_into_the_bucket_of_its_power_of_two,
	  .rows = NUM_ROWS(rows))
{
	unsigned bucket = rows[_i].bucket;

	ucm_opstats_add(stats, UCM_OP_OPEN, rows[_i].ns, 0);
	ucm_opstats_times(stats, UCM_OP_OPEN, &times);
	ck_assert_uint_eq(times.buckets[bucket], 1);
	ck_assert_uint_eq(times.count, 1);
	ck_assert_uint_eq(times.sum_ns, rows[_i].ns);
	if (bucket < UCM_OP_BOUNDS)
		ck_assert_uint_lt(rows[_i].ns, ucm_op_bound_ns(bucket));
	if (bucket > 0)
		ck_assert_uint_ge(rows[_i].ns, ucm_op_bound_ns(bucket - 1));
	ucm_opstats_times(stats, UCM_OP_LOOKUP, &times);
	ck_assert_uint_eq(times.count, 0);
}

UNIT_TEST(errors_are_counted_by_operation_and_errno)
{
	ucm_opstats_add(stats, UCM_OP_OPEN, 1, 0);
	ucm_opstats_add(stats, UCM_OP_OPEN, 1, -EIO);
	ucm_opstats_add(stats, UCM_OP_OPEN, 1, -EIO);
	ucm_opstats_add(stats, UCM_OP_OPEN, 1, -4095); /* none that we know */
	ck_assert_uint_eq(ucm_opstats_errors(stats, UCM_OP_OPEN, EIO), 2);
	ck_assert_uint_eq(ucm_opstats_errors(stats, UCM_OP_OPEN, 0), 1);
	ck_assert_uint_eq(ucm_opstats_errors(stats, UCM_OP_LOOKUP, EIO), 0);
	ucm_opstats_times(stats, UCM_OP_OPEN, &times);
	ck_assert_uint_eq(times.count, 4);
}

#define THREADS 20 /* more than shards */
#define ROUNDS 10000

static void *count(void *arg)
{
	for (unsigned i = 0; i < ROUNDS; i++)
		ucm_opstats_add(stats, UCM_OP_READ, i, i % 2 ? -ENOENT : 0);
	return arg;
}

UNIT_TEST(threads_lose_nothing)
{
	pthread_t threads[THREADS];

	for (unsigned i = 0; i < THREADS; i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, count, NULL),
				 0);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	ucm_opstats_times(stats, UCM_OP_READ, &times);
	ck_assert_uint_eq(times.count, THREADS * ROUNDS);
	ck_assert_uint_eq(times.sum_ns,
			  (uint64_t)THREADS * ROUNDS * (ROUNDS - 1) / 2);
	ck_assert_uint_eq(ucm_opstats_errors(stats, UCM_OP_READ, ENOENT),
			  THREADS * ROUNDS / 2);
}
