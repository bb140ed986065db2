/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops_files.h - what the FUSE operations do in files/.
 *
 * ops_name.c, ops_file.c and ops_attr.c come here for nodes of the type TREE
 * and give the reply. Calls return 0 or -errno; an entry that is given has been
 * counted as looked up.
 */
#ifndef UCM_OPS_FILES_H
#define UCM_OPS_FILES_H

#include "fs/files/files.h"
#include "fs/mount/daemon.h"

#define UCM_FILES_ROOT_NODE ucm_node_make(UCM_NODE_TREE, 0)

/* After the store is open, before anything is served. */
int ucm_files_ops_init(struct ucm_daemon *daemon);

/* How long the kernel may remember names and attributes. */
double ucm_files_timeout(const struct ucm_daemon *daemon);

/* -ENOENT comes with an entry as well, to be remembered. */
int ucm_files_op_lookup(struct ucm_daemon *daemon, fuse_ino_t parent,
			const char *name, struct fuse_entry_param *out);
/* Also files/ itself, as it stands in the root. */
int ucm_files_op_root(struct ucm_daemon *daemon, struct fuse_entry_param *out);
void ucm_files_op_forget(struct ucm_daemon *daemon, fuse_ino_t ino,
			 uint64_t lookups);

int ucm_files_op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name,
		       mode_t mode, struct fuse_entry_param *out);
/* A regular file. */
int ucm_files_op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name,
		       mode_t mode, struct fuse_entry_param *out);
int ucm_files_op_symlink(fuse_req_t req, fuse_ino_t parent, const char *name,
			 const char *target, struct fuse_entry_param *out);
/* target: PATH_MAX bytes */
int ucm_files_op_readlink(struct ucm_daemon *daemon, fuse_ino_t ino,
			  char *target);
int ucm_files_op_rmdir(struct ucm_daemon *daemon, fuse_ino_t parent,
		       const char *name);
int ucm_files_op_unlink(struct ucm_daemon *daemon, fuse_ino_t parent,
			const char *name);
int ucm_files_op_rename(struct ucm_daemon *daemon, fuse_ino_t parent,
			const char *name, fuse_ino_t newparent,
			const char *newname, unsigned flags);

/* The open is counted in fi. */
int ucm_files_op_create(fuse_req_t req, fuse_ino_t parent, const char *name,
			mode_t mode, struct fuse_file_info *fi,
			struct fuse_entry_param *out);
int ucm_files_op_open(fuse_req_t req, fuse_ino_t ino,
		      struct fuse_file_info *fi);
int ucm_files_op_opendir(struct ucm_daemon *daemon, fuse_ino_t ino,
			 struct fuse_file_info *fi);
/* Gives the reply, and ends the account. */
void ucm_files_op_readdir(fuse_req_t req, const struct ucm_account *account,
			  fuse_ino_t ino, size_t size, off_t off, bool plus,
			  struct fuse_file_info *fi);
void ucm_files_op_releasedir(struct fuse_file_info *fi);
int ucm_files_op_fsyncdir(struct ucm_daemon *daemon, fuse_ino_t ino);

int ucm_files_op_attr(struct ucm_daemon *daemon, fuse_ino_t ino,
		      struct stat *out);
int ucm_files_op_change(struct ucm_daemon *daemon, fuse_ino_t ino,
			const struct ucm_files_change *change);
/* Where a file is now: its directory, and its path below that (PATH_MAX). */
int ucm_files_op_where(struct ucm_daemon *daemon, fuse_ino_t ino,
		       unsigned *dir_out, char *path_out);

#endif
