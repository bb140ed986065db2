/* SPDX-License-Identifier: Apache-2.0 */
/* test_layout.c - regions make a layout, or are refused with the cause. */
#include <config.h>

#include "gpu/layout/layout.h"

#include <errno.h>
#include <string.h>

#include "tests/unit/unit.h"

#define PAGES 10
#define K 64
#define V 32
#define LAYER (K + V)

static const struct ucm_geometry geometry = {
	.num_layers = 3,
	.block_size = 4,
	.k_bytes = K,
	.v_bytes = V,
	.order = UCM_ORDER_OPAQUE,
};

/* A plane as one run of each page; layers 64 KiB apart, V at 4096 in each. */
static struct ucm_region plane_of(uint32_t layer, bool v)
{
	return (struct ucm_region){
		.base = 65536 * (layer + UINT64_C(1)) + (v ? 4096 : 0),
		.page_stride = v ? V : K,
		.run_bytes = v ? V : K,
		.n0 = 1,
		.n1 = 1,
		.offset = layer * LAYER + (v ? K : 0),
		.layer = layer,
	};
}

static struct ucm_layout *new_layout(void)
{
	struct ucm_layout *layout;

	ck_assert_int_eq(ucm_layout_new(&geometry, PAGES, &layout, NULL), 0);
	return layout;
}

static void add(struct ucm_layout *layout, struct ucm_region region)
{
	struct ucm_error error = { "" };

	ck_assert_msg(!ucm_layout_add_region(layout, &region, &error), "%s",
		      error.text);
}

static void add_layers(struct ucm_layout *layout, uint32_t from, uint32_t to)
{
	for (; from < to; from++) {
		add(layout, plane_of(from, true));
		add(layout, plane_of(from, false));
	}
}

static void seal_says(struct ucm_layout *layout, const char *want)
{
	struct ucm_error error = { "" };

	ck_assert_int_eq(ucm_layout_seal(layout, &error), *want ? -EINVAL : 0);
	ck_assert_str_eq(error.text, want);
}

UNIT_TEST(a_sealed_layout_is_in_the_order_of_the_payload)
{
	struct ucm_layout *layout = new_layout();
	const struct ucm_region *regions;

	add_layers(layout, 2, 3);
	add_layers(layout, 0, 2);
	seal_says(layout, "");
	ck_assert_uint_eq(ucm_layout_num_regions(layout), 6);
	regions = ucm_layout_regions(layout);
	for (uint32_t i = 0; i < 6; i++) {
		struct ucm_region want = plane_of(i / 2, i % 2);

		ck_assert_mem_eq(&regions[i], &want, sizeof(want));
	}
	for (uint32_t layer = 0; layer <= 3; layer++)
		ck_assert_uint_eq(layout->layer_first[layer], 2 * layer);
	ck_assert_uint_eq(ucm_layout_runs(layout), 6);
	ucm_layout_free(layout);
}

UNIT_TEST(more_regions_than_the_first_table_holds)
{
	struct ucm_layout *layout = new_layout();

	for (uint32_t i = 0; i < 3 * LAYER; i++)
		add(layout, (struct ucm_region){
				.base = 4096 * (i + UINT64_C(1)),
				.page_stride = 1,
				.run_bytes = 1,
				.n0 = 1,
				.n1 = 1,
				.offset = 3 * LAYER - 1 - i,
				.layer = (3 * LAYER - 1 - i) / LAYER,
			});
	seal_says(layout, "");
	ck_assert_uint_eq(layout->layer_first[1], LAYER);
	ck_assert_uint_eq(ucm_layout_runs(layout), 3 * LAYER);
	ucm_layout_free(layout);
}

UNIT_TEST(what_follows_in_file_and_memory_is_one_run)
{
	struct ucm_layout *layout = new_layout();

	/* layers in a row, K and V in a row, but the last V elsewhere */
	for (uint32_t i = 0; i < 6; i++) {
		struct ucm_region region = plane_of(i / 2, i % 2);

		region.page_stride = 4096;
		region.base = 1 << 20 | (i == 5 ? 3000 : region.offset);
		add(layout, region);
	}
	seal_says(layout, "");
	ck_assert_uint_eq(ucm_layout_runs(layout), 2);
	ucm_layout_free(layout);
}

UNIT_TEST(repetitions_are_runs)
{
	struct ucm_layout *layout = new_layout();
	struct ucm_region region = plane_of(0, false);

	region.run_bytes = K / 8;
	region.n0 = 4;
	region.s0 = 2 * K;
	region.n1 = 2;
	region.s1 = K / 4;
	region.page_stride = 8 * K;
	region.base = 1 << 20;
	add(layout, region);
	add(layout, plane_of(0, true));
	add_layers(layout, 1, 3);
	seal_says(layout, "");
	ck_assert_uint_eq(ucm_layout_runs(layout), 8 + 5);
	ucm_layout_free(layout);
}

UNIT_TEST(a_gap_in_the_payload_is_refused)
{
	struct ucm_layout *layout = new_layout();

	seal_says(layout, "bytes 0 to 288 of the payload have no place");
	add_layers(layout, 0, 1);
	add(layout, plane_of(1, true));
	seal_says(layout, "layer 1: bytes 96 to 160 of the payload have no "
			  "place");
	add(layout, plane_of(1, false));
	seal_says(layout, "bytes 192 to 288 of the payload have no place");
	add_layers(layout, 2, 3); /* a refusal is not the end */
	seal_says(layout, "");
	ucm_layout_free(layout);
}

/* Layer 1 has half of K and no V. */
static struct ucm_layout *new_uneven(void)
{
	struct ucm_layout *layout = new_layout();
	struct ucm_error error = { "" };

	ck_assert_msg(!ucm_layout_set_layer_bytes(layout, 1, K / 2, 0, &error),
		      "%s", error.text);
	return layout;
}

static struct ucm_region half_of_layer_1(void)
{
	struct ucm_region region = plane_of(1, false);

	region.run_bytes = K / 2;
	return region;
}

UNIT_TEST(a_layer_may_have_less_than_the_others)
{
	struct ucm_layout *layout = new_uneven(), *copy;
	struct ucm_error error = { "" };
	uint8_t payload[3 * LAYER];
	uint32_t plane = 0;

	add_layers(layout, 0, 1);
	add_layers(layout, 2, 3);
	seal_says(layout, "layer 2: bytes 96 to 192 of the payload have no "
			  "place");
	add(layout, half_of_layer_1());
	seal_says(layout, "");
	ck_assert_int_eq(ucm_layout_copy(layout, &copy), 0);
	ucm_layout_free(layout);
	memset(payload, 1, sizeof(payload));
	ck_assert(!ucm_layout_padding_is_zero(copy, 1, 2, payload, &plane));
	ck_assert_uint_eq(plane, 2);
	ck_assert(ucm_layout_padding_is_zero(copy, 2, 3, payload, &plane));
	ucm_layout_clear_padding(copy, 0, 3, payload);
	ck_assert(ucm_layout_padding_is_zero(copy, 0, 3, payload, &plane));
	for (size_t i = 0; i < sizeof(payload); i++)
		ck_assert_int_eq(payload[i],
				 i < LAYER + K / 2 || i >= 2 * LAYER);
	payload[2 * LAYER - 1] = 1;
	ck_assert(!ucm_layout_padding_is_zero(copy, 0, 3, payload, &plane));
	ck_assert_uint_eq(plane, 3);
	ck_assert_int_eq(ucm_layout_set_direct(copy, &error), -EINVAL);
	ck_assert_ptr_nonnull(strstr(error.text, "several sizes"));
	ucm_layout_free(copy);
}

/* In memory one piece, in the file with padding between. */
UNIT_TEST(what_has_padding_between_is_two_runs)
{
	struct ucm_layout *layout = new_uneven();

	for (uint32_t layer = 0; layer < 3; layer++) {
		struct ucm_region region = plane_of(layer, false);

		region.run_bytes = layer == 1 ? K / 2 : LAYER;
		region.page_stride = 4096;
		region.base = 1 << 20 | (layer ? LAYER : 0);
		region.base += layer == 2 ? K / 2 : 0;
		add(layout, region);
	}
	seal_says(layout, "");
	ck_assert_uint_eq(ucm_layout_runs(layout), 2);
	ucm_layout_free(layout);
}

UNIT_TEST(a_region_in_padding_is_refused)
{
	struct ucm_layout *layout = new_uneven();
	struct ucm_region region = half_of_layer_1();
	struct ucm_error error;

	region.run_bytes++;
	ck_assert_int_eq(ucm_layout_add_region(layout, &region, &error),
			 -EINVAL);
	ck_assert_ptr_nonnull(strstr(error.text, "more bytes than this layer"));
	region = plane_of(1, true);
	ck_assert_int_eq(ucm_layout_add_region(layout, &region, &error),
			 -EINVAL);
	ck_assert_ptr_nonnull(strstr(error.text, "more bytes than this layer"));
	ucm_layout_free(layout);
}

static const struct {
	uint32_t layer, k, v;
	const char *want;
} bad_sizes[] = {
	{ 3, K, V, "layer 3 of K 64 and V 32 bytes: the geometry has not" },
	{ 0, 0, V, "not within" },
	{ 0, K + 1, V, "not within" },
	{ 0, K, V + 1, "not within" },
};

UNIT_TEST(sizes_of_layers_are_checked, .rows = NUM_ROWS(bad_sizes))
{
	struct ucm_layout *layout = new_layout();
	struct ucm_error error = { "" };

	ck_assert_int_eq(ucm_layout_set_layer_bytes(
				 layout, bad_sizes[_i].layer, bad_sizes[_i].k,
				 bad_sizes[_i].v, &error),
			 -EINVAL);
	ck_assert_msg(strstr(error.text, bad_sizes[_i].want), "%s", error.text);
	add_layers(layout, 0, 3);
	ck_assert_int_eq(ucm_layout_set_layer_bytes(layout, 0, K, 0, &error),
			 -EINVAL);
	ck_assert_ptr_nonnull(strstr(error.text, "before tensors"));
	seal_says(layout, "");
	ck_assert_int_eq(ucm_layout_set_layer_bytes(layout, 0, K, 0, &error),
			 -EINVAL);
	ck_assert_ptr_nonnull(strstr(error.text, "sealed"));
	ucm_layout_free(layout);
}

/* Whoever reads the header would take padding for heads. */
UNIT_TEST(heads_are_of_all_layers_or_not_told)
{
	struct ucm_geometry told = geometry;
	struct ucm_error error = { "" };
	struct ucm_layout *layout;

	told.num_kv_heads = 2;
	told.head_dim = 8;
	ck_assert_int_eq(ucm_layout_new(&told, PAGES, &layout, NULL), 0);
	ck_assert_int_eq(ucm_layout_set_layer_bytes(layout, 0, K, 0, &error),
			 0);
	ck_assert_int_eq(ucm_layout_set_layer_bytes(layout, 0, K / 2, V,
						    &error),
			 -EINVAL);
	ck_assert_ptr_nonnull(strstr(error.text, "must not say heads"));
	ucm_layout_free(layout);
}

UNIT_TEST(bytes_with_two_places_are_refused)
{
	struct ucm_layout *layout = new_layout();
	struct ucm_region again = plane_of(1, true);

	add_layers(layout, 0, 3);
	again.base += 1 << 24;
	again.offset++;
	again.run_bytes--;
	add(layout, again);
	seal_says(layout, "layer 1: bytes 161 to 192 of the payload have two "
			  "places");
	ucm_layout_free(layout);
}

UNIT_TEST(pages_that_overlap_in_memory_are_refused)
{
	struct ucm_layout *layout = new_layout();
	struct ucm_region region = plane_of(2, true);

	add_layers(layout, 0, 2);
	add(layout, plane_of(2, false));
	region.base = plane_of(1, false).base + PAGES * K - 1;
	add(layout, region);
	seal_says(layout, "pages overlap in memory: layer 1 at 0x20000 and "
			  "layer 2 at 0x2027f");
	ucm_layout_free(layout);
}

UNIT_TEST(a_region_that_overlaps_itself_is_refused)
{
	struct ucm_layout *layout = new_layout();
	struct ucm_region region = plane_of(2, true);

	add_layers(layout, 0, 2);
	add(layout, plane_of(2, false));
	region.page_stride = V - 1;
	add(layout, region);
	seal_says(layout, "pages overlap in memory: layer 2 at 0x31000 and "
			  "layer 2 at 0x31000");
	ucm_layout_free(layout);
}

/* Layer 1's V: 32 bytes from 160 on. */
static const struct {
	struct ucm_region region;
	const char *why;
} outside[] = {
	{ { 4096, 64, 0, 1, 1, 0, 0, 160, 1 },
	  "region of layer 1, offset 160, 1 x 1 x 0 bytes: a region without "
	  "bytes" },
	{ { 4096, 64, 32, 0, 1, 0, 0, 160, 1 }, "a region without bytes" },
	{ { 4096, 64, 32, 1, 0, 0, 0, 160, 1 }, "a region without bytes" },
	{ { 4096, 64, 32, 1, 1, 0, 0, 160, 3 },
	  "a layer that the geometry has not got" },
	{ { 4096, 64, 32, 1, 1, 0, 0, 160, UINT32_MAX },
	  "a layer that the geometry has not got" },
	{ { 4096, 64, 33, 1, 1, 0, 0, 160, 1 }, "bytes outside its layer" },
	{ { 4096, 64, 11, 3, 1, 64, 0, 160, 1 }, "bytes outside its layer" },
	{ { 4096, 64, 32, 1, 1, 0, 0, 95, 1 }, "bytes outside its layer" },
	{ { 4096, 64, 32, 1, 1, 0, 0, UINT64_MAX, 1 },
	  "bytes outside its layer" },
	{ { 4096, 64, LAYER + 1, 1, 1, 0, 0, 96, 1 },
	  "more bytes than a layer" },
	{ { 4096, 64, UINT64_MAX, UINT32_MAX, UINT32_MAX, 0, 0, 96, 1 },
	  "more bytes than a layer" },
	{ { 4096, 64, UINT64_C(1) << 32, UINT32_C(1) << 31, 2, 0, 0, 96, 1 },
	  "more bytes than a layer" },
	{ { 4096, -4096, 32, 1, 1, 0, 0, 160, 1 }, "addresses exceed 64 bits" },
	{ { -UINT64_C(319), 32, 32, 1, 1, 0, 0, 160, 1 },
	  "addresses exceed 64 bits" },
	{ { 4096, 64, 16, 2, 1, INT64_MIN, 0, 160, 1 },
	  "addresses exceed 64 bits" },
};

UNIT_TEST(a_region_outside_is_refused, .rows = NUM_ROWS(outside))
{
	struct ucm_layout *layout = new_layout();
	struct ucm_error error = { "" };

	ck_assert_int_eq(
		ucm_layout_add_region(layout, &outside[_i].region, &error),
		-EINVAL);
	ck_assert_msg(strstr(error.text, outside[_i].why), "%s", error.text);
	ck_assert_uint_eq(ucm_layout_num_regions(layout), 0);
	ucm_layout_free(layout);
}

UNIT_TEST(the_last_address_may_be_used)
{
	struct ucm_layout *layout = new_layout();

	add(layout, (struct ucm_region){ -UINT64_C(320), 32, 32, 1, 1, 0, 0,
					 160, 1 });
	ucm_layout_free(layout);
}

static const struct {
	struct ucm_geometry geometry;
	uint64_t pages;
	const char *why;
} not_new[] = {
	{ { .k_bytes = 1 }, 1, "no geometry of a block: 0 layers" },
	{ { .num_layers = (1 << 20) + 1, .k_bytes = 1 }, 1, "1048577 layers" },
	{ { .num_layers = UINT32_MAX, .k_bytes = 1 }, 1, "no geometry" },
	{ { .num_layers = 1, .v_bytes = 1 }, 1, "K 0 bytes" },
	{ { .num_layers = 1, .k_bytes = 1, .order = 3 }, 1, "order 3" },
	{ { .num_layers = 1, .k_bytes = 1 }, 0, "0 pages: between 1 and 2^32" },
	{ { .num_layers = 1, .k_bytes = 1 }, (UINT64_C(1) << 32) + 1,
	  "4294967297 pages" },
};

UNIT_TEST(no_layout_without_layers_bytes_and_pages, .rows = NUM_ROWS(not_new))
{
	struct ucm_layout *layout = NULL;
	struct ucm_error error = { "" };

	ck_assert_int_eq(ucm_layout_new(&not_new[_i].geometry,
					not_new[_i].pages, &layout, &error),
			 -EINVAL);
	ck_assert_msg(strstr(error.text, not_new[_i].why), "%s", error.text);
	ck_assert_ptr_null(layout);
}

UNIT_TEST(a_sealed_layout_stays_as_it_is)
{
	struct ucm_layout *layout = new_layout();
	struct ucm_region region = plane_of(0, false);
	const int64_t shape[] = { PAGES, 4, K / 4 };
	const int64_t strides[] = { K, K / 4, 1 };
	struct ucm_tensor tensor = {
		.size = sizeof(struct ucm_tensor),
		.data = 4096,
		.dims = "BND",
		.shape = shape,
		.strides = strides,
		.item_bytes = 1,
	};
	struct ucm_error error = { "" };

	add_layers(layout, 0, 3);
	seal_says(layout, "");
	seal_says(layout, "the layout is sealed");
	ck_assert_int_eq(ucm_layout_add_region(layout, &region, &error),
			 -EINVAL);
	ck_assert_str_eq(error.text, "the layout is sealed");
	ck_assert_int_eq(ucm_layout_add_tensor(layout, &tensor, &error),
			 -EINVAL);
	ck_assert_ptr_nonnull(strstr(error.text, "the layout is sealed"));
	ck_assert_uint_eq(ucm_layout_num_regions(layout), 6);
	ucm_layout_free(layout);
}

/* The second of a tensor's layers is outside: the first goes as well. */
UNIT_TEST(a_tensor_is_added_whole_or_not_at_all)
{
	struct ucm_layout *layout = new_layout();
	const int64_t shape[] = { 2, PAGES, 4, 16 };
	const int64_t strides[] = { -8192, 64, 16, 1 };
	struct ucm_tensor tensor = {
		.size = sizeof(struct ucm_tensor),
		.data = 4096,
		.dims = "LBND",
		.shape = shape,
		.strides = strides,
		.item_bytes = 1,
	};

	ck_assert_int_eq(ucm_layout_add_tensor(layout, &tensor, NULL), -EINVAL);
	ck_assert_uint_eq(ucm_layout_num_regions(layout), 0);
	tensor.data = 16384;
	ck_assert_int_eq(ucm_layout_add_tensor(layout, &tensor, NULL), 0);
	ck_assert_uint_eq(ucm_layout_num_regions(layout), 2);
	ucm_layout_free(layout);
}

UNIT_TEST(a_copy_lives_by_itself)
{
	struct ucm_layout *layout = new_layout(), *copy = NULL;

	ck_assert_int_eq(ucm_layout_copy(layout, &copy), -EINVAL);
	ck_assert_ptr_null(copy);
	add_layers(layout, 0, 3);
	seal_says(layout, "");
	ck_assert_int_eq(ucm_layout_copy(layout, &copy), 0);
	ucm_layout_free(layout);
	ck_assert_uint_eq(ucm_layout_num_regions(copy), 6);
	ck_assert_uint_eq(ucm_layout_regions(copy)[5].offset, 2 * LAYER + K);
	ck_assert_uint_eq(copy->layer_first[3], 6);
	ck_assert_uint_eq(ucm_layout_runs(copy), 6);
	ck_assert_int_eq(ucm_geometry_equal(&copy->geometry, &geometry), 1);
	ck_assert_uint_eq(copy->num_pages, PAGES);
	seal_says(copy, "the layout is sealed");
	ucm_layout_free(copy);
	ucm_layout_free(NULL);
}
