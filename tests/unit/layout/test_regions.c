/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_regions.c - regions of tensors, against each element by itself
 * (tensors.h).
 */
#include <config.h>

#include "gpu/layout/layout.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/tensors.h"

/* ---- the regions ---- */

static bool page_is(const struct shape *s, const struct ucm_layout *layout,
		    uint64_t page)
{
	struct places want = expected(s, page);
	const struct ucm_region *r = ucm_layout_regions(layout);
	size_t end = ucm_layout_num_regions(layout), at = 0;
	bool same = true;

	for (const struct ucm_region *last = r + end; r < last; r++) {
		for (; at < want.num && !want.at[at]; at++)
			; /* no layer has it */
		same &= r->offset == at;
		for (uint64_t i = 0; i < (uint64_t)r->n1 * r->n0; i++) {
			uint64_t run = r->base +
				       page * (uint64_t)r->page_stride +
				       i / r->n0 * (uint64_t)r->s1 +
				       i % r->n0 * (uint64_t)r->s0;

			for (uint64_t k = 0; k < r->run_bytes; k++)
				same &= at < want.num &&
					want.at[at++] == run + k;
		}
	}
	for (; at < want.num && !want.at[at]; at++)
		;
	same &= at == want.num;
	free(want.at);
	return same;
}

static struct ucm_layout *new_layout(const struct shape *s)
{
	struct ucm_layout *layout;
	struct ucm_error error = { "" };

	ck_assert_msg(!ucm_layout_new(&s->geometry, s->pages, &layout, &error),
		      "%s", error.text);
	ck_assert_msg(!set_sizes(layout, s, &error), "%s", error.text);
	return layout;
}

static void check_form(const struct form *form, bool by_layer)
{
	/* B: a block more than the pages need, as engines have it */
	const int64_t sizes[] = { 3 * form->kernel_blocks + 1, 3, 2, 4, 2, 3,
				  6 };
	struct shape s = shape_of(form, sizes, 3, 5);
	struct ucm_layout *layout = new_layout(&s);
	struct ucm_error error = { "" };

	ck_assert_msg(!add_all(layout, &s, by_layer, &error), "%s: %s",
		      form->what, error.text);
	ck_assert_msg(!ucm_layout_seal(layout, &error), "%s: %s", form->what,
		      error.text);
	for (uint64_t page = 0; page < s.pages; page++)
		ck_assert_msg(page_is(&s, layout, page), "%s: page %d",
			      form->what, (int)page);
	ck_assert_msg(ucm_layout_runs(layout) == form->runs,
		      "%s: %d runs", form->what, (int)ucm_layout_runs(layout));
	ucm_layout_free(layout);
}

/*
 * Three pages of three layers; four tokens, two heads, three elements each;
 * runs: pieces of all three layers in a page.
 */
static const struct form forms[] = {
	/* FlashAttention until 2026-05: K and V in halves of the tensor */
	{ "P first", "PBNHD", "PBNHD", UCM_ORDER_NHD, true, 1, 0, 2, 6 },
	{ "P first, heads outside", "PBNHD", "PBHND", UCM_ORDER_HND, true, 1, 0,
	  2, 6 },
	{ "P first, file by tokens, memory by heads", "PBNHD", "PBHND",
	  UCM_ORDER_NHD, true, 1, 0, 2, 48 },
	/* FlashInfer, Triton; all since 2026-05 */
	{ "blocks first", "BPNHD", "BPNHD", UCM_ORDER_NHD, true, 1, 0, 2, 3 },
	{ "blocks first, heads outside", "BPNHD", "BPHND", UCM_ORDER_HND, true,
	  1, 0, 2, 3 },
	{ "blocks first, padded pages", "BPNHD", "BPNHD", UCM_ORDER_NHD, true,
	  1, 'P', 2, 3 },
	{ "blocks first, padded planes", "BPNHD", "BPNHD", UCM_ORDER_NHD, true,
	  1, 'N', 2, 6 },
	/* tensors for K and for V */
	{ "K and V apart", "BNHD", "BNHD", UCM_ORDER_NHD, true, 1, 0, 2, 6 },
	{ "K and V apart, by heads", "BNHD", "BHND", UCM_ORDER_HND, true, 1, 0,
	  2, 6 },
	{ "K and V apart, one byte each", "BHND", "BNHD", UCM_ORDER_NHD, true,
	  1, 0, 1, 6 },
	/* since 2026-07: K and V packed in a cell */
	{ "packed by tokens", "BHNC", "BNHC", UCM_ORDER_NHD, true, 1, 0, 2,
	  48 },
	{ "packed by heads", "BHNC", "BHNC", UCM_ORDER_HND, true, 1, 0, 2, 48 },
	{ "packed by heads, file by tokens", "BHNC", "BHNC", UCM_ORDER_NHD,
	  true, 1, 0, 2, 48 },
	{ "packed, opaque", "BHNC", "BNHC", UCM_ORDER_OPAQUE, true, 1, 0, 2,
	  48 },
	{ "packed, one plane", "BHNC", "BNHC", UCM_ORDER_NHD, false, 1, 0, 2,
	  3 },
	{ "packed, one plane, by heads", "BHNC", "BHNC", UCM_ORDER_HND, false,
	  1, 0, 2, 3 },
	{ "packed, one plane, padded pages", "BHNC", "BHNC", UCM_ORDER_HND,
	  false, 1, 'H', 2, 3 },
	{ "packed with scales inline", "BHNC", "BHNC", UCM_ORDER_OPAQUE, false,
	  1, 0, 1, 3 },
	/* MLA and its kin */
	{ "MLA", "BND", "BND", UCM_ORDER_NHD, false, 1, 0, 2, 3 },
	{ "MLA, four dimensions", "BHND", "BHND", UCM_ORDER_HND, false, 1, 0, 2,
	  3 },
	{ "MLA, padded pages", "BND", "BND", UCM_ORDER_NHD, false, 1, 'N', 2,
	  3 },
	{ "MLA, padded tokens", "BND", "BND", UCM_ORDER_OPAQUE, false, 1, 'D',
	  2, 12 },
	{ "656 bytes a token", "BN", "BN", UCM_ORDER_OPAQUE, false, 1, 0, 656,
	  3 },
	{ "pages of bytes", "BD", "BD", UCM_ORDER_OPAQUE, false, 1, 'D', 1, 3 },
	{ "P in one plane", "BPNHD", "PBNHD", UCM_ORDER_OPAQUE, false, 1, 0, 2,
	  6 },
	/* one allocation for all layers */
	{ "layers, packed by tokens", "LBHNC", "BLNHC", UCM_ORDER_NHD, true, 1,
	  0, 2, 48 },
	{ "layers, planes in halves", "LPBNHD", "BLPNHD", UCM_ORDER_NHD, true,
	  1, 0, 2, 1 },
	{ "LBHNC", "LBHNC", "LBHNC", UCM_ORDER_HND, true, 1, 0, 2, 48 },
	{ "LBNHC", "LBHNC", "LBNHC", UCM_ORDER_NHD, true, 1, 0, 2, 48 },
	{ "LHBNC", "LBHNC", "LHBNC", UCM_ORDER_HND, true, 1, 0, 2, 48 },
	{ "BLHNC", "LBHNC", "BLHNC", UCM_ORDER_HND, true, 1, 0, 2, 48 },
	{ "BLNHC", "LBHNC", "BLNHC", UCM_ORDER_NHD, true, 1, 0, 2, 48 },
	{ "BHLNC", "LBHNC", "BHLNC", UCM_ORDER_HND, true, 1, 0, 2, 48 },
	{ "LBHNC, one plane", "LBHNC", "LBHNC", UCM_ORDER_OPAQUE, false, 1, 0,
	  2, 3 },
	{ "LBNHC, one plane", "LBHNC", "LBNHC", UCM_ORDER_OPAQUE, false, 1, 0,
	  2, 3 },
	{ "LHBNC, one plane", "LBHNC", "LHBNC", UCM_ORDER_OPAQUE, false, 1, 0,
	  2, 6 },
	{ "BLHNC, one plane", "LBHNC", "BLHNC", UCM_ORDER_OPAQUE, false, 1, 0,
	  2, 1 },
	{ "BLNHC, one plane", "LBHNC", "BLNHC", UCM_ORDER_OPAQUE, false, 1, 0,
	  2, 1 },
	{ "BHLNC, one plane", "LBHNC", "BHLNC", UCM_ORDER_OPAQUE, false, 1, 0,
	  2, 6 },
	{ "LHBNC, padded heads", "LBHNC", "LHBNC", UCM_ORDER_HND, true, 1, 'B',
	  2, 48 },
	{ "BLHNC, padded blocks", "LBHNC", "BLHNC", UCM_ORDER_HND, true, 1, 'L',
	  2, 48 },
	/* blocks of the kernels smaller than pages */
	{ "three blocks", "BPNHD", "BPNHD", UCM_ORDER_NHD, true, 3, 0, 2, 18 },
	{ "three blocks, P first", "PBNHD", "PBNHD", UCM_ORDER_NHD, true, 3, 0,
	  2, 6 },
	{ "three blocks, P first, by heads", "PBNHD", "PBHND", UCM_ORDER_HND,
	  true, 3, 0, 2, 36 },
	{ "three blocks, packed by tokens", "BHNC", "BNHC", UCM_ORDER_NHD, true,
	  3, 0, 2, 144 },
	{ "three blocks, packed, padded", "BHNC", "BNHC", UCM_ORDER_NHD, true,
	  3, 'H', 2, 144 },
	{ "three blocks, one plane, by heads", "BHNC", "BHNC", UCM_ORDER_HND,
	  false, 3, 0, 2, 18 },
	{ "three blocks, packed, opaque", "BHNC", "BHNC", UCM_ORDER_OPAQUE,
	  true, 3, 0, 2, 144 },
	{ "three blocks, packed by heads", "BHNC", "BHNC", UCM_ORDER_HND, true,
	  3, 0, 2, 144 },
	{ "three blocks, packed by heads, file by tokens", "BHNC", "BHNC",
	  UCM_ORDER_NHD, true, 3, 0, 2, 144 },
	{ "three blocks, LHBNC", "LBHNC", "LHBNC", UCM_ORDER_HND, true, 3, 0, 2,
	  144 },
	{ "three blocks, BHLNC", "LBHNC", "BHLNC", UCM_ORDER_HND, true, 3, 0, 2,
	  144 },
	{ "three blocks, MLA", "BND", "BND", UCM_ORDER_NHD, false, 3, 0, 2, 3 },
	{ "three blocks of 656 bytes a token, padded", "BN", "BN",
	  UCM_ORDER_OPAQUE, false, 3, 'N', 656, 9 },
	{ "three blocks, LHBNC, opaque", "LBHNC", "LHBNC", UCM_ORDER_OPAQUE,
	  true, 3, 0, 2, 144 },
};

UNIT_FIXTURE(.timeout = 120);

UNIT_TEST(every_form_of_the_engines, .rows = NUM_ROWS(forms))
{
	check_form(&forms[_i], false);
	check_form(&forms[_i], true);
}

/* ---- random tensors ---- */

/*
 * Could these bytes be a run with three repetitions? A run is as long as the
 * bytes go on; then each repetition as far as the distance stays the same.
 */
static bool is_regular(const uint64_t *at, size_t num)
{
	uint64_t stride[4] = { 1 };
	size_t size[5] = { 1 }; /* bytes inside of each repetition */

	for (int k = 0; k < 4; k++) {
		size[k + 1] = size[k];
		if (size[k] == num)
			continue;
		if (k)
			stride[k] = at[size[k]] - at[0];
		while (size[k + 1] < num &&
		       at[size[k + 1]] ==
			       at[0] + size[k + 1] / size[k] * stride[k])
			size[k + 1] += size[k];
	}
	for (size_t i = 0; i < num; i++) {
		uint64_t want = at[0];

		for (int k = 0; k < 4; k++)
			want += i % size[k + 1] / size[k] * stride[k];
		if (at[i] != want)
			return false;
	}
	return size[4] == num;
}

static bool is_expressible(const struct shape *s)
{
	struct places all = expected(s, 0);
	const uint64_t *at = all.at;
	bool regular = true;

	for (uint32_t l = 0; l < s->geometry.num_layers; l++) {
		regular &= is_regular(at, bytes_of(s, s->k_num[l]));
		at += s->geometry.k_bytes;
		if (s->v_num[l])
			regular &= is_regular(at, bytes_of(s, s->v_num[l]));
		at += s->geometry.v_bytes;
	}
	free(all.at);
	return regular;
}

static void try_random(unsigned number, unsigned outcomes[2])
{
	uint64_t random = random_case(number);
	char dims[UCM_TENSOR_MAX_DIMS + 1], memory[UCM_TENSOR_MAX_DIMS + 1];
	struct shape s = random_shape(&random, dims, memory, 1);
	struct ucm_layout *layout = new_layout(&s);
	struct ucm_error error = { "" };
	int err = add_all(layout, &s, random_next(&random) % 2, &error);

	must_in_case(!err == is_expressible(&s), number,
		     err ? error.text : memory);
	outcomes[!err]++;
	if (err) {
		must_in_case(strstr(error.text, "4 repetitions"), number,
			     error.text);
		goto done;
	}
	must_in_case(!ucm_layout_seal(layout, &error), number, error.text);
	for (uint64_t page = 0; page < s.pages; page++)
		must_in_case(page_is(&s, layout, page), number, memory);
done:
	ucm_layout_free(layout);
}

UNIT_TEST(random_tensors_are_right_or_cannot_be_expressed)
{
	unsigned outcomes[2] = { 0 };

	for (unsigned i = 0; i < 20000; i++)
		try_random(i, outcomes);
	printf("# %u right, %u refused\n", outcomes[1], outcomes[0]);
	ck_assert_uint_gt(outcomes[0], 50);
	ck_assert_uint_gt(outcomes[1], 10000);
}

/* ---- what is refused ---- */

/* Four pages, two layers, eight tokens, two heads, four elements of 16 bits. */
static const struct ucm_geometry plain = {
	.num_layers = 2,
	.block_size = 8,
	.dtype = UCM_DTYPE_FLOAT16,
	.k_bytes = 128,
	.v_bytes = 128,
	.num_kv_heads = 2,
	.head_dim = 4,
	.order = UCM_ORDER_NHD,
};

struct refusal {
	const char *dims;
	int64_t shape[9], strides[9];
	const char *want;
	uint32_t kernel_blocks, item, layer, plane;
	uint32_t order;
	bool no_v, untold; /* the geometry: without V; without heads, dim */
	uint32_t tokens;   /* other than eight, of four elements */
};

#define BIG (INT64_C(1) << 62)

static const struct refusal refusals[] = {
	{ NULL, { 4 }, { 1 },
	  .want = "dims none: dims must be 1 to 8 letters" },
	{ "", { 4 }, { 1 }, .want = "dims must be" },
	{ "BNHDBNHDB", { 4 }, { 1 }, .want = "dims must be" },
	{ "BNHX", { 4, 8, 2, 4 }, { 64, 8, 4, 1 }, .want = "called X" },
	{ "BNHDN", { 4, 8, 2, 4, 1 }, { 64, 8, 4, 1, 1 },
	  .want = "two dimensions N" },
	{ "NHD", { 8, 2, 4 }, { 8, 4, 1 }, .want = "no dimension B" },
	{ "BHD", { 4, 2, 4 }, { 8, 4, 1 }, .want = "no dimension N" },
	{ "BND", { 4, 8, 8 }, { 64, 8, 1 }, .want = "no dimension H" },
	{ "BNHDC", { 4, 8, 2, 4, 1 }, { 64, 8, 4, 1, 1 },
	  .want = "both D and C" },
	{ "BPNHC", { 4, 2, 8, 2, 8 }, { 256, 128, 16, 8, 1 },
	  .want = "both P and C" },
	{ "BPNHD", { 4, 2, 8, 2, 4 }, { 128, 64, 8, 4, 1 },
	  .want = "opaque order", .no_v = true },
	{ "BPNHD", { 4, 3, 8, 2, 4 }, { 192, 64, 8, 4, 1 },
	  .want = "P must be 2" },
	{ "BNHC", { 4, 8, 2, 7 }, { 112, 14, 7, 1 }, 
	  .want = "224 bytes to a page, the layer has K 128 and V 128" },
	{ "BNHD", { 4, 8, 2, 4 }, { 64, 8, 4, 1 },
	  .want = "neither K nor V", .plane = UCM_PLANE_BOTH },
	{ "BNHD", { 4, 8, 2, 4 }, { 64, 8, 4, 1 },
	  .want = "neither K nor V", .plane = 3 },
	{ "BNHD", { 4, 8, 2, 4 }, { 64, 8, 4, 1 },
	  .want = "no V plane", .plane = UCM_PLANE_V, .no_v = true },
	/* sizes */
	{ "BNHD", { 3, 8, 2, 4 }, { 64, 8, 4, 1 },
	  .want = "4 pages of 1 kernel blocks are more than B" },
	{ "BNHD", { 7, 4, 2, 4 }, { 32, 8, 4, 1 },
	  .want = "4 pages of 2 kernel blocks are more than B",
	  .kernel_blocks = 2 },
	{ "BNHD", { 4, 16, 2, 4 }, { 128, 8, 4, 1 },
	  .want = "N x 1 is not the geometry's 8 tokens" },
	{ "BNHD", { 8, 8, 2, 4 }, { 64, 8, 4, 1 },
	  .want = "N x 2 is not the geometry's 8 tokens", .kernel_blocks = 2 },
	{ "BNHD", { 4, 8, 4, 2 }, { 64, 8, 2, 1 }, .want = "H is not" },
	{ "BNHD", { 4, 8, 2, 8 }, { 128, 16, 8, 1 }, .want = "D is not" },
	{ "BNHC", { 4, 8, 2, 4 }, { 64, 8, 4, 1 },
	  .want = "128 bytes to a page, the layer has" },
	{ "BNHC", { 4, 8, 2, 6 }, { 96, 12, 6, 1 },
	  .want = "C is neither", .no_v = true },
	{ "BNHD", { 4, 8, 2, 4 }, { 64, 8, 4, 1 },
	  .want = "elements of 4 bytes, the geometry's have 2", .item = 4 },
	{ "BNHD", { 4, 8, 2, 4 }, { 64, 8, 4, 1 },
	  .want = "elements without bytes", .item = UINT32_MAX },
	{ "BD", { 4, 4 }, { 4, 1 },
	  .want = "8 bytes to a plane, the layer has K 128 and V 128",
	  .order = UCM_ORDER_OPAQUE },
	{ "BNHD", { 4, 8, 2, 4 }, { 64, 8, 4, 1 },
	  .want = "layers 2 to 2, the geometry has 2", .layer = 2 },
	{ "LBNHD", { 2, 4, 8, 2, 4 }, { 256, 64, 8, 4, 1 },
	  .want = "layers 1 to 2, the geometry has 2", .layer = 1 },
	{ "BNHD", { 4, 8, 2, 4 }, { 64, 8, 4, 1 },
	  .want = "the geometry has 2", .layer = UINT32_MAX },
	/* numbers that no tensor has */
	{ "BNHD", { 4, 8, 0, 4 }, { 64, 8, 4, 1 },
	  .want = "dimension H is empty" },
	{ "BNHD", { -4, 8, 2, 4 }, { 64, 8, 4, 1 },
	  .want = "dimension B is empty" },
	{ "BNHD", { 4, 8, 2, 4 }, { 64, 4, 0, 1 },
	  .want = "dimension H is expanded (stride 0)" },
	{ "BNHD", { 4, 8, 2, 4 }, { 0, 8, 4, 1 },
	  .want = "dimension B is expanded (stride 0)" },
	{ "BNHD", { 4, 8, 2, 4 }, { BIG, 8, 4, 1 },
	  .want = "dimension B exceeds 64 bits" },
	{ "BNHD", { 4, 8, 2, 4 }, { 64, BIG / 8, 4, 1 },
	  .want = "dimension N exceeds 64 bits" },
	{ "BNHD", { 4, 8, 2, 4 }, { 64, 8, INT64_MIN / 2, 1 },
	  .want = "dimension H exceeds 64 bits" },
	{ "BNHD", { 4, 8, BIG, 4 }, { 64, 8, 1, 1 },
	  .want = "dimension H exceeds 64 bits" },
	{ "BNHD", { 4, 8, 2, 4 }, { -1024, 8, 4, 1 },
	  .want = "addresses exceed 64 bits" },
	{ "LBNHD", { 2, 4, 8, 2, 4 }, { -BIG / 2, 64, 8, 4, 1 },
	  .want = "addresses exceed 64 bits" },
	{ "BD", { 4, BIG / 4 }, { 1, 1 },
	  .want = "2305843009213693952 bytes to a plane",
	  .order = UCM_ORDER_OPAQUE, .untold = true },
	{ "BHD", { 4, BIG / 4, 64 }, { 1, 1, 1 },
	  .want = "18446744073709551615 bytes to a plane",
	  .order = UCM_ORDER_OPAQUE, .untold = true },
	/* more than three repetitions, or too many of the third */
	{ "BNHD", { 8, 4, 2, 4 }, { 999, 100, 40, 3 }, .kernel_blocks = 2,
	  .want = "tensor layers.0.attn: shape [8, 4, 2, 4] strides "
		  "[999, 100, 40, 3] dims BNHD: 4 repetitions of 2 bytes" },
	{ "BNHD", { 4, 257, 2, 2 }, { 9999, 32, 8, 2 }, .untold = true,
	  .tokens = 257, .want = "3 repetitions of 2 bytes in a row" },
};

static struct ucm_tensor tensor_of(const struct refusal *row)
{
	return (struct ucm_tensor){
		.size = sizeof(struct ucm_tensor),
		.name = "layers.0.attn",
		.data = 4096,
		.dims = row->dims,
		.shape = row->shape,
		.strides = row->strides,
		.item_bytes = row->item == UINT32_MAX ? 0
			      : row->item	      ? row->item
						      : 2,
		.layer = row->layer,
		.plane = row->plane,
		.kernel_blocks_per_page = row->kernel_blocks,
	};
}

static void check_refusal(const struct ucm_geometry *geometry,
			  const struct ucm_tensor *tensor, const char *want)
{
	struct ucm_layout *layout;
	struct ucm_error error = { "" };

	ck_assert_int_eq(ucm_layout_new(geometry, 4, &layout, &error), 0);
	ck_assert_int_eq(ucm_layout_add_tensor(layout, tensor, &error),
			 -EINVAL);
	ck_assert_msg(strstr(error.text, want), "%s (want %s)", error.text,
		      want);
	ck_assert_ptr_eq(strstr(error.text, "tensor layers.0.attn: shape "),
			 error.text);
	ck_assert_uint_eq(ucm_layout_num_regions(layout), 0);
	ck_assert_int_eq(ucm_layout_add_tensor(layout, tensor, NULL), -EINVAL);
	ucm_layout_free(layout);
}

UNIT_TEST(refused_with_its_name_shape_and_cause, .rows = NUM_ROWS(refusals))
{
	const struct refusal *row = &refusals[_i];
	struct ucm_tensor tensor = tensor_of(row);
	struct ucm_geometry geometry = plain;

	geometry.order = row->order;
	if (row->no_v)
		geometry.v_bytes = 0;
	if (row->tokens) {
		geometry.block_size = row->tokens;
		geometry.k_bytes = geometry.v_bytes = 8 * row->tokens;
	}
	if (row->untold)
		geometry.num_kv_heads = geometry.head_dim = 0;
	check_refusal(&geometry, &tensor, row->want);
}

UNIT_TEST(pointers_that_are_null_are_refused)
{
	struct ucm_tensor good = tensor_of(&refusals[NUM_ROWS(refusals) - 1]);
	struct ucm_tensor bad = good;

	bad.shape = NULL;
	check_refusal(&plain, &bad, "shape none strides [999");
	bad = good;
	bad.strides = NULL;
	check_refusal(&plain, &bad, "strides none");
	bad = good;
	bad.data = 0;
	check_refusal(&plain, &bad, "no data");
}

/* Strides of dimensions of one element mean nothing, and engines put anything
 * there. */
UNIT_TEST(strides_of_single_elements_are_ignored)
{
	const int64_t shape[] = { 1, 1, 8, 1, 16 };
	const int64_t strides[] = { 0, INT64_MAX, 16, INT64_MIN, 1 };
	struct ucm_tensor tensor = {
		.size = sizeof(struct ucm_tensor),
		.data = 4096,
		.dims = "BLNHD",
		.shape = shape,
		.strides = strides,
		.item_bytes = 1,
		.plane = UCM_PLANE_BOTH,
	};
	struct ucm_geometry geometry = {
		.num_layers = 1,
		.block_size = 8,
		.k_bytes = 128,
	};
	struct ucm_layout *layout;

	ck_assert_int_eq(ucm_layout_new(&geometry, 1, &layout, NULL), 0);
	ck_assert_int_eq(ucm_layout_add_tensor(layout, &tensor, NULL), 0);
	ck_assert_int_eq(ucm_layout_seal(layout, NULL), 0);
	ck_assert_uint_eq(ucm_layout_regions(layout)->run_bytes, 128);
	ucm_layout_free(layout);
}

/* Backwards in memory: the file has tokens in their order, or, if opaque, the
 * memory's. */
UNIT_TEST(negative_strides_are_followed, .rows = 2)
{
	const int64_t shape[] = { 2, 4, 8 }, strides[] = { 32, -8, 1 };
	struct ucm_tensor tensor = {
		.size = sizeof(struct ucm_tensor),
		.data = 4096 + 24,
		.dims = "BND",
		.shape = shape,
		.strides = strides,
		.item_bytes = 1,
	};
	struct ucm_geometry geometry = {
		.num_layers = 1,
		.block_size = 4,
		.k_bytes = 32,
		.order = _i ? UCM_ORDER_OPAQUE : UCM_ORDER_NHD,
	};
	const struct ucm_region *region;
	struct ucm_layout *layout;

	ck_assert_int_eq(ucm_layout_new(&geometry, 2, &layout, NULL), 0);
	ck_assert_int_eq(ucm_layout_add_tensor(layout, &tensor, NULL), 0);
	ck_assert_int_eq(ucm_layout_seal(layout, NULL), 0);
	region = ucm_layout_regions(layout);
	ck_assert_uint_eq(region->base, _i ? 4096 : 4096 + 24);
	ck_assert_uint_eq(region->run_bytes, _i ? 32 : 8);
	ck_assert_uint_eq(region->n0, _i ? 1 : 4);
	ck_assert_int_eq(region->s0, _i ? 0 : -8);
	ucm_layout_free(layout);
}
