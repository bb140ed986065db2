/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.h - where messages go.
 *
 * Whoever first sees a failure logs it, object first, then the cause:
 * "tier nvme: commit 3fa9...: No space left on device". One line per event.
 * %m may be used. Any thread may log; the sink is set before threads start. Where
 * libucm's user has asked for its lines (<ucm/log.h>) there is no sink.
 * Control characters and bytes that are no UTF-8 become \xNN, so that no name
 * that a user chose looks like a line of ours.
 *
 * Errors, warnings and infos are limited: a place in the source that has logged
 * UCM_LOG_BURST lines within UCM_LOG_WINDOW_MS logs no more until that time is
 * over. What was left out is counted, and reported with the next line of that
 * place or by ucm_log_tell_left_out().
 *
 * Debugging lines belong to an area, which is off (0) until it is switched on,
 * also at run time. They are not limited, and not subject to the level.
 */
#ifndef UCM_COMMON_LOG_H
#define UCM_COMMON_LOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <ucm/error.h>
#include <ucm/log.h>

#define UCM_LOG_LEVELS 4
extern const char *const ucm_log_level_names[UCM_LOG_LEVELS];

/* Gets the finished line, escaped, without a newline. */
typedef void (*ucm_log_sink)(enum ucm_log_level level, const char *line);

/* Three sinks: standard error ("ucmfs: ...", the default), syslog, and the
 * file that ucm_log_open() opened (each line with the time, in UTC). */
void ucm_log_stderr(enum ucm_log_level level, const char *line);
void ucm_log_syslog(enum ucm_log_level level, const char *line);
void ucm_log_file(enum ucm_log_level level, const char *line);

/* Open (make, append to) the file of ucm_log_file: 0 or -errno. Once. */
int ucm_log_open(const char *path);

/* most: the least important level that is logged. UCM_LOG_DEBUG switches all
 * areas that are off to depth 1. */
void ucm_log_set(ucm_log_sink sink, enum ucm_log_level most);

/*
 * For programs that use libucm: UCM_LOG_LEVEL (a level, in any case), UCM_LOG_FILE
 * (a path, opened once: lines go there) and UCM_DEBUG (areas; "true" or "1": all).
 * A wrong value is a warning and changes nothing. A program that has chosen a sink
 * keeps it; one with more rights than its caller (secure_getenv(3)) ignores all.
 */
void ucm_log_take_environment(void);

/* Bytes of a line, with its NUL; what is longer is cut. */
#define UCM_LOG_LINE_SIZE 1024

/* log_redirect.c: give a line to the function of ucm_log_redirect(). false: there
 * is none, or it is what logs. */
bool ucm_log_redirected(enum ucm_log_level level, const char *line);

/* One line, not limited. */
void ucm_log(enum ucm_log_level level, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* ---- limited lines ---- */

#define UCM_LOG_BURST 20u
#define UCM_LOG_WINDOW_MS 5000

/* A place that logs; zero to begin with, and there for ever. */
struct ucm_log_site {
	struct ucm_log_site *next; /* of those that have left out lines */
	const char *format;
	int64_t since_ms; /* start of its window */
	unsigned lines;   /* in it */
	unsigned left_out;
	bool listed;
};

void ucm_log_limited(struct ucm_log_site *site, enum ucm_log_level level,
		     const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#define UCM_LOG_HERE(level, ...)                                              \
	do {                                                                  \
		static struct ucm_log_site ucm_log_site_;                     \
		ucm_log_limited(&ucm_log_site_, level, __VA_ARGS__);          \
	} while (0)

#define ucm_error(...) UCM_LOG_HERE(UCM_LOG_ERROR, __VA_ARGS__)
#define ucm_warning(...) UCM_LOG_HERE(UCM_LOG_WARNING, __VA_ARGS__)
#define ucm_info(...) UCM_LOG_HERE(UCM_LOG_INFO, __VA_ARGS__)

/* Log how many lines were left out, of each place whose window is over; all:
 * of every place. */
void ucm_log_tell_left_out(bool all);

/* Lines logged of a level, and lines left out, since the start. */
uint64_t ucm_log_count(enum ucm_log_level level);
uint64_t ucm_log_count_left_out(void);

/* ---- areas ---- */

/* name, what there is at depth 1, and what more at depth 2 */
#define UCM_LOG_AREAS(X)                                                      \
	X(OP, "fs.op", "requests that failed", "every request")               \
	X(MOVE, "fs.move", "blocks copied, moved and evicted",                \
	  "what stays where it is, and why")                                  \
	X(COMMIT, "fs.commit", "files that became blocks",                    \
	  "files found incomplete")                                           \
	X(TIER, "fs.tier", "where new files are made; blocks removed",        \
	  "directories and tiers passed over")                                \
	X(SCAN, "fs.scan", "directories read", "every file looked at")        \
	X(FUSE, "fs.fuse", "what libfuse says", "")                           \
	X(CALL, "os.call", "system calls on backing directories that failed", \
	  "every one")

enum ucm_log_area {
#define UCM_LOG_AREA_ENUM(id, name, one, two) UCM_AREA_##id,
	UCM_LOG_AREAS(UCM_LOG_AREA_ENUM)
#undef UCM_LOG_AREA_ENUM
	UCM_AREA_COUNT
};

#define UCM_LOG_DEPTH_MAX 2

/* How deep each area is debugged; read by the macro below. */
extern _Atomic uint8_t ucm_log_depths[UCM_AREA_COUNT];

static inline bool ucm_log_debugs(enum ucm_log_area area, unsigned depth)
{
	return __builtin_expect(
		atomic_load_explicit(&ucm_log_depths[area],
				     memory_order_relaxed) >= depth, 0);
}

/* "fs.tier: ..."; the arguments are evaluated only if the area is that deep. */
#define ucm_debug(area, depth, ...)                                           \
	do {                                                                  \
		if (ucm_log_debugs(UCM_AREA_##area, depth))                   \
			ucm_log_debug(UCM_AREA_##area, __VA_ARGS__);          \
	} while (0)

void ucm_log_debug(enum ucm_log_area area, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/*
 * Set depths by text: "AREA=DEPTH", several of them between commas, colons or
 * white space. AREA is a name; the part of names before a dot, for all of
 * them; or "all". Any thread. All or nothing: -EINVAL, and error names the
 * wrong part. An empty text is wrong, too.
 */
int ucm_log_areas_set(const char *text, struct ucm_error *error);

/* "AREA=DEPTH", a line each, as ucm_log_areas_set() takes it; to free. NULL:
 * no memory. */
char *ucm_log_areas_text(void);

#endif
