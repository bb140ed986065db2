/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpoint.c - what of a directory is known to be on disk.
 *
 * A checkpoint says that everything older than it is on disk. So there is none
 * before the directory has been read and nothing in it is in doubt, and none if
 * nothing was committed since the last. With durability=data or full every
 * block is on disk by itself, but the checkpoint spares the next start from
 * checking them.
 *
 * When a sync fails, the kernel may have dropped pages that never came to the
 * disk, and says so once: the next sync succeeds. So what has been committed
 * since the last good one is in doubt, and is compared with what the disk has
 * before it is served; nothing new is placed there. When all of it has been
 * checked and a sync succeeds, the directory is as good as before.
 *
 * One sync of a directory at a time: sync_lock is held over it, and over the
 * checks before a checkpoint, which take the locks of names.
 */
#include <config.h>

#include "fs/store/find/find.h"

#include <errno.h>
#include <string.h>

#include "common/log.h"
#include "hashing/tree.h"

const char *ucm_store_unknown(struct ucm_store *store, unsigned dir)
{
	struct ucm_medium *medium = store->dirs.at[dir];

	if (!ucm_store_knows(store, dir))
		return "it has not been read to its end";
	if (atomic_load(&store->keepers[dir].unread))
		return "it has files that could not be read";
	if (atomic_load(&store->keepers[dir].doubts))
		return "it has blocks in doubt";
	if (atomic_load(&medium->abandoned))
		return "a bad block could not be moved aside";
	return NULL;
}

bool ucm_keeper_knows(struct ucm_keeper *keeper)
{
	return !ucm_store_unknown(keeper->store, keeper->dir);
}

/* ---- syncs; under sync_lock ---- */

static void writes_were_lost(struct ucm_keeper *keeper, bool again, int err)
{
	struct ucm_medium *medium = ucm_keeper_medium(keeper);

	ucm_store_doubt_uncovered(keeper->store, keeper->dir);
	ucm_dirs_count_error(&keeper->store->dirs, keeper->dir, err);
	if (again)
		return;
	ucm_error("%s: sync: %s: writes may be lost; %llu blocks are checked "
		  "before use, and nothing new is placed there until a sync "
		  "succeeds",
		  medium->path, strerror(-err),
		  (unsigned long long)atomic_load(&keeper->doubts));
}

/* One of recovery.h's syncs, and what has to follow when it fails. */
static int checkpoint_sync_by(struct ucm_keeper *keeper,
			      int (*sync)(struct ucm_recovery *recovery,
					  struct ucm_medium *medium))
{
	struct ucm_medium *medium = ucm_keeper_medium(keeper);
	unsigned losses = atomic_load(&medium->recovery.losses);
	bool lost = atomic_load(&medium->recovery.lost);
	int err = sync(&medium->recovery, medium);

	if (atomic_load(&medium->recovery.losses) != losses) {
		writes_were_lost(keeper, lost, err);
	} else if (err) { /* the old checkpoint still holds */
		ucm_medium_failed(medium, "checkpoint", err);
		ucm_dirs_count_error(&keeper->store->dirs, keeper->dir, err);
	}
	return err;
}

static void checkpoint_check_writers(struct ucm_store *store, unsigned dir)
{
	for (unsigned shard = 0;
	     shard < UCM_BUCKETS && atomic_load(&store->writers); shard++)
		ucm_store_each_flagged(store, shard, dir, UCM_ENTRY_WRITABLE,
				       ucm_store_check);
}

static int checkpoint_renew(struct ucm_keeper *keeper)
{
	struct ucm_medium *medium = ucm_keeper_medium(keeper);
	bool lost = atomic_load(&medium->recovery.lost), dirty;
	int err;

	if (!ucm_keeper_knows(keeper)) { /* but losses are to be noticed */
		err = checkpoint_sync_by(keeper, ucm_recovery_sync);
		return err ? err : -EAGAIN;
	}
	ucm_recovery_mark(&medium->recovery, medium);
	checkpoint_check_writers(keeper->store, keeper->dir);
	dirty = atomic_exchange(&keeper->dirty, false);
	err = checkpoint_sync_by(keeper, ucm_recovery_checkpoint);
	if (err) {
		atomic_store(&keeper->dirty, dirty);
		return err;
	}
	ucm_count(&keeper->store->stats.checkpoints);
	if (lost)
		ucm_info("%s: a sync has succeeded, and nothing is in doubt: "
			 "it is good again",
			 medium->path);
	return 0;
}

/* ---- for all ---- */

int ucm_store_sync_dir(struct ucm_store *store, unsigned dir)
{
	struct ucm_keeper *keeper = &store->keepers[dir];
	int err;

	pthread_mutex_lock(&keeper->sync_lock);
	err = checkpoint_sync_by(keeper, ucm_recovery_sync);
	pthread_mutex_unlock(&keeper->sync_lock);
	return err;
}

int ucm_store_sync(struct ucm_store *store)
{
	int first = 0;

	for (unsigned i = 0; i < store->dirs.num; i++) {
		int err = 0;

		if (!store->dirs.at[i]->readonly)
			err = ucm_store_sync_dir(store, i);
		first = first ? first : err;
	}
	return first;
}

int ucm_keeper_checkpoint(struct ucm_keeper *keeper)
{
	int err;

	pthread_mutex_lock(&keeper->sync_lock);
	err = checkpoint_renew(keeper);
	pthread_mutex_unlock(&keeper->sync_lock);
	return err;
}

int ucm_store_checkpoint(struct ucm_store *store)
{
	int result = 0;

	for (unsigned dir = 0; dir < store->dirs.num; dir++) {
		int err = 0;

		if (!store->dirs.at[dir]->readonly)
			err = ucm_keeper_checkpoint(&store->keepers[dir]);
		if (err == -EAGAIN && !result)
			result = err;
		else if (err && err != -EAGAIN)
			result = -EIO;
	}
	return result;
}
