/* SPDX-License-Identifier: Apache-2.0 */
/*
 * padding.c - layers that are smaller than the geometry says.
 *
 * A block's header knows one size of K planes and one of V planes. Where layers
 * differ, these are the largest ones; a smaller plane begins where a full one
 * does, and zeros follow up to the next plane. So offsets, cuts and checksums
 * stay what they are for any reader of the format, and only two things know of
 * padding: a layout, which has no regions there, and whoever moves bytes, who
 * writes zeros and takes nothing else for them. A file of other sizes that has
 * the same geometry is thereby told from one of this layout.
 */
#include <config.h>

#include "gpu/layout/layout.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/error.h"

/* Of a plane of a layer: where its padding begins and ends in the layer. */
struct padding {
	uint64_t start, end;
};

static struct padding padding_of(const struct ucm_layout *layout,
				 uint32_t layer, unsigned v)
{
	struct ucm_layer_size size = ucm_layout_size_of(layout, layer);
	uint64_t k_end = layout->geometry.k_bytes;

	if (v)
		return (struct padding){ k_end + size.v_bytes,
					 ucm_layout_layer_bytes(layout) };
	return (struct padding){ size.k_bytes, k_end };
}

static int make_sizes(struct ucm_layout *layout)
{
	const struct ucm_geometry *g = &layout->geometry;

	if (layout->sizes)
		return 0;
	layout->sizes = calloc(g->num_layers, sizeof(*layout->sizes));
	if (!layout->sizes)
		return -ENOMEM;
	for (uint32_t layer = 0; layer < g->num_layers; layer++)
		layout->sizes[layer] =
			(struct ucm_layer_size){ g->k_bytes, g->v_bytes };
	return 0;
}

/* Heads and their dimension describe the K planes of all layers: who believes
 * them would take padding for elements. */
static const char *fault_of(const struct ucm_layout *layout, uint32_t layer,
			    uint32_t k_bytes, uint32_t v_bytes)
{
	const struct ucm_geometry *g = &layout->geometry;

	if (layout->layer_first)
		return "the layout is sealed";
	if (layout->num_regions)
		return "sizes must be set before tensors and regions";
	if (layer >= g->num_layers)
		return "the geometry has not got it";
	if (!k_bytes || k_bytes > g->k_bytes || v_bytes > g->v_bytes)
		return "not within the geometry's planes";
	if (k_bytes < g->k_bytes && g->num_kv_heads && g->head_dim)
		return "the geometry's heads are those of all layers: it must "
		       "not say heads or head_dim";
	return NULL;
}

int ucm_layout_set_layer_bytes(struct ucm_layout *layout, uint32_t layer,
			       uint32_t k_bytes, uint32_t v_bytes,
			       struct ucm_error *error)
{
	const char *fault = fault_of(layout, layer, k_bytes, v_bytes);

	if (fault)
		return ucm_error_set(error, -EINVAL,
				     "layer %" PRIu32 " of K %" PRIu32
				     " and V %" PRIu32 " bytes: %s",
				     layer, k_bytes, v_bytes, fault);
	if (make_sizes(layout))
		return ucm_error_set(error, -ENOMEM, "out of memory");
	layout->sizes[layer] = (struct ucm_layer_size){ k_bytes, v_bytes };
	return 0;
}

uint64_t ucm_layout_skip_padding(const struct ucm_layout *layout, uint64_t at)
{
	uint64_t layer_bytes = ucm_layout_layer_bytes(layout);
	uint64_t layer = at / layer_bytes, inside = at % layer_bytes;

	if (!layout->sizes || layer >= layout->geometry.num_layers)
		return at;
	for (unsigned v = 0; v < 2; v++) {
		struct padding padding =
			padding_of(layout, (uint32_t)layer, v);

		if (inside >= padding.start && inside < padding.end)
			inside = padding.end;
	}
	return layer * layer_bytes + inside;
}

void ucm_layout_clear_padding(const struct ucm_layout *layout, uint32_t first,
			      uint32_t end, uint8_t *bytes)
{
	if (!layout->sizes)
		return;
	for (uint32_t layer = first; layer < end; layer++) {
		for (unsigned v = 0; v < 2; v++) {
			struct padding padding = padding_of(layout, layer, v);

			memset(bytes + padding.start, 0,
			       padding.end - padding.start);
		}
		bytes += ucm_layout_layer_bytes(layout);
	}
}

static bool is_zero(const uint8_t *bytes, uint64_t len)
{
	return !len || (!*bytes && !memcmp(bytes, bytes + 1, len - 1));
}

bool ucm_layout_padding_is_zero(const struct ucm_layout *layout, uint32_t first,
				uint32_t end, const uint8_t *bytes,
				uint32_t *plane_out)
{
	if (!layout->sizes)
		return true;
	for (uint32_t layer = first; layer < end; layer++) {
		for (unsigned v = 0; v < 2; v++) {
			struct padding padding = padding_of(layout, layer, v);

			if (is_zero(bytes + padding.start,
				    padding.end - padding.start))
				continue;
			*plane_out = 2 * layer + v;
			return false;
		}
		bytes += ucm_layout_layer_bytes(layout);
	}
	return true;
}
