/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kinds.h - the kinds of nodes, and a table of operations for each.
 *
 * The FUSE operations (ops.c, ops_file.c, ops_xattr.c) account for a request,
 * find the table of the node (kinds.c) and call through it. A kind has its
 * table at the bottom of its file; it knows the kinds below it in the tree of
 * names, and none that is above. A new kind is a file, a line here and a line
 * in kinds.c.
 */
#ifndef UCM_KINDS_H
#define UCM_KINDS_H

#include "fs/mount/node/daemon.h"

/* A listing in the making (listing.c). An entry's offset (next) is where to go
 * on after it; the first two are "." and "..". */
struct ucm_listing {
	fuse_req_t req;
	struct ucm_daemon *daemon;
	char *buffer;
	size_t size, used;
	bool plus;
};

/* All return false when there is no room left. A name with what a readdir(3)
 * tells of it: the kernel looks it up later, if it needs it; or with all that a
 * lookup gives, which counts as one where the listing is for readdirplus. */
bool ucm_list_name(struct ucm_listing *list, const char *name,
		   const struct stat *attr, off_t next);
bool ucm_list_entry(struct ucm_listing *list, const char *name,
		    const struct fuse_entry_param *entry, off_t next);
/* "." and "..", those that off has not passed; off is moved on. */
bool ucm_list_dots(struct ucm_listing *list, const struct stat *self,
		   off_t *off);

#define UCM_XATTR_PREFIX "user.ucmfs."
#define UCM_XATTR_MAX 4400 /* a path, and more than any other value */

/* An extended attribute, in an array that ends with a row without a name. */
struct ucm_xattr {
	const char *name;
	/* Length of the value (UCM_XATTR_MAX bytes), or -errno. */
	int (*get)(const struct ucm_xattr *attr, struct ucm_daemon *daemon,
		   fuse_ino_t ino, char *value);
	/* NULL: -EPERM. */
	int (*set)(const struct ucm_xattr *attr, struct ucm_daemon *daemon,
		   fuse_ino_t ino, const char *value, size_t size);
	unsigned what; /* for a function of several */
	bool root_only;
	bool removed_as_empty; /* it is set to "" when removed, not to "0" */
};

/* Calls return 0 or -errno. Node ids are of the kind. Where they would keep a
 * thread waiting that must not wait (fs/tier/wait.h) they return -EINPROGRESS
 * before they have changed anything, and are called again by another thread. */
struct ucm_node_ops {
	/* How long the kernel may remember its name and attributes. NULL: both
	 * are asked for each time. */
	double (*timeout)(const struct ucm_daemon *daemon);
	/* In it the kernel may remember what is absent: with -ENOENT lookup
	 * fills an entry all the same. */
	bool remembers_absence;
	/* A rename to or from another kind is -EXDEV, so that mv(1) copies;
	 * else it is -EPERM. */
	bool moved_by_copy;
	const struct ucm_xattr *xattrs; /* NULL: none */
	/* Attributes of users, whose names begin with "user." and not with
	 * UCM_XATTR_PREFIX. NULL: it keeps none. Lengths, or -errno; size 0 asks
	 * for the length. set: value NULL removes it. */
	int (*get_xattr)(struct ucm_daemon *daemon, fuse_ino_t ino,
			 const char *name, char *value, size_t size);
	int (*list_xattrs)(struct ucm_daemon *daemon, fuse_ino_t ino,
			   char *names, size_t size);
	int (*set_xattr)(struct ucm_daemon *daemon, fuse_ino_t ino,
			 const char *name, const char *value, size_t size,
			 int flags);

	int (*getattr)(struct ucm_daemon *daemon, fuse_ino_t ino,
		       struct stat *out);
	/* NULL: what changes nothing succeeds, all else is -EPERM. */
	int (*setattr)(struct ucm_account *account, fuse_ino_t ino,
		       const struct stat *attr, int to_set);
	/* What df is to say of it, which was that of the whole mount. NULL:
	 * that is right. */
	void (*narrow)(struct ucm_daemon *daemon, fuse_ino_t ino,
		       struct statvfs *st);
	/* What setattr and setxattr are accounted to. NULL: no block. */
	void (*note)(struct ucm_account *account, fuse_ino_t ino);
	/* NULL: nothing need be forgotten. */
	void (*forget)(struct ucm_daemon *daemon, fuse_ino_t ino,
		       uint64_t lookups);

	/* In a folder. NULL: -ENOTDIR. */
	int (*lookup)(struct ucm_account *account, fuse_ino_t parent,
		      const char *name, struct fuse_entry_param *out);
	/* NULL: -ENOTDIR. */
	int (*readdir)(struct ucm_listing *list, fuse_ino_t ino, off_t off,
		       const struct fuse_file_info *fi);
	/* Before and after. NULL: 0, there is nothing to prepare. */
	int (*opendir)(struct ucm_account *account, fuse_ino_t ino,
		       struct fuse_file_info *fi);
	void (*releasedir)(const struct fuse_file_info *fi);
	/* NULL: 0, it has nothing of its own on disk. */
	int (*fsyncdir)(struct ucm_account *account, fuse_ino_t ino);

	/* Names in it; what is made is counted as looked up. NULL: -EPERM. */
	int (*create)(struct ucm_account *account, fuse_ino_t parent,
		      const char *name, mode_t mode, struct fuse_file_info *fi,
		      struct fuse_entry_param *out);
	int (*mkdir)(struct ucm_account *account, fuse_ino_t parent,
		     const char *name, mode_t mode,
		     struct fuse_entry_param *out);
	int (*mknod)(struct ucm_account *account, fuse_ino_t parent,
		     const char *name, mode_t mode,
		     struct fuse_entry_param *out);
	int (*symlink)(struct ucm_account *account, fuse_ino_t parent,
		       const char *name, const char *target,
		       struct fuse_entry_param *out);
	/* Both nodes are of this kind. */
	int (*link)(struct ucm_account *account, fuse_ino_t ino,
		    fuse_ino_t newparent, const char *newname,
		    struct fuse_entry_param *out);
	int (*unlink)(struct ucm_account *account, fuse_ino_t parent,
		      const char *name);
	int (*rmdir)(struct ucm_account *account, fuse_ino_t parent,
		     const char *name);
	/* Both parents are of this kind. */
	int (*rename)(struct ucm_account *account, fuse_ino_t parent,
		      const char *name, fuse_ino_t newparent,
		      const char *newname, unsigned flags);

	/* The open is counted, in fi too. NULL: -EISDIR. */
	int (*open)(struct ucm_account *account, fuse_ino_t ino,
		    struct fuse_file_info *fi);
	/* target: PATH_MAX bytes. NULL: -EINVAL. */
	int (*readlink)(struct ucm_account *account, fuse_ino_t ino,
			char *target);
};

extern const struct ucm_node_ops ucm_root_ops;
extern const struct ucm_node_ops ucm_spaces_ops; /* spaces/ */
extern const struct ucm_node_ops ucm_space_ops;	 /* blocks/, spaces/NAME */
extern const struct ucm_node_ops ucm_bucket_ops;
extern const struct ucm_node_ops ucm_block_ops;
extern const struct ucm_node_ops ucm_staging_ops;  /* being written */
extern const struct ucm_node_ops ucm_manifest_ops; /* space.json */
extern const struct ucm_node_ops ucm_control_dir_ops; /* .ucmfs */
extern const struct ucm_node_ops ucm_control_ops;     /* a file of it */
extern const struct ucm_node_ops ucm_files_ops;	      /* files/ */

/* The table of a node, never NULL (kinds.c). */
const struct ucm_node_ops *ucm_node_ops_of(fuse_ino_t ino);

/* ---- what kinds have in common (node.c) ---- */

/* For timeout: as the mount's option says. */
double ucm_entry_timeout(const struct ucm_daemon *daemon);
/* The entry of a node, with the timeout and the attributes of its kind. */
int ucm_entry_fill(const struct ucm_node_ops *ops, struct ucm_daemon *daemon,
		   fuse_ino_t ino, struct fuse_entry_param *out);

#define UCM_SET_TIMES                                                          \
	(FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_ATIME_NOW | \
	 FUSE_SET_ATTR_MTIME_NOW)

/* What utimensat(2) takes, from what FUSE says. */
void ucm_attr_times(const struct stat *attr, int to_set,
		    struct timespec times[2]);
/* Would mode and owner stay what they are now? */
bool ucm_attr_changes_nothing(const struct stat *now, const struct stat *attr,
			      int to_set);

/* ---- what kinds know of those below them ---- */

void ucm_spaces_attr(struct ucm_daemon *daemon, struct stat *out);
/* space: NULL if it is gone. */
void ucm_space_attr(struct ucm_daemon *daemon, struct ucm_space *space,
		    struct stat *out);
/* Are there staging files in it? */
bool ucm_daemon_writes_to(struct ucm_daemon *daemon,
			  const struct ucm_space *space);
/* What df says of something that has a quota. */
void ucm_narrow_to_quota(struct statvfs *st, uint64_t quota, uint64_t used);
void ucm_bucket_attr(struct ucm_daemon *daemon, struct ucm_space *space,
		     unsigned bucket, struct stat *out);
void ucm_block_entry(struct ucm_daemon *daemon, const struct ucm_entry *entry,
		     ucm_ref ref, struct fuse_entry_param *out);

/* Sync a block, or one in the making; a failure is logged and counted. */
int ucm_block_sync(struct ucm_daemon *daemon, const struct ucm_handle *file,
		   bool datasync);

/* Create space.json in a space. */
int ucm_manifest_create(struct ucm_account *account, fuse_ino_t space,
			struct fuse_file_info *fi,
			struct fuse_entry_param *out);

/* A new name in a bucket: a block's, or private staging. */
int ucm_staging_create(struct ucm_account *account, fuse_ino_t bucket,
		       const char *name, struct fuse_file_info *fi,
		       struct fuse_entry_param *out);
/* The file of a name that a staging file has, with a reference, or NULL. */
struct ucm_handle *ucm_staging_find(struct ucm_daemon *daemon,
				    fuse_ino_t bucket, const char *name);
/* Make a block of it, as a rename to the block's name does. */
int ucm_staging_commit(const struct ucm_account *within,
		       struct ucm_handle *file, const struct ucm_key *key);
/* Those of a bucket; offsets are UCM_LIST_STAGING and more. Blocks come first. */
#define UCM_LIST_STAGING ((off_t)1 << 40)
void ucm_staging_list(struct ucm_listing *list, fuse_ino_t bucket, off_t off);

/* After the store is open, before anything is served. */
void ucm_files_ops_init(struct ucm_daemon *daemon);
/* What the quotas of its folders have to know of the mount. */
extern const struct ucm_files_quota_ops ucm_files_quota_hooks;
/* files/ itself, as it stands in the root. */
int ucm_files_ops_root(struct ucm_daemon *daemon, struct fuse_entry_param *out);

/* The memory of the node's budget (budget.c), the bytes that loaders say they have
 * begun, and the look-ups in the index, which are added to the store's statistics. */
void ucm_iobudget_memory_open(struct ucm_daemon *daemon);
void ucm_iobudget_memory_close(struct ucm_daemon *daemon);
uint64_t ucm_iobudget_bytes(const struct ucm_daemon *daemon);
void ucm_iobudget_count_lookups(struct ucm_daemon *daemon);

/* A text of .ucmfs: "stats.json", "config.yaml", "metrics"; to free. */
char *ucm_control_text(struct ucm_daemon *daemon, const char *name, size_t *len_out);

/* The daemon's socket (socket.c). 0, or -errno (logged); without one a mount
 * is served all the same. */
int ucm_socket_start(struct ucm_daemon *daemon);
/* False: a request hangs all the same. */
bool ucm_socket_stop(struct ucm_daemon *daemon, unsigned wait_ms);

#endif
