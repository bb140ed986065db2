/* SPDX-License-Identifier: Apache-2.0 */
/* hash_fixture.h - hashers and requests for the tests of hashing/. */
#ifndef UCM_TESTS_HASH_FIXTURE_H
#define UCM_TESTS_HASH_FIXTURE_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <ucm/hash.h>

#include "tests/unit/random.h"
#include "tests/unit/unit.h"

static const uint32_t token_schemes[] = {
	UCM_SCHEME_UCM, UCM_SCHEME_CHAIN, UCM_SCHEME_PREFIX,
	UCM_SCHEME_HEXCHAIN, UCM_SCHEME_SHA256, UCM_SCHEME_UCM2,
};

/* what UCM 0.8.1 has after the rank of a plain model */
#define UCM2_TAIL ":sfa_c8=0:li_c8=0:dcp=1:layout=0123456789abcdef"

static inline struct ucm_hash_meta meta_of(uint32_t scheme, uint32_t block_size)
{
	static uint8_t space[UCM_HASH_DIGEST_BYTES];

	for (unsigned i = 0; i < sizeof(space); i++)
		space[i] = (uint8_t)(64 + i);
	return (struct ucm_hash_meta){
		.scheme = scheme,
		.block_size = block_size,
		.world_size = 2,
		.model = "/models/test",
		.dtype = "torch.bfloat16",
		.tail = scheme == UCM_SCHEME_UCM2 ? UCM2_TAIL : NULL,
		.space_id = space,
	};
}

static inline struct ucm_hasher *open_meta(const struct ucm_hash_meta *meta)
{
	struct ucm_error error = { "" };
	struct ucm_hasher *hasher = NULL;
	int err = ucm_hasher_open(meta, &hasher, &error);

	if (err)
		ck_abort_msg("ucm_hasher_open: %d, %s", err, error.text);
	return hasher;
}

static inline struct ucm_hasher *open_scheme(uint32_t scheme,
					     uint32_t block_size)
{
	struct ucm_hash_meta meta = meta_of(scheme, block_size);

	return open_meta(&meta);
}

/* All ids, the partial one's with them; freed by the caller. */
static inline struct ucm_id *ids_of(const struct ucm_hasher *hasher,
				    const int64_t *tokens, size_t num)
{
	size_t room = ucm_hash_count(hasher, num, UCM_HASH_PARTIAL);
	struct ucm_hash_request request = {
		.tokens = tokens,
		.num_tokens = num,
		.flags = UCM_HASH_PARTIAL,
		.ids = calloc(room + 1, sizeof(struct ucm_id)),
		.room = room,
	};

	must(request.ids);
	must(ucm_hash_request(hasher, &request, NULL) == 0);
	return request.ids;
}

static inline bool same_ids(const struct ucm_id *a, const struct ucm_id *b,
			    size_t num)
{
	return !memcmp(a, b, num * sizeof(*a));
}

static inline void id_text(const struct ucm_id *id, char hex[33])
{
	for (size_t i = 0; i < UCM_ID_BYTES; i++)
		snprintf(hex + 2 * i, 3, "%02x", id->bytes[i]);
}

#define assert_id(id, want)                                                   \
	do {                                                                  \
		char id_hex[33];                                              \
		id_text(id, id_hex);                                          \
		ck_assert_str_eq(id_hex, want);                               \
	} while (0)

/* Token ids of one, two and four bytes. */
static inline void random_tokens(uint64_t *state, int64_t *tokens, size_t num)
{
	static const uint64_t ranges[] = { 0xff, 0xffff, 0x7fffffff };

	for (size_t i = 0; i < num; i++)
		tokens[i] = (int64_t)(random_next(state) &
				      ranges[random_next(state) % 3]);
}

#endif
