/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lock.h - a directory is used by one process.
 *
 * .ucmfs/lock is locked for as long as the directory is used. What it says is
 * for the process that finds it locked: umount(8) returns before the daemon has
 * closed, so a start waits for a daemon that is ending, and a few seconds for a
 * private one, which may have lost its last client.
 */
#ifndef UCM_LOCK_H
#define UCM_LOCK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "fs/tier/medium.h"

/*
 * Lock a directory's control directory: a descriptor, which is the lock. Waits
 * for at most wait_s seconds while its user is ending. On failure error
 * names path, and who uses it: -EBUSY if it is in use, or what the file system
 * says of the lock.
 */
int ucm_lock_take(int ctldir, const char *path, unsigned wait_s,
		  struct ucm_error *error);

/* Tell those who wait. mount: the device of a mount that is SERVING. Nothing
 * happens if lockfd is -1, or if it is not known: then nobody waits. */
void ucm_lock_tell(int lockfd, enum ucm_medium_use use, dev_t mount);

#endif
