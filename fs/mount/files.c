/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files.c - files/ and all that is in it.
 *
 * A node id is the address of a node of fs/files/node.h, 0 for files/ itself.
 * Order of locks: a name's (node.h), file->lock, the table of the open files.
 */
#include <config.h>

#include "fs/mount/kinds.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/log.h"
#include "common/osfile.h"
#include "fs/files/files.h"
#include "fs/tier/wait.h"

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1
#endif

/* Where other machines may change it, and for names that are not there. */
#define SHORT_TIMEOUT_S 1.0

#define USE_NS INT64_C(1000000000) /* uses are noted to the second */
#define TREE_ROOT ucm_node_make(UCM_NODE_TREE, 0)

static const struct ucm_handle_ops files_handle;

void ucm_files_ops_init(struct ucm_daemon *daemon)
{
	struct stat st = { 0 };

	ucm_files_look(&daemon->file_tree, UCM_FILES_ROOT, &st);
	ucm_files_nodes_init(&daemon->nodes, st.st_ino);
}

static double files_timeout(const struct ucm_daemon *daemon)
{
	double timeout = daemon->options->entry_timeout_s;

	return daemon->file_tree.at->medium.remote && timeout > SHORT_TIMEOUT_S
		       ? SHORT_TIMEOUT_S
		       : timeout;
}

/* ---- a node's file ---- */

int ucm_files_hold_file(struct ucm_daemon *daemon, struct ucm_files_node *node,
			struct ucm_files_held *out)
{
	int err = ucm_files_lock_node(&daemon->nodes, node, &out->lock,
				      out->path);

	out->owned = !err;
	if (err) {
		*out->path = '\0';
		out->lock.nodes = NULL;
		/* removed, and known to somebody: never closed while it is */
		out->fd = err == -ESTALE ? node->fd : -1;
	} else {
		out->fd = ucm_os_open(daemon->file_tree.at->dirfd, out->path,
				      O_PATH, 0);
		err = out->fd;
	}
	if (out->fd >= 0)
		err = ucm_os_fstat(out->fd, &out->st);
	if (err == -ENOENT || err == -ENOTDIR || err == -ELOOP ||
	    (!err && out->st.st_ino != node->ino))
		err = -ESTALE;
	if (err)
		ucm_files_let_go(out);
	return err == -ESTALE ? err
			      : ucm_files_result(&daemon->file_tree, out->path,
						 "open", err);
}

static void files_unlock_held(struct ucm_files_held *held)
{
	if (held->lock.nodes)
		ucm_files_unlock(&held->lock);
	held->lock.nodes = NULL;
}

void ucm_files_let_go(struct ucm_files_held *held)
{
	if (held->owned)
		ucm_os_close(held->fd);
	files_unlock_held(held);
}

/* ---- attributes ---- */

static void files_fill_attr(struct ucm_daemon *daemon,
			    const struct ucm_files_node *node,
			    const struct stat *st, struct stat *out)
{
	const struct ucm_options *options = daemon->options;

	*out = *st;
	out->st_ino = ucm_files_ino(node->ino);
	out->st_blksize = UCM_BLOCK_PAGE;
	if (node != &daemon->nodes.root)
		return;
	if (options->uid != UCM_LEFT_OUT)
		out->st_uid = options->uid;
	if (options->gid != UCM_LEFT_OUT)
		out->st_gid = options->gid;
}

static int files_getattr(struct ucm_daemon *daemon, fuse_ino_t ino,
			 struct stat *out)
{
	struct ucm_files_node *node = ucm_files_node_of(daemon, ino);
	struct ucm_files_held held;
	struct ucm_key none;
	int err = ucm_files_hold_file(daemon, node, &held);

	if (!err) {
		ucm_files_let_go(&held);
	} else if (err == -ESTALE) { /* others removed it; is it open? */
		err = ucm_handle_stat(daemon, ino, &held.st, &none);
		err = err == -ENOENT ? -ESTALE : err;
	}
	if (!err)
		files_fill_attr(daemon, node, &held.st, out);
	return err;
}

/* By the descriptor of those who write it, for whom it is counted when they
 * close it; -ENOENT: it is not open for that. */
static int files_resize_open(struct ucm_daemon *daemon, fuse_ino_t ino,
			     off_t size)
{
	struct ucm_handle *file = ucm_handle_get(daemon, ino);
	int err;

	if (!file)
		return -ENOENT;
	err = ucm_handle_lock(daemon, file);
	if (!err) {
		err = file->fd >= 0 && file->writes
			      ? ucm_os_truncate(file->fd, size)
			      : -ENOENT;
		pthread_mutex_unlock(&file->lock);
	}
	ucm_handle_put(daemon, file);
	return err;
}

static int files_resize(struct ucm_daemon *daemon, fuse_ino_t ino,
			const struct ucm_files_held *held, off_t size)
{
	int err = files_resize_open(daemon, ino, size);
	_cleanup_fd_ int fd = -1;
	struct stat st;

	if (err != -ENOENT)
		return err;
	fd = ucm_os_reopen(held->fd, O_WRONLY);
	err = fd < 0 ? fd : ucm_os_truncate(fd, size);
	if (!err)
		err = ucm_os_fstat(fd, &st);
	if (!err && *held->path)
		ucm_files_account(&daemon->file_tree, held->path,
				  (int64_t)(ucm_file_takes(&st) -
					    ucm_file_takes(&held->st)));
	return err;
}

static int files_setattr(struct ucm_account *account, fuse_ino_t ino,
			 const struct stat *attr, int to_set)
{
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_files_node *node = ucm_files_node_of(daemon, ino);
	const struct ucm_options *options = daemon->options;
	uid_t uid = to_set & FUSE_SET_ATTR_UID ? attr->st_uid : (uid_t)-1;
	gid_t gid = to_set & FUSE_SET_ATTR_GID ? attr->st_gid : (gid_t)-1;
	bool owner = uid != (uid_t)-1 || gid != (gid_t)-1;
	struct timespec times[2];
	struct ucm_files_held held;
	int err = 0;

	/* the owner of files/ is an option, if it is one */
	if (ino == TREE_ROOT && ((uid != (uid_t)-1 && options->uid != UCM_LEFT_OUT) ||
				 (gid != (gid_t)-1 && options->gid != UCM_LEFT_OUT)))
		return -EPERM;
	if (to_set & FUSE_SET_ATTR_MODE &&
	    ucm_files_is_set_id(attr->st_mode, node->is_dir))
		return -EPERM;
	if (daemon->file_tree.at->medium.readonly)
		return -EROFS;
	err = ucm_files_hold_file(daemon, node, &held);
	if (err)
		return err;
	if (to_set & FUSE_SET_ATTR_SIZE)
		err = files_resize(daemon, ino, &held, attr->st_size);
	/* a change of owner takes set-id bits away: the mode comes after it */
	if (!err && owner)
		err = ucm_os_fchown(held.fd, uid, gid);
	if (!err && to_set & FUSE_SET_ATTR_MODE)
		err = ucm_os_fchmod(held.fd, attr->st_mode & 07777);
	ucm_attr_times(attr, to_set, times);
	if (!err && to_set & UCM_SET_TIMES)
		err = ucm_os_utimens(held.fd, times);
	ucm_files_let_go(&held);
	return err;
}

/* ---- names ---- */

/* An entry for what was found or made under a name, which is locked. */
static int files_enter(struct ucm_daemon *daemon, struct ucm_files_node *parent,
		       const char *name, const struct stat *st,
		       struct fuse_entry_param *out)
{
	struct ucm_files_node *node =
		ucm_files_looked_up(&daemon->nodes, parent, name, st);

	if (!node)
		return -ENOMEM;
	*out = (struct fuse_entry_param){
		.ino = ucm_files_ino_of(daemon, node),
		.generation = 1,
		.attr_timeout = files_timeout(daemon),
		.entry_timeout = files_timeout(daemon),
	};
	files_fill_attr(daemon, node, st, &out->attr);
	return 0;
}

static int files_lookup(struct ucm_account *account, fuse_ino_t parent,
			const char *name, struct fuse_entry_param *out)
{
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_files_node *folder = ucm_files_node_of(daemon, parent);
	double timeout = files_timeout(daemon);
	struct ucm_files_lock lock;
	char path[PATH_MAX];
	struct stat st;
	int err;

	*out = (struct fuse_entry_param){ .entry_timeout =
						  timeout < SHORT_TIMEOUT_S
							  ? timeout
							  : SHORT_TIMEOUT_S };
	err = ucm_files_lock_name(&daemon->nodes, folder, name, &lock, path);
	if (err)
		return err;
	err = ucm_files_look(&daemon->file_tree, path, &st);
	if (!err)
		err = files_enter(daemon, folder, name, &st, out);
	ucm_files_unlock(&lock);
	return err;
}

int ucm_files_ops_root(struct ucm_daemon *daemon, struct fuse_entry_param *out)
{
	*out = (struct fuse_entry_param){
		.ino = TREE_ROOT,
		.generation = 1,
		.attr_timeout = files_timeout(daemon),
		.entry_timeout = files_timeout(daemon),
	};
	return files_getattr(daemon, TREE_ROOT, &out->attr);
}

static void files_forget(struct ucm_daemon *daemon, fuse_ino_t ino,
			 uint64_t lookups)
{
	ucm_files_forget(&daemon->nodes, ucm_files_node_of(daemon, ino),
			 lookups);
}

/* Before a file is made, and before its name is locked: whoever makes room
 * locks names. */
static int files_wait_for_room(struct ucm_daemon *daemon,
			       struct ucm_files_node *folder, const char *name)
{
	char path[PATH_MAX];

	if (ucm_files_path(&daemon->nodes, folder, name, path))
		return 0; /* the lock says why */
	return ucm_files_quota_room(&daemon->file_tree, path);
}

static struct ucm_files_owner files_owner(fuse_req_t req, mode_t mode)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);

	return (struct ucm_files_owner){
		.uid = ctx->uid,
		.gid = ctx->gid,
		.mode = mode & ~ctx->umask & 07777,
	};
}

typedef int files_make_fn(struct ucm_files_tree *tree, const char *path,
			  const struct ucm_files_owner *owner, struct stat *st);

/* make: 0, or a descriptor, which is closed. */
static int files_make(struct ucm_daemon *daemon, struct ucm_files_node *folder,
		      const char *name, const struct ucm_files_owner *owner,
		      files_make_fn *make, struct fuse_entry_param *out)
{
	struct ucm_files_lock lock;
	char path[PATH_MAX];
	struct stat st;
	int rc = ucm_files_lock_name(&daemon->nodes, folder, name, &lock, path);

	if (rc)
		return rc;
	rc = make(&daemon->file_tree, path, owner, &st);
	if (rc > 0)
		ucm_os_close(rc);
	if (rc >= 0)
		rc = files_enter(daemon, folder, name, &st, out);
	ucm_files_unlock(&lock);
	return rc;
}

static int files_mkdir(struct ucm_account *account, fuse_ino_t parent,
		       const char *name, mode_t mode,
		       struct fuse_entry_param *out)
{
	struct ucm_files_owner owner = files_owner(account->req, mode);

	return files_make(account->daemon,
			  ucm_files_node_of(account->daemon, parent), name,
			  &owner, ucm_files_mkdir, out);
}

static int files_mknod(struct ucm_account *account, fuse_ino_t parent,
		       const char *name, mode_t mode,
		       struct fuse_entry_param *out)
{
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_files_node *folder = ucm_files_node_of(daemon, parent);
	struct ucm_files_owner owner = files_owner(account->req, mode);
	int err = S_ISREG(mode) ? files_wait_for_room(daemon, folder, name)
				: -EPERM;

	return err ? err
		   : files_make(daemon, folder, name, &owner, ucm_files_create,
				out);
}

static int files_symlink(struct ucm_account *account, fuse_ino_t parent,
			 const char *name, const char *target,
			 struct fuse_entry_param *out)
{
	struct ucm_files_owner owner = files_owner(account->req, 0777);

	owner.target = target;
	return files_make(account->daemon,
			  ucm_files_node_of(account->daemon, parent), name,
			  &owner, ucm_files_symlink, out);
}

static int files_link_held(struct ucm_daemon *daemon,
			   struct ucm_files_held *held,
			   struct ucm_files_node *folder, const char *name,
			   struct fuse_entry_param *out)
{
	struct ucm_files_lock lock;
	char path[PATH_MAX];
	struct stat st;
	int err;

	files_unlock_held(held); /* each lock is taken once */
	err = ucm_files_lock_name(&daemon->nodes, folder, name, &lock, path);
	if (err)
		return err;
	err = ucm_files_link(&daemon->file_tree, held->fd, path, &st);
	if (!err)
		err = files_enter(daemon, folder, name, &st, out);
	ucm_files_unlock(&lock);
	return err;
}

static int files_link(struct ucm_account *account, fuse_ino_t ino,
		      fuse_ino_t newparent, const char *newname,
		      struct fuse_entry_param *out)
{
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_files_node *folder = ucm_files_node_of(daemon, newparent);
	struct ucm_files_held held;
	int err = files_wait_for_room(daemon, folder, newname);

	if (!err)
		err = ucm_files_hold_file(
			daemon, ucm_files_node_of(daemon, ino), &held);
	if (err)
		return err;
	err = files_link_held(daemon, &held, folder, newname, out);
	ucm_files_let_go(&held);
	return err;
}

static int files_readlink(struct ucm_account *account, fuse_ino_t ino,
			  char *target)
{
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_files_held held;
	int err = ucm_files_hold_file(daemon, ucm_files_node_of(daemon, ino),
				      &held);

	if (err)
		return err;
	err = ucm_os_readlink(held.fd, "", target, PATH_MAX);
	ucm_files_let_go(&held);
	return err;
}

/* What an open file has grown by, under file->lock. One whose name is removed
 * was counted for the last time then. */
static void files_count_growth(struct ucm_daemon *daemon,
			       struct ucm_handle *file)
{
	char path[PATH_MAX];
	uint64_t bytes;
	struct stat st;

	if (ucm_files_path(&daemon->nodes,
			   ucm_files_node_of(daemon, file->node), NULL, path) ||
	    ucm_os_fstat(file->fd, &st))
		return;
	bytes = ucm_file_takes(&st);
	ucm_files_account(&daemon->file_tree, path,
			  (int64_t)(bytes - file->counted));
	file->counted = bytes;
}

/* What a name leads to, with what it has on disk counted. */
static int files_look_settled(struct ucm_daemon *daemon, const char *path,
			      struct stat *st)
{
	int err = ucm_files_look(&daemon->file_tree, path, st);
	const struct ucm_files_node *node =
		err ? NULL : ucm_files_known(&daemon->nodes, st->st_ino);
	struct ucm_handle *file =
		node ? ucm_handle_get(daemon, ucm_files_ino_of(daemon, node))
		     : NULL;

	if (!file)
		return err;
	pthread_mutex_lock(&file->lock);
	if (file->fd >= 0 && file->writes)
		files_count_growth(daemon, file);
	pthread_mutex_unlock(&file->lock);
	ucm_handle_put(daemon, file);
	return ucm_files_look(&daemon->file_tree, path, st);
}

/* Before a name is removed or replaced: a descriptor for those who know what it
 * leads to, or -1. A file that was looked up can be opened, as on any file
 * system. */
static int files_keep(struct ucm_daemon *daemon, const char *path,
		      const struct stat *st)
{
	return ucm_files_known(&daemon->nodes, st->st_ino)
		       ? ucm_os_open(daemon->file_tree.at->dirfd, path, O_PATH,
				     0)
		       : -1;
}

static int files_remove(struct ucm_daemon *daemon, fuse_ino_t parent,
			const char *name, bool is_dir)
{
	struct ucm_files_node *folder = ucm_files_node_of(daemon, parent);
	struct ucm_files_tree *tree = &daemon->file_tree;
	struct ucm_files_lock lock;
	char path[PATH_MAX];
	struct stat st;
	int fd = -1, err = ucm_files_lock_name(&daemon->nodes, folder, name,
					       &lock, path);

	if (err)
		return err;
	err = files_look_settled(daemon, path, &st);
	if (!err && is_dir != S_ISDIR(st.st_mode))
		err = is_dir ? -ENOTDIR : -EISDIR;
	if (!err) {
		fd = files_keep(daemon, path, &st);
		err = is_dir ? ucm_files_rmdir(tree, path)
			     : ucm_files_unlink(tree, path, &st);
	}
	if (!err)
		ucm_files_removed(&daemon->nodes, folder->ino, name, st.st_ino,
				  fd);
	else
		ucm_os_close(fd);
	ucm_files_unlock(&lock);
	return err;
}

static int files_rmdir(struct ucm_account *account, fuse_ino_t parent,
		       const char *name)
{
	return files_remove(account->daemon, parent, name, true);
}

static int files_unlink(struct ucm_account *account, fuse_ino_t parent,
			const char *name)
{
	return files_remove(account->daemon, parent, name, false);
}

/* Both names are locked; from: what the first leads to. */
static int files_rename_pair(struct ucm_daemon *daemon,
			     const struct ucm_files_pair *pair,
			     const struct stat *from, unsigned flags)
{
	char *copy = strdup(pair->name[1]);
	struct stat to = { 0 };
	int fd = -1, err = copy ? files_look_settled(daemon, pair->path[1], &to)
				: -ENOMEM;
	bool over = !err;

	if (over)
		fd = files_keep(daemon, pair->path[1], &to);
	if (!err || err == -ENOENT)
		err = ucm_files_rename(&daemon->file_tree, pair->path[0],
				       pair->path[1], flags, from,
				       over ? &to : NULL);
	/* of two names of one file both stay */
	if (!err && !(over && to.st_ino == from->st_ino)) {
		ucm_files_renamed(&daemon->nodes, pair, copy, from->st_ino,
				  over ? to.st_ino : 0, fd);
		return 0;
	}
	free(copy);
	ucm_os_close(fd);
	return err;
}

static int files_rename(struct ucm_account *account, fuse_ino_t parent,
			const char *name, fuse_ino_t newparent,
			const char *newname, unsigned flags)
{
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_files_pair pair = {
		.parent = { ucm_files_node_of(daemon, parent),
			    ucm_files_node_of(daemon, newparent) },
		.name = { name, newname },
	};
	struct ucm_files_lock lock;
	bool alone = false;
	struct stat from;
	int err;

	if (flags & ~(unsigned)RENAME_NOREPLACE)
		return -EINVAL;
	for (;; alone = true) {
		err = ucm_files_lock_pair(&daemon->nodes, &pair, alone, &lock);
		if (err)
			return err;
		err = files_look_settled(daemon, pair.path[0], &from);
		if (err || alone || !S_ISDIR(from.st_mode))
			break;
		ucm_files_unlock(&lock); /* all others must be shut out */
	}
	if (!err)
		err = files_rename_pair(daemon, &pair, &from, flags);
	ucm_files_unlock(&lock);
	return err;
}

/* ---- open files ---- */

/* The use of a file is noted where what was not used is to go: the kernel does
 * it seldom, or not at all on some mounts. Under file->lock. */
static void files_note_use(struct ucm_daemon *daemon,
			   const struct ucm_handle *file)
{
	struct timespec times[2] = { { .tv_nsec = UTIME_NOW },
				     { .tv_nsec = UTIME_OMIT } };
	struct timespec now;
	char path[PATH_MAX];
	struct stat st;

	if (daemon->file_tree.at->medium.readonly ||
	    ucm_files_path(&daemon->nodes,
			   ucm_files_node_of(daemon, file->node), NULL, path) ||
	    !ucm_files_quota_by_use(&daemon->file_tree, path) ||
	    ucm_os_fstat(file->fd, &st))
		return;
	clock_gettime(CLOCK_REALTIME, &now);
	if (ucm_time_ns(&now) - ucm_time_ns(&st.st_atim) > USE_NS)
		ucm_os_utimens(file->fd, times);
}

/* A file that has its descriptor gets its first open. Under file->lock. Its
 * node is held until the last close: that may be served after it was answered,
 * when the kernel may have forgotten the node. */
static void files_begin_file(fuse_req_t req, struct ucm_handle *file, int fd,
			     const struct stat *st, bool writes)
{
	struct ucm_daemon *daemon = ucm_daemon_of(req);
	const struct ucm_files_tree *tree = &daemon->file_tree;

	ucm_files_hold(&daemon->nodes, ucm_files_node_of(daemon, file->node));
	file->fd = fd;
	file->dir = (uint8_t)tree->dir;
	file->size = (uint64_t)st->st_size;
	file->counted = ucm_file_takes(st);
	file->writes = writes;
	file->told_at_close = tree->at->medium.remote;
	ucm_handle_attach(req, file);
}

/* Nothing is judged when it is closed, and where the kernel has its pages
 * nothing is left to be written either; unless its file system has something
 * to tell. */
static void files_count_open(struct ucm_handle *file, struct fuse_file_info *fi)
{
	ucm_handle_count_open(file, fi);
	if (file->backing_id && !file->told_at_close)
		fi->noflush = true;
}

static int files_create_locked(fuse_req_t req, struct ucm_files_node *folder,
			       const char *name, const char *path, mode_t mode,
			       struct fuse_file_info *fi,
			       struct fuse_entry_param *out)
{
	struct ucm_files_owner owner = files_owner(req, mode);
	struct ucm_daemon *daemon = ucm_daemon_of(req);
	struct ucm_handle *file = NULL;
	struct stat st;
	int fd = ucm_files_create(&daemon->file_tree, path, &owner, &st);
	int err = fd < 0 ? fd : files_enter(daemon, folder, name, &st, out);

	if (!err) {
		file = ucm_handle_open(daemon, &files_handle, out->ino);
		if (!file) {
			files_forget(daemon, out->ino, 1);
			err = -ENOMEM;
		}
	}
	if (err) {
		if (fd >= 0)
			ucm_os_close(fd);
		return err;
	}
	pthread_mutex_lock(&file->lock);
	files_begin_file(req, file, fd, &st, true);
	file->counted = 0; /* nothing of it is, yet */
	files_count_open(file, fi);
	pthread_mutex_unlock(&file->lock);
	return 0;
}

static int files_create(struct ucm_account *account, fuse_ino_t parent,
			const char *name, mode_t mode,
			struct fuse_file_info *fi, struct fuse_entry_param *out)
{
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_files_node *folder = ucm_files_node_of(daemon, parent);
	struct ucm_files_lock lock;
	char path[PATH_MAX];
	int err = files_wait_for_room(daemon, folder, name);

	if (!err)
		err = ucm_files_lock_name(&daemon->nodes, folder, name, &lock,
					  path);
	if (err)
		return err;
	err = files_create_locked(account->req, folder, name, path, mode, fi,
				  out);
	ucm_files_unlock(&lock);
	/* It is there, though the kernel remembers otherwise and has not
	 * compared modes: let it look again, and open. */
	return err == -EEXIST && !(fi->flags & O_EXCL) ? -ESTALE : err;
}

/* From now on for writing as well; whoever reads with it still can. Under guard
 * the old descriptor stays as it is until the last close, because dup3(2) closes
 * the file that had the number, and may wait for that. */
static int files_make_writable(struct ucm_daemon *daemon,
			       struct ucm_handle *file)
{
	int fd;

	if (daemon->file_tree.at->medium.readonly)
		return -EROFS;
	fd = ucm_os_reopen(file->fd, O_RDWR);
	if (fd < 0)
		return fd;
	if (daemon->file_tree.at->medium.guard) {
		file->read_fd = file->fd;
		file->fd = fd;
	} else if (dup3(fd, file->fd, O_CLOEXEC) < 0) {
		ucm_os_close(fd);
		return -EMFILE;
	} else {
		ucm_os_close(fd);
	}
	file->writes = true;
	return 0;
}

/* Under file->lock. */
static int files_open_locked(fuse_req_t req, struct ucm_files_node *node,
			     struct ucm_handle *file,
			     const struct ucm_files_held *held,
			     struct fuse_file_info *fi)
{
	struct ucm_daemon *daemon = ucm_daemon_of(req);
	struct ucm_files_tree *tree = &daemon->file_tree;
	bool writes = ucm_open_changes(fi);
	int fd, err = 0;

	if (writes && tree->at->medium.readonly)
		return -EROFS;
	if (!file->opens) {
		fd = ucm_os_reopen(held->fd, writes ? O_RDWR : O_RDONLY);
		if (fd < 0)
			return ucm_files_result(tree, held->path, "open", fd);
		files_begin_file(req, file, fd, &held->st, writes);
		ucm_count(&tree->dirs->tier_of[tree->dir]->stats.files_opened);
	} else if (writes && !file->writes) {
		err = files_make_writable(daemon, file);
	}
	if (!err && fi->flags & O_TRUNC)
		err = ucm_os_truncate(file->fd, 0);
	if (!err) {
		files_count_open(file, fi);
		if (file->opens == 1)
			files_note_use(daemon, file);
	} else if (!file->opens) {
		ucm_handle_close_file(daemon, file);
		ucm_files_forget(&daemon->nodes, node, 1);
	}
	return err;
}

static int files_open_node(fuse_req_t req, struct ucm_files_node *node,
			   const struct ucm_files_held *held,
			   struct fuse_file_info *fi)
{
	struct ucm_daemon *daemon = ucm_daemon_of(req);
	struct ucm_handle *file =
		ucm_handle_open(daemon, &files_handle,
				ucm_files_ino_of(daemon, node));
	int err;

	if (!file)
		return -ENOMEM;
	err = ucm_handle_lock(daemon, file);
	if (!err) {
		err = files_open_locked(req, node, file, held, fi);
		pthread_mutex_unlock(&file->lock);
	}
	if (err)
		ucm_handle_put(daemon, file);
	return err;
}

static int files_open(struct ucm_account *account, fuse_ino_t ino,
		      struct fuse_file_info *fi)
{
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_files_node *node = ucm_files_node_of(daemon, ino);
	struct ucm_files_held held;
	int err = node->is_dir ? -EISDIR
			       : ucm_files_hold_file(daemon, node, &held);

	if (err)
		return err;
	err = files_open_node(account->req, node, &held, fi);
	ucm_files_let_go(&held);
	return err;
}

static int files_failed(struct ucm_daemon *daemon,
			const struct ucm_handle *file, const char *what,
			int err)
{
	ucm_error("a file in %s/" UCM_TREE_FILES ": %s: %s",
		  daemon->store->dirs.at[file->dir]->path, what,
		  strerror(-err));
	ucm_dirs_count_error(&daemon->store->dirs, file->dir, err);
	return err;
}

/* The error is the program's. */
static int files_flush(struct ucm_account *account, struct ucm_handle *file)
{
	int err;

	/* the kernel opens a file that it passes through once more, and does
	 * not report to its file system when that is closed */
	if (!file->told_at_close || !file->writes)
		return 0;
	err = ucm_wait_long(&account->daemon->store->dirs, file->dir);
	if (err)
		return err;
	err = ucm_os_flush(file->fd);
	return err ? files_failed(account->daemon, file, "close", err) : 0;
}

static int files_fsync(struct ucm_account *account, struct ucm_handle *file,
		       bool datasync)
{
	int err = ucm_handle_sync(file, datasync);

	return err ? files_failed(account->daemon, file, "fsync", err) : 0;
}

static int files_fallocate(struct ucm_daemon *daemon, struct ucm_handle *file,
			   int mode, off_t off, off_t len)
{
	(void)daemon;
	return ucm_os_fallocate(file->fd, mode, off, len);
}

static int files_last_close(struct ucm_account *account,
			    struct ucm_handle *file)
{
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_files_node *node = ucm_files_node_of(daemon, file->node);
	int err = ucm_wait_for(&daemon->store->dirs, file->dir);

	if (err)
		return err;
	if (file->writes)
		files_count_growth(daemon, file);
	files_note_use(daemon, file);
	ucm_files_forget(&daemon->nodes, node, 1);
	return 0;
}

/* ---- folders ---- */

/* An open folder: its names as they were when it was read from its start. */
struct folder {
	struct ucm_files_entries names;
	bool listed;
};

static int files_opendir(struct ucm_account *account, fuse_ino_t ino,
			 struct fuse_file_info *fi)
{
	struct folder *folder;

	if (!ucm_files_node_of(account->daemon, ino)->is_dir)
		return -ENOTDIR;
	folder = calloc(1, sizeof(*folder));
	fi->fh = (uintptr_t)folder;
	return folder ? 0 : -ENOMEM;
}

static void files_releasedir(const struct fuse_file_info *fi)
{
	struct folder *folder = (struct folder *)(uintptr_t)fi->fh;

	ucm_files_entries_free(&folder->names);
	free(folder);
}

static int files_list_again(struct ucm_daemon *daemon, fuse_ino_t ino,
			    struct folder *folder)
{
	struct ucm_files_held held;
	int err = ucm_files_hold_file(daemon, ucm_files_node_of(daemon, ino),
				      &held);

	if (err)
		return err == -ESTALE ? -ENOENT : err;
	ucm_files_entries_free(&folder->names);
	err = ucm_files_entries(held.fd, ".", &folder->names);
	folder->listed = !err;
	ucm_files_result(&daemon->file_tree, held.path, "readdir", err);
	ucm_files_let_go(&held);
	return err;
}

/* Entry number off, "." and ".." being the first; false after the last. Its
 * name is looked up when it is asked for. */
static bool files_name_at(struct ucm_daemon *daemon, fuse_ino_t ino,
			  const struct folder *folder, off_t off,
			  const char **name, struct stat *out)
{
	const struct ucm_files_entry *listed;

	*out = (struct stat){ .st_mode = S_IFDIR };
	if (off < 2) {
		*name = off ? ".." : ".";
		out->st_ino = ucm_files_ino(
			ucm_files_node_of(daemon, ino)->ino);
		return true;
	}
	if ((size_t)off - 2 >= folder->names.num)
		return false;
	listed = &folder->names.list[off - 2];
	*name = listed->name;
	out->st_ino = ucm_files_ino(listed->ino);
	out->st_mode = DTTOIF(listed->type);
	return true;
}

static int files_readdir(struct ucm_listing *list, fuse_ino_t ino, off_t off,
			 const struct fuse_file_info *fi)
{
	struct folder *folder = (struct folder *)(uintptr_t)fi->fh;
	struct stat attr;
	const char *name;
	int err = 0;

	if (off == 0 || !folder->listed)
		err = files_list_again(list->daemon, ino, folder);
	while (!err &&
	       files_name_at(list->daemon, ino, folder, off, &name, &attr) &&
	       ucm_list_name(list, name, &attr, off + 1))
		off++;
	return err;
}

static int files_fsyncdir(struct ucm_account *account, fuse_ino_t ino)
{
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_files_held held;
	_cleanup_fd_ int fd = -1;
	int err = ucm_files_hold_file(daemon, ucm_files_node_of(daemon, ino),
				      &held);

	if (err)
		return err == -ESTALE ? 0 : err; /* there is nothing to sync */
	if (daemon->file_tree.at->medium.readonly) {
		ucm_files_let_go(&held);
		return 0;
	}
	fd = ucm_os_reopen(held.fd, O_RDONLY | O_DIRECTORY);
	err = fd < 0 ? fd : ucm_os_fsync(fd);
	ucm_files_result(&daemon->file_tree, held.path, "fsync", err);
	ucm_files_let_go(&held);
	return err;
}

/* ---- quotas ---- */

/* A lock that is not to be had at once is held by somebody who uses it. */
static bool files_is_open(void *arg, const struct ucm_files_node *node)
{
	struct ucm_daemon *daemon = arg;
	struct ucm_handle *file =
		ucm_handle_get(daemon, ucm_files_ino_of(daemon, node));
	bool open = true;

	if (!file)
		return false;
	if (!pthread_mutex_trylock(&file->lock)) {
		open = file->opens;
		pthread_mutex_unlock(&file->lock);
	}
	ucm_handle_put(daemon, file);
	return open;
}

/* Those that are written to at this moment, and closed again, may be left
 * out. */
static void files_settle_all(void *arg)
{
	struct ucm_daemon *daemon = arg;
	size_t num;
	fuse_ino_t *nodes = ucm_handles_open_of(daemon, &files_handle, &num);

	for (size_t i = 0; i < num; i++) {
		struct ucm_handle *file = ucm_handle_get(daemon, nodes[i]);

		if (!file)
			continue;
		if (!pthread_mutex_trylock(&file->lock)) {
			if (file->opens && file->fd >= 0 && file->writes)
				files_count_growth(daemon, file);
			pthread_mutex_unlock(&file->lock);
		}
		ucm_handle_put(daemon, file);
	}
	free(nodes);
}

const struct ucm_files_quota_ops ucm_files_quota_hooks = {
	.is_open = files_is_open,
	.settle = files_settle_all,
};

/* df shows what the directory has, and in a marked folder its quota. */
static void files_narrow(struct ucm_daemon *daemon, fuse_ino_t ino,
			 struct statvfs *st)
{
	struct ucm_files_mark_info mark;
	uint64_t total, available;
	char path[PATH_MAX];

	ucm_medium_space(&daemon->file_tree.at->medium, &total, &available);
	if (total)
		ucm_narrow_to_quota(st, total, total - available);
	if (!ucm_files_path(&daemon->nodes, ucm_files_node_of(daemon, ino),
			    NULL, path) &&
	    ucm_files_quota_of(&daemon->file_tree, path, &mark))
		ucm_narrow_to_quota(st, mark.quota, mark.used);
}

static const struct ucm_handle_ops files_handle = {
	.write = ucm_handle_write,
	.fallocate = files_fallocate,
	.flush = files_flush,
	.fsync = files_fsync,
	.last_close = files_last_close,
};

const struct ucm_node_ops ucm_files_ops = {
	.timeout = files_timeout,
	.remembers_absence = true,
	.moved_by_copy = true,
	.xattrs = ucm_files_xattrs,
	.get_xattr = ucm_files_get_xattr,
	.list_xattrs = ucm_files_list_xattrs,
	.set_xattr = ucm_files_set_xattr,
	.narrow = files_narrow,
	.getattr = files_getattr,
	.setattr = files_setattr,
	.forget = files_forget,
	.lookup = files_lookup,
	.readdir = files_readdir,
	.opendir = files_opendir,
	.releasedir = files_releasedir,
	.fsyncdir = files_fsyncdir,
	.create = files_create,
	.mkdir = files_mkdir,
	.mknod = files_mknod,
	.symlink = files_symlink,
	.link = files_link,
	.unlink = files_unlink,
	.rmdir = files_rmdir,
	.rename = files_rename,
	.open = files_open,
	.readlink = files_readlink,
};
