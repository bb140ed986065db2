/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_policy.c - what all policies think of blocks, and which blocks they
 * admit.
 */
#include <config.h>

#include "fs/policy/policy.h"

#include <math.h>

#include "fs/policy/admission.h"
#include "fs/policy/mark.h"
#include "fs/policy/rates.h"
#include "tests/unit/policy/policy_fixture.h"

/* ---- policies ---- */

static const struct ucm_policy_ops *const all[] = {
	&ucm_policy_hazard, &ucm_policy_lru,
};

UNIT_TEST(policies_have_names)
{
	for (unsigned i = 0; i < NUM_ROWS(all); i++) {
		ck_assert_ptr_eq(ucm_policy_find(all[i]->name), all[i]);
		ck_assert_str_eq(ucm_policy_name(i), all[i]->name);
	}
	ck_assert_ptr_null(ucm_policy_name(NUM_ROWS(all)));
	ck_assert_ptr_null(ucm_policy_find("mru"));
	ck_assert_ptr_nonnull(ucm_policy_find(UCM_POLICY_DEFAULT));
}

UNIT_TEST(any_state_will_do, .rows = NUM_ROWS(all))
{
	open_policy(all[_i]);
	for (unsigned mark = 0; mark < 256; mark++) {
		struct ucm_policy_state state = { .mark = (uint8_t)mark };
		struct ucm_policy_state last = { UINT32_MAX, UINT32_MAX,
						 (uint8_t)mark };

		must(isfinite(policy->ops->worth(policy, 0, &last)));
		must(isfinite(policy->ops->worth(policy, UINT32_MAX, &state)));
		must(policy->ops->chance(policy, &state, UINT32_MAX) <= 1);
		must(policy->ops->chance(policy, &last, 0) >= 0);
		policy->ops->added(policy, mark, &state);
		policy->ops->use(policy, 9, mark, &state);
		must(state.uses == 1 && state.last_s == 9);
		policy->ops->use(policy, 10, mark, &last);
		must(last.uses == UINT32_MAX && last.last_s == 10);
		policy->ops->gone(policy, 11, mark, &last, UCM_POLICY_EVICTED);
	}
	policy->ops->learn(policy, 12);
	ck_assert_int_eq(policy->ops->resize(policy, 1), 0);
	ck_assert_int_eq(policy->ops->resize(policy, 5000), 0);
	close_policy();
	ucm_policy_free(NULL);
}

UNIT_TEST(with_nothing_seen_the_order_is_that_of_last_use,
	  .rows = NUM_ROWS(all))
{
	double before = INFINITY;

	open_policy(all[_i]);
	for (uint32_t age = 0; age < RATES_AGE_MAX; age += 1 + age / 2) {
		struct ucm_policy_state state = { 1000000 - age, 1, 0 };
		double worth = policy->ops->worth(policy, 1000000, &state);

		must(worth <= before);
		before = worth;
	}
	close_policy();
}

UNIT_TEST(a_clock_that_jumps_back_makes_blocks_new, .rows = NUM_ROWS(all))
{
	struct ucm_policy_state state = { .last_s = 5000, .uses = 1 };

	open_policy(all[_i]);
	must(policy->ops->worth(policy, 5000, &state) ==
	     policy->ops->worth(policy, 10, &state));
	ask(5000, 1, 8, 0);
	add_all(8);
	ask(10, 1, 8, 8);
	for (unsigned i = 0; i < 8; i++)
		must(asked[i].state.last_s == 10 && asked[i].state.uses == 2);
	policy->ops->learn(policy, 10);
	close_policy();
}

UNIT_TEST(the_open_after_a_request_is_the_same_use, .rows = NUM_ROWS(all))
{
	struct ucm_policy_state *state = &asked[0].state;

	open_policy(all[_i]);
	ask(100, 1, 1, 0);
	add_all(1);
	ask(200, 1, 1, 1);
	ck_assert_uint_eq(state->uses, 2);
	policy->ops->use(policy, 205, 1, state);
	ck_assert_uint_eq(state->uses, 2);
	ck_assert_uint_eq(state->last_s, 200);
	policy->ops->use(policy, 206, 1, state);
	ck_assert_uint_eq(state->uses, 3);
	ck_assert_uint_eq(state->last_s, 206);
	policy->ops->use(policy, 206, 1, state);
	ck_assert_uint_eq(state->uses, 3);
	/* too late to be the request's */
	ask(300, 1, 1, 1);
	policy->ops->use(policy, 1300, 1, state);
	ck_assert_uint_eq(state->uses, 5);
	close_policy();
}

UNIT_TEST(a_block_is_written_with_the_state_that_its_request_gave,
	  .rows = NUM_ROWS(all))
{
	struct ucm_policy_state fresh;

	open_policy(all[_i]);
	ask(100, 1, 8, 0);
	policy->ops->fresh(policy, 130, 6, NULL, &fresh);
	ck_assert_uint_eq(fresh.uses, asked[5].state.uses);
	ck_assert_uint_eq(mark_place(fresh.mark),
			  mark_place(asked[5].state.mark));
	must(!ucm_policy_is_known(&fresh));
	/* an open after that is another use */
	policy->ops->use(policy, 140, 6, &fresh);
	ck_assert_uint_eq(fresh.uses, 2);
	close_policy();
}

/* ---- admission ---- */

UNIT_TEST(a_block_that_is_worth_less_than_the_victim_is_refused)
{
	struct ucm_policy_state fresh = { .last_s = 100, .uses = 1 };
	struct ucm_admission admission;
	double worth, little_more, more;

	open_policy(&ucm_policy_hazard);
	ucm_admission_init(&admission, 0, 0);
	worth = policy->ops->worth(policy, 100, &fresh);
	little_more = 1.04 * worth;
	more = 1.06 * worth;
	must(ucm_admission_admits(&admission, policy, 100, &fresh, NULL));
	must(ucm_admission_admits(&admission, policy, 100, &fresh, &worth));
	must(ucm_admission_admits(&admission, policy, 100, &fresh,
				  &little_more));
	must(!ucm_admission_admits(&admission, policy, 100, &fresh, &more));
	close_policy();
	open_policy(&ucm_policy_lru);
	must(ucm_admission_admits(&admission, policy, 100, &fresh, &more));
	close_policy();
}

UNIT_TEST(a_threshold_lets_in_what_is_likely_or_known)
{
	struct ucm_policy_state fresh = { .last_s = 100, .uses = 1 };
	struct ucm_policy_state known = { .last_s = 100, .uses = 2 };
	struct ucm_admission admission;
	double chance;

	open_policy(&ucm_policy_hazard);
	for (double by = -0.01; by < 0.02; by += 0.02) {
		ucm_admission_init(&admission, 0, 0);
		for (unsigned i = 0; i < 10000; i++)
			ucm_admission_evicted(&admission, 300);
		chance = policy->ops->chance(policy, &fresh, 300);
		must(chance > 0.01 && chance < 0.99);
		admission.threshold = chance + by;
		ck_assert_int_eq(ucm_admission_admits(&admission, policy, 100,
						      &fresh, NULL), by < 0);
		must(ucm_admission_admits(&admission, policy, 100, &known,
					  NULL));
	}
	close_policy();
}

UNIT_TEST(no_more_than_a_day_is_owed)
{
	struct ucm_admission admission;

	ucm_admission_init(&admission, 0, 86400);
	ucm_admission_wrote(&admission, 0, 3600);
	ck_assert(ucm_admission_owed(&admission, 0) == 1);
	ck_assert(ucm_admission_owed(&admission, 1800) == 0.5);
	ucm_admission_wrote(&admission, 1800, 86400 * 30);
	ck_assert(ucm_admission_owed(&admission, 1800) == 24);
	ck_assert(ucm_admission_owed(&admission, 1800 + 86400) == 0);
	/* nothing is saved up */
	ucm_admission_wrote(&admission, 900000, 3600);
	ck_assert(ucm_admission_owed(&admission, 900000) == 1);
	ucm_admission_init(&admission, 0.5, 0);
	ucm_admission_wrote(&admission, 0, 1 << 30);
	ck_assert(ucm_admission_owed(&admission, 0) == 0);
}

/* 1 GB a day: written as fast as it is let in, for three days. */
UNIT_TEST(a_budget_is_kept, .rows = NUM_ROWS(all))
{
	const uint64_t block = 100000, day = 1000000000;
	struct ucm_policy_state fresh = { .uses = 1 };
	struct ucm_admission admission;
	uint64_t wrote = 0;

	open_policy(all[_i]);
	ucm_admission_init(&admission, 0, day);
	for (uint32_t now_s = 0; now_s < 3 * 86400; now_s++) {
		fresh.last_s = now_s;
		fresh.uses = 1 + now_s % 2;
		if (!ucm_admission_admits(&admission, policy, now_s, &fresh,
					  NULL))
			continue;
		ucm_admission_wrote(&admission, now_s, block);
		wrote += block;
	}
	must(wrote > 3 * day * 9 / 10);
	must(wrote <= 3 * day + day / 24 + block);
	/* a clock that jumps back neither pays nor blocks for ever */
	ucm_admission_wrote(&admission, 5, day);
	must(!ucm_admission_admits(&admission, policy, 6, &fresh, NULL));
	must(ucm_admission_admits(&admission, policy, 5 + 86400 + 86400,
				  &fresh, NULL));
	close_policy();
}

UNIT_TEST(a_quiet_day_pays_for_no_flood)
{
	const uint64_t block = 100000, day = 1000000000;
	struct ucm_policy_state fresh = { .uses = 1 };
	struct ucm_admission admission;
	uint64_t wrote = 0;

	open_policy(&ucm_policy_lru);
	ucm_admission_init(&admission, 0, day);
	ucm_admission_wrote(&admission, 0, block);
	while (ucm_admission_admits(&admission, policy, 86400, &fresh, NULL)) {
		ucm_admission_wrote(&admission, 86400, block);
		wrote += block;
		must(wrote <= day / 24 + block);
	}
	close_policy();
}
