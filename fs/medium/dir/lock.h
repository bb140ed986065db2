/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lock.h - a directory is used by one process.
 *
 * .ucmfs/lock is locked for as long as the directory is used. umount(8) returns
 * before the daemon has closed, so a start waits for its user to end.
 */
#ifndef UCM_LOCK_H
#define UCM_LOCK_H

#include <ucm/error.h>

/*
 * Lock a directory's control directory: a descriptor, which is the lock. Waits
 * for at most wait_s seconds while its user says that it is ending, and for any other
 * a few seconds. On failure error names path, and who uses it: -EBUSY if it is in use,
 * or what the file system says of the lock.
 */
int ucm_lock_take(int ctldir, const char *path, unsigned wait_s,
		  struct ucm_error *error);

/* Its user is about to end: others may wait for that. -1 is no lock. */
void ucm_lock_ending(int lockfd);

#endif
