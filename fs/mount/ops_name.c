/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops_name.c - operations on names: look up, list, make, remove, rename.
 */
#include <config.h>

#include "fs/mount/daemon.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "fs/mount/ops_files.h"
#include "hashing/tree.h"

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1
#endif

static struct ucm_key key_in(fuse_ino_t bucket, const struct ucm_id *id)
{
	return (struct ucm_key){
		.id = *id,
		.space = ucm_bucket_space(bucket),
	};
}

static struct ucm_handle *staging_in(struct ucm_daemon *daemon,
				     fuse_ino_t bucket, const char *name)
{
	return ucm_handle_by_name(daemon, ucm_bucket_space(bucket),
				  ucm_bucket_number(bucket), name);
}

/* 0 and the id, if name is a block's name in this bucket. */
static int block_name(fuse_ino_t bucket, const char *name, struct ucm_id *id)
{
	if (ucm_tree_parse_block(name, id) ||
	    ucm_tree_bucket(id) != ucm_bucket_number(bucket))
		return -EINVAL;
	return 0;
}

/* ---- lookup ---- */

static int reply_plain(struct ucm_daemon *daemon, fuse_ino_t ino,
		       double timeout, struct fuse_entry_param *out)
{
	*out = (struct fuse_entry_param){
		.ino = ino,
		.generation = 1,
		.attr_timeout = timeout,
		.entry_timeout = timeout,
	};
	return ucm_node_attr(daemon, ino, &out->attr);
}

static int lookup_in_root(struct ucm_daemon *daemon, const char *name,
			  struct fuse_entry_param *out)
{
	double timeout = daemon->options->entry_timeout_s;

	if (!strcmp(name, UCM_TREE_BLOCKS))
		return reply_plain(daemon, ucm_node_make(UCM_NODE_SPACE, 0),
				   timeout, out);
	if (!strcmp(name, UCM_TREE_SPACES))
		return reply_plain(daemon, UCM_FIXED_SPACES, timeout, out);
	if (!strcmp(name, UCM_TREE_OWN))
		return reply_plain(daemon, UCM_FIXED_CONTROL, timeout, out);
	if (!strcmp(name, UCM_TREE_FILES))
		return ucm_files_op_root(daemon, out);
	return -ENOENT;
}

static int lookup_space(struct ucm_daemon *daemon, const char *name,
			struct fuse_entry_param *out)
{
	struct ucm_space *space =
		*name ? ucm_namespace_find(&daemon->set->names, name) : NULL;

	if (!space)
		return -ENOENT;
	return reply_plain(daemon, ucm_node_make(UCM_NODE_SPACE, space->number),
			   daemon->options->entry_timeout_s, out);
}

static int lookup_in_space(struct ucm_daemon *daemon, fuse_ino_t parent,
			   const char *name, struct fuse_entry_param *out)
{
	struct ucm_space *space = ucm_node_space(daemon, parent);
	int bucket = ucm_tree_parse_bucket(name);

	if (!space)
		return -ENOENT;
	if (bucket >= 0)
		return reply_plain(
			daemon,
			ucm_node_bucket(space->number, (unsigned)bucket),
			daemon->options->entry_timeout_s, out);
	if (strcmp(name, UCM_TREE_MANIFEST))
		return -ENOENT;
	return reply_plain(daemon,
			   ucm_node_make(UCM_NODE_MANIFEST, space->number), 0,
			   out);
}

static int lookup_in_bucket(struct ucm_account *event, fuse_ino_t parent,
			    const char *name, struct fuse_entry_param *out)
{
	struct ucm_daemon *daemon = event->daemon;
	struct ucm_entry entry;
	struct ucm_handle *file;
	struct ucm_key key;
	struct ucm_id id;
	ucm_ref ref;
	int err;

	if (!block_name(parent, name, &id)) {
		key = key_in(parent, &id);
		ucm_account_block(event, &key);
		err = ucm_store_find(daemon->set, &key, &entry, &ref);
		if (err)
			return err;
		ucm_account_entry(event, &entry);
		ucm_entry_block(daemon, &entry, ref, out);
		return 0;
	}
	if (!ucm_name_is_staging(name))
		return -ENOENT;
	file = staging_in(daemon, parent, name);
	if (!file)
		return -ENOENT;
	err = reply_plain(daemon, file->node, 0, out);
	ucm_handle_put(daemon, file);
	return err;
}

static int lookup(struct ucm_account *event, fuse_ino_t parent,
		  const char *name, struct fuse_entry_param *out)
{
	struct ucm_daemon *daemon = event->daemon;
	fuse_ino_t ino;

	if (strlen(name) > UCM_NAME_MAX)
		return -ENAMETOOLONG;
	switch (ucm_node_type(parent)) {
	case UCM_NODE_SPACE:
		return lookup_in_space(daemon, parent, name, out);
	case UCM_NODE_BUCKET:
		return lookup_in_bucket(event, parent, name, out);
	case UCM_NODE_PLAIN:
		return ucm_files_op_lookup(daemon, parent, name, out);
	case UCM_NODE_FIXED:
		break;
	default:
		return -ENOTDIR;
	}
	switch (parent) {
	case UCM_FIXED_ROOT:
		return lookup_in_root(daemon, name, out);
	case UCM_FIXED_SPACES:
		return lookup_space(daemon, name, out);
	case UCM_FIXED_CONTROL:
		ino = ucm_control_find(name);
		return ino ? reply_plain(daemon, ino, 0, out) : -ENOENT;
	default:
		return -ENOTDIR;
	}
}

void ucm_op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct ucm_account event = ucm_account_begin(req, UCM_OP_LOOKUP);
	struct fuse_entry_param entry;
	int err = lookup(&event, parent, name, &entry);

	ucm_account_end(&event, err);
	/* with node id 0: the kernel may remember that it is not there */
	if (err && (err != -ENOENT || ucm_node_type(parent) != UCM_NODE_PLAIN))
		fuse_reply_err(req, -err);
	else
		fuse_reply_entry(req, &entry);
}

void ucm_op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t lookups)
{
	if (ucm_node_type(ino) == UCM_NODE_PLAIN)
		ucm_files_op_forget(ucm_daemon_of(req), ino, lookups);
	fuse_reply_none(req);
}

void ucm_op_forget_multi(fuse_req_t req, size_t count,
			 struct fuse_forget_data *forgets)
{
	for (size_t i = 0; i < count; i++) {
		if (ucm_node_type(forgets[i].ino) == UCM_NODE_PLAIN)
			ucm_files_op_forget(ucm_daemon_of(req), forgets[i].ino,
					    forgets[i].nlookup);
	}
	fuse_reply_none(req);
}

/* ---- listing ---- */

/* A listing in the making. An entry's offset is where to go on behind it. */
struct listing {
	fuse_req_t req;
	struct ucm_daemon *daemon;
	char *buffer;
	size_t size, used;
	bool plus;
};

/* False: no room left. A name without attributes (plus) is looked up later. */
static bool list_name(struct listing *list, const char *name, fuse_ino_t ino,
		      const struct fuse_entry_param *entry, off_t next)
{
	char *at = list->buffer + list->used;
	size_t room = list->size - list->used, need;
	struct fuse_entry_param bare = { 0 };
	struct stat st = { 0 };

	if (entry)
		bare = *entry;
	else if (ino)
		ucm_attr_dir(list->daemon, ino, &bare.attr);
	st = bare.attr;
	if (list->plus)
		need = fuse_add_direntry_plus(list->req, at, room, name, &bare,
					      next);
	else
		need = fuse_add_direntry(list->req, at, room, name, &st, next);
	if (need > room)
		return false;
	list->used += need;
	return true;
}

static bool list_dots(struct listing *list, fuse_ino_t ino, off_t *off)
{
	static const char *const dots[] = { ".", ".." };

	for (; *off < 2; ++*off) {
		if (!list_name(list, dots[*off], ino, NULL, *off + 1))
			return false;
	}
	return true;
}

static void list_root(struct listing *list, off_t off)
{
	struct fuse_entry_param files;

	if (off == 2 && list_name(list, UCM_TREE_BLOCKS,
				  ucm_node_make(UCM_NODE_SPACE, 0), NULL, 3))
		off++;
	if (off == 3 &&
	    list_name(list, UCM_TREE_SPACES, UCM_FIXED_SPACES, NULL, 4))
		off++;
	/* old tiers that are read-only have none */
	if (off == 4 && !ucm_files_op_root(list->daemon, &files))
		list_name(list, UCM_TREE_FILES, 0, &files, 5);
}

static void list_spaces(struct listing *list, off_t off)
{
	struct ucm_namespace *names = &list->daemon->set->names;
	unsigned num = names->num;

	/* number 0 is the default space, which is not in here */
	for (unsigned i = (unsigned)off - 1; i < num; i++) {
		struct ucm_space *space = ucm_namespace_get(names, i);

		if (space && !list_name(list, space->name,
					ucm_node_make(UCM_NODE_SPACE, i), NULL,
					(off_t)i + 2))
			return;
	}
}

static void list_buckets(struct listing *list, fuse_ino_t ino, off_t off)
{
	uint16_t space = (uint16_t)ucm_node_value(ino);
	struct fuse_entry_param manifest;

	for (unsigned i = (unsigned)off - 2; i < UCM_BUCKETS; i++) {
		char name[3];

		ucm_tree_bucket_name(i, name);
		if (!list_name(list, name, ucm_node_bucket(space, i), NULL,
			       (off_t)i + 3))
			return;
		off = (off_t)i + 3;
	}
	if (off == UCM_BUCKETS + 2 &&
	    !lookup_in_space(list->daemon, ino, UCM_TREE_MANIFEST, &manifest)) {
		list_name(list, UCM_TREE_MANIFEST, 0,
			  &manifest, UCM_BUCKETS + 3);
	}
}

#define STAGING_FROM ((off_t)1 << 40) /* serial numbers follow */

static void list_staging(struct listing *list, fuse_ino_t bucket, off_t off)
{
	_cleanup_free_ uint64_t *serials = NULL;
	size_t num = ucm_handles_list(list->daemon, ucm_bucket_space(bucket),
				      ucm_bucket_number(bucket), &serials);

	for (size_t i = 0; i < num; i++) {
		off_t next = STAGING_FROM + (off_t)serials[i];
		struct fuse_entry_param entry = { 0 };
		struct ucm_handle *file;
		char name[UCM_NAME_MAX + 1] = "";

		if (next <= off)
			continue;
		file = ucm_handle_get(list->daemon,
				      ucm_node_make(UCM_NODE_FILE, serials[i]));
		if (!file)
			continue;
		pthread_mutex_lock(&list->daemon->files.lock);
		if (file->name)
			snprintf(name, sizeof(name), "%s", file->name);
		pthread_mutex_unlock(&list->daemon->files.lock);
		entry.attr = (struct stat){ .st_ino = file->node,
					    .st_mode = S_IFREG | 0644 };
		ucm_handle_put(list->daemon, file);
		if (*name && !list_name(list, name, 0, &entry, next))
			return;
	}
}

static bool list_block(struct listing *list, const struct ucm_entry *entry,
		       ucm_ref ref, off_t next)
{
	char name[UCM_TREE_BLOCK_LEN + 1];
	struct fuse_entry_param param;

	ucm_tree_block_name(&entry->id, name);
	ucm_entry_block(list->daemon, entry, ref, &param);
	if (entry->flags & UCM_ENTRY_DOUBT)
		param.ino = 0; /* its lookup will check it */
	return list_name(list, name, 0, &param, next);
}

static void list_bucket(struct listing *list, fuse_ino_t ino, off_t off)
{
	uint16_t space = ucm_bucket_space(ino);
	struct ucm_entry entry;
	uint32_t cursor;
	ucm_ref ref;

	if (off < STAGING_FROM) {
		cursor = (uint32_t)(off - 2);
		while (ucm_index_next(list->daemon->set->index, space,
				      ucm_bucket_number(ino), &cursor, &entry,
				      &ref)) {
			if (!list_block(list, &entry, ref, (off_t)cursor + 2))
				return;
		}
		off = STAGING_FROM;
	}
	list_staging(list, ino, off);
}

static void list_control(struct listing *list, off_t off)
{
	const char *name;

	while ((name = ucm_control_name((unsigned)off - 2))) {
		struct fuse_entry_param entry;

		if (reply_plain(list->daemon, ucm_control_find(name), 0,
				&entry))
			return;
		if (!list_name(list, name, 0, &entry, off + 1))
			return;
		off++;
	}
}

static void list_dir(struct listing *list, fuse_ino_t ino, off_t off)
{
	if (!list_dots(list, ino, &off))
		return;
	switch (ucm_node_type(ino)) {
	case UCM_NODE_SPACE: list_buckets(list, ino, off); break;
	case UCM_NODE_BUCKET: list_bucket(list, ino, off); break;
	default:
		if (ino == UCM_FIXED_ROOT)
			list_root(list, off);
		else if (ino == UCM_FIXED_SPACES)
			list_spaces(list, off);
		else if (ino == UCM_FIXED_CONTROL)
			list_control(list, off);
		break;
	}
}

static void reply_listing(fuse_req_t req, fuse_ino_t ino, size_t size,
			  off_t off, bool plus, struct fuse_file_info *fi)
{
	struct ucm_account event = ucm_account_begin(req, UCM_OP_READDIR);
	struct listing list = {
		.req = req,
		.daemon = event.daemon,
		.size = size,
		.plus = plus,
	};

	if (ucm_node_type(ino) == UCM_NODE_PLAIN) {
		ucm_files_op_readdir(req, &event, ino, size, off, plus, fi);
		return;
	}
	list.buffer = malloc(size);
	if (!list.buffer) {
		ucm_account_reply(req, &event, -ENOMEM);
		return;
	}
	list_dir(&list, ino, off);
	ucm_account_end(&event, 0);
	fuse_reply_buf(req, list.buffer, list.used);
	free(list.buffer);
}

void ucm_op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct ucm_account event = ucm_account_begin(req, UCM_OP_OPENDIR);
	enum ucm_node type = ucm_node_type(ino);
	struct ucm_space *space = NULL;
	int err = 0;

	if (type == UCM_NODE_BUCKET || type == UCM_NODE_SPACE) {
		space = ucm_node_space(event.daemon, ino);
		if (!space) {
			ucm_account_reply(req, &event, -ENOENT);
			return;
		}
	}
	if (type == UCM_NODE_BUCKET)
		ucm_store_fill_bucket(event.daemon->set, space,
				      ucm_bucket_number(ino));
	if (type == UCM_NODE_PLAIN)
		err = ucm_files_op_opendir(event.daemon, ino, fi);
	ucm_account_end(&event, err);
	if (err)
		fuse_reply_err(req, -err);
	else
		fuse_reply_open(req, fi);
}

void ucm_op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		    struct fuse_file_info *fi)
{
	reply_listing(req, ino, size, off, false, fi);
}

void ucm_op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
			struct fuse_file_info *fi)
{
	reply_listing(req, ino, size, off, true, fi);
}

void ucm_op_releasedir(fuse_req_t req, fuse_ino_t ino,
		       struct fuse_file_info *fi)
{
	if (ucm_node_type(ino) == UCM_NODE_PLAIN)
		ucm_files_op_releasedir(fi);
	fuse_reply_err(req, 0);
}

void ucm_op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync,
		     struct fuse_file_info *fi)
{
	struct ucm_account event = ucm_account_begin(req, UCM_OP_FSYNC);
	int err = 0; /* other folders have nothing of their own on disk */

	(void)datasync, (void)fi;
	/* the kernel keeps syncfs(2) to itself, so the root stands for all */
	if (ino == UCM_FIXED_ROOT)
		err = ucm_store_sync(event.daemon->set);
	else if (ucm_node_type(ino) == UCM_NODE_PLAIN)
		err = ucm_files_op_fsyncdir(event.daemon, ino);
	ucm_account_reply(req, &event, err);
}

/* ---- making and removing ---- */

/* Ends the event. */
static void reply_entry(fuse_req_t req, const struct ucm_account *event,
			int err, const struct fuse_entry_param *entry)
{
	ucm_account_end(event, err);
	if (err)
		fuse_reply_err(req, -err);
	else
		fuse_reply_entry(req, entry);
}

static int make_space(fuse_req_t req, const char *name, mode_t mode,
		      struct fuse_entry_param *out)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);
	struct ucm_daemon *daemon = ucm_daemon_of(req);
	struct ucm_space *space;
	int err = ucm_store_mkdir(daemon->set, name, mode & ~ctx->umask,
				  ctx->uid, ctx->gid, &space);

	return err ? err : lookup_space(daemon, name, out);
}

void ucm_op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name,
		  mode_t mode)
{
	struct ucm_account event = ucm_account_begin(req, UCM_OP_MKDIR);
	struct fuse_entry_param entry;
	int err = -EPERM;

	if (parent == UCM_FIXED_SPACES)
		err = make_space(req, name, mode, &entry);
	else if (ucm_node_type(parent) == UCM_NODE_PLAIN)
		err = ucm_files_op_mkdir(req, parent, name, mode, &entry);
	reply_entry(req, &event, err, &entry);
}

static int remove_space(struct ucm_daemon *daemon, const char *name)
{
	_cleanup_free_ uint64_t *serials = NULL;
	struct ucm_space *space =
		*name ? ucm_namespace_find(&daemon->set->names, name) : NULL;

	if (!space)
		return -ENOENT;
	if (ucm_handles_list(daemon, space->number, UINT32_MAX, &serials))
		return -ENOTEMPTY;
	return ucm_store_rmdir(daemon->set, space);
}

void ucm_op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct ucm_account event = ucm_account_begin(req, UCM_OP_RMDIR);
	int err = -EPERM;

	if (parent == UCM_FIXED_SPACES)
		err = remove_space(event.daemon, name);
	else if (ucm_node_type(parent) == UCM_NODE_PLAIN)
		err = ucm_files_op_rmdir(event.daemon, parent, name);
	ucm_account_reply(req, &event, err);
}

static int unlink_block(struct ucm_account *event, const struct ucm_key *key)
{
	struct ucm_daemon *daemon = event->daemon;
	struct ucm_entry entry;

	ucm_account_block(event, key);
	if (daemon->trace &&
	    ucm_index_find(daemon->set->index, key, &entry, NULL))
		ucm_account_entry(event, &entry);
	return ucm_store_remove(daemon->set, key);
}

static int unlink_in_bucket(struct ucm_account *event, fuse_ino_t parent,
			    const char *name)
{
	struct ucm_daemon *daemon = event->daemon;
	struct ucm_handle *file;
	struct ucm_key key;
	struct ucm_id id;

	if (!block_name(parent, name, &id)) {
		key = key_in(parent, &id);
		return unlink_block(event, &key);
	}
	file = staging_in(daemon, parent, name);
	if (!file)
		return -ENOENT;
	ucm_handle_set_name(daemon, file, 0, 0, NULL);
	ucm_handle_put(daemon, file);
	return 0;
}

void ucm_op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct ucm_account event = ucm_account_begin(req, UCM_OP_UNLINK);
	int err = -EPERM;

	if (ucm_node_type(parent) == UCM_NODE_BUCKET)
		err = unlink_in_bucket(&event, parent, name);
	else if (ucm_node_type(parent) == UCM_NODE_PLAIN)
		err = ucm_files_op_unlink(event.daemon, parent, name);
	ucm_account_reply(req, &event, err);
}

/* ---- rename: staging becomes a block, or other staging ---- */

static int commit_file(const struct ucm_account *within,
		       struct ucm_handle *file, const struct ucm_key *key)
{
	struct ucm_daemon *daemon = within->daemon;
	int fd, err;

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
		file->kind = UCM_HANDLE_WRITER;
		file->key = *key;
	}
	pthread_mutex_unlock(&file->lock);
	if (err != -EAGAIN)
		return err;
	return ucm_store_refuse(daemon->set, key, UCM_FAULT_SHORT, NULL);
}

static int rename_to_block(const struct ucm_account *within,
			   struct ucm_handle *file, fuse_ino_t parent,
			   const struct ucm_id *id, unsigned flags)
{
	struct ucm_daemon *daemon = within->daemon;
	struct ucm_key key = key_in(parent, id);
	struct ucm_entry entry;
	ucm_ref ref;
	int err;

	if (flags & RENAME_NOREPLACE &&
	    !ucm_store_find(daemon->set, &key, &entry, &ref))
		return -EEXIST;
	err = commit_file(within, file, &key);
	if (!err)
		ucm_handle_set_name(daemon, file, 0, 0, NULL);
	return err;
}

static int rename_to_staging(struct ucm_daemon *daemon, struct ucm_handle *file,
			     fuse_ino_t parent, const char *name,
			     unsigned flags)
{
	struct ucm_handle *there = staging_in(daemon, parent, name);

	if (there) {
		ucm_handle_put(daemon, there);
		if (flags & RENAME_NOREPLACE)
			return -EEXIST;
	}
	return ucm_handle_set_name(daemon, file, ucm_bucket_space(parent),
				   ucm_bucket_number(parent), name);
}

static int rename_file(const struct ucm_account *event, fuse_ino_t parent,
		       const char *name, fuse_ino_t newparent,
		       const char *newname, unsigned flags)
{
	struct ucm_daemon *daemon = event->daemon;
	struct ucm_handle *file;
	struct ucm_id id;
	int err;

	if (ucm_node_type(parent) == UCM_NODE_PLAIN ||
	    ucm_node_type(newparent) == UCM_NODE_PLAIN)
		return ucm_files_op_rename(daemon, parent, name, newparent,
					   newname, flags);
	if (ucm_node_type(parent) != UCM_NODE_BUCKET ||
	    ucm_node_type(newparent) != UCM_NODE_BUCKET)
		return -EPERM;
	if (flags & ~(unsigned)RENAME_NOREPLACE)
		return -EINVAL;
	if (!block_name(parent, name, &id))
		return -EPERM; /* a block's name is what it is */
	file = staging_in(daemon, parent, name);
	if (!file)
		return -ENOENT;
	if (!block_name(newparent, newname, &id))
		err = rename_to_block(event, file, newparent, &id, flags);
	else if (ucm_name_is_staging(newname))
		err = rename_to_staging(daemon, file, newparent, newname,
					flags);
	else
		err = -EINVAL;
	ucm_handle_put(daemon, file);
	return err;
}

void ucm_op_rename(fuse_req_t req, fuse_ino_t parent, const char *name,
		   fuse_ino_t newparent, const char *newname,
		   unsigned int flags)
{
	struct ucm_account event = ucm_account_begin(req, UCM_OP_RENAME);

	ucm_account_reply(
		req, &event,
		rename_file(&event, parent, name, newparent, newname, flags));
}

/* ---- other files than regular ones: links in files/, and nothing else ---- */

void ucm_op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name,
		  mode_t mode, dev_t dev)
{
	struct ucm_account event = ucm_account_begin(req, UCM_OP_CREATE);
	struct fuse_entry_param entry;
	int err = -EPERM;

	(void)dev;
	if (ucm_node_type(parent) == UCM_NODE_PLAIN)
		err = ucm_files_op_mknod(req, parent, name, mode, &entry);
	reply_entry(req, &event, err, &entry);
}

void ucm_op_symlink(fuse_req_t req, const char *link, fuse_ino_t parent,
		    const char *name)
{
	struct ucm_account event = ucm_account_begin(req, UCM_OP_CREATE);
	struct fuse_entry_param entry;
	int err = -EPERM;

	if (ucm_node_type(parent) == UCM_NODE_PLAIN)
		err = ucm_files_op_symlink(req, parent, name, link, &entry);
	reply_entry(req, &event, err, &entry);
}

void ucm_op_readlink(fuse_req_t req, fuse_ino_t ino)
{
	struct ucm_account event = ucm_account_begin(req, UCM_OP_GETATTR);
	char target[PATH_MAX];
	int err = -EINVAL;

	if (ucm_node_type(ino) == UCM_NODE_PLAIN)
		err = ucm_files_op_readlink(event.daemon, ino, target);
	ucm_account_end(&event, err);
	if (err)
		fuse_reply_err(req, -err);
	else
		fuse_reply_readlink(req, target);
}

void ucm_op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t newparent,
		 const char *newname)
{
	(void)ino, (void)newparent, (void)newname;
	fuse_reply_err(req, EPERM);
}
