/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lessee.h - keeping blocks from being evicted while a request wants them.
 *
 * Between the answer that a block is there and its load, the mount may need its
 * room. A lessee takes leases on blocks for requests, renews them, and gives
 * them back (LEASE of ucm-serve(7)). It does so in a thread of its own: no
 * call here waits for the mount. A lease is a hint. Where it cannot be had, the
 * answer stands, and a block that is gone by then fails to load.
 *
 * Any thread may call. See ucm_lessee(3).
 */
#ifndef UCM_LESSEE_H
#define UCM_LESSEE_H

#include <stddef.h>
#include <stdint.h>

#include <ucm/block.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ucm_lessee;

/* What the leases of a program that was killed take to run out. */
#define UCM_LESSEE_MS 20000u

/* mount: the mount point, or a daemon's socket, which is looked for when the first hold is wanted.
 * lease_ms: of a lease, until it is renewed, up to UCM_CONTROL_LEASE_MAX_MS;
 * 0: UCM_LESSEE_MS. -ENOMEM, -EINVAL. */
int ucm_lessee_open(const char *mount, uint32_t lease_ms,
		    struct ucm_lessee **out);

/* Gives back what is held, unless the daemon does not answer. NULL is
 * harmless. */
void ucm_lessee_close(struct ucm_lessee *lessee);

/*
 * Hold blocks for a request: they are leased soon, and renewed until the hold is
 * released or for_ms are over. space: NULL or "": the default one. ids are
 * copied. A number for the release; 0: there are too many, or no memory.
 */
uint64_t ucm_lessee_hold(struct ucm_lessee *lessee, const char *space,
			 const struct ucm_id *ids, size_t num, uint32_t for_ms);

/* The request has loaded them, or has ended. 0, or one that is over: nothing. */
void ucm_lessee_release(struct ucm_lessee *lessee, uint64_t hold);

/* Since it was opened, but for the first two. */
struct ucm_lessee_stats {
	uint64_t holds;   /* now */
	uint64_t blocks;  /* in them, now */
	uint64_t leased;  /* blocks on which leases were given */
	uint64_t absent;  /* were gone when they were to be leased */
	uint64_t refused; /* were not leased: too many of the user, too long */
	uint64_t calls;   /* of the mount */
	uint64_t failed;  /* of these: no mount, or one without leases */
};

void ucm_lessee_get_stats(struct ucm_lessee *lessee,
			  struct ucm_lessee_stats *out);

#ifdef __cplusplus
}
#endif

#endif
