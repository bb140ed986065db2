/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quota.h - quotas of folders of files/.
 *
 * A folder is marked with a quota: as many bytes as the files in its whole
 * subtree may take on disk, in the directories of all tiers. When they take
 * nearly as much, the oldest go, by the order of the mark, until they take
 * UCM_QUOTA_LOW percent of it. Marks may be nested; a file counts in each
 * marked folder that it is in, and each mark removes on its own.
 *
 * A thread removes (quota_evict.c). Whoever makes a file where a quota has been
 * reached waits for it, and hears EDQUOT if nothing may go. A file that is open
 * stays, and so does one that was changed within the grace time: it may be a
 * temporary one that is about to be renamed. Folders and links stay.
 *
 * What a folder takes is added up by a walk, and kept as files come and go
 * (ucm_files_account); the walk is repeated from time to time, so that errors
 * do not add up. Files that grow are seen when they are closed, and meanwhile
 * as often as ucm_files_quota_ops.settle says.
 *
 * Marks are kept in .ucmfs/quotas of each directory, all of them in each, with
 * a number that grows: the highest holds. So they survive when a directory is
 * away, and do not need extended attributes below. A mark of a folder that is
 * not there stays, as its directory may be away, until a folder of that name is
 * made.
 *
 * Calls may be made from any thread; those that write .ucmfs/quotas say so.
 */
#ifndef UCM_FILES_QUOTA_H
#define UCM_FILES_QUOTA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ucm_files_node;
struct ucm_files_nodes;
struct ucm_files_tree;

#define UCM_QUOTA_MARKS 64u /* folders */
#define UCM_QUOTA_HIGH 98u  /* percent of a quota: files begin to go */
#define UCM_QUOTA_LOW 95u   /* and cease to */
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
	char *path;	 /* "files/..."; the array's */
	uint32_t number; /* of the mark, for good */
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
	/* The file of a node has been removed. */
	void (*removed)(void *arg, const struct ucm_files_node *node);
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
 * marked without one. Writes. -EINVAL: the text is wrong, or the folder not
 * marked; -ENOSPC: too many are; logged.
 */
int ucm_files_mark_set(struct ucm_files_tree *tree, const char *path,
		       const char *what, const char *text, size_t size);
/* Of the folder itself; false: it is not marked. info has no path. */
bool ucm_files_mark_get(struct ucm_files_tree *tree, const char *path,
			struct ucm_files_mark_info *out);
/* All of them: how many; to free with the next. */
size_t ucm_files_marks(struct ucm_files_tree *tree,
		       struct ucm_files_mark_info **out);
void ucm_files_marks_free(struct ucm_files_mark_info *marks, size_t num);

/* Is a path in a marked folder, or one? The one with the least room left. */
bool ucm_files_quota_of(struct ucm_files_tree *tree, const char *path,
			struct ucm_files_mark_info *out);
/* Is the use of a file to be noted in its atime? */
bool ucm_files_quota_by_use(struct ucm_files_tree *tree, const char *path);

/*
 * May a file be made? It may take a while. -EDQUOT; -EINPROGRESS in a thread
 * that must not wait (fs/tier/wait.h). No lock is held.
 */
int ucm_files_quota_room(struct ucm_files_tree *tree, const char *path);

/* Is a folder marked, or one below it? Then removing and renaming it write, and
 * wait. */
bool ucm_files_quota_is_in(struct ucm_files_tree *tree, const char *path);

/* ---- for files.c, rename.c ---- */

/* Bytes more, or less, of a file in a directory. */
void ucm_files_charge(struct ucm_files_tree *tree, unsigned dir,
		      const char *path, int64_t bytes);
/* The same bytes of a file that has been renamed. */
void ucm_files_charge_moved(struct ucm_files_tree *tree, unsigned dir,
			    const char *from, const char *to, int64_t bytes);
/* A folder was removed, or is made: what is known of that name, and below it,
 * is of another one. Writes, if something is. */
void ucm_files_quota_forget(struct ucm_files_tree *tree, const char *path);
/* A folder is about to be renamed: the marks have both names on disk, so that
 * a crash loses none. Writes. */
int ucm_files_quota_moving(struct ucm_files_tree *tree, const char *from,
			   const char *to);
/* It was, or not. Writes. */
void ucm_files_quota_moved(struct ucm_files_tree *tree, const char *from,
			   const char *to, bool done);

#endif
