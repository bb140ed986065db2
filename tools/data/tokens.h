/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokens.h - token ids from a file: text, or binary integers.
 *
 * Text: decimal numbers between white space, commas or brackets, so that a list
 * as Python or JSON prints it can be given as it is.
 */
#ifndef UCM_TOOLS_DATA_TOKENS_H
#define UCM_TOOLS_DATA_TOKENS_H

#include <stddef.h>
#include <stdint.h>

enum ucm_token_format {
	UCM_TOKENS_TEXT,
	UCM_TOKENS_INT32, /* little-endian, as the machine is */
	UCM_TOKENS_INT64,
};

/* Zeroed, with the format set, before it is read. */
struct ucm_tokens {
	enum ucm_token_format format;
	int64_t *ids; /* num of them; freed by ucm_tokens_fini() */
	size_t num, room;
	uint64_t offset; /* bytes read; of the wrong one after an error */
};

/* The whole input. 0; -EINVAL: not a number, or it ends inside of one; -ERANGE: does
 * not fit 64 bits. */
int ucm_tokens_parse(struct ucm_tokens *tokens, const void *bytes, size_t len);

void ucm_tokens_fini(struct ucm_tokens *tokens);

#endif
