/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kept.h - blocks that were closed a moment ago and keep their descriptor.
 *
 * A block that is opened again within seconds needs no open(2) of its file and
 * no new backing id, and a RELEASE closes nothing: a thread does that later.
 * What is kept is dropped at once when the block's entry leaves the index, so
 * that a removed block gives its room back, and it is used only for a file
 * that is what it was when it was opened.
 */
#ifndef UCM_KEPT_H
#define UCM_KEPT_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/queue.h>

#include "fs/index/index.h"

#define UCM_KEPT_SECONDS 10 /* after which a closed block is let go */

struct ucm_daemon;
struct ucm_handle;

/* Under files.lock. */
struct ucm_kept {
	TAILQ_HEAD(, ucm_handle) files; /* oldest first */
	unsigned num, max;
	unsigned max_handles; /* in the table, before fewer are kept */
	pthread_cond_t wake;
	pthread_t thread;
	bool running, stopping;
};

/* From here on blocks are kept, at most this many and no more than a quarter
 * of the descriptors that this process may have; 0: none. 0 or -errno. */
int ucm_kept_start(struct ucm_daemon *daemon, unsigned max);
/* No more; all that is kept is closed. */
void ucm_kept_stop(struct ucm_daemon *daemon);

/* A block's file was opened: remember what it was, and make room for it. Under
 * file->lock. */
void ucm_kept_opened(struct ucm_daemon *daemon, struct ucm_handle *file);

/* The last open of a block is closed: true if its descriptor stays with it.
 * Under file->lock, the caller has a reference of its own. */
bool ucm_kept_add(struct ucm_daemon *daemon, struct ucm_handle *file);

/* Open a block that nobody has open with the descriptor that it has kept: true
 * if it has one and that is still the block; the use is counted. Otherwise it
 * has none any more. Under file->lock. */
bool ucm_kept_open(struct ucm_daemon *daemon, struct ucm_handle *file);

/* The block has left the index; ucm_store's on_gone. Any thread, no lock of the
 * mount held except that of a block in use. */
void ucm_kept_gone(void *daemon, ucm_ref ref);

#endif
