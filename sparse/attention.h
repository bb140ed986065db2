/* SPDX-License-Identifier: Apache-2.0 */
/* attention.h - what an attention is asked over: is it right, and what follows
 * from it. */
#ifndef UCM_SPARSE_ATTENTION_H
#define UCM_SPARSE_ATTENTION_H

#include <ucm/position.h>

#include "sparse/rows.h"

struct ucm_attention_shape {
	struct ucm_rows keys, values;
	uint32_t group; /* query heads to a key head */
	uint32_t num_blocks;
	double scale;
};

/* All but whether keys and values are finite. */
int ucm_attention_check(const struct ucm_attention *attention,
			struct ucm_attention_shape *out,
			struct ucm_error *error);

/* Tokens of entry i of the table. */
static inline uint32_t
ucm_attention_tokens(const struct ucm_attention *attention, uint32_t i)
{
	uint32_t before = i * attention->block_size;
	uint32_t left = attention->num_tokens - before;

	return left < attention->block_size ? left : attention->block_size;
}

#endif
