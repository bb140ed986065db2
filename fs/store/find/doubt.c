/* SPDX-License-Identifier: Apache-2.0 */
/*
 * doubt.c - entries whose file may not be what they say.
 *
 * One that is in doubt is compared, checksums and all, with what the disk has
 * before it is served. What is wrong is condemned: out of the index and moved
 * aside, and a copy in another directory takes its place.
 *
 * A file that was judged may have been replaced since: under the name's lock it is
 * looked at whether the name still leads to it.
 */
#include <config.h>

#include "fs/store/find/find.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/log.h"
#include "hashing/tree.h"

/* ---- moving aside ---- */

/* Does the name still lead to the file that was judged (NULL: any)? Under the
 * name's lock, and while a descriptor keeps its inode from being another's. */
static bool is_still(struct ucm_store *store, const struct ucm_space *space,
		     const struct ucm_id *id, unsigned dir,
		     const struct stat *judged)
{
	struct ucm_medium *medium = store->dirs.at[dir];
	struct stat now;

	if (!judged)
		return true;
	return ucm_medium_find(medium, space->folder, id, &now) ||
	       (now.st_ino == judged->st_ino && now.st_dev == judged->st_dev);
}

bool ucm_store_get_judged(struct ucm_store *store, ucm_ref ref, unsigned dir,
			  const struct stat *judged, struct ucm_entry *out)
{
	return ucm_index_get(store->index, ref, out) && out->dir == dir &&
	       is_still(store, store->names.spaces[out->space], &out->id, dir,
			judged);
}

/* Under the name's lock: move the file aside, with a word in the log. */
static void quarantine(struct ucm_store *store, const struct ucm_space *space,
		       const struct ucm_id *id, unsigned dir,
		       enum ucm_fault fault, const char *detail)
{
	struct ucm_medium *medium = store->dirs.at[dir];
	int err;

	err = ucm_medium_set_aside(medium, space->folder, id);
	ucm_warning("%s: block %s: %s%s: %s", medium->path,
		    ucm_hex(id).text, ucm_fault_text(fault), detail,
		    err ? strerror(-err) : "quarantined");
	if (err && err != -ENOENT) /* it is still there, and in no index */
		atomic_store(&medium->abandoned, true);
	if (err) {
		ucm_dirs_count_error(&store->dirs, dir, err);
		return;
	}
	ucm_count(&store->stats.quarantined);
	ucm_count(&store->stats.quarantined_for[fault]);
}

void ucm_store_set_aside(struct ucm_store *store, struct ucm_space *space,
			 const struct ucm_id *id, unsigned dir,
			 const struct stat *judged, enum ucm_fault fault,
			 const char *detail)
{
	ucm_store_lock_name(store, id);
	if (is_still(store, space, id, dir, judged))
		quarantine(store, space, id, dir, fault, detail);
	ucm_store_unlock_name(store, id);
}

/* ---- bad entries ---- */

/* Is there still no file, or not the block's? Under the name's lock. */
static bool is_lost(struct ucm_store *store, ucm_ref ref, unsigned dir,
		    const struct stat *judged, struct ucm_entry *entry)
{
	struct ucm_medium *medium = store->dirs.at[dir];
	_cleanup_file_ struct ucm_file file = UCM_NO_FILE;
	struct stat st;
	int err;

	if (!ucm_store_get_judged(store, ref, dir, judged, entry))
		return false;
	if (judged)
		return true;
	err = ucm_medium_open_block(medium, ucm_store_folder(store, entry),
				    &entry->id, &file, &st);
	/* an NFS client can open what is gone, if it holds a delegation */
	if (!err && medium->hosts)
		err = ucm_medium_find(medium, ucm_store_folder(store, entry),
				      &entry->id, &st);
	return err == -ENOENT || err == -ENXIO || err == -ELOOP ||
	       (err == -ESTALE && medium->hosts);
}

bool ucm_store_lose(struct ucm_store *store, ucm_ref ref, unsigned dir,
		    const struct stat *judged, int err)
{
	struct ucm_entry entry;
	struct ucm_key key;
	bool lost;

	if (!ucm_index_get(store->index, ref, &entry))
		return false;
	/* whoever takes it away does the rest */
	if (entry.flags & UCM_ENTRY_LEAVING)
		return true;
	key = (struct ucm_key){ .id = entry.id, .space = entry.space };
	ucm_store_lock_name(store, &key.id);
	lost = is_lost(store, ref, dir, judged, &entry) &&
	       ucm_store_index_remove(store, ref, UCM_POLICY_REMOVED, &entry);
	ucm_store_unlock_name(store, &key.id);
	if (!lost)
		return false;
	if (store->dirs.at[dir]->hosts) {
		ucm_debug(SCAN, 1, "block %s: removed from %s by another daemon",
			  ucm_hex(&key.id).text, store->dirs.at[dir]->path);
	} else {
		ucm_count(&store->stats.vanished);
		ucm_warning("block %s: gone from %s: %s", ucm_hex(&key.id).text,
			    store->dirs.at[dir]->path, strerror(-err));
	}
	/* all copies, not only the first, so that a removal finds them */
	entry.flags |= UCM_ENTRY_DUPLICATE;
	ucm_store_examine_copies(store, &entry);
	ucm_store_examine(store, store->names.spaces[key.space], &key.id, dir);
	return true;
}

/* Under the name's lock; another thread may have been faster. */
static void condemn_locked(struct ucm_store *store, ucm_ref ref,
			   const struct stat *judged, enum ucm_fault fault,
			   const char *detail, struct ucm_entry *entry)
{
	struct ucm_space *space;

	if (!ucm_store_get_judged(store, ref, entry->dir, judged, entry) ||
	    !ucm_store_index_remove(store, ref, UCM_POLICY_REMOVED, entry))
		return;
	space = store->names.spaces[entry->space];
	quarantine(store, space, &entry->id, entry->dir, fault, detail);
	if (entry->flags & UCM_ENTRY_PINNED)
		ucm_store_mark_pin(store, entry, false);
	ucm_store_examine_copies(store, entry);
}

static void condemn_entry(struct ucm_store *store, ucm_ref ref,
			  const struct stat *judged, enum ucm_fault fault,
			  const char *detail, struct ucm_entry *entry)
{
	unsigned dir = entry->dir;

	/* no checkpoint covers its file before that is out of the way */
	ucm_store_count_doubts(store, dir, 1);
	ucm_store_lock_name(store, &entry->id);
	condemn_locked(store, ref, judged, fault, detail, entry);
	ucm_store_unlock_name(store, &entry->id);
	ucm_store_count_doubts(store, dir, -1);
}

struct ucm_fault_place ucm_store_fault_place(enum ucm_fault fault,
					     uint32_t plane)
{
	struct ucm_fault_place where = { "" };

	if (fault == UCM_FAULT_PLANE)
		snprintf(where.text, sizeof(where.text), " (layer %u %s)",
			 plane / 2, plane % 2 ? "V" : "K");
	return where;
}

void ucm_store_condemn(struct ucm_store *store, ucm_ref ref, unsigned dir,
		       const struct stat *judged, enum ucm_fault fault,
		       const char *detail)
{
	struct ucm_entry entry;
	struct ucm_key key;

	if (!ucm_index_get(store->index, ref, &entry))
		return;
	key = (struct ucm_key){ .id = entry.id, .space = entry.space };
	if (judged && entry.dir != dir) {
		ucm_store_set_aside(store, store->names.spaces[key.space],
				    &key.id, dir, judged, fault, detail);
		ucm_store_forget_copy(store, ref, dir);
	} else {
		condemn_entry(store, ref, judged, fault, detail, &entry);
	}
}

struct settled {
	struct ucm_store *store;
	bool has_crc;
	bool changed;
};

static void edit_settled(struct ucm_entry *entry, void *arg)
{
	struct settled *settled = arg;

	settled->changed = entry->flags & UCM_ENTRY_DOUBT;
	if (settled->changed)
		ucm_store_count_doubts(settled->store, entry->dir, -1);
	entry->flags &= (uint8_t)~UCM_ENTRY_DOUBT;
	if (settled->has_crc) /* the disk has it; else it was only trusted */
		entry->epoch = 0;
}

/* What was found holds for the file that was looked at. */
static bool settle_entry(struct ucm_store *store, ucm_ref ref, unsigned dir,
			 const struct stat *judged, const struct ucm_id *id,
			 struct settled *settled)
{
	struct ucm_entry entry;
	bool still;

	ucm_store_lock_name(store, id);
	still = ucm_store_get_judged(store, ref, dir, judged, &entry);
	/* unless another thread has settled it meanwhile */
	if (still &&
	    ucm_index_edit(store->index, ref, edit_settled, settled) &&
	    settled->changed)
		ucm_count(&store->stats.doubts_settled);
	ucm_store_unlock_name(store, id);
	return still;
}

/* One look; -EAGAIN: the entry has become another file's meanwhile. */
static int settle_once(struct ucm_store *store, ucm_ref ref)
{
	struct settled settled = { .store = store };
	enum ucm_fault fault = UCM_FAULT_NONE;
	struct ucm_entry entry;
	struct ucm_space *space;
	struct ucm_block block;
	uint32_t plane = 0;
	_cleanup_file_ struct ucm_file file = UCM_NO_FILE;
	struct stat st;
	int err;

	if (!ucm_index_get(store->index, ref, &entry))
		return -ENOENT;
	if (!(entry.flags & UCM_ENTRY_DOUBT))
		return 0;
	space = store->names.spaces[entry.space];
	err = ucm_store_open_file(store, space, &entry.id, entry.dir, &file,
				  &st);
	if (err == -ENOENT)
		return ucm_store_lose(store, ref, entry.dir, NULL, err)
			       ? -ENOENT
			       : -EAGAIN;
	if (err)
		return err;
	err = ucm_file_verify(&file, &st, &entry.id, NULL, NULL, &block, &fault,
			      &plane);
	if (err)
		return ucm_store_fail(store, entry.dir, &entry.id, "read", err);
	if (!fault && !(block.flags & UCM_BLOCK_HAS_CRC) &&
	    store->dirs.at[entry.dir]->recovery.unvouched)
		fault = UCM_FAULT_UNVOUCHED;
	if (fault) {
		ucm_store_condemn(store, ref, entry.dir, &st, fault,
				  ucm_store_fault_place(fault, plane).text);
		return ucm_index_get(store->index, ref, &entry) ? -EAGAIN
								: -ENOENT;
	}
	settled.has_crc = block.flags & UCM_BLOCK_HAS_CRC;
	return settle_entry(store, ref, entry.dir, &st, &entry.id, &settled)
		       ? 0
		       : -EAGAIN;
}

#define SETTLE_TRIES 4

int ucm_store_settle(struct ucm_store *store, ucm_ref ref)
{
	int err = -EAGAIN;

	for (int i = 0; i < SETTLE_TRIES && err == -EAGAIN; i++)
		err = settle_once(store, ref);
	return err == -EAGAIN ? -EIO : err;
}
