/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files.c - files/ and the names in it: what is found, made, moved, removed and
 * listed under them.
 *
 * A node id is the address of a node of fs/files/node.h, 0 for files/ itself. A name
 * is locked from the look at what it leads to until the nodes know what has become
 * of it. Order of locks: a name's (node.h), file->lock, the table of the open files.
 */
#include <config.h>

#include "fs/mount/kinds/files_kind.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/cleanup.h"
#include "common/osfile.h"

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1
#endif

void ucm_files_ops_init(struct ucm_daemon *daemon)
{
	struct stat st = { 0 };

	ucm_files_look(&daemon->file_tree, UCM_FILES_ROOT, &st);
	ucm_files_nodes_init(&daemon->nodes, st.st_ino);
}

int ucm_files_enter(struct ucm_daemon *daemon, struct ucm_files_node *parent,
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
		.attr_timeout = ucm_files_timeout(daemon),
		.entry_timeout = ucm_files_timeout(daemon),
	};
	ucm_files_fill_attr(daemon, node, st, &out->attr);
	return 0;
}

static int files_lookup(struct ucm_account *account, fuse_ino_t parent,
			const char *name, struct fuse_entry_param *out)
{
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_files_node *folder = ucm_files_node_of(daemon, parent);
	double timeout = ucm_files_timeout(daemon);
	struct ucm_files_lock lock;
	char path[PATH_MAX];
	struct stat st;
	int err;

	*out = (struct fuse_entry_param){
		.entry_timeout = timeout < UCM_FILES_SHORT_TIMEOUT_S
					 ? timeout
					 : UCM_FILES_SHORT_TIMEOUT_S
	};
	err = ucm_files_lock_name(&daemon->nodes, folder, name, &lock, path);
	if (err)
		return err;
	err = ucm_files_look(&daemon->file_tree, path, &st);
	if (!err)
		err = ucm_files_enter(daemon, folder, name, &st, out);
	ucm_files_unlock(&lock);
	return err;
}

int ucm_files_wait_for_room(struct ucm_daemon *daemon,
			    struct ucm_files_node *folder, const char *name)
{
	char path[PATH_MAX];

	if (ucm_files_path(&daemon->nodes, folder, name, path))
		return 0; /* the lock says why */
	return ucm_files_quota_room(&daemon->file_tree, path);
}

struct ucm_files_owner ucm_files_owner_of(fuse_req_t req, mode_t mode)
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
		rc = ucm_files_enter(daemon, folder, name, &st, out);
	ucm_files_unlock(&lock);
	return rc;
}

static int files_mkdir(struct ucm_account *account, fuse_ino_t parent,
		       const char *name, mode_t mode,
		       struct fuse_entry_param *out)
{
	struct ucm_files_owner owner = ucm_files_owner_of(account->req, mode);

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
	struct ucm_files_owner owner = ucm_files_owner_of(account->req, mode);
	int err = S_ISREG(mode) ? ucm_files_wait_for_room(daemon, folder, name)
				: -EPERM;

	return err ? err
		   : files_make(daemon, folder, name, &owner, ucm_files_create,
				out);
}

static int files_symlink(struct ucm_account *account, fuse_ino_t parent,
			 const char *name, const char *target,
			 struct fuse_entry_param *out)
{
	struct ucm_files_owner owner = ucm_files_owner_of(account->req, 0777);

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

	if (held->lock.nodes) /* each lock is taken once */
		ucm_files_unlock(&held->lock);
	held->lock.nodes = NULL;
	err = ucm_files_lock_name(&daemon->nodes, folder, name, &lock, path);
	if (err)
		return err;
	err = ucm_files_link(&daemon->file_tree, held->fd, path, &st);
	if (!err)
		err = ucm_files_enter(daemon, folder, name, &st, out);
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
	int err = ucm_files_wait_for_room(daemon, folder, newname);

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

/* What a name leads to, with what it has on disk counted. */
static int files_look_settled(struct ucm_daemon *daemon, const char *path,
			      struct stat *st)
{
	int err = ucm_files_look(&daemon->file_tree, path, st);
	const struct ucm_files_node *node =
		err ? NULL : ucm_files_known(&daemon->nodes, st->st_ino);

	if (!node)
		return err;
	ucm_files_settle(daemon, node);
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

int ucm_files_ops_root(struct ucm_daemon *daemon, struct fuse_entry_param *out)
{
	*out = (struct fuse_entry_param){
		.ino = UCM_FILES_NODE_ROOT,
		.generation = 1,
		.attr_timeout = ucm_files_timeout(daemon),
		.entry_timeout = ucm_files_timeout(daemon),
	};
	return ucm_files_op_getattr(daemon, UCM_FILES_NODE_ROOT, &out->attr);
}

static void files_forget(struct ucm_daemon *daemon, fuse_ino_t ino,
			 uint64_t lookups)
{
	ucm_files_forget(&daemon->nodes, ucm_files_node_of(daemon, ino),
			 lookups);
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

const struct ucm_node_ops ucm_files_ops = {
	.timeout = ucm_files_timeout,
	.remembers_absence = true,
	.moved_by_copy = true,
	.xattrs = ucm_files_xattrs,
	.get_xattr = ucm_files_get_xattr,
	.list_xattrs = ucm_files_list_xattrs,
	.set_xattr = ucm_files_set_xattr,
	.narrow = ucm_files_op_narrow,
	.getattr = ucm_files_op_getattr,
	.setattr = ucm_files_op_setattr,
	.forget = files_forget,
	.lookup = files_lookup,
	.readdir = files_readdir,
	.opendir = files_opendir,
	.releasedir = files_releasedir,
	.fsyncdir = files_fsyncdir,
	.create = ucm_files_op_create,
	.mkdir = files_mkdir,
	.mknod = files_mknod,
	.symlink = files_symlink,
	.link = files_link,
	.unlink = files_unlink,
	.rmdir = files_rmdir,
	.rename = files_rename,
	.open = ucm_files_op_open,
	.readlink = files_readlink,
};
