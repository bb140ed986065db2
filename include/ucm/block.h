/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block.h - the block file: what its bytes mean.
 *
 * One KV-cache block is one file: a header and the K and V planes of every
 * layer, in a layout that the header alone fixes. ucm-block(5) describes the format, and
 * ucm_block(3) the calls. Everything here is pure: no call opens a file,
 * allocates or keeps state, and all of them may be called from any thread.
 */
#ifndef UCM_BLOCK_H
#define UCM_BLOCK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define UCM_ID_BYTES 16u
#define UCM_ID_HEX 32u /* characters of an id in text, without the NUL */

/* A block's name: the 16 bytes of its hash. */
struct ucm_id {
	uint8_t bytes[UCM_ID_BYTES];
};

#define UCM_BLOCK_HEADER_BYTES 64u
#define UCM_BLOCK_EXT_BYTES 128u /* header and extension, without planes */
#define UCM_BLOCK_PAGE 4096u
#define UCM_BLOCK_VERSION 1u

enum ucm_dtype {
	UCM_DTYPE_OPAQUE = 0,
	UCM_DTYPE_FLOAT16 = 1,
	UCM_DTYPE_BFLOAT16 = 2,
	UCM_DTYPE_FLOAT32 = 3,
	UCM_DTYPE_FLOAT8_E4M3 = 4,
	UCM_DTYPE_FLOAT8_E5M2 = 5,
	UCM_DTYPE_INT8 = 6,
	UCM_DTYPE_UINT8 = 7,
};

/* Order of the elements inside one plane. */
enum ucm_order {
	UCM_ORDER_NHD = 0,    /* [token][head][dim] */
	UCM_ORDER_HND = 1,    /* [head][token][dim] */
	UCM_ORDER_OPAQUE = 2, /* known to the engine alone */
};

#define UCM_BLOCK_HAS_CRC 0x1u
#define UCM_BLOCK_HAS_PARENT 0x2u
#define UCM_BLOCK_HAS_SPACE 0x4u

/* How a file is laid out; the header says so. */
enum ucm_form {
	UCM_FORM_PAGED,  /* payload at a multiple of 4096, extension, zero tail */
	UCM_FORM_PACKED, /* payload at 64, no extension */
	UCM_FORM_BARE,   /* as packed, plane sizes follow from the file's size */
};

/* What every block of one space has in common. */
struct ucm_geometry {
	uint32_t num_layers;
	uint32_t block_size; /* tokens */
	uint32_t dtype;      /* enum ucm_dtype */
	uint32_t k_bytes;    /* one layer's K plane */
	uint32_t v_bytes;    /* one layer's V plane; 0: K and V are one (MLA) */
	uint16_t num_kv_heads; /* 0: not applicable, or not known (bare) */
	uint16_t head_dim;     /* elements; 0 likewise */
	uint32_t order;        /* enum ucm_order */
};

/* A decoded header. */
struct ucm_block {
	struct ucm_id id;
	struct ucm_geometry geometry;
	enum ucm_form form;
	uint32_t data_offset; /* where layer 0's K plane starts */
	uint32_t flags;       /* UCM_BLOCK_HAS_*, without the order bits */
	uint32_t payload_crc; /* CRC32C of the payload, if HAS_CRC */
	/* Paged form only, else zero: */
	struct ucm_id parent;
	uint8_t space_id[32];
	uint64_t created_ns; /* since the epoch */
};

/* Why a file is not a block, or not a whole one. */
enum ucm_fault {
	UCM_FAULT_NONE = 0,
	UCM_FAULT_SHORT,     /* fewer bytes than a header, or than it announces */
	UCM_FAULT_MAGIC,
	UCM_FAULT_VERSION,
	UCM_FAULT_FLAGS,     /* a flag this version does not know */
	UCM_FAULT_HEADER_CRC,
	UCM_FAULT_FIELD,     /* a field outside its range, or fields at odds */
	UCM_FAULT_NAME,      /* block_hash is not the file's name */
	UCM_FAULT_SIZE,      /* more bytes than the header announces */
	UCM_FAULT_EXTENSION, /* extension CRC, or bytes that must be zero */
	UCM_FAULT_GEOMETRY,  /* not the geometry of its space */
	UCM_FAULT_PLANE,     /* a plane's CRC differs */
	UCM_FAULT_PAYLOAD,   /* the payload's CRC differs */
	UCM_FAULT_TAIL,      /* bytes after the payload are not zero */
	UCM_FAULT_UNVOUCHED, /* in doubt, and no checksum to settle it */
	UCM_FAULT_SPACE,     /* space_id is not that of its space */
	UCM_FAULT_COUNT
};

/* A fault in words ("header checksum differs"); static text. */
const char *ucm_fault_text(enum ucm_fault fault);

/* Bytes of one element; 0 for opaque and for unknown types. */
uint32_t ucm_dtype_size(uint32_t dtype);

/* "float16", or NULL for an unknown type; and back: -EINVAL if unknown. */
const char *ucm_dtype_name(uint32_t dtype);
int ucm_dtype_parse(const char *name, uint32_t *out);

/*
 * Decode a header.
 *
 * bytes, len: the start of the file; 64 bytes suffice for packed and bare
 *   files. Of a paged file the extension's fields (parent, space_id, created)
 *   are decoded if len covers them (128 bytes); they are not checked here.
 * file_size: the file's size in bytes; a bare header needs it to know its
 *   planes, the others ignore it.
 *
 * Returns UCM_FAULT_NONE and fills *out, or a reason and leaves *out alone.
 * A file may be right by its header and still be cut short: compare
 * ucm_block_file_size() with its size.
 */
enum ucm_fault ucm_block_parse(const void *bytes, size_t len,
			       uint64_t file_size, struct ucm_block *out);

/*
 * Check the extension of a paged block: its CRC and its zero bytes.
 * bytes holds the file's first data_offset bytes. Packed and bare: NONE.
 */
enum ucm_fault ucm_block_check_extension(const struct ucm_block *block,
					 const void *bytes, size_t len);

/* CRC32C of a plane as the plane table in bytes has it (see above); 0 if the
 * form has no table. plane counts layer 0 K, layer 0 V, layer 1 K, ... */
uint32_t ucm_block_plane_crc(const struct ucm_block *block, const void *bytes,
			     uint32_t plane);

/* Payload bytes, and the exact size of the whole file. */
uint64_t ucm_block_payload_bytes(const struct ucm_geometry *geometry);
uint64_t ucm_block_file_size(const struct ucm_block *block);

/* Where a layer's K plane starts; its V plane is k_bytes further on. */
uint64_t ucm_block_layer_offset(const struct ucm_block *block, uint32_t layer);

/* Default data_offset for a number of layers. */
uint32_t ucm_block_data_offset(uint32_t num_layers);

/*
 * Encode: fill the first block->data_offset bytes of a file in *bytes.
 *
 * block: id, geometry, form (paged or packed), flags, parent, space_id,
 *   created_ns are taken from it; data_offset must be 64 (packed) or what
 *   ucm_block_data_offset() says or any greater multiple of 4096.
 * payload: the whole payload in file order, for the checksums; NULL: the file
 *   is written without checksums (HAS_CRC is cleared).
 * len: room in bytes, at least data_offset.
 *
 * Returns 0, or -EINVAL: a field out of range (nothing written).
 */
int ucm_block_encode(const struct ucm_block *block, const void *payload,
		     void *bytes, size_t len);

/* The same, of a paged file, from the planes' checksums (layer 0 K, layer 0 V,
 * ...; 0 for an empty plane), for those who have not got the payload in one
 * piece. */
int ucm_block_encode_planes(const struct ucm_block *block,
			    const uint32_t *planes, void *bytes, size_t len);

/* CRC32C (Castagnoli), as the format uses it; crc is 0 to begin with, or the
 * result for the bytes before. */
uint32_t ucm_crc32c(uint32_t crc, const void *bytes, size_t len);

/*
 * Geometries a and b describe the same blocks. Fields that one of them does
 * not say (heads, dim and order of a bare block) match anything.
 */
int ucm_geometry_equal(const struct ucm_geometry *a,
		       const struct ucm_geometry *b);

/* "32 layers x 16 tokens, float16, K 32768 + V 32768 bytes, ..." */
void ucm_geometry_text(const struct ucm_geometry *geometry, char *text,
		       size_t len);

/* 32 lowercase hex digits to an id; -EINVAL for anything else. hex need not
 * end after them. */
int ucm_id_parse(const char *hex, struct ucm_id *out);

/* Write 32 hex digits and a NUL. */
void ucm_id_format(const struct ucm_id *id, char hex[UCM_ID_HEX + 1]);

#ifdef __cplusplus
}
#endif

#endif
