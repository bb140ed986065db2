/* SPDX-License-Identifier: Apache-2.0 */
/* tree.c - names and paths of the block tree; see tree.h. */
#include <config.h>

#include "hashing/tree.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define SUFFIX ".bin"
#define SPACES UCM_TREE_SPACES "/"

/* ---- names ---- */

int ucm_tree_parse_block(const char *name, struct ucm_id *out)
{
	if (strlen(name) != UCM_TREE_BLOCK_LEN ||
	    strcmp(name + UCM_ID_HEX, SUFFIX))
		return -EINVAL;
	return ucm_id_parse(name, out);
}

void ucm_tree_block_name(const struct ucm_id *id,
			 char name[UCM_TREE_BLOCK_LEN + 1])
{
	ucm_id_format(id, name);
	memcpy(name + UCM_ID_HEX, SUFFIX, sizeof(SUFFIX));
}

int ucm_tree_parse_bucket(const char *name)
{
	static const char digits[] = "0123456789abcdef";
	const char *high, *low;

	if (strlen(name) != 2)
		return -EINVAL;
	high = strchr(digits, name[0]);
	low = strchr(digits, name[1]);
	if (!high || !low)
		return -EINVAL;
	return (int)((high - digits) << 4 | (low - digits));
}

void ucm_tree_bucket_name(unsigned bucket, char name[3])
{
	static const char digits[] = "0123456789abcdef";

	name[0] = digits[bucket >> 4 & 15];
	name[1] = digits[bucket & 15];
	name[2] = '\0';
}

bool ucm_tree_is_remains(const char *name)
{
	static const char prefix[] = ".nfs";
	const char *digits = name + sizeof(prefix) - 1;

	return !strncmp(name, prefix, sizeof(prefix) - 1) && *digits &&
	       !digits[strspn(digits, "0123456789abcdefABCDEF")];
}

bool ucm_tree_space_valid(const char *name)
{
	if (name[0] == '\0' || name[0] == '.' ||
	    strlen(name) > UCM_TREE_SPACE_MAX)
		return false;
	for (const char *c = name; *c; c++) {
		if ((unsigned char)*c < ' ' || *c == '/' || *c == 127)
			return false;
	}
	return true;
}

/* ---- paths ---- */

void ucm_tree_block_below(const struct ucm_id *id,
			  char path[UCM_TREE_BELOW_LEN + 1])
{
	ucm_tree_bucket_name(ucm_tree_bucket(id), path);
	path[2] = '/';
	ucm_tree_block_name(id, path + 3);
}

void ucm_tree_folder(const char *name, char folder[UCM_TREE_FOLDER_MAX])
{
	if (name && *name)
		snprintf(folder, UCM_TREE_FOLDER_MAX, SPACES "%.*s",
			 UCM_TREE_SPACE_MAX, name);
	else
		strcpy(folder, UCM_TREE_BLOCKS);
}

const char *ucm_tree_folder_name(const char *folder)
{
	const char *slash = strchr(folder, '/');

	return slash ? slash + 1 : "";
}

void ucm_tree_bucket_path(const char *folder, unsigned bucket,
			  char path[UCM_TREE_PATH_MAX])
{
	char name[3];

	ucm_tree_bucket_name(bucket, name);
	snprintf(path, UCM_TREE_PATH_MAX, "%s/%s", folder, name);
}

void ucm_tree_block_path(const char *folder, const struct ucm_id *id,
			 char path[UCM_TREE_PATH_MAX])
{
	char name[UCM_TREE_BELOW_LEN + 1];

	ucm_tree_block_below(id, name);
	snprintf(path, UCM_TREE_PATH_MAX, "%s/%s", folder, name);
}
