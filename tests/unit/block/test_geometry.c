/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_geometry.c - sizes of planes and of block files, as they follow from
 * their geometry, and geometry in words.
 */
#include <config.h>

#include <ucm/block.h>

#include <errno.h>
#include <string.h>

#include "tests/unit/block/format_fixture.h"

/* The seed's own header: 36 bytes and zeros. */
static const struct {
	uint32_t layers;
	uint64_t size;
	enum ucm_fault fault;
	uint32_t plane;
} bares[] = {
	{ 2, 64 + 4 * 100, UCM_FAULT_NONE, 100 },
	{ 1, 64 + 2, UCM_FAULT_NONE, 1 },
	{ 61, 64 + 122 * UINT64_C(73728), UCM_FAULT_NONE, 73728 },
	{ 1, 64 + 2 * (uint64_t)UINT32_MAX, UCM_FAULT_NONE, UINT32_MAX },
	{ 2, 64 + 4 * 100 + 1, UCM_FAULT_SIZE, 0 },
	{ 2, 64 + 4 * 100 - 1, UCM_FAULT_SIZE, 0 },
	{ 1, 64 + 2 * ((uint64_t)UINT32_MAX + 1), UCM_FAULT_SIZE, 0 },
	{ 1, UINT64_MAX, UCM_FAULT_SIZE, 0 },
	{ 2, 64, UCM_FAULT_SHORT, 0 },
	{ 2, 0, UCM_FAULT_SHORT, 0 },
	{ 2, 67, UCM_FAULT_SHORT, 0 },
	{ 0, 464, UCM_FAULT_FIELD, 0 },
	{ (1u << 20) + 1, UINT64_C(1) << 40, UCM_FAULT_FIELD, 0 },
};

UNIT_TEST(bare_planes_divide_the_file_exactly, .rows = NUM_ROWS(bares))
{
	struct ucm_block block = { 0 };
	uint8_t bytes[64] = { 0 };

	memcpy(bytes, golden, 36);
	put32(bytes, 24, bares[_i].layers);
	put32(bytes, 32, UCM_DTYPE_FLOAT16);
	ck_assert_int_eq(ucm_block_parse(bytes, 64, bares[_i].size, &block),
			 bares[_i].fault);
	if (bares[_i].fault)
		return;
	ck_assert_int_eq(block.form, UCM_FORM_BARE);
	ck_assert_uint_eq(block.flags, 0);
	ck_assert_uint_eq(block.data_offset, 64);
	ck_assert_uint_eq(block.geometry.k_bytes, bares[_i].plane);
	ck_assert_uint_eq(block.geometry.v_bytes, bares[_i].plane);
	ck_assert_uint_eq(ucm_block_file_size(&block), bares[_i].size);
}

UNIT_TEST(bare_fields_are_checked)
{
	struct ucm_block block;
	uint8_t bytes[64] = { 0 };

	memcpy(bytes, golden, 36);
	put32(bytes, 28, 0);
	ck_assert_int_eq(ucm_block_parse(bytes, 64, 464, &block),
			 UCM_FAULT_FIELD);
	put32(bytes, 28, 4);
	put32(bytes, 32, 8);
	ck_assert_int_eq(ucm_block_parse(bytes, 64, 464, &block),
			 UCM_FAULT_FIELD);
	put32(bytes, 32, 1);
	bytes[63] = 1; /* then it is no bare header, and its CRC is wrong */
	ck_assert_int_eq(ucm_block_parse(bytes, 64, 464, &block),
			 UCM_FAULT_HEADER_CRC);
}

static const struct {
	uint32_t layers, data_offset;
} offsets_of[] = {
	{ 1, 4096 }, { 32, 4096 }, { 496, 4096 }, { 497, 8192 },
	{ 1008, 8192 }, { 1009, 12288 }, { 1u << 20, 8392704 },
};

UNIT_TEST(data_offset_leaves_room_for_the_plane_table)
{
	for (size_t i = 0; i < NUM_ROWS(offsets_of); i++)
		ck_assert_uint_eq(ucm_block_data_offset(offsets_of[i].layers),
				  offsets_of[i].data_offset);
}

static const struct {
	enum ucm_form form;
	uint32_t data_offset, layers, k, v;
	uint64_t size, last; /* of the file; offset of the last layer */
} sizes[] = {
	{ UCM_FORM_PAGED, 4096, 2, 128, 128, 8192, 4352 },
	{ UCM_FORM_PACKED, 64, 2, 128, 128, 576, 320 },
	{ UCM_FORM_PAGED, 4096, 1, 4096, 0, 8192, 4096 },
	{ UCM_FORM_PAGED, 4096, 1, 4096, 1, 12288, 4096 },
	{ UCM_FORM_PAGED, 4096, 32, 32768, 32768, 2101248, 2035712 },
	{ UCM_FORM_PAGED, 8392704, 1u << 20, UINT32_MAX, UINT32_MAX,
	  UINT64_C(9007199261036544), UINT64_C(9007190671101954) },
};

UNIT_TEST(sizes_and_offsets_follow_from_the_header)
{
	for (size_t i = 0; i < NUM_ROWS(sizes); i++) {
		struct ucm_block block = {
			.form = sizes[i].form,
			.data_offset = sizes[i].data_offset,
			.geometry = { .num_layers = sizes[i].layers,
				      .k_bytes = sizes[i].k,
				      .v_bytes = sizes[i].v },
		};

		ck_assert_uint_eq(ucm_block_file_size(&block), sizes[i].size);
		ck_assert_uint_eq(ucm_block_layer_offset(&block, 0),
				  sizes[i].data_offset);
		ck_assert_uint_eq(ucm_block_layer_offset(&block,
							 sizes[i].layers - 1),
				  sizes[i].last);
	}
}

UNIT_TEST(encode_refuses_what_parse_would)
{
	static const struct {
		const char *what;
		struct ucm_geometry g;
		enum ucm_form form;
		uint32_t data_offset, flags;
		size_t room;
	} rows[] = {
		{ "bare", { 2, 4, 0, 8, 8, 0, 0, 2 }, UCM_FORM_BARE, 64, 0, 4096 },
		{ "no room", { 2, 4, 0, 8, 8, 0, 0, 2 }, UCM_FORM_PAGED, 4096, 0, 4095 },
		{ "no room packed", { 2, 4, 0, 8, 8, 0, 0, 2 }, UCM_FORM_PACKED, 64, 0, 63 },
		{ "packed at 4096", { 2, 4, 0, 8, 8, 0, 0, 2 }, UCM_FORM_PACKED, 4096, 0, 4096 },
		{ "paged at 64", { 2, 4, 0, 8, 8, 0, 0, 2 }, UCM_FORM_PAGED, 64, 0, 4096 },
		{ "paged at 0", { 2, 4, 0, 8, 8, 0, 0, 2 }, UCM_FORM_PAGED, 0, 0, 4096 },
		{ "497 layers in a page", { 497, 4, 0, 8, 8, 0, 0, 2 }, UCM_FORM_PAGED, 4096, 0, 4096 },
		{ "packed parent", { 2, 4, 0, 8, 8, 0, 0, 2 }, UCM_FORM_PACKED, 64, 2, 4096 },
		{ "packed space", { 2, 4, 0, 8, 8, 0, 0, 2 }, UCM_FORM_PACKED, 64, 4, 4096 },
		{ "no layer", { 0, 4, 0, 8, 8, 0, 0, 2 }, UCM_FORM_PAGED, 4096, 0, 4096 },
		{ "no token", { 2, 0, 0, 8, 8, 0, 0, 2 }, UCM_FORM_PAGED, 4096, 0, 4096 },
		{ "no K", { 2, 4, 0, 0, 8, 0, 0, 2 }, UCM_FORM_PAGED, 4096, 0, 4096 },
		{ "dtype 8", { 2, 4, 8, 8, 8, 0, 0, 2 }, UCM_FORM_PAGED, 4096, 0, 4096 },
		{ "order 3", { 2, 4, 0, 8, 8, 0, 0, 3 }, UCM_FORM_PAGED, 4096, 0, 4096 },
		{ "k_bytes", { 2, 4, 1, 127, 8, 2, 8, 0 }, UCM_FORM_PAGED, 4096, 0, 4096 },
	};
	uint8_t bytes[4096], untouched[4096];

	memset(bytes, 0x55, sizeof(bytes));
	memset(untouched, 0x55, sizeof(untouched));
	for (size_t i = 0; i < NUM_ROWS(rows); i++) {
		struct ucm_block block = {
			.geometry = rows[i].g, .form = rows[i].form,
			.data_offset = rows[i].data_offset,
			.flags = rows[i].flags,
		};

		ck_assert_msg(ucm_block_encode(&block, NULL, bytes,
					       rows[i].room) == -EINVAL,
			      "%s", rows[i].what);
		ck_assert_mem_eq(bytes, untouched, sizeof(bytes));
	}
}

UNIT_TEST(dtypes_have_names_and_sizes)
{
	static const struct {
		const char *name;
		uint32_t size;
	} rows[] = {
		{ "opaque", 0 }, { "float16", 2 }, { "bfloat16", 2 },
		{ "float32", 4 }, { "float8_e4m3", 1 }, { "float8_e5m2", 1 },
		{ "int8", 1 }, { "uint8", 1 },
	};
	uint32_t dtype = 99;

	for (uint32_t i = 0; i < NUM_ROWS(rows); i++) {
		ck_assert_str_eq(ucm_dtype_name(i), rows[i].name);
		ck_assert_uint_eq(ucm_dtype_size(i), rows[i].size);
		ck_assert_int_eq(ucm_dtype_parse(rows[i].name, &dtype), 0);
		ck_assert_uint_eq(dtype, i);
	}
	ck_assert_ptr_null(ucm_dtype_name(8));
	ck_assert_uint_eq(ucm_dtype_size(8), 0);
	ck_assert_int_eq(ucm_dtype_parse("Float16", &dtype), -EINVAL);
	ck_assert_uint_eq(dtype, 7);
}

UNIT_TEST(geometries_are_compared_by_what_both_tell)
{
	static const struct {
		const char *what;
		struct ucm_geometry g;
		int equal;
	} rows[] = {
		{ "itself", { 2, 4, 1, 128, 128, 2, 8, 0 }, 1 },
		{ "layers", { 3, 4, 1, 128, 128, 2, 8, 0 }, 0 },
		{ "tokens", { 2, 5, 1, 128, 128, 2, 8, 0 }, 0 },
		{ "dtype", { 2, 4, 2, 128, 128, 2, 8, 0 }, 0 },
		{ "k", { 2, 4, 1, 129, 128, 2, 8, 0 }, 0 },
		{ "v", { 2, 4, 1, 128, 0, 2, 8, 0 }, 0 },
		{ "heads", { 2, 4, 1, 128, 128, 4, 8, 0 }, 0 },
		{ "dim", { 2, 4, 1, 128, 128, 2, 4, 0 }, 0 },
		{ "order", { 2, 4, 1, 128, 128, 2, 8, 1 }, 0 },
		{ "bare", { 2, 4, 1, 128, 128, 0, 0, 2 }, 1 },
	};

	for (size_t i = 0; i < NUM_ROWS(rows); i++) {
		ck_assert_msg(ucm_geometry_equal(&plain, &rows[i].g) ==
			      rows[i].equal, "%s", rows[i].what);
		ck_assert_msg(ucm_geometry_equal(&rows[i].g, &plain) ==
			      rows[i].equal, "%s", rows[i].what);
	}
}

UNIT_TEST(geometry_in_words_never_overruns)
{
	struct ucm_geometry odd = { .dtype = 77, .order = 9 };
	char text[200], tiny[8];

	ucm_geometry_text(&plain, text, sizeof(text));
	ck_assert_str_eq(text, "2 layers of 4 tokens, float16, K 128 + V 128 "
			       "bytes, 2 heads of 8, NHD");
	ucm_geometry_text(&plain, tiny, sizeof(tiny));
	ck_assert_str_eq(tiny, "2 layer");
	ucm_geometry_text(&odd, text, sizeof(text));
	ck_assert_ptr_nonnull(strstr(text, "unknown dtype"));
}
