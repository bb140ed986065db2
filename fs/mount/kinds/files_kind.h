/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files_kind.h - what the sources of files/ share: its nodes, their files, and the
 * operations that stand in other sources than the table (files.c).
 */
#ifndef UCM_FILES_KIND_H
#define UCM_FILES_KIND_H

#include "fs/files/files.h"
#include "fs/mount/node/kinds.h"

#define UCM_FILES_NODE_ROOT ucm_node_make(UCM_NODE_TREE, 0)

/* A node of files/ (fs/files/node.h) and its number. */
static inline struct ucm_files_node *
ucm_files_node_of(struct ucm_daemon *daemon, fuse_ino_t ino)
{
	uint64_t value = ucm_node_value(ino);

	return value ? (struct ucm_files_node *)(uintptr_t)value
		     : &daemon->nodes.root;
}

static inline fuse_ino_t ucm_files_ino_of(struct ucm_daemon *daemon,
					  const struct ucm_files_node *node)
{
	return node == &daemon->nodes.root
		       ? UCM_FILES_NODE_ROOT
		       : ucm_node_make(UCM_NODE_TREE, (uintptr_t)node);
}

/* ---- a node's file and its attributes (files_attr.c) ---- */

/* While its name is locked. */
struct ucm_files_held {
	struct ucm_files_lock lock; /* no nodes: nothing is locked */
	char path[PATH_MAX];	    /* "": it has no name */
	struct stat st;
	int fd;	    /* O_PATH */
	bool owned; /* it is closed at the end */
};
/* -ESTALE: it is not there any more. */
int ucm_files_hold_file(struct ucm_daemon *daemon, struct ucm_files_node *node,
			struct ucm_files_held *out);
void ucm_files_let_go(struct ucm_files_held *held);

/* For names that are not there, and where other machines may change it. */
#define UCM_FILES_SHORT_TIMEOUT_S 1.0
double ucm_files_timeout(const struct ucm_daemon *daemon);

/* What the mount shows of what is on disk. */
void ucm_files_fill_attr(struct ucm_daemon *daemon,
			 const struct ucm_files_node *node,
			 const struct stat *st, struct stat *out);
int ucm_files_op_getattr(struct ucm_daemon *daemon, fuse_ino_t ino,
			 struct stat *out);
int ucm_files_op_setattr(struct ucm_account *account, fuse_ino_t ino,
			 const struct stat *attr, int to_set);
void ucm_files_op_narrow(struct ucm_daemon *daemon, fuse_ino_t ino,
			 struct statvfs *st);

/* ---- users' attributes (files_xattr.c) ---- */

extern const struct ucm_xattr ucm_files_xattrs[];
int ucm_files_get_xattr(struct ucm_daemon *daemon, fuse_ino_t ino,
			const char *name, char *value, size_t size);
int ucm_files_list_xattrs(struct ucm_daemon *daemon, fuse_ino_t ino,
			  char *names, size_t size);
int ucm_files_set_xattr(struct ucm_daemon *daemon, fuse_ino_t ino,
			const char *name, const char *value, size_t size,
			int flags);

/* ---- names (files.c) ---- */

/* An entry for what was found or made under a name, which is locked. */
int ucm_files_enter(struct ucm_daemon *daemon, struct ucm_files_node *parent,
		    const char *name, const struct stat *st,
		    struct fuse_entry_param *out);
/* Before a file is made, and before its name is locked: making room locks names. */
int ucm_files_wait_for_room(struct ucm_daemon *daemon,
			    struct ucm_files_node *folder, const char *name);
struct ucm_files_owner ucm_files_owner_of(fuse_req_t req, mode_t mode);

/* ---- open files (files_open.c) ---- */

int ucm_files_op_create(struct ucm_account *account, fuse_ino_t parent,
			const char *name, mode_t mode,
			struct fuse_file_info *fi,
			struct fuse_entry_param *out);
int ucm_files_op_open(struct ucm_account *account, fuse_ino_t ino,
		      struct fuse_file_info *fi);
/* What an open file has grown by is counted; nothing if it is not open. */
void ucm_files_settle(struct ucm_daemon *daemon,
		      const struct ucm_files_node *node);

#endif
