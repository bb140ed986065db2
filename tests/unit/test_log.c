/* SPDX-License-Identifier: Apache-2.0 */
/* test_log.c - one line per event, to one sink. */
#include <config.h>

#include "common/log.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/unit.h"

static char last_line[2048];
static enum ucm_log_level last_level;
static int num_lines;

static void keep(enum ucm_log_level level, const char *line)
{
	errno = EDOM; /* a sink may fail at what it does */
	snprintf(last_line, sizeof(last_line), "%s", line);
	last_level = level;
	num_lines++;
}

START_TEST(lines_reach_the_sink_with_their_level)
{
	ucm_log_set(keep, UCM_LOG_DEBUG);
	ucm_warning("tier %s: %d", "nvme", 7);
	ck_assert_str_eq(last_line, "tier nvme: 7");
	ck_assert_int_eq(last_level, UCM_LOG_WARNING);
	ck_assert_int_eq(num_lines, 1);
}
END_TEST

START_TEST(lines_above_the_level_are_dropped)
{
	ucm_log_set(keep, UCM_LOG_WARNING);
	ucm_info("no");
	ucm_debug("no");
	ck_assert_int_eq(num_lines, 0);
	ucm_error("yes");
	ucm_warning("yes");
	ck_assert_int_eq(num_lines, 2);
}
END_TEST

START_TEST(errno_is_told_by_percent_m_and_kept)
{
	ucm_log_set(keep, UCM_LOG_INFO);
	errno = ENOSPC;
	ucm_error("commit: %m");
	ck_assert_int_eq(errno, ENOSPC);
	ck_assert_str_eq(last_line, "commit: No space left on device");
}
END_TEST

START_TEST(a_long_line_is_cut_not_overrun)
{
	char name[4097];

	memset(name, 'x', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	ucm_log_set(keep, UCM_LOG_INFO);
	ucm_info("%s", name);
	ck_assert_uint_eq(strlen(last_line), 1023);
}
END_TEST

START_TEST(standard_error_gets_the_program_and_the_level)
{
	static const struct {
		enum ucm_log_level level;
		const char *want;
	} rows[] = {
		{ UCM_LOG_ERROR, "ucmfs: text\n" },
		{ UCM_LOG_WARNING, "ucmfs: warning: text\n" },
		{ UCM_LOG_INFO, "ucmfs: text\n" },
		{ UCM_LOG_DEBUG, "ucmfs: debug: text\n" },
	};

	for (size_t i = 0; i < NUM_ROWS(rows); i++) {
		char text[64] = "";
		FILE *saved = stderr;

		stderr = fmemopen(text, sizeof(text), "w");
		ucm_log_stderr(rows[i].level, "text");
		fclose(stderr);
		stderr = saved;
		ck_assert_str_eq(text, rows[i].want);
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("log");
	TCase *tests = tcase_create("log");

	tcase_add_test(tests, lines_reach_the_sink_with_their_level);
	tcase_add_test(tests, lines_above_the_level_are_dropped);
	tcase_add_test(tests, errno_is_told_by_percent_m_and_kept);
	tcase_add_test(tests, a_long_line_is_cut_not_overrun);
	tcase_add_test(tests, standard_error_gets_the_program_and_the_level);
	suite_add_tcase(suite, tests);
	return unit_run(suite);
}
