/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hasher.h - what a hasher holds, and what the schemes have in common.
 *
 * A scheme over MD5 is an encoder: functions that write a block's message, all
 * of it or what is before, in and after its tokens. walk.h drives it.
 */
#ifndef UCM_HASHER_H
#define UCM_HASHER_H

#include <stdbool.h>

#include <ucm/hash.h>

#include "hashing/digest.h"
#include "hashing/md5.h"

struct ucm_hasher;
struct ucm_walk;

/* What a message begins with, hashed as far as whole chunks go. */
struct ucm_midstate {
	uint32_t state[4];
	uint64_t bytes; /* all of it */
	uint8_t rest[UCM_MD5_CHUNK]; /* the last bytes % 64 */
};

void ucm_midstate_init(struct ucm_midstate *lead);
/* A ucm_sink; arg is a struct ucm_midstate. */
void ucm_midstate_add(void *arg, const char *name, const void *bytes,
		      size_t len);
/* Of the meta of a rank alone. */
void ucm_midstate_meta(const struct ucm_hasher *hasher, uint32_t rank,
		       struct ucm_midstate *out);

static inline size_t ucm_midstate_rest(const struct ucm_midstate *lead)
{
	return lead->bytes % UCM_MD5_CHUNK;
}

/* What the seeds of ucm and chain are made of, beside the meta: the first is
 * what pickle makes of the text "UCM_HASH_SEED". */
#define UCM_SEED_PICKLE \
	"\x80\x05\x95\x11\0\0\0\0\0\0\0" \
	"\x8c\x0dUCM_HASH_SEED\x94."
#define UCM_SEED_PICKLE_BYTES (sizeof(UCM_SEED_PICKLE) - 1)
#define UCM_SEED_CHAIN "UCMHASHSEED"

#define UCM_HEAD_MAX                                                           \
	95 /* bytes before the tokens; 128 may be touched                      \
	    */
#define UCM_TAIL_MAX 16

struct ucm_encoder {
	/* A whole message, if it is small: tokens at to end - 1. Room is left
	 * for what only the block before can tell. Returns its bytes. */
	size_t (*whole)(struct ucm_walk *walk, uint8_t *out);
	/* Fill in walk->parent; message is what whole() or head() wrote. */
	void (*parent)(const struct ucm_walk *walk, uint8_t *message);
	/* A large message begins. Returns the bytes written. */
	size_t (*head)(struct ucm_walk *walk, uint8_t *out);
	/* As many tokens as fit; moves walk->at on, to walk->end at last. */
	size_t (*tokens)(struct ucm_walk *walk, uint8_t *out, size_t room);
	size_t (*tail)(struct ucm_walk *walk, uint8_t *out);
	/* A block's message is the one before it, and its own tokens. */
	bool cumulative;
};

extern const struct ucm_encoder ucm_encode_ucm;
extern const struct ucm_encoder ucm_encode_chain;
extern const struct ucm_encoder ucm_encode_prefix;
extern const struct ucm_encoder ucm_encode_hexchain;
extern const struct ucm_encoder ucm_encode_rank; /* ucm: meta and rank 0's id */

/* What is known of a scheme without a hasher. */
struct ucm_scheme_info {
	const char *name;
	const struct ucm_encoder *encoder; /* NULL: SHA-256 */
	uint64_t token_max;                /* 2^n - 1 */
	bool meta;   /* model, dtype and world size are hashed */
	bool plain;  /* they are joined by ':' */
	bool extras; /* salt, LoRA and items are hashed */
	bool ranks;  /* other ranks' ids follow from rank 0's */
	bool tail;   /* the meta goes on after the rank */
	unsigned pickled; /* members of the tuple that is pickled, or 0 */
};

const struct ucm_scheme_info *ucm_scheme_info(uint32_t scheme);

struct ucm_hasher {
	const struct ucm_scheme_info *info;
	struct ucm_hash_meta meta; /* its pointers lead into texts and items */
	uint32_t rank;             /* 0 with mla */
	ucm_md5_lanes lanes;       /* NULL: one by one */
	struct ucm_id seed;        /* the first block's parent, without extras */
	struct ucm_midstate lead; /* pickled: the meta of rank 0 */
	char decimal[16];          /* the block size */
	struct ucm_hash_item *items;
	uint8_t digests[2][UCM_HASH_DIGEST_BYTES]; /* space, LoRA */
	char texts[]; /* model, dtype, tail, salt, lora, each with its NUL */
};

/* Where the bytes of a message go, piece by piece; name says what they are. */
typedef void (*ucm_sink)(void *arg, const char *name, const void *bytes,
			 size_t len);

/* Whether extras make sense; 0 or -EINVAL. */
int ucm_extras_check(const struct ucm_scheme_info *info,
		     const struct ucm_hash_extras *extras,
		     struct ucm_error *error);

#endif
