/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notices.h - names to be told of, folder by folder, where the telling may
 * hang.
 *
 * A name is told by a thread of ours, and the call may wait as long as somebody
 * holds that folder's lock. Names of one folder are told one after the other,
 * those of several folders at the same time, by a few threads: one that hangs
 * holds up its own folder only, until all of them do but one, which goes on to
 * tell of whole folders.
 *
 * Memory is bounded. A folder that hangs, or that has too many names waiting,
 * loses them, and all of it is told of instead, as work of the folder above it
 * (`above`, which may be a number of no folder). If that hangs as well it is
 * lost.
 *
 * Knows nothing of FUSE. Calls may be made from any thread.
 */
#ifndef UCM_NOTICES_H
#define UCM_NOTICES_H

#include <stdbool.h>
#include <stdint.h>

#include "fs/index/index.h"

#define UCM_NOTICES_THREADS 8u
#define UCM_NOTICES_OF_FOLDER 256u /* names that wait */
#define UCM_NOTICES_ALL 8192u	   /* of all folders */
#define UCM_NOTICES_STUCK_MS 1000  /* a call of this age hangs */

struct ucm_notices_ops {
	void (*name)(void *arg, uint64_t folder, const struct ucm_key *key);
	/* A whole folder; key: a name that was in it. */
	void (*folder)(void *arg, uint64_t folder, const struct ucm_key *key);
};

struct ucm_notices_stats {
	uint64_t told;	    /* calls that ended */
	uint64_t collapsed; /* names that went into a whole folder's */
	uint64_t lost;	    /* folders and names that nobody is told of */
	unsigned waiting;   /* names and folders, now */
	unsigned stuck;	    /* calls that hang, now */
};

struct ucm_notices;

/* Threads are made when they are needed. NULL: no memory. */
struct ucm_notices *ucm_notices_open(const struct ucm_notices_ops *ops,
				     void *arg);

/* What waits, or is still added, is not told of any more. False: a call has not
 * ended in so many milliseconds. */
bool ucm_notices_end(struct ucm_notices *notices, unsigned timeout_ms);

/* The same, and it is freed; if false, nothing is, and that call goes on to use
 * ops and arg. */
bool ucm_notices_close(struct ucm_notices *notices, unsigned timeout_ms);

void ucm_notices_add(struct ucm_notices *notices, uint64_t folder,
		     uint64_t above, const struct ucm_key *key);

void ucm_notices_get_stats(struct ucm_notices *notices,
			   struct ucm_notices_stats *out);

#endif
