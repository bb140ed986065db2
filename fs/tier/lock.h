/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lock.h - who uses a directory: one process that has it for itself, or several
 * that save there side by side.
 *
 * .ucmfs/lock is locked for as long as the directory is used. What it says is
 * for whoever finds it locked: umount(8) returns before the daemon has closed,
 * so a start waits for a daemon that is ending, and for no other.
 *
 * One that has it for itself (a daemon, or who removes blocks without one) knows
 * that nothing is there but what it knows of. A saver is an engine, or a rank of
 * one, that saves blocks without a daemon: it adds files, and believes nothing of
 * what it has seen to be still so. The two kinds keep each other out.
 */
#ifndef UCM_LOCK_H
#define UCM_LOCK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "fs/tier/config.h"

enum ucm_lock_state {
	UCM_LOCK_STARTING,
	UCM_LOCK_SERVING, /* until its mount is gone */
	UCM_LOCK_ENDING,
	UCM_LOCK_SAVING, /* what a saver says, all the time */
};

/*
 * Lock a directory's control directory: a descriptor, which is the lock. Waits
 * for at most wait_s seconds while its user is ending. On failure error
 * names path, and who uses it: -EBUSY if it is in use, or what the file system
 * says of the lock.
 */
int ucm_lock_take(int ctldir, const char *path, unsigned wait_s,
		  struct ucm_error *error);

/* Tell those who wait. mount: the device of a mount that is SERVING. Nothing
 * happens if lockfd is -1, or if it is not known: then nobody waits. Not of a
 * saver's lock. */
void ucm_lock_tell(int lockfd, enum ucm_lock_state state, dev_t mount);

/* ---- savers ---- */

/* As ucm_lock_take(), beside other savers. instance: of the names of its
 * temporary files. */
int ucm_lock_join(int ctldir, const char *path, unsigned wait_s,
		  uint32_t instance, struct ucm_error *error);

/* May that be another saver that lives? What cannot be read may be anybody. */
bool ucm_lock_is_savers(int lockfd, uint32_t instance);

/* Is no other saver there? For longer than a moment only between enter and leave
 * of all who begin. */
bool ucm_lock_is_alone(int lockfd);

/* One saver after the other: for the notes that all of them write. -EBUSY: another
 * does not leave (it was stopped, or its disk hangs). */
int ucm_lock_enter(int lockfd);
void ucm_lock_leave(int lockfd);
/* The same, and it is a saver no more: whoever enters next does not find it. */
void ucm_lock_part(int lockfd);

#endif
