/* SPDX-License-Identifier: Apache-2.0 */
/*
 * background.h - a daemon whose start somebody waits for.
 *
 * A process that goes to the background forks. It forks at its very beginning,
 * while it has one thread: a lock that another thread holds at that moment,
 * were it the allocator's, stays locked in the child for ever.
 */
#ifndef UCM_FS_MOUNT_BACKGROUND_H
#define UCM_FS_MOUNT_BACKGROUND_H

/*
 * Fork. The child goes on: 0; should its parent be killed, it gets a SIGTERM.
 * The parent waits until the child says ucm_background_ready() or ends: 1, and
 * *status is what it shall exit with. -errno: nothing was forked.
 */
int ucm_background_fork(int *status);

/* In the child: leave the terminal and its session, go to /, let the parent
 * end. Does nothing where nothing was forked. 0 or -errno. */
int ucm_background_ready(void);

#endif
