/* SPDX-License-Identifier: Apache-2.0 */
/*
 * node.h - the files and folders of files/ that the kernel knows.
 *
 * A node is there while the kernel has a lookup of it that it has not
 * forgotten, or of something below it; what nobody has looked at takes no
 * memory. It knows its name and its parent, from which its path is made: a
 * renamed folder takes along all that is in it. A node whose name is removed or
 * replaced is gone: it lives on for those who have it open, or are about to
 * open what they have looked up, and keeps a descriptor for them. One whose
 * directory does not answer is kept, though the kernel forgets it because of
 * the error: or the next one to ask would hear that it is not there.
 *
 * Locks. Whoever uses a name locks it (ucm_files_lock_name and its like) until
 * the directories and the nodes say the same again; removing and renaming
 * folders shuts out everything else, because it changes the paths of others.
 * Names share 1024 mutexes, which are held over system calls. Each lock is
 * taken once only, and none of the store's is held meanwhile.
 */
#ifndef UCM_FILES_NODE_H
#define UCM_FILES_NODE_H

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UCM_FILES_LOCKS 1024u

struct ucm_files_node {
	struct ucm_files_node *next;   /* in the table */
	struct ucm_files_node *parent; /* NULL: the root */
	char *name;
	uint64_t hash;    /* of parent and name */
	uint64_t lookups; /* to be forgotten */
	uint64_t refs;    /* for all lookups, for each child, if it is kept */
	uint64_t ino;     /* st_ino; a folder's as it was first seen */
	unsigned dir;     /* where a file lies */
	int fd;           /* of one that is gone (O_PATH), or -1 */
	bool is_dir, gone, kept;
};

struct ucm_files_nodes {
	pthread_rwlock_t tree; /* for writing: paths change */
	pthread_mutex_t names[UCM_FILES_LOCKS];
	pthread_mutex_t lock; /* for a few instructions: all below, all nodes */
	struct ucm_files_node root;
	struct ucm_files_node **table;
	size_t heads, num;
};

int ucm_files_nodes_init(struct ucm_files_nodes *nodes);
void ucm_files_nodes_fini(struct ucm_files_nodes *nodes);

/* ---- locks ---- */

struct ucm_files_lock {
	struct ucm_files_nodes *nodes;
	unsigned names[2];
	unsigned num; /* of names */
};

/* A name in a folder, and its path (PATH_MAX bytes). -ENOENT: the folder is
 * gone; -ENAMETOOLONG. Nothing is locked then. */
int ucm_files_lock_name(struct ucm_files_nodes *nodes,
			struct ucm_files_node *parent, const char *name,
			struct ucm_files_lock *out, char *path);

/* Two of them, for a rename. The first must be a name that leads to a file,
 * or all are shut out. */
struct ucm_files_pair {
	struct ucm_files_node *parent[2];
	const char *name[2];
	char path[2][PATH_MAX];
};
int ucm_files_lock_pair(struct ucm_files_nodes *nodes,
			struct ucm_files_pair *pair,
			struct ucm_files_lock *out);

/* The same as lock_name, and all others are shut out. */
int ucm_files_lock_tree(struct ucm_files_nodes *nodes,
			struct ucm_files_node *parent, const char *name,
			struct ucm_files_lock *out, char *path);

/* The name of a node, wherever it is. -ESTALE: it no longer has one. */
int ucm_files_lock_node(struct ucm_files_nodes *nodes,
			struct ucm_files_node *node, struct ucm_files_lock *out,
			char *path);

void ucm_files_unlock(struct ucm_files_lock *lock);

/* The path of a node, or of a name in it (NULL: itself), without a lock: it may
 * be another one at once. -ENOENT: it no longer has one. */
int ucm_files_path(struct ucm_files_nodes *nodes,
		   const struct ucm_files_node *node, const char *name,
		   char *path);

/* ---- nodes; names are locked by the caller ---- */

/* What is known under a name. The node may be forgotten at any time: it is a
 * number only. */
struct ucm_files_child {
	const struct ucm_files_node *node;
	unsigned dir;
	bool is_dir;
};
/* False: nothing. */
bool ucm_files_child(struct ucm_files_nodes *nodes,
		     const struct ucm_files_node *parent, const char *name,
		     struct ucm_files_child *out);

/* The node of what was found under a name, with one lookup more. If something
 * else was known there, that is gone. NULL: no memory. */
struct ucm_files_node *ucm_files_looked_up(struct ucm_files_nodes *nodes,
					   struct ucm_files_node *parent,
					   const char *name, bool is_dir,
					   uint64_t ino, unsigned dir);

/* Keep what is known under a name until it is looked up again, or gone. */
void ucm_files_keep(struct ucm_files_nodes *nodes,
		    const struct ucm_files_node *parent, const char *name);

/* One lookup more, of a node that somebody knows; no lock is needed. */
void ucm_files_hold(struct ucm_files_nodes *nodes, struct ucm_files_node *node);
/* The kernel drops lookups; no lock is needed. */
void ucm_files_forget(struct ucm_files_nodes *nodes,
		      struct ucm_files_node *node, uint64_t lookups);

/* A name is removed. fd: of the file, to be kept while it is known, or -1. */
void ucm_files_removed(struct ucm_files_nodes *nodes,
		       struct ucm_files_node *parent, const char *name, int fd);

/* A name has become another; what was there is gone, and fd is of that, as
 * above. copy: the new name, allocated, which is taken over. dir: where a file
 * lies. */
void ucm_files_renamed(struct ucm_files_nodes *nodes,
		       const struct ucm_files_pair *pair, char *copy,
		       unsigned dir, int fd);

bool ucm_files_is_gone(struct ucm_files_nodes *nodes,
		       const struct ucm_files_node *node);

#endif
