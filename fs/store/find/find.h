/* SPDX-License-Identifier: Apache-2.0 */
/*
 * find.h - which blocks there are, and where; for the other rooms of the store.
 *
 * The index is the truth for what it has, and the other rooms change it by the calls
 * here. An entry comes from a file that was examined (by the scan, a probe
 * or a commit), from a snapshot, or from a copy; it goes when the block is removed
 * or evicted, or when its file is not there or is wrong.
 *
 * Its states are flags, since several hold at a time. Who changes which:
 *
 *   of the file that is read (dir)
 *   UNREAD     set: of an entry from a snapshot, and when the second place becomes
 *              the first (entry.c); cleared: by the first open, which reads the
 *              header (find.c), and by a commit in its place
 *   DOUBT      writes may be lost, all checksums are compared before use; set: by
 *              the scan after an unclean stop (examine.c), when a sync fails, and
 *              for a commit that came before that (entry.c, commit.c), of a file
 *              that could not be compared after a late write (late.c); cleared: by
 *              ucm_store_settle(), and when another file becomes the first
 *   WRITABLE   and SHARED, if it may be mapped; set: by the commit; cleared: by the
 *              last close of its writer
 *
 *   of the block
 *   LEAVING    set: by a claim and by an unlink; cleared: by ucm_store_unclaim(), or
 *              the entry goes
 *   PINNED     set and cleared: by ucm_store_pin(); set: by marks that are read
 *   DUPLICATE  set: when a third place is seen, and by a snapshot; stays
 *   tier_only  set: by a mover, of a block that no lower tier takes; cleared: by a
 *              second place, and with another file
 *   copy       the second place; set: by a copy, and when a file is seen there;
 *              cleared: by ucm_store_leave_place(), or when the file is not there
 *
 * A name's file and its entry are changed together under the name's lock, and only
 * if the entry is still that of the file that was judged.
 */
#ifndef UCM_FIND_H
#define UCM_FIND_H

#include <limits.h>

#include "fs/store/store.h"
#include "fs/tier/wait.h"

/* ---- entries (entry.c) ---- */

void ucm_store_lock_name(struct ucm_store *store, const struct ucm_id *id);
void ucm_store_unlock_name(struct ucm_store *store, const struct ucm_id *id);

/* The room that a block counts for. One that is young counts for all of its size:
 * while ext4 writes a file, st_blocks may leave some out (what was reserved is given
 * back a moment before what was allocated is added), and ZFS counts later. */
uint64_t ucm_store_takes(const struct stat *st);

/* What fstat says of a block's file, as an entry. */
void ucm_store_entry(const struct ucm_key *key, unsigned dir,
		     const struct stat *st, struct ucm_entry *out);

/* Add what a directory holds; flags as in the index; the parent that it names,
 * or NULL. Counts space and room. */
int ucm_store_index_add(struct ucm_store *store, struct ucm_space *space,
			const struct ucm_entry *entry,
			const struct ucm_id *parent, ucm_ref *ref_out);
/* why: it was removed, or evicted. */
bool ucm_store_index_remove(struct ucm_store *store, ucm_ref ref,
			    enum ucm_policy_why why, struct ucm_entry *out);

/* The entry is that file's now. */
void ucm_store_restat(struct ucm_store *store, ucm_ref ref, unsigned dir,
		      const struct stat *st);
/* Under the name's lock: is the entry still that file's? Its copy, if so. */
bool ucm_store_get_judged(struct ucm_store *store, ucm_ref ref, unsigned dir,
			  const struct stat *judged, struct ucm_entry *out);
/* The same for a file that has just been judged, and flags to add: what was to
 * be said of an older one is over. */
void ucm_store_adopt(struct ucm_store *store, const struct ucm_temp *temp,
		     uint8_t flags);

/* Count an open of an entry that is being edited. */
void ucm_store_use_entry(struct ucm_store *store, struct ucm_entry *entry);

/* A block's file was seen in that directory, too; or it is gone from there. */
void ucm_store_note_copy(struct ucm_store *store, ucm_ref ref, unsigned dir);
/* The same, and from now on it is read there. */
void ucm_store_move_to(struct ucm_store *store, ucm_ref ref, unsigned dir);
/* An entry that is being edited, and has two places, leaves one of them; and the
 * file that it had there is gone: until then its room is not free. */
void ucm_store_leave_entry(struct ucm_store *store, struct ucm_entry *entry,
			   unsigned dir);
void ucm_store_left(struct ucm_store *store, unsigned dir, uint32_t blocks);
void ucm_store_forget_copy(struct ucm_store *store, ucm_ref ref, unsigned dir);
/* It stays where it is alone: no lower tier takes it. Until it has a second
 * place. */
void ucm_store_withhold(struct ucm_store *store, ucm_ref ref);

/* Of a block whose header has been read: the parent that it names, or NULL. */
static inline const struct ucm_id *
ucm_store_parent(const struct ucm_block *block)
{
	return block->flags & UCM_BLOCK_HAS_PARENT ? &block->parent : NULL;
}

/* Put it in doubt. */
void ucm_store_doubt(struct ucm_store *store, ucm_ref ref);
/* Writes were lost: put in doubt what no sync has covered. */
void ucm_store_doubt_uncovered(struct ucm_store *store, unsigned dir);
/* Count doubts of a directory: before an entry gets the flag, and after it has
 * lost it. */
void ucm_store_count_doubts(struct ucm_store *store, unsigned dir, int more);

/* fn on the entries of a shard, and of a directory or all, that have a flag;
 * outside of the index's locks, and until the store is stopping. */
#define UCM_ALL_DIRS UINT_MAX
void ucm_store_each_flagged(struct ucm_store *store, unsigned shard,
			    unsigned dir, uint8_t flag,
			    int (*fn)(struct ucm_store *store, ucm_ref ref));

static inline const char *ucm_store_folder(const struct ucm_store *store,
					   const struct ucm_entry *entry)
{
	return store->names.spaces[entry->space]->folder;
}

/* ---- one file (examine.c) ---- */

/* A call on a block's file has failed: log and count that; err. */
int ucm_store_fail(struct ucm_store *store, unsigned dir,
		   const struct ucm_id *id, const char *call, int err);

/* Open a block's file for reading; what is none is -ENOENT and counted, other
 * failures are logged and counted. */
int ucm_store_open_file(struct ucm_store *store, struct ucm_space *space,
			const struct ucm_id *id, unsigned dir,
			struct ucm_file *out, struct stat *st);

/* Into the index, or noted as a copy of what is there. 1, or -errno. */
int ucm_store_admit(struct ucm_store *store, struct ucm_space *space,
		    const struct ucm_entry *entry, const struct ucm_id *parent);
/* Look for other files of a block that has just lost its entry. */
void ucm_store_examine_copies(struct ucm_store *store,
			      const struct ucm_entry *entry);

/* Look at one name in one directory and index it if it is a block.
 * 1: it is; 0: it is not; -errno: the directory failed. */
int ucm_store_examine(struct ucm_store *store, struct ucm_space *space,
		      const struct ucm_id *id, unsigned dir);
/* The same of its open file. */
int ucm_store_examine_file(struct ucm_store *store, struct ucm_space *space,
			   const struct ucm_id *id, unsigned dir,
			   const struct ucm_file *file, const struct stat *st);
/* The same, quiet about what is wrong, and only if the block may teach its space
 * what blocks look like. */
int ucm_store_learn_from(struct ucm_store *store, struct ucm_space *space,
			 const struct ucm_id *id, unsigned dir);

/* ---- bad entries (doubt.c); ucm_store_condemn() ---- */

/* A file that is not in the index: move it aside, with a word in the log, if it is
 * still the one that was judged; as for ucm_store_condemn(). */
void ucm_store_set_aside(struct ucm_store *store, struct ucm_space *space,
			 const struct ucm_id *id, unsigned dir,
			 const struct stat *judged, enum ucm_fault fault,
			 const char *detail);

/* Where in a file a fault is, for the log; nothing but for UCM_FAULT_PLANE. */
struct ucm_fault_place {
	char text[40];
};

struct ucm_fault_place ucm_store_fault_place(enum ucm_fault fault,
					     uint32_t plane);

/* The file of an entry is not there, or is no file (judged NULL), or not the
 * block: the entry is removed, unless another directory has a copy, which takes
 * its place. err: for the log. False: that is not so any more. */
bool ucm_store_lose(struct ucm_store *store, ucm_ref ref, unsigned dir,
		    const struct stat *judged, int err);

/* Compare the checksums of a block in doubt with what the disk has. 0: it is
 * good; -ENOENT: it was not, and is gone. */
int ucm_store_settle(struct ucm_store *store, ucm_ref ref);

/* ---- late writes (late.c) ---- */

/* A block's file that was written to after its commit was begun: what is wrong
 * with it? Without checksums nobody can say what it holds now. */
int ucm_store_find_late_fault(struct ucm_space *space,
			      const struct ucm_file *file,
			      const struct stat *st, const struct ucm_id *id,
			      enum ucm_fault *fault);

/* A block whose writer still has it open is about to be read; file and st are of
 * its file. 0; -ENOENT: it was written to and is wrong, and has been set
 * aside; -errno: it cannot be read. */
int ucm_store_check_written(struct ucm_store *store, ucm_ref ref,
			    const struct ucm_entry *entry,
			    const struct ucm_file *file, const struct stat *st);

/* ---- what the last clean end has left (snapshot_load.c, snapshot.h) ---- */

/* Does a bucket's stamp tell whether its names have changed? */
static inline bool ucm_store_shows_changes(const struct ucm_medium *medium)
{
	return !(medium->flags & UCM_MEDIUM_SHARED);
}

/* Look for the snapshots, once the spaces are known. */
void ucm_snapshots_open(struct ucm_store *store);
/* Index what a directory's snapshot has of a bucket, in all spaces, if that has
 * not been done: buckets that are as they were count as scanned. */
void ucm_snapshots_load(struct ucm_store *store, unsigned dir, unsigned bucket);
/* Was that bucket indexed without being listed? */
bool ucm_snapshots_trusted(struct ucm_store *store,
			   const struct ucm_space *space, unsigned dir,
			   unsigned bucket);
/* They are not asked again. */
void ucm_snapshots_close(struct ucm_store *store);
void ucm_snapshots_free(struct ucm_store *store);

/* ---- buckets (bucket.c); ucm_store_fill_bucket() ---- */

/* Index one bucket of one directory, also if that has been done: the first
 * time a snapshot may save the listing. -errno if it could not be read (logged
 * the first time); then its names go on to be probed for. */
int ucm_store_scan_bucket(struct ucm_store *store, struct ucm_space *space,
			  unsigned dir, unsigned bucket);

/* The blocks among the names of a bucket that was listed. The owner frees ids. */
struct ucm_listed {
	struct ucm_id *ids; /* sorted */
	size_t num;
};

/* listed: empty. names: each with its NUL, "" at the end. 0, -ENOMEM. */
int ucm_listed_read(struct ucm_listed *listed, const char *names);
bool ucm_listed_has(const struct ucm_listed *listed, const struct ucm_id *id);

/* A bucket was listed: what it has no more leaves the index. */
void ucm_store_drop_vanished(struct ucm_store *store,
			     const struct ucm_space *space, unsigned dir,
			     unsigned bucket, const char *names);

/* ---- what other daemons do (fresh.c) ---- */

extern int64_t ucm_fresh_age_ms; /* 2000; tests wait less */

/* Has any directory other daemons? */
bool ucm_store_is_shared(const struct ucm_store *store);

/* What a look-up did not find may have been added since: see to it that the index has
 * all of a bucket in shared directories that is older than two seconds. Not under a
 * name's lock. 0, also if a directory could not say; -EINPROGRESS. */
int ucm_store_freshen(struct ucm_store *store, struct ucm_space *space,
		      unsigned bucket);
/* All of a shared directory. */
void ucm_store_freshen_all(struct ucm_store *store, unsigned dir);

/* Has another daemon pinned a block there? Then its entry is pinned, too. */
bool ucm_store_is_pinned_in(struct ucm_store *store, ucm_ref ref,
			    const struct ucm_entry *entry, unsigned dir);
/* Has another daemon used it there since we did? Its entry says so from now on. */
bool ucm_store_is_used_in(struct ucm_store *store, ucm_ref ref,
			  const struct ucm_entry *entry, unsigned dir);

/* Now and then: the times of use of all that was used here become those of the files,
 * for the others. */
void ucm_store_share_uses(struct ucm_store *store, unsigned dir);

/* ---- all of a directory (bucket.c) ---- */

/* Have all buckets of a directory been read? */
bool ucm_store_knows(struct ucm_store *store, unsigned dir);

/* The same of all directories. Before that a block may have other places than the
 * index has, and be the parent of others. One that does not answer is not waited
 * for. */
bool ucm_store_knows_all(struct ucm_store *store);

/* ---- blocks (find.c) ---- */

/* Is the file of an entry there and good, as far as open_block looks? 0;
 * -ENOENT: it was not, and the entry is gone; -errno. Counts as no use. */
int ucm_store_check(struct ucm_store *store, ucm_ref ref);

/* ---- what is on disk of a directory (checkpoint.c) ---- */

static inline struct ucm_medium *
ucm_keeper_medium(const struct ucm_keeper *keeper)
{
	return keeper->store->dirs.at[keeper->dir];
}

/* Has all of its directory been read, and is nothing in it in doubt? */
bool ucm_keeper_knows(struct ucm_keeper *keeper);

/* A new checkpoint of its directory: 0; -EAGAIN: not all of it is known; -errno,
 * logged. */
int ucm_keeper_checkpoint(struct ucm_keeper *keeper);

/* syncfs of one directory, with all that follows from a failure, which is logged.
 * What was committed there before is on disk, with its name. */
int ucm_store_sync_dir(struct ucm_store *store, unsigned dir);

#endif
