/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hash.h - what a block is called: token ids in, block ids out.
 *
 * A scheme is an exact rule from the tokens of a request, and from what else
 * decides about its KV cache, to the ids of its blocks. Each is described byte
 * by byte in ucm_hash(3). Two programs find each other's blocks if and only if
 * scheme, block size and meta are the same.
 *
 * A hasher holds scheme and meta. It does not change after ucm_hasher_open():
 * any number of threads may use one at a time. No calls except open and close
 * allocates, and none keeps a pointer of the caller's. All calls return 0 or
 * -errno, and write nothing but *error if they fail (<ucm/error.h>).
 */
#ifndef UCM_HASH_H
#define UCM_HASH_H

#include <stddef.h>
#include <stdint.h>

#include <ucm/block.h>
#include <ucm/error.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ucm_scheme {
	UCM_SCHEME_UCM = 0,      /* upstream UCM: MD5 over meta and pickle */
	UCM_SCHEME_CHAIN = 1,    /* MD5(parent, int32 tokens), seeded by meta */
	UCM_SCHEME_PREFIX = 2,   /* MD5 over all tokens so far */
	UCM_SCHEME_HEXCHAIN = 3, /* MD5(parent in hex, int32 tokens, decimal) */
	UCM_SCHEME_SHA256 = 4,   /* SHA-256, all that matters; for new spaces */
	UCM_SCHEME_EXTERNAL = 5, /* the engine's own hashes */
	UCM_SCHEME_UCM2 = 6,     /* upstream UCM from 0.8 on: meta has a tail */
	UCM_SCHEME_COUNT
};

#define UCM_HASH_BLOCK_SIZE_MAX (1u << 20) /* tokens */
#define UCM_HASH_TEXT_MAX 65536u           /* bytes of a text field */
#define UCM_HASH_DIGEST_BYTES 32u

/* "sha256", or NULL for an unknown scheme; and back: -EINVAL if unknown. */
const char *ucm_scheme_name(uint32_t scheme);
int ucm_scheme_parse(const char *name, uint32_t *out);

/* A multimodal item: an image, say, that stands for some of the tokens. */
struct ucm_hash_item {
	uint8_t hash[UCM_HASH_DIGEST_BYTES]; /* of its content */
	uint64_t position; /* its first token, counted in the request */
	uint64_t length;   /* tokens, at least 1 */
};

/*
 * What else decides about the KV cache of a request. Scheme sha256 only: the
 * others cannot express it, and a hasher refuses what it would ignore.
 */
struct ucm_hash_extras {
	const char *salt; /* shared only with the same; NULL, "": none */
	const char *lora; /* the adapter's id; NULL, "": none */
	const uint8_t *lora_digest; /* 32 bytes over its weights, or NULL */
	const struct ucm_hash_item *items; /* by position, not overlapping */
	size_t num_items;
};

/* What all requests of a hasher have in common. */
struct ucm_hash_meta {
	uint32_t scheme;     /* enum ucm_scheme */
	uint32_t block_size; /* tokens, 1 to 1 Mi */
	uint32_t world_size; /* ranks that share a model (TP), at least 1 */
	uint32_t rank;       /* whose ids are made: 0 to world_size - 1 */
	uint32_t mla;        /* not 0: all ranks share rank 0's blocks */
	const char *model;   /* ucm, ucm2, chain, sha256: as the engine has it */
	const char *dtype;   /* the same; without ':' but in sha256 */
	const char *tail;    /* ucm2: the meta after the rank, from ':' on */
	const uint8_t *space_id; /* external: 32 bytes, see ucm-block(5) */
	struct ucm_hash_extras extras; /* of requests without their own */
};

/*
 * How far a request has been hashed; to be copied, stored and compared as one
 * likes, and to be filled by ucm_hash_start() or ucm_hash_resume().
 */
struct ucm_hash_state {
	struct ucm_id parent; /* rank 0's id of the last whole block, or seed */
	uint64_t tokens;      /* in whole blocks so far */
	uint32_t md5[4];      /* prefix: the digest so far ... */
	uint8_t rest[64];     /* ... and what it has not yet taken in */
};

/* Also an id for the tokens after the last whole block. Nothing continues
 * from it: the state stays after the last whole block. */
#define UCM_HASH_PARTIAL 0x1u

struct ucm_hash_request {
	const int64_t *tokens;
	size_t num_tokens;
	uint32_t flags;     /* UCM_HASH_* */
	struct ucm_id *ids; /* out: ucm_hash_count() of them */
	size_t room;        /* ids that fit there */
	/* NULL: those of the hasher. Else they replace them, all. */
	const struct ucm_hash_extras *extras;
	/* NULL: tokens is a request from its first token on. Else tokens
	 * follows the state's, which is moved on by the whole blocks. */
	struct ucm_hash_state *state;
};

struct ucm_hasher;

/*
 * Make a hasher. Everything in meta is copied.
 *
 * -EINVAL: a field is out of range or missing, or the scheme cannot express
 * it. -ENOMEM.
 */
int ucm_hasher_open(const struct ucm_hash_meta *meta, struct ucm_hasher **out,
		    struct ucm_error *error);
void ucm_hasher_close(struct ucm_hasher *hasher);

/* Ids that a request of num_tokens has. */
size_t ucm_hash_count(const struct ucm_hasher *hasher, size_t num_tokens,
		      uint32_t flags);

/*
 * The ids of a request, or of the next part of one.
 *
 * -EINVAL: a token that is negative or over the scheme's range (2^31 - 1, or
 * 2^32 - 1 for prefix and sha256; error names the first), too little room, a
 * flag that is unknown, or a field of extras. -ENOTSUP: the scheme is external.
 */
int ucm_hash_request(const struct ucm_hasher *hasher,
		     const struct ucm_hash_request *request,
		     struct ucm_error *error);

/*
 * The same for many requests at once, several times as fast for the schemes
 * over MD5 where the CPU has AVX2 or AVX-512. No two may have one state or ids
 * that overlap. If one is wrong, nothing is written for any.
 */
int ucm_hash_batch(const struct ucm_hasher *hasher,
		   const struct ucm_hash_request *requests, size_t num,
		   struct ucm_error *error);

/* The state before a request's first token. extras as in the request. */
int ucm_hash_start(const struct ucm_hasher *hasher,
		   const struct ucm_hash_extras *extras,
		   struct ucm_hash_state *out, struct ucm_error *error);

/*
 * The state after a block that is known by its id alone.
 *
 * parent: rank 0's id of it. tokens: in the request up to its end, a multiple
 * of the block size. -EINVAL: tokens is not, or is 0. -ENOTSUP: prefix, whose
 * ids say nothing about the digest so far, and external.
 */
int ucm_hash_resume(const struct ucm_hasher *hasher,
		    const struct ucm_id *parent, uint64_t tokens,
		    struct ucm_hash_state *out);

/*
 * Ids of another rank from rank 0's; out may be ids0.
 *
 * ucm, ucm2, sha256, external, and every scheme with mla. -EINVAL: no such rank.
 * -ENOTSUP: chain, whose ranks have chains of their own (open a hasher for
 * each); prefix and hexchain, which know no ranks.
 */
int ucm_hash_rank_ids(const struct ucm_hasher *hasher, uint32_t rank,
		      const struct ucm_id *ids0, size_t num,
		      struct ucm_id *out);

/*
 * Ids from hashes that the engine gives, of 16 or 32 bytes each, one after
 * the other. group: the KV cache group (0 if there is one only).
 *
 * -EINVAL: hash_bytes is neither. -ENOTSUP: the scheme is not external.
 */
int ucm_hash_external(const struct ucm_hasher *hasher, uint32_t group,
		      const void *hashes, size_t hash_bytes, size_t num,
		      struct ucm_id *ids);

#ifdef __cplusplus
}
#endif

#endif
