/* SPDX-License-Identifier: Apache-2.0 */
/* tokens.c - token ids from a file; see tokens.h. */
#include <config.h>

#include "tools/data/tokens.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tools/lib/tool.h"

static void add(struct ucm_tokens *tokens, int64_t id)
{
	tokens->ids = ucm_tool_grow(tokens->ids, tokens->num, &tokens->room,
				    sizeof(*tokens->ids));
	tokens->ids[tokens->num++] = id;
}

/* ---- text ---- */

static bool is_separator(uint8_t byte)
{
	return byte == ' ' || byte == ',' || byte == '[' || byte == ']' ||
	       (byte >= '\t' && byte <= '\r');
}

/* From at on, up to the byte after its last digit. */
static int take_number(struct ucm_tokens *tokens, const uint8_t *text,
		       size_t len, size_t *at)
{
	bool negative = text[*at] == '-';
	size_t begin = *at += negative;
	int64_t value = 0;

	for (; *at < len && text[*at] >= '0' && text[*at] <= '9'; ++*at) {
		int digit = text[*at] - '0';

		if (value > (INT64_MAX - digit) / 10)
			return -ERANGE;
		value = value * 10 + digit;
	}
	if (*at == begin || (*at < len && !is_separator(text[*at])))
		return -EINVAL;
	add(tokens, negative ? -value : value);
	return 0;
}

static int parse_text(struct ucm_tokens *tokens, const uint8_t *text, size_t len)
{
	int err = 0;

	for (size_t at = 0; at < len && !err; tokens->offset = at) {
		if (is_separator(text[at]))
			at++;
		else
			err = take_number(tokens, text, len, &at);
	}
	return err;
}

/* ---- binary ---- */

static int parse_binary(struct ucm_tokens *tokens, const uint8_t *bytes,
			size_t len)
{
	size_t size = tokens->format == UCM_TOKENS_INT64 ? 8 : 4;
	int64_t wide = 0;
	int32_t narrow;

	tokens->offset = len;
	for (size_t at = 0; at + size <= len; at += size) {
		memcpy(&wide, bytes + at, size);
		memcpy(&narrow, bytes + at, sizeof(narrow));
		add(tokens, size == 8 ? wide : narrow);
	}
	return len % size ? -EINVAL : 0;
}

int ucm_tokens_parse(struct ucm_tokens *tokens, const void *bytes, size_t len)
{
	return tokens->format == UCM_TOKENS_TEXT
		       ? parse_text(tokens, bytes, len)
		       : parse_binary(tokens, bytes, len);
}

void ucm_tokens_fini(struct ucm_tokens *tokens)
{
	free(tokens->ids);
	*tokens = (struct ucm_tokens){ 0 };
}
