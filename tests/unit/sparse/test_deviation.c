/* SPDX-License-Identifier: Apache-2.0 */
/* test_deviation.c - how far cached tokens are from fresh ones, and which of them
 * are computed anew: never more than was asked for, nor others. */
#include <config.h>

#include "tests/unit/sparse_fixture.h"

/* ---- deviation ---- */

/* Cached rows in blocks, and fresh ones in a row. */
struct scene {
	struct ucm_deviation_request request;
	struct cache cached, fresh, cached_values, fresh_values;
	int32_t table[16];
};

static struct scene *scene_make(unsigned number)
{
	static const uint32_t dims[] = { 1, 7, 31, 32, 33, 64, 128, 200 };
	uint64_t random = random_case(number);
	struct scene *s = calloc(1, sizeof(*s));
	struct ucm_repr_spec spec = {
		.num_heads = (uint32_t)random_between(&random, 1, 4),
		.head_dim = dims[random_between(&random, 0,
						NUM_ROWS(dims) - 1)],
		.block_size = (uint32_t)random_between(&random, 1, 9),
	};
	uint32_t blocks = (uint32_t)random_between(&random, 1, 12);
	struct ucm_deviation_request *r;

	must(s);
	r = &s->request;
	r->num_heads = spec.num_heads;
	r->head_dim = spec.head_dim;
	r->block_size = spec.block_size;
	r->num_tokens = (blocks - 1) * spec.block_size +
		(uint32_t)random_between(&random, 1, spec.block_size);
	r->relative = (uint32_t)random_between(&random, 0, 1);
	s->cached = cache_make(&spec, input_types[random_between(&random, 0, 2)],
			       blocks, &random);
	s->cached_values = cache_make(&spec, UCM_DTYPE_BFLOAT16, blocks,
				      &random);
	spec.block_size = r->num_tokens;
	s->fresh = cache_make(&spec, input_types[random_between(&random, 0, 2)],
			      1, &random);
	s->fresh_values = cache_make(&spec, UCM_DTYPE_FLOAT32, 1, &random);
	r->cached = s->cached.keys;
	r->fresh = s->fresh.keys;
	if (random_between(&random, 0, 1)) {
		r->cached_values = s->cached_values.keys;
		r->fresh_values = s->fresh_values.keys;
	}
	for (uint32_t i = 0; i < blocks; i++) {
		uint32_t j = (uint32_t)random_between(&random, 0, i);

		s->table[i] = s->table[j];
		s->table[j] = (int32_t)i;
	}
	r->table = s->table;
	return s;
}

static void scene_free(struct scene *s)
{
	free(s->cached.memory);
	free(s->fresh.memory);
	free(s->cached_values.memory);
	free(s->fresh_values.memory);
	free(s);
}

static void take(const struct scene *s, const struct cache *cached,
		 const struct cache *fresh, uint32_t token, double *sum,
		 double *size)
{
	const struct ucm_deviation_request *r = &s->request;
	uint64_t block = (uint64_t)s->table[token / r->block_size];

	for (uint32_t head = 0; head < r->num_heads; head++) {
		for (uint32_t i = 0; i < r->head_dim; i++) {
			double a = cache_key(cached, block,
					     token % r->block_size, head, i);
			double b = cache_key(fresh, 0, token, head, i);

			*sum += fabs(a - b);
			*size += fabs(b);
		}
	}
}

UNIT_TEST(a_deviation_is_the_sum_of_differences, .rows = NUM_ROWS(ways))
{
	bool can = use_way(_i);

	for (unsigned number = 0; can && number < 200; number++) {
		struct scene *s = scene_make(number);
		const struct ucm_deviation_request *r = &s->request;
		bool values = r->fresh_values.base;
		uint32_t terms = r->num_heads * r->head_dim * (values ? 2 : 1);
		float got[200], also[200];

		got[r->num_tokens] = 77;
		must(use_way(_i));
		must(!ucm_kv_deviation(r, got, NULL));
		must(ucm_sparse_kernels_use("plain"));
		must(!ucm_kv_deviation(r, also, NULL));
		must(!memcmp(got, also, r->num_tokens * sizeof(*got)));
		must(got[r->num_tokens] == 77);
		for (uint32_t i = 0; i < r->num_tokens; i++) {
			double sum = 0, size = 0, want;

			take(s, &s->cached, &s->fresh, i, &sum, &size);
			if (values)
				take(s, &s->cached_values, &s->fresh_values, i,
				     &sum, &size);
			want = r->relative ? sum / size : sum;
			must(fabs(got[i] - want) <=
			     (terms + 2) * 0x1p-24 * want *
				     (r->relative ? 2 : 1));
		}
		scene_free(s);
	}
}

UNIT_TEST(what_is_the_same_does_not_deviate)
{
	float row[2 * 3 * 40], out[2];
	struct ucm_keys keys = { row, UCM_DTYPE_FLOAT32, 1, 0, 120, 40 };
	struct ucm_deviation_request request = {
		.cached = keys, .fresh = keys, .num_tokens = 2, .num_heads = 3,
		.head_dim = 40, .block_size = 2,
	};
	uint64_t random = random_case(0);

	for (size_t i = 0; i < NUM_ROWS(row); i++)
		row[i] = random_float(&random, 1e30f);
	for (int relative = 0; relative < 2; relative++) {
		request.relative = (uint32_t)relative;
		out[0] = out[1] = 7;
		must(!ucm_kv_deviation(&request, out, NULL));
		must(out[0] == 0 && out[1] == 0);
		memset(row, 0, sizeof(row)); /* 0 of 0 */
	}
}

/* A first layer's keys depend on token and position alone. */
UNIT_TEST(in_a_first_layer_moved_keys_do_not_deviate)
{
	enum { HEADS = 4, DIM = 64, TOKENS = 24, SIZE = 8 };
	const struct ucm_rope rope = {
		.scaling = UCM_ROPE_LLAMA3, .head_dim = DIM, .base = 500000,
		.factor = 8, .original_length = 8192,
	};
	static float raw[TOKENS * HEADS * DIM], was[TOKENS * HEADS * DIM];
	static float is[TOKENS * HEADS * DIM];
	int32_t positions[TOKENS], there[TOKENS], move[TOKENS], table[3];
	uint64_t random = random_case(0);
	struct ucm_shift_request first = {
		.from = { raw, UCM_DTYPE_FLOAT32, 3, SIZE * HEADS * DIM,
			  HEADS * DIM, DIM },
		.to = { was, 3, SIZE * HEADS * DIM, HEADS * DIM, DIM },
		.num = 3, .num_heads = HEADS, .block_size = SIZE,
		.last_tokens = SIZE, .deltas = positions, .per_token = 1,
		.unrotated = 1,
	}, second = first, shift = first;
	struct ucm_deviation_request request = {
		.fresh = first.from, .table = table, .num_tokens = TOKENS,
		.num_heads = HEADS, .head_dim = DIM, .block_size = SIZE,
		.relative = 1,
	};
	float deviations[TOKENS];

	for (size_t i = 0; i < NUM_ROWS(raw); i++)
		raw[i] = random_float(&random, 2);
	for (int i = 0; i < TOKENS; i++) {
		positions[i] = 1000 + i;
		there[i] = 77777 + i;
		move[i] = 76777;
	}
	for (int i = 0; i < 3; i++)
		table[i] = i;
	second.to.base = is;
	second.deltas = there;
	shift.from.base = was;
	shift.deltas = move;
	shift.unrotated = 0;
	must(!ucm_rope_shift(&rope, &first, NULL));
	must(!ucm_rope_shift(&rope, &second, NULL));
	request.cached = shift.from;
	request.fresh.base = is;
	must(!ucm_kv_deviation(&request, deviations, NULL));
	for (int i = 0; i < TOKENS; i++)
		must(deviations[i] > .1f); /* where it was */
	must(!ucm_rope_shift(&rope, &shift, NULL));
	must(!ucm_kv_deviation(&request, deviations, NULL));
	for (int i = 0; i < TOKENS; i++)
		must(deviations[i] < 1e-6f);
}

UNIT_TEST(what_is_not_finite_or_too_large_is_refused)
{
	for (unsigned number = 0; number < 40; number++) {
		static const char *const names[] = {
			"cached: block", "fresh: block", "cached_values: block",
			"fresh_values: block",
		};
		struct scene *s = scene_make(number);
		struct ucm_deviation_request *r = &s->request;
		struct cache *caches[] = { &s->cached, &s->fresh,
					   &s->cached_values,
					   &s->fresh_values };
		uint32_t last = r->num_tokens - 1;
		struct ucm_error error;
		float out[200] = { 77 };
		bool paged = number % 2 == 0;

		r->cached_values = s->cached_values.keys;
		r->fresh_values = s->fresh_values.keys;
		store_number(cache_at(caches[number % 4],
				      paged ? (uint64_t)s->table[last /
								 r->block_size]
					    : 0,
				      paged ? last % r->block_size : last,
				      r->num_heads - 1, r->head_dim - 1),
			     caches[number % 4]->keys.dtype, INFINITY);
		assert_einval(ucm_kv_deviation(r, out, &error), error,
			      names[number % 4]);
		must(out[0] == 77);
		scene_free(s);
	}
}

UNIT_TEST(a_sum_beyond_float32_is_out_of_range)
{
	float a[2] = { 0, 3e38f }, b[2] = { 0, -3e38f }, out[2] = { 77, 77 };
	struct ucm_deviation_request request = {
		.cached = { a, UCM_DTYPE_FLOAT32, 1, 0, 1, 0 },
		.fresh = { b, UCM_DTYPE_FLOAT32, 1, 0, 1, 0 },
		.num_tokens = 2, .num_heads = 1, .head_dim = 1, .block_size = 2,
	};
	struct ucm_error error;

	ck_assert_int_eq(ucm_kv_deviation(&request, out, &error), -ERANGE);
	ck_assert_str_eq(error.text, "token 1: too large for float32");
	must(out[0] == 77);
}

UNIT_TEST(wrong_deviation_requests_are_named)
{
	static const char *const names[] = {
		"num_tokens 0", "num_heads 0", "head_dim 1025", "block_size 0",
		"cached is NULL", "fresh is NULL", "cached: dtype",
		"fresh: dtype", "table: number 1", "fresh 0 + 1",
		"cached_values is NULL", "fresh_values is NULL",
		"cached: stride_block", "fresh: stride_block",
	};
	float rows[64] = { 0 }, out[4] = { 77 };
	int32_t table[] = { 0, 2 };
	struct ucm_error error;

	for (size_t i = 0; i < NUM_ROWS(names); i++) {
		struct ucm_keys keys = { rows, UCM_DTYPE_FLOAT32, 2, 8, 4, 4 };
		struct ucm_deviation_request r = {
			.cached = keys, .fresh = keys, .num_tokens = 4,
			.num_heads = 1, .head_dim = 4, .block_size = 2,
		};

		switch (i) {
		case 0: r.num_tokens = 0; break;
		case 1: r.num_heads = 0; break;
		case 2: r.head_dim = 1025; break;
		case 3: r.block_size = 0; break;
		case 4: r.cached.base = NULL; break;
		case 5: r.fresh.base = NULL; break;
		case 6: r.cached.dtype = UCM_DTYPE_INT8; break;
		case 7: r.fresh.dtype = 0; break;
		case 8: r.table = table; break;
		case 9: r.fresh.num_blocks = 0; break;
		case 10: r.fresh_values = keys; break;
		case 11: r.cached_values = keys; break;
		case 12: r.cached.stride_block = INT64_MAX; break;
		default: r.fresh.stride_token = INT64_MIN; break;
		}
		assert_einval(ucm_kv_deviation(&r, out, &error), error,
			      names[i]);
		must(out[0] == 77);
	}
	assert_einval(ucm_kv_deviation(NULL, out, &error), error, "request");
	assert_einval(ucm_kv_deviation(&(struct ucm_deviation_request){ 0 },
				       NULL, &error), error, "out");
}

/* ---- the highest ---- */

#define MAX_TOKENS 400u

static const float *compared;

/* Highest first; of equal ones the lower. */
static int by_score(const void *a, const void *b)
{
	uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;

	return compared[i] > compared[j]   ? -1
	       : compared[i] < compared[j] ? 1
	       : i < j			   ? -1 : i > j;
}

static int by_number(const void *a, const void *b)
{
	uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;

	return i < j ? -1 : i > j;
}

/* As the rules are written; returns how many. */
static uint32_t naive_hkvd(const float *scores, uint32_t num, uint32_t rule,
			   double value, uint32_t *out)
{
	uint32_t order[MAX_TOKENS], n = 0, chosen = 0;
	double least = value;

	for (uint32_t i = 0; i < num; i++) {
		order[i] = i;
		n += scores[i] > -INFINITY;
	}
	compared = scores;
	qsort(order, num, sizeof(*order), by_score);
	if (rule == UCM_HKVD_QUANTILE && n) {
		double at = (n - 1) * value; /* from the highest */
		uint32_t low = (uint32_t)at;
		double high = scores[order[low]];
		double next = scores[order[low + 1 < n ? low + 1 : low]];

		least = at > low ? high + (next - high) * (at - low) : high;
	}
	for (uint32_t i = 0; i < n; i++) {
		if (rule == UCM_HKVD_THRESHOLD
			    ? scores[order[i]] >= least
			    : chosen < (uint32_t)(n * value) &&
				      (rule == UCM_HKVD_RATIO ||
				       scores[order[i]] >= least))
			out[chosen++] = order[i];
	}
	qsort(out, chosen, sizeof(*out), by_number);
	return chosen;
}

UNIT_TEST(the_chosen_are_those_of_the_rule, .rows = NUM_ROWS(ways))
{
	bool can = use_way(_i);

	for (unsigned number = 0; can && number < 3000; number++) {
		uint64_t random = random_case(number);
		uint32_t num = (uint32_t)random_between(&random, 0, MAX_TOKENS);
		uint32_t rule = (uint32_t)random_between(&random, 0, 2);
		double value = (double)random_between(&random, 0, 20) / 20;
		int64_t kind = random_between(&random, 0, 3);
		uint32_t want[MAX_TOKENS], got[MAX_TOKENS + 1], n, m = 77;
		float scores[MAX_TOKENS] = { 0 };

		for (uint32_t i = 0; i < num; i++) {
			scores[i] = fabsf(random_float(&random, 1));
			if (kind == 0) /* ties */
				scores[i] = rintf(scores[i] * 3);
			if (kind == 1)
				scores[i] = .25f;
			if (kind < 3 && random_between(&random, 0, 3) == 0)
				scores[i] = -INFINITY;
		}
		n = naive_hkvd(scores, num, rule, value, want);
		got[n] = 0xabcdef;
		must(!ucm_hkvd_select(scores, num, rule, value, got, n, &m,
				      NULL));
		must(m == n && got[n] == 0xabcdef);
		must(!memcmp(got, want, n * sizeof(*got)));
	}
}

UNIT_TEST(of_ratio_1_all_are_chosen)
{
	float scores[] = { 3, -INFINITY, 0, 7, 7, 1e-30f, INFINITY };
	static const uint32_t want[] = { 0, 2, 3, 4, 5, 6 };
	uint32_t out[7], num;

	for (uint32_t rule = 0; rule <= UCM_HKVD_QUANTILE; rule += 2) {
		must(!ucm_hkvd_select(scores, 7, rule, 1, out, 6, &num, NULL));
		must(num == 6 && !memcmp(out, want, sizeof(want)));
	}
}

UNIT_TEST(ties_never_make_it_more_than_the_ratio)
{
	float scores[100];
	uint32_t out[100], num;

	for (uint32_t i = 0; i < 100; i++)
		scores[i] = i < 50 ? 1 : 2;
	for (uint32_t rule = 0; rule <= UCM_HKVD_QUANTILE; rule += 2) {
		must(!ucm_hkvd_select(scores, 100, rule, .1, out, 100, &num,
				      NULL));
		must(num == 10 && out[0] == 50 && out[9] == 59);
	}
}

/* Each lies between two floats, of which the upper one alone reaches it: the
 * nearest is that one for .1, and the lower one for .7. */
static const double thresholds[] = { .1, .7 };

UNIT_TEST(a_threshold_is_a_double, .rows = NUM_ROWS(thresholds))
{
	double value = thresholds[_i];
	float near = (float)value;
	float below = near > value ? nextafterf(near, 0) : near;
	float above = near > value ? near : nextafterf(near, 1);
	float scores[] = { above, below, 0, 1 };
	uint32_t out[4], num;

	ck_assert(below < value && value < above);
	must(!ucm_hkvd_select(scores, 4, UCM_HKVD_THRESHOLD, value, out, 4,
			      &num, NULL));
	must(num == 2 && out[0] == 0 && out[1] == 3);
}

UNIT_TEST(a_threshold_beyond_float32_chooses_none)
{
	float scores[] = { 0, 1, 3e38f };
	uint32_t out[3], num;

	must(!ucm_hkvd_select(scores, 3, UCM_HKVD_THRESHOLD, 1e300, out, 3,
			      &num, NULL));
	must(num == 0);
}

UNIT_TEST(wrong_choices_are_named_and_write_nothing)
{
	float scores[] = { 3, 2, 1, 2 };
	uint32_t out[4] = { 77 }, num = 77;
	struct ucm_error error;

	assert_einval(ucm_hkvd_select(scores, 4, 3, 1, out, 4, &num, &error),
		      error, "rule 3");
	assert_einval(ucm_hkvd_select(scores, 4, 0, 1.01, out, 4, &num, &error),
		      error, "value");
	assert_einval(ucm_hkvd_select(scores, 4, 2, -.1, out, 4, &num, &error),
		      error, "value");
	assert_einval(ucm_hkvd_select(scores, 4, 0, NAN, out, 4, &num, &error),
		      error, "value");
	assert_einval(ucm_hkvd_select(scores, 4, 1, INFINITY, out, 4, &num,
				      &error), error, "value");
	assert_einval(ucm_hkvd_select(scores, 4, 0, 1, out, 3, &num, &error),
		      error, "room");
	assert_einval(ucm_hkvd_select(scores, 4, 1, 2, out, 2, &num, &error),
		      error, "room");
	assert_einval(ucm_hkvd_select(NULL, 4, 0, 1, out, 4, &num, &error),
		      error, "scores is NULL");
	assert_einval(ucm_hkvd_select(scores, 4, 0, 1, NULL, 4, &num, &error),
		      error, "out is NULL");
	assert_einval(ucm_hkvd_select(scores, 4, 0, 1, out, 4, NULL, &error),
		      error, "num_out is NULL");
	assert_einval(ucm_hkvd_select(scores, 0x80000000u, 0, 1, out, 4, &num,
				      &error), error, "num ");
	scores[2] = NAN;
	assert_einval(ucm_hkvd_select(scores, 4, 0, .5, out, 4, &num, &error),
		      error, "scores: one is NaN");
	assert_einval(ucm_hkvd_select(scores, 4, 1, .5, out, 4, &num, &error),
		      error, "scores: one is NaN");
	must(out[0] == 77 && num == 77);
}
