/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tree.h - the names and paths of the block tree.
 *
 * The tree is the same in a mount and in each directory of a tier:
 *
 *   blocks/3f/3f9a….bin         the blocks of the default space
 *   spaces/NAME/3f/3f9a….bin    those of another one
 *   spaces/NAME/space.json      what its blocks are
 *   files/                      any other files
 *   .ucmfs/                     what is ours; UCM_TREE_SOCKET and others below
 *
 * No other source spells one of these (tests/props/paths.py). Paths are below
 * the mount point or the directory, and never begin with a slash. Names are
 * parsed, never concatenated into paths before they are: only 32 lowercase hex
 * digits and ".bin" are a block's name, and only in the bucket of their first
 * two digits. Nothing here looks at a file.
 *
 * "folder" is a space's place: "blocks" or "spaces/NAME".
 */
#ifndef UCM_TREE_H
#define UCM_TREE_H

#include <stdbool.h>

#include <ucm/block.h>

#define UCM_TREE_BLOCKS "blocks"
#define UCM_TREE_SPACES "spaces"
#define UCM_TREE_FILES "files"
#define UCM_TREE_MANIFEST "space.json"
/* While one is written by the daemon, and by a program without it. */
#define UCM_TREE_MANIFEST_NEW UCM_TREE_MANIFEST ".new"
#define UCM_TREE_MANIFEST_MAKE UCM_TREE_MANIFEST ".make"
#define UCM_TREE_OWN ".ucmfs"

/* What a mount has in .ucmfs for programs. */
#define UCM_TREE_DEBUG UCM_TREE_OWN "/debug"
#define UCM_TREE_METRICS UCM_TREE_OWN "/metrics"
#define UCM_TREE_SOCKET UCM_TREE_OWN "/socket"
#define UCM_TREE_STATS UCM_TREE_OWN "/stats.json" /* a mount is told by it */

#define UCM_BUCKETS 256
#define UCM_TREE_BLOCK_LEN (UCM_ID_HEX + 4)          /* "….bin" */
#define UCM_TREE_BELOW_LEN (3 + UCM_TREE_BLOCK_LEN)  /* "3f/….bin" */
#define UCM_TREE_SPACE_MAX 128 /* bytes of a space's name */
#define UCM_TREE_FOLDER_MAX (7 + UCM_TREE_SPACE_MAX + 1) /* with its NUL */
#define UCM_TREE_PATH_MAX 320 /* any path, with its NUL */

/* ---- names ---- */

/* "3f9a…e1.bin" to an id; -EINVAL for any other name. */
int ucm_tree_parse_block(const char *name, struct ucm_id *out);
void ucm_tree_block_name(const struct ucm_id *id,
			 char name[UCM_TREE_BLOCK_LEN + 1]);


/* ".nfs", and hexadecimal digits: what an NFS client, on any machine, keeps of a file
 * that was removed while it had it open. It removes that itself. */
bool ucm_tree_is_remains(const char *name);

/* The bucket that a block is in. */
static inline unsigned ucm_tree_bucket(const struct ucm_id *id)
{
	return id->bytes[0];
}

/* "3f" to 0x3f; -EINVAL for anything but two lowercase hex digits. */
int ucm_tree_parse_bucket(const char *name);
void ucm_tree_bucket_name(unsigned bucket, char name[3]);

/* 1 to UCM_TREE_SPACE_MAX bytes, no '/', no control character, no '.' first. */
bool ucm_tree_space_valid(const char *name);

/* ---- paths ---- */

/* "3f/3f9a…e1.bin": a block's path below the folder of its space. */
void ucm_tree_block_below(const struct ucm_id *id,
			  char path[UCM_TREE_BELOW_LEN + 1]);

/* A space's folder; name: valid, or "" or NULL for the default space. */
void ucm_tree_folder(const char *name, char folder[UCM_TREE_FOLDER_MAX]);
/* The name of the space whose folder it is: "" for the default one. Points
 * into folder. */
const char *ucm_tree_folder_name(const char *folder);

void ucm_tree_bucket_path(const char *folder, unsigned bucket,
			  char path[UCM_TREE_PATH_MAX]);
void ucm_tree_block_path(const char *folder, const struct ucm_id *id,
			 char path[UCM_TREE_PATH_MAX]);

/* ---- text ---- */

/* An id for a line of the log: ucm_hex(&id).text, good until the end of the
 * full expression. */
struct ucm_hex {
	char text[UCM_ID_HEX + 1];
};

static inline struct ucm_hex ucm_hex(const struct ucm_id *id)
{
	struct ucm_hex hex;

	ucm_id_format(id, hex.text);
	return hex;
}

#endif
