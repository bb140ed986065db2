/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staging.c - a file being written, which is to become a block.
 *
 * It lies in .ucmfs/tmp of a tier. A *writer* was created under a block's name,
 * and is that block once it is committed; *staging* has a private name until a
 * rename makes a writer of it. With passthrough the kernel writes the file
 * itself; what remains is when it becomes a block: at a FLUSH that finds it
 * whole, at fsync, at rename, or at the last RELEASE.
 *
 * A FLUSH alone says nothing: shells send one before the first byte, fork sends
 * one in mid-stream, and the kernel sends one for a process that was killed. So
 * the checksums of a file decide there and at RELEASE; one that has none becomes a
 * block at fsync or rename alone.
 *
 * The nodes are those of all files being written, also of a space.json that was
 * created (manifest.c): what differs is asked of the open file's table.
 */
#include <config.h>

#include "fs/mount/node/kinds.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/log.h"
#include "common/osfile.h"
#include "fs/tier/wait.h"
#include "hashing/digest.h"
#include "hashing/tree.h"

static const struct ucm_handle_ops writer_handle, staging_handle;

/* ---- names in a bucket ---- */

struct ucm_handle *ucm_staging_find(struct ucm_daemon *daemon,
				    fuse_ino_t bucket, const char *name)
{
	return ucm_handle_by_name(daemon, ucm_bucket_space(bucket),
				  ucm_bucket_number(bucket), name);
}

/* Its name while the table is locked: another thread may rename it. */
static void staging_name(struct ucm_daemon *daemon,
			 const struct ucm_handle *file,
			 char name[UCM_NAME_MAX + 1])
{
	name[0] = '\0';
	pthread_mutex_lock(&daemon->files.lock);
	if (file->name)
		snprintf(name, UCM_NAME_MAX + 1, "%s", file->name->text);
	pthread_mutex_unlock(&daemon->files.lock);
}

void ucm_staging_list(struct ucm_listing *list, fuse_ino_t bucket, off_t off)
{
	_cleanup_free_ uint64_t *serials = NULL;
	size_t num = ucm_handles_list(list->daemon, ucm_bucket_space(bucket),
				      ucm_bucket_number(bucket), &serials);

	for (size_t i = 0; i < num; i++) {
		off_t next = UCM_LIST_STAGING + (off_t)serials[i];
		fuse_ino_t ino = ucm_node_make(UCM_NODE_FILE, serials[i]);
		struct stat attr = { .st_ino = ino, .st_mode = S_IFREG | 0644 };
		char name[UCM_NAME_MAX + 1];
		struct ucm_handle *file;

		if (next <= off)
			continue;
		file = ucm_handle_get(list->daemon, ino);
		if (!file)
			continue;
		staging_name(list->daemon, file, name);
		ucm_handle_put(list->daemon, file);
		if (*name && !ucm_list_name(list, name, &attr, next))
			return;
	}
}

/* ---- attributes ---- */

/* Its lock, for a call on its file. */
static int staging_enter(const struct ucm_daemon *daemon,
			 struct ucm_handle *file)
{
	int err = file->ops->in_memory
			  ? 0
			  : ucm_wait_for(&daemon->store->dirs, file->dir);

	return err ? err : ucm_handle_lock(file);
}

/* The descriptor says; a closed staging file is opened for the question. */
static int staging_stat(struct ucm_daemon *daemon, struct ucm_handle *file,
			struct stat *out)
{
	struct stat st;
	int fd, err;

	err = staging_enter(daemon, file);
	if (err)
		return err;
	fd = ucm_handle_borrow_fd(daemon, file);
	err = fd < 0 ? fd : ucm_os_fstat(fd, &st);
	ucm_handle_return_fd(file, fd);
	if (!err)
		ucm_attr_file(daemon, file->key.space, file->node, &st, out);
	pthread_mutex_unlock(&file->lock);
	return err;
}

static int staging_getattr(struct ucm_daemon *daemon, fuse_ino_t ino,
			   struct stat *out)
{
	struct ucm_handle *file = ucm_handle_get(daemon, ino);
	int err;

	if (!file)
		return -ENOENT;
	err = staging_stat(daemon, file, out);
	ucm_handle_put(daemon, file);
	return err;
}

static int staging_set_size(struct ucm_daemon *daemon, struct ucm_handle *file,
			    int fd, off_t size)
{
	int err = 0;

	if (file->ops->check_size)
		err = file->ops->check_size(daemon, file, (uint64_t)size);
	if (!err)
		err = ucm_os_truncate(fd, size);
	if (!err && size > 0)
		ucm_promise_resize(file->temp.promise, (uint64_t)size);
	return err;
}

static int staging_set_open(struct ucm_daemon *daemon, struct ucm_handle *file,
			    int fd, const struct stat *attr, int to_set)
{
	struct timespec times[2];
	int err = 0;

	if (to_set & FUSE_SET_ATTR_SIZE)
		err = staging_set_size(daemon, file, fd, attr->st_size);
	ucm_attr_times(attr, to_set, times);
	if (!err && to_set & UCM_SET_TIMES && !file->temp.committed)
		err = ucm_os_utimens(fd, times);
	return err;
}

/* Of a file being written: size and times. Modes and owners are its space's;
 * programs that set them before they rename are humoured. */
static int staging_setattr(struct ucm_account *account, fuse_ino_t ino,
			   const struct stat *attr, int to_set)
{
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_handle *file = ucm_handle_get(daemon, ino);
	int fd, err;

	if (!file)
		return -ENOENT;
	err = staging_enter(daemon, file);
	if (!err) {
		fd = ucm_handle_borrow_fd(daemon, file);
		err = fd < 0 ? fd : staging_set_open(daemon, file, fd, attr,
						     to_set);
		ucm_handle_return_fd(file, fd);
		pthread_mutex_unlock(&file->lock);
	}
	ucm_handle_put(daemon, file);
	return err;
}

/* ---- create ---- */

/* Where a staging file's block will belong, guessed from its name: the hash
 * in "<hash>.tmp" or ".<hash>.bin.XXXXXX", else any fixed place. */
static void staging_guess_id(const char *name, struct ucm_id *id)
{
	if (strlen(name) >= UCM_ID_HEX && !ucm_id_parse(name, id))
		return;
	if (strlen(name) > UCM_ID_HEX && !ucm_id_parse(name + 1, id))
		return;
	if (ucm_md5(name, strlen(name), id->bytes))
		memset(id, 0, sizeof(*id));
}

/* What a new name in a bucket is going to be; -EINVAL: nothing. */
static int staging_plan(fuse_ino_t parent, const char *name,
			const struct ucm_handle_ops **ops, struct ucm_key *key)
{
	key->space = ucm_bucket_space(parent);
	if (!ucm_tree_parse_block(name, &key->id)) {
		*ops = &writer_handle;
		return ucm_tree_bucket(&key->id) == ucm_bucket_number(parent)
			       ? 0
			       : -EINVAL;
	}
	if (strlen(name) > UCM_NAME_MAX)
		return -ENAMETOOLONG;
	if (!ucm_name_is_staging(name))
		return -EINVAL;
	*ops = &staging_handle;
	staging_guess_id(name, &key->id);
	return 0;
}

static int staging_new(struct ucm_daemon *daemon, fuse_ino_t parent,
		       const char *name, int flags, struct ucm_handle **out)
{
	const struct ucm_handle_ops *ops;
	struct ucm_temp temp;
	struct ucm_file opened;
	struct ucm_handle *file;
	struct ucm_key key;
	int err = staging_plan(parent, name, &ops, &key);

	if (err)
		return err;
	if (ops->is_block &&
	    ucm_index_find(daemon->store->index, &key, NULL, NULL))
		/* committed since the kernel looked */
		return flags & O_EXCL ? -EEXIST : -EPERM;
	err = ucm_store_create(daemon->store, &key, 0, &temp, &opened);
	if (err)
		return err;
	file = ucm_handle_open(daemon, ops, 0);
	err = file ? ucm_handle_take(file, &opened) : -ENOMEM;
	if (!file) {
		ucm_file_close(&opened);
		ucm_store_drop(daemon->store, &temp);
		return err;
	}
	file->temp = temp;
	if (err) {
		ucm_handle_put(daemon, file);
		return err;
	}
	file->dir = temp.dir;
	file->key = key;
	if (!ops->is_block &&
	    ucm_handle_set_name(daemon, file, key.space,
				ucm_bucket_number(parent), name)) {
		ucm_handle_put(daemon, file);
		return -ENOMEM;
	}
	*out = file;
	return 0;
}

int ucm_staging_create(struct ucm_account *account, fuse_ino_t bucket,
		       const char *name, struct fuse_file_info *fi,
		       struct fuse_entry_param *out)
{
	struct ucm_handle *file;
	int err = staging_new(account->daemon, bucket, name, fi->flags, &file);

	if (err)
		return err;
	pthread_mutex_lock(&file->lock);
	ucm_handle_attach(account->req, file);
	ucm_handle_count_open(file, fi);
	pthread_mutex_unlock(&file->lock);
	return ucm_handle_created(account, file, out);
}

/* ---- open once more ---- */

/* Under file->lock. */
static int staging_open_locked(fuse_req_t req, struct ucm_handle *file,
			       struct fuse_file_info *fi)
{
	struct ucm_daemon *daemon = ucm_daemon_of(req);
	int fd;

	if (file->temp.committed && ucm_open_changes(fi))
		return -EPERM;
	if (!file->opens) {
		if (file->temp.committed || !file->ops->has_temp)
			return -ENOENT;
		fd = ucm_handle_reopen(daemon, file);
		if (fd < 0)
			return fd;
		file->fd = fd;
		ucm_handle_attach(req, file);
	}
	if (fi->flags & O_TRUNC) {
		int err = ucm_os_truncate(file->fd, 0);

		if (err && !file->opens)
			ucm_handle_close_file(daemon, file);
		if (err)
			return err;
	}
	ucm_handle_count_open(file, fi);
	return 0;
}

/* Staging once more, or a writer's own file by way of /proc/self/fd. */
static int staging_open(struct ucm_account *account, fuse_ino_t ino,
			struct fuse_file_info *fi)
{
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_handle *file = ucm_handle_get(daemon, ino);
	int err;

	if (!file)
		return -ENOENT;
	err = staging_enter(daemon, file);
	if (!err) {
		err = staging_open_locked(account->req, file, fi);
		pthread_mutex_unlock(&file->lock);
	}
	if (err)
		ucm_handle_put(daemon, file);
	return err;
}

/* ---- written ---- */

static ssize_t staging_write(struct ucm_daemon *daemon, struct ucm_handle *file,
			     struct fuse_bufvec *in, off_t off)
{
	if (file->temp.committed)
		return -EPERM;
	return ucm_handle_write(daemon, file, in, off);
}

/* A larger one would be no block, and be promised room. */
static int staging_check_size(const struct ucm_daemon *daemon,
			      const struct ucm_handle *file, uint64_t size)
{
	if (file->temp.committed)
		return -EPERM;
	return size > daemon->store->config->block_max ? -EFBIG : 0;
}

static int staging_fallocate(struct ucm_daemon *daemon, struct ucm_handle *file,
			     int mode, off_t off, off_t len)
{
	uint64_t end = (uint64_t)off + (uint64_t)len;
	int err = staging_check_size(daemon, file, end);

	if (err)
		return err;
	err = ucm_os_fallocate(file->fd, mode, off, len);
	if (!err && !(mode & ~FALLOC_FL_KEEP_SIZE))
		ucm_promise_resize(file->temp.promise, end);
	return err;
}

/* ---- becoming a block ---- */

/* -EAGAIN: it is not whole, as far as can be seen. */
static int staging_commit_writer(const struct ucm_account *within,
				 struct ucm_handle *file,
				 enum ucm_commit_when when)
{
	if (file->temp.committed)
		return 0;
	if (file->failed)
		return -EIO;
	return ucm_handle_commit(within, file, file->fd, &file->key, when);
}

int ucm_staging_commit(const struct ucm_account *within,
		       struct ucm_handle *file, const struct ucm_key *key)
{
	struct ucm_daemon *daemon = within->daemon;
	int fd, err = ucm_wait_long(file->dir);

	if (err)
		return err;
	pthread_mutex_lock(&file->lock);
	fd = ucm_handle_borrow_fd(daemon, file);
	if (fd < 0)
		err = fd;
	else if (file->failed)
		err = -EIO;
	else if (file->temp.committed)
		err = -ENOENT; /* another rename was faster */
	else
		err = ucm_handle_commit(within, file, fd, key, UCM_COMMIT_NOW);
	ucm_handle_return_fd(file, fd);
	if (!err) { /* a writer like any other now, until its last close */
		file->ops = &writer_handle;
		file->key = *key;
	}
	pthread_mutex_unlock(&file->lock);
	if (err != -EAGAIN)
		return err;
	return ucm_store_refuse(daemon->store, key, UCM_FAULT_SHORT, NULL);
}

/* Pages that could not be written count as written afterwards: what failed
 * once is dropped and never asked again. */
static int staging_fsync(struct ucm_account *account, struct ucm_handle *file,
			 bool datasync)
{
	struct ucm_daemon *daemon = account->daemon;
	int err;

	if (file->failed)
		return -EIO;
	err = ucm_block_sync(daemon, file, datasync);
	file->failed = err;
	if (err && file->temp.committed && file->temp.ref)
		ucm_store_condemn(daemon->store, file->temp.ref, file->temp.dir,
				  &file->temp.stamp, UCM_FAULT_UNVOUCHED,
				  " (fsync failed)");
	return err;
}

static int staging_fsync_writer(struct ucm_account *account,
				struct ucm_handle *file, bool datasync)
{
	int err = staging_fsync(account, file, datasync);

	if (!err)
		err = staging_commit_writer(account, file, UCM_COMMIT_NOW);
	return err == -EAGAIN ? 0 : err;
}

static int staging_flush(struct ucm_account *account, struct ucm_handle *file)
{
	int err;

	if (file->temp.committed)
		return 0;
	err = ucm_wait_long(file->dir);
	if (!err)
		err = staging_commit_writer(account, file, UCM_COMMIT_IF_WHOLE);
	return err == -EAGAIN ? 0 : err;
}

/* Somebody has begun a block, and there is none. */
static void staging_tell_unfinished(const struct ucm_handle *file)
{
	if (file->temp.stamp.st_size)
		ucm_info("block %s: dropped: it was closed before all of it "
			 "was written; size %lld",
			 ucm_hex(&file->key.id).text,
			 (long long)file->temp.stamp.st_size);
}

/* The last close of a file under a block's name; nobody hears an error now. */
static int staging_finish_writer(struct ucm_account *within,
				 struct ucm_handle *file)
{
	const struct ucm_file opened = ucm_file_of(file->temp.medium, file->fd);
	struct ucm_store *store = within->daemon->store;
	int err = ucm_wait_for(&store->dirs, file->dir);
	bool changed;

	if (err)
		return err;
	ucm_store_changed(&file->temp, &opened, &changed);
	if (file->refused && !changed)
		return 0; /* close(2) has failed, and the log says why */
	if (!file->temp.committed || changed)
		err = ucm_wait_long(file->dir);
	if (err)
		return err;
	if (file->temp.committed)
		ucm_store_recheck(store, &file->temp, &opened);
	else if (staging_commit_writer(within, file, UCM_COMMIT_LAST) ==
		 -EAGAIN)
		staging_tell_unfinished(file);
	return 0;
}

static int staging_rest(struct ucm_account *account, struct ucm_handle *file)
{
	const struct ucm_file opened = ucm_file_of(file->temp.medium, file->fd);
	int err = ucm_wait_for(&account->daemon->store->dirs, file->dir);

	if (!err)
		ucm_store_rest(&file->temp, &opened);
	return err;
}

static const struct ucm_handle_ops writer_handle = {
	.is_block = true,
	.has_temp = true,
	.write = staging_write,
	.fallocate = staging_fallocate,
	.check_size = staging_check_size,
	.flush = staging_flush,
	.fsync = staging_fsync_writer,
	.last_close = staging_finish_writer,
};

static const struct ucm_handle_ops staging_handle = {
	.has_temp = true,
	.write = staging_write,
	.fallocate = staging_fallocate,
	.check_size = staging_check_size,
	.fsync = staging_fsync,
	.last_close = staging_rest,
};

const struct ucm_node_ops ucm_staging_ops = {
	.getattr = staging_getattr,
	.setattr = staging_setattr,
	.open = staging_open,
};
