/* SPDX-License-Identifier: Apache-2.0 */
/* lists.h - lists of blocks and scores that a caller gives, and arrays in its
 * memory. */
#ifndef UCM_SPARSE_LISTS_H
#define UCM_SPARSE_LISTS_H

#include <stddef.h>
#include <stdint.h>

#include <ucm/error.h>

#include "common/align.h"

/* Mark the blocks of a list: mark[block] = serial, which is none so far.
 * -EINVAL: one is not below limit, or is there twice; some have been marked. */
int ucm_list_mark(const uint32_t *blocks, size_t num, uint32_t limit,
		  uint64_t *mark, uint64_t serial, struct ucm_error *error);

/* The least and the largest of num scores, all finite; 0 and 0 if there are
 * none. At most limit. */
int ucm_list_range(const float *scores, size_t num, uint32_t limit,
		   float *least, float *most, struct ucm_error *error);

/* The next array of num items in a memory, *end bytes of which are taken; base
 * NULL: count only. */
static inline void *ucm_list_lay(uint8_t *base, size_t *end, size_t num,
				 size_t item)
{
	void *at = base ? base + *end : NULL;

	*end = ucm_round_up(*end + num * item, 64);
	return at;
}

/* What begins in the caller's memory of so many bytes: it is there, and zeroed;
 * and out, where it is to be told, is there. */
int ucm_list_memory(void *memory, size_t bytes, const void *out,
		    struct ucm_error *error);

#endif
