/* SPDX-License-Identifier: Apache-2.0 */
/* test_promtext.c - Prometheus' text format. */
#include <config.h>

#include "fs/watch/promtext.h"

#include <math.h>
#include <string.h>

#include "tests/unit/unit.h"

#define LABELS(...) ((const char *const[]){ __VA_ARGS__, NULL })

static struct ucm_prom prom;

/* Ends the writer, and compares. */
static void written(const char *want)
{
	size_t len = 0;
	char *text = ucm_prom_end(&prom, &len);

	ck_assert_ptr_nonnull(text);
	ck_assert_str_eq(text, want);
	ck_assert_uint_eq(len, strlen(want));
	free(text);
}

UNIT_TEST(a_family_has_help_type_and_samples)
{
	ck_assert_int_eq(ucm_prom_begin(&prom, "mount", "/kv"), 0);
	ucm_prom_family(&prom, "ucmfs_x_total", "counter", "things");
	ucm_prom_u64(&prom, NULL, UINT64_MAX);
	ucm_prom_u64(&prom, LABELS("tier", "a", "errno", "EIO"), 7);
	ucm_prom_family(&prom, "ucmfs_y", "gauge", "others");
	ucm_prom_double(&prom, NULL, 0.5);
	ucm_prom_double(&prom, LABELS("tier", "a"), (double)INFINITY);
	ucm_prom_double(&prom, LABELS("tier", "b"), -(double)INFINITY);
	written("# HELP ucmfs_x_total things\n"
		"# TYPE ucmfs_x_total counter\n"
		"ucmfs_x_total{mount=\"/kv\"} 18446744073709551615\n"
		"ucmfs_x_total{mount=\"/kv\",tier=\"a\",errno=\"EIO\"} 7\n"
		"# HELP ucmfs_y others\n"
		"# TYPE ucmfs_y gauge\n"
		"ucmfs_y{mount=\"/kv\"} 0.5\n"
		"ucmfs_y{mount=\"/kv\",tier=\"a\"} +Inf\n"
		"ucmfs_y{mount=\"/kv\",tier=\"b\"} -Inf\n");
}

UNIT_TEST(a_histogram_adds_up_and_ends_with_all)
{
	static const double bounds[] = { 1.024e-6, 8.589934592 };
	static const uint64_t counts[] = { 2, 0, 3 };

	ck_assert_int_eq(ucm_prom_begin(&prom, "m", "x"), 0);
	ucm_prom_family(&prom, "h", "histogram", "times");
	ucm_prom_histogram(&prom, LABELS("op", "open"), bounds, counts, 2, 1.5);
	written("# HELP h times\n"
		"# TYPE h histogram\n"
		"h_bucket{m=\"x\",op=\"open\",le=\"1.024e-06\"} 2\n"
		"h_bucket{m=\"x\",op=\"open\",le=\"8.589934592\"} 2\n"
		"h_bucket{m=\"x\",op=\"open\",le=\"+Inf\"} 5\n"
		"h_sum{m=\"x\",op=\"open\"} 1.5\n"
		"h_count{m=\"x\",op=\"open\"} 5\n");
}

static const struct { const char *text, *want; } rows[] = {
	{ "", "" },
	{ "/mnt/kv", "/mnt/kv" },
	{ "a\"b", "a\\\"b" },
	{ "a\\b\\", "a\\\\b\\\\" },
	{ "a\nb", "a\\nb" },
	{ "tab\tis\x01kept", "tab\tis\x01kept" },
	{ "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", /* all lengths */
	  "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80" },
	{ "\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf",
	  "\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf" },
	{ "a\xff\"", "a?\\\"" },
	{ "\xc3", "?" },               /* cut */
	{ "\xe2\x82", "??" },
	{ "\xf0\x9f\x98", "???" },
	{ "\xc0\xaf", "??" },          /* longer than needed */
	{ "\xe0\x9f\xbf", "???" },
	{ "\xf0\x8f\xbf\xbf", "????" },
	{ "\xed\xa0\x80", "???" },     /* a surrogate */
	{ "\xf4\x90\x80\x80", "????" }, /* too large */
	{ "\xf5\x80\x80\x80", "????" },
	{ "\x80", "?" },
	{ "\xc3\xa9\xff", "???" },     /* one wrong, none taken */
};

UNIT_TEST(what_labels_cannot_hold_is_escaped, .rows = NUM_ROWS(rows))
{
	char *text = ucm_prom_escape(rows[_i].text);

	ck_assert_str_eq(text, rows[_i].want);
	free(text);
}

UNIT_TEST(the_label_of_all_samples_is_escaped)
{
	ck_assert_int_eq(ucm_prom_begin(&prom, "mount", "/a\"\\\n"), 0);
	ucm_prom_family(&prom, "x", "gauge", "y");
	ucm_prom_u64(&prom, NULL, 1);
	written("# HELP x y\n# TYPE x gauge\nx{mount=\"/a\\\"\\\\\\n\"} 1\n");
}
