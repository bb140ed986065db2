/* SPDX-License-Identifier: Apache-2.0 */
/* test_policy.c - what policies remember, learn and think of blocks. */
#include <config.h>

#include "fs/policy/policy.h"

#include <math.h>
#include <string.h>

#include "fs/policy/admission.h"
#include "fs/policy/ghosts.h"
#include "fs/policy/mark.h"
#include "fs/policy/monitor.h"
#include "fs/policy/rates.h"
#include "fs/policy/recent.h"
#include "tests/unit/random.h"

#define LONGEST 64

/* ---- bins ---- */

static const struct {
	uint32_t age_s;
	unsigned bin;
} bins[] = {
	{ 0, 0 },	{ 1, 2 },	{ 2, 3 },	{ 3, 4 },
	{ 4, 4 },	{ 5, 5 },	{ 6, 5 },	{ 7, 6 },
	{ 15, 8 },	{ 63, 12 },	{ 255, 16 },	{ 3600, 23 },
	{ 131070, 33 }, { 131071, 33 }, { UINT32_MAX, 33 },
};

UNIT_TEST(a_bin_is_half_a_power_of_two, .rows = NUM_ROWS(bins))
{
	ck_assert_uint_eq(rates_bin(bins[_i].age_s), bins[_i].bin);
}

UNIT_TEST(bins_are_those_of_the_logarithm)
{
	for (uint32_t age = 0; age < RATES_AGE_MAX; age++) {
		double exact = 2 * log2(1 + (double)age);

		/* next to an edge the double may be on either side of it */
		if (fabs(exact - round(exact)) > 1e-9)
			must(rates_bin(age) == (unsigned)exact);
		must(age == 0 || rates_bin(age) >= rates_bin(age - 1));
	}
}

static const struct {
	uint32_t uses;
	unsigned step;
} uses_steps[] = {
	{ 0, 0 }, { 1, 0 }, { 2, 1 }, { 3, 1 },	 { 4, 2 },
	{ 7, 2 }, { 8, 3 }, { 15, 3 }, { 16, 4 }, { UINT32_MAX, 4 },
};

UNIT_TEST(uses_count_in_powers_of_two, .rows = NUM_ROWS(uses_steps))
{
	ck_assert_uint_eq(rates_uses_step(uses_steps[_i].uses),
			  uses_steps[_i].step);
}

/* ---- the index ---- */

/* The best of all stops, by small steps through time. */
static double index_by_steps(const double *rate, const double *width,
			     unsigned from)
{
	double left = 1, time = 0, best = 0;

	for (unsigned i = from; i < RATES_BINS; i++) {
		const unsigned steps = 4000;
		double step = width[i] / steps;

		for (unsigned j = 0; j < steps; j++) {
			double after = left * exp(-rate[i] * step);

			time += step * (left + after) / 2;
			left = after;
		}
		if ((1 - left) / time > best)
			best = (1 - left) / time;
	}
	return best;
}

UNIT_TEST(the_index_is_the_best_of_all_stops)
{
	for (unsigned number = 0; number < 20; number++) {
		double rate[RATES_BINS], width[RATES_BINS], index[RATES_BINS];
		uint64_t random = random_case(number);

		for (unsigned i = 0; i < RATES_BINS; i++) {
			width[i] = exp2((i + 1) / 2.0) - exp2(i / 2.0);
			/* over six decades, but within what steps can show */
			rate[i] = pow(10, -(double)random_between(&random, 0,
								  6000) / 1000);
			rate[i] = fmin(rate[i], 20 / width[i]);
		}
		rates_gittins(rate, width, index);
		for (unsigned i = 0; i < RATES_BINS; i++) {
			double want = index_by_steps(rate, width, i);

			must_in_case(fabs(index[i] - want) < 1e-4 * want,
				     number, "index");
		}
	}
}

UNIT_TEST(at_a_constant_rate_the_index_is_the_rate)
{
	double rate[RATES_BINS], width[RATES_BINS], index[RATES_BINS];

	for (unsigned i = 0; i < RATES_BINS; i++) {
		rate[i] = 0.01;
		width[i] = exp2((i + 1) / 2.0) - exp2(i / 2.0);
	}
	rates_gittins(rate, width, index);
	for (unsigned i = 0; i < RATES_BINS; i++)
		ck_assert_double_eq_tol(index[i], 0.01, 1e-9);
}

/* A rate that is high only between one and two minutes counts before, and is
 * nothing once it has passed. */
UNIT_TEST(what_comes_later_counts_now)
{
	double rate[RATES_BINS], width[RATES_BINS], index[RATES_BINS];
	unsigned from = rates_bin(60), to = rates_bin(120);

	for (unsigned i = 0; i < RATES_BINS; i++) {
		rate[i] = i >= from && i < to ? 0.1 : 1e-9;
		width[i] = exp2((i + 1) / 2.0) - exp2(i / 2.0);
	}
	rates_gittins(rate, width, index);
	must(index[0] > 0.005);
	for (unsigned i = 1; i <= from; i++)
		must(index[i] > index[i - 1]);
	must(index[to] < 1e-6);
}

/* ---- counts ---- */

static struct rates rates;

UNIT_TEST(time_is_counted_in_every_bin_up_to_the_hit)
{
	double sum = 0;

	rates_init(&rates);
	rates_event(&rates, 7, 100);
	for (unsigned i = 0; i < RATES_BINS; i++)
		sum += rates.time_s[7][i];
	ck_assert_double_eq_tol(sum, 100, 1e-9);
	must(rates.hits[7][rates_bin(100)] == 1);
	must(rates.time_s[7][rates_bin(100) + 1] == 0);
}

UNIT_TEST(counts_are_halved_now_and_then)
{
	rates_init(&rates);
	for (unsigned i = 0; i < 40000; i++)
		rates_event(&rates, 3, 10);
	must(rates.hits[3][rates_bin(10)] == 20000);
	rates_event(&rates, 3, 10);
	must(rates.hits[3][rates_bin(10)] == 20001);
}

/* ---- ghosts ---- */

UNIT_TEST(a_ghost_is_what_was_put_but_coarser)
{
	struct ghost put = { .uses = 7, .last_s = 100003, .again = true }, got;
	struct ghosts ghosts;

	ck_assert_int_eq(ghosts_init(&ghosts, 100), 0);
	must(!ghosts_find(&ghosts, 42, 100010, &got));
	ghosts_put(&ghosts, 42, &put);
	must(ghosts_find(&ghosts, 42, 100010, &got));
	ck_assert_uint_eq(got.uses, 7);
	ck_assert_uint_eq(got.last_s, 100000);
	must(got.again);
	put = (struct ghost){ .uses = 3000, .last_s = 100020 };
	ghosts_put(&ghosts, 42, &put);
	must(ghosts_find(&ghosts, 42, 100020, &got));
	ck_assert_uint_eq(got.uses, GHOSTS_USES_MAX);
	ck_assert_uint_eq(got.last_s, 100016);
	must(!got.again);
	ghosts_drop(&ghosts, 42);
	must(!ghosts_find(&ghosts, 42, 100020, &got));
	ghosts_drop(&ghosts, 42);
	ghosts_fini(&ghosts);
}

/* How many of the hashes from..to are remembered. */
static unsigned count_ghosts(const struct ghosts *ghosts, uint64_t from,
			     uint64_t to)
{
	unsigned found = 0;

	for (uint64_t i = from; i < to; i++) {
		struct ghost ghost;

		found += ghosts_find(ghosts, policy_mix(i), 0, &ghost);
	}
	return found;
}

static void fill_ghosts(struct ghosts *ghosts, uint64_t num)
{
	const struct ghost ghost = { .uses = 1 };

	for (uint64_t i = 0; i < num; i++)
		ghosts_put(ghosts, policy_mix(i), &ghost);
}

UNIT_TEST(the_newest_ghosts_stay)
{
	struct ghosts ghosts;

	ck_assert_int_eq(ghosts_init(&ghosts, 16000), 0);
	fill_ghosts(&ghosts, 64000);
	must(count_ghosts(&ghosts, 64000 - 6000, 64000) > 5900);
	must(count_ghosts(&ghosts, 0, 32000) < 200);
	/* of names that never were */
	must(count_ghosts(&ghosts, 100000, 200000) < 100);
	ghosts_fini(&ghosts);
}

static const struct {
	uint64_t to;
	unsigned least; /* of the newest 8000 */
} resizes[] = {
	{ 32000, 7900 }, { 18000, 7900 }, { 100000, 7900 }, { 24000, 7500 },
	{ 12000, 7000 }, { 8000, 5000 },  { 1, 1 },
};

UNIT_TEST(ghosts_stay_when_there_is_room, .rows = NUM_ROWS(resizes))
{
	struct ghosts ghosts;

	ck_assert_int_eq(ghosts_init(&ghosts, 16000), 0);
	fill_ghosts(&ghosts, 8000);
	ck_assert_int_eq(ghosts_resize(&ghosts, resizes[_i].to), 0);
	must(count_ghosts(&ghosts, 0, 8000) >= resizes[_i].least);
	fill_ghosts(&ghosts, 100);
	must(count_ghosts(&ghosts, 0, 100) >= resizes[_i].least / 100);
	ghosts_fini(&ghosts);
}

/* ---- the sample ---- */

static struct rates_open waits;

static unsigned count_waits(struct monitor *monitor, uint32_t now_s)
{
	unsigned num = 0;

	memset(&waits, 0, sizeof(waits));
	monitor_waits(monitor, now_s, &waits);
	for (unsigned c = 0; c < RATES_CLASSES; c++) {
		for (unsigned i = 0; i < RATES_BINS; i++)
			num += waits.waits[c][i];
	}
	return num;
}

UNIT_TEST(the_sample_is_an_even_share_and_stays_bounded)
{
	struct monitor monitor;
	unsigned every;

	ck_assert_int_eq(monitor_init(&monitor), 0);
	for (uint64_t i = 0; i < 4000000; i++) {
		struct monitored was;
		uint64_t hash = policy_mix(i);

		if (monitor_has(&monitor, hash))
			must(!monitor_ask(&monitor, hash, 1, 5, &was));
	}
	every = monitor.every;
	must(monitor.num <= MONITOR_FULL);
	must(every > MONITOR_EVERY && !(every & (every - 1)));
	must(fabs(count_waits(&monitor, 2) * (double)every / 4e6 - 1) < .05);
	/* those that it has are still known, with their time and class */
	for (uint64_t i = 0; i < 4000000; i++) {
		struct monitored was;
		uint64_t hash = policy_mix(i);

		if (!monitor_has(&monitor, hash))
			continue;
		must(monitor_ask(&monitor, hash, 9, 6, &was));
		must(was.last_s == 1 && was.class == 5);
	}
	must(count_waits(&monitor, RATES_AGE_MAX) > 0);
	ck_assert_uint_eq(count_waits(&monitor, RATES_AGE_MAX + 9), 0);
	ck_assert_uint_eq(count_waits(&monitor, 10), 0);
	monitor_fini(&monitor);
}

/* ---- states of blocks that may be written soon ---- */

static struct recent recent;

UNIT_TEST(what_a_request_gave_is_taken_once)
{
	const struct ucm_policy_state given = { .last_s = 100, .uses = 3 };
	struct ucm_policy_state out = { 0 };

	recent_put(&recent, 7, &given);
	must(!recent_take(&recent, 7 + RECENT_PLACES, 130, &out));
	must(recent_take(&recent, 7, 130, &out));
	ck_assert_uint_eq(out.uses, 3);
	must(!recent_take(&recent, 7, 130, &out));
}

UNIT_TEST(what_a_request_gave_is_not_kept_for_long)
{
	const struct ucm_policy_state given = { .last_s = 100, .uses = 3 };
	struct ucm_policy_state out;

	recent_put(&recent, 7, &given);
	must(!recent_take(&recent, 7, 100 + RECENT_MAX_S + 1, &out));
	must(recent_take(&recent, 7, 100 + RECENT_MAX_S, &out));
}

/* ---- policies ---- */

static const struct ucm_policy_ops *const all[] = {
	&ucm_policy_hazard, &ucm_policy_lru,
};

static struct ucm_policy *policy;
static struct ucm_policy_asked asked[LONGEST];

static void open_policy(const struct ucm_policy_ops *ops)
{
	ck_assert_int_eq(ucm_policy_new(ops, 1, 1000, &policy), 0);
}

static void close_policy(void)
{
	ucm_policy_free(policy);
	policy = NULL;
}

/* Ask for the blocks tag, tag + 1, ...; those that are there keep their
 * states in asked[]. */
static void ask(uint32_t now_s, uint64_t tag, size_t num, size_t present)
{
	struct ucm_policy_request request = { asked, num, NULL };

	for (size_t i = 0; i < num; i++) {
		asked[i].tag = tag + i;
		asked[i].present = i < present;
	}
	ucm_policy_ask(policy, now_s, &request);
}

static void add_all(size_t num)
{
	for (size_t i = 0; i < num; i++)
		ucm_policy_added(policy, asked[i].tag, &asked[i].state);
}

static void let_go(uint32_t now_s, size_t num, enum ucm_policy_why why)
{
	for (size_t i = 0; i < num; i++)
		ucm_policy_gone(policy, now_s, asked[i].tag, &asked[i].state,
				why);
}

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

		must(isfinite(ucm_policy_worth(policy, 0, &last)));
		must(isfinite(ucm_policy_worth(policy, UINT32_MAX, &state)));
		must(ucm_policy_chance(policy, &state, UINT32_MAX) <= 1);
		must(ucm_policy_chance(policy, &last, 0) >= 0);
		ucm_policy_added(policy, mark, &state);
		ucm_policy_use(policy, 9, mark, &state);
		must(state.uses == 1 && state.last_s == 9);
		ucm_policy_use(policy, 10, mark, &last);
		must(last.uses == UINT32_MAX && last.last_s == 10);
		ucm_policy_gone(policy, 11, mark, &last, UCM_POLICY_EVICTED);
	}
	ucm_policy_learn(policy, 12);
	ck_assert_int_eq(ucm_policy_resize(policy, 1), 0);
	ck_assert_int_eq(ucm_policy_resize(policy, 5000), 0);
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
		double worth = ucm_policy_worth(policy, 1000000, &state);

		must(worth <= before);
		before = worth;
	}
	close_policy();
}

UNIT_TEST(a_clock_that_jumps_back_makes_blocks_new, .rows = NUM_ROWS(all))
{
	struct ucm_policy_state state = { .last_s = 5000, .uses = 1 };

	open_policy(all[_i]);
	must(ucm_policy_worth(policy, 5000, &state) ==
	     ucm_policy_worth(policy, 10, &state));
	ask(5000, 1, 8, 0);
	add_all(8);
	ask(10, 1, 8, 8);
	for (unsigned i = 0; i < 8; i++)
		must(asked[i].state.last_s == 10 && asked[i].state.uses == 2);
	ucm_policy_learn(policy, 10);
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
	ucm_policy_use(policy, 205, 1, state);
	ck_assert_uint_eq(state->uses, 2);
	ck_assert_uint_eq(state->last_s, 200);
	ucm_policy_use(policy, 206, 1, state);
	ck_assert_uint_eq(state->uses, 3);
	ck_assert_uint_eq(state->last_s, 206);
	ucm_policy_use(policy, 206, 1, state);
	ck_assert_uint_eq(state->uses, 3);
	/* too late to be the request's */
	ask(300, 1, 1, 1);
	ucm_policy_use(policy, 1300, 1, state);
	ck_assert_uint_eq(state->uses, 5);
	close_policy();
}

UNIT_TEST(a_block_is_written_with_the_state_that_its_request_gave,
	  .rows = NUM_ROWS(all))
{
	struct ucm_policy_state fresh;

	open_policy(all[_i]);
	ask(100, 1, 8, 0);
	ucm_policy_fresh(policy, 130, 6, NULL, &fresh);
	ck_assert_uint_eq(fresh.uses, asked[5].state.uses);
	ck_assert_uint_eq(mark_place(fresh.mark),
			  mark_place(asked[5].state.mark));
	must(!ucm_policy_is_known(&fresh));
	/* an open after that is another use */
	ucm_policy_use(policy, 140, 6, &fresh);
	ck_assert_uint_eq(fresh.uses, 2);
	close_policy();
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
	ucm_policy_ask(policy, 101, &request);
	for (unsigned i = 0; i < 4; i++)
		ck_assert_uint_eq(mark_place(asked[i].state.mark),
				  (i + 2) % 4);
	ucm_policy_fresh(policy, 102, 99, &before, &before);
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
	ucm_policy_ask(policy, 401, &request);
	for (unsigned i = 0; i < 2; i++) {
		ck_assert_uint_eq(mark_path(asked[i].state.mark), 1);
		ck_assert_uint_eq(mark_pause(asked[i].state.mark), 3);
	}
	/* much later it is another one, as far as is known */
	ucm_policy_ask(policy, 440, &request);
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
	ucm_policy_fresh(policy, 1105, 5, &asked[3].state, &fresh);
	ck_assert_uint_eq(mark_path(fresh.mark), 1);
	ck_assert_uint_eq(mark_pause(fresh.mark), 2);
	must(mark_again(fresh.mark));
	/* long after that, the write is a request */
	ucm_policy_fresh(policy, 1400, 6, &asked[3].state, &fresh);
	ck_assert_uint_eq(mark_path(fresh.mark), 1);
	ck_assert_uint_eq(mark_pause(fresh.mark), 3);
	ucm_policy_fresh(policy, 1400, 7, NULL, &fresh);
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
			ucm_policy_use(policy, now_s, i, &states[i]);
		ucm_policy_learn(policy, now_s);
	}
	now_s -= EVERY_S;
	state = states[0];
	must(ucm_policy_chance(policy, &state, 20) < 0.1);
	must(ucm_policy_chance(policy, &state, 200) > 0.9);
	/* the nearer the minute, the more; later, nothing is left of it */
	must(ucm_policy_worth(policy, now_s + 50, &state) >
	     2 * ucm_policy_worth(policy, now_s, &state));
	must(ucm_policy_worth(policy, now_s + 600, &state) <
	     ucm_policy_worth(policy, now_s, &state) / 4);
	close_policy();
}

UNIT_TEST(what_is_never_asked_for_again_is_worth_little)
{
	struct ucm_policy_state new = { .uses = 1 }, old;
	double before;

	open_policy(&ucm_policy_hazard);
	before = ucm_policy_worth(policy, 0, &new);
	for (uint32_t i = 0; i < 20000; i++) {
		ask(i, 100 * i, 1, 0);
		if (i % 100 == 0)
			ucm_policy_learn(policy, i);
	}
	old = asked[0].state;
	must(ucm_policy_worth(policy, old.last_s, &old) < before / 20);
	must(ucm_policy_chance(policy, &old, 1000) < 0.1);
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
	worth = ucm_policy_worth(policy, 100, &fresh);
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
		chance = ucm_policy_chance(policy, &fresh, 300);
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
