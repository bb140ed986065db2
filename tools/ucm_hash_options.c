/* SPDX-License-Identifier: Apache-2.0 */
/* ucm_hash_options.c - the command line of ucm hash; see ucm(1). */
#include <config.h>

#include "tools/ucm_hash.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "common/parse.h"

static const char help_text[] =
	"usage: ucm hash [options] [FILE]\n"
	"\n"
	"Print the ids of the blocks of a request, one a line. FILE or standard\n"
	"input holds its token ids; with the scheme external, the engine's hashes\n"
	"in hex.\n"
	"\n"
	"  --scheme NAME       ucm, chain, prefix, hexchain, sha256 or external\n"
	"                      (sha256)\n"
	"  --meta MODEL:WORLD_SIZE:DTYPE:RANK\n"
	"                      what the ids depend on; ucm, chain and sha256\n"
	"                      need it\n"
	"  --block-size N      tokens of a block (16)\n"
	"  --mla               all ranks share rank 0's blocks\n"
	"  --ranks A-B|all     a column for each rank\n"
	"  --partial           an id also for the tokens behind the last block\n"
	"  --parent ID@TOKENS  go on behind this block, which ends at TOKENS\n"
	"  --salt TEXT         cache salt\n"
	"  --lora ID[=DIGEST]  adapter, and 64 hex digits over its weights\n"
	"  --item HASH@POSITION+LENGTH\n"
	"                      a multimodal item: 64 hex digits, its first token\n"
	"                      and their number; may be repeated\n"
	"  --space SPACE_ID    external: 64 hex digits\n"
	"  --group N           external: KV cache group (0)\n"
	"  --format text|int32|int64\n"
	"                      of the token ids (text)\n"
	"  --paths             3f/3f9a....bin instead of ids\n"
	"  --explain           the bytes that go into each hash\n"
	"  --help\n";

enum option_key {
	KEY_BLOCK_SIZE = 1,
	KEY_EXPLAIN,
	KEY_FORMAT,
	KEY_GROUP,
	KEY_HELP,
	KEY_ITEM,
	KEY_LORA,
	KEY_META,
	KEY_MLA,
	KEY_PARENT,
	KEY_PARTIAL,
	KEY_PATHS,
	KEY_RANKS,
	KEY_SALT,
	KEY_SCHEME,
	KEY_SPACE,
};

static const struct option long_options[] = {
	{ "block-size", required_argument, NULL, KEY_BLOCK_SIZE },
	{ "explain", no_argument, NULL, KEY_EXPLAIN },
	{ "format", required_argument, NULL, KEY_FORMAT },
	{ "group", required_argument, NULL, KEY_GROUP },
	{ "help", no_argument, NULL, KEY_HELP },
	{ "item", required_argument, NULL, KEY_ITEM },
	{ "lora", required_argument, NULL, KEY_LORA },
	{ "meta", required_argument, NULL, KEY_META },
	{ "mla", no_argument, NULL, KEY_MLA },
	{ "parent", required_argument, NULL, KEY_PARENT },
	{ "partial", no_argument, NULL, KEY_PARTIAL },
	{ "paths", no_argument, NULL, KEY_PATHS },
	{ "ranks", required_argument, NULL, KEY_RANKS },
	{ "salt", required_argument, NULL, KEY_SALT },
	{ "scheme", required_argument, NULL, KEY_SCHEME },
	{ "space", required_argument, NULL, KEY_SPACE },
	{ NULL, 0, NULL, 0 },
};

void ucm_hash_help(void)
{
	fputs(help_text, stdout);
}

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

/* Cut text at the last c; returns what is behind it. */
static char *cut_last(char *text, char c)
{
	char *at = strrchr(text, c);

	if (!at)
		return NULL;
	*at = '\0';
	return at + 1;
}

/* From the end: a model's name may have ':' in it. */
static int parse_meta(struct ucm_hash_meta *meta, char *text)
{
	char *rank = cut_last(text, ':');
	char *dtype = rank ? cut_last(text, ':') : NULL;
	char *world = dtype ? cut_last(text, ':') : NULL;

	if (!world || parse_u32(rank, 0, &meta->rank) ||
	    parse_u32(world, 1, &meta->world_size))
		return -EINVAL;
	meta->model = text;
	meta->dtype = dtype;
	return 0;
}

static int parse_ranks(struct ucm_hash_options *opt, char *text)
{
	char *last;

	opt->all_ranks = true;
	opt->last_rank = UINT32_MAX;
	if (!strcmp(text, "all"))
		return 0;
	last = cut_last(text, '-');
	if (parse_u32(text, 0, &opt->first_rank) ||
	    parse_u32(last ? last : text, 0, &opt->last_rank))
		return -EINVAL;
	return opt->first_rank <= opt->last_rank ? 0 : -EINVAL;
}

static int parse_parent(struct ucm_hash_options *opt, char *text)
{
	char *tokens = cut_last(text, '@');

	opt->resume = true;
	if (!tokens || strlen(text) != UCM_ID_HEX)
		return -EINVAL;
	if (ucm_parse_u64(tokens, &opt->parent_tokens))
		return -EINVAL;
	return ucm_id_parse(text, &opt->parent);
}

static int parse_lora(struct ucm_hash_options *opt, char *text)
{
	char *digest = cut_last(text, '=');

	opt->meta.extras.lora = text;
	if (!digest)
		return 0;
	opt->meta.extras.lora_digest = opt->lora_digest;
	return ucm_hash_hex(digest, sizeof(opt->lora_digest),
			    opt->lora_digest);
}

static int parse_item(struct ucm_hash_options *opt, char *text)
{
	struct ucm_hash_extras *extras = &opt->meta.extras;
	struct ucm_hash_item *item = &opt->items[extras->num_items];
	char *length = cut_last(text, '+');
	char *position = length ? cut_last(text, '@') : NULL;

	if (!position || extras->num_items == UCM_HASH_MAX_ITEMS ||
	    ucm_hash_hex(text, sizeof(item->hash), item->hash) ||
	    ucm_parse_u64(position, &item->position) ||
	    ucm_parse_u64(length, &item->length))
		return -EINVAL;
	extras->items = opt->items;
	extras->num_items++;
	return 0;
}

static int parse_format(const char *text, enum ucm_token_format *out)
{
	static const char *const names[] = { "text", "int32", "int64" };

	for (unsigned i = 0; i < 3; i++) {
		if (!strcmp(text, names[i])) {
			*out = (enum ucm_token_format)i;
			return 0;
		}
	}
	return -EINVAL;
}

/* ---- options ---- */

static int set_flag(struct ucm_hash_options *opt, int key)
{
	switch (key) {
	case KEY_EXPLAIN:
		opt->explain = true;
		return 0;
	case KEY_HELP:
		opt->help = true;
		return 0;
	case KEY_MLA:
		opt->meta.mla = 1;
		return 0;
	case KEY_PARTIAL:
		opt->partial = true;
		return 0;
	case KEY_PATHS:
		opt->paths = true;
		return 0;
	default:
		return -ENOENT;
	}
}

static int set_value(struct ucm_hash_options *opt, int key, char *value)
{
	switch (key) {
	case KEY_BLOCK_SIZE:
		return parse_u32(value, 1, &opt->meta.block_size);
	case KEY_FORMAT:
		return parse_format(value, &opt->format);
	case KEY_GROUP:
		return parse_u32(value, 0, &opt->group);
	case KEY_ITEM:
		return parse_item(opt, value);
	case KEY_LORA:
		return parse_lora(opt, value);
	case KEY_META:
		return parse_meta(&opt->meta, value);
	case KEY_PARENT:
		return parse_parent(opt, value);
	case KEY_RANKS:
		return parse_ranks(opt, value);
	case KEY_SALT:
		opt->meta.extras.salt = value;
		return 0;
	case KEY_SCHEME:
		return ucm_scheme_parse(value, &opt->meta.scheme);
	default: /* KEY_SPACE */
		opt->meta.space_id = opt->space_id;
		return ucm_hash_hex(value, sizeof(opt->space_id),
				    opt->space_id);
	}
}

static int set_option(struct ucm_hash_options *opt, int key, int index)
{
	char *given;
	int err;

	if (!set_flag(opt, key))
		return 0;
	given = strdupa(optarg);
	err = set_value(opt, key, optarg);
	return err ? ucm_tool_complain("--%s '%s'; try --help",
				       long_options[index].name, given)
		   : 0;
}

int ucm_hash_parse(struct ucm_hash_options *opt, int argc, char **argv)
{
	int key, index = 0;

	memset(opt, 0, sizeof(*opt));
	opt->meta.scheme = UCM_SCHEME_SHA256;
	opt->meta.block_size = 16;
	opt->meta.world_size = 1;
	opt->input = "-";
	opterr = 0;
	while ((key = getopt_long(argc, argv, ":", long_options, &index)) !=
	       -1) {
		if (key == ':')
			return ucm_tool_complain("%s: no value; try --help",
						 argv[optind - 1]);
		if (key == '?')
			return ucm_tool_complain("unknown option %s; try --help",
						 argv[optind - 1]);
		if (set_option(opt, key, index))
			return -EINVAL;
	}
	if (optind < argc)
		opt->input = argv[optind++];
	if (optind < argc)
		return ucm_tool_complain("more than one FILE: %s",
					 argv[optind]);
	return 0;
}
