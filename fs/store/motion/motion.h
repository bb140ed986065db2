/* SPDX-License-Identifier: Apache-2.0 */
/*
 * motion.h - blocks that move between directories, and those that go.
 *
 * Low to high: one block from one place to another (move.c), several that leave a
 * directory together (batch.c), making room (evict.c, quota_evict.c), what a save
 * is worth (offers.c), and the threads that do all of it beside the requests
 * (mover.c).
 *
 * A move is a copy, after which the block has two places, and the end of one of
 * them. Both are whole in themselves: who wants an inclusive cache does the first
 * alone. Blocks that are expected (expected.h) are evicted only where no other may
 * be.
 *
 * Not from a thread that must not wait. 0 or -errno.
 */
#ifndef UCM_MOTION_H
#define UCM_MOTION_H

#include "fs/store/quota.h"
#include "fs/store/store.h"

/* ---- one block (move.c) ---- */

struct ucm_move_terms {
	struct ucm_tier *to;
	bool first;   /* it is to be read there from now on */
	bool durable; /* on disk, with its name, before the copy is over */
	bool soon;    /* it is to be written: the caller syncs the directory */
	bool within;  /* to another directory of the tier, if it is there */
	bool open;    /* its writer may have it open: it has just closed it */
	bool may_refuse; /* the tier may, as it is not to be written so much:
			  * ucm_evict_and_copy() */
	unsigned only; /* 1 + which of the tier's directories; 0: any */
	/* Called for the bytes that have been copied, and may wait: how fast is
	 * its affair. NULL: at full speed. */
	void (*pace)(void *arg, uint64_t bytes);
	void *arg;
};

/*
 * Copy a block to a directory of a tier, with all checksums compared on the way.
 * It has two places then, and never more: one that has two leaves the slower one
 * before it is copied to be read elsewhere (first), and is not copied otherwise.
 * copied: bytes, or NULL. -ENOENT: it is gone, or it was found to be wrong and
 * has been set aside; -EEXIST: it is in that tier already, or has two places; -EBUSY: its writer
 * has it open, or it changed meanwhile; -ENOSPC: no room there; and what the
 * directories said, which is logged.
 */
int ucm_store_copy(struct ucm_store *store, ucm_ref ref,
		   const struct ucm_move_terms *move, uint64_t *copied);

/* A block that has two places is taken out of one of them. freed: bytes, or
 * NULL. See ucm_store_leave_place(); and what the directory said. */
int ucm_store_drop_place(struct ucm_store *store, ucm_ref ref, unsigned dir,
			 uint64_t *freed);

/* ---- room (evict.c) ---- */

/* What to do with a block that is in the way. */
enum ucm_eviction {
	/* somebody waits: nothing is copied, nor lost that could be moved */
	UCM_EVICTION_AT_ONCE,
	UCM_EVICTION_LEAVES, /* the same, but what is no parent may go */
	UCM_EVICTION_MOVING, /* moved to a lower tier, if it is worth that */
};

/*
 * Make room for so many bytes in a directory, beyond what it has. freed: what
 * came of it, not 0 unless nothing may go. pace as in struct ucm_move_terms. 0;
 * -ENOSPC: nothing more may go, or the directory is being drained; or what the
 * directory said.
 */
int ucm_evict_bytes(struct ucm_store *store, unsigned dir, uint64_t bytes,
		    enum ucm_eviction how, const struct ucm_move_terms *pace,
		    uint64_t *freed);

/*
 * Copy a block to a tier, where room is made if it is worth more than what has
 * to go for it; else -ENOSPC, as where the tier refuses it (may_refuse). Others
 * as ucm_store_copy().
 */
int ucm_evict_and_copy(struct ucm_store *store, ucm_ref ref,
		       const struct ucm_move_terms *move);

/* The same, to the next tier below that one which takes the block, and never past one
 * that fails; move->to says which was tried last. -ENOSPC: each refuses it, or there is
 * none. */
int ucm_evict_and_copy_down(struct ucm_store *store, ucm_ref ref,
			    const struct ucm_tier *from,
			    struct ucm_move_terms *move);

/* Copy a block to a directory of a tier where it has none and no other block goes
 * for it: one that stays below its high mark. move->to says which tier, which may
 * be its own; within and only are set here. -ENOSPC: there is none. */
int ucm_evict_copy_beside(struct ucm_store *store, ucm_ref ref,
			  struct ucm_move_terms *move);

/* A block that came to a tier now: would it stay there for a while, or be the next
 * to go? It stays where there is room below the low mark, and where it is worth
 * clearly more than what else would go. */
bool ucm_evict_would_stay(struct ucm_store *store,
			  const struct ucm_entry *entry,
			  const struct ucm_tier *tier);

/* Evict so many bytes of a space's blocks (quota.h); freed as above. 0, or
 * -ENOSPC: nothing more may go. */
int ucm_evict_space(struct ucm_store *store, struct ucm_quota *quota,
		    uint64_t bytes, uint64_t *freed);

/* A chain of blocks whose last one this is has ended: it is evicted first, back to
 * where another one branches off. 0 or -errno, of the block. */
int ucm_evict_first(struct ucm_store *store, const struct ucm_key *key);

/* Other threads that make room may hold the only blocks that can be evicted, and wait
 * for a disk. before: how many were done, before it was tried. Waits a moment, and
 * true: something was evicted since, or may be yet. */
bool ucm_evict_wait_for_others(const struct ucm_evictions *evictions,
			       uint64_t before);

/* A new block of so many bytes finds no room: make some, in the first tier where
 * something may go at once. -ENOSPC: nowhere; -EBUSY: another writer does so there. */
int ucm_evict_for(struct ucm_store *store, uint64_t bytes);

/* What the block is worth that would go first for a new one: where blocks are
 * lost. False: none may go. Does not wait for directories. */
bool ucm_evict_least(struct ucm_store *store, double *worth_out);
/* The same in a space, for its quota. */
bool ucm_evict_least_of_space(struct ucm_store *store, struct ucm_quota *quota,
			      double *worth_out);

/* Log what holds the room, of a sample of blocks: everywhere, or in a space. */
void ucm_evict_explain(struct ucm_store *store, const struct ucm_id *id);
void ucm_evict_explain_space(struct ucm_store *store, struct ucm_quota *quota,
			     const struct ucm_id *id);

/* Rebuild the list of a directory's members, if it must be. */
void ucm_evict_relist(struct ucm_store *store, unsigned dir);

/* ---- room in a space (quota_evict.c) ---- */

/*
 * ucm_quota_try(), and evict what is lacking; not with a name's lock held. -EDQUOT:
 * nothing may go (logged, with what holds the room); -EINPROGRESS (wait.h).
 */
int ucm_quota_promise(struct ucm_store *store, const struct ucm_key *key,
		      uint64_t bytes, struct ucm_allowance *part);

/* For a mover: evict a piece of what spaces are over their marks. True: some of
 * it has gone. */
bool ucm_quota_relieve(struct ucm_store *store);

/* ---- the movers (mover.c); init, start, stop and fini are the owner's ---- */

int ucm_movers_init(struct ucm_store *store);
int ucm_movers_start(struct ucm_store *store);
/* False: one hangs, and may still touch the store. */
bool ucm_movers_stop(struct ucm_store *store);
void ucm_movers_fini(struct ucm_store *store);

/* Copy to a lower tier what is to be copied there and was not when the call began.
 * Room is made as for any copy; blocks that are refused stay where they are, are
 * counted (flush_refused) and named in the log. stop: asked between two blocks. 0;
 * -EINTR: stopped; or what failed first, for a block that the log names. */
int ucm_movers_flush(struct ucm_store *store, bool (*stop)(void *arg),
		     void *arg);

/* Take nothing new in a directory, and move what it has to where there is room
 * below the high mark: no block is evicted for it. What has no room elsewhere
 * stays, and is counted (stays, medium.h). Or no more. */
void ucm_movers_drain(struct ucm_store *store, unsigned dir, bool on);

#endif
