/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_pickle.c - the bytes of CPython's pickle, against arrays that CPython
 * 3.11 printed. tests/props/hash_python.sh compares with the CPython at hand.
 */
#include <config.h>

#include "hashing/pickle.h"

#include "tests/unit/hash_fixture.h"

#define FRAME_HEADER 9

static size_t small(const int64_t *tokens, size_t num, unsigned members,
		    uint8_t *out)
{
	size_t len = ucm_pickle_small(tokens, num, members, out);

	memset(out + UCM_PICKLE_PARENT, 0xaa, UCM_ID_BYTES);
	return len;
}

/* The same by way of head, tokens and tail, through a buffer of room bytes. */
static size_t in_pieces(const int64_t *tokens, size_t num, unsigned members,
			size_t room, uint8_t *out)
{
	struct ucm_pickle pickle;
	size_t len = ucm_pickle_head(&pickle, tokens, num, members, out);

	memset(out + UCM_PICKLE_PARENT, 0xaa, UCM_ID_BYTES);
	while (pickle.at < num) {
		size_t bytes = ucm_pickle_tokens(&pickle, out + len, room);

		must(bytes > 0 && bytes <= room);
		len += bytes;
	}
	return len + ucm_pickle_tail(&pickle, out + len);
}

/* pickle.dumps((b"\xaa" * 16, tuple(tokens)), 5), but for the parent; with None
 * as the third member where there are three */
static const struct {
	size_t num;
	int64_t tokens[5];
	const char *behind; /* the parent, in hex */
	uint8_t frame;
	unsigned members;
} tuples[] = {
	{ 1, { 0 }, "944b00" "8594" "86942e", 26, 2 },
	{ 2, { 255, 256 }, "944bff4d0001" "8694" "86942e", 29, 2 },
	{ 3, { 65535, 65536, 1 }, "944dffff4a000001004b01" "8794" "86942e", 34, 2 },
	{ 4, { 0x7fffffff, 2, 3, 4 }, "94284affffff7f4b024b034b04" "7494"
	  "86942e", 36, 2 },
	{ 5, { 1, 2, 3, 4, 5 }, "94284b014b024b034b044b05" "7494" "86942e", 35, 2 },
	{ 1, { 0 }, "944b00" "8594" "4e87942e", 27, 3 },
	{ 3, { 0, 1, 2 }, "944b004b014b02" "8794" "4e87942e", 31, 3 },
	{ 4, { 0, 1, 2, 3 }, "94284b004b014b024b03" "7494" "4e87942e", 34, 3 },
};

UNIT_TEST(short_tuples_have_opcodes_of_their_own, .rows = NUM_ROWS(tuples))
{
	uint8_t out[256], other[256];
	char hex[512];
	size_t len = small(tuples[_i].tokens, tuples[_i].num,
			   tuples[_i].members, out);

	ck_assert_mem_eq(out, "\x80\x05\x95", 3);
	ck_assert_uint_eq(out[3], tuples[_i].frame);
	ck_assert_uint_eq(out[3], len - 2 - FRAME_HEADER);
	ck_assert_mem_eq(out + 4, "\0\0\0\0\0\0\0\x43\x10", 9);
	for (size_t i = 29; i < len; i++)
		snprintf(hex + 2 * (i - 29), 3, "%02x", out[i]);
	ck_assert_str_eq(hex, tuples[_i].behind);
	ck_assert_uint_eq(in_pieces(tuples[_i].tokens, tuples[_i].num,
				    tuples[_i].members, 64, other),
			  len);
	ck_assert_mem_eq(out, other, len);
}

static uint64_t frame_at(const uint8_t *bytes)
{
	uint64_t len;

	must(bytes[0] == 0x95);
	memcpy(&len, bytes + 1, sizeof(len));
	return len;
}

/* How many tokens, all of 5 bytes but the first ones, which have 2; and what
 * CPython's frames are then. */
static const struct {
	size_t num, small;
	uint64_t frames[4];
	unsigned members;
} framed[] = {
	{ 13103, 0, { 65540 }, 2 },      /* 20 + 5 * 13103 = 65535: no more */
	{ 13104, 0, { 65545 }, 2 },      /* 65540, and no token behind it */
	{ 13105, 0, { 65540, 10 }, 2 },
	{ 26211, 0, { 65540, 65540 }, 2 },
	{ 26212, 0, { 65540, 65545 }, 2 },
	{ 26213, 0, { 65540, 65540, 10 }, 2 },
	{ 13105, 3, { 65541 }, 2 },      /* 65536, and no token behind it */
	{ 13106, 3, { 65536, 10 }, 2 },
	{ 13103, 2, { 65535 }, 3 },     /* 65531 with the tuple's end */
	{ 13103, 1, { 65538 }, 3 },
	{ 13103, 0, { 65537, 4 }, 3 },  /* and a None behind it */
	{ 13104, 0, { 65542, 4 }, 3 },
	{ 13105, 0, { 65540, 11 }, 3 },
	{ 26212, 0, { 65540, 65542, 4 }, 3 },
	{ 13106, 3, { 65536, 11 }, 3 },
};

UNIT_TEST(a_frame_ends_behind_64_kib, .rows = NUM_ROWS(framed))
{
	size_t num = framed[_i].num, at = 2, len;
	int64_t *tokens = calloc(num, sizeof(*tokens));
	uint8_t *out = calloc(num + 100, 6);

	for (size_t i = 0; i < num; i++)
		tokens[i] = i < framed[_i].small ? 1 : 100000;
	len = in_pieces(tokens, num, framed[_i].members, 1000, out);
	for (int i = 0; framed[_i].frames[i]; i++) {
		ck_assert_uint_eq(frame_at(out + at), framed[_i].frames[i]);
		at += FRAME_HEADER + framed[_i].frames[i];
	}
	ck_assert_uint_eq(at, len);
	free(tokens);
	free(out);
}

UNIT_TEST(pieces_of_any_size_are_the_same)
{
	size_t num = 30000, want, len;
	int64_t *tokens = calloc(num, sizeof(*tokens));
	uint8_t *out = calloc(num + 1000, 6), *other = calloc(num + 1000, 6);
	uint64_t random = random_case(0);

	random_tokens(&random, tokens, num);
	want = in_pieces(tokens, num, 2, 6 * num, out);
	for (size_t room = UCM_PICKLE_TOKEN_MAX; room < 200; room += 7) {
		len = in_pieces(tokens, num, 2, room, other);
		must(len == want && !memcmp(out, other, len));
	}
	free(tokens);
	free(out);
	free(other);
}
