/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_ring.c - reads and writes through a ring of either kind, and the memory
 * that it pins.
 */
#include <config.h>

#include "gpu/ring/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef HAVE_URING
#include "gpu/ring/pinned.h"
#endif
#include "tests/unit/ring/ring_fixture.h"

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

/* ---- files ---- */

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
