/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mark.h - the eight bits of a state, and the small arithmetic that policies
 * share.
 *
 *	bits 0-1  path   how old the path was that the last request found (hazard)
 *	bits 2-3  pause  how long it had not been asked for, then (hazard)
 *	bit  4    again  added where something was known: second generation
 *			 (hazard)
 *	bits 5-6  place  its number in its chain, modulo 4 (hazard)
 *	bit  7    asked  a request asked for it, and it was not opened since
 */
#ifndef UCM_FS_POLICY_MARK_H
#define UCM_FS_POLICY_MARK_H

#include "fs/policy/policy.h"

#define MARK_PATH_SHIFT	 0
#define MARK_PAUSE_SHIFT 2
#define MARK_AGAIN	 0x10u
#define MARK_PLACE_SHIFT 5
#define MARK_ASKED	 0x80u

/* An open this long after a request is not that request's. */
#define MARK_ASKED_MAX_S 600u

static inline unsigned mark_path(uint8_t mark)
{
	return mark >> MARK_PATH_SHIFT & 3u;
}

static inline unsigned mark_pause(uint8_t mark)
{
	return mark >> MARK_PAUSE_SHIFT & 3u;
}

static inline bool mark_again(uint8_t mark)
{
	return mark & MARK_AGAIN;
}

static inline unsigned mark_place(uint8_t mark)
{
	return mark >> MARK_PLACE_SHIFT & 3u;
}

/* A clock that jumped back makes no age. */
static inline uint32_t policy_age(uint32_t now_s, uint32_t then_s)
{
	return now_s > then_s ? now_s - then_s : 0;
}

static inline void policy_count(struct ucm_policy_state *state)
{
	state->uses += state->uses != UINT32_MAX;
}

/* Is a use the one that a request has announced, or one of the second that was
 * counted? Then it is no other. */
static inline bool policy_was_counted(uint32_t now_s,
				      struct ucm_policy_state *state)
{
	bool asked = state->mark & MARK_ASKED && now_s >= state->last_s &&
		     now_s - state->last_s < MARK_ASKED_MAX_S;

	state->mark &= (uint8_t)~MARK_ASKED;
	return state->uses && (asked || now_s == state->last_s);
}

/* splitmix64's: tags may be counted numbers. */
static inline uint64_t policy_mix(uint64_t x)
{
	x += UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

#endif
