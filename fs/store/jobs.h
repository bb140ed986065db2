/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jobs.h - what blocks are to be moved: asked for here, done by the movers.
 *
 * Before all else: new blocks of tiers with write=through, for whose copy the
 * commit waits. It waits with no lock held, and not for ever: what is not copied
 * by then is copied like the blocks of write=back.
 *
 * Queues of references, of bounded length. One that is full drops what comes: a
 * promotion is asked for again; of blocks that are to be copied below it is
 * noted that some are missing, and the index is walked for them. A reference
 * that is stale by its turn does no harm.
 *
 * All calls are cheap and may be made from any thread. They do nothing before
 * the movers have started.
 */
#ifndef UCM_JOBS_H
#define UCM_JOBS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "fs/index/index.h"

struct ucm_store;
struct ucm_tier;

#define UCM_JOBS_MAX 4096u
#define UCM_PROMOTE_WINDOW_S 3600u /* promote counts uses within this time */

struct ucm_job_queue {
	ucm_ref refs[UCM_JOBS_MAX];
	unsigned first, num;
};

/* A block in a slow tier, and how often it was used lately. Blocks with the
 * same slot drive each other out: what is used often comes back. */
struct ucm_job_seen {
	ucm_ref ref;
	uint32_t since_s;
	uint16_t uses;
};

/* A thread that waits for a copy, in its memory. */
struct ucm_job_awaited {
	TAILQ_ENTRY(ucm_job_awaited) link;
	ucm_ref ref;
	bool taken; /* a mover copies it now */
	int result; /* -EINPROGRESS: none yet */
};

struct ucm_jobs {
	pthread_mutex_t lock; /* guards the rest */
	pthread_cond_t wake;  /* of the movers */
	bool started, woken;
	TAILQ_HEAD(, ucm_job_awaited) through;
	pthread_cond_t copied; /* one of these has its result, or none will */
	struct ucm_job_queue down; /* to be copied below */
	/* To be copied to the fastest tier: because somebody has asked for
	 * that, and because it is used. */
	struct ucm_job_queue warm, up;
	bool down_lacks; /* some that are to be copied below are in no queue */
	struct ucm_job_seen seen[UCM_JOBS_MAX];
};

/* NULL: no memory. */
struct ucm_jobs *ucm_jobs_new(void);
void ucm_jobs_free(struct ucm_jobs *jobs);

/* The first of a queue; false: it is empty. */
bool ucm_jobs_take(struct ucm_jobs *jobs, struct ucm_job_queue *queue,
		   ucm_ref *ref);
/* One more that is to be copied below; false: the queue is full. */
bool ucm_jobs_put_down(struct ucm_jobs *jobs, ucm_ref ref);
/* Some are in no queue: they are looked for. */
void ucm_jobs_lack(struct ucm_jobs *jobs);

/* The next block that a commit waits for; false: there is none. What has come of
 * it is reported in any case. */
bool ucm_jobs_take_through(struct ucm_jobs *jobs, ucm_ref *ref);
void ucm_jobs_end_through(struct ucm_jobs *jobs, ucm_ref ref, int err);
/* Movers are there from now on, or no more: nobody waits for them then. */
void ucm_jobs_start(struct ucm_jobs *jobs, bool started);

/* Have a new block copied below at once, and wait for that. 0; what the copy came
 * to; -EINPROGRESS: it may take long, or no mover runs. */
int ucm_jobs_write_through(struct ucm_store *store, ucm_ref ref);
/* A block was used. */
void ucm_jobs_used(struct ucm_store *store, ucm_ref ref,
		   const struct ucm_entry *entry);
/* A new block has been closed by its writer. */
void ucm_jobs_written(struct ucm_store *store, ucm_ref ref);
/* Somebody asks for a block in the fastest tier. 0: it is there, or about to be;
 * -EAGAIN: too many are waiting; -ENOENT. */
int ucm_jobs_warm(struct ucm_store *store, ucm_ref ref);
/* Some directory is over its high mark, or may be. */
void ucm_jobs_wake(struct ucm_jobs *jobs);

/* The tier to which a block of that directory is promoted; NULL: none. */
struct ucm_tier *ucm_jobs_tier_above(struct ucm_store *store, unsigned dir);

/* Is a block to be copied to a lower tier, and has not been? */
bool ucm_jobs_is_unsaved(const struct ucm_store *store,
			 const struct ucm_entry *entry);
/* How many are there, and their bytes? */
void ucm_jobs_count_unsaved(const struct ucm_store *store, uint64_t *blocks,
			    uint64_t *bytes);

#endif
