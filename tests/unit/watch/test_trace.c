/* SPDX-License-Identifier: Apache-2.0 */
/* test_trace.c - the access trace: what is added is read, whatever happens. */
#include <config.h>

#include "fs/watch/trace.h"
#include "fs/watch/trace_layout.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/unit.h"

#define SLOTS (UCM_TRACE_SIZE_MIN / UCM_TRACE_RECORD_BYTES)
#define LONGEST (1u << 20)

static const char *const ops[] = { "lookup", "open" };
static const char *const tiers[] = { "fast", "slow" };
static const struct ucm_trace_names names = {
	.ops = ops, .num_ops = 2, .tiers = tiers, .num_tiers = 2, .mount = "/kv",
};

static char dir[64], path[80], old_path[80];
static struct ucm_trace *trace;
static uint8_t bytes[LONGEST];
static size_t len;
static struct ucm_trace_view view;
static uint64_t lost;

static void setup(void)
{
	snprintf(dir, sizeof(dir), "/tmp/ucm-test-trace.XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/trace", dir);
	snprintf(old_path, sizeof(old_path), "%s/trace.old", dir);
}

static void teardown(void)
{
	unlink(path);
	unlink(old_path);
	rmdir(dir);
}

static void open_trace(void)
{
	ck_assert_int_eq(ucm_trace_open(path, UCM_TRACE_SIZE_MIN, &names,
					&trace), 0);
}

static void add(unsigned n)
{
	struct ucm_trace_record record = {
		.time_ns = 1000 + n,
		.id.bytes = { (uint8_t)n, (uint8_t)(n >> 8) },
		.bytes = UINT64_C(1) << 40 | n,
		.duration_ns = n,
		.pid = n + 1,
		.uid = n + 2,
		.space = (uint16_t)(n % 7),
		.error = n % 2 ? ENOENT : 0,
		.op = n % 2,
		.tier = n % 2 ? UCM_TRACE_NONE : 1,
		.dir = 3,
	};

	ucm_trace_add(trace, &record);
}

static void load(void)
{
	int fd = open(path, O_RDONLY);

	ck_assert_int_ge(fd, 0);
	len = (size_t)read(fd, bytes, sizeof(bytes));
	close(fd);
}

static void parse(void)
{
	const char *why;

	ck_assert_msg(!ucm_trace_parse(bytes, len, &view, &why), "%s", why);
}

static void check_record(const struct ucm_trace_record *r)
{
	unsigned n = (unsigned)r->bytes & 0xffffff;

	must(r->bytes == (UINT64_C(1) << 40 | n));
	must(r->time_ns == 1000 + n && r->duration_ns == n);
	must(r->id.bytes[0] == (n & 0xff) && r->id.bytes[1] == (n >> 8 & 0xff));
	must(r->pid == n + 1 && r->uid == n + 2 && r->space == n % 7);
	must(r->error == (n % 2 ? ENOENT : 0) && r->op == n % 2);
	must(r->tier == (n % 2 ? UCM_TRACE_NONE : 1) && r->dir == 3);
}

/* How many there are; each must be what add() made of its number. */
static unsigned read_all(uint64_t *first, uint64_t *last)
{
	struct ucm_trace_cursor cursor = { 0 };
	struct ucm_trace_record record;
	unsigned num = 0;

	lost = 0;
	while (ucm_trace_next(&view, &cursor, &record, &lost)) {
		must(!num || record.seq > *last);
		if (!num)
			*first = record.seq;
		*last = record.seq;
		check_record(&record);
		num++;
	}
	return num;
}

static void same_as_added(unsigned want, uint64_t want_first,
			  uint64_t want_last)
{
	uint64_t first = 0, last = 0;

	load();
	parse();
	ck_assert_uint_eq(read_all(&first, &last), want);
	ck_assert_uint_eq(first, want_first);
	ck_assert_uint_eq(last, want_last);
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(an_empty_trace_has_no_records)
{
	open_trace();
	same_as_added(0, 0, 0);
	ck_assert(!view.ended);
	ck_assert_uint_eq(view.num_slots, SLOTS);
	ck_assert_str_eq(view.mount, "/kv");
	ck_assert_str_eq(ucm_trace_op_name(&view, 1), "open");
	ck_assert_str_eq(ucm_trace_op_name(&view, 2), "?");
	ck_assert_str_eq(ucm_trace_tier_name(&view, 0), "fast");
	ck_assert_str_eq(ucm_trace_tier_name(&view, UCM_TRACE_NONE), "?");
	ucm_trace_close(trace);
	load();
	parse();
	ck_assert(view.ended);
}

/* So many are added; so many are there. */
static const unsigned amounts[] = {
	1, 2, SLOTS - 1, SLOTS, SLOTS + 1, 2 * SLOTS - 1, 2 * SLOTS,
	2 * SLOTS + 5, 5 * SLOTS + 3,
};

UNIT_TEST(the_newest_records_are_there_in_order, .rows = NUM_ROWS(amounts))
{
	unsigned num = amounts[_i], there = num < SLOTS ? num : SLOTS;

	open_trace();
	for (unsigned i = 0; i < num; i++)
		add(i);
	same_as_added(there, num - there + 1, num);
	ck_assert_uint_eq(lost, 0);
	ck_assert_uint_eq(view.written, num);
	ck_assert_uint_eq(ucm_trace_added(trace), num);
	ucm_trace_close(trace);
}

UNIT_TEST(a_damaged_record_is_left_out_and_the_gap_is_told)
{
	uint64_t first, last;

	open_trace();
	for (unsigned i = 0; i < SLOTS + 10; i++)
		add(i);
	load();
	parse();
	bytes[(size_t)(view.records - bytes) + 20 * 64 + 33] ^= 1;
	bytes[(size_t)(view.records - bytes) + 21 * 64 + 63] ^= 1;
	/* the newest: then the one before is */
	bytes[(size_t)(view.records - bytes) + 9 * 64] ^= 1;
	ck_assert_uint_eq(read_all(&first, &last), SLOTS - 3);
	ck_assert_uint_eq(lost, 2);
	ck_assert_uint_eq(last, SLOTS + 9);
	ucm_trace_close(trace);
}

UNIT_TEST(a_file_that_was_cut_gives_what_is_left)
{
	uint64_t first, last;
	size_t header;

	open_trace();
	for (unsigned i = 0; i < 100; i++)
		add(i);
	load();
	parse();
	header = (size_t)(view.records - bytes);
	len = header + 50 * 64 + 63;
	parse();
	ck_assert_uint_eq(read_all(&first, &last), 50);
	len = header;
	parse();
	ck_assert_uint_eq(read_all(&first, &last), 0);
	ucm_trace_close(trace);
}

/* A byte of the header is changed: none of them goes unnoticed, but in what
 * changes by itself. */
UNIT_TEST(a_damaged_header_is_refused_with_a_reason)
{
	const char *why = NULL;

	open_trace();
	load();
	for (size_t i = 0; i < 160; i++) {
		bytes[i] ^= 0x10;
		if (i < 56 || i >= 144) {
			must(ucm_trace_parse(bytes, len, &view, &why) ==
			     -EINVAL);
			must(why && *why);
		}
		bytes[i] ^= 0x10;
	}
	ck_assert_int_eq(ucm_trace_parse(bytes, 4095, &view, &why), -EINVAL);
	ck_assert_str_eq(why, "no trace: too short");
	bytes[0] = 'X';
	ck_assert_int_eq(ucm_trace_parse(bytes, len, &view, &why), -EINVAL);
	ck_assert_str_eq(why, "no trace: wrong magic");
	ucm_trace_close(trace);
}

#define THREADS 8

static void *add_many(void *arg)
{
	for (unsigned i = 0; i < 20 * SLOTS; i++)
		add(i);
	return arg;
}

UNIT_TEST(threads_and_a_reader_do_not_disturb_each_other)
{
	pthread_t threads[THREADS];
	uint64_t first, last;
	unsigned there;

	open_trace();
	for (unsigned i = 0; i < THREADS; i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, add_many,
						NULL), 0);
	for (unsigned i = 0; i < 50; i++) { /* whatever is there is whole */
		load();
		parse();
		read_all(&first, &last);
	}
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	ck_assert_uint_eq(ucm_trace_added(trace), THREADS * 20 * SLOTS);
	load();
	parse();
	there = read_all(&first, &last);
	/* a thread may have slept while the others went round the ring */
	ck_assert_uint_ge(there, SLOTS - THREADS);
	ck_assert_uint_ge(last, THREADS * 20 * SLOTS - THREADS);
	ucm_trace_close(trace);
}

static void add_until_killed(int tell)
{
	open_trace();
	for (unsigned i = 0;; i++) {
		add(i % 1000000);
		if (i == 3 * SLOTS && write(tell, "x", 1) != 1)
			_exit(1);
	}
}

UNIT_TEST(what_was_added_outlives_a_kill)
{
	uint64_t first, last;
	int pipes[2];
	char byte;
	pid_t pid;

	ck_assert_int_eq(pipe(pipes), 0);
	pid = unit_fork();
	if (pid == 0)
		add_until_killed(pipes[1]);
	ck_assert_int_eq(read(pipes[0], &byte, 1), 1);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	load();
	parse();
	ck_assert(!view.ended);
	/* all but the one that it was at */
	ck_assert_uint_ge(read_all(&first, &last), SLOTS - 1);
	ck_assert_uint_ge(last, view.written - 1);
	close(pipes[0]);
	close(pipes[1]);
}

UNIT_TEST(an_older_trace_is_put_aside)
{
	struct stat st;

	open_trace();
	add(1);
	ucm_trace_close(trace);
	open_trace();
	add(2);
	add(3);
	ucm_trace_close(trace);
	same_as_added(2, 1, 2);
	ck_assert_int_eq(rename(old_path, path), 0);
	same_as_added(1, 1, 1);
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert_uint_eq(st.st_mode & 0777, 0600);
}

UNIT_TEST(what_is_no_trace_is_not_touched)
{
	struct stat st;
	int fd = open(path, O_RDWR | O_CREAT, 0644);

	ck_assert_int_eq(ucm_trace_open(path, 0, &names, &trace), 0); /* empty */
	ucm_trace_close(trace);
	unlink(old_path);
	close(fd);
	fd = open(path, O_RDWR | O_TRUNC);
	ck_assert_int_eq(write(fd, "UCMTRACK and more", 17), 17);
	close(fd);
	ck_assert_int_eq(ucm_trace_open(path, 0, &names, &trace), -EEXIST);
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert_int_eq(st.st_size, 17);
	ck_assert_int_eq(ucm_trace_open(dir, 0, &names, &trace), -EEXIST);
	ck_assert_int_eq(ucm_trace_open("/nonexistent/x", 0, &names, &trace),
			 -ENOENT);
	ck_assert_int_eq(ucm_trace_open(old_path, UINT64_C(1) << 60, &names,
					&trace), -EFBIG);
	ck_assert_int_ne(access(old_path, F_OK), 0);
	ucm_trace_close(NULL);
}
