/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay_fixture.c - traces that are made up; see replay_fixture.h.
 *
 * A session is a chain that grows, and a time at which it is asked for next.
 * The session whose time comes first makes the next request; one that ends
 * makes way for another.
 */
#include <config.h>

#include <math.h>

#include "tests/unit/random.h"
#include "tests/unit/replay_fixture.h"

#define SESSIONS 60
#define LONGEST	 2000

struct kind {
	unsigned prompts;      /* how many shared heads there are */
	unsigned head;	       /* blocks of a shared head */
	unsigned first_min, first_max; /* blocks of the first request */
	unsigned step_min, step_max;   /* more with each */
	double pause_s;	       /* from one to the next, on average */
	double long_pause_s;   /* now and then */
	double long_share;
	double end_share;      /* sessions that end, at each step */
	double fork_share;     /* steps that go back, and on from there */
	bool again;	       /* the same chain each time */
};

enum { CHAT, AGENT, DOCUMENT, JOB, LOOP };

static const struct kind kinds[] = {
	[CHAT] = { 4, 2, 2, 40, 1, 12, 120, 900, .15, .35, .02, false },
	[AGENT] = { 3, 24, 4, 20, 1, 6, 12, 200, .05, .025, .05, false },
	[DOCUMENT] = { 1, 1, 20, 160, 0, 0, 30, 30, 0, .8, 0, false },
	[JOB] = { 1, 4, 60, 120, 0, 0, 600, 600, 0, .02, 0, true },
	[LOOP] = { 1, 0, 100, 100, 0, 0, 300, 300, 0, 0, 0, true },
};

struct session {
	const struct kind *kind;
	double time_s;
	size_t num;
	uint64_t tags[LONGEST];
};

static double share(uint64_t *random)
{
	return (double)(random_next(random) >> 11) * 0x1p-53;
}

static double pause_of(const struct kind *kind, uint64_t *random)
{
	bool rest = share(random) < kind->long_share;
	double mean = rest ? kind->long_pause_s : kind->pause_s;

	return kind->again ? mean : -mean * log1p(-share(random));
}

static void grow(struct session *session, uint64_t num, uint64_t *random)
{
	while (num-- && session->num < LONGEST)
		session->tags[session->num++] = random_next(random);
}

static void begin(struct session *session, const struct kind *kind,
		  double time_s, uint64_t *random)
{
	uint64_t head = random_next(random) % kind->prompts +
			100 * (uint64_t)(kind - kinds);

	session->kind = kind;
	session->time_s = time_s;
	session->num = 0;
	grow(session, kind->head, &head);
	grow(session,
	     (uint64_t)random_between(random, kind->first_min, kind->first_max),
	     random);
}

/* After a request: another step, or another session of its kind. */
static void go_on(struct session *session, uint64_t *random)
{
	const struct kind *kind = session->kind;

	session->time_s += pause_of(kind, random);
	if (share(random) < kind->end_share) {
		begin(session, kind, session->time_s, random);
		return;
	}
	if (share(random) < kind->fork_share && session->num > kind->head)
		session->num -= random_next(random) %
				(session->num - kind->head);
	grow(session,
	     (uint64_t)random_between(random, kind->step_min, kind->step_max),
	     random);
}

static const struct kind *kind_of(enum replay_work work, unsigned number)
{
	static const unsigned char mixed[] = {
		CHAT, CHAT, CHAT, AGENT, AGENT, AGENT, DOCUMENT, DOCUMENT, JOB,
	};

	switch (work) {
	case REPLAY_CHAT:
		return &kinds[CHAT];
	case REPLAY_AGENTS:
		return &kinds[AGENT];
	case REPLAY_MIXED:
		return &kinds[mixed[number % sizeof(mixed)]];
	case REPLAY_LOOP:
	default:
		return &kinds[LOOP];
	}
}

void replay_make(enum replay_work work, uint64_t seed, size_t num_requests,
		 struct ucm_replay_trace *out)
{
	struct session *sessions = calloc(SESSIONS, sizeof(*sessions));
	uint64_t random = seed;

	must(sessions);
	*out = (struct ucm_replay_trace){ 0 };
	for (unsigned i = 0; i < SESSIONS; i++) {
		const struct kind *kind = kind_of(work, i);

		begin(&sessions[i], kind, share(&random) * kind->pause_s,
		      &random);
	}
	while (num_requests--) {
		struct session *first = &sessions[0];

		for (unsigned i = 1; i < SESSIONS; i++) {
			if (sessions[i].time_s < first->time_s)
				first = &sessions[i];
		}
		must(!ucm_replay_trace_add(out, (uint32_t)first->time_s,
					   first->tags, first->num));
		go_on(first, &random);
	}
	free(sessions);
}
