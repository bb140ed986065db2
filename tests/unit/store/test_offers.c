/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_offers.c - saves that may be refused, and what may be written in a day.
 */
#include <config.h>

#include <errno.h>
#include <string.h>

#include "fs/store/endurance.h"
#include "fs/store/find/find.h"
#include "fs/store/jobs.h"
#include "fs/store/motion/motion.h"
#include "fs/store/motion/offers.h"
#include "tests/unit/store_fixture.h"

#define BYTES 8192u /* of a block of FX_PAGED */
/* A day's budget of so many blocks an hour, which is what may be owed. */
#define HOURLY(blocks) (24ull * (blocks) * BYTES)

static struct fx_file files[32];

/* ---- a policy that says what it is told ---- */

static uint32_t uses_to_come; /* of what is asked for */
static unsigned num_asked, num_refused;
static bool was_before; /* the last request had a block before it */
static struct ucm_policy_ops told;

static void told_ask(struct ucm_policy *policy, uint32_t now_s,
		     struct ucm_policy_request *request)
{
	(void)policy;
	num_asked += (unsigned)request->num;
	was_before = request->before;
	for (size_t i = 0; i < request->num; i++)
		request->blocks[i].state = (struct ucm_policy_state){
			.last_s = now_s,
			.uses = uses_to_come,
		};
}

static void told_fresh(struct ucm_policy *policy, uint32_t now_s, uint64_t tag,
		       const struct ucm_policy_state *before,
		       struct ucm_policy_state *out)
{
	(void)policy, (void)tag, (void)before;
	*out = (struct ucm_policy_state){.last_s = now_s, .uses = uses_to_come};
}

static void told_gone(struct ucm_policy *policy, uint32_t now_s, uint64_t tag,
		      const struct ucm_policy_state *state,
		      enum ucm_policy_why why)
{
	(void)policy, (void)now_s, (void)tag, (void)state;
	num_refused += why == UCM_POLICY_REFUSED;
}

static double told_worth(const struct ucm_policy *policy, uint32_t now_s,
			 const struct ucm_policy_state *state)
{
	(void)policy, (void)now_s;
	return state->uses;
}

static void open_told(void)
{
	told = ucm_policy_lru;
	told.refuses = true;
	told.ask = told_ask;
	told.fresh = told_fresh;
	told.gone = told_gone;
	told.worth = told_worth;
	fx_open();
	fx_set->value.policy->ops = &told;
	for (unsigned dir = 0; dir < fx_set->dirs.num; dir++)
		fx_set->keepers[dir].pins_known = true;
}

/* Nothing moves by itself. */
static void open_still(void)
{
	open_told();
	ck_assert_int_eq(ucm_store_begin(fx_set), 0);
}

static void configure(const char *source)
{
	fx_configure(source);
	fx_option("policy", "lru");
}

static void setup(void)
{
	fx_setup();
	num_asked = num_refused = 0;
	uses_to_come = 10;
	for (unsigned i = 0; i < NUM_ROWS(files); i++)
		fx_block(&files[i], i + 1, FX_PAGED);
}

UNIT_FIXTURE(.setup = setup, .teardown = fx_teardown);

/* Offer blocks: those of a chain, or each for itself. How many are taken. */
static int32_t answers[NUM_ROWS(files)];

static unsigned offer_after(const struct ucm_id *parent, unsigned first,
			    unsigned num, bool chained)
{
	struct ucm_control_offered blocks[NUM_ROWS(files)] = {0};
	unsigned taken = 0;

	for (unsigned i = 0; i < num; i++) {
		blocks[i].id = files[first + i].key.id;
		if (i && chained)
			blocks[i].parent = blocks[i - 1].id;
	}
	if (parent)
		blocks[0].parent = *parent;
	ck_assert_int_eq(
		ucm_offers_judge(fx_set, files[first].key.space, blocks, num,
				 BYTES, answers),
		0);
	for (unsigned i = 0; i < num; i++)
		taken += answers[i] == 1;
	return taken;
}

static unsigned offer(unsigned first, unsigned num)
{
	return offer_after(NULL, first, num, false);
}

static void commit(unsigned first, unsigned num)
{
	for (unsigned i = first; i < first + num; i++)
		ck_assert_int_eq(fx_commit(&files[i]), 0);
}

static struct ucm_entry entry_of(unsigned i)
{
	struct ucm_entry entry;

	must(ucm_index_find(fx_set->index, &files[i].key, &entry, NULL));
	return entry;
}

/* A tier with room for eight, of which the high mark lets in seven; and some had
 * to leave, so that it is full. */
static void fill(void)
{
	configure("only=$/a");
	fx_option("limit", "only:64K");
	open_still();
	commit(0, 12);
}

/* ---- worth ---- */

UNIT_TEST(an_empty_store_refuses_nothing)
{
	configure("only=$/a");
	fx_option("limit", "only:1M");
	open_still();
	uses_to_come = 0;
	ck_assert_uint_eq(offer(0, NUM_ROWS(files)), NUM_ROWS(files));
	ck_assert_uint_eq(fx_set->stats.offers, NUM_ROWS(files));
	ck_assert_uint_eq(fx_set->stats.offers_refused, 0);
}

UNIT_TEST(what_is_free_is_taken_and_no_more)
{
	configure("only=$/a");
	fx_option("limit", "only:64K");
	open_still();
	commit(0, 4);
	uses_to_come = 1;
	/* up to the high mark: 95 % of eight */
	ck_assert_uint_eq(offer(4, 8), 3);
	ck_assert(answers[0] && answers[1] && answers[2] && !answers[3]);
}

static const struct {
	uint32_t uses;
	unsigned taken;
} worths[] = {{1, 0}, {9, 0}, {10, 4}, {11, 4}};

UNIT_TEST(a_full_store_takes_what_is_worth_as_much, .rows = NUM_ROWS(worths))
{
	fill();
	uses_to_come = worths[_i].uses;
	ck_assert_uint_eq(offer(20, 4), worths[_i].taken);
	ck_assert_uint_eq(num_refused, 4 - worths[_i].taken);
	ck_assert_uint_eq(fx_set->stats.offers_refused, num_refused);
}

UNIT_TEST(what_nobody_asks_for_is_written)
{
	fill();
	uses_to_come = 1;
	ck_assert_uint_eq(offer(20, 1), 0);
	commit(20, 1);
	fx_serves(&files[20]);
}

UNIT_TEST(what_is_pinned_does_not_go_for_it)
{
	fill();
	for (unsigned i = 0; i < 12; i++) {
		ucm_ref ref;

		if (ucm_index_find(fx_set->index, &files[i].key, NULL, &ref))
			ck_assert_int_eq(ucm_store_pin(fx_set, ref, true), 0);
	}
	uses_to_come = 100;
	ck_assert_uint_eq(offer(20, 1), 0);
}

UNIT_TEST(without_a_policy_all_is_taken)
{
	fx_configure("only=$/a");
	fx_option("policy", "none");
	fx_option("limit", "only:64K");
	fx_option("endurance", "only:24K");
	fx_open();
	ck_assert_int_eq(ucm_store_begin(fx_set), 0);
	commit(0, 7);
	ck_assert_uint_eq(offer(8, 8), 8);
}

/* A space that has used up its quota is full, however much room there is. */
UNIT_TEST(a_quota_is_judged_like_a_full_tier)
{
	struct ucm_space *space;

	configure("only=$/a");
	open_still();
	must(!ucm_store_mkdir(fx_set, "s", 0755, 0, 0, &space));
	for (unsigned i = 0; i < NUM_ROWS(files); i++)
		files[i].key.space = space->number;
	ck_assert_int_eq(ucm_store_set_quota(fx_set, space, 8 * BYTES), 0);
	uses_to_come = 1;
	ck_assert_uint_eq(offer(20, 8), 7); /* up to the high mark */
	uses_to_come = 10;
	commit(0, 12);
	uses_to_come = 1;
	ck_assert_uint_eq(offer(28, 2), 0);
	uses_to_come = 10;
	ck_assert_uint_eq(offer(30, 2), 2);
	ck_assert_int_eq(ucm_store_set_quota(fx_set, space, 0), 0);
	uses_to_come = 1;
	ck_assert_uint_eq(offer(12, 2), 2);
}

/* ---- chains ---- */

UNIT_TEST(what_follows_a_refused_block_is_refused)
{
	fill();
	uses_to_come = 1;
	ck_assert_uint_eq(offer_after(NULL, 20, 3, true), 0);
	uses_to_come = 100;
	ck_assert_uint_eq(offer_after(&files[22].key.id, 23, 2, true), 0);
	ck_assert_uint_eq(offer(25, 1), 1);
	/* but not if it came all the same */
	commit(22, 1);
	ck_assert_uint_eq(offer_after(&files[22].key.id, 26, 2, true), 2);
}

UNIT_TEST(the_policy_hears_of_the_block_before)
{
	configure("only=$/a");
	open_still();
	commit(0, 1);
	ck_assert_uint_eq(offer_after(NULL, 1, 2, true), 2);
	ck_assert(!was_before);
	ck_assert_uint_eq(offer_after(&files[0].key.id, 3, 2, true), 2);
	ck_assert(was_before);
	/* the same of one that is about to be written */
	ck_assert_uint_eq(offer_after(&files[4].key.id, 5, 2, true), 2);
	ck_assert(was_before);
}

UNIT_TEST(what_is_there_is_not_asked_for_again)
{
	fill();
	commit(13, 1);
	uses_to_come = 1;
	ck_assert_uint_eq(offer_after(NULL, 12, 3, true), 1);
	ck_assert(!answers[0] && answers[1] && !answers[2]);
	ck_assert_uint_eq(num_asked, 2);
}

UNIT_TEST(an_offer_that_is_repeated_gets_the_same_answer)
{
	fill();
	uses_to_come = 1;
	ck_assert_uint_eq(offer(20, 2), 0);
	uses_to_come = 100;
	ck_assert_uint_eq(offer(20, 3), 1);
	ck_assert(!answers[0] && !answers[1] && answers[2]);
	ck_assert_uint_eq(num_asked, 3);
	uses_to_come = 1;
	ck_assert_uint_eq(offer(22, 1), 1);
	ck_assert_uint_eq(num_asked, 3);
}

/* ---- endurance ---- */

static const struct ucm_tier *tier(unsigned number)
{
	return &fx_set->dirs.tiers[number];
}

UNIT_TEST(what_a_tier_endures_bounds_what_is_taken)
{
	configure("only=$/a");
	fx_config.tiers[0].endurance = HOURLY(4);
	open_still();
	commit(0, 4);
	ck_assert(ucm_endurance_owed(fx_set, tier(0)) > 0.99);
	ck_assert_uint_eq(offer(8, 1), 1); /* one of which nobody owes yet */
	commit(4, 1);
	ck_assert(ucm_endurance_is_spent(fx_set, tier(0)));
	ck_assert(fx_logged("used up"));
	ck_assert_uint_eq(offer(10, 4), 0);
	/* what is written all the same is kept, and counts */
	commit(5, 1);
	fx_serves(&files[5]);
	ck_assert(ucm_endurance_owed(fx_set, tier(0)) > 1.4);
}

UNIT_TEST(copies_count_as_well)
{
	const struct ucm_move_terms move = {.to = NULL};
	struct ucm_move_terms down = move;
	ucm_ref ref;

	configure("fast=$/a:slow=$/b");
	fx_config.tiers[1].endurance = HOURLY(2);
	open_still();
	commit(0, 1);
	ck_assert(ucm_endurance_owed(fx_set, tier(1)) == 0);
	down.to = &fx_set->dirs.tiers[1];
	must(ucm_index_find(fx_set->index, &files[0].key, NULL, &ref));
	ck_assert_int_eq(ucm_evict_and_copy(fx_set, ref, &down), 0);
	ck_assert(ucm_endurance_owed(fx_set, tier(1)) > 0.49);
}

UNIT_TEST(what_is_written_through_asks_the_tier_below)
{
	configure("fast=$/a:slow=$/b");
	fx_option("write", "fast:through");
	fx_config.tiers[1].endurance = HOURLY(2);
	open_still();
	ck_assert_int_eq(ucm_movers_start(fx_set), 0);
	ck_assert_uint_eq(offer(0, 1), 1);
	commit(0, 4); /* and are below at once */
	ck_assert_uint_eq(entry_of(3).copy, 2);
	ck_assert_uint_eq(offer(8, 1), 0);
	fx_set->dirs.tiers[0].write_mode = UCM_WRITE_BACK;
	ck_assert_uint_eq(offer(9, 1), 1);
}

/* A tier below that has had enough. */
static void spend(unsigned number)
{
	ucm_endurance_wrote(fx_set, tier(number), 1 << 30);
	ck_assert(ucm_endurance_is_spent(fx_set, tier(number)));
}

UNIT_TEST(a_move_is_refused_and_the_block_goes_instead)
{
	uint64_t freed;

	configure("fast=$/a:slow=$/b");
	fx_config.tiers[1].endurance = HOURLY(2);
	open_still();
	commit(0, 4);
	spend(1);
	ck_assert_int_eq(ucm_evict_bytes(fx_set, 0, 2 * BYTES,
					 UCM_EVICTION_MOVING,
					 NULL, &freed),
			 0);
	ck_assert_uint_eq(freed, 2 * BYTES);
	ck_assert_uint_eq(fx_set->dirs.at[1]->blocks, 0);
	ck_assert_uint_eq(fx_set->blocks, 2);
	ck_assert_uint_eq(fx_set->dirs.tiers[1].stats.moves_refused, 2);
}

/* The worth of a block that is used; those above are worth 10. */
static const struct {
	uint32_t worth;
	bool stays;
} coming[] = {{9, false}, {12, false}, {13, true}};

UNIT_TEST(a_block_that_is_worth_little_more_is_not_promoted,
	  .rows = NUM_ROWS(coming))
{
	struct ucm_entry entry;

	fill();
	entry = entry_of(11);
	entry.wanted = coming[_i].worth;
	ck_assert_int_eq(ucm_evict_would_stay(fx_set, &entry, tier(0)),
			 coming[_i].stays);
}

static bool is_counted_out(void *arg)
{
	uint64_t blocks, bytes;

	(void)arg;
	ucm_jobs_count_unsaved(fx_set, &blocks, &bytes);
	return !blocks && !bytes;
}

static const struct ucm_medium_ops *ops_of_dir;
static unsigned taken_meanwhile;

static int room_and_an_offer(struct ucm_medium *medium,
			     struct ucm_medium_room *out)
{
	medium->ops = ops_of_dir;
	taken_meanwhile = offer(0, 1);
	return medium->ops->room(medium, out);
}

/* In its first moments a thread asks how much room there is, and others offer. */
UNIT_TEST(what_room_there_is_need_not_be_known)
{
	struct ucm_medium_ops ops;

	configure("only=$/a");
	open_still();
	ops_of_dir = fx_set->dirs.at[0]->ops;
	ops = *ops_of_dir;
	ops.room = room_and_an_offer;
	fx_set->dirs.at[0]->ops = &ops;
	taken_meanwhile = 0;
	ck_assert_uint_eq(offer(1, 1), 1);
	ck_assert_ptr_eq(fx_set->dirs.at[0]->ops, ops_of_dir);
	ck_assert_uint_eq(taken_meanwhile, 1);
}

/* What might have been refused stays in the fast tier, and nobody waits for it;
 * what was not offered is written below. */
UNIT_TEST(what_no_lower_tier_takes_is_not_waited_for)
{
	configure("fast=$/a:slow=$/b");
	fx_option("write", "fast:back");
	fx_config.tiers[1].endurance = HOURLY(2);
	open_told();
	fx_start();
	spend(1);
	ck_assert_uint_eq(offer(0, 2), 2);
	commit(0, 3);
	fx_wait(is_counted_out, NULL);
	ck_assert_int_eq(ucm_movers_flush(fx_set, NULL, NULL), 0);
	ck_assert_uint_eq(entry_of(0).copy, 0);
	ck_assert_uint_eq(entry_of(1).copy, 0);
	ck_assert_uint_eq(entry_of(2).copy, 2);
	ck_assert_uint_eq(fx_set->dirs.at[0]->withheld, 2);
	ck_assert_uint_eq(fx_set->dirs.at[0]->withheld_bytes, 2 * BYTES);
	fx_serves(&files[0]);
	/* what becomes of them is counted */
	ck_assert_int_eq(ucm_store_remove(fx_set, &files[0].key), 0);
	ck_assert_uint_eq(fx_set->dirs.at[0]->withheld, 1);
	ck_assert_uint_eq(fx_set->dirs.at[0]->alone, 1);
}

UNIT_TEST(one_that_is_copied_after_all_is_withheld_no_more)
{
	struct ucm_move_terms move = {.to = NULL};
	ucm_ref ref;

	configure("fast=$/a:slow=$/b");
	open_still();
	commit(0, 1);
	must(ucm_index_find(fx_set->index, &files[0].key, NULL, &ref));
	ucm_store_withhold(fx_set, ref);
	ck_assert_uint_eq(fx_set->dirs.at[0]->withheld, 1);
	move.to = &fx_set->dirs.tiers[1];
	ck_assert_int_eq(ucm_store_copy(fx_set, ref, &move, NULL), 0);
	ck_assert_uint_eq(fx_set->dirs.at[0]->withheld, 0);
	ck_assert_uint_eq(fx_set->dirs.at[0]->withheld_bytes, 0);
	ck_assert(!entry_of(0).tier_only);
	ck_assert_int_eq(ucm_store_drop_place(fx_set, ref, 1, NULL), 0);
	ck_assert_uint_eq(fx_set->dirs.at[0]->withheld, 0);
	ck_assert_uint_eq(fx_set->dirs.at[0]->alone, 1);
}

/* What files take counts, but not what there was before. */
UNIT_TEST(files_count_by_what_they_grow)
{
	configure("only=$/a");
	fx_config.tiers[0].endurance = HOURLY(2);
	open_still();
	atomic_store(&fx_set->dirs.at[0]->files, 1 << 20);
	ucm_endurance_count_files(fx_set);
	ck_assert(ucm_endurance_owed(fx_set, tier(0)) == 0);
	atomic_store(&fx_set->dirs.at[0]->files, (1 << 20) + BYTES);
	ucm_endurance_count_files(fx_set);
	atomic_store(&fx_set->dirs.at[0]->files, 1 << 20);
	ucm_endurance_count_files(fx_set);
	ck_assert(ucm_endurance_owed(fx_set, tier(0)) > 0.49 &&
		  ucm_endurance_owed(fx_set, tier(0)) < 0.51);
}
