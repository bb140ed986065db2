/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.c - Prometheus' text format, read back; see metrics.h. */
#include <config.h>

#include "tools/lib/metrics.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tools/lib/tool.h"

/* After a value; its quotes may have any character between them. */
static const char *skip_value(const char *at)
{
	for (; *at && *at != '"'; at++) {
		if (*at == '\\' && at[1])
			at++;
	}
	return *at ? at + 1 : at;
}

/* Up to the brace that ends the labels; one between quotes is part of a value. */
static size_t labels_len(const char *labels)
{
	const char *at = labels;

	while (*at && *at != '}')
		at = *at == '"' ? skip_value(at + 1) : at + 1;
	return (size_t)(at - labels);
}

/* name{labels} value; cuts the line into pieces. */
static int parse_line(char *line, struct ucm_metric *out)
{
	char *at = line + strcspn(line, "{ "), *end;

	out->name = line;
	out->labels = "";
	if (*at == '{') {
		*at++ = '\0';
		out->labels = at;
		at += labels_len(at);
		if (!*at || at[1] != ' ')
			return -EINVAL;
		*at++ = '\0';
	} else if (!*at) {
		return -EINVAL;
	}
	*at++ = '\0';
	out->value = strtod(at, &end);
	return *line && end > at && !*end ? 0 : -EINVAL;
}

static size_t count_lines(const char *text)
{
	size_t num = 1;

	for (; *text; text++)
		num += *text == '\n';
	return num;
}

int ucm_metrics_parse(char *text, struct ucm_metrics *out)
{
	struct ucm_metrics metrics = {
		.text = text,
		.metrics = ucm_tool_alloc(count_lines(text),
					  sizeof(*metrics.metrics)),
	};
	char *line = text, *end;
	int err = 0;

	for (; !err && *line; line = end) {
		end = line + strcspn(line, "\n");
		if (*end)
			*end++ = '\0';
		if (*line && *line != '#')
			err = parse_line(line, &metrics.metrics[metrics.num++]);
	}
	if (err) {
		ucm_metrics_fini(&metrics);
		return err;
	}
	*out = metrics;
	return 0;
}

int ucm_metrics_read(const char *mount, struct ucm_metrics *out)
{
	char *text;
	size_t len;
	int err = ucm_mount_read(mount, "metrics", UCM_METRICS_MAX, &text,
				 &len);

	return err ? err : ucm_metrics_parse(text, out);
}

void ucm_metrics_fini(struct ucm_metrics *metrics)
{
	free(metrics->metrics);
	free(metrics->text);
	*metrics = (struct ucm_metrics){ 0 };
}

/* ---- labels ---- */

/* A value up to its quote, backslashes undone; where to go on, or NULL. */
static const char *copy_value(const char *at, char *out, size_t size)
{
	size_t len = 0;

	for (; *at && *at != '"'; at++) {
		char c = *at;

		if (c == '\\' && at[1])
			c = *++at == 'n' ? '\n' : *at;
		if (len + 1 >= size)
			return NULL;
		out[len++] = c;
	}
	out[len] = '\0';
	return *at ? at + 1 : NULL;
}

int ucm_metric_label(const struct ucm_metric *metric, const char *label,
		     char *out, size_t size)
{
	const char *at = metric->labels;
	size_t len = strlen(label);

	/* name="value",name="value" */
	while (*at) {
		const char *equals = strchr(at, '=');

		if (!equals || equals[1] != '"')
			break;
		if ((size_t)(equals - at) == len && !strncmp(at, label, len))
			return copy_value(equals + 2, out, size) ? 0 : -ERANGE;
		at = skip_value(equals + 2);
		at += *at == ',';
	}
	return -ENOENT;
}

static bool has_label(const struct ucm_metric *metric, const char *label,
		      const char *value)
{
	char text[64];

	return !label || (!ucm_metric_label(metric, label, text,
					    sizeof(text)) &&
			  !strcmp(text, value));
}

/* ---- values ---- */

double ucm_metrics_value(const struct ucm_metrics *metrics, const char *name,
			 const char *label, const char *value)
{
	for (size_t i = 0; metrics && i < metrics->num; i++) {
		const struct ucm_metric *metric = &metrics->metrics[i];

		if (!strcmp(metric->name, name) &&
		    has_label(metric, label, value))
			return metric->value;
	}
	return 0;
}

#define BOUNDS 64

/* A histogram's bounds and how many events lie below each. */
struct histogram {
	double bounds[BOUNDS], below[BOUNDS];
	unsigned num;
};

static void read_histogram(const struct ucm_metrics *metrics, const char *name,
			   const char *label, const char *value,
			   struct histogram *out)
{
	out->num = 0;
	for (size_t i = 0; i < metrics->num && out->num < BOUNDS; i++) {
		const struct ucm_metric *metric = &metrics->metrics[i];
		char bound[32];

		if (strcmp(metric->name, name) ||
		    !has_label(metric, label, value) ||
		    ucm_metric_label(metric, "le", bound, sizeof(bound)))
			continue;
		out->bounds[out->num] = strtod(bound, NULL);
		out->below[out->num++] = metric->value;
	}
}

double ucm_metrics_quantile(const struct ucm_metrics *metrics,
			    const struct ucm_metrics *before,
			    const char *name, const char *label,
			    const char *value, double share)
{
	struct histogram now, then = { .num = 0 };
	double all;

	read_histogram(metrics, name, label, value, &now);
	if (before)
		read_histogram(before, name, label, value, &then);
	for (unsigned i = 0; then.num == now.num && i < now.num; i++)
		now.below[i] -= then.below[i];
	all = now.num ? now.below[now.num - 1] : 0;
	for (unsigned i = 0; all > 0 && i < now.num; i++) {
		if (now.below[i] >= share * all)
			return now.bounds[i];
	}
	return 0;
}
