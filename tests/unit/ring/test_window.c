/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_window.c - how many bytes of reads may be in flight.
 *
 * A device is played: it serves so many bytes a second, and needs so many in
 * flight for it. Time is a number here.
 */
#include <config.h>

#include "gpu/ring/window.h"

#include "tests/unit/unit.h"

#define MIB ((uint64_t)1 << 20)

static bool take(struct ucm_window *window, uint64_t len, int64_t now)
{
	bool has_room = ucm_window_has_room(window, len);

	if (has_room)
		ucm_window_take(window, len, now);
	return has_room;
}

UNIT_TEST(a_given_limit_stays)
{
	struct ucm_window window;

	ucm_window_init(&window, 4 * MIB, 100 * MIB);
	ck_assert_uint_eq(window.limit, 4 * MIB);
	for (unsigned i = 0; i < 1000; i++) {
		for (unsigned j = 0; j < 4; j++)
			must(take(&window, MIB, i));
		must(!take(&window, MIB, i));
		for (unsigned j = 0; j < 4; j++)
			ucm_window_give(&window, MIB, i + 1);
	}
	ck_assert_uint_eq(window.limit, 4 * MIB);
	ck_assert_uint_eq(window.in_flight, 0);
	ucm_window_init(&window, 4 * MIB, 2 * MIB);
	ck_assert_uint_eq(window.limit, 2 * MIB); /* never above */
}

UNIT_TEST(one_may_always_be)
{
	struct ucm_window window;

	ucm_window_init(&window, MIB, 2 * MIB);
	ck_assert(take(&window, 50 * MIB, 0));
	ck_assert(!take(&window, 1, 0));
	ucm_window_give(&window, 50 * MIB, 1);
	ck_assert(take(&window, 1, 2));
	ck_assert(take(&window, MIB - 1, 2));
	ck_assert(!take(&window, 1, 2));
}

/* Reads of 1 MiB, as many as allowed, against a device whose rate grows with
 * what is in flight up to `enough`. */
static uint64_t found(uint64_t most, uint64_t enough, uint64_t total)
{
	struct ucm_window window;
	int64_t now = 0;

	ucm_window_init(&window, 0, most);
	for (uint64_t at = 0; at < total; at += MIB) {
		uint64_t depth;

		while (take(&window, MIB, now))
			;
		depth = window.in_flight < enough ? window.in_flight : enough;
		now += (int64_t)(MIB * 1000 / depth) * 1000;
		ucm_window_give(&window, MIB, now);
		must(window.limit <= most && window.in_flight <= most);
	}
	return window.limit;
}

static const struct {
	uint64_t most, enough, least, limit;
} devices[] = {
	{ 128, 8, 8, 16 },     /* MiB: fast enough from the start */
	{ 128, 32, 32, 64 },   /* doubled until it helps no more */
	{ 128, 1000, 128, 128 }, /* never enough */
	{ 4, 1000, 4, 4 },     /* less than the start */
	{ 20, 1000, 20, 20 },  /* no power of two */
};

UNIT_TEST(the_limit_is_found, .rows = NUM_ROWS(devices))
{
	uint64_t limit = found(devices[_i].most * MIB, devices[_i].enough * MIB,
			       10000 * MIB);

	ck_assert_uint_ge(limit, devices[_i].least * MIB);
	ck_assert_uint_le(limit, devices[_i].limit * MIB);
}

/* A device that gets faster by itself, or reads that get longer: it is not the
 * wider window that helps. */
UNIT_TEST(what_gets_faster_anyway_is_not_taken_for_it)
{
	struct ucm_window window;
	int64_t now = 0;

	ucm_window_init(&window, 0, 128 * MIB);
	for (unsigned i = 0; i < 10000 && !window.settled; i++) {
		while (take(&window, MIB, now))
			;
		now += 1000000000 / (i + 100);
		ucm_window_give(&window, MIB, now);
	}
	ck_assert(window.settled);
	ck_assert_uint_eq(window.limit, 8 * MIB);
}

/* A trial that the caller has too little work for says nothing. */
UNIT_TEST(a_window_that_is_not_used_does_not_grow)
{
	struct ucm_window window;

	ucm_window_init(&window, 0, 100 * MIB);
	for (int64_t i = 0; i < 1000; i++) {
		must(take(&window, MIB, i));
		ucm_window_give(&window, MIB, i);
	}
	ck_assert_uint_eq(window.limit, 8 * MIB);
	ck_assert(!window.settled);
}

/* ---- once more ---- */

#define SECOND INT64_C(1000000000)

/* A device that serves `bytes` a second once `enough` is in flight. */
struct device {
	uint64_t bytes, enough;
};

/* Reads of 1 MiB, as many as allowed, for so long. */
static int64_t use(struct ucm_window *window, const struct device *device,
		   int64_t now, int64_t end)
{
	while (now < end) {
		uint64_t depth;

		while (take(window, MIB, now))
			;
		depth = window->in_flight < device->enough ? window->in_flight
							   : device->enough;
		now += (int64_t)((double)MIB * (double)device->enough /
				 (double)depth / (double)device->bytes *
				 (double)SECOND);
		ucm_window_give(window, MIB, now);
	}
	return now;
}

static const struct {
	struct device before, after;
	int64_t within;
	uint64_t least, most; /* MiB of the limit then */
} changes[] = {
	/* others have left the device, or come: the rate says so at once */
	{ { 400 * MIB, 8 * MIB }, { 4000 * MIB, 32 * MIB }, 4 * SECOND, 32,
	  64 },
	{ { 4000 * MIB, 64 * MIB }, { 500 * MIB, 8 * MIB }, 60 * SECOND, 8,
	  32 },
	/* it is as fast as before, with more or less in flight */
	{ { 1000 * MIB, 8 * MIB }, { 1200 * MIB, 16 * MIB }, 60 * SECOND, 16,
	  32 },
	{ { 2000 * MIB, 64 * MIB }, { 2000 * MIB, 8 * MIB }, 90 * SECOND, 8,
	  16 },
	/* nothing happens */
	{ { 2000 * MIB, 32 * MIB }, { 2000 * MIB, 32 * MIB }, 300 * SECOND, 32,
	  64 },
};

UNIT_TEST(a_limit_follows_the_device, .rows = NUM_ROWS(changes))
{
	struct ucm_window window;
	int64_t now;

	ucm_window_init(&window, 0, 128 * MIB);
	now = use(&window, &changes[_i].before, 0, 5 * SECOND);
	ck_assert(window.settled);
	now = use(&window, &changes[_i].after, now, now + changes[_i].within);
	while (!window.settled) /* a search is under way */
		now = use(&window, &changes[_i].after, now, now + 1);
	ck_assert_uint_ge(window.limit, changes[_i].least * MIB);
	ck_assert_uint_le(window.limit, changes[_i].most * MIB);
}

/* What it costs to look again where nothing changes: less than 1 % of the
 * bytes. */
UNIT_TEST(searches_are_rare)
{
	const struct device device = { 2000 * MIB, 32 * MIB };
	struct ucm_window window;
	int64_t now, since;
	unsigned reads = 0, searching = 0;

	ucm_window_init(&window, 0, 128 * MIB);
	now = since = use(&window, &device, 0, 5 * SECOND);
	for (; reads < 200000; reads++) {
		now = use(&window, &device, now, now + 1);
		searching += !window.settled;
	}
	ck_assert_uint_gt(searching, 0);
	ck_assert_double_gt((double)reads * (double)MIB,
			    0.99 * (double)device.bytes *
				    (double)(now - since) / (double)SECOND);
}

/* Time that passes while nothing is read says nothing of the device. */
UNIT_TEST(idle_time_is_no_reason_to_search)
{
	const struct device device = { 2000 * MIB, 8 * MIB };
	struct ucm_window window;
	int64_t now;

	ucm_window_init(&window, 0, 128 * MIB);
	now = use(&window, &device, 0, 5 * SECOND);
	for (unsigned i = 0; i < 100; i++) {
		while (window.in_flight)
			ucm_window_give(&window, MIB, now);
		now += 100 * SECOND;
		now = use(&window, &device, now, now + SECOND / 10);
		ck_assert(window.settled);
	}
}
