/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout.h - what the loader knows of a layout beyond load.h.
 *
 * Pure. The regions of a sealed layout lie in the order of the payload and
 * tile it without a gap, so that the regions of a range of layers are a range
 * of the table.
 */
#ifndef UCM_LAYOUT_H
#define UCM_LAYOUT_H

#include <ucm/load.h>

struct ucm_layout {
	struct ucm_geometry geometry;
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

/* A tensor's regions, see ucm_layout_add_tensor() (regions.c). */
int ucm_regions_of_tensor(struct ucm_layout *layout,
			  const struct ucm_tensor *tensor,
			  struct ucm_error *error);

/* Do runs of these two regions share a byte, in any two pages below num_pages
 * (or, if a == b, in any two different places)? True as well where that is too
 * intricate to say, see overlap.c. */
bool ucm_regions_overlap(const struct ucm_region *a,
			 const struct ucm_region *b, uint64_t num_pages);

/* Do any of these? 1: pair_out says which two (or twice the same); 0: none;
 * -ENOMEM. */
int ucm_regions_any_overlap(const struct ucm_region *regions, size_t num,
			    uint64_t num_pages, size_t pair_out[2]);

/* The addresses of the first and the last byte in all pages. -EOVERFLOW: they
 * are not all between 0 and 2^64 - 1. */
int ucm_region_bounds(const struct ucm_region *region, uint64_t num_pages,
		      uint64_t *first_out, uint64_t *last_out);

#endif
