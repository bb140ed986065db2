/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops_files.c - the FUSE operations in files/.
 *
 * A node id is the address of a node, 0 for files/ itself. Order of locks: a
 * name's (node.h), file->lock, the table of the open files.
 */
#include <config.h>

#include "fs/mount/ops_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/log.h"
#include "common/osfile.h"

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1
#endif

/* Where other machines may change a tier, and for names that are not there. */
#define SHORT_TIMEOUT_S 1.0

static struct ucm_files_node *node_of(struct ucm_daemon *daemon, fuse_ino_t ino)
{
	uint64_t value = ucm_node_value(ino);

	return value ? (struct ucm_files_node *)(uintptr_t)value
		     : &daemon->plain.root;
}

static fuse_ino_t ino_of(struct ucm_daemon *daemon,
			 const struct ucm_files_node *node)
{
	return node == &daemon->plain.root
		       ? UCM_FILES_ROOT_NODE
		       : ucm_node_make(UCM_NODE_PLAIN, (uintptr_t)node);
}

static bool wants_write(const struct fuse_file_info *fi)
{
	return (fi->flags & O_ACCMODE) != O_RDONLY || fi->flags & O_TRUNC;
}

int ucm_files_ops_init(struct ucm_daemon *daemon)
{
	struct ucm_files root;
	int err = ucm_files_nodes_init(&daemon->plain);

	if (!err && !ucm_files_find(daemon->set, UCM_FILES_ROOT,
				    UCM_FILES_NOWHERE, &root))
		daemon->plain.root.ino = ucm_files_ino(daemon->set, &root);
	return err;
}

double ucm_files_timeout(const struct ucm_daemon *daemon)
{
	double timeout = daemon->options->entry_timeout_s;

	for (unsigned i = 0; i < daemon->set->num_dirs; i++) {
		if (daemon->set->dirs[i]->remote && timeout > SHORT_TIMEOUT_S)
			return SHORT_TIMEOUT_S;
	}
	return timeout;
}

/* ---- attributes ---- */

static void fill_attr(struct ucm_daemon *daemon,
		      const struct ucm_files_node *node, const struct stat *st,
		      struct stat *out)
{
	const struct ucm_options *options = daemon->options;

	*out = *st;
	out->st_ino = node->ino;
	out->st_nlink = 1; /* the folders in a folder are not counted */
	out->st_blksize = UCM_BLOCK_PAGE;
	if (node != &daemon->plain.root)
		return;
	if (options->has_uid)
		out->st_uid = options->uid;
	if (options->has_gid)
		out->st_gid = options->gid;
}

static int attr_by_name(struct ucm_daemon *daemon, struct ucm_files_node *node,
			struct stat *out)
{
	struct ucm_files_lock lock;
	struct ucm_files found;
	char path[PATH_MAX];
	int err = ucm_files_lock_node(&daemon->plain, node, &lock, path);

	if (err)
		return err;
	err = ucm_files_find(daemon->set, path,
			     node->is_dir ? UCM_FILES_NOWHERE : node->dir,
			     &found);
	ucm_files_unlock(&lock);
	if (err)
		return err == -ENOENT ? -ESTALE : err;
	if (S_ISDIR(found.st.st_mode) != node->is_dir ||
	    (!node->is_dir && ucm_files_ino(daemon->set, &found) != node->ino))
		return -ESTALE;
	fill_attr(daemon, node, &found.st, out);
	return 0;
}

/* -ENOENT: nobody has it open. */
static int attr_of_open(struct ucm_daemon *daemon, struct ucm_files_node *node,
			struct stat *out)
{
	struct ucm_handle *file = ucm_handle_get(daemon, ino_of(daemon, node));
	struct stat st;
	int err;

	if (!file)
		return -ENOENT;
	pthread_mutex_lock(&file->lock);
	err = file->fd < 0 ? -ENOENT : ucm_os_fstat(file->fd, &st);
	pthread_mutex_unlock(&file->lock);
	ucm_handle_put(daemon, file);
	if (!err)
		fill_attr(daemon, node, &st, out);
	return err;
}

/* Its descriptor tells: of a removed folder as well, which may be the working
 * directory of somebody. */
static int attr_of_gone(struct ucm_daemon *daemon, struct ucm_files_node *node,
			struct stat *out)
{
	struct stat st;
	int err = node->fd < 0 ? -ESTALE : ucm_os_fstat(node->fd, &st);

	if (!err)
		fill_attr(daemon, node, &st, out);
	return err;
}

int ucm_files_op_attr(struct ucm_daemon *daemon, fuse_ino_t ino,
		      struct stat *out)
{
	struct ucm_files_node *node = node_of(daemon, ino);
	int err = node->is_dir ? -ENOENT : attr_of_open(daemon, node, out);
	bool gone;

	if (err == -ENOENT)
		err = attr_by_name(daemon, node, out);
	gone = ucm_files_is_gone(&daemon->plain, node);
	if (err == -ESTALE && gone)
		err = attr_of_gone(daemon, node, out);
	if (!err && gone)
		out->st_nlink = 0;
	return err;
}

/* Through its descriptor, if that will do; -ENOENT if not. */
static int change_open(struct ucm_daemon *daemon, fuse_ino_t ino,
		       const struct ucm_files_change *change)
{
	struct ucm_handle *file = ucm_handle_get(daemon, ino);
	int err = -ENOENT;

	if (!file)
		return err;
	pthread_mutex_lock(&file->lock);
	if (file->fd >= 0 && (file->writes || !change->size_set))
		err = ucm_files_change_fd(file->fd, change);
	pthread_mutex_unlock(&file->lock);
	ucm_handle_put(daemon, file);
	return err;
}

/* A link cannot be opened, and has neither mode nor size to change. */
static int change_gone(const struct ucm_files_node *node,
		       const struct ucm_files_change *change)
{
	_cleanup_fd_ int fd = -1;

	if (!change->size_set && !change->mode_set)
		return ucm_files_change_fd(node->fd, change);
	fd = ucm_os_reopen(node->fd, change->size_set ? O_WRONLY : O_RDONLY);
	return fd < 0 ? fd : ucm_files_change_fd(fd, change);
}

int ucm_files_op_change(struct ucm_daemon *daemon, fuse_ino_t ino,
			const struct ucm_files_change *change)
{
	struct ucm_files_node *node = node_of(daemon, ino);
	struct ucm_files_lock lock;
	struct ucm_files found;
	char path[PATH_MAX];
	int err = node->is_dir ? -ENOENT : change_open(daemon, ino, change);

	if (err != -ENOENT)
		return err;
	err = ucm_files_lock_node(&daemon->plain, node, &lock, path);
	if (err == -ESTALE && node->fd >= 0)
		return change_gone(node, change);
	if (err)
		return err;
	err = ucm_files_find(daemon->set, path,
			     node->is_dir ? UCM_FILES_NOWHERE : node->dir,
			     &found);
	if (!err)
		err = ucm_files_change(daemon->set, path, &found, change);
	ucm_files_unlock(&lock);
	return err == -ENOENT ? -ESTALE : err;
}

int ucm_files_op_where(struct ucm_daemon *daemon, fuse_ino_t ino,
		       unsigned *dir_out, char *path_out)
{
	struct ucm_files_node *node = node_of(daemon, ino);
	struct ucm_files_lock lock;
	int err;

	if (node->is_dir)
		return -ENODATA;
	err = ucm_files_lock_node(&daemon->plain, node, &lock, path_out);
	if (err)
		return err;
	*dir_out = node->dir;
	ucm_files_unlock(&lock);
	return 0;
}

/* ---- names ---- */

/* An entry for what was found or made under a name, which is locked. */
static int enter(struct ucm_daemon *daemon, struct ucm_files_node *parent,
		 const char *name, const struct ucm_files *plain,
		 struct fuse_entry_param *out)
{
	struct ucm_files_node *node = ucm_files_looked_up(
		&daemon->plain, parent, name, S_ISDIR(plain->st.st_mode),
		ucm_files_ino(daemon->set, plain), plain->dir);

	if (!node)
		return -ENOMEM;
	*out = (struct fuse_entry_param){
		.ino = ino_of(daemon, node),
		.generation = 1,
		.attr_timeout = ucm_files_timeout(daemon),
		.entry_timeout = ucm_files_timeout(daemon),
	};
	fill_attr(daemon, node, &plain->st, &out->attr);
	return 0;
}

/* Where to look for it first. */
static unsigned hint_for(struct ucm_daemon *daemon,
			 struct ucm_files_node *parent, const char *name)
{
	struct ucm_files_child child;

	return ucm_files_child(&daemon->plain, parent, name, &child) &&
			       !child.is_dir
		       ? child.dir
		       : UCM_FILES_NOWHERE;
}

int ucm_files_op_lookup(struct ucm_daemon *daemon, fuse_ino_t parent,
			const char *name, struct fuse_entry_param *out)
{
	struct ucm_files_node *folder = node_of(daemon, parent);
	struct ucm_files_lock lock;
	struct ucm_files found;
	char path[PATH_MAX];
	double timeout = ucm_files_timeout(daemon);
	int err;

	*out = (struct fuse_entry_param){
		.entry_timeout = timeout < SHORT_TIMEOUT_S ? timeout
							   : SHORT_TIMEOUT_S
	};
	err = ucm_files_lock_name(&daemon->plain, folder, name, &lock, path);
	if (err)
		return err;
	err = ucm_files_find(daemon->set, path, hint_for(daemon, folder, name),
			     &found);
	if (!err)
		err = enter(daemon, folder, name, &found, out);
	ucm_files_unlock(&lock);
	return err;
}

int ucm_files_op_root(struct ucm_daemon *daemon, struct fuse_entry_param *out)
{
	*out = (struct fuse_entry_param){
		.ino = UCM_FILES_ROOT_NODE,
		.generation = 1,
		.attr_timeout = ucm_files_timeout(daemon),
		.entry_timeout = ucm_files_timeout(daemon),
	};
	return attr_by_name(daemon, &daemon->plain.root, &out->attr);
}

void ucm_files_op_forget(struct ucm_daemon *daemon, fuse_ino_t ino,
			 uint64_t lookups)
{
	ucm_files_forget(&daemon->plain, node_of(daemon, ino), lookups);
}

static struct ucm_files_owner owner_of(fuse_req_t req, mode_t mode)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);

	return (struct ucm_files_owner){
		.uid = ctx->uid,
		.gid = ctx->gid,
		.mode = mode & ~ctx->umask & 07777,
	};
}

int ucm_files_op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name,
		       mode_t mode, struct fuse_entry_param *out)
{
	struct ucm_daemon *daemon = ucm_daemon_of(req);
	struct ucm_files_node *folder = node_of(daemon, parent);
	struct ucm_files_owner owner = owner_of(req, mode);
	struct ucm_files_lock lock;
	struct ucm_files made;
	char path[PATH_MAX];
	int err =
		ucm_files_lock_name(&daemon->plain, folder, name, &lock, path);

	if (err)
		return err;
	err = ucm_files_mkdir(daemon->set, path, &owner, &made);
	if (!err)
		err = enter(daemon, folder, name, &made, out);
	ucm_files_unlock(&lock);
	return err;
}

int ucm_files_op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name,
		       mode_t mode, struct fuse_entry_param *out)
{
	struct ucm_daemon *daemon = ucm_daemon_of(req);
	struct ucm_files_node *folder = node_of(daemon, parent);
	struct ucm_files_owner owner = owner_of(req, mode);
	_cleanup_fd_ int fd = -1;
	struct ucm_files_lock lock;
	struct ucm_files made;
	char path[PATH_MAX];
	int err;

	if (!S_ISREG(mode))
		return -EPERM;
	err = ucm_files_lock_name(&daemon->plain, folder, name, &lock, path);
	if (err)
		return err;
	fd = ucm_files_create(daemon->set, path, &owner, &made);
	err = fd < 0 ? fd : enter(daemon, folder, name, &made, out);
	if (fd >= 0)
		ucm_files_written(daemon->set, &made, 0);
	ucm_files_unlock(&lock);
	return err;
}

int ucm_files_op_symlink(fuse_req_t req, fuse_ino_t parent, const char *name,
			 const char *target, struct fuse_entry_param *out)
{
	struct ucm_daemon *daemon = ucm_daemon_of(req);
	struct ucm_files_node *folder = node_of(daemon, parent);
	struct ucm_files_owner owner = owner_of(req, 0777);
	struct ucm_files_lock lock;
	struct ucm_files made;
	char path[PATH_MAX];
	int err =
		ucm_files_lock_name(&daemon->plain, folder, name, &lock, path);

	if (err)
		return err;
	owner.target = target;
	err = ucm_files_symlink(daemon->set, path, &owner, &made);
	if (!err)
		err = enter(daemon, folder, name, &made, out);
	ucm_files_unlock(&lock);
	return err;
}

int ucm_files_op_readlink(struct ucm_daemon *daemon, fuse_ino_t ino,
			  char *target)
{
	struct ucm_files_node *node = node_of(daemon, ino);
	struct ucm_files_lock lock;
	char path[PATH_MAX];
	int err = node->is_dir ? -EINVAL
			       : ucm_files_lock_node(&daemon->plain, node,
						     &lock, path);

	if (err == -ESTALE && node->fd >= 0) /* removed, and known to somebody */
		return ucm_os_readlink(node->fd, "", target, PATH_MAX);
	if (err)
		return err;
	err = ucm_files_readlink(daemon->set, path, node->dir, target);
	ucm_files_unlock(&lock);
	return err;
}

/* What an open file has grown by, under file->lock. */
static void count_growth(struct ucm_daemon *daemon, struct ucm_handle *file)
{
	uint64_t bytes;
	struct stat st;

	if (ucm_os_fstat(file->fd, &st))
		return;
	bytes = ucm_file_takes(&st);
	ucm_files_account(daemon->set, file->dir,
			  (int64_t)(bytes - file->counted));
	file->counted = bytes;
}

/* What it has on disk is what must be counted now. */
static void settle(struct ucm_daemon *daemon, const struct ucm_files_node *node)
{
	struct ucm_handle *file = ucm_handle_get(daemon, ino_of(daemon, node));

	if (!file)
		return;
	pthread_mutex_lock(&file->lock);
	if (file->fd >= 0 && file->writes)
		count_growth(daemon, file);
	pthread_mutex_unlock(&file->lock);
	ucm_handle_put(daemon, file);
}

/* A name goes: a descriptor for those who know what it leads to, or -1.
 * Whoever has looked up a file can open it, as on any file system. */
static int before_it_goes(struct ucm_daemon *daemon,
			  struct ucm_files_node *folder, const char *name,
			  const char *path)
{
	struct ucm_files_child child;

	if (!ucm_files_child(&daemon->plain, folder, name, &child))
		return -1;
	if (!child.is_dir)
		settle(daemon, child.node);
	return ucm_os_open(daemon->set->dirs[child.dir]->dirfd, path, O_PATH,
			   0);
}

/* err: what came of it. */
static void has_gone(struct ucm_daemon *daemon, struct ucm_files_node *folder,
		     const char *name, int fd, int err)
{
	if (!err || err == -ENOENT)
		ucm_files_removed(&daemon->plain, folder, name, fd);
	else if (fd >= 0)
		close(fd);
}

int ucm_files_op_rmdir(struct ucm_daemon *daemon, fuse_ino_t parent,
		       const char *name)
{
	struct ucm_files_node *folder = node_of(daemon, parent);
	struct ucm_files_lock lock;
	char path[PATH_MAX];
	int err =
		ucm_files_lock_tree(&daemon->plain, folder, name, &lock, path);
	int fd;

	if (err)
		return err;
	fd = before_it_goes(daemon, folder, name, path);
	err = ucm_files_rmdir(daemon->set, path);
	has_gone(daemon, folder, name, fd, err);
	ucm_files_unlock(&lock);
	return err;
}

int ucm_files_op_unlink(struct ucm_daemon *daemon, fuse_ino_t parent,
			const char *name)
{
	struct ucm_files_node *folder = node_of(daemon, parent);
	struct ucm_files_lock lock;
	char path[PATH_MAX];
	int err =
		ucm_files_lock_name(&daemon->plain, folder, name, &lock, path);
	int fd;

	if (err)
		return err;
	fd = before_it_goes(daemon, folder, name, path);
	err = ucm_files_unlink(daemon->set, path);
	has_gone(daemon, folder, name, fd, err);
	ucm_files_unlock(&lock);
	return err;
}

static int rename_pair(struct ucm_daemon *daemon,
		       const struct ucm_files_pair *pair, bool noreplace)
{
	char *copy = strdup(pair->name[1]);
	unsigned dir;
	int fd, err;

	if (!copy)
		return -ENOMEM;
	fd = before_it_goes(daemon, pair->parent[1], pair->name[1],
			    pair->path[1]);
	err = ucm_files_rename(daemon->set, pair->path[0], pair->path[1],
			       noreplace, &dir);
	if (!err) {
		ucm_files_renamed(&daemon->plain, pair, copy, dir, fd);
		return 0;
	}
	free(copy);
	if (fd >= 0)
		close(fd);
	return err;
}

int ucm_files_op_rename(struct ucm_daemon *daemon, fuse_ino_t parent,
			const char *name, fuse_ino_t newparent,
			const char *newname, unsigned flags)
{
	struct ucm_files_lock lock;
	struct ucm_files_pair pair;
	int err;

	/* what leaves files/ or comes into it is copied by mv(1) */
	if (ucm_node_type(parent) != ucm_node_type(newparent))
		return -EXDEV;
	if (flags & ~(unsigned)RENAME_NOREPLACE)
		return -EINVAL;
	pair.parent[0] = node_of(daemon, parent);
	pair.parent[1] = node_of(daemon, newparent);
	pair.name[0] = name;
	pair.name[1] = newname;
	err = ucm_files_lock_pair(&daemon->plain, &pair, &lock);
	if (err)
		return err;
	err = rename_pair(daemon, &pair, flags & RENAME_NOREPLACE);
	ucm_files_unlock(&lock);
	return err;
}

/* ---- open files ---- */

/* A file that has its descriptor gets its first open. Under file->lock. */
static void begin_file(fuse_req_t req, struct ucm_handle *file, int fd,
		       unsigned dir, const struct stat *st, bool writes)
{
	file->fd = fd;
	file->dir = (uint8_t)dir;
	file->size = (uint64_t)st->st_size;
	file->counted = ucm_file_takes(st);
	file->promise = NULL;
	file->writes = writes;
	file->told_at_close = ucm_daemon_of(req)->set->dirs[dir]->remote;
	file->shared_write = false;
	ucm_handle_attach(req, file);
}

static int create_locked(fuse_req_t req, struct ucm_files_node *folder,
			 const char *name, const char *path, mode_t mode,
			 struct fuse_file_info *fi,
			 struct fuse_entry_param *out)
{
	struct ucm_files_owner owner = owner_of(req, mode);
	struct ucm_daemon *daemon = ucm_daemon_of(req);
	struct ucm_handle *file = NULL;
	struct ucm_files made;
	int fd = ucm_files_create(daemon->set, path, &owner, &made);
	int err = fd < 0 ? fd : enter(daemon, folder, name, &made, out);

	if (!err) {
		file = ucm_handle_open(daemon, UCM_HANDLE_PLAIN, out->ino);
		if (!file) {
			ucm_files_op_forget(daemon, out->ino, 1);
			err = -ENOMEM;
		}
	}
	if (err) {
		if (fd >= 0) {
			ucm_files_written(daemon->set, &made, 0);
			close(fd);
		}
		return err;
	}
	pthread_mutex_lock(&file->lock);
	begin_file(req, file, fd, made.dir, &made.st, true);
	file->counted = 0; /* nothing of it is, yet */
	file->promise = made.promise;
	ucm_handle_count_open(file, fi);
	pthread_mutex_unlock(&file->lock);
	return 0;
}

int ucm_files_op_create(fuse_req_t req, fuse_ino_t parent, const char *name,
			mode_t mode, struct fuse_file_info *fi,
			struct fuse_entry_param *out)
{
	struct ucm_daemon *daemon = ucm_daemon_of(req);
	struct ucm_files_node *folder = node_of(daemon, parent);
	struct ucm_files_lock lock;
	char path[PATH_MAX];
	int err =
		ucm_files_lock_name(&daemon->plain, folder, name, &lock, path);

	if (err)
		return err;
	err = create_locked(req, folder, name, path, mode, fi, out);
	ucm_files_unlock(&lock);
	/* It is there, though the kernel remembers otherwise and has not
	 * compared modes: let it look again, and open. */
	return err == -EEXIST && !(fi->flags & O_EXCL) ? -ESTALE : err;
}

/* From now on for writing as well; whoever reads with it goes on. */
static int make_writable(struct ucm_daemon *daemon, struct ucm_handle *file)
{
	int fd;

	if (daemon->set->dirs[file->dir]->readonly)
		return -EROFS;
	fd = ucm_os_reopen(file->fd, O_RDWR);
	if (fd < 0)
		return fd;
	if (dup3(fd, file->fd, O_CLOEXEC) < 0) {
		close(fd);
		return -EMFILE;
	}
	close(fd);
	file->writes = true;
	return 0;
}

static int reopen_gone(const struct ucm_files_node *node, int flags,
		       struct stat *st)
{
	int fd, err;

	if (node->fd < 0)
		return -ESTALE;
	fd = ucm_os_reopen(node->fd, flags);
	err = fd < 0 ? fd : ucm_os_fstat(fd, st);
	if (err && fd >= 0)
		close(fd);
	return err ? err : fd;
}

/* path: NULL if it is gone. What was looked up is opened and nothing else: of
 * another file, put there behind us, the kernel remembers nothing that is
 * right. It looks again then. */
static int open_first(struct ucm_daemon *daemon,
		      const struct ucm_files_node *node, const char *path,
		      int flags, struct stat *st)
{
	struct ucm_files opened = { .dir = node->dir };
	int fd;

	if (!path)
		return reopen_gone(node, flags, st);
	fd = ucm_files_open(daemon->set, path, node->dir, flags, st);
	if (fd < 0)
		return fd;
	opened.st = *st;
	if (ucm_files_ino(daemon->set, &opened) == node->ino)
		return fd;
	close(fd);
	return -ESTALE;
}

/* Under file->lock. */
static int open_locked(fuse_req_t req, struct ucm_files_node *node,
		       struct ucm_handle *file, const char *path,
		       struct fuse_file_info *fi)
{
	struct ucm_daemon *daemon = ucm_daemon_of(req);
	bool writes = wants_write(fi);
	struct stat st;
	int fd, err = 0;

	if (!file->opens) {
		fd = open_first(daemon, node, path, writes ? O_RDWR : O_RDONLY,
				&st);
		if (fd < 0)
			return fd;
		begin_file(req, file, fd, node->dir, &st, writes);
	} else if (writes && !file->writes) {
		err = make_writable(daemon, file);
	}
	if (!err && fi->flags & O_TRUNC)
		err = ucm_os_truncate(file->fd, 0);
	if (!err)
		ucm_handle_count_open(file, fi);
	else if (!file->opens)
		ucm_handle_detach(req, file);
	return err;
}

static int open_node(fuse_req_t req, struct ucm_files_node *node,
		     const char *path, struct fuse_file_info *fi)
{
	struct ucm_daemon *daemon = ucm_daemon_of(req);
	struct ucm_handle *file =
		ucm_handle_open(daemon, UCM_HANDLE_PLAIN, ino_of(daemon, node));
	int err;

	if (!file)
		return -ENOMEM;
	pthread_mutex_lock(&file->lock);
	err = open_locked(req, node, file, path, fi);
	pthread_mutex_unlock(&file->lock);
	if (err)
		ucm_handle_put(daemon, file);
	return err;
}

int ucm_files_op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct ucm_daemon *daemon = ucm_daemon_of(req);
	struct ucm_files_node *node = node_of(daemon, ino);
	struct ucm_files_lock lock;
	char path[PATH_MAX];
	int err;

	if (node->is_dir)
		return -EISDIR;
	err = ucm_files_lock_node(&daemon->plain, node, &lock, path);
	if (err == -ESTALE)
		return open_node(req, node, NULL, fi);
	if (err)
		return err;
	err = open_node(req, node, path, fi);
	ucm_files_unlock(&lock);
	return err;
}

int ucm_files_op_flush(struct ucm_daemon *daemon, struct ucm_handle *file)
{
	int err = 0;

	/* the kernel opens a file that it passes through once more, and does
	 * not tell its file system when that is closed */
	if (file->told_at_close && file->writes)
		err = ucm_os_flush(file->fd);
	if (!err)
		return 0;
	ucm_error("a file in %s/" UCM_TREE_FILES ": close: %s",
		  daemon->set->dirs[file->dir]->path, strerror(-err));
	ucm_store_count_error(daemon->set, file->dir, err);
	return err;
}

void ucm_files_last_close(struct ucm_daemon *daemon, struct ucm_handle *file)
{
	struct ucm_files made = { .dir = file->dir, .promise = file->promise };

	if (file->writes &&
	    !ucm_files_is_gone(&daemon->plain, node_of(daemon, file->node)))
		count_growth(daemon, file);
	ucm_files_written(daemon->set, &made, file->writes ? file->counted : 0);
	file->promise = NULL;
	/* stores through a mapping change times that the kernel remembers */
	if (file->shared_write && file->backing_id)
		ucm_notify_attr(daemon, file->node);
}

/* ---- folders ---- */

/* An open folder: its names as they were when it was read from its start. */
struct folder {
	struct ucm_files_names names;
	bool listed;
};

int ucm_files_op_opendir(struct ucm_daemon *daemon, fuse_ino_t ino,
			 struct fuse_file_info *fi)
{
	struct folder *folder;

	if (!node_of(daemon, ino)->is_dir)
		return -ENOTDIR;
	folder = calloc(1, sizeof(*folder));
	fi->fh = (uintptr_t)folder;
	return folder ? 0 : -ENOMEM;
}

void ucm_files_op_releasedir(struct fuse_file_info *fi)
{
	struct folder *folder = (struct folder *)(uintptr_t)fi->fh;

	ucm_files_names_free(&folder->names);
	free(folder);
}

static int list_again(struct ucm_daemon *daemon, fuse_ino_t ino,
		      struct folder *folder)
{
	struct ucm_files_lock lock;
	char path[PATH_MAX];
	int err = ucm_files_lock_node(&daemon->plain, node_of(daemon, ino),
				      &lock, path);

	if (err)
		return -ENOENT;
	ucm_files_names_free(&folder->names);
	err = ucm_files_list(daemon->set, path, &folder->names);
	folder->listed = !err;
	ucm_files_unlock(&lock);
	return err;
}

/* Entry number off, "." and ".." being the first; false behind the last. Its
 * name is looked up when it is asked for. */
static bool entry_at(struct ucm_daemon *daemon, fuse_ino_t ino,
		     const struct folder *folder, off_t off, const char **name,
		     struct fuse_entry_param *out)
{
	const struct ucm_files_name *listed;

	*out = (struct fuse_entry_param){ 0 };
	if (off < 2) {
		*name = off ? ".." : ".";
		out->attr.st_ino = node_of(daemon, ino)->ino;
		out->attr.st_mode = S_IFDIR;
		return true;
	}
	if ((size_t)off - 2 >= folder->names.num)
		return false;
	listed = &folder->names.list[off - 2];
	*name = listed->name;
	out->attr.st_ino = listed->ino;
	out->attr.st_mode = DTTOIF(listed->type);
	return true;
}

static size_t fill_listing(fuse_req_t req, fuse_ino_t ino,
			   const struct folder *folder, char *buffer,
			   size_t size, off_t off, bool plus)
{
	struct fuse_entry_param entry;
	size_t used = 0, need;
	const char *name;

	for (; entry_at(ucm_daemon_of(req), ino, folder, off, &name, &entry);
	     off++) {
		need = plus ? fuse_add_direntry_plus(req, buffer + used,
						     size - used, name, &entry,
						     off + 1)
			    : fuse_add_direntry(req, buffer + used, size - used,
						name, &entry.attr, off + 1);
		if (need > size - used)
			break;
		used += need;
	}
	return used;
}

void ucm_files_op_readdir(fuse_req_t req, const struct ucm_account *event,
			  fuse_ino_t ino, size_t size, off_t off, bool plus,
			  struct fuse_file_info *fi)
{
	struct folder *folder = (struct folder *)(uintptr_t)fi->fh;
	_cleanup_free_ char *buffer = malloc(size);
	int err = buffer ? 0 : -ENOMEM;
	size_t used;

	if (!err && (off == 0 || !folder->listed))
		err = list_again(event->daemon, ino, folder);
	if (err) {
		ucm_account_reply(req, event, err);
		return;
	}
	used = fill_listing(req, ino, folder, buffer, size, off, plus);
	ucm_account_end(event, 0);
	fuse_reply_buf(req, buffer, used);
}

int ucm_files_op_fsyncdir(struct ucm_daemon *daemon, fuse_ino_t ino)
{
	struct ucm_files_lock lock;
	char path[PATH_MAX];
	int err = ucm_files_lock_node(&daemon->plain, node_of(daemon, ino),
				      &lock, path);

	if (err)
		return err == -ESTALE ? 0 : err; /* there is nothing to sync */
	err = ucm_files_sync_dir(daemon->set, path);
	ucm_files_unlock(&lock);
	return err;
}
