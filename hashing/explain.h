/* SPDX-License-Identifier: Apache-2.0 */
/*
 * explain.h - the very bytes that go into a hash, for people to look at.
 *
 * They come from the code that hashes, not from another that does the same: what
 * is said of metas and seeds here is also what is hashed.
 */
#ifndef UCM_EXPLAIN_H
#define UCM_EXPLAIN_H

#include "hashing/hasher.h"

/* "model:world_size:dtype:rank", and the tail. */
void ucm_explain_meta(const struct ucm_hasher *hasher, uint32_t rank,
		      ucm_sink sink, void *arg);

/* What the first block's parent is made of; nothing if it has none. */
void ucm_explain_seed(const struct ucm_hasher *hasher, ucm_sink sink,
		      void *arg);

/*
 * Block number index of a request; state is the one before the request's first
 * token, parent rank 0's id of the block before. 0 or -ENOMEM.
 */
int ucm_explain_block(const struct ucm_hasher *hasher,
		      const struct ucm_hash_request *request,
		      const struct ucm_hash_state *state, size_t index,
		      const struct ucm_id *parent, ucm_sink sink, void *arg);

/* What a rank's id is made of; nothing if it is rank 0's. */
void ucm_explain_rank(const struct ucm_hasher *hasher,
		      const struct ucm_id *id0, ucm_sink sink, void *arg);

#endif
