/* SPDX-License-Identifier: Apache-2.0 */
/*
 * piece.h - a range of layers of one block, from its file to its page.
 *
 *	           .--- its file's header --.
 *	           v                        |
 *	started -> file -> gate -> reading -+-> read -> copying -> queued -> settled
 *	              (gate.c)       |           |      (a device's pages)      ^
 *	                             v           '------- the host's pages -----'
 *	                            lent
 *
 * load.c takes it to its read, load_copy.c from there, and the ring and the copy back
 * end report what they have done. It waits at most in one list: for its file, in the
 * gate, in the ring, among the ready, or in the back end. It counts in its lane's
 * window from the gate until it has been read: what waits for an answer to an open is
 * in no device's way.
 *
 * Any of them may find it given up (its part is NULL: cancelled or past its deadline,
 * and settled already); then it only gives back what it holds. So late I/O ends in
 * staging, and nothing is copied for a task that is done. A task whose page is read
 * into is done only when that read has ended, unless the caller allows pages to stay
 * in use (task.h).
 */
#ifndef UCM_LOAD_PIECE_H
#define UCM_LOAD_PIECE_H

#include "gpu/layout/plan.h"
#include "gpu/load/engine/engine.h"

enum ucm_piece_state {
	UCM_PIECE_STARTED, /* waits for its file or in the gate, or has been in
			    * memory from the start */
	UCM_PIECE_READING, /* in the ring */
	UCM_PIECE_LENT,    /* the same, and settled: its page stays in use */
	UCM_PIECE_READ,    /* its bytes are there */
	UCM_PIECE_COPYING, /* by the back end, */
	UCM_PIECE_QUEUED,  /* and the device has the copy: see
			    * ucm_task_queued() */
};

struct ucm_piece {
	struct ucm_engine_op op; /* its read */
	struct ucm_copy_job job;
	struct ucm_engine *engine;
	struct ucm_task *task;
	struct ucm_part *part; /* NULL: settled, its I/O came too late */
	uint32_t block, cut;
	struct ucm_load_file *file;
	struct ucm_slot slot;
	uint8_t *direct; /* in the page: it is read there, not into a slot */
	struct ucm_plan plan;
	uint64_t counted; /* in its lane's window */
	uint64_t tolled;  /* under way, in the loader's budget */
	struct ucm_buffered *kept; /* in the write buffer: the task's */
	enum ucm_piece_state state;
	bool with_head;
	bool sums; /* its checksums are to be compared */
	bool anew; /* tried once more, see try_anew() */
	struct ucm_piece *next; /* waiting for a file, for room, or ready */
	LIST_ENTRY(ucm_piece) in_part;
};

static inline void ucm_piece_push(struct ucm_piece_list *list,
				  struct ucm_piece *piece)
{
	piece->next = NULL;
	*list->end = piece;
	list->end = &piece->next;
	list->num++;
}

static inline struct ucm_piece *ucm_piece_pop(struct ucm_piece_list *list)
{
	struct ucm_piece *piece = list->first;

	if (!piece)
		return NULL;
	list->first = piece->next;
	if (!list->first)
		list->end = &list->first;
	list->num--;
	return piece;
}

static inline uint64_t ucm_cut_bytes(const struct ucm_task *task, uint32_t cut)
{
	return (task->cuts[cut + 1] - task->cuts[cut]) *
	       task->group->layer_bytes;
}

static inline uint64_t ucm_piece_bytes(const struct ucm_piece *piece)
{
	return ucm_cut_bytes(piece->task, piece->cut);
}

static inline unsigned ucm_piece_rank(const struct ucm_piece *piece)
{
	return piece->task->terms.priority;
}

/* The header has to be seen: for what it says, or because the file is not as
 * our writers make it. */
static inline bool ucm_piece_needs_head(const struct ucm_piece *piece)
{
	return piece->task->terms.verify != UCM_VERIFY_NONE ||
	       piece->file->size != piece->task->group->file_size;
}

/* ---- its life (piece.c) ---- */

/* NULL: no memory. */
struct ucm_piece *ucm_piece_new(struct ucm_engine *engine, struct ucm_part *part,
				uint32_t block, uint32_t cut);
/* Give back all that it holds; it has been settled. */
void ucm_piece_end(struct ucm_piece *piece);

/* A range of a block, also one that was never a piece, is done with. queued: it has
 * been counted as such. */
void ucm_piece_settle(struct ucm_engine *engine, struct ucm_part *part,
		      uint32_t block, uint32_t cut, bool queued);
void ucm_piece_leave_part(struct ucm_piece *piece);

/* The block fails, for that cause, and the piece ends; its other pieces will
 * notice. */
void ucm_piece_fail(struct ucm_piece *piece, int err, unsigned fault);
void ucm_piece_fail_plane(struct ucm_piece *piece, int err, unsigned fault,
			  uint32_t plane);

/* Those of a list that have been given up end, whatever is before them. */
void ucm_load_end_given_up(struct ucm_piece_list *waiting);

/* ---- from the start to the end (load.c, load_copy.c) ---- */

/* Start the next piece of a part, if there is room. */
bool ucm_load_start(struct ucm_engine *engine, struct ucm_part *part);
/* Go on with a piece that waits for nothing, or asks again. */
void ucm_load_go(struct ucm_piece *piece);
/* The same for those whose files have changed. */
void ucm_load_go_on(struct ucm_engine *engine);
/* It waits for its file's header, which is read if it is not coming. */
void ucm_load_await_head(struct ucm_piece *piece);
/* Verify and copy a piece whose bytes have come. */
void ucm_load_finish(struct ucm_piece *piece);
/* Give up what is left of a part, for that cause; what a copy is under way for
 * ends by itself. */
void ucm_load_give_up(struct ucm_engine *engine, struct ucm_part *part,
		      int err);
/* There may be room: pieces that wait for it go on. */
void ucm_load_feed(struct ucm_engine *engine);

static inline void ucm_piece_await_file(struct ucm_piece *piece)
{
	ucm_piece_push(&piece->file->waiters, piece);
}

/* ---- room (gate.c) ---- */

/* All that its read needs. -EAGAIN: it has nothing and waits; ucm_load_go() is called
 * for it when there may be room. */
int ucm_gate_ask(struct ucm_piece *piece);
/* The same for one that is copied from a file in memory. */
int ucm_gate_ask_memory(struct ucm_piece *piece);
/* Staging memory for one of the write buffer. -EAGAIN: it waits; ucm_load_finish() is
 * called for it. */
int ucm_gate_stage_kept(struct ucm_piece *piece, uint64_t len);

/* Its read is over, or counts no longer; its staging memory is. Harmless if it has
 * none. */
void ucm_gate_leave(struct ucm_piece *piece);
void ucm_gate_give_slot(struct ucm_piece *piece);

#endif
