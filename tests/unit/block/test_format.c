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

#include "tests/unit/block/format_fixture.h"

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
