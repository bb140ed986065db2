/* SPDX-License-Identifier: Apache-2.0 */
/* test_kinds.c - each node id has the table of its kind, and each table what
 * the FUSE operations take for granted. */
#include <config.h>

#include "fs/mount/node/kinds.h"

#include <string.h>

#include "tests/unit/unit.h"

static const struct ucm_node_ops nothing;

/* What the kernel has never been given has a table as well, an empty one. */
static const struct {
	fuse_ino_t ino;
	const struct ucm_node_ops *want;
} nodes[] = {
	{ 0, &nothing },
	{ UCM_FIXED_ROOT, &ucm_root_ops },
	{ UCM_FIXED_SPACES, &ucm_spaces_ops },
	{ UCM_FIXED_CONTROL, &ucm_control_dir_ops },
	{ UCM_FIXED_CONTROL + 1, &nothing },
	{ UCM_FIXED_CONTROLS - 1, &nothing },
	{ UCM_FIXED_CONTROLS, &ucm_control_ops },
	{ UCM_FIXED_CONTROLS + 5, &ucm_control_ops },
	{ (fuse_ino_t)UCM_NODE_SPACE << 60, &ucm_space_ops },
	{ (fuse_ino_t)UCM_NODE_SPACE << 60 | 7, &ucm_space_ops },
	{ (fuse_ino_t)UCM_NODE_BUCKET << 60 | 0x7ff, &ucm_bucket_ops },
	{ (fuse_ino_t)UCM_NODE_BLOCK << 60 | 1, &ucm_block_ops },
	{ (fuse_ino_t)UCM_NODE_FILE << 60 | 1, &ucm_staging_ops },
	{ (fuse_ino_t)UCM_NODE_MANIFEST << 60, &ucm_manifest_ops },
	{ (fuse_ino_t)UCM_NODE_TREE << 60, &ucm_files_ops },
	{ (fuse_ino_t)UCM_NODE_TREE << 60 | 0x7f0000001000, &ucm_files_ops },
};

UNIT_TEST(a_node_has_the_table_of_its_kind, .rows = NUM_ROWS(nodes))
{
	const struct ucm_node_ops *ops = ucm_node_ops_of(nodes[_i].ino);

	ck_assert_ptr_nonnull(ops);
	if (nodes[_i].want == &nothing)
		ck_assert_mem_eq(ops, &nothing, sizeof(nothing));
	else
		ck_assert_ptr_eq(ops, nodes[_i].want);
}

static const struct ucm_node_ops *const kinds[] = {
	&ucm_root_ops,	   &ucm_spaces_ops,	 &ucm_space_ops,
	&ucm_bucket_ops,   &ucm_block_ops,	 &ucm_staging_ops,
	&ucm_manifest_ops, &ucm_control_dir_ops, &ucm_control_ops,
	&ucm_files_ops,
};

UNIT_TEST(every_kind_tells_its_attributes, .rows = NUM_ROWS(kinds))
{
	ck_assert_ptr_nonnull(kinds[_i]->getattr);
}

UNIT_TEST(a_folder_can_be_searched_and_listed_and_a_file_opened,
	  .rows = NUM_ROWS(kinds))
{
	const struct ucm_node_ops *ops = kinds[_i];

	ck_assert(!ops->lookup == !ops->readdir);
	ck_assert(ops->lookup || ops->open);
	if (ops->create || ops->mkdir || ops->unlink || ops->rename)
		ck_assert_ptr_nonnull(ops->lookup);
	if (ops->releasedir)
		ck_assert_ptr_nonnull(ops->opendir);
}

UNIT_TEST(what_makes_folders_removes_them, .rows = NUM_ROWS(kinds))
{
	ck_assert(!kinds[_i]->mkdir == !kinds[_i]->rmdir);
}

UNIT_TEST(extended_attributes_are_ours_and_can_be_read, .rows = NUM_ROWS(kinds))
{
	const struct ucm_xattr *attr = kinds[_i]->xattrs;

	for (; attr && attr->name; attr++) {
		ck_assert_int_eq(strncmp(attr->name, UCM_XATTR_PREFIX,
					 strlen(UCM_XATTR_PREFIX)),
				 0);
		ck_assert_ptr_nonnull(attr->get);
	}
}
