/* SPDX-License-Identifier: Apache-2.0 */
/*
 * window.c - how many bytes of reads may be in flight.
 *
 * A limit is tried against the double of it, and against itself again: reads
 * that grow, files that are opened for the first time and a device that others
 * use, too, all make the later trial look better. Only what is faster than the
 * narrow limit before and after it counts.
 *
 *	NARROW --> WIDE --> AGAIN --> WIDE of the double ...
 *	  ^          '--------'-----> settled: WIDE was not worth it
 *	  '------------------------------'  at half the limit, after SEARCH_NS of
 *	                                    reading with a full window, or SOON_NS
 *	                                    where the rate has become another
 *
 * So the limit follows a device that others use as well: by half at a time when
 * there is less to be had, by any factor when there is more. A search costs
 * what some ten windows take longer; it is rare.
 */
#include <config.h>

#include "gpu/ring/window.h"

#define START ((uint64_t)8 << 20)
#define TRIAL_WINDOWS 4 /* so many times the limit is read in a trial */
#define WORTH_IT 1.10   /* doubling must be so much faster */
#define SPAN_WINDOWS 16 /* so often it is read until a rate is believed */
#define FAR 2.0         /* a rate that is another one */
#define FAR_SPANS 2     /* in a row */
#define SOON_NS (INT64_C(1) * 1000000000)
#define SEARCH_NS (INT64_C(20) * 1000000000)

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
		.fixed = fixed != 0,
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

static void start_span(struct ucm_window *window, int64_t now_ns)
{
	window->full = false;
	window->done = 0;
	window->started_ns = now_ns;
}

static void settle(struct ucm_window *window, double rate, int64_t now_ns)
{
	window->limit = window->narrow;
	window->settled = true;
	window->rate = rate;
	window->busy_ns = 0;
	window->others = 0;
	start_span(window, now_ns);
}

/* Once more; never from less than the first time. */
static void search(struct ucm_window *window, int64_t now_ns)
{
	uint64_t least = window->most < START ? window->most : START;

	window->narrow = window->limit / 2 > least ? window->limit / 2 : least;
	window->settled = false;
	start_trial(window, UCM_TRIAL_NARROW, window->narrow, now_ns);
}

/* A span has ended. */
static void look_at_rate(struct ucm_window *window, int64_t now_ns)
{
	int64_t took = now_ns - window->started_ns + 1;
	double rate = (double)window->done / (double)took;
	bool is_far = rate > FAR * window->rate || rate * FAR < window->rate;

	window->others = is_far ? window->others + 1 : 0;
	window->busy_ns += took;
	if (window->busy_ns >= SEARCH_NS ||
	    (window->others >= FAR_SPANS && window->busy_ns >= SOON_NS))
		search(window, now_ns);
	else
		start_span(window, now_ns);
}

/* narrow is known, and worth it: is twice of it? */
static void try_wider(struct ucm_window *window, double rate, int64_t now_ns)
{
	uint64_t limit = 2 * window->narrow;

	window->narrow_rate = rate;
	if (window->narrow == window->most)
		settle(window, rate, now_ns);
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
			settle(window, window->narrow_rate, now_ns);
			break;
		}
		window->wide = window->limit;
		window->wide_rate = rate;
		start_trial(window, UCM_TRIAL_AGAIN, window->narrow, now_ns);
		break;
	case UCM_TRIAL_AGAIN:
		if (window->wide_rate < rate * WORTH_IT) {
			settle(window, rate, now_ns);
			break;
		}
		window->narrow = window->wide;
		try_wider(window, window->wide_rate, now_ns);
		break;
	}
}

static void count_settled(struct ucm_window *window, uint64_t len,
			  int64_t now_ns)
{
	window->done += len;
	if (window->done < SPAN_WINDOWS * window->limit)
		return;
	if (window->full)
		look_at_rate(window, now_ns);
	else /* too few reads to say anything */
		start_span(window, now_ns);
}

static void count_trial(struct ucm_window *window, uint64_t len,
			int64_t now_ns)
{
	if (window->skip) {
		window->skip -= len < window->skip ? len : window->skip;
		window->started_ns = now_ns;
		return;
	}
	window->done += len;
	if (window->full && window->done >= TRIAL_WINDOWS * window->limit)
		judge(window, now_ns);
}

void ucm_window_give(struct ucm_window *window, uint64_t len, int64_t now_ns)
{
	window->in_flight -= len;
	if (window->fixed)
		return;
	if (window->settled)
		count_settled(window, len, now_ns);
	else
		count_trial(window, len, now_ns);
}
