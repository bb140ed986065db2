/* SPDX-License-Identifier: Apache-2.0 */
/*
 * learn.c - what a space's blocks look like, from the first right one.
 *
 * Before anything is served: which buckets a space has in which directory, and,
 * if no manifest says it, the geometry of its blocks.
 */
#include <config.h>

#include "fs/store/start/start.h"

#include <string.h>

#include "common/cleanup.h"
#include "hashing/tree.h"

/* One file after another until one is right, or its medium fails. */
static bool learn_from_bucket(struct ucm_store *store, struct ucm_space *space,
			      unsigned dir, unsigned bucket)
{
	struct ucm_medium *medium = store->dirs.at[dir];
	_cleanup_free_ char *names = NULL;
	int found = 0;

	if (ucm_medium_list(medium, space->folder, bucket, &names))
		return false;
	for (const char *name = names; *name && !found;
	     name += strlen(name) + 1) {
		struct ucm_id id;

		if (!ucm_tree_parse_block(name, &id) &&
		    ucm_tree_bucket(&id) == bucket)
			found = ucm_store_learn_from(store, space, &id, dir);
	}
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
		struct ucm_medium *medium = store->dirs.at[dir];

		if (ucm_medium_buckets(medium, space->folder, there[dir]))
			continue;
		for (unsigned word = 0; word < 4; word++)
			atomic_fetch_or(&space->scanned[4 * dir + word],
					~there[dir][word]);
	}
	if (!space->has_geometry)
		learn_geometry(store, space, there);
}
