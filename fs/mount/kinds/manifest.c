/* SPDX-License-Identifier: Apache-2.0 */
/*
 * manifest.c - space.json: a memory file, checked and stored when it is closed.
 *
 * Each open has a memory file of its own: what is read is of one moment. One
 * that is created has a node of its own as well, until it is closed: staging.c
 * answers for that.
 */
#include <config.h>

#include "fs/mount/node/kinds.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/osfile.h"
#include "fs/tier/wait.h"

static const struct ucm_handle_ops manifest_handle;

/* ---- attributes ---- */

/* -ENOENT: the space has no manifest that can be read. */
static int manifest_getattr(struct ucm_daemon *daemon, fuse_ino_t ino,
			    struct stat *out)
{
	struct ucm_space *space = ucm_node_space(daemon, ino);
	_cleanup_free_ char *text = NULL;
	int err;

	if (!space)
		return -ENOENT;
	err = ucm_wait_for_any(&daemon->store->dirs);
	if (err)
		return err;
	text = malloc(UCM_MANIFEST_MAX);
	if (!text)
		return -ENOMEM;
	if (ucm_store_read_manifest(daemon->store, space, text,
				    UCM_MANIFEST_MAX))
		return -ENOENT;
	*out = (struct stat){
		.st_ino = ucm_ino_in_space(space, 1000),
		.st_mode = S_IFREG | 0644,
		.st_nlink = 1,
		.st_size = (off_t)strlen(text),
		.st_blksize = UCM_BLOCK_PAGE,
		.st_atim = daemon->started,
		.st_mtim = daemon->started,
		.st_ctim = daemon->started,
	};
	out->st_blocks = (out->st_size + 511) / 512;
	ucm_attr_set_owner(out, space);
	return 0;
}

/* open(O_TRUNC) truncates by itself. */
static int manifest_setattr(struct ucm_account *account, fuse_ino_t ino,
			    const struct stat *attr, int to_set)
{
	(void)account, (void)ino, (void)attr;
	return to_set & FUSE_SET_ATTR_SIZE ? -EPERM : 0;
}

/* ---- open ---- */

static int manifest_load(struct ucm_daemon *daemon, struct ucm_space *space,
			 int *fd_out)
{
	_cleanup_free_ char *text = malloc(UCM_MANIFEST_MAX);
	int fd, err;

	if (!text)
		return -ENOMEM;
	fd = ucm_os_memory_file(UCM_TREE_MANIFEST);
	if (fd < 0)
		return fd;
	err = ucm_store_read_manifest(daemon->store, space, text,
				      UCM_MANIFEST_MAX);
	if (!err)
		err = ucm_os_write_at(fd, text, strlen(text), 0);
	if (err && err != -ENOENT) {
		ucm_os_close(fd);
		return err;
	}
	*fd_out = fd;
	return 0;
}

/* An empty one is one that is not written yet. */
static int manifest_store(struct ucm_daemon *daemon, struct ucm_space *space,
			  int fd)
{
	_cleanup_free_ char *text = malloc(UCM_MANIFEST_MAX);
	ssize_t len;

	if (!text)
		return -ENOMEM;
	len = ucm_os_read_at(fd, text, UCM_MANIFEST_MAX, 0);
	if (len <= 0)
		return (int)len;
	return ucm_store_write_manifest(daemon->store, space, text,
					(size_t)len);
}

/* ino: of the space, or of what is in it. */
static int manifest_open_new(struct ucm_daemon *daemon, fuse_ino_t ino,
			     struct fuse_file_info *fi, struct ucm_handle **out)
{
	struct ucm_space *space = ucm_node_space(daemon, ino);
	struct ucm_handle *file;
	int fd, err;

	if (!space)
		return -ENOENT;
	err = ucm_wait_for_any(&daemon->store->dirs);
	if (err)
		return err;
	err = manifest_load(daemon, space, &fd);
	if (!err && fi->flags & O_TRUNC)
		err = ucm_os_truncate(fd, 0);
	if (err)
		return err;
	file = ucm_handle_open(daemon, &manifest_handle, 0);
	if (!file) {
		ucm_os_close(fd);
		return -ENOMEM;
	}
	file->fd = fd;
	file->key.space = space->number;
	file->writes = ucm_open_writes(fi);
	ucm_handle_count_open(file, fi);
	*out = file;
	return 0;
}

static int manifest_open(struct ucm_account *account, fuse_ino_t ino,
			 struct fuse_file_info *fi)
{
	struct ucm_handle *file;

	return manifest_open_new(account->daemon, ino, fi, &file);
}

int ucm_manifest_create(struct ucm_account *account, fuse_ino_t space,
			struct fuse_file_info *fi,
			struct fuse_entry_param *out)
{
	struct ucm_handle *file;
	int err = manifest_open_new(account->daemon, space, fi, &file);

	return err ? err : ucm_handle_created(account, file, out);
}

/* ---- written, and closed ---- */

static int manifest_check_size(const struct ucm_daemon *daemon,
			       const struct ucm_handle *file, uint64_t size)
{
	(void)daemon, (void)file;
	return size > UCM_MANIFEST_MAX ? -EFBIG : 0;
}

static ssize_t manifest_write(struct ucm_daemon *daemon,
			      struct ucm_handle *file, struct fuse_bufvec *in,
			      off_t off)
{
	uint64_t end = (uint64_t)off + fuse_buf_size(in);
	int err = manifest_check_size(daemon, file, end);

	return err ? err : ucm_handle_write(daemon, file, in, off);
}

static int manifest_fallocate(struct ucm_daemon *daemon,
			      struct ucm_handle *file, int mode, off_t off,
			      off_t len)
{
	int err = manifest_check_size(daemon, file, (uint64_t)off);

	(void)mode, (void)len;
	return err ? err : -EOPNOTSUPP;
}

static int manifest_flush(struct ucm_account *account, struct ucm_handle *file)
{
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_space *space =
		ucm_namespace_get(&daemon->store->names, file->key.space);
	int err;

	if (!file->writes)
		return 0;
	err = ucm_wait_long(UCM_WAIT_MANY);
	if (err)
		return err;
	return space ? manifest_store(daemon, space, file->fd) : -ENOENT;
}

static const struct ucm_handle_ops manifest_handle = {
	.in_memory = true,
	.write = manifest_write,
	.fallocate = manifest_fallocate,
	.check_size = manifest_check_size,
	.flush = manifest_flush,
};

const struct ucm_node_ops ucm_manifest_ops = {
	.getattr = manifest_getattr,
	.setattr = manifest_setattr,
	.open = manifest_open,
};
