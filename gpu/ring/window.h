/* SPDX-License-Identifier: Apache-2.0 */
/*
 * window.h - how many bytes of reads may be in flight.
 *
 * A device gives its full rate once enough is asked of it at a time; more only
 * takes memory and time. Unless the number is given, it is found as TCP finds
 * it: start small, double while that makes it faster, then stay; and now and then
 * once more from the half of it, as a device is shared with others. Pure.
 */
#ifndef UCM_WINDOW_H
#define UCM_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

enum ucm_trial {
	UCM_TRIAL_NARROW, /* of a limit */
	UCM_TRIAL_WIDE,   /* of the double */
	UCM_TRIAL_AGAIN,  /* of the first one, for comparison */
};

struct ucm_window {
	uint64_t limit; /* bytes allowed at present */
	uint64_t most;
	bool fixed;   /* it was given */
	bool settled;
	uint64_t in_flight;
	/* The trial that is under way. */
	enum ucm_trial trial;
	bool full;     /* the limit was reached in it */
	uint64_t skip; /* bytes that do not count yet */
	uint64_t done; /* bytes */
	int64_t started_ns;
	uint64_t narrow, wide; /* limits that are compared */
	double narrow_rate, wide_rate;
	/* While it is settled; done and started_ns are those of a span then. */
	double rate;     /* that it was settled for */
	int64_t busy_ns; /* since then, in spans in which it was full */
	unsigned others; /* spans in a row with a rate that is far from it */
};

/* fixed: bytes, or 0 to find them out; most: never above. */
void ucm_window_init(struct ucm_window *window, uint64_t fixed, uint64_t most);

/* May a read of len bytes start? One always may when there is none. */
bool ucm_window_has_room(struct ucm_window *window, uint64_t len);

/* One that may does; and it has ended. */
void ucm_window_take(struct ucm_window *window, uint64_t len, int64_t now_ns);
void ucm_window_give(struct ucm_window *window, uint64_t len, int64_t now_ns);

#endif
