/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hold.h - what holds a block: may it be moved or evicted now?
 *
 * A block is held while a file of it is open, it is pinned, or its writer still
 * has it open. Whoever wants to take one away claims it. A claim that is granted
 * and an open exclude each other: the one that comes second sees the other,
 * whatever the threads. An unlink by name asks nobody; those who have the file
 * open read on. That a block is expected (expected.h) does not hold it.
 *
 * Any thread may call.
 */
#ifndef UCM_HOLD_H
#define UCM_HOLD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "fs/index/index.h"
#include "fs/store/find/expected.h"

struct ucm_store;

/*
 * A file of a block that somebody opens, in memory of his own, which must be 0
 * before the first open. Its opens share it: num of them.
 */
struct ucm_open {
	struct ucm_open *next; /* under its chain's lock, as ref */
	ucm_ref ref;	       /* 0: of no block */
	_Atomic uint32_t num;  /* grows under the lock of the entry's shard */
};

#define UCM_OPEN_HEADS 4096u
#define UCM_OPEN_LOCKS 64u

struct ucm_holds {
	struct ucm_expected expected;
	pthread_mutex_t locks[UCM_OPEN_LOCKS]; /* of the heads, by number */
	struct ucm_open *heads[UCM_OPEN_HEADS];
};

void ucm_holds_init(struct ucm_holds *holds);
void ucm_holds_fini(struct ucm_holds *holds);

/* ---- opens ---- */

/* One more open of a block, counted as a use or not. open is of no block, or of
 * this one. -ENOENT: the block is gone, or is being taken away. */
int ucm_hold_open(struct ucm_store *store, struct ucm_open *open, ucm_ref ref,
		  bool is_use);
/* One open less. No lock is taken. */
static inline void ucm_hold_close(struct ucm_open *open)
{
	atomic_fetch_sub_explicit(&open->num, 1, memory_order_release);
}
/* The file is closed: of no block from now on, whatever the number of opens. */
void ucm_hold_end(struct ucm_store *store, struct ucm_open *open);

/* ---- the question ---- */

struct ucm_hold {
	uint32_t opens;
	bool pinned;
	bool being_written; /* its writer has it open */
	bool leaving;	    /* it is being taken away */
};

/* What holds a block now. -ENOENT: it is gone. */
int ucm_store_holds(struct ucm_store *store, ucm_ref ref, struct ucm_hold *out);

/*
 * Claim a block in order to take it away: from now on it is absent for whoever
 * looks or opens. Under its name's lock (find.h), under which it is removed
 * then, or unclaimed. leaf: only if it has no child. -EPERM: pinned; -EBUSY: held
 * otherwise, or it has one; -ENOENT: gone, or claimed by another. out: what holds it,
 * or NULL; not for -ENOENT.
 */
int ucm_store_claim(struct ucm_store *store, ucm_ref ref, bool leaf,
		    struct ucm_hold *out);
/* It stays after all. */
void ucm_store_unclaim(struct ucm_store *store, ucm_ref ref);

/*
 * A block that has two places leaves one of them: from now on it is read in the
 * other. The file stays to be removed by whoever calls, under the name's lock.
 * -EBUSY: it is held, or its other file has not been looked at; -ESTALE: it
 * does not have two places of which this is one; -ENOENT: gone, or going.
 */
int ucm_store_leave_place(struct ucm_store *store, ucm_ref ref, unsigned dir);

/* ---- figures ---- */

/* Blocks that are open now. */
uint64_t ucm_store_count_open(struct ucm_store *store);

#endif
