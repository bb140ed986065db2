/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.h - what ucm put, get, repr and verify say: blocks that are not well,
 * one line or one JSON object each, a summary, and progress on a terminal.
 */
#ifndef UCM_TOOLS_LIB_REPORT_H
#define UCM_TOOLS_LIB_REPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

#include <ucm/load.h>

#include "tools/lib/progress.h"

struct ucm_report {
	FILE *to;         /* lines about blocks; NULL: JSON is asked for */
	json_t *failures; /* JSON */
	uint64_t absent, damaged, failed;
	struct ucm_progress progress;
};

void ucm_report_init(struct ucm_report *report, bool json, FILE *to);
void ucm_report_fini(struct ucm_report *report);

/* A block that is not well. id or path may be NULL, where it is not known. */
void ucm_report_block(struct ucm_report *report, const struct ucm_id *id,
		      const char *path, const struct ucm_outcome *outcome);
/* The same where text says what is wrong: -ENOENT is counted as absent, -EBADMSG
 * as damaged. */
void ucm_report_text(struct ucm_report *report, const struct ucm_id *id,
		     const char *path, int err, const char *text);

/*
 * Print the summary on standard output: counts, of which those that are 0 are
 * left out of the text, bytes and time; names end with one that is NULL. 0, or
 * UCM_EXIT_FAILED and a line on standard error.
 */
struct ucm_count {
	const char *name;
	uint64_t number;
};
int ucm_report_end(struct ucm_report *report, const struct ucm_count *counts,
		   uint64_t blocks, uint64_t bytes);

#endif
