/* SPDX-License-Identifier: Apache-2.0 */
/*
 * node.c - node ids, and the attributes of what they stand for.
 *
 * st_ino is not the node id: it must survive a remount, so it is made from the
 * block's hash (or the space's name). Bit 62 keeps those apart from the few
 * fixed numbers.
 */
#include <config.h>

#include "fs/mount/daemon.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/osfile.h"
#include "fs/mount/ops_files.h"

#define DIR_MODE (S_IFDIR | 0755)
#define INO_HASHED (UINT64_C(1) << 62)

static uint64_t mix(uint64_t x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9u;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static uint64_t hash_text(const char *text)
{
	uint64_t hash = 0;

	for (; *text; text++)
		hash = mix(hash + (unsigned char)*text + 1);
	return hash;
}

static ino_t hashed_ino(uint64_t hash)
{
	return (hash & (INO_HASHED - 1)) | INO_HASHED;
}

/* By name, as numbers may differ at the next mount. */
static uint64_t space_hash(const struct ucm_space *space)
{
	return hash_text(space->folder);
}

static ino_t block_ino(const struct ucm_space *space, const struct ucm_id *id)
{
	uint64_t low, high;

	memcpy(&low, id->bytes, sizeof(low));
	memcpy(&high, id->bytes + 8, sizeof(high));
	return hashed_ino(mix(low ^ mix(high ^ space_hash(space))));
}

struct ucm_space *ucm_node_space(struct ucm_daemon *daemon, fuse_ino_t ino)
{
	uint64_t value = ucm_node_value(ino);

	if (ucm_node_type(ino) == UCM_NODE_BUCKET)
		value >>= 8;
	return value < UCM_MAX_SPACES
		       ? ucm_namespace_get(&daemon->set->names, (unsigned)value)
		       : NULL;
}

static void set_times(struct stat *st, const struct timespec *time)
{
	st->st_atim = st->st_mtim = st->st_ctim = *time;
}

static void set_owner(struct stat *st, struct ucm_space *space)
{
	pthread_mutex_lock(&space->lock);
	st->st_uid = space->uid;
	st->st_gid = space->gid;
	if (space->is_private)
		st->st_mode &= ~(mode_t)077;
	pthread_mutex_unlock(&space->lock);
}

void ucm_attr_dir(struct ucm_daemon *daemon, fuse_ino_t ino, struct stat *out)
{
	struct ucm_space *space = NULL;

	*out = (struct stat){
		.st_mode = DIR_MODE,
		.st_nlink = 1, /* 2 would say that there is no folder in it */
		.st_uid = daemon->set->names.spaces[0]->uid,
		.st_gid = daemon->set->names.spaces[0]->gid,
		.st_blksize = UCM_BLOCK_PAGE,
	};
	set_times(out, &daemon->started);
	switch (ucm_node_type(ino)) {
	case UCM_NODE_SPACE:
		space = ucm_node_space(daemon, ino);
		out->st_ino = hashed_ino(space ? space_hash(space) : 0);
		break;
	case UCM_NODE_BUCKET:
		space = ucm_node_space(daemon, ino);
		out->st_ino = hashed_ino(mix((space ? space_hash(space) : 0) +
					     ucm_bucket_number(ino) + 1));
		break;
	default:
		out->st_ino = ino;
		if (ino == UCM_FIXED_SPACES) /* as /tmp: everyone makes theirs */
			out->st_mode = S_IFDIR | S_ISVTX | 0777;
		break;
	}
	if (space)
		set_owner(out, space);
}

void ucm_attr_block(struct ucm_daemon *daemon, const struct ucm_entry *entry,
		    struct stat *out)
{
	struct ucm_space *space = daemon->set->names.spaces[entry->space];

	*out = (struct stat){
		.st_ino = block_ino(space, &entry->id),
		.st_mode = S_IFREG | 0644,
		.st_nlink = 1,
		.st_size = (off_t)entry->size,
		.st_blocks = entry->blocks,
		.st_blksize = UCM_BLOCK_PAGE,
		.st_atim.tv_sec = entry->atime_s,
		.st_mtim.tv_sec = entry->mtime_ns / 1000000000,
		.st_mtim.tv_nsec = entry->mtime_ns % 1000000000,
	};
	out->st_ctim = out->st_mtim;
	set_owner(out, space);
}

int ucm_attr_manifest(struct ucm_daemon *daemon, struct ucm_space *space,
		      struct stat *out)
{
	_cleanup_free_ char *text = malloc(UCM_MANIFEST_MAX);

	if (!text)
		return -ENOMEM;
	if (ucm_store_read_manifest(daemon->set, space, text, UCM_MANIFEST_MAX))
		return -ENOENT;
	*out = (struct stat){
		.st_ino = hashed_ino(mix(space_hash(space) + 1000)),
		.st_mode = S_IFREG | 0644,
		.st_nlink = 1,
		.st_size = (off_t)strlen(text),
		.st_blksize = UCM_BLOCK_PAGE,
	};
	out->st_blocks = (out->st_size + 511) / 512;
	set_times(out, &daemon->started);
	set_owner(out, space);
	return 0;
}

void ucm_attr_file(struct ucm_daemon *daemon, struct ucm_handle *file,
		   const struct stat *st, struct stat *out)
{
	struct ucm_space *space = daemon->set->names.spaces[file->key.space];

	*out = *st;
	out->st_ino = file->node;
	out->st_mode = S_IFREG | 0644;
	out->st_nlink = 1;
	out->st_blksize = UCM_BLOCK_PAGE;
	set_owner(out, space);
}

/* The descriptor tells; a closed staging file is opened for the question. */
static int stat_file(struct ucm_daemon *daemon, struct ucm_handle *file,
		     struct stat *out)
{
	struct stat st;
	int fd, err;

	pthread_mutex_lock(&file->lock);
	fd = ucm_handle_borrow_fd(daemon, file);
	err = fd < 0 ? fd : ucm_os_fstat(fd, &st);
	ucm_handle_return_fd(file, fd);
	if (!err)
		ucm_attr_file(daemon, file, &st, out);
	pthread_mutex_unlock(&file->lock);
	return err;
}

static int attr_of_file(struct ucm_daemon *daemon, fuse_ino_t ino,
			struct stat *out)
{
	struct ucm_handle *file = ucm_handle_get(daemon, ino);
	int err;

	if (!file)
		return -ENOENT;
	err = stat_file(daemon, file, out);
	ucm_handle_put(daemon, file);
	return err;
}

/* A block that was unlinked while open lives on in its descriptor. */
static int attr_of_block(struct ucm_daemon *daemon, fuse_ino_t ino,
			 struct stat *out)
{
	struct ucm_entry entry;
	struct ucm_handle *file;
	struct stat st;
	int err;

	if (ucm_index_get(daemon->set->index, ucm_node_value(ino), &entry)) {
		ucm_attr_block(daemon, &entry, out);
		return 0;
	}
	file = ucm_handle_get(daemon, ino);
	if (!file)
		return -ESTALE; /* look the name up again */
	pthread_mutex_lock(&file->lock);
	err = file->fd < 0 ? -ESTALE : ucm_os_fstat(file->fd, &st);
	pthread_mutex_unlock(&file->lock);
	if (!err) {
		ucm_attr_file(daemon, file, &st, out);
		out->st_ino =
			block_ino(daemon->set->names.spaces[file->key.space],
				  &file->key.id);
		out->st_nlink = 0;
	}
	ucm_handle_put(daemon, file);
	return err;
}

int ucm_node_attr(struct ucm_daemon *daemon, fuse_ino_t ino, struct stat *out)
{
	struct ucm_space *space;

	switch (ucm_node_type(ino)) {
	case UCM_NODE_BLOCK:
		return attr_of_block(daemon, ino, out);
	case UCM_NODE_FILE:
		return attr_of_file(daemon, ino, out);
	case UCM_NODE_FIXED:
		if (ino >= UCM_FIXED_FILES)
			return ucm_control_attr(daemon, ino, out);
		ucm_attr_dir(daemon, ino, out);
		return 0;
	case UCM_NODE_SPACE:
	case UCM_NODE_BUCKET:
		if (!ucm_node_space(daemon, ino))
			return -ENOENT;
		ucm_attr_dir(daemon, ino, out);
		return 0;
	case UCM_NODE_MANIFEST:
		space = ucm_node_space(daemon, ino);
		return space ? ucm_attr_manifest(daemon, space, out) : -ENOENT;
	case UCM_NODE_TREE:
		return ucm_files_op_attr(daemon, ino, out);
	default:
		return -ENOENT;
	}
}

void ucm_entry_block(struct ucm_daemon *daemon, const struct ucm_entry *entry,
		     ucm_ref ref, struct fuse_entry_param *out)
{
	*out = (struct fuse_entry_param){
		.ino = ucm_node_make(UCM_NODE_BLOCK, ref),
		.generation = 1,
		.attr_timeout = daemon->options->entry_timeout_s,
		.entry_timeout = daemon->options->entry_timeout_s,
	};
	ucm_attr_block(daemon, entry, &out->attr);
}

bool ucm_name_is_staging(const char *name)
{
	size_t len = strlen(name);

	if (len > UCM_NAME_MAX || !strcmp(name, ".") || !strcmp(name, ".."))
		return false;
	return name[0] == '.' || (len > 4 && !strcmp(name + len - 4, ".tmp"));
}
