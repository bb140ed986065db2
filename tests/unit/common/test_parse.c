/* SPDX-License-Identifier: Apache-2.0 */
/* test_parse.c - numbers in text, whole or not at all. */
#include <config.h>

#include "common/parse.h"

#include <errno.h>

#include "tests/unit/unit.h"

static const struct {
	const char *text;
	int err;
	uint64_t want;
} numbers[] = {
	{ "0", 0, 0 },
	{ "007", 0, 7 },
	{ "18446744073709551615", 0, UINT64_MAX },
	{ "18446744073709551616", -ERANGE, 0 },
	{ "99999999999999999999999", -ERANGE, 0 },
	{ "", -EINVAL, 0 },
	{ " 1", -EINVAL, 0 },
	{ "1 ", -EINVAL, 0 },
	{ "+1", -EINVAL, 0 },
	{ "-1", -EINVAL, 0 },
	{ "0x10", -EINVAL, 0 },
	{ "1.5", -EINVAL, 0 },
	{ "1K", -EINVAL, 0 },
};

UNIT_TEST(a_number_is_digits_and_nothing_else, .rows = NUM_ROWS(numbers))
{
	uint64_t value = 4711;

	ck_assert_int_eq(ucm_parse_u64(numbers[_i].text, &value),
			 numbers[_i].err);
	ck_assert_uint_eq(value, numbers[_i].err ? 4711 : numbers[_i].want);
}

static const struct {
	const char *text;
	int err;
	uint64_t want;
} bytes[] = {
	{ "4096", 0, 4096 },
	{ "0", 0, 0 },
	{ "64K", 0, 65536 },
	{ "64k", 0, 65536 },
	{ "3M", 0, 3145728 },
	{ "500G", 0, UINT64_C(536870912000) },
	{ "2T", 0, UINT64_C(2199023255552) },
	{ "1P", 0, UINT64_C(1) << 50 },
	{ "1KiB", 0, 1024 },
	{ "1KB", 0, 1024 },
	{ "16383P", 0, UINT64_C(16383) << 50 },
	{ "16384P", -ERANGE, 0 },
	{ "18446744073709551615K", -ERANGE, 0 },
	{ "1.5G", -EINVAL, 0 },
	{ "1 G", -EINVAL, 0 },
	{ "G", -EINVAL, 0 },
	{ "1X", -EINVAL, 0 },
	{ "1Ki", -EINVAL, 0 },
	{ "1KiBB", -EINVAL, 0 },
	{ "1GG", -EINVAL, 0 },
	{ "-1G", -EINVAL, 0 },
	{ "80%", -EINVAL, 0 },
	{ "", -EINVAL, 0 },
};

UNIT_TEST(a_size_has_one_unit_of_1024, .rows = NUM_ROWS(bytes))
{
	uint64_t value = 4711;

	ck_assert_int_eq(ucm_parse_bytes(bytes[_i].text, &value),
			 bytes[_i].err);
	ck_assert_uint_eq(value, bytes[_i].err ? 4711 : bytes[_i].want);
}

static const struct {
	const char *text;
	int err;
	uint64_t want;
	bool percent;
} limits[] = {
	{ "80%", 0, 80, true },
	{ "1%", 0, 1, true },
	{ "100%", 0, 100, true },
	{ "10G", 0, UINT64_C(10737418240), false },
	{ "0%", -ERANGE, 0, false },
	{ "101%", -ERANGE, 0, false },
	{ "80%%", -EINVAL, 0, false },
	{ "%", -EINVAL, 0, false },
	{ "80 %", -EINVAL, 0, false },
	{ "1.5%", -EINVAL, 0, false },
};

UNIT_TEST(a_limit_is_a_size_or_a_percentage, .rows = NUM_ROWS(limits))
{
	uint64_t value = 4711;
	bool percent = !limits[_i].percent, before = percent;
	int err = ucm_parse_limit(limits[_i].text, &value, &percent);

	ck_assert_int_eq(err, limits[_i].err);
	ck_assert_uint_eq(value, err ? 4711 : limits[_i].want);
	ck_assert_int_eq(percent, err ? before : limits[_i].percent);
}

UNIT_TEST(a_range_has_both_its_ends)
{
	uint64_t value = 4711;

	ck_assert_int_eq(ucm_parse_range("0", 1, 64, &value), -ERANGE);
	ck_assert_int_eq(ucm_parse_range("65", 1, 64, &value), -ERANGE);
	ck_assert_int_eq(ucm_parse_range("x", 1, 64, &value), -EINVAL);
	ck_assert_uint_eq(value, 4711);
	ck_assert_int_eq(ucm_parse_range("1", 1, 64, &value), 0);
	ck_assert_uint_eq(value, 1);
	ck_assert_int_eq(ucm_parse_range("64", 1, 64, &value), 0);
	ck_assert_uint_eq(value, 64);
}

UNIT_TEST(booleans_have_four_spellings_each)
{
	static const struct {
		const char *text;
		int err;
		bool want;
	} rows[] = {
		{ "yes", 0, true }, { "true", 0, true }, { "on", 0, true },
		{ "1", 0, true }, { "no", 0, false }, { "false", 0, false },
		{ "off", 0, false }, { "0", 0, false }, { "", -EINVAL, false },
		{ "Yes", -EINVAL, false }, { "2", -EINVAL, false },
	};

	for (size_t i = 0; i < NUM_ROWS(rows); i++) {
		bool value = !rows[i].want;

		ck_assert_int_eq(ucm_parse_bool(rows[i].text, &value),
				 rows[i].err);
		ck_assert_int_eq(value, rows[i].err ? !rows[i].want
						    : rows[i].want);
	}
}

UNIT_TEST(a_word_is_the_number_of_one_among_others)
{
	static const char *const words[] = { "none", "data", "full" };
	unsigned number = 4711;

	ck_assert_int_eq(ucm_parse_word("dat", words, 3, &number), -EINVAL);
	ck_assert_int_eq(ucm_parse_word("full", words, 2, &number), -EINVAL);
	ck_assert_uint_eq(number, 4711);
	ck_assert_int_eq(ucm_parse_word("full", words, 3, &number), 0);
	ck_assert_uint_eq(number, 2);
}
