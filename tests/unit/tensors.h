/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensors.h - tensors of engines, element by element.
 *
 * The reference knows nothing of runs: it takes the elements of a page one
 * after the other in the order that the file is defined to have, and computes
 * the address of each from its indices. Layers may have fewer elements than the
 * tensor has room for; what their planes lack has the address 0.
 */
#ifndef UCM_TESTS_TENSORS_H
#define UCM_TESTS_TENSORS_H

#include <string.h>

#include <ucm/load.h>

#include "tests/unit/random.h"

#define MOST_LAYERS 3
#define LAYER_GAP (INT64_C(1) << 24) /* between tensors of a layer each */

static const char letters[] = "BLPNHDC";
enum { B, L, P, N, H, D, C, NUM_LETTERS };

/* A tensor by the order of its dimensions in memory, outermost first. */
struct form {
	const char *what;
	const char *dims;   /* its logical order */
	const char *memory; /* the same letters */
	uint32_t order;
	bool has_v;
	uint32_t kernel_blocks; /* to a page */
	char padded;            /* a dimension that is followed by a gap */
	uint32_t item;
	size_t runs; /* of a layer; 0: not told */
};

struct shape {
	struct ucm_geometry geometry;
	struct form form;
	int64_t num[NUM_LETTERS];    /* 1 if absent */
	int64_t stride[NUM_LETTERS]; /* in bytes; 0 if absent, but for L */
	int64_t shape[UCM_TENSOR_MAX_DIMS], strides[UCM_TENSOR_MAX_DIMS];
	/* Elements of D or C that are a layer's K, and its V. */
	int64_t k_num[MOST_LAYERS], v_num[MOST_LAYERS];
	bool uneven; /* they differ among the layers */
	uint64_t pages;
	uint64_t data, v_data; /* of tensors with V alone */
};

static inline bool has(const struct shape *s, int letter)
{
	return strchr(s->form.dims, letters[letter]);
}

static inline bool splits(const struct shape *s)
{
	return s->form.has_v && (has(s, P) || has(s, C));
}

static inline void lay_out(struct shape *s, int64_t gap)
{
	int64_t next = 1;

	for (size_t i = strlen(s->form.memory); i-- > 0;) {
		int k = (int)(strchr(letters, s->form.memory[i]) - letters);

		s->stride[k] = next * s->form.item;
		next *= s->num[k];
		if (s->form.memory[i] == s->form.padded)
			next += gap;
	}
	for (size_t i = 0; s->form.dims[i]; i++) {
		int k = (int)(strchr(letters, s->form.dims[i]) - letters);

		s->shape[i] = s->num[k];
		s->strides[i] = s->stride[k] / s->form.item;
	}
}

/* A plane of so many elements. */
static inline uint32_t bytes_of(const struct shape *s, int64_t num)
{
	int64_t bytes = s->form.item * s->form.kernel_blocks * num;

	for (int k = P; k < D; k++)
		bytes *= k == P && splits(s) ? 1 : s->num[k];
	return (uint32_t)bytes;
}

/* All layers have all. */
static inline void make_even(struct shape *s)
{
	bool c = has(s, C);
	int64_t half = c && splits(s) ? s->num[C] / 2 : c ? s->num[C] : s->num[D];

	for (int i = 0; i < MOST_LAYERS; i++) {
		s->k_num[i] = half;
		s->v_num[i] = s->form.has_v ? half : 0;
	}
}

/* The geometry's planes are as large as the largest. */
static inline void measure(struct shape *s)
{
	struct ucm_geometry *g = &s->geometry;

	g->k_bytes = g->v_bytes = 0;
	s->uneven = false;
	for (uint32_t i = 0; i < g->num_layers; i++) {
		uint32_t k = bytes_of(s, s->k_num[i]);
		uint32_t v = bytes_of(s, s->v_num[i]);

		g->k_bytes = k > g->k_bytes ? k : g->k_bytes;
		g->v_bytes = v > g->v_bytes ? v : g->v_bytes;
		s->uneven |= s->k_num[i] != s->k_num[0] ||
			     s->v_num[i] != s->v_num[0];
	}
	g->num_kv_heads = s->uneven ? 0 : (uint16_t)s->num[H];
	g->head_dim = s->uneven ? 0 : (uint16_t)s->k_num[0];
}

static inline struct shape shape_of(const struct form *form,
				    const int64_t sizes[NUM_LETTERS], uint64_t pages,
				    int64_t gap)
{
	struct shape s = { .form = *form, .pages = pages,
			   .data = UINT64_C(0x7f5500000001),
			   .v_data = UINT64_C(0x7f6600000003) };

	s.stride[L] = LAYER_GAP;
	for (int k = 0; k < NUM_LETTERS; k++)
		s.num[k] = has(&s, k) ? sizes[k] : 1;
	lay_out(&s, gap);
	s.geometry = (struct ucm_geometry){
		.num_layers = (uint32_t)sizes[L],
		.block_size = (uint32_t)(s.num[N] * form->kernel_blocks),
		.order = form->order,
	};
	make_even(&s);
	measure(&s);
	return s;
}

/* ---- the reference ---- */

struct places {
	uint64_t *at;
	size_t num;
};

/* The bytes of one element of plane v (no V plane: index p of P). */
static inline void put_element(const struct shape *s, struct places *places,
			       int64_t layer, int64_t block, int64_t p, int64_t n,
			       int64_t h, int64_t x, bool v)
{
	int64_t d = 0, c = 0;
	uint64_t at = s->data;

	if (has(s, C))
		c = splits(s) && v ? x + s->k_num[layer] : x;
	else
		d = x;
	if (s->form.has_v && !splits(s) && v)
		at = s->v_data;
	if (splits(s) && has(s, P))
		p = v;
	at += (uint64_t)(block * s->stride[B] + layer * s->stride[L] +
			 p * s->stride[P] + n * s->stride[N] +
			 h * s->stride[H] + d * s->stride[D] +
			 c * s->stride[C]);
	for (uint32_t k = 0; k < s->form.item; k++)
		places->at[places->num++] = at + k;
}

static inline int by_value(const void *left, const void *right)
{
	const uint64_t *a = left, *b = right;

	return (*a > *b) - (*a < *b);
}

static inline void put_cells(const struct shape *s, struct places *places,
			     int64_t layer, int64_t block, int64_t n, int64_t h,
			     bool v)
{
	int64_t contents = v ? s->v_num[layer] : s->k_num[layer];

	for (int64_t p = 0; p < (splits(s) ? 1 : s->num[P]); p++) {
		for (int64_t x = 0; x < contents; x++)
			put_element(s, places, layer, block, p, n, h, x, v);
	}
}

static inline void put_plane(const struct shape *s, struct places *places,
			     int64_t layer, uint64_t page, bool v)
{
	int64_t r = s->form.kernel_blocks, tokens = r * s->num[N];
	size_t end = places->num +
		     (v ? s->geometry.v_bytes : s->geometry.k_bytes);
	uint64_t *start = places->at + places->num;
	bool hnd = s->form.order == UCM_ORDER_HND;

	for (int64_t i = 0; i < s->num[H] * tokens; i++) {
		int64_t h = hnd ? i / tokens : i % s->num[H];
		int64_t n = hnd ? i % tokens : i / s->num[H];

		put_cells(s, places, layer, (int64_t)page * r + n / s->num[N],
			  n % s->num[N], h, v);
	}
	if (s->form.order == UCM_ORDER_OPAQUE)
		qsort(start, (size_t)(places->at + places->num - start),
		      sizeof(*start), by_value);
	while (places->num < end)
		places->at[places->num++] = 0;
}

/* Where the bytes of a page's block are, one by one. */
static inline struct places expected(const struct shape *s, uint64_t page)
{
	struct places places = {
		.at = calloc(s->geometry.num_layers,
			     ((size_t)s->geometry.k_bytes +
			      s->geometry.v_bytes) * sizeof(uint64_t)),
	};

	for (uint32_t l = 0; l < s->geometry.num_layers; l++) {
		put_plane(s, &places, l, page, false);
		if (s->form.has_v)
			put_plane(s, &places, l, page, true);
	}
	return places;
}

/* One layer's part of the tensor, or with UINT32_MAX all of it. */
static inline int add(struct ucm_layout *layout, const struct shape *s,
		      uint32_t layer, uint32_t plane, struct ucm_error *error)
{
	int64_t shape[UCM_TENSOR_MAX_DIMS], strides[UCM_TENSOR_MAX_DIMS];
	char dims[UCM_TENSOR_MAX_DIMS + 1] = "";
	bool whole = layer == UINT32_MAX;
	uint32_t l = whole ? 0 : layer;
	int64_t k = s->k_num[l], v = s->v_num[l];
	struct ucm_tensor tensor = {
		.size = sizeof(struct ucm_tensor),
		.name = "layers.0.attn",
		.data = plane == UCM_PLANE_V ? s->v_data : s->data,
		.dims = dims,
		.shape = shape,
		.strides = strides,
		.item_bytes = s->form.item,
		.layer = whole ? 0 : layer,
		.plane = plane,
		.kernel_blocks_per_page = s->form.kernel_blocks,
	};

	for (size_t i = 0, at = 0; s->form.dims[i]; i++) {
		if (!whole && s->form.dims[i] == 'L')
			continue;
		dims[at] = s->form.dims[i];
		shape[at] = s->form.dims[i] == 'C' ? splits(s) ? k + v : k
			    : s->form.dims[i] != 'D' ? s->shape[i]
			    : plane == UCM_PLANE_V   ? v
						     : k;
		strides[at++] = s->strides[i];
	}
	if (!whole)
		tensor.data += layer * (uint64_t)s->stride[L];
	return ucm_layout_add_tensor(layout, &tensor, error);
}

static inline int add_layer(struct ucm_layout *layout, const struct shape *s,
			    uint32_t layer, struct ucm_error *error)
{
	uint32_t plane = s->form.has_v ? UCM_PLANE_K : UCM_PLANE_BOTH;
	int err = add(layout, s, layer, plane, error);

	if (!err && s->v_num[layer == UINT32_MAX ? 0 : layer] && !splits(s))
		err = add(layout, s, layer, UCM_PLANE_V, error);
	return err;
}

static inline int set_sizes(struct ucm_layout *layout, const struct shape *s,
			    struct ucm_error *error)
{
	int err = 0;

	for (uint32_t l = 0; s->uneven && l < s->geometry.num_layers && !err;
	     l++)
		err = ucm_layout_set_layer_bytes(layout, l,
						 bytes_of(s, s->k_num[l]),
						 bytes_of(s, s->v_num[l]),
						 error);
	return err;
}

/* The tensor as a whole, or as views of each of its layers. */
static inline int add_all(struct ucm_layout *layout, const struct shape *s,
			  bool by_layer, struct ucm_error *error)
{
	int err = 0;

	if (has(s, L) && !by_layer && !s->uneven)
		return add_layer(layout, s, UINT32_MAX, error);
	for (uint32_t l = 0; l < s->geometry.num_layers && !err; l++)
		err = add_layer(layout, s, l, error);
	return err;
}

/* ---- random tensors ---- */

static const char *const random_dims[] = {
	"BNHD", "BNHC", "PBNHD", "BPNHD", "BND", "LBNHC", "LBPNHD", "LBNHD",
	"LBND", "BNC", "BN", "PBND",
};

static inline void shuffle(uint64_t *random, char *text)
{
	for (size_t i = strlen(text) - 1; i; i--) {
		size_t other = random_next(random) % (i + 1);
		char was = text[i];

		text[i] = text[other];
		text[other] = was;
	}
}

/* K and V of any width, of each layer by itself or of all alike. */
static inline void make_uneven(struct shape *s, uint64_t *random)
{
	bool alike = random_next(random) % 3 == 0;
	bool c = has(s, C), split = splits(s);

	if (!c && !has(s, D))
		return;
	for (uint32_t i = 0; i < s->geometry.num_layers; i++) {
		int64_t room = c ? s->num[C] : s->num[D];
		int64_t k = random_between(random, 1, split && c ? room - 1
								 : room);

		if (alike && i) {
			s->k_num[i] = s->k_num[0];
			s->v_num[i] = s->v_num[0];
			continue;
		}
		s->k_num[i] = k;
		if (split && has(s, P))
			s->v_num[i] = k;
		else if (s->form.has_v)
			s->v_num[i] = random_between(
				random, alike || split ? 1 : 0,
				split ? room - k : room);
	}
	measure(s);
}

/* scale: how many times as many elements a head may have. */
static inline struct shape random_shape(uint64_t *random, char *dims,
					char *memory, int64_t scale)
{
	struct form form = {
		.dims = dims,
		.memory = memory,
		.order = (uint32_t)random_between(random, 0, 2),
		.kernel_blocks = (uint32_t)random_between(random, 1, 3),
		.item = 1u << random_between(random, 0, 2),
	};
	uint64_t pages = (uint64_t)random_between(random, 1, 3);
	int64_t sizes[NUM_LETTERS] = { 0, 1, 2, 1, 1, 1, 2 };
	struct shape s;

	strcpy(dims, random_dims[random_next(random) % NUM_ROWS(random_dims)]);
	shuffle(random, dims);
	strcpy(memory, dims);
	shuffle(random, memory);
	form.padded = dims[random_next(random) % strlen(dims)];
	form.has_v = random_next(random) % 2 ||
		     (strchr(dims, 'P') && form.order != UCM_ORDER_OPAQUE);
	sizes[B] = (int64_t)pages * form.kernel_blocks +
		   random_between(random, 0, 2);
	sizes[L] = random_between(random, 1, 3);
	sizes[N] = random_between(random, 1, 4);
	sizes[H] = random_between(random, 1, 3);
	sizes[D] = random_between(random, 1, 4 * scale);
	sizes[C] = 2 * random_between(random, 1, 3 * scale);
	s = shape_of(&form, sizes, pages, random_between(random, 0, 5));
	if (random_next(random) % 2)
		make_uneven(&s, random);
	return s;
}

#endif
