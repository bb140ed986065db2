/* SPDX-License-Identifier: Apache-2.0 */
/* test_metrics.c - Prometheus' text format, read back. */
#include <config.h>

#include "tools/lib/metrics.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "tests/unit/unit.h"

static int parse(const char *text, struct ucm_metrics *out)
{
	return ucm_metrics_parse(strdup(text), out);
}

UNIT_TEST(names_labels_and_values)
{
	struct ucm_metrics metrics;
	char value[64];

	ck_assert_int_eq(parse("# HELP a what\n"
			       "# TYPE a counter\n"
			       "a 1\n"
			       "\n"
			       "b{} 2.5\n"
			       "c{x=\"1\",long=\"q\\\"}\\\\ \\n,=z\"} -3e2\n"
			       "d{le=\"+Inf\"} +Inf",
			       &metrics), 0);
	ck_assert_uint_eq(metrics.num, 4);
	ck_assert(ucm_metrics_value(&metrics, "a", NULL, NULL) == 1);
	ck_assert(ucm_metrics_value(&metrics, "b", NULL, NULL) == 2.5);
	ck_assert(ucm_metrics_value(&metrics, "c", "x", "1") == -300);
	ck_assert(ucm_metrics_value(&metrics, "c", "x", "2") == 0);
	ck_assert(ucm_metrics_value(&metrics, "none", NULL, NULL) == 0);
	ck_assert(ucm_metrics_value(NULL, "a", NULL, NULL) == 0);
	ck_assert(isinf(ucm_metrics_value(&metrics, "d", "le", "+Inf")));
	ck_assert_int_eq(ucm_metric_label(&metrics.metrics[2], "long", value,
					  sizeof(value)), 0);
	ck_assert_str_eq(value, "q\"}\\ \n,=z");
	ck_assert_int_eq(ucm_metric_label(&metrics.metrics[2], "long", value,
					  4), -ERANGE);
	ck_assert_int_eq(ucm_metric_label(&metrics.metrics[2], "lon", value,
					  sizeof(value)), -ENOENT);
	ucm_metrics_fini(&metrics);
}

static const char *const wrong[] = {
	"a\n",	      "a \n",	    "a x\n",   "a 1 2\n", "a{x=\"1\" 1\n",
	"a{x=\"1\"}\n", "a{x=\"1\"}1\n", " 1\n",
};

UNIT_TEST(a_line_that_is_none_is_refused, .rows = NUM_ROWS(wrong))
{
	struct ucm_metrics metrics;

	ck_assert_int_eq(parse(wrong[_i], &metrics), -EINVAL);
}

#define HISTOGRAM(a, b, c)                                                    \
	"t_bucket{op=\"x\",le=\"0.1\"} " #a "\n"                              \
	"t_bucket{op=\"x\",le=\"1\"} " #b "\n"                                \
	"t_bucket{op=\"x\",le=\"+Inf\"} " #c "\n"                             \
	"t_bucket{op=\"y\",le=\"0.1\"} 100\n"

UNIT_TEST(quantiles_of_what_came_since)
{
	struct ucm_metrics before, now;

	ck_assert_int_eq(parse(HISTOGRAM(90, 99, 100), &before), 0);
	ck_assert_int_eq(parse(HISTOGRAM(91, 199, 200), &now), 0);
#define QUANTILE(of, since, share) \
	ucm_metrics_quantile(of, since, "t_bucket", "op", "x", share)
	ck_assert(QUANTILE(&before, NULL, 0.5) == 0.1);
	ck_assert(QUANTILE(&before, NULL, 0.9) == 0.1);
	ck_assert(QUANTILE(&before, NULL, 0.99) == 1);
	ck_assert(isinf(QUANTILE(&before, NULL, 0.999)));
	ck_assert(QUANTILE(&now, &before, 0.01) == 0.1);
	ck_assert(QUANTILE(&now, &before, 0.5) == 1);
	ck_assert(QUANTILE(&now, &now, 0.5) == 0);
	ck_assert(ucm_metrics_quantile(&now, NULL, "t_bucket", "op", "z",
				       0.5) == 0);
#undef QUANTILE
	ucm_metrics_fini(&before);
	ucm_metrics_fini(&now);
}
