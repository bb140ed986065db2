/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_star.c - merged channels are what their formulas say, however tokens
 * come, and of the channels that are kept.
 */
#include <config.h>

#include "tests/unit/sparse/star_fixture.h"

/* ---- what is built ---- */

static void check_group(const struct scene *scene, uint32_t block,
			uint32_t head, uint32_t group)
{
	const struct ucm_star_spec *spec = &scene->spec;
	uint32_t first = group * spec->merge_tokens, end;

	end = first + spec->merge_tokens;
	if (end > tokens_of(scene, block))
		end = tokens_of(scene, block);
	for (uint32_t i = 0; i < spec->kept; i++) {
		double sum = 0, size = 0, want, unit;
		float scale, got = stored(scene, block, head, group, i, &scale);

		for (uint32_t token = first; token < end; token++) {
			double key = cache_key(&scene->cache, block, token,
					       head,
					       channel_of(spec, head, i));

			sum += key;
			size += fabs(key);
		}
		if (first >= end) {
			must(got == 0);
			continue;
		}
		want = sum / (end - first);
		unit = spec->dtype == UCM_DTYPE_INT8 ? 0.501 * (double)scale
		       : spec->dtype == UCM_DTYPE_FLOAT16
			       ? fabs(want) * 0x1p-11 + 0x1p-25
		       : spec->dtype == UCM_DTYPE_BFLOAT16
			       ? fabs(want) * 0x1p-8
			       : fabs(want) * 0x1p-24;
		must(fabs((double)got * (double)scale - want) <=
		     (unit + size * 0x1p-24) * (1 + 0x1p-8));
	}
}

UNIT_TEST(groups_are_means_of_the_kept_channels, .rows = NUM_ROWS(ways))
{
	bool can = use_way(_i);

	for (unsigned number = 0; can && number < CASES; number++) {
		uint64_t random = random_case(number);
		struct scene scene = scene_make(&random);

		for (uint32_t i = 0; i < BLOCKS; i++) {
			const uint8_t *slot = (const uint8_t *)scene.slab.base +
					      i * scene.slab.stride_bytes;
			size_t bytes = ucm_star_bytes(&scene.spec);

			for (uint32_t j = 0;
			     j < scene.spec.num_heads * scene.lanes; j++)
				check_group(&scene, i, j / scene.lanes,
					    j % scene.lanes);
			for (size_t j = bytes; j < bytes + 64; j++)
				must(slot[j] == 0xa5);
		}
		scene_free(&scene);
	}
}

UNIT_TEST(tokens_may_come_in_any_pieces, .rows = NUM_ROWS(ways))
{
	bool can = use_way(_i);

	for (unsigned number = 0; can && number < CASES; number++) {
		uint64_t random = random_case(number);
		struct scene scene = scene_make(&random);
		const struct ucm_star_spec *spec = &scene.spec;
		struct ucm_repr_slab once = star_slab(spec, 1, 0);
		struct ucm_repr_slab grown = star_slab(spec, 1, 0);
		void *state = malloc(ucm_star_state_bytes(spec));
		uint32_t tokens = 0;

		must(state && !ucm_star_begin(spec, state, NULL));
		while (tokens < spec->block_size) {
			struct ucm_keys keys = scene.cache.keys;
			uint32_t more = (uint32_t)random_between(
				&random, 0, spec->block_size - tokens);

			keys.base = cache_at(&scene.cache, 0, tokens, 0, 0);
			must(!ucm_star_add(spec, state, &keys, more, NULL));
			tokens += more;
			if (!tokens)
				continue;
			must(!ucm_star_write(spec, state, grown.base, NULL));
			must(!ucm_star_build(spec, &scene.cache.keys, NULL, 1,
					     tokens, &once, NULL, NULL));
			must(!memcmp(once.base, grown.base, once.stride_bytes));
		}
		must(!memcmp(once.base, scene.slab.base, once.stride_bytes));
		free(state);
		free(once.base);
		free(grown.base);
		scene_free(&scene);
	}
}

/* ---- which channels ---- */

UNIT_TEST(the_largest_channels_are_kept)
{
	uint64_t random = random_case(0);

	for (unsigned number = 0; number < CASES; number++) {
		struct scene scene = scene_make(&random);
		struct ucm_star_spec *spec = &scene.spec;
		uint16_t *out = malloc((size_t)spec->num_heads * spec->kept * 2);

		must(out && !ucm_star_channels(spec, &scene.cache.keys, NULL,
					       BLOCKS, scene.last_tokens, out,
					       NULL));
		for (uint32_t head = 0; head < spec->num_heads; head++) {
			double least = INFINITY, most = 0;
			uint32_t at = head * spec->kept, end = at + spec->kept;

			for (uint32_t c = 0; c < spec->head_dim; c++) {
				double sum = 0;

				for (uint32_t i = 0; i < BLOCKS; i++)
					for (uint32_t t = 0;
					     t < tokens_of(&scene, i); t++)
						sum += fabs((double)cache_key(
							&scene.cache, i, t,
							head, c));
				if (at < end && out[at] == c) {
					least = fmin(least, sum);
					at++;
				} else {
					most = fmax(most, sum);
				}
			}
			must(at == end); /* ascending, each once */
			must(least >= most * (1 - 70 * 0x1p-23));
		}
		free(out);
		scene_free(&scene);
	}
}

UNIT_TEST(of_equal_channels_the_lower_is_kept)
{
	struct ucm_star_spec spec = { UCM_DTYPE_FLOAT32, 2, 5, 2, 1, 2, NULL };
	float keys[] = { 1, -2, 1, 2, 0,  9, 9, 9, 9, 9,
			 1, 0,	1, 0, 2,  1, 1, 1, 1, -1,
			 8, 8,	8, 8, 8,  8, 8, 8, 8, NAN };
	const struct ucm_keys view = { keys, UCM_DTYPE_FLOAT32, 1, 20, 10, 5 };
	uint16_t out[4];

	ck_assert_int_eq(ucm_star_channels(&spec, &view, NULL, 1, 2, out, NULL),
			 0);
	ck_assert(out[0] == 0 && out[1] == 1); /* all 2 */
	ck_assert(out[2] == 0 && out[3] == 1); /* all 10 */
	ck_assert_int_eq(ucm_star_channels(&spec, &view, NULL, 1, 1, out, NULL),
			 0);
	ck_assert(out[0] == 1 && out[1] == 3);
}

UNIT_TEST(kept_channels_are_rounded_half_to_even)
{
	static const struct {
		uint32_t dim;
		double ratio;
		uint32_t want;
	} rows[] = {
		{ 128, 0.5, 64 }, { 128, 0.25, 32 }, { 128, 0.7, 90 },
		{ 5, 0.5, 2 },	  { 7, 0.5, 4 },     { 128, 0.98, 128 },
		{ 128, 0.979, 125 }, { 128, 1, 128 }, { 128, 1e-9, 1 },
		{ 128, 0, 0 },	  { 128, -1, 0 },    { 128, 1.01, 0 },
		{ 128, NAN, 0 },
	};

	for (size_t i = 0; i < NUM_ROWS(rows); i++)
		ck_assert_uint_eq(ucm_star_kept(rows[i].dim, rows[i].ratio),
				  rows[i].want);
}
