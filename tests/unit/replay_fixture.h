/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay_fixture.h - traces that are made up: several kinds of work, each from
 * a seed.
 */
#ifndef UCM_TESTS_REPLAY_FIXTURE_H
#define UCM_TESTS_REPLAY_FIXTURE_H

#include "fs/replay/replay.h"

enum replay_work {
	/* people: turns minutes apart, most sessions end after a few */
	REPLAY_CHAT,
	/* agents: tens of steps, seconds apart, each a little longer; some fork
	 * and some pause */
	REPLAY_AGENTS,
	/* both, documents that are read once, and jobs that come back by the
	 * clock */
	REPLAY_MIXED,
	/* the same long chains in turn */
	REPLAY_LOOP,
};

/* About so many requests; to be given to ucm_replay_trace_fini(). */
void replay_make(enum replay_work work, uint64_t seed, size_t num_requests,
		 struct ucm_replay_trace *out);

#endif
