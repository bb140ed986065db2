/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recovery.h - which blocks of a directory may be torn after a crash.
 *
 * Without an fsync for every block a power cut tears files that were renamed
 * but not yet written. So each directory keeps a small state file: whether it
 * was closed cleanly, and the time of the last syncfs (the checkpoint). After
 * an unclean stop, what changed after the checkpoint is in doubt until its
 * checksums have been compared.
 *
 * Times are the backing file system's own (a file server's clock is not ours):
 * they are read from a file that is touched there.
 */
#ifndef UCM_RECOVERY_H
#define UCM_RECOVERY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

struct ucm_recovery {
	/* Filled when the directory is opened: */
	_Atomic bool unclean; /* the last user did not close it */
	bool other_boot;      /* and the machine has been restarted since */
	int64_t safe_until_ns; /* ctimes up to here are not in doubt */
	bool lost; /* a syncfs failed: what it lost, the next will not tell */
	/* What the state file says now: */
	char boot[40];
	int64_t checkpoint_ns;
};

/* Read the state file below ctldir (the directory's .ucmfs); a directory
 * without one is clean. -EINVAL (logged, with path) if it is not readable as
 * one. */
int ucm_recovery_read(struct ucm_recovery *recovery, int ctldir,
		      const char *path);

/* Say on disk that the directory is in use. Before the first write. */
int ucm_recovery_begin(struct ucm_recovery *recovery, int ctldir);

/* syncfs, and a new checkpoint. Only when nothing is in doubt any more. After
 * one that failed there is no other, and no clean end: -EIO. */
int ucm_recovery_checkpoint(struct ucm_recovery *recovery, int ctldir);

/* syncfs, and say that all is well. Not while anything is in doubt. */
int ucm_recovery_end(struct ucm_recovery *recovery, int ctldir);

/* Is a file with this ctime in doubt? */
bool ucm_recovery_doubts(const struct ucm_recovery *recovery,
			 const struct stat *st);

#endif
