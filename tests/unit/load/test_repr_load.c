/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_repr_load.c - representations of many blocks at once, in the directories of
 * tiers: what is in the slabs is what was saved, and of what is not right nothing
 * counts as loaded. (That of mounts is tested by tests/python/test_repr_load.py.)
 */
#include <config.h>

#include <ucm/repr_load.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ucm/space.h>

#include "hashing/tree.h"
#include "tests/unit/load_fixture.h"

#define BLOCKS 200u
#define LAYERS 8u
#define TOKENS 16u

/* Codes of 4096 bits: layers of 16 KiB. */
static const struct ucm_code_spec spec = {
	.form = UCM_CODE_TOKENS, .num_heads = 2, .head_dim = 32, .bits = 4096,
	.block_size = TOKENS, .seed = 5,
};

static struct ucm_repr_space space_of(const struct ucm_code_spec *of)
{
	const struct ucm_geometry blocks =
		lf_geometry_of(LAYERS, TOKENS, 2, 32);
	struct ucm_repr_space space;

	ck_assert_int_eq(ucm_repr_space_init_codes(&blocks, of, NULL, &space,
						   NULL), 0);
	return space;
}

static uint8_t byte_of(unsigned n, uint32_t layer, size_t i)
{
	return (uint8_t)(n * 31 + layer * 7 + i * 3 + i / 251);
}

static const char *path_of(const char *tier, unsigned n)
{
	struct ucm_id id = lf_id(n);
	char path[UCM_TREE_PATH_MAX];

	ucm_tree_block_path("spaces/blocks.repr", &id, path);
	return fx_path("%s/%s", tier, path);
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

static struct ucm_repr_space like;
static struct ucm_reprs *reprs;
static struct ucm_repr_slab slabs[LAYERS];
static struct ucm_id ids[BLOCKS];
static int32_t results[BLOCKS];
static size_t done;
static struct ucm_error why;

static struct ucm_reprs *opened(int way)
{
	const struct ucm_reprs_options options = {
		.size = sizeof(options), .tiers = fx_path("$/a"),
		.like = &like, .make = 1,
		.io = lf_io(way ? UCM_IO_THREADS : UCM_IO_AUTO),
	};
	struct ucm_reprs *out;

	ck_assert_msg(!ucm_reprs_open(&options, &out, &why), "%s", why.text);
	return out;
}

static size_t slab_bytes(void)
{
	return BLOCKS * (size_t)like.geometry.k_bytes;
}

static void set_up(void)
{
	fx_setup();
	lf_tier("$/a");
	like = space_of(&spec);
	for (uint32_t l = 0; l < LAYERS; l++)
		slabs[l] = (struct ucm_repr_slab){
			.base = aligned_alloc(64, slab_bytes()),
			.num_slots = BLOCKS,
			.stride_bytes = like.geometry.k_bytes,
		};
	for (unsigned n = 0; n < BLOCKS; n++)
		ids[n] = lf_id(n);
	memset(results, 0x55, sizeof(results));
}

static void tear_down(void)
{
	ucm_reprs_close(reprs);
	reprs = NULL;
	for (uint32_t l = 0; l < LAYERS; l++)
		free(slabs[l].base);
	ck_assert_uint_eq(lf_open_files(".bin"), 0);
	fx_teardown();
}

static struct ucm_reprs_request request_of(uint32_t first, uint32_t layers,
					   size_t num)
{
	return (struct ucm_reprs_request){
		.size = sizeof(struct ucm_reprs_request),
		.ids = ids, .num = num, .first_layer = first,
		.num_layers = layers, .slabs = slabs, .results = results,
	};
}

/* The first of the blocks, from slots that say what they have; all of the slabs is
 * overwritten afterwards. */
static void save(size_t num)
{
	const struct ucm_reprs_request request = request_of(0, LAYERS, num);

	for (unsigned n = 0; n < num; n++) {
		for (uint32_t l = 0; l < LAYERS; l++) {
			uint8_t *at = (uint8_t *)slabs[l].base +
				      n * slabs[l].stride_bytes;

			for (size_t i = 0; i < like.geometry.k_bytes; i++)
				at[i] = byte_of(n, l, i);
		}
	}
	ck_assert_msg(!ucm_reprs_save(reprs, &request, &done, &why), "%s",
		      why.text);
	ck_assert_uint_eq(done, num);
	for (uint32_t l = 0; l < LAYERS; l++)
		memset(slabs[l].base, 0xee, slab_bytes());
}

static int load(uint32_t first, uint32_t layers, const int32_t *slots,
		size_t num)
{
	struct ucm_reprs_request request = request_of(first, layers, num);

	request.slots = slots;
	return ucm_reprs_load(reprs, &request, &done, &why);
}

/* Slot s of a slab has block n's layer, or (n < 0) what was there. */
static void has(uint32_t slab, uint32_t s, int n, uint32_t layer)
{
	const uint8_t *at = (const uint8_t *)slabs[slab].base +
			    s * slabs[slab].stride_bytes;

	for (size_t i = 0; i < like.geometry.k_bytes; i++) {
		uint8_t want = n < 0 ? 0xee : byte_of((unsigned)n, layer, i);

		if (at[i] != want)
			ck_abort_msg("slab %u, slot %u, byte %zu: %u, not %u",
				     slab, s, i, at[i], want);
	}
}

UNIT_FIXTURE(.setup = set_up, .teardown = tear_down, .timeout = 60);

/* ---- what is loaded ---- */

static const struct {
	uint32_t first, layers;
	int way;
} ranges[] = {
	{ 0, LAYERS, 0 }, { 0, 1, 0 }, { 3, 2, 0 }, { 7, 1, 1 }, { 2, 6, 1 },
};

UNIT_TEST(layers_of_many_blocks_are_what_was_saved, .rows = NUM_ROWS(ranges))
{
	uint32_t first = ranges[_i].first, layers = ranges[_i].layers;
	int32_t slots[BLOCKS];

	for (unsigned n = 0; n < BLOCKS; n++)
		slots[n] = (int32_t)(BLOCKS - 1 - n);
	reprs = opened(ranges[_i].way);
	save(BLOCKS);
	ck_assert_msg(!load(first, layers, _i % 2 ? slots : NULL, BLOCKS),
		      "%s", why.text);
	ck_assert_uint_eq(done, BLOCKS);
	for (unsigned n = 0; n < BLOCKS; n++) {
		ck_assert_int_eq(results[n], 0);
		for (uint32_t l = 0; l < layers; l++)
			has(l, _i % 2 ? BLOCKS - 1 - n : n, (int)n, first + l);
	}
	for (uint32_t l = layers; l < LAYERS; l++)
		has(l, 0, -1, 0);
	/* of none */
	ck_assert_int_eq(load(first, layers, NULL, 0), 0);
	ck_assert_uint_eq(done, 0);
}

UNIT_TEST(of_what_is_not_there_or_not_right_each_is_told)
{
	static const struct { int err; const char *text; } want[] = {
		{ 0, "" },
		{ -ENOENT, "" },
		{ -EBADMSG, "layer 1 K: plane checksum differs" },
		{ -EBADMSG, "" }, /* cut short */
		{ 0, "" }, /* a layer that nobody asks for */
	};
	const off_t first_page = 4096, layer = like.geometry.k_bytes;
	char hex[UCM_ID_HEX + 1];

	reprs = opened(0);
	save(NUM_ROWS(want));
	ck_assert_int_eq(unlink(path_of("$/a", 1)), 0);
	damage(path_of("$/a", 2), first_page + layer + 5);
	ck_assert_int_eq(truncate(path_of("$/a", 3), first_page + layer), 0);
	damage(path_of("$/a", 4), first_page + 2 * layer);
	ck_assert_int_eq(load(0, 2, NULL, NUM_ROWS(want)), -ENOENT);
	ucm_id_format(&ids[1], hex);
	ck_assert_msg(!strncmp(why.text, hex, UCM_ID_HEX), "%s", why.text);
	ck_assert_uint_eq(done, 2);
	for (unsigned n = 0; n < NUM_ROWS(want); n++) {
		ck_assert_int_eq(results[n], want[n].err);
		if (!want[n].err)
			has(0, n, (int)n, 0);
	}
	ids[0] = ids[2];
	ck_assert_int_eq(load(0, 2, NULL, 1), -EBADMSG);
	ck_assert_msg(strstr(why.text, want[2].text) != NULL, "%s", why.text);
}

/* ---- what a space holds ---- */

static void named(int err, int want, const char *text)
{
	ck_assert_int_eq(err, want);
	ck_assert_msg(!strncmp(why.text, text, strlen(text)), "%s", why.text);
}

UNIT_TEST(a_space_says_what_it_holds_and_refuses_what_it_does_not)
{
	struct ucm_code_spec other = spec;
	struct ucm_reprs_options options = {
		.size = sizeof(options), .tiers = fx_path("$/a"),
	};
	struct ucm_repr_space wrong;
	struct ucm_reprs *out = NULL;

	ck_assert_int_eq(ucm_reprs_open(&options, &out, &why), -ENOENT);
	reprs = opened(0);
	ck_assert_mem_eq(ucm_reprs_space(reprs), &like, sizeof(like));
	other.seed = 6;
	wrong = space_of(&other);
	for (options.make = 0; options.make < 2; options.make++) {
		options.like = &wrong;
		named(ucm_reprs_open(&options, &out, &why), -EINVAL,
		      "space blocks.repr: params: not that of the request");
	}
	options.make = 0;
	options.like = NULL;
	ck_assert_int_eq(ucm_space_make(NULL, fx_path("$/a"), "kv",
		"{ \"geometry\": { \"num_layers\": 2, \"block_size\": 16, "
		"\"dtype\": \"opaque\", \"k_bytes\": 64 } }", NULL, &why), 0);
	options.space = "kv";
	named(ucm_reprs_open(&options, &out, &why), -EINVAL,
	      "manifest: not one of representations");
	ck_assert_ptr_null(out);
}

/* The same layers would fit, and mean something else. */
UNIT_TEST(a_space_that_was_made_anew_is_not_taken_for_the_old_one, .rows = 2)
{
	const struct ucm_reprs_request request = request_of(0, LAYERS, 3);
	struct ucm_code_spec other = spec;
	struct ucm_repr_space now;
	char text[UCM_REPR_MANIFEST_MAX];
	FILE *file;

	other.seed = 6;
	now = space_of(&other);
	reprs = opened(0);
	save(3);
	ck_assert_int_eq(ucm_repr_space_manifest(&now, text, NULL), 0);
	file = fopen(fx_path("$/a/spaces/blocks.repr/space.json"), "w");
	ck_assert(file && fputs(text, file) >= 0 && !fclose(file));
	named(_i ? ucm_reprs_save(reprs, &request, &done, &why)
		 : ucm_reprs_load(reprs, &request, &done, &why), -ESTALE,
	      "space blocks.repr: removed, or made again");
	ck_assert_uint_eq(done, 0);
	ck_assert_int_eq(results[0], _i ? 0 : -ESTALE);
}

/* ---- what is refused ---- */

UNIT_TEST(wrong_requests_are_refused_by_name)
{
	static const int32_t far[] = { 0, (int32_t)BLOCKS };
	struct ucm_reprs_request right = request_of(0, 1, 2), wrong;
	struct ucm_repr_slab few = slabs[0];

	reprs = opened(0);
#define REFUSED(field, value, text)                                           \
	wrong = right;                                                        \
	wrong.field = (value);                                                \
	named(ucm_reprs_load(reprs, &wrong, &done, &why), -EINVAL, text)
	REFUSED(ids, NULL, "ids is NULL");
	REFUSED(slabs, NULL, "slabs is NULL");
	REFUSED(num_layers, 0, "layers: 0 from 0 on, there are 8");
	REFUSED(num_layers, 9, "layers: 9 from 0 on, there are 8");
	REFUSED(first_layer, 8, "layers: 1 from 8 on, there are 8");
	REFUSED(first_layer, UINT32_MAX, "layers: 1 from 4294967295 on");
	REFUSED(slots, far, "slots: number 1 is 200, there are 200");
	REFUSED(num, BLOCKS + 1, "slots 0 + 201: there are 200");
	few.stride_bytes = 64;
	REFUSED(slabs, &few, "stride_bytes 64");
	named(ucm_reprs_save(reprs, &right, &done, &why), -EINVAL,
	      "layers: 1, where all 8 are saved at once");
	named(ucm_reprs_load(reprs, NULL, &done, &why), -EINVAL,
	      "struct ucm_reprs_request is NULL");
	named(ucm_reprs_load(NULL, &right, &done, &why), -EINVAL, "reprs");
	named(ucm_reprs_load(reprs, &right, NULL, &why), -EINVAL, "num_loaded");
	named(ucm_reprs_save(reprs, &right, NULL, &why), -EINVAL, "num_saved");
	ck_assert_int_eq(results[0], 0x55555555);
	ck_assert_uint_eq(done, 0);
}

UNIT_TEST(wrong_options_are_refused_by_name)
{
	struct ucm_reprs_options right = {
		.size = sizeof(right), .tiers = fx_path("$/a"), .like = &like,
		.make = 1,
	}, wrong;
	struct ucm_reprs *out = NULL;

#define NOT_OPENED(field, value, err, text)                                   \
	wrong = right;                                                        \
	wrong.field = (value);                                                \
	named(ucm_reprs_open(&wrong, &out, &why), err, text)
	NOT_OPENED(size, 7, -EINVAL, "size 7");
	NOT_OPENED(tiers, NULL, -EINVAL, "mount or tiers must be given");
	NOT_OPENED(io, (enum ucm_io_kind)3, -EINVAL, "io 3");
	NOT_OPENED(like, NULL, -EINVAL, "make: like is NULL");
	NOT_OPENED(blocks, "blocks", -EINVAL, "space blocks: blocks.repr is");
	named(ucm_reprs_open(NULL, &out, &why), -EINVAL,
	      "struct ucm_reprs_options is NULL");
	ck_assert_ptr_null(out);
	ucm_reprs_close(NULL);
}
