/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine.h - one thread of the loader, and what belongs to it.
 *
 * An engine has a ring, staging memory, a copy back end and open files of its
 * own, so that its work needs no lock. Others reach it by its inbox only (mail.c).
 * thread.c is its loop. High to low: save/ (blocks that are written), piece/ (pieces
 * that are read, and what waits for room), files/ (open files), and here lane.c (what
 * is under way in a directory), queue.c (operations of the ring) and stage.c (its
 * staging memory).
 */
#ifndef UCM_ENGINE_H
#define UCM_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "gpu/copy/copy.h"
#include "gpu/load/engine/lane.h"
#include "gpu/load/engine/queue.h"
#include "gpu/load/files/files.h"
#include "gpu/load/piece/gate.h"
#include "gpu/load/task/task.h"
#include "gpu/ring/ring.h"
#include "gpu/ring/staging.h"
#include "gpu/source/hints.h"
#include "gpu/source/source.h"

struct ucm_abandon;
struct ucm_engine;
struct ucm_iobudget;
struct ucm_buffer;

/* Tests have loaders read from a source of theirs. NULL outside of tests. */
extern const struct ucm_source_ops *ucm_loader_source;

/* As struct ucm_loader_stats has them. */
struct ucm_load_counters {
	_Atomic uint64_t loads, load_bytes, load_absent, load_damaged,
		load_failed, saves, save_bytes, save_skipped, save_dropped,
		save_failed, reads, short_reads, opens, open_hits, mapped_bytes,
		window_bytes, direct_bytes, save_refused, save_buffered_bytes,
		load_buffered_bytes, save_direct_bytes, unsummed_bytes;
};

/* What all engines of a loader share. */
struct ucm_shared {
	const struct ucm_source_ops *source_ops;
	struct ucm_source *source;
	struct ucm_iobudget *budget;   /* NULL: nothing is limited */
	struct ucm_buffer *buffer;   /* NULL: none */
	char *buffer_home;           /* see buffer.h */
	struct ucm_hints *hints;    /* NULL: there is no daemon */
	const struct ucm_copy_ops *copy_ops; /* NULL: pages are the host's */
	struct ucm_copy_options copy_options;
	enum ucm_io_kind io;
	uint64_t staging_bytes; /* of each engine, at most */
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
	struct ucm_load_counters stats;
};

static inline void ucm_add(_Atomic uint64_t *counter, uint64_t number)
{
	atomic_fetch_add_explicit(counter, number, memory_order_relaxed);
}

struct ucm_saving;

/* The blocks that are being saved (saving.h). */
STAILQ_HEAD(ucm_hungry, ucm_saving);

struct ucm_savings {
	struct ucm_saving *all; /* a table */
	struct ucm_hungry hungry; /* want staging memory */
	struct ucm_turn *queued, **queued_end; /* see save_turns.c */
	unsigned open; /* files that stay open between parts */
	uint64_t copied; /* into the write buffer, in this round */
	bool copying;    /* more will be in the next one */
};

struct ucm_engine {
	struct ucm_shared *shared;
	unsigned number;
	pthread_t thread;
	struct ucm_ring *ring;
	struct ucm_staging *staging;
	struct ucm_copy *copy;
	bool pages_are_host;
	struct ucm_lane *lanes;
	unsigned num_lanes;
	unsigned held;   /* closes that wait for their lanes */
	struct ucm_load_files files;
	unsigned ops;    /* of the ring, under way */
	unsigned copies; /* of the copy back end, under way */

	struct ucm_part *loads[UCM_RANKS], *saves;
	struct ucm_piece_list ready; /* bytes have come */
	struct ucm_piece_list told;  /* their files have changed */
	struct ucm_gate gate;
	struct ucm_copy_job *to_scatter, *to_gather;
	struct ucm_savings savings;
	struct ucm_piece *spare;
	uint8_t *bounce; /* what was read of a memory file; NULL: not yet */
	size_t bounce_len;
	unsigned savings_busy; /* a step of them is under way */
	bool eager; /* there was more to start */
	bool unreleased; /* a task waits for an event */
	struct ucm_io *backlog, **backlog_end; /* beyond the ring's depth */

	pthread_mutex_t lock; /* guards the inbox */
	struct ucm_part *inbox;
	uint64_t posted; /* parts, so far */
	struct ucm_abandon *abandons;
	struct ucm_engine_call *call; /* see mail.c */
	pthread_cond_t cond;
	bool stopping;
	_Atomic bool mail;
	_Atomic uint64_t window_limit; /* for statistics */
	_Atomic uint64_t load_bytes;   /* of loads that are not settled */
};

/* There may be room: whatever waits for it asks again, soon. */
static inline void ucm_gate_wake(struct ucm_engine *engine)
{
	engine->gate.woken = true;
}

/* What was given up may be waiting: it ends at once. */
static inline void ucm_gate_give_up(struct ucm_engine *engine)
{
	engine->gate.gave_up = true;
	ucm_gate_wake(engine);
}

#endif
