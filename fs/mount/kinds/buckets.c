/* SPDX-License-Identifier: Apache-2.0 */
/*
 * buckets.c - a bucket of a space: the names of blocks, and of files that are
 * to become blocks.
 *
 * A block's name says its bucket; in another it is no name. What begins with a
 * dot or ends in ".tmp" is private staging. There are no other names. What the
 * files are is in blocks.c and staging.c.
 */
#include <config.h>

#include "fs/mount/node/kinds.h"

#include <errno.h>

#include "fs/tier/wait.h"
#include "hashing/tree.h"

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1
#endif

void ucm_bucket_attr(struct ucm_daemon *daemon, struct ucm_space *space,
		     unsigned bucket, struct stat *out)
{
	ucm_attr_folder(daemon, ucm_ino_in_space(space, bucket + 1), out);
	if (space)
		ucm_attr_set_owner(out, space);
}

static int bucket_getattr(struct ucm_daemon *daemon, fuse_ino_t ino,
			  struct stat *out)
{
	struct ucm_space *space = ucm_node_space(daemon, ino);

	if (!space)
		return -ENOENT;
	ucm_bucket_attr(daemon, space, ucm_bucket_number(ino), out);
	return 0;
}

/* 0 and the key, if name is a block's name in this bucket. */
static int bucket_key(fuse_ino_t bucket, const char *name, struct ucm_key *out)
{
	if (ucm_tree_parse_block(name, &out->id) ||
	    ucm_tree_bucket(&out->id) != ucm_bucket_number(bucket))
		return -EINVAL;
	out->space = ucm_bucket_space(bucket);
	return 0;
}

static int bucket_lookup_block(struct ucm_account *account,
			       const struct ucm_key *key,
			       struct fuse_entry_param *out)
{
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_entry entry;
	ucm_ref ref;
	int err;

	ucm_account_block(account, key);
	err = ucm_store_find(daemon->store, key, &entry, &ref);
	if (err)
		return err;
	ucm_account_entry(account, &entry);
	ucm_block_entry(daemon, &entry, ref, out);
	return 0;
}

static int bucket_lookup(struct ucm_account *account, fuse_ino_t parent,
			 const char *name, struct fuse_entry_param *out)
{
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_handle *file;
	struct ucm_key key;
	int err;

	if (!bucket_key(parent, name, &key))
		return bucket_lookup_block(account, &key, out);
	if (!ucm_name_is_staging(name))
		return -ENOENT;
	file = ucm_staging_find(daemon, parent, name);
	if (!file)
		return -ENOENT;
	err = ucm_entry_fill(&ucm_staging_ops, daemon, file->node, out);
	ucm_handle_put(daemon, file);
	return err;
}

/* ---- listing ---- */

static int bucket_opendir(struct ucm_account *account, fuse_ino_t ino,
			  struct fuse_file_info *fi)
{
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_space *space = ucm_node_space(daemon, ino);

	(void)fi;
	if (!space)
		return -ENOENT;
	return ucm_store_fill_bucket(daemon->store, space,
				     ucm_bucket_number(ino));
}

static bool bucket_list_block(struct ucm_listing *list,
			      const struct ucm_entry *entry, ucm_ref ref,
			      off_t next)
{
	char name[UCM_TREE_BLOCK_LEN + 1];
	struct fuse_entry_param param;

	ucm_tree_block_name(&entry->id, name);
	ucm_block_entry(list->daemon, entry, ref, &param);
	if (entry->flags & UCM_ENTRY_DOUBT)
		param.ino = 0; /* its lookup will check it */
	return ucm_list_entry(list, name, &param, next);
}

/* False: no room left. */
static bool bucket_list_blocks(struct ucm_listing *list, fuse_ino_t ino,
			       off_t off)
{
	uint32_t cursor = (uint32_t)(off - 2);
	struct ucm_entry entry;
	ucm_ref ref;

	while (ucm_index_next(list->daemon->store->index, ucm_bucket_space(ino),
			      ucm_bucket_number(ino), &cursor, &entry, &ref)) {
		if (!bucket_list_block(list, &entry, ref, (off_t)cursor + 2))
			return false;
	}
	return true;
}

static int bucket_readdir(struct ucm_listing *list, fuse_ino_t ino, off_t off,
			  const struct fuse_file_info *fi)
{
	struct stat attr;

	(void)fi;
	ucm_bucket_attr(list->daemon, ucm_node_space(list->daemon, ino),
			ucm_bucket_number(ino), &attr);
	if (!ucm_list_dots(list, &attr, &off))
		return 0;
	if (off < UCM_LIST_STAGING) {
		if (!bucket_list_blocks(list, ino, off))
			return 0;
		off = UCM_LIST_STAGING;
	}
	ucm_staging_list(list, ino, off);
	return 0;
}

/* ---- making and removing ---- */

/* Modes are the space's. */
static int bucket_create(struct ucm_account *account, fuse_ino_t parent,
			 const char *name, mode_t mode,
			 struct fuse_file_info *fi,
			 struct fuse_entry_param *out)
{
	(void)mode;
	if (!ucm_node_space(account->daemon, parent))
		return -ENOENT;
	return ucm_staging_create(account, parent, name, fi, out);
}

static int bucket_unlink_block(struct ucm_account *account,
			       const struct ucm_key *key)
{
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_entry entry;

	ucm_account_block(account, key);
	if (daemon->trace &&
	    ucm_index_find(daemon->store->index, key, &entry, NULL))
		ucm_account_entry(account, &entry);
	return ucm_store_remove(daemon->store, key);
}

static int bucket_unlink(struct ucm_account *account, fuse_ino_t parent,
			 const char *name)
{
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_handle *file;
	struct ucm_key key;

	if (!bucket_key(parent, name, &key))
		return bucket_unlink_block(account, &key);
	file = ucm_staging_find(daemon, parent, name);
	if (!file)
		return -ENOENT;
	ucm_handle_set_name(daemon, file, 0, 0, NULL);
	ucm_handle_put(daemon, file);
	return 0;
}

/* ---- rename: staging becomes a block, or other staging ---- */

static int bucket_rename_to_block(struct ucm_account *account,
				  struct ucm_handle *file,
				  const struct ucm_key *key, unsigned flags)
{
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_entry entry;
	ucm_ref ref;
	int err = ucm_wait_long(file->dir);

	if (err)
		return err;
	if (flags & RENAME_NOREPLACE &&
	    !ucm_store_find(daemon->store, key, &entry, &ref))
		return -EEXIST;
	err = ucm_staging_commit(account, file, key);
	if (!err)
		ucm_handle_set_name(daemon, file, 0, 0, NULL);
	return err;
}

static int bucket_rename_to_staging(struct ucm_daemon *daemon,
				    struct ucm_handle *file, fuse_ino_t parent,
				    const char *name, unsigned flags)
{
	struct ucm_handle *there = ucm_staging_find(daemon, parent, name);

	if (there) {
		ucm_handle_put(daemon, there);
		if (flags & RENAME_NOREPLACE)
			return -EEXIST;
	}
	return ucm_handle_set_name(daemon, file, ucm_bucket_space(parent),
				   ucm_bucket_number(parent), name);
}

static int bucket_rename(struct ucm_account *account, fuse_ino_t parent,
			 const char *name, fuse_ino_t newparent,
			 const char *newname, unsigned flags)
{
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_handle *file;
	struct ucm_key key;
	int err;

	if (flags & ~(unsigned)RENAME_NOREPLACE)
		return -EINVAL;
	if (!bucket_key(parent, name, &key))
		return -EPERM; /* a block's name is what it is */
	file = ucm_staging_find(daemon, parent, name);
	if (!file)
		return -ENOENT;
	if (!bucket_key(newparent, newname, &key))
		err = bucket_rename_to_block(account, file, &key, flags);
	else if (ucm_name_is_staging(newname))
		err = bucket_rename_to_staging(daemon, file, newparent,
					       newname, flags);
	else
		err = -EINVAL;
	ucm_handle_put(daemon, file);
	return err;
}

const struct ucm_node_ops ucm_bucket_ops = {
	.timeout = ucm_entry_timeout,
	.getattr = bucket_getattr,
	.lookup = bucket_lookup,
	.readdir = bucket_readdir,
	.opendir = bucket_opendir,
	.create = bucket_create,
	.unlink = bucket_unlink,
	.rename = bucket_rename,
};
