/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dir.h - the medium that is a directory.
 *
 * It is used by one daemon at a time, and makes the calls of medium.h on what lies
 * below it. It does not know what that means, or that other directories exist.
 *
 *   blocks/3f/3f9a….bin   spaces/NAME/3f/…   space.json in a space's folder
 *   files/                see files.h
 *   .ucmfs/id             UUID and format version
 *   .ucmfs/state          see recovery.h
 *   .ucmfs/snapshot       see snapshot.h
 *   .ucmfs/lock           held while the directory is used, see lock.h
 *   .ucmfs/owner          in its place where others may be, see owner.h
 *   .ucmfs/tmp/00 to 3f/  files being written, see temp.h
 *   .ucmfs/quarantine/    torn and damaged blocks, never deleted by us
 *   .ucmfs/pinned/        one empty file for each pinned block
 *
 * Its descriptors are for files/, which is a tree of directories and no medium,
 * and for the loader, which opens blocks below them by io_uring. The store does
 * not include this header (tests/props/layers.py).
 */
#ifndef UCM_DIR_H
#define UCM_DIR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "fs/medium/dir/owner.h"
#include "fs/medium/medium.h"
#include "fs/medium/trust.h"

struct ucm_directory {
	struct ucm_medium medium; /* the first member */
	int dirfd;
	int ctlfd; /* .ucmfs */
	_Atomic int temp_fds[UCM_TEMP_FOLDERS]; /* in .ucmfs/tmp; -1: not yet */
	int lockfd; /* -1: not locked, as others may be at work there */
	struct ucm_owner owner; /* then; its start is "" if we are none */
	_Atomic int64_t beat_due_ms;
	struct ucm_trust trust; /* whose its files are to be */
};

/*
 * Open a directory: it must exist, be writable (unless readonly) and not in
 * use by another daemon; for one that is ending it waits. What of it we use
 * must be ours (trust.h). Makes what it lacks of .ucmfs. Of config it takes
 * deadline_s and lock_wait_s. error names the path. A ucm_medium_open_fn.
 */
int ucm_directory_open(const char *path, bool readonly,
		       const struct ucm_config *config,
		       struct ucm_medium **out, struct ucm_error *error);

/* What opens a directory that the configuration names: that, unless a test has put
 * another medium in its place. */
static inline ucm_medium_open_fn *ucm_opener(const struct ucm_config *config)
{
	return config->open_medium ? config->open_medium : ucm_directory_open;
}

/* A medium that is one; an assertion. */
struct ucm_directory *ucm_directory_of(struct ucm_medium *medium);
/* Its descriptor. */
int ucm_directory_fd(struct ucm_medium *medium);

#endif
