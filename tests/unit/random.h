/* SPDX-License-Identifier: Apache-2.0 */
/*
 * random.h - random cases that can be repeated.
 *
 * Case number i of a run depends on unit_seed() and i alone; messages name
 * both.
 */
#ifndef UCM_TESTS_RANDOM_H
#define UCM_TESTS_RANDOM_H

#include <inttypes.h>
#include <stdint.h>

#include "tests/unit/unit.h"

/* splitmix64 */
static inline uint64_t random_next(uint64_t *state)
{
	uint64_t x = *state += 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static inline int64_t random_between(uint64_t *state, int64_t min, int64_t max)
{
	return min + (int64_t)(random_next(state) %
			       (uint64_t)(max - min + 1));
}

static inline uint64_t random_case(unsigned number)
{
	uint64_t state = unit_seed();

	return random_next(&state) + number;
}

#define must_in_case(condition, number, what)                                 \
	do {                                                                  \
		if (!(condition))                                             \
			ck_abort_msg("case %u of UCMFS_TEST_SEED=%" PRIu64    \
				     ": %s", (number), unit_seed(), (what));  \
	} while (0)

#endif
