/* SPDX-License-Identifier: Apache-2.0 */
/* test_select.c - the best blocks and the windows, each once; budgets; tables. */
#include <config.h>

#include "sparse/spec.h"
#include "tests/unit/sparse_fixture.h"

#define MAX_BLOCKS 5000u

/* ---- the best ---- */

static const float *sorted_scores;

/* Best first; of equal ones the lower. */
static int by_score(const void *a, const void *b)
{
	uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
	float x = sorted_scores[i], y = sorted_scores[j];

	return x > y ? -1 : x < y ? 1 : i < j ? -1 : i > j;
}

static int by_number(const void *a, const void *b)
{
	uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;

	return i < j ? -1 : i > j;
}

static void naive_select(const float *scores, const struct ucm_budget *budget,
			 uint32_t *out)
{
	static uint32_t order[MAX_BLOCKS];
	uint32_t candidates = budget->num_blocks - budget->first - budget->last;
	uint32_t num = 0;

	for (uint32_t i = 0; i < candidates; i++)
		order[i] = budget->first + i;
	sorted_scores = scores;
	qsort(order, candidates, sizeof(*order), by_score);
	for (uint32_t i = 0; i < budget->first; i++)
		out[num++] = i;
	for (uint32_t i = 0; i < budget->topk; i++)
		out[num++] = order[i];
	for (uint32_t i = 0; i < budget->last; i++)
		out[num++] = budget->num_blocks - budget->last + i;
	qsort(out, num, sizeof(*out), by_number);
}

static void check_select(const float *scores, const struct ucm_budget *budget)
{
	static uint32_t want[MAX_BLOCKS], got[MAX_BLOCKS + 1];
	uint32_t total = budget->first + budget->topk + budget->last;
	uint32_t num = UINT32_MAX;

	naive_select(scores, budget, want);
	got[total] = 0xabcdef;
	must(!ucm_select(scores, budget, got, total, &num, NULL));
	must(num == total && got[total] == 0xabcdef);
	must(!memcmp(got, want, total * sizeof(*got)));
}

UNIT_TEST(all_small_selections_are_those_of_a_sort, .rows = NUM_ROWS(ways))
{
	bool can = use_way(_i);
	static const float values[] = { -INFINITY, -1, -0.0f, 0, 0x1p-149f, 2,
					INFINITY };
	float scores[9];
	uint64_t random = random_case(0);

	for (int number = 0; can && number < 300; number++) {
		for (size_t i = 0; i < NUM_ROWS(scores); i++)
			scores[i] = values[random_between(
				&random, 0, NUM_ROWS(values) - 1)];
		for (uint32_t n = 0; n <= NUM_ROWS(scores); n++)
			for (uint32_t first = 0; first <= n; first++)
				for (uint32_t k = 0; first + k <= n; k++)
					for (uint32_t last = 0;
					     first + k + last <= n; last++)
						check_select(
							scores,
							&(struct ucm_budget){
								n, first, last,
								k });
	}
}

UNIT_TEST(large_selections_are_those_of_a_sort, .rows = NUM_ROWS(ways))
{
	bool can = use_way(_i);
	static float scores[MAX_BLOCKS];

	for (unsigned number = 0; can && number < 400; number++) {
		uint64_t random = random_case(number);
		struct ucm_budget budget = { .num_blocks = 0 };
		uint32_t left = (uint32_t)random_between(&random, 1, MAX_BLOCKS);
		int64_t kind = random_between(&random, 0, 3);

		budget.num_blocks = left;
		budget.first = (uint32_t)random_between(&random, 0,
							left < 9 ? left : 9);
		left -= budget.first;
		budget.last = (uint32_t)random_between(&random, 0,
						       left < 9 ? left : 9);
		left -= budget.last;
		budget.topk = (uint32_t)random_between(&random, 0, left);
		for (uint32_t i = 0; i < budget.num_blocks; i++) {
			scores[i] = random_float(&random, 100);
			if (kind == 0) /* many ties */
				scores[i] = rintf(scores[i] / 10);
			if (kind == 1) /* all alike */
				scores[i] = -3;
			if (kind == 2) /* of every magnitude */
				do
					scores[i] = ucm_float_of(
						(uint32_t)random_next(&random));
				while (isnan(scores[i]));
		}
		check_select(scores, &budget);
	}
}

UNIT_TEST(no_score_may_be_nan_but_the_windows_, .rows = NUM_ROWS(ways))
{
	bool can = use_way(_i);
	float scores[40] = { 0 };
	uint32_t out[40], num = 77;
	struct ucm_budget budget = { 40, 2, 3, 5 };
	struct ucm_error error;

	memset(out, 0x55, sizeof(out));
	for (uint32_t i = 0; can && i < 40; i++) {
		int err;

		scores[i] = i % 2 ? NAN : -NAN;
		num = 77;
		out[0] = 0x55555555;
		err = ucm_select(scores, &budget, out, 40, &num, &error);
		scores[i] = 0;
		ck_assert_int_eq(err, i < 2 || i >= 37 ? 0 : -EINVAL);
		ck_assert(!err || (num == 77 && out[0] == 0x55555555 &&
				   !strcmp(error.text, "scores: one is NaN")));
	}
}

UNIT_TEST(a_range_is_that_of_a_loop_and_its_zeros_are_plus_0,
	  .rows = NUM_ROWS(ways))
{
	static const float values[] = { -0.0f, 0.0f, -1, 1 };
	bool can = use_way(_i);
	uint64_t random = random_case(_i);
	float some[70];

	for (int number = 0; can && number < 4000; number++) {
		uint32_t num = random_between(&random, 1, 70), kinds;
		float low = INFINITY, high = -INFINITY, least, most;

		kinds = random_between(&random, 2, 4) - 1;
		for (uint32_t i = 0; i < num; i++) {
			some[i] = values[random_between(&random, 0, kinds)];
			low = some[i] < low ? some[i] : low;
			high = some[i] > high ? some[i] : high;
		}
		must(ucm_score_range(some, num, &least, &most));
		must(least == low && most == high);
		must(least != 0 || !signbit(least));
		must(most != 0 || !signbit(most));
		some[random_between(&random, 0, num - 1)] = NAN;
		must(!ucm_score_range(some, num, &least, &most));
	}
}

UNIT_TEST(wrong_arguments_of_a_selection_are_named)
{
	static const struct {
		struct ucm_budget budget;
		size_t room;
		const char *name;
	} rows[] = {
		{ { 4, 2, 2, 1 }, 9, "budget: 2 + 1 + 2 of 4" },
		{ { 4, UINT32_MAX, 1, 1 }, 9, "budget" },
		{ { 4, 1, 1, 2 }, 3, "room 3: 4" },
		{ { UINT32_MAX, 1, 1, 2 }, 9, "budget" },
	};
	float scores[4] = { 0 };
	uint32_t out[9], num;
	struct ucm_error error;

	for (size_t i = 0; i < NUM_ROWS(rows); i++)
		assert_einval(ucm_select(scores, &rows[i].budget, out,
					 rows[i].room, &num, &error),
			      error, rows[i].name);
	assert_einval(ucm_select(scores, NULL, out, 9, &num, &error), error,
		      "budget");
	assert_einval(ucm_select(NULL, &(struct ucm_budget){ 4, 1, 1, 2 }, out,
				 9, &num, &error), error, "scores");
	assert_einval(ucm_select(scores, &(struct ucm_budget){ 4, 1, 1, 2 },
				 NULL, 9, &num, &error), error, "out");
	assert_einval(ucm_select(scores, &(struct ucm_budget){ 4, 1, 1, 2 }, out,
				 9, NULL, &error), error, "num_out");
}

/* ---- budgets ---- */

static bool in_window(const struct ucm_budget_config *config, uint32_t tokens,
		      uint32_t num, uint32_t block, bool *at_end)
{
	const struct ucm_windows *windows = &config->windows;
	bool first = block < windows->initial_blocks;
	bool last = block + windows->local_blocks >= num;

	for (uint32_t i = 0; i < config->block_size; i++) {
		uint32_t token = block * config->block_size + i;

		if (token >= tokens)
			break;
		first |= token < windows->sink_tokens;
		last |= token + windows->recent_tokens >= tokens;
	}
	*at_end = last && !first;
	return first || last;
}

static void check_budget(const struct ucm_budget_config *config,
			 uint32_t tokens)
{
	uint32_t num = (tokens + config->block_size - 1) / config->block_size;
	uint32_t forced = 0, last = 0, want;
	struct ucm_budget got;
	bool at_end;

	for (uint32_t block = 0; block < num; block++) {
		forced += in_window(config, tokens, num, block, &at_end);
		last += at_end;
	}
	want = (uint32_t)floor((num - forced) * config->ratio);
	if (config->budget_tokens) {
		uint32_t all = config->budget_tokens / config->block_size;

		want = all < forced ? 0 : all - forced;
	}
	if (want < config->min_topk)
		want = config->min_topk;
	if (config->max_topk && want > config->max_topk)
		want = config->max_topk;
	if (want > num - forced || tokens <= config->dense_tokens)
		want = num - forced;
	must(!ucm_budget_blocks(config, tokens, &got, NULL));
	must(got.num_blocks == num && got.last == last);
	must(got.first == forced - last && got.topk == want);
}

UNIT_TEST(budgets_are_those_of_counting)
{
	static const double ratios[] = { 0, 0.1, 0.3, 0.5, 0.99, 1 };
	uint64_t random = random_case(0);

	for (int number = 0; number < 20000; number++) {
		struct ucm_budget_config config = {
			.block_size = (uint32_t)random_between(&random, 1, 7),
			.windows = {
				(uint32_t)random_between(&random, 0, 4),
				(uint32_t)random_between(&random, 0, 4),
				(uint32_t)random_between(&random, 0, 20),
				(uint32_t)random_between(&random, 0, 20),
			},
			.ratio = ratios[random_between(&random, 0, 5)],
			.min_topk = (uint32_t)random_between(&random, 0, 3),
			.dense_tokens = (uint32_t)random_between(&random, 0, 9),
		};

		if (random_between(&random, 0, 1))
			config.max_topk = config.min_topk + 3;
		if (random_between(&random, 0, 1))
			config.budget_tokens = config.block_size +
				(uint32_t)random_between(&random, 0, 60);
		if (random_between(&random, 0, 3) == 0)
			config.windows.initial_blocks = UINT32_MAX;
		for (uint32_t tokens = 0; tokens < 40; tokens++)
			check_budget(&config, tokens);
	}
}

UNIT_TEST(windows_are_not_counted_twice)
{
	/* GSA's own rule makes 3 + 6 of these 10, and adds the 3 again */
	struct ucm_budget_config config = {
		.block_size = 16, .windows = { 1, 2, 0, 0 }, .ratio = 0.9,
	};
	struct ucm_budget budget;

	ck_assert_int_eq(ucm_budget_blocks(&config, 160, &budget, NULL), 0);
	ck_assert_uint_eq(budget.first + budget.topk + budget.last, 9);
}

UNIT_TEST(ratio_one_is_all_blocks)
{
	struct ucm_budget_config config = {
		.block_size = 16, .windows = { 1, 2, 0, 0 }, .ratio = 1,
	};
	struct ucm_budget budget;
	float scores[64] = { 0 };
	uint32_t out[64], num;

	for (uint32_t tokens = 1; tokens <= 1024; tokens++) {
		must(!ucm_budget_blocks(&config, tokens, &budget, NULL));
		must(!ucm_select(scores, &budget, out, 64, &num, NULL));
		must(num == (tokens + 15) / 16);
		for (uint32_t i = 0; i < num; i++)
			must(out[i] == i);
	}
}

UNIT_TEST(the_largest_numbers_do_not_overflow)
{
	struct ucm_budget_config config = {
		.block_size = 1,
		.windows = { UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX },
		.ratio = 1, .max_topk = UINT32_MAX,
	};
	struct ucm_budget budget;

	ck_assert_int_eq(ucm_budget_blocks(&config, UINT32_MAX, &budget, NULL),
			 0);
	ck_assert_uint_eq(budget.first, UINT32_MAX);
	ck_assert_uint_eq(budget.last, 0);
	config.windows = (struct ucm_windows){ 0 };
	ck_assert_int_eq(ucm_budget_blocks(&config, UINT32_MAX, &budget, NULL),
			 0);
	ck_assert_uint_eq(budget.topk, UINT32_MAX);
}

UNIT_TEST(a_wrong_budget_is_named)
{
	static const struct {
		struct ucm_budget_config config;
		const char *name;
	} rows[] = {
		{ { .block_size = 0, .ratio = 1 }, "block_size" },
		{ { .block_size = 1, .ratio = -0.1 }, "ratio" },
		{ { .block_size = 1, .ratio = 1.1 }, "ratio" },
		{ { .block_size = 1, .ratio = NAN }, "ratio" },
		{ { .block_size = 16, .budget_tokens = 15 }, "budget_tokens" },
		{ { .block_size = 1, .min_topk = 3, .max_topk = 2 },
		  "max_topk" },
	};
	struct ucm_budget budget = { 1, 2, 3, 4 };
	struct ucm_error error;

	for (size_t i = 0; i < NUM_ROWS(rows); i++)
		assert_einval(ucm_budget_blocks(&rows[i].config, 5, &budget,
						&error), error, rows[i].name);
	assert_einval(ucm_budget_blocks(NULL, 5, &budget, &error), error,
		      "config");
	assert_einval(ucm_budget_blocks(&(struct ucm_budget_config){
						.block_size = 1 },
					5, NULL, &error), error, "out");
	ck_assert_uint_eq(budget.num_blocks, 1);
}

/* ---- tables ---- */

static const struct {
	uint32_t tokens;
	uint32_t num, selected[3];
	uint32_t want_tokens;
} tables[] = {
	{ 10, 3, { 0, 1, 2 }, 10 }, /* all; the last has two of four */
	{ 10, 2, { 0, 2 }, 6 },
	{ 10, 2, { 0, 1 }, 8 }, /* without the partial one */
	{ 10, 1, { 2 }, 2 },
	{ 12, 2, { 1, 2 }, 8 },
	{ 10, 0, { 0 }, 0 },
};

UNIT_TEST(a_table_names_the_selected_blocks, .rows = NUM_ROWS(tables))
{
	int32_t table[] = { 7, 0, 5 }, out[4] = { -9, -9, -9, -9 };
	uint32_t tokens, num = tables[_i].num;

	ck_assert_int_eq(ucm_select_table(table, 4, tables[_i].tokens,
					  tables[_i].selected, num, out, num,
					  &tokens, NULL), 0);
	ck_assert_uint_eq(tokens, tables[_i].want_tokens);
	for (uint32_t i = 0; i < num; i++)
		ck_assert_int_eq(out[i], table[tables[_i].selected[i]]);
	ck_assert_int_eq(out[num], -9);
	/* in place */
	ck_assert_int_eq(ucm_select_table(table, 4, tables[_i].tokens,
					  tables[_i].selected, num, table, 3,
					  &tokens, NULL), 0);
	ck_assert(!memcmp(table, out, num * sizeof(*out)));
}

UNIT_TEST(wrong_arguments_of_a_table_are_named)
{
	static const struct {
		uint32_t block_size, num, selected[3];
		size_t room;
		const char *name;
	} rows[] = {
		{ 0, 1, { 0 }, 3, "block_size" },
		{ 4, 2, { 0, 1 }, 1, "room" },
		{ 4, 2, { 0, 3 }, 3, "selected: block 3" },
		{ 4, 2, { 1, 1 }, 3, "selected: 1 after 1" },
		{ 4, 2, { 1, 0 }, 3, "selected: 0 after 1" },
		{ 4, 2, { 1, 2 }, 3, "table: block 2" },
	};
	int32_t table[] = { 7, 0, -1 }, out[3] = { -9, -9, -9 };
	uint32_t tokens = 99, zero = 0;
	struct ucm_error error;

	for (size_t i = 0; i < NUM_ROWS(rows); i++)
		assert_einval(ucm_select_table(table, rows[i].block_size, 10,
					       rows[i].selected, rows[i].num,
					       out, rows[i].room, &tokens,
					       &error), error, rows[i].name);
	assert_einval(ucm_select_table(NULL, 4, 10, &zero, 1, out, 3, &tokens,
				       &error), error, "table");
	assert_einval(ucm_select_table(table, 4, 10, NULL, 1, out, 3, &tokens,
				       &error), error, "selected");
	assert_einval(ucm_select_table(table, 4, 10, &zero, 1, NULL, 3, &tokens,
				       &error), error, "out");
	assert_einval(ucm_select_table(table, 4, 10, &zero, 1, out, 3, NULL,
				       &error), error, "tokens_out");
	ck_assert(tokens == 99 && out[0] == -9);
}
