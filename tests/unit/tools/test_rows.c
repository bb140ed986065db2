/* SPDX-License-Identifier: Apache-2.0 */
/* test_rows.c - blocks in order, and what the commands read from text. */
#include <config.h>

#include "tools/lib/list.h"

#include <errno.h>
#include <stdio.h>

#include "tests/unit/unit.h"
#include "tools/check/doctor.h"
#include "tools/lib/ids.h"

static const struct ucm_row some[] = {
	{ { { 3 } }, { .size = 10, .mtime_ns = -1, .uses = 5, .atime_s = 9 } },
	{ { { 1 } }, { .size = 30, .mtime_ns = 7, .uses = 5, .atime_s = 8 } },
	{ { { 2 } }, { .size = 20, .mtime_ns = 9, .uses = 6, .atime_s = 7 } },
};

static const struct {
	enum ucm_list_order by;
	const char *order;
} orders[] = {
	{ UCM_ROWS_NAME, "123" }, { UCM_ROWS_SIZE, "123" },
	{ UCM_ROWS_AGE, "213" },  { UCM_ROWS_USES, "213" },
	{ UCM_ROWS_ATIME, "312" },
};

UNIT_TEST(rows_go_by_what_was_asked_for_and_then_by_name,
	  .rows = NUM_ROWS(orders))
{
	struct ucm_row copies[3];
	struct ucm_list rows = { .rows = copies, .num = 3 };

	for (unsigned i = 0; i < 3; i++)
		copies[i] = some[i];
	ucm_list_sort(&rows, orders[_i].by);
	for (unsigned i = 0; i < 3; i++)
		ck_assert_int_eq('0' + copies[i].id.bytes[0],
				 orders[_i].order[i]);
}

#define HEX "0123456789abcdef0123456789abcdef"

static const struct {
	const char *text;
	bool good;
} prefixes[] = {
	{ "0", true }, { "3f", true }, { HEX, true },  { "", false },
	{ "3F", false }, { "g", false }, { HEX "0", false }, { "3f/", false },
};

UNIT_TEST(a_prefix_is_some_lowercase_hex_digits, .rows = NUM_ROWS(prefixes))
{
	const char *prefix;
	const struct ucm_arg arg = { .to = &prefix };
	char text[64];

	snprintf(text, sizeof(text), "%s", prefixes[_i].text);
	ck_assert(!ucm_list_prefix(&arg, text) == prefixes[_i].good);
}

UNIT_TEST(ids_are_taken_from_arguments)
{
	static char *const good[] = { HEX, HEX ".bin", "/m/blocks/01/" HEX
							".bin" };
	static char *const bad[] = { HEX, "x" };
	struct ucm_ids ids = { 0 };

	ck_assert_int_eq(ucm_ids_take(&ids, 3, good), 0);
	ck_assert_uint_eq(ids.num, 3);
	for (unsigned i = 0; i < 3; i++)
		ck_assert_uint_eq(ids.ids[i].bytes[15], 0xef);
	ck_assert_int_eq(ucm_ids_take(&ids, 2, bad), -EINVAL);
	ucm_ids_fini(&ids);
}

static const struct {
	const char *release;
	unsigned major, minor;
	bool is;
} releases[] = {
	{ "6.9.0", 6, 9, true },     { "6.8.12-x", 6, 9, false },
	{ "6.14", 6, 9, true },	     { "7.0-rc1", 6, 14, true },
	{ "5.15.0", 6, 9, false },   { "6.9", 6, 14, false },
	{ "unknown", 6, 9, false },  { "", 0, 0, false },
};

UNIT_TEST(releases_of_the_kernel_are_compared_as_numbers,
	  .rows = NUM_ROWS(releases))
{
	ck_assert(ucm_release_is(releases[_i].release, releases[_i].major,
				 releases[_i].minor) == releases[_i].is);
}
