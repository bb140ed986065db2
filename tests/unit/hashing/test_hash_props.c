/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_hash_props.c - what holds of ids whatever the tokens: on random requests,
 * small and large blocks, every scheme, alone and in a batch.
 */
#include <config.h>

#include <ucm/hash.h>

#include "hashing/hasher.h"
#include "tests/unit/hash_fixture.h"

static const struct { uint32_t block_size; size_t num_tokens; } shapes[] = {
	{ 1, 40 },     { 3, 50 },     { 4, 64 },      { 16, 500 },
	{ 17, 400 },   { 128, 1000 }, { 184, 1000 },  { 200, 1000 },
	{ 300, 1200 }, { 1000, 3500 }, { 14000, 30000 },
};

#define NUM_CASES (NUM_ROWS(shapes) * NUM_ROWS(token_schemes))

struct a_case {
	struct ucm_hasher *hasher;
	uint32_t scheme, block_size;
	size_t num, whole, all; /* tokens, blocks */
	int64_t *tokens;
	struct ucm_id *ids;
	uint64_t random;
};

static struct a_case begin(int number)
{
	struct a_case c = {
		.scheme = token_schemes[(size_t)number %
					NUM_ROWS(token_schemes)],
		.random = random_case((unsigned)number),
	};
	size_t shape = (size_t)number / NUM_ROWS(token_schemes);

	c.block_size = shapes[shape].block_size;
	c.num = shapes[shape].num_tokens;
	c.hasher = open_scheme(c.scheme, c.block_size);
	c.tokens = calloc(c.num, sizeof(*c.tokens));
	random_tokens(&c.random, c.tokens, c.num);
	c.whole = ucm_hash_count(c.hasher, c.num, 0);
	c.all = ucm_hash_count(c.hasher, c.num, UCM_HASH_PARTIAL);
	c.ids = ids_of(c.hasher, c.tokens, c.num);
	return c;
}

static void end(struct a_case *c)
{
	ucm_hasher_close(c->hasher);
	free(c->tokens);
	free(c->ids);
}

UNIT_TEST(a_prefix_of_a_request_has_a_prefix_of_its_ids, .rows = NUM_CASES)
{
	struct a_case c = begin(_i);

	for (int i = 0; i < 20; i++) {
		size_t num = random_next(&c.random) % c.num;
		struct ucm_id *ids = ids_of(c.hasher, c.tokens, num);

		must(same_ids(ids, c.ids, num / c.block_size));
		free(ids);
	}
	end(&c);
}

UNIT_TEST(a_changed_token_changes_its_block_and_all_behind, .rows = NUM_CASES)
{
	struct a_case c = begin(_i);

	for (int i = 0; i < 20; i++) {
		size_t at = random_next(&c.random) % c.num;
		size_t block = at / c.block_size;
		struct ucm_id *ids;

		c.tokens[at] ^= 1 << random_next(&c.random) % 20;
		ids = ids_of(c.hasher, c.tokens, c.num);
		must(same_ids(ids, c.ids, block));
		for (size_t k = block; k < c.all; k++)
			must(!same_ids(&ids[k], &c.ids[k], 1));
		free(c.ids);
		c.ids = ids;
	}
	end(&c);
}

/* Parts of random lengths, of which only whole blocks are taken. */
UNIT_TEST(going_on_from_a_state_is_hashing_at_once, .rows = NUM_CASES)
{
	struct a_case c = begin(_i);
	struct ucm_id *ids = calloc(c.all, sizeof(*ids));
	struct ucm_hash_state state;
	size_t done = 0;

	must(!ucm_hash_start(c.hasher, NULL, &state, NULL));
	while (done < c.whole) {
		size_t left = c.num - done * c.block_size;
		size_t num = random_next(&c.random) % (left + 1);
		struct ucm_hash_request request = {
			.tokens = c.tokens + done * c.block_size,
			.num_tokens = num,
			.ids = ids + done,
			.room = c.all - done,
			.state = &state,
			.flags = num % 2 ? UCM_HASH_PARTIAL : 0,
		};

		must(!ucm_hash_request(c.hasher, &request, NULL));
		done += num / c.block_size;
		must(state.tokens == done * c.block_size);
		must(!done || same_ids(&state.parent, &c.ids[done - 1], 1));
	}
	must(same_ids(ids, c.ids, c.whole));
	free(ids);
	end(&c);
}

UNIT_TEST(going_on_from_a_parent_is_hashing_at_once, .rows = NUM_CASES)
{
	struct a_case c = begin(_i);
	struct ucm_id *ids = calloc(c.all, sizeof(*ids));

	for (size_t at = 1; at < c.all && c.scheme != UCM_SCHEME_PREFIX; at++) {
		struct ucm_hash_state state;
		struct ucm_hash_request request = {
			.tokens = c.tokens + at * c.block_size,
			.num_tokens = c.num - at * c.block_size,
			.ids = ids,
			.room = c.all - at,
			.state = &state,
			.flags = UCM_HASH_PARTIAL,
		};

		must(!ucm_hash_resume(c.hasher, &c.ids[at - 1],
				      at * c.block_size, &state));
		must(!ucm_hash_request(c.hasher, &request, NULL));
		must(same_ids(ids, c.ids + at, c.all - at));
	}
	free(ids);
	end(&c);
}

#define MAX_BATCH 50

/* Requests of all lengths, empty ones too, some going on from a state. */
static void compare_batch(struct a_case *c, size_t num)
{
	struct ucm_hash_request requests[MAX_BATCH] = { { 0 } };
	struct ucm_hash_state states[MAX_BATCH], alone[MAX_BATCH];

	for (size_t i = 0; i < num; i++) {
		size_t len = random_next(&c->random) % (c->num + 1);
		size_t room = ucm_hash_count(c->hasher, len, UCM_HASH_PARTIAL);

		requests[i] = (struct ucm_hash_request){
			.tokens = c->tokens + (c->num - len),
			.num_tokens = len,
			.flags = i % 3 ? UCM_HASH_PARTIAL : 0,
			.ids = calloc(room + 1, sizeof(struct ucm_id)),
			.room = room,
		};
		if (i % 2) {
			must(!ucm_hash_start(c->hasher, NULL, &states[i], NULL));
			alone[i] = states[i];
			requests[i].state = &states[i];
		}
	}
	must(!ucm_hash_batch(c->hasher, requests, num, NULL));
	for (size_t i = 0; i < num; i++) {
		struct ucm_hash_request one = requests[i];

		one.ids = calloc(one.room + 1, sizeof(*one.ids));
		if (one.state)
			one.state = &alone[i];
		must(!ucm_hash_request(c->hasher, &one, NULL));
		must(same_ids(one.ids, requests[i].ids, one.room + 1));
		if (one.state)
			must(!memcmp(&alone[i], &states[i], sizeof(alone[i])));
		free(one.ids);
		free(requests[i].ids);
	}
}

UNIT_TEST(a_batch_is_its_requests_one_by_one, .rows = NUM_CASES)
{
	static const char *const ways[] = { "avx512", "avx2", "none" };
	struct a_case c = begin(_i);

	for (size_t i = 0; i < NUM_ROWS(ways); i++) {
		c.hasher->lanes = ucm_md5_lanes_named(ways[i]);
		for (size_t num = 1; num <= MAX_BATCH; num += 1 + num / 3)
			compare_batch(&c, c.block_size > 1000 && num > 3
						  ? 3 : num);
	}
	end(&c);
}

#define NUM_RANKS 6

static struct ucm_id *ids_of_rank(const struct a_case *c, uint32_t rank,
				  uint32_t mla)
{
	struct ucm_hash_meta meta = meta_of(c->scheme, c->block_size);
	struct ucm_hasher *hasher;
	struct ucm_id *ids;

	meta.world_size = NUM_RANKS;
	meta.rank = rank;
	meta.mla = mla;
	hasher = open_meta(&meta);
	ids = ids_of(hasher, c->tokens, c->num);
	ucm_hasher_close(hasher);
	return ids;
}

static bool any_same(const struct ucm_id *a, const struct ucm_id *b, size_t num)
{
	for (size_t i = 0; i < num; i++) {
		if (same_ids(a + i, b + i, 1))
			return true;
	}
	return false;
}

UNIT_TEST(ids_of_all_ranks_differ_but_with_mla, .rows = NUM_CASES)
{
	struct a_case c = begin(_i);
	bool ranks = c.scheme != UCM_SCHEME_PREFIX &&
		     c.scheme != UCM_SCHEME_HEXCHAIN;
	struct ucm_id *ids[NUM_RANKS];

	for (uint32_t r = 0; r < NUM_RANKS; r++) {
		ids[r] = ids_of_rank(&c, r, 0);
		for (uint32_t k = 0; k < r; k++)
			must(any_same(ids[r], ids[k], c.all) == !ranks);
	}
	for (uint32_t r = 0; r < NUM_RANKS; r++) {
		free(ids[r]);
		ids[r] = ids_of_rank(&c, r, 1);
		must(same_ids(ids[r], ids[0], c.all));
	}
	for (uint32_t r = 0; r < NUM_RANKS; r++)
		free(ids[r]);
	end(&c);
}

UNIT_TEST(a_rank_goes_on_from_its_state_as_rank_0_does, .rows = NUM_CASES)
{
	struct a_case c = begin(_i);
	struct ucm_hash_meta meta = meta_of(c.scheme, c.block_size);
	struct ucm_id *at_once, *ids = calloc(c.all, sizeof(*ids));
	struct ucm_hash_state state;
	struct ucm_hash_request request = {
		.tokens = c.tokens, .num_tokens = c.block_size, .ids = ids,
		.room = 1, .state = &state,
	};

	meta.rank = 1;
	ucm_hasher_close(c.hasher);
	c.hasher = open_meta(&meta);
	at_once = ids_of(c.hasher, c.tokens, c.num);
	must(!ucm_hash_start(c.hasher, NULL, &state, NULL));
	must(!ucm_hash_request(c.hasher, &request, NULL));
	request.tokens += c.block_size;
	request.num_tokens = c.num - c.block_size;
	request.flags = UCM_HASH_PARTIAL;
	request.ids = ids + 1;
	request.room = c.all - 1;
	must(!ucm_hash_request(c.hasher, &request, NULL));
	must(same_ids(ids, at_once, c.all));
	free(at_once);
	free(ids);
	end(&c);
}

UNIT_TEST(ids_of_a_rank_follow_from_rank_0_s, .rows = NUM_CASES)
{
	struct a_case c = begin(_i);
	struct ucm_hash_meta meta = meta_of(c.scheme, c.block_size);
	struct ucm_hasher *hasher;
	struct ucm_id *other;

	meta.world_size = NUM_RANKS;
	hasher = open_meta(&meta);
	free(c.ids);
	c.ids = ids_of(hasher, c.tokens, c.num);
	for (uint32_t r = 0; r < NUM_RANKS; r++) {
		struct ucm_id *ids = calloc(c.all, sizeof(*ids));
		int err = ucm_hash_rank_ids(hasher, r, c.ids, c.all, ids);

		other = ids_of_rank(&c, r, 0);
		must(err == -ENOTSUP || same_ids(ids, other, c.all));
		free(ids);
		free(other);
	}
	ucm_hasher_close(hasher);
	end(&c);
}

/* An item changes the blocks that it lies in, and so all behind. */
UNIT_TEST(an_item_changes_its_first_block_and_all_behind)
{
	struct ucm_hasher *hasher = open_scheme(UCM_SCHEME_SHA256, 16);
	int64_t tokens[160] = { 0 };
	struct ucm_id *plain = ids_of(hasher, tokens, 160), ids[10];

	for (uint64_t at = 0; at < 160; at += 5) {
		struct ucm_hash_item item = { .position = at, .length = 3 };
		struct ucm_hash_extras extras = { .items = &item,
						  .num_items = 1 };
		struct ucm_hash_request request = {
			.tokens = tokens, .num_tokens = 160, .ids = ids,
			.room = 10, .extras = &extras,
		};
		size_t block = at / 16;

		must(!ucm_hash_request(hasher, &request, NULL));
		must(same_ids(ids, plain, block));
		must(!any_same(ids + block, plain + block, 10 - block));
	}
	ucm_hasher_close(hasher);
	free(plain);
}
