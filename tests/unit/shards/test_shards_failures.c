/* SPDX-License-Identifier: Apache-2.0 */
/* test_shards_failures.c - dumps and commits that fail leave no block. */
#include <config.h>

#include <ucm/shards.h>

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>

#include "tests/unit/shards/shards_fixture.h"

/* ---- failures ---- */

/* Files may not grow beyond that: writes behind it fail with EFBIG. */
static void limit_files(rlim_t bytes)
{
	struct rlimit limit;

	signal(SIGXFSZ, SIG_IGN);
	getrlimit(RLIMIT_FSIZE, &limit);
	limit.rlim_cur = bytes;
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown, .timeout = 120);

UNIT_TEST(a_failed_dump_drops_the_block)
{
	limit_files(4096 + 2 * LAYER);
	ck_assert_int_eq(dump_shard(1, 0), 0);
	ck_assert_int_eq(dump_shard(1, 2), -EFBIG);
	ck_assert_int_eq(dump_shard(1, 1), -ECANCELED);
	limit_files(RLIM_INFINITY);
	ck_assert_int_eq(dump_shard(1, 3), -ECANCELED);
	ck_assert(!there(1));
	/* all have come: the next attempt is whole */
	for (uint32_t i = LAYERS; i--;) {
		ck_assert(!there(1));
		ck_assert_int_eq(dump_shard(1, i), 0);
	}
	check_loads(1);

	/* a shard that comes again begins anew as well */
	limit_files(4096 + 2 * LAYER);
	ck_assert_int_eq(dump_shard(2, 1), 0);
	ck_assert_int_eq(dump_shard(2, 3), -EFBIG);
	limit_files(RLIM_INFINITY);
	for (uint32_t i = 1; i <= LAYERS; i++) {
		ck_assert(!there(2));
		ck_assert_int_eq(dump_shard(2, i % LAYERS), 0);
	}
	check_loads(2);
}

UNIT_TEST(a_failed_dump_cannot_be_committed)
{
	ck_assert_int_eq(create(1), 0);
	limit_files(4096 + 2 * LAYER);
	ck_assert_int_eq(dump_at(1, 0, LAYER), 0);
	ck_assert_int_eq(dump_at(1, 2 * LAYER, 2 * LAYER), -EFBIG);
	limit_files(RLIM_INFINITY);
	ck_assert_int_eq(dump_at(1, 0, BLOCK), -ECANCELED);
	ck_assert_int_eq(commit(1, true), -EFBIG);
	ck_assert(!there(1));
	ck_assert_int_eq(commit(1, true), -ENOENT);
	ck_assert_int_eq(create(1), 0);
	ck_assert_int_eq(dump_at(1, 0, BLOCK), 0);
	ck_assert_int_eq(commit(1, true), 0);
	check_loads(1);
}

UNIT_TEST(a_failed_commit_leaves_nothing)
{
	ck_assert_int_eq(create(1), 0);
	ck_assert_int_eq(dump_at(1, 0, BLOCK), 0);
	fault = NO_COMMIT;
	ck_assert_int_eq(commit(1, true), -EIO);
	fault = NO_FAULT;
	ck_assert(!there(1));
	ck_assert_int_eq(commit(1, false), -ENOENT);
	ck_assert_int_eq(create(1), 0);
	ucm_shards_close(store);
	store = NULL;
	ucm_loader_close(loader);
	loader = NULL;
	ck_assert_uint_eq(temporaries(), 0);
}

/* Somebody else was quicker. */
UNIT_TEST(a_block_that_appears_is_not_saved_twice)
{
	ck_assert_int_eq(create(1), 0);
	/* not planted: the daemon must know of it */
	{
		struct ucm_shards *mine = store;

		open_store(&by_layer);
		for (uint32_t i = 0; i < LAYERS; i++)
			ck_assert_int_eq(dump_shard(1, i), 0);
		ucm_shards_close(store);
		store = mine;
	}
	ck_assert_int_eq(dump_at(1, 0, LAYER), 0);
	ck_assert_int_eq(commit(1, true), 0);
	ck_assert_int_eq(commit(1, true), -ENOENT);
	check_loads(1);
}
