/* SPDX-License-Identifier: Apache-2.0 */
/* progress.c - a line on standard error that says how far work is. */
#include <config.h>

#include "tools/lib/progress.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "common/clock.h"

#define SECOND ((int64_t)1000000000)

void ucm_progress_begin(struct ucm_progress *progress)
{
	*progress = (struct ucm_progress){
		.terminal = isatty(STDERR_FILENO),
		.started_ns = ucm_monotonic_ns(),
	};
}

/* Short work has nothing to show, and nobody reads more than a few lines a
 * second. */
static bool is_due(const struct ucm_progress *progress, int64_t now)
{
	return progress->terminal && now - progress->started_ns >= SECOND &&
	       now - progress->told_ns >= SECOND / 5;
}

void ucm_progress_say(struct ucm_progress *progress, const char *format, ...)
{
	int64_t now = ucm_monotonic_ns();
	va_list words;

	if (!is_due(progress, now))
		return;
	progress->told_ns = now;
	ucm_progress_clear(progress);
	progress->shown = true;
	va_start(words, format);
	vfprintf(stderr, format, words);
	va_end(words);
	fflush(stderr);
}

void ucm_progress_tell(struct ucm_progress *progress, uint64_t done,
		       uint64_t total, uint64_t bytes)
{
	int64_t ns = ucm_monotonic_ns() - progress->started_ns;
	char of[32] = "", rate[40] = "";

	if (total)
		snprintf(of, sizeof(of), " of %" PRIu64, total);
	if (bytes && ns)
		snprintf(rate, sizeof(rate), ", %.0f MB/s",
			 (double)bytes * 1e3 / (double)ns);
	ucm_progress_say(progress, "%" PRIu64 "%s blocks%s", done, of, rate);
}

void ucm_progress_clear(struct ucm_progress *progress)
{
	if (progress->shown)
		fputs("\r\033[K", stderr);
	progress->shown = false;
}
