/* SPDX-License-Identifier: Apache-2.0 */
/*
 * root.c - the root of the mount: blocks/, spaces/, files/ and .ucmfs/.
 */
#include <config.h>

#include "fs/mount/node/kinds.h"

#include <errno.h>
#include <string.h>

#include "fs/tier/wait.h"

static int root_getattr(struct ucm_daemon *daemon, fuse_ino_t ino,
			struct stat *out)
{
	ucm_attr_folder(daemon, ino, out);
	return 0;
}

static int root_lookup(struct ucm_account *account, fuse_ino_t parent,
		       const char *name, struct fuse_entry_param *out)
{
	struct ucm_daemon *daemon = account->daemon;
	int err;

	(void)parent;
	if (!strcmp(name, UCM_TREE_BLOCKS))
		return ucm_entry_fill(&ucm_space_ops, daemon,
				      ucm_node_make(UCM_NODE_SPACE, 0), out);
	if (!strcmp(name, UCM_TREE_SPACES))
		return ucm_entry_fill(&ucm_spaces_ops, daemon,
				      UCM_FIXED_SPACES, out);
	if (!strcmp(name, UCM_TREE_OWN))
		return ucm_entry_fill(&ucm_control_dir_ops, daemon,
				      UCM_FIXED_CONTROL, out);
	if (strcmp(name, UCM_TREE_FILES))
		return -ENOENT;
	err = ucm_wait_for(&daemon->store->dirs, daemon->file_tree.dir);
	return err ? err : ucm_files_ops_root(daemon, out);
}

/* .ucmfs is there for whoever knows it. */
static int root_readdir(struct ucm_listing *list, fuse_ino_t ino, off_t off,
			const struct fuse_file_info *fi)
{
	struct fuse_entry_param files;
	struct stat attr;
	int err = ucm_wait_for(&list->daemon->store->dirs,
			       list->daemon->file_tree.dir);

	(void)fi;
	if (err) /* of files/ its directory is asked */
		return err;
	root_getattr(list->daemon, ino, &attr);
	if (!ucm_list_dots(list, &attr, &off))
		return 0;
	ucm_space_attr(list->daemon, list->daemon->store->names.spaces[0],
		       &attr);
	if (off == 2 && ucm_list_name(list, UCM_TREE_BLOCKS, &attr, 3))
		off++;
	ucm_spaces_attr(list->daemon, &attr);
	if (off == 3 && ucm_list_name(list, UCM_TREE_SPACES, &attr, 4))
		off++;
	/* old tiers that are read-only have none */
	if (off == 4 && !ucm_files_ops_root(list->daemon, &files))
		ucm_list_entry(list, UCM_TREE_FILES, &files, 5);
	return 0;
}

/* The kernel keeps syncfs(2) to itself, so the root stands for all. */
static int root_fsyncdir(struct ucm_account *account, fuse_ino_t ino)
{
	(void)ino;
	return ucm_store_sync(account->daemon->store);
}

const struct ucm_node_ops ucm_root_ops = {
	.timeout = ucm_entry_timeout,
	.getattr = root_getattr,
	.lookup = root_lookup,
	.readdir = root_readdir,
	.fsyncdir = root_fsyncdir,
};
