/* SPDX-License-Identifier: Apache-2.0 */
/* test_reader_memory.c - what a daemon says of its memory is not believed. */
#include <config.h>

#include "fs/reader/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ucm/control.h>

#include "tests/unit/unit.h"

#define BYTES 4096

static int fd;

static void setup(void)
{
	fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ftruncate(fd, BYTES), 0);
}

static void teardown(void)
{
	close(fd);
}

static void seal(void)
{
	ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
}

/* What an honest daemon says of a descriptor; here it is this process. */
static struct ucm_control_memory told(int of)
{
	struct stat st;

	ck_assert_int_eq(fstat(of, &st), 0);
	return (struct ucm_control_memory){
		.version = UCM_CONTROL_VERSION,
		.pid = getpid(),
		.fd = of,
		.device = st.st_dev,
		.inode = st.st_ino,
	};
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

UNIT_TEST(the_memory_is_opened_by_another_descriptor)
{
	struct ucm_control_memory memory = told(fd);
	char *ours, *theirs;
	int taken;

	seal();
	taken = ucm_reader_memory_take(&memory, O_RDWR);
	ck_assert_int_ge(taken, 0);
	ck_assert_int_ne(taken, fd);
	ours = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, taken, 0);
	theirs = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0);
	must(ours != MAP_FAILED && theirs != MAP_FAILED);
	ours[1] = 7;
	ck_assert_int_eq(theirs[1], 7);
	munmap(ours, BYTES);
	munmap(theirs, BYTES);
	close(taken);
}

UNIT_TEST(another_file_is_not_it)
{
	struct ucm_control_memory memory = told(fd);

	seal();
	memory.inode++;
	ck_assert_int_eq(ucm_reader_memory_take(&memory, O_RDONLY), -ESTALE);
	memory = told(fd);
	memory.device++;
	ck_assert_int_eq(ucm_reader_memory_take(&memory, O_RDONLY), -ESTALE);
}

UNIT_TEST(a_process_that_is_not_there_has_none)
{
	struct ucm_control_memory memory = told(fd);

	seal();
	memory.pid = 0;
	ck_assert_int_eq(ucm_reader_memory_take(&memory, O_RDONLY), -ENOENT);
	memory = told(fd);
	memory.fd = 1 << 20;
	ck_assert_int_eq(ucm_reader_memory_take(&memory, O_RDONLY), -ENOENT);
}

/* Whoever has mapped it would die. */
UNIT_TEST(what_can_be_made_shorter_is_refused)
{
	struct ucm_control_memory memory = told(fd);
	int taken;

	ck_assert_int_eq(ucm_reader_memory_take(&memory, O_RDONLY), -EPROTO);
	seal();
	taken = ucm_reader_memory_take(&memory, O_RDONLY);
	ck_assert_int_ge(taken, 0);
	close(taken);
}

UNIT_TEST(a_file_on_a_disk_is_refused)
{
	FILE *file = tmpfile();
	struct ucm_control_memory memory;

	ck_assert_ptr_nonnull(file);
	ck_assert_int_eq(ftruncate(fileno(file), BYTES), 0);
	memory = told(fileno(file));
	ck_assert_int_eq(ucm_reader_memory_take(&memory, O_RDONLY), -EPROTO);
	fclose(file);
}

/* To open what is no file may do something: a pipe gets a reader, and whoever
 * writes goes on. */
UNIT_TEST(a_pipe_is_not_opened)
{
	struct ucm_control_memory memory;
	int ends[2];

	ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
	memory = told(ends[1]);
	ck_assert_int_eq(ucm_reader_memory_take(&memory, O_RDONLY), -ESTALE);
	close(ends[0]);
	close(ends[1]);
}
