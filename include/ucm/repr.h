/* SPDX-License-Identifier: Apache-2.0 */
/*
 * repr.h - spaces of representations.
 *
 * What stands for the keys of a block (<ucm/sparse.h>) is a block itself, of the
 * same name, in a sibling space: the one of NAME is NAME.repr, that of the
 * default space blocks.repr. Layer l's K plane is layer l's representation; there
 * is no V plane. What the representations of a space are, its manifest says.
 * ucm-repr(5) describes both, and ucm_repr(3) the calls.
 *
 * Everything here is pure: no call opens a file or keeps state, and all may be
 * called from any thread. Calls that return int return 0, or -EINVAL, and then
 * write nothing but *error (NULL: not wanted), which begins with the name of
 * what is wrong.
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

#define UCM_REPR_LAYERS_MAX 512u
#define UCM_REPR_LAYER_MAX (1u << 26) /* bytes of a layer */
#define UCM_REPR_PARAMS_BYTES 64u
#define UCM_REPR_MANIFEST_MAX 1024u /* bytes, with the NUL */
#define UCM_REPR_NAME_MAX 136u	    /* likewise */

/* What a space may hold beside the kinds of enum ucm_repr_kind. */
enum ucm_repr_stored_kind {
	UCM_REPR_CODES = 16,    /* hash codes */
	UCM_REPR_CHANNELS = 17, /* merged channels */
};

/* What the representations of a space are. */
struct ucm_repr_space {
	/* Of its blocks: k_bytes is a layer's representation, opaque. */
	struct ucm_geometry geometry;
	/* Of each layer. Of hash codes and merged channels kind is one of enum
	 * ucm_repr_stored_kind, and the calls below give their own spec. */
	struct ucm_repr_spec spec;
	/* What else the kind has to say; of those of enum ucm_repr_kind zero. */
	uint8_t params[UCM_REPR_PARAMS_BYTES];
};

/* "mean", or NULL for an unknown kind; and back: -EINVAL if unknown. Of both
 * enums. */
const char *ucm_repr_kind_name(uint32_t kind);
int ucm_repr_kind_parse(const char *name, uint32_t *out);

/* The space with the representations of a space's blocks (NULL or "": the
 * default one). A space that is called "blocks" itself has none. */
int ucm_repr_space_name(const char *blocks, char name[UCM_REPR_NAME_MAX],
			struct ucm_error *error);

/*
 * The space for representations of that spec.
 *
 * blocks: the geometry of the blocks that they stand for. Of spec, block_size is
 * the blocks', and so are num_heads and head_dim, unless the geometry does not
 * say (MLA, bare blocks).
 */
int ucm_repr_space_init(const struct ucm_geometry *blocks,
			const struct ucm_repr_spec *spec,
			struct ucm_repr_space *out, struct ucm_error *error);

/*
 * The same for hash codes, or merged channels.
 *
 * centers: what was subtracted from keys, [layer][head][channel], as the
 * encoders of the layers took it; or NULL. channels: those that are kept,
 * [layer][head][kept], ascending in each head; NULL: all are. spec's own are not
 * looked at. The space has a digest of them (SHA-256), not themselves.
 */
int ucm_repr_space_init_codes(const struct ucm_geometry *blocks,
			      const struct ucm_code_spec *spec,
			      const float *centers, struct ucm_repr_space *out,
			      struct ucm_error *error);
int ucm_repr_space_init_channels(const struct ucm_geometry *blocks,
				 const struct ucm_star_spec *spec,
				 const uint16_t *channels,
				 struct ucm_repr_space *out,
				 struct ucm_error *error);

/* What codes or merged channels a space has. -EINVAL: it has others. *out has no
 * channels: set those of the layer, if not all are kept. */
int ucm_repr_space_codes(const struct ucm_repr_space *space,
			 struct ucm_code_spec *out, struct ucm_error *error);
int ucm_repr_space_channels(const struct ucm_repr_space *space,
			    struct ucm_star_spec *out,
			    struct ucm_error *error);

/* Was it made with these, of all its layers (NULL: with none, or all)? -EINVAL:
 * with others. What is compared with what such a space has must be made with the
 * same. */
int ucm_repr_space_check_centers(const struct ucm_repr_space *space,
				 const float *centers,
				 struct ucm_error *error);
int ucm_repr_space_check_channels(const struct ucm_repr_space *space,
				  const uint16_t *channels,
				  struct ucm_error *error);

/* Its manifest, for ucm_space_make(); and what a manifest says. */
int ucm_repr_space_manifest(const struct ucm_repr_space *space,
			    char text[UCM_REPR_MANIFEST_MAX],
			    struct ucm_error *error);
int ucm_repr_space_parse(const char *manifest, struct ucm_repr_space *out,
			 struct ucm_error *error);

#ifdef __cplusplus
}
#endif

#endif
