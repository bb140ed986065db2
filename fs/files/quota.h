/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quota.h - quotas of top folders of files/.
 *
 * A folder right in files/ is marked with a quota: as many bytes as the files
 * below it may take on disk. When they take nearly as much, the oldest are
 * evicted, by the order of the mark, until they take UCM_QUOTA_LOW percent of
 * it. A file with several names counts under each of them.
 *
 * A thread evicts. A caller that makes a file where a quota has been reached
 * waits for it, and gets EDQUOT if nothing may be evicted. A file that is open
 * stays, and so does one that was changed within the grace time: it may be a
 * temporary one that is about to be renamed. Folders and links stay.
 *
 * What a folder takes is added up by a walk, and kept as files come and go
 * (ucm_files_account); the walk is repeated from time to time, so that errors
 * do not add up. Files that grow are seen when they are closed, and before that
 * as often as ucm_files_quota_ops.settle says.
 *
 * A mark is the folder's own extended attributes user.ucmfs.quota, order and
 * grace, in the backing directory: it is renamed and removed with the folder.
 *
 * Calls may be made from any thread.
 */
#ifndef UCM_FILES_QUOTA_H
#define UCM_FILES_QUOTA_H

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ucm_files_node;
struct ucm_files_nodes;
struct ucm_files_tree;

#define UCM_QUOTA_MARKS 64u /* folders */
#define UCM_QUOTA_HIGH 98u  /* percent of a quota: eviction begins */
#define UCM_QUOTA_LOW 95u   /* and ends */
#define UCM_QUOTA_GRACE_S 10u
#define UCM_QUOTA_GRACE_MAX_S (7u * 24 * 3600)

enum ucm_files_order {
	UCM_FILES_LRU,	/* what has not been used for the longest time goes */
	UCM_FILES_FIFO, /* what was written first */
	UCM_FILES_ORDERS
};
extern const char *const ucm_files_orders[UCM_FILES_ORDERS];

/* What a mark says, and what has come of it. */
struct ucm_files_mark_info {
	char *path;	 /* "files/NAME"; the array's */
	uint64_t number; /* of the folder, for good */
	uint64_t quota, used;
	enum ucm_files_order order;
	uint32_t grace_s;
	bool counted; /* all that was there at the start */
	uint64_t files_evicted, bytes_evicted;
	uint64_t refused; /* files that were not made */
};

/* What only the mount knows; arg is its own. */
struct ucm_files_quota_ops {
	/* Is a node's file open? The lock of its name is held. */
	bool (*is_open)(void *arg, const struct ucm_files_node *node);
	/* Account for what open files have grown by. */
	void (*settle)(void *arg);
	void *arg;
};

/* Read the marks. Before anything is served. -ENOMEM. */
int ucm_files_quotas_open(struct ucm_files_tree *tree);
/* Start the thread. nodes and ops outlive it. */
int ucm_files_quotas_start(struct ucm_files_tree *tree,
			   struct ucm_files_nodes *nodes,
			   const struct ucm_files_quota_ops *ops);
/* End it. False: it is kept waiting by a directory for longer than that, and
 * goes on to use the tree and the nodes. */
bool ucm_files_quotas_stop(struct ucm_files_tree *tree, unsigned wait_ms);
void ucm_files_quotas_close(struct ucm_files_tree *tree);

/*
 * Set what a mark says: "quota", "order" or "grace", by its text of size bytes;
 * an empty one is the default. A folder is marked by its quota, and no longer
 * marked without one. -EOPNOTSUPP: it is no top folder, or its file system has
 * no extended attributes; -EINVAL: the text is wrong, or the folder not marked;
 * -ENOSPC: too many are; logged.
 */
int ucm_files_mark_set(struct ucm_files_tree *tree, const char *path,
		       const char *what, const char *text, size_t size);
/* Of the folder itself, or of the top folder that a path is in; false: it has
 * none. out has no path. */
bool ucm_files_mark_get(struct ucm_files_tree *tree, const char *path,
			struct ucm_files_mark_info *out);
bool ucm_files_quota_of(struct ucm_files_tree *tree, const char *path,
			struct ucm_files_mark_info *out);
/* All of them: how many; to free with the next. */
size_t ucm_files_marks(struct ucm_files_tree *tree,
		       struct ucm_files_mark_info **out);
void ucm_files_marks_free(struct ucm_files_mark_info *marks, size_t num);

/* Is the use of a file to be noted in its atime? */
bool ucm_files_quota_by_use(struct ucm_files_tree *tree, const char *path);

/* May a file be made? It may take a while. -EDQUOT; -EINPROGRESS in a thread
 * that must not wait (fs/tier/wait.h). No lock is held. */
int ucm_files_quota_room(struct ucm_files_tree *tree, const char *path);

/* ---- for files.c ---- */

/* Bytes more, or less, of a file. */
void ucm_files_charge(struct ucm_files_tree *tree, const char *path,
		      int64_t bytes);
/* The same bytes of a file that has been renamed. */
void ucm_files_charge_moved(struct ucm_files_tree *tree, const char *from,
			    const char *to, int64_t bytes);
/* Read what a top folder says; nothing, if it is not there. -ENOSPC: too many
 * are marked. */
int ucm_files_quota_load(struct ucm_files_tree *tree, const char *path);
/* A folder was renamed. */
void ucm_files_quota_renamed(struct ucm_files_tree *tree, const char *from,
			     const char *to);

/* ---- inside: quota.c, quota_evict.c, and tests ---- */

/* A file that may be evicted. */
struct ucm_quota_victim {
	char *path;
	uint64_t ino;
	int64_t key_ns; /* when it was last used, or written */
};

/* Files that may be evicted, the oldest first, from next on. */
struct ucm_quota_pool {
	struct ucm_quota_victim *list;
	size_t num, next;
	uint64_t of;		/* changes of its mark */
	bool evicting;		/* it was filled for eviction */
	uint64_t evicted, open; /* of those before next */
	uint64_t young, seen;	/* when it was filled */
};

/* Under quotas->lock, if it does not say otherwise. */
struct ucm_files_mark {
	char *path;
	uint64_t number;
	uint64_t quota;
	enum ucm_files_order order;
	uint32_t grace_s;
	int64_t used;
	uint64_t files_evicted, bytes_evicted, refused;
	bool counted;
	bool gone;     /* no longer in the table; the thread still has it */
	bool stale;    /* to be counted at once */
	bool evicting; /* from high until low */
	bool full;     /* that nothing may be evicted has been logged */
	int64_t counted_ms; /* when it was counted last */
	int64_t again_ms;   /* nothing may be evicted before that */
	uint64_t changes;   /* of what the mark says */

	/* the thread's own */
	bool held; /* in use by it; under quotas->lock */
	struct ucm_quota_pool pool;
	uint64_t told_files, told_bytes; /* of those evicted, in the log */
	int64_t told_ms;
};

/* What a file was charged that a walk has not come to yet. */
struct ucm_quota_ahead {
	uint64_t hash; /* of its path; 0: free */
	int64_t bytes;
};

/* A walk that counts a mark: what is before where it has come to is in sum. */
struct ucm_quota_walk {
	struct ucm_files_mark *mark; /* NULL: none */
	int64_t sum;
	char at[PATH_MAX];
	struct ucm_quota_ahead *ahead; /* a hash table, or NULL */
	size_t num_ahead;
};

struct ucm_files_quotas {
	struct ucm_files_tree *tree;
	pthread_mutex_t loading; /* one folder's mark is read, or written */

	pthread_mutex_t lock; /* all that follows; below every other lock */
	pthread_cond_t work;  /* for the thread */
	pthread_cond_t room;  /* for those who make files */
	struct ucm_files_mark *marks[UCM_QUOTA_MARKS];
	_Atomic unsigned num; /* without the lock: are there any? */
	struct ucm_quota_walk walk;

	pthread_t thread;
	bool running, ended;
	_Atomic bool stopping;

	/* set before the thread starts */
	struct ucm_files_nodes *nodes;
	const struct ucm_files_quota_ops *ops;
	int64_t (*now_ns)(void); /* as files are dated; tests have their own */
};

/* All under the lock: eviction should begin, may end, no file may be made. */
static inline bool ucm_quota_is_high(const struct ucm_files_mark *mark)
{
	return mark->used > 0 &&
	       (uint64_t)mark->used >=
		       mark->quota - mark->quota / 100 * (100 - UCM_QUOTA_HIGH);
}

static inline bool ucm_quota_is_low(const struct ucm_files_mark *mark)
{
	return mark->used <= 0 ||
	       (uint64_t)mark->used <=
		       mark->quota - mark->quota / 100 * (100 - UCM_QUOTA_LOW);
}

static inline bool ucm_quota_is_reached(const struct ucm_files_mark *mark)
{
	return mark->used > 0 && (uint64_t)mark->used >= mark->quota;
}

/* Of a mark that is not in the table. */
void ucm_quota_mark_free(struct ucm_files_mark *mark);
void ucm_quota_pool_clear(struct ucm_quota_pool *pool);

/* Both under the lock: a walk has come to a file that takes so much, and has
 * ended; then sum is what the mark takes. */
void ucm_quota_walk_pass(struct ucm_quota_walk *walk, const char *path,
			 uint64_t bytes);
void ucm_quota_walk_end(struct ucm_quota_walk *walk);

/* One step of the thread's work: false if there is nothing to do now. For the
 * thread, and tests without it. */
bool ucm_files_quotas_step(struct ucm_files_quotas *quotas);

#endif
