/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recovery.h - which blocks of a directory may be torn after a crash.
 *
 * Without an fsync for every block a power cut tears files that were renamed
 * but not yet written. So each directory keeps a small state file: whether it
 * was closed cleanly, and the time of the last syncfs (the checkpoint). After
 * an unclean stop, what changed after the checkpoint is in doubt until its
 * checksums have been compared. So it is after a sync that failed.
 *
 * Times are the backing file system's own (a file server's clock is not ours):
 * the medium says what its clock says.
 */
#ifndef UCM_RECOVERY_H
#define UCM_RECOVERY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

struct ucm_medium;

struct ucm_recovery {
	/* What has changed since the checkpoint is in doubt: the last user did
	 * not close the directory, or writes were lost. */
	_Atomic bool unclean;
	/* Nobody vouches for what has no checksum: the machine has been
	 * restarted since, or writes were lost. */
	_Atomic bool unvouched;
	_Atomic bool lost; /* a sync failed, and there was no checkpoint since */
	int damaged; /* -errno: the state file could not be read as one */
	_Atomic unsigned losses; /* how often one failed */
	/* Counts the syncs that were begun; not 0. What is committed is on disk
	 * when one that is begun later has succeeded. */
	_Atomic uint16_t epoch;
	uint16_t oldest; /* the first that no sync has covered */
	uint64_t snapshot; /* number of the one that a clean end has left or is
			    * to leave (snapshot.h); 0: none */
	int64_t mark_ns; /* when the next checkpoint was begun; 0: not yet */
	/* What the state file says now: */
	char boot[40];
	_Atomic int64_t checkpoint_ns;
};

/* Read a medium's state file; a medium without one is clean, and of one that is
 * damaged all blocks are in doubt. -errno (logged): it cannot be asked. */
int ucm_recovery_read(struct ucm_recovery *recovery, struct ucm_medium *medium);

/* Say on disk that the directory is in use. Before the first write. */
int ucm_recovery_begin(struct ucm_recovery *recovery,
		       struct ucm_medium *medium);

/*
 * The medium is synced; one at a time, as the two below. When it fails, pages
 * that could not be written may be gone from memory, and the next one will not
 * say so: losses is counted, and the state file says from now on that writes
 * were lost. The caller then doubts all that is uncovered.
 */
int ucm_recovery_sync(struct ucm_recovery *recovery, struct ucm_medium *medium);

/* The next checkpoint holds for what was changed before now. What is to be
 * checked for it is checked after this. */
void ucm_recovery_mark(struct ucm_recovery *recovery,
		       struct ucm_medium *medium);

/* The same, and a new checkpoint, which also ends a loss. Only when nothing is
 * in doubt any more. */
int ucm_recovery_checkpoint(struct ucm_recovery *recovery,
			    struct ucm_medium *medium);

/* The same, and say that all is well. Not while anything is in doubt. */
int ucm_recovery_end(struct ucm_recovery *recovery, struct ucm_medium *medium);

/* Has no sync covered what was committed in that epoch? 0 is on disk. */
bool ucm_recovery_uncovered(const struct ucm_recovery *recovery,
			    uint16_t epoch);

/* Has a file with this ctime changed since the checkpoint? */
bool ucm_recovery_is_recent(const struct ucm_recovery *recovery,
			    const struct stat *st);

/* Is a file in doubt, that has changed since the checkpoint? */
bool ucm_recovery_doubts(const struct ucm_recovery *recovery,
			 const struct stat *st);

#endif
