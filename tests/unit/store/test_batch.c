/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_batch.c - blocks that leave a directory together: which directories are
 * synced for them, and which of them leave.
 */
#include <config.h>

#include <errno.h>
#include <limits.h>

#include "fs/store/motion/batch.h"
#include "fs/store/motion/motion.h"
#include "tests/unit/store_fixture.h"

#define BYTES 8192u /* of a block of FX_PAGED */

static struct fx_file files[24];
static struct ucm_batch batch;

static void setup(void)
{
	fx_setup();
	for (unsigned i = 0; i < NUM_ROWS(files); i++)
		fx_block(&files[i], i + 1, FX_PAGED);
}

/* Syncs of each directory; those of one may fail. */
static unsigned syncs[3], failing;
static struct ucm_medium_ops ops;

static int count_sync(struct ucm_medium *medium, const char *folder)
{
	unsigned dir = 0;

	if (folder)
		return 0;

	while (fx_set->dirs.at[dir] != medium)
		dir++;
	syncs[dir]++;
	return dir == failing ? -EIO : 0;
}

/* A store with so many blocks in its first tier, and a batch out of one of its
 * directories. */
static void store_of(const char *source, unsigned num, unsigned from)
{
	fx_configure(source);
	fx_option("policy", "lru");
	fx_open_still();
	for (unsigned i = 0; i < num; i++)
		ck_assert_int_eq(fx_commit(&files[i]), 0);
	ops = *fx_set->dirs.at[0]->ops;
	ops.sync = count_sync;
	for (unsigned dir = 0; dir < fx_set->dirs.num; dir++) {
		fx_set->dirs.at[dir]->ops = &ops;
		syncs[dir] = 0;
	}
	failing = UINT_MAX;
	ucm_batch_init(&batch, fx_set, from, true);
}

/* To a tier, in the batch. */
static void copy_all(unsigned num, unsigned tier)
{
	const struct ucm_move_terms move = {.to = &fx_set->dirs.tiers[tier]};

	for (unsigned i = 0; i < num; i++) {
		ucm_ref ref = fx_ref(&files[i]);

		ck_assert_int_eq(ucm_batch_begin_copy(&batch, ref), 0);
		ck_assert_int_eq(ucm_batch_end_copy(
			&batch, ucm_store_copy(fx_set, ref, &move, NULL)), 0);
	}
}

static uint64_t demoted(unsigned tier)
{
	return fx_set->dirs.tiers[tier].stats.demoted;
}

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown);

UNIT_TEST(the_directories_of_the_copies_are_synced_once)
{
	store_of("fast=$/a:slow=$/b,$/c", NUM_ROWS(files), 0);
	copy_all(NUM_ROWS(files), 1);
	must(fx_set->dirs.at[1]->blocks && fx_set->dirs.at[2]->blocks);
	ck_assert_uint_eq(ucm_batch_settle(&batch, NULL), NUM_ROWS(files));
	ck_assert_uint_eq(syncs[0], 0);
	ck_assert_uint_eq(syncs[1], 1);
	ck_assert_uint_eq(syncs[2], 1);
}

UNIT_TEST(blocks_stay_whose_copies_could_not_be_synced)
{
	uint64_t freed = 0;
	unsigned good;

	store_of("fast=$/a:slow=$/b,$/c", NUM_ROWS(files), 0);
	copy_all(NUM_ROWS(files), 1);
	good = (unsigned)fx_set->dirs.at[1]->blocks;
	must(good && good < NUM_ROWS(files));
	failing = 2;
	ck_assert_uint_eq(ucm_batch_settle(&batch, &freed), good);
	ck_assert_uint_eq(freed, good * BYTES);
	ck_assert_uint_eq(fx_set->dirs.at[0]->blocks, NUM_ROWS(files) - good);
	ck_assert_uint_eq(fx_set->dirs.at[1]->blocks, good);
	ck_assert_uint_eq(fx_set->dirs.at[2]->blocks, 0);
	ck_assert_uint_eq(demoted(0), good);
}

UNIT_TEST(a_settled_batch_is_empty)
{
	store_of("fast=$/a:slow=$/b", 3, 0);
	copy_all(3, 1);
	ck_assert_uint_eq(batch.num, 3);
	ck_assert_uint_eq(batch.bytes, 3 * BYTES);
	ucm_batch_settle(&batch, NULL);
	ck_assert_uint_eq(batch.num, 0);
	ck_assert_uint_eq(batch.bytes, 0);
}

UNIT_TEST(what_leaves_for_a_faster_tier_is_not_demoted)
{
	store_of("fast=$/a:slow=$/b", 2, 0);
	copy_all(2, 1);
	ucm_batch_settle(&batch, NULL);
	ck_assert_uint_eq(demoted(0), 2);
	ucm_batch_init(&batch, fx_set, 1, true);
	copy_all(2, 0);
	ck_assert_uint_eq(ucm_batch_settle(&batch, NULL), 2);
	ck_assert_uint_eq(demoted(1), 0);
}

/* In memory alone: a directory insists on its own operations. */
UNIT_PROGRAM(.variants = fx_media + 1);
