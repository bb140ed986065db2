/* SPDX-License-Identifier: Apache-2.0 */
/* victims.h - candidates for eviction, of a directory or of a space's quota. */
#ifndef UCM_VICTIMS_H
#define UCM_VICTIMS_H

#include <pthread.h>

#include "fs/policy/pool.h"
#include "fs/store/members.h"

struct ucm_victims {
	struct ucm_members members; /* to draw from */
	pthread_mutex_t lock; /* guards the pool, for a pick */
	struct ucm_pool pool;
	uint64_t random;
	_Atomic bool busy; /* a thread evicts what it, or a space, lacks */
};

static inline void ucm_victims_init(struct ucm_victims *victims, uint64_t seed)
{
	*victims = (struct ucm_victims){.random = seed * 2 + 1};
	ucm_members_init(&victims->members);
	pthread_mutex_init(&victims->lock, NULL);
	ucm_pool_init(&victims->pool, UCM_POOL_MAX, UCM_POOL_DRAWS);
}

static inline void ucm_victims_fini(struct ucm_victims *victims)
{
	ucm_members_fini(&victims->members);
	pthread_mutex_destroy(&victims->lock);
}

#endif
