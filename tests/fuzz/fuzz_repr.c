/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_repr.c - any bytes as a file of representations: the parser says no, and
 * why, or what it says is consistent with itself and encodes to the same bytes.
 *
 * The first byte says whether the header's checksum, and those of the layers,
 * are made right, so that the fuzzer gets past them; the rest is the file.
 */
#include <config.h>

#include <ucm/repr.h>

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/require.h"

#define SEAL_HEADER 1u
#define SEAL_LAYERS 2u
#define CRCS_AT 256u
#define HEADER_CRC_AT 4092u

static void put32(uint8_t *at, uint32_t value)
{
	memcpy(at, &value, sizeof(value));
}

static uint32_t get32(const uint8_t *at)
{
	uint32_t value;

	memcpy(&value, at, sizeof(value));
	return value;
}

static void seal(uint8_t *bytes, size_t len, unsigned how)
{
	uint32_t layers, layer_bytes;

	if (len < UCM_REPR_FILE_HEADER_BYTES)
		return;
	layers = get32(bytes + 56);
	layer_bytes = get32(bytes + 100);
	if (how & SEAL_LAYERS && layers <= UCM_REPR_FILE_LAYERS_MAX &&
	    4096 + (uint64_t)layers * layer_bytes <= len) {
		for (uint32_t i = 0; i < layers; i++)
			put32(bytes + CRCS_AT + 4 * i,
			      ucm_crc32c(0, bytes + 4096 +
					 (size_t)i * layer_bytes, layer_bytes));
	}
	if (how & SEAL_HEADER)
		put32(bytes + HEADER_CRC_AT,
		      ucm_crc32c(0, bytes, HEADER_CRC_AT));
}

/* What is said in params is right, and is what a layer has. */
static void check_kind(const struct ucm_repr_file *file)
{
	struct ucm_code_spec codes;
	struct ucm_star_spec star;
	int is_codes = !ucm_repr_file_codes(file, &codes, NULL);
	int is_star = !ucm_repr_file_channels(file, &star, NULL);

	REQUIRE((file->spec.kind < UCM_REPR_KINDS) + is_codes + is_star == 1);
	if (is_codes) {
		REQUIRE(ucm_code_bytes(&codes) == file->layer_bytes);
	} else if (is_star) {
		uint16_t *channels = calloc((size_t)star.num_heads * star.kept,
					    sizeof(*channels));

		if (!channels)
			return;
		for (uint32_t i = 0; i < star.num_heads * star.kept; i++)
			channels[i] = (uint16_t)(i % star.kept);
		star.channels = channels;
		REQUIRE(ucm_star_bytes(&star) == file->layer_bytes);
		free(channels);
	} else {
		REQUIRE(ucm_repr_bytes(&file->spec) == file->layer_bytes);
	}
}

static void check_header(const struct ucm_repr_file *file)
{
	uint64_t size = ucm_repr_file_size(file), end;
	uint32_t layers = file->geometry.num_layers, kind;

	REQUIRE(layers >= 1 && layers <= UCM_REPR_FILE_LAYERS_MAX);
	REQUIRE(file->geometry.block_size == file->spec.block_size);
	REQUIRE(file->layer_bytes && file->layer_bytes % 64 == 0);
	REQUIRE(file->layer_bytes <= UCM_REPR_FILE_LAYER_MAX);
	end = ucm_repr_file_layer_offset(file, layers);
	REQUIRE(size >= end && size - end < 4096 && size % 4096 == 0);
	REQUIRE(size < UINT64_C(1) << 36);
	REQUIRE(ucm_repr_file_layer_offset(file, 0) == 4096);
	REQUIRE(ucm_repr_kind_name(file->spec.kind));
	REQUIRE(!ucm_repr_kind_parse(ucm_repr_kind_name(file->spec.kind),
				     &kind) && kind == file->spec.kind);
	check_kind(file);
}

static void check_encode(const struct ucm_repr_file *file,
			 const uint8_t *bytes, size_t len)
{
	uint8_t *copy = malloc(len);

	if (!copy)
		return;
	REQUIRE(!ucm_repr_file_encode(file, bytes + 4096, copy, len, NULL));
	REQUIRE(!memcmp(copy, bytes, len));
	free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ucm_error error = { "" };
	struct ucm_repr_file file;
	uint8_t *bytes;
	int err;

	if (!size--)
		return 0;
	/* exactly as long as the input, so that any overrun is seen */
	bytes = malloc(size ? size : 1);
	if (!bytes)
		return 0;
	memcpy(bytes, data + 1, size);
	seal(bytes, size, data[0]);
	err = ucm_repr_file_parse(bytes, size, &file, &error);
	REQUIRE(!err || ((err == -EINVAL || err == -EBADMSG ||
			  (err == -ENOTSUP && size >= 8 && get32(bytes + 4) >
						   UCM_REPR_FILE_VERSION)) &&
			 error.text[0]));
	if (!err)
		check_header(&file);
	if (!err && !ucm_repr_file_verify(bytes, size, &file, NULL)) {
		REQUIRE(size == ucm_repr_file_size(&file));
		check_encode(&file, bytes, size);
	}
	free(bytes);
	return 0;
}
