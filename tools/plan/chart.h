/* SPDX-License-Identifier: Apache-2.0 */
/* chart.h - what tiers of some sizes bring, as a picture (SVG). */
#ifndef UCM_TOOLS_PLAN_CHART_H
#define UCM_TOOLS_PLAN_CHART_H

#include <stdint.h>
#include <stdio.h>

/* What a tier of some size brings by a policy. */
struct ucm_tier_row {
	const char *policy; /* NULL: nothing is kept */
	uint64_t capacity;  /* bytes */
	double hit_rate;
	double read, written; /* bytes a second */
	double first_token;   /* seconds; 0: not known */
};

/* Rows in order of capacity, a curve for each policy: the hit rate and, below it, the
 * first token where it is known. */
void ucm_chart_draw(FILE *to, const struct ucm_tier_row *rows, unsigned num);

#endif
