/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format.c - the one place that turns a block file's bytes into a struct, and
 * back.
 *
 * The parser trusts nothing: it takes bytes and a length, checks every field
 * before it uses it, and does its sums in 64 bits, where the widest product
 * (2^32 layers of 2^33 bytes) would still overflow, so the number of layers is
 * bounded first. It is fuzzed (tests/fuzz/fuzz_format.c).
 */
#include <config.h>

#include <ucm/block.h>

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "common/align.h"

/* The header and the fixed part of the extension as they lie in the file. */
struct disk_header {
	uint8_t magic[4];
	uint32_t version;
	uint8_t block_hash[16];
	uint32_t num_layers;
	uint32_t block_size;
	uint32_t dtype;
	uint32_t data_offset;
	uint32_t k_bytes;
	uint32_t v_bytes;
	uint16_t num_kv_heads;
	uint16_t head_dim;
	uint32_t flags;
	uint32_t payload_crc;
	uint32_t header_crc;
};
_Static_assert(sizeof(struct disk_header) == UCM_BLOCK_HEADER_BYTES, "header");
_Static_assert(offsetof(struct disk_header, num_layers) == 24, "num_layers");
_Static_assert(offsetof(struct disk_header, data_offset) == 36, "data_offset");
_Static_assert(offsetof(struct disk_header, num_kv_heads) == 48, "heads");
_Static_assert(offsetof(struct disk_header, flags) == 52, "flags");
_Static_assert(offsetof(struct disk_header, header_crc) == 60, "header_crc");

struct disk_extension {
	uint8_t parent_hash[16];
	uint8_t space_id[32];
	uint64_t created;
	uint32_t crc;
	uint32_t zero;
};
_Static_assert(sizeof(struct disk_extension) ==
		       UCM_BLOCK_EXT_BYTES - UCM_BLOCK_HEADER_BYTES,
	       "extension");
_Static_assert(offsetof(struct disk_extension, crc) == 120 - 64, "crc");

#define MAGIC "UCMB"
#define FLAG_BITS (UCM_BLOCK_HAS_CRC | UCM_BLOCK_HAS_PARENT | UCM_BLOCK_HAS_SPACE)
#define ORDER_SHIFT 8
#define ORDER_BITS 0xf00u
#define EXT_CRC_AT 120u
#define EXT_ZERO_AT 124u

/* More layers than any model will have, few enough that sizes fit 64 bits. */
#define MAX_LAYERS (1u << 20)

static const char *const fault_texts[UCM_FAULT_COUNT] = {
	[UCM_FAULT_NONE] = "no fault",
	[UCM_FAULT_SHORT] = "shorter than its header announces",
	[UCM_FAULT_MAGIC] = "not a block: wrong magic",
	[UCM_FAULT_VERSION] = "unknown format version",
	[UCM_FAULT_FLAGS] = "unknown flag",
	[UCM_FAULT_HEADER_CRC] = "header checksum differs",
	[UCM_FAULT_FIELD] = "header field out of range",
	[UCM_FAULT_NAME] = "block_hash in the header is not the file's name",
	[UCM_FAULT_SIZE] = "longer than its header announces",
	[UCM_FAULT_EXTENSION] = "extension checksum differs",
	[UCM_FAULT_GEOMETRY] = "geometry differs from that of its space",
	[UCM_FAULT_PLANE] = "plane checksum differs",
	[UCM_FAULT_PAYLOAD] = "payload checksum differs",
	[UCM_FAULT_TAIL] = "bytes after the payload are not zero",
	[UCM_FAULT_UNVOUCHED] =
		"has no checksum, so it is not known whether it is whole",
	[UCM_FAULT_SPACE] = "space_id is not that of its space",
};

const char *ucm_fault_text(enum ucm_fault fault)
{
	if ((unsigned)fault >= UCM_FAULT_COUNT)
		return "unknown fault";
	return fault_texts[fault];
}

static const struct {
	const char *name;
	uint32_t size;
} dtypes[] = {
	[UCM_DTYPE_OPAQUE] = { "opaque", 0 },
	[UCM_DTYPE_FLOAT16] = { "float16", 2 },
	[UCM_DTYPE_BFLOAT16] = { "bfloat16", 2 },
	[UCM_DTYPE_FLOAT32] = { "float32", 4 },
	[UCM_DTYPE_FLOAT8_E4M3] = { "float8_e4m3", 1 },
	[UCM_DTYPE_FLOAT8_E5M2] = { "float8_e5m2", 1 },
	[UCM_DTYPE_INT8] = { "int8", 1 },
	[UCM_DTYPE_UINT8] = { "uint8", 1 },
};
#define NUM_DTYPES (sizeof(dtypes) / sizeof(dtypes[0]))

uint32_t ucm_dtype_size(uint32_t dtype)
{
	return dtype < NUM_DTYPES ? dtypes[dtype].size : 0;
}

const char *ucm_dtype_name(uint32_t dtype)
{
	return dtype < NUM_DTYPES ? dtypes[dtype].name : NULL;
}

int ucm_dtype_parse(const char *name, uint32_t *out)
{
	for (uint32_t i = 0; i < NUM_DTYPES; i++) {
		if (!strcmp(name, dtypes[i].name)) {
			*out = i;
			return 0;
		}
	}
	return -EINVAL;
}

static int all_zero(const void *bytes, size_t len)
{
	const uint8_t *at = bytes;

	return len == 0 || (at[0] == 0 && !memcmp(at, at + 1, len - 1));
}

uint64_t ucm_block_payload_bytes(const struct ucm_geometry *geometry)
{
	return (uint64_t)geometry->num_layers *
	       ((uint64_t)geometry->k_bytes + geometry->v_bytes);
}

uint64_t ucm_block_file_size(const struct ucm_block *block)
{
	uint64_t size = block->data_offset +
			ucm_block_payload_bytes(&block->geometry);

	return block->form == UCM_FORM_PAGED ? ucm_round_up(size, UCM_BLOCK_PAGE)
					     : size;
}

uint64_t ucm_block_layer_offset(const struct ucm_block *block, uint32_t layer)
{
	const struct ucm_geometry *g = &block->geometry;

	return block->data_offset +
	       layer * ((uint64_t)g->k_bytes + g->v_bytes);
}

uint32_t ucm_block_data_offset(uint32_t num_layers)
{
	uint64_t end = UCM_BLOCK_EXT_BYTES + 8 * (uint64_t)num_layers;

	return (uint32_t)ucm_round_up(end, UCM_BLOCK_PAGE);
}

static enum ucm_fault check_geometry(const struct ucm_geometry *g)
{
	uint64_t plane = (uint64_t)g->block_size * g->num_kv_heads;

	if (g->num_layers == 0 || g->num_layers > MAX_LAYERS)
		return UCM_FAULT_FIELD;
	if (g->block_size == 0 || g->dtype >= NUM_DTYPES || g->k_bytes == 0)
		return UCM_FAULT_FIELD;
	if (g->order > UCM_ORDER_OPAQUE)
		return UCM_FAULT_FIELD;
	if (g->dtype == UCM_DTYPE_OPAQUE || !g->num_kv_heads || !g->head_dim)
		return UCM_FAULT_NONE;
	/* 2^48 * 2^16 may wrap: bound the first product by what k_bytes holds */
	if (plane > UINT32_MAX ||
	    plane * g->head_dim * ucm_dtype_size(g->dtype) != g->k_bytes)
		return UCM_FAULT_FIELD;
	return UCM_FAULT_NONE;
}

static enum ucm_fault check_offset(const struct ucm_block *block)
{
	if (block->form == UCM_FORM_PACKED) {
		/* what lives in the extension cannot be announced without it */
		if (block->flags & (UCM_BLOCK_HAS_PARENT | UCM_BLOCK_HAS_SPACE))
			return UCM_FAULT_FIELD;
		return UCM_FAULT_NONE;
	}
	if (block->data_offset % UCM_BLOCK_PAGE ||
	    block->data_offset < ucm_block_data_offset(block->geometry.num_layers))
		return UCM_FAULT_FIELD;
	return UCM_FAULT_NONE;
}

/* The seed's header: the planes share what is left of the file equally. */
static enum ucm_fault parse_bare(uint64_t file_size, struct ucm_block *block)
{
	struct ucm_geometry *g = &block->geometry;
	uint64_t payload, plane;

	if (g->num_layers == 0 || g->num_layers > MAX_LAYERS)
		return UCM_FAULT_FIELD;
	if (file_size <= UCM_BLOCK_HEADER_BYTES)
		return UCM_FAULT_SHORT;
	payload = file_size - UCM_BLOCK_HEADER_BYTES;
	plane = payload / (2 * (uint64_t)g->num_layers);
	if (plane == 0)
		return UCM_FAULT_SHORT;
	if (plane * 2 * g->num_layers != payload || plane > UINT32_MAX)
		return UCM_FAULT_SIZE;

	block->form = UCM_FORM_BARE;
	block->data_offset = UCM_BLOCK_HEADER_BYTES;
	g->k_bytes = g->v_bytes = (uint32_t)plane;
	g->order = UCM_ORDER_OPAQUE;
	return check_geometry(g);
}

static enum ucm_fault parse_full(const struct disk_header *disk,
				 struct ucm_block *block)
{
	struct ucm_geometry *g = &block->geometry;
	enum ucm_fault fault;

	if (ucm_crc32c(0, disk, offsetof(struct disk_header, header_crc)) !=
	    disk->header_crc)
		return UCM_FAULT_HEADER_CRC;
	if (disk->flags & ~(FLAG_BITS | ORDER_BITS))
		return UCM_FAULT_FLAGS;

	g->k_bytes = disk->k_bytes;
	g->v_bytes = disk->v_bytes;
	g->num_kv_heads = disk->num_kv_heads;
	g->head_dim = disk->head_dim;
	g->order = (disk->flags & ORDER_BITS) >> ORDER_SHIFT;
	block->flags = disk->flags & FLAG_BITS;
	block->payload_crc = disk->payload_crc;
	block->data_offset = disk->data_offset;
	block->form = disk->data_offset == UCM_BLOCK_HEADER_BYTES
			      ? UCM_FORM_PACKED
			      : UCM_FORM_PAGED;
	fault = check_geometry(g);
	return fault ? fault : check_offset(block);
}

static void parse_extension(const void *bytes, struct ucm_block *block)
{
	struct disk_extension ext;

	memcpy(&ext, (const char *)bytes + UCM_BLOCK_HEADER_BYTES, sizeof(ext));
	memcpy(block->parent.bytes, ext.parent_hash, sizeof(ext.parent_hash));
	memcpy(block->space_id, ext.space_id, sizeof(ext.space_id));
	block->created_ns = ext.created;
}

enum ucm_fault ucm_block_parse(const void *bytes, size_t len,
			       uint64_t file_size, struct ucm_block *out)
{
	const size_t bare_from = offsetof(struct disk_header, data_offset);
	struct ucm_block block = { 0 };
	struct disk_header disk;
	enum ucm_fault fault;

	if (len < sizeof(disk))
		return UCM_FAULT_SHORT;
	memcpy(&disk, bytes, sizeof(disk));
	if (memcmp(disk.magic, MAGIC, sizeof(disk.magic)))
		return UCM_FAULT_MAGIC;
	if (disk.version != UCM_BLOCK_VERSION)
		return UCM_FAULT_VERSION;

	memcpy(block.id.bytes, disk.block_hash, sizeof(disk.block_hash));
	block.geometry.num_layers = disk.num_layers;
	block.geometry.block_size = disk.block_size;
	block.geometry.dtype = disk.dtype;
	if (all_zero((char *)&disk + bare_from, sizeof(disk) - bare_from))
		fault = parse_bare(file_size, &block);
	else
		fault = parse_full(&disk, &block);
	if (fault)
		return fault;

	if (block.form == UCM_FORM_PAGED && len >= UCM_BLOCK_EXT_BYTES)
		parse_extension(bytes, &block);
	*out = block;
	return UCM_FAULT_NONE;
}

static uint32_t extension_crc(const void *bytes, uint32_t data_offset)
{
	static const uint8_t zeros[4];
	const uint8_t *at = bytes;
	uint32_t crc;

	crc = ucm_crc32c(0, at + UCM_BLOCK_HEADER_BYTES,
			 EXT_CRC_AT - UCM_BLOCK_HEADER_BYTES);
	crc = ucm_crc32c(crc, zeros, sizeof(zeros));
	return ucm_crc32c(crc, at + EXT_ZERO_AT, data_offset - EXT_ZERO_AT);
}

enum ucm_fault ucm_block_check_extension(const struct ucm_block *block,
					 const void *bytes, size_t len)
{
	size_t table_end = UCM_BLOCK_EXT_BYTES +
			   8 * (size_t)block->geometry.num_layers;
	struct disk_extension ext;

	if (block->form != UCM_FORM_PAGED)
		return UCM_FAULT_NONE;
	if (len < block->data_offset)
		return UCM_FAULT_SHORT;
	memcpy(&ext, (const char *)bytes + UCM_BLOCK_HEADER_BYTES, sizeof(ext));
	if (ext.crc != extension_crc(bytes, block->data_offset) || ext.zero)
		return UCM_FAULT_EXTENSION;
	if (!(block->flags & UCM_BLOCK_HAS_PARENT) &&
	    !all_zero(ext.parent_hash, sizeof(ext.parent_hash)))
		return UCM_FAULT_EXTENSION;
	if (!(block->flags & UCM_BLOCK_HAS_SPACE) &&
	    !all_zero(ext.space_id, sizeof(ext.space_id)))
		return UCM_FAULT_EXTENSION;
	if (!all_zero((const char *)bytes + table_end,
		      block->data_offset - table_end))
		return UCM_FAULT_EXTENSION;
	return UCM_FAULT_NONE;
}

uint32_t ucm_block_plane_crc(const struct ucm_block *block, const void *bytes,
			     uint32_t plane)
{
	uint32_t crc;

	if (block->form != UCM_FORM_PAGED)
		return 0;
	memcpy(&crc,
	       (const char *)bytes + UCM_BLOCK_EXT_BYTES + 4 * (size_t)plane,
	       sizeof(crc));
	return crc;
}

/*
 * The checksum of bytes in a row from those of its parts: a CRC is the rest of
 * a division of polynomials over GF(2), and bytes that follow multiply these
 * by x^8 each. Bits are reflected: the highest one is x^0.
 */
#define CRC32C_POLYNOMIAL 0x82f63b78u

static uint32_t crc_multiply(uint32_t a, uint32_t b)
{
	uint32_t product = 0;

	for (uint32_t bit = UINT32_C(1) << 31; bit; bit >>= 1) {
		if (a & bit)
			product ^= b;
		b = b & 1 ? b >> 1 ^ CRC32C_POLYNOMIAL : b >> 1;
	}
	return product;
}

/* x^(8 * bytes) */
static uint32_t crc_power(uint64_t bytes)
{
	uint32_t power = UINT32_C(1) << 31, square = UINT32_C(1) << 23;

	for (; bytes; bytes >>= 1) {
		if (bytes & 1)
			power = crc_multiply(square, power);
		square = crc_multiply(square, square);
	}
	return power;
}

/* The payload's checksum, from the plane table. */
static uint32_t payload_crc(const struct ucm_geometry *g, const char *table)
{
	const uint32_t powers[] = { crc_power(g->k_bytes),
				    crc_power(g->v_bytes) };
	uint32_t crc = 0, plane;

	for (uint64_t i = 0; i < 2 * (uint64_t)g->num_layers; i++) {
		memcpy(&plane, table + 4 * i, sizeof(plane));
		crc = crc_multiply(powers[i & 1], crc) ^ plane;
	}
	return crc;
}

static void encode_table(const struct ucm_geometry *g, const void *payload,
			 char *table)
{
	const char *at = payload;

	for (uint32_t layer = 0; layer < g->num_layers; layer++) {
		uint32_t crcs[2]; /* of no bytes it is 0 */

		crcs[0] = ucm_crc32c(0, at, g->k_bytes);
		at += g->k_bytes;
		crcs[1] = ucm_crc32c(0, at, g->v_bytes);
		at += g->v_bytes;
		memcpy(table, crcs, sizeof(crcs));
		table += sizeof(crcs);
	}
}

static void encode_extension(const struct ucm_block *block, void *bytes)
{
	struct disk_extension ext = { .created = block->created_ns };
	char *at = (char *)bytes + UCM_BLOCK_HEADER_BYTES;

	if (block->flags & UCM_BLOCK_HAS_PARENT)
		memcpy(ext.parent_hash, block->parent.bytes, UCM_ID_BYTES);
	if (block->flags & UCM_BLOCK_HAS_SPACE)
		memcpy(ext.space_id, block->space_id, sizeof(ext.space_id));
	memcpy(at, &ext, sizeof(ext));
	ext.crc = extension_crc(bytes, block->data_offset);
	memcpy(at, &ext, sizeof(ext));
}

/* All but the checksums of the payload. */
static bool may_encode(const struct ucm_block *block, size_t len)
{
	return !check_geometry(&block->geometry) &&
	       block->form != UCM_FORM_BARE &&
	       (block->form != UCM_FORM_PACKED ||
		block->data_offset == UCM_BLOCK_HEADER_BYTES) &&
	       !check_offset(block) && len >= block->data_offset;
}

/* The rest; the plane table is in its place, or zero. */
static void encode(const struct ucm_block *block, const uint32_t *crc,
		   void *bytes)
{
	const struct ucm_geometry *g = &block->geometry;
	struct disk_header disk = {
		.version = UCM_BLOCK_VERSION,
		.num_layers = g->num_layers,
		.block_size = g->block_size,
		.dtype = g->dtype,
		.data_offset = block->data_offset,
		.k_bytes = g->k_bytes,
		.v_bytes = g->v_bytes,
		.num_kv_heads = g->num_kv_heads,
		.head_dim = g->head_dim,
		.flags = block->flags & FLAG_BITS & ~UCM_BLOCK_HAS_CRC,
	};

	memcpy(disk.magic, MAGIC, sizeof(disk.magic));
	memcpy(disk.block_hash, block->id.bytes, UCM_ID_BYTES);
	disk.flags |= g->order << ORDER_SHIFT;
	if (crc) {
		disk.flags |= UCM_BLOCK_HAS_CRC;
		disk.payload_crc = *crc;
	}
	disk.header_crc =
		ucm_crc32c(0, &disk, offsetof(struct disk_header, header_crc));
	memcpy(bytes, &disk, sizeof(disk));
	if (block->form == UCM_FORM_PAGED)
		encode_extension(block, bytes);
}

int ucm_block_encode(const struct ucm_block *block, const void *payload,
		     void *bytes, size_t len)
{
	const struct ucm_geometry *g = &block->geometry;
	char *table = (char *)bytes + UCM_BLOCK_EXT_BYTES;
	uint32_t crc;

	if (!may_encode(block, len))
		return -EINVAL;
	memset(bytes, 0, block->data_offset);
	if (payload && block->form == UCM_FORM_PAGED) {
		encode_table(g, payload, table);
		crc = payload_crc(g, table);
	} else if (payload) {
		crc = ucm_crc32c(0, payload, ucm_block_payload_bytes(g));
	}
	encode(block, payload ? &crc : NULL, bytes);
	return 0;
}

int ucm_block_encode_planes(const struct ucm_block *block,
			    const uint32_t *planes, void *bytes, size_t len)
{
	char *table = (char *)bytes + UCM_BLOCK_EXT_BYTES;
	uint32_t crc;

	if (block->form != UCM_FORM_PAGED || !may_encode(block, len))
		return -EINVAL;
	memset(bytes, 0, block->data_offset);
	memcpy(table, planes, 8 * (size_t)block->geometry.num_layers);
	crc = payload_crc(&block->geometry, table);
	encode(block, &crc, bytes);
	return 0;
}

int ucm_geometry_equal(const struct ucm_geometry *a,
		       const struct ucm_geometry *b)
{
	if (a->num_layers != b->num_layers || a->block_size != b->block_size ||
	    a->dtype != b->dtype || a->k_bytes != b->k_bytes ||
	    a->v_bytes != b->v_bytes)
		return 0;
	if (!a->num_kv_heads || !b->num_kv_heads)
		return 1;
	return a->num_kv_heads == b->num_kv_heads &&
	       a->head_dim == b->head_dim && a->order == b->order;
}

void ucm_geometry_text(const struct ucm_geometry *g, char *text, size_t len)
{
	static const char *const orders[] = { "NHD", "HND", "opaque order" };
	const char *dtype = ucm_dtype_name(g->dtype);

	snprintf(text, len,
		 "%u layers of %u tokens, %s, K %u + V %u bytes, "
		 "%u heads of %u, %s",
		 g->num_layers, g->block_size, dtype ? dtype : "unknown dtype",
		 g->k_bytes, g->v_bytes, g->num_kv_heads, g->head_dim,
		 g->order <= UCM_ORDER_OPAQUE ? orders[g->order] : "?");
}
