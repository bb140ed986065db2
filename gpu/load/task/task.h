/* SPDX-License-Identifier: Apache-2.0 */
/*
 * task.h - what a caller has asked for, and how far it is.
 *
 * A task's blocks are shared out among the loader's threads (parts); each block
 * belongs to one thread for good. Layers are cut into ranges; a block's range
 * is a piece. Each piece is settled exactly once: done, failed or given up. A
 * block is done when all its pieces are settled, a task when all blocks are.
 *
 * A page is lent if its block has ended (a deadline, a cancel) before a read into
 * it has: such a piece is settled, and counts in lent until that read has ended.
 * Whoever lends does so before it settles. So what a task that is done has lent
 * only becomes less, and that nothing is lent any more is told once.
 *
 * Threads: outcomes, blocks and parts belong to the block's thread until the
 * task is done; the counters are atomic. References: the caller's, one for
 * each part that a thread still works on, and one for each piece whose I/O is
 * under way; the latter are the loader's.
 */
#ifndef UCM_TASK_H
#define UCM_TASK_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include <ucm/load.h>

#include "gpu/copy/copy.h"
#include "gpu/load/task/group.h"

struct ucm_task_block {
	struct ucm_id id;
	uint32_t page;
	uint32_t unsettled; /* pieces */
	bool dropped;       /* a save that did not fit the budget */
	bool abandoned;     /* before it was begun: see ucm_save_abandon() */
	uint32_t lent;      /* reads into its page; under the task's lock */
};

struct ucm_piece;
struct ucm_buffered;

/* What one thread has to do of a task. */
struct ucm_part {
	struct ucm_task *task;
	struct ucm_part *next;      /* the thread's list */
	uint32_t *blocks;           /* numbers of the task's blocks */
	uint32_t num_blocks;
	uint64_t number;            /* of those that the thread has been given */
	uint64_t cursor;            /* the next piece to start */
	bool released;              /* it need not wait for its task's event,
				     * nor a commit for those of saves that
				     * came before */
	uint32_t settled;           /* saves: blocks */
	LIST_HEAD(, ucm_piece) pieces; /* that were started */
};

/* What was asked for. */
struct ucm_terms {
	bool is_save;
	bool is_commit; /* a save without pages, see ucm_save_commit() */
	bool hold;
	bool may_refuse;
	bool tell_copied;
	uint32_t first_layer, end_layer;
	enum ucm_verify verify;
	enum ucm_load_order order;
	enum ucm_load_priority priority;
	enum ucm_load_lend lend;
	_Atomic int64_t deadline_ns; /* 0: none */
	int64_t begin_ns;            /* for profile.h; 0: not recorded */
	void *after;                 /* an event, or NULL */
	struct ucm_id *parents;      /* or NULL */
	uint64_t *addresses;         /* or NULL: see ucm_task_addresses() */
};

/* What is left to do of it. */
struct ucm_task_left {
	_Atomic uint64_t blocks;
	_Atomic uint64_t *cut_unsettled; /* pieces of each cut */
	_Atomic uint64_t *cut_unqueued;  /* of these, neither settled nor with
					  * the device */
	_Atomic uint64_t unqueued;       /* of all cuts */
	_Atomic uint64_t uncopied; /* saves: blocks whose pages are needed */
	_Atomic uint64_t lent; /* blocks whose pages are; changes under the
				* lock */
};

/* How its end is told. */
struct ucm_task_end {
	struct ucm_completions *completions; /* or NULL; guards these two: */
	TAILQ_ENTRY(ucm_task) in_completed;
	bool is_completed; /* it is in there */
	int eventfd;
	void (*on_done)(void *arg, struct ucm_task *task);
	void *arg;
};

/* Which blocks the source wants: save_source.c. */
struct ucm_task_offer {
	_Atomic int asking;
	int32_t *answers; /* 1: it wants the block; NULL: all */
};

/* The loader's threads, one for each part. */
struct ucm_task_threads {
	struct ucm_engine **engines;
	/* The task has been cancelled. */
	void (*wake)(struct ucm_engine *engine);
	/* Has a stream wait for what an engine has queued; NULL: there are no
	 * streams. */
	int (*join)(struct ucm_engine *engine, void *stream);
};

struct ucm_task {
	_Atomic unsigned refs;
	_Atomic unsigned working; /* references of the loader */
	struct ucm_group *group;
	struct ucm_terms terms;

	size_t num_blocks;
	struct ucm_task_block *blocks;
	struct ucm_outcome *outcomes;
	uint32_t num_cuts;
	uint32_t *cuts; /* num_cuts + 1 layers */
	struct ucm_task_left left;
	_Atomic uint64_t failed; /* blocks */
	_Atomic bool released;   /* the event that it waits for has completed */
	_Atomic bool cancelled;
	_Atomic bool done;

	pthread_mutex_t lock;
	pthread_cond_t cond;
	_Atomic unsigned waiters;
	struct ucm_task_end end;

	/* Loads: what is copied from the write buffer (NULL: is read); or NULL.
	 * Each until its block is settled. */
	struct ucm_buffered **kept;
	struct ucm_task_offer offer;

	struct ucm_task_threads threads;
	unsigned num_parts;
	struct ucm_part parts[];
};

/* Of one of its blocks. */
static inline uint64_t ucm_task_bytes(const struct ucm_task *task)
{
	return (task->terms.end_layer - task->terms.first_layer) *
	       task->group->layer_bytes;
}

/* Of a block, from a layer on; NULL: its page is where the layout has it. */
static inline const uint64_t *ucm_task_addresses(const struct ucm_task *task,
						 uint32_t block, uint32_t layer)
{
	const uint32_t *first = task->group->layout->layer_first;
	uint32_t from = first[task->terms.first_layer];
	uint64_t each = first[task->terms.end_layer] - from;

	if (!task->terms.addresses)
		return NULL;
	return task->terms.addresses + block * each + (first[layer] - from);
}

/* A block's page from the layer `layer` on, in one piece: of a layout for
 * reading into pages, and without addresses. */
static inline uint8_t *ucm_task_page(const struct ucm_task *task,
				     uint32_t block, uint32_t layer)
{
	const struct ucm_layout *layout = task->group->layout;
	const struct ucm_region *region =
		&layout->regions[layout->layer_first[layer]];

	return (uint8_t *)(uintptr_t)(region->base +
				      task->blocks[block].page *
					      (uint64_t)region->page_stride);
}

/* The copy of a block's layers between its page and bytes in memory. */
static inline struct ucm_copy_job ucm_task_job(const struct ucm_task *task,
					       uint32_t block, uint32_t first,
					       uint32_t end,
					       const uint8_t *bytes)
{
	return (struct ucm_copy_job){
		.group = task->group->number,
		.first_layer = first,
		.end_layer = end,
		.staging = (uint8_t *)(uintptr_t)bytes,
		.page = task->blocks[block].page,
		.addresses = ucm_task_addresses(task, block, first),
	};
}

/*
 * Make a task from a request that has been checked against the group. The
 * blocks are not shared out yet. The caller has one reference.
 */
int ucm_task_new(const struct ucm_request *request,
		 struct ucm_group *group, bool is_save,
		 unsigned num_parts, uint64_t read_bytes,
		 struct ucm_task **out);

/* All parts are in place: a task without blocks is done. */
void ucm_task_ready(struct ucm_task *task);

/* The loader's references: while it has one, it is at work with the group. */
void ucm_task_get(struct ucm_task *task);
void ucm_task_put(struct ucm_task *task);
/* The caller's. */
void ucm_task_drop(struct ucm_task *task);

/* Has this block's outcome been decided? (Its thread's question.) */
static inline bool ucm_task_block_decided(const struct ucm_task *task,
					  uint32_t block)
{
	return task->outcomes[block].err != -EINPROGRESS;
}

/* Decide it, if that has not been done. Its pieces are settled one by one. */
void ucm_task_decide(struct ucm_task *task, uint32_t block,
		     const struct ucm_outcome *outcome);

/* One piece of a block will not be touched any more. A block whose last piece
 * this was, and that has not been decided, is well. Returns whether it was
 * the last piece of the block. */
bool ucm_task_settle(struct ucm_task *task, uint32_t block, uint32_t cut);

/* A read into a block's page has not ended, and its piece will be settled; and
 * then it has ended. */
void ucm_task_lend(struct ucm_task *task, uint32_t block);
void ucm_task_return(struct ucm_task *task, uint32_t block);

/* Loads: the device has the copy of a piece, or there will be none. Once for each
 * piece, before it is settled. */
void ucm_task_queued(struct ucm_task *task, uint32_t cut);

/* Saves: a block's pages are not needed any more. */
void ucm_task_copied(struct ucm_task *task);

#endif
