/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_iobudget.c - loaders that keep a rate together, in a time that is ours:
 * who gets how much, and who comes first.
 */
#include <config.h>

#include "gpu/load/budget/iobudget.h"

#include <string.h>

#include "tests/unit/load/budget_fixture.h"

/* By itself. */
static struct ucm_iobudget *alone(uint64_t rate)
{
	return open_with(&(struct ucm_limits){ .rate = rate }, NULL);
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

/* ---- the rate ---- */

UNIT_TEST(one_alone_has_all)
{
	struct taker *one;

	start_daemon(RATE, 0);
	one = add();
	run(S);
	run(S);
	check_part(one->taken, RATE, 97, 103);
	check_part(atomic_load(&memory->bytes), 2 * RATE, 97, 106);
}

/* What there was no time for until now, and not more. */
UNIT_TEST(unused_time_is_saved_up_for_a_moment)
{
	struct taker *one;

	start_daemon(RATE, 0);
	one = add();
	run(S);
	now += 10 * S;
	run(MS);
	check_part(one->taken, RATE, 5, 6);
}

/* In bytes, whatever the size of their pieces. */
static const uint64_t pieces[][4] = {
	{ SOME, SOME, SOME, SOME },
	{ SOME / 16, SOME, 4 * SOME, 16 * SOME },
};

UNIT_TEST(four_have_a_quarter_each, .rows = NUM_ROWS(pieces))
{
	start_daemon(RATE, 0);
	for (unsigned i = 0; i < 4; i++)
		add()->piece = pieces[_i][i];
	run(2 * S);
	run(4 * S);
	check_part(taken_by_all(), 4 * RATE, 97, 103);
	for (unsigned i = 0; i < 4; i++)
		check_part(takers[i].taken, taken_by_all(), 23, 27);
}

UNIT_TEST(what_one_does_not_use_is_for_the_others)
{
	struct taker *light;

	start_daemon(RATE, 0);
	light = add();
	add();
	add();
	light->every_ns = 10 * MS; /* about a tenth of the rate */
	run(2 * S);
	run(S);
	check_part(light->taken, RATE, 6, 11);
	check_part(taken_by_all(), RATE, 97, 103);
	check_part(takers[1].taken, taken_by_all(), 42, 49);
	check_part(takers[2].taken, taken_by_all(), 42, 49);
}

/* Three load in pieces of 4 MiB, each of which takes 64 ms of the rate; and what is
 * owed for the last load does not keep the next one waiting. */
UNIT_TEST(a_small_load_waits_for_a_slice_of_each_of_the_others, .rows = 2)
{
	struct taker *small;

	start_daemon(RATE, 0);
	for (unsigned i = 0; i < 3; i++)
		add()->piece = 64 * SOME;
	run(2 * S);
	small = add();
	small->piece = _i ? 16 * SOME : SOME;
	small->every_ns = 100 * MS;
	run(5 * S);
	ck_assert_uint_ge(small->taken, 45 * small->piece);
	ck_assert_int_le(small->most_ns, 4 * UCM_IOBUDGET_SLICE_NS);
}

/* It ends in the middle of what it does, and nobody hears of it. */
UNIT_TEST(one_that_was_killed_leaves_nothing)
{
	start_daemon(RATE, 0);
	for (unsigned i = 0; i < 4; i++)
		add()->piece = 16 * SOME;
	run(S);
	takers[3].dead = true;
	run(S);
	check_part(taken_by_all(), RATE, 97, 103);
	for (unsigned i = 0; i < 3; i++)
		check_part(takers[i].taken, taken_by_all(), 31, 36);
	takers[3].dead = false; /* it was only stopped */
	run(S);
	run(S);
	for (unsigned i = 0; i < 4; i++)
		check_part(takers[i].taken, taken_by_all(), 23, 27);
}

/* As saves that are skipped, and loads that find no staging memory. */
UNIT_TEST(what_is_given_back_costs_nothing)
{
	struct taker *one;
	int64_t until;

	start_daemon(RATE, 0);
	one = add();
	for (unsigned i = 0; i < 10000; i++) {
		ck_assert(ucm_iobudget_take(one->budget, UCM_IOBUDGET_SAVE,
					    SOME, now, &until));
		ucm_iobudget_give_back(one->budget, SOME);
	}
	ck_assert_int_lt(atomic_load(&memory->tat_ns), now);
	run(S);
	check_part(one->taken, RATE, 97, 107);
}

/* Nor is it saved up for long. */
UNIT_TEST(little_is_kept_of_what_is_given_back)
{
	struct taker *one;
	int64_t until;

	start_daemon(RATE, 0);
	one = add();
	ck_assert(ucm_iobudget_take(one->budget, UCM_IOBUDGET_SAVE, 1, now,
				    &until));
	ucm_iobudget_give_back(one->budget, RATE);
	atomic_store(&memory->tat_ns, now + 500 * MS); /* and no more is had */
	run(MS);
	check_part(one->taken, RATE, 4, 6);
}

UNIT_TEST(nothing_is_limited_without_a_budget)
{
	struct ucm_error error;
	struct ucm_iobudget *none = (void *)&error;
	const struct ucm_limits own = { .rate = 0 };

	ck_assert_int_eq(ucm_iobudget_open(&own, NULL, &none, &error), 0);
	ck_assert_ptr_null(none);
	ck_assert(ucm_iobudget_take(NULL, UCM_IOBUDGET_SAVE, 1, now, NULL));
	ucm_iobudget_enter(NULL, 1);
	ucm_iobudget_leave(NULL, 1);
	ucm_iobudget_begin(NULL, UCM_IOBUDGET_SAVE, 1, now);
	ucm_iobudget_give_back(NULL, 1);
	ck_assert_int_eq(ucm_iobudget_pay(NULL, now), 0);
	ck_assert(!ucm_iobudget_must_look(NULL, now));
	ucm_iobudget_close(NULL);
}

/* ---- limits of a loader ---- */

static bool may_take(struct ucm_iobudget *budget, uint64_t bytes)
{
	int64_t until = 0;
	bool may = ucm_iobudget_take(budget, UCM_IOBUDGET_DEMAND, bytes, now,
				     &until);

	if (!may) {
		ck_assert_int_gt(until, now);
		ck_assert_int_le(until, now + 10 * MS);
	}
	return may;
}

/* Of its rate and the node's the lesser one holds. */
UNIT_TEST(a_loader_has_a_rate_of_its_own, .rows = 2)
{
	const struct ucm_limits own = { .rate = RATE / 4 };

	if (_i)
		start_daemon(RATE, 0);
	open_with(&own, _i ? fx_path("$/s") : NULL);
	run(S);
	run(S);
	check_part(takers[0].taken, RATE / 4, 97, 103);
}

static const struct {
	uint64_t own, node;
} flights[] = { { 10, 0 }, { 10, 20 }, { 20, 10 }, { 0, 10 } };

/* What is longer than the limit goes alone. */
UNIT_TEST(a_loader_has_so_much_in_flight, .rows = NUM_ROWS(flights))
{
	const struct ucm_limits own = { .in_flight = flights[_i].own };
	struct ucm_iobudget *one;

	start_daemon(0, flights[_i].node);
	one = open_with(&own, fx_path("$/s"));
	ck_assert(may_take(one, 11));
	ucm_iobudget_enter(one, 11);
	ck_assert(!may_take(one, 1));
	ucm_iobudget_leave(one, 11);
	ck_assert(may_take(one, 4));
	ucm_iobudget_enter(one, 4);
	ck_assert(!may_take(one, 7));
	ck_assert(may_take(one, 6));
	ucm_iobudget_leave(one, 4);
}

/* One that was killed could not take them back. */
UNIT_TEST(bytes_in_flight_are_each_loaders_own)
{
	struct ucm_iobudget *two[2];

	start_daemon(0, 10);
	for (unsigned i = 0; i < 2; i++) {
		two[i] = add()->budget;
		ck_assert(may_take(two[i], 10));
		ucm_iobudget_enter(two[i], 10);
	}
	for (unsigned i = 0; i < 2; i++) {
		ck_assert(!may_take(two[i], 1));
		ucm_iobudget_leave(two[i], 10);
	}
}

/* ---- who comes first in a loader ---- */

/* Each kind from that one on asks every millisecond, as engines of one loader do;
 * the most urgent one has the first word, or the last. */
static void run_classes(uint64_t taken[UCM_IOBUDGET_CLASSES], unsigned from,
			bool last)
{
	struct ucm_iobudget *budget = takers[0].budget;
	int64_t end = now + 2 * S, until;

	memset(taken, 0, UCM_IOBUDGET_CLASSES * sizeof(*taken));
	for (; now < end; now += MS) {
		for (unsigned i = from; i < UCM_IOBUDGET_CLASSES; i++) {
			unsigned class = last ? UCM_IOBUDGET_CLASSES - 1 +
							from - i : i;

			while (ucm_iobudget_take(budget,
						 (enum ucm_iobudget_class)class,
						 SOME, now, &until)) {
				ucm_iobudget_begin(
					budget, (enum ucm_iobudget_class)class,
					SOME, now);
				taken[class] += SOME;
			}
		}
	}
}

UNIT_TEST(demand_comes_first_and_the_rest_is_not_forgotten, .rows = 2)
{
	uint64_t taken[UCM_IOBUDGET_CLASSES], sum;

	alone(RATE);
	run_classes(taken, UCM_IOBUDGET_DEMAND, _i);
	run_classes(taken, UCM_IOBUDGET_DEMAND, _i);
	sum = taken[0] + taken[1] + taken[2];
	check_part(sum, 2 * RATE, 97, 103);
	check_part(taken[UCM_IOBUDGET_DEMAND], sum, 70, 92);
	check_part(taken[UCM_IOBUDGET_SAVE], sum, 5, 18);
	check_part(taken[UCM_IOBUDGET_LOW], sum, 2, 12);
	run_classes(taken, UCM_IOBUDGET_LOW, _i); /* nobody is in a hurry */
	check_part(taken[1] + taken[2], 2 * RATE, 90, 103);
}

/* One that was refused and gives up keeps nobody waiting for long. */
UNIT_TEST(who_has_given_up_is_not_waited_for)
{
	struct ucm_iobudget *budget = alone(RATE);
	int64_t until, began;

	while (ucm_iobudget_take(budget, UCM_IOBUDGET_DEMAND, SOME, now,
				 &until))
		;
	ck_assert(!ucm_iobudget_take(budget, UCM_IOBUDGET_SAVE, SOME, now,
				     &until));
	began = now;
	do
		now += MS;
	while (!ucm_iobudget_take(budget, UCM_IOBUDGET_LOW, SOME, now, &until));
	ck_assert_int_le(now - began, 60 * MS);
	now += 120 * MS; /* the save would be due */
	ck_assert(ucm_iobudget_take(budget, UCM_IOBUDGET_DEMAND, SOME, now,
				    &until));
}

/* How long is it refused, while demand takes all there is and begins nothing? */
static int64_t until_due(struct ucm_iobudget *budget,
			 enum ucm_iobudget_class class)
{
	int64_t until, began = now;

	while (!ucm_iobudget_take(budget, class, SOME, now, &until)) {
		now += MS;
		if (!ucm_iobudget_take(budget, UCM_IOBUDGET_DEMAND, SOME, now,
				       &until))
			continue;
		ucm_iobudget_give_back(budget, SOME); /* no slot */
		while (ucm_iobudget_take(budget, UCM_IOBUDGET_DEMAND, SOME,
					 now, &until))
			; /* nothing is left for others */
	}
	return now - began;
}

static const struct {
	enum ucm_iobudget_class class;
	int64_t age_ns;
} later[] = {
	{ UCM_IOBUDGET_LOW, 500 * MS },
	{ UCM_IOBUDGET_SAVE, 100 * MS },
};

/* Nothing is owed for what was given back, and it was nobody's turn. */
UNIT_TEST(what_is_given_back_was_no_turn, .rows = NUM_ROWS(later))
{
	enum ucm_iobudget_class class = later[_i].class;
	struct ucm_iobudget *budget = alone(RATE);
	int64_t until;

	while (ucm_iobudget_take(budget, UCM_IOBUDGET_DEMAND, SOME, now,
				 &until))
		;
	ck_assert_int_ge(until_due(budget, class), later[_i].age_ns);
	ucm_iobudget_give_back(budget, SOME); /* no slot, either */
	now += MS;
	ck_assert(!ucm_iobudget_take(budget, UCM_IOBUDGET_DEMAND, SOME, now,
				     &until));
	ck_assert(ucm_iobudget_take(budget, class, SOME, now, &until));
	ucm_iobudget_begin(budget, class, SOME, now);
	now += MS;
	ck_assert(ucm_iobudget_take(budget, UCM_IOBUDGET_DEMAND, SOME, now,
				    &until));
}
