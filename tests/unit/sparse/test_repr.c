/* SPDX-License-Identifier: Apache-2.0 */
/* test_repr.c - representations are what their formulas say, within what is
 * promised of each type, however the tokens come. */
#include <config.h>

#include "tests/unit/sparse_fixture.h"

#define CASES 300u

/* ---- numbers ---- */

UNIT_TEST(a_half_is_itself_whichever_way_it_is_rounded)
{
	for (uint32_t bits = 0; bits <= 0xffff; bits++) {
		uint16_t half = (uint16_t)bits;

		for (int way = 0; way < 3; way++) {
			float f = ucm_float_of_float16(half);
			float b = ucm_float_of_bfloat16(half);

			if (ucm_float_finite(f))
				must(ucm_float16_of(f, way) == half);
			if (ucm_float_finite(b))
				must(ucm_bfloat16_of(b, way) == half);
		}
	}
}

static void check_rounding(float value, uint32_t dtype)
{
	bool narrow = dtype == UCM_DTYPE_FLOAT16;
	float near, up, down;

#define ROUNDED(way)                                                          \
	(narrow ? ucm_float_of_float16(ucm_float16_of(value, way))            \
		: ucm_float_of_bfloat16(ucm_bfloat16_of(value, way)))
	near = ROUNDED(UCM_ROUND_NEAREST);
	up = ROUNDED(UCM_ROUND_UP);
	down = ROUNDED(UCM_ROUND_DOWN);
#undef ROUNDED
	if (narrow && fabsf(value) >= 65536) {
		must(!isfinite(near) && !isfinite(up) && !isfinite(down));
		return;
	}
	must(down <= value && value <= up);
	must(near == up || near == down);
	if (isfinite(up) && isfinite(down)) {
		must(fabs((double)near - (double)value) <=
		     fmin((double)up - (double)value,
			  (double)value - (double)down));
		must(near == value || fabs((double)near - (double)value) <=
			     fabs((double)value) * (narrow ? 0x1p-11 : 0x1p-8) +
			     (narrow ? 0x1p-25 : 0x1p-134));
	}
}

UNIT_TEST(rounding_goes_to_the_nearest_up_or_down)
{
	uint64_t random = random_case(0);

	for (int i = 0; i < 1000000; i++) {
		float value = ucm_float_of((uint32_t)random_next(&random));

		if (!ucm_float_finite(value))
			continue;
		check_rounding(value, UCM_DTYPE_BFLOAT16);
		check_rounding(value, UCM_DTYPE_FLOAT16);
		/* most floats are out of its range, or nearly 0 */
		check_rounding(random_float(&random, 70000),
			       UCM_DTYPE_FLOAT16);
		check_rounding(random_float(&random, 0x1p-13f),
			       UCM_DTYPE_FLOAT16);
	}
}

UNIT_TEST(the_nearest_of_two_as_near_is_even)
{
	ck_assert_uint_eq(ucm_float16_of(2049, UCM_ROUND_NEAREST),
			  ucm_float16_of(2048, UCM_ROUND_NEAREST));
	ck_assert_uint_eq(ucm_float16_of(2051, UCM_ROUND_NEAREST),
			  ucm_float16_of(2052, UCM_ROUND_NEAREST));
	ck_assert_uint_eq(ucm_bfloat16_of(257, UCM_ROUND_NEAREST),
			  ucm_bfloat16_of(256, UCM_ROUND_NEAREST));
	ck_assert_uint_eq(ucm_bfloat16_of(259, UCM_ROUND_NEAREST),
			  ucm_bfloat16_of(260, UCM_ROUND_NEAREST));
	ck_assert_uint_eq(ucm_float16_of(0x1p-25f, UCM_ROUND_NEAREST), 0);
	ck_assert_uint_eq(ucm_float16_of(0x1.8p-24f, UCM_ROUND_NEAREST), 2);
}

/* ---- what is built ---- */

/* In double; margin: what floats may differ from that. */
static double exact(const struct ucm_repr_spec *spec, const struct cache *cache,
		    uint64_t block, uint32_t head, uint32_t channel, bool low,
		    uint32_t tokens, double *margin)
{
	double sum = 0, size = 0, most = -INFINITY, least = INFINITY;

	for (uint32_t token = 0; token < tokens; token++) {
		double key = cache_key(cache, block, token, head, channel);

		sum += key;
		size += fabs(key);
		most = fmax(most, key);
		least = fmin(least, key);
	}
	*margin = 0;
	if (spec->kind == UCM_REPR_MAX || spec->kind == UCM_REPR_MINMAX)
		return low ? least : most;
	*margin = size * 0x1p-24; /* n 2^-24 size / n */
	return sum / tokens;
}

/* The length of a head's mean, and how wrong it may be. */
static double mean_length(const struct ucm_repr_spec *spec,
			  const struct cache *cache, uint64_t block,
			  uint32_t head, uint32_t tokens, double *margin)
{
	double sum = 0, wrong = 0;

	for (uint32_t i = 0; i < spec->head_dim; i++) {
		double off, x = exact(spec, cache, block, head, i, false,
				      tokens, &off);

		sum += x * x;
		wrong += off * off;
	}
	*margin = sqrt(wrong);
	return sqrt(sum);
}

static void check_element(const struct ucm_repr_spec *spec, double stored,
			  double want, double margin, double scale, bool low)
{
	double units[] = {
		[UCM_DTYPE_FLOAT32] = fabs(want) * 0x1p-24,
		[UCM_DTYPE_FLOAT16] = fabs(want) * 0x1p-11 + 0x1p-25,
		[UCM_DTYPE_BFLOAT16] = fabs(want) * 0x1p-8,
		[UCM_DTYPE_INT8] = 0.501 * scale,
	};
	double unit = units[spec->dtype];

	if (spec->kind == UCM_REPR_MINMAX) {
		must(low ? stored <= want : stored >= want);
		unit *= 2;
	}
	must(fabs(stored - want) <= (unit + margin) * (1 + 0x1p-8));
}

static void check_block(const struct ucm_repr_spec *spec,
			const struct cache *cache, uint64_t block,
			const struct ucm_repr_slab *slab, uint64_t slot,
			uint32_t tokens)
{
	uint32_t padded = (spec->head_dim + 31) / 32 * 32;
	uint32_t width = padded * (spec->kind == UCM_REPR_MINMAX ? 2 : 1);

	for (uint32_t head = 0; head < spec->num_heads; head++) {
		double long_margin, scale, margin;
		double length = mean_length(spec, cache, block, head, tokens,
					    &long_margin);

		for (uint32_t i = 0; i < width; i++) {
			double got = repr_value(spec, slab, slot, head, i,
						&scale);
			uint32_t channel = i % padded;
			double want;

			if (channel >= spec->head_dim) {
				must(got == 0);
				continue;
			}
			want = exact(spec, cache, block, head, channel,
				     i >= padded, tokens, &margin);
			if (spec->kind == UCM_REPR_NORMED && length > 0) {
				want /= length;
				margin = (margin + fabs(want) * long_margin) /
						 length +
					 fabs(want) * 0x1p-23;
			}
			check_element(spec, got, want, margin, scale,
				      i >= padded);
		}
	}
}

/* num different numbers below limit, in any order */
static void random_ids(uint64_t *random, int32_t *ids, size_t num,
		       int32_t limit)
{
	int32_t all[64];

	must(num <= (size_t)limit && limit <= 64);
	for (int32_t i = 0; i < limit; i++)
		all[i] = i;
	for (size_t i = 0; i < num; i++) {
		int64_t at = random_between(random, (int64_t)i, limit - 1);

		ids[i] = all[at];
		all[at] = all[i];
	}
}

UNIT_TEST(a_representation_is_what_its_formula_says, .rows = NUM_ROWS(ways))
{
	bool can = use_way(_i);

	for (unsigned number = 0; can && number < CASES; number++) {
		uint64_t random = random_case(number);
		struct ucm_repr_spec spec = random_spec(&random);
		struct cache cache = cache_make(
			&spec, input_types[random_between(&random, 0, 2)], 6,
			&random);
		struct ucm_repr_slab slab = slab_make(&spec, 9, 4);
		size_t num = (size_t)random_between(&random, 1, 6);
		uint32_t last = (uint32_t)random_between(&random, 1,
							 spec.block_size);
		int32_t blocks[6], slots[9];

		random_ids(&random, blocks, num, 6);
		random_ids(&random, slots, num, 9);
		must_in_case(ucm_repr_build(&spec, &cache.keys, blocks, num,
					    last, &slab, slots, NULL) == 0,
			     number, "build");
		for (size_t i = 0; i < num; i++)
			check_block(&spec, &cache, (uint64_t)blocks[i], &slab,
				    (uint64_t)slots[i],
				    i + 1 < num ? spec.block_size : last);
		free(cache.memory);
		free(slab.base);
	}
}

UNIT_TEST(every_way_builds_the_same_bytes)
{
	for (unsigned number = 0; number < CASES; number++) {
		uint64_t random = random_case(number);
		struct ucm_repr_spec spec = random_spec(&random);
		struct cache cache = cache_make(
			&spec, input_types[random_between(&random, 0, 2)], 3,
			&random);
		struct ucm_repr_slab first = slab_make(&spec, 3, 0);

		must(ucm_sparse_kernels_use("plain"));
		must(!ucm_repr_build(&spec, &cache.keys, NULL, 3, 1, &first,
				     NULL, NULL));
		for (size_t way = 1; way < NUM_ROWS(ways); way++) {
			struct ucm_repr_slab slab = slab_make(&spec, 3, 0);

			must(!ucm_sparse_kernels_use(ways[way]) ||
			     (!ucm_repr_build(&spec, &cache.keys, NULL, 3, 1,
					      &slab, NULL, NULL) &&
			      !memcmp(slab.base, first.base,
				      3 * first.stride_bytes)));
			free(slab.base);
		}
		free(first.base);
		free(cache.memory);
	}
}

UNIT_TEST(tokens_may_come_in_any_pieces, .rows = NUM_ROWS(ways))
{
	bool can = use_way(_i);

	for (unsigned number = 0; can && number < CASES; number++) {
		uint64_t random = random_case(number);
		struct ucm_repr_spec spec = random_spec(&random);
		struct cache cache = cache_make(
			&spec, input_types[random_between(&random, 0, 2)], 1,
			&random);
		struct ucm_repr_slab once = slab_make(&spec, 1, 0);
		struct ucm_repr_slab grown = slab_make(&spec, 1, 0);
		void *state = malloc(ucm_repr_state_bytes(&spec));
		uint32_t tokens = 0;

		must(state && !ucm_repr_begin(&spec, state, NULL));
		while (tokens < spec.block_size) {
			struct ucm_keys keys = cache.keys;
			uint32_t more = (uint32_t)random_between(
				&random, 0, spec.block_size - tokens);

			keys.base = cache_at(&cache, 0, tokens, 0, 0);
			must(!ucm_repr_add(&spec, state, &keys, more, NULL));
			tokens += more;
			if (!tokens)
				continue;
			must(!ucm_repr_write(&spec, state, grown.base, NULL));
			must(!ucm_repr_build(&spec, &cache.keys, NULL, 1,
					     tokens, &once, NULL, NULL));
			must(!memcmp(once.base, grown.base, once.stride_bytes));
		}
		free(state);
		free(once.base);
		free(grown.base);
		free(cache.memory);
	}
}

UNIT_TEST(keys_after_the_last_token_are_not_read)
{
	struct ucm_repr_spec spec = { UCM_REPR_MEAN, UCM_DTYPE_FLOAT32, 2, 3, 4 };
	float nan = NAN, keys[2 * 4 * 2 * 3];
	struct ucm_keys view = { keys, UCM_DTYPE_FLOAT32, 2, 24, 6, 3 };
	struct ucm_repr_slab slab = slab_make(&spec, 2, 0);
	double scale;

	for (size_t i = 0; i < NUM_ROWS(keys); i++)
		keys[i] = i < 30 ? 1 : nan; /* one token of the second block */
	ck_assert_int_eq(ucm_repr_build(&spec, &view, NULL, 2, 1, &slab, NULL,
					NULL), 0);
	ck_assert(repr_value(&spec, &slab, 1, 1, 2, &scale) == 1);
	free(slab.base);
}

UNIT_TEST(a_mean_of_zeros_has_no_direction)
{
	struct ucm_repr_spec spec = { UCM_REPR_NORMED, UCM_DTYPE_INT8, 1, 8, 1 };
	float keys[8] = { 0 };
	struct ucm_keys view = { keys, UCM_DTYPE_FLOAT32, 1, 8, 8, 8 };
	struct ucm_repr_slab slab = slab_make(&spec, 1, 0);
	double scale;

	ck_assert_int_eq(ucm_repr_build(&spec, &view, NULL, 1, 1, &slab, NULL,
					NULL), 0);
	ck_assert(repr_value(&spec, &slab, 0, 0, 3, &scale) == 0);
	free(slab.base);
}

/* ---- what is refused ---- */

static bool untouched(const struct ucm_repr_slab *slab)
{
	const uint8_t *at = slab->base;

	for (size_t i = 0; i < slab->num_slots * slab->stride_bytes; i++) {
		if (at[i] != 0xa5)
			return false;
	}
	return true;
}

static const float wrong_keys[] = { NAN, -NAN, INFINITY, -INFINITY };

UNIT_TEST(a_key_that_is_not_finite_is_refused, .rows = NUM_ROWS(ways))
{
	bool can = use_way(_i);

	for (unsigned number = 0; can && number < CASES; number++) {
		uint64_t random = random_case(number);
		struct ucm_repr_spec spec = random_spec(&random);
		struct cache cache = cache_make(
			&spec, input_types[random_between(&random, 0, 2)], 2,
			&random);
		struct ucm_repr_slab slab = slab_make(&spec, 2, 0);
		size_t bytes = ucm_repr_state_bytes(&spec);
		uint8_t *state = malloc(2 * bytes);
		struct ucm_error error;
		uint8_t *at = cache_at(
			&cache, 1,
			(uint32_t)random_between(&random, 0,
						 spec.block_size - 1),
			(uint32_t)random_between(&random, 0,
						 spec.num_heads - 1),
			(uint32_t)random_between(&random, 0,
						 spec.head_dim - 1));
		float wrong = wrong_keys[random_between(&random, 0, 3)];
		uint32_t bits = ucm_float_bits(wrong);
		uint16_t half = cache.keys.dtype == UCM_DTYPE_BFLOAT16
					? (uint16_t)(bits >> 16)
				: isnan(wrong) ? 0x7e01
					       : (uint16_t)(0x7c00 | bits >> 31 << 15);

		if (cache.keys.dtype == UCM_DTYPE_FLOAT32)
			memcpy(at, &wrong, sizeof(wrong));
		else
			memcpy(at, &half, sizeof(half));
		assert_einval(ucm_repr_build(&spec, &cache.keys, NULL, 2,
					     spec.block_size, &slab, NULL,
					     &error),
			      error, "keys: block 1, token ");
		must(untouched(&slab));
		cache.keys.base = cache_at(&cache, 1, 0, 0, 0);
		must(state && !ucm_repr_begin(&spec, state, NULL));
		memcpy(state + bytes, state, bytes);
		assert_einval(ucm_repr_add(&spec, state, &cache.keys,
					   spec.block_size, &error),
			      error, "keys: block 0, token ");
		must(!memcmp(state, state + bytes, bytes));
		free(state);
		free(cache.memory);
		free(slab.base);
	}
}

UNIT_TEST(what_is_too_large_for_its_type_is_refused)
{
	static const struct {
		uint32_t kind, dtype;
		float a, b;
		int want;
	} rows[] = {
		{ UCM_REPR_MEAN, UCM_DTYPE_FLOAT16, 65504, 65504, 0 },
		{ UCM_REPR_MEAN, UCM_DTYPE_FLOAT16, 65504, 65600, -ERANGE },
		{ UCM_REPR_MAX, UCM_DTYPE_FLOAT16, 1, -70000, 0 },
		{ UCM_REPR_MINMAX, UCM_DTYPE_FLOAT16, 1, -70000, -ERANGE },
		{ UCM_REPR_MINMAX, UCM_DTYPE_FLOAT16, 65505, 1, -ERANGE },
		{ UCM_REPR_MAX, UCM_DTYPE_BFLOAT16, 3.4e38f, 1, -ERANGE },
		{ UCM_REPR_MEAN, UCM_DTYPE_FLOAT32, 3e38f, 3e38f, -ERANGE },
		{ UCM_REPR_MAX, UCM_DTYPE_INT8, 3.4e38f, 1, 0 },
	};

	for (size_t i = 0; i < NUM_ROWS(rows); i++) {
		struct ucm_repr_spec spec = { rows[i].kind, rows[i].dtype, 1, 1,
					      2 };
		float keys[] = { rows[i].a, rows[i].b };
		struct ucm_keys view = { keys, UCM_DTYPE_FLOAT32, 1, 2, 1, 1 };
		struct ucm_repr_slab slab = slab_make(&spec, 1, 0);
		void *state = malloc(ucm_repr_state_bytes(&spec));

		ck_assert_int_eq(ucm_repr_build(&spec, &view, NULL, 1, 2, &slab,
						NULL, NULL), rows[i].want);
		ck_assert(untouched(&slab) == (rows[i].want != 0));
		ck_assert_int_eq(ucm_repr_begin(&spec, state, NULL), 0);
		ck_assert_int_eq(ucm_repr_add(&spec, state, &view, 2, NULL), 0);
		ck_assert_int_eq(ucm_repr_write(&spec, state, slab.base, NULL),
				 rows[i].want);
		ck_assert(untouched(&slab) == (rows[i].want != 0));
		free(state);
		free(slab.base);
	}
}

static const struct {
	struct ucm_repr_spec spec;
	const char *name;
} wrong_specs[] = {
	{ { 4, 3, 1, 1, 1 }, "kind" },
	{ { 0, UCM_DTYPE_OPAQUE, 1, 1, 1 }, "dtype" },
	{ { 0, UCM_DTYPE_FLOAT8_E4M3, 1, 1, 1 }, "dtype" },
	{ { 0, UCM_DTYPE_UINT8, 1, 1, 1 }, "dtype" },
	{ { 0, 1000, 1, 1, 1 }, "dtype" },
	{ { 0, 3, 0, 1, 1 }, "num_heads" },
	{ { 0, 3, 1025, 1, 1 }, "num_heads" },
	{ { 0, 3, 1, 0, 1 }, "head_dim" },
	{ { 0, 3, 1, 1025, 1 }, "head_dim" },
	{ { 0, 3, 1, 1, 0 }, "block_size" },
	{ { 0, 3, 1, 1, 65537 }, "block_size" },
};

UNIT_TEST(a_wrong_spec_is_named, .rows = NUM_ROWS(wrong_specs))
{
	const struct ucm_repr_spec *spec = &wrong_specs[_i].spec;
	struct ucm_error error;
	float state[64];

	ck_assert_uint_eq(ucm_repr_bytes(spec), 0);
	ck_assert_uint_eq(ucm_repr_state_bytes(spec), 0);
	ck_assert_uint_eq(ucm_query_floats(spec, spec->num_heads, 0), 0);
	assert_einval(ucm_repr_begin(spec, state, &error), error,
		      wrong_specs[_i].name);
	ck_assert_uint_eq(ucm_repr_bytes(NULL), 0);
}

UNIT_TEST(the_bytes_of_a_representation_are_as_described)
{
	static const struct {
		struct ucm_repr_spec spec;
		size_t want;
	} rows[] = {
		{ { UCM_REPR_MEAN, UCM_DTYPE_FLOAT32, 8, 128, 128 }, 4096 },
		{ { UCM_REPR_MEAN, UCM_DTYPE_BFLOAT16, 8, 128, 128 }, 2048 },
		{ { UCM_REPR_MEAN, UCM_DTYPE_INT8, 8, 128, 128 }, 1088 },
		{ { UCM_REPR_MINMAX, UCM_DTYPE_BFLOAT16, 8, 128, 128 }, 4096 },
		{ { UCM_REPR_MAX, UCM_DTYPE_FLOAT16, 1, 576, 64 }, 1152 },
		{ { UCM_REPR_MAX, UCM_DTYPE_FLOAT16, 1, 1, 1 }, 64 },
		{ { UCM_REPR_MAX, UCM_DTYPE_INT8, 1, 33, 1 }, 128 },
	};

	for (size_t i = 0; i < NUM_ROWS(rows); i++)
		ck_assert_uint_eq(ucm_repr_bytes(&rows[i].spec), rows[i].want);
}

UNIT_TEST(wrong_arguments_of_a_build_are_named)
{
	struct ucm_repr_spec spec = { UCM_REPR_MEAN, UCM_DTYPE_FLOAT32, 2, 3, 4 };
	float keys[2 * 4 * 2 * 3] = { 0 };
	const struct ucm_keys right = { keys, UCM_DTYPE_FLOAT32, 2, 24, 6, 3 };
	struct ucm_repr_slab slab = slab_make(&spec, 2, 0), bad = slab;
	int32_t below[] = { 0, -1 }, above[] = { 2, 0 };
	struct ucm_keys view = right;
	struct ucm_error error;

#define REFUSED(word, ...)                                                    \
	do {                                                                  \
		assert_einval(ucm_repr_build(__VA_ARGS__, &error), error,     \
			      word);                                          \
		ck_assert(untouched(&slab));                                  \
	} while (0)
	REFUSED("spec", NULL, &right, NULL, 2, 4, &slab, NULL);
	REFUSED("keys", &spec, NULL, NULL, 2, 4, &slab, NULL);
	REFUSED("last_tokens", &spec, &right, NULL, 2, 0, &slab, NULL);
	REFUSED("last_tokens", &spec, &right, NULL, 2, 5, &slab, NULL);
	REFUSED("blocks", &spec, &right, NULL, 3, 4, &slab, NULL);
	REFUSED("blocks", &spec, &right, below, 2, 4, &slab, NULL);
	REFUSED("blocks", &spec, &right, above, 2, 4, &slab, NULL);
	REFUSED("slots", &spec, &right, NULL, 2, 4, &slab, below);
	REFUSED("slots", &spec, &right, NULL, 2, 4, &slab, above);
	REFUSED("slab", &spec, &right, NULL, 2, 4, NULL, NULL);
	bad.num_slots = 1;
	REFUSED("slots", &spec, &right, NULL, 2, 4, &bad, NULL);
	bad.num_slots = UINT64_MAX / 2;
	REFUSED("num_slots", &spec, &right, NULL, 2, 4, &bad, NULL);
	bad = slab;
	bad.stride_bytes = ucm_repr_bytes(&spec) - 4;
	REFUSED("stride_bytes", &spec, &right, NULL, 2, 4, &bad, NULL);
	bad.stride_bytes = ucm_repr_bytes(&spec) + 2;
	REFUSED("stride_bytes", &spec, &right, NULL, 2, 4, &bad, NULL);
	bad = slab;
	bad.base = (uint8_t *)slab.base + 1;
	REFUSED("slab", &spec, &right, NULL, 2, 4, &bad, NULL);
	view.dtype = UCM_DTYPE_INT8;
	REFUSED("keys: dtype", &spec, &view, NULL, 2, 4, &slab, NULL);
	view = right;
	view.base = NULL;
	REFUSED("keys", &spec, &view, NULL, 2, 4, &slab, NULL);
	view = right;
	view.stride_block = INT64_MAX / 2;
	REFUSED("keys: stride_block", &spec, &view, NULL, 2, 4, &slab, NULL);
	view = right;
	view.stride_token = INT64_MIN;
	REFUSED("keys: stride_block", &spec, &view, NULL, 2, 4, &slab, NULL);
#undef REFUSED
	free(slab.base);
}

UNIT_TEST(wrong_arguments_of_a_growing_block_are_named)
{
	struct ucm_repr_spec spec = { UCM_REPR_MAX, UCM_DTYPE_FLOAT32, 1, 2, 4 };
	struct ucm_repr_spec other = spec;
	float keys[10] = { 0 }, state[128], out[32];
	struct ucm_keys view = { keys, UCM_DTYPE_FLOAT32, 1, 10, 2, 2 };
	struct ucm_error error;

	memset(state, 0, sizeof(state));
	assert_einval(ucm_repr_add(&spec, state, &view, 1, &error), error,
		      "state");
	assert_einval(ucm_repr_begin(&spec, NULL, &error), error, "state");
	assert_einval(ucm_repr_begin(&spec, (char *)state + 2, &error), error,
		      "state");
	ck_assert_int_eq(ucm_repr_begin(&spec, state, NULL), 0);
	assert_einval(ucm_repr_write(&spec, state, out, &error), error,
		      "state has no tokens");
	ck_assert_int_eq(ucm_repr_add(&spec, state, &view, 3, NULL), 0);
	assert_einval(ucm_repr_add(&spec, state, &view, 2, &error), error,
		      "num_tokens 2");
	assert_einval(ucm_repr_write(&spec, state, (char *)out + 1, &error),
		      error, "out");
	other.kind = UCM_REPR_MEAN;
	assert_einval(ucm_repr_add(&other, state, &view, 1, &error), error,
		      "state");
	assert_einval(ucm_repr_write(&other, state, out, &error), error,
		      "state");
	view.num_blocks = 0;
	assert_einval(ucm_repr_add(&spec, state, &view, 1, &error), error,
		      "num_blocks");
	ck_assert_int_eq(ucm_repr_add(&spec, state, &view, 0, NULL), 0);
	view.num_blocks = 1;
	ck_assert_int_eq(ucm_repr_add(&spec, state, &view, 1, NULL), 0);
	ck_assert_int_eq(ucm_repr_write(&spec, state, out, NULL), 0);
}
