/* SPDX-License-Identifier: Apache-2.0 */
/*
 * examine.c - one file in one directory: is it a block?
 *
 * A file enters the index only after its header and size have been read and are
 * right. What is torn is set aside; what is no block at all is somebody else's
 * and stays. After an unclean stop a file that has changed since the checkpoint
 * enters it in doubt (doubt.c), except a second copy of a block that is known
 * from another directory: that one has no entry, and is compared at once.
 */
#include <config.h>

#include "fs/store/find/find.h"

#include <errno.h>
#include <string.h>

#include "common/log.h"
#include "fs/block/verify.h"
#include "hashing/tree.h"

int ucm_store_fail(struct ucm_store *store, unsigned dir,
		   const struct ucm_id *id, const char *call, int err)
{
	const struct ucm_medium *medium = store->dirs.at[dir];

	ucm_dirs_count_error(&store->dirs, dir, err);
	if (!ucm_medium_is_no_news(medium, err))
		ucm_error("%s: block %s: %s: %s", medium->path,
			  ucm_hex(id).text, call, strerror(-err));
	return err;
}

int ucm_store_open_file(struct ucm_store *store, struct ucm_space *space,
			const struct ucm_id *id, unsigned dir,
			struct ucm_file *out, struct stat *st)
{
	struct ucm_medium *medium = store->dirs.at[dir];
	int err = ucm_medium_open_block(medium, space->folder, id, out, st);

	if (err == -ENXIO || err == -ELOOP) {
		ucm_count(&store->stats.strays);
		return -ENOENT;
	}
	return err && err != -ENOENT
		       ? ucm_store_fail(store, dir, id, "open", err)
		       : err;
}

/* Torn files go; what is no block at all is somebody else's and stays. */
static void examine_reject(struct ucm_store *store, struct ucm_space *space,
			   const struct ucm_id *id, unsigned dir,
			   const struct stat *st, enum ucm_fault fault)
{
	bool torn = fault == UCM_FAULT_SHORT || fault == UCM_FAULT_SIZE ||
		    ucm_recovery_doubts(&store->dirs.at[dir]->recovery, st);

	if (torn && fault != UCM_FAULT_GEOMETRY && fault != UCM_FAULT_SPACE) {
		ucm_store_set_aside(store, space, id, dir, st, fault, "");
		return;
	}
	ucm_warning("%s: %s.bin: %s: left alone", store->dirs.at[dir]->path,
		    ucm_hex(id).text, ucm_fault_text(fault));
	ucm_count(fault == UCM_FAULT_GEOMETRY || fault == UCM_FAULT_SPACE
			  ? &store->stats.misfits
			  : &store->stats.strays);
}

/* The entry that is there already is this very file, or a copy elsewhere. */
int ucm_store_admit(struct ucm_store *store, struct ucm_space *space,
		    const struct ucm_entry *entry, const struct ucm_id *parent)
{
	ucm_ref ref;
	int err = ucm_store_index_add(store, space, entry, parent, &ref);

	if (err == -EEXIST)
		ucm_store_note_copy(store, ref, entry->dir);
	return err && err != -EEXIST ? err : 1;
}

/* A copy of what is known from another directory has no entry that could be in
 * doubt, so it is checked at once. What is wrong is set aside; what cannot be
 * read keeps its directory from being called clean. */
static bool is_good_copy(struct ucm_store *store, struct ucm_space *space,
			 const struct ucm_key *key, unsigned dir,
			 const struct ucm_file *file, const struct stat *st)
{
	enum ucm_fault fault = UCM_FAULT_NONE;
	struct ucm_block block;
	uint32_t plane;

	if (ucm_file_verify(file, st, &key->id, NULL, NULL, &block, &fault,
			    &plane)) {
		atomic_store(&store->keepers[dir].unread, true);
		return false;
	}
	if (!fault && !(block.flags & UCM_BLOCK_HAS_CRC) &&
	    atomic_load(&store->dirs.at[dir]->recovery.unvouched))
		fault = UCM_FAULT_UNVOUCHED;
	if (fault)
		ucm_store_set_aside(store, space, &key->id, dir, st, fault,
				    ", a second copy");
	return !fault;
}

/* An open file may have lost its name; a few file systems count no names. */
static bool examine_is_gone(struct ucm_store *store, struct ucm_space *space,
			    const struct ucm_id *id, unsigned dir,
			    const struct ucm_file *file)
{
	struct ucm_medium *medium = store->dirs.at[dir];
	struct stat st;

	if (!ucm_file_stat(file, &st) && st.st_nlink)
		return false;
	return ucm_medium_find(medium, space->folder, id, &st) == -ENOENT;
}

/* Whoever removes a block, or moves it away, does that under the name's lock:
 * no place enters the index that has gone since its file was opened. */
static int examine_admit_named(struct ucm_store *store,
			       struct ucm_space *space,
			       const struct ucm_entry *entry,
			       const struct ucm_id *parent,
			       const struct ucm_file *file)
{
	int err = 0;

	ucm_store_lock_name(store, &entry->id);
	if (!examine_is_gone(store, space, &entry->id, entry->dir, file))
		err = ucm_store_admit(store, space, entry, parent);
	ucm_store_unlock_name(store, &entry->id);
	return err;
}

static int examine_admit_file(struct ucm_store *store, struct ucm_space *space,
			      const struct ucm_block *block, unsigned dir,
			      const struct ucm_file *file,
			      const struct stat *st)
{
	const struct ucm_recovery *recovery = &store->dirs.at[dir]->recovery;
	struct ucm_key key = { .id = block->id, .space = space->number };
	struct ucm_entry entry, there;

	ucm_store_entry(&key, dir, st, &entry);
	if (ucm_recovery_is_recent(recovery, st))
		entry.epoch = atomic_load(&recovery->epoch);
	/* its directory may have had its checkpoint without this file */
	if (ucm_recovery_doubts(recovery, st) ||
	    atomic_load(&store->keepers[dir].unread))
		entry.flags |= UCM_ENTRY_DOUBT;
	if (entry.flags & UCM_ENTRY_DOUBT &&
	    ucm_index_find(store->index, &key, &there, NULL) &&
	    there.dir != dir &&
	    !is_good_copy(store, space, &key, dir, file, st))
		return 0;
	return examine_admit_named(store, space, &entry,
				   ucm_store_parent(block), file);
}

/* A bare block's geometry is its size. One that a power cut may have torn would
 * teach its space a wrong one. */
static bool teaches(const struct ucm_medium *medium,
		    const struct ucm_block *block, const struct stat *st)
{
	return block->form != UCM_FORM_BARE ||
	       !atomic_load(&medium->recovery.unvouched) ||
	       !ucm_recovery_doubts(&medium->recovery, st);
}

/* An open file: into the index with it, or not; see ucm_store_examine(). */
int ucm_store_examine_file(struct ucm_store *store, struct ucm_space *space,
			   const struct ucm_id *id, unsigned dir,
			   const struct ucm_file *file, const struct stat *st)
{
	const struct ucm_bytes bytes = ucm_file_bytes(file);
	enum ucm_fault fault = UCM_FAULT_NONE;
	struct ucm_block block;
	int err = ucm_verify_header(&bytes, (uint64_t)st->st_size, id, &block,
				    &fault);

	if (err)
		return ucm_store_fail(store, dir, id, "read", err);
	if (!fault)
		fault = ucm_space_fits(space, &block,
				       teaches(store->dirs.at[dir], &block,
					       st));
	ucm_debug(SCAN, 2, "%s: block %s: %s", store->dirs.at[dir]->path,
		  ucm_hex(id).text, ucm_fault_text(fault));
	if (fault) {
		examine_reject(store, space, id, dir, st, fault);
		return 0;
	}
	return examine_admit_file(store, space, &block, dir, file, st);
}

int ucm_store_examine(struct ucm_store *store, struct ucm_space *space,
		      const struct ucm_id *id, unsigned dir)
{
	_cleanup_file_ struct ucm_file file = UCM_NO_FILE;
	struct stat st;
	int err = ucm_store_open_file(store, space, id, dir, &file, &st);

	if (err)
		return err == -ENOENT ? 0 : err;
	return ucm_store_examine_file(store, space, id, dir, &file, &st);
}

void ucm_store_examine_copies(struct ucm_store *store,
			      const struct ucm_entry *entry)
{
	struct ucm_space *space = store->names.spaces[entry->space];

	for (unsigned dir = 0; dir < store->dirs.num; dir++) {
		if (dir != entry->dir && ucm_entry_has_dir(entry, dir))
			ucm_store_examine(store, space, &entry->id, dir);
	}
}

/* 1: it is a block, and in the index now. Quiet: what else there is to say of
 * the file, the scan says. */
int ucm_store_learn_from(struct ucm_store *store, struct ucm_space *space,
			 const struct ucm_id *id, unsigned dir)
{
	struct ucm_medium *medium = store->dirs.at[dir];
	enum ucm_fault fault = UCM_FAULT_NONE;
	_cleanup_file_ struct ucm_file file = UCM_NO_FILE;
	struct ucm_block block;
	struct ucm_bytes bytes;
	struct stat st;
	int err = ucm_medium_open_block(medium, space->folder, id, &file, &st);

	if (err)
		return err == -ENOENT || err == -ENXIO || err == -ELOOP ? 0
									: err;
	bytes = ucm_file_bytes(&file);
	err = ucm_verify_header(&bytes, (uint64_t)st.st_size, id, &block,
				&fault);
	if (err || fault || !teaches(medium, &block, &st) ||
	    ucm_space_fits(space, &block, true))
		return err;
	return examine_admit_file(store, space, &block, dir, &file, &st);
}
