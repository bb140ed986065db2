/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spaces.c - spaces/, and the folder of a space: blocks/ or spaces/NAME.
 *
 * A space's folder holds all its buckets, whether there is anything in them or
 * not, and space.json. Its owner and mode are those of all that is in it.
 */
#include <config.h>

#include "fs/mount/node/kinds.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/log.h"
#include "common/parse.h"
#include "fs/store/find/find.h"
#include "fs/store/quota.h"
#include "fs/tier/wait.h"
#include "hashing/tree.h"

/* ---- spaces/ ---- */

void ucm_spaces_attr(struct ucm_daemon *daemon, struct stat *out)
{
	ucm_attr_folder(daemon, UCM_FIXED_SPACES, out);
	out->st_mode = S_IFDIR | S_ISVTX | 0777; /* as /tmp: all make theirs */
}

static int spaces_getattr(struct ucm_daemon *daemon, fuse_ino_t ino,
			  struct stat *out)
{
	(void)ino;
	ucm_spaces_attr(daemon, out);
	return 0;
}

/* NULL: there is none; the default space is not in here. */
static struct ucm_space *spaces_find(struct ucm_daemon *daemon,
				     const char *name)
{
	return *name ? ucm_namespace_find(&daemon->store->names, name) : NULL;
}

static int spaces_lookup(struct ucm_account *account, fuse_ino_t parent,
			 const char *name, struct fuse_entry_param *out)
{
	struct ucm_store *store = account->daemon->store;
	struct ucm_space *space = spaces_find(account->daemon, name);

	(void)parent;
	if (!space && *name && ucm_store_is_shared(store)) {
		int err = ucm_wait_for_any(&store->dirs);

		if (err)
			return err;
		space = ucm_store_meet_space(store, name);
	}
	if (!space)
		return -ENOENT;
	return ucm_entry_fill(&ucm_space_ops, account->daemon,
			      ucm_node_make(UCM_NODE_SPACE, space->number),
			      out);
}

static int spaces_readdir(struct ucm_listing *list, fuse_ino_t ino, off_t off,
			  const struct fuse_file_info *fi)
{
	struct ucm_namespace *names = &list->daemon->store->names;
	unsigned num = names->num;
	struct stat attr;

	(void)ino, (void)fi;
	ucm_spaces_attr(list->daemon, &attr);
	if (!ucm_list_dots(list, &attr, &off))
		return 0;
	/* number 0 is the default space, which is not in here */
	for (unsigned i = (unsigned)off - 1; i < num; i++) {
		struct ucm_space *space = ucm_namespace_get(names, i);

		if (!space)
			continue;
		ucm_space_attr(list->daemon, space, &attr);
		if (!ucm_list_name(list, space->name, &attr, (off_t)i + 2))
			return 0;
	}
	return 0;
}

static int spaces_mkdir(struct ucm_account *account, fuse_ino_t parent,
			const char *name, mode_t mode,
			struct fuse_entry_param *out)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(account->req);
	struct ucm_store *store = account->daemon->store;
	struct ucm_space *space;
	int err = ucm_wait_for_any(&store->dirs);

	if (!err)
		err = ucm_store_mkdir(store, name, mode & ~ctx->umask,
				      ctx->uid, ctx->gid, &space);
	return err ? err : spaces_lookup(account, parent, name, out);
}

bool ucm_daemon_writes_to(struct ucm_daemon *daemon,
			  const struct ucm_space *space)
{
	_cleanup_free_ uint64_t *serials = NULL;

	return ucm_handles_list(daemon, space->number, UINT32_MAX, &serials);
}

static int spaces_rmdir(struct ucm_account *account, fuse_ino_t parent,
			const char *name)
{
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_space *space = spaces_find(daemon, name);
	int err;

	(void)parent;
	if (!space)
		return -ENOENT;
	err = ucm_wait_long(UCM_WAIT_MANY);
	if (err)
		return err;
	if (ucm_daemon_writes_to(daemon, space))
		return -ENOTEMPTY;
	return ucm_store_rmdir(daemon->store, space);
}

/* ---- a space's folder ---- */

void ucm_space_attr(struct ucm_daemon *daemon, struct ucm_space *space,
		    struct stat *out)
{
	ucm_attr_folder(daemon, ucm_ino_of_space(space), out);
	if (space)
		ucm_attr_set_owner(out, space);
}

static int space_getattr(struct ucm_daemon *daemon, fuse_ino_t ino,
			 struct stat *out)
{
	struct ucm_space *space = ucm_node_space(daemon, ino);

	if (!space)
		return -ENOENT;
	ucm_space_attr(daemon, space, out);
	return 0;
}

static int space_chown(struct ucm_daemon *daemon, struct ucm_space *space,
		       const struct stat *attr, int to_set)
{
	int err = ucm_wait_for_any(&daemon->store->dirs);

	if (err)
		return err;
	if (to_set & FUSE_SET_ATTR_MODE)
		err = ucm_store_chmod(daemon->store, space,
				      ucm_space_mode_is_private(attr->st_mode));
	if (!err && to_set & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID))
		err = ucm_store_chown(
			daemon->store, space,
			to_set & FUSE_SET_ATTR_UID ? attr->st_uid : (uid_t)-1,
			to_set & FUSE_SET_ATTR_GID ? attr->st_gid : (gid_t)-1);
	return err;
}

static int space_setattr(struct ucm_account *account, fuse_ino_t ino,
			 const struct stat *attr, int to_set)
{
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_space *space = ucm_node_space(daemon, ino);
	struct stat now;

	if (!space)
		return -ENOENT;
	ucm_space_attr(daemon, space, &now);
	if (ucm_attr_changes_nothing(&now, attr, to_set))
		return 0;
	if (space->number == 0) /* its owner is an option of the mount */
		return -EPERM;
	return space_chown(daemon, space, attr, to_set);
}

static int space_lookup(struct ucm_account *account, fuse_ino_t parent,
			const char *name, struct fuse_entry_param *out)
{
	struct ucm_daemon *daemon = account->daemon;
	struct ucm_space *space = ucm_node_space(daemon, parent);
	int bucket = ucm_tree_parse_bucket(name);

	if (!space)
		return -ENOENT;
	if (bucket >= 0)
		return ucm_entry_fill(
			&ucm_bucket_ops, daemon,
			ucm_node_bucket(space->number, (unsigned)bucket), out);
	if (strcmp(name, UCM_TREE_MANIFEST))
		return -ENOENT;
	return ucm_entry_fill(&ucm_manifest_ops, daemon,
			      ucm_node_make(UCM_NODE_MANIFEST, space->number),
			      out);
}

static int space_opendir(struct ucm_account *account, fuse_ino_t ino,
			 struct fuse_file_info *fi)
{
	(void)fi;
	return ucm_node_space(account->daemon, ino) ? 0 : -ENOENT;
}

static bool space_list_buckets(struct ucm_listing *list,
			       struct ucm_space *space, off_t *off)
{
	struct stat attr;
	char name[3];

	for (; *off < UCM_BUCKETS + 2; ++*off) {
		unsigned bucket = (unsigned)*off - 2;

		ucm_tree_bucket_name(bucket, name);
		ucm_bucket_attr(list->daemon, space, bucket, &attr);
		if (!ucm_list_name(list, name, &attr, *off + 1))
			return false;
	}
	return true;
}

static int space_readdir(struct ucm_listing *list, fuse_ino_t ino, off_t off,
			 const struct fuse_file_info *fi)
{
	struct ucm_space *space = ucm_node_space(list->daemon, ino);
	struct fuse_entry_param manifest;
	struct stat attr;

	(void)fi;
	ucm_space_attr(list->daemon, space, &attr);
	if (!ucm_list_dots(list, &attr, &off) ||
	    !space_list_buckets(list, space, &off))
		return 0;
	if (off == UCM_BUCKETS + 2 && space &&
	    !ucm_entry_fill(&ucm_manifest_ops, list->daemon,
			    ucm_node_make(UCM_NODE_MANIFEST, space->number),
			    &manifest))
		ucm_list_entry(list, UCM_TREE_MANIFEST, &manifest,
			       UCM_BUCKETS + 3);
	return 0;
}

static int space_create(struct ucm_account *account, fuse_ino_t parent,
			const char *name, mode_t mode,
			struct fuse_file_info *fi,
			struct fuse_entry_param *out)
{
	(void)mode;
	if (strcmp(name, UCM_TREE_MANIFEST))
		return -EPERM;
	return ucm_manifest_create(account, parent, fi, out);
}

/* In a space that has a quota df shows that. */
static void space_narrow(struct ucm_daemon *daemon, fuse_ino_t ino,
			 struct statvfs *st)
{
	struct ucm_space *space = ucm_node_space(daemon, ino);
	uint64_t quota = space ? ucm_quota_of(daemon->store->config, space) : 0;

	if (quota)
		ucm_narrow_to_quota(st, quota, atomic_load(&space->used));
}

/* ---- its extended attributes ---- */

enum { QUOTA, USED }; /* bytes; used: what its blocks take on disk */

static int space_get_bytes(const struct ucm_xattr *attr, struct ucm_daemon *daemon,
			   fuse_ino_t ino, char *value)
{
	const struct ucm_space *space = ucm_node_space(daemon, ino);
	uint64_t quota = space ? ucm_quota_of(daemon->store->config, space) : 0;

	if (attr->what == QUOTA ? !quota : !space)
		return -ENODATA;
	return snprintf(value, UCM_XATTR_MAX, "%" PRIu64,
			attr->what == QUOTA ? quota
					    : atomic_load(&space->used));
}

static int space_set_quota(const struct ucm_xattr *attr, struct ucm_daemon *daemon,
			   fuse_ino_t ino, const char *value, size_t size)
{
	struct ucm_space *space = ucm_node_space(daemon, ino);
	char text[24] = "";
	uint64_t bytes = 0;
	int err;

	(void)attr;
	if (!space)
		return -ENOENT;
	if (size < sizeof(text))
		memcpy(text, value, size);
	if (size >= sizeof(text) || (size && ucm_parse_bytes(text, &bytes)) ||
	    bytes > UCM_QUOTA_MAX) {
		ucm_error("%s: user.ucmfs.quota: \"%.*s\" is not what is "
			  "wanted: bytes, such as 500G",
			  space->folder, (int)(size < 64 ? size : 64), value);
		return -EINVAL;
	}
	err = ucm_wait_long(UCM_WAIT_MANY);
	return err ? err : ucm_store_set_quota(daemon->store, space, bytes);
}

static const struct ucm_xattr space_xattrs[] = {
	{
		.name = UCM_XATTR_PREFIX "quota",
		.get = space_get_bytes,
		.set = space_set_quota,
		.removed_as_empty = true,
	},
	{
		.name = UCM_XATTR_PREFIX "used",
		.get = space_get_bytes,
		.what = USED,
	},
	{ 0 },
};

const struct ucm_node_ops ucm_spaces_ops = {
	.timeout = ucm_entry_timeout,
	.getattr = spaces_getattr,
	.lookup = spaces_lookup,
	.readdir = spaces_readdir,
	.mkdir = spaces_mkdir,
	.rmdir = spaces_rmdir,
};

const struct ucm_node_ops ucm_space_ops = {
	.timeout = ucm_entry_timeout,
	.xattrs = space_xattrs,
	.narrow = space_narrow,
	.getattr = space_getattr,
	.setattr = space_setattr,
	.lookup = space_lookup,
	.readdir = space_readdir,
	.opendir = space_opendir,
	.create = space_create,
};
