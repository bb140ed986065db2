/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_repr_file.c - the bytes of a file of representations, against a page that
 * was written by hand (its checksums by an independent CRC32C), and each way in
 * which a file can be wrong.
 */
#include <config.h>

#include <ucm/repr.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/unit.h"

#define LAYERS 2u
#define LAYER_BYTES 128u /* 2 heads of 32 bfloat16 */
#define SIZE 8192u
#define CRCS_AT 256u
#define HEADER_CRC_AT 4092u

/* 2 layers, 4 tokens, bfloat16, 2 heads of 32; K and V 512 bytes; HND; means in
 * bfloat16, byte i of all layers is (7 i + 3) mod 256. */
static const uint8_t golden[] = {
	0x55, 0x43, 0x4d, 0x52, 0x01, 0x00, 0x00, 0x00, /* magic, version */
	0x3f, 0x9a, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, /* 8: block_hash */
	0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x1c, 0xe1,
	0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7, /* 24: space_id */
	0xc8, 0xc9, 0xca, 0xcb, 0xcc, 0xcd, 0xce, 0xcf,
	0xd0, 0xd1, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7,
	0xd8, 0xd9, 0xda, 0xdb, 0xdc, 0xdd, 0xde, 0xdf,
	0x02, 0x00, 0x00, 0x00, 0x04, 0x00, 0x00, 0x00, /* 56: layers, tokens */
	0x02, 0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, /* 64: dtype, K bytes */
	0x00, 0x02, 0x00, 0x00, 0x02, 0x00, 0x20, 0x00, /* 72: V, heads, dim */
	0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, /* 80: order, kind */
	0x02, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, /* 88: dtype, heads */
	0x20, 0x00, 0x00, 0x00, 0x80, 0x00, 0x00, 0x00, /* 96: dim, bytes */
};
static const uint8_t golden_crcs[] = { /* 256: layer_crc */
	0x7e, 0xd0, 0xd1, 0x2c, 0x2a, 0x61, 0x71, 0x0c,
};
static const uint8_t golden_header_crc[] = { 0xf2, 0x87, 0xa6, 0x86 };

static struct ucm_block block_of_golden(void)
{
	struct ucm_block block = {
		.geometry = {
			.num_layers = LAYERS,
			.block_size = 4,
			.dtype = UCM_DTYPE_BFLOAT16,
			.k_bytes = 512,
			.v_bytes = 512,
			.num_kv_heads = 2,
			.head_dim = 32,
			.order = UCM_ORDER_HND,
		},
	};

	memcpy(block.id.bytes, golden + 8, sizeof(block.id.bytes));
	memcpy(block.space_id, golden + 24, sizeof(block.space_id));
	return block;
}

static const struct ucm_repr_spec golden_spec = {
	.kind = UCM_REPR_MEAN,
	.dtype = UCM_DTYPE_BFLOAT16,
	.num_heads = 2,
	.head_dim = 32,
	.block_size = 4,
};

static void make_golden(uint8_t bytes[SIZE])
{
	struct ucm_block block = block_of_golden();
	uint8_t layers[LAYERS * LAYER_BYTES];
	struct ucm_repr_file file;

	for (unsigned i = 0; i < sizeof(layers); i++)
		layers[i] = (uint8_t)(7 * i + 3);
	memset(bytes, 0xee, SIZE);
	ck_assert_int_eq(ucm_repr_file_init(&block, &golden_spec, &file, NULL),
			 0);
	ck_assert_uint_eq(ucm_repr_file_size(&file), SIZE);
	ck_assert_int_eq(ucm_repr_file_encode(&file, layers, bytes, SIZE, NULL),
			 0);
}

static void put32(uint8_t *at, uint32_t value)
{
	memcpy(at, &value, sizeof(value));
}

static void seal(uint8_t *bytes)
{
	put32(bytes + HEADER_CRC_AT, ucm_crc32c(0, bytes, HEADER_CRC_AT));
}

/* error begins with the name of what is wrong, and out is left alone */
static void refused(int got, int want, const struct ucm_error *error,
		    const char *text)
{
	ck_assert_int_eq(got, want);
	if (strncmp(error->text, text, strlen(text)) != 0)
		ck_abort_msg("'%s' does not begin with '%s'", error->text,
			     text);
}

/* ---- the bytes ---- */

UNIT_TEST(what_is_encoded_are_the_bytes_of_the_document)
{
	uint8_t bytes[SIZE], want[SIZE] = { 0 };

	memcpy(want, golden, sizeof(golden));
	memcpy(want + CRCS_AT, golden_crcs, sizeof(golden_crcs));
	memcpy(want + HEADER_CRC_AT, golden_header_crc, 4);
	for (unsigned i = 0; i < LAYERS * LAYER_BYTES; i++)
		want[4096 + i] = (uint8_t)(7 * i + 3);
	make_golden(bytes);
	ck_assert_mem_eq(bytes, want, SIZE);
}

UNIT_TEST(what_is_decoded_is_what_was_encoded)
{
	struct ucm_block block = block_of_golden();
	struct ucm_repr_file file, want;
	uint8_t bytes[SIZE];

	make_golden(bytes);
	ck_assert_int_eq(ucm_repr_file_init(&block, &golden_spec, &want, NULL),
			 0);
	ck_assert_int_eq(ucm_repr_file_parse(bytes, 4096, &file, NULL), 0);
	ck_assert_mem_eq(&file, &want, sizeof(file));
	memset(&file, 0, sizeof(file));
	ck_assert_int_eq(ucm_repr_file_verify(bytes, SIZE, &file, NULL), 0);
	ck_assert_mem_eq(&file, &want, sizeof(file));
	ck_assert_uint_eq(ucm_repr_file_layer_offset(&file, 1), 4096 + 128);
	ck_assert_int_eq(ucm_repr_file_check_block(&file, &block, NULL), 0);
}

UNIT_TEST(layers_may_be_encoded_where_they_lie)
{
	uint8_t bytes[SIZE], in_place[SIZE];
	struct ucm_repr_file file;

	make_golden(bytes);
	ck_assert_int_eq(ucm_repr_file_parse(bytes, SIZE, &file, NULL), 0);
	memset(in_place, 0xee, SIZE);
	memcpy(in_place + 4096, bytes + 4096, LAYERS * LAYER_BYTES);
	ck_assert_int_eq(ucm_repr_file_encode(&file, in_place + 4096, in_place,
					      SIZE, NULL), 0);
	ck_assert_mem_eq(bytes, in_place, SIZE);
}

/* Whatever bit of a file is flipped, that is seen. */
UNIT_TEST(each_bit_is_covered)
{
	struct ucm_repr_file file;
	uint8_t bytes[SIZE];

	make_golden(bytes);
	for (unsigned bit = 0; bit < SIZE * 8; bit++) {
		bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
		if (!ucm_repr_file_verify(bytes, SIZE, &file, NULL))
			ck_abort_msg("bit %u is not covered", bit);
		bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
	ck_assert_int_eq(ucm_repr_file_verify(bytes, SIZE, &file, NULL), 0);
}

/* ---- refused ---- */

/* A field of the header with a value that it may not have; the header's checksum
 * is right. */
static const struct {
	unsigned at, len;
	uint32_t value;
	const char *text;
} wrong_fields[] = {
	{ 0, 4, 0x424d4355, "magic" }, /* a block's */
	{ 4, 4, 0, "version 0: unknown" },
	{ 56, 4, 0, "num_layers 0" },
	{ 56, 4, 513, "num_layers 513" },
	{ 60, 4, 0, "block_size 0" },
	{ 60, 4, 65537, "block_size 65537" },
	{ 64, 4, 8, "block_dtype 8" },
	{ 68, 4, 0, "k_bytes 0" },
	{ 80, 4, 3, "order 3" },
	{ 84, 4, 1000, "kind 1000: unknown" },
	{ 84, 4, UINT32_MAX, "kind 4294967295: unknown" },
	{ 84, 4, UCM_REPR_MINMAX, "layer_bytes 128: must be 256" },
	{ 88, 4, 0, "dtype 0" },
	{ 88, 4, UCM_DTYPE_UINT8, "dtype 7" },
	{ 88, 4, UCM_DTYPE_FLOAT32, "layer_bytes 128: must be 256" },
	{ 92, 4, 0, "num_heads 0" },
	{ 92, 4, 1, "num_heads 1: the block has 2" },
	{ 92, 4, 1025, "num_heads 1025" },
	{ 96, 4, 0, "head_dim 0" },
	{ 96, 4, 31, "head_dim 31: the block has 32" },
	{ 96, 4, 1025, "head_dim 1025" },
	{ 76, 2, 3, "num_heads 2: the block has 3" },
	{ 78, 2, 33, "head_dim 32: the block has 33" },
	{ 100, 4, 0, "layer_bytes 0" },
	{ 100, 4, 192, "layer_bytes 192: must be 128" },
	{ 104, 1, 1, "reserved bytes" },
	{ 127, 1, 1, "reserved bytes" },
	{ 128, 1, 1, "params" },
	{ 191, 1, 1, "params" },
	{ 192, 1, 1, "reserved bytes" },
	{ 255, 1, 1, "reserved bytes" },
	{ 264, 4, 1, "reserved bytes" }, /* checksum of a third layer */
	{ 4091, 1, 1, "reserved bytes" },
};

UNIT_TEST(each_field_is_refused_by_name, .rows = NUM_ROWS(wrong_fields))
{
	struct ucm_repr_file file, untouched;
	struct ucm_error error;
	uint8_t bytes[SIZE];

	make_golden(bytes);
	memcpy(bytes + wrong_fields[_i].at, &wrong_fields[_i].value,
	       wrong_fields[_i].len);
	seal(bytes);
	memset(&file, 0x5a, sizeof(file));
	untouched = file;
	refused(ucm_repr_file_parse(bytes, SIZE, &file, &error), -EINVAL,
		&error, wrong_fields[_i].text);
	ck_assert_mem_eq(&file, &untouched, sizeof(file));
	ck_assert_int_eq(ucm_repr_file_parse(bytes, SIZE, &file, NULL),
			 -EINVAL);
}

/* MLA and bare blocks do not say what their keys are. */
UNIT_TEST(heads_that_the_block_does_not_tell_may_be_any)
{
	struct ucm_block block = block_of_golden();
	struct ucm_repr_spec spec = golden_spec;
	struct ucm_repr_file file;

	spec.num_heads = 1;
	spec.head_dim = 576;
	ck_assert_int_eq(ucm_repr_file_init(&block, &spec, &file, NULL),
			 -EINVAL);
	block.geometry.num_kv_heads = 0;
	ck_assert_int_eq(ucm_repr_file_init(&block, &spec, &file, NULL), 0);
	ck_assert_uint_eq(file.layer_bytes, 1152);
}

UNIT_TEST(a_later_version_is_told_apart_from_what_is_wrong)
{
	struct ucm_repr_file file;
	struct ucm_error error;
	uint8_t bytes[SIZE];

	make_golden(bytes);
	bytes[4] = 2;
	seal(bytes);
	refused(ucm_repr_file_verify(bytes, SIZE, &file, &error), -ENOTSUP,
		&error, "version 2: unknown");
}

UNIT_TEST(damage_is_told_apart_from_what_is_no_such_file)
{
	struct ucm_repr_file file;
	struct ucm_error error;
	uint8_t bytes[SIZE];

	make_golden(bytes);
	refused(ucm_repr_file_parse(bytes, 4095, &file, &error), -EINVAL,
		&error, "header: 4095 bytes");
	refused(ucm_repr_file_parse(NULL, 4096, &file, &error), -EINVAL,
		&error, "header: 0 bytes");
	bytes[56] ^= 1;
	refused(ucm_repr_file_parse(bytes, SIZE, &file, &error), -EBADMSG,
		&error, "header checksum differs");
	bytes[4] = 2;
	refused(ucm_repr_file_parse(bytes, SIZE, &file, &error), -EBADMSG,
		&error, "header checksum differs");
	bytes[4] = 1;
	bytes[56] ^= 1;
	refused(ucm_repr_file_verify(bytes, SIZE - 1, &file, &error), -EINVAL,
		&error, "size 8191: must be 8192");
	bytes[4096 + 128] ^= 1;
	refused(ucm_repr_file_verify(bytes, SIZE, &file, &error), -EBADMSG,
		&error, "layer 1: checksum differs");
	bytes[4096 + 128] ^= 1;
	bytes[SIZE - 1] = 1;
	refused(ucm_repr_file_verify(bytes, SIZE, &file, &error), -EINVAL,
		&error, "bytes after the last layer");
}

UNIT_TEST(a_layer_is_checked_by_itself)
{
	struct ucm_repr_file file;
	struct ucm_error error;
	uint8_t bytes[SIZE];

	make_golden(bytes);
	ck_assert_int_eq(ucm_repr_file_parse(bytes, SIZE, &file, NULL), 0);
	ck_assert_int_eq(ucm_repr_file_check_layer(&file, bytes, 1,
						   bytes + 4096 + 128, NULL),
			 0);
	refused(ucm_repr_file_check_layer(&file, bytes, 0, bytes + 4096 + 128,
					  &error),
		-EBADMSG, &error, "layer 0: checksum differs");
	refused(ucm_repr_file_check_layer(&file, bytes, 2, bytes + 4096,
					  &error),
		-EINVAL, &error, "layer 2: there are 2");
}

/* ---- of another block ---- */

#define OTHER(field, value)                                                   \
	{                                                                     \
		struct ucm_block other = block_of_golden();                   \
                                                                              \
		other.field = (value);                                        \
		refused(ucm_repr_file_check_block(&file, &other, &error),     \
			-EINVAL, &error, names[i++]);                         \
	}

UNIT_TEST(the_file_of_another_block_is_refused_by_name)
{
	static const char *const names[] = {
		"block_hash", "num_layers", "block_size", "block_dtype",
		"k_bytes", "v_bytes", "num_kv_heads", "kv_head_dim", "order",
		"space_id",
	};
	struct ucm_block block = block_of_golden();
	struct ucm_repr_file file;
	struct ucm_error error;
	unsigned i = 0;

	ck_assert_int_eq(ucm_repr_file_init(&block, &golden_spec, &file, NULL),
			 0);
	OTHER(id.bytes[15], 0);
	OTHER(geometry.num_layers, 3);
	OTHER(geometry.block_size, 5);
	OTHER(geometry.dtype, UCM_DTYPE_FLOAT16);
	OTHER(geometry.k_bytes, 511);
	OTHER(geometry.v_bytes, 0);
	OTHER(geometry.num_kv_heads, 0);
	OTHER(geometry.head_dim, 0);
	OTHER(geometry.order, UCM_ORDER_NHD);
	OTHER(space_id[31], 0);
	memset(block.space_id, 0, sizeof(block.space_id));
	ck_assert_int_eq(ucm_repr_file_check_block(&file, &block, NULL), 0);
}

UNIT_TEST(what_could_not_be_read_is_not_written)
{
	struct ucm_block block = block_of_golden();
	struct ucm_repr_spec spec = golden_spec;
	uint8_t bytes[SIZE], layers[LAYERS * LAYER_BYTES] = { 0 };
	struct ucm_repr_file file;
	struct ucm_error error;

	spec.block_size = 5;
	refused(ucm_repr_file_init(&block, &spec, &file, &error), -EINVAL,
		&error, "block_size 5: the block has 4");
	spec = golden_spec;
	spec.kind = UCM_REPR_KINDS;
	ck_assert_int_eq(ucm_repr_file_init(&block, &spec, &file, NULL),
			 -EINVAL);
	block.geometry.num_layers = 513;
	refused(ucm_repr_file_init(&block, &golden_spec, &file, &error),
		-EINVAL, &error, "num_layers 513");
	block = block_of_golden();
	ck_assert_int_eq(ucm_repr_file_init(&block, &golden_spec, &file, NULL),
			 0);
	refused(ucm_repr_file_encode(&file, layers, bytes, SIZE - 1, &error),
		-EINVAL, &error, "len 8191: the file has 8192");
	file.layer_bytes = 64;
	refused(ucm_repr_file_encode(&file, layers, bytes, SIZE, &error),
		-EINVAL, &error, "layer_bytes 64");
	file.layer_bytes = LAYER_BYTES;
	file.spec.block_size = 3;
	refused(ucm_repr_file_encode(&file, layers, bytes, SIZE, &error),
		-EINVAL, &error, "block_size 3: the block has 4");
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

/* A file of zeros; how many bytes it has. */
static size_t encode(const struct ucm_repr_file *file, uint8_t *bytes,
		     size_t room)
{
	uint8_t *layers = calloc(LAYERS, file->layer_bytes);

	ck_assert_uint_le(ucm_repr_file_size(file), room);
	ck_assert_int_eq(ucm_repr_file_encode(file, layers, bytes, room, NULL),
			 0);
	free(layers);
	return ucm_repr_file_size(file);
}

UNIT_TEST(codes_say_all_that_they_were_made_with)
{
	struct ucm_block block = block_of_golden();
	struct ucm_repr_file file, back;
	struct ucm_code_spec spec;
	struct ucm_star_spec star;
	struct ucm_error error;
	uint8_t bytes[SIZE];
	size_t len;

	ck_assert_int_eq(ucm_repr_file_init_codes(&block, &golden_codes,
						  centers, &file, NULL), 0);
	ck_assert_uint_eq(file.layer_bytes, ucm_code_bytes(&golden_codes));
	len = encode(&file, bytes, SIZE);
	ck_assert_mem_eq(bytes + 128, codes_params, 64);
	ck_assert_uint_eq(bytes[84], 16); /* kind */
	ck_assert_uint_eq(bytes[88], 0);  /* dtype */
	ck_assert_int_eq(ucm_repr_file_verify(bytes, len, &back, NULL), 0);
	ck_assert_mem_eq(&back, &file, sizeof(file));
	ck_assert_int_eq(ucm_repr_file_codes(&back, &spec, NULL), 0);
	ck_assert_mem_eq(&spec, &golden_codes, sizeof(spec));
	refused(ucm_repr_file_channels(&back, &star, &error), -EINVAL, &error,
		"kind codes: not channels");
	ck_assert_int_eq(ucm_repr_file_check_centers(&back, centers, NULL), 0);
	refused(ucm_repr_file_check_centers(&back, NULL, &error), -EINVAL,
		&error, "centers: the file was made with some");
	centers[127] = 31.5f;
	refused(ucm_repr_file_check_centers(&back, centers, &error), -EINVAL,
		&error, "centers: not those that the file was made with");
	centers[0] = NAN;
	refused(ucm_repr_file_init_codes(&block, &golden_codes, centers, &file,
					 &error), -EINVAL, &error,
		"centers: number 0 is not finite");
	ck_assert_int_eq(ucm_repr_file_init_codes(&block, &golden_codes, NULL,
						  &file, NULL), 0);
	ck_assert_int_eq(ucm_repr_file_check_centers(&file, NULL, NULL), 0);
	centers[0] = 0;
	refused(ucm_repr_file_check_centers(&file, centers, &error), -EINVAL,
		&error, "centers: the file was made without");
}

UNIT_TEST(merged_channels_say_all_that_they_were_made_with)
{
	struct ucm_block block = block_of_golden();
	struct ucm_star_spec star, all = golden_star;
	struct ucm_repr_file file, back;
	struct ucm_code_spec spec;
	struct ucm_error error;
	uint8_t bytes[2 * SIZE];
	size_t len;

	ck_assert_int_eq(ucm_repr_file_init_channels(&block, &golden_star,
						     channels, &file, NULL), 0);
	len = encode(&file, bytes, sizeof(bytes));
	ck_assert_mem_eq(bytes + 128, channels_params, 64);
	ck_assert_uint_eq(bytes[84], 17); /* kind */
	ck_assert_int_eq(ucm_repr_file_verify(bytes, len, &back, NULL), 0);
	ck_assert_mem_eq(&back, &file, sizeof(file));
	ck_assert_int_eq(ucm_repr_file_channels(&back, &star, NULL), 0);
	ck_assert(!star.channels && star.kept == 8 && star.merge_tokens == 2);
	star.channels = channels + 2 * 8;
	ck_assert_uint_eq(ucm_star_bytes(&star), file.layer_bytes);
	refused(ucm_repr_file_codes(&back, &spec, &error), -EINVAL, &error,
		"kind channels: not codes");
	ck_assert_int_eq(ucm_repr_file_check_channels(&back, channels, NULL),
			 0);
	channels[30]++;
	refused(ucm_repr_file_check_channels(&back, channels, &error), -EINVAL,
		&error, "channels: not those that the file was made with");
	channels[31] = 3;
	refused(ucm_repr_file_check_channels(&back, channels, &error), -EINVAL,
		&error, "channels: head 1, number 7 is 3: ascending");
	refused(ucm_repr_file_check_channels(&back, NULL, &error), -EINVAL,
		&error, "channels: the file was made with some");
	refused(ucm_repr_file_init_channels(&block, &golden_star, NULL, &file,
					    &error), -EINVAL, &error,
		"channels: 8 of 32 are kept, and it is not said which");
	/* one right form: where all are kept there is nothing to be said */
	all.kept = 32;
	ck_assert_int_eq(ucm_repr_file_init_channels(&block, &all, NULL, &file,
						     NULL), 0);
	ck_assert_int_eq(ucm_repr_file_check_channels(&file, NULL, NULL), 0);
}

UNIT_TEST(codes_that_take_too_much_room_are_not_written)
{
	struct ucm_block block = block_of_golden();
	struct ucm_code_spec large = golden_codes;
	struct ucm_star_spec star = golden_star;
	struct ucm_repr_file file;
	struct ucm_error error;

	block.geometry.block_size = large.block_size = 65536;
	block.geometry.num_kv_heads = 0;
	large.num_heads = 1024;
	large.bits = 4096;
	refused(ucm_repr_file_init_codes(&block, &large, NULL, &file, &error),
		-EINVAL, &error, "layer_bytes 34493956160: at most 67108864");
	refused(ucm_repr_file_init_channels(&block, &star, channels, &file,
					    &error),
		-EINVAL, &error, "block_size 4: the block has 65536");
	star.merge_tokens = 5;
	refused(ucm_repr_file_init_channels(&block, &star, channels, &file,
					    &error),
		-EINVAL, &error, "merge_tokens 5");
	large.bits = 9;
	refused(ucm_repr_file_init_codes(&block, &large, NULL, &file, &error),
		-EINVAL, &error, "bits 9");
}

/* A field of params, or of the header, with a value that it may not have there. */
static const struct {
	bool codes;
	unsigned at;
	uint32_t value;
	const char *text;
} wrong_params[] = {
	{ true, 88, 2, "dtype 2: codes have none" },
	{ true, 92, 1, "num_heads 1: the block has 2" },
	{ true, 96, 33, "head_dim 33: the block has 32" },
	{ true, 100, 256, "layer_bytes 256: must be 320" },
	{ true, 128, 2, "form 2" },
	{ true, 128, 1, "norms: there are none of counts" },
	{ true, 132, 12, "bits 12" },
	{ true, 132, 0, "bits 0" },
	{ true, 132, 8192, "bits 8192" },
	{ true, 136, 32, "rope_dim 32" },
	{ true, 136, 8, "rope_bits 0" },
	{ true, 140, 8, "rope_bits 8" },
	{ true, 152, 2, "norms 2" },
	{ true, 156, 0, "matrix 0: unknown" },
	{ true, 156, 2, "matrix 2: unknown" },
	{ false, 88, 0, "dtype 0" },
	{ false, 92, 1, "num_heads 1: the block has 2" },
	{ false, 100, 256, "layer_bytes 256: must be 576" },
	{ false, 128, 0, "merge_tokens 0" },
	{ false, 128, 5, "merge_tokens 5" },
	{ false, 132, 0, "kept 0" },
	{ false, 132, 33, "kept 33" },
	{ false, 136, 1, "params: not zero" },
	{ false, 156, 1, "params: not zero" },
};

UNIT_TEST(each_param_is_refused_by_name, .rows = NUM_ROWS(wrong_params))
{
	struct ucm_block block = block_of_golden();
	struct ucm_repr_file file;
	struct ucm_error error;
	uint8_t bytes[2 * SIZE];
	size_t len;

	if (wrong_params[_i].codes)
		ck_assert_int_eq(ucm_repr_file_init_codes(
					 &block, &golden_codes, centers, &file,
					 NULL), 0);
	else
		ck_assert_int_eq(ucm_repr_file_init_channels(
					 &block, &golden_star, channels, &file,
					 NULL), 0);
	len = encode(&file, bytes, sizeof(bytes));
	put32(bytes + wrong_params[_i].at, wrong_params[_i].value);
	seal(bytes);
	refused(ucm_repr_file_parse(bytes, len, &file, &error), -EINVAL,
		&error, wrong_params[_i].text);
}

/* What is said of channels that are all kept, and not of some: two forms of one
 * file, of which neither is right. */
UNIT_TEST(the_digest_of_channels_is_there_where_some_are_left_out)
{
	struct ucm_block block = block_of_golden();
	struct ucm_star_spec all = golden_star;
	struct ucm_repr_file file;
	struct ucm_error error;
	uint8_t bytes[4 * SIZE];

	ck_assert_int_eq(ucm_repr_file_init_channels(&block, &golden_star,
						     channels, &file, NULL), 0);
	encode(&file, bytes, sizeof(bytes));
	memset(bytes + 160, 0, 32);
	seal(bytes);
	refused(ucm_repr_file_parse(bytes, SIZE, &file, &error), -EINVAL,
		&error, "channels: 8 of 32 are kept, and it is not said which");
	all.kept = 32;
	ck_assert_int_eq(ucm_repr_file_init_channels(&block, &all, NULL, &file,
						     NULL), 0);
	encode(&file, bytes, sizeof(bytes));
	bytes[160] = 1;
	seal(bytes);
	refused(ucm_repr_file_parse(bytes, SIZE, &file, &error), -EINVAL,
		&error, "channels: 32 of 32 are kept, and it is said which");
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
	for (uint32_t i = UCM_REPR_FILE_CODES; i <= UCM_REPR_FILE_CHANNELS; i++) {
		ck_assert_int_eq(ucm_repr_kind_parse(ucm_repr_kind_name(i),
						     &kind), 0);
		ck_assert_uint_eq(kind, i);
	}
	for (uint32_t i = UCM_REPR_KINDS; i < UCM_REPR_FILE_CODES; i++)
		ck_assert_ptr_null(ucm_repr_kind_name(i));
	ck_assert_ptr_null(ucm_repr_kind_name(UCM_REPR_FILE_CHANNELS + 1));
	ck_assert_int_eq(ucm_repr_kind_parse("median", &kind), -EINVAL);
}
