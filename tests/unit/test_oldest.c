/* SPDX-License-Identifier: Apache-2.0 */
/* test_oldest.c - which blocks are removed to make room. */
#include <config.h>

#include "tools/ucm_oldest.h"

#include <stdio.h>
#include <string.h>

#include "tests/unit/unit.h"

/* A block is "NAME PARENT TIME BYTES", with '!' if it stays; a name is a letter, and
 * '-' is no parent. What goes, in its order; and what is left. */
static const struct {
	const char *blocks;
	uint64_t keep;
	const char *goes;
	uint64_t left;
} rows[] = {
	{ "", 0, "", 0 },
	{ "a - 1 5", 5, "", 5 },
	{ "a - 1 5", 4, "a", 0 },
	{ "a - 1 5", UINT64_MAX, "", 5 },
	/* the oldest first, and no more than needed */
	{ "a - 3 5, b - 1 5, c - 2 5", 15, "", 15 },
	{ "a - 3 5, b - 1 5, c - 2 5", 14, "b", 10 },
	{ "a - 3 5, b - 1 5, c - 2 5", 10, "b", 10 },
	{ "a - 3 5, b - 1 5, c - 2 5", 9, "bc", 5 },
	{ "a - 3 5, b - 1 5, c - 2 5", 0, "bca", 0 },
	/* of the same age: by name */
	{ "c - 1 1, a - 1 1, b - 1 1", 1, "ab", 1 },
	{ "a - -5 1, b - 5 1, c - 0 1", 1, "ac", 1 },
	/* a chain: its last first, also if it was saved last */
	{ "a - 1 1, b a 2 1, c b 3 1", 1, "cb", 1 },
	{ "c - 1 1, b c 1 1, a b 1 1", 1, "ab", 1 },
	/* an old parent of what was used lately stays longer than another */
	{ "a - 1 1, b a 9 1, c - 5 1", 2, "c", 2 },
	{ "a - 1 1, b a 9 1, c - 5 1", 1, "cb", 1 },
	/* two children: until the last of them has gone */
	{ "a - 1 1, b a 2 1, c a 7 1, d - 5 1", 0, "bdca", 0 },
	/* of a parent that is not there */
	{ "b a 2 1, c b 3 1, d - 1 1", 1, "dc", 1 },
	/* of itself, and in circles: each by its own time */
	{ "a a 2 1, b - 1 1", 0, "ba", 0 },
	{ "a b 2 1, b a 1 1, c b 9 1", 0, "acb", 0 },
	/* what stays does, and others go instead */
	{ "a - 1 5!, b - 2 5", 5, "b", 5 },
	{ "a - 1 5!, b - 2 5!", 0, "", 10 },
	/* large and empty ones */
	{ "a - 1 0, b - 2 8", 7, "ab", 0 },
	{ "a - 1 9, b - 2 1", 1, "a", 1 },
};

#define MOST 8

static struct ucm_id named(char name)
{
	return (struct ucm_id){ { name == '-' ? 0 : (uint8_t)name } };
}

static size_t parse(const char *text, struct ucm_aged *blocks)
{
	char copy[128], *rest, *one;
	size_t num = 0;

	snprintf(copy, sizeof(copy), "%s", text);
	for (one = strtok_r(copy, ",", &rest); one;
	     one = strtok_r(NULL, ",", &rest)) {
		unsigned long long bytes;
		char name, parent;
		long long time;

		ck_assert_int_eq(sscanf(one, " %c %c %lld %llu", &name, &parent,
					&time, &bytes), 4);
		ck_assert_uint_lt(num, MOST);
		blocks[num++] = (struct ucm_aged){
			.id = named(name), .parent = named(parent),
			.used_ns = time, .bytes = bytes,
			.stays = strchr(one, '!'),
		};
	}
	return num;
}

UNIT_TEST(the_oldest_go_and_no_parent_before_its_children,
	  .rows = NUM_ROWS(rows))
{
	struct ucm_aged blocks[MOST];
	size_t num = parse(rows[_i].blocks, blocks), len = 0;
	char goes[MOST + 1];

	ck_assert_int_eq(ucm_oldest_sort(blocks, num), 0);
	ck_assert_uint_eq(ucm_oldest_choose(blocks, num, rows[_i].keep),
			  rows[_i].left);
	for (size_t i = 0; i < num; i++) {
		if (blocks[i].goes)
			goes[len++] = (char)blocks[i].id.bytes[0];
	}
	goes[len] = '\0';
	ck_assert_str_eq(goes, rows[_i].goes);
}

UNIT_TEST(a_name_of_another_space_is_no_parent)
{
	struct ucm_aged blocks[] = {
		{ .id = named('a'), .used_ns = 1 },
		{ .id = named('b'), .parent = named('a'), .used_ns = 3,
		  .space = 1 },
		{ .id = named('a'), .used_ns = 2, .space = 1 },
	};

	ck_assert_int_eq(ucm_oldest_sort(blocks, 3), 0);
	ck_assert_uint_eq(blocks[0].space, 0);
	ck_assert_int_eq(blocks[1].id.bytes[0], 'b');
	ck_assert_int_eq(blocks[2].used_ns, 3);
}
