/* SPDX-License-Identifier: Apache-2.0 */
/* test_fair.c - the arithmetic of a budget. */
#include <config.h>

#include "gpu/load/fair.h"

#include "tests/unit/random.h"

#define ALL UCM_FAIR_ALL
#define S INT64_C(1000000000)

UNIT_FIXTURE();

static const struct {
	uint64_t total;
	uint64_t demands[4];
	unsigned num;
	uint64_t want;
} shares[] = {
	{ 100, { 0 }, 0, 100 },                /* alone */
	{ 100, { ALL }, 1, 50 },
	{ 100, { ALL, ALL, ALL }, 3, 25 },
	{ 100, { 10 }, 1, 90 },                /* what one leaves is another's */
	{ 100, { 10, ALL }, 2, 45 },
	{ 100, { ALL, 10 }, 2, 45 },           /* in any order */
	{ 100, { 40, 40, 40 }, 3, 25 },        /* more than there is */
	{ 100, { 20, 30 }, 2, 50 },
	{ 100, { 0, 0, ALL }, 3, 50 },
	{ 100, { 50 }, 1, 50 },
	{ 0, { ALL }, 1, 0 },
	{ ALL, { ALL, 1 }, 2, ALL / 2 },       /* nothing overflows */
	{ 3, { ALL, ALL, ALL, ALL }, 4, 0 },
};

UNIT_TEST(what_is_left_is_shared_by_those_who_want_it, .rows = NUM_ROWS(shares))
{
	uint64_t demands[4];

	for (unsigned i = 0; i < shares[_i].num; i++)
		demands[i] = shares[_i].demands[i];
	ck_assert_uint_eq(ucm_fair_share(shares[_i].total, demands,
					 shares[_i].num), shares[_i].want);
}

/* Each works his share out by himself; together they take no more than there is,
 * and none that could be had is left. */
UNIT_TEST(shares_add_up_at_random)
{
	for (unsigned number = 0; number < 2000; number++) {
		uint64_t random = random_case(number), wants[8], others[8];
		uint64_t total = random_between(&random, 100, 1000000);
		unsigned num = (unsigned)random_between(&random, 1, 8);
		uint64_t sum = 0, wanted = 0;

		for (unsigned i = 0; i < num; i++) {
			wants[i] = random_between(&random, 0, 2 * total / num);
			wanted += wants[i];
		}
		for (unsigned i = 0; i < num; i++) {
			unsigned at = 0;
			uint64_t share;

			for (unsigned j = 0; j < num; j++) {
				if (j != i)
					others[at++] = wants[j];
			}
			share = ucm_fair_share(total, others, at);
			sum += wants[i] < share ? wants[i] : share;
			must_in_case(share >= total / num, number, "starved");
		}
		must_in_case(sum <= total, number, "too much");
		must_in_case(sum + num >= (wanted < total ? wanted : total),
			     number, "too little");
	}
}

static const struct {
	uint64_t rate, take;
	int64_t at_ns, until_ns; /* when it is asked, and what it says */
} waits[] = {
	{ 1000000, 0, 0, 0 },
	{ 1000000, 40000, 0, 0 },              /* 50000 are there at first */
	{ 1000000, 50000, 0, 1001 },           /* until there is some */
	{ 1000000, 1050000, 0, S + 1001 },     /* paid for afterwards */
	{ 1000000, 1050000, S / 2, S / 2 + 1001 },
	{ 1000000, 1050000, 2 * S, 0 },
	{ 0, 1, 0, 2 * S + 1 },
};

UNIT_TEST(a_bucket_says_when_it_has_some, .rows = NUM_ROWS(waits))
{
	struct ucm_bucket bucket;

	ucm_bucket_init(&bucket, waits[_i].rate, 0);
	ucm_bucket_take(&bucket, waits[_i].take);
	ucm_bucket_fill(&bucket, waits[_i].rate, waits[_i].at_ns);
	ck_assert_int_eq(ucm_bucket_until(&bucket, waits[_i].rate),
			 waits[_i].until_ns);
	ck_assert_int_eq(ucm_bucket_has_some(&bucket), !waits[_i].until_ns);
}

/* However it is asked, in the end there is what the rate gives. */
UNIT_TEST(a_bucket_keeps_its_rate)
{
	static const uint64_t sizes[] = { 1, 4096, 65536, 5000000 };

	for (unsigned i = 0; i < NUM_ROWS(sizes); i++) {
		const uint64_t rate = 100000000;
		struct ucm_bucket bucket;
		uint64_t random = random_case(i), taken = 0;
		int64_t now = 0;

		ucm_bucket_init(&bucket, rate, 0);
		while (now < 10 * S) {
			ucm_bucket_fill(&bucket, rate, now);
			for (unsigned n = 0; n < 40000 &&
			     ucm_bucket_has_some(&bucket); n++) {
				ucm_bucket_take(&bucket, sizes[i]);
				taken += sizes[i];
			}
			now += (int64_t)random_between(&random, 1, 400000);
		}
		must_in_case(taken <= rate * 10 + rate / 20 + sizes[i], i,
			     "more than the rate");
		if (sizes[i] > 1000)
			must_in_case(taken >= rate * 10 - sizes[i], i,
				     "less than the rate");
	}
}

UNIT_TEST(what_was_not_begun_is_given_back)
{
	struct ucm_bucket bucket;

	ucm_bucket_init(&bucket, 1000, 0);
	ucm_bucket_take(&bucket, 100);
	ck_assert(!ucm_bucket_has_some(&bucket));
	ucm_bucket_give(&bucket, 100);
	ck_assert(ucm_bucket_has_some(&bucket));
	ucm_bucket_fill(&bucket, 1000, -5); /* a clock of another thread */
	ck_assert(ucm_bucket_has_some(&bucket));
}
