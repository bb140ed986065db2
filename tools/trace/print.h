/* SPDX-License-Identifier: Apache-2.0 */
/* print.h - records of a trace, for people and for programs. */
#ifndef UCM_TOOLS_TRACE_PRINT_H
#define UCM_TOOLS_TRACE_PRINT_H

#include <stdio.h>

#include "fs/watch/trace.h"

/* One line of text, and what stands above the first. */
void ucm_trace_print_head(FILE *out);
void ucm_trace_print_text(const struct ucm_trace_view *view,
			  const struct ucm_trace_record *record, FILE *out);

/* One JSON object on a line: 0, or -ENOMEM. */
int ucm_trace_print_json(const struct ucm_trace_view *view,
			 const struct ucm_trace_record *record, FILE *out);

#endif
