/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kinds.c - which table of operations a node has.
 */
#include <config.h>

#include "fs/mount/node/kinds.h"

static const struct ucm_node_ops no_ops;

static const struct ucm_node_ops *const kinds[8] = {
	/* UCM_NODE_FIXED: by number, below */
	[UCM_NODE_SPACE] = &ucm_space_ops,
	[UCM_NODE_BUCKET] = &ucm_bucket_ops,
	[UCM_NODE_BLOCK] = &ucm_block_ops,
	[UCM_NODE_FILE] = &ucm_staging_ops,
	[UCM_NODE_MANIFEST] = &ucm_manifest_ops,
	[UCM_NODE_TREE] = &ucm_files_ops,
};

static const struct ucm_node_ops *const fixed[UCM_FIXED_CONTROLS] = {
	[UCM_FIXED_ROOT] = &ucm_root_ops,
	[UCM_FIXED_SPACES] = &ucm_spaces_ops,
	[UCM_FIXED_CONTROL] = &ucm_control_dir_ops,
};

const struct ucm_node_ops *ucm_node_ops_of(fuse_ino_t ino)
{
	const struct ucm_node_ops *ops = kinds[ucm_node_type(ino)];

	if (ops)
		return ops;
	if (ino >= UCM_FIXED_CONTROLS)
		return &ucm_control_ops;
	return fixed[ino] ? fixed[ino] : &no_ops;
}
