/* SPDX-License-Identifier: Apache-2.0 */
/* hash.h - the options of ucm hash, and what it prints. */
#ifndef UCM_TOOLS_DATA_HASH_H
#define UCM_TOOLS_DATA_HASH_H

#include <stdbool.h>

#include <ucm/hash.h>

#include "tools/data/tokens.h"
#include "tools/lib/args.h"

#define UCM_HASH_MAX_ITEMS 1024

struct ucm_hash_options {
	struct ucm_hash_meta meta; /* leads into the arguments and the fields
				      below: it lives as long as they */
	uint64_t block_size, group;
	enum ucm_token_format format;
	uint32_t first_rank, last_rank;
	bool all_ranks; /* more than meta.rank's: a column for each */
	bool mla, partial, paths, explain;
	bool resume; /* from parent, after so many tokens */
	struct ucm_id parent;
	uint64_t parent_tokens;
	uint8_t space_id[UCM_HASH_DIGEST_BYTES];
	uint8_t lora_digest[UCM_HASH_DIGEST_BYTES];
	struct ucm_hash_item items[UCM_HASH_MAX_ITEMS];
};

/* What the options are set to: a process runs one command. */
extern struct ucm_hash_options ucm_hash_opt;
extern const struct ucm_arg ucm_hash_args[];

/* 2 * num hex digits, either case, and nothing else; 0 or -EINVAL. */
int ucm_hash_hex(const char *text, size_t num, uint8_t *out);

/* Print every block of a request, and the bytes that its id is made of. state:
 * before its first token; ids0: rank 0's ids of it. 0 or -ENOMEM. */
int ucm_hash_explain(const struct ucm_hasher *hasher,
		     const struct ucm_hash_request *request,
		     const struct ucm_hash_state *state,
		     const struct ucm_id *ids0);

#endif
