/* SPDX-License-Identifier: Apache-2.0 */
/*
 * learn.c - what a space's blocks look like, from the first right one.
 *
 * Before anything is served: which buckets a space has in which directory, and,
 * if no manifest says it, the geometry of its blocks.
 */
#include <config.h>

#include "fs/store/inside.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/osfile.h"
#include "hashing/tree.h"

/* One file after another until one is right: 1. 0: none is; -errno. */
static int learn_from_names(struct ucm_store *store, struct ucm_space *space,
			    unsigned dir, unsigned bucket, const char *piece,
			    ssize_t len)
{
	const struct dirent *entry;
	struct ucm_id id;
	int found = 0;

	for (ssize_t at = 0; at < len && !found; at += entry->d_reclen) {
		entry = (const struct dirent *)(piece + at);
		if (!ucm_tree_parse_block(entry->d_name, &id) &&
		    ucm_tree_bucket(&id) == bucket)
			found = ucm_store_learn_from(store, space, &id, dir);
	}
	return found;
}

/* In pieces: a bucket may have millions of names. */
static bool learn_from_bucket(struct ucm_store *store, struct ucm_space *space,
			      unsigned dir, unsigned bucket)
{
	_Alignas(struct dirent) char piece[4096];
	char path[UCM_TREE_PATH_MAX];
	_cleanup_fd_ int fd = -1;
	int found = 0;
	ssize_t len;

	ucm_tree_bucket_path(space->folder, bucket, path);
	fd = ucm_os_open(store->dirs.at[dir]->dirfd, path,
			 O_RDONLY | O_DIRECTORY, 0);
	if (fd < 0)
		return false;
	while (!found &&
	       (len = ucm_os_list_piece(fd, piece, sizeof(piece))) > 0)
		found = learn_from_names(store, space, dir, bucket, piece, len);
	return found > 0;
}

static bool learn_is_there(uint64_t there[4], unsigned bucket)
{
	return there[bucket / 64] >> bucket % 64 & 1;
}

/* What a space's blocks look like must be known before the first commit, and
 * the mount is waiting: one block is enough. */
static void learn_geometry(struct ucm_store *store, struct ucm_space *space,
			   uint64_t there[][4])
{
	for (unsigned bucket = 0; bucket < UCM_BUCKETS; bucket++) {
		for (unsigned dir = 0; dir < store->dirs.num; dir++) {
			if (learn_is_there(there[dir], bucket) &&
			    learn_from_bucket(store, space, dir, bucket))
				return;
		}
	}
}

void ucm_store_learn(struct ucm_store *store, struct ucm_space *space)
{
	uint64_t there[UCM_MAX_DIRS][4];

	for (unsigned dir = 0; dir < store->dirs.num; dir++) {
		if (ucm_backing_buckets(store->dirs.at[dir], space->folder,
					there[dir]))
			continue;
		for (unsigned word = 0; word < 4; word++)
			atomic_fetch_or(&space->scanned[4 * dir + word],
					~there[dir][word]);
	}
	if (!space->has_geometry)
		learn_geometry(store, space, there);
}
