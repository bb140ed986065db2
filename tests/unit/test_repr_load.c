/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_repr_load.c - representations of many blocks at once, from the directories of
 * tiers: what is in the slabs is what the files have, and of a file that is not
 * right nothing is. (That of mounts is tested by tests/integration/ucm-repr.sh.)
 */
#include <config.h>

#include <ucm/repr_load.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hashing/tree.h"
#include "tests/unit/load_fixture.h"

#define BLOCKS 200u
#define LAYERS 8u
#define TOKENS 16u

/* Codes of 4096 bits: layers of 16 KiB, the last of which are not near. */
static const struct ucm_code_spec spec = {
	.form = UCM_CODE_TOKENS, .num_heads = 2, .head_dim = 32, .bits = 4096,
	.block_size = TOKENS, .seed = 5,
};
static struct ucm_repr_file like;

static struct ucm_repr_file file_of(unsigned n, const struct ucm_code_spec *of)
{
	struct ucm_block block = {
		.id = lf_id(n),
		.geometry = lf_geometry_of(LAYERS, TOKENS, 2, 32),
	};
	struct ucm_repr_file file;

	ck_assert_int_eq(ucm_repr_file_init_codes(&block, of, NULL, &file,
						  NULL), 0);
	return file;
}

static uint8_t byte_of(unsigned n, uint32_t layer, size_t i)
{
	return (uint8_t)(n * 31 + layer * 7 + i * 3 + i / 251);
}

static const char *path_of(const char *tier, unsigned n)
{
	struct ucm_id id = lf_id(n);
	char path[UCM_TREE_PATH_MAX];

	ucm_tree_repr_path("blocks", &id, path);
	return fx_path("%s/%s", tier, path);
}

static void write_file(const char *path, const void *bytes, size_t len)
{
	char folder[4096];
	int fd;

	snprintf(folder, sizeof(folder), "%s", path);
	*strrchr(folder, '/') = '\0';
	mkdir(folder, 0777);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, bytes, len), (ssize_t)len);
	close(fd);
}

static void plant(const char *tier, unsigned n)
{
	struct ucm_repr_file file = file_of(n, &spec);
	uint64_t len = ucm_repr_file_size(&file);
	uint8_t *bytes = malloc(len);

	for (uint32_t l = 0; l < LAYERS; l++) {
		uint8_t *at = bytes + ucm_repr_file_layer_offset(&file, l);

		for (size_t i = 0; i < file.layer_bytes; i++)
			at[i] = byte_of(n, l, i);
	}
	ck_assert_int_eq(ucm_repr_file_encode(&file, bytes + 4096, bytes, len,
					      NULL), 0);
	write_file(path_of(tier, n), bytes, len);
	free(bytes);
}

/* A byte of a file is another one. */
static void damage(const char *path, off_t at)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	uint8_t byte;

	ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
	byte ^= 1;
	ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
	close(fd);
}

/* ---- around each test ---- */

static struct ucm_reprs *reprs;
static struct ucm_repr_slab slabs[LAYERS];
static struct ucm_id ids[BLOCKS];
static int32_t results[BLOCKS];
static size_t loaded;
static struct ucm_error why;

static struct ucm_reprs *opened(const char *tiers, int way, uint32_t depth)
{
	const struct ucm_reprs_options options = {
		.size = sizeof(options), .tiers = fx_path("%s", tiers),
		.io = lf_io(way ? UCM_IO_THREADS : UCM_IO_AUTO),
		.depth = depth,
	};
	struct ucm_reprs *out;

	ck_assert_msg(!ucm_reprs_open(&options, &out, &why), "%s", why.text);
	return out;
}

static void set_up(void)
{
	fx_setup();
	lf_tier("$/a");
	lf_tier("$/b");
	like = file_of(0, &spec);
	for (uint32_t l = 0; l < LAYERS; l++) {
		slabs[l] = (struct ucm_repr_slab){
			.base = aligned_alloc(64, BLOCKS * like.layer_bytes),
			.num_slots = BLOCKS,
			.stride_bytes = like.layer_bytes,
		};
		memset(slabs[l].base, 0xee, BLOCKS * like.layer_bytes);
	}
	for (unsigned n = 0; n < BLOCKS; n++)
		ids[n] = lf_id(n);
	memset(results, 0x55, sizeof(results));
}

static void tear_down(void)
{
	ucm_ring_fault = NULL;
	ucm_reprs_close(reprs);
	reprs = NULL;
	for (uint32_t l = 0; l < LAYERS; l++)
		free(slabs[l].base);
	ck_assert_uint_eq(lf_open_files(".repr"), 0);
	fx_teardown();
}

static int load(uint32_t first, uint32_t layers, const int32_t *slots,
		size_t num)
{
	const struct ucm_reprs_request request = {
		.size = sizeof(struct ucm_reprs_request),
		.ids = ids, .num = num, .like = &like, .first_layer = first,
		.num_layers = layers, .slabs = slabs, .slots = slots,
		.results = results,
	};

	return ucm_reprs_load(reprs, &request, &loaded, &why);
}

/* Slot s of a slab has block n's layer, or (n < 0) what was there. */
static void has(uint32_t slab, uint32_t s, int n, uint32_t layer)
{
	const uint8_t *at = (const uint8_t *)slabs[slab].base +
			    (size_t)s * like.layer_bytes;

	for (size_t i = 0; i < like.layer_bytes; i++) {
		uint8_t want = n < 0 ? 0xee : byte_of((unsigned)n, layer, i);

		if (at[i] != want)
			ck_abort_msg("slab %u, slot %u, byte %zu: %u, not %u",
				     slab, s, i, at[i], want);
	}
}

UNIT_FIXTURE(.setup = set_up, .teardown = tear_down, .timeout = 60);

/* The error begins with "HEX: TEXT". */
static void says(const char *hex, const char *text)
{
	size_t len = strlen(hex);

	ck_assert_msg(!strncmp(why.text, hex, len) &&
		      !strncmp(why.text + len, ": ", 2) &&
		      !strncmp(why.text + len + 2, text, strlen(text)), "%s",
		      why.text);
}

/* ---- what is loaded ---- */

/* With it, files that are in the page cache go through the ring as well. */
static ssize_t as_it_is(const struct ucm_io *io, ssize_t result)
{
	(void)io;
	return result;
}

/* Layer 7 is not near the header. */
static const struct {
	uint32_t first, layers, depth;
	int way;
	bool ring;
} ranges[] = {
	{ 0, LAYERS, 0, 0, true }, { 0, 1, 0, 0, false },
	{ 3, 2, 7, 0, true }, { 7, 1, 0, 0, true }, { 7, 1, 0, 0, false },
	{ 6, 2, 1, 1, true }, { 0, 3, 0, 1, true }, { 2, 6, 0, 1, false },
};

UNIT_TEST(layers_of_many_blocks_are_what_their_files_have,
	  .rows = NUM_ROWS(ranges))
{
	uint32_t first = ranges[_i].first, layers = ranges[_i].layers;
	int32_t slots[BLOCKS];

	for (unsigned n = 0; n < BLOCKS; n++) {
		plant(n % 3 ? "$/a" : "$/b", n);
		slots[n] = (int32_t)(BLOCKS - 1 - n);
	}
	reprs = opened("$/a,$/b", ranges[_i].way, ranges[_i].depth);
	ucm_ring_fault = ranges[_i].ring ? as_it_is : NULL;
	ck_assert_msg(!load(first, layers, _i % 2 ? slots : NULL, BLOCKS),
		      "%s", why.text);
	ck_assert_uint_eq(loaded, BLOCKS);
	for (unsigned n = 0; n < BLOCKS; n++) {
		ck_assert_int_eq(results[n], 0);
		for (uint32_t l = 0; l < layers; l++)
			has(l, _i % 2 ? BLOCKS - 1 - n : n, (int)n, first + l);
	}
	for (uint32_t l = layers; l < LAYERS; l++)
		has(l, 0, -1, 0);
	/* of none */
	ck_assert_int_eq(load(first, layers, NULL, 0), 0);
	ck_assert_uint_eq(loaded, 0);
}

/* With io_uring, with threads, and from the page cache. */
UNIT_TEST(of_what_is_not_right_nothing_is_written, .rows = 3)
{
	static const struct { int err; const char *text; } want[] = {
		{ 0, "" },
		{ -ENOENT, "it has no file" },
		{ -EBADMSG, "header checksum differs" },
		{ -EBADMSG, "layer 1: checksum differs" },
		{ -EBADMSG, "the file is cut short" },
		{ -EBADMSG, "block_hash is not the block's" },
		{ -EINVAL, "params: not that of the request" },
		{ 0, "" }, /* a layer that nobody asks for */
		{ -EINVAL, "magic" },
	};
	const unsigned num = NUM_ROWS(want);
	struct ucm_code_spec other = spec;
	struct ucm_repr_file file;
	char hex[UCM_ID_HEX + 1], from[4096];
	uint8_t *bytes;

	for (unsigned n = 0; n < num; n++) {
		if (n != 1)
			plant("$/a", n);
	}
	damage(path_of("$/a", 2), 70);
	damage(path_of("$/a", 3),
	       (off_t)ucm_repr_file_layer_offset(&like, 1) + 5);
	ck_assert_int_eq(truncate(path_of("$/a", 4),
				  (off_t)ucm_repr_file_layer_offset(&like, 1)),
			 0);
	plant("$/a", 100);
	snprintf(from, sizeof(from), "%s", path_of("$/a", 100));
	ck_assert_int_eq(rename(from, path_of("$/a", 5)), 0);
	other.seed = 6;
	file = file_of(6, &other);
	bytes = calloc(1, ucm_repr_file_size(&file));
	ck_assert_int_eq(ucm_repr_file_encode(&file, bytes + 4096, bytes,
					      ucm_repr_file_size(&file), NULL),
			 0);
	write_file(path_of("$/a", 6), bytes, ucm_repr_file_size(&file));
	memset(bytes, 0, 4096);
	write_file(path_of("$/a", 8), bytes, ucm_repr_file_size(&file));
	free(bytes);
	damage(path_of("$/a", 7),
	       (off_t)ucm_repr_file_layer_offset(&like, 2));
	reprs = opened("$/a", _i, 3);
	ucm_ring_fault = _i < 2 ? as_it_is : NULL;
	for (unsigned n = 0; n < num; n++) {
		/* each by itself, so that error is its own */
		const struct ucm_reprs_request request = {
			.size = sizeof(struct ucm_reprs_request),
			.ids = &ids[n], .num = 1, .like = &like,
			.num_layers = 2, .slabs = slabs,
			.results = &results[n],
		};
		int32_t slot = (int32_t)n;
		struct ucm_reprs_request at = request;

		at.slots = &slot;
		ck_assert_int_eq(ucm_reprs_load(reprs, &at, &loaded, &why),
				 want[n].err);
		ck_assert_int_eq(results[n], want[n].err);
		ck_assert_uint_eq(loaded, !want[n].err);
		ucm_id_format(&ids[n], hex);
		if (want[n].err)
			says(hex, want[n].text);
		for (uint32_t l = 0; l < 2; l++)
			has(l, n, want[n].err ? -1 : (int)n, l);
	}
	/* together: the first that was not loaded has the word */
	memset(results, 0x55, sizeof(results));
	ck_assert_int_eq(load(0, 2, NULL, num), -ENOENT);
	ck_assert_uint_eq(loaded, 2);
	for (unsigned n = 0; n < num; n++)
		ck_assert_int_eq(results[n], want[n].err);
	ucm_id_format(&ids[1], hex);
	says(hex, "it has no file");
}

static ssize_t fail_third(const struct ucm_io *io, ssize_t result)
{
	static unsigned reads;

	return io->op == UCM_IO_READ && ++reads == 3 ? -EIO : result;
}

static ssize_t by_bits(const struct ucm_io *io, ssize_t result)
{
	return io->op == UCM_IO_READ && result > 1000 ? 1000 : result;
}

UNIT_TEST(a_read_that_fails_is_that_blocks, .rows = 2)
{
	int failed = 0;

	for (unsigned n = 0; n < 10; n++)
		plant("$/a", n);
	reprs = opened("$/a", _i, 4);
	ucm_ring_fault = fail_third;
	ck_assert_int_eq(load(0, 1, NULL, 10), -EIO);
	ucm_ring_fault = NULL;
	ck_assert_uint_eq(loaded, 9);
	for (unsigned n = 0; n < 10; n++) {
		failed += results[n] == -EIO;
		has(0, n, results[n] ? -1 : (int)n, 0);
	}
	ck_assert_int_eq(failed, 1);
	/* short reads go on where they stopped */
	ucm_ring_fault = by_bits;
	ck_assert_int_eq(load(0, 1, NULL, 10), 0);
	ucm_ring_fault = NULL;
	for (unsigned n = 0; n < 10; n++)
		has(0, n, (int)n, 0);
}

UNIT_TEST(a_header_is_read_by_itself)
{
	struct ucm_repr_file file, untouched;

	plant("$/b", 4);
	reprs = opened("$/a,$/b", 0, 0);
	ck_assert_int_eq(ucm_reprs_header(reprs, &ids[4], &file, &why), 0);
	ck_assert_mem_eq(&file.id, &ids[4], sizeof(file.id));
	ck_assert_mem_eq(file.params, like.params, sizeof(like.params));
	untouched = file;
	ck_assert_int_eq(ucm_reprs_header(reprs, &ids[5], &file, &why),
			 -ENOENT);
	damage(path_of("$/b", 4), 60);
	ck_assert_int_eq(ucm_reprs_header(reprs, &ids[4], &file, &why),
			 -EBADMSG);
	ck_assert_mem_eq(&file, &untouched, sizeof(file));
}

/* ---- what is refused ---- */

static void named(int err, int want, const char *text)
{
	ck_assert_int_eq(err, want);
	ck_assert_msg(!strncmp(why.text, text, strlen(text)), "%s", why.text);
}

UNIT_TEST(wrong_requests_are_refused_by_name)
{
	static const int32_t far[] = { 0, (int32_t)BLOCKS };
	struct ucm_reprs_request right = {
		.size = sizeof(struct ucm_reprs_request),
		.ids = ids, .num = 2, .like = &like, .num_layers = 1,
		.slabs = slabs, .results = results,
	}, wrong;
	struct ucm_repr_file none = like;
	struct ucm_repr_slab few = slabs[0];

	reprs = opened("$/a", 0, 0);
#define REFUSED(field, value, text)                                           \
	wrong = right;                                                        \
	wrong.field = (value);                                                \
	named(ucm_reprs_load(reprs, &wrong, &loaded, &why), -EINVAL, text)
	REFUSED(ids, NULL, "ids is NULL");
	REFUSED(like, NULL, "like is NULL");
	REFUSED(slabs, NULL, "slabs is NULL");
	REFUSED(num_layers, 0, "layers: 0 from 0 on, there are 8");
	REFUSED(num_layers, 9, "layers: 9 from 0 on, there are 8");
	REFUSED(first_layer, 8, "layers: 1 from 8 on, there are 8");
	REFUSED(first_layer, UINT32_MAX, "layers: 1 from 4294967295 on");
	REFUSED(slots, far, "slots: number 1 is 200, there are 200");
	REFUSED(num, BLOCKS + 1, "slots 0 + 201: there are 200");
	few.stride_bytes = 64;
	REFUSED(slabs, &few, "stride_bytes 64");
	none.layer_bytes = 0;
	REFUSED(like, &none, "like: it is of no file");
	named(ucm_reprs_load(reprs, NULL, &loaded, &why), -EINVAL,
	      "struct ucm_reprs_request is NULL");
	named(ucm_reprs_load(NULL, &right, &loaded, &why), -EINVAL, "reprs");
	named(ucm_reprs_load(reprs, &right, NULL, &why), -EINVAL,
	      "num_loaded");
	ck_assert_int_eq(results[0], 0x55555555);
	ck_assert_uint_eq(loaded, 0);
}

UNIT_TEST(wrong_options_are_refused_by_name)
{
	struct ucm_reprs_options right = {
		.size = sizeof(right), .tiers = fx_path("$/a"),
	}, wrong;
	struct ucm_reprs *out = NULL;

#define NOT_OPENED(field, value, err, text)                                   \
	wrong = right;                                                        \
	wrong.field = (value);                                                \
	named(ucm_reprs_open(&wrong, &out, &why), err, text)
	NOT_OPENED(size, 7, -EINVAL, "size 7");
	NOT_OPENED(tiers, NULL, -EINVAL, "mount or tiers must be given");
	NOT_OPENED(io, (enum ucm_io_kind)3, -EINVAL, "io 3");
	NOT_OPENED(depth, 4097, -EINVAL, "depth 4097");
	NOT_OPENED(space, "nowhere", -ENOENT, "space nowhere: there is none");
	named(ucm_reprs_open(NULL, &out, &why), -EINVAL,
	      "struct ucm_reprs_options is NULL");
	ck_assert_ptr_null(out);
	ucm_reprs_close(NULL);
}
