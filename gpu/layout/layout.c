/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout.c - the table of regions of a KV group: filled, checked, sealed.
 */
#include <config.h>

#include "gpu/layout/layout.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/error.h"
#include "common/sized.h"

#define MAX_PAGES (UINT64_C(1) << 32)
/* As in a block's header; sizes of a payload fit 64 bits. */
#define MAX_LAYERS (UINT32_C(1) << 20)

int ucm_layout_new(const struct ucm_geometry *geometry, uint64_t num_pages,
		   struct ucm_layout **out, struct ucm_error *error)
{
	struct ucm_layout *layout;

	if (!geometry->num_layers || geometry->num_layers > MAX_LAYERS ||
	    !geometry->k_bytes || geometry->order > UCM_ORDER_OPAQUE)
		return ucm_error_set(error, -EINVAL,
				     "no geometry of a block: %" PRIu32
				     " layers, K %" PRIu32
				     " bytes, order %" PRIu32,
				     geometry->num_layers, geometry->k_bytes,
				     geometry->order);
	if (!num_pages || num_pages > MAX_PAGES)
		return ucm_error_set(error, -EINVAL,
				     "%" PRIu64 " pages: between 1 and 2^32",
				     num_pages);
	layout = calloc(1, sizeof(*layout));
	if (!layout)
		return ucm_error_set(error, -ENOMEM, "out of memory");
	layout->geometry = *geometry;
	layout->num_pages = num_pages;
	*out = layout;
	return 0;
}

void ucm_layout_free(struct ucm_layout *layout)
{
	if (!layout)
		return;
	free(layout->layer_first);
	free(layout->regions);
	free(layout->sizes);
	free(layout);
}

/* So many bytes of a layer, from one inside of it on: are some padding? A
 * region may hold K and V where nothing is between them. */
static bool touches_padding(const struct ucm_layout *layout, uint32_t layer,
			    uint64_t inside, uint64_t bytes)
{
	struct ucm_layer_size size = ucm_layout_size_of(layout, layer);
	uint64_t k_end = layout->geometry.k_bytes;

	if (inside < k_end && size.k_bytes < k_end)
		return inside + bytes > size.k_bytes;
	return inside + bytes > k_end + size.v_bytes;
}

/* Inside one layer of the payload, with sizes that cannot overflow. */
static const char *fault_of(const struct ucm_layout *layout,
			    const struct ucm_region *region)
{
	uint64_t layer_bytes = ucm_layout_layer_bytes(layout), bytes, start;
	uint64_t first, last;

	if (!region->run_bytes || !region->n0 || !region->n1)
		return "a region without bytes";
	if (region->layer >= layout->geometry.num_layers)
		return "a layer that the geometry has not got";
	if (__builtin_mul_overflow(region->run_bytes, region->n0, &bytes) ||
	    __builtin_mul_overflow(bytes, region->n1, &bytes) ||
	    bytes > layer_bytes)
		return "more bytes than a layer";
	start = region->layer * layer_bytes;
	if (region->offset < start ||
	    region->offset - start > layer_bytes - bytes)
		return "bytes outside its layer";
	if (touches_padding(layout, region->layer, region->offset - start,
			    bytes))
		return "more bytes than this layer has";
	if (ucm_region_bounds(region, layout->num_pages, &first, &last))
		return "addresses exceed 64 bits";
	return NULL;
}

int ucm_layout_add_region(struct ucm_layout *layout,
			  const struct ucm_region *region,
			  struct ucm_error *error)
{
	const char *fault = fault_of(layout, region);

	if (layout->layer_first)
		return ucm_error_set(error, -EINVAL, "the layout is sealed");
	if (fault)
		return ucm_error_set(error, -EINVAL,
				     "region of layer %" PRIu32
				     ", offset %" PRIu64 ", %" PRIu32
				     " x %" PRIu32 " x %" PRIu64 " bytes: %s",
				     region->layer, region->offset, region->n1,
				     region->n0, region->run_bytes, fault);
	if (layout->num_regions == layout->room) {
		size_t room = layout->room ? 2 * layout->room : 64;
		struct ucm_region *more =
			reallocarray(layout->regions, room, sizeof(*more));

		if (!more)
			return ucm_error_set(error, -ENOMEM, "out of memory");
		layout->regions = more;
		layout->room = room;
	}
	layout->regions[layout->num_regions++] = *region;
	return 0;
}

int ucm_layout_add_tensor(struct ucm_layout *layout,
			  const struct ucm_tensor *tensor,
			  struct ucm_error *error)
{
	size_t before = layout->num_regions;
	struct ucm_tensor own;
	int err = ucm_sized_take(
		&own, sizeof(own), tensor,
		offsetof(struct ucm_tensor, kernel_blocks_per_page),
		"ucm_tensor", error)
		?: ucm_regions_of_tensor(layout, &own, error);

	if (err)
		layout->num_regions = before;
	return err;
}

static int by_offset(const void *left, const void *right)
{
	const struct ucm_region *a = left, *b = right;

	return (a->offset > b->offset) - (a->offset < b->offset);
}

static uint64_t region_bytes(const struct ucm_region *region)
{
	return region->run_bytes * region->n0 * region->n1;
}

static int check_cover(const struct ucm_layout *layout, struct ucm_error *error)
{
	uint64_t at = 0;

	for (size_t i = 0; i < layout->num_regions; i++) {
		const struct ucm_region *region = &layout->regions[i];

		at = ucm_layout_skip_padding(layout, at);
		if (region->offset != at)
			return ucm_error_set(
				error, -EINVAL,
				"layer %" PRIu32 ": bytes %" PRIu64
				" to %" PRIu64 " of the payload %s",
				region->layer,
				region->offset < at ? region->offset : at,
				region->offset < at ? at : region->offset,
				region->offset < at ? "have two places"
						    : "have no place");
		at += region_bytes(region);
	}
	at = ucm_layout_skip_padding(layout, at);
	if (at != ucm_block_payload_bytes(&layout->geometry))
		return ucm_error_set(
			error, -EINVAL,
			"bytes %" PRIu64 " to %" PRIu64
			" of the payload have no place",
			at, ucm_block_payload_bytes(&layout->geometry));
	return 0;
}

static int check_overlap(const struct ucm_layout *layout,
			 struct ucm_error *error)
{
	const struct ucm_region *r = layout->regions;
	size_t pair[2];

	if (!ucm_regions_any_overlap(r, layout->num_regions, layout->num_pages,
				     pair))
		return 0;
	return ucm_error_set(error, -EINVAL,
			     "pages overlap in memory: layer %" PRIu32
			     " at 0x%" PRIx64 " and layer %" PRIu32
			     " at 0x%" PRIx64,
			     r[pair[0]].layer, r[pair[0]].base,
			     r[pair[1]].layer, r[pair[1]].base);
}

/* Regions that follow each other in the payload and in every page. */
static bool joined(const struct ucm_region *a, const struct ucm_region *b)
{
	return a->n0 == 1 && a->n1 == 1 && b->n0 == 1 && b->n1 == 1 &&
	       a->page_stride == b->page_stride &&
	       a->offset + a->run_bytes == b->offset &&
	       a->base + a->run_bytes == b->base;
}

static uint64_t count_runs(const struct ucm_layout *layout)
{
	uint64_t runs = 0;

	for (size_t i = 0; i < layout->num_regions; i++) {
		const struct ucm_region *region = &layout->regions[i];

		if (!i || !joined(region - 1, region))
			runs += (uint64_t)region->n0 * region->n1;
	}
	return runs;
}

int ucm_layout_seal(struct ucm_layout *layout, struct ucm_error *error)
{
	uint32_t num_layers = layout->geometry.num_layers, layer = 0;
	uint32_t *first;
	int err;

	if (layout->layer_first)
		return ucm_error_set(error, -EINVAL, "the layout is sealed");
	if (layout->num_regions) /* qsort wants memory even for none */
		qsort(layout->regions, layout->num_regions,
		      sizeof(*layout->regions), by_offset);
	err = check_cover(layout, error)
		?: check_overlap(layout, error);
	if (err)
		return err;
	first = calloc(num_layers + 1, sizeof(*first));
	if (!first)
		return ucm_error_set(error, -ENOMEM, "out of memory");
	for (size_t i = 0; i < layout->num_regions; i++) {
		while (layer <= layout->regions[i].layer)
			first[layer++] = (uint32_t)i;
	}
	first[layer] = (uint32_t)layout->num_regions;
	layout->runs = count_runs(layout);
	layout->layer_first = first;
	return 0;
}

int ucm_layout_new_given(const struct ucm_geometry *geometry, uint64_t bytes,
			 struct ucm_layout **out, struct ucm_error *error)
{
	uint64_t payload = ucm_block_payload_bytes(geometry);
	struct ucm_layout *layout;
	int err = ucm_layout_new(geometry, 1, &layout, error);

	if (err)
		return err;
	for (uint64_t at = 0; at < payload && !err; at += bytes) {
		const struct ucm_region region = {
			.base = UCM_BLOCK_PAGE + at,
			.page_stride = (int64_t)payload,
			.run_bytes = bytes,
			.n0 = 1,
			.n1 = 1,
			.offset = at,
			.layer = (uint32_t)(at / (payload /
						  geometry->num_layers)),
		};

		err = ucm_layout_add_region(layout, &region, error);
	}
	if (!err)
		err = ucm_layout_seal(layout, error);
	if (err)
		ucm_layout_free(layout);
	else
		*out = layout;
	return err;
}

int ucm_layout_copy(const struct ucm_layout *layout, struct ucm_layout **out)
{
	size_t layers = (size_t)layout->geometry.num_layers + 1;
	size_t sizes = (layers - 1) * sizeof(*layout->sizes);
	struct ucm_layout *copy;

	if (!layout->layer_first)
		return -EINVAL;
	copy = malloc(sizeof(*copy));
	if (!copy)
		return -ENOMEM;
	*copy = *layout;
	copy->room = layout->num_regions;
	copy->regions = malloc(layout->num_regions * sizeof(*copy->regions));
	copy->layer_first = malloc(layers * sizeof(*copy->layer_first));
	copy->sizes = layout->sizes ? malloc(sizes) : NULL;
	if (!copy->regions || !copy->layer_first ||
	    (layout->sizes && !copy->sizes)) {
		ucm_layout_free(copy);
		return -ENOMEM;
	}
	if (layout->sizes)
		memcpy(copy->sizes, layout->sizes, sizes);
	memcpy(copy->regions, layout->regions,
	       layout->num_regions * sizeof(*copy->regions));
	memcpy(copy->layer_first, layout->layer_first,
	       layers * sizeof(*copy->layer_first));
	*out = copy;
	return 0;
}

size_t ucm_layout_num_regions(const struct ucm_layout *layout)
{
	return layout->num_regions;
}

const struct ucm_region *ucm_layout_regions(const struct ucm_layout *layout)
{
	return layout->regions;
}

uint64_t ucm_layout_runs(const struct ucm_layout *layout)
{
	return layout->runs;
}

int ucm_layout_set_direct(struct ucm_layout *layout, struct ucm_error *error)
{
	if (!layout->layer_first)
		return ucm_error_set(error, -EINVAL,
				     "the layout is not sealed");
	if (layout->sizes)
		return ucm_error_set(error, -EINVAL,
				     "layers of several sizes: what is between "
				     "them in files is in no page");
	if (layout->runs != 1)
		return ucm_error_set(
			error, -EINVAL,
			"a block is %" PRIu64
			" pieces of memory: reading into pages needs one",
			layout->runs);
	layout->direct = true;
	return 0;
}

void ucm_layout_bounds(const struct ucm_layout *layout, uint64_t *first_out,
		       uint64_t *last_out)
{
	*first_out = UINT64_MAX;
	*last_out = 0;
	for (size_t i = 0; i < layout->num_regions; i++) {
		uint64_t first, last;

		if (ucm_region_bounds(&layout->regions[i], layout->num_pages,
				      &first, &last))
			continue; /* none: they were checked when added */
		*first_out = first < *first_out ? first : *first_out;
		*last_out = last > *last_out ? last : *last_out;
	}
}
