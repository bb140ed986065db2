/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files_open.c - open files of files/, and what they have grown by.
 *
 * What a file takes counts for the quotas of its folders: when it is closed, when
 * its name is removed, and when somebody makes room. Under file->lock.
 */
#include <config.h>

#include "fs/mount/kinds/files_kind.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/log.h"
#include "common/osfile.h"
#include "fs/tier/wait.h"

#define USE_NS INT64_C(1000000000) /* uses are noted to the second */

static const struct ucm_handle_ops files_handle;

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
	struct ucm_files_owner owner = ucm_files_owner_of(req, mode);
	struct ucm_daemon *daemon = ucm_daemon_of(req);
	struct ucm_handle *file = NULL;
	struct stat st;
	int fd = ucm_files_create(&daemon->file_tree, path, &owner, &st);
	int err = fd < 0 ? fd : ucm_files_enter(daemon, folder, name, &st, out);

	if (!err) {
		file = ucm_handle_open(daemon, &files_handle, out->ino);
		if (!file) {
			ucm_files_forget(&daemon->nodes,
					 ucm_files_node_of(daemon, out->ino),
					 1);
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

int ucm_files_op_create(struct ucm_account *account, fuse_ino_t parent,
			const char *name, mode_t mode,
			struct fuse_file_info *fi, struct fuse_entry_param *out)
{
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_files_node *folder = ucm_files_node_of(daemon, parent);
	struct ucm_files_lock lock;
	char path[PATH_MAX];
	int err = ucm_files_wait_for_room(daemon, folder, name);

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
	err = ucm_handle_lock(file);
	if (!err) {
		err = files_open_locked(req, node, file, held, fi);
		pthread_mutex_unlock(&file->lock);
	}
	if (err)
		ucm_handle_put(daemon, file);
	return err;
}

int ucm_files_op_open(struct ucm_account *account, fuse_ino_t ino,
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
	err = ucm_wait_long(file->dir);
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

/* ---- for the quotas ---- */

void ucm_files_settle(struct ucm_daemon *daemon,
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

static const struct ucm_handle_ops files_handle = {
	.write = ucm_handle_write,
	.fallocate = files_fallocate,
	.flush = files_flush,
	.fsync = files_fsync,
	.last_close = files_last_close,
};
