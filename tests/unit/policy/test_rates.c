/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rates.c - bins, rates, ghosts and samples, from which the hazard policy
 * learns.
 */
#include <config.h>

#include "fs/policy/policy.h"

#include <math.h>
#include <string.h>

#include "fs/policy/ghosts.h"
#include "fs/policy/mark.h"
#include "fs/policy/monitor.h"
#include "fs/policy/rates.h"
#include "fs/policy/recent.h"
#include "tests/unit/random.h"

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
