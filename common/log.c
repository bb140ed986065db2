/* SPDX-License-Identifier: Apache-2.0 */
/* log.c - one line per event, to one sink. */
#include <config.h>

#include "common/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <syslog.h>

static ucm_log_sink current_sink = ucm_log_stderr;
static enum ucm_log_level current_most = UCM_LOG_INFO;

void ucm_log_stderr(enum ucm_log_level level, const char *line)
{
	static const char *const marks[] = {
		[UCM_LOG_ERROR] = "",
		[UCM_LOG_WARNING] = "warning: ",
		[UCM_LOG_INFO] = "",
		[UCM_LOG_DEBUG] = "debug: ",
	};

	fprintf(stderr, "ucmfs: %s%s\n", marks[level], line);
}

void ucm_log_syslog(enum ucm_log_level level, const char *line)
{
	static const int priorities[] = {
		[UCM_LOG_ERROR] = LOG_ERR,
		[UCM_LOG_WARNING] = LOG_WARNING,
		[UCM_LOG_INFO] = LOG_INFO,
		[UCM_LOG_DEBUG] = LOG_DEBUG,
	};

	syslog(priorities[level], "%s", line);
}

void ucm_log_set(ucm_log_sink sink, enum ucm_log_level most)
{
	current_sink = sink;
	current_most = most;
}

void ucm_log(enum ucm_log_level level, const char *format, ...)
{
	int saved = errno; /* for %m, and for the caller */
	char line[1024];
	va_list args;

	if (level > current_most)
		return;
	va_start(args, format);
	errno = saved;
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	current_sink(level, line);
	errno = saved;
}
