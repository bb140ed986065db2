/* SPDX-License-Identifier: Apache-2.0 */
/* test_sha.c - SHA-256 in pieces, and which items belong to a block. */
#include <config.h>

#include "hashing/sha.h"

#include "tests/unit/hash_fixture.h"

UNIT_TEST(sha256_in_pieces_is_sha256_at_once)
{
	uint8_t bytes[300], want[32], got[32];
	uint64_t random = random_case(0);

	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)random_next(&random);
	for (size_t len = 0; len <= sizeof(bytes); len++) {
		size_t cut = len ? random_next(&random) % len : 0;
		struct ucm_sha256 sha;

		must(ucm_sha256(bytes, len, want) == 0);
		ucm_sha256_begin(&sha);
		ucm_sha256_add(&sha, bytes, cut);
		ucm_sha256_add(&sha, bytes + cut, len - cut);
		ucm_sha256_end(&sha, got);
		must(!memcmp(got, want, sizeof(got)));
	}
}

struct found {
	uint64_t positions[8];
	unsigned num;
	uint32_t told;
};

static void find_items(void *arg, const char *name, const void *bytes,
		       size_t len)
{
	struct found *found = arg;

	if (!strcmp(name, "number of items"))
		memcpy(&found->told, bytes, len);
	if (!strcmp(name, "position"))
		memcpy(&found->positions[found->num++], bytes, len);
}

/* items of a request: 0-9, 16-31, 40, 60-99 */
static const struct ucm_hash_item items[] = {
	{ .position = 0, .length = 10 },
	{ .position = 16, .length = 16 },
	{ .position = 40, .length = 1 },
	{ .position = 60, .length = 40 },
};

static const struct {
	uint64_t position;
	size_t num_tokens;
	unsigned num;
	uint64_t positions[4];
} blocks[] = {
	{ 0, 16, 1, { 0 } },
	{ 0, 17, 2, { 0, 16 } },
	{ 10, 6, 0, { 0 } },
	{ 16, 16, 1, { 16 } },
	{ 31, 1, 1, { 16 } },
	{ 32, 8, 0, { 0 } },
	{ 32, 16, 1, { 40 } },
	{ 48, 16, 1, { 60 } },
	{ 80, 16, 1, { 60 } },
	{ 99, 1, 1, { 60 } },
	{ 100, 16, 0, { 0 } },
	{ 0, 100, 4, { 0, 16, 40, 60 } },
};

UNIT_TEST(a_block_has_the_items_that_lie_in_it, .rows = NUM_ROWS(blocks))
{
	static const int64_t tokens[100];
	const struct ucm_hash_extras extras = { .items = items,
						.num_items = NUM_ROWS(items) };
	const struct ucm_sha_block block = {
		.tokens = tokens,
		.num = blocks[_i].num_tokens,
		.position = blocks[_i].position,
		.extras = &extras,
	};
	struct found found = { .told = 77 };

	ucm_sha_block(&block, find_items, &found);
	ck_assert_uint_eq(found.told, blocks[_i].num);
	ck_assert_uint_eq(found.num, blocks[_i].num);
	for (unsigned i = 0; i < found.num; i++)
		ck_assert_uint_eq(found.positions[i], blocks[_i].positions[i]);
}
