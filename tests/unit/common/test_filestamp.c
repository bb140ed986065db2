/* SPDX-License-Identifier: Apache-2.0 */
/* test_filestamp.c - what makes a file another one. */
#include <config.h>

#include "common/filestamp.h"

#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "tests/unit/dir_fixture.h"

static uint64_t stamp_of(const char *path)
{
	struct stat st;

	ck_assert_int_eq(stat(path, &st), 0);
	return ucm_file_stamp(&st);
}

static int64_t ctime_of(const char *path)
{
	struct stat st;

	ck_assert_int_eq(stat(path, &st), 0);
	return ucm_time_ns(&st.st_ctim);
}

/* Until a change has another time. */
static void settle(const char *path)
{
	const char *now = fx_path("$/now");

	do {
		fx_put(now, "", 0);
		ck_assert_int_eq(unlink(now), 0);
		fx_put(now, "", 0);
	} while (ctime_of(now) <= ctime_of(path));
}

UNIT_FIXTURE(.setup = fx_setup, .teardown = fx_teardown);

UNIT_TEST(a_write_shows_though_times_were_set_back)
{
	const char *path = fx_path("$/file");
	_cleanup_fd_ int fd = -1;
	struct timespec times[2];
	uint64_t before;
	struct stat st;

	fx_put(path, "abc", 3);
	settle(path);
	before = stamp_of(path);
	ck_assert_uint_eq(stamp_of(path), before);
	ck_assert_int_eq(stat(path, &st), 0);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	ck_assert_int_eq(pwrite(fd, "x", 1, 1), 1);
	times[0] = st.st_atim;
	times[1] = st.st_mtim;
	ck_assert_int_eq(futimens(fd, times), 0);
	ck_assert_uint_ne(stamp_of(path), before);
}

UNIT_TEST(a_copy_is_another_file)
{
	const char *path = fx_path("$/file"), *copy = fx_path("$/copy");
	uint64_t before;

	fx_put(path, "abc", 3);
	before = stamp_of(path);
	fx_put(copy, "abc", 3);
	ck_assert_int_eq(rename(copy, path), 0);
	ck_assert_uint_ne(stamp_of(path), before);
}

UNIT_TEST(each_part_counts, .rows = 5)
{
	struct stat st = { .st_dev = 1, .st_ino = 2, .st_size = 3 };
	uint64_t before = ucm_file_stamp(&st);

	st.st_dev += _i == 0;
	st.st_ino += _i == 1;
	st.st_size += _i == 2;
	st.st_mtim.tv_nsec += _i == 3;
	st.st_ctim.tv_nsec += _i == 4;
	ck_assert_uint_ne(ucm_file_stamp(&st), before);
	ck_assert_uint_lt(ucm_file_stamp(&st),
			  UINT64_C(1) << UCM_FILESTAMP_BITS);
}

UNIT_TEST(one_that_was_just_changed_is_not_settled)
{
	const char *path = fx_path("$/file");
	struct stat st;

	fx_put(path, "abc", 3);
	ck_assert_int_eq(stat(path, &st), 0);
	clock_gettime(CLOCK_REALTIME, &st.st_ctim);
	ck_assert(!ucm_file_is_settled(&st));
	st.st_ctim.tv_sec += 1000; /* the clock was set back */
	ck_assert(!ucm_file_is_settled(&st));
}

/* One write may take so long, and sets the times when it begins. */
UNIT_TEST(a_file_is_settled_when_no_write_can_still_be_under_way)
{
	struct stat st = { .st_size = 1 };

	clock_gettime(CLOCK_REALTIME, &st.st_ctim);
	st.st_ctim.tv_sec -= UCM_FILESTAMP_AGE_S - 5;
	ck_assert(!ucm_file_is_settled(&st));
	st.st_ctim.tv_sec -= 6;
	ck_assert(ucm_file_is_settled(&st));
	ck_assert_int_ge(UCM_FILESTAMP_AGE_S, 30);
}
