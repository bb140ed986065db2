/* SPDX-License-Identifier: Apache-2.0 */
/*
 * start.h - the store's life, for the sources of this room alone; store.h has what
 * others call.
 *
 * open reads which spaces there are (spaces.c, learn.c); start begins the scan's
 * threads, which read each bucket of each directory once (scan.c), and a keeper for
 * each directory (keeper.c), which makes its checkpoints and leaves it clean at
 * the end, with a snapshot for the next start (snapshot_save.c).
 */
#ifndef UCM_START_H
#define UCM_START_H

#include "fs/store/find/find.h"

/* ---- spaces (learn.c, spaces.c) ---- */

/* Which buckets of a space there are, the others are scanned; and what its
 * blocks look like, from the first right one. */
void ucm_store_learn(struct ucm_store *store, struct ucm_space *space);

/* At the start: which spaces the directories have, and all of the above. */
int ucm_store_find_spaces(struct ucm_store *store,
			  struct ucm_error *error);

/* ---- the scan's threads, and their end (scan.c) ---- */

int ucm_scan_start(struct ucm_store *store);
void ucm_scan_stop(struct ucm_store *store);
/* Of one directory, once its scan has ended: try again what could not be
 * read, and what is in doubt. */
void ucm_scan_retry(struct ucm_store *store, unsigned dir);
void ucm_scan_settle(struct ucm_store *store, unsigned dir);

/* ---- the snapshot of a clean end (snapshot_save.c) ---- */

/* Write a directory's snapshot; its number is for the state file of a clean end.
 * When nobody uses the store any more. */
void ucm_snapshots_save(struct ucm_store *store, unsigned dir);

/* ---- the keepers' threads (keeper.c) ---- */

int ucm_keepers_start(struct ucm_store *store);
/* The threads leave each directory clean, if it is, and end. False if one
 * hangs: its keeper has not ended. */
bool ucm_keepers_stop(struct ucm_store *store);

#endif
