/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pins.h - the pins that the directories keep, until the index has them.
 *
 * Marks of pinned blocks lie beside the blocks. They are read before the scan,
 * and kept here, so that an entry is pinned from its first moment: what finds
 * it, scan, probe or snapshot, knows nothing of pins, and a mover may be waiting
 * for it. Nothing is evicted from a directory before its marks are read.
 *
 * Any thread may call.
 */
#ifndef UCM_PINS_H
#define UCM_PINS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "fs/index/index.h"

struct ucm_store;

struct ucm_pins {
	pthread_mutex_t lock; /* guards keys, and num for writing */
	struct ucm_key *keys; /* sorted */
	_Atomic size_t num;
	size_t room;
	bool lacks_some; /* there was no memory: nothing goes */
};

void ucm_pins_init(struct ucm_pins *pins);
void ucm_pins_fini(struct ucm_pins *pins);

bool ucm_pins_have(struct ucm_pins *pins, const struct ucm_key *key);
/* It is pinned no more. */
void ucm_pins_remove(struct ucm_pins *pins, const struct ucm_key *key);

/* ---- the marks ---- */

/* Read those of a directory, if that has not been done; waits for whoever is at
 * it. */
void ucm_pins_read(struct ucm_store *store, unsigned dir);

/* The mark of a pinned block, in each of its places. The first error. */
int ucm_store_mark_pin(struct ucm_store *store, const struct ucm_entry *entry,
		       bool pinned);

#endif
