/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucm_media_remove.c - removing blocks and spaces without a daemon.
 *
 * The locks of the directories are ours meanwhile, so nobody has an index of them
 * and nobody commits there: no daemon, and no engine that saves. Whoever reads a
 * block has its file open, and reads it to its end. Over a network there are no
 * locks: a daemon elsewhere finds out when it opens the block, as it does
 * when another machine has removed it.
 *
 * A file is removed only if it is a block at this moment. The next daemon sees that
 * a bucket has changed since its snapshot, and reads it anew.
 */
#include <config.h>

#include "tools/ucm_media.h"

#include <errno.h>
#include <string.h>

#include "tools/ucm_tool.h"

/* 1: it was there, and is gone; 0: it was not; -errno. */
static int remove_from(struct ucm_media *media, unsigned dir,
		       struct ucm_space *space, const struct ucm_id *id)
{
	struct ucm_medium *medium = media->dirs[dir].medium;
	struct ucm_media_block block;
	int err = ucm_media_look(media, dir, space, id, &block);

	if (err <= 0)
		return err;
	if (block.place.flags & UCM_PLACE_PINNED)
		return -EPERM;
	err = medium->ops->remove(medium, space->folder, id);
	/* what is not there was removed by hand just now */
	return err && err != -ENOENT ? err : 1;
}

/* What fails in one directory has failed, and the others lose it all the same. */
int ucm_media_remove(struct ucm_media *media, const char *space,
		     const struct ucm_id *id)
{
	struct ucm_space *in = ucm_media_space(media, space);
	int failed = in ? 0 : -ENOMEM;
	bool found = false;

	for (unsigned i = 0; in && i < media->num; i++) {
		int result = media->dirs[i].err;

		if (ucm_media_asks(&media->dirs[i]))
			result = remove_from(media, i, in, id);
		if (result < 0 && !failed)
			failed = result;
		found |= result > 0;
	}
	return failed || found ? failed : -ENOENT;
}

/* ---- spaces ---- */

static int in_each(struct ucm_media *media, const char *folder,
		   int (*fn)(struct ucm_medium *medium, const char *folder))
{
	for (unsigned i = 0; i < media->num; i++) {
		struct ucm_medium *medium = media->dirs[i].medium;
		int err = medium ? fn(medium, folder) : 0;

		if (err)
			return ucm_tool_fail(err, "%s/%s: %s", medium->path,
					     folder, strerror(-err));
	}
	return 0;
}

static int clear_folder(struct ucm_medium *medium, const char *folder)
{
	return medium->ops->spaces->clear(medium, folder);
}

static int remove_folder(struct ucm_medium *medium, const char *folder)
{
	return medium->ops->spaces->remove(medium, folder);
}

/* All that can be in the way first: the manifest is removed last. */
int ucm_media_remove_space(struct ucm_media *media, const char *space)
{
	struct ucm_space *in = ucm_media_space(media, space);
	int err;

	if (!in)
		return ucm_tool_fail(-ENOMEM, "no memory");
	err = in_each(media, in->folder, clear_folder);
	return err ? err : in_each(media, in->folder, remove_folder);
}
