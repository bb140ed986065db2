/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reprs.c - the file of representations of a block: 3f9a….repr beside 3f9a….bin.
 *
 * It has the block's reference, and is asked for each time: it may go while the
 * block stays. One that is there is opened for reading alone. A new one is
 * written to memory, and becomes the block's at the close that finds it whole;
 * or it is staging, and gets its name by a rename.
 *
 * A new one stays what it is as long as it is open: what is written to it after it
 * was taken is taken at the next close, in place of the first, or refused then; the
 * first stays in that case.
 */
#include <config.h>

#include "fs/mount/kinds.h"

#include <errno.h>
#include <stdlib.h>

#include "common/cleanup.h"
#include "common/osfile.h"
#include "fs/store/repr.h"
#include "fs/tier/wait.h"
#include "hashing/tree.h"

static const struct ucm_handle_ops repr_handle, new_repr_handle;

/* ---- attributes ---- */

static void repr_attr(struct ucm_daemon *daemon, const struct ucm_key *key,
		      const struct stat *st, struct stat *out)
{
	struct ucm_space *space = daemon->store->names.spaces[key->space];

	*out = (struct stat){
		.st_ino = ucm_ino_of_repr(space, &key->id),
		.st_mode = S_IFREG | 0644,
		.st_nlink = 1,
		.st_size = st->st_size,
		.st_blocks = st->st_blocks,
		.st_blksize = UCM_BLOCK_PAGE,
		.st_atim = st->st_atim,
		.st_mtim = st->st_mtim,
		.st_ctim = st->st_mtim,
	};
	ucm_attr_set_owner(out, space);
}

/* The kernel has one size for a node: while one is open, that is the size of what
 * was opened, though another may have its name by now. */
static int repr_stat_open(struct ucm_daemon *daemon, ucm_ref ref,
			  struct stat *st)
{
	struct ucm_key key;
	struct stat opened;
	int err = ucm_handle_stat(daemon, ucm_node_make(UCM_NODE_REPR, ref),
				  &opened, &key);

	if (!err)
		*st = opened;
	return err == -ENOENT ? 0 : err;
}

int ucm_repr_lookup(struct ucm_account *account, const struct ucm_key *key,
		    struct fuse_entry_param *out)
{
	struct stat st;
	ucm_ref ref;
	int err;

	ucm_account_block(account, key);
	err = ucm_store_find_repr(account->daemon->store, key, &st, &ref);
	if (!err)
		err = repr_stat_open(account->daemon, ref, &st);
	if (err)
		return err;
	*out = (struct fuse_entry_param){
		.ino = ucm_node_make(UCM_NODE_REPR, ref),
		.generation = 1,
	};
	repr_attr(account->daemon, key, &st, &out->attr);
	return 0;
}

static int repr_getattr(struct ucm_daemon *daemon, fuse_ino_t ino,
			struct stat *out)
{
	struct ucm_entry entry;
	struct ucm_key key;
	struct stat st;
	int err = ucm_store_stat_repr(daemon->store, ucm_node_value(ino),
				      &entry, &st);

	if (err == -ENOENT)
		return ucm_attr_unlinked(daemon, ino, ucm_ino_of_repr, out);
	if (!err)
		err = repr_stat_open(daemon, ucm_node_value(ino), &st);
	if (err)
		return err;
	key = (struct ucm_key){ .id = entry.id, .space = entry.space };
	repr_attr(daemon, &key, &st, out);
	return 0;
}

/* Its times are nobody's concern; cp -p and rsync set them. */
static int repr_setattr(struct ucm_account *account, fuse_ino_t ino,
			const struct stat *attr, int to_set)
{
	struct stat now;
	int err = repr_getattr(account->daemon, ino, &now);

	if (err)
		return err;
	return to_set & FUSE_SET_ATTR_SIZE ||
			       !ucm_attr_changes_nothing(&now, attr, to_set)
		       ? -EPERM
		       : 0;
}

bool ucm_repr_list(struct ucm_listing *list, const struct ucm_entry *entry,
		   off_t next)
{
	struct ucm_space *space =
		list->daemon->store->names.spaces[entry->space];
	const struct stat attr = {
		.st_ino = ucm_ino_of_repr(space, &entry->id),
		.st_mode = S_IFREG,
	};
	char name[UCM_TREE_REPR_LEN + 1];

	ucm_tree_repr_name(&entry->id, name);
	return ucm_list_name(list, name, &attr, next);
}

/* ---- open ---- */

/* Under file->lock. */
static int repr_open_first(struct ucm_account *account, struct ucm_handle *file)
{
	struct ucm_entry entry;
	struct ucm_file opened;
	struct stat st;
	int err = ucm_store_open_repr(account->daemon->store,
				      ucm_node_value(file->node), &entry,
				      &opened, &st);

	if (!err)
		err = ucm_handle_take(file, &opened);
	if (err)
		return err;
	file->key = (struct ucm_key){ .id = entry.id, .space = entry.space };
	file->dir = entry.dir;
	file->size = (uint64_t)st.st_size;
	ucm_handle_attach(account->req, file);
	return 0;
}

static int repr_open(struct ucm_account *account, fuse_ino_t ino,
		     struct fuse_file_info *fi)
{
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_handle *file;
	int err;

	if (ucm_open_changes(fi))
		return -EPERM;
	file = ucm_handle_get(daemon, ino);
	if (!file)
		file = ucm_handle_open(daemon, &repr_handle, ino);
	if (!file)
		return -ENOMEM;
	err = ucm_handle_lock(daemon, file);
	if (!err) {
		if (!file->opens)
			err = repr_open_first(account, file);
		if (!err)
			ucm_handle_count_open(file, fi);
		pthread_mutex_unlock(&file->lock);
	}
	if (err)
		ucm_handle_put(daemon, file);
	return err == -ENOENT ? -ESTALE : err;
}

/* ---- made ---- */

/* All of a file that is to become one; whole: it must be. */
static int repr_store(struct ucm_daemon *daemon, const struct ucm_key *key,
		      int fd, bool whole)
{
	_cleanup_free_ void *bytes = NULL;
	struct stat st;
	ssize_t got;
	int err = ucm_os_fstat(fd, &st);

	if (err)
		return err;
	if (st.st_size > UCM_STORE_REPR_MAX)
		return -EFBIG;
	bytes = malloc(st.st_size ? (size_t)st.st_size : 1);
	if (!bytes)
		return -ENOMEM;
	got = ucm_os_read_at(fd, bytes, (size_t)st.st_size, 0);
	if (got < 0)
		return (int)got;
	if (!whole && ucm_repr_is_whole(bytes, (size_t)got))
		return -EAGAIN;
	return ucm_store_put_repr(daemon->store, key, bytes, (size_t)got);
}

int ucm_repr_commit(struct ucm_account *account, struct ucm_handle *file,
		    const struct ucm_key *key)
{
	struct ucm_daemon *daemon = account->daemon;
	int fd, err = ucm_wait_long_for_any(&daemon->store->dirs);

	if (err)
		return err;
	pthread_mutex_lock(&file->lock);
	fd = ucm_handle_borrow_fd(daemon, file);
	err = fd < 0 ? fd : repr_store(daemon, key, fd, true);
	ucm_handle_return_fd(file, fd);
	pthread_mutex_unlock(&file->lock);
	return err;
}

int ucm_repr_create(struct ucm_account *account, const struct ucm_key *key,
		    struct fuse_file_info *fi, struct fuse_entry_param *out)
{
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_handle *file;
	struct ucm_entry entry;
	ucm_ref ref;
	int fd, err = ucm_store_peek(daemon->store, key, &entry, &ref);

	if (err)
		return err; /* no block, no representations */
	fd = ucm_os_memory_file("repr");
	if (fd < 0)
		return fd;
	file = ucm_handle_open(daemon, &new_repr_handle, 0);
	if (!file) {
		ucm_os_close(fd);
		return -ENOMEM;
	}
	file->fd = fd;
	file->key = *key;
	file->unsaved = true;
	ucm_handle_count_open(file, fi);
	return ucm_handle_created(account, file, out);
}

static int new_repr_check_size(const struct ucm_daemon *daemon,
			       const struct ucm_handle *file, uint64_t size)
{
	(void)daemon, (void)file;
	return size > UCM_STORE_REPR_MAX ? -EFBIG : 0;
}

static ssize_t new_repr_write(struct ucm_daemon *daemon,
			      struct ucm_handle *file, struct fuse_bufvec *in,
			      off_t off)
{
	uint64_t end = (uint64_t)off + fuse_buf_size(in);
	int err = new_repr_check_size(daemon, file, end);
	ssize_t done = err ? err : ucm_handle_write(daemon, file, in, off);

	/* after the bytes: a close that comes between takes them twice, and
	 * one that comes before them leaves them to the next */
	atomic_store(&file->unsaved, true);
	return done;
}

static bool new_repr_has_changed(const struct ucm_handle *file)
{
	struct stat st;

	return atomic_load(&file->unsaved) || ucm_os_fstat(file->fd, &st) ||
	       (uint64_t)st.st_size != file->size;
}

/* Else the same bytes may be taken the next time. */
static bool is_verdict(int err)
{
	return !err || err == -EINVAL || err == -EFBIG;
}

/* Shells close one before the first byte: what is not whole may become so. */
static int new_repr_take(struct ucm_daemon *daemon, struct ucm_handle *file)
{
	struct stat st;
	int err = ucm_os_fstat(file->fd, &st);

	if (err)
		return err;
	atomic_store(&file->unsaved, false);
	err = repr_store(daemon, &file->key, file->fd, false);
	file->verdict = err == -EAGAIN ? 0 : err;
	file->size = (uint64_t)st.st_size;
	return file->verdict;
}

/* There are as many as descriptors that a process, or its children, close: one at
 * which nothing is new is answered as the one before. */
static int new_repr_flush(struct ucm_account *account, struct ucm_handle *file)
{
	struct ucm_daemon *daemon = account->daemon;
	int err;

	if (!new_repr_has_changed(file) && is_verdict(file->verdict))
		return file->verdict;
	err = ucm_wait_long_for_any(&daemon->store->dirs);
	return err ? err : new_repr_take(daemon, file);
}

/* A descriptor that is dropped in another way than by close(2) has no FLUSH; what
 * a close was told is not made untrue. */
static int new_repr_last_close(struct ucm_account *account,
			       struct ucm_handle *file)
{
	return new_repr_has_changed(file) &&
			       new_repr_flush(account, file) == -EINPROGRESS
		       ? -EINPROGRESS
		       : 0;
}

static const struct ucm_handle_ops repr_handle = {
	.is_block = true,
};

static const struct ucm_handle_ops new_repr_handle = {
	.in_memory = true,
	.write = new_repr_write,
	.check_size = new_repr_check_size,
	.flush = new_repr_flush,
	.last_close = new_repr_last_close,
};

const struct ucm_node_ops ucm_repr_ops = {
	.getattr = repr_getattr,
	.setattr = repr_setattr,
	.open = repr_open,
};
