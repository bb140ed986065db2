/* SPDX-License-Identifier: Apache-2.0 */
/*
 * encode.c - the messages of the schemes over MD5.
 *
 * ucm       meta ‖ pickle of (parent, tuple(tokens))
 * ucm2      the same with another meta, and None in the tuple
 * chain     parent ‖ tokens as int32
 * prefix    tokens as 32 bits each, from the request's first on
 * hexchain  parent in hex, except for the first block ‖ tokens as int32 ‖
 *           block size in decimal
 * rank      meta of the rank ‖ rank 0's id; of ucm and ucm2
 *
 * All numbers little-endian, as the machine has them (configure.ac).
 */
#include <config.h>

#include "hashing/walk.h"

#include <string.h>

typedef int64_t longs4 __attribute__((vector_size(32)));
typedef uint32_t words4 __attribute__((vector_size(16)));

static size_t no_tail(struct ucm_walk *walk, uint8_t *out)
{
	(void)walk;
	(void)out;
	return 0;
}

static inline size_t put_num_words(const struct ucm_walk *walk, size_t num,
				   uint8_t *out)
{
	const int64_t *tokens = walk->tokens + walk->at;
	size_t i;

	for (i = 0; i + 4 <= num; i += 4) {
		longs4 longs;
		words4 words;

		memcpy(&longs, tokens + i, sizeof(longs));
		words = __builtin_convertvector(longs, words4);
		memcpy(out + i * 4, &words, sizeof(words));
	}
	for (; i < num; i++) {
		uint32_t word = (uint32_t)tokens[i];

		memcpy(out + i * 4, &word, sizeof(word));
	}
	return num * 4;
}

static size_t put_words(struct ucm_walk *walk, uint8_t *out, size_t room)
{
	size_t num = walk->end - walk->at, bytes;

	if (num > room / sizeof(uint32_t))
		num = room / sizeof(uint32_t);
	bytes = put_num_words(walk, num, out);
	walk->at += num;
	return bytes;
}

static size_t put_lead(const struct ucm_walk *walk, uint8_t *out)
{
	memcpy(out, walk->lead->rest, sizeof(walk->lead->rest));
	return ucm_midstate_rest(walk->lead);
}

/* ---- ucm ---- */

static size_t ucm_whole(struct ucm_walk *walk, uint8_t *out)
{
	size_t lead = put_lead(walk, out);

	return lead + ucm_pickle_small(walk->tokens + walk->at,
				       walk->end - walk->at,
				       walk->hasher->info->pickled, out + lead);
}

static size_t ucm_head(struct ucm_walk *walk, uint8_t *out)
{
	size_t lead = put_lead(walk, out);

	return lead + ucm_pickle_head(&walk->pickle, walk->tokens + walk->at,
				      walk->end - walk->at,
				      walk->hasher->info->pickled, out + lead);
}

static void ucm_parent(const struct ucm_walk *walk, uint8_t *message)
{
	memcpy(message + ucm_midstate_rest(walk->lead) + UCM_PICKLE_PARENT,
	       &walk->parent, UCM_ID_BYTES);
}

static size_t ucm_tokens(struct ucm_walk *walk, uint8_t *out, size_t room)
{
	size_t bytes = ucm_pickle_tokens(&walk->pickle, out, room);

	if (walk->pickle.at == walk->pickle.num)
		walk->at = walk->end;
	return bytes;
}

static size_t ucm_tail(struct ucm_walk *walk, uint8_t *out)
{
	return ucm_pickle_tail(&walk->pickle, out);
}

const struct ucm_encoder ucm_encode_ucm = {
	.whole = ucm_whole,
	.parent = ucm_parent,
	.head = ucm_head,
	.tokens = ucm_tokens,
	.tail = ucm_tail,
};

/* ---- rank ---- */

static size_t rank_whole(struct ucm_walk *walk, uint8_t *out)
{
	return put_lead(walk, out) + UCM_ID_BYTES;
}

/* not the block's parent, but in its place */
static void rank_parent(const struct ucm_walk *walk, uint8_t *message)
{
	memcpy(message + ucm_midstate_rest(walk->lead),
	       &walk->from[walk->index], UCM_ID_BYTES);
}

const struct ucm_encoder ucm_encode_rank = {
	.whole = rank_whole,
	.parent = rank_parent,
};

/* ---- chain ---- */

static size_t chain_head(struct ucm_walk *walk, uint8_t *out)
{
	(void)walk;
	(void)out;
	return UCM_ID_BYTES;
}

static size_t chain_whole(struct ucm_walk *walk, uint8_t *out)
{
	return UCM_ID_BYTES + put_num_words(walk, walk->end - walk->at,
					    out + UCM_ID_BYTES);
}

static void chain_parent(const struct ucm_walk *walk, uint8_t *message)
{
	memcpy(message, &walk->parent, UCM_ID_BYTES);
}

const struct ucm_encoder ucm_encode_chain = {
	.whole = chain_whole,
	.parent = chain_parent,
	.head = chain_head,
	.tokens = put_words,
	.tail = no_tail,
};

/* ---- prefix ---- */

const struct ucm_encoder ucm_encode_prefix = {
	.tokens = put_words,
	.cumulative = true,
};

/* ---- hexchain ---- */

static size_t hexchain_head(struct ucm_walk *walk, uint8_t *out)
{
	(void)out;
	return walk->at == 0 && walk->at_start.tokens == 0 ? 0 : UCM_ID_HEX;
}

static void hexchain_parent(const struct ucm_walk *walk, uint8_t *message)
{
	static const char digits[] = "0123456789abcdef";

	if (walk->index == 0 && walk->at_start.tokens == 0)
		return;
	for (size_t i = 0; i < UCM_ID_BYTES; i++) {
		uint8_t byte = walk->parent.bytes[i];

		message[2 * i] = (uint8_t)digits[byte >> 4];
		message[2 * i + 1] = (uint8_t)digits[byte & 15];
	}
}

static size_t hexchain_tail(struct ucm_walk *walk, uint8_t *out)
{
	size_t len = strlen(walk->hasher->decimal);

	memcpy(out, walk->hasher->decimal, len);
	return len;
}

static size_t hexchain_whole(struct ucm_walk *walk, uint8_t *out)
{
	size_t bytes = hexchain_head(walk, out);

	bytes += put_num_words(walk, walk->end - walk->at, out + bytes);
	return bytes + hexchain_tail(walk, out + bytes);
}

const struct ucm_encoder ucm_encode_hexchain = {
	.whole = hexchain_whole,
	.parent = hexchain_parent,
	.head = hexchain_head,
	.tokens = put_words,
	.tail = hexchain_tail,
};
