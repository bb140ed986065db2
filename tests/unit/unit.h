/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unit.h - what every unit test program needs, and nothing of the store.
 *
 * One suite a program; results go to the TAP driver through check's own
 * environment variables (tests/Makefile.inc).
 */
#ifndef UCM_TESTS_UNIT_H
#define UCM_TESTS_UNIT_H

#include <check.h>
#include <stdbool.h>
#include <stdlib.h>

#define NUM_ROWS(table) (sizeof(table) / sizeof((table)[0]))

/* ck_assert writes to a pipe each time; this is for loops of thousands. */
#define must(condition)                                                       \
	do {                                                                  \
		if (!(condition))                                             \
			ck_abort_msg("%s", #condition);                       \
	} while (0)

static inline int unit_run(Suite *suite)
{
	SRunner *runner = srunner_create(suite);
	int failed;

	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
