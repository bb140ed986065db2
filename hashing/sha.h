/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sha.h - the messages of the schemes over SHA-256, as ucm_hash(3) has them.
 *
 * Each begins with "UCMH", a version and a kind, so that no message of one
 * kind is one of another; whatever varies in length has its length before it.
 */
#ifndef UCM_SHA_H
#define UCM_SHA_H

#include "hashing/hasher.h"

/* A block of num tokens, the first of them number position of the request. */
struct ucm_sha_block {
	struct ucm_id parent;
	const int64_t *tokens;
	size_t num;
	uint64_t position;
	const struct ucm_hash_extras *extras; /* for the items */
};

void ucm_sha_root(const struct ucm_hash_meta *meta,
		  const struct ucm_hash_extras *extras, ucm_sink sink,
		  void *arg);
void ucm_sha_block(const struct ucm_sha_block *block, ucm_sink sink,
		   void *arg);
void ucm_sha_rank(uint32_t rank, const struct ucm_id *id0, ucm_sink sink,
		  void *arg);
void ucm_sha_external(const uint8_t *space_id, uint32_t group,
		      const void *hash, size_t hash_bytes, ucm_sink sink,
		      void *arg);

/* The sink that hashes; arg is a struct ucm_sha256. */
void ucm_sha_add(void *arg, const char *name, const void *bytes, size_t len);

/* Its first 16 bytes. */
struct ucm_id ucm_sha_end(struct ucm_sha256 *sha);

#endif
