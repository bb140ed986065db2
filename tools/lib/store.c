/* SPDX-License-Identifier: Apache-2.0 */
/* store.c - the store of ucm put, get, verify and repr: options, the daemon by which
 * its blocks are read, and their geometry. */
#include <config.h>

#include "tools/lib/store.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include <ucm/space.h>

#include "common/cleanup.h"
#include "common/osfile.h"
#include "fs/block/manifest.h"
#include "hashing/tree.h"
#include "tools/lib/ids.h"
#include "tools/lib/tool.h"

struct ucm_store_options ucm_store_opt = { .space = "" };

const struct ucm_arg ucm_store_where[] = {
	{ "mount", 'm', "MOUNT", ucm_arg_text, &ucm_store_opt.mount,
	  .help = "where the store is mounted, or its daemon's socket" },
	UCM_ARG_TIERS(ucm_store_opt),
	UCM_ARG_SPACE(ucm_store_opt),
	{ "threads", 0, "N", ucm_arg_number, &ucm_store_opt.threads,
	  .help = "how many threads do the work, at most 64",
	  .min = 1, .max = 64 },
	UCM_ARG_JSON(ucm_store_opt),
	{ 0 },
};

/* ---- geometry ---- */

#define NOT_GIVEN UINT64_MAX

/* What the command line says of it. */
static struct {
	uint64_t layers, tokens, dtype, heads, dim, k_bytes, v_bytes;
	unsigned order;
} shape = {
	NOT_GIVEN, NOT_GIVEN, NOT_GIVEN, NOT_GIVEN, NOT_GIVEN, NOT_GIVEN,
	NOT_GIVEN, UINT_MAX
};

static int parse_dtype(const struct ucm_arg *arg, char *value)
{
	uint32_t dtype;
	int err = ucm_dtype_parse(value, &dtype);

	if (!err)
		*(uint64_t *)arg->to = dtype;
	return err;
}

const struct ucm_arg ucm_store_shapes[] = {
	{ "layers", 0, "N", ucm_arg_number, &shape.layers,
	  .help = "geometry: layers", .min = 1, .max = 1 << 20 },
	{ "tokens", 0, "N", ucm_arg_number, &shape.tokens,
	  .help = "geometry: tokens of a block", .min = 1, .max = UINT32_MAX },
	{ "dtype", 0,
	  "float16|bfloat16|float32|float8_e4m3|float8_e5m2|int8|uint8|opaque",
	  parse_dtype, &shape.dtype,
	  .help = "geometry: type of the elements" },
	{ "heads", 0, "N", ucm_arg_number, &shape.heads,
	  .help = "geometry: heads of keys and values", .max = UINT16_MAX },
	{ "dim", 0, "N", ucm_arg_number, &shape.dim,
	  .help = "geometry: elements of a head", .max = UINT16_MAX },
	{ "k-bytes", 0, "N", ucm_arg_number, &shape.k_bytes,
	  .help = "geometry: bytes of the keys of a layer, if they do not "
		  "follow from the others",
	  .min = 1, .max = UINT32_MAX },
	{ "v-bytes", 0, "N", ucm_arg_number, &shape.v_bytes,
	  .help = "geometry: bytes of the values of a layer (as many as of the "
		  "keys); 0 for MLA",
	  .max = UINT32_MAX },
	/* in the order of UCM_ORDER_... */
	{ "order", 0, "NHD|HND|opaque", ucm_arg_choice, &shape.order,
	  .help = "geometry: order of tokens (N), heads (H) and their "
		  "elements (D) in a plane (NHD)" },
	{ "like", 0, "FILE", ucm_arg_text, &ucm_store_opt.like,
	  .help = "geometry: that of this block" },
	/* in the order of enum ucm_io_kind */
	{ "io", 0, "auto|uring|threads", ucm_arg_choice, &ucm_store_opt.io,
	  .help = "read and write by io_uring, by threads, or by what is "
		  "allowed (auto)" },
	{ 0 },
};

static void need(uint64_t value, const char *name)
{
	if (value == NOT_GIVEN)
		ucm_tool_usage("geometry: --%s is missing", name);
}

static uint64_t given_or(uint64_t value, uint64_t otherwise)
{
	return value != NOT_GIVEN ? value : otherwise;
}

/* The same rules as for a header: encode one, and see. */
static void check_geometry(const struct ucm_geometry *geometry)
{
	char bytes[UCM_BLOCK_HEADER_BYTES];
	struct ucm_block block = {
		.geometry = *geometry,
		.form = UCM_FORM_PACKED,
		.data_offset = UCM_BLOCK_HEADER_BYTES,
	};

	if (ucm_block_encode(&block, NULL, bytes, sizeof(bytes)))
		ucm_tool_usage("geometry: the bytes of a plane are not tokens x "
			       "heads x dim x those of dtype");
}

static void make_geometry(struct ucm_store_options *opt)
{
	uint64_t k = shape.k_bytes;

	need(shape.layers, "layers");
	need(shape.tokens, "tokens");
	need(shape.dtype, "dtype");
	if (k == NOT_GIVEN) {
		need(shape.heads, "heads");
		need(shape.dim, "dim");
		k = shape.tokens * shape.heads * shape.dim *
		    ucm_dtype_size((uint32_t)shape.dtype);
	}
	if (!k || k > UINT32_MAX)
		ucm_tool_usage("geometry: planes of %llu bytes",
			       (unsigned long long)k);
	opt->shaped = true;
	opt->geometry = (struct ucm_geometry){
		.num_layers = (uint32_t)shape.layers,
		.block_size = (uint32_t)shape.tokens,
		.dtype = (uint32_t)shape.dtype,
		.k_bytes = (uint32_t)k,
		.v_bytes = (uint32_t)given_or(shape.v_bytes, k),
		.num_kv_heads = (uint16_t)given_or(shape.heads, 0),
		.head_dim = (uint16_t)given_or(shape.dim, 0),
		.order = shape.order != UINT_MAX ? shape.order : UCM_ORDER_NHD,
	};
	check_geometry(&opt->geometry);
}

static void check_shape(struct ucm_store_options *opt)
{
	/* all bits are set in what was not given */
	bool any = (shape.layers & shape.tokens & shape.dtype & shape.heads &
		    shape.dim & shape.k_bytes & shape.v_bytes) != NOT_GIVEN ||
		   shape.order != UINT_MAX;

	if (any && opt->like)
		ucm_tool_usage("--like, or a geometry");
	if (any)
		make_geometry(opt);
}

/* ---- the whole line ---- */

void ucm_store_options_take(int argc, char **argv)
{
	ucm_store_opt.args = argv;
	ucm_store_opt.num_args = argc;
}

void ucm_store_options_check(int argc, char **argv)
{
	ucm_store_options_take(argc, argv);
	check_shape(&ucm_store_opt);
	if (!ucm_store_opt.mount)
		ucm_tool_usage("no --mount or --tiers");
	if (!argc)
		ucm_tool_usage("no file RAW");
}

/* ---- the daemon ---- */

struct ucm_client *ucm_store_connect(const struct ucm_store_options *opt)
{
	struct ucm_client *client;
	int err;

	if (ucm_ask_connect(opt->mount, &client))
		ucm_tool_exit(UCM_EXIT_FAILED);
	/* a name that is misspelt must not look like a space without blocks */
	err = *opt->space ? ucm_client_ids(client, UCM_SERVE_LOOKUP, opt->space,
					   0, NULL, 0, NULL)
			  : 0;
	if (err)
		ucm_tool_die(UCM_EXIT_FAILED, "space '%s': %s", opt->space,
			     strerror(-err));
	return client;
}

int ucm_store_block_open(struct ucm_client *client, const char *space,
			 const struct ucm_id *id, struct stat *st)
{
	int fd, err = ucm_client_open(client, space, id, 1, &fd, NULL);

	if (!err && fd >= 0)
		err = ucm_os_fstat(fd, st);
	if (err && fd >= 0)
		ucm_os_close(fd);
	return err ? err : fd;
}

/* ---- geometry, where no option says it ---- */

int ucm_store_read_header(int fd, const struct stat *st, struct ucm_block *out)
{
	char bytes[UCM_BLOCK_HEADER_BYTES];
	ssize_t got = ucm_os_read_at(fd, bytes, sizeof(bytes), 0);

	if (got < 0)
		return (int)got;
	return ucm_block_parse(bytes, (size_t)got, (uint64_t)st->st_size, out)
		       ? -EBADMSG
		       : 0;
}

static void of_like(const char *path, struct ucm_geometry *out)
{
	_cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct ucm_block block;
	struct stat st;
	int err = fd < 0 || fstat(fd, &st) ? -errno
					   : ucm_store_read_header(fd, &st, &block);

	if (err)
		ucm_tool_die(UCM_EXIT_FAILED, "%s: %s", path,
			     err == -EBADMSG ? "not a block" : strerror(-err));
	*out = block.geometry;
}

/* false: there is none. */
static bool of_manifest(const struct ucm_store_options *opt,
			struct ucm_geometry *out)
{
	char text[UCM_SPACE_MANIFEST_MAX];
	struct ucm_manifest manifest;
	struct ucm_error error;
	int err;

	if (!*opt->space)
		return false;
	err = ucm_space_manifest(opt->mount, NULL, opt->space, text, &error)
		?: ucm_manifest_parse(text, strlen(text), &manifest, &error);
	if (err && err != -ENOENT)
		ucm_tool_die(UCM_EXIT_FAILED, "%s", error.text);
	if (!err)
		*out = manifest.geometry;
	return !err;
}

static int of_block(struct ucm_client *client, const char *space,
		    const struct ucm_id *id, struct ucm_geometry *out)
{
	struct ucm_block block;
	struct stat st;
	_cleanup_fd_ int fd = ucm_store_block_open(client, space, id, &st);
	int err = fd < 0 ? fd : ucm_store_read_header(fd, &st, &block);

	if (!err)
		*out = block.geometry;
	return err;
}

static int of_blocks(struct ucm_client *client, const char *space,
		     struct ucm_geometry *out)
{
	struct ucm_ids ids = { .num = 0 };
	int err = -ENOENT;

	for (unsigned bucket = 0; bucket < UCM_BUCKETS && err; bucket++) {
		err = ucm_ids_ask(client, space, bucket, &ids) ?: -ENOENT;
		for (size_t i = 0; i < ids.num && err; i++)
			err = of_block(client, space, &ids.ids[i], out);
	}
	ucm_ids_fini(&ids);
	return err;
}

struct ucm_geometry ucm_store_shape(const struct ucm_store_options *opt)
{
	struct ucm_geometry found = opt->geometry;
	struct ucm_client *client;

	if (opt->like)
		of_like(opt->like, &found);
	if (opt->like || opt->shaped)
		return found;
	client = ucm_store_connect(opt);
	if (!of_manifest(opt, &found) && of_blocks(client, opt->space, &found))
		ucm_tool_die(UCM_EXIT_FAILED, "the space has no block and no "
			     "manifest: give its geometry, or --like");
	ucm_client_close(client);
	return found;
}
