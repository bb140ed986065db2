/* SPDX-License-Identifier: Apache-2.0 */
/* require.h - what must hold for every input; else the fuzzer has found one. */
#ifndef UCM_TESTS_FUZZ_REQUIRE_H
#define UCM_TESTS_FUZZ_REQUIRE_H

#include <stdio.h>
#include <stdlib.h>

#define REQUIRE(condition)                                                    \
	do {                                                                  \
		if (!(condition)) {                                           \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__,    \
				#condition);                                  \
			abort();                                              \
		}                                                             \
	} while (0)

#endif
