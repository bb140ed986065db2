/* SPDX-License-Identifier: Apache-2.0 */
/*
 * late.c - what is written to a block after its commit has been begun.
 *
 * From its link to the last close of its writer an entry says WRITABLE. Whoever
 * opens the block compares the file's size and mtime with those of the entry,
 * or the checksums where a mapping leaves no trace (SHARED). A file that is
 * still right gets its new stamp; one that is wrong, or whose bytes nothing
 * vouches for, is condemned.
 */
#include <config.h>

#include "fs/store/find/find.h"

#include <errno.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "fs/block/verify.h"

/* A block's file that was written to after its commit was begun. Without
 * checksums nobody can say what it holds now. */
int ucm_store_find_late_fault(struct ucm_space *space,
			      const struct ucm_file *file,
			      const struct stat *st, const struct ucm_id *id,
			      enum ucm_fault *fault)
{
	const struct ucm_bytes bytes = ucm_file_bytes(file);
	struct ucm_block block;
	uint32_t plane;
	int err = ucm_verify_whole(&bytes, (uint64_t)st->st_size, id, &block,
				   fault, &plane);

	if (err || *fault)
		return err;
	*fault = block.flags & UCM_BLOCK_HAS_CRC
			 ? ucm_space_fits(space, &block, false)
			 : UCM_FAULT_UNVOUCHED;
	return 0;
}

static bool same_stamp(const struct stat *a, const struct stat *b)
{
	return a->st_size == b->st_size &&
	       !memcmp(&a->st_mtim, &b->st_mtim, sizeof(a->st_mtim)) &&
	       !memcmp(&a->st_ctim, &b->st_ctim, sizeof(a->st_ctim));
}

int ucm_store_changed(const struct ucm_temp *temp, const struct ucm_file *file,
		      bool *changed)
{
	struct stat st;
	int err = ucm_file_stat(file, &st);

	*changed = err || !same_stamp(&st, &temp->stamp);
	return err;
}

/* Its size and mtime are those that the index knows, from the commit or from
 * utimensat(2) through the mount. */
static bool is_as_entered(const struct ucm_entry *entry, const struct stat *st)
{
	return (uint64_t)st->st_size == entry->size &&
	       ucm_time_ns(&st->st_mtim) == entry->mtime_ns;
}

/* A file has been looked at that was perhaps written to. If it is right, and
 * still the entry's, the entry gets its stamp; what the entry says counts then
 * where nothing but its times was set, through the mount, and there are no
 * checksums. True: it is right. */
static bool late_accept(struct ucm_store *store, ucm_ref ref, unsigned dir,
			const struct ucm_id *id, const struct stat *st,
			enum ucm_fault fault)
{
	struct ucm_entry entry;
	bool still;

	ucm_store_lock_name(store, id);
	still = ucm_store_get_judged(store, ref, dir, st, &entry);
	if (fault == UCM_FAULT_UNVOUCHED && still && is_as_entered(&entry, st))
		fault = UCM_FAULT_NONE;
	if (!fault && still)
		ucm_store_restat(store, ref, dir, st);
	ucm_store_unlock_name(store, id);
	return !fault;
}

/* Is a file right that was perhaps written to? file and st are of it; it lies in
 * dir, and the entry may have become another directory's. 0; -ENOENT: it was
 * not, and has been set aside; -errno: it cannot be read. */
static int late_recheck(struct ucm_store *store, ucm_ref ref,
			const struct ucm_entry *entry, unsigned dir,
			const struct ucm_file *file, const struct stat *st)
{
	enum ucm_fault fault = UCM_FAULT_NONE;
	int err = ucm_store_find_late_fault(store->names.spaces[entry->space],
					    file, st, &entry->id, &fault);

	if (err)
		return ucm_store_fail(store, dir, &entry->id, "read", err);
	if ((!fault || fault == UCM_FAULT_UNVOUCHED) &&
	    late_accept(store, ref, dir, &entry->id, st, fault))
		return 0;
	ucm_store_condemn(store, ref, dir, st, fault,
			  ", written to after its commit");
	return -ENOENT;
}

int ucm_store_check_written(struct ucm_store *store, ucm_ref ref,
			    const struct ucm_entry *entry,
			    const struct ucm_file *file, const struct stat *st)
{
	if (!(entry->flags & UCM_ENTRY_SHARED) && is_as_entered(entry, st))
		return 0;
	return late_recheck(store, ref, entry, entry->dir, file, st);
}

/* Nobody can say what the writer has left: its file is looked at by the next
 * reader, and if it is a second copy only, by the next start. */
static void late_unread(struct ucm_store *store, const struct ucm_temp *temp)
{
	struct ucm_entry entry;

	if (!ucm_index_get(store->index, temp->ref, &entry))
		return;
	if (entry.dir == temp->dir)
		ucm_store_doubt(store, temp->ref);
	else
		atomic_store(&store->keepers[temp->dir].unread, true);
}

void ucm_store_recheck(struct ucm_store *store, const struct ucm_temp *temp,
		       const struct ucm_file *file)
{
	struct ucm_entry entry;
	struct stat st;
	int err;

	if (!temp->committed || !temp->ref || ucm_file_stat(file, &st))
		return;
	if (!temp->shared && same_stamp(&st, &temp->stamp))
		return;
	if (!ucm_index_get(store->index, temp->ref, &entry))
		return;
	err = late_recheck(store, temp->ref, &entry, temp->dir, file,
			   &st);
	if (err && err != -ENOENT)
		late_unread(store, temp);
}
