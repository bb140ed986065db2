/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_lease.c - leases: how many, how long, and for whom.
 */
#include <config.h>

#include "fs/store/lease.h"

#include <errno.h>

#include "tests/unit/unit.h"

static struct ucm_leases leases;

static void setup(void)
{
	ucm_leases_init(&leases, 1 << 20, 600);
}

static void teardown(void)
{
	ucm_leases_fini(&leases);
}

static bool held(struct ucm_leases *of, ucm_ref ref, int64_t now_ms)
{
	int64_t left_ms;

	return ucm_lease_ask(of, ref, now_ms, &left_ms) > 0;
}

UNIT_FIXTURE(.setup = setup, .teardown = teardown);

/* Many more than the table's first size, most of which have run out. */
UNIT_TEST(leases_run_out_and_make_room)
{
	const int64_t now = 10001;

	for (ucm_ref ref = 1; ref <= 10000; ref++)
		ck_assert_int_eq(ucm_lease_take(&leases, ref, 1, (int64_t)ref,
						ref % 100 ? 1 : 60000, false),
				 0);
	for (ucm_ref ref = 1; ref <= 10000; ref++)
		ck_assert(held(&leases, ref, now) == !(ref % 100));
	ck_assert_uint_le(leases.room, 1024);
}

UNIT_TEST(a_lease_is_never_shortened)
{
	ck_assert_int_eq(ucm_lease_take(&leases, 7, 1, 0, 1000, false), 0);
	ck_assert_int_eq(ucm_lease_take(&leases, 7, 1, 0, 500, false), 0);
	ck_assert(held(&leases, 7, 999));
	ck_assert(!held(&leases, 7, 1000));
	ck_assert(!held(&leases, 8, 0));
}

UNIT_TEST(a_lease_of_another_user_holds_as_well)
{
	ck_assert_int_eq(ucm_lease_take(&leases, 7, 1, 0, 1000, false), 0);
	ck_assert_int_eq(ucm_lease_take(&leases, 7, 2, 0, 2000, false), 0);
	ck_assert(held(&leases, 7, 1999));
	ck_assert(!held(&leases, 7, 2000));
}

/* One user and one block; a lease is at most 600 s old. At that time, for so
 * long (in s): is it given? */
static const struct {
	int64_t at, lease;
	int err;
} renewals[] = {
    {0, 60, 0},
    {50, 60, 0},
    {100, 60, 0},
    {150, 60, 0},
    {200, 60, 0},
    {250, 60, 0},
    {300, 60, 0},
    {350, 60, 0},
    {400, 60, 0},
    {450, 60, 0},
    {500, 60, 0},
    {540, 60, 0}, /* until 600 */
    {541, 60, -EDQUOT},
    {599, 1, 0},
    {600, 1, -EDQUOT},
    /* it must be left for a tenth of 600 s, */
    {659, 1, -EDQUOT},
    {659, 60, -EDQUOT},
    {660, 60, 0},
    /* and one of 60 s for six */
    {725, 60, 0}, /* until 785: since 660 */
    {797, 60, 0},
    {846, 60, 0},  /* 125 s are 12.5 s: since 660 still */
    {1201, 60, 0}, /* long over */
};

UNIT_TEST(a_block_is_not_held_for_ever)
{
	for (size_t i = 0; i < NUM_ROWS(renewals); i++)
		ck_assert_msg(ucm_lease_take(&leases, 7, 1,
					     renewals[i].at * 1000,
					     renewals[i].lease * 1000,
					     false) == renewals[i].err,
			      "at %lld", (long long)renewals[i].at);
}

UNIT_TEST(a_user_has_so_many_leases_and_others_have_theirs)
{
	struct ucm_leases few;

	ucm_leases_init(&few, 3, 600);
	for (ucm_ref ref = 1; ref <= 3; ref++)
		ck_assert_int_eq(ucm_lease_take(&few, ref, 1, 0, 10000, false),
				 0);
	ck_assert_int_eq(ucm_lease_take(&few, 4, 1, 0, 10000, false), -EDQUOT);
	ck_assert_int_eq(ucm_lease_take(&few, 3, 1, 0, 20000, false),
			 0); /* renewed */
	ck_assert_int_eq(ucm_lease_take(&few, 4, 2, 0, 10000, false), 0);
	ck_assert_int_eq(ucm_lease_take(&few, 4, 1, 5000, 10000, false),
			 -EDQUOT);
	/* two are over */
	ck_assert_int_eq(ucm_lease_take(&few, 4, 1, 11000, 10000, false), 0);
	ck_assert_int_eq(ucm_lease_take(&few, 5, 1, 11000, 10000, false), 0);
	ck_assert_int_eq(ucm_lease_take(&few, 6, 1, 11000, 10000, false),
			 -EDQUOT);
	ck_assert(held(&few, 3, 11000));
	ck_assert(!held(&few, 6, 11000));
	ucm_leases_fini(&few);
}

UNIT_TEST(how_long_and_how_many_can_be_asked)
{
	int64_t left_ms;

	ck_assert_uint_eq(ucm_lease_ask(&leases, 7, 0, &left_ms), 0);
	ck_assert_int_eq(left_ms, 0);
	ck_assert_int_eq(ucm_lease_take(&leases, 7, 1, 0, 3000, false), 0);
	ck_assert_int_eq(ucm_lease_take(&leases, 7, 2, 0, 1000, false), 0);
	ck_assert_int_eq(ucm_lease_take(&leases, 8, 2, 0, 9000, false), 0);
	ck_assert_uint_eq(ucm_lease_ask(&leases, 7, 500, &left_ms), 2);
	ck_assert_int_eq(left_ms, 2500);
	ck_assert_uint_eq(ucm_lease_ask(&leases, 7, 1000, &left_ms), 1);
	ck_assert_int_eq(left_ms, 2000);
	ck_assert_uint_eq(ucm_leases_count(&leases, 500), 3);
	ck_assert_uint_eq(ucm_leases_count(&leases, 3000), 1);
}

UNIT_TEST(a_lease_is_held_until_all_have_given_it_back)
{
	ck_assert_int_eq(ucm_lease_take(&leases, 7, 1, 0, 9000, false), 0);
	ck_assert_int_eq(ucm_lease_take(&leases, 7, 1, 0, 9000, false), 0);
	ck_assert_int_eq(ucm_lease_take(&leases, 7, 1, 0, 9000, true), 0);
	ucm_lease_release(&leases, 7, 1, 10);
	ck_assert(held(&leases, 7, 10));
	ucm_lease_release(&leases, 7, 2, 10); /* of another user: nothing */
	ck_assert(held(&leases, 7, 10));
	ucm_lease_release(&leases, 7, 1, 10);
	ck_assert(!held(&leases, 7, 10));
	ucm_lease_release(&leases, 7, 1, 20); /* once too often */
	ck_assert_int_eq(ucm_lease_take(&leases, 7, 1, 20, 9000, false), 0);
	ck_assert(held(&leases, 7, 20));
}

/* Those who died with it never give it back. */
UNIT_TEST(what_has_run_out_need_not_be_given_back)
{
	for (int i = 0; i < 3; i++)
		ck_assert_int_eq(ucm_lease_take(&leases, 7, 1, 0, 1000, false),
				 0);
	ck_assert(!held(&leases, 7, 1000));
	ck_assert_int_eq(ucm_lease_take(&leases, 7, 1, 1050, 1000, false), 0);
	ucm_lease_release(&leases, 7, 1, 1060);
	ck_assert(!held(&leases, 7, 1060));
}

UNIT_TEST(a_renewal_after_the_end_is_a_lease)
{
	ck_assert_int_eq(ucm_lease_take(&leases, 7, 1, 0, 1000, false), 0);
	ck_assert_int_eq(ucm_lease_take(&leases, 7, 1, 1010, 1000, true), 0);
	ck_assert(held(&leases, 7, 1010));
	ucm_lease_release(&leases, 7, 1, 1020);
	ck_assert(!held(&leases, 7, 1020));
	ck_assert_int_eq(ucm_lease_take(&leases, 8, 1, 0, 1000, true), 0);
	ucm_lease_release(&leases, 8, 1, 1);
	ck_assert(!held(&leases, 8, 1));
}

UNIT_TEST(nothing_is_given_back_where_nothing_was_leased)
{
	ucm_lease_release(&leases, 7, 1, 0);
	ck_assert(!held(&leases, 7, 0));
}

UNIT_TEST(what_was_given_back_is_no_longer_counted)
{
	struct ucm_leases few;

	ucm_leases_init(&few, 2, 600);
	for (ucm_ref ref = 1; ref <= 10; ref++) {
		ck_assert_int_eq(ucm_lease_take(&few, ref, 1, 0, 60000, false),
				 0);
		ucm_lease_release(&few, ref, 1, 10);
	}
	ck_assert_int_eq(ucm_lease_take(&few, 3, 1, 10, 60000, false), 0);
	ck_assert_int_eq(ucm_lease_take(&few, 4, 1, 10, 60000, false), 0);
	ck_assert_int_eq(ucm_lease_take(&few, 5, 1, 10, 60000, false), -EDQUOT);
	ck_assert_int_eq(ucm_lease_take(&few, 4, 1, 10, 60000, false), 0);
	ucm_lease_release(&few, 4, 1, 20);
	ck_assert_int_eq(ucm_lease_take(&few, 5, 1, 20, 60000, false), -EDQUOT);
	ucm_lease_release(&few, 4, 1, 20);
	ck_assert_int_eq(ucm_lease_take(&few, 5, 1, 20, 60000, false), 0);
	ucm_leases_fini(&few);
}
