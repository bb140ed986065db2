/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring_fixture.h - a ring of either kind, and files to read.
 *
 * Loop tests: the loop's number is an index of kinds[]. The files lie in the
 * working directory, because direct I/O wants a real file system.
 */
#ifndef UCM_TESTS_RING_FIXTURE_H
#define UCM_TESTS_RING_FIXTURE_H

#include "gpu/ring/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "common/osfile.h"
#include "tests/unit/dir_fixture.h"

#define UNIT 4096
#define FILE_LEN (3 * UNIT + 1234)
#define ROOM ((size_t)(8 * UNIT))

static const enum ucm_io_kind kinds[] = { UCM_IO_URING, UCM_IO_THREADS };
static int root;
static char *room; /* ROOM bytes, aligned */

static inline void setup(void)
{
	fx_setup();
	root = open(fx_path("$"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ck_assert_int_ge(root, 0);
	ck_assert_int_eq(posix_memalign((void **)&room, UNIT, ROOM), 0);
}

static inline void teardown(void)
{
	ucm_ring_fault = NULL;
	ucm_ring_enter_fault = NULL;
	free(room);
	close(root);
	fx_teardown();
}

/* NULL where this machine has no io_uring to test. */
static inline struct ucm_ring *open_ring(int kind, unsigned depth)
{
	struct ucm_ring *ring = NULL;
	int err = ucm_ring_open(kinds[kind], depth, 3, &ring);

	if (err && kinds[kind] == UCM_IO_URING)
		unit_skip("io_uring: %s", strerror(-err));
	else
		ck_assert_int_eq(err, 0);
	return ring;
}

static inline char byte_at(size_t offset)
{
	return (char)((offset * 2654435761u) >> 13);
}

static inline void put_file(const char *name, size_t len)
{
	char *bytes = malloc(len + 1);

	for (size_t i = 0; i < len; i++)
		bytes[i] = byte_at(i);
	fx_put(fx_path("$/%s", name), bytes, len);
	free(bytes);
}

static inline void check_bytes(const char *bytes, off_t offset, ssize_t len)
{
	for (ssize_t i = 0; i < len; i++)
		must(bytes[i] == byte_at((size_t)(offset + i)));
}

/* Queue, and wait for it. */
static inline ssize_t carry_out(struct ucm_ring *ring, struct ucm_io *io)
{
	struct ucm_io *done;

	ck_assert_int_eq(ucm_ring_queue(ring, io), 0);
	done = ucm_ring_poll(ring, -1);
	ck_assert_ptr_eq(done, io);
	ck_assert_ptr_null(done->next);
	return io->result;
}

static inline ssize_t open_file(const char *path, int flags)
{
	return ucm_os_open(root, path, flags, 0640);
}

static inline ssize_t ring_close(struct ucm_ring *ring, ssize_t fd)
{
	struct ucm_io io = { .op = UCM_IO_CLOSE, .fd = (int)fd };

	return carry_out(ring, &io);
}

static inline ssize_t open_direct(const char *path, int flags)
{
	ssize_t fd = open_file(path, flags | O_DIRECT);

	if (fd != -EINVAL)
		return fd;
	unit_skip("direct I/O: this file system has none");
	return open_file(path, flags);
}

static inline struct ucm_io read_of(ssize_t fd, size_t len, off_t offset,
				    uint32_t align)
{
	return (struct ucm_io){ .op = UCM_IO_READ, .fd = (int)fd,
				.buffer = room, .len = len, .offset = offset,
				.align = align };
}

static inline unsigned open_files(void)
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

#endif
