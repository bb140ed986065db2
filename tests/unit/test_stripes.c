/* SPDX-License-Identifier: Apache-2.0 */
/* test_stripes.c - blocks go into the directory after their parent's. */
#include <config.h>

#include "fs/store/stripes.h"

#include <errno.h>
#include <string.h>

#include "tests/unit/store_fixture.h"

#define CHAIN 12

UNIT_FIXTURE(.setup = fx_setup, .teardown = fx_teardown);

static struct ucm_key key_of(unsigned number)
{
	struct ucm_key key = { .space = 0 };

	memset(&key.id, 7, sizeof(key.id));
	memcpy(key.id.bytes, &number, sizeof(number));
	return key;
}

static const struct ucm_id *id_of(unsigned number)
{
	static struct ucm_id id;

	id = key_of(number).id;
	return &id;
}

/* The blocks first+1 ... last follow each other, and the first follows nothing
 * that was announced. */
static void expect_chain(unsigned first, unsigned last)
{
	for (unsigned i = first + 1; i <= last; i++) {
		const struct ucm_key key = key_of(i);

		ck_assert_int_eq(ucm_store_expect(fx_set, &key,
						  id_of(i - 1)),
				 0);
	}
}

static unsigned place_of(unsigned number)
{
	struct ucm_key key = key_of(number);
	struct ucm_temp temp = { 0 };
	int file = fx_create(&key, 8192, &temp);

	ck_assert_int_ge(file, 0);
	ucm_store_drop(fx_set, &temp);
	return temp.dir;
}

static void open_striped(const char *source)
{
	fx_configure(source);
	fx_option("placement", "striped");
	fx_open();
	fx_start();
}

/* In whatever order their files are made. */
UNIT_TEST(a_chain_goes_round)
{
	unsigned root;

	open_striped("$/a,$/b,$/c");
	expect_chain(0, CHAIN);
	root = place_of(0);
	for (unsigned i = CHAIN; i > 0; i--)
		ck_assert_uint_eq(place_of(i), (root + i) % 3);
}

UNIT_TEST(a_chain_that_goes_on_goes_on_round)
{
	unsigned root;

	open_striped("$/a,$/b,$/c");
	expect_chain(0, 4);
	expect_chain(4, CHAIN);
	root = place_of(0);
	ck_assert_uint_eq(place_of(CHAIN), (root + CHAIN) % 3);
	expect_chain(0, CHAIN); /* said again */
	ck_assert_uint_eq(place_of(CHAIN), (root + CHAIN) % 3);
}

/* Each tier has a round of its own. */
UNIT_TEST(the_next_tier_is_striped_as_well)
{
	unsigned root;

	open_striped("$/a:$/b,$/c");
	fx_option("limit", "tier0:4K");
	fx_close();
	fx_open();
	fx_start();
	expect_chain(0, CHAIN);
	root = place_of(0);
	ck_assert_uint_ge(root, 1);
	for (unsigned i = 1; i <= CHAIN; i++)
		ck_assert_uint_eq(place_of(i), 1 + (root - 1 + i) % 2);
}

UNIT_TEST(who_says_nothing_is_placed_by_rendezvous)
{
	unsigned counts[3] = { 0 };

	open_striped("$/a,$/b,$/c");
	for (unsigned i = 0; i < 300; i++) {
		const struct ucm_key key = key_of(i);
		unsigned dir = place_of(i);

		ck_assert_uint_eq(dir, ucm_tier_first_choice(
					       &fx_set->dirs.tiers[0],
					       &key.id));
		counts[dir]++;
	}
	for (unsigned i = 0; i < 3; i++)
		ck_assert_uint_gt(counts[i], 50);
}

UNIT_TEST(other_placements_do_not_ask)
{
	const struct ucm_key key = key_of(1);

	fx_configure("$/a,$/b");
	fx_open();
	ck_assert_int_eq(ucm_store_expect(fx_set, &key, id_of(0)),
			 -EOPNOTSUPP);
}

/* ---- the table ---- */

static struct ucm_stripes stripes;

UNIT_TEST(the_same_block_of_two_spaces_is_two)
{
	struct ucm_key here = key_of(1), there = key_of(1);
	struct ucm_id root;

	there.space = 1;
	ucm_stripes_init(&stripes);
	ck_assert_int_eq(ucm_stripes_expect(&stripes, &here, id_of(0)), 0);
	ck_assert_uint_eq(ucm_stripes_find(&stripes, &there, &root), 0);
	ck_assert_uint_eq(ucm_stripes_find(&stripes, &here, &root), 1);
	ck_assert_mem_eq(&root, id_of(0), sizeof(root));
	ucm_stripes_fini(&stripes);
}

UNIT_TEST(the_latest_are_known_and_the_oldest_forgotten)
{
	const unsigned many = 400000, lately = 10000;
	const struct ucm_key oldest = key_of(1);
	unsigned known = 0;
	struct ucm_id root;

	ucm_stripes_init(&stripes);
	for (unsigned i = 1; i <= many; i++) {
		const struct ucm_key key = key_of(i);

		ck_assert_int_eq(ucm_stripes_expect(&stripes, &key,
						    id_of(i - 1)),
				 0);
	}
	for (unsigned i = many - lately + 1; i <= many; i++) {
		const struct ucm_key key = key_of(i);

		known += ucm_stripes_find(&stripes, &key, &root) == i;
		ck_assert_mem_eq(&root, id_of(0), sizeof(root));
	}
	ck_assert_uint_eq(known, lately);
	ck_assert_uint_eq(ucm_stripes_find(&stripes, &oldest, &root), 0);
	ucm_stripes_fini(&stripes);
}
