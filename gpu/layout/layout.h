/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout.h - what the loader knows of a layout beyond load.h.
 *
 * Pure. The regions of a sealed layout lie in the order of the payload and
 * tile it without a gap, so that the regions of a range of layers are a range
 * of the table. Where a layer's planes are smaller than the geometry's (sizes),
 * what is left of these is padding: it has no regions, and is zero in files.
 */
#ifndef UCM_LAYOUT_H
#define UCM_LAYOUT_H

#include <ucm/load.h>

/* What a layer has of each plane of the geometry. */
struct ucm_layer_size {
	uint32_t k_bytes, v_bytes;
};

struct ucm_layout {
	struct ucm_geometry geometry;
	struct ucm_layer_size *sizes; /* of each layer; NULL: all are full */
	uint64_t num_pages;
	struct ucm_region *regions;
	size_t num_regions;
	size_t room;
	/* Sealed: regions[layer_first[l]] is the first one of layer l;
	 * num_layers + 1 entries. */
	uint32_t *layer_first;
	uint64_t runs; /* of a block, after merging what is contiguous */
	bool direct;   /* see ucm_layout_set_direct() */
};

/* A sealed one for requests that bring addresses: one for so many bytes, in their
 * order in the payload. Its own addresses stand for none, and need only be apart. */
int ucm_layout_new_given(const struct ucm_geometry *geometry, uint64_t bytes,
			 struct ucm_layout **out, struct ucm_error *error);

/* -EINVAL: not sealed; -ENOMEM. */
int ucm_layout_copy(const struct ucm_layout *layout, struct ucm_layout **out);

/* The addresses of the first and the last byte of all pages. */
void ucm_layout_bounds(const struct ucm_layout *layout, uint64_t *first_out,
		       uint64_t *last_out);

/* Bytes of a layer in the payload: K and V. */
static inline uint64_t ucm_layout_layer_bytes(const struct ucm_layout *layout)
{
	return (uint64_t)layout->geometry.k_bytes + layout->geometry.v_bytes;
}

static inline struct ucm_layer_size
ucm_layout_size_of(const struct ucm_layout *layout, uint32_t layer)
{
	if (layout->sizes)
		return layout->sizes[layer];
	return (struct ucm_layer_size){ layout->geometry.k_bytes,
					layout->geometry.v_bytes };
}

/*
 * The padding of the layers [first, end), whose bytes lie in a row (padding.c):
 * make it zero, or see if it is. Where it is not, the file is one of larger
 * layers; *plane_out then says of which, as ucm_outcome does.
 */
void ucm_layout_clear_padding(const struct ucm_layout *layout, uint32_t first,
			      uint32_t end, uint8_t *bytes);
bool ucm_layout_padding_is_zero(const struct ucm_layout *layout, uint32_t first,
				uint32_t end, const uint8_t *bytes,
				uint32_t *plane_out);

/* Where the padding that `at`, a byte of the payload, lies in ends; or `at`. */
uint64_t ucm_layout_skip_padding(const struct ucm_layout *layout, uint64_t at);

/* A tensor's regions, see ucm_layout_add_tensor() (regions.c). */
int ucm_regions_of_tensor(struct ucm_layout *layout,
			  const struct ucm_tensor *tensor,
			  struct ucm_error *error);

/* Do runs of these two regions share a byte, in any two pages below num_pages
 * (or, if a == b, in any two different places)? True as well where that is too
 * intricate to say, see overlap.c. */
bool ucm_regions_overlap(const struct ucm_region *a,
			 const struct ucm_region *b, uint64_t num_pages);

/* Do any of these? Then pair_out says which two (or twice the same). */
bool ucm_regions_any_overlap(const struct ucm_region *regions, size_t num,
			     uint64_t num_pages, size_t pair_out[2]);

/* The addresses of the first and the last byte in all pages. -EOVERFLOW: they
 * are not all between 0 and 2^64 - 1. */
int ucm_region_bounds(const struct ucm_region *region, uint64_t num_pages,
		      uint64_t *first_out, uint64_t *last_out);

#endif
