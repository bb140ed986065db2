/* SPDX-License-Identifier: Apache-2.0 */
/* test_notices.c - names to be told of: a folder that hangs holds up no other,
 * and what waits is bounded. */
#include <config.h>

#include "fs/mount/notices.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/unit.h"

#define ABOVE 1000000u
#define LOG 20000u

static struct ucm_notices *notices;
static struct ucm_notices_stats stats;

/* What was told, in order; of a name its number, of a whole folder -1. */
static struct told {
	uint64_t folder;
	int number;
} told[LOG];
static _Atomic unsigned num_told;

/* Calls for these folders (up to 64) hang until they are let go. */
static _Atomic uint64_t held;
static _Atomic bool above_is_held;

static void note(uint64_t folder, int number)
{
	unsigned at = atomic_fetch_add(&num_told, 1);

	must(at < LOG);
	told[at] = (struct told){ folder, number };
}

static bool is_held(uint64_t folder)
{
	return folder < 64 && atomic_load(&held) >> folder & 1;
}

static void tell_name(void *arg, uint64_t folder, const struct ucm_key *key)
{
	int number;

	(void)arg;
	while (is_held(folder))
		usleep(1000);
	memcpy(&number, key->id.bytes, sizeof(number));
	note(folder, number);
}

static void tell_folder(void *arg, uint64_t folder, const struct ucm_key *key)
{
	(void)arg;
	(void)key;
	while (atomic_load(&above_is_held))
		usleep(1000);
	note(folder, -1);
}

static const struct ucm_notices_ops ops = {
	.name = tell_name,
	.folder = tell_folder,
};

static void add(uint64_t folder, int number)
{
	struct ucm_key key = { .space = 0 };

	memcpy(key.id.bytes, &number, sizeof(number));
	ucm_notices_add(notices, folder, ABOVE, &key);
}

static void look(void)
{
	ucm_notices_get_stats(notices, &stats);
}

/* Until so many calls have ended. */
static void wait_told(unsigned num)
{
	do {
		usleep(1000);
		look();
	} while (stats.told < num);
}

static void wait_stuck(unsigned num)
{
	do {
		usleep(1000);
		look();
	} while (stats.stuck < num);
}

static bool is_told(uint64_t folder, int number)
{
	for (unsigned i = 0; i < num_told; i++) {
		if (told[i].folder == folder && told[i].number == number)
			return true;
	}
	return false;
}

static void set_up(void)
{
	notices = ucm_notices_open(&ops, NULL);
	ck_assert_ptr_nonnull(notices);
	num_told = 0;
	held = 0;
	above_is_held = false;
}

static void tear_down(void)
{
	held = 0;
	above_is_held = false;
	ck_assert(ucm_notices_close(notices, 10000));
}

UNIT_FIXTURE(.setup = set_up, .teardown = tear_down, .timeout = 60);

UNIT_TEST(names_of_a_folder_are_told_in_their_order)
{
	for (int i = 0; i < 100; i++) {
		add(1, i);
		add(2, i);
	}
	wait_told(200);
	for (uint64_t folder = 1; folder <= 2; folder++) {
		int next = 0;

		for (unsigned i = 0; i < num_told; i++) {
			if (told[i].folder == folder)
				ck_assert_int_eq(told[i].number, next++);
		}
		ck_assert_int_eq(next, 100);
	}
	ck_assert_uint_eq(stats.waiting, 0);
	ck_assert_uint_eq(stats.collapsed, 0);
}

UNIT_TEST(a_folder_that_hangs_holds_up_no_other)
{
	held = 1 << 1;
	add(1, 0);
	for (uint64_t folder = 2; folder < 40; folder++)
		add(folder, 7);
	wait_told(38);
	ck_assert(!is_told(1, 0));
	held = 0;
	wait_told(39);
	ck_assert(is_told(1, 0));
}

UNIT_TEST(names_of_a_folder_that_hangs_become_the_whole_folder)
{
	held = 1 << 1;
	add(1, 0);
	add(1, 1);
	wait_stuck(1);
	add(1, 2);
	wait_told(1);
	ck_assert(is_told(1, -1));
	ck_assert_uint_eq(stats.collapsed, 2);
	ck_assert_uint_eq(stats.waiting, 0);
	held = 0;
	wait_told(2);
	ck_assert(is_told(1, 0));
	ck_assert(!is_told(1, 1));
	/* and what comes later is told by its name */
	add(1, 3);
	wait_told(3);
	ck_assert(is_told(1, 3));
}

UNIT_TEST(too_many_names_of_a_folder_become_the_whole_folder)
{
	int num = UCM_NOTICES_OF_FOLDER + 10;

	held = 1 << 1;
	for (int i = 0; i < num; i++)
		add(1, i);
	wait_told(1);
	ck_assert(is_told(1, -1));
	ck_assert_uint_le(stats.waiting, UCM_NOTICES_OF_FOLDER);
	ck_assert_uint_ge(stats.collapsed, UCM_NOTICES_OF_FOLDER);
}

UNIT_TEST(when_all_hang_whole_folders_are_told)
{
	held = UINT64_MAX;
	for (uint64_t folder = 0; folder < 20; folder++)
		add(folder, 0);
	wait_stuck(UCM_NOTICES_THREADS - 1);
	ck_assert_uint_eq(stats.stuck, UCM_NOTICES_THREADS - 1);
	add(0, 1);
	wait_told(1);
	ck_assert(is_told(0, -1));
	look();
	ck_assert_uint_eq(stats.waiting, 20 - (UCM_NOTICES_THREADS - 1));
	held = 0;
	wait_told(21);
}

UNIT_TEST(what_waits_is_bounded)
{
	held = UINT64_MAX;
	for (uint64_t folder = 0; folder < UCM_NOTICES_THREADS - 1; folder++)
		add(folder, 0);
	above_is_held = true;
	for (uint64_t i = 0; i < 3 * UCM_NOTICES_ALL; i++)
		add(100 + i, 0);
	look();
	ck_assert_uint_le(stats.waiting, 2 * UCM_NOTICES_ALL);
	ck_assert_uint_gt(stats.lost, 0);
	above_is_held = false;
	/* what was not lost is told of, one way or the other */
	held = 0;
	wait_told(3 * UCM_NOTICES_ALL + UCM_NOTICES_THREADS - 1 -
		  (unsigned)stats.lost);
}

UNIT_TEST(a_folder_above_that_hangs_as_well_loses_what_is_below)
{
	held = 1 << 1 | 1 << 2;
	above_is_held = true;
	add(1, 0);
	add(2, 0);
	wait_stuck(2);
	add(1, 1);
	wait_stuck(3);
	add(2, 1);
	look();
	ck_assert_uint_eq(stats.lost, 1);
	ck_assert_uint_eq(stats.waiting, 0);
}

UNIT_TEST(the_end_does_not_wait_for_what_hangs)
{
	held = 1 << 1;
	add(1, 0);
	add(1, 1);
	do {
		look();
	} while (stats.waiting != 1); /* the first is in its call */
	ck_assert(!ucm_notices_close(notices, 20));
	add(2, 0);
	held = 0;
	ck_assert(ucm_notices_close(notices, 10000));
	ck_assert_uint_eq(num_told, 1);
	notices = NULL;
}
