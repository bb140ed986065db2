/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lanes.c - many walks at once; see walk.h.
 *
 * A digest needs the one before it in its chain, so a chain cannot be computed
 * in parallel; several chains can. Every walk that is under way has a lane.
 * A step compresses as many chunks as the shortest run in the lanes has; a lane
 * whose run is done asks its walk for the next, one whose walk is done takes
 * another walk. Lanes 0 to live - 1 are in use.
 */
#include <config.h>

#include "hashing/walk.h"

#include <string.h>

#define LANES UCM_MD5_LANES

struct lanes {
	uint32_t state[4][LANES];
	const uint8_t *data[LANES]; /* what is left of each lane's run */
	size_t chunks[LANES];
	struct ucm_walk *walk[LANES];
	unsigned live;
	struct ucm_walk walks[LANES];
};

static void run_alone(struct ucm_walk *walk)
{
	while (ucm_walk_next(walk))
		ucm_md5_one(walk->state, walk->bytes, walk->chunks);
}

static void put_run(struct lanes *lanes, unsigned lane)
{
	const struct ucm_walk *walk = lanes->walk[lane];

	for (int i = 0; i < 4; i++)
		lanes->state[i][lane] = walk->state[i];
	lanes->data[lane] = walk->bytes;
	lanes->chunks[lane] = walk->chunks;
}

static void get_state(struct lanes *lanes, unsigned lane)
{
	for (int i = 0; i < 4; i++)
		lanes->walk[lane]->state[i] = lanes->state[i][lane];
}

/* The lane's next run, of this walk or another; false: there is none. */
static bool refill(struct lanes *lanes, unsigned lane, ucm_walk_source next,
		   void *arg)
{
	struct ucm_walk *walk = lanes->walk[lane];
	bool more = ucm_walk_next(walk);

	while (!more && next(arg, walk))
		more = ucm_walk_next(walk);
	if (more)
		put_run(lanes, lane);
	return more;
}

static void start(struct lanes *lanes, ucm_walk_source next, void *arg)
{
	lanes->live = 0;
	while (lanes->live < LANES) {
		struct ucm_walk *walk = &lanes->walks[lanes->live];

		if (!next(arg, walk))
			return;
		if (!ucm_walk_next(walk))
			continue;
		lanes->walk[lanes->live] = walk;
		put_run(lanes, lanes->live);
		lanes->live++;
	}
}

static size_t shortest_run(const struct lanes *lanes)
{
	size_t chunks = lanes->chunks[0];

	for (unsigned i = 1; i < lanes->live; i++) {
		if (lanes->chunks[i] < chunks)
			chunks = lanes->chunks[i];
	}
	return chunks;
}

/* Close a lane: the last one takes its place. */
static void drop(struct lanes *lanes, unsigned lane)
{
	unsigned last = --lanes->live;

	if (lane == last)
		return;
	lanes->walk[lane] = lanes->walk[last];
	lanes->data[lane] = lanes->data[last];
	lanes->chunks[lane] = lanes->chunks[last];
	for (int i = 0; i < 4; i++)
		lanes->state[i][lane] = lanes->state[i][last];
}

static void step(struct lanes *lanes, ucm_md5_lanes compress)
{
	size_t chunks = shortest_run(lanes);

	for (unsigned i = lanes->live; i < LANES; i++)
		lanes->data[i] = lanes->data[0]; /* its result is not used */
	compress(lanes->state, lanes->data, chunks);
	for (unsigned i = 0; i < lanes->live; i++) {
		lanes->data[i] += chunks * UCM_MD5_CHUNK;
		lanes->chunks[i] -= chunks;
	}
}

/* From the last lane down, so that what drop() moves has been looked at. */
static void refill_all(struct lanes *lanes, ucm_walk_source next, void *arg)
{
	for (unsigned i = lanes->live; i-- > 0;) {
		if (lanes->chunks[i] > 0)
			continue;
		get_state(lanes, i);
		if (!refill(lanes, i, next, arg))
			drop(lanes, i);
	}
}

/* One that is left over: the rest of its run, and what follows. */
static void finish_alone(struct lanes *lanes)
{
	struct ucm_walk *walk = lanes->walk[0];

	get_state(lanes, 0);
	ucm_md5_one(walk->state, lanes->data[0], lanes->chunks[0]);
	run_alone(walk);
}

static void run_lanes(ucm_md5_lanes compress, ucm_walk_source next, void *arg)
{
	struct lanes lanes;

	memset(lanes.state, 0, sizeof(lanes.state));
	start(&lanes, next, arg);
	while (lanes.live > 1) {
		step(&lanes, compress);
		refill_all(&lanes, next, arg);
	}
	if (lanes.live == 1)
		finish_alone(&lanes);
}

void ucm_walk_all(ucm_md5_lanes lanes, ucm_walk_source next, void *arg)
{
	struct ucm_walk walk;

	if (lanes) {
		run_lanes(lanes, next, arg);
		return;
	}
	while (next(arg, &walk))
		run_alone(&walk);
}
