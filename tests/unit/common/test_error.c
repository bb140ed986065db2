/* SPDX-License-Identifier: Apache-2.0 */
/* test_error.c - the line that a failure leaves. */
#include <config.h>

#include "common/error.h"

#include <errno.h>
#include <string.h>

#include "tests/unit/unit.h"

UNIT_TEST(the_error_is_given_back)
{
	struct ucm_error error;

	ck_assert_int_eq(ucm_error_set(&error, -EIO, "disk %d: %s", 3, "gone"),
			 -EIO);
	ck_assert_str_eq(error.text, "disk 3: gone");
	ck_assert_int_eq(ucm_error_set(NULL, -EIO, "disk"), -EIO);
}

/* Names may hold anything. */
UNIT_TEST(it_is_one_line)
{
	struct ucm_error error;

	ucm_error_set(&error, -EIO, "%s: gone", "a\nb\tc\x7f\xc3\xa4");
	ck_assert_str_eq(error.text, "a?b?c?\xc3\xa4: gone");
}

UNIT_TEST(what_is_too_long_is_cut)
{
	struct ucm_error error;

	ucm_error_set(&error, -EIO, "%*d", 2 * (int)UCM_ERROR_BYTES, 1);
	ck_assert_uint_eq(strlen(error.text), UCM_ERROR_BYTES - 1);
}

UNIT_TEST(a_cause_may_be_put_into_words_that_hold_it)
{
	struct ucm_error error;

	ucm_error_set(&error, -EIO, "gone");
	ucm_error_set(&error, -EIO, "disk: %s", error.text);
	ck_assert_str_eq(error.text, "disk: gone");
}
