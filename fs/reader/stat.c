/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stat.c - look-ups by stat(2) of each block's name in the mount.
 *
 * The daemon answers for what it has not read yet and for what is in doubt, so
 * an answer is nearly always a sure one. It costs a request for every name that
 * the kernel does not remember.
 */
#include <config.h>

#include "fs/reader/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "common/deadmount.h"

/* 0, -ENOENT (absent), -EAGAIN (it cannot be said), or what ends the call. */
static int ask(const struct ucm_index_reader *reader, const char *path,
	       struct stat *out)
{
	if (!fstatat(reader->root, path, out, AT_SYMLINK_NOFOLLOW))
		return 0;
	switch (errno) {
	case ENOENT: return -ENOENT;
	case EACCES: return -EACCES;
	default: return ucm_mount_is_dead(errno) ? -ENOTCONN : -EAGAIN;
	}
}

static int lookup(struct ucm_index_reader *reader, const struct ucm_id *ids,
		  size_t num, uint64_t *present, uint64_t *unknown)
{
	for (size_t i = 0; i < num; i++) {
		char path[UCM_TREE_PATH_MAX];
		struct stat st;
		int err;

		ucm_tree_block_path(reader->folder, &ids[i], path);
		err = ask(reader, path, &st);
		if (!err)
			ucm_bit_set(present, i);
		else if (err == -EAGAIN)
			ucm_bit_set(unknown, i);
		else if (err != -ENOENT)
			return err;
	}
	return 0;
}

/* A text attribute; "" if there is none. */
static void get_attr(const struct ucm_index_reader *reader, const char *path,
		     const char *name, char *value, size_t size)
{
	char full[UCM_TREE_PATH_MAX + 40];
	ssize_t len;

	/* there is no getxattrat(2) before Linux 6.13 */
	snprintf(full, sizeof(full), "/proc/self/fd/%d/%s", reader->root, path);
	len = getxattr(full, name, value, size - 1);
	value[len > 0 ? len : 0] = '\0';
}

static int entry(struct ucm_index_reader *reader, const struct ucm_id *id,
		 struct ucm_index_entry *out)
{
	char path[UCM_TREE_PATH_MAX], pinned[2];
	struct stat st;
	int err;

	ucm_tree_block_path(reader->folder, id, path);
	err = ask(reader, path, &st);
	if (err)
		return err;
	*out = (struct ucm_index_entry){
		.size = (uint64_t)st.st_size,
		.tier = -1,
	};
	get_attr(reader, path, "user.ucmfs.tier", out->tier_name,
		 sizeof(out->tier_name));
	get_attr(reader, path, "user.ucmfs.pinned", pinned, sizeof(pinned));
	if (*pinned == '1')
		out->flags |= UCM_INDEX_PINNED;
	return 0;
}

const struct ucm_reader_ops ucm_reader_stat_ops = {
	.name = "stat",
	.batch = 1,
	.lookup = lookup,
	.entry = entry,
};
