/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_request.c - ids against vectors that CPython's hashlib and pickle gave,
 * and what is refused.
 */
#include <config.h>

#include <ucm/hash.h>

#include <inttypes.h>
#include <stdio.h>

#include "tests/unit/hash_fixture.h"

/* 1 to 16, and 100000 to 100015: two blocks of 16 */
static int64_t tokens[32];

static void set_up(void)
{
	for (int i = 0; i < 16; i++) {
		tokens[i] = 1 + i;
		tokens[16 + i] = 100000 + i;
	}
}

static const struct {
	uint32_t scheme, rank;
	const char *ids[2];
} vectors[] = {
	{ UCM_SCHEME_UCM, 0, { "959af915d7435e97d54c9b30e2df59df",
			       "6f9ef13b358ce8edc07706f16cc48ca8" } },
	{ UCM_SCHEME_UCM, 1, { "3b17b118ae642fee42ce129f6ab56f11",
			       "b00ec208ea47a8154920d1b69450a56f" } },
	{ UCM_SCHEME_CHAIN, 0, { "b0b6c3ac88d8ac11326d33b3fe432d19",
				 "b70698598d92cf59e5ebbf8fcd61b8c5" } },
	{ UCM_SCHEME_PREFIX, 0, { "b66cc80de92b9ac20fd59d7ede07024b",
				  "763ed5b23a271f63d042020bbfe5db8a" } },
	{ UCM_SCHEME_HEXCHAIN, 0, { "d4f4392e137127dbc876159780a79dee",
				    "96f0d3377abcf728fea01393bbe0d44a" } },
	{ UCM_SCHEME_SHA256, 0, { "e996e82665428a623019796e064a2989",
				  "2ff7c99740904d5d4d26c348fb29d145" } },
	{ UCM_SCHEME_SHA256, 1, { "837ec4be39380089b2c15aa7edc4f071",
				  "41174b2f32cf1bfc1efd0165fb8056bc" } },
	/* UCM 0.8.1's RequestHasher gives the same */
	{ UCM_SCHEME_UCM2, 0, { "11f12c4cb0d4db0a85e65188d22a1df6",
				"558651342acc6fe35e79f614a74743ac" } },
	{ UCM_SCHEME_UCM2, 1, { "457ff6098a5a4da8930589aa2f3757da",
				"4000402446954316263e6515f052a715" } },
};

UNIT_FIXTURE(.setup = set_up);

UNIT_TEST(ids_are_those_of_the_vectors, .rows = NUM_ROWS(vectors))
{
	struct ucm_hash_meta meta = meta_of(vectors[_i].scheme, 16);
	struct ucm_hasher *hasher;
	struct ucm_id *ids;

	meta.rank = vectors[_i].rank;
	hasher = open_meta(&meta);
	ids = ids_of(hasher, tokens, 32);
	assert_id(&ids[0], vectors[_i].ids[0]);
	assert_id(&ids[1], vectors[_i].ids[1]);
	ucm_hasher_close(hasher);
	free(ids);
}

/* the vectors of upstream UCM, made with its own RequestHasher's formula */
UNIT_TEST(upstream_ucm_finds_its_blocks)
{
	struct ucm_hasher *hasher = open_scheme(UCM_SCHEME_UCM, 128);
	struct ucm_id *ids, other[2];
	struct ucm_hash_state state;
	int64_t many[256];

	for (int i = 0; i < 128; i++) {
		many[i] = i;
		many[128 + i] = 1000 * i;
	}
	ids = ids_of(hasher, many, 256);
	ck_assert_int_eq(ucm_hash_start(hasher, NULL, &state, NULL), 0);
	assert_id(&state.parent, "2b2ab3d537a77411667c3da046abbdd1");
	assert_id(&ids[0], "6a66ad547f645f820229b3e7237152cb");
	assert_id(&ids[1], "b1353734e16ad779d6066cd15779219f");
	ck_assert_int_eq(ucm_hash_rank_ids(hasher, 1, ids, 2, other), 0);
	assert_id(&other[0], "7cf1ba4bd3f940e93cb9ad8425e74252");
	assert_id(&other[1], "999f8447063c6c87f9f73834eef10d4e");
	ucm_hasher_close(hasher);
	free(ids);
}

/* The name of a model is what follows the last slash of a path. */
UNIT_TEST(ucm2_knows_a_model_by_its_last_name)
{
	static const char *const models[] = { "test", "test/", "org/test//" };
	struct ucm_hash_meta meta = meta_of(UCM_SCHEME_UCM2, 16);

	for (size_t i = 0; i < NUM_ROWS(models); i++) {
		struct ucm_hasher *hasher;
		struct ucm_id *ids;

		meta.model = models[i];
		hasher = open_meta(&meta);
		ids = ids_of(hasher, tokens, 32);
		assert_id(&ids[1], vectors[NUM_ROWS(vectors) - 2].ids[1]);
		ucm_hasher_close(hasher);
		free(ids);
	}
}

static const struct ucm_hash_item item = {
	.hash = { 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47,
		  48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62,
		  63 },
	.position = 12, .length = 8,
};
static const uint8_t digest[32] = {
	0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19,
	20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
};
static const struct ucm_hash_extras extras = {
	.salt = "tenant-7", .lora = "sql", .lora_digest = digest,
	.items = &item, .num_items = 1,
};

UNIT_TEST(extras_of_a_request_are_as_good_as_the_hasher_s)
{
	struct ucm_hash_meta meta = meta_of(UCM_SCHEME_SHA256, 16);
	struct ucm_hasher *plain = open_meta(&meta), *hasher;
	struct ucm_id ids[2], *others;
	struct ucm_hash_request request = {
		.tokens = tokens, .num_tokens = 32, .ids = ids, .room = 2,
		.extras = &extras,
	};

	meta.extras = extras;
	hasher = open_meta(&meta);
	others = ids_of(hasher, tokens, 32);
	ck_assert_int_eq(ucm_hash_request(plain, &request, NULL), 0);
	assert_id(&ids[0], "3f4b4491cef8eff03eaf588f7348cd13");
	assert_id(&ids[1], "88ee27facc369a76b79a4d8af9255a53");
	ck_assert(same_ids(ids, others, 2));
	ucm_hasher_close(plain);
	ucm_hasher_close(hasher);
	free(others);
}

/* Each of them alone, by what ucm_hash(3) says and hashlib. */
static const struct {
	struct ucm_hash_extras extras;
	const char *ids[2];
} each_extra[] = {
	{ { .salt = "tenant-7" }, { "13022bf7e4982827fdf7b780ee06ced5",
				    "0a0240a8fa35e17df84cda07d234e207" } },
	{ { .lora = "sql" }, { "01b98adcf3e6556127acb84f07c9522f",
			       "a36237d897bdae3b8abf401cb390e59d" } },
	{ { .lora = "sql", .lora_digest = digest },
	  { "1e3007f1c6901b2a04b24822d458b509",
	    "a9a94ce11509c44a5883bdac52c75e6b" } },
	{ { .items = &item, .num_items = 1 },
	  { "997b3e25f228ddc9615d4a4df3a2bdd9",
	    "8884150fcd0a65d394587a76766ca1dc" } },
};

UNIT_TEST(each_extra_makes_other_ids, .rows = NUM_ROWS(each_extra))
{
	struct ucm_hasher *hasher = open_scheme(UCM_SCHEME_SHA256, 16);
	struct ucm_id ids[2];
	struct ucm_hash_request request = {
		.tokens = tokens, .num_tokens = 32, .ids = ids, .room = 2,
		.extras = &each_extra[_i].extras,
	};

	ck_assert_int_eq(ucm_hash_request(hasher, &request, NULL), 0);
	assert_id(&ids[0], each_extra[_i].ids[0]);
	assert_id(&ids[1], each_extra[_i].ids[1]);
	ucm_hasher_close(hasher);
}

/* Also in schemes that know no ranks, as nothing is to be done. */
UNIT_TEST(with_mla_the_ids_of_any_rank_are_those_of_rank_0,
	  .rows = UCM_SCHEME_COUNT)
{
	struct ucm_hash_meta meta = meta_of((uint32_t)_i, 16);
	struct ucm_id ids0[2] = { { { 1 } }, { { 2 } } }, ids[2];
	struct ucm_hasher *hasher;

	meta.world_size = 4;
	meta.mla = 1;
	hasher = open_meta(&meta);
	for (uint32_t rank = 0; rank < 4; rank++) {
		memset(ids, 0x55, sizeof(ids));
		ck_assert_int_eq(ucm_hash_rank_ids(hasher, rank, ids0, 2, ids),
				 0);
		ck_assert(same_ids(ids, ids0, 2));
	}
	ck_assert_int_eq(ucm_hash_rank_ids(hasher, 4, ids0, 2, ids), -EINVAL);
	ucm_hasher_close(hasher);
}

UNIT_TEST(hashes_of_the_engine_depend_on_space_group_and_rank)
{
	struct ucm_hash_meta meta = meta_of(UCM_SCHEME_EXTERNAL, 16);
	struct ucm_hasher *hasher = open_meta(&meta), *rank1;
	struct ucm_id id, same;
	uint8_t hash[32];

	for (int i = 0; i < 32; i++)
		hash[i] = (uint8_t)(96 + i);
	ck_assert_int_eq(ucm_hash_external(hasher, 1, hash, 32, 1, &id), 0);
	assert_id(&id, "356151743786e1b13588fa46a7db99f2");
	ck_assert_int_eq(ucm_hash_rank_ids(hasher, 1, &id, 1, &id), 0);
	assert_id(&id, "d634662d5780fd6021119042f5a61b71");
	meta.rank = 1;
	rank1 = open_meta(&meta);
	ck_assert_int_eq(ucm_hash_external(rank1, 1, hash, 32, 1, &same), 0);
	ck_assert(same_ids(&id, &same, 1));
	ck_assert_int_eq(ucm_hash_external(hasher, 0, hash, 16, 1, &id), 0);
	assert_id(&id, "e7507af740209d8e945455c8bb5674c1");
	ck_assert_int_eq(ucm_hash_external(hasher, 0, hash, 20, 1, &id),
			 -EINVAL);
	ucm_hasher_close(hasher);
	ucm_hasher_close(rank1);
}

static const struct {
	uint32_t scheme;
	int64_t token;
	bool fits;
} edges[] = {
	{ UCM_SCHEME_UCM, 0x7fffffff, true },
	{ UCM_SCHEME_UCM, 0x80000000, false },
	{ UCM_SCHEME_CHAIN, 0x80000000, false },
	{ UCM_SCHEME_HEXCHAIN, 0x80000000, false },
	{ UCM_SCHEME_PREFIX, 0xffffffff, true },
	{ UCM_SCHEME_PREFIX, 0x100000000, false },
	{ UCM_SCHEME_SHA256, 0xffffffff, true },
	{ UCM_SCHEME_SHA256, 0x100000000, false },
	{ UCM_SCHEME_UCM, -1, false },
	{ UCM_SCHEME_PREFIX, -1, false },
	{ UCM_SCHEME_SHA256, INT64_MIN, false },
	{ UCM_SCHEME_CHAIN, INT64_MAX, false },
};

/* In any place, also behind the last whole block; nothing is written. */
UNIT_TEST(a_token_out_of_range_is_told_by_its_index, .rows = NUM_ROWS(edges))
{
	struct ucm_hasher *hasher = open_scheme(edges[_i].scheme, 16);
	struct ucm_id ids[13], before[13];
	struct ucm_hash_state state, state_before;
	struct ucm_error error;
	int64_t many[200];
	char want[64];

	memset(ids, 0x55, sizeof(ids));
	memcpy(before, ids, sizeof(ids));
	ck_assert_int_eq(ucm_hash_start(hasher, NULL, &state, NULL), 0);
	state_before = state;
	for (size_t at = 0; at < 200; at++) {
		struct ucm_hash_request request = {
			.tokens = many, .num_tokens = 200, .ids = ids,
			.room = 13, .state = &state,
		};
		int err;

		for (int i = 0; i < 200; i++)
			many[i] = 7;
		many[at] = edges[_i].token;
		err = ucm_hash_request(hasher, &request, &error);
		must(err == (edges[_i].fits ? 0 : -EINVAL));
		if (!err) {
			state = state_before;
			continue;
		}
		snprintf(want, sizeof(want), "token %zu is %" PRId64 ": ", at,
			 edges[_i].token);
		must(!strncmp(error.text, want, strlen(want)));
		must(!memcmp(ids, before, sizeof(ids)));
		must(!memcmp(&state, &state_before, sizeof(state)));
	}
	ucm_hasher_close(hasher);
}

UNIT_TEST(one_wrong_request_spoils_the_batch_and_is_told)
{
	struct ucm_hasher *hasher = open_scheme(UCM_SCHEME_CHAIN, 16);
	int64_t bad[16] = { [5] = -3 };
	struct ucm_id ids[3], before[3];
	struct ucm_hash_request requests[] = {
		{ .tokens = tokens, .num_tokens = 16, .ids = ids, .room = 1 },
		{ .tokens = bad, .num_tokens = 16, .ids = ids + 1, .room = 1 },
		{ .tokens = tokens, .num_tokens = 16, .ids = ids + 2,
		  .room = 1 },
	};
	struct ucm_error error;

	memset(ids, 0x55, sizeof(ids));
	memcpy(before, ids, sizeof(ids));
	ck_assert_int_eq(ucm_hash_batch(hasher, requests, 3, &error), -EINVAL);
	ck_assert_str_eq(error.text,
			 "request 1: token 5 is -3: from 0 to 2147483647");
	ck_assert_mem_eq(ids, before, sizeof(ids));
	ucm_hasher_close(hasher);
}

UNIT_TEST(room_and_flags_and_states_are_checked)
{
	struct ucm_hasher *hasher = open_scheme(UCM_SCHEME_CHAIN, 16);
	struct ucm_id ids[2];
	struct ucm_hash_state odd = { .tokens = 5 };
	struct ucm_hash_request request = {
		.tokens = tokens, .num_tokens = 20, .ids = ids, .room = 1,
		.flags = UCM_HASH_PARTIAL,
	};
	struct ucm_error error;

	ck_assert_uint_eq(ucm_hash_count(hasher, 20, 0), 1);
	ck_assert_uint_eq(ucm_hash_count(hasher, 20, UCM_HASH_PARTIAL), 2);
	ck_assert_uint_eq(ucm_hash_count(hasher, 32, UCM_HASH_PARTIAL), 2);
	ck_assert_int_eq(ucm_hash_request(hasher, &request, &error), -EINVAL);
	ck_assert_str_eq(error.text, "room for 1 of 2 ids");
	request.room = 2;
	request.flags = 2;
	ck_assert_int_eq(ucm_hash_request(hasher, &request, &error), -EINVAL);
	ck_assert_str_eq(error.text, "flags 0x2: unknown");
	request.flags = 0;
	request.state = &odd;
	ck_assert_int_eq(ucm_hash_request(hasher, &request, &error), -EINVAL);
	ck_assert_str_eq(error.text, "state: 5 tokens are no whole blocks");
	request.state = NULL;
	request.extras = &extras;
	ck_assert_int_eq(ucm_hash_request(hasher, &request, &error), -EINVAL);
	ck_assert_str_eq(error.text, "salt: scheme chain cannot express it");
	ck_assert_int_eq(ucm_hash_start(hasher, &extras, &odd, &error),
			 -EINVAL);
	ucm_hasher_close(hasher);
}

UNIT_TEST(what_a_scheme_cannot_do_it_says)
{
	struct ucm_hasher *external = open_scheme(UCM_SCHEME_EXTERNAL, 16);
	struct ucm_hasher *prefix = open_scheme(UCM_SCHEME_PREFIX, 16);
	struct ucm_hasher *chain = open_scheme(UCM_SCHEME_CHAIN, 16);
	struct ucm_id id = { { 0 } };
	struct ucm_hash_request request = {
		.tokens = tokens, .num_tokens = 16, .ids = &id, .room = 1,
	};
	struct ucm_hash_state state;

	ck_assert_int_eq(ucm_hash_request(external, &request, NULL), -ENOTSUP);
	ck_assert_int_eq(ucm_hash_resume(external, &id, 16, &state), -ENOTSUP);
	ck_assert_int_eq(ucm_hash_resume(prefix, &id, 16, &state), -ENOTSUP);
	ck_assert_int_eq(ucm_hash_resume(chain, &id, 0, &state), -EINVAL);
	ck_assert_int_eq(ucm_hash_resume(chain, &id, 17, &state), -EINVAL);
	ck_assert_int_eq(ucm_hash_rank_ids(chain, 1, &id, 1, &id), -ENOTSUP);
	ck_assert_int_eq(ucm_hash_rank_ids(prefix, 1, &id, 1, &id), -ENOTSUP);
	ck_assert_int_eq(ucm_hash_rank_ids(external, 2, &id, 1, &id), -EINVAL);
	ck_assert_int_eq(ucm_hash_external(chain, 0, &id, 16, 1, &id),
			 -ENOTSUP);
	ucm_hasher_close(external);
	ucm_hasher_close(prefix);
	ucm_hasher_close(chain);
}

UNIT_TEST(no_tokens_have_no_ids)
{
	for (size_t i = 0; i < NUM_ROWS(token_schemes); i++) {
		struct ucm_hasher *hasher = open_scheme(token_schemes[i], 16);
		struct ucm_hash_request none = { 0 }, few = {
			.tokens = tokens, .num_tokens = 15,
		};

		ck_assert_int_eq(ucm_hash_request(hasher, &none, NULL), 0);
		ck_assert_int_eq(ucm_hash_request(hasher, &few, NULL), 0);
		ck_assert_int_eq(ucm_hash_batch(hasher, NULL, 0, NULL), 0);
		ucm_hasher_close(hasher);
	}
}
