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

#include "fs/store/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/osfile.h"
#include "fs/block/verify.h"
#include "hashing/tree.h"

int ucm_store_open_file(struct ucm_store *store, struct ucm_space *space,
			const struct ucm_id *id, unsigned dir, struct stat *st)
{
	int fd = ucm_backing_open_block(store->dirs.at[dir], space->folder, id,
					O_RDONLY, st);

	if (fd == -ENXIO || fd == -ELOOP) {
		ucm_count(&store->stats.strays);
		return -ENOENT;
	}
	if (fd < 0 && fd != -ENOENT) {
		ucm_error("%s: block %s: %s", store->dirs.at[dir]->path,
			  ucm_hex(id).text, strerror(-fd));
		ucm_dirs_count_error(&store->dirs, dir, fd);
	}
	return fd;
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
static void note_copy(struct ucm_store *store, ucm_ref ref, unsigned dir)
{
	struct ucm_entry entry;

	if (ucm_index_get(store->index, ref, &entry) && entry.dir != dir)
		ucm_index_flag(store->index, ref, UCM_ENTRY_DUPLICATE, true);
}

int ucm_store_admit(struct ucm_store *store, struct ucm_space *space,
		    const struct ucm_entry *entry)
{
	ucm_ref ref;
	int err = ucm_store_index_add(store, space, entry, &ref);

	if (err == -EEXIST)
		note_copy(store, ref, entry->dir);
	return err && err != -EEXIST ? err : 1;
}

/* The page cache may have good bytes that never came to the disk, so it is not
 * asked. Where there is no O_DIRECT it is made to forget the file: what has
 * been written is written back before, and what is mapped stays. */
int ucm_store_verify_on_disk(int fd, const struct stat *st,
			     const struct ucm_id *id, struct ucm_block *block,
			     enum ucm_fault *fault, uint32_t *plane)
{
	_cleanup_fd_ int direct = ucm_os_reopen(fd, O_RDONLY | O_DIRECT);
	int err = direct;

	if (direct >= 0)
		err = ucm_verify_whole(direct, (uint64_t)st->st_size, id, block,
				       fault, plane);
	if (err != -EINVAL)
		return err;
	err = ucm_os_fdatasync(fd);
	if (err)
		return err;
	ucm_os_advise(fd, 0, 0, POSIX_FADV_DONTNEED);
	return ucm_verify_whole(fd, (uint64_t)st->st_size, id, block, fault,
				plane);
}

/* A copy of what is known from another directory has no entry that could be in
 * doubt, so it is checked at once. What is wrong is set aside; what cannot be
 * read keeps its directory from being called clean. */
static bool is_good_copy(struct ucm_store *store, struct ucm_space *space,
			 const struct ucm_key *key, unsigned dir, int fd,
			 const struct stat *st)
{
	enum ucm_fault fault = UCM_FAULT_NONE;
	struct ucm_block block;
	uint32_t plane;

	if (ucm_store_verify_on_disk(fd, st, &key->id, &block, &fault,
				     &plane)) {
		ucm_unread_add(&store->unread, key, dir, ucm_monotonic_ms());
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

static int examine_admit_file(struct ucm_store *store, struct ucm_space *space,
			      const struct ucm_id *id, unsigned dir, int fd,
			      const struct stat *st)
{
	const struct ucm_recovery *recovery = &store->dirs.at[dir]->recovery;
	struct ucm_key key = { .id = *id, .space = space->number };
	struct ucm_entry entry, there;

	ucm_store_entry(&key, dir, st, &entry);
	if (ucm_recovery_is_recent(recovery, st))
		entry.epoch = atomic_load(&recovery->epoch);
	/* its directory may have had its checkpoint without this file */
	if (ucm_recovery_doubts(recovery, st) ||
	    ucm_unread_has(&store->unread, &key, dir))
		entry.flags |= UCM_ENTRY_DOUBT;
	if (entry.flags & UCM_ENTRY_DOUBT &&
	    ucm_index_find(store->index, &key, &there, NULL) &&
	    there.dir != dir && !is_good_copy(store, space, &key, dir, fd, st))
		return 0;
	return ucm_store_admit(store, space, &entry);
}

/* A bare block's geometry is its size. One that a power cut may have torn would
 * teach its space a wrong one. */
static bool teaches(const struct ucm_backing *backing,
		    const struct ucm_block *block, const struct stat *st)
{
	return block->form != UCM_FORM_BARE ||
	       !atomic_load(&backing->recovery.unvouched) ||
	       !ucm_recovery_doubts(&backing->recovery, st);
}

/* An open file: into the index with it, or not; see ucm_store_examine(). */
int ucm_store_examine_file(struct ucm_store *store, struct ucm_space *space,
			   const struct ucm_id *id, unsigned dir, int fd,
			   const struct stat *st)
{
	enum ucm_fault fault = UCM_FAULT_NONE;
	struct ucm_block block;
	int err = ucm_verify_header(fd, (uint64_t)st->st_size, id, &block,
				    &fault);

	if (err) {
		ucm_error("%s: block %s: read: %s", store->dirs.at[dir]->path,
			  ucm_hex(id).text, strerror(-err));
		ucm_dirs_count_error(&store->dirs, dir, err);
		return err;
	}
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
	return examine_admit_file(store, space, id, dir, fd, st);
}

int ucm_store_examine(struct ucm_store *store, struct ucm_space *space,
		      const struct ucm_id *id, unsigned dir)
{
	_cleanup_fd_ int fd = -1;
	struct stat st;

	fd = ucm_store_open_file(store, space, id, dir, &st);
	if (fd < 0)
		return fd == -ENOENT ? 0 : fd;
	return ucm_store_examine_file(store, space, id, dir, fd, &st);
}

/* 1: it is a block, and in the index now. Quiet: what else there is to say of
 * the file, the scan says. */
int ucm_store_learn_from(struct ucm_store *store, struct ucm_space *space,
			 const struct ucm_id *id, unsigned dir)
{
	enum ucm_fault fault = UCM_FAULT_NONE;
	_cleanup_fd_ int fd = -1;
	struct ucm_block block;
	struct stat st;
	int err;

	fd = ucm_backing_open_block(store->dirs.at[dir], space->folder, id,
				    O_RDONLY, &st);
	if (fd == -ENOENT || fd == -ENXIO || fd == -ELOOP)
		return 0;
	if (fd < 0)
		return fd;
	err = ucm_verify_header(fd, (uint64_t)st.st_size, id, &block, &fault);
	if (err || fault || !teaches(store->dirs.at[dir], &block, &st) ||
	    ucm_space_fits(space, &block, true))
		return err;
	return examine_admit_file(store, space, id, dir, fd, &st);
}
