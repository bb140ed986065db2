/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokens.h - token ids from a file: text, or binary integers.
 *
 * Text: decimal numbers between white space, commas or brackets, so that a list
 * as Python or JSON prints it can be given as it is. Bytes are fed in portions
 * of any length; a number may begin in one and end in the next.
 */
#ifndef UCM_TOOLS_DATA_TOKENS_H
#define UCM_TOOLS_DATA_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ucm_token_format {
	UCM_TOKENS_TEXT,
	UCM_TOKENS_INT32, /* little-endian, as the machine is */
	UCM_TOKENS_INT64,
};

/* Zeroed, with the format set, before the first feed. */
struct ucm_tokens {
	enum ucm_token_format format;
	int64_t *ids; /* num of them; freed by ucm_tokens_fini() */
	size_t num, room;
	uint64_t offset; /* bytes read; of the wrong one after an error */
	/* a number that has begun */
	uint8_t bytes[8];
	unsigned have; /* digits, or bytes */
	bool negative;
	uint64_t value;
};

/* 0; -EINVAL: not a number; -ERANGE: does not fit 64 bits; -ENOMEM. */
int ucm_tokens_feed(struct ucm_tokens *tokens, const void *bytes, size_t len);

/* The input is over: -EINVAL if it ends inside a number. */
int ucm_tokens_end(struct ucm_tokens *tokens);

void ucm_tokens_fini(struct ucm_tokens *tokens);

#endif
