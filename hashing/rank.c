/* SPDX-License-Identifier: Apache-2.0 */
/* rank.c - ids that are made of one id each: other ranks', and the engine's. */
#include <config.h>

#include "hashing/sha.h"
#include "hashing/walk.h"

#include <errno.h>
#include <string.h>

/* Ids in parts of one walk each, as there is no chain between them. */
struct parts {
	const struct ucm_hasher *hasher;
	const struct ucm_midstate *lead;
	const struct ucm_id *from;
	struct ucm_id *to;
	size_t left, part;
};

/* A ucm_walk_source. */
static bool next_part(void *arg, struct ucm_walk *walk)
{
	struct parts *parts = arg;
	size_t num = parts->left < parts->part ? parts->left : parts->part;

	if (num == 0)
		return false;
	walk->hasher = parts->hasher;
	walk->encoder = &ucm_encode_rank;
	walk->lead = parts->lead;
	walk->tokens = NULL;
	walk->num_tokens = 0;
	walk->from = parts->from;
	walk->ids = parts->to;
	walk->num_ids = num;
	walk->num_whole = num;
	memset(&walk->at_start, 0, sizeof(walk->at_start));
	walk->at_end = NULL;
	ucm_walk_begin(walk);
	parts->from += num;
	parts->to += num;
	parts->left -= num;
	return true;
}

static void rank_md5(const struct ucm_hasher *hasher, uint32_t rank,
		     const struct ucm_id *ids0, size_t num, struct ucm_id *out)
{
	struct ucm_midstate lead;
	struct parts parts = {
		.hasher = hasher,
		.lead = &lead,
		.from = ids0,
		.to = out,
		.left = num,
		.part = (num + UCM_MD5_LANES - 1) / UCM_MD5_LANES,
	};

	ucm_midstate_meta(hasher, rank, &lead);
	ucm_walk_all(num > 1 ? hasher->lanes : NULL, next_part, &parts);
}

static struct ucm_id rank_sha256(uint32_t rank, const struct ucm_id *id0)
{
	struct ucm_sha256 sha;

	ucm_sha256_begin(&sha);
	ucm_sha_rank(rank, id0, ucm_sha_add, &sha);
	return ucm_sha_end(&sha);
}

int ucm_hash_rank_ids(const struct ucm_hasher *hasher, uint32_t rank,
		      const struct ucm_id *ids0, size_t num,
		      struct ucm_id *out)
{
	if (rank >= hasher->meta.world_size)
		return -EINVAL;
	if (hasher->meta.mla)
		rank = 0;
	else if (!hasher->info->ranks)
		return -ENOTSUP;
	if (rank == 0)
		memmove(out, ids0, num * sizeof(*out));
	else if (hasher->info->pickled)
		rank_md5(hasher, rank, ids0, num, out);
	else
		for (size_t i = 0; i < num; i++)
			out[i] = rank_sha256(rank, &ids0[i]);
	return 0;
}

int ucm_hash_external(const struct ucm_hasher *hasher, uint32_t group,
		      const void *hashes, size_t hash_bytes, size_t num,
		      struct ucm_id *ids)
{
	const uint8_t *hash = hashes;

	if (hasher->meta.scheme != UCM_SCHEME_EXTERNAL)
		return -ENOTSUP;
	if (hash_bytes != 16 && hash_bytes != 32)
		return -EINVAL;
	for (size_t i = 0; i < num; i++, hash += hash_bytes) {
		struct ucm_sha256 sha;

		ucm_sha256_begin(&sha);
		ucm_sha_external(hasher->meta.space_id, group, hash,
				 hash_bytes, ucm_sha_add, &sha);
		ids[i] = ucm_sha_end(&sha);
	}
	return ucm_hash_rank_ids(hasher, hasher->rank, ids, num, ids);
}
