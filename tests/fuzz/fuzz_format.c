/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_format.c - any bytes, any file size: the parser says no, or what it says
 * is consistent with itself.
 *
 * The first 8 bytes of the input are the file's size (and which of the input's
 * checksums are made right, so that the fuzzer gets past them); the rest is the
 * start of the file.
 */
#include <config.h>

#include <ucm/block.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/require.h"

#define SEAL_HEADER 1u
#define SEAL_EXTENSION 2u

static void put32(uint8_t *at, uint32_t value)
{
	memcpy(at, &value, sizeof(value));
}

static void seal(uint8_t *bytes, size_t len, unsigned how)
{
	uint32_t data_offset;

	if (how & SEAL_HEADER && len >= 64)
		put32(bytes + 60, ucm_crc32c(0, bytes, 60));
	if (!(how & SEAL_EXTENSION) || len < 128)
		return;
	memcpy(&data_offset, bytes + 36, sizeof(data_offset));
	if (data_offset < 128 || data_offset > len)
		return;
	put32(bytes + 120, 0);
	put32(bytes + 120, ucm_crc32c(0, bytes + 64, data_offset - 64));
}

static void check_sizes(const struct ucm_block *block, uint64_t file_size)
{
	const struct ucm_geometry *g = &block->geometry;
	uint64_t payload = ucm_block_payload_bytes(g);
	uint64_t whole = ucm_block_file_size(block);

	REQUIRE(g->num_layers > 0 && g->block_size > 0 && g->k_bytes > 0);
	REQUIRE(ucm_dtype_name(g->dtype) && g->order <= UCM_ORDER_OPAQUE);
	REQUIRE(payload / g->num_layers == (uint64_t)g->k_bytes + g->v_bytes);
	REQUIRE(whole >= block->data_offset + payload);
	REQUIRE(whole < UINT64_C(1) << 62);
	REQUIRE(whole - payload - block->data_offset < UCM_BLOCK_PAGE);
	REQUIRE(ucm_block_layer_offset(block, 0) == block->data_offset);
	REQUIRE(ucm_block_layer_offset(block, g->num_layers) ==
		block->data_offset + payload);
	switch (block->form) {
	case UCM_FORM_PAGED:
		REQUIRE(block->data_offset % UCM_BLOCK_PAGE == 0);
		REQUIRE(whole % UCM_BLOCK_PAGE == 0);
		REQUIRE(block->data_offset >=
			ucm_block_data_offset(g->num_layers));
		break;
	case UCM_FORM_PACKED:
		REQUIRE(block->data_offset == UCM_BLOCK_HEADER_BYTES);
		break;
	case UCM_FORM_BARE:
		REQUIRE(block->data_offset == UCM_BLOCK_HEADER_BYTES);
		REQUIRE(whole == file_size);
		REQUIRE(g->k_bytes == g->v_bytes && !block->flags);
		break;
	}
}

/* Encoded again it is read as the same; where it had no checksums, it is the
 * same header to the byte. */
static void check_encode(const struct ucm_block *block, const uint8_t *bytes)
{
	struct ucm_block again;
	uint8_t *copy = calloc(1, block->data_offset);

	if (!copy)
		return;
	REQUIRE(!ucm_block_encode(block, NULL, copy, block->data_offset));
	REQUIRE(!ucm_block_parse(copy, block->data_offset, 0, &again));
	REQUIRE(!memcmp(&again.id, &block->id, sizeof(again.id)));
	REQUIRE(!memcmp(&again.geometry, &block->geometry,
			sizeof(again.geometry)));
	REQUIRE(ucm_geometry_equal(&again.geometry, &block->geometry));
	REQUIRE(again.form == block->form);
	REQUIRE(again.flags == (block->flags & ~UCM_BLOCK_HAS_CRC));
	REQUIRE(ucm_block_file_size(&again) == ucm_block_file_size(block));
	REQUIRE(!ucm_block_check_extension(&again, copy, block->data_offset));
	if (!(block->flags & UCM_BLOCK_HAS_CRC) && !block->payload_crc)
		REQUIRE(!memcmp(copy, bytes, UCM_BLOCK_HEADER_BYTES));
	free(copy);
}

static void check_extension(const struct ucm_block *block, const uint8_t *bytes,
			    size_t len)
{
	enum ucm_fault fault = ucm_block_check_extension(block, bytes, len);

	REQUIRE(fault == UCM_FAULT_NONE || fault == UCM_FAULT_SHORT ||
		fault == UCM_FAULT_EXTENSION);
	REQUIRE((fault == UCM_FAULT_SHORT) ==
		(block->form == UCM_FORM_PAGED && len < block->data_offset));
	if (fault || block->form != UCM_FORM_PAGED)
		return;
	ucm_block_plane_crc(block, bytes, 0);
	ucm_block_plane_crc(block, bytes, 2 * block->geometry.num_layers - 1);
}

static void check_names(const uint8_t *bytes, size_t len)
{
	char hex[UCM_ID_HEX + 1] = "", back[UCM_ID_HEX + 1];
	struct ucm_id id;

	memcpy(hex, bytes, len < UCM_ID_HEX ? len : UCM_ID_HEX);
	if (ucm_id_parse(hex, &id))
		return;
	ucm_id_format(&id, back);
	REQUIRE(!strcmp(hex, back));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ucm_block block;
	enum ucm_fault fault;
	uint64_t file_size;
	uint8_t *bytes;
	char text[64];

	if (size < 8)
		return 0;
	memcpy(&file_size, data, 8);
	size -= 8;
	/* exactly as long as the input, so that any overrun is seen */
	bytes = malloc(size ? size : 1);
	if (!bytes)
		return 0;
	memcpy(bytes, data + 8, size);
	seal(bytes, size, (unsigned)(file_size >> 62));
	file_size &= UINT64_MAX >> 2;

	check_names(bytes, size);
	fault = ucm_block_parse(bytes, size, file_size, &block);
	REQUIRE(fault < UCM_FAULT_COUNT && ucm_fault_text(fault));
	if (!fault) {
		check_sizes(&block, file_size);
		check_extension(&block, bytes, size);
		ucm_geometry_text(&block.geometry, text, sizeof(text));
		if (block.form != UCM_FORM_BARE &&
		    block.data_offset <= 1u << 24)
			check_encode(&block, bytes);
	}
	free(bytes);
	return 0;
}
