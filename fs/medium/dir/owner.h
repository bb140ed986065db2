/* SPDX-License-Identifier: Apache-2.0 */
/*
 * owner.h - one daemon at a time for a directory that other machines may use.
 *
 * There a lock may hold for one machine only (lock.h), so the daemon makes
 * .ucmfs/owner, which says who it is, and sets its mtime again and again: it
 * beats. A second daemon is refused while that goes on. Where the owner was killed,
 * or its machine is gone, the file stands still, and is taken over.
 *
 * Times are compared with each other only, all of them the file server's. A daemon
 * that finds its file replaced was taken for dead and must not write any more.
 */
#ifndef UCM_OWNER_H
#define UCM_OWNER_H

#include <stdint.h>

#include "fs/config/config.h"
#include "fs/medium/temp.h"

#define UCM_OWNER_BEAT_MS 2000

struct ucm_owner {
	char start[UCM_TEMP_NAME_MAX]; /* of which daemon; "": not known, or none */
	int pid;
	unsigned long long pids; /* the namespace of that number */
	int64_t since_s;
	char host[65];
	int64_t beat_ns; /* of one that was read: its last beat */
};

extern unsigned ucm_owner_look_ms; /* between two looks; tests do not wait */

/* This process, from now on: by the directory's clock. */
void ucm_owner_init(struct ucm_owner *me, const struct ucm_temp_maker *self,
		    int64_t now_ns);

/* Make a control directory's owner me; waits some seconds where another one may
 * live. -EBUSY: it does; error names path, and it. */
int ucm_owner_take(const struct ucm_owner *me,
		   const struct ucm_temp_maker *self, int ctldir,
		   const char *path, struct ucm_error *error);

/* -EBUSY: it is another's now, *other. What else fails may succeed the next
 * time. beat: and show that we are there. */
int ucm_owner_check(const struct ucm_owner *me, int ctldir,
		    struct ucm_owner *other);
int ucm_owner_beat(const struct ucm_owner *me, int ctldir,
		   struct ucm_owner *other);

/* If it is still its owner, and no child of that: it has none from now on. */
void ucm_owner_leave(const struct ucm_owner *me, int ctldir);

/* -ENOENT: it has none. One that is being written has no start. */
int ucm_owner_read(int ctldir, struct ucm_owner *out);

/* For people: "host NAME, process PID, since ...". */
struct ucm_owner_text {
	char text[160];
};
struct ucm_owner_text ucm_owner_describe(const struct ucm_owner *owner);

#endif
