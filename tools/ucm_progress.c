/* SPDX-License-Identifier: Apache-2.0 */
/* ucm_progress.c - a line on standard error that says how far work is. */
#include <config.h>

#include "tools/ucm_progress.h"

#include <inttypes.h>
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
void ucm_progress_tell(struct ucm_progress *progress, uint64_t done,
		       uint64_t total, uint64_t bytes)
{
	int64_t now = ucm_monotonic_ns();
	int64_t ns = now - progress->started_ns;

	if (!progress->terminal || ns < SECOND ||
	    now - progress->told_ns < SECOND / 5)
		return;
	progress->told_ns = now;
	ucm_progress_clear(progress);
	progress->shown = true;
	fprintf(stderr, "%" PRIu64, done);
	if (total)
		fprintf(stderr, " of %" PRIu64, total);
	fputs(" blocks", stderr);
	if (bytes)
		fprintf(stderr, ", %.0f MB/s",
			(double)bytes * 1e3 / (double)ns);
	fflush(stderr);
}

void ucm_progress_clear(struct ucm_progress *progress)
{
	if (progress->shown)
		fputs("\r\033[K", stderr);
	progress->shown = false;
}
