/* SPDX-License-Identifier: Apache-2.0 */
/* tokens.c - token ids from a file; see tokens.h. */
#include <config.h>

#include "tools/data/tokens.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int add(struct ucm_tokens *tokens, int64_t id)
{
	if (tokens->num == tokens->room) {
		size_t room = tokens->room ? 2 * tokens->room : 1024;
		int64_t *ids = reallocarray(tokens->ids, room, sizeof(*ids));

		if (!ids)
			return -ENOMEM;
		tokens->ids = ids;
		tokens->room = room;
	}
	tokens->ids[tokens->num++] = id;
	return 0;
}

/* ---- text ---- */

static bool is_separator(uint8_t byte)
{
	return byte == ' ' || byte == ',' || byte == '[' || byte == ']' ||
	       (byte >= '\t' && byte <= '\r');
}

static int add_digit(struct ucm_tokens *tokens, unsigned digit)
{
	if (tokens->value > ((uint64_t)INT64_MAX - digit) / 10)
		return -ERANGE;
	tokens->value = tokens->value * 10 + digit;
	tokens->have++;
	return 0;
}

static int end_number(struct ucm_tokens *tokens)
{
	int64_t value = (int64_t)tokens->value;
	bool negative = tokens->negative;

	if (!tokens->have)
		return negative ? -EINVAL : 0;
	tokens->have = 0;
	tokens->value = 0;
	tokens->negative = false;
	return add(tokens, negative ? -value : value);
}

static int feed_char(struct ucm_tokens *tokens, uint8_t byte)
{
	if (byte >= '0' && byte <= '9')
		return add_digit(tokens, byte - '0');
	if (byte == '-' && !tokens->have && !tokens->negative) {
		tokens->negative = true;
		return 0;
	}
	return is_separator(byte) ? end_number(tokens) : -EINVAL;
}

/* ---- binary ---- */

static int add_binary(struct ucm_tokens *tokens)
{
	int64_t wide;
	int32_t narrow;

	tokens->have = 0;
	if (tokens->format == UCM_TOKENS_INT64) {
		memcpy(&wide, tokens->bytes, sizeof(wide));
		return add(tokens, wide);
	}
	memcpy(&narrow, tokens->bytes, sizeof(narrow));
	return add(tokens, narrow);
}

static int feed_byte(struct ucm_tokens *tokens, uint8_t byte)
{
	unsigned size = tokens->format == UCM_TOKENS_INT64 ? 8 : 4;

	tokens->bytes[tokens->have++] = byte;
	return tokens->have == size ? add_binary(tokens) : 0;
}

int ucm_tokens_feed(struct ucm_tokens *tokens, const void *bytes, size_t len)
{
	const uint8_t *at = bytes;

	for (size_t i = 0; i < len; i++) {
		int err = tokens->format == UCM_TOKENS_TEXT
				  ? feed_char(tokens, at[i])
				  : feed_byte(tokens, at[i]);

		if (err)
			return err;
		tokens->offset++;
	}
	return 0;
}

int ucm_tokens_end(struct ucm_tokens *tokens)
{
	if (tokens->format == UCM_TOKENS_TEXT)
		return end_number(tokens);
	return tokens->have ? -EINVAL : 0;
}

void ucm_tokens_fini(struct ucm_tokens *tokens)
{
	free(tokens->ids);
	tokens->ids = NULL;
	tokens->num = 0;
	tokens->room = 0;
}
