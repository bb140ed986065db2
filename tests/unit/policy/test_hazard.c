/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_hazard.c - what the hazard policy remembers and learns of blocks, by
 * their classes.
 */
#include <config.h>

#include "fs/policy/policy.h"

#include <math.h>

#include "fs/policy/mark.h"
#include "tests/unit/policy/policy_fixture.h"

static void let_go(uint32_t now_s, size_t num, enum ucm_policy_why why)
{
	for (size_t i = 0; i < num; i++)
		policy->ops->gone(policy, now_s, asked[i].tag, &asked[i].state, why);
}

/* ---- hazard: what is remembered ---- */

static const struct {
	size_t num, again; /* blocks of the first request, and of the second */
	size_t present;	   /* of the second */
	uint32_t uses[9];  /* that the second one gives */
} groups[] = {
	/* whole groups */
	{ 8, 8, 0, { 2, 2, 2, 2, 2, 2, 2, 2 } },
	/* the third group is not full: it goes by the second */
	{ 9, 9, 0, { 2, 2, 2, 2, 2, 2, 2, 2, 2 } },
	{ 8, 6, 0, { 2, 2, 2, 2, 2, 2 } },
	/* a chain that was shorter: the second group is new */
	{ 4, 8, 0, { 2, 2, 2, 2, 1, 1, 1, 1 } },
	/* no group was full */
	{ 3, 3, 0, { 1, 1, 1 } },
	{ 3, 8, 0, { 1, 1, 1, 1, 1, 1, 1, 1 } },
	/* one that is there stands for nobody */
	{ 8, 8, 4, { 2, 2, 2, 2, 2, 2, 2, 2 } },
	{ 8, 6, 4, { 2, 2, 2, 2, 1, 1 } },
	/* alone, by itself */
	{ 1, 1, 0, { 2 } },
};

static void check_groups(int row, enum ucm_policy_why why)
{
	open_policy(&ucm_policy_hazard);
	ask(100, 50, groups[row].num, 0);
	let_go(200, groups[row].num, why);
	ask(300, 50, groups[row].again, groups[row].present);
	for (size_t i = 0; i < groups[row].again; i++)
		ck_assert_uint_eq(asked[i].state.uses, groups[row].uses[i]);
	close_policy();
}

UNIT_TEST(every_fourth_block_stands_for_its_group, .rows = NUM_ROWS(groups))
{
	check_groups(_i, UCM_POLICY_EVICTED);
	check_groups(_i, UCM_POLICY_REFUSED);
}

UNIT_TEST(what_somebody_removed_is_not_remembered)
{
	open_policy(&ucm_policy_hazard);
	ask(100, 50, 8, 0);
	let_go(200, 8, UCM_POLICY_REMOVED);
	ask(300, 50, 8, 0);
	for (unsigned i = 0; i < 8; i++)
		must(!ucm_policy_is_known(&asked[i].state));
	close_policy();
}

UNIT_TEST(a_block_that_is_back_has_no_ghost)
{
	open_policy(&ucm_policy_hazard);
	ask(100, 50, 8, 0);
	let_go(200, 8, UCM_POLICY_EVICTED);
	ask(300, 50, 8, 0);
	add_all(8);
	let_go(300, 8, UCM_POLICY_REMOVED);
	ask(400, 50, 8, 0);
	must(!ucm_policy_is_known(&asked[0].state));
	close_policy();
}

UNIT_TEST(the_place_in_the_chain_goes_on_from_the_block_before)
{
	struct ucm_policy_request request = { asked, 4, NULL };
	struct ucm_policy_state before;

	open_policy(&ucm_policy_hazard);
	ask(100, 50, 2, 0);
	before = asked[1].state;
	request.before = &before;
	for (unsigned i = 0; i < 4; i++)
		asked[i] = (struct ucm_policy_asked){ .tag = 52 + i };
	policy->ops->ask(policy, 101, &request);
	for (unsigned i = 0; i < 4; i++)
		ck_assert_uint_eq(mark_place(asked[i].state.mark),
				  (i + 2) % 4);
	policy->ops->fresh(policy, 102, 99, &before, &before);
	ck_assert_uint_eq(mark_place(before.mark), 2);
	close_policy();
}

/* What is there was asked for just before, so that its own pause says nothing:
 * what follows it gets the path and pause that it was given. */
UNIT_TEST(what_follows_is_of_the_same_request)
{
	struct ucm_policy_request request = { asked, 2, NULL };
	struct ucm_policy_state before;

	open_policy(&ucm_policy_hazard);
	ask(100, 50, 2, 0);
	ask(400, 50, 2, 2); /* after five minutes */
	before = asked[1].state;
	ck_assert_uint_eq(mark_path(before.mark), 1);
	ck_assert_uint_eq(mark_pause(before.mark), 3);
	request.before = &before;
	for (unsigned i = 0; i < 2; i++)
		asked[i] = (struct ucm_policy_asked){ .tag = 52 + i };
	policy->ops->ask(policy, 401, &request);
	for (unsigned i = 0; i < 2; i++) {
		ck_assert_uint_eq(mark_path(asked[i].state.mark), 1);
		ck_assert_uint_eq(mark_pause(asked[i].state.mark), 3);
	}
	/* much later it is another one, as far as is known */
	policy->ops->ask(policy, 440, &request);
	ck_assert_uint_eq(mark_pause(asked[1].state.mark), 1);
	close_policy();
}

/* ---- hazard: classes ---- */

static const struct {
	uint32_t pause_s;
	bool again;
	unsigned path, pause;
} paths[] = {
	{ 0, false, 1, 0 },    { 15, false, 1, 0 },  { 16, false, 1, 1 },
	{ 63, false, 1, 1 },   { 64, false, 1, 2 },  { 255, true, 2, 2 },
	{ 256, true, 2, 3 },   { 99999, false, 1, 3 },
};

UNIT_TEST(a_request_has_the_class_of_the_deepest_block_that_is_known,
	  .rows = NUM_ROWS(paths))
{
	open_policy(&ucm_policy_hazard);
	ask(1000, 1, 8, 0);
	for (unsigned i = 0; i < 8; i++) {
		ck_assert_uint_eq(mark_path(asked[i].state.mark), 0);
		must(!mark_again(asked[i].state.mark));
	}
	asked[3].state.mark |= paths[_i].again ? MARK_AGAIN : 0;
	asked[0].state.last_s = asked[1].state.last_s = 0;
	ask(1000 + paths[_i].pause_s, 1, 8, 4);
	for (unsigned i = 0; i < 8; i++) {
		uint8_t mark = asked[i].state.mark;

		ck_assert_uint_eq(mark_path(mark), paths[_i].path);
		ck_assert_uint_eq(mark_pause(mark), paths[_i].pause);
		/* blocks after a known path are of its second generation;
		 * those that are there stay of theirs */
		ck_assert_int_eq(mark_again(mark),
				 i >= 4 || (i == 3 && paths[_i].again));
		ck_assert_uint_eq(mark_place(mark), i % 4);
	}
	close_policy();
}

UNIT_TEST(a_block_without_a_request_has_the_class_of_its_parent)
{
	struct ucm_policy_state fresh;

	open_policy(&ucm_policy_hazard);
	ask(1000, 1, 4, 0);
	ask(1100, 1, 4, 4);
	policy->ops->fresh(policy, 1105, 5, &asked[3].state, &fresh);
	ck_assert_uint_eq(mark_path(fresh.mark), 1);
	ck_assert_uint_eq(mark_pause(fresh.mark), 2);
	must(mark_again(fresh.mark));
	/* long after that, the write is a request */
	policy->ops->fresh(policy, 1400, 6, &asked[3].state, &fresh);
	ck_assert_uint_eq(mark_path(fresh.mark), 1);
	ck_assert_uint_eq(mark_pause(fresh.mark), 3);
	policy->ops->fresh(policy, 1400, 7, NULL, &fresh);
	ck_assert_uint_eq(mark_path(fresh.mark), 0);
	close_policy();
}

/* ---- hazard: what is learnt ---- */

UNIT_TEST(a_rhythm_is_learnt)
{
	enum { BLOCKS = 4000, EVERY_S = 60 };
	static struct ucm_policy_state states[BLOCKS];
	struct ucm_policy_state state;
	uint32_t now_s = 1000;

	open_policy(&ucm_policy_hazard);
	for (unsigned round = 0; round < 20; round++, now_s += EVERY_S) {
		for (unsigned i = 0; i < BLOCKS; i++)
			policy->ops->use(policy, now_s, i, &states[i]);
		policy->ops->learn(policy, now_s);
	}
	now_s -= EVERY_S;
	state = states[0];
	must(policy->ops->chance(policy, &state, 20) < 0.1);
	must(policy->ops->chance(policy, &state, 200) > 0.9);
	/* the nearer the minute, the more; later, nothing is left of it */
	must(policy->ops->worth(policy, now_s + 50, &state) >
	     2 * policy->ops->worth(policy, now_s, &state));
	must(policy->ops->worth(policy, now_s + 600, &state) <
	     policy->ops->worth(policy, now_s, &state) / 4);
	close_policy();
}

UNIT_TEST(what_is_never_asked_for_again_is_worth_little)
{
	struct ucm_policy_state new = { .uses = 1 }, old;
	double before;

	open_policy(&ucm_policy_hazard);
	before = policy->ops->worth(policy, 0, &new);
	for (uint32_t i = 0; i < 20000; i++) {
		ask(i, 100 * i, 1, 0);
		if (i % 100 == 0)
			policy->ops->learn(policy, i);
	}
	old = asked[0].state;
	must(policy->ops->worth(policy, old.last_s, &old) < before / 20);
	must(policy->ops->chance(policy, &old, 1000) < 0.1);
	close_policy();
}
