/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unit.c - main() of every unit test program: its tests, in the order of their
 * lines, as a suite of check.
 *
 * Each UNIT_TEST adds itself before main() begins, so none can be forgotten.
 */
#include <config.h>

#include "tests/unit/unit.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

static struct unit_item *items;  /* tests and fixtures, by line */
static struct unit_item *around; /* in any order */
static unsigned num_tests;       /* that are not left out */
static char skipped[256];        /* why some are */
static uint64_t seed;

static void unit_insert(struct unit_item **at, struct unit_item *item)
{
	item->next = *at;
	*at = item;
}

void unit_add(struct unit_item *item)
{
	struct unit_item **at = &items;

	if (item->begin || item->end || item->variants) {
		unit_insert(&around, item);
		return;
	}
	while (*at && (*at)->line < item->line)
		at = &(*at)->next;
	unit_insert(at, item);
}

bool unit_skip(const char *why, ...)
{
	va_list args;

	va_start(args, why);
	vsnprintf(skipped, sizeof(skipped), why, args);
	va_end(args);
	fprintf(stderr, "SKIP: %s\n", skipped);
	return false;
}

/* Before any test: each runs in a process of its own. */
static void draw_seed(void)
{
	const char *text = getenv("UCMFS_TEST_SEED");
	uint32_t drawn = 1;

	if (!text && getrandom(&drawn, sizeof(drawn), 0) < 0)
		perror("getrandom");
	seed = text ? strtoull(text, NULL, 0) : drawn;
	printf("# UCMFS_TEST_SEED=%" PRIu64 "\n", seed);
}

uint64_t unit_seed(void)
{
	return seed;
}

/* ---- processes ---- */

bool unit_sleeps(pid_t tid)
{
	char path[64], line[256] = "";
	char *state;
	FILE *in;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)tid);
	in = fopen(path, "re");
	if (!in)
		return false;
	if (!fgets(line, sizeof(line), in))
		line[0] = '\0';
	fclose(in);
	state = strrchr(line, ')');
	return state && !strncmp(state, ") S", 3);
}

#ifdef __SANITIZE_ADDRESS__
static bool others_sleep(void)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *task;
	bool all = true;

	while (all && (task = readdir(tasks))) {
		pid_t tid = atoi(task->d_name);

		all = !tid || tid == gettid() || unit_sleeps(tid);
	}
	closedir(tasks);
	return all;
}

/*
 * The sanitizer's allocator has locks, and does not take them for a fork as
 * glibc's does: a child waits for ever for one that another thread had.
 */
static void wait_for_others(void)
{
	static const struct timespec millisecond = { .tv_nsec = 1000000 };

	for (int i = 0; i < 10000 && !others_sleep(); i++)
		nanosleep(&millisecond, NULL);
}
#else
static void wait_for_others(void)
{
}
#endif

pid_t unit_fork(void)
{
	wait_for_others();
	return fork();
}

/* A case of check for the tests below a fixture; NULL if they are left out. */
static TCase *unit_case(Suite *suite, const char *name,
			const struct unit_variant *variant,
			const struct unit_item *fixture)
{
	TCase *tests;

	if (variant)
		variant->choose();
	if (fixture->only_if && !fixture->only_if())
		return NULL;
	tests = tcase_create(name);
	if (variant)
		tcase_add_checked_fixture(tests, variant->choose, NULL);
	if (fixture->setup || fixture->teardown)
		tcase_add_checked_fixture(tests, fixture->setup,
					  fixture->teardown);
	if (fixture->timeout)
		tcase_set_timeout(tests, fixture->timeout);
	suite_add_tcase(suite, tests);
	return tests;
}

static void unit_add_tests(Suite *suite, const char *program,
			   const struct unit_variant *variant)
{
	static const struct unit_item plain;
	static char names[4][64]; /* check keeps them */
	static unsigned turn;
	char *name = names[turn++ % NUM_ROWS(names)];
	TCase *tests = NULL;

	snprintf(name, sizeof(names[0]), "%s%s%s", program,
		 variant ? ", " : "", variant ? variant->name : "");
	if (items && items->test.fn)
		tests = unit_case(suite, name, variant, &plain);
	for (const struct unit_item *item = items; item; item = item->next) {
		if (!item->test.fn) {
			tests = unit_case(suite, name, variant, item);
		} else if (tests) {
			tcase_add_loop_test_raise_signal(
				tests, &item->test, item->signal, 0,
				item->rows ? (int)item->rows : 1);
			num_tests++;
		}
	}
}

static Suite *unit_suite(const char *name)
{
	Suite *suite = suite_create(name);
	const struct unit_variant *variant = NULL;

	for (const struct unit_item *item = around; item; item = item->next) {
		if (item->variants)
			variant = item->variants;
	}
	if (!variant)
		unit_add_tests(suite, name, NULL);
	for (; variant && variant->name; variant++)
		unit_add_tests(suite, name, variant);
	return suite;
}

/* "digest" of tests/unit/hashing/test_digest, also where libtool has wrapped it. */
static const char *unit_name(void)
{
	const char *name = strstr(program_invocation_short_name, "test_");

	return name ? name + strlen("test_") : program_invocation_short_name;
}

static int unit_run(void)
{
	SRunner *runner = srunner_create(unit_suite(unit_name()));
	int failed;

	if (!num_tests)
		printf("1..0 # SKIP %s\n", skipped);
	else
		srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

int main(void)
{
	int status;

	/* what tests say on standard error comes between lines */
	setvbuf(stdout, NULL, _IOLBF, 0);
	draw_seed();
	for (struct unit_item *item = around; item; item = item->next) {
		if (item->begin)
			item->begin();
	}
	status = unit_run();
	for (struct unit_item *item = around; item; item = item->next) {
		if (item->end)
			item->end();
	}
	return status;
}
