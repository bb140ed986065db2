/* SPDX-License-Identifier: Apache-2.0 */
/* test_sized.c - structs of older and newer headers. */
#include <config.h>

#include "common/sized.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "tests/unit/unit.h"

/* What the library knows, and what a program may have. */
struct thing {
	size_t size;
	uint32_t old, newer;
};

struct later_thing {
	size_t size;
	uint32_t old, newer;
	uint64_t latest;
};

static int take(const void *given, struct thing *out, struct ucm_error *error)
{
	return ucm_sized_take(out, sizeof(*out), given,
			      offsetof(struct thing, newer), "thing", error);
}

UNIT_TEST(one_of_the_same_version_is_taken)
{
	const struct thing given = UCM_SIZED(thing, .old = 1, .newer = 2);
	struct thing own;

	ck_assert_int_eq(take(&given, &own, NULL), 0);
	ck_assert_int_eq(memcmp(&own, &given, sizeof(own)), 0);
}

UNIT_TEST(what_an_older_one_lacks_is_zero)
{
	struct thing given = { .size = offsetof(struct thing, newer),
			       .old = 1, .newer = 2 };
	struct thing own;

	memset(&own, 0xff, sizeof(own));
	ck_assert_int_eq(take(&given, &own, NULL), 0);
	ck_assert_uint_eq(own.old, 1);
	ck_assert_uint_eq(own.newer, 0);
}

UNIT_TEST(a_newer_one_is_taken_as_long_as_it_asks_for_nothing_new)
{
	struct later_thing given = UCM_SIZED(later_thing, .newer = 2);
	struct ucm_error error = { "" };
	struct thing own;

	ck_assert_int_eq(take(&given, &own, &error), 0);
	ck_assert_uint_eq(own.newer, 2);
	given.latest = UINT64_C(1) << 56; /* its last byte */
	own.newer = 7;
	ck_assert_int_eq(take(&given, &own, &error), -E2BIG);
	ck_assert_str_eq(error.text, "size 24 of struct thing: this library "
				     "knows 16 bytes, and byte 23 is not zero");
	ck_assert_uint_eq(own.newer, 7);
}

UNIT_TEST(a_size_that_is_too_small_is_refused, .rows = 3)
{
	static const size_t sizes[] = { 0, 8, 11 };
	const struct thing given = { .size = sizes[_i] };
	struct ucm_error error = { "" };
	struct thing own;

	ck_assert_int_eq(take(&given, &own, &error), -EINVAL);
	ck_assert_msg(strstr(error.text, "struct thing: set it to "
			     "sizeof(struct thing), which is 16") != NULL,
		      "%s", error.text);
	ck_assert_int_eq(take(NULL, &own, &error), -EINVAL);
	ck_assert_str_eq(error.text, "struct thing is NULL");
}
