/* SPDX-License-Identifier: Apache-2.0 */
/* test_lock.c - who uses a directory, and who waits for whom. */
#include <config.h>

#include "fs/medium/dir/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/osfile.h"
#include "tests/unit/dir_fixture.h"

static struct ucm_error error;
static int ctl, held;

static void setup(void)
{
	fx_setup();
	fx_mkdirs(fx_path("$/ctl"));
	ctl = open(fx_path("$/ctl"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ck_assert_int_ge(ctl, 0);
	held = ucm_lock_take(ctl, "dir", 0, &error);
	ck_assert_int_ge(held, 0);
}

static void teardown(void)
{
	if (held >= 0)
		close(held);
	close(ctl);
	fx_teardown();
}

static int take(unsigned wait_s)
{
	int fd = ucm_lock_take(ctl, "dir", wait_s, &error);

	if (fd >= 0)
		close(fd);
	return fd < 0 ? fd : 0;
}

static void say(const char *text)
{
	ck_assert_int_eq(ftruncate(held, 0), 0);
	ck_assert_int_eq(pwrite(held, text, strlen(text), 0),
			 (ssize_t)strlen(text));
}

/* The test itself has it. */
static const char *in_use_by_us(void)
{
	static char text[96];
	char name[32] = "";
	int fd = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
	ssize_t len = read(fd, name, sizeof(name) - 1);

	ck_assert_int_gt(len, 0);
	close(fd);
	name[len - 1] = '\0';
	snprintf(text, sizeof(text),
		 "dir: in use by another ucmfs (process %d, %s)", (int)getpid(),
		 name);
	return text;
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

/* Of an older version, of another process namespace, and whatever else. */
static const char *const sayings[] = {
	"", "\n", "x", "serving 1 4000:4000 0", "\xff\xff\xff", "endin",
	"used", "used 1 1", "used -1 0", "used x 1",
};

UNIT_TEST(what_cannot_be_understood_is_in_use, .rows = NUM_ROWS(sayings))
{
	say(sayings[_i]);
	ck_assert_int_eq(take(0), -EBUSY);
	ck_assert_str_eq(error.text, "dir: in use by another ucmfs");
}

static void *let_go(void *arg)
{
	(void)arg;
	while (!fx_logged("dir: waiting for another ucmfs to end"))
		usleep(1000);
	close(held);
	held = -1;
	return NULL;
}

static void must_be_waited_for(void)
{
	pthread_t thread;

	ck_assert_int_eq(pthread_create(&thread, NULL, let_go, NULL), 0);
	ck_assert_int_eq(take(60), 0);
	pthread_join(thread, NULL);
}

/* Its mount may be gone, or its last client. */
UNIT_TEST(one_that_may_be_ending_is_waited_for)
{
	must_be_waited_for();
}

UNIT_TEST(one_that_goes_on_is_refused_after_seconds)
{
	int64_t before = ucm_monotonic_ms();

	ck_assert_int_eq(take(60), -EBUSY);
	ck_assert_int_lt(ucm_monotonic_ms() - before, 30000);
	ck_assert_str_eq(error.text, in_use_by_us());
	ck_assert(fx_logged("waiting for another ucmfs to end"));
}

UNIT_TEST(one_that_is_ending_is_waited_for_longer)
{
	int64_t before = ucm_monotonic_ms();

	ucm_lock_ending(held);
	ck_assert_int_eq(take(5), -EBUSY);
	ck_assert_int_ge(ucm_monotonic_ms() - before, 5000);
	ck_assert_ptr_nonnull(strstr(error.text, in_use_by_us()));
	ck_assert_ptr_nonnull(strstr(error.text, "), which is ending"));
}

UNIT_TEST(the_wait_is_bounded)
{
	int64_t before = ucm_monotonic_ms();

	ck_assert_int_eq(take(0), -EBUSY);
	ck_assert(!fx_logged("waiting"));
	ck_assert_int_eq(take(1), -EBUSY);
	ck_assert_int_ge(ucm_monotonic_ms() - before, 1000);
}

UNIT_TEST(one_that_ends_between_two_looks_is_no_user)
{
	close(held);
	held = -1;
	fx_fail("lock", 1, -EAGAIN, true);
	ck_assert_int_eq(take(0), 0);
}

static const struct { int err, want; const char *says; } errors[] = {
	{ -EAGAIN, -EBUSY, NULL },
	{ -EACCES, -EBUSY, NULL },
	{ -ENOLCK, -ENOLCK, "dir: .ucmfs/lock: No locks available" },
	{ -EOPNOTSUPP, -EOPNOTSUPP,
	  "dir: .ucmfs/lock: Operation not supported" },
	{ -EIO, -EIO, "dir: .ucmfs/lock: Input/output error" },
};

UNIT_TEST(in_use_is_said_only_of_what_is_in_use, .rows = NUM_ROWS(errors))
{
	fx_fail("lock", 1, errors[_i].err, false);
	ck_assert_int_eq(take(0), errors[_i].want);
	ck_assert_str_eq(error.text, errors[_i].says ? errors[_i].says
						     : in_use_by_us());
}

/* A full directory is to be used, and emptied. */
UNIT_TEST(a_lock_in_which_nothing_can_be_written_is_one)
{
	close(held);
	fx_fail("write", 1, -ENOSPC, false);
	held = ucm_lock_take(ctl, "dir", 0, &error);
	ck_assert_int_ge(held, 0);
	ucm_lock_ending(held);
	fx_fail(NULL, 0, 0, false);
	ck_assert_int_eq(take(0), -EBUSY);
	ucm_lock_ending(-1); /* harmless */
}
