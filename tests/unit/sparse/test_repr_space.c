/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_repr_space.c - what a space of representations holds, against a manifest
 * that was written by hand, and each way in which one can be wrong.
 */
#include <config.h>

#include <ucm/repr.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/block/manifest.h"
#include "hashing/tree.h"
#include "tests/unit/unit.h"

#define LAYERS 2u
#define LAYER_BYTES 128u /* 2 heads of 32 bfloat16 */

/* Of blocks of 2 layers, 4 tokens, 2 heads of 32: means in bfloat16. */
static const char golden[] =
	"{ \"repr\": { \"kind\": \"mean\", \"dtype\": \"bfloat16\",\n"
	"    \"params\": \"00000000000000000000000000000000"
	"00000000000000000000000000000000"
	"00000000000000000000000000000000"
	"00000000000000000000000000000000\" },\n"
	"  \"geometry\": { \"num_layers\": 2, \"block_size\": 4, "
	"\"dtype\": \"opaque\",\n"
	"    \"k_bytes\": 128, \"v_bytes\": 0, \"num_kv_heads\": 2, "
	"\"head_dim\": 32,\n"
	"    \"order\": \"opaque\" } }\n";

static const struct ucm_geometry of_blocks = {
	.num_layers = LAYERS,
	.block_size = 4,
	.dtype = UCM_DTYPE_BFLOAT16,
	.k_bytes = 512,
	.v_bytes = 512,
	.num_kv_heads = 2,
	.head_dim = 32,
	.order = UCM_ORDER_HND,
};

static const struct ucm_repr_spec golden_spec = {
	.kind = UCM_REPR_MEAN,
	.dtype = UCM_DTYPE_BFLOAT16,
	.num_heads = 2,
	.head_dim = 32,
	.block_size = 4,
};

/* error begins with the name of what is wrong */
static void refused(int got, const struct ucm_error *error, const char *text)
{
	ck_assert_int_eq(got, -EINVAL);
	if (strncmp(error->text, text, strlen(text)) != 0)
		ck_abort_msg("'%s' does not begin with '%s'", error->text,
			     text);
}

/* ---- the manifest ---- */

UNIT_TEST(a_manifest_is_that_of_the_document_and_back)
{
	struct ucm_repr_space space, back;
	struct ucm_manifest manifest;
	char text[UCM_REPR_MANIFEST_MAX];

	ck_assert_int_eq(ucm_repr_space_init(&of_blocks, &golden_spec, &space,
					     NULL), 0);
	ck_assert_uint_eq(space.geometry.k_bytes, LAYER_BYTES);
	ck_assert_int_eq(ucm_repr_space_manifest(&space, text, NULL), 0);
	ck_assert_str_eq(text, golden);
	ck_assert_int_eq(ucm_repr_space_parse(text, &back, NULL), 0);
	ck_assert_mem_eq(&back, &space, sizeof(space));
	/* the store takes it as that of any space */
	ck_assert_int_eq(ucm_manifest_parse(text, strlen(text), &manifest,
					    NULL), 0);
	ck_assert(ucm_geometry_equal(&manifest.geometry, &space.geometry));
}

/* A text of the manifest that is another one. */
static const struct {
	const char *from, *to, *text;
} wrong[] = {
	{ "\"repr\"", "\"model\"", "manifest: not one of representations" },
	{ "{ \"repr\"", "[ \"repr\"", "manifest: not one of representations" },
	{ "mean", "median", "kind median: unknown" },
	{ "\"kind\"", "\"sort\"", "kind (none): unknown" },
	{ "mean", "minmax", "k_bytes 128: must be 256" },
	{ "bfloat16", "bfloat17", "dtype bfloat17: unknown" },
	{ "bfloat16", "uint8", "dtype 7" },
	{ "bfloat16", "float32", "k_bytes 128: must be 256" },
	{ "\"params\"", "\"param\"", "params: must be 128" },
	{ "\"00", "\"0", "params: must be 128" },
	{ "\"00", "\"0A", "params: must be 128" },
	{ "\"00", "\"01", "params: not zero" },
	{ "\"num_layers\": 2", "\"num_layers\": 0", "num_layers: from 1" },
	{ "\"num_layers\": 2", "\"num_layers\": 513", "num_layers: from 1" },
	{ "\"num_layers\": 2", "\"num_layers\": \"2\"", "num_layers: from 1" },
	{ "\"block_size\": 4", "\"block_size\": 65537", "block_size: from 1" },
	{ "\"k_bytes\": 128", "\"k_bytes\": 64", "k_bytes 64: must be 128" },
	{ "\"k_bytes\": 128", "\"k_bytes\": 67108865", "k_bytes: from 1" },
	{ "\"num_kv_heads\": 2", "\"num_kv_heads\": 1025", "num_kv_heads: " },
	{ "\"head_dim\": 32", "\"head_dim\": 0", "head_dim: from 1" },
	{ "\"v_bytes\": 0", "\"v_bytes\": 1", "geometry: dtype and order" },
	{ "\"dtype\": \"opaque\"", "\"dtype\": \"uint8\"", "geometry: dtype" },
	{ "\"order\": \"opaque\"", "\"order\": \"NHD\"", "geometry: dtype" },
	{ "\"geometry\"", "\"geometri\"", "geometry: dtype and order" },
};

static void replace(const char *text, const char *from, const char *to,
		    char out[2 * UCM_REPR_MANIFEST_MAX])
{
	const char *at = strstr(text, from);

	ck_assert_msg(at != NULL, "no %s", from);
	snprintf(out, (size_t)(2 * UCM_REPR_MANIFEST_MAX), "%.*s%s%s",
		 (int)(at - text), text, to, at + strlen(from));
}

UNIT_TEST(what_is_wrong_in_a_manifest_is_named, .rows = NUM_ROWS(wrong))
{
	char text[2 * UCM_REPR_MANIFEST_MAX];
	struct ucm_repr_space space, untouched;
	struct ucm_error error;

	replace(golden, wrong[_i].from, wrong[_i].to, text);
	memset(&space, 0x5a, sizeof(space));
	untouched = space;
	refused(ucm_repr_space_parse(text, &space, &error), &error,
		wrong[_i].text);
	ck_assert_mem_eq(&space, &untouched, sizeof(space));
	ck_assert_int_eq(ucm_repr_space_parse(text, &space, NULL), -EINVAL);
}

/* As of any space: a quota, and what else people write there. */
UNIT_TEST(other_keys_of_a_manifest_mean_nothing)
{
	char text[2 * UCM_REPR_MANIFEST_MAX];
	struct ucm_repr_space space;

	replace(golden, "{ ", "{ \"quota\": \"5G\", \"model\": \"m\", ", text);
	ck_assert_int_eq(ucm_repr_space_parse(text, &space, NULL), 0);
}

/* ---- of blocks ---- */

/* MLA and bare blocks do not say what their keys are. */
UNIT_TEST(heads_that_blocks_do_not_tell_may_be_any)
{
	struct ucm_geometry blocks = of_blocks;
	struct ucm_repr_spec spec = golden_spec;
	struct ucm_repr_space space;
	struct ucm_error error;

	spec.num_heads = 1;
	refused(ucm_repr_space_init(&blocks, &spec, &space, &error), &error,
		"num_heads 1: the block has 2");
	spec.num_heads = 2;
	spec.head_dim = 576;
	refused(ucm_repr_space_init(&blocks, &spec, &space, &error), &error,
		"head_dim 576: the block has 32");
	spec.num_heads = 1;
	blocks.num_kv_heads = 0;
	ck_assert_int_eq(ucm_repr_space_init(&blocks, &spec, &space, NULL), 0);
	ck_assert_uint_eq(space.geometry.k_bytes, 1152);
}

UNIT_TEST(what_no_space_can_hold_is_refused)
{
	struct ucm_geometry blocks = of_blocks;
	struct ucm_repr_spec spec = golden_spec;
	struct ucm_repr_space space;
	char text[UCM_REPR_MANIFEST_MAX];
	struct ucm_error error;

	spec.block_size = 5;
	refused(ucm_repr_space_init(&blocks, &spec, &space, &error), &error,
		"block_size 5: the block has 4");
	spec = golden_spec;
	spec.kind = UCM_REPR_KINDS;
	ck_assert_int_eq(ucm_repr_space_init(&blocks, &spec, &space, NULL),
			 -EINVAL);
	blocks.num_layers = 513;
	refused(ucm_repr_space_init(&blocks, &golden_spec, &space, &error),
		&error, "num_layers 513");
	ck_assert_int_eq(ucm_repr_space_init(&of_blocks, &golden_spec, &space,
					     NULL), 0);
	space.geometry.k_bytes = 64;
	refused(ucm_repr_space_manifest(&space, text, &error), &error,
		"k_bytes 64");
}

/* ---- the sibling's name ---- */

static const struct {
	const char *blocks, *want; /* or else the error */
	bool refused;
} siblings[] = {
	{ NULL, "blocks.repr", false },
	{ "", "blocks.repr", false },
	{ "llama", "llama.repr", false },
	{ "blocks", "space blocks: blocks.repr is that of the default", true },
};

UNIT_TEST(the_sibling_of_a_space_has_its_name, .rows = NUM_ROWS(siblings))
{
	char name[UCM_REPR_NAME_MAX] = "";
	struct ucm_error error;
	int err = ucm_repr_space_name(siblings[_i].blocks, name, &error);

	if (siblings[_i].refused) {
		refused(err, &error, siblings[_i].want);
		return;
	}
	ck_assert_int_eq(err, 0);
	ck_assert_str_eq(name, siblings[_i].want);
}

UNIT_TEST(a_name_that_leaves_no_room_for_more_is_refused)
{
	char name[UCM_REPR_NAME_MAX], blocks[129];
	struct ucm_error error;

	memset(blocks, 'a', sizeof(blocks));
	blocks[123] = '\0';
	ck_assert_int_eq(ucm_repr_space_name(blocks, name, NULL), 0);
	ck_assert(ucm_tree_space_valid(name));
	blocks[123] = 'a';
	blocks[124] = '\0';
	refused(ucm_repr_space_name(blocks, name, &error), &error, "space a");
}

/* ---- hash codes and merged channels ---- */

/* The params of tokens' codes of 64 bits with norms, and centers of i / 4. The
 * digests here are Python's. */
static const uint8_t codes_params[] = {
	0x00, 0x00, 0x00, 0x00, 0x40, 0x00, 0x00, 0x00,
	0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
	0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,
	0x01, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00,
	0x57, 0x71, 0x6a, 0xbc, 0xa4, 0x17, 0x1a, 0x36,
	0xb4, 0x35, 0xb2, 0x0f, 0x2a, 0xf3, 0x4c, 0xb4,
	0xb2, 0xeb, 0x7b, 0x1f, 0x33, 0xcc, 0x3f, 0x84,
	0xd1, 0x85, 0x70, 0xf3, 0x3e, 0x38, 0x9e, 0xdd,
};
/* Groups of 2 tokens; channel number i of head h of layer l is 4 i + 2 l + h. */
static const uint8_t channels_params[] = {
	0x02, 0x00, 0x00, 0x00, 0x08, 0x00, 0x00, 0x00,
	0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
	0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
	0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
	0x81, 0xfa, 0xf2, 0xba, 0x75, 0x09, 0x21, 0xb4,
	0x98, 0xd3, 0xb7, 0x4a, 0x0e, 0x27, 0x65, 0x0e,
	0xb6, 0xe5, 0x3b, 0x8d, 0x59, 0x37, 0xc8, 0xb9,
	0x62, 0xf6, 0xb0, 0xb1, 0x22, 0x21, 0x6c, 0xf4,
};

static const struct ucm_code_spec golden_codes = {
	.form = UCM_CODE_TOKENS, .num_heads = 2, .head_dim = 32, .bits = 64,
	.block_size = 4, .norms = 1, .seed = 0x1122334455667788,
};
static const struct ucm_star_spec golden_star = {
	.dtype = UCM_DTYPE_BFLOAT16, .num_heads = 2, .head_dim = 32,
	.block_size = 4, .merge_tokens = 2, .kept = 8,
};
static float centers[LAYERS * 2 * 32];
static uint16_t channels[LAYERS * 2 * 8];

static void fill_sides(void)
{
	for (unsigned i = 0; i < NUM_ROWS(centers); i++)
		centers[i] = (float)i / 4;
	for (unsigned i = 0; i < NUM_ROWS(channels); i++)
		channels[i] = (uint16_t)(i % 8 * 4 + i / 8);
}

UNIT_FIXTURE(.setup = fill_sides);

/* To text and back. */
static void there_and_back(const struct ucm_repr_space *space,
			   struct ucm_repr_space *out)
{
	char text[UCM_REPR_MANIFEST_MAX];
	struct ucm_error error;

	ck_assert_int_eq(ucm_repr_space_manifest(space, text, NULL), 0);
	ck_assert_msg(!ucm_repr_space_parse(text, out, &error), "%s",
		      error.text);
	ck_assert_mem_eq(out, space, sizeof(*space));
}

UNIT_TEST(codes_say_all_that_they_were_made_with)
{
	struct ucm_repr_space space, back;
	struct ucm_code_spec spec;
	struct ucm_star_spec star;
	struct ucm_error error;

	ck_assert_int_eq(ucm_repr_space_init_codes(&of_blocks, &golden_codes,
						   centers, &space, NULL), 0);
	ck_assert_uint_eq(space.geometry.k_bytes,
			  ucm_code_bytes(&golden_codes));
	ck_assert_mem_eq(space.params, codes_params, 64);
	ck_assert_uint_eq(space.spec.kind, 16);
	ck_assert_uint_eq(space.spec.dtype, 0);
	there_and_back(&space, &back);
	ck_assert_int_eq(ucm_repr_space_codes(&back, &spec, NULL), 0);
	ck_assert_mem_eq(&spec, &golden_codes, sizeof(spec));
	refused(ucm_repr_space_channels(&back, &star, &error), &error,
		"kind codes: not channels");
	ck_assert_int_eq(ucm_repr_space_check_centers(&back, centers, NULL), 0);
	refused(ucm_repr_space_check_centers(&back, NULL, &error), &error,
		"centers: the space was made with some");
	centers[127] = 31.5f;
	refused(ucm_repr_space_check_centers(&back, centers, &error), &error,
		"centers: not those that the space was made with");
	centers[0] = NAN;
	refused(ucm_repr_space_init_codes(&of_blocks, &golden_codes, centers,
					  &space, &error), &error,
		"centers: number 0 is not finite");
	ck_assert_int_eq(ucm_repr_space_init_codes(&of_blocks, &golden_codes,
						   NULL, &space, NULL), 0);
	ck_assert_int_eq(ucm_repr_space_check_centers(&space, NULL, NULL), 0);
	centers[0] = 0;
	refused(ucm_repr_space_check_centers(&space, centers, &error), &error,
		"centers: the space was made without");
}

UNIT_TEST(merged_channels_say_all_that_they_were_made_with)
{
	struct ucm_star_spec star, all = golden_star;
	struct ucm_repr_space space, back;
	struct ucm_code_spec spec;
	struct ucm_error error;

	ck_assert_int_eq(ucm_repr_space_init_channels(&of_blocks, &golden_star,
						      channels, &space, NULL),
			 0);
	ck_assert_mem_eq(space.params, channels_params, 64);
	ck_assert_uint_eq(space.spec.kind, 17);
	there_and_back(&space, &back);
	ck_assert_int_eq(ucm_repr_space_channels(&back, &star, NULL), 0);
	ck_assert(!star.channels && star.kept == 8 && star.merge_tokens == 2);
	star.channels = channels + 2 * 8;
	ck_assert_uint_eq(ucm_star_bytes(&star), space.geometry.k_bytes);
	refused(ucm_repr_space_codes(&back, &spec, &error), &error,
		"kind channels: not codes");
	ck_assert_int_eq(ucm_repr_space_check_channels(&back, channels, NULL),
			 0);
	channels[30]++;
	refused(ucm_repr_space_check_channels(&back, channels, &error), &error,
		"channels: not those that the space was made with");
	channels[31] = 3;
	refused(ucm_repr_space_check_channels(&back, channels, &error), &error,
		"channels: head 1, number 7 is 3: ascending");
	refused(ucm_repr_space_check_channels(&back, NULL, &error), &error,
		"channels: the space was made with some");
	refused(ucm_repr_space_init_channels(&of_blocks, &golden_star, NULL,
					     &space, &error), &error,
		"channels: 8 of 32 are kept, and it is not said which");
	/* one right form: where all are kept there is nothing to be said */
	all.kept = 32;
	ck_assert_int_eq(ucm_repr_space_init_channels(&of_blocks, &all, NULL,
						      &space, NULL), 0);
	ck_assert_int_eq(ucm_repr_space_check_channels(&space, NULL, NULL), 0);
}

UNIT_TEST(codes_that_take_too_much_room_are_refused)
{
	struct ucm_geometry blocks = of_blocks;
	struct ucm_code_spec large = golden_codes;
	struct ucm_star_spec star = golden_star;
	struct ucm_repr_space space;
	struct ucm_error error;

	blocks.block_size = large.block_size = 65536;
	blocks.num_kv_heads = 0;
	large.num_heads = 1024;
	large.bits = 4096;
	refused(ucm_repr_space_init_codes(&blocks, &large, NULL, &space,
					  &error),
		&error, "a layer of 34493956160 bytes: at most 67108864");
	refused(ucm_repr_space_init_channels(&blocks, &star, channels, &space,
					     &error),
		&error, "block_size 4: the block has 65536");
	star.merge_tokens = 5;
	refused(ucm_repr_space_init_channels(&blocks, &star, channels, &space,
					     &error),
		&error, "merge_tokens 5");
	large.bits = 9;
	refused(ucm_repr_space_init_codes(&blocks, &large, NULL, &space,
					  &error),
		&error, "bits 9");
}

/* A number in params with a value that it may not have there. */
static const struct {
	bool codes;
	unsigned at;
	uint32_t value;
	const char *text;
} wrong_params[] = {
	{ true, 0, 2, "form 2" },
	{ true, 0, 1, "norms: there are none of counts" },
	{ true, 4, 12, "bits 12" },
	{ true, 4, 0, "bits 0" },
	{ true, 4, 8192, "bits 8192" },
	{ true, 8, 32, "rope_dim 32" },
	{ true, 8, 8, "rope_bits 0" },
	{ true, 12, 8, "rope_bits 8" },
	{ true, 24, 2, "norms 2" },
	{ true, 28, 0, "matrix 0: unknown" },
	{ true, 28, 2, "matrix 2: unknown" },
	{ false, 0, 0, "merge_tokens 0" },
	{ false, 0, 5, "merge_tokens 5" },
	{ false, 4, 0, "kept 0" },
	{ false, 4, 33, "kept 33" },
	{ false, 8, 1, "params: not zero" },
	{ false, 28, 1, "params: not zero" },
};

UNIT_TEST(each_param_is_refused_by_name, .rows = NUM_ROWS(wrong_params))
{
	struct ucm_repr_space space;
	char text[UCM_REPR_MANIFEST_MAX];
	struct ucm_error error;

	if (wrong_params[_i].codes)
		ck_assert_int_eq(ucm_repr_space_init_codes(
					 &of_blocks, &golden_codes, centers,
					 &space, NULL), 0);
	else
		ck_assert_int_eq(ucm_repr_space_init_channels(
					 &of_blocks, &golden_star, channels,
					 &space, NULL), 0);
	memcpy(space.params + wrong_params[_i].at, &wrong_params[_i].value, 4);
	refused(ucm_repr_space_manifest(&space, text, &error), &error,
		wrong_params[_i].text);
}

/* What is said of channels that are all kept, and not of some: two forms of one
 * space, of which neither is right. */
UNIT_TEST(the_digest_of_channels_is_there_where_some_are_left_out)
{
	struct ucm_star_spec all = golden_star;
	char text[UCM_REPR_MANIFEST_MAX];
	struct ucm_repr_space space;
	struct ucm_error error;

	ck_assert_int_eq(ucm_repr_space_init_channels(&of_blocks, &golden_star,
						      channels, &space, NULL),
			 0);
	memset(space.params + 32, 0, 32);
	refused(ucm_repr_space_manifest(&space, text, &error), &error,
		"channels: 8 of 32 are kept, and it is not said which");
	all.kept = 32;
	ck_assert_int_eq(ucm_repr_space_init_channels(&of_blocks, &all, NULL,
						      &space, NULL), 0);
	space.params[32] = 1;
	refused(ucm_repr_space_manifest(&space, text, &error), &error,
		"channels: 32 of 32 are kept, and it is said which");
}

UNIT_FIXTURE(.setup = NULL);

/* ---- names ---- */

UNIT_TEST(each_kind_has_a_name)
{
	uint32_t kind;

	for (uint32_t i = 0; i < UCM_REPR_KINDS; i++) {
		ck_assert_ptr_nonnull(ucm_repr_kind_name(i));
		ck_assert_int_eq(ucm_repr_kind_parse(ucm_repr_kind_name(i),
						     &kind), 0);
		ck_assert_uint_eq(kind, i);
	}
	for (uint32_t i = UCM_REPR_CODES; i <= UCM_REPR_CHANNELS; i++) {
		ck_assert_int_eq(ucm_repr_kind_parse(ucm_repr_kind_name(i),
						     &kind), 0);
		ck_assert_uint_eq(kind, i);
	}
	for (uint32_t i = UCM_REPR_KINDS; i < UCM_REPR_CODES; i++)
		ck_assert_ptr_null(ucm_repr_kind_name(i));
	ck_assert_ptr_null(ucm_repr_kind_name(UCM_REPR_CHANNELS + 1));
	ck_assert_int_eq(ucm_repr_kind_parse("median", &kind), -EINVAL);
}
