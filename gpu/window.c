/* SPDX-License-Identifier: Apache-2.0 */
/*
 * window.c - how many bytes of reads may be in flight.
 */
#include <config.h>

#include "gpu/window.h"

#define START ((uint64_t)8 << 20)
#define TRIAL_WINDOWS 4 /* so many times the limit is read in a trial */
#define WORTH_IT 1.10   /* doubling must be so much faster */

static void start_trial(struct ucm_window *window, int64_t now_ns)
{
	window->full = false;
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
}

bool ucm_window_take(struct ucm_window *window, uint64_t len, int64_t now_ns)
{
	if (window->in_flight && window->in_flight + len > window->limit) {
		window->full = true;
		return false;
	}
	if (!window->in_flight)
		start_trial(window, now_ns); /* it was idle */
	window->in_flight += len;
	return true;
}

/* A trial has ended: was it worth it? */
static void judge(struct ucm_window *window, int64_t now_ns)
{
	double rate = (double)window->done /
		      (double)(now_ns - window->started_ns + 1);

	if (rate < window->best_rate * WORTH_IT) {
		window->limit /= 2; /* the one before did as well */
		window->settled = true;
		return;
	}
	window->best_rate = rate;
	if (window->limit == window->most) {
		window->settled = true;
		return;
	}
	window->limit = window->limit > window->most / 2 ? window->most
							  : 2 * window->limit;
	start_trial(window, now_ns);
}

void ucm_window_give(struct ucm_window *window, uint64_t len, int64_t now_ns)
{
	window->in_flight -= len;
	window->done += len;
	if (!window->settled && window->full &&
	    window->done >= TRIAL_WINDOWS * window->limit)
		judge(window, now_ns);
}
