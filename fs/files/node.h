/* SPDX-License-Identifier: Apache-2.0 */
/*
 * node.h - the files and folders of files/ that the kernel knows.
 *
 * A node is there while the kernel has a lookup of it that it has not
 * forgotten, or of something below it; what has not been looked at takes no
 * memory. It is known by the inode number of the backing file, so all names of
 * a file (hard links) lead to one node. It has one of these names, the one that
 * was looked up last, and its parent, from which its path is made: a renamed
 * folder takes along all that is in it. A node whose name is removed or
 * replaced is nameless: it keeps a descriptor, for those who have it open or
 * are about to open what they have looked up, until another name of the file is
 * looked up.
 *
 * Locks. A caller that uses a name locks it (ucm_files_lock_name and its like)
 * until the directory and the nodes say the same again; renaming folders shuts
 * out everything else, because it changes the paths of others. Names share 1024
 * mutexes, which are held over system calls. Each lock is taken once only, and
 * none of the store's is held with it.
 */
#ifndef UCM_FILES_NODE_H
#define UCM_FILES_NODE_H

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/stat.h>

#include "common/table.h"

#define UCM_FILES_LOCKS 1024u

struct ucm_files_node {
	UT_hash_handle hh;
	LIST_ENTRY(ucm_files_node) in_list; /* if it is lost */
	struct ucm_files_node *parent; /* NULL: the root */
	char *name;
	uint64_t ino;     /* of the backing file */
	uint64_t lookups; /* to be forgotten */
	uint64_t refs;    /* for all lookups, and for each child */
	int fd;           /* O_PATH, once it was nameless; or -1 */
	bool is_dir, nameless;
	bool lost; /* not in the table any more */
};

LIST_HEAD(ucm_files_list, ucm_files_node);

struct ucm_files_nodes {
	pthread_rwlock_t tree; /* for writing: paths change */
	pthread_mutex_t names[UCM_FILES_LOCKS];
	pthread_mutex_t lock; /* for a few instructions: all below, all nodes */
	struct ucm_files_node root;
	struct ucm_files_node *table; /* by ino */
	struct ucm_files_list lost;   /* which the kernel still knows */
};

/* ino: of the root. */
void ucm_files_nodes_init(struct ucm_files_nodes *nodes, uint64_t ino);
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

/* Two of them, for a rename. tree: all others are shut out, as they must be
 * where the first is a folder. */
struct ucm_files_pair {
	struct ucm_files_node *parent[2];
	const char *name[2];
	char path[2][PATH_MAX];
};
int ucm_files_lock_pair(struct ucm_files_nodes *nodes,
			struct ucm_files_pair *pair, bool tree,
			struct ucm_files_lock *out);

/* The name of a node. -ESTALE: it has none. */
int ucm_files_lock_node(struct ucm_files_nodes *nodes,
			struct ucm_files_node *node, struct ucm_files_lock *out,
			char *path);

/* A name by its path below dirfd, also if it is not known. parent_out: the
 * number of the folder that it is in. */
int ucm_files_lock_path(struct ucm_files_nodes *nodes, int dirfd,
			const char *path, struct ucm_files_lock *out,
			uint64_t *parent_out);

void ucm_files_unlock(struct ucm_files_lock *lock);

/* The path of a node, or of a name in it (NULL: itself), without a lock: it may
 * be another one at once. -ENOENT: it has none. */
int ucm_files_path(struct ucm_files_nodes *nodes,
		   const struct ucm_files_node *node, const char *name,
		   char *path);

/* ---- nodes; names are locked by the caller ---- */

/* The node of a file that is known, or NULL. It may be forgotten at any time:
 * it is a number only. */
const struct ucm_files_node *ucm_files_known(struct ucm_files_nodes *nodes,
					     uint64_t ino);

/* The node of what was found under a name, with one lookup more. NULL: no
 * memory. */
struct ucm_files_node *ucm_files_looked_up(struct ucm_files_nodes *nodes,
					   struct ucm_files_node *parent,
					   const char *name,
					   const struct stat *st);

/* One lookup more, of a node that somebody knows; no lock is needed. */
void ucm_files_hold(struct ucm_files_nodes *nodes, struct ucm_files_node *node);
/* The kernel drops lookups; no lock is needed. */
void ucm_files_forget(struct ucm_files_nodes *nodes,
		      struct ucm_files_node *node, uint64_t lookups);

/* A name of the file of that number, in the folder of that number, is removed.
 * fd: of the file, to be kept while it is known, or -1. */
void ucm_files_removed(struct ucm_files_nodes *nodes, uint64_t parent,
		       const char *name, uint64_t ino, int fd);

/* A name of file ino has become another; it replaced one of file over, of which
 * fd is, as above (0, -1: nothing). copy: the new name, allocated, which is
 * taken over. */
void ucm_files_renamed(struct ucm_files_nodes *nodes,
		       const struct ucm_files_pair *pair, char *copy,
		       uint64_t ino, uint64_t over, int fd);

#endif
