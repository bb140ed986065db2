/* SPDX-License-Identifier: Apache-2.0 */
/* test_gcra.c - the arithmetic of a clock that keeps a rate. */
#include <config.h>

#include "gpu/load/budget/gcra.h"

#include "tests/unit/random.h"

#define MS INT64_C(1000000)
#define S (1000 * MS)
#define NOW (100 * S)

UNIT_FIXTURE();

static const struct {
	uint64_t bytes, rate;
	int64_t ns;
} costs[] = {
	{ 1000, 1000, S },
	{ 0, 1000, 1 },
	{ 1, UINT64_C(1) << 44, 1 },                /* no piece is for nothing */
	{ 3, 2 * (uint64_t)S, 1 },                  /* in whole ns */
	{ 1 << 20, 200 << 20, 5 * MS },
	{ UINT64_MAX, 1, INT64_MAX / 4 },           /* nothing overflows */
	{ UINT64_MAX, UINT64_MAX, S },
};

UNIT_TEST(bytes_cost_time, .rows = NUM_ROWS(costs))
{
	ck_assert_int_eq(ucm_gcra_cost(costs[_i].bytes, costs[_i].rate),
			 costs[_i].ns);
}

static const struct {
	int64_t was_ns, cost_ns, at_ns;
} reserved[] = {
	{ NOW, MS, NOW },
	{ NOW + 3 * MS, MS, NOW + 3 * MS },         /* behind three others */
	{ NOW - MS, MS, NOW - MS },                 /* unused time is used */
	{ NOW - 50 * MS, MS, NOW - 50 * MS },
	{ NOW - 51 * MS, MS, NOW - 50 * MS },       /* but not all of it */
	{ 0, MS, NOW - 50 * MS },
	{ NOW, INT64_MAX / 4, NOW },
	/* what no loader has left there */
	{ NOW + S, MS, NOW + S },
	{ NOW + S + 1, MS, NOW },
	{ INT64_MAX, MS, NOW },
	{ INT64_MIN, MS, NOW - 50 * MS },
	{ -1, MS, NOW - 50 * MS },
};

UNIT_TEST(a_reservation_begins_where_the_last_one_ends,
	  .rows = NUM_ROWS(reserved))
{
	_Atomic int64_t tat = reserved[_i].was_ns;

	ck_assert_int_eq(ucm_gcra_reserve(&tat, reserved[_i].cost_ns, NOW),
			 reserved[_i].at_ns);
	ck_assert_int_eq(atomic_load(&tat),
			 reserved[_i].at_ns + reserved[_i].cost_ns);
}

/* Whenever and however much is reserved, it is the time that has passed, and a burst;
 * and if somebody always asks, no less. */
UNIT_TEST(a_clock_keeps_its_rate)
{
	for (unsigned number = 0; number < 100; number++) {
		uint64_t random = random_case(number);
		int64_t end = NOW + 10 * S, now = NOW, sum = 0, cost;
		_Atomic int64_t tat = 0;

		while (now < end) {
			cost = (int64_t)random_between(&random, 1, 20 * MS);
			if (atomic_load(&tat) <= now) {
				ucm_gcra_reserve(&tat, cost, now);
				sum += cost;
			} else {
				now += (int64_t)random_between(&random, 1,
							       10 * MS);
			}
		}
		must_in_case(sum <= 10 * S + UCM_GCRA_BURST_NS + 20 * MS,
			     number, "more than the rate");
		must_in_case(sum >= 10 * S - 10 * MS, number,
			     "less than the rate");
	}
}
