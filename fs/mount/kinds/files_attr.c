/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files_attr.c - the file of a node of files/, and its attributes.
 */
#include <config.h>

#include "fs/mount/kinds/files_kind.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/osfile.h"

double ucm_files_timeout(const struct ucm_daemon *daemon)
{
	double timeout = daemon->options->entry_timeout_s;

	return daemon->file_tree.at->medium.remote &&
			       timeout > UCM_FILES_SHORT_TIMEOUT_S
		       ? UCM_FILES_SHORT_TIMEOUT_S
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

void ucm_files_let_go(struct ucm_files_held *held)
{
	if (held->owned)
		ucm_os_close(held->fd);
	if (held->lock.nodes)
		ucm_files_unlock(&held->lock);
}

/* ---- attributes ---- */

void ucm_files_fill_attr(struct ucm_daemon *daemon,
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

int ucm_files_op_getattr(struct ucm_daemon *daemon, fuse_ino_t ino,
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
		ucm_files_fill_attr(daemon, node, &held.st, out);
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
	err = ucm_handle_lock(file);
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

int ucm_files_op_setattr(struct ucm_account *account, fuse_ino_t ino,
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
	if (node == &daemon->nodes.root &&
	    ((uid != (uid_t)-1 && options->uid != UCM_LEFT_OUT) ||
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

/* df shows what the directory has, and in a marked folder its quota. */
void ucm_files_op_narrow(struct ucm_daemon *daemon, fuse_ino_t ino,
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
