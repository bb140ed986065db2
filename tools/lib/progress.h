/* SPDX-License-Identifier: Apache-2.0 */
/*
 * progress.h - a line on standard error that says how far work is, where
 * that is a terminal and the work takes more than a second.
 */
#ifndef UCM_TOOLS_LIB_PROGRESS_H
#define UCM_TOOLS_LIB_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct ucm_progress {
	bool terminal, shown;
	int64_t started_ns, told_ns;
};

void ucm_progress_begin(struct ucm_progress *progress);

/* Blocks, and bytes if there are any. Call often. total: 0 if it is not
 * known. */
void ucm_progress_tell(struct ucm_progress *progress, uint64_t done,
		       uint64_t total, uint64_t bytes);

/* The same of anything: words for the line. */
void ucm_progress_say(struct ucm_progress *progress, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Before anything else is printed, and at the end. */
void ucm_progress_clear(struct ucm_progress *progress);

#endif
