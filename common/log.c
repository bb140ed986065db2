/* SPDX-License-Identifier: Apache-2.0 */
/* log.c - one line per event, to one sink. */
#include <config.h>

#include "common/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"

const char *const ucm_log_level_names[UCM_LOG_LEVELS] = {
	[UCM_LOG_ERROR] = "error",
	[UCM_LOG_WARNING] = "warning",
	[UCM_LOG_INFO] = "info",
	[UCM_LOG_DEBUG] = "debug",
};

static const char *const marks[UCM_LOG_LEVELS] = {
	[UCM_LOG_ERROR] = "",
	[UCM_LOG_WARNING] = "warning: ",
	[UCM_LOG_INFO] = "",
	[UCM_LOG_DEBUG] = "debug: ",
};

/* A daemon that enters the background sets them beside its threads. */
static _Atomic(ucm_log_sink) current_sink = ucm_log_stderr;
static _Atomic(enum ucm_log_level) current_most = UCM_LOG_INFO;
static int log_fd = -1;
static _Atomic uint64_t counts[UCM_LOG_LEVELS];
static _Atomic uint64_t count_left_out;

/* Guards all sites, and the list of those that have left out lines. */
static pthread_mutex_t sites_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ucm_log_site *sites;

/* ---- sinks ---- */

void ucm_log_stderr(enum ucm_log_level level, const char *line)
{
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

int ucm_log_open(const char *path)
{
	int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY,
		      0640);

	if (fd < 0)
		return -errno;
	log_fd = fd;
	return 0;
}

/* One write(2): lines of several threads and processes do not mix. */
void ucm_log_file(enum ucm_log_level level, const char *line)
{
	char text[UCM_LOG_LINE_SIZE + 80];
	struct timespec now;
	struct tm tm;
	size_t len;

	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &tm);
	len = strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm);
	len += (size_t)snprintf(text + len, sizeof(text) - len,
				".%03ldZ ucmfs[%ld]: %s%s\n",
				now.tv_nsec / 1000000, (long)getpid(),
				marks[level], line);
	if (len >= sizeof(text)) {
		len = sizeof(text) - 1;
		text[len - 1] = '\n';
	}
	/* what a full disk does not take is lost: nobody can be informed */
	while (write(log_fd, text, len) < 0 && errno == EINTR)
		;
}

void ucm_log_set(ucm_log_sink sink, enum ucm_log_level most)
{
	current_sink = sink;
	current_most = most;
	for (unsigned i = 0; most == UCM_LOG_DEBUG && i < UCM_AREA_COUNT; i++) {
		uint8_t off = 0;

		atomic_compare_exchange_strong(&ucm_log_depths[i], &off, 1);
	}
}

/* ---- lines ---- */

/* Bytes of the UTF-8 character at c, and the character; 0: it is none. */
static size_t decode(const unsigned char *c, uint32_t *out)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	size_t len = *c < 0x80	? 1
		     : *c < 0xc0 ? 0
		     : *c < 0xe0 ? 2
		     : *c < 0xf0 ? 3
		     : *c < 0xf8 ? 4
				 : 0;

	*out = len > 1 ? *c & (0xffu >> (len + 1)) : *c;
	for (size_t i = 1; i < len; i++) {
		if ((c[i] & 0xc0) != 0x80)
			return 0;
		*out = *out << 6 | (c[i] & 0x3f);
	}
	return *out < least[len] || *out > 0x10ffff || *out >> 11 == 0x1b ? 0
									: len;
}

/* Ends a line, moves a cursor, or turns the direction of what is read. */
static bool is_control(uint32_t c)
{
	return c < 0x20 || (c >= 0x7f && c < 0xa0) ||
	       (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

/* Names are their users' choice: what would forge a line, or is no text,
 * becomes \xNN. */
static void escape(const char *from, char *to, size_t size)
{
	const unsigned char *c = (const unsigned char *)from;
	uint32_t character;

	while (*c) {
		size_t len = decode(c, &character);

		if (len && !is_control(character)) {
			if (len >= size)
				break;
			memcpy(to, c, len);
		} else {
			len = len ? len : 1;
			if (4 * len >= size)
				break;
			for (size_t i = 0; i < len; i++)
				sprintf(to + 4 * i, "\\x%02x", c[i]);
			to += 3 * len;
			size -= 3 * len;
		}
		to += len;
		size -= len;
		c += len;
	}
	*to = '\0';
}

__attribute__((format(printf, 3, 0))) static void
log_line(enum ucm_log_level level, const char *prefix, const char *format,
	 va_list args)
{
	int saved = errno; /* for %m, and for the caller */
	char raw[UCM_LOG_LINE_SIZE], line[UCM_LOG_LINE_SIZE];
	int len = snprintf(raw, sizeof(raw), "%s", prefix);

	errno = saved;
	vsnprintf(raw + len, sizeof(raw) - (size_t)len, format, args);
	escape(raw, line, sizeof(line));
	if (!ucm_log_redirected(level, line))
		atomic_load(&current_sink)(level, line);
	atomic_fetch_add_explicit(&counts[level], 1, memory_order_relaxed);
	errno = saved;
}

void ucm_log(enum ucm_log_level level, const char *format, ...)
{
	va_list args;

	if (level > current_most)
		return;
	va_start(args, format);
	log_line(level, "", format, args);
	va_end(args);
}

void ucm_log_debug(enum ucm_log_area area, const char *format, ...)
{
#define PREFIX(id, name, one, two) [UCM_AREA_##id] = name ": ",
	static const char *const prefixes[] = { UCM_LOG_AREAS(PREFIX) };
#undef PREFIX
	va_list args;

	va_start(args, format);
	log_line(UCM_LOG_DEBUG, prefixes[area], format, args);
	va_end(args);
}

/* ---- limited lines ---- */

static void tell_left_out(const char *format, unsigned left_out)
{
	if (left_out)
		ucm_log(UCM_LOG_WARNING, "left out %u lines like \"%s\"",
			left_out, format);
}

static bool window_is_over(const struct ucm_log_site *site, int64_t now_ms)
{
	return now_ms - site->since_ms >= UCM_LOG_WINDOW_MS;
}

/* May it log a line? The caller reports what it left out before. */
static bool admit(struct ucm_log_site *site, const char *format,
		  unsigned *left_out)
{
	int64_t now_ms = ucm_monotonic_ms();
	bool may;

	pthread_mutex_lock(&sites_lock);
	if (!site->lines || window_is_over(site, now_ms)) {
		*left_out = site->left_out;
		site->left_out = 0;
		site->lines = 0;
		site->since_ms = now_ms;
	}
	may = site->lines < UCM_LOG_BURST;
	if (may) {
		site->lines++;
	} else {
		site->left_out++;
		site->format = format;
		if (!site->listed) {
			site->listed = true;
			site->next = sites;
			sites = site;
		}
	}
	pthread_mutex_unlock(&sites_lock);
	return may;
}

void ucm_log_limited(struct ucm_log_site *site, enum ucm_log_level level,
		     const char *format, ...)
{
	int saved = errno;
	unsigned left_out = 0;
	va_list args;

	if (level > current_most)
		return;
	if (!admit(site, format, &left_out)) {
		atomic_fetch_add_explicit(&count_left_out, 1,
					  memory_order_relaxed);
		return;
	}
	tell_left_out(format, left_out);
	errno = saved;
	va_start(args, format);
	log_line(level, "", format, args);
	va_end(args);
}

/* The next one that has something to report, its count taken. */
static unsigned take_left_out(bool all, const char **format)
{
	int64_t now_ms = ucm_monotonic_ms();
	unsigned left_out = 0;

	pthread_mutex_lock(&sites_lock);
	for (struct ucm_log_site *site = sites; site && !left_out;
	     site = site->next) {
		if (!site->left_out || (!all && !window_is_over(site, now_ms)))
			continue;
		left_out = site->left_out;
		*format = site->format;
		site->left_out = 0;
	}
	pthread_mutex_unlock(&sites_lock);
	return left_out;
}

void ucm_log_tell_left_out(bool all)
{
	const char *format;
	unsigned left_out;

	while ((left_out = take_left_out(all, &format)))
		tell_left_out(format, left_out);
}

uint64_t ucm_log_count(enum ucm_log_level level)
{
	return atomic_load_explicit(&counts[level], memory_order_relaxed);
}

uint64_t ucm_log_count_left_out(void)
{
	return atomic_load_explicit(&count_left_out, memory_order_relaxed);
}

/* ---- the environment ---- */

static const char *variable(const char *name)
{
	const char *value = secure_getenv(name);

	return value && *value ? value : NULL;
}

static void take_level(const char *text)
{
	for (unsigned i = 0; i < UCM_LOG_LEVELS; i++) {
		if (!strcasecmp(text, ucm_log_level_names[i])) {
			ucm_log_set(current_sink, i);
			return;
		}
	}
	ucm_warning("UCM_LOG_LEVEL '%s': use error, warning, info or debug",
		    text);
}

static void open_file(void)
{
	const char *path = variable("UCM_LOG_FILE");

	if (!path || current_sink != ucm_log_stderr)
		return; /* the program has chosen */
	if (!ucm_log_open(path))
		ucm_log_set(ucm_log_file, current_most);
	else
		ucm_warning("UCM_LOG_FILE: %s: %m", path);
}

void ucm_log_take_environment(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	const char *level = variable("UCM_LOG_LEVEL");
	const char *debug = variable("UCM_DEBUG");
	struct ucm_error why;

	pthread_once(&once, open_file);
	if (level)
		take_level(level);
	if (debug && (!strcasecmp(debug, "true") || !strcmp(debug, "1")))
		debug = "all=1";
	if (debug && ucm_log_areas_set(debug, &why))
		ucm_warning("UCM_DEBUG: %s", why.text);
}
