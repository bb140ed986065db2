/* SPDX-License-Identifier: Apache-2.0 */
/*
 * regions.c - from an engine's tensor (shape, strides) to regions of pages.
 *
 * First every dimension is checked against the geometry, so that no size below
 * can overflow. Then, for each layer and plane, the dimensions of a page are
 * put into the order of the file, and those that lie in memory as they lie in
 * the file are joined: to the run of bytes, and with each other. What is left
 * are the repetitions of the region.
 */
#include <config.h>

#include "gpu/layout/layout.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/error.h"

#define MAX_PARTS 256 /* regions of one plane */

/* Sums of addresses and strides, before they are known to fit. */
__extension__ typedef __int128 wide;

/* The letters of struct ucm_tensor. */
static const char letters[] = "BLPNHDC";
enum { B, L, P, N, H, D, C, NUM_LETTERS };

struct dim {
	uint64_t num;   /* 1 where the tensor has not got the dimension */
	int64_t stride; /* in bytes; 0 where num is 1 */
};

struct view {
	const struct ucm_geometry *geometry;
	struct ucm_layer_size size; /* of the tensor's layers */
	const struct ucm_tensor *tensor;
	uint64_t num_pages;
	uint32_t kernel_blocks; /* of which a page is made */
	struct dim dims[NUM_LETTERS];
	bool has[NUM_LETTERS];
	struct ucm_error *error;
};

/* One plane of a page: its dimensions, outermost in the file first. */
struct plane {
	wide base;
	uint64_t run_bytes;
	unsigned num;
	struct dim axes[NUM_LETTERS];
};

/* "[2, 16, 8]"; cut off where len ends. */
static const char *numbers_text(const int64_t *numbers, size_t num, char *text,
				size_t len)
{
	size_t at = 0;

	snprintf(text, len, numbers && num ? "[" : "none");
	for (size_t i = 0; numbers && i < num; i++) {
		at = strlen(text);
		snprintf(text + at, len - at, "%s%" PRId64, i ? ", " : "",
			 numbers[i]);
	}
	at = strlen(text);
	if (numbers && num)
		snprintf(text + at, len - at, "]");
	return text;
}

__attribute__((format(printf, 2, 3))) static int
refuse(const struct view *view, const char *format, ...)
{
	const struct ucm_tensor *tensor = view->tensor;
	size_t num = tensor->dims ? strnlen(tensor->dims,
					    UCM_TENSOR_MAX_DIMS) : 0;
	char shape[192], strides[192], cause[192];
	va_list args;

	va_start(args, format);
	vsnprintf(cause, sizeof(cause), format, args);
	va_end(args);
	return ucm_error_set(
		view->error, -EINVAL,
		"tensor %s: shape %s strides %s dims %.*s: %s",
		tensor->name ? tensor->name : "without a name",
		numbers_text(tensor->shape, num, shape, sizeof(shape)),
		numbers_text(tensor->strides, num, strides, sizeof(strides)),
		num ? (int)num : 4, num ? tensor->dims : "none", cause);
}

/* ---- the shape, letter by letter ---- */

static int read_dim(struct view *view, size_t i)
{
	const struct ucm_tensor *tensor = view->tensor;
	const char *letter = strchr(letters, tensor->dims[i]);
	int64_t num = tensor->shape[i], stride, reach;
	struct dim *dim;

	if (!letter)
		return refuse(view, "no dimension is called %c",
			      tensor->dims[i]);
	dim = &view->dims[letter - letters];
	if (view->has[letter - letters])
		return refuse(view, "two dimensions %c", *letter);
	view->has[letter - letters] = true;
	if (num <= 0)
		return refuse(view, "dimension %c is empty", *letter);
	if (num == 1)
		return 0;
	if (!tensor->strides[i])
		return refuse(view, "dimension %c is expanded (stride 0)",
			      *letter);
	if (__builtin_mul_overflow(tensor->strides[i],
				   (int64_t)tensor->item_bytes, &stride) ||
	    __builtin_mul_overflow(stride, num, &reach))
		return refuse(view, "dimension %c exceeds 64 bits", *letter);
	*dim = (struct dim){ .num = (uint64_t)num, .stride = stride };
	return 0;
}

static int read_dims(struct view *view)
{
	const struct ucm_tensor *tensor = view->tensor;
	size_t num = tensor->dims ? strnlen(tensor->dims,
					    UCM_TENSOR_MAX_DIMS + 1) : 0;
	int err = 0;

	if (!num || num > UCM_TENSOR_MAX_DIMS)
		return refuse(view, "dims must be 1 to %d letters",
			      UCM_TENSOR_MAX_DIMS);
	if (!tensor->shape || !tensor->strides || !tensor->data)
		return refuse(view, "no shape, no strides or no data");
	if (!tensor->item_bytes)
		return refuse(view, "elements without bytes");
	for (size_t k = 0; k < NUM_LETTERS; k++)
		view->dims[k] = (struct dim){ .num = 1 };
	for (size_t i = 0; i < num && !err; i++)
		err = read_dim(view, i);
	return err;
}

/* K, also as a part. */
static bool holds_k(const struct view *view)
{
	return !view->size.v_bytes || view->has[P] || view->has[C] ||
	       view->tensor->plane != UCM_PLANE_V;
}

/* K and V are distinguished inside the tensor. */
static bool splits(const struct view *view)
{
	return view->size.v_bytes && (view->has[P] || view->has[C]);
}

/* Of C, or D. K's share of what both have; check_bytes() has seen that there is
 * one. */
static uint64_t k_elements(const struct view *view)
{
	uint64_t k = view->size.k_bytes, v = view->size.v_bytes;

	return (uint64_t)((wide)view->dims[C].num * k / (k + v));
}

/* Those of the tensor, which are of one size. */
static int check_layers(struct view *view, const struct ucm_layout *layout)
{
	uint32_t first = view->tensor->layer, all = view->geometry->num_layers;
	uint64_t num = view->dims[L].num;

	if (first >= all || num > all - first)
		return refuse(view, "layers %" PRIu32 " to %" PRIu64
			      ", the geometry has %" PRIu32,
			      first, first + num - 1, all);
	view->size = ucm_layout_size_of(layout, first);
	for (uint32_t i = 1; i < num; i++) {
		struct ucm_layer_size size =
			ucm_layout_size_of(layout, first + i);

		if (size.k_bytes != view->size.k_bytes ||
		    size.v_bytes != view->size.v_bytes)
			return refuse(view, "layers %" PRIu32 " and %" PRIu32
					    " have different sizes",
				      first, first + i);
	}
	return 0;
}

static int check_letters(const struct view *view)
{
	const struct ucm_geometry *g = view->geometry;

	if (!view->has[B])
		return refuse(view, "no dimension B");
	if (view->has[D] && view->has[C])
		return refuse(view, "both D and C");
	if (g->order == UCM_ORDER_OPAQUE)
		return 0;
	if (!view->has[N])
		return refuse(view, "no dimension N, and the order of the "
				    "geometry is not opaque");
	if (!view->has[H] && g->num_kv_heads > 1)
		return refuse(view, "no dimension H, and the order of the "
				    "geometry is not opaque");
	return 0;
}

static int check_planes(const struct view *view)
{
	const struct ucm_geometry *g = view->geometry;
	uint32_t plane = view->tensor->plane;

	if (view->has[P] && view->dims[P].num != 2)
		return refuse(view, "P must be 2");
	if (!view->size.v_bytes) {
		if (view->has[P] && g->order != UCM_ORDER_OPAQUE)
			return refuse(view, "P, but the geometry has no V "
					    "plane, nor an opaque order");
		if (plane == UCM_PLANE_V)
			return refuse(view, "the geometry has no V plane");
		return 0;
	}
	if (view->has[P] && view->has[C])
		return refuse(view, "both P and C");
	if (!splits(view) && plane != UCM_PLANE_K && plane != UCM_PLANE_V)
		return refuse(view, "neither P nor C, and plane is neither K "
				    "nor V");
	return 0;
}

static int check_pages(const struct view *view)
{
	uint64_t blocks;

	if (__builtin_mul_overflow(view->num_pages, view->kernel_blocks,
				   &blocks) ||
	    view->dims[B].num < blocks)
		return refuse(view, "%" PRIu64 " pages of %" PRIu32 " kernel "
				    "blocks are more than B",
			      view->num_pages, view->kernel_blocks);
	return 0;
}

static int check_extents(const struct view *view)
{
	const struct ucm_geometry *g = view->geometry;
	const struct dim *dims = view->dims;
	uint64_t heads = g->num_kv_heads, dim = g->head_dim, tokens;

	if (view->has[N] &&
	    (__builtin_mul_overflow(dims[N].num, view->kernel_blocks,
				    &tokens) ||
	     tokens != g->block_size))
		return refuse(view, "N x %" PRIu32 " is not the geometry's %"
			      PRIu32 " tokens",
			      view->kernel_blocks, g->block_size);
	if (view->has[H] && heads && dims[H].num != heads)
		return refuse(view, "H is not the geometry's %" PRIu64 " heads",
			      heads);
	if (view->has[D] && dim && dims[D].num != dim && holds_k(view))
		return refuse(view, "D is not the geometry's head_dim %" PRIu64,
			      dim);
	if (view->has[C] && dim && !view->size.v_bytes &&
	    dims[C].num != 2 * dim && dims[C].num != dim)
		return refuse(view, "C is neither the geometry's head_dim %"
			      PRIu64 " nor twice that", dim);
	return 0;
}

/* Of one plane, or of both where the tensor is split. */
static uint64_t layer_bytes(const struct view *view)
{
	static const uint8_t inside[] = { P, N, H, D, C };
	uint64_t bytes = view->tensor->item_bytes;
	bool fits = !__builtin_mul_overflow(bytes, view->kernel_blocks, &bytes);

	for (size_t i = 0; i < sizeof(inside) && fits; i++)
		fits = !__builtin_mul_overflow(
			bytes, view->dims[inside[i]].num, &bytes);
	return fits ? bytes : UINT64_MAX;
}

/* P has two equal halves; C is cut where K's elements end. */
static bool is_cut_right(const struct view *view)
{
	uint64_t k = view->size.k_bytes, v = view->size.v_bytes;
	uint64_t dim = view->geometry->head_dim, num = view->dims[C].num;

	if (view->has[P])
		return k == v;
	return !((wide)num * k % (k + v)) &&
	       (!dim || k_elements(view) == dim);
}

static int check_bytes(const struct view *view)
{
	uint32_t item = ucm_dtype_size(view->geometry->dtype);
	uint64_t k = view->size.k_bytes, v = view->size.v_bytes;
	uint64_t bytes = layer_bytes(view);
	bool both = splits(view);

	if (item && view->tensor->item_bytes != item)
		return refuse(view, "elements of %" PRIu32 " bytes, the "
				    "geometry's have %" PRIu32,
			      view->tensor->item_bytes, item);
	if (bytes != (both ? k + v : holds_k(view) ? k : v))
		return refuse(view, "%" PRIu64 " bytes to a %s, the layer has "
				    "K %" PRIu64 " and V %" PRIu64,
			      bytes, both ? "page" : "plane", k, v);
	if (both && !is_cut_right(view))
		return refuse(view, "%s cannot be cut into K of %" PRIu64
				    " and V of %" PRIu64 " bytes",
			      view->has[P] ? "P" : "C", k, v);
	return 0;
}

/* ---- the regions ---- */

static void flip(struct plane *plane, struct dim *axis)
{
	plane->base += (wide)axis->stride * (wide)(axis->num - 1);
	axis->stride = -axis->stride;
}

/* Into the order in memory: rising addresses, the largest stride outermost. */
static void sort_axes(struct plane *plane)
{
	for (unsigned i = 0; i < plane->num; i++) {
		struct dim axis = plane->axes[i];
		unsigned at = i;

		if (axis.stride < 0)
			flip(plane, &axis);
		for (; at && plane->axes[at - 1].stride < axis.stride; at--)
			plane->axes[at] = plane->axes[at - 1];
		plane->axes[at] = axis;
	}
}

/* Join what is contiguous: innermost axes with the run, then axes with those
 * inside of them. */
static void collapse(struct plane *plane)
{
	struct dim *axes = plane->axes;
	unsigned num = 0;

	while (plane->num && axes[plane->num - 1].stride ==
				     (wide)plane->run_bytes)
		plane->run_bytes *= axes[--plane->num].num;
	for (unsigned i = 0; i < plane->num; i++) {
		if (num && axes[num - 1].stride ==
				   (wide)axes[i].stride * (wide)axes[i].num) {
			axes[num - 1].num *= axes[i].num;
			axes[num - 1].stride = axes[i].stride;
		} else {
			axes[num++] = axes[i];
		}
	}
	plane->num = num;
}

static struct plane plane_of(const struct view *view, bool v)
{
	const struct dim *dims = view->dims;
	struct dim kernels = { view->kernel_blocks, dims[B].stride };
	struct dim content = dims[view->has[C] ? C : D], p = dims[P];
	struct plane plane = {
		.base = view->tensor->data,
		.run_bytes = view->tensor->item_bytes,
	};
	bool hnd = view->geometry->order == UCM_ORDER_HND;

	if (splits(view)) {
		uint64_t k = view->has[C] ? k_elements(view) : 0;

		if (v)
			plane.base += view->has[P] ? (wide)p.stride
				: (wide)content.stride * (wide)k;
		if (view->has[C])
			content.num = v ? content.num - k : k;
		p.num = 1;
	}
	const struct dim order[] = {
		p, hnd ? dims[H] : kernels, hnd ? kernels : dims[N],
		hnd ? dims[N] : dims[H], content,
	};
	for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
		if (order[i].num > 1)
			plane.axes[plane.num++] = order[i];
	}
	if (view->geometry->order == UCM_ORDER_OPAQUE)
		sort_axes(&plane);
	collapse(&plane);
	return plane;
}

static int add_region(const struct view *view, struct ucm_layout *layout,
		      const struct plane *plane, wide base,
		      struct ucm_region region)
{
	struct dim one = { .num = 1 };
	struct dim inner = plane->num > 0 ? plane->axes[plane->num - 1] : one;
	struct dim outer = plane->num > 1 ? plane->axes[plane->num - 2] : one;
	struct ucm_error cause;
	int err;

	if (base < 0 || base > UINT64_MAX)
		return refuse(view, "addresses exceed 64 bits");
	region.base = (uint64_t)base;
	region.page_stride = view->dims[B].stride * view->kernel_blocks;
	region.run_bytes = plane->run_bytes;
	region.n0 = (uint32_t)inner.num;
	region.s0 = inner.stride;
	region.n1 = (uint32_t)outer.num;
	region.s1 = outer.stride;
	err = ucm_layout_add_region(layout, &region, &cause);
	if (err == -EINVAL)
		return refuse(view, "%s", cause.text);
	return err ? ucm_error_set(view->error, err, "%s", cause.text) : 0;
}

/* A region has two repetitions; of three, the outermost one becomes as many
 * regions. Blocks of kernels need that where the heads lie outside of them. */
static int add_plane(const struct view *view, struct ucm_layout *layout,
		     uint32_t layer, bool v)
{
	struct plane plane = plane_of(view, v);
	struct dim parts = { .num = 1 };
	struct ucm_region region = {
		.layer = view->tensor->layer + layer,
	};
	uint64_t bytes = v ? view->size.v_bytes : view->size.k_bytes;
	int err = 0;

	if (plane.num == 3)
		parts = plane.axes[0];
	if (plane.num > 3 || parts.num > MAX_PARTS)
		return refuse(view, "%u repetitions of %" PRIu64
				    " bytes in a row are too many",
			      plane.num, plane.run_bytes);
	plane.base += (wide)view->dims[L].stride * layer;
	region.offset = region.layer * ucm_layout_layer_bytes(layout) +
			(v ? view->geometry->k_bytes : 0);
	for (uint64_t i = 0; i < parts.num && !err; i++) {
		err = add_region(view, layout, &plane,
				 plane.base + (wide)parts.stride * (wide)i,
				 region);
		region.offset += bytes / parts.num;
	}
	return err;
}

static int add_planes(const struct view *view, struct ucm_layout *layout)
{
	bool both = splits(view);
	bool v = !holds_k(view);
	int err = 0;

	for (uint32_t layer = 0; layer < view->dims[L].num && !err; layer++) {
		err = add_plane(view, layout, layer, both ? false : v);
		if (both && !err)
			err = add_plane(view, layout, layer, true);
	}
	return err;
}

int ucm_regions_of_tensor(struct ucm_layout *layout,
			  const struct ucm_tensor *tensor,
			  struct ucm_error *error)
{
	struct view view = {
		.geometry = &layout->geometry,
		.tensor = tensor,
		.num_pages = layout->num_pages,
		.kernel_blocks = tensor->kernel_blocks_per_page ?: 1,
		.error = error,
	};
	int err = read_dims(&view)
		?: check_layers(&view, layout)
		?: check_letters(&view)
		?: check_planes(&view)
		?: check_pages(&view)
		?: check_extents(&view)
		?: check_bytes(&view);

	return err ? err : add_planes(&view, layout);
}
