/* SPDX-License-Identifier: Apache-2.0 */
/* test_text.c - numbers, times and names as people and JSON get them. */
#include <config.h>

#include "tools/lib/text.h"

#include "tests/unit/unit.h"

static const struct {
	uint64_t bytes;
	const char *text;
} sizes[] = {
	{ 0, "0" },
	{ 1023, "1023" },
	{ 1024, "1.0K" },
	{ 1536, "1.5K" },
	{ 10188, "9.9K" },
	{ 10189, "10K" },
	{ 1023 * 1024 + 511, "1023K" },
	{ 1023 * 1024 + 512, "1.0M" },
	{ 2101248, "2.0M" },
	{ UINT64_C(270553174016), "252G" },
	{ UINT64_C(1) << 40, "1.0T" },
	{ UINT64_MAX, "16E" },
};

UNIT_TEST(sizes_in_units, .rows = NUM_ROWS(sizes))
{
	ck_assert_str_eq(ucm_text_size(sizes[_i].bytes, false).text,
			 sizes[_i].text);
}

UNIT_TEST(sizes_in_all_digits)
{
	ck_assert_str_eq(ucm_text_size(UINT64_MAX, true).text,
			 "18446744073709551615");
}

static const struct {
	int64_t seconds;
	const char *text;
} ages[] = {
	{ -5, "0s" },	{ 0, "0s" },	    { 59, "59s" },
	{ 60, "1m" },	{ 3599, "59m" },    { 3600, "1h" },
	{ 86399, "23h" }, { 86400, "1d" }, { 864000000, "10000d" },
};

UNIT_TEST(ages_in_the_largest_unit, .rows = NUM_ROWS(ages))
{
	ck_assert_str_eq(ucm_text_age(ages[_i].seconds).text, ages[_i].text);
}

static const struct {
	double seconds;
	const char *text;
} durations[] = {
	{ 0, "0ns" },	     { 850e-9, "850ns" },  { 1.024e-6, "1.0us" },
	{ 131e-6, "131us" }, { 3.41e-3, "3.4ms" }, { 1.2, "1.2s" },
	{ 60, "60s" },
};

UNIT_TEST(durations_in_the_largest_unit, .rows = NUM_ROWS(durations))
{
	ck_assert_str_eq(ucm_text_duration(durations[_i].seconds).text,
			 durations[_i].text);
}

UNIT_TEST(shares_of_nothing_are_not_told)
{
	json_t *none = ucm_json_share(0, 0), *half = ucm_json_share(1, 2);

	ck_assert_str_eq(ucm_text_share(0, 0).text, "-");
	ck_assert_str_eq(ucm_text_share(1, 2).text, "50.0 %");
	ck_assert_str_eq(ucm_text_share(3, 3).text, "100.0 %");
	ck_assert(json_is_null(none));
	ck_assert(json_real_value(half) == 0.5);
	json_decref(none);
	json_decref(half);
}

UNIT_TEST(names_that_are_no_utf8_lose_what_is_not_ascii)
{
	json_t *good = ucm_json_text("caf\xc3\xa9"),
	       *bad = ucm_json_text("caf\xe9!");

	ck_assert_str_eq(json_string_value(good), "caf\xc3\xa9");
	ck_assert_str_eq(json_string_value(bad), "caf?!");
	json_decref(good);
	json_decref(bad);
}
