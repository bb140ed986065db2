/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unit.h - what every unit test program needs, and nothing of the store.
 *
 * A test is what follows UNIT_TEST: it registers itself, and main() (unit.c)
 * runs those of the program in the order of their lines. Results go to the TAP
 * driver through check's own environment variables (tests/Makefile.inc).
 */
#ifndef UCM_TESTS_UNIT_H
#define UCM_TESTS_UNIT_H

#include <check.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>

#define NUM_ROWS(table) (sizeof(table) / sizeof((table)[0]))

/* ck_assert writes to a pipe each time; this is for loops of thousands. */
#define must(condition)                                                       \
	do {                                                                  \
		if (!(condition))                                             \
			ck_abort_msg("%s", #condition);                       \
	} while (0)

/*
 * UNIT_TEST(name) { ... }, and in the brackets, where it is wanted:
 *
 *   .rows = NUM_ROWS(table)   run once for each row; _i is its number
 *   .signal = SIGABRT         passes only if it ends by that signal
 */
#define UNIT_TEST(name_, ...)                                                 \
	static void name_(int _i);                                            \
	UNIT_ITEM(name_, .test = { #name_, name_, __FILE__, __LINE__ },       \
		  ##__VA_ARGS__)                                              \
	static void name_(int _i CK_ATTRIBUTE_UNUSED)

/*
 * UNIT_FIXTURE(...): what the tests below this line have around them, up to the
 * next one. All are optional:
 *
 *   .setup, .teardown    run before and after each test
 *   .timeout             seconds, in place of CK_DEFAULT_TIMEOUT
 *   .only_if             these tests are left out where it returns false; it
 *                        is asked once, and says why with unit_skip()
 */
#define UNIT_FIXTURE(...)                                                     \
	UNIT_ITEM_AT(__LINE__, ##__VA_ARGS__)                                 \
	struct unit_item /* so that a semicolon follows */

/*
 * UNIT_PROGRAM(.begin = f, .end = g): before the first test of the program, and
 * after its last one, also if that crashed. begin may exit(), and then no test
 * is run. A fixture's file may have one too, and their order does not matter.
 */
#define UNIT_PROGRAM(...) UNIT_FIXTURE(__VA_ARGS__)

/*
 * UNIT_PROGRAM(.variants = table): all tests are run once for each entry of the
 * table, which a name of NULL ends. Its choose() runs before a fixture's setup,
 * and before only_if is asked.
 */
struct unit_variant {
	const char *name;
	void (*choose)(void);
};

/*
 * What cannot be tried here: the log gets a line that begins with "SKIP: ", and
 * the reason. Returns false, for .only_if. A program of which no test is left is
 * skipped as a whole.
 */
bool unit_skip(const char *why, ...) __attribute__((format(printf, 1, 2)));

/* What all random input of a run follows from: another number each time, unless
 * the environment has it, as UCMFS_TEST_SEED. The program's log shows it. */
uint64_t unit_seed(void);

/* Does this thread of the process sleep? */
bool unit_sleeps(pid_t tid);

/* fork(), beside other threads too: with sanitizers it waits until they sleep,
 * ten seconds at most. */
pid_t unit_fork(void);

/* A line of the program: a test, a fixture or what is around all. */
struct unit_item {
	TTest test;
	size_t rows;
	int signal;

	void (*setup)(void), (*teardown)(void);
	double timeout;
	bool (*only_if)(void);

	void (*begin)(void), (*end)(void);
	const struct unit_variant *variants;

	int line;
	struct unit_item *next;
};

void unit_add(struct unit_item *item);

#define UNIT_ITEM_AT(line, ...) UNIT_ITEM_OF(line, ##__VA_ARGS__)
#define UNIT_ITEM_OF(line, ...) UNIT_ITEM(item_##line, ##__VA_ARGS__)
#define UNIT_ITEM(id, ...)                                                    \
	static void __attribute__((constructor)) id##_add(void)               \
	{                                                                     \
		static struct unit_item id##_item = { .line = __LINE__,       \
						      ##__VA_ARGS__ };        \
		unit_add(&id##_item);                                         \
	}

#endif
