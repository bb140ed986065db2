/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_profile.c - what a process has in its profile when it has ended.
 *
 * Each test has a child that looks at the environment, adds events and ends; the file
 * is read here.
 */
#include <config.h>

#include "common/profile.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/log.h"
#include "tests/unit/unit.h"

#define THREADS 4
#define EACH 5000

static char dir[] = "/tmp/ucm-profile.XXXXXX";
static _Atomic int *warnings; /* shared with the child */

static void setup(void)
{
	ck_assert_ptr_nonnull(mkdtemp(dir));
	ck_assert_int_eq(chdir(dir), 0);
	warnings = mmap(NULL, sizeof(*warnings), PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne((void *)warnings, MAP_FAILED);
	setenv("UCM_PROFILE", "1", 1);
	setenv("UCM_PROFILE_OUTPUT", "file.json", 1);
}

static void teardown(void)
{
	char command[64];

	snprintf(command, sizeof(command), "rm -rf %s", dir);
	ck_assert_int_eq(system(command), 0);
}

static void count_warnings(enum ucm_log_level level, const char *line)
{
	(void)line;
	*warnings += level == UCM_LOG_WARNING;
}

/* A child that does this and ends; its pid. */
static pid_t run(void (*what)(void), int want_warnings)
{
	pid_t pid = unit_fork();
	int status;

	ck_assert_int_ge(pid, 0);
	if (!pid) {
		ucm_log_set(count_warnings, UCM_LOG_WARNING);
		ucm_profile_start();
		what();
		exit(0);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	ck_assert_int_eq(*warnings, want_warnings);
	return pid;
}

/* The events; the first, which says what did not fit, is checked and removed. */
static json_t *events_of(const char *name, size_t left_out)
{
	json_t *all = json_load_file(name, 0, NULL), *event;
	long long out = -1;
	size_t i;

	ck_assert(json_is_array(all));
	json_array_foreach(all, i, event) {
		const char *ph;
		double ts, dur;
		int pid, tid;

		must(!json_unpack(event, "{s:s, s:F, s:F, s:i, s:i}", "ph", &ph,
				  "ts", &ts, "dur", &dur, "pid", &pid, "tid",
				  &tid));
		must(!strcmp(ph, "X") && ts > 0 && dur >= 0);
	}
	ck_assert(!json_unpack(json_array_get(all, 0), "{s:{s:I}}", "args",
			       "left_out", &out));
	ck_assert_uint_eq((size_t)out, left_out);
	json_array_remove(all, 0);
	return all;
}

static void read_block(unsigned n)
{
	ucm_profile_end((struct ucm_profile_event){
		UCM_PROFILE_IO, 0, "read", ucm_profile_begin(), 4096,
		.id.bytes = { [0] = '"', [1] = '\\', [14] = (uint8_t)(n >> 8),
			      [15] = (uint8_t)n } });
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

/* ---- what is written ---- */

static void add_task(void)
{
	setlocale(LC_ALL, ""); /* some have a comma in numbers */
	ucm_profile_end((struct ucm_profile_event){
		UCM_PROFILE_TASK, -EIO, "load", ucm_profile_begin(), 12288,
		.blocks = 3, .good = 2, .pieces = 6 });
}

UNIT_TEST(a_task_has_its_counts)
{
	const char *name, *kind, *status;
	int blocks, good, pieces, bytes;
	pid_t pid = run(add_task, 0);
	json_t *events = events_of("file.json", 0);

	ck_assert_uint_eq(json_array_size(events), 1);
	ck_assert(!json_unpack(json_array_get(events, 0),
			       "{s:s, s:s, s:{s:i, s:i, s:i, s:i, s:s}}", "name",
			       &name, "cat", &kind, "args", "blocks", &blocks,
			       "good", &good, "pieces", &pieces, "bytes", &bytes,
			       "status", &status));
	ck_assert_str_eq(name, "load");
	ck_assert_str_eq(kind, "task");
	ck_assert_str_eq(status, "EIO");
	ck_assert_int_eq(blocks, 3);
	ck_assert_int_eq(good, 2);
	ck_assert_int_eq(pieces, 6);
	ck_assert_int_eq(bytes, 12288);
	json_unpack(json_array_get(events, 0), "{s:i}", "pid", &blocks);
	ck_assert_int_eq(blocks, pid);
	json_decref(events);
}

static void read_one(void)
{
	read_block(0x1234);
}

/* What the only event has under a name, of a process that does fn. */
static void check_argument(void (*fn)(void), const char *name, const char *want)
{
	const char *got;
	json_t *events;

	run(fn, 0);
	events = events_of("file.json", 0);
	ck_assert(!json_unpack(json_array_get(events, 0), "{s:{s:s}}", "args",
			       name, &got));
	ck_assert_str_eq(got, want);
	json_decref(events);
}

/* Whatever bytes it has. */
UNIT_TEST(a_block_has_its_name)
{
	check_argument(read_one, "block", "225c0000000000000000000000001234");
}

static void do_nothing(void)
{
}

UNIT_TEST(a_process_that_did_nothing_has_an_empty_profile)
{
	json_t *events;

	run(do_nothing, 0);
	events = events_of("file.json", 0);
	ck_assert_uint_eq(json_array_size(events), 0);
	json_decref(events);
}

static void change_directory(void)
{
	read_one();
	ck_assert_int_eq(chdir("/"), 0);
}

UNIT_TEST(without_a_name_the_file_has_that_of_the_process)
{
	char name[64];
	pid_t pid;

	unsetenv("UCM_PROFILE_OUTPUT");
	pid = run(change_directory, 0);
	snprintf(name, sizeof(name), "ucm-profile-%d.json", (int)pid);
	json_decref(events_of(name, 0));
}

static void read_badly(void)
{
	ucm_profile_end((struct ucm_profile_event){
		UCM_PROFILE_IO, 0, "read", ucm_profile_begin(),
		.bytes = -EIO });
}

UNIT_TEST(a_read_that_fails_has_its_error)
{
	check_argument(read_badly, "status", "EIO");
}

/* ---- rows ---- */

static void add_overlapping(void)
{
	int64_t begin = ucm_profile_begin();
	struct ucm_profile_event event = { UCM_PROFILE_IO, 0, "read", begin,
					   .bytes = 1 };

	ucm_profile_end(event);
	ucm_profile_end(event); /* during the first */
	event.begin_ns = ucm_monotonic_ns();
	ucm_profile_end(event); /* after both */
	event.kind = UCM_PROFILE_COPY;
	event.begin_ns = begin;
	ucm_profile_end(event);
}

UNIT_TEST(events_that_overlap_have_different_rows)
{
	int rows[4];
	json_t *events;

	run(add_overlapping, 0);
	events = events_of("file.json", 0);
	ck_assert_uint_eq(json_array_size(events), 4);
	for (unsigned i = 0; i < 4; i++)
		json_unpack(json_array_get(events, i), "{s:i}", "tid", &rows[i]);
	ck_assert_int_ne(rows[1], rows[0]);
	ck_assert_int_eq(rows[2], rows[0]);
	ck_assert_int_ne(rows[3], rows[0]);
	ck_assert_int_ne(rows[3], rows[1]);
	json_decref(events);
}

static void add_very_many_overlapping(void)
{
	struct ucm_profile_event event = { UCM_PROFILE_IO, 0, "read",
					   ucm_profile_begin(), .bytes = 1 };

	for (unsigned i = 0; i < 3000; i++)
		ucm_profile_end(event);
}

UNIT_TEST(rows_of_one_kind_are_never_those_of_another)
{
	json_t *events, *event;
	size_t i;
	int row;

	run(add_very_many_overlapping, 0);
	events = events_of("file.json", 0);
	ck_assert_uint_eq(json_array_size(events), 3000);
	json_array_foreach(events, i, event) {
		json_unpack(event, "{s:i}", "tid", &row);
		must(row > 1000 && row <= 2000);
	}
	json_decref(events);
}

/* ---- threads ---- */

static void *read_many(void *arg)
{
	for (unsigned i = 0; i < EACH; i++)
		read_block(*(unsigned *)arg * EACH + i);
	return NULL;
}

static void read_in_threads(void)
{
	pthread_t threads[THREADS];
	unsigned numbers[THREADS];

	for (unsigned i = 0; i < THREADS; i++) {
		numbers[i] = i;
		must(!pthread_create(&threads[i], NULL, read_many, &numbers[i]));
	}
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
}

UNIT_TEST(no_event_of_several_threads_is_lost)
{
	bool seen[THREADS * EACH] = { false };
	json_t *events, *event;
	int threads[THREADS] = { 0 };
	size_t i;

	run(read_in_threads, 0);
	events = events_of("file.json", 0);
	ck_assert_uint_eq(json_array_size(events), THREADS * EACH);
	json_array_foreach(events, i, event) {
		const char *block;
		int thread;
		unsigned n;

		must(!json_unpack(event, "{s:{s:s, s:i}}", "args", "block",
				  &block, "thread", &thread));
		n = (unsigned)strtoul(block + 28, NULL, 16);
		must(n < THREADS * EACH && !seen[n]);
		seen[n] = true;
		must(!threads[n / EACH] || threads[n / EACH] == thread);
		threads[n / EACH] = thread;
	}
	ck_assert_int_ne(threads[0], threads[1]);
	json_decref(events);
}

/* ---- the array is full ---- */

static void add_too_many(void)
{
	for (size_t i = 0; i < UCM_PROFILE_MOST + 7; i++)
		read_block(0);
}

UNIT_TEST(what_does_not_fit_is_counted)
{
	json_t *events;

	run(add_too_many, 0);
	events = events_of("file.json", 7);
	ck_assert_uint_eq(json_array_size(events), UCM_PROFILE_MOST);
	json_decref(events);
}

/* ---- off ---- */

static void check_off(void)
{
	if (ucm_profile_begin())
		exit(99);
	read_one();
}

static const char *const off[] = { NULL, "", "0", "yes", "11" };

UNIT_TEST(without_one_nothing_is_written, .rows = NUM_ROWS(off))
{
	if (off[_i])
		setenv("UCM_PROFILE", off[_i], 1);
	else
		unsetenv("UCM_PROFILE");
	run(check_off, 0);
	ck_assert_int_ne(access("file.json", F_OK), 0);
}

/* ---- forks ---- */

static void fork_two(void)
{
	read_one();
	for (unsigned i = 0; i < 2; i++) {
		pid_t pid = unit_fork();

		if (!pid) {
			ucm_profile_start(); /* as by a loader of the child's */
			read_one();
			read_one();
			exit(0);
		}
		waitpid(pid, NULL, 0);
		if (access("file.json", F_OK) || truncate("file.json", 0))
			exit(99);
	}
}

UNIT_TEST(a_child_writes_nothing)
{
	json_t *events;

	run(fork_two, 0);
	events = events_of("file.json", 0);
	ck_assert_uint_eq(json_array_size(events), 1);
	json_decref(events);
}

/* ---- a file that cannot be written ---- */

UNIT_TEST(a_file_that_cannot_be_made_is_one_warning)
{
	setenv("UCM_PROFILE_OUTPUT", "absent/file.json", 1);
	run(check_off, 1);
}

static void remove_directory(void)
{
	read_one();
	ck_assert_int_eq(unlink("gone/file.json"), 0);
	ck_assert_int_eq(rmdir("gone"), 0);
}

UNIT_TEST(a_directory_that_is_gone_is_one_warning)
{
	ck_assert_int_eq(mkdir("gone", 0700), 0);
	setenv("UCM_PROFILE_OUTPUT", "gone/file.json", 1);
	run(remove_directory, 1);
}

UNIT_TEST(a_disk_that_is_full_is_one_warning)
{
	setenv("UCM_PROFILE_OUTPUT", "/dev/full", 1);
	run(read_one, 1);
}
