/* SPDX-License-Identifier: Apache-2.0 */
/* test_md5.c - our MD5 is OpenSSL's, alone and in lanes. */
#include <config.h>

#include "hashing/md5.h"

#include "hashing/digest.h"
#include "hashing/hasher.h"
#include "tests/unit/hash_fixture.h"

#define MAX_LEN 300
#define NUM_MESSAGES 1000000
#define ROOM (MAX_LEN + UCM_MD5_PADDING + UCM_MD5_CHUNK)

static void fill(uint64_t *state, uint8_t *bytes, size_t len)
{
	for (size_t i = 0; i < len; i += 8) {
		uint64_t word = random_next(state);

		memcpy(bytes + i, &word, len - i < 8 ? len - i : 8);
	}
}

/* Pad a message where it is; its chunks. */
static size_t finish(uint8_t *bytes, size_t len)
{
	size_t whole = len / UCM_MD5_CHUNK * UCM_MD5_CHUNK;

	return whole / UCM_MD5_CHUNK +
	       ucm_md5_pad(bytes + whole, len - whole, len);
}

UNIT_TEST(every_length_is_padded_as_openssl_does)
{
	uint8_t bytes[ROOM], want[16], got[16];
	uint64_t random = random_case(0);

	for (size_t len = 0; len <= MAX_LEN; len++) {
		uint32_t state[4];

		fill(&random, bytes, len);
		must(ucm_md5(bytes, len, want) == 0);
		memcpy(state, ucm_md5_init, sizeof(state));
		ucm_md5_one(state, bytes, finish(bytes, len));
		ucm_md5_digest(state, got);
		must(!memcmp(got, want, sizeof(got)));
	}
}

static const char *const ways[] = { "avx2", "avx512" };

/* Sixteen random messages of one length. */
static void compare_lanes(ucm_md5_lanes compress, uint64_t *random)
{
	static uint8_t bytes[UCM_MD5_LANES][ROOM];
	uint8_t want[UCM_MD5_LANES][16], got[16];
	uint32_t state[4][UCM_MD5_LANES], column[4];
	const uint8_t *data[UCM_MD5_LANES];
	size_t len = random_next(random) % MAX_LEN, chunks = 0;

	for (int lane = 0; lane < UCM_MD5_LANES; lane++) {
		fill(random, bytes[lane], len);
		must(ucm_md5(bytes[lane], len, want[lane]) == 0);
		chunks = finish(bytes[lane], len);
		data[lane] = bytes[lane];
		for (int i = 0; i < 4; i++)
			state[i][lane] = ucm_md5_init[i];
	}
	compress(state, data, chunks);
	for (int lane = 0; lane < UCM_MD5_LANES; lane++) {
		for (int i = 0; i < 4; i++)
			column[i] = state[i][lane];
		ucm_md5_digest(column, got);
		must(!memcmp(got, want[lane], sizeof(got)));
	}
}

UNIT_TEST(a_million_messages_in_lanes_are_openssl_s, .rows = NUM_ROWS(ways))
{
	ucm_md5_lanes compress = ucm_md5_lanes_named(ways[_i]);
	uint64_t random = random_case(0);

	if (!compress) {
		unit_skip("MD5 in lanes: this CPU has no %s", ways[_i]);
		return;
	}
	for (int i = 0; i < NUM_MESSAGES; i += UCM_MD5_LANES)
		compare_lanes(compress, &random);
}

UNIT_TEST(a_lane_does_not_care_where_its_message_lies)
{
	static uint8_t bytes[UCM_MD5_LANES * 65 + 128];
	ucm_md5_lanes compress = ucm_md5_lanes_best();
	uint32_t state[4][UCM_MD5_LANES] = { { 0 } };
	const uint8_t *data[UCM_MD5_LANES];
	uint64_t random = random_case(0);

	fill(&random, bytes, sizeof(bytes));
	for (int lane = 0; lane < UCM_MD5_LANES; lane++)
		data[lane] = bytes + 65 * lane; /* every misalignment */
	if (!compress) {
		unit_skip("MD5 in lanes: this CPU has none");
		return;
	}
	compress(state, data, 1);
	for (int lane = 0; lane < UCM_MD5_LANES; lane++) {
		uint32_t alone[4] = { 0 };

		ucm_md5_one(alone, data[lane], 1);
		for (int i = 0; i < 4; i++)
			must(state[i][lane] == alone[i]);
	}
}

UNIT_TEST(an_unknown_way_is_none)
{
	ck_assert(!ucm_md5_lanes_named("mmx"));
}

UNIT_TEST(a_lead_in_pieces_is_the_lead_at_once)
{
	struct ucm_midstate once, pieces;
	uint8_t bytes[200];
	uint64_t random = random_case(0);

	fill(&random, bytes, sizeof(bytes));
	for (size_t len = 0; len <= sizeof(bytes); len++) {
		ucm_midstate_init(&once);
		ucm_midstate_init(&pieces);
		ucm_midstate_add(&once, "", bytes, len);
		for (size_t i = 0; i < len; i++)
			ucm_midstate_add(&pieces, "", bytes + i, 1);
		must(once.bytes == len && ucm_midstate_rest(&once) == len % 64);
		must(!memcmp(once.state, pieces.state, sizeof(once.state)));
		must(!memcmp(once.rest, pieces.rest, len % 64));
	}
}
