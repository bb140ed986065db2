/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_ring.c - queued file I/O: every promise of ring.h, for both kinds.
 *
 * Loop tests: the loop's number is an index of kinds[]. The files lie in the
 * working directory, because direct I/O wants a real file system.
 */
#include <config.h>

#include "gpu/ring/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/osfile.h"
#ifdef HAVE_URING
#include "gpu/ring/pinned.h"
#endif
#include "tests/unit/dir_fixture.h"

#define UNIT 4096
#define FILE_LEN (3 * UNIT + 1234)
#define ROOM ((size_t)(8 * UNIT))

static const enum ucm_io_kind kinds[] = { UCM_IO_URING, UCM_IO_THREADS };
static int root;
static char *room; /* ROOM bytes, aligned */

static void setup(void)
{
	fx_setup();
	root = open(fx_path("$"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ck_assert_int_ge(root, 0);
	ck_assert_int_eq(posix_memalign((void **)&room, UNIT, ROOM), 0);
}

static void teardown(void)
{
	ucm_ring_fault = NULL;
	ucm_ring_enter_fault = NULL;
	free(room);
	close(root);
	fx_teardown();
}

/* NULL where this machine has no io_uring to test. */
static struct ucm_ring *open_ring(int kind, unsigned depth)
{
	struct ucm_ring *ring = NULL;
	int err = ucm_ring_open(kinds[kind], depth, 3, &ring);

	if (err && kinds[kind] == UCM_IO_URING)
		unit_skip("io_uring: %s", strerror(-err));
	else
		ck_assert_int_eq(err, 0);
	return ring;
}

static char byte_at(size_t offset)
{
	return (char)((offset * 2654435761u) >> 13);
}

static void put_file(const char *name, size_t len)
{
	char *bytes = malloc(len + 1);

	for (size_t i = 0; i < len; i++)
		bytes[i] = byte_at(i);
	fx_put(fx_path("$/%s", name), bytes, len);
	free(bytes);
}

static void check_bytes(const char *bytes, off_t offset, ssize_t len)
{
	for (ssize_t i = 0; i < len; i++)
		must(bytes[i] == byte_at((size_t)(offset + i)));
}

/* Queue, and wait for it. */
static ssize_t carry_out(struct ucm_ring *ring, struct ucm_io *io)
{
	struct ucm_io *done;

	ck_assert_int_eq(ucm_ring_queue(ring, io), 0);
	done = ucm_ring_poll(ring, -1);
	ck_assert_ptr_eq(done, io);
	ck_assert_ptr_null(done->next);
	return io->result;
}

static ssize_t open_file(const char *path, int flags)
{
	return ucm_os_open(root, path, flags, 0640);
}

static ssize_t ring_close(struct ucm_ring *ring, ssize_t fd)
{
	struct ucm_io io = { .op = UCM_IO_CLOSE, .fd = (int)fd };

	return carry_out(ring, &io);
}

static ssize_t open_direct(const char *path, int flags)
{
	ssize_t fd = open_file(path, flags | O_DIRECT);

	if (fd != -EINVAL)
		return fd;
	unit_skip("direct I/O: this file system has none");
	return open_file(path, flags);
}

static struct ucm_io read_of(ssize_t fd, size_t len, off_t offset,
			     uint32_t align)
{
	return (struct ucm_io){ .op = UCM_IO_READ, .fd = (int)fd,
				.buffer = room, .len = len, .offset = offset,
				.align = align };
}

static unsigned open_files(void)
{
	return fx_count("/proc/self/fd");
}

/* ---- files ---- */

static void __attribute__((constructor)) use_working_directory(void)
{
	char here[4096];

	if (!getcwd(here, sizeof(here)) || setenv("TMPDIR", here, 1))
		exit(EXIT_FAILURE);
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(reads_bring_what_the_file_has, .rows = NUM_ROWS(kinds))
{
	static const struct {
		uint32_t align;
		off_t offset;
		size_t len;
		ssize_t want;
	} rows[] = {
		{ 1, 0, 0, 0 },
		{ 1, 0, 1, 1 },
		{ 1, 4095, 2, 2 },
		{ 1, 7, 4099, 4099 },
		{ 1, FILE_LEN - 1, 1, 1 },
		{ 1, FILE_LEN - 1, 2, 1 },
		{ 1, FILE_LEN, 100, 0 },
		{ 1, FILE_LEN + 5000, 100, 0 },
		{ 1, 0, FILE_LEN, FILE_LEN },
		{ 1, 0, ROOM, FILE_LEN },
		{ UNIT, 0, UNIT, UNIT },
		{ UNIT, UNIT, 2 * UNIT, 2 * UNIT },
		{ UNIT, 3 * UNIT, UNIT, 1234 },
		{ UNIT, 0, ROOM, FILE_LEN },
		{ UNIT, 4 * UNIT, UNIT, 0 },
		{ UNIT, 6 * UNIT, UNIT, 0 },
	};
	struct ucm_ring *ring = open_ring(_i, 4);
	ssize_t plain, direct;

	if (!ring)
		return;
	put_file("file", FILE_LEN);
	plain = open_file("file", O_RDONLY);
	direct = open_direct("file", O_RDONLY);
	ck_assert_int_ge(plain, 0);
	ck_assert_int_ge(direct, 0);
	ck_assert_int_ne(fcntl((int)plain, F_GETFD) & FD_CLOEXEC, 0);
	for (size_t i = 0; i < NUM_ROWS(rows); i++) {
		struct ucm_io io = read_of(rows[i].align > 1 ? direct : plain,
					   rows[i].len, rows[i].offset,
					   rows[i].align);

		memset(room, 0x55, ROOM);
		io.may_hang = i % 2;
		ck_assert_int_eq(carry_out(ring, &io), rows[i].want);
		check_bytes(room, rows[i].offset, rows[i].want);
	}
	ck_assert_int_eq(ring_close(ring, plain), 0);
	ck_assert_int_eq(ring_close(ring, direct), 0);
	ck_assert_int_eq(ring_close(ring, direct), -EBADF);
	ucm_ring_close(ring);
}

/* Who knows how much there is need not have the end proven. */
UNIT_TEST(a_read_ends_when_it_has_enough, .rows = NUM_ROWS(kinds))
{
	struct ucm_ring *ring = open_ring(_i, 1);
	struct ucm_io io;
	ssize_t fd;

	if (!ring)
		return;
	put_file("file", FILE_LEN);
	fd = open_direct("file", O_RDONLY);
	io = read_of(fd, ROOM, 0, UNIT);
	ck_assert_int_eq(carry_out(ring, &io), FILE_LEN);
	ck_assert_uint_eq(io.resubmits, 1);
	io.enough = FILE_LEN;
	ck_assert_int_eq(carry_out(ring, &io), FILE_LEN);
	ck_assert_uint_eq(io.resubmits, 0);
	io.enough = FILE_LEN + 1;
	ck_assert_int_eq(carry_out(ring, &io), FILE_LEN);
	ck_assert_uint_eq(io.resubmits, 1);
	ring_close(ring, fd);
	ucm_ring_close(ring);
}

UNIT_TEST(writes_are_whole, .rows = NUM_ROWS(kinds))
{
	struct ucm_ring *ring = open_ring(_i, 1);
	struct ucm_io io;
	ssize_t fd;

	if (!ring)
		return;
	fd = open_direct("file", O_RDWR | O_CREAT);
	ck_assert_int_ge(fd, 0);
	for (size_t i = 0; i < 4 * UNIT; i++)
		room[i] = byte_at(i);
	io = read_of(fd, 4 * UNIT, 0, UNIT);
	io.op = UCM_IO_WRITE;
	ck_assert_int_eq(carry_out(ring, &io), 4 * UNIT);
	memset(room, 0, ROOM);
	io = read_of(fd, ROOM, 0, UNIT);
	ck_assert_int_eq(carry_out(ring, &io), 4 * UNIT);
	check_bytes(room, 0, 4 * UNIT);
	ck_assert_int_eq(ring_close(ring, fd), 0);
	ucm_ring_close(ring);
}

/* Each operation comes back once, with its own bytes, whatever the order. */
UNIT_TEST(more_than_the_depth_is_refused_until_some_are_back,
	  .rows = NUM_ROWS(kinds))
{
	enum { DEPTH = 5, READS = 500, LEN = 16 };
	struct ucm_ring *ring = open_ring(_i, DEPTH);
	struct ucm_io ios[READS], *io;
	unsigned queued = 0, back = 0, refused = 0;
	ssize_t fd;

	if (!ring)
		return;
	put_file("file", FILE_LEN);
	fd = open_file("file", O_RDONLY);
	for (unsigned i = 0; i < READS; i++) {
		ios[i] = read_of(fd, LEN, i * 23, 1);
		ios[i].buffer = room + (size_t)i * LEN;
	}
	while (back < READS) {
		int err = queued < READS ?
				  ucm_ring_queue(ring, &ios[queued]) : -EBUSY;

		if (!err) {
			queued++;
			must(queued - back <= DEPTH);
			continue;
		}
		must(err == -EBUSY);
		must(queued == READS || queued - back == DEPTH);
		refused++;
		for (io = ucm_ring_poll(ring, -1); io; io = io->next) {
			must(io->result == LEN);
			io->result = -1; /* not twice */
			check_bytes(io->buffer, io->offset, LEN);
			back++;
		}
	}
	ck_assert_uint_gt(refused, 1);
	ck_assert_ptr_null(ucm_ring_poll(ring, 0));
	ring_close(ring, fd);
	ucm_ring_close(ring);
}

/* ---- faults ---- */

static struct {
	enum ucm_io_op op;
	atomic_uint times; /* that are left */
	ssize_t most;      /* bytes; < 0: this error */
	off_t past;        /* only results that end behind it */
} fault;

static ssize_t inject(const struct ucm_io *io, ssize_t result)
{
	off_t end = io->offset + (off_t)io->done + result;

	if (io->op != fault.op || result < 0 || !atomic_load(&fault.times) ||
	    (fault.past && end <= fault.past))
		return result;
	atomic_fetch_sub(&fault.times, 1);
	return fault.most < result ? fault.most : result;
}

static void arrange_fault(enum ucm_io_op op, unsigned times, ssize_t most,
			  off_t past)
{
	fault.op = op;
	fault.most = most;
	fault.past = past;
	atomic_store(&fault.times, times);
	ucm_ring_fault = inject;
}

#define FOR_EVER UINT32_MAX

UNIT_TEST(short_reads_of_every_length_go_on, .rows = NUM_ROWS(kinds))
{
	struct ucm_ring *ring = open_ring(_i, 1);
	ssize_t plain, direct;

	if (!ring)
		return;
	put_file("file", FILE_LEN);
	plain = open_file("file", O_RDONLY);
	direct = open_direct("file", O_RDONLY);
	for (ssize_t most = 1; most < FILE_LEN; most += most < 70 ? 1 : 511) {
		struct ucm_io io = read_of(plain, ROOM, 0, 1);

		memset(room, 0x55, ROOM);
		arrange_fault(UCM_IO_READ, 2, most, 0);
		ck_assert_int_eq(carry_out(ring, &io), FILE_LEN);
		ck_assert_uint_ge(io.resubmits, 2);
		check_bytes(room, 0, FILE_LEN);

		memset(room, 0x55, ROOM);
		io = read_of(direct, ROOM, 0, UNIT);
		arrange_fault(UCM_IO_READ, 2, most, 0);
		ck_assert_int_eq(carry_out(ring, &io), FILE_LEN);
		ck_assert_uint_ge(io.resubmits, 2);
		check_bytes(room, 0, FILE_LEN);
	}
	ucm_ring_fault = NULL;
	ring_close(ring, plain);
	ring_close(ring, direct);
	ucm_ring_close(ring);
}

/* One byte a call brings a plain read to its end; where a unit has to come
 * whole it never does, and that is an error, not the end of the file. */
UNIT_TEST(short_reads_for_ever_end, .rows = NUM_ROWS(kinds))
{
	struct ucm_ring *ring = open_ring(_i, 1);
	ssize_t plain, direct;
	struct ucm_io io;

	if (!ring)
		return;
	put_file("file", FILE_LEN);
	plain = open_file("file", O_RDONLY);
	direct = open_direct("file", O_RDONLY);
	arrange_fault(UCM_IO_READ, FOR_EVER, 1, 0);
	io = read_of(plain, 300, 0, 1);
	ck_assert_int_eq(carry_out(ring, &io), 300);
	ck_assert_uint_eq(io.resubmits, 299);
	check_bytes(room, 0, 300);
	for (off_t offset = 0; offset < FILE_LEN; offset += UNIT) {
		io = read_of(direct, ROOM - UNIT, offset, UNIT);
		ck_assert_int_eq(carry_out(ring, &io), -EIO);
		ck_assert_uint_gt(io.resubmits, 10);
		ck_assert_uint_lt(io.resubmits, 1000);
	}
	ucm_ring_fault = NULL;
	ring_close(ring, plain);
	ring_close(ring, direct);
	ucm_ring_close(ring);
}

UNIT_TEST(short_writes_go_on_or_fail, .rows = NUM_ROWS(kinds))
{
	struct ucm_ring *ring = open_ring(_i, 1);
	ssize_t fd;

	if (!ring)
		return;
	fd = open_direct("file", O_RDWR | O_CREAT);
	ck_assert_int_ge(fd, 0);
	for (ssize_t most = 0; most < 2 * UNIT; most += most < 40 ? 1 : 499) {
		struct ucm_io io = read_of(fd, 2 * UNIT, 0, UNIT);

		for (size_t i = 0; i < 2 * UNIT; i++)
			room[i] = byte_at(i);
		io.op = UCM_IO_WRITE;
		arrange_fault(UCM_IO_WRITE, 2, most, 0);
		ck_assert_int_eq(carry_out(ring, &io), most ? 2 * UNIT : -EIO);
		if (!most)
			continue;
		memset(room, 0x55, ROOM);
		io = read_of(fd, 2 * UNIT, 0, UNIT);
		ck_assert_int_eq(carry_out(ring, &io), 2 * UNIT);
		check_bytes(room, 0, 2 * UNIT);
		ck_assert_int_eq(ftruncate((int)fd, 0), 0);
		if (most < UNIT) {
			io.op = UCM_IO_WRITE;
			arrange_fault(UCM_IO_WRITE, FOR_EVER, most, 0);
			ck_assert_int_eq(carry_out(ring, &io), -EIO);
		}
	}
	ucm_ring_fault = NULL;
	ring_close(ring, fd);
	ucm_ring_close(ring);
}

UNIT_TEST(errors_are_tried_again_where_that_helps, .rows = NUM_ROWS(kinds))
{
	static const struct {
		unsigned times;
		ssize_t err;
		off_t past;
		ssize_t want;
		unsigned resubmits;
	} rows[] = {
		{ 3, -EINTR, 0, FILE_LEN, 4 },
		{ 3, -EAGAIN, 0, FILE_LEN, 4 },
		{ 3, -EAGAIN, 2 * UNIT, FILE_LEN, 4 },
		{ FOR_EVER, -EINTR, 0, -EINTR, 100 },
		{ FOR_EVER, -EAGAIN, 0, -EAGAIN, 100 },
		{ 1, -EIO, 0, -EIO, 0 },
		{ FOR_EVER, -EIO, 2 * UNIT, -EIO, 0 },
		{ 1, -EINVAL, 0, -EINVAL, 0 },
	};
	struct ucm_ring *ring = open_ring(_i, 1);
	ssize_t fd;

	if (!ring)
		return;
	put_file("file", FILE_LEN);
	fd = open_file("file", O_RDONLY);
	for (size_t i = 0; i < NUM_ROWS(rows); i++) {
		struct ucm_io io = read_of(fd, ROOM, 0, 1);

		arrange_fault(UCM_IO_READ, rows[i].times, rows[i].err,
			      rows[i].past);
		ck_assert_int_eq(carry_out(ring, &io), rows[i].want);
		ck_assert_uint_eq(io.resubmits, rows[i].resubmits);
		if (io.result > 0)
			check_bytes(room, 0, io.result);
	}
	ucm_ring_fault = NULL;
	ring_close(ring, fd);
	ucm_ring_close(ring);
}

/* A second close could be that of somebody else's file. */
UNIT_TEST(a_close_that_fails_is_not_made_again, .rows = NUM_ROWS(kinds))
{
	struct ucm_ring *ring = open_ring(_i, 1);
	unsigned before;
	ssize_t fd;

	if (!ring)
		return;
	fx_put(fx_path("$/file"), "x", 1);
	before = open_files();
	fd = open_file("file", O_RDONLY);
	ck_assert_int_ge(fd, 0);
	arrange_fault(UCM_IO_CLOSE, 1, -EINTR, 0);
	ck_assert_int_eq(ring_close(ring, fd), -EINTR);
	ck_assert_uint_eq(open_files(), before);
	ucm_ring_fault = NULL;
	ucm_ring_close(ring);
}

/* ---- waiting ---- */

#define WAKES 100000

struct waker {
	struct ucm_ring *ring;
	atomic_uint seen;
};

/* The next wake only when the last one has been seen, so a lost one hangs. */
static void *wake_often(void *arg)
{
	struct waker *waker = arg;

	for (unsigned i = 0; i < WAKES; i++) {
		ucm_ring_wake(waker->ring);
		while (atomic_load(&waker->seen) <= i)
			sched_yield();
	}
	return NULL;
}

UNIT_TEST(no_wake_is_lost, .rows = NUM_ROWS(kinds))
{
	struct ucm_ring *ring = open_ring(_i, 1);
	struct waker waker = { .ring = ring };
	pthread_t thread;

	if (!ring)
		return;
	ck_assert_int_eq(pthread_create(&thread, NULL, wake_often, &waker), 0);
	for (unsigned i = 0; i < WAKES; i++) {
		must(!ucm_ring_poll(ring, -1));
		atomic_fetch_add(&waker.seen, 1);
	}
	pthread_join(thread, NULL);
	ucm_ring_close(ring);
}

static void *wake_at_random(void *arg)
{
	struct waker *waker = arg;

	while (!atomic_load(&waker->seen))
		ucm_ring_wake(waker->ring);
	return NULL;
}

/* Wakes do not cost operations their results. */
UNIT_TEST(work_goes_on_while_woken, .rows = NUM_ROWS(kinds))
{
	struct ucm_ring *ring = open_ring(_i, 8);
	struct waker waker = { .ring = ring };
	struct ucm_io ios[8], *io;
	pthread_t thread;
	ssize_t fd;

	if (!ring)
		return;
	put_file("file", FILE_LEN);
	fd = open_file("file", O_RDONLY);
	ck_assert_int_eq(pthread_create(&thread, NULL, wake_at_random, &waker),
			 0);
	for (unsigned round = 0; round < 500; round++) {
		for (unsigned i = 0; i < 8; i++) {
			ios[i] = read_of(fd, 100, i * 100, 1);
			ios[i].buffer = room + (size_t)i * 100;
			must(!ucm_ring_queue(ring, &ios[i]));
		}
		for (unsigned back = 0; back < 8;)
			for (io = ucm_ring_poll(ring, -1); io; io = io->next) {
				must(io->result == 100);
				check_bytes(io->buffer, io->offset, 100);
				back++;
			}
	}
	atomic_store(&waker.seen, 1);
	pthread_join(thread, NULL);
	ucm_ring_poll(ring, 0); /* a wake that is left */
	ring_close(ring, fd);
	ucm_ring_close(ring);
}

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return ucm_time_ns(&now);
}

UNIT_TEST(polls_end_in_time, .rows = NUM_ROWS(kinds))
{
	struct ucm_ring *ring = open_ring(_i, 1);
	int64_t start = now_ns();

	if (!ring)
		return;
	ck_assert_ptr_null(ucm_ring_poll(ring, 0));
	ck_assert_ptr_null(ucm_ring_poll(ring, 30 * 1000000));
	ck_assert_int_ge(now_ns() - start, 30 * 1000000);
	ucm_ring_wake(ring); /* before it sleeps */
	ck_assert_ptr_null(ucm_ring_poll(ring, -1));
	start = now_ns();
	ck_assert_ptr_null(ucm_ring_poll(ring, 30 * 1000000));
	ck_assert_int_ge(now_ns() - start, 30 * 1000000);
	ucm_ring_close(ring);
}

static void *use_ring(void *arg)
{
	ssize_t fd = open_file("file", O_RDONLY);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ring_close(arg, fd), 0);
	return NULL;
}

UNIT_TEST(who_opens_a_ring_need_not_use_it, .rows = NUM_ROWS(kinds))
{
	struct ucm_ring *ring = open_ring(_i, 1);
	pthread_t thread;

	if (!ring)
		return;
	fx_put(fx_path("$/file"), "x", 1);
	ucm_ring_register(ring, room, ROOM);
	ck_assert_int_eq(pthread_create(&thread, NULL, use_ring, ring), 0);
	pthread_join(thread, NULL);
	ucm_ring_close(ring);
}

/* ---- the end ---- */

static void *feed(void *arg)
{
	if (write(*(int *)arg, "12345678", 8) != 8)
		abort();
	return NULL;
}

/* io_uring takes back a read of an empty pipe; a pool's thread waits for it. */
static void close_while_reading(int kind, struct ucm_ring *ring)
{
	pthread_t thread;
	struct ucm_io io;
	int ends[2];

	ck_assert_int_eq(pipe(ends), 0);
	io = read_of(ends[0], 8, -1, 1);
	ck_assert_int_eq(ucm_ring_queue(ring, &io), 0);
	ck_assert_ptr_null(ucm_ring_poll(ring, 0));
	if (kinds[kind] == UCM_IO_THREADS)
		ck_assert_int_eq(pthread_create(&thread, NULL, feed, &ends[1]),
				 0);
	ucm_ring_close(ring);
	if (kinds[kind] == UCM_IO_THREADS)
		pthread_join(thread, NULL);
	close(ends[0]);
	close(ends[1]);
}

UNIT_TEST(close_ends_a_read_that_waits, .rows = NUM_ROWS(kinds))
{
	unsigned before = open_files();
	struct ucm_ring *ring = open_ring(_i, 1);

	if (!ring)
		return;
	close_while_reading(_i, ring);
	ck_assert_uint_eq(open_files(), before);
}

/* Whether they were started, or not, or are done: nobody hears of them. */
UNIT_TEST(close_leaves_no_descriptors, .rows = NUM_ROWS(kinds))
{
	enum { OPS = 64 };

	for (unsigned started = 0; started <= OPS; started += OPS / 4) {
		unsigned before = open_files();
		struct ucm_ring *ring = open_ring(_i, OPS);
		struct ucm_io ios[OPS];

		if (!ring)
			return;
		for (unsigned i = 0; i < OPS; i++) {
			ios[i] = (struct ucm_io){
				.op = UCM_IO_CLOSE,
				.fd = dup(root),
			};
			must(!ucm_ring_queue(ring, &ios[i]));
			if (i + 1 == started)
				ucm_ring_poll(ring, 0);
		}
		ucm_ring_close(ring);
		ck_assert_uint_eq(open_files(), before);
	}
}

/* ---- kinds ---- */

UNIT_TEST(memory_that_is_registered_is_used)
{
	struct ucm_ring *ring = open_ring(0, 1);
	void *none = mmap(NULL, UNIT, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS,
			  -1, 0);
	struct ucm_io io;
	ssize_t fd;

	if (!ring)
		return;
	put_file("file", FILE_LEN);
	ck_assert_str_eq(ucm_ring_text(ring), "io_uring");
	ucm_ring_register(ring, none, UNIT);
	ck_assert_str_eq(ucm_ring_text(ring),
			 "io_uring, buffers not registered: Bad address");
	ucm_ring_register(ring, room + UNIT, 4 * UNIT);
	ck_assert_str_eq(ucm_ring_text(ring), "io_uring, registered buffers");
	fd = open_direct("file", O_RDONLY);
	for (size_t at = 0; at < ROOM; at += UNIT) { /* inside, across, outside */
		io = read_of(fd, 2 * UNIT, 0, UNIT);
		io.buffer = room + at;
		io.len = at + 2 * UNIT > ROOM ? UNIT : 2 * UNIT;
		memset(room, 0x55, ROOM);
		ck_assert_int_eq(carry_out(ring, &io), (ssize_t)io.len);
		check_bytes(io.buffer, 0, io.result);
	}
	ring_close(ring, fd);
	ucm_ring_close(ring);
	munmap(none, UNIT);
}

static void refuse_io_uring(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
			 offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { .len = NUM_ROWS(code), .filter = code };

	ck_assert_int_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	ck_assert_int_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program),
			 0);
}

static void use_without_io_uring(void *arg)
{
	struct ucm_ring *ring = NULL;
	ssize_t fd;

	(void)arg;
	refuse_io_uring();
	must(ucm_ring_open(UCM_IO_URING, 1, 1, &ring) < 0);
	must(!ring);
	fx_clear_log();
	must(!ucm_ring_open(UCM_IO_AUTO, 1, 1, &ring));
	must(strstr(ucm_ring_text(ring), "threads (io_uring: "));
	must(fx_logged("going on with threads"));
#ifdef HAVE_URING
	must(strstr(ucm_ring_text(ring), "Operation not permitted"));
#endif
	fx_put(fx_path("$/file"), "x", 1);
	fd = open_file("file", O_RDONLY);
	must(fd >= 0);
	must(!ring_close(ring, fd));
	ucm_ring_close(ring);
	fx_clear_log();
	must(!ucm_ring_open(UCM_IO_AUTO, 1, 1, &ring));
	must(!fx_logged("threads")); /* once is enough */
	ucm_ring_close(ring);
}

static unsigned long pinned_kib(void)
{
	unsigned long kib = 0;
	char line[256];
	FILE *status = fopen("/proc/self/status", "re");

	while (fgets(line, sizeof(line), status))
		sscanf(line, "VmPin: %lu", &kib);
	fclose(status);
	return kib;
}

static bool shares_buffers(void)
{
#ifdef HAVE_URING
	static char byte;
	struct ucm_pinned *pinned;

	if (!ucm_pinned_get(&byte, 1, &pinned)) {
		ucm_pinned_put(pinned);
		return true;
	}
#endif
	return false;
}

/* Whichever of them is closed first. */
UNIT_TEST(memory_that_several_rings_use_is_pinned_once, .rows = 2)
{
	struct ucm_ring *rings[2] = { open_ring(0, 1), open_ring(0, 1) };
	unsigned long before = pinned_kib(), one, two;
	struct ucm_io io;
	ssize_t fd;

	if (!rings[0])
		return;
	put_file("file", FILE_LEN);
	ucm_ring_register(rings[1], room, UNIT); /* has a table already */
	before = pinned_kib();
	ck_assert_int_eq(ucm_ring_pin(rings[0], room + UNIT, 4 * UNIT), 0);
	one = pinned_kib();
	ck_assert_int_eq(ucm_ring_pin(rings[1], room + UNIT, 4 * UNIT), 0);
	two = pinned_kib();
	if (shares_buffers())
		ck_assert_uint_eq(two, one);
	else
		unit_skip("pinned once: this kernel shares no buffers");
	ck_assert_uint_ge(one - before, 16);
	ucm_ring_close(rings[_i]);
	ck_assert(ucm_ring_is_pinned(rings[!_i], room + UNIT, 4 * UNIT));
	fd = open_direct("file", O_RDONLY);
	io = read_of(fd, UNIT, 0, UNIT);
	io.buffer = room + 2 * UNIT;
	ck_assert_int_eq(carry_out(rings[!_i], &io), UNIT);
	check_bytes(io.buffer, 0, UNIT);
	ring_close(rings[!_i], fd);
	ucm_ring_close(rings[!_i]);
}

#ifdef HAVE_URING
#define SHEET ((size_t)2 << 20)

/* So many bytes of addresses, all of the same two MiB. */
static char *map_sheets(size_t len)
{
	int fd = memfd_create("sheet", MFD_CLOEXEC);
	char *memory = mmap(NULL, len, PROT_NONE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	ck_assert(fd >= 0 && memory != MAP_FAILED);
	ck_assert_int_eq(ftruncate(fd, (off_t)SHEET), 0);
	for (size_t at = 0; at < len; at += SHEET)
		must(mmap(memory + at, SHEET, PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_FIXED, fd, 0) == memory + at);
	close(fd);
	return memory;
}

/* They have their first parts in common, and part with their own. Row: are they
 * pinned for the ring alone? */
UNIT_TEST(pins_that_begin_alike_are_told_apart, .rows = 2)
{
	int (*const pin[])(struct ucm_ring *, void *, size_t) = {
		ucm_ring_pin, ucm_ring_pin_own,
	};
	const size_t len = UCM_PINNED_PART + SHEET, longer = len + SHEET;
	struct ucm_ring *ring = open_ring(0, 1);
	char *memory, *last;

	if (!ring)
		return;
	memory = map_sheets(longer);
	last = memory + UCM_PINNED_PART;
	if (pin[_i](ring, memory, len) || pin[_i](ring, memory, longer)) {
		unit_skip("2 GiB cannot be pinned");
		goto unmap;
	}
	ucm_ring_unpin(ring, memory, longer);
	ck_assert(ucm_ring_is_pinned(ring, memory, UNIT));
	ck_assert(ucm_ring_is_pinned(ring, last, SHEET));
	ck_assert(!ucm_ring_is_pinned(ring, last + SHEET, UNIT));
	ucm_ring_unpin(ring, memory, longer); /* is none any more */
	ck_assert(ucm_ring_is_pinned(ring, memory, UNIT));
	ucm_ring_unpin(ring, memory, len);
	ck_assert(!ucm_ring_is_pinned(ring, memory, UNIT));
	ck_assert(!ucm_ring_is_pinned(ring, last, UNIT));
unmap:
	ucm_ring_close(ring);
	munmap(memory, longer);
}
#endif

/* ---- a kernel's ring that fails ---- */

static int refuse_entry(void)
{
	return -EPERM;
}

/* As a program does that becomes a daemon. */
static void close_kernels_ring(void)
{
	char path[64], target[64];

	for (int fd = 3; fd < 1024; fd++) {
		ssize_t len;

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		len = readlink(path, target, sizeof(target) - 1);
		if (len < 0)
			continue;
		target[len] = '\0';
		if (!strcmp(target, "anon_inode:[io_uring]"))
			close(fd);
	}
}

/* NULL: this machine has no io_uring to test. A read that waits is under way. */
static struct ucm_ring *open_busy(enum ucm_io_kind kind, int fds[2],
				  struct ucm_io *waits)
{
	struct ucm_ring *ring;

	ck_assert_int_eq(ucm_ring_open(kind, 8, 3, &ring), 0);
	if (!strstr(ucm_ring_text(ring), "io_uring") ||
	    strstr(ucm_ring_text(ring), "threads")) {
		unit_skip("no io_uring");
		ucm_ring_close(ring);
		return NULL;
	}
	signal(SIGPIPE, SIG_IGN);
	ck_assert_int_eq(pipe(fds), 0);
	*waits = (struct ucm_io){ .op = UCM_IO_READ, .fd = fds[0],
				  .buffer = room, .len = UNIT, .offset = -1,
				  .align = 1 };
	ck_assert_int_eq(ucm_ring_queue(ring, waits), 0);
	ck_assert_ptr_null(ucm_ring_poll(ring, 0));
	return ring;
}

static ssize_t wait_for(struct ucm_ring *ring, const struct ucm_io *io)
{
	struct ucm_io *done = NULL;

	while (!done)
		done = ucm_ring_poll(ring, 10000000000);
	ck_assert_ptr_eq(done, io);
	ck_assert_ptr_null(done->next);
	return io->result;
}

/* The kernel keeps no reader of the pipe: nothing will come late. */
static void check_let_go(int fds[2])
{
	close(fds[0]);
	ck_assert_int_eq(write(fds[1], "late", 4), -1);
	ck_assert_int_eq(errno, EPIPE);
	close(fds[1]);
}

/* Row: is its descriptor closed, or is the call refused? */
UNIT_TEST(a_ring_that_fails_goes_on_with_threads, .rows = 2)
{
	struct ucm_io waits, io;
	struct ucm_ring *ring;
	ssize_t fd;
	int fds[2];

	put_file("file", FILE_LEN);
	ring = open_busy(UCM_IO_AUTO, fds, &waits);
	if (!ring)
		return;
	if (_i)
		close_kernels_ring();
	else
		ucm_ring_enter_fault = refuse_entry;
	/* what was under way ends, and not before the kernel has let go */
	ck_assert_int_eq(wait_for(ring, &waits), -EIO);
	check_let_go(fds);
	memset(room, 0x11, ROOM);
	fd = open_file("file", O_RDONLY);
	ck_assert_int_ge(fd, 0);
	io = read_of(fd, FILE_LEN, 0, 1);
	ck_assert_int_eq(carry_out(ring, &io), FILE_LEN);
	check_bytes(room, 0, FILE_LEN);
	ck_assert_int_eq(ring_close(ring, fd), 0);
	ck_assert_msg(strstr(ucm_ring_text(ring), "threads (io_uring failed: "),
		      "%s", ucm_ring_text(ring));
	ck_assert(!ucm_ring_is_pinned(ring, room, 1));
	ucm_ring_close(ring);
}

static void *wake_once(void *arg)
{
	ucm_ring_wake(arg);
	return NULL;
}

UNIT_TEST(a_ring_that_must_be_the_kernels_refuses_once_it_fails, .rows = 2)
{
	struct ucm_io waits, late;
	struct ucm_ring *ring;
	pthread_t thread;
	int fds[2];

	ring = open_busy(UCM_IO_URING, fds, &waits);
	if (!ring)
		return;
	if (_i)
		close_kernels_ring();
	else
		ucm_ring_enter_fault = refuse_entry;
	ck_assert_int_eq(wait_for(ring, &waits), -EIO);
	check_let_go(fds);
	late = read_of(root, 1, 0, 1);
	ck_assert_int_eq(carry_out(ring, &late), -EIO);
	ck_assert_int_eq(pthread_create(&thread, NULL, wake_once, ring), 0);
	ck_assert_ptr_null(ucm_ring_poll(ring, -1)); /* it can be woken */
	pthread_join(thread, NULL);
	ck_assert_ptr_null(ucm_ring_poll(ring, 1000000));
	ucm_ring_close(ring);
}

UNIT_TEST(a_ring_that_has_failed_unnoticed_is_closed, .rows = 2)
{
	struct ucm_io waits;
	struct ucm_ring *ring;
	int fds[2];

	ring = open_busy(UCM_IO_AUTO, fds, &waits);
	if (!ring)
		return;
	if (_i)
		close_kernels_ring();
	else
		ucm_ring_enter_fault = refuse_entry;
	ucm_ring_close(ring);
	check_let_go(fds);
}

UNIT_TEST(without_io_uring_there_are_threads)
{
	fx_in_child(use_without_io_uring, NULL);
}

UNIT_TEST(threads_are_had_for_the_asking)
{
	struct ucm_ring *ring;

	ck_assert_int_eq(ucm_ring_open(UCM_IO_THREADS, 1, 0, &ring), 0);
	ck_assert_str_eq(ucm_ring_text(ring), "threads");
	ucm_ring_register(ring, room, ROOM);
	ck_assert_str_eq(ucm_ring_text(ring), "threads");
	ucm_ring_close(ring);
	ucm_ring_close(NULL);
}
