/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_format.c - the block file's bytes, against tables and against arrays
 * written by hand (made with an independent CRC32C in Python), so that encoder
 * and parser cannot agree on something wrong.
 */
#include <config.h>

#include <ucm/block.h>

#include <errno.h>
#include <string.h>

#include "tests/unit/unit.h"

/* 2 layers, 4 tokens, opaque, K 8 + V 4, payload (7 i + 3) mod 256, paged,
 * order opaque, with checksums, parent and space. */
static const uint8_t golden[160] = {
	0x55, 0x43, 0x4d, 0x42, 0x01, 0x00, 0x00, 0x00, /* magic, version */
	0x3f, 0x9a, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, /* 8: block_hash */
	0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x1c, 0xe1,
	0x02, 0x00, 0x00, 0x00, 0x04, 0x00, 0x00, 0x00, /* 24: layers, tokens */
	0x00, 0x00, 0x00, 0x00, 0x00, 0x10, 0x00, 0x00, /* 32: dtype, offset */
	0x08, 0x00, 0x00, 0x00, 0x04, 0x00, 0x00, 0x00, /* 40: k, v bytes */
	0x02, 0x01, 0x04, 0x03, 0x07, 0x02, 0x00, 0x00, /* 48: heads, dim, flags */
	0x68, 0xd4, 0x71, 0x04, 0x35, 0x57, 0xb4, 0x8e, /* 56: payload, header crc */
	0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, /* 64: parent_hash */
	0xa8, 0xa9, 0xaa, 0xab, 0xac, 0xad, 0xae, 0xaf,
	0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7, /* 80: space_id */
	0xc8, 0xc9, 0xca, 0xcb, 0xcc, 0xcd, 0xce, 0xcf,
	0xd0, 0xd1, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7,
	0xd8, 0xd9, 0xda, 0xdb, 0xdc, 0xdd, 0xde, 0xdf,
	0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, /* 112: created */
	0x26, 0x68, 0x8b, 0x09, 0x00, 0x00, 0x00, 0x00, /* 120: crc, zero */
	0xe8, 0xc0, 0x25, 0xd2, 0x62, 0x91, 0xce, 0x4a, /* 128: plane table */
	0xc8, 0x8a, 0xf8, 0xdc, 0xd8, 0xb6, 0x5c, 0xbe,
};

static struct ucm_block golden_block(void)
{
	struct ucm_block block = {
		.geometry = { .num_layers = 2, .block_size = 4,
			      .dtype = UCM_DTYPE_OPAQUE, .k_bytes = 8,
			      .v_bytes = 4, .num_kv_heads = 0x0102,
			      .head_dim = 0x0304, .order = UCM_ORDER_OPAQUE },
		.form = UCM_FORM_PAGED,
		.data_offset = 4096,
		.flags = UCM_BLOCK_HAS_CRC | UCM_BLOCK_HAS_PARENT |
			 UCM_BLOCK_HAS_SPACE,
		.payload_crc = 0x0471d468,
		.created_ns = 0x1122334455667788,
	};

	memcpy(block.id.bytes, golden + 8, 16);
	memcpy(block.parent.bytes, golden + 64, 16);
	memcpy(block.space_id, golden + 80, 32);
	return block;
}

static void fill(uint8_t *bytes, size_t len)
{
	for (size_t i = 0; i < len; i++)
		bytes[i] = (uint8_t)(7 * i + 3);
}

static const struct ucm_geometry plain = {
	.num_layers = 2, .block_size = 4, .dtype = UCM_DTYPE_FLOAT16,
	.k_bytes = 128, .v_bytes = 128, .num_kv_heads = 2, .head_dim = 8,
};

static void put32(uint8_t *bytes, size_t at, uint32_t value)
{
	memcpy(bytes + at, &value, sizeof(value));
}

static void seal_header(uint8_t *bytes)
{
	put32(bytes, 60, ucm_crc32c(0, bytes, 60));
}

static void seal_extension(uint8_t *bytes, uint32_t data_offset)
{
	put32(bytes, 120, 0);
	put32(bytes, 120, ucm_crc32c(0, bytes + 64, data_offset - 64));
}

/* The first page of a plain paged block with checksums. */
static struct ucm_block encode_plain(uint8_t page[4096])
{
	struct ucm_block block = { .geometry = plain, .form = UCM_FORM_PAGED,
				   .data_offset = 4096 };
	uint8_t payload[512];

	memcpy(block.id.bytes, golden + 8, 16);
	fill(payload, sizeof(payload));
	ck_assert_int_eq(ucm_block_encode(&block, payload, page, 4096), 0);
	block.flags |= UCM_BLOCK_HAS_CRC;
	block.payload_crc = ucm_crc32c(0, payload, sizeof(payload));
	return block;
}

UNIT_TEST(crc32c_gives_the_published_values)
{
	uint8_t zeros[32] = { 0 }, ones[32];

	memset(ones, 0xff, sizeof(ones));
	ck_assert_uint_eq(ucm_crc32c(0, "", 0), 0);
	ck_assert_uint_eq(ucm_crc32c(0, "123456789", 9), 0xe3069283);
	ck_assert_uint_eq(ucm_crc32c(0, zeros, 32), 0x8a9136aa); /* RFC 3720 */
	ck_assert_uint_eq(ucm_crc32c(0, ones, 32), 0x62a8ab43);
}

UNIT_TEST(crc32c_of_parts_is_that_of_the_whole)
{
	for (size_t cut = 0; cut <= 9; cut++) {
		uint32_t crc = ucm_crc32c(0, "123456789", cut);

		ck_assert_uint_eq(ucm_crc32c(crc, &"123456789"[cut], 9 - cut),
				  0xe3069283);
	}
}

UNIT_TEST(encode_writes_the_bytes_of_the_document)
{
	struct ucm_block block = golden_block();
	uint8_t page[4096], payload[24];

	fill(payload, sizeof(payload));
	memset(page, 0xee, sizeof(page));
	ck_assert_int_eq(ucm_block_encode(&block, payload, page, 4096), 0);
	for (size_t i = 0; i < sizeof(page); i++)
		ck_assert_msg(page[i] == (i < 144 ? golden[i] : 0),
			      "byte %zu is %02x", i, page[i]);
}

static void compare_blocks(const struct ucm_block *a, const struct ucm_block *b)
{
	ck_assert_mem_eq(&a->id, &b->id, sizeof(a->id));
	ck_assert_mem_eq(&a->geometry, &b->geometry, sizeof(a->geometry));
	ck_assert_int_eq(a->form, b->form);
	ck_assert_uint_eq(a->data_offset, b->data_offset);
	ck_assert_uint_eq(a->flags, b->flags);
	ck_assert_uint_eq(a->payload_crc, b->payload_crc);
	ck_assert_mem_eq(&a->parent, &b->parent, sizeof(a->parent));
	ck_assert_mem_eq(a->space_id, b->space_id, sizeof(a->space_id));
	ck_assert_uint_eq(a->created_ns, b->created_ns);
}

UNIT_TEST(parse_reads_the_bytes_of_the_document)
{
	struct ucm_block want = golden_block(), block;
	uint8_t page[4096] = { 0 };

	memcpy(page, golden, 144);
	ck_assert_int_eq(ucm_block_parse(page, 4096, 8192, &block), 0);
	compare_blocks(&block, &want);
	ck_assert_int_eq(ucm_block_check_extension(&block, page, 4096), 0);
	ck_assert_uint_eq(ucm_block_plane_crc(&block, page, 0), 0xd225c0e8);
	ck_assert_uint_eq(ucm_block_plane_crc(&block, page, 3), 0xbe5cb6d8);
}

/* Of a paged file 64 bytes tell the layout, 128 also the extension's fields. */
UNIT_TEST(parse_reads_the_extension_only_if_given_it)
{
	struct ucm_block block;

	ck_assert_int_eq(ucm_block_parse(golden, 127, 8192, &block), 0);
	ck_assert_uint_eq(block.created_ns, 0);
	ck_assert_uint_eq(block.parent.bytes[0], 0);
	ck_assert_int_eq(ucm_block_parse(golden, 128, 8192, &block), 0);
	ck_assert_uint_eq(block.created_ns, 0x1122334455667788);
	ck_assert_uint_eq(block.parent.bytes[0], 0xa0);
}

static const struct {
	enum ucm_form form;
	bool crc;
	uint32_t flags, layers, dtype, k, v, heads, dim, order, extra;
} trips[] = {
	{ UCM_FORM_PAGED, true, 0, 1, 1, 128, 128, 2, 8, 0, 0 },
	{ UCM_FORM_PAGED, false, 0, 2, 1, 128, 128, 2, 8, 1, 0 },
	{ UCM_FORM_PACKED, true, 0, 2, 1, 128, 128, 2, 8, 0, 0 },
	{ UCM_FORM_PACKED, false, 0, 2, 1, 128, 128, 2, 8, 2, 0 },
	/* MLA: one latent, no V */
	{ UCM_FORM_PAGED, true, 0, 3, 2, 1152, 0, 0, 0, 2, 0 },
	{ UCM_FORM_PACKED, true, 0, 3, 2, 1152, 0, 0, 0, 2, 0 },
	{ UCM_FORM_PAGED, true, UCM_BLOCK_HAS_PARENT, 2, 4, 64, 64, 2, 8, 0, 0 },
	{ UCM_FORM_PAGED, true, UCM_BLOCK_HAS_SPACE, 2, 3, 256, 256, 2, 8, 0, 0 },
	{ UCM_FORM_PAGED, false, 6, 2, 7, 64, 32, 2, 8, 0, 0 },
	/* around the end of the extension's first and second page */
	{ UCM_FORM_PAGED, true, 0, 495, 0, 4, 4, 0, 0, 2, 0 },
	{ UCM_FORM_PAGED, true, 0, 496, 0, 4, 4, 0, 0, 2, 0 },
	{ UCM_FORM_PAGED, true, 0, 497, 0, 4, 4, 0, 0, 2, 0 },
	{ UCM_FORM_PAGED, true, 6, 1008, 0, 4, 4, 0, 0, 2, 0 },
	{ UCM_FORM_PAGED, true, 6, 1009, 0, 4, 4, 0, 0, 2, 0 },
	/* a greater data_offset than needed */
	{ UCM_FORM_PAGED, true, 6, 2, 0, 4, 4, 0, 0, 2, 8192 },
};

UNIT_TEST(parse_finds_what_encode_wrote, .rows = NUM_ROWS(trips))
{
	static uint8_t bytes[32768], payload[16384];
	struct ucm_block block, back;

	fill(payload, sizeof(payload));
	block = (struct ucm_block){
		.form = trips[_i].form,
		.flags = trips[_i].flags,
		.geometry = { trips[_i].layers, 4, trips[_i].dtype,
			      trips[_i].k, trips[_i].v,
			      (uint16_t)trips[_i].heads,
			      (uint16_t)trips[_i].dim, trips[_i].order },
	};
	memcpy(block.id.bytes, golden + 8, 16);
	if (block.form == UCM_FORM_PAGED) {
		block.data_offset = ucm_block_data_offset(trips[_i].layers) +
				    trips[_i].extra;
		block.created_ns = 12345;
	} else {
		block.data_offset = 64;
	}
	if (block.flags & UCM_BLOCK_HAS_PARENT)
		memset(&block.parent, 0x11, sizeof(block.parent));
	if (block.flags & UCM_BLOCK_HAS_SPACE)
		memset(block.space_id, 0x22, sizeof(block.space_id));
	ck_assert_int_eq(ucm_block_encode(&block,
					  trips[_i].crc ? payload : NULL,
					  bytes, sizeof(bytes)), 0);
	if (trips[_i].crc) {
		block.flags |= UCM_BLOCK_HAS_CRC;
		block.payload_crc =
			ucm_crc32c(0, payload,
				   ucm_block_payload_bytes(&block.geometry));
	}
	ck_assert_int_eq(ucm_block_parse(bytes, sizeof(bytes),
					 ucm_block_file_size(&block), &back), 0);
	compare_blocks(&back, &block);
	ck_assert_int_eq(ucm_block_check_extension(&back, bytes,
						   back.data_offset), 0);
}

UNIT_TEST(plane_table_has_the_checksum_of_each_plane)
{
	static uint8_t bytes[12288], payload[1009 * 12];
	struct ucm_block block = {
		.form = UCM_FORM_PAGED, .data_offset = 12288,
		.geometry = { 1009, 1, 0, 8, 4, 0, 0, 2 },
	};

	fill(payload, sizeof(payload));
	ck_assert_int_eq(ucm_block_encode(&block, payload, bytes,
					  sizeof(bytes)), 0);
	for (uint32_t layer = 0; layer < 1009; layer++) {
		const uint8_t *at = payload + 12 * layer;

		ck_assert_uint_eq(ucm_block_plane_crc(&block, bytes, 2 * layer),
				  ucm_crc32c(0, at, 8));
		ck_assert_uint_eq(ucm_block_plane_crc(&block, bytes,
						      2 * layer + 1),
				  ucm_crc32c(0, at + 8, 4));
	}
	block.form = UCM_FORM_PACKED;
	ck_assert_uint_eq(ucm_block_plane_crc(&block, bytes, 0), 0);
}

UNIT_TEST(planes_checksums_do_for_the_payload)
{
	static const uint32_t v_bytes[] = { 0, 1, 4095, 70000 };
	struct ucm_block block = golden_block();
	static uint8_t payload[3 * (65536 + 70000)], want[4096], got[4096];
	uint32_t planes[6];

	fill(payload, sizeof(payload));
	block.geometry.num_layers = 3;
	block.geometry.k_bytes = 65536;
	for (unsigned i = 0; i < 4; i++) {
		block.geometry.v_bytes = v_bytes[i];
		ck_assert_int_eq(ucm_block_encode(&block, payload, want,
						  sizeof(want)), 0);
		memcpy(planes, want + 128, sizeof(planes));
		ck_assert_int_eq(ucm_block_encode_planes(&block, planes, got,
							 sizeof(got)), 0);
		ck_assert_mem_eq(got, want, sizeof(want));
		ck_assert(!ucm_block_parse(want, 4096, 0, &block));
		ck_assert_uint_eq(block.payload_crc,
				  ucm_crc32c(0, payload,
					     ucm_block_payload_bytes(
						     &block.geometry)));
	}
	block.form = UCM_FORM_PACKED;
	block.data_offset = 64;
	ck_assert_int_eq(ucm_block_encode_planes(&block, planes, got,
						 sizeof(got)), -EINVAL);
}

UNIT_TEST(empty_planes_have_checksum_zero)
{
	uint8_t bytes[4096], payload[30];
	struct ucm_block block = {
		.form = UCM_FORM_PAGED, .data_offset = 4096,
		.geometry = { 3, 1, 0, 10, 0, 0, 0, 2 },
	};

	fill(payload, sizeof(payload));
	ck_assert_int_eq(ucm_block_encode(&block, payload, bytes, 4096), 0);
	ck_assert_uint_ne(ucm_block_plane_crc(&block, bytes, 4), 0);
	ck_assert_uint_eq(ucm_block_plane_crc(&block, bytes, 5), 0);
}

/* One field of a sealed header made wrong, and the header sealed again. */
static const struct {
	const char *what;
	size_t at, len;
	uint32_t value;
	enum ucm_fault fault;
} wrong_fields[] = {
	{ "magic", 0, 4, 0x424d4356, UCM_FAULT_MAGIC },
	{ "magic zero", 0, 4, 0, UCM_FAULT_MAGIC },
	{ "version 0", 4, 4, 0, UCM_FAULT_VERSION },
	{ "version 2", 4, 4, 2, UCM_FAULT_VERSION },
	{ "big-endian version", 4, 4, 0x01000000, UCM_FAULT_VERSION },
	{ "flag bit 3", 52, 4, 0x9, UCM_FAULT_FLAGS },
	{ "flag bit 7", 52, 4, 0x81, UCM_FAULT_FLAGS },
	{ "flag bit 12", 52, 4, 0x1001, UCM_FAULT_FLAGS },
	{ "flag bit 31", 52, 4, 0x80000001, UCM_FAULT_FLAGS },
	{ "order 3", 52, 4, 0x301, UCM_FAULT_FIELD },
	{ "order 15", 52, 4, 0xf01, UCM_FAULT_FIELD },
	{ "no layer", 24, 4, 0, UCM_FAULT_FIELD },
	{ "layers beyond the page", 24, 4, 497, UCM_FAULT_FIELD },
	{ "2^20 + 1 layers", 24, 4, (1u << 20) + 1, UCM_FAULT_FIELD },
	{ "2^32 - 1 layers", 24, 4, UINT32_MAX, UCM_FAULT_FIELD },
	{ "no token", 28, 4, 0, UCM_FAULT_FIELD },
	{ "k_bytes at odds with tokens", 28, 4, 5, UCM_FAULT_FIELD },
	{ "the same but for 2^32", 28, 4, 0x80000004, UCM_FAULT_FIELD },
	{ "2^32 - 1 tokens", 28, 4, UINT32_MAX, UCM_FAULT_FIELD },
	{ "dtype 8", 32, 4, 8, UCM_FAULT_FIELD },
	{ "dtype of other size", 32, 4, UCM_DTYPE_FLOAT32, UCM_FAULT_FIELD },
	{ "data_offset 0", 36, 4, 0, UCM_FAULT_FIELD },
	{ "data_offset 63", 36, 4, 63, UCM_FAULT_FIELD },
	{ "data_offset 128", 36, 4, 128, UCM_FAULT_FIELD },
	{ "data_offset 4095", 36, 4, 4095, UCM_FAULT_FIELD },
	{ "data_offset 4160", 36, 4, 4160, UCM_FAULT_FIELD },
	{ "k_bytes 0", 40, 4, 0, UCM_FAULT_FIELD },
	{ "k_bytes at odds", 40, 4, 129, UCM_FAULT_FIELD },
	{ "heads at odds", 48, 2, 3, UCM_FAULT_FIELD },
	{ "dim at odds", 50, 2, 9, UCM_FAULT_FIELD },
};

UNIT_TEST(parse_names_the_wrong_field, .rows = NUM_ROWS(wrong_fields))
{
	struct ucm_block block = { .data_offset = 4711 };
	uint8_t page[4096];

	encode_plain(page);
	memcpy(page + wrong_fields[_i].at, &wrong_fields[_i].value,
	       wrong_fields[_i].len);
	seal_header(page);
	ck_assert_msg(ucm_block_parse(page, 4096, 8192, &block) ==
		      wrong_fields[_i].fault, "%s", wrong_fields[_i].what);
	ck_assert_uint_eq(block.data_offset, 4711); /* left alone */
}

UNIT_TEST(packed_blocks_have_no_room_for_a_parent)
{
	struct ucm_block block = { .geometry = plain, .form = UCM_FORM_PACKED,
				   .data_offset = 64 };
	uint8_t bytes[64];

	for (uint32_t flag = 2; flag <= 4; flag *= 2) {
		ck_assert_int_eq(ucm_block_encode(&block, NULL, bytes, 64), 0);
		put32(bytes, 52, flag);
		seal_header(bytes);
		ck_assert_int_eq(ucm_block_parse(bytes, 64, 576, &block),
				 UCM_FAULT_FIELD);
	}
}

UNIT_TEST(any_changed_bit_of_a_header_is_seen)
{
	struct ucm_block block;
	uint8_t page[4096];

	encode_plain(page);
	for (size_t bit = 0; bit < 64 * 8; bit++) {
		enum ucm_fault fault;

		page[bit / 8] ^= (uint8_t)(1 << bit % 8);
		fault = ucm_block_parse(page, 4096, 8192, &block);
		ck_assert_int_eq(fault, bit < 32   ? UCM_FAULT_MAGIC
					: bit < 64 ? UCM_FAULT_VERSION
						   : UCM_FAULT_HEADER_CRC);
		page[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
}

UNIT_TEST(any_changed_byte_of_an_extension_is_seen)
{
	uint8_t page[4096];
	struct ucm_block block = encode_plain(page);

	for (size_t at = 64; at < 4096; at++) {
		page[at] ^= 0x40;
		ck_assert_int_eq(ucm_block_check_extension(&block, page, 4096),
				 UCM_FAULT_EXTENSION);
		page[at] ^= 0x40;
	}
	ck_assert_int_eq(ucm_block_check_extension(&block, page, 4096), 0);
}

/* Not zero where it must be, under a right checksum. */
UNIT_TEST(reserved_bytes_of_an_extension_are_zero)
{
	static const size_t offsets[] = { 64, 79, 80, 111, 124, 127, 144, 4095 };
	uint8_t page[4096];
	struct ucm_block block = encode_plain(page);

	for (size_t i = 0; i < NUM_ROWS(offsets); i++) {
		page[offsets[i]] = 1;
		seal_extension(page, 4096);
		ck_assert_msg(ucm_block_check_extension(&block, page, 4096) ==
			      UCM_FAULT_EXTENSION, "byte %zu", offsets[i]);
		page[offsets[i]] = 0;
	}
}

UNIT_TEST(an_extension_cut_short_is_short)
{
	uint8_t page[4096];
	struct ucm_block block = encode_plain(page);

	ck_assert_int_eq(ucm_block_check_extension(&block, page, 4095),
			 UCM_FAULT_SHORT);
	block.form = UCM_FORM_PACKED;
	ck_assert_int_eq(ucm_block_check_extension(&block, page, 0), 0);
}

UNIT_TEST(fewer_bytes_than_a_header_are_short)
{
	struct ucm_block block;
	uint8_t page[4096];

	encode_plain(page);
	for (size_t len = 0; len < 64; len++)
		ck_assert_int_eq(ucm_block_parse(page, len, 8192, &block),
				 UCM_FAULT_SHORT);
}

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

/* The header's fields are read and written by memcpy; so is the table. */
UNIT_TEST(buffers_need_no_alignment)
{
	struct ucm_block block = golden_block(), back;
	uint8_t bytes[4097], payload[25];

	fill(payload + 1, 24);
	ck_assert_int_eq(ucm_block_encode(&block, payload + 1, bytes + 1, 4096),
			 0);
	ck_assert_mem_eq(bytes + 1, golden, 144);
	ck_assert_int_eq(ucm_block_parse(bytes + 1, 4096, 8192, &back), 0);
	ck_assert_int_eq(ucm_block_check_extension(&back, bytes + 1, 4096), 0);
}

UNIT_TEST(every_fault_has_a_text_of_its_own)
{
	for (int i = 0; i < UCM_FAULT_COUNT; i++) {
		const char *text = ucm_fault_text((enum ucm_fault)i);

		ck_assert_ptr_nonnull(text);
		for (int j = 0; j < i; j++)
			ck_assert_str_ne(text,
					 ucm_fault_text((enum ucm_fault)j));
	}
	ck_assert_str_eq(ucm_fault_text(UCM_FAULT_COUNT), "unknown fault");
	ck_assert_str_eq(ucm_fault_text((enum ucm_fault)-1), "unknown fault");
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

UNIT_TEST(ids_are_lowercase_hex_only)
{
	static const char good[] = "3f9a101112131415161718191a1b1ce1";
	struct ucm_id id = { { 0 } }, before;
	char hex[UCM_ID_HEX + 1], bad[UCM_ID_HEX + 1];

	ck_assert_int_eq(ucm_id_parse(good, &id), 0);
	ck_assert_mem_eq(id.bytes, golden + 8, 16);
	ucm_id_format(&id, hex);
	ck_assert_str_eq(hex, good);
	before = id;
	for (size_t at = 0; at < UCM_ID_HEX; at++) {
		for (const char *c = "AFGg/:@` \xff"; *c; c++) {
			memcpy(bad, good, sizeof(bad));
			bad[at] = *c;
			ck_assert_int_eq(ucm_id_parse(bad, &id), -EINVAL);
		}
		memcpy(bad, good, sizeof(bad));
		bad[at] = '\0'; /* nothing behind it is read */
		ck_assert_int_eq(ucm_id_parse(bad, &id), -EINVAL);
	}
	ck_assert_mem_eq(&id, &before, sizeof(id));
}
