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

/* Where other machines may change a tier, and for names that are not there. */
#define SHORT_TIMEOUT_S 1.0

#define USE_NS INT64_C(1000000000) /* uses are noted to the second */
#define TREE_ROOT ucm_node_make(UCM_NODE_TREE, 0)

static const struct ucm_handle_ops files_handle;

int ucm_files_ops_init(struct ucm_daemon *daemon)
{
	struct ucm_files root;
	int err = ucm_files_nodes_init(&daemon->nodes);

	if (!err && !ucm_files_find(&daemon->file_tree, UCM_FILES_ROOT,
				    UCM_FILES_NOWHERE, &root))
		daemon->nodes.root.ino =
			ucm_files_ino(&daemon->file_tree, &root);
	return err;
}

static double files_timeout(const struct ucm_daemon *daemon)
{
	double timeout = daemon->options->entry_timeout_s;

	for (unsigned i = 0; i < daemon->store->dirs.num; i++) {
		if (daemon->store->dirs.at[i]->remote &&
		    timeout > SHORT_TIMEOUT_S)
			return SHORT_TIMEOUT_S;
	}
	return timeout;
}

/* ---- attributes ---- */

static void files_fill_attr(struct ucm_daemon *daemon,
			    const struct ucm_files_node *node,
			    const struct stat *st, struct stat *out)
{
	const struct ucm_options *options = daemon->options;

	*out = *st;
	out->st_ino = node->ino;
	out->st_nlink = 1; /* the folders in a folder are not counted */
	out->st_blksize = UCM_BLOCK_PAGE;
	if (node != &daemon->nodes.root)
		return;
	if (options->has_uid)
		out->st_uid = options->uid;
	if (options->has_gid)
		out->st_gid = options->gid;
}

static int files_attr_by_name(struct ucm_daemon *daemon,
			      struct ucm_files_node *node, struct stat *out)
{
	struct ucm_files_lock lock;
	struct ucm_files found;
	char path[PATH_MAX];
	int err = ucm_files_lock_node(&daemon->nodes, node, &lock, path);

	if (err)
		return err;
	err = ucm_files_find(&daemon->file_tree, path,
			     node->is_dir ? UCM_FILES_NOWHERE : node->dir,
			     &found);
	ucm_files_unlock(&lock);
	if (err)
		return err == -ENOENT ? -ESTALE : err;
	if (S_ISDIR(found.st.st_mode) != node->is_dir ||
	    (!node->is_dir &&
	     ucm_files_ino(&daemon->file_tree, &found) != node->ino))
		return -ESTALE;
	files_fill_attr(daemon, node, &found.st, out);
	return 0;
}

/* -ENOENT: nobody has it open. */
static int files_attr_of_open(struct ucm_daemon *daemon,
			      struct ucm_files_node *node, struct stat *out)
{
	struct ucm_handle *file =
		ucm_handle_get(daemon, ucm_files_ino_of(daemon, node));
	struct stat st;
	int err;

	if (!file)
		return -ENOENT;
	err = ucm_handle_lock(daemon, file);
	if (!err) {
		err = file->fd < 0 ? -ENOENT : ucm_os_fstat(file->fd, &st);
		pthread_mutex_unlock(&file->lock);
	}
	ucm_handle_put(daemon, file);
	if (!err)
		files_fill_attr(daemon, node, &st, out);
	return err;
}

/* Its descriptor says: of a removed folder as well, which may be the working
 * directory of somebody. */
static int files_attr_of_gone(struct ucm_daemon *daemon,
			      struct ucm_files_node *node, struct stat *out)
{
	struct stat st;
	int err = node->fd < 0 ? -ESTALE : ucm_os_fstat(node->fd, &st);

	if (!err)
		files_fill_attr(daemon, node, &st, out);
	return err;
}

static int files_getattr(struct ucm_daemon *daemon, fuse_ino_t ino,
			 struct stat *out)
{
	struct ucm_files_node *node = ucm_files_node_of(daemon, ino);
	int err =
		node->is_dir ? -ENOENT : files_attr_of_open(daemon, node, out);
	bool gone;

	if (err == -ENOENT)
		err = files_attr_by_name(daemon, node, out);
	gone = ucm_files_is_gone(&daemon->nodes, node);
	if (err == -ESTALE && gone)
		err = files_attr_of_gone(daemon, node, out);
	if (!err && gone)
		out->st_nlink = 0;
	return err;
}

/* Through its descriptor, if that will do; -ENOENT if not. */
static int files_change_open(struct ucm_daemon *daemon, fuse_ino_t ino,
			     const struct ucm_files_change *change)
{
	struct ucm_handle *file = ucm_handle_get(daemon, ino);
	int err;

	if (!file)
		return -ENOENT;
	err = ucm_handle_lock(daemon, file);
	if (!err) {
		err = file->fd >= 0 && (file->writes || !change->size_set)
			      ? ucm_files_change_fd(file->fd, change)
			      : -ENOENT;
		pthread_mutex_unlock(&file->lock);
	}
	ucm_handle_put(daemon, file);
	return err;
}

/* A link cannot be opened, and has neither mode nor size to change. */
static int files_change_gone(const struct ucm_files_node *node,
			     const struct ucm_files_change *change)
{
	_cleanup_fd_ int fd = -1;

	if (!change->size_set && !change->mode_set)
		return ucm_files_change_fd(node->fd, change);
	fd = ucm_os_reopen(node->fd, change->size_set ? O_WRONLY : O_RDONLY);
	return fd < 0 ? fd : ucm_files_change_fd(fd, change);
}

static int files_change(struct ucm_daemon *daemon, fuse_ino_t ino,
			const struct ucm_files_change *change)
{
	struct ucm_files_node *node = ucm_files_node_of(daemon, ino);
	struct ucm_files_lock lock;
	struct ucm_files found;
	char path[PATH_MAX];
	int err =
		node->is_dir ? -ENOENT : files_change_open(daemon, ino, change);

	if (err != -ENOENT)
		return err;
	err = ucm_files_lock_node(&daemon->nodes, node, &lock, path);
	if (err == -ESTALE && node->fd >= 0)
		return files_change_gone(node, change);
	if (err)
		return err;
	err = ucm_files_find(&daemon->file_tree, path,
			     node->is_dir ? UCM_FILES_NOWHERE : node->dir,
			     &found);
	if (!err)
		err = ucm_files_change(&daemon->file_tree, path, &found,
				       change);
	ucm_files_unlock(&lock);
	return err == -ENOENT ? -ESTALE : err;
}

static int files_setattr(struct ucm_account *account, fuse_ino_t ino,
			 const struct stat *attr, int to_set)
{
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_files_change change = {
		.mode_set = to_set & FUSE_SET_ATTR_MODE,
		.size_set = to_set & FUSE_SET_ATTR_SIZE,
		.times_set = to_set & UCM_SET_TIMES,
		.mode = attr->st_mode & 07777,
		.uid = to_set & FUSE_SET_ATTR_UID ? attr->st_uid : (uid_t)-1,
		.gid = to_set & FUSE_SET_ATTR_GID ? attr->st_gid : (gid_t)-1,
		.size = attr->st_size,
	};

	/* the owner of files/ is an option, if it is one */
	if (ino == TREE_ROOT &&
	    ((change.uid != (uid_t)-1 && daemon->options->has_uid) ||
	     (change.gid != (gid_t)-1 && daemon->options->has_gid)))
		return -EPERM;
	ucm_attr_times(attr, to_set, change.times);
	return files_change(daemon, ino, &change);
}

/* ---- names ---- */

/* An entry for what was found or made under a name, which is locked. */
static int files_enter(struct ucm_daemon *daemon, struct ucm_files_node *parent,
		       const char *name, const struct ucm_files *found,
		       struct fuse_entry_param *out)
{
	struct ucm_files_node *node = ucm_files_looked_up(
		&daemon->nodes, parent, name, S_ISDIR(found->st.st_mode),
		ucm_files_ino(&daemon->file_tree, found), found->dir);

	if (!node)
		return -ENOMEM;
	*out = (struct fuse_entry_param){
		.ino = ucm_files_ino_of(daemon, node),
		.generation = 1,
		.attr_timeout = files_timeout(daemon),
		.entry_timeout = files_timeout(daemon),
	};
	files_fill_attr(daemon, node, &found->st, &out->attr);
	return 0;
}

/* The kernel looks up what it is about to make, and does not say so. So while a
 * directory does not answer, a name is absent that nobody knows, or nothing
 * could be made; the kernel asks again each time. */
static int files_find_name(struct ucm_daemon *daemon,
			   struct ucm_files_node *folder, const char *name,
			   const char *path, struct ucm_files *found,
			   struct fuse_entry_param *out)
{
	struct ucm_files_child child;
	bool unsure;
	int err;

	if (ucm_files_child(&daemon->nodes, folder, name, &child)) {
		err = ucm_files_find(&daemon->file_tree, path,
				     child.is_dir ? UCM_FILES_NOWHERE
						  : child.dir,
				     found);
		if (err == UCM_FILES_SILENT)
			ucm_files_keep(&daemon->nodes, folder, name);
		return err;
	}
	err = ucm_files_find_unknown(&daemon->file_tree, path, found, &unsure);
	if (unsure)
		out->entry_timeout = 0;
	return err;
}

static int files_lookup(struct ucm_account *account, fuse_ino_t parent,
			const char *name, struct fuse_entry_param *out)
{
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_files_node *folder = ucm_files_node_of(daemon, parent);
	struct ucm_files_lock lock;
	struct ucm_files found;
	char path[PATH_MAX];
	double timeout = files_timeout(daemon);
	int err;

	*out = (struct fuse_entry_param){ .entry_timeout =
						  timeout < SHORT_TIMEOUT_S
							  ? timeout
							  : SHORT_TIMEOUT_S };
	err = ucm_files_lock_name(&daemon->nodes, folder, name, &lock, path);
	if (err)
		return err;
	err = files_find_name(daemon, folder, name, path, &found, out);
	if (!err)
		err = files_enter(daemon, folder, name, &found, out);
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
	return files_attr_by_name(daemon, &daemon->nodes.root, &out->attr);
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

/* -EINPROGRESS: a marked folder is to be removed or renamed, or one above it,
 * and this thread must not wait for the note. */
static int files_wait_for_marks(struct ucm_daemon *daemon,
				struct ucm_files_node *folder, const char *name)
{
	char path[PATH_MAX];

	if (ucm_files_path(&daemon->nodes, folder, name, path) ||
	    !ucm_files_quota_is_in(&daemon->file_tree, path))
		return 0;
	return ucm_wait_long_for_any(&daemon->store->dirs);
}

static int files_mkdir(struct ucm_account *account, fuse_ino_t parent,
		       const char *name, mode_t mode,
		       struct fuse_entry_param *out)
{
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_files_node *folder = ucm_files_node_of(daemon, parent);
	struct ucm_files_owner owner = files_owner(account->req, mode);
	struct ucm_files_lock lock;
	struct ucm_files made;
	char path[PATH_MAX];
	int err = files_wait_for_marks(daemon, folder, name);

	if (!err)
		err = ucm_files_lock_name(&daemon->nodes, folder, name, &lock,
					  path);
	if (err)
		return err;
	err = ucm_files_mkdir(&daemon->file_tree, path, &owner, &made);
	if (!err)
		err = files_enter(daemon, folder, name, &made, out);
	ucm_files_unlock(&lock);
	return err;
}

static int files_mknod(struct ucm_account *account, fuse_ino_t parent,
		       const char *name, mode_t mode,
		       struct fuse_entry_param *out)
{
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_files_node *folder = ucm_files_node_of(daemon, parent);
	struct ucm_files_owner owner = files_owner(account->req, mode);
	_cleanup_fd_ int fd = -1;
	struct ucm_files_lock lock;
	struct ucm_files made;
	char path[PATH_MAX];
	int err;

	if (!S_ISREG(mode))
		return -EPERM;
	err = files_wait_for_room(daemon, folder, name);
	if (err)
		return err;
	err = ucm_files_lock_name(&daemon->nodes, folder, name, &lock, path);
	if (err)
		return err;
	fd = ucm_files_create(&daemon->file_tree, path, &owner, &made);
	err = fd < 0 ? fd : files_enter(daemon, folder, name, &made, out);
	if (fd >= 0)
		ucm_files_written(&daemon->file_tree, &made, 0);
	ucm_files_unlock(&lock);
	return err;
}

static int files_symlink(struct ucm_account *account, fuse_ino_t parent,
			 const char *name, const char *target,
			 struct fuse_entry_param *out)
{
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_files_node *folder = ucm_files_node_of(daemon, parent);
	struct ucm_files_owner owner = files_owner(account->req, 0777);
	struct ucm_files_lock lock;
	struct ucm_files made;
	char path[PATH_MAX];
	int err =
		ucm_files_lock_name(&daemon->nodes, folder, name, &lock, path);

	if (err)
		return err;
	owner.target = target;
	err = ucm_files_symlink(&daemon->file_tree, path, &owner, &made);
	if (!err)
		err = files_enter(daemon, folder, name, &made, out);
	ucm_files_unlock(&lock);
	return err;
}

static int files_readlink(struct ucm_account *account, fuse_ino_t ino,
			  char *target)
{
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_files_node *node = ucm_files_node_of(daemon, ino);
	struct ucm_files_lock lock;
	char path[PATH_MAX];
	int err = node->is_dir ? -EINVAL
			       : ucm_files_lock_node(&daemon->nodes, node,
						     &lock, path);

	/* removed, and known to somebody */
	if (err == -ESTALE && node->fd >= 0)
		return ucm_os_readlink(node->fd, "", target, PATH_MAX);
	if (err)
		return err;
	err = ucm_files_readlink(&daemon->file_tree, path, node->dir, target);
	ucm_files_unlock(&lock);
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
	ucm_files_account(&daemon->file_tree, file->dir, path,
			  (int64_t)(bytes - file->counted));
	file->counted = bytes;
}

/* What it has on disk is what must be counted now. */
static void files_settle(struct ucm_daemon *daemon,
			 const struct ucm_files_node *node)
{
	struct ucm_handle *file =
		ucm_handle_get(daemon, ucm_files_ino_of(daemon, node));

	if (!file)
		return;
	pthread_mutex_lock(&file->lock);
	if (file->fd >= 0 && file->writes)
		files_count_growth(daemon, file);
	pthread_mutex_unlock(&file->lock);
	ucm_handle_put(daemon, file);
}

/* A name is removed: a descriptor for those who know what it leads to, or -1.
 * Whoever has looked up a file can open it, as on any file system. */
static int files_before_removal(struct ucm_daemon *daemon,
				struct ucm_files_node *folder, const char *name,
				const char *path)
{
	struct ucm_files_child child;

	if (!ucm_files_child(&daemon->nodes, folder, name, &child))
		return -1;
	if (!child.is_dir)
		files_settle(daemon, child.node);
	return ucm_os_open(ucm_files_fd(&daemon->file_tree, child.dir), path,
			   O_PATH, 0);
}

/* A file that is known to lie where no answer comes from cannot be removed,
 * renamed or replaced: whatever other directories have of its name, it
 * hides. */
static int files_check_known(struct ucm_daemon *daemon,
			     struct ucm_files_node *folder, const char *name,
			     const char *path)
{
	struct ucm_files_child child;
	struct stat st;
	int err;

	if (!ucm_files_child(&daemon->nodes, folder, name, &child) ||
	    child.is_dir ||
	    !ucm_files_is_silent(&daemon->file_tree, child.dir))
		return 0;
	err = ucm_files_look(&daemon->file_tree, child.dir, path, &st);
	return err == UCM_FILES_SILENT ? err : 0;
}

/* err: what came of it. */
static void files_after_removal(struct ucm_daemon *daemon,
				struct ucm_files_node *folder, const char *name,
				int fd, int err)
{
	if (!err || err == -ENOENT)
		ucm_files_removed(&daemon->nodes, folder, name, fd);
	else
		ucm_os_close(fd);
}

typedef int files_lock_fn(struct ucm_files_nodes *nodes,
			  struct ucm_files_node *folder, const char *name,
			  struct ucm_files_lock *lock, char *path);
typedef int files_remove_fn(struct ucm_files_tree *tree, const char *path);

static int files_remove(struct ucm_daemon *daemon, fuse_ino_t parent,
			const char *name, files_lock_fn *lock_it,
			files_remove_fn *remove_it)
{
	struct ucm_files_node *folder = ucm_files_node_of(daemon, parent);
	struct ucm_files_lock lock;
	char path[PATH_MAX];
	int err = files_wait_for_marks(daemon, folder, name);
	int fd;

	if (!err)
		err = lock_it(&daemon->nodes, folder, name, &lock, path);
	if (err)
		return err;
	err = files_check_known(daemon, folder, name, path);
	if (!err) {
		fd = files_before_removal(daemon, folder, name, path);
		err = remove_it(&daemon->file_tree, path);
		files_after_removal(daemon, folder, name, fd, err);
	}
	ucm_files_unlock(&lock);
	return err;
}

static int files_rmdir(struct ucm_account *account, fuse_ino_t parent,
		       const char *name)
{
	return files_remove(account->daemon, parent, name, ucm_files_lock_tree,
			    ucm_files_rmdir);
}

static int files_unlink(struct ucm_account *account, fuse_ino_t parent,
			const char *name)
{
	return files_remove(account->daemon, parent, name, ucm_files_lock_name,
			    ucm_files_unlink);
}

static int files_rename_pair(struct ucm_daemon *daemon,
			     const struct ucm_files_pair *pair, bool noreplace)
{
	struct ucm_files_child child;
	char *copy;
	unsigned dir;
	int fd, err = 0;

	for (unsigned i = 0; i < 2 && !err; i++)
		err = files_check_known(daemon, pair->parent[i], pair->name[i],
					pair->path[i]);
	copy = err ? NULL : strdup(pair->name[1]);
	if (!copy)
		return err ? err : -ENOMEM;
	if (ucm_files_child(&daemon->nodes, pair->parent[0], pair->name[0],
			    &child) &&
	    !child.is_dir)
		files_settle(daemon, child.node);
	fd = files_before_removal(daemon, pair->parent[1], pair->name[1],
				  pair->path[1]);
	err = ucm_files_rename(&daemon->file_tree, pair->path[0], pair->path[1],
			       noreplace, &dir);
	if (!err) {
		ucm_files_renamed(&daemon->nodes, pair, copy, dir, fd);
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
	struct ucm_files_lock lock;
	struct ucm_files_pair pair;
	int err;

	if (flags & ~(unsigned)RENAME_NOREPLACE)
		return -EINVAL;
	pair.parent[0] = ucm_files_node_of(daemon, parent);
	pair.parent[1] = ucm_files_node_of(daemon, newparent);
	pair.name[0] = name;
	pair.name[1] = newname;
	err = files_wait_for_marks(daemon, pair.parent[0], name);
	if (!err)
		err = files_wait_for_marks(daemon, pair.parent[1], newname);
	if (err)
		return err;
	err = ucm_files_lock_pair(&daemon->nodes, &pair, &lock);
	if (err)
		return err;
	err = files_rename_pair(daemon, &pair, flags & RENAME_NOREPLACE);
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

	if (daemon->store->dirs.at[file->dir]->readonly ||
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
			     unsigned dir, const struct stat *st, bool writes)
{
	struct ucm_daemon *daemon = ucm_daemon_of(req);

	ucm_files_hold(&daemon->nodes, ucm_files_node_of(daemon, file->node));
	file->fd = fd;
	file->dir = (uint8_t)dir;
	file->size = (uint64_t)st->st_size;
	file->counted = ucm_file_takes(st);
	file->promise = NULL;
	file->writes = writes;
	file->told_at_close = ucm_daemon_of(req)->store->dirs.at[dir]->remote;
	file->shared_write = false;
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
	struct ucm_files made;
	int fd = ucm_files_create(&daemon->file_tree, path, &owner, &made);
	int err = fd < 0 ? fd : files_enter(daemon, folder, name, &made, out);

	if (!err) {
		file = ucm_handle_open(daemon, &files_handle, out->ino);
		if (!file) {
			files_forget(daemon, out->ino, 1);
			err = -ENOMEM;
		}
	}
	if (err) {
		if (fd >= 0) {
			ucm_files_written(&daemon->file_tree, &made, 0);
			ucm_os_close(fd);
		}
		return err;
	}
	pthread_mutex_lock(&file->lock);
	files_begin_file(req, file, fd, made.dir, &made.st, true);
	file->counted = 0; /* nothing of it is, yet */
	file->promise = made.promise;
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

	if (daemon->store->dirs.at[file->dir]->readonly)
		return -EROFS;
	fd = ucm_os_reopen(file->fd, O_RDWR);
	if (fd < 0)
		return fd;
	if (daemon->store->dirs.at[file->dir]->guard) {
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

static int files_reopen_gone(const struct ucm_files_node *node, int flags,
			     struct stat *st)
{
	int fd, err;

	if (node->fd < 0)
		return -ESTALE;
	fd = ucm_os_reopen(node->fd, flags);
	err = fd < 0 ? fd : ucm_os_fstat(fd, st);
	if (err && fd >= 0)
		ucm_os_close(fd);
	return err ? err : fd;
}

/* path: NULL if it is gone. What was looked up is opened and nothing else: of
 * another file, put there by others, the kernel remembers nothing that is
 * right. It looks again then. */
static int files_open_first(struct ucm_daemon *daemon,
			    const struct ucm_files_node *node, const char *path,
			    int flags, struct stat *st)
{
	struct ucm_files opened = { .dir = node->dir };
	int fd;

	if (!path)
		return files_reopen_gone(node, flags, st);
	fd = ucm_files_open(&daemon->file_tree, path, node->dir, flags, st);
	if (fd < 0)
		return fd;
	opened.st = *st;
	if (ucm_files_ino(&daemon->file_tree, &opened) == node->ino)
		return fd;
	ucm_os_close(fd);
	return -ESTALE;
}

/* Under file->lock. */
static int files_open_locked(fuse_req_t req, struct ucm_files_node *node,
			     struct ucm_handle *file, const char *path,
			     struct fuse_file_info *fi)
{
	struct ucm_daemon *daemon = ucm_daemon_of(req);
	bool writes = ucm_open_changes(fi);
	struct stat st;
	int fd, err = 0;

	if (!file->opens) {
		fd = files_open_first(daemon, node, path,
				      writes ? O_RDWR : O_RDONLY, &st);
		if (fd < 0)
			return fd;
		files_begin_file(req, file, fd, node->dir, &st, writes);
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
			   const char *path, struct fuse_file_info *fi)
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
		err = files_open_locked(req, node, file, path, fi);
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
	struct ucm_files_lock lock;
	char path[PATH_MAX];
	int err;

	if (node->is_dir)
		return -EISDIR;
	err = ucm_files_lock_node(&daemon->nodes, node, &lock, path);
	if (err == -ESTALE)
		return files_open_node(account->req, node, NULL, fi);
	if (err)
		return err;
	err = files_open_node(account->req, node, path, fi);
	ucm_files_unlock(&lock);
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
	struct ucm_files made = { .dir = file->dir, .promise = file->promise };
	int err = ucm_wait_for(&daemon->store->dirs, file->dir);

	if (err)
		return err;
	if (file->writes)
		files_count_growth(daemon, file);
	files_note_use(daemon, file);
	ucm_files_written(&daemon->file_tree, &made,
			  file->writes ? file->counted : 0);
	file->promise = NULL;
	/* stores through a mapping change times that the kernel remembers */
	if (file->shared_write && file->backing_id)
		ucm_notify_attr(daemon, file->node);
	ucm_files_forget(&daemon->nodes, node, 1);
	return 0;
}

/* ---- folders ---- */

/* An open folder: its names as they were when it was read from its start. */
struct folder {
	struct ucm_files_names names;
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

	ucm_files_names_free(&folder->names);
	free(folder);
}

static int files_list_again(struct ucm_daemon *daemon, fuse_ino_t ino,
			    struct folder *folder)
{
	struct ucm_files_lock lock;
	char path[PATH_MAX];
	int err = ucm_files_lock_node(&daemon->nodes,
				      ucm_files_node_of(daemon, ino), &lock,
				      path);

	if (err)
		return -ENOENT;
	ucm_files_names_free(&folder->names);
	err = ucm_files_list(&daemon->file_tree, path, &folder->names);
	folder->listed = !err;
	ucm_files_unlock(&lock);
	return err;
}

/* Entry number off, "." and ".." being the first; false after the last. Its
 * name is looked up when it is asked for. */
static bool files_name_at(struct ucm_daemon *daemon, fuse_ino_t ino,
			  const struct folder *folder, off_t off,
			  const char **name, struct stat *out)
{
	const struct ucm_files_name *listed;

	*out = (struct stat){ 0 };
	if (off < 2) {
		*name = off ? ".." : ".";
		out->st_ino = ucm_files_node_of(daemon, ino)->ino;
		out->st_mode = S_IFDIR;
		return true;
	}
	if ((size_t)off - 2 >= folder->names.num)
		return false;
	listed = &folder->names.list[off - 2];
	*name = listed->name;
	out->st_ino = listed->ino;
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
	struct ucm_files_lock lock;
	char path[PATH_MAX];
	int err = ucm_files_lock_node(&daemon->nodes,
				      ucm_files_node_of(daemon, ino), &lock,
				      path);

	if (err)
		return err == -ESTALE ? 0 : err; /* there is nothing to sync */
	err = ucm_files_sync_dir(&daemon->file_tree, path);
	ucm_files_unlock(&lock);
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

/* Else stat(2) would go on to find it, from the kernel's memory. */
static void files_evicted(void *arg, const struct ucm_files_node *node)
{
	struct ucm_daemon *daemon = arg;

	ucm_notify_attr(daemon, ucm_files_ino_of(daemon, node));
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
	.removed = files_evicted,
	.settle = files_settle_all,
};

/* In a marked folder df shows its quota. */
static void files_narrow(struct ucm_daemon *daemon, fuse_ino_t ino,
			 struct statvfs *st)
{
	struct ucm_files_mark_info mark;
	char path[PATH_MAX];

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
	.asks_all = true,
	.xattrs = ucm_files_xattrs,
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
	.unlink = files_unlink,
	.rmdir = files_rmdir,
	.rename = files_rename,
	.open = files_open,
	.readlink = files_readlink,
};
