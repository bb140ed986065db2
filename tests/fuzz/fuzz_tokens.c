/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_tokens.c - any input of ucm hash: the reader says no, or gives
 * numbers that have ids, or are refused, alike alone, in two parts and in a batch.
 *
 * The first 4 bytes choose scheme, format and block size; one is not used.
 */
#include <config.h>

#include <ucm/hash.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/require.h"
#include "tools/data/tokens.h"

/* all but external */
static const uint32_t schemes[] = {
	UCM_SCHEME_UCM, UCM_SCHEME_CHAIN, UCM_SCHEME_PREFIX,
	UCM_SCHEME_HEXCHAIN, UCM_SCHEME_SHA256, UCM_SCHEME_UCM2,
};
#define NUM_SCHEMES (sizeof(schemes) / sizeof(schemes[0]))

static struct ucm_hasher *open_hasher(unsigned number, unsigned block_size)
{
	uint32_t scheme = schemes[number % NUM_SCHEMES];
	const struct ucm_hash_meta meta = {
		.scheme = scheme,
		.block_size = block_size ? block_size : 1000,
		.world_size = 2,
		.model = "m",
		.dtype = "d",
		.rank = number / NUM_SCHEMES % 2,
		.tail = scheme == UCM_SCHEME_UCM2 ? ":t" : NULL,
	};
	struct ucm_hasher *hasher = NULL;

	REQUIRE(!ucm_hasher_open(&meta, &hasher, NULL));
	return hasher;
}

/* The first cut tokens' whole blocks, then what follows them. */
static void in_parts(const struct ucm_hasher *hasher,
		     struct ucm_hash_request request, size_t cut,
		     struct ucm_id *ids)
{
	struct ucm_hash_state state;
	size_t num = request.num_tokens, done;

	REQUIRE(!ucm_hash_start(hasher, NULL, &state, NULL));
	request.state = &state;
	request.ids = ids;
	request.num_tokens = cut;
	request.flags = 0;
	REQUIRE(!ucm_hash_request(hasher, &request, NULL));
	done = ucm_hash_count(hasher, cut, 0);
	request.tokens += state.tokens;
	request.num_tokens = num - state.tokens;
	request.ids += done;
	request.room -= done;
	request.flags = UCM_HASH_PARTIAL;
	REQUIRE(!ucm_hash_request(hasher, &request, NULL));
}

static void hash(const struct ucm_hasher *hasher, const struct ucm_tokens *tokens)
{
	size_t room = ucm_hash_count(hasher, tokens->num, UCM_HASH_PARTIAL);
	struct ucm_id *ids = calloc(3 * room + 1, sizeof(*ids));
	struct ucm_hash_request requests[2];
	struct ucm_error error;
	size_t i, at;

	REQUIRE(ids);
	for (int i = 0; i < 2; i++) {
		requests[i] = (struct ucm_hash_request){
			.tokens = tokens->ids,
			.num_tokens = tokens->num,
			.flags = UCM_HASH_PARTIAL,
			.ids = ids + (size_t)i * room,
			.room = room,
		};
	}
	if (ucm_hash_batch(hasher, requests, 2, &error)) {
		REQUIRE(sscanf(error.text, "request %zu: token %zu is ", &i,
			       &at) == 2 &&
			at < tokens->num);
		REQUIRE(tokens->ids[at] < 0 || tokens->ids[at] > INT32_MAX);
	} else {
		in_parts(hasher, requests[0], tokens->num / 2, ids + 2 * room);
		REQUIRE(!memcmp(ids, ids + room, room * sizeof(*ids)));
		REQUIRE(!memcmp(ids, ids + 2 * room, room * sizeof(*ids)));
	}
	free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ucm_tokens tokens = { 0 };
	struct ucm_hasher *hasher;
	int err;

	if (size < 4)
		return 0;
	tokens.format = data[1] % 3;
	err = ucm_tokens_parse(&tokens, data + 4, size - 4);
	REQUIRE(tokens.offset <= size - 4);
	if (!err && tokens.num) {
		hasher = open_hasher(data[0], data[2]);
		hash(hasher, &tokens);
		ucm_hasher_close(hasher);
	}
	ucm_tokens_fini(&tokens);
	return 0;
}
