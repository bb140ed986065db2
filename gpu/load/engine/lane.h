/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lane.h - what an engine has under way in one directory.
 *
 * A lane has a window of its own, and its own lists of what waits for it, so
 * that a directory which does not answer holds up nobody but those who want
 * something of it. Belongs to its engine. The first part is arithmetic, with
 * the time as an argument; see lane.c for the states.
 */
#ifndef UCM_LANE_H
#define UCM_LANE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "gpu/ring/ring.h"
#include "gpu/ring/window.h"
#include "gpu/source/source.h"

struct ucm_engine;
struct ucm_engine_op;
struct ucm_piece;

/* By enum ucm_load_priority: demand is 0, what is loaded beforehand 1. */
#define UCM_RANKS 2

struct ucm_piece_list {
	struct ucm_piece *first, **end;
	unsigned num;
};

static inline void ucm_piece_list_init(struct ucm_piece_list *list)
{
	list->first = NULL;
	list->end = &list->first;
	list->num = 0;
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

struct ucm_lane {
	struct ucm_dir *dir;
	struct ucm_lane *next;
	unsigned number; /* from 1 on: its crowd in the ring */
	/* calls */
	unsigned calls;   /* under way */
	unsigned limit;   /* of them, where they may hang */
	bool late;        /* none of them has come back for a while */
	int64_t heard_ns; /* when one has, or the first was made */
	unsigned asked;   /* files that wait for the next request to the source */
	unsigned opens;   /* files that the source is opening */
	unsigned used;    /* open files that somebody uses */
	/* pieces */
	struct ucm_window window;
	uint64_t staged; /* bytes of staging memory that they hold */
	struct ucm_piece_list waiting[UCM_RANKS]; /* for room: to be read */
	TAILQ_HEAD(, ucm_engine_op) held; /* closes that wait for a call */
};

/* ---- arithmetic ---- */

void ucm_lane_init(struct ucm_lane *lane, struct ucm_dir *dir, unsigned number,
		   uint64_t window_bytes, uint64_t most_bytes);

/* A call is made; one has come back. */
void ucm_lane_begin(struct ucm_lane *lane, int64_t now_ns);
void ucm_lane_end(struct ucm_lane *lane, int64_t now_ns);

/* Is it late by now? True if that has changed. */
bool ucm_lane_look(struct ucm_lane *lane, int64_t now_ns);
/* In how many ns it will be if nothing comes back; -1: it is, or nothing is
 * under way. */
int64_t ucm_lane_until_late(const struct ucm_lane *lane, int64_t now_ns);

/* May one more call be made? */
bool ucm_lane_may_call(const struct ucm_lane *lane);
/* Has so much been begun for it that no more need be? */
bool ucm_lane_is_full(const struct ucm_lane *lane, unsigned rank);

/* ---- of an engine ---- */

/* The lane of a directory; made when it is asked for first. NULL: no memory. */
struct ucm_lane *ucm_lane_of(struct ucm_engine *engine, struct ucm_dir *dir);
void ucm_lanes_free(struct ucm_engine *engine);

/* Queue a close of its lane, or hold it until that may make a call. */
void ucm_lane_queue(struct ucm_engine *engine, struct ucm_engine_op *op);

/* What is held, as far as it may be queued now. */
void ucm_lane_queue_held(struct ucm_engine *engine, struct ucm_lane *lane);
/* Until the first of them will be late, -1: none. */
int64_t ucm_lanes_until_late(const struct ucm_engine *engine);

/* May one more piece of a rank be started? The lower one leaves descriptors. */
bool ucm_lanes_have_room(const struct ucm_engine *engine, unsigned rank);
/* Are there pieces that were started and are not read yet, elsewhere than in
 * lanes that are late? */
bool ucm_lanes_wait(const struct ucm_engine *engine);
/* How many more of its files may be opened at once? Where it is late, its share at
 * most. */
unsigned ucm_lane_room(const struct ucm_engine *engine,
		       const struct ucm_lane *of);
/* Bytes of reads under way in other lanes that are not late. */
uint64_t ucm_lanes_in_flight(const struct ucm_engine *engine,
			     const struct ucm_lane *but);
/* May its reads hold so many bytes of staging memory more? */
bool ucm_lane_may_stage(const struct ucm_engine *engine,
			const struct ucm_lane *lane, uint64_t len);
/* Bytes of windows, for statistics. */
void ucm_lanes_count_windows(struct ucm_engine *engine);

#endif
