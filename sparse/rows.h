/* SPDX-License-Identifier: Apache-2.0 */
/* rows.h - keys and values in a paged cache, row by row: a head of a token. */
#ifndef UCM_SPARSE_ROWS_H
#define UCM_SPARSE_ROWS_H

#include <stdlib.h>

#include "sparse/kernels.h"
#include "sparse/spec.h"

/* A cache of so many heads of dim channels, in blocks of so many tokens. */
struct ucm_rows {
	const char *name; /* in errors */
	struct ucm_keys keys;
	uint32_t block_size, num_heads, dim;
};

/* Is what is said of it right? Of its blocks, ids (NULL: 0, 1, ...) are used,
 * num > 0 of them. */
int ucm_rows_check(const struct ucm_rows *rows, const char *ids_name,
		   const int32_t *ids, size_t num, struct ucm_error *error);
/* The same of all of them. */
int ucm_rows_fit(const struct ucm_rows *rows, struct ucm_error *error);

static inline const uint8_t *ucm_key_at(const struct ucm_keys *keys,
					uint64_t block, uint32_t token,
					uint32_t head)
{
	return (const uint8_t *)keys->base +
	       (int64_t)ucm_repr_input_bytes(keys->dtype) *
		       ((int64_t)block * keys->stride_block +
			(int64_t)token * keys->stride_token +
			(int64_t)head * keys->stride_head);
}

static inline const uint8_t *ucm_row_at(const struct ucm_rows *rows,
					uint64_t block, uint32_t token,
					uint32_t head)
{
	return ucm_key_at(&rows->keys, block, token, head);
}

/* Do the heads of a token lie nearer to each other than its neighbours? */
static inline bool ucm_rows_by_token(const struct ucm_keys *keys)
{
	return llabs(keys->stride_head) <= llabs(keys->stride_token);
}

/* A row as floats. -EINVAL: a number is not finite. */
int ucm_row_widen(const struct ucm_rows *rows, uint64_t block, uint32_t token,
		  uint32_t head, float *out, struct ucm_error *error);

/* Are the rows of the first tokens finite, which are in blocks ids (NULL: 0, 1, ...)
 * that are full but for the last? -EINVAL: one is not. */
int ucm_rows_finite(const struct ucm_rows *rows, const int32_t *ids,
		    uint64_t tokens, struct ucm_error *error);

#endif
