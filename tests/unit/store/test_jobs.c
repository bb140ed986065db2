/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_jobs.c - the queues of blocks that movers copy. No mover runs: what is
 * asked for stays in its queue.
 */
#include <config.h>

#include <errno.h>

#include "fs/store/find/find.h"
#include "fs/store/jobs.h"
#include "tests/unit/store_fixture.h"

static struct fx_file files[4];
static struct ucm_jobs *jobs;

static void setup(void)
{
	fx_setup();
	for (unsigned i = 0; i < NUM_ROWS(files); i++)
		fx_block(&files[i], i + 1, FX_PAGED);
}

static void open_still(void)
{
	fx_option("policy", "lru");
	fx_open_still();
	jobs = fx_set->jobs;
	jobs->started = true;
	jobs->down_lacks = false;
}

static void store_of(const char *source)
{
	fx_configure(source);
	open_still();
}

static void commit(unsigned i)
{
	ck_assert_int_eq(fx_commit(&files[i]), 0);
}

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown);

/* ---- queues ---- */

static void put(ucm_ref ref)
{
	ck_assert(ucm_jobs_put_down(jobs, ref));
}

static void gives(ucm_ref want)
{
	ucm_ref ref;

	must(ucm_jobs_take(jobs, &jobs->down, &ref) && ref == want);
}

UNIT_TEST(what_was_asked_for_first_is_done_first)
{
	store_of("only=$/a");
	for (ucm_ref ref = 1; ref <= 3; ref++)
		put(ref);
	for (ucm_ref ref = 1; ref <= 3; ref++)
		gives(ref);
	ck_assert_uint_eq(jobs->down.num, 0);
}

UNIT_TEST(a_queue_goes_on_from_its_end_at_its_beginning)
{
	store_of("only=$/a");
	put(1);
	for (ucm_ref ref = 1; ref < 3 * UCM_JOBS_MAX; ref++) {
		put(ref + 1);
		gives(ref);
	}
}

static void fill(void)
{
	while (ucm_jobs_put_down(jobs, 1))
		;
	jobs->down_lacks = false;
}

UNIT_TEST(what_a_full_queue_drops_is_noted)
{
	store_of("only=$/a");
	fill();
	ck_assert_uint_eq(jobs->down.num, UCM_JOBS_MAX);
	ck_assert(!ucm_jobs_put_down(jobs, 2));
	ck_assert(jobs->down_lacks);
}

UNIT_TEST(a_written_block_that_a_full_queue_drops_is_noted)
{
	fx_configure("fast=$/a:slow=$/b");
	fx_option("write", "fast:back");
	open_still();
	fill();
	commit(0);
	ck_assert(jobs->down_lacks);
}

/* ---- up ---- */

UNIT_TEST(blocks_are_promoted_to_the_fastest_tier_that_can_be_written_to)
{
	struct ucm_tier *tiers;

	store_of("fast=$/a:mid=$/b:slow=$/c");
	tiers = fx_set->dirs.tiers;
	ck_assert_ptr_eq(ucm_jobs_tier_above(fx_set, 2), &tiers[0]);
	tiers[0].readonly = true;
	ck_assert_ptr_eq(ucm_jobs_tier_above(fx_set, 2), &tiers[1]);
	ck_assert_ptr_null(ucm_jobs_tier_above(fx_set, 1));
}

/* A block in the slow tier, that its second use promotes. */
static void slow_block(void)
{
	fx_configure("fast=$/a:slow=$/b");
	fx_option("promote", "2");
	fx_option("write", "fast:around");
	open_still();
	commit(0);
}

static void use(void)
{
	fx_serves(&files[0]);
}

UNIT_TEST(a_use_long_ago_does_not_count)
{
	slow_block();
	use();
	for (unsigned i = 0; i < NUM_ROWS(jobs->seen); i++)
		jobs->seen[i].since_s -= UCM_PROMOTE_WINDOW_S + 1;
	use();
	ck_assert_uint_eq(jobs->up.num, 0);
	use();
	ck_assert_uint_eq(jobs->up.num, 1);
}

UNIT_TEST(uses_are_counted_from_zero_after_a_promotion)
{
	slow_block();
	use();
	use();
	ck_assert_uint_eq(jobs->up.num, 1);
	use();
	ck_assert_uint_eq(jobs->up.num, 1);
	use();
	ck_assert_uint_eq(jobs->up.num, 2);
}

UNIT_TEST(nothing_is_promised_before_movers_run)
{
	slow_block();
	jobs->started = false;
	ck_assert_int_eq(ucm_jobs_warm(fx_set, fx_ref(&files[0])), -EAGAIN);
	ck_assert_uint_eq(jobs->warm.num, 0);
}

/* ---- down ---- */

static const struct {
	const char *write;
	bool unsaved;
} modes[] = {
	{"fast:stay", false},
	{"fast:back", true},
	{"fast:through", true},
};

UNIT_TEST(what_is_unsaved_follows_from_the_write_mode,
	  .rows = NUM_ROWS(modes))
{
	struct ucm_entry entry;
	uint64_t blocks, bytes;

	store_of("fast=$/a:slow=$/b");
	commit(0);
	fx_close();
	fx_option("write", modes[_i].write);
	open_still();
	ck_assert_int_eq(fx_find(&files[0]), 0);
	entry = fx_entry(&files[0]);
	ck_assert_int_eq(ucm_jobs_is_unsaved(fx_set, &entry),
			 modes[_i].unsaved);
	ucm_jobs_count_unsaved(fx_set, &blocks, &bytes);
	ck_assert_uint_eq(blocks, modes[_i].unsaved);
	ck_assert_uint_eq(bytes, modes[_i].unsaved * files[0].len);
}

UNIT_TEST(a_block_that_is_withheld_is_not_unsaved)
{
	struct ucm_entry entry;

	fx_configure("fast=$/a:slow=$/b");
	fx_option("write", "fast:back");
	open_still();
	commit(0);
	ucm_store_withhold(fx_set, fx_ref(&files[0]));
	entry = fx_entry(&files[0]);
	ck_assert(!ucm_jobs_is_unsaved(fx_set, &entry));
}

/* Of two blocks, one more is written; high is 90 percent. */
static const struct {
	const char *limit;
	bool woken;
} fill_levels[] = {{"fast:80K", false}, {"fast:24K", true}};

UNIT_TEST(a_block_above_the_high_mark_wakes_a_mover,
	  .rows = NUM_ROWS(fill_levels))
{
	fx_configure("fast=$/a:slow=$/b");
	fx_option("limit", fill_levels[_i].limit);
	fx_config.high = 90;
	fx_config.low = 50;
	open_still();
	commit(0);
	commit(1);
	jobs->woken = false;
	commit(2);
	ck_assert_int_eq(jobs->woken, fill_levels[_i].woken);
}

UNIT_PROGRAM(.variants = fx_media);
