/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine.h - one thread of the loader, and what belongs to it.
 *
 * An engine has a ring, staging memory, a copy back end and open files of its
 * own, so that its work needs no lock. Others reach it by its inbox only. Split
 * by task, high to low: engine.c (the loop), save.c (blocks that are written:
 * see saving.h), load.c (pieces that are read) and files.c (open files), which
 * call one another, lane.c (what is under way in a directory), verified.c (files
 * that need not be verified again), queue.c (operations of the ring).
 */
#ifndef UCM_ENGINE_H
#define UCM_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/stat.h>

#include "common/table.h"
#include "gpu/copy/copy.h"
#include "gpu/load/file_header.h"
#include "gpu/load/lane.h"
#include "gpu/load/share.h"
#include "gpu/source/hints.h"
#include "gpu/layout/plan.h"
#include "gpu/ring/ring.h"
#include "gpu/source/source.h"
#include "gpu/ring/staging.h"
#include "gpu/load/task.h"

struct ucm_abandon;
struct ucm_engine;
struct ucm_iobudget;
struct ucm_buffer;

/* Tests have loaders read from a source of theirs. NULL outside of tests. */
extern const struct ucm_source_ops *ucm_loader_source;

/* What all engines of a loader share. */
struct ucm_shared {
	const struct ucm_source_ops *source_ops;
	struct ucm_source *source;
	struct ucm_iobudget *budget;   /* NULL: nothing is limited */
	struct ucm_buffer *buffer;   /* NULL: none */
	const char *buffer_home;     /* see buffer.h */
	struct ucm_hints *hints;    /* NULL: there is no daemon */
	const struct ucm_copy_ops *copy_ops;
	struct ucm_copy_options copy_options;
	enum ucm_io_kind io;
	uint64_t staging_bytes; /* of each engine, at most */
	int64_t staging_idle_ns; /* after which it is given back */
	int node;               /* whose memory it is, or -1 */
	uint64_t window_bytes;  /* of each engine; 0: found by trying */
	uint32_t read_bytes;
	unsigned open_files; /* of each engine */
	int64_t idle_ns;     /* so long files stay open that nobody uses */
	unsigned most_files; /* likewise, when a request wants more */
	unsigned most_saves; /* files of each engine that are written at a time;
			      * and of blocks that wait for layers, open */
	uint64_t save_budget;
	_Atomic uint64_t save_waiting; /* bytes of saves that are not done */
	_Atomic bool told_unpinned;    /* that pages could not be pinned, */
	_Atomic bool told_unregistered; /* or staging memory */
	/* Counters of struct ucm_loader_stats, in its order. */
	struct {
		_Atomic uint64_t loads, load_bytes, load_absent, load_damaged,
			load_failed, saves, save_bytes, save_skipped,
			save_dropped, save_failed, reads, short_reads, opens,
			open_hits, mapped_bytes, direct_bytes, save_refused,
			save_buffered_bytes, load_buffered_bytes,
			save_direct_bytes, unsummed_bytes;
	} stats;
};

static inline void ucm_add(_Atomic uint64_t *counter, uint64_t number)
{
	atomic_fetch_add_explicit(counter, number, memory_order_relaxed);
}

/* An operation of the ring, and whoever wants to know. */
struct ucm_engine_op {
	struct ucm_io io; /* first */
	void (*done)(struct ucm_engine *engine, struct ucm_engine_op *op);
	struct ucm_lane *lane; /* whose call it is, or NULL */
	TAILQ_ENTRY(ucm_engine_op) in_held;
};

/* ---- open files (files.c) ---- */

enum ucm_load_file_state {
	UCM_LOAD_FILE_OPENING, /* an operation is under way */
	UCM_LOAD_FILE_OPEN,    /* its size is known */
	UCM_LOAD_FILE_FAILED,  /* see err and fault */
};

struct ucm_piece;

struct ucm_load_file {
	struct ucm_engine_op op; /* reading the head, vouching, close */
	struct ucm_engine *engine;
	struct ucm_group *group;
	struct ucm_id id;
	struct ucm_dir *dir;   /* where it is, or is expected */
	struct ucm_lane *lane; /* of the directory */
	enum ucm_load_file_state state;
	int fd;
	int err;        /* failed, and why: see struct ucm_outcome */
	uint16_t fault;
	bool direct;    /* O_DIRECT */
	bool by_call;   /* it has no descriptor: its source reads it */
	bool revived;   /* opened once more: the mount had come back */
	bool spared;    /* opened once more: idle ones were closed for it */
	bool stale;     /* not to be found any more; ends with its last user */
	bool counted;   /* as used, in its queue */
	bool asked;     /* for its descriptor, with the next request */
	uint32_t align; /* of reads */
	uint64_t size;
	const uint8_t *map; /* memory files, once they are mapped */
	uint64_t taken;     /* bytes that were read of it before */
	bool head_known, head_coming;
	struct ucm_file_header head;
	uint8_t *buffer;             /* while the head is read, or it is
				      * vouched for */
	uint64_t vouch_at;           /* so far, in the file */
	uint32_t vouch_crc;          /* of the payload that far */
	uint32_t *vouch_planes;      /* and of its planes */
	/* For verified.c: the file as it was before its first read, or 0; which
	 * of its layers were right since, NULL: none; how many. */
	uint64_t stamp;
	uint64_t *right;
	uint32_t num_right;
	unsigned refs;
	struct ucm_piece_list waiters; /* for a change of state, or the head */
	UT_hash_handle hh;
	TAILQ_ENTRY(ucm_load_file) in_idle, in_asked;
	int64_t idle_since_ns;
};

/* A directory in which the source opens blocks. */
struct ucm_given_dir {
	struct ucm_dir dir; /* first */
	unsigned asking;    /* requests that are under way */
	bool met;	    /* what dir says is that of a directory on */
	dev_t device;
};

struct ucm_load_files {
	struct ucm_load_file *all; /* a table, by group and id */
	TAILQ_HEAD(, ucm_load_file) idle; /* oldest first */
	TAILQ_HEAD(, ucm_load_file) asked; /* for descriptors, with the next request */
	struct ucm_given_dir given[UCM_DIRECTORIES + 1]; /* by their numbers */
	unsigned most;   /* that are open, idle or not */
	unsigned closing; /* that still have descriptors */
	bool spares;     /* what is closed is closed at once */
	uint64_t wanted; /* by requests in the order of layers */
};

/* The file of a block, perhaps still opening; the caller has a reference. NULL: out
 * of memory. */
struct ucm_load_file *ucm_load_file_get(struct ucm_engine *engine,
			      struct ucm_group *group,
			      const struct ucm_id *id);
void ucm_load_file_put(struct ucm_load_file *file);

/* No later user shall find this one: something was wrong with it. */
void ucm_load_file_forget(struct ucm_load_file *file);

/* Make the head from the file's first bytes; fails the file if it is wrong. */
void ucm_load_file_take_head(struct ucm_load_file *file, const void *bytes,
			     size_t len);

/* Make a read of it of an operation that has a buffer, len and offset. */
void ucm_load_file_read(const struct ucm_load_file *file, struct ucm_io *io);

/* Read the head by itself; changes the file when it is there. */
void ucm_load_file_read_head(struct ucm_load_file *file);
/* Of a memory file, at once: its head is known then, or it has failed. */
void ucm_load_file_read_head_now(struct ucm_load_file *file);

/* Something has changed: pieces that wait for the file go on. */
void ucm_load_file_tell(struct ucm_load_file *file);

/* Map a memory file; false if it cannot be, or is not what it was. */
bool ucm_load_file_map(struct ucm_load_file *file);

/* For forms without a plane table: is the checksum of the whole payload still
 * to be compared? And have that done, for a part of it alone says nothing. If
 * it is right the head has a plane table from then on, so that the bytes that
 * are copied, from another read, are checked as well. Changes the file. */
bool ucm_load_file_needs_vouch(const struct ucm_load_file *file);
void ucm_load_file_vouch(struct ucm_load_file *file);

/* ---- files that need not be verified again (verified.c) ---- */

/* A file was opened, or is taken up again when nobody was using it. */
void ucm_verified_begin(struct ucm_load_file *file, const struct stat *st);
void ucm_verified_end(struct ucm_load_file *file);

/* Has this very file been verified on this machine? Asked anew each time, when
 * what is to be used of it has been read. */
bool ucm_verified_is(const struct ucm_load_file *file);

/* These layers of it were right; when all were, the mount is told. */
void ucm_verified_add(struct ucm_load_file *file, uint32_t first_layer,
		      uint32_t end_layer);

/* Something of it was not, wherever it was opened. */
void ucm_verified_deny(const struct ucm_load_file *file);

/* May a read of it keep the ring waiting? (ring.h) */
static inline bool ucm_load_file_may_hang(const struct ucm_load_file *file)
{
	return !file->dir->quick &&
	       !atomic_load_explicit(&file->dir->answered,
				     memory_order_relaxed);
}

/* Ask the source for descriptors of files that want some; once in a round. */
void ucm_load_files_ask(struct ucm_engine *engine);

/* Close those that have been idle for too long. Until the next one will have
 * been, in ns; -1: none is idle. */
int64_t ucm_load_files_expire(struct ucm_engine *engine);
/* A request comes to so many files once for each read of their layers; less
 * when it is done. They are kept open, as far as descriptors go. */
void ucm_load_files_want(struct ucm_engine *engine, int64_t num);

/* Close the idle ones. */
void ucm_load_files_close(struct ucm_engine *engine);
/* Close those of a group, which nobody uses. */
void ucm_load_files_close_group(struct ucm_engine *engine,
				const struct ucm_group *group);

/* ---- pieces (load.c) ---- */

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
	bool with_head;
	bool queued;  /* see ucm_task_queued() */
	bool arrived; /* its bytes were read, and are there */
	bool sums;    /* their checksums are to be compared */
	bool anew;    /* tried once more, see try_anew() */
	bool lent;    /* settled, and its page is read into */
	struct ucm_piece *next; /* waiting for a file, for room, or ready */
	LIST_ENTRY(ucm_piece) in_part;
};

/* Start the next piece of a part, if there is room. */
bool ucm_load_start(struct ucm_engine *engine, struct ucm_part *part);
/* A file has changed: go on with a piece that waited for it. */
void ucm_load_go(struct ucm_piece *piece);
/* Verify and copy a piece whose bytes have come. */
void ucm_load_finish(struct ucm_piece *piece);
/* Give up what is left of a part, for that cause; what a copy is under way for
 * ends by itself. */
void ucm_load_give_up(struct ucm_engine *engine, struct ucm_part *part,
		      int err);
/* There may be room: pieces that wait for it go on. */
void ucm_load_feed(struct ucm_engine *engine);
/* Those of a list that have been given up end, whatever is before them. */
void ucm_load_end_given_up(struct ucm_piece_list *waiting);

/* ---- saves (save.c) ---- */

struct ucm_saving;

/* The blocks that are being saved (saving.h). */
struct ucm_savings {
	struct ucm_saving *all; /* a table */
	struct ucm_saving *hungry, **hungry_end; /* want staging memory */
	struct ucm_turn *queued, **queued_end;   /* see save_turns.c */
	unsigned open; /* files that stay open between parts */
	uint64_t copied; /* into the write buffer, in this round */
	bool copying;    /* more will be in the next one */
};

/* Start the next block of a part, if there is room. */
bool ucm_save_start(struct ucm_engine *engine, struct ucm_part *part);
void ucm_save_give_up(struct ucm_engine *engine, struct ucm_part *part,
		      int err);
/* Begin what was copied into the write buffer; once in a round. */
void ucm_save_go(struct ucm_engine *engine);
/* Go on with those that waited for staging memory. */
void ucm_save_feed(struct ucm_engine *engine);
/* Those that wait and have been given up end, whatever is before them. */
void ucm_save_end_given_up(struct ucm_engine *engine);
/* What was saved of blocks that are not whole is removed; and what will be by
 * parts that came before. */
void ucm_save_abandon_now(struct ucm_engine *engine,
			  const struct ucm_abandon *abandon);

/* ---- the engine ---- */

struct ucm_engine {
	struct ucm_shared *shared;
	unsigned number;
	pthread_t thread;
	struct ucm_ring *ring;
	struct ucm_staging *staging;
	uint64_t staging_gets, staging_trimmed; /* stage.c's */
	int64_t staging_since_ns;
	struct ucm_copy *copy;
	bool pages_are_host;
	struct ucm_lane *lanes;
	unsigned num_lanes;
	unsigned held;   /* closes that wait for their lanes */
	struct ucm_load_files files;
	unsigned ops;    /* of the ring, under way */
	unsigned copies; /* of the copy back end, under way */

	struct ucm_part *loads[UCM_RANKS], *saves;
	/* Of saves, and of loads beforehand: of what is begun before them. */
	struct ucm_share save_share, low_share;
	struct ucm_piece_list ready; /* bytes have come */
	struct ucm_piece_list kept_waiting; /* of the write buffer, for staging
					     * memory */
	struct ucm_copy_job *to_scatter, *to_gather;
	struct ucm_savings savings;
	struct ucm_piece *spare;
	uint8_t *bounce; /* what was read of a memory file; NULL: not yet */
	size_t bounce_len;
	unsigned savings_busy; /* a step of them is under way */
	uint64_t saving_bytes; /* staging that saves hold */
	bool fed;   /* there is room: staging memory, or in a window */
	bool gave_up; /* what waits may have been given up */
	bool eager; /* there was more to start */
	int64_t toll_ns; /* when to ask or pay the budget again; 0: neither */
	struct ucm_engine_op look_op; /* looks for another daemon's budget */
	bool unreleased; /* a task waits for an event */
	struct ucm_io *backlog, **backlog_end; /* beyond the ring's depth */

	pthread_mutex_t lock; /* guards the inbox */
	struct ucm_part *inbox;
	uint64_t posted; /* parts, so far */
	struct ucm_abandon *abandons;
	struct ucm_engine_call *call; /* see engine.c */
	pthread_cond_t cond;
	bool stopping;
	_Atomic bool mail;
	_Atomic uint64_t window_limit; /* for statistics */
	_Atomic uint64_t load_bytes;   /* of loads that are not settled */
};

/* Start a thread. The engine is the caller's memory, zeroed. */
int ucm_engine_start(struct ucm_engine *engine, struct ucm_shared *shared,
		     unsigned number, struct ucm_error *error);
/* End its thread. All tasks must be done; I/O that came too late is waited for.
 * Engines that are left may go on waking this one. */
void ucm_engine_stop(struct ucm_engine *engine);
/* When those of the loader have stopped. */
void ucm_engine_close(struct ucm_engine *engine);

/* From other threads; these two wait, and are called by one of them at a time.
 * A group is removed when nobody uses it: no task has a reference of the loader.
 * What was saved of blocks that are not whole is dropped. */
int ucm_engine_add_group(struct ucm_engine *engine, struct ucm_group *group);
void ucm_engine_remove_group(struct ucm_engine *engine,
			     struct ucm_group *group);
/* From other threads. */
void ucm_engine_post(struct ucm_engine *engine, struct ucm_part *part);
void ucm_engine_abandon(struct ucm_engine *engine, struct ucm_abandon *abandon);
void ucm_engine_wake(struct ucm_engine *engine);
/* Have a stream wait for the copies that are queued by now; see copy.h. */
int ucm_engine_join(struct ucm_engine *engine, void *stream);

/* ---- operations of the ring (queue.c) ---- */

/* Queue an operation; op->done is called when it has ended. */
void ucm_engine_queue(struct ucm_engine *engine, struct ucm_engine_op *op);
/* Start what is queued, wait (-1: for ever) and end what is done. */
void ucm_engine_poll(struct ucm_engine *engine, int64_t timeout_ns);

static inline void ucm_piece_list_init(struct ucm_piece_list *list)
{
	list->first = NULL;
	list->end = &list->first;
	list->num = 0;
}

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

/* All that another list has, taken from it. */
static inline void ucm_piece_take_all(struct ucm_piece_list *list,
				      struct ucm_piece_list *from)
{
	if (!from->first)
		return;
	*list->end = from->first;
	list->end = from->end;
	list->num += from->num;
	ucm_piece_list_init(from);
}

/* There is room again: pieces that wait for it go on, soon. */
static inline void ucm_engine_feed(struct ucm_engine *engine)
{
	engine->fed = true;
}

#endif
