/* SPDX-License-Identifier: Apache-2.0 */
/* test_placement.c - which directory gets a block, and what moves. */
#include <config.h>

#include "fs/config/placement.h"

#include <errno.h>
#include <string.h>

#include "tests/unit/unit.h"

#define BLOCKS 20000

/* Fixed pseudo-random bytes (splitmix64), the same in every run. */
static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static void fill16(uint8_t bytes[16], uint64_t seed)
{
	uint64_t words[2] = { mix(seed), mix(seed + 1000000007) };

	memcpy(bytes, words, 16);
}

static void make_uuids(uint8_t (*uuids)[16], unsigned num)
{
	for (unsigned i = 0; i < num; i++)
		fill16(uuids[i], 77000000 + i);
}

static struct ucm_id id_of(unsigned number)
{
	struct ucm_id id;

	fill16(id.bytes, number);
	return id;
}

static unsigned first_choice(uint8_t (*uuids)[16], unsigned num,
			     const struct ucm_id *id)
{
	uint8_t order[255];

	ucm_placement_order(UCM_PLACEMENT_RENDEZVOUS,
			    (const uint8_t(*)[16])uuids, num, id, 0, order);
	return order[0];
}

UNIT_TEST(a_new_directory_takes_its_share_and_nothing_else_moves)
{
	uint8_t uuids[9][16];

	make_uuids(uuids, 9);
	for (unsigned n = 1; n <= 8; n++) {
		unsigned moved = 0;

		for (unsigned i = 0; i < BLOCKS; i++) {
			struct ucm_id id = id_of(i);
			unsigned before = first_choice(uuids, n, &id);
			unsigned after = first_choice(uuids, n + 1, &id);

			if (before == after)
				continue;
			ck_assert_uint_eq(after, n);
			moved++;
		}
		/* 1/(n+1), give or take a tenth (over 4 sigma at 20000) */
		ck_assert_msg(moved * (n + 1) > BLOCKS * 9 / 10 &&
			      moved * (n + 1) < BLOCKS * 11 / 10,
			      "%u of %u moved from %u", moved, BLOCKS, n);
	}
}

UNIT_TEST(directories_get_equal_shares_of_counted_ids_too)
{
	unsigned counts[4] = { 0 };
	uint8_t uuids[4][16];

	make_uuids(uuids, 4);
	for (unsigned i = 0; i < BLOCKS; i++) {
		struct ucm_id id = { { 0 } };

		memcpy(id.bytes, &i, sizeof(i)); /* not hashed at all */
		counts[first_choice(uuids, 4, &id)]++;
	}
	for (unsigned i = 0; i < 4; i++)
		ck_assert_msg(counts[i] > BLOCKS / 4 * 9 / 10 &&
			      counts[i] < BLOCKS / 4 * 11 / 10,
			      "directory %u got %u", i, counts[i]);
}

UNIT_TEST(the_order_of_the_directories_does_not_matter)
{
	uint8_t uuids[5][16], turned[5][16];

	make_uuids(uuids, 5);
	for (unsigned i = 0; i < 5; i++)
		memcpy(turned[i], uuids[4 - i], 16);
	for (unsigned i = 0; i < 1000; i++) {
		struct ucm_id id = id_of(i);

		ck_assert_uint_eq(first_choice(uuids, 5, &id),
				  4 - first_choice(turned, 5, &id));
	}
}

UNIT_TEST(an_order_is_a_permutation_by_falling_score)
{
	static uint8_t uuids[255][16];
	uint8_t order[255];

	make_uuids(uuids, 255);
	for (unsigned num = 1; num <= 255; num += 127) {
		bool seen[255] = { false };
		struct ucm_id id = id_of(num);

		ucm_placement_order(UCM_PLACEMENT_RENDEZVOUS,
				    (const uint8_t(*)[16])uuids, num, &id, 0,
				    order);
		for (unsigned i = 0; i < num; i++) {
			ck_assert(!seen[order[i]]);
			seen[order[i]] = true;
			if (i)
				ck_assert_uint_ge(
					ucm_placement_score(uuids[order[i - 1]],
							    &id),
					ucm_placement_score(uuids[order[i]],
							    &id));
		}
	}
}

/* On-disk placement must not change between versions: blocks would be sought
 * elsewhere. Computed by hand with Python from the documented formula. */
UNIT_TEST(scores_are_the_documented_formula)
{
	uint8_t uuid[16] = { 1, 2, 3, 4, 5, 6, 7, 8,
			     9, 10, 11, 12, 13, 14, 15, 16 };
	struct ucm_id id = { { 0x3f, 0x9a } };

	ck_assert_uint_eq(ucm_placement_score(uuid, &id),
			  UINT64_C(0x4de3b5de6aa1a420));
}

UNIT_TEST(turns_go_round)
{
	static const struct {
		uint64_t turn;
		uint8_t want[3];
	} rows[] = {
		{ 0, { 0, 1, 2 } }, { 1, { 1, 2, 0 } }, { 2, { 2, 0, 1 } },
		{ 3, { 0, 1, 2 } },
	};
	struct ucm_id id = id_of(1);
	uint8_t order[3];

	for (size_t i = 0; i < NUM_ROWS(rows); i++) {
		ucm_placement_order(UCM_PLACEMENT_ROUND_ROBIN, NULL, 3, &id,
				    rows[i].turn, order);
		ck_assert_mem_eq(order, rows[i].want, 3);
		ucm_placement_order(UCM_PLACEMENT_RANDOM, NULL, 3, &id,
				    rows[i].turn, order);
		ck_assert_mem_eq(order, rows[i].want, 3);
	}
	/* also where the counter wraps every directory is tried */
	ucm_placement_order(UCM_PLACEMENT_RANDOM, NULL, 3, &id, UINT64_MAX, order);
	ck_assert_uint_eq((1u << order[0]) | (1u << order[1]) | (1u << order[2]),
			  7);
}

UNIT_TEST(policies_have_names)
{
	enum ucm_placement policy = UCM_PLACEMENT_RENDEZVOUS;

	for (int i = 0; i < 3; i++) {
		ck_assert_int_eq(ucm_placement_parse(
			ucm_placement_name((enum ucm_placement)i), &policy), 0);
		ck_assert_int_eq(policy, i);
	}
	ck_assert_int_eq(ucm_placement_parse("Random", &policy), -EINVAL);
	ck_assert_int_eq(policy, UCM_PLACEMENT_RANDOM);
}
