/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.c - ids of requests: check everything, then hash it.
 *
 * Ids are rank 0's at first; another rank's are made of them in place.
 */
#include <config.h>

#include "hashing/sha.h"
#include "hashing/walk.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "common/error.h"

size_t ucm_hash_count(const struct ucm_hasher *hasher, size_t num_tokens,
		      uint32_t flags)
{
	uint32_t block_size = hasher->meta.block_size;

	return num_tokens / block_size +
	       (flags & UCM_HASH_PARTIAL && num_tokens % block_size);
}

static const struct ucm_hash_extras *
extras_of(const struct ucm_hasher *hasher, const struct ucm_hash_extras *own)
{
	return own ? own : &hasher->meta.extras;
}

/* ---- checks ---- */

/* Every scheme's range ends at 2^n - 1: one wrong bit in one token is enough.
 * In steps of a fixed length, which the compiler makes vectors of. */
static bool tokens_fit(const int64_t *tokens, size_t num, uint64_t max)
{
	uint64_t bits = 0;

	for (; num >= 64; tokens += 64, num -= 64) {
		for (size_t i = 0; i < 64; i++)
			bits |= (uint64_t)tokens[i];
	}
	for (size_t i = 0; i < num; i++)
		bits |= (uint64_t)tokens[i];
	return !(bits & ~max);
}

static int check_tokens(const struct ucm_hasher *hasher,
			const struct ucm_hash_request *request,
			struct ucm_error *error)
{
	uint64_t max = hasher->info->token_max;
	size_t i = 0;

	if (tokens_fit(request->tokens, request->num_tokens, max))
		return 0;
	while ((uint64_t)request->tokens[i] <= max)
		i++;
	return ucm_error_set(error, -EINVAL,
			     "token %zu is %" PRId64 ": from 0 to %" PRIu64, i,
			     request->tokens[i], max);
}

static int check_request(const struct ucm_hasher *hasher,
			 const struct ucm_hash_request *request,
			 struct ucm_error *error)
{
	size_t num;
	int err;

	if (request->flags & ~UCM_HASH_PARTIAL)
		return ucm_error_set(error, -EINVAL,
				     "flags 0x%" PRIx32 ": unknown",
				     request->flags);
	num = ucm_hash_count(hasher, request->num_tokens, request->flags);
	if (request->room < num)
		return ucm_error_set(error, -EINVAL, "room for %zu of %zu ids",
				     request->room, num);
	if (request->state &&
	    request->state->tokens % hasher->meta.block_size)
		return ucm_error_set(error, -EINVAL,
				     "state: %" PRIu64
				     " tokens are no whole blocks",
				     request->state->tokens);
	if (request->extras) {
		err = ucm_extras_check(hasher->info, request->extras, error);
		if (err)
			return err;
	}
	return check_tokens(hasher, request, error);
}

static int check_all(const struct ucm_hasher *hasher,
		     const struct ucm_hash_request *requests, size_t num,
		     struct ucm_error *error)
{
	if (hasher->meta.scheme == UCM_SCHEME_EXTERNAL)
		return ucm_error_set(error, -ENOTSUP,
				     "scheme external hashes no tokens");
	for (size_t i = 0; i < num; i++) {
		int err = check_request(hasher, &requests[i], error);

		if (err && num > 1 && error)
			ucm_error_set(error, err, "request %zu: %s", i,
				      error->text);
		if (err)
			return err;
	}
	return 0;
}

/* ---- states ---- */

static void begin_state(const struct ucm_hasher *hasher,
			const struct ucm_hash_extras *own,
			struct ucm_hash_state *out)
{
	struct ucm_sha256 sha;

	memset(out, 0, sizeof(*out));
	out->parent = hasher->seed;
	memcpy(out->md5, ucm_md5_init, sizeof(out->md5));
	if (!own || !hasher->info->extras)
		return;
	ucm_sha256_begin(&sha);
	ucm_sha_root(&hasher->meta, own, ucm_sha_add, &sha);
	out->parent = ucm_sha_end(&sha);
}

int ucm_hash_start(const struct ucm_hasher *hasher,
		   const struct ucm_hash_extras *extras,
		   struct ucm_hash_state *out, struct ucm_error *error)
{
	int err = extras ? ucm_extras_check(hasher->info, extras, error) : 0;

	if (!err)
		begin_state(hasher, extras, out);
	return err;
}

int ucm_hash_resume(const struct ucm_hasher *hasher,
		    const struct ucm_id *parent, uint64_t tokens,
		    struct ucm_hash_state *out)
{
	struct ucm_id from = *parent;

	if (hasher->meta.scheme == UCM_SCHEME_PREFIX ||
	    hasher->meta.scheme == UCM_SCHEME_EXTERNAL)
		return -ENOTSUP;
	if (tokens == 0 || tokens % hasher->meta.block_size)
		return -EINVAL;
	begin_state(hasher, NULL, out);
	out->parent = from;
	out->tokens = tokens;
	return 0;
}

/* ---- requests ---- */

struct batch {
	const struct ucm_hasher *hasher;
	const struct ucm_hash_request *request; /* the next */
	size_t left;
};

/* A ucm_walk_source. */
static bool next_request(void *arg, struct ucm_walk *walk)
{
	struct batch *batch = arg;
	const struct ucm_hash_request *request = batch->request;
	const struct ucm_hasher *hasher = batch->hasher;

	if (batch->left == 0)
		return false;
	batch->left--;
	batch->request++;
	walk->hasher = hasher;
	walk->encoder = hasher->info->encoder;
	walk->lead = hasher->info->pickled ? &hasher->lead : NULL;
	walk->tokens = request->tokens;
	walk->num_tokens = request->num_tokens;
	walk->from = NULL;
	walk->ids = request->ids;
	walk->num_ids = ucm_hash_count(hasher, request->num_tokens,
				       request->flags);
	walk->num_whole = request->num_tokens / hasher->meta.block_size;
	if (request->state)
		walk->at_start = *request->state;
	else
		begin_state(hasher, NULL, &walk->at_start);
	walk->at_end = request->state;
	ucm_walk_begin(walk);
	return true;
}

static void hash_md5(const struct ucm_hasher *hasher,
		     const struct ucm_hash_request *requests, size_t num)
{
	struct batch batch = {
		.hasher = hasher,
		.request = requests,
		.left = num,
	};

	ucm_walk_all(num > 1 ? hasher->lanes : NULL, next_request, &batch);
}

/* Block after block; the ids of rank 0. */
static void chain_sha256(const struct ucm_hasher *hasher,
			 const struct ucm_hash_request *request,
			 struct ucm_hash_state *state)
{
	size_t num = ucm_hash_count(hasher, request->num_tokens,
				    request->flags);
	uint32_t block_size = hasher->meta.block_size;

	for (size_t i = 0; i < num; i++) {
		size_t left = request->num_tokens - i * block_size;
		struct ucm_sha_block block = {
			.parent = state->parent,
			.tokens = request->tokens + i * block_size,
			.num = left < block_size ? left : block_size,
			.position = state->tokens,
			.extras = extras_of(hasher, request->extras),
		};
		struct ucm_sha256 sha;

		ucm_sha256_begin(&sha);
		ucm_sha_block(&block, ucm_sha_add, &sha);
		request->ids[i] = ucm_sha_end(&sha);
		if (block.num < block_size)
			return;
		state->parent = request->ids[i];
		state->tokens += block_size;
	}
}

static void hash_sha256(const struct ucm_hasher *hasher,
			const struct ucm_hash_request *request)
{
	struct ucm_hash_state state;

	if (request->state)
		state = *request->state;
	else
		begin_state(hasher, request->extras, &state);
	chain_sha256(hasher, request, &state);
	if (request->state)
		*request->state = state;
}

static void to_own_rank(const struct ucm_hasher *hasher,
			const struct ucm_hash_request *request)
{
	if (hasher->rank && hasher->info->ranks)
		ucm_hash_rank_ids(hasher, hasher->rank, request->ids,
				  ucm_hash_count(hasher, request->num_tokens,
						 request->flags),
				  request->ids);
}

int ucm_hash_batch(const struct ucm_hasher *hasher,
		   const struct ucm_hash_request *requests, size_t num,
		   struct ucm_error *error)
{
	int err = check_all(hasher, requests, num, error);

	if (err)
		return err;
	if (hasher->info->encoder) {
		hash_md5(hasher, requests, num);
	} else {
		for (size_t i = 0; i < num; i++)
			hash_sha256(hasher, &requests[i]);
	}
	for (size_t i = 0; i < num; i++)
		to_own_rank(hasher, &requests[i]);
	return 0;
}

int ucm_hash_request(const struct ucm_hasher *hasher,
		     const struct ucm_hash_request *request,
		     struct ucm_error *error)
{
	return ucm_hash_batch(hasher, request, 1, error);
}
