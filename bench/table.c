/* SPDX-License-Identifier: Apache-2.0 */
/* table.c - what the benchmarks measure with, and the table they print. */
#include <config.h>

#include "bench/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COLUMNS 11

uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

double quantile(double *values, size_t num, double which)
{
	double at = which * (double)(num - 1);
	size_t low = (size_t)at;

	qsort(values, num, sizeof(*values), compare_doubles);
	if (low + 1 >= num)
		return values[num - 1];
	return values[low] + (at - (double)low) * (values[low + 1] - values[low]);
}

void text_of(double value, char text[16])
{
	snprintf(text, 16, value < 10 ? "%.2f" : value < 100 ? "%.1f" : "%.0f",
		 value);
}

static const char *verdict(bool has_target, bool low_is_good, bool high_is_good)
{
	const char *busy = getenv("UCMFS_BENCH_BUSY");

	if (!has_target)
		return "-";
	if (busy && *busy)
		return "busy";
	if (low_is_good != high_is_good)
		return "open";
	return low_is_good ? "PASS" : "MISS";
}

const char *verdict_least(double *values, size_t num, double least)
{
	return verdict(least > 0, quantile(values, num, 0.25) >= least,
		       quantile(values, num, 0.75) >= least);
}

const char *verdict_most(double *values, size_t num, double most)
{
	return verdict(most > 0, quantile(values, num, 0.25) <= most,
		       quantile(values, num, 0.75) <= most);
}

/* One line of a table; the columns are separated by tabs. */
static void print_aligned(char *line)
{
	static const int widths[COLUMNS] = { -22, 0, -43, -5, 9, 9, 7, 7, 7,
					     11, 6 };

	line[strcspn(line, "\n")] = '\0';
	if (line[0] == '#') {
		printf("%s\n", line);
		return;
	}
	for (unsigned i = 0; i < COLUMNS && line; i++) {
		char *column = strsep(&line, "\t");

		if (widths[i])
			printf("%*s%s", widths[i], column,
			       i + 1 < COLUMNS ? " " : "\n");
	}
	fflush(stdout);
}

void print_line(bool tsv, const char *line)
{
	char copy[512];

	if (tsv) {
		printf("%s\n", line);
		fflush(stdout);
		return;
	}
	snprintf(copy, sizeof(copy), "%s", line);
	print_aligned(copy);
}

int format_table(const char *head_line)
{
	char line[512], head[512];
	bool has_head = false;

	while (fgets(line, sizeof(line), stdin)) {
		if (line[0] != '#' && !has_head) {
			snprintf(head, sizeof(head), "%s", head_line);
			print_aligned(head);
			has_head = true;
		}
		print_aligned(line);
	}
	return 0;
}
