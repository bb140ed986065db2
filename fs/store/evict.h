/* SPDX-License-Identifier: Apache-2.0 */
/*
 * evict.h - making room in a directory, by taking away what is worth least.
 *
 * Not from a thread that must not wait. Blocks that are expected (expected.h) go
 * only where nothing else may go.
 */
#ifndef UCM_EVICT_H
#define UCM_EVICT_H

#include <pthread.h>

#include "fs/policy/pool.h"
#include "fs/store/move.h"
#include "fs/store/store.h"

/* The candidates of a directory. */
struct ucm_victims {
	pthread_mutex_t lock; /* guards the pool, for a pick */
	struct ucm_pool pool;
	uint64_t random;
	_Atomic bool busy; /* a thread evicts what it, or a space, lacks */
};

static inline void ucm_victims_init(struct ucm_victims *victims, uint64_t seed)
{
	*victims = (struct ucm_victims){.random = seed * 2 + 1};
	pthread_mutex_init(&victims->lock, NULL);
	ucm_pool_init(&victims->pool, UCM_POOL_MAX, UCM_POOL_DRAWS);
}

static inline void ucm_victims_fini(struct ucm_victims *victims)
{
	pthread_mutex_destroy(&victims->lock);
}

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

/* The same, to the next tier below that one which takes the block; move->to says
 * which was tried last. -ENOSPC: each refuses it, or there is none. */
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

/* Other threads that make room may hold the only blocks that can be evicted, and wait
 * for a disk. before: store->evictions, before it was tried. Waits a moment, and true:
 * something was evicted since, or may be yet. */
bool ucm_evict_wait_for_others(const struct ucm_store *store, uint64_t before);

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

#endif
