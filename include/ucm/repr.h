/* SPDX-License-Identifier: Apache-2.0 */
/*
 * repr.h - the file that keeps a block's representations.
 *
 * What stands for the keys of a block (<ucm/sparse.h>), layer by layer, in a
 * file beside the block's own: whoever selects blocks reads these files alone.
 * ucm-repr(5) describes the format, and ucm_repr(3) the calls.
 *
 * Everything here is pure: no call opens a file, allocates or keeps state, and
 * all may be called from any thread. Calls that return int return 0 or -errno,
 * and write nothing but *error (NULL: not wanted) if they fail:
 *
 *   -EINVAL   not such a file, or an argument is wrong; error begins with the
 *             name of what is wrong
 *   -EBADMSG  a checksum differs; error says which
 *   -ENOTSUP  of ucm_repr_file_parse(): it is right, and of a later version
 */
#ifndef UCM_REPR_H
#define UCM_REPR_H

#include <stddef.h>
#include <stdint.h>

#include <ucm/block.h>
#include <ucm/error.h>
#include <ucm/sparse.h>

#ifdef __cplusplus
extern "C" {
#endif

#define UCM_REPR_FILE_VERSION 1u
#define UCM_REPR_FILE_HEADER_BYTES 4096u /* layer 0 follows */
#define UCM_REPR_FILE_LAYERS_MAX 512u
#define UCM_REPR_FILE_LAYER_MAX (1u << 26) /* bytes of a layer */
#define UCM_REPR_FILE_PARAMS_BYTES 64u

/* What there may be in a file beside the kinds of enum ucm_repr_kind. */
enum ucm_repr_file_kind {
	UCM_REPR_FILE_CODES = 16,    /* hash codes */
	UCM_REPR_FILE_CHANNELS = 17, /* merged channels */
};

/* What a header says. */
struct ucm_repr_file {
	struct ucm_id id;             /* the block's */
	uint8_t space_id[32];         /* as in the block's header; or zero */
	struct ucm_geometry geometry; /* the block's */
	/* Of each layer. Of hash codes and merged channels kind is one of enum
	 * ucm_repr_file_kind, and the calls below give their own spec. */
	struct ucm_repr_spec spec;
	uint32_t layer_bytes; /* of a layer's representation */
	/* What else the kind has to say; of those of enum ucm_repr_kind zero. */
	uint8_t params[UCM_REPR_FILE_PARAMS_BYTES];
};

/* "mean", or NULL for an unknown kind; and back: -EINVAL if unknown. Of both
 * enums. */
const char *ucm_repr_kind_name(uint32_t kind);
int ucm_repr_kind_parse(const char *name, uint32_t *out);

/*
 * What the file of a block says in which representations are of that spec.
 *
 * block: its header. Of spec, block_size is the block's, and so are num_heads
 * and head_dim, unless the block's header does not say (MLA, bare blocks).
 */
int ucm_repr_file_init(const struct ucm_block *block,
		       const struct ucm_repr_spec *spec,
		       struct ucm_repr_file *out, struct ucm_error *error);

/*
 * The same in which there are hash codes, or merged channels.
 *
 * centers: what was subtracted from keys, [layer][head][channel], as the
 * encoders of the layers took it; or NULL. channels: those that are kept,
 * [layer][head][kept], ascending in each head; NULL: all are. spec's own are not
 * looked at. The file has a digest of them (SHA-256), not themselves.
 */
int ucm_repr_file_init_codes(const struct ucm_block *block,
			     const struct ucm_code_spec *spec,
			     const float *centers, struct ucm_repr_file *out,
			     struct ucm_error *error);
int ucm_repr_file_init_channels(const struct ucm_block *block,
				const struct ucm_star_spec *spec,
				const uint16_t *channels,
				struct ucm_repr_file *out,
				struct ucm_error *error);

/* What codes or merged channels a file has. -EINVAL: it has others. *out has no
 * channels: set those of the layer, if not all are kept. */
int ucm_repr_file_codes(const struct ucm_repr_file *file,
			struct ucm_code_spec *out, struct ucm_error *error);
int ucm_repr_file_channels(const struct ucm_repr_file *file,
			   struct ucm_star_spec *out, struct ucm_error *error);

/* Was it made with these, of all its layers (NULL: with none, or all)? -EINVAL:
 * with others. What is compared with what such a file has must be made with the
 * same. */
int ucm_repr_file_check_centers(const struct ucm_repr_file *file,
				const float *centers, struct ucm_error *error);
int ucm_repr_file_check_channels(const struct ucm_repr_file *file,
				 const uint16_t *channels,
				 struct ucm_error *error);

/* Exact size of the file; where a layer starts. They lie one after the other,
 * so that a range of layers is one range of the file. */
uint64_t ucm_repr_file_size(const struct ucm_repr_file *file);
uint64_t ucm_repr_file_layer_offset(const struct ucm_repr_file *file,
				    uint32_t layer);

/*
 * Decode the first UCM_REPR_FILE_HEADER_BYTES of a file. A file may be right by
 * its header and still be cut short: compare ucm_repr_file_size() with its size.
 */
int ucm_repr_file_parse(const void *header, size_t len,
			struct ucm_repr_file *out, struct ucm_error *error);

/* Is it the block's? -EINVAL names the field that differs. A space_id that one
 * of the two does not have agrees with any. */
int ucm_repr_file_check_block(const struct ucm_repr_file *file,
			      const struct ucm_block *block,
			      struct ucm_error *error);

/* Compare a layer's layer_bytes bytes with its checksum. header: the bytes that
 * file was decoded from. */
int ucm_repr_file_check_layer(const struct ucm_repr_file *file,
			      const void *header, uint32_t layer,
			      const void *bytes, struct ucm_error *error);

/* A whole file: header, size, all layers, and the zeros at its end. */
int ucm_repr_file_verify(const void *bytes, uint64_t len,
			 struct ucm_repr_file *out, struct ucm_error *error);

/*
 * Make the file: layer l's representation lies at l * layer_bytes of layers,
 * and may be where it is in bytes already (bytes + the header's size). bytes:
 * ucm_repr_file_size() of them. The same file and layers give the same bytes.
 */
int ucm_repr_file_encode(const struct ucm_repr_file *file, const void *layers,
			 void *bytes, uint64_t len, struct ucm_error *error);

#ifdef __cplusplus
}
#endif

#endif
