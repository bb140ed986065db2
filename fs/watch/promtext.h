/* SPDX-License-Identifier: Apache-2.0 */
/*
 * promtext.h - Prometheus' text format, version 0.0.4, and nothing of what is
 * measured.
 *
 * A family is begun (HELP and TYPE), then its samples follow. One writer, one
 * thread. Errors of memory are kept until ucm_prom_end().
 */
#ifndef UCM_PROMTEXT_H
#define UCM_PROMTEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct ucm_prom {
	FILE *out;
	char *text;
	size_t len;
	char *common; /* labels of every sample: name="value" */
	const char *family;
	bool failed;
};

/* One label that all samples have. 0 or -ENOMEM. */
int ucm_prom_begin(struct ucm_prom *prom, const char *name, const char *value);

/* The text, to free; NULL: no memory. Ends the writer in any case. */
char *ucm_prom_end(struct ucm_prom *prom, size_t *len_out);

/* type: "counter", "gauge" or "histogram". name is used until the next one. */
void ucm_prom_family(struct ucm_prom *prom, const char *name, const char *type,
		     const char *help);

/* A sample of the family; labels are pairs of name and value that end with
 * NULL, for example { "tier", "nvme", NULL }; or NULL for none. */
void ucm_prom_u64(struct ucm_prom *prom, const char *const *labels,
		  uint64_t value);
void ucm_prom_double(struct ucm_prom *prom, const char *const *labels,
		     double value); /* also infinite */

/* All samples of a histogram. counts[i] is what lies between bounds[i - 1] and
 * bounds[i]; counts[num] what lies above. */
void ucm_prom_histogram(struct ucm_prom *prom, const char *const *labels,
			const double *bounds, const uint64_t *counts,
			unsigned num, double sum);

/* The same text between two quotes: backslash, quote and newline escaped; what
 * is not UTF-8 has '?' for each byte that is not ASCII. To free, or NULL. */
char *ucm_prom_escape(const char *text);

#endif
