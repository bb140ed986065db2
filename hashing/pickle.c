/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle.c - Python's pickle of a block; see pickle.h.
 *
 * A frame announces its length, so the tokens of a frame are measured before
 * the first of them is written. CPython ends a frame before the first token
 * that finds 64 KiB in it, or before the None; what closes the tuples stays in
 * the last one.
 */
#include <config.h>

#include "hashing/pickle.h"

#include <string.h>

#define FRAME_TARGET 65536u

/* opcodes of protocol 5 */
#define PROTO 0x80
#define FRAME 0x95
#define SHORT_BINBYTES 0x43
#define MEMOIZE 0x94
#define MARK 0x28
#define TUPLE 0x74
#define TUPLE_OF(n) (0x84 + (n)) /* 1 to 3 */
#define STOP 0x2e
#define NONE 0x4e
#define BININT1 0x4b
#define BININT2 0x4d
#define BININT 0x4a

#define MARKED(num) ((num) > 3) /* shorter tuples have their own opcodes */
#define FRAME_AT 11u /* where what the first frame counts begins */
#define HEAD_BYTES(num) (FRAME_AT + 19u + MARKED(num))
#define TAIL_BYTES(members) ((members) + 3u)

static inline size_t token_bytes(int64_t token)
{
	return 2u + (token > 0xff) + 2u * (token > 0xffff);
}

/* Measure a frame that begins at a token; before: its bytes ahead of that. */
static size_t measure(struct ucm_pickle *pickle, size_t before)
{
	size_t bytes = before, at = pickle->at;

	if (pickle->num - at <= (FRAME_TARGET - 64) / 5) {
		for (; at < pickle->num; at++)
			bytes += token_bytes(pickle->tokens[at]);
	} else {
		for (; at < pickle->num && bytes < FRAME_TARGET; at++)
			bytes += token_bytes(pickle->tokens[at]);
	}
	pickle->frame_end = at;
	if (at < pickle->num)
		return bytes;
	pickle->apart = pickle->members > 2 && bytes + 2 >= FRAME_TARGET;
	return bytes + (pickle->apart ? 2 : TAIL_BYTES(pickle->members));
}

static size_t put_frame(uint64_t bytes, uint8_t *out)
{
	out[0] = FRAME;
	memcpy(out + 1, &bytes, sizeof(bytes));
	return UCM_PICKLE_FRAME;
}

/* Up to the tokens, for a first frame of so many bytes. */
static size_t put_head(uint64_t frame_bytes, size_t num, uint8_t *out)
{
	out[0] = PROTO;
	out[1] = 5;
	put_frame(frame_bytes, out + 2);
	out[11] = SHORT_BINBYTES;
	out[12] = 16;
	out[29] = MEMOIZE;
	out[30] = MARK; /* overwritten by the first token if it has no place */
	return HEAD_BYTES(num);
}

/* 8 bytes at a time: the next token overwrites what is too much. */
static inline size_t put_tokens(const int64_t *tokens, size_t num,
				uint8_t *out)
{
	static const uint8_t opcode[6] = {
		[2] = BININT1, [3] = BININT2, [5] = BININT,
	};
	uint8_t *at = out;

	for (size_t i = 0; i < num; i++) {
		size_t bytes = token_bytes(tokens[i]);
		uint64_t word = (uint64_t)tokens[i] << 8 | opcode[bytes];

		memcpy(at, &word, sizeof(word));
		at += bytes;
	}
	return (size_t)(at - out);
}

static size_t put_tail(size_t num, unsigned members, bool apart, uint8_t *out)
{
	uint8_t *at = out;

	*at++ = MARKED(num) ? TUPLE : (uint8_t)TUPLE_OF(num);
	*at++ = MEMOIZE;
	if (apart)
		at += put_frame(TAIL_BYTES(members) - 2, at);
	if (members > 2)
		*at++ = NONE;
	*at++ = (uint8_t)TUPLE_OF(members);
	*at++ = MEMOIZE;
	*at++ = STOP;
	return (size_t)(at - out);
}

size_t ucm_pickle_small(const int64_t *tokens, size_t num, unsigned members,
			uint8_t *out)
{
	size_t bytes = put_head(0, num, out);

	bytes += put_tokens(tokens, num, out + bytes);
	bytes += put_tail(num, members, false, out + bytes);
	put_frame(bytes - FRAME_AT, out + 2);
	return bytes;
}

size_t ucm_pickle_head(struct ucm_pickle *pickle, const int64_t *tokens,
		       size_t num, unsigned members, uint8_t *out)
{
	pickle->tokens = tokens;
	pickle->num = num;
	pickle->members = members;
	pickle->at = 0;
	return put_head(measure(pickle, HEAD_BYTES(num) - FRAME_AT), num, out);
}

size_t ucm_pickle_tokens(struct ucm_pickle *pickle, uint8_t *out, size_t room)
{
	size_t done = 0;

	while (pickle->at < pickle->num &&
	       room - done >= UCM_PICKLE_TOKEN_MAX) {
		size_t fit = (room - done - UCM_PICKLE_TOKEN_MAX) / 5 + 1;
		size_t end = pickle->frame_end;

		if (pickle->at == end) {
			done += put_frame(measure(pickle, 0), out + done);
			continue;
		}
		if (end - pickle->at > fit)
			end = pickle->at + fit;
		done += put_tokens(pickle->tokens + pickle->at,
				   end - pickle->at, out + done);
		pickle->at = end;
	}
	return done;
}

size_t ucm_pickle_tail(const struct ucm_pickle *pickle, uint8_t *out)
{
	return put_tail(pickle->num, pickle->members, pickle->apart, out);
}
