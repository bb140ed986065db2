/* SPDX-License-Identifier: Apache-2.0 */
/* test_ring_wait.c - threads that wait for a ring, wake it and close it. */
#include <config.h>

#include "gpu/ring/ring.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#include "common/clock.h"
#include "tests/unit/ring/ring_fixture.h"

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

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

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
