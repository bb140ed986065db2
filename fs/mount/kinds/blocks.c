/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blocks.c - a committed block.
 *
 * It is opened for reading alone. Its bytes, mode and owner cannot be changed;
 * a call that changes nothing succeeds, because cp -p, install, rsync and tar
 * make such calls. A block that was unlinked lives on for those who have it
 * open.
 */
#include <config.h>

#include "fs/mount/node/kinds.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/log.h"
#include "common/osfile.h"
#include "hashing/tree.h"

static const struct ucm_handle_ops block_handle;

/* ---- attributes ---- */

static void block_attr(struct ucm_daemon *daemon,
		       const struct ucm_entry *entry, struct stat *out)
{
	struct ucm_space *space = daemon->store->names.spaces[entry->space];

	*out = (struct stat){
		.st_ino = ucm_ino_of_block(space, &entry->id),
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
	ucm_attr_set_owner(out, space);
}

void ucm_block_entry(struct ucm_daemon *daemon, const struct ucm_entry *entry,
		     ucm_ref ref, struct fuse_entry_param *out)
{
	*out = (struct fuse_entry_param){
		.ino = ucm_node_make(UCM_NODE_BLOCK, ref),
		.generation = 1,
		.attr_timeout = daemon->options->entry_timeout_s,
		.entry_timeout = daemon->options->entry_timeout_s,
	};
	block_attr(daemon, entry, &out->attr);
}

static bool block_find(struct ucm_daemon *daemon, fuse_ino_t ino,
		       struct ucm_entry *out)
{
	return ucm_index_get(daemon->store->index, ucm_node_value(ino), out);
}

/* Of what was unlinked, and lives on in its descriptor: -ESTALE if nobody has it
 * open. */
static int block_unlinked_attr(struct ucm_daemon *daemon, fuse_ino_t ino,
			       struct stat *out)
{
	struct ucm_key key;
	struct stat st;
	int err = ucm_handle_stat(daemon, ino, &st, &key);

	if (err == -ENOENT)
		return -ESTALE; /* look the name up again */
	if (err)
		return err;
	ucm_attr_file(daemon, key.space,
		      ucm_ino_of_block(daemon->store->names.spaces[key.space],
				       &key.id),
		      &st, out);
	out->st_nlink = 0;
	return 0;
}

static int block_getattr(struct ucm_daemon *daemon, fuse_ino_t ino,
			 struct stat *out)
{
	struct ucm_entry entry;

	if (!block_find(daemon, ino, &entry))
		return block_unlinked_attr(daemon, ino, out);
	block_attr(daemon, &entry, out);
	return 0;
}

static int block_setattr(struct ucm_account *account, fuse_ino_t ino,
			 const struct stat *attr, int to_set)
{
	struct ucm_daemon *daemon = account->daemon;
	struct timespec times[2];
	struct stat now;
	int err = block_getattr(daemon, ino, &now);

	if (err)
		return err;
	if (to_set & FUSE_SET_ATTR_SIZE ||
	    !ucm_attr_changes_nothing(&now, attr, to_set))
		return -EPERM;
	if (!(to_set & UCM_SET_TIMES))
		return 0;
	ucm_attr_times(attr, to_set, times);
	return ucm_store_set_times(daemon->store, ucm_node_value(ino), times);
}

static void block_note(struct ucm_account *account, fuse_ino_t ino)
{
	ucm_account_ref(account, ucm_node_value(ino));
}

/* ---- open ---- */

/* Under file->lock. */
static int block_open_first(fuse_req_t req, struct ucm_handle *file)
{
	struct ucm_daemon *daemon = ucm_daemon_of(req);
	struct ucm_entry entry;
	struct ucm_file opened;
	int err = ucm_store_open_block(daemon->store,
				       ucm_node_value(file->node), &entry,
				       &opened, &file->open);

	if (!err)
		err = ucm_handle_take(file, &opened);
	if (err)
		return err;
	file->key = (struct ucm_key){ .id = entry.id, .space = entry.space };
	file->dir = entry.dir;
	file->size = entry.size;
	ucm_handle_attach(req, file);
	return 0;
}

/* It is what its name says. */
static int block_refuse_write(struct ucm_account *account, fuse_ino_t ino)
{
	struct ucm_entry entry;

	if (!block_find(account->daemon, ino, &entry))
		return -ESTALE;
	ucm_account_entry(account, &entry);
	return -EPERM;
}

static int block_open(struct ucm_account *account, fuse_ino_t ino,
		      struct fuse_file_info *fi)
{
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_handle *file;
	int err;

	if (ucm_open_changes(fi))
		return block_refuse_write(account, ino);
	file = ucm_handle_get(daemon, ino);
	if (!file)
		file = ucm_handle_open(daemon, &block_handle, ino);
	if (!file)
		return -ENOMEM;
	err = ucm_handle_lock(file);
	if (err) {
		ucm_handle_put(daemon, file);
		return err;
	}
	if (file->opens)
		err = ucm_store_open_again(daemon->store, &file->open);
	else
		err = block_open_first(account->req, file);
	if (!err) {
		ucm_handle_count_open(file, fi);
		ucm_account_file(account, file);
	}
	pthread_mutex_unlock(&file->lock);
	if (err)
		ucm_handle_put(daemon, file);
	/* ESTALE makes the kernel look the name up again: it may be another
	 * block's by now, or lie in another tier */
	return err == -ENOENT ? -ESTALE : err;
}

int ucm_block_sync(struct ucm_daemon *daemon, const struct ucm_handle *file,
		   bool datasync)
{
	int err = ucm_handle_sync(file, datasync);

	if (!err)
		return 0;
	ucm_error("block %s: fsync: %s: the file will not become a block",
		  ucm_hex(&file->key.id).text, strerror(-err));
	ucm_dirs_count_error(&daemon->store->dirs, file->dir, err);
	return err;
}

static int block_fsync(struct ucm_account *account, struct ucm_handle *file,
		       bool datasync)
{
	return ucm_block_sync(account->daemon, file, datasync);
}

/* ---- extended attributes ---- */

static int put_name(char *value, const struct ucm_tier *tier)
{
	return snprintf(value, UCM_XATTR_MAX, "%s", tier->name);
}

enum { TIER, COPY, USES, CHILDREN, PINNED };

/* What the index knows. -ENODATA: no copy is known. */
static int block_get_known(const struct ucm_xattr *attr, struct ucm_daemon *daemon,
			   fuse_ino_t ino, char *value)
{
	struct ucm_tier *const *tier_of = daemon->store->dirs.tier_of;
	struct ucm_entry entry;
	uint32_t number;

	if (!block_find(daemon, ino, &entry))
		return -ENOENT;
	switch (attr->what) {
	case TIER: return put_name(value, tier_of[entry.dir]);
	case COPY:
		return entry.copy ? put_name(value, tier_of[entry.copy - 1])
				  : -ENODATA;
	case USES: number = entry.uses; break;
	case CHILDREN: number = entry.children; break;
	default: number = !!(entry.flags & UCM_ENTRY_PINNED); break;
	}
	return snprintf(value, UCM_XATTR_MAX, "%" PRIu32, number);
}

static int block_get_path(const struct ucm_xattr *attr, struct ucm_daemon *daemon,
			  fuse_ino_t ino, char *value)
{
	struct ucm_entry entry;
	int err;

	(void)attr;
	if (!block_find(daemon, ino, &entry))
		return -ENOENT;
	err = ucm_store_path(daemon->store, &entry, value, UCM_XATTR_MAX);
	return err ? err : (int)strlen(value);
}

/* what: the flag of the field. -ENODATA: its header has no such field. */
static int block_get_field(const struct ucm_xattr *attr, struct ucm_daemon *daemon,
			   fuse_ino_t ino, char *value)
{
	struct ucm_entry entry;
	struct ucm_block block;
	int err;

	if (!block_find(daemon, ino, &entry))
		return -ENOENT;
	err = ucm_store_header(daemon->store, ucm_node_value(ino), &block);
	if (err)
		return err;
	if (!(block.flags & attr->what))
		return -ENODATA;
	if (attr->what == UCM_BLOCK_HAS_CRC)
		return snprintf(value, UCM_XATTR_MAX, "%08x", block.payload_crc);
	ucm_id_format(&block.parent, value);
	return UCM_ID_HEX;
}

static int block_get_opens(const struct ucm_xattr *attr, struct ucm_daemon *daemon,
			   fuse_ino_t ino, char *value)
{
	struct ucm_hold hold;
	int err = ucm_store_holds(daemon->store, ucm_node_value(ino), &hold);

	(void)attr;
	return err ? err
		   : snprintf(value, UCM_XATTR_MAX, "%" PRIu32, hold.opens);
}

static int block_set_pinned(const struct ucm_xattr *attr, struct ucm_daemon *daemon,
			    fuse_ino_t ino, const char *value, size_t size)
{
	(void)attr;
	if (size != 1 || (*value != '0' && *value != '1'))
		return -EINVAL;
	return ucm_store_pin(daemon->store, ucm_node_value(ino), *value == '1');
}

static const struct ucm_xattr block_xattrs[] = {
	{ .name = UCM_XATTR_PREFIX "tier", .get = block_get_known, .what = TIER },
	{
		.name = UCM_XATTR_PREFIX "path",
		.get = block_get_path,
		.root_only = true,
	},
	{
		.name = UCM_XATTR_PREFIX "crc32c",
		.get = block_get_field,
		.what = UCM_BLOCK_HAS_CRC,
	},
	{
		.name = UCM_XATTR_PREFIX "parent",
		.get = block_get_field,
		.what = UCM_BLOCK_HAS_PARENT,
	},
	{ .name = UCM_XATTR_PREFIX "children", .get = block_get_known, .what = CHILDREN },
	{ .name = UCM_XATTR_PREFIX "copy", .get = block_get_known, .what = COPY },
	{ .name = UCM_XATTR_PREFIX "uses", .get = block_get_known, .what = USES },
	{ .name = UCM_XATTR_PREFIX "opens", .get = block_get_opens },
	{
		.name = UCM_XATTR_PREFIX "pinned",
		.get = block_get_known,
		.set = block_set_pinned,
		.what = PINNED,
	},
	{ 0 },
};

static const struct ucm_handle_ops block_handle = {
	.is_block = true,
	.is_final = true,
	.fsync = block_fsync,
};

const struct ucm_node_ops ucm_block_ops = {
	.timeout = ucm_entry_timeout,
	.xattrs = block_xattrs,
	.getattr = block_getattr,
	.setattr = block_setattr,
	.note = block_note,
	.open = block_open,
};
