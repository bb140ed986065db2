/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quarantine.c - torn and damaged files, moved aside.
 *
 * A file that was judged may have been replaced meanwhile: under the name's
 * lock it is looked at whether the name still leads to it.
 */
#include <config.h>

#include "fs/store/find/find.h"

#include <errno.h>
#include <string.h>

#include "common/log.h"
#include "hashing/tree.h"

/* Does the name still lead to the file that was judged? Under the name's lock,
 * and while a descriptor keeps its inode from being another's. */
bool ucm_store_is_still(struct ucm_store *store, const struct ucm_space *space,
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
	       ucm_store_is_still(store, store->names.spaces[out->space],
				  &out->id, dir, judged);
}

void ucm_store_quarantine(struct ucm_store *store,
			  const struct ucm_space *space,
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
	if (ucm_store_is_still(store, space, id, dir, judged))
		ucm_store_quarantine(store, space, id, dir, fault, detail);
	ucm_store_unlock_name(store, id);
}
