/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rope_shift.c - keys are rotated to where their text stands, whatever
 * their type, strides and pairing, and by as much as the model's configuration
 * says.
 */
#include <config.h>

#include "sparse/rope.h"
#include "tests/unit/sparse/rope_fixture.h"
#include "tests/unit/sparse_fixture.h"

#define CASES 400u

/* ---- what is shifted ---- */

struct shift_case {
	struct ucm_rope rope;
	struct ucm_shift_request request;
	struct cache from, to;
	uint32_t dtype;
	int32_t *deltas, from_blocks[8], to_blocks[8];
};

static void permute(int32_t *ids, uint32_t num, uint64_t *random)
{
	for (uint32_t i = 0; i < num; i++) {
		uint32_t j = (uint32_t)random_between(random, 0, i);

		ids[i] = ids[j];
		ids[j] = (int32_t)i;
	}
}

static struct ucm_key_room room_of(const struct cache *cache)
{
	return (struct ucm_key_room){
		(void *)(uintptr_t)cache->keys.base, cache->keys.num_blocks,
		cache->keys.stride_block, cache->keys.stride_token,
		cache->keys.stride_head,
	};
}

static struct ucm_rope random_rope(uint64_t *random)
{
	struct ucm_rope rope =
		models[random_between(random, 0, NUM_ROWS(models) - 1)];

	rope.pairing = (uint32_t)random_between(random, 0, 1);
	if (random_between(random, 0, 1)) {
		rope.head_dim = 2 * (uint32_t)random_between(random, 1, 80);
		rope.rotary_dim = 2 * (uint32_t)random_between(
					      random, 0, rope.head_dim / 2);
	}
	return rope;
}

static int32_t random_delta(uint64_t *random)
{
	int64_t most = random_between(random, 0, 1) ? 100 : 1 << 20;

	return (int32_t)random_between(random, -most, most);
}

/* The same for a number, whatever it is done with. */
static struct shift_case shift_case_make(unsigned number)
{
	uint64_t random = random_case(number);
	struct shift_case c = { .rope = random_rope(&random) };
	struct ucm_repr_spec spec = {
		.num_heads = (uint32_t)random_between(&random, 1, 4),
		.head_dim = c.rope.head_dim,
		.block_size = (uint32_t)random_between(&random, 1, 9),
	};
	uint32_t there = (uint32_t)random_between(&random, 1, 8), all;

	c.dtype = input_types[random_between(&random, 0, 2)];
	c.from = cache_make(&spec, c.dtype, there, &random);
	c.to = cache_make(&spec, c.dtype, there, &random);
	permute(c.from_blocks, there, &random);
	permute(c.to_blocks, there, &random);
	c.request.num = (size_t)random_between(&random, 1, there);
	c.request.num_heads = spec.num_heads;
	c.request.block_size = spec.block_size;
	c.request.last_tokens =
		(uint32_t)random_between(&random, 1, spec.block_size);
	c.request.per_token = (uint32_t)random_between(&random, 0, 1);
	c.request.unrotated = (uint32_t)random_between(&random, 0, 1);
	all = (uint32_t)c.request.num * spec.block_size;
	c.deltas = malloc(all * sizeof(*c.deltas));
	must(c.deltas);
	for (uint32_t i = 0; i < all; i++) /* often the same again */
		c.deltas[i] = i && random_between(&random, 0, 2)
				      ? c.deltas[i - 1] : random_delta(&random);
	c.request.from = c.from.keys;
	c.request.to = room_of(&c.to);
	return c;
}

/* Now it is where it stays. */
static void shift_case_bind(struct shift_case *c)
{
	c->request.from_blocks = c->from_blocks;
	c->request.to_blocks = c->to_blocks;
	c->request.deltas = c->deltas;
}

static void shift_case_free(struct shift_case *c)
{
	free(c->from.memory);
	free(c->to.memory);
	free(c->deltas);
}

static size_t memory_bytes(const struct cache *cache)
{
	return (size_t)llabs(cache->keys.stride_block) *
	       cache->keys.num_blocks * type_bytes(cache->keys.dtype);
}

static uint8_t *copy_of(const struct cache *cache)
{
	uint8_t *copy = malloc(memory_bytes(cache));

	must(copy);
	return memcpy(copy, cache->memory, memory_bytes(cache));
}

static int32_t case_delta(const struct shift_case *c, size_t i, uint32_t token)
{
	return c->deltas[c->request.per_token
				 ? i * c->request.block_size + token : i];
}

/* A channel after the shift, in double, and the length of its pair. */
static double exact(const struct shift_case *c, uint64_t block, uint32_t token,
		    uint32_t head, uint32_t channel, int32_t delta,
		    double *length)
{
	const struct ucm_rope *rope = &c->rope;
	uint32_t dim = rope->rotary_dim ? rope->rotary_dim : rope->head_dim;
	double factor = 1, x, y, angle;
	uint32_t pair, other;
	bool first;

	*length = 0;
	x = cache_key(&c->from, block, token, head, channel);
	if (channel >= dim)
		return x;
	pair = rope->pairing ? channel / 2 : channel % (dim / 2);
	first = rope->pairing ? channel % 2 == 0 : channel < dim / 2;
	other = rope->pairing ? channel ^ 1 : (channel + dim / 2) % dim;
	y = cache_key(&c->from, block, token, head, other);
	if (rope->scaling == UCM_ROPE_YARN && c->request.unrotated)
		factor = rope->attention_factor > 0
				 ? rope->attention_factor
				 : .1 * log(rope->factor) + 1;
	angle = (double)fmodl(delta * (long double)naive_frequency(rope, pair),
			      6.283185307179586476925286766559L);
	*length = factor * hypot(x, y);
	return factor * (x * cos(angle) + (first ? -y : y) * sin(angle));
}

static double type_error(uint32_t dtype, double value)
{
	return dtype == UCM_DTYPE_FLOAT32 ? fabs(value) * 0x1p-24
	       : dtype == UCM_DTYPE_FLOAT16 ? fabs(value) * 0x1p-11 + 0x1p-25
					    : fabs(value) * 0x1p-8;
}

static void check_token(const struct shift_case *c, size_t i, uint32_t token)
{
	int32_t delta = case_delta(c, i, token);
	uint64_t from = (uint64_t)c->from_blocks[i];
	uint64_t to = (uint64_t)c->to_blocks[i];

	for (uint32_t head = 0; head < c->request.num_heads; head++) {
		for (uint32_t j = 0; j < c->rope.head_dim; j++) {
			double length, want = exact(c, from, token, head, j,
						    delta, &length);
			double got = cache_key(&c->to, to, token, head, j);

			/* positions up to 2^20: the double's share is small */
			must(fabs(got - want) <=
			     (type_error(c->dtype, want) + 0x1p-22 * length) *
				     1.01);
		}
	}
}

/* All that was not to be written, as it was before. */
static void check_rest(const struct shift_case *c, const uint8_t *before)
{
	uint8_t *seen = calloc(1, memory_bytes(&c->to));
	size_t row = c->rope.head_dim * type_bytes(c->dtype);

	must(seen);
	for (size_t i = 0; i < c->request.num; i++) {
		uint32_t tokens = i + 1 < c->request.num
					  ? c->request.block_size
					  : c->request.last_tokens;

		for (uint32_t token = 0; token < tokens; token++)
			for (uint32_t h = 0; h < c->request.num_heads; h++)
				memset(seen + (cache_at(&c->to,
						(uint64_t)c->to_blocks[i],
						token, h, 0) - c->to.memory),
				       1, row);
	}
	for (size_t i = 0; i < memory_bytes(&c->to); i++)
		must(seen[i] || c->to.memory[i] == before[i]);
	free(seen);
}

UNIT_TEST(keys_are_rotated_as_the_formula_says, .rows = NUM_ROWS(ways))
{
	bool can = use_way(_i);

	for (unsigned number = 0; can && number < CASES; number++) {
		struct shift_case c = shift_case_make(number);
		uint8_t *before = copy_of(&c.to);

		shift_case_bind(&c);
		ck_assert_int_eq(ucm_rope_shift(&c.rope, &c.request, NULL), 0);
		for (size_t i = 0; i < c.request.num; i++) {
			uint32_t tokens = i + 1 < c.request.num
						  ? c.request.block_size
						  : c.request.last_tokens;

			for (uint32_t token = 0; token < tokens; token++)
				check_token(&c, i, token);
		}
		check_rest(&c, before);
		free(before);
		shift_case_free(&c);
	}
}

UNIT_TEST(all_ways_give_the_same_bits, .rows = NUM_ROWS(ways))
{
	bool can = use_way(_i);

	for (unsigned number = 0; can && number < CASES; number++) {
		struct shift_case a = shift_case_make(number);
		struct shift_case b = shift_case_make(number);

		shift_case_bind(&a);
		shift_case_bind(&b);
		must(ucm_sparse_kernels_use("plain"));
		must(!ucm_rope_shift(&a.rope, &a.request, NULL));
		must(use_way(_i));
		must(!ucm_rope_shift(&b.rope, &b.request, NULL));
		must(!memcmp(a.to.memory, b.to.memory, memory_bytes(&a.to)));
		shift_case_free(&a);
		shift_case_free(&b);
	}
}

UNIT_TEST(in_place_is_as_good_as_elsewhere)
{
	for (unsigned number = 0; number < CASES; number++) {
		struct shift_case a = shift_case_make(number);
		struct shift_case b = shift_case_make(number);

		/* from the same place to a copy's, and to itself */
		free(a.to.memory);
		a.to = a.from;
		a.to.memory = copy_of(&a.from);
		a.to.keys.base = a.to.memory + ((const uint8_t *)a.from.keys.base -
						a.from.memory);
		a.request.to = room_of(&a.to);
		b.request.to = room_of(&b.from);
		memcpy(a.to_blocks, a.from_blocks, sizeof(a.to_blocks));
		memcpy(b.to_blocks, b.from_blocks, sizeof(b.to_blocks));
		shift_case_bind(&a);
		shift_case_bind(&b);
		must(!ucm_rope_shift(&a.rope, &a.request, NULL));
		must(!ucm_rope_shift(&b.rope, &b.request, NULL));
		must(!memcmp(a.to.memory, b.from.memory,
			     memory_bytes(&a.to)));
		shift_case_free(&a);
		shift_case_free(&b);
	}
}

/* A single head of floats, from one array to another. */
static void shift_row(const struct ucm_rope *rope, const float *from,
		      float *to, int32_t delta, bool unrotated)
{
	struct ucm_shift_request request = {
		.from = { from, UCM_DTYPE_FLOAT32, 1, 0, 0, 0 },
		.to = { to, 1, 0, 0, 0 },
		.num = 1, .num_heads = 1, .block_size = 1, .last_tokens = 1,
		.deltas = &delta, .unrotated = unrotated,
	};

	must(!ucm_rope_shift(rope, &request, NULL));
}

static double distance(const float *a, const float *b, uint32_t num)
{
	double sum = 0;

	for (uint32_t i = 0; i < num; i++)
		sum += ((double)a[i] - (double)b[i]) *
		       ((double)a[i] - (double)b[i]);
	return sqrt(sum);
}

static double length_of(const float *a, uint32_t num)
{
	float zeros[UCM_REPR_HEAD_DIM_MAX] = { 0 };

	return distance(a, zeros, num);
}

UNIT_TEST(two_rotations_are_one_by_their_sum)
{
	float key[160], once[160], twice[160];
	uint64_t random = random_case(0);

	for (int i = 0; i < 3000; i++) {
		struct ucm_rope rope = random_rope(&random);
		int32_t a = random_delta(&random), b = random_delta(&random);
		uint32_t num = rope.head_dim;
		double size;

		for (uint32_t j = 0; j < num; j++)
			key[j] = random_float(&random, 3);
		size = length_of(key, num);
		shift_row(&rope, key, once, a + b, false);
		shift_row(&rope, key, twice, a, false);
		must(fabs(length_of(twice, num) - size) <= 0x1p-21 * size);
		shift_row(&rope, twice, twice, b, false);
		must(distance(once, twice, num) <= 0x1p-20 * size);
		shift_row(&rope, twice, twice, -a - b, false);
		must(distance(key, twice, num) <= 0x1p-20 * size);
	}
}

/* What a first layer's keys are: they depend on token and position alone. */
UNIT_TEST(a_moved_key_is_the_one_computed_there, .rows = NUM_ROWS(models))
{
	const struct ucm_rope *rope = &models[_i];
	float raw[128], moved[128], there[128];
	uint64_t random = random_case(0);

	for (int i = 0; i < 1000; i++) {
		int32_t source = (int32_t)random_between(&random, 0, 1 << 20);
		int32_t target = (int32_t)random_between(&random, 0, 1 << 20);

		for (uint32_t j = 0; j < rope->head_dim; j++)
			raw[j] = random_float(&random, 3);
		shift_row(rope, raw, moved, source, true);
		shift_row(rope, moved, moved, target - source, false);
		shift_row(rope, raw, there, target, true);
		must(distance(moved, there, rope->head_dim) <=
		     0x1p-20 * length_of(there, rope->head_dim));
	}
}

UNIT_TEST(the_attention_factor_is_applied_when_a_key_is_first_rotated)
{
	const struct ucm_rope rope = { 0, UCM_ROPE_YARN, 128, 64, 1e6, 4, 32768,
				       0, 0, 0, 0, 0 };
	double factor = .1 * log(4) + 1;
	float key[128], out[128];
	uint64_t random = random_case(0);

	for (uint32_t j = 0; j < 128; j++)
		key[j] = random_float(&random, 3);
	shift_row(&rope, key, out, 0, true);
	for (uint32_t j = 0; j < 128; j++)
		ck_assert_float_eq_tol(out[j] / key[j], j < 64 ? factor : 1,
				       1e-6);
	shift_row(&rope, key, out, 12345, false);
	ck_assert_double_eq_tol(length_of(out, 128), length_of(key, 128), 1e-4);
}

/* Many are halfway between two, and some are subnormal, before or after. */
UNIT_TEST(every_bfloat16_is_rounded_as_by_itself, .rows = NUM_ROWS(ways))
{
	static const uint32_t dims[][2] = { { 128, 128 }, { 256, 64 },
					    { 64, 64 }, { 256, 182 } };
	bool can = use_way(_i);
	static uint16_t from[65536], to[65536];
	struct ucm_rope_table table;
	uint64_t random = random_case(0);

	for (uint32_t i = 0; i < 65536; i++)
		from[i] = (i & 0x7f80) == 0x7f80 ? 0 : (uint16_t)i;
	for (int n = 0; can && n < 8; n++) {
		uint32_t dim = dims[n / 2][0], rotary = dims[n / 2][1];
		struct ucm_rotate_run run = {
			(uint8_t *)from, (uint8_t *)to, 65536 / dim, 1,
			2 * dim, 0, 2 * dim, 0, dim, rotary, n % 2,
			table.cosines, table.sines,
		};

		for (uint32_t i = 65535; i; i--) { /* pairs are not neighbours */
			uint32_t j = (uint32_t)random_between(&random, 0, i);
			uint16_t other = from[j];

			from[j] = from[i];
			from[i] = other;
		}
		for (uint32_t i = 0; i < rotary; i++) { /* many end in zeros */
			table.cosines[i] = ldexpf((float)random_between(
				&random, -16, 16), -4);
			table.sines[i] = ldexpf((float)random_between(
				&random, -16, 16), -4);
		}
		for (uint32_t i = 0; i < rotary / 2; i++) {
			uint32_t first = n % 2 ? 2 * i : i;
			uint32_t second = n % 2 ? first + 1 : rotary / 2 + i;

			table.cosines[second] = table.cosines[first];
			table.sines[second] = -table.sines[first];
		}
		ucm_sparse_kernels()->rotate[UCM_DTYPE_BFLOAT16](&run);
		for (uint32_t i = 0; i < 65536; i++) {
			uint32_t at = i % dim, pair = n % 2 ? at ^ 1
					: (at + rotary / 2) % rotary;
			float x = ucm_float_of_bfloat16(from[i]);

			if (at >= rotary) {
				must(to[i] == from[i]);
				continue;
			}
			must(to[i] == ucm_rotated_bfloat16(ucm_rotated(
				x, ucm_float_of_bfloat16(from[i - at + pair]),
				table.cosines[at], table.sines[at])));
		}
	}
}

UNIT_TEST(by_0_every_bit_stays, .rows = NUM_ROWS(ways))
{
	bool can = use_way(_i);
	static uint16_t from[65536], to[65536];
	int32_t delta = 0;

	for (int pairing = 0; can && pairing < 4; pairing++) {
		struct ucm_rope rope = { .pairing = pairing & 1,
					 .head_dim = 1024, .base = 10000 };
		struct ucm_shift_request request = {
			.from = { from, pairing & 2 ? UCM_DTYPE_FLOAT16
						    : UCM_DTYPE_BFLOAT16,
				  1, 0, 1024, 0 },
			.to = { to, 1, 0, 1024, 0 },
			.num = 1, .num_heads = 1, .block_size = 64,
			.last_tokens = 64, .deltas = &delta, .unchecked = 1,
		};

		for (uint32_t i = 0; i < 65536; i++)
			from[i] = (uint16_t)i; /* NaN and -0 too */
		memset(to, 0x55, sizeof(to));
		must(!ucm_rope_shift(&rope, &request, NULL));
		must(!memcmp(from, to, sizeof(to)));
		request.to.base = from;
		must(!ucm_rope_shift(&rope, &request, NULL));
		must(!memcmp(from, to, sizeof(to)));
	}
}

UNIT_TEST(what_is_not_finite_is_refused_or_stays_so, .rows = NUM_ROWS(ways))
{
	bool can = use_way(_i);
	static const float bad[] = { NAN, -NAN, INFINITY, -INFINITY };
	int32_t delta = 7;

	for (uint32_t i = 0; can && i < 3 * 4 * 40; i++) {
		struct ucm_rope rope = { .pairing = i & 1, .head_dim = 80,
					 .base = 10000 };
		uint32_t dtype = input_types[i % 3], at = i / 12 * 2;
		uint32_t other = rope.pairing ? at ^ 1 : (at + 40) % 80;
		float memory[80];
		struct ucm_shift_request request = {
			.from = { memory, dtype, 1, 0, 0, 0 },
			.to = { memory, 1, 0, 0, 0 }, .num = 1, .num_heads = 1,
			.block_size = 1, .last_tokens = 1, .deltas = &delta,
			.unchecked = 1,
		};
		struct ucm_error error;
		uint8_t before[sizeof(memory)];
		uint8_t *bytes = (uint8_t *)memory;
		size_t item = type_bytes(dtype);

		for (uint32_t j = 0; j < 80; j++)
			store_number(bytes + j * item, dtype, 1);
		if (dtype == UCM_DTYPE_FLOAT32) {
			memory[at] = bad[i / 3 % 4];
		} else {
			uint16_t top = dtype == UCM_DTYPE_FLOAT16 ? 0x7c00
								  : 0x7f80;
			uint16_t half = top | (i / 3 % 2 ? 0 : 0x7f) |
					(i / 3 % 4 > 1 ? 0x8000 : 0);

			memcpy(bytes + at * item, &half, sizeof(half));
		}
		memcpy(before, memory, sizeof(before));
		request.unchecked = 0;
		assert_einval(ucm_rope_shift(&rope, &request, &error), error,
			      "from: block 0, token 0, head 0: not finite");
		must(!memcmp(before, memory, sizeof(before)));
		request.unchecked = 1;
		must(!ucm_rope_shift(&rope, &request, NULL));
		for (uint32_t j = 0; j < 80; j++)
			must(ucm_float_finite(load_number(bytes + j * item,
							  dtype)) ==
			     (j != at && j != other));
	}
}

/* Each number of a type, alone in a row. */
UNIT_TEST(finite_is_each_number_but_those_that_are_not, .rows = NUM_ROWS(ways))
{
	bool can = use_way(_i);

	for (uint32_t bits = 0; can && bits <= 0xffff; bits++) {
		for (uint32_t type = 0; type < 3; type++) {
			uint32_t dtype = input_types[type], at = bits % 37;
			size_t item = type_bytes(dtype);
			uint8_t row[37 * 4] = { 0 };
			uint32_t word = bits << 16 | bits;

			memcpy(row + at * item, &word, item);
			must(ucm_sparse_kernels()->finite(row, 37 * item,
							  dtype) ==
			     ucm_float_finite(load_number(row + at * item,
							  dtype)));
		}
	}
}
