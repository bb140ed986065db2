/* SPDX-License-Identifier: Apache-2.0 */
/*
 * window.c - how many bytes of reads may be in flight.
 *
 * A limit is tried against the double of it, and against itself again: reads
 * that grow, files that are opened for the first time and a device that others
 * use, too, all make the later trial look better. Only what is faster than the
 * narrow limit before and after it counts.
 */
#include <config.h>

#include "gpu/ring/window.h"

#define START ((uint64_t)8 << 20)
#define TRIAL_WINDOWS 4 /* so many times the limit is read in a trial */
#define WORTH_IT 1.10   /* doubling must be so much faster */

/* What is in flight now was started under another limit: it does not count. */
static void start_trial(struct ucm_window *window, enum ucm_trial trial,
			uint64_t limit, int64_t now_ns)
{
	window->trial = trial;
	window->limit = limit;
	window->full = false;
	window->skip = window->in_flight;
	window->done = 0;
	window->started_ns = now_ns;
}

void ucm_window_init(struct ucm_window *window, uint64_t fixed, uint64_t most)
{
	*window = (struct ucm_window){
		.limit = fixed ? fixed : START,
		.most = most,
		.settled = fixed != 0,
	};
	if (window->limit > most)
		window->limit = most;
	window->narrow = window->limit;
}

bool ucm_window_has_room(struct ucm_window *window, uint64_t len)
{
	if (!window->in_flight || window->in_flight + len <= window->limit)
		return true;
	window->full = true;
	return false;
}

void ucm_window_take(struct ucm_window *window, uint64_t len, int64_t now_ns)
{
	if (!window->in_flight) /* it was idle */
		start_trial(window, window->trial, window->limit, now_ns);
	window->in_flight += len;
}

static void settle(struct ucm_window *window)
{
	window->limit = window->narrow;
	window->settled = true;
}

/* narrow is known, and worth it: is twice of it? */
static void try_wider(struct ucm_window *window, double rate, int64_t now_ns)
{
	uint64_t limit = 2 * window->narrow;

	window->narrow_rate = rate;
	if (window->narrow == window->most)
		settle(window);
	else
		start_trial(window, UCM_TRIAL_WIDE,
			    limit < window->most ? limit : window->most,
			    now_ns);
}

/* A trial has ended. */
static void judge(struct ucm_window *window, int64_t now_ns)
{
	double rate = (double)window->done /
		      (double)(now_ns - window->started_ns + 1);

	switch (window->trial) {
	case UCM_TRIAL_NARROW:
		try_wider(window, rate, now_ns);
		break;
	case UCM_TRIAL_WIDE:
		if (rate < window->narrow_rate * WORTH_IT) {
			settle(window);
			break;
		}
		window->wide = window->limit;
		window->wide_rate = rate;
		start_trial(window, UCM_TRIAL_AGAIN, window->narrow, now_ns);
		break;
	case UCM_TRIAL_AGAIN:
		if (window->wide_rate < rate * WORTH_IT) {
			settle(window);
			break;
		}
		window->narrow = window->wide;
		try_wider(window, window->wide_rate, now_ns);
		break;
	}
}

void ucm_window_give(struct ucm_window *window, uint64_t len, int64_t now_ns)
{
	window->in_flight -= len;
	if (window->settled)
		return;
	if (window->skip) {
		window->skip -= len < window->skip ? len : window->skip;
		window->started_ns = now_ns;
		return;
	}
	window->done += len;
	if (window->full && window->done >= TRIAL_WINDOWS * window->limit)
		judge(window, now_ns);
}
