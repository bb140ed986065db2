/* SPDX-License-Identifier: Apache-2.0 */
/*
 * saving.h - a block that is being saved, and what the files of saving know of
 * each other.
 *
 * Split by task, high to low: save_turns.c (what is begun when, and what is
 * copied into the write buffer before), saving.c (from turn to turn), save.c
 * (gathering, writing),
 * save_file.c (how its file comes to be, and ends), save_source.c (what a source is asked
 * before), savings.c (which blocks are being saved). Lower ones report to
 * higher ones by the functions that they are given.
 */
#ifndef UCM_SAVING_H
#define UCM_SAVING_H

#include "gpu/load/save/save.h"
#include "gpu/load/task/abandon.h"
#include "gpu/load/task/buffer.h"

/* A block of a part that is to be saved. */
struct ucm_turn {
	struct ucm_part *part; /* NULL: given up */
	uint32_t block;
	/* Its bytes, in the write buffer: its pages are not needed any more, and
	 * do not count as waiting. NULL: they are in the pages. */
	struct ucm_buffered *kept;
	bool abandoned; /* see ucm_save_abandon(): before it was begun */
	struct ucm_turn *next;
};

struct ucm_saving;
typedef void ucm_saving_step(struct ucm_saving *saving);

struct ucm_saving {
	struct ucm_engine_op op; /* create, write, commit, drop: one at a time */
	struct ucm_copy_job job;
	struct ucm_engine *engine;
	struct ucm_group *group;
	struct ucm_id id;
	/* The file: save_file.c's. */
	struct ucm_draft *draft;
	int fd;                  /* -1: none */
	bool direct;             /* O_DIRECT */
	bool stays_open;         /* between turns; counted in savings.open */
	bool rests;              /* no: too many do, it is closed meanwhile */
	uint32_t align;          /* of it */
	int result;              /* of the last step */
	ucm_saving_step *then;
	bool busy;         /* a step is under way */
	bool held;         /* only a turn of ucm_save_commit() commits it */
	bool copied;       /* the pages of the present turn were taken, */
	bool unbilled;     /* into the write buffer */
	bool abandoned;    /* while it was busy */
	struct ucm_outcome outcome; /* of the present turn, if it has failed */
	uint32_t *crcs;    /* of the planes */
	uint8_t *have;     /* layers that are written */
	uint32_t missing;  /* layers */
	struct ucm_slot slot;   /* of staging memory, or that of kept */
	struct ucm_buffered *kept;
	bool lent;              /* a write from the page itself is under way */
	uint32_t first, end; /* layers that are in it */
	uint8_t *head; /* the header, which is written, or may be; NULL: not yet */
	/* The present turn; part is NULL between turns, or given up. */
	struct ucm_task *task;
	struct ucm_part *part;
	uint32_t block, end_layer;
	uint64_t tolled; /* of it: under way, in the loader's budget */
	struct ucm_turn *turns; /* that wait */
	STAILQ_ENTRY(ucm_saving) in_hungry; /* waits for staging memory */
	/* savings.c's */
	UT_hash_handle hh;
};

/* ---- which blocks are being saved (savings.c) ---- */

struct ucm_saving *ucm_savings_find(const struct ucm_savings *savings,
				    const struct ucm_group *group,
				    const struct ucm_id *id);
/* false: no memory */
bool ucm_savings_add(struct ucm_savings *savings, struct ucm_saving *saving);
void ucm_savings_remove(struct ucm_savings *savings, struct ucm_saving *saving);

/* One that is in the table; NULL: no memory. It is freed when it is not. */
struct ucm_saving *ucm_saving_new(struct ucm_engine *engine,
				  const struct ucm_task *task,
				  const struct ucm_id *id);
void ucm_saving_free(struct ucm_saving *saving);

/* ---- savings (saving.c) ---- */

uint64_t ucm_turn_bytes(const struct ucm_task *task);
/* The turn's block is done with; what it has in the buffer is given back. */
void ucm_turn_settle(struct ucm_engine *engine, const struct ucm_turn *turn,
		     const struct ucm_outcome *outcome);

struct ucm_saving *ucm_saving_find(struct ucm_engine *engine,
				   const struct ucm_task *task, uint32_t block);
/* A block's turn has come; it may still have to wait for another one of the
 * same block. */
void ucm_saving_begin(struct ucm_engine *engine, const struct ucm_turn *turn);
/* What was saved of blocks that are not whole is removed. */
void ucm_saving_abandon(struct ucm_engine *engine,
			const struct ucm_abandon *abandon);
/* A part has given up its turns of this block. */
void ucm_saving_give_up(struct ucm_saving *saving, struct ucm_part *part,
			const struct ucm_outcome *outcome);

/* What the present turn was is all written: the next one, or it waits for one. */
void ucm_saving_end_part(struct ucm_saving *saving);
/* The present turn ends well; skipped: its block was there. */
void ucm_saving_end_well(struct ucm_saving *saving, bool skipped);
void ucm_saving_fail(struct ucm_saving *saving, int err, const char *what);
/* Its file is removed, and nothing of it will be seen; not during a turn. */
void ucm_saving_drop(struct ucm_saving *saving);

/* Has the present turn been given up? is: then it ends, and the block is dropped. */
bool ucm_saving_was_given_up(const struct ucm_saving *saving);
bool ucm_saving_is_given_up(struct ucm_saving *saving);
/* Has the last step gone well, and is the turn not given up? Else it ends, and the
 * block has failed; what: the step. */
bool ucm_saving_goes_on(struct ucm_saving *saving, const char *what);

/* Its staging memory, or its place in the write buffer; if it has one. */
void ucm_saving_give_slot(struct ucm_saving *saving);

/* ---- its bytes (save.c) ---- */

/* Its file is open: write what the present turn has. */
void ucm_saving_go_on(struct ucm_saving *saving);
/* All layers are written: the header, and the commit. */
void ucm_saving_end(struct ucm_saving *saving);
/* Those that wait for staging memory and have been given up end. */
void ucm_savings_end_given_up(struct ucm_engine *engine);

/* Does a task save all of a block by itself? */
static inline bool ucm_task_is_whole(const struct ucm_task *task)
{
	return !task->terms.hold && !task->terms.first_layer &&
	       task->terms.end_layer == task->group->layout->geometry.num_layers;
}

/* ---- its file (save_file.c) ---- */

/* Each makes one step, which may take its time, and calls then(saving): at once
 * or from the engine's loop. saving->result: 0 or -errno. */

/* One of the next four, by a thread for calls. */
void ucm_save_file_call(struct ucm_saving *saving,
			void (*call)(struct ucm_io *io), ucm_saving_step *then);
/* 0: it has a descriptor. -EEXIST: the block is there. */
void ucm_save_file_create(struct ucm_io *io);
/* Between two parts it need not be open: it is closed (what close(2) reports is the
 * result), and opened again later. */
void ucm_save_file_rest(struct ucm_io *io);
void ucm_save_file_reopen(struct ucm_io *io);
/* All of it is written. It has no descriptor any more if that went well; else
 * it is still to be dropped. */
void ucm_save_file_commit(struct ucm_io *io);
/* Nothing of it will be seen. Has always gone well; of no file too. */
void ucm_save_file_drop(struct ucm_saving *saving, ucm_saving_step *then);
/* Before the buffer so many bytes of saving->head are written. */
void ucm_save_file_write(struct ucm_saving *saving, uint32_t head_len,
			 void *buffer, uint64_t len, uint64_t offset,
			 ucm_saving_step *then);

/* ---- what its source is asked before (save_source.c) ---- */

/* May files be made for a task's blocks? Else the engine is woken when they
 * may. */
bool ucm_save_may_make_files(struct ucm_engine *engine, struct ucm_task *task);

#endif
