/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hold.h - what holds a block: may it be moved or evicted now?
 *
 * A block is held while a file of it is open, a user has a lease on it, it is
 * pinned, or its writer still has it open. Whoever wants to take one away
 * claims it. A claim that is granted and an open or a lease exclude each other:
 * the one that comes second sees the other, whatever the threads. An unlink by
 * name asks nobody; those who have the file open read on.
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
#include "fs/store/lease.h"

struct ucm_store;

/*
 * A file of a block that somebody opens, in memory of his own, which must be 0
 * before the first open. Its opens share it: num of them; with 0 the file is
 * merely kept for the next one, and holds nothing.
 */
struct ucm_open {
	struct ucm_open *next; /* under its chain's lock, as ref */
	ucm_ref ref;	       /* 0: of no block */
	_Atomic uint32_t num;  /* grows under the lock of the entry's shard */
	uint32_t unlinked;     /* the file has no name, and takes so many blocks
				* of 512 bytes; under its chain's lock */
	uint8_t place;	       /* 1 + its directory; 0: the file is not open */
};

#define UCM_OPEN_HEADS 4096u
#define UCM_OPEN_LOCKS 64u
#define UCM_LEASES_A_USER 65536u

struct ucm_holds {
	struct ucm_leases leases;
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
/* One open less; the file may be kept. No lock is taken. */
static inline void ucm_hold_close(struct ucm_open *open)
{
	atomic_fetch_sub_explicit(&open->num, 1, memory_order_release);
}
/* The file is closed: of no block from now on, whatever the number of opens. */
void ucm_hold_end(struct ucm_store *store, struct ucm_open *open);
/* The block's file in a directory goes, or has gone, and takes so many blocks of
 * 512 bytes: while it is open they count as used there. */
void ucm_hold_unlinked(struct ucm_store *store, ucm_ref ref, unsigned dir,
		       uint32_t blocks);

/* ---- leases ---- */

/* See ucm_lease_take(); -ENOENT: gone, or being taken away. renew: see there.
 */
int ucm_store_lease(struct ucm_store *store, ucm_ref ref, uint32_t uid,
		    uint32_t lease_ms, bool renew);
/* Give one back. -ENOENT: there is no such block. */
int ucm_store_release(struct ucm_store *store, ucm_ref ref, uint32_t uid);

/* ---- the question ---- */

struct ucm_hold {
	uint32_t opens;
	uint32_t lessees;  /* users who have leases on it */
	int64_t leased_ms; /* for so long yet; 0: no more */
	bool pinned;
	bool being_written; /* its writer has it open */
	bool leaving;	    /* it is being taken away */
};

/* What holds a block now. -ENOENT: it is gone. */
int ucm_store_holds(struct ucm_store *store, ucm_ref ref, struct ucm_hold *out);

/*
 * Claim a block in order to take it away: from now on it is absent for whoever
 * looks, opens or leases. Under its name's lock (inside.h), under which it is
 * removed then, or unclaimed. -EPERM: pinned; -EBUSY: held otherwise; -ENOENT:
 * gone, or claimed by another. out: what holds it, or NULL; not for -ENOENT.
 */
int ucm_store_claim(struct ucm_store *store, ucm_ref ref, struct ucm_hold *out);
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

/* Blocks that are open now, and leases that have not run out. */
void ucm_store_count_holds(struct ucm_store *store, uint64_t *open_out,
			   uint64_t *leased_out);

#endif
