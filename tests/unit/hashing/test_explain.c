/* SPDX-License-Identifier: Apache-2.0 */
/* test_explain.c - the bytes that are shown are the bytes that are hashed. */
#include <config.h>

#include "hashing/explain.h"

#include "tests/unit/hash_fixture.h"

#define NUM 100

struct shown {
	uint8_t bytes[16384];
	size_t len;
};

static void collect(void *arg, const char *name, const void *bytes, size_t len)
{
	struct shown *shown = arg;

	must(name && *name && len <= sizeof(shown->bytes) - shown->len);
	memcpy(shown->bytes + shown->len, bytes, len);
	shown->len += len;
}

/* By OpenSSL, in one piece. */
static void digest(const struct ucm_hasher *hasher, const struct shown *shown,
		   struct ucm_id *out)
{
	uint8_t sha[32];

	if (hasher->info->encoder) {
		must(!ucm_md5(shown->bytes, shown->len, out->bytes));
		return;
	}
	must(!ucm_sha256(shown->bytes, shown->len, sha));
	memcpy(out, sha, sizeof(*out));
}

static const uint32_t block_sizes[] = { 1, 3, 4, 16, 40, 100 };

static void compare(struct ucm_hasher *base, struct ucm_hasher *hasher)
{
	struct ucm_hash_state state;
	struct ucm_hash_request request = { .num_tokens = NUM };
	struct ucm_id *ids0, id, parent;
	int64_t tokens[NUM];
	uint64_t random = random_case(0);
	size_t num = ucm_hash_count(hasher, NUM, UCM_HASH_PARTIAL);
	struct shown shown;

	random_tokens(&random, tokens, NUM);
	ids0 = ids_of(base, tokens, NUM);
	request.tokens = tokens;
	request.ids = ids_of(hasher, tokens, NUM);
	must(!ucm_hash_start(hasher, NULL, &state, NULL));
	parent = state.parent;
	for (size_t i = 0; i < num; i++) {
		shown.len = 0;
		must(!ucm_explain_block(hasher, &request, &state, i, &parent,
					collect, &shown));
		digest(hasher, &shown, &id);
		must(same_ids(&id, &ids0[i], 1));
		parent = ids0[i];
		shown.len = 0;
		ucm_explain_rank(hasher, &ids0[i], collect, &shown);
		if (shown.len)
			digest(hasher, &shown, &id);
		must(same_ids(&id, &request.ids[i], 1));
	}
	free(ids0);
	free(request.ids);
}

UNIT_TEST(what_is_shown_has_the_digest_that_is_told,
	  .rows = NUM_ROWS(token_schemes))
{
	uint32_t scheme = token_schemes[_i];

	for (size_t i = 0; i < NUM_ROWS(block_sizes); i++) {
		struct ucm_hash_meta meta = meta_of(scheme, block_sizes[i]);
		struct ucm_hasher *base, *hasher;

		/* a lead of more than a chunk, too */
		if (i % 2)
			meta.model = "/a/path/that/is/long/enough/to/fill/"
				     "a/chunk/of/sixty/four/bytes/by/itself";
		meta.rank = scheme == UCM_SCHEME_CHAIN;
		base = open_meta(&meta);
		meta.rank = 1;
		hasher = open_meta(&meta);
		compare(base, hasher);
		ucm_hasher_close(base);
		ucm_hasher_close(hasher);
	}
}

UNIT_TEST(the_seed_is_shown_where_there_is_one, .rows = NUM_ROWS(token_schemes))
{
	uint32_t scheme = token_schemes[_i];
	struct ucm_hasher *hasher = open_scheme(scheme, 16);
	struct shown shown = { .len = 0 };
	struct ucm_id id = { { 0 } };

	ucm_explain_seed(hasher, collect, &shown);
	ck_assert_int_eq(shown.len == 0, scheme == UCM_SCHEME_PREFIX ||
						 scheme == UCM_SCHEME_HEXCHAIN);
	if (shown.len)
		digest(hasher, &shown, &id);
	ck_assert(same_ids(&id, &hasher->seed, 1));
	ucm_hasher_close(hasher);
}
