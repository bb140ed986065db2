/* SPDX-License-Identifier: Apache-2.0 */
/*
 * call.h - a call of the store interface, and the tasks that carry it out.
 *
 * Entries that want neighbouring layers of one block become a run (join.c),
 * which is moved as a whole. A task of the loader moves the same layers of all
 * its blocks; so runs of the same layers become a task (a part). A call is done
 * when all its parts are.
 */
#ifndef UCM_SHARDS_CALL_H
#define UCM_SHARDS_CALL_H

#include "gpu/shards/shards.h"

struct ucm_shards_part {
	struct ucm_shards_call *call;
	struct ucm_task *task; /* NULL: not submitted */
	const struct ucm_shards_run *runs;
	size_t num;
};

/* Parts that are submitted together. */
struct ucm_shards_round {
	struct ucm_shards_round *next;
	struct ucm_shards_run *runs;
	struct ucm_shards_part *parts;
	size_t num_parts;
};

struct ucm_shards_call {
	struct ucm_shards *store;
	enum ucm_shards_kind kind;
	size_t num;
	struct ucm_outcome *outcomes;
	struct ucm_shards_entry
		*entries; /* that are not decided, once sorted */
	struct ucm_shards_round *rounds; /* the latest first */
	size_t left; /* parts that are not done */
	int64_t deadline_ns; /* 0: none */
	bool cancelled;
	pthread_cond_t cond;
	unsigned users; /* threads that wait */
	bool told;      /* its slot is free */
	int eventfd;    /* 0: none */
	uint32_t slot;
};

/* With room for so many runs. NULL: no memory. */
struct ucm_shards_round *ucm_shards_round_new(size_t num);

/* With the lock, which everybody takes who sees that the call is done
 * and may then close the eventfd. */
void ucm_shards_call_notify(const struct ucm_shards_call *call);

#endif
