/* SPDX-License-Identifier: Apache-2.0 */
/* hash_options.c - the options of ucm hash; see ucm(1). */
#include <config.h>

#include "tools/data/hash.h"

#include <errno.h>
#include <string.h>

#include "common/parse.h"

struct ucm_hash_options ucm_hash_opt = {
	.meta = {
		.scheme = UCM_SCHEME_SHA256,
		.world_size = 1,
	},
	.block_size = 16,
};

/* ---- values ---- */

static int hex_digit(char c)
{
	static const char digits[] = "0123456789abcdefABCDEF";
	const char *at = c ? strchr(digits, c) : NULL;

	if (!at)
		return -1;
	return at - digits < 16 ? (int)(at - digits) : (int)(at - digits) - 6;
}

int ucm_hash_hex(const char *text, size_t num, uint8_t *out)
{
	for (size_t i = 0; i < 2 * num; i++) {
		int digit = hex_digit(text[i]);

		if (digit < 0)
			return -EINVAL;
		out[i / 2] = (uint8_t)(i % 2 ? out[i / 2] << 4 | digit : digit);
	}
	return text[2 * num] ? -EINVAL : 0;
}

static int parse_u32(const char *text, uint64_t min, uint32_t *out)
{
	uint64_t value;
	int err = ucm_parse_range(text, min, UINT32_MAX, &value);

	if (!err)
		*out = (uint32_t)value;
	return err;
}

/* Cut text at the last c; returns what follows it. */
static char *cut_last(char *text, char c)
{
	char *at = strrchr(text, c);

	if (!at)
		return NULL;
	*at = '\0';
	return at + 1;
}

static int parse_scheme(const struct ucm_arg *arg, char *value)
{
	return ucm_scheme_parse(value, arg->to);
}

/* From the end: a model's name may have ':' in it. */
static int parse_meta(const struct ucm_arg *arg, char *value)
{
	struct ucm_hash_meta *meta = arg->to;
	char *rank = cut_last(value, ':');
	char *dtype = rank ? cut_last(value, ':') : NULL;
	char *world = dtype ? cut_last(value, ':') : NULL;

	if (!world || parse_u32(rank, 0, &meta->rank) ||
	    parse_u32(world, 1, &meta->world_size))
		return -EINVAL;
	meta->model = value;
	meta->dtype = dtype;
	return 0;
}

static int parse_ranks(const struct ucm_arg *arg, char *value)
{
	struct ucm_hash_options *opt = arg->to;
	char *last;

	opt->all_ranks = true;
	opt->last_rank = UINT32_MAX;
	if (!strcmp(value, "all"))
		return 0;
	last = cut_last(value, '-');
	if (parse_u32(value, 0, &opt->first_rank) ||
	    parse_u32(last ? last : value, 0, &opt->last_rank))
		return -EINVAL;
	return opt->first_rank <= opt->last_rank ? 0 : -EINVAL;
}

static int parse_parent(const struct ucm_arg *arg, char *value)
{
	struct ucm_hash_options *opt = arg->to;
	char *tokens = cut_last(value, '@');

	opt->resume = true;
	if (!tokens || strlen(value) != UCM_ID_HEX)
		return -EINVAL;
	if (ucm_parse_u64(tokens, &opt->parent_tokens))
		return -EINVAL;
	return ucm_id_parse(value, &opt->parent);
}

static int parse_lora(const struct ucm_arg *arg, char *value)
{
	struct ucm_hash_options *opt = arg->to;
	char *digest = cut_last(value, '=');

	opt->meta.extras.lora = value;
	if (!digest)
		return 0;
	opt->meta.extras.lora_digest = opt->lora_digest;
	return ucm_hash_hex(digest, sizeof(opt->lora_digest),
			    opt->lora_digest);
}

static int parse_item(const struct ucm_arg *arg, char *value)
{
	struct ucm_hash_options *opt = arg->to;
	struct ucm_hash_extras *extras = &opt->meta.extras;
	struct ucm_hash_item *item = &opt->items[extras->num_items];
	char *length = cut_last(value, '+');
	char *position = length ? cut_last(value, '@') : NULL;

	if (!position || extras->num_items == UCM_HASH_MAX_ITEMS ||
	    ucm_hash_hex(value, sizeof(item->hash), item->hash) ||
	    ucm_parse_u64(position, &item->position) ||
	    ucm_parse_u64(length, &item->length))
		return -EINVAL;
	extras->items = opt->items;
	extras->num_items++;
	return 0;
}

/* An empty one is none. */
static int parse_text(const struct ucm_arg *arg, char *value)
{
	*(const char **)arg->to = value;
	return 0;
}

static int parse_space(const struct ucm_arg *arg, char *value)
{
	struct ucm_hash_options *opt = arg->to;

	opt->meta.space_id = opt->space_id;
	return ucm_hash_hex(value, sizeof(opt->space_id), opt->space_id);
}

/* ---- options ---- */

const struct ucm_arg ucm_hash_args[] = {
	{ "scheme", 0, "ucm|ucm2|chain|prefix|hexchain|sha256|external",
	  parse_scheme, &ucm_hash_opt.meta.scheme,
	  .help = "how ids are made (sha256); see ucm_hash(3)" },
	{ "meta", 0, "MODEL:WORLD_SIZE:DTYPE:RANK", parse_meta,
	  &ucm_hash_opt.meta,
	  .help = "what the ids depend on beside the tokens, and the rank whose "
		  "ids are printed; needed by ucm, ucm2, chain and sha256" },
	{ "tail", 0, "TEXT", parse_text, &ucm_hash_opt.meta.tail,
	  .help = "what UCM's meta has after the rank; needed by ucm2" },
	{ "block-size", 0, "N", ucm_arg_number, &ucm_hash_opt.block_size,
	  .help = "tokens of a block (16)",
	  .min = 1, .max = UCM_HASH_BLOCK_SIZE_MAX },
	{ "mla", .to = &ucm_hash_opt.mla,
	  .help = "multi-head latent attention: all ranks share rank 0's "
		  "blocks" },
	{ "ranks", 0, "RANKS", parse_ranks, &ucm_hash_opt,
	  .help = "print a column for each of these ranks: N, A-B or all" },
	{ "partial", .to = &ucm_hash_opt.partial,
	  .help = "print an id also for the tokens after the last whole "
		  "block" },
	{ "parent", 0, "ID@TOKENS", parse_parent, &ucm_hash_opt,
	  .help = "continue after this block, which ends after TOKENS tokens "
		  "of the request" },
	{ "salt", 0, "TEXT", parse_text, &ucm_hash_opt.meta.extras.salt,
	  .help = "cache salt, for sha256" },
	{ "lora", 0, "ID[=DIGEST]", parse_lora, &ucm_hash_opt,
	  .help = "LoRA adapter, and 64 hex digits over its weights, for "
		  "sha256" },
	{ "item", 0, "HASH@POSITION+LENGTH", parse_item, &ucm_hash_opt,
	  .help = "a multimodal item: 64 hex digits over its content, its "
		  "first token and their number, for sha256; may be repeated" },
	{ "space", 0, "SPACE_ID", parse_space, &ucm_hash_opt,
	  .help = "identity of the space, 64 hex digits; needed by external" },
	{ "group", 0, "N", ucm_arg_number, &ucm_hash_opt.group,
	  .help = "KV cache group, for external (0)", .max = UINT32_MAX },
	/* in the order of enum ucm_token_format */
	{ "format", 0, "text|int32|int64", ucm_arg_choice,
	  &ucm_hash_opt.format,
	  .help = "how the input holds token ids: decimal numbers (text), or "
		  "binary ones" },
	{ "paths", .to = &ucm_hash_opt.paths,
	  .help = "print paths below blocks/, such as 3f/3f9a...e1.bin" },
	{ "explain", .to = &ucm_hash_opt.explain,
	  .help = "print the bytes that go into each hash" },
	{ 0 },
};
