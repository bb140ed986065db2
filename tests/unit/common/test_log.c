/* SPDX-License-Identifier: Apache-2.0 */
/* test_log.c - one line per event, to one sink. */
#include <config.h>

#include "common/log.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

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

UNIT_TEST(lines_reach_the_sink_with_their_level)
{
	ucm_log_set(keep, UCM_LOG_DEBUG);
	ucm_warning("tier %s: %d", "nvme", 7);
	ck_assert_str_eq(last_line, "tier nvme: 7");
	ck_assert_int_eq(last_level, UCM_LOG_WARNING);
	ck_assert_int_eq(num_lines, 1);
}

UNIT_TEST(lines_above_the_level_are_dropped)
{
	ucm_log_set(keep, UCM_LOG_WARNING);
	ucm_info("no");
	ck_assert_int_eq(num_lines, 0);
	ucm_error("yes");
	ucm_warning("yes");
	ck_assert_int_eq(num_lines, 2);
}

static const struct {
	const char *value;
	int lines; /* of an error, a warning and an info; and what is said of it */
} levels[] = {
	{ "error", 1 }, { "WARNING", 2 }, { "Info", 3 }, { "loud", 3 + 1 },
	{ "", 3 },
};

UNIT_TEST(the_environment_has_a_level, .rows = NUM_ROWS(levels))
{
	ucm_log_set(keep, UCM_LOG_INFO);
	setenv("UCM_LOG_LEVEL", levels[_i].value, 1);
	ucm_log_take_environment();
	unsetenv("UCM_LOG_LEVEL");
	ucm_error("a");
	ucm_warning("b");
	ucm_info("c");
	ck_assert_int_eq(num_lines, levels[_i].lines);
}

UNIT_TEST(the_environment_switches_all_areas_on)
{
	setenv("UCM_DEBUG", "true", 1);
	ucm_log_take_environment();
	for (unsigned i = 0; i < UCM_AREA_COUNT; i++)
		ck_assert_uint_eq(ucm_log_depths[i], 1);
	unsetenv("UCM_DEBUG");
	ucm_log_areas_set("all=0", NULL);
}

UNIT_TEST(errno_is_told_by_percent_m_and_kept)
{
	ucm_log_set(keep, UCM_LOG_INFO);
	errno = ENOSPC;
	ucm_error("commit: %m");
	ck_assert_int_eq(errno, ENOSPC);
	ck_assert_str_eq(last_line, "commit: No space left on device");
}

UNIT_TEST(a_long_line_is_cut_not_overrun)
{
	char name[4097];

	memset(name, 'x', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	ucm_log_set(keep, UCM_LOG_INFO);
	ucm_info("%s", name);
	ck_assert_uint_eq(strlen(last_line), 1023);
}

/* What users choose cannot make a line, or a part of one, that is ours. */
static const struct { const char *name, *logged; } names[] = {
	{ "plain name.tmp", "plain name.tmp" },
	{ "back\\slash %s", "back\\slash %s" },
	{ "a\nucmfs: all is lost", "a\\x0aucmfs: all is lost" },
	{ "\r\t\x1b[2J\x7f\x01", "\\x0d\\x09\\x1b[2J\\x7f\\x01" },
	{ "gr\xc3\xb6\xc3\x9f" "e \xe2\x82\xac \xf0\x9f\x98\x80",
	  "gr\xc3\xb6\xc3\x9f" "e \xe2\x82\xac \xf0\x9f\x98\x80" },
	/* controls of 8 bits; ends of lines and of directions */
	{ "\xc2\x9b" "2J", "\\xc2\\x9b2J" },
	{ "a\xe2\x80\xa8z", "a\\xe2\\x80\\xa8z" },
	{ "\xe2\x80\xae", "\\xe2\\x80\\xae" },
	{ "\xe2\x81\xa7", "\\xe2\\x81\\xa7" },
	{ "\xe2\x80\xa6", "\xe2\x80\xa6" }, /* an ellipsis is none */
	/* no UTF-8: cut off, overlong, half a pair, too high, alone */
	{ "\xe2\x82", "\\xe2\\x82" },
	{ "\xc3z", "\\xc3z" },
	{ "\xc0\x8a", "\\xc0\\x8a" },
	{ "\xe0\x80\x8a", "\\xe0\\x80\\x8a" },
	{ "\xed\xa0\x80", "\\xed\\xa0\\x80" },
	{ "\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80" },
	{ "\xff\x80z", "\\xff\\x80z" },
};

UNIT_TEST(names_are_escaped, .rows = NUM_ROWS(names))
{
	char want[256];

	ucm_log_set(keep, UCM_LOG_DEBUG);
	snprintf(want, sizeof(want), "block %s: gone", names[_i].logged);
	ucm_info("block %s: gone", names[_i].name);
	ck_assert_str_eq(last_line, want);
	snprintf(want, sizeof(want), "fs.op: %s", names[_i].logged);
	ucm_debug(OP, 1, "%s", names[_i].name);
	ck_assert_str_eq(last_line, want);
	ck_assert_int_eq(num_lines, 2);
}

UNIT_TEST(a_long_line_is_cut_between_characters)
{
	char name[4097];

	for (size_t odd = 0; odd < 4; odd++) {
		memset(name, 'x', odd);
		for (size_t i = odd; i < sizeof(name) - 1; i++)
			name[i] = i % 2 ? '\n' : '\x80';
		name[sizeof(name) - 1] = '\0';
		ucm_log_set(keep, UCM_LOG_INFO);
		ucm_info("%s", name);
		ck_assert_uint_le(strlen(last_line), 1023);
		ck_assert_uint_gt(strlen(last_line), 1019);
		ck_assert_uint_eq((strlen(last_line) - odd) % 4, 0);
	}
}

/* Each call is one place. */
static void flood(unsigned lines)
{
	for (unsigned i = 0; i < lines; i++)
		ucm_warning("flood %u", i);
}

UNIT_TEST(a_place_that_floods_is_cut_off_and_that_is_told)
{
	ucm_log_set(keep, UCM_LOG_INFO);
	flood(UCM_LOG_BURST + 7);
	ck_assert_int_eq(num_lines, UCM_LOG_BURST);
	ck_assert_uint_eq(ucm_log_count_left_out(), 7);
	ucm_warning("another place");
	ck_assert_str_eq(last_line, "another place");
	num_lines = 0;
	ucm_log_tell_left_out(false); /* its time is not over */
	ck_assert_int_eq(num_lines, 0);
	ucm_log_tell_left_out(true);
	ck_assert_int_eq(num_lines, 1);
	ck_assert_str_eq(last_line, "left out 7 lines like \"flood %u\"");
	ucm_log_tell_left_out(true);
	ck_assert_int_eq(num_lines, 1);
}

UNIT_TEST(a_place_may_log_again_when_its_time_is_over)
{
	static struct ucm_log_site site;

	ucm_log_set(keep, UCM_LOG_INFO);
	for (unsigned i = 0; i < UCM_LOG_BURST + 3; i++)
		ucm_log_limited(&site, UCM_LOG_ERROR, "again %u", i);
	num_lines = 0;
	site.since_ms -= UCM_LOG_WINDOW_MS;
	errno = ENOSPC;
	ucm_log_limited(&site, UCM_LOG_ERROR, "again: %m");
	ck_assert_int_eq(num_lines, 2);
	ck_assert_str_eq(last_line, "again: No space left on device");
	ucm_log_tell_left_out(true);
	ck_assert_int_eq(num_lines, 2);
}

UNIT_TEST(lines_are_counted_by_level)
{
	ucm_log_set(keep, UCM_LOG_WARNING);
	ucm_error("one");
	ucm_warning("two");
	ucm_log(UCM_LOG_WARNING, "three");
	ucm_info("not logged");
	ck_assert_uint_eq(ucm_log_count(UCM_LOG_ERROR), 1);
	ck_assert_uint_eq(ucm_log_count(UCM_LOG_WARNING), 2);
	ck_assert_uint_eq(ucm_log_count(UCM_LOG_INFO), 0);
}

UNIT_TEST(the_file_is_appended_to_with_time_level_and_process)
{
	char path[] = "/tmp/ucm-test-log.XXXXXX", want[64], text[256] = "";
	int fd = mkstemp(path);
	struct tm tm;

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, "before\n", 7), 7);
	ck_assert_int_eq(ucm_log_open(path), 0);
	unlink(path);
	ucm_log_set(ucm_log_file, UCM_LOG_INFO);
	ucm_warning("tier %s", "a");
	ck_assert_int_gt(pread(fd, text, sizeof(text) - 1, 7), 0);
	ck_assert(strptime(text, "%Y-%m-%dT%H:%M:%S", &tm));
	snprintf(want, sizeof(want), "Z ucmfs[%ld]: warning: tier a\n",
		 (long)getpid());
	ck_assert_str_eq(strchr(text, 'Z'), want);
	close(fd);
	ck_assert_int_eq(ucm_log_open("/nonexistent/log"), -ENOENT);
}

/* _i: 0: it cannot be opened. */
UNIT_TEST(the_environment_has_a_file, .rows = 3)
{
	char path[] = "/tmp/ucm-test-log.XXXXXX", text[256] = "";
	int fd = mkstemp(path);

	ck_assert_int_ge(fd, 0);
	if (_i == 2) /* the program's own comes first */
		ucm_log_set(keep, UCM_LOG_INFO);
	setenv("UCM_LOG_FILE", _i ? path : "/nonexistent/log", 1);
	ucm_log_take_environment();
	unsetenv("UCM_LOG_FILE");
	unlink(path);
	ucm_warning("tier a");
	ck_assert_int_eq(pread(fd, text, sizeof(text) - 1, 0) > 0, _i == 1);
	ck_assert_int_eq(num_lines, _i == 2);
	ck_assert_uint_eq(ucm_log_count(UCM_LOG_WARNING), 1 + !_i);
	close(fd);
}

/* ---- areas ---- */

UNIT_TEST(debugging_lines_come_as_deep_as_their_area_is_set)
{
	struct ucm_error error;
	int evaluated = 0;

	ucm_log_set(keep, UCM_LOG_ERROR);
	ucm_debug(TIER, 1, "%d", ++evaluated);
	ck_assert_int_eq(num_lines, 0);
	ck_assert_int_eq(evaluated, 0);
	ck_assert_int_eq(ucm_log_areas_set("fs.tier=1", &error), 0);
	ucm_debug(TIER, 1, "%d", ++evaluated);
	ck_assert_str_eq(last_line, "fs.tier: 1");
	ck_assert_int_eq(last_level, UCM_LOG_DEBUG);
	ucm_debug(TIER, 2, "%d", ++evaluated);
	ucm_debug(COMMIT, 1, "%d", ++evaluated);
	ck_assert_int_eq(num_lines, 1);
	ck_assert_int_eq(ucm_log_areas_set("fs.tier=0", &error), 0);
	ucm_debug(TIER, 1, "%d", ++evaluated);
	ck_assert_int_eq(num_lines, 1);
	ck_assert_int_eq(evaluated, 1);
}

UNIT_TEST(the_level_debug_is_depth_one_of_every_area)
{
	struct ucm_error error;

	ucm_log_areas_set("fs.tier=2", &error);
	ucm_log_set(keep, UCM_LOG_DEBUG);
	ck_assert_int_eq(ucm_log_depths[UCM_AREA_TIER], 2);
	ck_assert_int_eq(ucm_log_depths[UCM_AREA_CALL], 1);
}

/* What is set, and what the areas fs.op, fs.tier and os.call are then; or
 * what is wrong. */
static const struct {
	const char *text, *why;
	int op, tier, call;
} settings[] = {
	{ "fs.tier=2", NULL, 0, 2, 0 },
	{ "fs.tier=2,os.call=1", NULL, 0, 2, 1 },
	{ " fs.tier=2 : os.call=1\n", NULL, 0, 2, 1 },
	{ "fs=1", NULL, 1, 1, 0 },
	{ "all=2 fs.tier=0", NULL, 2, 0, 2 },
	{ "", "AREA=DEPTH is needed", 0, 0, 0 },
	{ " ,:", "AREA=DEPTH is needed", 0, 0, 0 },
	{ "fs.tier", "'fs.tier': AREA=DEPTH is needed", 0, 0, 0 },
	{ "fs.tier=1,fs.tear=1", "no area 'fs.tear'", 0, 0, 0 },
	{ "f=1", "no area 'f'", 0, 0, 0 },
	{ "=1", "no area ''", 0, 0, 0 },
	{ "fs.tier.x=1", "no area 'fs.tier.x'", 0, 0, 0 },
	{ "fs.tier=3", "fs.tier: depth '3': 0 to 2", 0, 0, 0 },
	{ "fs.tier=-1", "fs.tier: depth '-1': 0 to 2", 0, 0, 0 },
	{ "fs.tier=", "fs.tier: depth '': 0 to 2", 0, 0, 0 },
	{ "fs.tier=1=2", "fs.tier: depth '1=2': 0 to 2", 0, 0, 0 },
	{ "fs.tier=1 fs.op=x", "fs.op: depth 'x': 0 to 2", 0, 0, 0 },
};

UNIT_TEST(areas_are_set_by_text_all_or_none, .rows = NUM_ROWS(settings))
{
	struct ucm_error error = { "" };
	int err = ucm_log_areas_set(settings[_i].text, &error);

	ck_assert_int_eq(err, settings[_i].why ? -EINVAL : 0);
	ck_assert_str_eq(error.text, settings[_i].why ? settings[_i].why : "");
	ck_assert_int_eq(ucm_log_depths[UCM_AREA_OP], settings[_i].op);
	ck_assert_int_eq(ucm_log_depths[UCM_AREA_TIER], settings[_i].tier);
	ck_assert_int_eq(ucm_log_depths[UCM_AREA_CALL], settings[_i].call);
}

UNIT_TEST(areas_are_listed_as_they_are_set)
{
	struct ucm_error error;
	char *text, *again;

	ck_assert_int_eq(ucm_log_areas_set("fs.scan=2", &error), 0);
	text = ucm_log_areas_text();
	ck_assert_ptr_nonnull(strstr(text, "fs.scan=2\n"));
	ck_assert_ptr_nonnull(strstr(text, "os.call=0\n"));
	ck_assert_int_eq(ucm_log_areas_set("all=1", &error), 0);
	ck_assert_int_eq(ucm_log_areas_set(text, &error), 0);
	again = ucm_log_areas_text();
	ck_assert_str_eq(again, text);
	free(text);
	free(again);
}

UNIT_TEST(standard_error_gets_the_program_and_the_level)
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

/* ---- lines for the program ---- */

static char given_line[2048];
static int num_given, redirected;

static void take(void *arg, enum ucm_log_level level, const char *line)
{
	snprintf(given_line, sizeof(given_line), "%s %d %s", (char *)arg,
		 (int)level, line);
	num_given++;
}

UNIT_TEST(a_program_gets_the_lines_until_it_gives_them_back)
{
	static char name[] = "mine";

	ucm_log_set(keep, UCM_LOG_INFO);
	ck_assert_int_eq(ucm_log_redirect(take, name), 0);
	errno = ENOSPC;
	ucm_warning("a\nb: %m");
	ck_assert_str_eq(given_line, "mine 1 a\\x0ab: No space left on device");
	ck_assert_int_eq(errno, ENOSPC);
	ck_assert_int_eq(num_lines, 0);
	ck_assert_int_eq(ucm_log_redirect(NULL, NULL), 0);
	ucm_error("sink");
	ck_assert_int_eq(num_given, 1);
	ck_assert_str_eq(last_line, "sink");
}

static void log_again(void *arg, enum ucm_log_level level, const char *line)
{
	take(arg, level, line);
	redirected = ucm_log_redirect(NULL, NULL);
	ucm_error("from inside");
}

UNIT_TEST(what_the_function_causes_goes_to_the_sink)
{
	static char name[] = "mine";

	ucm_log_set(keep, UCM_LOG_INFO);
	ucm_log_redirect(log_again, name);
	ucm_error("first");
	ck_assert_int_eq(redirected, -EDEADLK);
	ck_assert_str_eq(given_line, "mine 0 first");
	ck_assert_str_eq(last_line, "from inside");
	ck_assert_int_eq(num_lines, 1);
	ucm_error("second"); /* it still is the function */
	ck_assert_int_eq(num_given, 2);
	ucm_log_redirect(NULL, NULL);
}

/* Of a program's function that is slow: inside, then gone on. */
static sem_t entered, go_on;
static _Atomic bool has_returned;

static void be_slow(void *arg, enum ucm_log_level level, const char *line)
{
	(void)arg, (void)level, (void)line;
	sem_post(&entered);
	sem_wait(&go_on);
	atomic_store(&has_returned, true);
}

static void *log_one(void *arg)
{
	(void)arg;
	ucm_error("line");
	return NULL;
}

static void *let_go(void *arg)
{
	const struct timespec moment = { .tv_nsec = 20000000 };

	(void)arg;
	nanosleep(&moment, NULL); /* so that the other one has to wait */
	sem_post(&go_on);
	return NULL;
}

UNIT_TEST(a_function_that_was_replaced_is_not_running_any_more)
{
	pthread_t threads[2];

	sem_init(&entered, 0, 0);
	sem_init(&go_on, 0, 0);
	ucm_log_set(keep, UCM_LOG_INFO);
	ucm_log_redirect(be_slow, NULL);
	pthread_create(&threads[0], NULL, log_one, NULL);
	sem_wait(&entered);
	pthread_create(&threads[1], NULL, let_go, NULL);
	ucm_log_redirect(NULL, NULL);
	ck_assert(atomic_load(&has_returned));
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
}

UNIT_TEST(a_child_of_a_fork_logs_though_a_thread_was_in_the_function)
{
	pthread_t thread;
	int status = -1;
	pid_t child;

	sem_init(&entered, 0, 0);
	sem_init(&go_on, 0, 0);
	ucm_log_set(keep, UCM_LOG_INFO);
	ucm_log_redirect(be_slow, NULL);
	pthread_create(&thread, NULL, log_one, NULL);
	sem_wait(&entered);
	child = unit_fork();
	if (!child) {
		sem_post(&go_on);
		ucm_log_redirect(NULL, NULL);
		ucm_error("child");
		_exit(num_lines == 1 ? 0 : 1);
	}
	sem_post(&go_on);
	pthread_join(thread, NULL);
	ucm_log_redirect(NULL, NULL);
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_int_eq(status, 0);
}

UNIT_TEST(a_socket_gets_each_line_as_a_message)
{
	char message[2048], line[1024] = "";
	int ends[2];
	ssize_t len;

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
	ucm_log_redirect(ucm_log_to_socket, (void *)(intptr_t)ends[1]);
	ucm_warning("block %d", 7);
	memset(line, 'x', sizeof(line) - 1);
	ucm_error("%s%s", line, line);
	ucm_log_redirect(NULL, NULL);
	len = recv(ends[0], message, sizeof(message), MSG_DONTWAIT);
	ck_assert_int_eq(len, 8);
	ck_assert_int_eq(memcmp(message, "1block 7", 8), 0);
	len = recv(ends[0], message, sizeof(message), MSG_DONTWAIT);
	ck_assert_int_eq(len, 1024);
	ck_assert_int_eq(message[0], '0');
	ck_assert_int_eq(memcmp(message + 1, line, 1023), 0);
	close(ends[0]);
	close(ends[1]);
}

UNIT_TEST(what_a_socket_does_not_take_goes_to_standard_error)
{
	char text[4096] = "";
	FILE *saved = stderr;
	int ends[2], num = 0;

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
	stderr = fmemopen(text, sizeof(text), "w");
	for (; !ftell(stderr); num++) /* until it is full */
		ucm_log_to_socket((void *)(intptr_t)ends[1], UCM_LOG_INFO,
				  "line");
	close(ends[0]); /* and when nobody reads any more: no signal */
	ucm_log_to_socket((void *)(intptr_t)ends[1], UCM_LOG_ERROR, "last");
	fclose(stderr);
	stderr = saved;
	ck_assert_int_gt(num, 10);
	ck_assert_str_eq(text, "ucmfs: line\nucmfs: last\n");
	close(ends[1]);
}
