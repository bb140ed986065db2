/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon.h - one mount: what the FUSE operations share.
 *
 * The daemon translates between FUSE's node ids and handles and the store's
 * keys and references. What it wants to know of files on disk it asks
 * store.h, and for files/ files.h.
 *
 * Split by task: ops.c, ops_file.c, ops_xattr.c (the FUSE operations), request.h
 * (who serves them), kinds.h (what a kind of node is asked; root.c, spaces.c,
 * buckets.c, blocks.c, staging.c, manifest.c, control.c, files.c,
 * files_xattr.c), node.c (inode numbers, attributes), listing.c, handles.c,
 * opens.c (open inodes and files being written), account.c (what is counted and
 * traced of a request), metrics.c, stats_json.c (what files of .ucmfs/ say),
 * socket.c (where the socket is, and what it serves), expire.c (staging that is
 * old), options.c, session.c (mounting and
 * the loop), main.c.
 */
#ifndef UCM_DAEMON_H
#define UCM_DAEMON_H

#define FUSE_USE_VERSION FUSE_MAKE_VERSION(3, 17)
#include <fuse_lowlevel.h>

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/clock.h"
#include "common/handover.h"
#include "common/table.h"
#include "fs/files/files.h"
#include "fs/files/node.h"
#include "fs/mount/setup/options.h"
#include "fs/store/store.h"
#include "fs/watch/opstats.h"
#include "fs/watch/trace.h"

struct ucm_account;
struct ucm_crews;
struct ucm_handle;

struct ucm_handles {
	pthread_mutex_t lock;
	struct ucm_handle *by_node;
	struct ucm_handle *by_name; /* staging */
	uint64_t serial;
};

struct ucm_expiry {
	pthread_mutex_t lock;
	pthread_cond_t wake;
	pthread_t thread;
	bool running, stopping;
};

struct ucm_daemon {
	struct ucm_options *options;
	struct ucm_store *store;
	struct ucm_files_tree file_tree;
	const char *mountpoint; /* absolute, while it is mounted */
	struct fuse_session *session;
	struct ucm_handles files;
	struct ucm_crews *crews; /* request.h */
	struct ucm_files_nodes nodes;
	struct ucm_files_quota_ops quota_ops; /* of file_tree */
	struct ucm_expiry expiry;
	struct ucm_opstats *ops;
	struct ucm_trace *trace; /* NULL: none */
	struct timespec started;
	_Atomic bool passthrough;	    /* in use */
	_Atomic bool refused[UCM_MAX_DIRS]; /* not for files in there */
	_Atomic unsigned num_refused;
	dev_t device;		   /* of the mount */
	struct ucm_server *server; /* NULL: none (socket.c) */
	char *socket;		   /* its path; NULL: none */
	int index_fd;		   /* what it gives to map; < 0: nothing */
	int budget_fd;		   /* likewise */
	struct ucm_budget_memory *shared; /* it, mapped; or NULL */
	bool uring;		     /* in use */
	const char *passthrough_why; /* why not, else NULL */
	const char *uring_why;
};

/* The daemon that a request belongs to. */
static inline struct ucm_daemon *ucm_daemon_of(fuse_req_t req)
{
	return fuse_req_userdata(req);
}

/* ---- node ids (node.c) ---- */

/*
 * A node id says what it stands for; nothing is allocated for a name that the
 * kernel looks up, and nothing need be forgotten, except in files/. Bits 60-62
 * are the type:
 */
enum ucm_node {
	UCM_NODE_FIXED, /* number below: root, spaces/, .ucmfs/ and its files */
	UCM_NODE_SPACE, /* space number: blocks/ (0), spaces/NAME */
	UCM_NODE_BUCKET,   /* space number << 8 | bucket */
	UCM_NODE_BLOCK,	   /* ucm_ref, stale when the block is gone */
	UCM_NODE_FILE,	   /* serial number of a file being written */
	UCM_NODE_MANIFEST, /* space number: its space.json */
	UCM_NODE_TREE,	   /* address of a node of node.h; 0: files/ */
};

enum ucm_fixed {
	UCM_FIXED_ROOT = FUSE_ROOT_ID,
	UCM_FIXED_SPACES = 2,
	UCM_FIXED_CONTROL = 3, /* .ucmfs */
	UCM_FIXED_CONTROLS = 16,  /* first of the control files */
};

static inline fuse_ino_t ucm_node_make(enum ucm_node type, uint64_t value)
{
	return (uint64_t)type << 60 | value;
}

static inline enum ucm_node ucm_node_type(fuse_ino_t ino)
{
	return (enum ucm_node)(ino >> 60 & 7);
}

static inline uint64_t ucm_node_value(fuse_ino_t ino)
{
	return ino & ((UINT64_C(1) << 60) - 1);
}

static inline fuse_ino_t ucm_node_bucket(uint16_t space, unsigned bucket)
{
	return ucm_node_make(UCM_NODE_BUCKET, (uint64_t)space << 8 | bucket);
}

/* Of a BUCKET node: the numbers of its space and of itself. */
static inline uint16_t ucm_bucket_space(fuse_ino_t ino)
{
	return (uint16_t)(ucm_node_value(ino) >> 8);
}

static inline unsigned ucm_bucket_number(fuse_ino_t ino)
{
	return ino & 0xff;
}

/* The space of a SPACE, BUCKET or MANIFEST node, NULL if it is gone. */
struct ucm_space *ucm_node_space(struct ucm_daemon *daemon, fuse_ino_t ino);

/* Inode numbers, the same at each mount. NULL: of a space that is gone. */
ino_t ucm_ino_of_space(const struct ucm_space *space);
ino_t ucm_ino_in_space(const struct ucm_space *space, uint64_t number);
ino_t ucm_ino_of_block(const struct ucm_space *space, const struct ucm_id *id);

/* Of a folder of ours; its owner is that of blocks/. */
void ucm_attr_folder(struct ucm_daemon *daemon, ino_t ino, struct stat *out);
/* What is in a space belongs to the space's owner, and may be private. */
void ucm_attr_set_owner(struct stat *st, struct ucm_space *space);
/* Of an open file in the space of that number: size and times from st, the rest
 * its space's. */
void ucm_attr_file(struct ucm_daemon *daemon, uint16_t number, ino_t ino,
		   const struct stat *st, struct stat *out);

#define UCM_NAME_MAX 255 /* bytes of a name */

/* A name that may be private staging: starts with '.' or ends in ".tmp". */
bool ucm_name_is_staging(const char *name);

/* ---- open inodes and files being written (handles.c) ---- */

/*
 * What a kind of open file does; what all do alike is in ops_file.c. Calls
 * return 0 or -errno, and are made under file->lock, except write.
 */
struct ucm_handle_ops {
	bool is_block;	/* or one in the making: accounts name it */
	bool is_final;	/* its bytes never change */
	bool has_temp;	/* it lies in .ucmfs/tmp, and can be opened once more */
	bool in_memory; /* its bytes are on none of the tiers */

	/* Bytes written. NULL: -EBADF, it cannot be opened for writing. */
	ssize_t (*write)(struct ucm_daemon *daemon, struct ucm_handle *file,
			 struct fuse_bufvec *in, off_t off);
	/* NULL: -EOPNOTSUPP. */
	int (*fallocate)(struct ucm_daemon *daemon, struct ucm_handle *file,
			 int mode, off_t off, off_t len);
	/* May it be made as large as this? NULL: yes. */
	int (*check_size)(const struct ucm_daemon *daemon,
			  const struct ucm_handle *file, uint64_t size);
	/* A process that had it open for writing closes it. NULL: 0. */
	int (*flush)(struct ucm_account *account, struct ucm_handle *file);
	/* NULL: 0, there is no disk. */
	int (*fsync)(struct ucm_account *account, struct ucm_handle *file,
		     bool datasync);
	/* The last close; it still has its descriptor. -EINPROGRESS (see
	 * fs/tier/wait.h): nothing is done yet; else 0. NULL: nothing is to be
	 * done. */
	int (*last_close)(struct ucm_account *account, struct ucm_handle *file);
};

/* Of a file being written; a key. */
struct ucm_staging_name {
	uint16_t space;
	uint8_t bucket;
	char text[UCM_NAME_MAX + 1];
};

/*
 * One for each inode that is open: all its opens share a descriptor and, with
 * passthrough, a backing id, as the kernel asks. A staging file stays while it
 * has a name. Reference counted: one for each open, one for a staging name,
 * and one for whoever has just looked it up.
 */
struct ucm_handle {
	UT_hash_handle in_nodes, in_names;
	fuse_ino_t node;
	unsigned refs;	/* under files.lock */
	unsigned opens; /* under lock, as all below */
	pthread_mutex_t lock;
	const struct ucm_handle_ops *ops; /* its kind */
	int fd;		 /* -1 while a staging file is closed */
	int read_fd;	 /* of files/: fd, before it was needed for writing */
	int backing_id;	 /* 0: none */
	uint8_t dir;	 /* where its bytes are, if on a tier */
	uint8_t control; /* of .ucmfs/: its number */
	uint64_t size;	 /* when it was opened, or committed; else 0 */
	struct ucm_key key;	     /* the block, or the block to be */
	struct ucm_open open;	     /* of a block: for the store to count */
	struct ucm_temp temp;	     /* if it has one */
	struct ucm_staging_name *name; /* under files.lock */
	uint64_t counted;	     /* of files/: bytes in the tier's */
	bool writes;	    /* space.json: open for writing, which FLUSH does
			       not say; of files/: the descriptor is */
	bool told_at_close; /* of files/: write errors are, by a network file
			       system */
	bool refused;	    /* by the last FLUSH, as wrong */
	bool failed;	    /* fsync failed: never a block */
	int64_t touched_ms; /* last open, close or rename (monotonic) */
};

void ucm_handles_init(struct ucm_handles *files);
void ucm_handles_fini(struct ucm_daemon *daemon);

/* A file with one reference, in the table under its node id. For a node that
 * is given it may be one that is there already; else (0) it is new and
 * gets a serial number. NULL: no memory. */
struct ucm_handle *ucm_handle_open(struct ucm_daemon *daemon,
				   const struct ucm_handle_ops *ops,
				   fuse_ino_t node);
/* One more reference, or NULL. */
struct ucm_handle *ucm_handle_get(struct ucm_daemon *daemon, fuse_ino_t node);
struct ucm_handle *ucm_handle_by_name(struct ucm_daemon *daemon, uint16_t space,
				      unsigned bucket, const char *name);
void ucm_handle_put(struct ucm_daemon *daemon, struct ucm_handle *file);

/* Its lock. In a thread that must not wait it is not waited for while another
 * holds it over a call that takes long: -EINPROGRESS. */
int ucm_handle_lock(struct ucm_handle *file);

/* Its descriptor and backing id, if it has them, are closed. Under file->lock,
 * when the kernel has no open left on it. */
void ucm_handle_close_file(struct ucm_daemon *daemon, struct ucm_handle *file);

/* What was opened of a medium becomes the file's descriptor. -EOPNOTSUPP: the
 * medium has none for it, and it is closed. */
int ucm_handle_take(struct ucm_handle *file, struct ucm_file *opened);
/* Another descriptor of a file being written; the caller's. */
int ucm_handle_reopen(struct ucm_daemon *daemon,
		      const struct ucm_handle *file);

/* What fstat says of a node's file, and which block's it is. -ENOENT: nobody has
 * it open. */
int ucm_handle_stat(struct ucm_daemon *daemon, fuse_ino_t node,
		    struct stat *out, struct ucm_key *key_out);

/* A descriptor of a file being written for the time of one operation, also if
 * nobody has it open; under file->lock. -ENOENT if it cannot be had. */
int ucm_handle_borrow_fd(struct ucm_daemon *daemon, struct ucm_handle *file);
void ucm_handle_return_fd(const struct ucm_handle *file, int fd);

/* Give a staging file a (new) name, or take it away (NULL). The table's own
 * reference lives as long. A file that had the name loses it. -ENOMEM: it may
 * have lost its old name. */
int ucm_handle_set_name(struct ucm_daemon *daemon, struct ucm_handle *file,
			uint16_t space, unsigned bucket, const char *name);

/* Serial numbers of the staging files in a bucket (UINT_MAX: of all buckets),
 * ascending; an array to free. */
size_t ucm_handles_list(struct ucm_daemon *daemon, uint16_t space,
			unsigned bucket, uint64_t **out);

/* The nodes of the files of one kind, an array to free. */
fuse_ino_t *ucm_handles_open_of(struct ucm_daemon *daemon,
				const struct ucm_handle_ops *ops,
				size_t *num_out);

/* Commit a file being written, of which fd is a descriptor: counted and
 * traced as a part of that request, unless it is incomplete. Under file->lock.
 * What ucm_store_commit() returns. */
int ucm_handle_commit(const struct ucm_account *within, struct ucm_handle *file,
		      int fd, const struct ucm_key *key,
		      enum ucm_commit_when when);

/* Drop staging that nobody has touched for staging_age. */
void ucm_handles_expire(struct ucm_daemon *daemon);

/* ---- opens of an inode (opens.c) ---- */

/* Is the kernel to reach the file's descriptor itself? */
static inline bool ucm_handle_wants_backing(const struct ucm_daemon *daemon,
					    const struct ucm_handle *file)
{
	return atomic_load(&daemon->passthrough) &&
	       !atomic_load(&daemon->refused[file->dir]);
}

/* All under file->lock. The first open: let the kernel reach the descriptor
 * itself, if it can. */
void ucm_handle_attach(fuse_req_t req, struct ucm_handle *file);
/* One more open of a file that has its descriptor. */
void ucm_handle_count_open(struct ucm_handle *file, struct fuse_file_info *fi);
/* One open less, which was the last perhaps. Drops a reference. 0, or
 * -EINPROGRESS: in a thread that must not wait; nothing is done yet. */
int ucm_handle_close(struct ucm_account *account, struct ucm_handle *file);
/* The entry of a file that was created and is open. If that fails it is closed
 * again. */
int ucm_handle_created(struct ucm_account *account, struct ucm_handle *file,
		       struct fuse_entry_param *out);

/* What most kinds do to be written and synced. */
ssize_t ucm_handle_write(struct ucm_daemon *daemon, struct ucm_handle *file,
			 struct fuse_bufvec *in, off_t off);
int ucm_handle_sync(const struct ucm_handle *file, bool datasync);

static inline bool ucm_open_writes(const struct fuse_file_info *fi)
{
	return (fi->flags & O_ACCMODE) != O_RDONLY;
}

/* Does the open change the file, or may it? */
static inline bool ucm_open_changes(const struct fuse_file_info *fi)
{
	return ucm_open_writes(fi) || fi->flags & O_TRUNC;
}

/* ---- what is counted and traced (account.c) ---- */

/* One request, or a commit within one; on the stack of the thread that serves
 * it. What concerns a block is traced. */
struct ucm_account {
	fuse_req_t req; /* until the reply */
	struct ucm_daemon *daemon;
	int64_t began_ns; /* monotonic */
	enum ucm_op op;
	uint32_t pid, uid; /* who asks */
	bool has_block;
	uint8_t dir; /* where it lies, or UCM_TRACE_NONE */
	struct ucm_key key;
	uint64_t bytes; /* its size, or bytes moved */
};

static inline struct ucm_account ucm_account_begin(fuse_req_t req,
						   enum ucm_op op)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);
	struct ucm_daemon *daemon = ucm_daemon_of(req);

	ucm_handover_take(daemon);
	return (struct ucm_account){
		.req = req,
		.daemon = daemon,
		.began_ns = ucm_monotonic_ns(),
		.op = op,
		.pid = (uint32_t)ctx->pid,
		.uid = ctx->uid,
		.dir = UCM_TRACE_NONE,
	};
}

/* What is part of a request, and has a time of its own. */
static inline struct ucm_account
ucm_account_within(const struct ucm_account *account, enum ucm_op op)
{
	return (struct ucm_account){
		.req = account->req,
		.daemon = account->daemon,
		.began_ns = ucm_monotonic_ns(),
		.op = op,
		.pid = account->pid,
		.uid = account->uid,
		.dir = UCM_TRACE_NONE,
	};
}

/* The block that it concerns: by name; and where it lies; or by reference,
 * which is looked up only for a trace. */
void ucm_account_block(struct ucm_account *account, const struct ucm_key *key);
void ucm_account_entry(struct ucm_account *account,
		       const struct ucm_entry *entry);
void ucm_account_ref(struct ucm_account *account, ucm_ref ref);
/* What is open, where that is a block or one in the making. Under file->lock: a
 * rename makes a block of what was staging. */
void ucm_account_file(struct ucm_account *account,
		      const struct ucm_handle *file);

/* It has ended; err is 0 or -errno. Before the reply: who asked must find it
 * counted. */
void ucm_account_end(const struct ucm_account *account, int err);
/* The same, and the reply of a request that says no more than that. */

/* ---- the operations ---- */

void ucm_op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name);
void ucm_op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t lookups);
void ucm_op_forget_multi(fuse_req_t req, size_t count,
			 struct fuse_forget_data *forgets);
void ucm_op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void ucm_op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		    struct fuse_file_info *fi);
void ucm_op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
			struct fuse_file_info *fi);
void ucm_op_releasedir(fuse_req_t req, fuse_ino_t ino,
		       struct fuse_file_info *fi);
void ucm_op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync,
		     struct fuse_file_info *fi);
void ucm_op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name,
		  mode_t mode);
void ucm_op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name);
void ucm_op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name);
void ucm_op_rename(fuse_req_t req, fuse_ino_t parent, const char *name,
		   fuse_ino_t newparent, const char *newname,
		   unsigned int flags);
void ucm_op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name,
		  mode_t mode, dev_t dev);
void ucm_op_symlink(fuse_req_t req, const char *link, fuse_ino_t parent,
		    const char *name);
void ucm_op_readlink(fuse_req_t req, fuse_ino_t ino);
void ucm_op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t newparent,
		 const char *newname);

void ucm_op_create(fuse_req_t req, fuse_ino_t parent, const char *name,
		   mode_t mode, struct fuse_file_info *fi);
void ucm_op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void ucm_op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		 struct fuse_file_info *fi);
void ucm_op_write_buf(fuse_req_t req, fuse_ino_t ino, struct fuse_bufvec *in,
		      off_t off, struct fuse_file_info *fi);
void ucm_op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void ucm_op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync,
		  struct fuse_file_info *fi);
void ucm_op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void ucm_op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset,
		      off_t length, struct fuse_file_info *fi);
void ucm_op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence,
		  struct fuse_file_info *fi);

void ucm_op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void ucm_op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr,
		    int to_set, struct fuse_file_info *fi);
void ucm_op_statfs(fuse_req_t req, fuse_ino_t ino);
void ucm_op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name,
		     size_t size);
void ucm_op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size);
void ucm_op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name,
		     const char *value, size_t size, int flags);
void ucm_op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name);

/* ---- texts of files of .ucmfs ---- */

/* The text of stats.json (stats_json.c); to free. */
char *ucm_stats_text(struct ucm_daemon *daemon, size_t *len_out);
/* Prometheus' text (metrics.c); to free. */
char *ucm_metrics_text(struct ucm_daemon *daemon, size_t *len_out);

/* ---- a thread for what is old (expire.c) ---- */

int ucm_expiry_start(struct ucm_daemon *daemon);
void ucm_expiry_stop(struct ucm_daemon *daemon);

/* ---- what the kernel and libfuse offer (connection.c) ---- */

/* daemon->session, which is not mounted yet. 0 or -errno (libfuse has logged it). */
int ucm_session_new(struct ucm_daemon *daemon);
/* Whoever starts a daemon in the background does not see what it logs later. */
void ucm_session_tell_lacking(const struct ucm_options *options);

/* ---- mounting (session.c) ---- */

/* READY=1, to systemd and to ready-fd (ready.c). */
void ucm_say_ready(struct ucm_daemon *daemon);
/* The listening socket that systemd has opened for this process; -1: none. */
int ucm_systemd_socket(void);

/* Ask one that serves a socket alone to stop. */
void ucm_daemon_end(void *daemon);

/* Mount, serve until asked to stop, unmount; without a mount point, serve the
 * socket. files_dir: the number of the
 * directory that has files/. trace: NULL, or the caller's. 0 or
 * -errno (logged). */
int ucm_daemon_run(struct ucm_options *options, struct ucm_store *store,
		   unsigned files_dir, struct ucm_trace *trace);

#endif
