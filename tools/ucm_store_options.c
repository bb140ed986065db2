/* SPDX-License-Identifier: Apache-2.0 */
/* ucm_store_options.c - the command lines of ucm put, get and verify. */
#include <config.h>

#include "tools/ucm_store.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "common/parse.h"
#include "tools/ucm_tool.h"

static const char put_text[] =
	"usage: ucm put [options] RAW [IDS]\n"
	"\n"
	"Save the pages of the file RAW as blocks of a store. RAW holds one page\n"
	"for each block, back to back, each in the order of a block's payload. IDS\n"
	"or standard input lists the blocks, one a line, as ucm hash prints them.\n"
	"Blocks that exist are left alone.\n"
	"\n";
static const char get_text[] =
	"usage: ucm get [options] RAW [IDS]\n"
	"\n"
	"Load blocks of a store into the pages of a new file RAW: one page for\n"
	"each block, back to back. IDS or standard input lists the blocks, one a\n"
	"line, as ucm hash prints them. RAW appears only when it is complete.\n"
	"\n";
static const char verify_text[] =
	"usage: ucm verify [options] FILE...\n"
	"       ucm verify --mount DIR | --tiers SOURCE [options] [IDS | --all]\n"
	"\n"
	"Read blocks and check all that they say of themselves: FILEs, the blocks\n"
	"of a store that IDS or standard input lists, or all of a space.\n"
	"\n";
static const char where_text[] =
	"  --mount DIR         the store is mounted there\n"
	"  --tiers SOURCE      its directories, as in ucmfs(8)\n"
	"  --space NAME        a space (the default one)\n";
static const char shape_text[] =
	"  --layers N --tokens N --dtype NAME --heads N --dim N\n"
	"                      geometry of the blocks; without it, that of the\n"
	"                      space is used\n"
	"  --k-bytes N --v-bytes N\n"
	"                      bytes of a layer's plane, where they do not follow\n"
	"                      from the others; --v-bytes 0 for MLA\n"
	"  --order NHD|HND|opaque\n"
	"                      inside a plane (NHD)\n"
	"  --like FILE         the geometry of this block\n"
	"  --io auto|uring|threads\n"
	"                      how to read and write (auto)\n";
static const char put_options[] =
	"  --parents           the blocks are a chain: each names the one before\n"
	"  --parent ID         the same, and the first one follows this block\n";
static const char get_options[] =
	"  --missing fail|zero what an absent block means: no RAW (the default),\n"
	"                      or a page of zeros\n"
	"  --verify full|header|none\n"
	"                      what is checked (full)\n";
static const char verify_options[] =
	"  --all               every block of the space\n";
static const char common_text[] =
	"  --threads N         that do the work\n"
	"  --json              print one JSON object\n"
	"  --help\n";

enum option_key {
	KEY_ALL = 1,
	KEY_DIM,
	KEY_DTYPE,
	KEY_HEADS,
	KEY_HELP,
	KEY_IO,
	KEY_JSON,
	KEY_K_BYTES,
	KEY_LAYERS,
	KEY_LIKE,
	KEY_MISSING,
	KEY_MOUNT,
	KEY_ORDER,
	KEY_PARENT,
	KEY_PARENTS,
	KEY_SPACE,
	KEY_THREADS,
	KEY_TIERS,
	KEY_TOKENS,
	KEY_VERIFY,
	KEY_V_BYTES,
	NUM_KEYS,
};

static const struct option long_options[] = {
	{ "all", no_argument, NULL, KEY_ALL },
	{ "dim", required_argument, NULL, KEY_DIM },
	{ "dtype", required_argument, NULL, KEY_DTYPE },
	{ "heads", required_argument, NULL, KEY_HEADS },
	{ "help", no_argument, NULL, KEY_HELP },
	{ "io", required_argument, NULL, KEY_IO },
	{ "json", no_argument, NULL, KEY_JSON },
	{ "k-bytes", required_argument, NULL, KEY_K_BYTES },
	{ "layers", required_argument, NULL, KEY_LAYERS },
	{ "like", required_argument, NULL, KEY_LIKE },
	{ "missing", required_argument, NULL, KEY_MISSING },
	{ "mount", required_argument, NULL, KEY_MOUNT },
	{ "order", required_argument, NULL, KEY_ORDER },
	{ "parent", required_argument, NULL, KEY_PARENT },
	{ "parents", no_argument, NULL, KEY_PARENTS },
	{ "space", required_argument, NULL, KEY_SPACE },
	{ "threads", required_argument, NULL, KEY_THREADS },
	{ "tiers", required_argument, NULL, KEY_TIERS },
	{ "tokens", required_argument, NULL, KEY_TOKENS },
	{ "verify", required_argument, NULL, KEY_VERIFY },
	{ "v-bytes", required_argument, NULL, KEY_V_BYTES },
	{ NULL, 0, NULL, 0 },
};

/* Who knows an option; both that move blocks if nothing is said. */
static const int known_by[NUM_KEYS] = {
	[KEY_ALL] = UCM_VERIFY,
	[KEY_HELP] = UCM_PUT | UCM_GET | UCM_VERIFY,
	[KEY_JSON] = UCM_PUT | UCM_GET | UCM_VERIFY,
	[KEY_MISSING] = UCM_GET,
	[KEY_MOUNT] = UCM_PUT | UCM_GET | UCM_VERIFY,
	[KEY_PARENT] = UCM_PUT,
	[KEY_PARENTS] = UCM_PUT,
	[KEY_SPACE] = UCM_PUT | UCM_GET | UCM_VERIFY,
	[KEY_THREADS] = UCM_PUT | UCM_GET | UCM_VERIFY,
	[KEY_TIERS] = UCM_PUT | UCM_GET | UCM_VERIFY,
	[KEY_VERIFY] = UCM_GET,
};

/* Numbers of the geometry, with the values that a header can take. */
static const struct {
	int key;
	uint64_t min, max;
} numbers[] = {
	{ KEY_LAYERS, 1, 1 << 20 },	{ KEY_TOKENS, 1, UINT32_MAX },
	{ KEY_HEADS, 0, UINT16_MAX },	{ KEY_DIM, 0, UINT16_MAX },
	{ KEY_K_BYTES, 1, UINT32_MAX }, { KEY_V_BYTES, 0, UINT32_MAX },
};
#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

/* What the command line says of the geometry, by key. */
struct shape {
	bool given[NUM_KEYS];
	uint64_t value[NUM_KEYS];
};

void ucm_store_help(int command)
{
	fputs(command == UCM_PUT   ? put_text
	      : command == UCM_GET ? get_text
				   : verify_text,
	      stdout);
	fputs(where_text, stdout);
	if (command != UCM_VERIFY)
		fputs(shape_text, stdout);
	fputs(command == UCM_PUT   ? put_options
	      : command == UCM_GET ? get_options
				   : verify_options,
	      stdout);
	fputs(common_text, stdout);
}

/* ---- values ---- */

static int parse_word(const char *text, const char *const *words,
		      uint64_t *out)
{
	for (uint64_t i = 0; words[i]; i++) {
		if (!strcmp(text, words[i])) {
			*out = i;
			return 0;
		}
	}
	return -EINVAL;
}

static int parse_dtype(const char *text, uint64_t *out)
{
	uint32_t dtype;
	int err = ucm_dtype_parse(text, &dtype);

	if (!err)
		*out = dtype;
	return err;
}

static int set_shape(struct shape *shape, int key, const char *text)
{
	static const char *const orders[] = { "NHD", "HND", "opaque", NULL };
	uint64_t *value = &shape->value[key];

	shape->given[key] = true;
	if (key == KEY_DTYPE)
		return parse_dtype(text, value);
	if (key == KEY_ORDER)
		return parse_word(text, orders, value);
	for (unsigned i = 0; i < LENGTH(numbers); i++) {
		if (numbers[i].key == key)
			return ucm_parse_range(text, numbers[i].min,
					       numbers[i].max, value);
	}
	return -ENOENT;
}

static bool set_flag(struct ucm_store_options *opt, int key)
{
	switch (key) {
	case KEY_ALL:
		opt->all = true;
		return true;
	case KEY_HELP:
		opt->help = true;
		return true;
	case KEY_JSON:
		opt->json = true;
		return true;
	case KEY_PARENTS:
		opt->parents = true;
		return true;
	default:
		return false;
	}
}

static int set_text(struct ucm_store_options *opt, int key, const char *text)
{
	switch (key) {
	case KEY_LIKE:
		opt->like = text;
		return 0;
	case KEY_MOUNT:
		opt->mount = text;
		return 0;
	case KEY_SPACE:
		opt->space = text;
		return 0;
	case KEY_TIERS:
		opt->tiers = text;
		return 0;
	default:
		return -ENOENT;
	}
}

static int set_choice(struct ucm_store_options *opt, int key, const char *text)
{
	static const char *const ios[] = { "auto", "uring", "threads", NULL };
	static const char *const missing[] = { "fail", "zero", NULL };
	static const char *const checks[] = { "full", "header", "none", NULL };
	uint64_t value = 0;
	int err;

	switch (key) {
	case KEY_IO:
		err = parse_word(text, ios, &value);
		opt->io = (enum ucm_io_kind)value;
		return err;
	case KEY_MISSING:
		err = parse_word(text, missing, &value);
		opt->missing_zero = value;
		return err;
	case KEY_PARENT:
		opt->parents = true;
		return strlen(text) == UCM_ID_HEX
			       ? ucm_id_parse(text, &opt->parent)
			       : -EINVAL;
	case KEY_THREADS:
		err = ucm_parse_range(text, 1, 64, &value);
		opt->threads = (uint32_t)value;
		return err;
	case KEY_VERIFY:
		err = parse_word(text, checks, &value);
		opt->verify = (enum ucm_verify)value;
		return err;
	default:
		return -ENOENT;
	}
}

/* ---- the whole line ---- */

static int need(const struct shape *shape, int key, const char *name)
{
	if (shape->given[key])
		return 0;
	return ucm_tool_complain("geometry: --%s is missing; try --help",
				 name);
}

/* The same rules as for a header: encode one, and see. */
static int check_geometry(const struct ucm_geometry *geometry)
{
	char bytes[UCM_BLOCK_HEADER_BYTES];
	struct ucm_block block = {
		.geometry = *geometry,
		.form = UCM_FORM_PACKED,
		.data_offset = UCM_BLOCK_HEADER_BYTES,
	};

	if (!ucm_block_encode(&block, NULL, bytes, sizeof(bytes)))
		return 0;
	return ucm_tool_complain("geometry: the bytes of a plane are not "
				 "tokens x heads x dim x those of dtype; "
				 "try --help");
}

static int make_geometry(struct ucm_store_options *opt,
			 const struct shape *shape)
{
	const uint64_t *value = shape->value;
	uint64_t k = value[KEY_TOKENS] * value[KEY_HEADS] * value[KEY_DIM];

	if (need(shape, KEY_LAYERS, "layers") ||
	    need(shape, KEY_TOKENS, "tokens") ||
	    need(shape, KEY_DTYPE, "dtype"))
		return -EINVAL;
	k *= ucm_dtype_size((uint32_t)value[KEY_DTYPE]);
	if (shape->given[KEY_K_BYTES])
		k = value[KEY_K_BYTES];
	else if (need(shape, KEY_HEADS, "heads") ||
		 need(shape, KEY_DIM, "dim"))
		return -EINVAL;
	if (!k || k > UINT32_MAX)
		return ucm_tool_complain("geometry: planes of %llu bytes; "
					 "try --help",
					 (unsigned long long)k);
	opt->shaped = true;
	opt->geometry = (struct ucm_geometry){
		.num_layers = (uint32_t)value[KEY_LAYERS],
		.block_size = (uint32_t)value[KEY_TOKENS],
		.dtype = (uint32_t)value[KEY_DTYPE],
		.k_bytes = (uint32_t)k,
		.v_bytes = shape->given[KEY_V_BYTES]
				   ? (uint32_t)value[KEY_V_BYTES]
				   : (uint32_t)k,
		.num_kv_heads = (uint16_t)value[KEY_HEADS],
		.head_dim = (uint16_t)value[KEY_DIM],
		.order = (uint32_t)value[KEY_ORDER],
	};
	return check_geometry(&opt->geometry);
}

static int check_shape(struct ucm_store_options *opt,
		       const struct shape *shape)
{
	bool any = false;

	for (int i = 0; i < NUM_KEYS; i++)
		any |= shape->given[i];
	if (any && opt->like)
		return ucm_tool_complain("--like, or a geometry; try --help");
	return any ? make_geometry(opt, shape) : 0;
}

static int check_options(const struct ucm_store_options *opt, int command)
{
	bool files = command == UCM_VERIFY && !opt->mount && !opt->tiers;
	int most = command == UCM_VERIFY ? !opt->all : 2;

	if (opt->mount && opt->tiers)
		return ucm_tool_complain("--mount or --tiers; try --help");
	if (files && (opt->all || *opt->space))
		return ucm_tool_complain("--all and --space need --mount or "
					 "--tiers; try --help");
	if (files && !opt->num_args)
		return ucm_tool_complain("no FILE, and no --mount or --tiers; "
					 "try --help");
	if (command != UCM_VERIFY && !opt->mount && !opt->tiers)
		return ucm_tool_complain("no --mount or --tiers; try --help");
	if (command != UCM_VERIFY && !opt->num_args)
		return ucm_tool_complain("no file RAW; try --help");
	if (!files && opt->num_args > most)
		return ucm_tool_complain("too many arguments: %s; try --help",
					 opt->args[most]);
	return 0;
}

static int set_option(struct ucm_store_options *opt, struct shape *shape,
		      int command, int key, int index)
{
	int users = known_by[key] ? known_by[key] : UCM_PUT | UCM_GET;
	int err;

	if (!(users & command))
		return ucm_tool_complain("unknown option --%s; try --help",
					 long_options[index].name);
	if (set_flag(opt, key))
		return 0;
	err = set_text(opt, key, optarg);
	if (err == -ENOENT)
		err = set_choice(opt, key, optarg);
	if (err == -ENOENT)
		err = set_shape(shape, key, optarg);
	return err ? ucm_tool_complain("--%s '%s'; try --help",
				       long_options[index].name, optarg)
		   : 0;
}

int ucm_store_parse(struct ucm_store_options *opt, int command, int argc,
		    char **argv)
{
	struct shape shape = { 0 };
	int key, index = 0;

	*opt = (struct ucm_store_options){ .space = "" };
	opterr = 0;
	while ((key = getopt_long(argc, argv, ":", long_options, &index)) !=
	       -1) {
		if (key == ':')
			return ucm_tool_complain("%s: no value; try --help",
						 argv[optind - 1]);
		if (key == '?')
			return ucm_tool_complain("unknown option %s; try "
						 "--help",
						 argv[optind - 1]);
		if (set_option(opt, &shape, command, key, index))
			return -EINVAL;
	}
	if (opt->help)
		return 0;
	opt->args = argv + optind;
	opt->num_args = argc - optind;
	return check_shape(opt, &shape) ?: check_options(opt, command);
}
