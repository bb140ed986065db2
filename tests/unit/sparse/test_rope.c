/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rope.c - angles are right to their last bits, frequencies are those of
 * the model's configuration, and wrong ones are named.
 */
#include <config.h>

#include "sparse/rope.h"
#include "tests/unit/sparse/rope_fixture.h"
#include "tests/unit/sparse_fixture.h"

/* ---- angles ---- */

UNIT_TEST(sines_and_cosines_are_right_to_the_last_bits_of_a_double)
{
	uint64_t random = random_case(0);

	for (int i = 0; i < 1000000; i++) {
		double turns = ldexp((double)(int64_t)random_next(&random),
				     -(int)random_between(&random, 40, 70));
		long double angle = remainderl((long double)turns, 1) *
				    6.283185307179586476925286766559L;
		double c, s;

		ucm_turn(turns, &c, &s);
		must(fabsl(cosl(angle) - (long double)c) <= 0x1.8p-52L);
		must(fabsl(sinl(angle) - (long double)s) <= 0x1.8p-52L);
	}
	for (int i = -16; i <= 16; i++) {
		double c, s;

		ucm_turn(i / 4.0, &c, &s);
		must(c == (i % 2 ? 0 : i % 4 ? -1 : 1));
		must(s == (i % 2 ? ((i & 3) == 1 ? 1 : -1) : 0));
	}
}

static const struct ucm_rope plain = { .head_dim = 128, .base = 10000 };

UNIT_TEST(frequencies_are_those_of_the_formulas, .rows = NUM_ROWS(models))
{
	const struct ucm_rope *rope = &models[_i];
	double got[UCM_REPR_HEAD_DIM_MAX / 2 + 1];
	uint32_t num = (rope->rotary_dim ? rope->rotary_dim : rope->head_dim) /
		       2;
	struct ucm_error error;

	got[num] = 77;
	ck_assert_int_eq(ucm_rope_frequencies(rope, got, num, NULL), 0);
	for (uint32_t i = 0; i < num; i++) {
		double want = naive_frequency(rope, i);

		must(fabs(got[i] - want) <= 1e-13 * want);
	}
	must(got[num] == 77);
	got[0] = 77;
	assert_einval(ucm_rope_frequencies(rope, got, num - 1, &error), error,
		      "room");
	must(got[0] == 77);
}

/* ---- wrong arguments ---- */

static void fill_model(struct ucm_rope *rope, const struct ucm_rope *from)
{
	*rope = *from;
	rope->pairing = 0;
}

UNIT_TEST(wrong_rotations_are_named)
{
	static const struct {
		const char *name;
		size_t at;
		double number; /* or a whole one */
		uint32_t whole;
		const struct ucm_rope *model;
	} wrong[] = {
#define WHOLE(name, value, model)                                             \
	{ #name, offsetof(struct ucm_rope, name), 0, value, model }
#define NUMBER(name, value, model)                                            \
	{ #name, offsetof(struct ucm_rope, name), value, 0, model }
		WHOLE(pairing, 2, &plain), WHOLE(scaling, 4, &plain),
		WHOLE(head_dim, 1, &plain), WHOLE(head_dim, 1026, &plain),
		WHOLE(rotary_dim, 130, &plain), WHOLE(rotary_dim, 7, &plain),
		NUMBER(base, 1, &plain), NUMBER(base, NAN, &plain),
		NUMBER(base, INFINITY, &plain), NUMBER(factor, .5, &models[3]),
		NUMBER(factor, NAN, &models[7]), NUMBER(factor, .99, &models[2]),
		WHOLE(original_length, 0, &models[3]),
		WHOLE(original_length, 0, &models[7]),
		NUMBER(attention_factor, -1, &models[3]),
		NUMBER(attention_factor, NAN, &models[3]),
		NUMBER(low_freq_factor, 4, &models[7]),
		NUMBER(low_freq_factor, -1, &models[7]),
#undef WHOLE
#undef NUMBER
	};

	for (size_t i = 0; i < NUM_ROWS(wrong); i++) {
		struct ucm_rope rope;
		struct ucm_error error;
		double out[512] = { 5 };

		fill_model(&rope, wrong[i].model);
		if (wrong[i].number != 0)
			memcpy((char *)&rope + wrong[i].at, &wrong[i].number,
			       sizeof(double));
		else
			memcpy((char *)&rope + wrong[i].at, &wrong[i].whole,
			       sizeof(uint32_t));
		assert_einval(ucm_rope_frequencies(&rope, out, 512, &error),
			      error, wrong[i].name);
		must(out[0] == 5);
	}
}

UNIT_TEST(slow_and_fast_are_told_apart)
{
	struct ucm_rope rope = models[3];
	struct ucm_error error;
	double out[512];

	rope.beta_slow = 32;
	rope.beta_fast = 1;
	assert_einval(ucm_rope_frequencies(&rope, out, 512, &error), error,
		      "beta_slow, beta_fast: 32 and 1");
}

UNIT_TEST(wrong_requests_are_named_and_write_nothing)
{
	static const char *const names[] = {
		"from is NULL", "to is NULL", "from: dtype", "num_heads 0",
		"num_heads 1025", "block_size 0", "block_size 65537",
		"last_tokens 0", "last_tokens 5", "from_blocks",
		"to_blocks", "from_blocks", "to_blocks",
		"from: stride_block", "to: stride_block",
		"deltas is NULL", "deltas: number 1",
		"deltas: number 7",
	};
	float from[2 * 4 * 128] = { 1 }, to[2 * 4 * 128] = { 2 };
	int32_t deltas[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
	int32_t bad_blocks[] = { 0, 2 };
	struct ucm_error error;

	for (size_t i = 0; i < NUM_ROWS(names); i++) {
		struct ucm_shift_request r = {
			.from = { from, UCM_DTYPE_FLOAT32, 2, 512, 128, 128 },
			.to = { to, 2, 512, 128, 128 },
			.num = 2, .num_heads = 1, .block_size = 4,
			.last_tokens = 4, .deltas = deltas, .per_token = 1,
		};

		switch (i) {
		case 0: r.from.base = NULL; break;
		case 1: r.to.base = NULL; break;
		case 2: r.from.dtype = UCM_DTYPE_INT8; break;
		case 3: r.num_heads = 0; break;
		case 4: r.num_heads = 1025; break;
		case 5: r.block_size = 0; break;
		case 6: r.block_size = 65537; break;
		case 7: r.last_tokens = 0; break;
		case 8: r.last_tokens = 5; break;
		case 9: r.from_blocks = bad_blocks; break;
		case 10: r.to_blocks = bad_blocks; break;
		case 11: r.from.num_blocks = 1; break;
		case 12: r.to.num_blocks = 1; break;
		case 13: r.from.stride_block = INT64_MAX; break;
		case 14: r.to.stride_token = INT64_MIN; break;
		case 15: r.deltas = NULL; break;
		case 16: deltas[1] = UCM_POSITION_MAX + 1; break;
		default: deltas[7] = INT32_MIN; break;
		}
		assert_einval(ucm_rope_shift(&plain, &r, &error), error,
			      names[i]);
		must(to[0] == 2 && to[1] == 0);
		deltas[1] = 2;
	}
	assert_einval(ucm_rope_shift(&plain, NULL, &error), error,
		      "request is NULL");
	assert_einval(ucm_rope_shift(NULL, &(struct ucm_shift_request){ 0 },
				     &error), error, "rope is NULL");
	ck_assert_int_eq(ucm_rope_shift(&plain, &(struct ucm_shift_request){ 0 },
					&error), 0); /* no blocks */
}
