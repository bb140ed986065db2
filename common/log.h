/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.h - where messages go.
 *
 * Whoever first sees a failure logs it, object first, then the cause:
 * "tier nvme: commit 3fa9...: No space left on device". One line per event.
 * %m may be used. Any thread may log; the sink is set before threads start.
 */
#ifndef UCM_LOG_H
#define UCM_LOG_H

enum ucm_log_level {
	UCM_LOG_ERROR,
	UCM_LOG_WARNING,
	UCM_LOG_INFO,
	UCM_LOG_DEBUG,
};

/* Gets the finished line, without a newline. */
typedef void (*ucm_log_sink)(enum ucm_log_level level, const char *line);

/* Two sinks: standard error ("ucmfs: ...", the default), and syslog. */
void ucm_log_stderr(enum ucm_log_level level, const char *line);
void ucm_log_syslog(enum ucm_log_level level, const char *line);

void ucm_log_set(ucm_log_sink sink, enum ucm_log_level most);

void ucm_log(enum ucm_log_level level, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

#define ucm_error(...) ucm_log(UCM_LOG_ERROR, __VA_ARGS__)
#define ucm_warning(...) ucm_log(UCM_LOG_WARNING, __VA_ARGS__)
#define ucm_info(...) ucm_log(UCM_LOG_INFO, __VA_ARGS__)
#define ucm_debug(...) ucm_log(UCM_LOG_DEBUG, __VA_ARGS__)

#endif
