/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lane.c - what an engine has under way in one directory.
 *
 * A directory may be on a file server that stops. Nobody can call back what was
 * asked of it, so everything that is shared has to be bounded beforehand, and
 * what waits for an answer has to wait where it is in nobody's way.
 *
 *	a piece  started -> waits for its file -> waits for room -> is read
 *	            (asked for, then a call)      (waiting)         (a call)
 *
 *	a queue  prompt --- no call has come back for LATE_NS ---> late
 *	           ^------------- one comes back -------------------'
 *	            late for HUNG_NS: no more than FEW calls from here on
 *
 * Prompt: an engine starts pieces in the order in which they were asked for,
 * until for some prompt queue enough is begun (ucm_lane_is_full()). Then the
 * rest waits, also those of other queues: it is not known where a block lies
 * before it is looked for.
 * Late: whoever waits for this queue is passed over, and its blocks cost
 * memory only: a piece and the file that it waits for, without a descriptor.
 * No deadline ends that but the task's own. Nothing of a late queue counts where
 * others are kept waiting: bytes of a window that was given, or of a budget, or
 * half of all descriptors. It takes no more of those while it is late; what it has
 * of the other half, from when it was prompt, does count.
 *
 * What a queue can hold while it does not answer, if it may hang:
 *
 *	calls      FEW at first; each one that comes back allows two more, up
 *	           to CALLS; FEW again once it has hung. A ring has room for
 *	           several times that, and a crowd has threads of its own.
 *	opens      two requests to the source (files.c)
 *	staging    a quarter, all such queues together three; one that is alone
 *	           has nobody to leave anything to but saves
 *
 * Queues of local file systems have no limit but their windows and, when they are
 * late (a slow disk is soon), that of descriptors.
 *
 * Always: an op is in the ring (counted in calls), or in held, and then counted in
 * engine->held.
 */
#include <config.h>

#include "gpu/load/engine/lane.h"

#include <stdlib.h>

#include "common/clock.h"
#include "gpu/load/engine/engine.h"

#define LATE_NS (INT64_C(100) * 1000000)
#define HUNG_NS (INT64_C(1000) * 1000000)
#define FEW 8u
#define CALLS 128u
#define MORE 2u
#define AHEAD 16u    /* pieces that wait for room */

/* ---- arithmetic ---- */

void ucm_lane_init(struct ucm_lane *lane, struct ucm_dir *dir, unsigned number,
		   uint64_t window_bytes, uint64_t most_bytes)
{
	*lane = (struct ucm_lane){
		.dir = dir,
		.number = number,
		.limit = FEW,
	};
	ucm_window_init(&lane->window, window_bytes, most_bytes);
	for (unsigned i = 0; i < UCM_RANKS; i++)
		ucm_piece_list_init(&lane->waiting[i]);
	TAILQ_INIT(&lane->held);
}

void ucm_lane_begin(struct ucm_lane *lane, int64_t now_ns)
{
	if (!lane->calls++)
		lane->heard_ns = now_ns;
}

void ucm_lane_end(struct ucm_lane *lane, int64_t now_ns)
{
	lane->calls--;
	lane->heard_ns = now_ns;
	if (lane->limit < CALLS)
		lane->limit += MORE;
}

bool ucm_lane_look(struct ucm_lane *lane, int64_t now_ns)
{
	int64_t silent = lane->calls ? now_ns - lane->heard_ns : 0;
	bool was = lane->late;

	lane->late = silent >= LATE_NS;
	if (silent >= HUNG_NS)
		lane->limit = FEW;
	return lane->late != was;
}

int64_t ucm_lane_until_late(const struct ucm_lane *lane, int64_t now_ns)
{
	int64_t left = lane->heard_ns + LATE_NS - now_ns;

	if (!lane->calls || lane->late)
		return -1;
	return left > 0 ? left : 0;
}

bool ucm_lane_may_call(const struct ucm_lane *lane)
{
	return lane->dir->quick || lane->calls < lane->limit;
}

bool ucm_lane_is_full(const struct ucm_lane *lane, unsigned rank)
{
	return !lane->late && lane->waiting[rank].num >= AHEAD;
}

/* ---- of an engine ---- */

struct ucm_lane *ucm_lane_of(struct ucm_engine *engine, struct ucm_dir *dir)
{
	struct ucm_lane **at = &engine->lanes;

	while (*at && (*at)->dir != dir)
		at = &(*at)->next;
	if (*at)
		return *at;
	*at = malloc(sizeof(**at));
	if (!*at)
		return NULL;
	ucm_lane_init(*at, dir, ++engine->num_lanes,
		      engine->shared->window_bytes,
		      ucm_staging_limit(engine->staging) / 2);
	ucm_lanes_count_windows(engine);
	return *at;
}

void ucm_lanes_free(struct ucm_engine *engine)
{
	struct ucm_lane *lane = engine->lanes;

	while (lane) {
		struct ucm_lane *next = lane->next;

		free(lane);
		lane = next;
	}
	engine->lanes = NULL;
}

/* ---- what is held ---- */

/* Descriptors that a lane may take while it is late, and keep without others being
 * told. */
static unsigned share_of_late(const struct ucm_engine *engine)
{
	return engine->files.most - engine->files.most / 2;
}

static bool may_use(const struct ucm_engine *engine,
		    const struct ucm_lane *lane)
{
	return !lane->late || lane->opens + lane->used < share_of_late(engine);
}

/* Files that are in use; of lanes that are late only what they have beyond their
 * share. */
static unsigned files_in_use(const struct ucm_engine *engine)
{
	unsigned num = 0, share = share_of_late(engine);

	for (struct ucm_lane *lane = engine->lanes; lane; lane = lane->next) {
		unsigned files = lane->opens + lane->used;

		if (!lane->late)
			num += files;
		else if (files > share)
			num += files - share;
	}
	return num;
}

unsigned ucm_lane_room(const struct ucm_engine *engine,
		       const struct ucm_lane *of)
{
	unsigned num = of->opens + of->used, share = share_of_late(engine);
	unsigned all = files_in_use(engine), most = engine->files.most;
	unsigned room = all < most ? most - all : !num;

	if (!may_use(engine, of))
		return 0;
	return of->late && room > share - num ? share - num : room;
}

void ucm_lane_queue(struct ucm_engine *engine, struct ucm_engine_op *op)
{
	if (TAILQ_EMPTY(&op->lane->held) && ucm_lane_may_call(op->lane)) {
		ucm_engine_queue(engine, op);
		return;
	}
	TAILQ_INSERT_TAIL(&op->lane->held, op, in_held);
	engine->held++;
}

void ucm_lane_queue_held(struct ucm_engine *engine, struct ucm_lane *lane)
{
	struct ucm_engine_op *op;

	while ((op = TAILQ_FIRST(&lane->held)) && ucm_lane_may_call(lane)) {
		TAILQ_REMOVE(&lane->held, op, in_held);
		engine->held--;
		ucm_engine_queue(engine, op);
	}
}

int64_t ucm_lanes_until_late(const struct ucm_engine *engine)
{
	int64_t now = ucm_monotonic_ns(), first = -1;

	for (struct ucm_lane *lane = engine->lanes; lane; lane = lane->next) {
		int64_t left = ucm_lane_until_late(lane, now);

		if (left >= 0 && (first < 0 || left < first))
			first = left;
	}
	return first;
}

/* ---- what they have together ---- */

bool ucm_lanes_have_room(const struct ucm_engine *engine, unsigned rank)
{
	unsigned most = engine->files.most;

	for (struct ucm_lane *lane = engine->lanes; lane; lane = lane->next) {
		if (ucm_lane_is_full(lane, rank))
			return false;
	}
	return files_in_use(engine) < (rank ? most - most / 2 : most);
}

bool ucm_lanes_wait(const struct ucm_engine *engine)
{
	for (struct ucm_lane *lane = engine->lanes; lane; lane = lane->next) {
		for (unsigned rank = 0; rank < UCM_RANKS; rank++) {
			if (!lane->late &&
			    (lane->asked || lane->opens ||
			     lane->waiting[rank].first))
				return true;
		}
	}
	return false;
}

uint64_t ucm_lanes_in_flight(const struct ucm_engine *engine,
			     const struct ucm_lane *but)
{
	uint64_t bytes = 0;

	for (struct ucm_lane *lane = engine->lanes; lane; lane = lane->next)
		bytes += lane == but || lane->late ? 0 : lane->window.in_flight;
	return bytes;
}

bool ucm_lane_may_stage(const struct ucm_engine *engine,
			const struct ucm_lane *lane, uint64_t len)
{
	uint64_t quarter = ucm_staging_len(engine->staging) / 4;
	uint64_t all = 0, hung = 0;

	for (struct ucm_lane *one = engine->lanes; one; one = one->next) {
		all += one->staged;
		hung += one->dir->quick ? 0 : one->staged;
	}
	/* saves that wait get what is left */
	if (engine->saves && all && all + len > 3 * quarter)
		return false;
	if (lane->dir->quick || !lane->staged ||
	    (engine->num_lanes == 1 && !engine->shared->buffer))
		return true;
	return lane->staged + len <= quarter && hung + len <= 3 * quarter;
}

void ucm_lanes_count_windows(struct ucm_engine *engine)
{
	uint64_t bytes = 0;

	for (struct ucm_lane *lane = engine->lanes; lane; lane = lane->next)
		bytes += lane->window.limit;
	atomic_store(&engine->window_limit, bytes);
}
