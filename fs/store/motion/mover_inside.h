/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mover_inside.h - what the sources of the movers share: one mover on a directory at a
 * time, the rate, walks of the index.
 */
#ifndef UCM_MOVER_INSIDE_H
#define UCM_MOVER_INSIDE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "fs/store/find/find.h"
#include "fs/store/motion/motion.h"

#define UCM_MOVER_TICK_MS 1000

struct ucm_movers {
	struct ucm_store *store;
	struct ucm_jobs *jobs;
	pthread_mutex_t lock; /* guards the rest */
	pthread_cond_t ended;
	_Atomic bool rebalanced;
	bool busy[UCM_MAX_DIRS];
	int64_t drained_ms[UCM_MAX_DIRS]; /* a drain moved nothing then */
	pthread_t threads[64];
	unsigned num_threads, num_left;
	int64_t learnt_ms;
	_Atomic int64_t paid_ms; /* until then the rate is used up */
};

void ucm_mover_sleep(int64_t ms);

/* Others that have the same directories see that this process lives. */
void ucm_mover_beat(struct ucm_movers *movers);

/* For ucm_move_terms.pace: what is copied is paid for in time. arg: the movers. */
void ucm_mover_pace(void *arg, uint64_t bytes);

/* False: another mover is at work in that directory. */
bool ucm_mover_enter(struct ucm_movers *movers, unsigned dir);
void ucm_mover_leave(struct ucm_movers *movers, unsigned dir);

/* A copy of a new block in the next tier below that takes it. */
int ucm_mover_save(struct ucm_store *store, ucm_ref ref,
		   const struct ucm_entry *entry, struct ucm_move_terms *move);

/* The same for all that commits wait for; before it does anything that takes
 * long, a mover looks. */
void ucm_mover_save_awaited(struct ucm_movers *movers);

struct ucm_mover_walk {
	struct ucm_movers *movers;
	bool (*wants)(const struct ucm_mover_walk *walk,
		      const struct ucm_entry *entry);
	unsigned dir;
	unsigned num;
	ucm_ref refs[UCM_INDEX_PIECE];
};

/* fn on all entries that are wanted, while it returns true. */
bool ucm_mover_walk(struct ucm_mover_walk *walk,
		    bool (*fn)(struct ucm_mover_walk *walk, ucm_ref ref));

/* wants: what no lower tier has. */
bool ucm_mover_wants_saved(const struct ucm_mover_walk *walk,
			   const struct ucm_entry *entry);

/* One pass over each directory that is being drained (mover_drain.c). */
void ucm_movers_drain_all(struct ucm_movers *movers);

#endif
