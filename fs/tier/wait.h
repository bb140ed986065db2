/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wait.h - what may wait for a directory, and where.
 *
 * Some threads serve requests of everybody (ucm_must_not_wait of osguard.h):
 * one that waits for a directory would keep waiting those that have nothing to
 * do with it. What would make it wait asks here first, before anything is
 * changed or locked. In such a thread the answer is -EINPROGRESS: the work is
 * then done from its beginning by another thread, which may wait. In all other
 * threads it is 0.
 */
#ifndef UCM_WAIT_H
#define UCM_WAIT_H

#include "fs/tier/dirs.h"

/* For an ordinary call on a directory: only one under guard keeps anybody
 * waiting, as the others are local disks. */
int ucm_wait_for(const struct ucm_dirs *dirs, unsigned dir);

#define UCM_WAIT_MANY UCM_MAX_DIRS

/* For what takes long on any directory, or on several (UCM_WAIT_MANY): a sync, or
 * reading all of a block. */
int ucm_wait_long(unsigned dir);

/* For calls on several directories, which ones is not known yet. */
int ucm_wait_for_any(const struct ucm_dirs *dirs);

/* What the last -EINPROGRESS of this thread was for. */
unsigned ucm_waited_for(void);

#endif
