/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mkblocks.c - make, list and verify block files.
 *
 * For tests, the quick start and the benchmark. Everything about a block, its
 * name, its parent and every byte, follows from the options alone: what one
 * call has written another can verify, and two calls with the same options
 * write the same files. It knows buckets and block files, but not whether DIR
 * belongs to a mount, to a tier or to nobody.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <ucm/block.h>
#include <ucm/hash.h>

#include "common/align.h"
#include "common/parse.h"
#include "hashing/tree.h"

#define ME "mkblocks"
#define MODEL "meta-llama/Llama-3.1-8B"
#define VOCABULARY 128256
#define NOT_GIVEN UINT64_MAX

struct options {
	uint64_t count, start;
	uint64_t layers, heads, dim, tokens, k_bytes, v_bytes;
	uint64_t seed, chunk, bucket;
	bool no_crc, direct, existing_ok, list, verify, print, progress, quiet;
	uint32_t dtype;
	enum ucm_form form;
	bool rename;
	const char *text, *model, *spoil, *dir;
};

struct maker {
	const struct options *opt;
	struct ucm_block block; /* the one in hand: its id and parent change */
	uint64_t size;          /* of one file */
	char *file;             /* size bytes: what the file must be */
	char *back;             /* the same room, for reading it back */
	char *text;             /* NULL: tokens are made from the seed */
	struct ucm_hasher *hasher;
	struct ucm_hash_state chain; /* after the block in hand */
	int64_t *tokens;        /* of the block in hand */
	uint64_t number;        /* its number */
	uint64_t done;
	uint64_t io_ns;         /* from open to close, not making bytes */
	uint64_t told_ns;
};

static const struct {
	const char *name;
	size_t at;
	uint64_t min, max;
} numbers[] = {
#define NUMBER(name, field, min, max) \
	{ name, offsetof(struct options, field), min, max }
	NUMBER("count", count, 1, UINT32_MAX),
	NUMBER("start", start, 0, UINT32_MAX),
	NUMBER("layers", layers, 1, 1 << 20),
	NUMBER("heads", heads, 0, UINT16_MAX),
	NUMBER("dim", dim, 0, UINT16_MAX),
	NUMBER("tokens", tokens, 1, 1 << 20),
	NUMBER("k-bytes", k_bytes, 1, UINT32_MAX),
	NUMBER("v-bytes", v_bytes, 0, UINT32_MAX),
	NUMBER("seed", seed, 0, UINT64_MAX - 1),
	NUMBER("chunk", chunk, 1, UINT32_MAX),
	NUMBER("bucket", bucket, 0, UCM_BUCKETS - 1),
};

static const struct {
	const char *name;
	size_t at;
} flags[] = {
#define FLAG(name, field) { name, offsetof(struct options, field) }
	FLAG("no-crc", no_crc),
	FLAG("direct", direct),
	FLAG("existing-ok", existing_ok),
	FLAG("list", list),
	FLAG("verify", verify),
	FLAG("print", print),
	FLAG("progress", progress),
	FLAG("quiet", quiet),
};

/* What --spoil makes wrong: one bit of this byte; all checksums that another
 * rule looks at are made to fit again. */
static const struct {
	const char *name;
	unsigned offset;
	bool seal;
} spoils[] = {
	{ "magic", 0, true },
	{ "version", 4, true },
	{ "name", 8, true },        /* block_hash */
	{ "field", 40, true },      /* k_bytes, at odds with heads and dim */
	{ "flags", 54, true },      /* one that means nothing */
	{ "header-crc", 60, false },
	{ "extension", 112, false }, /* created */
	{ "plane", 4096, false },   /* the payload's first byte */
	{ "long", 0, false },       /* a page more than announced */
	{ "short", 0, false },      /* a page less */
};
#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static const char usage_text[] =
	"usage: " ME " [options] DIR\n"
	"\n"
	"Make block files in the buckets of DIR: a mount's blocks/, a space, or\n"
	"any directory. Names and bytes follow from the options alone.\n"
	"\n"
	"  --count N            blocks (256)\n"
	"  --start N            leave out the first N of the chain (0)\n"
	"  --layers N --heads N --dim N --dtype NAME --tokens N\n"
	"                       geometry (32, 8, 128, float16, 16)\n"
	"  --k-bytes N --v-bytes N\n"
	"                       bytes of a plane, instead of what follows from it\n"
	"  --form paged|packed|bare\n"
	"  --no-crc             without checksums\n"
	"  --seed N             token ids are made from N (0)\n"
	"  --text FILE          token ids are the bytes of FILE\n"
	"  --model TEXT         whose blocks they are: another chain\n"
	"                       (" MODEL ")\n"
	"  --method create|rename\n"
	"                       write at the name itself, or NAME.tmp and rename\n"
	"  --direct             O_DIRECT\n"
	"  --bucket N           all in this one: no longer hashes, their first byte\n"
	"                       is N (0 to 255)\n"
	"  --chunk N            bytes of one write(2) or read(2) (the whole file)\n"
	"  --existing-ok        leave alone what exists\n"
	"  --spoil WHAT         make every block wrong in one way: magic, version,\n"
	"                       name, field, flags, header-crc, extension, plane,\n"
	"                       long or short\n"
	"  --list               make nothing, print the paths below DIR\n"
	"  --verify             make nothing, read the blocks and compare\n"
	"  --print              print each path once it is done\n"
	"  --progress, --quiet\n";

static int usage(const char *what, const char *arg)
{
	fprintf(stderr, ME ": %s%s; try --help\n", what, arg);
	return -EINVAL;
}

static int complain(const char *path, const char *call)
{
	int err = -errno;

	fprintf(stderr, ME ": %s: %s: %s\n", path, call, strerror(-err));
	return err;
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* ---- options ---- */

static int set_word(struct options *opt, const char *name, const char *value)
{
	static const char *const forms[] = { "paged", "packed", "bare" };

	if (!strcmp(name, "dtype"))
		return ucm_dtype_parse(value, &opt->dtype);
	if (!strcmp(name, "form")) {
		for (unsigned i = 0; i < LENGTH(forms); i++) {
			opt->form = (enum ucm_form)i;
			if (!strcmp(value, forms[i]))
				return 0;
		}
		return -EINVAL;
	}
	if (!strcmp(name, "method")) {
		opt->rename = !strcmp(value, "rename");
		return opt->rename || !strcmp(value, "create") ? 0 : -EINVAL;
	}
	if (!strcmp(name, "text"))
		opt->text = value;
	else if (!strcmp(name, "model"))
		opt->model = value;
	else if (!strcmp(name, "spoil"))
		opt->spoil = value;
	else
		return -ENOENT;
	return 0;
}

static int set_value(struct options *opt, const char *name, const char *value)
{
	for (unsigned i = 0; i < LENGTH(numbers); i++) {
		if (!strcmp(name, numbers[i].name))
			return ucm_parse_range(value, numbers[i].min,
					       numbers[i].max,
					       (uint64_t *)(void *)
					       ((char *)opt + numbers[i].at));
	}
	return set_word(opt, name, value);
}

static bool set_flag(struct options *opt, const char *name)
{
	for (unsigned i = 0; i < LENGTH(flags); i++) {
		if (!strcmp(name, flags[i].name)) {
			*(bool *)((char *)opt + flags[i].at) = true;
			return true;
		}
	}
	return false;
}

static int check_options(const struct options *opt)
{
	bool known = !opt->spoil;

	for (unsigned i = 0; i < LENGTH(spoils) && !known; i++)
		known = !strcmp(opt->spoil, spoils[i].name);
	if (!known)
		return usage("no such way to spoil a block: ", opt->spoil);
	if (opt->spoil && opt->form != UCM_FORM_PAGED)
		return usage("--spoil is for the paged form", "");
	if (!opt->dir && !opt->list)
		return usage("DIR is missing", "");
	if (opt->direct && !opt->verify && opt->form != UCM_FORM_PAGED)
		return usage("--direct writes the paged form only", "");
	if (opt->direct && opt->chunk % UCM_BLOCK_PAGE &&
	    opt->chunk != NOT_GIVEN)
		return usage("--direct needs a chunk of whole pages", "");
	if (opt->form == UCM_FORM_BARE && opt->v_bytes != NOT_GIVEN &&
	    opt->v_bytes != opt->k_bytes)
		return usage("the bare form has K and V of one size", "");
	return 0;
}

static int parse_arguments(struct options *opt, char **arg)
{
	for (arg++; *arg; arg++) {
		int err;

		if (strncmp(*arg, "--", 2)) {
			if (opt->dir)
				return usage("more than one DIR: ", *arg);
			opt->dir = *arg;
			continue;
		}
		if (set_flag(opt, *arg + 2))
			continue;
		err = arg[1] ? set_value(opt, *arg + 2, arg[1]) : -ENOENT;
		if (err == -ENOENT)
			return usage("unknown option, or no value: ", *arg);
		if (err)
			return usage("bad value of ", *arg);
		arg++;
	}
	return check_options(opt);
}

/* ---- what the blocks are ---- */

static void set_planes(const struct options *opt, struct ucm_geometry *g)
{
	uint64_t k = opt->tokens * opt->heads * opt->dim *
		     ucm_dtype_size(opt->dtype);

	if (opt->k_bytes != NOT_GIVEN)
		k = opt->k_bytes;
	g->k_bytes = k <= UINT32_MAX ? (uint32_t)k : 0;
	g->v_bytes = opt->v_bytes != NOT_GIVEN ? (uint32_t)opt->v_bytes
					       : g->k_bytes;
}

static int set_block(const struct options *opt, struct ucm_block *block)
{
	char header[UCM_BLOCK_HEADER_BYTES];
	struct ucm_block probe;

	*block = (struct ucm_block){
		.form = opt->form,
		.geometry = {
			.num_layers = (uint32_t)opt->layers,
			.block_size = (uint32_t)opt->tokens,
			.dtype = opt->dtype,
			.num_kv_heads = (uint16_t)opt->heads,
			.head_dim = (uint16_t)opt->dim,
		},
	};
	set_planes(opt, &block->geometry);
	/* is this a geometry at all? */
	probe = *block;
	probe.form = UCM_FORM_PACKED;
	probe.data_offset = UCM_BLOCK_HEADER_BYTES;
	if (ucm_block_encode(&probe, NULL, header, sizeof(header)))
		return usage("heads, dim, dtype and the bytes of a plane do "
			     "not go together", "");
	block->data_offset = UCM_BLOCK_HEADER_BYTES;
	if (opt->form == UCM_FORM_PAGED) {
		block->data_offset =
			ucm_block_data_offset(block->geometry.num_layers);
		block->flags = UCM_BLOCK_HAS_PARENT;
	}
	return 0;
}

static int read_text(struct maker *maker)
{
	const struct options *opt = maker->opt;
	uint64_t want = (opt->start + opt->count) * opt->tokens;
	FILE *file = fopen(opt->text, "re");
	size_t got;

	if (!file)
		return complain(opt->text, "open");
	maker->text = malloc(want);
	got = maker->text ? fread(maker->text, 1, want, file) : 0;
	fclose(file);
	if (got == want)
		return 0;
	fprintf(stderr, ME ": %s: %zu bytes, but %llu tokens are asked for\n",
		opt->text, got, (unsigned long long)want);
	return -EINVAL;
}

static uint64_t splitmix64(uint64_t *state)
{
	uint64_t x = *state += 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static void fill_tokens(const struct maker *maker, int64_t *tokens)
{
	uint64_t num = maker->opt->tokens;
	uint64_t state = maker->opt->seed << 32 ^ maker->number * num;

	for (uint64_t i = 0; i < num; i++) {
		if (maker->text)
			tokens[i] = (unsigned char)
				maker->text[maker->number * num + i];
		else
			tokens[i] = (int64_t)(splitmix64(&state) % VOCABULARY);
	}
}

/* Names are those of the scheme "chain", at rank 0 of 1. */
static int open_chain(struct maker *maker)
{
	const struct options *opt = maker->opt;
	const struct ucm_hash_meta meta = {
		.scheme = UCM_SCHEME_CHAIN,
		.block_size = (uint32_t)opt->tokens,
		.world_size = 1,
		.model = opt->model ? opt->model : MODEL,
		.dtype = ucm_dtype_name(opt->dtype),
	};
	int err;

	maker->tokens = calloc(opt->tokens, sizeof(*maker->tokens));
	err = maker->tokens ? ucm_hasher_open(&meta, &maker->hasher, NULL)
			    : -ENOMEM;
	if (!err)
		err = ucm_hash_start(maker->hasher, NULL, &maker->chain, NULL);
	return err;
}

static int next_block(struct maker *maker)
{
	struct ucm_hash_request request = {
		.tokens = maker->tokens,
		.num_tokens = maker->opt->tokens,
		.ids = &maker->block.id,
		.room = 1,
		.state = &maker->chain,
	};
	int err;

	maker->block.parent = maker->chain.parent;
	fill_tokens(maker, maker->tokens);
	err = ucm_hash_request(maker->hasher, &request, NULL);
	if (!err && maker->opt->bucket != NOT_GIVEN)
		maker->block.id.bytes[0] = (uint8_t)maker->opt->bucket;
	return err;
}

static void fill_payload(const struct ucm_id *id, char *out, uint64_t len)
{
	uint64_t halves[2], word;

	memcpy(halves, id->bytes, sizeof(halves));
	halves[0] ^= halves[1];
	for (; len >= sizeof(word); len -= sizeof(word), out += sizeof(word)) {
		word = splitmix64(&halves[0]);
		memcpy(out, &word, sizeof(word));
	}
	word = splitmix64(&halves[0]);
	memcpy(out, &word, len);
}

static void spoil(struct maker *maker)
{
	const uint32_t crc_at = UCM_BLOCK_HEADER_BYTES - 4;
	uint32_t crc;

	for (unsigned i = 0; i < LENGTH(spoils); i++) {
		if (strcmp(maker->opt->spoil, spoils[i].name))
			continue;
		if (!strcmp(spoils[i].name, "long") ||
		    !strcmp(spoils[i].name, "short"))
			return; /* set_up() has changed the size */
		maker->file[spoils[i].offset] ^= 1;
		if (!spoils[i].seal)
			return;
		crc = ucm_crc32c(0, maker->file, crc_at);
		memcpy(maker->file + crc_at, &crc, sizeof(crc));
	}
}

/* The whole file of the block in hand, in maker->file. */
static void fill_file(struct maker *maker)
{
	struct ucm_block *block = &maker->block;
	struct ucm_block as = *block;
	char *payload = maker->file + block->data_offset;

	fill_payload(&block->id, payload,
		     ucm_block_payload_bytes(&block->geometry));
	if (block->form == UCM_FORM_BARE)
		as.form = UCM_FORM_PACKED;
	ucm_block_encode(&as, maker->opt->no_crc ? NULL : payload, maker->file,
			 block->data_offset);
	if (block->form == UCM_FORM_BARE) /* it has the first 36 bytes only */
		memset(maker->file + 36, 0, UCM_BLOCK_HEADER_BYTES - 36);
	if (maker->opt->spoil)
		spoil(maker);
}

/* ---- files ---- */

static void path_of(const struct maker *maker, char *path, size_t size)
{
	char name[UCM_TREE_BELOW_LEN + 1];

	ucm_tree_block_below(&maker->block.id, name);
	snprintf(path, size, "%s/%s", maker->opt->dir, name);
}

static int open_new(const struct maker *maker, const char *path)
{
	int how = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC |
		  (maker->opt->direct ? O_DIRECT : 0);
	char bucket[4096];
	int fd = open(path, how, 0644);

	if (fd >= 0 || errno != ENOENT)
		return fd;
	snprintf(bucket, sizeof(bucket), "%.*s",
		 (int)(strrchr(path, '/') - path), path);
	if (mkdir(bucket, 0755) && errno != EEXIST)
		return -1;
	return open(path, how, 0644);
}

static int write_file(const struct maker *maker, int fd, const char *path)
{
	uint64_t at = 0;

	while (at < maker->size) {
		uint64_t left = maker->size - at;
		ssize_t put = write(fd, maker->file + at,
				    left < maker->opt->chunk
					    ? left : maker->opt->chunk);

		if (put < 0)
			return complain(path, "write");
		at += (uint64_t)put;
	}
	return 0;
}

/* A file that failed is left where it is: in a mount the name may by now be
 * another writer's block. */
static int make_file(const struct maker *maker, const char *path)
{
	char temp[4096 + 8];
	const char *name = path;
	int fd, err;

	snprintf(temp, sizeof(temp), "%s.tmp", path);
	if (maker->opt->rename)
		name = temp;
	fd = open_new(maker, name);
	if (fd < 0 && errno == EEXIST && maker->opt->existing_ok)
		return 0;
	if (fd < 0)
		return complain(name, "open");
	err = write_file(maker, fd, name);
	if (close(fd) && !err)
		err = complain(name, "close");
	if (!err && maker->opt->rename && rename(temp, path))
		err = complain(path, "rename");
	return err;
}

static int read_file(const struct maker *maker, int fd, const char *path)
{
	uint64_t room = ucm_round_up(maker->size, UCM_BLOCK_PAGE);
	uint64_t at = 0;

	while (at < maker->size) {
		uint64_t left = room - at;
		ssize_t got = read(fd, maker->back + at,
				   left < maker->opt->chunk
					   ? left : maker->opt->chunk);

		if (got < 0)
			return complain(path, "read");
		if (got == 0)
			break;
		at += (uint64_t)got;
	}
	if (at == maker->size)
		return 0;
	fprintf(stderr, ME ": %s: %llu bytes read, must be %llu\n", path,
		(unsigned long long)at, (unsigned long long)maker->size);
	return -EIO;
}

static int compare(const struct maker *maker, const char *path)
{
	uint64_t at = 0;

	if (!memcmp(maker->back, maker->file, maker->size))
		return 0;
	while (maker->back[at] == maker->file[at])
		at++;
	fprintf(stderr, ME ": %s: byte %llu is 0x%02x, must be 0x%02x\n", path,
		(unsigned long long)at, (unsigned char)maker->back[at],
		(unsigned char)maker->file[at]);
	return -EIO;
}

static int check_file(struct maker *maker, const char *path, uint64_t began)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC |
				    (maker->opt->direct ? O_DIRECT : 0));
	struct stat st;
	int err;

	if (fd < 0)
		return complain(path, "open");
	if (fstat(fd, &st)) {
		err = complain(path, "stat");
	} else if ((uint64_t)st.st_size != maker->size) {
		fprintf(stderr, ME ": %s: %lld bytes, must be %llu\n", path,
			(long long)st.st_size, (unsigned long long)maker->size);
		err = -EIO;
	} else {
		err = read_file(maker, fd, path);
	}
	close(fd);
	maker->io_ns += now_ns() - began;
	return err ? err : compare(maker, path);
}

static int handle_block(struct maker *maker)
{
	char path[4096];
	uint64_t began;
	int err;

	path_of(maker, path, sizeof(path));
	fill_file(maker);
	began = now_ns();
	if (maker->opt->verify)
		return check_file(maker, path, began);
	err = make_file(maker, path);
	maker->io_ns += now_ns() - began;
	return err;
}

/* ---- all of them ---- */

static void print_path(const struct maker *maker)
{
	char name[UCM_TREE_BELOW_LEN + 1];

	ucm_tree_block_below(&maker->block.id, name);
	printf("%s\n", name);
	if (!maker->opt->list) /* a reader of --print waits for each line */
		fflush(stdout);
}

static void tell_progress(struct maker *maker)
{
	uint64_t now = now_ns();

	if (!maker->opt->progress || now - maker->told_ns < 1000000000)
		return;
	maker->told_ns = now;
	fprintf(stderr, ME ": %llu of %llu blocks\n",
		(unsigned long long)maker->done,
		(unsigned long long)maker->opt->count);
}

static void print_summary(const struct maker *maker)
{
	double bytes = (double)maker->done * (double)maker->size;
	double seconds = (double)maker->io_ns / 1e9;

	if (maker->opt->quiet || maker->opt->list)
		return;
	printf("%llu blocks, %.0f MB, %.0f MB/s\n",
	       (unsigned long long)maker->done, bytes / 1e6,
	       seconds > 0 ? bytes / 1e6 / seconds : 0);
}

static int run(struct maker *maker)
{
	const struct options *opt = maker->opt;
	int err = open_chain(maker);

	for (; !err && maker->number < opt->start + opt->count;
	     maker->number++) {
		err = next_block(maker);
		if (err || maker->number < opt->start)
			continue;
		if (!opt->list)
			err = handle_block(maker);
		if (err)
			return err; /* told */
		maker->done++;
		if (opt->list || opt->print)
			print_path(maker);
		tell_progress(maker);
	}
	if (err)
		fprintf(stderr, ME ": chain: %s\n", strerror(-err));
	return err;
}

static int set_up(struct maker *maker)
{
	const struct options *opt = maker->opt;
	uint64_t room;

	maker->size = ucm_block_file_size(&maker->block);
	/* the same room for every way to spoil, and for O_DIRECT */
	room = ucm_round_up(maker->size, UCM_BLOCK_PAGE) + UCM_BLOCK_PAGE;
	if (opt->spoil && !strcmp(opt->spoil, "long"))
		maker->size += UCM_BLOCK_PAGE;
	if (opt->spoil && !strcmp(opt->spoil, "short"))
		maker->size -= UCM_BLOCK_PAGE;
	maker->file = aligned_alloc(UCM_BLOCK_PAGE, room);
	maker->back = aligned_alloc(UCM_BLOCK_PAGE, room);
	if (!maker->file || !maker->back) {
		fprintf(stderr, ME ": no memory for a block of %llu bytes\n",
			(unsigned long long)maker->size);
		return -ENOMEM;
	}
	memset(maker->file, 0, room);
	maker->told_ns = now_ns();
	return opt->text ? read_text(maker) : 0;
}

int main(int argc, char **argv)
{
	struct options opt = {
		.count = 256, .layers = 32, .heads = 8, .dim = 128,
		.tokens = 16, .dtype = UCM_DTYPE_FLOAT16,
		.k_bytes = NOT_GIVEN, .v_bytes = NOT_GIVEN, .chunk = NOT_GIVEN,
		.bucket = NOT_GIVEN,
	};
	struct maker maker = { .opt = &opt };
	int err;

	if (argc > 1 && !strcmp(argv[1], "--help")) {
		fputs(usage_text, stdout);
		return 0;
	}
	if (parse_arguments(&opt, argv) || set_block(&opt, &maker.block))
		return 2;
	err = set_up(&maker);
	if (!err)
		err = run(&maker);
	if (!err)
		print_summary(&maker);
	free(maker.file);
	free(maker.back);
	free(maker.text);
	free(maker.tokens);
	ucm_hasher_close(maker.hasher);
	return err ? 1 : 0;
}
