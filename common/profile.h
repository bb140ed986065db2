/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile.h - what was done when, as a file for chrome://tracing and Perfetto.
 *
 * UCM_PROFILE=1 in the environment switches it on, UCM_PROFILE_OUTPUT names the file;
 * ucm_load(3) has what is in there, of a loader and of a daemon. Else it costs one
 * branch where an event begins, and one where it ends. Any thread; none waits for
 * another.
 */
#ifndef UCM_PROFILE_H
#define UCM_PROFILE_H

#include <stdbool.h>

#include <ucm/block.h>

#include "common/clock.h"

enum ucm_profile_kind { UCM_PROFILE_TASK, UCM_PROFILE_IO, UCM_PROFILE_COPY };

struct ucm_profile_event {
	enum ucm_profile_kind kind;
	int err;          /* 0 or -errno */
	const char *name; /* a literal of plain letters: it is not escaped */
	int64_t begin_ns;
	int64_t bytes;         /* or -errno */
	size_t blocks, pieces; /* of a task, */
	size_t good;           /* and its blocks that were read, written or found */
	struct ucm_id id;      /* of the block, unless it is a task */
};

/* Events that are kept; those beyond are counted. */
#define UCM_PROFILE_MOST ((size_t)1 << 18)

extern _Atomic bool ucm_profile_on;

/* Look at the environment; nothing happens when it has been switched on before. A child
 * that is forked after that writes nothing. */
void ucm_profile_start(void);

/* The begin of an event; 0: nothing is recorded. */
static inline int64_t ucm_profile_begin(void)
{
	return __builtin_expect(ucm_profile_on, 0) ? ucm_monotonic_ns() : 0;
}

/* The event ends now. */
void ucm_profile_add(const struct ucm_profile_event *event);

/* The same, unless its begin is 0. */
static inline void ucm_profile_end(struct ucm_profile_event event)
{
	if (__builtin_expect(event.begin_ns != 0, 0))
		ucm_profile_add(&event);
}

#endif
