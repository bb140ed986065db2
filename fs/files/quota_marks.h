/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quota_marks.h - what quota.c and quota_evict.c share: the marks.
 *
 * Locks: quotas->writing is held over the writing of notes; quotas->lock below
 * it, for a few instructions, and below every other lock of files/.
 */
#ifndef UCM_FILES_QUOTA_MARKS_H
#define UCM_FILES_QUOTA_MARKS_H

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "fs/files/quota.h"
#include "fs/tier/config.h"

/* A file that may go. */
struct ucm_quota_victim {
	char *path;
	unsigned dir;
	uint64_t ino;
	int64_t key_ns; /* when it was last used, or written */
};

/* Files that may go, the oldest first, from next on. */
struct ucm_quota_pool {
	struct ucm_quota_victim *list;
	size_t num, next;
	uint64_t of;  /* changes of its mark */
	bool whole;   /* of all files, not of some */
	bool skip[UCM_MAX_DIRS]; /* nothing can be removed there */
	uint64_t evicted, open;	 /* of those before next */
	uint64_t young, seen;	 /* when it was filled */
};

/* Under quotas->lock, if it does not say otherwise. */
struct ucm_files_mark {
	char *path;
	size_t len;
	uint32_t number;
	uint64_t quota;
	enum ucm_files_order order;
	uint32_t grace_s;
	int64_t used[UCM_MAX_DIRS]; /* in each directory */
	int64_t total;		    /* of these */
	uint64_t files_evicted, bytes_evicted, refused;
	bool counted;
	bool gone;     /* no longer in the table; the thread still has it */
	bool stale;    /* to be counted anew, at once */
	bool evicting; /* from high until low */
	bool full;     /* that nothing may go has been logged */
	int64_t counted_ms; /* when it was counted last */
	int64_t again_ms;   /* nothing may go before that is over */
	uint64_t changes;   /* of what the mark says */

	/* the thread's own */
	bool held; /* in use by it; under quotas->lock */
	struct ucm_quota_pool pool;
	bool whole;	/* some files were looked at in vain: look at all */
	uint64_t files; /* when it was counted */
	uint64_t told_files, told_bytes; /* of those evicted, in the log */
	int64_t told_ms;
};

/* What a file was charged that a walk has not come to yet. */
struct ucm_quota_ahead {
	uint64_t hash; /* of its path; 0: free */
	int64_t bytes;
};

/* A walk that counts a mark in one directory: what is before where it has come
 * to is in sum. */
struct ucm_quota_walk {
	struct ucm_files_mark *mark; /* NULL: none */
	unsigned dir;
	int64_t sum;
	char at[PATH_MAX];
	struct ucm_quota_ahead *ahead; /* a hash table */
	size_t num_ahead, room_ahead;  /* a power of two, or 0 */
};

struct ucm_files_quotas {
	struct ucm_files_tree *tree;
	pthread_mutex_t writing;
	uint64_t serial; /* of the notes; under writing */

	pthread_mutex_t lock; /* all that follows */
	pthread_cond_t work;  /* for the thread */
	pthread_cond_t room;  /* for those who make files */
	struct ucm_files_mark *marks[UCM_QUOTA_MARKS];
	_Atomic unsigned num; /* without the lock: are there any? */
	uint32_t next_number;
	struct ucm_quota_walk walk;

	pthread_t thread;
	bool running, ended;
	_Atomic bool stopping;

	/* set before the thread starts */
	struct ucm_files_nodes *nodes;
	const struct ucm_files_quota_ops *ops;
	int64_t (*now_ns)(void); /* as files are dated; tests have their own */
	unsigned see_whole; /* folders with more files are sampled */
	uint64_t random;
};

/* Is path the folder, or in it? */
bool ucm_quota_covers(const char *folder, size_t len, const char *path);

/* All under the lock: files should go, enough have gone, no file is to be
 * made. */
static inline bool ucm_quota_is_high(const struct ucm_files_mark *mark)
{
	return mark->total > 0 &&
	       (uint64_t)mark->total >=
		       mark->quota - mark->quota / 100 * (100 - UCM_QUOTA_HIGH);
}

static inline bool ucm_quota_is_low(const struct ucm_files_mark *mark)
{
	return mark->total <= 0 ||
	       (uint64_t)mark->total <=
		       mark->quota - mark->quota / 100 * (100 - UCM_QUOTA_LOW);
}

static inline bool ucm_quota_is_reached(const struct ucm_files_mark *mark)
{
	return mark->total > 0 && (uint64_t)mark->total >= mark->quota;
}

/* A mark that is not in the table is freed by whoever has it. */
void ucm_quota_mark_free(struct ucm_files_mark *mark);

/* One step of the thread's work: false if there is nothing to do now. For the
 * thread, and tests without it. */
bool ucm_files_quotas_step(struct ucm_files_quotas *quotas);

/* All three under the lock: a walk begins, has come to a file that takes so
 * much, and has ended; then sum is what the mark takes in the directory. */
void ucm_quota_walk_begin(struct ucm_quota_walk *walk, unsigned dir);
void ucm_quota_walk_pass(struct ucm_quota_walk *walk, const char *path,
			 uint64_t bytes);
void ucm_quota_walk_end(struct ucm_quota_walk *walk);

void ucm_quota_pool_clear(struct ucm_quota_pool *pool);

#endif
