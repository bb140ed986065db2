/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table.h - what the benchmarks measure with, and the table they print.
 *
 * A line has eleven columns, separated by tabs: where, section, work, unit, the
 * yardstick's figure, ours, the ratio, its quartiles, the target and the verdict.
 * The section is for machines: the aligned table leaves it out.
 */
#ifndef UCM_BENCH_TABLE_H
#define UCM_BENCH_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

uint64_t now_ns(void);

/* Sorts the values. which: 0.5 is the median. */
double quantile(double *values, size_t num, double which);

/* Three digits or so. */
void text_of(double value, char text[16]);

/*
 * What values say of a target: PASS or MISS where both quartiles do, else "open".
 * "busy" where the machine was ($UCMFS_BENCH_BUSY, see machine.sh), "-" where
 * the target is not positive. Sorts the values.
 */
const char *verdict_least(double *values, size_t num, double least);
const char *verdict_most(double *values, size_t num, double most);

/* As it is, or (without tsv) as a line of the aligned table. */
void print_line(bool tsv, const char *line);

/* Standard input's lines as a table, with this one on top. Returns 0. */
int format_table(const char *head_line);

#endif
