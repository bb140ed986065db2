/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle.h - the bytes that CPython writes for (parent, tuple(tokens)), and for
 * (parent, tuple(tokens), None).
 *
 * pickle.dumps(..., 5) of CPython's C pickler, 3.8 and later: 16 bytes and a
 * tuple of ints from 0 to 2^31 - 1, in frames of 64 KiB and a little more.
 */
#ifndef UCM_PICKLE_H
#define UCM_PICKLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UCM_PICKLE_PARENT 13 /* where the 16 bytes of the parent are */
#define UCM_PICKLE_FRAME 9   /* bytes with which a frame begins */
#define UCM_PICKLE_TOKEN_MAX 32 /* of one token, with a frame before it */

/* The whole of a small one, of one frame, with room for the parent at
 * UCM_PICKLE_PARENT. members: 2, or 3 with None. Returns the bytes written; 8
 * more may be touched. */
size_t ucm_pickle_small(const int64_t *tokens, size_t num, unsigned members,
			uint8_t *out);

/* A larger one that is being written. */
struct ucm_pickle {
	const int64_t *tokens;
	size_t num;       /* tokens, at least 1 */
	unsigned members; /* of the tuple: 2, or 3 */
	bool apart;       /* the third is in a separate frame */
	size_t at;        /* the next to be written */
	size_t frame_end; /* where the frame in hand ends: a token's index */
};

/* Begin: everything before the first token, with room for the parent at
 * UCM_PICKLE_PARENT. Returns the bytes written. */
size_t ucm_pickle_head(struct ucm_pickle *pickle, const int64_t *tokens,
		       size_t num, unsigned members, uint8_t *out);

/* As many tokens as fit in room; all are written when at == num. */
size_t ucm_pickle_tokens(struct ucm_pickle *pickle, uint8_t *out, size_t room);

size_t ucm_pickle_tail(const struct ucm_pickle *pickle, uint8_t *out);

#endif
