/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scrub.h - reading all blocks, to find those that the disk has not kept.
 *
 * A run goes through the blocks of each directory in the order of their ids,
 * compares their checksums with what the disk has, and sets aside what is wrong;
 * what can be had from a second directory is served from there. It remembers
 * where it is and goes on after a restart. Calls are made from any thread.
 */
#ifndef UCM_SCRUB_H
#define UCM_SCRUB_H

#include <stdbool.h>
#include <stdint.h>

struct ucm_store;

enum ucm_scrub_state {
	UCM_SCRUB_STATE_NONE,	 /* there was no run */
	UCM_SCRUB_STATE_RUNNING,
	UCM_SCRUB_STATE_WAITING, /* the directory failed; it goes on by itself */
	UCM_SCRUB_STATE_STOPPED,
	UCM_SCRUB_STATE_DONE,
	UCM_SCRUB_STATES,
};

/* "none", "running", ... */
extern const char *const ucm_scrub_states[UCM_SCRUB_STATES];

struct ucm_scrub_terms {
	const char *space; /* its name, "" for the default one; NULL: all */
	uint64_t rate;	   /* bytes a second, of all directories; 0: no limit */
	bool anew; /* from the beginning, though a run was stopped in the middle */
};

/* Of a run in one directory. */
struct ucm_scrub_status {
	enum ucm_scrub_state state;
	int err; /* WAITING: why, as -errno */
	uint64_t blocks, bytes; /* that have been read */
	uint64_t total_blocks, total_bytes; /* and are to be */
	uint64_t bad;	     /* wrong, or their representations, and set aside */
	uint64_t missing;    /* whose file was gone */
	uint64_t repaired;   /* of those two: a second directory has them */
	uint64_t unreadable; /* nobody can say; they stay */
	uint64_t unchecked;  /* right as far as that goes: no checksums */
	uint64_t began_s, ended_s; /* since the epoch */
};

/* Memory for it; NULL is harmless to free. */
int ucm_scrub_new(struct ucm_store *store);
void ucm_scrub_free(struct ucm_store *store);

/* After the store's start, by whoever serves it: runs that the last stop has
 * interrupted go on. */
void ucm_scrub_resume(struct ucm_store *store);

/* Begin a run in each directory, or go on with one that was stopped; one that is
 * running gets the new rate, and one that waits tries again. -EBUSY: one of
 * another space is running; -ENOENT: there is no such space. */
int ucm_scrub_start(struct ucm_store *store,
		    const struct ucm_scrub_terms *terms);
void ucm_scrub_stop(struct ucm_store *store);

void ucm_scrub_status(struct ucm_store *store, unsigned dir,
		      struct ucm_scrub_status *out);

/* By a directory's keeper, when the store is stopping: its thread has ended. */
void ucm_scrub_join(struct ucm_store *store, unsigned dir);

#endif
