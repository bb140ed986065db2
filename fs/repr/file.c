/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file.c - the one place that turns the bytes of a file of representations
 * into a struct, and back.
 *
 * The parser trusts nothing: the header is one page with a checksum of its own,
 * but a file with a right checksum may still say anything, so each field is
 * checked, by the same rules as what is to be written. All bytes that have no
 * meaning are zero, so that a file of a later version that gives them one is not
 * taken for one of this.
 *
 * What the other fields must be for a kind, and its own params, is in
 * kinds.c. It is fuzzed (tests/fuzz/fuzz_repr.c).
 */
#include <config.h>

#include <ucm/repr.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "common/align.h"
#include "common/error.h"
#include "fs/repr/kinds.h"
#include "fs/repr/shape.h"

/* The page as it lies in the file. */
struct disk_repr {
	uint8_t magic[4];
	uint32_t version;
	uint8_t block_hash[16];
	uint8_t space_id[32];
	uint32_t num_layers;
	uint32_t block_size;
	uint32_t block_dtype;
	uint32_t k_bytes;
	uint32_t v_bytes;
	uint16_t num_kv_heads;
	uint16_t kv_head_dim;
	uint32_t order;
	uint32_t kind;
	uint32_t dtype;
	uint32_t num_heads;
	uint32_t head_dim;
	uint32_t layer_bytes;
	uint8_t zero[24];
	uint8_t params[UCM_REPR_FILE_PARAMS_BYTES];
	uint8_t zero_too[64];
	uint32_t layer_crc[UCM_REPR_FILE_LAYERS_MAX];
	uint8_t zero_end[1788];
	uint32_t header_crc;
};
static_assert(sizeof(struct disk_repr) == UCM_REPR_FILE_HEADER_BYTES, "page");
static_assert(offsetof(struct disk_repr, num_layers) == 56, "num_layers");
static_assert(offsetof(struct disk_repr, num_kv_heads) == 76, "num_kv_heads");
static_assert(offsetof(struct disk_repr, kind) == 84, "kind");
static_assert(offsetof(struct disk_repr, params) == 128, "params");
static_assert(offsetof(struct disk_repr, layer_crc) == 256, "layer_crc");
static_assert(offsetof(struct disk_repr, header_crc) == 4092, "header_crc");

#define MAGIC "UCMR"
#define LAYER_ALIGN 64u

static bool all_zero(const void *bytes, uint64_t len)
{
	const uint8_t *at = bytes;

	return len == 0 || (at[0] == 0 && !memcmp(at, at + 1, len - 1));
}

/* ---- fields ---- */

static int check_geometry(const struct ucm_geometry *g,
			  struct ucm_error *error)
{
	if (ucm_repr_check_range("num_layers", g->num_layers, 1,
				 UCM_REPR_FILE_LAYERS_MAX, error) ||
	    ucm_repr_check_range("block_size", g->block_size, 1,
				 UCM_REPR_BLOCK_SIZE_MAX, error) ||
	    ucm_repr_check_range("block_dtype", g->dtype, 0, UCM_DTYPE_UINT8,
				 error) ||
	    ucm_repr_check_range("k_bytes", g->k_bytes, 1, UINT32_MAX, error) ||
	    ucm_repr_check_range("order", g->order, 0, UCM_ORDER_OPAQUE, error))
		return -EINVAL;
	return 0;
}

/* What may be in a file at all. */
static int check_fields(const struct ucm_repr_file *file,
			struct ucm_error *error)
{
	int err = check_geometry(&file->geometry, error);

	if (err)
		return err;
	err = ucm_repr_kind_check(file, error);
	if (!err)
		err = ucm_repr_check_range("layer_bytes", file->layer_bytes,
					   LAYER_ALIGN, UCM_REPR_FILE_LAYER_MAX,
					   error);
	if (!err && file->layer_bytes % LAYER_ALIGN)
		err = ucm_error_set(error, -EINVAL, "layer_bytes %" PRIu32
				    ": a multiple of %u", file->layer_bytes,
				    LAYER_ALIGN);
	return err;
}

static int check_layer_number(const struct ucm_repr_file *file, uint32_t layer,
			      struct ucm_error *error)
{
	if (layer < file->geometry.num_layers)
		return 0;
	return ucm_error_set(error, -EINVAL, "layer %" PRIu32 ": there are %"
			     PRIu32, layer, file->geometry.num_layers);
}

/* ---- sizes ---- */

uint64_t ucm_repr_file_layer_offset(const struct ucm_repr_file *file,
				    uint32_t layer)
{
	return UCM_REPR_FILE_HEADER_BYTES + (uint64_t)layer * file->layer_bytes;
}

uint64_t ucm_repr_file_size(const struct ucm_repr_file *file)
{
	uint64_t end = ucm_repr_file_layer_offset(file,
						  file->geometry.num_layers);

	return ucm_round_up(end, UCM_BLOCK_PAGE);
}

/* ---- a block's file ---- */

/* Of a spec that is right, or of another kind's that is said in its terms. */
static int file_begin(const struct ucm_block *block,
		      const struct ucm_repr_spec *spec, size_t layer_bytes,
		      struct ucm_repr_file *out, struct ucm_error *error)
{
	if (spec->block_size != block->geometry.block_size)
		return ucm_error_set(error, -EINVAL, "block_size %" PRIu32
				     ": the block has %" PRIu32,
				     spec->block_size,
				     block->geometry.block_size);
	if (layer_bytes > UCM_REPR_FILE_LAYER_MAX)
		return ucm_error_set(error, -EINVAL, "layer_bytes %zu: at most "
				     "%u", layer_bytes,
				     UCM_REPR_FILE_LAYER_MAX);
	*out = (struct ucm_repr_file){
		.id = block->id,
		.geometry = block->geometry,
		.spec = *spec,
		.layer_bytes = (uint32_t)layer_bytes,
	};
	memcpy(out->space_id, block->space_id, sizeof(out->space_id));
	return check_geometry(&out->geometry, error);
}

/* It is made, if it is right. */
static int file_end(const struct ucm_repr_file *file, int err,
		    struct ucm_repr_file *out, struct ucm_error *error)
{
	if (!err)
		err = check_fields(file, error);
	if (!err)
		*out = *file;
	return err;
}

int ucm_repr_file_init(const struct ucm_block *block,
		       const struct ucm_repr_spec *spec,
		       struct ucm_repr_file *out, struct ucm_error *error)
{
	struct ucm_repr_shape shape;
	struct ucm_repr_file file;
	int err = ucm_repr_shape(spec, &shape, error);

	if (!err)
		err = file_begin(block, spec, shape.bytes, &file, error);
	return file_end(&file, err, out, error);
}

int ucm_repr_file_init_codes(const struct ucm_block *block,
			     const struct ucm_code_spec *spec,
			     const float *centers, struct ucm_repr_file *out,
			     struct ucm_error *error)
{
	struct ucm_repr_spec keys = { .kind = UCM_REPR_FILE_CODES };
	struct ucm_code_shape shape;
	struct ucm_repr_file file;
	int err = ucm_code_shape(spec, &shape, error);

	if (err)
		return err;
	keys.num_heads = spec->num_heads;
	keys.head_dim = spec->head_dim;
	keys.block_size = spec->block_size;
	err = file_begin(block, &keys, shape.bytes, &file, error);
	if (!err)
		err = ucm_repr_params_of_codes(spec, centers,
					       file.geometry.num_layers,
					       file.params, error);
	return file_end(&file, err, out, error);
}

int ucm_repr_file_init_channels(const struct ucm_block *block,
				const struct ucm_star_spec *spec,
				const uint16_t *channels,
				struct ucm_repr_file *out,
				struct ucm_error *error)
{
	struct ucm_repr_spec keys = { .kind = UCM_REPR_FILE_CHANNELS };
	struct ucm_repr_file file;
	struct ucm_star_shape shape;
	int err = ucm_star_shape(spec, &shape, error);

	if (err)
		return err;
	keys.dtype = spec->dtype;
	keys.num_heads = spec->num_heads;
	keys.head_dim = spec->head_dim;
	keys.block_size = spec->block_size;
	err = file_begin(block, &keys, shape.bytes, &file, error);
	if (!err)
		err = ucm_repr_params_of_channels(spec, channels,
						  file.geometry.num_layers,
						  file.params, error);
	return file_end(&file, err, out, error);
}

/* space_id is told by blocks of one form alone. */
static bool same_space(const uint8_t a[32], const uint8_t b[32])
{
	return all_zero(a, 32) || all_zero(b, 32) || !memcmp(a, b, 32);
}

int ucm_repr_file_check_block(const struct ucm_repr_file *file,
			      const struct ucm_block *block,
			      struct ucm_error *error)
{
	const struct ucm_geometry *a = &file->geometry, *b = &block->geometry;
	const struct {
		const char *name;
		bool same;
	} fields[] = {
		{ "block_hash", !memcmp(&file->id, &block->id, UCM_ID_BYTES) },
		{ "num_layers", a->num_layers == b->num_layers },
		{ "block_size", a->block_size == b->block_size },
		{ "block_dtype", a->dtype == b->dtype },
		{ "k_bytes", a->k_bytes == b->k_bytes },
		{ "v_bytes", a->v_bytes == b->v_bytes },
		{ "num_kv_heads", a->num_kv_heads == b->num_kv_heads },
		{ "kv_head_dim", a->head_dim == b->head_dim },
		{ "order", a->order == b->order },
		{ "space_id", same_space(file->space_id, block->space_id) },
	};

	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		if (!fields[i].same)
			return ucm_error_set(error, -EINVAL,
					     "%s is not the block's",
					     fields[i].name);
	}
	return 0;
}

/* ---- decoding ---- */

static void take_fields(const struct disk_repr *disk,
			struct ucm_repr_file *out)
{
	*out = (struct ucm_repr_file){
		.geometry = {
			.num_layers = disk->num_layers,
			.block_size = disk->block_size,
			.dtype = disk->block_dtype,
			.k_bytes = disk->k_bytes,
			.v_bytes = disk->v_bytes,
			.num_kv_heads = disk->num_kv_heads,
			.head_dim = disk->kv_head_dim,
			.order = disk->order,
		},
		.spec = {
			.kind = disk->kind,
			.dtype = disk->dtype,
			.num_heads = disk->num_heads,
			.head_dim = disk->head_dim,
			.block_size = disk->block_size,
		},
		.layer_bytes = disk->layer_bytes,
	};
	memcpy(out->id.bytes, disk->block_hash, UCM_ID_BYTES);
	memcpy(out->space_id, disk->space_id, sizeof(out->space_id));
	memcpy(out->params, disk->params, sizeof(out->params));
}

/* Bytes without a meaning; checksums of layers that there are not, too. */
static int check_reserved(const struct disk_repr *disk,
			  struct ucm_error *error)
{
	const uint32_t *crcs_end = disk->layer_crc + disk->num_layers;
	uint64_t left = UCM_REPR_FILE_LAYERS_MAX - disk->num_layers;

	if (all_zero(disk->zero, sizeof(disk->zero)) &&
	    all_zero(disk->zero_too, sizeof(disk->zero_too)) &&
	    all_zero(crcs_end, left * sizeof(*crcs_end)) &&
	    all_zero(disk->zero_end, sizeof(disk->zero_end)))
		return 0;
	return ucm_error_set(error, -EINVAL, "reserved bytes: not zero");
}

int ucm_repr_file_parse(const void *header, size_t len,
			struct ucm_repr_file *out, struct ucm_error *error)
{
	struct ucm_repr_file file;
	struct disk_repr disk;
	int err;

	if (!header || len < sizeof(disk))
		return ucm_error_set(error, -EINVAL, "header: %zu bytes, must "
				     "be %zu", header ? len : 0, sizeof(disk));
	memcpy(&disk, header, sizeof(disk));
	if (memcmp(disk.magic, MAGIC, sizeof(disk.magic)))
		return ucm_error_set(error, -EINVAL, "magic: not a file of "
				     "representations");
	if (ucm_crc32c(0, &disk, offsetof(struct disk_repr, header_crc)) !=
	    disk.header_crc)
		return ucm_error_set(error, -EBADMSG, "header checksum "
				     "differs");
	if (disk.version != UCM_REPR_FILE_VERSION)
		return ucm_error_set(error, disk.version ? -ENOTSUP : -EINVAL,
				     "version %" PRIu32 ": unknown",
				     disk.version);
	take_fields(&disk, &file);
	err = check_fields(&file, error);
	if (!err)
		err = check_reserved(&disk, error);
	if (!err)
		*out = file;
	return err;
}

int ucm_repr_file_check_layer(const struct ucm_repr_file *file,
			      const void *header, uint32_t layer,
			      const void *bytes, struct ucm_error *error)
{
	uint32_t want;
	int err = check_layer_number(file, layer, error);

	if (err)
		return err;
	memcpy(&want, (const uint8_t *)header +
	       offsetof(struct disk_repr, layer_crc) + layer * sizeof(want),
	       sizeof(want));
	if (ucm_crc32c(0, bytes, file->layer_bytes) == want)
		return 0;
	return ucm_error_set(error, -EBADMSG, "layer %" PRIu32
			     ": checksum differs", layer);
}

int ucm_repr_file_verify(const void *bytes, uint64_t len,
			 struct ucm_repr_file *out, struct ucm_error *error)
{
	const uint8_t *at = bytes;
	struct ucm_repr_file file;
	uint64_t size, end;
	int err = ucm_repr_file_parse(bytes, len, &file, error);

	if (err)
		return err;
	size = ucm_repr_file_size(&file);
	if (len != size)
		return ucm_error_set(error, -EINVAL, "size %" PRIu64
				     ": must be %" PRIu64, len, size);
	for (uint32_t i = 0; !err && i < file.geometry.num_layers; i++)
		err = ucm_repr_file_check_layer(
			&file, bytes, i,
			at + ucm_repr_file_layer_offset(&file, i), error);
	end = ucm_repr_file_layer_offset(&file, file.geometry.num_layers);
	if (!err && !all_zero(at + end, size - end))
		err = ucm_error_set(error, -EINVAL,
				    "bytes after the last layer: not zero");
	if (!err)
		*out = file;
	return err;
}

/* ---- encoding ---- */

static void put_fields(const struct ucm_repr_file *file,
		       struct disk_repr *disk)
{
	const struct ucm_geometry *geometry = &file->geometry;

	*disk = (struct disk_repr){
		.version = UCM_REPR_FILE_VERSION,
		.num_layers = geometry->num_layers,
		.block_size = geometry->block_size,
		.block_dtype = geometry->dtype,
		.k_bytes = geometry->k_bytes,
		.v_bytes = geometry->v_bytes,
		.num_kv_heads = geometry->num_kv_heads,
		.kv_head_dim = geometry->head_dim,
		.order = geometry->order,
		.kind = file->spec.kind,
		.dtype = file->spec.dtype,
		.num_heads = file->spec.num_heads,
		.head_dim = file->spec.head_dim,
		.layer_bytes = file->layer_bytes,
	};
	memcpy(disk->magic, MAGIC, sizeof(disk->magic));
	memcpy(disk->block_hash, file->id.bytes, UCM_ID_BYTES);
	memcpy(disk->space_id, file->space_id, sizeof(disk->space_id));
	memcpy(disk->params, file->params, sizeof(disk->params));
}

int ucm_repr_file_encode(const struct ucm_repr_file *file, const void *layers,
			 void *bytes, uint64_t len, struct ucm_error *error)
{
	const struct ucm_geometry *geometry = &file->geometry;
	uint8_t *at = bytes;
	struct disk_repr disk;
	uint64_t end;
	int err = check_fields(file, error);

	if (!err && file->spec.block_size != geometry->block_size)
		err = ucm_error_set(error, -EINVAL, "block_size %" PRIu32
				    ": the block has %" PRIu32,
				    file->spec.block_size,
				    geometry->block_size);
	if (!err && len < ucm_repr_file_size(file))
		err = ucm_error_set(error, -EINVAL, "len %" PRIu64
				    ": the file has %" PRIu64, len,
				    ucm_repr_file_size(file));
	if (err)
		return err;
	put_fields(file, &disk);
	end = ucm_repr_file_layer_offset(file, geometry->num_layers);
	memmove(at + sizeof(disk), layers, end - sizeof(disk));
	memset(at + end, 0, ucm_repr_file_size(file) - end);
	for (uint32_t i = 0; i < geometry->num_layers; i++)
		disk.layer_crc[i] =
			ucm_crc32c(0, at + ucm_repr_file_layer_offset(file, i),
				   file->layer_bytes);
	disk.header_crc =
		ucm_crc32c(0, &disk, offsetof(struct disk_repr, header_crc));
	memcpy(at, &disk, sizeof(disk));
	return 0;
}
