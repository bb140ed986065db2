/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_shards_random.c - random calls against a naive store, and threads at
 * the same blocks.
 */
#include <config.h>

#include "tests/unit/shards/shards_fixture.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/random.h"

/* ---- all together ---- */

/* What is known of a block, kept as simply as possible. */
struct known {
	bool exists, created;
	bool have[LAYERS];
};

static bool is_whole(const struct known *known)
{
	for (unsigned i = 0; i < LAYERS; i++) {
		if (!known->have[i])
			return false;
	}
	return true;
}

static void known_dump(struct known *known, unsigned n, uint32_t layer)
{
	int err = dump_shard(n, layer);

	if (known->created) {
		ck_assert_int_eq(err, -EBUSY);
		return;
	}
	ck_assert_int_eq(err, 0);
	if (known->exists)
		return;
	known->have[layer] = true;
	known->exists = is_whole(known);
}

static void known_dump_at(struct known *known, unsigned n, uint32_t first,
			  uint32_t num)
{
	int err = dump_at(n, first * LAYER, num * LAYER);

	ck_assert_int_eq(err, known->created ? 0 : -ENOENT);
	for (uint32_t i = first; !err && i < first + num; i++)
		known->have[i] = true;
}

static void known_create(struct known *known, unsigned n)
{
	bool begun = false;

	for (unsigned i = 0; i < LAYERS; i++)
		begun |= known->have[i];
	ck_assert_int_eq(create(n), known->exists    ? -EEXIST
				    : known->created ? -EALREADY
				    : begun	     ? -EBUSY
						     : 0);
	if (!known->exists && !begun)
		known->created = true;
}

static void known_commit(struct known *known, unsigned n, bool success)
{
	bool begun = known->created;
	int want = 0;

	for (unsigned i = 0; i < LAYERS; i++)
		begun |= known->have[i];
	if (known->exists || !begun)
		want = -ENOENT;
	else if (success && !(known->created && is_whole(known)))
		want = -EAGAIN;
	ck_assert_int_eq(commit(n, success), want);
	if (want)
		return;
	known->exists = success;
	known->created = false;
	if (!success)
		memset(known->have, 0, sizeof(known->have));
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown, .timeout = 120);

UNIT_TEST(it_does_what_a_naive_one_does)
{
	struct known blocks[8] = { { 0 } };
	uint64_t random = random_case(0);

	for (unsigned step = 0; step < 1500; step++) {
		unsigned n = (unsigned)random_between(&random, 0, 7);
		unsigned what = (unsigned)random_between(&random, 0, 8);
		uint32_t layer = (uint32_t)random_between(&random, 0, 3);

		if (what < 3)
			known_dump(&blocks[n], n, layer);
		else if (what < 6)
			known_dump_at(&blocks[n], n, layer,
				      (uint32_t)random_between(&random, 1,
							       LAYERS - layer));
		else if (what < 7)
			known_create(&blocks[n], n);
		else
			known_commit(&blocks[n], n, what == 8);
		ck_assert_int_eq(there(n), blocks[n].exists);
	}
	for (unsigned n = 0; n < NUM_ROWS(blocks); n++) {
		if (blocks[n].exists)
			check_loads(n);
	}
}

#define SHARED 40u

/* All threads save and load the same blocks, each in an order of its own. */
static void *busy(void *arg)
{
	unsigned mine = *(unsigned *)arg;
	uint8_t *bytes = filled(0), *got = calloc(1, BLOCK);

	for (unsigned i = 0; i < SHARED; i++) {
		unsigned n = (i * 7 + mine * 13) % SHARED;

		for (unsigned j = 0; j < BLOCK; j++)
			bytes[j] = lf_byte(n, j);
		for (uint32_t j = 0; j < LAYERS; j++)
			wait_one(start_shard(true, n, (j + mine) % LAYERS,
					     bytes),
				 NULL);
		ck_assert_int_eq(
			wait_one(start_at(false, n, 0, BLOCK, got), NULL), 0);
		ck_assert(is_block(got, n, 0, BLOCK));
	}
	free(bytes);
	free(got);
	return NULL;
}

UNIT_TEST(threads_may_work_on_the_same_blocks)
{
	unsigned numbers[4] = { 0, 1, 2, 3 };
	pthread_t threads[4];

	for (unsigned i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, busy, &numbers[i]);
	for (unsigned i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	for (unsigned n = 0; n < SHARED; n++)
		ck_assert(lf_saved("$/tier", &lf_geometry, n));
}
