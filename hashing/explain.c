/* SPDX-License-Identifier: Apache-2.0 */
/* explain.c - the bytes of a hash, named; see explain.h. */
#include <config.h>

#include "hashing/explain.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hashing/sha.h"
#include "hashing/walk.h"

struct part {
	const char *name;
	size_t bytes; /* 0: there is none; REST: up to the parts that follow */
};

#define REST SIZE_MAX
#define MAX_PARTS 8

static void put_text(const char *name, const char *text, ucm_sink sink,
		     void *arg)
{
	sink(arg, name, text, strlen(text));
}

void ucm_explain_meta(const struct ucm_hasher *hasher, uint32_t rank,
		      ucm_sink sink, void *arg)
{
	char number[16];

	put_text("model", hasher->meta.model, sink, arg);
	snprintf(number, sizeof(number), ":%u:", hasher->meta.world_size);
	put_text("world size", number, sink, arg);
	put_text("dtype", hasher->meta.dtype, sink, arg);
	snprintf(number, sizeof(number), ":%u", rank);
	put_text("rank", number, sink, arg);
	if (hasher->info->tail)
		put_text("tail", hasher->meta.tail, sink, arg);
}

void ucm_explain_seed(const struct ucm_hasher *hasher, ucm_sink sink,
		      void *arg)
{
	switch (hasher->meta.scheme) {
	case UCM_SCHEME_UCM:
	case UCM_SCHEME_UCM2:
		ucm_explain_meta(hasher, 0, sink, arg);
		sink(arg, "pickle", UCM_SEED_PICKLE, UCM_SEED_PICKLE_BYTES);
		break;
	case UCM_SCHEME_CHAIN:
		put_text("constant", UCM_SEED_CHAIN, sink, arg);
		ucm_explain_meta(hasher, hasher->rank, sink, arg);
		break;
	case UCM_SCHEME_SHA256:
		ucm_sha_root(&hasher->meta, &hasher->meta.extras, sink, arg);
		break;
	default:
		break;
	}
}

void ucm_explain_rank(const struct ucm_hasher *hasher,
		      const struct ucm_id *id0, ucm_sink sink, void *arg)
{
	if (!hasher->rank || !hasher->info->ranks)
		return;
	if (!hasher->info->pickled) {
		ucm_sha_rank(hasher->rank, id0, sink, arg);
		return;
	}
	ucm_explain_meta(hasher, hasher->rank, sink, arg);
	sink(arg, "id of rank 0", id0, sizeof(*id0));
}

/* ---- blocks ---- */

/* The parts of a block's message that has been walked, without the meta before it. */
static void parts_of(const struct ucm_walk *walk, struct part *parts)
{
	bool first = walk->at_start.tokens == 0;
	bool mark = walk->num_tokens > 3;
	size_t end = walk->hasher->info->pickled + 3u +
		     (walk->pickle.apart ? UCM_PICKLE_FRAME : 0);

	switch (walk->hasher->meta.scheme) {
	case UCM_SCHEME_UCM:
	case UCM_SCHEME_UCM2:
		*parts++ = (struct part){ "pickle: protocol, frame", 11 };
		*parts++ = (struct part){ "pickle: 16 bytes", 2 };
		*parts++ = (struct part){ "parent", UCM_ID_BYTES };
		*parts++ = (struct part){ "pickle: tuple", 1 + mark };
		*parts++ = (struct part){ "tokens", REST };
		*parts++ = (struct part){ "pickle: end", end };
		break;
	case UCM_SCHEME_CHAIN:
		*parts++ = (struct part){ "parent", UCM_ID_BYTES };
		*parts++ = (struct part){ "tokens", REST };
		break;
	case UCM_SCHEME_HEXCHAIN:
		*parts++ = (struct part){ "parent", first ? 0 : UCM_ID_HEX };
		*parts++ = (struct part){ "tokens", REST };
		*parts++ = (struct part){ "block size",
					  strlen(walk->hasher->decimal) };
		break;
	default: /* no other is explained this way */
		break;
	}
	parts->name = NULL;
}

static void put_parts(const struct part *part, const uint8_t *bytes,
		      size_t len, ucm_sink sink, void *arg)
{
	for (; part->name; part++) {
		size_t take = part->bytes;

		if (take == REST) {
			take = len;
			for (const struct part *p = part + 1; p->name; p++)
				take -= p->bytes;
		}
		if (take)
			sink(arg, part->name, bytes, take);
		bytes += take;
		len -= take;
	}
}

/* All that the walk's block hands out, without lead and padding. */
static size_t gather(struct ucm_walk *walk, uint8_t *out)
{
	size_t rest = walk->lead ? ucm_midstate_rest(walk->lead) : 0;
	size_t len = 0;

	while (ucm_walk_next(walk)) {
		size_t bytes = walk->chunks * UCM_MD5_CHUNK;

		if (walk->place == UCM_WALK_LAST)
			bytes = walk->fill;
		memcpy(out + len, walk->bytes + rest, bytes - rest);
		len += bytes - rest;
		rest = 0;
		ucm_md5_one(walk->state, walk->bytes, walk->chunks);
	}
	return len;
}

static int explain_md5(const struct ucm_hasher *hasher, struct ucm_walk *walk,
		       ucm_sink sink, void *arg)
{
	struct part parts[MAX_PARTS];
	uint8_t *message;
	size_t len;

	/* 5 bytes each; frames, head and tail are less than the rest */
	message = malloc(walk->num_tokens * 6 + 4096);
	if (!message)
		return -ENOMEM;
	if (hasher->info->pickled)
		ucm_explain_meta(hasher, 0, sink, arg);
	len = gather(walk, message);
	parts_of(walk, parts);
	put_parts(parts, message, len, sink, arg);
	free(message);
	return 0;
}

/* prefix: everything from the request's first token on. */
static void explain_prefix(const struct ucm_hash_request *request,
			   const struct ucm_hash_state *state, size_t end,
			   ucm_sink sink, void *arg)
{
	if (state->tokens)
		sink(arg, "tokens before, already hashed", state->md5,
		     sizeof(state->md5));
	for (size_t i = 0; i < end; i++) {
		uint32_t word = (uint32_t)request->tokens[i];

		sink(arg, "tokens", &word, sizeof(word));
	}
}

static void explain_sha256(const struct ucm_hasher *hasher,
			   const struct ucm_walk *walk,
			   const struct ucm_hash_request *request,
			   ucm_sink sink, void *arg)
{
	const struct ucm_sha_block block = {
		.parent = walk->at_start.parent,
		.tokens = walk->tokens,
		.num = walk->num_tokens,
		.position = walk->at_start.tokens,
		.extras = request->extras ? request->extras
					  : &hasher->meta.extras,
	};

	ucm_sha_block(&block, sink, arg);
}

int ucm_explain_block(const struct ucm_hasher *hasher,
		      const struct ucm_hash_request *request,
		      const struct ucm_hash_state *state, size_t index,
		      const struct ucm_id *parent, ucm_sink sink, void *arg)
{
	size_t block_size = hasher->meta.block_size;
	size_t at = index * block_size, left = request->num_tokens - at;
	struct ucm_id id;
	struct ucm_walk walk = {
		.hasher = hasher,
		.encoder = hasher->info->encoder,
		.tokens = request->tokens + at,
		.num_tokens = left < block_size ? left : block_size,
		.ids = &id,
		.num_ids = 1,
		.at_start = *state,
	};

	walk.at_start.parent = *parent;
	walk.at_start.tokens = state->tokens + at;
	if (!walk.encoder) {
		explain_sha256(hasher, &walk, request, sink, arg);
		return 0;
	}
	if (walk.encoder->cumulative) {
		explain_prefix(request, state, at + walk.num_tokens, sink, arg);
		return 0;
	}
	if (hasher->info->pickled)
		walk.lead = &hasher->lead;
	ucm_walk_begin(&walk);
	return explain_md5(hasher, &walk, sink, arg);
}
