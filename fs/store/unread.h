/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unread.h - files that the scan could not read.
 *
 * An error of one file (EIO) may pass, or be a bad sector that stays. Neither is
 * a reason to read its whole bucket again and again, nor to call the index
 * incomplete for ever. So the name alone is kept: it is looked at again when it
 * is asked for, and a few times without that. Any thread.
 */
#ifndef UCM_UNREAD_H
#define UCM_UNREAD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "fs/index/index.h"

#define UCM_UNREAD_MAX 256u
#define UCM_UNREAD_TRIES 8u       /* without being asked for */
#define UCM_UNREAD_EVERY_MS 10000 /* reading a bad sector takes seconds */

struct ucm_unread {
	_Atomic unsigned num;
	pthread_mutex_t lock; /* guards the rest */
	struct ucm_unread_file {
		struct ucm_key key;
		uint8_t dir;
		uint8_t tries;
		int64_t next_ms; /* not before this time (monotonic) */
	} files[UCM_UNREAD_MAX];
};

void ucm_unread_init(struct ucm_unread *unread);
void ucm_unread_fini(struct ucm_unread *unread);

/* Keep a name. false: there is no room; the bucket must be read again. */
bool ucm_unread_add(struct ucm_unread *unread, const struct ucm_key *key,
		    unsigned dir, int64_t now_ms);

/* The next file that may be looked at now, from *cursor on (0 at first): of
 * that key, or (NULL) of any that has not been tried too often; in that
 * directory. It counts as tried. */
#define UCM_UNREAD_ANY_DIR UINT32_MAX
bool ucm_unread_next(struct ucm_unread *unread, const struct ucm_key *key,
		     unsigned dir, int64_t now_ms, unsigned *cursor,
		     struct ucm_unread_file *out);

bool ucm_unread_has(struct ucm_unread *unread, const struct ucm_key *key,
		    unsigned dir);

/* Is there any in a directory? */
bool ucm_unread_any(struct ucm_unread *unread, unsigned dir);

/* It has been read, or is gone. */
void ucm_unread_remove(struct ucm_unread *unread, const struct ucm_key *key,
		       unsigned dir);

#endif
