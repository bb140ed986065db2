/* SPDX-License-Identifier: Apache-2.0 */
/*
 * random.h - random cases that can be repeated.
 *
 * Case number i of a run depends on the seed and i alone. The seed is a fixed
 * one, or that in the environment's UCM_TEST_SEED; messages name both.
 */
#ifndef UCM_TESTS_RANDOM_H
#define UCM_TESTS_RANDOM_H

#include <inttypes.h>
#include <stdint.h>
#include <stdlib.h>

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

static inline uint64_t random_seed(void)
{
	const char *text = getenv("UCM_TEST_SEED");

	return text ? strtoull(text, NULL, 0) : 1;
}

static inline uint64_t random_case(unsigned number)
{
	uint64_t state = random_seed();

	return random_next(&state) + number;
}

#define must_in_case(condition, number, what)                                 \
	do {                                                                  \
		if (!(condition))                                             \
			ck_abort_msg("case %u of UCM_TEST_SEED=%" PRIu64      \
				     ": %s", (number), random_seed(),         \
				     (what));                                 \
	} while (0)

#endif
