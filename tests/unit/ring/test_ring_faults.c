/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_ring_faults.c - operations of a ring that fail or are short, and a
 * kernel's ring that fails as a whole.
 */
#include <config.h>

#include "gpu/ring/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/ring/ring_fixture.h"

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

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

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
